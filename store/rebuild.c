/* SPDX-License-Identifier: Apache-2.0
 * store/rebuild.c - the walks over packs and originals, and the new catalog's way to its place.
 *
 * It is made as catalog.db.new, in short transactions without fsync, and gets its fsync at the end: until it has its final
 * name nobody looks at it.
 */
#include "base/clock.h"
#include "base/fsutil.h"
#include "store/catalog_internal.h"
#include "store/chunk_row_internal.h"
#include "store/le_internal.h"
#include "store/original_internal.h"
#include "store/rebuild_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#define NEW_NAME "catalog.db.new"
#define BATCH 20000     /* records in one transaction */
#define SKIP_BYTES 4096 /* over what the disk cannot read */
#define PAYLOAD_LIMIT_BYTES (PACK_PAYLOAD_MAX_BYTES + 1)

void rebuild_lost(struct rebuild *r, const char *fmt, ...)
{
    char text[ERR_MSG_BYTES];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    r->out->damaged++;
    offline_say(&r->off, "%s", text);
}

/* ---- packs ----------------------------------------------------------------------------------------------------------- */

enum pass { PASS_THINGS = 0, PASS_NAMES };

static bool of_pass(enum pass pass, const struct pack_header *h, bool *out_known)
{
    *out_known = true;
    switch (h->type) {
    case PACK_FRAME:
    case PACK_RECIPE:
    case PACK_LAYER:
    case PACK_MANIFEST:
    case PACK_BLOB:
        return pass == PASS_THINGS;
    case PACK_TAG:
    case PACK_REPO_BLOB:
    case PACK_VIEW:
    case PACK_PIN:
        return pass == PASS_NAMES;
    }
    *out_known = false;
    return pass == PASS_THINGS;
}

static int take(struct rebuild *r, const struct found *f, struct err *err)
{
    switch (f->h.type) {
    case PACK_FRAME:
        return rebuild_frame(r, f, err);
    case PACK_RECIPE:
    case PACK_LAYER:
        return rebuild_recipe(r, f, err);
    case PACK_MANIFEST:
        return rebuild_manifest(r, f, err);
    case PACK_BLOB:
        return rebuild_link(r, f, err);
    case PACK_TAG:
        return rebuild_tag(r, f, err);
    case PACK_REPO_BLOB:
        return rebuild_repo_blob(r, f, err);
    case PACK_VIEW:
        return rebuild_view(r, f, err);
    case PACK_PIN:
        return rebuild_pin(r, f, err);
    }
    r->out->unknown++;
    return 0;
}

struct walk {
    struct rebuild *r;
    struct pack_walk w;
    enum pass pass;
    uint64_t end; /* behind the last good record */
    unsigned in_batch;
};

static int batch(struct walk *k, struct err *err)
{
    if (++k->in_batch % BATCH != 0)
        return 0;
    TRY(sql_exec(k->r->db, "COMMIT", err));
    return sql_exec(k->r->db, "BEGIN", err);
}

/* The record at hand: its payload is looked at in the pass that it is of. */
static int one_record(struct walk *k, const struct pack_header *h, struct err *err)
{
    struct rebuild *r = k->r;
    const struct pack_name name = pack_name(k->w.pack);
    struct err why = ERR_INIT;
    bool good = false;
    bool known;
    int rc;

    if (!of_pass(k->pass, h, &known))
        return 0;
    TRY(pack_walk_payload(&k->w, h, &r->payload, &good, err));
    if (!good) {
        rebuild_lost(r, "packs/%s: the record at %" PRIu64 " is damaged (type %d, key %s)", name.s, k->w.at, h->type,
                     digest_text(&h->key).s);
        pack_walk_reject(&k->w);
        return 0;
    }
    k->end = k->w.next;
    rc = take(r,
              &(struct found){.h = *h,
                              .pack = k->w.pack,
                              .off = k->w.at + PACK_RECORD_HEADER_BYTES,
                              .data = (const uint8_t *)r->payload.data},
              &why);
    if (rc == ERR_CORRUPT) {
        rebuild_lost(r, "packs/%s: the record at %" PRIu64 " is not taken: %s (type %d, key %s)", name.s, k->w.at,
                     why.msg, h->type, digest_text(&h->key).s);
        return batch(k, err);
    }
    if (rc < 0) {
        *err = why;
        return rc == ERR_UNSUPPORTED ? err_wrap(err, "packs/%s at %" PRIu64, name.s, k->w.at) : rc;
    }
    return batch(k, err);
}

