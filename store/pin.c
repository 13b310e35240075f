/* SPDX-License-Identifier: Apache-2.0
 * store/pin.c - pins: rows of `pin`, and what they lead to.
 *
 * What follows from a pin is the catalog's own business (schema.c), so it is right whoever comes first: the pin, the tag's
 * new manifest, an index's late child, a blob or its canonical layer. A pin of a tag has the digest of the tag's manifest in
 * its row: when the tag is dropped because the upstream has deleted it, the image stays pinned as it was.
 */
#include "store/pin_internal.h"

#include "base/clock.h"
#include "base/log.h"

#include <inttypes.h>

#define BLOBS_MAX (1u << 20) /* of one image, all platforms */
#define PINS_PAGE 32
#define WARN_EVERY_MS (INT64_C(10) * 60 * 1000)
#define WARN_PART 2 /* of the quota, at least, is pinned: else it is readers who hold the rest */

/* ---- rows ------------------------------------------------------------------------------------------------------------ */

static int read_exists(struct sql_query *q, bool *out, struct err *err)
{
    int rc;

    TRY(rc = sql_step(q, err));
    *out = rc == SQL_ROW;
    return 0;
}

static int is_pin(struct sql_db *db, int64_t repo, const char *reference, bool *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, "SELECT 1 FROM pin WHERE repo_id = ?1 AND reference = ?2", err));
    sql_bind_int(&q, 1, repo);
    sql_bind_text(&q, 2, reference);
    return read_exists(&q, out, err);
}

int pin_write(struct sql_db *db, int64_t repo, const char *reference, bool by_digest, const struct digest *digest,
              int64_t created, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q,
                  "INSERT INTO pin (repo_id, reference, by_digest, digest, created) VALUES (?1, ?2, ?3, ?4, ?5)"
                  " ON CONFLICT DO NOTHING",
                  err));
    sql_bind_int(&q, 1, repo);
    sql_bind_text(&q, 2, reference);
    sql_bind_int(&q, 3, by_digest);
    sql_bind_digest(&q, 4, digest);
    sql_bind_int(&q, 5, created);
    return sql_run(&q, err);
}

int pin_delete(struct sql_db *db, int64_t repo, const char *reference, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, "DELETE FROM pin WHERE repo_id = ?1 AND reference = ?2", err));
    sql_bind_int(&q, 1, repo);
    sql_bind_text(&q, 2, reference);
    return sql_run(&q, err);
}

int pin_record(struct store *st, const struct pin_target *t, bool gone, struct err *err)
{
    CLEANUP(buf_release) struct buf b = BUF_INIT(META_RECORD_MAX_BYTES);
    struct record_tag r = {.dropped = gone,
                           .at = clock_wall_s(),
                           .upstream = record_text(t->name.upstream),
                           .name = record_text(t->name.name),
                           .tag = record_text(t->reference)};

    TRY(record_put_tag(&b, &r, err));
    return record_append(st, PACK_PIN, &t->digest, &b, err);
}

/* ---- what a reference stands for -------------------------------------------------------------------------------------- */

static int find_tag(struct sql_db *db, int64_t repo, const char *tag, struct digest *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(
        db, &q,
        "SELECT m.digest FROM tag t JOIN manifest m ON m.id = t.manifest_id WHERE t.repo_id = ?1 AND t.name = ?2",
        err));
    sql_bind_int(&q, 1, repo);
    sql_bind_text(&q, 2, tag);
    TRY(rc = sql_step(&q, err));
    return rc == SQL_ROW ? sql_digest(&q, 0, out, err)
                         : err_set(err, ERR_NOTFOUND, "tag %.128s is not in the catalog", tag);
}

/* The upstream's manifest behind one, which may be derived from it. */
static int find_upstream(struct sql_db *db, const struct digest *d, struct digest *out, int64_t *out_id,
                         struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q,
                  "SELECT u.id, u.digest FROM manifest m JOIN manifest u ON u.digest = m.upstream"
                  " WHERE m.digest = ?1",
                  err));
    sql_bind_digest(&q, 1, d);
    TRY(rc = sql_step(&q, err));
    if (rc == SQL_END)
        return err_set(err, ERR_NOTFOUND, "manifest %s is not in the catalog", digest_text(d).s);
    *out_id = sql_int(&q, 0);
    return sql_digest(&q, 1, out, err);
}

