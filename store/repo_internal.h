/* SPDX-License-Identifier: Apache-2.0
 * store/repo_internal.h - repositories and what they hold. */
#pragma once

#include "store/catalog_internal.h"
#include "store/record_internal.h"

struct repo_name {
    char upstream[256];
    char name[256];
};

/* ERR_NOTFOUND. */
MUST_CHECK int repo_get(struct sql_db *db, int64_t repo, struct repo_name *out, struct err *err);

/* Appends one metadata record. Before a transaction, followed by pack_sync(). */
MUST_CHECK int record_append(struct store *st, enum pack_record type, const struct digest *key,
                             const struct buf *payload, struct err *err);

/* Appends "repo holds d" and syncs; nothing when the catalog has it already. Before a transaction. */
MUST_CHECK int repo_record_link(struct store *st, int64_t repo, enum record_link_kind kind, const struct digest *d,
                                uint64_t size_bytes, struct err *err);

/* Inside a transaction. */
MUST_CHECK int repo_link_blob(struct catalog_tx *tx, int64_t repo, int64_t blob_id, struct err *err);
MUST_CHECK int repo_link_manifest(struct catalog_tx *tx, int64_t repo, int64_t manifest_id, struct err *err);
