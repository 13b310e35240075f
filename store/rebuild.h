/* SPDX-License-Identifier: Apache-2.0
 * store/rebuild.h - a new catalog, from packs and originals, for one that is lost or damaged.
 *
 * Use: store_rebuild(path, fn, arg, &result, &err). Takes the store's lock: ERR_BUSY when a recask runs on it.
 * Threads: one. Memory: some 100 MiB, and 200 bytes for each tag and layer. Room: the new catalog, beside the old one.
 * Reads everything: each frame is decoded and hashed, so what the new catalog names is right (S1). The old catalog is not
 * looked at but for its version, and kept as catalog.db.damaged-TIME. A crash at any point leaves the old one or the new one.
 */
#pragma once

#include "store/check.h"

struct store_rebuild_result {
    uint64_t packs, chunks, layers, originals, manifests, tags, views, pins, repositories; /* in the new catalog */
    uint64_t absent_layers; /* known, and not stored: evicted before, or damaged */
    uint64_t damaged;       /* records and files that were passed over; fn was told of each */
    uint64_t unknown;       /* records that a newer recask may have written: they stay where they are, unread */
    char old[64];           /* the old catalog's name now; empty: there was none */
};

/* fn: gets a line for all that is lost, and how far it is; may be NULL. ERR_UNSUPPORTED: something in it is of a format that
 * this recask does not know; nothing is changed then. */
MUST_CHECK int store_rebuild(const char *path, store_report_fn *fn, void *arg, struct store_rebuild_result *out,
                             struct err *err);
