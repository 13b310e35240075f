/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_layer_util.h - a store in a fresh directory, originals and layers in it, and looks behind the
 * scenes. Include after cmocka's headers.
 */
#pragma once

#include "base/fsutil.h"
#include "store/catalog_internal.h"
#include "store/layer.h"
#include "store/pack_internal.h"
#include "store/spool.h"
#include "tests/unit/store_tar.h"

#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#define ASSERT_OK(expr)                                                                                                \
    do {                                                                                                               \
        if ((expr) < 0)                                                                                                \
            fail_msg("%s: %s", #expr, err.msg);                                                                        \
    } while (0)

#define ASSERT_CODE(expr, want)                                                                                        \
    do {                                                                                                               \
        int code_ = (expr);                                                                                            \
        if (code_ != (want))                                                                                           \
            fail_msg("%s = %d (%s)", #expr, code_, err.msg);                                                           \
        err_clear(&err);                                                                                               \
    } while (0)

struct fixture {
    char dir[64];
    struct store_options opt;
    struct store *st;
};

static inline void open_store(struct fixture *f)
{
    struct err err = ERR_INIT;

    ASSERT_OK(store_open(&f->opt, &f->st, &err));
}

static inline void reopen_store(struct fixture *f)
{
    store_close(f->st);
    f->st = NULL;
    open_store(f);
}

static inline int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/recask-layer-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    f->opt = (struct store_options){.path = f->dir};
    open_store(f);
    *state = f;
    return 0;
}

static inline int remove_entry(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    (void)sb, (void)type, (void)ftw;
    return remove(path);
}

static inline int teardown(void **state)
{
    struct fixture *f = *state;

    store_close(f->st);
    (void)nftw(f->dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    free(f);
    return 0;
}

static inline struct digest put_original(struct store *st, const void *data, size_t len)
{
    CLEANUP(spool_cleanup) struct spool *sp = NULL;
    struct err err = ERR_INIT;
    struct digest d;

    digest_of(data, len, &d);
    ASSERT_OK(spool_open(st, &sp, &err));
    ASSERT_OK(spool_write(sp, data, len, &err));
    ASSERT_OK(spool_commit(sp, &d, 0, &err));
    return d;
}

/* An original that stands for whatever a test's layer was compressed to. */
static inline struct digest put_source(struct store *st, int id)
{
    char text[32];
    int len = snprintf(text, sizeof(text), "original %d", id);

    return put_original(st, text, (size_t)len);
}

/* Opens a writer and puts all in pieces of up to piece_max bytes. */
static inline struct layer_writer *begin_layer(struct store *st, const struct digest *source, const void *data,
                                               size_t len, size_t piece_max)
{
    struct layer_writer *w = NULL;
    struct err err = ERR_INIT;
    uint64_t state = len * 2 + 1;

    ASSERT_OK(layer_writer_open(st, source, &w, &err));
    for (size_t pos = 0; pos < len;) {
        size_t n = 1 + (size_t)(next_random(&state) % piece_max);

        if (n > len - pos)
            n = len - pos;
        ASSERT_OK(layer_writer_put(w, (const uint8_t *)data + pos, n, &err));
        pos += n;
    }
    return w;
}

static inline struct layer_result write_layer(struct store *st, const struct digest *source, const void *data,
                                              size_t len)
{
    CLEANUP(layer_writer_cleanup) struct layer_writer *w = begin_layer(st, source, data, len, 300000);
    struct layer_result r;
    struct err err = ERR_INIT;
    struct digest want;

    ASSERT_OK(layer_writer_commit(w, &r, &err));
    digest_of(data, len, &want);
    assert_true(digest_equal(&r.canonical, &want));
    assert_int_equal(r.canonical_bytes, len);
    return r;
}

struct bytes {
    uint8_t *data;
    size_t len;
    int code; /* 0: came to its end */
};

/* Reads a source to its end, or its error, in reads of cap bytes, into a piece of just that size: ASan sees overruns.
 * Frees the source. */
static inline struct bytes drain(struct source *s, size_t cap)
{
    struct bytes b = {.data = malloc(1)};
    uint8_t *piece = malloc(cap);
    size_t room = 1;
    struct err err = ERR_INIT;
    int rc;

    assert_non_null(piece);
    do {
        size_t n = 0;

        rc = source_read(s, piece, cap, &n, &err);
        if (b.len + n > room) {
            room = 2 * (b.len + n);
            b.data = realloc(b.data, room);
        }
        assert_non_null(b.data);
        memcpy(b.data + b.len, piece, n);
        b.len += n;
    } while (rc == STEP_MORE);
    free(piece);
    b.code = rc == STEP_EOF ? 0 : rc;
    source_free(s);
    return b;
}

static inline struct bytes read_layer(struct store *st, const struct digest *canonical, enum layer_form form,
                                      uint64_t off, uint64_t len, size_t cap)
{
    struct source *s = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(layer_open(st, canonical, form, off, len, &s, &err));
    return drain(s, cap);
}

static inline void expect_layer(struct store *st, const struct layer_result *r, const void *data, size_t len)
{
    struct bytes b = read_layer(st, &r->canonical, LAYER_IDENTITY, 0, UINT64_MAX, 1 << 20);

    assert_int_equal(b.code, 0);
    assert_int_equal(b.len, len);
    assert_memory_equal(b.data, data, len);
    free(b.data);
}

static inline int64_t sql_number(struct store *st, const char *sql)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct err err = ERR_INIT;

    ASSERT_OK(catalog_read_begin(st, &db, &err));
    ASSERT_OK(sql_query(db, &q, sql, &err));
    assert_int_equal(sql_step(&q, &err), SQL_ROW);
    return sql_int(&q, 0);
}

static inline void sql_change(struct store *st, const char *sql)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;
    struct err err = ERR_INIT;

    ASSERT_OK(catalog_begin(st, &tx, &err));
    ASSERT_OK(sql_exec(tx.db, sql, &err));
    ASSERT_OK(catalog_commit(&tx, &err));
}

