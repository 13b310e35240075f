/* SPDX-License-Identifier: Apache-2.0
 * store/check.h - looks at a whole store that no process has open, and says what is wrong with it. See also
 * store/rebuild.h, which makes a new catalog.
 *
 * Use: store_check(path, fn, arg, &result, &err). Takes the store's lock: ERR_BUSY when a recask runs on it.
 * Threads: one. Memory: 64 MiB at most, however large the store is.
 * Changes nothing but SQLite's own -wal and -shm beside the catalog. Whether the bytes of a layer hash to its name is scrub's to say.
 */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct store_report {
    const char *text;                 /* one line for people, good during the call; NULL: only how far it is */
    uint64_t done_bytes, total_bytes; /* of what is to be read */
};
typedef void store_report_fn(void *arg, const struct store_report *r);

struct store_check_result {
    uint64_t findings; /* texts that fn got */
    int64_t format;    /* of the catalog; 0: not known */
    uint64_t packs, chunks, layers, originals, manifests, tags;
    uint64_t lost; /* chunks that are known to be damaged: they are fetched again when they are asked for; no finding */
    uint64_t leftovers; /* files, rows and ranges that the next start removes; no finding either */
};

/* SQLite's own checks of the catalog; each row against what it points at: frames against packs and the headers in them,
 * originals against files, recipes against layers; bodies of manifests; counts and sums. fn: may be NULL.
 * ERR_BUSY, ERR_NOTFOUND: no store there. ERR_UNSUPPORTED: of a newer format, or an older one that is not migrated yet. */
MUST_CHECK int store_check(const char *path, store_report_fn *fn, void *arg, struct store_check_result *out,
                           struct err *err);
/* Reads each frame and original too, and compares the checksums. */
MUST_CHECK int store_check_bytes(const char *path, store_report_fn *fn, void *arg, struct store_check_result *out,
                                 struct err *err);
