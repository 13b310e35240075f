/* SPDX-License-Identifier: Apache-2.0
 * tests/fault/calls.c - the calls on files that are stood in for. Each ends in a plain system call, so there is nothing to
 * look up with dlsym(), which would allocate.
 */
#include "tests/fault/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fail(int why)
{
    errno = why == FAULT_SHORT ? EINTR : why;
    return -1;
}

/* ---- open ------------------------------------------------------------------------------------------------------------------ */

static int open_counted(int dir_fd, const char *name, int flags, mode_t mode, const char *path)
{
    struct stat sb;
    int saved = errno;
    bool makes = (flags & O_CREAT) != 0 && fstatat(dir_fd, name, &sb, AT_SYMLINK_NOFOLLOW) < 0;
    int why;
    int fd;

    errno = saved;
    why = fault_begin(makes ? FAULT_CREATE : FAULT_OPEN, path);
    if (why != 0) {
        if (makes)
            fault_end();
        return fail(why);
    }
    fd = (int)syscall(SYS_openat, dir_fd, name, flags, mode);
    if (makes) {
        if (fd >= 0 && fault_loses())
            undo_created(path);
        fault_end();
    }
    return fd;
}

static int open_any(int dir_fd, const char *name, int flags, mode_t mode)
{
    char path[FAULT_PATH_BYTES];
    int why = fault_check(FAULT_FD);

    if (why != 0)
        return fail(why);
    if (fault_path_at(dir_fd, name, path))
        return open_counted(dir_fd, name, flags, mode, path);
    return (int)syscall(SYS_openat, dir_fd, name, flags, mode);
}

static mode_t mode_arg(int flags, va_list args)
{
    return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(args, mode_t) : 0;
}

#define OPEN(fn)                                                                                                       \
    FAULT_API int fn(const char *name, int flags, ...)                                                                 \
    {                                                                                                                  \
        va_list args;                                                                                                  \
        mode_t mode;                                                                                                   \
                                                                                                                       \
        va_start(args, flags);                                                                                         \
        mode = mode_arg(flags, args);                                                                                  \
        va_end(args);                                                                                                  \
        return open_any(AT_FDCWD, name, flags, mode);                                                                  \
    }
#define OPENAT(fn)                                                                                                     \
    FAULT_API int fn(int dir_fd, const char *name, int flags, ...)                                                     \
    {                                                                                                                  \
        va_list args;                                                                                                  \
        mode_t mode;                                                                                                   \
                                                                                                                       \
        va_start(args, flags);                                                                                         \
        mode = mode_arg(flags, args);                                                                                  \
        va_end(args);                                                                                                  \
        return open_any(dir_fd, name, flags, mode);                                                                    \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

/* ---- reading and writing ---------------------------------------------------------------------------------------------------- */

/* off < 0: at the file's position. */
static ssize_t read_any(int fd, void *out, size_t len, off_t off)
{
    char path[FAULT_PATH_BYTES];

    /* Reads are many: the path only when they may fail. */
    if (fault_ctl != NULL && (fault_ctl->fail_kinds & FAULT_READ) != 0 && fault_path_of_fd(fd, path)) {
        int why = fault_begin(FAULT_READ, path);

        if (why == FAULT_SHORT)
            len = (len + 1) / 2;
        else if (why != 0)
            return fail(why);
    }
    return off < 0 ? syscall(SYS_read, fd, out, len) : syscall(SYS_pread64, fd, out, len, off);
}

static ssize_t write_counted(int fd, const void *data, size_t len, off_t off, const char *path)
{
    int why = fault_begin(FAULT_WRITE, path);
    ssize_t n;

    if (why == FAULT_SHORT) {
        len = (len + 1) / 2;
    } else if (why != 0) {
        fault_end();
        return fail(why);
    }
    if (fault_loses()) {
        off_t at = off >= 0 ? off : lseek(fd, 0, (fcntl(fd, F_GETFL) & O_APPEND) != 0 ? SEEK_END : SEEK_CUR);

        undo_write(fd, path, (uint64_t)at, len);
    }
    n = off < 0 ? syscall(SYS_write, fd, data, len) : syscall(SYS_pwrite64, fd, data, len, off);
    fault_end();
    return n;
}

static ssize_t write_any(int fd, const void *data, size_t len, off_t off)
{
    char path[FAULT_PATH_BYTES];

    if (len > 0 && fault_path_of_fd(fd, path))
        return write_counted(fd, data, len, off, path);
    return off < 0 ? syscall(SYS_write, fd, data, len) : syscall(SYS_pwrite64, fd, data, len, off);
}

FAULT_API ssize_t read(int fd, void *out, size_t len)
{
    return read_any(fd, out, len, -1);
}

FAULT_API ssize_t write(int fd, const void *data, size_t len)
{
    return write_any(fd, data, len, -1);
}

static bool bad_offset(off_t off)
{
    errno = off < 0 ? EINVAL : errno;
    return off < 0;
}

FAULT_API ssize_t pread(int fd, void *out, size_t len, off_t off)
{
    return bad_offset(off) ? -1 : read_any(fd, out, len, off);
}

FAULT_API ssize_t pread64(int fd, void *out, size_t len, off64_t off)
{
    return bad_offset(off) ? -1 : read_any(fd, out, len, off);
}

FAULT_API ssize_t pwrite(int fd, const void *data, size_t len, off_t off)
{
    return bad_offset(off) ? -1 : write_any(fd, data, len, off);
}

FAULT_API ssize_t pwrite64(int fd, const void *data, size_t len, off64_t off)
{
    return bad_offset(off) ? -1 : write_any(fd, data, len, off);
}

/* ---- syncing and sizes -------------------------------------------------------------------------------------------------------- */

static int sync_any(int fd, long number)
{
    char path[FAULT_PATH_BYTES];
    int why;
    int rc;

    if (!fault_path_of_fd(fd, path))
        return (int)syscall(number, fd);
    why = fault_begin(FAULT_SYNC, path);
    rc = why != 0 ? fail(why) : (int)syscall(number, fd);
    if (rc == 0 && fault_loses())
        undo_synced(fd, path);
    fault_end();
    return rc;
}

FAULT_API int fsync(int fd)
{
    return sync_any(fd, SYS_fsync);
}

FAULT_API int fdatasync(int fd)
{
    return sync_any(fd, SYS_fdatasync);
}

static int truncate_any(int fd, off_t size)
{
    char path[FAULT_PATH_BYTES];
    int why;
    int rc;

    if (!fault_path_of_fd(fd, path))
        return (int)syscall(SYS_ftruncate, fd, size);
    why = fault_begin(FAULT_TRUNCATE, path);
    if (why == 0 && fault_loses())
        undo_truncate(fd, path, (uint64_t)size);
    rc = why != 0 ? fail(why) : (int)syscall(SYS_ftruncate, fd, size);
    fault_end();
    return rc;
}

FAULT_API int ftruncate(int fd, off_t size)
{
    return truncate_any(fd, size);
}

FAULT_API int ftruncate64(int fd, off64_t size)
{
    return truncate_any(fd, size);
}

static int fallocate_any(int fd, int mode, off_t off, off_t len)
{
    char path[FAULT_PATH_BYTES];
    int why;
    int rc;

    if (!fault_path_of_fd(fd, path))
        return (int)syscall(SYS_fallocate, fd, mode, off, len);
    why = fault_begin(FAULT_ALLOCATE, path);
    if (why == 0 && fault_loses())
        undo_write(fd, path, (uint64_t)off, (uint64_t)len);
    rc = why != 0 ? fail(why) : (int)syscall(SYS_fallocate, fd, mode, off, len);
    fault_end();
    return rc;
}

FAULT_API int fallocate(int fd, int mode, off_t off, off_t len)
{
    return fallocate_any(fd, mode, off, len);
}

FAULT_API int fallocate64(int fd, int mode, off64_t off, off64_t len)
{
    return fallocate_any(fd, mode, off, len);
}

/* ---- names ---------------------------------------------------------------------------------------------------------------------- */

static int rename_any(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    char from_path[FAULT_PATH_BYTES];
    char to_path[FAULT_PATH_BYTES];
    int why;
    int rc;

    if (!fault_path_at(to_dir, to, to_path) || !fault_path_at(from_dir, from, from_path))
        return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    why = fault_begin(FAULT_RENAME, to_path);
    if (why == 0 && fault_loses())
        undo_rename(from_path, to_path);
    rc = why != 0 ? fail(why) : (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    if (rc < 0 && why == 0 && fault_loses())
        undo_failed();
    fault_end();
    return rc;
}

FAULT_API int rename(const char *from, const char *to)
{
    return rename_any(AT_FDCWD, from, AT_FDCWD, to, 0);
}

FAULT_API int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    return rename_any(from_dir, from, to_dir, to, 0);
}

FAULT_API int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    return rename_any(from_dir, from, to_dir, to, flags);
}

