/* SPDX-License-Identifier: Apache-2.0
 *
 * Which upstreams are left alone for now: one that is down, limits us or does not answer would be asked again for every
 * request of a tag whose time is over, and each of these requests would wait for the same failure.
 */
#include "base/clock.h"
#include "proxy/proxy_internal.h"

void quiet_begin(struct proxy *p, const struct upstream *up, int ms)
{
    lock_take(&p->lock);
    struct quiet *q = p->quiet;
    while (q && q->up != up)
        q = q->next;
    if (!q) {
        q = calloc(1, sizeof(*q));
        if (q) {
            q->up = up;
            q->next = p->quiet;
            p->quiet = q;
        }
    }
    if (q)
        q->until_ms = clock_mono_ms() + ms;
    lock_give(&p->lock);
}

bool quiet_now(struct proxy *p, const struct upstream *up)
{
    bool quiet = false;

    lock_take(&p->lock);
    for (struct quiet *q = p->quiet; q; q = q->next) {
        if (q->up == up)
            quiet = q->until_ms > clock_mono_ms();
    }
    lock_give(&p->lock);
    return quiet;
}
