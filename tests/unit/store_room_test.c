/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_room_test.c - the quota: what is taken, what goes, in which order, and what comes back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/store_layer_util.h"

#include <pthread.h>

#define MIB (UINT64_C(1) << 20)
#define BLOB_BYTES 300000

static int setup_keep(void **state)
{
    struct fixture *f;
    int rc = setup(state);

    f = *state;
    f->opt.originals = ORIGINALS_KEEP;
    reopen_store(f);
    return rc;
}

static struct store_stats stats(struct store *st)
{
    struct store_stats s;
    struct err err = ERR_INIT;

    ASSERT_OK(store_stats(st, &s, &err));
    return s;
}

/* The quota is what is used now and so much more; rows that are written from here on come out of it too. */
static void leave_room(struct fixture *f, uint64_t bytes)
{
    uint64_t want = room_used(f->st) + bytes;

    f->st->opt.quota_bytes = want + want / 31 + 31; /* what needs no taking is a 32nd of it */
}

static struct digest put_noise(struct store *st, unsigned seed, size_t len)
{
    CLEANUP(free_ptr) uint8_t *data = malloc(len);

    assert_non_null(data);
    fill_random(data, len, seed);
    return put_original(st, data, len);
}

/* A layer of its own, and an original that stands for it. */
static struct layer_result put_layer(struct store *st, unsigned seed, struct digest *out_original)
{
    CLEANUP(free_ptr) uint8_t *data = malloc(BLOB_BYTES);

    assert_non_null(data);
    *out_original = put_noise(st, 1000 + seed, BLOB_BYTES);
    fill_random(data, BLOB_BYTES, seed);
    return write_layer(st, out_original, data, BLOB_BYTES);
}

static bool has_original(struct store *st, const struct digest *d)
{
    CLEANUP(source_cleanup) struct source *s = NULL;
    struct err err = ERR_INIT;

    return original_open_quietly(st, d, &s, &err) == 0;
}

static bool has_layer(struct store *st, const struct digest *canonical)
{
    struct store_blob blob;
    struct err err = ERR_INIT;

    ASSERT_OK(store_blob_lookup(st, canonical, &blob, &err));
    return blob.canonical_present;
}

/* As if the store were much too large; each step takes one thing, but for the first, which empties the catalog's log. */
static void evict_one(struct fixture *f)
{
    uint64_t evictions = stats(f->st).evictions;
    struct err err = ERR_INIT;
    bool more = true;

    f->st->opt.quota_bytes = 100;
    while (more && stats(f->st).evictions == evictions)
        ASSERT_OK(store_make_room(f->st, &more, &err));
    assert_int_equal(stats(f->st).evictions, evictions + 1);
    f->st->opt.quota_bytes = 1024 * MIB;
    ASSERT_OK(store_make_room(f->st, &more, &err));
    assert_false(more);
}

/* ---- taking ------------------------------------------------------------------------------------------------------------ */

static void test_take_and_give(void **state)
{
    struct fixture *f = *state;
    struct digest d = put_noise(f->st, 1, BLOB_BYTES);
    struct err err = ERR_INIT;

    leave_room(f, MIB);
    ASSERT_OK(room_take(f->st, MIB / 2, &err));
    assert_int_equal(stats(f->st).reserved_bytes, MIB / 2);
    assert_int_equal(stats(f->st).quota_bytes, f->st->opt.quota_bytes);
    /* What can never fit costs nobody anything. */
    ASSERT_CODE(room_take(f->st, UINT64_MAX, &err), ERR_NOSPC);
    ASSERT_CODE(room_take(f->st, UINT64_MAX - 5000, &err), ERR_NOSPC);
    ASSERT_CODE(room_take(f->st, room_limit(f->st) - MIB / 2, &err), ERR_NOSPC);
    assert_true(has_original(f->st, &d));
    /* This can, when the blob goes. */
    ASSERT_OK(room_take(f->st, MIB / 2 + 100000, &err));
    assert_false(has_original(f->st, &d));
    /* Nothing is left to go. */
    ASSERT_CODE(room_take(f->st, MIB, &err), ERR_NOSPC);
    room_give(f->st, MIB / 2);
    room_give(f->st, MIB / 2 + 100000);
    ASSERT_OK(room_take(f->st, MIB, &err));
    room_give(f->st, MIB);
    assert_int_equal(stats(f->st).reserved_bytes, 0);
}

