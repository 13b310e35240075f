/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_blob_test.c - what a digest is, repositories, sources; eviction, damage, numbers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "store/meta.h"
#include "tests/unit/store_layer_util.h"

#include <pthread.h>
#include <stdatomic.h>

#define LAYER_BYTES 3000000

static uint8_t *random_bytes(size_t len, uint64_t seed)
{
    uint8_t *data = malloc(len);

    assert_non_null(data);
    fill_random(data, len, seed);
    return data;
}

static struct digest digest_no(int i)
{
    struct digest d;

    digest_of(&i, sizeof(i), &d);
    return d;
}

static struct store_blob look(struct store *st, const struct digest *d)
{
    struct err err = ERR_INIT;
    struct store_blob b;

    ASSERT_OK(store_blob_lookup(st, d, &b, &err));
    return b;
}

static int64_t repo_of(struct store *st, const char *upstream, const char *name)
{
    struct err err = ERR_INIT;
    int64_t repo = 0;

    ASSERT_OK(store_repo(st, upstream, name, &repo, &err));
    assert_true(repo > 0);
    return repo;
}

static bool holds(struct store *st, int64_t repo, const struct digest *d)
{
    struct err err = ERR_INIT;
    bool out = false;

    ASSERT_OK(store_repo_has_blob(st, repo, d, &out, &err));
    return out;
}

/* ---- look-up ---------------------------------------------------------------------------------------------------------- */

static void test_unknown(void **state)
{
    struct fixture *f = *state;
    struct digest d = digest_no(1);
    struct store_blob b = look(f->st, &d);
    struct err err = ERR_INIT;

    assert_true(b.role == ROLE_UNKNOWN && !b.present && b.size_bytes == 0);
    ASSERT_CODE(store_evict(f->st, &d, &err), ERR_NOTFOUND);
    ASSERT_CODE(store_mark_lost(f->st, &d, &err), ERR_NOTFOUND);
    ASSERT_CODE(store_canon_refuse(f->st, &d, "x", &err), ERR_NOTFOUND);
}

/* A gzip-like original, its canonical layer and its zstd form: three digests, one row each knows the others. */
static void test_the_three_digests(void **state)
{
    CLEANUP(free_ptr) uint8_t *data = random_bytes(LAYER_BYTES, 1);
    struct fixture *f = *state;
    struct digest o = put_source(f->st, 1);
    struct layer_result r = write_layer(f->st, &o, data, LAYER_BYTES);
    struct store_blob b = look(f->st, &o);
    struct err err = ERR_INIT;

    assert_true(b.role == ROLE_ORIGINAL && b.present && b.canon == CANON_DONE && b.has_canonical &&
                b.canonical_present);
    assert_true(digest_equal(&b.canonical, &r.canonical) && digest_equal(&b.zstd, &r.zstd));
    assert_true(b.canonical_bytes == LAYER_BYTES && b.zstd_bytes == r.zstd_bytes);
    b = look(f->st, &r.canonical);
    assert_true(b.role == ROLE_CANONICAL && b.present && b.size_bytes == LAYER_BYTES);
    b = look(f->st, &r.zstd);
    assert_true(b.role == ROLE_ZSTD && b.present && b.size_bytes == r.zstd_bytes);
    assert_true(digest_equal(&b.canonical, &r.canonical));
    ASSERT_CODE(store_canon_refuse(f->st, &o, "too late", &err), ERR_NOTFOUND);

    ASSERT_OK(store_evict(f->st, &r.canonical, &err)); /* S4: everything stays known */
    b = look(f->st, &o);
    assert_true(b.role == ROLE_ORIGINAL && b.present && b.canon == CANON_DONE && b.has_canonical);
    assert_false(b.canonical_present);
    b = look(f->st, &r.canonical);
    assert_true(b.role == ROLE_CANONICAL && !b.present && b.size_bytes == LAYER_BYTES);
    b = look(f->st, &r.zstd);
    assert_true(b.role == ROLE_ZSTD && !b.present && b.size_bytes == r.zstd_bytes);
    ASSERT_OK(store_evict(f->st, &o, &err));
    b = look(f->st, &o);
    assert_true(b.role == ROLE_ORIGINAL && !b.present && b.has_canonical);
    expect_sound_catalog(f->st);
}

