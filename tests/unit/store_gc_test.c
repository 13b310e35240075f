/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_gc_test.c - collecting: down to the low mark, in a full store, and on a file system that cannot punch.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "store/files_internal.h"
#include "tests/unit/store_compact_util.h"

#define MIB (UINT64_C(1) << 20)

static void set_quota(struct fixture *f, uint64_t bytes, bool holes)
{
    f->opt.quota_bytes = bytes;
    f->opt.originals = ORIGINALS_DROP;
    reopen_store(f);
    small_packs(f, holes);
}

static uint64_t used(struct fixture *f)
{
    return room_used(f->st);
}

/* What went away by itself. */
static unsigned still_there(struct world *w)
{
    unsigned count = 0;

    for (unsigned i = 0; i < w->count; i++) {
        struct store_blob blob;
        struct err err = ERR_INIT;

        ASSERT_OK(store_blob_lookup(w->f->st, &w->layers[i].r.canonical, &blob, &err));
        w->layers[i].gone = !blob.canonical_present;
        count += blob.canonical_present;
    }
    return count;
}

static void test_an_empty_store(void **state)
{
    struct fixture *f = *state;
    struct store_gc_progress p;
    struct err err = ERR_INIT;
    bool wanted = true;

    ASSERT_OK(store_gc_wanted(f->st, &wanted, &err));
    assert_false(wanted);
    p = run_gc(f->st, true);
    assert_int_equal(p.evicted + p.packs + p.packs_done + p.moved_bytes + p.freed_bytes, 0);
    store_gc_free(NULL);
}

static void test_down_to_the_low_mark(void **state)
{
    struct fixture *f = *state;
    CLEANUP(free_ptr) struct world *w = NULL;
    struct store_gc_progress p;
    struct err err = ERR_INIT;
    bool more;

    set_quota(f, 64 * MIB, true);
    w = new_world(f, true);
    for (unsigned i = 0; i < 40; i++)
        (void)make_layer(w, i + 1, 100000);
    store_idle(f->st);
    f->st->opt.quota_bytes = used(f) * 100 / 93;
    ASSERT_OK(store_make_room(f->st, &more, &err));
    assert_false(more); /* below the high mark */
    p = run_gc(f->st, false);
    assert_int_equal(p.evicted, 0);
    assert_int_equal(still_there(w), 40);
    p = run_gc(f->st, true);
    assert_true(p.evicted > 0 && p.evicted_bytes >= 100000 && p.evicted_bytes < 1000000);
    assert_true(used(f) <= f->st->opt.quota_bytes / 100 * 90);
    assert_in_range(still_there(w), 25, 39);
    expect_world(w, f->st);
    assert_int_equal(run_gc(f->st, true).evicted, 0);
}

/* Far more than fits is written, and the quota holds at any time; what is there reads right. */
static void overfill(struct fixture *f, bool holes, unsigned layers)
{
    CLEANUP(free_ptr) struct world *w = NULL;
    struct store_stats s;
    struct err err = ERR_INIT;

    set_quota(f, 8 * MIB, holes);
    w = new_world(f, holes);
    for (unsigned i = 0; i < layers; i++) {
        (void)make_layer(w, i + 1, 200000 + i * 13);
        assert_true(used(f) <= 8 * MIB);
    }
    assert_in_range(still_there(w), 12, 40);
    assert_false(w->layers[w->count - 1].gone);
    expect_world(w, f->st);
    expect_sound_catalog(f->st);
    expect_packs_tell_all(f->st);
    ASSERT_OK(store_stats(f->st, &s, &err));
    assert_true(s.evictions > 0);
    assert_true(holes || s.compactions > 0);
    assert_int_equal(s.reserved_bytes, 0);
    reopen_store(f);
    expect_world(w, f->st);
}

static void test_overfilled(void **state)
{
    overfill(*state, true, 70);
}

static void test_overfilled_without_holes(void **state)
{
    overfill(*state, false, 70);
}

