/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of background work. A job is on its table from the moment it is wanted until its last row is committed, so
 * jobs_pending() == 0 means that there is nothing left to do. All state that must outlive the process is in the catalog
 * (pending originals, wanted images); jobs_resume() takes it up again.
 */
#include "base/log.h"
#include "proxy/jobs_internal.h"
#include "proxy/maintain.h"

#include <unistd.h>

#define IMAGES_MAX 16 /* at once: each has a transfer, and looks at all of its layers whenever something is over */

/* ---- room: what was read longest ago goes before it is in somebody's way ------------------------------------------- */

static void make_room(void *arg)
{
    struct jobs *js = arg;
    struct err err = ERR_INIT;
    bool more = false;

    if (jobs_stopping(js))
        return;
    if (store_make_room(js->p->store, &more, &err) < 0)
        log_event(LOG_WARN, "store.room", "error=%s", log_quote(err.msg).s);
    if (more)
        workpool_post(js->p->pool, &js->room);
    else
        maintain_evicted(js->p->maintain);
}

void jobs_make_room(struct jobs *js)
{
    workpool_post(js->p->pool, &js->room);
}

int jobs_new(struct proxy *p, struct jobs **out, struct err *err)
{
    struct jobs *js = calloc(1, sizeof(*js));
    if (!js)
        return err_nomem(err, sizeof(*js));
    js->p = p;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    js->canon_max = cpus > 0 ? (unsigned)cpus : 1;
    lock_init(&js->lock, RANK_SERVER);
    cond_init(&js->idle);
    job_init(&js->room, JOB_BACKGROUND, make_room, js, NULL, NULL); /* freed after the pool */
    *out = js;
    return 0;
}

void jobs_free(struct jobs *js)
{
    if (!js)
        return;
    REQUIRE(!js->canons && !js->images);
    pthread_cond_destroy(&js->idle);
    lock_release(&js->lock);
    free(js);
}

bool jobs_stopping(struct jobs *js)
{
    lock_take(&js->lock);
    bool stopping = js->stopping;
    lock_give(&js->lock);
    return stopping;
}

uint64_t jobs_pending(struct jobs *js)
{
    /* Fills first: a fill queues its job before it leaves its table, so nothing is missed in between. */
    lock_take(&js->p->lock);
    uint64_t n = js->p->fill_count;
    lock_give(&js->p->lock);
    lock_take(&js->lock);
    n += js->canon_count + js->image_count;
    lock_give(&js->lock);
    return n;
}

/* ---- canonicalising: as many at once as there are processors ------------------------------------------------------ */

static struct canon_job *canon_find(struct jobs *js, const struct digest *d)
{
    for (struct canon_job *c = js->canons; c; c = c->link) {
        if (digest_equal(&c->digest, d))
            return c;
    }
    return NULL;
}

/* Called with the lock held. The list is in order of arrival. */
static void start_some(struct jobs *js)
{
    for (struct canon_job *c = js->canons; c && js->canon_running < js->canon_max; c = c->link) {
        if (c->running)
            continue;
        c->running = true;
        js->canon_running++;
        workpool_post(js->p->pool, &c->job);
    }
}

bool jobs_canon(struct jobs *js, const struct digest *original)
{
    struct canon_job *fresh;
    struct err err = ERR_INIT;

    if (canon_new(js, original, &fresh, &err) < 0) {
        log_event(LOG_WARN, "canon.queue", "digest=%s error=%s", digest_text(original).s, log_quote(err.msg).s);
        return false;
    }
    lock_take(&js->lock);
    bool listed = !js->stopping && !canon_find(js, original);
    if (listed) {
        struct canon_job **pp = &js->canons;
        while (*pp)
            pp = &(*pp)->link;
        *pp = fresh;
        js->canon_count++;
        start_some(js);
    }
    lock_give(&js->lock);
    if (!listed)
        canon_unref(fresh);
    return listed;
}

bool jobs_has_canon(struct jobs *js, const struct digest *original)
{
    lock_take(&js->lock);
    bool has = canon_find(js, original) != NULL;
    lock_give(&js->lock);
    return has;
}

/* Called with the lock held, after a job left its table. True when it was the last one. */
static bool one_over(struct jobs *js)
{
    bool last = !js->canons && !js->images;

    waiter_wake_all(&js->waiters);
    if (last)
        pthread_cond_broadcast(&js->idle);
    return last;
}

static void kick_locked(struct jobs *js)
{
    for (struct image_job *im = js->images; im; im = im->link) {
        if (im->running)
            workpool_post(js->p->pool, &im->job);
    }
}

void jobs_canon_settling(struct canon_job *c)
{
    struct jobs *js = c->js;

    lock_take(&js->lock);
    if (!c->settling) {
        c->settling = true;
        js->canon_running--;
        if (!js->stopping)
            start_some(js);
    }
    lock_give(&js->lock);
}

void jobs_canon_over(struct canon_job *c)
{
    struct jobs *js = c->js;

    lock_take(&js->lock);
    for (struct canon_job **pp = &js->canons; *pp; pp = &(*pp)->link) {
        if (*pp == c) {
            *pp = c->link;
            break;
        }
    }
    js->canon_count--;
    if (!c->settling)
        js->canon_running--;
    if (!js->stopping)
        start_some(js);
    kick_locked(js);
    bool last = one_over(js);
    lock_give(&js->lock);
    if (last)
        store_idle(js->p->store);
    jobs_make_room(js);
    canon_unref(c);
}

