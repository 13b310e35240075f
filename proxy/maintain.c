/* SPDX-License-Identifier: Apache-2.0
 *
 * The runner of maintenance. A run is a job that posts itself after each step, or has a timer post it when the rate does not
 * allow another step yet. Nothing of it is in jobs_pending(): it is never done for good. What a repair fetches is.
 */
#include "base/clock.h"
#include "base/log.h"
#include "proxy/maintain_internal.h"

#include <inttypes.h>
#include <stdio.h>

#define FINDINGS_MAX 4096
#define GC_REST_MS 10000 /* between two collections that nobody asked for */
#define LATER_MAX_MS (24 * 3600 * 1000)
#define PACE_MIN_US 2000 /* a shorter wait is made up for by the next one */

const char *maintain_task_name(enum maintain_task t)
{
    switch (t) {
    case MAINTAIN_GC:
        return "gc";
    case MAINTAIN_SCRUB:
        return "scrub";
    }
    return "?";
}

const char *maintain_state_name(enum maintain_state s)
{
    switch (s) {
    case MAINTAIN_NEVER:
        return "never";
    case MAINTAIN_RUNNING:
        return "running";
    case MAINTAIN_DONE:
        return "done";
    case MAINTAIN_FAILED:
        return "failed";
    case MAINTAIN_STOPPED:
        return "stopped";
    }
    return "?";
}

/* ---- what a run leaves ------------------------------------------------------------------------------------------------- */

static void log_end(const struct maintain_run *r)
{
    const struct store_scrub_progress *s = &r->scrub;
    enum log_level level =
        r->state == MAINTAIN_FAILED || (r->task == MAINTAIN_SCRUB && s->bad > s->repaired) ? LOG_WARN : LOG_INFO;

    if (r->task == MAINTAIN_GC && r->by_itself && level == LOG_INFO && r->gc.packs_done == 0)
        level = LOG_DEBUG; /* it has counted what packs hold: nothing that anybody must know of */
    if (r->task == MAINTAIN_GC)
        log_event(level, "gc.end",
                  "id=%" PRIu64 " state=%s evicted=%" PRIu64 " evicted_bytes=%" PRIu64 " packs=%" PRIu64
                  " moved_bytes=%" PRIu64 " freed_bytes=%" PRIu64 " ms=%" PRId64 " error=%s",
                  r->id, maintain_state_name(r->state), r->gc.evicted, r->gc.evicted_bytes, r->gc.packs_done,
                  r->gc.moved_bytes, r->gc.freed_bytes, clock_mono_ms() - r->began_ms, log_quote(r->error).s);
    else
        log_event(level, "store.scrub.end",
                  "id=%" PRIu64 " state=%s bytes=%" PRIu64 " chunks=%" PRIu64 " layers=%" PRIu64 " originals=%" PRIu64
                  " manifests=%" PRIu64 " bad=%" PRIu64 " repaired=%" PRIu64 " retired=%" PRIu64 " ms=%" PRId64
                  " error=%s",
                  r->id, maintain_state_name(r->state), s->bytes, s->chunks, s->layers, s->originals, s->manifests,
                  s->bad, s->repaired, s->retired, clock_mono_ms() - r->began_ms, log_quote(r->error).s);
}

static void remember(struct maintain *m, const struct maintain_run *r)
{
    struct store_scrub_last last = {.since_s = m->last_scrub.since_s, .began_s = r->began_s, .ended_s = r->ended_s};
    struct err err = ERR_INIT;

    last.p = r->scrub;
    lock_take(&m->lock);
    m->last_scrub = last;
    lock_give(&m->lock);
    if (store_scrub_remember(m->p->store, &last, &err) < 0)
        log_event(LOG_WARN, "store.scrub.remember", "error=%s", log_quote(err.msg).s);
}

