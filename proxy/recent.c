/* SPDX-License-Identifier: Apache-2.0
 *
 * Sets of four slots, chosen by a hash of the question; the questions themselves are compared, since whoever can make two
 * hashes meet must not get another one's answer. A new answer takes the slot of its question, else the one that was used
 * longest ago.
 */
#include "proxy/recent.h"
#include "base/clock.h"
#include "base/lock.h"

#include <string.h>

#define SETS 128
#define WAYS 4
#define QUESTION_MAX_BYTES 2048
#define BODY_MAX_BYTES (16u << 10)

struct slot {
    char *question; /* NULL: empty */
    size_t question_len;
    uint64_t generation;
    int64_t from_s, until_s;
    uint64_t used; /* ticks */
    struct http_answer answer;
};

struct recent {
    struct lock lock; /* RANK_LEAF: all below */
    uint64_t tick;
    struct slot slots[SETS][WAYS];
};

int recent_new(struct recent **out, struct err *err)
{
    struct recent *rc = calloc(1, sizeof(*rc));

    if (!rc)
        return err_nomem(err, sizeof(*rc));
    lock_init(&rc->lock, RANK_LEAF);
    *out = rc;
    return 0;
}

static void slot_clear(struct slot *s)
{
    free(s->question);
    http_answer_release(&s->answer);
    *s = (struct slot){.question = NULL};
}

void recent_free(struct recent *rc)
{
    if (!rc)
        return;
    for (size_t i = 0; i < SETS; i++) {
        for (size_t j = 0; j < WAYS; j++)
            slot_clear(&rc->slots[i][j]);
    }
    lock_release(&rc->lock);
    free(rc);
}

/* FNV-1a; who makes collisions shares four slots with himself. */
static size_t set_of(const char *question, size_t len)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)question[i]) * 0x100000001b3u;
    return (size_t)(h >> 32) % SETS;
}

static int copy_answer(const struct http_answer *from, struct http_answer *out, struct err *err)
{
    struct http_answer a = {.status = from->status,
                            .has_length = from->has_length,
                            .length_bytes = from->length_bytes,
                            .cache = from->cache,
                            .view = from->view};
    int rc = 0;

    if (from->body) {
        a.body = malloc(from->body_len + 1);
        if (!a.body)
            return err_nomem(err, from->body_len);
        memcpy(a.body, from->body, from->body_len);
        a.body_len = from->body_len;
    }
    for (unsigned i = 0; i < from->header_count && rc == 0; i++)
        rc = http_answer_header(&a, err, from->headers[i].name, "%s", from->headers[i].value);
    if (rc < 0)
        http_answer_release(&a);
    else
        *out = a;
    return rc;
}

static struct slot *find(struct slot set[WAYS], const char *question, size_t len)
{
    for (size_t i = 0; i < WAYS; i++) {
        if (set[i].question && set[i].question_len == len && memcmp(set[i].question, question, len) == 0)
            return &set[i];
    }
    return NULL;
}

bool recent_find(struct recent *rc, const struct http_exchange *x, uint64_t generation, struct http_answer *out)
{
    char question[QUESTION_MAX_BYTES];
    size_t len = http_question(x, question, sizeof(question));
    int64_t now = clock_wall_s();
    struct err err = ERR_INIT;
    bool found = false;

    if (len == 0)
        return false;
    lock_take(&rc->lock);
    struct slot *s = find(rc->slots[set_of(question, len)], question, len);
    if (s && s->generation == generation && now >= s->from_s && now < s->until_s) {
        s->used = ++rc->tick;
        found = copy_answer(&s->answer, out, &err) == 0;
    }
    lock_give(&rc->lock);
    return found;
}

static struct slot *place_for(struct slot set[WAYS], const char *question, size_t len)
{
    struct slot *best = find(set, question, len);

    for (size_t i = 0; i < WAYS && !best; i++) {
        if (!set[i].question)
            best = &set[i];
    }
    if (best)
        return best;
    best = &set[0];
    for (size_t i = 1; i < WAYS; i++)
        best = set[i].used < best->used ? &set[i] : best;
    return best;
}

void recent_keep(struct recent *rc, const struct http_exchange *x, uint64_t generation, int64_t from_s, int64_t until_s,
                 const struct http_answer *a)
{
    char question[QUESTION_MAX_BYTES];
    size_t len = http_question(x, question, sizeof(question));
    struct slot fresh = {.question_len = len, .generation = generation, .from_s = from_s, .until_s = until_s};
    struct err err = ERR_INIT;

    if (len == 0 || a->body_len > BODY_MAX_BYTES || a->source)
        return;
    fresh.question = malloc(len);
    if (!fresh.question || copy_answer(a, &fresh.answer, &err) < 0) {
        free(fresh.question);
        return;
    }
    memcpy(fresh.question, question, len);
    lock_take(&rc->lock);
    struct slot *s = place_for(rc->slots[set_of(question, len)], question, len);
    struct slot old = *s;
    fresh.used = ++rc->tick;
    *s = fresh;
    lock_give(&rc->lock);
    slot_clear(&old);
}
