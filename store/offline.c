/* SPDX-License-Identifier: Apache-2.0
 * store/offline.c - see the header.
 */
#include "store/offline_internal.h"

#include "base/clock.h"
#include "base/fsutil.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PACK_BYTES (UINT64_C(256) << 20) /* nothing is appended */
#define TELL_EVERY_BYTES (UINT64_C(64) << 20)

/* ---- the directory -------------------------------------------------------------------------------------------------- */

int store_dir_lock(int dir_fd, const char *path, int *out_fd, struct err *err)
{
    int fd = openat(dir_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    char pid[32] = "";
    int len;

    *out_fd = fd;
    if (fd < 0)
        return err_sys(err, errno, "%s/lock", path);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK)
            return err_sys(err, errno, "%s/lock", path);
        len = (int)pread(fd, pid, sizeof(pid) - 1, 0);
        pid[len > 0 ? strcspn(pid, "\n") : 0] = '\0';
        return err_set(err, ERR_BUSY, "%s is in use by process %s (%s/lock is held)", path, pid[0] != '\0' ? pid : "?",
                       path);
    }
    /* Who holds it, for people; the lock itself is the kernel's. */
    len = snprintf(pid, sizeof(pid), "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) < 0)
        return err_sys(err, errno, "%s/lock", path);
    return fs_pwrite_all(fd, pid, (size_t)len, 0, "lock", err);
}

static int open_subdir(const struct offline *o, const char *name, int *out_fd, struct err *err)
{
    *out_fd = openat(o->dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return *out_fd >= 0 ? 0 : err_sys(err, errno, "%s/%s", o->path, name);
}

static int open_parts(const char *path, struct offline *o, struct err *err)
{
    TRY(str_dup(path, &o->path, err));
    o->dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (o->dir_fd < 0)
        return err_sys(err, errno, "%s", path);
    /* Before the lock: a directory that is no store gets no file of ours. */
    TRY(open_subdir(o, "packs", &o->packs_fd, err));
    TRY(open_subdir(o, "originals", &o->originals_fd, err));
    TRY(store_dir_lock(o->dir_fd, path, &o->lock_fd, err));
    return packs_open(o->packs_fd, PACK_BYTES, &o->packs, err);
}

int offline_open(const char *path, store_report_fn *fn, void *arg, struct offline *o, struct err *err)
{
    int rc;

    *o = (struct offline){.dir_fd = -1, .lock_fd = -1, .packs_fd = -1, .originals_fd = -1, .fn = fn, .arg = arg};
    rc = open_parts(path, o, err);
    if (rc < 0)
        offline_close(o);
    return rc;
}

void offline_close(struct offline *o)
{
    packs_close(o->packs);
    fd_cleanup(&o->packs_fd);
    fd_cleanup(&o->originals_fd);
    fd_cleanup(&o->dir_fd);
    fd_cleanup(&o->lock_fd);
    free(o->path);
    *o = (struct offline){.dir_fd = -1, .lock_fd = -1, .packs_fd = -1, .originals_fd = -1};
}

/* ---- telling ---------------------------------------------------------------------------------------------------------- */

void offline_say(struct offline *o, const char *fmt, ...)
{
    char text[ERR_MSG_BYTES];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (o->fn != NULL)
        o->fn(o->arg, &(struct store_report){.text = text, .done_bytes = o->done_bytes, .total_bytes = o->total_bytes});
}

void offline_progress(struct offline *o, uint64_t bytes)
{
    o->done_bytes += bytes;
    if (o->fn == NULL || o->done_bytes - o->told_bytes < TELL_EVERY_BYTES)
        return;
    o->told_bytes = o->done_bytes;
    o->fn(o->arg, &(struct store_report){.done_bytes = o->done_bytes, .total_bytes = o->total_bytes});
}

/* ---- originals --------------------------------------------------------------------------------------------------------- */

static void dir_cleanup(DIR **d)
{
    if (*d != NULL)
        (void)closedir(*d);
}

static int each_in_dir(const char *name, DIR *dir, offline_original_fn *fn, void *arg, struct err *err)
{
    struct dirent *e;

    while (errno = 0, (e = readdir(dir)) != NULL) {
        struct err ignored = ERR_INIT;
        char text[DIGEST_TEXT_BYTES + 1];
        struct digest d;

        if (strlen(e->d_name) != 64 || strncmp(e->d_name, name, 2) != 0)
            continue;
        (void)snprintf(text, sizeof(text), "sha256:%.64s", e->d_name);
        if (digest_parse(text, strlen(text), &d, &ignored) == 0)
            TRY(fn(arg, dirfd(dir), &d, err));
    }
    return errno == 0 ? 0 : err_sys(err, errno, "originals/%s", name);
}

int offline_each_original(struct offline *o, offline_original_fn *fn, void *arg, struct err *err)
{
    for (unsigned i = 0; i < 256; i++) {
        CLEANUP(dir_cleanup) DIR *dir = NULL;
        char name[3];
        int fd;

        (void)snprintf(name, sizeof(name), "%02x", i);
        fd = openat(o->originals_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0 && errno == ENOENT)
            continue;
        dir = fd >= 0 ? fdopendir(fd) : NULL;
        if (dir == NULL) {
            int why = errno;

            fd_cleanup(&fd);
            return err_sys(err, why, "originals/%s", name);
        }
        TRY(each_in_dir(name, dir, fn, arg, err));
    }
    return 0;
}

/* ---- the catalog's file --------------------------------------------------------------------------------------------------- */

static int put_aside(int dir_fd, const char *name, const char *to, struct err *err)
{
    if (renameat(dir_fd, name, dir_fd, to) < 0 && errno != ENOENT)
        return err_sys(err, errno, "%s: rename to %s", name, to);
    return 0;
}

int catalog_adopt_rebuilt(int dir_fd, bool *out_adopted, struct err *err)
{
    struct stat sb;
    char to[64], to_wal[64];

    *out_adopted = false;
    if (fstatat(dir_fd, CATALOG_REBUILT, &sb, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, CATALOG_REBUILT);
    /* The same names when it was interrupted and is done again. */
    (void)snprintf(to, sizeof(to), "catalog.db.damaged-%" PRId64, (int64_t)sb.st_mtime);
    (void)snprintf(to_wal, sizeof(to_wal), "%s-wal", to);
    TRY(put_aside(dir_fd, "catalog.db", to, err));
    TRY(put_aside(dir_fd, "catalog.db-wal", to_wal, err));
    if (unlinkat(dir_fd, "catalog.db-shm", 0) < 0 && errno != ENOENT)
        return err_sys(err, errno, "catalog.db-shm: remove");
    /* A log of the old one beside the new one would be taken for its own. */
    TRY(fs_fsync_dir(dir_fd, "the store's directory", err));
    TRY(fs_rename_durable(dir_fd, CATALOG_REBUILT, dir_fd, "catalog.db", err));
    *out_adopted = true;
    return 0;
}

static int number(struct sql_db *db, const char *sql, int64_t *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q, sql, err));
    TRY(rc = sql_step(&q, err));
    *out = rc == SQL_ROW ? sql_int(&q, 0) : 0;
    return 0;
}