static void test_spool(void **state)
{
    struct fixture *f = *state;
    static uint8_t data[3 << 20];
    CLEANUP(spool_cleanup) struct spool *known = NULL, *grows = NULL;
    struct err err = ERR_INIT;
    struct digest d;

    fill_random(data, sizeof(data), 1);
    digest_of(data, sizeof(data), &d);
    leave_room(f, 4 * MIB + 100000);
    ASSERT_OK(spool_open(f->st, &known, &err));
    ASSERT_OK(spool_expect(known, sizeof(data), &err));
    assert_int_equal(stats(f->st).reserved_bytes, sizeof(data));
    ASSERT_OK(spool_open(f->st, &grows, &err));
    ASSERT_OK(spool_write(grows, data, 1000, &err));
    assert_int_equal(stats(f->st).reserved_bytes, sizeof(data) + MIB);
    ASSERT_OK(spool_write(grows, data + 1000, MIB - 1000, &err));
    ASSERT_CODE(spool_write(grows, data + MIB, 1, &err), ERR_NOSPC); /* what is promised stays promised */
    ASSERT_CODE(spool_write(grows, data + MIB, 1, &err), ERR_IO);    /* F: it takes no more */
    assert_int_equal(spool_bytes(grows), MIB);
    ASSERT_OK(spool_write(known, data, sizeof(data), &err));
    ASSERT_OK(spool_commit(known, &d, 0, &err));
    assert_int_equal(stats(f->st).reserved_bytes, MIB);
    spool_unref(steal(&grows));
    assert_int_equal(stats(f->st).reserved_bytes, 0);
    assert_true(has_original(f->st, &d));
    spool_unref(steal(&known));
    assert_int_equal(stats(f->st).reserved_bytes, 0);
}

/* Larger than the quota: nothing goes for it. And a length that is not true is not more than a reservation. */
static void test_a_blob_larger_than_the_quota(void **state)
{
    struct fixture *f = *state;
    struct digest d = put_noise(f->st, 1, BLOB_BYTES);
    CLEANUP(spool_cleanup) struct spool *sp = NULL, *more = NULL;
    struct err err = ERR_INIT;

    leave_room(f, MIB);
    ASSERT_OK(spool_open(f->st, &sp, &err));
    ASSERT_CODE(spool_expect(sp, UINT64_C(1) << 62, &err), ERR_NOSPC);
    ASSERT_CODE(spool_write(sp, "x", 1, &err), ERR_IO);
    assert_true(has_original(f->st, &d));
    ASSERT_OK(spool_open(f->st, &more, &err));
    ASSERT_OK(spool_expect(more, 10, &err));
    ASSERT_OK(spool_write(more, "more than ten bytes", 19, &err));
}

/* ---- order ----------------------------------------------------------------------------------------------------------------- */

static void read_original(struct store *st, const struct digest *d)
{
    struct source *s = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(original_open(st, d, 0, UINT64_MAX, &s, &err));
    source_free(s);
}

static void test_spare_originals_go_first(void **state)
{
    struct fixture *f = *state;
    struct digest o1, o2, plain = put_noise(f->st, 7, BLOB_BYTES);
    struct layer_result a = put_layer(f->st, 1, &o1), b = put_layer(f->st, 2, &o2);

    /* The oldest is the one without a layer, and its turn comes after the spare one all the same. */
    sql_change(f->st, "UPDATE blob SET last_read = 100 + id; UPDATE canonical SET last_read = 500 + id, created = 1");
    read_original(f->st, &o1); /* by a client, a moment ago: no spare one, and the catalog does not know it yet */
    evict_one(f);
    assert_true(!has_original(f->st, &o2) && has_original(f->st, &o1) && has_original(f->st, &plain));
    evict_one(f);
    assert_true(!has_original(f->st, &plain) && has_layer(f->st, &a.canonical));
    evict_one(f);
    assert_true(!has_layer(f->st, &a.canonical) && has_layer(f->st, &b.canonical));
    evict_one(f);
    assert_true(!has_layer(f->st, &b.canonical) && has_original(f->st, &o1));
    evict_one(f);
    assert_false(has_original(f->st, &o1));
    expect_sound_catalog(f->st);
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM blob"), 3); /* S4 */
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM canonical"), 2);
}

