/* SPDX-License-Identifier: Apache-2.0
 *
 * The one file that speaks libmicrohttpd, and hands it to GnuTLS. Its event threads parse requests, copy answer bytes and suspend; everything else
 * happens on workers. Invariants:
 *   H1  `parked` is set and MHD_suspend_connection called in one critical section of x->lock; whoever clears it calls
 *       MHD_resume_connection in the same section, so that no wake is lost and none comes twice
 *   H2  x->conn is cleared under x->lock when libmicrohttpd is done with the request; nobody touches it afterwards
 *   H3  shutting down sets `cut` on every exchange and resumes it, and so does the guard for one that is overdue; a cut
 *       exchange never parks again, so that MHD_stop_daemon finds no suspended connection
 *   H4  each request that has a first line is told to done_fn exactly once, also when no handler saw it
 * Connections and their time limits: G1-G3 in http_guard.c. Certificates: T1-T3 in http_tls.c.
 */
#include "base/clock.h"
#include "base/log.h"
#include "proxy/http_internal.h"
#include "proxy/http_tls_internal.h"

#include <inttypes.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

#define BLOCK_BYTES (128u << 10) /* what one callback may hand to the socket */
#define CONNECTION_MEMORY_BYTES (64u << 10)
#define PUMP_READS 8 /* reads of a source before other work gets its turn */
/* No TLS before 1.2, no key exchange without forward secrecy. X25519 first: clients of Go and OpenSSL send a share for it,
 * and any other choice would cost them a round trip. */
#define TLS_PRIORITIES                                                                                                 \
    "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-RSA:-DHE-RSA:-GROUP-ALL:+GROUP-X25519:+GROUP-SECP256R1:"              \
    "+GROUP-SECP384R1:+GROUP-SECP521R1:%SERVER_PRECEDENCE"

void exchange_unpark(struct http_exchange *x)
{
    if (!x->parked)
        return;
    x->parked = false;
    MHD_resume_connection(x->conn);
}

void exchange_cut(struct http_exchange *x)
{
    x->cut = true;
    exchange_unpark(x);
}

static void exchange_park(struct http_exchange *x)
{
    x->parked = true;
    MHD_suspend_connection(x->conn);
}

/* ---- workers: the handler, and the pump that reads a source into the pipe ---------------------------------------- */

static void handle_run(void *arg)
{
    struct http_exchange *x = CAST_OBJ(struct http_exchange, HTTP_EXCHANGE_MAGIC, arg);
    x->listener->fn(x->listener->arg, x);
}

static void log_failed_body(const struct http_exchange *x, const struct err *err)
{
    log_event(LOG_WARN, "http.body", "req=%s path=%s code=%s error=%s", x->id, log_quote(x->path).s,
              err_code_name(err->code), log_quote(err->msg).s);
}

/* One read. Returns true when another may follow at once. */
static bool pump_once(struct http_exchange *x)
{
    struct err err = ERR_INIT;
    char *room;
    size_t space, got = 0;

    lock_take(&x->lock);
    bool stop = x->done || x->cut || x->pipe.eof || x->pipe.failed;
    space = stop ? 0 : pipe_space(&x->pipe, &room); /* a client may be gone before there was a pipe */
    lock_give(&x->lock);
    if (space == 0)
        return false;
    int rc = source_read(x->answer.source, room, space, &got, &err);
    if (rc < 0)
        log_failed_body(x, &err);
    lock_take(&x->lock);
    pipe_publish(&x->pipe, got);
    if (rc < 0)
        x->pipe.failed = true;
    else if (rc == STEP_EOF)
        x->pipe.eof = true;
    if (rc != STEP_WAIT)
        exchange_unpark(x);
    lock_give(&x->lock);
    return rc == STEP_MORE;
}

static void pump_run(void *arg)
{
    struct http_exchange *x = CAST_OBJ(struct http_exchange, HTTP_EXCHANGE_MAGIC, arg);

    for (int i = 0; i < PUMP_READS; i++) {
        if (!pump_once(x)) {
            lock_take(&x->lock);
            bool done = x->done;
            lock_give(&x->lock);
            /* Only this job reads the source, so only it may free it while the exchange lives. */
            if (done)
                source_free(steal(&x->answer.source));
            return;
        }
    }
    workpool_post(x->listener->server->pool, &x->pump);
}

static void pump_wake(void *arg)
{
    struct http_exchange *x = CAST_OBJ(struct http_exchange, HTTP_EXCHANGE_MAGIC, arg);
    workpool_post(x->listener->server->pool, &x->pump);
}

