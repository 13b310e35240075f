/* SPDX-License-Identifier: Apache-2.0
 * proxy/verify.c: right bytes come out whole, wrong ones never do, whatever the pieces they come in.
 */
#include "proxy/proxy_internal.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/unit/proxy_util.h"

#define BIG 300000

static char big[BIG];
static const size_t sizes[] = {0, 1, HOLD_BACK_BYTES - 1, HOLD_BACK_BYTES, HOLD_BACK_BYTES + 1, 65536, BIG};

static int set_up(void **state UNUSED)
{
    for (size_t i = 0; i < BIG; i++)
        big[i] = (char)(i * 2654435761u >> 11);
    return 0;
}

static void verified(const struct script *sc, const struct digest *want, uint64_t size, size_t cap, struct drained *out)
{
    struct source *in, *s;
    struct err err = ERR_INIT;

    ASSERT_OK(source_script_new(sc, &in, &err));
    ASSERT_OK(source_verified_new(&in, want, size, NULL, 0, &s, &err));
    assert_null(in);
    source_drain(&s, cap, out);
}

static void test_right(void **state UNUSED)
{
    static const size_t caps[] = {1000, 4096, 1 << 20};

    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        for (size_t k = 0; k < ARRAY_LEN(caps); k++) {
            struct script sc = {
                .data = big, .len = sizes[i], .piece = k * 777, .wait_each = (unsigned)k * 3, .fail_at = SIZE_MAX};
            struct drained d;
            struct digest want;

            digest_of(big, sizes[i], &want);
            verified(&sc, &want, k == 1 ? SIZE_UNKNOWN : sizes[i], caps[k], &d);
            assert_int_equal(d.rc, STEP_EOF);
            assert_int_equal(d.len, sizes[i]);
            assert_memory_equal(d.data, big, d.len);
            drained_release(&d);
        }
    }
}

static void test_one_byte_at_a_time(void **state UNUSED)
{
    struct script sc = {.data = big, .len = 5000, .piece = 1, .wait_each = 2, .fail_at = SIZE_MAX};
    struct drained d;
    struct digest want;

    digest_of(big, 5000, &want);
    verified(&sc, &want, 5000, 1, &d);
    assert_int_equal(d.rc, STEP_EOF);
    assert_int_equal(d.len, 5000);
    assert_memory_equal(d.data, big, 5000);
    assert_true(d.waits > 4000);
    drained_release(&d);
}

/* Whatever is wrong, the last bytes stay behind. */
static void expect_cut(const struct script *sc, const struct digest *want, uint64_t size, int code)
{
    struct drained d;

    verified(sc, want, size, 5000, &d);
    assert_int_equal(d.rc, code);
    assert_true(sc->len <= HOLD_BACK_BYTES ? d.len == 0 : d.len <= sc->len - HOLD_BACK_BYTES);
    assert_true(d.len <= size); /* a stream without end is not followed to it */
    assert_memory_equal(d.data, big, d.len);
    drained_release(&d);
}

static void test_wrong(void **state UNUSED)
{
    for (size_t i = 1; i < ARRAY_LEN(sizes); i++) {
        struct script sc = {.data = big, .len = sizes[i], .fail_at = SIZE_MAX};
        struct digest right, other;

        digest_of(big, sizes[i], &right);
        digest_of("other", 5, &other);
        expect_cut(&sc, &other, sizes[i], ERR_CORRUPT);
        expect_cut(&sc, &other, SIZE_UNKNOWN, ERR_CORRUPT);
        expect_cut(&sc, &right, sizes[i] - 1, ERR_CORRUPT); /* more than expected */
        expect_cut(&sc, &right, sizes[i] / 9, ERR_CORRUPT);
        expect_cut(&sc, &right, sizes[i] + 1, ERR_CORRUPT);
        sc.fail_at = sizes[i] - 1; /* the stream breaks one byte before its end */
        expect_cut(&sc, &right, sizes[i], ERR_CORRUPT);
        sc.fail_at = sizes[i]; /* and in the place of its end */
        expect_cut(&sc, &right, sizes[i], ERR_CORRUPT);
    }
}

/* From the middle on, with the hash of what came before. */
static void test_resumed(void **state UNUSED)
{
    for (int wrong = 0; wrong < 2; wrong++) {
        struct script sc = {.data = big + 100000, .len = BIG - 100000, .fail_at = SIZE_MAX};
        struct hasher *h;
        struct source *in, *s;
        struct digest want;
        struct drained d;
        struct err err = ERR_INIT;

        digest_of(big, BIG, &want);
        ASSERT_OK(hasher_new(&h, &err));
        hasher_update(h, big, (size_t)(100000 - wrong));
        ASSERT_OK(source_script_new(&sc, &in, &err));
        ASSERT_OK(source_verified_new(&in, &want, BIG, &h, 100000, &s, &err));
        assert_null(h);
        source_drain(&s, 1 << 20, &d);
        assert_int_equal(d.rc, wrong ? ERR_CORRUPT : STEP_EOF);
        assert_int_equal(d.len == BIG - 100000, !wrong);
        drained_release(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right),
        cmocka_unit_test(test_one_byte_at_a_time),
        cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_resumed),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
