/* SPDX-License-Identifier: Apache-2.0
 * store/files.c - the files of originals and of the spool.
 */
#include "store/files_internal.h"

#include "base/fsutil.h"
#include "base/log.h"
#include "store/catalog_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

struct original_dir original_dir(const struct digest *d)
{
    struct original_dir dir;

    (void)snprintf(dir.s, sizeof(dir.s), "%02x", d->b[0]);
    return dir;
}

int original_dir_open(struct store *st, const struct digest *d, enum original_dir_mode mode, int *out_fd,
                      struct err *err)
{
    struct original_dir dir = original_dir(d);

    if (mode == ORIGINAL_DIR_MAKE) {
        if (mkdirat(st->originals_fd, dir.s, 0700) == 0)
            TRY(fs_fsync_dir(st->originals_fd, "originals", err));
        else if (errno != EEXIST)
            return err_sys(err, errno, "originals/%s", dir.s);
    }
    *out_fd = openat(st->originals_fd, dir.s, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return *out_fd >= 0 ? 0 : err_sys(err, errno, "originals/%s", dir.s);
}

static int64_t file_blocks(int dir_fd, const char *name)
{
    struct stat sb;

    return fstatat(dir_fd, name, &sb, AT_SYMLINK_NOFOLLOW) == 0 ? (int64_t)sb.st_blocks * 512 : 0;
}

int original_adopt(struct store *st, const struct digest *d, const char *spool_name, struct err *err)
{
    CLEANUP(fd_cleanup) int fd = -1;
    struct digest_text name = digest_hex(d);
    int64_t before;
    int rc;

    TRY(original_dir_open(st, d, ORIGINAL_DIR_MAKE, &fd, err));
    lock_take(&st->files_lock);
    before = file_blocks(fd, name.s);
    rc = fs_rename_durable(st->spool_fd, spool_name, fd, name.s, err);
    if (rc == 0)
        atomic_fetch_add(&st->original_disk_bytes, file_blocks(fd, name.s) - before);
    lock_give(&st->files_lock);
    return rc;
}

void original_remove(struct store *st, const struct digest *d)
{
    CLEANUP(fd_cleanup) int fd = -1;
    struct digest_text name = digest_hex(d);
    struct err err = ERR_INIT;
    int64_t before;

    if (original_dir_open(st, d, ORIGINAL_DIR_MUST_EXIST, &fd, &err) < 0)
        return;
    lock_take(&st->files_lock);
    before = file_blocks(fd, name.s);
    if (unlinkat(fd, name.s, 0) == 0)
        atomic_fetch_sub(&st->original_disk_bytes, before);
    else if (errno != ENOENT) /* the next start removes it: no row names it any more */
        log_event(LOG_WARN, "original.remove", "digest=%s errno=%d", digest_text(d).s, errno);
    lock_give(&st->files_lock);
}

uint64_t dir_disk_bytes(int dir_fd)
{
    uint64_t sum = 0;
    struct dirent *e;
    DIR *dir;
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir == NULL) {
        fd_cleanup(&fd);
        return 0;
    }
    while ((e = readdir(dir)) != NULL)
        if (e->d_name[0] != '.')
            sum += (uint64_t)file_blocks(dir_fd, e->d_name);
    (void)closedir(dir);
    return sum;
}
