/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_compact_test.c - compaction: packs go, and what was of use in them stays.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/store_compact_util.h"

/* ---- what goes and what stays ------------------------------------------------------------------------------------------ */

static void test_without_holes(void **state)
{
    struct fixture *f = *state;
    CLEANUP(free_ptr) struct world *w = new_world(f, false);
    struct store_gc_progress p;
    struct store_stats s;
    struct err err = ERR_INIT;
    uint64_t before;
    size_t packs;

    fill(w, 24, 60000);
    packs = packs_count(f->st->packs);
    assert_true(packs >= 6);
    before = disk(f->st);
    evict_most(w, 4);
    assert_true(disk(f->st) >= before); /* nothing was punched */
    p = run_gc(f->st, false);
    assert_in_range(p.packs_done, packs - 1, packs + 1);
    assert_true(p.moved_bytes > 5 * 60000 && p.moved_bytes < 7 * 70000);
    assert_true(p.freed_bytes > before / 2);
    assert_int_equal(p.evicted, 0);
    assert_true(disk(f->st) < before / 2);
    assert_in_range(packs_count(f->st->packs), 2, 4);
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM pack"), packs_count(f->st->packs));
    ASSERT_OK(store_stats(f->st, &s, &err));
    assert_int_equal(s.compactions, p.packs_done);
    assert_int_equal(s.compacted_bytes, p.moved_bytes);
    assert_int_equal(s.packs, packs_count(f->st->packs));
    assert_int_equal(s.pack_bytes, disk(f->st));
    expect_world(w, f->st);
    expect_sound_catalog(f->st);
    expect_packs_tell_all(f->st);
    reopen_world(w, false);
    expect_world(w, f->st);
    expect_packs_tell_all(f->st);
}

/* Small frames, each in a block of its own: punching leaves four times as much as is of use. */
static void test_scattered_frames(void **state)
{
    struct fixture *f = *state;
    CLEANUP(free_ptr) struct world *w = new_world(f, true);
    uint64_t before;

    fill(w, 300, 1500);
    evict_most(w, 6);
    before = disk(f->st);
    assert_true(run_gc(f->st, false).packs_done > 0);
    assert_true(disk(f->st) < before / 2);
    expect_world(w, f->st);
    expect_packs_tell_all(f->st);
}

static void test_what_is_dense_stays(void **state)
{
    struct fixture *f = *state;
    CLEANUP(free_ptr) struct world *w = new_world(f, true);
    struct store_gc_progress p;
    struct err err = ERR_INIT;
    bool wanted;

    fill(w, 12, 60000);
    evict_layer(w, &w->layers[1]);
    ASSERT_OK(store_gc_wanted(f->st, &wanted, &err));
    assert_true(wanted); /* nobody has looked yet */
    p = run_gc(f->st, false);
    assert_int_equal(p.packs_done, 0);
    assert_int_equal(p.moved_bytes, 0);
    ASSERT_OK(store_gc_wanted(f->st, &wanted, &err));
    assert_false(wanted);
    evict_layer(w, &w->layers[0]);
    ASSERT_OK(store_gc_wanted(f->st, &wanted, &err));
    assert_true(wanted);
    expect_world(w, f->st);
}

/* Nothing but metadata: all of it is of use, so it is left alone, again and again. */
static void test_a_pack_of_links(void **state)
{
    struct fixture *f = *state;
    struct err err = ERR_INIT;
    int64_t repo;

    small_packs(f, true);
    f->st->packs->max_bytes = 65536;
    ASSERT_OK(store_repo(f->st, "up", "name", &repo, &err));
    for (int i = 0; i < 2000; i++) {
        struct digest d;

        digest_of(&i, sizeof(i), &d);
        ASSERT_OK(store_repo_add_blob(f->st, repo, &d, 100, &err));
    }
    assert_in_range(packs_count(f->st->packs), 3, 4);
    assert_int_equal(run_gc(f->st, false).packs_done, 0);
    expect_packs_tell_all(f->st);
}

static void test_too_many_packs(void **state)
{
    struct fixture *f = *state;
    CLEANUP(free_ptr) struct world *w = new_world(f, true);

    f->st->packs->max_bytes = 8192;
    fill(w, 40, 6000);
    assert_true(packs_count(f->st->packs) >= 40);
    f->st->packs->max_bytes = 4 << 20;
    (void)run_gc(f->st, false);
    assert_in_range(packs_count(f->st->packs), 1, 20);
    expect_world(w, f->st);
    expect_packs_tell_all(f->st);
}

/* ---- metadata ------------------------------------------------------------------------------------------------------------- */

