/* SPDX-License-Identifier: Apache-2.0
 * store/layer_writer.c - cuts a canonical layer into chunks, shares those that the catalog has, and appends the others
 * to a pack. layer_commit.c makes the result visible.
 *
 * W1  A chunk that is shared is leased before it is looked up (C3) and its stored frame is read and checked (S6), since
 *     the digest of the zstd form is over those very bytes.
 * W2  A chunk whose stored frame turns out damaged is encoded again at the level on record. Other layers' zstd forms
 *     are made of the old frame, so the new one must be the same, byte for byte, or the write fails with ERR_CORRUPT.
 * W3  Nothing but frames in packs exists before the commit; what no row points at in the end is punched out again.
 *
 * The layer's bytes are hashed twice, once as a whole and once in chunks. At 1.8 GB/s each (SHA-NI) and 130 MB/s for
 * the encoder there is nothing to gain from anything cleverer.
 */
#include "base/log.h"
#include "store/layer_writer_internal.h"
#include "store/pack_internal.h"
#include "store/recipe.h"

#include <inttypes.h>

#define DEFAULT_LEVEL 3
#define PIECES_FIRST 256
/* What a recipe's record has room for; about 450 GiB of ordinary content. */
#define ROWS_MAX ((PACK_PAYLOAD_MAX_BYTES - RECIPE_HEAD_BYTES) / RECIPE_CHUNK_BYTES)

/* ---- tables that grow -------------------------------------------------------------------------------------------- */

/* Doubles *p (of size-byte items) when count has reached *cap. */
static int grow(void **p, uint32_t count, uint32_t *cap, size_t size, struct err *err)
{
    uint32_t want = *cap == 0 ? PIECES_FIRST : *cap * 2;
    void *bigger;

    if (count < *cap)
        return 0;
    REQUIRE(*cap <= ROWS_MAX);
    bigger = realloc(*p, (size_t)want * size);
    if (bigger == NULL)
        return err_nomem(err, (size_t)want * size);
    *p = bigger;
    *cap = want;
    return 0;
}

static uint32_t *slot_of(const struct layer_writer *w, const struct digest *d)
{
    uint32_t mask = w->slot_count - 1;
    uint32_t i = (uint32_t)digest_hash64(d) & mask;

    while (w->slots[i] != 0 && !digest_equal(&w->pieces[w->slots[i] - 1].digest, d))
        i = (i + 1) & mask;
    return &w->slots[i];
}

/* Keeps the table at most half full. */
static int grow_slots(struct layer_writer *w, struct err *err)
{
    uint32_t want = w->slot_count == 0 ? 2 * PIECES_FIRST : 2 * w->slot_count;
    uint32_t *slots;

    if (2 * w->piece_count < w->slot_count)
        return 0;
    slots = calloc(want, sizeof(*slots));
    if (slots == NULL)
        return err_nomem(err, want * sizeof(*slots));
    free(w->slots);
    w->slots = slots;
    w->slot_count = want;
    for (uint32_t i = 0; i < w->piece_count; i++)
        *slot_of(w, &w->pieces[i].digest) = i + 1;
    return 0;
}

/* ---- one chunk --------------------------------------------------------------------------------------------------- */

/* w->frame = the frame of w->chunk; fills what piece says about it. */
static int encode(struct layer_writer *w, int level, struct piece *piece, struct err *err)
{
    struct frame_info info;
    size_t len;

    TRY(frame_encode(w->frames, level, w->chunk, w->chunk_len, w->frame, chunk_frame_max_bytes(), &len, &info, err));
    piece->kind = (uint8_t)info.kind;
    piece->level = (int16_t)info.level;
    piece->encoder = info.encoder;
    piece->loc = (struct pack_loc){.len = (uint32_t)len, .sum = sum64(w->frame, len)};
    return 0;
}

static int append(struct layer_writer *w, struct piece *piece, struct err *err)
{
    struct pack_meta meta = {
        .raw_bytes = piece->raw_bytes, .kind = piece->kind, .level = piece->level, .encoder = piece->encoder};

    uint64_t room = room_round(PACK_RECORD_HEADER_BYTES + piece->loc.len);
    int rc;

    TRY(room_take(w->st, room, err));
    rc = pack_append(w->st->packs, PACK_FRAME, &piece->digest, &meta, w->frame, piece->loc.len, &piece->loc, err);
    room_give(w->st, room); /* it is in the pack's bytes now, or not at all */
    return rc;
}

static int store_new(struct layer_writer *w, struct piece *piece, struct err *err)
{
    piece->state = PIECE_NEW;
    TRY(encode(w, w->level, piece, err));
    return append(w, piece, err);
}

