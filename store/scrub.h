/* SPDX-License-Identifier: Apache-2.0
 * store/scrub.h - a scrub: reads all that is stored and compares it with what the catalog says, in small steps, while the
 * store is used.
 *
 * Use: store_scrub_new -> store_scrub_step while *out_more -> store_scrub_free
 * Threads: one scrub belongs to one thread at a time (store_scrub_cancel(): any); worker threads only, since a step blocks
 *      on disk. Anything else may use the store meanwhile: what is evicted, moved or stored anew is no finding, since
 *      nothing is called bad before it was looked at twice.
 * A step reads at most about 1 MiB or takes about 10 ms, whichever comes first; but SQLite's own check of one table, and
 * the search for the layers that a damaged chunk is part of, are one step each. A scrub changes nothing; it is no client's
 * read, and leases only the layer or original in hand.
 */
#pragma once

#include "base/digest.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct store;
struct store_scrub;

enum scrub_fault {
    SCRUB_FRAME = 1, /* a chunk's frame is lost, cannot be read, or fails its checksum or its digest */
    SCRUB_LAYER,     /* a recipe has a gap or does not add up, or its chunks are not the layer */
    SCRUB_ZSTD,      /* the layer is right, its zstd form is not the one that was published */
    SCRUB_ORIGINAL,  /* its file is missing, has another size, or fails its checksums or its digest */
    SCRUB_MANIFEST,  /* its body is not what its digest says */
    SCRUB_COUNT,     /* a count in the catalog is wrong */
    SCRUB_PACK,      /* a pack's file is missing or too short */
    SCRUB_STRAY,     /* a file that nobody refers to */
    SCRUB_CATALOG,   /* SQLite finds its file damaged, or rows that point nowhere */
};

const char *scrub_fault_name(enum scrub_fault f); /* "frame", "layer", ... */

#define SCRUB_LAYERS_MAX 16
#define SCRUB_TEXT_BYTES 320

struct scrub_finding {
    enum scrub_fault fault;
    char text[SCRUB_TEXT_BYTES]; /* one line for people: where and what */
    struct digest digest;        /* of the chunk, layer, original or manifest; zeroes: none */
    int64_t row;                 /* of `chunk` or `pack`; 0: none */
    int64_t pack;                /* where a frame is (0: not in a pack); a pack's own id */
    uint64_t off;
    bool totals;                            /* SCRUB_COUNT: the row of sums, not a chunk's count */
    char file[128];                         /* SCRUB_STRAY: below the store's directory */
    struct digest layers[SCRUB_LAYERS_MAX]; /* diffIDs of those that hang on it */
    size_t layer_count;
    bool more_layers; /* there are more than are listed, or may be */
};

typedef void scrub_finding_fn(void *arg, const struct scrub_finding *f);

struct store_scrub_progress {
    uint64_t bytes, total_bytes; /* read; to be read, as far as known */
    uint64_t chunks, layers, originals, manifests;
    uint64_t bad;               /* findings */
    uint64_t repaired, retired; /* 0: whoever repairs counts these (proxy/maintain.c) */
};

MUST_CHECK int store_scrub_new(struct store *st, struct store_scrub **out, struct err *err);
/* on_finding: called once for each, on this thread; may be NULL. out: so far, in total. After an error (no memory, no file
 * descriptors) only store_scrub_free() is legal. */
MUST_CHECK int store_scrub_step(struct store_scrub *s, scrub_finding_fn *on_finding, void *arg,
                                struct store_scrub_progress *out, bool *out_more, struct err *err);
void store_scrub_free(struct store_scrub *s);   /* NULL is fine */
void store_scrub_cancel(struct store_scrub *s); /* a step that runs ends soon, in ERR_CANCELLED perhaps */

/* ---- repair: what is left of it to the store ------------------------------------------------------------------------ */

/* SCRUB_COUNT, SCRUB_STRAY, SCRUB_PACK: puts it right. ERR_UNSUPPORTED: not this one, or not by itself. ERR_BUSY: frames of the pack
 * are still named by layers. */
MUST_CHECK int store_scrub_fix(struct store *st, const struct scrub_finding *f, struct err *err);
/* SCRUB_FRAME, SCRUB_ORIGINAL: what was found damaged counts as lost from now on, and is served to nobody. */
MUST_CHECK int store_scrub_lose(struct store *st, const struct scrub_finding *f, struct err *err);
/* Whether a SCRUB_FRAME still is as it was found: false when the chunk was stored again, or nobody needs it any more. */
MUST_CHECK int store_scrub_stands(struct store *st, const struct scrub_finding *f, bool *out, struct err *err);
/* The layer is not there any more, whatever can still be read of it: it is to be written again. Leases do not hold it
 * back. Nothing happens when it is not present. */
MUST_CHECK int store_scrub_drop_layer(struct store *st, const struct digest *layer, struct err *err);
/* Who has a manifest of upstream's: upstream and name, 256 bytes each. ERR_NOTFOUND; ERR_UNSUPPORTED: it is a view. */
MUST_CHECK int store_scrub_manifest_source(struct store *st, const struct digest *d, char *upstream, char *name,
                                           struct err *err);
/* SCRUB_MANIFEST: the body, fetched again; ERR_CORRUPT when it is not the manifest's. */
MUST_CHECK int store_scrub_put_manifest(struct store *st, const struct digest *d, const char *body, size_t len,
                                        struct err *err);

/* ---- what the last one found, over restarts ------------------------------------------------------------------------- */

struct store_scrub_last {
    int64_t since_s;          /* when the catalog was first asked this: a schedule begins there */
    int64_t began_s, ended_s; /* 0: never */
    struct store_scrub_progress p;
};

MUST_CHECK int store_scrub_last(struct store *st, struct store_scrub_last *out, struct err *err);
MUST_CHECK int store_scrub_remember(struct store *st, const struct store_scrub_last *last, struct err *err);
