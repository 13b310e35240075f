/* links: transcode */
/* SPDX-License-Identifier: Apache-2.0
 * The zstd decoder on arbitrary bytes: the answer does not depend on how input and room are cut. Byte 0 seeds the cuts.
 */
#include "transcode/codec_internal.h"

#define OUT_MAX (1u << 20)

struct result {
    int rc;
    size_t len;
    uint8_t out[OUT_MAX];
};

static size_t next_size(uint32_t *seed)
{
    static const size_t sizes[] = {1, 2, 3, 7, 13, 100, 1000, OUT_MAX};

    *seed = *seed * 1664525u + 1013904223u;
    return sizes[*seed >> 29];
}

static void decode(bool cut, uint32_t seed, const uint8_t *data, size_t size, struct result *r)
{
    const struct decode_limits limits = {.max_out_bytes = OUT_MAX};
    struct err err = ERR_INIT;
    struct filter *f;
    size_t off = 0;

    r->len = 0;
    r->rc = zstd_decoder_new(&limits, &f, &err);
    REQUIRE(r->rc == 0);
    do {
        size_t n = cut ? next_size(&seed) : size, room = cut ? next_size(&seed) : OUT_MAX;
        static uint8_t spill[OUT_MAX];
        struct stream_in in = {.ptr = data + off, .len = n < size - off ? n : size - off};
        struct stream_out out = {.ptr = spill, .len = room};

        r->rc = filter_step(f, &in, off + in.len == size, &out, &err);
        REQUIRE(r->rc != STEP_MORE || in.pos > 0 || out.pos > 0);
        REQUIRE(r->len + out.pos <= OUT_MAX);
        memcpy(r->out + r->len, spill, out.pos);
        r->len += out.pos;
        off += in.pos;
    } while (r->rc > 0 && r->rc != STEP_EOF);
    filter_free(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct result r[2];

    if (size < 1)
        return 0;
    decode(false, 0, data + 1, size - 1, &r[0]);
    decode(true, data[0], data + 1, size - 1, &r[1]);
    REQUIRE((r[0].rc < 0) == (r[1].rc < 0));
    REQUIRE(r[0].rc < 0 || (r[0].len == r[1].len && memcmp(r[0].out, r[1].out, r[0].len) == 0));
    return 0;
}
