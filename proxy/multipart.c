/* SPDX-License-Identifier: Apache-2.0
 * proxy/multipart.c - multipart/byteranges as a source: head, part, head, part, ..., end.
 */
#include "proxy/multipart.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define HEAD_MAX_BYTES 320

struct parts {
    struct source base;
    struct multipart m;
    size_t at; /* of the part that is being read; m.count: the end line */
    char head[HEAD_MAX_BYTES];
    size_t head_len, head_pos;
    uint64_t left;  /* of the part */
    uint64_t off;   /* where run stands in the representation */
    size_t run_end; /* the first part that is not in run */
    struct source *run;
    source_wake_fn *wake;
    void *wake_arg;
};

int multipart_init(struct multipart *m, struct err *err)
{
    uint64_t r[2];

    if (getrandom(r, sizeof(r), 0) != (ssize_t)sizeof(r))
        return err_set(err, ERR_IO, "no random bytes");
    snprintf(m->boundary, sizeof(m->boundary), "%016" PRIx64 "%016" PRIx64, r[0], r[1]);
    return 0;
}

void multipart_release(struct multipart *m)
{
    free(m->spans);
    if (m->free_arg)
        m->free_arg(m->arg);
    *m = (struct multipart){.spans = NULL};
}

void multipart_content_type(const struct multipart *m, char out[MULTIPART_TYPE_BYTES])
{
    snprintf(out, MULTIPART_TYPE_BYTES, "multipart/byteranges; boundary=%s", m->boundary);
}

/* What stands before part i, or behind the last one. */
static size_t write_head(const struct multipart *m, size_t i, char out[HEAD_MAX_BYTES])
{
    const struct range_span *s = &m->spans[i];
    int n;

    if (i == m->count)
        n = snprintf(out, HEAD_MAX_BYTES, "\r\n--%s--\r\n", m->boundary);
    else
        n = snprintf(out, HEAD_MAX_BYTES,
                     "%s--%s\r\nContent-Type: %s\r\nContent-Range: bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64 "\r\n\r\n",
                     i == 0 ? "" : "\r\n", m->boundary, m->content_type, s->first, s->last, m->size_bytes);
    REQUIRE(n > 0 && n < HEAD_MAX_BYTES);
    return (size_t)n;
}

uint64_t multipart_bytes(const struct multipart *m)
{
    char head[HEAD_MAX_BYTES];
    uint64_t sum = 0;

    for (size_t i = 0; i <= m->count; i++) {
        sum += write_head(m, i, head);
        if (i < m->count)
            sum += m->spans[i].last - m->spans[i].first + 1;
    }
    return sum;
}

/* The first part behind part i that needs a source of its own. */
static size_t end_of_run(const struct multipart *m, size_t i)
{
    const struct range_span *s = m->spans;

    for (i++; i < m->count; i++) {
        if (s[i].first <= s[i - 1].last || s[i].first - s[i - 1].last - 1 > m->gap_bytes)
            break;
    }
    return i;
}

static int open_run(struct parts *p, struct err *err)
{
    size_t end = end_of_run(&p->m, p->at);
    uint64_t first = p->m.spans[p->at].first;
    struct source *next = NULL;

    TRY(p->m.open(p->m.arg, first, p->m.spans[end - 1].last - first + 1, &next, err));
    source_set_waker(next, p->wake, p->wake_arg);
    source_free(p->run);
    p->run = next;
    p->run_end = end;
    p->off = first;
    return 0;
}

/* Makes part `at` the one that is read, its head first. */
static int begin_part(struct parts *p, struct err *err)
{
    if (p->at < p->m.count) {
        const struct range_span *s = &p->m.spans[p->at];

        p->left = s->last - s->first + 1;
        if (p->at == p->run_end)
            TRY(open_run(p, err));
    }
    p->head_len = write_head(&p->m, p->at, p->head);
    p->head_pos = 0;
    return 0;
}

static int read_run(struct parts *p, void *out, size_t cap, size_t *out_len, struct err *err)
{
    int rc = source_read(p->run, out, cap, out_len, err);

    if (rc == STEP_EOF)
        return err_set(err, ERR_CORRUPT, "a range ended %" PRIu64 " bytes too early", p->left);
    if (rc == STEP_MORE)
        p->off += *out_len;
    return rc;
}

static int read_part(struct parts *p, void *out, size_t cap, size_t *out_len, struct err *err)
{
    uint64_t first = p->m.spans[p->at].first;
    int rc;

    /* A gap is short, and what is thrown away of it needs no buffer of its own. */
    while (p->off < first) {
        size_t skipped = 0;
        rc = read_run(p, out, cap < first - p->off ? cap : (size_t)(first - p->off), &skipped, err);
        if (rc != STEP_MORE)
            return rc;
    }
    rc = read_run(p, out, cap < p->left ? cap : (size_t)p->left, out_len, err);
    if (rc != STEP_MORE)
        return rc;
    p->left -= *out_len;
    if (p->left > 0)
        return rc;
    p->at++;
    return begin_part(p, err) < 0 ? err->code : rc;
}

static int parts_read(struct source *s, void *out, size_t cap, size_t *out_len, struct err *err)
{
    struct parts *p = (struct parts *)s;
    size_t n = p->head_len - p->head_pos;

    if (n == 0)
        return p->at == p->m.count ? STEP_EOF : read_part(p, out, cap, out_len, err);
    n = n < cap ? n : cap;
    memcpy(out, p->head + p->head_pos, n);
    p->head_pos += n;
    *out_len = n;
    return STEP_MORE;
}

static void parts_waker(struct source *s, source_wake_fn *fn, void *arg)
{
    struct parts *p = (struct parts *)s;

    p->wake = fn;
    p->wake_arg = arg;
    if (p->run)
        source_set_waker(p->run, fn, arg);
}

static void parts_free(struct source *s)
{
    struct parts *p = (struct parts *)s;

    source_free(p->run);
    multipart_release(&p->m);
    free(p);
}

static const struct source_ops parts_ops = {"multipart", parts_read, parts_waker, parts_free};

int multipart_source(struct multipart *m, struct source **out, struct err *err)
{
    struct parts *p = calloc(1, sizeof(*p));

    if (!p) {
        multipart_release(m);
        return err_nomem(err, sizeof(*p));
    }
    p->base = (struct source){SOURCE_MAGIC, &parts_ops};
    p->m = *m;
    *m = (struct multipart){.spans = NULL};
    int rc = begin_part(p, err);
    if (rc < 0) {
        parts_free(&p->base);
        return rc;
    }
    *out = &p->base;
    return 0;
}