/* Plain tar: one digest is the original and the canonical layer. */
static void test_its_own_canonical_form(void **state)
{
    CLEANUP(free_ptr) uint8_t *data = random_bytes(LAYER_BYTES, 2);
    struct fixture *f = *state;
    struct digest o = put_original(f->st, data, LAYER_BYTES);
    struct layer_result r = write_layer(f->st, &o, data, LAYER_BYTES);
    struct store_blob b = look(f->st, &o);
    struct store_source src[4];
    struct err err = ERR_INIT;
    size_t count = 0;
    int64_t repo = repo_of(f->st, "docker.io", "library/alpine");

    assert_true(digest_equal(&o, &r.canonical));
    assert_true(b.role == ROLE_CANONICAL && b.present && b.size_bytes == LAYER_BYTES && b.canon == CANON_DONE);
    ASSERT_OK(store_repo_add_blob(f->st, repo, &o, LAYER_BYTES, &err));
    ASSERT_OK(store_sources(f->st, &o, 0, src, 4, &count, &err));
    assert_int_equal(count, 1);
    assert_false(src[0].decode);
    ASSERT_OK(store_sources(f->st, &r.zstd, 0, src, 4, &count, &err));
    assert_true(count == 1 && src[0].decode && digest_equal(&src[0].original, &o));
    ASSERT_OK(store_evict(f->st, &o, &err));
    b = look(f->st, &o);
    assert_true(b.role == ROLE_CANONICAL && !b.present && b.has_canonical);
    (void)put_original(f->st, data, LAYER_BYTES); /* fetched again: the original answers until the layer is back */
    b = look(f->st, &o);
    assert_true(b.role == ROLE_ORIGINAL && b.present && b.has_canonical && !b.canonical_present);
}

/* ---- repositories ------------------------------------------------------------------------------------------------------ */

static void test_repositories(void **state)
{
    CLEANUP(free_ptr) uint8_t *data = random_bytes(LAYER_BYTES, 3);
    CLEANUP(free_ptr) char *longer = calloc(1, 400);
    struct fixture *f = *state;
    int64_t a = repo_of(f->st, "docker.io", "library/a");
    int64_t b = repo_of(f->st, "ghcr.io", "library/a");
    struct digest o = put_source(f->st, 1);
    struct layer_result r = write_layer(f->st, &o, data, LAYER_BYTES);
    struct err err = ERR_INIT;
    int64_t id;

    assert_true(a != b);
    assert_int_equal(repo_of(f->st, "docker.io", "library/a"), a);
    ASSERT_OK(store_repo_add_blob(f->st, a, &o, 0, &err));
    assert_true(holds(f->st, a, &o) && holds(f->st, a, &r.canonical) && holds(f->st, a, &r.zstd));
    assert_false(holds(f->st, b, &o) || holds(f->st, b, &r.canonical) || holds(f->st, b, &r.zstd));
    ASSERT_CODE(store_repo_add_blob(f->st, 12345, &o, 0, &err), ERR_NOTFOUND);
    assert_non_null(longer);
    memset(longer, 'n', 300);
    ASSERT_CODE(store_repo(f->st, "docker.io", longer, &id, &err), ERR_LIMIT);
    reopen_store(f);
    assert_int_equal(repo_of(f->st, "docker.io", "library/a"), a);
    assert_true(holds(f->st, a, &r.canonical) && !holds(f->st, b, &r.canonical));
}

