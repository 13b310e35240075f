/* SPDX-License-Identifier: Apache-2.0
 *
 * One manifest being asked for upstream, shared by everybody who wants it meanwhile. Steps, each on a worker:
 *
 *   start -> (a tag we know: HEAD) -> same digest: touch the tag, done
 *                                  -> other digest, or the upstream does not say: GET
 *         -> (else: GET)           -> parse, check, store with its tag in one transaction, done
 *
 * A failure of the upstream ends in the stored answer, marked stale, when there is one. Those who have such an answer do
 * not wait for the failure: they leave, and what comes in the end is stored for the next ones.
 */
#include "base/clock.h"
#include "base/log.h"
#include "proxy/proxy_internal.h"
#include "transcode/codec.h"

#include <stdio.h>
#include <string.h>

#define RESOLVE_MAGIC 0x2e501e00u
#define QUIET_MS 5000   /* how long a failed upstream is left alone when it names no time itself */
#define QUIET_MAX_S 300 /* and at most when it does */

static const char manifest_accept[] =
    "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, "
    "application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.docker.distribution.manifest.v2+json, */*";

struct resolve {
    uint32_t magic;
    atomic_uint refs;
    struct proxy *p;
    const struct upstream *up;
    int64_t repo; /* 0: the catalog does not know it (yet) */
    char name[OCI_NAME_MAX_BYTES + 10];
    char reference[OCI_NAME_MAX_BYTES + 1];
    struct oci_reference ref;
    struct job job;
    void (*next)(struct resolve *rs);
    /* what the upstream said; written on its thread, read by the next step */
    struct upstream_answer answer;
    struct err answer_err;
    bool has_known; /* the tag's stored digest */
    struct digest known;
    /* under p->lock */
    struct resolve *link;
    bool listed, over, left; /* left: somebody waited for it in vain */
    struct waiter_list waiters;
    /* constant once over */
    struct digest digest;
    enum cache_result cache;
    struct err err;
    struct store_manifest unstored; /* what came, when the store did not take it; no body: it did */
};

static void resolve_ref(void *arg)
{
    struct resolve *rs = CAST_OBJ(struct resolve, RESOLVE_MAGIC, arg);
    atomic_fetch_add(&rs->refs, 1);
}

static void resolve_unref(void *arg)
{
    struct resolve *rs = CAST_OBJ(struct resolve, RESOLVE_MAGIC, arg);
    if (atomic_fetch_sub(&rs->refs, 1) != 1)
        return;
    upstream_answer_release(&rs->answer);
    store_manifest_release(&rs->unstored);
    rs->magic = 0;
    free(rs);
}

static void resolve_run(void *arg)
{
    struct resolve *rs = CAST_OBJ(struct resolve, RESOLVE_MAGIC, arg);
    rs->next(rs);
}

static void unlist(struct resolve *rs)
{
    for (struct resolve **pp = &rs->p->resolves; *pp; pp = &(*pp)->link) {
        if (*pp == rs) {
            *pp = rs->link;
            break;
        }
    }
    rs->listed = false;
}

/* The end: rs->err, or rs->digest and rs->cache, are set. Drops the reference that running held. */
static void finish(struct resolve *rs)
{
    struct proxy *p = rs->p;

    lock_take(&p->lock);
    unlist(rs);
    rs->over = true;
    waiter_wake_all(&rs->waiters);
    lock_give(&p->lock);
    resolve_unref(rs);
}

/* The upstream's own word, and not a failure here, is why this ends. */
static bool was_told(const struct resolve *rs, enum err_code code)
{
    return rs->err.code == (int)code && rs->answer_err.code == (int)code;
}

/* Who is not to be asked again for now: the upstream when it is down, slow or limits us; this tag when only that cannot be
 * had (another repository may be fine). */
static void leave_alone(struct resolve *rs)
{
    int wait_s = rs->answer.head.retry_after_s;

    if (was_told(rs, ERR_UPSTREAM) || was_told(rs, ERR_TIMEOUT) || was_told(rs, ERR_THROTTLED))
        quiet_begin(rs->p, rs->up, wait_s <= 0 ? QUIET_MS : wait_s > QUIET_MAX_S ? QUIET_MAX_S * 1000 : wait_s * 1000);
    else
        tag_note(rs->p, rs->up, rs->name, rs->reference, NOTED_REFUSED, QUIET_MS);
}

