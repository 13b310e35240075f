/* SPDX-License-Identifier: Apache-2.0
 * base/secret.c
 */
#include "base/secret.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_life(void **state UNUSED)
{
    struct secret s = SECRET_INIT, other = SECRET_INIT;
    struct err err = ERR_INIT;

    assert_false(secret_is_set(&s));
    assert_string_equal(secret_text(&s), "");
    assert_int_equal(secret_set(&s, "abcdef", 3, &err), 0);
    assert_true(secret_is_set(&s));
    assert_string_equal(secret_text(&s), "abc");
    assert_int_equal(secret_set(&s, secret_text(&s) + 1, 1, &err), 0); /* from itself */
    assert_string_equal(secret_text(&s), "b");
    assert_int_equal(secret_set(&other, NULL, 0, &err), 0);
    assert_true(secret_is_set(&other));
    secret_move(&other, &s);
    assert_false(secret_is_set(&s));
    assert_string_equal(secret_text(&other), "b");
    secret_release(&other);
    assert_false(secret_is_set(&other));
    secret_release(&other);
}

static void test_wipe(void **state UNUSED)
{
    char text[] = "hunter2 and more";

    secret_wipe(NULL, 0);
    secret_wipe(text, strlen("hunter2"));
    assert_memory_equal(text, "\0\0\0\0\0\0\0 and more", sizeof text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_life), cmocka_unit_test(test_wipe)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
