/* SPDX-License-Identifier: Apache-2.0
 * store/rebuild_layers.c - chunks, canonical layers and their recipes, from FRAME, RECIPE, LAYER and BLOB records.
 *
 * Of several frames of one chunk the later one counts: chunks are stored again after the earlier frame went. Where two
 * differ, `alt` remembers the earlier one. A layer's zstd form has a published digest; it is hashed unless all of its
 * frames are older than its recipe and alone.
 */
#include "store/chunk_row_internal.h"
#include "store/rebuild_internal.h"
#include "store/recipe.h"

#include <inttypes.h>

/* ---- chunks ------------------------------------------------------------------------------------------------------------ */

static int check_frame(struct rebuild *r, const struct found *f, struct err *err)
{
    const struct pack_meta *m = &f->h.meta;
    struct digest got;

    if (m->raw_bytes > CHUNK_MAX_BYTES || f->h.len == 0 || f->h.len > frame_bound(m->raw_bytes))
        return err_set(err, ERR_CORRUPT, "a frame of %" PRIu32 " bytes for %" PRIu32, f->h.len, m->raw_bytes);
    if (m->kind != FRAME_ZSTD && m->kind != FRAME_ZSTD_RAW)
        return err_set(err, ERR_UNSUPPORTED, "a frame of kind %d, which this recask does not know", (int)m->kind);
    TRY(frame_decode(r->frames, (enum frame_kind)m->kind, f->data, f->h.len, r->raw, m->raw_bytes, err));
    digest_of(r->raw, m->raw_bytes, &got);
    return digest_equal(&got, &f->h.key) ? 0 : err_set(err, ERR_CORRUPT, "the bytes are not the chunk's");
}

static int add_alternative(struct sql_db *db, const struct chunk_row *row, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(
        db, &q, "INSERT INTO temp.alt SELECT id, pack_id, off, len, sum, kind, level, encoder FROM chunk WHERE id = ?1",
        err));
    sql_bind_int(&q, 1, row->id);
    return sql_run(&q, err);
}

int rebuild_frame(struct rebuild *r, const struct found *f, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct chunk_row before;
    bool found;

    TRY(check_frame(r, f, err));
    TRY(chunk_row_find(r->db, &f->h.key, &before, &found, err));
    if (found && (before.loc.len != f->h.len || before.loc.sum != f->h.sum))
        TRY(add_alternative(r->db, &before, err));
    TRY(sql_query(r->db, &q,
                  "INSERT INTO chunk (digest, raw, kind, level, encoder, pack_id, off, len, sum)"
                  " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"
                  " ON CONFLICT (digest) DO UPDATE SET kind = ?3, level = ?4, encoder = ?5, pack_id = ?6, off = ?7,"
                  " len = ?8, sum = ?9",
                  err));
    sql_bind_digest(&q, 1, &f->h.key);
    sql_bind_int(&q, 2, f->h.meta.raw_bytes);
    sql_bind_int(&q, 3, f->h.meta.kind);
    sql_bind_int(&q, 4, f->h.meta.level);
    sql_bind_int(&q, 5, f->h.meta.encoder);
    sql_bind_int(&q, 6, f->pack);
    sql_bind_int(&q, 7, (int64_t)f->off);
    sql_bind_int(&q, 8, f->h.len);
    sql_bind_int(&q, 9, (int64_t)f->h.sum);
    return sql_run(&q, err);
}

/* ---- layers ------------------------------------------------------------------------------------------------------------ */

/* Finds or makes the row; two sizes of one digest cannot both be right. */
static int canonical_row(struct rebuild *r, const struct digest *d, uint64_t size_bytes, int64_t *out_id,
                         struct err *err)
{
    CLEANUP(sql_done) struct sql_query add = SQL_QUERY_INIT;
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    if (size_bytes > INT64_MAX)
        return err_set(err, ERR_CORRUPT, "a layer beyond all sizes");
    TRY(sql_query(r->db, &add,
                  "INSERT INTO canonical (digest, size, created, last_read) VALUES (?1, ?2, ?3, ?4)"
                  " ON CONFLICT DO NOTHING",
                  err));
    sql_bind_digest(&add, 1, d);
    sql_bind_int(&add, 2, (int64_t)size_bytes);
    sql_bind_int(&add, 3, r->now_s);
    sql_bind_int(&add, 4, r->now_ms);
    TRY(sql_run(&add, err));
    TRY(sql_query(r->db, &q, "SELECT id, size FROM canonical WHERE digest = ?1", err));
    sql_bind_digest(&q, 1, d);
    TRY(rc = sql_step(&q, err));
    if (rc != SQL_ROW || (uint64_t)sql_int(&q, 1) != size_bytes)
        return err_set(err, ERR_CORRUPT, "another record says another size of layer %s", digest_text(d).s);
    *out_id = sql_int(&q, 0);
    return 0;
}

