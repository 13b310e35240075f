/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_pack_test.c - packs: records, crashes, damage, several writers; and the payloads of metadata records.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/fsutil.h"
#include "store/le_internal.h"
#include "store/pack_internal.h"
#include "store/record_internal.h"
#include "transcode/codec.h"

#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define ASSERT_OK(expr)                                                                                                \
    do {                                                                                                               \
        if ((expr) < 0)                                                                                                \
            fail_msg("%s: %s", #expr, err.msg);                                                                        \
    } while (0)

#define PACK_BYTES (UINT64_C(64) << 10)

struct dir {
    char path[64];
    int fd;
    struct packs *ps;
};

static int setup(void **state)
{
    struct dir *d = calloc(1, sizeof(*d));
    struct err err = ERR_INIT;

    assert_non_null(d);
    (void)snprintf(d->path, sizeof(d->path), "/tmp/recask-pack-XXXXXX");
    assert_non_null(mkdtemp(d->path));
    d->fd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(d->fd >= 0);
    ASSERT_OK(packs_open(d->fd, PACK_BYTES, &d->ps, &err));
    *state = d;
    return 0;
}

static int remove_entry(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    (void)sb, (void)type, (void)ftw;
    return remove(path);
}

static int teardown(void **state)
{
    struct dir *d = *state;

    packs_close(d->ps);
    (void)close(d->fd);
    (void)nftw(d->path, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    free(d);
    return 0;
}

/* As a new process finds it: the ends that `known` names are committed, all else is a crash's leftovers. */
static unsigned reopen(struct dir *d, const struct pack_extent *known, size_t count)
{
    struct err err = ERR_INIT;
    unsigned removed = 0;

    packs_close(d->ps);
    ASSERT_OK(packs_open(d->fd, PACK_BYTES, &d->ps, &err));
    for (size_t i = 0; i < count; i++)
        ASSERT_OK(packs_trim(d->ps, known[i].pack, known[i].end, &err));
    ASSERT_OK(packs_remove_unknown(d->ps, &removed, &err));
    return removed;
}

static void fill(uint8_t *data, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        data[i] = (uint8_t)(seed >> 56);
    }
}

static struct pack_loc append(struct dir *d, uint64_t seed, size_t len)
{
    static _Thread_local uint8_t data[100000];
    struct pack_meta meta = {.raw_bytes = (uint32_t)len * 2, .kind = 1, .level = -3, .encoder = 10504};
    struct err err = ERR_INIT;
    struct pack_loc loc;
    struct digest key;

    fill(data, len, seed);
    digest_of(data, len, &key);
    ASSERT_OK(pack_append(d->ps, PACK_FRAME, &key, &meta, data, len, &loc, &err));
    return loc;
}

static void expect_read(struct dir *d, const struct pack_loc *loc, uint64_t seed)
{
    static _Thread_local uint8_t want[100000], got[100000];
    struct err err = ERR_INIT;

    fill(want, loc->len, seed);
    ASSERT_OK(pack_read(d->ps, loc, got, &err));
    assert_memory_equal(got, want, loc->len);
}

static void test_append_and_read(void **state)
{
    struct dir *d = *state;
    struct pack_loc locs[40];
    struct err err = ERR_INIT;

    for (unsigned i = 0; i < 40; i++)
        locs[i] = append(d, i, 1 + i * 401);
    ASSERT_OK(pack_sync(d->ps, &err));
    for (unsigned i = 0; i < 40; i++) {
        assert_int_equal(locs[i].off % 8, 0);
        expect_read(d, &locs[i], i);
    }
    assert_true(locs[39].pack > locs[0].pack); /* 320 KB do not fit into one of 64 KiB */
    assert_true(packs_count(d->ps) >= 5);
    assert_true(packs_disk_bytes(d->ps) >= 320000);
}

static void test_record_larger_than_a_pack(void **state)
{
    struct dir *d = *state;
    struct pack_loc small = append(d, 1, 10);
    struct pack_loc big = append(d, 2, 90000);
    struct pack_loc after = append(d, 3, 10);

    assert_true(small.pack < big.pack && big.pack < after.pack);
    expect_read(d, &big, 2);
}

static int count_record(void *arg, const struct pack_header *r, uint64_t payload_off, const uint8_t *payload,
                        struct err *err)
{
    struct digest key;
    unsigned *count = arg;

    (void)err;
    digest_of(payload, r->len, &key);
    assert_true(digest_equal(&key, &r->key));
    assert_int_equal(r->type, PACK_FRAME);
    assert_int_equal(r->meta.raw_bytes, r->len * 2);
    assert_int_equal(r->meta.level, -3);
    assert_int_equal(r->meta.encoder, 10504);
    assert_int_equal(payload_off % 8, 0);
    ++*count;
    return 0;
}

static unsigned scan(struct dir *d, int64_t pack)
{
    struct err err = ERR_INIT;
    unsigned count = 0;

    ASSERT_OK(pack_scan(d->ps, pack, count_record, &count, &err));
    return count;
}

static void patch(struct dir *d, int64_t pack, uint64_t off, uint8_t mask)
{
    CLEANUP(fd_cleanup) int fd = openat(d->fd, pack_name(pack).s, O_RDWR | O_CLOEXEC);
    uint8_t byte;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)off), 1);
    byte ^= mask;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)off), 1);
}

