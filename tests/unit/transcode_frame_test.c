/* SPDX-License-Identifier: Apache-2.0
 * transcode/frame.c: round trips around every size where a header changes, the choice of kind, strict reading.
 */
#include "transcode/zstd_internal.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/unit/transcode_util.h"

enum { MAX = 1 << 20, CAP = MAX + 1024 };

struct fixture {
    struct frame_ctx *ctx;
    uint8_t text[MAX], noise[MAX], zeros[MAX], frame[CAP], plain[MAX];
};

static int setup(void **state)
{
    struct fixture *x = calloc(1, sizeof *x);
    struct err err = ERR_INIT;

    assert_non_null(x);
    assert_int_equal(frame_ctx_new(&x->ctx, &err), 0);
    fill_text(x->text, MAX, 1);
    fill_noise(x->noise, MAX, 2);
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *x = *state;

    frame_ctx_free(x->ctx);
    free(x);
    return 0;
}

static int encode(struct fixture *x, int level, const void *data, size_t len, size_t *out_len, struct frame_info *info)
{
    struct err err = ERR_INIT;

    return frame_encode(x->ctx, level, data, len, x->frame, CAP, out_len, info, &err);
}

static int decode(struct fixture *x, enum frame_kind kind, const void *frame, size_t frame_len, size_t want_len)
{
    CLEANUP(free_ptr) uint8_t *exact = malloc(frame_len), *room = malloc(want_len);
    struct err err = ERR_INIT;
    int rc;

    if (frame_len > 0)
        memcpy(exact, frame, frame_len);
    rc = frame_decode(x->ctx, kind, exact, frame_len, room, want_len, &err);
    assert_int_equal(rc, err.code);
    if (rc == 0 && want_len > 0)
        memcpy(x->plain, room, want_len);
    return rc;
}

static void test_round_trips(void **state)
{
    static const size_t sizes[] = {0,      1,      2,          254,    255,     256,   257,    511,
                                   512,    65535,  65536,      65791,  65792,   65793, 131071, 131072,
                                   131073, 262144, 262144 + 1, 700001, MAX - 1, MAX};
    struct fixture *x = *state;

    for (unsigned i = 0; i < ARRAY_LEN(sizes) * 3; i++) {
        const uint8_t *data = i % 3 == 0 ? x->text : i % 3 == 1 ? x->noise : x->zeros;
        size_t len = sizes[i / 3], frame_len;
        struct frame_info info;

        assert_int_equal(encode(x, 3, data, len, &frame_len, &info), 0);
        assert_true(frame_len <= frame_bound(len));
        /* As any other reader sees it: one frame, its size known. */
        assert_int_equal(ZSTD_findFrameCompressedSize(x->frame, frame_len), frame_len);
        assert_int_equal(ZSTD_getFrameContentSize(x->frame, frame_len), len);
        assert_int_equal(ZSTD_decompress(x->plain, MAX, x->frame, frame_len), len);
        assert_memory_equal(x->plain, data, len);
        memset(x->plain, 0, len);
        assert_int_equal(decode(x, info.kind, x->frame, frame_len, len), 0);
        assert_memory_equal(x->plain, data, len);
        if (info.kind == FRAME_ZSTD) {
            assert_true(i % 3 != 1);
            assert_int_equal(info.level, 3);
            assert_int_equal(info.encoder, ZSTD_versionNumber());
        } else {
            assert_true(i % 3 == 1 || len < 1000);
            assert_int_equal(info.level, 0);
            assert_int_equal(info.encoder, 1);
        }
    }
}

static void test_random_sizes(void **state)
{
    struct fixture *x = *state;
    uint64_t seed = 9;

    for (unsigned i = 0; i < 300; i++) {
        size_t len = test_random(&seed) % 3 ? test_random(&seed) % 3000 : test_random(&seed) % 400000;
        size_t off = test_random(&seed) % (MAX - len), frame_len;
        const uint8_t *data = (test_random(&seed) % 2 ? x->text : x->noise) + off;
        struct frame_info info;

        assert_int_equal(encode(x, 1 + (int)(i % 7), data, len, &frame_len, &info), 0);
        assert_int_equal(decode(x, info.kind, x->frame, frame_len, len), 0);
        if (len > 0)
            assert_memory_equal(x->plain, data, len);
    }
}

