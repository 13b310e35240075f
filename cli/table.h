/* SPDX-License-Identifier: Apache-2.0
 * cli/table.h - aligned tables and human units.
 *
 * Use: table_init -> table_add... -> table_render -> table_release. A terminal and a pipe get the same text; the
 *      terminal gets bold titles on top.
 * Control bytes in cells become '?': names come from registries, and a terminal obeys escapes.
 * Threads: one.
 */
#pragma once

#include "base/buf.h"

#include <stdbool.h>

#define TABLE_COLUMNS_MAX 8

struct table_column {
    const char *title; /* all NULL: a table without titles */
    bool right;        /* numbers */
};

struct table {
    const struct table_column *columns;
    size_t column_count;
    char **cells; /* row by row */
    size_t row_count;
};

void table_init(struct table *t, const struct table_column *columns, size_t count);
void table_release(struct table *t);
/* cells: one per column, copied. */
MUST_CHECK int table_add(struct table *t, const char *const *cells, struct err *err);
MUST_CHECK int table_render(const struct table *t, bool bold_titles, struct buf *out, struct err *err);

struct human {
    char s[32];
};

struct human human_bytes(uint64_t bytes);     /* "0 B" "999 B" "1.5 KiB" "12.0 GiB" */
struct human human_seconds(uint64_t seconds); /* "5s" "3m 20s" "2h 5m" "4d 1h" */
struct human human_count(uint64_t n);         /* "1,234,567" */
