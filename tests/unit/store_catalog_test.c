/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_catalog_test.c - opening, locking, versions, transactions, leases, and every query's plan.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "store/meta.h"
#include "tests/unit/store_layer_util.h"

#include <pthread.h>
#include <sys/wait.h>
#include <time.h>

static void path_in(const struct fixture *f, const char *name, char *out, size_t cap)
{
    (void)snprintf(out, cap, "%s/%s", f->dir, name);
}

/* ---- opening -------------------------------------------------------------------------------------------------------------- */

static void test_second_open_is_busy(void **state)
{
    struct fixture *f = *state;
    struct store *second = NULL;
    struct err err = ERR_INIT;
    char pid[32];

    assert_int_equal(store_open(&f->opt, &second, &err), ERR_BUSY);
    assert_non_null(strstr(err.msg, f->dir));
    (void)snprintf(pid, sizeof(pid), "process %d ", (int)getpid());
    assert_non_null(strstr(err.msg, pid));
    reopen_store(f);
}

static void test_makes_parents_and_modes(void **state)
{
    struct fixture *f = *state;
    struct store *st = NULL;
    struct err err = ERR_INIT;
    struct store_options opt = {.quota_bytes = 1 << 30};
    char path[128];
    struct stat sb;

    path_in(f, "deep/er/store", path, sizeof(path));
    opt.path = path;
    ASSERT_OK(store_open(&opt, &st, &err));
    assert_int_equal(st->opt.zstd_level, 3);
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0700);
    store_close(st);
    store_close(NULL);
}

static void set_number(const struct fixture *f, const char *sql)
{
    char path[128];
    struct sql_db *db = NULL;
    struct err err = ERR_INIT;

    path_in(f, "catalog.db", path, sizeof(path));
    ASSERT_OK(sql_open(path, SQL_READ_WRITE, &db, &err));
    ASSERT_OK(sql_exec(db, sql, &err));
    sql_close(db);
}

static void expect_open(struct fixture *f, int code, const char *part, const char *part2)
{
    struct err err = ERR_INIT;

    if (store_open(&f->opt, &f->st, &err) != code)
        fail_msg("not %d: %s", code, err.msg);
    if (strstr(err.msg, part) == NULL || strstr(err.msg, part2) == NULL || strstr(err.msg, "catalog.db") == NULL)
        fail_msg("%s", err.msg);
}

static void test_versions(void **state)
{
    struct fixture *f = *state;

    store_close(f->st);
    f->st = NULL;
    set_number(f, "PRAGMA user_version = 7");
    expect_open(f, ERR_UNSUPPORTED, "format 7", "up to 2");
    set_number(f, "PRAGMA user_version = -3");
    expect_open(f, ERR_CORRUPT, "-3", "impossible");
    set_number(f, "PRAGMA user_version = 2; PRAGMA application_id = 4711");
    expect_open(f, ERR_CORRUPT, "not a recask", "SQLite");
    set_number(f, "PRAGMA application_id = 1380143921; DROP TABLE view");
    expect_open(f, ERR_CORRUPT, "lacks 1 of", "19");
}

static void test_not_a_database(void **state)
{
    CLEANUP(fd_cleanup) int fd = -1;
    struct fixture *f = *state;
    char path[128];
    char junk[8192];

    store_close(f->st);
    f->st = NULL;
    memset(junk, 'j', sizeof(junk));
    path_in(f, "catalog.db", path, sizeof(path));
    fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_int_equal(write(fd, junk, sizeof(junk)), sizeof(junk));
    expect_open(f, ERR_CORRUPT, "not a database", f->dir);
}

