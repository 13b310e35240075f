/* SPDX-License-Identifier: Apache-2.0
 *
 * Listening sockets: from "127.0.0.1:5000" or a path to a file descriptor, with errors that say which address and why.
 */
#include "proxy/http_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int split_address(const char *address, char *host, size_t host_len, char *port, size_t port_len, struct err *err)
{
    const char *colon = strrchr(address, ':');
    const char *start = address, *end = colon;

    if (!colon || !colon[1] || strspn(colon + 1, "0123456789") != strlen(colon + 1))
        return err_set(err, ERR_USAGE, "listen address \"%s\": want ADDRESS:PORT, like 127.0.0.1:5000", address);
    if (start[0] == '[' && end > start && end[-1] == ']') {
        start++;
        end--;
    }
    if ((size_t)(end - start) >= host_len || strlen(colon + 1) >= port_len)
        return err_set(err, ERR_USAGE, "listen address \"%s\" is too long", address);
    snprintf(host, host_len, "%.*s", (int)(end - start), start);
    snprintf(port, port_len, "%s", colon + 1);
    return 0;
}

static int bind_and_listen(const struct addrinfo *ai, const char *address, int *out_fd, struct err *err)
{
    int one = 1;
    int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_sys(err, errno, "listen on %s", address);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (ai->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
        int why = errno;
        close(fd);
        if (why == EADDRINUSE)
            return err_set(err, ERR_BUSY, "cannot listen on %s: the address is in use by another process", address);
        return err_sys(err, why, "cannot listen on %s", address);
    }
    *out_fd = fd;
    return 0;
}

int http_open_tcp(const char *address, int *out_fd, struct err *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *ai = NULL;
    char host[HTTP_ADDRESS_BYTES], port[8];

    TRY(split_address(address, host, sizeof(host), port, sizeof(port), err));
    int rc = getaddrinfo(*host ? host : NULL, port, &hints, &ai);
    if (rc != 0)
        return err_set(err, ERR_USAGE, "listen address \"%s\": %s", address, gai_strerror(rc));
    rc = bind_and_listen(ai, address, out_fd, err);
    freeaddrinfo(ai);
    return rc;
}

void http_socket_name(int fd, char *out, size_t cap)
{
    char host[INET6_ADDRSTRLEN], port[8];
    struct sockaddr_storage sa = {.ss_family = AF_UNSPEC};
    socklen_t len = sizeof(sa);

    if (getsockname(fd, (struct sockaddr *)&sa, &len) != 0 ||
        getnameinfo((struct sockaddr *)&sa, len, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return;
    snprintf(out, cap, sa.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

void http_peer_name(const struct sockaddr *sa, char *out, size_t cap)
{
    char host[INET6_ADDRSTRLEN] = "?";
    struct sockaddr_in6 in6;
    struct sockaddr_in in;

    if (sa->sa_family == AF_INET) {
        memcpy(&in, sa, sizeof(in));
        inet_ntop(AF_INET, &in.sin_addr, host, sizeof(host));
        snprintf(out, cap, "%s:%u", host, ntohs(in.sin_port));
    } else if (sa->sa_family == AF_INET6) {
        memcpy(&in6, sa, sizeof(in6));
        inet_ntop(AF_INET6, &in6.sin6_addr, host, sizeof(host));
        snprintf(out, cap, "[%s]:%u", host, ntohs(in6.sin6_port));
    } else {
        snprintf(out, cap, "unix");
    }
}

int http_open_unix(const char *path, int *out_fd, struct err *err)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};

    if (strlen(path) >= sizeof(un.sun_path))
        return err_set(err, ERR_USAGE, "%s: too long for a Unix socket (%zu bytes at most); use a shorter store path",
                       path, sizeof(un.sun_path) - 1);
    snprintf(un.sun_path, sizeof(un.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_sys(err, errno, "%s", path);
    /* The store's lock says that no other process serves here: a socket that lies there is a dead one's. */
    unlink(path);
    if (bind(fd, (struct sockaddr *)&un, sizeof(un)) != 0 || chmod(path, 0600) != 0 || listen(fd, SOMAXCONN) != 0) {
        int rc = err_sys(err, errno, "%s", path);
        close(fd);
        return rc;
    }
    *out_fd = fd;
    return 0;
}
