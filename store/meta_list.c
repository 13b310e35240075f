/* SPDX-License-Identifier: Apache-2.0
 * store/meta_list.c - manifests in lists: those that wait for their views, and all tags for people.
 *
 * Both go page by page and call out without a connection: the callee may use the store, and takes as long as it likes.
 */
#include "store/meta_internal.h"

#define WANTED_PAGE 32
#define IMAGE_PAGE 32

/* ---- wanted --------------------------------------------------------------------------------------------------------- */

struct wanted_page {
    int64_t last_id;
    size_t count;
    struct {
        int64_t repo;
        struct repo_name name;
        struct digest digest;
    } rows[WANTED_PAGE];
};

static int list_wanted(struct sql_db *db, struct wanted_page *page, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    page->count = 0;
    TRY(sql_query(db, &q,
                  "SELECT m.id, m.digest, r.id, r.upstream, r.name FROM manifest m"
                  " JOIN repo r ON r.id = (SELECT min(rm.repo_id) FROM repo_manifest rm WHERE rm.manifest_id = m.id)"
                  " WHERE m.wanted = 1 AND m.views = 0 AND m.is_index = 0 AND m.view = 0 AND m.id > ?1"
                  " ORDER BY m.id LIMIT ?2",
                  err));
    sql_bind_int(&q, 1, page->last_id);
    sql_bind_int(&q, 2, WANTED_PAGE);
    while ((rc = sql_step(&q, err)) == SQL_ROW) {
        page->last_id = sql_int(&q, 0);
        TRY(sql_digest(&q, 1, &page->rows[page->count].digest, err));
        page->rows[page->count].repo = sql_int(&q, 2);
        (void)snprintf(page->rows[page->count].name.upstream, sizeof(page->rows[0].name.upstream), "%s",
                       sql_text(&q, 3));
        (void)snprintf(page->rows[page->count].name.name, sizeof(page->rows[0].name.name), "%s", sql_text(&q, 4));
        page->count++;
    }
    return rc;
}

static int read_wanted(struct store *st, struct wanted_page *page, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(st, &db, err));
    return list_wanted(db, page, err);
}

int store_each_wanted(struct store *st, store_wanted_fn *fn, void *arg, struct err *err)
{
    CLEANUP(free_ptr) struct wanted_page *page = calloc(1, sizeof(*page));

    if (page == NULL)
        return err_nomem(err, sizeof(*page));
    do {
        TRY(read_wanted(st, page, err));
        for (size_t i = 0; i < page->count; i++)
            TRY(fn(arg, page->rows[i].repo, page->rows[i].name.upstream, page->rows[i].name.name, &page->rows[i].digest,
                   err));
    } while (page->count == WANTED_PAGE);
    return 0;
}

/* ---- images ----------------------------------------------------------------------------------------------------------- */

struct image_row {
    struct store_image image; /* its strings are the arrays below */
    int64_t manifest_id;
    struct repo_name repo;
    char tag[META_TAG_BYTES];
    char media_type[META_TYPE_BYTES];
    char reason[256];
};

struct image_page {
    size_t count;
    struct image_row rows[IMAGE_PAGE];
    struct image_row last; /* of the page before: where to go on */
};

static int read_image(struct sql_query *q, struct image_row *row, struct err *err)
{
    struct store_image *image = &row->image;

    (void)snprintf(row->repo.upstream, sizeof(row->repo.upstream), "%s", sql_text(q, 0));
    (void)snprintf(row->repo.name, sizeof(row->repo.name), "%s", sql_text(q, 1));
    (void)snprintf(row->tag, sizeof(row->tag), "%s", sql_text(q, 2));
    (void)snprintf(row->media_type, sizeof(row->media_type), "%s", sql_text(q, 4));
    (void)snprintf(row->reason, sizeof(row->reason), "%s", sql_text(q, 8));
    *image = (struct store_image){.upstream = row->repo.upstream,
                                  .name = row->repo.name,
                                  .tag = row->tag,
                                  .media_type = row->media_type,
                                  .is_index = sql_int(q, 5) != 0,
                                  .checked_at = sql_int(q, 6),
                                  .views = (enum store_views)sql_int(q, 7),
                                  .reason = sql_is_null(q, 8) ? NULL : row->reason,
                                  .is_signed = sql_is_null(q, 9) ? -1 : (int)sql_int(q, 9),
                                  .is_pinned = sql_int(q, 11) != 0};
    row->manifest_id = sql_int(q, 10);
    return sql_digest(q, 3, &image->digest, err);
}

static int list_images(struct sql_db *db, struct image_page *page, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    page->count = 0;
    TRY(sql_query(
        db, &q,
        "SELECT r.upstream, r.name, t.name, m.digest, m.media_type, m.is_index, t.checked_at, m.views, m.reason,"
        "  m.signed, m.id, EXISTS (SELECT 1 FROM pinned WHERE digest = m.digest)"
        " FROM repo r CROSS JOIN tag t ON t.repo_id = r.id JOIN manifest m ON m.id = t.manifest_id"
        " WHERE (r.upstream, r.name) >= (?1, ?2)"
        "  AND NOT (r.upstream = ?1 AND r.name = ?2 AND t.name <= ?3)"
        " ORDER BY r.upstream, r.name, t.name LIMIT ?4",
        err));
    sql_bind_text(&q, 1, page->last.repo.upstream);
    sql_bind_text(&q, 2, page->last.repo.name);
    sql_bind_text(&q, 3, page->last.tag);
    sql_bind_int(&q, 4, IMAGE_PAGE);
    while ((rc = sql_step(&q, err)) == SQL_ROW)
        TRY(read_image(&q, &page->rows[page->count++], err));
    return rc;
}

static int count_layers(struct sql_db *db, struct image_row *row, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q,
                  "SELECT count(*), coalesce(sum(r.size), 0), coalesce(sum(c.size), 0), count(c.id)"
                  " FROM manifest_ref r LEFT JOIN blob b ON b.digest = r.digest"
                  " LEFT JOIN canonical c ON c.id = b.canonical_id AND c.present = 1"
                  " WHERE r.manifest_id = ?1 AND r.role = 2",
                  err));
    sql_bind_int(&q, 1, row->manifest_id);
    TRY(sql_step(&q, err));
    row->image.layers = (uint64_t)sql_int(&q, 0);
    row->image.original_bytes = (uint64_t)sql_int(&q, 1);
    row->image.canonical_bytes = (uint64_t)sql_int(&q, 2);
    row->image.canonical_layers = (uint64_t)sql_int(&q, 3);
    return 0;
}

static int read_images(struct store *st, struct image_page *page, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(st, &db, err));
    TRY(list_images(db, page, err));
    for (size_t i = 0; i < page->count; i++)
        TRY(count_layers(db, &page->rows[i], err));
    return 0;
}

int store_each_image(struct store *st, store_image_fn *fn, void *arg, struct err *err)
{
    CLEANUP(free_ptr) struct image_page *page = calloc(1, sizeof(*page));

    if (page == NULL)
        return err_nomem(err, sizeof(*page));
    do {
        TRY(read_images(st, page, err));
        for (size_t i = 0; i < page->count; i++)
            TRY(fn(arg, &page->rows[i].image, err));
        if (page->count > 0)
            page->last = page->rows[page->count - 1];
    } while (page->count == IMAGE_PAGE);
    return 0;
}
