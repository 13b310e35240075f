/* SPDX-License-Identifier: Apache-2.0
 * store/pack_punch.c - gives the blocks of dead records back.
 *
 * A file system frees whole blocks only. Records are not aligned to blocks, so the block at either end of a dead range also
 * holds part of a neighbour. Where that part reads as zeroes, since the neighbour was punched before, the block is punched
 * with the rest: it reads the same afterwards, whatever it belongs to. Only a record that is being written just then could
 * suffer, so this stops short of where appends may be under way.
 */
#include "base/fsutil.h"
#include "base/log.h"
#include "store/pack_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define BLOCK_BYTES 4096

/* Nobody writes below it, now or later: offsets are handed out upwards. */
static uint64_t settled_end(struct packs *ps, const struct pack *p)
{
    uint64_t end;

    lock_take(&ps->lock);
    end = p->appending > 0 ? p->appending_from : p->end;
    lock_give(&ps->lock);
    return end;
}

/* Less than a block. Unreadable is not zero. */
static bool reads_as_zeroes(const struct pack *p, uint64_t begin, uint64_t end)
{
    static const uint8_t zeroes[BLOCK_BYTES];
    struct err ignored = ERR_INIT;
    uint8_t got[BLOCK_BYTES];

    return fs_pread_all(p->fd, got, (size_t)(end - begin), begin, "", &ignored) == 0 &&
           memcmp(got, zeroes, (size_t)(end - begin)) == 0;
}

static void widen(const struct pack *p, uint64_t settled, uint64_t *begin, uint64_t *end)
{
    uint64_t first = *begin / BLOCK_BYTES * BLOCK_BYTES;
    uint64_t last = (*end + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;

    if (first < *begin && *begin <= settled && reads_as_zeroes(p, first, *begin))
        *begin = first;
    if (last > *end && last <= settled && reads_as_zeroes(p, *end, last))
        *end = last;
}

static int punch_range(struct packs *ps, int64_t pack, uint64_t begin, uint64_t end, struct err *err)
{
    struct pack *p = NULL;
    int rc = 0;

    TRY(pack_pin(ps, pack, &p, err));
    if (!packs_can_punch(ps)) {
        pack_unpin(ps, p, true); /* less of it is of use */
        return 0;
    }
    widen(p, settled_end(ps, p), &begin, &end);
    if (fallocate(p->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)begin, (off_t)(end - begin)) < 0) {
        if (errno == EOPNOTSUPP) /* the bytes stay until compaction */
            atomic_store(&ps->no_holes, true);
        else
            rc = err_sys(err, errno, "packs/%s: punch", pack_name(p->id).s);
    }
    pack_unpin(ps, p, true);
    return rc;
}

static uint64_t record_begin(const struct pack_loc *loc)
{
    const uint64_t header = PACK_RECORD_HEADER_BYTES;

    return loc->off >= PACK_FILE_HEADER_BYTES + header ? loc->off - header : loc->off; /* else no record's place */
}

static uint64_t record_end(const struct pack_loc *loc)
{
    return pack_align(loc->off + loc->len);
}

int pack_punch(struct packs *ps, const struct pack_loc *loc, struct err *err)
{
    return loc->len > 0 ? punch_range(ps, loc->pack, record_begin(loc), record_end(loc), err) : 0;
}

void pack_puncher_add(struct pack_puncher *pu, const struct pack_loc *loc)
{
    if (pu->pack == loc->pack && pu->end == record_begin(loc)) {
        pu->end = record_end(loc);
        return;
    }
    pack_puncher_end(pu);
    pu->pack = loc->pack;
    pu->begin = record_begin(loc);
    pu->end = record_end(loc);
}

void pack_puncher_end(struct pack_puncher *pu)
{
    struct err err = ERR_INIT;
    int rc = pu->pack != 0 ? punch_range(pu->packs, pu->pack, pu->begin, pu->end, &err) : 0;

    if (rc < 0 && rc != ERR_NOTFOUND) /* compaction may have been there before */
        log_event(LOG_WARN, "pack.punch", "err=%s", log_quote(err.msg).s);
    pu->pack = 0;
}

bool packs_can_punch(struct packs *ps)
{
    return !atomic_load(&ps->no_holes);
}