static void cut(struct dir *d, int64_t pack, uint64_t len)
{
    CLEANUP(fd_cleanup) int fd = openat(d->fd, pack_name(pack).s, O_RDWR | O_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)len), 0);
}

/* S6 */
static void test_a_flipped_bit(void **state)
{
    struct dir *d = *state;
    struct pack_loc a = append(d, 1, 500);
    struct pack_loc b = append(d, 2, 500);
    struct pack_loc c = append(d, 3, 500);
    struct err err = ERR_INIT;
    uint8_t got[500];

    assert_int_equal(scan(d, a.pack), 3);
    patch(d, b.pack, b.off + 250, 1);
    assert_int_equal(pack_read(d->ps, &b, got, &err), ERR_CORRUPT);
    expect_read(d, &a, 1);
    expect_read(d, &c, 3);
    assert_int_equal(scan(d, a.pack), 2); /* a scan steps over it */
    patch(d, c.pack, c.off - PACK_RECORD_HEADER_BYTES + 9, 1);
    expect_read(d, &c, 3); /* the payload is whole */
    assert_int_equal(scan(d, a.pack), 1);
}

static void test_missing_and_short_packs(void **state)
{
    struct dir *d = *state;
    struct pack_loc a = append(d, 1, 500);
    struct pack_loc none = {.pack = 77, .off = 64, .len = 4};
    struct pack_extent known;
    struct err err = ERR_INIT;
    uint8_t got[500];

    assert_int_equal(pack_read(d->ps, &none, got, &err), ERR_NOTFOUND);
    err_clear(&err);
    known = (struct pack_extent){.pack = a.pack, .end = pack_end(d->ps, a.pack)};
    cut(d, a.pack, a.off + 100);
    assert_int_equal(pack_read(d->ps, &a, got, &err), ERR_CORRUPT);
    err_clear(&err);
    assert_int_equal(reopen(d, &known, 1), 0);
    assert_int_equal(pack_read(d->ps, &a, got, &err), ERR_CORRUPT);
    err_clear(&err);
    (void)append(d, 9, 100); /* behind the committed end, not into the gap */
    assert_int_equal(pack_read(d->ps, &a, got, &err), ERR_CORRUPT);
    err_clear(&err);
    assert_int_equal(unlinkat(d->fd, pack_name(a.pack).s, 0), 0);
    packs_close(d->ps);
    ASSERT_OK(packs_open(d->fd, PACK_BYTES, &d->ps, &err));
    assert_int_equal(packs_trim(d->ps, a.pack, known.end, &err), ERR_NOTFOUND);
    err_clear(&err);
    assert_int_equal(pack_read(d->ps, &a, got, &err), ERR_NOTFOUND);
    assert_true(append(d, 1, 10).pack > a.pack); /* ids are not used twice */
}

