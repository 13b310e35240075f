/* SPDX-License-Identifier: Apache-2.0
 *
 * The second half of a scrub that repairs. All that was found damaged is first said to be lost, so that nothing that is
 * written now builds on it; then one finding after the other is put right:
 *
 *   a frame       its layer is taken away and written again: from an original on disk, else from upstream. The frame comes
 *                 out as it was, and every layer that shares it is whole. If it does not (another zstd since), all layers
 *                 that share it are taken away, so that no row asks for the old frame, and written again; zstd forms that
 *                 come out different are retired by the writer.
 *   a layer       the same, without the chunk
 *   an original   fetched again
 *   a manifest    fetched again
 *   others        by the store
 */
#include "base/log.h"
#include "oci/oci.h"
#include "proxy/jobs_internal.h"
#include "proxy/maintain_internal.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- the outcome ---------------------------------------------------------------------------------------------------------- */

static void settle(struct maintain *m, enum maintain_outcome outcome, const char *why)
{
    struct repair *r = &m->repair;
    struct maintain_finding *f;
    struct scrub_finding found;

    lock_take(&m->lock);
    f = &m->findings[r->at];
    f->outcome = outcome;
    snprintf(f->why, sizeof(f->why), "%s", why);
    m->status.now.scrub.repaired += outcome == OUTCOME_REPAIRED;
    found = f->found;
    lock_give(&m->lock);
    if (outcome == OUTCOME_REPAIRED)
        log_event(LOG_INFO, "store.scrub.repaired", "fault=%s what=%s", scrub_fault_name(found.fault),
                  log_quote(found.text).s);
    else
        log_event(LOG_WARN, "store.scrub.unrepaired", "fault=%s what=%s error=%s", scrub_fault_name(found.fault),
                  log_quote(found.text).s, log_quote(why).s);
    r->at++;
    r->begun = r->all = r->restoring = false;
    r->target = 0;
}

static int give_up(struct maintain *m, const struct err *why)
{
    settle(m, OUTCOME_FAILED, why->msg);
    return STEP_MORE;
}

static int repaired(struct maintain *m)
{
    settle(m, OUTCOME_REPAIRED, "");
    return STEP_MORE;
}

static bool was_restored(const struct repair *r, const struct digest *layer)
{
    for (size_t i = 0; i < r->restored_count; i++)
        if (digest_equal(&r->restored[i], layer))
            return true;
    return false;
}

