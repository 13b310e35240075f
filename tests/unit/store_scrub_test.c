/* SPDX-License-Identifier: Apache-2.0
 * A scrub: each kind of damage made on purpose is found, once, with its place; nothing else is; and what the store can put
 * right by itself is right afterwards.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/unit/store_scrub_util.h"

/* ---- what is sound ---------------------------------------------------------------------------------------------------- */

static void test_sound_store(void **state)
{
    struct fixture *f = *state;
    struct layer one, two;
    struct found found;

    expect_clean(f->st);
    add_twins(f->st, &one, &two);
    scrub_with(f->st, &found, NULL, NULL);
    assert_int_equal(found.count, 0);
    assert_int_equal(found.p.layers, 2);
    assert_int_equal(found.p.originals, 2);
    assert_true(found.p.chunks > 4);
    assert_true(found.p.bytes > 2 * LAYER_BYTES * 9 / 10);
    assert_true(found.steps > 1);
    /* Nobody's read: eviction goes by these. */
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM canonical WHERE last_read > created * 1000 + 999"), 0);
    release_layer(&one);
    release_layer(&two);
}

/* ---- frames ------------------------------------------------------------------------------------------------------------- */

static void test_flipped_frame(void **state)
{
    struct fixture *f = *state;
    struct layer l = add_layer(f->st, 1);
    struct scrub_finding got;
    struct err err = ERR_INIT;

    flip_frame_bit(f, &l.r.canonical, 400000);
    got = expect_one(f->st, SCRUB_FRAME);
    assert_int_equal(got.pack, 1);
    assert_true(got.off > 0);
    assert_int_equal(got.layer_count, 1);
    assert_true(digest_equal(&got.layers[0], &l.r.canonical));
    assert_non_null(strstr(got.text, "packs/0000000000000001.pack at "));
    assert_non_null(strstr(got.text, digest_text(&got.digest).s));

    /* Put right: lost, dropped, and written again, frame by frame the same. */
    ASSERT_OK(store_scrub_lose(f->st, &got, &err));
    ASSERT_OK(store_scrub_drop_layer(f->st, &l.r.canonical, &err));
    struct layer_result again = write_layer(f->st, &l.source, l.data, LAYER_BYTES);
    assert_true(digest_equal(&again.zstd, &l.r.zstd));
    expect_clean(f->st);
    expect_layer(f->st, &again, l.data, LAYER_BYTES);
    release_layer(&l);
}

static void test_shared_frame(void **state)
{
    struct fixture *f = *state;
    struct layer one, two;
    struct scrub_finding got;
    struct err err = ERR_INIT;

    add_twins(f->st, &one, &two);
    flip_frame_bit(f, &one.r.canonical, 0);
    got = expect_one(f->st, SCRUB_FRAME); /* once, though both have it */
    assert_int_equal(got.layer_count, 2);
    assert_false(got.more_layers);
    /* One of them written again heals both. */
    ASSERT_OK(store_scrub_lose(f->st, &got, &err));
    ASSERT_OK(store_scrub_drop_layer(f->st, &got.layers[0], &err));
    (void)expect_one(f->st, SCRUB_FRAME); /* of the other one, and known as lost */
    struct layer *first = digest_equal(&got.layers[0], &one.r.canonical) ? &one : &two;
    (void)write_layer(f->st, &first->source, first->data, LAYER_BYTES);
    expect_clean(f->st);
    expect_layer(f->st, &two.r, two.data, LAYER_BYTES);
    release_layer(&one);
    release_layer(&two);
}

/* The frame is what the row says, sum and all, but another chunk's: only its sha256 tells. */
static void test_wrong_chunk(void **state)
{
    struct fixture *f = *state;
    struct layer l = add_layer(f->st, 1);
    struct scrub_finding got;

    sql_change(f->st, "UPDATE chunk SET digest = zeroblob(32) WHERE id = 1");
    got = expect_one(f->st, SCRUB_FRAME);
    assert_non_null(strstr(got.text, "its bytes hash to"));
    release_layer(&l);
}

