/* SPDX-License-Identifier: Apache-2.0
 *
 * What is left alone for now. An upstream that is down, limits us or does not answer would be asked again for every request
 * of a tag whose time is over, and each of these requests would wait for the same failure. What it says of one tag only
 * (404, 403, bytes that are no manifest) is noted for that tag: the others go on being asked for.
 */
#include "base/clock.h"
#include "proxy/proxy_internal.h"

#define NOTES 1024 /* a power of two; a newer note takes an older one's place, which costs one question upstream */

struct tag_note {
    struct digest key; /* of upstream, repository and tag: names of any length take the same room */
    enum noted what;
    int64_t until_ms;
};

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
    quiet = quiet || resolve_any_left(p, up);
    lock_give(&p->lock);
    return quiet;
}

int tag_notes_new(struct tag_note **out, struct err *err)
{
    *out = calloc(NOTES, sizeof(**out));
    return *out ? 0 : err_nomem(err, NOTES * sizeof(**out));
}

/* Names hold no colon, so the text is one of its three parts. */
static void key_of(const struct upstream *up, const char *name, const char *tag, struct digest *out)
{
    char text[1024];

    int len = snprintf(text, sizeof(text), "%p:%s:%s", (const void *)up, name, tag);
    digest_of(text, (size_t)len < sizeof(text) ? (size_t)len : sizeof(text) - 1, out);
}

static struct tag_note *slot_of(const struct proxy *p, const struct digest *key)
{
    uint32_t at;

    memcpy(&at, key->b, sizeof(at));
    return &p->notes[at % NOTES];
}

void tag_note(struct proxy *p, const struct upstream *up, const char *name, const char *tag, enum noted what, int ms)
{
    struct digest key;

    key_of(up, name, tag, &key);
    lock_take(&p->lock);
    struct tag_note *n = slot_of(p, &key);
    if (what != NOTED_NOTHING && ms > 0)
        *n = (struct tag_note){.key = key, .what = what, .until_ms = clock_mono_ms() + ms};
    else if (digest_equal(&n->key, &key))
        n->what = NOTED_NOTHING;
    lock_give(&p->lock);
}

enum noted tag_noted(struct proxy *p, const struct upstream *up, const char *name, const char *tag)
{
    struct digest key;

    key_of(up, name, tag, &key);
    lock_take(&p->lock);
    const struct tag_note *n = slot_of(p, &key);
    bool good = n->what != NOTED_NOTHING && digest_equal(&n->key, &key) && n->until_ms > clock_mono_ms();
    enum noted what = good ? n->what : NOTED_NOTHING;
    lock_give(&p->lock);
    return what;
}
