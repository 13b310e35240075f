/* SPDX-License-Identifier: Apache-2.0
 *
 * Puts the registry side together: upstreams, timers, background jobs, listeners; and takes it apart again in the order
 * that leaves nobody waiting.
 */
#include "proxy/proxy.h"
#include "base/clock.h"
#include "base/log.h"
#include "proxy/maintain.h"
#include "proxy/proxy_internal.h"
#include "proxy/recent.h"

#include <inttypes.h>

#define TAG_TTL_S 60
#define MAX_LAYER_BYTES (64ull << 30)
#define MAX_RATIO 1100 /* deflate cannot exceed 1032 */
#define HOLD_MS 60000
#define NEGATIVE_TTL_MS 10000
#define STALE_WAIT_MS 700

static void apply_defaults(struct proxy_options *opt)
{
    if (opt->tag_ttl_s < 0)
        opt->tag_ttl_s = TAG_TTL_S;
    if (!opt->max_layer_bytes)
        opt->max_layer_bytes = MAX_LAYER_BYTES;
    if (!opt->max_ratio)
        opt->max_ratio = MAX_RATIO;
    if (!opt->hold_ms)
        opt->hold_ms = HOLD_MS;
    if (opt->negative_ttl_ms < 0)
        opt->negative_ttl_ms = NEGATIVE_TTL_MS;
    if (!opt->stale_wait_ms)
        opt->stale_wait_ms = STALE_WAIT_MS;
}

static int open_parts(struct proxy *p, struct err *err)
{
    struct upstreams_options ups = {
        .user_agent = p->opt.user_agent,
        .offline = p->opt.offline,
        .connect_ms = p->opt.upstream_connect_ms,
        .stall_ms = p->opt.upstream_stall_ms,
        .request_ms = p->opt.upstream_request_ms,
        .blob_ms = p->opt.upstream_blob_ms,
        .auth_file = p->opt.auth_file,
    };

    TRY(upstreams_new(&ups, &p->ups, err));
    TRY(timers_new(&p->timers, err));
    TRY(tag_notes_new(&p->notes, err));
    TRY(passthrough_cache_new(&p->cache, err));
    TRY(recent_new(&p->recent, err));
    TRY(jobs_new(p, &p->jobs, err));
    return maintain_new(p, &p->maintain, err);
}

int proxy_new(const struct proxy_options *opt, struct proxy **out, struct err *err)
{
    struct proxy *p = calloc(1, sizeof(*p));
    if (!p)
        return err_nomem(err, sizeof(*p));
    p->opt = *opt;
    apply_defaults(&p->opt);
    p->store = opt->store;
    p->pool = opt->pool;
    lock_init(&p->lock, RANK_SERVER);
    int rc = open_parts(p, err);
    if (rc < 0) {
        proxy_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

int proxy_add_upstream(struct proxy *p, const struct upstream_def *def, struct err *err)
{
    return upstreams_add(p->ups, def, err);
}

int proxy_set_default_upstream(struct proxy *p, const char *name, struct err *err)
{
    return upstreams_set_default(p->ups, name, err);
}

int proxy_start(struct proxy *p, struct err *err)
{
    TRY(upstreams_start(p->ups, err));
    TRY(jobs_resume(p->jobs, err));
    return maintain_start(p->maintain, err);
}

static void request_done(void *arg, const struct http_exchange *x, const struct http_done *done)
{
    struct listener_ctx *l = arg;

    atomic_fetch_add(&l->p->counters.served_bytes, done->sent_bytes);
    log_event(l->p->opt.access_log ? LOG_INFO : LOG_DEBUG, "http",
              "req=%s peer=%s listener=%s tls=%d method=%s path=%s status=%d bytes=%" PRIu64
              " cache=%s view=%s done=%d ms=%" PRId64 " first_ms=%" PRId64 " ua=%s",
              http_request_id(x), http_peer(x), done->listener, done->tls, log_quote(http_method_text(x)).s,
              log_quote(http_path(x)).s, done->status, done->sent_bytes, done->cache ? done->cache : "-",
              done->view ? done->view : "-", done->complete, done->ms, done->first_ms,
              log_quote(http_header(x, "User-Agent")).s);
}

int proxy_listen(struct proxy *p, const struct proxy_listen *opt, const char **out_address, struct err *err)
{
    struct listener_ctx *l = calloc(1, sizeof(*l));

    if (!l)
        return err_nomem(err, sizeof(*l));
    l->p = p;
    l->opt = *opt;
    l->next = p->listeners;
    p->listeners = l;
    if (opt->upstream) {
        l->up = upstream_find(p->ups, opt->upstream, strlen(opt->upstream));
        if (!l->up)
            return err_set(err, ERR_USAGE, "listener %s: there is no upstream named \"%s\"", opt->address,
                           opt->upstream);
    }
    struct http_listen_options http = {.address = opt->address,
                                       .quick = request_quick,
                                       .tls_cert_file = opt->tls_cert_file,
                                       .tls_key_file = opt->tls_key_file};
    TRY(http_listen(p->opt.http, &http, request_handle, l, &l->l, err));
    http_on_done(l->l, request_done, l);
    *out_address = http_listener_address(l->l);
    return 0;
}

void proxy_stop(struct proxy *p)
{
    upstreams_stop(p->ups); /* every fill and every question ends in ERR_CANCELLED */
    maintain_stop(p->maintain); /* before the jobs that a repair waits for */
    jobs_stop(p->jobs);
}

void proxy_free(struct proxy *p)
{
    if (!p)
        return;
    maintain_free(p->maintain);
    jobs_free(p->jobs);
    timers_free(p->timers);
    passthrough_cache_free(p->cache);
    recent_free(p->recent);
    free(p->notes);
    if (p->ups)
        upstreams_free(p->ups);
    while (p->quiet) {
        struct quiet *q = p->quiet;
        p->quiet = q->next;
        free(q);
    }
    while (p->listeners) {
        struct listener_ctx *l = p->listeners;
        p->listeners = l->next;
        free(l);
    }
    lock_release(&p->lock);
    free(p);
}

void proxy_stats(struct proxy *p, struct proxy_stats *out)
{
    struct upstream_counts up;

    upstreams_counts(p->ups, &up);
    *out = (struct proxy_stats){.jobs_pending = jobs_pending(p->jobs),
                                .requests_total = atomic_load(&p->counters.total),
                                .requests_hit = atomic_load(&p->counters.hit),
                                .requests_follow = atomic_load(&p->counters.follow),
                                .requests_miss = atomic_load(&p->counters.miss),
                                .requests_stale = atomic_load(&p->counters.stale),
                                .upstream_requests = up.requests,
                                .upstream_bytes = up.bytes,
                                .served_bytes = atomic_load(&p->counters.served_bytes)};
    lock_take(&p->lock);
    out->fills = p->fill_count;
    lock_give(&p->lock);
}

struct maintain *proxy_maintain(struct proxy *p)
{
    return p->maintain;
}

struct store *proxy_store(struct proxy *p)
{
    return p->store;
}

const struct upstreams *proxy_upstreams(struct proxy *p)
{
    return p->ups;
}
