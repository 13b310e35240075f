/* SPDX-License-Identifier: Apache-2.0
 * base/stream.c: every combination of small buffers, waits at every place, wakes that are never lost, bounded work.
 */
#include "base/stream.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* ---- a source that gives `piece` bytes at a time and waits before each piece, `waits` times ---- */

struct slow_source {
    struct source source;
    uint64_t total, pos;
    size_t piece;
    unsigned waits, waits_left;
    int fail_at_end; /* error instead of EOF */
    unsigned *frees;
    source_wake_fn *wake;
    void *wake_arg;
};

static uint8_t byte_at(uint64_t pos)
{
    return (uint8_t)(pos * 7 + pos / 251);
}

static int slow_read(struct source *source, void *out, size_t cap, size_t *out_len, struct err *err)
{
    struct slow_source *s = (struct slow_source *)source;
    uint8_t *bytes = out;
    size_t n = s->piece < cap ? s->piece : cap;

    if (s->waits_left > 0) {
        s->waits_left--;
        /* The data "arrives" at once: the wake may come before the reader has seen STEP_WAIT. */
        if (s->wake != NULL)
            s->wake(s->wake_arg);
        return STEP_WAIT;
    }
    s->waits_left = s->waits;
    if (n > s->total - s->pos)
        n = (size_t)(s->total - s->pos);
    if (n == 0)
        return s->fail_at_end ? err_set(err, (enum err_code)s->fail_at_end, "broken") : STEP_EOF;
    for (size_t i = 0; i < n; i++)
        bytes[i] = byte_at(s->pos + i);
    s->pos += n;
    *out_len = n;
    return STEP_MORE;
}

static void slow_set_waker(struct source *source, source_wake_fn *fn, void *arg)
{
    struct slow_source *s = (struct slow_source *)source;

    s->wake = fn;
    s->wake_arg = arg;
}

static void slow_free(struct source *source)
{
    struct slow_source *s = (struct slow_source *)source;

    if (s->frees != NULL)
        (*s->frees)++;
    free(s);
}

static struct slow_source *slow_new(uint64_t total, size_t piece, unsigned waits, unsigned *frees)
{
    static const struct source_ops ops = {"slow", slow_read, slow_set_waker, slow_free};
    struct slow_source *s = calloc(1, sizeof *s);

    assert_non_null(s);
    s->source = (struct source){SOURCE_MAGIC, &ops};
    s->total = total;
    s->piece = piece;
    s->waits = s->waits_left = waits;
    s->frees = frees;
    return s;
}

/* ---- filters ---- */

struct test_filter {
    struct filter filter;
    uint64_t n_in;
    unsigned trailer_left; /* bytes given after the end of input */
    bool failing;
    unsigned *frees;
};

/* Doubles every byte and adds a trailer: output beyond input, output after the end. */
static int doubling_step(struct filter *filter, struct stream_in *in, bool end, struct stream_out *out, struct err *err)
{
    struct test_filter *f = (struct test_filter *)filter;
    bool progress = false;

    if (f->failing && f->n_in > 5)
        return err_set(err, ERR_FORMAT, "bad bytes");
    while (in->pos < in->len && out->pos < out->len) {
        out->ptr[out->pos++] = in->ptr[in->pos];
        if (f->n_in % 2 == 1)
            in->pos++;
        f->n_in++;
        progress = true;
    }
    if (in->pos < in->len || !end)
        return progress ? STEP_MORE : STEP_WAIT;
    while (f->trailer_left > 0 && out->pos < out->len) {
        out->ptr[out->pos++] = '!';
        f->trailer_left--;
        progress = true;
    }
    if (f->trailer_left == 0)
        return STEP_EOF;
    return progress ? STEP_MORE : STEP_WAIT;
}

/* Gives one byte per 64 KiB of input: much work, little output. */
static int sparse_step(struct filter *filter, struct stream_in *in, bool end, struct stream_out *out,
                       struct err *err UNUSED)
{
    struct test_filter *f = (struct test_filter *)filter;

    while (in->pos < in->len) {
        in->pos++;
        if (++f->n_in % (4 * 1024 * 1024) == 0) {
            out->ptr[out->pos++] = 'x';
            return STEP_MORE;
        }
    }
    return end ? STEP_EOF : STEP_WAIT;
}

