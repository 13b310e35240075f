/* SPDX-License-Identifier: Apache-2.0
 * store/check.c - whether a catalog agrees with itself, and then (check_files.c) with the files beside it.
 *
 * Uses of chunks are counted in memory, WINDOW_MAX chunk ids at a time: recipe.chunk_id has no index.
 */
#include "store/check_internal.h"

#include "base/fsutil.h"
#include "store/catalog_internal.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <sys/stat.h>

#define WINDOW_MAX (INT64_C(1) << 24)

void check_bad(struct check *c, const char *fmt, ...)
{
    char text[ERR_MSG_BYTES];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    c->out->findings++;
    offline_say(&c->off, "%s", text);
}

static int number(struct check *c, const char *sql, int64_t *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(c->db, &q, sql, err));
    TRY(rc = sql_step(&q, err));
    *out = rc == SQL_ROW ? sql_int(&q, 0) : 0;
    return 0;
}

static int count(struct check *c, const char *sql, uint64_t *out, struct err *err)
{
    int64_t n = 0;

    TRY(number(c, sql, &n, err));
    *out += (uint64_t)n;
    return 0;
}

/* ---- SQLite's own checks ----------------------------------------------------------------------------------------------- */

static int check_integrity(struct check *c, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(c->db, &q, "PRAGMA integrity_check", err));
    while ((rc = sql_step(&q, err)) == SQL_ROW)
        if (strcmp(sql_text(&q, 0), "ok") != 0)
            check_bad(c, "catalog.db: %s", sql_text(&q, 0));
    return rc;
}

static int check_parents(struct check *c, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(c->db, &q, "PRAGMA foreign_key_check", err));
    while ((rc = sql_step(&q, err)) == SQL_ROW)
        check_bad(c, "catalog.db: row %" PRId64 " of table %s points to no row of %s", sql_int(&q, 1), sql_text(&q, 0),
                  sql_text(&q, 2));
    return rc;
}

/* ---- layers --------------------------------------------------------------------------------------------------------------- */

struct layer {
    int64_t id;
    struct digest digest;
    int64_t size, zsize, chunks;
    bool present;
};

struct window {
    int64_t from, count;
    uint32_t *uses;
};

static void count_use(struct window *w, int64_t chunk_id)
{
    if (chunk_id >= w->from && chunk_id - w->from < w->count)
        w->uses[chunk_id - w->from]++;
}

/* One layer's recipe: no gaps, and sums as in its own row. */
static int check_recipe(struct check *c, const struct layer *l, struct window *w, bool first, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int64_t off = 0, zoff = 0, rows = 0;
    bool good = true;
    int rc;

    TRY(sql_query(c->db, &q,
                  "SELECT r.off, r.zoff, r.chunk_id, c.raw, c.len FROM recipe r LEFT JOIN chunk c ON c.id = r.chunk_id"
                  " WHERE r.canonical_id = ?1 ORDER BY r.off",
                  err));
    sql_bind_int(&q, 1, l->id);
    while ((rc = sql_step(&q, err)) == SQL_ROW) {
        good = good && !sql_is_null(&q, 3) && sql_int(&q, 0) == off && sql_int(&q, 1) == zoff;
        off += sql_int(&q, 3);
        zoff += sql_int(&q, 4);
        rows++;
        count_use(w, sql_int(&q, 2));
    }
    TRY(rc);
    if (!first)
        return 0;
    if (!l->present && rows > 0)
        check_bad(c, "layer %s has a recipe, though it is not present", digest_text(&l->digest).s);
    if (l->present && (!good || off != l->size || zoff != l->zsize || rows != l->chunks))
        check_bad(c, "layer %s: its recipe has gaps, or does not add up", digest_text(&l->digest).s);
    return 0;
}

static int check_recipes(struct check *c, struct window *w, bool first, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(c->db, &q, "SELECT id, digest, size, zsize, chunks, present FROM canonical ORDER BY id", err));
    while ((rc = sql_step(&q, err)) == SQL_ROW) {
        struct layer l = {.id = sql_int(&q, 0),
                          .size = sql_int(&q, 2),
                          .zsize = sql_int(&q, 3),
                          .chunks = sql_int(&q, 4),
                          .present = sql_int(&q, 5) != 0};

        TRY(sql_digest(&q, 1, &l.digest, err));
        TRY(check_recipe(c, &l, w, first, err));
    }
    return rc;
}

static int compare_uses(struct check *c, const struct window *w, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct digest d;
    int rc;

    TRY(sql_query(c->db, &q, "SELECT id, refs, digest FROM chunk WHERE id >= ?1 AND id < ?2 ORDER BY id", err));
    sql_bind_int(&q, 1, w->from);
    sql_bind_int(&q, 2, w->from + w->count);
    while ((rc = sql_step(&q, err)) == SQL_ROW) {
        uint32_t uses = w->uses[sql_int(&q, 0) - w->from];

        if (sql_int(&q, 1) == uses)
            continue;
        TRY(sql_digest(&q, 2, &d, err));
        check_bad(c, "chunk %s counts %" PRId64 " uses, recipes have %" PRIu32, digest_text(&d).s, sql_int(&q, 1),
                  uses);
    }
    return rc;
}

static int check_layers(struct check *c, struct err *err)
{
    CLEANUP(free_ptr) uint32_t *uses = NULL;
    struct window w = {.from = 0};
    int64_t last = 0;

    TRY(number(c, "SELECT max(id) FROM chunk", &last, err));
    if (last < 0)
        return err_set(err, ERR_CORRUPT, "catalog.db: a chunk with an impossible id");
    w.count = last < WINDOW_MAX ? last + 1 : WINDOW_MAX;
    w.uses = uses = malloc((size_t)w.count * sizeof(*uses));
    if (uses == NULL)
        return err_nomem(err, (size_t)w.count * sizeof(*uses));
    for (; w.from <= last; w.from += w.count) {
        memset(uses, 0, (size_t)w.count * sizeof(*uses));
        TRY(check_recipes(c, &w, w.from == 0, err));
        TRY(compare_uses(c, &w, err));
    }
    return 0;
}