/* All that can be superseded is, across packs that are compacted in any order. */
static void use_metadata(struct fixture *f, struct world *w)
{
    struct err err = ERR_INIT;
    struct digest first, second, view;
    int64_t repo;

    ASSERT_OK(store_repo(f->st, "up", "a/b", &repo, &err));
    first = put_manifest(f->st, repo, "moves", "first");
    second = put_manifest(f->st, repo, "stays", "second");
    ASSERT_OK(store_tag_set(f->st, repo, "goes", &second, &err));
    ASSERT_OK(store_view_put(f->st, &first, 2, "application/y", "view one", 8, &view, &err));
    ASSERT_OK(store_view_put_same(f->st, &second, 1, &err));
    fill(w, 6, 60000);
    ASSERT_OK(store_tag_set(f->st, repo, "moves", &second, &err));
    ASSERT_OK(store_view_put(f->st, &first, 2, "application/y", "view two", 8, &view, &err));
    fill(w, 6, 60000);
    ASSERT_OK(store_tag_drop(f->st, repo, "goes", &err));
    ASSERT_OK(store_tag_set(f->st, repo, "moves", &first, &err));
    fill(w, 6, 60000);
}

static void test_metadata(void **state)
{
    struct fixture *f = *state;
    CLEANUP(free_ptr) struct world *w = new_world(f, false);

    use_metadata(f, w);
    for (unsigned round = 0; round < 3; round++) {
        /* Newer packs first: their records are copied, and older ones behind them. */
        for (unsigned i = 17 - round * 6; i > 12 - round * 6; i--)
            evict_layer(w, &w->layers[i - 1]);
        assert_true(run_gc(f->st, false).packs_done > 0);
        expect_packs_tell_all(f->st);
        fill(w, 5, 60000);
        expect_world(w, f->st);
    }
    reopen_world(w, false);
    expect_packs_tell_all(f->st);
}

static unsigned count_type(struct store *st, enum pack_record type)
{
    struct records rs = scan_all(st);
    unsigned count = 0;

    for (size_t i = 0; i < rs.count; i++)
        count += rs.items[i].h.type == type;
    records_release(&rs);
    return count;
}

static bool about_set_tag(const struct record *r, const void *what)
{
    struct record_tag tag;
    struct err err = ERR_INIT;

    return about_key(r, what) && record_get_tag(r->payload, r->h.len, &tag, &err) == 0 && !tag.dropped;
}

/* A pin stands for the manifest that its tag had last, which only that tag's record says. */
static void test_a_pin_of_a_dropped_tag(void **state)
{
    struct fixture *f = *state;
    CLEANUP(free_ptr) struct world *w = new_world(f, true);
    struct store_pin_result pin;
    struct err err = ERR_INIT;
    struct thing second = {.type = PACK_TAG}, first = {.type = PACK_TAG};
    struct records rs;
    int64_t repo;

    ASSERT_OK(store_repo(f->st, "up", "a/b", &repo, &err));
    first.key = put_manifest(f->st, repo, "pinned", "first");
    ASSERT_OK(store_pin(f->st, repo, "pinned", NULL, &pin, &err));
    second.key = put_manifest(f->st, repo, "pinned", "second");
    ASSERT_OK(store_tag_drop(f->st, repo, "pinned", &err));
    fill(w, 6, 60000);
    for (unsigned i = 0; i < 4; i++)
        evict_layer(w, &w->layers[i]);
    assert_true(run_gc(f->st, false).packs_done > 0);
    rs = scan_all(f->st);
    assert_non_null(winner(&rs, about_set_tag, &second));
    assert_null(winner(&rs, about_set_tag, &first));
    records_release(&rs);
    assert_int_equal(count_type(f->st, PACK_PIN), 1);
    expect_packs_tell_all(f->st);
}

/* An evicted layer's chunk list goes; that there was such a layer does not, also when it comes and goes. */
static void test_recipes_of_evicted_layers(void **state)
{
    struct fixture *f = *state;
    CLEANUP(free_ptr) struct world *w = new_world(f, true);
    CLEANUP(free_ptr) uint8_t *data = NULL;

    fill(w, 8, 60000);
    evict_most(w, 100);
    evict_layer(w, &w->layers[0]);
    fill(w, 5, 60000);
    (void)run_gc(f->st, false);
    assert_int_equal(count_type(f->st, PACK_LAYER), 8);
    assert_int_equal(count_type(f->st, PACK_RECIPE), 5);
    expect_packs_tell_all(f->st);
    data = made_bytes(&w->layers[2]);
    w->layers[2].r = write_layer(f->st, &w->layers[2].source, data, w->layers[2].len);
    w->layers[2].gone = false;
    expect_world(w, f->st);
    expect_packs_tell_all(f->st);
}

/* A record that this recask does not know is not its to throw away. */
static void test_unknown_records(void **state)
{
    struct fixture *f = *state;
    CLEANUP(free_ptr) struct world *w = new_world(f, true);
    struct err err = ERR_INIT;
    struct pack_loc loc;
    struct digest key;

    digest_of("key", 3, &key);
    ASSERT_OK(pack_append(f->st->packs, (enum pack_record)77, &key, NULL, "what", 4, &loc, &err));
    ASSERT_OK(pack_append(f->st->packs, PACK_TAG, &key, NULL, "no tag", 6, &loc, &err));
    fill(w, 10, 60000);
    evict_most(w, 9);
    evict_layer(w, &w->layers[0]);
    assert_true(run_gc(f->st, false).packs_done > 0);
    assert_int_equal(pack_end(f->st->packs, 1), 0); /* gone */
    assert_int_equal(count_type(f->st, (enum pack_record)77), 1);
    assert_int_equal(count_type(f->st, PACK_TAG), 1);
}

