/* SPDX-License-Identifier: Apache-2.0
 * admin/maintain.c - /api/v1/maintenance, and what /api/v1/gc and /api/v1/scrub answer. */
#include "admin/admin_internal.h"

#include "base/clock.h"
#include "proxy/maintain.h"

#define FINDINGS_SHOWN 100

static json_t *count(uint64_t n)
{
    return json_integer((json_int_t)n);
}

static json_t *gc_object(const struct store_gc_progress *p)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "evicted", count(p->evicted), "evicted_bytes",
                     count(p->evicted_bytes), "packs", count(p->packs), "packs_done", count(p->packs_done),
                     "moved_bytes", count(p->moved_bytes), "freed_bytes", count(p->freed_bytes));
}

static json_t *scrub_object(const struct store_scrub_progress *p)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "bytes", count(p->bytes), "total_bytes",
                     count(p->total_bytes), "chunks", count(p->chunks), "layers", count(p->layers), "originals",
                     count(p->originals), "manifests", count(p->manifests), "bad", count(p->bad), "repaired",
                     count(p->repaired), "retired", count(p->retired));
}

/* Bytes per second so far, and seconds to go; 0: not known. */
static void speed(const struct maintain_run *r, uint64_t *out_rate, uint64_t *out_eta_s)
{
    int64_t ms = clock_mono_ms() - r->began_ms;
    uint64_t left = r->scrub.total_bytes > r->scrub.bytes ? r->scrub.total_bytes - r->scrub.bytes : 0;

    *out_rate = ms > 0 ? r->read_bytes * 1000 / (uint64_t)ms : 0;
    *out_eta_s = r->task == MAINTAIN_SCRUB && *out_rate > 0 ? left / *out_rate : 0;
}

static json_t *run_object(const struct maintain_run *r)
{
    bool gc = r->task == MAINTAIN_GC;
    uint64_t rate = 0, eta_s = 0;

    if (r->state == MAINTAIN_NEVER)
        return json_null();
    if (r->state == MAINTAIN_RUNNING)
        speed(r, &rate, &eta_s);
    return json_pack("{s:o, s:s, s:s, s:s, s:b, s:b, s:o, s:o, s:o, s:o, s:s, s:o}", "id", count(r->id), "task",
                     maintain_task_name(r->task), "state", maintain_state_name(r->state), "phase",
                     gc             ? "collect"
                     : r->repairing ? "repair"
                                    : "check",
                     "repair", r->repair, "by_itself", r->by_itself, "began", admin_json_time(r->began_s), "ended",
                     admin_json_time(r->ended_s), "rate_bytes_s", count(rate), "eta_s", count(eta_s), "error", r->error,
                     gc ? "gc" : "scrub", gc ? gc_object(&r->gc) : scrub_object(&r->scrub));
}

/* ---- findings ---------------------------------------------------------------------------------------------------- */

static const char *outcome_name(enum maintain_outcome o)
{
    switch (o) {
    case OUTCOME_OPEN:
        return "open";
    case OUTCOME_REPAIRED:
        return "repaired";
    case OUTCOME_FAILED:
        return "failed";
    }
    return "?";
}

/* What is said may quote a file's name or SQLite; bytes that are not UTF-8 must not cost the whole answer. */
static json_t *text_of(const char *text)
{
    json_t *value = json_string(text);

    return value != NULL ? value : json_string("(not text)");
}

static json_t *layers_array(const struct scrub_finding *f)
{
    json_t *list = json_array();

    for (size_t i = 0; list != NULL && i < f->layer_count; i++)
        json_array_append_new(list, admin_json_digest(&f->layers[i]));
    return list;
}

static json_t *finding_object(const struct maintain_finding *m)
{
    const struct scrub_finding *f = &m->found;

    return json_pack(
        "{s:s, s:o, s:o, s:o, s:b, s:s, s:o}", "fault", scrub_fault_name(f->fault), "what", text_of(f->text), "digest",
        digest_is_zero(&f->digest) ? json_null() : admin_json_digest(&f->digest), "layers", layers_array(f),
        "more_layers", f->more_layers, "outcome", outcome_name(m->outcome), "why", text_of(m->why));
}

static int findings_array(struct maintain *m, uint64_t *out_total, json_t **out, struct err *err)
{
    CLEANUP(free_ptr) struct maintain_finding *list = calloc(FINDINGS_SHOWN, sizeof *list);
    size_t n;

    if (list == NULL)
        return err_nomem(err, FINDINGS_SHOWN * sizeof *list);
    *out = json_array();
    n = maintain_findings(m, list, FINDINGS_SHOWN, out_total);
    for (size_t i = 0; i < n; i++) {
        if (json_array_append_new(*out, finding_object(&list[i])) != 0) {
            json_decref(*out);
            return err_set(err, ERR_NOMEM, "no memory for an answer");
        }
    }
    return 0;
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

int admin_maintenance_json(struct maintain *m, struct buf *out, struct err *err)
{
    struct maintain_status s;
    uint64_t total = 0;
    json_t *findings = NULL;

    TRY(findings_array(m, &total, &findings, err));
    maintain_status(m, &s);
    return admin_json_dump(json_pack("{s:o, s:o, s:o, s:o, s:{s:o, s:o}, s:o, s:o}", "running", run_object(&s.now),
                                     "rate_bytes_s", count(s.rate_bytes_s), "scrub_every_s",
                                     json_integer(s.scrub_every_s), "scrub_due", admin_json_time(s.scrub_due_s), "last",
                                     "gc", run_object(&s.gc), "scrub", run_object(&s.scrub), "findings_total",
                                     count(total), "findings", findings),
                           out, err);
}

int admin_maintain_begin_json(struct maintain *m, enum maintain_task task, bool repair, struct buf *out,
                              struct err *err)
{
    uint64_t id = 0;

    TRY(maintain_begin(m, task, repair, &id, err));
    return admin_json_dump(json_pack("{s:o, s:s}", "id", count(id), "task", maintain_task_name(task)), out, err);
}

json_t *admin_maintain_stats(struct maintain *m)
{
    struct maintain_status s;

    maintain_status(m, &s);
    return json_pack("{s:s, s:{s:o, s:o, s:o, s:o}, s:{s:o, s:o, s:o, s:o}}", "running",
                     s.now.state == MAINTAIN_NEVER ? "" : maintain_task_name(s.now.task), "scrub", "last_end",
                     admin_json_time(s.scrub.ended_s), "bad", count(s.scrub.scrub.bad), "repaired",
                     count(s.scrub.scrub.repaired), "retired", count(s.scrub.scrub.retired), "gc", "last_end",
                     admin_json_time(s.gc.ended_s), "evicted", count(s.gc.gc.evicted), "moved_bytes",
                     count(s.gc.gc.moved_bytes), "freed_bytes", count(s.gc.gc.freed_bytes));
}
