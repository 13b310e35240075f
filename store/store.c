/* SPDX-License-Identifier: Apache-2.0
 * store/store.c - opens and closes the store's directory (FORMAT.md "Directory"), and cleans up after a crash.
 *
 * What a crash can leave: spool files, originals and packs without a row, tails of packs behind the last commit, chunks
 * that nobody uses, holes not yet punched. All of it goes at the next open; nothing of it was ever served.
 */
#include "base/fsutil.h"
#include "base/log.h"
#include "store/catalog_internal.h"
#include "store/compact_internal.h"
#include "store/files_internal.h"
#include "store/offline_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define PACK_MIN_BYTES (UINT64_C(4) << 20)
#define PACK_MAX_BYTES (UINT64_C(256) << 20)
#define ZSTD_LEVEL_DEFAULT 3

/* ---- the directory ------------------------------------------------------------------------------------------------ */

static int open_subdir(struct store *st, const char *name, int *out_fd, struct err *err)
{
    if (mkdirat(st->dir_fd, name, 0700) < 0 && errno != EEXIST)
        return err_sys(err, errno, "%s/%s", st->path, name);
    *out_fd = openat(st->dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return *out_fd >= 0 ? 0 : err_sys(err, errno, "%s/%s", st->path, name);
}

static int open_dirs(struct store *st, struct err *err)
{
    TRY(fs_mkdirs(st->path, 0700, err));
    st->dir_fd = open(st->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (st->dir_fd < 0)
        return err_sys(err, errno, "%s", st->path);
    TRY(store_dir_lock(st->dir_fd, st->path, &st->lock_fd, err));
    TRY(open_subdir(st, "packs", &st->packs_fd, err));
    TRY(open_subdir(st, "originals", &st->originals_fd, err));
    TRY(open_subdir(st, "spool", &st->spool_fd, err));
    return fs_fsync_dir(st->dir_fd, st->path, err);
}

static int set_options(struct store *st, const struct store_options *opt, struct err *err)
{
    struct statvfs fs;

    st->opt = *opt;
    st->opt.path = st->path;
    if (st->opt.zstd_level == 0)
        st->opt.zstd_level = ZSTD_LEVEL_DEFAULT;
    if (st->opt.quota_bytes == 0) {
        if (fstatvfs(st->dir_fd, &fs) < 0)
            return err_sys(err, errno, "%s", st->path);
        st->opt.quota_bytes = (uint64_t)fs.f_blocks * fs.f_frsize / 5 * 4;
    }
    return 0;
}

static uint64_t pack_limit(uint64_t quota_bytes)
{
    uint64_t limit = quota_bytes / 16;

    if (limit > PACK_MAX_BYTES)
        return PACK_MAX_BYTES;
    return limit < PACK_MIN_BYTES ? PACK_MIN_BYTES : limit;
}

/* ---- after a crash ------------------------------------------------------------------------------------------------- */

static int trim_packs(struct store *st, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    unsigned removed;
    int rc;

    TRY(catalog_read_begin(st, &db, err));
    TRY(sql_query(db, &q, "SELECT id, end FROM pack ORDER BY id", err));
    while ((rc = sql_step(&q, err)) == SQL_ROW) {
        struct err why = ERR_INIT;

        rc = packs_trim(st->packs, sql_int(&q, 0), (uint64_t)sql_int(&q, 1), &why);
        if (rc == ERR_NOTFOUND) { /* its layers are found missing when they are read */
            log_event(LOG_WARN, "pack.missing", "err=%s", log_quote(why.msg).s);
        } else if (rc < 0) {
            *err = why;
            return rc;
        }
    }
    TRY(rc);
    TRY(packs_remove_unknown(st->packs, &removed, err));
    if (removed > 0)
        log_event(LOG_INFO, "store.packs_removed", "count=%u", removed);
    return 0;
}

struct sweep_originals {
    struct sql_db *db;
    char dir[3];
    struct err err;
};

/* Whether a row says that this file is an original. When in doubt it stays. */
static bool keep_original(const char *name, void *arg)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct sweep_originals *s = arg;
    struct err ignored = ERR_INIT;
    char text[DIGEST_TEXT_BYTES];
    struct digest d;

    if (strlen(name) != 64 || strncmp(name, s->dir, 2) != 0)
        return false;
    (void)snprintf(text, sizeof(text), "sha256:%s", name);
    if (digest_parse(text, strlen(text), &d, &ignored) < 0)
        return false;
    if (sql_query(s->db, &q, "SELECT 1 FROM blob WHERE digest = ?1 AND original_present = 1", &s->err) < 0)
        return true;
    sql_bind_digest(&q, 1, &d);
    return sql_step(&q, &s->err) != SQL_END;
}

static int sweep_original_dir(struct store *st, struct sweep_originals *s, unsigned *removed, struct err *err)
{
    CLEANUP(fd_cleanup) int fd = openat(st->originals_fd, s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    unsigned count;

    if (fd < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "originals/%s", s->dir);
    TRY(fs_empty_dir(fd, keep_original, s, &count, err));
    if (s->err.code < 0) {
        *err = s->err;
        return err->code;
    }
    *removed += count;
    atomic_fetch_add(&st->original_disk_bytes, (int_fast64_t)dir_disk_bytes(fd));
    return 0;
}

static int sweep_original_files(struct store *st, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    struct sweep_originals s = {.err = ERR_INIT};
    unsigned removed = 0;

    TRY(catalog_read_begin(st, &db, err));
    s.db = db;
    for (unsigned i = 0; i < 256; i++) {
        (void)snprintf(s.dir, sizeof(s.dir), "%02x", i);
        TRY(sweep_original_dir(st, &s, &removed, err));
    }
    if (removed > 0)
        log_event(LOG_INFO, "store.originals_removed", "count=%u", removed);
    return 0;
}

static int clean_up(struct store *st, struct err *err)
{
    unsigned removed;

    TRY(trim_packs(st, err));
    TRY(fs_empty_dir(st->spool_fd, NULL, NULL, &removed, err));
    if (removed > 0)
        log_event(LOG_INFO, "store.spool_removed", "count=%u", removed);
    TRY(sweep_original_files(st, err));
    return sweep_at_open(st, err);
}

/* ---- opening and closing -------------------------------------------------------------------------------------------- */

/* Packs without a catalog: clean_up() would take all of them for a crash's leftovers. */
static int open_catalog(struct store *st, struct err *err)
{
    CLEANUP(free_ptr) char *path = NULL;
    struct err why = ERR_INIT;
    int rc;

    TRY(str_printf(&path, err, "%s/catalog.db", st->path));
    rc = catalog_open(st, path, packs_count(st->packs) == 0, &why);
    if (rc == ERR_CORRUPT)
        return err_set(err, ERR_CORRUPT,
                       "%s; \"recask fsck --rebuild --store %s\" makes a new catalog from packs and originals", why.msg,
                       st->path);
    if (rc < 0)
        *err = why;
    return rc;
}

static int open_parts(struct store *st, const struct store_options *opt, struct err *err)
{
    bool adopted;

    TRY(open_dirs(st, err));
    TRY(catalog_adopt_rebuilt(st->dir_fd, &adopted, err));
    if (adopted)
        log_event(LOG_WARN, "store.catalog_rebuilt", "path=%s", log_quote(st->path).s);
    TRY(set_options(st, opt, err));
    TRY(leases_new(&st->leases, err));
    TRY(compact_new(st, err));
    TRY(packs_open(st->packs_fd, pack_limit(st->opt.quota_bytes), &st->packs, err));
    TRY(open_catalog(st, err));
    return clean_up(st, err);
}

int store_open(const struct store_options *opt, struct store **out, struct err *err)
{
    struct store *st = calloc(1, sizeof(*st));
    int rc;

    if (st == NULL)
        return err_nomem(err, sizeof(*st));
    st->magic = STORE_MAGIC;
    st->dir_fd = st->packs_fd = st->originals_fd = st->spool_fd = st->lock_fd = -1;
    lock_init(&st->files_lock, RANK_STORE);
    room_init(&st->room);
    rc = str_dup(opt->path, &st->path, err);
    if (rc == 0)
        rc = open_parts(st, opt, err);
    if (rc < 0) {
        store_close(st);
        return rc;
    }
    *out = st;
    return 0;
}

void store_close(struct store *st)
{
    if (st == NULL)
        return;
    REQUIRE(st->magic == STORE_MAGIC);
    catalog_close(st);
    compact_free(st);
    packs_close(st->packs);
    leases_free(st->leases);
    fd_cleanup(&st->packs_fd);
    fd_cleanup(&st->originals_fd);
    fd_cleanup(&st->spool_fd);
    fd_cleanup(&st->dir_fd);
    fd_cleanup(&st->lock_fd); /* last: whoever gets the lock next finds everything closed */
    lock_release(&st->files_lock);
    room_release(&st->room);
    st->magic = 0;
    free(st->path);
    free(st);
}

void store_idle(struct store *st)
{
    catalog_idle(st);
}
