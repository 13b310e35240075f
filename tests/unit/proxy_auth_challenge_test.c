/* SPDX-License-Identifier: Apache-2.0
 * proxy/auth_challenge.c
 */
#include "proxy/auth_challenge.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_found(void **state UNUSED)
{
    static const struct {
        const char *value, *realm, *service, *scope;
    } rows[] = {
        /* Docker Hub, ghcr.io, quay.io, nvcr.io, a GitLab */
        {"Bearer realm=\"https://auth.docker.io/token\",service=\"registry.docker.io\","
         "scope=\"repository:library/alpine:pull\"",
         "https://auth.docker.io/token", "registry.docker.io", "repository:library/alpine:pull"},
        {"Bearer realm=\"https://ghcr.io/token\",service=\"ghcr.io\",scope=\"repository:a/b:pull\"",
         "https://ghcr.io/token", "ghcr.io", "repository:a/b:pull"},
        {"Bearer realm=\"https://quay.io/v2/auth\",service=\"quay.io\"", "https://quay.io/v2/auth", "quay.io", ""},
        {"Bearer realm=\"https://nvcr.io/proxy_auth?scope=repository:nvidia/cuda:pull\"",
         "https://nvcr.io/proxy_auth?scope=repository:nvidia/cuda:pull", "", ""},
        {"Bearer realm=\"https://x/jwt\",service=\"c\",scope=\"repository:a:pull\",error=\"invalid_token\"",
         "https://x/jwt", "c", "repository:a:pull"},
        /* Blanks, cases, bare values, orders, no commas, empty list members */
        {" \tbEaReR  REALM = \"r\" ,\tService\t=\ts , scope=p", "r", "s", "p"},
        {",, Bearer realm=r,,service=s,", "r", "s", ""},
        {"Bearer realm=\"r\" service=\"s\"", "r", "s", ""},
        {"Bearer", "", "", ""},
        {"Bearer ", "", "", ""},
        {"Bearer service=s", "", "s", ""},
        /* Quotes */
        {"Bearer realm=\"a\\\"b\\\\c\\d\"", "a\"b\\cd", "", ""},
        {"Bearer realm=\"a, Basic realm=b\",service=\"=\"", "a, Basic realm=b", "=", ""},
        {"Bearer x=\"realm=no\",realm=\"r\",realmx=\"no\"", "r", "", ""},
        {"Bearer realm=\"\",service=\"\"", "", "", ""},
        {"Bearer realm=\"caf\xc3\xa9\"", "caf\xc3\xa9", "", ""},
        /* Others around it */
        {"Basic realm=\"b\", Bearer realm=\"r\",service=\"s\"", "r", "s", ""},
        {"Bearer realm=\"r\", Basic realm=\"b\", charset=\"UTF-8\"", "r", "", ""},
        {"Bearer realm=\"r\", Bearer realm=\"second\"", "r", "", ""},
        {"Negotiate, NTLM, Bearer realm=r", "r", "", ""},
        {"Negotiate YII/+~._-==, Bearer realm=r", "r", "", ""},
        {"Negotiate abc= , Bearer realm=r", "r", "", ""},
        {"Bearer abc==, Basic realm=b", "", "", ""},
        {"Bearer realm=,service=s", "", "s", ""}, /* by the grammar a token68 */
        {"Digest realm=\"d\", qop=\"auth, auth-int\", nonce=\"\\\"\", Bearer realm=r", "r", "", ""},
        {"BearerX realm=\"no\", Bearer realm=r", "r", "", ""},
        {"Bearer realm=r, Basic realm=\"never closed", "r", "", ""},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct auth_challenge c;
        struct err err = ERR_INIT;

        assert_int_equal(auth_challenge_find(rows[i].value, strlen(rows[i].value), "bearer", &c, &err), 0);
        assert_string_equal(c.realm, rows[i].realm);
        assert_string_equal(c.service, rows[i].service);
        assert_string_equal(c.scope, rows[i].scope);
    }
}

