/* SPDX-License-Identifier: Apache-2.0
 * proxy/errors.c: each code has a status, and the body is JSON whatever the message holds.
 */
#include "proxy/proxy_internal.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const struct {
    enum route_kind kind;
    const char *code;
    int err;
    int status;
    const char *want;
    bool retry;
} rows[] = {
    {ROUTE_MANIFEST, NULL, ERR_NOTFOUND, 404, "MANIFEST_UNKNOWN", false},
    {ROUTE_BLOB, NULL, ERR_NOTFOUND, 404, "BLOB_UNKNOWN", false},
    {ROUTE_TAGS, NULL, ERR_NOTFOUND, 404, "NAME_UNKNOWN", false},
    {ROUTE_REFERRERS, NULL, ERR_NOTFOUND, 404, "MANIFEST_UNKNOWN", false},
    {ROUTE_BLOB, "DIGEST_INVALID", ERR_FORMAT, 400, "DIGEST_INVALID", false},
    {ROUTE_BLOB, NULL, ERR_FORMAT, 400, "DIGEST_INVALID", false},
    {ROUTE_MANIFEST, NULL, ERR_FORMAT, 400, "MANIFEST_INVALID", false},
    {ROUTE_BASE, "UNSUPPORTED", ERR_NOTFOUND, 404, "UNSUPPORTED", false},
    {ROUTE_BLOB, NULL, ERR_CORRUPT, 502, "UNKNOWN", false},
    {ROUTE_BLOB, NULL, ERR_LIMIT, 502, "UNKNOWN", false},
    {ROUTE_BLOB, NULL, ERR_TIMEOUT, 504, "UNKNOWN", false},
    {ROUTE_BLOB, NULL, ERR_CANCELLED, 503, "UNAVAILABLE", true},
    {ROUTE_BLOB, NULL, ERR_BUSY, 503, "TOOMANYREQUESTS", true},
    {ROUTE_BLOB, NULL, ERR_UPSTREAM, 502, "UNKNOWN", false},
    {ROUTE_BLOB, NULL, ERR_DENIED, 403, "DENIED", false},
    {ROUTE_BLOB, NULL, ERR_UNSUPPORTED, 400, "UNSUPPORTED", false},
    {ROUTE_BLOB, NULL, ERR_NOSPC, 503, "UNAVAILABLE", true},
    {ROUTE_BLOB, NULL, ERR_NOMEM, 503, "UNAVAILABLE", true},
    {ROUTE_BLOB, NULL, ERR_IO, 500, "UNKNOWN", false},
    {ROUTE_BLOB, NULL, ERR_USAGE, 400, "UNSUPPORTED", false},
    {ROUTE_BLOB, NULL, ERR_BUG, 500, "UNKNOWN", false},
    {ROUTE_BLOB, NULL, -99, 500, "UNKNOWN", false}, /* a code that somebody forgot to put into the table */
};

static const char *header(const struct http_answer *a, const char *name)
{
    for (unsigned i = 0; i < a->header_count; i++) {
        if (strcmp(a->headers[i].name, name) == 0)
            return a->headers[i].value;
    }
    return NULL;
}

static void test_codes(void **state UNUSED)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        CLEANUP(http_answer_release) struct http_answer a = {.status = 0};
        struct err e = {.code = rows[i].err, .msg = "why"}, err = ERR_INIT;
        char want[200];

        assert_int_equal(error_answer(&a, rows[i].kind, rows[i].code, &e, &err), 0);
        assert_int_equal(a.status, rows[i].status);
        snprintf(want, sizeof(want), "{\"errors\":[{\"code\":\"%s\",\"message\":\"why\"}]}\n", rows[i].want);
        assert_string_equal(a.body, want);
        assert_int_equal(a.body_len, strlen(want));
        assert_string_equal(header(&a, "Content-Type"), "application/json");
        assert_int_equal(header(&a, "Retry-After") != NULL, rows[i].retry);
    }
}

static void test_message_is_quoted(void **state UNUSED)
{
    CLEANUP(http_answer_release) struct http_answer a = {.status = 0};
    struct err e = {.code = ERR_UPSTREAM}, err = ERR_INIT;

    snprintf(e.msg, sizeof(e.msg), "a\"b\\c\nd\x7f\xc3\xa4\x01/");
    assert_int_equal(error_answer(&a, ROUTE_BLOB, NULL, &e, &err), 0);
    assert_non_null(strstr(a.body, "\"a\\\"b\\\\c\\u000ad\\u007f\\u00c3\\u00a4\\u0001/\""));
}

/* The longest message, all of it escaped, still fits. */
static void test_longest_message(void **state UNUSED)
{
    CLEANUP(http_answer_release) struct http_answer a = {.status = 0};
    struct err e = {.code = ERR_UPSTREAM}, err = ERR_INIT;

    memset(e.msg, 0x01, sizeof(e.msg) - 1);
    assert_int_equal(error_answer(&a, ROUTE_BLOB, NULL, &e, &err), 0);
    assert_true(a.body_len > 6 * (sizeof(e.msg) - 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_message_is_quoted),
        cmocka_unit_test(test_longest_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
