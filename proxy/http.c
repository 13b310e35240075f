/* SPDX-License-Identifier: Apache-2.0
 *
 * The one file that speaks libmicrohttpd. Its event threads parse requests, copy answer bytes and suspend; everything else
 * happens on workers. Invariants:
 *   H1  `parked` is set and MHD_suspend_connection called in one critical section of x->lock; whoever clears it calls
 *       MHD_resume_connection in the same section, so that no wake is lost and none comes twice
 *   H2  x->conn is cleared under x->lock when libmicrohttpd is done with the request; nobody touches it afterwards
 *   H3  shutting down sets `cut` on every exchange and resumes it; a cut exchange never parks again, so that
 *       MHD_stop_daemon finds no suspended connection
 */
#include "base/clock.h"
#include "base/fsutil.h"
#include "base/log.h"
#include "proxy/http_internal.h"

#include <inttypes.h>
#include <microhttpd.h>
#include <unistd.h>

#define DEFAULT_THREADS 2
#define DEFAULT_CONNECTIONS 4096
#define IDLE_TIMEOUT_S 120
#define BLOCK_BYTES (128u << 10) /* what one callback may hand to the socket */
#define CONNECTION_MEMORY_BYTES (64u << 10)
#define PUMP_READS 8     /* reads of a source before other work gets its turn */
#define CUT_WAIT_MS 1000 /* for cut exchanges to be told so; whoever does not read is cut off after it */

struct http_server {
    struct workpool *pool;
    unsigned threads, max_connections;
    struct http_listener *listeners;
};

void exchange_unpark(struct http_exchange *x)
{
    if (!x->parked)
        return;
    x->parked = false;
    MHD_resume_connection(x->conn);
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
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CLIENT_ADDRESS);

    MHD_get_connection_values(conn, MHD_HEADER_KIND, add_header_line, x);
    http_exchange_set_peer(x, info ? info->client_addr : NULL);
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

static const char headers_too_large[] =
    "{\"errors\":[{\"code\":\"UNSUPPORTED\",\"message\":\"the request's headers are too large\"}]}\n";
static const char body_too_large[] =
    "{\"errors\":[{\"code\":\"SIZE_INVALID\",\"message\":\"the request's body is too large\"}]}\n";

/* Answers what no handler needs to see, before the body of the request is read. */
static enum MHD_Result refuse(struct http_exchange *x, struct MHD_Connection *conn, int status, const char *text)
{
    struct http_answer a = {.status = status};
    struct err err = ERR_INIT;

    a.body = strdup(text);
    a.body_len = a.body ? strlen(text) : 0;
    if (http_answer_header(&a, &err, "Content-Type", "application/json") < 0 ||
        http_answer_header(&a, &err, "Connection", "close") < 0) {
        http_answer_release(&a);
        return MHD_NO;
    }
    lock_take(&x->lock);
    x->answer = a;
    x->handed = x->answered = x->queued = true;
    lock_give(&x->lock);
    return queue_answer(x, conn);
}

static enum MHD_Result first_call(struct http_exchange *x, struct MHD_Connection *conn, const char *method,
                                  const char *version)
{
    if (!exchange_start(x, conn, method, version))
        return MHD_NO;
    if (x->header_overflow)
        return refuse(x, conn, MHD_HTTP_REQUEST_HEADER_FIELDS_TOO_LARGE, headers_too_large);
    if (x->body_overflow)
        return refuse(x, conn, MHD_HTTP_CONTENT_TOO_LARGE, body_too_large);
    return MHD_YES;
}

/* A body that grows too large without having said so is cut off: libmicrohttpd takes no answer in the middle of it. */
static enum MHD_Result body_piece(struct http_exchange *x, const char *piece, size_t len)
{
    struct err err = ERR_INIT;
    return x->queued || buf_add(&x->body, piece, len, &err) == 0 ? MHD_YES : MHD_NO;
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
    if (post)
        workpool_post(x->listener->server->pool, &x->handle);
    if (give)
        return queue_answer(x, conn);
    return cut ? MHD_NO : MHD_YES;
}

