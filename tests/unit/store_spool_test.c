/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_spool_test.c - spools: followers, failures, commits; and what a crash leaves of them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "store/files_internal.h"
#include "tests/unit/store_layer_util.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

static uint8_t *random_bytes(size_t len, uint64_t seed)
{
    uint8_t *data = malloc(len);

    assert_non_null(data);
    fill_random(data, len, seed);
    return data;
}

static unsigned files_in(const struct fixture *f, const char *name)
{
    char path[128];
    struct dirent *e;
    unsigned count = 0;
    DIR *dir;

    (void)snprintf(path, sizeof(path), "%s/%s", f->dir, name);
    dir = opendir(path);
    assert_non_null(dir);
    while ((e = readdir(dir)) != NULL)
        count += e->d_name[0] != '.';
    (void)closedir(dir);
    return count;
}

static void original_path(const struct fixture *f, const struct digest *d, char *out, size_t cap)
{
    (void)snprintf(out, cap, "%s/originals/%s/%s", f->dir, original_dir(d).s, digest_hex(d).s);
}

static bool exists(const struct fixture *f, const struct digest *d)
{
    char path[192];

    original_path(f, d, path, sizeof(path));
    return access(path, F_OK) == 0;
}

static void test_write_read_commit(void **state)
{
    CLEANUP(spool_cleanup) struct spool *sp = NULL;
    struct fixture *f = *state;
    struct err err = ERR_INIT;
    struct store_blob b;
    struct digest d, got;
    char piece[8];
    size_t n;

    digest_of("hello world", 11, &d);
    ASSERT_OK(spool_open(f->st, &sp, &err));
    ASSERT_OK(spool_pread(sp, 0, piece, sizeof(piece), &n, &err));
    assert_int_equal(n, 0);
    ASSERT_OK(spool_write(sp, "hello", 5, &err));
    ASSERT_OK(spool_pread(sp, 2, piece, sizeof(piece), &n, &err));
    assert_int_equal(n, 3); /* never past what was written */
    assert_memory_equal(piece, "llo", 3);
    ASSERT_OK(spool_write(sp, " world", 6, &err));
    assert_int_equal(spool_bytes(sp), 11);
    spool_digest(sp, &got);
    assert_true(digest_equal(&got, &d));
    ASSERT_OK(store_blob_lookup(f->st, &d, &b, &err));
    assert_int_equal(b.role, ROLE_UNKNOWN);
    assert_int_equal(files_in(f, "spool"), 1);
    ASSERT_OK(spool_commit(sp, &d, 0, &err));
    ASSERT_OK(spool_pread(sp, 6, piece, sizeof(piece), &n, &err)); /* followers go on */
    assert_int_equal(n, 5);
    assert_int_equal(files_in(f, "spool"), 0);
    ASSERT_OK(store_blob_lookup(f->st, &d, &b, &err));
    assert_true(b.role == ROLE_ORIGINAL && b.present && b.canon == CANON_PENDING && !b.has_canonical);
    assert_int_equal(b.size_bytes, 11);
}

static void test_hasher_goes_on_elsewhere(void **state)
{
    CLEANUP(spool_cleanup) struct spool *sp = NULL;
    CLEANUP(hasher_cleanup) struct hasher *h = NULL;
    struct fixture *f = *state;
    struct err err = ERR_INIT;
    struct digest want, got;

    ASSERT_OK(spool_open(f->st, &sp, &err));
    ASSERT_OK(spool_write(sp, "abc", 3, &err));
    ASSERT_OK(spool_hasher_clone(sp, &h, &err));
    hasher_update(h, "def", 3);
    hasher_peek(h, &got);
    digest_of("abcdef", 6, &want);
    assert_true(digest_equal(&got, &want));
    spool_digest(sp, &got);
    digest_of("abc", 3, &want);
    assert_true(digest_equal(&got, &want));
}

/* S1: what does not hash to its name is not kept, and its file goes. */
static void test_wrong_digest(void **state)
{
    struct fixture *f = *state;
    struct spool *sp = NULL;
    struct err err = ERR_INIT;
    struct store_blob b;
    struct digest d;

    digest_of("right", 5, &d);
    ASSERT_OK(spool_open(f->st, &sp, &err));
    ASSERT_OK(spool_write(sp, "wrong", 5, &err));
    ASSERT_CODE(spool_commit(sp, &d, 0, &err), ERR_CORRUPT);
    spool_unref(sp);
    assert_int_equal(files_in(f, "spool"), 0);
    assert_int_equal(files_in(f, "originals"), 0);
    ASSERT_OK(store_blob_lookup(f->st, &d, &b, &err));
    assert_int_equal(b.role, ROLE_UNKNOWN);
}

