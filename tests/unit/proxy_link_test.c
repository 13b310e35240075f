/* SPDX-License-Identifier: Apache-2.0
 * proxy/link.c: Link headers as registries send them, and as nobody should.
 */
#include "proxy/link.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const struct {
    const char *header, *want; /* NULL: none */
} rows[] = {
    {"</v2/a/tags/list?n=2&last=b>; rel=\"next\"", "n=2&last=b"},
    {"<https://registry.example/v2/a/tags/list?n=2&last=b>; rel=\"next\"", "n=2&last=b"},
    {"<?last=b>;rel=next", "last=b"},
    {"<tags/list?last=b>", "last=b"},
    {" \t<x?last=b>\t;\tRel = \"NEXT\"\t", "last=b"},
    {", ,<x?last=b>; rel=next,", "last=b"},
    {"<x?a=1>; rel=prev, <x?a=2>; rel=next, <x?a=3>; rel=next", "a=2"},
    {"<x?a=1,2;3>; rel=next", "a=1,2;3"}, /* between < and > these are plain bytes */
    {"<x?a=1>; title=\"x, <y?b=2>; rel=next\"; rel=prev", NULL},
    {"<x?a=1>; title=\"a \\\" quote\"; rel=\"first next\"", "a=1"},
    {"<x?a=1>; rel=prev; rel=next", NULL}, /* the first one counts */
    {"<x?a=1>; rel; title=x", NULL},
    {"<x?a=1>; title=x", "a=1"},
    {"<x?a=1>; rel=nextt", NULL},
    {"<x?a=1>; rel=\"\"", NULL},
    {"<x?ns=docker.io&a=1>; rel=next", "a=1"},
    {"<x?a=1&ns=docker.io&b&&c=>; rel=next", "a=1&b&c="},
    {"<x?ns=docker.io>; rel=next", NULL},
    {"<x?nsx=1>; rel=next", "nsx=1"},
    {"<x?a=b?c=d>; rel=next", "a=b?c=d"},
    {"<x?a=1#b>; rel=next", "a=1"},
    {"<x#?a=1>; rel=next", NULL},
    {"<x?a=%20%3E>; rel=next", "a=%20%3E"},
    {"<x?>; rel=next", NULL},
    {"<x>; rel=next", NULL},
    {"<>; rel=next", NULL},
    {"<x?a=1", NULL},
    {"x?a=1; rel=next", NULL},
    {"<x?a=1>; rel=\"next", NULL},
    {"<x?a=1>; rel=\"next\\", NULL},
    {"<x?a=1> rel=next", NULL},
    {"<x?a=1>; rel=\"next\" x", NULL},
    {"<x?a b>; rel=next", NULL},
    {"<x?a\"b>; rel=next", NULL},
    {"<x?a<b>; rel=next", NULL},
    {"<x?a\x01>; rel=next", NULL},
    {"<x?\xc3\xa9>; rel=next", NULL},
    {"", NULL},
    {NULL, NULL},
};

static void test_next(void **state UNUSED)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        CLEANUP(buf_release) struct buf got = BUF_INIT(1000);
        bool found = link_next_query(rows[i].header, &got);

        if (found != (rows[i].want != NULL) || (found && strcmp(got.data, rows[i].want) != 0))
            fail_msg("%s: got %s", rows[i].header, found ? got.data : "none");
    }
}

/* What does not fit is no link, not half of one. */
static void test_limit(void **state UNUSED)
{
    CLEANUP(buf_release) struct buf got = BUF_INIT(8);

    assert_false(link_next_query("<x?a=1&b=2222222222>; rel=next", &got));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_next), cmocka_unit_test(test_limit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
