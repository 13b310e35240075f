/* SPDX-License-Identifier: Apache-2.0
 *
 * Stored bytes that turn out to be damaged while they are sent: the store is told, and the answer goes on from the same
 * offset by what is left: the original on disk, or else a new fill of it. Only what cannot be made again in time (the zstd
 * form, whose frames are the damaged thing) ends cut; the next request finds the state corrected.
 */
#include "base/log.h"
#include "proxy/blob_internal.h"
#include "store/layer.h"

#include <inttypes.h>
#include <stdio.h>

struct healing {
    struct source base;
    struct blob_place place;
    bool again;         /* what is read now has been opened by blob_reopen(), whose failures are final */
    uint64_t off, left; /* still to come */
    struct source *inner;
    source_wake_fn *wake;
    void *wake_arg;
};

static int open_raw(const struct blob_place *b, const struct store_source *s, uint64_t off, struct source **out,
                    struct err *err)
{
    struct store_blob blob;
    struct fill *f;
    bool started;

    TRY(store_blob_lookup(b->p->store, &s->original, &blob, err));
    if (blob.present && blob.role == ROLE_ORIGINAL) {
        jobs_canon(b->p->jobs, &s->original);
        return original_open(b->p->store, &s->original, off, UINT64_MAX, out, err);
    }
    TRY(fill_join(b->p, b->up, b->repo, b->name, &s->original, &f, &started, err));
    int rc = fill_follow(f, off, true, out, err);
    fill_unref(f);
    return rc;
}

int blob_reopen(const struct blob_place *b, uint64_t off, uint64_t len, struct source **out, struct err *err)
{
    CLEANUP(source_cleanup) struct source *raw = NULL;
    CLEANUP(source_cleanup) struct source *plain = NULL;
    CLEANUP(source_cleanup) struct source *checked = NULL;
    struct store_source s;
    size_t count = 0;

    TRY(store_sources(b->p->store, &b->digest, b->repo, &s, 1, &count, err));
    if (count == 0 || s.repo != b->repo)
        return err_set(err, ERR_NOTFOUND, "%s: this repository has no source of it", digest_text(&b->digest).s);
    TRY(open_raw(b, &s, s.decode ? 0 : off, &raw, err));
    if (!s.decode)
        return source_window_new(&raw, 0, len, out, err);
    TRY(source_decoded_new(&raw, b->p->opt.max_layer_bytes, b->p->opt.max_ratio, &plain, err));
    TRY(source_verified_new(&plain, &b->digest, b->size_bytes, NULL, 0, &checked, err));
    return source_window_new(&checked, off, len, out, err);
}

/* why: of the read that failed. */
static int heal(struct healing *h, const struct err *why, struct err *err)
{
    log_event(LOG_WARN, "blob.damaged", "digest=%s at=%" PRIu64 " error=%s", digest_text(&h->place.digest).s, h->off,
              log_quote(why->msg).s);
    source_free(steal(&h->inner)); /* with its lease */
    TRY(store_mark_lost(h->place.p->store, &h->place.digest, err));
    if (!h->place.can_reopen) {
        *err = *why;
        return why->code;
    }
    h->again = true;
    TRY(blob_reopen(&h->place, h->off, h->left, &h->inner, err));
    source_set_waker(h->inner, h->wake, h->wake_arg);
    return 0;
}

static int healing_read(struct source *s, void *out, size_t cap, size_t *out_len, struct err *err)
{
    struct healing *h = (struct healing *)s;
    struct err why = ERR_INIT;

    int rc = source_read(h->inner, out, cap, out_len, &why);
    if (!h->again && (rc == ERR_CORRUPT || rc == ERR_NOTFOUND)) {
        TRY(heal(h, &why, err));
        rc = source_read(h->inner, out, cap, out_len, &why);
    }
    if (rc < 0)
        *err = why;
    h->off += *out_len;
    h->left -= *out_len;
    return rc;
}

static void healing_waker(struct source *s, source_wake_fn *fn, void *arg)
{
    struct healing *h = (struct healing *)s;
    h->wake = fn;
    h->wake_arg = arg;
    source_set_waker(h->inner, fn, arg);
}

static void healing_free(struct source *s)
{
    struct healing *h = (struct healing *)s;
    source_free(h->inner);
    free(h);
}

static const struct source_ops healing_ops = {"healing", healing_read, healing_waker, healing_free};

int source_healing_new(struct source **inner, const struct blob_place *place, uint64_t off, uint64_t len,
                       struct source **out, struct err *err)
{
    CLEANUP(source_cleanup) struct source *in = steal(inner);
    struct healing *h = calloc(1, sizeof(*h));

    if (!h)
        return err_nomem(err, sizeof(*h));
    *h = (struct healing){
        .base = {SOURCE_MAGIC, &healing_ops}, .place = *place, .off = off, .left = len, .inner = steal(&in)};
    *out = &h->base;
    return 0;
}