static void test_missing_and_short_packs(void **state)
{
    struct fixture *f = *state;
    struct layer l = add_layer(f->st, 1);
    struct found found;
    struct err err = ERR_INIT;
    char path[160];
    bool pack = false;

    store_close(f->st);
    f->st = NULL;
    (void)snprintf(path, sizeof(path), "%s/packs/%s", f->dir, pack_name(1).s);
    assert_int_equal(truncate(path, 500000), 0);
    open_store(f);
    scrub_with(f->st, &found, NULL, NULL);
    for (size_t i = 0; i < found.count; i++) {
        pack = pack || found.list[i].fault == SCRUB_PACK;
        assert_true(found.list[i].fault == SCRUB_PACK || found.list[i].fault == SCRUB_FRAME);
    }
    assert_true(pack && found.count >= 2);

    store_close(f->st);
    f->st = NULL;
    assert_int_equal(unlink(path), 0);
    open_store(f);
    scrub_with(f->st, &found, NULL, NULL);
    assert_int_equal(found.list[found.count - 1].fault, SCRUB_PACK);
    assert_non_null(strstr(found.list[found.count - 1].text, "is missing"));
    assert_int_equal(found.count, 1 + (size_t)sql_number(f->st, "SELECT count(*) FROM chunk"));
    ASSERT_CODE(store_scrub_fix(f->st, &found.list[found.count - 1], &err), ERR_BUSY);
    ASSERT_OK(store_scrub_drop_layer(f->st, &l.r.canonical, &err));
    ASSERT_OK(store_scrub_fix(f->st, &found.list[found.count - 1], &err));
    expect_clean(f->st);
    (void)write_layer(f->st, &l.source, l.data, LAYER_BYTES);
    expect_clean(f->st);
    release_layer(&l);
}

/* ---- recipes and digests -------------------------------------------------------------------------------------------------- */

static void test_recipe_with_gap(void **state)
{
    struct fixture *f = *state;
    struct layer l = add_layer(f->st, 1);
    struct scrub_finding got;
    struct err err = ERR_INIT;

    sql_change(f->st, "UPDATE recipe SET off = off + 1 WHERE off = (SELECT max(off) FROM recipe)");
    got = expect_one(f->st, SCRUB_LAYER);
    assert_true(digest_equal(&got.digest, &l.r.canonical));
    assert_int_equal(got.layer_count, 1);
    ASSERT_OK(store_scrub_drop_layer(f->st, &got.digest, &err));
    expect_clean(f->st);
    release_layer(&l);
}

static void test_recipe_row_lost(void **state)
{
    struct fixture *f = *state;
    struct layer l = add_layer(f->st, 1);
    struct found found;

    sql_change(f->st, "DELETE FROM recipe WHERE off = (SELECT max(off) FROM recipe)");
    scrub_with(f->st, &found, NULL, NULL);
    assert_int_equal(found.count, 2); /* the count is wrong as well */
    assert_int_equal(found.list[0].fault, SCRUB_COUNT);
    assert_int_equal(found.list[1].fault, SCRUB_LAYER);
    release_layer(&l);
}

/* All chunks and sums are right, the layer is another one. */
static void test_layer_digest(void **state)
{
    struct fixture *f = *state;
    struct layer l = add_layer(f->st, 1);
    struct scrub_finding got;

    sql_change(f->st, "UPDATE canonical SET digest = zeroblob(32)");
    got = expect_one(f->st, SCRUB_LAYER);
    assert_non_null(strstr(got.text, "another digest"));
    release_layer(&l);
}

static void test_zstd_digest(void **state)
{
    struct fixture *f = *state;
    struct layer l = add_layer(f->st, 1);
    struct scrub_finding got;

    sql_change(f->st, "UPDATE canonical SET zdigest = zeroblob(32)");
    got = expect_one(f->st, SCRUB_ZSTD);
    assert_true(digest_equal(&got.layers[0], &l.r.canonical));
    release_layer(&l);
}

/* ---- originals, manifests, counts, files ------------------------------------------------------------------------------------- */

