/* SPDX-License-Identifier: Apache-2.0
 * store/layer_commit.c - makes a written layer visible: records, fsync, then one transaction (S2, S3).
 *
 * Between the look-up of a chunk and the commit the catalog moves on: another writer may have stored the same chunk, a
 * shared one may have been found damaged. Inside the transaction each row is looked at again. A row of the same frame
 * (length and sum) is as good as ours, whosever it is; anything else is ERR_BUSY, and the caller writes the layer
 * again.
 */
#include "base/clock.h"
#include "base/log.h"
#include "store/files_internal.h"
#include "store/layer_writer_internal.h"
#include "store/recipe.h"

#include <inttypes.h>

/* What the catalog says about the layer. */
struct known {
    int64_t id; /* 0: no row */
    bool present;
    bool has_zstd;
    struct digest zstd;
    uint64_t zstd_bytes;
};

/* What the catalog says about the source. */
struct source_row {
    int64_t id;
    bool original_present;
    int64_t canonical_id; /* 0: none */
};

struct commit {
    struct layer_writer *w;
    struct digest canonical, zstd;
    struct known known;
    struct source_row source;
    struct lease file_lock; /* held, with the original's lease doomed, when its file goes */
    bool drop;              /* that */
    struct layer_result result;
};

/* ---- reading what is known --------------------------------------------------------------------------------------- */

static int find_known(struct sql_db *db, const struct digest *d, struct known *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    memset(out, 0, sizeof(*out));
    TRY(sql_query(db, &q, "SELECT id, present, zdigest, zsize FROM canonical WHERE digest = ?1", err));
    sql_bind_digest(&q, 1, d);
    TRY(rc = sql_step(&q, err));
    if (rc == SQL_END)
        return 0;
    out->id = sql_int(&q, 0);
    out->present = sql_int(&q, 1) != 0;
    out->has_zstd = !sql_is_null(&q, 2);
    out->zstd_bytes = (uint64_t)sql_int(&q, 3);
    return out->has_zstd ? sql_digest(&q, 2, &out->zstd, err) : 0;
}

static int find_source(struct sql_db *db, const struct digest *d, struct source_row *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q, "SELECT id, original_present, canonical_id FROM blob WHERE digest = ?1", err));
    sql_bind_digest(&q, 1, d);
    TRY(rc = sql_step(&q, err));
    if (rc == SQL_END)
        return err_set(err, ERR_NOTFOUND, "no original %s", digest_text(d).s);
    out->id = sql_int(&q, 0);
    out->original_present = sql_int(&q, 1) != 0;
    out->canonical_id = sql_is_null(&q, 2) ? 0 : sql_int(&q, 2);
    return 0;
}

static int look_up_both(struct commit *c, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(c->w->st, &db, err));
    TRY(find_known(db, &c->canonical, &c->known, err));
    return find_source(db, &c->w->source, &c->source, err);
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

static int append_recipe(struct commit *c, struct err *err)
{
    const struct layer_writer *w = c->w;
    struct recipe_head head = {.chunks = w->row_count,
                               .size_bytes = w->size_bytes,
                               .zstd_bytes = w->zstd_bytes,
                               .level = w->level,
                               .encoder = w->encoder,
                               .zstd = c->zstd};
    size_t len = recipe_bytes(w->row_count);
    CLEANUP(free_ptr) uint8_t *payload = malloc(len);
    struct pack_loc loc;

    if (payload == NULL)
        return err_nomem(err, len);
    recipe_put_head(payload, &head);
    for (uint32_t i = 0; i < w->row_count; i++) {
        const struct piece *piece = &w->pieces[w->rows[i]];
        struct recipe_chunk chunk = {.digest = piece->digest, .raw_bytes = piece->raw_bytes};

        recipe_put_chunk(payload, i, &chunk);
    }
    return pack_append(w->st->packs, PACK_RECIPE, &c->canonical, NULL, payload, len, &loc, err);
}

static int append_link(struct commit *c, struct err *err)
{
    struct recipe_link link = {.canonical = c->canonical, .canonical_bytes = c->w->size_bytes};
    uint8_t payload[RECIPE_LINK_BYTES];
    struct pack_loc loc;

    recipe_link_put(payload, &link);
    return pack_append(c->w->st->packs, PACK_BLOB, &c->w->source, NULL, payload, sizeof(payload), &loc, err);
}

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

static int changed(const struct piece *piece, const char *how, struct err *err)
{
    return err_set(err, ERR_BUSY, "chunk %s %s while the layer was written", digest_text(&piece->digest).s, how);
}

