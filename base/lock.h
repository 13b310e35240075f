/* SPDX-License-Identifier: Apache-2.0
 * base/lock.h - mutexes with a rank: a thread may only take a lock of a higher rank than those it holds.
 *
 * The ranks are the one place that states the lock order of the whole program (ARCHITECTURE.md, "Threads and locks").
 * Debug builds keep a per-thread stack and REQUIRE() the order; release builds pay for the mutex alone.
 */
#pragma once

#include "base/compiler.h"

#include <pthread.h>

enum lock_rank {
    RANK_SERVER = 10,   /* proxy: tables of running requests and fills */
    RANK_FILL = 20,     /* one fill */
    RANK_REQUEST = 30,  /* one request's pipe and parking state */
    RANK_UPSTREAM = 40, /* inbox of the upstream thread, one transfer's ring */
    RANK_ROOM = 45,     /* store: the quota's account */
    RANK_STORE = 50,    /* store: pack table, accounting of originals */
    RANK_DB = 60,       /* the catalog's writer connection, the reader pool */
    RANK_POOL = 70,     /* work pool queues */
    RANK_LEAF = 80,     /* anything that calls nothing */
};

struct lock {
    pthread_mutex_t m;
    enum lock_rank rank;
};

void lock_init(struct lock *l, enum lock_rank rank);
void lock_release(struct lock *l); /* destroys; must not be held */
void lock_take(struct lock *l);
void lock_give(struct lock *l);
/* Waits on c with l held; timeout_ms < 0: for ever. Returns 0, or 1 on timeout. c must be from cond_init(). */
int lock_wait(struct lock *l, pthread_cond_t *c, int timeout_ms);
void cond_init(pthread_cond_t *c); /* on the monotonic clock */