static void test_originals(void **state)
{
    struct fixture *f = *state;
    struct digest a = put_source(f->st, 1), b = put_source(f->st, 2), c = put_source(f->st, 3);
    struct found found;
    struct err err = ERR_INIT;
    char path[192];

    original_path(f, &a, path, sizeof(path));
    flip_byte(path, 3);
    original_path(f, &b, path, sizeof(path));
    assert_int_equal(unlink(path), 0);
    original_path(f, &c, path, sizeof(path));
    assert_int_equal(truncate(path, 4), 0);
    scrub_with(f->st, &found, NULL, NULL);
    assert_int_equal(found.count, 3);
    for (size_t i = 0; i < 3; i++) {
        const struct digest *want = i == 0 ? &a : i == 1 ? &b : &c;

        assert_int_equal(found.list[i].fault, SCRUB_ORIGINAL);
        assert_true(digest_equal(&found.list[i].digest, want));
        assert_non_null(strstr(found.list[i].text, digest_hex(want).s));
        ASSERT_OK(store_scrub_lose(f->st, &found.list[i], &err));
    }
    expect_clean(f->st);
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM blob WHERE original_present = 1"), 0);
}

/* Bytes and sums were both changed: only the sha256 tells. */
static void test_original_digest(void **state)
{
    struct fixture *f = *state;
    struct scrub_finding got;
    struct err err = ERR_INIT;
    struct digest a = put_source(f->st, 1);
    CLEANUP(fd_cleanup) int fd = -1;
    char path[192], sql[128];

    original_path(f, &a, path, sizeof(path));
    fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "Original 1", 10, 0), 10);
    (void)snprintf(sql, sizeof(sql), "UPDATE original SET sums = x'%016" PRIx64 "'",
                   __builtin_bswap64(sum64("Original 1", 10)));
    sql_change(f->st, sql);
    got = expect_one(f->st, SCRUB_ORIGINAL);
    assert_non_null(strstr(got.text, "hash"));
    ASSERT_OK(store_scrub_lose(f->st, &got, &err));
    expect_clean(f->st);
}

static void test_counts(void **state)
{
    struct fixture *f = *state;
    struct layer l = add_layer(f->st, 1);
    struct scrub_finding got;
    struct err err = ERR_INIT;

    sql_change(f->st, "UPDATE chunk SET refs = refs + 1 WHERE id = 2");
    got = expect_one(f->st, SCRUB_COUNT);
    assert_int_equal(got.row, 2);
    ASSERT_OK(store_scrub_fix(f->st, &got, &err));
    expect_clean(f->st);

    sql_change(f->st, "UPDATE totals SET frame_bytes = frame_bytes + 1");
    got = expect_one(f->st, SCRUB_COUNT);
    assert_true(got.totals);
    ASSERT_OK(store_scrub_fix(f->st, &got, &err));
    expect_clean(f->st);

    sql_change(f->st, "UPDATE totals SET tags = 1");
    (void)expect_one(f->st, SCRUB_COUNT);
    sql_change(f->st, "UPDATE totals SET tags = 0; UPDATE canonical SET present = 0");
    got = expect_one(f->st, SCRUB_COUNT); /* C5 */
    assert_true(digest_equal(&got.digest, &l.r.canonical));
    ASSERT_OK(store_scrub_fix(f->st, &got, &err));
    expect_clean(f->st);
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM chunk"), 0);
    release_layer(&l);
}

static void test_catalog(void **state)
{
    struct fixture *f = *state;
    struct layer l = add_layer(f->st, 1);
    struct scrub_finding got;
    struct err err = ERR_INIT;

    sql_change(f->st, "PRAGMA defer_foreign_keys = ON; INSERT INTO repo (id, upstream, name) VALUES (1, 'u', 'n');"
                      "INSERT INTO repo_blob (repo_id, blob_id) VALUES (1, 1)");
    expect_clean(f->st);
    store_close(f->st);
    f->st = NULL;
    char path[128];
    struct sql_db *db = NULL;
    (void)snprintf(path, sizeof(path), "%s/catalog.db", f->dir);
    ASSERT_OK(sql_open(path, SQL_READ_WRITE, &db, &err));
    ASSERT_OK(sql_exec(db, "PRAGMA foreign_keys = OFF; DELETE FROM repo", &err));
    sql_close(db);
    open_store(f);
    got = expect_one(f->st, SCRUB_CATALOG);
    assert_non_null(strstr(got.text, "repo_blob"));
    ASSERT_CODE(store_scrub_fix(f->st, &got, &err), ERR_UNSUPPORTED);
    release_layer(&l);
}

