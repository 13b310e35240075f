/* SPDX-License-Identifier: Apache-2.0
 * store/layer_writer_internal.h - what layer_writer.c gathers and layer_commit.c makes durable.
 */
#pragma once

#include "store/catalog_internal.h"
#include "store/chunk_row_internal.h"
#include "store/layer.h"
#include "store/tarscan.h"

enum piece_state {
    PIECE_SHARED, /* the catalog has it: loc is its row's */
    PIECE_NEW,    /* stored by this writer at loc; no row when it looked */
    PIECE_HEALED, /* the same, and there is a row that has lost its bytes; loc.len and loc.sum are those of the row */
};

/* One distinct chunk of the layer. */
struct piece {
    struct digest digest;
    struct pack_loc loc;
    int64_t id; /* of its row; 0: none before the commit */
    uint32_t raw_bytes;
    uint32_t uses; /* in this layer */
    uint32_t encoder;
    int16_t level;
    uint8_t kind;  /* enum frame_kind */
    uint8_t state; /* enum piece_state */
    bool leased;   /* LEASE_CHUNK is held */
    bool linked;   /* by the commit: the row points at our frame */
};

struct layer_writer {
    struct store *st;
    struct digest source;
    int level;
    struct pack_hold hold; /* compaction leaves the frames of before the commit alone */

    /* the bytes put so far */
    struct hasher *canonical_hash;
    struct tarscan scan;
    struct chunker cut;
    uint8_t *chunk; /* CHUNK_MAX_BYTES */
    size_t chunk_len;
    uint64_t size_bytes;

    /* the chunks emitted so far */
    struct frame_ctx *frames;
    uint8_t *frame; /* chunk_frame_max_bytes() */
    struct hasher *zstd_hash;
    uint64_t zstd_bytes;
    uint32_t encoder; /* the newest */

    struct piece *pieces; /* distinct ones, in order of their first use */
    uint32_t piece_count, piece_cap;
    uint32_t *rows; /* the recipe: indexes of pieces */
    uint32_t row_count, row_cap;
    uint32_t *slots; /* hash table over pieces: index + 1, 0 is free; a power of two */
    uint32_t slot_count;
    bool committed;
    bool keep_frames; /* rows may point at them, although the commit failed */
};

/* layer_writer.c: the last chunk. */
MUST_CHECK int layer_writer_finish(struct layer_writer *w, struct err *err);

/* The zstd form of a layer came out different from what was published (another encoder or level since its eviction):
 * in this transaction the zstd views that list the old one are withdrawn, and their manifests are wanted again. The
 * derived manifests stay (S4); the layer they name is gone. layer_commit.c. */
MUST_CHECK int store_retire_zstd(struct sql_db *db, int64_t canonical_id, struct err *err);
