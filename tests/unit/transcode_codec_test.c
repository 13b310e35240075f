/* SPDX-License-Identifier: Apache-2.0
 * transcode/codec.c, sniff.c, identity.c, coder.c: names, magic, the copy, the limits that all codecs share.
 */
#include "transcode/codec_internal.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/unit/transcode_util.h"

static void test_names(void **state UNUSED)
{
    assert_string_equal(codec_name(CODEC_NONE), "none");
    assert_string_equal(codec_name(CODEC_GZIP), "gzip");
    assert_string_equal(codec_name(CODEC_ZSTD), "zstd");
}

static void test_sniff(void **state UNUSED)
{
    static const struct {
        const char *bytes;
        size_t len;
        enum codec want;
    } cases[] = {
        {"", 0, CODEC_NONE},
        {"\x1f", 1, CODEC_NONE},
        {"\x1f\x8b", 2, CODEC_NONE},
        {"\x1f\x8b\x08", 3, CODEC_GZIP},
        {"\x1f\x8b\x08\x00", 4, CODEC_GZIP},
        {"\x1f\x8b\x07\x00", 4, CODEC_NONE},
        {"\x28\xb5\x2f\xfd", 4, CODEC_ZSTD},
        {"\x28\xb5\x2f", 3, CODEC_NONE},
        {"\x28\xb5\x2f\xfc", 4, CODEC_NONE},
        {"\x50\x2a\x4d\x18", 4, CODEC_ZSTD},
        {"\x5f\x2a\x4d\x18", 4, CODEC_ZSTD},
        {"\x60\x2a\x4d\x18", 4, CODEC_NONE},
        {"\x50\x2a\x4d", 3, CODEC_NONE},
        {"BZh9", 4, CODEC_NONE},
        {"etc/passwd", 10, CODEC_NONE},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        assert_int_equal(codec_sniff(cases[i].bytes, cases[i].len), cases[i].want);
}

static void test_gzip_choice(void **state UNUSED)
{
    assert_int_equal(setenv("RECASK_GZIP", "zlib", 1), 0);
    assert_false(codec_gzip_is_isal());
    assert_int_equal(unsetenv("RECASK_GZIP"), 0);
    if (!gzip_backend_built(GZIP_ISAL))
        assert_false(codec_gzip_is_isal());
}

/* Through the public functions: every codec, every feed, encoded and decoded. */
static void test_round_trips(void **state UNUSED)
{
    static const size_t sizes[] = {0, 1, 100, 4000, 70001, 300000};
    const struct decode_limits limits = {.max_out_bytes = 1 << 20};
    uint8_t *data = malloc(300000);
    struct err err = ERR_INIT;

    assert_non_null(data);
    fill_text(data, 300000, 1);
    for (unsigned i = 0; i < 3 * ARRAY_LEN(feeds) * ARRAY_LEN(sizes); i++) {
        enum codec c = (enum codec)(i % 3);
        const struct feed *fd = &feeds[i / 3 % ARRAY_LEN(feeds)];
        size_t len = sizes[i / 3 / ARRAY_LEN(feeds)];
        CLEANUP(bytes_release) struct bytes coded = {.p = NULL}, plain = {.p = NULL};
        struct filter *f;

        if (!feed_suits(fd, len))
            continue;
        assert_int_equal(codec_encoder_new(c, CODEC_LEVEL_FAST, &f, &err), 0);
        assert_int_equal(feed_all(f, data, len, fd, &coded, &err), 0);
        if (c == CODEC_NONE)
            assert_int_equal(coded.len, len);
        else
            assert_int_equal(codec_sniff(coded.p, coded.len), c);
        assert_int_equal(codec_decoder_new(c, &limits, &f, &err), 0);
        assert_int_equal(feed_all(f, coded.p, coded.len, fd, &plain, &err), 0);
        assert_int_equal(plain.len, len);
        if (len > 0)
            assert_memory_equal(plain.p, data, len);
    }
    free(data);
}

/* Exactly the limit passes; one byte less and nothing of the step that breaks it comes out. */
static void test_output_limit(void **state UNUSED)
{
    static uint8_t data[3000];
    struct err err = ERR_INIT;

    fill_text(data, sizeof data, 2);
    for (unsigned i = 0; i < 3; i++) {
        struct decode_limits limits = {.max_out_bytes = sizeof data};
        CLEANUP(bytes_release) struct bytes coded = {.p = NULL}, plain = {.p = NULL}, cut = {.p = NULL};
        struct filter *f;

        assert_int_equal(codec_encoder_new((enum codec)i, 1, &f, &err), 0);
        assert_int_equal(feed_all(f, data, sizeof data, &feeds[0], &coded, &err), 0);
        assert_int_equal(codec_decoder_new((enum codec)i, &limits, &f, &err), 0);
        assert_int_equal(feed_all(f, coded.p, coded.len, &feeds[0], &plain, &err), 0);
        limits.max_out_bytes--;
        assert_int_equal(codec_decoder_new((enum codec)i, &limits, &f, &err), 0);
        assert_int_equal(feed_all(f, coded.p, coded.len, &feeds[0], &cut, &err), ERR_LIMIT);
        assert_int_equal(cut.len, 0);
        err_clear(&err);
    }
}

/* A bomb: the same zeros under three ratios. */
static void test_ratio_limit(void **state UNUSED)
{
    static const struct {
        uint32_t ratio;
        size_t mib;
        int want;
    } cases[] = {{0, 80, 0}, {200000, 80, 0}, {100, 80, ERR_LIMIT}, {100, 60, 0}};
    uint8_t *zeros = calloc(1, 80 << 20);
    struct err err = ERR_INIT;

    assert_non_null(zeros);
    for (unsigned i = 0; i < 2 * ARRAY_LEN(cases); i++) {
        enum codec c = i % 2 ? CODEC_GZIP : CODEC_ZSTD;
        const struct decode_limits limits = {.max_out_bytes = UINT64_MAX, .max_ratio = cases[i / 2].ratio};
        CLEANUP(bytes_release) struct bytes coded = {.p = NULL}, plain = {.p = NULL};
        struct filter *f;

        assert_int_equal(codec_encoder_new(c, 1, &f, &err), 0);
        assert_int_equal(feed_all(f, zeros, cases[i / 2].mib << 20, &feeds[0], &coded, &err), 0);
        assert_int_equal(codec_decoder_new(c, &limits, &f, &err), 0);
        assert_int_equal(feed_all(f, coded.p, coded.len, &feeds[0], &plain, &err), cases[i / 2].want);
        err_clear(&err);
    }
    free(zeros);
}

/* One step stays small, whatever the buffers: 16 MiB of room, and 16 MiB of input. */
static void test_step_is_bounded(void **state UNUSED)
{
    enum { BIG = 16 << 20 };
    const struct decode_limits limits = {.max_out_bytes = UINT64_MAX};
    uint8_t *data = calloc(1, BIG), *room = malloc(BIG);
    struct err err = ERR_INIT;

    assert_non_null(data);
    assert_non_null(room);
    for (unsigned i = 0; i < 3; i++) {
        CLEANUP(bytes_release) struct bytes coded = {.p = NULL};
        CLEANUP(filter_cleanup) struct filter *enc = NULL, *dec = NULL;
        struct stream_in in = {.ptr = data, .len = BIG};
        struct stream_out out = {.ptr = room, .len = BIG};
        struct filter *f;

        assert_int_equal(codec_encoder_new((enum codec)i, 1, &enc, &err), 0);
        assert_int_equal(filter_step(enc, &in, true, &out, &err), STEP_MORE);
        assert_true(in.pos > 0 && in.pos <= DECODE_STEP_BYTES);

        assert_int_equal(codec_encoder_new((enum codec)i, 1, &f, &err), 0);
        assert_int_equal(feed_all(f, data, BIG, &feeds[0], &coded, &err), 0);
        in = (struct stream_in){.ptr = coded.p, .len = coded.len};
        out.pos = 0;
        assert_int_equal(codec_decoder_new((enum codec)i, &limits, &dec, &err), 0);
        assert_int_equal(filter_step(dec, &in, true, &out, &err), STEP_MORE);
        assert_true(out.pos > 0 && out.pos <= DECODE_STEP_BYTES);
    }
    free(data);
    free(room);
}

/* Neither input nor room: every codec says so, and goes on afterwards. */
static void test_waits(void **state UNUSED)
{
    const struct decode_limits limits = {.max_out_bytes = UINT64_MAX};
    struct err err = ERR_INIT;

    for (unsigned i = 0; i < 6; i++) {
        CLEANUP(filter_cleanup) struct filter *f = NULL;
        struct stream_in in = {.ptr = NULL};
        struct stream_out out = {.ptr = NULL};
        uint8_t room[64];

        if (i < 3)
            assert_int_equal(codec_decoder_new((enum codec)i, &limits, &f, &err), 0);
        else
            assert_int_equal(codec_encoder_new((enum codec)(i - 3), 1, &f, &err), 0);
        for (unsigned n = 0; n < 100; n++)
            assert_int_equal(filter_step(f, &in, false, &out, &err), STEP_WAIT);
        out = (struct stream_out){.ptr = room, .len = sizeof room};
        while (filter_step(f, &in, false, &out, &err) == STEP_MORE) /* zlib writes its header first */
            assert_true(out.pos <= 10);
        for (unsigned n = 0; n < 100; n++)
            assert_int_equal(filter_step(f, &in, false, &out, &err), STEP_WAIT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),           cmocka_unit_test(test_sniff),        cmocka_unit_test(test_gzip_choice),
        cmocka_unit_test(test_round_trips),     cmocka_unit_test(test_output_limit), cmocka_unit_test(test_ratio_limit),
        cmocka_unit_test(test_step_is_bounded), cmocka_unit_test(test_waits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