static void test_strays(void **state)
{
    struct fixture *f = *state;
    struct layer l = add_layer(f->st, 1);
    struct found found;
    struct err err = ERR_INIT;
    char path[192];
    struct digest d;

    digest_of("nobody", 6, &d);
    (void)snprintf(path, sizeof(path), "%s/originals/%s", f->dir, original_dir(&d).s);
    assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
    original_path(f, &d, path, sizeof(path));
    CLEANUP(fd_cleanup) int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    (void)snprintf(path, sizeof(path), "%s/packs/%s", f->dir, pack_name(99).s);
    CLEANUP(fd_cleanup) int fd2 = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd2 >= 0);
    scrub_with(f->st, &found, NULL, NULL);
    assert_int_equal(found.count, 2);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(found.list[i].fault, SCRUB_STRAY);
        ASSERT_OK(store_scrub_fix(f->st, &found.list[i], &err));
    }
    expect_clean(f->st);
    release_layer(&l);
}

static void test_cancel_and_last(void **state)
{
    struct fixture *f = *state;
    struct layer l = add_layer(f->st, 1);
    struct store_scrub *s = NULL;
    struct store_scrub_progress p;
    struct store_scrub_last last, again;
    struct err err = ERR_INIT;
    bool more;

    ASSERT_OK(store_scrub_new(f->st, &s, &err));
    store_scrub_cancel(s);
    ASSERT_CODE(store_scrub_step(s, NULL, NULL, &p, &more, &err), ERR_CANCELLED);
    store_scrub_free(s);
    ASSERT_OK(store_scrub_new(f->st, &s, &err));
    ASSERT_OK(store_scrub_step(s, NULL, NULL, &p, &more, &err));
    store_scrub_free(s); /* in the middle: leaves no lease */
    ASSERT_OK(store_evict(f->st, &l.r.canonical, &err));

    ASSERT_OK(store_scrub_last(f->st, &last, &err));
    assert_true(last.since_s > 0 && last.ended_s == 0);
    last.ended_s = 12345;
    last.p = (struct store_scrub_progress){.bytes = 7, .chunks = 8, .bad = 9, .repaired = 3, .retired = 1};
    ASSERT_OK(store_scrub_remember(f->st, &last, &err));
    reopen_store(f);
    ASSERT_OK(store_scrub_last(f->st, &again, &err));
    assert_int_equal(again.since_s, last.since_s);
    assert_int_equal(again.ended_s, 12345);
    assert_int_equal(again.p.bad, 9);
    assert_int_equal(again.p.retired, 1);
    release_layer(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sound_store, setup, teardown),
        cmocka_unit_test_setup_teardown(test_flipped_frame, setup, teardown),
        cmocka_unit_test_setup_teardown(test_shared_frame, setup, teardown),
        cmocka_unit_test_setup_teardown(test_wrong_chunk, setup, teardown),
        cmocka_unit_test_setup_teardown(test_missing_and_short_packs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_recipe_with_gap, setup, teardown),
        cmocka_unit_test_setup_teardown(test_recipe_row_lost, setup, teardown),
        cmocka_unit_test_setup_teardown(test_layer_digest, setup, teardown),
        cmocka_unit_test_setup_teardown(test_zstd_digest, setup, teardown),
        cmocka_unit_test_setup_teardown(test_originals, setup, teardown),
        cmocka_unit_test_setup_teardown(test_original_digest, setup, teardown),
        cmocka_unit_test_setup_teardown(test_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_catalog, setup, teardown),
        cmocka_unit_test_setup_teardown(test_strays, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cancel_and_last, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
