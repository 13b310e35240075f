/* SPDX-License-Identifier: Apache-2.0
 * store/check_internal.h - what check.c and check_files.c share.
 */
#pragma once

#include "store/offline_internal.h"

struct check {
    struct offline off;
    struct sql_db *db;
    bool bytes; /* frames and originals are read */
    struct store_check_result *out;
};

void check_bad(struct check *c, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* check_files.c: rows against packs and files. Damage of the catalog's own pages is ERR_CORRUPT. */
MUST_CHECK int check_packs(struct check *c, struct err *err);
MUST_CHECK int check_chunks(struct check *c, struct err *err);
MUST_CHECK int check_originals(struct check *c, struct err *err);