/* Killed between pack_sync() and the SQL commit. */
static void test_uncommitted_tail_is_cut(void **state)
{
    struct dir *d = *state;
    struct pack_loc a = append(d, 1, 1000);
    struct pack_extent *ends = NULL;
    size_t count = 0;
    struct pack_loc b;
    struct pack_loc other;
    struct err err = ERR_INIT;

    ASSERT_OK(pack_sync(d->ps, &err));
    ASSERT_OK(packs_unrecorded(d->ps, &ends, &count, &err));
    assert_int_equal(count, 1);
    packs_recorded(d->ps, ends, count);
    b = append(d, 2, 1000);
    other = append(d, 3, 70000); /* in a pack of its own */
    ASSERT_OK(pack_sync(d->ps, &err));
    assert_true(b.pack == a.pack && other.pack != a.pack);
    assert_int_equal(reopen(d, ends, count), 1); /* the other pack is unknown */
    expect_read(d, &a, 1);
    assert_int_equal(pack_end(d->ps, a.pack), ends[0].end);
    assert_int_equal(scan(d, a.pack), 1);
    b = append(d, 4, 800); /* goes where the tail was */
    assert_int_equal(b.pack, a.pack);
    expect_read(d, &b, 4);
    assert_int_equal(scan(d, a.pack), 2);
    free(ends);
}

static void test_extents_are_told_once(void **state)
{
    struct dir *d = *state;
    struct pack_extent *ends = NULL;
    size_t count = 0;
    struct err err = ERR_INIT;

    ASSERT_OK(packs_unrecorded(d->ps, &ends, &count, &err));
    assert_true(count == 0 && ends == NULL);
    (void)append(d, 1, 60000);
    (void)append(d, 2, 60000);
    ASSERT_OK(packs_unrecorded(d->ps, &ends, &count, &err));
    assert_int_equal(count, 0); /* a power cut may take them yet, and whoever commits now is somebody else */
    ASSERT_OK(pack_sync(d->ps, &err));
    ASSERT_OK(packs_unrecorded(d->ps, &ends, &count, &err));
    assert_int_equal(count, 2);
    packs_recorded(d->ps, ends, count);
    free(ends);
    ASSERT_OK(packs_unrecorded(d->ps, &ends, &count, &err));
    assert_int_equal(count, 0);
}

static void test_punch(void **state)
{
    struct dir *d = *state;
    struct pack_loc a = append(d, 1, 50000);
    struct pack_loc b = append(d, 2, 3000);
    struct err err = ERR_INIT;
    uint8_t got[50000];
    uint64_t before;

    ASSERT_OK(pack_sync(d->ps, &err));
    before = packs_disk_bytes(d->ps);
    ASSERT_OK(pack_punch(d->ps, &a, &err));
    ASSERT_OK(pack_punch(d->ps, &a, &err)); /* twice is harmless */
    assert_true(packs_disk_bytes(d->ps) <= before - 40000);
    assert_int_equal(pack_read(d->ps, &a, got, &err), ERR_CORRUPT);
    expect_read(d, &b, 2);
    assert_int_equal(scan(d, a.pack), 1);
}

