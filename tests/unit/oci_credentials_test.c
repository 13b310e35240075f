/* SPDX-License-Identifier: Apache-2.0
 * oci/credentials.c: docker's config.json and what helpers answer. Case 62.
 */
#include "oci/credentials.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define AUTH "\"auth\":\"bWU6aHVudGVyMg==\"" /* me:hunter2 */

static int find(const char *file, const char *url, struct oci_auth_entry *out)
{
    struct err err = ERR_INIT;
    int rc = oci_auth_file_find(file, strlen(file), url, out, &err);

    assert_int_equal(rc, err.code);
    assert_null(strstr(err.msg, "hunter2"));
    assert_null(strstr(err.msg, "bWU6"));
    return rc;
}

/* want: "user:password", "token <identity>", "helper NAME", "" for nothing. */
static void check(const char *file, const char *url, const char *want)
{
    struct oci_auth_entry e;
    char got[256] = "";

    if (find(file, url, &e) < 0)
        fail_msg("%s", file);
    if (e.helper != NULL)
        snprintf(got, sizeof got, "helper %s", e.helper);
    else if (secret_is_set(&e.credentials.identity))
        snprintf(got, sizeof got, "token %s", secret_text(&e.credentials.identity));
    else if (secret_is_set(&e.credentials.password))
        snprintf(got, sizeof got, "%s:%s", e.credentials.username, secret_text(&e.credentials.password));
    assert_int_equal(got[0] == '\0', e.helper == NULL && oci_credentials_anonymous(&e.credentials));
    if (strcmp(got, want) != 0)
        fail_msg("%s for %s: %s", file, url, got);
    oci_auth_entry_release(&e);
}

static void check_key(const char *key, const char *url, bool good)
{
    char file[512];

    snprintf(file, sizeof file, "{\"auths\":{\"other.example\":{},\"%s\":{" AUTH "}}}", key);
    check(file, url, good ? "me:hunter2" : "");
}

static void test_keys(void **state UNUSED)
{
    static const char *const good[] = {"r.example",
                                       "R.Example",
                                       "r.example/",
                                       "https://r.example",
                                       "https://r.example/v1/",
                                       "https://r.example/v2/",
                                       "r.example/v2",
                                       "https://r.example:443",
                                       "HTTPS://r.example"};
    static const char *const bad[] = {"r.example:5000",   "xr.example",      "r.example.org",
                                      "http://r.example", "example",         "",
                                      "r.example/prefix", "ftp://r.example", "r.example@x"};

    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        check_key(good[i], "https://r.example", true);
        check_key(good[i], "https://r.example:443/sub/path", true);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        check_key(bad[i], "https://r.example", false);
    check_key("r.example:5000", "http://r.example:5000", true);
    check_key("http://r.example:5000", "http://r.example:5000", true);
    check_key("r.example", "http://r.example:80", true);
    check_key("r.example", "http://r.example:443", false);
    /* A password that was stored for https is not sent in the clear. */
    check_key("https://r.example:5000", "http://r.example:5000", false);
    check_key("[::1]:5000", "http://[::1]:5000", true);
}

static void test_hub(void **state UNUSED)
{
    static const char *const keys[] = {"https://index.docker.io/v1/", "index.docker.io", "docker.io",
                                       "registry-1.docker.io", "https://registry-1.docker.io/v2/"};
    static const char *const urls[] = {"https://registry-1.docker.io", "https://index.docker.io", "https://docker.io/"};

    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        for (size_t j = 0; j < ARRAY_LEN(urls); j++)
            check_key(keys[i], urls[j], true);
        check_key(keys[i], "https://auth.docker.io", false);
        check_key(keys[i], "https://docker.io.example", false);
    }
}

static void test_paths(void **state UNUSED)
{
    static const char file[] = "{\"auths\":{\"r.example/a/b\":{\"auth\":\"eDphYg==\"},\"r.example\":{" AUTH "},"
                               "\"r.example/a\":{\"auth\":\"eDph\"}}}";

    check(file, "https://r.example", "me:hunter2");
    check(file, "https://r.example/ab", "me:hunter2");
    check(file, "https://r.example/a", "x:a");
    check(file, "https://r.example/a/bc", "x:a");
    check(file, "https://r.example/a/b", "x:ab");
    check(file, "https://r.example/a/b/c/", "x:ab");
}

