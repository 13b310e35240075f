/* SPDX-License-Identifier: Apache-2.0
 * transcode/zstd_decode.c - zstd streams (RFC 8878): frames in a row, skippable ones among them.
 *
 * libzstd gets the data frames only, each after its header has been read here (zstd_internal.h says why); legacy
 * formats and skippable frames never reach it.
 */
#include "transcode/codec_internal.h"
#include "transcode/zstd_internal.h"

enum zstd_state { AT_HEADER, AT_SKIPPABLE, AT_FRAME };

struct zstd_decoder {
    struct coder coder;
    ZSTD_DCtx *dctx;
    enum zstd_state state;
    bool any_frame;
    uint32_t skip_left;
    struct zstd_header header; /* of the present frame */
    uint64_t frame_bytes;      /* its output so far */
    /* A header is collected here, then given to libzstd. */
    uint8_t head[ZSTD_HEADER_MAX_BYTES];
    size_t head_len;
    size_t head_pos;
    bool may_hold_output; /* the last call filled the room that it had */
    bool stalled;         /* the last call could do nothing without room */
};

static int accept_header(struct zstd_decoder *d, const struct zstd_header *h, struct err *err)
{
    d->any_frame = true;
    if (h->skippable) {
        d->state = AT_SKIPPABLE;
        d->skip_left = h->skip_bytes;
        return 0;
    }
    if (h->dict_id != 0)
        return err_set(err, ERR_UNSUPPORTED, "zstd: a frame needs dictionary %u", (unsigned)h->dict_id);
    if (h->window_bytes > (uint64_t)1 << CODEC_WINDOW_LOG_MAX)
        return err_set(err, ERR_LIMIT, "zstd: a frame needs a window of %llu bytes, the limit is 2^%d",
                       (unsigned long long)h->window_bytes, CODEC_WINDOW_LOG_MAX);
    d->state = AT_FRAME;
    d->header = *h;
    d->frame_bytes = 0;
    return 0;
}

static int end_frame(struct zstd_decoder *d, struct err *err)
{
    /* libzstd 1.5.4 forgets this check when it streams and the last block is empty; the fuzzer found it. */
    if (d->header.has_content_bytes && d->frame_bytes != d->header.content_bytes)
        return err_set(err, ERR_CORRUPT, "zstd: a frame has %llu bytes and says %llu",
                       (unsigned long long)d->frame_bytes, (unsigned long long)d->header.content_bytes);
    d->state = AT_HEADER;
    d->head_len = d->head_pos = 0;
    d->may_hold_output = false;
    return 0;
}

/* Collects a header and leaves AT_HEADER once it is complete. Always apart from what follows, so that libzstd never
 * sees a whole frame in one call: for that it has another path, which refuses some damage that streaming lets pass (a
 * compressed block of no bytes), and the answer must not depend on how the bytes arrive. */
static int run_header(struct zstd_decoder *d, struct stream_in *in, struct err *err)
{
    struct zstd_header h;
    int wanted;

    for (;;) {
        TRY(wanted = zstd_header_parse(d->head, d->head_len, &h, err));
        if (wanted == 0)
            break;
        if (in->pos == in->len)
            return 0;
        d->head[d->head_len++] = in->ptr[in->pos++];
    }
    TRY(accept_header(d, &h, err));
    d->head_pos = h.skippable ? d->head_len : 0;
    return 0;
}

/* One call to libzstd, for the collected header first. *out_moved: bytes were used or made. */
static int run_frame(struct zstd_decoder *d, struct stream_in *in, struct stream_out *out, bool *out_moved,
                     struct err *err)
{
    bool from_head = d->head_pos < d->head_len;
    ZSTD_inBuffer zin = {.src = in->ptr, .size = in->len, .pos = in->pos};
    ZSTD_outBuffer zout = {.dst = out->ptr, .size = out->len, .pos = out->pos};
    size_t in_before, rc;

    if (from_head)
        zin = (ZSTD_inBuffer){.src = d->head, .size = d->head_len, .pos = d->head_pos};
    if (out->pos < out->len)
        d->stalled = false;
    *out_moved = false;
    /* libzstd calls repeated calls that can do nothing an error. */
    if (d->stalled || (zin.pos == zin.size && !d->may_hold_output))
        return 0;

    in_before = zin.pos;
    rc = ZSTD_decompressStream(d->dctx, &zout, &zin);
    if (ZSTD_isError(rc))
        return zstd_err_set(err, rc, "zstd");
    *out_moved = zin.pos != in_before || zout.pos != out->pos;
    d->may_hold_output = zout.pos == zout.size;
    d->stalled = !*out_moved && zout.pos == zout.size;
    if (from_head)
        d->head_pos = zin.pos;
    else
        in->pos = zin.pos;
    d->frame_bytes += zout.pos - out->pos;
    out->pos = zout.pos;
    return rc == 0 ? end_frame(d, err) : 0;
}

static int zstd_run(struct coder *c, struct stream_in *in, bool last, struct stream_out *out, struct err *err)
{
    struct zstd_decoder *d = (struct zstd_decoder *)c;
    bool moved = true;

    (void)last;
    while (moved) {
        size_t n;

        switch (d->state) {
        case AT_HEADER:
            moved = in->pos < in->len;
            TRY(run_header(d, in, err));
            break;
        case AT_SKIPPABLE:
            n = in->len - in->pos < d->skip_left ? in->len - in->pos : d->skip_left;
            in->pos += n;
            d->skip_left -= (uint32_t)n;
            moved = d->skip_left == 0;
            if (moved) {
                d->state = AT_HEADER;
                d->head_len = d->head_pos = 0;
            }
            break;
        case AT_FRAME:
            TRY(run_frame(d, in, out, &moved, err));
            break;
        }
    }
    return 0;
}

static bool zstd_done(const struct coder *c)
{
    const struct zstd_decoder *d = (const struct zstd_decoder *)c;

    return d->any_frame && d->state == AT_HEADER && d->head_len == 0;
}

static void zstd_release(struct coder *c)
{
    ZSTD_freeDCtx(((struct zstd_decoder *)c)->dctx);
}

static const struct coder_ops zstd_coder = {
    .step_bytes = DECODE_STEP_BYTES,
    .run = zstd_run,
    .done = zstd_done,
    .release = zstd_release,
};

static const struct filter_ops zstd_filter = {.name = "zstd decoder", .step = coder_step, .free = coder_free};

int zstd_decoder_new(const struct decode_limits *limits, struct filter **out, struct err *err)
{
    CLEANUP(free_ptr) struct zstd_decoder *d = calloc(1, sizeof *d);

    if (d == NULL)
        return err_nomem(err, sizeof *d);
    d->dctx = ZSTD_createDCtx();
    if (d->dctx == NULL)
        return err_set(err, ERR_NOMEM, "zstd: no memory for a decoder");
    REQUIRE(!ZSTD_isError(ZSTD_DCtx_setParameter(d->dctx, ZSTD_d_windowLogMax, CODEC_WINDOW_LOG_MAX)));
    coder_init(&d->coder, &zstd_filter, &zstd_coder, limits);
    *out = &steal(&d)->coder.filter;
    return 0;
}