/* Written down, since digests of published layers hang on these bytes. */
static void test_raw_bytes(void **state)
{
    static const uint8_t empty[] = {0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x00, 0x01, 0x00, 0x00};
    static const uint8_t abc[] = {0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x03, 0x19, 0x00, 0x00, 'a', 'b', 'c'};
    static const uint8_t of_256[] = {0x28, 0xb5, 0x2f, 0xfd, 0x60, 0x00, 0x00, 0x01, 0x08, 0x00};
    static const uint8_t of_200000[] = {0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0x40, 0x0d, 0x03, 0x00, 0x00, 0x00, 0x10};
    static const uint8_t block_2[] = {0x01, 0x6a, 0x08}; /* 68928 << 3 | last */
    struct fixture *x = *state;
    struct frame_info info;
    size_t n;

    assert_int_equal(encode(x, 3, NULL, 0, &n, &info), 0);
    assert_int_equal(info.kind, FRAME_ZSTD_RAW);
    assert_int_equal(n, sizeof empty);
    assert_memory_equal(x->frame, empty, n);
    assert_int_equal(encode(x, 3, "abc", 3, &n, &info), 0);
    assert_int_equal(n, sizeof abc);
    assert_memory_equal(x->frame, abc, n);
    assert_int_equal(encode(x, 3, x->noise, 256, &n, &info), 0);
    assert_int_equal(n, 256 + sizeof of_256);
    assert_memory_equal(x->frame, of_256, sizeof of_256);
    assert_int_equal(encode(x, 3, x->noise, 200000, &n, &info), 0);
    assert_int_equal(n, 200000 + sizeof of_200000 + sizeof block_2);
    assert_memory_equal(x->frame, of_200000, sizeof of_200000);
    assert_memory_equal(x->frame + sizeof of_200000 + 131072, block_2, sizeof block_2);
}

/* Other calls before, another context, more room: the same bytes. */
static void test_deterministic(void **state)
{
    struct fixture *x = *state;
    struct err err = ERR_INIT;
    CLEANUP(frame_ctx_cleanup) struct frame_ctx *fresh = NULL;
    CLEANUP(free_ptr) uint8_t *other = malloc(2 * CAP);
    struct frame_info info;
    size_t n, other_n;

    assert_int_equal(frame_ctx_new(&fresh, &err), 0);
    for (int level = 1; level <= 12; level++) {
        size_t len = 262144 - (size_t)level * 1000;

        assert_int_equal(encode(x, 13 - level, x->noise, MAX / 2, &n, &info), 0);
        assert_int_equal(encode(x, level, x->text, len, &n, &info), 0);
        assert_int_equal(frame_encode(fresh, level, x->text, len, other, 2 * CAP, &other_n, &info, &err), 0);
        assert_int_equal(n, other_n);
        assert_memory_equal(x->frame, other, n);
        assert_int_equal(frame_encode(fresh, level, x->text, len, other, frame_bound(len), &other_n, &info, &err), 0);
        assert_int_equal(n, other_n);
        assert_memory_equal(x->frame, other, n);
    }
}

static void test_wrong_length(void **state)
{
    struct fixture *x = *state;

    for (unsigned i = 0; i < 2; i++) {
        const uint8_t *data = i ? x->noise : x->text;
        struct frame_info info;
        size_t n;

        assert_int_equal(encode(x, 3, data, 300000, &n, &info), 0);
        assert_int_equal(decode(x, info.kind, x->frame, n, 299999), ERR_CORRUPT);
        assert_int_equal(decode(x, info.kind, x->frame, n, 300001), ERR_CORRUPT);
        assert_int_equal(decode(x, info.kind, x->frame, n, 0), ERR_CORRUPT);
        x->frame[n] = 0;
        assert_int_equal(decode(x, info.kind, x->frame, n + 1, 300000), ERR_CORRUPT);
        for (size_t cut = 0; cut < n; cut += cut < 40 ? 1 : 9973)
            assert_int_equal(decode(x, info.kind, x->frame, cut, 300000), ERR_CORRUPT);
        assert_int_equal(decode(x, info.kind, x->frame, n, 300000), 0);
    }
}

