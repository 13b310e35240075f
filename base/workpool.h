/* SPDX-License-Identifier: Apache-2.0
 * base/workpool.h - a fixed set of threads that run short jobs; clients first, a minimum share for background work.
 *
 * Use: struct job lives inside the object that it serves; workpool_post() queues it, fn runs once on some worker. A job
 *      may post itself again from fn. Posting a job that is already queued is a no-op that returns false, and posting
 *      one whose fn runs at this moment queues it to run once more after that, never at the same time: so one job's
 *      fn needs no lock against itself.
 * Ownership: from the post until fn has returned (and no later post waits) the pool holds one reference on arg, taken
 *      with ref(arg) and dropped with unref(arg) as the very last thing, with no lock held. So fn, or any other thread,
 *      may drop its own reference at any time. Objects that outlive the pool pass NULL for both.
 * Fairness: a worker takes JOB_CLIENT work first, but at least one job in eight is JOB_BACKGROUND when any waits.
 * Threads: any may post.
 */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum job_class { JOB_CLIENT = 0, JOB_BACKGROUND };

typedef void job_fn(void *arg);

struct job {
    job_fn *fn;
    void *arg;
    void (*ref)(void *arg);
    void (*unref)(void *arg);
    enum job_class class;
    /* private to workpool.c */
    struct job *next;
    int state;
};

struct workpool;

/* name: thread name prefix. threads >= 1. */
MUST_CHECK int workpool_new(const char *name, unsigned threads, struct workpool **out, struct err *err);
void job_init(struct job *j, enum job_class class, job_fn *fn, void *arg, void (*ref)(void *), void (*unref)(void *));
/* Queues j; see "Use" for jobs that are queued or running. True when this call queued it. Never fails, never waits. */
bool workpool_post(struct workpool *p, struct job *j);
/* Runs what is queued, waits for it and joins the threads. Posting afterwards is a bug. NULL is fine. */
void workpool_free(struct workpool *p);
size_t workpool_queued(struct workpool *p); /* for statistics */
