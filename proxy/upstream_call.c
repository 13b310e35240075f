/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_call.c - exchanges whose answer fits in memory. Each try starts with an empty body; there is no resuming.
 */
#include "proxy/upstream_internal.h"

#include <inttypes.h>

#define BACKOFF_FIRST_MS 100 /* someone waits for this answer, and may have a stale one to give instead */

struct call {
    struct exchange x; /* first */
    struct buf body;
    upstream_done_fn *done;
    void *arg;
};

void upstream_answer_release(struct upstream_answer *a)
{
    free(a->head.content_type);
    free(a->head.link);
    free(a->head.filters_applied);
    free(a->head.content_encoding);
    buf_release(&a->body);
    a->head = (struct upstream_head){.retry_after_s = -1};
}

static int call_head(struct exchange *x, struct err *err)
{
    struct call *c = (struct call *)x;
    const struct upstream_head *h = &x->parser.head;

    if (x->head_only)
        return 0;
    if (h->status == 206) /* nobody asked for a part */
        return err_set(err, ERR_UPSTREAM, "a partial answer");
    if (h->has_length && h->length_bytes > c->body.limit_bytes)
        return err_set(err, ERR_LIMIT, "an answer of %" PRIu64 " bytes, the limit is %zu", h->length_bytes,
                       c->body.limit_bytes);
    buf_reset(&c->body);
    return 0;
}

static int call_body(struct exchange *x, const void *data, size_t len, struct err *err)
{
    struct call *c = (struct call *)x;

    return buf_add(&c->body, data, len, err);
}

static int call_complete(struct exchange *x UNUSED, struct err *err UNUSED)
{
    return 0;
}

static int call_refused(struct exchange *x UNUSED)
{
    return STEP_MORE;
}

static void call_end(struct exchange *x, const struct err *err)
{
    struct call *c = (struct call *)x;
    struct upstream_answer answer = {.head = x->parser.head, .body = c->body};

    /* The answer owns both from here. */
    buf_init(&c->body, 0);
    x->parser.head = (struct upstream_head){.retry_after_s = -1};
    if (err->code != 0)
        buf_reset(&answer.body);
    c->done(c->arg, &answer, err);
    upstream_answer_release(&answer);
}

static void call_free(struct exchange *x)
{
    struct call *c = (struct call *)x;

    buf_release(&c->body);
    free(c);
}

static const struct exchange_ops call_ops = {
    .backoff_ms = BACKOFF_FIRST_MS,
    .head = call_head,
    .body = call_body,
    .complete = call_complete,
    .refused = call_refused,
    .end = call_end,
    .free = call_free,
};

int upstream_call(struct upstreams *ups, const struct upstream_request *req, upstream_done_fn *done, void *arg,
                  struct err *err)
{
    struct call *c = calloc(1, sizeof *c);
    struct upstream_request from_start = *req;
    int rc;

    if (c == NULL)
        return err_nomem(err, sizeof *c);
    from_start.first = 0;
    buf_init(&c->body, req->limit_bytes);
    c->done = done;
    c->arg = arg;
    rc = exchange_init(&c->x, &call_ops, ups, &from_start, err);
    if (rc == 0)
        rc = upstreams_submit(ups, &c->x, err);
    exchange_unref(&c->x);
    return rc;
}
