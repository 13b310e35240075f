/* SPDX-License-Identifier: Apache-2.0
 * store/scrub_repair.c - what of a repair is the store's: taking what is damaged out of use, counting anew, removing files;
 * and the memory of the last scrub. Fetching anew is proxy/maintain_repair.c's.
 */
#include "store/scrub_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "store/files_internal.h"
#include "store/original_internal.h"
#include "store/pack_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#define SOURCE_NAME_BYTES 256

/* ---- layers and originals -------------------------------------------------------------------------------------------------- */

static int layer_id(struct sql_db *db, const struct digest *layer, int64_t *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q, "SELECT id FROM canonical WHERE digest = ?1", err));
    sql_bind_digest(&q, 1, layer);
    TRY(rc = sql_step(&q, err));
    *out = rc == SQL_ROW ? sql_int(&q, 0) : 0;
    return 0;
}

static int drop_in_tx(struct store *st, const struct digest *layer, struct sweep *sw, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;
    int64_t id;

    TRY(catalog_begin(st, &tx, err));
    TRY(layer_id(tx.db, layer, &id, err));
    if (id == 0)
        return err_set(err, ERR_NOTFOUND, "layer %s is not in the catalog", digest_text(layer).s);
    TRY(recipe_drop(&tx, id, err));
    TRY(sweep_unused(&tx, sw, err));
    return catalog_commit(&tx, err);
}

int store_scrub_drop_layer(struct store *st, const struct digest *layer, struct err *err)
{
    CLEANUP(digest_unlock) struct lease lock = LEASE_INIT;
    struct sweep sw = SWEEP_INIT;
    int rc;

    TRY(digest_lock(st, layer, &lock, err));
    rc = drop_in_tx(st, layer, &sw, err);
    sweep_end(st, &sw, rc == 0);
    return rc;
}

static int find_chunk(struct store *st, const struct digest *d, struct chunk_row *out, bool *out_found, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(st, &db, err));
    return chunk_row_find(db, d, out, out_found, err);
}

static int lose_original(struct store *st, const struct digest *d, struct err *err)
{
    struct original_row row;
    struct err ignored = ERR_INIT;

    TRY(store_mark_lost(st, d, err));
    /* Its sums are right, its digest is not: then it looked good to store_mark_lost() where a layer has the same name. */
    if (original_row(st, d, &row, &ignored) < 0)
        return 0;
    return evict_form(st, LEASE_ORIGINAL, d, false, err);
}

int store_scrub_lose(struct store *st, const struct scrub_finding *f, struct err *err)
{
    struct chunk_row row;
    bool found;

    if (f->fault == SCRUB_ORIGINAL)
        return lose_original(st, &f->digest, err);
    if (f->fault != SCRUB_FRAME)
        return err_set(err, ERR_UNSUPPORTED, "%s: nothing to lose", scrub_fault_name(f->fault));
    TRY(find_chunk(st, &f->digest, &row, &found, err));
    if (!found || row.lost || row.loc.pack != f->pack || row.loc.off != f->off)
        return 0; /* somebody else has found it, and perhaps stored it again */
    return chunk_row_lose(st, &row, err);
}

int store_scrub_stands(struct store *st, const struct scrub_finding *f, bool *out, struct err *err)
{
    struct chunk_row row;
    bool found;

    TRY(find_chunk(st, &f->digest, &row, &found, err));
    *out = found && (row.lost || (row.loc.pack == f->pack && row.loc.off == f->off));
    return 0;
}

int store_scrub_manifest_source(struct store *st, const struct digest *d, char *upstream, char *name, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(catalog_read_begin(st, &db, err));
    TRY(sql_query(db, &q,
                  "SELECT m.view, r.upstream, r.name FROM manifest m JOIN repo_manifest rm ON rm.manifest_id = m.id"
                  " JOIN repo r ON r.id = rm.repo_id WHERE m.digest = ?1 LIMIT 1",
                  err));
    sql_bind_digest(&q, 1, d);
    TRY(rc = sql_step(&q, err));
    if (rc != SQL_ROW)
        return err_set(err, ERR_NOTFOUND, "no repository is known to have it");
    if (sql_int(&q, 0) != 0)
        return err_set(err, ERR_UNSUPPORTED, "it is a view of ours; \"recask fsck --rebuild\" finds it in the packs");
    (void)snprintf(upstream, SOURCE_NAME_BYTES, "%s", sql_text(&q, 1));
    (void)snprintf(name, SOURCE_NAME_BYTES, "%s", sql_text(&q, 2));
    return 0;
}

