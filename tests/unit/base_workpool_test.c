/* SPDX-License-Identifier: Apache-2.0
 * base/workpool.c: fairness, posts while running, references, shutdown. Run it under TSan.
 */
#include "base/workpool.h"

#include "base/lock.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>

#include <cmocka.h>

/* ---- a gate that holds the only worker while jobs pile up ---- */

struct gate {
    struct job job;
    struct lock lock;
    pthread_cond_t cond;
    bool open, entered;
};

static void gate_run(void *arg)
{
    struct gate *g = arg;

    lock_take(&g->lock);
    g->entered = true;
    pthread_cond_broadcast(&g->cond);
    while (!g->open)
        lock_wait(&g->lock, &g->cond, -1);
    lock_give(&g->lock);
}

static void gate_close(struct gate *g, struct workpool *p)
{
    *g = (struct gate){.open = false};
    lock_init(&g->lock, RANK_LEAF);
    cond_init(&g->cond);
    job_init(&g->job, JOB_CLIENT, gate_run, g, NULL, NULL);
    assert_true(workpool_post(p, &g->job));
    lock_take(&g->lock);
    while (!g->entered)
        lock_wait(&g->lock, &g->cond, -1);
    lock_give(&g->lock);
}

static void gate_open(struct gate *g)
{
    lock_take(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->cond);
    lock_give(&g->lock);
}

static void gate_release(struct gate *g)
{
    pthread_cond_destroy(&g->cond);
    lock_release(&g->lock);
}

/* ---- jobs that note the order in which they ran ---- */

#define JOBS 200

static char order[2 * JOBS + 1];
static unsigned order_len; /* one worker: no lock */

struct noting {
    struct job job;
    char mark;
};

static void note_run(void *arg)
{
    struct noting *n = arg;

    order[order_len++] = n->mark;
}

static struct workpool *pool_new(unsigned threads)
{
    struct workpool *p = NULL;
    struct err err = ERR_INIT;

    assert_int_equal(workpool_new("test", threads, &p, &err), 0);
    return p;
}

static void test_clients_first_with_a_share_for_background(void **state UNUSED)
{
    struct workpool *p = pool_new(1);
    static struct noting jobs[2 * JOBS];
    struct gate gate;
    unsigned background = 0;

    order_len = 0;
    gate_close(&gate, p);
    for (unsigned i = 0; i < 2 * JOBS; i++) {
        jobs[i].mark = i < JOBS ? 'b' : 'c';
        job_init(&jobs[i].job, i < JOBS ? JOB_BACKGROUND : JOB_CLIENT, note_run, &jobs[i], NULL, NULL);
        assert_true(workpool_post(p, &jobs[i].job));
    }
    assert_false(workpool_post(p, &jobs[0].job)); /* queued already */
    assert_int_equal(workpool_queued(p), 2 * JOBS);
    gate_open(&gate);
    workpool_free(p);
    gate_release(&gate);

    assert_int_equal(order_len, 2 * JOBS);
    /* While clients wait: one in eight, never two background jobs in a row. */
    const char *last_client = strrchr(order, 'c');
    for (const char *c = order; c < last_client; c++) {
        background += *c == 'b';
        assert_false(c[0] == 'b' && c[1] == 'b');
    }
    assert_true(background >= JOBS / 8 && background <= JOBS / 6);
    for (const char *c = order; c + 8 <= last_client; c++)
        assert_non_null(memchr(c, 'b', 8));
}

static void test_fifo_within_a_class(void **state UNUSED)
{
    struct workpool *p = pool_new(1);
    static struct noting jobs[26];
    struct gate gate;

    order_len = 0;
    memset(order, 0, sizeof order);
    gate_close(&gate, p);
    for (unsigned i = 0; i < 26; i++) {
        jobs[i].mark = (char)('a' + i);
        job_init(&jobs[i].job, JOB_BACKGROUND, note_run, &jobs[i], NULL, NULL);
        assert_true(workpool_post(p, &jobs[i].job));
    }
    gate_open(&gate);
    workpool_free(p);
    gate_release(&gate);
    assert_string_equal(order, "abcdefghijklmnopqrstuvwxyz");
}

/* ---- an object with references, posted from many threads ---- */

struct object {
    struct job job;
    struct workpool *pool;
    atomic_int refs;
    atomic_int inside;    /* threads in fn at this moment */
    unsigned runs;        /* touched by fn only: TSan checks that fn never overlaps itself */
    unsigned repost_left; /* by fn only */
    atomic_int *freed;
    unsigned *out_runs;
};

static void object_ref(void *arg)
{
    struct object *o = arg;

    REQUIRE(atomic_fetch_add(&o->refs, 1) > 0); /* cmocka's asserts belong to the main thread */
}

