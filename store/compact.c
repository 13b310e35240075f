/* SPDX-License-Identifier: Apache-2.0
 * store/compact.c - packs of which little is of use any more: the rest moves to the active pack, and the file goes.
 *
 * K1  A frame's row moves in a transaction that begins after its copy is durable, and only while it points at the old place.
 *     In the same transaction the old place becomes a hole: so a pack empties as it is moved, and a step needs no more room
 *     than what it copies.
 * K2  A pack's row goes when no chunk points into it, and all metadata that is of use is durable elsewhere; then its file.
 *     A crash before leaves copies that say the same as what they are copies of (FORMAT.md "Which record wins"); a crash
 *     after it a file without a row, which the next start removes.
 * K3  A frame that fails its checksum, or that the disk cannot read, is lost (C2): its layers heal when they are written
 *     again. One that cannot be read for another reason stays, and so does its pack.
 *
 * First a pack is looked at: how much of it is of use. Frames are summed up in the catalog; where they alone are not enough
 * to leave the pack in peace, its metadata is walked over and counted too, since a pack full of manifests has no frames and
 * is all of use. The answer is kept until something is punched in that pack.
 *
 * Readers find moved frames again (chunk_read()). Writers hold the packs of their own frames (pack_hold_begin()).
 */
#include "store/compact_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "store/chunk_row_internal.h"
#include "store/recipe.h"

#include <inttypes.h>

#define STEP_BYTES (UINT64_C(1) << 20)
#define STEP_MS 10
#define MOVE_ROWS 256
#define COUNT_ROWS 8192
#define FINISH_TRIES 3

enum phase { PHASE_IDLE = 0, PHASE_COUNT_FRAMES, PHASE_COUNT_META, PHASE_FRAMES, PHASE_META, PHASE_FINISH };

struct compactor {
    struct lock lock; /* RANK_LEAF: the fields up to the next comment */
    pthread_cond_t idle;
    bool busy;
    uint64_t compactions, moved_bytes;

    /* whoever is busy */
    enum phase phase;
    struct pack_info pack;
    uint64_t after; /* frames: offset of the last one seen */
    uint64_t live;  /* counted so far */
    unsigned finishes;
    uint64_t batch_bytes;
    struct pack_walk walk;
    int64_t resume_pack; /* metadata below resume_at is copied already; then there was no room */
    uint64_t resume_at;
    struct buf payload;
    uint8_t *frame; /* chunk_frame_max_bytes() */
};

int compact_new(struct store *st, struct err *err)
{
    struct compactor *c = calloc(1, sizeof(*c));

    if (c == NULL)
        return err_nomem(err, sizeof(*c));
    lock_init(&c->lock, RANK_LEAF);
    cond_init(&c->idle);
    buf_init(&c->payload, PACK_PAYLOAD_MAX_BYTES + 1);
    st->compactor = c;
    return 0;
}

void compact_free(struct store *st)
{
    struct compactor *c = st->compactor;

    if (c == NULL)
        return;
    REQUIRE(!c->busy);
    (void)pthread_cond_destroy(&c->idle);
    lock_release(&c->lock);
    buf_release(&c->payload);
    free(c->frame);
    free(c);
    st->compactor = NULL;
}

void compact_stats(struct store *st, struct store_stats *out)
{
    struct compactor *c = st->compactor;

    lock_take(&c->lock);
    out->compactions = c->compactions;
    out->compacted_bytes = c->moved_bytes;
    lock_give(&c->lock);
}

/* ---- counting --------------------------------------------------------------------------------------------------------- */

/* The frames behind c->after, at most COUNT_ROWS. */
static int count_page(struct store *st, struct compactor *c, bool *out_more, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(catalog_read_begin(st, &db, err));
    TRY(sql_query(db, &q,
                  "SELECT count(*), coalesce(max(off), 0), coalesce(sum((len + 79) / 8 * 8), 0) FROM"
                  " (SELECT off, len FROM chunk WHERE pack_id = ?1 AND off > ?2 ORDER BY off LIMIT ?3)",
                  err));
    sql_bind_int(&q, 1, c->pack.id);
    sql_bind_int(&q, 2, (int64_t)c->after);
    sql_bind_int(&q, 3, COUNT_ROWS);
    TRY(sql_step(&q, err));
    *out_more = sql_int(&q, 0) == COUNT_ROWS;
    c->after = (uint64_t)sql_int(&q, 1);
    c->live += (uint64_t)sql_int(&q, 2);
    return 0;
}