/* A catalog that got lost must not make the packs look like leftovers. */
static void test_packs_without_a_catalog(void **state)
{
    struct fixture *f = *state;
    int64_t repo = 0;
    struct err err = ERR_INIT;
    struct digest d = put_source(f->st, 1);
    char path[128];

    ASSERT_OK(store_repo(f->st, "u", "n", &repo, &err));
    ASSERT_OK(store_repo_add_blob(f->st, repo, &d, 0, &err)); /* a record in a pack */
    store_close(f->st);
    f->st = NULL;
    path_in(f, "catalog.db", path, sizeof(path));
    assert_int_equal(unlink(path), 0);
    for (int i = 0; i < 2; i++)
        expect_open(f, ERR_CORRUPT, "packs/", "missing or empty");
    path_in(f, "packs/0000000000000001.pack", path, sizeof(path));
    assert_int_equal(access(path, F_OK), 0);
}

static void test_migrations(void **state)
{
    static const struct schema_step steps[] = {
        {.from = 1, .sql = {"CREATE TABLE extra (x)"}},
        {.from = 2, .sql = {"INSERT INTO extra VALUES (3)"}},
        {.from = 3, .sql = {"INSERT INTO extra VALUES (4); INSERT INTO nowhere VALUES (1)"}},
    };
    struct fixture *f = *state;
    struct sql_db *db = NULL;
    struct err err = ERR_INIT;
    char path[128];

    store_close(f->st);
    f->st = NULL;
    path_in(f, "catalog.db", path, sizeof(path));
    ASSERT_OK(sql_open(path, SQL_READ_WRITE, &db, &err));
    ASSERT_CODE(schema_migrate(db, "n", steps, ARRAY_LEN(steps), 1, 4, &err), ERR_BUG);
    {
        CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

        ASSERT_OK(
            sql_query(db, &q, "SELECT count(*), (SELECT user_version FROM pragma_user_version) FROM extra", &err));
        assert_int_equal(sql_step(&q, &err), SQL_ROW);
        assert_int_equal(sql_int(&q, 0), 1); /* steps 1 and 2 are kept, 3 left nothing */
        assert_int_equal(sql_int(&q, 1), 3);
    }
    ASSERT_CODE(schema_migrate(db, "n", steps, ARRAY_LEN(steps), 4, 3, &err), ERR_UNSUPPORTED);
    ASSERT_CODE(schema_migrate(db, "n", steps, ARRAY_LEN(steps), 0, 3, &err), ERR_UNSUPPORTED);
    sql_close(db);
}

/* ---- crashes ----------------------------------------------------------------------------------------------------------------- */

/* kill -9 in a child at any time: what was committed is there, all else is gone, nothing is damaged. */
static void work_until_killed(const struct store_options *opt, int ready_fd)
{
    struct err err = ERR_INIT;
    struct store *st = NULL;
    int64_t repo = 0;

    if (store_open(opt, &st, &err) < 0 || store_repo(st, "u", "n", &repo, &err) < 0)
        _exit(1);
    for (int i = 0;; i++) {
        struct spool *sp = NULL;
        struct digest d;
        char text[32];
        int len = snprintf(text, sizeof(text), "original %d", i);

        digest_of(text, (size_t)len, &d);
        if (spool_open(st, &sp, &err) < 0 || spool_write(sp, text, (size_t)len, &err) < 0 ||
            spool_commit(sp, &d, repo, &err) < 0 || write(ready_fd, &i, sizeof(i)) != sizeof(i))
            _exit(1);
        spool_unref(sp);
        if (i % 2 == 1)
            (void)!store_evict(st, &d, &err);
    }
}

static void test_kill(void **state)
{
    struct fixture *f = *state;
    struct err err = ERR_INIT;

    for (int round = 0; round < 6; round++) {
        int fds[2];
        int last = -1;
        int status;
        pid_t pid;

        store_close(f->st);
        f->st = NULL;
        assert_int_equal(pipe(fds), 0);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            work_until_killed(&f->opt, fds[1]);
        (void)close(fds[1]);
        while (last < 5 + round && read(fds[0], &last, sizeof(last)) == sizeof(last))
            continue;
        (void)nanosleep(&(struct timespec){.tv_nsec = round * 700000}, NULL);
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        while (read(fds[0], &last, sizeof(last)) == sizeof(last))
            continue;
        (void)close(fds[0]);
        open_store(f);
        for (int i = 0; i <= last; i += 2) {
            CLEANUP(source_cleanup) struct source *s = NULL;
            struct digest d;
            char text[32];
            int len = snprintf(text, sizeof(text), "original %d", i);

            digest_of(text, (size_t)len, &d);
            ASSERT_OK(original_open(f->st, &d, 0, UINT64_MAX, &s, &err));
        }
        assert_int_equal(sql_number(f->st, "SELECT count(*) FROM blob WHERE original_present = 1 AND id NOT IN"
                                           " (SELECT blob_id FROM original)"),
                         0);
    }
}

