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

#include "store/files_internal.h"
#include "store/scrub.h"
#include "tests/unit/store_layer_util.h"
#include "transcode/codec.h"

#include <errno.h>
#include <inttypes.h>

#define LAYER_BYTES 900000u

/* ---- help ------------------------------------------------------------------------------------------------------------ */

struct found {
    size_t count;
    struct scrub_finding list[64];
    struct store_scrub_progress p;
    unsigned steps;
};

static void note(void *arg, const struct scrub_finding *f)
{
    struct found *found = arg;

    assert_true(found->count < 64);
    found->list[found->count++] = *f;
}

/* between: called before each step, may be NULL. */
static void scrub_with(struct store *st, struct found *out, void (*between)(void *arg), void *arg)
{
    struct store_scrub *s = NULL;
    struct err err = ERR_INIT;
    bool more = true;

    memset(out, 0, sizeof(*out));
    ASSERT_OK(store_scrub_new(st, &s, &err));
    while (more) {
        if (between != NULL)
            between(arg);
        ASSERT_OK(store_scrub_step(s, note, out, &out->p, &more, &err));
        out->steps++;
    }
    store_scrub_free(s);
    assert_int_equal(out->p.bad, out->count);
    assert_int_equal(out->p.bytes, out->p.total_bytes);
}

static void expect_clean(struct store *st)
{
    struct found f;

    scrub_with(st, &f, NULL, NULL);
    if (f.count > 0)
        fail_msg("found: %s", f.list[0].text);
}

/* Exactly one, of this kind. */
static struct scrub_finding expect_one(struct store *st, enum scrub_fault fault)
{
    struct found f;

    scrub_with(st, &f, NULL, NULL);
    for (size_t i = 1; i < f.count; i++)
        print_message("also: %s\n", f.list[i].text);
    if (f.count != 1 || f.list[0].fault != fault)
        fail_msg("want one %s, found %zu, %s: %s", scrub_fault_name(fault), f.count,
                 f.count > 0 ? scrub_fault_name(f.list[0].fault) : "-", f.count > 0 ? f.list[0].text : "");
    return f.list[0];
}

struct layer {
    struct digest source;
    uint8_t *data;
    struct layer_result r;
};

static struct layer add_layer(struct store *st, int id)
{
    struct layer l = {.data = malloc(LAYER_BYTES)};
    uint64_t state = (uint64_t)id;

    assert_non_null(l.data);
    for (size_t i = 0; i < LAYER_BYTES; i++)
        l.data[i] = (uint8_t)next_random(&state);
    l.source = put_source(st, id);
    l.r = write_layer(st, &l.source, l.data, LAYER_BYTES);
    return l;
}

static void release_layer(struct layer *l)
{
    free(l->data);
}

/* Two layers that have their first half in common. */
static void add_twins(struct store *st, struct layer *one, struct layer *two)
{
    uint64_t state = 77;

    *one = add_layer(st, 1);
    two->data = malloc(LAYER_BYTES);
    assert_non_null(two->data);
    memcpy(two->data, one->data, LAYER_BYTES);
    for (size_t i = LAYER_BYTES / 2; i < LAYER_BYTES; i++)
        two->data[i] = (uint8_t)next_random(&state);
    two->source = put_source(st, 2);
    two->r = write_layer(st, &two->source, two->data, LAYER_BYTES);
}

static void original_path(const struct fixture *f, const struct digest *d, char *out, size_t cap)
{
    (void)snprintf(out, cap, "%s/originals/%s/%s", f->dir, original_dir(d).s, digest_hex(d).s);
}

static void flip_byte(const char *path, off_t at)
{
    CLEANUP(fd_cleanup) int fd = open(path, O_RDWR | O_CLOEXEC);
    uint8_t byte;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
}

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

/* ---- while the store is used ---------------------------------------------------------------------------------------------------- */

struct churn {
    struct fixture *f;
    struct layer *layers;
    unsigned turn;
};

