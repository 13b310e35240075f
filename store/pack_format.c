/* SPDX-License-Identifier: Apache-2.0
 * store/pack_format.c - the headers in a pack file, and a walk over its records (FORMAT.md "Packs").
 */
#include "base/fsutil.h"
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

void pack_record_encode(const struct pack_header *r, uint64_t seed, uint64_t off, uint8_t h[PACK_RECORD_HEADER_BYTES])
{
    memcpy(h, PACK_RECORD_MAGIC, 4);
    le_put16(h + 4, (uint16_t)r->type);
    le_put16(h + 6, 0);
    le_put32(h + 8, r->len);
    le_put32(h + 12, r->meta.raw_bytes);
    le_put16(h + 16, r->meta.kind);
    le_put16(h + 18, (uint16_t)r->meta.level);
    le_put32(h + 20, r->meta.encoder);
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
        .meta = {.raw_bytes = le_get32(h + 12),
                 .kind = le_get16(h + 16),
                 .level = (int16_t)le_get16(h + 18),
                 .encoder = le_get32(h + 20)},
        .sum = le_get64(h + 56),
    };
    memcpy(out->key.b, h + 24, DIGEST_BYTES);
    return true;
}

/* ---- scan ------------------------------------------------------------------------------------------------------ */

struct scan {
    struct packs *ps;
    int64_t pack;
    uint64_t seed;
    struct buf payload;
};

/* The record at off: 1 and its whole length, or 0 when there is none that is whole. */
static int record_at(struct scan *s, uint64_t off, struct pack_header *r, struct err *err)
{
    uint8_t h[PACK_RECORD_HEADER_BYTES];
    size_t got;

    TRY(packs_pread(s->ps, s->pack, off, h, sizeof(h), &got, err));
    if (got != sizeof(h) || !pack_record_decode(h, s->seed, off, r) || r->len > PACK_PAYLOAD_MAX_BYTES)
        return 0;
    buf_reset(&s->payload);
    TRY(buf_reserve(&s->payload, r->len, err));
    TRY(packs_pread(s->ps, s->pack, off + sizeof(h), s->payload.data, r->len, &got, err));
    return got == r->len && sum64(s->payload.data, r->len) == r->sum;
}

static int scan(struct scan *s, pack_scan_fn *fn, void *arg, struct err *err)
{
    const uint64_t end = pack_end(s->ps, s->pack);
    uint64_t off = PACK_FILE_HEADER_BYTES;

    while (off + PACK_RECORD_HEADER_BYTES <= end) {
        struct pack_header r;
        int rc = record_at(s, off, &r, err);

        if (rc < 0)
            return rc;
        if (rc == 0) {
            off += 8; /* a hole, or a record that was never finished: records begin at multiples of 8 */
            continue;
        }
        TRY(fn(arg, &r, off + PACK_RECORD_HEADER_BYTES, (const uint8_t *)s->payload.data, err));
        off = (off + PACK_RECORD_HEADER_BYTES + r.len + 7) & ~UINT64_C(7);
    }
    return 0;
}

int pack_scan(struct packs *ps, int64_t pack, pack_scan_fn *fn, void *arg, struct err *err)
{
    struct scan s = {.ps = ps, .pack = pack, .payload = BUF_INIT(PACK_PAYLOAD_MAX_BYTES + 1)};
    uint8_t h[PACK_FILE_HEADER_BYTES];
    size_t got;
    int rc;

    TRY(packs_pread(ps, pack, 0, h, sizeof(h), &got, err));
    if (got != sizeof(h))
        return err_set(err, ERR_CORRUPT, "packs/%s: no header", pack_name(pack).s);
    TRY(pack_file_decode(h, pack, &s.seed, err));
    rc = scan(&s, fn, arg, err);
    buf_release(&s.payload);
    return rc;
}
