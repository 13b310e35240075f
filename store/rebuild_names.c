/* SPDX-License-Identifier: Apache-2.0
 * store/rebuild_names.c - manifests, repositories, tags, pins and views, from their records.
 *
 * The payloads are bytes from disk, and their checksums say only that they are what somebody wrote: each field meets the
 * limits that the store has for it.
 */
#include "store/layer_writer_internal.h"
#include "store/meta_internal.h"
#include "store/rebuild_internal.h"

#include <inttypes.h>

#define REFS_MAX 8192
#define REF_SIZE_MAX_BYTES (UINT64_C(1) << 50)
#define REASON_BYTES 512
#define NAME_BYTES 256

static int malformed(struct err *err)
{
    return err_set(err, ERR_CORRUPT, "it makes no sense");
}

/* With a NUL, if it has none and fits. */
static int copy_text(struct record_text t, char *out, size_t cap, bool may_be_empty, struct err *err)
{
    if (t.len >= cap || memchr(t.s, '\0', t.len) != NULL || (t.len == 0 && !may_be_empty))
        return malformed(err);
    memcpy(out, t.s, t.len);
    out[t.len] = '\0';
    return 0;
}

/* ---- rows that others point to ---------------------------------------------------------------------------------------- */

/* A size that is said later replaces one that was said before; originals have the last word. */
int rebuild_blob_row(struct rebuild *r, const struct digest *d, uint64_t size_bytes, int64_t *out_id, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(r->db, &q,
                  "INSERT INTO blob (digest, size, created, last_read) VALUES (?1, ?2, ?3, ?4)"
                  " ON CONFLICT (digest) DO UPDATE SET size = coalesce(excluded.size, size) RETURNING id",
                  err));
    sql_bind_digest(&q, 1, d);
    if (size_bytes == 0 || size_bytes > INT64_MAX)
        sql_bind_null(&q, 2);
    else
        sql_bind_int(&q, 2, (int64_t)size_bytes);
    sql_bind_int(&q, 3, r->now_s);
    sql_bind_int(&q, 4, r->now_ms);
    TRY(sql_step(&q, err));
    *out_id = sql_int(&q, 0);
    return sql_run(&q, err);
}

static int repo_row(struct rebuild *r, struct record_text upstream, struct record_text name, int64_t *out_id,
                    struct err *err)
{
    CLEANUP(sql_done) struct sql_query add = SQL_QUERY_INIT;
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    char up[NAME_BYTES], repo[NAME_BYTES];

    TRY(copy_text(upstream, up, sizeof(up), false, err));
    TRY(copy_text(name, repo, sizeof(repo), false, err));
    TRY(sql_query(r->db, &add, "INSERT INTO repo (upstream, name) VALUES (?1, ?2) ON CONFLICT DO NOTHING", err));
    sql_bind_text(&add, 1, up);
    sql_bind_text(&add, 2, repo);
    TRY(sql_run(&add, err));
    TRY(sql_query(r->db, &q, "SELECT id FROM repo WHERE upstream = ?1 AND name = ?2", err));
    sql_bind_text(&q, 1, up);
    sql_bind_text(&q, 2, repo);
    TRY(sql_step(&q, err));
    *out_id = sql_int(&q, 0);
    return 0;
}

/* ---- manifests ----------------------------------------------------------------------------------------------------------- */

static int check_manifest(const struct found *f, const struct record_manifest *m, char type[META_TYPE_BYTES],
                          char never[REASON_BYTES], struct err *err)
{
    struct digest got;

    TRY(copy_text(m->media_type, type, META_TYPE_BYTES, true, err));
    TRY(copy_text(m->never, never, REASON_BYTES, true, err));
    if (m->len == 0 || m->view < 0 || m->ref_count > REFS_MAX ||
        (m->view == 0 && !digest_equal(&m->upstream, &f->h.key)))
        return malformed(err);
    for (size_t i = 0; i < m->ref_count; i++) {
        struct store_ref ref;

        TRY(record_ref_at(m, i, &ref, err));
        if (ref.size_bytes > REF_SIZE_MAX_BYTES)
            return malformed(err);
    }
    digest_of(m->body, m->len, &got);
    return digest_equal(&got, &f->h.key) ? 0 : err_set(err, ERR_CORRUPT, "the bytes are not the manifest's");
}

static int put_refs(struct rebuild *r, int64_t id, const struct record_manifest *m, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(r->db, &q,
                  "INSERT INTO manifest_ref (manifest_id, pos, role, digest, size) VALUES (?1, ?2, ?3, ?4, ?5)"
                  " ON CONFLICT DO NOTHING",
                  err));
    for (size_t i = 0; i < m->ref_count; i++) {
        struct store_ref ref = {.role = REF_CONFIG};

        TRY(record_ref_at(m, i, &ref, err));
        sql_bind_int(&q, 1, id);
        sql_bind_int(&q, 2, (int64_t)i);
        sql_bind_int(&q, 3, ref.role);
        sql_bind_digest(&q, 4, &ref.digest);
        sql_bind_int(&q, 5, (int64_t)ref.size_bytes);
        TRY(sql_run(&q, err));
    }
    return 0;
}

