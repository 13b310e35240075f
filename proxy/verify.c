/* SPDX-License-Identifier: Apache-2.0
 *
 * A source that promises its digest: bytes pass through while they are hashed, but the last ones are kept until the inner
 * stream has ended and digest and size are right. So a wrong stream ends cut, never complete (design: nothing unverified
 * is ever handed out whole).
 */
#include "proxy/proxy_internal.h"

#include <inttypes.h>
#include <string.h>

#define READ_BYTES (64u << 10)

struct verified {
    struct source base;
    struct source *inner;
    struct hasher *hasher;
    struct digest want;
    uint64_t size, seen; /* seen: bytes hashed, the skipped ones included */
    bool done;
    size_t kept; /* bytes in `keep` that were read but not given out */
    unsigned char keep[READ_BYTES + HOLD_BACK_BYTES];
};

static const struct source_ops verified_ops;

static struct verified *verified_of(struct source *s)
{
    REQUIRE(s->ops == &verified_ops);
    return (struct verified *)s;
}

static int check_end(struct verified *v, struct err *err)
{
    struct digest got;

    hasher_peek(v->hasher, &got);
    if (v->size != SIZE_UNKNOWN && v->seen != v->size)
        return err_set(err, ERR_CORRUPT, "%s: %" PRIu64 " bytes where %" PRIu64 " were expected",
                       digest_text(&v->want).s, v->seen, v->size);
    if (!digest_equal(&got, &v->want))
        return err_set(err, ERR_CORRUPT, "%s: the bytes hash to %s", digest_text(&v->want).s, digest_text(&got).s);
    v->done = true;
    return 0;
}

static size_t give(struct verified *v, size_t hold, void *out, size_t cap)
{
    if (v->kept <= hold)
        return 0;
    size_t n = v->kept - hold < cap ? v->kept - hold : cap;
    memcpy(out, v->keep, n);
    memmove(v->keep, v->keep + n, v->kept - n);
    v->kept -= n;
    return n;
}

static int verified_read(struct source *s, void *out, size_t cap, size_t *out_len, struct err *err)
{
    struct verified *v = verified_of(s);

    for (;;) {
        *out_len = give(v, v->done ? 0 : HOLD_BACK_BYTES, out, cap);
        if (*out_len > 0)
            return STEP_MORE;
        if (v->done)
            return STEP_EOF;
        size_t got = 0;
        int rc = source_read(v->inner, v->keep + v->kept, sizeof(v->keep) - v->kept, &got, err);
        if (rc < 0 || rc == STEP_WAIT)
            return rc;
        hasher_update(v->hasher, v->keep + v->kept, got);
        v->kept += got;
        v->seen += got;
        if (v->seen > v->size)
            return err_set(err, ERR_CORRUPT, "%s: more than the %" PRIu64 " bytes expected", digest_text(&v->want).s,
                           v->size);
        if (rc == STEP_EOF)
            TRY(check_end(v, err));
    }
}

static void verified_waker(struct source *s, source_wake_fn *fn, void *arg)
{
    source_set_waker(verified_of(s)->inner, fn, arg);
}

static void verified_free(struct source *s)
{
    struct verified *v = verified_of(s);
    source_free(v->inner);
    hasher_free(v->hasher);
    v->base.magic = 0;
    free(v);
}

static const struct source_ops verified_ops = {"verified", verified_read, verified_waker, verified_free};

int source_verified_new(struct source **inner, const struct digest *want, uint64_t size_bytes, struct hasher **hasher,
                        uint64_t skipped_bytes, struct source **out, struct err *err)
{
    CLEANUP(source_cleanup) struct source *in = steal(inner);
    CLEANUP(hasher_cleanup) struct hasher *h = hasher ? steal(hasher) : NULL;

    if (!h)
        TRY(hasher_new(&h, err));
    struct verified *v = calloc(1, sizeof(*v));
    if (!v)
        return err_nomem(err, sizeof(*v));
    v->base = (struct source){SOURCE_MAGIC, &verified_ops};
    v->inner = steal(&in);
    v->hasher = steal(&h);
    v->want = *want;
    v->size = size_bytes;
    v->seen = skipped_bytes;
    *out = &v->base;
    return 0;
}
