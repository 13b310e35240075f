/* SPDX-License-Identifier: Apache-2.0
 * proxy/recent.c behind a server: which requests are answered without their handler, and that none gets what was another's.
 */
#include "base/clock.h"
#include "proxy/recent.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/proxy_util.h"

#define LARGE (17u << 10)

struct fixture {
    struct workpool *pool;
    struct http_server *server;
    struct http_listener *l, *other;
    struct recent *recent;
    atomic_uint handled;
    atomic_uint_fast64_t generation;
    atomic_int from_s, until_s; /* beside now */
};

/* Says the how many-th request it is; "/large" says more than is kept. */
static void handle(void *arg, struct http_exchange *x)
{
    struct fixture *f = arg;
    struct http_answer a = {.status = 200, .cache = "hit"};
    struct err err = ERR_INIT;
    int64_t now = clock_wall_s();
    size_t size = strcmp(http_path(x), "/large") == 0 ? LARGE : 16;

    a.body = calloc(1, size);
    REQUIRE(a.body && http_answer_header(&a, &err, "X-Test", "%s", http_path(x)) == 0);
    snprintf(a.body, size, "%u", atomic_fetch_add(&f->handled, 1) + 1);
    a.body_len = size == LARGE ? size : strlen(a.body);
    recent_keep(f->recent, x, atomic_load(&f->generation), now + atomic_load(&f->from_s),
                now + atomic_load(&f->until_s), &a);
    http_reply(x, &a);
}

static bool quick(void *arg, struct http_exchange *x, struct http_answer *out)
{
    struct fixture *f = arg;
    return recent_find(f->recent, x, atomic_load(&f->generation), out);
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct http_listen_options opt = {.address = "127.0.0.1:0", .quick = quick};
    struct err err = ERR_INIT;

    assert_non_null(f);
    atomic_init(&f->from_s, -60);
    atomic_init(&f->until_s, 60);
    ASSERT_OK(workpool_new("work", 2, &f->pool, &err));
    ASSERT_OK(recent_new(&f->recent, &err));
    ASSERT_OK(http_server_new(&(struct http_options){.pool = f->pool}, &f->server, &err));
    ASSERT_OK(http_listen(f->server, &opt, handle, f, &f->l, &err));
    ASSERT_OK(http_listen(f->server, &opt, handle, f, &f->other, &err));
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    http_server_drain(f->server, 5000);
    workpool_free(f->pool);
    http_server_free(f->server);
    recent_free(f->recent);
    free(f);
    return 0;
}

/* Asks, and tells how often the handler had been called when this answer was made. */
static unsigned ask(const struct http_listener *l, const char *method, const char *path, const char *headers)
{
    char *a = client_ask(http_listener_address(l), method, path, headers, NULL);
    unsigned n;

    assert_int_equal(answer_status(a), 200);
    assert_true(header_is(a, "X-Test", path[0] == '/' && strchr(path, '?') ? "/q" : path));
    n = (unsigned)strtoul(answer_body(a), NULL, 10);
    free(a);
    return n;
}

static void test_the_same_again(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(ask(f->l, "GET", "/a", "Accept: x\r\n"), 1);
    assert_int_equal(ask(f->l, "GET", "/a", "Accept: x\r\n"), 1);
    assert_int_equal(ask(f->l, "GET", "/a", "Accept: x\r\nX-Request-Id: other\r\n"), 1);
    char *a = client_ask(http_listener_address(f->l), "GET", "/a", "Accept: x\r\nX-Request-Id: mine\r\n", NULL);
    assert_true(header_is(a, "X-Request-Id", "mine"));
    free(a);
    assert_int_equal(atomic_load(&f->handled), 1);
}

