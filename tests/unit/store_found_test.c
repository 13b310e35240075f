/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_found_test.c - what the model (store_model_test.c) found: each fault once more, alone.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/unit/store_layer_util.h"

#include <pthread.h>

/* Two layers with one large file in common, which is damaged. The first one to be read finds it out; the second one is no
 * less lost for its chunk being known to be. */
static void test_a_shared_chunk_that_is_known_to_be_lost(void **state)
{
    struct fixture *f = *state;
    struct tar a = {.data = NULL}, b = {.data = NULL};
    struct layer_result first, second;
    struct store_blob blob;
    struct digest of_a, of_b;
    struct err err = ERR_INIT;
    size_t at = tar_file(&a, "shared", 200000, 1);

    (void)tar_file(&b, "shared", 200000, 1);
    (void)tar_file(&b, "own", 100000, 2);
    tar_end(&a);
    tar_end(&b);
    of_a = put_source(f->st, 1);
    of_b = put_source(f->st, 2);
    first = write_layer(f->st, &of_a, a.data, a.len);
    second = write_layer(f->st, &of_b, b.data, b.len);
    flip_frame_bit(f, &first.canonical, at);
    ASSERT_OK(store_mark_lost(f->st, &first.canonical, &err));
    ASSERT_OK(store_mark_lost(f->st, &second.canonical, &err));
    ASSERT_OK(store_blob_lookup(f->st, &second.canonical, &blob, &err));
    assert_false(blob.canonical_present);
    second = write_layer(f->st, &of_b, b.data, b.len);
    expect_layer(f->st, &second, b.data, b.len);
    tar_release(&a);
    tar_release(&b);
}

/* Read, then fetched again, then the read is written down. */
static void test_a_note_is_older_than_the_row(void **state)
{
    struct fixture *f = *state;
    struct digest d = put_source(f->st, 1);
    struct source *s = NULL;
    struct err err = ERR_INIT;
    int64_t before;

    for (int i = 0; i < 2; i++) {
        ASSERT_OK(original_open(f->st, &d, 0, UINT64_MAX, &s, &err));
        source_free(s);
        if (i == 0)
            store_idle(f->st); /* the second note waits for its turn, a minute later */
    }
    before = clock_wall_ms();
    while (clock_wall_ms() == before)
        usleep(1000);
    (void)put_source(f->st, 1);
    store_idle(f->st);
    assert_true(sql_number(f->st, "SELECT last_read FROM blob") > before);
}

/* Whatever a transaction writes down goes with it: then a later one does. */
static void test_a_note_outlives_a_transaction_that_fails(void **state)
{
    struct fixture *f = *state;
    struct digest d = put_source(f->st, 1);
    struct catalog_tx tx = CATALOG_TX_INIT;
    struct source *s = NULL;
    struct err err = ERR_INIT;
    int64_t before = clock_wall_ms();

    reopen_store(f); /* the first transaction writes at once */
    while (clock_wall_ms() <= before)
        usleep(1000);
    before = clock_wall_ms();
    ASSERT_OK(original_open(f->st, &d, 0, UINT64_MAX, &s, &err));
    source_free(s);
    ASSERT_OK(catalog_begin(f->st, &tx, &err));
    catalog_abort(&tx);
    store_idle(f->st);
    assert_true(sql_number(f->st, "SELECT last_read FROM blob") >= before);
}

struct opener {
    pthread_t thread;
    struct store *st;
    struct digest d;
    int code;
};

static void *run_opener(void *arg)
{
    struct opener *o = arg;
    struct source *s = NULL;
    struct err err = ERR_INIT;

    o->code = layer_open(o->st, &o->d, LAYER_IDENTITY, 0, UINT64_MAX, &s, &err);
    source_free(s);
    return NULL;
}

/* Until the eviction is over nobody can say whether the layer is there: who asks gets the answer then, and not "present" from
 * the catalog and "not found" from the reader in turn. Here the eviction fails, so the layer stays. */
static void test_a_reader_waits_for_an_eviction(void **state)
{
    struct fixture *f = *state;
    struct digest of = put_source(f->st, 1);
    struct layer_result r = write_layer(f->st, &of, "layer", 5);
    struct opener o = {.st = f->st, .d = r.canonical};
    struct err err = ERR_INIT;

    ASSERT_OK(lease_doom(f->st, LEASE_CANONICAL, &r.canonical, &err));
    assert_int_equal(pthread_create(&o.thread, NULL, run_opener, &o), 0);
    usleep(50000);
    lease_undoom(f->st, LEASE_CANONICAL, &r.canonical);
    assert_int_equal(pthread_join(o.thread, NULL), 0);
    assert_int_equal(o.code, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_shared_chunk_that_is_known_to_be_lost, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_note_outlives_a_transaction_that_fails, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_reader_waits_for_an_eviction, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_note_is_older_than_the_row, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
