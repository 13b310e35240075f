/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_stream.c - a blob on its way in: the ring between the upstream thread and the one reader.
 *
 * The upstream thread writes, the reader reads; each owns its part of the ring and copies without the lock, which only
 * guards the counters. The transfer pauses when a chunk does not fit and goes on when less than half is left to read, so
 * that a fast upstream and a slow reader meet once per quarter of a megabyte and not once per chunk.
 *
 * Positions: `at` of the exchange is the next byte to go into the ring, counted in the whole blob. A try whose answer
 * starts earlier (200 instead of 206) has its first `skip` bytes thrown away.
 */
#include "proxy/upstream_internal.h"

#include <inttypes.h>

#define BACKOFF_FIRST_MS 500

struct stream {
    struct source source; /* first */
    struct exchange x;
    uint64_t first; /* what the reader asked for */

    /* upstream thread only */
    bool has_total;
    uint64_t total;
    bool encoded;      /* this and any other answer has a Content-Encoding */
    uint64_t skip;     /* of this try, still to come */
    uint64_t part_end; /* a 206 without a total: the byte after its last */

    struct lock lock; /* RANK_UPSTREAM; never together with that of the inbox */
    source_wake_fn *wake;
    void *wake_arg;
    bool waiting; /* the reader got STEP_WAIT and was not told since */
    bool paused;  /* the transfer is, and was not asked to go on since */
    bool head_known, length_known, encoding_known, ended;
    uint64_t length_bytes;
    struct err err;
    uint8_t *ring;
    size_t start, used; /* of the ring */
};

static struct stream *stream_of_source(struct source *s);

static struct stream *stream_of(struct exchange *x)
{
    return (struct stream *)((char *)x - offsetof(struct stream, x));
}

/* RULE ZERO: the waker runs under the lock, which is what keeps it from running after source_free(). It may only post work
 * (base/stream.h), and whatever lock it took for more would fail the rank check. */
static void wake(struct stream *t)
{
    t->waiting = false;
    if (t->wake != NULL)
        t->wake(t->wake_arg);
}

/* ---- the upstream thread's side --------------------------------------------------------------------------------- */

static void publish_head(struct stream *t)
{
    lock_take(&t->lock);
    t->paused = false; /* a new try begins unpaused */
    t->length_known = t->has_total;
    t->length_bytes = t->total;
    t->encoding_known = t->encoded;
    if (!t->head_known) {
        t->head_known = true;
        wake(t);
    }
    lock_give(&t->lock);
}

/* Where in the blob this answer starts: 0, STEP_MORE when it is not the part that was asked for, < 0. */
static int place_answer(struct stream *t, struct err *err)
{
    struct exchange *x = &t->x;
    const struct content_range *range = &x->parser.range;

    t->skip = 0;
    t->part_end = 0;
    if (x->parser.head.status == 206) {
        if (x->at == 0 || x->no_range)
            return err_set(err, ERR_UPSTREAM, "status 206 without Range");
        if (!range->has_span || range->first != x->at)
            return STEP_MORE;
        t->part_end = range->last + 1;
        return 0;
    }
    if (x->parser.head.status != 200)
        return err_set(err, ERR_UPSTREAM, "status %d for a blob", x->parser.head.status);
    /* Range ignored. Each time costs what was there already, so it counts like a start-over. */
    if (x->at > t->first && (!x->no_range || t->encoded) && ++x->start_overs > x->ups->tries)
        return err_set(err, ERR_UPSTREAM, "breaks off and cannot resume");
    t->skip = x->at;
    return 0;
}

/* What was compressed for this one answer cannot be put together with parts of others: never resumed by Range, always read
 * from the start. (Should the start not be the same bytes again, the digest will tell.) */
static int check_encoding(struct stream *t, struct err *err)
{
    struct exchange *x = &t->x;
    bool encoded = x->parser.head.content_encoding != NULL;

    if (t->head_known && t->encoded != encoded)
        return err_set(err, ERR_UPSTREAM, "%s Content-Encoding half-way",
                       encoded ? "begins to use a" : "stops to use its");
    if (encoded && x->parser.head.status == 206)
        return STEP_MORE;
    t->encoded = encoded;
    x->no_range |= encoded;
    return 0;
}

