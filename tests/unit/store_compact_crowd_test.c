/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_compact_crowd_test.c - compaction beside readers and writers, who notice nothing, and in crashes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/store_compact_util.h"

#include <errno.h>
#include <pthread.h>

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
        T(test_an_open_writer), T(test_shared_chunks_move),
        T(test_a_slow_reader),  T(test_a_slow_reader_without_holes),
        T(test_a_crowd),        T(test_a_crowd_without_holes),
        T(test_crashes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