/* A layer can hold the bytes of a whole pack: they are no records, also where a scan looks at every offset. */
static void test_forged_records_are_none(void **state)
{
    struct dir *d = *state;
    struct pack_header forged = {.type = PACK_TAG, .len = 8};
    uint8_t data[4096] = {0};
    struct err err = ERR_INIT;
    struct digest key;
    struct pack_loc loc;
    struct pack_loc a = append(d, 1, 100);

    for (size_t off = 0; off + 80 <= sizeof(data); off += 80)
        pack_record_encode(&forged, 0, off, data + off); /* the seed is not known to whoever made the layer */
    digest_of(data, sizeof(data), &key);
    ASSERT_OK(pack_append(d->ps, PACK_FRAME, &key,
                          &(struct pack_meta){.raw_bytes = 8192, .level = -3, .encoder = 10504}, data, sizeof(data),
                          &loc, &err));
    assert_int_equal(scan(d, a.pack), 2);
    patch(d, loc.pack, loc.off + 4000, 1); /* now the scan goes through the payload */
    assert_int_equal(scan(d, a.pack), 1);
}

static void test_newer_format_is_refused(void **state)
{
    struct dir *d = *state;
    struct pack_loc a = append(d, 1, 100);
    struct pack_extent known = {.pack = a.pack, .end = pack_end(d->ps, a.pack)};
    uint8_t h[PACK_FILE_HEADER_BYTES];
    struct err err = ERR_INIT;
    uint64_t seed;
    int fd = openat(d->fd, pack_name(a.pack).s, O_RDWR | O_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, h, sizeof(h), 0), sizeof(h));
    ASSERT_OK(pack_file_decode(h, a.pack, &seed, &err));
    assert_int_equal(pack_file_decode(h, a.pack + 1, &seed, &err), ERR_CORRUPT);
    err_clear(&err);
    h[40] ^= 1;
    assert_int_equal(pack_file_decode(h, a.pack, &seed, &err), ERR_CORRUPT);
    err_clear(&err);
    h[40] ^= 1;
    h[8] = 2;
    le_put64(h + 56, sum64(h, 56));
    assert_int_equal(pwrite(fd, h, sizeof(h), 0), sizeof(h));
    (void)close(fd);
    (void)reopen(d, &known, 1);
    assert_int_equal(pack_read(d->ps, &a, h, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "format 2"));
    assert_non_null(strstr(err.msg, "format 1"));
    assert_true(append(d, 2, 10).pack > a.pack); /* nothing is appended to what is not understood */
}

static void test_a_damaged_file_header_costs_no_frame(void **state)
{
    struct dir *d = *state;
    struct pack_loc a = append(d, 1, 100);
    struct pack_extent known = {.pack = a.pack, .end = pack_end(d->ps, a.pack)};

    patch(d, a.pack, 30, 1);
    (void)reopen(d, &known, 1);
    expect_read(d, &a, 1);
    assert_true(append(d, 2, 10).pack > a.pack);
}

static void test_more_packs_than_descriptors(void **state)
{
    struct dir *d = *state;
    struct pack_loc locs[300];
    struct err err = ERR_INIT;

    for (unsigned i = 0; i < 300; i++) {
        locs[i] = append(d, i, 65000);
        if (i % 50 == 49)
            ASSERT_OK(pack_sync(d->ps, &err));
    }
    for (unsigned i = 0; i < 300; i++)
        expect_read(d, &locs[i], i);
}

/* 0: none. SIGXFSZ is ignored, so that a write beyond it fails with EFBIG as a full disk does with ENOSPC. */
static void limit_file_size(rlim_t bytes)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes != 0 ? bytes : limit.rlim_max;
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void test_no_space(void **state)
{
    struct dir *d = *state;
    struct pack_loc a = append(d, 1, 100);
    uint64_t end = pack_end(d->ps, a.pack);
    uint8_t data[30000];
    struct err err = ERR_INIT;
    struct digest key;
    struct pack_loc loc;

    fill(data, sizeof(data), 5);
    digest_of(data, sizeof(data), &key);
    limit_file_size(20000);
    assert_true(pack_append(d->ps, PACK_FRAME, &key, NULL, data, sizeof(data), &loc, &err) < 0);
    limit_file_size(0);
    assert_int_equal(pack_end(d->ps, a.pack), end); /* the range was the last: given back */
    assert_int_equal(append(d, 3, 200).pack, a.pack);
    assert_int_equal(scan(d, a.pack), 2);
    expect_read(d, &a, 1);
}

