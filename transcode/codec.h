/* SPDX-License-Identifier: Apache-2.0
 * transcode/codec.h - everything that turns bytes into other bytes: sniffing, gzip, zstd, identity, and chunk frames.
 *
 * Use: codec_sniff() on the first bytes -> codec_decoder_new() / codec_encoder_new() -> filter_step() (base/stream.h).
 *      For chunks at rest: frame_ctx_new() once per thread -> frame_encode(), frame_decode().
 * Threads: a filter or a frame_ctx belongs to one thread at a time.
 * Memory: bounded and independent of the stream's length. zstd windows above CODEC_WINDOW_LOG_MAX are ERR_LIMIT.
 * Knows nothing of sockets, paths, SQL or HTTP.
 */
#pragma once

#include "base/stream.h"

#include <stddef.h>
#include <stdint.h>

enum codec { CODEC_NONE = 0, CODEC_GZIP, CODEC_ZSTD };

#define CODEC_SNIFF_BYTES 4     /* what codec_sniff() wants to see, fewer when the stream is shorter */
#define CODEC_WINDOW_LOG_MAX 27 /* zstd -d's own limit, 128 MiB; what every client can read */

const char *codec_name(enum codec c); /* "none" "gzip" "zstd": also the Content-Encoding tokens for the last two */

/* By magic: RFC 1952 section 2.3.1 (1f 8b 08), RFC 8878 section 3.1.1 (28 b5 2f fd) and its skippable frames
 * (5? 2a 4d 18). Anything else is CODEC_NONE. */
enum codec codec_sniff(const void *data, size_t len);

/* What a decoder may produce before it answers ERR_LIMIT. */
struct decode_limits {
    uint64_t max_out_bytes; /* absolute */
    uint32_t max_ratio;     /* output / input consumed, tested once output passes 64 MiB; 0: no limit */
};

/* A decoder answers, for each codec alike:
 *   several members (gzip) or frames (zstd, skippable ones among them): one stream, their contents in a row
 *   zero bytes after the last gzip member: padding, ignored (tar and tape tools write it); any other trailing
 *     bytes: ERR_FORMAT
 *   an end in the middle of a member or frame, or an empty stream (gzip, zstd): ERR_FORMAT
 *   a checksum or length that does not match, or compressed data that makes no sense: ERR_CORRUPT
 *   too much output: ERR_LIMIT, and none of the output of that step
 *   a zstd frame that needs a dictionary: ERR_UNSUPPORTED
 * limits is borrowed and never NULL.
 */
MUST_CHECK int codec_decoder_new(enum codec c, const struct decode_limits *limits, struct filter **out,
                                 struct err *err);

enum codec_level {
    CODEC_LEVEL_FAST = 1, /* on the fly: ISA-L level 1 (zlib 1 without it), zstd 1 */
    CODEC_LEVEL_DEFAULT = 3,
};

/* gzip: always exactly one member (some clients stop after the first). zstd: one frame, window at most 8 MiB
 * (RFC 9659). level: the codec's own number, clamped to what it has. */
MUST_CHECK int codec_encoder_new(enum codec c, int level, struct filter **out, struct err *err);

/* True when ISA-L does gzip here (built in, and the CPU has what it wants). RECASK_GZIP=zlib in the environment switches
 * it off: for tests and for comparing. */
bool codec_gzip_is_isal(void);

/* ---- frames: how one chunk lies on disk ------------------------------------------------------------------------ */

/* Stored in the catalog and in packs (store/FORMAT.md): never renumber. */
enum frame_kind {
    FRAME_ZSTD = 1,     /* one zstd frame, with content size, without checksum, window <= 8 MiB */
    FRAME_ZSTD_RAW = 2, /* one zstd frame of raw blocks only: incompressible bytes, decoding is a copy */
    FRAME_PLANES = 3,   /* reserved for byte planes (model weights); not written yet, refused when read */
};

struct frame_info {
    enum frame_kind kind;
    int level;        /* as asked for; 0 for FRAME_ZSTD_RAW */
    uint32_t encoder; /* version of the encoder: libzstd's ZSTD_versionNumber(), or 1 for our own raw writer */
};

struct frame_ctx;

MUST_CHECK int frame_ctx_new(struct frame_ctx **out, struct err *err);
void frame_ctx_free(struct frame_ctx *ctx);
void frame_ctx_cleanup(struct frame_ctx **ctx);

/* The most that frame_encode() writes for len bytes (a raw frame: len + 18 + 3 per 128 KiB, rounded up). */
size_t frame_bound(size_t len);

/* Encodes one chunk: FRAME_ZSTD, or FRAME_ZSTD_RAW when that is not larger. Deterministic for one libzstd version
 * and level. cap >= frame_bound(len). len above 8 MiB: ERR_LIMIT, since a raw frame's window is its content. */
MUST_CHECK int frame_encode(struct frame_ctx *ctx, int level, const void *data, size_t len, void *out, size_t cap,
                            size_t *out_len, struct frame_info *out_info, struct err *err);

/* Decodes one frame to exactly want_len bytes; anything else is ERR_CORRUPT. Reads either zstd kind; any other kind is
 * ERR_UNSUPPORTED. */
MUST_CHECK int frame_decode(struct frame_ctx *ctx, enum frame_kind kind, const void *frame, size_t frame_len, void *out,
                            size_t want_len, struct err *err);

/* XXH3-64 with seed 0, the checksum of everything at rest. */
uint64_t sum64(const void *data, size_t len);
