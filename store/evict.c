/* SPDX-License-Identifier: Apache-2.0
 * store/evict.c - taking bytes away: eviction and damage. Rows of digests stay (S4). What goes when room is needed is
 * room.c's choice; chunks that nobody uses any more are sweep.c's.
 *
 * Order: the row says "not here" and is durable, then the file is unlinked or the range punched.
 */
#include "base/log.h"
#include "store/catalog_internal.h"
#include "store/chunk_row_internal.h"
#include "store/files_internal.h"
#include "store/layer.h"
#include "store/original_internal.h"
#include "store/pack_internal.h"
#include "store/pin_internal.h"

#include <inttypes.h>

#define PAGE 512

/* ---- a canonical layer ------------------------------------------------------------------------------------------------------ */

static int run_with_id(struct sql_db *db, const char *literal, int64_t id, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, literal, err));
    sql_bind_int(&q, 1, id);
    return sql_run(&q, err);
}

int recipe_drop(struct catalog_tx *tx, int64_t canonical_id, struct err *err)
{
    TRY(run_with_id(tx->db,
                    "UPDATE chunk SET refs = refs - sub.n FROM"
                    " (SELECT chunk_id, count(*) AS n FROM recipe WHERE canonical_id = ?1 GROUP BY chunk_id) AS sub"
                    " WHERE chunk.id = sub.chunk_id",
                    canonical_id, err));
    TRY(run_with_id(tx->db, "DELETE FROM recipe WHERE canonical_id = ?1", canonical_id, err));
    return run_with_id(tx->db, "UPDATE canonical SET present = 0 WHERE id = ?1", canonical_id, err);
}

/* Locations at which a chunk's bytes were found damaged. lost: chunks whose bytes were known to be lost before. */
struct damage {
    size_t lost, count, cap;
    struct {
        int64_t chunk_id;
        struct pack_loc loc;
    } * rows;
};

static void damage_release(struct damage *dm)
{
    free(dm->rows);
}

static int lose_chunk(struct sql_db *db, int64_t id, const struct pack_loc *loc, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    /* Not when somebody has stored it anew meanwhile. */
    TRY(sql_query(db, &q, "UPDATE chunk SET pack_id = NULL WHERE id = ?1 AND pack_id = ?2 AND off = ?3", err));
    sql_bind_int(&q, 1, id);
    sql_bind_int(&q, 2, loc->pack);
    sql_bind_int(&q, 3, (int64_t)loc->off);
    TRY(sql_run(&q, err));
    return sql_changes(db) > 0 ? sweep_add_hole(db, loc, err) : 0;
}

static int drop_in_tx(struct store *st, int64_t canonical_id, const struct digest *d, const struct damage *dm,
                      struct sweep *sw, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;

    TRY(catalog_begin(st, &tx, err));
    if (dm == NULL) /* damage takes no notice of pins */
        TRY(pin_check_canonical(tx.db, canonical_id, d, err));
    for (size_t i = 0; dm != NULL && i < dm->count; i++)
        TRY(lose_chunk(tx.db, dm->rows[i].chunk_id, &dm->rows[i].loc, err));
    TRY(recipe_drop(&tx, canonical_id, err));
    TRY(sweep_unused(&tx, sw, err));
    return catalog_commit(&tx, err);
}

/* dm: NULL when it is evicted, and nothing is known to be damaged. */
static int drop_canonical(struct store *st, int64_t canonical_id, const struct digest *d, const struct damage *dm,
                          struct err *err)
{
    struct sweep sw = SWEEP_INIT;
    int rc = drop_in_tx(st, canonical_id, d, dm, &sw, err);

    sweep_end(st, &sw, rc == 0);
    return rc;
}

/* ---- an original ------------------------------------------------------------------------------------------------------------ */

enum pins { PINS_HOLD, PINS_DO_NOT_HOLD };