/* Looking makes no row; a repository without one holds nothing. */
static void test_unknown_repository(void **state)
{
    struct fixture *f = *state;
    struct digest o = put_source(f->st, 1);
    struct err err = ERR_INIT;
    struct store_tag tag;
    bool has = true;
    int64_t id;

    for (int i = 0; i < 3; i++) {
        id = 77;
        ASSERT_OK(store_repo_find(f->st, "docker.io", "library/a", &id, &err));
        assert_int_equal(id, 0);
    }
    assert_false(holds(f->st, 0, &o));
    ASSERT_OK(store_repo_has_manifest(f->st, 0, &o, &has, &err));
    assert_false(has);
    assert_int_equal(store_tag_get(f->st, 0, "1", &tag, &err), ERR_NOTFOUND);
    err_clear(&err);
    int64_t made = repo_of(f->st, "docker.io", "library/a");
    ASSERT_OK(store_repo_find(f->st, "docker.io", "library/a", &id, &err));
    assert_int_equal(id, made);
    ASSERT_OK(store_repo_find(f->st, "docker.io", "library/A", &id, &err));
    assert_int_equal(id, 0);
}

/* Case 12 */
static void test_sizes_from_upstreams(void **state)
{
    struct fixture *f = *state;
    int64_t repo = repo_of(f->st, "docker.io", "library/a");
    struct digest d = digest_no(5), empty, real;
    struct err err = ERR_INIT;

    ASSERT_OK(store_repo_add_blob(f->st, repo, &d, 0, &err));
    assert_true(look(f->st, &d).role == ROLE_ORIGINAL && look(f->st, &d).size_bytes == 0);
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM blob WHERE size IS NULL"), 1);
    ASSERT_OK(store_repo_add_blob(f->st, repo, &d, 77, &err));
    assert_int_equal(look(f->st, &d).size_bytes, 77);
    ASSERT_OK(store_repo_add_blob(f->st, repo, &d, 0, &err)); /* does not unlearn */
    assert_int_equal(look(f->st, &d).size_bytes, 77);
    ASSERT_CODE(store_repo_add_blob(f->st, repo, &d, UINT64_MAX, &err), ERR_LIMIT);
    digest_of("", 0, &empty);
    ASSERT_OK(store_repo_add_blob(f->st, repo, &empty, 0, &err));
    real = put_original(f->st, "12345", 5);
    ASSERT_OK(store_repo_add_blob(f->st, repo_of(f->st, "u", "n"), &real, 9, &err));
    assert_int_equal(look(f->st, &real).size_bytes, 5); /* what was hashed here stands */

    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;
    ASSERT_OK(catalog_begin(f->st, &tx, &err));
    assert_true(sql_exec(tx.db, "UPDATE blob SET size = 0", &err) < 0); /* nor does any other code write one */
}

static void test_sources(void **state)
{
    CLEANUP(free_ptr) uint8_t *data = random_bytes(LAYER_BYTES, 4);
    struct fixture *f = *state;
    int64_t a = repo_of(f->st, "docker.io", "library/a");
    int64_t b = repo_of(f->st, "ghcr.io", "b");
    struct digest o1 = put_source(f->st, 1), o2 = put_source(f->st, 2);
    struct layer_result r = write_layer(f->st, &o1, data, LAYER_BYTES);
    struct store_source src[8];
    struct err err = ERR_INIT;
    size_t count = 9;

    (void)write_layer(f->st, &o2, data, LAYER_BYTES); /* the same layer, compressed otherwise */
    ASSERT_OK(store_sources(f->st, &r.canonical, 0, src, 8, &count, &err));
    assert_int_equal(count, 0);
    ASSERT_OK(store_repo_add_blob(f->st, a, &o1, 0, &err));
    ASSERT_OK(store_repo_add_blob(f->st, b, &o2, 0, &err));
    ASSERT_OK(store_sources(f->st, &r.canonical, b, src, 8, &count, &err));
    assert_int_equal(count, 2);
    assert_true(src[0].repo == b && src[0].decode && digest_equal(&src[0].original, &o2));
    assert_string_equal(src[0].upstream, "ghcr.io");
    assert_string_equal(src[0].name, "b");
    assert_true(src[1].repo == a && digest_equal(&src[1].original, &o1));
    assert_int_equal(src[1].original_bytes, 10);
    ASSERT_OK(store_sources(f->st, &r.zstd, a, src, 1, &count, &err));
    assert_true(count == 1 && src[0].repo == a);
    ASSERT_OK(store_sources(f->st, &o1, 0, src, 8, &count, &err));
    assert_true(count == 1 && !src[0].decode);
}