static void test_kept_originals_take_their_turn(void **state)
{
    struct fixture *f = *state;
    struct digest o;
    struct layer_result a = put_layer(f->st, 1, &o);

    sql_change(f->st, "UPDATE blob SET last_read = 200; UPDATE canonical SET last_read = 100");
    evict_one(f);
    assert_true(has_original(f->st, &o) && !has_layer(f->st, &a.canonical));
    evict_one(f);
    assert_false(has_original(f->st, &o));
}

static void test_small_ones_stay_a_week_longer(void **state)
{
    struct fixture *f = *state;
    struct digest old = put_noise(f->st, 1, 60000), young = put_noise(f->st, 2, 60000);
    struct digest large = put_noise(f->st, 3, BLOB_BYTES);

    sql_change(f->st, "UPDATE blob SET last_read = id * 1000 + (id > 1) * 864000000"); /* ten days */
    evict_one(f);
    assert_true(!has_original(f->st, &old) && has_original(f->st, &young) && has_original(f->st, &large));
    evict_one(f);
    assert_true(has_original(f->st, &young) && !has_original(f->st, &large));
    evict_one(f);
    assert_false(has_original(f->st, &young));
}

/* Whose layer is gone, that original is no spare one. */
static void test_an_original_without_its_layer(void **state)
{
    struct fixture *f = *state;
    struct digest o1, o2, younger;
    struct layer_result a = put_layer(f->st, 1, &o1);
    struct err err = ERR_INIT;

    (void)put_layer(f->st, 2, &o2);
    younger = o1;
    ASSERT_OK(store_evict(f->st, &a.canonical, &err));
    sql_change(f->st, "UPDATE blob SET last_read = 100 - id; UPDATE canonical SET last_read = 500");
    evict_one(f);
    assert_true(has_original(f->st, &younger) && !has_original(f->st, &o2));
    evict_one(f);
    assert_false(has_original(f->st, &younger));
}

static void test_what_is_read_is_passed_over(void **state)
{
    struct fixture *f = *state;
    CLEANUP(source_cleanup) struct source *layer = NULL;
    CLEANUP(source_cleanup) struct source *original = NULL;
    struct digest o1, o2;
    struct layer_result a = put_layer(f->st, 1, &o1), b = put_layer(f->st, 2, &o2);
    struct err err = ERR_INIT;

    ASSERT_OK(layer_open(f->st, &a.canonical, LAYER_ZSTD, 0, UINT64_MAX, &layer, &err));
    ASSERT_OK(original_open_quietly(f->st, &o1, &original, &err));
    evict_one(f);
    evict_one(f);
    assert_true(has_original(f->st, &o1) && has_layer(f->st, &a.canonical));
    assert_true(!has_original(f->st, &o2) && !has_layer(f->st, &b.canonical));
    store_idle(f->st);
    leave_room(f, 0);
    ASSERT_CODE(room_take(f->st, 8192, &err), ERR_NOSPC);
    f->st->opt.quota_bytes = 1024 * MIB;
    source_free(steal(&layer));
    evict_one(f);
    assert_false(has_layer(f->st, &a.canonical));
}

/* Background work is no client. */
static void test_quiet_reads_do_not_count(void **state)
{
    struct fixture *f = *state;
    struct digest a = put_noise(f->st, 1, BLOB_BYTES), b = put_noise(f->st, 2, BLOB_BYTES);

    sql_change(f->st, "UPDATE blob SET last_read = 100 + id");
    assert_true(has_original(f->st, &a)); /* quietly */
    evict_one(f);
    assert_true(!has_original(f->st, &a) && has_original(f->st, &b));
}

/* ---- layers --------------------------------------------------------------------------------------------------------------- */