static int stream_head(struct exchange *x, struct err *err)
{
    struct stream *t = stream_of(x);
    const struct upstream_head *h = &x->parser.head;
    int rc = check_encoding(t, err);

    if (rc == 0)
        rc = place_answer(t, err);
    if (rc != 0)
        return rc;
    /* Two parts of two different blobs must not become one. */
    if (t->has_total && h->has_length && t->total != h->length_bytes)
        return err_set(err, ERR_UPSTREAM, "had %" PRIu64 " bytes, now has %" PRIu64, t->total, h->length_bytes);
    if (h->has_length) {
        t->has_total = true;
        t->total = h->length_bytes;
    }
    publish_head(t);
    return 0;
}

/* Copies to the ring's free part, which is the upstream thread's until `used` says otherwise. */
static void ring_put(struct stream *t, size_t start, size_t used, const uint8_t *data, size_t len)
{
    size_t at = (start + used) % UPSTREAM_RING_BYTES;
    size_t straight = UPSTREAM_RING_BYTES - at < len ? UPSTREAM_RING_BYTES - at : len;

    memcpy(t->ring + at, data, straight);
    memcpy(t->ring, data + straight, len - straight);
}

static int stream_body(struct exchange *x, const void *data, size_t len, struct err *err)
{
    struct stream *t = stream_of(x);
    size_t skip = t->skip < len ? (size_t)t->skip : len;
    size_t keep = len - skip;
    size_t start, used;

    if (keep > UPSTREAM_RING_BYTES / 2 || (t->has_total && keep > 0 && (x->at >= t->total || keep > t->total - x->at)))
        return err_set(err, ERR_UPSTREAM, "more bytes than announced");
    lock_take(&t->lock);
    start = t->start;
    used = t->used;
    if (keep > UPSTREAM_RING_BYTES - used)
        t->paused = true;
    lock_give(&t->lock);
    if (keep > UPSTREAM_RING_BYTES - used)
        return STEP_WAIT; /* libcurl brings the same bytes again */

    t->skip -= skip;
    if (keep == 0)
        return 0;
    ring_put(t, start, used, (const uint8_t *)data + skip, keep);
    x->at += keep;
    x->progress = true;
    lock_take(&t->lock);
    t->used += keep;
    lock_give(&t->lock);
    return 0;
}

/* libcurl hands over 16 KiB at a time. A reader woken for each would run after the first and sleep again, many times a
 * round, so it is told once. */
static void stream_flush(struct exchange *x)
{
    struct stream *t = stream_of(x);

    lock_take(&t->lock);
    if (t->waiting && t->used > 0)
        wake(t);
    lock_give(&t->lock);
}

static int stream_complete(struct exchange *x, struct err *err)
{
    struct stream *t = stream_of(x);

    if (t->has_total)
        return x->at >= t->total ? 0 : STEP_MORE;
    if (t->part_end > 0)
        return x->at >= t->part_end ? 0 : STEP_MORE;
    /* The body was shorter than what is skipped: the blob ends before the first byte that the reader wants, or it shrank. */
    if (t->skip > 0 && x->at > t->first)
        return err_set(err, ERR_UPSTREAM, "%s: became shorter", x->label);
    return 0;
}

/* "bytes <star>/N" with a 416 tells that nothing is missing, or that the reader asked beyond the end. */
static int stream_refused(struct exchange *x)
{
    struct stream *t = stream_of(x);
    const struct content_range *range = &x->parser.range;

    if (x->parser.head.status != 416 || !range->has_total || (t->has_total && t->total != range->total))
        return STEP_MORE;
    if (x->at != range->total && (x->at > t->first || x->at < range->total))
        return STEP_MORE;
    t->has_total = true;
    t->total = range->total;
    publish_head(t);
    return 0;
}

static void stream_end(struct exchange *x, const struct err *err)
{
    struct stream *t = stream_of(x);

    lock_take(&t->lock);
    t->ended = true;
    t->err = *err;
    wake(t);
    lock_give(&t->lock);
}

static void stream_release(struct exchange *x)
{
    struct stream *t = stream_of(x);

    lock_release(&t->lock);
    free(t->ring);
    free(t);
}

/* Reads wait half a second at first: a registry that restarts takes longer than one that lost a packet. */
static const struct exchange_ops stream_exchange_ops = {
    .backoff_ms = BACKOFF_FIRST_MS,
    .head = stream_head,
    .body = stream_body,
    .flush = stream_flush,
    .complete = stream_complete,
    .refused = stream_refused,
    .end = stream_end,
    .free = stream_release,
};

