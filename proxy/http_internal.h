/* SPDX-License-Identifier: Apache-2.0
 * proxy/http_internal.h - what the http*.c share: http.c (libmicrohttpd), http_exchange.c (request and answer),
 * http_server.c (listeners), http_accept.c (the accept loop), http_guard.c (connections and their time limits),
 * http_tls.c (certificates), http_socket.c. Nothing else includes it.
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
#define HTTP_CONN_MAGIC 0xc0221ec7u
#define HTTP_REQUEST_HEADERS_MAX 64
#define HTTP_HEADER_MAX_BYTES (16u << 10)
#define HTTP_RANGE_MAX_BYTES (24u << 10) /* 1024 ranges of ten digits each way */
#define HTTP_URI_MAX_BYTES (8u << 10)
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
    bool cut;       /* to be ended: park no more */
    bool timed_out; /* cut while its request was still coming in */
    struct http_answer answer;
    struct http_pipe pipe;
    struct job handle, pump;
    /* the request; constant once `handed` */
    enum http_method method;
    char *method_text, *path, *query, *query_decoded;
    struct http_header_line lines[HTTP_REQUEST_HEADERS_MAX];
    size_t line_count, header_bytes, range_bytes;
    bool no_memory, header_overflow, body_overflow, uri_overflow, bad_framing, unknown_coding, is_http_1_0;
    struct buf body;
    char id[HTTP_ID_BYTES];
    char peer[HTTP_PEER_BYTES];
    /* for the log */
    int64_t start_ms, queued_ms; /* the request line was there; the answer was given to libmicrohttpd, 0: not yet */
    atomic_uint_fast64_t sent_bytes;
    struct http_conn *link; /* NULL once the exchange is completed; under the listener's lock */
};

enum conn_phase {
    CONN_WAITING, /* the accept loop's: no byte has come yet, or a refusal is being read */
    CONN_ADDED,   /* given to libmicrohttpd, which has not taken it up yet */
    CONN_FIRST,   /* the TLS handshake, then the head of the first request */
    CONN_IDLE,    /* between two requests */
    CONN_HEAD,    /* a later request's head, once its first line is there */
    CONN_BODY,    /* the body of a request */
    CONN_ANSWER,  /* the request is there: a handler works, or the answer goes out */
    CONN_CUT,     /* shut down; libmicrohttpd closes it when it notices */
};

/* One connection, from accept to close, in its listener's list and under its lock (G1-G3 in http_guard.c). */
struct http_conn {
    uint32_t magic;
    enum conn_phase phase;
    int fd;
    struct http_conn *next, *prev;
    int64_t since_ms;          /* start of the phase */
    struct http_exchange *x;   /* the request that runs on it */
    struct tls_pair *pair;     /* the certificate it was greeted with */
    unsigned char address[16]; /* IPv6 /64, IPv4 as mapped; zeros: a Unix socket */
    char peer[HTTP_PEER_BYTES];
    /* an answer on its way: what was seen at the last look, and when that was new */
    uint64_t seen_sent;
    int seen_queued;
    int64_t moved_ms, gone_ms;
};

struct http_acceptor;
struct http_tls;

struct http_server {
    struct workpool *pool;
    unsigned threads, max_connections, max_connections_per_client;
    int header_ms, idle_ms;
    atomic_uint_fast64_t next_id; /* of a request; begins at random */
    struct http_listener *listeners;
};

struct http_listener {
    uint32_t magic;
    struct http_server *server;
    struct http_listener *next;
    struct http_acceptor *acceptor;
    void *daemon;         /* struct MHD_Daemon * */
    struct http_tls *tls; /* NULL: plain */
    struct job tls_look;
    bool is_unix;
    char address[HTTP_ADDRESS_BYTES];
    http_handler_fn *fn;
    http_quick_fn *quick;
    void *arg;
    struct lock lock; /* RANK_SERVER: all below */
    pthread_cond_t idle;
    http_done_fn *done_fn;
    void *done_arg;
    struct http_exchange *running;
    unsigned running_count;
    bool stopping;
    struct http_conn *conns;
    unsigned conn_count;
    struct http_conn **by_fd; /* those that libmicrohttpd has */
    size_t by_fd_len;
    int64_t refused_ms; /* when the last refusal was logged */
};