/* W2. A raw frame has no level: whatever did not shrink then does not now. */
static int store_again(struct layer_writer *w, const struct chunk_row *row, struct piece *piece, struct err *err)
{
    piece->state = PIECE_HEALED;
    TRY(encode(w, row->kind == FRAME_ZSTD_RAW ? w->level : row->level, piece, err));
    if (piece->loc.len != row->loc.len || piece->loc.sum != row->loc.sum) {
        log_event(LOG_ERR, "chunk.heal_failed", "chunk=%s level=%d encoder=%" PRIu32 " now=%" PRIu32,
                  digest_hex(&piece->digest).s, row->level, row->encoder, piece->encoder);
        return err_set(err, ERR_CORRUPT,
                       "chunk %s is damaged, and encoding it again gives another frame than the one on record",
                       digest_text(&piece->digest).s);
    }
    return append(w, piece, err);
}

/* w->frame = the stored frame. False: it is damaged or gone, and the catalog says so now. */
static int read_shared(struct layer_writer *w, struct chunk_row *row, bool *out_good, struct err *err)
{
    struct err read_err = ERR_INIT;
    int rc = chunk_read(w->st, row->id, &row->loc, w->frame, &read_err);

    *out_good = rc == 0;
    if (rc == 0)
        return 0;
    if (rc != ERR_CORRUPT && rc != ERR_NOTFOUND) {
        *err = read_err;
        return rc;
    }
    log_event(LOG_WARN, "chunk.damaged", "err=%s", log_quote(read_err.msg).s);
    return chunk_row_lose(w->st, row, err);
}

static int look_up(struct store *st, const struct digest *d, struct chunk_row *out, bool *out_found, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(st, &db, err));
    return chunk_row_find(db, d, out, out_found, err);
}

/* W1. */
static int lease_chunk(struct store *st, struct piece *piece, struct err *err)
{
    struct err lease_err = ERR_INIT;
    int rc = lease_take(st, LEASE_CHUNK, &piece->digest, &lease_err);

    piece->leased = rc == 0;
    if (rc == 0 || rc == ERR_NOTFOUND) /* being deleted at this moment: as if it were not there */
        return 0;
    *err = lease_err;
    return rc;
}

/* Finds or stores the chunk in w->chunk, and leaves its frame in w->frame. */
static int resolve(struct layer_writer *w, struct piece *piece, struct err *err)
{
    struct chunk_row row;
    bool found = false, good;

    if (piece->leased)
        TRY(look_up(w->st, &piece->digest, &row, &found, err));
    if (!found)
        return store_new(w, piece, err);
    if (row.raw_bytes != piece->raw_bytes)
        return err_set(err, ERR_CORRUPT, "catalog: chunk %s has %" PRIu32 " bytes, not %" PRIu32,
                       digest_text(&piece->digest).s, row.raw_bytes, piece->raw_bytes);
    if (row.lost)
        return store_again(w, &row, piece, err);
    TRY(read_shared(w, &row, &good, err));
    if (!good)
        return store_again(w, &row, piece, err);
    piece->state = PIECE_SHARED;
    piece->kind = (uint8_t)row.kind;
    piece->level = (int16_t)row.level;
    piece->encoder = row.encoder;
    piece->loc = row.loc;
    piece->id = row.id;
    return 0;
}

/* The frame of a chunk that this layer had before: our own append or a checked one, read back (S6). */
static int read_again(struct layer_writer *w, struct piece *piece, struct err *err)
{
    int rc = chunk_read(w->st, piece->id, &piece->loc, w->frame, err);

    return rc < 0 ? err_wrap(err, "chunk %s", digest_text(&piece->digest).s) : 0;
}

/* Appends to pieces whatever happens, once the lease is taken, so that an abort finds the lease and the frame. */
static int add_piece(struct layer_writer *w, const struct digest *d, struct err *err)
{
    struct piece *piece;

    TRY(grow((void **)&w->pieces, w->piece_count, &w->piece_cap, sizeof(*w->pieces), err));
    TRY(grow_slots(w, err));
    piece = &w->pieces[w->piece_count];
    memset(piece, 0, sizeof(*piece));
    piece->digest = *d;
    piece->raw_bytes = (uint32_t)w->chunk_len;
    piece->state = PIECE_SHARED; /* nothing of ours to punch yet */
    TRY(lease_chunk(w->st, piece, err));
    *slot_of(w, d) = ++w->piece_count;
    return resolve(w, piece, err);
}

static int emit(struct layer_writer *w, struct err *err)
{
    struct digest d;
    struct piece *piece;
    uint32_t slot;

    digest_of(w->chunk, w->chunk_len, &d);
    if (w->row_count == ROWS_MAX)
        return err_set(err, ERR_LIMIT, "layer: more than %u chunks", ROWS_MAX);
    TRY(grow((void **)&w->rows, w->row_count, &w->row_cap, sizeof(*w->rows), err));
    slot = w->slot_count > 0 ? *slot_of(w, &d) : 0;
    if (slot == 0) {
        TRY(add_piece(w, &d, err));
        slot = w->piece_count;
    } else {
        TRY(read_again(w, &w->pieces[slot - 1], err));
    }
    piece = &w->pieces[slot - 1];
    piece->uses++;
    w->rows[w->row_count++] = slot - 1;
    hasher_update(w->zstd_hash, w->frame, piece->loc.len);
    w->zstd_bytes += piece->loc.len;
    if (piece->encoder > w->encoder)
        w->encoder = piece->encoder;
    w->chunk_len = 0;
    return 0;
}

