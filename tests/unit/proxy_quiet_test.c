/* SPDX-License-Identifier: Apache-2.0
 * proxy/quiet.c: upstreams that are left alone, and what is remembered of tags.
 */
#include "base/clock.h"
#include "proxy/proxy_internal.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Upstreams are only compared here. */
static const char places[2];
#define UP(i) ((const struct upstream *)(const void *)&places[i])

static int set_up(void **state)
{
    struct proxy *p = calloc(1, sizeof(*p));
    struct err err = ERR_INIT;

    assert_non_null(p);
    lock_init(&p->lock, RANK_SERVER);
    assert_int_equal(tag_notes_new(&p->notes, &err), 0);
    *state = p;
    return 0;
}

static int tear_down(void **state)
{
    struct proxy *p = *state;
    while (p->quiet) {
        struct quiet *q = p->quiet;
        p->quiet = q->next;
        free(q);
    }
    free(p->notes);
    lock_release(&p->lock);
    free(p);
    return 0;
}

static void test_quiet(void **state)
{
    struct proxy *p = *state;

    assert_false(quiet_now(p, UP(0)));
    quiet_begin(p, UP(0), 60000);
    assert_true(quiet_now(p, UP(0)));
    assert_false(quiet_now(p, UP(1)));
    quiet_begin(p, UP(0), 0);
    assert_false(quiet_now(p, UP(0)));
}

static void test_notes(void **state)
{
    struct proxy *p = *state;

    assert_int_equal(tag_noted(p, UP(0), "a/b", "1"), NOTED_NOTHING);
    tag_note(p, UP(0), "a/b", "1", NOTED_GONE, 60000);
    tag_note(p, UP(0), "a/b", "2", NOTED_REFUSED, 60000);
    assert_int_equal(tag_noted(p, UP(0), "a/b", "1"), NOTED_GONE);
    assert_int_equal(tag_noted(p, UP(0), "a/b", "2"), NOTED_REFUSED);
    assert_int_equal(tag_noted(p, UP(1), "a/b", "1"), NOTED_NOTHING);
    assert_int_equal(tag_noted(p, UP(0), "a", "b:1"), NOTED_NOTHING);
    assert_int_equal(tag_noted(p, UP(0), "a/b", "11"), NOTED_NOTHING);
    tag_note(p, UP(0), "a/b", "1", NOTED_NOTHING, 0);
    assert_int_equal(tag_noted(p, UP(0), "a/b", "1"), NOTED_NOTHING);
    assert_int_equal(tag_noted(p, UP(0), "a/b", "2"), NOTED_REFUSED);
    /* no time: not at all, and what was there is over */
    tag_note(p, UP(0), "a/b", "2", NOTED_GONE, 0);
    assert_int_equal(tag_noted(p, UP(0), "a/b", "2"), NOTED_NOTHING);
}

static void test_notes_end(void **state)
{
    struct proxy *p = *state;
    int64_t end = clock_mono_ms() + 20;

    tag_note(p, UP(0), "a/b", "1", NOTED_GONE, 20);
    while (tag_noted(p, UP(0), "a/b", "1") == NOTED_GONE)
        assert_true(clock_mono_ms() < end + 60000);
    assert_true(clock_mono_ms() >= end);
}

/* Any number of names takes the same room; a note lost is one question more, a wrong one never comes up. */
static void test_many_notes(void **state)
{
    struct proxy *p = *state;
    char name[OCI_NAME_MAX_BYTES + 10], tag[OCI_NAME_MAX_BYTES + 1];
    unsigned kept = 0;

    memset(name, 'n', sizeof(name));
    memset(tag, 't', sizeof(tag));
    name[sizeof(name) - 1] = tag[sizeof(tag) - 1] = '\0';
    for (int i = 0; i < 20000; i++) {
        snprintf(tag + 200, sizeof(tag) - 200, "%d", i);
        tag_note(p, UP(0), name, tag, NOTED_GONE, 600000);
        assert_int_equal(tag_noted(p, UP(0), name, tag), NOTED_GONE);
    }
    for (int i = 0; i < 20000; i++) {
        snprintf(tag + 200, sizeof(tag) - 200, "%d", i);
        kept += tag_noted(p, UP(0), name, tag) == NOTED_GONE;
        assert_int_equal(tag_noted(p, UP(1), name, tag), NOTED_NOTHING);
    }
    assert_in_range(kept, 500, 1024);
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
    const struct CMUnitTest tests[] = {T(test_quiet), T(test_notes), T(test_notes_end), T(test_many_notes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