static int insert_chunk(struct sql_db *db, struct piece *piece, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q,
                  "INSERT INTO chunk (digest, raw, kind, level, encoder, pack_id, off, len, sum)"
                  " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                  err));
    sql_bind_digest(&q, 1, &piece->digest);
    sql_bind_int(&q, 2, piece->raw_bytes);
    sql_bind_int(&q, 3, piece->kind);
    sql_bind_int(&q, 4, piece->level);
    sql_bind_int(&q, 5, piece->encoder);
    sql_bind_int(&q, 6, piece->loc.pack);
    sql_bind_int(&q, 7, (int64_t)piece->loc.off);
    sql_bind_int(&q, 8, piece->loc.len);
    sql_bind_int(&q, 9, (int64_t)piece->loc.sum);
    TRY(sql_run(&q, err));
    piece->id = sql_last_id(db);
    piece->linked = true;
    return 0;
}

/* The row has lost its bytes: ours are the same (C2). */
static int heal_chunk(struct sql_db *db, struct piece *piece, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, "UPDATE chunk SET pack_id = ?2, off = ?3, encoder = ?4 WHERE id = ?1", err));
    sql_bind_int(&q, 1, piece->id);
    sql_bind_int(&q, 2, piece->loc.pack);
    sql_bind_int(&q, 3, (int64_t)piece->loc.off);
    sql_bind_int(&q, 4, piece->encoder);
    TRY(sql_run(&q, err));
    piece->linked = true;
    return 0;
}

/* Finds or makes the row of one chunk, and its id. */
static int settle_chunk(struct sql_db *db, struct piece *piece, struct err *err)
{
    struct chunk_row row;
    bool found;

    TRY(chunk_row_find(db, &piece->digest, &row, &found, err));
    if (!found)
        return piece->state == PIECE_SHARED ? changed(piece, "went away", err) : insert_chunk(db, piece, err);
    if (row.loc.len != piece->loc.len || row.loc.sum != piece->loc.sum)
        return changed(piece, "got another frame", err);
    /* Without a lease nothing keeps the row that is there from going away under the recipe. */
    if (!piece->leased)
        return changed(piece, "was being deleted", err);
    piece->id = row.id;
    if (!row.lost)
        return 0;
    return piece->state == PIECE_SHARED ? changed(piece, "was lost", err) : heal_chunk(db, piece, err);
}

static int add_uses(struct sql_db *db, const struct piece *piece, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, "UPDATE chunk SET refs = refs + ?2 WHERE id = ?1", err));
    sql_bind_int(&q, 1, piece->id);
    sql_bind_int(&q, 2, piece->uses);
    return sql_run(&q, err);
}

static int settle_chunks(struct layer_writer *w, struct sql_db *db, struct err *err)
{
    for (uint32_t i = 0; i < w->piece_count; i++) {
        TRY(settle_chunk(db, &w->pieces[i], err));
        TRY(add_uses(db, &w->pieces[i], err));
    }
    return 0;
}

/* The layer is there already; only what it had lost is of use. */
static int heal_chunks(struct layer_writer *w, struct sql_db *db, struct err *err)
{
    for (uint32_t i = 0; i < w->piece_count; i++)
        if (w->pieces[i].state == PIECE_HEALED)
            TRY(settle_chunk(db, &w->pieces[i], err));
    return 0;
}

/* ---- the layer --------------------------------------------------------------------------------------------------- */

static int insert_recipe(struct layer_writer *w, struct sql_db *db, int64_t canonical_id, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    uint64_t off = 0, zoff = 0;

    TRY(sql_query(db, &q, "INSERT INTO recipe (canonical_id, off, zoff, chunk_id) VALUES (?1, ?2, ?3, ?4)", err));
    for (uint32_t i = 0; i < w->row_count; i++) {
        const struct piece *piece = &w->pieces[w->rows[i]];

        sql_bind_int(&q, 1, canonical_id);
        sql_bind_int(&q, 2, (int64_t)off);
        sql_bind_int(&q, 3, (int64_t)zoff);
        sql_bind_int(&q, 4, piece->id);
        TRY(sql_run(&q, err));
        off += piece->raw_bytes;
        zoff += piece->loc.len;
    }
    return 0;
}

/* Upstream manifests that list an original of the layer, and the indexes above them. A view that is the upstream's own
 * bytes lists no zstd form of ours. */
