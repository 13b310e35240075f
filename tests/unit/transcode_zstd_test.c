/* SPDX-License-Identifier: Apache-2.0
 * transcode/zstd_decode.c, zstd_encode.c, zstd_header.c: every rule, in every feed.
 */
#include "transcode/codec_internal.h"
#include "transcode/zstd_internal.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/unit/transcode_util.h"

static const struct decode_limits no_limits = {.max_out_bytes = UINT64_MAX};

static int decode(const struct bytes *in, const struct feed *fd, struct bytes *out)
{
    struct err err = ERR_INIT;
    struct filter *f;

    assert_int_equal(zstd_decoder_new(&no_limits, &f, &err), 0);
    return feed_all(f, in->p, in->len, fd, out, &err);
}

static void expect_data(const struct bytes *in, const void *want, size_t len)
{
    for (unsigned i = 0; i < ARRAY_LEN(feeds); i++) {
        CLEANUP(bytes_release) struct bytes out = {.p = NULL};

        if (!feed_suits(&feeds[i], len))
            continue;
        assert_int_equal(decode(in, &feeds[i], &out), 0);
        assert_int_equal(out.len, len);
        if (len > 0)
            assert_memory_equal(out.p, want, len);
    }
}

static void expect_error(const struct bytes *in, int want)
{
    for (unsigned i = 0; i < ARRAY_LEN(feeds); i++) {
        CLEANUP(bytes_release) struct bytes out = {.p = NULL};

        assert_int_equal(decode(in, &feeds[i], &out), want);
    }
}

static void expect_error_of(const void *data, size_t len, int want)
{
    const struct bytes in = {.p = (uint8_t *)(uintptr_t)data, .len = len};

    expect_error(&in, want);
}

static void add_frame(struct bytes *out, const void *data, size_t len, int level, bool checksum, bool content_size)
{
    size_t cap = ZSTD_compressBound(len), n;
    uint8_t *frame = malloc(cap);
    ZSTD_CCtx *cctx = ZSTD_createCCtx();

    assert_non_null(frame);
    ZSTD_CCtx_setParameter(cctx, ZSTD_c_compressionLevel, level);
    ZSTD_CCtx_setParameter(cctx, ZSTD_c_checksumFlag, checksum);
    ZSTD_CCtx_setParameter(cctx, ZSTD_c_contentSizeFlag, content_size);
    n = ZSTD_compress2(cctx, frame, cap, data, len);
    assert_false(ZSTD_isError(n));
    bytes_add(out, frame, n);
    ZSTD_freeCCtx(cctx);
    free(frame);
}

static void add_skippable(struct bytes *out, uint8_t variant, size_t len)
{
    uint8_t head[8] = {(uint8_t)(0x50 | variant), 0x2a, 0x4d, 0x18, (uint8_t)len, (uint8_t)(len >> 8)};
    static const uint8_t content[1000];

    bytes_add(out, head, sizeof head);
    bytes_add(out, content, len);
}

static void test_single_frames(void **state UNUSED)
{
    static const size_t sizes[] = {0, 1, 255, 256, 1000, 33000, 300000};
    static uint8_t data[3][300000];

    fill_text(data[0], sizeof data[0], 1);
    fill_noise(data[1], sizeof data[1], 2);
    for (unsigned i = 0; i < ARRAY_LEN(sizes) * 3 * 4; i++) {
        size_t len = sizes[i % ARRAY_LEN(sizes)];
        const uint8_t *from = data[i / ARRAY_LEN(sizes) % 3];
        unsigned flags = i / ARRAY_LEN(sizes) / 3;
        CLEANUP(bytes_release) struct bytes in = {.p = NULL};

        add_frame(&in, from, len, 3, flags & 1, flags & 2);
        expect_data(&in, from, len);
    }
}

static void test_many_frames(void **state UNUSED)
{
    CLEANUP(bytes_release) struct bytes in = {.p = NULL}, head = {.p = NULL};

    add_skippable(&head, 0, 0);
    add_skippable(&head, 15, 1000);
    expect_data(&head, "", 0); /* skippable frames alone: a valid stream of nothing */
    add_skippable(&in, 7, 3);
    add_frame(&in, "one ", 4, 3, true, true);
    add_frame(&in, "", 0, 3, false, false);
    add_skippable(&in, 1, 999);
    add_skippable(&in, 2, 0);
    add_frame(&in, "two ", 4, 19, false, false);
    add_frame(&in, "three", 5, -5, true, false);
    expect_data(&in, "one two three", 13);
    add_skippable(&in, 3, 20);
    expect_data(&in, "one two three", 13);
}

