/* SPDX-License-Identifier: Apache-2.0
 * oci/json_internal.h - jansson behind two calls, with the limits that jansson itself does not have.
 *
 * Use: oci_json_load() -> read or change the tree -> oci_json_dump(); CLEANUP(oci_json_free) on the root.
 * Threads: a tree belongs to one thread at a time.
 */
#pragma once

#include "base/buf.h"

#include <jansson.h>
#include <stdbool.h>

/* Commas and brackets in one document. jansson spends up to some 250 bytes on a value that takes three bytes
 * of text ("{},"), so a limit on bytes alone would let 4 MiB of manifest become a third of a gigabyte. */
#define OCI_JSON_MAX_VALUES (128u * 1024)

/* What makes a document unfit to be written again: readers or writers could differ over it. */
struct oci_json_traits {
    bool duplicate_keys; /* the last one is what the tree holds, as in Go */
    bool non_integers;
};

/* ERR_LIMIT: longer than max_bytes, deeper than OCI_JSON_MAX_DEPTH, too many values. ERR_FORMAT: anything but
 * exactly one JSON object in UTF-8, NUL characters and byte order marks included. ERR_NOMEM. */
MUST_CHECK int oci_json_load(const char *body, size_t len, size_t max_bytes, json_t **out_root,
                             struct oci_json_traits *out_traits, struct err *err);

/* Compact, in insertion order, non-ASCII kept as UTF-8. Replaces what *out held. */
MUST_CHECK int oci_json_dump(const json_t *root, struct buf *out, struct err *err);

void oci_json_free(json_t **root);
