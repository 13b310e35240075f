/* SPDX-License-Identifier: Apache-2.0
 * store/gc.c - see the header. Eviction is room.c's, holes are sweep.c's, packs are compact.c's.
 */
#include "store/gc.h"

#include "store/compact_internal.h"

enum stage { STAGE_EVICT = 0, STAGE_HOLES, STAGE_PACKS };

struct store_gc {
    struct store *st;
    enum stage stage;
    bool begun;
    uint64_t pack_disk_bytes; /* of the packs that are gone */
    struct store_gc_progress done;
};

int store_gc_new(struct store *st, bool evict, struct store_gc **out, struct err *err)
{
    struct store_gc *gc = calloc(1, sizeof(*gc));

    if (gc == NULL)
        return err_nomem(err, sizeof(*gc));
    gc->st = st;
    gc->stage = evict ? STAGE_EVICT : STAGE_HOLES;
    *out = gc;
    return 0;
}

void store_gc_free(struct store_gc *gc)
{
    free(gc);
}

static uint64_t evictions(struct store *st)
{
    struct store_stats s = {.evictions = 0};

    room_stats(st, &s);
    return s.evictions;
}

/* What others evict meanwhile counts too. */
static int evict(struct store_gc *gc, struct err *err)
{
    uint64_t count = evictions(gc->st);
    uint64_t used = room_used(gc->st);
    uint64_t now;
    bool more = false;

    TRY(room_drain(gc->st, !gc->begun, &more, err));
    gc->begun = true;
    gc->done.evicted += evictions(gc->st) - count;
    now = room_used(gc->st);
    gc->done.evicted_bytes += now < used ? used - now : 0;
    if (!more)
        gc->stage = STAGE_HOLES;
    return 0;
}

static int compact(struct store_gc *gc, bool *out_more, struct err *err)
{
    struct compact_step step;

    TRY(compact_step(gc->st, COMPACT_PERCENT, &step, out_more, err));
    gc->done.packs_done += step.packs_done;
    gc->done.moved_bytes += step.moved_bytes;
    gc->pack_disk_bytes += step.disk_bytes;
    if (gc->done.packs < gc->done.packs_done + step.waiting)
        gc->done.packs = gc->done.packs_done + step.waiting;
    gc->done.freed_bytes = gc->pack_disk_bytes > gc->done.moved_bytes ? gc->pack_disk_bytes - gc->done.moved_bytes : 0;
    return 0;
}

int store_gc_step(struct store_gc *gc, struct store_gc_progress *out, bool *out_more, struct err *err)
{
    int rc = 0;

    *out_more = true;
    switch (gc->stage) {
    case STAGE_EVICT:
        rc = evict(gc, err);
        break;
    case STAGE_HOLES:
        gc->stage = STAGE_PACKS;
        rc = sweep_holes(gc->st, err);
        break;
    case STAGE_PACKS:
        rc = compact(gc, out_more, err);
        break;
    }
    *out = gc->done;
    return rc;
}

int store_gc_wanted(struct store *st, bool *out, struct err *err)
{
    return compact_wanted(st, COMPACT_PERCENT, out, err);
}