static void test_forms(void **state UNUSED)
{
    static const char url[] = "https://r.example";

    check("{}", url, "");
    check("{\"auths\":null}", url, "");
    check("{\"auths\":{\"r.example\":{}}}", url, "");
    check("{\"auths\":{\"r.example\":null}}", url, "");
    check("{\"auths\":{\"r.example\":{\"auth\":\"\",\"identitytoken\":\"\"}}}", url, "");
    check("{\"auths\":{\"r.example\":{\"username\":\"u\",\"password\":\"p:q\"}}}", url, "u:p:q");
    check("{\"auths\":{\"r.example\":{\"auth\":\"bWU6aHVudGVyMgAA\"}}}", url, "me:hunter2");
    check("{\"auths\":{\"r.example\":{" AUTH ",\"identitytoken\":\"refresh\",\"email\":1}}}", url, "token refresh");
    check("{\"auths\":{\"r.example\":{\"auth\":\"dTo6OnA=\"}}}", url, "u:::p");
    check("{\"auths\":{\"r.example\":{\"username\":\"j\xc3\xbcrgen\",\"password\":\"\xf0\x9f\x94\x91\"}}}", url,
          "j\xc3\xbcrgen:\xf0\x9f\x94\x91");
    /* An empty entry, which `docker login` writes beside a helper, does not hide another key. */
    check("{\"auths\":{\"r.example\":{},\"https://r.example/v1/\":{" AUTH "}}}", url, "me:hunter2");
    /* Somebody else's entry may be odd. */
    check("{\"auths\":{\"x.example\":7,\"r.example\":{" AUTH "}}}", url, "me:hunter2");
}

static void test_helpers(void **state UNUSED)
{
    static const char url[] = "https://r.example";

    check("{\"credsStore\":\"pass\"}", url, "helper pass");
    check("{\"credsStore\":\"pass\",\"auths\":{\"r.example\":{}}}", url, "helper pass");
    check("{\"credsStore\":\"pass\",\"auths\":{\"r.example\":{" AUTH "}}}", url, "me:hunter2");
    check("{\"credHelpers\":{\"r.example\":\"ecr-login\"},\"auths\":{\"r.example\":{" AUTH "}}}", url,
          "helper ecr-login");
    check("{\"credHelpers\":{\"x.example\":\"ecr-login\"},\"credsStore\":\"pass\"}", url, "helper pass");
    check("{\"credHelpers\":{\"r.example\":\"\"},\"credsStore\":\"pass\"}", url, "");
    check("{\"credHelpers\":{\"r.example\":\"\"},\"auths\":{\"r.example\":{" AUTH "}}}", url, "me:hunter2");
}

static void test_bad_files(void **state UNUSED)
{
    static const char *const rows[] = {
        "",
        "[]",
        "{\"auths\":{\"r.example\":{" AUTH "}}",
        "{\"auths\":[]}",
        "{\"auths\":{\"r.example\":{\"auth\":7}}}",
        "{\"auths\":{\"r.example\":{\"auth\":\"hunter2\"}}}",
        "{\"auths\":{\"r.example\":{\"auth\":\"aHVudGVyMg==\"}}}",     /* no colon */
        "{\"auths\":{\"r.example\":{\"auth\":\"Omh1bnRlcjI=\"}}}",     /* no user */
        "{\"auths\":{\"r.example\":{\"auth\":\"bWU6\"}}}",             /* no password */
        "{\"auths\":{\"r.example\":{\"auth\":\"bWU6aHVuCnRlcjI=\"}}}", /* a line end */
        "{\"auths\":{\"r.example\":{\"password\":\"hunter2\"}}}",
        "{\"auths\":{\"r.example\":{\"username\":\"a:b\",\"password\":\"hunter2\"}}}",
        "{\"auths\":{\"r.example\":{\"username\":\"me\",\"password\":\"hunter2\\u0007\"}}}",
        "{\"auths\":{\"r.example\":{\"identitytoken\":[\"hunter2\"]}}}",
        "{\"auths\":{\"r.example\":{" AUTH "},\"r.example\":{" AUTH "}}}",
        "{\"credHelpers\":{\"r.example\":\"../hunter2\"}}",
        "{\"credHelpers\":{\"r.example\":7}}",
        "{\"credsStore\":\"a b\"}",
        "{\"credsStore\":{}}",
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct oci_auth_entry e;

        if (find(rows[i], "https://r.example", &e) != ERR_FORMAT)
            fail_msg("%s", rows[i]);
        assert_true(e.helper == NULL && oci_credentials_anonymous(&e.credentials) && e.credentials.username == NULL);
    }
}