static void end_run(struct maintain *m, enum maintain_state state, const struct err *why)
{
    struct store_scrub *scrub;
    struct maintain_run r;

    timer_disarm(m->p->timers, &m->pace);
    repair_end(m);
    store_gc_free(steal(&m->gc));
    lock_take(&m->lock);
    scrub = steal(&m->scrub);
    m->status.now.state = state;
    m->status.now.ended_s = clock_wall_s();
    snprintf(m->status.now.error, sizeof(m->status.now.error), "%s", why != NULL ? why->msg : "");
    r = m->status.now;
    lock_give(&m->lock);
    store_scrub_free(scrub);
    log_end(&r);
    if (r.task == MAINTAIN_SCRUB && state == MAINTAIN_DONE)
        remember(m, &r);
    if (jobs_pending(m->p->jobs) == 0)
        store_idle(m->p->store);
    lock_take(&m->lock);
    if (r.task == MAINTAIN_GC)
        m->status.gc = r;
    else
        m->status.scrub = r;
    if (r.task == MAINTAIN_GC)
        m->gc_after_ms = clock_mono_ms() + GC_REST_MS;
    m->status.now = (struct maintain_run){.state = MAINTAIN_NEVER};
    if (!m->stopping)
        workpool_post(m->p->pool, &m->look);
    pthread_cond_broadcast(&m->idle);
    lock_give(&m->lock);
}

/* ---- steps --------------------------------------------------------------------------------------------------------------- */

static void take_finding(void *arg, const struct scrub_finding *f)
{
    struct maintain *m = arg;

    lock_take(&m->lock);
    m->finding_total++;
    if (m->finding_count == m->finding_cap && m->finding_cap < FINDINGS_MAX) {
        size_t cap = m->finding_cap == 0 ? 16 : 2 * m->finding_cap;
        struct maintain_finding *more = realloc(m->findings, cap * sizeof(*more));

        if (more != NULL) { /* else it is only counted */
            m->findings = more;
            m->finding_cap = cap;
        }
    }
    if (m->finding_count < m->finding_cap)
        m->findings[m->finding_count++] = (struct maintain_finding){.found = *f};
    lock_give(&m->lock);
}

static int gc_step(struct maintain *m, struct err *err)
{
    struct store_gc_progress p = {.evicted = 0};
    bool more = false;

    TRY(store_gc_step(m->gc, &p, &more, err));
    lock_take(&m->lock);
    m->status.now.gc = p;
    m->status.now.read_bytes = p.moved_bytes;
    lock_give(&m->lock);
    return more ? STEP_MORE : STEP_EOF;
}

static int scrub_step(struct maintain *m, struct err *err)
{
    struct store_scrub_progress p = {.bytes = 0};
    bool more = false;

    TRY(store_scrub_step(m->scrub, take_finding, m, &p, &more, err));
    lock_take(&m->lock);
    m->status.now.scrub = p;
    m->status.now.read_bytes = p.bytes;
    m->status.now.repairing = !more && m->status.now.repair;
    bool repairing = m->status.now.repairing;
    lock_give(&m->lock);
    return more || repairing ? STEP_MORE : STEP_EOF;
}

static int step(struct maintain *m, const struct maintain_run *r, struct err *err)
{
    if (r->task == MAINTAIN_GC)
        return gc_step(m, err);
    return r->repairing ? repair_step(m, err) : scrub_step(m, err);
}

/* Posts the next step, at once or when the rate allows it. */
static void go_on(struct maintain *m)
{
    int64_t now_us = clock_mono_ms() * 1000;
    uint64_t rate, bytes;

    lock_take(&m->lock);
    rate = m->status.rate_bytes_s;
    bytes = m->status.now.read_bytes - m->paced_bytes;
    m->paced_bytes = m->status.now.read_bytes;
    lock_give(&m->lock);
    if (rate > 0) {
        if (m->next_us < now_us)
            m->next_us = now_us;
        m->next_us += (int64_t)(bytes * 1000000 / rate);
    }
    if (rate == 0 || m->next_us - now_us < PACE_MIN_US)
        workpool_post(m->p->pool, &m->job);
    else
        timer_arm(m->p->timers, &m->pace, (int)((m->next_us - now_us) / 1000));
}

static int open_task(struct maintain *m, const struct maintain_run *r, struct err *err)
{
    struct store_scrub *scrub = NULL;

    m->next_us = 0;
    m->paced_bytes = 0;
    log_event(r->task == MAINTAIN_GC && r->by_itself ? LOG_DEBUG : LOG_INFO,
              r->task == MAINTAIN_GC ? "gc.begin" : "store.scrub.begin", "id=%" PRIu64 " repair=%d by_itself=%d", r->id,
              r->repair, r->by_itself);
    if (r->task == MAINTAIN_GC)
        return store_gc_new(m->p->store, !r->by_itself, &m->gc, err);
    TRY(store_scrub_new(m->p->store, &scrub, err));
    lock_take(&m->lock);
    m->scrub = scrub;
    lock_give(&m->lock);
    return 0;
}

