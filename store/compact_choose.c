/* SPDX-License-Identifier: Apache-2.0
 * store/compact_choose.c - which pack is compacted next, by what memory knows of them.
 *
 * Packs whose share of live bytes is not known are counted first. Then the one with the least share goes first, as long as that
 * is little enough: it frees most for what it costs. Many small packs are a burden of their own (files, descriptors, the time
 * to open a store): when there are too many for what is in them, the smallest is merged into the active one.
 */
#include "store/compact_internal.h"

#define PACKS_SPARE 16   /* so many are never too many; beyond that, */
#define PACKS_PER_FULL 4 /* so many for each that would be needed if all were full */

/* Without what a file system allocates ahead behind the end. */
static uint64_t blocks(const struct pack_info *p)
{
    uint64_t file = room_round(p->end);

    return p->disk_bytes < file ? p->disk_bytes : file;
}

bool compact_enough(uint64_t live_bytes, const struct pack_info *p, unsigned percent)
{
    return live_bytes >= blocks(p) / 100 * percent;
}

static bool worth(const struct pack_info *p, unsigned percent)
{
    return p->idle && p->live_known && (p->live_bytes == 0 || !compact_enough(p->live_bytes, p, percent));
}

/* The one with the least share of live bytes; or a small one, when there are too many. */
static const struct pack_info *best(const struct store *st, const struct pack_info *packs, size_t count,
                                    unsigned percent, uint64_t *out_waiting)
{
    const struct pack_info *first = NULL, *smallest = NULL;
    uint64_t total = 0;

    for (size_t i = 0; i < count; i++) {
        const struct pack_info *p = &packs[i];

        total += p->disk_bytes;
        if (p->idle && p->live_known && (smallest == NULL || p->live_bytes < smallest->live_bytes))
            smallest = p;
        if (!worth(p, percent))
            continue;
        ++*out_waiting;
        if (first == NULL || p->live_bytes * (blocks(first) / 4096) < first->live_bytes * (blocks(p) / 4096))
            first = p;
    }
    if (first != NULL || count <= PACKS_SPARE + PACKS_PER_FULL * (total / packs_max_bytes(st->packs) + 1))
        return first;
    *out_waiting = 1;
    return smallest;
}

int compact_choose(struct store *st, unsigned percent, struct pack_info *out, enum compact_choice *out_choice,
                   uint64_t *out_waiting, struct err *err)
{
    CLEANUP(free_ptr) struct pack_info *packs = NULL;
    const struct pack_info *found;
    size_t count = 0;

    *out_choice = COMPACT_NOTHING;
    *out_waiting = 0;
    TRY(packs_list(st->packs, &packs, &count, err));
    found = best(st, packs, count, percent, out_waiting);
    if (found != NULL) {
        *out = *found;
        *out_choice = COMPACT_MOVE;
    }
    for (size_t i = 0; i < count; i++) {
        if (!packs[i].idle || packs[i].live_known)
            continue;
        *out = packs[i];
        *out_choice = COMPACT_COUNT;
        break;
    }
    return 0;
}
