/* SPDX-License-Identifier: Apache-2.0
 *
 * A source that decodes another one, whose codec shows only in its first bytes: they are read first, then the decoder is
 * put behind them. Media types are not asked: what a manifest calls a layer and what its bytes are need not agree. And the
 * same for a few bytes in memory.
 */
#include "base/buf.h"
#include "proxy/blob_internal.h"
#include "transcode/codec.h"

#include <string.h>

#define DECODE_BUFFER_BYTES (256u << 10)

/* ---- first bytes that were read already, then the rest ----------------------------------------------------------- */

struct prefixed {
    struct source base;
    struct source *inner;
    unsigned char head[CODEC_SNIFF_BYTES];
    size_t len, pos;
};

static const struct source_ops prefixed_ops;

static struct prefixed *prefixed_of(struct source *s)
{
    REQUIRE(s->ops == &prefixed_ops);
    return (struct prefixed *)s;
}

static int prefixed_read(struct source *s, void *out, size_t cap, size_t *out_len, struct err *err)
{
    struct prefixed *p = prefixed_of(s);

    if (p->pos == p->len)
        return source_read(p->inner, out, cap, out_len, err);
    *out_len = p->len - p->pos < cap ? p->len - p->pos : cap;
    memcpy(out, p->head + p->pos, *out_len);
    p->pos += *out_len;
    return STEP_MORE;
}

static void prefixed_waker(struct source *s, source_wake_fn *fn, void *arg)
{
    source_set_waker(prefixed_of(s)->inner, fn, arg);
}

static void prefixed_free(struct source *s)
{
    struct prefixed *p = prefixed_of(s);
    source_free(p->inner);
    p->base.magic = 0;
    free(p);
}

static const struct source_ops prefixed_ops = {"prefixed", prefixed_read, prefixed_waker, prefixed_free};

/* ---- the decoding source ------------------------------------------------------------------------------------------ */

struct decoded {
    struct source base;
    struct prefixed *head; /* until the codec is known */
    struct source *chain;  /* afterwards */
    struct decode_limits limits;
    source_wake_fn *wake;
    void *wake_arg;
};

static const struct source_ops decoded_ops;

static struct decoded *decoded_of(struct source *s)
{
    REQUIRE(s->ops == &decoded_ops);
    return (struct decoded *)s;
}

/* Reads until the codec shows. STEP_DONE once it is known. */
static int sniff(struct decoded *d, struct err *err)
{
    struct prefixed *p = d->head;

    while (p->len < sizeof(p->head)) {
        size_t got = 0;
        int rc = source_read(p->inner, p->head + p->len, sizeof(p->head) - p->len, &got, err);
        p->len += got;
        if (rc < 0 || rc == STEP_WAIT)
            return rc;
        if (rc == STEP_EOF)
            break;
    }
    struct filter *decoder;
    TRY(codec_decoder_new(codec_sniff(p->head, p->len), &d->limits, &decoder, err));
    struct source *inner = &p->base;
    d->head = NULL;
    TRY(source_filtered_new(&inner, &decoder, DECODE_BUFFER_BYTES, &d->chain, err));
    source_set_waker(d->chain, d->wake, d->wake_arg); /* it gives way by it, too */
    return STEP_DONE;
}

static int decoded_read(struct source *s, void *out, size_t cap, size_t *out_len, struct err *err)
{
    struct decoded *d = decoded_of(s);

    if (!d->chain) {
        int rc = sniff(d, err);
        if (rc != STEP_DONE)
            return rc;
    }
    return source_read(d->chain, out, cap, out_len, err);
}

static void decoded_waker(struct source *s, source_wake_fn *fn, void *arg)
{
    struct decoded *d = decoded_of(s);
    d->wake = fn;
    d->wake_arg = arg;
    source_set_waker(d->chain ? d->chain : &d->head->base, fn, arg);
}

static void decoded_free(struct source *s)
{
    struct decoded *d = decoded_of(s);
    source_free(d->chain);
    if (d->head)
        source_free(&d->head->base);
    d->base.magic = 0;
    free(d);
}

static const struct source_ops decoded_ops = {"decoded", decoded_read, decoded_waker, decoded_free};

int source_decoded_new(struct source **inner, uint64_t max_out_bytes, uint32_t max_ratio, struct source **out,
                       struct err *err)
{
    CLEANUP(source_cleanup) struct source *in = steal(inner);
    CLEANUP(free_ptr) struct decoded *d = calloc(1, sizeof(*d));
    CLEANUP(free_ptr) struct prefixed *p = calloc(1, sizeof(*p));

    if (!d || !p)
        return err_nomem(err, sizeof(*d) + sizeof(*p));
    p->base = (struct source){SOURCE_MAGIC, &prefixed_ops};
    p->inner = steal(&in);
    d->base = (struct source){SOURCE_MAGIC, &decoded_ops};
    d->head = steal(&p);
    d->limits = (struct decode_limits){.max_out_bytes = max_out_bytes, .max_ratio = max_ratio};
    *out = &d->base;
    d = NULL;
    return 0;
}

/* ---- what fits in memory ------------------------------------------------------------------------------------------ */

/* One step into out's spare room, of which there is always a byte: the decoder knows the limit, out's is one more. */
static int decode_some(struct filter *decoder, struct stream_in *in, struct buf *out, struct err *err)
{
    size_t left = out->limit_bytes - out->len;
    size_t room = left < DECODE_BUFFER_BYTES ? left : DECODE_BUFFER_BYTES;

    TRY(buf_reserve(out, room, err));
    struct stream_out to = {.ptr = (uint8_t *)out->data + out->len, .len = room};
    int rc = filter_step(decoder, in, true, &to, err);
    out->len += to.pos;
    out->data[out->len] = '\0';
    if (rc == STEP_WAIT && to.pos == 0) /* with all the input and some room there is nothing to wait for */
        return err_set(err, ERR_BUG, "a decoder waits for nothing");
    return rc;
}

int decode_whole(const struct buf *in, size_t limit_bytes, struct buf *out, struct err *err)
{
    CLEANUP(filter_cleanup) struct filter *decoder = NULL;
    struct decode_limits limits = {.max_out_bytes = limit_bytes};
    enum codec codec = in->len > 0 ? codec_sniff(in->data, in->len) : CODEC_NONE;
    int rc = STEP_MORE;

    REQUIRE(limit_bytes < SIZE_MAX);
    buf_init(out, limit_bytes + 1);
    if (codec == CODEC_NONE)
        return err_set(err, ERR_FORMAT, "neither gzip nor zstd");
    TRY(codec_decoder_new(codec, &limits, &decoder, err));
    struct stream_in from = {.ptr = (const uint8_t *)in->data, .len = in->len};
    while (rc == STEP_MORE || rc == STEP_WAIT)
        rc = decode_some(decoder, &from, out, err);
    out->limit_bytes = limit_bytes;
    if (rc < 0)
        buf_release(out);
    return rc < 0 ? rc : 0;
}