/* The tag goes, what it stood for stays servable by its digest. */
static void drop_tag(struct resolve *rs)
{
    struct err err = ERR_INIT;

    if (store_tag_drop(rs->p->store, rs->repo, rs->reference, &err) < 0)
        log_event(LOG_WARN, "resolve.drop", "upstream=%s repo=%s tag=%s error=%s", upstream_name(rs->up), rs->name,
                  rs->reference, log_quote(err.msg).s);
    else
        log_event(LOG_INFO, "resolve.drop", "upstream=%s repo=%s tag=%s", upstream_name(rs->up), rs->name,
                  rs->reference);
}

/* The upstream failed. A known tag is served as it was, whatever the reason: a mirror that loses images because their
 * registry is down, limits or (unless that is wanted) has deleted them is worth nothing. */
static void finish_failed(struct resolve *rs)
{
    bool gone = was_told(rs, ERR_NOTFOUND) && !rs->ref.is_digest;

    if (gone)
        tag_note(rs->p, rs->up, rs->name, rs->reference, NOTED_GONE, rs->p->opt.negative_ttl_ms);
    if (gone && rs->has_known && rs->p->opt.on_upstream_404 == PROXY_GONE_DROP) {
        drop_tag(rs);
    } else if (rs->has_known && rs->err.code != ERR_CANCELLED) {
        log_event(LOG_WARN, "resolve.stale", "upstream=%s repo=%s ref=%s error=%s", upstream_name(rs->up), rs->name,
                  rs->reference, log_quote(rs->err.msg).s);
        if (!gone)
            leave_alone(rs);
        rs->digest = rs->known;
        rs->cache = gone ? CACHE_GONE : CACHE_STALE;
        err_clear(&rs->err);
    }
    finish(rs);
}

/* A tag is what the upstream says it is: whatever was noted of it is over. */
static void finish_well(struct resolve *rs)
{
    if (!rs->ref.is_digest)
        tag_note(rs->p, rs->up, rs->name, rs->reference, NOTED_NOTHING, 0);
    finish(rs);
}

static void on_answer(void *arg, struct upstream_answer *answer, const struct err *err)
{
    struct resolve *rs = CAST_OBJ(struct resolve, RESOLVE_MAGIC, arg);

    upstream_answer_release(&rs->answer);
    rs->answer = *answer;
    *answer = (struct upstream_answer){.head.status = 0};
    rs->answer_err = *err;
    workpool_post(rs->p->pool, &rs->job);
    resolve_unref(rs);
}

/* Sends a request; `next` runs when the answer is in. */
static void ask(struct resolve *rs, bool head, void (*next)(struct resolve *))
{
    CLEANUP(free_ptr) char *path = NULL;

    rs->next = next;
    resolve_ref(rs); /* the exchange's, dropped in on_answer() */
    int rc = str_printf(&path, &rs->err, "/v2/%s/manifests/%s", rs->name, rs->reference);
    if (rc == 0) {
        struct upstream_request req = {
            .up = rs->up, .head = head, .path = path, .accept = manifest_accept, .limit_bytes = OCI_MANIFEST_MAX_BYTES};
        rc = upstream_call(rs->p->ups, &req, on_answer, rs, &rs->err);
    }
    if (rc < 0) {
        resolve_unref(rs);
        finish_failed(rs);
    }
}

static int refs_of(const struct oci_manifest *m, struct store_ref **out, size_t *out_count, struct err *err)
{
    size_t max = 1 + m->layer_count + m->child_count, n = 0;
    struct store_ref *refs = calloc(max, sizeof(*refs));

    if (!refs)
        return err_nomem(err, max * sizeof(*refs));
    if (!m->is_index && !digest_is_zero(&m->config.digest))
        refs[n++] = (struct store_ref){REF_CONFIG, m->config.digest, m->config.size_bytes};
    for (size_t i = 0; i < m->layer_count; i++)
        refs[n++] = (struct store_ref){REF_LAYER, m->layers[i].digest, m->layers[i].size_bytes};
    for (size_t i = 0; i < m->child_count; i++)
        refs[n++] = (struct store_ref){REF_CHILD, m->children[i].digest, m->children[i].size_bytes};
    *out = refs;
    *out_count = n;
    return 0;
}