static void run(void *arg)
{
    struct maintain *m = arg;
    struct err err = ERR_INIT;
    struct maintain_run r;
    bool stopping;
    int rc = 0;

    lock_take(&m->lock);
    r = m->status.now;
    stopping = m->stopping;
    lock_give(&m->lock);
    if (r.state != MAINTAIN_RUNNING)
        return;
    if (stopping) {
        end_run(m, MAINTAIN_STOPPED, NULL);
        return;
    }
    if (!m->gc && !m->scrub)
        rc = open_task(m, &r, &err);
    if (rc == 0)
        rc = step(m, &r, &err);
    if (rc == STEP_MORE)
        go_on(m);
    else if (rc == STEP_EOF)
        end_run(m, MAINTAIN_DONE, NULL);
    else if (rc < 0)
        end_run(m, rc == ERR_CANCELLED ? MAINTAIN_STOPPED : MAINTAIN_FAILED, &err);
}

/* ---- beginning one --------------------------------------------------------------------------------------------------------- */

static int begin(struct maintain *m, const struct maintain_run *want, uint64_t *out_id, struct err *err)
{
    int rc = 0;

    lock_take(&m->lock);
    if (m->stopping)
        rc = err_set(err, ERR_CANCELLED, "recask is stopping");
    else if (m->status.now.state != MAINTAIN_NEVER)
        rc = err_set(err, ERR_BUSY, "a %s is running already (id %" PRIu64 ")", maintain_task_name(m->status.now.task),
                     m->status.now.id);
    if (rc == 0) {
        m->status.now = *want;
        m->status.now.id = *out_id = ++m->last_id;
        m->status.now.state = MAINTAIN_RUNNING;
        m->status.now.began_s = clock_wall_s();
        m->status.now.began_ms = clock_mono_ms();
        if (want->task == MAINTAIN_SCRUB)
            m->finding_count = m->finding_total = 0;
        workpool_post(m->p->pool, &m->job);
    }
    lock_give(&m->lock);
    return rc;
}

int maintain_begin(struct maintain *m, enum maintain_task task, bool repair, uint64_t *out_id, struct err *err)
{
    return begin(m, &(struct maintain_run){.task = task, .repair = repair}, out_id, err);
}

/* ---- by itself --------------------------------------------------------------------------------------------------------------- */

/* Seconds until a scrub is due; < 0: never. Called with the lock held. */
static int64_t scrub_due_in(struct maintain *m)
{
    const struct store_scrub_last *last = &m->last_scrub;
    int64_t from = last->ended_s > last->since_s ? last->ended_s : last->since_s;
    int64_t now = clock_wall_s(), every = m->status.scrub_every_s;

    m->status.scrub_due_s = every > 0 ? from + every : 0;
    if (every <= 0)
        return -1;
    if (from > now) /* the clock was set back */
        return every;
    return from + every > now ? from + every - now : 0;
}

static bool garbage_due(struct maintain *m, int64_t *out_wait_ms)
{
    struct err err = ERR_INIT;
    bool wanted = false;

    lock_take(&m->lock);
    bool garbage = m->garbage;
    *out_wait_ms = m->gc_after_ms - clock_mono_ms();
    if (garbage && *out_wait_ms <= 0)
        m->garbage = false;
    lock_give(&m->lock);
    if (!garbage || *out_wait_ms > 0) {
        if (!garbage)
            *out_wait_ms = 0;
        return false;
    }
    if (store_gc_wanted(m->p->store, &wanted, &err) < 0)
        log_event(LOG_WARN, "gc.look", "error=%s", log_quote(err.msg).s);
    return wanted;
}

/* A run that cannot be begun is tried again at the next look. */
static void begin_by_itself(struct maintain *m, enum maintain_task task)
{
    struct maintain_run want = {.task = task, .repair = task == MAINTAIN_SCRUB, .by_itself = true};
    struct err err = ERR_INIT;
    uint64_t id;

    if (begin(m, &want, &id, &err) < 0 && err.code != ERR_BUSY && err.code != ERR_CANCELLED)
        log_event(LOG_WARN, "maintain.begin", "task=%s error=%s", maintain_task_name(task), log_quote(err.msg).s);
}