static void step_over(struct walk *k, const struct err *why)
{
    uint64_t from = k->w.next > k->w.at ? k->w.next : k->w.at;

    rebuild_lost(k->r, "packs/%s: cannot be read at %" PRIu64 ": %s", pack_name(k->w.pack).s, from, why->msg);
    k->w.next = (from / SKIP_BYTES + 1) * SKIP_BYTES;
    k->w.window_len = 0;
}

static int walk_records(struct walk *k, struct err *err)
{
    for (;;) {
        uint64_t before = k->w.next;
        struct err why = ERR_INIT;
        struct pack_header h;
        int rc = pack_walk_next(&k->w, &h, &why);

        if (rc == 0)
            return 0;
        if (rc > 0) {
            rc = one_record(k, &h, &why);
            if (k->pass == PASS_NAMES && k->w.next > k->end)
                k->end = k->w.next;
        }
        if (rc == ERR_IO) {
            step_over(k, &why);
        } else if (rc < 0) {
            *err = why;
            return rc;
        }
        if (k->w.next > before)
            offline_progress(&k->r->off, k->w.next - before);
    }
}

/* A damaged file header may still have its seed: then records are found with it. */
static int salvage_header(struct rebuild *r, int64_t id, struct pack_walk *w, const struct err *why, bool *out_good,
                          struct err *err)
{
    uint8_t h[PACK_FILE_HEADER_BYTES];
    struct pack_walk probe;
    struct pack_header ignored;
    size_t got;
    int rc;

    TRY(packs_pread(r->off.packs, id, 0, h, sizeof(h), &got, err));
    *w = (struct pack_walk){.packs = r->off.packs, .pack = id, .next = PACK_FILE_HEADER_BYTES};
    w->seed = got == sizeof(h) ? le_get64(h + 24) : 0;
    probe = *w;
    TRY(rc = pack_walk_next(&probe, &ignored, err));
    *out_good = rc == 1;
    if (*out_good)
        offline_say(&r->off, "%s; its records can be read all the same, and it gets a new one", why->msg);
    else
        rebuild_lost(r, "%s: nothing in it can be told apart without it, and the next start removes the file",
                     why->msg);
    return 0;
}

static int repair_header(struct rebuild *r, const struct pack_walk *w, struct err *err)
{
    uint8_t h[PACK_FILE_HEADER_BYTES];
    struct pack *p = NULL;
    int rc;

    pack_file_encode(w->pack, w->seed, r->now_s, h);
    TRY(pack_pin(r->off.packs, w->pack, &p, err));
    rc = fs_pwrite_all(p->fd, h, sizeof(h), 0, pack_name(w->pack).s, err);
    if (rc == 0)
        rc = fs_fsync(p->fd, pack_name(w->pack).s, err);
    pack_unpin(r->off.packs, p, false);
    return rc;
}

static int put_pack(struct rebuild *r, int64_t id, uint64_t end, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(r->db, &q,
                  "INSERT INTO pack (id, end) VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET end = max(end, ?2)", err));
    sql_bind_int(&q, 1, id);
    sql_bind_int(&q, 2, (int64_t)end);
    return sql_run(&q, err);
}

