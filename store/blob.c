/* SPDX-License-Identifier: Apache-2.0
 * store/blob.c - what a digest is, where its bytes can be had, and what is still to be done about it.
 */
#include "store/catalog_internal.h"

#define PENDING_PAGE 256

/* ---- look-up ---------------------------------------------------------------------------------------------------------- */

#define CANONICAL_COLUMNS "c.digest, c.size, c.zdigest, c.zsize, c.present"

static int read_canonical(struct sql_query *q, int first, struct store_blob *out, struct err *err)
{
    out->has_canonical = true;
    TRY(sql_digest(q, first, &out->canonical, err));
    out->canonical_bytes = (uint64_t)sql_int(q, first + 1);
    if (!sql_is_null(q, first + 2)) {
        TRY(sql_digest(q, first + 2, &out->zstd, err));
        out->zstd_bytes = (uint64_t)sql_int(q, first + 3);
    }
    out->canonical_present = sql_int(q, first + 4) != 0;
    return 0;
}

struct original_state {
    bool known, present;
    uint64_t size_bytes;
};

static int look_original(struct sql_db *db, const struct digest *d, struct original_state *state,
                         struct store_blob *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q,
                  "SELECT b.size, b.original_present, b.canon, " CANONICAL_COLUMNS
                  " FROM blob b LEFT JOIN canonical c ON c.id = b.canonical_id WHERE b.digest = ?1",
                  err));
    sql_bind_digest(&q, 1, d);
    TRY(rc = sql_step(&q, err));
    if (rc == SQL_END)
        return 0;
    *state =
        (struct original_state){.known = true, .present = sql_int(&q, 1) != 0, .size_bytes = (uint64_t)sql_int(&q, 0)};
    out->canon = (enum store_canon)sql_int(&q, 2);
    return sql_is_null(&q, 3) ? 0 : read_canonical(&q, 3, out, err);
}

static int look_canonical(struct sql_db *db, const struct digest *d, bool *out_found, struct store_blob *out,
                          struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q, "SELECT " CANONICAL_COLUMNS " FROM canonical c WHERE c.digest = ?1", err));
    sql_bind_digest(&q, 1, d);
    TRY(rc = sql_step(&q, err));
    *out_found = rc == SQL_ROW;
    return *out_found ? read_canonical(&q, 0, out, err) : 0;
}

static int look_zstd(struct sql_db *db, const struct digest *d, bool *out_found, struct store_blob *out,
                     struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q, "SELECT " CANONICAL_COLUMNS " FROM canonical c WHERE c.zdigest = ?1", err));
    sql_bind_digest(&q, 1, d);
    TRY(rc = sql_step(&q, err));
    *out_found = rc == SQL_ROW;
    return *out_found ? read_canonical(&q, 0, out, err) : 0;
}

static void set_role(struct store_blob *out, enum store_role role, bool present, uint64_t size_bytes)
{
    out->role = role;
    out->present = present;
    out->size_bytes = size_bytes;
    if (role != ROLE_ORIGINAL)
        out->canon = CANON_DONE;
}

/* A digest can be several things: plain tar is an original and its own canonical form, and an upstream can hold a blob
 * that equals a zstd form. What is present wins; then canonical, original, zstd. */
static int look_up(struct sql_db *db, const struct digest *d, struct store_blob *out, struct err *err)
{
    struct original_state original = {.known = false};
    struct store_blob canonical = {.role = ROLE_UNKNOWN};
    struct store_blob zstd = {.role = ROLE_UNKNOWN};
    bool is_canonical = false;
    bool is_zstd = false;

    *out = (struct store_blob){.role = ROLE_UNKNOWN};
    TRY(look_canonical(db, d, &is_canonical, &canonical, err));
    if (is_canonical && canonical.canonical_present) {
        *out = canonical;
        set_role(out, ROLE_CANONICAL, true, canonical.canonical_bytes);
        return 0;
    }
    TRY(look_original(db, d, &original, out, err));
    if (original.present) {
        set_role(out, ROLE_ORIGINAL, true, original.size_bytes);
        return 0;
    }
    TRY(look_zstd(db, d, &is_zstd, &zstd, err));
    if (is_zstd && (zstd.canonical_present || (!is_canonical && !original.known))) {
        *out = zstd;
        set_role(out, ROLE_ZSTD, zstd.canonical_present, zstd.zstd_bytes);
    } else if (is_canonical) {
        *out = canonical;
        set_role(out, ROLE_CANONICAL, false, canonical.canonical_bytes);
    } else if (original.known) {
        set_role(out, ROLE_ORIGINAL, false, original.size_bytes);
    }
    return 0;
}

