/* SPDX-License-Identifier: Apache-2.0
 * store/chunk_row.c - see the header.
 */
#include "store/chunk_row_internal.h"

#include "base/log.h"
#include "store/catalog_internal.h"

#include <inttypes.h>

#define MOVES_MAX 16 /* how often a frame may be moved while it is looked for */

size_t chunk_frame_max_bytes(void)
{
    return frame_bound(CHUNK_MAX_BYTES);
}

static bool in_range(int64_t value, int64_t min, int64_t max)
{
    return value >= min && value <= max;
}

int chunk_row_read(struct sql_query *q, int first, struct chunk_row *out, struct err *err)
{
    int64_t raw = sql_int(q, first + 1);
    int64_t kind = sql_int(q, first + 2);
    int64_t off = sql_int(q, first + 6);
    int64_t len = sql_int(q, first + 7);

    out->id = sql_int(q, first);
    if (!in_range(raw, 0, CHUNK_MAX_BYTES) || !in_range(len, 1, (int64_t)frame_bound((size_t)raw)) ||
        !in_range(kind, FRAME_ZSTD, FRAME_PLANES) || off < 0)
        return err_set(err, ERR_CORRUPT, "catalog: chunk row %" PRId64 " makes no sense", out->id);
    if (kind == FRAME_PLANES)
        return err_set(err, ERR_UNSUPPORTED, "chunk row %" PRId64 " is a frame of planes, which a newer recask wrote",
                       out->id);
    out->raw_bytes = (uint32_t)raw;
    out->kind = (enum frame_kind)kind;
    out->level = (int)sql_int(q, first + 3);
    out->encoder = (uint32_t)sql_int(q, first + 4);
    out->lost = sql_is_null(q, first + 5);
    out->loc.pack = out->lost ? 0 : sql_int(q, first + 5);
    out->loc.off = (uint64_t)off;
    out->loc.len = (uint32_t)len;
    out->loc.sum = (uint64_t)sql_int(q, first + 8);
    return 0;
}

int chunk_row_find(struct sql_db *db, const struct digest *d, struct chunk_row *out, bool *out_found, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q, "SELECT " CHUNK_ROW_COLUMNS " FROM chunk c WHERE c.digest = ?1", err));
    sql_bind_digest(&q, 1, d);
    TRY(rc = sql_step(&q, err));
    *out_found = rc == SQL_ROW;
    return *out_found ? chunk_row_read(&q, 0, out, err) : 0;
}

/* Where the frame is now. False: there is none of this length and sum. */
static int look_again(struct store *st, int64_t id, struct pack_loc *loc, bool *out_moved, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(catalog_read_begin(st, &db, err));
    TRY(sql_query(
        db, &q, "SELECT pack_id, off FROM chunk WHERE id = ?1 AND len = ?2 AND sum = ?3 AND pack_id IS NOT NULL", err));
    sql_bind_int(&q, 1, id);
    sql_bind_int(&q, 2, loc->len);
    sql_bind_int(&q, 3, (int64_t)loc->sum);
    TRY(rc = sql_step(&q, err));
    *out_moved = rc == SQL_ROW && (sql_int(&q, 0) != loc->pack || (uint64_t)sql_int(&q, 1) != loc->off);
    if (*out_moved) {
        loc->pack = sql_int(&q, 0);
        loc->off = (uint64_t)sql_int(&q, 1);
    }
    return 0;
}

int chunk_read(struct store *st, int64_t id, struct pack_loc *loc, void *out, struct err *err)
{
    for (int tries = 0;; tries++) {
        struct err why = ERR_INIT;
        int rc = pack_read(st->packs, loc, out, &why);
        bool moved = false;

        if (rc == 0)
            return 0;
        if ((rc == ERR_CORRUPT || rc == ERR_NOTFOUND) && id != 0 && tries < MOVES_MAX)
            TRY(look_again(st, id, loc, &moved, err));
        if (!moved) {
            *err = why;
            return rc;
        }
    }
}

static int lose_in_tx(struct sql_db *db, const struct chunk_row *row, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    CLEANUP(sql_done) struct sql_query hole = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, "UPDATE chunk SET pack_id = NULL WHERE id = ?1 AND pack_id = ?2 AND off = ?3", err));
    sql_bind_int(&q, 1, row->id);
    sql_bind_int(&q, 2, row->loc.pack);
    sql_bind_int(&q, 3, (int64_t)row->loc.off);
    TRY(sql_run(&q, err));
    if (sql_changes(db) == 0)
        return 0;
    log_event(LOG_WARN, "chunk.lost", "pack=%" PRId64 " off=%" PRIu64 " len=%" PRIu32, row->loc.pack, row->loc.off,
              row->loc.len);
    /* The next sweep punches it. */
    TRY(sql_query(db, &hole, "INSERT INTO hole (pack_id, off, len) VALUES (?1, ?2, ?3)", err));
    sql_bind_int(&hole, 1, row->loc.pack);
    sql_bind_int(&hole, 2, (int64_t)row->loc.off);
    sql_bind_int(&hole, 3, row->loc.len);
    return sql_run(&hole, err);
}

int chunk_row_lose(struct store *st, const struct chunk_row *row, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;

    TRY(catalog_begin(st, &tx, err));
    TRY(lose_in_tx(tx.db, row, err));
    return catalog_commit(&tx, err);
}
