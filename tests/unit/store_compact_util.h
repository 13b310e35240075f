/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_compact_util.h - stores of many small packs, and whether packs still tell all that the catalog says.
 * Include after cmocka's headers.
 */
#pragma once

#include "store/compact_internal.h"
#include "store/gc.h"
#include "store/meta.h"
#include "store/pin.h"
#include "store/recipe.h"
#include "store/record_internal.h"
#include "tests/unit/store_layer_util.h"

#include <stdlib.h>

#define SMALL_PACK_BYTES (UINT64_C(256) << 10)
#define LAYERS_MAX 400

struct made {
    struct layer_result r;
    struct digest source;
    uint64_t seed;
    size_t len;
    bool gone;
};

struct world {
    struct fixture *f;
    struct made layers[LAYERS_MAX];
    unsigned count;
};

static inline void small_packs(struct fixture *f, bool holes)
{
    REQUIRE(f->st != NULL);
    f->st->packs->max_bytes = SMALL_PACK_BYTES;
    atomic_store(&f->st->packs->no_holes, !holes);
}

static inline uint8_t *made_bytes(const struct made *m)
{
    uint8_t *data = malloc(m->len + 1);

    assert_non_null(data);
    fill_random(data, m->len, m->seed);
    return data;
}

static inline struct made *make_layer(struct world *w, uint64_t seed, size_t len)
{
    struct made *m = &w->layers[w->count++];
    CLEANUP(free_ptr) uint8_t *data = NULL;

    assert_true(w->count <= LAYERS_MAX);
    *m = (struct made){.seed = seed, .len = len};
    data = made_bytes(m);
    m->source = put_source(w->f->st, (int)seed);
    m->r = write_layer(w->f->st, &m->source, data, len);
    return m;
}

static inline void evict_layer(struct world *w, struct made *m)
{
    struct err err = ERR_INIT;

    ASSERT_OK(store_evict(w->f->st, &m->r.canonical, &err));
    m->gone = true;
}

static inline void expect_made(struct store *st, const struct made *m)
{
    CLEANUP(free_ptr) uint8_t *data = made_bytes(m);
    struct digest got;
    struct bytes b;

    expect_layer(st, &m->r, data, m->len);
    b = read_layer(st, &m->r.canonical, LAYER_ZSTD, 0, UINT64_MAX, 1 << 18);
    assert_int_equal(b.code, 0);
    digest_of(b.data, b.len, &got);
    assert_true(digest_equal(&got, &m->r.zstd));
    free(b.data);
    b = read_layer(st, &m->r.canonical, LAYER_IDENTITY, m->len / 3, 1000, 333);
    assert_int_equal(b.code, 0);
    assert_memory_equal(b.data, data + m->len / 3, b.len);
    free(b.data);
}

static inline void expect_world(const struct world *w, struct store *st)
{
    for (unsigned i = 0; i < w->count; i++)
        if (!w->layers[i].gone)
            expect_made(st, &w->layers[i]);
}

static inline struct store_gc_progress run_gc(struct store *st, bool evict)
{
    struct store_gc_progress p;
    struct store_gc *gc = NULL;
    struct err err = ERR_INIT;
    bool more = true;

    ASSERT_OK(store_gc_new(st, evict, &gc, &err));
    while (more)
        ASSERT_OK(store_gc_step(gc, &p, &more, &err));
    store_gc_free(gc);
    return p;
}

static inline struct world *new_world(struct fixture *f, bool holes)
{
    struct world *w = calloc(1, sizeof(*w));

    assert_non_null(w);
    w->f = f;
    small_packs(f, holes);
    return w;
}

static inline uint64_t disk(struct store *st)
{
    return packs_disk_bytes(st->packs);
}

/* All but every n-th. */
static inline void evict_most(struct world *w, unsigned n)
{
    for (unsigned i = 0; i < w->count; i++)
        if (i % n != 0 && !w->layers[i].gone)
            evict_layer(w, &w->layers[i]);
}

/* Ends with a layer that begins a pack of its own. */
static inline void fill(struct world *w, unsigned count, size_t len)
{
    for (unsigned i = 0; i < count; i++)
        (void)make_layer(w, 1 + w->count, len + w->count * 7);
}

static inline void reopen_world(struct world *w, bool holes)
{
    reopen_store(w->f);
    small_packs(w->f, holes);
}

