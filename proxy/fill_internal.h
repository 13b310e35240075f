/* SPDX-License-Identifier: Apache-2.0
 * proxy/fill_internal.h - struct fill, shared by fill.c (the run), fill_decode.c and follow.c (those who read along).
 */
#pragma once

#include "base/stream.h"
#include "proxy/proxy_internal.h"
#include "store/spool.h"

#define FILL_MAGIC 0xf1115e77u
#define FILL_BUFFER_BYTES (256u << 10)

struct fill {
    uint32_t magic;
    atomic_uint refs;
    struct proxy *p;
    const struct upstream *up;
    int64_t repo;                       /* of name, 0: not in the catalog when the fill began */
    char name[OCI_NAME_MAX_BYTES + 10]; /* that it reads from, and that the upstream so confirms the blob for */
    struct digest digest;
    struct fill *link; /* under p->lock */
    /* the run's own */
    struct job job;
    struct source *stream;
    unsigned char *buffer;
    bool over;
    bool decoded;              /* an encoded blob's bytes did not match, what they decode to is tried */
    struct source *plain;      /* of an encoded blob, while it is decoded */
    struct spool *plain_spool; /* what it is decoded to */
    struct fill_probe *probe;  /* of an encoded blob that the spool does not take */
    struct spool *spool;       /* NULL when it could not be opened; changes once, under the lock: fill_decode_end() */
    /* under the lock; err, detached_hasher and was_present are constant once the state says so */
    struct lock lock; /* RANK_FILL */
    enum fill_state state;
    struct waiter_list waiters; /* for another state */
    struct waiter_list readers; /* for more bytes, or another state */
    bool has_length;
    uint64_t length;
    bool encoded; /* from STREAMING on: the upstream's answer has a Content-Encoding */
    bool was_present;
    struct err err;
    struct hasher *detached_hasher; /* state after the spool's last byte; NULL: that is at 0 */
    bool decode_alone;              /* detached and encoded: the blob is what its bytes decode to */
};

void fill_ref(void *f);
void fill_wake(void *f); /* runs the fill */

/* fill_decode.c; for the run, when all is in the spool and does not match */
MUST_CHECK int fill_decode_begin(struct fill *f, struct err *err);
/* STEP_MORE: again; STEP_WAIT: fill_wake() will be called, or has been; STEP_EOF: all is decoded; < 0. */
MUST_CHECK int fill_decode_slice(struct fill *f, struct err *err);
void fill_decode_end(struct fill *f); /* what was decoded is the fill's spool from here on */

/* fill_probe.c; for the run, with f->stream at its start */
MUST_CHECK int fill_probe_begin(struct fill *f, struct err *err);
MUST_CHECK int fill_probe_step(struct fill *f, struct err *err); /* STEP_MORE, STEP_WAIT, STEP_EOF; < 0 */
/* After STEP_EOF: length and decode_alone are known; ERR_CORRUPT when it is the blob in neither form. */
MUST_CHECK int fill_probe_end(struct fill *f, struct err *err);
void fill_probe_free(struct fill_probe *p); /* NULL is fine; before f->stream */
