/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/proxy_server.h - a small HTTP server in this process, scripted in C: one thread accepts, one serves each
 * connection and calls the test's function for each request.
 */
#pragma once

#include "base/compiler.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define SERVER_CONNECTIONS_MAX 512
#define SERVER_REQUEST_BYTES 8192

struct server;

/* request: the header section, NUL-terminated. nth counts all requests of the server from 0. False: close. */
typedef bool server_fn(struct server *s, int fd, unsigned nth, const char *request);

struct server_connection {
    struct server *server;
    pthread_t thread;
    int fd;
};

struct server {
    server_fn *fn;
    void *arg;
    int fd;
    int port;
    char url[64];
    pthread_t thread;
    atomic_uint requests, connections;
    atomic_bool stopping;
    char last[SERVER_REQUEST_BYTES]; /* the last request, for tests with one at a time */
    uint64_t blob_bytes;
    atomic_int knob[4];
    struct server_connection conns[SERVER_CONNECTIONS_MAX];
};

static inline bool server_write(int fd, const void *data, size_t len)
{
    const char *at = data;

    while (len > 0) {
        ssize_t n = send(fd, at, len, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        at += n;
        len -= (size_t)n;
    }
    return true;
}

static inline bool server_say(int fd, const char *text)
{
    return server_write(fd, text, strlen(text));
}

/* Until the client or server_stop() closes the connection. */
static inline void server_hang(int fd)
{
    char sink[256];

    while (recv(fd, sink, sizeof sink, 0) > 0)
        continue;
}

/* The number in "Range: bytes=N-", 0 without one. */
static inline uint64_t server_range(const char *request)
{
    const char *line = strcasestr(request, "\r\nRange: bytes=");

    return line == NULL ? 0 : strtoull(line + strlen("\r\nRange: bytes="), NULL, 10);
}

static inline uint8_t server_blob_byte(uint64_t at)
{
    uint64_t x = at * 0x9e3779b97f4a7c15u;

    return (uint8_t)(x >> 56);
}

/* Bytes [from, to) of the server's blob. */
static inline bool server_blob(int fd, uint64_t from, uint64_t to)
{
    uint8_t block[16384];

    while (from < to) {
        size_t len = to - from < sizeof block ? (size_t)(to - from) : sizeof block;
        for (size_t i = 0; i < len; i++)
            block[i] = server_blob_byte(from + i);
        if (!server_write(fd, block, len))
            return false;
        from += len;
    }
    return true;
}

/* Header of an answer for [from, end) of the blob: 200 when from is 0, else 206. */
static inline bool server_blob_head(int fd, uint64_t from, uint64_t total)
{
    char head[256];

    if (from == 0)
        snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Length: %llu\r\n\r\n", (unsigned long long)total);
    else
        snprintf(head, sizeof head,
                 "HTTP/1.1 206 Partial Content\r\nContent-Length: %llu\r\nContent-Range: bytes %llu-%llu/%llu\r\n\r\n",
                 (unsigned long long)(total - from), (unsigned long long)from, (unsigned long long)(total - 1),
                 (unsigned long long)total);
    return server_say(fd, head);
}

static inline bool server_read_request(int fd, char *out, size_t cap)
{
    size_t len = 0;

    while (len + 1 < cap) {
        ssize_t n = recv(fd, out + len, 1, 0);
        if (n <= 0)
            return false;
        out[++len] = '\0';
        if (len >= 4 && memcmp(out + len - 4, "\r\n\r\n", 4) == 0)
            return true;
    }
    return false;
}

static inline void *server_serve(void *arg)
{
    struct server_connection *c = arg;
    char *request = malloc(SERVER_REQUEST_BYTES);

    REQUIRE(request != NULL);
    while (server_read_request(c->fd, request, SERVER_REQUEST_BYTES)) {
        unsigned nth = atomic_fetch_add(&c->server->requests, 1);
        if (!c->server->fn(c->server, c->fd, nth, request))
            break;
    }
    free(request);
    /* Not close(): server_stop() may shut this descriptor down at the same time. */
    shutdown(c->fd, SHUT_RDWR);
    return NULL;
}

static inline void *server_accept(void *arg)
{
    struct server *s = arg;

    for (;;) {
        int fd = accept(s->fd, NULL, NULL);
        if (fd < 0 || atomic_load(&s->stopping)) {
            if (fd >= 0)
                close(fd);
            return NULL;
        }
        unsigned i = atomic_load(&s->connections);
        REQUIRE(i < SERVER_CONNECTIONS_MAX);
        s->conns[i] = (struct server_connection){.server = s, .fd = fd};
        REQUIRE(pthread_create(&s->conns[i].thread, NULL, server_serve, &s->conns[i]) == 0);
        atomic_store(&s->connections, i + 1);
    }
}

static inline void server_start(struct server *s, server_fn *fn, void *arg)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof addr;

    memset(s, 0, sizeof *s);
    s->fn = fn;
    s->arg = arg;
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(s->fd >= 0 && bind(s->fd, (struct sockaddr *)&addr, sizeof addr) == 0);
    REQUIRE(listen(s->fd, 128) == 0 && getsockname(s->fd, (struct sockaddr *)&addr, &len) == 0);
    s->port = ntohs(addr.sin_port);
    snprintf(s->url, sizeof s->url, "http://127.0.0.1:%d", s->port);
    REQUIRE(pthread_create(&s->thread, NULL, server_accept, s) == 0);
}

static inline void server_stop(struct server *s)
{
    atomic_store(&s->stopping, true);
    shutdown(s->fd, SHUT_RDWR);
    REQUIRE(pthread_join(s->thread, NULL) == 0);
    close(s->fd);
    for (unsigned i = 0; i < atomic_load(&s->connections); i++) {
        shutdown(s->conns[i].fd, SHUT_RDWR);
        REQUIRE(pthread_join(s->conns[i].thread, NULL) == 0);
        close(s->conns[i].fd);
    }
}
