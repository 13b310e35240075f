/* SPDX-License-Identifier: Apache-2.0
 * store/meta.c - manifests: rows that are written once and live for ever (S4).
 *
 * Every change: look what is there (a snapshot), append the records that are new and sync, then one transaction with
 * all rows (S3, case 101). What another thread changes in between costs a record too many, never a wrong row.
 */
#include "store/meta_internal.h"

#include "base/clock.h"

#include <inttypes.h>

/* Sums over a manifest's sizes stay within 63 bits: REFS_MAX * SIZE_MAX_BYTES. */
#define REFS_MAX 8192
#define REF_SIZE_MAX_BYTES (UINT64_C(1) << 50)

/* ---- rows --------------------------------------------------------------------------------------------------------- */

int manifest_find(struct sql_db *db, const struct digest *d, struct manifest_row *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    *out = (struct manifest_row){.id = 0};
    TRY(sql_query(db, &q, "SELECT id, view, is_index, views, wanted FROM manifest WHERE digest = ?1", err));
    sql_bind_digest(&q, 1, d);
    TRY(rc = sql_step(&q, err));
    if (rc == SQL_ROW)
        *out = (struct manifest_row){.id = sql_int(&q, 0),
                                     .view = (int)sql_int(&q, 1),
                                     .is_index = sql_int(&q, 2) != 0,
                                     .views = (enum store_views)sql_int(&q, 3),
                                     .wanted = sql_int(&q, 4) != 0};
    return 0;
}

int manifest_need(struct sql_db *db, const struct digest *d, struct manifest_row *out, struct err *err)
{
    TRY(manifest_find(db, d, out, err));
    return out->id != 0 ? 0 : err_set(err, ERR_NOTFOUND, "manifest %s is not in the catalog", digest_text(d).s);
}

int manifest_insert(struct catalog_tx *tx, const struct manifest_new *m, int64_t *out_id, bool *out_changed,
                    struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct manifest_row row;

    TRY(sql_query(tx->db, &q,
                  "INSERT INTO manifest (digest, media_type, view, upstream, is_index, created, body)"
                  " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"
                  " ON CONFLICT (digest) DO UPDATE SET view = 0, upstream = excluded.upstream,"
                  "  media_type = excluded.media_type, is_index = excluded.is_index"
                  "  WHERE view <> 0 AND excluded.view = 0",
                  err));
    sql_bind_digest(&q, 1, &m->digest);
    sql_bind_text(&q, 2, m->media_type);
    sql_bind_int(&q, 3, m->view);
    sql_bind_digest(&q, 4, &m->upstream);
    sql_bind_int(&q, 5, m->is_index);
    sql_bind_int(&q, 6, clock_wall_s());
    sql_bind_blob(&q, 7, m->body, m->len);
    TRY(sql_run(&q, err));
    *out_changed = sql_changes(tx->db) > 0;
    TRY(manifest_need(tx->db, &m->digest, &row, err));
    *out_id = row.id;
    return 0;
}

int manifest_record(struct store *st, const struct manifest_new *m, const struct store_ref *refs, size_t ref_count,
                    const char *never, struct err *err)
{
    CLEANUP(buf_release) struct buf b = BUF_INIT(META_RECORD_MAX_BYTES);
    struct record_manifest r = {.is_index = m->is_index,
                                .view = m->view,
                                .upstream = m->upstream,
                                .media_type = record_text(m->media_type),
                                .never = record_text(never),
                                .refs = refs,
                                .ref_count = ref_count,
                                .body = m->body,
                                .len = m->len};

    TRY(record_put_manifest(&b, &r, err));
    return record_append(st, PACK_MANIFEST, &m->digest, &b, err);
}

/* ---- put ---------------------------------------------------------------------------------------------------------- */

