/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_check_test.c - what a check of a closed store finds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/store_rebuild_util.h"

static void expect_finding(struct fixture *f, const char *sql, const char *undo, const char *words)
{
    struct heard h = {.lines = 0};
    struct store_check_result r;
    struct err err = ERR_INIT;

    sql_change(f->st, sql);
    close_store(f);
    ASSERT_OK(store_check(f->dir, hear, &h, &r, &err));
    if (r.findings == 0 || r.findings != h.lines || strstr(h.all, words) == NULL)
        fail_msg("%s: %s", sql, h.all);
    {
        struct sql_db *db = NULL;
        char path[128];

        (void)snprintf(path, sizeof(path), "%s/catalog.db", f->dir);
        ASSERT_OK(sql_open(path, SQL_READ_WRITE, &db, &err));
        ASSERT_OK(sql_exec(db, undo, &err));
        sql_close(db);
    }
    expect_clean(f);
    open_store(f);
}

static void test_findings(void **state)
{
    struct fixture *f = *state;
    struct filled x;

    fill(f->st, &x);
    reopen_store(f);
    expect_finding(f, "UPDATE chunk SET refs = refs + 1 WHERE id = 1", "UPDATE chunk SET refs = refs - 1 WHERE id = 1",
                   "uses, recipes have");
    expect_finding(f, "UPDATE chunk SET off = off + 8 WHERE id = 1", "UPDATE chunk SET off = off - 8 WHERE id = 1",
                   "is not it");
    expect_finding(f, "UPDATE chunk SET off = off + 1000000000 WHERE id = 1",
                   "UPDATE chunk SET off = off - 1000000000 WHERE id = 1", "has no room");
    expect_finding(f, "UPDATE recipe SET off = off + 1 WHERE off > 0", "UPDATE recipe SET off = off - 1 WHERE off > 0",
                   "its recipe has gaps");
    expect_finding(f, "UPDATE manifest SET body = CAST(body || 'x' AS BLOB) WHERE id = 1",
                   "UPDATE manifest SET body = substr(body, 1, length(body) - 1) WHERE id = 1", "are damaged");
    expect_finding(f, "UPDATE totals SET tags = tags + 1", "UPDATE totals SET tags = tags - 1", "the sums in");
    expect_finding(f, "UPDATE original SET sums = CAST(sums || sums AS BLOB)",
                   "UPDATE original SET sums = substr(sums, 1, 8)", "checksums without a file");
    expect_finding(f, "UPDATE pack SET end = end + 4096", "UPDATE pack SET end = end - 4096", "bytes of");
    filled_release(&x);
}

static void test_missing_files(void **state)
{
    struct fixture *f = *state;
    struct heard h = {.lines = 0};
    struct store_check_result r;
    struct err err = ERR_INIT;
    char path[256];
    struct filled x;

    fill(f->st, &x);
    close_store(f);
    (void)snprintf(path, sizeof(path), "%s/originals/%.2s/%s", f->dir, digest_hex(&x.blobs[0]).s,
                   digest_hex(&x.blobs[0]).s);
    assert_int_equal(unlink(path), 0);
    (void)snprintf(path, sizeof(path), "%s/packs/%s", f->dir, pack_name(1).s);
    assert_int_equal(unlink(path), 0);
    ASSERT_OK(store_check(f->dir, hear, &h, &r, &err));
    assert_int_equal(r.findings, 2);
    assert_non_null(strstr(h.all, "packs/0000000000000001.pack is missing"));
    assert_non_null(strstr(h.all, digest_text(&x.blobs[0]).s));
    ASSERT_CODE(store_check("/tmp/recask-no-such-store", hear, &h, &r, &err), ERR_NOTFOUND);
    filled_release(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_findings, setup, teardown),
        cmocka_unit_test_setup_teardown(test_missing_files, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
