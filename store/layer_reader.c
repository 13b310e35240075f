/* SPDX-License-Identifier: Apache-2.0
 * store/layer_reader.c - reads a canonical layer back, as its bytes or as its zstd form, from any offset.
 *
 * A source holds a lease and no database connection: the recipe comes in pages of PAGE_ROWS, each in a short read
 * transaction, so that a slow client pins neither the WAL nor a connection. Chunks of a leased layer stay, so a page
 * stays true but for where the frames are: compaction moves them (chunk_read()). A row that does not continue where the
 * last one ended is a damaged catalog.
 *
 * One frame at a time, each read with one pread() and checked (S6). Frames of one layer mostly lie side by side, but
 * reading several at once gains nothing from the page cache. Where the caller's buffer has room for all that a
 * frame gives, it is decoded (or, in the zstd form, read) straight into it.
 */
#include "store/catalog_internal.h"
#include "store/chunk_row_internal.h"
#include "store/layer.h"

#include <inttypes.h>

#define PAGE_ROWS 64
#define READ_MAX_BYTES ((size_t)2 << 20) /* one read is one step of bounded work */

struct row {
    uint64_t off, zoff;
    struct chunk_row chunk;
};

struct layer_source {
    struct source base;
    struct store *st;
    struct lease lease;
    struct digest canonical;
    enum layer_form form;
    uint64_t pos, end; /* of the wanted window, in the wanted form */

    int64_t canonical_id;
    struct row rows[PAGE_ROWS];
    unsigned row_count, row_at;

    struct frame_ctx *frames; /* identity only */
    uint8_t *frame;           /* chunk_frame_max_bytes() */
    uint8_t *chunk;           /* CHUNK_MAX_BYTES, identity only */
    const uint8_t *have;      /* bytes at pos that are ready, in frame or chunk */
    size_t have_len;
};

/* ---- the recipe -------------------------------------------------------------------------------------------------- */

static uint64_t row_begin(const struct layer_source *s, const struct row *row)
{
    return s->form == LAYER_ZSTD ? row->zoff : row->off;
}

static uint64_t row_bytes(const struct layer_source *s, const struct row *row)
{
    return s->form == LAYER_ZSTD ? row->chunk.loc.len : row->chunk.raw_bytes;
}

static int damaged(const struct layer_source *s, const char *how, struct err *err)
{
    return err_set(err, ERR_CORRUPT, "layer %s: its recipe %s at %" PRIu64, digest_text(&s->canonical).s, how, s->pos);
}

/* Uncompressed offset of the row that holds s->pos. */
static int find_first(struct layer_source *s, struct sql_db *db, uint64_t *out_off, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    if (s->form == LAYER_ZSTD)
        TRY(sql_query(db, &q,
                      "SELECT off FROM recipe WHERE canonical_id = ?1 AND zoff <= ?2 ORDER BY zoff DESC LIMIT 1", err));
    else
        TRY(sql_query(db, &q, "SELECT off FROM recipe WHERE canonical_id = ?1 AND off <= ?2 ORDER BY off DESC LIMIT 1",
                      err));
    sql_bind_int(&q, 1, s->canonical_id);
    sql_bind_int(&q, 2, (int64_t)s->pos);
    TRY(rc = sql_step(&q, err));
    if (rc == SQL_END)
        return damaged(s, "has no row", err);
    *out_off = (uint64_t)sql_int(&q, 0);
    return 0;
}

static int read_page(struct layer_source *s, struct sql_db *db, uint64_t off, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q,
                  "SELECT r.off, r.zoff, " CHUNK_ROW_COLUMNS " FROM recipe r JOIN chunk c ON c.id = r.chunk_id"
                  " WHERE r.canonical_id = ?1 AND r.off >= ?2 ORDER BY r.off LIMIT ?3",
                  err));
    sql_bind_int(&q, 1, s->canonical_id);
    sql_bind_int(&q, 2, (int64_t)off);
    sql_bind_int(&q, 3, PAGE_ROWS);
    s->row_count = s->row_at = 0;
    while (s->row_count < PAGE_ROWS) {
        struct row *row = &s->rows[s->row_count];

        TRY(rc = sql_step(&q, err));
        if (rc == SQL_END)
            break;
        row->off = (uint64_t)sql_int(&q, 0);
        row->zoff = (uint64_t)sql_int(&q, 1);
        TRY(chunk_row_read(&q, 2, &row->chunk, err));
        s->row_count++;
    }
    return 0;
}

/* The next page; off: of its first row, or UINT64_MAX: the one with s->pos. */
static int load_page(struct layer_source *s, uint64_t off, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(s->st, &db, err));
    if (off == UINT64_MAX)
        TRY(find_first(s, db, &off, err));
    return read_page(s, db, off, err);
}

/* Makes s->rows[s->row_at] the row that holds s->pos, which is < s->end. */
static int find_row(struct layer_source *s, struct err *err)
{
    const struct row *row;

    if (s->row_at == s->row_count) {
        const struct row *last = s->row_count > 0 ? &s->rows[s->row_count - 1] : NULL;

        TRY(load_page(s, last != NULL ? last->off + last->chunk.raw_bytes : UINT64_MAX, err));
        if (s->row_count == 0)
            return damaged(s, "ends", err);
    }
    row = &s->rows[s->row_at];
    if (s->pos < row_begin(s, row) || s->pos - row_begin(s, row) >= row_bytes(s, row))
        return damaged(s, "has a gap", err);
    if (row->chunk.lost)
        return err_set(err, ERR_CORRUPT, "layer %s: the chunk at %" PRIu64 " is damaged", digest_text(&s->canonical).s,
                       s->pos);
    return 0;
}

