/* SPDX-License-Identifier: Apache-2.0
 * store/gc.h - garbage collection in small steps: what is over the low mark is evicted, holes that are left are punched,
 * and packs that are mostly dead are compacted: their live records move to the active pack, and the file goes.
 *
 * Use: store_gc_new -> store_gc_step while *out_more -> store_gc_free
 * Threads: one gc belongs to one thread at a time; worker threads only, since a step blocks on disk. Anything else may
 *      use the store meanwhile, readers of the layers that move included.
 * A step copies at most 1 MiB or takes about 10 ms, whichever comes first, and one that copied ends with a commit; a crash
 * at any place, or a gc that is freed early, loses nothing and leaves nothing behind that the next open does not remove.
 */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct store;
struct store_gc;

struct store_gc_progress {
    uint64_t evicted, evicted_bytes; /* things, and by how much the store shrank meanwhile */
    uint64_t packs, packs_done;      /* to be compacted, as far as known; compacted */
    uint64_t moved_bytes;            /* records appended again */
    uint64_t freed_bytes;            /* blocks that the compacted packs gave back, less moved_bytes; 0 when it was more */
};

/* evict: also down to the low mark of the quota, whatever the high mark says. Otherwise what is there stays, and only
 * dead bytes go. */
MUST_CHECK int store_gc_new(struct store *st, bool evict, struct store_gc **out, struct err *err);
/* ERR_BUSY: another gc is at it. After another error the next step may be tried, or not. out: so far, in total. */
MUST_CHECK int store_gc_step(struct store_gc *gc, struct store_gc_progress *out, bool *out_more, struct err *err);
void store_gc_free(struct store_gc *gc); /* NULL is fine */

/* Cheap: whether there is a pack worth compacting. */
MUST_CHECK int store_gc_wanted(struct store *st, bool *out, struct err *err);
