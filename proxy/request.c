/* SPDX-License-Identifier: Apache-2.0
 *
 * One client request from its arrival to the reply. A request is a small state machine: `next` runs on a worker, does what
 * can be done without the network, and either replies or registers a waiter and returns; waking posts the job again.
 *
 *   request_handle -> route -> manifest_start | blob_start | passthrough_start -> ... -> request_reply | request_fail
 */
#include "base/clock.h"
#include "base/log.h"
#include "proxy/access.h"
#include "proxy/proxy_internal.h"
#include "proxy/recent.h"

#include <inttypes.h>
#include <string.h>

#define REQUEST_MAGIC 0x2e90e57au

void request_ref(void *arg)
{
    struct request *r = CAST_OBJ(struct request, REQUEST_MAGIC, arg);
    atomic_fetch_add(&r->refs, 1);
}

void request_unref(void *arg)
{
    struct request *r = CAST_OBJ(struct request, REQUEST_MAGIC, arg);
    if (atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    fill_unref(r->fill);
    upstream_answer_release(&r->answer);
    store_manifest_release(&r->unstored);
    free(r->key);
    r->magic = 0;
    free(r);
}

static void request_run(void *arg)
{
    struct request *r = CAST_OBJ(struct request, REQUEST_MAGIC, arg);
    /* A timer and a waiter may both have woken it: the second one finds no step to run. */
    void (*next)(struct request *) = r->next;
    if (!r->x || !next)
        return;
    r->next = NULL;
    next(r);
}

void request_wake(void *arg)
{
    struct request *r = CAST_OBJ(struct request, REQUEST_MAGIC, arg);
    workpool_post(r->p->pool, &r->job);
}

void request_go(struct request *r, void (*next)(struct request *r))
{
    r->next = next;
    workpool_post(r->p->pool, &r->job);
}

void request_timer(struct request *r, int after_ms)
{
    r->timed = true;
    timer_arm(r->p->timers, &r->timer, after_ms);
}

int request_repo(struct request *r, struct err *err)
{
    if (r->repo != 0)
        return 0;
    return store_repo_find(r->p->store, upstream_name(r->route.up), r->route.name, &r->repo, err);
}

int request_repo_confirmed(struct request *r, struct err *err)
{
    if (r->repo != 0)
        return 0;
    return store_repo(r->p->store, upstream_name(r->route.up), r->route.name, &r->repo, err);
}

int request_may_ask(const struct request *r, const char *what, struct err *err)
{
    if (!r->p->opt.offline)
        return 0;
    return err_set(err, ERR_NOTFOUND, "%s of %s/%s is not stored, and recask is offline", what,
                   upstream_name(r->route.up), r->route.name);
}

static const char *cache_name(enum cache_result c)
{
    switch (c) {
    case CACHE_NONE:
        return NULL;
    case CACHE_HIT:
        return "hit";
    case CACHE_FOLLOW:
        return "follow";
    case CACHE_MISS:
        return "miss";
    case CACHE_STALE:
    case CACHE_GONE:
        return "stale";
    }
    return NULL;
}

static void count_result(struct proxy *p, enum cache_result c)
{
    switch (c) {
    case CACHE_NONE:
        break;
    case CACHE_HIT:
        atomic_fetch_add(&p->counters.hit, 1);
        break;
    case CACHE_FOLLOW:
        atomic_fetch_add(&p->counters.follow, 1);
        break;
    case CACHE_MISS:
        atomic_fetch_add(&p->counters.miss, 1);
        break;
    case CACHE_STALE:
    case CACHE_GONE:
        atomic_fetch_add(&p->counters.stale, 1);
        break;
    }
}

void request_reply(struct request *r, struct http_answer *a)
{
    a->cache = cache_name(r->cache);
    count_result(r->p, r->cache);
    if (r->timed)
        timer_disarm(r->p->timers, &r->timer);
    http_reply(steal(&r->x), a);
    request_unref(r);
}

void request_fail(struct request *r, const struct err *e)
{
    struct http_answer a = {.status = 0};
    struct error_context c = {.kind = r->route.kind,
                              .code = r->route.error_code,
                              .upstream = r->route.up ? upstream_name(r->route.up) : NULL,
                              .status = r->answer.head.status,
                              .retry_after_s = r->answer.head.retry_after_s,
                              .unavailable_503 = r->p->opt.unavailable_503};
    struct err err = ERR_INIT;

    log_event(e->code == ERR_NOTFOUND || e->code == ERR_FORMAT ? LOG_DEBUG : LOG_WARN, "request.fail",
              "req=%s path=%s code=%s error=%s", http_request_id(r->x), log_quote(http_path(r->x)).s,
              err_code_name(e->code), log_quote(e->msg).s);
    if (error_answer(&a, &c, e, &err) < 0) {
        http_answer_release(&a);
        a.status = 500;
    }
    r->cache = CACHE_NONE;
    request_reply(r, &a);
}

int request_headers(struct request *r, struct http_answer *a, struct err *err)
{
    TRY(http_answer_header(a, err, "Docker-Distribution-Api-Version", "registry/2.0"));
    if (r->route.up)
        TRY(http_answer_header(a, err, "OCI-Namespace", "%s", upstream_name(r->route.up)));
    if (r->cache != CACHE_NONE)
        TRY(http_answer_header(a, err, "X-Recask-Cache", "%s", cache_name(r->cache)));
    return 0;
}

int request_warn_stale(struct request *r, struct http_answer *a, struct err *err)
{
    return http_answer_header(a, err, "Warning", "299 - \"recask: %s cannot be asked, this answer may be out of date\"",
                              upstream_name(r->route.up));
}

/* GET /v2/: says that this is a registry. No challenge: a mirror that asks for credentials is offered those of others. */
static void base_start(struct request *r)
{
    struct http_answer a = {.status = 200};
    struct err err = ERR_INIT;

    a.body = strdup("{}");
    a.body_len = a.body ? 2 : 0;
    if (http_answer_header(&a, &err, "Content-Type", "application/json") < 0 || request_headers(r, &a, &err) < 0) {
        http_answer_release(&a);
        request_fail(r, &err);
        return;
    }
    request_reply(r, &a);
}

/* header: static, NULL: none. */
static void refuse(struct http_exchange *x, int status, const char *text, const char *header, const char *value)
{
    struct http_answer a = {.status = status};
    struct err err = ERR_INIT;

    a.body = strdup(text);
    a.body_len = a.body ? strlen(text) : 0;
    if (http_answer_header(&a, &err, "Content-Type", "application/json") < 0 ||
        (header && http_answer_header(&a, &err, header, "%s", value) < 0))
        a.status = 500;
    http_reply(x, &a);
}

/* The challenge is ours alone, Basic, and names no place: what an upstream demands never reaches a client (case 66). */
static void refuse_access(struct request *r, enum access_verdict v)
{
    /* Clients ask without a password first: that is not worth a line of its own. */
    log_event(http_header(r->x, "Authorization") ? LOG_INFO : LOG_DEBUG, "request.access",
              "req=%s peer=%s path=%s verdict=%s", http_request_id(r->x), http_peer(r->x), log_quote(http_path(r->x)).s,
              v == ACCESS_UNKNOWN     ? "unknown"
              : v == ACCESS_FORBIDDEN ? "forbidden"
                                      : "busy");
    if (v == ACCESS_UNKNOWN)
        refuse(steal(&r->x), 401,
               "{\"errors\":[{\"code\":\"UNAUTHORIZED\",\"message\":\"recask wants a user and a password\"}]}\n",
               "WWW-Authenticate", "Basic realm=\"recask\", charset=\"UTF-8\"");
    else if (v == ACCESS_FORBIDDEN)
        refuse(steal(&r->x), 403,
               "{\"errors\":[{\"code\":\"DENIED\",\"message\":\"no rule lets this user read this repository\"}]}\n",
               NULL, NULL);
    else
        refuse(steal(&r->x), 503,
               "{\"errors\":[{\"code\":\"TOOMANYREQUESTS\",\"message\":\"too many passwords are being checked\"}]}\n",
               "Retry-After", "1");
    request_unref(r);
}

static void dispatch(struct request *r);

/* False: answered, or it waits for others' passwords and dispatch() runs again. Before anything else is done for it, so that
 * what is stored and what is not cannot be told apart by those who may not know. */
static bool may_read(struct request *r)
{
    struct access_request who = {.authorization = http_header(r->x, "Authorization"),
                                 .upstream = r->route.up ? upstream_name(r->route.up) : NULL,
                                 .name = r->route.name};

    if (!r->p->opt.access)
        return true;
    r->next = dispatch; /* before w can be woken */
    enum access_verdict v = access_check(r->p->opt.access, &who, &r->waiter);
    if (v == ACCESS_WAIT)
        return false;
    r->next = NULL;
    if (v != ACCESS_ALLOWED)
        refuse_access(r, v);
    return v == ACCESS_ALLOWED;
}

static void dispatch(struct request *r)
{
    struct err err = ERR_INIT;

    if (!may_read(r))
        return;
    if (r->err.code != 0) {
        request_fail(r, &r->err);
        return;
    }
    if (r->route.kind == ROUTE_BASE) {
        base_start(r);
        return;
    }
    if (request_repo(r, &err) < 0) {
        request_fail(r, &err);
        return;
    }
    switch (r->route.kind) {
    case ROUTE_MANIFEST:
        manifest_start(r);
        return;
    case ROUTE_BLOB:
        blob_start(r);
        return;
    case ROUTE_TAGS:
    case ROUTE_REFERRERS:
        passthrough_start(r);
        return;
    case ROUTE_BASE:
        return;
    }
}

static struct request *request_new(struct listener_ctx *l, struct http_exchange *x)
{
    struct request *r = calloc(1, sizeof(*r));
    if (!r)
        return NULL;
    r->magic = REQUEST_MAGIC;
    atomic_init(&r->refs, 1);
    r->p = l->p;
    r->listener = l;
    r->x = x;
    r->generation = store_generation(r->p->store);
    oci_client_identify(http_header(x, "User-Agent"), &r->client);
    job_init(&r->job, JOB_CLIENT, request_run, r, request_ref, request_unref);
    r->waiter = (struct waiter){.fn = request_wake, .arg = r};
    r->timer = (struct timer){.fn = request_wake, .arg = r};
    return r;
}

bool request_quick(void *ctx, struct http_exchange *x, struct http_answer *out)
{
    struct listener_ctx *l = ctx;

    if (!recent_find(l->p->recent, x, store_generation(l->p->store), out))
        return false;
    atomic_fetch_add(&l->p->counters.total, 1);
    count_result(l->p, CACHE_HIT);
    return true;
}

void request_handle(void *ctx, struct http_exchange *x)
{
    struct listener_ctx *l = ctx;
    struct proxy *p = l->p;
    struct route_request where = {
        .fixed = l->up, .path = http_path(x), .ns = http_query(x, "ns"), .host = http_header(x, "Host")};

    atomic_fetch_add(&p->counters.total, 1);
    if (http_method(x) != HTTP_GET && http_method(x) != HTTP_HEAD) {
        refuse(x, 405,
               "{\"errors\":[{\"code\":\"UNSUPPORTED\",\"message\":\"recask only serves reads (GET, HEAD)\"}]}\n",
               "Allow", "GET, HEAD");
        return;
    }
    struct request *r = request_new(l, x);
    if (!r) {
        refuse(x, 503, "{\"errors\":[{\"code\":\"UNAVAILABLE\",\"message\":\"out of memory\"}]}\n", NULL, NULL);
        return;
    }
    (void)!route_parse(p->ups, &where, &r->route, &r->err); /* dispatch() says so to those who may ask at all */
    request_go(r, dispatch); /* from here on in its own job, which never runs twice at once */
}