static int walk_pack(struct rebuild *r, int64_t id, enum pass pass, struct err *err)
{
    struct walk k = {.r = r, .pass = pass, .end = PACK_FILE_HEADER_BYTES};
    struct err why = ERR_INIT;
    bool good = true;
    int rc = pack_walk_open(r->off.packs, id, &k.w, &why);

    if (rc == ERR_CORRUPT) {
        if (pass == PASS_NAMES)
            return 0; /* the first walk could not do anything with it */
        TRY(salvage_header(r, id, &k.w, &why, &good, err));
        if (good)
            TRY(repair_header(r, &k.w, err));
    } else if (rc < 0) {
        *err = why;
        return rc;
    }
    if (!good)
        return 0;
    TRY(sql_exec(r->db, "BEGIN", err));
    TRY(put_pack(r, id, PACK_FILE_HEADER_BYTES, err));
    TRY(walk_records(&k, err));
    TRY(put_pack(r, id, k.end, err));
    return sql_exec(r->db, "COMMIT", err);
}

static int walk_packs(struct rebuild *r, enum pass pass, struct err *err)
{
    for (size_t i = 0; i < r->off.packs->count; i++)
        TRY(walk_pack(r, r->off.packs->items[i]->id, pass, err));
    return 0;
}

/* ---- originals --------------------------------------------------------------------------------------------------------- */

struct original_sums {
    uint64_t bytes;
    struct digest digest;
    struct buf sums;
};

static int read_original(struct rebuild *r, int fd, uint8_t *data, struct original_sums *o, struct err *err)
{
    CLEANUP(hasher_cleanup) struct hasher *h = NULL;

    TRY(hasher_new(&h, err));
    for (;;) {
        uint8_t sum[8];
        size_t len = 0, got;

        do {
            TRY(fs_pread_some(fd, data + len, ORIGINAL_BLOCK_BYTES - len, o->bytes + len, &got, "originals", err));
            len += got;
        } while (got > 0 && len < ORIGINAL_BLOCK_BYTES);
        if (len == 0)
            break;
        hasher_update(h, data, len);
        le_put64(sum, sum64(data, len));
        TRY(buf_add(&o->sums, sum, sizeof(sum), err));
        o->bytes += len;
        offline_progress(&r->off, len);
    }
    hasher_peek(h, &o->digest);
    return 0;
}

static int put_original(struct rebuild *r, const struct digest *d, const struct original_sums *o, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    CLEANUP(sql_done) struct sql_query s = SQL_QUERY_INIT;
    int64_t id = 0;

    TRY(rebuild_blob_row(r, d, 0, &id, err));
    TRY(sql_query(r->db, &q, "UPDATE blob SET size = ?2, verified = 1, original_present = 1 WHERE id = ?1", err));
    sql_bind_int(&q, 1, id);
    sql_bind_int(&q, 2, (int64_t)o->bytes);
    TRY(sql_run(&q, err));
    TRY(sql_query(r->db, &s, "INSERT INTO original (blob_id, sums) VALUES (?1, ?2)", err));
    sql_bind_int(&s, 1, id);
    sql_bind_blob(&s, 2, o->sums.data, o->sums.len);
    return sql_run(&s, err);
}