/* ---- pending ------------------------------------------------------------------------------------------------------------ */

struct seen {
    struct store *st;
    unsigned count;
    unsigned stop_after;
};

static int see(void *arg, const struct digest *d, struct err *err)
{
    struct seen *s = arg;
    struct store_blob b;

    TRY(store_blob_lookup(s->st, d, &b, err)); /* the callee may use the store */
    assert_true(b.present && b.canon == CANON_PENDING);
    return ++s->count == s->stop_after ? err_set(err, ERR_CANCELLED, "enough") : 0;
}

static void test_pending(void **state)
{
    struct fixture *f = *state;
    struct seen s = {.st = f->st};
    struct digest refused = put_source(f->st, 0);
    struct err err = ERR_INIT;
    struct digest evicted;

    sql_change(f->st, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 600)"
                      " INSERT INTO blob (digest, size, original_present) SELECT randomblob(32), 1, 1 FROM n");
    evicted = put_source(f->st, 1);
    ASSERT_OK(store_evict(f->st, &evicted, &err));
    ASSERT_OK(store_canon_refuse(f->st, &refused, "not gzip", &err));
    assert_int_equal(look(f->st, &refused).canon, CANON_REFUSED);
    ASSERT_OK(store_each_pending(f->st, see, &s, &err));
    assert_int_equal(s.count, 600);
    s = (struct seen){.st = f->st, .stop_after = 300};
    ASSERT_CODE(store_each_pending(f->st, see, &s, &err), ERR_CANCELLED);
    assert_int_equal(s.count, 300);
}

/* ---- eviction ------------------------------------------------------------------------------------------------------------ */

static struct store_stats stats(struct store *st)
{
    struct err err = ERR_INIT;
    struct store_stats out;

    ASSERT_OK(store_stats(st, &out, &err));
    return out;
}

/* What `totals` says is what a scan says. */
static void expect_exact_totals(struct store *st)
{
    struct store_stats s = stats(st);

    assert_int_equal(s.chunks, sql_number(st, "SELECT count(*) FROM chunk WHERE pack_id IS NOT NULL"));
    assert_int_equal(s.unique_chunk_bytes,
                     sql_number(st, "SELECT coalesce(sum(raw), 0) FROM chunk WHERE pack_id NOTNULL"));
    assert_int_equal(s.frame_bytes, sql_number(st, "SELECT coalesce(sum(len), 0) FROM chunk WHERE pack_id NOTNULL"));
    assert_int_equal(s.canonical_layers, sql_number(st, "SELECT count(*) FROM canonical WHERE present = 1"));
    assert_int_equal(s.canonical_bytes,
                     sql_number(st, "SELECT coalesce(sum(size), 0) FROM canonical WHERE present = 1"));
    assert_int_equal(s.original_bytes,
                     sql_number(st, "SELECT coalesce(sum(size), 0) FROM blob WHERE original_present = 1"));
    assert_int_equal(s.blobs, sql_number(st, "SELECT count(*) FROM blob"));
    assert_int_equal(s.manifests, sql_number(st, "SELECT count(*) FROM manifest"));
    assert_int_equal(s.tags, sql_number(st, "SELECT count(*) FROM tag"));
}

