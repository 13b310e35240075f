/* SPDX-License-Identifier: Apache-2.0
 * store/room.c - the quota: what is used, what is spoken for, and what goes when there is no room.
 *
 * R1  used + reserved never exceeds room_limit() by anything that was taken; what needs no taking (rows, records of
 *     manifests and recipes, directories) lives in the rest of the quota and is counted as soon as it is there.
 * R2  Bytes are counted before their reservation is given back, so that they are never counted in neither.
 * R3  One thread evicts at a time, one thing at a time, and looks again after each.
 * R4  Compaction takes from the whole quota (room_take_spare()), so that it has room when others have none. Where the file
 *     system cannot punch holes, evicting a layer frees nothing before the packs it lay in are compacted, and a step of that
 *     frees nothing before its pack is gone: so one pack's bytes are kept free for it, and it comes before eviction.
 *
 * Order of eviction. First the spare originals: those whose canonical layer is stored and that no client has read since it
 * was, so that they say nothing that the layer does not say (with `originals = keep` there are none). Then canonical
 * layers and all other originals, by when a client last read them. Small ones, such as configs, stay a week longer: they
 * free next to nothing, and without its config an image gets no views. What is being read is passed over, and
 * what is pinned is in none of the lists (pin.c). Rows stay, and so every digest stays
 * answerable: its bytes are fetched again.
 */
#include "store/room_internal.h"

#include "base/log.h"
#include "store/catalog_internal.h"
#include "store/compact_internal.h"
#include "store/files_internal.h"
#include "store/pin_internal.h"

#include <inttypes.h>

#define UNTAKEN_PART 32 /* of the quota, for what needs no taking */
#define UNTAKEN_MAX_BYTES (UINT64_C(32) << 20)
#define CATALOG_PART 64 /* of the quota: from there on its log is emptied before anything is evicted */
#define SMALL_STAYS_MS (INT64_C(7) * 24 * 3600 * 1000)
#define HIGH_PERCENT 95
#define LOW_PERCENT 90

void room_init(struct room *r)
{
    lock_init(&r->lock, RANK_ROOM);
    cond_init(&r->changed);
}

void room_release(struct room *r)
{
    REQUIRE(r->reserved == 0); /* a spool or a writer outlives the store */
    (void)pthread_cond_destroy(&r->changed);
    lock_release(&r->lock);
}

uint64_t room_limit(const struct store *st)
{
    uint64_t quota = st->opt.quota_bytes;
    uint64_t untaken = quota / UNTAKEN_PART;

    if (untaken > UNTAKEN_MAX_BYTES)
        untaken = UNTAKEN_MAX_BYTES;
    if (!packs_can_punch(st->packs))
        untaken += packs_max_bytes(st->packs);
    return quota > untaken ? quota - untaken : 0;
}

uint64_t room_used(struct store *st)
{
    int64_t originals = atomic_load(&st->original_disk_bytes);

    return packs_disk_bytes(st->packs) + catalog_disk_bytes(st) + (originals > 0 ? (uint64_t)originals : 0);
}

/* ---- what goes next ---------------------------------------------------------------------------------------------------- */

struct candidate {
    int64_t id; /* 0: none; its row's, in its table */
    int64_t last_read;
    struct digest digest;
};

enum list { LIST_SPARE = 0, LIST_LAYERS, LIST_ORIGINALS, LIST_SMALL };
#define LISTS 4

/* Where a search has got to, so that what is being read is met once only. */
struct picker {
    struct candidate last[LISTS]; /* handed out, or (have) to be compared */
    bool have[LISTS], over[LISTS];
};

#define AFTER " AND (last_read, id) > (?1, ?2) ORDER BY last_read, id LIMIT 1"

static int query_list(struct sql_db *db, enum list list, struct sql_query *q, struct err *err)
{
    switch (list) {
    case LIST_SPARE:
        return sql_query(
            db, q,
            "SELECT id, last_read, digest FROM blob WHERE original_present = 1 AND canon = 1 AND pinned < 2 AND"
            " (SELECT present AND blob.last_read < (created + 1) * 1000 FROM canonical"
            "  WHERE id = blob.canonical_id) = 1" AFTER,
            err);
    case LIST_LAYERS:
        return sql_query(db, q, "SELECT id, last_read, digest FROM canonical WHERE present = 1 AND pinned = 0" AFTER,
                         err);
    case LIST_ORIGINALS:
        return sql_query(
            db, q,
            "SELECT id, last_read, digest FROM blob WHERE original_present = 1 AND pinned = 0 AND size >= 65536" AFTER,
            err);
    case LIST_SMALL:
        return sql_query(
            db, q,
            "SELECT id, last_read, digest FROM blob WHERE original_present = 1 AND pinned = 0 AND size < 65536" AFTER,
            err);
    }
    return err_set(err, ERR_BUG, "no list %d of candidates", (int)list);
}