/* ---- transactions ------------------------------------------------------------------------------------------------------------ */

static void test_rollback(void **state)
{
    struct fixture *f = *state;
    struct err err = ERR_INIT;

    {
        CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;

        ASSERT_OK(catalog_begin(f->st, &tx, &err));
        ASSERT_OK(sql_exec(tx.db, "INSERT INTO repo (upstream, name) VALUES ('a', 'b')", &err));
    }
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM repo"), 0);
    {
        CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;

        ASSERT_OK(catalog_begin(f->st, &tx, &err));
        assert_true(sql_exec(tx.db, "INSERT INTO tag VALUES (1, 'n', 1, 0, 0)", &err) < 0); /* foreign keys are on */
        err_clear(&err);
        assert_true(sql_exec(tx.db, "INSERT INTO blob (digest) VALUES (x'00')", &err) < 0);
        err_clear(&err);
        ASSERT_OK(catalog_commit(&tx, &err));
    }
    sql_change(f->st, "INSERT INTO repo (upstream, name) VALUES ('a', 'b')");
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM repo"), 1);
}

static void test_a_snapshot_stands_still(void **state)
{
    struct fixture *f = *state;
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct err err = ERR_INIT;

    ASSERT_OK(catalog_read_begin(f->st, &db, &err));
    ASSERT_OK(sql_query(db, &q, "SELECT count(*) FROM repo", &err));
    assert_int_equal(sql_step(&q, &err), SQL_ROW);
    assert_int_equal(sql_int(&q, 0), 0);
    sql_reset(&q);
    sql_change(f->st, "INSERT INTO repo (upstream, name) VALUES ('a', 'b')");
    assert_int_equal(sql_step(&q, &err), SQL_ROW);
    assert_int_equal(sql_int(&q, 0), 0);
    sql_reset(&q);
    assert_true(sql_exec(db, "INSERT INTO repo (upstream, name) VALUES ('c', 'd')", &err) < 0); /* read only */
}

static void test_nested_use_of_one_statement(void **state)
{
    struct fixture *f = *state;
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    CLEANUP(sql_done) struct sql_query a = SQL_QUERY_INIT;
    CLEANUP(sql_done) struct sql_query b = SQL_QUERY_INIT;
    static const char sql[] = "SELECT id FROM repo WHERE upstream = ?1 ORDER BY id";
    struct err err = ERR_INIT;

    sql_change(f->st, "INSERT INTO repo (upstream, name) VALUES ('a', 'b'), ('a', 'c')");
    ASSERT_OK(catalog_read_begin(f->st, &db, &err));
    ASSERT_OK(sql_query(db, &a, sql, &err));
    sql_bind_text(&a, 1, "a");
    assert_int_equal(sql_step(&a, &err), SQL_ROW);
    ASSERT_OK(sql_query(db, &b, sql, &err));
    sql_bind_text(&b, 1, "a");
    assert_int_equal(sql_step(&b, &err), SQL_ROW);
    assert_int_equal(sql_int(&b, 0), 1);
    assert_int_equal(sql_step(&a, &err), SQL_ROW);
    assert_int_equal(sql_int(&a, 0), 2);
    sql_done(&b);
    ASSERT_OK(sql_query(db, &b, sql, &err));
    sql_bind_int(&b, 2, 1); /* no such place: shows at the step */
    ASSERT_CODE(sql_step(&b, &err), ERR_BUG);
}

