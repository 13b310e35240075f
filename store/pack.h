/* SPDX-License-Identifier: Apache-2.0
 * store/pack.h - append-only pack files of checked records. Private to store/.
 *
 * Use: pack_append() for each record (a frame, or a recipe, manifest, tag, link ...) -> pack_sync() -> the SQL
 *      transaction that makes them visible. Reading: pack_read() by location, checked against its XXH3.
 * Threads: any; appends reserve room under RANK_STORE and write outside of it.
 * Format: FORMAT.md "Packs".
 */
#pragma once

#include "base/buf.h"
#include "base/digest.h"

#include <stdbool.h>
#include <stdint.h>

enum pack_record {
    PACK_FRAME = 1,    /* key: chunk digest; payload: the frame */
    PACK_RECIPE = 2,   /* key: diffID */
    PACK_MANIFEST = 3, /* key: manifest digest */
    PACK_TAG = 4,
    PACK_REPO_BLOB = 5, /* repository holds blob */
    PACK_BLOB = 6,      /* original <-> canonical */
    PACK_VIEW = 7,
    PACK_PIN = 8,   /* key: manifest that is pinned; payload as of a tag, of which "dropped" is "unpinned" */
    PACK_LAYER = 9, /* key: diffID; of a layer that was evicted: what its recipe said, but for the chunks */
};

struct pack_loc {
    int64_t pack; /* id */
    uint64_t off; /* of the payload in the file */
    uint32_t len; /* of the payload */
    uint64_t sum; /* XXH3-64 of the payload */
};

struct packs; /* all packs of one store */

/* dir_fd: borrowed for the life of packs; max_bytes: when a pack is full and the next one is begun. */
MUST_CHECK int packs_open(int dir_fd, uint64_t max_bytes, struct packs **out, struct err *err);
void packs_close(struct packs *ps);

/* Stored in the record's header, for scans; the catalog has it too. NULL where there is nothing to say. */
struct pack_meta {
    uint32_t raw_bytes; /* frames: uncompressed size */
    uint16_t kind;      /* frames: enum frame_kind */
    int16_t level;      /* frames */
    uint32_t encoder;   /* frames */
    /* Other records: where the first copy of this one was (FORMAT.md "Which record wins"): the pack and the offset of
     * its header. Appending: 0, 0 for a new record. A scan fills them always. */
    int64_t origin_pack;
    uint64_t origin_off;
};

/* Not durable before pack_sync(). ERR_NOSPC, ERR_IO: the range stays a hole that no row points at. len: 64 MiB at most. */
MUST_CHECK int pack_append(struct packs *ps, enum pack_record type, const struct digest *key,
                           const struct pack_meta *meta, const void *payload, size_t len, struct pack_loc *out,
                           struct err *err);

/* Makes every record appended so far durable (fsync of dirty packs, and of the directory when one is new). */
MUST_CHECK int pack_sync(struct packs *ps, struct err *err);
/* After pack_sync(), by whoever appended over some time and is about to commit a row that points at the record: ERR_IO when
 * it was lost to a failed fsync meanwhile, which the one that called for it was told. */
MUST_CHECK int pack_check(struct packs *ps, const struct pack_loc *loc, struct err *err);

/* Reads a payload and checks its sum: ERR_CORRUPT (also when the pack is shorter), ERR_NOTFOUND when the pack is gone. */
MUST_CHECK int pack_read(struct packs *ps, const struct pack_loc *loc, void *out, struct err *err);

/* Gives the blocks of a frame's record, header and all, back to the file system (hole punching). */
MUST_CHECK int pack_punch(struct packs *ps, const struct pack_loc *loc, struct err *err);

/* The same for many: those that come one behind the other are punched as one, so that no block between two is left. What
 * fails is logged; compaction takes it. Use: {.packs = ps} -> pack_puncher_add()... -> pack_puncher_end(). */
struct pack_puncher {
    struct packs *packs;
    int64_t pack; /* 0: nothing gathered */
    uint64_t begin, end;
};
void pack_puncher_add(struct pack_puncher *pu, const struct pack_loc *loc);
void pack_puncher_end(struct pack_puncher *pu);

/* False once the file system has said that it cannot punch: frames then give nothing back. */
bool packs_can_punch(struct packs *ps);

/* Size to record in the catalog: the end of the last byte appended to this pack. */
uint64_t pack_end(struct packs *ps, int64_t pack);

/* Durable ends that the catalog does not know yet. catalog_begin() writes them down, with the rows that point below them. */
struct pack_extent {
    int64_t pack;
    uint64_t end;
};
/* *out: malloc'd, NULL when there is none. */
MUST_CHECK int packs_unrecorded(struct packs *ps, struct pack_extent **out, size_t *out_count, struct err *err);
void packs_recorded(struct packs *ps, const struct pack_extent *extents, size_t count);

/* At open, for each pack that the catalog knows: cuts what lies behind its committed end (a crash's tail). ERR_NOTFOUND
 * when its file is gone. Then packs_remove_unknown() removes those that were never named. */
MUST_CHECK int packs_trim(struct packs *ps, int64_t pack, uint64_t committed_end, struct err *err);
MUST_CHECK int packs_remove_unknown(struct packs *ps, unsigned *out_removed, struct err *err);
size_t packs_count(struct packs *ps);

uint64_t packs_disk_bytes(struct packs *ps);

/* ---- compaction (compact.c) ---------------------------------------------------------------------------------------- */

/* While it is held, packs that took appends since are not compacted: the catalog does not say yet what of them is used.
 * For whoever appends: from before the first append until after the commit.
 * Use: CLEANUP(pack_hold_end) struct pack_hold hold = PACK_HOLD_INIT;
 *      pack_hold_begin(st->packs, &hold); */
struct pack_hold {
    struct packs *packs; /* NULL: over */
    int64_t from;        /* the lowest id that such an append can get */
    struct pack_hold *next, **at;
};
#define PACK_HOLD_INIT                                                                                                 \
    {                                                                                                                  \
        .packs = NULL                                                                                                  \
    }
void pack_hold_begin(struct packs *ps, struct pack_hold *h);
void pack_hold_end(struct pack_hold *h);

struct pack_info {
    int64_t id;
    uint64_t end, disk_bytes; /* of the file; its blocks */
    uint64_t live_bytes;      /* of records that are of use; when live_known */
    bool live_known;          /* and nothing was punched since */
    bool idle;                /* complete, on disk, and nobody is about to refer to what is in it */
    uint64_t changes;
};

/* *out: malloc'd, by id; NULL when there is none. */
MUST_CHECK int packs_list(struct packs *ps, struct pack_info **out, size_t *out_count, struct err *err);
/* As counted when info.changes was `changes`. */
void packs_set_live(struct packs *ps, int64_t pack, uint64_t live_bytes, uint64_t changes);
/* Not idle for a while, longer each time: something is wrong with it. */
void packs_set_aside(struct packs *ps, int64_t pack);
uint64_t packs_max_bytes(const struct packs *ps);
/* After its row is gone: the file goes. Whoever reads it at this moment reads on. */
void packs_remove(struct packs *ps, int64_t pack);