static inline struct digest put_manifest(struct store *st, int64_t repo, const char *tag, const char *body)
{
    struct store_manifest_put p = {
        .repo = repo, .tag = tag, .media_type = "application/x", .body = body, .len = strlen(body)};
    struct err err = ERR_INIT;

    digest_of(body, p.len, &p.digest);
    ASSERT_OK(store_manifest_put(st, &p, &err));
    return p.digest;
}

/* ---- what packs tell ---------------------------------------------------------------------------------------------------- */

struct record {
    struct pack_header h;
    int64_t pack;
    uint64_t off;
    uint8_t *payload;
};

struct records {
    struct record *items;
    size_t count, cap;
    int64_t pack;
};

static inline int keep_record(void *arg, const struct pack_header *r, uint64_t payload_off, const uint8_t *payload,
                              struct err *err)
{
    struct records *rs = arg;
    struct record *rec;

    (void)err;
    if (rs->count == rs->cap) {
        rs->cap = rs->cap == 0 ? 256 : 2 * rs->cap;
        rs->items = realloc(rs->items, rs->cap * sizeof(*rs->items));
        assert_non_null(rs->items);
    }
    rec = &rs->items[rs->count++];
    *rec = (struct record){.h = *r, .pack = rs->pack, .off = payload_off, .payload = malloc(r->len + 1)};
    assert_non_null(rec->payload);
    memcpy(rec->payload, payload, r->len);
    return 0;
}

static inline struct records scan_all(struct store *st)
{
    CLEANUP(free_ptr) struct pack_info *packs = NULL;
    struct records rs = {.count = 0};
    struct err err = ERR_INIT;
    size_t count = 0;

    ASSERT_OK(packs_list(st->packs, &packs, &count, &err));
    for (size_t i = 0; i < count; i++) {
        rs.pack = packs[i].id;
        ASSERT_OK(pack_scan(st->packs, packs[i].id, keep_record, &rs, &err));
    }
    return rs;
}

static inline void records_release(struct records *rs)
{
    for (size_t i = 0; i < rs->count; i++)
        free(rs->items[i].payload);
    free(rs->items);
}

typedef bool about_fn(const struct record *r, const void *what);

/* The record about it that wins; NULL: there is none. */
static inline const struct record *winner(const struct records *rs, about_fn *about, const void *what)
{
    const struct record *best = NULL;

    for (size_t i = 0; i < rs->count; i++)
        if (about(&rs->items[i], what) && (best == NULL || pack_origin_later(&rs->items[i].h.meta, &best->h.meta)))
            best = &rs->items[i];
    return best;
}

struct thing {
    enum pack_record type;
    struct digest key, other;
    int number;
    char text[3][300];
};

static inline bool text_is(const struct record_text *t, const char *s)
{
    return t->len == strlen(s) && memcmp(t->s, s, t->len) == 0;
}

static inline bool about_layer(const struct record *r, const void *what)
{
    const struct thing *t = what;

    return (r->h.type == PACK_RECIPE || r->h.type == PACK_LAYER) && digest_equal(&r->h.key, &t->key);
}

static inline bool about_link(const struct record *r, const void *what)
{
    const struct thing *t = what;
    struct record_link l;
    struct err err = ERR_INIT;

    return r->h.type == PACK_REPO_BLOB && digest_equal(&r->h.key, &t->key) &&
           record_get_link(r->payload, r->h.len, &l, &err) == 0 && (int)l.kind == t->number &&
           text_is(&l.upstream, t->text[0]) && text_is(&l.name, t->text[1]);
}

static inline bool about_tag(const struct record *r, const void *what)
{
    const struct thing *t = what;
    struct record_tag tag;
    struct err err = ERR_INIT;

    return r->h.type == PACK_TAG && record_get_tag(r->payload, r->h.len, &tag, &err) == 0 &&
           text_is(&tag.upstream, t->text[0]) && text_is(&tag.name, t->text[1]) && text_is(&tag.tag, t->text[2]);
}

static inline bool about_view(const struct record *r, const void *what)
{
    const struct thing *t = what;
    struct record_view v;
    struct err err = ERR_INIT;

    return r->h.type == PACK_VIEW && digest_equal(&r->h.key, &t->key) &&
           record_get_view(r->payload, r->h.len, &v, &err) == 0 && v.view == t->number;
}