static int count_frames(struct store *st, struct compactor *c, struct err *err)
{
    bool more;

    TRY(count_page(st, c, &more, err));
    if (more)
        return 0;
    if (c->live > 0 && compact_enough(c->live, &c->pack, COMPACT_PRESSED_PERCENT)) {
        packs_set_live(st->packs, c->pack.id, c->live, c->pack.changes);
        c->phase = PHASE_IDLE;
        return 0;
    }
    c->phase = PHASE_COUNT_META;
    return pack_walk_open(st->packs, c->pack.id, &c->walk, err);
}

/* The next record that is no frame, its payload in c->payload. 1, 0: the end. */
static int next_meta(struct compactor *c, int64_t until_ms, struct pack_header *r, bool *out_late, struct err *err)
{
    int rc;

    *out_late = false;
    while (!*out_late && (rc = pack_walk_next(&c->walk, r, err)) != 0) {
        bool good = false;

        TRY(rc);
        *out_late = clock_mono_ms() >= until_ms;
        if (r->type == PACK_FRAME)
            continue;
        TRY(pack_walk_payload(&c->walk, r, &c->payload, &good, err));
        if (good)
            return 1;
        pack_walk_reject(&c->walk);
    }
    return 0;
}

static int decide(struct store *st, struct compactor *c, const struct pack_header *r, enum compact_keep *out,
                  struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(st, &db, err));
    return compact_decide(db, r, (const uint8_t *)c->payload.data, out, err);
}

static uint64_t record_bytes(uint64_t payload_bytes)
{
    return pack_align(PACK_RECORD_HEADER_BYTES + payload_bytes);
}

static int count_meta(struct store *st, struct compactor *c, struct err *err)
{
    int64_t until_ms = clock_mono_ms() + STEP_MS;
    struct pack_header r;
    bool late = false;
    int rc;

    while (!late && (rc = next_meta(c, until_ms, &r, &late, err)) != 0) {
        enum compact_keep keep;

        TRY(rc);
        TRY(decide(st, c, &r, &keep, err));
        if (keep != COMPACT_DROP)
            c->live += record_bytes(keep == COMPACT_SHORTEN ? RECIPE_HEAD_BYTES : r.len);
    }
    if (late)
        return 0;
    packs_set_live(st->packs, c->pack.id, c->live, c->pack.changes);
    c->phase = PHASE_IDLE;
    return 0;
}

/* ---- frames ------------------------------------------------------------------------------------------------------------- */

struct move {
    struct chunk_row row;
    struct digest digest;
    struct pack_loc to; /* pack 0: it was bad */
};

struct batch {
    size_t count;
    uint64_t bytes;
    struct move moves[MOVE_ROWS];
};

static int list_frames(struct sql_db *db, const struct compactor *c, struct batch *b, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc = SQL_ROW;

    TRY(sql_query(db, &q,
                  "SELECT " CHUNK_ROW_COLUMNS ", c.digest FROM chunk c WHERE c.pack_id = ?1 AND c.off > ?2"
                  " ORDER BY c.off LIMIT ?3",
                  err));
    sql_bind_int(&q, 1, c->pack.id);
    sql_bind_int(&q, 2, (int64_t)c->after);
    sql_bind_int(&q, 3, MOVE_ROWS);
    while (b->count < MOVE_ROWS && (rc = sql_step(&q, err)) == SQL_ROW) {
        struct move *m = &b->moves[b->count];
        uint64_t bytes;

        TRY(chunk_row_read(&q, 0, &m->row, err));
        TRY(sql_digest(&q, 9, &m->digest, err));
        bytes = record_bytes(m->row.loc.len);
        if (b->count > 0 && b->bytes + bytes > c->batch_bytes)
            return 0;
        b->bytes += bytes;
        b->count++;
    }
    return rc < 0 ? rc : 0;
}

static int read_batch(struct store *st, const struct compactor *c, struct batch *b, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(st, &db, err));
    return list_frames(db, c, b, err);
}

