/* SPDX-License-Identifier: Apache-2.0
 * store/catalog_internal.h - struct store itself, the catalog's transactions and read connections, and leases.
 *
 * Use, writing:  append records and frames, pack_sync(), and only then
 *                CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;
 *                TRY(catalog_begin(st, &tx, err)); ... queries on tx.db ... return catalog_commit(&tx, err);
 *                catalog_begin() records the ends of all packs (rows of `pack`) itself, so that what was appended
 *                before it survives packs_trim() at the next start, and chunk.pack_id finds its parent.
 * Use, reading:  CLEANUP(catalog_read_end) struct sql_db *db = NULL;
 *                TRY(catalog_read_begin(st, &db, err)); ... queries on db: one snapshot ...
 * Locks: a transaction holds RANK_DB until commit or abort: inside, no pack_append(), no pack_sync(), no second
 *      catalog_begin(), no catalog_read_begin() (read through tx.db). Leases are RANK_LEAF: fine everywhere.
 *      Between catalog_read_begin and _end no lock is held; keep it short (it pins the WAL), never call out, and never
 *      borrow a second one meanwhile (the pool is bounded, so nesting could wait for ever).
 *
 * Rules for those who write rows (layer_writer.c):
 *   C1  chunk.refs = number of recipe rows that name the chunk, exactly.
 *   C2  chunk.pack_id IS NULL means lost: its bytes were found damaged. Deduplication looks only at rows with
 *       pack_id IS NOT NULL; whoever stores the chunk again updates the row (ON CONFLICT (digest) DO UPDATE SET kind,
 *       level, encoder, pack_id, off, len, sum WHERE pack_id IS NULL), which heals every layer that shares it.
 *   C3  A writer takes LEASE_CHUNK on a chunk's digest BEFORE it looks the row up to share it, and keeps it until its
 *       own commit; ERR_NOTFOUND from lease_take() means "being deleted": store it anew. The look-up's
 *       snapshot (catalog_read_begin) begins after the lease.
 *   C4  Never INSERT OR REPLACE, never DELETE of blob, canonical or manifest rows (S4). `totals` is kept by triggers.
 *   C5  canonical rows with present = 0 have no recipe rows.
 */
#pragma once

#include "base/lock.h"
#include "store/pack.h"
#include "store/room_internal.h"
#include "store/sql_internal.h"
#include "store/store.h"

#include <stdatomic.h>

struct catalog;
struct compactor;
struct leases;

#define STORE_MAGIC 0x5704e001u

struct store {
    uint32_t magic;
    char *path;
    struct store_options opt; /* path points to the member above; quota_bytes and zstd_level are the effective ones */
    int dir_fd, packs_fd, originals_fd, spool_fd, lock_fd;
    struct packs *packs;
    struct catalog *catalog;
    struct leases *leases;
    struct compactor *compactor;
    struct room room;
    struct lock files_lock;                  /* RANK_STORE: renames and removals of originals, with their accounting */
    atomic_uint_fast64_t generation;         /* of the catalog: counts commits */
    atomic_int_fast64_t pins_warned_ms;      /* when the log was told that pins fill the quota */
    atomic_uint_fast64_t pack_removals;      /* rows of packs deleted; changes under the writer's lock */
    atomic_uint_fast64_t spool_seq;          /* names of spool files */
    atomic_int_fast64_t original_disk_bytes; /* blocks of all files in originals/ */
};

/* ---- the catalog ----------------------------------------------------------------------------------------------- */

struct catalog_tx {
    struct store *st; /* NULL: not begun, or over */
    struct sql_db *db;
    struct pack_extent *extents; /* ends of packs that this transaction records */
    size_t extent_count;
};

#define CATALOG_TX_INIT                                                                                                \
    {                                                                                                                  \
        .st = NULL                                                                                                     \
    }

MUST_CHECK int catalog_begin(struct store *st, struct catalog_tx *tx, struct err *err);
/* Every query on tx.db must be done before (REQUIRE): the next writer may have the connection at once. So queries live
 * in functions of their own, or in an inner block, or get an explicit sql_done(). Failed: rolled back, tx is over. */
MUST_CHECK int catalog_commit(struct catalog_tx *tx, struct err *err);
void catalog_abort(struct catalog_tx *tx); /* rolls back; no-op when over */

/* Borrows a read-only connection with a transaction begun. Waits when all are out. */
MUST_CHECK int catalog_read_begin(struct store *st, struct sql_db **out, struct err *err);
void catalog_read_end(struct sql_db **db); /* NULL inside is fine */

/* store.c only. path: of catalog.db; opens the writer, checks or makes the schema. */
MUST_CHECK int catalog_open(struct store *st, const char *path, bool may_create, struct err *err);
void catalog_close(struct store *st);
void catalog_idle(struct store *st); /* nothing to do: checkpoints and truncates the WAL when it has grown */

/* For tests: every statement compiled so far on every connection; no other thread may use the store. */
void catalog_each_statement(struct store *st, void (*fn)(void *arg, struct sql_db *db, const char *sql), void *arg);

