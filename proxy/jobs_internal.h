/* SPDX-License-Identifier: Apache-2.0
 * proxy/jobs_internal.h - background work: the tables (jobs.c), one blob becoming canonical (canon.c), one image getting
 * its views (image.c), and the views themselves (views.c).
 */
#pragma once

#include "base/stream.h"
#include "proxy/proxy_internal.h"
#include "store/layer.h"

struct canon_job {
    uint32_t magic;
    atomic_uint refs;
    struct jobs *js;
    struct canon_job *link; /* under the lock */
    bool running;
    bool settling; /* done but for its original, which is being read: takes no place from others */
    struct digest digest;
    struct job job;
    /* the run's own */
    struct source *source; /* decoded bytes */
    struct layer_writer *writer;
    bool reading; /* what fails now is the original's fault, or its file's; else the store's */
    bool committed;
    struct timer timer;
    void *buffer;
    int tries;
    int64_t start_ms;
};

struct image_job {
    uint32_t magic;
    atomic_uint refs;
    struct jobs *js;
    struct image_job *link; /* under the lock */
    bool running;           /* under the lock: had its first turn */
    const struct upstream *up;
    int64_t repo;
    char name[OCI_NAME_MAX_BYTES + 10];
    struct digest manifest;
    bool recheck; /* only look whether it has been signed meanwhile */
    struct job job;
    struct timer timer;
    struct waiter waiter;
    /* the run's own */
    bool over, head_start_given, calling;
    atomic_bool head_start_over;
    struct fill *fill;
    int failures;
    size_t attempts, attempts_max; /* transfers and canon jobs it has asked for */
    struct digest *targets; /* the manifest and the indexes that list it: whose signatures and views are looked after */
    size_t target_count, target_at;
    int call_at;
    bool found_signature;
    /* what the upstream said; written on its thread, read by the next step */
    atomic_bool answered;
    struct upstream_answer answer;
    struct err answer_err;
};

struct jobs {
    struct proxy *p;
    struct lock lock; /* RANK_SERVER; never together with the proxy's */
    pthread_cond_t idle;
    struct canon_job *canons;
    struct image_job *images;
    unsigned canon_count, canon_running, canon_max;
    unsigned image_count, images_running; /* rechecks are not counted as running */
    struct waiter_list waiters;
    bool stopping;
    struct job room; /* evicts ahead of need */
};

/* jobs.c */
bool jobs_stopping(struct jobs *js);
void jobs_canon_settling(struct canon_job *c);
void jobs_canon_over(struct canon_job *c);
void jobs_image_over(struct image_job *im);
void jobs_make_room(struct jobs *js); /* when something was stored */

/* canon.c, image.c */
MUST_CHECK int canon_new(struct jobs *js, const struct digest *d, struct canon_job **out, struct err *err);
void canon_unref(void *c);
MUST_CHECK int image_new(struct jobs *js, const struct upstream *up, int64_t repo, const char *name,
                         const struct digest *manifest, bool recheck, struct image_job **out, struct err *err);
void image_unref(void *im);

/* views.c: ERR_FORMAT with a reason for people when the image can never be rewritten. */
MUST_CHECK int views_make_image(struct store *st, const struct store_manifest *m, struct err *err);
MUST_CHECK int views_make_index(struct store *st, const struct digest *index, struct err *err);
