/* SPDX-License-Identifier: Apache-2.0
 * store/check_files.c - what the catalog says of packs and originals, against packs/ and originals/.
 */
#include "base/fsutil.h"
#include "store/check_internal.h"
#include "store/chunk_row_internal.h"
#include "store/files_internal.h"
#include "store/le_internal.h"
#include "store/original_internal.h"
#include "transcode/codec.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- packs ------------------------------------------------------------------------------------------------------------ */

static bool pack_file(const struct check *c, int64_t id, uint64_t *out_bytes)
{
    struct stat sb;

    if (fstatat(c->off.packs_fd, pack_name(id).s, &sb, AT_SYMLINK_NOFOLLOW) < 0)
        return false;
    *out_bytes = (uint64_t)sb.st_size;
    return true;
}

static int check_pack(struct check *c, int64_t id, uint64_t end, struct err *err)
{
    struct pack_walk w;
    struct err why = ERR_INIT;
    uint64_t bytes = 0;
    int rc;

    c->out->packs++;
    c->off.total_bytes += end;
    if (!pack_file(c, id, &bytes)) {
        check_bad(c, "packs/%s is missing", pack_name(id).s);
        return 0;
    }
    if (pack_align(bytes) < end) /* the last record may lack what would fill it up to 8 */
        check_bad(c, "packs/%s has %" PRIu64 " bytes of %" PRIu64, pack_name(id).s, bytes, end);
    rc = pack_walk_open(c->off.packs, id, &w, &why);
    if (rc == ERR_CORRUPT) {
        check_bad(c, "%s", why.msg);
        return 0;
    }
    if (rc < 0)
        *err = why;
    return rc;
}

static int count_unknown_packs(struct check *c, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(c->db, &q, "SELECT 1 FROM pack WHERE id = ?1", err));
    for (size_t i = 0; i < c->off.packs->count; i++) {
        sql_bind_int(&q, 1, c->off.packs->items[i]->id);
        TRY(rc = sql_step(&q, err));
        c->out->leftovers += rc == SQL_END;
        sql_reset(&q);
    }
    return 0;
}

int check_packs(struct check *c, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(c->db, &q, "SELECT id, end FROM pack ORDER BY id", err));
    while ((rc = sql_step(&q, err)) == SQL_ROW)
        TRY(check_pack(c, sql_int(&q, 0), (uint64_t)sql_int(&q, 1), err));
    TRY(rc);
    return count_unknown_packs(c, err);
}

/* ---- chunks ------------------------------------------------------------------------------------------------------------ */

struct chunk_walk {
    int64_t pack;       /* of the rows at hand */
    bool there;         /* its file */
    bool seeded;        /* its header is good, so the headers in it can be read */
    uint64_t seed, end; /* end: of the file */
    uint64_t next;      /* behind the frame before */
    uint8_t *frame;
};

static void enter_pack(struct check *c, struct chunk_walk *w, int64_t pack)
{
    struct err ignored = ERR_INIT;
    struct pack_walk walk;

    w->pack = pack;
    w->next = PACK_FILE_HEADER_BYTES;
    w->end = 0;
    w->there = pack_file(c, pack, &w->end);
    w->seeded = w->there && pack_walk_open(c->off.packs, pack, &walk, &ignored) == 0;
    w->seed = w->seeded ? walk.seed : 0;
}

/* What the record's own header says of it. */
static int check_header(struct check *c, const struct chunk_walk *w, const struct chunk_row *row,
                        const struct digest *d, bool *out_good, struct err *err)
{
    uint8_t h[PACK_RECORD_HEADER_BYTES];
    uint64_t off = row->loc.off - sizeof(h);
    struct pack_header r;
    size_t got;

    TRY(packs_pread(c->off.packs, w->pack, off, h, sizeof(h), &got, err));
    *out_good = got == sizeof(h) && pack_record_decode(h, w->seed, off, &r) && r.type == PACK_FRAME &&
                digest_equal(&r.key, d) && r.len == row->loc.len && r.sum == row->loc.sum &&
                r.meta.raw_bytes == row->raw_bytes && r.meta.kind == row->kind;
    return 0;
}

static int check_frame(struct check *c, struct chunk_walk *w, const struct chunk_row *row, const struct digest *d,
                       struct err *err)
{
    const struct pack_name name = pack_name(w->pack);
    struct err why = ERR_INIT;
    bool good = true;

    if (row->loc.off < w->next + PACK_RECORD_HEADER_BYTES || row->loc.off % 8 != 0 ||
        row->loc.off + row->loc.len > w->end) {
        check_bad(c, "chunk %s: packs/%s has no room for its %" PRIu32 " bytes at %" PRIu64, digest_text(d).s, name.s,
                  row->loc.len, row->loc.off);
        return 0;
    }
    w->next = row->loc.off + row->loc.len;
    if (w->seeded)
        TRY(check_header(c, w, row, d, &good, err));
    if (!good)
        check_bad(c, "chunk %s: what is at %" PRIu64 " in packs/%s is not it", digest_text(d).s, row->loc.off, name.s);
    if (!c->bytes || !good)
        return 0;
    if (pack_read(c->off.packs, &row->loc, w->frame, &why) < 0)
        check_bad(c, "chunk %s: %s", digest_text(d).s, why.msg);
    offline_progress(&c->off, row->loc.len);
    return 0;
}