static int advance(struct sql_db *db, struct picker *pk, enum list list, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct candidate *last = &pk->last[list];
    int rc;

    if (pk->have[list] || pk->over[list])
        return 0;
    TRY(query_list(db, list, &q, err));
    sql_bind_int(&q, 1, last->id != 0 ? last->last_read : INT64_MIN);
    sql_bind_int(&q, 2, last->id);
    TRY(rc = sql_step(&q, err));
    pk->over[list] = rc == SQL_END;
    if (pk->over[list])
        return 0;
    last->id = sql_int(&q, 0);
    last->last_read = sql_int(&q, 1);
    TRY(sql_digest(&q, 2, &last->digest, err));
    pk->have[list] = true;
    return 0;
}

static int look(struct store *st, struct picker *pk, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    pk->over[LIST_SPARE] |= st->opt.originals == ORIGINALS_KEEP;
    TRY(catalog_read_begin(st, &db, err));
    TRY(advance(db, pk, LIST_SPARE, err));
    if (pk->have[LIST_SPARE])
        return 0;
    TRY(advance(db, pk, LIST_LAYERS, err));
    TRY(advance(db, pk, LIST_ORIGINALS, err));
    return advance(db, pk, LIST_SMALL, err);
}

/* When its turn is: the lowest goes next. While there are spare originals look() finds nothing else. */
static int64_t turn(const struct picker *pk, enum list list)
{
    const struct candidate *c = &pk->last[list];

    if (!pk->have[list])
        return INT64_MAX;
    return list == LIST_SMALL && c->last_read < INT64_MAX - SMALL_STAYS_MS ? c->last_read + SMALL_STAYS_MS
                                                                           : c->last_read;
}

/* False: nothing is left. */
static bool choose(struct picker *pk, enum list *out)
{
    *out = LIST_SPARE;
    for (enum list list = LIST_LAYERS; list <= LIST_SMALL; list++)
        if (turn(pk, list) < turn(pk, *out))
            *out = list;
    if (!pk->have[*out])
        return false;
    pk->have[*out] = false;
    return true;
}

/* What was read in the last minute may not be in the catalog yet; and where the catalog's log has grown, some room is to be
 * had for nothing. */
static int prepare(struct store *st, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;

    if (catalog_disk_bytes(st) > st->opt.quota_bytes / CATALOG_PART) {
        catalog_idle(st);
        return 0;
    }
    TRY(catalog_begin(st, &tx, err));
    TRY(leases_write_reads(st->leases, tx.db, true, err));
    return catalog_commit(&tx, err);
}

/* Evicts one thing. ERR_NOSPC: there is none. */
static int evict_next(struct store *st, struct picker *pk, struct err *err)
{
    enum list list;

    for (;;) {
        struct err why = ERR_INIT;
        int rc;

        TRY(look(st, pk, err));
        if (!choose(pk, &list))
            return pins_no_room(st, err);
        rc = evict_form(st, list == LIST_LAYERS ? LEASE_CANONICAL : LEASE_ORIGINAL, &pk->last[list].digest,
                        list == LIST_SPARE, &why);
        if (rc == 0) {
            log_event(LOG_INFO, "store.evict", "digest=%s what=%s last_read=%" PRId64,
                      digest_text(&pk->last[list].digest).s, list == LIST_LAYERS ? "layer" : "original",
                      pk->last[list].last_read);
            return 0;
        }
        if (rc != ERR_BUSY && rc != ERR_NOTFOUND) {
            *err = why;
            return rc;
        }
    }
}

/* ---- the account --------------------------------------------------------------------------------------------------------- */

static bool fits(struct store *st, uint64_t bytes, uint64_t limit)
{
    uint64_t taken = room_used(st) + st->room.reserved;

    return bytes <= limit && taken <= limit - bytes;
}

/* Compaction before eviction where eviction alone frees nothing (R4), and else after it, when nothing is left to go. */
static int evict_or_compact(struct store *st, struct picker *pk, bool *out_evicted, struct err *err)
{
    struct compact_step step;
    struct err why = ERR_INIT;
    bool compacted = false;
    int rc;

    if (!packs_can_punch(st->packs)) {
        TRY(compact_step(st, COMPACT_PRESSED_PERCENT, &step, &compacted, err));
        if (compacted)
            return 0;
    }
    rc = evict_next(st, pk, &why);
    *out_evicted = rc == 0;
    if (rc == 0)
        return 0;
    if (rc == ERR_NOSPC)
        TRY(compact_step(st, COMPACT_PRESSED_PERCENT, &step, &compacted, err));
    if (compacted)
        return 0;
    *err = why;
    return rc;
}

