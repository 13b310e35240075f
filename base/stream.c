/* SPDX-License-Identifier: Apache-2.0
 * base/stream.c - the checks around every source and filter, and the three sources that need nothing else.
 *
 * A filter or source that breaks its contract gives ERR_BUG rather than an abort: what it does may hang on bytes from
 * outside, and one failed request is better than a dead proxy. Only a write past a buffer is fatal.
 *
 * Bounded work: a read that has used its budget and has nothing to show may neither block its worker nor return
 * STEP_MORE without bytes. It returns STEP_WAIT and calls the waker itself: the caller comes back through its queue.
 * Without a waker it goes on, as nobody would ever call again.
 */
#include "base/stream.h"

#include <string.h>

#define READ_BUDGET_BYTES ((uint64_t)1024 * 1024)
#define SKIP_BUDGET_BYTES ((uint64_t)8 * 1024 * 1024)
#define SKIP_BUF_BYTES ((size_t)64 * 1024)
#define IDLE_STEPS_MAX 1000 /* a filter that says MORE so often and does nothing is broken */

/* ---- wrappers ---- */

int source_read(struct source *s, void *out, size_t cap, size_t *out_len, struct err *err)
{
    REQUIRE(s->magic == SOURCE_MAGIC && cap > 0);
    *out_len = 0;
    int rc = s->ops->read(s, out, cap, out_len, err);
    REQUIRE(*out_len <= cap);
    if (rc < 0) {
        *out_len = 0;
        return rc;
    }
    if (rc == STEP_DONE || rc > STEP_EOF || (rc == STEP_MORE) != (*out_len > 0)) {
        size_t len = *out_len;

        *out_len = 0;
        return err_set(err, ERR_BUG, "source %s returned %d with %zu bytes", s->ops->name, rc, len);
    }
    return rc;
}

void source_set_waker(struct source *s, source_wake_fn *fn, void *arg)
{
    REQUIRE(s->magic == SOURCE_MAGIC);
    if (s->ops->set_waker != NULL)
        s->ops->set_waker(s, fn, arg);
}

void source_free(struct source *s)
{
    if (s == NULL)
        return;
    REQUIRE(s->magic == SOURCE_MAGIC);
    s->magic = 0;
    s->ops->free(s);
}

void source_cleanup(struct source **s)
{
    source_free(*s);
    *s = NULL;
}

int filter_step(struct filter *f, struct stream_in *in, bool end, struct stream_out *out, struct err *err)
{
    REQUIRE(f->magic == FILTER_MAGIC && in->pos <= in->len && out->pos <= out->len);
    size_t in_before = in->pos, out_before = out->pos;
    int rc = f->ops->step(f, in, end, out, err);
    REQUIRE(in->pos <= in->len && out->pos <= out->len && in->pos >= in_before && out->pos >= out_before);
    if (rc < 0)
        return rc;
    if (rc == STEP_DONE || rc > STEP_EOF || (rc == STEP_EOF && (!end || in->pos < in->len)))
        return err_set(err, ERR_BUG, "filter %s returned %d with %zu bytes left, end=%d", f->ops->name, rc,
                       in->len - in->pos, end);
    return rc;
}

void filter_free(struct filter *f)
{
    if (f == NULL)
        return;
    REQUIRE(f->magic == FILTER_MAGIC);
    f->magic = 0;
    f->ops->free(f);
}

void filter_cleanup(struct filter **f)
{
    filter_free(*f);
    *f = NULL;
}

/* ---- memory ---- */

struct source_memory {
    struct source source;
    char *data;
    size_t len;
    size_t pos;
};

static int memory_read(struct source *s, void *out, size_t cap, size_t *out_len, struct err *err UNUSED)
{
    struct source_memory *m = (struct source_memory *)s;
    size_t n = m->len - m->pos < cap ? m->len - m->pos : cap;

    if (n == 0)
        return STEP_EOF;
    memcpy(out, m->data + m->pos, n);
    m->pos += n;
    *out_len = n;
    return STEP_MORE;
}