static int take_original(void *arg, int dir_fd, const struct digest *d, struct err *err)
{
    CLEANUP(fd_cleanup) int fd = openat(dir_fd, digest_hex(d).s, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    CLEANUP(free_ptr) uint8_t *data = malloc(ORIGINAL_BLOCK_BYTES);
    struct original_sums o = {.sums = BUF_INIT(ORIGINAL_SUMS_MAX_BYTES)};
    struct rebuild *r = arg;
    struct err why = ERR_INIT;
    int rc;

    if (data == NULL)
        return err_nomem(err, ORIGINAL_BLOCK_BYTES);
    rc = fd < 0 ? err_sys(&why, errno, "open") : read_original(r, fd, data, &o, &why);
    if (rc == 0 && digest_equal(&o.digest, d))
        rc = put_original(r, d, &o, err);
    else if (rc == 0)
        rebuild_lost(r, "original %s: its bytes hash to %s; the next start removes the file", digest_text(d).s,
                     digest_text(&o.digest).s);
    else if (rc == ERR_IO || rc == ERR_LIMIT || rc == ERR_NOTFOUND)
        rebuild_lost(r, "original %s: %s; the next start removes the file", digest_text(d).s, why.msg);
    else
        *err = why;
    buf_release(&o.sums);
    return rc == ERR_IO || rc == ERR_LIMIT || rc == ERR_NOTFOUND ? 0 : rc;
}

static int add_bytes(void *arg, int dir_fd, const struct digest *d, struct err *err)
{
    struct rebuild *r = arg;
    struct stat sb;

    (void)err;
    if (fstatat(dir_fd, digest_hex(d).s, &sb, AT_SYMLINK_NOFOLLOW) == 0)
        r->off.total_bytes += (uint64_t)sb.st_size;
    return 0;
}

/* ---- the new catalog ------------------------------------------------------------------------------------------------------ */

static const char tables[] =
    "CREATE TEMP TABLE alt (chunk_id INTEGER, pack INTEGER, off INTEGER, len INTEGER, sum INTEGER, kind INTEGER,"
    " level INTEGER, encoder INTEGER);"
    "CREATE INDEX temp.alt_chunk ON alt (chunk_id);"
    "CREATE TEMP TABLE seen_layer (canonical_id INTEGER PRIMARY KEY, origin_pack INTEGER, origin_off INTEGER,"
    " pack INTEGER, off INTEGER, len INTEGER, sum INTEGER, absent INTEGER);"
    "CREATE TEMP TABLE seen_tag (repo_id INTEGER, name TEXT, origin_pack INTEGER, origin_off INTEGER, gone INTEGER,"
    " digest BLOB, at INTEGER, PRIMARY KEY (repo_id, name)) WITHOUT ROWID;"
    "CREATE TEMP TABLE seen_pin (repo_id INTEGER, name TEXT, origin_pack INTEGER, origin_off INTEGER, gone INTEGER,"
    " digest BLOB, at INTEGER, PRIMARY KEY (repo_id, name)) WITHOUT ROWID;"
    "CREATE TEMP TABLE seen_view (upstream_id INTEGER, view INTEGER, origin_pack INTEGER, origin_off INTEGER,"
    " manifest_id INTEGER, PRIMARY KEY (upstream_id, view)) WITHOUT ROWID;";

static void remove_new(struct rebuild *r)
{
    (void)unlinkat(r->off.dir_fd, NEW_NAME, 0);
    (void)unlinkat(r->off.dir_fd, NEW_NAME "-journal", 0);
    (void)unlinkat(r->off.dir_fd, NEW_NAME "-wal", 0);
    (void)unlinkat(r->off.dir_fd, NEW_NAME "-shm", 0);
}

static int open_new(struct rebuild *r, struct err *err)
{
    CLEANUP(free_ptr) char *path = NULL;

    remove_new(r);
    TRY(str_printf(&path, err, "%s/" NEW_NAME, r->off.path));
    TRY(sql_open(path, SQL_READ_WRITE, &r->db, err));
    TRY(schema_prepare(r->db, path, true, err));
    TRY(sql_exec(r->db, "PRAGMA journal_mode = DELETE; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536;", err));
    return sql_exec(r->db, tables, err);
}

static int count(struct rebuild *r, const char *sql, uint64_t *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(r->db, &q, sql, err));
    TRY(sql_step(&q, err));
    *out = (uint64_t)sql_int(&q, 0);
    return 0;
}

static int count_all(struct rebuild *r, struct err *err)
{
    struct store_rebuild_result *o = r->out;

    TRY(count(r, "SELECT count(*) FROM pack", &o->packs, err));
    TRY(count(r, "SELECT chunks FROM totals", &o->chunks, err));
    TRY(count(r, "SELECT canonical_layers FROM totals", &o->layers, err));
    TRY(count(r, "SELECT count(*) FROM canonical WHERE present = 0", &o->absent_layers, err));
    TRY(count(r, "SELECT count(*) FROM original", &o->originals, err));
    TRY(count(r, "SELECT count(*) FROM manifest", &o->manifests, err));
    TRY(count(r, "SELECT count(*) FROM tag", &o->tags, err));
    TRY(count(r, "SELECT count(*) FROM view", &o->views, err));
    TRY(count(r, "SELECT count(*) FROM pin", &o->pins, err));
    return count(r, "SELECT count(*) FROM repo", &o->repositories, err);
}