/* repo: 0 for any. */
static int find_repo(struct sql_db *db, int64_t manifest_id, int64_t repo, int64_t *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q,
                  "SELECT repo_id FROM repo_manifest WHERE manifest_id = ?1 AND (?2 = 0 OR repo_id = ?2)"
                  " ORDER BY repo_id LIMIT 1",
                  err));
    sql_bind_int(&q, 1, manifest_id);
    sql_bind_int(&q, 2, repo);
    TRY(rc = sql_step(&q, err));
    *out = rc == SQL_ROW ? sql_int(&q, 0) : 0;
    return 0;
}

static int find_by_digest(struct sql_db *db, int64_t repo, const struct digest *d, struct pin_target *out,
                          struct err *err)
{
    int64_t id = 0;

    TRY(find_upstream(db, d, &out->digest, &id, err));
    TRY(find_repo(db, id, repo, &out->repo, err));
    if (out->repo == 0)
        return err_set(err, ERR_NOTFOUND, "manifest %s is not known to be in that repository",
                       digest_text(&out->digest).s);
    (void)snprintf(out->reference, sizeof(out->reference), "%s", digest_text(&out->digest).s);
    return 0;
}

int pin_find_target(struct sql_db *db, int64_t repo, const char *tag, const struct digest *digest,
                    struct pin_target *out, struct err *err)
{
    *out = (struct pin_target){.repo = repo, .by_digest = tag == NULL};
    if (tag == NULL) {
        TRY(find_by_digest(db, repo, digest, out, err));
    } else {
        TRY(find_tag(db, repo, tag, &out->digest, err));
        (void)snprintf(out->reference, sizeof(out->reference), "%s", tag);
    }
    TRY(repo_get(db, out->repo, &out->name, err));
    return is_pin(db, out->repo, out->reference, &out->pinned, err);
}

static int look_target(struct store *st, int64_t repo, const char *tag, const struct digest *digest,
                       struct pin_target *out, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(st, &db, err));
    return pin_find_target(db, repo, tag, digest, out, err);
}

/* ---- what it leads to --------------------------------------------------------------------------------------------------- */

/* Doubles *items (of `size` bytes each) when it is full. */
static int grow(void **items, size_t count, size_t *cap, size_t size, struct err *err)
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

void image_blobs_release(struct image_blobs *list)
{
    free(list->items);
    *list = (struct image_blobs){.count = 0};
}

static int add_blob(struct sql_query *q, struct image_blobs *list, struct err *err)
{
    void *items = list->items;
    int rc;

    if (list->count == BLOBS_MAX)
        return err_set(err, ERR_LIMIT, "an image of more than %u blobs", BLOBS_MAX);
    rc = grow(&items, list->count, &list->cap, sizeof(*list->items), err);
    list->items = items;
    TRY(rc);
    TRY(sql_digest(q, 0, &list->items[list->count].digest, err));
    list->items[list->count++].size_bytes = (uint64_t)sql_int(q, 2);
    return 0;
}

int image_blobs_read(struct sql_db *db, const struct digest *manifest, struct image_blobs *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    *out = (struct image_blobs){.count = 0};
    TRY(sql_query(db, &q,
                  "WITH RECURSIVE reach (digest, child, size) AS ("
                  "  SELECT ?1, 1, 0"
                  "  UNION SELECT r.digest, r.role = 3, r.size FROM reach"
                  "   CROSS JOIN manifest m ON m.digest = reach.digest AND reach.child"
                  "   CROSS JOIN manifest_ref r ON r.manifest_id = m.id)"
                  " SELECT digest, child, max(size), child AND NOT EXISTS"
                  "  (SELECT 1 FROM manifest WHERE digest = reach.digest) FROM reach GROUP BY digest, child",
                  err));
    sql_bind_digest(&q, 1, manifest);
    while ((rc = sql_step(&q, err)) == SQL_ROW) {
        out->unknown += sql_int(&q, 3) != 0;
        if (sql_int(&q, 1) == 0)
            TRY(add_blob(&q, out, err));
    }
    return rc;
}

