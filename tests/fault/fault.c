/* SPDX-License-Identifier: Apache-2.0
 * tests/fault/fault.c - what is to fail and when (fault.h).
 */
#include "tests/fault/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct fault_control *fault_ctl;

static struct fault_control private_control;
static char top[PATH_MAX]; /* RECASK_FAULT_DIR, as the kernel spells it, with a slash behind; empty: no file counts */
static size_t top_len;
static bool lose;
static uint64_t seed;
static const char *count_path;
static int trace_fd = -1;
static pthread_mutex_t step_lock = PTHREAD_MUTEX_INITIALIZER;

struct name {
    const char *text;
    int value;
};

static const struct name kinds[] = {
    {"open", FAULT_OPEN},          {"read", FAULT_READ},     {"write", FAULT_WRITE},   {"fsync", FAULT_SYNC},
    {"sync", FAULT_SYNC},          {"rename", FAULT_RENAME}, {"unlink", FAULT_UNLINK}, {"truncate", FAULT_TRUNCATE},
    {"fallocate", FAULT_ALLOCATE}, {"create", FAULT_CREATE}, {"mkdir", FAULT_MKDIR},   {"link", FAULT_LINK},
    {"malloc", FAULT_MALLOC},      {"own", FAULT_OWN},       {"fd", FAULT_FD},
};

static const struct name errors[] = {
    {"EIO", EIO},       {"ENOSPC", ENOSPC},         {"EMFILE", EMFILE}, {"ENFILE", ENFILE},     {"ENOMEM", ENOMEM},
    {"EDQUOT", EDQUOT}, {"EROFS", EROFS},           {"EINTR", EINTR},   {"EACCES", EACCES},     {"ENOENT", ENOENT},
    {"EINVAL", EINVAL}, {"EOPNOTSUPP", EOPNOTSUPP}, {"EFBIG", EFBIG},   {"SHORT", FAULT_SHORT},
};

/* ---- set-up ------------------------------------------------------------------------------------------------------------- */

static void __attribute__((noreturn)) wrong(const char *what, const char *value)
{
    (void)fprintf(stderr, "libfault: %s: \"%s\"\n", what, value);
    _exit(99);
}

static int look_up(const struct name *names, size_t count, const char *text, size_t len)
{
    char *end;
    long n;

    for (size_t i = 0; i < count; i++)
        if (strlen(names[i].text) == len && memcmp(names[i].text, text, len) == 0)
            return names[i].value;
    n = strtol(text, &end, 10);
    if (end != text + len || n <= 0)
        wrong("no such kind or error", text);
    return (int)n;
}

static int64_t number_of(const char *name)
{
    const char *text = getenv(name);
    char *end;
    long long n;

    if (text == NULL)
        return 0;
    n = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || n < 0)
        wrong(name, text);
    return n;
}

static void set_fail(const char *text)
{
    char *rest;
    long long first = strtoll(text, &rest, 10);
    size_t len;
    int which = 0;
    bool all = *text != '\0' && text[strlen(text) - 1] == '+';

    if (first <= 0 || *rest != ':')
        wrong("RECASK_FAULT_FAIL", text);
    len = strcspn(++rest, ":+");
    fault_ctl->fail_errno = look_up(errors, sizeof(errors) / sizeof(errors[0]), rest, len);
    for (rest += len; *rest == ':' || *rest == ','; rest += len) {
        len = strcspn(++rest, ",+");
        which |= look_up(kinds, sizeof(kinds) / sizeof(kinds[0]), rest, len);
    }
    fault_ctl->fail_kinds = which != 0 ? which : FAULT_STEPS;
    fault_ctl->fail_count = all ? INT64_MAX : 1;
    fault_ctl->fail_in = first;
}

/* It need not be there yet, only what it is to be in. */
static void set_top(const char *dir)
{
    char copy[PATH_MAX];
    char *slash;
    const char *last = "";

    (void)snprintf(copy, sizeof(copy), "%s", dir);
    if (realpath(copy, top) == NULL) {
        slash = strrchr(copy, '/');
        if (slash != NULL) {
            *slash = '\0';
            last = slash + 1;
        }
        if (realpath(slash == copy ? "/" : copy, top) == NULL)
            wrong("RECASK_FAULT_DIR", dir);
    }
    top_len = strlen(top);
    top_len += (size_t)snprintf(top + top_len, sizeof(top) - top_len, "%s%s/", *last != '\0' ? "/" : "", last);
    undo_setup(top);
}

static struct fault_control *map_control(const char *path)
{
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *at = MAP_FAILED;