/* http_exchange.c */
struct http_exchange *http_exchange_new(struct http_listener *l, const char *uri);
void http_exchange_ref(void *x);
void http_exchange_unref(void *x);
void http_exchange_add_header(struct http_exchange *x, const char *name, const char *value);
/* Once the headers are in; false: no memory. */
bool http_exchange_begin(struct http_exchange *x, const char *method, const char *version);
/* The producer's free region (contiguous, may be 0 bytes) and its publication. */
size_t pipe_space(const struct http_pipe *p, char **out);
void pipe_publish(struct http_pipe *p, size_t len);
size_t pipe_take(struct http_pipe *p, char *out, size_t max);

/* http.c. The first two: with x->lock held; resumes the connection when it is parked. exchange_cut(): and it never parks
 * again. */
void exchange_unpark(struct http_exchange *x);
void exchange_cut(struct http_exchange *x);
MUST_CHECK int http_daemon_start(struct http_listener *l, struct err *err);
void http_daemon_stop(struct http_listener *l); /* a second call does nothing */
/* Gives the connection, the one for c, to libmicrohttpd; both are its own from here on, also on failure. */
void http_daemon_add(struct http_listener *l, struct http_conn *c, const struct sockaddr *sa, socklen_t len);

/* http_guard.c: all of them take the listener's lock. */
/* NULL: this client has too many, or no memory. The caller closes fd then. */
struct http_conn *conn_open(struct http_listener *l, int fd, const struct sockaddr *sa);
void conn_free(struct http_listener *l, struct http_conn *c); /* before its descriptor is closed, or by libmicrohttpd */
bool conn_room(struct http_listener *l);                      /* for one more */
bool conn_adding(struct http_listener *l, struct http_conn *c); /* false: no memory */
struct http_conn *conn_started(struct http_listener *l, int fd);
/* A request begins with its first line; its head or its body is complete; it is over. */
void conn_begin(struct http_listener *l, struct http_conn *c, struct http_exchange *x);
void conn_phase(struct http_listener *l, struct http_exchange *x, enum conn_phase phase);
void conn_end(struct http_listener *l, struct http_exchange *x);
/* Cuts what is overdue. Returns the milliseconds until it wants to look again, -1: when there is a connection. */
int guard_look(struct http_listener *l);
void conn_free_all(struct http_listener *l);

/* http_tls.c. http_tls_look(): reads the files when they have changed; blocks on disk. */
MUST_CHECK int http_tls_new(const struct http_listen_options *opt, struct http_tls **out, struct err *err);
void http_tls_free(struct http_tls *t);
void http_tls_look(struct http_tls *t);
struct tls_pair *tls_pair_current(struct http_tls *t);
void tls_pair_unref(struct tls_pair *p);

/* http_socket.c: listening, non-blocking sockets. http_socket_name(): the address with the real port; out is left alone
 * when there is none. http_peer_name(): "127.0.0.1:41234", "unix". */
MUST_CHECK int http_open_tcp(const char *address, int *out_fd, struct err *err);
MUST_CHECK int http_open_unix(const char *path, int *out_fd, struct err *err);
void http_socket_name(int fd, char *out, size_t cap);
void http_peer_name(const struct sockaddr *sa, char *out, size_t cap);

/* http_accept.c: a thread that accepts, looks at the first byte and passes the connection on, or answers itself when that
 * byte belongs to the other protocol. It also runs the guard. */
MUST_CHECK int acceptor_start(struct http_listener *l, int listen_fd,
                              struct err *err); /* takes listen_fd in any case */
void acceptor_stop(struct http_acceptor *a);    /* joins; NULL is fine */