/* Whether this record is the one that counts so far. */
static int win(struct rebuild *r, const struct found *f, int64_t canonical_id, bool *out_won, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(r->db, &q,
                  "INSERT INTO temp.seen_layer VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)"
                  " ON CONFLICT (canonical_id) DO UPDATE SET origin_pack = ?2, origin_off = ?3, pack = ?4, off = ?5,"
                  "  len = ?6, sum = ?7, absent = ?8 WHERE (?2, ?3) >= (origin_pack, origin_off)",
                  err));
    sql_bind_int(&q, 1, canonical_id);
    sql_bind_int(&q, 2, f->h.meta.origin_pack);
    sql_bind_int(&q, 3, (int64_t)f->h.meta.origin_off);
    sql_bind_int(&q, 4, f->pack);
    sql_bind_int(&q, 5, (int64_t)f->off);
    sql_bind_int(&q, 6, f->h.len);
    sql_bind_int(&q, 7, (int64_t)f->h.sum);
    sql_bind_int(&q, 8, f->h.type == PACK_LAYER);
    TRY(sql_run(&q, err));
    *out_won = sql_changes(r->db) > 0;
    return 0;
}

/* IGNORE: two layers cannot have one zstd form; a record that says so is not believed. */
static int set_head(struct rebuild *r, int64_t id, const struct recipe_head *head, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(r->db, &q,
                  "UPDATE OR IGNORE canonical SET zdigest = ?2, zsize = ?3, level = ?4, encoder = ?5, chunks = ?6"
                  " WHERE id = ?1",
                  err));
    sql_bind_int(&q, 1, id);
    sql_bind_digest(&q, 2, &head->zstd);
    sql_bind_int(&q, 3, (int64_t)head->zstd_bytes);
    sql_bind_int(&q, 4, head->level);
    sql_bind_int(&q, 5, head->encoder);
    sql_bind_int(&q, 6, head->chunks);
    return sql_run(&q, err);
}

int rebuild_recipe(struct rebuild *r, const struct found *f, struct err *err)
{
    struct recipe_head head = {.chunks = 0};
    int64_t id = 0;
    bool won = false;

    if (f->h.type == PACK_LAYER)
        TRY(recipe_layer_parse(f->data, f->h.len, &head, err));
    else
        TRY(recipe_parse(f->data, f->h.len, &head, err));
    if (head.zstd_bytes > INT64_MAX)
        return err_set(err, ERR_CORRUPT, "a layer beyond all sizes");
    TRY(canonical_row(r, &f->h.key, head.size_bytes, &id, err));
    TRY(win(r, f, id, &won, err));
    return won ? set_head(r, id, &head, err) : 0;
}

int rebuild_link(struct rebuild *r, const struct found *f, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct recipe_link link;
    int64_t blob_id = 0, canonical_id = 0;

    TRY(recipe_link_parse(f->data, f->h.len, &link, err));
    TRY(canonical_row(r, &link.canonical, link.canonical_bytes, &canonical_id, err));
    TRY(rebuild_blob_row(r, &f->h.key, 0, &blob_id, err));
    TRY(sql_query(r->db, &q, "UPDATE blob SET canon = 1, canonical_id = ?2 WHERE id = ?1", err));
    sql_bind_int(&q, 1, blob_id);
    sql_bind_int(&q, 2, canonical_id);
    return sql_run(&q, err);
}

/* ---- recipes ----------------------------------------------------------------------------------------------------------- */

struct layer {
    int64_t id;
    struct digest digest;
    int64_t origin_pack;
    uint64_t origin_off;
    struct pack_loc recipe;
    struct recipe_head head;
};

/* Whether a frame lies before the record that names it. */
static bool is_older(const struct pack_loc *frame, const struct layer *l)
{
    return frame->pack < l->origin_pack || (frame->pack == l->origin_pack && frame->off < l->origin_off);
}

/* The chunk's other frame, the latest one that is older than the layer. */
static int find_alternative(struct rebuild *r, const struct layer *l, struct chunk_row *row, bool *out_found,
                            struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(r->db, &q,
                  "SELECT pack, off, len, sum, kind, level, encoder FROM temp.alt WHERE chunk_id = ?1"
                  " AND (pack, off) < (?2, ?3) ORDER BY pack DESC, off DESC LIMIT 1",
                  err));
    sql_bind_int(&q, 1, row->id);
    sql_bind_int(&q, 2, l->origin_pack);
    sql_bind_int(&q, 3, (int64_t)l->origin_off);
    TRY(rc = sql_step(&q, err));
    *out_found = rc == SQL_ROW;
    if (!*out_found)
        return 0;
    row->loc = (struct pack_loc){.pack = sql_int(&q, 0),
                                 .off = (uint64_t)sql_int(&q, 1),
                                 .len = (uint32_t)sql_int(&q, 2),
                                 .sum = (uint64_t)sql_int(&q, 3)};
    row->kind = (enum frame_kind)sql_int(&q, 4);
    row->level = (int)sql_int(&q, 5);
    row->encoder = (uint32_t)sql_int(&q, 6);
    return 0;
}

