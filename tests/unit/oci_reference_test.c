/* SPDX-License-Identifier: Apache-2.0
 * oci/reference.c: the grammar of names, tags and references, at its edges.
 */
#include "oci/oci.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define HEX64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define X50 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
#define X128 X50 X50 "xxxxxxxxxxxxxxxxxxxxxxxxxxxx"
#define X255 X128 X50 X50 "xxxxxxxxxxxxxxxxxxxxxxxxxxx"

static void test_names(void **state UNUSED)
{
    static const char *const good[] = {"a",           "0",           "library/alpine",
                                       "a/b/c/d/e/f", "a.b",         "a_b",
                                       "a__b",        "a-b",         "a--b",
                                       "a-----b",     "docker.io/x", "a0/0b",
                                       "a.b_c-d/e",   "x__y.z1",     "ghcr.io/o/r-n_1.2"};
    static const char *const bad[] = {"",     "/",      "a/",  "/a",          "a//b", "A",    "a/B",   "a..b", ".a",
                                      "a.",   "_a",     "a_",  "a___b",       "-a",   "a-",   "a._b",  "a_.b", "a-.b",
                                      "a/.b", "a/-b",   "a b", "a\nb",        "a:b",  "a@b",  "a%2fb", "..",   "../a",
                                      "a/..", "a/../b", "a+b", "caf\xc3\xa9", "a\\b", "a/_b", "a-/b",  "a__/b"};

    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        if (!oci_name_valid(good[i], strlen(good[i])))
            fail_msg("refused: %s", good[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        if (oci_name_valid(bad[i], strlen(bad[i])))
            fail_msg("accepted: %s", bad[i]);
    }
    assert_true(oci_name_valid(X255, OCI_NAME_MAX_BYTES));
    assert_false(oci_name_valid(X255 "x", OCI_NAME_MAX_BYTES + 1));
    assert_true(oci_name_valid("a/b|rest", 3)); /* the length decides, not a NUL */
    assert_false(oci_name_valid("a\0b", 3));
    assert_false(oci_name_valid("a/b", 2));
}

static void test_tags(void **state UNUSED)
{
    static const char *const good[] = {"latest", "1", "_", "_x",      "V1.2-rc_3", "A",  "Z",    "a",
                                       "z",      "0", "9", "xAZaz09", "a.",        "a-", "3.19", "1.2.3-alpine"};
    static const char *const bad[] = {"", ".a", "-a", "a b", "a/b", "a:b", "a+b", "a@b", "caf\xc3\xa9", "a\n"};

    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        if (!oci_tag_valid(good[i], strlen(good[i])))
            fail_msg("refused: %s", good[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        if (oci_tag_valid(bad[i], strlen(bad[i])))
            fail_msg("accepted: %s", bad[i]);
    }
    assert_true(oci_tag_valid(X128, OCI_TAG_MAX_BYTES));
    assert_false(oci_tag_valid(X128 "x", OCI_TAG_MAX_BYTES + 1));
    assert_false(oci_tag_valid("a\0b", 3));
}

static void test_digest_tags(void **state UNUSED)
{
    assert_true(oci_tag_is_digest_tag("sha256-" HEX64));
    assert_true(oci_tag_is_digest_tag("sha256-" HEX64 ".sig"));
    assert_true(oci_tag_is_digest_tag("sha256-" HEX64 ".att"));
    assert_true(oci_tag_is_digest_tag("sha256-" HEX64 ".0123456789abcdef.sbom"));
    assert_true(oci_tag_is_digest_tag("sha256-" HEX64 "-x"));
    assert_true(oci_tag_is_digest_tag("sha256-" HEX64 "_x"));
    assert_false(oci_tag_is_digest_tag("sha256-" HEX64 "0"));
    assert_false(oci_tag_is_digest_tag("sha256-" HEX64 "z"));
    assert_false(oci_tag_is_digest_tag("sha256-0123"));
    assert_false(oci_tag_is_digest_tag("sha256-0123.sig"));
    assert_false(oci_tag_is_digest_tag("sha256:" HEX64));
    assert_false(oci_tag_is_digest_tag("sha256-"
                                       "A123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"));
    assert_false(oci_tag_is_digest_tag("x-sha256-" HEX64));
    assert_false(oci_tag_is_digest_tag("latest"));
    assert_false(oci_tag_is_digest_tag(""));
}

static int parse(const char *text, struct oci_reference *out)
{
    struct err err = ERR_INIT;
    int rc = oci_reference_parse(text, out, &err);

    assert_int_equal(rc < 0 ? rc : 0, err.code);
    return rc;
}

static void test_references(void **state UNUSED)
{
    struct oci_reference ref;

    assert_int_equal(parse("latest", &ref), 0);
    assert_false(ref.is_digest);
    assert_string_equal(ref.tag, "latest");
    assert_int_equal(parse(X128, &ref), 0);
    assert_string_equal(ref.tag, X128);
    assert_int_equal(parse("sha256:" HEX64, &ref), 0);
    assert_true(ref.is_digest);
    assert_string_equal(digest_hex(&ref.digest).s, HEX64);
    assert_string_equal(ref.tag, "");
    assert_int_equal(parse("sha256-" HEX64 ".sig", &ref), 0);
    assert_false(ref.is_digest);

    assert_int_equal(parse("", &ref), ERR_FORMAT);
    assert_int_equal(parse("a/b", &ref), ERR_FORMAT);
    assert_int_equal(parse("-a", &ref), ERR_FORMAT);
    assert_int_equal(parse(X128 "x", &ref), ERR_FORMAT);
    assert_int_equal(parse("sha256:", &ref), ERR_FORMAT);
    assert_int_equal(parse("sha256:0123", &ref), ERR_FORMAT);
    assert_int_equal(parse("sha256:" HEX64 "0", &ref), ERR_FORMAT);
    assert_int_equal(parse("SHA256:" HEX64, &ref), ERR_FORMAT);
    assert_int_equal(parse(":" HEX64, &ref), ERR_FORMAT);
    assert_int_equal(parse("sha512:" HEX64 HEX64, &ref), ERR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_tags),
        cmocka_unit_test(test_digest_tags),
        cmocka_unit_test(test_references),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
