/* SPDX-License-Identifier: Apache-2.0
 * proxy/decode.c: the codec shows in the first bytes, however they come; limits hold; a reader is never blocked for long.
 */
#include "proxy/blob_internal.h"
#include "transcode/codec.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/unit/proxy_util.h"

#define PLAIN 200000

static char plain[PLAIN];
static struct drained encoded[3]; /* by enum codec */

static void encode(enum codec c, const char *data, size_t len, struct drained *out)
{
    struct script sc = {.data = data, .len = len, .fail_at = SIZE_MAX};
    struct source *in, *s;
    struct filter *f;
    struct err err = ERR_INIT;

    ASSERT_OK(source_script_new(&sc, &in, &err));
    ASSERT_OK(codec_encoder_new(c, CODEC_LEVEL_FAST, &f, &err));
    ASSERT_OK(source_filtered_new(&in, &f, 65536, &s, &err));
    source_drain(&s, 65536, out);
    assert_int_equal(out->rc, STEP_EOF);
}

static int set_up(void **state UNUSED)
{
    for (size_t i = 0; i < PLAIN; i++)
        plain[i] = (char)('a' + i / 97 % 23);
    for (int c = CODEC_NONE; c <= CODEC_ZSTD; c++)
        encode((enum codec)c, plain, PLAIN, &encoded[c]);
    return 0;
}

static int tear_down(void **state UNUSED)
{
    for (int c = CODEC_NONE; c <= CODEC_ZSTD; c++)
        drained_release(&encoded[c]);
    return 0;
}

static void decoded(const struct script *sc, uint64_t max_bytes, uint32_t max_ratio, size_t cap, struct drained *out)
{
    struct source *in, *s;
    struct err err = ERR_INIT;

    ASSERT_OK(source_script_new(sc, &in, &err));
    ASSERT_OK(source_decoded_new(&in, max_bytes, max_ratio, &s, &err));
    source_drain(&s, cap, out);
}

static void test_all_codecs(void **state UNUSED)
{
    for (int c = CODEC_NONE; c <= CODEC_ZSTD; c++) {
        for (unsigned way = 0; way < 3; way++) {
            struct script sc = {.data = encoded[c].data,
                                .len = encoded[c].len,
                                .piece = way == 0 ? 0 : 1,
                                .wait_each = way == 2 ? 2 : 0,
                                .fail_at = SIZE_MAX};
            struct drained d;

            decoded(&sc, PLAIN, 2000, way == 0 ? 65536 : 333, &d);
            assert_int_equal(d.rc, STEP_EOF);
            assert_int_equal(d.len, PLAIN);
            assert_memory_equal(d.data, plain, PLAIN);
            drained_release(&d);
        }
    }
}

/* Shorter than any magic. */
static void test_tiny(void **state UNUSED)
{
    for (size_t len = 0; len < 6; len++) {
        struct script sc = {.data = "\x1f\x8bxyz", .len = len, .piece = 1, .wait_each = 2, .fail_at = SIZE_MAX};
        struct drained d;

        decoded(&sc, 100, 0, 10, &d);
        assert_int_equal(d.rc, STEP_EOF);
        assert_int_equal(d.len, len);
        assert_memory_equal(d.data, sc.data, len);
        drained_release(&d);
    }
}

static void test_limit(void **state UNUSED)
{
    for (int c = CODEC_NONE; c <= CODEC_ZSTD; c++) {
        struct script sc = {.data = encoded[c].data, .len = encoded[c].len, .fail_at = SIZE_MAX};
        struct drained d;

        decoded(&sc, PLAIN - 1, 0, 65536, &d);
        assert_int_equal(d.rc, ERR_LIMIT);
        assert_true(d.len < PLAIN);
        drained_release(&d);
    }
}