/* ---- event threads ------------------------------------------------------------------------------------------------ */

static ssize_t content_reader(void *arg, uint64_t pos, char *out, size_t max)
{
    struct http_exchange *x = CAST_OBJ(struct http_exchange, HTTP_EXCHANGE_MAGIC, arg);
    ssize_t result;

    lock_take(&x->lock);
    size_t n = pipe_take(&x->pipe, out, max);
    bool refill = !x->pipe.eof && !x->pipe.failed && x->pipe.used <= x->pipe.cap / 2;
    bool is_short = x->answer.has_length && pos < x->answer.length_bytes;
    if (n > 0) {
        result = (ssize_t)n;
    } else if (x->pipe.failed || x->cut || (x->pipe.eof && is_short)) {
        result = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (x->pipe.eof) {
        result = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        exchange_park(x);
        result = 0;
    }
    lock_give(&x->lock);
    if (n > 0)
        atomic_fetch_add(&x->sent_bytes, n);
    if (refill)
        workpool_post(x->listener->server->pool, &x->pump);
    return result;
}

static struct MHD_Response *source_response(struct http_exchange *x)
{
    struct http_answer *a = &x->answer;
    uint64_t size = a->has_length ? a->length_bytes : MHD_SIZE_UNKNOWN;
    size_t block = a->has_length && size < BLOCK_BYTES ? (size_t)size : BLOCK_BYTES;

    x->pipe.cap = a->has_length && size < HTTP_PIPE_BYTES ? (size_t)size + 1 : HTTP_PIPE_BYTES;
    x->pipe.mem = malloc(x->pipe.cap);
    if (!x->pipe.mem)
        return NULL;
    source_set_waker(a->source, pump_wake, x);
    http_exchange_ref(x);
    struct MHD_Response *r =
        MHD_create_response_from_callback(size, block ? block : 1, content_reader, x, http_exchange_unref);
    if (!r)
        http_exchange_unref(x);
    else
        workpool_post(x->listener->server->pool, &x->pump);
    return r;
}

static ssize_t no_content(void *arg UNUSED, uint64_t pos UNUSED, char *out UNUSED, size_t max UNUSED)
{
    return MHD_CONTENT_READER_END_OF_STREAM;
}

static struct MHD_Response *head_response(const struct http_answer *a)
{
    uint64_t size = a->has_length ? a->length_bytes : a->body ? a->body_len : MHD_SIZE_UNKNOWN;
    struct MHD_Response *r = MHD_create_response_from_callback(size, 1, no_content, NULL, NULL);

    /* Without this libmicrohttpd ends an answer to HEAD that would be chunked with a last chunk, which the client takes for
     * the beginning of its next answer. */
    if (r && size == MHD_SIZE_UNKNOWN)
        MHD_set_response_options(r, MHD_RF_HTTP_1_0_COMPATIBLE_STRICT, MHD_RO_END);
    return r;
}

static struct MHD_Response *build_response(struct http_exchange *x)
{
    struct http_answer *a = &x->answer;

    if (x->method == HTTP_HEAD || a->status == MHD_HTTP_NOT_MODIFIED)
        return head_response(a);
    if (a->source)
        return source_response(x);
    atomic_fetch_add(&x->sent_bytes, a->body_len);
    return MHD_create_response_from_buffer(a->body_len, a->body, MHD_RESPMEM_PERSISTENT);
}

/* The answer's memory belongs to the exchange, which outlives the response: it goes after request_completed(). */
static enum MHD_Result queue_answer(struct http_exchange *x, struct MHD_Connection *conn)
{
    struct MHD_Response *r = build_response(x);
    if (!r)
        return MHD_NO;
    x->queued_ms = clock_mono_ms();
    enum MHD_Result ok = MHD_YES;
    for (unsigned i = 0; i < x->answer.header_count && ok == MHD_YES; i++)
        ok = MHD_add_response_header(r, x->answer.headers[i].name, x->answer.headers[i].value);
    if (ok == MHD_YES)
        ok = MHD_add_response_header(r, "X-Request-Id", x->id);
    if (ok == MHD_YES)
        ok = MHD_queue_response(conn, (unsigned)x->answer.status, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result add_header_line(void *arg, enum MHD_ValueKind kind UNUSED, const char *name, const char *value)
{
    http_exchange_add_header(arg, name, value);
    return MHD_YES;
}

static bool exchange_start(struct http_exchange *x, struct MHD_Connection *conn, const char *method,
                           const char *version)
{
    struct http_listener *l = x->listener;

    MHD_get_connection_values(conn, MHD_HEADER_KIND, add_header_line, x);
    if (!http_exchange_begin(x, method, version))
        return false;
    job_init(&x->handle, JOB_CLIENT, handle_run, x, http_exchange_ref, http_exchange_unref);
    job_init(&x->pump, JOB_CLIENT, pump_run, x, http_exchange_ref, http_exchange_unref);
    lock_take(&l->lock);
    bool stopping = l->stopping;
    if (!stopping) {
        x->conn = conn;
        x->next = l->running;
        if (l->running)
            l->running->prev = x;
        l->running = x;
        l->running_count++;
    }
    lock_give(&l->lock);
    return !stopping;
}

/* What no handler needs to see. */
static const struct refusal {
    size_t flag; /* offset of the bool in struct http_exchange */
    int status;
    const char *text;
} refusals[] = {
    {offsetof(struct http_exchange, no_memory), MHD_HTTP_SERVICE_UNAVAILABLE,
     "{\"errors\":[{\"code\":\"UNAVAILABLE\",\"message\":\"out of memory\"}]}\n"},
    {offsetof(struct http_exchange, uri_overflow), MHD_HTTP_URI_TOO_LONG,
     "{\"errors\":[{\"code\":\"NAME_INVALID\",\"message\":\"the request's path is too long\"}]}\n"},
    {offsetof(struct http_exchange, header_overflow), MHD_HTTP_REQUEST_HEADER_FIELDS_TOO_LARGE,
     "{\"errors\":[{\"code\":\"UNSUPPORTED\",\"message\":\"the request's headers are too large\"}]}\n"},
    {offsetof(struct http_exchange, bad_framing), MHD_HTTP_BAD_REQUEST,
     "{\"errors\":[{\"code\":\"UNSUPPORTED\",\"message\":\"the request's headers are malformed\"}]}\n"},
    {offsetof(struct http_exchange, unknown_coding), MHD_HTTP_NOT_IMPLEMENTED,
     "{\"errors\":[{\"code\":\"UNSUPPORTED\",\"message\":\"a Transfer-Encoding other than chunked\"}]}\n"},
    {offsetof(struct http_exchange, body_overflow), MHD_HTTP_CONTENT_TOO_LARGE,
     "{\"errors\":[{\"code\":\"SIZE_INVALID\",\"message\":\"the request's body is too large\"}]}\n"},
};

/* Answers before the body of the request is read. */
static enum MHD_Result refuse(struct http_exchange *x, struct MHD_Connection *conn, const struct refusal *why)
{
    struct http_answer a = {.status = why->status};
    struct err err = ERR_INIT;

    a.body = strdup(why->text);
    a.body_len = a.body ? strlen(why->text) : 0;
    if (http_answer_header(&a, &err, "Content-Type", "application/json") < 0 ||
        http_answer_header(&a, &err, "Connection", "close") < 0) {
        http_answer_release(&a);
        return MHD_NO;
    }
    lock_take(&x->lock);
    x->answer = a;
    x->handed = x->answered = x->queued = true;
    lock_give(&x->lock);
    conn_phase(x->listener, x, CONN_ANSWER);
    return queue_answer(x, conn);
}

static enum MHD_Result first_call(struct http_exchange *x, struct MHD_Connection *conn, const char *method,
                                  const char *version)
{
    if (!exchange_start(x, conn, method, version))
        return MHD_NO;
    for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
        const bool *flag = (const bool *)((const char *)x + refusals[i].flag);
        if (*flag)
            return refuse(x, conn, &refusals[i]);
    }
    if (http_header(x, "Content-Length") || http_header(x, "Transfer-Encoding"))
        conn_phase(x->listener, x, CONN_BODY);
    return MHD_YES;
}

/* A body that grows too large without having said so is cut off: libmicrohttpd takes no answer in the middle of it. */
static enum MHD_Result body_piece(struct http_exchange *x, const char *piece, size_t len)
{
    struct err err = ERR_INIT;
    return x->queued || buf_add(&x->body, piece, len, &err) == 0 ? MHD_YES : MHD_NO;
}

static bool answer_quickly(struct http_exchange *x)
{
    struct http_listener *l = x->listener;
    struct http_answer a = {.status = 0};

    if (!l->quick || x->body.len > 0 || !l->quick(l->arg, x, &a))
        return false;
    lock_take(&x->lock);
    x->answer = a;
    x->handed = x->answered = x->queued = true;
    lock_give(&x->lock);
    conn_phase(l, x, CONN_ANSWER);
    return true;
}

static enum MHD_Result on_request(void *arg UNUSED, struct MHD_Connection *conn, const char *url UNUSED,
                                  const char *method, const char *version, const char *upload, size_t *upload_len,
                                  void **con_cls)
{
    if (!*con_cls)
        return MHD_NO; /* no memory for the exchange */
    struct http_exchange *x = CAST_OBJ(struct http_exchange, HTTP_EXCHANGE_MAGIC, *con_cls);

    if (!x->method_text)
        return first_call(x, conn, method, version);
    if (*upload_len > 0) {
        size_t len = *upload_len;
        *upload_len = 0;
        return body_piece(x, upload, len);
    }
    if (!x->handed && answer_quickly(x)) /* `handed` is ours to change */
        return queue_answer(x, conn);
    lock_take(&x->lock);
    bool cut = x->cut && !x->answered;
    bool post = !x->handed && !cut, give = x->answered && !x->queued;
    if (post) {
        x->handed = true;
        http_exchange_ref(x); /* the handler's, until http_reply() */
        exchange_park(x);
    }
    if (give)
        x->queued = true;
    else if (!post && !cut && !x->queued)
        exchange_park(x); /* woken without an answer */
    lock_give(&x->lock);
    if (post) {
        conn_phase(x->listener, x, CONN_ANSWER);
        workpool_post(x->listener->server->pool, &x->handle);
    }
    if (give)
        return queue_answer(x, conn);
    return cut ? MHD_NO : MHD_YES;
}

/* What libmicrohttpd answered by itself, 0 for nothing. */
static int own_status(struct MHD_Connection *conn)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_HTTP_STATUS);
    return info ? (int)info->http_status : 0;
}

