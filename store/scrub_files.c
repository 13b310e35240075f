/* SPDX-License-Identifier: Apache-2.0
 * store/scrub_files.c - originals, bodies of manifests, and files that nobody refers to.
 */
#include "store/scrub_internal.h"

#include "base/fsutil.h"
#include "store/files_internal.h"
#include "store/layer.h"
#include "store/pack_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_BYTES (256u << 10)
#define DIRS 256

/* ---- originals ----------------------------------------------------------------------------------------------------------- */

static int next_original(struct store_scrub *s, bool *out_found, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct original_walk *o = &s->original;
    int rc;

    TRY(sql_query(s->db, &q,
                  "SELECT id, digest, size FROM blob WHERE original_present = 1 AND id >= ?1 ORDER BY id LIMIT 1",
                  err));
    sql_bind_int(&q, 1, o->again ? o->last_id : o->last_id + 1);
    TRY(rc = sql_step(&q, err));
    *out_found = rc == SQL_ROW;
    if (!*out_found)
        return 0;
    if (sql_int(&q, 0) != o->last_id)
        o->again = false;
    o->last_id = sql_int(&q, 0);
    o->size = (uint64_t)sql_int(&q, 2);
    o->seen = 0;
    return sql_digest(&q, 1, &o->digest, err);
}

static void close_original(struct original_walk *o)
{
    source_free(steal(&o->source));
    hasher_cleanup(&o->hash);
}

static int still_present(struct store_scrub *s, bool *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(s->db, &q, "SELECT 1 FROM blob WHERE digest = ?1 AND original_present = 1", err));
    sql_bind_digest(&q, 1, &s->original.digest);
    TRY(rc = sql_step(&q, err));
    *out = rc == SQL_ROW;
    return 0;
}

static bool is_damage(int rc)
{
    return rc == ERR_CORRUPT || rc == ERR_NOTFOUND || rc == ERR_IO;
}

/* The first time it is read again; the second time it is so. */
static int original_bad(struct store_scrub *s, const struct err *why, struct err *err)
{
    struct original_walk *o = &s->original;
    struct scrub_finding f = {.fault = SCRUB_ORIGINAL, .digest = o->digest};
    bool present;

    close_original(o);
    if (!is_damage(why->code)) {
        *err = *why;
        return why->code;
    }
    o->again = !o->again;
    if (o->again)
        return 0;
    TRY(still_present(s, &present, err));
    if (present)
        scrub_report(s, &f, "originals/%s/%s: %s", original_dir(&o->digest).s, digest_hex(&o->digest).s, why->msg);
    return 0;
}

/* The second look is under the lock of those who commit and evict, so that "no such file" is no moment in between. */
static int open_original(struct store_scrub *s, struct err *err)
{
    CLEANUP(digest_unlock) struct lease lock = LEASE_INIT;
    struct original_walk *o = &s->original;
    struct err why = ERR_INIT;
    bool present = true;
    int rc;

    if (o->again)
        TRY(digest_lock(s->st, &o->digest, &lock, err));
    if (o->again)
        TRY(still_present(s, &present, err));
    if (!present) {
        o->again = false;
        return 0;
    }
    TRY(hasher_new(&o->hash, err));
    rc = original_open_quietly(s->st, &o->digest, &o->source, &why);
    return rc < 0 ? original_bad(s, &why, err) : 0;
}

static int end_original(struct store_scrub *s, struct err *err)
{
    struct original_walk *o = &s->original;
    struct err why = ERR_INIT;
    struct digest got;

    hasher_peek(o->hash, &got);
    if (!digest_equal(&got, &o->digest)) {
        (void)err_set(&why, ERR_CORRUPT, "its bytes hash to %s", digest_text(&got).s);
        return original_bad(s, &why, err);
    }
    close_original(o);
    o->again = false;
    s->p.originals++;
    return 0;
}

int scrub_original_unit(struct store_scrub *s, bool *out_more, struct err *err)
{
    struct original_walk *o = &s->original;
    struct err why = ERR_INIT;
    size_t got = 0;
    int rc;

    if (o->buffer == NULL)
        o->buffer = malloc(READ_BYTES);
    if (o->buffer == NULL)
        return err_nomem(err, READ_BYTES);
    if (o->source == NULL) {
        TRY(next_original(s, out_more, err));
        return *out_more ? open_original(s, err) : 0;
    }
    rc = source_read(o->source, o->buffer, READ_BYTES, &got, &why);
    if (rc < 0)
        return original_bad(s, &why, err);
    hasher_update(o->hash, o->buffer, got);
    s->p.bytes += got;
    return rc == STEP_EOF ? end_original(s, err) : 0;
}

void scrub_original_end(struct store_scrub *s)
{
    close_original(&s->original);
    free_ptr(&s->original.buffer);
}

/* ---- manifests -------------------------------------------------------------------------------------------------------------- */

int scrub_manifest_unit(struct store_scrub *s, bool *out_more, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct scrub_finding f = {.fault = SCRUB_MANIFEST};
    struct digest got;
    const void *body;
    size_t len;
    int rc;

    TRY(sql_query(s->db, &q, "SELECT id, digest, body FROM manifest WHERE id > ?1 ORDER BY id LIMIT 1", err));
    sql_bind_int(&q, 1, s->file.last_manifest);
    TRY(rc = sql_step(&q, err));
    *out_more = rc == SQL_ROW;
    if (!*out_more)
        return 0;
    s->file.last_manifest = sql_int(&q, 0);
    TRY(sql_digest(&q, 1, &f.digest, err));
    body = sql_blob(&q, 2, &len);
    digest_of(body, len, &got);
    if (!digest_equal(&got, &f.digest)) /* the row is written once, so a second look would show the same */
        scrub_report(s, &f, "manifest %s: its body hashes to %s", digest_text(&f.digest).s, digest_text(&got).s);
    s->p.manifests++;
    return 0;
}

