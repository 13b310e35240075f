/* SPDX-License-Identifier: Apache-2.0
 * store/sql.c - connections and cached statements.
 */
#include "store/sql_internal.h"

#include "base/log.h"

#include <errno.h>
#include <pthread.h>

#define CACHE_SLOTS 256 /* power of two */
#define CACHE_MAX 192
#define BUSY_TIMEOUT_MS 10000 /* only a person's sqlite3 shell can hold the file: the store is locked for others */

struct sql_cached {
    const char *sql; /* the key is the address */
    sqlite3_stmt *stmt;
    bool busy;
};

struct sql_db {
    sqlite3 *h;
    struct catalog *owner;
    atomic_bool *damaged; /* see sql_watch() */
    unsigned used;
    unsigned open_queries;
    struct sql_cached cache[CACHE_SLOTS];
};

static pthread_once_t config_once = PTHREAD_ONCE_INIT;

static void configure(void)
{
    /* Memory statistics cost one process-wide mutex per allocation. */
    (void)sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
}

static enum err_code code_of(int rc)
{
    switch (rc & 0xff) {
    case SQLITE_FULL:
        return ERR_NOSPC;
    case SQLITE_NOMEM:
        return ERR_NOMEM;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return ERR_CORRUPT;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return ERR_BUSY;
    case SQLITE_TOOBIG:
        return ERR_LIMIT;
    case SQLITE_CONSTRAINT:
    case SQLITE_MISUSE:
    case SQLITE_RANGE:
    case SQLITE_ERROR:
    case SQLITE_MISMATCH:
        return ERR_BUG;
    default: /* an int of another project, not an enum of ours */
        return ERR_IO;
    }
}

static bool is_damage(int rc)
{
    return (rc & 0xff) == SQLITE_CORRUPT || (rc & 0xff) == SQLITE_NOTADB;
}

/* What is behind "disk I/O error" and "unable to open": the system's word, 0 when there is none. */
static int system_error(sqlite3 *h, int rc)
{
    int kind = rc & 0xff;

    return h != NULL && (kind == SQLITE_CANTOPEN || kind == SQLITE_IOERR) ? sqlite3_system_errno(h) : 0;
}

static int set_error(struct err *err, sqlite3 *h, int rc, const char *name)
{
    const char *what = h != NULL ? sqlite3_errmsg(h) : sqlite3_errstr(rc);
    int sys = system_error(h, rc);

    if (sys != 0) {
        (void)err_sys(err, sys, "%s: %s (SQLite %d)", name, what, sqlite3_extended_errcode(h));
        if (err->code == ERR_NOTFOUND) /* the catalog is, not what was looked for in it */
            err->code = ERR_IO;
        return err->code;
    }
    return err_set(err, code_of(rc), "%s: %s (SQLite %d)%s", name, what, h != NULL ? sqlite3_extended_errcode(h) : rc,
                   is_damage(rc) ? "; `recask fsck` tells more" : "");
}

/* A store that is in use: no byte of a blob is damaged, but nothing the catalog says can be believed. */
static int fail_damaged(struct sql_db *db, const char *name, const char *what, struct err *err)
{
    if (!atomic_exchange(db->damaged, true))
        log_event(LOG_ERR, "store.damaged", "file=%s error=%s hint=%s", log_quote(name).s, log_quote(what).s,
                  log_quote("stop recask and run `recask fsck`").s);
    return err_set(err, ERR_IO, "%s is damaged (%s): stop recask and run `recask fsck`", name, what);
}

/* SQLite says "malformed" also of what the disk does not read, which may pass. */
static bool is_unreadable(sqlite3 *h)
{
    sqlite3_file *log = NULL;
    int sys = 0;

    (void)sqlite3_file_control(h, "main", SQLITE_FCNTL_LAST_ERRNO, &sys);
    if (sys != EIO && sqlite3_file_control(h, "main", SQLITE_FCNTL_JOURNAL_POINTER, (void *)&log) == SQLITE_OK &&
        log != NULL && log->pMethods != NULL)
        (void)log->pMethods->xFileControl(log, SQLITE_FCNTL_LAST_ERRNO, &sys);
    return sys == EIO;
}

static int fail(struct sql_db *db, int rc, struct err *err)
{
    const char *name = sqlite3_db_filename(db->h, "main");

    if (name == NULL)
        name = "catalog";
    if (is_damage(rc) && is_unreadable(db->h))
        return err_set(err, ERR_IO, "%s: %s", name, strerror(EIO));
    if (is_damage(rc) && db->damaged != NULL)
        return fail_damaged(db, name, sqlite3_errmsg(db->h), err);
    return set_error(err, db->h, rc, name);
}