static int lazy_step(struct filter *filter UNUSED, struct stream_in *in UNUSED, bool end UNUSED,
                     struct stream_out *out UNUSED, struct err *err UNUSED)
{
    return STEP_MORE;
}

static int deaf_step(struct filter *filter UNUSED, struct stream_in *in UNUSED, bool end UNUSED,
                     struct stream_out *out UNUSED, struct err *err UNUSED)
{
    return STEP_WAIT;
}

static int hasty_step(struct filter *filter UNUSED, struct stream_in *in UNUSED, bool end UNUSED,
                      struct stream_out *out UNUSED, struct err *err UNUSED)
{
    return STEP_EOF;
}

static void test_filter_free(struct filter *filter)
{
    struct test_filter *f = (struct test_filter *)filter;

    if (f->frees != NULL)
        (*f->frees)++;
    free(f);
}

static const struct filter_ops doubling = {"doubling", doubling_step, test_filter_free};
static const struct filter_ops sparse = {"sparse", sparse_step, test_filter_free};
static const struct filter_ops lazy = {"lazy", lazy_step, test_filter_free};
static const struct filter_ops deaf = {"deaf", deaf_step, test_filter_free};
static const struct filter_ops hasty = {"hasty", hasty_step, test_filter_free};

static struct test_filter *filter_new(const struct filter_ops *ops, unsigned *frees)
{
    struct test_filter *f = calloc(1, sizeof *f);

    assert_non_null(f);
    f->filter = (struct filter){FILTER_MAGIC, ops};
    f->frees = frees;
    return f;
}

/* ---- reading like the proxy does: after STEP_WAIT only when woken ---- */

static void count_wake(void *arg)
{
    unsigned *wakes = arg;

    (*wakes)++;
}

/* Reads with `cap` bytes a time; every STEP_WAIT must come with exactly one wake. Returns the last code. */
static int drain(struct source *s, size_t cap, uint8_t *all, size_t all_cap, size_t *out_len, unsigned *out_waits,
                 const unsigned *wakes, struct err *err)
{
    uint8_t small[4096];
    size_t len = 0;
    unsigned waits = 0;
    int rc;

    assert_true(cap <= sizeof small);
    for (;;) {
        size_t n;

        rc = source_read(s, small, cap, &n, err);
        if (rc == STEP_WAIT) {
            waits++;
            assert_int_equal(*wakes, waits);
            continue;
        }
        if (rc != STEP_MORE)
            break;
        assert_true(len + n <= all_cap);
        memcpy(all + len, small, n);
        len += n;
    }
    *out_len = len;
    *out_waits = waits;
    return rc;
}

static struct source *filtered_new(struct slow_source *slow, struct test_filter *filter, size_t buf_bytes)
{
    struct source *inner = &slow->source;
    struct filter *f = &filter->filter;
    struct source *s = NULL;
    struct err err = ERR_INIT;

    assert_int_equal(source_filtered_new(&inner, &f, buf_bytes, &s, &err), 0);
    assert_null(inner);
    assert_null(f);
    return s;
}

static void test_memory(void **state UNUSED)
{
    CLEANUP(source_cleanup) struct source *s = NULL;
    struct err err = ERR_INIT;
    char *data = strdup("hello");
    char out[8];
    size_t n;

    assert_int_equal(source_memory_new(&data, 5, &s, &err), 0);
    assert_null(data);
    source_set_waker(s, count_wake, NULL); /* a source that never waits takes one too */
    assert_int_equal(source_read(s, out, 3, &n, &err), STEP_MORE);
    assert_int_equal(n, 3);
    assert_memory_equal(out, "hel", 3);
    assert_int_equal(source_read(s, out, 3, &n, &err), STEP_MORE);
    assert_int_equal(n, 2);
    assert_int_equal(source_read(s, out, 3, &n, &err), STEP_EOF);
    assert_int_equal(n, 0);
    assert_int_equal(source_read(s, out, 3, &n, &err), STEP_EOF);
    source_free(NULL);
    filter_free(NULL);
}