static void test_limits(void **state UNUSED)
{
    size_t len = OCI_AUTH_FILE_MAX_BYTES + 1;
    char *big = malloc(len);
    struct oci_auth_entry e;
    struct oci_credentials c;
    struct err err = ERR_INIT;

    assert_non_null(big);
    memset(big, ' ', len);
    assert_int_equal(oci_auth_file_find(big, len, "https://r.example", &e, &err), ERR_LIMIT);
    memset(big, 'a', len);
    err_clear(&err);
    assert_int_equal(oci_credentials_set(&c, "me", big, OCI_SECRET_MAX_BYTES + 1, &err), ERR_LIMIT);
    err_clear(&err);
    big[OCI_USERNAME_MAX_BYTES + 1] = '\0';
    assert_int_equal(oci_credentials_set(&c, big, "p", 1, &err), ERR_LIMIT);
    free(big);
}

static void test_basic(void **state UNUSED)
{
    struct oci_credentials c;
    struct secret basic = SECRET_INIT;
    struct err err = ERR_INIT;

    assert_int_equal(oci_credentials_set(&c, "Aladdin", "open sesame", 11, &err), 0);
    assert_int_equal(oci_credentials_basic(&c, &basic, &err), 0);
    assert_string_equal(secret_text(&basic), "QWxhZGRpbjpvcGVuIHNlc2FtZQ=="); /* RFC 7617, 2 */
    secret_release(&basic);
    oci_credentials_release(&c);
    assert_int_equal(oci_credentials_set(&c, "me", "a\0b", 3, &err), ERR_FORMAT);
}

static void check_server(const char *url, const char *want)
{
    CLEANUP(free_ptr) char *got = NULL;
    struct err err = ERR_INIT;

    assert_int_equal(oci_credentials_server(url, &got, &err), 0);
    assert_string_equal(got, want);
}

static void test_server(void **state UNUSED)
{
    check_server("https://registry-1.docker.io", "https://index.docker.io/v1/");
    check_server("https://ghcr.io", "ghcr.io");
    check_server("https://ghcr.io:443/x", "ghcr.io");
    check_server("http://127.0.0.1:5000/a/b", "127.0.0.1:5000");
}

static void test_reply(void **state UNUSED)
{
    static const char *const bad[] = {"",
                                      "hunter2",
                                      "{\"Username\":\"me\"}",
                                      "{\"Secret\":\"hunter2\"}",
                                      "{\"Username\":\"\",\"Secret\":\"hunter2\"}",
                                      "{\"Username\":\"a:b\",\"Secret\":\"hunter2\"}",
                                      "{\"Username\":\"<token>\",\"Secret\":\"\"}",
                                      "{\"Username\":\"me\",\"Secret\":[\"hunter2\"]}",
                                      "{\"Username\":\"me\",\"Secret\":\"hunter2\"} trailing"};
    static const char user[] = "{\"ServerURL\":\"r.example\",\"Username\":\"AWS\",\"Secret\":\"pw\"}\n";
    static const char token[] = "{\"Username\":\"<token>\",\"Secret\":\"refresh\"}";
    struct oci_credentials c;
    struct err err = ERR_INIT;

    assert_int_equal(oci_helper_reply(user, strlen(user), &c, &err), 0);
    assert_string_equal(c.username, "AWS");
    assert_string_equal(secret_text(&c.password), "pw");
    oci_credentials_release(&c);
    assert_int_equal(oci_helper_reply(token, strlen(token), &c, &err), 0);
    assert_null(c.username);
    assert_false(secret_is_set(&c.password));
    assert_string_equal(secret_text(&c.identity), "refresh");
    oci_credentials_release(&c);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        err_clear(&err);
        if (oci_helper_reply(bad[i], strlen(bad[i]), &c, &err) != ERR_FORMAT)
            fail_msg("%s", bad[i]);
        assert_null(strstr(err.msg, "hunter2"));
        assert_true(oci_credentials_anonymous(&c) && c.username == NULL);
    }
    assert_true(oci_helper_has_none("credentials not found in native keychain\n", 41));
    assert_false(oci_helper_has_none("", 0));
    assert_false(oci_helper_has_none("no such file", 12));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),   cmocka_unit_test(test_hub),     cmocka_unit_test(test_paths),
        cmocka_unit_test(test_forms),  cmocka_unit_test(test_helpers), cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_limits), cmocka_unit_test(test_basic),   cmocka_unit_test(test_server),
        cmocka_unit_test(test_reply),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
