/* SPDX-License-Identifier: Apache-2.0
 *
 * tags/list and referrers: asked for upstream each time, but for a short memory, so that a burst of clients is one request.
 * Nothing of it enters the store; what is in memory is also what there is to say, marked stale, when the upstream fails.
 *
 *   referrers -> the upstream has the API: its answer
 *             -> it has not (404, 400, 405, 501): the fallback tag "sha256-<hex>" (distribution-spec v1.1, "Referrers Tag
 *                Schema"), filtered here; no such tag: an empty index, since who has the API never answers 404
 *
 * A list goes out as the upstream's own bytes: its "name" stays what the upstream calls the repository, also for a client that
 * asked without "library/". No client looks at it.
 */
#include "base/clock.h"
#include "proxy/link.h"
#include "proxy/proxy_internal.h"
#include "transcode/codec.h"

#include <stdio.h>
#include <string.h>

#define ENTRIES 64
#define KEEP_MS 10000
#define STALE_MS 5000 /* how long an old answer is given without asking again, once the upstream has failed */
#define BODY_MAX_BYTES (4u << 20)
#define KEPT_BODY_MAX_BYTES (256u << 10) /* 64 entries of this size are all the memory it can take */
#define QUERY_MAX_BYTES 4096

struct kept {
    char *key; /* "<upstream> <path>?<query>" */
    char *body, *content_type, *link, *filters;
    size_t len;
    int64_t until_ms;
    bool is_stale; /* the upstream has been asked since, and failed */
};

struct passthrough_cache {
    struct lock lock; /* RANK_LEAF */
    struct kept kept[ENTRIES];
    unsigned next;
};

static void kept_clear(struct kept *k)
{
    free(k->key);
    free(k->body);
    free(k->content_type);
    free(k->link);
    free(k->filters);
    *k = (struct kept){.key = NULL};
}

int passthrough_cache_new(struct passthrough_cache **out, struct err *err)
{
    struct passthrough_cache *c = calloc(1, sizeof(*c));
    if (!c)
        return err_nomem(err, sizeof(*c));
    lock_init(&c->lock, RANK_LEAF);
    *out = c;
    return 0;
}

void passthrough_cache_free(struct passthrough_cache *c)
{
    if (!c)
        return;
    for (unsigned i = 0; i < ENTRIES; i++)
        kept_clear(&c->kept[i]);
    lock_release(&c->lock);
    free(c);
}

static int kept_copy(const struct kept *from, struct kept *to, struct err *err)
{
    TRY(str_dup(from->content_type, &to->content_type, err));
    TRY(str_dup(from->link, &to->link, err));
    TRY(str_dup(from->filters, &to->filters, err));
    to->body = malloc(from->len + 1);
    if (!to->body)
        return err_nomem(err, from->len);
    memcpy(to->body, from->body ? from->body : "", from->len);
    to->len = from->len;
    to->is_stale = from->is_stale;
    return 0;
}

static struct kept *find(struct passthrough_cache *c, const char *key)
{
    for (unsigned i = 0; i < ENTRIES; i++) {
        if (c->kept[i].key && strcmp(c->kept[i].key, key) == 0)
            return &c->kept[i];
    }
    return NULL;
}

/* stale: also what is older than KEEP_MS. */
static bool cache_get(struct passthrough_cache *c, const char *key, bool stale, struct kept *out)
{
    struct err err = ERR_INIT;

    lock_take(&c->lock);
    const struct kept *k = find(c, key);
    bool hit = k && (stale || k->until_ms > clock_mono_ms()) && kept_copy(k, out, &err) == 0;
    lock_give(&c->lock);
    if (!hit)
        kept_clear(out);
    return hit;
}

/* The upstream failed: those who ask next need not wait for it, each for as long as it takes to hang. */
static void cache_stale(struct passthrough_cache *c, const char *key)
{
    lock_take(&c->lock);
    struct kept *k = find(c, key);
    if (k) {
        k->until_ms = clock_mono_ms() + STALE_MS;
        k->is_stale = true;
    }
    lock_give(&c->lock);
}