static void tell_done(struct http_exchange *x, struct MHD_Connection *conn, bool complete)
{
    struct http_listener *l = x->listener;
    int64_t now = clock_mono_ms();
    struct http_done done = {.status = x->queued      ? x->answer.status
                                       : x->timed_out ? MHD_HTTP_REQUEST_TIMEOUT
                                                      : own_status(conn),
                             .sent_bytes = atomic_load(&x->sent_bytes),
                             .complete = complete,
                             .cache = x->answer.cache,
                             .view = x->answer.view,
                             .ms = now - x->start_ms,
                             .first_ms = (x->queued_ms ? x->queued_ms : now) - x->start_ms,
                             .tls = l->tls != NULL,
                             .listener = l->address};

    lock_take(&l->lock);
    http_done_fn *done_fn = l->done_fn;
    void *done_arg = l->done_arg;
    lock_give(&l->lock);
    /* a request that was refused before its head was complete has no method yet */
    if (done_fn && (x->method_text || http_exchange_begin(x, "-", "")))
        done_fn(done_arg, x, &done);
}

static void unlink_running(struct http_listener *l, struct http_exchange *x)
{
    lock_take(&l->lock);
    if (x->prev)
        x->prev->next = x->next;
    else
        l->running = x->next;
    if (x->next)
        x->next->prev = x->prev;
    if (--l->running_count == 0)
        pthread_cond_broadcast(&l->idle);
    lock_give(&l->lock);
}

