/* SPDX-License-Identifier: Apache-2.0
 *
 * A follower: a source over a fill's bytes from some offset on, at its own pace. It reads the spool while the fill writes
 * it; when the fill detaches, it goes on by a transfer of its own from where the spool ends, hashing on from the fill's
 * hash, so that the end is checked all the same. And when the spool cannot be read, by one from the start.
 */
#include "base/log.h"
#include "proxy/blob_internal.h"
#include "proxy/fill_internal.h"

#include <inttypes.h>

struct follower {
    struct source base;
    struct fill *f;
    uint64_t off;
    bool hold_back;
    struct source *alone; /* after a detach */
    struct waiter waiter;
    source_wake_fn *wake;
    void *wake_arg;
};

static const struct source_ops follower_ops;

static struct follower *follower_of(struct source *s)
{
    REQUIRE(s->ops == &follower_ops);
    return (struct follower *)s;
}

static void follower_woken(void *arg)
{
    struct follower *fo = arg;
    if (fo->wake)
        fo->wake(fo->wake_arg);
}

/* Where reading must stop for now. Called with the fill's lock held. */
static uint64_t readable(const struct follower *fo)
{
    if (fo->f->state < FILL_STREAMING) /* the fill is still being set up */
        return 0;
    if (fo->f->encoded && fo->f->state != FILL_VERIFIED && fo->f->state != FILL_DONE) /* F4 */
        return 0;
    uint64_t have = fo->f->spool ? spool_bytes(fo->f->spool) : 0;
    if (!fo->hold_back || (fo->f->state >= FILL_VERIFIED && fo->f->state <= FILL_DETACHED))
        return have;
    return have > HOLD_BACK_BYTES ? have - HOLD_BACK_BYTES : 0;
}

/* From `at` on, where the fill's hash stands (or 0): what the digest is over, checked; a reader that starts later skips its part.
 * Only bytes of a range need no digest. Takes stream. */
static int check_alone(struct follower *fo, struct source **stream, uint64_t at, struct err *err)
{
    CLEANUP(source_cleanup) struct source *in = steal(stream);
    CLEANUP(source_cleanup) struct source *checked = NULL;
    CLEANUP(hasher_cleanup) struct hasher *hasher = NULL;
    struct fill *f = fo->f;

    if (f->detached_hasher && at > 0)
        TRY(hasher_clone(f->detached_hasher, &hasher, err));
    TRY(source_verified_new(&in, &f->digest, f->has_length ? f->length : SIZE_UNKNOWN, hasher ? &hasher : NULL, at,
                            &checked, err));
    if (fo->off > at)
        return source_window_new(&checked, fo->off - at, UINT64_MAX, &fo->alone, err);
    fo->alone = steal(&checked);
    return 0;
}

/* The rest from the upstream, from `at` on: where f's hash stands, or 0. */
static int go_alone(struct follower *fo, uint64_t at, bool decode, struct err *err)
{
    CLEANUP(free_ptr) char *path = NULL;
    CLEANUP(source_cleanup) struct source *stream = NULL;
    CLEANUP(source_cleanup) struct source *plain = NULL;
    struct fill *f = fo->f;
    const struct proxy_options *opt = &f->p->opt;

    /* What is compressed anew each time has no parts that fit together. */
    if (!fo->hold_back && fo->off > at && !f->encoded)
        at = fo->off;
    TRY(str_printf(&path, err, "/v2/%s/blobs/%s", f->name, digest_text(&f->digest).s));
    struct upstream_request req = {.up = f->up, .path = path, .first = at};
    TRY(upstream_stream_new(f->p->ups, &req, &stream, err));
    if (decode) {
        TRY(source_decoded_new(&stream, opt->max_layer_bytes, opt->max_ratio, &plain, err));
        stream = steal(&plain);
    }
    if (fo->hold_back)
        TRY(check_alone(fo, &stream, at, err));
    else if (fo->off > at)
        TRY(source_window_new(&stream, fo->off - at, UINT64_MAX, &fo->alone, err));
    else
        fo->alone = steal(&stream);
    source_set_waker(fo->alone, fo->wake, fo->wake_arg);
    return 0;
}