static int clear_original(struct store *st, const struct digest *d, int64_t blob_id, enum pins pins, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;

    TRY(catalog_begin(st, &tx, err));
    if (pins == PINS_HOLD)
        TRY(pin_check_original(tx.db, blob_id, d, err));
    TRY(run_with_id(tx.db, "UPDATE blob SET original_present = 0 WHERE id = ?1", blob_id, err));
    TRY(run_with_id(tx.db, "DELETE FROM original WHERE blob_id = ?1", blob_id, err));
    return catalog_commit(&tx, err);
}

/* Under digest_lock(), so that no new file of this digest arrives between the row and the unlink. */
static int drop_original(struct store *st, const struct digest *d, int64_t blob_id, enum pins pins, struct err *err)
{
    TRY(clear_original(st, d, blob_id, pins, err));
    original_remove(st, d);
    return 0;
}

/* ---- eviction ------------------------------------------------------------------------------------------------------------------ */

struct target {
    int64_t blob_id; /* 0: no original is present */
    int64_t canonical_id;
    struct digest canonical;
    bool known; /* the catalog knows the digest, present or not */
};

static int find_target(struct sql_db *db, const struct digest *d, struct target *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    *out = (struct target){.blob_id = 0};
    TRY(sql_query(db, &q,
                  "SELECT 0, id, original_present, digest FROM blob WHERE digest = ?1"
                  " UNION ALL SELECT 1, id, present, digest FROM canonical WHERE digest = ?1"
                  " UNION ALL SELECT 1, id, present, digest FROM canonical WHERE zdigest = ?1",
                  err));
    sql_bind_digest(&q, 1, d);
    while ((rc = sql_step(&q, err)) == SQL_ROW) {
        out->known = true;
        if (sql_int(&q, 2) == 0)
            continue;
        if (sql_int(&q, 0) == 0) {
            out->blob_id = sql_int(&q, 1);
        } else {
            out->canonical_id = sql_int(&q, 1);
            TRY(sql_digest(&q, 3, &out->canonical, err));
        }
    }
    return rc;
}

static int look_target(struct store *st, const struct digest *d, struct target *out, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(st, &db, err));
    return find_target(db, d, out, err);
}

static int evict_original(struct store *st, const struct digest *d, int64_t blob_id, enum pins pins, struct err *err)
{
    int rc;

    TRY(lease_doom(st, LEASE_ORIGINAL, d, err));
    rc = drop_original(st, d, blob_id, pins, err);
    lease_undoom(st, LEASE_ORIGINAL, d);
    return rc;
}

static int evict_canonical(struct store *st, const struct target *t, struct err *err)
{
    int rc;

    TRY(lease_doom(st, LEASE_CANONICAL, &t->canonical, err));
    rc = drop_canonical(st, t->canonical_id, &t->canonical, NULL, err);
    lease_undoom(st, LEASE_CANONICAL, &t->canonical);
    return rc;
}

int store_settle_original(struct store *st, const struct digest *original, struct err *err)
{
    CLEANUP(digest_unlock) struct lease lock = LEASE_INIT;
    struct store_blob blob;
    struct target t;

    TRY(digest_lock(st, original, &lock, err));
    TRY(store_blob_lookup(st, original, &blob, err));
    TRY(look_target(st, original, &t, err));
    if (t.blob_id == 0 || !blob.has_canonical || !blob.canonical_present)
        return 0;
    if (st->opt.originals != ORIGINALS_DROP && !digest_equal(original, &blob.canonical))
        return 0;
    return evict_original(st, original, t.blob_id, PINS_DO_NOT_HOLD, err); /* what is configured wins */
}

