/* SPDX-License-Identifier: Apache-2.0
 * store/scrub_catalog.c - whether the catalog agrees with itself: SQLite's own checks table by table, how often chunks are
 * used (C1), recipes of layers that are not there (C5), the sums in `totals`.
 *
 * recipe.chunk_id has no index, so uses are counted in memory, for a window of WINDOW chunks at a time: 4 MiB, and one
 * reading of all recipes for each window. All in one snapshot, which keeps the WAL from being reset for these seconds.
 */
#include "store/scrub_internal.h"

#include <inttypes.h>

#define WINDOW (INT64_C(1) << 20)
#define ROWS_A_UNIT 4096
#define TABLES_MAX 64
#define MESSAGES_MAX 100 /* of one table; SQLite's own default */

/* ---- SQLite's checks -------------------------------------------------------------------------------------------------- */

static int list_tables(struct store_scrub *s, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct catalog_walk *c = &s->catalog;
    int rc;

    c->tables = calloc(TABLES_MAX, sizeof(*c->tables));
    if (c->tables == NULL)
        return err_nomem(err, TABLES_MAX * sizeof(*c->tables));
    TRY(sql_exec(s->db, "BEGIN", err));
    c->begun = true;
    TRY(sql_query(s->db, &q,
                  "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name",
                  err));
    while ((rc = sql_step(&q, err)) == SQL_ROW && c->table_count < TABLES_MAX)
        (void)snprintf(c->tables[c->table_count++], sizeof(c->tables[0]), "%s", sql_text(&q, 0));
    return rc < 0 ? rc : 0;
}

static int check_integrity(struct store_scrub *s, const char *table, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(s->db, &q, "SELECT integrity_check FROM pragma_integrity_check(?1) LIMIT ?2", err));
    sql_bind_text(&q, 1, table);
    sql_bind_int(&q, 2, MESSAGES_MAX);
    while ((rc = sql_step(&q, err)) == SQL_ROW) {
        struct scrub_finding f = {.fault = SCRUB_CATALOG};

        if (strcmp(sql_text(&q, 0), "ok") != 0)
            scrub_report(s, &f, "catalog, table %s: %s", table, sql_text(&q, 0));
    }
    return rc;
}

static int check_foreign_keys(struct store_scrub *s, const char *table, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(s->db, &q, "SELECT rowid, parent FROM pragma_foreign_key_check(?1) LIMIT ?2", err));
    sql_bind_text(&q, 1, table);
    sql_bind_int(&q, 2, MESSAGES_MAX);
    while ((rc = sql_step(&q, err)) == SQL_ROW) {
        struct scrub_finding f = {.fault = SCRUB_CATALOG};

        scrub_report(s, &f, "catalog, table %s: row %" PRId64 " points to no row of %s", table, sql_int(&q, 0),
                     sql_text(&q, 1));
    }
    return rc;
}

/* ---- uses of chunks ---------------------------------------------------------------------------------------------------- */

/* The window from the first chunk >= from on; false when there is none. */
static int find_window(struct store_scrub *s, int64_t from, bool *out_found, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct catalog_walk *c = &s->catalog;
    int rc;

    TRY(sql_query(s->db, &q, "SELECT id FROM chunk WHERE id >= ?1 ORDER BY id LIMIT 1", err));
    sql_bind_int(&q, 1, from);
    TRY(rc = sql_step(&q, err));
    *out_found = rc == SQL_ROW;
    c->low = *out_found ? sql_int(&q, 0) : from;
    return 0;
}

static int begin_recipes(struct store_scrub *s, struct err *err)
{
    struct catalog_walk *c = &s->catalog;

    if (c->uses == NULL)
        c->uses = malloc((size_t)WINDOW * sizeof(*c->uses));
    if (c->uses == NULL)
        return err_nomem(err, (size_t)WINDOW * sizeof(*c->uses));
    memset(c->uses, 0, (size_t)WINDOW * sizeof(*c->uses));
    c->layer = 0;
    c->phase = CATALOG_RECIPES;
    return sql_query(s->db, &c->q, "SELECT canonical_id, chunk_id FROM recipe ORDER BY canonical_id, off", err);
}

/* C5. */
static int check_present(struct store_scrub *s, int64_t layer, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct scrub_finding f = {.fault = SCRUB_COUNT};
    int rc;

    TRY(sql_query(s->db, &q, "SELECT present, digest FROM canonical WHERE id = ?1", err));
    sql_bind_int(&q, 1, layer);
    TRY(rc = sql_step(&q, err));
    if (rc != SQL_ROW || sql_int(&q, 0) != 0) /* a row that is missing is a foreign key's fault, and was reported */
        return 0;
    TRY(sql_digest(&q, 1, &f.digest, err));
    scrub_report(s, &f, "catalog: layer %s has a recipe, though it is not present", digest_text(&f.digest).s);
    return 0;
}

static int count_uses(struct store_scrub *s, bool *out_end, struct err *err)
{
    struct catalog_walk *c = &s->catalog;
    int rc = SQL_ROW;

    for (int i = 0; i < ROWS_A_UNIT && (rc = sql_step(&c->q, err)) == SQL_ROW; i++) {
        int64_t layer = sql_int(&c->q, 0);
        int64_t at = sql_int(&c->q, 1) - c->low;

        if (layer != c->layer && !c->counted_before)
            TRY(check_present(s, layer, err));
        c->layer = layer;
        if (at >= 0 && at < WINDOW)
            c->uses[at]++;
    }
    *out_end = rc == SQL_END;
    return rc < 0 ? rc : 0;
}

