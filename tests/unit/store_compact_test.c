/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_compact_test.c - compaction: packs go, what was of use in them stays, and whoever reads or writes
 * meanwhile notices nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/store_compact_util.h"

#include <errno.h>
#include <pthread.h>

static struct world *new_world(struct fixture *f, bool holes)
{
    struct world *w = calloc(1, sizeof(*w));

    assert_non_null(w);
    w->f = f;
    small_packs(f, holes);
    return w;
}

static uint64_t disk(struct store *st)
{
    return packs_disk_bytes(st->packs);
}

/* All but every n-th. */
static void evict_most(struct world *w, unsigned n)
{
    for (unsigned i = 0; i < w->count; i++)
        if (i % n != 0 && !w->layers[i].gone)
            evict_layer(w, &w->layers[i]);
}

/* Ends with a layer that begins a pack of its own. */
static void fill(struct world *w, unsigned count, size_t len)
{
    for (unsigned i = 0; i < count; i++)
        (void)make_layer(w, 1 + w->count, len + w->count * 7);
}

static void reopen_world(struct world *w, bool holes)
{
    reopen_store(w->f);
    small_packs(w->f, holes);
}

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

static struct digest put_manifest(struct store *st, int64_t repo, const char *tag, const char *body)
{
    struct store_manifest_put p = {
        .repo = repo, .tag = tag, .media_type = "application/x", .body = body, .len = strlen(body)};
    struct err err = ERR_INIT;

    digest_of(body, p.len, &p.digest);
    ASSERT_OK(store_manifest_put(st, &p, &err));
    return p.digest;
}

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
    assert_non_null(winner(&rs, about_key, &second));
    assert_null(winner(&rs, about_key, &first));
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

/* ---- beside others ------------------------------------------------------------------------------------------------------------ */

/* A writer's frames have no rows before its commit. */
static void test_an_open_writer(void **state)
{
    struct fixture *f = *state;
    CLEANUP(free_ptr) struct world *w = new_world(f, false);
    CLEANUP(layer_writer_cleanup) struct layer_writer *lw = NULL;
    struct made slow = {.seed = 999, .len = 700000};
    CLEANUP(free_ptr) uint8_t *data = made_bytes(&slow);
    struct err err = ERR_INIT;

    fill(w, 5, 60000);
    slow.source = put_source(f->st, 999);
    lw = begin_layer(f->st, &slow.source, data, slow.len, 100000);
    fill(w, 10, 60000);
    for (unsigned i = 0; i < w->count; i++)
        evict_layer(w, &w->layers[i]);
    assert_true(run_gc(f->st, false).packs_done > 0); /* those from before it */
    ASSERT_OK(layer_writer_commit(lw, &slow.r, &err));
    layer_writer_cleanup(&lw);
    expect_made(f->st, &slow);
    (void)run_gc(f->st, false);
    expect_made(f->st, &slow);
    expect_sound_catalog(f->st);
    expect_packs_tell_all(f->st);
}

static void compact_all(struct fixture *f, unsigned steps)
{
    struct err err = ERR_INIT;

    sql_change(f->st, "UPDATE chunk SET refs = refs"); /* a transaction: all ends are on record */
    for (unsigned step = 0; step < steps; step++) {
        struct compact_step done;
        bool more;

        ASSERT_OK(compact_step(f->st, 1000, &done, &more, &err)); /* all packs are worth it */
    }
}

/* Chunks that an open writer shares move away under it, more than once. */
static void test_shared_chunks_move(void **state)
{
    struct fixture *f = *state;
    CLEANUP(free_ptr) struct world *w = new_world(f, false);
    CLEANUP(layer_writer_cleanup) struct layer_writer *lw = NULL;
    struct made *once = make_layer(w, 777, 1500000);
    CLEANUP(free_ptr) uint8_t *data = made_bytes(once);
    struct digest source = put_source(f->st, 999);
    struct layer_result r;
    struct err err = ERR_INIT;
    int64_t last;

    data = realloc(data, 2 * once->len);
    assert_non_null(data);
    memcpy(data + once->len, data, once->len);
    (void)make_layer(w, 1, 300000);
    lw = begin_layer(f->st, &source, data, once->len, 1000000);
    last = f->st->packs->last_id;
    compact_all(f, 100);
    assert_true(f->st->packs->last_id > last + 3);
    ASSERT_OK(layer_writer_put(lw, data + once->len, once->len, &err));
    ASSERT_OK(layer_writer_commit(lw, &r, &err));
    assert_in_range(r.new_chunks, 1, 3); /* where the two copies meet */
    expect_layer(f->st, &r, data, 2 * once->len);
    expect_world(w, f->st);
    expect_sound_catalog(f->st);
}