struct appender {
    struct dir *d;
    unsigned id;
    struct pack_loc locs[200];
};

static void *append_many(void *arg)
{
    struct appender *a = arg;
    struct err err = ERR_INIT;

    for (unsigned i = 0; i < 200; i++) {
        a->locs[i] = append(a->d, a->id * 1000 + i, 50 + (i * 37 + a->id * 11) % 2000);
        if (i % 20 == 19 && pack_sync(a->d->ps, &err) < 0)
            abort();
        if (i % 3 == 0)
            expect_read(a->d, &a->locs[i / 2], a->id * 1000 + i / 2);
    }
    return NULL;
}

static void test_several_writers(void **state)
{
    struct dir *d = *state;
    static struct appender a[6];
    pthread_t threads[6];
    unsigned found = 0;

    for (unsigned i = 0; i < 6; i++) {
        a[i] = (struct appender){.d = d, .id = i};
        assert_int_equal(pthread_create(&threads[i], NULL, append_many, &a[i]), 0);
    }
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (unsigned i = 0; i < 6; i++)
        for (unsigned k = 0; k < 200; k++)
            expect_read(d, &a[i].locs[k], i * 1000 + k);
    for (int64_t pack = 1; pack <= (int64_t)packs_count(d->ps); pack++)
        found += scan(d, pack);
    assert_int_equal(found, 1200);
}

/* ---- payloads ------------------------------------------------------------------------------------------------------- */

/* Each truncation, and each longer one, is refused. */
#define EXPECT_EXACT(get, type, b)                                                                                     \
    do {                                                                                                               \
        type out_;                                                                                                     \
        for (size_t cut_ = 0; cut_ < (b).len; cut_++) {                                                                \
            struct err e_ = ERR_INIT;                                                                                  \
            uint8_t *copy_ = malloc(cut_ + 1); /* of its own, so that a sanitizer sees each byte too many */           \
            assert_non_null(copy_);                                                                                    \
            memcpy(copy_, (b).data, cut_);                                                                             \
            assert_int_equal(get(copy_, cut_, &out_, &e_), ERR_CORRUPT);                                               \
            free(copy_);                                                                                               \
        }                                                                                                              \
        struct err e2_ = ERR_INIT;                                                                                     \
        assert_int_equal(get((const uint8_t *)(b).data, (b).len + 1, &out_, &e2_), ERR_CORRUPT); /* its NUL */         \
        err_clear(&e2_);                                                                                               \
        (b).data[0] = 2;                                                                                               \
        assert_int_equal(get((const uint8_t *)(b).data, (b).len, &out_, &e2_), ERR_UNSUPPORTED);                       \
        err_clear(&e2_);                                                                                               \
        (b).data[0] = 1;                                                                                               \
        (b).data[7] = 1; /* an unknown flag */                                                                         \
        assert_int_equal(get((const uint8_t *)(b).data, (b).len, &out_, &e2_), ERR_UNSUPPORTED);                       \
    } while (0)

static void expect_text(struct record_text t, const char *want)
{
    assert_int_equal(t.len, strlen(want));
    assert_memory_equal(t.s, want, t.len);
}

