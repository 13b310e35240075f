/* SPDX-License-Identifier: Apache-2.0
 * store/spool.h - bytes of one blob on their way in: written once, read by any number of followers meanwhile, then
 * renamed to be the original, or dropped.
 *
 * Use: spool_open -> spool_write... -> spool_commit | (just) spool_unref. Followers: spool_ref, spool_pread, spool_unref.
 * Threads: one writer at a time; spool_pread and spool_bytes from any thread while it is written and after commit.
 * Units: bytes; offsets into the blob. The file goes with the last reference when it was not committed. All references
 *      are given back before store_close().
 */
#pragma once

#include "store/store.h"

struct spool;

MUST_CHECK int spool_open(struct store *st, struct spool **out, struct err *err);
struct spool *spool_ref(struct spool *sp);
void spool_unref(struct spool *sp);
void spool_cleanup(struct spool **sp);

/* Takes the room for a blob of so many bytes at once; without it spool_write() does as bytes come. ERR_NOSPC when the quota
 * does not have it, whatever is evicted: the spool takes no more. Only a writer that holds no digest's lock may call these. */
MUST_CHECK int spool_expect(struct spool *sp, uint64_t bytes, struct err *err);
/* Appends, hashes, sums. On ERR_NOSPC or ERR_IO the spool keeps the bytes before this call and takes no more. */
MUST_CHECK int spool_write(struct spool *sp, const void *data, size_t len, struct err *err);
uint64_t spool_bytes(const struct spool *sp); /* readable so far; an atomic */

/* Up to cap bytes at off, never past spool_bytes(). *out_len = 0 there. */
MUST_CHECK int spool_pread(struct spool *sp, uint64_t off, void *out, size_t cap, size_t *out_len, struct err *err);

/* sha256 of all bytes so far; and a copy of the running hash, for one who goes on from here by itself. Writer's side. */
void spool_digest(const struct spool *sp, struct digest *out);
MUST_CHECK int spool_hasher_clone(const struct spool *sp, struct hasher **out, struct err *err);

/* Makes the spool the original `d` of repo: checks the digest (ERR_CORRUPT), fsync, rename, fsync directory, row (S2),
 * and the repository's link (repo 0: none). Readers' references stay good. An original that is there already is replaced:
 * it may be why these bytes were fetched. */
MUST_CHECK int spool_commit(struct spool *sp, const struct digest *d, int64_t repo, struct err *err);