static void request_completed(void *arg UNUSED, struct MHD_Connection *conn UNUSED, void **con_cls,
                              enum MHD_RequestTerminationCode why)
{
    if (!*con_cls)
        return;
    struct http_exchange *x = CAST_OBJ(struct http_exchange, HTTP_EXCHANGE_MAGIC, *con_cls);
    struct http_listener *l = x->listener;
    *con_cls = NULL;

    lock_take(&x->lock);
    bool started = x->conn != NULL, has_source = x->answer.source != NULL;
    x->done = true;
    x->conn = NULL;
    x->parked = false;
    lock_give(&x->lock);
    if (started) {
        struct http_done done = {.status = x->queued ? x->answer.status : 0,
                                 .sent_bytes = atomic_load(&x->sent_bytes),
                                 .complete = why == MHD_REQUEST_TERMINATED_COMPLETED_OK,
                                 .cache = x->answer.cache,
                                 .view = x->answer.view};
        lock_take(&l->lock);
        http_done_fn *done_fn = l->done_fn;
        void *done_arg = l->done_arg;
        lock_give(&l->lock);
        if (done_fn)
            done_fn(done_arg, x, &done);
        if (has_source) /* frees it: sources end on workers, since that may mean disk */
            workpool_post(l->server->pool, &x->pump);
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
    http_exchange_unref(x);
}

static void *request_line(void *arg, const char *uri, struct MHD_Connection *conn UNUSED)
{
    return http_exchange_new(CAST_OBJ(struct http_listener, HTTP_LISTENER_MAGIC, arg), uri);
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

/* ---- listeners ------------------------------------------------------------------------------------------------------ */

static void accepted(void *arg, int fd, const struct sockaddr *sa, socklen_t len)
{
    struct http_listener *l = CAST_OBJ(struct http_listener, HTTP_LISTENER_MAGIC, arg);
    if (MHD_add_connection(l->daemon, fd, sa, len) != MHD_YES)
        log_event(LOG_WARN, "http.refused", "listener=%s reason=connections", l->address);
}

static int daemon_start(struct http_listener *l, struct err *err)
{
    struct http_server *s = l->server;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_NO_LISTEN_SOCKET |
                     MHD_USE_ERROR_LOG;

    l->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, l, MHD_OPTION_EXTERNAL_LOGGER, mhd_log, NULL,
                                 MHD_OPTION_URI_LOG_CALLBACK, request_line, l, MHD_OPTION_NOTIFY_COMPLETED,
                                 request_completed, l, MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, l,
                                 MHD_OPTION_THREAD_POOL_SIZE, s->threads, MHD_OPTION_CONNECTION_LIMIT,
                                 s->max_connections, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_TIMEOUT_S,
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY_BYTES, MHD_OPTION_END);
    if (!l->daemon)
        return err_set(err, ERR_IO, "cannot start the HTTP server for %s", l->address);
    return 0;
}

/* Takes listen_fd in any case. */
static int listener_start(struct http_listener *l, int listen_fd, struct err *err)
{
    int rc = daemon_start(l, err);
    if (rc < 0) {
        close(listen_fd);
        return rc;
    }
    return acceptor_start(listen_fd, l->server->max_connections, accepted, l, &l->acceptor, err);
}

static int listener_new(struct http_server *s, http_handler_fn *fn, void *arg, const char *address,
                        struct http_listener **out, struct err *err)
{
    struct http_listener *l = calloc(1, sizeof(*l));
    if (!l)
        return err_nomem(err, sizeof(*l));
    l->magic = HTTP_LISTENER_MAGIC;
    l->server = s;
    l->fn = fn;
    l->arg = arg;
    snprintf(l->address, sizeof(l->address), "%s", address);
    lock_init(&l->lock, RANK_SERVER);
    cond_init(&l->idle);
    l->next = s->listeners;
    s->listeners = l;
    *out = l;
    return 0;
}

/* On failure the listener stays in the server's list, without a daemon, until http_server_free(). */
int http_listen(struct http_server *s, const struct http_listen_options *opt, http_handler_fn *fn, void *arg,
                struct http_listener **out, struct err *err)
{
    struct http_listener *l;
    int fd = -1;