static int set_never(struct rebuild *r, int64_t id, const char *reason, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(r->db, &q, "UPDATE manifest SET views = 2, reason = ?2 WHERE id = ?1", err));
    sql_bind_int(&q, 1, id);
    sql_bind_text(&q, 2, reason);
    return sql_run(&q, err);
}

int rebuild_manifest(struct rebuild *r, const struct found *f, struct err *err)
{
    struct catalog_tx tx = {.db = r->db}; /* for its rows only */
    struct record_manifest m;
    char type[META_TYPE_BYTES], never[REASON_BYTES];
    bool changed = false;
    int64_t id = 0;

    TRY(record_get_manifest(f->data, f->h.len, &m, err));
    TRY(check_manifest(f, &m, type, never, err));
    TRY(manifest_insert(&tx,
                        &(struct manifest_new){.digest = f->h.key,
                                               .media_type = type,
                                               .view = m.view,
                                               .upstream = m.upstream,
                                               .is_index = m.is_index,
                                               .body = m.body,
                                               .len = m.len},
                        &id, &changed, err));
    if (changed)
        TRY(put_refs(r, id, &m, err));
    return m.view == 0 && never[0] != '\0' ? set_never(r, id, never, err) : 0;
}

/* ---- repositories --------------------------------------------------------------------------------------------------------- */

int rebuild_repo_blob(struct rebuild *r, const struct found *f, struct err *err)
{
    struct catalog_tx tx = {.db = r->db};
    struct manifest_row manifest;
    struct record_link link;
    int64_t repo = 0, blob = 0;

    TRY(record_get_link(f->data, f->h.len, &link, err));
    TRY(repo_row(r, link.upstream, link.name, &repo, err));
    if (link.kind == RECORD_LINK_BLOB) {
        TRY(rebuild_blob_row(r, &f->h.key, link.size_bytes, &blob, err));
        return repo_link_blob(&tx, repo, blob, err);
    }
    TRY(manifest_find(r->db, &f->h.key, &manifest, err));
    return manifest.id != 0 ? repo_link_manifest(&tx, repo, manifest.id, err) : 0;
}

/* TAG and PIN have the same payload. */
static int see_reference(struct rebuild *r, const struct found *f, const char *sql, size_t cap, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct record_tag t;
    char name[DIGEST_TEXT_BYTES + META_TAG_BYTES];
    int64_t repo = 0;

    TRY(record_get_tag(f->data, f->h.len, &t, err));
    TRY(copy_text(t.tag, name, cap, false, err));
    TRY(repo_row(r, t.upstream, t.name, &repo, err));
    TRY(sql_query(r->db, &q, sql, err));
    sql_bind_int(&q, 1, repo);
    sql_bind_text(&q, 2, name);
    sql_bind_int(&q, 3, f->h.meta.origin_pack);
    sql_bind_int(&q, 4, (int64_t)f->h.meta.origin_off);
    sql_bind_int(&q, 5, t.dropped);
    sql_bind_digest(&q, 6, &f->h.key);
    sql_bind_int(&q, 7, t.at);
    return sql_run(&q, err);
}

#define SEE(table)                                                                                                     \
    "INSERT INTO temp." table " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (repo_id, name) DO UPDATE SET"         \
    " origin_pack = ?3, origin_off = ?4, gone = ?5, digest = ?6, at = ?7 WHERE (?3, ?4) >= (origin_pack, origin_off)"

int rebuild_tag(struct rebuild *r, const struct found *f, struct err *err)
{
    return see_reference(r, f, SEE("seen_tag"), META_TAG_BYTES, err);
}

int rebuild_pin(struct rebuild *r, const struct found *f, struct err *err)
{
    return see_reference(r, f, SEE("seen_pin"), META_TAG_BYTES, err);
}

/* ---- views ------------------------------------------------------------------------------------------------------------------ */

static int see_view(struct rebuild *r, const struct found *f, int64_t upstream_id, int view, int64_t manifest_id,
                    struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(r->db, &q,
                  "INSERT INTO temp.seen_view VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (upstream_id, view) DO UPDATE SET"
                  " origin_pack = ?3, origin_off = ?4, manifest_id = ?5"
                  " WHERE (?3, ?4) >= (origin_pack, origin_off)",
                  err));
    sql_bind_int(&q, 1, upstream_id);
    sql_bind_int(&q, 2, view);
    sql_bind_int(&q, 3, f->h.meta.origin_pack);
    sql_bind_int(&q, 4, (int64_t)f->h.meta.origin_off);
    sql_bind_int(&q, 5, manifest_id);
    return sql_run(&q, err);
}

