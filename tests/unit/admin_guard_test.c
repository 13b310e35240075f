/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/admin_guard_test.c - which Host headers pass, and what %XX decodes to. */
#include "admin/admin_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void hosts(void **state UNUSED)
{
    static const struct {
        const char *host, *listen;
        bool allowed;
    } cases[] = {
        {NULL, "127.0.0.1:5001", true},
        {"localhost", "127.0.0.1:5001", true},
        {"LOCALHOST:9", "127.0.0.1:5001", true},
        {"127.0.0.1:5001", "127.0.0.1:5001", true},
        {"127.9.9.9", "127.0.0.1:5001", true},
        {"[::1]:5001", "127.0.0.1:5001", true},
        {"[::1]", "[::1]:5001", true},
        {"[0:0:0:0:0:0:0:1]:1", "[::1]:5001", true},
        {"192.168.1.5:5001", "192.168.1.5:5001", true},
        {"[fe80::1]", "[fe80:0::1]:5001", true},
        {"10.0.0.1", "0.0.0.0:5001", true},
        {"[fe80::1]:5001", "[::]:5001", true},
        {"192.168.1.6:5001", "192.168.1.5:5001", false},
        {"[fe80::2]", "[fe80::1]:5001", false},
        {"10.0.0.1", "127.0.0.1:5001", false},
        {"evil.example", "127.0.0.1:5001", false},
        {"evil.example:5001", "0.0.0.0:5001", false},
        {"localhost.evil.example", "127.0.0.1:5001", false},
        {"127.0.0.1.evil.example", "127.0.0.1:5001", false},
        {"127.1", "127.0.0.1:5001", false},
        {"0177.0.0.1", "0.0.0.0:5001", false},
        {"::1", "127.0.0.1:5001", false},
        {"[::1", "127.0.0.1:5001", false},
        {"[::1]x", "127.0.0.1:5001", false},
        {"[localhost]", "127.0.0.1:5001", false},
        {"", "127.0.0.1:5001", false},
        {":5001", "127.0.0.1:5001", false},
        {"localhost, evil.example", "127.0.0.1:5001", false},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        if (admin_host_allowed(cases[i].host, cases[i].listen) != cases[i].allowed)
            fail_msg("%s at %s: not %d", cases[i].host, cases[i].listen, cases[i].allowed);
    }
}

static void decoding(void **state UNUSED)
{
    static const struct {
        const char *text, *want; /* NULL: refused */
    } cases[] = {
        {"alpine", "alpine"},
        {"a%2Fb%3a1", "a/b:1"},
        {"%40sha256%3Ax", "@sha256:x"},
        {"%252F", "%2F"},
        {"", ""},
        {"%", NULL},
        {"%4", NULL},
        {"%zz", NULL},
        {"a%00b", NULL},
        {"a%0ab", NULL},
        {"%7f", NULL},
        {"1234567890123456", NULL},
        {"123456789012345", "123456789012345"},
    };
    char out[16];

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        bool ok = admin_decode(cases[i].text, out, sizeof out);

        assert_int_equal(ok, cases[i].want != NULL);
        if (ok)
            assert_string_equal(out, cases[i].want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(hosts), cmocka_unit_test(decoding)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
