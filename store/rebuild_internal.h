/* SPDX-License-Identifier: Apache-2.0
 * store/rebuild_internal.h - what the parts of a rebuild share.
 *
 * Order: rebuild.c walks all packs twice. First frames, layers, manifests, links to layers; then what points at those:
 * rebuild_names.c. Then rebuild_layers.c makes the recipes, rebuild.c looks at originals and puts the catalog in its place.
 * Which of several records counts is FORMAT.md's "Which record wins"; the places of winners are in temporary tables.
 */
#pragma once

#include "store/offline_internal.h"
#include "store/rebuild.h"
#include "transcode/codec.h"

struct rebuild {
    struct offline off;
    struct sql_db *db;
    struct frame_ctx *frames;
    uint8_t *raw, *frame; /* one chunk, one frame */
    struct buf payload;
    int64_t now_s, now_ms; /* what was never told is of now */
    struct store_rebuild_result *out;
};

/* A record at hand. */
struct found {
    struct pack_header h;
    int64_t pack;
    uint64_t off; /* of the payload */
    const uint8_t *data;
};

/* Tells of something that is not taken over. */
void rebuild_lost(struct rebuild *r, const char *fmt, ...) PRINTF_LIKE(2, 3);

MUST_CHECK int rebuild_blob_row(struct rebuild *r, const struct digest *d, uint64_t size_bytes, int64_t *out_id,
                                struct err *err);

/* rebuild_layers.c. ERR_CORRUPT: the record makes no sense. */
MUST_CHECK int rebuild_frame(struct rebuild *r, const struct found *f, struct err *err);
MUST_CHECK int rebuild_recipe(struct rebuild *r, const struct found *f, struct err *err);
MUST_CHECK int rebuild_link(struct rebuild *r, const struct found *f, struct err *err);
MUST_CHECK int rebuild_layers(struct rebuild *r, struct err *err);

/* rebuild_names.c */
MUST_CHECK int rebuild_manifest(struct rebuild *r, const struct found *f, struct err *err);
MUST_CHECK int rebuild_repo_blob(struct rebuild *r, const struct found *f, struct err *err);
MUST_CHECK int rebuild_tag(struct rebuild *r, const struct found *f, struct err *err);
MUST_CHECK int rebuild_pin(struct rebuild *r, const struct found *f, struct err *err);
MUST_CHECK int rebuild_view(struct rebuild *r, const struct found *f, struct err *err);
MUST_CHECK int rebuild_names(struct rebuild *r, struct err *err); /* after all of them, and rebuild_layers() */