static int add_derived(struct rebuild *r, int64_t upstream_id, int view, int64_t manifest_id, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(r->db, &q,
                  "INSERT INTO derived (manifest_id, upstream_id, view) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
                  err));
    sql_bind_int(&q, 1, manifest_id);
    sql_bind_int(&q, 2, upstream_id);
    sql_bind_int(&q, 3, view);
    return sql_run(&q, err);
}

int rebuild_view(struct rebuild *r, const struct found *f, struct err *err)
{
    struct manifest_row upstream, derived;
    struct record_view v = {.view = 0};

    TRY(record_get_view(f->data, f->h.len, &v, err));
    if (v.view <= 0)
        return malformed(err);
    TRY(manifest_find(r->db, &f->h.key, &upstream, err));
    TRY(manifest_find(r->db, &v.derived, &derived, err));
    if (upstream.id == 0 || derived.id == 0) /* its record is lost, and was told of; the view is made again */
        return 0;
    TRY(see_view(r, f, upstream.id, v.view, derived.id, err));
    return upstream.id != derived.id ? add_derived(r, upstream.id, v.view, derived.id, err) : 0;
}

/* ---- in the end -------------------------------------------------------------------------------------------------------------- */

static int tell_lost_tags(struct rebuild *r, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(r->db, &q,
                  "SELECT p.upstream, p.name, s.name FROM temp.seen_tag s JOIN repo p ON p.id = s.repo_id"
                  " WHERE s.gone = 0 AND NOT EXISTS (SELECT 1 FROM manifest m WHERE m.digest = s.digest)"
                  " ORDER BY 1, 2, 3",
                  err));
    while ((rc = sql_step(&q, err)) == SQL_ROW)
        rebuild_lost(r, "tag %s/%s:%s: its manifest is lost; the upstream will be asked again", sql_text(&q, 0),
                     sql_text(&q, 1), sql_text(&q, 2));
    return rc;
}

/* A pin of a tag follows the tag, and stays where the tag was last. */
static const char finish[] =
    "INSERT INTO tag (repo_id, name, manifest_id, checked_at, created)"
    "  SELECT s.repo_id, s.name, m.id, s.at, s.at FROM temp.seen_tag s JOIN manifest m ON m.digest = s.digest"
    "  WHERE s.gone = 0;"
    "INSERT INTO repo_manifest (repo_id, manifest_id) SELECT repo_id, manifest_id FROM tag WHERE true"
    "  ON CONFLICT DO NOTHING;"
    "INSERT INTO pin (repo_id, reference, by_digest, digest, created)"
    "  SELECT p.repo_id, p.name, instr(p.name, ':') > 0, coalesce((SELECT t.digest FROM temp.seen_tag t"
    "   WHERE t.repo_id = p.repo_id AND t.name = p.name"
    "   AND (t.origin_pack, t.origin_off) > (p.origin_pack, p.origin_off)), p.digest), p.at"
    "  FROM temp.seen_pin p WHERE p.gone = 0;"
    "INSERT INTO view (upstream_id, view, manifest_id) SELECT upstream_id, view, manifest_id FROM temp.seen_view;";

/* A layer whose zstd form was made anew has another one now, and views that name the one before are no good: the catalog
 * deletes such, and no record says so. body has hex digests of what it names. */
static int find_stale(struct rebuild *r, int64_t *out_canonical, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(r->db, &q,
                  "SELECT c.id FROM view v JOIN manifest m ON m.id = v.manifest_id"
                  " JOIN manifest_ref f ON f.manifest_id = v.upstream_id AND f.role = 2"
                  " JOIN blob b ON b.digest = f.digest JOIN canonical c ON c.id = b.canonical_id"
                  " WHERE v.view = 2 AND v.manifest_id <> v.upstream_id AND m.is_index = 0"
                  " AND instr(m.body, lower(hex(f.digest))) = 0"
                  " AND (c.zdigest IS NULL OR instr(m.body, lower(hex(c.zdigest))) = 0) LIMIT 1",
                  err));
    TRY(rc = sql_step(&q, err));
    *out_canonical = rc == SQL_ROW ? sql_int(&q, 0) : 0;
    return 0;
}

static int retire_stale(struct rebuild *r, struct err *err)
{
    int64_t canonical = 0;

    for (;;) {
        TRY(find_stale(r, &canonical, err));
        if (canonical == 0)
            return 0;
        TRY(store_retire_zstd(r->db, canonical, err));
    }
}

int rebuild_names(struct rebuild *r, struct err *err)
{
    TRY(sql_exec(r->db, "BEGIN", err));
    TRY(tell_lost_tags(r, err));
    TRY(sql_exec(r->db, finish, err));
    TRY(retire_stale(r, err));
    return sql_exec(r->db, "COMMIT", err);
}
