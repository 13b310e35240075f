/* SPDX-License-Identifier: Apache-2.0
 * transcode/frame.c - one chunk <-> one zstd frame.
 *
 * Every frame states its content size, so a decoder can size its buffer and a lie shows before any work is done. A raw
 * frame is made by us alone: its bytes follow from the content and nothing else, so reading one back is a comparison
 * of headers and a copy, and its digest does not hang on a libzstd version.
 */
#define XXH_INLINE_ALL
#include "transcode/zstd_internal.h"

#include <xxhash.h>
#include <zstd_errors.h>

#define RAW_ENCODER_VERSION 1
#define BLOCK_HEADER_BYTES 3
/* A raw frame's window is its content, and readers need no more than 8 MiB of it (RFC 9659). */
#define FRAME_CONTENT_MAX ((size_t)1 << ZSTD_WINDOW_LOG_OURS)

struct frame_ctx {
    ZSTD_CCtx *cctx;
    ZSTD_DCtx *dctx;
};

int frame_ctx_new(struct frame_ctx **out, struct err *err)
{
    CLEANUP(frame_ctx_cleanup) struct frame_ctx *ctx = calloc(1, sizeof *ctx);

    if (ctx == NULL)
        return err_nomem(err, sizeof *ctx);
    ctx->cctx = ZSTD_createCCtx();
    ctx->dctx = ZSTD_createDCtx();
    if (ctx->cctx == NULL || ctx->dctx == NULL)
        return err_set(err, ERR_NOMEM, "frame: no memory for a zstd context");
    *out = steal(&ctx);
    return 0;
}

void frame_ctx_free(struct frame_ctx *ctx)
{
    if (ctx == NULL)
        return;
    ZSTD_freeCCtx(ctx->cctx);
    ZSTD_freeDCtx(ctx->dctx);
    free(ctx);
}

void frame_ctx_cleanup(struct frame_ctx **ctx)
{
    frame_ctx_free(*ctx);
    *ctx = NULL;
}

/* ---- raw frames ---------------------------------------------------------------------------------------------------- */

/* An empty chunk has one block too, the empty last one. */
static size_t block_count(size_t len)
{
    return len == 0 ? 1 : (len + ZSTD_BLOCK_BYTES - 1) / ZSTD_BLOCK_BYTES;
}

size_t frame_bound(size_t len)
{
    return len + ZSTD_HEADER_MAX_BYTES + BLOCK_HEADER_BYTES * block_count(len);
}

static size_t put_le(uint8_t *p, uint32_t v, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)(v >> (8 * i));
    return bytes;
}

/* Magic, descriptor (single segment, no checksum, no dictionary), content size. len <= FRAME_CONTENT_MAX. */
static size_t put_raw_header(uint8_t *p, size_t len)
{
    size_t pos = put_le(p, ZSTD_MAGIC, 4);

    if (len < 256) {
        p[pos++] = 0x20;
        return pos + put_le(p + pos, (uint32_t)len, 1);
    }
    if (len < 65536 + 256) {
        p[pos++] = 0x60;
        return pos + put_le(p + pos, (uint32_t)len - 256, 2);
    }
    p[pos++] = 0xa0;
    return pos + put_le(p + pos, (uint32_t)len, 4);
}

static size_t put_block_header(uint8_t *p, size_t len, bool last)
{
    return put_le(p, (uint32_t)len << 3 | (last ? 1 : 0), BLOCK_HEADER_BYTES); /* block type 0: raw */
}

static size_t raw_frame_bytes(size_t len)
{
    uint8_t head[ZSTD_HEADER_MAX_BYTES];

    return put_raw_header(head, len) + BLOCK_HEADER_BYTES * block_count(len) + len;
}

static void raw_encode(const uint8_t *data, size_t len, uint8_t *out)
{
    size_t pos = put_raw_header(out, len);
    size_t off = 0;

    do {
        size_t n = len - off < ZSTD_BLOCK_BYTES ? len - off : ZSTD_BLOCK_BYTES;

        pos += put_block_header(out + pos, n, off + n == len);
        if (n > 0) /* data may be NULL then */
            memcpy(out + pos, data + off, n);
        pos += n;
        off += n;
    } while (off < len);
}

