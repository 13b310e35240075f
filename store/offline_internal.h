/* SPDX-License-Identifier: Apache-2.0
 * store/offline_internal.h - a store's directory without its catalog, for check*.c and rebuild*.c; and what store.c does
 * the same way when it opens one.
 */
#pragma once

#include "base/digest.h"
#include "store/check.h"
#include "store/pack_internal.h"
#include "store/sql_internal.h"

struct offline {
    char *path;
    int dir_fd, lock_fd, packs_fd, originals_fd;
    struct packs *packs; /* all files of packs/, whatever a catalog says */
    store_report_fn *fn;
    void *arg;
    uint64_t done_bytes, total_bytes, told_bytes;
};

/* Locks; makes nothing but the lock file. ERR_NOTFOUND: no store there. ERR_BUSY. */
MUST_CHECK int offline_open(const char *path, store_report_fn *fn, void *arg, struct offline *o, struct err *err);
void offline_close(struct offline *o);

void offline_say(struct offline *o, const char *fmt, ...) PRINTF_LIKE(2, 3);
void offline_progress(struct offline *o, uint64_t bytes); /* more are done */

/* Calls fn for each file in originals/ that has the name and the place of one. dir_fd: of originals/ab. */
typedef int offline_original_fn(void *arg, int dir_fd, const struct digest *d, struct err *err);
MUST_CHECK int offline_each_original(struct offline *o, offline_original_fn *fn, void *arg, struct err *err);

/* flock()s `lock` in the directory and writes our process id into it. ERR_BUSY names the process that has it.
 * out_fd: the caller's to close, also after an error. */
MUST_CHECK int store_dir_lock(int dir_fd, const char *path, int *out_fd, struct err *err);

/* A new catalog is complete and durable as CATALOG_REBUILT before the old one is touched; from then on this brings it to
 * its place, however often it was interrupted: by store_rebuild(), or by the next open. The old one is kept as
 * catalog.db.damaged-TIME, with its -wal. */
#define CATALOG_REBUILT "catalog.db.rebuilt"
MUST_CHECK int catalog_adopt_rebuilt(int dir_fd, bool *out_adopted, struct err *err);

/* Cheap, whatever the size: whether the file has the bytes that it says, and both ends of each table and index can be
 * read. ERR_CORRUPT. */
MUST_CHECK int catalog_quick_check(struct sql_db *db, const char *path, struct err *err);
