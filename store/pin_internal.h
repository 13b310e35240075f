/* SPDX-License-Identifier: Apache-2.0
 * store/pin_internal.h - what pin.c and remove.c share, and what eviction and a rebuild need of them.
 *
 * The tables `pinned` and the columns of that name follow from `pin`, `tag`, `manifest`, `manifest_ref` by triggers
 * (schema.c): who writes those writes nothing else.
 */
#pragma once

#include "store/meta_internal.h"
#include "store/pin.h"

#define PIN_REFERENCE_BYTES META_TAG_BYTES /* a digest as text is shorter */

/* What a tag or a digest stands for. */
struct pin_target {
    int64_t repo;
    struct repo_name name;
    char reference[PIN_REFERENCE_BYTES];
    bool by_digest;
    struct digest digest; /* of the upstream manifest */
    bool pinned;          /* this reference is a pin now */
};

/* ERR_NOTFOUND: see store_pin(). */
MUST_CHECK int pin_find_target(struct sql_db *db, int64_t repo, const char *tag, const struct digest *digest,
                               struct pin_target *out, struct err *err);

/* Appends the record of a pin that comes or goes. Before a transaction, followed by pack_sync(). */
MUST_CHECK int pin_record(struct store *st, const struct pin_target *t, bool gone, struct err *err);
/* Inside a transaction: the row. One that is there stays as it is. */
MUST_CHECK int pin_write(struct sql_db *db, int64_t repo, const char *reference, bool by_digest,
                         const struct digest *digest, int64_t created, struct err *err);
MUST_CHECK int pin_delete(struct sql_db *db, int64_t repo, const char *reference, struct err *err);

struct pin_list {
    struct pin_target *items;
    size_t count, cap;
};
void pin_list_release(struct pin_list *list);
MUST_CHECK int pin_find(struct sql_db *db, int64_t repo, const char *reference, struct pin_list *out, struct err *err);
/* Those that name a digest, whatever the repository. */
MUST_CHECK int pins_by_digest(struct sql_db *db, const struct digest *digest, struct pin_list *out, struct err *err);

/* Every blob that a manifest leads to, each once, and how many manifests on the way are not stored. */
struct image_blob {
    struct digest digest;
    uint64_t size_bytes; /* as the manifests say */
};
struct image_blobs {
    struct image_blob *items;
    size_t count, cap;
    uint64_t unknown;
};
void image_blobs_release(struct image_blobs *list);
MUST_CHECK int image_blobs_read(struct sql_db *db, const struct digest *manifest, struct image_blobs *out,
                                struct err *err);

/* Whether a form may be evicted as far as pins go: ERR_BUSY says why not. Inside the transaction that evicts it. */
MUST_CHECK int pin_check_original(struct sql_db *db, int64_t blob_id, const struct digest *d, struct err *err);
MUST_CHECK int pin_check_canonical(struct sql_db *db, int64_t canonical_id, const struct digest *d, struct err *err);

/* Sets ERR_NOSPC, nothing is left that may be evicted; warns (once in a while) when that is because of pins. */
int pins_no_room(struct store *st, struct err *err);
