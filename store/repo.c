/* SPDX-License-Identifier: Apache-2.0
 * store/repo.c - repositories: a blob or a manifest is served in one only if it is known to hold it.
 */
#include "store/repo_internal.h"

#include "base/clock.h"

#define UPSTREAM_MAX 255
#define NAME_MAX_BYTES 255
#define RECORD_LIMIT_BYTES (64u << 20)

static int find_repo(struct sql_db *db, const char *upstream, const char *name, int64_t *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q, "SELECT id FROM repo WHERE upstream = ?1 AND name = ?2", err));
    sql_bind_text(&q, 1, upstream);
    sql_bind_text(&q, 2, name);
    TRY(rc = sql_step(&q, err));
    *out = rc == SQL_ROW ? sql_int(&q, 0) : 0;
    return 0;
}

int store_repo_find(struct store *st, const char *upstream, const char *name, int64_t *out_repo, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(st, &db, err));
    return find_repo(db, upstream, name, out_repo, err);
}

static int add_repo(struct sql_db *db, const char *upstream, const char *name, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, "INSERT INTO repo (upstream, name) VALUES (?1, ?2) ON CONFLICT DO NOTHING", err));
    sql_bind_text(&q, 1, upstream);
    sql_bind_text(&q, 2, name);
    return sql_run(&q, err);
}

int store_repo(struct store *st, const char *upstream, const char *name, int64_t *out_repo, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;

    if (strlen(upstream) > UPSTREAM_MAX || strlen(name) > NAME_MAX_BYTES)
        return err_set(err, ERR_LIMIT, "a repository's name is too long");
    TRY(store_repo_find(st, upstream, name, out_repo, err));
    if (*out_repo != 0)
        return 0;
    TRY(catalog_begin(st, &tx, err));
    TRY(add_repo(tx.db, upstream, name, err));
    TRY(find_repo(tx.db, upstream, name, out_repo, err));
    return catalog_commit(&tx, err);
}

int repo_get(struct sql_db *db, int64_t repo, struct repo_name *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q, "SELECT upstream, name FROM repo WHERE id = ?1", err));
    sql_bind_int(&q, 1, repo);
    TRY(rc = sql_step(&q, err));
    if (rc == SQL_END)
        return err_set(err, ERR_NOTFOUND, "repository %lld is not in the catalog", (long long)repo);
    (void)snprintf(out->upstream, sizeof(out->upstream), "%s", sql_text(&q, 0));
    (void)snprintf(out->name, sizeof(out->name), "%s", sql_text(&q, 1));
    return 0;
}

/* ---- links ---------------------------------------------------------------------------------------------------------- */

int record_append(struct store *st, enum pack_record type, const struct digest *key, const struct buf *payload,
                  struct err *err)
{
    struct pack_loc loc;

    return pack_append(st->packs, type, key, NULL, payload->data, payload->len, &loc, err);
}

struct link_state {
    bool linked;
    bool size_known;
    struct repo_name repo;
};

static int read_link(struct store *st, int64_t repo, enum record_link_kind kind, const struct digest *d,
                     struct link_state *out, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    *out = (struct link_state){.linked = false};
    TRY(catalog_read_begin(st, &db, err));
    TRY(repo_get(db, repo, &out->repo, err));
    if (kind == RECORD_LINK_BLOB)
        TRY(sql_query(db, &q,
                      "SELECT b.size IS NOT NULL FROM blob b JOIN repo_blob rb ON rb.repo_id = ?1 AND rb.blob_id = b.id"
                      " WHERE b.digest = ?2",
                      err));
    else
        TRY(sql_query(db, &q,
                      "SELECT 1 FROM manifest m JOIN repo_manifest rm ON rm.repo_id = ?1 AND rm.manifest_id = m.id"
                      " WHERE m.digest = ?2",
                      err));
    sql_bind_int(&q, 1, repo);
    sql_bind_digest(&q, 2, d);
    TRY(rc = sql_step(&q, err));
    out->linked = rc == SQL_ROW;
    out->size_known = rc == SQL_ROW && sql_int(&q, 0) != 0;
    return 0;
}

static int write_link(struct store *st, const struct link_state *state, enum record_link_kind kind,
                      const struct digest *d, uint64_t size_bytes, struct err *err)
{
    CLEANUP(buf_release) struct buf b = BUF_INIT(RECORD_LIMIT_BYTES);
    struct record_link link = {.kind = kind,
                               .size_bytes = size_bytes,
                               .upstream = record_text(state->repo.upstream),
                               .name = record_text(state->repo.name)};

    TRY(record_put_link(&b, &link, err));
    TRY(record_append(st, PACK_REPO_BLOB, d, &b, err));
    return pack_sync(st->packs, err);
}

