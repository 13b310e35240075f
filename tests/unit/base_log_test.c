/* SPDX-License-Identifier: Apache-2.0
 * base/log.c: what comes out on stderr, line by line.
 */
#include "base/log.h"

#include "base/clock.h"

#include <fcntl.h>
#include <regex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

/* This program's own clock, in place of base/clock.c: windows pass without waiting. */
static int64_t now_ms = 1800000000123;

int64_t clock_mono_ms(void)
{
    return now_ms;
}

int64_t clock_wall_ms(void)
{
    return now_ms;
}

int64_t clock_wall_s(void)
{
    return now_ms / 1000;
}

static int saved_stderr = -1;
static int capture_fd = -1;
static char captured[256 * 1024];

static void capture_start(void)
{
    char path[] = "/tmp/base_log_test.XXXXXX";

    fflush(stderr);
    saved_stderr = dup(STDERR_FILENO);
    capture_fd = mkstemp(path);
    assert_true(saved_stderr >= 0 && capture_fd >= 0);
    unlink(path);
    dup2(capture_fd, STDERR_FILENO);
}

/* Puts stderr back; returns the number of lines. */
static unsigned capture_end(void)
{
    unsigned lines = 0;

    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    ssize_t n = pread(capture_fd, captured, sizeof captured - 1, 0);
    close(capture_fd);
    assert_true(n >= 0);
    captured[n] = '\0';
    for (const char *c = captured; *c != '\0'; c++)
        lines += *c == '\n';
    return lines;
}

static void assert_matches(const char *text, const char *pattern)
{
    regex_t re;

    assert_int_equal(regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB), 0);
    if (regexec(&re, text, 0, NULL, 0) != 0)
        fail_msg("\"%s\" does not match \"%s\"", text, pattern);
    regfree(&re);
}

static void test_line(void **state UNUSED)
{
    capture_start();
    log_event(LOG_INFO, "fill.done", "bytes=%d name=%s", 12, log_quote("a b").s);
    assert_int_equal(capture_end(), 1);
    assert_string_equal(captured, "ts=2027-01-15T08:00:00.123Z lvl=info ev=fill.done bytes=12 name=\"a b\"\n");
}

static void test_levels(void **state UNUSED)
{
    enum log_level level;

    capture_start();
    log_set_level(LOG_WARN);
    log_event(LOG_INFO, "levels", "n=1");
    log_event(LOG_WARN, "levels", "n=2");
    log_set_level(LOG_DEBUG);
    log_event(LOG_DEBUG, "levels", "n=3");
    log_set_level(LOG_INFO);
    assert_int_equal(capture_end(), 2);
    assert_matches(captured, "lvl=warn ev=levels n=2\n.*lvl=debug ev=levels n=3\n$");
    assert_true(log_level_parse("debug", &level) && level == LOG_DEBUG);
    assert_true(log_level_parse("err", &level) && level == LOG_ERR);
    assert_false(log_level_parse("loud", &level));
    assert_true(log_enabled(LOG_INFO));
    assert_false(log_enabled(LOG_DEBUG));
}

static void test_long_line_is_cut(void **state UNUSED)
{
    char text[2 * LOG_LINE_BYTES];

    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    capture_start();
    log_event(LOG_INFO, "long", "v=%s", text);
    assert_int_equal(capture_end(), 1);
    assert_true(strlen(captured) <= LOG_LINE_BYTES);
    assert_true(strlen(captured) > LOG_LINE_BYTES - 8);
    assert_matches(captured, "x\\.\\.\\.\n$");
}

static void test_stays_one_line(void **state UNUSED)
{
    capture_start();
    log_event(LOG_INFO, "inject", "v=%s", "a\nts=2000 lvl=err\r\x1b[2J");
    assert_int_equal(capture_end(), 1);
    assert_null(strchr(captured, '\x1b'));
}

static void test_repeats_are_limited(void **state UNUSED)
{
    capture_start();
    for (int i = 0; i < 1000; i++)
        log_event(LOG_WARN, "flap", "i=%d", i);
    log_event(LOG_WARN, "other", "i=1");
    for (int i = 0; i < 100; i++)
        log_event(LOG_INFO, "info.is.free", "i=%d", i);
    assert_int_equal(capture_end(), 20 + 1 + 100);
    assert_matches(captured, "ev=flap i=19\n[^\n]*ev=other i=1\n");

    now_ms += 10000;
    capture_start();
    log_event(LOG_WARN, "flap", "i=1");
    log_event(LOG_WARN, "flap", "i=2");
    assert_int_equal(capture_end(), 2);
    assert_matches(captured, "ev=flap suppressed=980 i=1\n[^\n]*ev=flap i=2\n$");
}

static void test_quote(void **state UNUSED)
{
    char longer[2 * LOG_QUOTED_BYTES];
    struct log_quoted q;

    assert_string_equal(log_quote("plain/value:1.2-3").s, "plain/value:1.2-3");
    assert_string_equal(log_quote("").s, "\"\"");
    assert_string_equal(log_quote(NULL).s, "\"\"");
    assert_string_equal(log_quote("a b").s, "\"a b\"");
    assert_string_equal(log_quote("a=b").s, "\"a=b\"");
    assert_string_equal(log_quote("say \"x\\y\"").s, "\"say \\\"x\\\\y\\\"\"");
    assert_string_equal(log_quote("a\nb\x01\xff").s, "\"a\\nb\\x01\\xff\"");

    for (unsigned char c = 1; c < 3; c++) {
        memset(longer, c == 1 ? 'y' : 0x80, sizeof longer);
        longer[sizeof longer - 1] = '\0';
        q = log_quote(longer);
        assert_true(strlen(q.s) < sizeof q.s);
        assert_matches(q.s, "\\.\\.\\.\"$");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_long_line_is_cut),
        cmocka_unit_test(test_stays_one_line),
        cmocka_unit_test(test_repeats_are_limited),
        cmocka_unit_test(test_quote),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
