/* SPDX-License-Identifier: Apache-2.0
 *
 * The server: its listeners, and how it stops.
 */
#include "base/clock.h"
#include "base/log.h"
#include "proxy/http_internal.h"

#include <sys/random.h>
#include <unistd.h>

#define DEFAULT_THREADS 2
#define DEFAULT_CONNECTIONS 4096
#define DEFAULT_HEADER_MS 30000
#define DEFAULT_IDLE_MS 120000
#define CUT_WAIT_MS 1000 /* for cut exchanges to be told so; whoever does not read is cut off after it */

/* ---- listeners ------------------------------------------------------------------------------------------------------ */

/* Takes listen_fd in any case. */
static int listener_start(struct http_listener *l, int listen_fd, struct err *err)
{
    int rc = http_daemon_start(l, err);
    if (rc < 0) {
        close(listen_fd);
        return rc;
    }
    return acceptor_start(l, listen_fd, err);
}

static void tls_look_run(void *arg)
{
    struct http_listener *l = CAST_OBJ(struct http_listener, HTTP_LISTENER_MAGIC, arg);
    http_tls_look(l->tls);
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
    job_init(&l->tls_look, JOB_BACKGROUND, tls_look_run, l, NULL, NULL);
    l->next = s->listeners;
    s->listeners = l;
    *out = l;
    return 0;
}

static void tls_cleanup(struct http_tls **t)
{
    http_tls_free(*t);
}

/* On failure the listener stays in the server's list, without a daemon, until http_server_free(). */
int http_listen(struct http_server *s, const struct http_listen_options *opt, http_handler_fn *fn, void *arg,
                struct http_listener **out, struct err *err)
{
    CLEANUP(tls_cleanup) struct http_tls *tls = NULL;
    struct http_listener *l;
    int fd = -1;

    if (opt->tls_cert_file || opt->tls_key_file)
        TRY(http_tls_new(opt, &tls, err));
    TRY(http_open_tcp(opt->address, &fd, err));
    int rc = listener_new(s, fn, arg, opt->address, &l, err);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    l->tls = steal(&tls);
    l->quick = opt->quick;
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
    s->max_connections_per_client = opt->max_connections_per_client;
    s->header_ms = opt->header_ms > 0 ? opt->header_ms : DEFAULT_HEADER_MS;
    s->idle_ms = opt->idle_ms > 0 ? opt->idle_ms : DEFAULT_IDLE_MS;
    uint64_t first = (uint64_t)clock_wall_ms() << 20;
    (void)!getrandom(&first, sizeof(first), GRND_NONBLOCK); /* without it the clock makes ids new enough */
    atomic_init(&s->next_id, first);
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
        exchange_cut(x);
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
        http_daemon_stop(l);
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
        conn_free_all(l);
        http_tls_free(l->tls);
        pthread_cond_destroy(&l->idle);
        lock_release(&l->lock);
        l->magic = 0;
        free(l);
    }
    free(s);
}