int store_scrub_put_manifest(struct store *st, const struct digest *d, const char *body, size_t len, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;
    struct digest got;

    digest_of(body, len, &got);
    if (!digest_equal(&got, d))
        return err_set(err, ERR_CORRUPT, "manifest %s: what came hashes to %s", digest_text(d).s, digest_text(&got).s);
    TRY(catalog_begin(st, &tx, err));
    {
        CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

        TRY(sql_query(tx.db, &q, "UPDATE manifest SET body = ?2 WHERE digest = ?1", err));
        sql_bind_digest(&q, 1, d);
        sql_bind_blob(&q, 2, body, len);
        TRY(sql_run(&q, err));
    }
    return catalog_commit(&tx, err);
}

/* ---- counts, files, packs ---------------------------------------------------------------------------------------------------- */

static const char count_totals[] =
    "UPDATE totals SET chunks = (SELECT count(*) FROM chunk WHERE pack_id IS NOT NULL),"
    " chunk_bytes = (SELECT coalesce(sum(raw), 0) FROM chunk WHERE pack_id IS NOT NULL),"
    " frame_bytes = (SELECT coalesce(sum(len), 0) FROM chunk WHERE pack_id IS NOT NULL),"
    " canonical_layers = (SELECT count(*) FROM canonical WHERE present = 1),"
    " canonical_bytes = (SELECT coalesce(sum(size), 0) FROM canonical WHERE present = 1),"
    " original_bytes = (SELECT coalesce(sum(size), 0) FROM blob WHERE original_present = 1),"
    " replayable = (SELECT count(*) FROM blob WHERE replay IS NOT NULL), blobs = (SELECT count(*) FROM blob),"
    " manifests = (SELECT count(*) FROM manifest), tags = (SELECT count(*) FROM tag)";

static int count_in_tx(struct store *st, const struct scrub_finding *f, struct sweep *sw, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;

    TRY(catalog_begin(st, &tx, err));
    if (f->totals) {
        TRY(sql_exec(tx.db, count_totals, err));
    } else {
        CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

        TRY(sql_query(tx.db, &q,
                      "UPDATE chunk SET refs = (SELECT count(*) FROM recipe WHERE chunk_id = ?1) WHERE id = ?1", err));
        sql_bind_int(&q, 1, f->row);
        TRY(sql_run(&q, err));
        sql_done(&q);
        TRY(sweep_unused(&tx, sw, err));
    }
    return catalog_commit(&tx, err);
}

static int fix_count(struct store *st, const struct scrub_finding *f, struct err *err)
{
    struct sweep sw = SWEEP_INIT;
    int rc;

    if (!f->totals && f->row == 0)
        return store_scrub_drop_layer(st, &f->digest, err);
    rc = count_in_tx(st, f, &sw, err);
    sweep_end(st, &sw, rc == 0);
    return rc;
}

/* What is not used any more by now goes; what has found a user stays. */
static int fix_stray(struct store *st, const struct scrub_finding *f, struct err *err)
{
    CLEANUP(digest_unlock) struct lease lock = LEASE_INIT;
    struct original_row row;
    struct digest d;
    struct err ignored = ERR_INIT;
    char text[DIGEST_TEXT_BYTES];
    const char *name = strrchr(f->file, '/');

    if (name == NULL)
        return err_set(err, ERR_UNSUPPORTED, "%s: not a file of the store", f->file);
    (void)snprintf(text, sizeof(text), "sha256:%.64s", name + 1);
    if (strncmp(f->file, "originals/", 10) == 0 && strlen(name + 1) == 64 &&
        digest_parse(text, strlen(text), &d, &ignored) == 0) {
        TRY(digest_lock(st, &d, &lock, err));
        if (original_row(st, &d, &row, &ignored) < 0)
            original_remove(st, &d);
        return 0;
    }
    /* A directory is nothing that the store has made. */
    if (unlinkat(st->dir_fd, f->file, 0) < 0 && errno != ENOENT)
        return err_sys(err, errno, "%s", f->file);
    return 0;
}