static void test_breaks(void **state UNUSED)
{
    for (int c = CODEC_NONE; c <= CODEC_ZSTD; c++) {
        for (size_t at = 0; at < encoded[c].len; at += encoded[c].len / 7 + 1) {
            struct script sc = {.data = encoded[c].data, .len = encoded[c].len, .fail_at = at};
            struct drained d;

            decoded(&sc, PLAIN, 0, 65536, &d);
            assert_int_equal(d.rc, ERR_CORRUPT); /* the inner one's own error, not an early end */
            assert_string_equal(d.err.msg, "as told");
            drained_release(&d);
            if (c == CODEC_NONE || at == 0)
                continue;
            sc = (struct script){.data = encoded[c].data, .len = at, .fail_at = SIZE_MAX};
            decoded(&sc, PLAIN, 0, 65536, &d);
            assert_int_equal(d.rc, at < CODEC_SNIFF_BYTES ? STEP_EOF : ERR_FORMAT);
            drained_release(&d);
        }
    }
}

/* Megabytes that decode to nothing (empty gzip members): the reader gives way in between, by the waker that it was given
 * before the codec was known. */
static void test_swallows_much(void **state UNUSED)
{
    struct drained empty, d;
    size_t count, len = 3 << 20;
    char *many = malloc(len);

    assert_non_null(many);
    encode(CODEC_GZIP, "", 0, &empty);
    count = len / empty.len;
    for (size_t i = 0; i < count; i++)
        memcpy(many + i * empty.len, empty.data, empty.len);
    struct script sc = {.data = many, .len = count * empty.len, .fail_at = SIZE_MAX};
    decoded(&sc, 100, 0, 100, &d);
    assert_int_equal(d.rc, STEP_EOF);
    assert_int_equal(d.len, 0);
    assert_true(d.waits >= 2);
    drained_release(&d);
    drained_release(&empty);
    free(many);
}

static int whole(const char *data, size_t len, size_t limit, struct buf *out)
{
    struct buf in = {.data = (char *)(uintptr_t)data, .len = len};
    struct err err = ERR_INIT;
    int rc = decode_whole(&in, limit, out, &err);

    assert_int_equal(rc, err.code);
    if (rc < 0)
        assert_null(out->data);
    return rc;
}

/* Case 84: what a registry compressed in transit, small enough for memory. The limit holds to the byte. */
static void test_whole(void **state UNUSED)
{
    struct drained empty, nothing;
    struct buf out;

    encode(CODEC_GZIP, "", 0, &empty);
    encode(CODEC_ZSTD, "", 0, &nothing);
    assert_int_equal(whole(empty.data, empty.len, 0, &out), 0);
    assert_int_equal(out.len, 0);
    buf_release(&out);
    assert_int_equal(whole(nothing.data, nothing.len, 0, &out), 0);
    assert_int_equal(out.len, 0);
    buf_release(&out);
    for (int c = CODEC_GZIP; c <= CODEC_ZSTD; c++) {
        const struct drained *e = &encoded[c];

        assert_int_equal(whole(e->data, e->len, PLAIN, &out), 0);
        assert_int_equal(out.len, PLAIN);
        assert_memory_equal(out.data, plain, PLAIN);
        buf_release(&out);
        assert_int_equal(whole(e->data, e->len, 100 * PLAIN, &out), 0);
        assert_int_equal(out.len, PLAIN);
        buf_release(&out);
        assert_int_equal(whole(e->data, e->len, PLAIN - 1, &out), ERR_LIMIT);
        assert_int_equal(whole(e->data, e->len - 1, PLAIN, &out), ERR_FORMAT);
        assert_int_equal(whole(e->data, 5, PLAIN, &out), ERR_FORMAT);
    }
    assert_int_equal(whole(plain, PLAIN, PLAIN, &out), ERR_FORMAT);
    assert_int_equal(whole("{}", 2, PLAIN, &out), ERR_FORMAT);
    assert_int_equal(whole(NULL, 0, PLAIN, &out), ERR_FORMAT);
    drained_release(&empty);
    drained_release(&nothing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_codecs), cmocka_unit_test(test_tiny),          cmocka_unit_test(test_limit),
        cmocka_unit_test(test_breaks),     cmocka_unit_test(test_swallows_much), cmocka_unit_test(test_whole),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
