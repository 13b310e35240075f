/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_proxy.c: which way a request goes, by configuration and environment, and that no password is shown.
 */
#include "proxy/upstream.h"
#include "tests/unit/proxy_server.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/unit/proxy_util.h"

#define PASSWORD "hush%3Ahush"

static struct server server; /* an HTTP proxy, and a registry when asked without one */

static bool serve(struct server *s, int fd, unsigned nth UNUSED, const char *request)
{
    memcpy(s->last, request, strlen(request) + 1);
    if (strstr(request, "/locked") != NULL)
        return server_say(fd, "HTTP/1.1 407 Who\r\nProxy-Authenticate: Basic realm=x\r\nContent-Length: 0\r\n\r\n");
    if (strncmp(request, "CONNECT", 7) == 0)
        return server_say(fd, "HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n");
    return server_say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
}

static int set_up(void **state UNUSED)
{
    static const char *const names[] = {"http_proxy", "https_proxy", "all_proxy", "no_proxy",
                                        "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"};

    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        unsetenv(names[i]);
    server_start(&server, serve, NULL);
    return 0;
}

static int tear_down(void **state UNUSED)
{
    server_stop(&server);
    return 0;
}

struct call {
    atomic_bool ended;
    struct err err;
};

static void on_done(void *arg, struct upstream_answer *answer UNUSED, const struct err *err)
{
    struct call *c = arg;
    c->err = *err;
    atomic_store(&c->ended, true);
}

static bool ended(void *c)
{
    return atomic_load(&((struct call *)c)->ended);
}

/* One call; what became of it, and in server.last what the proxy saw. */
static int ask(const char *url, const char *http_proxy, const char *path, struct err *err)
{
    struct upstreams *ups;
    struct upstream_def def = {.name = "one", .url = url, .http_proxy = http_proxy};
    struct call c = {.err = ERR_INIT};

    server.last[0] = '\0';
    err_clear(err);
    if (upstreams_new(&(struct upstreams_options){.tries = 1}, &ups, err) < 0)
        return err->code;
    if (upstreams_add(ups, &def, err) == 0) {
        struct upstream_request req = {.up = upstream_default(ups), .path = path, .limit_bytes = 100};
        assert_int_equal(upstreams_start(ups, err), 0);
        assert_int_equal(upstream_call(ups, &req, on_done, &c, err), 0);
        assert_true(until(ended, &c));
        *err = c.err;
    }
    upstreams_stop(ups);
    upstreams_free(ups);
    assert_null(strstr(err->msg, "hush"));
    return err->code;
}

static void proxy_url(char *out, size_t cap, const char *user)
{
    snprintf(out, cap, "http://%s127.0.0.1:%d", user, server.port);
}

static bool went_through(void)
{
    return strstr(server.last, "http://registry.test/v2/") != NULL;
}

static void test_configured(void **state UNUSED)
{
    char url[100];
    struct err err = ERR_INIT;

    proxy_url(url, sizeof url, "");
    assert_int_equal(ask("http://registry.test", url, "/v2/", &err), 0);
    assert_true(went_through());
    assert_null(strstr(server.last, "Proxy-Authorization"));
    assert_int_equal(ask("http://registry.test", url + strlen("http://"), "/v2/", &err), 0);
    assert_true(went_through());
    proxy_url(url, sizeof url, "me:" PASSWORD "@");
    assert_int_equal(ask("http://registry.test", url, "/v2/", &err), 0);
    assert_non_null(strstr(server.last, "Proxy-Authorization: Basic bWU6aHVzaDpodXNo")); /* me:hush:hush */
    assert_int_equal(ask("http://registry.test", url, "/locked", &err), ERR_UPSTREAM);
    assert_non_null(strstr(err.msg, "proxy"));
    /* https: by CONNECT, which this one does not do */
    assert_int_equal(ask("https://registry.test", url, "/v2/", &err), ERR_UPSTREAM);
    assert_non_null(strstr(server.last, "CONNECT registry.test:443"));
    assert_non_null(strstr(err.msg, "403"));
}

/* The environment, as other clients have it: capitals too, but no loopback address, and not where something is configured. */
static void test_environment(void **state UNUSED)
{
    static const char *const http[] = {"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"};
    static const char *const https[] = {"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"};
    char url[100], local[100];
    struct err err = ERR_INIT;

    proxy_url(url, sizeof url, "me:" PASSWORD "@");
    for (size_t i = 0; i < ARRAY_LEN(http); i++) {
        setenv(http[i], url, 1);
        assert_int_equal(ask("http://registry.test", NULL, "/v2/", &err), 0);
        assert_true(went_through());
        assert_non_null(strstr(server.last, "Proxy-Authorization: Basic bWU6aHVzaDpodXNo"));
        unsetenv(http[i]);
        setenv(https[i], url, 1);
        assert_int_equal(ask("https://registry.test", NULL, "/v2/", &err), ERR_UPSTREAM);
        assert_non_null(strstr(server.last, "CONNECT registry.test:443"));
        unsetenv(https[i]);
    }
    setenv("HTTP_PROXY", url, 1);
    snprintf(local, sizeof local, "http://localhost:%d", server.port);
    assert_int_equal(ask(server.url, NULL, "/v2/", &err), 0);
    assert_non_null(strstr(server.last, "GET /v2/ "));
    assert_int_equal(ask(local, NULL, "/v2/", &err), 0);
    assert_non_null(strstr(server.last, "GET /v2/ "));
    assert_int_equal(ask("http://registry.test", "", "/v2/", &err), ERR_UPSTREAM); /* there is no such host */
    assert_string_equal(server.last, "");
    setenv("NO_PROXY", "example.org,.test", 1);
    assert_int_equal(ask("http://registry.test", NULL, "/v2/", &err), ERR_UPSTREAM);
    assert_string_equal(server.last, "");
    assert_int_equal(ask("http://registry.test", url, "/v2/", &err), 0); /* configured: no exceptions */
    assert_true(went_through());
    setenv("no_proxy", "example.org", 1); /* is asked first */
    assert_int_equal(ask("http://registry.test", NULL, "/v2/", &err), 0);
    assert_true(went_through());
}

static void test_bad(void **state UNUSED)
{
    static const char *const bad[] = {"ftp://me:hush@proxy:1", "http://me:hush@", "http://me:hush@proxy:99999",
                                      "://hush"};
    struct err err = ERR_INIT;

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(ask("http://registry.test", bad[i], "/v2/", &err), ERR_USAGE);
        assert_non_null(strstr(err.msg, "upstream one: http_proxy"));
        setenv("HTTPS_PROXY", bad[i], 1);
        assert_int_equal(ask("http://registry.test", NULL, "/v2/", &err), ERR_USAGE);
        assert_non_null(strstr(err.msg, "HTTPS_PROXY"));
        unsetenv("HTTPS_PROXY");
    }
    /* One that is not there is named, without its password. */
    assert_int_equal(ask("http://registry.test", "http://me:hush@127.0.0.1:1", "/v2/", &err), ERR_UPSTREAM);
    assert_non_null(strstr(err.msg, "127.0.0.1"));
    assert_int_equal(ask("http://registry.test", "http://me:hush@no-proxy.invalid:1", "/v2/", &err), ERR_UPSTREAM);
    assert_non_null(strstr(err.msg, "proxy"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_configured, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_environment, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
