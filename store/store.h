/* SPDX-License-Identifier: Apache-2.0
 * store/store.h - the content store: opens it, and answers what is known of a digest. See also:
 *   store/spool.h   bytes on their way in: spool files that become originals
 *   store/layer.h   canonical layers: writer (chunk, encode, commit) and readers (identity and zstd form)
 *   store/meta.h    manifests, tags, views, repositories: the small rows that live for ever
 *   store/FORMAT.md the directory, the packs and the catalog on disk (normative)
 *
 * Use: store_open -> anything -> store_close. One process per store (a lock file says who).
 * Threads: struct store and all functions that take it: any thread, worker threads only, since they block on disk.
 * Knows nothing of HTTP, JSON or manifests' contents: references come in as arrays of digests.
 *
 * Invariants (code, tests and commits cite them):
 *   S1  a chunk's bytes hash to its name, a blob's bytes to its digest; both were checked before their row was committed
 *   S2  frames, fsync of the pack, fsync of the directory, then the row: a row never points at bytes that may be missing
 *   S3  one SQL transaction makes a blob, a canonical layer or a manifest with its tag visible, whole or not at all
 *   S4  rows of published digests are never deleted; eviction clears `present`, never the row
 *   S5  a source holds a lease on what it reads; eviction of a leased layer is ERR_BUSY
 *   S6  bytes read are checked against their XXH3 before they are handed on
 */
#pragma once

#include "base/digest.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct store;

enum store_originals {
    ORIGINALS_AUTO = 0, /* dropped only when room is needed */
    ORIGINALS_KEEP,
    ORIGINALS_DROP, /* dropped as soon as the canonical layer is committed */
};

struct store_options {
    const char *path;     /* made with its parents when missing, mode 0700 */
    uint64_t quota_bytes; /* 0: 80 % of the file system */
    int zstd_level;       /* of new frames; 0: 3 */
    enum store_originals originals;
};

/* Locks, migrates or refuses (ERR_UNSUPPORTED names both versions), reclaims spool files, unreferenced originals and
 * uncommitted pack tails. ERR_BUSY when another process has it. */
MUST_CHECK int store_open(const struct store_options *opt, struct store **out, struct err *err);
void store_close(struct store *st);
/* Changes with every transaction: what was read from the catalog is as it was while this stays the same. An atomic. */
uint64_t store_generation(const struct store *st);
/* Whether the catalog can be read, and no damage of it was met since it was opened. ERR_IO. */
MUST_CHECK int store_health(struct store *st, struct err *err);
/* To be called when nothing has happened for a while: the WAL is copied into the catalog and truncated. */
void store_idle(struct store *st);

/* ---- what a digest is ------------------------------------------------------------------------------------------ */

enum store_role {
    ROLE_UNKNOWN = 0,
    ROLE_ORIGINAL,  /* a blob as the upstream has it */
    ROLE_CANONICAL, /* a diffID: uncompressed bytes, from a recipe */
    ROLE_ZSTD,      /* the concatenated frames of a canonical layer */
};

enum store_canon {
    CANON_PENDING = 0, /* not looked at yet */
    CANON_DONE,
    CANON_REFUSED, /* cannot be decoded, or over a limit: stays an original for ever */
};

struct store_blob {
    enum store_role role; /* the best way to answer: a present one wins, canonical before original */
    bool present;         /* its bytes are in the store */
    uint64_t size_bytes;  /* of the bytes that the digest names; 0 when the catalog does not know it */

    enum store_canon canon; /* role ORIGINAL: state of its canonical form */
    bool has_canonical;     /* the four below are set (known for ever, also when evicted) */
    bool canonical_present;
    struct digest canonical; /* diffID */
    uint64_t canonical_bytes;
    struct digest zstd; /* digest of the zstd form */
    uint64_t zstd_bytes;
};

/* role ROLE_UNKNOWN and 0 when the catalog has never heard of it. */
MUST_CHECK int store_blob_lookup(struct store *st, const struct digest *d, struct store_blob *out, struct err *err);

/* ---- repositories ---------------------------------------------------------------------------------------------- */

/* The row of (upstream, name), *out_repo = 0 when there is none. Ids are stable for the life of the store; the functions
 * below that only look take 0 for a repository that holds nothing. */
