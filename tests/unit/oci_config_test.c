/* SPDX-License-Identifier: Apache-2.0
 * oci/config.c: rootfs.diff_ids.
 */
#include "oci/oci.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define A "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static int parse(const char *body, size_t len, struct digest **ids, size_t *count)
{
    struct err err = ERR_INIT;
    int rc = oci_config_diff_ids(body, len, ids, count, &err);

    assert_int_equal(rc, err.code);
    if (rc < 0) {
        assert_null(*ids);
        assert_int_equal(*count, 0);
    }
    return rc;
}

static int rc_of(const char *body)
{
    struct digest *ids = NULL;
    size_t count = 7;
    int rc = parse(body, strlen(body), &ids, &count);

    assert_null(ids);
    assert_int_equal(count, 0);
    return rc;
}

static void test_lists(void **state UNUSED)
{
    static const char body[] = "{\"architecture\":\"amd64\",\"os\":\"linux\",\"x\":1.5,\"rootfs\":{\"type\":\"layers\","
                               "\"diff_ids\":[\"" A "\",\"" B "\",\"" A "\"]}}";
    CLEANUP(free_ptr) struct digest *ids = NULL;
    size_t count = 0;

    assert_int_equal(parse(body, sizeof(body) - 1, &ids, &count), 0);
    assert_int_equal(count, 3);
    assert_string_equal(digest_text(&ids[0]).s, A);
    assert_string_equal(digest_text(&ids[1]).s, B);
    assert_string_equal(digest_text(&ids[2]).s, A);
}

static void test_empty(void **state UNUSED)
{
    assert_int_equal(rc_of("{\"rootfs\":{\"diff_ids\":[]}}"), 0);
    assert_int_equal(rc_of("{\"rootfs\":{\"diff_ids\":null}}"), 0);
}

static void test_bad(void **state UNUSED)
{
    assert_int_equal(rc_of(""), ERR_FORMAT);
    assert_int_equal(rc_of("{}"), ERR_FORMAT); /* the OCI empty config: an artifact's */
    assert_int_equal(rc_of("[]"), ERR_FORMAT);
    assert_int_equal(rc_of("{\"rootfs\":null}"), ERR_FORMAT);
    assert_int_equal(rc_of("{\"rootfs\":[]}"), ERR_FORMAT);
    assert_int_equal(rc_of("{\"rootfs\":{}}"), ERR_FORMAT);
    assert_int_equal(rc_of("{\"rootfs\":{\"diff_ids\":{}}}"), ERR_FORMAT);
    assert_int_equal(rc_of("{\"rootfs\":{\"diff_ids\":\"" A "\"}}"), ERR_FORMAT);
    assert_int_equal(rc_of("{\"rootfs\":{\"diff_ids\":[\"" A "\",5]}}"), ERR_FORMAT);
    assert_int_equal(rc_of("{\"rootfs\":{\"diff_ids\":[null]}}"), ERR_FORMAT);
    assert_int_equal(rc_of("{\"rootfs\":{\"diff_ids\":[\"sha256:12\"]}}"), ERR_FORMAT);
    assert_int_equal(rc_of("{\"rootfs\":{\"diff_ids\":[\"sha512:12\"]}}"), ERR_UNSUPPORTED);
    assert_int_equal(rc_of("{\"rootfs\":{\"diff_ids\":[]},\"rootfs\":{\"diff_ids\":[\"" A "\"]}}"), ERR_FORMAT);
    assert_int_equal(rc_of("{\"rootfs\":{\"diff_ids\":[]}} x"), ERR_FORMAT);
}

static void test_too_many(void **state UNUSED)
{
    CLEANUP(buf_release) struct buf b = BUF_INIT(OCI_CONFIG_MAX_BYTES);
    CLEANUP(free_ptr) struct digest *ids = NULL;
    struct err err = ERR_INIT;
    size_t count;

    assert_int_equal(buf_str(&b, "{\"rootfs\":{\"diff_ids\":[\"" A "\"", &err), 0);
    for (size_t i = 1; i < OCI_LAYERS_MAX; i++)
        assert_int_equal(buf_str(&b, ",\"" B "\"", &err), 0);
    assert_int_equal(buf_str(&b, "]}}", &err), 0);
    assert_int_equal(parse(b.data, b.len, &ids, &count), 0);
    assert_int_equal(count, OCI_LAYERS_MAX);
    free_ptr(&ids);
    b.len -= 3;
    assert_int_equal(buf_str(&b, ",\"" A "\"]}}", &err), 0);
    assert_int_equal(parse(b.data, b.len, &ids, &count), ERR_LIMIT);
}

static void test_too_long(void **state UNUSED)
{
    static const char body[] = "{\"rootfs\":{\"diff_ids\":[]}}";
    size_t len = OCI_CONFIG_MAX_BYTES;
    CLEANUP(free_ptr) char *padded = malloc(len + 1);
    struct digest *ids = NULL;
    size_t count;

    assert_non_null(padded);
    memset(padded, ' ', len + 1);
    memcpy(padded, body, sizeof(body) - 1);
    assert_int_equal(parse(padded, len, &ids, &count), 0);
    assert_int_equal(parse(padded, len + 1, &ids, &count), ERR_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),    cmocka_unit_test(test_empty),    cmocka_unit_test(test_bad),
        cmocka_unit_test(test_too_many), cmocka_unit_test(test_too_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