static inline bool about_derived(const struct record *r, const void *what)
{
    const struct thing *t = what;
    struct record_view v;
    struct err err = ERR_INIT;

    return about_view(r, what) && record_get_view(r->payload, r->h.len, &v, &err) == 0 &&
           digest_equal(&v.derived, &t->other);
}

static inline bool about_key(const struct record *r, const void *what)
{
    const struct thing *t = what;

    return r->h.type == t->type && digest_equal(&r->h.key, &t->key);
}

static inline bool about_place(const struct record *r, const void *what)
{
    const struct thing *t = what;

    return r->h.type == PACK_FRAME && digest_equal(&r->h.key, &t->key) &&
           strcmp(t->text[0], pack_name(r->pack).s) == 0 && r->off == (uint64_t)t->number;
}

typedef void row_fn(const struct records *rs, struct sql_query *q);

static inline void each_row(struct store *st, const struct records *rs, const char *sql, row_fn *fn)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct err err = ERR_INIT;

    ASSERT_OK(catalog_read_begin(st, &db, &err));
    ASSERT_OK(sql_query(db, &q, sql, &err));
    while (sql_step(&q, &err) == SQL_ROW)
        fn(rs, &q);
    assert_int_equal(err.code, 0);
}

static inline struct thing thing_of(struct sql_query *q, enum pack_record type)
{
    struct thing t = {.type = type};
    struct err err = ERR_INIT;

    ASSERT_OK(sql_digest(q, 0, &t.key, &err));
    return t;
}

static inline void check_layer(const struct records *rs, struct sql_query *q)
{
    struct thing t = thing_of(q, PACK_RECIPE);
    const struct record *r = winner(rs, about_layer, &t);
    struct recipe_head head;
    struct digest zstd;
    struct err err = ERR_INIT;

    assert_non_null(r);
    ASSERT_OK(sql_digest(q, 1, &zstd, &err));
    if (r->h.type == PACK_LAYER) {
        assert_int_equal(sql_int(q, 2), 0);
        ASSERT_OK(recipe_layer_parse(r->payload, r->h.len, &head, &err));
    } else {
        ASSERT_OK(recipe_parse(r->payload, r->h.len, &head, &err));
    }
    assert_true(digest_equal(&head.zstd, &zstd));
    assert_int_equal(head.size_bytes, sql_int(q, 3));
    assert_int_equal(head.zstd_bytes, sql_int(q, 4));
}

static inline void check_chunk(const struct records *rs, struct sql_query *q)
{
    struct thing t = thing_of(q, PACK_FRAME);
    const struct record *r;

    (void)snprintf(t.text[0], sizeof(t.text[0]), "%s", pack_name(sql_int(q, 1)).s);
    t.number = (int)sql_int(q, 2);
    r = winner(rs, about_place, &t);
    assert_non_null(r);
    assert_int_equal(r->h.len, sql_int(q, 3));
    assert_int_equal(r->h.meta.raw_bytes, sql_int(q, 4));
    assert_int_equal(r->h.meta.kind, sql_int(q, 5));
    assert_int_equal(r->h.meta.level, sql_int(q, 6));
}

static inline void check_blob(const struct records *rs, struct sql_query *q)
{
    struct thing t = thing_of(q, PACK_BLOB);

    assert_non_null(winner(rs, about_key, &t));
}

static inline void check_link(const struct records *rs, struct sql_query *q)
{
    struct thing t = thing_of(q, PACK_REPO_BLOB);

    t.number = (int)sql_int(q, 1);
    (void)snprintf(t.text[0], sizeof(t.text[0]), "%s", sql_text(q, 2));
    (void)snprintf(t.text[1], sizeof(t.text[1]), "%s", sql_text(q, 3));
    assert_non_null(winner(rs, about_link, &t));
}

static inline void check_manifest(const struct records *rs, struct sql_query *q)
{
    struct thing t = thing_of(q, PACK_MANIFEST);

    assert_non_null(winner(rs, about_key, &t));
}

