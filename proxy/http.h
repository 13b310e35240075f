/* SPDX-License-Identifier: Apache-2.0
 * proxy/http.h - the HTTP server under recask's routes; the only place that knows libmicrohttpd.
 *
 * Use: http_server_new -> http_listen / http_listen_unix -> (handlers run) -> http_server_drain -> http_server_free.
 * A handler gets a struct http_exchange on a worker thread, may block on disk, and answers with http_reply(), at once or
 * later from any thread. Exactly one reply per exchange. A body is memory or a struct source, read by workers into the
 * exchange's pipe and copied from there by the event threads: callbacks of libmicrohttpd only parse, copy and park.
 * Threads: an exchange's getters may be used from any thread until the reply.
 * A TLS ClientHello on a plain port gets a static HTTP 400 (docker's containerd store falls back to HTTP only on that), and
 * so does plain HTTP on a TLS port.
 * Limits: path and query 8 KiB (414), headers 16 KiB, Range 24 KiB more, and 64 names (431; libmicrohttpd's own answers, from
 * about 60 KiB on, are HTML), request body HTTP_BODY_MAX_BYTES (413), a request that does not arrive in header_ms (408, or
 * closed on TLS), an answer of which the client fetches nothing for idle_ms (cut), connections (accepting pauses: the next
 * client waits, and connections that idle for a second make room).
 */
#pragma once

#include "base/stream.h"
#include "base/workpool.h"

#include <stdbool.h>
#include <stdint.h>

#define HTTP_BODY_MAX_BYTES (1u << 20)
#define HTTP_PIPE_BYTES (256u << 10)

struct http_server;
struct http_exchange;
struct http_listener;
struct http_answer;

struct http_options {
    struct workpool *pool;
    unsigned threads;         /* event threads per listener; 0: 2 */
    unsigned max_connections; /* per listener; 0: 4096 */
    /* Per listener and IP address (IPv6: /64), loopback too; not on Unix sockets. 0: no limit. More are closed at once. */
    unsigned max_connections_per_client;
    int header_ms; /* from a connection's first byte, or a later request's first line, to the end of the headers; 0: 30,000 */
    int idle_ms; /* between two requests; for a request's body; without progress of an answer; 0: 120,000 */
};

/* arg: from http_listen. Runs on a worker. */
typedef void http_handler_fn(void *arg, struct http_exchange *x);
/* Runs on an event thread before the handler would: may answer from memory at once (true), and blocks on nothing. */
typedef bool http_quick_fn(void *arg, struct http_exchange *x, struct http_answer *out);

struct http_listen_options {
    const char *address;  /* "127.0.0.1:5000", "[::1]:5000", port 0 picks one */
    http_quick_fn *quick; /* NULL: none; arg is the handler's */
    /* PEM: chain and key; both or none. Read at the start (ERR_USAGE names file and fault) and again when they change on
     * disk; a pair that cannot be used then is logged and the old one stays. */
    const char *tls_cert_file, *tls_key_file;
};


MUST_CHECK int http_server_new(const struct http_options *opt, struct http_server **out, struct err *err);
/* ERR_USAGE, ERR_BUSY (in use), ERR_IO. */
MUST_CHECK int http_listen(struct http_server *s, const struct http_listen_options *opt, http_handler_fn *fn, void *arg,
                           struct http_listener **out, struct err *err);
MUST_CHECK int http_listen_unix(struct http_server *s, const char *path, http_handler_fn *fn, void *arg,
                                struct http_listener **out, struct err *err);
const char *http_listener_address(const struct http_listener *l); /* with the real port */
/* Stops accepting and waits until no exchange is running, at most timeout_ms; what is left is cut. */
void http_server_drain(struct http_server *s, int timeout_ms);
void http_server_free(struct http_server *s);
unsigned http_running(struct http_server *s); /* exchanges not yet completed */

/* ---- one exchange ---------------------------------------------------------------------------------------------- */

enum http_method { HTTP_GET, HTTP_HEAD, HTTP_POST, HTTP_OTHER };

enum http_method http_method(const struct http_exchange *x);
const char *http_method_text(const struct http_exchange *x);
/* False: HTTP/1.0, where a cut body without length looks complete. */
bool http_can_chunk(const struct http_exchange *x);
const char *http_path(const struct http_exchange *x); /* as sent, percent-encoded, without query, scheme and host */
const char *http_query(const struct http_exchange *x, const char *name);  /* decoded; NULL when absent */
const char *http_query_raw(const struct http_exchange *x);                /* "n=10&last=x", "" when none */
const char *http_header(const struct http_exchange *x, const char *name); /* lines joined with ", "; NULL when absent */
/* Everything that an answer could depend on: listener, method, target and all headers but X-Request-Id, as one string of
 * bytes. Its length, 0 when it has more than cap bytes. */
size_t http_question(const struct http_exchange *x, char *out, size_t cap);
const char *http_body(const struct http_exchange *x, size_t *out_len);
const char *http_request_id(const struct http_exchange *x); /* the client's X-Request-Id when sane, else made here */
const char *http_peer(const struct http_exchange *x);       /* "127.0.0.1:41234", "unix" */
bool http_is_unix(const struct http_exchange *x);
bool http_is_tls(const struct http_exchange *x);

#define HTTP_HEADERS_MAX 16

struct http_answer {
    int status;
    struct {
        const char *name; /* static */
        char *value;      /* malloc'd; freed by http_answer_release or taken by http_reply */
    } headers[HTTP_HEADERS_MAX];
    unsigned header_count;
    /* one of: */
    char *body; /* malloc'd or NULL */
    size_t body_len;
    struct source *source;
    bool has_length; /* with a source: Content-Length; without: chunked. For HEAD and 304: the length that a GET's 200
                      * would have; with neither this nor a body the length is left open */
    uint64_t length_bytes; /* a source that ends before it fails the answer; what is beyond is not sent */
    /* for the log line */
    const char *cache; /* static: "hit" "follow" "miss" "stale" or NULL */
    const char *view;  /* static or NULL */
};

MUST_CHECK int http_answer_header(struct http_answer *a, struct err *err, const char *name, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
void http_answer_release(struct http_answer *a);

/* Sends a (taken: emptied in any case). HEAD answers send no body and free it. x must not be used afterwards: until this
 * call it lives, even when its client is gone. */
void http_reply(struct http_exchange *x, struct http_answer *a);

/* Called after the last byte of each request that had a first line, on an event thread; for counters and the access log.
 * A request that no handler has seen may lack headers, and its method may be "-". */
struct http_done {
    int status; /* 0: none was sent */
    uint64_t sent_bytes;
    bool complete; /* false: the client left or the body failed */
    const char *cache, *view;
    int64_t ms, first_ms; /* since the request's first line: all of it; until the answer's head was ready */
    bool tls;
    const char *listener; /* its address */
};
typedef void http_done_fn(void *arg, const struct http_exchange *x, const struct http_done *done);
void http_on_done(struct http_listener *l, http_done_fn *fn, void *arg);
