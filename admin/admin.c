/* SPDX-License-Identifier: Apache-2.0
 * admin/admin.c - routes of the admin API. Handlers run on workers and may read the store.
 *
 * Invariants: A1 a TCP port never changes anything; A2 what a browser could be tricked into sending (a foreign Host,
 * any Origin on a changing call) is refused before its route is looked at; A3 no answer depends on an upstream. */
#include "admin/admin_internal.h"

#include "base/clock.h"
#include "base/log.h"

#define PORT_MAGIC 0xad314e01u
#define REF_MAX_BYTES 1024

/* One listener. Its own object, since a handler must know where its request came in. */
struct admin_port {
    uint32_t magic;
    struct admin *admin;
    struct admin_port *next;
    char address[256]; /* as asked for; the port may be 0 here, its host is what counts */
};

struct admin {
    struct proxy *proxy;
    struct http_server *http;
    char *version;
    bool test_hooks;
    int64_t started_ms;
    struct admin_port *ports;
};

enum { GET_HEAD = 1, POST = 2 };

/* rest: the path behind a prefix route. Fills a; an error becomes a JSON error. */
typedef int route_fn(struct admin *a, struct http_exchange *x, const char *rest, struct http_answer *answer,
                     struct err *err);

struct route {
    const char *path;
    bool prefix; /* the path goes on behind it */
    bool hook;   /* there only with test_hooks, on the Unix socket */
    bool change; /* on the Unix socket only (A1) */
    unsigned methods;
    route_fn *fn;
};

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static int answer_text(struct http_answer *answer, int status, const char *type, struct buf *body, struct err *err)
{
    answer->status = status;
    TRY(http_answer_header(answer, err, "Content-Type", "%s", type));
    TRY(http_answer_header(answer, err, "Cache-Control", "no-store"));
    TRY(http_answer_header(answer, err, "X-Content-Type-Options", "nosniff"));
    answer->body_len = body->len;
    answer->body = buf_steal(body);
    return 0;
}

static int answer_json(struct http_answer *answer, struct buf *body, struct err *err)
{
    return answer_text(answer, 200, "application/json", body, err);
}

static void reply_error(struct http_exchange *x, int status, const char *code, const char *allow, const char *message)
{
    CLEANUP(buf_release) struct buf body = BUF_INIT(ADMIN_BODY_MAX_BYTES);
    CLEANUP(http_answer_release) struct http_answer answer = {.status = status};
    struct err err = ERR_INIT;

    if (admin_error_json(code, message, &body, &err) < 0 ||
        answer_text(&answer, status, "application/json", &body, &err) < 0 ||
        (allow != NULL && http_answer_header(&answer, &err, "Allow", "%s", allow) < 0))
        log_event(LOG_ERR, "admin.error", "req=%s error=%s", http_request_id(x), log_quote(err.msg).s);
    http_reply(x, &answer);
}

/* A failed handler's code as HTTP. */
static void reply_err(struct http_exchange *x, const struct err *err)
{
    switch ((enum err_code)err->code) {
    case ERR_NOTFOUND:
        reply_error(x, 404, "not_found", NULL, err->msg);
        return;
    case ERR_USAGE:
    case ERR_FORMAT:
    case ERR_UNSUPPORTED:
        reply_error(x, 400, "bad_request", NULL, err->msg);
        return;
    case ERR_THROTTLED:
    case ERR_BUSY:
        reply_error(x, 409, "busy", NULL, err->msg);
        return;
    case ERR_CORRUPT:
    case ERR_LIMIT:
    case ERR_TIMEOUT:
    case ERR_CANCELLED:
    case ERR_UPSTREAM:
    case ERR_DENIED:
    case ERR_NOSPC:
    case ERR_NOMEM:
    case ERR_IO:
    case ERR_BUG:
        break;
    }
    log_event(LOG_ERR, "admin.failed", "req=%s path=%s code=%s error=%s", http_request_id(x), log_quote(http_path(x)).s,
              err_code_name(err->code), log_quote(err->msg).s);
    reply_error(x, 500, "internal", NULL, err->msg);
}

/* ---- routes ------------------------------------------------------------------------------------------------------ */

static int plain(struct http_answer *answer, const char *text, struct err *err)
{
    CLEANUP(buf_release) struct buf body = BUF_INIT(ADMIN_BODY_MAX_BYTES);

    TRY(buf_str(&body, text, err));
    return answer_text(answer, 200, "text/plain; charset=utf-8", &body, err);
}

static int get_front(struct admin *a, struct http_exchange *x UNUSED, const char *rest UNUSED,
                     struct http_answer *answer, struct err *err)
{
    CLEANUP(free_ptr) char *text = NULL;