static int copy_frame(struct store *st, struct compactor *c, struct move *m, struct err *err)
{
    struct pack_meta meta = {.raw_bytes = m->row.raw_bytes,
                             .kind = (uint16_t)m->row.kind,
                             .level = (int16_t)m->row.level,
                             .encoder = m->row.encoder};
    struct err why = ERR_INIT;
    int rc = pack_read(st->packs, &m->row.loc, c->frame, &why);

    if (rc == ERR_CORRUPT) /* K3; or it was deleted just now */
        return chunk_row_lose(st, &m->row, err);
    if (rc < 0) {
        *err = why;
        return rc;
    }
    return pack_append(st->packs, PACK_FRAME, &m->digest, &meta, c->frame, m->row.loc.len, &m->to, err);
}

static int move_row(struct sql_db *db, const struct move *m, bool holes, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, "UPDATE chunk SET pack_id = ?4, off = ?5 WHERE id = ?1 AND pack_id = ?2 AND off = ?3", err));
    sql_bind_int(&q, 1, m->row.id);
    sql_bind_int(&q, 2, m->row.loc.pack);
    sql_bind_int(&q, 3, (int64_t)m->row.loc.off);
    sql_bind_int(&q, 4, m->to.pack);
    sql_bind_int(&q, 5, (int64_t)m->to.off);
    TRY(sql_run(&q, err));
    if (!holes)
        return 0;
    /* Whoever has deleted it meanwhile does not know of the copy. */
    return sweep_add_hole(db, sql_changes(db) > 0 ? &m->row.loc : &m->to, err);
}

static int commit_batch(struct store *st, const struct batch *b, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;

    TRY(catalog_begin(st, &tx, err));
    for (size_t i = 0; i < b->count; i++)
        if (b->moves[i].to.pack != 0)
            TRY(move_row(tx.db, &b->moves[i], packs_can_punch(st->packs), err));
    return catalog_commit(&tx, err);
}

/* Copies of a commit that failed are dead, as far as this process can tell; whether they are after a crash, the rows say. */
static int move_batch(struct store *st, struct compactor *c, struct batch *b, struct err *err)
{
    for (size_t i = 0; i < b->count; i++)
        TRY(copy_frame(st, c, &b->moves[i], err));
    TRY(pack_sync(st->packs, err));
    for (size_t i = 0; i < b->count; i++)
        if (b->moves[i].to.pack != 0)
            TRY(pack_check(st->packs, &b->moves[i].to, err));
    return commit_batch(st, b, err);
}

/* The catalog's log has grown by what was moved: emptied, it may be room enough. */
static int take_room(struct store *st, uint64_t bytes, struct err *err)
{
    struct err full = ERR_INIT;

    if (room_take_spare(st, bytes, &full) == 0)
        return 0;
    catalog_idle(st);
    return room_take_spare(st, bytes, err);
}

/* What does not fit as a whole may fit one by one. */
static int move_in_room(struct store *st, struct compactor *c, struct batch *b, struct err *err)
{
    uint64_t room = room_round(b->bytes) + 4096;
    struct err why = ERR_INIT;
    int rc = take_room(st, room, &why);

    if (rc == ERR_NOSPC && b->count > 1) {
        c->batch_bytes = 0;
        return 0;
    }
    if (rc < 0) {
        *err = why;
        return rc;
    }
    rc = move_batch(st, c, b, err);
    room_give(st, room);
    return rc;
}

static int begin_meta(struct store *st, struct compactor *c, struct err *err)
{
    TRY(pack_walk_open(st->packs, c->pack.id, &c->walk, err));
    if (c->resume_pack == c->pack.id)
        c->walk.next = c->resume_at;
    c->resume_pack = 0;
    c->phase = PHASE_META;
    return 0;
}

static int move_frames(struct store *st, struct compactor *c, struct compact_step *out, struct err *err)
{
    CLEANUP(free_ptr) struct batch *b = calloc(1, sizeof(*b));
    uint64_t was = c->batch_bytes;

    if (b == NULL)
        return err_nomem(err, sizeof(*b));
    TRY(read_batch(st, c, b, err));
    if (b->count == 0)
        return begin_meta(st, c, err);
    TRY(move_in_room(st, c, b, err));
    if (c->batch_bytes != was)
        return 0; /* nothing was moved: the next step is a smaller one */
    c->after = b->moves[b->count - 1].row.loc.off;
    c->batch_bytes = STEP_BYTES;
    out->moved_bytes += b->bytes;
    return sweep_holes(st, err);
}