/* ---- images ------------------------------------------------------------------------------------------------------- */

static struct image_job *image_find(struct jobs *js, const struct digest *d, bool recheck)
{
    for (struct image_job *im = js->images; im; im = im->link) {
        if (im->recheck == recheck && digest_equal(&im->manifest, d))
            return im;
    }
    return NULL;
}

/* Called with the lock held. The newest are first: somebody asks for them now. */
static void start_images(struct jobs *js)
{
    for (struct image_job *im = js->images; im; im = im->link) {
        if (im->running || (!im->recheck && js->images_running >= IMAGES_MAX))
            continue;
        im->running = true;
        js->images_running += !im->recheck;
        workpool_post(js->p->pool, &im->job);
    }
}

static void queue_image(struct jobs *js, const struct upstream *up, int64_t repo, const char *name,
                        const struct digest *manifest, bool recheck)
{
    struct image_job *fresh;
    struct err err = ERR_INIT;

    if (js->p->opt.offline) /* the blobs and the word on signatures that it needs are upstream; its rows wait */
        return;
    lock_take(&js->lock);
    bool known = image_find(js, manifest, recheck) != NULL;
    lock_give(&js->lock);
    if (known)
        return;
    if (image_new(js, up, repo, name, manifest, recheck, &fresh, &err) < 0) {
        log_event(LOG_WARN, "image.queue", "digest=%s error=%s", digest_text(manifest).s, log_quote(err.msg).s);
        return;
    }
    lock_take(&js->lock);
    bool listed = !js->stopping && !image_find(js, manifest, recheck);
    if (listed) {
        fresh->link = js->images;
        js->images = fresh;
        js->image_count++;
        start_images(js);
    }
    lock_give(&js->lock);
    if (!listed)
        image_unref(fresh);
}

void jobs_image(struct jobs *js, const struct upstream *up, int64_t repo, const char *name,
                const struct digest *manifest)
{
    queue_image(js, up, repo, name, manifest, false);
}

void jobs_recheck(struct jobs *js, const struct upstream *up, int64_t repo, const char *name,
                  const struct digest *manifest)
{
    queue_image(js, up, repo, name, manifest, true);
}

bool jobs_has_image(struct jobs *js, const struct digest *manifest)
{
    lock_take(&js->lock);
    bool has = image_find(js, manifest, false) != NULL;
    lock_give(&js->lock);
    return has;
}

void jobs_image_over(struct image_job *im)
{
    struct jobs *js = im->js;

    lock_take(&js->lock);
    for (struct image_job **pp = &js->images; *pp; pp = &(*pp)->link) {
        if (*pp == im) {
            *pp = im->link;
            break;
        }
    }
    js->image_count--;
    js->images_running -= !im->recheck;
    if (!js->stopping)
        start_images(js);
    bool last = one_over(js);
    lock_give(&js->lock);
    if (last)
        store_idle(js->p->store);
    image_unref(im);
}

void jobs_kick(struct jobs *js)
{
    lock_take(&js->lock);
    kick_locked(js);
    lock_give(&js->lock);
}

void jobs_wait(struct jobs *js, struct waiter *w)
{
    lock_take(&js->lock);
    waiter_add(&js->waiters, w);
    lock_give(&js->lock);
}

void jobs_forget(struct jobs *js, struct waiter *w)
{
    lock_take(&js->lock);
    waiter_remove(w);
    lock_give(&js->lock);
}

/* ---- over restarts ------------------------------------------------------------------------------------------------ */

static int resume_canon(void *arg, const struct digest *d, struct err *err UNUSED)
{
    jobs_canon(arg, d);
    return 0;
}

static int resume_image(void *arg, int64_t repo, const char *upstream, const char *name, const struct digest *d,
                        struct err *err UNUSED)
{
    struct jobs *js = arg;
    const struct upstream *up = upstream_find(js->p->ups, upstream, strlen(upstream));
    if (up) /* else it was taken out of the configuration; its rows wait for its return */
        jobs_image(js, up, repo, name, d);
    return 0;
}

int jobs_resume(struct jobs *js, struct err *err)
{
    jobs_make_room(js); /* the quota may have become smaller */
    TRY(store_each_pending(js->p->store, resume_canon, js, err));
    return store_each_wanted(js->p->store, resume_image, js, err);
}

/* Called with the lock held. What is dropped stays pending or wanted in the catalog. */
static void drop_waiting(struct jobs *js)
{
    for (struct canon_job **pp = &js->canons; *pp;) {
        struct canon_job *c = *pp;
        if (c->running) {
            pp = &c->link;
            continue;
        }
        *pp = c->link;
        js->canon_count--;
        canon_unref(c);
    }
    for (struct image_job **pp = &js->images; *pp;) {
        struct image_job *im = *pp;
        if (im->running) {
            pp = &im->link;
            continue;
        }
        *pp = im->link;
        js->image_count--;
        image_unref(im);
    }
}

void jobs_stop(struct jobs *js)
{
    lock_take(&js->lock);
    js->stopping = true;
    drop_waiting(js);
    waiter_wake_all(&js->waiters); /* what they wait for may have been dropped */
    kick_locked(js);
    while (js->canons || js->images)
        lock_wait(&js->lock, &js->idle, -1);
    lock_give(&js->lock);
}