static int unlink_any(int dir_fd, const char *name, int flags)
{
    char path[FAULT_PATH_BYTES];
    int why;
    int rc;

    if (!fault_path_at(dir_fd, name, path))
        return (int)syscall(SYS_unlinkat, dir_fd, name, flags);
    why = fault_begin(FAULT_UNLINK, path);
    if (why == 0 && fault_loses())
        undo_unlink(path);
    rc = why != 0 ? fail(why) : (int)syscall(SYS_unlinkat, dir_fd, name, flags);
    if (rc < 0 && why == 0 && fault_loses())
        undo_failed();
    fault_end();
    return rc;
}

FAULT_API int unlink(const char *name)
{
    return unlink_any(AT_FDCWD, name, 0);
}

FAULT_API int unlinkat(int dir_fd, const char *name, int flags)
{
    return unlink_any(dir_fd, name, flags);
}

static int mkdir_any(int dir_fd, const char *name, mode_t mode)
{
    char path[FAULT_PATH_BYTES];
    int why;
    int rc;

    if (!fault_path_at(dir_fd, name, path))
        return (int)syscall(SYS_mkdirat, dir_fd, name, mode);
    why = fault_begin(FAULT_MKDIR, path);
    rc = why != 0 ? fail(why) : (int)syscall(SYS_mkdirat, dir_fd, name, mode);
    if (rc == 0 && fault_loses())
        undo_made_dir(path);
    fault_end();
    return rc;
}

FAULT_API int mkdir(const char *name, mode_t mode)
{
    return mkdir_any(AT_FDCWD, name, mode);
}

FAULT_API int mkdirat(int dir_fd, const char *name, mode_t mode)
{
    return mkdir_any(dir_fd, name, mode);
}

static int link_any(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
    char path[FAULT_PATH_BYTES];
    int why;
    int rc;

    if (!fault_path_at(to_dir, to, path))
        return (int)syscall(SYS_linkat, from_dir, from, to_dir, to, flags);
    why = fault_begin(FAULT_LINK, path);
    rc = why != 0 ? fail(why) : (int)syscall(SYS_linkat, from_dir, from, to_dir, to, flags);
    if (rc == 0 && fault_loses())
        undo_created(path);
    fault_end();
    return rc;
}

FAULT_API int link(const char *from, const char *to)
{
    return link_any(AT_FDCWD, from, AT_FDCWD, to, 0);
}

FAULT_API int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
    return link_any(from_dir, from, to_dir, to, flags);
}
