/* SPDX-License-Identifier: Apache-2.0
 * store/scrub.c - steps, stages and findings of a scrub (scrub_internal.h).
 *
 * The order of the stages: first whether the catalog agrees with itself, then the bytes that it names, then the files that
 * it does not name. A layer's chunks are read through the layers, not pack by pack: every chunk that is used is part of a
 * layer, and so its digest, its place in the layer, the layer's digest and that of its zstd form need one reading.
 */
#include "store/scrub_internal.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdarg.h>

#define STEP_BYTES (UINT64_C(1) << 20)
#define STEP_MS 10
#define PROGRESS_OPS 20000 /* SQLite's instructions between two looks whether it was cancelled */

struct stage {
    scrub_unit_fn *unit;
    void (*end)(struct store_scrub *s);
};

static const struct stage stages[] = {
    {scrub_catalog_unit, scrub_catalog_end},
    {scrub_layer_unit, scrub_layer_end},
    {scrub_original_unit, scrub_original_end},
    {scrub_manifest_unit, NULL},
    {scrub_stray_unit, NULL},
};

/* ---- findings ------------------------------------------------------------------------------------------------------- */

const char *scrub_fault_name(enum scrub_fault f)
{
    switch (f) {
    case SCRUB_FRAME:
        return "frame";
    case SCRUB_LAYER:
        return "layer";
    case SCRUB_ZSTD:
        return "zstd";
    case SCRUB_ORIGINAL:
        return "original";
    case SCRUB_MANIFEST:
        return "manifest";
    case SCRUB_COUNT:
        return "count";
    case SCRUB_PACK:
        return "pack";
    case SCRUB_STRAY:
        return "stray";
    case SCRUB_CATALOG:
        return "catalog";
    }
    return "?";
}

void scrub_report(struct store_scrub *s, struct scrub_finding *f, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(f->text, sizeof(f->text), fmt, ap);
    va_end(ap);
    s->p.bad++;
    log_event(LOG_WARN, "store.scrub.found", "fault=%s layers=%zu%s what=%s", scrub_fault_name(f->fault),
              f->layer_count, f->more_layers ? "+" : "", log_quote(f->text).s);
    if (s->fn != NULL)
        s->fn(s->arg, f);
}

/* ---- steps ------------------------------------------------------------------------------------------------------------ */

static void end_stage(struct store_scrub *s)
{
    if (s->stage < ARRAY_LEN(stages) && stages[s->stage].end != NULL)
        stages[s->stage].end(s);
}

static int unit(struct store_scrub *s, struct err *err)
{
    struct err why = ERR_INIT;
    bool more = true;
    int rc = stages[s->stage].unit(s, &more, &why);

    if (atomic_load(&s->cancelled))
        return err_set(err, ERR_CANCELLED, "the scrub was cancelled");
    if (rc == ERR_CORRUPT) { /* what can be read is looked at all the same */
        struct scrub_finding f = {.fault = SCRUB_CATALOG};

        scrub_report(s, &f, "the catalog cannot be read: %s", why.msg);
        more = false;
    } else if (rc < 0) {
        *err = why;
        return rc;
    }
    if (!more) {
        end_stage(s);
        s->stage++;
    }
    return 0;
}

int store_scrub_step(struct store_scrub *s, scrub_finding_fn *on_finding, void *arg, struct store_scrub_progress *out,
                     bool *out_more, struct err *err)
{
    int64_t until_ms = clock_mono_ms() + STEP_MS;
    uint64_t until_bytes = s->p.bytes + STEP_BYTES;

    s->fn = on_finding;
    s->arg = arg;
    while (s->stage < ARRAY_LEN(stages) && s->p.bytes < until_bytes && clock_mono_ms() < until_ms)
        TRY(unit(s, err));
    *out_more = s->stage < ARRAY_LEN(stages);
    if (!*out_more || s->p.total_bytes < s->p.bytes) /* what there was to read has changed meanwhile */
        s->p.total_bytes = s->p.bytes;
    *out = s->p;
    return 0;
}

/* ---- life -------------------------------------------------------------------------------------------------------------- */

static int stop_when_cancelled(void *arg)
{
    struct store_scrub *s = arg;

    return atomic_load(&s->cancelled);
}

static int count_bytes(struct store_scrub *s, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(s->db, &q,
                  "SELECT (SELECT coalesce(sum(zsize), 0) FROM canonical WHERE present = 1)"
                  " + (SELECT coalesce(sum(size), 0) FROM blob WHERE original_present = 1)",
                  err));
    TRY(sql_step(&q, err));
    s->p.total_bytes = (uint64_t)sql_int(&q, 0);
    return 0;
}

static int open_parts(struct store_scrub *s, struct err *err)
{
    CLEANUP(free_ptr) char *path = NULL;
    struct err why = ERR_INIT;
    int rc;

    TRY(str_printf(&path, err, "%s/catalog.db", s->st->path));
    TRY(sql_open(path, SQL_READ_ONLY, &s->db, err));
    sqlite3_progress_handler(sql_handle(s->db), PROGRESS_OPS, stop_when_cancelled, s);
    rc = count_bytes(s, &why);
    if (rc < 0 && rc != ERR_CORRUPT) { /* the first stage says what is wrong with it */
        *err = why;
        return rc;
    }
    return 0;
}

int store_scrub_new(struct store *st, struct store_scrub **out, struct err *err)
{
    struct store_scrub *s = calloc(1, sizeof(*s));
    int rc;

    if (s == NULL)
        return err_nomem(err, sizeof(*s));
    s->st = st;
    atomic_init(&s->cancelled, false);
    s->layer.last_off = -1;
    rc = open_parts(s, err);
    if (rc < 0) {
        store_scrub_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void store_scrub_free(struct store_scrub *s)
{
    if (s == NULL)
        return;
    end_stage(s);
    sql_close(s->db);
    free(s);
}

void store_scrub_cancel(struct store_scrub *s)
{
    atomic_store(&s->cancelled, true);
}