static void test_filtered_small_buffers(void **state UNUSED)
{
    static const size_t sizes[] = {1, 2, 3, 100, 4096};
    uint8_t all[2100];

    for (size_t a = 0; a < ARRAY_LEN(sizes); a++)
        for (size_t b = 0; b < ARRAY_LEN(sizes); b++)
            for (size_t c = 0; c < ARRAY_LEN(sizes); c++)
                for (unsigned waits = 0; waits < 3; waits++) {
                    CLEANUP(source_cleanup) struct source *s = NULL;
                    unsigned wakes = 0, seen, frees = 0;
                    struct err err = ERR_INIT;
                    size_t len;

                    struct test_filter *f = filter_new(&doubling, &frees);
                    f->trailer_left = 3;
                    s = filtered_new(slow_new(1000, sizes[a], waits, &frees), f, sizes[b]);
                    source_set_waker(s, count_wake, &wakes);
                    assert_int_equal(drain(s, sizes[c], all, sizeof all, &len, &seen, &wakes, &err), STEP_EOF);
                    assert_int_equal(len, 2003);
                    for (size_t i = 0; i < 2000; i++)
                        assert_int_equal(all[i], byte_at(i / 2));
                    assert_memory_equal(all + 2000, "!!!", 3);
                    assert_true(waits == 0 ? seen == 0 : seen > 0);
                    /* The end is stable. */
                    assert_int_equal(source_read(s, all, 1, &len, &err), STEP_EOF);
                    source_cleanup(&s);
                    assert_int_equal(frees, 2);
                }
}

static void test_filtered_passes_errors(void **state UNUSED)
{
    CLEANUP(source_cleanup) struct source *s = NULL;
    struct err err = ERR_INIT;
    unsigned wakes = 0, waits;
    uint8_t all[100];
    size_t len;

    struct slow_source *slow = slow_new(10, 3, 0, NULL);
    slow->fail_at_end = ERR_UPSTREAM;
    s = filtered_new(slow, filter_new(&doubling, NULL), 16);
    assert_int_equal(drain(s, 8, all, sizeof all, &len, &waits, &wakes, &err), ERR_UPSTREAM);
    assert_int_equal(len, 20);
    assert_string_equal(err.msg, "broken");

    source_cleanup(&s);
    err_clear(&err);
    struct test_filter *f = filter_new(&doubling, NULL);
    f->failing = true;
    s = filtered_new(slow_new(100, 2, 0, NULL), f, 16);
    assert_int_equal(drain(s, 1, all, sizeof all, &len, &waits, &wakes, &err), ERR_FORMAT);
}

static void test_filtered_work_is_bounded(void **state UNUSED)
{
    CLEANUP(source_cleanup) struct source *s = NULL;
    const uint64_t total = 9 * 1024 * 1024;
    struct err err = ERR_INIT;
    unsigned wakes = 0, waits;
    uint8_t all[16];
    size_t len;

    struct slow_source *slow = slow_new(total, 65536, 0, NULL);
    s = filtered_new(slow, filter_new(&sparse, NULL), 65536);
    source_set_waker(s, count_wake, &wakes);
    for (uint64_t before = 0;; before = slow->pos) {
        int rc = source_read(s, all, sizeof all, &len, &err);

        assert_true(slow->pos - before <= (1024 + 64) * 1024);
        if (rc == STEP_EOF)
            break;
        assert_true(rc == STEP_MORE || rc == STEP_WAIT);
    }
    assert_int_equal(wakes, 7); /* four MiB: three waits and a byte, twice; then one wait and the end */

    /* Without a waker nobody would come back: the read goes on. */
    source_cleanup(&s);
    s = filtered_new(slow_new(total, 65536, 0, NULL), filter_new(&sparse, NULL), 65536);
    wakes = 0;
    assert_int_equal(drain(s, 16, all, sizeof all, &len, &waits, &wakes, &err), STEP_EOF);
    assert_int_equal(len, 2);
    assert_int_equal(waits, 0);
}

static void test_broken_filters_are_bugs_not_hangs(void **state UNUSED)
{
    const struct filter_ops *const all_ops[] = {&lazy, &deaf, &hasty};

    for (size_t i = 0; i < ARRAY_LEN(all_ops); i++) {
        CLEANUP(source_cleanup) struct source *s = NULL;
        struct err err = ERR_INIT;
        uint8_t out[16];
        size_t len;

        s = filtered_new(slow_new(10, 10, 0, NULL), filter_new(all_ops[i], NULL), 16);
        assert_int_equal(source_read(s, out, sizeof out, &len, &err), ERR_BUG);
        assert_non_null(strstr(err.msg, all_ops[i]->name));
    }
}