/* The pragma does not fail where WAL cannot be had (network file systems): it answers with another mode. */
static int enter_wal(struct sql_db *db, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, "PRAGMA journal_mode = WAL", err));
    TRY(sql_step(&q, err));
    if (sqlite3_stricmp(sql_text(&q, 0), "wal") != 0)
        return err_set(err, ERR_UNSUPPORTED, "%s: this file system cannot hold an SQLite database in WAL mode",
                       sqlite3_db_filename(db->h, "main"));
    return 0;
}

static int apply_pragmas(struct sql_db *db, enum sql_mode mode, struct err *err)
{
    TRY(sql_exec(db,
                 "PRAGMA mmap_size = 0; PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF;"
                 "PRAGMA temp_store = MEMORY; PRAGMA cache_size = -8192;",
                 err));
    if (mode == SQL_READ_ONLY)
        return 0;
    /* journal_size_limit: a checkpoint gives back what a big transaction left behind. */
    /* recursive_triggers: a pin's reach through indexes in indexes (schema.c). */
    TRY(sql_exec(db, "PRAGMA recursive_triggers = ON", err));
    TRY(sql_exec(
        db, "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 1000; PRAGMA journal_size_limit = 8388608;", err));
    return enter_wal(db, err);
}

int sql_open(const char *path, enum sql_mode mode, struct sql_db **out, struct err *err)
{
    return sql_open_watched(path, mode, NULL, out, err);
}

int sql_open_watched(const char *path, enum sql_mode mode, atomic_bool *damaged, struct sql_db **out, struct err *err)
{
    int flags = SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
    struct sql_db *db;
    int rc;

    (void)pthread_once(&config_once, configure);
    db = calloc(1, sizeof(*db));
    if (db == NULL)
        return err_nomem(err, sizeof(*db));
    db->damaged = damaged;
    flags |= mode == SQL_READ_ONLY ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    rc = sqlite3_open_v2(path, &db->h, flags, NULL);
    if (rc != SQLITE_OK) {
        rc = set_error(err, db->h, rc, path);
        sql_close(db);
        return rc;
    }
    (void)sqlite3_busy_timeout(db->h, BUSY_TIMEOUT_MS);
    rc = apply_pragmas(db, mode, err);
    if (rc < 0) {
        sql_close(db);
        return rc;
    }
    *out = db;
    return 0;
}

void sql_close(struct sql_db *db)
{
    if (db == NULL)
        return;
    for (unsigned i = 0; i < CACHE_SLOTS; i++) {
        REQUIRE(!db->cache[i].busy);
        (void)sqlite3_finalize(db->cache[i].stmt);
    }
    (void)sqlite3_close_v2(db->h);
    free(db);
}

int sql_exec(struct sql_db *db, const char *sql, struct err *err)
{
    int rc = sqlite3_exec(db->h, sql, NULL, NULL, NULL);

    return rc == SQLITE_OK ? 0 : fail(db, rc, err);
}

int64_t sql_last_id(struct sql_db *db)
{
    return sqlite3_last_insert_rowid(db->h);
}

int64_t sql_changes(struct sql_db *db)
{
    return sqlite3_changes64(db->h);
}

void sql_checkpoint(struct sql_db *db, bool truncate)
{
    (void)sqlite3_wal_checkpoint_v2(db->h, NULL, truncate ? SQLITE_CHECKPOINT_TRUNCATE : SQLITE_CHECKPOINT_PASSIVE,
                                    NULL, NULL);
}

/* The slot of sql, or the free one where it belongs. CACHE_MAX < CACHE_SLOTS: there is always a free one. */
static struct sql_cached *slot_of(struct sql_db *db, const char *sql)
{
    uint64_t h = (uint64_t)(uintptr_t)sql * UINT64_C(0x9e3779b97f4a7c15);
    unsigned i = (unsigned)(h >> 40) & (CACHE_SLOTS - 1);

    while (db->cache[i].sql != NULL && db->cache[i].sql != sql)
        i = (i + 1) & (CACHE_SLOTS - 1);
    return &db->cache[i];
}

int sql_query(struct sql_db *db, struct sql_query *q, const char *sql, struct err *err)
{
    struct sql_cached *slot = slot_of(db, sql);
    bool keep = slot->sql == NULL && db->used < CACHE_MAX;
    int rc;

    REQUIRE(q->stmt == NULL);
    *q = (struct sql_query){.db = db};
    if (slot->sql != NULL && !slot->busy) {
        slot->busy = true;
        q->stmt = slot->stmt;
        q->slot = slot;
        db->open_queries++;
        return 0;
    }
    rc = sqlite3_prepare_v3(db->h, sql, -1, keep ? SQLITE_PREPARE_PERSISTENT : 0, &q->stmt, NULL);
    if (rc != SQLITE_OK)
        return fail(db, rc, err);
    db->open_queries++;
    if (keep) {
        *slot = (struct sql_cached){.sql = sql, .stmt = q->stmt, .busy = true};
        db->used++;
        q->slot = slot;
    }
    return 0;
}

