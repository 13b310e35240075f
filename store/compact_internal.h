/* SPDX-License-Identifier: Apache-2.0
 * store/compact_internal.h - compaction of packs: compact_choose.c finds them, compact.c moves what is in them,
 * compact_meta.c says which metadata stays.
 */
#pragma once

#include "store/catalog_internal.h"
#include "store/pack_internal.h"

MUST_CHECK int compact_new(struct store *st, struct err *err); /* st->compactor */
void compact_free(struct store *st);

/* What one step did. */
struct compact_step {
    uint64_t packs_done;
    uint64_t moved_bytes; /* records appended again */
    uint64_t disk_bytes;  /* blocks of the pack that is done, when it was begun */
    uint64_t waiting;     /* packs that are still to be compacted, as far as known */
};

/* A pack is worth it when less of its blocks than this is of use. */
#define COMPACT_PERCENT 60
#define COMPACT_PRESSED_PERCENT 75 /* when room is needed and there is no other way to it */

/* At most 1 MiB is copied, and then all of it committed. One thread at a time; others wait for it. out_more: false, there
 * was nothing to do. A pack with which something is wrong is set aside for a while, and said in the log: no error here.
 * Evicts nothing. No lock, transaction or snapshot may be held. */
MUST_CHECK int compact_step(struct store *st, unsigned percent, struct compact_step *out, bool *out_more,
                            struct err *err);
/* Whether compact_step() has something to do, by what memory knows. */
MUST_CHECK int compact_wanted(struct store *st, unsigned percent, bool *out, struct err *err);
void compact_stats(struct store *st, struct store_stats *out);

/* compact_choose.c */
enum compact_choice { COMPACT_NOTHING = 0, COMPACT_COUNT, COMPACT_MOVE };
/* out_waiting: packs that are worth it, as far as known. */
MUST_CHECK int compact_choose(struct store *st, unsigned percent, struct pack_info *out,
                              enum compact_choice *out_choice, uint64_t *out_waiting, struct err *err);
/* So many live bytes are enough to leave the pack alone. */
bool compact_enough(uint64_t live_bytes, const struct pack_info *p, unsigned percent);

enum compact_keep { COMPACT_DROP = 0, COMPACT_KEEP, COMPACT_SHORTEN /* a recipe: only its head, as PACK_LAYER */ };

/* FORMAT.md "What compaction keeps", for a record that is no frame. */
MUST_CHECK int compact_decide(struct sql_db *db, const struct pack_header *r, const uint8_t *payload,
                              enum compact_keep *out, struct err *err);