    if (fd >= 0 && syscall(SYS_ftruncate, fd, sizeof(struct fault_control)) == 0)
        at = mmap(NULL, sizeof(struct fault_control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        wrong("RECASK_FAULT_CONTROL", path);
    (void)close(fd);
    return at;
}

static void __attribute__((constructor)) set_up(void)
{
    const char *control = getenv("RECASK_FAULT_CONTROL");
    const char *dir = getenv("RECASK_FAULT_DIR");
    const char *fail = getenv("RECASK_FAULT_FAIL");
    const char *path = getenv("RECASK_FAULT_PATH");
    const char *trace = getenv("RECASK_FAULT_TRACE");
    const char *loses = getenv("RECASK_FAULT_LOSE");
    int64_t kill_in = number_of("RECASK_FAULT_KILL");

    if (dir != NULL)
        set_top(dir);
    lose = loses != NULL && strcmp(loses, "1") == 0;
    seed = (uint64_t)number_of("RECASK_FAULT_SEED");
    count_path = getenv("RECASK_FAULT_COUNT");
    if (trace != NULL)
        trace_fd = (int)syscall(SYS_openat, AT_FDCWD, trace, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    fault_ctl = control != NULL ? map_control(control) : &private_control;
    if (kill_in > 0)
        fault_ctl->kill_in = kill_in;
    if (path != NULL)
        (void)snprintf(fault_ctl->path, sizeof(fault_ctl->path), "%s", path);
    if (fail != NULL)
        set_fail(fail);
}

static void __attribute__((destructor)) finish(void)
{
    char text[32];
    int len;
    int fd;

    if (count_path == NULL || fault_ctl == NULL)
        return;
    fd = (int)syscall(SYS_openat, AT_FDCWD, count_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    len = snprintf(text, sizeof(text), "%lld\n", (long long)fault_ctl->steps);
    if (fd >= 0) {
        (void)!syscall(SYS_write, fd, text, (size_t)len);
        (void)close(fd);
    }
}

/* ---- which files ---------------------------------------------------------------------------------------------------------- */

static bool counts(const char *path, size_t len)
{
    static const char deleted[] = " (deleted)";

    if (len > sizeof(deleted) && strcmp(path + len - (sizeof(deleted) - 1), deleted) == 0)
        len -= sizeof(deleted) - 1;
    return top_len > 0 && len >= top_len - 1 && memcmp(path, top, top_len - 1) == 0 &&
           (len == top_len - 1 || path[top_len - 1] == '/') && (len < 4 || memcmp(path + len - 4, "-shm", 4) != 0);
}

static size_t read_link(int fd, char *out)
{
    char link[32];
    long len;

    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    len = syscall(SYS_readlinkat, AT_FDCWD, link, out, FAULT_PATH_BYTES - 1);
    if (len < 0 || len == FAULT_PATH_BYTES - 1)
        len = 0;
    out[len] = '\0';
    return (size_t)len;
}

bool fault_path_of_fd(int fd, char *out)
{
    int saved = errno;
    size_t len;

    if (fault_ctl == NULL || top_len == 0)
        return false;
    len = read_link(fd, out);
    errno = saved;
    return counts(out, len);
}

bool fault_path_at(int dir_fd, const char *name, char *out)
{
    int saved = errno;
    const char *slash = strrchr(name, '/');
    const char *last = slash != NULL ? slash + 1 : name;
    char dir[FAULT_PATH_BYTES] = ".";
    size_t len = 0;
    int fd;

    if (fault_ctl == NULL || top_len == 0)
        return false;
    if (slash != NULL)
        (void)snprintf(dir, sizeof(dir), "%.*s", slash == name ? 1 : (int)(slash - name), name);
    fd = (int)syscall(SYS_openat, dir_fd, dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        len = read_link(fd, out);
        (void)syscall(SYS_close, fd);
    }
    errno = saved;
    if (len == 0 || len + strlen(last) + 2 > FAULT_PATH_BYTES)
        return false;
    len += (size_t)snprintf(out + len, FAULT_PATH_BYTES - len, "%s%s", out[len - 1] == '/' ? "" : "/", last);
    return counts(out, len);
}

/* ---- what happens ---------------------------------------------------------------------------------------------------------- */

bool fault_loses(void)
{
    return lose;
}

/* True when the counter was at 1, and thus due. */
static bool count_down(atomic_int_fast64_t *n)
{
    int_fast64_t at = atomic_load(n);

    while (at > 1)
        if (atomic_compare_exchange_weak(n, &at, at - 1))
            return false;
    return at == 1;
}

static bool take_one(atomic_int_fast64_t *n)
{
    int_fast64_t at = atomic_load(n);

    while (at > 0)
        if (at == INT64_MAX || atomic_compare_exchange_weak(n, &at, at - 1))
            return true;
    return false;
}

static int fails(enum fault_kind kind, const char *path)
{
    if ((fault_ctl->fail_kinds & kind) == 0 || atomic_load(&fault_ctl->fail_in) == 0)
        return 0;
    if (path != NULL && fault_ctl->path[0] != '\0' && strstr(path, fault_ctl->path) == NULL)
        return 0;
    atomic_fetch_add(&fault_ctl->calls, 1);
    if (!count_down(&fault_ctl->fail_in) || !take_one(&fault_ctl->fail_count))
        return 0;
    atomic_fetch_add(&fault_ctl->failed, 1);
    return (int)fault_ctl->fail_errno;
}

static void trace(int64_t step, enum fault_kind kind, const char *path)
{
    char line[FAULT_PATH_BYTES + 64];
    const char *name = "?";
    int len;

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (kinds[i].value == (int)kind)
            name = kinds[i].text;
    len = snprintf(line, sizeof(line), "%lld %s %s\n", (long long)step, name, path);
    (void)!syscall(SYS_write, trace_fd, line, (size_t)len);
}

static void __attribute__((noreturn)) die(void)
{
    if (lose)
        undo_and_die(seed);
    for (;;) {
        (void)kill(getpid(), SIGKILL);
        (void)pause();
    }
}

int fault_begin(enum fault_kind kind, const char *path)
{
    int saved = errno;
    int rc;

    if ((kind & FAULT_STEPS) != 0) {
        int64_t step;

        if (lose)
            (void)pthread_mutex_lock(&step_lock);
        step = atomic_fetch_add(&fault_ctl->steps, 1) + 1;
        if (trace_fd >= 0)
            trace(step, kind, path);
        if (count_down(&fault_ctl->kill_in))
            die();
    }
    rc = fails(kind, path);
    errno = saved;
    return rc;
}

void fault_end(void)
{
    if (lose)
        (void)pthread_mutex_unlock(&step_lock);
}

int fault_check(enum fault_kind kind)
{
    return fault_ctl != NULL ? fails(kind, NULL) : 0;
}