/* Cases 1 and 82: what another layer uses stays, what nobody uses gives its room back. */
static void test_shared_chunks_survive(void **state)
{
    CLEANUP(free_ptr) uint8_t *data = random_bytes(2 * LAYER_BYTES, 5);
    struct fixture *f = *state;
    struct digest o1 = put_source(f->st, 1), o2 = put_source(f->st, 2);
    struct layer_result a = write_layer(f->st, &o1, data, LAYER_BYTES);
    struct layer_result b = write_layer(f->st, &o2, data, 2 * LAYER_BYTES);
    struct store_stats before = stats(f->st), after;
    struct err err = ERR_INIT;

    assert_true(b.new_chunks < b.chunks);
    expect_exact_totals(f->st);
    ASSERT_OK(store_evict(f->st, &b.canonical, &err));
    expect_layer(f->st, &a, data, LAYER_BYTES);
    expect_sound_catalog(f->st);
    expect_exact_totals(f->st);
    after = stats(f->st);
    assert_true(after.bytes_on_disk + LAYER_BYTES * 9 / 10 < before.bytes_on_disk);
    assert_int_equal(after.canonical_layers, 1);
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM hole"), 0);
    b = write_layer(f->st, &o2, data, 2 * LAYER_BYTES);
    expect_layer(f->st, &b, data, 2 * LAYER_BYTES);
    ASSERT_OK(store_evict(f->st, &a.zstd, &err)); /* by the name of its zstd form */
    expect_layer(f->st, &b, data, 2 * LAYER_BYTES);
    ASSERT_OK(store_evict(f->st, &b.canonical, &err));
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM chunk"), 0);
    expect_exact_totals(f->st);
    reopen_store(f);
    expect_exact_totals(f->st);
}

/* S5 */
static void test_a_reader_holds_eviction_back(void **state)
{
    CLEANUP(free_ptr) uint8_t *data = random_bytes(LAYER_BYTES, 6);
    struct fixture *f = *state;
    struct digest o = put_source(f->st, 1);
    struct layer_result r = write_layer(f->st, &o, data, LAYER_BYTES);
    struct source *s = NULL;
    struct err err = ERR_INIT;
    struct bytes got;

    ASSERT_OK(layer_open(f->st, &r.canonical, LAYER_IDENTITY, 0, UINT64_MAX, &s, &err));
    ASSERT_CODE(store_evict(f->st, &r.canonical, &err), ERR_BUSY);
    ASSERT_CODE(store_evict(f->st, &r.zstd, &err), ERR_BUSY);
    got = drain(s, 1 << 20);
    assert_true(got.code == 0 && got.len == LAYER_BYTES);
    free(got.data);
    ASSERT_OK(store_evict(f->st, &r.canonical, &err));
    ASSERT_CODE(layer_open(f->st, &r.canonical, LAYER_IDENTITY, 0, UINT64_MAX, &s, &err), ERR_NOTFOUND);
}

/* Killed after the transaction and before the holes were punched: the next start does it. */
static void test_holes_survive_a_crash(void **state)
{
    CLEANUP(free_ptr) uint8_t *data = random_bytes(LAYER_BYTES, 7);
    struct fixture *f = *state;
    struct digest o = put_source(f->st, 1);
    struct store_stats before;

    (void)write_layer(f->st, &o, data, LAYER_BYTES);
    before = stats(f->st);
    sql_change(f->st, "INSERT INTO hole (pack_id, off, len) SELECT pack_id, off, len FROM chunk;"
                      "DELETE FROM recipe; DELETE FROM chunk; UPDATE canonical SET present = 0");
    reopen_store(f);
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM hole"), 0);
    assert_true(stats(f->st).bytes_on_disk + LAYER_BYTES * 9 / 10 < before.bytes_on_disk);
    /* And chunks that nobody refers to. */
    (void)write_layer(f->st, &o, data, LAYER_BYTES);
    sql_change(f->st, "DELETE FROM recipe; UPDATE chunk SET refs = 0; UPDATE canonical SET present = 0");
    reopen_store(f);
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM chunk"), 0);
    assert_true(stats(f->st).bytes_on_disk + LAYER_BYTES * 9 / 10 < before.bytes_on_disk);
}

