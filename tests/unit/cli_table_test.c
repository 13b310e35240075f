/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/cli_table_test.c - tables and human units. */
#include "cli/table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const struct table_column columns[] = {{"NAME", false}, {"SIZE", true}, {"NOTE", false}};

static void render(bool bold, const char *want)
{
    static const char *const rows[][3] = {{"a", "1 B", ""}, {"long name", "12345", "ok"}, {"\xc3\xa9\x1b[1m", "", "x"}};
    CLEANUP(buf_release) struct buf out = BUF_INIT(4096);
    CLEANUP(table_release) struct table t;
    struct err err = ERR_INIT;

    table_init(&t, columns, ARRAY_LEN(columns));
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        assert_int_equal(table_add(&t, rows[i], &err), 0);
    assert_int_equal(table_render(&t, bold, &out, &err), 0);
    assert_string_equal(out.data, want);
}

static void tables(void **state UNUSED)
{
    render(false, "NAME        SIZE  NOTE\n"
                  "a            1 B\n"
                  "long name  12345  ok\n"
                  "\xc3\xa9?[1m             x\n");
    render(true, "\033[1mNAME        SIZE  NOTE\n\033[0m"
                 "a            1 B\n"
                 "long name  12345  ok\n"
                 "\xc3\xa9?[1m             x\n");
}

static void without_titles(void **state UNUSED)
{
    static const struct table_column plain[] = {{NULL, false}, {NULL, false}};
    static const char *const row[] = {"recask", "0.1.0"};
    CLEANUP(buf_release) struct buf out = BUF_INIT(4096);
    CLEANUP(table_release) struct table t;
    struct err err = ERR_INIT;

    table_init(&t, plain, ARRAY_LEN(plain));
    assert_int_equal(table_render(&t, true, &out, &err), 0);
    assert_int_equal(out.len, 0);
    assert_int_equal(table_add(&t, row, &err), 0);
    assert_int_equal(table_render(&t, true, &out, &err), 0);
    assert_string_equal(out.data, "recask  0.1.0\n");
}

static void units(void **state UNUSED)
{
    assert_string_equal(human_bytes(0).s, "0 B");
    assert_string_equal(human_bytes(1023).s, "1023 B");
    assert_string_equal(human_bytes(1024).s, "1.0 KiB");
    assert_string_equal(human_bytes(1536).s, "1.5 KiB");
    assert_string_equal(human_bytes((1 << 20) - 1).s, "1.0 MiB");
    assert_string_equal(human_bytes(12ull << 30).s, "12.0 GiB");
    assert_string_equal(human_bytes(UINT64_MAX).s, "16.0 EiB");
    assert_string_equal(human_seconds(0).s, "0s");
    assert_string_equal(human_seconds(59).s, "59s");
    assert_string_equal(human_seconds(200).s, "3m 20s");
    assert_string_equal(human_seconds(7500).s, "2h 5m");
    assert_string_equal(human_seconds(349200).s, "4d 1h");
    assert_string_equal(human_count(0).s, "0");
    assert_string_equal(human_count(999).s, "999");
    assert_string_equal(human_count(1000).s, "1,000");
    assert_string_equal(human_count(1234567).s, "1,234,567");
    assert_string_equal(human_count(UINT64_MAX).s, "18,446,744,073,709,551,615");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables),
        cmocka_unit_test(without_titles),
        cmocka_unit_test(units),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
