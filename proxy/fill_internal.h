/* SPDX-License-Identifier: Apache-2.0
 * proxy/fill_internal.h - struct fill, shared by fill.c (the run) and follow.c (those who read along).
 */
#pragma once

#include "base/stream.h"
#include "proxy/proxy_internal.h"
#include "store/spool.h"

#define FILL_MAGIC 0xf1115e77u

struct fill {
    uint32_t magic;
    atomic_uint refs;
    struct proxy *p;
    const struct upstream *up;
    int64_t repo; /* of name, 0: not in the catalog when the fill began */
    char name[OCI_NAME_MAX_BYTES + 10]; /* that it reads from, and that the upstream so confirms the blob for */
    struct digest digest;
    struct fill *link; /* under p->lock */
    /* the run's own */
    struct job job;
    struct source *stream;
    unsigned char *buffer;
    bool over;
    struct spool *spool; /* constant; NULL when it could not be opened */
    /* under the lock; err, detached_hasher and was_present are constant once the state says so */
    struct lock lock; /* RANK_FILL */
    enum fill_state state;
    struct waiter_list waiters; /* for another state */
    struct waiter_list readers; /* for more bytes, or another state */
    bool has_length;
    uint64_t length;
    bool was_present;
    struct err err;
    struct hasher *detached_hasher; /* state after the spool's last byte */
};

void fill_ref(void *f);