MUST_CHECK int store_repo_find(struct store *st, const char *upstream, const char *name, int64_t *out_repo,
                               struct err *err);
/* Finds or makes it. For names that an upstream has confirmed: a row lives for ever, and clients ask for anything. */
MUST_CHECK int store_repo(struct store *st, const char *upstream, const char *name, int64_t *out_repo, struct err *err);

/* True when `repo` is known to hold the blob, or a blob whose canonical or zstd form has this digest. */
MUST_CHECK int store_repo_has_blob(struct store *st, int64_t repo, const struct digest *d, bool *out, struct err *err);

/* Remembers that the upstream confirmed blob d for repo. size_bytes: of the original, 0 when not known. */
MUST_CHECK int store_repo_add_blob(struct store *st, int64_t repo, const struct digest *d, uint64_t size_bytes,
                                   struct err *err);

/* Where the bytes of a digest can be had from again. */
struct store_source {
    struct digest original; /* what to ask the upstream for */
    uint64_t original_bytes;
    bool decode; /* the digest names the decoded bytes (or the zstd form of them) */
    int64_t repo;
    char upstream[256];
    char name[256];
};

/* Sources of d, those in `repo` first (0: no preference), at most max. *out_count may be 0. */
MUST_CHECK int store_sources(struct store *st, const struct digest *d, int64_t repo, struct store_source *out,
                             size_t max, size_t *out_count, struct err *err);

/* ---- work to do, room, numbers --------------------------------------------------------------------------------- */

typedef int store_digest_fn(void *arg, const struct digest *d, struct err *err);

/* Originals that are present and CANON_PENDING, for the start of the process. */
MUST_CHECK int store_each_pending(struct store *st, store_digest_fn *fn, void *arg, struct err *err);

/* Says that an original will never have a canonical form; reason is for people. */
MUST_CHECK int store_canon_refuse(struct store *st, const struct digest *original, const char *reason, struct err *err);

/* Drops the bytes of d: the original's file, or the recipe and the chunks that nobody else uses (holes are punched).
 * The rows stay (S4). ERR_NOTFOUND, ERR_BUSY (S5, or pinned). */
MUST_CHECK int store_evict(struct store *st, const struct digest *d, struct err *err);

/* Drops the file of an original whose canonical layer is stored, when the policy says so or it is its own canonical form:
 * what layer_writer_commit() does too, but for an original that was being read then, or was fetched again later.
 * 0 also when it stays. ERR_BUSY (S5). */
MUST_CHECK int store_settle_original(struct store *st, const struct digest *original, struct err *err);

/* One step of making room beforehand, so that fills need not: when more than 95 % of the quota is taken, what was read
 * longest ago goes, until it is 90 %. *out_more: to be called again soon. Cheap when there is nothing to do. */
MUST_CHECK int store_make_room(struct store *st, bool *out_more, struct err *err);

/* For bytes found missing or damaged: like store_evict(), but the state is right even if files are gone, and leases do
 * not hold it back. Of a canonical layer it reads every frame, so that all damage heals when the layer is written again.
 * Where one digest has two copies (an original that is its own canonical form) a good one stays. ERR_NOTFOUND: never
 * heard of; 0 when there was nothing to lose. */
MUST_CHECK int store_mark_lost(struct store *st, const struct digest *d, struct err *err);

struct store_stats {
    uint64_t bytes_on_disk;               /* blocks of packs, originals, spool and catalog */
    uint64_t quota_bytes, reserved_bytes; /* reserved: what those who write now may still write, and the whole spool */
    uint64_t evictions;                   /* by this process, to make room */
    uint64_t packs, pack_bytes; /* files, and their blocks; what of them is not frame_bytes is metadata or dead */
    uint64_t compactions, compacted_bytes; /* by this process: packs that are gone, bytes that were moved for it */
    uint64_t canonical_bytes, unique_chunk_bytes, frame_bytes, original_bytes;
    uint64_t chunks, canonical_layers, replayable_layers;
    uint64_t manifests, tags, blobs;
    uint64_t pins, pinned_bytes; /* bytes: pinned originals and zstd forms that are stored, as if nothing were shared */
};

MUST_CHECK int store_stats(struct store *st, struct store_stats *out, struct err *err);