/* ---- metadata ----------------------------------------------------------------------------------------------------------- */

/* The copies up to `last` are on the disk. */
static int sync_copies(struct store *st, const struct pack_loc *last, struct err *err)
{
    if (last->pack == 0)
        return 0;
    TRY(pack_sync(st->packs, err));
    return pack_check(st->packs, last, err);
}

static int copy_record(struct store *st, struct compactor *c, const struct pack_header *r, bool shorten,
                       struct pack_loc *out, struct err *err)
{
    uint8_t head[RECIPE_HEAD_BYTES];
    const void *payload = c->payload.data;

    if (!shorten)
        return pack_append(st->packs, r->type, &r->key, &r->meta, payload, r->len, out, err);
    recipe_layer_put(head, payload);
    return pack_append(st->packs, PACK_LAYER, &r->key, &r->meta, head, sizeof(head), out, err);
}

/* last: where the copy before it is. */
static int move_record(struct store *st, struct compactor *c, const struct pack_header *r, struct pack_loc *last,
                       struct compact_step *out, struct err *err)
{
    struct pack_loc loc = {.pack = 0};
    enum compact_keep keep;
    uint64_t bytes;
    int rc;

    TRY(decide(st, c, r, &keep, err));
    if (keep == COMPACT_DROP)
        return 0;
    bytes = record_bytes(keep == COMPACT_SHORTEN ? RECIPE_HEAD_BYTES : r->len);
    TRY(take_room(st, room_round(bytes), err));
    rc = copy_record(st, c, r, keep == COMPACT_SHORTEN, &loc, err);
    room_give(st, room_round(bytes));
    if (rc < 0)
        return rc;
    out->moved_bytes += bytes;
    if (last->pack != loc.pack)
        TRY(sync_copies(st, last, err));
    *last = loc;
    return 0;
}

static int move_records(struct store *st, struct compactor *c, struct pack_loc *last, struct compact_step *out,
                        bool *out_end, struct err *err)
{
    int64_t until_ms = clock_mono_ms() + STEP_MS;
    struct pack_header r;
    bool late = false;
    int rc;

    while (!late && out->moved_bytes < STEP_BYTES && (rc = next_meta(c, until_ms, &r, &late, err)) != 0) {
        TRY(rc);
        TRY(move_record(st, c, &r, last, out, err));
    }
    *out_end = !late && out->moved_bytes < STEP_BYTES;
    return 0;
}

static int move_meta(struct store *st, struct compactor *c, struct compact_step *out, struct err *err)
{
    struct pack_loc last = {.pack = 0};
    struct err why = ERR_INIT;
    bool end = false;
    int rc = move_records(st, c, &last, out, &end, &why);

    TRY(sync_copies(st, &last, err));
    if (rc == ERR_NOSPC) { /* tried again and again from the start, the same copies would fill the store */
        c->resume_pack = c->pack.id;
        c->resume_at = c->walk.at;
    }
    if (rc < 0) {
        *err = why;
        return rc;
    }
    if (end)
        c->phase = PHASE_FINISH;
    return 0;
}

/* ---- the end of a pack ---------------------------------------------------------------------------------------------------- */

static int has_frames(struct sql_db *db, int64_t pack, bool *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q, "SELECT 1 FROM chunk WHERE pack_id = ?1 LIMIT 1", err));
    sql_bind_int(&q, 1, pack);
    TRY(rc = sql_step(&q, err));
    *out = rc == SQL_ROW;
    return 0;
}

static int delete_row(struct sql_db *db, int64_t pack, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, "DELETE FROM pack WHERE id = ?1", err));
    sql_bind_int(&q, 1, pack);
    return sql_run(&q, err);
}

static int end_pack(struct store *st, struct compactor *c, bool *out_done, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;
    bool left = false;

    *out_done = false;
    TRY(catalog_begin(st, &tx, err));
    TRY(has_frames(tx.db, c->pack.id, &left, err));
    if (left)
        return 0;
    (void)atomic_fetch_add(&st->pack_removals, 1);
    TRY(delete_row(tx.db, c->pack.id, err));
    TRY(catalog_commit(&tx, err));
    *out_done = true;
    return 0;
}