static void look(void *arg)
{
    struct maintain *m = arg;
    int64_t gc_ms = 0, due_s, wait_ms = LATER_MAX_MS;

    lock_take(&m->lock);
    bool busy = !m->started || m->stopping || m->status.now.state != MAINTAIN_NEVER;
    due_s = scrub_due_in(m);
    lock_give(&m->lock);
    if (busy) /* the end of the run that goes on looks again */
        return;
    if (garbage_due(m, &gc_ms)) {
        begin_by_itself(m, MAINTAIN_GC);
        return;
    }
    if (due_s == 0) {
        begin_by_itself(m, MAINTAIN_SCRUB);
        return;
    }
    if (gc_ms > 0)
        wait_ms = gc_ms;
    if (due_s > 0 && due_s * 1000 < wait_ms)
        wait_ms = due_s * 1000;
    lock_take(&m->lock);
    if (!m->stopping && (gc_ms > 0 || due_s > 0))
        timer_arm(m->p->timers, &m->later, (int)wait_ms);
    lock_give(&m->lock);
}

void maintain_evicted(struct maintain *m)
{
    lock_take(&m->lock);
    if (!m->garbage && m->started && !m->stopping)
        workpool_post(m->p->pool, &m->look);
    m->garbage = true;
    lock_give(&m->lock);
}

/* ---- looking on ---------------------------------------------------------------------------------------------------------------- */

void maintain_status(struct maintain *m, struct maintain_status *out)
{
    lock_take(&m->lock);
    (void)scrub_due_in(m);
    *out = m->status;
    lock_give(&m->lock);
}

size_t maintain_findings(struct maintain *m, struct maintain_finding *out, size_t max, uint64_t *out_total)
{
    lock_take(&m->lock);
    size_t n = m->finding_count < max ? m->finding_count : max;
    if (n > 0)
        memcpy(out, m->findings, n * sizeof(*out));
    *out_total = m->finding_total;
    lock_give(&m->lock);
    return n;
}

/* ---- life ------------------------------------------------------------------------------------------------------------------------ */

static void post_run(void *arg)
{
    struct maintain *m = arg;
    workpool_post(m->p->pool, &m->job);
}

static void post_look(void *arg)
{
    struct maintain *m = arg;
    workpool_post(m->p->pool, &m->look);
}

int maintain_new(struct proxy *p, struct maintain **out, struct err *err)
{
    struct maintain *m = calloc(1, sizeof(*m));

    if (!m)
        return err_nomem(err, sizeof(*m));
    m->p = p;
    lock_init(&m->lock, RANK_SERVER);
    cond_init(&m->idle);
    atomic_init(&m->repair.answered, false);
    m->status.rate_bytes_s = p->opt.maintain_rate_bytes_s;
    m->status.scrub_every_s = p->opt.scrub_every_s;
    m->pace = (struct timer){.fn = post_run, .arg = m};
    m->later = (struct timer){.fn = post_look, .arg = m};
    m->waiter = (struct waiter){.fn = post_run, .arg = m};
    job_init(&m->job, JOB_BACKGROUND, run, m, NULL, NULL); /* freed after the pool */
    job_init(&m->look, JOB_BACKGROUND, look, m, NULL, NULL);
    *out = m;
    return 0;
}

/* What an earlier process found is what there is to tell until the next one ends. */
int maintain_start(struct maintain *m, struct err *err)
{
    struct store_scrub_last last;

    TRY(store_scrub_last(m->p->store, &last, err));
    lock_take(&m->lock);
    m->last_scrub = last;
    if (last.ended_s > 0)
        m->status.scrub = (struct maintain_run){.task = MAINTAIN_SCRUB,
                                                .state = MAINTAIN_DONE,
                                                .began_s = last.began_s,
                                                .ended_s = last.ended_s,
                                                .read_bytes = last.p.bytes,
                                                .scrub = last.p};
    m->garbage = true; /* what the last process left */
    m->started = true;
    lock_give(&m->lock);
    workpool_post(m->p->pool, &m->look);
    return 0;
}

void maintain_stop(struct maintain *m)
{
    lock_take(&m->lock);
    m->stopping = true;
    if (m->scrub)
        store_scrub_cancel(m->scrub);
    if (m->status.now.state != MAINTAIN_NEVER)
        workpool_post(m->p->pool, &m->job);
    while (m->status.now.state != MAINTAIN_NEVER)
        lock_wait(&m->lock, &m->idle, -1);
    lock_give(&m->lock);
    timer_disarm(m->p->timers, &m->later);
}

void maintain_free(struct maintain *m)
{
    if (!m)
        return;
    free(m->findings);
    free(m->repair.restored);
    pthread_cond_destroy(&m->idle);
    lock_release(&m->lock);
    free(m);
}