/* ---- frames ------------------------------------------------------------------------------------------------------ */

/* All that the row gives in the wanted form, to out. */
static int read_row(struct layer_source *s, struct row *row, uint8_t *out, struct err *err)
{
    struct chunk_row *c = &row->chunk;
    int rc;

    if (s->form == LAYER_ZSTD)
        return chunk_read(s->st, c->id, &c->loc, out, err);
    TRY(chunk_read(s->st, c->id, &c->loc, s->frame, err));
    rc = frame_decode(s->frames, c->kind, s->frame, c->loc.len, out, c->raw_bytes, err);
    return rc < 0 ? err_wrap(err, "layer %s at %" PRIu64, digest_text(&s->canonical).s, row->off) : 0;
}

/* Fills have, have_len with the bytes at pos. */
static int fill(struct layer_source *s, struct err *err)
{
    uint8_t *to = s->form == LAYER_ZSTD ? s->frame : s->chunk;
    struct row *row;
    uint64_t skip;

    TRY(find_row(s, err));
    row = &s->rows[s->row_at];
    TRY(read_row(s, row, to, err));
    skip = s->pos - row_begin(s, row);
    s->have = to + skip;
    s->have_len = (size_t)(row_bytes(s, row) - skip);
    if (s->have_len > s->end - s->pos)
        s->have_len = (size_t)(s->end - s->pos);
    s->row_at++;
    return 0;
}

/* As much as fits of whole rows, without a copy in between. *out_len: bytes, may be 0. */
static int read_whole_rows(struct layer_source *s, uint8_t *out, size_t cap, size_t *out_len, struct err *err)
{
    *out_len = 0;
    if (cap > READ_MAX_BYTES)
        cap = READ_MAX_BYTES;
    while (s->pos < s->end) {
        struct row *row;
        uint64_t bytes;

        TRY(find_row(s, err));
        row = &s->rows[s->row_at];
        bytes = row_bytes(s, row);
        if (s->pos != row_begin(s, row) || bytes > cap - *out_len || bytes > s->end - s->pos)
            break;
        TRY(read_row(s, row, out + *out_len, err));
        s->row_at++;
        s->pos += bytes;
        *out_len += (size_t)bytes;
    }
    return 0;
}

static int layer_read(struct source *base, void *out, size_t cap, size_t *out_len, struct err *err)
{
    struct layer_source *s = (struct layer_source *)base;
    size_t n;

    if (s->pos == s->end)
        return STEP_EOF;
    if (s->have_len == 0) {
        TRY(read_whole_rows(s, out, cap, out_len, err));
        if (*out_len > 0)
            return STEP_MORE;
        TRY(fill(s, err));
    }
    n = s->have_len < cap ? s->have_len : cap;
    memcpy(out, s->have, n);
    s->have += n;
    s->have_len -= n;
    s->pos += n;
    *out_len = n;
    return STEP_MORE;
}

static void layer_free(struct source *base)
{
    struct layer_source *s = (struct layer_source *)base;

    lease_release(&s->lease);
    frame_ctx_free(s->frames);
    free(s->frame);
    free(s->chunk);
    free(s);
}

static const struct source_ops layer_ops = {.name = "layer", .read = layer_read, .free = layer_free};

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void layer_cleanup(struct layer_source **s)
{
    if (*s != NULL)
        layer_free(&(*s)->base);
    *s = NULL;
}

/* Finds the layer and cuts the window to its size. */
static int find_layer(struct layer_source *s, uint64_t off, uint64_t len, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    uint64_t size;
    int rc;

    TRY(catalog_read_begin(s->st, &db, err));
    TRY(sql_query(db, &q, "SELECT id, size, zsize FROM canonical WHERE digest = ?1 AND present = 1", err));
    sql_bind_digest(&q, 1, &s->canonical);
    TRY(rc = sql_step(&q, err));
    if (rc == SQL_END)
        return err_set(err, ERR_NOTFOUND, "layer %s is not in the store", digest_text(&s->canonical).s);
    s->canonical_id = sql_int(&q, 0);
    size = (uint64_t)sql_int(&q, s->form == LAYER_ZSTD ? 2 : 1);
    s->pos = off < size ? off : size;
    s->end = len < size - s->pos ? s->pos + len : size;
    return 0;
}

static int allocate(struct layer_source *s, struct err *err)
{
    s->frame = malloc(chunk_frame_max_bytes());
    if (s->frame == NULL)
        return err_nomem(err, chunk_frame_max_bytes());
    if (s->form == LAYER_ZSTD)
        return 0;
    s->chunk = malloc(CHUNK_MAX_BYTES);
    if (s->chunk == NULL)
        return err_nomem(err, CHUNK_MAX_BYTES);
    return frame_ctx_new(&s->frames, err);
}

int layer_open(struct store *st, const struct digest *canonical, enum layer_form form, uint64_t off, uint64_t len,
               struct source **out, struct err *err)
{
    CLEANUP(layer_cleanup) struct layer_source *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return err_nomem(err, sizeof(*s));
    s->base = (struct source){.magic = SOURCE_MAGIC, .ops = &layer_ops};
    s->st = st;
    s->canonical = *canonical;
    s->form = form;
    TRY(lease_hold(st, LEASE_CANONICAL, canonical, &s->lease, err));
    TRY(find_layer(s, off, len, err));
    TRY(allocate(s, err));
    if (s->pos < s->end)
        TRY(fill(s, err));
    lease_note_read(st, LEASE_CANONICAL, canonical);
    *out = &steal(&s)->base;
    return 0;
}
