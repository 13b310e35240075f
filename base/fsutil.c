/* SPDX-License-Identifier: Apache-2.0
 * base/fsutil.c - system calls with their loops around them.
 */
#include "base/fsutil.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_BYTES ((size_t)64 * 1024)
#define EMPTY_PASSES_MAX 100

static int make_dir(const char *path, mode_t mode, struct err *err)
{
    struct stat st;

    if (mkdir(path, mode) == 0)
        return 0;
    int sys = errno;
    /* Another thread may have been quicker, and mkdir("/") or a read-only parent fail before they look. */
    if (stat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            return 0;
        sys = ENOTDIR;
    }
    return err_sys(err, sys, "making directory %s", path);
}

int fs_mkdirs(const char *path, mode_t mode, struct err *err)
{
    char part[PATH_MAX];
    size_t len = strlen(path);

    if (len == 0 || len >= sizeof part)
        return err_set(err, ERR_LIMIT, "directory name of %zu bytes", len);
    for (size_t i = 1; i <= len; i++) {
        if ((path[i] != '/' && path[i] != '\0') || path[i - 1] == '/')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        TRY(make_dir(part, mode, err));
    }
    return 0;
}

int fs_write_all(int fd, const void *data, size_t len, const char *name, struct err *err)
{
    const char *p = data;

    while (len > 0) {
        ssize_t n = write(fd, p, len);

        if (n < 0) {
            if (errno == EINTR)
                continue;
            return err_sys(err, errno, "writing %s", name);
        }
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

int fs_pwrite_all(int fd, const void *data, size_t len, uint64_t off, const char *name, struct err *err)
{
    const char *p = data;

    if (off > INT64_MAX || len > INT64_MAX - off)
        return err_set(err, ERR_LIMIT, "writing %s: offset out of range", name);
    while (len > 0) {
        ssize_t n = pwrite(fd, p, len, (off_t)off);

        if (n < 0) {
            if (errno == EINTR)
                continue;
            return err_sys(err, errno, "writing %s at %llu", name, (unsigned long long)off);
        }
        p += n;
        off += (uint64_t)n;
        len -= (size_t)n;
    }
    return 0;
}

int fs_pread_some(int fd, void *out, size_t len, uint64_t off, size_t *out_len, const char *name, struct err *err)
{
    ssize_t n;

    *out_len = 0;
    if (off > INT64_MAX)
        return err_set(err, ERR_LIMIT, "reading %s: offset out of range", name);
    do
        n = pread(fd, out, len, (off_t)off);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return err_sys(err, errno, "reading %s at %llu", name, (unsigned long long)off);
    *out_len = (size_t)n;
    return 0;
}

int fs_pread_all(int fd, void *out, size_t len, uint64_t off, const char *name, struct err *err)
{
    char *p = out;

    while (len > 0) {
        size_t n;

        TRY(fs_pread_some(fd, p, len, off, &n, name, err));
        if (n == 0)
            return err_set(err, ERR_CORRUPT, "reading %s: ends at %llu, %zu bytes early", name, (unsigned long long)off,
                           len);
        p += n;
        off += n;
        len -= n;
    }
    return 0;
}

static int read_fd(int fd, const char *path, size_t limit_bytes, struct buf *out, struct err *err)
{
    size_t total = 0;

    /* Until read() says so: the size of a file in /proc is 0 and that of a growing file is old. */
    for (;;) {
        char piece[READ_BYTES / 8];
        ssize_t n = read(fd, piece, sizeof piece);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(err, errno, "reading %s", path);
        if (n == 0)
            return buf_reserve(out, 0, err); /* an empty file gives "" */
        if ((size_t)n > limit_bytes - total)
            return err_set(err, ERR_LIMIT, "%s has more than %zu bytes", path, limit_bytes);
        total += (size_t)n;
        if (buf_add(out, piece, (size_t)n, err) < 0)
            return err_wrap(err, "reading %s", path);
    }
}

struct fs_stamp fs_stamp_of(const char *path)
{
    struct fs_stamp s = {.why = 0};
    struct stat sb;

    if (stat(path, &sb) != 0) {
        s.why = errno;
        return s;
    }
    s.dev = sb.st_dev;
    s.ino = sb.st_ino;
    s.size = sb.st_size;
    s.modified = sb.st_mtim;
    s.changed = sb.st_ctim;
    return s;
}

static bool same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

bool fs_stamp_same(const struct fs_stamp *a, const struct fs_stamp *b)
{
    return a->why == b->why && a->dev == b->dev && a->ino == b->ino && a->size == b->size &&
           same_time(&a->modified, &b->modified) && same_time(&a->changed, &b->changed);
}

int fs_read_file(const char *path, size_t limit_bytes, struct buf *out, struct err *err)
{
    CLEANUP(fd_cleanup) int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return err_sys(err, errno, "opening %s", path);
    return read_fd(fd, path, limit_bytes, out, err);
}

int fs_fsync(int fd, const char *name, struct err *err)
{
    int rc;

    /* Never tried again after EIO: Linux drops the dirty pages, and a second call would lie. */
    do
        rc = fsync(fd);
    while (rc < 0 && errno == EINTR);
    return rc < 0 ? err_sys(err, errno, "syncing %s", name) : 0;
}

int fs_fsync_dir(int dir_fd, const char *name, struct err *err)
{
    int rc;

    do
        rc = fsync(dir_fd);
    while (rc < 0 && errno == EINTR);
    /* Some network and FUSE file systems have nothing to sync in a directory. */
    if (rc < 0 && errno != EINVAL)
        return err_sys(err, errno, "syncing directory %s", name);
    return 0;
}

int fs_rename_durable(int from_dir, const char *from, int to_dir, const char *to, struct err *err)
{
    if (renameat(from_dir, from, to_dir, to) < 0)
        return err_sys(err, errno, "renaming %s to %s", from, to);
    return fs_fsync_dir(to_dir, to, err);
}

static void dir_cleanup(DIR **dir)
{
    if (*dir != NULL)
        closedir(*dir);
}

static int empty_pass(DIR *dir, bool (*keep)(const char *, void *), void *arg, unsigned *out_removed, struct err *err)
{
    struct dirent *entry;

    *out_removed = 0;
    rewinddir(dir);
    while (errno = 0, (entry = readdir(dir)) != NULL) {
        const char *name = entry->d_name;

        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || (keep != NULL && keep(name, arg)))
            continue;
        if (unlinkat(dirfd(dir), name, 0) == 0)
            (*out_removed)++;
        else if (errno != ENOENT)
            return err_sys(err, errno, "removing %s", name);
    }
    return errno != 0 ? err_sys(err, errno, "reading a directory") : 0;
}

int fs_empty_dir(int dir_fd, bool (*keep)(const char *name, void *arg), void *arg, unsigned *out_removed,
                 struct err *err)
{
    CLEANUP(dir_cleanup) DIR *dir = NULL;
    unsigned removed;

    *out_removed = 0;
    /* A descriptor of its own: closedir() takes it along, and dir_fd keeps its position. */
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(err, errno, "opening a directory");
    dir = fdopendir(fd);
    if (dir == NULL) {
        int sys = errno;

        close(fd);
        return err_sys(err, sys, "opening a directory");
    }
    /* Some file systems skip entries when others are removed during a pass. */
    for (unsigned pass = 0; pass < EMPTY_PASSES_MAX; pass++) {
        TRY(empty_pass(dir, keep, arg, &removed, err));
        *out_removed += removed;
        if (removed == 0)
            return 0;
    }
    return err_set(err, ERR_IO, "a directory does not become empty: somebody fills it");
}

uint64_t fs_file_bytes(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

void fd_cleanup(int *fd)
{
    int saved_errno = errno;

    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    errno = saved_errno;
}