/* schema.c: creates, checks, migrates. name: the file, for messages. may_create: an empty one becomes a new catalog. */
MUST_CHECK int schema_prepare(struct sql_db *db, const char *name, bool may_create, struct err *err);

/* Looks only: ERR_CORRUPT when these are not our tables, ERR_UNSUPPORTED when they are of another version. */
enum schema_age { SCHEMA_CURRENT = 0, SCHEMA_OR_OLDER };
MUST_CHECK int schema_check(struct sql_db *db, const char *name, enum schema_age age, struct err *err);

struct schema_step {
    int from;           /* user_version before; from + 1 after */
    const char *sql[4]; /* run in one transaction; NULL: nothing */
};

/* ERR_UNSUPPORTED when `have` is newer than `want` or no chain of steps leads there. For tests, else schema.c's own. */
MUST_CHECK int schema_migrate(struct sql_db *db, const char *name, const struct schema_step *all, size_t count,
                              int have, int want, struct err *err);

/* ---- leases (S5) ----------------------------------------------------------------------------------------------- */

enum lease_kind { LEASE_ORIGINAL = 1, LEASE_CANONICAL, LEASE_CHUNK, LEASE_FILE /* digest_lock() */ };

/* Counted. ERR_NOTFOUND: the thing is being evicted at this moment; treat it as absent. ERR_NOMEM. */
MUST_CHECK int lease_take(struct store *st, enum lease_kind kind, const struct digest *d, struct err *err);
void lease_drop(struct store *st, enum lease_kind kind, const struct digest *d);
/* A client reads an original or a canonical layer: its last_read, written in bulk by later transactions. */
void lease_note_read(struct store *st, enum lease_kind kind, const struct digest *d);

/* Eviction's side: ERR_BUSY when leased or doomed already; else every lease_take() fails until lease_undoom(). */
MUST_CHECK int lease_doom(struct store *st, enum lease_kind kind, const struct digest *d, struct err *err);
void lease_undoom(struct store *st, enum lease_kind kind, const struct digest *d);

/* An owner's shape for CLEANUP: struct lease l = LEASE_INIT; lease_hold(st, kind, d, &l, err); lease_release(&l). */
struct lease {
    struct store *st; /* NULL: holds nothing */
    enum lease_kind kind;
    struct digest digest;
};

#define LEASE_INIT                                                                                                     \
    {                                                                                                                  \
        .st = NULL                                                                                                     \
    }

/* One at a time for a digest's files: originals being committed, evicted, marked lost. Taken before RANK_DB; waits. */
MUST_CHECK int digest_lock(struct store *st, const struct digest *d, struct lease *out, struct err *err);
void digest_unlock(struct lease *l); /* for CLEANUP; no-op when l holds nothing */

/* Like lease_take(), but waits for an eviction that is under way, so that what the catalog says afterwards is true: a caller
 * who is told "present" and "being evicted" in turn can do nothing but ask again. With no lock and no transaction. */
MUST_CHECK int lease_hold(struct store *st, enum lease_kind kind, const struct digest *d, struct lease *out,
                          struct err *err);
void lease_release(struct lease *l);

/* store.c and catalog.c only. */
MUST_CHECK int leases_new(struct leases **out, struct err *err);
void leases_free(struct leases *ls);
/* Writes what was read since the last time into last_read, in the transaction of db. force: also when it was done
 * shortly before. */
MUST_CHECK int leases_write_reads(struct leases *ls, struct sql_db *db, bool force, struct err *err);
/* Once that transaction is over. Rolled back: they are written with a later one. */
void leases_reads_written(struct leases *ls, bool committed);

/* ---- taking away --------------------------------------------------------------------------------------------------- */

/* evict.c: takes one form of a digest away; ERR_BUSY when it is being read, ERR_NOTFOUND when it is not there any more.
 * spare: an original, and only while its canonical layer is present. */
MUST_CHECK int evict_form(struct store *st, enum lease_kind kind, const struct digest *d, bool spare, struct err *err);

/* sweep.c. Inside a transaction: deletes the rows of unleased chunks with refs = 0 and notes their holes. Chunks stay
 * doomed until sweep_end(), to be called after the commit (or the abort: committed false): it punches the holes. */
struct sweep {
    struct digest *doomed;
    size_t count, cap;
};

#define SWEEP_INIT                                                                                                     \
    {                                                                                                                  \
        .doomed = NULL                                                                                                 \
    }

MUST_CHECK int sweep_unused(struct catalog_tx *tx, struct sweep *sw, struct err *err);
void sweep_end(struct store *st, struct sweep *sw, bool committed);
MUST_CHECK int sweep_at_open(struct store *st, struct err *err);
/* Punches the holes that are noted. */
MUST_CHECK int sweep_holes(struct store *st, struct err *err);
/* Inside a transaction: the frame at loc is to be punched by the next sweep_holes(). */
MUST_CHECK int sweep_add_hole(struct sql_db *db, const struct pack_loc *loc, struct err *err);

/* evict.c. Inside a transaction: takes a layer's recipe away, counts its chunks down, clears `present` (C1, C5). The caller sweeps,
 * or puts the recipe anew. */
MUST_CHECK int recipe_drop(struct catalog_tx *tx, int64_t canonical_id, struct err *err);
