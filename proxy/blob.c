/* SPDX-License-Identifier: Apache-2.0
 *
 * GET and HEAD of /v2/<name>/blobs/<digest>: where the bytes come from. blob_answer.c says in which form they go out.
 *
 *   look -> in the store, and this repository is known to hold it -> answer from the store
 *        -> in the store or on the way, but not confirmed for this repository -> HEAD upstream -> look again
 *        -> elsewhere: HEAD asks upstream; GET joins or starts a fill (of the original, when the digest names its decoded
 *           bytes) and follows it
 *        -> a zstd form that was evicted: fill, canonicalise, look again
 */
#include "base/log.h"
#include "proxy/blob_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define WANTED_MAX 8 /* images per layer whose views are made because of one request */
#define REMAKES_MAX 3
#define LOOKS_MAX 8 /* rounds of look() before a blob that comes and goes is given up */

static void look(struct request *r);

/* ---- asking the upstream whether this repository holds the blob ------------------------------------------------- */

static void confirm(struct request *r);
static void confirm_next(struct request *r);

/* On the upstream thread. */
static void head_done(void *arg, struct upstream_answer *answer, const struct err *err)
{
    struct request *r = arg;
    r->err = *err;
    r->head_bytes = answer->head.has_length ? answer->head.length_bytes : 0;
    r->answer.head.status = err->code != 0 ? answer->head.status : 0;
    r->answer.head.retry_after_s = err->code != 0 ? answer->head.retry_after_s : 0;
    request_wake(r);
    request_unref(r);
}

static void head_upstream(struct request *r, const struct digest *d, void (*then)(struct request *))
{
    char path[OCI_NAME_MAX_BYTES + 120];
    struct err err = ERR_INIT;

    if (request_may_ask(r, digest_text(d).s, &err) < 0) {
        request_fail(r, &err);
        return;
    }
    snprintf(path, sizeof(path), "/v2/%s/blobs/%s", r->route.name, digest_text(d).s);
    struct upstream_request req = {.up = r->route.up, .head = true, .path = path};
    r->next = then;
    request_ref(r); /* the exchange's, dropped in head_done() */
    if (upstream_call(r->p->ups, &req, head_done, r, &err) < 0) {
        request_unref(r);
        request_fail(r, &err);
    }
}

/* The upstream holds it for this repository. That the store cannot take note of that is no reason to refuse it. */
static int note_confirmed(struct request *r, const struct digest *original, struct err *err)
{
    struct err why = ERR_INIT;

    int rc = request_repo_confirmed(r, &why);
    if (rc == 0)
        rc = store_repo_add_blob(r->p->store, r->repo, original, r->head_bytes, &why);
    if (error_of_store(rc)) {
        log_event(LOG_WARN, "blob.confirm", "upstream=%s repo=%s digest=%s error=%s", upstream_name(r->route.up),
                  r->route.name, digest_text(original).s, log_quote(why.msg).s);
        r->confirmed = true;
        return 0;
    }
    if (rc < 0)
        *err = why;
    return rc;
}

static void confirmed(struct request *r)
{
    const struct store_source *s = &r->sources[r->source_at];
    struct err err = ERR_INIT;

    if (r->err.code == ERR_NOTFOUND && r->source_at + 1 < r->source_count) {
        r->source_at++;
        confirm_next(r);
    } else if (r->err.code != 0) {
        request_fail(r, &r->err);
    } else if (note_confirmed(r, &s->original, &err) < 0) {
        request_fail(r, &err);
    } else {
        look(r);
    }
}

static void confirm_next(struct request *r)
{
    head_upstream(r, &r->sources[r->source_at].original, confirmed);
}

static bool is_listed(const struct request *r, size_t count, const struct digest *d)
{
    bool found = false;
    for (size_t i = 0; i < count; i++)
        found = found || digest_equal(&r->sources[i].original, d);
    return found;
}

/* Asks for the originals that the digest can be made from, one after the other, and last for the digest itself: the same
 * bytes may lie upstream as a blob of their own. Repositories share originals; each is asked for once. */
static void confirm(struct request *r)
{
    size_t count = 0;

    for (size_t i = 0; i < r->source_count; i++) {
        if (!is_listed(r, count, &r->sources[i].original))
            r->sources[count++] = r->sources[i];
    }
    /* A layer that lies here uncompressed, but was stored from another repository's compressed one. */
    if (r->blob.role == ROLE_ZSTD && !is_listed(r, count, &r->blob.canonical))
        r->sources[count++] = (struct store_source){.original = r->blob.canonical};
    if (!is_listed(r, count, &r->digest))
        r->sources[count++] = (struct store_source){.original = r->digest};
    r->source_count = count;
    r->source_at = 0;
    confirm_next(r);
}