static int finish(struct store *st, struct compactor *c, struct compact_step *out, struct err *err)
{
    bool done;

    TRY(end_pack(st, c, &done, err));
    if (!done) {
        if (++c->finishes == FINISH_TRIES)
            return err_set(err, ERR_BUSY, "packs/%s: frames in it that do not move", pack_name(c->pack.id).s);
        c->phase = PHASE_FRAMES;
        c->after = 0;
        return 0;
    }
    packs_remove(st->packs, c->pack.id);
    c->phase = PHASE_IDLE;
    out->packs_done++;
    out->disk_bytes += c->pack.disk_bytes;
    log_event(LOG_INFO, "pack.compacted", "pack=%s bytes=%" PRIu64 " live=%" PRIu64, pack_name(c->pack.id).s,
              c->pack.disk_bytes, c->pack.live_bytes);
    return 0;
}

/* ---- steps ----------------------------------------------------------------------------------------------------------------- */

static int begin_pack(struct store *st, struct compactor *c, unsigned percent, uint64_t *out_waiting, struct err *err)
{
    enum compact_choice choice = COMPACT_NOTHING;

    TRY(compact_choose(st, percent, &c->pack, &choice, out_waiting, err));
    c->phase = choice == COMPACT_NOTHING ? PHASE_IDLE : choice == COMPACT_COUNT ? PHASE_COUNT_FRAMES : PHASE_FRAMES;
    c->after = 0;
    c->live = 0;
    c->finishes = 0;
    c->batch_bytes = STEP_BYTES;
    if (c->frame == NULL && c->phase != PHASE_IDLE)
        c->frame = malloc(chunk_frame_max_bytes());
    return c->frame != NULL || c->phase == PHASE_IDLE ? 0 : err_nomem(err, chunk_frame_max_bytes());
}

static int one_step(struct store *st, struct compactor *c, struct compact_step *out, struct err *err)
{
    switch (c->phase) {
    case PHASE_IDLE:
        return 0;
    case PHASE_COUNT_FRAMES:
        return count_frames(st, c, err);
    case PHASE_COUNT_META:
        return count_meta(st, c, err);
    case PHASE_FRAMES:
        return move_frames(st, c, out, err);
    case PHASE_META:
        return move_meta(st, c, out, err);
    case PHASE_FINISH:
        return finish(st, c, out, err);
    }
    return 0;
}

static int step(struct store *st, struct compactor *c, unsigned percent, struct compact_step *out, bool *out_more,
                struct err *err)
{
    struct err why = ERR_INIT;

    if (c->phase == PHASE_IDLE) {
        int rc = begin_pack(st, c, percent, &out->waiting, err);

        if (rc < 0) {
            c->phase = PHASE_IDLE;
            return rc;
        }
    }
    *out_more = c->phase != PHASE_IDLE;
    if (one_step(st, c, out, &why) == 0)
        return 0;
    c->phase = PHASE_IDLE;
    packs_set_aside(st->packs, c->pack.id);
    log_event(LOG_WARN, "pack.compact", "pack=%s err=%s", pack_name(c->pack.id).s, log_quote(why.msg).s);
    return 0;
}

int compact_step(struct store *st, unsigned percent, struct compact_step *out, bool *out_more, struct err *err)
{
    struct compactor *c = st->compactor;
    int rc;

    *out = (struct compact_step){.packs_done = 0};
    *out_more = false;
    lock_take(&c->lock);
    while (c->busy)
        (void)lock_wait(&c->lock, &c->idle, -1);
    c->busy = true;
    lock_give(&c->lock);
    rc = step(st, c, percent, out, out_more, err);
    lock_take(&c->lock);
    c->busy = false;
    c->compactions += out->packs_done;
    c->moved_bytes += out->moved_bytes;
    (void)pthread_cond_signal(&c->idle);
    lock_give(&c->lock);
    return rc;
}

int compact_wanted(struct store *st, unsigned percent, bool *out, struct err *err)
{
    enum compact_choice choice = COMPACT_NOTHING;
    struct pack_info pack;
    uint64_t waiting;

    TRY(compact_choose(st, percent, &pack, &choice, &waiting, err));
    *out = choice != COMPACT_NOTHING;
    return 0;
}