static void test_the_empty_blob(void **state)
{
    struct fixture *f = *state;
    struct digest d = put_original(f->st, "", 0);
    struct source *s = NULL;
    struct err err = ERR_INIT;
    struct store_blob b;
    struct bytes got;

    ASSERT_OK(store_blob_lookup(f->st, &d, &b, &err));
    assert_true(b.role == ROLE_ORIGINAL && b.present && b.size_bytes == 0);
    ASSERT_OK(original_open(f->st, &d, 0, UINT64_MAX, &s, &err));
    got = drain(s, 10);
    assert_true(got.code == 0 && got.len == 0);
    free(got.data);
}

static void test_the_same_blob_twice(void **state)
{
    struct fixture *f = *state;
    struct store_stats before, after;
    struct err err = ERR_INIT;
    struct digest d = put_original(f->st, "twice", 5);

    ASSERT_OK(store_stats(f->st, &before, &err));
    (void)put_original(f->st, "twice", 5);
    ASSERT_OK(store_stats(f->st, &after, &err));
    assert_int_equal(before.blobs, after.blobs);
    assert_int_equal(before.original_bytes, after.original_bytes);
    assert_int_equal(files_in(f, "spool"), 0);
    assert_true(exists(f, &d));
}

/* A file that is damaged though its row says otherwise is replaced by the next one that comes (cases 4 and 5). */
static void test_a_commit_heals_a_damaged_file(void **state)
{
    struct fixture *f = *state;
    struct digest d = put_original(f->st, "some bytes", 10);
    struct source *s = NULL;
    struct err err = ERR_INIT;
    struct bytes got;
    char path[192];

    original_path(f, &d, path, sizeof(path));
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(truncate(path, 10), 0);
    ASSERT_CODE(original_open(f->st, &d, 0, UINT64_MAX, &s, &err), ERR_CORRUPT);
    (void)put_original(f->st, "some bytes", 10);
    ASSERT_OK(original_open(f->st, &d, 0, UINT64_MAX, &s, &err));
    got = drain(s, 100);
    assert_int_equal(got.len, 10);
    free(got.data);
}

static void limit_file_size(rlim_t bytes)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes != 0 ? bytes : limit.rlim_max;
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* Case 15: the disk is full in mid-fill; what came before stays readable and hashed, so that the fill can detach. */
static void test_a_failed_write(void **state)
{
    CLEANUP(spool_cleanup) struct spool *sp = NULL;
    CLEANUP(free_ptr) uint8_t *data = random_bytes(3000000, 7);
    struct fixture *f = *state;
    struct err err = ERR_INIT;
    struct digest want, got;
    uint8_t piece[100];
    size_t n;

    ASSERT_OK(spool_open(f->st, &sp, &err));
    ASSERT_OK(spool_write(sp, data, 1500000, &err));
    limit_file_size(2000000);
    assert_true(spool_write(sp, data + 1500000, 1500000, &err) < 0);
    limit_file_size(0);
    err_clear(&err);
    assert_int_equal(spool_bytes(sp), 1500000);
    digest_of(data, 1500000, &want);
    spool_digest(sp, &got);
    assert_true(digest_equal(&got, &want));
    ASSERT_OK(spool_pread(sp, 1499950, piece, sizeof(piece), &n, &err));
    assert_int_equal(n, 50);
    assert_memory_equal(piece, data + 1499950, 50);
    ASSERT_CODE(spool_write(sp, data, 1, &err), ERR_IO);
    ASSERT_CODE(spool_commit(sp, &got, 0, &err), ERR_IO);
}

/* Case 13: what was begun and given up leaves nothing, nor does what a crash left. */
static void test_temp_space_is_reclaimed(void **state)
{
    struct fixture *f = *state;
    struct err err = ERR_INIT;
    char path[192];

    for (int i = 0; i < 20; i++) {
        struct spool *sp = NULL;

        ASSERT_OK(spool_open(f->st, &sp, &err));
        ASSERT_OK(spool_write(sp, "x", 1, &err));
        spool_unref(sp);
    }
    assert_int_equal(files_in(f, "spool"), 0);
    for (int i = 0; i < 3; i++) {
        int fd;

        (void)snprintf(path, sizeof(path), "%s/spool/%d.part", f->dir, i);
        fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        (void)close(fd);
    }
    reopen_store(f);
    assert_int_equal(files_in(f, "spool"), 0);
}

