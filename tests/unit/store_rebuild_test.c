/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_rebuild_test.c - a catalog made again from packs and originals says what the old one said, but for what
 * FORMAT.md lists; and a check finds what is wrong. Case 101.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "store/rebuild.h"
#include "store/recipe.h"
#include "store/record_internal.h"
#include "tests/unit/store_rebuild_util.h"
#include "transcode/codec.h"

#include <dirent.h>

/* ---- what a catalog says --------------------------------------------------------------------------------------------------- */

/* All but what packs do not tell: ids, times, verified, views that are made, signed, wanted, refusals. */
static const char *const dumps[] = {
    "SELECT 'repo', upstream, name FROM repo ORDER BY 2, 3",
    "SELECT 'blob', hex(b.digest), b.size, b.original_present, b.canon, hex(c.digest), b.pinned > 0 FROM blob b"
    " LEFT JOIN canonical c ON c.id = b.canonical_id ORDER BY 2",
    "SELECT 'original', hex(b.digest), hex(o.sums) FROM original o JOIN blob b ON b.id = o.blob_id ORDER BY 2",
    "SELECT 'repo_blob', r.upstream, r.name, hex(b.digest) FROM repo_blob x JOIN repo r ON r.id = x.repo_id"
    " JOIN blob b ON b.id = x.blob_id ORDER BY 2, 3, 4",
    "SELECT 'canonical', hex(digest), size, hex(zdigest), zsize, level, encoder, present, chunks, pinned FROM canonical"
    " ORDER BY 2",
    "SELECT 'recipe', hex(c.digest), r.off, r.zoff, hex(k.digest) FROM recipe r JOIN canonical c ON c.id = r.canonical_id"
    " JOIN chunk k ON k.id = r.chunk_id ORDER BY 2, 3",
    "SELECT 'chunk', hex(digest), raw, kind, level, encoder, pack_id, off, len, sum, refs FROM chunk ORDER BY 2",
    "SELECT 'pack', id, state FROM pack ORDER BY id",
    "SELECT 'manifest', hex(digest), media_type, view, hex(upstream), is_index, views = 2, reason, body FROM manifest"
    " ORDER BY 2",
    "SELECT 'ref', hex(m.digest), r.pos, r.role, hex(r.digest), r.size FROM manifest_ref r"
    " JOIN manifest m ON m.id = r.manifest_id ORDER BY 2, 3",
    "SELECT 'repo_manifest', r.upstream, r.name, hex(m.digest) FROM repo_manifest x JOIN repo r ON r.id = x.repo_id"
    " JOIN manifest m ON m.id = x.manifest_id ORDER BY 2, 3, 4",
    "SELECT 'tag', r.upstream, r.name, t.name, hex(m.digest) FROM tag t JOIN repo r ON r.id = t.repo_id"
    " JOIN manifest m ON m.id = t.manifest_id ORDER BY 2, 3, 4",
    "SELECT 'pin', r.upstream, r.name, p.reference, p.by_digest, hex(p.digest) FROM pin p JOIN repo r ON r.id = p.repo_id"
    " ORDER BY 2, 3, 4",
    "SELECT 'pinned', hex(digest) FROM pinned ORDER BY 2",
    "SELECT 'view', hex(u.digest), v.view, hex(m.digest) FROM view v JOIN manifest u ON u.id = v.upstream_id"
    " JOIN manifest m ON m.id = v.manifest_id ORDER BY 2, 3",
    "SELECT 'derived', hex(m.digest), hex(u.digest), d.view FROM derived d JOIN manifest u ON u.id = d.upstream_id"
    " JOIN manifest m ON m.id = d.manifest_id ORDER BY 2, 3, 4",
    "SELECT 'totals', chunks, chunk_bytes, frame_bytes, canonical_layers, canonical_bytes, original_bytes, replayable, blobs,"
    " manifests, tags, pins FROM totals",
};

/* Without `pack`: ends are not told; a pack that was cut or compacted has another. */
static void dump(struct store *st, struct buf *out)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(catalog_read_begin(st, &db, &err));
    for (size_t i = 0; i < ARRAY_LEN(dumps); i++) {
        CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

        ASSERT_OK(sql_query(db, &q, dumps[i], &err));
        while (sql_step(&q, &err) == SQL_ROW) {
            for (int c = 0; c < sqlite3_column_count(q.stmt); c++)
                ASSERT_OK(buf_printf(out, &err, "%s ", sql_is_null(&q, c) ? "NULL" : sql_text(&q, c)));
            ASSERT_OK(buf_str(out, "\n", &err));
        }
    }
}

