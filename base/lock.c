/* SPDX-License-Identifier: Apache-2.0
 * base/lock.c - ranked mutexes.
 *
 * Debug builds keep the locks that a thread holds in the order in which it took them. They may be given back in any
 * order, so the check compares with the highest rank held, which is always the last entry.
 */
#include "base/lock.h"

#include <errno.h>
#include <time.h>

#ifndef NDEBUG

#define HELD_MAX 16

static _Thread_local struct lock *held[HELD_MAX];
static _Thread_local unsigned held_count;

static void rank_take(struct lock *l)
{
    REQUIRE(held_count == 0 || held[held_count - 1]->rank < l->rank);
    REQUIRE(held_count < HELD_MAX);
    held[held_count++] = l;
}

static void rank_give(struct lock *l)
{
    unsigned i = held_count;

    while (i > 0 && held[i - 1] != l)
        i--;
    REQUIRE(i > 0);
    for (; i < held_count; i++)
        held[i - 1] = held[i];
    held_count--;
}

/* To sleep with a second lock in hand stops whoever needs that one. */
static void rank_wait(const struct lock *l)
{
    REQUIRE(held_count == 1 && held[0] == l);
}

#else

static void rank_take(struct lock *l UNUSED)
{
}

static void rank_give(struct lock *l UNUSED)
{
}

static void rank_wait(const struct lock *l UNUSED)
{
}

#endif

void lock_init(struct lock *l, enum lock_rank rank)
{
    pthread_mutexattr_t attr;

    l->rank = rank;
    REQUIRE(pthread_mutexattr_init(&attr) == 0);
#ifndef NDEBUG
    REQUIRE(pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK) == 0);
#endif
    REQUIRE(pthread_mutex_init(&l->m, &attr) == 0);
    pthread_mutexattr_destroy(&attr);
}

void lock_release(struct lock *l)
{
    REQUIRE(pthread_mutex_destroy(&l->m) == 0);
}

void lock_take(struct lock *l)
{
    rank_take(l);
    REQUIRE(pthread_mutex_lock(&l->m) == 0);
}

void lock_give(struct lock *l)
{
    rank_give(l);
    REQUIRE(pthread_mutex_unlock(&l->m) == 0);
}

int lock_wait(struct lock *l, pthread_cond_t *c, int timeout_ms)
{
    struct timespec until;
    int rc;

    rank_wait(l);
    if (timeout_ms < 0) {
        REQUIRE(pthread_cond_wait(c, &l->m) == 0);
        return 0;
    }
    REQUIRE(clock_gettime(CLOCK_MONOTONIC, &until) == 0);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    rc = pthread_cond_timedwait(c, &l->m, &until);
    REQUIRE(rc == 0 || rc == ETIMEDOUT);
    return rc == ETIMEDOUT;
}

void cond_init(pthread_cond_t *c)
{
    pthread_condattr_t attr;

    REQUIRE(pthread_condattr_init(&attr) == 0);
    REQUIRE(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0);
    REQUIRE(pthread_cond_init(c, &attr) == 0);
    pthread_condattr_destroy(&attr);
}
