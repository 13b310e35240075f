/* SPDX-License-Identifier: Apache-2.0
 * proxy/wait.c: waiter lists, and timers against several threads. Run it under TSan.
 */
#include "base/clock.h"
#include "proxy/proxy_internal.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

static void count(void *arg)
{
    atomic_fetch_add((atomic_uint *)arg, 1);
}

static void test_list(void **state UNUSED)
{
    struct waiter_list list = {NULL};
    atomic_uint hits[3] = {0};
    struct waiter w[3];

    for (int i = 0; i < 3; i++) {
        w[i] = (struct waiter){.fn = count, .arg = &hits[i]};
        waiter_add(&list, &w[i]);
    }
    waiter_remove(&w[1]); /* from the middle */
    waiter_remove(&w[1]); /* no-op */
    waiter_wake_all(&list);
    assert_int_equal(atomic_load(&hits[0]), 1);
    assert_int_equal(atomic_load(&hits[1]), 0);
    assert_int_equal(atomic_load(&hits[2]), 1);
    assert_null(list.head);
    waiter_wake_all(&list); /* each once */
    assert_int_equal(atomic_load(&hits[0]), 1);
    waiter_add(&list, &w[0]);
    waiter_add(&list, &w[2]);
    waiter_remove(&w[2]); /* the head */
    waiter_remove(&w[0]); /* the last */
    assert_null(list.head);
}

static void expect_off(void *arg)
{
    struct waiter *w = *(struct waiter **)arg;
    assert_null(w->list);
}

/* What is called may free the waiter, or wait again elsewhere. */
static void test_off_the_list_before_the_call(void **state UNUSED)
{
    struct waiter_list list = {NULL};
    struct waiter w, *self = &w;

    w = (struct waiter){.fn = expect_off, .arg = &self};
    waiter_add(&list, &w);
    waiter_wake_all(&list);
    waiter_add(&list, &w); /* REQUIRE()s that it is on no list */
    waiter_remove(&w);
}

/* ---- timers --------------------------------------------------------------------------------------------------------- */

struct ring {
    atomic_uint fired;
    atomic_int order[4]; /* by place: which one fired */
};

struct ringer {
    struct timer t;
    struct ring *ring;
    int id;
};

static void ring_once(void *arg)
{
    struct ringer *r = arg;
    unsigned at = atomic_fetch_add(&r->ring->fired, 1);
    if (at < ARRAY_LEN(r->ring->order))
        atomic_store(&r->ring->order[at], r->id);
}

static void until_fired(struct ring *ring, unsigned n)
{
    int64_t end = clock_mono_ms() + 20000;
    while (atomic_load(&ring->fired) < n && clock_mono_ms() < end)
        usleep(1000);
    assert_int_equal(atomic_load(&ring->fired), n);
}

static void test_timers_in_order(void **state UNUSED)
{
    struct ring ring = {0};
    struct ringer r[3];
    struct timers *ts;
    struct err err = ERR_INIT;

    assert_int_equal(timers_new(&ts, &err), 0);
    for (int i = 0; i < 3; i++)
        r[i] = (struct ringer){.t = {.fn = ring_once, .arg = &r[i]}, .ring = &ring, .id = i};
    int64_t start = clock_mono_ms();
    timer_arm(ts, &r[0].t, 60);
    timer_arm(ts, &r[1].t, 20); /* before the one that the thread sleeps for */
    timer_arm(ts, &r[2].t, 40);
    until_fired(&ring, 3);
    assert_true(clock_mono_ms() - start >= 60);
    assert_int_equal(atomic_load(&ring.order[0]), 1);
    assert_int_equal(atomic_load(&ring.order[1]), 2);
    assert_int_equal(atomic_load(&ring.order[2]), 0);
    timer_disarm(ts, &r[0].t); /* one that has fired */
    timers_free(ts);
}

static void test_timer_again_and_off(void **state UNUSED)
{
    struct ring ring = {0};
    struct ringer r = {.t = {.fn = ring_once, .arg = &r}, .ring = &ring}, other = r;
    struct timers *ts;
    struct err err = ERR_INIT;

    other.t.arg = &other;
    assert_int_equal(timers_new(&ts, &err), 0);
    timer_arm(ts, &r.t, 100000);
    timer_arm(ts, &r.t, 5); /* anew: once, at the new time */
    until_fired(&ring, 1);
    timer_arm(ts, &r.t, 30);
    timer_disarm(ts, &r.t);
    timer_arm(ts, &other.t, 60);
    until_fired(&ring, 2); /* the other's, and no third */
    assert_int_equal(atomic_load(&ring.order[1]), other.id);
    timer_arm(ts, &r.t, 100000);
    timers_free(ts); /* with one armed */
    assert_int_equal(atomic_load(&ring.fired), 2);
}

/* timer_disarm() is a promise: afterwards the timer's memory may go. */
static void test_disarm_races_with_firing(void **state UNUSED)
{
    struct timers *ts;
    struct err err = ERR_INIT;

    assert_int_equal(timers_new(&ts, &err), 0);
    for (int i = 0; i < 2000; i++) {
        struct ring *ring = calloc(1, sizeof(*ring));
        struct ringer *r = calloc(1, sizeof(*r));
        assert_true(ring && r);
        *r = (struct ringer){.t = {.fn = ring_once, .arg = r}, .ring = ring};
        timer_arm(ts, &r->t, 0);
        if (i % 3 == 0)
            sched_yield();
        timer_disarm(ts, &r->t);
        unsigned fired = atomic_load(&ring->fired);
        assert_true(fired <= 1);
        memset(r, 0xee, sizeof(*r));
        free(r);
        free(ring);
    }
    timers_free(ts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_off_the_list_before_the_call),
        cmocka_unit_test(test_timers_in_order),
        cmocka_unit_test(test_timer_again_and_off),
        cmocka_unit_test(test_disarm_races_with_firing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