static int write_quietly(struct store *st, const struct digest *source, const void *data, size_t len, struct err *err)
{
    CLEANUP(layer_writer_cleanup) struct layer_writer *w = NULL;
    struct layer_result r;

    TRY(layer_writer_open(st, source, &w, err));
    TRY(layer_writer_put(w, data, len, err));
    return layer_writer_commit(w, &r, err);
}

static void test_no_room_for_a_layer(void **state)
{
    struct fixture *f = *state;
    static uint8_t data[4 << 20];
    struct digest o = put_source(f->st, 1), large = put_noise(f->st, 3, BLOB_BYTES);
    CLEANUP(source_cleanup) struct source *reader = NULL;
    CLEANUP(source_cleanup) struct source *reader2 = NULL;
    struct err err = ERR_INIT;

    fill_random(data, sizeof(data), 1);
    ASSERT_OK(original_open_quietly(f->st, &o, &reader, &err));
    ASSERT_OK(original_open_quietly(f->st, &large, &reader2, &err));
    leave_room(f, 2 * MIB);
    ASSERT_CODE(write_quietly(f->st, &o, data, sizeof(data), &err), ERR_NOSPC);
    assert_int_equal(stats(f->st).reserved_bytes, 0);
    assert_in_range(packs_disk_bytes(f->st->packs), 0, 8192); /* all that it had appended is given back */
    ASSERT_OK(write_quietly(f->st, &o, data, MIB, &err));     /* and another one has it */
    expect_sound_catalog(f->st);
    /* What would take more than the quota in both its forms is not begun. */
    f->st->opt.quota_bytes = 2 * BLOB_BYTES;
    ASSERT_CODE(write_quietly(f->st, &large, data, 1000, &err), ERR_NOSPC);
}

/* Two writers at once: their frames lie between each other's. What goes, goes with nearly all of its blocks. */
static void test_interleaved_layers_give_their_blocks_back(void **state)
{
    struct fixture *f = *state;
    static uint8_t data[2][3 << 20];
    struct layer_writer *w[2];
    struct layer_result r[2];
    struct err err = ERR_INIT;
    uint64_t before;

    for (unsigned i = 0; i < 2; i++) {
        struct digest o = put_source(f->st, (int)i);

        fill_random(data[i], sizeof(data[i]), i);
        ASSERT_OK(layer_writer_open(f->st, &o, &w[i], &err));
    }
    before = room_used(f->st);
    for (size_t pos = 0; pos < sizeof(data[0]); pos += 65536)
        for (unsigned i = 0; i < 2; i++)
            ASSERT_OK(layer_writer_put(w[i], data[i] + pos, 65536, &err));
    for (unsigned i = 0; i < 2; i++) {
        ASSERT_OK(layer_writer_commit(w[i], &r[i], &err));
        layer_writer_abort(w[i]);
    }
    ASSERT_OK(store_evict(f->st, &r[0].canonical, &err));
    expect_layer(f->st, &r[1], data[1], sizeof(data[1]));
    ASSERT_OK(store_evict(f->st, &r[1].canonical, &err));
    store_idle(f->st);
    assert_in_range(packs_disk_bytes(f->st->packs), 0, 24576); /* recipes, links, the file's header */
    assert_true(room_used(f->st) < before + 400000);
    reopen_store(f);
    expect_sound_catalog(f->st);
}

/* ---- ahead of need ----------------------------------------------------------------------------------------------------- */

static void test_make_room(void **state)
{
    struct fixture *f = *state;
    struct err err = ERR_INIT;
    struct digest oldest = put_noise(f->st, 999, MIB);
    unsigned steps = 0;
    bool more = true;

    for (unsigned i = 0; i < 40; i++)
        (void)put_noise(f->st, i, MIB);
    store_idle(f->st);
    f->st->opt.quota_bytes = room_used(f->st) * 100 / 94;
    ASSERT_OK(store_make_room(f->st, &more, &err));
    assert_false(more); /* under the high mark */
    assert_int_equal(stats(f->st).evictions, 0);
    read_original(f->st, &oldest); /* a moment ago, which only memory knows yet */
    f->st->opt.quota_bytes = room_used(f->st) * 100 / 96;
    do {
        ASSERT_OK(store_make_room(f->st, &more, &err));
        steps += more;
    } while (more);
    assert_true(has_original(f->st, &oldest));
    assert_int_equal(steps, stats(f->st).evictions + 1); /* the first one writes down who read what */
    assert_in_range(steps, 3, 5);
    assert_in_range(room_used(f->st), f->st->opt.quota_bytes / 100 * 85, f->st->opt.quota_bytes / 100 * 90);
    ASSERT_OK(store_make_room(f->st, &more, &err));
    assert_false(more);
}