static int fill(struct rebuild *r, struct err *err)
{
    for (size_t i = 0; i < r->off.packs->count; i++)
        r->off.total_bytes += 2 * r->off.packs->items[i]->end; /* two walks, though the second reads little */
    TRY(offline_each_original(&r->off, add_bytes, r, err));
    TRY(walk_packs(r, PASS_THINGS, err));
    TRY(walk_packs(r, PASS_NAMES, err));
    TRY(sql_exec(r->db, "BEGIN", err));
    TRY(offline_each_original(&r->off, take_original, r, err));
    TRY(sql_exec(r->db, "COMMIT", err));
    TRY(rebuild_layers(r, err));
    TRY(rebuild_names(r, err));
    return count_all(r, err);
}

/* From here on it is the catalog: complete, on disk, under a name that the next open knows. */
static int publish(struct rebuild *r, struct err *err)
{
    CLEANUP(fd_cleanup) int fd = -1;
    struct stat old, sb;
    bool adopted;

    sql_close(r->db);
    r->db = NULL;
    fd = openat(r->off.dir_fd, NEW_NAME, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return err_sys(err, errno, NEW_NAME);
    if (fchmod(fd, 0600) < 0)
        return err_sys(err, errno, NEW_NAME);
    TRY(fs_fsync(fd, NEW_NAME, err));
    TRY(fs_rename_durable(r->off.dir_fd, NEW_NAME, r->off.dir_fd, CATALOG_REBUILT, err));
    if (fstatat(r->off.dir_fd, "catalog.db", &old, AT_SYMLINK_NOFOLLOW) == 0 && fstat(fd, &sb) == 0)
        (void)snprintf(r->out->old, sizeof(r->out->old), "catalog.db.damaged-%" PRId64, (int64_t)sb.st_mtime);
    return catalog_adopt_rebuilt(r->off.dir_fd, &adopted, err);
}

/* Damage is why we are here; a newer format is not damage. */
static int refuse_newer(struct rebuild *r, struct err *err)
{
    CLEANUP(free_ptr) char *path = NULL;
    struct sql_db *db = NULL;
    struct err why = ERR_INIT;
    int rc;

    TRY(str_printf(&path, err, "%s/catalog.db", r->off.path));
    if (sql_open(path, SQL_READ_ONLY, &db, &why) < 0)
        return 0;
    rc = schema_check(db, path, SCHEMA_OR_OLDER, &why);
    sql_close(db);
    if (rc == ERR_UNSUPPORTED)
        *err = why;
    return rc == ERR_UNSUPPORTED ? rc : 0;
}

static int run(struct rebuild *r, struct err *err)
{
    bool adopted;
    int rc;

    TRY(catalog_adopt_rebuilt(r->off.dir_fd, &adopted, err));
    TRY(refuse_newer(r, err));
    TRY(frame_ctx_new(&r->frames, err));
    r->raw = malloc(CHUNK_MAX_BYTES);
    r->frame = malloc(chunk_frame_max_bytes());
    if (r->raw == NULL || r->frame == NULL)
        return err_nomem(err, chunk_frame_max_bytes());
    rc = open_new(r, err);
    if (rc == 0)
        rc = fill(r, err);
    if (rc == 0)
        rc = publish(r, err);
    sql_close(r->db);
    if (rc < 0)
        remove_new(r);
    return rc;
}

int store_rebuild(const char *path, store_report_fn *fn, void *arg, struct store_rebuild_result *out, struct err *err)
{
    struct rebuild r = {
        .payload = BUF_INIT(PAYLOAD_LIMIT_BYTES), .now_s = clock_wall_s(), .now_ms = clock_wall_ms(), .out = out};
    int rc;

    *out = (struct store_rebuild_result){.packs = 0};
    TRY(offline_open(path, fn, arg, &r.off, err));
    rc = run(&r, err);
    frame_ctx_free(r.frames);
    buf_release(&r.payload);
    free(r.raw);
    free(r.frame);
    offline_close(&r.off);
    return rc;
}
