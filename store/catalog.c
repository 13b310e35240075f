/* SPDX-License-Identifier: Apache-2.0
 * store/catalog.c - who may use the catalog when: one writer at a time, up to READERS_MAX snapshots beside it.
 *
 * One process has the store, so SQLITE_BUSY between our own connections cannot come from two writers; BEGIN IMMEDIATE
 * keeps a transaction from starting as a reader and failing to become a writer (SQLITE_BUSY_SNAPSHOT).
 */
#include "base/clock.h"
#include "base/log.h"
#include "store/catalog_internal.h"
#include "store/offline_internal.h"


#define READERS_MAX 16

struct catalog {
    char *path;
    atomic_bool damaged;
    struct lock writer_lock; /* RANK_DB: held by a transaction from begin to end */
    struct sql_db *writer;
    struct lock pool_lock; /* RANK_DB: the fields below */
    pthread_cond_t returned;
    unsigned open; /* connections made, idle or out */
    unsigned idle_count;
    struct sql_db *idle[READERS_MAX]; /* a stack: the last used has the warmest cache */
};

static int run_simple(struct sql_db *db, const char *sql, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, sql, err));
    return sql_run(&q, err);
}

/* To no transaction; some errors (disk full, out of memory) have rolled back already. */
static void roll_back(struct sql_db *db)
{
    struct err err = ERR_INIT;

    if (sqlite3_get_autocommit(sql_handle(db)) == 0 && run_simple(db, "ROLLBACK", &err) < 0)
        log_event(LOG_WARN, "store.rollback", "err=%s", log_quote(err.msg).s); /* begin() tries again */
}

