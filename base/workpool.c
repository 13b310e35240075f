/* SPDX-License-Identifier: Apache-2.0
 * base/workpool.c - two FIFO queues, one lock, N threads.
 *
 * W1 a job is in at most one queue, and its fn runs on at most one thread.
 * W2 the pool holds one reference on arg while the job's state is not IDLE.
 * W3 ref and unref are called with no lock held: they may take the object's own lock, whose rank is lower.
 *
 * W3 is why a post takes its reference before it knows whether one is needed: a reference taken after the job became
 * visible in the queue could come after a worker has dropped the last one.
 */
#include "base/workpool.h"

#include "base/lock.h"

#include <signal.h>

#define POOL_MAGIC 0x3009a11fu
#define CLASSES 2
#define BACKGROUND_EVERY 8 /* at least one in so many when any waits */
#define THREADS_MAX 256

enum job_state { JOB_IDLE = 0, JOB_QUEUED, JOB_RUNNING, JOB_RUNNING_AGAIN };

struct queue {
    struct job *head;
    struct job **tail;
};

struct workpool {
    uint32_t magic;
    struct lock lock;
    pthread_cond_t wake;
    struct queue queues[CLASSES];
    size_t queued;
    unsigned clients_in_row;
    bool stopping;
    unsigned threads;
    pthread_t ids[];
};

void job_init(struct job *j, enum job_class class, job_fn *fn, void *arg, void (*ref)(void *), void (*unref)(void *))
{
    REQUIRE((ref == NULL) == (unref == NULL));
    *j = (struct job){.fn = fn, .arg = arg, .ref = ref, .unref = unref, .class = class, .state = JOB_IDLE};
}

static void enqueue(struct workpool *p, struct job *j)
{
    struct queue *q = &p->queues[j->class];

    j->state = JOB_QUEUED;
    j->next = NULL;
    *q->tail = j;
    q->tail = &j->next;
    p->queued++;
    pthread_cond_signal(&p->wake);
}

static struct job *dequeue(struct workpool *p)
{
    struct queue *client = &p->queues[JOB_CLIENT];
    struct queue *background = &p->queues[JOB_BACKGROUND];
    struct queue *q = client;

    if (background->head != NULL && (client->head == NULL || p->clients_in_row >= BACKGROUND_EVERY - 1))
        q = background;
    if (q->head == NULL)
        return NULL;
    if (q == background)
        p->clients_in_row = 0;
    else if (p->clients_in_row < BACKGROUND_EVERY)
        p->clients_in_row++;

    struct job *j = q->head;
    q->head = j->next;
    if (q->head == NULL)
        q->tail = &q->head;
    j->next = NULL;
    p->queued--;
    return j;
}

bool workpool_post(struct workpool *p, struct job *j)
{
    bool posted = false;
    bool keep_ref = false;
    void *arg = j->arg;
    void (*unref)(void *) = j->unref;

    REQUIRE(p->magic == POOL_MAGIC);
    if (j->ref != NULL)
        j->ref(arg);
    lock_take(&p->lock);
    switch ((enum job_state)j->state) {
    case JOB_IDLE:
        enqueue(p, j);
        posted = keep_ref = true;
        break;
    case JOB_RUNNING:
        /* The worker that runs it has a reference already and will queue it with that. */
        j->state = JOB_RUNNING_AGAIN;
        posted = true;
        break;
    case JOB_QUEUED:
    case JOB_RUNNING_AGAIN:
        break;
    }
    lock_give(&p->lock);
    /* Without keep_ref j may be gone already; arg lives by the reference taken above. */
    if (!keep_ref && unref != NULL)
        unref(arg);
    return posted;
}

/* Runs one job with the lock held on entry and on return. */
static void run_job(struct workpool *p, struct job *j)
{
    void *arg = j->arg;
    void (*unref)(void *) = j->unref;

    j->state = JOB_RUNNING;
    lock_give(&p->lock);
    j->fn(arg);
    lock_take(&p->lock);
    if (j->state == JOB_RUNNING_AGAIN) {
        enqueue(p, j); /* with the reference */
        return;
    }
    j->state = JOB_IDLE;
    lock_give(&p->lock);
    if (unref != NULL)
        unref(arg);
    lock_take(&p->lock);
}

static void *worker_main(void *pool)
{
    struct workpool *p = CAST_OBJ(struct workpool, POOL_MAGIC, pool);

    lock_take(&p->lock);
    for (;;) {
        struct job *j = dequeue(p);

        if (j != NULL)
            run_job(p, j);
        else if (p->stopping)
            break;
        else
            lock_wait(&p->lock, &p->wake, -1);
    }
    lock_give(&p->lock);
    return NULL;
}

/* Signals are the main thread's business; only those that a thread earns itself stay open. */
static void block_signals(sigset_t *out_before)
{
    sigset_t set;

    sigfillset(&set);
    sigdelset(&set, SIGSEGV);
    sigdelset(&set, SIGBUS);
    sigdelset(&set, SIGFPE);
    sigdelset(&set, SIGILL);
    sigdelset(&set, SIGABRT);
    REQUIRE(pthread_sigmask(SIG_SETMASK, &set, out_before) == 0);
}

static int start_threads(struct workpool *p, const char *name, unsigned threads, struct err *err)
{
    sigset_t before;
    int rc = 0;

    block_signals(&before);
    while (p->threads < threads && rc == 0) {
        rc = pthread_create(&p->ids[p->threads], NULL, worker_main, p);
        if (rc == 0) {
            char thread_name[16]; /* the kernel's limit */

            snprintf(thread_name, sizeof thread_name, "%.10s-%u", name, p->threads);
            pthread_setname_np(p->ids[p->threads], thread_name);
            p->threads++;
        }
    }
    REQUIRE(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    return rc == 0 ? 0 : err_sys(err, rc, "starting thread %u of pool %s", p->threads, name);
}

int workpool_new(const char *name, unsigned threads, struct workpool **out, struct err *err)
{
    struct workpool *p;
    size_t size;

    *out = NULL;
    REQUIRE(threads >= 1 && threads <= THREADS_MAX);
    size = sizeof *p + threads * sizeof p->ids[0];
    p = calloc(1, size);
    if (p == NULL)
        return err_nomem(err, size);
    p->magic = POOL_MAGIC;
    lock_init(&p->lock, RANK_POOL);
    cond_init(&p->wake);
    for (unsigned i = 0; i < CLASSES; i++)
        p->queues[i].tail = &p->queues[i].head;
    if (start_threads(p, name, threads, err) < 0) {
        workpool_free(p);
        return err->code;
    }
    *out = p;
    return 0;
}

void workpool_free(struct workpool *p)
{
    if (p == NULL)
        return;
    REQUIRE(p->magic == POOL_MAGIC);
    lock_take(&p->lock);
    p->stopping = true;
    pthread_cond_broadcast(&p->wake);
    lock_give(&p->lock);
    for (unsigned i = 0; i < p->threads; i++)
        REQUIRE(pthread_join(p->ids[i], NULL) == 0);
    REQUIRE(p->queued == 0);
    p->magic = 0;
    pthread_cond_destroy(&p->wake);
    lock_release(&p->lock);
    free(p);
}

size_t workpool_queued(struct workpool *p)
{
    size_t queued;

    lock_take(&p->lock);
    queued = p->queued;
    lock_give(&p->lock);
    return queued;
}