static void check_plan(void *arg, struct sql_db *db, const char *sql)
{
    char *explain = sqlite3_mprintf("EXPLAIN QUERY PLAN %s", sql);
    sqlite3_stmt *stmt = NULL;

    assert_int_equal(sqlite3_prepare_v2(sql_handle(db), explain, -1, &stmt, NULL), SQLITE_OK);
    while (strncmp(sql, "SELECT id, end FROM pack", 24) != 0 && sqlite3_step(stmt) == SQLITE_ROW) {
        const char *detail = (const char *)sqlite3_column_text(stmt, 3);

        /* Of what was found by an index already. */
        if (strncmp(detail, "SCAN ", 5) == 0 && strncmp(detail, "SCAN (subquery", 14) != 0 &&
            strcmp(detail, "SCAN sub") != 0 && strcmp(detail, "SCAN CONSTANT ROW") != 0 &&
            strstr(sql, "sqlite_schema") == NULL)
            fail_msg("%s\n  in %.400s", detail, sql);
    }
    (void)sqlite3_finalize(stmt);
    sqlite3_free(explain);
    ++*(unsigned *)arg;
}

/* A pack has few of the chunks, the store millions. */
static void test_no_query_scans_a_table(void **state)
{
    struct fixture *f = *state;
    CLEANUP(free_ptr) struct world *w = new_world(f, false);
    unsigned statements = 0;

    use_metadata(f, w);
    evict_most(w, 8);
    assert_true(run_gc(f->st, false).moved_bytes > 60000);
    catalog_each_statement(f->st, check_plan, &statements);
    assert_true(statements > 40);
}

/* ---- damage ------------------------------------------------------------------------------------------------------------------ */

static void test_a_bad_frame(void **state)
{
    struct fixture *f = *state;
    CLEANUP(free_ptr) struct world *w = new_world(f, false);
    CLEANUP(free_ptr) uint8_t *data = NULL;
    struct source *s = NULL;
    struct err err = ERR_INIT;

    fill(w, 10, 60000);
    flip_frame_bit(f, &w->layers[4].r.canonical, 0);
    evict_most(w, 4);
    assert_true(run_gc(f->st, false).packs_done > 0);
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM chunk WHERE pack_id IS NULL"), 1);
    ASSERT_CODE(layer_open(f->st, &w->layers[4].r.canonical, LAYER_IDENTITY, 0, UINT64_MAX, &s, &err), ERR_CORRUPT);
    ASSERT_OK(store_mark_lost(f->st, &w->layers[4].r.canonical, &err));
    data = made_bytes(&w->layers[4]);
    (void)write_layer(f->st, &w->layers[4].source, data, w->layers[4].len);
    expect_world(w, f->st);
    expect_sound_catalog(f->st);
}

/* What cannot be read just now is not thrown away. */
static void test_a_pack_that_cannot_be_read(void **state)
{
    struct fixture *f = *state;
    CLEANUP(free_ptr) struct world *w = new_world(f, false);
    struct err err = ERR_INIT;
    bool wanted;

    fill(w, 10, 60000);
    evict_most(w, 4);
    assert_int_equal(renameat(f->st->packs_fd, pack_name(1).s, f->st->packs_fd, "aside"), 0);
    lock_take(&f->st->packs->lock);
    pack_close_fd(f->st->packs, pack_find(f->st->packs, 1));
    lock_give(&f->st->packs->lock);
    (void)run_gc(f->st, false);
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM pack WHERE id = 1"), 1);
    assert_true(sql_number(f->st, "SELECT count(*) FROM chunk WHERE pack_id = 1") > 0);
    ASSERT_OK(store_gc_wanted(f->st, &wanted, &err));
    assert_false(wanted); /* set aside for a while */
    assert_int_equal(renameat(f->st->packs_fd, "aside", f->st->packs_fd, pack_name(1).s), 0);
    expect_world(w, f->st);
    reopen_world(w, false);
    (void)run_gc(f->st, false);
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM pack WHERE id = 1"), 0);
    expect_world(w, f->st);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_without_holes),
        T(test_scattered_frames),
        T(test_what_is_dense_stays),
        T(test_a_pack_of_links),
        T(test_too_many_packs),
        T(test_metadata),
        T(test_a_pin_of_a_dropped_tag),
        T(test_recipes_of_evicted_layers),
        T(test_unknown_records),
        T(test_no_query_scans_a_table),
        T(test_a_bad_frame),
        T(test_a_pack_that_cannot_be_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
