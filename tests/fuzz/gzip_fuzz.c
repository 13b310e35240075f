/* links: transcode */
/* SPDX-License-Identifier: Apache-2.0
 * Both gzip libraries on the same bytes: both succeed with the same output, or both fail. One exception, which no
 * caller can mend: ISA-L takes incomplete sets of code lengths (transcode/inflate_isal.c).
 *
 * Byte 0: bit 0 ignores the trailers, else no mutation would get past a CRC; the rest seeds how input and room are cut.
 */
#include "transcode/codec_internal.h"

#define OUT_MAX (1u << 20)

struct result {
    int rc;
    struct err err;
    size_t len;
    uint8_t out[OUT_MAX];
};

static size_t next_size(uint32_t *seed)
{
    static const size_t sizes[] = {1, 2, 3, 7, 13, 100, 1000, OUT_MAX};

    *seed = *seed * 1664525u + 1013904223u;
    return sizes[*seed >> 29];
}

static void decode(enum gzip_backend b, bool ignore_trailer, uint32_t seed, const uint8_t *data, size_t size,
                   struct result *r)
{
    const struct decode_limits limits = {.max_out_bytes = OUT_MAX, .max_ratio = 2000};
    bool small = seed != 0;
    struct filter *f;
    size_t off = 0;

    r->len = 0;
    err_clear(&r->err);
    r->rc = gzip_decoder_new(b, &limits, &f, &r->err);
    REQUIRE(r->rc == 0);
    if (ignore_trailer)
        gzip_decoder_ignore_trailer(f);
    do {
        size_t n = small ? next_size(&seed) : size, room = small ? next_size(&seed) : OUT_MAX;
        struct stream_in in = {.ptr = data + off, .len = n < size - off ? n : size - off};
        struct stream_out out = {.ptr = r->out + r->len, .len = room < OUT_MAX - r->len ? room : OUT_MAX - r->len};

        if (out.len == 0) { /* one byte more than allowed, to meet the limit */
            static uint8_t spill;
            out = (struct stream_out){.ptr = &spill, .len = 1};
            r->rc = filter_step(f, &in, off + in.len == size, &out, &r->err);
            REQUIRE(out.pos == 0);
        } else {
            r->rc = filter_step(f, &in, off + in.len == size, &out, &r->err);
            r->len += out.pos;
        }
        REQUIRE(r->rc != STEP_MORE || in.pos > 0 || out.pos > 0);
        off += in.pos;
    } while (r->rc > 0 && r->rc != STEP_EOF);
    filter_free(f);
}

static bool zlib_alone_refuses_code_set(const struct result *zlib, const struct result *isal)
{
    return isal->rc >= 0 && zlib->rc < 0 &&
           (strstr(zlib->err.msg, "invalid code lengths set") != NULL ||
            strstr(zlib->err.msg, "invalid literal/lengths set") != NULL ||
            strstr(zlib->err.msg, "invalid distances set") != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct result r[2];

    if (size < 1)
        return 0;
    decode(GZIP_ZLIB, data[0] & 1, data[0] >> 1, data + 1, size - 1, &r[0]);
    if (!gzip_backend_built(GZIP_ISAL))
        return 0;
    decode(GZIP_ISAL, data[0] & 1, data[0] >> 1, data + 1, size - 1, &r[1]);

    if (zlib_alone_refuses_code_set(&r[0], &r[1]))
        return 0;
    if ((r[0].rc < 0) != (r[1].rc < 0)) {
        fprintf(stderr, "zlib: %d %s (%zu bytes)\nISA-L: %d %s (%zu bytes)\n", r[0].rc, r[0].err.msg, r[0].len, r[1].rc,
                r[1].err.msg, r[1].len);
        abort();
    }
    REQUIRE(r[0].rc < 0 || (r[0].len == r[1].len && memcmp(r[0].out, r[1].out, r[0].len) == 0));
    return 0;
}
