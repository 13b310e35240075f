/* SPDX-License-Identifier: Apache-2.0
 * proxy/maintain.h - maintenance of the store in the background: collecting garbage and scrubbing, one at a time, in small
 * steps that stand behind all other work, no faster than a rate.
 *
 * Use: by the proxy; the admin API starts runs and looks on. Garbage is collected by itself when evictions have left packs
 *      that are mostly dead, a scrub begins by itself every proxy_options.scrub_every_s and repairs.
 * Threads: any.
 */
#pragma once

#include "store/gc.h"
#include "store/scrub.h"

struct maintain;
struct proxy;

struct maintain *proxy_maintain(struct proxy *p);

enum maintain_task { MAINTAIN_GC = 1, MAINTAIN_SCRUB };

enum maintain_state {
    MAINTAIN_NEVER = 0,
    MAINTAIN_RUNNING,
    MAINTAIN_DONE,
    MAINTAIN_FAILED,
    MAINTAIN_STOPPED, /* recask was told to stop */
};

struct maintain_run {
    uint64_t id; /* counts up from 1; 0: of an earlier process */
    enum maintain_task task;
    enum maintain_state state;
    bool repair;                        /* of a scrub */
    bool by_itself;                     /* nobody asked for it */
    bool repairing;                     /* the second half of a scrub: all was looked at */
    int64_t began_s, ended_s, began_ms; /* ms: of the monotonic clock */
    uint64_t read_bytes;                /* that the rate counts */
    struct store_gc_progress gc;
    struct store_scrub_progress scrub;
    char error[ERR_MSG_BYTES];
};

struct maintain_status {
    uint64_t rate_bytes_s;              /* 0: no limit */
    int64_t scrub_every_s, scrub_due_s; /* 0: never by itself */
    struct maintain_run now;            /* state NEVER: nothing runs */
    struct maintain_run gc, scrub;      /* the last of each that ended */
};

enum maintain_outcome { OUTCOME_OPEN = 0, OUTCOME_REPAIRED, OUTCOME_FAILED };

struct maintain_finding {
    struct scrub_finding found;
    enum maintain_outcome outcome;
    char why[200]; /* FAILED */
};

/* ERR_BUSY, naming what runs. */
MUST_CHECK int maintain_begin(struct maintain *m, enum maintain_task task, bool repair, uint64_t *out_id,
                              struct err *err);
void maintain_status(struct maintain *m, struct maintain_status *out);
const char *maintain_task_name(enum maintain_task t);
const char *maintain_state_name(enum maintain_state s);
/* Of the scrub that runs or of the last one: copies of the first ones, and their number in total. */
size_t maintain_findings(struct maintain *m, struct maintain_finding *out, size_t max, uint64_t *out_total);

/* ---- for the proxy --------------------------------------------------------------------------------------------------- */

MUST_CHECK int maintain_new(struct proxy *p, struct maintain **out, struct err *err);
MUST_CHECK int maintain_start(struct maintain *m, struct err *err); /* the schedule */
void maintain_stop(struct maintain *m);                             /* waits for the step that runs */
void maintain_free(struct maintain *m);
void maintain_evicted(struct maintain *m); /* something was: perhaps there is garbage now */