/* ---- the reader's side ------------------------------------------------------------------------------------------ */

static void ring_get(const struct stream *t, size_t start, uint8_t *out, size_t len)
{
    size_t straight = UPSTREAM_RING_BYTES - start < len ? UPSTREAM_RING_BYTES - start : len;

    memcpy(out, t->ring + start, straight);
    memcpy(out + straight, t->ring, len - straight);
}

/* Under the lock: what to say when the ring is empty. */
static int nothing_to_read(struct stream *t, struct err *err)
{
    if (!t->ended) {
        t->waiting = true;
        return STEP_WAIT;
    }
    if (t->err.code == 0)
        return STEP_EOF;
    return err_set(err, (enum err_code)t->err.code, "%s", t->err.msg);
}

static int stream_read(struct source *s, void *out, size_t cap, size_t *out_len, struct err *err)
{
    struct stream *t = stream_of_source(s);
    bool go_on;
    size_t start, len;
    int rc = STEP_MORE;

    lock_take(&t->lock);
    start = t->start;
    len = t->used < cap ? t->used : cap;
    if (len == 0)
        rc = nothing_to_read(t, err);
    lock_give(&t->lock);
    if (rc != STEP_MORE)
        return rc;

    ring_get(t, start, out, len);
    lock_take(&t->lock);
    t->start = (start + len) % UPSTREAM_RING_BYTES;
    t->used -= len;
    go_on = t->paused && t->used < UPSTREAM_RING_BYTES / 2;
    if (go_on)
        t->paused = false;
    lock_give(&t->lock);
    if (go_on)
        upstreams_tell(t->x.ups, &t->x, WANT_UNPAUSE);
    *out_len = len;
    return STEP_MORE;
}

static void stream_set_waker(struct source *s, source_wake_fn *fn, void *arg)
{
    struct stream *t = stream_of_source(s);

    lock_take(&t->lock);
    t->wake = fn;
    t->wake_arg = arg;
    lock_give(&t->lock);
}

static void stream_free(struct source *s)
{
    struct stream *t = (struct stream *)s; /* source_free() has wiped the magic */
    bool ended;

    lock_take(&t->lock);
    t->wake = NULL;
    ended = t->ended;
    lock_give(&t->lock);
    if (!ended)
        upstreams_tell(t->x.ups, &t->x, WANT_DROP);
    exchange_unref(&t->x);
}

static const struct source_ops stream_ops = {
    .name = "upstream",
    .read = stream_read,
    .set_waker = stream_set_waker,
    .free = stream_free,
};

static struct stream *stream_of_source(struct source *s)
{
    REQUIRE(s->magic == SOURCE_MAGIC && s->ops == &stream_ops);
    return (struct stream *)s;
}

int upstream_stream_new(struct upstreams *ups, const struct upstream_request *req, struct source **out, struct err *err)
{
    struct stream *t = calloc(1, sizeof *t);
    struct upstream_request get = *req;
    int rc = 0;

    *out = NULL;
    if (t == NULL)
        return err_nomem(err, sizeof *t);
    get.head = false;
    t->x.kind = EXCHANGE_STREAM;
    t->source = (struct source){.magic = SOURCE_MAGIC, .ops = &stream_ops};
    t->first = req->first;
    lock_init(&t->lock, RANK_UPSTREAM);
    t->ring = malloc(UPSTREAM_RING_BYTES);
    rc = exchange_init(&t->x, &stream_exchange_ops, ups, &get, err);
    if (rc == 0 && t->ring == NULL)
        rc = err_nomem(err, UPSTREAM_RING_BYTES);
    if (rc == 0)
        rc = upstreams_submit(ups, &t->x, err);
    if (rc < 0) {
        exchange_unref(&t->x);
        return rc;
    }
    *out = &t->source;
    return 0;
}

bool upstream_stream_length(struct source *stream, bool *out_known, uint64_t *out_bytes)
{
    struct stream *t = stream_of_source(stream);
    bool head_known;

    lock_take(&t->lock);
    head_known = t->head_known;
    *out_known = t->length_known;
    *out_bytes = t->length_bytes;
    lock_give(&t->lock);
    return head_known;
}

bool upstream_stream_encoded(struct source *stream)
{
    struct stream *t = stream_of_source(stream);
    bool encoded;

    lock_take(&t->lock);
    encoded = t->encoding_known;
    lock_give(&t->lock);
    return encoded;
}
