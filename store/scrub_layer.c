/* SPDX-License-Identifier: Apache-2.0
 * store/scrub_layer.c - each present layer from its first chunk to its last: the recipe, every frame (XXH3, decoded,
 * sha256), and both digests of the whole.
 *
 * The lease keeps eviction away from the layer in hand; what may still change under the scrub's feet is where a frame is
 * (compaction) and that a reader finds damage and has the layer taken away. So a frame that fails is looked up again and
 * read again, and a layer that fails as a whole is read again from its beginning.
 */
#include "store/scrub_internal.h"

#include <inttypes.h>

#define REPORTED_MAX 65536 /* chunks that are named once, however many layers share them */
#define SEARCHES_MAX 64    /* for the layers of a damaged chunk, each of which reads all recipes */
#define LOOKS 3

/* ---- one layer -------------------------------------------------------------------------------------------------------- */

static int read_layer_row(struct store_scrub *s, int64_t from, bool *out_found, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct layer_walk *l = &s->layer;
    int rc;

    TRY(sql_query(s->db, &q,
                  "SELECT id, digest, size, zdigest, zsize, chunks FROM canonical WHERE present = 1 AND id >= ?1"
                  " ORDER BY id LIMIT 1",
                  err));
    sql_bind_int(&q, 1, from);
    TRY(rc = sql_step(&q, err));
    *out_found = rc == SQL_ROW;
    if (!*out_found)
        return 0;
    l->last_id = sql_int(&q, 0);
    TRY(sql_digest(&q, 1, &l->digest, err));
    l->size = sql_int(&q, 2);
    l->has_zstd = !sql_is_null(&q, 3);
    if (l->has_zstd)
        TRY(sql_digest(&q, 3, &l->zstd, err));
    l->zsize = sql_int(&q, 4);
    l->count = sql_int(&q, 5);
    return 0;
}

static int begin_layer(struct store_scrub *s, struct err *err)
{
    struct layer_walk *l = &s->layer;
    struct err busy = ERR_INIT;
    int64_t id = l->last_id;
    bool found;
    int rc = lease_hold(s->st, LEASE_CANONICAL, &l->digest, &l->lease, &busy);

    if (rc == ERR_NOTFOUND) /* it is being evicted */
        return 0;
    if (rc < 0) {
        *err = busy;
        return rc;
    }
    /* Under the lease once more: it may have gone between the row and the lease. */
    TRY(read_layer_row(s, id, &found, err));
    if (!found || l->last_id != id) {
        l->last_id = id;
        lease_release(&l->lease);
        return 0;
    }
    l->off = l->zoff = l->rows = 0;
    l->last_off = -1;
    l->page_count = l->page_at = 0;
    l->page_last = l->tainted = l->restart = false;
    TRY(hasher_new(&l->hash, err));
    TRY(hasher_new(&l->zhash, err));
    l->open = true;
    return 0;
}

static void end_layer(struct layer_walk *l)
{
    hasher_cleanup(&l->hash);
    hasher_cleanup(&l->zhash);
    lease_release(&l->lease);
    l->open = false;
}

static int next_layer(struct store_scrub *s, bool *out_more, struct err *err)
{
    struct layer_walk *l = &s->layer;

    TRY(read_layer_row(s, l->again ? l->last_id : l->last_id + 1, out_more, err));
    return *out_more ? begin_layer(s, err) : 0;
}

/* Something is wrong with the whole: reported when it is so the second time. */
static void layer_bad(struct store_scrub *s, enum scrub_fault fault, const char *what)
{
    struct layer_walk *l = &s->layer;
    struct scrub_finding f = {.fault = fault, .digest = l->digest, .layers = {l->digest}, .layer_count = 1};

    if (l->tainted)
        return;
    l->tainted = true;
    l->restart = !l->again;
    if (l->again)
        scrub_report(s, &f, "layer %s: %s", digest_text(&l->digest).s, what);
}

static int finish_layer(struct store_scrub *s)
{
    struct layer_walk *l = &s->layer;
    struct digest got, zgot;

    hasher_peek(l->hash, &got);
    hasher_peek(l->zhash, &zgot);
    if (l->off != l->size || l->rows != l->count)
        layer_bad(s, SCRUB_LAYER, "its recipe does not add up to its size");
    else if (!l->tainted && !digest_equal(&got, &l->digest))
        layer_bad(s, SCRUB_LAYER, "its chunks are each right, but in a row they have another digest");
    else if (l->has_zstd && (l->zoff != l->zsize || (!l->tainted && !digest_equal(&zgot, &l->zstd))))
        layer_bad(s, SCRUB_ZSTD, "its zstd form is not the one that was published");
    l->again = l->restart;
    if (!l->again)
        s->p.layers++;
    end_layer(l);
    return 0;
}

/* ---- rows --------------------------------------------------------------------------------------------------------------- */