/* C1, and that recipes leave no gap. */
static inline void expect_sound_catalog(struct store *st)
{
    assert_int_equal(sql_number(st, "SELECT count(*) FROM chunk c WHERE refs != (SELECT count(*) FROM recipe r"
                                    " WHERE r.chunk_id = c.id)"),
                     0);
    assert_int_equal(sql_number(st, "SELECT count(*) FROM recipe WHERE chunk_id NOT IN (SELECT id FROM chunk)"), 0);
    assert_int_equal(sql_number(st, "SELECT count(*) FROM canonical a WHERE present = 1 AND (size, zsize, chunks) !="
                                    " (SELECT sum(c.raw), sum(c.len), count(*) FROM recipe r JOIN chunk c"
                                    "  ON c.id = r.chunk_id WHERE r.canonical_id = a.id)"),
                     0);
}

/* Turns one bit of the frame of the chunk that holds uncompressed offset `off` of the layer. */
static inline void flip_frame_bit(struct fixture *f, const struct digest *canonical, uint64_t off)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    CLEANUP(fd_cleanup) int fd = -1;
    struct err err = ERR_INIT;
    char path[192];
    uint8_t byte;

    ASSERT_OK(catalog_read_begin(f->st, &db, &err));
    ASSERT_OK(sql_query(db, &q,
                        "SELECT c.pack_id, c.off + c.len / 2 FROM recipe r JOIN chunk c ON c.id = r.chunk_id"
                        " JOIN canonical a ON a.id = r.canonical_id WHERE a.digest = ?1 AND r.off <= ?2"
                        " ORDER BY r.off DESC LIMIT 1",
                        &err));
    sql_bind_digest(&q, 1, canonical);
    sql_bind_int(&q, 2, (int64_t)off);
    assert_int_equal(sql_step(&q, &err), SQL_ROW);
    (void)snprintf(path, sizeof(path), "%s/packs/%s", f->dir, pack_name(sql_int(&q, 0)).s);
    fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, sql_int(&q, 1)), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, sql_int(&q, 1)), 1);
}