static int raw_decode(const uint8_t *frame, size_t frame_len, uint8_t *out, size_t len, struct err *err)
{
    uint8_t want[ZSTD_HEADER_MAX_BYTES];
    size_t pos = put_raw_header(want, len);
    size_t off = 0;

    if (frame_len != raw_frame_bytes(len) || memcmp(frame, want, pos) != 0)
        return err_set(err, ERR_CORRUPT, "raw frame: header or length does not fit %zu bytes", len);
    do {
        size_t n = len - off < ZSTD_BLOCK_BYTES ? len - off : ZSTD_BLOCK_BYTES;

        put_block_header(want, n, off + n == len);
        if (memcmp(frame + pos, want, BLOCK_HEADER_BYTES) != 0)
            return err_set(err, ERR_CORRUPT, "raw frame: bad block header at %zu", pos);
        pos += BLOCK_HEADER_BYTES;
        if (n > 0)
            memcpy(out + off, frame + pos, n);
        pos += n;
        off += n;
    } while (off < len);
    return 0;
}

/* ---- both kinds ---------------------------------------------------------------------------------------------------- */

int frame_encode(struct frame_ctx *ctx, int level, const void *data, size_t len, void *out, size_t cap, size_t *out_len,
                 struct frame_info *out_info, struct err *err)
{
    size_t zstd_len;

    if (len > FRAME_CONTENT_MAX)
        return err_set(err, ERR_LIMIT, "frame: %zu bytes are more than one frame takes", len);
    REQUIRE(cap >= frame_bound(len));
    TRY(zstd_set_params(ctx->cctx, level, err));
    /* Not cap: the room decides how libzstd writes its last block, and the result must not depend on the caller. */
    zstd_len = ZSTD_compress2(ctx->cctx, out, frame_bound(len), data, len);
    if (ZSTD_isError(zstd_len) && ZSTD_getErrorCode(zstd_len) != ZSTD_error_dstSize_tooSmall)
        return zstd_err_set(err, zstd_len, "frame");

    size_t raw_len = raw_frame_bytes(len);
    if (!ZSTD_isError(zstd_len) && zstd_len < raw_len) {
        *out_len = zstd_len;
        *out_info = (struct frame_info){.kind = FRAME_ZSTD, .level = level, .encoder = ZSTD_versionNumber()};
        return 0;
    }
    raw_encode(data, len, out);
    *out_len = raw_len;
    *out_info = (struct frame_info){.kind = FRAME_ZSTD_RAW, .level = 0, .encoder = RAW_ENCODER_VERSION};
    return 0;
}

static int zstd_decode(struct frame_ctx *ctx, const uint8_t *frame, size_t frame_len, void *out, size_t len,
                       struct err *err)
{
    struct zstd_header h;
    struct err bad_header = ERR_INIT;
    size_t rc;

    /* What is not a frame at all is damage here, since the caller knows that it stored one. */
    if (zstd_header_parse(frame, frame_len, &h, &bad_header) != 0 || h.skippable || h.dict_id != 0)
        return err_set(err, ERR_CORRUPT, "frame: bad header");
    if (!h.has_content_bytes || h.content_bytes != len)
        return err_set(err, ERR_CORRUPT, "frame: its content size is not %zu", len);
    /* ZSTD_decompressDCtx() would take several frames in a row. */
    if (ZSTD_findFrameCompressedSize(frame, frame_len) != frame_len)
        return err_set(err, ERR_CORRUPT, "frame: bytes are missing or left over");
    rc = ZSTD_decompressDCtx(ctx->dctx, out, len, frame, frame_len);
    if (ZSTD_isError(rc))
        return ZSTD_getErrorCode(rc) == ZSTD_error_memory_allocation
                   ? zstd_err_set(err, rc, "frame")
                   : err_set(err, ERR_CORRUPT, "frame: %s", ZSTD_getErrorName(rc));
    if (rc != len)
        return err_set(err, ERR_CORRUPT, "frame: %zu bytes instead of %zu", rc, len);
    return 0;
}

int frame_decode(struct frame_ctx *ctx, enum frame_kind kind, const void *frame, size_t frame_len, void *out,
                 size_t want_len, struct err *err)
{
    /* Bounds the header arithmetic; a catalog that asks for more is damaged. */
    if (want_len > FRAME_CONTENT_MAX)
        return err_set(err, ERR_CORRUPT, "frame: %zu bytes are more than one frame holds", want_len);
    switch (kind) {
    case FRAME_ZSTD:
        return zstd_decode(ctx, frame, frame_len, out, want_len, err);
    case FRAME_ZSTD_RAW:
        return raw_decode(frame, frame_len, out, want_len, err);
    case FRAME_PLANES:
        break;
    }
    return err_set(err, ERR_UNSUPPORTED, "frame kind %d is not one that this version reads", (int)kind);
}

uint64_t sum64(const void *data, size_t len)
{
    return XXH3_64bits(data, len);
}