static void request_completed(void *arg UNUSED, struct MHD_Connection *conn, void **con_cls,
                              enum MHD_RequestTerminationCode why)
{
    if (!*con_cls)
        return;
    struct http_exchange *x = CAST_OBJ(struct http_exchange, HTTP_EXCHANGE_MAGIC, *con_cls);
    struct http_listener *l = x->listener;
    *con_cls = NULL;

    conn_end(l, x);
    lock_take(&x->lock);
    bool started = x->conn != NULL, has_source = x->answer.source != NULL;
    x->done = true;
    x->conn = NULL;
    x->parked = false;
    lock_give(&x->lock);
    tell_done(x, conn, started && why == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    if (started && has_source) /* frees it: sources end on workers, since that may mean disk */
        workpool_post(l->server->pool, &x->pump);
    if (started)
        unlink_running(l, x);
    http_exchange_unref(x);
}

/* ---- connections ---------------------------------------------------------------------------------------------------- */

static struct http_conn *conn_of(struct MHD_Connection *conn)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return CAST_OBJ(struct http_conn, HTTP_CONN_MAGIC, info->socket_context);
}

/* The pair is chosen here and not in the handshake, so that the connection holds it (T1). */
static void greet_with(struct http_listener *l, struct http_conn *c, struct MHD_Connection *conn)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_GNUTLS_SESSION);

    int one = 1;

    /* GnuTLS writes the handshake in pieces: with Nagle's algorithm the second would wait for the client's delayed
     * acknowledgement of the first, 40 ms. libmicrohttpd cares for the socket from the first answer on. */
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    c->pair = tls_pair_current(l->tls);
    gnutls_session_set_ptr(info->tls_session, c);
}