void sql_done(struct sql_query *q)
{
    if (q->stmt == NULL)
        return;
    q->db->open_queries--;
    if (q->slot == NULL) {
        (void)sqlite3_finalize(q->stmt);
    } else {
        (void)sqlite3_reset(q->stmt);
        (void)sqlite3_clear_bindings(q->stmt);
        q->slot->busy = false;
    }
    *q = (struct sql_query)SQL_QUERY_INIT;
}

/* Binds between two rows of a running statement are a misuse in SQLite; a finished one resets itself. */
static void bound(struct sql_query *q, int rc)
{
    if (q->bind_rc == SQLITE_OK)
        q->bind_rc = rc;
}

void sql_bind_int(struct sql_query *q, int place, int64_t value)
{
    bound(q, sqlite3_bind_int64(q->stmt, place, value));
}

void sql_bind_text(struct sql_query *q, int place, const char *text)
{
    bound(q, sqlite3_bind_text(q->stmt, place, text, -1, SQLITE_STATIC));
}

void sql_bind_blob(struct sql_query *q, int place, const void *data, size_t len)
{
    /* A NULL pointer would bind NULL; an empty blob is not that. */
    bound(q, sqlite3_bind_blob64(q->stmt, place, data != NULL ? data : "", len, SQLITE_STATIC));
}

void sql_bind_digest(struct sql_query *q, int place, const struct digest *d)
{
    sql_bind_blob(q, place, d->b, sizeof(d->b));
}

void sql_bind_null(struct sql_query *q, int place)
{
    bound(q, sqlite3_bind_null(q->stmt, place));
}

int sql_step(struct sql_query *q, struct err *err)
{
    int rc;

    if (q->bind_rc != SQLITE_OK)
        return fail(q->db, q->bind_rc, err);
    rc = sqlite3_step(q->stmt);
    if (rc == SQLITE_ROW)
        return SQL_ROW;
    if (rc != SQLITE_DONE) {
        rc = fail(q->db, rc, err);
        (void)sqlite3_reset(q->stmt);
        return rc;
    }
    (void)sqlite3_reset(q->stmt); /* lets go of its locks now, and allows the next bind */
    return SQL_END;
}

int sql_run(struct sql_query *q, struct err *err)
{
    int rc;

    do {
        rc = sql_step(q, err);
    } while (rc == SQL_ROW);
    return rc;
}

void sql_reset(struct sql_query *q)
{
    (void)sqlite3_reset(q->stmt);
}

int64_t sql_int(struct sql_query *q, int col)
{
    return sqlite3_column_int64(q->stmt, col);
}

bool sql_is_null(struct sql_query *q, int col)
{
    return sqlite3_column_type(q->stmt, col) == SQLITE_NULL;
}

const char *sql_text(struct sql_query *q, int col)
{
    const unsigned char *s = sqlite3_column_text(q->stmt, col);

    return s != NULL ? (const char *)s : "";
}

const void *sql_blob(struct sql_query *q, int col, size_t *out_len)
{
    const void *p = sqlite3_column_blob(q->stmt, col); /* before _bytes: it may convert */

    *out_len = (size_t)sqlite3_column_bytes(q->stmt, col);
    return p;
}

int sql_digest(struct sql_query *q, int col, struct digest *out, struct err *err)
{
    size_t len;
    const void *p = sql_blob(q, col, &len);

    if (p == NULL || len != sizeof(out->b))
        return q->db->damaged != NULL ? fail_damaged(q->db, "the catalog", "a digest of another length", err)
                                      : err_set(err, ERR_CORRUPT, "catalog: a digest of %zu bytes", len);
    memcpy(out->b, p, sizeof(out->b));
    return 0;
}

unsigned sql_open_queries(const struct sql_db *db)
{
    return db->open_queries;
}

void sql_set_owner(struct sql_db *db, struct catalog *owner)
{
    db->owner = owner;
}

struct catalog *sql_owner(const struct sql_db *db)
{
    return db->owner;
}

void sql_watch(struct sql_db *db, atomic_bool *damaged)
{
    db->damaged = damaged;
}

void sql_each_cached(struct sql_db *db, void (*fn)(void *arg, struct sql_db *db, const char *sql), void *arg)
{
    for (unsigned i = 0; i < CACHE_SLOTS; i++)
        if (db->cache[i].sql != NULL)
            fn(arg, db, db->cache[i].sql);
}

sqlite3 *sql_handle(struct sql_db *db)
{
    return db->h;
}