static void test_manifest_record(void **state)
{
    CLEANUP(buf_release) struct buf b = BUF_INIT(1 << 20);
    struct store_ref refs[3] = {{.role = REF_CONFIG, .size_bytes = 7},
                                {.role = REF_LAYER, .size_bytes = UINT64_C(1) << 40},
                                {.role = REF_CHILD, .size_bytes = 0}};
    struct record_manifest m = {.is_index = true,
                                .view = 2,
                                .media_type = record_text("application/x"),
                                .never = record_text(NULL),
                                .refs = refs,
                                .ref_count = 3,
                                .body = "{\"a\":1}",
                                .len = 7};
    struct record_manifest got;
    struct err err = ERR_INIT;

    (void)state;
    digest_of("u", 1, &m.upstream);
    digest_of("r", 1, &refs[1].digest);
    ASSERT_OK(record_put_manifest(&b, &m, &err));
    ASSERT_OK(record_get_manifest((const uint8_t *)b.data, b.len, &got, &err));
    assert_true(got.is_index);
    assert_int_equal(got.view, 2);
    assert_true(digest_equal(&got.upstream, &m.upstream));
    expect_text(got.media_type, "application/x");
    expect_text(got.never, "");
    assert_int_equal(got.ref_count, 3);
    for (size_t i = 0; i < 3; i++) {
        struct store_ref ref;

        ASSERT_OK(record_ref_at(&got, i, &ref, &err));
        assert_int_equal(ref.role, refs[i].role);
        assert_int_equal(ref.size_bytes, refs[i].size_bytes);
        assert_true(digest_equal(&ref.digest, &refs[i].digest));
    }
    expect_text((struct record_text){.s = got.body, .len = got.len}, "{\"a\":1}");
    EXPECT_EXACT(record_get_manifest, struct record_manifest, b);
}

static void test_small_records(void **state)
{
    CLEANUP(buf_release) struct buf lb = BUF_INIT(4096);
    CLEANUP(buf_release) struct buf tb = BUF_INIT(4096);
    CLEANUP(buf_release) struct buf vb = BUF_INIT(4096);
    struct record_link l = {.kind = RECORD_LINK_MANIFEST,
                            .size_bytes = 9,
                            .upstream = record_text("docker.io"),
                            .name = record_text("library/alpine")};
    struct record_tag t = {.dropped = true,
                           .at = -5,
                           .upstream = record_text("docker.io"),
                           .name = record_text("a/b"),
                           .tag = record_text("v1")};
    struct record_view v = {.view = 1};
    struct err err = ERR_INIT;
    struct record_link got_l;
    struct record_tag got_t;
    struct record_view got_v;

    (void)state;
    digest_of("d", 1, &v.derived);
    ASSERT_OK(record_put_link(&lb, &l, &err));
    ASSERT_OK(record_put_tag(&tb, &t, &err));
    ASSERT_OK(record_put_view(&vb, &v, &err));
    ASSERT_OK(record_get_link((const uint8_t *)lb.data, lb.len, &got_l, &err));
    ASSERT_OK(record_get_tag((const uint8_t *)tb.data, tb.len, &got_t, &err));
    ASSERT_OK(record_get_view((const uint8_t *)vb.data, vb.len, &got_v, &err));
    assert_int_equal(got_l.kind, RECORD_LINK_MANIFEST);
    assert_int_equal(got_l.size_bytes, 9);
    expect_text(got_l.upstream, "docker.io");
    expect_text(got_l.name, "library/alpine");
    assert_true(got_t.dropped && got_t.at == -5);
    expect_text(got_t.name, "a/b");
    expect_text(got_t.tag, "v1");
    assert_true(got_v.view == 1 && digest_equal(&got_v.derived, &v.derived));
    EXPECT_EXACT(record_get_link, struct record_link, lb);
    EXPECT_EXACT(record_get_tag, struct record_tag, tb);
    EXPECT_EXACT(record_get_view, struct record_view, vb);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_append_and_read),
        T(test_record_larger_than_a_pack),
        T(test_a_flipped_bit),
        T(test_missing_and_short_packs),
        T(test_uncommitted_tail_is_cut),
        T(test_extents_are_told_once),
        T(test_punch),
        T(test_forged_records_are_none),
        T(test_newer_format_is_refused),
        T(test_a_damaged_file_header_costs_no_frame),
        T(test_more_packs_than_descriptors),
        T(test_no_space),
        T(test_several_writers),
        cmocka_unit_test(test_manifest_record),
        cmocka_unit_test(test_small_records),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