static void test_anything_else_is_another_question(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *method, *path, *headers;
    } rows[] = {
        {"GET", "/q", NULL},
        {"GET", "/q?a", NULL},
        {"GET", "/q?a=1", NULL},
        {"GET", "/q", "Accept: x\r\n"},
        {"GET", "/q", "Accept: y\r\n"},
        {"GET", "/q", "Accept: x\r\nAccept: y\r\n"},
        {"GET", "/q", "Acceptx:\r\n"},
        {"GET", "/q", "Authorization: Basic YTpi\r\n"},
        {"GET", "/q", "Authorization: Basic YTpj\r\n"},
        {"GET", "/q", "If-None-Match: \"1\"\r\n"},
        {"OPTIONS", "/q", NULL},
    };

    for (unsigned i = 0; i < ARRAY_LEN(rows); i++)
        assert_int_equal(ask(f->l, rows[i].method, rows[i].path, rows[i].headers), i + 1);
    assert_int_equal(ask(f->other, "GET", "/q", NULL), ARRAY_LEN(rows) + 1);
    for (unsigned i = 0; i < ARRAY_LEN(rows); i++)
        assert_int_equal(ask(f->l, rows[i].method, rows[i].path, rows[i].headers), i + 1);
}

static void test_head(void **state)
{
    struct fixture *f = *state;

    for (int i = 0; i < 2; i++) {
        char *a = client_ask(http_listener_address(f->l), "HEAD", "/h", NULL, NULL);
        assert_true(header_is(a, "Content-Length", "1"));
        assert_string_equal(answer_body(a), "");
        free(a);
    }
    assert_int_equal(atomic_load(&f->handled), 1);
    assert_int_equal(ask(f->l, "GET", "/h", NULL), 2);
}

static void test_what_ends_it(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(ask(f->l, "GET", "/g", NULL), 1);
    atomic_fetch_add(&f->generation, 1);
    assert_int_equal(ask(f->l, "GET", "/g", NULL), 2);
    assert_int_equal(ask(f->l, "GET", "/g", NULL), 2);
    atomic_store(&f->until_s, 0);
    assert_int_equal(ask(f->l, "GET", "/past", NULL), 3);
    assert_int_equal(ask(f->l, "GET", "/past", NULL), 4);
    atomic_store(&f->until_s, 120);
    atomic_store(&f->from_s, 100); /* the clock was set back meanwhile */
    assert_int_equal(ask(f->l, "GET", "/future", NULL), 5);
    assert_int_equal(ask(f->l, "GET", "/future", NULL), 6);
}

static void test_too_large(void **state)
{
    struct fixture *f = *state;
    char headers[4096];

    assert_int_equal(ask(f->l, "GET", "/large", NULL), 1);
    assert_int_equal(ask(f->l, "GET", "/large", NULL), 2);
    snprintf(headers, sizeof(headers), "X-Long: %03000d\r\n", 1);
    assert_int_equal(ask(f->l, "GET", "/x", headers), 3);
    assert_int_equal(ask(f->l, "GET", "/x", headers), 4);
    /* a request with a body goes to its handler */
    assert_int_equal(ask(f->l, "GET", "/body", "Content-Length: 1\r\n\r\na"), 5);
    assert_int_equal(ask(f->l, "GET", "/body", "Content-Length: 1\r\n\r\nb"), 6);
}

/* However many are asked for, as many as there is room for are kept, and the last one is among them. */
static void test_bounded(void **state)
{
    struct fixture *f = *state;
    char path[32];
    unsigned kept = 0;

    for (unsigned i = 0; i < 700; i++) {
        snprintf(path, sizeof(path), "/%u", i);
        assert_int_equal(ask(f->l, "GET", path, NULL), i + 1);
    }
    assert_int_equal(ask(f->l, "GET", "/699", NULL), 700);
    atomic_store(&f->until_s, 0); /* what is asked again now pushes nothing out that is found */
    for (unsigned i = 0; i < 700; i++) {
        snprintf(path, sizeof(path), "/%u", i);
        kept += ask(f->l, "GET", path, NULL) == i + 1;
    }
    assert_in_range(kept, 100, 512);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_same_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_anything_else_is_another_question, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_head, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_ends_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_too_large, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bounded, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
