/* SPDX-License-Identifier: Apache-2.0
 * store/original_internal.h - what the catalog says of an original's file. */
#pragma once

#include "base/digest.h"


#define ORIGINAL_BLOCK_BYTES (1u << 20) /* a sum is over this many bytes, the last over what is left */
#define ORIGINAL_SUMS_MAX_BYTES (8u << 20)

struct store;

struct original_row {
    int64_t blob_id;
    uint64_t size_bytes;
};

/* ERR_NOTFOUND when no original with this digest is present. */
MUST_CHECK int original_row(struct store *st, const struct digest *d, struct original_row *out, struct err *err);
