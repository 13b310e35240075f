/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_realm.c. Case 52.
 */
#include "proxy/upstream_realm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

struct pair {
    const char *upstream, *realm;
};

static const struct pair own[] = {
    {"https://registry-1.docker.io", "https://auth.docker.io/token"},
    {"https://ghcr.io", "https://ghcr.io/token"},
    {"https://quay.io", "https://quay.io/v2/auth"},
    {"https://registry.gitlab.com", "https://gitlab.com/jwt/auth"},
    {"https://REGISTRY.example.com/sub/path", "https://auth.Example.COM:8443/token?x=y"},
    {"http://registry.example.com:5000", "http://registry.example.com:5001/"},
    {"http://registry.example.com:5000", "https://auth.example.com/"},
    {"http://127.0.0.1:5000", "http://127.0.0.1:6000/token"},
    {"http://[::1]:5000", "http://[::1]:6000/token"},
    {"http://localhost:5000", "http://localhost/token"},
    {"http://registry:5000", "http://registry/token"},
    {"https://registry.example.co.uk", "https://auth.example.co.uk/"},
};

static const struct pair foreign[] = {
    {"https://registry-1.docker.io", "https://auth.docker.com/token"},
    {"https://registry-1.docker.io", "https://docker.io.evil.example/token"},
    {"https://registry-1.docker.io", "https://notdocker.io/token"},
    {"https://registry-1.docker.io", "https://io/token"},
    {"https://docker.io", "https://io/token"},
    {"https://registry-1.docker.io", "https://evil.example/?.docker.io/"},
    {"https://registry-1.docker.io", "https://evil.example/#.docker.io/"},
    {"https://registry-1.docker.io", "https://auth.docker.io@evil.example/"},
    {"https://registry-1.docker.io", "https://evil.example@auth.docker.io/"},
    {"https://registry-1.docker.io", "https://u:p@auth.docker.io/"},
    {"https://registry-1.docker.io", "https://auth.docker.io./"},
    {"https://registry-1.docker.io", "https://auth..docker.io/"},
    {"https://registry-1.docker.io", "https://.docker.io/"},
    {"https://registry-1.docker.io", "https://caf\xc3\xa9.docker.io/"},
    {"https://registry-1.docker.io", "https://127.0.0.1/"},
    {"https://registry.example.co.uk", "https://evil.co.uk/"},
    {"https://registry.example.com.au", "https://auth.evil.com.au/"},
    {"https://example.co.uk", "https://co.uk/"},
    /* Addresses have no domain, names of one label are no domain. */
    {"http://127.0.0.1:5000", "http://localhost:5000/"},
    {"http://127.0.0.1:5000", "http://10.0.0.1/"},
    {"http://10.1.0.1:5000", "http://11.1.0.1/"},
    {"http://127.0.0.1:5000", "http://evil.0.1/"},
    {"http://[::1]:5000", "http://[::2]/"},
    {"http://localhost", "http://evil.localhost/"},
    {"http://registry:5000", "http://auth:5000/"},
    /* Schemes */
    {"https://registry-1.docker.io", "http://auth.docker.io/token"},
    {"https://ghcr.io", "http://ghcr.io/token"},
    {"http://registry.example.com", "ftp://registry.example.com/"},
    {"http://registry.example.com", "file:///etc/passwd"},
    /* What is no URL */
    {"https://ghcr.io", ""},
    {"https://ghcr.io", "ghcr.io/token"},
    {"https://ghcr.io", "//ghcr.io/token"},
    {"https://ghcr.io", "/token"},
    {"https://ghcr.io", "https://"},
    {"https://ghcr.io", "https:/ghcr.io/token"},
    {"https://ghcr.io", "https:///ghcr.io/token"},
    {"https://ghcr.io", "https:\\\\ghcr.io/token"},
    {"https://ghcr.io", "https://ghcr.io:99999/"},
    {"https://ghcr.io", "https://ghcr.io /token"},
    {"https://ghcr.io", "https://ghcr.io\t/token"},
};

static void test_own(void **state UNUSED)
{
    for (size_t i = 0; i < ARRAY_LEN(own); i++) {
        struct err err = ERR_INIT;

        if (realm_check("one.example", own[i].upstream, NULL, own[i].realm, &err) != 0)
            fail_msg("%s", err.msg);
    }
}

static void test_foreign(void **state UNUSED)
{
    for (size_t i = 0; i < ARRAY_LEN(foreign); i++) {
        struct err err = ERR_INIT;

        if (realm_check("one.example", foreign[i].upstream, NULL, foreign[i].realm, &err) != ERR_DENIED)
            fail_msg("%s and %s", foreign[i].upstream, foreign[i].realm);
        assert_int_equal(err.code, ERR_DENIED);
        assert_non_null(strstr(err.msg, "one.example"));
    }
}

