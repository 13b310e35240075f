/* SPDX-License-Identifier: Apache-2.0
 * store/compact_meta.c - which metadata records are still of use (FORMAT.md "What compaction keeps").
 *
 * The catalog is asked; nobody is between a record of this pack and its commit (pack_hold_begin()), so what the catalog does
 * not know never happened or is over. What cannot be read stays: a newer recask may know it.
 */
#include "store/compact_internal.h"
#include "store/meta.h"
#include "store/recipe.h"
#include "store/record_internal.h"

#define TEXT_BYTES 256

struct text {
    char s[TEXT_BYTES];
};

/* False: longer than any that recask writes. */
static bool get_text(const struct record_text *t, struct text *out)
{
    if (t->len >= sizeof(out->s))
        return false;
    memcpy(out->s, t->s, t->len);
    out->s[t->len] = '\0';
    return true;
}

/* The query's first row has its first column true. */
static int is_true(struct sql_query *q, bool *out, struct err *err)
{
    int rc = sql_step(q, err);

    if (rc < 0)
        return rc;
    *out = rc == SQL_ROW && sql_int(q, 0) != 0;
    return 0;
}

static int manifest_current(struct sql_db *db, const struct pack_header *r, const struct record_manifest *m, bool *out,
                            struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    /* One that was derived first and is an upstream's now has a record for each. */
    TRY(sql_query(db, &q, "SELECT view <> 0 OR ?2 = 0 FROM manifest WHERE digest = ?1", err));
    sql_bind_digest(&q, 1, &r->key);
    sql_bind_int(&q, 2, m->view);
    return is_true(&q, out, err);
}

/* A pin of the tag stands for the manifest that the tag had last, also when the tag is dropped. */
static int pin_needs(struct sql_db *db, const struct digest *d, const struct text *upstream, const struct text *name,
                     const struct text *tag, bool *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    *out = false;
    TRY(sql_query(db, &q,
                  "SELECT p.digest = ?4 FROM repo r JOIN pin p ON p.repo_id = r.id AND p.reference = ?3"
                  " WHERE r.upstream = ?1 AND r.name = ?2",
                  err));
    sql_bind_text(&q, 1, upstream->s);
    sql_bind_text(&q, 2, name->s);
    sql_bind_text(&q, 3, tag->s);
    sql_bind_digest(&q, 4, d);
    return is_true(&q, out, err);
}

static int tag_current(struct sql_db *db, const struct pack_header *r, const struct record_tag *t, bool *out,
                       struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct text upstream, name, tag;
    struct digest now;
    int rc;

    if (!get_text(&t->upstream, &upstream) || !get_text(&t->name, &name) || !get_text(&t->tag, &tag))
        return 0;
    TRY(sql_query(db, &q,
                  "SELECT m.digest FROM repo r JOIN tag t ON t.repo_id = r.id AND t.name = ?3"
                  " JOIN manifest m ON m.id = t.manifest_id WHERE r.upstream = ?1 AND r.name = ?2",
                  err));
    sql_bind_text(&q, 1, upstream.s);
    sql_bind_text(&q, 2, name.s);
    sql_bind_text(&q, 3, tag.s);
    TRY(rc = sql_step(&q, err));
    *out = t->dropped && rc == SQL_END;
    if (t->dropped)
        return 0;
    if (rc == SQL_ROW) {
        TRY(sql_digest(&q, 0, &now, err));
        *out = digest_equal(&now, &r->key);
    }
    return *out ? 0 : pin_needs(db, &r->key, &upstream, &name, &tag, out, err);
}

static int link_current(struct sql_db *db, const struct pack_header *r, const struct record_link *l, bool *out,
                        struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct text upstream, name;

    if (!get_text(&l->upstream, &upstream) || !get_text(&l->name, &name))
        return 0;
    if (l->kind == RECORD_LINK_BLOB)
        TRY(sql_query(db, &q,
                      "SELECT 1 FROM repo r JOIN blob b ON b.digest = ?1"
                      " JOIN repo_blob rb ON rb.repo_id = r.id AND rb.blob_id = b.id"
                      " WHERE r.upstream = ?2 AND r.name = ?3",
                      err));
    else
        TRY(sql_query(db, &q,
                      "SELECT 1 FROM repo r JOIN manifest m ON m.digest = ?1"
                      " JOIN repo_manifest rm ON rm.repo_id = r.id AND rm.manifest_id = m.id"
                      " WHERE r.upstream = ?2 AND r.name = ?3",
                      err));
    sql_bind_digest(&q, 1, &r->key);
    sql_bind_text(&q, 2, upstream.s);
    sql_bind_text(&q, 3, name.s);
    return is_true(&q, out, err);
}