/* Whether the form that its pin wants is here; without a pin, any. */
static int is_here(struct sql_db *db, const struct digest *d, bool *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q,
                  "SELECT EXISTS (SELECT 1 FROM blob WHERE digest = ?1 AND original_present = 1)"
                  " OR EXISTS (SELECT 1 FROM canonical WHERE digest = ?1 AND present = 1)"
                  " OR EXISTS (SELECT 1 FROM canonical WHERE zdigest = ?1 AND present = 1)"
                  " OR EXISTS (SELECT 1 FROM blob b JOIN canonical c ON c.id = b.canonical_id"
                  "   WHERE b.digest = ?1 AND b.pinned < 2 AND c.present = 1)",
                  err));
    sql_bind_digest(&q, 1, d);
    TRY(sql_step(&q, err));
    *out = sql_int(&q, 0) != 0;
    return 0;
}

static int survey(struct sql_db *db, const struct digest *manifest, struct store_pin_result *out, struct err *err)
{
    CLEANUP(image_blobs_release) struct image_blobs list = {.count = 0};

    out->digest = *manifest;
    TRY(image_blobs_read(db, manifest, &list, err));
    out->blobs = list.count;
    out->unknown = list.unknown;
    for (size_t i = 0; i < list.count; i++) {
        bool here = false;

        out->bytes += list.items[i].size_bytes;
        TRY(is_here(db, &list.items[i].digest, &here, err));
        out->missing += !here;
    }
    return 0;
}

static int look_survey(struct store *st, const struct digest *manifest, struct store_pin_result *out, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(st, &db, err));
    return survey(db, manifest, out, err);
}

/* ---- pin and unpin ------------------------------------------------------------------------------------------------------ */

static int write_pin(struct store *st, const struct pin_target *t, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;
    struct digest now = t->digest;

    TRY(catalog_begin(st, &tx, err));
    if (!t->by_digest) /* it may have moved meanwhile */
        TRY(find_tag(tx.db, t->repo, t->reference, &now, err));
    TRY(pin_write(tx.db, t->repo, t->reference, t->by_digest, &now, clock_wall_s(), err));
    return catalog_commit(&tx, err);
}

int store_pin(struct store *st, int64_t repo, const char *tag, const struct digest *digest,
              struct store_pin_result *out, struct err *err)
{
    struct pin_target t;

    *out = (struct store_pin_result){.changed = false};
    TRY(look_target(st, repo, tag, digest, &t, err));
    if (!t.pinned) {
        TRY(pin_record(st, &t, false, err));
        TRY(pack_sync(st->packs, err));
        TRY(write_pin(st, &t, err));
    }
    out->changed = !t.pinned;
    return look_survey(st, &t.digest, out, err);
}

void pin_list_release(struct pin_list *list)
{
    free(list->items);
    *list = (struct pin_list){.count = 0};
}

static int read_pin(struct sql_query *q, struct pin_target *out, struct err *err)
{
    *out = (struct pin_target){.repo = sql_int(q, 0), .by_digest = sql_int(q, 4) != 0, .pinned = true};
    (void)snprintf(out->name.upstream, sizeof(out->name.upstream), "%s", sql_text(q, 1));
    (void)snprintf(out->name.name, sizeof(out->name.name), "%s", sql_text(q, 2));
    (void)snprintf(out->reference, sizeof(out->reference), "%s", sql_text(q, 3));
    return sql_digest(q, 5, &out->digest, err);
}

static int add_pin(struct sql_query *q, struct pin_list *list, struct err *err)
{
    void *items = list->items;
    int rc = grow(&items, list->count, &list->cap, sizeof(*list->items), err);

    list->items = items;
    TRY(rc);
    return read_pin(q, &list->items[list->count++], err);
}

#define PIN_COLUMNS "r.id, r.upstream, r.name, p.reference, p.by_digest, p.digest"

