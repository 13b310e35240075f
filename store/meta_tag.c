/* SPDX-License-Identifier: Apache-2.0
 * store/meta_tag.c - tags, views, and what the background job notes on manifests.
 */
#include "base/clock.h"
#include "store/meta_internal.h"

/* ---- tags --------------------------------------------------------------------------------------------------------- */

static int read_tag(struct sql_db *db, int64_t repo, const char *tag, struct store_tag *out, int64_t *out_manifest,
                    struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    *out_manifest = 0;
    TRY(sql_query(db, &q,
                  "SELECT m.digest, t.checked_at, m.id FROM tag t JOIN manifest m ON m.id = t.manifest_id"
                  " WHERE t.repo_id = ?1 AND t.name = ?2",
                  err));
    sql_bind_int(&q, 1, repo);
    sql_bind_text(&q, 2, tag);
    TRY(rc = sql_step(&q, err));
    if (rc == SQL_END)
        return err_set(err, ERR_NOTFOUND, "tag %s is not in the catalog", tag);
    TRY(sql_digest(&q, 0, &out->digest, err));
    out->checked_at = sql_int(&q, 1);
    *out_manifest = sql_int(&q, 2);
    return 0;
}

int store_tag_get(struct store *st, int64_t repo, const char *tag, struct store_tag *out, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    int64_t id;

    TRY(catalog_read_begin(st, &db, err));
    return read_tag(db, repo, tag, out, &id, err);
}

static int is_linked(struct sql_db *db, int64_t repo, int64_t manifest_id, bool *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q, "SELECT 1 FROM repo_manifest WHERE repo_id = ?1 AND manifest_id = ?2", err));
    sql_bind_int(&q, 1, repo);
    sql_bind_int(&q, 2, manifest_id);
    TRY(rc = sql_step(&q, err));
    *out = rc == SQL_ROW;
    return 0;
}

int tag_state_read(struct store *st, int64_t repo, const char *tag, const struct digest *d, struct tag_state *out,
                   struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    struct err none = ERR_INIT;
    struct store_tag now;
    int64_t id = 0;
    int rc;

    *out = (struct tag_state){.linked = false};
    TRY(catalog_read_begin(st, &db, err));
    TRY(repo_get(db, repo, &out->repo, err));
    TRY(manifest_find(db, d, &out->manifest, err));
    TRY(is_linked(db, repo, out->manifest.id, &out->linked, err));
    if (tag == NULL)
        return 0;
    rc = read_tag(db, repo, tag, &now, &id, &none);
    if (rc < 0 && rc != ERR_NOTFOUND) {
        *err = none;
        return rc;
    }
    out->tag_set = rc == 0 && id == out->manifest.id;
    return 0;
}

static int tag_record(struct store *st, const struct repo_name *repo, const char *tag, const struct digest *d,
                      bool dropped, struct err *err)
{
    CLEANUP(buf_release) struct buf b = BUF_INIT(META_RECORD_MAX_BYTES);
    struct record_tag t = {.dropped = dropped,
                           .at = clock_wall_s(),
                           .upstream = record_text(repo->upstream),
                           .name = record_text(repo->name),
                           .tag = record_text(tag)};

    TRY(record_put_tag(&b, &t, err));
    return record_append(st, PACK_TAG, d, &b, err);
}

int tag_drop_record(struct store *st, const struct repo_name *repo, const char *tag, const struct digest *d,
                    struct err *err)
{
    return tag_record(st, repo, tag, d, true, err);
}

static int link_record(struct store *st, const struct repo_name *repo, const struct digest *d, struct err *err)
{
    CLEANUP(buf_release) struct buf b = BUF_INIT(META_RECORD_MAX_BYTES);
    struct record_link l = {
        .kind = RECORD_LINK_MANIFEST, .upstream = record_text(repo->upstream), .name = record_text(repo->name)};

    TRY(record_put_link(&b, &l, err));
    return record_append(st, PACK_REPO_BLOB, d, &b, err);
}

int tag_records(struct store *st, const struct tag_state *state, const char *tag, const struct digest *d,
                bool *out_appended, struct err *err)
{
    if (!state->linked)
        TRY(link_record(st, &state->repo, d, err));
    if (tag != NULL && !state->tag_set)
        TRY(tag_record(st, &state->repo, tag, d, false, err));
    *out_appended = !state->linked || (tag != NULL && !state->tag_set);
    return 0;
}

int tag_write(struct catalog_tx *tx, int64_t repo, const char *tag, int64_t manifest_id, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(tx->db, &q,
                  "INSERT INTO tag (repo_id, name, manifest_id, checked_at, created) VALUES (?1, ?2, ?3, ?4, ?4)"
                  " ON CONFLICT (repo_id, name) DO UPDATE SET manifest_id = excluded.manifest_id,"
                  "  checked_at = excluded.checked_at",
                  err));
    sql_bind_int(&q, 1, repo);
    sql_bind_text(&q, 2, tag);
    sql_bind_int(&q, 3, manifest_id);
    sql_bind_int(&q, 4, clock_wall_s());
    return sql_run(&q, err);
}

