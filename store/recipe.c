/* SPDX-License-Identifier: Apache-2.0
 * store/recipe.c - see the header. The parser trusts nothing: a pack is bytes from disk, and its checksum says only
 * that they are what somebody wrote.
 */
#include "store/recipe.h"

#include "store/chunker.h"
#include "store/le_internal.h"

#include <inttypes.h>

#define RECIPE_VERSION 1

size_t recipe_bytes(uint32_t chunks)
{
    return RECIPE_HEAD_BYTES + (size_t)chunks * RECIPE_CHUNK_BYTES;
}

void recipe_put_head(uint8_t *out, const struct recipe_head *head)
{
    le_put32(out, RECIPE_VERSION);
    le_put32(out + 4, head->chunks);
    le_put64(out + 8, head->size_bytes);
    le_put64(out + 16, head->zstd_bytes);
    le_put32(out + 24, (uint32_t)head->level);
    le_put32(out + 28, head->encoder);
    memcpy(out + 32, head->zstd.b, DIGEST_BYTES);
}

void recipe_put_chunk(uint8_t *out, uint32_t i, const struct recipe_chunk *chunk)
{
    uint8_t *p = out + recipe_bytes(i);

    memcpy(p, chunk->digest.b, DIGEST_BYTES);
    le_put32(p + DIGEST_BYTES, chunk->raw_bytes);
}

void recipe_chunk_at(const uint8_t *data, uint32_t i, struct recipe_chunk *out)
{
    const uint8_t *p = data + recipe_bytes(i);

    memcpy(out->digest.b, p, DIGEST_BYTES);
    out->raw_bytes = le_get32(p + DIGEST_BYTES);
}

static int check_version(const uint8_t *data, size_t len, size_t min_bytes, const char *what, struct err *err)
{
    uint32_t version;

    if (len < min_bytes)
        return err_set(err, ERR_CORRUPT, "%s record: %zu bytes are too few", what, len);
    version = le_get32(data);
    if (version != RECIPE_VERSION)
        return err_set(err, ERR_UNSUPPORTED, "%s record: version %" PRIu32 ", this recask knows %d", what, version,
                       RECIPE_VERSION);
    return 0;
}

static void get_head(const uint8_t *data, struct recipe_head *out)
{
    out->chunks = le_get32(data + 4);
    out->size_bytes = le_get64(data + 8);
    out->zstd_bytes = le_get64(data + 16);
    out->level = (int32_t)le_get32(data + 24);
    out->encoder = le_get32(data + 28);
    memcpy(out->zstd.b, data + 32, DIGEST_BYTES);
}

void recipe_layer_put(uint8_t out[RECIPE_HEAD_BYTES], const uint8_t *recipe)
{
    memcpy(out, recipe, RECIPE_HEAD_BYTES);
    le_put32(out + 4, 0);
}

int recipe_layer_parse(const uint8_t *data, size_t len, struct recipe_head *out, struct err *err)
{
    TRY(check_version(data, len, RECIPE_HEAD_BYTES, "layer", err));
    get_head(data, out);
    return len == RECIPE_HEAD_BYTES && out->chunks == 0 ? 0 : err_set(err, ERR_CORRUPT, "layer record: malformed");
}

int recipe_parse(const uint8_t *data, size_t len, struct recipe_head *out, struct err *err)
{
    uint64_t sum = 0;

    TRY(check_version(data, len, RECIPE_HEAD_BYTES, "recipe", err));
    get_head(data, out);
    if (out->chunks == 0 || len != recipe_bytes(out->chunks))
        return err_set(err, ERR_CORRUPT, "recipe record: %zu bytes do not hold %" PRIu32 " chunks", len, out->chunks);
    for (uint32_t i = 0; i < out->chunks; i++) {
        struct recipe_chunk c;

        recipe_chunk_at(data, i, &c);
        if (c.raw_bytes > CHUNK_MAX_BYTES || (c.raw_bytes == 0 && out->chunks > 1))
            return err_set(err, ERR_CORRUPT, "recipe record: chunk %" PRIu32 " of %" PRIu32 " bytes", i, c.raw_bytes);
        sum += c.raw_bytes;
    }
    if (sum != out->size_bytes)
        return err_set(err, ERR_CORRUPT, "recipe record: the chunks have %" PRIu64 " bytes, the layer %" PRIu64, sum,
                       out->size_bytes);
    return 0;
}

void recipe_link_put(uint8_t out[RECIPE_LINK_BYTES], const struct recipe_link *link)
{
    le_put32(out, RECIPE_VERSION);
    le_put32(out + 4, 0);
    le_put64(out + 8, link->canonical_bytes);
    memcpy(out + 16, link->canonical.b, DIGEST_BYTES);
}

int recipe_link_parse(const uint8_t *data, size_t len, struct recipe_link *out, struct err *err)
{
    TRY(check_version(data, len, RECIPE_LINK_BYTES, "link", err));
    if (len != RECIPE_LINK_BYTES || le_get32(data + 4) != 0)
        return err_set(err, ERR_CORRUPT, "link record: malformed");
    out->canonical_bytes = le_get64(data + 8);
    memcpy(out->canonical.b, data + 16, DIGEST_BYTES);
    return 0;
}
