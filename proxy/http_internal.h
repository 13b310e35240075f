/* SPDX-License-Identifier: Apache-2.0
 * proxy/http_internal.h - what http.c (libmicrohttpd), http_exchange.c (request and answer) and http_accept.c (the accept
 * loop) share. Nothing else includes it.
 */
#pragma once

#include "base/buf.h"
#include "base/lock.h"
#include "proxy/http.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#define HTTP_EXCHANGE_MAGIC 0x4e8c4a17u
#define HTTP_LISTENER_MAGIC 0x11572e00u
#define HTTP_REQUEST_HEADERS_MAX 64
#define HTTP_HEADER_MAX_BYTES (16u << 10)
#define HTTP_ID_BYTES 40
#define HTTP_PEER_BYTES 64
#define HTTP_ADDRESS_BYTES 128

struct http_header_line {
    char *name, *value;
};

/* The bytes between a worker (one producer) and an event thread (one consumer): a ring in one allocation. All fields under
 * the exchange's lock; the free region that a producer was given is its own until it publishes. */
struct http_pipe {
    char *mem;
    size_t cap, head, used;
    bool eof, failed;
};

struct http_exchange {
    uint32_t magic;
    atomic_uint refs;
    struct http_listener *listener;
    struct http_exchange *next, *prev; /* in the listener's list, under its lock */
    struct lock lock;                  /* RANK_REQUEST: everything from here to `pump` */
    void *conn;                        /* struct MHD_Connection *; NULL once the exchange is completed */
    bool parked;                       /* suspended; whoever clears it resumes, under the lock */
    bool handed;                       /* the handler has been started */
    bool answered;                     /* `answer` is set */
    bool queued;                       /* the answer was given to libmicrohttpd */
    bool done;
    bool cut; /* shutting down: park no more */
    struct http_answer answer;
    struct http_pipe pipe;
    struct job handle, pump;
    /* the request; constant once `handed` */
    enum http_method method;
    char *method_text, *path, *query, *query_decoded;
    struct http_header_line lines[HTTP_REQUEST_HEADERS_MAX];
    size_t line_count, header_bytes;
    bool header_overflow, body_overflow, is_http_1_0;
    struct buf body;
    char id[HTTP_ID_BYTES];
    char peer[HTTP_PEER_BYTES];
    /* for the log */
    int64_t start_ms;
    atomic_uint_fast64_t sent_bytes;
};

struct http_acceptor;

struct http_listener {
    uint32_t magic;
    struct http_server *server;
    struct http_listener *next;
    struct http_acceptor *acceptor;
    void *daemon; /* struct MHD_Daemon * */
    bool is_unix;
    char address[HTTP_ADDRESS_BYTES];
    http_handler_fn *fn;
    void *arg;
    struct lock lock; /* RANK_SERVER: all below */
    pthread_cond_t idle;
    http_done_fn *done_fn;
    void *done_arg;
    struct http_exchange *running;
    unsigned running_count;
    bool stopping;
};

/* http_exchange.c */
struct http_exchange *http_exchange_new(struct http_listener *l, const char *uri);
void http_exchange_ref(void *x);
void http_exchange_unref(void *x);
void http_exchange_add_header(struct http_exchange *x, const char *name, const char *value);
void http_exchange_set_peer(struct http_exchange *x, const struct sockaddr *sa);
/* Once the headers are in; false: no memory. */
bool http_exchange_begin(struct http_exchange *x, const char *method, const char *version);
/* The producer's free region (contiguous, may be 0 bytes) and its publication. */
size_t pipe_space(const struct http_pipe *p, char **out);
void pipe_publish(struct http_pipe *p, size_t len);
size_t pipe_take(struct http_pipe *p, char *out, size_t max);

/* http.c: called with x->lock held; resumes the connection when it is parked. */
void exchange_unpark(struct http_exchange *x);

/* http_socket.c: listening, non-blocking sockets. http_socket_name(): the address with the real port; out is left alone
 * when there is none. */
MUST_CHECK int http_open_tcp(const char *address, int *out_fd, struct err *err);
MUST_CHECK int http_open_unix(const char *path, int *out_fd, struct err *err);
void http_socket_name(int fd, char *out, size_t cap);

/* http_accept.c: a thread that accepts, looks at the first byte and passes the socket on, or answers a TLS hello itself. */
typedef void http_accepted_fn(void *arg, int fd, const struct sockaddr *sa, socklen_t len);
MUST_CHECK int acceptor_start(int listen_fd, unsigned max_waiting, http_accepted_fn *fn, void *arg,
                              struct http_acceptor **out, struct err *err); /* takes listen_fd in any case */
void acceptor_stop(struct http_acceptor *a);                             /* joins; NULL is fine */
