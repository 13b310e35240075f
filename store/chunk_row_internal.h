/* SPDX-License-Identifier: Apache-2.0
 * store/chunk_row_internal.h - a row of the table `chunk`, read and checked in one place.
 *
 * A catalog is bytes from disk: a row that does not make sense is ERR_CORRUPT, and what passes fits the buffers
 * that readers have (CHUNK_MAX_BYTES, CHUNK_FRAME_MAX_BYTES).
 */
#pragma once

#include "store/chunker.h"
#include "store/pack.h"
#include "store/sql_internal.h"
#include "transcode/codec.h"

struct chunk_row {
    int64_t id;
    bool lost; /* pack_id is NULL: its bytes were found damaged (C2); loc.len and loc.sum still say what they were */
    uint32_t raw_bytes;
    enum frame_kind kind;
    int level;
    uint32_t encoder;
    struct pack_loc loc;
};

/* Nine columns, read by chunk_row_read() from `first` on. The table is named c in the query. */
#define CHUNK_ROW_COLUMNS "c.id, c.raw, c.kind, c.level, c.encoder, c.pack_id, c.off, c.len, c.sum"

MUST_CHECK int chunk_row_read(struct sql_query *q, int first, struct chunk_row *out, struct err *err);

/* By digest; false when there is none. */
MUST_CHECK int chunk_row_find(struct sql_db *db, const struct digest *d, struct chunk_row *out, bool *out_found,
                              struct err *err);

/* Says in the catalog that the bytes at row->loc are damaged, unless somebody has stored the chunk again since. */
struct store;
MUST_CHECK int chunk_row_lose(struct store *st, const struct chunk_row *row, struct err *err);

/* Reads the frame of row `id` from *loc (S6), which somebody has read before: when it is not there any more, since
 * compaction has moved it, from where it is now, and *loc says so. id 0: no row, so it has not been moved. */
MUST_CHECK int chunk_read(struct store *st, int64_t id, struct pack_loc *loc, void *out, struct err *err);

size_t chunk_frame_max_bytes(void); /* frame_bound(CHUNK_MAX_BYTES) */