    TRY(http_open_tcp(opt->address, &fd, err));
    int rc = listener_new(s, fn, arg, opt->address, &l, err);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    http_socket_name(fd, l->address, sizeof(l->address));
    *out = l;
    return listener_start(l, fd, err);
}

int http_listen_unix(struct http_server *s, const char *path, http_handler_fn *fn, void *arg,
                     struct http_listener **out, struct err *err)
{
    struct http_listener *l;
    int fd = -1;

    TRY(http_open_unix(path, &fd, err));
    int rc = listener_new(s, fn, arg, path, &l, err);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    l->is_unix = true;
    *out = l;
    return listener_start(l, fd, err);
}

const char *http_listener_address(const struct http_listener *l)
{
    return l->address;
}

void http_on_done(struct http_listener *l, http_done_fn *fn, void *arg)
{
    lock_take(&l->lock);
    l->done_fn = fn;
    l->done_arg = arg;
    lock_give(&l->lock);
}

/* ---- the server ----------------------------------------------------------------------------------------------------- */

int http_server_new(const struct http_options *opt, struct http_server **out, struct err *err)
{
    struct http_server *s = calloc(1, sizeof(*s));
    if (!s)
        return err_nomem(err, sizeof(*s));
    s->pool = opt->pool;
    s->threads = opt->threads ? opt->threads : DEFAULT_THREADS;
    s->max_connections = opt->max_connections ? opt->max_connections : DEFAULT_CONNECTIONS;
    *out = s;
    return 0;
}

unsigned http_running(struct http_server *s)
{
    unsigned n = 0;
    for (struct http_listener *l = s->listeners; l; l = l->next) {
        lock_take(&l->lock);
        n += l->running_count;
        lock_give(&l->lock);
    }
    return n;
}

/* Waits until no exchange runs on l; false when the deadline came first. */
static bool wait_idle(struct http_listener *l, int64_t deadline_ms)
{
    lock_take(&l->lock);
    while (l->running_count > 0) {
        int64_t left = deadline_ms - clock_mono_ms();
        if (left <= 0)
            break;
        lock_wait(&l->lock, &l->idle, (int)left);
    }
    bool idle = l->running_count == 0;
    lock_give(&l->lock);
    return idle;
}

static void cut_all(struct http_listener *l)
{
    lock_take(&l->lock);
    for (struct http_exchange *x = l->running; x; x = x->next) {
        lock_take(&x->lock);
        x->cut = true;
        exchange_unpark(x);
        lock_give(&x->lock);
    }
    lock_give(&l->lock);
}

void http_server_drain(struct http_server *s, int timeout_ms)
{
    int64_t deadline_ms = clock_mono_ms() + timeout_ms;

    for (struct http_listener *l = s->listeners; l; l = l->next) {
        acceptor_stop(steal(&l->acceptor));
        lock_take(&l->lock);
        l->stopping = true;
        lock_give(&l->lock);
    }
    for (struct http_listener *l = s->listeners; l; l = l->next) {
        if (!wait_idle(l, deadline_ms)) {
            log_event(LOG_WARN, "http.cut", "listener=%s exchanges=%u", l->address, http_running(s));
            cut_all(l);
            wait_idle(l, clock_mono_ms() + CUT_WAIT_MS);
        }
        if (l->daemon)
            MHD_stop_daemon(steal(&l->daemon));
    }
}

void http_server_free(struct http_server *s)
{
    if (!s)
        return;
    http_server_drain(s, 0);
    while (s->listeners) {
        struct http_listener *l = s->listeners;
        s->listeners = l->next;
        if (l->is_unix)
            unlink(l->address);
        pthread_cond_destroy(&l->idle);
        lock_release(&l->lock);
        l->magic = 0;
        free(l);
    }
    free(s);
}