static void check_bad(const char *value, size_t len, int code)
{
    struct auth_challenge c;
    struct err err = ERR_INIT;

    assert_int_equal(auth_challenge_find(value, len, "Bearer", &c, &err), code);
    assert_int_equal(err.code, code);
}

static void test_not_found(void **state UNUSED)
{
    static const struct {
        const char *value;
        int code;
    } rows[] = {
        {"", ERR_NOTFOUND},
        {" , ", ERR_NOTFOUND},
        {"Basic realm=\"Bearer realm=x\"", ERR_NOTFOUND},
        {"Basic Bearer=x", ERR_NOTFOUND},
        {"Negotiate Bearer", ERR_NOTFOUND},
        {"BearerX realm=x", ERR_NOTFOUND},
        {"Bearer realm=\"open", ERR_FORMAT},
        {"Bearer realm=\"open\\", ERR_FORMAT},
        {"Bearer realm=\"open\\\"", ERR_FORMAT},
        {"Bearer service=s,realm=", ERR_FORMAT},
        {"Bearer realm=https://x", ERR_FORMAT},
        {"Bearer realm=\"a\nb\"", ERR_FORMAT},
        {"Bearer realm=\"a\\\nb\"", ERR_FORMAT},
        {"Bearer x=\"a\x7f\",realm=r", ERR_FORMAT},
        {"Bearer realm=a,realm=b", ERR_FORMAT},
        {"Bearer scope=a,Scope=a", ERR_FORMAT},
        {"\"Bearer\" realm=a", ERR_FORMAT},
        {"=x, Bearer realm=a", ERR_FORMAT},
        {"Bearer(realm=a)", ERR_FORMAT},
        {"Bearer;realm=a", ERR_FORMAT},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        check_bad(rows[i].value, strlen(rows[i].value), rows[i].code);
    check_bad("Bearer realm=\"a\0b\"", strlen("Bearer realm=\"a") + 3, ERR_FORMAT);
    check_bad("Bearer\0realm=a", strlen("Bearer") + 8, ERR_FORMAT);
}

static void test_limits(void **state UNUSED)
{
    static const struct {
        const char *name;
        size_t max;
    } rows[] = {{"realm", AUTH_REALM_MAX_BYTES}, {"service", AUTH_SERVICE_MAX_BYTES}, {"scope", AUTH_SCOPE_MAX_BYTES}};
    char value[AUTH_CHALLENGE_MAX_BYTES + 2];
    struct auth_challenge c;
    struct err err = ERR_INIT;
    int n;

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        n = snprintf(value, sizeof value, "Bearer %s=\"%0*d\"", rows[i].name, (int)rows[i].max, 7);
        assert_int_equal(auth_challenge_find(value, (size_t)n, "Bearer", &c, &err), 0);
        n = snprintf(value, sizeof value, "Bearer %s=\"%0*d\"", rows[i].name, (int)rows[i].max + 1, 7);
        check_bad(value, (size_t)n, ERR_LIMIT);
        n = snprintf(value, sizeof value, "Basic %s=%0*d, Bearer realm=r", rows[i].name, (int)rows[i].max + 1, 7);
        assert_int_equal(auth_challenge_find(value, (size_t)n, "Bearer", &c, &err), 0);
    }
    n = snprintf(value, sizeof value, "Bearer realm=r, %0*d", (int)AUTH_CHALLENGE_MAX_BYTES - 16, 7);
    assert_int_equal(n, AUTH_CHALLENGE_MAX_BYTES);
    assert_int_equal(auth_challenge_find(value, (size_t)n, "Bearer", &c, &err), 0);
    value[n++] = '7';
    check_bad(value, (size_t)n, ERR_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_found), cmocka_unit_test(test_not_found),
                                       cmocka_unit_test(test_limits)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
