/* SPDX-License-Identifier: Apache-2.0
 * store/pack_internal.h - the bytes of a pack file (FORMAT.md "Packs"), for pack*.c, a scan and tests; and the table of
 * packs, for pack.c and pack_open.c.
 */
#pragma once

#include "base/lock.h"
#include "store/pack.h"

#include <stdatomic.h>

#define PACK_MAGIC "RCPACK1" /* with its NUL: 8 bytes */
#define PACK_VERSION 1
#define PACK_FILE_HEADER_BYTES 64
#define PACK_RECORD_MAGIC "RREC"
#define PACK_RECORD_HEADER_BYTES 72
#define PACK_PAYLOAD_MAX_BYTES (64u << 20)

struct pack_header {
    enum pack_record type;
    uint32_t len;
    struct pack_meta meta;
    struct digest key;
    uint64_t sum; /* XXH3-64 of the payload */
};

struct pack_name {
    char s[32];
};

struct pack_name pack_name(int64_t id); /* of the file in packs/ */

void pack_file_encode(int64_t id, uint64_t seed, int64_t created, uint8_t h[PACK_FILE_HEADER_BYTES]);
/* ERR_CORRUPT, ERR_UNSUPPORTED (a newer format, reserved bits). */
MUST_CHECK int pack_file_decode(const uint8_t h[PACK_FILE_HEADER_BYTES], int64_t id, uint64_t *out_seed,
                                struct err *err);

/* off: of the record's header in its file. */
void pack_record_encode(const struct pack_header *r, uint64_t seed, uint64_t off, uint8_t h[PACK_RECORD_HEADER_BYTES]);
/* False: not a record of this pack at this place. */
bool pack_record_decode(const uint8_t h[PACK_RECORD_HEADER_BYTES], uint64_t seed, uint64_t off,
                        struct pack_header *out);

/* Raw bytes, unchecked; fewer than cap only at the end of the file. */
MUST_CHECK int packs_pread(struct packs *ps, int64_t pack, uint64_t off, void *out, size_t cap, size_t *out_len,
                           struct err *err);

/* Calls fn with each whole, undamaged record of a pack in order; what is between them is skipped. For `fsck --rebuild`
 * and tests; reads the whole file. */
typedef int pack_scan_fn(void *arg, const struct pack_header *r, uint64_t payload_off, const uint8_t *payload,
                         struct err *err);
MUST_CHECK int pack_scan(struct packs *ps, int64_t pack, pack_scan_fn *fn, void *arg, struct err *err);

/* The same, step by step and without payloads, holes stepped over. The record that pack_walk_next() finds has a good
 * header; whether its payload is right is the caller's to find out, and pack_walk_reject() when it is not.
 * Use: pack_walk_open -> while (pack_walk_next() == 1). Nothing is held in between. */
#define PACK_WALK_WINDOW_BYTES 4096
struct pack_walk {
    struct packs *packs;
    int64_t pack;
    uint64_t seed;
    uint64_t at, next; /* the header of the record found last; where to go on */
    uint64_t window_off;
    size_t window_len;
    uint8_t window[PACK_WALK_WINDOW_BYTES];
};
MUST_CHECK int pack_walk_open(struct packs *ps, int64_t pack, struct pack_walk *out, struct err *err);
MUST_CHECK int pack_walk_next(struct pack_walk *w, struct pack_header *out, struct err *err); /* 1, 0: the end, < 0 */
void pack_walk_reject(struct pack_walk *w);
/* The payload of the record found last. False in *out_good: it is damaged. */
MUST_CHECK int pack_walk_payload(struct pack_walk *w, const struct pack_header *r, struct buf *out, bool *out_good,
                                 struct err *err);

/* Of two records about the same thing, neither a frame: whether that of a wins over that of b. */
static inline bool pack_origin_later(const struct pack_meta *a, const struct pack_meta *b)
{
    return a->origin_pack > b->origin_pack || (a->origin_pack == b->origin_pack && a->origin_off > b->origin_off);
}

/* ---- the table of packs: pack*.c only ---------------------------------------------------------------- */

struct pack {
    int64_t id;
    int fd; /* -1: closed */
    unsigned users;
    uint64_t used_at;  /* ticks, for choosing whom to close */
    uint64_t end;      /* where the next record begins */
    uint64_t recorded; /* the end that the catalog knows */
    uint64_t seed;
    uint64_t completed, synced;         /* appends that returned, appends that are durable */
    uint64_t completed_end, synced_end; /* of the last of either */
    uint64_t durable_end;               /* all below it is; once sync_failed nothing behind it ever is */
    bool syncing, sync_failed, dir_synced;
    bool known;              /* to the catalog, or made by this process */
    bool appendable;         /* its header was read and is good */
    unsigned appending;      /* records reserved and not yet written */
    uint64_t appending_from; /* below it nobody writes; good while appending > 0, else that is `end` */
    bool disk_stale;         /* on ps->stale: disk_bytes is of some time ago */
    struct pack *next_stale;
    uint64_t disk_bytes;
    uint64_t changes;      /* counts whatever changes its bytes */
    uint64_t live_bytes;   /* as of live_changes; 0: never counted */
    uint64_t live_changes; /* `changes` of then */
    int64_t aside_until;   /* monotonic milliseconds */
    int64_t aside_ms;      /* for how long the last time */
    bool gone;             /* its file and its place in the table are; who unpins it last frees it */
};

struct packs {
    struct lock lock; /* RANK_STORE: all of it and of each pack */
    pthread_cond_t synced;
    int dir_fd;
    uint64_t max_bytes;
    uint64_t tick;
    unsigned open_fds;
    struct pack *active;
    struct pack **items; /* by id, ascending */
    size_t count, cap;
    struct pack *stale;
    uint64_t disk_bytes;  /* sum over all */
    atomic_bool no_holes; /* the file system cannot punch */
    int64_t last_id;      /* the highest id ever seen; ids are not used twice */
    struct pack_hold *holds;
};

static inline uint64_t pack_align(uint64_t v)
{
    return (v + 7) & ~UINT64_C(7);
}

/* All with ps->lock held. */
struct pack *pack_find(const struct packs *ps, int64_t id);
MUST_CHECK int pack_add(struct packs *ps, int64_t id, struct pack **out, struct err *err);
MUST_CHECK int pack_open_fd(struct packs *ps, struct pack *p, struct err *err);
void pack_close_fd(struct packs *ps, struct pack *p);

/* Opens pack `id` and keeps it open until pack_unpin(). stale: its bytes on disk have changed. */
MUST_CHECK int pack_pin(struct packs *ps, int64_t id, struct pack **out, struct err *err);
void pack_unpin(struct packs *ps, struct pack *p, bool stale);
/* With ps->lock held: counts users down. */
void pack_unuse(struct packs *ps, struct pack *p);