/* ---- the stream -------------------------------------------------------------------------------------------------- */

/* len bytes in which no file begins or ends. */
static int put_run(struct layer_writer *w, const uint8_t *data, size_t len, struct err *err)
{
    while (len > 0) {
        bool cut;
        size_t n = chunker_scan(&w->cut, data, len, &cut);

        REQUIRE(n <= CHUNK_MAX_BYTES - w->chunk_len);
        memcpy(w->chunk + w->chunk_len, data, n);
        w->chunk_len += n;
        data += n;
        len -= n;
        if (cut)
            TRY(emit(w, err));
    }
    return 0;
}

int layer_writer_put(struct layer_writer *w, const void *data, size_t len, struct err *err)
{
    const uint8_t *p = data;

    hasher_update(w->canonical_hash, data, len);
    w->size_bytes += len;
    while (len > 0) {
        bool cut;
        size_t n = tarscan_scan(&w->scan, p, len, &cut);

        TRY(put_run(w, p, n, err));
        if (cut && w->chunk_len > 0) {
            chunker_cut(&w->cut);
            TRY(emit(w, err));
        }
        p += n;
        len -= n;
    }
    return 0;
}

/* An empty layer is one empty chunk, so that its zstd form is a frame: no bytes at all are no zstd stream. */
int layer_writer_finish(struct layer_writer *w, struct err *err)
{
    return w->chunk_len > 0 || w->row_count == 0 ? emit(w, err) : 0;
}

/* ---- the writer -------------------------------------------------------------------------------------------------- */

/* A layer that was published and evicted is written again at its own level, so that its zstd form comes out the
 * same. */
static int choose_level(struct layer_writer *w, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(catalog_read_begin(w->st, &db, err));
    TRY(sql_query(
        db, &q,
        "SELECT coalesce(c.level, 0), b.original_present * b.size FROM blob b LEFT JOIN canonical c ON c.id = b.canonical_id"
        " WHERE b.digest = ?1",
        err));
    sql_bind_digest(&q, 1, &w->source);
    TRY(rc = sql_step(&q, err));
    if (rc == SQL_END)
        return err_set(err, ERR_NOTFOUND, "no original %s", digest_text(&w->source).s);
    /* For a while both lie in the store. */
    if (2 * (uint64_t)sql_int(&q, 1) > room_limit(w->st))
        return err_set(err, ERR_NOSPC, "original %s is too large for the quota to be kept in two forms",
                       digest_text(&w->source).s);
    w->level = (int)sql_int(&q, 0);
    if (w->level == 0)
        w->level = w->st->opt.zstd_level != 0 ? w->st->opt.zstd_level : DEFAULT_LEVEL;
    return 0;
}

int layer_writer_open(struct store *st, const struct digest *source, struct layer_writer **out, struct err *err)
{
    CLEANUP(layer_writer_cleanup) struct layer_writer *w = calloc(1, sizeof(*w));

    if (w == NULL)
        return err_nomem(err, sizeof(*w));
    w->st = st;
    w->source = *source;
    pack_hold_begin(st->packs, &w->hold);
    tarscan_init(&w->scan);
    chunker_init(&w->cut);
    TRY(choose_level(w, err));
    TRY(hasher_new(&w->canonical_hash, err));
    TRY(hasher_new(&w->zstd_hash, err));
    TRY(frame_ctx_new(&w->frames, err));
    w->chunk = malloc(CHUNK_MAX_BYTES);
    w->frame = malloc(chunk_frame_max_bytes());
    if (w->chunk == NULL || w->frame == NULL)
        return err_nomem(err, CHUNK_MAX_BYTES);
    *out = steal(&w);
    return 0;
}

/* W3. Best effort: what stays is dead bytes in a pack, which compaction takes. */
static void punch_unused(struct layer_writer *w)
{
    struct pack_puncher pu = {.packs = w->st->packs};

    for (uint32_t i = 0; i < w->piece_count && !w->keep_frames; i++) {
        const struct piece *piece = &w->pieces[i];

        if (piece->state != PIECE_SHARED && piece->loc.pack != 0 && !(w->committed && piece->linked))
            pack_puncher_add(&pu, &piece->loc);
    }
    pack_puncher_end(&pu);
}

void layer_writer_abort(struct layer_writer *w)
{
    if (w == NULL)
        return;
    punch_unused(w);
    for (uint32_t i = 0; i < w->piece_count; i++)
        if (w->pieces[i].leased)
            lease_drop(w->st, LEASE_CHUNK, &w->pieces[i].digest);
    pack_hold_end(&w->hold);
    free(w->pieces);
    free(w->rows);
    free(w->slots);
    hasher_free(w->canonical_hash);
    hasher_free(w->zstd_hash);
    frame_ctx_free(w->frames);
    free(w->chunk);
    free(w->frame);
    free(w);
}

void layer_writer_cleanup(struct layer_writer **w)
{
    layer_writer_abort(*w);
    *w = NULL;
}