int store_tag_set(struct store *st, int64_t repo, const char *tag, const struct digest *d, struct err *err)
{
    CLEANUP(pack_hold_end) struct pack_hold hold = PACK_HOLD_INIT;
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;
    struct tag_state state;
    bool appended = false;

    if (tag[0] == '\0' || strlen(tag) >= META_TAG_BYTES)
        return err_set(err, ERR_LIMIT, "a tag of %zu bytes", strlen(tag));
    pack_hold_begin(st->packs, &hold);
    TRY(tag_state_read(st, repo, tag, d, &state, err));
    if (state.manifest.id == 0)
        return err_set(err, ERR_NOTFOUND, "manifest %s is not in the catalog", digest_text(d).s);
    TRY(tag_records(st, &state, tag, d, &appended, err));
    if (appended)
        TRY(pack_sync(st->packs, err));
    TRY(catalog_begin(st, &tx, err));
    TRY(repo_link_manifest(&tx, repo, state.manifest.id, err));
    TRY(tag_write(&tx, repo, tag, state.manifest.id, err));
    return catalog_commit(&tx, err);
}

int tag_delete(struct sql_db *db, int64_t repo, const char *tag, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, "DELETE FROM tag WHERE repo_id = ?1 AND name = ?2", err));
    sql_bind_int(&q, 1, repo);
    sql_bind_text(&q, 2, tag);
    return sql_run(&q, err);
}

int store_tag_drop(struct store *st, int64_t repo, const char *tag, struct err *err)
{
    CLEANUP(pack_hold_end) struct pack_hold hold = PACK_HOLD_INIT;
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;
    struct tag_state state;
    struct store_tag now;
    struct err none = ERR_INIT;

    if (store_tag_get(st, repo, tag, &now, &none) == ERR_NOTFOUND)
        return 0;
    pack_hold_begin(st->packs, &hold);
    TRY(tag_state_read(st, repo, tag, &now.digest, &state, err));
    TRY(tag_drop_record(st, &state.repo, tag, &now.digest, err));
    TRY(pack_sync(st->packs, err));
    TRY(catalog_begin(st, &tx, err));
    TRY(tag_delete(tx.db, repo, tag, err));
    return catalog_commit(&tx, err);
}

/* ---- views -------------------------------------------------------------------------------------------------------- */

static int read_view(struct sql_db *db, const struct digest *upstream, int view, struct digest *out, bool *out_found,
                     struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q,
                  "SELECT m.digest FROM manifest u JOIN view v ON v.upstream_id = u.id AND v.view = ?2"
                  " JOIN manifest m ON m.id = v.manifest_id WHERE u.digest = ?1",
                  err));
    sql_bind_digest(&q, 1, upstream);
    sql_bind_int(&q, 2, view);
    TRY(rc = sql_step(&q, err));
    *out_found = rc == SQL_ROW;
    return *out_found ? sql_digest(&q, 0, out, err) : 0;
}

int store_view_get(struct store *st, const struct digest *upstream, int view, struct digest *out_digest,
                   struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    bool found;

    TRY(catalog_read_begin(st, &db, err));
    TRY(read_view(db, upstream, view, out_digest, &found, err));
    return found ? 0 : err_set(err, ERR_NOTFOUND, "manifest %s has no view %d", digest_text(upstream).s, view);
}

struct view_state {
    struct manifest_row upstream, derived;
    bool is_current; /* the view is this digest already */
};

static int read_view_state(struct store *st, const struct digest *upstream, int view, const struct digest *derived,
                           struct view_state *out, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    struct digest now;
    bool found;

    TRY(catalog_read_begin(st, &db, err));
    TRY(manifest_need(db, upstream, &out->upstream, err));
    TRY(manifest_find(db, derived, &out->derived, err));
    TRY(read_view(db, upstream, view, &now, &found, err));
    out->is_current = found && digest_equal(&now, derived);
    return 0;
}

static int view_record(struct store *st, const struct digest *upstream, int view, const struct digest *derived,
                       struct err *err)
{
    CLEANUP(buf_release) struct buf b = BUF_INIT(META_RECORD_MAX_BYTES);
    struct record_view v = {.view = view, .derived = *derived};

    TRY(record_put_view(&b, &v, err));
    return record_append(st, PACK_VIEW, upstream, &b, err);
}

static int set_view(struct sql_db *db, int64_t upstream_id, int view, int64_t manifest_id, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q,
                  "INSERT INTO view (upstream_id, view, manifest_id) VALUES (?1, ?2, ?3)"
                  " ON CONFLICT (upstream_id, view) DO UPDATE SET manifest_id = excluded.manifest_id",
                  err));
    sql_bind_int(&q, 1, upstream_id);
    sql_bind_int(&q, 2, view);
    sql_bind_int(&q, 3, manifest_id);
    return sql_run(&q, err);
}

