/* SPDX-License-Identifier: Apache-2.0
 * transcode/gzip_encode.c: one member that zlib reads, the same for every feed of one library, in constant memory.
 */
#include "transcode/codec_internal.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <malloc.h>
#include <zlib.h>

#include "tests/unit/transcode_util.h"

static void encode(enum gzip_backend b, int level, const void *data, size_t len, const struct feed *fd,
                   struct bytes *out)
{
    struct err err = ERR_INIT;
    struct filter *f;

    assert_int_equal(gzip_encoder_new(b, level, &f, &err), 0);
    assert_int_equal(feed_all(f, data, len, fd, out, &err), 0);
}

/* By zlib's own reader: one member, from the first byte to the last. */
static void expect_one_member(const struct bytes *in, const void *want, size_t len)
{
    uint8_t *plain = malloc(len + 1);
    z_stream z = {.next_in = in->p, .avail_in = (uInt)in->len, .next_out = plain, .avail_out = (uInt)len + 1};

    assert_non_null(plain);
    assert_int_equal(inflateInit2(&z, 15 + 16), Z_OK);
    assert_int_equal(inflate(&z, Z_FINISH), Z_STREAM_END);
    assert_int_equal(z.avail_in, 0);
    assert_int_equal(z.total_out, len);
    assert_memory_equal(plain, want, len);
    inflateEnd(&z);
    free(plain);
}

static void test_one_member(void **state UNUSED)
{
    static const size_t sizes[] = {0, 1, 10, 4000, 65536, 300000};
    static uint8_t data[3][300000];

    fill_text(data[0], sizeof data[0], 1);
    fill_noise(data[1], sizeof data[1], 2);
    for (unsigned i = 0; i < 2 * ARRAY_LEN(sizes) * 3 * ARRAY_LEN(feeds); i++) {
        enum gzip_backend b = (enum gzip_backend)(i % 2);
        size_t len = sizes[i / 2 % ARRAY_LEN(sizes)];
        const uint8_t *from = data[i / 2 / ARRAY_LEN(sizes) % 3];
        const struct feed *fd = &feeds[i / 2 / ARRAY_LEN(sizes) / 3];
        CLEANUP(bytes_release) struct bytes out = {.p = NULL};

        if (!gzip_backend_built(b) || (!feed_suits(fd, len) && from != data[0]))
            continue;
        encode(b, CODEC_LEVEL_FAST, from, len, fd, &out);
        expect_one_member(&out, from, len);
        for (unsigned n = 3; n < 8; n++) /* no flags, no time */
            assert_int_equal(out.p[n], 0);
    }
}

/* Levels outside a library's range are its nearest; a higher one is not much worse. */
static void test_levels(void **state UNUSED)
{
    static uint8_t text[200000];
    size_t before;

    fill_text(text, sizeof text, 3);
    for (unsigned b = 0; b < 2; b++) {
        if (!gzip_backend_built(b))
            continue;
        before = 0;
        for (int level = -7; level <= 25; level += 4) {
            CLEANUP(bytes_release) struct bytes out = {.p = NULL};

            encode(b, level, text, sizeof text, &feeds[0], &out);
            expect_one_member(&out, text, sizeof text);
            assert_true(out.len < sizeof text * 3 / 4);
            if (before > 0)
                assert_true(out.len < before + before / 20);
            before = out.len;
        }
    }
}

static void test_same_bytes_again(void **state UNUSED)
{
    static uint8_t text[300000];

    fill_text(text, sizeof text, 4);
    for (unsigned b = 0; b < 2; b++) {
        CLEANUP(bytes_release) struct bytes one = {.p = NULL}, two = {.p = NULL};

        if (!gzip_backend_built(b))
            continue;
        encode(b, 1, text, sizeof text, &feeds[0], &one);
        encode(b, 1, text, sizeof text, &feeds[0], &two);
        assert_int_equal(one.len, two.len);
        assert_memory_equal(one.p, two.p, one.len);
    }
}

static size_t heap_bytes(void)
{
    struct mallinfo2 m = mallinfo2(); /* all zero under the sanitizers: then the test only runs the code */

    return m.uordblks + m.hblkhd;
}

/* 20 MiB through every codec in both directions: after the first MiB the heap stays as it is. */
static void test_memory_is_constant(void **state UNUSED)
{
    enum { MIB = 1 << 20 };
    static uint8_t text[MIB], coded[2 * MIB], plain[MIB];
    const struct decode_limits limits = {.max_out_bytes = UINT64_MAX};

    fill_text(text, MIB, 5);
    for (unsigned c = 0; c < 3; c++) {
        CLEANUP(filter_cleanup) struct filter *enc = NULL, *dec = NULL;
        struct err err = ERR_INIT;
        size_t early = 0;

        assert_int_equal(codec_encoder_new((enum codec)c, 1, &enc, &err), 0);
        assert_int_equal(codec_decoder_new((enum codec)c, &limits, &dec, &err), 0);
        for (unsigned mib = 0; mib < 20; mib++) {
            struct stream_in in = {.ptr = text, .len = MIB};
            struct stream_out out = {.ptr = coded, .len = sizeof coded};
            int rc;

            do {
                rc = filter_step(enc, &in, false, &out, &err);
            } while (rc == STEP_MORE);
            assert_int_equal(rc, STEP_WAIT);
            in = (struct stream_in){.ptr = coded, .len = out.pos};
            do {
                struct stream_out to = {.ptr = plain, .len = sizeof plain};
                rc = filter_step(dec, &in, false, &to, &err);
            } while (rc == STEP_MORE);
            assert_int_equal(rc, STEP_WAIT);
            if (mib == 1)
                early = heap_bytes();
        }
        assert_true(heap_bytes() <= early);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_member),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_same_bytes_again),
        cmocka_unit_test(test_memory_is_constant),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
