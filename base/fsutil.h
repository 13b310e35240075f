/* SPDX-License-Identifier: Apache-2.0
 * base/fsutil.h - files: whole reads and writes, durable renames, directories. Everything is EINTR-safe.
 * Names appear in errors, so that a message says which file. Threads: any; all of it may block on disk.
 */
#pragma once

#include "base/buf.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

MUST_CHECK int fs_mkdirs(const char *path, mode_t mode, struct err *err); /* like mkdir -p */
MUST_CHECK int fs_write_all(int fd, const void *data, size_t len, const char *name, struct err *err);
MUST_CHECK int fs_pwrite_all(int fd, const void *data, size_t len, uint64_t off, const char *name, struct err *err);
/* Exactly len bytes; an early end of file is ERR_CORRUPT. */
MUST_CHECK int fs_pread_all(int fd, void *out, size_t len, uint64_t off, const char *name, struct err *err);
/* Up to len bytes at off; *out_len = 0 at the end of the file. */
MUST_CHECK int fs_pread_some(int fd, void *out, size_t len, uint64_t off, size_t *out_len, const char *name,
                             struct err *err);
/* What tells one state of a file from another. Of what a link leads to: a directory of secrets is renewed by turning a link
 * around. Taken before a file is read, it shows every change after. */
struct fs_stamp {
    int why; /* errno when it cannot be looked at */
    dev_t dev;
    ino_t ino;
    off_t size;
    struct timespec modified, changed;
};

struct fs_stamp fs_stamp_of(const char *path);
bool fs_stamp_same(const struct fs_stamp *a, const struct fs_stamp *b);

MUST_CHECK int fs_read_file(const char *path, size_t limit_bytes, struct buf *out, struct err *err);
MUST_CHECK int fs_fsync(int fd, const char *name, struct err *err);
MUST_CHECK int fs_fsync_dir(int dir_fd, const char *name, struct err *err);
/* Renames within or between directories, then fsyncs the target's directory. */
MUST_CHECK int fs_rename_durable(int from_dir, const char *from, int to_dir, const char *to, struct err *err);
/* Removes every entry of a flat directory whose name keep() does not accept (keep NULL: all); counts them. */
MUST_CHECK int fs_empty_dir(int dir_fd, bool (*keep)(const char *name, void *arg), void *arg, unsigned *out_removed,
                            struct err *err);
uint64_t fs_file_bytes(int fd); /* bytes on disk (st_blocks * 512), 0 when fstat fails */
void fd_cleanup(int *fd);       /* closes when >= 0, sets -1 */
