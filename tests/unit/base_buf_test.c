/* SPDX-License-Identifier: Apache-2.0
 * base/buf.c: growth, the limit, the NUL behind the data.
 */
#include "base/buf.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void test_text(void **state UNUSED)
{
    CLEANUP(buf_release) struct buf b = BUF_INIT(1000);
    struct err err = ERR_INIT;

    assert_null(b.data);
    assert_int_equal(buf_str(&b, "a=", &err), 0);
    assert_int_equal(buf_printf(&b, &err, "%d,%s", 12, "x"), 0);
    assert_int_equal(buf_add(&b, "\0y", 2, &err), 0);
    assert_int_equal(b.len, 8);
    assert_memory_equal(b.data, "a=12,x\0y\0", 9);
    buf_reset(&b);
    assert_int_equal(b.len, 0);
    assert_string_equal(b.data, "");
}

static void test_grows_byte_by_byte(void **state UNUSED)
{
    CLEANUP(buf_release) struct buf b = BUF_INIT(100000);
    struct err err = ERR_INIT;

    for (unsigned i = 0; i < 100000; i++) {
        char c = (char)('a' + i % 26);

        assert_int_equal(buf_add(&b, &c, 1, &err), 0);
        assert_int_equal(b.data[b.len], 0);
    }
    assert_int_equal(b.len, 100000);
    assert_int_equal(b.data[99999], 'a' + 99999 % 26);
    assert_true(b.cap <= 100001);
}

static void test_limit(void **state UNUSED)
{
    CLEANUP(buf_release) struct buf b = BUF_INIT(4);
    struct err err = ERR_INIT;

    assert_int_equal(buf_str(&b, "abcd", &err), 0);
    assert_int_equal(buf_str(&b, "", &err), 0);
    assert_int_equal(buf_str(&b, "e", &err), ERR_LIMIT);
    assert_string_equal(b.data, "abcd");
    err_clear(&err);
    assert_int_equal(buf_printf(&b, &err, "%d", 5), ERR_LIMIT);
    err_clear(&err);
    assert_int_equal(buf_reserve(&b, SIZE_MAX, &err), ERR_LIMIT);
}

static void test_no_limit_does_not_overflow(void **state UNUSED)
{
    CLEANUP(buf_release) struct buf b = BUF_INIT(SIZE_MAX);
    struct err err = ERR_INIT;

    assert_int_equal(buf_str(&b, "x", &err), 0);
    assert_int_equal(buf_reserve(&b, SIZE_MAX - 1, &err), ERR_NOMEM);
    err_clear(&err);
    assert_int_equal(buf_reserve(&b, 1000, &err), 0);
    assert_true(b.cap >= 1002);
    assert_string_equal(b.data, "x");
}

static void test_empty_add_gives_a_string(void **state UNUSED)
{
    CLEANUP(buf_release) struct buf b = BUF_INIT(0);
    struct err err = ERR_INIT;

    assert_int_equal(buf_add(&b, NULL, 0, &err), 0);
    assert_string_equal(b.data, "");
}

static void test_steal(void **state UNUSED)
{
    CLEANUP(buf_release) struct buf b = BUF_INIT(10);
    CLEANUP(free_ptr) char *text = NULL;
    struct err err = ERR_INIT;

    assert_null(buf_steal(&b));
    assert_int_equal(buf_str(&b, "abc", &err), 0);
    text = buf_steal(&b);
    assert_string_equal(text, "abc");
    assert_null(b.data);
    assert_int_equal(b.limit_bytes, 10);
    assert_int_equal(buf_str(&b, "0123456789", &err), 0);
}

static void test_strings(void **state UNUSED)
{
    CLEANUP(free_ptr) char *copy = NULL;
    CLEANUP(free_ptr) char *text = NULL;
    char *none = NULL;
    struct err err = ERR_INIT;

    assert_int_equal(str_dup("abc", &copy, &err), 0);
    assert_string_equal(copy, "abc");
    assert_int_equal(str_dup(NULL, &none, &err), 0);
    assert_null(none);
    assert_int_equal(str_printf(&text, &err, "%s/%03d", copy, 7), 0);
    assert_string_equal(text, "abc/007");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_grows_byte_by_byte),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_no_limit_does_not_overflow),
        cmocka_unit_test(test_empty_add_gives_a_string),
        cmocka_unit_test(test_steal),
        cmocka_unit_test(test_strings),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
