/* SPDX-License-Identifier: Apache-2.0
 * store/spool.c - a file that grows while others read it, hashed and summed on the way.
 *
 * `bytes` is what followers may read: it moves after the bytes are in the file, never before.
 */
#include "store/spool.h"

#include "base/clock.h"
#include "base/fsutil.h"
#include "base/log.h"
#include "store/catalog_internal.h"
#include "store/files_internal.h"
#include "store/le_internal.h"
#include "store/original_internal.h"
#include "store/repo_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>
#include <xxhash.h>

#define SPOOL_MAGIC 0x5b001001u
#define STEP_BYTES (UINT64_C(1) << 20)

struct spool {
    uint32_t magic;
    atomic_uint refs;
    struct store *st;
    int fd;
    char name[32];
    uint64_t reserved; /* of the quota, for the whole life of the file; the writer's, then the last reference's */
    atomic_uint_fast64_t bytes;
    /* the writer's side */
    struct hasher *hasher;
    XXH3_state_t *mib;  /* of the MiB that is being filled */
    uint64_t mib_bytes; /* in it so far */
    struct buf sums;    /* of the full ones, as the catalog has them */
    bool failed;        /* a write failed: takes no more */
    bool committed;     /* the file is an original now, or gone */
};

static int start(struct spool *sp, struct err *err)
{
    sp->mib = XXH3_createState();
    if (sp->mib == NULL)
        return err_set(err, ERR_NOMEM, "out of memory for a checksum state");
    (void)XXH3_64bits_reset(sp->mib);
    TRY(hasher_new(&sp->hasher, err));
    (void)snprintf(sp->name, sizeof(sp->name), "%" PRIuFAST64 ".part", atomic_fetch_add(&sp->st->spool_seq, 1));
    sp->fd = openat(sp->st->spool_fd, sp->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    return sp->fd >= 0 ? 0 : err_sys(err, errno, "spool/%s", sp->name);
}

int spool_open(struct store *st, struct spool **out, struct err *err)
{
    struct spool *sp = calloc(1, sizeof(*sp));
    int rc;

    if (sp == NULL)
        return err_nomem(err, sizeof(*sp));
    sp->magic = SPOOL_MAGIC;
    sp->st = st;
    sp->fd = -1;
    atomic_init(&sp->refs, 1);
    atomic_init(&sp->bytes, 0);
    buf_init(&sp->sums, ORIGINAL_SUMS_MAX_BYTES);
    rc = start(sp, err);
    if (rc < 0) {
        spool_unref(sp);
        return rc;
    }
    *out = sp;
    return 0;
}

struct spool *spool_ref(struct spool *sp)
{
    REQUIRE(sp->magic == SPOOL_MAGIC);
    atomic_fetch_add(&sp->refs, 1);
    return sp;
}

void spool_unref(struct spool *sp)
{
    if (sp == NULL)
        return;
    REQUIRE(sp->magic == SPOOL_MAGIC);
    if (atomic_fetch_sub(&sp->refs, 1) != 1)
        return;
    if (sp->fd >= 0 && !sp->committed && unlinkat(sp->st->spool_fd, sp->name, 0) < 0)
        log_event(LOG_WARN, "spool.remove", "file=%s errno=%d", sp->name, errno);
    fd_cleanup(&sp->fd);
    room_give(sp->st, sp->reserved); /* the blocks go with the descriptor */
    hasher_free(sp->hasher);
    (void)XXH3_freeState(sp->mib);
    buf_release(&sp->sums);
    sp->magic = 0;
    free(sp);
}

void spool_cleanup(struct spool **sp)
{
    spool_unref(steal(sp));
}

/* ---- the writer --------------------------------------------------------------------------------------------------- */

static int end_mib(struct spool *sp, struct err *err)
{
    uint8_t sum[8];

    le_put64(sum, XXH3_64bits_digest(sp->mib));
    TRY(buf_add(&sp->sums, sum, sizeof(sum), err));
    (void)XXH3_64bits_reset(sp->mib);
    sp->mib_bytes = 0;
    return 0;
}

static int add_sums(struct spool *sp, const uint8_t *data, size_t len, struct err *err)
{
    while (len > 0) {
        uint64_t room = ORIGINAL_BLOCK_BYTES - sp->mib_bytes;
        size_t n = len < room ? len : (size_t)room;

        (void)XXH3_64bits_update(sp->mib, data, n);
        sp->mib_bytes += n;
        data += n;
        len -= n;
        if (sp->mib_bytes == ORIGINAL_BLOCK_BYTES)
            TRY(end_mib(sp, err));
    }
    return 0;
}

static int reserve(struct spool *sp, uint64_t bytes, struct err *err)
{
    uint64_t want = room_round(bytes);

    if (want <= sp->reserved)
        return 0;
    TRY(room_take(sp->st, want - sp->reserved, err));
    sp->reserved = want;
    return 0;
}

int spool_expect(struct spool *sp, uint64_t bytes, struct err *err)
{
    int rc;

    REQUIRE(sp->magic == SPOOL_MAGIC && !sp->committed);
    rc = reserve(sp, bytes, err);
    sp->failed |= rc < 0;
    return rc;
}

/* Without a word on the length, a MiB at a time. */
static int reserve_more(struct spool *sp, uint64_t end, struct err *err)
{
    return end <= sp->reserved ? 0 : reserve(sp, (end + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES, err);
}

static int append(struct spool *sp, const void *data, size_t len, struct err *err)
{
    uint64_t off = atomic_load(&sp->bytes);

    TRY(reserve_more(sp, off + len, err));
    TRY(fs_pwrite_all(sp->fd, data, len, off, sp->name, err));
    TRY(add_sums(sp, data, len, err));
    hasher_update(sp->hasher, data, len);
    atomic_store(&sp->bytes, off + len);
    return 0;
}

int spool_write(struct spool *sp, const void *data, size_t len, struct err *err)
{
    int rc;

    REQUIRE(sp->magic == SPOOL_MAGIC && !sp->committed);
    if (sp->failed)
        return err_set(err, ERR_IO, "spool/%s: an earlier write failed", sp->name);
    rc = append(sp, data, len, err);
    sp->failed = rc < 0;
    return rc;
}

uint64_t spool_bytes(const struct spool *sp)
{
    return atomic_load(&sp->bytes);
}

int spool_pread(struct spool *sp, uint64_t off, void *out, size_t cap, size_t *out_len, struct err *err)
{
    uint64_t have = atomic_load(&sp->bytes);

    *out_len = 0;
    if (off >= have)
        return 0;
    if (cap > have - off)
        cap = (size_t)(have - off);
    return fs_pread_some(sp->fd, out, cap, off, out_len, sp->name, err);
}

void spool_digest(const struct spool *sp, struct digest *out)
{
    hasher_peek(sp->hasher, out);
}

int spool_hasher_clone(const struct spool *sp, struct hasher **out, struct err *err)
{
    return hasher_clone(sp->hasher, out, err);
}

/* ---- commit --------------------------------------------------------------------------------------------------------- */

static int put_blob(struct catalog_tx *tx, const struct digest *d, uint64_t size_bytes, int64_t *out_id,
                    struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(tx->db, &q,
                  "INSERT INTO blob (digest, size, verified, original_present, created, last_read)"
                  " VALUES (?1, ?2, 1, 1, ?3, ?4)"
                  " ON CONFLICT (digest) DO UPDATE SET size = excluded.size, verified = 1, original_present = 1,"
                  " last_read = excluded.last_read RETURNING id",
                  err));
    sql_bind_digest(&q, 1, d);
    sql_bind_int(&q, 2, (int64_t)size_bytes);
    sql_bind_int(&q, 3, clock_wall_s());
    sql_bind_int(&q, 4, clock_wall_ms());
    TRY(sql_step(&q, err));
    *out_id = sql_int(&q, 0);
    return sql_run(&q, err);
}

static int put_sums(struct catalog_tx *tx, int64_t blob_id, const struct buf *sums, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(tx->db, &q,
                  "INSERT INTO original (blob_id, sums) VALUES (?1, ?2)"
                  " ON CONFLICT (blob_id) DO UPDATE SET sums = excluded.sums",
                  err));
    sql_bind_int(&q, 1, blob_id);
    sql_bind_blob(&q, 2, sums->data, sums->len);
    return sql_run(&q, err);
}

