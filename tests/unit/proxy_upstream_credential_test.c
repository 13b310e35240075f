/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_credential.c and proxy/upstream_helper.c: files and programs as they come. Case 62.
 */
#include "base/clock.h"
#include "proxy/upstream_credential.h"
#include "proxy/upstream_helper.h"

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];
static char path[128]; /* of the file that write_file() wrote last */
static atomic_bool stopping;
static struct credential_cache cache;
static struct credential got;
static struct err err;

static int setup(void **state UNUSED)
{
    snprintf(dir, sizeof dir, "/tmp/recask-creds-XXXXXX");
    assert_non_null(mkdtemp(dir));
    atomic_store(&stopping, false);
    return 0;
}

static int teardown(void **state UNUSED)
{
    DIR *d = opendir(dir);
    struct dirent *e;

    credential_release(&got);
    credential_cache_release(&cache);
    while ((e = readdir(d)) != NULL)
        if (e->d_name[0] != '.')
            unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    rmdir(dir);
    return 0;
}

static void write_file(const char *name, const char *text, size_t len, mode_t mode)
{
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "we");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static void write_script(const char *name, const char *text)
{
    char all[2048];

    snprintf(all, sizeof all, "#!/bin/sh\n%s", text);
    write_file(name, all, strlen(all), 0755);
}

/* ---- files ---- */

static int read_def(struct upstream_def def, const char *auth_file)
{
    struct credential_source src;
    int rc;

    def.name = "mine";
    if (def.url == NULL)
        def.url = "https://r.example";
    err_clear(&err);
    credential_release(&got);
    assert_int_equal(credential_source_init(&src, &def, auth_file, &err), 0);
    rc = credential_read(&src, &cache, &stopping, &got, &err);
    assert_int_equal(rc, err.code);
    assert_null(strstr(err.msg, "hunter2"));
    if (rc < 0)
        assert_true(strncmp(err.msg, "credentials for upstream mine: ", 31) == 0);
    credential_source_release(&src);
    return rc;
}

static int read_password(const char *text, size_t len)
{
    write_file("password", text, len, 0600);
    return read_def((struct upstream_def){.username = "me", .password_file = path}, NULL);
}

static void test_password_file(void **state UNUSED)
{
    struct digest first;

    assert_int_equal(read_password("hunter2\n", 8), 0);
    assert_string_equal(secret_text(&got.is.password), "hunter2");
    assert_non_null(strstr(got.id.shown, "user me from /tmp/recask-creds-"));
    first = got.id.digest;
    assert_int_equal(read_password("hunter2\r\n", 9), 0);
    assert_int_equal(read_password("hunter2", 7), 0);
    assert_string_equal(secret_text(&got.is.password), "hunter2");
    assert_true(digest_equal(&first, &got.id.digest));
    assert_int_equal(read_password(" hunter 3 ", 10), 0);
    assert_string_equal(secret_text(&got.is.password), " hunter 3 ");
    assert_false(digest_equal(&first, &got.id.digest));

    assert_int_equal(read_password("", 0), ERR_UPSTREAM);
    assert_int_equal(read_password("\n", 1), ERR_UPSTREAM);
    assert_int_equal(read_password("hunter2\n\n", 9), ERR_UPSTREAM);
    assert_int_equal(read_password("hun\0ter2", 8), ERR_UPSTREAM);
    assert_int_equal(read_password("hunter2\x1b", 8), ERR_UPSTREAM);
    assert_non_null(strstr(err.msg, path));
    unlink(path);
    assert_int_equal(read_def((struct upstream_def){.username = "me", .password_file = path}, NULL), ERR_UPSTREAM);
    assert_non_null(strstr(err.msg, path));
}

static void test_sources(void **state UNUSED)
{
    static const struct upstream_def bad[] = {
        {.name = "mine", .url = "https://r.example", .username = "me"},
        {.name = "mine", .url = "https://r.example", .password_file = "/x"},
        {.name = "mine", .url = "https://r.example", .username = "a:b", .password_file = "/x"},
        {.name = "mine", .url = "https://r.example", .username = "a\nb", .password_file = "/x"},
        {.name = "mine", .url = "https://r.example", .username = "a", .password_file = "/x", .credential_helper = "y"},
        {.name = "mine", .url = "https://r.example", .credential_helper = "bin/helper"},
        {.name = "mine", .url = "https://r.example", .credential_helper = ""},
    };
    struct credential_source src;

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        err_clear(&err);
        if (credential_source_init(&src, &bad[i], NULL, &err) >= 0)
            fail_msg("%zu", i);
        assert_non_null(strstr(err.msg, "upstream mine"));
        credential_source_release(&src);
    }
    err_clear(&err);
    assert_int_equal(
        credential_source_init(&src, &(struct upstream_def){.name = "a", .url = "https://a.example"}, NULL, &err), 0);
    assert_false(credential_source_any(&src));
    credential_source_release(&src);
}

