/* SPDX-License-Identifier: Apache-2.0
 * store/pack.c - pack files: reserving, writing, syncing and reading records (FORMAT.md "Packs").
 *
 * One pack at a time takes appends. A writer reserves its range under the lock and writes it outside, so several write
 * at once. A record's header follows its payload to the disk and carries a sum seeded with the pack's secret and the
 * record's place: what was reserved and never written, and bytes of a layer that merely look like records, are no
 * records to a later scan.
 */
#include "store/pack.h"

#include "base/clock.h"
#include "base/fsutil.h"
#include "base/log.h"
#include "store/pack_internal.h"
#include "transcode/codec.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define OPEN_MAX_FDS 128 /* packs kept open; a store can have thousands */

/* ---- the table; all with the lock held ------------------------------------------------------------------------------- */

/* Its bytes on disk are to be looked at again. */
static void mark_stale(struct packs *ps, struct pack *p)
{
    p->changes++;
    if (p->disk_stale || p->gone)
        return;
    p->disk_stale = true;
    p->next_stale = ps->stale;
    ps->stale = p;
}

struct pack *pack_find(const struct packs *ps, int64_t id)
{
    size_t lo = 0;
    size_t hi = ps->count;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (ps->items[mid]->id == id)
            return ps->items[mid];
        if (ps->items[mid]->id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

int pack_add(struct packs *ps, int64_t id, struct pack **out, struct err *err)
{
    struct pack *p;
    size_t at = ps->count;

    if (ps->count == ps->cap) {
        size_t cap = ps->cap == 0 ? 64 : ps->cap * 2;
        struct pack **items = realloc(ps->items, cap * sizeof(struct pack *));

        if (items == NULL)
            return err_nomem(err, cap * sizeof(struct pack *));
        ps->items = items;
        ps->cap = cap;
    }
    p = calloc(1, sizeof(*p));
    if (p == NULL)
        return err_nomem(err, sizeof(*p));
    p->id = id;
    p->fd = -1;
    mark_stale(ps, p);
    for (; at > 0 && ps->items[at - 1]->id > id; at--) /* only at open do they come unordered */
        ps->items[at] = ps->items[at - 1];
    ps->items[at] = p;
    ps->count++;
    if (id > ps->last_id)
        ps->last_id = id;
    *out = p;
    return 0;
}

void pack_close_fd(struct packs *ps, struct pack *p)
{
    if (p->fd >= 0)
        ps->open_fds--;
    fd_cleanup(&p->fd);
}

/* Never one with unsynced bytes: an error of its write-back would be lost with the descriptor. */
static void close_coldest(struct packs *ps)
{
    struct pack *victim = NULL;

    for (size_t i = 0; i < ps->count; i++) {
        struct pack *p = ps->items[i];

        if (p->fd >= 0 && p->users == 0 && p->synced == p->completed && p != ps->active &&
            (victim == NULL || p->used_at < victim->used_at))
            victim = p;
    }
    if (victim != NULL)
        pack_close_fd(ps, victim);
}

/* A damaged header costs no frame: frames have sums of their own. A newer format does. */
static int read_file_header(struct pack *p, struct err *err)
{
    struct err why = ERR_INIT;
    uint8_t h[PACK_FILE_HEADER_BYTES];
    int rc = fs_pread_all(p->fd, h, sizeof(h), 0, pack_name(p->id).s, &why);

    if (rc == 0)
        rc = pack_file_decode(h, p->id, &p->seed, &why);
    p->appendable = rc == 0;
    if (rc == ERR_UNSUPPORTED) {
        *err = why;
        return rc;
    }
    if (rc < 0)
        log_event(LOG_WARN, "pack.header", "pack=%s err=%s", pack_name(p->id).s, log_quote(why.msg).s);
    return 0;
}

int pack_open_fd(struct packs *ps, struct pack *p, struct err *err)
{
    int rc;

    if (p->fd >= 0)
        return 0;
    if (ps->open_fds >= OPEN_MAX_FDS)
        close_coldest(ps);
    p->fd = openat(ps->dir_fd, pack_name(p->id).s, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (p->fd < 0)
        return err_sys(err, errno, "packs/%s", pack_name(p->id).s);
    ps->open_fds++;
    rc = read_file_header(p, err);
    if (rc < 0)
        pack_close_fd(ps, p);
    return rc;
}

/* The last user of a pack that is gone frees it. */
void pack_unuse(struct packs *ps, struct pack *p)
{
    if (--p->users > 0 || !p->gone)
        return;
    pack_close_fd(ps, p);
    free(p);
}

int pack_pin(struct packs *ps, int64_t id, struct pack **out, struct err *err)
{
    struct pack *p;
    int rc;

    lock_take(&ps->lock);
    p = pack_find(ps, id);
    if (p == NULL) {
        lock_give(&ps->lock);
        return err_set(err, ERR_NOTFOUND, "packs/%s is gone", pack_name(id).s);
    }
    rc = pack_open_fd(ps, p, err);
    if (rc == 0) {
        p->users++;
        p->used_at = ++ps->tick;
        *out = p;
    }
    lock_give(&ps->lock);
    return rc;
}

void pack_unpin(struct packs *ps, struct pack *p, bool stale)
{
    lock_take(&ps->lock);
    if (stale)
        mark_stale(ps, p);
    pack_unuse(ps, p);
    lock_give(&ps->lock);
}

/* ---- appending --------------------------------------------------------------------------------------------------------- */

static int write_file_header(int fd, int64_t id, uint64_t *out_seed, struct err *err)
{
    uint8_t h[PACK_FILE_HEADER_BYTES];

    if (getrandom(out_seed, sizeof(*out_seed), 0) != (ssize_t)sizeof(*out_seed))
        return err_sys(err, errno, "getrandom");
    pack_file_encode(id, *out_seed, clock_wall_s(), h);
    return fs_pwrite_all(fd, h, sizeof(h), 0, pack_name(id).s, err);
}

/* A pack that cannot be begun leaves nothing behind: a disk may be full for hours. Its id is not used again. */
static int begin_pack(struct packs *ps, struct err *err)
{
    const int64_t id = ++ps->last_id;
    int fd = openat(ps->dir_fd, pack_name(id).s, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct pack *p = NULL;
    uint64_t file_seed = 0;
    int rc;

    if (fd < 0)
        return err_sys(err, errno, "packs/%s: create", pack_name(id).s);
    rc = write_file_header(fd, id, &file_seed, err);
    if (rc == 0)
        rc = pack_add(ps, id, &p, err);
    if (p == NULL) {
        (void)unlinkat(ps->dir_fd, pack_name(id).s, 0);
        fd_cleanup(&fd);
        return rc;
    }
    REQUIRE(p != NULL);
    p->fd = fd;
    ps->open_fds++;
    p->seed = file_seed;
    p->known = true;
    p->appendable = true;
    p->end = p->durable_end = PACK_FILE_HEADER_BYTES;
    ps->active = p;
    return 0;
}

static bool has_room(struct packs *ps, uint64_t need_bytes)
{
    struct pack *p = ps->active;
    struct err ignored = ERR_INIT;

    if (p == NULL || p->sync_failed || p->end < PACK_FILE_HEADER_BYTES)
        return false;
    /* A record larger than a pack gets one of its own. */
    if (p->end + need_bytes > ps->max_bytes && p->end > PACK_FILE_HEADER_BYTES)
        return false;
    return pack_open_fd(ps, p, &ignored) == 0 && p->appendable;
}

static int reserve(struct packs *ps, uint64_t need_bytes, struct pack **out, uint64_t *out_off, struct err *err)
{
    struct pack *p;
    int rc = 0;

    lock_take(&ps->lock);
    if (!has_room(ps, need_bytes))
        rc = begin_pack(ps, err);
    if (rc == 0) {
        p = ps->active;
        p->users++;
        p->used_at = ++ps->tick;
        *out = p;
        *out_off = p->end;
        if (p->appending++ == 0)
            p->appending_from = p->end;
        p->end += need_bytes;
    }
    lock_give(&ps->lock);
    return rc;
}

/* The range becomes a hole that scans step over; the last range is simply given back. */
static void give_up(struct packs *ps, struct pack *p, uint64_t off, uint64_t need_bytes)
{
    (void)fallocate(p->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)need_bytes);
    lock_take(&ps->lock);
    if (p->end == off + need_bytes)
        p->end = off;
    p->appending--;
    p->users--;
    mark_stale(ps, p);
    lock_give(&ps->lock);
}

static int sync_lost(const struct pack *p, struct err *err)
{
    return err_set(err, ERR_IO, "packs/%s: an fsync failed, its last records cannot be trusted", pack_name(p->id).s);
}

static int write_record(struct pack *p, uint64_t off, const struct pack_header *r, const void *payload, struct err *err)
{
    uint8_t h[PACK_RECORD_HEADER_BYTES];
    const struct pack_name name = pack_name(p->id);

    pack_record_encode(r, p->seed, off, h);
    TRY(fs_pwrite_all(p->fd, payload, r->len, off + sizeof(h), name.s, err));
    return fs_pwrite_all(p->fd, h, sizeof(h), off, name.s, err);
}

static void complete(struct pack *p, uint64_t end)
{
    p->completed++;
    if (end > p->completed_end)
        p->completed_end = end;
}

int pack_append(struct packs *ps, enum pack_record type, const struct digest *key, const struct pack_meta *meta,
                const void *payload, size_t len, struct pack_loc *out, struct err *err)
{
    struct pack_header r = {.type = type, .key = *key};
    uint64_t need;
    uint64_t off = 0;
    struct pack *p = NULL;
    int rc;

    if (len > PACK_PAYLOAD_MAX_BYTES)
        return err_set(err, ERR_LIMIT, "a pack record of %zu bytes", len);
    if (meta != NULL)
        r.meta = *meta;
    r.len = (uint32_t)len;
    r.sum = sum64(payload, len);
    need = pack_align(PACK_RECORD_HEADER_BYTES + len);
    TRY(reserve(ps, need, &p, &off, err));
    rc = write_record(p, off, &r, payload, err);
    if (rc < 0) {
        give_up(ps, p, off, need);
        return rc;
    }
    lock_take(&ps->lock);
    if (p->sync_failed)
        rc = sync_lost(p, err);
    else
        complete(p, off + need);
    p->appending--;
    p->users--;
    mark_stale(ps, p);
    lock_give(&ps->lock);
    if (rc < 0)
        return rc;
    *out = (struct pack_loc){.pack = p->id, .off = off + PACK_RECORD_HEADER_BYTES, .len = r.len, .sum = r.sum};
    return 0;
}

/* ---- syncing ----------------------------------------------------------------------------------------------------------- */

/* A second fsync would say yes although the kernel has dropped the bytes: nobody may believe it. So what was not durable is
 * given up, for whoever wrote it (pack_check()), and the pack takes no more; others do. */
static void give_up_tail(struct pack *p)
{
    p->sync_failed = true;
    p->completed = p->synced;
}

/* One thread syncs a pack, the others that need it wait: a group commit. With the lock held, which it lets go of. */
static int sync_one(struct packs *ps, struct pack *p, struct err *err)
{
    uint64_t covers = p->completed, covers_completed = p->completed_end;
    uint64_t covers_end = p->appending > 0 ? p->appending_from : p->end;
    bool sync_dir = !p->dir_synced;
    int rc;

    p->syncing = true;
    p->users++;
    lock_give(&ps->lock);
    rc = fs_fsync(p->fd, pack_name(p->id).s, err);
    if (rc == 0 && sync_dir)
        rc = fs_fsync_dir(ps->dir_fd, "packs", err);
    lock_take(&ps->lock);
    p->users--;
    p->syncing = false;
    if (rc == 0) {
        p->synced = covers;
        p->synced_end = covers_completed;
        if (covers_end > p->durable_end)
            p->durable_end = covers_end;
        p->dir_synced = true;
    } else {
        give_up_tail(p);
    }
    (void)pthread_cond_broadcast(&ps->synced);
    return rc;
}

static int sync_up_to(struct packs *ps, struct pack *p, uint64_t want, struct err *err)
{
    while (p->synced < want) {
        if (p->sync_failed)
            return sync_lost(p, err);
        if (p->syncing)
            (void)lock_wait(&ps->lock, &ps->synced, -1);
        else
            TRY(sync_one(ps, p, err));
    }
    return 0;
}

int pack_check(struct packs *ps, const struct pack_loc *loc, struct err *err)
{
    const struct pack *p;
    int rc = 0;

    lock_take(&ps->lock);
    p = pack_find(ps, loc->pack);
    if (p != NULL && p->sync_failed && loc->off >= p->durable_end)
        rc = sync_lost(p, err);
    lock_give(&ps->lock);
    return rc;
}

/* The first with an id above `after` that has records that are not durable. By id: while one is synced, others come and go. */
static struct pack *next_dirty(const struct packs *ps, int64_t after)
{
    for (size_t i = 0; i < ps->count; i++)
        if (ps->items[i]->id > after && ps->items[i]->synced < ps->items[i]->completed)
            return ps->items[i];
    return NULL;
}

int pack_sync(struct packs *ps, struct err *err)
{
    struct pack *p;
    int64_t last = 0;
    int rc = 0;

    lock_take(&ps->lock);
    while (rc == 0 && (p = next_dirty(ps, last)) != NULL) {
        last = p->id;
        p->users++;
        rc = sync_up_to(ps, p, p->completed, err);
        pack_unuse(ps, p);
    }
    lock_give(&ps->lock);
    return rc;
}

/* ---- reading ------------------------------------------------------------------------------------------------------- */

static int read_checked(const struct pack *p, const struct pack_loc *loc, void *out, struct err *err)
{
    const struct pack_name name = pack_name(p->id);
    int rc = fs_pread_all(p->fd, out, loc->len, loc->off, name.s, err);

    if (rc < 0 && err->sys == EIO) /* what the disk cannot read is as good as damaged: it can be had elsewhere */
        err->code = ERR_CORRUPT;
    if (rc < 0)
        return err->code;
    if (sum64(out, loc->len) != loc->sum)
        return err_set(err, ERR_CORRUPT, "packs/%s: %" PRIu32 " bytes at %" PRIu64 " fail their checksum", name.s,
                       loc->len, loc->off);
    return 0;
}

int pack_read(struct packs *ps, const struct pack_loc *loc, void *out, struct err *err)
{
    struct pack *p = NULL;
    int rc;

    TRY(pack_pin(ps, loc->pack, &p, err));
    rc = read_checked(p, loc, out, err);
    pack_unpin(ps, p, false);
    return rc;
}

int packs_pread(struct packs *ps, int64_t pack, uint64_t off, void *out, size_t cap, size_t *out_len, struct err *err)
{
    struct pack *p = NULL;
    int rc = 0;

    *out_len = 0;
    TRY(pack_pin(ps, pack, &p, err));
    while (*out_len < cap && rc == 0) {
        size_t got;

        rc = fs_pread_some(p->fd, (uint8_t *)out + *out_len, cap - *out_len, off + *out_len, &got, pack_name(pack).s,
                           err);
        if (rc < 0 || got == 0)
            break;
        *out_len += got;
    }
    pack_unpin(ps, p, false);
    return rc;
}

/* ---- numbers -------------------------------------------------------------------------------------------------------------- */

uint64_t pack_end(struct packs *ps, int64_t pack)
{
    struct pack *p;
    uint64_t end;

    lock_take(&ps->lock);
    p = pack_find(ps, pack);
    end = p != NULL ? p->end : 0;
    lock_give(&ps->lock);
    return end;
}

/* What is not durable may be another writer's, and must not be said to be there. */
int packs_unrecorded(struct packs *ps, struct pack_extent **out, size_t *out_count, struct err *err)
{
    size_t count = 0;

    *out = NULL;
    *out_count = 0;
    lock_take(&ps->lock);
    for (size_t i = 0; i < ps->count; i++)
        count += ps->items[i]->known && ps->items[i]->synced_end > ps->items[i]->recorded;
    if (count > 0)
        *out = malloc(count * sizeof(**out));
    for (size_t i = 0; *out != NULL && i < ps->count; i++)
        if (ps->items[i]->known && ps->items[i]->synced_end > ps->items[i]->recorded)
            (*out)[(*out_count)++] = (struct pack_extent){.pack = ps->items[i]->id, .end = ps->items[i]->synced_end};
    lock_give(&ps->lock);
    return count > 0 && *out == NULL ? err_nomem(err, count * sizeof(**out)) : 0;
}

void packs_recorded(struct packs *ps, const struct pack_extent *extents, size_t count)
{
    lock_take(&ps->lock);
    for (size_t i = 0; i < count; i++) {
        struct pack *p = pack_find(ps, extents[i].pack);

        if (p != NULL && p->recorded < extents[i].end)
            p->recorded = extents[i].end;
    }
    lock_give(&ps->lock);
}

uint64_t packs_disk_bytes(struct packs *ps)
{
    uint64_t sum;

    lock_take(&ps->lock);
    while (ps->stale != NULL) {
        struct pack *p = ps->stale;
        struct stat sb;

        ps->stale = p->next_stale;
        p->disk_stale = false;
        ps->disk_bytes -= p->disk_bytes;
        p->disk_bytes =
            fstatat(ps->dir_fd, pack_name(p->id).s, &sb, AT_SYMLINK_NOFOLLOW) == 0 ? (uint64_t)sb.st_blocks * 512 : 0;
        ps->disk_bytes += p->disk_bytes;
    }
    sum = ps->disk_bytes;
    lock_give(&ps->lock);
    return sum;
}
