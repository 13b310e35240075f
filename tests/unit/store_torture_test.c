/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_torture_test.c - a store's whole life in which the n-th allocation, or the n-th system call, fails; or all
 * from the n-th on. For each n: no crash, no hang, no leak, no wrong byte; what was said to be durable is; once the fault is
 * over the same store goes on; and the next one finds a sound catalog and every byte that was there before.
 *
 * There are some ten thousand places to fail. By default a few hundred of them are tried, others on every run;
 * RECASK_TORTURE=all tries all, RECASK_TORTURE=<seed> those of a run that failed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/log.h"
#include "store/meta.h"
#include "tests/fault/torture.h"
#include "tests/unit/store_layer_util.h"

#include <dirent.h>
#include <inttypes.h>
#include <time.h>

#define RUNS_OF_A_KIND 40
#define HANG_S 60
#define BIG_BYTES ((size_t)400000)
#define SMALL_BYTES ((size_t)70000)
#define BODY "{\"schemaVersion\":2}"

/* Content that every store has before it is tortured, and what comes in meanwhile. */
static struct tar old_layer, new_layer, next_layer;
static uint8_t blob_bytes[3][SMALL_BYTES]; /* an original to keep, one to evict, one to come */
enum { KEPT, EVICTED, COMING };
static struct digest blobs[3], old_diff, old_zstd, new_diff, next_diff, new_source, next_source, manifest;
static char base_dir[64];
static uint64_t seed;
static bool all_of_them;
static char label[128]; /* of the run */

/* What a run was told: 0 means that it is durable. */
struct promises {
    bool opened, coming, layer, tag, view, evicted;
    int64_t repo;
};

/* ---- when it goes wrong ---------------------------------------------------------------------------------------------- */

static void died(int signal_number)
{
    static const char what[] = "\ndied or hung in: ";

    torture_disarm();
    if (write(STDERR_FILENO, what, sizeof(what) - 1) > 0 && write(STDERR_FILENO, label, strlen(label)) > 0)
        (void)!write(STDERR_FILENO, "\n", 1);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void watch(void)
{
    static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGALRM};

    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        signal(signals[i], died);
}

/* ---- directories -------------------------------------------------------------------------------------------------------- */

static void make_dir(char out[64])
{
    struct stat sb;

    snprintf(out, 64, "%s/recask-torture-XXXXXX",
             stat("/dev/shm", &sb) == 0 && S_ISDIR(sb.st_mode) ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(out));
}