static void test_auth_file(void **state UNUSED)
{
    static const char text[] = "{\"auths\":{\"r.example\":{\"auth\":\"bWU6aHVudGVyMg==\"}}}";

    write_file("config.json", text, strlen(text), 0600);
    assert_int_equal(read_def((struct upstream_def){.name = NULL}, path), 0);
    assert_string_equal(secret_text(&got.is.password), "hunter2");
    assert_int_equal(read_def((struct upstream_def){.url = "https://x.example"}, path), 0);
    assert_true(oci_credentials_anonymous(&got.is));
    assert_int_equal(truncate(path, 20), 0);
    assert_int_equal(read_def((struct upstream_def){.url = "https://x.example"}, path), ERR_UPSTREAM);
    assert_non_null(strstr(err.msg, path));
    unlink(path);
    assert_int_equal(read_def((struct upstream_def){.url = "https://x.example"}, path), ERR_UPSTREAM);
}

/* ---- helpers ---- */

static int read_helper(const char *script)
{
    write_script("helper", script);
    return read_def((struct upstream_def){.credential_helper = path}, NULL);
}

static void test_helper(void **state UNUSED)
{
    assert_int_equal(read_helper("read -r server\n[ \"$1 $#\" = 'get 1' ] || exit 3\n"
                                 "echo \"{\\\"Username\\\":\\\"$server\\\",\\\"Secret\\\":\\\"hunter2\\\"}\"\n"),
                     0);
    assert_string_equal(got.is.username, "r.example");
    assert_string_equal(secret_text(&got.is.password), "hunter2");
    assert_false(got.id.cached);
    /* Kept: the program is another one by now. */
    assert_int_equal(read_helper("exit 9\n"), 0);
    assert_true(got.id.cached);
    assert_string_equal(secret_text(&got.is.password), "hunter2");
    credential_cache_release(&cache);
    assert_int_equal(read_helper("exit 9\n"), ERR_UPSTREAM);
    assert_non_null(strstr(err.msg, "status 9"));
}

static void test_helper_has_none(void **state UNUSED)
{
    assert_int_equal(read_helper("echo credentials not found in native keychain\nexit 1\n"), 0);
    assert_true(oci_credentials_anonymous(&got.is));
}

static void test_helper_failures(void **state UNUSED)
{
    static const struct {
        const char *script, *says;
    } rows[] = {
        {"exit 1\n", "ended with status 1"},
        {"echo hunter2; echo hunter2 >&2; exit 1\n", "ended with status 1"},
        {"kill -9 $$\n", "ended by signal 9"},
        {"exit 0\n", "nothing on its stdout"},
        {"echo hunter2\n", "not valid JSON"},
        {"echo '{\"Username\":\"me\",\"Secret\":\"\"}'\n", "an empty password"},
        {"head -c 70000 /dev/zero | tr '\\0' x\n", "more than 65536 bytes"},
        {"exec 1>&-; exec 2>&-; cat >/dev/null; exit 5\n", "status 5"},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        credential_cache_release(&cache);
        if (read_helper(rows[i].script) >= 0 || strstr(err.msg, rows[i].says) == NULL || strstr(err.msg, path) == NULL)
            fail_msg("%s: %s", rows[i].script, err.msg);
    }
    assert_int_equal(read_def((struct upstream_def){.credential_helper = "/nowhere/helper"}, NULL), ERR_UPSTREAM);
    assert_non_null(strstr(err.msg, "cannot run credential helper /nowhere/helper"));
    assert_int_equal(read_def((struct upstream_def){.credential_helper = "recask-test-none"}, NULL), ERR_UPSTREAM);
    assert_non_null(strstr(err.msg, "docker-credential-recask-test-none"));
}