/* Killed between the rename and the row: the file is nobody's (S2). */
static void test_unreferenced_originals_are_removed(void **state)
{
    struct fixture *f = *state;
    struct digest kept = put_original(f->st, "kept", 4);
    struct store_stats before, after;
    struct err err = ERR_INIT;
    struct digest d;
    char path[192];
    int fd;

    ASSERT_OK(store_stats(f->st, &before, &err));
    memcpy(&d, &kept, sizeof(d));
    d.b[31] ^= 1; /* in the same directory */
    original_path(f, &d, path, sizeof(path));
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "zero", 4), 4);
    (void)close(fd);
    reopen_store(f);
    assert_false(exists(f, &d));
    assert_true(exists(f, &kept));
    ASSERT_OK(store_stats(f->st, &after, &err));
    assert_int_equal(before.original_bytes, after.original_bytes);
}

/* ---- followers ---------------------------------------------------------------------------------------------------------- */

#define FOLLOW_BYTES 3000000

struct follower {
    struct spool *sp;
    const uint8_t *want;
    bool bad;
};

static void *follow(void *arg)
{
    struct follower *fo = arg;
    static _Thread_local uint8_t piece[70000];
    uint64_t off = 0;

    while (off < FOLLOW_BYTES && !fo->bad) {
        struct err err = ERR_INIT;
        size_t n;

        if (spool_pread(fo->sp, off, piece, sizeof(piece), &n, &err) < 0 || memcmp(piece, fo->want + off, n) != 0)
            fo->bad = true;
        off += n;
    }
    spool_unref(fo->sp);
    return NULL;
}

static void test_followers(void **state)
{
    CLEANUP(free_ptr) uint8_t *data = random_bytes(FOLLOW_BYTES, 11);
    struct fixture *f = *state;
    struct follower fo[4];
    pthread_t threads[4];
    struct spool *sp = NULL;
    struct err err = ERR_INIT;
    struct digest d;

    digest_of(data, FOLLOW_BYTES, &d);
    ASSERT_OK(spool_open(f->st, &sp, &err));
    for (int i = 0; i < 4; i++) {
        fo[i] = (struct follower){.sp = spool_ref(sp), .want = data};
        assert_int_equal(pthread_create(&threads[i], NULL, follow, &fo[i]), 0);
    }
    for (size_t off = 0; off < FOLLOW_BYTES; off += 30000)
        ASSERT_OK(spool_write(sp, data + off, 30000, &err));
    ASSERT_OK(spool_commit(sp, &d, 0, &err));
    spool_unref(sp);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_false(fo[i].bad);
    }
}

struct committer {
    struct store *st;
    int64_t repo;
    int failed;
};

static void *commit_and_evict(void *arg)
{
    struct committer *c = arg;

    for (int i = 0; i < 40; i++) {
        struct spool *sp = NULL;
        struct err err = ERR_INIT;
        struct digest d;
        int rc;

        digest_of("contended", 9, &d);
        rc = spool_open(c->st, &sp, &err);
        if (rc == 0)
            rc = spool_write(sp, "contended", 9, &err);
        if (rc == 0)
            rc = spool_commit(sp, &d, c->repo, &err);
        spool_unref(sp);
        if (rc < 0)
            c->failed = rc;
        err_clear(&err);
        if (i % 2 == 0)
            (void)!store_evict(c->st, &d, &err);
    }
    return NULL;
}

/* Commits and evictions of one digest: in the end file and row agree. */
static void test_commits_and_evictions_of_one_digest(void **state)
{
    struct fixture *f = *state;
    struct committer c[4];
    pthread_t threads[4];
    struct err err = ERR_INIT;
    struct store_blob b;
    struct digest d;
    int64_t repo = 0;
    bool holds = false;

    ASSERT_OK(store_repo(f->st, "docker.io", "library/alpine", &repo, &err));
    for (int i = 0; i < 4; i++) {
        c[i] = (struct committer){.st = f->st, .repo = repo};
        assert_int_equal(pthread_create(&threads[i], NULL, commit_and_evict, &c[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(c[i].failed, 0);
    }
    digest_of("contended", 9, &d);
    ASSERT_OK(store_blob_lookup(f->st, &d, &b, &err));
    assert_int_equal(b.present, exists(f, &d));
    ASSERT_OK(store_repo_has_blob(f->st, repo, &d, &holds, &err));
    assert_true(holds);
    assert_int_equal(files_in(f, "spool"), 0);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_write_read_commit),
        T(test_hasher_goes_on_elsewhere),
        T(test_wrong_digest),
        T(test_the_empty_blob),
        T(test_the_same_blob_twice),
        T(test_a_commit_heals_a_damaged_file),
        T(test_a_failed_write),
        T(test_temp_space_is_reclaimed),
        T(test_unreferenced_originals_are_removed),
        T(test_followers),
        T(test_commits_and_evictions_of_one_digest),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