static void remove_dir(const char *dir)
{
    (void)nftw(dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static char copy_to[64];

static int copy_entry(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    CLEANUP(buf_release) struct buf data = BUF_INIT(64u << 20);
    struct err err = ERR_INIT;
    char to[512];

    (void)ftw;
    snprintf(to, sizeof(to), "%s%s", copy_to, path + strlen(base_dir));
    if (type == FTW_D)
        return mkdir(to, 0700) < 0 && errno != EEXIST ? -1 : 0;
    CLEANUP(fd_cleanup) int fd = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, sb->st_mode & 0777);
    ASSERT_OK(fs_read_file(path, 64u << 20, &data, &err));
    ASSERT_OK(fs_write_all(fd, data.data, data.len, to, &err));
    return 0;
}

static unsigned files_in(const char *dir, const char *sub)
{
    char path[128];
    unsigned count = 0;
    struct dirent *e;

    snprintf(path, sizeof(path), "%s/%s", dir, sub);
    DIR *d = opendir(path);
    assert_non_null(d);
    while ((e = readdir(d)) != NULL)
        count += e->d_name[0] != '.';
    closedir(d);
    return count;
}

static unsigned open_fds(void)
{
    return files_in("/proc/self", "fd");
}

/* ---- a life ------------------------------------------------------------------------------------------------------------------ */

/* Steps of one life. Each may fail; whatever one of them reads must be right as far as it goes. */
static void read_some(struct store *st, const struct digest *d, enum layer_form form, const struct tar *want,
                      uint64_t off)
{
    struct err err = ERR_INIT;
    struct source *s = NULL;
    static uint8_t piece[150000];
    size_t at = (size_t)off, n;
    int rc;

    if (layer_open(st, d, form, off, UINT64_MAX, &s, &err) < 0)
        return;
    do {
        n = 0;
        rc = source_read(s, piece, sizeof(piece), &n, &err);
        if (form == LAYER_IDENTITY && (at + n > want->len || memcmp(piece, want->data + at, n) != 0)) {
            torture_disarm();
            fail_msg("%s: wrong bytes at %zu", label, at);
        }
        at += n;
    } while (rc == STEP_MORE);
    source_free(s);
    if (rc == STEP_EOF && form == LAYER_IDENTITY && at != want->len) {
        torture_disarm();
        fail_msg("%s: ends early, without an error", label);
    }
}

static int store_blob(struct store *st, int64_t repo, const void *data, size_t len, const struct digest *d)
{
    CLEANUP(spool_cleanup) struct spool *sp = NULL;
    struct err ignored = ERR_INIT, *err = &ignored;

    TRY(spool_open(st, &sp, err));
    TRY(spool_expect(sp, len, err));
    for (size_t at = 0; at < len; at += 30000)
        TRY(spool_write(sp, (const uint8_t *)data + at, len - at < 30000 ? len - at : 30000, err));
    return spool_commit(sp, d, repo, err);
}

static int store_layer(struct store *st, const struct digest *source, const struct tar *layer,
                       const struct digest *diff)
{
    CLEANUP(layer_writer_cleanup) struct layer_writer *w = NULL;
    struct err ignored = ERR_INIT, *err = &ignored;
    struct layer_result r;

    TRY(layer_writer_open(st, source, &w, err));
    for (size_t at = 0; at < layer->len; at += 90000)
        TRY(layer_writer_put(w, layer->data + at, layer->len - at < 90000 ? layer->len - at : 90000, err));
    TRY(layer_writer_commit(w, &r, err));
    return digest_equal(&r.canonical, diff) ? 0 : err_set(err, ERR_BUG, "another digest");
}

static int store_manifest(struct store *st, int64_t repo, const char *tag, struct err *err)
{
    const struct store_ref refs[] = {{REF_CONFIG, blobs[KEPT], SMALL_BYTES}, {REF_LAYER, blobs[COMING], SMALL_BYTES}};
    const struct store_manifest_put put = {.repo = repo,
                                           .tag = tag,
                                           .digest = manifest,
                                           .media_type = "application/vnd.oci.image.manifest.v1+json",
                                           .body = BODY,
                                           .len = sizeof(BODY) - 1,
                                           .refs = refs,
                                           .ref_count = ARRAY_LEN(refs)};
    return store_manifest_put(st, &put, err);
}

static int ignore_digest(void *arg, const struct digest *d, struct err *err)
{
    (void)arg, (void)d, (void)err;
    return 0;
}

static void ask_around(struct store *st, int64_t repo)
{
    CLEANUP(store_manifest_release) struct store_manifest m = {.len = 0};
    CLEANUP(free_ptr) struct digest *parents = NULL;
    struct store_source sources[2];
    struct store_stats stats;
    struct store_tag tag;
    struct store_blob blob;
    struct digest found;
    struct err err = ERR_INIT;
    size_t count;
    bool yes, more;

    (void)!store_blob_lookup(st, &old_zstd, &blob, &err);
    (void)!store_repo_has_blob(st, repo, &blobs[COMING], &yes, &err);
    (void)!store_sources(st, &old_diff, repo, sources, 2, &count, &err);
    if (store_manifest_get(st, &manifest, &m, &err) == 0 &&
        (m.len != sizeof(BODY) - 1 || memcmp(m.body, BODY, m.len) != 0))
        fail_msg("%s: a wrong manifest", label);
    (void)!store_tag_get(st, repo, "1", &tag, &err);
    (void)!store_view_get(st, &manifest, 1, &found, &err);
    (void)!store_manifest_parents(st, &manifest, &parents, &count, &err);
    (void)!store_each_pending(st, ignore_digest, NULL, &err);
    (void)!store_stats(st, &stats, &err);
    (void)!store_make_room(st, &more, &err);
    store_idle(st);
}

static struct store *life(const char *dir, struct promises *p)
{
    const struct store_options opt = {.path = dir, .quota_bytes = 64u << 20};
    struct err err = ERR_INIT;
    struct store *st = NULL;
    struct digest view;

    memset(p, 0, sizeof(*p));
    if (store_open(&opt, &st, &err) < 0) {
        if (err.msg[0] == '\0')
            fail_msg("%s: an error without words", label);
        return NULL;
    }
    p->opened = true;
    if (store_repo(st, "up", "name", &p->repo, &err) < 0)
        p->repo = 0;
    p->coming = store_blob(st, p->repo, blob_bytes[COMING], SMALL_BYTES, &blobs[COMING]) == 0;
    p->layer = store_layer(st, &new_source, &new_layer, &new_diff) == 0;
    read_some(st, &new_diff, LAYER_IDENTITY, &new_layer, 0);
    read_some(st, &old_diff, LAYER_IDENTITY, &old_layer, 0);
    read_some(st, &old_diff, LAYER_IDENTITY, &old_layer, BIG_BYTES / 2);
    read_some(st, &old_diff, LAYER_ZSTD, &old_layer, 0);
    err_clear(&err);
    p->tag = p->repo != 0 && store_manifest(st, p->repo, "1", &err) == 0;
    err_clear(&err);
    p->view = p->tag && store_view_put(st, &manifest, 1, "text/plain", "view", 4, &view, &err) == 0;
    err_clear(&err);
    p->evicted = store_evict(st, &blobs[EVICTED], &err) == 0;
    ask_around(st, p->repo);
    return st;
}

/* The fault is over, the store is still open: all works. */
static void goes_on(struct store *st, const struct promises *p)
{
    struct err err = ERR_INIT;
    int64_t repo = p->repo;

    ASSERT_OK(store_repo(st, "up", "name", &repo, &err));
    if (store_blob(st, repo, "next", 4, &next_source) < 0)
        fail_msg("%s: no original can be stored after it", label);
    if (store_layer(st, &next_source, &next_layer, &next_diff) < 0)
        fail_msg("%s: no layer can be stored after it", label);
    ASSERT_OK(store_manifest(st, repo, "2", &err));
}

/* ---- afterwards -------------------------------------------------------------------------------------------------------------- */

static void expect_original(struct store *st, const struct digest *d, const uint8_t *want, bool must)
{
    struct store_blob blob;
    struct source *s = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(store_blob_lookup(st, d, &blob, &err));
    if (!blob.present || blob.role != ROLE_ORIGINAL) {
        if (must)
            fail_msg("%s: an original is gone", label);
        return;
    }
    ASSERT_OK(original_open(st, d, 0, UINT64_MAX, &s, &err));
    struct bytes b = drain(s, 100000);
    if (b.code != 0 || b.len != SMALL_BYTES || memcmp(b.data, want, b.len) != 0)
        fail_msg("%s: an original with other bytes (%d)", label, b.code);
    free(b.data);
}

static void expect_whole_layer(struct store *st, const struct digest *diff, const struct tar *want, bool must)
{
    struct store_blob blob;
    struct err err = ERR_INIT;
    struct digest got;

    ASSERT_OK(store_blob_lookup(st, diff, &blob, &err));
    if (!blob.present) {
        if (must)
            fail_msg("%s: a layer is gone", label);
        return;
    }
    struct bytes b = read_layer(st, diff, LAYER_IDENTITY, 0, UINT64_MAX, 1 << 20);
    if (b.code != 0 || b.len != want->len || memcmp(b.data, want->data, b.len) != 0)
        fail_msg("%s: a layer with other bytes (%d)", label, b.code);
    free(b.data);
    b = read_layer(st, diff, LAYER_ZSTD, 0, UINT64_MAX, 1 << 20);
    digest_of(b.data, b.len, &got);
    if (b.code != 0 || !digest_equal(&got, &blob.zstd))
        fail_msg("%s: a zstd form with other bytes (%d)", label, b.code);
    free(b.data);
}

static void expect_exact_totals(struct store *st)
{
    expect_sound_catalog(st);
    assert_int_equal(
        sql_number(st, "SELECT count(*) FROM totals t WHERE"
                       " chunks != (SELECT count(*) FROM chunk WHERE pack_id IS NOT NULL) OR"
                       " chunk_bytes != (SELECT coalesce(sum(raw), 0) FROM chunk WHERE pack_id IS NOT NULL) OR"
                       " frame_bytes != (SELECT coalesce(sum(len), 0) FROM chunk WHERE pack_id IS NOT NULL) OR"
                       " canonical_layers != (SELECT count(*) FROM canonical WHERE present = 1) OR"
                       " original_bytes != (SELECT coalesce(sum(size), 0) FROM blob WHERE original_present = 1) OR"
                       " blobs != (SELECT count(*) FROM blob) OR manifests != (SELECT count(*) FROM manifest) OR"
                       " tags != (SELECT count(*) FROM tag)"),
        0);
    assert_int_equal(sql_number(st, "SELECT count(*) FROM chunk WHERE refs = 0"), 0);
    assert_int_equal(sql_number(st, "SELECT count(*) FROM chunk WHERE pack_id IS NULL"), 0);
    assert_int_equal(sql_number(st, "SELECT count(*) FROM hole"), 0);
}

static void check(const char *dir, const struct promises *p, bool went_on)
{
    const struct store_options opt = {.path = dir, .quota_bytes = 64u << 20};
    CLEANUP(store_manifest_release) struct store_manifest m = {.len = 0};
    struct store *st = NULL;
    struct store_tag tag;
    struct digest view;
    struct err err = ERR_INIT;

    if (store_open(&opt, &st, &err) < 0)
        fail_msg("%s: cannot be opened again: %s", label, err.msg);
    expect_exact_totals(st);
    expect_whole_layer(st, &old_diff, &old_layer, true);
    expect_whole_layer(st, &new_diff, &new_layer, p->layer);
    expect_whole_layer(st, &next_diff, &next_layer, went_on);
    expect_original(st, &blobs[KEPT], blob_bytes[KEPT], true);
    expect_original(st, &blobs[COMING], blob_bytes[COMING], p->coming);
    expect_original(st, &blobs[EVICTED], blob_bytes[EVICTED], false);
    if (p->tag) {
        ASSERT_OK(store_tag_get(st, p->repo, "1", &tag, &err));
        ASSERT_OK(store_manifest_get(st, &tag.digest, &m, &err));
        assert_memory_equal(m.body, BODY, sizeof(BODY) - 1);
    }
    if (p->view)
        ASSERT_OK(store_view_get(st, &manifest, 1, &view, &err));
    assert_int_equal(files_in(dir, "spool"), 0);
    store_close(st);
}

/* ---- the runs ---------------------------------------------------------------------------------------------------------------- */

struct kind {
    const char *name;
    unsigned calls;
    int error;
    bool onwards;
};

/* One life in which the n-th fails; n 0: none does. Returns how many there were. */
static unsigned long run(const struct kind *k, unsigned long n)
{
    struct promises p;
    unsigned fds = open_fds();

    snprintf(label, sizeof(label), "%s %lu%s", k->name, n, k->onwards ? " and all later ones" : "");
    alarm(HANG_S);
    make_dir(copy_to);
    assert_int_equal(nftw(base_dir, copy_entry, 8, FTW_PHYS), 0);
    int64_t blocks = torture_own.blocks;
    torture_arm(k->calls, n, k->error, k->onwards);
    struct store *st = life(copy_to, &p);
    torture_disarm();
    unsigned long seen = torture_own.seen;
    if (st != NULL) {
        goes_on(st, &p);
        store_close(st);
    }
    if (n != 0 && TORTURE_MEMORY && torture_own.blocks != blocks)
        fail_msg("%s: %" PRId64 " blocks of memory are left", label, torture_own.blocks - blocks);
    if (open_fds() != fds)
        fail_msg("%s: %u descriptors are left", label, open_fds() - fds);
    check(copy_to, &p, st != NULL);
    remove_dir(copy_to);
    alarm(0);
    return seen;
}

static void run_kind(const struct kind *k)
{
    unsigned long count = run(k, 0);
    unsigned long runs = all_of_them || count < RUNS_OF_A_KIND ? count : RUNS_OF_A_KIND;

    assert_true(count > 0);
    run(k, 0); /* what libraries keep for ever they have by now */
    for (unsigned long i = 0; i < runs; i++)
        run(k, runs == count ? i + 1 : i * count / runs + 1 + next_random(&seed) % (count / runs));
    print_message("%s: %lu of %lu\n", k->name, runs, count);
}

static void test_calls_fail(void **state)
{
    static const struct kind kinds[] = {
        {"EIO of a read", TORTURE_READ, EIO, false},   {"EIO of a read", TORTURE_READ, EIO, true},
        {"EIO of a write", TORTURE_WRITE, EIO, false}, {"EROFS", TORTURE_WRITE | TORTURE_NAME, EROFS, true},
        {"ENOSPC", TORTURE_WRITE, ENOSPC, false},      {"ENOSPC", TORTURE_WRITE, ENOSPC, true},
        {"EIO of a sync", TORTURE_SYNC, EIO, false},   {"EIO of a sync", TORTURE_SYNC, EIO, true},
        {"EMFILE", TORTURE_OPEN, EMFILE, false},       {"EMFILE", TORTURE_OPEN, EMFILE, true},
        {"EIO of a name", TORTURE_NAME, EIO, false},   {"EIO", TORTURE_CALL, EIO, true},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        run_kind(&kinds[i]);
}

static void test_allocations_fail(void **state)
{
    static const struct kind once = {"allocation", TORTURE_ALLOC, ENOMEM, false};
    static const struct kind onwards = {"allocation", TORTURE_ALLOC, ENOMEM, true};

    (void)state;
    if (!TORTURE_MEMORY)
        skip();
    run_kind(&once);
    run_kind(&onwards);
}

/* ---- a tail that is lost ----------------------------------------------------------------------------------------------------- */

/* Frames of a layer lie in the pack when somebody else's sync of it fails: a later sync says yes, and yet they may be gone. */
static void test_frames_lost_to_the_sync_of_another(void **state)
{
    struct layer_writer *w = NULL;
    struct promises p;
    struct err err = ERR_INIT;

    (void)state;
    snprintf(label, sizeof(label), "the sync of another");
    make_dir(copy_to);
    assert_int_equal(nftw(base_dir, copy_entry, 8, FTW_PHYS), 0);
    struct store *st = life(copy_to, &p);
    w = begin_layer(st, &new_source, next_layer.data, next_layer.len, 50000);
    torture_arm(TORTURE_SYNC, 1, EIO, false);
    ASSERT_CODE(store_tag_drop(st, p.repo, "1", &err), ERR_IO);
    torture_disarm();
    assert_int_equal(torture_own.failed, 1);
    ASSERT_OK(store_tag_drop(st, p.repo, "1", &err));
    struct layer_result r;
    ASSERT_CODE(layer_writer_commit(w, &r, &err), ERR_IO);
    layer_writer_abort(w);
    goes_on(st, &p);
    store_close(st);
    p.tag = p.view = false;
    check(copy_to, &p, true);
    remove_dir(copy_to);
}

/* ---- set-up ---------------------------------------------------------------------------------------------------------------------- */

static int set_up(void **state)
{
    struct store_options opt = {.path = base_dir, .quota_bytes = 64u << 20};
    const char *text = getenv("RECASK_TORTURE");
    struct store *st = NULL;
    struct err err = ERR_INIT;

    (void)state;
    all_of_them = text != NULL && strcmp(text, "all") == 0;
    seed = text != NULL && !all_of_them ? strtoull(text, NULL, 10) : (uint64_t)time(NULL);
    print_message("RECASK_TORTURE=%s%llu\n", all_of_them ? "all " : "", (unsigned long long)seed);
    seed = seed * 2 + 1;
    log_set_level(LOG_ERR);
    watch();
    log_event(LOG_ERR, "torture", "what the log allocates once, it has from here on");
    make_dir(base_dir);
    (void)tar_file(&old_layer, "a", BIG_BYTES, 1);
    (void)tar_file(&new_layer, "a", BIG_BYTES, 1); /* shares its chunks */
    (void)tar_file(&new_layer, "b", BIG_BYTES, 2);
    (void)tar_file(&next_layer, "c", BIG_BYTES, 3);
    digest_of(new_layer.data, new_layer.len, &new_diff);
    digest_of(next_layer.data, next_layer.len, &next_diff);
    digest_of("next", 4, &next_source);
    digest_of(BODY, sizeof(BODY) - 1, &manifest);
    for (int i = 0; i < 3; i++) {
        fill_random(blob_bytes[i], SMALL_BYTES, (uint64_t)i + 10);
        digest_of(blob_bytes[i], SMALL_BYTES, &blobs[i]);
    }
    ASSERT_OK(store_open(&opt, &st, &err));
    struct digest source = put_source(st, 1);
    new_source = put_source(st, 2);
    struct layer_result r = write_layer(st, &source, old_layer.data, old_layer.len);
    old_diff = r.canonical;
    old_zstd = r.zstd;
    put_original(st, blob_bytes[KEPT], SMALL_BYTES);
    put_original(st, blob_bytes[EVICTED], SMALL_BYTES);
    store_close(st);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove_dir(base_dir);
    tar_release(&old_layer);
    tar_release(&new_layer);
    tar_release(&next_layer);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_fail),
        cmocka_unit_test(test_allocations_fail),
        cmocka_unit_test(test_frames_lost_to_the_sync_of_another),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