/* A writer that shares a chunk (C3) keeps it from being swept. */
static void test_a_leased_chunk_is_not_swept(void **state)
{
    CLEANUP(free_ptr) uint8_t *data = random_bytes(LAYER_BYTES, 8);
    struct fixture *f = *state;
    struct digest o1 = put_source(f->st, 1), o2 = put_source(f->st, 2);
    struct layer_result r = write_layer(f->st, &o1, data, LAYER_BYTES);
    CLEANUP(layer_writer_cleanup) struct layer_writer *w = begin_layer(f->st, &o2, data, LAYER_BYTES, 100000);
    struct layer_result again;
    struct err err = ERR_INIT;

    ASSERT_OK(store_evict(f->st, &r.canonical, &err));
    assert_true(sql_number(f->st, "SELECT count(*) FROM chunk WHERE refs = 0") > 0);
    ASSERT_OK(layer_writer_commit(w, &again, &err));
    expect_layer(f->st, &again, data, LAYER_BYTES);
    expect_sound_catalog(f->st);
}

/* ---- damage --------------------------------------------------------------------------------------------------------------- */

/* Case 4: several damaged frames, one of them shared, heal by one refetch. */
static void test_damage_heals(void **state)
{
    CLEANUP(free_ptr) uint8_t *data = random_bytes(2 * LAYER_BYTES, 9);
    struct fixture *f = *state;
    struct digest o1 = put_source(f->st, 1), o2 = put_source(f->st, 2);
    struct layer_result a = write_layer(f->st, &o1, data, LAYER_BYTES);
    struct layer_result b = write_layer(f->st, &o2, data, 2 * LAYER_BYTES);
    struct err err = ERR_INIT;
    struct bytes got;

    flip_frame_bit(f, &b.canonical, 1000000);
    flip_frame_bit(f, &b.canonical, LAYER_BYTES + 1000000);
    flip_frame_bit(f, &b.canonical, 2 * LAYER_BYTES - 1);
    got = read_layer(f->st, &b.canonical, LAYER_IDENTITY, 0, UINT64_MAX, 1 << 20);
    assert_int_equal(got.code, ERR_CORRUPT);
    assert_memory_equal(got.data, data, got.len);
    free(got.data);
    ASSERT_OK(store_mark_lost(f->st, &b.canonical, &err));
    assert_false(look(f->st, &b.canonical).present);
    assert_true(look(f->st, &b.canonical).has_canonical);
    expect_exact_totals(f->st);
    b = write_layer(f->st, &o2, data, 2 * LAYER_BYTES);
    expect_layer(f->st, &b, data, 2 * LAYER_BYTES);
    expect_layer(f->st, &a, data, LAYER_BYTES); /* by the shared chunk */
    expect_sound_catalog(f->st);
    expect_exact_totals(f->st);
}

static void test_a_pack_is_gone(void **state)
{
    CLEANUP(free_ptr) uint8_t *data = random_bytes(LAYER_BYTES, 10);
    struct fixture *f = *state;
    struct digest o = put_source(f->st, 1);
    struct layer_result r = write_layer(f->st, &o, data, LAYER_BYTES);
    struct source *s = NULL;
    struct err err = ERR_INIT;
    char path[192];

    store_close(f->st);
    (void)snprintf(path, sizeof(path), "%s/packs/%s", f->dir, pack_name(1).s);
    assert_int_equal(unlink(path), 0);
    open_store(f);
    assert_true(layer_open(f->st, &r.canonical, LAYER_IDENTITY, 0, UINT64_MAX, &s, &err) < 0);
    err_clear(&err);
    ASSERT_OK(store_mark_lost(f->st, &r.zstd, &err));
    r = write_layer(f->st, &o, data, LAYER_BYTES);
    expect_layer(f->st, &r, data, LAYER_BYTES);
    reopen_store(f);
    expect_layer(f->st, &r, data, LAYER_BYTES);
}

