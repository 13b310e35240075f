/* SPDX-License-Identifier: Apache-2.0
 * store/room_internal.h - the quota's account (room.c): whoever writes much takes room first, and gives it back when the
 * bytes are counted where they ended up, or are gone.
 *
 * Use: TRY(room_take(st, bytes, err)) -> write -> room_give(st, bytes), whatever came of it.
 * Threads: any. room_take() may evict, which takes the catalog and digest_lock(): call it with neither, and no other lock.
 */
#pragma once

#include "base/lock.h"
#include "store/store.h"

struct room {
    struct lock lock; /* RANK_ROOM: all of it */
    pthread_cond_t changed;
    uint64_t reserved;
    uint64_t evictions;
    bool evicting; /* one thread does; the others wait for what comes of it */
    bool draining; /* from the high mark down to the low one */
};

void room_init(struct room *r);
void room_release(struct room *r);

/* ERR_NOSPC when so much is not to be had, whatever is evicted. */
MUST_CHECK int room_take(struct store *st, uint64_t bytes, struct err *err);
void room_give(struct store *st, uint64_t bytes);
/* For what makes room itself: takes what is left of the whole quota, evicts nothing and waits for nobody. */
MUST_CHECK int room_take_spare(struct store *st, uint64_t bytes, struct err *err);

/* What bytes in a file of their own take. */
static inline uint64_t room_round(uint64_t bytes)
{
    return bytes > UINT64_MAX - 4095 ? bytes : (bytes + 4095) & ~UINT64_C(4095);
}

/* One step of eviction down to the low mark, whatever the high one says. first: the first of a series. */
MUST_CHECK int room_drain(struct store *st, bool first, bool *out_more, struct err *err);

uint64_t room_limit(const struct store *st); /* the most that room_take() can ever give */
uint64_t room_used(struct store *st);        /* bytes on disk but for the spool, which is all reserved */
void room_stats(struct store *st, struct store_stats *out);
