/* SPDX-License-Identifier: Apache-2.0
 * store/pack_compact.c - what compaction asks of the table of packs: which may go, how much of each is of use, and that a
 * file goes while others read it.
 */
#include "base/clock.h"
#include "base/log.h"
#include "store/pack_internal.h"

#include <errno.h>
#include <unistd.h>

#define ASIDE_FIRST_MS 60000
#define ASIDE_MAX_MS 3600000

/* ---- holds -------------------------------------------------------------------------------------------------------------- */

void pack_hold_begin(struct packs *ps, struct pack_hold *h)
{
    lock_take(&ps->lock);
    *h = (struct pack_hold){.packs = ps, .from = ps->active != NULL ? ps->active->id : ps->last_id + 1};
    h->next = ps->holds;
    h->at = &ps->holds;
    if (h->next != NULL)
        h->next->at = &h->next;
    ps->holds = h;
    lock_give(&ps->lock);
}

void pack_hold_end(struct pack_hold *h)
{
    struct packs *ps = h->packs;

    if (ps == NULL)
        return;
    lock_take(&ps->lock);
    *h->at = h->next;
    if (h->next != NULL)
        h->next->at = h->at;
    lock_give(&ps->lock);
    h->packs = NULL;
}

/* ---- the list --------------------------------------------------------------------------------------------------------------- */

/* Ids below it are complete, and all that was to be said of them in the catalog has been. */
static int64_t settled_below(const struct packs *ps)
{
    int64_t below = ps->active != NULL ? ps->active->id : ps->last_id;

    for (const struct pack_hold *h = ps->holds; h != NULL; h = h->next)
        if (h->from < below)
            below = h->from;
    return below;
}

/* A pack that a failed append left behind, or whose end the catalog does not know yet, has its time later. */
static bool is_idle(const struct pack *p, int64_t settled, int64_t now_ms)
{
    return p->known && p->id < settled && p->appending == 0 && !p->syncing && !p->sync_failed &&
           p->synced == p->completed && p->recorded >= p->synced_end && now_ms >= p->aside_until;
}

int packs_list(struct packs *ps, struct pack_info **out, size_t *out_count, struct err *err)
{
    int64_t now_ms = clock_mono_ms();
    int64_t settled;

    (void)packs_disk_bytes(ps); /* brings the blocks of each up to date */
    lock_take(&ps->lock);
    *out = NULL;
    *out_count = ps->count;
    if (ps->count > 0)
        *out = calloc(ps->count, sizeof(**out));
    settled = settled_below(ps);
    for (size_t i = 0; *out != NULL && i < ps->count; i++) {
        const struct pack *p = ps->items[i];

        (*out)[i] = (struct pack_info){.id = p->id,
                                       .end = p->end,
                                       .disk_bytes = p->disk_bytes,
                                       .live_bytes = p->live_bytes,
                                       .live_known = p->live_changes == p->changes,
                                       .idle = is_idle(p, settled, now_ms),
                                       .changes = p->changes};
    }
    lock_give(&ps->lock);
    return *out_count > 0 && *out == NULL ? err_nomem(err, *out_count * sizeof(**out)) : 0;
}

void packs_set_live(struct packs *ps, int64_t pack, uint64_t live_bytes, uint64_t changes)
{
    struct pack *p;

    lock_take(&ps->lock);
    p = pack_find(ps, pack);
    if (p != NULL) {
        p->live_bytes = live_bytes;
        p->live_changes = changes;
    }
    lock_give(&ps->lock);
}

void packs_set_aside(struct packs *ps, int64_t pack)
{
    struct pack *p;

    lock_take(&ps->lock);
    p = pack_find(ps, pack);
    if (p != NULL) {
        p->aside_ms = p->aside_ms == 0 ? ASIDE_FIRST_MS : p->aside_ms * 2;
        if (p->aside_ms > ASIDE_MAX_MS)
            p->aside_ms = ASIDE_MAX_MS;
        p->aside_until = clock_mono_ms() + p->aside_ms;
    }
    lock_give(&ps->lock);
}

uint64_t packs_max_bytes(const struct packs *ps)
{
    return ps->max_bytes;
}

/* ---- removal ------------------------------------------------------------------------------------------------------------------ */

static void forget(struct packs *ps, struct pack *p)
{
    struct pack **stale = &ps->stale;
    size_t kept = 0;

    for (size_t i = 0; i < ps->count; i++)
        if (ps->items[i] != p)
            ps->items[kept++] = ps->items[i];
    ps->count = kept;
    while (*stale != NULL && *stale != p)
        stale = &(*stale)->next_stale;
    if (*stale != NULL)
        *stale = p->next_stale;
    ps->disk_bytes -= p->disk_bytes;
}

void packs_remove(struct packs *ps, int64_t pack)
{
    struct pack *p;

    lock_take(&ps->lock);
    p = pack_find(ps, pack);
    REQUIRE(p == NULL || p != ps->active);
    if (p != NULL) {
        forget(ps, p);
        p->gone = true;
        /* A file that stays has no row any more, so the next start removes it. */
        if (unlinkat(ps->dir_fd, pack_name(pack).s, 0) < 0)
            log_event(LOG_WARN, "pack.remove", "pack=%s errno=%d", pack_name(pack).s, errno);
        p->users++;
        pack_unuse(ps, p);
    }
    lock_give(&ps->lock);
}