/* 1 when the statement has a row. */
static int any_row(struct sql_db *db, const char *literal, int64_t first, int64_t second, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, literal, err));
    sql_bind_int(&q, 1, first);
    sql_bind_int(&q, 2, second);
    return sql_step(&q, err);
}

/* No row names a frame behind the file's end any more, so nothing is wrong with it: it may have grown since. A missing pack
 * is forgotten. */
static int fix_pack(struct store *st, const struct scrub_finding *f, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;
    struct stat sb;
    bool there = fstatat(st->packs_fd, pack_name(f->pack).s, &sb, AT_SYMLINK_NOFOLLOW) == 0;
    int64_t bytes = there ? (int64_t)sb.st_size : 0;
    int rc;

    TRY(catalog_begin(st, &tx, err));
    TRY(rc = any_row(tx.db, "SELECT 1 FROM chunk WHERE pack_id = ?1 AND off + len > ?2 LIMIT 1", f->pack, bytes, err));
    if (rc == SQL_ROW)
        return err_set(err, ERR_BUSY, "packs/%s: layers still name frames of it", pack_name(f->pack).s);
    if (!there)
        TRY(rc = any_row(tx.db, "DELETE FROM pack WHERE id = ?1 AND ?2 = 0", f->pack, 0, err));
    return catalog_commit(&tx, err);
}

int store_scrub_fix(struct store *st, const struct scrub_finding *f, struct err *err)
{
    switch (f->fault) {
    case SCRUB_COUNT:
        return fix_count(st, f, err);
    case SCRUB_STRAY:
        return fix_stray(st, f, err);
    case SCRUB_PACK:
        return fix_pack(st, f, err);
    case SCRUB_FRAME:
    case SCRUB_LAYER:
    case SCRUB_ZSTD:
    case SCRUB_ORIGINAL:
    case SCRUB_MANIFEST:
    case SCRUB_CATALOG:
        break;
    }
    return err_set(err, ERR_UNSUPPORTED, "a scrub cannot repair this; \"recask fsck\" may");
}

/* ---- the last one -------------------------------------------------------------------------------------------------------------- */

#define LAST_KEY "scrub.last"

static int get_last(struct sql_db *db, struct store_scrub_last *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct store_scrub_progress *p = &out->p;
    int rc;

    *out = (struct store_scrub_last){.since_s = 0};
    TRY(sql_query(db, &q, "SELECT value FROM meta WHERE key = '" LAST_KEY "'", err));
    TRY(rc = sql_step(&q, err));
    if (rc != SQL_ROW)
        return 0;
    rc = sscanf(sql_text(&q, 0),
                "%" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
                " %" SCNu64 " %" SCNu64 " %" SCNu64,
                &out->since_s, &out->began_s, &out->ended_s, &p->bytes, &p->chunks, &p->layers, &p->originals,
                &p->manifests, &p->bad, &p->repaired, &p->retired);
    if (rc != 11) /* another version's: as if there were none */
        *out = (struct store_scrub_last){.since_s = 0};
    p->total_bytes = p->bytes;
    return 0;
}

static int read_last(struct store *st, struct store_scrub_last *out, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(st, &db, err));
    return get_last(db, out, err);
}

int store_scrub_remember(struct store *st, const struct store_scrub_last *last, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;
    const struct store_scrub_progress *p = &last->p;
    char text[256];

    (void)snprintf(text, sizeof(text),
                   "%" PRId64 " %" PRId64 " %" PRId64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64
                   " %" PRIu64 " %" PRIu64 " %" PRIu64,
                   last->since_s, last->began_s, last->ended_s, p->bytes, p->chunks, p->layers, p->originals,
                   p->manifests, p->bad, p->repaired, p->retired);
    TRY(catalog_begin(st, &tx, err));
    {
        CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

        TRY(sql_query(tx.db, &q,
                      "INSERT INTO meta (key, value) VALUES ('" LAST_KEY "', ?1)"
                      " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                      err));
        sql_bind_text(&q, 1, text);
        TRY(sql_run(&q, err));
    }
    return catalog_commit(&tx, err);
}

int store_scrub_last(struct store *st, struct store_scrub_last *out, struct err *err)
{
    TRY(read_last(st, out, err));
    if (out->since_s != 0)
        return 0;
    out->since_s = clock_wall_s();
    return store_scrub_remember(st, out, err);
}