    TRY(str_printf(&text, err,
                   "recask %s, admin port\n\n"
                   "GET /healthz             the process answers\n"
                   "GET /readyz              it listens and its store can be read\n"
                   "GET /api/v1/stats        numbers, JSON\n"
                   "GET /api/v1/images       tags in the store, JSON\n"
                   "GET /api/v1/images/REF   one image: its manifests, views and layers, JSON\n"
                   "GET /api/v1/pins         images that are never evicted, JSON\n"
                   "GET /api/v1/maintenance  scrub and garbage collection: running, last, findings, JSON\n"
                   "\n"
                   "On the Unix socket in the store only:\n"
                   "POST /api/v1/pin?ref=    keep an image; unpin?ref= lets go of it, rm?ref= takes it away\n"
                   "POST /api/v1/gc          collect garbage; scrub?repair=1 reads all that is stored and repairs it\n",
                   a->version));
    return plain(answer, text, err);
}

static int get_healthz(struct admin *a UNUSED, struct http_exchange *x UNUSED, const char *rest UNUSED,
                       struct http_answer *answer, struct err *err)
{
    return plain(answer, "ok\n", err);
}

/* The admin port opens last, so who can ask is listened to already; what is left to know is whether the catalog can
 * still be read. Never an upstream: with all of them down, what is stored is served. */
static int get_readyz(struct admin *a, struct http_exchange *x, const char *rest UNUSED, struct http_answer *answer,
                      struct err *err)
{
    struct err why = ERR_INIT;

    if (store_health(proxy_store(a->proxy), &why) == 0)
        return plain(answer, "ready\n", err);
    log_event(LOG_ERR, "admin.notready", "req=%s error=%s", http_request_id(x), log_quote(why.msg).s);
    TRY(plain(answer, "not ready: the store cannot be read\n", err));
    answer->status = 503;
    return 0;
}

static int get_stats(struct admin *a, struct http_exchange *x UNUSED, const char *rest UNUSED,
                     struct http_answer *answer, struct err *err)
{
    CLEANUP(buf_release) struct buf body = BUF_INIT(ADMIN_BODY_MAX_BYTES);
    struct admin_numbers n = {.version = a->version, .uptime_s = (clock_mono_ms() - a->started_ms) / 1000};

    proxy_stats(a->proxy, &n.proxy);
    TRY(store_stats(proxy_store(a->proxy), &n.store, err));
    n.maintenance = admin_maintain_stats(proxy_maintain(a->proxy));
    TRY(admin_stats_json(&n, &body, err));
    return answer_json(answer, &body, err);
}

static int get_images(struct admin *a, struct http_exchange *x UNUSED, const char *rest UNUSED,
                      struct http_answer *answer, struct err *err)
{
    CLEANUP(buf_release) struct buf body = BUF_INIT(ADMIN_BODY_MAX_BYTES);

    TRY(admin_images_json(proxy_store(a->proxy), &body, err));
    return answer_json(answer, &body, err);
}

static int get_image(struct admin *a, struct http_exchange *x UNUSED, const char *rest, struct http_answer *answer,
                     struct err *err)
{
    CLEANUP(buf_release) struct buf body = BUF_INIT(ADMIN_BODY_MAX_BYTES);
    char text[REF_MAX_BYTES];
    struct admin_ref ref;

    if (!admin_decode(rest, text, sizeof text))
        return err_set(err, ERR_USAGE, "image name: too long or badly escaped");
    TRY(admin_ref_parse(text, proxy_upstreams(a->proxy), &ref, err));
    TRY(admin_image_json(proxy_store(a->proxy), &ref, &body, err));
    return answer_json(answer, &body, err);
}

static int get_pins(struct admin *a, struct http_exchange *x UNUSED, const char *rest UNUSED,
                    struct http_answer *answer, struct err *err)
{
    CLEANUP(buf_release) struct buf body = BUF_INIT(ADMIN_BODY_MAX_BYTES);

    TRY(admin_pins_json(proxy_store(a->proxy), &body, err));
    return answer_json(answer, &body, err);
}

/* The ?ref= of a request that changes something. */
static int asked_ref(const struct admin *a, const struct http_exchange *x, struct admin_ref *out, struct err *err)
{
    const char *text = http_query(x, "ref");

    if (text == NULL || *text == '\0')
        return err_set(err, ERR_USAGE, "which image? say ?ref=NAME:TAG or ?ref=NAME@sha256:...");
    return admin_ref_parse(text, proxy_upstreams(a->proxy), out, err);
}

static int post_pin(struct admin *a, struct http_exchange *x, const char *rest UNUSED, struct http_answer *answer,
                    struct err *err)
{
    CLEANUP(buf_release) struct buf body = BUF_INIT(ADMIN_BODY_MAX_BYTES);
    struct admin_ref ref;

