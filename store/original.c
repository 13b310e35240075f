/* SPDX-License-Identifier: Apache-2.0
 * store/original.c - a source over the plain file of an original (layer.h), each MiB checked before it is handed on (S6).
 */
#include "store/original_internal.h"

#include "base/fsutil.h"
#include "store/catalog_internal.h"
#include "store/files_internal.h"
#include "store/layer.h"
#include "store/le_internal.h"
#include "transcode/codec.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

struct original {
    struct source base;
    struct lease lease;
    int fd;
    uint64_t size_bytes;
    uint64_t off, end;    /* what is still to be handed out */
    uint64_t first_block; /* sums.data begins with this block's */
    struct buf sums;
    uint64_t block; /* in `data`; UINT64_MAX: none yet */
    uint8_t *data;
};

/* ---- the row -------------------------------------------------------------------------------------------------------- */

static int read_row(struct sql_db *db, const struct digest *d, struct original_row *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(db, &q, "SELECT id, size FROM blob WHERE digest = ?1 AND original_present = 1", err));
    sql_bind_digest(&q, 1, d);
    TRY(rc = sql_step(&q, err));
    if (rc == SQL_END)
        return err_set(err, ERR_NOTFOUND, "original %s is not in the store", digest_text(d).s);
    *out = (struct original_row){.blob_id = sql_int(&q, 0), .size_bytes = (uint64_t)sql_int(&q, 1)};
    return 0;
}

int original_row(struct store *st, const struct digest *d, struct original_row *out, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    TRY(catalog_read_begin(st, &db, err));
    return read_row(db, d, out, err);
}

static int read_sums(struct sql_db *db, const struct original_row *row, struct original *o, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    uint64_t blocks = (o->end - 1) / ORIGINAL_BLOCK_BYTES - o->first_block + 1;
    const void *sums;
    size_t len = 0;
    int rc;

    TRY(sql_query(db, &q, "SELECT substr(sums, ?2 * 8 + 1, ?3 * 8) FROM original WHERE blob_id = ?1", err));
    sql_bind_int(&q, 1, row->blob_id);
    sql_bind_int(&q, 2, (int64_t)o->first_block);
    sql_bind_int(&q, 3, (int64_t)blocks);
    TRY(rc = sql_step(&q, err));
    sums = rc == SQL_ROW ? sql_blob(&q, 0, &len) : NULL;
    if (len != blocks * 8)
        return err_set(err, ERR_CORRUPT, "catalog: original %s lacks checksums", digest_text(&o->lease.digest).s);
    return buf_add(&o->sums, sums, len, err);
}