static void connection_notify(void *arg, struct MHD_Connection *conn, void **context,
                              enum MHD_ConnectionNotificationCode code)
{
    struct http_listener *l = CAST_OBJ(struct http_listener, HTTP_LISTENER_MAGIC, arg);

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
        struct http_conn *c = conn_started(l, info->connect_fd);
        *context = c;
        if (l->tls)
            greet_with(l, c, conn);
    } else {
        conn_free(l, CAST_OBJ(struct http_conn, HTTP_CONN_MAGIC, *context)); /* the descriptor is still open (G1) */
        *context = NULL;
    }
}

static void *request_line(void *arg, const char *uri, struct MHD_Connection *conn)
{
    struct http_listener *l = CAST_OBJ(struct http_listener, HTTP_LISTENER_MAGIC, arg);
    struct http_conn *c = conn_of(conn);
    struct http_exchange *x = http_exchange_new(l, uri);

    if (x) {
        memcpy(x->peer, c->peer, sizeof(x->peer));
        conn_begin(l, c, x);
    }
    return x;
}

/* Paths stay as they were sent: a digest or a name is compared after our own decoding, once. */
static size_t keep_escapes(void *arg UNUSED, struct MHD_Connection *conn UNUSED, char *s)
{
    return strlen(s);
}

static void mhd_log(void *arg UNUSED, const char *fmt, va_list ap)
{
    char line[LOG_QUOTED_BYTES];
    if (!log_enabled(LOG_DEBUG))
        return;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    vsnprintf(line, sizeof(line), fmt, ap);
#pragma GCC diagnostic pop
    log_event(LOG_DEBUG, "http.mhd", "text=%s", log_quote(line).s);
}

/* ---- replies -------------------------------------------------------------------------------------------------------- */

void http_reply(struct http_exchange *x, struct http_answer *a)
{
    lock_take(&x->lock);
    REQUIRE(!x->answered);
    bool late = x->done;
    if (!late) {
        x->answer = *a;
        *a = (struct http_answer){.status = 0};
        x->answered = true;
        exchange_unpark(x);
    }
    lock_give(&x->lock);
    if (late)
        http_answer_release(a);
    http_exchange_unref(x);
}

/* ---- the daemon ----------------------------------------------------------------------------------------------------- */

void http_daemon_add(struct http_listener *l, struct http_conn *c, const struct sockaddr *sa, socklen_t len)
{
    if (MHD_add_connection(l->daemon, c->fd, sa, len) == MHD_YES)
        return;
    log_event(LOG_WARN, "http.refused", "listener=%s peer=%s reason=memory", l->address, c->peer);
    conn_free(l, c);
}

/* Connections are counted, and timed, here and not there (http_guard.c); a limit of its own that never bites. */
int http_daemon_start(struct http_listener *l, struct err *err)
{
    struct http_server *s = l->server;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ITC |
                     MHD_USE_ERROR_LOG | (l->tls ? MHD_USE_TLS : 0);
    struct MHD_OptionItem tls_options[] = {
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)TLS_PRIORITIES},
        {MHD_OPTION_HTTPS_CERT_CALLBACK2, 0, (void *)(uintptr_t)tls_choose},
        {MHD_OPTION_END, 0, NULL},
    };

    l->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, l, MHD_OPTION_EXTERNAL_LOGGER, mhd_log, NULL, MHD_OPTION_URI_LOG_CALLBACK,
        request_line, l, MHD_OPTION_NOTIFY_COMPLETED, request_completed, l, MHD_OPTION_NOTIFY_CONNECTION,
        connection_notify, l, MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, l, MHD_OPTION_THREAD_POOL_SIZE, s->threads,
        MHD_OPTION_CONNECTION_LIMIT, (s->max_connections + 1) * s->threads, MHD_OPTION_CONNECTION_TIMEOUT, 0u,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY_BYTES, MHD_OPTION_ARRAY,
        l->tls ? tls_options : &tls_options[2], MHD_OPTION_END);
    if (!l->daemon)
        return err_set(err, ERR_IO, "cannot start the %s server for %s", l->tls ? "HTTPS" : "HTTP", l->address);
    return 0;
}

void http_daemon_stop(struct http_listener *l)
{
    if (l->daemon)
        MHD_stop_daemon(steal(&l->daemon));
}