#define AFFECTED                                                                                                       \
    "WITH RECURSIVE affected (id) AS ("                                                                                \
    " SELECT r.manifest_id FROM blob b JOIN manifest_ref r ON r.digest = b.digest AND r.role = 2"                      \
    "  WHERE b.canonical_id = ?1"                                                                                      \
    " UNION SELECT r.manifest_id FROM affected a JOIN manifest m ON m.id = a.id"                                       \
    "  JOIN manifest_ref r ON r.digest = m.digest AND r.role = 3)"
#define HAS_ZSTD_VIEW "view = 2 AND manifest_id <> upstream_id"

int store_retire_zstd(struct sql_db *db, int64_t canonical_id, struct err *err)
{
    CLEANUP(sql_done) struct sql_query again = SQL_QUERY_INIT;
    CLEANUP(sql_done) struct sql_query drop = SQL_QUERY_INIT;

    TRY(sql_query(db, &again,
                  AFFECTED
                  " UPDATE manifest SET views = 0, wanted = 1 WHERE views = 1 AND is_index = 0 AND id IN affected"
                  " AND EXISTS (SELECT 1 FROM view WHERE upstream_id = manifest.id AND " HAS_ZSTD_VIEW ")",
                  err));
    sql_bind_int(&again, 1, canonical_id);
    TRY(sql_run(&again, err));
    TRY(sql_query(db, &drop, AFFECTED " DELETE FROM view WHERE upstream_id IN affected AND " HAS_ZSTD_VIEW, err));
    sql_bind_int(&drop, 1, canonical_id);
    return sql_run(&drop, err);
}

static int retire_when_changed(struct commit *c, struct sql_db *db, struct err *err)
{
    if (!c->known.has_zstd || digest_equal(&c->known.zstd, &c->zstd))
        return 0;
    log_event(LOG_WARN, "layer.zstd_retired", "layer=%s old=%s new=%s", digest_text(&c->canonical).s,
              digest_text(&c->known.zstd).s, digest_text(&c->zstd).s);
    return store_retire_zstd(db, c->known.id, err);
}

static int upsert_canonical(struct commit *c, struct sql_db *db, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    const struct layer_writer *w = c->w;

    TRY(retire_when_changed(c, db, err));
    TRY(sql_query(db, &q,
                  "INSERT INTO canonical (digest, size, zdigest, zsize, level, encoder, present, chunks, created,"
                  " last_read) VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1, ?7, ?8, ?9)"
                  " ON CONFLICT (digest) DO UPDATE SET zdigest = ?3, zsize = ?4, level = ?5, encoder = ?6, present = 1,"
                  " chunks = ?7, created = ?8, last_read = ?9",
                  err));
    sql_bind_digest(&q, 1, &c->canonical);
    sql_bind_int(&q, 2, (int64_t)w->size_bytes);
    sql_bind_digest(&q, 3, &c->zstd);
    sql_bind_int(&q, 4, (int64_t)w->zstd_bytes);
    sql_bind_int(&q, 5, w->level);
    sql_bind_int(&q, 6, w->encoder);
    sql_bind_int(&q, 7, w->row_count);
    sql_bind_int(&q, 8, clock_wall_s());
    sql_bind_int(&q, 9, clock_wall_ms());
    TRY(sql_run(&q, err));
    if (c->known.id == 0)
        c->known.id = sql_last_id(db);
    return 0;
}

static int link_source(struct commit *c, struct sql_db *db, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    CLEANUP(sql_done) struct sql_query drop = SQL_QUERY_INIT;

    TRY(sql_query(db, &q,
                  "UPDATE blob SET canonical_id = ?2, canon = 1, refuse_reason = NULL,"
                  " original_present = original_present AND ?3 WHERE id = ?1",
                  err));
    sql_bind_int(&q, 1, c->source.id);
    sql_bind_int(&q, 2, c->known.id);
    sql_bind_int(&q, 3, !c->drop);
    TRY(sql_run(&q, err));
    if (!c->drop)
        return 0;
    TRY(sql_query(db, &drop, "DELETE FROM original WHERE blob_id = ?1", err));
    sql_bind_int(&drop, 1, c->source.id);
    return sql_run(&drop, err);
}

/* ---- the commit -------------------------------------------------------------------------------------------------- */