int pins_by_digest(struct sql_db *db, const struct digest *digest, struct pin_list *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q,
                  "SELECT " PIN_COLUMNS " FROM pin p JOIN repo r ON r.id = p.repo_id"
                  " WHERE p.digest = ?1 AND p.by_digest = 1",
                  err));
    sql_bind_digest(&q, 1, digest);
    while ((rc = sql_step(&q, err)) == SQL_ROW)
        TRY(add_pin(&q, out, err));
    return rc;
}

int pin_find(struct sql_db *db, int64_t repo, const char *reference, struct pin_list *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q,
                  "SELECT " PIN_COLUMNS " FROM pin p JOIN repo r ON r.id = p.repo_id"
                  " WHERE p.repo_id = ?1 AND p.reference = ?2",
                  err));
    sql_bind_int(&q, 1, repo);
    sql_bind_text(&q, 2, reference);
    while ((rc = sql_step(&q, err)) == SQL_ROW)
        TRY(add_pin(&q, out, err));
    return rc;
}

/* A pin whose tag was dropped is found as well. */
static int find_pins(struct store *st, int64_t repo, const char *tag, const struct digest *digest, struct pin_list *out,
                     struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    struct digest upstream;
    int64_t id = 0;

    TRY(catalog_read_begin(st, &db, err));
    if (tag != NULL)
        return pin_find(db, repo, tag, out, err);
    TRY(find_upstream(db, digest, &upstream, &id, err));
    if (repo == 0)
        return pins_by_digest(db, &upstream, out, err);
    const struct digest_text text = digest_text(&upstream);
    return pin_find(db, repo, text.s, out, err);
}

static int delete_pins(struct store *st, const struct pin_list *list, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;

    TRY(catalog_begin(st, &tx, err));
    for (size_t i = 0; i < list->count; i++)
        TRY(pin_delete(tx.db, list->items[i].repo, list->items[i].reference, err));
    return catalog_commit(&tx, err);
}

int store_unpin(struct store *st, int64_t repo, const char *tag, const struct digest *digest,
                struct store_pin_result *out, struct err *err)
{
    CLEANUP(pin_list_release) struct pin_list list = {.count = 0};
    struct pin_target t;

    *out = (struct store_pin_result){.changed = false};
    TRY(find_pins(st, repo, tag, digest, &list, err));
    if (list.count == 0) { /* no pin: is there such an image at all? */
        TRY(look_target(st, repo, tag, digest, &t, err));
        return look_survey(st, &t.digest, out, err);
    }
    for (size_t i = 0; i < list.count; i++)
        TRY(pin_record(st, &list.items[i], true, err));
    TRY(pack_sync(st->packs, err));
    TRY(delete_pins(st, &list, err));
    out->changed = true;
    return look_survey(st, &list.items[0].digest, out, err);
}

/* ---- lists --------------------------------------------------------------------------------------------------------------- */

struct pin_page {
    size_t count;
    struct pin_target last; /* of the page before */
    struct {
        struct pin_target target;
        int64_t created;
        struct store_pin_result now;
    } rows[PINS_PAGE];
};

static int list_pins(struct sql_db *db, struct pin_page *page, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    page->count = 0;
    TRY(sql_query(db, &q,
                  "SELECT " PIN_COLUMNS ", p.created FROM repo r CROSS JOIN pin p ON p.repo_id = r.id"
                  " WHERE (r.upstream, r.name) >= (?1, ?2)"
                  "  AND NOT (r.upstream = ?1 AND r.name = ?2 AND p.reference <= ?3)"
                  " ORDER BY r.upstream, r.name, p.reference LIMIT ?4",
                  err));
    sql_bind_text(&q, 1, page->last.name.upstream);
    sql_bind_text(&q, 2, page->last.name.name);
    sql_bind_text(&q, 3, page->last.reference);
    sql_bind_int(&q, 4, PINS_PAGE);
    while ((rc = sql_step(&q, err)) == SQL_ROW) {
        page->rows[page->count].created = sql_int(&q, 6);
        TRY(read_pin(&q, &page->rows[page->count++].target, err));
    }
    return rc;
}