static int check_chunk(struct check *c, struct chunk_walk *w, struct sql_query *q, struct err *err)
{
    struct err why = ERR_INIT;
    struct chunk_row row;
    struct digest d;
    int rc;

    c->out->chunks++;
    TRY(sql_digest(q, 9, &d, err));
    rc = chunk_row_read(q, 0, &row, &why);
    if (rc == ERR_CORRUPT) {
        check_bad(c, "chunk %s: %s", digest_text(&d).s, why.msg);
        return 0;
    }
    if (rc < 0) {
        *err = why;
        return rc;
    }
    c->out->lost += row.lost;
    if (row.lost)
        return 0;
    if (row.loc.pack != w->pack)
        enter_pack(c, w, row.loc.pack);
    return w->there ? check_frame(c, w, &row, &d, err) : 0; /* of a pack that is missing one word is enough */
}

int check_chunks(struct check *c, struct err *err)
{
    CLEANUP(free_ptr) uint8_t *frame = malloc(chunk_frame_max_bytes());
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct chunk_walk w = {.frame = frame};
    int rc;

    if (frame == NULL)
        return err_nomem(err, chunk_frame_max_bytes());
    TRY(sql_query(c->db, &q, "SELECT " CHUNK_ROW_COLUMNS ", c.digest FROM chunk c ORDER BY c.pack_id, c.off", err));
    while ((rc = sql_step(&q, err)) == SQL_ROW)
        TRY(check_chunk(c, &w, &q, err));
    return rc;
}

/* ---- originals ---------------------------------------------------------------------------------------------------------- */

static int compare_sums(struct check *c, const struct digest *d, int fd, uint64_t size, const uint8_t *sums,
                        struct err *err)
{
    CLEANUP(free_ptr) uint8_t *data = malloc(ORIGINAL_BLOCK_BYTES);

    if (data == NULL)
        return err_nomem(err, ORIGINAL_BLOCK_BYTES);
    for (uint64_t off = 0; off < size; off += ORIGINAL_BLOCK_BYTES, sums += 8) {
        size_t len = size - off < ORIGINAL_BLOCK_BYTES ? (size_t)(size - off) : ORIGINAL_BLOCK_BYTES;
        struct err why = ERR_INIT;

        if (fs_pread_all(fd, data, len, off, "originals", &why) < 0 || sum64(data, len) != le_get64(sums))
            check_bad(c, "original %s: the MiB at %" PRIu64 " cannot be read, or fails its checksum", digest_text(d).s,
                      off);
        offline_progress(&c->off, len);
    }
    return 0;
}

static int open_original(const struct check *c, const struct digest *d)
{
    char path[DIGEST_TEXT_BYTES + 4];

    (void)snprintf(path, sizeof(path), "%s/%s", original_dir(d).s, digest_hex(d).s);
    return openat(c->off.originals_fd, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
}

/* Columns: digest, size, original_present, sums. */
static int check_original(struct check *c, struct sql_query *q, struct err *err)
{
    CLEANUP(fd_cleanup) int fd = -1;
    uint64_t size = (uint64_t)sql_int(q, 1);
    struct stat sb;
    struct digest d;
    size_t len;
    const void *sums = sql_blob(q, 3, &len);

    TRY(sql_digest(q, 0, &d, err));
    if (sql_int(q, 2) == 0 || sql_is_null(q, 3) ||
        len != (size + ORIGINAL_BLOCK_BYTES - 1) / ORIGINAL_BLOCK_BYTES * 8) {
        check_bad(c, "original %s: checksums without a file, or not those of its size", digest_text(&d).s);
        return 0;
    }
    c->out->originals++;
    fd = open_original(c, &d);
    if (fd < 0 || fstat(fd, &sb) < 0)
        check_bad(c, "original %s: its file cannot be opened: %s", digest_text(&d).s, strerror(errno));
    else if ((uint64_t)sb.st_size != size)
        check_bad(c, "original %s: its file has %" PRId64 " bytes of %" PRIu64, digest_text(&d).s, (int64_t)sb.st_size,
                  size);
    else if (c->bytes)
        return compare_sums(c, &d, fd, size, sums, err);
    return 0;
}

static int count_unknown(void *arg, int dir_fd, const struct digest *d, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct check *c = arg;
    int rc;

    (void)dir_fd;
    TRY(sql_query(c->db, &q, "SELECT 1 FROM blob WHERE digest = ?1 AND original_present = 1", err));
    sql_bind_digest(&q, 1, d);
    TRY(rc = sql_step(&q, err));
    c->out->leftovers += rc == SQL_END;
    return 0;
}

int check_originals(struct check *c, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    int rc;

    TRY(sql_query(c->db, &q,
                  "SELECT b.digest, b.size, b.original_present, o.sums FROM blob b LEFT JOIN original o"
                  " ON o.blob_id = b.id WHERE b.original_present = 1 OR o.blob_id IS NOT NULL ORDER BY b.id",
                  err));
    while ((rc = sql_step(&q, err)) == SQL_ROW)
        TRY(check_original(c, &q, err));
    TRY(rc);
    return offline_each_original(&c->off, count_unknown, c, err);
}
