/* SPDX-License-Identifier: Apache-2.0
 * proxy/maintain_internal.h - the runner (maintain.c) and the second half of a scrub (maintain_repair.c).
 */
#pragma once

#include "proxy/maintain.h"
#include "proxy/proxy_internal.h"

#define MAINTAIN_SOURCES_MAX 8

/* One layer or original that is to come back. */
struct restore {
    struct digest digest;
    bool original;      /* else a layer */
    struct digest zstd; /* of the layer, before; zeroes: it had none */
    struct store_source sources[MAINTAIN_SOURCES_MAX];
    size_t source_count, at; /* at: below source_count from the original on disk, then from upstream */
    bool asked;              /* source `at` was asked */
    char why[200];           /* the last thing that did not work */
};

enum waiting_on { WAITING_NOT = 0, WAITING_FILL, WAITING_JOBS };

struct repair {
    size_t at;     /* finding */
    bool begun;    /* of this finding */
    bool all;      /* all of its layers were taken away */
    size_t target; /* layer of the finding */
    struct restore restore;
    bool restoring;
    struct digest *restored; /* layers that were written again in this run */
    size_t restored_count, restored_cap;
    size_t lose_at; /* findings below were told to the store */
    struct fill *fill;
    enum waiting_on waiting;
    /* a manifest's body; written on the upstream thread, read by the next step */
    bool calling;
    atomic_bool answered;
    struct upstream_answer answer;
    struct err answer_err;
};

struct maintain {
    struct proxy *p;
    struct job job;       /* the steps of a run */
    struct job look;      /* whether one is due */
    struct timer pace;    /* posts job */
    struct timer later;   /* posts look */
    struct waiter waiter; /* of repair; posts job */
    /* the run's own, touched by `job` alone */
    struct store_gc *gc;
    struct store_scrub *scrub; /* set and cleared under the lock, for the cancelling */
    struct repair repair;
    int64_t next_us; /* when the rate allows the next step */
    uint64_t paced_bytes;
    /* under the lock */
    struct lock lock; /* RANK_SERVER */
    pthread_cond_t idle;
    bool started, stopping, garbage;
    int64_t gc_after_ms; /* collecting by itself rests until then */
    uint64_t last_id;
    struct maintain_status status;
    struct store_scrub_last last_scrub;
    struct maintain_finding *findings;
    size_t finding_count, finding_cap;
    uint64_t finding_total;
};

/* maintain_repair.c: STEP_MORE: again; STEP_WAIT: job will be posted; STEP_EOF: all were looked at; < 0. */
MUST_CHECK int repair_step(struct maintain *m, struct err *err);
void repair_end(struct maintain *m);
