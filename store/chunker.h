/* SPDX-License-Identifier: Apache-2.0
 * store/chunker.h - where a stream is cut into chunks, by content. Private to store/.
 *
 * Use: chunker_init -> chunker_scan over the bytes in any pieces; a chunk ends after the bytes that the call took when
 *      *out_cut is set. chunker_cut() where something else (store/tarscan.h) ends the chunk.
 * Threads: a plain value, one at a time. Nothing is allocated, nothing fails. The cuts are a pure function of the bytes
 * since the last cut, whatever the pieces.
 *
 * FORMAT: these numbers name chunks, so changing one of them costs all deduplication against what is stored (nothing
 * else: a recipe lists its chunks, so old layers stay readable).
 *   gear[i], i = 0..255: the (i+1)-th output of SplitMix64 (Steele, Lea, Flood 2014) from state 0x72656361736b3031
 *     ("recask01"): state += 0x9e3779b97f4a7c15; z = state; z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
 *     z = (z ^ z >> 27) * 0x94d049bb133111eb; output z ^ z >> 31. All modulo 2^64.
 *   hash: 0 at the byte with index CHUNK_MIN_BYTES - 64 of a chunk; from there on, for each byte b, h = 2 * h + gear[b]
 *     modulo 2^64, so that h is a function of the last 64 bytes alone.
 *   The chunk ends after its byte number n (counted from 1), the first with
 *     CHUNK_MIN_BYTES    < n <= CHUNK_NORMAL_BYTES and h < 2^44 (one in 2^20), or
 *     CHUNK_NORMAL_BYTES < n <  CHUNK_MAX_BYTES    and h < 2^48 (one in 2^16), or
 *     n = CHUNK_MAX_BYTES.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHUNK_MIN_BYTES (64u << 10)
#define CHUNK_NORMAL_BYTES (192u << 10) /* gives a mean of 256 KiB */
#define CHUNK_MAX_BYTES (1u << 20)

struct chunker {
    uint64_t hash;
    uint32_t len_bytes; /* of the chunk so far */
};

void chunker_init(struct chunker *c);
/* Takes bytes of data up to and with the end of the chunk; returns how many, > 0 when len > 0. After a cut the next
 * call starts a new chunk. */
size_t chunker_scan(struct chunker *c, const uint8_t *data, size_t len, bool *out_cut);
/* Ends the chunk here; the hash starts afresh. */
void chunker_cut(struct chunker *c);

extern const uint64_t chunker_gear[256]; /* for the test that recomputes it */
