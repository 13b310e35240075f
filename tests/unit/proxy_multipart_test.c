/* SPDX-License-Identifier: Apache-2.0
 * proxy/multipart.c: the body is as long as was said, in reads of any size, from sources that wait, end early or cannot be
 * opened.
 */
#include "proxy/multipart.h"

#include "base/buf.h"
#include "tests/unit/proxy_util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char blob[] = "0123456789abcdefghijklmnopqrstuvwxyz";

struct maker {
    unsigned opened, fail_at; /* fail_at: the opening that fails, 0: none */
    bool is_short;
    atomic_uint freed;
};

static int make(void *arg, uint64_t off, uint64_t len, struct source **out, struct err *err)
{
    struct maker *m = arg;
    struct script sc = {.data = blob + off,
                        .len = (size_t)len - (m->is_short ? 1 : 0),
                        .piece = 3,
                        .wait_each = 2,
                        .fail_at = SIZE_MAX,
                        .freed = &m->freed};

    if (++m->opened == m->fail_at)
        return err_set(err, ERR_CORRUPT, "opening %u", m->opened);
    return source_script_new(&sc, out, err);
}

static void start(struct multipart *m, struct maker *maker)
{
    static const struct range_span wanted[] = {{0, 9}, {30, 35}, {5, 5}};
    struct err err = ERR_INIT;

    *m = (struct multipart){
        .count = ARRAY_LEN(wanted), .size_bytes = 36, .content_type = "text/plain", .open = make, .arg = maker};
    m->spans = malloc(sizeof(wanted));
    assert_non_null(m->spans);
    memcpy(m->spans, wanted, sizeof(wanted));
    ASSERT_OK(multipart_init(m, &err));
}

static void test_body(void **state UNUSED)
{
    static const size_t caps[] = {1, 2, 7, 4096};

    for (size_t i = 0; i < ARRAY_LEN(caps); i++) {
        struct maker maker = {.opened = 0};
        struct multipart m;
        struct source *s = NULL;
        struct drained d;
        struct err err = ERR_INIT;
        char want[1000], type[MULTIPART_TYPE_BYTES];

        start(&m, &maker);
        multipart_content_type(&m, type);
        assert_string_equal(strchr(type, '=') + 1, m.boundary);
        snprintf(want, sizeof(want),
                 "--%s\r\nContent-Type: text/plain\r\nContent-Range: bytes 0-9/36\r\n\r\n0123456789"
                 "\r\n--%s\r\nContent-Type: text/plain\r\nContent-Range: bytes 30-35/36\r\n\r\nuvwxyz"
                 "\r\n--%s\r\nContent-Type: text/plain\r\nContent-Range: bytes 5-5/36\r\n\r\n5"
                 "\r\n--%s--\r\n",
                 m.boundary, m.boundary, m.boundary, m.boundary);
        assert_int_equal(multipart_bytes(&m), strlen(want));
        ASSERT_OK(multipart_source(&m, &s, &err));
        assert_null(m.spans);
        source_drain(&s, caps[i], &d);
        assert_int_equal(d.rc, STEP_EOF);
        assert_int_equal(d.len, strlen(want));
        assert_memory_equal(d.data, want, d.len);
        assert_int_equal(maker.opened, 3);
        assert_int_equal(atomic_load(&maker.freed), 3);
        drained_release(&d);
    }
}