static void *borrow(void *arg)
{
    struct store *st = arg;

    for (int i = 0; i < 200; i++) {
        CLEANUP(catalog_read_end) struct sql_db *db = NULL;
        struct err err = ERR_INIT;

        if (catalog_read_begin(st, &db, &err) < 0)
            return arg;
        (void)sched_yield();
    }
    return NULL;
}

/* More threads than connections: they wait for one. */
static void test_the_pool_is_bounded(void **state)
{
    struct fixture *f = *state;
    pthread_t threads[40];
    void *failed;

    for (int i = 0; i < 40; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, borrow, f->st), 0);
    for (int i = 0; i < 40; i++) {
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
}

static void test_idle_truncates_the_wal(void **state)
{
    struct fixture *f = *state;
    char path[128];
    struct stat sb;

    path_in(f, "catalog.db-wal", path, sizeof(path));
    sql_change(f->st, "INSERT INTO repo (upstream, name) VALUES ('a', 'b')");
    assert_true(stat(path, &sb) == 0 && sb.st_size > 0);
    store_idle(f->st);
    assert_true(stat(path, &sb) == 0 && sb.st_size == 0);
}

/* ---- leases ------------------------------------------------------------------------------------------------------------------- */

static void test_leases(void **state)
{
    struct fixture *f = *state;
    struct err err = ERR_INIT;
    struct digest d[1000];

    for (int i = 0; i < 1000; i++) {
        digest_of(&i, sizeof(i), &d[i]);
        ASSERT_OK(lease_take(f->st, LEASE_CHUNK, &d[i], &err));
        ASSERT_OK(lease_take(f->st, LEASE_CHUNK, &d[i], &err));
    }
    ASSERT_CODE(lease_doom(f->st, LEASE_CHUNK, &d[7], &err), ERR_BUSY);
    ASSERT_OK(lease_doom(f->st, LEASE_CANONICAL, &d[7], &err)); /* another kind */
    ASSERT_CODE(lease_take(f->st, LEASE_CANONICAL, &d[7], &err), ERR_NOTFOUND);
    ASSERT_CODE(lease_doom(f->st, LEASE_CANONICAL, &d[7], &err), ERR_BUSY);
    lease_undoom(f->st, LEASE_CANONICAL, &d[7]);
    for (int i = 0; i < 1000; i++)
        lease_drop(f->st, LEASE_CHUNK, &d[i]);
    ASSERT_CODE(lease_doom(f->st, LEASE_CHUNK, &d[7], &err), ERR_BUSY);
    for (int i = 0; i < 1000; i++)
        lease_drop(f->st, LEASE_CHUNK, &d[i]);
    ASSERT_OK(lease_doom(f->st, LEASE_CHUNK, &d[7], &err));
    lease_undoom(f->st, LEASE_CHUNK, &d[7]);
}

/* ---- plans --------------------------------------------------------------------------------------------------------------------- */

static int ignore_image(void *arg, const struct store_image *image, struct err *err)
{
    (void)arg, (void)image, (void)err;
    return 0;
}

static int ignore_wanted(void *arg, int64_t repo, const char *u, const char *n, const struct digest *d, struct err *err)
{
    (void)arg, (void)repo, (void)u, (void)n, (void)d, (void)err;
    return 0;
}

static int ignore_digest(void *arg, const struct digest *d, struct err *err)
{
    (void)arg, (void)d, (void)err;
    return 0;
}