    TRY(asked_ref(a, x, &ref, err));
    TRY(admin_pin_json(proxy_store(a->proxy), &ref, true, &body, err));
    return answer_json(answer, &body, err);
}

static int post_unpin(struct admin *a, struct http_exchange *x, const char *rest UNUSED, struct http_answer *answer,
                      struct err *err)
{
    CLEANUP(buf_release) struct buf body = BUF_INIT(ADMIN_BODY_MAX_BYTES);
    struct admin_ref ref;

    TRY(asked_ref(a, x, &ref, err));
    TRY(admin_pin_json(proxy_store(a->proxy), &ref, false, &body, err));
    return answer_json(answer, &body, err);
}

static int post_rm(struct admin *a, struct http_exchange *x, const char *rest UNUSED, struct http_answer *answer,
                   struct err *err)
{
    CLEANUP(buf_release) struct buf body = BUF_INIT(ADMIN_BODY_MAX_BYTES);
    struct admin_ref ref;

    TRY(asked_ref(a, x, &ref, err));
    TRY(admin_remove_json(proxy_store(a->proxy), &ref, &body, err));
    return answer_json(answer, &body, err);
}

static int get_maintenance(struct admin *a, struct http_exchange *x UNUSED, const char *rest UNUSED,
                           struct http_answer *answer, struct err *err)
{
    CLEANUP(buf_release) struct buf body = BUF_INIT(ADMIN_BODY_MAX_BYTES);

    TRY(admin_maintenance_json(proxy_maintain(a->proxy), &body, err));
    return answer_json(answer, &body, err);
}

static int post_gc(struct admin *a, struct http_exchange *x UNUSED, const char *rest UNUSED, struct http_answer *answer,
                   struct err *err)
{
    CLEANUP(buf_release) struct buf body = BUF_INIT(ADMIN_BODY_MAX_BYTES);

    TRY(admin_maintain_begin_json(proxy_maintain(a->proxy), MAINTAIN_GC, false, &body, err));
    return answer_json(answer, &body, err);
}

static int post_scrub(struct admin *a, struct http_exchange *x, const char *rest UNUSED, struct http_answer *answer,
                      struct err *err)
{
    CLEANUP(buf_release) struct buf body = BUF_INIT(ADMIN_BODY_MAX_BYTES);
    const char *repair = http_query(x, "repair");

    if (repair != NULL && strcmp(repair, "0") != 0 && strcmp(repair, "1") != 0)
        return err_set(err, ERR_USAGE, "scrub takes ?repair=1 or ?repair=0");
    TRY(admin_maintain_begin_json(proxy_maintain(a->proxy), MAINTAIN_SCRUB, repair != NULL && *repair == '1', &body,
                                  err));
    return answer_json(answer, &body, err);
}

static int post_evict(struct admin *a, struct http_exchange *x, const char *rest UNUSED, struct http_answer *answer,
                      struct err *err)
{
    CLEANUP(buf_release) struct buf body = BUF_INIT(ADMIN_BODY_MAX_BYTES);
    const char *text = http_query(x, "digest");
    struct digest d;

    if (text == NULL)
        return err_set(err, ERR_USAGE, "evict needs ?digest=sha256:...");
    TRY(digest_parse(text, strlen(text), &d, err));
    TRY(store_evict(proxy_store(a->proxy), &d, err));
    log_event(LOG_INFO, "admin.evict", "req=%s digest=%s", http_request_id(x), digest_text(&d).s);
    TRY(admin_json_dump(json_pack("{s:o}", "evicted", admin_json_digest(&d)), &body, err));
    return answer_json(answer, &body, err);
}

static const struct route routes[] = {
    {.path = "/", .methods = GET_HEAD, .fn = get_front},
    {.path = "/healthz", .methods = GET_HEAD, .fn = get_healthz},
    {.path = "/readyz", .methods = GET_HEAD, .fn = get_readyz},
    {.path = "/api/v1/stats", .methods = GET_HEAD, .fn = get_stats},
    {.path = "/api/v1/images", .methods = GET_HEAD, .fn = get_images},
    {.path = "/api/v1/images/", .prefix = true, .methods = GET_HEAD, .fn = get_image},
    {.path = "/api/v1/pins", .methods = GET_HEAD, .fn = get_pins},
    {.path = "/api/v1/pin", .change = true, .methods = POST, .fn = post_pin},
    {.path = "/api/v1/unpin", .change = true, .methods = POST, .fn = post_unpin},
    {.path = "/api/v1/rm", .change = true, .methods = POST, .fn = post_rm},
    {.path = "/api/v1/maintenance", .methods = GET_HEAD, .fn = get_maintenance},
    {.path = "/api/v1/gc", .change = true, .methods = POST, .fn = post_gc},
    {.path = "/api/v1/scrub", .change = true, .methods = POST, .fn = post_scrub},
    {.path = "/api/v1/test/evict", .hook = true, .methods = POST, .fn = post_evict},
};