static void memory_free(struct source *s)
{
    struct source_memory *m = (struct source_memory *)s;

    free(m->data);
    free(m);
}

int source_memory_new(char **data, size_t len, struct source **out, struct err *err)
{
    static const struct source_ops ops = {.name = "memory", .read = memory_read, .free = memory_free};
    CLEANUP(free_ptr) char *taken = steal(data);
    struct source_memory *m = malloc(sizeof *m);

    *out = NULL;
    if (m == NULL)
        return err_nomem(err, sizeof *m);
    *m = (struct source_memory){.source = {SOURCE_MAGIC, &ops}, .data = steal(&taken), .len = len};
    *out = &m->source;
    return 0;
}

/* ---- waking oneself ---- */

struct waker {
    source_wake_fn *fn;
    void *arg;
};

/* True when the budget is used up and the caller must return STEP_WAIT; the wake is under way then. */
static bool out_of_budget(const struct waker *w, uint64_t used_bytes, uint64_t budget_bytes)
{
    if (used_bytes < budget_bytes || w->fn == NULL)
        return false;
    w->fn(w->arg);
    return true;
}

/* ---- filtered ---- */

struct source_filtered {
    struct source source;
    struct source *inner;
    struct filter *f;
    struct waker waker;
    struct stream_in in;
    bool end;  /* inner gave STEP_EOF */
    bool done; /* the filter gave STEP_EOF */
    size_t buf_bytes;
    uint8_t buf[];
};

/* The filter wants input that it has not seen yet. STEP_MORE: there is some, or the end. */
static int filtered_refill(struct source_filtered *s, struct err *err)
{
    size_t n;

    if (s->end || s->in.pos < s->in.len)
        return err_set(err, ERR_BUG, "filter %s waits with %zu bytes before it, end=%d", s->f->ops->name,
                       s->in.len - s->in.pos, s->end);
    int rc = source_read(s->inner, s->buf, s->buf_bytes, &n, err);
    if (rc < 0 || rc == STEP_WAIT)
        return rc;
    s->in = (struct stream_in){.ptr = s->buf, .len = n};
    s->end = rc == STEP_EOF;
    return STEP_MORE;
}

static int filtered_read(struct source *source, void *buf, size_t cap, size_t *out_len, struct err *err)
{
    struct source_filtered *s = (struct source_filtered *)source;
    struct stream_out out = {.ptr = buf, .len = cap};
    uint64_t used_bytes = 0;
    unsigned idle_steps = 0;

    if (s->done)
        return STEP_EOF;
    for (;;) {
        size_t before = s->in.pos;
        int rc = filter_step(s->f, &s->in, s->end, &out, err);

        if (rc < 0)
            return rc;
        s->done = rc == STEP_EOF;
        if (out.pos > 0) {
            *out_len = out.pos;
            return STEP_MORE;
        }
        if (s->done)
            return STEP_EOF;
        used_bytes += s->in.pos - before;
        idle_steps = s->in.pos > before ? 0 : idle_steps + 1;
        if (rc == STEP_WAIT) {
            int more = filtered_refill(s, err);

            if (more != STEP_MORE)
                return more;
            idle_steps = 0;
        } else if (idle_steps > IDLE_STEPS_MAX) {
            return err_set(err, ERR_BUG, "filter %s makes no progress", s->f->ops->name);
        }
        if (out_of_budget(&s->waker, used_bytes, READ_BUDGET_BYTES))
            return STEP_WAIT;
    }
}

static void filtered_set_waker(struct source *source, source_wake_fn *fn, void *arg)
{
    struct source_filtered *s = (struct source_filtered *)source;

    s->waker = (struct waker){fn, arg};
    source_set_waker(s->inner, fn, arg);
}

static void filtered_free(struct source *source)
{
    struct source_filtered *s = (struct source_filtered *)source;

    source_free(s->inner); /* first: no wake comes after it */
    filter_free(s->f);
    free(s);
}