static int go_on_alone(struct follower *fo, struct err *err)
{
    const struct fill *f = fo->f;

    return go_alone(fo, f->spool ? spool_bytes(f->spool) : 0, f->decode_alone, err);
}

/* The disk does not give back what was written to it. What the fill's hash is over is not known here: from the start. */
static int start_anew(struct follower *fo, const struct err *why, struct err *err)
{
    struct fill *f = fo->f;

    log_event(LOG_WARN, "fill.unreadable", "digest=%s at=%" PRIu64 " error=%s", digest_text(&f->digest).s, fo->off,
              log_quote(why->msg).s);
    return go_alone(fo, 0, f->encoded && f->decoded, err);
}

/* Nothing to read right now: the end, a failure, a detach, or a wait. */
static int nothing_yet(struct follower *fo, struct err *err)
{
    struct fill *f = fo->f;

    lock_take(&f->lock);
    enum fill_state state = f->state;
    bool more = fo->off < readable(fo);
    bool wait = !more && (state == FILL_STARTING || state == FILL_STREAMING);
    if (wait && !fo->waiter.list)
        waiter_add(&f->readers, &fo->waiter);
    lock_give(&f->lock);
    if (wait)
        return STEP_WAIT;
    if (more)
        return STEP_MORE;
    switch (state) {
    case FILL_VERIFIED:
    case FILL_DONE:
        return STEP_EOF;
    case FILL_DETACHED:
        TRY(go_on_alone(fo, err));
        return STEP_MORE;
    case FILL_FAILED:
        fill_error(f, err);
        return err->code ? err->code : err_set(err, ERR_CANCELLED, "the fill was dropped");
    case FILL_STARTING:
    case FILL_STREAMING:
        break;
    }
    return err_set(err, ERR_BUG, "a fill in state %d", (int)state);
}

static int follower_read(struct source *s, void *out, size_t cap, size_t *out_len, struct err *err)
{
    struct follower *fo = follower_of(s);

    for (;;) {
        if (fo->alone)
            return source_read(fo->alone, out, cap, out_len, err);
        lock_take(&fo->f->lock);
        uint64_t limit = readable(fo);
        lock_give(&fo->f->lock);
        if (fo->off < limit) {
            size_t want = limit - fo->off < cap ? (size_t)(limit - fo->off) : cap;
            struct err why = ERR_INIT;
            int got = spool_pread(fo->f->spool, fo->off, out, want, out_len, &why);
            if (got == 0 && *out_len > 0) {
                fo->off += *out_len;
                return STEP_MORE;
            }
            if (got == 0)
                err_set(&why, ERR_IO, "the spool ends at %" PRIu64, fo->off);
            TRY(start_anew(fo, &why, err));
            continue;
        }
        int rc = nothing_yet(fo, err);
        if (rc != STEP_MORE)
            return rc;
    }
}

static void follower_waker(struct source *s, source_wake_fn *fn, void *arg)
{
    struct follower *fo = follower_of(s);
    fo->wake = fn;
    fo->wake_arg = arg;
}

static void follower_free(struct source *s)
{
    struct follower *fo = follower_of(s);
    fill_forget(fo->f, &fo->waiter);
    source_free(fo->alone);
    fill_unref(fo->f);
    fo->base.magic = 0;
    free(fo);
}

static const struct source_ops follower_ops = {"follower", follower_read, follower_waker, follower_free};

int fill_follow(struct fill *f, uint64_t off, bool hold_back, struct source **out, struct err *err)
{
    struct follower *fo = calloc(1, sizeof(*fo));
    if (!fo)
        return err_nomem(err, sizeof(*fo));
    fo->base = (struct source){SOURCE_MAGIC, &follower_ops};
    fill_ref(f);
    fo->f = f;
    fo->off = off;
    fo->hold_back = hold_back;
    fo->waiter = (struct waiter){.fn = follower_woken, .arg = fo};
    *out = &fo->base;
    return 0;
}