static void test_truncation(void **state UNUSED)
{
    CLEANUP(bytes_release) struct bytes in = {.p = NULL};
    static uint8_t text[700];
    size_t ends[3];

    fill_text(text, sizeof text, 3);
    add_frame(&in, text, sizeof text, 3, true, true);
    ends[0] = in.len;
    add_skippable(&in, 0, 9);
    ends[1] = in.len;
    add_frame(&in, text, 50, 3, false, false);
    ends[2] = in.len;
    for (size_t len = 0; len < in.len; len++) {
        struct bytes cut = {.p = in.p, .len = len};

        if (len != ends[0] && len != ends[1] && len != ends[2])
            expect_error(&cut, ERR_FORMAT);
    }
}

static void test_trailing_bytes(void **state UNUSED)
{
    static const char *const tails[] = {"\0\0\0\0\0\0\0\0", "trailing bytes", "\x1f\x8b\x08\0\0\0\0\0"};
    CLEANUP(bytes_release) struct bytes in = {.p = NULL};

    add_frame(&in, "data", 4, 3, false, true);
    for (unsigned i = 0; i < ARRAY_LEN(tails); i++) {
        struct bytes longer = {.p = NULL};

        for (size_t n = 1; n <= 8; n++) {
            bytes_add(&longer, in.p, in.len);
            bytes_add(&longer, tails[i], n);
            expect_error(&longer, ERR_FORMAT);
            bytes_release(&longer);
        }
    }
}

/* Hand-made headers; the answer must not depend on whether the frame comes whole. */
static void test_headers(void **state UNUSED)
{
#define MAGIC "\x28\xb5\x2f\xfd"
#define RAW_X "\x09\0\0x" /* the last block, raw, one byte */
    static const struct {
        const char *bytes;
        size_t len;
        int want;
    } cases[] = {
        {MAGIC "\x00\x88" RAW_X, 10, 0},                       /* window 2^27 */
        {MAGIC "\x00\x89" RAW_X, 10, ERR_LIMIT},               /* 2^27 and an eighth */
        {MAGIC "\x00\x90" RAW_X, 10, ERR_LIMIT},               /* 2^28 */
        {MAGIC "\x00\xff" RAW_X, 10, ERR_LIMIT},               /* the most that can be written */
        {MAGIC "\x40\x90\x00\x00" RAW_X, 12, ERR_LIMIT},       /* with content size */
        {MAGIC "\xe0\0\0\0\x10\0\0\0\0" RAW_X, 17, ERR_LIMIT}, /* one segment of 2^28 */
        {MAGIC "\x20\x01" RAW_X, 10, 0},                       /* one segment of one byte */
        {MAGIC "\x20\x02" RAW_X, 10, ERR_CORRUPT},             /* content size wrong */
        {MAGIC "\x20\x00" RAW_X, 10, ERR_CORRUPT},             /* content size wrong */
        {MAGIC "\x60\0\0\x01\0\0", 10, ERR_CORRUPT},           /* 256 bytes said, the only block is empty */
        {MAGIC "\x40\0\0\0\x01\0\0", 11, ERR_CORRUPT},         /* the same with a window */
        {MAGIC "\x20\x02\x08\0\0x\x01\0\0", 13, ERR_CORRUPT},  /* a byte, then an empty last block */
        {MAGIC "\x20\x01\x08\0\0x\x01\0\0", 13, 0},
        {MAGIC "\x21\x05\x01" RAW_X, 11, ERR_UNSUPPORTED},       /* dictionary 5 */
        {MAGIC "\x23\0\0\0\x01\x01" RAW_X, 14, ERR_UNSUPPORTED}, /* dictionary 2^24 */
        {MAGIC "\x21\x00\x01" RAW_X, 11, 0},                     /* dictionary 0: none */
        {MAGIC "\x28\x01" RAW_X, 10, ERR_FORMAT},                /* reserved bit */
        {MAGIC "\x30\x01" RAW_X, 10, 0},                         /* unused bit */
        {MAGIC "\x24\x01" RAW_X "\0\0\0\0", 14, ERR_CORRUPT},    /* checksum wrong */
        {MAGIC "\x20\x01\x07\0\0", 9, ERR_CORRUPT},              /* block type 3 */
        {MAGIC "\x00\x00\x01\x00\x80"
               "xxxxxxxxx",
         18, ERR_CORRUPT},                                  /* block larger than the window */
        {"\x27\xb5\x2f\xfd\x20\x01" RAW_X, 10, ERR_FORMAT}, /* zstd 0.7 */
        {"\x1e\xb5\x2f\xfd\x20\x01" RAW_X, 10, ERR_FORMAT}, /* zstd 0.1 */
        {"\x37\xa4\x30\xec\x20\x01" RAW_X, 10, ERR_FORMAT}, /* a dictionary */
        {"", 0, ERR_FORMAT},
    };

    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        if (cases[i].want == 0)
            expect_data(&(struct bytes){.p = (uint8_t *)(uintptr_t)cases[i].bytes, .len = cases[i].len}, "x", 1);
        else
            expect_error_of(cases[i].bytes, cases[i].len, cases[i].want);
    }
}