/* Two frames in a row are not one, even if the first is empty or skippable. */
static void test_not_one_frame(void **state)
{
    struct fixture *x = *state;
    static const uint8_t first[][9] = {{0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x00, 0x01, 0x00, 0x00},
                                       {0x50, 0x2a, 0x4d, 0x18, 0x01, 0x00, 0x00, 0x00, 0x00}};
    struct frame_info info;
    size_t n;

    assert_int_equal(encode(x, 3, x->text, 5000, &n, &info), 0);
    for (unsigned i = 0; i < 2; i++) {
        CLEANUP(bytes_release) struct bytes two = {.p = NULL};

        bytes_add(&two, first[i], sizeof first[i]);
        bytes_add(&two, x->frame, n);
        assert_int_equal(decode(x, FRAME_ZSTD, two.p, two.len, 5000), ERR_CORRUPT);
    }
}

/* Every bit of a raw frame's headers counts; a zstd frame is not a raw one. */
static void test_strict_raw(void **state)
{
    static const size_t headers[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 + 131072, 13 + 131072, 14 + 131072};
    struct fixture *x = *state;
    struct frame_info info;
    size_t n;

    assert_int_equal(encode(x, 3, x->noise, 200000, &n, &info), 0);
    assert_int_equal(info.kind, FRAME_ZSTD_RAW);
    for (unsigned i = 0; i < 8 * ARRAY_LEN(headers); i++) {
        x->frame[headers[i / 8]] ^= (uint8_t)(1u << i % 8);
        assert_int_equal(decode(x, FRAME_ZSTD_RAW, x->frame, n, 200000), ERR_CORRUPT);
        x->frame[headers[i / 8]] ^= (uint8_t)(1u << i % 8);
    }
    assert_int_equal(decode(x, FRAME_ZSTD_RAW, x->frame, n, 200000), 0);
    assert_int_equal(decode(x, FRAME_ZSTD, x->frame, n, 200000), 0);
    assert_int_equal(encode(x, 3, x->text, 200000, &n, &info), 0);
    assert_int_equal(info.kind, FRAME_ZSTD);
    assert_int_equal(decode(x, FRAME_ZSTD_RAW, x->frame, n, 200000), ERR_CORRUPT);
}

static void test_refused(void **state)
{
    struct fixture *x = *state;
    CLEANUP(free_ptr) uint8_t *large = calloc(1, (8 << 20) + 1), *room = malloc(frame_bound((8 << 20) + 1));
    struct err err = ERR_INIT;
    struct frame_info info;
    size_t n;

    assert_int_equal(decode(x, FRAME_PLANES, x->frame, 10, 10), ERR_UNSUPPORTED);
    assert_int_equal(decode(x, (enum frame_kind)77, x->frame, 10, 10), ERR_UNSUPPORTED);
    fill_noise(large, 8 << 20, 3);
    assert_int_equal(frame_encode(x->ctx, 1, large, 8 << 20, room, frame_bound(8 << 20), &n, &info, &err), 0);
    assert_int_equal(info.kind, FRAME_ZSTD_RAW);
    assert_int_equal(frame_decode(x->ctx, info.kind, room, n, large, 8 << 20, &err), 0);
    assert_int_equal(frame_encode(x->ctx, 1, large, (8 << 20) + 1, room, frame_bound((8 << 20) + 1), &n, &info, &err),
                     ERR_LIMIT);
}

static void test_sum64(void **state)
{
    struct fixture *x = *state;

    assert_true(sum64("", 0) == 0x2d06800538d394c2u);
    assert_true(sum64(x->text, 1000) == sum64(x->text, 1000));
    assert_true(sum64(x->text, 1000) != sum64(x->text, 999));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips),   cmocka_unit_test(test_random_sizes), cmocka_unit_test(test_raw_bytes),
        cmocka_unit_test(test_deterministic), cmocka_unit_test(test_wrong_length), cmocka_unit_test(test_not_one_frame),
        cmocka_unit_test(test_strict_raw),    cmocka_unit_test(test_refused),      cmocka_unit_test(test_sum64),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