/* A registry, or a CDN in front of it, may compress what it was asked to leave alone. A digest names the bytes before that,
 * unless it names those that came: then they are what the registry stores. */
static int undo_coding(struct resolve *rs, struct err *err)
{
    const struct upstream_head *h = &rs->answer.head;
    const struct digest *want = rs->ref.is_digest ? &rs->ref.digest : h->has_digest ? &h->digest : NULL;
    struct buf *body = &rs->answer.body, plain;
    struct digest raw;

    if (!h->content_encoding || body->len == 0 || codec_sniff(body->data, body->len) == CODEC_NONE)
        return 0;
    digest_of(body->data, body->len, &raw);
    if (want && digest_equal(&raw, want))
        return 0;
    if (decode_whole(body, OCI_MANIFEST_MAX_BYTES, &plain, err) < 0) {
        err->code = ERR_UPSTREAM;
        return err_wrap(err, "%s answered %s/%s in Content-Encoding %s", upstream_name(rs->up), rs->name, rs->reference,
                        h->content_encoding);
    }
    buf_release(body);
    *body = plain;
    return 0;
}

static int check_digest(const struct resolve *rs, struct digest *out, struct err *err)
{
    const struct buf *body = &rs->answer.body;

    digest_of(body->data, body->len, out);
    if (rs->ref.is_digest && !digest_equal(out, &rs->ref.digest))
        return err_set(err, ERR_CORRUPT, "%s answered %s/%s with bytes that hash to %s", upstream_name(rs->up),
                       rs->name, rs->reference, digest_text(out).s);
    if (rs->answer.head.has_digest && !digest_equal(out, &rs->answer.head.digest))
        return err_set(err, ERR_CORRUPT, "%s sent Docker-Content-Digest %s with bytes that hash to %s",
                       upstream_name(rs->up), digest_text(&rs->answer.head.digest).s, digest_text(out).s);
    return 0;
}

/* A child whose views are there already (another tag's image, unchanged) is no reason for a job any more, but the new index
 * has to get its own. */
static void index_arrived(struct resolve *rs, const struct store_ref *refs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        CLEANUP(store_manifest_release) struct store_manifest child = {.len = 0};
        struct err ignored = ERR_INIT;

        if (refs[i].role == REF_CHILD && store_manifest_get(rs->p->store, &refs[i].digest, &child, &ignored) == 0 &&
            child.views == VIEWS_READY)
            jobs_image(rs->p->jobs, rs->up, rs->repo, rs->name, &refs[i].digest);
    }
}

static int parse_answer(struct resolve *rs, struct oci_manifest *m, struct err *err)
{
    const struct buf *body = &rs->answer.body;

    TRY(undo_coding(rs, err));
    TRY(check_digest(rs, &rs->digest, err));
    if (oci_manifest_parse(body->data ? body->data : "", body->len, rs->answer.head.content_type, m, err) < 0) {
        err->code = ERR_UPSTREAM; /* the client asked well; what came back is no manifest */
        return err_wrap(err, "%s answered %s:%s with something else than a manifest", upstream_name(rs->up), rs->name,
                        rs->reference);
    }
    return 0;
}

static int store_answer(struct resolve *rs, const struct oci_manifest *m, struct err *err)
{
    CLEANUP(free_ptr) struct store_ref *refs = NULL;
    const struct buf *body = &rs->answer.body;
    size_t ref_count = 0;

    TRY(refs_of(m, &refs, &ref_count, err));
    if (rs->repo == 0) /* the first that is confirmed of it */
        TRY(store_repo(rs->p->store, upstream_name(rs->up), rs->name, &rs->repo, err));
    struct store_manifest_put put = {.repo = rs->repo,
                                     .tag = rs->ref.is_digest ? NULL : rs->reference,
                                     .digest = rs->digest,
                                     .media_type = oci_type_name(m->type),
                                     .body = body->data,
                                     .len = body->len,
                                     .is_index = m->is_index,
                                     .refs = refs,
                                     .ref_count = ref_count,
                                     .never = m->not_plain};
    TRY(store_manifest_put(rs->p->store, &put, err));
    index_arrived(rs, refs, ref_count);
    return 0;
}

