/* SPDX-License-Identifier: Apache-2.0
 * base/err.c: first error wins, one line, the right code for an errno.
 */
#include "base/err.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void test_set_fills_and_returns(void **state UNUSED)
{
    struct err err = ERR_INIT;

    assert_int_equal(err_set(&err, ERR_FORMAT, "byte %d of %s", 7, "x"), ERR_FORMAT);
    assert_int_equal(err.code, ERR_FORMAT);
    assert_int_equal(err.sys, 0);
    assert_string_equal(err.msg, "byte 7 of x");
}

static void test_first_error_wins(void **state UNUSED)
{
    struct err err = ERR_INIT;

    (void)err_set(&err, ERR_CORRUPT, "first");
    assert_int_equal(err_set(&err, ERR_IO, "second"), ERR_CORRUPT);
    assert_int_equal(err_sys(&err, EIO, "third"), ERR_CORRUPT);
    assert_string_equal(err.msg, "first");
    err_clear(&err);
    assert_int_equal(err.code, 0);
    assert_int_equal(err_set(&err, ERR_IO, "second"), ERR_IO);
}

static void test_sys_picks_the_code(void **state UNUSED)
{
    static const struct {
        int sys;
        enum err_code code;
    } cases[] = {
        {ENOSPC, ERR_NOSPC}, {EDQUOT, ERR_NOSPC}, {ENOMEM, ERR_NOMEM}, {ENOENT, ERR_NOTFOUND}, {EACCES, ERR_IO}};

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err err = ERR_INIT;

        assert_int_equal(err_sys(&err, cases[i].sys, "opening %s", "f"), cases[i].code);
        assert_int_equal(err.sys, cases[i].sys);
        assert_memory_equal(err.msg, "opening f: ", 11);
        assert_non_null(strstr(err.msg, strerror(cases[i].sys)));
    }
}

static void test_sys_keeps_the_reason_behind_a_long_path(void **state UNUSED)
{
    struct err err = ERR_INIT;
    char path[2 * ERR_MSG_BYTES];

    memset(path, 'p', sizeof path);
    path[sizeof path - 1] = '\0';
    (void)err_sys(&err, ENOENT, "opening %s", path);
    assert_int_equal(strlen(err.msg), ERR_MSG_BYTES - 1);
    assert_string_equal(err.msg + strlen(err.msg) - 27, ": No such file or directory");
}

static void test_wrap(void **state UNUSED)
{
    struct err err = ERR_INIT;

    (void)err_set(&err, ERR_NOTFOUND, "no tag");
    assert_int_equal(err_wrap(&err, "pulling %s", "alpine"), ERR_NOTFOUND);
    assert_string_equal(err.msg, "pulling alpine: no tag");
}

static void test_wrap_that_does_not_fit_cuts_the_context(void **state UNUSED)
{
    struct err err = ERR_INIT;
    char context[2 * ERR_MSG_BYTES];

    memset(context, 'c', sizeof context);
    context[sizeof context - 1] = '\0';
    (void)err_set(&err, ERR_NOTFOUND, "reason");
    (void)err_wrap(&err, "%s", context);
    assert_int_equal(strlen(err.msg), ERR_MSG_BYTES - 1);
    assert_string_equal(err.msg + strlen(err.msg) - 9, "c: reason");

    err_clear(&err);
    (void)err_set(&err, ERR_NOTFOUND, "%s", context);
    assert_int_equal(strlen(err.msg), ERR_MSG_BYTES - 1);
    assert_int_equal(err_wrap(&err, "x"), ERR_NOTFOUND);
    assert_int_equal(strlen(err.msg), ERR_MSG_BYTES - 1);
}

static void test_one_line(void **state UNUSED)
{
    struct err err = ERR_INIT;

    (void)err_set(&err, ERR_UPSTREAM, "said \"a\r\nb\x1b[31m\"");
    assert_string_equal(err.msg, "said \"a  b [31m\"");
    (void)err_wrap(&err, "x\ny");
    assert_string_equal(err.msg, "x y: said \"a  b [31m\"");
}

static int fails(struct err *err)
{
    return err_set(err, ERR_BUSY, "full");
}

static int tries(int *reached, struct err *err)
{
    TRY(2); /* flow codes pass */
    *reached = 1;
    TRY(fails(err));
    *reached = 2;
    return 0;
}

static void test_try_returns(void **state UNUSED)
{
    struct err err = ERR_INIT;
    int reached = 0;

    assert_int_equal(tries(&reached, &err), ERR_BUSY);
    assert_int_equal(reached, 1);
}

static void test_names(void **state UNUSED)
{
    assert_string_equal(err_code_name(0), "OK");
    assert_string_equal(err_code_name(ERR_NOSPC), "NOSPC");
    for (int code = ERR_BUG; code < 0; code++)
        assert_string_not_equal(err_code_name(code), "UNKNOWN");
    assert_string_equal(err_code_name(-1000), "UNKNOWN");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set_fills_and_returns),
        cmocka_unit_test(test_first_error_wins),
        cmocka_unit_test(test_sys_picks_the_code),
        cmocka_unit_test(test_sys_keeps_the_reason_behind_a_long_path),
        cmocka_unit_test(test_wrap),
        cmocka_unit_test(test_wrap_that_does_not_fit_cuts_the_context),
        cmocka_unit_test(test_one_line),
        cmocka_unit_test(test_try_returns),
        cmocka_unit_test(test_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