/* Where a reader's rows say the frames are, they have not been for long. */
static void slow_reader(struct fixture *f, bool holes, enum layer_form form)
{
    CLEANUP(free_ptr) struct world *w = new_world(f, holes);
    struct made *slow = make_layer(w, 777, 1500000);
    struct source *s = NULL;
    struct digest got, want = form == LAYER_ZSTD ? slow->r.zstd : slow->r.canonical;
    CLEANUP(free_ptr) uint8_t *all = malloc(2 << 20);
    struct err err = ERR_INIT;
    size_t len = 0;
    int rc = STEP_MORE;

    assert_non_null(all);
    ASSERT_OK(layer_open(f->st, &slow->r.canonical, form, 0, UINT64_MAX, &s, &err));
    for (unsigned round = 0; rc == STEP_MORE; round++) {
        size_t n = 0;

        rc = source_read(s, all + len, 100000, &n, &err);
        len += n;
        if (round >= 6)
            continue;
        f->st->packs->max_bytes = round % 2 == 0 ? 64 << 10 : 2 << 20;
        fill(w, 2, 30000);
        compact_all(f, 400);
    }
    source_free(s);
    assert_int_equal(rc, STEP_EOF);
    digest_of(all, len, &got);
    assert_true(digest_equal(&got, &want));
    assert_true(f->st->packs->last_id > 100); /* it has moved many times */
    expect_world(w, f->st);
}

static void test_a_slow_reader(void **state)
{
    slow_reader(*state, true, LAYER_IDENTITY);
}

static void test_a_slow_reader_without_holes(void **state)
{
    slow_reader(*state, false, LAYER_ZSTD);
}

struct crowd {
    struct fixture *f;
    struct made *layers;
    unsigned count, id;
    atomic_bool *stop;
};

static void *read_many(void *arg)
{
    struct crowd *c = arg;
    uint64_t random = c->id + 1;

    while (!atomic_load(c->stop)) {
        const struct made *m = &c->layers[next_random(&random) % c->count];
        enum layer_form form = next_random(&random) % 2 == 0 ? LAYER_IDENTITY : LAYER_ZSTD;
        size_t off = next_random(&random) % m->len;
        CLEANUP(free_ptr) uint8_t *data = made_bytes(m);
        struct bytes b = read_layer(c->f->st, &m->r.canonical, form, form == LAYER_ZSTD ? 0 : off, UINT64_MAX, 70000);

        assert_int_equal(b.code, 0);
        if (form == LAYER_ZSTD) {
            struct digest got;

            digest_of(b.data, b.len, &got);
            assert_true(digest_equal(&got, &m->r.zstd));
        } else {
            assert_int_equal(b.len, m->len - off);
            assert_memory_equal(b.data, data + off, b.len);
        }
        free(b.data);
    }
    return NULL;
}

/* Each round shares chunks with what stays, adds some, and goes again. */
static void *write_many(void *arg)
{
    struct crowd *c = arg;
    struct err err = ERR_INIT;

    for (unsigned i = 0; i < 12; i++) {
        const struct made *shared = &c->layers[i % c->count];
        struct made own = {.seed = 5000 + c->id * 100 + i, .len = 90000};
        CLEANUP(free_ptr) uint8_t *data = made_bytes(shared);
        CLEANUP(free_ptr) uint8_t *more = made_bytes(&own);
        size_t len = shared->len + own.len;
        struct digest source = put_source(c->f->st, (int)own.seed);
        struct layer_result r;

        data = realloc(data, len);
        assert_non_null(data);
        memcpy(data + shared->len, more, own.len);
        for (;;) {
            CLEANUP(layer_writer_cleanup) struct layer_writer *lw = begin_layer(c->f->st, &source, data, len, 50000);
            int rc = layer_writer_commit(lw, &r, &err);

            if (rc == 0)
                break;
            assert_int_equal(rc, ERR_BUSY);
            err_clear(&err);
        }
        expect_layer(c->f->st, &r, data, len);
        if (i % 3 != 0)
            ASSERT_OK(store_evict(c->f->st, &r.canonical, &err));
    }
    return NULL;
}

static void *collect(void *arg)
{
    struct crowd *c = arg;

    while (!atomic_load(c->stop))
        (void)run_gc(c->f->st, false);
    return NULL;
}