static int blob_current(struct sql_db *db, const struct pack_header *r, const struct recipe_link *l, bool *out,
                        struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(
        db, &q, "SELECT c.digest = ?2 FROM blob b JOIN canonical c ON c.id = b.canonical_id WHERE b.digest = ?1", err));
    sql_bind_digest(&q, 1, &r->key);
    sql_bind_digest(&q, 2, &l->canonical);
    return is_true(&q, out, err);
}

static int view_current(struct sql_db *db, const struct pack_header *r, const struct record_view *v, bool *out,
                        struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q,
                  "SELECT EXISTS (SELECT 1 FROM view WHERE upstream_id = u.id AND view = ?2 AND manifest_id = m.id)"
                  " OR EXISTS (SELECT 1 FROM derived WHERE manifest_id = m.id AND upstream_id = u.id AND view = ?2)"
                  " FROM manifest u JOIN manifest m ON m.digest = ?3 WHERE u.digest = ?1",
                  err));
    sql_bind_digest(&q, 1, &r->key);
    sql_bind_int(&q, 2, v->view);
    sql_bind_digest(&q, 3, &v->derived);
    return is_true(&q, out, err);
}

/* Only the zstd form that is on record now counts; what was published before it is gone (store_retire_zstd()). */
static int decide_layer(struct sql_db *db, const struct pack_header *r, const struct digest *zstd,
                        enum compact_keep *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    bool present;
    int rc;

    *out = COMPACT_DROP;
    TRY(sql_query(db, &q, "SELECT present FROM canonical WHERE digest = ?1 AND zdigest = ?2", err));
    sql_bind_digest(&q, 1, &r->key);
    sql_bind_digest(&q, 2, zstd);
    TRY(rc = sql_step(&q, err));
    if (rc == SQL_END)
        return 0;
    present = sql_int(&q, 0) != 0;
    if (r->type == PACK_RECIPE)
        *out = present ? COMPACT_KEEP : COMPACT_SHORTEN;
    else if (!present) /* a present one has a recipe, which says more */
        *out = COMPACT_KEEP;
    return 0;
}

/* *current stays as it is where the record is not of this form. */
static int decide(struct sql_db *db, const struct pack_header *r, const uint8_t *data, bool *current, struct err *err)
{
    struct err ignored = ERR_INIT;
    struct record_manifest manifest;
    struct record_link link;
    struct record_tag tag;
    struct record_view view;
    struct recipe_link blob;

    switch (r->type) {
    case PACK_MANIFEST:
        return record_get_manifest(data, r->len, &manifest, &ignored) < 0
                   ? 0
                   : manifest_current(db, r, &manifest, current, err);
    case PACK_TAG:
        return record_get_tag(data, r->len, &tag, &ignored) < 0 ? 0 : tag_current(db, r, &tag, current, err);
    case PACK_REPO_BLOB:
        return record_get_link(data, r->len, &link, &ignored) < 0 ? 0 : link_current(db, r, &link, current, err);
    case PACK_BLOB:
        return recipe_link_parse(data, r->len, &blob, &ignored) < 0 ? 0 : blob_current(db, r, &blob, current, err);
    case PACK_VIEW:
        return record_get_view(data, r->len, &view, &ignored) < 0 ? 0 : view_current(db, r, &view, current, err);
    case PACK_FRAME:
    case PACK_RECIPE:
    case PACK_PIN:
    case PACK_LAYER:
        break;
    }
    return 0;
}

int compact_decide(struct sql_db *db, const struct pack_header *r, const uint8_t *payload, enum compact_keep *out,
                   struct err *err)
{
    struct err ignored = ERR_INIT;
    struct recipe_head head;
    bool current = true;

    if ((r->type == PACK_RECIPE && recipe_parse(payload, r->len, &head, &ignored) == 0) ||
        (r->type == PACK_LAYER && recipe_layer_parse(payload, r->len, &head, &ignored) == 0))
        return decide_layer(db, r, &head.zstd, out, err);
    TRY(decide(db, r, payload, &current, err));
    *out = current ? COMPACT_KEEP : COMPACT_DROP;
    return 0;
}