static int check_put(const struct store_manifest_put *p, struct err *err)
{
    struct digest got;

    if (p->len == 0 || strlen(p->media_type) >= META_TYPE_BYTES ||
        (p->tag != NULL && (p->tag[0] == '\0' || strlen(p->tag) >= META_TAG_BYTES)))
        return err_set(err, ERR_LIMIT, "manifest %s: empty, or its type or tag is too long", digest_text(&p->digest).s);
    if (p->ref_count > REFS_MAX)
        return err_set(err, ERR_LIMIT, "manifest %s names %zu blobs", digest_text(&p->digest).s, p->ref_count);
    for (size_t i = 0; i < p->ref_count; i++)
        if (p->refs[i].size_bytes > REF_SIZE_MAX_BYTES)
            return err_set(err, ERR_LIMIT, "manifest %s names a blob of %" PRIu64 " bytes", digest_text(&p->digest).s,
                           p->refs[i].size_bytes);
    digest_of(p->body, p->len, &got);
    if (!digest_equal(&got, &p->digest))
        return err_set(err, ERR_CORRUPT, "manifest %s: the bytes hash to %s", digest_text(&p->digest).s,
                       digest_text(&got).s);
    return 0;
}

static int put_refs(struct catalog_tx *tx, int64_t manifest_id, const struct store_manifest_put *p, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(tx->db, &q,
                  "INSERT INTO manifest_ref (manifest_id, pos, role, digest, size) VALUES (?1, ?2, ?3, ?4, ?5)"
                  " ON CONFLICT DO NOTHING",
                  err));
    for (size_t i = 0; i < p->ref_count; i++) {
        sql_bind_int(&q, 1, manifest_id);
        sql_bind_int(&q, 2, (int64_t)i);
        sql_bind_int(&q, 3, p->refs[i].role);
        sql_bind_digest(&q, 4, &p->refs[i].digest);
        sql_bind_int(&q, 5, (int64_t)p->refs[i].size_bytes);
        TRY(sql_run(&q, err));
    }
    return 0;
}

static int set_never(struct sql_db *db, int64_t id, const char *reason, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    /* Views that were published stay (sticky). */
    TRY(sql_query(db, &q, "UPDATE manifest SET views = 2, reason = ?2 WHERE id = ?1 AND views = 0", err));
    sql_bind_int(&q, 1, id);
    sql_bind_text(&q, 2, reason);
    return sql_run(&q, err);
}

static int put_rows(struct store *st, const struct store_manifest_put *p, const struct manifest_new *m, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;
    int64_t id = 0;
    bool changed = false;

    TRY(catalog_begin(st, &tx, err));
    TRY(manifest_insert(&tx, m, &id, &changed, err));
    if (changed)
        TRY(put_refs(&tx, id, p, err));
    if (p->never != NULL)
        TRY(set_never(tx.db, id, p->never, err));
    TRY(repo_link_manifest(&tx, p->repo, id, err));
    if (p->tag != NULL)
        TRY(tag_write(&tx, p->repo, p->tag, id, err));
    return catalog_commit(&tx, err);
}

int store_manifest_put(struct store *st, const struct store_manifest_put *p, struct err *err)
{
    CLEANUP(pack_hold_end) struct pack_hold hold = PACK_HOLD_INIT;
    struct manifest_new m = {.digest = p->digest,
                             .media_type = p->media_type,
                             .view = 0,
                             .upstream = p->digest,
                             .is_index = p->is_index,
                             .body = p->body,
                             .len = p->len};
    struct tag_state state;
    bool appended = false;
    bool known;

    TRY(check_put(p, err));
    pack_hold_begin(st->packs, &hold);
    TRY(tag_state_read(st, p->repo, p->tag, &p->digest, &state, err));
    known = state.manifest.id != 0 && state.manifest.view == 0;
    if (!known)
        TRY(manifest_record(st, &m, p->refs, p->ref_count, p->never, err));
    TRY(tag_records(st, &state, p->tag, &p->digest, &appended, err));
    if (!known || appended)
        TRY(pack_sync(st->packs, err));
    else if (p->tag == NULL && (p->never == NULL || state.manifest.views != VIEWS_UNKNOWN))
        return 0; /* nothing new */
    return put_rows(st, p, &m, err);
}