static void cache_put(struct passthrough_cache *c, const char *key, const struct kept *k)
{
    struct kept copy = {.key = NULL};
    struct err err = ERR_INIT;

    if (k->len > KEPT_BODY_MAX_BYTES || str_dup(key, &copy.key, &err) < 0 || kept_copy(k, &copy, &err) < 0) {
        kept_clear(&copy);
        return;
    }
    copy.until_ms = clock_mono_ms() + KEEP_MS;
    lock_take(&c->lock);
    struct kept *at = find(c, key);
    if (!at) {
        at = &c->kept[c->next];
        c->next = (c->next + 1) % ENTRIES;
    }
    kept_clear(at);
    *at = copy;
    lock_give(&c->lock);
}

static bool no_referrers_api(const struct request *r);
static void ask_fallback(struct request *r);

/* ---- one request ------------------------------------------------------------------------------------------------------ */

static int upstream_path(const struct request *r, char **out, struct err *err)
{
    CLEANUP(buf_release) struct buf query = BUF_INIT(QUERY_MAX_BYTES);
    const char *raw = http_query_raw(r->x);
    size_t len = strlen(raw);

    if (len >= QUERY_MAX_BYTES)
        return err_set(err, ERR_FORMAT, "a query of %zu bytes", len);
    TRY(query_without_ns(raw, len, &query, err));
    const char *what = r->route.kind == ROUTE_TAGS ? "tags/list" : "referrers/";
    return str_printf(out, err, "/v2/%s/%s%s%s%s", r->route.name, what, r->route.ref, query.len ? "?" : "",
                      query.len ? query.data : "");
}

/* The next page lies behind the path that the client used, whatever the upstream calls it; its query is the upstream's. An
 * upstream's Link that does not lead on is dropped: a client would ask for the same page for ever. */
static int add_link(const struct request *r, const char *link, struct http_answer *a, struct err *err)
{
    CLEANUP(buf_release) struct buf query = BUF_INIT(QUERY_MAX_BYTES);
    bool ns = http_query(r->x, "ns") != NULL;

    if (!link_next_query(link, &query))
        return 0;
    return http_answer_header(a, err, "Link", "<%s?%s%s%s>; rel=\"next\"", http_path(r->x), query.data,
                              ns ? "&ns=" : "", ns ? upstream_name(r->route.up) : "");
}

static int fill_answer(struct request *r, struct kept *k, struct http_answer *a, struct err *err)
{
    TRY(request_headers(r, a, err));
    TRY(http_answer_header(a, err, "Content-Type", "%s", k->content_type ? k->content_type : "application/json"));
    if (k->link)
        TRY(add_link(r, k->link, a, err));
    if (k->filters)
        TRY(http_answer_header(a, err, "OCI-Filters-Applied", "%s", k->filters));
    if (r->cache == CACHE_STALE)
        TRY(request_warn_stale(r, a, err));
    a->status = 200;
    a->body = steal(&k->body);
    a->body_len = k->len;
    return 0;
}

/* Sends k's contents (taken). */
static void reply_kept(struct request *r, struct kept *k)
{
    struct http_answer a = {.status = 0};
    struct err err = ERR_INIT;

    int rc = fill_answer(r, k, &a, &err);
    kept_clear(k);
    if (rc < 0) {
        http_answer_release(&a);
        request_fail(r, &err);
        return;
    }
    request_reply(r, &a);
}

/* What was said last, when there is something. */
static bool reply_stale(struct request *r)
{
    struct kept k = {.key = NULL};

    if (!cache_get(r->p->cache, r->key, true, &k))
        return false;
    r->cache = CACHE_STALE;
    reply_kept(r, &k);
    return true;
}

static void failed(struct request *r)
{
    bool gone = r->err.code == ERR_NOTFOUND || r->err.code == ERR_DENIED;

    if (!gone)
        cache_stale(r->p->cache, r->key);
    if (gone || !reply_stale(r))
        request_fail(r, &r->err);
}

/* Sends k's contents (taken), for the next ones too. */
static void reply_new(struct request *r, struct kept *k)
{
    r->cache = CACHE_MISS;
    cache_put(r->p->cache, r->key, k);
    reply_kept(r, k);
}