static void use_manifests(struct store *st, int64_t repo, const struct digest *layer)
{
    struct store_ref ref = {.role = REF_LAYER, .digest = *layer, .size_bytes = 9};
    struct store_manifest_put p = {.repo = repo,
                                   .tag = "t",
                                   .media_type = "m",
                                   .body = "{}",
                                   .len = 2,
                                   .refs = &ref,
                                   .ref_count = 1,
                                   .never = "n"};
    struct err err = ERR_INIT;
    struct store_manifest m;
    struct store_tag tag;
    void *list = NULL;
    struct digest got;
    size_t count;
    bool yes;

    digest_of("{}", 2, &p.digest);
    ASSERT_OK(store_manifest_put(st, &p, &err));
    ASSERT_OK(store_manifest_get(st, &p.digest, &m, &err));
    store_manifest_release(&m);
    ASSERT_OK(store_repo_has_manifest(st, repo, &p.digest, &yes, &err));
    ASSERT_OK(store_manifest_refs(st, &p.digest, (struct store_ref **)&list, &count, &err));
    free(list);
    ASSERT_OK(store_manifest_parents(st, &p.digest, (struct digest **)&list, &count, &err));
    free(list);
    ASSERT_OK(store_is_config(st, layer, &yes, &err));
    ASSERT_OK(store_view_put(st, &p.digest, 1, "m", "{ }", 3, &got, &err));
    ASSERT_OK(store_view_get(st, &p.digest, 1, &got, &err));
    ASSERT_OK(store_tag_get(st, repo, "t", &tag, &err));
    ASSERT_OK(store_tag_set(st, repo, "t", &p.digest, &err));
    ASSERT_OK(store_manifest_want(st, &p.digest, &err));
    ASSERT_OK(store_manifest_set_views(st, &p.digest, VIEWS_READY, NULL, &err));
    ASSERT_OK(store_manifest_set_signed(st, &p.digest, true, &err));
    ASSERT_OK(store_each_wanted(st, ignore_wanted, NULL, &err));
    ASSERT_OK(store_each_image(st, ignore_image, NULL, &err));
    ASSERT_OK(store_tag_drop(st, repo, "t", &err));
}

static void use_blobs(struct store *st, int64_t repo, const struct digest *d)
{
    struct store_source src;
    struct store_blob b;
    struct err err = ERR_INIT;
    size_t count;
    bool yes;

    ASSERT_OK(store_blob_lookup(st, d, &b, &err));
    ASSERT_OK(store_repo_has_blob(st, repo, d, &yes, &err));
    ASSERT_OK(store_sources(st, d, repo, &src, 1, &count, &err));
}

/* Calls what there is, so that every statement gets compiled. */
static void use_everything(struct fixture *f)
{
    CLEANUP(free_ptr) uint8_t *data = calloc(1, 600000);
    struct digest o = put_source(f->st, 1), o2 = put_source(f->st, 2);
    struct layer_result r;
    struct source *s = NULL;
    struct store_stats stats;
    struct err err = ERR_INIT;
    struct bytes got;
    int64_t repo = 0;

    assert_non_null(data);
    fill_random(data, 600000, 99);
    ASSERT_OK(store_repo(f->st, "docker.io", "a", &repo, &err));
    ASSERT_OK(store_repo_add_blob(f->st, repo, &o, 0, &err));
    r = write_layer(f->st, &o, data, 600000);
    got = read_layer(f->st, &r.canonical, LAYER_ZSTD, 10, 100, 50);
    free(got.data);
    got = read_layer(f->st, &r.canonical, LAYER_IDENTITY, 300000, 100, 50);
    free(got.data);
    ASSERT_OK(original_open(f->st, &o, 0, UINT64_MAX, &s, &err));
    source_free(s);
    use_blobs(f->st, repo, &o);
    use_blobs(f->st, repo, &r.canonical);
    use_blobs(f->st, repo, &r.zstd);
    use_manifests(f->st, repo, &o);
    flip_frame_bit(f, &r.canonical, 0);
    ASSERT_OK(store_mark_lost(f->st, &r.canonical, &err));
    r = write_layer(f->st, &o, data, 600000);
    ASSERT_OK(store_evict(f->st, &r.zstd, &err));
    ASSERT_OK(store_evict(f->st, &o, &err));
    ASSERT_OK(store_canon_refuse(f->st, &o2, "no", &err));
    ASSERT_OK(store_each_pending(f->st, ignore_digest, NULL, &err));
    ASSERT_OK(store_stats(f->st, &stats, &err));
    r = write_layer(f->st, &o, data, 600000);
    f->st->opt.quota_bytes = 100; /* everything has to go */
    for (bool more = true; more;)
        ASSERT_OK(store_make_room(f->st, &more, &err));
    store_idle(f->st);
}

