/* SPDX-License-Identifier: Apache-2.0
 *
 * A blob that came with a Content-Encoding, and a disk that does not take it. Whether it is as it came or what that decodes
 * to only its end tells (fill_decode.c), so it is read through once from its start, hashed both ways and kept nowhere. Then
 * the fill is DETACHED, its length and form are known, and each follower goes on by a transfer of its own.
 */
#include "proxy/blob_internal.h"
#include "proxy/fill_internal.h"

#include <inttypes.h>

struct fill_probe {
    struct hasher *sent_hasher, *plain_hasher;
    uint64_t sent_bytes, plain_bytes;
    struct source *plain; /* the stream, hashed, then decoded; NULL: does not decode, only what is sent counts */
};

void fill_probe_free(struct fill_probe *p)
{
    if (!p)
        return;
    source_free(p->plain);
    hasher_free(p->sent_hasher);
    hasher_free(p->plain_hasher);
    free(p);
}

/* ---- a look at what flows by -------------------------------------------------------------------------------------- */

struct tapped {
    struct source base;
    struct fill *f;
};

static int read_sent(struct fill *f, void *out, size_t cap, size_t *out_len, struct err *err)
{
    int rc = source_read(f->stream, out, cap, out_len, err);

    if (rc >= 0) {
        hasher_update(f->probe->sent_hasher, out, *out_len);
        f->probe->sent_bytes += *out_len;
    }
    return rc;
}

static int tapped_read(struct source *s, void *out, size_t cap, size_t *out_len, struct err *err)
{
    return read_sent(((struct tapped *)s)->f, out, cap, out_len, err);
}

/* The stream's waker is the fill's own, as it is. */
static void tapped_free(struct source *s)
{
    free(s);
}

static int tapped_new(struct fill *f, struct source **out, struct err *err)
{
    static const struct source_ops ops = {"tapped", tapped_read, NULL, tapped_free};
    struct tapped *t = calloc(1, sizeof(*t));

    if (!t)
        return err_nomem(err, sizeof(*t));
    t->base = (struct source){SOURCE_MAGIC, &ops};
    t->f = f;
    *out = &t->base;
    return 0;
}

/* ---- the run ------------------------------------------------------------------------------------------------------ */

int fill_probe_begin(struct fill *f, struct err *err)
{
    CLEANUP(source_cleanup) struct source *tapped = NULL;
    const struct proxy_options *opt = &f->p->opt;
    struct fill_probe *p = calloc(1, sizeof(*p));

    REQUIRE(f->encoded && !f->probe);
    if (!p)
        return err_nomem(err, sizeof(*p));
    f->probe = p;
    TRY(hasher_new(&p->sent_hasher, err));
    TRY(hasher_new(&p->plain_hasher, err));
    TRY(tapped_new(f, &tapped, err));
    TRY(source_decoded_new(&tapped, opt->max_layer_bytes, opt->max_ratio, &p->plain, err));
    source_set_waker(p->plain, fill_wake, f);
    return 0;
}

/* What does not decode, for whatever reason of its own, may be the blob as it was sent. */
static bool undecodable(int code)
{
    return code == ERR_FORMAT || code == ERR_LIMIT || code == ERR_UNSUPPORTED || code == ERR_CORRUPT;
}

int fill_probe_step(struct fill *f, struct err *err)
{
    struct fill_probe *p = f->probe;
    size_t got = 0;

    if (!p->plain)
        return read_sent(f, f->buffer, FILL_BUFFER_BYTES, &got, err);
    int rc = source_read(p->plain, f->buffer, FILL_BUFFER_BYTES, &got, err);
    if (rc < 0 && undecodable(rc)) {
        err_clear(err);
        source_free(steal(&p->plain));
        return STEP_MORE;
    }
    if (rc >= 0) {
        hasher_update(p->plain_hasher, f->buffer, got);
        p->plain_bytes += got;
    }
    return rc;
}

int fill_probe_end(struct fill *f, struct err *err)
{
    struct fill_probe *p = f->probe;
    struct digest sent, plain;

    hasher_peek(p->sent_hasher, &sent);
    hasher_peek(p->plain_hasher, &plain);
    bool as_sent = digest_equal(&sent, &f->digest);
    if (!as_sent && !(p->plain && digest_equal(&plain, &f->digest)))
        return err_set(err, ERR_CORRUPT, "%s sent %" PRIu64 " bytes for %s that hash to %s", upstream_name(f->up),
                       p->sent_bytes, digest_text(&f->digest).s, digest_text(&sent).s);
    lock_take(&f->lock);
    f->decode_alone = !as_sent;
    f->has_length = true;
    f->length = as_sent ? p->sent_bytes : p->plain_bytes;
    lock_give(&f->lock);
    return 0;
}
