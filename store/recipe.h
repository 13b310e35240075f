/* SPDX-License-Identifier: Apache-2.0
 * store/recipe.h - the payloads of PACK_RECIPE and PACK_BLOB records, from which a lost catalog is made again. Private
 * to store/. Pure: no I/O.
 *
 * FORMAT (all numbers little-endian):
 *   PACK_RECIPE, key: the diffID
 *      0  u32  version, 1; a reader refuses any other
 *      4  u32  number of chunks, >= 1
 *      8  u64  size of the canonical layer
 *     16  u64  size of its zstd form
 *     24  i32  level that was asked for
 *     28  u32  newest encoder among the frames (frame_info.encoder)
 *     32  32   digest of the zstd form
 *     64       per chunk, in order: digest (32 bytes), u32 raw bytes. The raw bytes add up to the layer's size; 0 only
 *              as the one chunk of an empty layer
 *   PACK_LAYER, key: the diffID: the first 64 bytes of a recipe, number of chunks 0
 *   The frames are the PACK_FRAME records of those keys; where a key has several, the ones that give the digest of the
 *   zstd form.
 *   PACK_BLOB, key: the original's digest
 *      0  u32  version, 1
 *      4  u32  0
 *      8  u64  size of the canonical layer
 *     16  32   its digest, the diffID
 */
#pragma once

#include "base/digest.h"
#include "base/err.h"

#define RECIPE_HEAD_BYTES 64u
#define RECIPE_CHUNK_BYTES 36u
#define RECIPE_LINK_BYTES 48u

struct recipe_head {
    uint32_t chunks;
    uint64_t size_bytes, zstd_bytes;
    int32_t level;
    uint32_t encoder;
    struct digest zstd;
};

struct recipe_chunk {
    struct digest digest;
    uint32_t raw_bytes;
};

size_t recipe_bytes(uint32_t chunks);
/* out: recipe_bytes(head->chunks), all chunks to be put by the caller. */
void recipe_put_head(uint8_t *out, const struct recipe_head *head);
void recipe_put_chunk(uint8_t *out, uint32_t i, const struct recipe_chunk *chunk);

/* Checks the whole payload: ERR_CORRUPT, ERR_UNSUPPORTED (another version). After it recipe_chunk_at() is safe. */
MUST_CHECK int recipe_parse(const uint8_t *data, size_t len, struct recipe_head *out, struct err *err);
void recipe_chunk_at(const uint8_t *data, uint32_t i, struct recipe_chunk *out);

/* PACK_LAYER. recipe: a payload that passed recipe_parse(). */
void recipe_layer_put(uint8_t out[RECIPE_HEAD_BYTES], const uint8_t *recipe);
MUST_CHECK int recipe_layer_parse(const uint8_t *data, size_t len, struct recipe_head *out, struct err *err);

struct recipe_link {
    struct digest canonical;
    uint64_t canonical_bytes;
};

void recipe_link_put(uint8_t out[RECIPE_LINK_BYTES], const struct recipe_link *link);
MUST_CHECK int recipe_link_parse(const uint8_t *data, size_t len, struct recipe_link *out, struct err *err);