/* Closes, checks, rebuilds, checks, opens. */
static struct store_rebuild_result rebuild(struct fixture *f, struct heard *h)
{
    struct store_rebuild_result r;
    struct err err = ERR_INIT;

    close_store(f);
    ASSERT_OK(store_rebuild(f->dir, hear, h, &r, &err));
    expect_clean(f);
    open_store(f);
    return r;
}

static void remove_catalog(struct fixture *f, const char *suffix)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/catalog.db%s", f->dir, suffix);
    (void)unlink(path);
}

static void test_same_rows(void **state)
{
    struct fixture *f = *state;
    CLEANUP(buf_release) struct buf before = BUF_INIT(16 << 20);
    CLEANUP(buf_release) struct buf after = BUF_INIT(16 << 20);
    struct heard h = {.lines = 0};
    struct store_rebuild_result r;
    struct filled x;

    fill(f->st, &x);
    reopen_store(f); /* what nobody uses goes */
    dump(f->st, &before);
    close_store(f);
    expect_clean(f);
    open_store(f);
    r = rebuild(f, &h);
    assert_string_equal(h.all, "");
    assert_true(r.layers == 2 && r.absent_layers == 1 && r.damaged == 0 && r.unknown == 0 && r.tags == 3 &&
                r.pins == 2);
    assert_true(strncmp(r.old, "catalog.db.damaged-", 19) == 0);
    reopen_store(f);
    dump(f->st, &after);
    assert_true(before.len > 2000);
    assert_string_equal(after.data, before.data);
    expect_layer(f->st, &x.layers[0], x.data[0], TEXT_BYTES);
    /* And again, of a store that lost its catalog. */
    close_store(f);
    remove_catalog(f, "");
    {
        struct store_rebuild_result again;
        struct err err = ERR_INIT;

        ASSERT_OK(store_rebuild(f->dir, hear, &h, &again, &err));
        assert_string_equal(again.old, "");
    }
    open_store(f);
    buf_reset(&after);
    dump(f->st, &after);
    assert_string_equal(after.data, before.data);
    filled_release(&x);
}

/* ---- damage ------------------------------------------------------------------------------------------------------------------ */

static void append_record(struct fixture *f, enum pack_record type, const struct digest *key, const void *data,
                          size_t len)
{
    struct pack_loc loc;
    struct err err = ERR_INIT;

    ASSERT_OK(pack_append(f->st->packs, type, key, NULL, data, len, &loc, &err));
    ASSERT_OK(pack_sync(f->st->packs, &err));
}

static int open_pack(struct fixture *f, int64_t id)
{
    char path[128];
    int fd;

    (void)snprintf(path, sizeof(path), "%s/packs/%s", f->dir, pack_name(id).s);
    fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void test_damage(void **state)
{
    struct fixture *f = *state;
    struct heard h = {.lines = 0};
    struct store_rebuild_result r;
    struct store_blob blob;
    struct err err = ERR_INIT;
    struct filled x;
    char path[256];
    struct stat sb;
    int fd;

    fill(f->st, &x);
    flip_frame_bit(f, &x.layers[1].canonical, TEXT_BYTES - 1); /* not shared with layer 0 */
    append_record(f, (enum pack_record)77, &x.image, "news", 4);
    close_store(f);
    fd = open_pack(f, 1);
    assert_int_equal(pwrite(fd, "X", 1, 5), 1); /* the file header; the seed is whole */
    assert_int_equal(fstat(fd, &sb), 0);
    assert_int_equal(pwrite(fd, "RREC torn", 9, (sb.st_size + 7) & ~7), 9);
    (void)close(fd);
    (void)snprintf(path, sizeof(path), "%s/originals/%.2s/%s", f->dir, digest_hex(&x.blobs[0]).s,
                   digest_hex(&x.blobs[0]).s);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "X", 1, 3), 1);
    (void)close(fd);
    r = rebuild(f, &h);
    assert_non_null(strstr(h.all, "gets a new one"));
    assert_non_null(strstr(h.all, "is damaged (type 1"));
    assert_non_null(strstr(h.all, digest_text(&x.blobs[0]).s));
    assert_int_equal(h.lines, 3);
    assert_true(r.damaged == 2 && r.unknown == 1 && r.layers == 1 && r.absent_layers == 2);
    ASSERT_OK(store_blob_lookup(f->st, &x.layers[1].canonical, &blob, &err));
    assert_true(blob.role == ROLE_CANONICAL && !blob.present && blob.canonical_bytes == TEXT_BYTES);
    ASSERT_OK(store_blob_lookup(f->st, &x.layers[1].zstd, &blob, &err));
    assert_int_equal(blob.role, ROLE_ZSTD);
    ASSERT_OK(store_blob_lookup(f->st, &x.blobs[0], &blob, &err));
    assert_true(!blob.present || blob.role == ROLE_CANONICAL);
    expect_layer(f->st, &x.layers[0], x.data[0], TEXT_BYTES);
    /* It works: the lost layer is written again, and its zstd form is what it was. */
    {
        struct digest source = put_blob(f->st, repo_of(f->st, "library/b"), "original 1");
        struct layer_result again = write_layer(f->st, &source, x.data[1], TEXT_BYTES);

        assert_true(digest_equal(&again.zstd, &x.layers[1].zstd));
    }
    close_store(f);
    expect_clean(f);
    open_store(f);
    filled_release(&x);
}