static void test_message(void **state UNUSED)
{
    char realm[1000];
    struct err err = ERR_INIT;

    assert_int_equal(realm_check("docker.io", "https://docker.io", NULL, "https://evil.example/a?secret=1", &err),
                     ERR_DENIED);
    assert_non_null(strstr(err.msg, "docker.io"));
    assert_non_null(strstr(err.msg, "\"https://evil.example/a\""));
    err_clear(&err);
    snprintf(realm, sizeof realm, "https://evil.example/%0900d", 7);
    assert_int_equal(realm_check("docker.io", "https://docker.io", NULL, realm, &err), ERR_DENIED);
    assert_true(strlen(err.msg) < 300);
}

/* The allow-list: the same origin, and the listed path or what lies below it. */
static void test_listed(void **state UNUSED)
{
    static const char *const list[] = {"https://login.example.net/oauth2", "https://sso.example.org:8443", NULL};
    static const char *const good[] = {
        "https://login.example.net/oauth2",      "https://login.example.net/oauth2/token?a=b",
        "https://LOGIN.example.net:443/oauth2/", "https://sso.example.org:8443/",
        "https://sso.example.org:8443/any/path",
    };
    static const char *const bad[] = {
        "https://login.example.net/",
        "https://login.example.net/oauth2x",
        "https://login.example.net/OAuth2",
        "https://login.example.net:8443/oauth2",
        "http://login.example.net/oauth2",
        "https://login.example.net/oauth2/../admin",
        "https://login.example.net/admin/../oauth2",
        "https://login.example.net/oauth2/%2e%2E/admin",
        "https://login.example.net/oauth2/..%2fadmin",
        "https://login.example.net/x?/oauth2",
        "https://login.example.net@evil.example/oauth2",
        "https://x.login.example.net/oauth2",
        "https://sso.example.org/",
        "https://evil.example/",
    };
    static const char *const insecure[] = {"http://login.example.net", NULL};
    struct err err = ERR_INIT;

    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        if (realm_check("r", "https://r.example", list, good[i], &err) != 0)
            fail_msg("%s", err.msg);
        assert_int_equal(realm_check("r", "https://r.example", NULL, good[i], &err), ERR_DENIED);
        err_clear(&err);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        if (realm_check("r", "https://r.example", list, bad[i], &err) != ERR_DENIED)
            fail_msg("%s", bad[i]);
        err_clear(&err);
    }
    assert_int_equal(realm_check("r", "https://r.example", insecure, "http://login.example.net/", &err), ERR_DENIED);
    err_clear(&err);
    assert_int_equal(realm_check("r", "http://r.example", insecure, "http://login.example.net/", &err), 0);
}

static void test_listable(void **state UNUSED)
{
    static const char *const bad[] = {"",
                                      "login.example.net",
                                      "ftp://login.example.net",
                                      "http://login.example.net",
                                      "https://me@login.example.net",
                                      "https://login.example.net/?a",
                                      "https://login.example.net/#a",
                                      "https://login.example.net/a/../b",
                                      "https://login.example.net/%2e"};
    struct err err = ERR_INIT;

    assert_int_equal(realm_listable("https://r.example", "https://login.example.net/oauth2", &err), 0);
    assert_int_equal(realm_listable("http://r.example", "http://login.example.net", &err), 0);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        if (realm_listable("https://r.example", bad[i], &err) != ERR_USAGE)
            fail_msg("%s", bad[i]);
        err_clear(&err);
    }
}

static void test_same_origin(void **state UNUSED)
{
    static const struct {
        const char *a, *b;
        bool same;
    } rows[] = {
        {"https://x.example/v2/", "https://X.EXAMPLE:443/other?q", true},
        {"http://x.example", "http://x.example:80/", true},
        {"http://127.0.0.1:5000/a", "http://127.0.0.1:5000/b", true},
        {"http://127.0.0.1:5000/a", "http://127.0.0.1:5001/a", false},
        {"http://127.0.0.1:5000/a", "http://localhost:5000/a", false},
        {"http://x.example", "https://x.example", false},
        {"http://x.example:443", "https://x.example:443", false},
        {"https://x.example", "https://y.x.example", false},
        {"https://x.example", "https://me@x.example", false},
        {"https://x.example", "nonsense", false},
        {"", "", false},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (realm_same_origin(rows[i].a, rows[i].b) != rows[i].same)
            fail_msg("%s and %s", rows[i].a, rows[i].b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_own),     cmocka_unit_test(test_foreign),
                                       cmocka_unit_test(test_message), cmocka_unit_test(test_same_origin),
                                       cmocka_unit_test(test_listed),  cmocka_unit_test(test_listable)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