static void test_checksum(void **state UNUSED)
{
    static uint8_t text[5000];

    fill_text(text, sizeof text, 4);
    for (unsigned i = 0; i < 32; i++) {
        CLEANUP(bytes_release) struct bytes in = {.p = NULL};

        add_frame(&in, text, sizeof text, 3, true, true);
        in.p[in.len - 1 - i / 8] ^= (uint8_t)(1u << i % 8);
        expect_error(&in, ERR_CORRUPT);
    }
}

/* A frame that needs the whole 128 MiB: window 2^27, a match from its far end. Memory, so one feed only. */
static void test_large_window(void **state UNUSED)
{
    enum { LEN = (128 << 20) + 100000 };
    CLEANUP(bytes_release) struct bytes out = {.p = NULL};
    uint8_t *data = calloc(1, LEN), *frame = malloc(LEN);
    ZSTD_CCtx *cctx = ZSTD_createCCtx();
    struct bytes in = {.p = frame};

    assert_non_null(data);
    assert_non_null(frame);
    fill_noise(data, 90000, 6);
    memcpy(data + (128 << 20) - 100000, data, 90000);
    ZSTD_CCtx_setParameter(cctx, ZSTD_c_compressionLevel, 1);
    ZSTD_CCtx_setParameter(cctx, ZSTD_c_windowLog, 27);
    ZSTD_CCtx_setParameter(cctx, ZSTD_c_enableLongDistanceMatching, 1);
    in.len = ZSTD_compress2(cctx, frame, LEN, data, LEN);
    ZSTD_freeCCtx(cctx);
    assert_false(ZSTD_isError(in.len));
    assert_int_equal(decode(&in, &feeds[0], &out), 0);
    assert_int_equal(out.len, LEN);
    assert_int_equal(memcmp(out.p, data, LEN), 0);
    free(data);
    free(frame);
}

static void test_damage(void **state UNUSED)
{
    CLEANUP(bytes_release) struct bytes in = {.p = NULL};
    static uint8_t text[3000];
    uint64_t seed = 7;

    fill_text(text, sizeof text, 7);
    add_frame(&in, text, 2000, 3, true, true);
    add_frame(&in, text + 2000, 1000, 3, true, false);
    for (unsigned i = 0; i < 2000; i++) {
        CLEANUP(bytes_release) struct bytes a = {.p = NULL}, b = {.p = NULL};
        size_t pos = test_random(&seed) % in.len;
        uint8_t old = in.p[pos];
        int whole, cut;

        in.p[pos] ^= (uint8_t)(1 + test_random(&seed) % 255);
        whole = decode(&in, &feeds[0], &a);
        cut = decode(&in, &feeds[1 + i % (ARRAY_LEN(feeds) - 1)], &b);
        assert_int_equal(whole == 0, cut == 0);
        in.p[pos] = old;
    }
}

/* Every level: one frame, all of the data, a window that RFC 9659 allows. */
static void test_encoder(void **state UNUSED)
{
    static uint8_t text[200000];

    fill_text(text, sizeof text, 8);
    /* Of the levels whose tables take long to clear only a few. */
    for (int level = -3; level <= 30; level += level < 13 ? 1 : level < 22 ? 3 : 8) {
        CLEANUP(bytes_release) struct bytes out = {.p = NULL};
        const struct feed *fd = &feeds[(unsigned)(level + 3) % ARRAY_LEN(feeds)];
        size_t len = feed_suits(fd, sizeof text) && level < 13 ? sizeof text : 5000;
        struct err err = ERR_INIT;
        struct zstd_header h;
        struct filter *f;

        assert_int_equal(zstd_encoder_new(level, &f, &err), 0);
        assert_int_equal(feed_all(f, text, len, fd, &out, &err), 0);
        assert_int_equal(ZSTD_findFrameCompressedSize(out.p, out.len), out.len);
        assert_int_equal(zstd_header_parse(out.p, out.len, &h, &err), 0);
        assert_true(h.window_bytes <= 8 << 20);
        assert_false(h.has_checksum);
        assert_int_equal(h.dict_id, 0);
        expect_data(&out, text, len);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_single_frames),  cmocka_unit_test(test_many_frames), cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_trailing_bytes), cmocka_unit_test(test_headers),     cmocka_unit_test(test_checksum),
        cmocka_unit_test(test_large_window),   cmocka_unit_test(test_damage),      cmocka_unit_test(test_encoder),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