/* A connection whose last transaction could not be ended, for want of memory, still has it. */
static int begin(struct sql_db *db, const char *sql, struct err *err)
{
    roll_back(db);
    return run_simple(db, sql, err);
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static int set_up(struct catalog *c, const char *path, bool may_create, struct err *err)
{
    TRY(str_dup(path, &c->path, err));
    TRY(sql_open(path, SQL_READ_WRITE, &c->writer, err));
    TRY(schema_prepare(c->writer, path, may_create, err));
    return catalog_quick_check(c->writer, path, err);
}

int catalog_open(struct store *st, const char *path, bool may_create, struct err *err)
{
    struct catalog *c = calloc(1, sizeof(*c));

    if (c == NULL)
        return err_nomem(err, sizeof(*c));
    lock_init(&c->writer_lock, RANK_DB);
    lock_init(&c->pool_lock, RANK_DB);
    cond_init(&c->returned);
    st->catalog = c; /* catalog_close() frees it, also when the rest fails */
    TRY(set_up(c, path, may_create, err));
    sql_watch(c->writer, &c->damaged);
    return 0;
}

int store_health(struct store *st, struct err *err)
{
    static const struct digest nobody;
    struct store_blob blob;

    TRY(store_blob_lookup(st, &nobody, &blob, err));
    if (atomic_load(&st->catalog->damaged))
        return err_set(err, ERR_IO, "%s is damaged: stop recask and run \"recask fsck --rebuild --store %s\"",
                       st->catalog->path, st->path);
    return 0;
}

static int write_reads_in_tx(struct store *st, struct err *err)
{
    TRY(begin(st->catalog->writer, "BEGIN IMMEDIATE", err));
    TRY(leases_write_reads(st->leases, st->catalog->writer, true, err));
    return run_simple(st->catalog->writer, "COMMIT", err);
}

/* What was read last matters for eviction only: losing it is no reason to fail a close. */
static void write_last_reads(struct store *st)
{
    struct err err = ERR_INIT;
    int rc;

    if (st->leases == NULL || st->catalog->writer == NULL)
        return;
    rc = write_reads_in_tx(st, &err);
    leases_reads_written(st->leases, rc == 0);
    if (rc < 0)
        log_event(LOG_WARN, "store.last_read", "err=%s", log_quote(err.msg).s);
    roll_back(st->catalog->writer);
}

void catalog_close(struct store *st)
{
    struct catalog *c = st->catalog;

    if (c == NULL)
        return;
    REQUIRE(c->idle_count == c->open); /* a borrowed connection outlives the store */
    while (c->idle_count > 0)
        sql_close(c->idle[--c->idle_count]);
    write_last_reads(st);
    if (c->writer != NULL)
        sql_checkpoint(c->writer, true);
    sql_close(c->writer);
    (void)pthread_cond_destroy(&c->returned);
    lock_release(&c->pool_lock);
    lock_release(&c->writer_lock);
    free(c->path);
    free(c);
    st->catalog = NULL;
}

void catalog_idle(struct store *st)
{
    struct catalog *c = st->catalog;

    lock_take(&c->writer_lock);
    write_last_reads(st);
    sql_checkpoint(c->writer, true);
    lock_give(&c->writer_lock);
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static int record_extents(struct catalog_tx *tx, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    if (tx->extent_count == 0)
        return 0;
    /* max(): another transaction may have recorded a later end since ours was taken. */
    TRY(sql_query(tx->db, &q,
                  "INSERT INTO pack (id, end) VALUES (?1, ?2)"
                  " ON CONFLICT (id) DO UPDATE SET end = max(end, excluded.end)",
                  err));
    for (size_t i = 0; i < tx->extent_count; i++) {
        sql_bind_int(&q, 1, tx->extents[i].pack);
        sql_bind_int(&q, 2, (int64_t)tx->extents[i].end);
        TRY(sql_run(&q, err));
    }
    return 0;
}

static void end_tx(struct catalog_tx *tx, bool committed)
{
    /* Whoever has the lock next uses this connection: a query done later would be a race. */
    REQUIRE(sql_open_queries(tx->db) == 0 && "sql_done() every query before the transaction ends");
    leases_reads_written(tx->st->leases, committed);
    lock_give(&tx->st->catalog->writer_lock);
    free(tx->extents);
    *tx = (struct catalog_tx)CATALOG_TX_INIT;
}

static int first_statements(struct catalog_tx *tx, struct err *err)
{
    TRY(record_extents(tx, err));
    return leases_write_reads(tx->st->leases, tx->db, false, err);
}

/* Takes the writer's lock. The ends are asked for before it, since the packs' lock has the lower rank; and again when
 * compaction has removed a pack meanwhile, whose row they would bring back. */
static int lock_with_extents(struct store *st, struct catalog_tx *tx, struct err *err)
{
    for (;;) {
        uint64_t removals = atomic_load(&st->pack_removals);

        TRY(packs_unrecorded(st->packs, &tx->extents, &tx->extent_count, err));
        lock_take(&st->catalog->writer_lock);
        if (removals == atomic_load(&st->pack_removals))
            return 0;
        lock_give(&st->catalog->writer_lock);
        free(steal(&tx->extents));
    }
}

int catalog_begin(struct store *st, struct catalog_tx *tx, struct err *err)
{
    struct catalog *c = st->catalog;
    int rc;

    REQUIRE(tx->st == NULL);
    *tx = (struct catalog_tx){.db = c->writer};
    TRY(lock_with_extents(st, tx, err));
    tx->st = st;
    rc = begin(tx->db, "BEGIN IMMEDIATE", err);
    if (rc < 0) {
        end_tx(tx, false);
        return rc;
    }
    rc = first_statements(tx, err);
    if (rc < 0)
        catalog_abort(tx);
    return rc;
}

int catalog_commit(struct catalog_tx *tx, struct err *err)
{
    struct pack_extent *extents;
    struct store *st = tx->st;
    size_t count = tx->extent_count;
    int rc;

    REQUIRE(st != NULL);
    REQUIRE(sql_open_queries(tx->db) == 0 && "sql_done() every query before catalog_commit()");
    rc = run_simple(tx->db, "COMMIT", err);
    if (rc < 0) {
        catalog_abort(tx);
        return rc;
    }
    (void)atomic_fetch_add(&st->generation, 1); /* before the caller tells anybody that it is done */
    extents = steal(&tx->extents);
    end_tx(tx, true);
    packs_recorded(st->packs, extents, count);
    free(extents);
    return 0;
}

uint64_t store_generation(const struct store *st)
{
    return atomic_load(&st->generation);
}

void catalog_abort(struct catalog_tx *tx)
{
    if (tx->st == NULL) /* over, or its begin failed before it had the lock */
        return;
    roll_back(tx->db);
    end_tx(tx, false);
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* An idle connection, or NULL when the caller is to make one (its place is taken already). */
static struct sql_db *take_idle(struct catalog *c)
{
    struct sql_db *db = NULL;

    lock_take(&c->pool_lock);
    while (c->idle_count == 0 && c->open == READERS_MAX)
        (void)lock_wait(&c->pool_lock, &c->returned, -1);
    if (c->idle_count > 0)
        db = c->idle[--c->idle_count];
    else
        c->open++;
    lock_give(&c->pool_lock);
    return db;
}

static void give_place_back(struct catalog *c, struct sql_db *db)
{
    lock_take(&c->pool_lock);
    if (db != NULL)
        c->idle[c->idle_count++] = db;
    else
        c->open--;
    (void)pthread_cond_signal(&c->returned);
    lock_give(&c->pool_lock);
}

int catalog_read_begin(struct store *st, struct sql_db **out, struct err *err)
{
    struct catalog *c = st->catalog;
    struct sql_db *db = take_idle(c);
    int rc;

    if (db == NULL) {
        rc = sql_open_watched(c->path, SQL_READ_ONLY, &c->damaged, &db, err);
        if (rc < 0) {
            give_place_back(c, NULL);
            return rc;
        }
        sql_set_owner(db, c);
    }
    rc = begin(db, "BEGIN", err);
    if (rc < 0) {
        give_place_back(c, db);
        return rc;
    }
    *out = db;
    return 0;
}

void catalog_read_end(struct sql_db **db)
{
    struct sql_db *mine = steal(db);

    if (mine == NULL)
        return;
    REQUIRE(sql_open_queries(mine) == 0 && "sql_done() every query before catalog_read_end()");
    /* Nothing was written, so either ending is right; ROLLBACK cannot fail for want of a lock. */
    roll_back(mine);
    give_place_back(sql_owner(mine), mine);
}

void catalog_each_statement(struct store *st, void (*fn)(void *arg, struct sql_db *db, const char *sql), void *arg)
{
    struct catalog *c = st->catalog;

    sql_each_cached(c->writer, fn, arg);
    for (unsigned i = 0; i < c->idle_count; i++)
        sql_each_cached(c->idle[i], fn, arg);
}