static int take_row(struct sql_query *q, struct scrub_row *row, struct err *err)
{
    struct err why = ERR_INIT;
    int rc;

    row->off = sql_int(q, 0);
    row->zoff = sql_int(q, 1);
    rc = chunk_row_read(q, 2, &row->chunk, &why);
    if (rc == 0 && !sql_is_null(q, 11))
        rc = sql_digest(q, 11, &row->digest, &why);
    row->bad = rc == ERR_CORRUPT || rc == ERR_UNSUPPORTED;
    if (row->bad) {
        (void)snprintf(row->why, sizeof(row->why), "%s",
                       sql_is_null(q, 2) ? "it names a chunk without a row" : why.msg);
        return 0;
    }
    if (rc < 0)
        *err = why;
    return rc;
}

static int read_page(struct store_scrub *s, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct layer_walk *l = &s->layer;
    int rc = SQL_END;

    TRY(sql_query(s->db, &q,
                  "SELECT r.off, r.zoff, " CHUNK_ROW_COLUMNS ", c.digest FROM recipe r"
                  " LEFT JOIN chunk c ON c.id = r.chunk_id WHERE r.canonical_id = ?1 AND r.off > ?2"
                  " ORDER BY r.off LIMIT ?3",
                  err));
    sql_bind_int(&q, 1, l->last_id);
    sql_bind_int(&q, 2, l->last_off);
    sql_bind_int(&q, 3, SCRUB_ROWS);
    l->page_count = l->page_at = 0;
    while (l->page_count < SCRUB_ROWS && (rc = sql_step(&q, err)) == SQL_ROW) {
        TRY(take_row(&q, &l->page[l->page_count], err));
        l->last_off = l->page[l->page_count++].off;
    }
    l->page_last = l->page_count < SCRUB_ROWS;
    return rc < 0 ? rc : 0;
}

/* ---- a frame -------------------------------------------------------------------------------------------------------------- */

/* True when it was not reported before; says that it is now. */
static int first_report(struct layer_walk *l, int64_t chunk, bool *out_first, struct err *err)
{
    size_t lo = 0, hi = l->reported_count;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (l->reported[mid] < chunk)
            lo = mid + 1;
        else
            hi = mid;
    }
    *out_first = lo == l->reported_count || l->reported[lo] != chunk;
    if (!*out_first || l->reported_count == REPORTED_MAX)
        return 0;
    if (l->reported_count == l->reported_cap) {
        size_t cap = l->reported_cap == 0 ? 64 : l->reported_cap * 2;
        int64_t *grown = realloc(l->reported, cap * sizeof(*grown));

        if (grown == NULL)
            return err_nomem(err, cap * sizeof(*grown));
        l->reported = grown;
        l->reported_cap = cap;
    }
    memmove(&l->reported[lo + 1], &l->reported[lo], (l->reported_count - lo) * sizeof(*l->reported));
    l->reported[lo] = chunk;
    l->reported_count++;
    return 0;
}

/* Whether the layer in hand is the only one with this chunk. */
static int only_ours(struct store_scrub *s, int64_t chunk, bool *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(s->db, &q,
                  "SELECT refs <= (SELECT count(*) FROM recipe WHERE canonical_id = ?2 AND chunk_id = ?1)"
                  " FROM chunk WHERE id = ?1",
                  err));
    sql_bind_int(&q, 1, chunk);
    sql_bind_int(&q, 2, s->layer.last_id);
    TRY(sql_step(&q, err));
    *out = sql_int(&q, 0) == 1;
    return 0;
}

static int name_layers(struct store_scrub *s, struct scrub_finding *f, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct layer_walk *l = &s->layer;
    bool alone;
    int rc;

    f->layers[f->layer_count++] = l->digest;
    TRY(only_ours(s, f->row, &alone, err));
    if (alone)
        return 0;
    if (l->searches++ >= SEARCHES_MAX) {
        f->more_layers = true;
        return 0;
    }
    TRY(sql_query(s->db, &q,
                  "SELECT DISTINCT a.digest FROM recipe r JOIN canonical a ON a.id = r.canonical_id"
                  " WHERE r.chunk_id = ?1 AND a.present = 1 AND a.id <> ?2",
                  err));
    sql_bind_int(&q, 1, f->row);
    sql_bind_int(&q, 2, l->last_id);
    while ((rc = sql_step(&q, err)) == SQL_ROW) {
        if (f->layer_count == SCRUB_LAYERS_MAX) {
            f->more_layers = true;
            return 0;
        }
        TRY(sql_digest(&q, 0, &f->layers[f->layer_count], err));
        f->layer_count++;
    }
    return rc;
}

static int frame_bad(struct store_scrub *s, const struct scrub_row *row, const char *why, struct err *err)
{
    struct scrub_finding f = {.fault = SCRUB_FRAME,
                              .digest = row->digest,
                              .row = row->chunk.id,
                              .pack = row->chunk.loc.pack,
                              .off = row->chunk.loc.off};
    bool first;

    s->layer.tainted = true;
    TRY(first_report(&s->layer, f.row, &first, err));
    if (!first)
        return 0;
    TRY(name_layers(s, &f, err));
    if (row->chunk.lost)
        scrub_report(s, &f, "chunk %s: its frame was found damaged before, and is lost", digest_text(&f.digest).s);
    else
        scrub_report(s, &f, "chunk %s in packs/%016" PRIx64 ".pack at %" PRIu64 ": %s", digest_text(&f.digest).s,
                     (uint64_t)f.pack, f.off, why);
    return 0;
}

