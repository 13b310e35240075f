/* SPDX-License-Identifier: Apache-2.0
 * cli/table.c - see table.h. */
#include "cli/table.h"

#include <inttypes.h>

#define GAP 2

void table_init(struct table *t, const struct table_column *columns, size_t count)
{
    REQUIRE(count > 0 && count <= TABLE_COLUMNS_MAX);
    *t = (struct table){.columns = columns, .column_count = count};
}

void table_release(struct table *t)
{
    for (size_t i = 0; i < t->row_count * t->column_count; i++)
        free(t->cells[i]);
    free(t->cells);
    t->cells = NULL;
    t->row_count = 0;
}

int table_add(struct table *t, const char *const *cells, struct err *err)
{
    size_t used = t->row_count * t->column_count;
    size_t bytes = (used + t->column_count) * sizeof *t->cells;
    char **grown = realloc(t->cells, bytes);

    if (grown == NULL)
        return err_nomem(err, bytes);
    t->cells = grown;
    memset(t->cells + used, 0, t->column_count * sizeof *t->cells);
    t->row_count++;
    for (size_t i = 0; i < t->column_count; i++) {
        TRY(str_dup(cells[i], &t->cells[used + i], err));
        for (char *p = t->cells[used + i]; *p; p++) {
            if ((unsigned char)*p < 0x20 || *p == 0x7f)
                *p = '?';
        }
    }
    return 0;
}

/* Code points; wider and narrower ones do not occur in names of images. */
static size_t width(const char *s)
{
    size_t n = 0;

    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

static int render_row(const struct table *t, const size_t *widths, const char *const *cells, struct buf *out,
                      struct err *err)
{
    size_t pending = 0; /* spaces owed; a line never ends in any */

    for (size_t i = 0; i < t->column_count; i++) {
        size_t fill = widths[i] - width(cells[i]);

        if (t->columns[i].right)
            pending += fill;
        if (*cells[i] != '\0')
            TRY(buf_printf(out, err, "%*s%s", (int)pending, "", cells[i]));
        pending = *cells[i] != '\0' ? 0 : pending;
        pending += GAP + (t->columns[i].right ? 0 : fill);
    }
    return buf_str(out, "\n", err);
}

int table_render(const struct table *t, bool bold_titles, struct buf *out, struct err *err)
{
    const char *titles[TABLE_COLUMNS_MAX];
    size_t widths[TABLE_COLUMNS_MAX];
    bool has_titles = t->columns[0].title != NULL;

    for (size_t i = 0; i < t->column_count; i++) {
        titles[i] = has_titles ? t->columns[i].title : "";
        widths[i] = width(titles[i]);
        for (size_t row = 0; row < t->row_count; row++) {
            size_t w = width(t->cells[row * t->column_count + i]);

            widths[i] = w > widths[i] ? w : widths[i];
        }
    }
    if (has_titles) {
        TRY(buf_str(out, bold_titles ? "\033[1m" : "", err));
        TRY(render_row(t, widths, titles, out, err));
        TRY(buf_str(out, bold_titles ? "\033[0m" : "", err));
    }
    for (size_t row = 0; row < t->row_count; row++)
        TRY(render_row(t, widths, (const char *const *)t->cells + row * t->column_count, out, err));
    return 0;
}

struct human human_bytes(uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    struct human out;
    double n = (double)bytes;
    size_t unit = 0;

    /* 1023.95 would be shown as 1024.0 of the smaller unit. */
    for (; n >= (unit == 0 ? 1024 : 1023.95) && unit + 1 < ARRAY_LEN(units); unit++)
        n /= 1024;
    snprintf(out.s, sizeof out.s, unit == 0 ? "%.0f %s" : "%.1f %s", n, units[unit]);
    return out;
}

struct human human_seconds(uint64_t s)
{
    struct human out;

    if (s < 60)
        snprintf(out.s, sizeof out.s, "%" PRIu64 "s", s);
    else if (s < 3600)
        snprintf(out.s, sizeof out.s, "%" PRIu64 "m %" PRIu64 "s", s / 60, s % 60);
    else if (s < 24 * 3600)
        snprintf(out.s, sizeof out.s, "%" PRIu64 "h %" PRIu64 "m", s / 3600, s / 60 % 60);
    else
        snprintf(out.s, sizeof out.s, "%" PRIu64 "d %" PRIu64 "h", s / 86400, s / 3600 % 24);
    return out;
}

struct human human_count(uint64_t n)
{
    char digits[24];
    struct human out;
    size_t len = (size_t)snprintf(digits, sizeof digits, "%" PRIu64, n), at = 0;

    for (size_t i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0)
            out.s[at++] = ',';
        out.s[at++] = digits[i];
    }
    out.s[at] = '\0';
    return out;
}