/* A header whose seed is lost too: nothing of the pack is left, and that is said. */
static void test_lost_pack(void **state)
{
    struct fixture *f = *state;
    struct heard h = {.lines = 0};
    struct store_rebuild_result r;
    struct filled x;
    int fd;

    fill(f->st, &x);
    close_store(f);
    fd = open_pack(f, 1);
    assert_int_equal(pwrite(fd, "\1\2\3\4\5\6\7\10", 8, 24), 8);
    (void)close(fd);
    r = rebuild(f, &h);
    assert_non_null(strstr(h.all, "nothing in it can be told apart"));
    assert_true(r.packs == 0 && r.tags == 0 && r.damaged == 1 && r.originals == 3);
    filled_release(&x);
}

/* Another frame of a chunk, later and good: the layer's zstd form has a published digest, which the earlier one gives. */
static void test_frames_that_differ(void **state)
{
    struct fixture *f = *state;
    CLEANUP(frame_ctx_cleanup) struct frame_ctx *ctx = NULL;
    struct heard h = {.lines = 0};
    struct store_rebuild_result r;
    struct err err = ERR_INIT;
    struct filled x;

    fill(f->st, &x);
    ASSERT_OK(frame_ctx_new(&ctx, &err));
    {
        CLEANUP(catalog_read_end) struct sql_db *db = NULL;
        CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
        CLEANUP(free_ptr) uint8_t *frame = malloc(frame_bound(1 << 20));
        struct frame_info info;
        struct digest key;
        struct pack_loc loc;
        size_t raw, len;

        ASSERT_OK(catalog_read_begin(f->st, &db, &err));
        ASSERT_OK(sql_query(db, &q,
                            "SELECT k.digest, k.raw FROM recipe r JOIN chunk k ON k.id = r.chunk_id JOIN canonical c"
                            " ON c.id = r.canonical_id WHERE c.digest = ?1 AND r.off = 0",
                            &err));
        sql_bind_digest(&q, 1, &x.layers[0].canonical);
        assert_int_equal(sql_step(&q, &err), SQL_ROW);
        ASSERT_OK(sql_digest(&q, 0, &key, &err));
        raw = (size_t)sql_int(&q, 1);
        ASSERT_OK(frame_encode(ctx, 9, x.data[0], raw, frame, frame_bound(1 << 20), &len, &info, &err));
        sql_done(&q);
        catalog_read_end(&db);
        ASSERT_OK(pack_append(
            f->st->packs, PACK_FRAME, &key,
            &(struct pack_meta){
                .raw_bytes = (uint32_t)raw, .kind = (uint16_t)info.kind, .level = 9, .encoder = info.encoder},
            frame, len, &loc, &err));
        ASSERT_OK(pack_sync(f->st->packs, &err));
    }
    sql_change(f->st, "UPDATE meta SET value = value"); /* any commit writes down the pack's end */
    r = rebuild(f, &h);
    assert_string_equal(h.all, "");
    assert_int_equal(r.layers, 2);
    expect_layer(f->st, &x.layers[0], x.data[0], TEXT_BYTES);
    expect_sound_catalog(f->st);
    filled_release(&x);
}

/* A view that names a zstd form which no longer exists: the catalog had deleted it, its record is still there. */
static void test_stale_view(void **state)
{
    struct fixture *f = *state;
    struct heard h = {.lines = 0};
    struct err err = ERR_INIT;
    struct digest d, stale;
    struct filled x;

    fill(f->st, &x);
    stale = put_view(f->st, &x.image, 2, "{\"another form of the layer\"}");
    (void)rebuild(f, &h);
    ASSERT_CODE(store_view_get(f->st, &x.image, 2, &d, &err), ERR_NOTFOUND);
    ASSERT_OK(store_view_get(f->st, &x.image, 1, &d, &err));
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM manifest WHERE instr(body, 'another form') > 0"), 1);
    (void)stale;
    filled_release(&x);
}

