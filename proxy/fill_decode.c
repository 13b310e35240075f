/* SPDX-License-Identifier: Apache-2.0
 *
 * A blob that came with a Content-Encoding, though nobody asked for one. Which of two things it means only the digest tells:
 * the registry names what the layer is anyway (moby#17595: gzip layers called "x-gzip"), and the bytes are right as they
 * are; or something on the way compressed them, and the blob is what they decode to. So all bytes are taken as sent, and
 * only when they do not match are they decoded from their spool file into another one, a slice at a time.
 */
#include "base/clock.h"
#include "proxy/blob_internal.h"
#include "proxy/fill_internal.h"

#define SLICE_BYTES (1u << 20)
#define SLICE_MS 10

/* ---- a spool that nobody writes any more, as a source ------------------------------------------------------------- */

struct spooled {
    struct source base;
    struct spool *spool;
    uint64_t off;
};

static const struct source_ops spooled_ops;

static struct spooled *spooled_of(struct source *s)
{
    REQUIRE(s->ops == &spooled_ops);
    return (struct spooled *)s;
}

static int spooled_read(struct source *s, void *out, size_t cap, size_t *out_len, struct err *err)
{
    struct spooled *sp = spooled_of(s);

    TRY(spool_pread(sp->spool, sp->off, out, cap, out_len, err));
    sp->off += *out_len;
    return *out_len > 0 ? STEP_MORE : STEP_EOF;
}

static void spooled_free(struct source *s)
{
    struct spooled *sp = spooled_of(s);

    spool_unref(sp->spool);
    free(sp);
}

static const struct source_ops spooled_ops = {"spooled", spooled_read, NULL, spooled_free};

static int spooled_new(struct spool *spool, struct source **out, struct err *err)
{
    struct spooled *sp = calloc(1, sizeof(*sp));

    if (!sp)
        return err_nomem(err, sizeof(*sp));
    sp->base = (struct source){SOURCE_MAGIC, &spooled_ops};
    sp->spool = spool_ref(spool);
    *out = &sp->base;
    return 0;
}

/* ---- decoding ------------------------------------------------------------------------------------------------------ */

int fill_decode_begin(struct fill *f, struct err *err)
{
    CLEANUP(source_cleanup) struct source *raw = NULL;
    const struct proxy_options *opt = &f->p->opt;

    REQUIRE(f->encoded && !f->plain && !f->plain_spool);
    TRY(spool_open(f->p->store, &f->plain_spool, err));
    TRY(spooled_new(f->spool, &raw, err));
    TRY(source_decoded_new(&raw, opt->max_layer_bytes, opt->max_ratio, &f->plain, err));
    source_set_waker(f->plain, fill_wake, f);
    return 0;
}

int fill_decode_slice(struct fill *f, struct err *err)
{
    int64_t until_ms = clock_mono_ms() + SLICE_MS;
    size_t moved = 0;

    while (moved < SLICE_BYTES && clock_mono_ms() < until_ms) {
        size_t got = 0;
        int rc = source_read(f->plain, f->buffer, FILL_BUFFER_BYTES, &got, err);
        if (rc != STEP_MORE)
            return rc;
        TRY(spool_write(f->plain_spool, f->buffer, got, err));
        moved += got;
    }
    return STEP_MORE;
}

void fill_decode_end(struct fill *f)
{
    struct spool *raw = f->spool;

    source_free(steal(&f->plain));
    lock_take(&f->lock);
    f->spool = steal(&f->plain_spool); /* nobody has read the other: readable() in follow.c */
    lock_give(&f->lock);
    spool_unref(raw);
}