/* Answers may be compressed in transit, although they were asked for as they are. */
static int undo_coding(struct request *r, struct err *err)
{
    struct buf *body = &r->answer.body, plain;

    if (!r->answer.head.content_encoding || body->len == 0 || codec_sniff(body->data, body->len) == CODEC_NONE)
        return 0;
    TRY(decode_whole(body, BODY_MAX_BYTES, &plain, err));
    buf_release(body);
    *body = plain;
    return 0;
}

/* A 200 may be a page for people (a login, a proxy's excuse); as a list it would be kept and believed. */
static int check_list(struct request *r, struct err *err)
{
    CLEANUP(buf_release) struct buf unused = BUF_INIT(BODY_MAX_BYTES);
    const struct buf *body = &r->answer.body;
    const char *text = body->data ? body->data : "";

    if (r->route.kind == ROUTE_REFERRERS)
        return oci_referrers_filter(text, body->len, NULL, &unused, err);
    return text[strspn(text, " \t\r\n")] == '{' ? 0 : err_set(err, ERR_FORMAT, "no list of tags");
}

static void answered(struct request *r)
{
    struct upstream_answer *u = &r->answer;
    struct kept k = {.key = NULL};

    bool no_api = r->err.code != 0 && no_referrers_api(r);
    if (r->err.code == 0 && (undo_coding(r, &r->err) < 0 || check_list(r, &r->err) < 0)) {
        /* Something else than an index: that path means nothing to that upstream. */
        no_api = r->route.kind == ROUTE_REFERRERS && r->err.code == ERR_FORMAT;
        r->err.code = r->err.code == ERR_NOMEM ? ERR_NOMEM : ERR_UPSTREAM;
        (void)err_wrap(&r->err, "%s answered %s", upstream_name(r->route.up), r->route.name);
    }
    if (no_api) {
        ask_fallback(r);
        return;
    }
    if (r->err.code != 0) {
        failed(r);
        return;
    }
    k.len = u->body.len;
    k.body = buf_steal(&u->body);
    k.content_type = steal(&u->head.content_type);
    k.link = steal(&u->head.link);
    k.filters = steal(&u->head.filters_applied);
    reply_new(r, &k);
}

/* On the upstream thread. */
static void ask_done(void *arg, struct upstream_answer *answer, const struct err *err)
{
    struct request *r = arg;
    r->answer = *answer;
    *answer = (struct upstream_answer){.head.status = 0};
    r->err = *err;
    request_wake(r);
    request_unref(r);
}

/* The upstream has never heard of a rewritten manifest, so nothing there refers to it. */
static bool derived_digest(struct request *r)
{
    CLEANUP(store_manifest_release) struct store_manifest m = {.len = 0};
    struct digest d;
    struct err err = ERR_INIT;

    return digest_parse(r->route.ref, strlen(r->route.ref), &d, &err) == 0 &&
           store_manifest_get(r->p->store, &d, &m, &err) == 0 && m.view != 0;
}

static int empty_index(const struct request *r, struct kept *k, struct err *err)
{
    static const char empty[] =
        "{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.index.v1+json\",\"manifests\":[]}";

    TRY(str_dup(empty, &k->body, err));
    k->len = sizeof(empty) - 1;
    if (http_query(r->x, "artifactType"))
        TRY(str_dup("artifactType", &k->filters, err));
    return str_dup(oci_type_name(OCI_TYPE_INDEX), &k->content_type, err);
}

static void reply_no_referrers(struct request *r)
{
    struct kept k = {.key = NULL};
    struct err err = ERR_INIT;

    r->cache = CACHE_HIT;
    if (empty_index(r, &k, &err) < 0) {
        kept_clear(&k);
        request_fail(r, &err);
        return;
    }
    reply_kept(r, &k);
}

static int ask(struct request *r, const char *path, void (*then)(struct request *r), struct err *err)
{
    struct upstream_request req = {.up = r->route.up,
                                   .path = path,
                                   .accept = r->route.kind == ROUTE_TAGS ? "application/json"
                                                                         : oci_type_name(OCI_TYPE_INDEX),
                                   .limit_bytes = BODY_MAX_BYTES};

    r->next = then;
    request_ref(r); /* the exchange's, dropped in ask_done() */
    int rc = upstream_call(r->p->ups, &req, ask_done, r, err);
    if (rc < 0)
        request_unref(r);
    return rc;
}

/* ---- where there is no referrers API --------------------------------------------------------------------------------- */

