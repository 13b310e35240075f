/* SPDX-License-Identifier: Apache-2.0
 * store/layer.h - canonical layers: the writer that cuts, deduplicates, encodes and commits one, and the sources that
 * read one back in either form, whole or from any offset.
 *
 * Use: layer_writer_open -> layer_writer_put... -> layer_writer_commit | layer_writer_abort
 *      layer_open / original_open -> source_read (base/stream.h) -> source_free
 * Threads: a writer and a source belong to one thread at a time. They block on disk: worker threads only.
 * Memory: a writer holds one chunk (1 MiB at most), its frame and a page of pending rows; a source one frame, one chunk
 *      and a page of the recipe. Neither grows with the layer, except a writer's pending rows (about 100 bytes per chunk).
 */
#pragma once

#include "base/stream.h"
#include "store/store.h"

struct layer_writer;

struct layer_result {
    struct digest canonical;
    uint64_t canonical_bytes;
    struct digest zstd;
    uint64_t zstd_bytes;
    uint64_t chunks, new_chunks, new_frame_bytes;
    bool existed; /* the same canonical layer was there already; nothing was added but the link */
};

/* source: the original whose decoded bytes will be put; its row must exist. */
MUST_CHECK int layer_writer_open(struct store *st, const struct digest *source, struct layer_writer **out,
                                 struct err *err);
/* After an error only layer_writer_abort() is legal. */
MUST_CHECK int layer_writer_put(struct layer_writer *w, const void *data, size_t len, struct err *err);
/* Makes the canonical layer durable and links it to the source (S2, S3). The source's file is dropped when it is its own
 * canonical form or the policy says so, unless somebody has it open (free your own reader before). ERR_BUSY: the catalog
 * changed meanwhile, write the layer again. ERR_CORRUPT: also when a chunk that is shared is damaged and does not come out
 * the same again. Frees nothing; call layer_writer_abort() after it in any case. */
MUST_CHECK int layer_writer_commit(struct layer_writer *w, struct layer_result *out, struct err *err);
void layer_writer_abort(struct layer_writer *w); /* frees; drops what was not committed. NULL is fine */
void layer_writer_cleanup(struct layer_writer **w);

enum layer_form { LAYER_IDENTITY = 0, LAYER_ZSTD };

/* A source over [off, off + len) of the wanted form of the canonical layer (canonical: its diffID). len UINT64_MAX: to
 * the end; beyond the end there is nothing, not an error. The first frame is read and checked before this returns, so that
 * what is missing shows before an answer's headers: ERR_NOTFOUND (not present), ERR_CORRUPT. Holds a lease until freed
 * (S5). One read gives at most 2 MiB; buffers of 256 KiB or more save a copy. */
MUST_CHECK int layer_open(struct store *st, const struct digest *canonical, enum layer_form form, uint64_t off,
                          uint64_t len, struct source **out, struct err *err);

/* A source over [off, off + len) of an original's file; each MiB touched is checked (S6). ERR_NOTFOUND, ERR_CORRUPT. */
MUST_CHECK int original_open(struct store *st, const struct digest *d, uint64_t off, uint64_t len, struct source **out,
                             struct err *err);
/* All of it, for background work: not a client's read, by which eviction goes. */
MUST_CHECK int original_open_quietly(struct store *st, const struct digest *d, struct source **out, struct err *err);