static int copy_manifest(const struct store_manifest *from, const char *body, struct store_manifest *out,
                         struct err *err)
{
    char *copy = malloc(from->len + 1);

    if (!copy)
        return err_nomem(err, from->len + 1);
    memcpy(copy, body, from->len);
    copy[from->len] = '\0';
    *out = *from;
    out->body = copy;
    return 0;
}

/* The store does not take it: those who wait get it all the same, from here. */
static int pass_through(struct resolve *rs, const struct oci_manifest *m, const struct err *why, struct err *err)
{
    struct store_manifest loose = {.digest = rs->digest,
                                   .upstream = rs->digest,
                                   .len = rs->answer.body.len,
                                   .is_index = m->is_index,
                                   .is_signed = -1};

    log_event(LOG_WARN, "resolve.unstored", "upstream=%s repo=%s ref=%s error=%s", upstream_name(rs->up), rs->name,
              rs->reference, log_quote(why->msg).s);
    snprintf(loose.media_type, sizeof(loose.media_type), "%s", oci_type_name(m->type));
    return copy_manifest(&loose, rs->answer.body.data, &rs->unstored, err);
}

static int take_answer(struct resolve *rs, struct err *err)
{
    CLEANUP(oci_manifest_release) struct oci_manifest m = {.type = OCI_TYPE_OTHER};
    struct err why = ERR_INIT;

    TRY(parse_answer(rs, &m, err));
    int rc = store_answer(rs, &m, &why);
    if (error_of_store(rc))
        return pass_through(rs, &m, &why, err);
    if (rc < 0)
        *err = why;
    return rc;
}

static void got_manifest(struct resolve *rs)
{
    if (rs->answer_err.code != 0) {
        rs->err = rs->answer_err;
        finish_failed(rs);
        return;
    }
    rs->cache = CACHE_MISS;
    if (take_answer(rs, &rs->err) < 0)
        finish_failed(rs);
    else
        finish_well(rs);
}

/* A registry that does not do HEAD says so with one of these; and that a tag is gone takes a GET to believe. */
static bool head_says_nothing(const struct resolve *rs)
{
    int status = rs->answer.head.status;
    return status == 404 || status == 400 || status == 405 || status == 501;
}

static void got_head(struct resolve *rs)
{
    bool failed = rs->answer_err.code != 0;
    struct err err = ERR_INIT;

    if (failed && !head_says_nothing(rs)) {
        rs->err = rs->answer_err;
        finish_failed(rs);
    } else if (!failed && rs->answer.head.has_digest && digest_equal(&rs->answer.head.digest, &rs->known)) {
        rs->digest = rs->known;
        rs->cache = CACHE_HIT;
        if (store_tag_set(rs->p->store, rs->repo, rs->reference, &rs->known, &err) < 0) /* asked again next time */
            log_event(LOG_WARN, "resolve.tag", "upstream=%s repo=%s tag=%s error=%s", upstream_name(rs->up), rs->name,
                      rs->reference, log_quote(err.msg).s);
        jobs_recheck(rs->p->jobs, rs->up, rs->repo, rs->name, &rs->known);
        finish_well(rs);
    } else {
        ask(rs, false, got_manifest);
    }
}

int64_t tag_fresh_until_s(const struct proxy *p, const struct upstream *up, const struct store_tag *tag)
{
    int64_t own = upstream_tag_ttl_s(up);

    return tag->checked_at + (own > 0 ? own : p->opt.tag_ttl_s);
}

bool tag_is_fresh(const struct proxy *p, const struct upstream *up, const struct store_tag *tag)
{
    int64_t now = clock_wall_s();

    return now >= tag->checked_at && now < tag_fresh_until_s(p, up, tag);
}