int repo_record_link(struct store *st, int64_t repo, enum record_link_kind kind, const struct digest *d,
                     uint64_t size_bytes, struct err *err)
{
    struct link_state state;

    TRY(read_link(st, repo, kind, d, &state, err));
    return state.linked && (state.size_known || size_bytes == 0) ? 0 : write_link(st, &state, kind, d, size_bytes, err);
}

int repo_link_blob(struct catalog_tx *tx, int64_t repo, int64_t blob_id, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(tx->db, &q, "INSERT INTO repo_blob (repo_id, blob_id) VALUES (?1, ?2) ON CONFLICT DO NOTHING", err));
    sql_bind_int(&q, 1, repo);
    sql_bind_int(&q, 2, blob_id);
    return sql_run(&q, err);
}

int repo_link_manifest(struct catalog_tx *tx, int64_t repo, int64_t manifest_id, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(tx->db, &q, "INSERT INTO repo_manifest (repo_id, manifest_id) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
                  err));
    sql_bind_int(&q, 1, repo);
    sql_bind_int(&q, 2, manifest_id);
    return sql_run(&q, err);
}

/* ---- blobs ------------------------------------------------------------------------------------------------------------ */

/* A size that was hashed here stands; what an upstream says only fills in or replaces what another upstream said. */
static int put_known_blob(struct catalog_tx *tx, const struct digest *d, uint64_t size_bytes, int64_t *out_id,
                          struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(tx->db, &q,
                  "INSERT INTO blob (digest, size, created, last_read) VALUES (?1, ?2, ?3, ?4)"
                  " ON CONFLICT (digest) DO UPDATE SET"
                  "  size = CASE WHEN verified THEN size ELSE coalesce(excluded.size, size) END"
                  " RETURNING id",
                  err));
    sql_bind_digest(&q, 1, d);
    if (size_bytes == 0) /* also what a broken upstream says of a blob that is not empty (case 12) */
        sql_bind_null(&q, 2);
    else
        sql_bind_int(&q, 2, (int64_t)size_bytes);
    sql_bind_int(&q, 3, clock_wall_s());
    sql_bind_int(&q, 4, clock_wall_ms());
    TRY(sql_step(&q, err));
    *out_id = sql_int(&q, 0);
    return sql_run(&q, err);
}

int store_repo_add_blob(struct store *st, int64_t repo, const struct digest *d, uint64_t size_bytes, struct err *err)
{
    CLEANUP(pack_hold_end) struct pack_hold hold = PACK_HOLD_INIT;
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;
    struct link_state state;
    int64_t blob_id = 0;

    if (size_bytes > INT64_MAX)
        return err_set(err, ERR_LIMIT, "blob %s: a size beyond all files", digest_text(d).s);
    pack_hold_begin(st->packs, &hold);
    TRY(read_link(st, repo, RECORD_LINK_BLOB, d, &state, err));
    if (state.linked && (state.size_known || size_bytes == 0))
        return 0;
    TRY(write_link(st, &state, RECORD_LINK_BLOB, d, size_bytes, err));
    TRY(catalog_begin(st, &tx, err));
    TRY(put_known_blob(&tx, d, size_bytes, &blob_id, err));
    TRY(repo_link_blob(&tx, repo, blob_id, err));
    return catalog_commit(&tx, err);
}

static int holds(struct sql_db *db, int64_t repo, const struct digest *d, bool *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(
        db, &q,
        "SELECT EXISTS (SELECT 1 FROM blob b JOIN repo_blob rb ON rb.repo_id = ?1 AND rb.blob_id = b.id"
        "   WHERE b.digest = ?2)"
        " OR EXISTS (SELECT 1 FROM canonical c JOIN blob b ON b.canonical_id = c.id"
        "   JOIN repo_blob rb ON rb.repo_id = ?1 AND rb.blob_id = b.id WHERE c.digest = ?2)"
        " OR EXISTS (SELECT 1 FROM canonical c JOIN blob b ON b.canonical_id = c.id"
        "   JOIN repo_blob rb ON rb.repo_id = ?1 AND rb.blob_id = b.id WHERE c.zdigest = ?2)"
        /* A blob that is a canonical layer itself, which was stored from another blob: nothing links the two. */
        " OR EXISTS (SELECT 1 FROM canonical c JOIN blob b ON b.digest = c.digest"
        "   JOIN repo_blob rb ON rb.repo_id = ?1 AND rb.blob_id = b.id WHERE c.zdigest = ?2)",
        err));
    sql_bind_int(&q, 1, repo);
    sql_bind_digest(&q, 2, d);
    TRY(sql_step(&q, err));
    *out = sql_int(&q, 0) != 0;
    return 0;
}

int store_repo_has_blob(struct store *st, int64_t repo, const struct digest *d, bool *out, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(st, &db, err));
    return holds(db, repo, d, out, err);
}
