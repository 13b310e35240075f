/* SPDX-License-Identifier: Apache-2.0
 * base/fsutil.c, in a fresh directory per test.
 */
#include "base/fsutil.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

struct fixture {
    char path[64];
    int dir_fd;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    snprintf(f->path, sizeof f->path, "/tmp/base_fsutil_test.XXXXXX");
    assert_non_null(mkdtemp(f->path));
    f->dir_fd = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(f->dir_fd >= 0);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    unsigned removed;
    struct err err = ERR_INIT;

    assert_int_equal(fs_empty_dir(f->dir_fd, NULL, NULL, &removed, &err), 0);
    fd_cleanup(&f->dir_fd);
    assert_int_equal(rmdir(f->path), 0);
    free(f);
    return 0;
}

static void make_file(struct fixture *f, const char *name, const char *text)
{
    CLEANUP(fd_cleanup) int fd = openat(f->dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    struct err err = ERR_INIT;

    assert_true(fd >= 0);
    assert_int_equal(fs_write_all(fd, text, strlen(text), name, &err), 0);
    assert_int_equal(fs_fsync(fd, name, &err), 0);
}

static void test_mkdirs(void **state)
{
    struct fixture *f = *state;
    struct err err = ERR_INIT;
    char path[128];
    struct stat st;

    snprintf(path, sizeof path, "%s/a//b/c/", f->path);
    assert_int_equal(fs_mkdirs(path, 0700, &err), 0);
    assert_int_equal(fs_mkdirs(path, 0700, &err), 0);
    assert_true(stat(path, &st) == 0 && S_ISDIR(st.st_mode));
    assert_int_equal(fs_mkdirs("/", 0700, &err), 0);

    snprintf(path, sizeof path, "%s/file/x", f->path);
    make_file(f, "file", "x");
    assert_int_equal(fs_mkdirs(path, 0700, &err), ERR_IO);
    assert_int_equal(err.sys, ENOTDIR);
    assert_non_null(strstr(err.msg, "/file"));
    err_clear(&err);
    assert_int_equal(fs_mkdirs("", 0700, &err), ERR_LIMIT);

    static const char *const dirs[] = {"a/b/c", "a/b", "a"};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
        assert_int_equal(unlinkat(f->dir_fd, dirs[i], AT_REMOVEDIR), 0);
}

static void test_positions(void **state)
{
    struct fixture *f = *state;
    CLEANUP(fd_cleanup) int fd = openat(f->dir_fd, "p", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct err err = ERR_INIT;
    char out[8] = "";
    size_t n;

    assert_int_equal(fs_pwrite_all(fd, "world", 5, 6, "p", &err), 0);
    assert_int_equal(fs_pwrite_all(fd, "hello ", 6, 0, "p", &err), 0);
    assert_int_equal(fs_pread_all(fd, out, 5, 6, "p", &err), 0);
    assert_memory_equal(out, "world", 5);
    assert_int_equal(fs_pread_some(fd, out, 8, 9, &n, "p", &err), 0);
    assert_int_equal(n, 2);
    assert_int_equal(fs_pread_some(fd, out, 8, 11, &n, "p", &err), 0);
    assert_int_equal(n, 0);
    assert_true(fs_file_bytes(fd) > 0);
    assert_int_equal(fs_file_bytes(-1), 0);

    assert_int_equal(fs_pread_all(fd, out, 8, 6, "p", &err), ERR_CORRUPT);
    err_clear(&err);
    assert_int_equal(fs_pwrite_all(fd, "x", 1, UINT64_MAX, "p", &err), ERR_LIMIT);
    err_clear(&err);
    assert_int_equal(fs_pread_some(fd, out, 1, UINT64_MAX, &n, "p", &err), ERR_LIMIT);
}

static void test_errors_name_the_file(void **state UNUSED)
{
    struct err err = ERR_INIT;

    assert_int_equal(fs_write_all(-1, "x", 1, "the-file", &err), ERR_IO);
    assert_int_equal(err.sys, EBADF);
    assert_non_null(strstr(err.msg, "the-file"));
}

static void test_full_disk(void **state UNUSED)
{
    CLEANUP(fd_cleanup) int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    struct err err = ERR_INIT;

    if (fd < 0)
        skip();
    assert_int_equal(fs_write_all(fd, "x", 1, "full", &err), ERR_NOSPC);
}

static void test_read_file(void **state)
{
    struct fixture *f = *state;
    CLEANUP(buf_release) struct buf b = BUF_INIT(1000);
    struct err err = ERR_INIT;
    char path[128];

    make_file(f, "r", "hello");
    snprintf(path, sizeof path, "%s/r", f->path);
    assert_int_equal(fs_read_file(path, 5, &b, &err), 0);
    assert_string_equal(b.data, "hello");
    assert_int_equal(fs_read_file(path, 4, &b, &err), ERR_LIMIT);
    assert_non_null(strstr(err.msg, path));
    err_clear(&err);
    assert_int_equal(fs_read_file("/nowhere/at/all", 4, &b, &err), ERR_NOTFOUND);
    err_clear(&err);
    buf_release(&b);
    make_file(f, "r", "");
    assert_int_equal(fs_read_file(path, 0, &b, &err), 0);
    assert_string_equal(b.data, "");

    /* Size 0 by stat, yet full of text. */
    CLEANUP(buf_release) struct buf proc = BUF_INIT(1 << 20);
    assert_int_equal(fs_read_file("/proc/self/status", 1 << 20, &proc, &err), 0);
    assert_true(proc.len > 100);
}

static void test_rename(void **state)
{
    struct fixture *f = *state;
    CLEANUP(buf_release) struct buf b = BUF_INIT(100);
    struct err err = ERR_INIT;
    char path[128];

    make_file(f, "from", "new");
    make_file(f, "to", "old");
    assert_int_equal(fs_rename_durable(f->dir_fd, "from", f->dir_fd, "to", &err), 0);
    snprintf(path, sizeof path, "%s/to", f->path);
    assert_int_equal(fs_read_file(path, 100, &b, &err), 0);
    assert_string_equal(b.data, "new");
    assert_int_equal(fs_rename_durable(f->dir_fd, "from", f->dir_fd, "to", &err), ERR_NOTFOUND);
}

static bool keep_odd(const char *name, void *arg)
{
    unsigned *asked = arg;

    (*asked)++;
    return (name[strlen(name) - 1] - '0') % 2 == 1;
}

static void test_empty_dir(void **state)
{
    struct fixture *f = *state;
    struct err err = ERR_INIT;
    unsigned removed, asked = 0;

    for (int i = 0; i < 500; i++) {
        char name[16];

        snprintf(name, sizeof name, "f%d", i);
        make_file(f, name, "");
    }
    assert_int_equal(fs_empty_dir(f->dir_fd, keep_odd, &asked, &removed, &err), 0);
    assert_int_equal(removed, 250);
    assert_true(asked >= 500);
    assert_int_equal(faccessat(f->dir_fd, "f1", F_OK, 0), 0);
    assert_int_equal(faccessat(f->dir_fd, "f2", F_OK, 0), -1);
    assert_int_equal(fs_empty_dir(f->dir_fd, NULL, NULL, &removed, &err), 0);
    assert_int_equal(removed, 250);

    assert_int_equal(mkdirat(f->dir_fd, "sub", 0700), 0);
    assert_int_equal(fs_empty_dir(f->dir_fd, NULL, NULL, &removed, &err), ERR_IO);
    assert_int_equal(unlinkat(f->dir_fd, "sub", AT_REMOVEDIR), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_mkdirs, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_positions, set_up, tear_down),
        cmocka_unit_test(test_errors_name_the_file),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test_setup_teardown(test_read_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rename, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_empty_dir, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