/* Copies of older records behind newer ones, as compaction leaves them. */
static void test_origin_decides(void **state)
{
    struct fixture *f = *state;
    CLEANUP(buf_release) struct buf b = BUF_INIT(1 << 20);
    struct heard h = {.lines = 0};
    struct err err = ERR_INIT;
    struct digest was = named("{\"was\"}"), got;
    struct pack_loc loc;
    struct store_tag tag;
    struct filled x;

    fill(f->st, &x);
    ASSERT_OK(record_put_tag(&b,
                             &(struct record_tag){.at = 4000000000,
                                                  .upstream = record_text("docker.io"),
                                                  .name = record_text("library/a"),
                                                  .tag = record_text("moved")},
                             &err));
    ASSERT_OK(pack_append(f->st->packs, PACK_TAG, &was, &(struct pack_meta){.origin_pack = 1, .origin_off = 64}, b.data,
                          b.len, &loc, &err));
    buf_reset(&b);
    ASSERT_OK(record_put_view(&b, &(struct record_view){.view = 1, .derived = named("{\"canonical, before\"}")}, &err));
    ASSERT_OK(pack_append(f->st->packs, PACK_VIEW, &x.image, &(struct pack_meta){.origin_pack = 1, .origin_off = 64},
                          b.data, b.len, &loc, &err));
    ASSERT_OK(pack_sync(f->st->packs, &err));
    (void)rebuild(f, &h);
    ASSERT_OK(store_tag_get(f->st, repo_of(f->st, "library/a"), "moved", &tag, &err));
    assert_true(digest_equal(&tag.digest, &x.image));
    ASSERT_OK(store_view_get(f->st, &x.image, 1, &got, &err));
    assert_true(digest_equal(&got, &(struct digest){0}) == false);
    {
        struct digest want = named("{\"canonical\"}");

        assert_true(digest_equal(&got, &want));
    }
    filled_release(&x);
}

/* ---- refusals ------------------------------------------------------------------------------------------------------------------ */

static void expect_refused(struct fixture *f, int code, const char *words)
{
    struct store_rebuild_result r;
    struct err err = ERR_INIT;
    int rc = store_rebuild(f->dir, NULL, NULL, &r, &err);

    if (rc != code || strstr(err.msg, words) == NULL)
        fail_msg("%d: %s", rc, err.msg);
}

static void test_refuses(void **state)
{
    struct fixture *f = *state;
    struct store_check_result r;
    struct err err = ERR_INIT;
    uint8_t h[PACK_FILE_HEADER_BYTES], saved[PACK_FILE_HEADER_BYTES];
    struct filled x;
    uint64_t sum;
    int fd;

    fill(f->st, &x);
    expect_refused(f, ERR_BUSY, "is in use by process"); /* opened by us */
    ASSERT_CODE(store_check(f->dir, NULL, NULL, &r, &err), ERR_BUSY);
    sql_change(f->st, "PRAGMA user_version = 99");
    close_store(f);
    expect_refused(f, ERR_UNSUPPORTED, "has format 99");
    ASSERT_CODE(store_check(f->dir, NULL, NULL, &r, &err), ERR_UNSUPPORTED);
    remove_catalog(f, "");
    fd = open_pack(f, 1);
    assert_int_equal(pread(fd, saved, sizeof(saved), 0), sizeof(saved));
    memcpy(h, saved, sizeof(h));
    for (int at = 8; at <= 12; at += 4) { /* version, reserved flags */
        h[at] = 2;
        sum = sum64(h, 56);
        memcpy(h + 56, &sum, 8);
        assert_int_equal(pwrite(fd, h, sizeof(h), 0), sizeof(h));
        expect_refused(f, ERR_UNSUPPORTED, at == 8 ? "has format 2 flags 0," : "has format 1 flags 0x2,");
        memcpy(h, saved, sizeof(h));
    }
    assert_int_equal(pwrite(fd, saved, sizeof(saved), 0), sizeof(saved));
    (void)close(fd);
    {
        struct store_rebuild_result ok;

        ASSERT_OK(store_rebuild(f->dir, NULL, NULL, &ok, &err));
    }
    open_store(f);
    append_record(f, PACK_TAG, &x.image, "\2\0\0\0\0\0\0\0", 8);
    sql_change(f->st, "UPDATE meta SET value = value");
    close_store(f);
    expect_refused(f, ERR_UNSUPPORTED, "version 2 flags 0, this recask knows version 1");
    open_store(f); /* nothing was changed */
    filled_release(&x);
}