static int note_restored(struct repair *r, const struct digest *layer, struct err *err)
{
    if (r->restored_count == r->restored_cap) {
        size_t cap = r->restored_cap == 0 ? 16 : 2 * r->restored_cap;
        struct digest *more = realloc(r->restored, cap * sizeof(*more));

        if (!more)
            return err_nomem(err, cap * sizeof(*more));
        r->restored = more;
        r->restored_cap = cap;
    }
    r->restored[r->restored_count++] = *layer;
    return 0;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------------------- */

static void forget(struct maintain *m)
{
    struct repair *r = &m->repair;

    if (r->waiting == WAITING_FILL)
        fill_forget(r->fill, &m->waiter);
    else if (r->waiting == WAITING_JOBS)
        jobs_forget(m->p->jobs, &m->waiter);
    r->waiting = WAITING_NOT;
}

/* True while the original becomes canonical; then job will be posted. */
static bool waits_for_canon(struct maintain *m, const struct digest *original)
{
    if (!jobs_has_canon(m->p->jobs, original))
        return false;
    m->repair.waiting = WAITING_JOBS;
    jobs_wait(m->p->jobs, &m->waiter);
    if (jobs_has_canon(m->p->jobs, original))
        return true;
    forget(m); /* it ended in between */
    return false;
}

/* ---- one layer or original coming back ------------------------------------------------------------------------------------- */

static int restore_begin(struct maintain *m, const struct digest *d, bool original, struct err *err)
{
    struct restore *t = &m->repair.restore;
    struct store_blob blob;

    *t = (struct restore){.digest = *d, .original = original};
    TRY(store_blob_lookup(m->p->store, d, &blob, err));
    if (!original)
        t->zstd = blob.zstd;
    TRY(store_sources(m->p->store, d, 0, t->sources, MAINTAIN_SOURCES_MAX, &t->source_count, err));
    snprintf(t->why, sizeof(t->why), "no upstream is known to have it");
    m->repair.restoring = true;
    return 0;
}

static bool is_back(const struct restore *t, const struct store_blob *blob)
{
    if (!t->original)
        return blob->canonical_present;
    /* One that was fetched may have been dropped at once for its layer (originals = drop). */
    return blob->present || (t->asked && blob->canonical_present);
}

static int source_failed(struct restore *t, const char *why)
{
    if (why[0] != '\0')
        snprintf(t->why, sizeof(t->why), "%s", why);
    t->at++;
    t->asked = false;
    return STEP_MORE;
}

/* The original of source s is on disk: the layer is written from it. */
static int from_disk(struct maintain *m, const struct store_source *s, struct err *err)
{
    struct restore *t = &m->repair.restore;
    struct store_blob blob;

    if (!t->asked && !t->original) {
        TRY(store_blob_lookup(m->p->store, &s->original, &blob, err));
        if (blob.role == ROLE_ORIGINAL && blob.present)
            t->asked = jobs_canon(m->p->jobs, &s->original) || jobs_has_canon(m->p->jobs, &s->original);
    }
    if (t->asked && waits_for_canon(m, &s->original))
        return STEP_WAIT;
    return source_failed(t, t->asked ? "its original is on disk, but the layer could not be written from it" : "");
}

static int join_fill(struct maintain *m, const struct store_source *s, struct err *err)
{
    const struct upstream *up = upstream_find(m->p->ups, s->upstream, strlen(s->upstream));
    bool started;

    if (m->p->opt.offline)
        return err_set(err, ERR_UPSTREAM, "recask is offline, and %s has it", s->upstream);
    if (!up)
        return err_set(err, ERR_UPSTREAM, "upstream %s, which has it, is not configured any more", s->upstream);
    return fill_join(m->p, up, s->repo, s->name, &s->original, &m->repair.fill, &started, err);
}

static int from_upstream(struct maintain *m, const struct store_source *s)
{
    struct repair *r = &m->repair;
    struct err why = ERR_INIT;

    if (!r->restore.asked && join_fill(m, s, &why) < 0)
        return source_failed(&r->restore, why.msg);
    r->restore.asked = true;
    if (r->fill) {
        r->waiting = WAITING_FILL;
        enum fill_state state = fill_wait(r->fill, FILL_DONE, &m->waiter);
        if (state < FILL_DONE)
            return STEP_WAIT;
        r->waiting = WAITING_NOT;
        fill_error(r->fill, &why);
        if (state == FILL_DETACHED && why.code == 0)
            err_set(&why, ERR_NOSPC, "there is no room to keep it");
        fill_unref(steal(&r->fill));
    }
    if (why.code == 0 && waits_for_canon(m, &s->original))
        return STEP_WAIT;
    return source_failed(&r->restore, why.code != 0 ? why.msg : "it was fetched, but could not be stored");
}

/* STEP_EOF: it is back. ERR_NOTFOUND with the last reason: it could not be had. */
static int restore_step(struct maintain *m, struct err *err)
{
    struct restore *t = &m->repair.restore;
    struct store_blob blob;

    forget(m);
    TRY(store_blob_lookup(m->p->store, &t->digest, &blob, err));
    if (is_back(t, &blob)) {
        if (!t->original && !digest_is_zero(&t->zstd) && !digest_equal(&t->zstd, &blob.zstd)) {
            lock_take(&m->lock);
            m->status.now.scrub.retired++;
            lock_give(&m->lock);
        }
        fill_unref(steal(&m->repair.fill));
        return t->original ? STEP_EOF : (note_restored(&m->repair, &t->digest, err) < 0 ? err->code : STEP_EOF);
    }
    if (t->at < t->source_count)
        return from_disk(m, &t->sources[t->at], err);
    if (t->at < 2 * t->source_count)
        return from_upstream(m, &t->sources[t->at - t->source_count]);
    return err_set(err, ERR_NOTFOUND, "%s", t->why);
}

/* ---- kinds of findings -------------------------------------------------------------------------------------------------------- */

/* Takes layers [from, to) of the finding away. */
static int drop_layers(struct maintain *m, const struct scrub_finding *f, size_t from, size_t to, struct err *err)
{
    for (size_t i = from; i < to; i++)
        TRY(store_scrub_drop_layer(m->p->store, &f->layers[i], err));
    return 0;
}

/* False: somebody has put it right already, or this run has with another finding. */
static int still_bad(struct maintain *m, const struct scrub_finding *f, bool *out, struct err *err)
{
    struct store_blob blob;

    if (f->fault == SCRUB_FRAME)
        return store_scrub_stands(m->p->store, f, out, err);
    *out = true;
    if (f->fault == SCRUB_ORIGINAL)
        return 0;
    TRY(store_blob_lookup(m->p->store, &f->layers[0], &blob, err));
    *out = !(was_restored(&m->repair, &f->layers[0]) && blob.canonical_present);
    return 0;
}

static int begin_restoring(struct maintain *m, const struct scrub_finding *f, struct err *err)
{
    bool bad;

    TRY(still_bad(m, f, &bad, err));
    if (!bad)
        return repaired(m);
    m->repair.begun = true;
    if (f->fault == SCRUB_ORIGINAL)
        return restore_begin(m, &f->digest, true, err) < 0 ? err->code : STEP_MORE;
    TRY(restore_begin(m, &f->layers[0], false, err)); /* before it goes, for its zstd digest */
    TRY(drop_layers(m, f, 0, 1, err));
    return STEP_MORE;
}

/* A layer is back, or cannot be had. */
static int next_target(struct maintain *m, const struct scrub_finding *f, const struct err *why, struct err *err)
{
    struct repair *r = &m->repair;
    bool bad = false;

    if (why->code != 0 && f->fault == SCRUB_FRAME && !r->all && f->layer_count > 1) {
        r->all = true;
        TRY(restore_begin(m, &f->layers[0], false, err));
        TRY(drop_layers(m, f, 1, f->layer_count, err));
        return STEP_MORE;
    }
    if (why->code != 0)
        return give_up(m, why);
    if (r->all && ++r->target < f->layer_count)
        return restore_begin(m, &f->layers[r->target], false, err) < 0 ? err->code : STEP_MORE;
    if (f->fault == SCRUB_FRAME)
        TRY(store_scrub_stands(m->p->store, f, &bad, err));
    if (bad)
        return give_up(m, &(struct err){.code = ERR_CORRUPT, .msg = "the layer was written again without this chunk"});
    return repaired(m);
}

static int restoring(struct maintain *m, const struct scrub_finding *f, struct err *err)
{
    struct err why = ERR_INIT;

    if (!m->repair.begun)
        return begin_restoring(m, f, err);
    int rc = restore_step(m, &why);
    if (rc == STEP_EOF || rc == ERR_NOTFOUND)
        return next_target(m, f, &why, err);
    if (rc < 0)
        *err = why;
    return rc;
}

static void body_came(void *arg, struct upstream_answer *answer, const struct err *err)
{
    struct maintain *m = arg;

    m->repair.answer = *answer;
    *answer = (struct upstream_answer){.head.status = 0};
    m->repair.answer_err = *err;
    atomic_store(&m->repair.answered, true);
    workpool_post(m->p->pool, &m->job);
}

static int ask_manifest(struct maintain *m, const struct scrub_finding *f, struct err *err)
{
    CLEANUP(free_ptr) char *path = NULL;
    char upstream[256], name[256];

    TRY(store_scrub_manifest_source(m->p->store, &f->digest, upstream, name, err));
    const struct upstream *up = upstream_find(m->p->ups, upstream, strlen(upstream));
    if (!up || m->p->opt.offline)
        return err_set(err, ERR_UPSTREAM, "upstream %s, which has it, %s", upstream,
                       up ? "is not asked: recask is offline" : "is not configured any more");
    TRY(str_printf(&path, err, "/v2/%s/manifests/%s", name, digest_text(&f->digest).s));
    struct upstream_request req = {.up = up, .path = path, .accept = "*/*", .limit_bytes = OCI_MANIFEST_MAX_BYTES};
    atomic_store(&m->repair.answered, false);
    TRY(upstream_call(m->p->ups, &req, body_came, m, err));
    m->repair.calling = true;
    return 0;
}

static int manifest_step(struct maintain *m, const struct scrub_finding *f)
{
    struct repair *r = &m->repair;
    struct err why = ERR_INIT;

    if (!r->calling)
        return ask_manifest(m, f, &why) < 0 ? give_up(m, &why) : STEP_WAIT;
    if (!atomic_load(&r->answered))
        return STEP_WAIT;
    r->calling = false;
    why = r->answer_err;
    if (why.code == 0 && r->answer.body.len == 0)
        err_set(&why, ERR_UPSTREAM, "upstream sent nothing");
    if (why.code == 0 &&
        store_scrub_put_manifest(m->p->store, &f->digest, r->answer.body.data, r->answer.body.len, &why) == 0)
        err_clear(&why);
    upstream_answer_release(&r->answer);
    return why.code != 0 ? give_up(m, &why) : repaired(m);
}

static int fix(struct maintain *m, const struct scrub_finding *f)
{
    struct err why = ERR_INIT;

    return store_scrub_fix(m->p->store, f, &why) < 0 ? give_up(m, &why) : repaired(m);
}

static int repair_one(struct maintain *m, const struct scrub_finding *f, struct err *err)
{
    switch (f->fault) {
    case SCRUB_FRAME:
    case SCRUB_LAYER:
    case SCRUB_ZSTD:
    case SCRUB_ORIGINAL:
        return restoring(m, f, err);
    case SCRUB_MANIFEST:
        return manifest_step(m, f);
    case SCRUB_COUNT:
    case SCRUB_PACK:
    case SCRUB_STRAY:
    case SCRUB_CATALOG:
        return fix(m, f);
    }
    return STEP_EOF;
}

/* ---- steps ----------------------------------------------------------------------------------------------------------------------- */

/* False behind the last one. The list does not grow any more. */
static bool finding_at(struct maintain *m, size_t at, struct scrub_finding *out)
{
    lock_take(&m->lock);
    bool there = at < m->finding_count;
    if (there)
        *out = m->findings[at].found;
    lock_give(&m->lock);
    return there;
}

static int lose_one(struct maintain *m, const struct scrub_finding *f, struct err *err)
{
    m->repair.lose_at++;
    if (f->fault != SCRUB_FRAME && f->fault != SCRUB_ORIGINAL)
        return STEP_MORE;
    int rc = store_scrub_lose(m->p->store, f, err);
    /* An original that is being read: its readers meet the checksums; the fill that is to come finds it present. */
    if (rc == ERR_BUSY || rc == ERR_NOTFOUND)
        err_clear(err);
    else if (rc < 0)
        return rc;
    return STEP_MORE;
}

int repair_step(struct maintain *m, struct err *err)
{
    struct repair *r = &m->repair;
    struct scrub_finding f;

    if (finding_at(m, r->lose_at, &f))
        return lose_one(m, &f, err);
    if (!finding_at(m, r->at, &f))
        return STEP_EOF;
    int rc = repair_one(m, &f, err);
    /* The disk is full, a file cannot be opened: this one stays as it is, the others have their turn. */
    if (rc < 0 && rc != ERR_CANCELLED) {
        forget(m);
        fill_unref(steal(&r->fill));
        rc = give_up(m, err);
        err_clear(err);
    }
    return rc;
}

void repair_end(struct maintain *m)
{
    struct repair *r = &m->repair;

    forget(m);
    fill_unref(steal(&r->fill));
    upstream_answer_release(&r->answer);
    free(r->restored);
    *r = (struct repair){.at = 0};
    atomic_init(&r->answered, false);
}