/* Layers come and go under the scrub; a lease may hold one of them. */
static void come_and_go(void *arg)
{
    struct churn *c = arg;
    struct layer *l = &c->layers[c->turn++ % 4];
    struct err err = ERR_INIT;
    int rc = store_evict(c->f->st, &l->r.canonical, &err);

    if (rc == 0 || rc == ERR_NOTFOUND)
        (void)write_layer(c->f->st, &l->source, l->data, LAYER_BYTES);
    else
        assert_int_equal(rc, ERR_BUSY);
    err_clear(&err);
    if (c->turn % 3 == 0) /* whoever reads it */
        ASSERT_OK(store_scrub_drop_layer(c->f->st, &c->layers[(c->turn + 1) % 4].r.canonical, &err));
}

static void test_evictions_are_no_findings(void **state)
{
    struct fixture *f = *state;
    struct layer layers[4];
    struct found found;

    for (int i = 0; i < 4; i++)
        layers[i] = add_layer(f->st, i + 1);
    for (int i = 0; i < 5; i++) {
        scrub_with(f->st, &found, come_and_go, &(struct churn){.f = f, .layers = layers});
        if (found.count > 0)
            fail_msg("%s", found.list[0].text);
        assert_true(found.steps > 1);
    }
    expect_sound_catalog(f->st);
    for (int i = 0; i < 4; i++)
        release_layer(&layers[i]);
}

/* A scrub that has read more than so many bytes. */
static struct store_scrub *scrub_to(struct store *st, uint64_t bytes, struct found *found)
{
    struct store_scrub *s = NULL;
    struct err err = ERR_INIT;
    bool more = true;

    memset(found, 0, sizeof(*found));
    ASSERT_OK(store_scrub_new(st, &s, &err));
    while (found->p.bytes <= bytes) {
        ASSERT_OK(store_scrub_step(s, note, found, &found->p, &more, &err));
        assert_true(more);
    }
    return s;
}

static void expect_nothing_more(struct store_scrub *s, struct found *found)
{
    struct err err = ERR_INIT;
    bool more = true;

    while (more)
        ASSERT_OK(store_scrub_step(s, note, found, &found->p, &more, &err));
    store_scrub_free(s);
    if (found->count > 0)
        fail_msg("%s", found->list[0].text);
}

static size_t list_chunks(struct store *st, int64_t *ids, struct pack_loc *locs, size_t max)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct err err = ERR_INIT;
    size_t n = 0;

    ASSERT_OK(catalog_read_begin(st, &db, &err));
    ASSERT_OK(sql_query(db, &q, "SELECT id, pack_id, off, len, sum FROM chunk", &err));
    while (sql_step(&q, &err) == SQL_ROW) {
        assert_true(n < max);
        ids[n] = sql_int(&q, 0);
        locs[n++] = (struct pack_loc){.pack = sql_int(&q, 1),
                                      .off = (uint64_t)sql_int(&q, 2),
                                      .len = (uint32_t)sql_int(&q, 3),
                                      .sum = (uint64_t)sql_int(&q, 4)};
    }
    return n;
}

/* Appends the frame of each chunk again, lets the row point there, and wipes the old one: what compaction does. */
static void move_frames(struct store *st)
{
    int64_t ids[64];
    struct pack_loc locs[64];
    struct err err = ERR_INIT;
    size_t n = list_chunks(st, ids, locs, 64);

    for (size_t i = 0; i < n; i++) {
        CLEANUP(free_ptr) uint8_t *frame = calloc(1, locs[i].len);
        CLEANUP(fd_cleanup) int fd = openat(st->packs_fd, pack_name(locs[i].pack).s, O_WRONLY | O_CLOEXEC);
        struct digest key = {.b = {0}};
        struct pack_loc moved;
        char sql[128];

        assert_non_null(frame);
        ASSERT_OK(pack_read(st->packs, &locs[i], frame, &err));
        ASSERT_OK(pack_append(st->packs, PACK_FRAME, &key, NULL, frame, locs[i].len, &moved, &err));
        ASSERT_OK(pack_sync(st->packs, &err));
        (void)snprintf(sql, sizeof(sql),
                       "UPDATE chunk SET pack_id = %" PRId64 ", off = %" PRIu64 " WHERE id = %" PRId64, moved.pack,
                       moved.off, ids[i]);
        sql_change(st, sql);
        memset(frame, 0, locs[i].len);
        assert_int_equal(pwrite(fd, frame, locs[i].len, (off_t)locs[i].off), locs[i].len);
    }
}