/* The rows may have moved since look_up_both(), on which the records were decided. */
static int check_unmoved(struct commit *c, struct sql_db *db, struct err *err)
{
    struct known known;
    struct source_row source = {.id = 0};

    TRY(find_known(db, &c->canonical, &known, err));
    TRY(find_source(db, &c->w->source, &source, err));
    if (!known.present && c->known.present)
        return err_set(err, ERR_BUSY, "layer %s was evicted while it was linked", digest_text(&c->canonical).s);
    if (source.canonical_id != 0 && source.canonical_id != known.id)
        return err_set(err, ERR_CORRUPT, "original %s is linked to another layer than %s already",
                       digest_text(&c->w->source).s, digest_text(&c->canonical).s);
    c->known = known;
    c->source = source;
    return 0;
}

static int commit_rows(struct commit *c, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;
    struct layer_writer *w = c->w;
    int rc;

    TRY(catalog_begin(w->st, &tx, err));
    TRY(check_unmoved(c, tx.db, err));
    c->result.existed = c->known.present;
    if (c->result.existed) {
        TRY(heal_chunks(w, tx.db, err));
    } else {
        TRY(settle_chunks(w, tx.db, err));
        TRY(upsert_canonical(c, tx.db, err));
        TRY(insert_recipe(w, tx.db, c->known.id, err));
    }
    TRY(link_source(c, tx.db, err));
    rc = catalog_commit(&tx, err);
    /* A commit that failed on its way to the disk may still be found there after a crash (S2). */
    w->keep_frames = rc < 0;
    return rc;
}

/* The original goes when it says nothing that the layer does not say, or when that is the policy. One that somebody
 * reads stays until it is evicted (S5). */
static int decide_drop(struct commit *c, struct err *err)
{
    struct layer_writer *w = c->w;
    struct err busy = ERR_INIT;
    int rc;

    if (!c->source.original_present ||
        !(digest_equal(&w->source, &c->canonical) || w->st->opt.originals == ORIGINALS_DROP))
        return 0;
    TRY(digest_lock(w->st, &w->source, &c->file_lock, err));
    rc = lease_doom(w->st, LEASE_ORIGINAL, &w->source, &busy);
    c->drop = rc == 0;
    if (c->drop || rc == ERR_BUSY)
        return 0;
    *err = busy;
    return rc;
}

/* committed: the row is gone, so the file goes. */
static void end_drop(struct commit *c, bool committed)
{
    if (c->drop && committed)
        original_remove(c->w->st, &c->w->source);
    if (c->drop)
        lease_undoom(c->w->st, LEASE_ORIGINAL, &c->w->source);
    digest_unlock(&c->file_lock);
}

/* Frames were written over some time; a sync that somebody else called for may have failed meanwhile. */
static int check_frames(const struct commit *c, struct err *err)
{
    const struct layer_writer *w = c->w;

    for (uint32_t i = 0; i < w->piece_count; i++)
        if (w->pieces[i].state != PIECE_SHARED)
            TRY(pack_check(w->st->packs, &w->pieces[i].loc, err));
    return 0;
}

static int commit_durably(struct commit *c, struct err *err)
{
    TRY(look_up_both(c, err));
    if (!c->known.present)
        TRY(append_recipe(c, err));
    if (c->source.canonical_id == 0)
        TRY(append_link(c, err));
    TRY(pack_sync(c->w->st->packs, err));
    TRY(check_frames(c, err));
    TRY(decide_drop(c, err));
    return commit_rows(c, err);
}

static void fill_result(const struct commit *c, struct layer_result *out)
{
    const struct layer_writer *w = c->w;

    *out = c->result;
    out->canonical = c->canonical;
    out->canonical_bytes = w->size_bytes;
    out->zstd = out->existed ? c->known.zstd : c->zstd;
    out->zstd_bytes = out->existed ? c->known.zstd_bytes : w->zstd_bytes;
    out->chunks = w->row_count;
    for (uint32_t i = 0; i < w->piece_count; i++) {
        if (!w->pieces[i].linked)
            continue;
        out->new_chunks++;
        out->new_frame_bytes += w->pieces[i].loc.len;
    }
}

int layer_writer_commit(struct layer_writer *w, struct layer_result *out, struct err *err)
{
    struct commit c = {.w = w, .file_lock = LEASE_INIT};
    int rc;

    REQUIRE(!w->committed);
    TRY(layer_writer_finish(w, err));
    hasher_peek(w->canonical_hash, &c.canonical);
    hasher_peek(w->zstd_hash, &c.zstd);
    rc = commit_durably(&c, err);
    end_drop(&c, rc == 0);
    if (rc < 0)
        return rc;
    w->committed = true;
    fill_result(&c, out);
    return 0;
}