int evict_form(struct store *st, enum lease_kind kind, const struct digest *d, bool spare, struct err *err)
{
    CLEANUP(digest_unlock) struct lease lock = LEASE_INIT;
    struct store_blob blob;
    struct target t;

    TRY(digest_lock(st, d, &lock, err));
    TRY(look_target(st, d, &t, err));
    if (kind == LEASE_CANONICAL && t.canonical_id != 0 && digest_equal(&t.canonical, d))
        return evict_canonical(st, &t, err);
    if (kind == LEASE_ORIGINAL && t.blob_id != 0) {
        TRY(store_blob_lookup(st, d, &blob, err));
        if (!spare || blob.canonical_present)
            return evict_original(st, d, t.blob_id, PINS_HOLD, err);
    }
    return err_set(err, ERR_NOTFOUND, "%s is not in the store any more", digest_text(d).s);
}

int store_evict(struct store *st, const struct digest *d, struct err *err)
{
    CLEANUP(digest_unlock) struct lease lock = LEASE_INIT;
    struct target t;

    TRY(digest_lock(st, d, &lock, err));
    TRY(look_target(st, d, &t, err));
    if (t.blob_id == 0 && t.canonical_id == 0)
        return err_set(err, ERR_NOTFOUND, "%s is not in the store", digest_text(d).s);
    if (t.canonical_id != 0)
        TRY(evict_canonical(st, &t, err));
    return t.blob_id != 0 ? evict_original(st, d, t.blob_id, PINS_HOLD, err) : 0;
}

/* ---- damage ------------------------------------------------------------------------------------------------------------------------ */

struct frame_page {
    int64_t last_off;
    size_t count;
    int64_t ids[PAGE];
    struct pack_loc locs[PAGE];
};

static int list_frames(struct sql_db *db, int64_t canonical_id, struct frame_page *page, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    page->count = 0;
    TRY(sql_query(db, &q,
                  "SELECT r.off, c.id, c.pack_id, c.off, c.len, c.sum FROM recipe r JOIN chunk c ON c.id = r.chunk_id"
                  " WHERE r.canonical_id = ?1 AND r.off > ?2 ORDER BY r.off LIMIT ?3",
                  err));
    sql_bind_int(&q, 1, canonical_id);
    sql_bind_int(&q, 2, page->last_off);
    sql_bind_int(&q, 3, PAGE);
    while ((rc = sql_step(&q, err)) == SQL_ROW) {
        page->last_off = sql_int(&q, 0);
        page->ids[page->count] = sql_int(&q, 1);
        page->locs[page->count++] = (struct pack_loc){.pack = sql_int(&q, 2),
                                                      .off = (uint64_t)sql_int(&q, 3),
                                                      .len = (uint32_t)sql_int(&q, 4),
                                                      .sum = (uint64_t)sql_int(&q, 5)};
    }
    return rc;
}

static int read_frames(struct store *st, int64_t canonical_id, struct frame_page *page, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(st, &db, err));
    return list_frames(db, canonical_id, page, err);
}

static int note_damage(struct damage *dm, int64_t chunk_id, const struct pack_loc *loc, struct err *err)
{
    if (dm->count == dm->cap) {
        size_t cap = dm->cap == 0 ? 64 : dm->cap * 2;
        void *more = realloc(dm->rows, cap * sizeof(dm->rows[0]));

        if (more == NULL)
            return err_nomem(err, cap * sizeof(dm->rows[0]));
        dm->rows = more;
        dm->cap = cap;
    }
    dm->rows[dm->count].chunk_id = chunk_id;
    dm->rows[dm->count++].loc = *loc;
    return 0;
}

/* One frame: damaged, gone and unreadable are all the same here. */
static int check_frame(struct store *st, int64_t chunk_id, struct pack_loc *loc, struct buf *frame, struct damage *dm,
                       struct err *err)
{
    struct err why = ERR_INIT;

    if (loc->pack == 0) {
        dm->lost++;
        return 0;
    }
    TRY(buf_reserve(frame, loc->len, err));
    return chunk_read(st, chunk_id, loc, frame->data, &why) < 0 ? note_damage(dm, chunk_id, loc, err) : 0;
}

