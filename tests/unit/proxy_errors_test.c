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
    const char *retry_after;
} rows[] = {
    {ROUTE_MANIFEST, NULL, ERR_NOTFOUND, 404, "MANIFEST_UNKNOWN", NULL},
    {ROUTE_BLOB, NULL, ERR_NOTFOUND, 404, "BLOB_UNKNOWN", NULL},
    {ROUTE_TAGS, NULL, ERR_NOTFOUND, 404, "NAME_UNKNOWN", NULL},
    {ROUTE_REFERRERS, NULL, ERR_NOTFOUND, 404, "MANIFEST_UNKNOWN", NULL},
    {ROUTE_BLOB, "DIGEST_INVALID", ERR_FORMAT, 400, "DIGEST_INVALID", NULL},
    {ROUTE_BLOB, NULL, ERR_FORMAT, 400, "DIGEST_INVALID", NULL},
    {ROUTE_MANIFEST, NULL, ERR_FORMAT, 400, "MANIFEST_INVALID", NULL},
    {ROUTE_BASE, "UNSUPPORTED", ERR_NOTFOUND, 404, "UNSUPPORTED", NULL},
    /* recask's own trouble */
    {ROUTE_BLOB, NULL, ERR_CANCELLED, 503, "UNAVAILABLE", "5"},
    {ROUTE_BLOB, NULL, ERR_BUSY, 503, "TOOMANYREQUESTS", "5"},
    {ROUTE_BLOB, NULL, ERR_UNSUPPORTED, 400, "UNSUPPORTED", NULL},
    {ROUTE_BLOB, NULL, ERR_NOSPC, 503, "UNAVAILABLE", "30"},
    {ROUTE_BLOB, NULL, ERR_NOMEM, 503, "UNAVAILABLE", "5"},
    {ROUTE_BLOB, NULL, ERR_IO, 500, "UNKNOWN", NULL},
    {ROUTE_BLOB, NULL, ERR_USAGE, 400, "UNSUPPORTED", NULL},
    {ROUTE_BLOB, NULL, ERR_BUG, 500, "UNKNOWN", NULL},
    {ROUTE_BLOB, NULL, -99, 500, "UNKNOWN", NULL}, /* a code that somebody forgot to put into the table */
};

static const char *header(const struct http_answer *a, const char *name)
{
    for (unsigned i = 0; i < a->header_count; i++) {
        if (strcmp(a->headers[i].name, name) == 0)
            return a->headers[i].value;
    }
    return NULL;
}

static const struct error_context blob = {.kind = ROUTE_BLOB};

static void test_codes(void **state UNUSED)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        CLEANUP(http_answer_release) struct http_answer a = {.status = 0};
        struct error_context c = {.kind = rows[i].kind, .code = rows[i].code, .upstream = "up", .status = 200};
        struct err e = {.code = rows[i].err, .msg = "why"}, err = ERR_INIT;
        char want[200];

        for (int n = 0; n < 2; n++) {
            c.unavailable_503 = n == 1; /* no difference */
            http_answer_release(&a);
            a = (struct http_answer){.status = 0};
            assert_int_equal(error_answer(&a, &c, &e, &err), 0);
            assert_int_equal(a.status, rows[i].status);
            snprintf(want, sizeof(want), "{\"errors\":[{\"code\":\"%s\",\"message\":\"why\"}]}\n", rows[i].want);
            assert_string_equal(a.body, want);
            assert_int_equal(a.body_len, strlen(want));
            assert_string_equal(header(&a, "Content-Type"), "application/json");
            assert_string_equal(header(&a, "Retry-After") ? header(&a, "Retry-After") : "-",
                                rows[i].retry_after ? rows[i].retry_after : "-");
        }
    }
}

/* Case 69: what an upstream is the reason of lets a mirror's client go on to the next host. */
static const struct {
    int err;
    const char *want;
    bool passes;
} upstream_rows[] = {
    {ERR_UPSTREAM, "UNAVAILABLE", true}, {ERR_TIMEOUT, "UNAVAILABLE", true}, {ERR_THROTTLED, "TOOMANYREQUESTS", true},
    {ERR_DENIED, "DENIED", false},       {ERR_CORRUPT, "UNKNOWN", false},    {ERR_LIMIT, "UNKNOWN", false},
};

static void check_upstream_row(size_t i, struct error_context *c, int want_status, const char *want_retry)
{
    CLEANUP(http_answer_release) struct http_answer a = {.status = 0};
    struct err e = {.code = upstream_rows[i].err, .msg = "why"}, err = ERR_INIT;
    char want[300], status[32] = "";

    if (c->status)
        snprintf(status, sizeof(status), ",\"status\":%d", c->status);
    snprintf(want, sizeof(want),
             "{\"errors\":[{\"code\":\"%s\",\"message\":\"why\",\"detail\":{\"upstream\":\"u\\\"p\"%s}}]}\n",
             upstream_rows[i].want, status);
    assert_int_equal(error_answer(&a, c, &e, &err), 0);
    assert_int_equal(a.status, want_status);
    assert_string_equal(a.body, want);
    if (want_retry)
        assert_string_equal(header(&a, "Retry-After"), want_retry);
    else
        assert_null(header(&a, "Retry-After"));
}

static void test_upstream_trouble(void **state UNUSED)
{
    for (size_t i = 0; i < ARRAY_LEN(upstream_rows); i++) {
        struct error_context c = {.kind = ROUTE_MANIFEST, .upstream = "u\"p", .retry_after_s = 17, .status = 429};
        bool passes = upstream_rows[i].passes;

        check_upstream_row(i, &c, 404, NULL);
        c.unavailable_503 = true;
        check_upstream_row(i, &c, passes ? 503 : 404, passes ? "17" : NULL);
        c.retry_after_s = -1;
        c.status = 0;
        check_upstream_row(i, &c, passes ? 503 : 404, passes ? "5" : NULL);
    }
}

static void test_message_is_quoted(void **state UNUSED)
{
    CLEANUP(http_answer_release) struct http_answer a = {.status = 0};
    struct err e = {.code = ERR_UPSTREAM}, err = ERR_INIT;

    snprintf(e.msg, sizeof(e.msg), "a\"b\\c\nd\x7f\xc3\xa4\x01/");
    assert_int_equal(error_answer(&a, &blob, &e, &err), 0);
    assert_non_null(strstr(a.body, "\"a\\\"b\\\\c\\u000ad\\u007f\\u00c3\\u00a4\\u0001/\""));
}

/* The longest message, all of it escaped, still fits. */
static void test_longest_message(void **state UNUSED)
{
    CLEANUP(http_answer_release) struct http_answer a = {.status = 0};
    struct err e = {.code = ERR_UPSTREAM}, err = ERR_INIT;

    memset(e.msg, 0x01, sizeof(e.msg) - 1);
    assert_int_equal(error_answer(&a, &blob, &e, &err), 0);
    assert_true(a.body_len > 6 * (sizeof(e.msg) - 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_upstream_trouble),
        cmocka_unit_test(test_message_is_quoted),
        cmocka_unit_test(test_longest_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