int source_filtered_new(struct source **inner, struct filter **f, size_t buf_bytes, struct source **out,
                        struct err *err)
{
    static const struct source_ops ops = {
        .name = "filtered", .read = filtered_read, .set_waker = filtered_set_waker, .free = filtered_free};
    CLEANUP(source_cleanup) struct source *taken_inner = steal(inner);
    CLEANUP(filter_cleanup) struct filter *taken_f = steal(f);
    struct source_filtered *s;

    *out = NULL;
    REQUIRE(buf_bytes > 0);
    s = malloc(sizeof *s + buf_bytes);
    if (s == NULL)
        return err_nomem(err, sizeof *s + buf_bytes);
    *s = (struct source_filtered){
        .source = {SOURCE_MAGIC, &ops}, .inner = steal(&taken_inner), .f = steal(&taken_f), .buf_bytes = buf_bytes};
    s->in.ptr = s->buf;
    *out = &s->source;
    return 0;
}

/* ---- window ---- */

struct source_window {
    struct source source;
    struct source *inner;
    struct waker waker;
    uint64_t skip_bytes; /* still to skip */
    uint64_t left_bytes; /* still to give; UINT64_MAX: all */
    uint8_t *skip_buf;
};

static int window_skip(struct source_window *w, struct err *err)
{
    uint64_t used_bytes = 0;

    while (w->skip_bytes > 0) {
        size_t want = w->skip_bytes < SKIP_BUF_BYTES ? (size_t)w->skip_bytes : SKIP_BUF_BYTES;
        size_t n;

        if (out_of_budget(&w->waker, used_bytes, SKIP_BUDGET_BYTES))
            return STEP_WAIT;
        int rc = source_read(w->inner, w->skip_buf, want, &n, err);
        if (rc != STEP_MORE)
            return rc;
        w->skip_bytes -= n;
        used_bytes += n;
    }
    free_ptr(&w->skip_buf);
    return STEP_MORE;
}

static int window_read(struct source *source, void *out, size_t cap, size_t *out_len, struct err *err)
{
    struct source_window *w = (struct source_window *)source;
    int rc;

    if (w->left_bytes == 0)
        return STEP_EOF;
    if (w->skip_bytes > 0) {
        rc = window_skip(w, err);
        if (rc != STEP_MORE)
            return rc;
    }
    rc = source_read(w->inner, out, cap < w->left_bytes ? cap : (size_t)w->left_bytes, out_len, err);
    if (w->left_bytes != UINT64_MAX)
        w->left_bytes -= *out_len;
    return rc;
}

static void window_set_waker(struct source *source, source_wake_fn *fn, void *arg)
{
    struct source_window *w = (struct source_window *)source;

    w->waker = (struct waker){fn, arg};
    source_set_waker(w->inner, fn, arg);
}

static void window_free(struct source *source)
{
    struct source_window *w = (struct source_window *)source;

    source_free(w->inner);
    free(w->skip_buf);
    free(w);
}

int source_window_new(struct source **inner, uint64_t skip_bytes, uint64_t limit_bytes, struct source **out,
                      struct err *err)
{
    static const struct source_ops ops = {
        .name = "window", .read = window_read, .set_waker = window_set_waker, .free = window_free};
    CLEANUP(source_cleanup) struct source *taken = steal(inner);
    CLEANUP(free_ptr) uint8_t *skip_buf = NULL;
    struct source_window *w;

    *out = NULL;
    if (skip_bytes > 0) {
        skip_buf = malloc(SKIP_BUF_BYTES);
        if (skip_buf == NULL)
            return err_nomem(err, SKIP_BUF_BYTES);
    }
    w = malloc(sizeof *w);
    if (w == NULL)
        return err_nomem(err, sizeof *w);
    *w = (struct source_window){.source = {SOURCE_MAGIC, &ops},
                                .inner = steal(&taken),
                                .skip_bytes = skip_bytes,
                                .left_bytes = limit_bytes,
                                .skip_buf = steal(&skip_buf)};
    *out = &w->source;
    return 0;
}