/* Beforehand, in the background; and some room is kept for what makes room. */
static void test_make_room_without_holes(void **state)
{
    struct fixture *f = *state;
    CLEANUP(free_ptr) struct world *w = new_world(f, false);
    struct err err = ERR_INIT;
    uint64_t limit;
    bool more = true;

    for (unsigned i = 0; i < 30; i++)
        (void)make_layer(w, i + 1, 60000);
    store_idle(f->st);
    f->st->opt.quota_bytes = used(f) * 100 / 97;
    limit = room_limit(f->st);
    small_packs(f, true);
    assert_int_equal(room_limit(f->st) - limit, SMALL_PACK_BYTES);
    small_packs(f, false);
    for (unsigned i = 0; more; i++) {
        assert_true(i < 1000);
        ASSERT_OK(store_make_room(f->st, &more, &err));
    }
    assert_true(used(f) <= f->st->opt.quota_bytes / 100 * 90);
    assert_in_range(still_there(w), 15, 29);
    expect_world(w, f->st);
}

/* There is no room at all: what moves frees its old place at once. */
static void test_a_full_store(void **state)
{
    struct fixture *f = *state;
    CLEANUP(free_ptr) struct world *w = new_world(f, true);
    uint64_t before;

    for (unsigned i = 0; i < 300; i++)
        (void)make_layer(w, i + 1, 1500);
    for (unsigned i = 0; i < 300; i++)
        if (i % 6 != 0)
            evict_layer(w, &w->layers[i]);
    store_idle(f->st);
    before = used(f);
    f->st->opt.quota_bytes = before + 200000; /* less than one step's bytes */
    assert_true(run_gc(f->st, false).packs_done > 0);
    store_idle(f->st);
    assert_true(used(f) < before);
    expect_world(w, f->st);
    expect_packs_tell_all(f->st);
}

/* Not one byte is to be had: nothing is lost, nothing is done over and over, and later it works. */
static void test_no_byte_is_free(void **state)
{
    struct fixture *f = *state;
    CLEANUP(free_ptr) struct world *w = new_world(f, false);
    uint64_t end;

    for (unsigned i = 0; i < 12; i++)
        (void)make_layer(w, i + 1, 60000);
    for (unsigned i = 0; i < 12; i++)
        if (i % 4 != 0)
            evict_layer(w, &w->layers[i]);
    end = f->st->packs->active->end;
    store_idle(f->st);
    f->st->opt.quota_bytes = used(f);
    assert_int_equal(run_gc(f->st, false).packs_done, 0);
    assert_int_equal(f->st->packs->active->end, end);
    expect_world(w, f->st);
    f->st->opt.quota_bytes = 64 * MIB;
    reopen_store(f);
    small_packs(f, false);
    assert_true(run_gc(f->st, false).packs_done > 0);
    expect_world(w, f->st);
}

/* Evictions come back to the same size of catalog: SQLite uses free pages again. Rows of digests stay, by design. */
static void test_the_catalog_does_not_grow(void **state)
{
    struct fixture *f = *state;
    CLEANUP(free_ptr) struct world *w = new_world(f, true);
    uint64_t sizes[5];
    struct made *m;
    CLEANUP(free_ptr) uint8_t *data = NULL;
    struct err err = ERR_INIT;

    m = make_layer(w, 1, 1);
    evict_layer(w, m);
    for (unsigned round = 0; round < 5; round++) {
        for (unsigned i = 0; i < 6; i++) {
            struct made own = {.seed = 1000 + i, .len = 1500000};
            struct digest source = put_source(f->st, (int)own.seed);
            struct layer_result r;

            free(data);
            data = made_bytes(&own);
            r = write_layer(f->st, &source, data, own.len);
            ASSERT_OK(store_evict(f->st, &r.canonical, &err));
        }
        (void)run_gc(f->st, false);
        store_idle(f->st);
        sizes[round] = catalog_disk_bytes(f->st);
    }
    print_message("catalog bytes: %llu, after 5 rounds %llu\n", (unsigned long long)sizes[0],
                  (unsigned long long)sizes[4]);
    assert_true(sizes[4] <= sizes[1] + 16384);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_an_empty_store),           T(test_down_to_the_low_mark),      T(test_overfilled),
        T(test_overfilled_without_holes), T(test_make_room_without_holes),   T(test_a_full_store),
        T(test_no_byte_is_free),          T(test_the_catalog_does_not_grow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
