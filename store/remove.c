/* SPDX-License-Identifier: Apache-2.0
 * store/remove.c - images that a person wants gone: the tag, its pin, and the bytes that nothing else tagged or pinned uses.
 *
 * The tag and the pin go in one transaction. Then each blob is looked at for itself: whoever pulls meanwhile, in this
 * repository or in another, may have made it part of a tagged image again, and then it stays.
 */
#include "store/pin_internal.h"

struct removal {
    struct store *st;
    struct pin_target target;
    struct pin_list pins;
    struct image_blobs blobs;
    struct store_remove_result result;
};

static void removal_release(struct removal *rm)
{
    pin_list_release(&rm->pins);
    image_blobs_release(&rm->blobs);
}

/* ---- who uses it -------------------------------------------------------------------------------------------------------- */

struct user {
    bool found;
    char text[700]; /* UPSTREAM/NAME:TAG */
};

static int read_user(struct sql_query *q, struct user *out, struct err *err)
{
    int rc;

    TRY(rc = sql_step(q, err));
    out->found = rc == SQL_ROW;
    if (out->found)
        (void)snprintf(out->text, sizeof(out->text), "%s/%s:%s", sql_text(q, 0), sql_text(q, 1), sql_text(q, 2));
    return 0;
}

/* From digests upward through everything that names them, to a tag. */
#define TAG_ABOVE(seed)                                                                                                \
    "WITH RECURSIVE above (digest) AS (" seed                                                                          \
    "  UNION SELECT m.digest FROM above CROSS JOIN manifest_ref x ON x.digest = above.digest"                          \
    "   CROSS JOIN manifest m ON m.id = x.manifest_id)"                                                                \
    " SELECT r.upstream, r.name, t.name FROM above CROSS JOIN manifest m ON m.digest = above.digest"                   \
    "  CROSS JOIN tag t ON t.manifest_id = m.id CROSS JOIN repo r ON r.id = t.repo_id LIMIT 1"

static int find_tag_above(struct sql_db *db, const struct digest *d, struct user *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, TAG_ABOVE("SELECT ?1"), err));
    sql_bind_digest(&q, 1, d);
    return read_user(&q, out, err);
}

/* Of all names that a canonical layer has. */
static int find_tag_above_layer(struct sql_db *db, int64_t canonical_id, struct user *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q,
                  TAG_ABOVE("SELECT digest FROM canonical WHERE id = ?1"
                            " UNION SELECT zdigest FROM canonical WHERE id = ?1 AND zdigest IS NOT NULL"
                            " UNION SELECT digest FROM blob WHERE canonical_id = ?1"),
                  err));
    sql_bind_int(&q, 1, canonical_id);
    return read_user(&q, out, err);
}

/* ---- what there is of a blob ---------------------------------------------------------------------------------------------- */

/* The forms of one blob that are to go. */
struct forms {
    bool original, layer;
    uint64_t original_bytes, layer_bytes;
    struct digest canonical;
    bool kept; /* a form that is there, but in use */
};

static int look_original(struct sql_db *db, const struct digest *d, struct forms *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct user user = {.found = false};
    bool pinned;
    int rc;

    TRY(sql_query(db, &q, "SELECT size, pinned > 0 FROM blob WHERE digest = ?1 AND original_present = 1", err));
    sql_bind_digest(&q, 1, d);
    TRY(rc = sql_step(&q, err));
    if (rc == SQL_END)
        return 0;
    out->original_bytes = room_round((uint64_t)sql_int(&q, 0));
    pinned = sql_int(&q, 1) != 0;
    TRY(find_tag_above(db, d, &user, err));
    out->original = !pinned && !user.found;
    out->kept |= !out->original;
    return 0;
}

struct layer_row {
    int64_t id; /* 0: none is stored */
    bool pinned;
};

static int find_layer(struct sql_db *db, const struct digest *d, struct layer_row *row, struct digest *out,
                      struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q,
                  "SELECT id, pinned, digest FROM canonical WHERE present = 1 AND id IN"
                  " (SELECT canonical_id FROM blob WHERE digest = ?1 UNION SELECT id FROM canonical WHERE digest = ?1"
                  "  UNION SELECT id FROM canonical WHERE zdigest = ?1) LIMIT 1",
                  err));
    sql_bind_digest(&q, 1, d);
    TRY(rc = sql_step(&q, err));
    if (rc == SQL_END)
        return 0;
    *row = (struct layer_row){.id = sql_int(&q, 0), .pinned = sql_int(&q, 1) != 0};
    return sql_digest(&q, 2, out, err);
}

/* Of the frames that no other layer uses. */
static int count_own_frames(struct sql_db *db, int64_t canonical_id, uint64_t *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q,
                  "SELECT coalesce(sum(k.len), 0) FROM"
                  " (SELECT chunk_id, count(*) AS n FROM recipe WHERE canonical_id = ?1 GROUP BY chunk_id) AS sub"
                  " CROSS JOIN chunk k ON k.id = sub.chunk_id WHERE k.refs = sub.n",
                  err));
    sql_bind_int(&q, 1, canonical_id);
    TRY(sql_step(&q, err));
    *out = (uint64_t)sql_int(&q, 0);
    return 0;
}