static int has_alternative(struct rebuild *r, int64_t chunk_id, bool *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(r->db, &q, "SELECT 1 FROM temp.alt WHERE chunk_id = ?1", err));
    sql_bind_int(&q, 1, chunk_id);
    TRY(rc = sql_step(&q, err));
    *out = rc == SQL_ROW;
    return 0;
}

enum choice { CHOOSE_LATEST = 0, CHOOSE_OLDER };

/* The frame of chunk i; row->id 0: there is none. out_switched: not the one that the chunk's row has. */
static int chunk_of(struct rebuild *r, const struct layer *l, uint32_t i, enum choice choice, struct chunk_row *row,
                    bool *out_switched, struct err *err)
{
    struct recipe_chunk want;
    bool found;

    *out_switched = false;
    recipe_chunk_at((const uint8_t *)r->payload.data, i, &want);
    TRY(chunk_row_find(r->db, &want.digest, row, &found, err));
    if (!found || row->raw_bytes != want.raw_bytes)
        row->id = 0;
    if (row->id != 0 && choice == CHOOSE_OLDER && !is_older(&row->loc, l))
        return find_alternative(r, l, row, out_switched, err);
    return 0;
}

/* Whether the frames are all there and make the zstd form that was published. */
static int check_frames(struct rebuild *r, const struct layer *l, enum choice choice, bool *out_good, bool *out_all,
                        struct err *err)
{
    CLEANUP(hasher_cleanup) struct hasher *h = NULL;
    uint64_t zstd_bytes = 0;
    bool doubt = choice == CHOOSE_OLDER;
    struct chunk_row row;
    struct digest got;
    bool switched;

    *out_good = false;
    *out_all = false;
    for (uint32_t i = 0; i < l->head.chunks; i++) {
        bool other;

        TRY(chunk_of(r, l, i, choice, &row, &switched, err));
        if (row.id == 0)
            return 0;
        TRY(has_alternative(r, row.id, &other, err));
        doubt = doubt || other || !is_older(&row.loc, l);
        zstd_bytes += row.loc.len;
    }
    *out_all = true;
    if (zstd_bytes != l->head.zstd_bytes)
        return 0;
    if (!doubt) {
        *out_good = true;
        return 0;
    }
    TRY(hasher_new(&h, err));
    for (uint32_t i = 0; i < l->head.chunks; i++) {
        TRY(chunk_of(r, l, i, choice, &row, &switched, err));
        TRY(pack_read(r->off.packs, &row.loc, r->frame, err));
        hasher_update(h, r->frame, row.loc.len);
    }
    hasher_peek(h, &got);
    *out_good = digest_equal(&got, &l->head.zstd);
    return 0;
}

static int switch_frame(struct rebuild *r, const struct chunk_row *row, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(r->db, &q,
                  "UPDATE chunk SET kind = ?2, level = ?3, encoder = ?4, pack_id = ?5, off = ?6, len = ?7, sum = ?8"
                  " WHERE id = ?1 AND (refs = 0 OR (len = ?7 AND sum = ?8))",
                  err));
    sql_bind_int(&q, 1, row->id);
    sql_bind_int(&q, 2, row->kind);
    sql_bind_int(&q, 3, row->level);
    sql_bind_int(&q, 4, row->encoder);
    sql_bind_int(&q, 5, row->loc.pack);
    sql_bind_int(&q, 6, (int64_t)row->loc.off);
    sql_bind_int(&q, 7, row->loc.len);
    sql_bind_int(&q, 8, (int64_t)row->loc.sum);
    return sql_run(&q, err);
}

/* False: a layer that is taken already uses the chunk's other frame. */
static int switch_frames(struct rebuild *r, const struct layer *l, bool *out_done, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct chunk_row row;
    bool switched;

    *out_done = false;
    TRY(sql_query(r->db, &q, "SELECT refs FROM chunk WHERE id = ?1", err));
    for (uint32_t i = 0; i < l->head.chunks; i++) { /* look at all of them before the first is changed */
        TRY(chunk_of(r, l, i, CHOOSE_OLDER, &row, &switched, err));
        sql_bind_int(&q, 1, row.id);
        TRY(sql_step(&q, err));
        if (switched && sql_int(&q, 0) != 0)
            return 0;
        sql_reset(&q);
    }
    for (uint32_t i = 0; i < l->head.chunks; i++) {
        TRY(chunk_of(r, l, i, CHOOSE_OLDER, &row, &switched, err));
        if (switched)
            TRY(switch_frame(r, &row, err));
    }
    *out_done = true;
    return 0;
}