/* ---- get ---------------------------------------------------------------------------------------------------------- */

static int read_manifest(struct sql_db *db, const struct digest *d, struct store_manifest *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    const void *body;
    int rc;

    TRY(sql_query(db, &q,
                  "SELECT media_type, view, upstream, is_index, views, signed, body FROM manifest WHERE digest = ?1",
                  err));
    sql_bind_digest(&q, 1, d);
    TRY(rc = sql_step(&q, err));
    if (rc == SQL_END)
        return err_set(err, ERR_NOTFOUND, "manifest %s is not in the catalog", digest_text(d).s);
    out->digest = *d;
    (void)snprintf(out->media_type, sizeof(out->media_type), "%s", sql_text(&q, 0));
    out->view = (int)sql_int(&q, 1);
    TRY(sql_digest(&q, 2, &out->upstream, err));
    out->is_index = sql_int(&q, 3) != 0;
    out->views = (enum store_views)sql_int(&q, 4);
    out->is_signed = sql_is_null(&q, 5) ? -1 : (int)sql_int(&q, 5);
    body = sql_blob(&q, 6, &out->len);
    out->body = malloc(out->len + 1);
    if (out->body == NULL)
        return err_nomem(err, out->len + 1);
    if (out->len > 0)
        memcpy(out->body, body, out->len);
    out->body[out->len] = '\0'; /* for parsers; not counted */
    return 0;
}

int store_manifest_get(struct store *st, const struct digest *d, struct store_manifest *out, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    struct digest got;

    *out = (struct store_manifest){.len = 0};
    TRY(catalog_read_begin(st, &db, err));
    TRY(read_manifest(db, d, out, err));
    catalog_read_end(&db);
    /* Small enough to hash each time: the catalog's pages have no checksum of their own (S6). */
    digest_of(out->body, out->len, &got);
    if (!digest_equal(&got, d)) {
        store_manifest_release(out);
        return err_set(err, ERR_CORRUPT, "manifest %s: its bytes in the catalog are damaged", digest_text(d).s);
    }
    return 0;
}

void store_manifest_release(struct store_manifest *m)
{
    free(m->body);
    m->body = NULL;
    m->len = 0;
}

static int repo_has(struct sql_db *db, int64_t repo, const struct digest *d, bool *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    /* A derived manifest may come from several upstream ones: one of them in this repository is enough. */
    TRY(sql_query(db, &q,
                  "SELECT EXISTS (SELECT 1 FROM manifest m JOIN repo_manifest rm ON rm.repo_id = ?1"
                  "   AND rm.manifest_id = m.id WHERE m.digest = ?2)"
                  " OR EXISTS (SELECT 1 FROM manifest m JOIN derived d ON d.manifest_id = m.id"
                  "   JOIN repo_manifest rm ON rm.repo_id = ?1 AND rm.manifest_id = d.upstream_id WHERE m.digest = ?2)",
                  err));
    sql_bind_int(&q, 1, repo);
    sql_bind_digest(&q, 2, d);
    TRY(sql_step(&q, err));
    *out = sql_int(&q, 0) != 0;
    return 0;
}

int store_repo_has_manifest(struct store *st, int64_t repo, const struct digest *d, bool *out, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(st, &db, err));
    return repo_has(db, repo, d, out, err);
}

static int is_config(struct sql_db *db, const struct digest *d, bool *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, "SELECT EXISTS (SELECT 1 FROM manifest_ref WHERE digest = ?1 AND role = 1)", err));
    sql_bind_digest(&q, 1, d);
    TRY(sql_step(&q, err));
    *out = sql_int(&q, 0) != 0;
    return 0;
}

int store_is_config(struct store *st, const struct digest *d, bool *out, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(st, &db, err));
    return is_config(db, d, out, err);
}

