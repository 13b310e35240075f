/* SPDX-License-Identifier: Apache-2.0
 *
 * Waiting without a thread: lists of waiters, and one thread that fires timers. A waiter's and a timer's function only
 * posts work, so both may be called under locks.
 */
#include "base/clock.h"
#include "proxy/proxy_internal.h"

#include <errno.h>
#include <string.h>

void waiter_add(struct waiter_list *l, struct waiter *w)
{
    REQUIRE(w->list == NULL);
    w->list = l;
    w->prev = NULL;
    w->next = l->head;
    if (l->head)
        l->head->prev = w;
    l->head = w;
}

void waiter_remove(struct waiter *w)
{
    if (!w->list)
        return;
    if (w->prev)
        w->prev->next = w->next;
    else
        w->list->head = w->next;
    if (w->next)
        w->next->prev = w->prev;
    w->list = NULL;
}

void waiter_wake_all(struct waiter_list *l)
{
    while (l->head) {
        struct waiter *w = l->head;
        waiter_remove(w);
        w->fn(w->arg);
    }
}

/* A sorted list is enough: timers are armed for held clients and for images that give their clients a head start, some
 * dozens at most. */
struct timers {
    struct lock lock; /* RANK_UPSTREAM: above requests, below the pools that timers post to */
    pthread_cond_t changed;
    struct timer *head;
    pthread_t thread;
    bool stop, started;
};

static void *timers_main(void *arg)
{
    struct timers *ts = arg;

    lock_take(&ts->lock);
    while (!ts->stop) {
        int64_t now = clock_mono_ms();
        if (ts->head && ts->head->at_ms <= now) {
            struct timer *t = ts->head;
            ts->head = t->next;
            t->armed = false;
            t->fn(t->arg); /* under the lock, so that timer_disarm() is a promise */
            continue;
        }
        lock_wait(&ts->lock, &ts->changed, ts->head ? (int)(ts->head->at_ms - now) : -1);
    }
    lock_give(&ts->lock);
    return NULL;
}

int timers_new(struct timers **out, struct err *err)
{
    struct timers *ts = calloc(1, sizeof(*ts));
    if (!ts)
        return err_nomem(err, sizeof(*ts));
    lock_init(&ts->lock, RANK_UPSTREAM);
    cond_init(&ts->changed);
    int rc = pthread_create(&ts->thread, NULL, timers_main, ts);
    if (rc != 0) {
        timers_free(ts);
        return err_sys(err, rc, "timer thread");
    }
    ts->started = true;
    pthread_setname_np(ts->thread, "timers");
    *out = ts;
    return 0;
}

void timers_free(struct timers *ts)
{
    if (!ts)
        return;
    if (ts->started) {
        lock_take(&ts->lock);
        ts->stop = true;
        pthread_cond_signal(&ts->changed);
        lock_give(&ts->lock);
        pthread_join(ts->thread, NULL);
    }
    pthread_cond_destroy(&ts->changed);
    lock_release(&ts->lock);
    free(ts);
}

static void unlink_timer(struct timers *ts, struct timer *t)
{
    for (struct timer **pp = &ts->head; *pp; pp = &(*pp)->next) {
        if (*pp == t) {
            *pp = t->next;
            break;
        }
    }
    t->armed = false;
}

void timer_arm(struct timers *ts, struct timer *t, int after_ms)
{
    lock_take(&ts->lock);
    if (t->armed)
        unlink_timer(ts, t);
    t->at_ms = clock_mono_ms() + after_ms;
    t->armed = true;
    struct timer **pp = &ts->head;
    while (*pp && (*pp)->at_ms <= t->at_ms)
        pp = &(*pp)->next;
    t->next = *pp;
    *pp = t;
    pthread_cond_signal(&ts->changed);
    lock_give(&ts->lock);
}

void timer_disarm(struct timers *ts, struct timer *t)
{
    lock_take(&ts->lock);
    if (t->armed)
        unlink_timer(ts, t);
    lock_give(&ts->lock);
}
