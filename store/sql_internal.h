/* SPDX-License-Identifier: Apache-2.0
 * store/sql_internal.h - SQLite as store/ wants it: connections, cached statements, errors as struct err. Knows no
 * schema; catalog_internal.h hands out the connections.
 *
 * Use: CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
 *      TRY(sql_query(db, &q, "SELECT id FROM blob WHERE digest = ?1", err));
 *      sql_bind_digest(&q, 1, d);
 *      int rc = sql_step(&q, err);          SQL_ROW, SQL_END, or < 0
 *      id = sql_int(&q, 0);
 *      For many rows of one statement: bind..., TRY(sql_run(&q, err)) in a loop; it resets, bindings stay.
 * Cache: a statement is compiled once per connection and kept under the ADDRESS of its text, so sql must be a string
 *      literal (or static const), never a buffer. Nested use of one statement on one connection is fine.
 * Binding: a failed bind shows in the next sql_step(). Digests, texts and blobs are borrowed until sql_done() or the
 *      next bind of the same place.
 * Threads: a connection and its queries belong to one thread at a time.
 */
#pragma once

#include "base/digest.h"
#include "base/err.h"

#include <sqlite3.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SQL_END = 0, SQL_ROW = 1 };

struct sql_db;

enum sql_mode { SQL_READ_WRITE = 0, SQL_READ_ONLY };

/* Opens (makes, when writable) the database at path: WAL, synchronous FULL, foreign keys, no mmap.
 * ERR_CORRUPT: not a database. ERR_NOTFOUND: read only and missing. */
MUST_CHECK int sql_open(const char *path, enum sql_mode mode, struct sql_db **out, struct err *err);
/* For a store that is in use: damage of the file is an ERR_IO that says what to do, sets the flag, and is logged by the first
 * who meets it. ERR_CORRUPT would say that what was looked for is damaged, and that fetching it again helps. */
MUST_CHECK int sql_open_watched(const char *path, enum sql_mode mode, atomic_bool *damaged, struct sql_db **out,
                                struct err *err);
void sql_watch(struct sql_db *db, atomic_bool *damaged); /* the same from now on */
void sql_close(struct sql_db *db);                       /* NULL is fine; its queries must be done */

/* Any number of statements without parameters and rows, compiled anew each time. */
MUST_CHECK int sql_exec(struct sql_db *db, const char *sql, struct err *err);
int64_t sql_last_id(struct sql_db *db);
int64_t sql_changes(struct sql_db *db); /* rows changed by the last statement */

/* Copies what is in the WAL into the database; truncate: and empties the WAL when no reader needs it. Best effort. */
void sql_checkpoint(struct sql_db *db, bool truncate);

struct sql_cached;

struct sql_query {
    struct sql_db *db;
    sqlite3_stmt *stmt;      /* NULL: not begun, or done */
    struct sql_cached *slot; /* NULL: not from the cache */
    int bind_rc;             /* first failed bind */
};

#define SQL_QUERY_INIT                                                                                                 \
    {                                                                                                                  \
        .db = NULL                                                                                                     \
    }

MUST_CHECK int sql_query(struct sql_db *db, struct sql_query *q, const char *sql, struct err *err);
void sql_done(struct sql_query *q); /* resets, clears the bindings; a finished one is fine */

void sql_bind_int(struct sql_query *q, int place, int64_t value);
void sql_bind_text(struct sql_query *q, int place, const char *text); /* NULL binds NULL */
void sql_bind_blob(struct sql_query *q, int place, const void *data, size_t len);
void sql_bind_digest(struct sql_query *q, int place, const struct digest *d);
void sql_bind_null(struct sql_query *q, int place);

MUST_CHECK int sql_step(struct sql_query *q, struct err *err); /* SQL_ROW, SQL_END, < 0 */
MUST_CHECK int sql_run(struct sql_query *q, struct err *err);  /* to the end, then reset: 0 or < 0 */
void sql_reset(struct sql_query *q);                           /* to step again, with the same or new bindings */

int64_t sql_int(struct sql_query *q, int col);
bool sql_is_null(struct sql_query *q, int col);
const char *sql_text(struct sql_query *q, int col);                  /* never NULL; good until the next step */
const void *sql_blob(struct sql_query *q, int col, size_t *out_len); /* good until the next step */
/* ERR_CORRUPT when the column is not 32 bytes. */
MUST_CHECK int sql_digest(struct sql_query *q, int col, struct digest *out, struct err *err);

/* Queries begun and not done. A connection is given to another thread with none. */
unsigned sql_open_queries(const struct sql_db *db);

/* Whose pool a read connection goes back to; NULL at first. */
struct catalog;
void sql_set_owner(struct sql_db *db, struct catalog *owner);
struct catalog *sql_owner(const struct sql_db *db);

/* For tests: calls fn with the text of every statement in the cache. */
void sql_each_cached(struct sql_db *db, void (*fn)(void *arg, struct sql_db *db, const char *sql), void *arg);
sqlite3 *sql_handle(struct sql_db *db); /* for tests and for schema.c */