/* ---- lists -------------------------------------------------------------------------------------------------------- */

/* Doubles *items (of `size` bytes each) when it is full. */
static int make_room(void **items, size_t count, size_t *cap, size_t size, struct err *err)
{
    size_t want = *cap == 0 ? 16 : *cap * 2;
    void *more;

    if (count < *cap)
        return 0;
    more = realloc(*items, want * size);
    if (more == NULL)
        return err_nomem(err, want * size);
    *items = more;
    *cap = want;
    return 0;
}

static int list_refs(struct sql_db *db, const struct digest *d, void **items, size_t *out_count, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    size_t cap = 0;
    int rc;

    TRY(sql_query(db, &q,
                  "SELECT r.role, r.digest, r.size FROM manifest m JOIN manifest_ref r ON r.manifest_id = m.id"
                  " WHERE m.digest = ?1 ORDER BY r.pos",
                  err));
    sql_bind_digest(&q, 1, d);
    while ((rc = sql_step(&q, err)) == SQL_ROW) {
        struct store_ref *ref;

        TRY(make_room(items, *out_count, &cap, sizeof(*ref), err));
        ref = &((struct store_ref *)*items)[*out_count];
        ref->role = (enum store_ref_role)sql_int(&q, 0);
        TRY(sql_digest(&q, 1, &ref->digest, err));
        ref->size_bytes = (uint64_t)sql_int(&q, 2);
        ++*out_count;
    }
    return rc;
}

int store_manifest_refs(struct store *st, const struct digest *d, struct store_ref **out, size_t *out_count,
                        struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    CLEANUP(free_ptr) void *items = NULL;

    *out = NULL;
    *out_count = 0;
    TRY(catalog_read_begin(st, &db, err));
    TRY(list_refs(db, d, &items, out_count, err));
    *out = steal(&items);
    return 0;
}

int store_images_of_layer(struct store *st, int64_t repo, const struct digest *d, struct digest *out, size_t max,
                          size_t *out_count, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    *out_count = 0;
    TRY(catalog_read_begin(st, &db, err));
    TRY(sql_query(db, &q,
                  "SELECT DISTINCT m.digest FROM manifest_ref r JOIN manifest m ON m.id = r.manifest_id"
                  " JOIN repo_manifest rm ON rm.manifest_id = m.id AND rm.repo_id = ?2"
                  " WHERE r.digest = ?1 AND r.role = 2 AND m.view = 0 AND m.views = 0 LIMIT ?3",
                  err));
    sql_bind_digest(&q, 1, d);
    sql_bind_int(&q, 2, repo);
    sql_bind_int(&q, 3, (int64_t)max);
    while ((rc = sql_step(&q, err)) == SQL_ROW) {
        TRY(sql_digest(&q, 0, &out[*out_count], err));
        ++*out_count;
    }
    return rc;
}

static int list_parents(struct sql_db *db, const struct digest *child, void **items, size_t *out_count, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    size_t cap = 0;
    int rc;

    TRY(sql_query(db, &q,
                  "SELECT DISTINCT m.digest FROM manifest_ref r JOIN manifest m ON m.id = r.manifest_id"
                  " WHERE r.digest = ?1 AND r.role = 3",
                  err));
    sql_bind_digest(&q, 1, child);
    while ((rc = sql_step(&q, err)) == SQL_ROW) {
        TRY(make_room(items, *out_count, &cap, sizeof(struct digest), err));
        TRY(sql_digest(&q, 0, &((struct digest *)*items)[*out_count], err));
        ++*out_count;
    }
    return rc;
}

int store_manifest_parents(struct store *st, const struct digest *child, struct digest **out, size_t *out_count,
                           struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    CLEANUP(free_ptr) void *items = NULL;

    *out = NULL;
    *out_count = 0;
    TRY(catalog_read_begin(st, &db, err));
    TRY(list_parents(db, child, &items, out_count, err));
    *out = steal(&items);
    return 0;
}