static void start(struct resolve *rs)
{
    struct store_tag tag = {.checked_at = 0};
    struct err err = ERR_INIT;

    if (store_repo_find(rs->p->store, upstream_name(rs->up), rs->name, &rs->repo, &rs->err) < 0) {
        finish(rs);
        return;
    }
    if (!rs->ref.is_digest && store_tag_get(rs->p->store, rs->repo, rs->reference, &tag, &err) == 0) {
        rs->has_known = true;
        rs->known = tag.digest;
    }
    if (rs->has_known && tag_is_fresh(rs->p, rs->up, &tag)) {
        /* Whoever asked for this had looked just before another resolve ended. */
        rs->digest = tag.digest;
        rs->cache = CACHE_HIT;
        finish(rs);
        return;
    }
    ask(rs, rs->has_known, rs->has_known ? got_head : got_manifest);
}

static struct resolve *find(struct proxy *p, const struct upstream *up, const char *name, const char *reference)
{
    for (struct resolve *rs = p->resolves; rs; rs = rs->link) {
        if (rs->up == up && strcmp(rs->name, name) == 0 && strcmp(rs->reference, reference) == 0)
            return rs;
    }
    return NULL;
}

static int resolve_new(struct proxy *p, const struct upstream *up, const char *name, const char *reference,
                       struct resolve **out, struct err *err)
{
    struct resolve *rs = calloc(1, sizeof(*rs));
    if (!rs)
        return err_nomem(err, sizeof(*rs));
    rs->magic = RESOLVE_MAGIC;
    atomic_init(&rs->refs, 1);
    rs->p = p;
    rs->up = up;
    snprintf(rs->name, sizeof(rs->name), "%s", name);
    snprintf(rs->reference, sizeof(rs->reference), "%s", reference);
    rs->next = start;
    job_init(&rs->job, JOB_CLIENT, resolve_run, rs, resolve_ref, resolve_unref);
    int rc = oci_reference_parse(reference, &rs->ref, err);
    if (rc < 0) {
        resolve_unref(rs);
        return rc;
    }
    *out = rs;
    return 0;
}

int resolve_join(struct proxy *p, const struct upstream *up, const char *name, const char *reference, struct waiter *w,
                 struct resolve **out, struct err *err)
{
    struct resolve *fresh = NULL;

    TRY(resolve_new(p, up, name, reference, &fresh, err));
    lock_take(&p->lock);
    struct resolve *rs = find(p, up, name, reference);
    bool started = !rs;
    if (started) {
        rs = fresh;
        rs->link = p->resolves;
        p->resolves = rs;
        rs->listed = true;
    }
    resolve_ref(rs); /* the waiter's */
    *out = rs;       /* before anybody can wake it */
    waiter_add(&rs->waiters, w);
    lock_give(&p->lock);
    if (started)
        workpool_post(p->pool, &rs->job); /* the reference of resolve_new() is the run's own, dropped in finish() */
    else
        resolve_unref(fresh);
    return 0;
}

static bool is_over(struct resolve *rs)
{
    lock_take(&rs->p->lock);
    bool over = rs->over;
    lock_give(&rs->p->lock);
    return over;
}

int resolve_result(struct resolve **rs, struct resolved *out, struct err *err)
{
    if (!is_over(*rs))
        return STEP_WAIT;
    struct resolve *mine = steal(rs);
    *out = (struct resolved){.digest = mine->digest, .cache = mine->cache};
    int rc = mine->err.code;
    if (rc == 0 && mine->unstored.body)
        rc = copy_manifest(&mine->unstored, mine->unstored.body, &out->unstored, err);
    if (mine->err.code != 0) {
        *err = mine->err;
        out->status = mine->answer.head.status;
        out->retry_after_s = mine->answer.head.retry_after_s;
    }
    resolve_unref(mine);
    return rc;
}

bool resolve_leave(struct resolve **rs, struct waiter *w)
{
    struct resolve *mine = *rs;

    lock_take(&mine->p->lock);
    bool leaves = !mine->over;
    if (leaves) {
        waiter_remove(w);
        mine->left = true;
    }
    lock_give(&mine->p->lock);
    if (!leaves)
        return false;
    log_event(LOG_INFO, "resolve.slow", "upstream=%s repo=%s ref=%s", upstream_name(mine->up), mine->name,
              mine->reference);
    *rs = NULL;
    resolve_unref(mine);
    return true;
}

bool resolve_any_left(const struct proxy *p, const struct upstream *up)
{
    for (const struct resolve *rs = p->resolves; rs; rs = rs->link) {
        if (rs->up == up && rs->left)
            return true;
    }
    return false;
}