/* Once the log is copied into the file and empty, all of its pages must be there. A full disk may prevent the copy. */
static int check_length(struct sql_db *db, const char *path, struct err *err)
{
    CLEANUP(free_ptr) char *wal = NULL;
    int64_t pages = 0, page_bytes = 0;
    struct stat sb;

    sql_checkpoint(db, true);
    TRY(str_printf(&wal, err, "%s-wal", path));
    if (stat(wal, &sb) == 0 && sb.st_size > 0)
        return 0;
    TRY(number(db, "PRAGMA page_count", &pages, err));
    TRY(number(db, "PRAGMA page_size", &page_bytes, err));
    if (stat(path, &sb) < 0)
        return err_sys(err, errno, "%s", path);
    if (sb.st_size < pages * page_bytes)
        return err_set(err, ERR_CORRUPT, "%s: %" PRId64 " bytes of %" PRId64 ", it was cut", path, (int64_t)sb.st_size,
                       pages * page_bytes);
    return 0;
}

/* Both ends: from the root down to the first and the last leaf. */
static const char *const ends[] = {
    "SELECT max((SELECT min(id) FROM blob), (SELECT max(id) FROM blob), (SELECT max(digest) FROM blob),"
    " (SELECT min(digest) FROM blob))",
    "SELECT max((SELECT min(id) FROM canonical), (SELECT max(id) FROM canonical), (SELECT max(digest) FROM canonical),"
    " (SELECT max(zdigest) FROM canonical))",
    "SELECT max((SELECT min(id) FROM chunk), (SELECT max(id) FROM chunk), (SELECT max(digest) FROM chunk),"
    " (SELECT min(digest) FROM chunk), (SELECT max(pack_id) FROM chunk))",
    "SELECT max((SELECT min(id) FROM manifest), (SELECT max(id) FROM manifest), (SELECT max(digest) FROM manifest))",
    "SELECT max((SELECT min(canonical_id) FROM recipe), (SELECT max(canonical_id) FROM recipe))",
    "SELECT max((SELECT min(repo_id) FROM tag), (SELECT max(repo_id) FROM tag), (SELECT max(id) FROM repo))",
    "SELECT max((SELECT min(repo_id) FROM repo_blob), (SELECT max(repo_id) FROM repo_blob),"
    " (SELECT max(blob_id) FROM repo_blob))",
    "SELECT max((SELECT min(manifest_id) FROM manifest_ref), (SELECT max(manifest_id) FROM manifest_ref),"
    " (SELECT max(digest) FROM manifest_ref))",
    "SELECT max((SELECT max(blob_id) FROM original), (SELECT max(id) FROM pack), (SELECT max(upstream_id) FROM view),"
    " (SELECT max(manifest_id) FROM derived))",
};

int catalog_quick_check(struct sql_db *db, const char *path, struct err *err)
{
    int64_t ignored;

    TRY(check_length(db, path, err));
    for (size_t i = 0; i < ARRAY_LEN(ends); i++)
        TRY(number(db, ends[i], &ignored, err));
    return 0;
}