static int look_layer(struct sql_db *db, const struct digest *d, struct forms *out, struct err *err)
{
    struct layer_row row = {.id = 0};
    struct user user = {.found = false};

    TRY(find_layer(db, d, &row, &out->canonical, err));
    if (row.id == 0)
        return 0;
    TRY(find_tag_above_layer(db, row.id, &user, err));
    out->layer = !row.pinned && !user.found;
    out->kept |= !out->layer;
    return out->layer ? count_own_frames(db, row.id, &out->layer_bytes, err) : 0;
}

static int look_forms(struct store *st, const struct digest *d, struct forms *out, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    *out = (struct forms){.original = false};
    TRY(catalog_read_begin(st, &db, err));
    TRY(look_original(db, d, out, err));
    return look_layer(db, d, out, err);
}

/* ---- taking it away --------------------------------------------------------------------------------------------------------- */

/* out_busy: it is being read; neither: it went by itself. */
static int evict(struct store *st, enum lease_kind kind, const struct digest *d, bool *out_done, bool *out_busy,
                 struct err *err)
{
    struct err why = ERR_INIT;
    int rc = evict_form(st, kind, d, false, &why);

    *out_done = rc == 0;
    *out_busy |= rc == ERR_BUSY;
    if (rc == 0 || rc == ERR_BUSY || rc == ERR_NOTFOUND)
        return 0;
    *err = why;
    return rc;
}

static int remove_blob(struct removal *rm, const struct digest *d, struct err *err)
{
    struct store_remove_result *r = &rm->result;
    struct forms forms;
    bool busy = false;
    bool done = false;

    TRY(look_forms(rm->st, d, &forms, err));
    if (forms.original) {
        TRY(evict(rm->st, LEASE_ORIGINAL, d, &done, &busy, err));
        r->originals += done;
        r->freed_bytes += done ? forms.original_bytes : 0;
    }
    if (forms.layer) {
        TRY(evict(rm->st, LEASE_CANONICAL, &forms.canonical, &done, &busy, err));
        r->layers += done;
        r->freed_bytes += done ? forms.layer_bytes : 0;
    }
    r->busy += busy;
    r->shared += forms.kept;
    return 0;
}

/* Those that go with it: a digest alone stands for itself in all repositories. */
static int read_pins(struct sql_db *db, struct removal *rm, bool all, struct err *err)
{
    const struct pin_target *t = &rm->target;

    if (all)
        return pins_by_digest(db, &t->digest, &rm->pins, err);
    return t->pinned ? pin_find(db, t->repo, t->reference, &rm->pins, err) : 0;
}

static int look(struct removal *rm, int64_t repo, const char *tag, const struct digest *digest, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    struct user user = {.found = false};

    TRY(catalog_read_begin(rm->st, &db, err));
    TRY(pin_find_target(db, repo, tag, digest, &rm->target, err));
    if (tag == NULL)
        TRY(find_tag_above(db, &rm->target.digest, &user, err));
    if (user.found)
        return err_set(err, ERR_BUSY, "%s belongs to %s; remove that tag instead", digest_text(&rm->target.digest).s,
                       user.text);
    TRY(read_pins(db, rm, repo == 0, err));
    return image_blobs_read(db, &rm->target.digest, &rm->blobs, err);
}

static int write_rows(struct removal *rm, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;

    TRY(catalog_begin(rm->st, &tx, err));
    if (!rm->target.by_digest)
        TRY(tag_delete(tx.db, rm->target.repo, rm->target.reference, err));
    for (size_t i = 0; i < rm->pins.count; i++)
        TRY(pin_delete(tx.db, rm->pins.items[i].repo, rm->pins.items[i].reference, err));
    return catalog_commit(&tx, err);
}

static int drop_names(struct removal *rm, struct err *err)
{
    CLEANUP(pack_hold_end) struct pack_hold hold = PACK_HOLD_INIT;
    const struct pin_target *t = &rm->target;

    if (t->by_digest && rm->pins.count == 0)
        return 0;
    pack_hold_begin(rm->st->packs, &hold);
    if (!t->by_digest)
        TRY(tag_drop_record(rm->st, &t->name, t->reference, &t->digest, err));
    for (size_t i = 0; i < rm->pins.count; i++)
        TRY(pin_record(rm->st, &rm->pins.items[i], true, err));
    TRY(pack_sync(rm->st->packs, err));
    return write_rows(rm, err);
}

int store_remove(struct store *st, int64_t repo, const char *tag, const struct digest *digest,
                 struct store_remove_result *out, struct err *err)
{
    CLEANUP(removal_release) struct removal rm = {.st = st};

    *out = (struct store_remove_result){.unpinned = false};
    TRY(look(&rm, repo, tag, digest, err));
    TRY(drop_names(&rm, err));
    rm.result.digest = rm.target.digest;
    rm.result.unpinned = rm.pins.count > 0;
    for (size_t i = 0; i < rm.blobs.count; i++)
        TRY(remove_blob(&rm, &rm.blobs.items[i].digest, err));
    *out = rm.result;
    return 0;
}