static int read_pins(struct store *st, struct pin_page *page, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(st, &db, err));
    TRY(list_pins(db, page, err));
    for (size_t i = 0; i < page->count; i++) {
        page->rows[i].now = (struct store_pin_result){.changed = false};
        TRY(survey(db, &page->rows[i].target.digest, &page->rows[i].now, err));
    }
    return 0;
}

static int tell_pin(const struct pin_page *page, size_t i, store_pin_fn *fn, void *arg, struct err *err)
{
    const struct pin_target *t = &page->rows[i].target;
    struct store_pin_info info = {.upstream = t->name.upstream,
                                  .name = t->name.name,
                                  .reference = t->reference,
                                  .by_digest = t->by_digest,
                                  .created = page->rows[i].created,
                                  .now = page->rows[i].now};

    return fn(arg, &info, err);
}

int store_each_pin(struct store *st, store_pin_fn *fn, void *arg, struct err *err)
{
    CLEANUP(free_ptr) struct pin_page *page = calloc(1, sizeof(*page));

    if (page == NULL)
        return err_nomem(err, sizeof(*page));
    do {
        TRY(read_pins(st, page, err));
        for (size_t i = 0; i < page->count; i++)
            TRY(tell_pin(page, i, fn, arg, err));
        if (page->count > 0)
            page->last = page->rows[page->count - 1].target;
    } while (page->count == PINS_PAGE);
    return 0;
}

int store_is_pinned(struct store *st, const struct digest *manifest, bool *out, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(catalog_read_begin(st, &db, err));
    TRY(sql_query(db, &q, "SELECT 1 FROM manifest m JOIN pinned p ON p.digest = m.upstream WHERE m.digest = ?1", err));
    sql_bind_digest(&q, 1, manifest);
    return read_exists(&q, out, err);
}

/* ---- eviction ------------------------------------------------------------------------------------------------------------ */

static int refuse(const struct digest *d, struct err *err)
{
    return err_set(err, ERR_BUSY, "%s is pinned (\"recask pin\" lists the pins)", digest_text(d).s);
}

int pin_check_original(struct sql_db *db, int64_t blob_id, const struct digest *d, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q,
                  "SELECT 1 FROM blob b WHERE b.id = ?1 AND b.pinned > 0 AND NOT EXISTS (SELECT 1 FROM canonical c"
                  " WHERE c.id = b.canonical_id AND c.present = 1 AND (b.pinned < 2 OR c.digest = b.digest))",
                  err));
    sql_bind_int(&q, 1, blob_id);
    TRY(rc = sql_step(&q, err));
    return rc == SQL_ROW ? refuse(d, err) : 0;
}

int pin_check_canonical(struct sql_db *db, int64_t canonical_id, const struct digest *d, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q, "SELECT 1 FROM canonical WHERE id = ?1 AND pinned = 1", err));
    sql_bind_int(&q, 1, canonical_id);
    TRY(rc = sql_step(&q, err));
    return rc == SQL_ROW ? refuse(d, err) : 0;
}

static bool warn_now(struct store *st)
{
    int_fast64_t last = atomic_load(&st->pins_warned_ms);
    int64_t now = clock_mono_ms();

    return (last == 0 || now - last >= WARN_EVERY_MS) &&
           atomic_compare_exchange_strong(&st->pins_warned_ms, &last, now);
}

int pins_no_room(struct store *st, struct err *err)
{
    struct store_stats s;

    TRY(store_stats(st, &s, err));
    if (s.pinned_bytes == 0)
        return err_set(err, ERR_NOSPC, "the quota of %" PRIu64 " bytes is used up, and nothing may be evicted",
                       s.quota_bytes);
    if (s.pinned_bytes >= s.quota_bytes / WARN_PART && warn_now(st))
        log_event(LOG_WARN, "store.pins_fill_quota", "pins=%" PRIu64 " pinned_bytes=%" PRIu64 " quota_bytes=%" PRIu64,
                  s.pins, s.pinned_bytes, s.quota_bytes);
    return err_set(err, ERR_NOSPC,
                   "the quota of %" PRIu64 " bytes is used up, and what is left is pinned (%" PRIu64
                   " bytes) or being read",
                   s.quota_bytes, s.pinned_bytes);
}