static inline void check_tag(const struct records *rs, struct sql_query *q)
{
    struct thing t = thing_of(q, PACK_TAG);
    const struct record *r;
    struct record_tag tag;
    struct err err = ERR_INIT;

    for (int i = 0; i < 3; i++)
        (void)snprintf(t.text[i], sizeof(t.text[i]), "%s", sql_text(q, 1 + i));
    r = winner(rs, about_tag, &t);
    assert_non_null(r);
    ASSERT_OK(record_get_tag(r->payload, r->h.len, &tag, &err));
    assert_false(tag.dropped);
    assert_true(digest_equal(&r->h.key, &t.key));
}

static inline void check_view(const struct records *rs, struct sql_query *q)
{
    struct thing t = thing_of(q, PACK_VIEW);
    const struct record *r;
    struct record_view v;
    struct err err = ERR_INIT;

    t.number = (int)sql_int(q, 1);
    ASSERT_OK(sql_digest(q, 2, &t.other, &err));
    r = winner(rs, about_view, &t);
    assert_non_null(r);
    ASSERT_OK(record_get_view(r->payload, r->h.len, &v, &err));
    assert_true(digest_equal(&v.derived, &t.other));
}

static inline void check_derived(const struct records *rs, struct sql_query *q)
{
    struct thing t = thing_of(q, PACK_VIEW);
    struct err err = ERR_INIT;

    t.number = (int)sql_int(q, 1);
    ASSERT_OK(sql_digest(q, 2, &t.other, &err));
    assert_non_null(winner(rs, about_derived, &t));
}

/* No tag that is not there: the winner of each is set in the catalog. */
static inline void expect_no_more_tags(struct store *st, const struct records *rs)
{
    int64_t live = 0;

    for (size_t i = 0; i < rs->count; i++) {
        const struct record *r = &rs->items[i];
        struct thing t = {.type = PACK_TAG};
        struct record_tag tag;
        struct err err = ERR_INIT;

        if (r->h.type != PACK_TAG)
            continue;
        ASSERT_OK(record_get_tag(r->payload, r->h.len, &tag, &err));
        (void)snprintf(t.text[0], sizeof(t.text[0]), "%.*s", (int)tag.upstream.len, tag.upstream.s);
        (void)snprintf(t.text[1], sizeof(t.text[1]), "%.*s", (int)tag.name.len, tag.name.s);
        (void)snprintf(t.text[2], sizeof(t.text[2]), "%.*s", (int)tag.tag.len, tag.tag.s);
        live += winner(rs, about_tag, &t) == r && !tag.dropped;
    }
    assert_int_equal(live, sql_number(st, "SELECT count(*) FROM tag"));
}

/* What a catalog made from the packs alone would have. */
static inline void expect_packs_tell_all(struct store *st)
{
    struct records rs = scan_all(st);

    each_row(st, &rs, "SELECT digest, zdigest, present, size, zsize FROM canonical", check_layer);
    each_row(st, &rs, "SELECT digest, pack_id, off, len, raw, kind, level FROM chunk WHERE pack_id IS NOT NULL",
             check_chunk);
    each_row(st, &rs, "SELECT digest FROM blob WHERE canon = 1", check_blob);
    each_row(st, &rs,
             "SELECT b.digest, 0, r.upstream, r.name FROM repo_blob x JOIN blob b ON b.id = x.blob_id"
             " JOIN repo r ON r.id = x.repo_id UNION ALL"
             " SELECT m.digest, 1, r.upstream, r.name FROM repo_manifest x JOIN manifest m ON m.id = x.manifest_id"
             " JOIN repo r ON r.id = x.repo_id",
             check_link);
    each_row(st, &rs, "SELECT digest FROM manifest", check_manifest);
    each_row(st, &rs,
             "SELECT m.digest, r.upstream, r.name, t.name FROM tag t JOIN manifest m ON m.id = t.manifest_id"
             " JOIN repo r ON r.id = t.repo_id",
             check_tag);
    each_row(st, &rs,
             "SELECT u.digest, v.view, m.digest FROM view v JOIN manifest u ON u.id = v.upstream_id"
             " JOIN manifest m ON m.id = v.manifest_id",
             check_view);
    each_row(st, &rs,
             "SELECT u.digest, v.view, m.digest FROM derived v JOIN manifest u ON u.id = v.upstream_id"
             " JOIN manifest m ON m.id = v.manifest_id",
             check_derived);
    expect_no_more_tags(st, &rs);
    records_release(&rs);
}
