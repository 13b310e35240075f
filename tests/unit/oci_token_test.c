/* SPDX-License-Identifier: Apache-2.0
 * oci/token.c. Cases 58 and 59.
 */
#include "oci/token.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define NOW 1767323045 /* 2026-01-02T03:04:05Z */

static void check_good(const char *body, const char *token, int64_t lifetime_s)
{
    struct oci_token t;
    struct err err = ERR_INIT;

    assert_int_equal(oci_token_parse(body, strlen(body), NOW, &t, &err), 0);
    assert_string_equal(secret_text(&t.token), token);
    assert_int_equal(t.lifetime_s, lifetime_s);
    oci_token_release(&t);
}

static void test_which_token(void **state UNUSED)
{
    check_good("{\"token\":\"a.b-c_d\"}", "a.b-c_d", 60);
    check_good("{\"access_token\":\"only\"}", "only", 60);
    check_good("{\"access_token\":\"second\",\"token\":\"first\"}", "first", 60);
    check_good("{\"access_token\":\"x\",\"token\":\"\"}", "x", 60);
    check_good("{\"access_token\":\"x\",\"token\":null}", "x", 60);
    check_good("{\"token\":\"x\",\"access_token\":7}", "x", 60);
    check_good(" {\"token\":\"djE6QUJD/+~==\",\"refresh_token\":\"r\",\"more\":{\"deep\":[1,2]}}\n",
               "djE6QUJD/+~==", 60);
}

static void test_lifetime(void **state UNUSED)
{
    static const struct {
        const char *fields;
        int64_t lifetime_s;
    } rows[] = {
        {"\"expires_in\":300", 300},
        {"\"expires_in\":1", 1},
        {"\"expires_in\":300.9", 300},
        {"\"expires_in\":0", 60},
        {"\"expires_in\":0.5", 60},
        {"\"expires_in\":-300", 60},
        {"\"expires_in\":null", 60},
        {"\"expires_in\":\"300\"", 60},
        {"\"expires_in\":86401", 86400},
        {"\"expires_in\":9223372036854775807", 86400},
        {"\"expires_in\":1e300", 86400},
        /* issued_at counts where it makes sense: in the past, by half of the lifetime at most. */
        {"\"expires_in\":300,\"issued_at\":\"2026-01-02T03:04:05Z\"", 300},
        {"\"expires_in\":300,\"issued_at\":\"2026-01-02T03:03:05Z\"", 240},
        {"\"expires_in\":300,\"issued_at\":\"2026-01-02T03:03:05.999999999Z\"", 240},
        {"\"expires_in\":300,\"issued_at\":\"2026-01-02T04:03:05+01:00\"", 240},
        {"\"expires_in\":300,\"issued_at\":\"2026-01-01T21:33:05-05:30\"", 240},
        {"\"expires_in\":300,\"issued_at\":\"2026-01-02T03:01:35Z\"", 150},
        {"\"issued_at\":\"2026-01-02T03:03:55Z\"", 50},
        {"\"expires_in\":300,\"issued_at\":\"2026-01-02T03:01:34Z\"", 300},
        {"\"expires_in\":300,\"issued_at\":\"2026-01-02T03:04:06Z\"", 300},
        {"\"expires_in\":300,\"issued_at\":\"1970-01-01T00:00:00Z\"", 300},
        {"\"expires_in\":300,\"issued_at\":\"9999-12-31T23:59:60Z\"", 300},
        {"\"expires_in\":300,\"issued_at\":\"2026-13-02T03:03:05Z\"", 300},
        {"\"expires_in\":300,\"issued_at\":\"2026-00-02T03:03:05Z\"", 300},
        {"\"expires_in\":300,\"issued_at\":\"2026-01-02T03:03:05\"", 300},
        {"\"expires_in\":300,\"issued_at\":\"2026-01-02 03:03:05Z\"", 300},
        {"\"expires_in\":300,\"issued_at\":\"2026-01-02T03:03:05Zulu\"", 300},
        {"\"expires_in\":300,\"issued_at\":\"2026-01-02T03:03:05+0100\"", 300},
        {"\"expires_in\":300,\"issued_at\":\"2026\"", 300},
        {"\"expires_in\":300,\"issued_at\":\"\"", 300},
        {"\"expires_in\":300,\"issued_at\":1767322985", 300},
        {"\"expires_in\":300,\"issued_at\":null", 300},
    };
    char body[256];

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        snprintf(body, sizeof body, "{\"token\":\"t\",%s}", rows[i].fields);
        check_good(body, "t", rows[i].lifetime_s);
    }
}

static void check_bad(const char *body, size_t len, int code)
{
    struct oci_token t;
    struct err err = ERR_INIT;

    assert_int_equal(oci_token_parse(body, len, NOW, &t, &err), code);
    assert_false(secret_is_set(&t.token));
    assert_null(strstr(err.msg, "hush"));
    oci_token_release(&t);
}

static void test_refused(void **state UNUSED)
{
    static const char *const bodies[] = {
        "",
        "{}",
        "null",
        "\"hush\"",
        "[\"hush\"]",
        "hush",
        "{\"token\":\"hush\"",
        "{\"token\":\"hush\"} trailing",
        "{\"token\":\"\"}",
        "{\"token\":null,\"access_token\":\"\"}",
        "{\"token\":7}",
        "{\"token\":[\"hush\"],\"access_token\":\"hush\"}",
        "{\"token\":\"hush\",\"token\":\"hush2\"}",
        "{\"Token\":\"hush\"}",
        /* More than one value of one header */
        "{\"token\":\"hush\\r\\nHost: other\"}",
        "{\"token\":\"hush hush\"}",
        "{\"token\":\"hush\\u0000\"}",
        "{\"token\":\"hush\\u007f\"}",
        "{\"token\":\"hush\\u00e9\"}",
    };

    for (size_t i = 0; i < ARRAY_LEN(bodies); i++)
        check_bad(bodies[i], strlen(bodies[i]), ERR_FORMAT);
}

static void test_limits(void **state UNUSED)
{
    size_t cap = OCI_TOKEN_REPLY_MAX_BYTES + 1;
    char *body = malloc(cap);
    int n;

    assert_non_null(body);
    memset(body, ' ', cap);
    memcpy(body, "{\"token\":\"t\"}", strlen("{\"token\":\"t\"}"));
    check_bad(body, cap, ERR_LIMIT);
    memset(body, '[', 100);
    check_bad(body, 100, ERR_LIMIT);

    n = snprintf(body, cap, "{\"token\":\"%0*d\"}", (int)OCI_TOKEN_MAX_BYTES + 1, 7);
    check_bad(body, (size_t)n, ERR_LIMIT);
    struct oci_token t;
    struct err err = ERR_INIT;
    n = snprintf(body, cap, "{\"token\":\"%0*d\"}", (int)OCI_TOKEN_MAX_BYTES, 7);
    assert_int_equal(oci_token_parse(body, (size_t)n, NOW, &t, &err), 0);
    assert_int_equal(strlen(secret_text(&t.token)), OCI_TOKEN_MAX_BYTES);
    oci_token_release(&t);
    free(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_which_token), cmocka_unit_test(test_lifetime),
                                       cmocka_unit_test(test_refused), cmocka_unit_test(test_limits)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