/* One digest, two copies: the good one stays. */
static void test_the_other_copy_stays(void **state)
{
    CLEANUP(free_ptr) uint8_t *data = random_bytes(LAYER_BYTES, 11);
    struct fixture *f = *state;
    struct digest o = put_original(f->st, data, LAYER_BYTES);
    struct layer_result r = write_layer(f->st, &o, data, LAYER_BYTES);
    struct err err = ERR_INIT;

    (void)put_original(f->st, data, LAYER_BYTES);
    flip_frame_bit(f, &r.canonical, 500000);
    ASSERT_OK(store_mark_lost(f->st, &o, &err));
    assert_true(look(f->st, &o).role == ROLE_ORIGINAL && look(f->st, &o).present);
    assert_false(look(f->st, &o).canonical_present);
}

/* ---- threads ----------------------------------------------------------------------------------------------------------------- */

struct reader {
    struct store *st;
    struct digest *digests;
    int64_t repo;
    atomic_bool *stop;
    unsigned lookups;
    int failed;
};

static void *read_all(void *arg)
{
    struct reader *r = arg;
    struct err err = ERR_INIT;

    while (!atomic_load(r->stop)) {
        struct store_blob b;
        struct store_source src[2];
        struct store_stats s;
        size_t count;
        bool has;
        int i = (int)(r->lookups++ % 64);
        int rc = store_blob_lookup(r->st, &r->digests[i], &b, &err);

        if (rc == 0 && b.present && b.size_bytes != sizeof(int))
            rc = ERR_BUG; /* S3: whole or not at all */
        if (rc == 0)
            rc = store_repo_has_blob(r->st, r->repo, &r->digests[i], &has, &err);
        if (rc == 0)
            rc = store_sources(r->st, &r->digests[i], r->repo, src, 2, &count, &err);
        if (rc == 0)
            rc = store_stats(r->st, &s, &err);
        if (rc < 0)
            r->failed = rc;
    }
    return NULL;
}

static void test_lookups_beside_a_writer(void **state)
{
    struct fixture *f = *state;
    struct digest digests[64];
    atomic_bool stop = false;
    struct reader r[8];
    pthread_t threads[8];
    struct err err = ERR_INIT;
    int64_t repo = repo_of(f->st, "docker.io", "x");

    for (int i = 0; i < 64; i++)
        digests[i] = digest_no(i);
    for (int i = 0; i < 8; i++) {
        r[i] = (struct reader){.st = f->st, .digests = digests, .repo = repo, .stop = &stop};
        assert_int_equal(pthread_create(&threads[i], NULL, read_all, &r[i]), 0);
    }
    for (int i = 0; i < 64; i++) {
        (void)put_original(f->st, &i, sizeof(i));
        ASSERT_OK(store_repo_add_blob(f->st, repo, &digests[i], sizeof(i), &err));
        if (i % 3 == 0)
            ASSERT_OK(store_evict(f->st, &digests[i], &err));
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(r[i].failed, 0);
        assert_true(r[i].lookups > 0);
    }
    expect_exact_totals(f->st);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_unknown),
        T(test_the_three_digests),
        T(test_its_own_canonical_form),
        T(test_repositories),
        T(test_unknown_repository),
        T(test_sizes_from_upstreams),
        T(test_sources),
        T(test_pending),
        T(test_shared_chunks_survive),
        T(test_a_reader_holds_eviction_back),
        T(test_holes_survive_a_crash),
        T(test_a_leased_chunk_is_not_swept),
        T(test_damage_heals),
        T(test_a_pack_is_gone),
        T(test_the_other_copy_stays),
        T(test_lookups_beside_a_writer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