struct plans {
    unsigned statements, scans;
    char text[2048];
};

/* Lists for people and the start of the process read whole tables on purpose; `sub` is our name for subqueries, and what
 * tests ask themselves does not count. */
static bool may_scan(const char *sql, const char *detail)
{
    static const char *const whole[] = {"SELECT id, end FROM pack ORDER BY id", "SELECT c.pack_id, c.off + c.len / 2"};

    for (size_t i = 0; i < ARRAY_LEN(whole); i++)
        if (strncmp(sql, whole[i], strlen(whole[i])) == 0)
            return true;
    return strcmp(detail, "SCAN sub") == 0 || strcmp(detail, "SCAN CONSTANT ROW") == 0 ||
           strstr(sql, "pragma") != NULL || strstr(sql, "sqlite_schema") != NULL;
}

static void check_plan(void *arg, struct sql_db *db, const char *sql)
{
    struct plans *p = arg;
    sqlite3_stmt *stmt = NULL;
    char *explain = sqlite3_mprintf("EXPLAIN QUERY PLAN %s", sql);

    p->statements++;
    assert_int_equal(sqlite3_prepare_v2(sql_handle(db), explain, -1, &stmt, NULL), SQLITE_OK);
    while (sqlite3_step(stmt) == SQLITE_ROW) {
        const char *detail = (const char *)sqlite3_column_text(stmt, 3);

        if (strncmp(detail, "SCAN ", 5) != 0 || may_scan(sql, detail))
            continue;
        p->scans++;
        (void)snprintf(p->text, sizeof(p->text), "%s\n  in %.400s", detail, sql);
    }
    (void)sqlite3_finalize(stmt);
    sqlite3_free(explain);
}

static void test_no_query_scans_a_table(void **state)
{
    struct fixture *f = *state;
    struct plans p = {.scans = 0};

    use_everything(f);
    catalog_each_statement(f->st, check_plan, &p);
    if (p.scans > 0)
        fail_msg("%u of %u: %s", p.scans, p.statements, p.text);
    assert_true(p.statements > 80);
}

/* ---- size ------------------------------------------------------------------------------------------------------------------------ */

static int64_t now_us(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

static void test_stats_do_not_grow_with_the_store(void **state)
{
    struct fixture *f = *state;
    struct store_stats s;
    struct err err = ERR_INIT;
    int64_t best = INT64_MAX;

    sql_change(f->st, "INSERT INTO pack (id, end) VALUES (1, 64);"
                      "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)"
                      " INSERT INTO chunk (digest, raw, kind, level, encoder, pack_id, off, len, sum, refs)"
                      " SELECT randomblob(32), 200000, 1, 3, 1, 1, i * 100, 100000, 0, 1 FROM n");
    for (int i = 0; i < 20; i++) {
        int64_t start = now_us();

        ASSERT_OK(store_stats(f->st, &s, &err));
        if (now_us() - start < best)
            best = now_us() - start;
    }
    assert_int_equal(s.chunks, 100000);
    assert_int_equal(s.unique_chunk_bytes, UINT64_C(20000000000));
    assert_int_equal(s.frame_bytes, UINT64_C(10000000000));
    assert_true(best < 5000);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_second_open_is_busy),
        T(test_makes_parents_and_modes),
        T(test_versions),
        T(test_not_a_database),
        T(test_packs_without_a_catalog),
        T(test_migrations),
        T(test_kill),
        T(test_rollback),
        T(test_a_snapshot_stands_still),
        T(test_nested_use_of_one_statement),
        T(test_the_pool_is_bounded),
        T(test_idle_truncates_the_wal),
        T(test_leases),
        T(test_no_query_scans_a_table),
        T(test_stats_do_not_grow_with_the_store),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
