/* links: transcode */
/* SPDX-License-Identifier: Apache-2.0
 * Chunk frames. Byte 0: bit 0 the kind for decoding, bits 1 to 3 the level. Bytes 1 and 2: the length that is wanted.
 * The rest is read as a frame, then encoded as content and read back, whole and with one byte changed.
 */
#include "transcode/codec.h"

#include <zstd.h>

#define MAX (1u << 20)

static struct frame_ctx *ctx;
static uint8_t frame[MAX + 1024], plain[MAX], other[MAX];

static void read_arbitrary(enum frame_kind kind, const uint8_t *data, size_t size, size_t want_len)
{
    struct err err = ERR_INIT;
    int rc = frame_decode(ctx, kind, data, size, plain, want_len, &err);

    REQUIRE(rc == 0 || rc == ERR_CORRUPT);
    if (rc == 0) { /* then it is a frame to everyone else too */
        REQUIRE(ZSTD_decompress(other, sizeof other, data, size) == want_len);
        REQUIRE(memcmp(plain, other, want_len) == 0);
    }
}

static void round_trip(int level, const uint8_t *data, size_t size)
{
    struct err err = ERR_INIT;
    struct frame_info info;
    size_t n;

    REQUIRE(frame_encode(ctx, level, data, size, frame, sizeof frame, &n, &info, &err) == 0);
    REQUIRE(n <= frame_bound(size) && ZSTD_findFrameCompressedSize(frame, n) == n);
    memset(plain, 0xa5, size);
    REQUIRE(frame_decode(ctx, info.kind, frame, n, plain, size, &err) == 0);
    REQUIRE(memcmp(plain, data, size) == 0);
    if (size > 2) {
        size_t pos = (data[0] | (size_t)data[1] << 8) % n;
        int rc;

        frame[pos] ^= (uint8_t)(data[2] | 1);
        rc = frame_decode(ctx, info.kind, frame, n, plain, size, &err);
        REQUIRE(rc == 0 || rc == ERR_CORRUPT); /* without a checksum, content may change unseen */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err = ERR_INIT;

    if (ctx == NULL)
        REQUIRE(frame_ctx_new(&ctx, &err) == 0);
    if (size < 3 || size > MAX)
        return 0;
    read_arbitrary(data[0] & 1 ? FRAME_ZSTD : FRAME_ZSTD_RAW, data + 3, size - 3, data[1] | (size_t)data[2] << 8);
    round_trip(1 + (data[0] >> 1 & 7), data + 3, size - 3);
    return 0;
}