static void test_reserved_flag(void **state)
{
    struct fixture *f = *state;
    struct filled x;

    fill(f->st, &x);
    append_record(f, PACK_VIEW, &x.image, "\1\0\0\0\4\0\0\0", 8);
    sql_change(f->st, "UPDATE meta SET value = value");
    close_store(f);
    expect_refused(f, ERR_UNSUPPORTED, "version 1 flags 0x4");
    open_store(f);
    filled_release(&x);
}

static void write_file(struct fixture *f, const char *name, const void *data, size_t len, int flags, off_t cut)
{
    char path[128];
    int fd;

    (void)snprintf(path, sizeof(path), "%s/%s", f->dir, name);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, data, len, 0), len);
    if (cut >= 0)
        assert_int_equal(ftruncate(fd, cut), 0);
    (void)close(fd);
}

static void expect_open_refused(struct fixture *f)
{
    struct store *st = NULL;
    struct err err = ERR_INIT;
    char want[160];

    (void)snprintf(want, sizeof(want), "\"recask fsck --rebuild --store %s\"", f->dir);
    assert_int_equal(store_open(&f->opt, &st, &err), ERR_CORRUPT);
    if (strstr(err.msg, want) == NULL || strstr(err.msg, "/catalog.db") == NULL)
        fail_msg("%s", err.msg);
}

static void test_open_says_what_to_do(void **state)
{
    struct fixture *f = *state;
    struct heard h = {.lines = 0};
    struct store_rebuild_result r;
    struct store_check_result c;
    struct err err = ERR_INIT;
    struct filled x;

    fill(f->st, &x);
    close_store(f);
    for (int how = 0; how < 4; how++) {
        char garbage[8192];

        memset(garbage, 'x', sizeof(garbage));
        remove_catalog(f, how == 0 ? "" : "-none");
        if (how == 1)
            write_file(f, "catalog.db", garbage, sizeof(garbage), O_TRUNC, -1);
        if (how == 2)
            write_file(f, "catalog.db", "SQLite", 6, 0, 65536); /* its last pages are gone */
        if (how == 3)
            write_file(f, "catalog.db", "SQLite", 6, 0, 0);
        expect_open_refused(f);
        memset(&h, 0, sizeof(h));
        ASSERT_OK(store_check(f->dir, hear, &h, &c, &err));
        assert_true(c.findings > 0);
        ASSERT_OK(store_rebuild(f->dir, hear, &h, &r, &err));
        assert_int_equal(r.layers, 2);
        expect_clean(f);
        open_store(f);
        expect_layer(f->st, &x.layers[0], x.data[0], TEXT_BYTES);
        close_store(f);
    }
    open_store(f);
    filled_release(&x);
}

/* A crash behind the point of no return: the next open has the new catalog, and the old one's log is not taken for its own. */
static void test_interrupted(void **state)
{
    struct fixture *f = *state;
    char from[128], to[128];
    struct filled x;

    fill(f->st, &x);
    close_store(f);
    (void)snprintf(from, sizeof(from), "%s/catalog.db", f->dir);
    (void)snprintf(to, sizeof(to), "%s/catalog.db.rebuilt", f->dir);
    for (int step = 0; step < 2; step++) {
        DIR *dir;
        struct dirent *e;
        int kept = 0;

        assert_int_equal(rename(from, to), 0);
        if (step == 0)
            write_file(f, "catalog.db", "an old one", 10, O_TRUNC, -1);
        write_file(f, "catalog.db-wal", "a log", 5, O_TRUNC, -1);
        expect_clean(f);
        open_store(f);
        expect_layer(f->st, &x.layers[0], x.data[0], TEXT_BYTES);
        close_store(f);
        assert_int_equal(access(to, F_OK), -1);
        dir = opendir(f->dir);
        assert_non_null(dir);
        while ((e = readdir(dir)) != NULL)
            kept += strncmp(e->d_name, "catalog.db.damaged-", 19) == 0;
        (void)closedir(dir);
        assert_int_equal(kept, 2);
    }
    open_store(f);
    filled_release(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_same_rows, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damage, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lost_pack, setup, teardown),
        cmocka_unit_test_setup_teardown(test_frames_that_differ, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stale_view, setup, teardown),
        cmocka_unit_test_setup_teardown(test_origin_decides, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refuses, setup, teardown),
        cmocka_unit_test_setup_teardown(test_reserved_flag, setup, teardown),
        cmocka_unit_test_setup_teardown(test_open_says_what_to_do, setup, teardown),
        cmocka_unit_test_setup_teardown(test_interrupted, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