/* Parts that follow closely, in order and without an overlap, come from one source. */
static void test_runs(void **state UNUSED)
{
    static const struct {
        struct range_span spans[4];
        size_t count;
        uint64_t gap;
        unsigned opened;
    } rows[] = {
        {{{0, 1}, {5, 6}}, 2, 3, 1},
        {{{0, 1}, {5, 6}}, 2, 2, 2},
        {{{0, 1}, {2, 3}, {4, 9}}, 3, 0, 1},
        {{{5, 6}, {0, 1}}, 2, 100, 2},
        {{{0, 5}, {5, 9}}, 2, 100, 2},
        {{{0, 5}, {0, 5}}, 2, 100, 2},
        {{{0, 0}, {35, 35}}, 2, UINT64_MAX, 1},
        {{{0, 1}, {4, 5}, {3, 3}, {9, 9}}, 4, 10, 2},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        for (size_t cap = 1; cap < 10; cap += 4) {
            CLEANUP(buf_release) struct buf want = BUF_INIT(4096);
            struct maker maker = {.opened = 0};
            struct multipart m;
            struct source *s = NULL;
            struct drained d;
            struct err err = ERR_INIT;

            start(&m, &maker);
            free(m.spans);
            m.spans = malloc(sizeof(rows[i].spans));
            assert_non_null(m.spans);
            memcpy(m.spans, rows[i].spans, sizeof(rows[i].spans));
            m.count = rows[i].count;
            m.gap_bytes = rows[i].gap;
            for (size_t k = 0; k < m.count; k++) {
                int first = (int)m.spans[k].first, last = (int)m.spans[k].last;
                ASSERT_OK(buf_printf(&want, &err,
                                     "%s--%s\r\nContent-Type: text/plain\r\nContent-Range: bytes %d-%d/36\r\n\r\n%.*s",
                                     k ? "\r\n" : "", m.boundary, first, last, last - first + 1, blob + first));
            }
            ASSERT_OK(buf_printf(&want, &err, "\r\n--%s--\r\n", m.boundary));
            ASSERT_OK(multipart_source(&m, &s, &err));
            source_drain(&s, cap, &d);
            assert_int_equal(d.rc, STEP_EOF);
            assert_int_equal(d.len, want.len);
            assert_memory_equal(d.data, want.data, d.len);
            if (maker.opened != rows[i].opened)
                fail_msg("row %zu: %u sources", i, maker.opened);
            assert_int_equal(atomic_load(&maker.freed), rows[i].opened);
            drained_release(&d);
        }
    }
}

/* The arithmetic beyond 32 bits, without a byte of such a blob. */
static void test_large(void **state UNUSED)
{
    struct range_span spans[] = {{0, UINT64_C(4294967999)}, {UINT64_C(4294968000), (UINT64_C(6) << 30) - 1}};
    struct multipart m = {.spans = spans, .count = 2, .size_bytes = UINT64_C(6) << 30, .content_type = "x/y"};
    struct err err = ERR_INIT;

    ASSERT_OK(multipart_init(&m, &err));
    uint64_t bytes = multipart_bytes(&m);
    assert_true(bytes > m.size_bytes && bytes < m.size_bytes + 500);
}

static void test_failures(void **state UNUSED)
{
    struct maker maker = {.fail_at = 1};
    struct multipart m;
    struct source *s = NULL;
    struct drained d;
    struct err err = ERR_INIT;

    start(&m, &maker);
    assert_int_equal(multipart_source(&m, &s, &err), ERR_CORRUPT);
    assert_null(s);
    assert_null(m.spans);

    maker = (struct maker){.fail_at = 3};
    err_clear(&err);
    start(&m, &maker);
    ASSERT_OK(multipart_source(&m, &s, &err));
    source_drain(&s, 4096, &d);
    assert_int_equal(d.rc, ERR_CORRUPT);
    assert_int_equal(atomic_load(&maker.freed), 2);
    drained_release(&d);

    maker = (struct maker){.is_short = true};
    start(&m, &maker);
    ASSERT_OK(multipart_source(&m, &s, &err));
    source_drain(&s, 4096, &d);
    assert_int_equal(d.rc, ERR_CORRUPT);
    drained_release(&d);

    maker = (struct maker){.opened = 0}; /* dropped in the middle */
    start(&m, &maker);
    ASSERT_OK(multipart_source(&m, &s, &err));
    source_free(s);
    assert_int_equal(atomic_load(&maker.freed), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_body), cmocka_unit_test(test_runs),
                                       cmocka_unit_test(test_large), cmocka_unit_test(test_failures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