static int add_use(struct rebuild *r, int64_t chunk_id, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(r->db, &q, "UPDATE chunk SET refs = refs + 1 WHERE id = ?1", err));
    sql_bind_int(&q, 1, chunk_id);
    return sql_run(&q, err);
}

static int set_present(struct rebuild *r, int64_t id, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(r->db, &q, "UPDATE canonical SET present = 1 WHERE id = ?1", err));
    sql_bind_int(&q, 1, id);
    return sql_run(&q, err);
}

static int put_recipe(struct rebuild *r, const struct layer *l, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    uint64_t off = 0, zoff = 0;

    TRY(sql_query(r->db, &q, "INSERT INTO recipe (canonical_id, off, zoff, chunk_id) VALUES (?1, ?2, ?3, ?4)", err));
    for (uint32_t i = 0; i < l->head.chunks; i++) {
        struct chunk_row row;
        bool switched;

        TRY(chunk_of(r, l, i, CHOOSE_LATEST, &row, &switched, err));
        sql_bind_int(&q, 1, l->id);
        sql_bind_int(&q, 2, (int64_t)off);
        sql_bind_int(&q, 3, (int64_t)zoff);
        sql_bind_int(&q, 4, row.id);
        TRY(sql_run(&q, err));
        TRY(add_use(r, row.id, err));
        off += row.raw_bytes;
        zoff += row.loc.len;
    }
    return set_present(r, l->id, err);
}

/* The recorded zstd digest is the row's, unless set_head() did not believe it. */
static int read_recipe(struct rebuild *r, struct layer *l, struct err *err)
{
    buf_reset(&r->payload);
    TRY(buf_reserve(&r->payload, l->recipe.len, err));
    TRY(pack_read(r->off.packs, &l->recipe, r->payload.data, err));
    return recipe_parse((const uint8_t *)r->payload.data, l->recipe.len, &l->head, err);
}

static int build_layer(struct rebuild *r, struct layer *l, struct err *err)
{
    bool good, all;

    TRY(read_recipe(r, l, err));
    TRY(check_frames(r, l, CHOOSE_LATEST, &good, &all, err));
    if (all && !good) {
        bool other;

        TRY(check_frames(r, l, CHOOSE_OLDER, &good, &other, err));
        if (good)
            TRY(switch_frames(r, l, &good, err));
    }
    if (good)
        return put_recipe(r, l, err);
    if (all)
        rebuild_lost(r, "layer %s: its frames do not make its zstd form; it will be fetched again",
                     digest_text(&l->digest).s);
    return 0;
}

static int next_layer(struct rebuild *r, int64_t after, struct layer *l, bool *out_found, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(
        r->db, &q,
        "SELECT s.canonical_id, c.digest, s.origin_pack, s.origin_off, s.pack, s.off, s.len, s.sum"
        " FROM temp.seen_layer s JOIN canonical c ON c.id = s.canonical_id"
        " WHERE s.canonical_id > ?1 AND s.absent = 0 AND c.zdigest IS NOT NULL ORDER BY s.canonical_id LIMIT 1",
        err));
    sql_bind_int(&q, 1, after);
    TRY(rc = sql_step(&q, err));
    *out_found = rc == SQL_ROW;
    if (!*out_found)
        return 0;
    *l = (struct layer){.id = sql_int(&q, 0),
                        .origin_pack = sql_int(&q, 2),
                        .origin_off = (uint64_t)sql_int(&q, 3),
                        .recipe = {.pack = sql_int(&q, 4),
                                   .off = (uint64_t)sql_int(&q, 5),
                                   .len = (uint32_t)sql_int(&q, 6),
                                   .sum = (uint64_t)sql_int(&q, 7)}};
    return sql_digest(&q, 1, &l->digest, err);
}

int rebuild_layers(struct rebuild *r, struct err *err)
{
    struct layer l = {.id = 0};
    bool found;

    for (;;) {
        struct err why = ERR_INIT;
        int rc;

        TRY(next_layer(r, l.id, &l, &found, err));
        if (!found)
            return 0;
        TRY(sql_exec(r->db, "BEGIN", err));
        rc = build_layer(r, &l, &why);
        if (rc < 0) { /* a frame that was good a moment ago: the disk, or the catalog that is being made */
            *err = why;
            return rc;
        }
        TRY(sql_exec(r->db, "COMMIT", err));
    }
}
