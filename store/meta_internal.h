/* SPDX-License-Identifier: Apache-2.0
 * store/meta_internal.h - what meta.c and meta_tag.c share: rows of manifests.
 */
#pragma once

#include "store/meta.h"
#include "store/repo_internal.h"

#define META_RECORD_MAX_BYTES (32u << 20)

struct manifest_row {
    int64_t id; /* 0: not there */
    int view;
    bool is_index;
    enum store_views views;
    bool wanted;
};

MUST_CHECK int manifest_find(struct sql_db *db, const struct digest *d, struct manifest_row *out, struct err *err);
/* The same, but ERR_NOTFOUND when it is not there. */
MUST_CHECK int manifest_need(struct sql_db *db, const struct digest *d, struct manifest_row *out, struct err *err);

struct manifest_new {
    struct digest digest;
    const char *media_type;
    int view;
    struct digest upstream;
    bool is_index;
    const char *body;
    size_t len;
};

/* Inside a transaction. Leaves a row that is there, but turns a derived one into an upstream one when view is 0.
 * out_changed: inserted or turned. */
MUST_CHECK int manifest_insert(struct catalog_tx *tx, const struct manifest_new *m, int64_t *out_id, bool *out_changed,
                               struct err *err);

/* Appends the PACK_MANIFEST record. refs may be NULL with count 0. */
MUST_CHECK int manifest_record(struct store *st, const struct manifest_new *m, const struct store_ref *refs,
                               size_t ref_count, const char *never, struct err *err);

/* What the catalog knows before a change, so that the records can be appended before the transaction. */
struct tag_state {
    struct repo_name repo;
    struct manifest_row manifest;
    bool linked;  /* repo holds the manifest */
    bool tag_set; /* the tag has this manifest already */
};

/* tag: may be NULL. */
MUST_CHECK int tag_state_read(struct store *st, int64_t repo, const char *tag, const struct digest *d,
                              struct tag_state *out, struct err *err);
/* Appends the records that a change of `state` to "linked, and tagged when tag is given" needs; out_appended: any. */
MUST_CHECK int tag_records(struct store *st, const struct tag_state *state, const char *tag, const struct digest *d,
                           bool *out_appended, struct err *err);
/* Appends the record of a tag that goes, and, inside a transaction, deletes its row. */
MUST_CHECK int tag_drop_record(struct store *st, const struct repo_name *repo, const char *tag, const struct digest *d,
                               struct err *err);
MUST_CHECK int tag_delete(struct sql_db *db, int64_t repo, const char *tag, struct err *err);
/* Inside a transaction. */
MUST_CHECK int tag_write(struct catalog_tx *tx, int64_t repo, const char *tag, int64_t manifest_id, struct err *err);
