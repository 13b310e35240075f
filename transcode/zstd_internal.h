/* SPDX-License-Identifier: Apache-2.0
 * transcode/zstd_internal.h - the zstd frame header (RFC 8878, section 3.1.1.1), which libzstd's stable API does not
 * show; and the parameters that every frame of ours is made with.
 *
 * libzstd checks the window only when it streams: a whole frame in one buffer passes it. Reading the header here makes
 * the answer independent of how the bytes arrive.
 */
#pragma once

#include "transcode/codec.h"

#include <zstd.h>

#define ZSTD_MAGIC 0xfd2fb528u
#define ZSTD_HEADER_MAX_BYTES 18 /* magic, descriptor, window, 4 of dictionary ID, 8 of content size */
#define ZSTD_SKIPPABLE_HEADER_BYTES 8
#define ZSTD_BLOCK_BYTES (128u << 10)
#define ZSTD_WINDOW_LOG_OURS 23 /* 8 MiB, RFC 9659 */

struct zstd_header {
    size_t header_bytes; /* with the magic */
    bool skippable;
    uint32_t skip_bytes; /* content of a skippable frame */
    uint64_t window_bytes;
    bool has_content_bytes;
    uint64_t content_bytes;
    uint32_t dict_id; /* 0: none */
    bool has_checksum;
};

/* Returns 0 and fills *h, or > 0: the number of bytes wanted in all, more than len. ERR_FORMAT: no zstd frame. */
MUST_CHECK int zstd_header_parse(const uint8_t *b, size_t len, struct zstd_header *h, struct err *err);

/* Level, clamped; window <= 8 MiB; no checksum, no dictionary ID, one thread. */
MUST_CHECK int zstd_set_params(ZSTD_CCtx *cctx, int level, struct err *err);

/* For err: the code that fits a libzstd error, with its text. */
int zstd_err_set(struct err *err, size_t zstd_rc, const char *what);