/* l->frame and l->raw = what is at the row's place. */
static int read_chunk(struct store_scrub *s, const struct scrub_row *row, struct err *err)
{
    struct layer_walk *l = &s->layer;
    const struct chunk_row *c = &row->chunk;
    struct digest got;

    TRY(pack_read(s->st->packs, &c->loc, l->frame, err));
    TRY(frame_decode(l->frames, c->kind, l->frame, c->loc.len, l->raw, c->raw_bytes, err));
    digest_of(l->raw, c->raw_bytes, &got);
    if (!digest_equal(&got, &row->digest))
        return err_set(err, ERR_CORRUPT, "its bytes hash to %s", digest_text(&got).s);
    return 0;
}

/* The row as it is now. False: it is gone, or its layer is. */
static int look_again(struct store_scrub *s, struct scrub_row *row, bool *out_there, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(s->db, &q,
                  "SELECT r.off, r.zoff, " CHUNK_ROW_COLUMNS
                  ", c.digest FROM recipe r JOIN chunk c ON c.id = r.chunk_id"
                  " JOIN canonical a ON a.id = r.canonical_id"
                  " WHERE r.canonical_id = ?1 AND r.off = ?2 AND c.id = ?3 AND a.present = 1",
                  err));
    sql_bind_int(&q, 1, s->layer.last_id);
    sql_bind_int(&q, 2, row->off);
    sql_bind_int(&q, 3, row->chunk.id);
    TRY(rc = sql_step(&q, err));
    *out_there = rc == SQL_ROW;
    return *out_there ? take_row(&q, row, err) : 0;
}

static bool says_bad(int rc)
{
    return rc == ERR_CORRUPT || rc == ERR_NOTFOUND || rc == ERR_IO || rc == ERR_FORMAT;
}

/* *out_gone: the layer went away while it was read. */
static int check_frame(struct store_scrub *s, struct scrub_row *row, bool *out_gone, struct err *err)
{
    struct layer_walk *l = &s->layer;
    struct err why = ERR_INIT;

    for (int look = 0; look < LOOKS && !row->bad && !row->chunk.lost; look++) {
        bool there;
        int rc;

        err_clear(&why);
        rc = read_chunk(s, row, &why);
        if (rc == 0) {
            hasher_update(l->hash, l->raw, row->chunk.raw_bytes);
            hasher_update(l->zhash, l->frame, row->chunk.loc.len);
            return 0;
        }
        if (!says_bad(rc)) {
            *err = why;
            return rc;
        }
        TRY(look_again(s, row, &there, err));
        if (!there) {
            *out_gone = true;
            return 0;
        }
    }
    return frame_bad(s, row, why.msg, err);
}

static int check_row(struct store_scrub *s, struct scrub_row *row, struct err *err)
{
    struct layer_walk *l = &s->layer;
    bool gone = false;

    if (row->bad) {
        layer_bad(s, SCRUB_LAYER, row->why);
        return 0;
    }
    if (row->off != l->off || row->zoff != l->zoff)
        layer_bad(s, SCRUB_LAYER, "its recipe has a gap");
    TRY(check_frame(s, row, &gone, err));
    if (gone) {
        l->again = false;
        end_layer(l);
        return 0;
    }
    l->off = row->off + row->chunk.raw_bytes;
    l->zoff = row->zoff + row->chunk.loc.len;
    l->rows++;
    s->p.chunks++;
    s->p.bytes += row->chunk.loc.len;
    return 0;
}

/* ---- units ------------------------------------------------------------------------------------------------------------------ */

static int allocate(struct layer_walk *l, struct err *err)
{
    l->frame = malloc(chunk_frame_max_bytes());
    l->raw = malloc(CHUNK_MAX_BYTES);
    if (l->frame == NULL || l->raw == NULL)
        return err_nomem(err, CHUNK_MAX_BYTES);
    return frame_ctx_new(&l->frames, err);
}

int scrub_layer_unit(struct store_scrub *s, bool *out_more, struct err *err)
{
    struct layer_walk *l = &s->layer;

    if (l->frames == NULL)
        TRY(allocate(l, err));
    if (!l->open)
        return next_layer(s, out_more, err);
    if (l->page_at < l->page_count)
        return check_row(s, &l->page[l->page_at++], err);
    if (l->page_last)
        return finish_layer(s);
    return read_page(s, err);
}

void scrub_layer_end(struct store_scrub *s)
{
    struct layer_walk *l = &s->layer;

    end_layer(l);
    frame_ctx_cleanup(&l->frames);
    free_ptr(&l->frame);
    free_ptr(&l->raw);
    free_ptr(&l->reported);
    l->reported_count = l->reported_cap = 0;
}