/* By its name from PATH; RECASK_* stays here, the rest goes along; descriptors and blocked signals do not. */
static void test_helper_surroundings(void **state UNUSED)
{
    char *before = strdup(getenv("PATH")), with[4096];
    sigset_t some, old;
    int fd = dup(0); /* not close-on-exec */

    assert_true(fd > 2);
    write_script(
        "docker-credential-around",
        "fds=$(ls /proc/self/fd | wc -l)\nblocked=$(sed -n 's/^SigBlk:.*\\([0-9a-f]\\{8\\}\\)$/\\1/p' "
        "/proc/self/status)\n"
        "echo \"{\\\"Username\\\":\\\"$AWS_PROFILE.$RECASK_SECRET.$fds.$blocked\\\",\\\"Secret\\\":\\\"x\\\"}\"\n");
    snprintf(with, sizeof with, "%s:%s", dir, before);
    setenv("PATH", with, 1);
    setenv("AWS_PROFILE", "prod", 1);
    setenv("RECASK_SECRET", "leak", 1);
    sigfillset(&some);
    pthread_sigmask(SIG_SETMASK, &some, &old);
    assert_int_equal(read_def((struct upstream_def){.credential_helper = "around"}, NULL), 0);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    setenv("PATH", before, 1);
    unsetenv("AWS_PROFILE");
    unsetenv("RECASK_SECRET");
    free(before);
    close(fd);
    assert_string_equal(got.is.username, "prod..4.00000000"); /* 0, 1, 2, and the directory that ls reads */
}

static int run_script(const char *script, int limit_ms)
{
    struct buf out = BUF_INIT(OCI_HELPER_REPLY_MAX_BYTES);
    struct helper_run run = {.server = "r.example", .stopping = &stopping, .limit_ms = limit_ms};
    int rc;

    write_script("helper", script);
    run.helper = path;
    err_clear(&err);
    rc = helper_run(&run, &out, &err);
    buf_release(&out);
    return rc;
}

/* It and what it has started are gone afterwards. */
static void test_helper_hangs(void **state UNUSED)
{
    char pid_file[160], line[32] = "";
    FILE *f;

    snprintf(pid_file, sizeof pid_file, "sleep 100 &\necho $! >%s/pid\nwait\n", dir);
    assert_int_equal(run_script(pid_file, 1000), ERR_TIMEOUT);
    snprintf(pid_file, sizeof pid_file, "%s/pid", dir);
    f = fopen(pid_file, "re");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
    while (kill((pid_t)strtol(line, NULL, 10), 0) == 0) /* until init has seen to it */
        usleep(1000);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no zombie of ours */
    atomic_store(&stopping, true);
    assert_int_equal(run_script("sleep 100\n", 60000), ERR_CANCELLED);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

/* An agent that stays behind with the pipes in its hands does not hold it up. */
static void test_helper_leaves_an_agent(void **state UNUSED)
{
    int64_t start = clock_mono_ms();

    assert_int_equal(run_script("sleep 20 &\necho '{}'\n", 60000), 0);
    assert_true(clock_mono_ms() - start < 15000);
}

static void check_words(const char *words, const char *out, const char *want)
{
    char text[HELPER_WORDS_BYTES];

    snprintf(text, sizeof text, "%s", words);
    helper_words(text, out, strlen(out));
    assert_string_equal(text, want);
}

static void test_helper_words(void **state UNUSED)
{
    check_words("no such\nprofile\x1b[1m", "", "no such profile [1m");
    check_words("+ echo hunter2", "{\"Username\":\"me\",\"Secret\":\"hunter2\"}", "");
    check_words("+ echo hunter2", "{\"Secret\":\"hunter2", "");
    check_words("hunter2", "no: hunter2\n", "");
    check_words("it is hunter 2.", "{\"Secret\":\"hunter 2\"}", "");
    check_words("profile me is odd", "{\"Username\":\"me\",\"Secret\":\"hunter2\"}", "profile me is odd");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_password_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sources, setup, teardown),
        cmocka_unit_test_setup_teardown(test_auth_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_helper, setup, teardown),
        cmocka_unit_test_setup_teardown(test_helper_has_none, setup, teardown),
        cmocka_unit_test_setup_teardown(test_helper_failures, setup, teardown),
        cmocka_unit_test_setup_teardown(test_helper_surroundings, setup, teardown),
        cmocka_unit_test_setup_teardown(test_helper_hangs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_helper_leaves_an_agent, setup, teardown),
        cmocka_unit_test(test_helper_words),
    };

    signal(SIGPIPE, SIG_IGN); /* blocked in recask's threads */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
