/* SPDX-License-Identifier: Apache-2.0
 * store/pack_format.c - the headers in a pack file (FORMAT.md "Packs").
 */
#include "store/le_internal.h"
#include "store/pack_internal.h"
#include "transcode/codec.h"

#include <inttypes.h>
#include <xxhash.h>

struct pack_name pack_name(int64_t id)
{
    struct pack_name n;

    (void)snprintf(n.s, sizeof(n.s), "%016" PRIx64 ".pack", (uint64_t)id);
    return n;
}

void pack_file_encode(int64_t id, uint64_t seed, int64_t created, uint8_t h[PACK_FILE_HEADER_BYTES])
{
    memset(h, 0, PACK_FILE_HEADER_BYTES);
    memcpy(h, PACK_MAGIC, 8);
    le_put32(h + 8, PACK_VERSION);
    le_put64(h + 16, (uint64_t)id);
    le_put64(h + 24, seed);
    le_put64(h + 32, (uint64_t)created);
    le_put64(h + 56, sum64(h, 56));
}

int pack_file_decode(const uint8_t h[PACK_FILE_HEADER_BYTES], int64_t id, uint64_t *out_seed, struct err *err)
{
    if (memcmp(h, PACK_MAGIC, 8) != 0 || le_get64(h + 56) != sum64(h, 56))
        return err_set(err, ERR_CORRUPT, "packs/%s: damaged header", pack_name(id).s);
    if (le_get32(h + 8) != PACK_VERSION || le_get32(h + 12) != 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "packs/%s has format %" PRIu32 " flags %#" PRIx32
                       ", but this recask knows format %d without flags",
                       pack_name(id).s, le_get32(h + 8), le_get32(h + 12), PACK_VERSION);
    if ((int64_t)le_get64(h + 16) != id)
        return err_set(err, ERR_CORRUPT, "packs/%s: header names another pack", pack_name(id).s);
    *out_seed = le_get64(h + 24);
    return 0;
}

static uint64_t record_sum(const uint8_t h[PACK_RECORD_HEADER_BYTES], uint64_t seed, uint64_t off)
{
    return XXH3_64bits_withSeed(h, 64, seed ^ off);
}

static void put_meta(const struct pack_header *r, uint8_t h[PACK_RECORD_HEADER_BYTES])
{
    if (r->type != PACK_FRAME) {
        le_put32(h + 12, (uint32_t)(r->meta.origin_off / 8));
        le_put64(h + 16, (uint64_t)r->meta.origin_pack);
        return;
    }
    le_put32(h + 12, r->meta.raw_bytes);
    le_put16(h + 16, r->meta.kind);
    le_put16(h + 18, (uint16_t)r->meta.level);
    le_put32(h + 20, r->meta.encoder);
}

static void get_meta(const uint8_t h[PACK_RECORD_HEADER_BYTES], struct pack_header *out)
{
    if (out->type != PACK_FRAME) {
        out->meta =
            (struct pack_meta){.origin_pack = (int64_t)le_get64(h + 16), .origin_off = (uint64_t)le_get32(h + 12) * 8};
        return;
    }
    out->meta = (struct pack_meta){.raw_bytes = le_get32(h + 12),
                                   .kind = le_get16(h + 16),
                                   .level = (int16_t)le_get16(h + 18),
                                   .encoder = le_get32(h + 20)};
}

void pack_record_encode(const struct pack_header *r, uint64_t seed, uint64_t off, uint8_t h[PACK_RECORD_HEADER_BYTES])
{
    memcpy(h, PACK_RECORD_MAGIC, 4);
    le_put16(h + 4, (uint16_t)r->type);
    le_put16(h + 6, 0);
    le_put32(h + 8, r->len);
    put_meta(r, h);
    memcpy(h + 24, r->key.b, DIGEST_BYTES);
    le_put64(h + 56, r->sum);
    le_put64(h + 64, record_sum(h, seed, off));
}

bool pack_record_decode(const uint8_t h[PACK_RECORD_HEADER_BYTES], uint64_t seed, uint64_t off, struct pack_header *out)
{
    if (memcmp(h, PACK_RECORD_MAGIC, 4) != 0 || le_get64(h + 64) != record_sum(h, seed, off) || le_get16(h + 6) != 0)
        return false;
    *out = (struct pack_header){
        .type = (enum pack_record)le_get16(h + 4),
        .len = le_get32(h + 8),
        .sum = le_get64(h + 56),
    };
    get_meta(h, out);
    memcpy(out->key.b, h + 24, DIGEST_BYTES);
    return true;
}
