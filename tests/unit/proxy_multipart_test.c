/* SPDX-License-Identifier: Apache-2.0
 * proxy/multipart.c: the body is as long as was said, in reads of any size, from sources that wait, end early or cannot be
 * opened.
 */
#include "proxy/multipart.h"
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_body), cmocka_unit_test(test_failures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