static int put_rows(struct spool *sp, const struct digest *d, int64_t repo, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;
    int64_t blob_id = 0;

    TRY(catalog_begin(sp->st, &tx, err));
    TRY(put_blob(&tx, d, spool_bytes(sp), &blob_id, err));
    TRY(put_sums(&tx, blob_id, &sp->sums, err));
    if (repo != 0)
        TRY(repo_link_blob(&tx, repo, blob_id, err));
    return catalog_commit(&tx, err);
}

/* Under digest_lock(). S2: file and directory are durable, then the record, then the row. */
static int make_original(struct spool *sp, const struct digest *d, int64_t repo, struct err *err)
{
    CLEANUP(pack_hold_end) struct pack_hold hold = PACK_HOLD_INIT;
    struct original_row row;
    struct err why = ERR_INIT;
    int rc;

    pack_hold_begin(sp->st->packs, &hold);
    if (repo != 0)
        TRY(repo_record_link(sp->st, repo, RECORD_LINK_BLOB, d, spool_bytes(sp), err));
    TRY(fs_fsync(sp->fd, sp->name, err));
    rc = original_adopt(sp->st, d, sp->name, err);
    if (rc == 0) {
        sp->committed = true; /* the name in spool/ is gone, whatever comes */
        rc = put_rows(sp, d, repo, err);
    }
    /* Without a row nobody would count or remove the file before the next start. */
    if (rc < 0 && original_row(sp->st, d, &row, &why) == ERR_NOTFOUND)
        original_remove(sp->st, d);
    if (sp->committed) { /* it is counted with the originals now */
        room_give(sp->st, sp->reserved);
        sp->reserved = 0;
    }
    return rc;
}

int spool_commit(struct spool *sp, const struct digest *d, int64_t repo, struct err *err)
{
    CLEANUP(digest_unlock) struct lease lock = LEASE_INIT;
    struct digest got;

    REQUIRE(sp->magic == SPOOL_MAGIC && !sp->committed);
    if (sp->failed)
        return err_set(err, ERR_IO, "spool/%s: an earlier write failed", sp->name);
    spool_digest(sp, &got);
    if (!digest_equal(&got, d))
        return err_set(err, ERR_CORRUPT, "%s: the bytes that came hash to %s", digest_text(d).s, digest_text(&got).s);
    TRY(digest_lock(sp->st, d, &lock, err));
    /* A file that is there already is replaced: ours has just been hashed, and that one may be why ours was fetched. */
    if (sp->mib_bytes > 0)
        TRY(end_mib(sp, err));
    return make_original(sp, d, repo, err);
}