static const struct route *find_route(const struct admin *a, const struct http_exchange *x, const char **out_rest)
{
    const char *path = http_path(x);

    for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
        const struct route *r = &routes[i];
        size_t len = strlen(r->path);

        if (r->hook && !(a->test_hooks && http_is_unix(x)))
            continue;
        if (strncmp(path, r->path, len) != 0 || (r->prefix ? path[len] == '\0' : path[len] != '\0'))
            continue;
        *out_rest = path + len;
        return r;
    }
    return NULL;
}

/* Why the request may not even be looked at, or NULL. */
static const char *refused(const struct admin_port *port, const struct http_exchange *x)
{
    enum http_method method = http_method(x);

    if (http_is_unix(x))
        return NULL;
    if (!admin_host_allowed(http_header(x, "Host"), port->address))
        return "the Host header names neither localhost nor the address that this admin port listens on; a web page "
               "that had its name resolve to this machine would look like that. Ask by IP address";
    if (method != HTTP_GET && method != HTTP_HEAD && http_header(x, "Origin") != NULL)
        return "a web page (Origin header) may not change anything here";
    return NULL;
}

static void handle(void *arg, struct http_exchange *x)
{
    struct admin_port *port = CAST_OBJ(struct admin_port, PORT_MAGIC, arg);
    CLEANUP(http_answer_release) struct http_answer answer = {.status = 0};
    struct err err = ERR_INIT;
    const char *why = refused(port, x), *rest;
    const struct route *r;
    enum http_method method = http_method(x);

    if (why != NULL) {
        reply_error(x, 403, "forbidden", NULL, why);
        return;
    }
    r = find_route(port->admin, x, &rest);
    if (r == NULL) {
        reply_error(x, 404, "not_found", NULL, "no such path; / lists what there is");
        return;
    }
    if (!(r->methods & (method == HTTP_GET || method == HTTP_HEAD ? GET_HEAD : method == HTTP_POST ? POST : 0))) {
        bool reads = r->methods & GET_HEAD;

        reply_error(x, 405, "method_not_allowed", reads ? "GET, HEAD" : "POST",
                    reads ? "only GET and HEAD" : "only POST");
        return;
    }
    if (r->change && !http_is_unix(x)) {
        reply_error(x, 403, "forbidden", NULL,
                    "a TCP port never changes anything; ask over the Unix socket in the store (--store DIR)");
        return;
    }
    if (r->fn(port->admin, x, rest, &answer, &err) < 0) {
        reply_err(x, &err);
        return;
    }
    http_reply(x, &answer);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

int admin_new(const struct admin_options *opt, struct admin **out, struct err *err)
{
    CLEANUP(free_ptr) char *version = NULL;
    struct admin *a;

    TRY(str_dup(opt->version, &version, err));
    a = calloc(1, sizeof *a);
    if (a == NULL)
        return err_nomem(err, sizeof *a);
    a->proxy = opt->proxy;
    a->http = opt->http;
    a->version = steal(&version);
    a->test_hooks = opt->test_hooks;
    a->started_ms = clock_mono_ms();
    *out = a;
    return 0;
}

/* The port stays in a's list even when listening fails, as the server may keep pointing to it. */
static int port_new(struct admin *a, const char *address, struct admin_port **out, struct err *err)
{
    struct admin_port *port = calloc(1, sizeof *port);

    if (port == NULL)
        return err_nomem(err, sizeof *port);
    port->magic = PORT_MAGIC;
    port->admin = a;
    snprintf(port->address, sizeof port->address, "%s", address);
    port->next = a->ports;
    a->ports = port;
    *out = port;
    return 0;
}

int admin_listen(struct admin *a, const char *address, const char **out_address, struct err *err)
{
    struct http_listener *listener;
    struct admin_port *port;

    TRY(port_new(a, address, &port, err));
    TRY(http_listen(a->http, &(struct http_listen_options){.address = address}, handle, port, &listener, err));
    *out_address = http_listener_address(listener);
    return 0;
}

int admin_listen_unix(struct admin *a, const char *path, struct err *err)
{
    struct http_listener *listener;
    struct admin_port *port;

    TRY(port_new(a, "unix", &port, err));
    return http_listen_unix(a->http, path, handle, port, &listener, err);
}

void admin_free(struct admin *a)
{
    if (a == NULL)
        return;
    while (a->ports != NULL) {
        struct admin_port *port = a->ports;

        a->ports = port->next;
        port->magic = 0;
        free(port);
    }
    free(a->version);
    free(a);
}