/* ---- files that nobody refers to -------------------------------------------------------------------------------------------- */

static void stray(struct store_scrub *s, const char *dir, const char *name)
{
    struct scrub_finding f = {.fault = SCRUB_STRAY};

    (void)snprintf(f.file, sizeof(f.file), "%s/%.80s", dir, name);
    scrub_report(s, &f, "%s: no row of the catalog refers to this file", f.file);
}

/* Under the digest's lock: between a file and its row, in either order, is nothing to be seen. */
static int check_original_file(struct store_scrub *s, const char *dir, int dir_fd, const char *name, struct err *err)
{
    CLEANUP(digest_unlock) struct lease lock = LEASE_INIT;
    char text[DIGEST_TEXT_BYTES];
    struct err ignored = ERR_INIT;
    struct stat sb;
    bool present;

    (void)snprintf(text, sizeof(text), "sha256:%.64s", name);
    if (strlen(name) != 64 || digest_parse(text, strlen(text), &s->original.digest, &ignored) < 0) {
        stray(s, dir, name);
        return 0;
    }
    TRY(digest_lock(s->st, &s->original.digest, &lock, err));
    TRY(still_present(s, &present, err));
    if (!present && fstatat(dir_fd, name, &sb, AT_SYMLINK_NOFOLLOW) == 0)
        stray(s, dir, name);
    return 0;
}

typedef int file_fn(struct store_scrub *s, const char *dir, int dir_fd, const char *name, struct err *err);

static void dir_close(DIR **dir)
{
    if (*dir != NULL)
        (void)closedir(*dir);
    *dir = NULL;
}

static int each_file(struct store_scrub *s, int parent, const char *path, const char *name, file_fn *fn,
                     struct err *err)
{
    CLEANUP(dir_close) DIR *dir = NULL;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    struct dirent *e;

    if (fd < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "%s", path);
    dir = fdopendir(fd);
    if (dir == NULL) {
        (void)close(fd);
        return err_nomem(err, 0);
    }
    while ((e = readdir(dir)) != NULL)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            TRY(fn(s, path, fd, e->d_name, err));
    return 0;
}

/* A pack is on the table before its file is made, and until after it is gone. */
static int check_pack_file(struct store_scrub *s, const char *dir, int dir_fd, const char *name, struct err *err UNUSED)
{
    struct packs *ps = s->st->packs;
    uint64_t id = 0;
    struct stat sb;
    bool known = false;

    if (sscanf(name, "%16" SCNx64, &id) == 1 && strcmp(pack_name((int64_t)id).s, name) == 0) {
        lock_take(&ps->lock);
        known = pack_find(ps, (int64_t)id) != NULL;
        lock_give(&ps->lock);
    }
    if (!known && fstatat(dir_fd, name, &sb, AT_SYMLINK_NOFOLLOW) == 0)
        stray(s, dir, name);
    return 0;
}

/* ---- packs ------------------------------------------------------------------------------------------------------------------- */

/* The first pack from an id on (0: none), and where the last frame in it ends that a chunk's row names. The committed end
 * says less: behind the last record may be room that was reserved and never written. */
static int pack_row(struct store_scrub *s, int64_t from, int64_t *out_id, int64_t *out_used, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(
        s->db, &q,
        "SELECT id, coalesce((SELECT off + len FROM chunk WHERE pack_id = pack.id ORDER BY off DESC LIMIT 1), 0)"
        " FROM pack WHERE id >= ?1 ORDER BY id LIMIT 1",
        err));
    sql_bind_int(&q, 1, from);
    TRY(rc = sql_step(&q, err));
    *out_id = rc == SQL_ROW ? sql_int(&q, 0) : 0;
    *out_used = rc == SQL_ROW ? sql_int(&q, 1) : 0;
    return 0;
}

static int pack_unit(struct store_scrub *s, struct err *err)
{
    struct scrub_finding f = {.fault = SCRUB_PACK};
    int64_t id, used, again;
    struct stat sb;
    bool there = false;

    TRY(pack_row(s, s->file.last_pack + 1, &id, &used, err));
    if (id == 0) {
        s->file.packs_done = true;
        return 0;
    }
    s->file.last_pack = id;
    for (int look = 0; look < 2; look++) { /* compacted, or grown, between the row and the file */
        there = fstatat(s->st->packs_fd, pack_name(id).s, &sb, AT_SYMLINK_NOFOLLOW) == 0;
        if (there && (int64_t)sb.st_size >= used)
            return 0;
        TRY(pack_row(s, id, &again, &used, err));
        if (again != id)
            return 0;
    }
    f.row = f.pack = id;
    f.off = there ? (uint64_t)sb.st_size : 0;
    if (there)
        scrub_report(s, &f, "packs/%s ends at %" PRIu64 ", chunks are recorded up to %" PRId64, pack_name(id).s, f.off,
                     used);
    else
        scrub_report(s, &f, "packs/%s is missing", pack_name(id).s);
    return 0;
}

int scrub_stray_unit(struct store_scrub *s, bool *out_more, struct err *err)
{
    struct file_walk *w = &s->file;
    char name[3], path[24];

    if (!w->packs_done)
        return pack_unit(s, err);
    if (w->dir < DIRS) {
        (void)snprintf(name, sizeof(name), "%02x", w->dir++);
        (void)snprintf(path, sizeof(path), "originals/%s", name);
        return each_file(s, s->st->originals_fd, path, name, check_original_file, err);
    }
    *out_more = false;
    return each_file(s, s->st->packs_fd, "packs", ".", check_pack_file, err);
}