/* ---- manifests and sums --------------------------------------------------------------------------------------------------- */

static int check_manifests(struct check *c, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct digest d, got;
    size_t len;
    int rc;

    TRY(sql_query(c->db, &q, "SELECT digest, body FROM manifest ORDER BY id", err));
    while ((rc = sql_step(&q, err)) == SQL_ROW) {
        const void *body = sql_blob(&q, 1, &len);

        TRY(sql_digest(&q, 0, &d, err));
        digest_of(body, len, &got);
        if (!digest_equal(&d, &got))
            check_bad(c, "manifest %s: its bytes in the catalog are damaged", digest_text(&d).s);
    }
    return rc;
}

static int check_totals(struct check *c, struct err *err)
{
    int64_t good = 0;

    TRY(number(c,
               "SELECT chunks = (SELECT count(*) FROM chunk WHERE pack_id IS NOT NULL)"
               " AND chunk_bytes = (SELECT coalesce(sum(raw), 0) FROM chunk WHERE pack_id IS NOT NULL)"
               " AND frame_bytes = (SELECT coalesce(sum(len), 0) FROM chunk WHERE pack_id IS NOT NULL)"
               " AND canonical_layers = (SELECT count(*) FROM canonical WHERE present = 1)"
               " AND canonical_bytes = (SELECT coalesce(sum(size), 0) FROM canonical WHERE present = 1)"
               " AND original_bytes = (SELECT coalesce(sum(size), 0) FROM blob WHERE original_present = 1)"
               " AND replayable = (SELECT count(*) FROM blob WHERE replay IS NOT NULL)"
               " AND blobs = (SELECT count(*) FROM blob) AND manifests = (SELECT count(*) FROM manifest)"
               " AND tags = (SELECT count(*) FROM tag) AND pins = (SELECT count(*) FROM pin) FROM totals WHERE id = 1",
               &good, err));
    if (good == 0)
        check_bad(c, "catalog.db: the sums in `totals` are not those of the other tables");
    return 0;
}

static int count_rows(struct check *c, struct err *err)
{
    struct store_check_result *r = c->out;

    TRY(count(c, "SELECT count(*) FROM canonical WHERE present = 1", &r->layers, err));
    TRY(count(c, "SELECT count(*) FROM manifest", &r->manifests, err));
    TRY(count(c, "SELECT count(*) FROM tag", &r->tags, err));
    TRY(count(c, "SELECT count(*) FROM chunk WHERE refs = 0", &r->leftovers, err));
    return count(c, "SELECT count(*) FROM hole", &r->leftovers, err);
}

/* ---- all of it -------------------------------------------------------------------------------------------------------------- */

typedef int step_fn(struct check *c, struct err *err);

static step_fn *const steps[] = {check_integrity, check_parents,   count_rows,      check_packs, check_chunks,
                                 check_layers,    check_originals, check_manifests, check_totals};

/* A damaged page ends one step; the others may still find what they look for. */
static int run_steps(struct check *c, struct err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        struct err why = ERR_INIT;
        int rc = steps[i](c, &why);

        if (rc == ERR_CORRUPT) {
            check_bad(c, "%s", why.msg);
        } else if (rc < 0) {
            *err = why;
            return rc;
        }
    }
    return 0;
}

static int open_catalog(struct check *c, const char *path, struct err *err)
{
    TRY(sql_open(path, SQL_READ_ONLY, &c->db, err));
    TRY(number(c, "PRAGMA user_version", &c->out->format, err));
    return schema_check(c->db, path, SCHEMA_CURRENT, err);
}

/* A rebuild that was interrupted at the very end has its new catalog there. */
static const char *catalog_name(const struct check *c)
{
    struct stat sb;

    return fstatat(c->off.dir_fd, CATALOG_REBUILT, &sb, AT_SYMLINK_NOFOLLOW) == 0 ? CATALOG_REBUILT : "catalog.db";
}

static int run(struct check *c, struct err *err)
{
    CLEANUP(free_ptr) char *path = NULL;
    struct err why = ERR_INIT;
    int rc;

    TRY(str_printf(&path, err, "%s/%s", c->off.path, catalog_name(c)));
    rc = open_catalog(c, path, &why);
    if (rc == ERR_CORRUPT || rc == ERR_NOTFOUND || rc == ERR_IO) {
        check_bad(c, "%s", why.msg);
        return 0;
    }
    if (rc < 0) {
        *err = why;
        return rc;
    }
    return run_steps(c, err);
}

static int check(const char *path, bool bytes, store_report_fn *fn, void *arg, struct store_check_result *out,
                 struct err *err)
{
    struct check c = {.bytes = bytes, .out = out};
    int rc;

    *out = (struct store_check_result){.findings = 0};
    TRY(offline_open(path, fn, arg, &c.off, err));
    rc = run(&c, err);
    sql_close(c.db);
    offline_close(&c.off);
    return rc;
}

int store_check(const char *path, store_report_fn *fn, void *arg, struct store_check_result *out, struct err *err)
{
    return check(path, false, fn, arg, out, err);
}

int store_check_bytes(const char *path, store_report_fn *fn, void *arg, struct store_check_result *out, struct err *err)
{
    return check(path, true, fn, arg, out, err);
}