/* The first step evicts nothing. With the lock held, which it lets go of meanwhile. */
static int evict_step(struct store *st, struct picker *pk, bool first, struct err *err)
{
    struct room *r = &st->room;
    bool evicted = false;
    int rc;

    r->evicting = true;
    lock_give(&r->lock);
    rc = first ? prepare(st, err) : evict_or_compact(st, pk, &evicted, err);
    lock_take(&r->lock);
    r->evicting = false;
    r->evictions += evicted;
    (void)pthread_cond_broadcast(&r->changed);
    return rc;
}

/* Nothing that could be evicted would be enough. */
static bool hopeless(struct store *st, uint64_t bytes)
{
    uint64_t fixed = catalog_disk_bytes(st) + st->room.reserved;
    uint64_t limit = room_limit(st);

    return bytes > limit || fixed > limit - bytes;
}

static int make_fit(struct store *st, uint64_t bytes, struct err *err)
{
    struct picker pk = {.last = {{.id = 0}}};
    struct err why = ERR_INIT;
    bool first = true;
    int rc = 0;

    while (!fits(st, bytes, room_limit(st))) {
        if (rc < 0) { /* nothing came of the last try, and nobody else has made room meanwhile */
            *err = why;
            return rc;
        }
        if (hopeless(st, bytes))
            return err_set(err, ERR_NOSPC, "%" PRIu64 " bytes do not fit in the quota of %" PRIu64, bytes,
                           st->opt.quota_bytes);
        if (st->room.evicting) {
            (void)lock_wait(&st->room.lock, &st->room.changed, -1);
            continue;
        }
        rc = evict_step(st, &pk, first, &why);
        first = false;
    }
    return 0;
}

int room_take(struct store *st, uint64_t bytes, struct err *err)
{
    int rc;

    lock_take(&st->room.lock);
    rc = make_fit(st, bytes, err);
    if (rc == 0)
        st->room.reserved += bytes;
    lock_give(&st->room.lock);
    return rc;
}

int room_take_spare(struct store *st, uint64_t bytes, struct err *err)
{
    bool room;

    lock_take(&st->room.lock);
    room = fits(st, bytes, st->opt.quota_bytes);
    if (room)
        st->room.reserved += bytes;
    lock_give(&st->room.lock);
    return room ? 0
                : err_set(err, ERR_NOSPC, "no %" PRIu64 " bytes are left of the quota of %" PRIu64, bytes,
                          st->opt.quota_bytes);
}

void room_give(struct store *st, uint64_t bytes)
{
    struct room *r = &st->room;

    lock_take(&r->lock);
    REQUIRE(r->reserved >= bytes);
    r->reserved -= bytes;
    lock_give(&r->lock);
}

/* Whether taking on the high mark has begun, and the low one is not reached. With the lock held. */
static bool should_drain(struct store *st)
{
    uint64_t percent = st->room.draining ? LOW_PERCENT : HIGH_PERCENT;

    st->room.draining = !fits(st, 0, st->opt.quota_bytes / 100 * percent);
    return st->room.draining;
}

static int drain_locked(struct store *st, bool first, bool *out_more, struct err *err)
{
    struct picker pk = {.last = {{.id = 0}}};
    struct err why = ERR_INIT;
    int rc;

    if (st->room.evicting || !should_drain(st))
        return 0;
    rc = evict_step(st, &pk, first, &why);
    *out_more = rc == 0;
    if (rc == 0)
        return 0;
    st->room.draining = false;
    if (rc == ERR_NOSPC) /* all that is left is being read */
        return 0;
    *err = why;
    return rc;
}

int store_make_room(struct store *st, bool *out_more, struct err *err)
{
    int rc;

    *out_more = false;
    lock_take(&st->room.lock);
    rc = drain_locked(st, !st->room.draining, out_more, err);
    lock_give(&st->room.lock);
    return rc;
}

int room_drain(struct store *st, bool first, bool *out_more, struct err *err)
{
    int rc;

    *out_more = false;
    lock_take(&st->room.lock);
    st->room.draining = true;
    rc = drain_locked(st, first, out_more, err);
    lock_give(&st->room.lock);
    return rc;
}

void room_stats(struct store *st, struct store_stats *out)
{
    lock_take(&st->room.lock);
    out->reserved_bytes = st->room.reserved;
    out->evictions = st->room.evictions;
    lock_give(&st->room.lock);
}