static void test_moved_frames(void **state)
{
    struct fixture *f = *state;
    struct layer layers[3];
    struct found found;

    for (int i = 0; i < 3; i++)
        layers[i] = add_layer(f->st, i + 1);
    struct store_scrub *s = scrub_to(f->st, LAYER_BYTES / 2, &found);
    move_frames(f->st);
    expect_nothing_more(s, &found);
    assert_int_equal(found.p.layers, 3);
    for (int i = 0; i < 3; i++)
        release_layer(&layers[i]);
}

/* The layer in hand goes, its frames with it. */
static void test_layer_goes(void **state)
{
    struct fixture *f = *state;
    struct layer layers[3];
    struct found found;
    struct err err = ERR_INIT;

    for (int i = 0; i < 3; i++)
        layers[i] = add_layer(f->st, i + 1);
    struct store_scrub *s = scrub_to(f->st, LAYER_BYTES / 2, &found);
    for (int i = 0; i < 3; i++)
        ASSERT_OK(store_scrub_drop_layer(f->st, &layers[i].r.canonical, &err));
    expect_nothing_more(s, &found);
    for (int i = 0; i < 3; i++)
        release_layer(&layers[i]);
}

/* The layer in hand goes, and its frames stay, since another has them too: the rest of its recipe is missing then. */
static void test_recipe_goes(void **state)
{
    struct fixture *f = *state;
    size_t len = 24u << 20;
    uint8_t *data = malloc(len + 1);
    struct digest one = put_source(f->st, 1), two = put_source(f->st, 2);
    struct found found;
    struct err err = ERR_INIT;
    uint64_t random = 5;

    assert_non_null(data);
    for (size_t i = 0; i <= len; i++)
        data[i] = (uint8_t)next_random(&random);
    struct layer_result r = write_layer(f->st, &one, data, len);
    (void)write_layer(f->st, &two, data, len + 1);
    assert_true(r.chunks > 65); /* more than a page */
    struct store_scrub *s = scrub_to(f->st, 2u << 20, &found);
    ASSERT_OK(store_scrub_drop_layer(f->st, &r.canonical, &err));
    expect_nothing_more(s, &found);
    free(data);
}

/* A byte that reads well the second time: a bad cable, not a bad disk. */
static void test_passing_fault(void **state)
{
    struct fixture *f = *state;
    CLEANUP(free_ptr) uint8_t *data = calloc(5, 1u << 20);
    struct store_scrub *s;
    struct found found;
    struct err err = ERR_INIT;
    char path[192];
    bool more = true;

    assert_non_null(data);
    struct digest d = put_original(f->st, data, 5u << 20);
    original_path(f, &d, path, sizeof(path));
    s = scrub_to(f->st, 0, &found);
    flip_byte(path, (4 << 20) + 7);
    while (found.p.bytes < 4u << 20)
        ASSERT_OK(store_scrub_step(s, note, &found, &found.p, &more, &err));
    ASSERT_OK(store_scrub_step(s, note, &found, &found.p, &more, &err)); /* meets it, and begins anew */
    flip_byte(path, (4 << 20) + 7);
    expect_nothing_more(s, &found);
    assert_int_equal(found.p.originals, 1);
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
        cmocka_unit_test_setup_teardown(test_evictions_are_no_findings, setup, teardown),
        cmocka_unit_test_setup_teardown(test_moved_frames, setup, teardown),
        cmocka_unit_test_setup_teardown(test_layer_goes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_recipe_goes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_passing_fault, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cancel_and_last, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