static void test_window(void **state UNUSED)
{
    static const struct {
        uint64_t skip, limit, want;
    } cases[] = {{0, UINT64_MAX, 1000}, {0, 0, 0},    {0, 1000, 1000},        {1, 10, 10}, {999, 10, 1},
                 {1000, 5, 0},          {5000, 5, 0}, {100, UINT64_MAX, 900}, {0, 1, 1},   {500, 500, 500}};
    uint8_t all[1100];

    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (unsigned waits = 0; waits < 2; waits++)
            for (size_t cap = 1; cap < 2000; cap = cap * 10 + 1) {
                CLEANUP(source_cleanup) struct source *s = NULL;
                struct source *inner = &slow_new(1000, 7, waits, NULL)->source;
                struct err err = ERR_INIT;
                unsigned wakes = 0, seen;
                size_t len;

                assert_int_equal(source_window_new(&inner, cases[i].skip, cases[i].limit, &s, &err), 0);
                assert_null(inner);
                source_set_waker(s, count_wake, &wakes);
                assert_int_equal(drain(s, cap, all, sizeof all, &len, &seen, &wakes, &err), STEP_EOF);
                assert_int_equal(len, cases[i].want);
                for (size_t j = 0; j < len; j++)
                    assert_int_equal(all[j], byte_at(cases[i].skip + j));
            }
}

static void test_window_stops_at_its_limit(void **state UNUSED)
{
    CLEANUP(source_cleanup) struct source *s = NULL;
    struct slow_source *slow = slow_new(1000, 64, 0, NULL);
    struct source *inner = &slow->source;
    struct err err = ERR_INIT;
    unsigned wakes = 0, waits;
    uint8_t all[64];
    size_t len;

    slow->fail_at_end = ERR_UPSTREAM; /* must never be met */
    assert_int_equal(source_window_new(&inner, 10, 20, &s, &err), 0);
    assert_int_equal(drain(s, 64, all, sizeof all, &len, &waits, &wakes, &err), STEP_EOF);
    assert_int_equal(len, 20);
    assert_int_equal(slow->pos, 30);
}

static void test_window_skip_is_bounded(void **state UNUSED)
{
    CLEANUP(source_cleanup) struct source *s = NULL;
    struct source *inner = &slow_new((uint64_t)20 << 20, 1 << 20, 0, NULL)->source;
    struct err err = ERR_INIT;
    unsigned wakes = 0, waits;
    uint8_t all[16];
    size_t len;

    assert_int_equal(source_window_new(&inner, (uint64_t)17 << 20, 2, &s, &err), 0);
    source_set_waker(s, count_wake, &wakes);
    assert_int_equal(drain(s, 1, all, sizeof all, &len, &waits, &wakes, &err), STEP_EOF);
    assert_int_equal(len, 2);
    assert_int_equal(waits, 2);
    assert_int_equal(all[0], byte_at((uint64_t)17 << 20));
}

static void test_window_over_filtered(void **state UNUSED)
{
    CLEANUP(source_cleanup) struct source *s = NULL;
    struct source *inner = filtered_new(slow_new(1000, 5, 1, NULL), filter_new(&doubling, NULL), 4);
    struct err err = ERR_INIT;
    unsigned wakes = 0, waits, frees = 0;
    uint8_t all[64];
    size_t len;

    assert_int_equal(source_window_new(&inner, 101, 9, &s, &err), 0);
    source_set_waker(s, count_wake, &wakes);
    assert_int_equal(drain(s, 2, all, sizeof all, &len, &waits, &wakes, &err), STEP_EOF);
    assert_int_equal(len, 9);
    for (size_t i = 0; i < len; i++)
        assert_int_equal(all[i], byte_at((101 + i) / 2));
    assert_int_equal(frees, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_filtered_small_buffers),
        cmocka_unit_test(test_filtered_passes_errors),
        cmocka_unit_test(test_filtered_work_is_bounded),
        cmocka_unit_test(test_broken_filters_are_bugs_not_hangs),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_window_stops_at_its_limit),
        cmocka_unit_test(test_window_skip_is_bounded),
        cmocka_unit_test(test_window_over_filtered),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