static int open_file(struct store *st, const struct digest *d, int *out_fd, uint64_t *out_bytes, struct err *err)
{
    CLEANUP(fd_cleanup) int dir = -1;
    struct stat sb;

    TRY(original_dir_open(st, d, ORIGINAL_DIR_MUST_EXIST, &dir, err));
    *out_fd = openat(dir, digest_hex(d).s, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (*out_fd < 0)
        return err_sys(err, errno, "originals: %s", digest_text(d).s);
    if (fstat(*out_fd, &sb) < 0)
        return err_sys(err, errno, "originals: %s", digest_text(d).s);
    *out_bytes = (uint64_t)sb.st_size;
    return 0;
}

/* ---- the source -------------------------------------------------------------------------------------------------------- */

static int load_block(struct original *o, uint64_t block, struct err *err)
{
    uint64_t start = block * ORIGINAL_BLOCK_BYTES;
    size_t len = o->size_bytes - start < ORIGINAL_BLOCK_BYTES ? (size_t)(o->size_bytes - start) : ORIGINAL_BLOCK_BYTES;
    const uint8_t *sum = (const uint8_t *)o->sums.data + (block - o->first_block) * 8;
    struct digest_text name = digest_text(&o->lease.digest);

    o->block = UINT64_MAX;
    int rc = fs_pread_all(o->fd, o->data, len, start, name.s, err);
    if (rc < 0 && err->sys == EIO) /* what the disk cannot read is as good as damaged: it can be had elsewhere */
        err->code = ERR_CORRUPT;
    if (rc < 0)
        return err->code;
    if (sum64(o->data, len) != le_get64(sum))
        return err_set(err, ERR_CORRUPT, "original %s: the MiB at %" PRIu64 " fails its checksum", name.s, start);
    o->block = block;
    return 0;
}

static int original_read(struct source *s, void *out, size_t cap, size_t *out_len, struct err *err)
{
    struct original *o = (struct original *)s;
    uint64_t block = o->off / ORIGINAL_BLOCK_BYTES;
    uint64_t in_block = o->off % ORIGINAL_BLOCK_BYTES;
    uint64_t n = ORIGINAL_BLOCK_BYTES - in_block;

    *out_len = 0;
    if (o->off >= o->end)
        return STEP_EOF;
    if (o->block != block)
        TRY(load_block(o, block, err));
    if (n > o->end - o->off)
        n = o->end - o->off;
    if (n > cap)
        n = cap;
    memcpy(out, o->data + in_block, (size_t)n);
    o->off += n;
    *out_len = (size_t)n;
    return STEP_MORE;
}

static void original_free(struct source *s)
{
    struct original *o = (struct original *)s;

    fd_cleanup(&o->fd);
    lease_release(&o->lease);
    buf_release(&o->sums);
    free(o->data);
    o->base.magic = 0;
    free(o);
}

static const struct source_ops original_ops = {.name = "original", .read = original_read, .free = original_free};

static bool clip(struct original *o, uint64_t off, uint64_t len)
{
    o->off = off < o->size_bytes ? off : o->size_bytes;
    o->end = len < o->size_bytes - o->off ? o->off + len : o->size_bytes;
    o->first_block = o->off / ORIGINAL_BLOCK_BYTES;
    return o->end > o->off;
}

static int set_up(struct store *st, struct original *o, const struct digest *d, uint64_t off, uint64_t len,
                  struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    struct original_row row;
    uint64_t file_bytes = 0;

    /* The lease first: what the row says then stays true. */
    TRY(lease_hold(st, LEASE_ORIGINAL, d, &o->lease, err));
    TRY(catalog_read_begin(st, &db, err));
    TRY(read_row(db, d, &row, err));
    o->size_bytes = row.size_bytes;
    TRY(open_file(st, d, &o->fd, &file_bytes, err));
    if (file_bytes != row.size_bytes)
        return err_set(err, ERR_CORRUPT, "original %s: its file has %" PRIu64 " bytes instead of %" PRIu64,
                       digest_text(d).s, file_bytes, row.size_bytes);
    if (!clip(o, off, len))
        return 0;
    TRY(read_sums(db, &row, o, err));
    catalog_read_end(&db);
    o->data = malloc(ORIGINAL_BLOCK_BYTES);
    if (o->data == NULL)
        return err_nomem(err, ORIGINAL_BLOCK_BYTES);
    return load_block(o, o->first_block, err); /* what is damaged is to show before an answer's headers */
}

static int open_window(struct store *st, const struct digest *d, uint64_t off, uint64_t len, struct source **out,
                       struct err *err)
{
    struct original *o = calloc(1, sizeof(*o));
    int rc;

    if (o == NULL)
        return err_nomem(err, sizeof(*o));
    o->base = (struct source){.magic = SOURCE_MAGIC, .ops = &original_ops};
    o->fd = -1;
    o->block = UINT64_MAX;
    buf_init(&o->sums, ORIGINAL_SUMS_MAX_BYTES);
    rc = set_up(st, o, d, off, len, err);
    if (rc < 0) {
        original_free(&o->base);
        return rc;
    }
    *out = &o->base;
    return 0;
}

int original_open(struct store *st, const struct digest *d, uint64_t off, uint64_t len, struct source **out,
                  struct err *err)
{
    TRY(open_window(st, d, off, len, out, err));
    lease_note_read(st, LEASE_ORIGINAL, d);
    return 0;
}

int original_open_quietly(struct store *st, const struct digest *d, struct source **out, struct err *err)
{
    return open_window(st, d, 0, UINT64_MAX, out, err);
}