/* ---- many at once ------------------------------------------------------------------------------------------------------ */

#define WORKERS 4
#define ROUNDS 25

struct worker {
    struct fixture *f;
    unsigned id;
    uint64_t high;
    unsigned stored, full;
};

/* A blob comes, becomes a layer, and is read back; whatever is there is right. */
static void *work(void *arg)
{
    struct worker *me = arg;
    struct store *st = me->f->st;
    uint8_t *data = malloc(BLOB_BYTES);

    for (unsigned i = 0; i < ROUNDS; i++) {
        CLEANUP(spool_cleanup) struct spool *sp = NULL;
        CLEANUP(source_cleanup) struct source *s = NULL;
        struct err err = ERR_INIT;
        struct digest d;
        int rc;

        fill_random(data, BLOB_BYTES, (me->id + i) % 17);
        digest_of(data, BLOB_BYTES, &d);
        ASSERT_OK(spool_open(st, &sp, &err));
        rc = spool_expect(sp, BLOB_BYTES, &err);
        if (rc == 0)
            rc = spool_write(sp, data, BLOB_BYTES, &err);
        if (rc == 0)
            rc = spool_commit(sp, &d, 0, &err);
        if (room_used(st) + stats(st).reserved_bytes > me->high)
            me->high = room_used(st) + stats(st).reserved_bytes;
        if (rc == ERR_NOSPC) {
            me->full++;
            continue;
        }
        if (rc < 0)
            fail_msg("%s", err.msg);
        do {
            err_clear(&err);
            rc = write_quietly(st, &d, data, BLOB_BYTES, &err);
        } while (rc == ERR_BUSY);
        if (rc < 0 && rc != ERR_NOSPC)
            fail_msg("%s", err.msg);
        err_clear(&err);
        if (layer_open(st, &d, LAYER_IDENTITY, 0, UINT64_MAX, &s, &err) == 0) {
            struct bytes b = drain(steal(&s), 100000);

            assert_true(b.code == 0 && b.len == BLOB_BYTES && memcmp(b.data, data, BLOB_BYTES) == 0);
            free(b.data);
            me->stored++;
        }
    }
    free(data);
    return NULL;
}

static void test_many_at_once(void **state)
{
    struct fixture *f = *state;
    struct worker workers[WORKERS];
    pthread_t threads[WORKERS];
    unsigned stored = 0;

    leave_room(f, 9 * BLOB_BYTES + MIB); /* of which the log of the catalog takes its part */
    for (unsigned i = 0; i < WORKERS; i++) {
        workers[i] = (struct worker){.f = f, .id = i * 5};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < WORKERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        stored += workers[i].stored;
        assert_in_range(workers[i].high, 1, f->st->opt.quota_bytes + BLOB_BYTES + MIB);
    }
    assert_in_range(stored, WORKERS * ROUNDS / 4, WORKERS * ROUNDS);
    assert_int_equal(stats(f->st).reserved_bytes, 0);
    assert_true(stats(f->st).evictions > 10);
    expect_sound_catalog(f->st);
    f->opt.quota_bytes = f->st->opt.quota_bytes;
    reopen_store(f);
    expect_sound_catalog(f->st);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_take_and_give),
        T(test_spool),
        T(test_a_blob_larger_than_the_quota),
        T(test_spare_originals_go_first),
        cmocka_unit_test_setup_teardown(test_kept_originals_take_their_turn, setup_keep, teardown),
        T(test_small_ones_stay_a_week_longer),
        T(test_an_original_without_its_layer),
        T(test_what_is_read_is_passed_over),
        T(test_quiet_reads_do_not_count),
        T(test_no_room_for_a_layer),
        T(test_interleaved_layers_give_their_blocks_back),
        T(test_make_room),
        T(test_many_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