/* ---- fills ------------------------------------------------------------------------------------------------------- */

static void fill_ready(struct request *r)
{
    struct err err = ERR_INIT;
    uint64_t length;

    fill_forget(r->fill, &r->waiter);
    enum fill_state state = fill_wait(r->fill, FILL_STREAMING, NULL);
    bool known = r->decode ? r->blob.size_bytes > 0 : fill_length(r->fill, &length) && length > 0;
    if (state == FILL_STARTING || (state == FILL_STREAMING && !known)) {
        /* Without a word from this transfer on the length an answer could not have a Content-Length that is sure to be
         * right, and one of no bytes could not be held back: wait for the end. */
        r->next = fill_ready;
        enum fill_state want = state == FILL_STARTING ? FILL_STREAMING : FILL_VERIFIED;
        if (fill_wait(r->fill, want, &r->waiter) >= want)
            request_wake(r);
        return;
    }
    if (state == FILL_FAILED) {
        bool present = fill_was_present(r->fill);
        fill_error(r->fill, &err);
        fill_unref(steal(&r->fill));
        if (present)
            look(r);
        else
            request_fail(r, &err);
        return;
    }
    blob_answer_fill(r);
}

static bool original_present(const struct request *r, const struct store_source *s)
{
    struct store_blob blob;
    struct err ignored = ERR_INIT;

    return store_blob_lookup(r->p->store, &s->original, &blob, &ignored) == 0 && blob.present &&
           blob.role == ROLE_ORIGINAL;
}

static void follow(struct request *r, const struct store_source *s)
{
    struct err err = ERR_INIT;
    bool started;

    fill_unref(steal(&r->fill));
    /* Where only the canonical form is gone its original needs no transfer. */
    if (s->decode && original_present(r, s)) {
        r->cache = CACHE_HIT;
        if (!blob_answer_original(r, s))
            look(r);
        return;
    }
    if (request_may_ask(r, digest_text(&s->original).s, &err) < 0 ||
        fill_join(r->p, r->route.up, r->repo, r->route.name, &s->original, &r->fill, &started, &err) < 0) {
        request_fail(r, &err);
        return;
    }
    /* One that began between may_serve() and here, for another repository, says nothing about this one. */
    bool allowed = started || r->confirmed || fill_reads_from(r->fill, r->route.name);
    if (!allowed && store_repo_has_blob(r->p->store, r->repo, &s->original, &allowed, &err) < 0) {
        request_fail(r, &err);
        return;
    }
    if (!allowed) {
        fill_unref(steal(&r->fill));
        confirm(r);
        return;
    }
    r->decode = s->decode;
    r->cache = started ? CACHE_MISS : CACHE_FOLLOW;
    fill_ready(r);
}

/* ---- a zstd form whose frames are gone: nothing but storing the layer again makes its bytes ------------------------ */

/* Waits until the layer's job is over, then looks again. */
static void remaking(struct request *r)
{
    jobs_forget(r->p->jobs, &r->waiter);
    r->next = remaking;
    jobs_wait(r->p->jobs, &r->waiter);
    if (jobs_has_canon(r->p->jobs, &r->sources[0].original))
        return; /* woken when a job ends */
    jobs_forget(r->p->jobs, &r->waiter);
    look(r);
}

static void refilling(struct request *r)
{
    struct err err = ERR_INIT;

    r->next = refilling;
    enum fill_state state = fill_wait(r->fill, FILL_DONE, &r->waiter);
    if (state < FILL_DONE)
        return;
    fill_error(r->fill, &err);
    fill_unref(steal(&r->fill));
    if (state == FILL_FAILED && err.code != 0)
        request_fail(r, &err);
    else
        remaking(r); /* the fill has queued that */
}

/* Fetches the original and stores the layer, whatever of it is missing; again when others need the room meanwhile. */
static void rebuild(struct request *r)
{
    const struct store_source *s = &r->sources[0];
    struct store_blob blob;
    struct err err = ERR_INIT;
    bool started;

    if (store_blob_lookup(r->p->store, &s->original, &blob, &err) < 0) {
        request_fail(r, &err);
    } else if (!blob.present && r->refills < REMAKES_MAX) {
        r->refills++;
        if (request_may_ask(r, digest_text(&s->original).s, &err) < 0 ||
            fill_join(r->p, r->route.up, r->repo, r->route.name, &s->original, &r->fill, &started, &err) < 0)
            request_fail(r, &err);
        else
            refilling(r);
    } else if (blob.present && !blob.canonical_present && r->remakes < REMAKES_MAX) {
        r->remakes++;
        jobs_canon(r->p->jobs, &s->original);
        remaking(r);
    } else {
        remaking(r);
    }
}