static bool no_referrers_api(const struct request *r)
{
    int status = r->answer.head.status;

    return r->route.kind == ROUTE_REFERRERS && (status == 404 || status == 400 || status == 405 || status == 501);
}

static int fallback_index(struct request *r, struct kept *k, struct err *err)
{
    CLEANUP(buf_release) struct buf out = BUF_INIT(OCI_MANIFEST_MAX_BYTES);
    const struct buf *body = &r->answer.body;
    const char *type = http_query(r->x, "artifactType");

    TRY(oci_referrers_filter(body->data ? body->data : "", body->len, type, &out, err));
    TRY(str_dup(oci_type_name(OCI_TYPE_INDEX), &k->content_type, err));
    if (type)
        TRY(str_dup("artifactType", &k->filters, err));
    k->len = out.len;
    k->body = buf_steal(&out);
    return 0;
}

static void fallback_answered(struct request *r)
{
    struct kept k = {.key = NULL};
    struct err err = ERR_INIT;
    int rc;

    if (r->err.code != 0 && r->err.code != ERR_NOTFOUND) {
        failed(r);
        return;
    }
    rc = r->err.code == ERR_NOTFOUND ? empty_index(r, &k, &err)
         : undo_coding(r, &err) < 0  ? err.code
                                     : fallback_index(r, &k, &err);
    if (rc == 0) {
        reply_new(r, &k);
        return;
    }
    kept_clear(&k);
    if (rc != ERR_NOMEM)
        err.code = ERR_UPSTREAM; /* the client asked well */
    err_wrap(&err, "%s: the referrers tag of %s", upstream_name(r->route.up), r->route.ref);
    request_fail(r, &err);
}

static void ask_fallback(struct request *r)
{
    CLEANUP(free_ptr) char *path = NULL;
    struct err err = ERR_INIT;

    upstream_answer_release(&r->answer);
    err_clear(&r->err);
    /* "sha256:<hex>" -> "sha256-<hex>"; prepare() has seen that it is one. */
    if (str_printf(&path, &err, "/v2/%s/manifests/sha256-%s", r->route.name, strchr(r->route.ref, ':') + 1) < 0 ||
        ask(r, path, fallback_answered, &err) < 0)
        request_fail(r, &err);
}

/* Upstreams differ over a page's size that is no number; the client is told what is wrong. */
static int check_page_size(struct request *r, struct err *err)
{
    const char *n = http_query(r->x, "n");

    if (!n || (*n && strspn(n, "0123456789") == strlen(n) && strlen(n) <= 9))
        return 0;
    r->route.error_code = "PAGINATION_NUMBER_INVALID";
    return err_set(err, ERR_FORMAT, "n=%.40s is no number of tags", n);
}

/* The path to ask for, and the key under which answers are kept. */
static int prepare(struct request *r, char **out_path, struct err *err)
{
    struct digest d;

    if (r->route.kind == ROUTE_TAGS)
        TRY(check_page_size(r, err));

    if (r->route.kind == ROUTE_REFERRERS)
        TRY(digest_parse(r->route.ref, strlen(r->route.ref), &d, err));
    TRY(upstream_path(r, out_path, err));
    return str_printf(&r->key, err, "%s %s", upstream_name(r->route.up), *out_path);
}

void passthrough_start(struct request *r)
{
    CLEANUP(free_ptr) char *path = NULL;
    struct kept k = {.key = NULL};
    struct err err = ERR_INIT;

    int rc = prepare(r, &path, &err);
    if (rc == 0 && r->route.kind == ROUTE_REFERRERS && derived_digest(r)) {
        reply_no_referrers(r);
        return;
    }
    if (rc == 0 && cache_get(r->p->cache, r->key, false, &k)) {
        r->cache = k.is_stale ? CACHE_STALE : CACHE_HIT;
        reply_kept(r, &k);
        return;
    }
    /* Nobody waits for an upstream that has just failed when there is an answer, be it an old one. */
    if (rc == 0 && (r->p->opt.offline || quiet_now(r->p, r->route.up)) && reply_stale(r))
        return;
    if (rc == 0)
        rc = ask(r, path, answered, &err);
    if (rc < 0)
        request_fail(r, &err);
}