int store_blob_lookup(struct store *st, const struct digest *d, struct store_blob *out, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(st, &db, err));
    return look_up(db, d, out, err);
}

/* ---- sources ------------------------------------------------------------------------------------------------------------ */

static int read_source(struct sql_query *q, struct store_source *out, struct err *err)
{
    TRY(sql_digest(q, 0, &out->original, err));
    out->original_bytes = (uint64_t)sql_int(q, 1);
    out->decode = sql_int(q, 2) != 0;
    out->repo = sql_int(q, 3);
    (void)snprintf(out->upstream, sizeof(out->upstream), "%s", sql_text(q, 4));
    (void)snprintf(out->name, sizeof(out->name), "%s", sql_text(q, 5));
    return 0;
}

static int list_sources(struct sql_db *db, const struct digest *d, int64_t repo, struct store_source *out, size_t max,
                        size_t *out_count, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q,
                  "SELECT b.digest, b.size, b.digest <> ?1, r.id, r.upstream, r.name"
                  " FROM blob b JOIN repo_blob rb ON rb.blob_id = b.id JOIN repo r ON r.id = rb.repo_id"
                  " WHERE b.id IN (SELECT id FROM blob WHERE digest = ?1"
                  "  UNION ALL SELECT o.id FROM canonical c JOIN blob o ON o.canonical_id = c.id WHERE c.digest = ?1"
                  "  UNION ALL SELECT o.id FROM canonical c JOIN blob o ON o.canonical_id = c.id WHERE c.zdigest = ?1"
                  "  UNION ALL SELECT o.id FROM canonical c JOIN blob o ON o.digest = c.digest WHERE c.zdigest = ?1)"
                  " ORDER BY r.id = ?2 DESC, b.digest <> ?1, r.id, b.id LIMIT ?3",
                  err));
    sql_bind_digest(&q, 1, d);
    sql_bind_int(&q, 2, repo);
    sql_bind_int(&q, 3, (int64_t)max);
    while ((rc = sql_step(&q, err)) == SQL_ROW)
        TRY(read_source(&q, &out[(*out_count)++], err));
    return rc;
}

int store_sources(struct store *st, const struct digest *d, int64_t repo, struct store_source *out, size_t max,
                  size_t *out_count, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    *out_count = 0;
    TRY(catalog_read_begin(st, &db, err));
    return list_sources(db, d, repo, out, max, out_count, err);
}

/* ---- what is to be done --------------------------------------------------------------------------------------------------- */

struct pending_page {
    int64_t last_id;
    size_t count;
    struct digest digests[PENDING_PAGE];
};

static int read_pending(struct sql_db *db, struct pending_page *page, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    page->count = 0;
    TRY(sql_query(
        db, &q, "SELECT id, digest FROM blob WHERE original_present = 1 AND canon = 0 AND id > ?1 ORDER BY id LIMIT ?2",
        err));
    sql_bind_int(&q, 1, page->last_id);
    sql_bind_int(&q, 2, PENDING_PAGE);
    while ((rc = sql_step(&q, err)) == SQL_ROW) {
        page->last_id = sql_int(&q, 0);
        TRY(sql_digest(&q, 1, &page->digests[page->count], err));
        page->count++;
    }
    return rc;
}

static int fetch_pending(struct store *st, struct pending_page *page, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(st, &db, err));
    return read_pending(db, page, err);
}

int store_each_pending(struct store *st, store_digest_fn *fn, void *arg, struct err *err)
{
    struct pending_page page = {.last_id = 0};

    /* fn runs without a connection: it may use the store, and a slow one pins no snapshot. */
    do {
        TRY(fetch_pending(st, &page, err));
        for (size_t i = 0; i < page.count; i++)
            TRY(fn(arg, &page.digests[i], err));
    } while (page.count == PENDING_PAGE);
    return 0;
}

static int refuse(struct sql_db *db, const struct digest *original, const char *reason, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    /* A canonical form that was made once stands. */
    TRY(sql_query(db, &q, "UPDATE blob SET canon = 2, refuse_reason = ?2 WHERE digest = ?1 AND canon <> 1", err));
    sql_bind_digest(&q, 1, original);
    sql_bind_text(&q, 2, reason);
    TRY(sql_run(&q, err));
    if (sql_changes(db) == 0)
        return err_set(err, ERR_NOTFOUND, "blob %s is not in the catalog, or is canonical", digest_text(original).s);
    return 0;
}

int store_canon_refuse(struct store *st, const struct digest *original, const char *reason, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;

    TRY(catalog_begin(st, &tx, err));
    TRY(refuse(tx.db, original, reason, err));
    return catalog_commit(&tx, err);
}
