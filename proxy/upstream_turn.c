/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_turn.c - how much is asked of an upstream at once: connections, and requests per second.
 *
 * Calls go ahead of streams, and streams may take three quarters of the connections at most, for they last long and stand
 * still while their readers do: a paused stream keeps its turn. Within each of the two it is first come, first served.
 *
 * The rate is a bucket that fills with max_rate requests a second and holds a second's worth. Two kinds of request do not
 * wait but leave a debt, so that the rate is right on the whole: the hops of a redirect, since what they lead to expires,
 * and those for tokens, since others wait for them (and would do so for ever, were they to wait for those in turn). Tokens
 * take no connection's turn either: they go to another host, mostly, and are few (U6).
 */
#include "proxy/upstream_internal.h"

#define CONNECTIONS_DEFAULT 64
#define COST 1000 /* of one request, in credit: max_rate of it come each millisecond */

struct line {
    struct exchange *first, **end;
};

struct turns {
    unsigned max, max_streams;
    unsigned running, streams; /* streams: those among the running */
    struct line calls, blobs;
    int64_t rate; /* 0: no limit */
    int64_t credit, credit_max, credit_ms;
};

int turns_new(unsigned max_connections, unsigned max_rate, struct turns **out, struct err *err)
{
    struct turns *t = calloc(1, sizeof *t);

    if (t == NULL)
        return err_nomem(err, sizeof *t);
    t->max = max_connections > 0 ? max_connections : CONNECTIONS_DEFAULT;
    t->max_streams = t->max == 1 ? 1 : t->max - (t->max < 4 ? 1 : t->max / 4);
    t->calls.end = &t->calls.first;
    t->blobs.end = &t->blobs.first;
    t->rate = max_rate;
    t->credit = t->credit_max = t->rate * COST;
    *out = t;
    return 0;
}

void turns_free(struct turns *t)
{
    if (t != NULL)
        REQUIRE(t->running == 0 && t->calls.first == NULL && t->blobs.first == NULL);
    free(t);
}

static void earn(struct turns *t, int64_t now_ms)
{
    int64_t passed_ms = now_ms - t->credit_ms;

    if (passed_ms > COST) /* a second fills it; also the first time, which counts from the start of the machine */
        passed_ms = COST;
    t->credit += passed_ms * t->rate;
    if (t->credit > t->credit_max)
        t->credit = t->credit_max;
    t->credit_ms = now_ms;
}

static bool may_go(const struct turns *t, enum exchange_kind kind)
{
    if (t->running >= t->max || (kind == EXCHANGE_STREAM && t->streams >= t->max_streams))
        return false;
    return t->rate == 0 || t->credit >= COST;
}

static void pay(struct turns *t)
{
    if (t->rate > 0)
        t->credit -= COST;
}

static void let_go(struct turns *t, struct exchange *x)
{
    pay(t);
    x->turn.held = true;
    t->running++;
    t->streams += x->kind == EXCHANGE_STREAM;
}

static struct line *line_of(struct turns *t, const struct exchange *x)
{
    return x->kind == EXCHANGE_STREAM ? &t->blobs : &t->calls;
}

static void step_out(struct line *line, struct exchange *x)
{
    *x->turn.link = x->turn.next;
    if (x->turn.next != NULL)
        x->turn.next->turn.link = x->turn.link;
    else
        line->end = x->turn.link;
    x->turn.next = NULL;
    x->turn.link = NULL;
}

bool turn_take(struct exchange *x, int64_t now_ms)
{
    struct turns *t = x->up->turns;
    struct line *line = line_of(t, x);

    REQUIRE(!x->turn.held && x->turn.link == NULL);
    earn(t, now_ms);
    if (x->kind == EXCHANGE_FETCH) {
        pay(t);
        return true;
    }
    /* With a call in line there is no turn for a stream either, or it would be the call's. */
    if (line->first == NULL && t->calls.first == NULL && may_go(t, x->kind)) {
        let_go(t, x);
        return true;
    }
    x->turn.next = NULL;
    x->turn.link = line->end;
    *line->end = x;
    line->end = &x->turn.next;
    return false;
}

void turn_count_hop(struct exchange *x)
{
    pay(x->up->turns);
}

void turn_leave(struct exchange *x)
{
    struct turns *t = x->up->turns;

    if (x->turn.link != NULL)
        step_out(line_of(t, x), x);
    if (!x->turn.held)
        return;
    x->turn.held = false;
    t->running--;
    t->streams -= x->kind == EXCHANGE_STREAM;
}

/* The one whose turn it is, out of the line; NULL: nobody's. */
static struct exchange *next_turn(struct turns *t)
{
    struct line *line = t->calls.first != NULL ? &t->calls : &t->blobs;
    struct exchange *x = line->first;

    if (x == NULL || !may_go(t, x->kind))
        return NULL;
    step_out(line, x);
    let_go(t, x);
    return x;
}

int64_t turns_run(struct upstreams *ups, int64_t now_ms)
{
    int64_t due_ms = INT64_MAX;

    for (size_t i = 0; i < ups->count; i++) {
        struct turns *t = ups->list[i]->turns;
        struct exchange *x;

        if (t->calls.first == NULL && t->blobs.first == NULL)
            continue;
        earn(t, now_ms);
        while ((x = next_turn(t)) != NULL)
            exchange_turn_came(x);
        if (t->rate > 0 && t->credit < COST && (t->calls.first != NULL || t->blobs.first != NULL)) {
            int64_t at_ms = now_ms + (COST - t->credit + t->rate - 1) / t->rate;
            due_ms = at_ms < due_ms ? at_ms : due_ms;
        }
    }
    return due_ms;
}
