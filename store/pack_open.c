/* SPDX-License-Identifier: Apache-2.0
 * store/pack_open.c - a store's packs at the start: found in the directory, cut to what the catalog knows, or removed.
 */
#include "base/fsutil.h"
#include "base/log.h"
#include "store/pack_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

static bool parse_name(const char *name, int64_t *out_id)
{
    char *end;
    unsigned long long id;

    if (strlen(name) != 21 || strcmp(name + 16, ".pack") != 0 || strspn(name, "0123456789abcdef") != 16)
        return false;
    id = strtoull(name, &end, 16);
    *out_id = (int64_t)id;
    return id > 0 && id <= INT64_MAX;
}

static void dir_cleanup(DIR **d)
{
    if (*d != NULL)
        (void)closedir(*d);
}

static int list_dir(struct packs *ps, struct err *err)
{
    CLEANUP(dir_cleanup) DIR *dir = NULL;
    struct dirent *e;
    int fd = openat(ps->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return err_sys(err, errno, "packs");
    dir = fdopendir(fd);
    if (dir == NULL) {
        fd_cleanup(&fd);
        return err_sys(err, errno, "packs");
    }
    while (errno = 0, (e = readdir(dir)) != NULL) {
        struct pack *p;
        struct stat sb;
        int64_t id;

        if (!parse_name(e->d_name, &id))
            continue;
        TRY(pack_add(ps, id, &p, err));
        if (fstatat(ps->dir_fd, e->d_name, &sb, AT_SYMLINK_NOFOLLOW) == 0)
            p->end = p->recorded = (uint64_t)sb.st_size;
        p->dir_synced = true;
    }
    return errno == 0 ? 0 : err_sys(err, errno, "packs");
}

int packs_open(int dir_fd, uint64_t max_bytes, struct packs **out, struct err *err)
{
    struct packs *ps = calloc(1, sizeof(*ps));
    int rc;

    if (ps == NULL)
        return err_nomem(err, sizeof(*ps));
    lock_init(&ps->lock, RANK_STORE);
    cond_init(&ps->synced);
    ps->dir_fd = dir_fd;
    ps->max_bytes = max_bytes;
    rc = list_dir(ps, err);
    if (rc < 0) {
        packs_close(ps);
        return rc;
    }
    *out = ps;
    return 0;
}

void packs_close(struct packs *ps)
{
    if (ps == NULL)
        return;
    for (size_t i = 0; i < ps->count; i++) {
        REQUIRE(ps->items[i]->users == 0);
        fd_cleanup(&ps->items[i]->fd);
        free(ps->items[i]);
    }
    free(ps->items);
    (void)pthread_cond_destroy(&ps->synced);
    lock_release(&ps->lock);
    free(ps);
}

static int trim_locked(struct packs *ps, struct pack *p, uint64_t committed_end, struct err *err)
{
    p->known = true;
    if (p->end > committed_end) {
        TRY(pack_open_fd(ps, p, err));
        if (ftruncate(p->fd, (off_t)committed_end) < 0)
            return err_sys(err, errno, "packs/%s: cut to %" PRIu64, pack_name(p->id).s, committed_end);
        log_event(LOG_INFO, "pack.trim", "pack=%s cut=%" PRIu64, pack_name(p->id).s, p->end - committed_end);
    }
    /* A file shorter than its committed end has lost what lies between: the reads will tell. Appends go behind. */
    p->end = p->durable_end = pack_align(committed_end);
    p->recorded = p->completed_end = p->synced_end = committed_end;
    if (ps->active == NULL || ps->active->id < p->id)
        ps->active = p;
    return 0;
}

int packs_trim(struct packs *ps, int64_t pack, uint64_t committed_end, struct err *err)
{
    struct pack *p;
    int rc;

    lock_take(&ps->lock);
    if (pack > ps->last_id)
        ps->last_id = pack;
    p = pack_find(ps, pack);
    if (p != NULL)
        rc = trim_locked(ps, p, committed_end, err);
    else
        rc = err_set(err, ERR_NOTFOUND, "packs/%s is gone", pack_name(pack).s);
    lock_give(&ps->lock);
    return rc;
}

int packs_remove_unknown(struct packs *ps, unsigned *out_removed, struct err *err)
{
    size_t kept = 0;
    int rc = 0;

    *out_removed = 0;
    lock_take(&ps->lock);
    for (size_t i = 0; i < ps->count; i++) {
        struct pack *p = ps->items[i];

        if (p->known) {
            ps->items[kept++] = p;
            continue;
        }
        if (unlinkat(ps->dir_fd, pack_name(p->id).s, 0) < 0 && errno != ENOENT && rc == 0)
            rc = err_sys(err, errno, "packs/%s: remove", pack_name(p->id).s);
        ++*out_removed;
        pack_close_fd(ps, p);
        free(p);
    }
    ps->count = kept;
    ps->stale = NULL;
    ps->disk_bytes = 0;
    for (size_t i = 0; i < kept; i++) {
        ps->items[i]->disk_stale = true;
        ps->items[i]->disk_bytes = 0;
        ps->items[i]->next_stale = ps->stale;
        ps->stale = ps->items[i];
    }
    lock_give(&ps->lock);
    return rc;
}

size_t packs_count(struct packs *ps)
{
    size_t count;

    lock_take(&ps->lock);
    count = ps->count;
    lock_give(&ps->lock);
    return count;
}