/* Reads the whole layer, so that one repair finds all of the damage and not one frame per attempt. */
static int find_damage(struct store *st, int64_t canonical_id, struct damage *dm, struct err *err)
{
    CLEANUP(free_ptr) struct frame_page *page = calloc(1, sizeof(*page));
    CLEANUP(buf_release) struct buf frame = BUF_INIT(PACK_PAYLOAD_MAX_BYTES);

    if (page == NULL)
        return err_nomem(err, sizeof(*page));
    page->last_off = -1;
    do {
        TRY(read_frames(st, canonical_id, page, err));
        for (size_t i = 0; i < page->count; i++)
            TRY(check_frame(st, page->ids[i], &page->locs[i], &frame, dm, err));
    } while (page->count == PAGE);
    return 0;
}

/* True when every MiB of the file passes. */
static bool original_good(struct store *st, const struct digest *d)
{
    CLEANUP(source_cleanup) struct source *s = NULL;
    CLEANUP(free_ptr) void *piece = malloc(ORIGINAL_BLOCK_BYTES);
    struct err ignored = ERR_INIT;
    size_t got;
    int rc = STEP_MORE;

    if (piece == NULL || original_open_quietly(st, d, &s, &ignored) < 0)
        return false;
    while (rc == STEP_MORE)
        rc = source_read(s, piece, ORIGINAL_BLOCK_BYTES, &got, &ignored);
    return rc == STEP_EOF;
}

/* Whether the chunks of a layer's recipe add up to its size: a recipe with holes is damage too, though no chunk is. */
static int recipe_whole(struct store *st, int64_t canonical_id, bool *out, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(catalog_read_begin(st, &db, err));
    TRY(sql_query(db, &q,
                  "SELECT c.size = (SELECT SUM(k.raw) FROM recipe r JOIN chunk k ON k.id = r.chunk_id"
                  " WHERE r.canonical_id = c.id) FROM canonical c WHERE c.id = ?1",
                  err));
    sql_bind_int(&q, 1, canonical_id);
    int rc = sql_step(&q, err);
    if (rc < 0)
        return rc;
    *out = rc == SQL_ROW && sql_int(&q, 0) == 1; /* no rows at all: NULL, which reads as 0 */
    return 0;
}

/* A layer that reads well from end to end stays: what the caller missed was an original that was just being dropped for it,
 * or one that lies beside it. */
static int lose_canonical(struct store *st, const struct target *t, struct err *err)
{
    CLEANUP(damage_release) struct damage dm = {.count = 0};
    bool whole = false;

    TRY(find_damage(st, t->canonical_id, &dm, err));
    TRY(recipe_whole(st, t->canonical_id, &whole, err));
    if (dm.count == 0 && dm.lost == 0 && whole)
        return 0;
    log_event(LOG_WARN, "store.lost", "canonical=%s damaged_chunks=%zu lost_chunks=%zu",
              digest_text(&t->canonical).s, dm.count, dm.lost);
    return drop_canonical(st, t->canonical_id, &t->canonical, &dm, err);
}

/* Leases do not hold it back: whoever still reads meets a checksum (S6), not wrong bytes. */
int store_mark_lost(struct store *st, const struct digest *d, struct err *err)
{
    CLEANUP(digest_unlock) struct lease lock = LEASE_INIT;
    struct target t;
    bool both;

    TRY(digest_lock(st, d, &lock, err));
    TRY(look_target(st, d, &t, err));
    if (!t.known)
        return err_set(err, ERR_NOTFOUND, "%s is not in the catalog", digest_text(d).s);
    /* Two forms under one digest: the caller saw one of them fail, and the other may be all that is left. */
    both = t.blob_id != 0 && t.canonical_id != 0;
    if (t.canonical_id != 0)
        TRY(lose_canonical(st, &t, err));
    if (t.blob_id == 0 || (both && original_good(st, d)))
        return 0;
    log_event(LOG_WARN, "store.lost", "original=%s", digest_text(d).s);
    return drop_original(st, d, t.blob_id, PINS_DO_NOT_HOLD, err);
}