static void crowd(struct fixture *f, bool holes)
{
    CLEANUP(free_ptr) struct world *w = new_world(f, holes);
    struct crowd crowds[6];
    struct made stay[8];
    pthread_t threads[6];
    atomic_bool stop;

    atomic_init(&stop, false);
    fill(w, 32, 60000);
    for (unsigned i = 0; i < 8; i++)
        stay[i] = w->layers[i * 4];
    for (unsigned i = 0; i < 6; i++) {
        static void *(*const what[])(void *) = {collect, collect, read_many, read_many, write_many, write_many};

        crowds[i] = (struct crowd){.f = f, .layers = stay, .count = 8, .id = i, .stop = &stop};
        assert_int_equal(pthread_create(&threads[i], NULL, what[i], &crowds[i]), 0);
    }
    evict_most(w, 4);
    for (unsigned i = 6; i-- > 0;) {
        if (i == 3)
            atomic_store(&stop, true);
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    (void)run_gc(f->st, false);
    expect_world(w, f->st);
    expect_sound_catalog(f->st);
    expect_packs_tell_all(f->st);
    assert_null(f->st->packs->holds);
}

static void test_a_crowd(void **state)
{
    crowd(*state, true);
}

static void test_a_crowd_without_holes(void **state)
{
    crowd(*state, false);
}

/* ---- crashes --------------------------------------------------------------------------------------------------------------- */

static size_t copy_prefix;
static const char *copy_to;

static int copy_entry(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    CLEANUP(fd_cleanup) int from = -1;
    CLEANUP(fd_cleanup) int to = -1;
    char target[512];
    ssize_t n = 0;

    (void)ftw;
    (void)snprintf(target, sizeof(target), "%s%s", copy_to, path + copy_prefix);
    if (type == FTW_D)
        return mkdir(target, 0700) == 0 || errno == EEXIST ? 0 : -1;
    from = open(path, O_RDONLY | O_CLOEXEC);
    to = open(target, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    for (off_t left = sb->st_size; left > 0 && (n = copy_file_range(from, NULL, to, NULL, (size_t)left, 0)) > 0;)
        left -= n;
    return n >= 0 && to >= 0 ? 0 : -1;
}

/* What kill -9 leaves: the files as they are now. */
static void copy_store(const struct fixture *f, struct fixture *out)
{
    *out = (struct fixture){.opt = f->opt};
    (void)snprintf(out->dir, sizeof(out->dir), "/tmp/recask-layer-XXXXXX");
    assert_non_null(mkdtemp(out->dir));
    out->opt.path = out->dir;
    copy_prefix = strlen(f->dir);
    copy_to = out->dir;
    assert_int_equal(nftw(f->dir, copy_entry, 8, FTW_PHYS), 0);
}

static void expect_copy_recovers(struct world *w, bool holes)
{
    struct fixture copy;

    copy_store(w->f, &copy);
    open_store(&copy);
    small_packs(&copy, holes);
    expect_world(w, copy.st);
    expect_sound_catalog(copy.st);
    expect_packs_tell_all(copy.st);
    (void)run_gc(copy.st, false);
    expect_world(w, copy.st);
    expect_packs_tell_all(copy.st);
    assert_int_equal(sql_number(copy.st, "SELECT count(*) FROM hole"), 0);
    assert_int_equal(sql_number(copy.st, "SELECT count(*) FROM pack"), packs_count(copy.st->packs));
    store_close(copy.st);
    (void)nftw(copy.dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static void crash_at_each_step(struct fixture *f, bool holes)
{
    CLEANUP(free_ptr) struct world *w = new_world(f, holes);
    struct store_gc_progress p;
    struct store_gc *gc = NULL;
    struct err err = ERR_INIT;
    struct digest first, second, view;
    int64_t repo;
    bool more = true;

    ASSERT_OK(store_repo(f->st, "up", "a/b", &repo, &err));
    first = put_manifest(f->st, repo, "moves", "first");
    ASSERT_OK(store_view_put(f->st, &first, 2, "application/y", "view one", 8, &view, &err));
    fill(w, 8, 60000);
    second = put_manifest(f->st, repo, "moves", "second");
    ASSERT_OK(store_tag_drop(f->st, repo, "moves", &err));
    ASSERT_OK(store_view_put_same(f->st, &second, 1, &err));
    fill(w, 4, 60000);
    evict_most(w, 4);
    ASSERT_OK(store_gc_new(f->st, false, &gc, &err));
    while (more) {
        ASSERT_OK(store_gc_step(gc, &p, &more, &err));
        expect_copy_recovers(w, holes);
    }
    store_gc_free(gc);
    assert_true(p.packs_done >= 1);
    expect_world(w, f->st);
}

static void test_crashes(void **state)
{
    crash_at_each_step(*state, false);
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
        T(test_an_open_writer),
        T(test_shared_chunks_move),
        T(test_a_slow_reader),
        T(test_a_slow_reader_without_holes),
        T(test_a_crowd),
        T(test_a_crowd_without_holes),
        T(test_crashes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