static void object_unref(void *arg)
{
    struct object *o = arg;

    if (atomic_fetch_sub(&o->refs, 1) != 1)
        return;
    *o->out_runs = o->runs;
    atomic_fetch_add(o->freed, 1);
    free(o);
}

static void object_run(void *arg)
{
    struct object *o = arg;

    REQUIRE(atomic_fetch_add(&o->inside, 1) == 0);
    o->runs++;
    if (o->repost_left > 0) {
        o->repost_left--;
        workpool_post(o->pool, &o->job);
    }
    atomic_fetch_sub(&o->inside, 1);
}

static struct object *object_new(struct workpool *p, atomic_int *freed, unsigned *out_runs)
{
    struct object *o = calloc(1, sizeof *o);

    assert_non_null(o);
    o->pool = p;
    o->freed = freed;
    o->out_runs = out_runs;
    atomic_init(&o->refs, 1);
    job_init(&o->job, JOB_CLIENT, object_run, o, object_ref, object_unref);
    return o;
}

static void test_reposts_itself(void **state UNUSED)
{
    struct workpool *p = pool_new(3);
    atomic_int freed = 0;
    unsigned runs = 0;
    struct object *o = object_new(p, &freed, &runs);

    o->repost_left = 500;
    assert_true(workpool_post(p, &o->job));
    object_unref(o); /* the pool's reference keeps it alive through all the reposts */
    workpool_free(p);
    assert_int_equal(freed, 1);
    assert_int_equal(runs, 501);
}

static void test_post_while_running_runs_once_more(void **state UNUSED)
{
    struct workpool *p = pool_new(4);
    struct gate gate;

    gate_close(&gate, p);
    assert_true(workpool_post(p, &gate.job));
    assert_false(workpool_post(p, &gate.job));
    assert_false(workpool_post(p, &gate.job));
    assert_int_equal(workpool_queued(p), 0); /* it waits for its own end, not in the queue */
    gate_open(&gate);
    workpool_free(p);
    gate_release(&gate);
}

#define POSTERS 4
#define POSTS 3000

struct poster {
    pthread_t id;
    struct object *o;
};

static void *poster_main(void *arg)
{
    struct poster *poster = arg;

    for (int i = 0; i < POSTS; i++) {
        workpool_post(poster->o->pool, &poster->o->job);
        if (i % 64 == 0)
            sched_yield();
    }
    object_unref(poster->o);
    return NULL;
}

static void test_many_posters_never_overlap(void **state UNUSED)
{
    struct workpool *p = pool_new(4);
    struct poster posters[POSTERS];
    atomic_int freed = 0;
    unsigned runs = 0;
    struct object *o = object_new(p, &freed, &runs);

    for (int i = 0; i < POSTERS; i++) {
        object_ref(o);
        posters[i].o = o;
        assert_int_equal(pthread_create(&posters[i].id, NULL, poster_main, &posters[i]), 0);
    }
    object_unref(o);
    for (int i = 0; i < POSTERS; i++)
        pthread_join(posters[i].id, NULL);
    workpool_free(p);
    assert_int_equal(freed, 1);
    assert_true(runs >= 1 && runs <= POSTERS * POSTS);
}

static void test_every_object_is_freed_once(void **state UNUSED)
{
    struct workpool *p = pool_new(4);
    static unsigned runs[2000];
    atomic_int freed = 0;

    for (unsigned i = 0; i < ARRAY_LEN(runs); i++) {
        struct object *o = object_new(p, &freed, &runs[i]);

        o->repost_left = i % 3;
        assert_true(workpool_post(p, &o->job));
        object_unref(o); /* races with the run */
    }
    workpool_free(p);
    assert_int_equal(freed, (int)ARRAY_LEN(runs));
    for (unsigned i = 0; i < ARRAY_LEN(runs); i++)
        assert_int_equal(runs[i], 1 + i % 3);
}

static char thread_name[16];

static void name_run(void *arg UNUSED)
{
    pthread_getname_np(pthread_self(), thread_name, sizeof thread_name);
}

static void test_thread_names(void **state UNUSED)
{
    struct workpool *p = pool_new(1);
    struct job job;

    job_init(&job, JOB_BACKGROUND, name_run, NULL, NULL, NULL);
    assert_true(workpool_post(p, &job));
    workpool_free(p);
    assert_string_equal(thread_name, "test-0");
    workpool_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clients_first_with_a_share_for_background),
        cmocka_unit_test(test_fifo_within_a_class),
        cmocka_unit_test(test_reposts_itself),
        cmocka_unit_test(test_post_while_running_runs_once_more),
        cmocka_unit_test(test_many_posters_never_overlap),
        cmocka_unit_test(test_every_object_is_freed_once),
        cmocka_unit_test(test_thread_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
