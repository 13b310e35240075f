/* SPDX-License-Identifier: Apache-2.0
 * store/scrub_internal.h - what the files of the scrub share: its state, and the units of work that a step is made of.
 *
 *   scrub.c          steps, stages, findings          scrub_catalog.c   SQLite's checks, counts, sums
 *   scrub_layer.c    layers, chunks and their frames  scrub_files.c     originals, manifests, files nobody refers to
 *   scrub_repair.c   what of a repair is the store's, and the memory of the last scrub
 */
#pragma once

#include "base/stream.h"
#include "store/catalog_internal.h"
#include "store/chunk_row_internal.h"
#include "store/scrub.h"

#include <dirent.h>

#define SCRUB_NAME_BYTES 64
#define SCRUB_ROWS 64

/* ---- scrub_catalog.c: all of it in one snapshot, so what changes meanwhile is not seen ------------------------------ */

enum catalog_phase { CATALOG_LIST = 0, CATALOG_TABLES, CATALOG_RECIPES, CATALOG_CHUNKS, CATALOG_TOTALS };

struct catalog_walk {
    bool begun;
    enum catalog_phase phase;
    char (*tables)[SCRUB_NAME_BYTES];
    size_t table_count, table_at;
    struct sql_query q;  /* the cursor of a phase */
    int64_t low;         /* the window of chunks that is counted now begins here */
    uint32_t *uses;      /* of each chunk in it */
    bool counted_before; /* this is not the first window */
    int64_t layer;       /* whose recipe the cursor is in */
    int64_t chunks, chunk_bytes, frame_bytes;
};

/* ---- scrub_layer.c --------------------------------------------------------------------------------------------------- */

struct scrub_row {
    int64_t off, zoff;
    struct chunk_row chunk;
    struct digest digest;
    bool bad; /* `why` says what is wrong with the row itself */
    char why[160];
};

struct layer_walk {
    int64_t last_id; /* of the layer in hand, or of the last one */
    struct lease lease;
    bool open, again; /* again: it is looked at for the second time */
    bool tainted;     /* something of it was reported: its digests say nothing more */
    bool restart;
    struct digest digest, zstd;
    bool has_zstd;
    int64_t size, zsize, count;
    int64_t off, zoff, rows; /* where the next row is to begin; rows seen */
    int64_t last_off;
    struct hasher *hash, *zhash;
    struct scrub_row page[SCRUB_ROWS];
    size_t page_count, page_at;
    bool page_last;
    struct frame_ctx *frames;
    uint8_t *frame, *raw;
    int64_t *reported; /* chunks, ascending */
    size_t reported_count, reported_cap;
    unsigned searches;
};

/* ---- scrub_files.c --------------------------------------------------------------------------------------------------- */

struct original_walk {
    int64_t last_id;
    bool again;
    struct digest digest;
    uint64_t size, seen;
    struct source *source;
    struct hasher *hash;
    uint8_t *buffer;
};

struct file_walk {
    int64_t last_manifest;
    unsigned dir; /* of originals/ */
    bool packs_done;
    int64_t last_pack;
};

/* ---- the scrub --------------------------------------------------------------------------------------------------------- */

struct store_scrub {
    struct store *st;
    struct sql_db *db; /* its own: a snapshot of minutes must not take one from the readers' pool */
    atomic_bool cancelled;
    unsigned stage;
    struct store_scrub_progress p;
    scrub_finding_fn *fn; /* of the step that runs */
    void *arg;
    struct catalog_walk catalog;
    struct layer_walk layer;
    struct original_walk original;
    struct file_walk file;
};

/* A unit of a stage's work; *out_more false: the stage is over. ERR_CORRUPT: the catalog itself cannot be read. */
typedef int scrub_unit_fn(struct store_scrub *s, bool *out_more, struct err *err);
MUST_CHECK int scrub_catalog_unit(struct store_scrub *s, bool *out_more, struct err *err);
MUST_CHECK int scrub_layer_unit(struct store_scrub *s, bool *out_more, struct err *err);
MUST_CHECK int scrub_original_unit(struct store_scrub *s, bool *out_more, struct err *err);
MUST_CHECK int scrub_manifest_unit(struct store_scrub *s, bool *out_more, struct err *err);
MUST_CHECK int scrub_stray_unit(struct store_scrub *s, bool *out_more, struct err *err);

/* Frees what the stage holds; also after an error in the middle. */
void scrub_catalog_end(struct store_scrub *s);
void scrub_layer_end(struct store_scrub *s);
void scrub_original_end(struct store_scrub *s);

void scrub_report(struct store_scrub *s, struct scrub_finding *f, const char *fmt, ...) PRINTF_LIKE(3, 4);