/* ---- why views are made ------------------------------------------------------------------------------------------ */

/* A client takes a layer as the upstream has it: the images that list it get their views, for the next one. (Not when a
 * manifest is asked for: containerd reads those of all platforms, and pulls one.) */
static void want_views(struct request *r)
{
    struct digest images[WANTED_MAX];
    struct err err = ERR_INIT;
    size_t count = 0;

    if (http_method(r->x) != HTTP_GET || r->wanted)
        return;
    r->wanted = true;
    if (store_images_of_layer(r->p->store, r->repo, &r->digest, images, ARRAY_LEN(images), &count, &err) < 0)
        log_event(LOG_WARN, "blob.images", "digest=%s error=%s", digest_text(&r->digest).s, log_quote(err.msg).s);
    for (size_t i = 0; i < count; i++)
        jobs_image(r->p->jobs, r->route.up, r->repo, r->route.name, &images[i]);
}

/* ---- look -------------------------------------------------------------------------------------------------------- */

static void head_known(struct request *r)
{
    if (r->err.code != 0) {
        request_fail(r, &r->err);
        return;
    }
    struct err err = ERR_INIT;
    if (note_confirmed(r, &r->digest, &err) < 0) {
        request_fail(r, &err);
        return;
    }
    if (r->head_bytes == 0) { /* not said, or not to be believed (case 24): a transfer will tell */
        follow(r, &r->sources[0]);
        return;
    }
    r->cache = CACHE_MISS;
    r->blob.size_bytes = r->head_bytes;
    blob_answer_head(r);
}

/* Not in the store. */
static void absent(struct request *r)
{
    bool is_head = blob_needs_no_bytes(r);

    if (is_head && r->blob.role != ROLE_UNKNOWN && r->blob.size_bytes > 0) {
        r->cache = CACHE_HIT;
        blob_answer_head(r);
    } else if (is_head) {
        head_upstream(r, &r->digest, head_known);
    } else if (r->blob.role == ROLE_ZSTD) {
        r->cache = CACHE_MISS; /* it will be a present one when it is looked at again */
        rebuild(r);
    } else {
        follow(r, &r->sources[0]);
    }
}

/* Whether this repository may have the blob without another word from the upstream. */
static int may_serve(struct request *r, bool *out, struct err *err)
{
    TRY(store_repo_has_blob(r->p->store, r->repo, &r->digest, out, err));
    *out = *out || r->confirmed;
    if (*out || r->blob.role != ROLE_UNKNOWN)
        return 0;
    /* Nobody knows it: the transfer itself will be the confirmation, unless one for another repository is under way. */
    struct fill *f = fill_find(r->p, r->route.up, &r->digest);
    *out = !f || fill_reads_from(f, r->route.name);
    fill_unref(f);
    return 0;
}

static void look(struct request *r)
{
    struct err err = ERR_INIT;
    bool allowed = false;

    if (r->looks++ >= LOOKS_MAX) {
        err_set(&err, ERR_BUSY, "%s comes and goes; the store has no room to keep it", digest_text(&r->digest).s);
        request_fail(r, &err);
        return;
    }
    if (request_repo(r, &err) < 0 || store_blob_lookup(r->p->store, &r->digest, &r->blob, &err) < 0 ||
        store_sources(r->p->store, &r->digest, r->repo, r->sources, ARRAY_LEN(r->sources) - 2, &r->source_count, &err) <
            0 ||
        may_serve(r, &allowed, &err) < 0) {
        request_fail(r, &err);
        return;
    }
    if (!allowed) {
        confirm(r);
        return;
    }
    want_views(r);
    if (r->blob.present) {
        r->cache = r->cache == CACHE_NONE ? CACHE_HIT : r->cache;
        if (blob_answer_store(r))
            return;
        /* Its bytes turned out to be missing or damaged before any header was sent: the state is corrected, look again. */
        look(r);
        return;
    }
    if (r->source_count == 0) {
        r->sources[0] = (struct store_source){.original = r->digest};
        r->source_count = 1;
    }
    absent(r);
}

void blob_start(struct request *r)
{
    struct err err = ERR_INIT;

    if (digest_parse(r->route.ref, strlen(r->route.ref), &r->digest, &err) < 0) {
        r->route.error_code = "DIGEST_INVALID";
        err.code = ERR_FORMAT;
        request_fail(r, &err);
        return;
    }
    look(r);
}
