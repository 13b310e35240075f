/* SPDX-License-Identifier: Apache-2.0
 * store/sweep.c - chunks that nobody uses: their rows, their holes, their blocks (catalog_internal.h).
 *
 * The transaction that deletes the rows also writes down the holes, so a crash in between is made up for at the next open.
 * Offsets in packs are never used twice, so punching one twice is harmless.
 */
#include "base/log.h"
#include "store/catalog_internal.h"
#include "store/pack_internal.h"

#define PAGE 512

struct unused {
    int64_t id;
    struct digest digest;
    struct pack_loc loc; /* pack 0: lost, no bytes */
};

struct unused_page {
    int64_t last_id;
    size_t count;
    struct unused rows[PAGE];
};

static int read_unused(struct sql_db *db, struct unused_page *page, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    page->count = 0;
    TRY(sql_query(db, &q,
                  "SELECT id, digest, pack_id, off, len FROM chunk WHERE refs = 0 AND id > ?1 ORDER BY id LIMIT ?2",
                  err));
    sql_bind_int(&q, 1, page->last_id);
    sql_bind_int(&q, 2, PAGE);
    while ((rc = sql_step(&q, err)) == SQL_ROW) {
        struct unused *u = &page->rows[page->count];

        *u = (struct unused){
            .id = sql_int(&q, 0),
            .loc = {.pack = sql_int(&q, 2), .off = (uint64_t)sql_int(&q, 3), .len = (uint32_t)sql_int(&q, 4)}};
        TRY(sql_digest(&q, 1, &u->digest, err));
        page->last_id = u->id;
        page->count++;
    }
    return rc;
}

int sweep_add_hole(struct sql_db *db, const struct pack_loc *loc, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, "INSERT INTO hole (pack_id, off, len) VALUES (?1, ?2, ?3)", err));
    sql_bind_int(&q, 1, loc->pack);
    sql_bind_int(&q, 2, (int64_t)loc->off);
    sql_bind_int(&q, 3, (int64_t)loc->len);
    return sql_run(&q, err);
}

static int delete_chunk(struct sql_db *db, const struct unused *u, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    if (u->loc.pack != 0)
        TRY(sweep_add_hole(db, &u->loc, err));
    TRY(sql_query(db, &q, "DELETE FROM chunk WHERE id = ?1 AND refs = 0", err));
    sql_bind_int(&q, 1, u->id);
    return sql_run(&q, err);
}

/* False: a writer is about to share it. */
static int doom(struct store *st, struct sweep *sw, const struct digest *d, bool *out_doomed, struct err *err)
{
    struct err why = ERR_INIT;
    int rc;

    if (sw->count == sw->cap) {
        size_t cap = sw->cap == 0 ? PAGE : sw->cap * 2;
        struct digest *more = realloc(sw->doomed, cap * sizeof(*more));

        if (more == NULL)
            return err_nomem(err, cap * sizeof(*more));
        sw->doomed = more;
        sw->cap = cap;
    }
    rc = lease_doom(st, LEASE_CHUNK, d, &why);
    *out_doomed = rc == 0;
    if (rc < 0 && rc != ERR_BUSY) {
        *err = why;
        return rc;
    }
    if (rc == 0)
        sw->doomed[sw->count++] = *d;
    return 0;
}

int sweep_unused(struct catalog_tx *tx, struct sweep *sw, struct err *err)
{
    CLEANUP(free_ptr) struct unused_page *page = calloc(1, sizeof(*page));

    if (page == NULL)
        return err_nomem(err, sizeof(*page));
    do {
        TRY(read_unused(tx->db, page, err));
        for (size_t i = 0; i < page->count; i++) {
            bool doomed;

            TRY(doom(tx->st, sw, &page->rows[i].digest, &doomed, err));
            if (doomed)
                TRY(delete_chunk(tx->db, &page->rows[i], err));
        }
    } while (page->count == PAGE);
    return 0;
}

struct hole_page {
    size_t count;
    int64_t last_id;
    struct pack_loc locs[PAGE];
};

static int list_holes(struct sql_db *db, struct hole_page *page, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    page->count = 0;
    TRY(sql_query(db, &q, "SELECT id, pack_id, off, len FROM hole WHERE id > ?1 ORDER BY id LIMIT ?2", err));
    sql_bind_int(&q, 1, page->last_id);
    sql_bind_int(&q, 2, PAGE);
    while ((rc = sql_step(&q, err)) == SQL_ROW) {
        page->last_id = sql_int(&q, 0);
        page->locs[page->count++] =
            (struct pack_loc){.pack = sql_int(&q, 1), .off = (uint64_t)sql_int(&q, 2), .len = (uint32_t)sql_int(&q, 3)};
    }
    return rc;
}

static int read_holes(struct store *st, struct hole_page *page, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(st, &db, err));
    return list_holes(db, page, err);
}

static int delete_holes(struct sql_db *db, int64_t up_to_id, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, "DELETE FROM hole WHERE id <= ?1", err));
    sql_bind_int(&q, 1, up_to_id);
    return sql_run(&q, err);
}

static int forget_holes(struct store *st, int64_t up_to_id, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;

    TRY(catalog_begin(st, &tx, err));
    TRY(delete_holes(tx.db, up_to_id, err));
    return catalog_commit(&tx, err);
}

int sweep_holes(struct store *st, struct err *err)
{
    CLEANUP(free_ptr) struct hole_page *page = calloc(1, sizeof(*page));
    struct pack_puncher pu = {.packs = st->packs};

    if (page == NULL)
        return err_nomem(err, sizeof(*page));
    do {
        TRY(read_holes(st, page, err));
        for (size_t i = 0; i < page->count; i++)
            pack_puncher_add(&pu, &page->locs[i]);
        pack_puncher_end(&pu);
        if (page->count > 0)
            TRY(forget_holes(st, page->last_id, err));
    } while (page->count == PAGE);
    return 0;
}

void sweep_end(struct store *st, struct sweep *sw, bool committed)
{
    struct err err = ERR_INIT;

    for (size_t i = 0; i < sw->count; i++)
        lease_undoom(st, LEASE_CHUNK, &sw->doomed[i]);
    free(sw->doomed);
    *sw = (struct sweep)SWEEP_INIT;
    /* What fails here is done by the next sweep or the next start. */
    if (committed && sweep_holes(st, &err) < 0)
        log_event(LOG_WARN, "store.holes", "err=%s", log_quote(err.msg).s);
}

static int sweep_in_tx(struct store *st, struct sweep *sw, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;

    TRY(catalog_begin(st, &tx, err));
    TRY(sweep_unused(&tx, sw, err));
    return catalog_commit(&tx, err);
}

int sweep_at_open(struct store *st, struct err *err)
{
    struct sweep sw = SWEEP_INIT;
    int rc = sweep_in_tx(st, &sw, err);

    sweep_end(st, &sw, rc == 0);
    return rc;
}