static int begin_chunks(struct store_scrub *s, struct err *err)
{
    struct catalog_walk *c = &s->catalog;

    sql_done(&c->q);
    c->phase = CATALOG_CHUNKS;
    TRY(sql_query(s->db, &c->q,
                  "SELECT id, refs, pack_id, raw, len, digest FROM chunk WHERE id >= ?1 AND id < ?2 ORDER BY id", err));
    sql_bind_int(&c->q, 1, c->low);
    sql_bind_int(&c->q, 2, c->low + WINDOW);
    return 0;
}

static int compare_uses(struct store_scrub *s, bool *out_end, struct err *err)
{
    struct catalog_walk *c = &s->catalog;
    int rc = SQL_ROW;

    for (int i = 0; i < ROWS_A_UNIT && (rc = sql_step(&c->q, err)) == SQL_ROW; i++) {
        struct scrub_finding f = {.fault = SCRUB_COUNT, .row = sql_int(&c->q, 0)};
        int64_t refs = sql_int(&c->q, 1);
        uint32_t uses = c->uses[f.row - c->low];

        if (!sql_is_null(&c->q, 2)) {
            c->chunks++;
            c->chunk_bytes += sql_int(&c->q, 3);
            c->frame_bytes += sql_int(&c->q, 4);
        }
        if (refs == uses)
            continue;
        TRY(sql_digest(&c->q, 5, &f.digest, err));
        scrub_report(s, &f, "catalog: chunk %s counts %" PRId64 " uses, recipes have %" PRIu32,
                     digest_text(&f.digest).s, refs, uses);
    }
    *out_end = rc == SQL_END;
    return rc < 0 ? rc : 0;
}

/* ---- sums ------------------------------------------------------------------------------------------------------------------ */

static int check_totals(struct store_scrub *s, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct catalog_walk *c = &s->catalog;
    struct scrub_finding f = {.fault = SCRUB_COUNT, .totals = true};
    int rc;

    TRY(sql_query(s->db, &q,
                  "SELECT chunks, chunk_bytes, frame_bytes,"
                  " canonical_layers = (SELECT count(*) FROM canonical WHERE present = 1)"
                  " AND canonical_bytes = (SELECT coalesce(sum(size), 0) FROM canonical WHERE present = 1)"
                  " AND original_bytes = (SELECT coalesce(sum(size), 0) FROM blob WHERE original_present = 1)"
                  " AND replayable = (SELECT count(*) FROM blob WHERE replay IS NOT NULL)"
                  " AND blobs = (SELECT count(*) FROM blob) AND manifests = (SELECT count(*) FROM manifest)"
                  " AND tags = (SELECT count(*) FROM tag) FROM totals",
                  err));
    TRY(rc = sql_step(&q, err));
    if (rc == SQL_ROW && sql_int(&q, 0) == c->chunks && sql_int(&q, 1) == c->chunk_bytes &&
        sql_int(&q, 2) == c->frame_bytes && sql_int(&q, 3) == 1)
        return 0;
    scrub_report(s, &f, "catalog: the sums in `totals` are not those of the other tables");
    return 0;
}

/* ---- units ----------------------------------------------------------------------------------------------------------------- */

static int table_unit(struct store_scrub *s, struct err *err)
{
    struct catalog_walk *c = &s->catalog;
    bool found;

    if (c->table_at < c->table_count) {
        TRY(check_integrity(s, c->tables[c->table_at], err));
        return check_foreign_keys(s, c->tables[c->table_at++], err);
    }
    TRY(find_window(s, 1, &found, err));
    return begin_recipes(s, err);
}

/* Behind the last chunk of a window: the next one, or the sums. */
static int next_window(struct store_scrub *s, struct err *err)
{
    struct catalog_walk *c = &s->catalog;
    bool found;

    sql_done(&c->q);
    c->counted_before = true;
    TRY(find_window(s, c->low + WINDOW, &found, err));
    if (found)
        return begin_recipes(s, err);
    c->phase = CATALOG_TOTALS;
    return 0;
}

int scrub_catalog_unit(struct store_scrub *s, bool *out_more, struct err *err)
{
    bool end = false;

    switch (s->catalog.phase) {
    case CATALOG_LIST:
        s->catalog.phase = CATALOG_TABLES;
        return list_tables(s, err);
    case CATALOG_TABLES:
        return table_unit(s, err);
    case CATALOG_RECIPES:
        TRY(count_uses(s, &end, err));
        return end ? begin_chunks(s, err) : 0;
    case CATALOG_CHUNKS:
        TRY(compare_uses(s, &end, err));
        return end ? next_window(s, err) : 0;
    case CATALOG_TOTALS:
        *out_more = false;
        return check_totals(s, err);
    }
    return 0;
}

void scrub_catalog_end(struct store_scrub *s)
{
    struct catalog_walk *c = &s->catalog;
    struct err ignored = ERR_INIT;

    sql_done(&c->q);
    if (c->begun && sql_exec(s->db, "ROLLBACK", &ignored) < 0)
        err_clear(&ignored); /* it has rolled back by itself */
    c->begun = false;
    free_ptr(&c->tables);
    free_ptr(&c->uses);
}
