/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_remove_test.c - removal: what goes with a tag or a digest, and what stays.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/store_pin_util.h"

static void test_remove_a_tag(void **state)
{
    struct fixture *f = *state;
    int64_t a = repo_of(f->st, "a"), b = repo_of(f->st, "b");
    struct image im = put_image(f->st, a, "1", 1);
    struct store_remove_result r;
    struct err err = ERR_INIT;
    struct store_tag tag;

    put_manifest(f->st, b, "other", 1);
    (void)pin(f->st, a, "1", NULL);
    r = take_away(f->st, a, "1", NULL);
    assert_true(r.unpinned && digest_equal(&r.digest, &im.digest));
    assert_int_equal(r.shared, 2); /* by another repository's tag */
    assert_int_equal(r.originals + r.layers + r.freed_bytes + r.busy, 0);
    ASSERT_CODE(store_tag_get(f->st, a, "1", &tag, &err), ERR_NOTFOUND);
    ASSERT_CODE(store_remove(f->st, a, "1", NULL, &r, &err), ERR_NOTFOUND);
    r = take_away(f->st, b, "other", NULL);
    assert_int_equal(r.originals, 2);
    assert_int_equal(r.layers, 1);
    assert_int_equal(r.shared + r.busy, 0);
    assert_in_range(r.freed_bytes, LAYER_BYTES, LAYER_BYTES + 10000);
    assert_false(has_layer(f->st, &im.canonical) || has_original(f->st, &im.config) || has_original(f->st, &im.layer));
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM manifest"), 1); /* S4 */
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM blob"), 2);
    expect_sound_catalog(f->st);
    (void)put_image(f->st, a, "1", 1); /* and comes back */
    assert_true(has_layer(f->st, &im.canonical));
    reopen_store(f);
    expect_exact_pins(f->st);
}

/* What two images share stays for the one that is left, also when only the uncompressed layer is the same. */
static void test_remove_what_others_share(void **state)
{
    struct fixture *f = *state;
    int64_t repo = repo_of(f->st, "a");
    struct image one = put_image(f->st, repo, "1", 1), two = image_of(2);
    static uint8_t data[LAYER_BYTES];
    struct store_remove_result r;
    struct digest source;

    put_manifest(f->st, repo, "2", 2);
    put_blobs(f->st, 2);
    source = put_source(f->st, 2);
    fill_random(data, sizeof(data), 1); /* compressed another way */
    (void)write_layer(f->st, &source, data, sizeof(data));
    r = take_away(f->st, repo, "1", NULL);
    assert_int_equal(r.originals, 2);
    assert_int_equal(r.layers, 0);
    assert_int_equal(r.shared, 1);
    assert_true(has_layer(f->st, &one.canonical) && has_original(f->st, &two.layer));
    assert_true(!has_original(f->st, &one.layer) && !has_original(f->st, &one.config));
    (void)pin(f->st, 0, NULL, &two.digest);
    r = take_away(f->st, repo, "2", NULL);
    assert_int_equal(r.shared, 2);
    assert_false(r.unpinned); /* the tag was none */
    assert_true(has_layer(f->st, &one.canonical));
    put_manifest(f->st, repo_of(f->st, "b"), NULL, 2);
    r = take_away(f->st, repo_of(f->st, "b"), NULL, &two.digest);
    assert_true(!r.unpinned && r.shared == 2); /* the pin is another repository's */
    r = take_away(f->st, 0, NULL, &two.digest);
    assert_true(r.unpinned && r.layers == 1 && r.originals == 2);
}

static void test_remove_a_digest(void **state)
{
    struct fixture *f = *state;
    int64_t repo = repo_of(f->st, "a");
    struct image im = put_image(f->st, repo, NULL, 1);
    struct store_ref child = {.role = REF_CHILD, .digest = im.digest, .size_bytes = 7};
    struct store_remove_result r;
    struct source *s = NULL;
    struct err err = ERR_INIT;

    (void)put_refs(f->st, repo, "all", "index", &child, 1);
    assert_int_equal(store_remove(f->st, repo, NULL, &im.digest, &r, &err), ERR_BUSY);
    assert_non_null(strstr(err.msg, "docker.io/a:all"));
    err_clear(&err);
    ASSERT_OK(store_tag_drop(f->st, repo, "all", &err));
    ASSERT_OK(layer_open(f->st, &im.canonical, LAYER_ZSTD, 0, UINT64_MAX, &s, &err));
    r = take_away(f->st, repo, NULL, &im.digest);
    assert_true(r.originals == 2 && r.layers == 0 && r.busy == 1);
    source_free(s);
    r = take_away(f->st, 0, NULL, &im.digest);
    assert_true(r.originals == 0 && r.layers == 1 && r.busy == 0);
    assert_false(has_layer(f->st, &im.canonical));
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_remove_a_tag),
        T(test_remove_what_others_share),
        T(test_remove_a_digest),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