static int add_derived(struct sql_db *db, int64_t upstream_id, int view, int64_t manifest_id, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q,
                  "INSERT INTO derived (manifest_id, upstream_id, view) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
                  err));
    sql_bind_int(&q, 1, manifest_id);
    sql_bind_int(&q, 2, upstream_id);
    sql_bind_int(&q, 3, view);
    return sql_run(&q, err);
}

static int put_view_rows(struct store *st, int64_t upstream_id, const struct manifest_new *m, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;
    int64_t id = 0;
    bool changed;

    TRY(catalog_begin(st, &tx, err));
    TRY(manifest_insert(&tx, m, &id, &changed, err));
    TRY(set_view(tx.db, upstream_id, m->view, id, err));
    TRY(add_derived(tx.db, upstream_id, m->view, id, err));
    return catalog_commit(&tx, err);
}

int store_view_put(struct store *st, const struct digest *upstream, int view, const char *media_type, const char *body,
                   size_t len, struct digest *out_digest, struct err *err)
{
    CLEANUP(pack_hold_end) struct pack_hold hold = PACK_HOLD_INIT;
    struct manifest_new m = {.media_type = media_type, .view = view, .upstream = *upstream, .body = body, .len = len};
    struct view_state state;

    if (len == 0 || strlen(media_type) >= META_TYPE_BYTES || view <= 0)
        return err_set(err, ERR_LIMIT, "view %d of %s: empty, or its type is too long", view, digest_text(upstream).s);
    digest_of(body, len, &m.digest);
    *out_digest = m.digest;
    if (digest_equal(&m.digest, upstream))
        return store_view_put_same(st, upstream, view, err);
    pack_hold_begin(st->packs, &hold);
    TRY(read_view_state(st, upstream, view, &m.digest, &state, err));
    if (state.is_current)
        return 0;
    m.is_index = state.upstream.is_index;
    if (state.derived.id == 0)
        TRY(manifest_record(st, &m, NULL, 0, NULL, err));
    TRY(view_record(st, upstream, view, &m.digest, err));
    TRY(pack_sync(st->packs, err));
    return put_view_rows(st, state.upstream.id, &m, err);
}

int store_view_put_same(struct store *st, const struct digest *upstream, int view, struct err *err)
{
    CLEANUP(pack_hold_end) struct pack_hold hold = PACK_HOLD_INIT;
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;
    struct view_state state;

    pack_hold_begin(st->packs, &hold);
    TRY(read_view_state(st, upstream, view, upstream, &state, err));
    if (state.is_current)
        return 0;
    TRY(view_record(st, upstream, view, upstream, err));
    TRY(pack_sync(st->packs, err));
    TRY(catalog_begin(st, &tx, err));
    TRY(set_view(tx.db, state.upstream.id, view, state.upstream.id, err));
    return catalog_commit(&tx, err);
}

/* ---- notes of the background job ------------------------------------------------------------------------------------- */

static int update_views(struct sql_db *db, int64_t id, enum store_views views, const char *reason, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, "UPDATE manifest SET views = ?2, reason = ?3 WHERE id = ?1", err));
    sql_bind_int(&q, 1, id);
    sql_bind_int(&q, 2, views);
    sql_bind_text(&q, 3, views == VIEWS_NEVER ? reason : NULL);
    return sql_run(&q, err);
}

int store_manifest_set_views(struct store *st, const struct digest *d, enum store_views views, const char *reason,
                             struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;
    struct manifest_row row;

    TRY(catalog_begin(st, &tx, err));
    TRY(manifest_need(tx.db, d, &row, err));
    TRY(update_views(tx.db, row.id, views, reason, err));
    return catalog_commit(&tx, err);
}

static int update_signed(struct sql_db *db, int64_t id, bool is_signed, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, "UPDATE manifest SET signed = ?2 WHERE id = ?1", err));
    sql_bind_int(&q, 1, id);
    sql_bind_int(&q, 2, is_signed);
    return sql_run(&q, err);
}

int store_manifest_set_signed(struct store *st, const struct digest *d, bool is_signed, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;
    struct manifest_row row;

    TRY(catalog_begin(st, &tx, err));
    TRY(manifest_need(tx.db, d, &row, err));
    TRY(update_signed(tx.db, row.id, is_signed, err));
    return catalog_commit(&tx, err);
}

static int is_wanted(struct store *st, const struct digest *d, bool *out, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    struct manifest_row row;

    TRY(catalog_read_begin(st, &db, err));
    TRY(manifest_need(db, d, &row, err));
    *out = row.wanted;
    return 0;
}

static int update_wanted(struct sql_db *db, const struct digest *d, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, "UPDATE manifest SET wanted = 1 WHERE digest = ?1", err));
    sql_bind_digest(&q, 1, d);
    return sql_run(&q, err);
}

int store_manifest_want(struct store *st, const struct digest *d, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;
    bool wanted;

    TRY(is_wanted(st, d, &wanted, err));
    if (wanted) /* every pull asks; only the first one writes */
        return 0;
    TRY(catalog_begin(st, &tx, err));
    TRY(update_wanted(tx.db, d, err));
    return catalog_commit(&tx, err);
}
