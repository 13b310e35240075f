/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_helper.c - a child process and its three pipes.
 *
 * The end of the process counts and not that of its pipes: a helper may leave an agent behind that holds them open. Where there
 * is no wake-up for that which all kernels and sandboxes have (pidfds), it is looked for every SLICE_MS.
 */
#include "proxy/upstream_helper.h"

#include "base/clock.h"
#include "base/fsutil.h"
#include "base/log.h"
#include "base/secret.h"
#include "oci/credentials.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLICE_MS 50
#define LAST_SLICE_MS 2 /* all is said, the end is near */
#define VALUE_MIN_BYTES 4

extern char **environ;

struct child {
    pid_t pid; /* 0: none, or waited for */
    int in, out, err;
    char words[HELPER_WORDS_BYTES]; /* the begin of its stderr */
    size_t words_len;
};

/* Its group, and with it what it has started. */
static void child_end(struct child *c)
{
    if (c->pid > 0) {
        kill(-c->pid, SIGKILL);
        while (waitpid(c->pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    c->pid = 0;
    fd_cleanup(&c->in);
    fd_cleanup(&c->out);
    fd_cleanup(&c->err);
}

/* ---- the start ---------------------------------------------------------------------------------------------------- */

static int open_pipe(int *out_read, int *out_write, struct err *err)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_sys(err, errno, "a pipe for a credential helper");
    *out_read = fds[0];
    *out_write = fds[1];
    return 0;
}

/* Pointers into environ, which nothing changes while threads run. */
static int make_environment(char ***out, struct err *err)
{
    size_t count = 0, kept = 0;

    while (environ[count] != NULL)
        count++;
    *out = calloc(count + 1, sizeof(char *));
    if (*out == NULL)
        return err_nomem(err, (count + 1) * sizeof(char *));
    for (size_t i = 0; i < count; i++)
        if (strncmp(environ[i], "RECASK_", strlen("RECASK_")) != 0)
            (*out)[kept++] = environ[i];
    return 0;
}

static int spawn_with(pid_t *out, const char *program, const posix_spawn_file_actions_t *actions, char **environment)
{
    char get[] = "get";
    char *argv[] = {(char *)(uintptr_t)program, get, NULL};
    posix_spawnattr_t attr;
    sigset_t none, most;
    int rc;

    sigemptyset(&none);
    sigfillset(&most);
    sigdelset(&most, SIGKILL);
    sigdelset(&most, SIGSTOP);
    rc = posix_spawnattr_init(&attr);
    if (rc != 0)
        return rc;
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &most);
    posix_spawnattr_setpgroup(&attr, 0);
    rc = posix_spawnp(out, program, actions, &attr, argv, environment);
    posix_spawnattr_destroy(&attr);
    return rc;
}

static int spawn(pid_t *out, const char *program, const int fds[3], struct err *err)
{
    CLEANUP(free_ptr) char **environment = NULL;
    posix_spawn_file_actions_t actions;
    int rc;

    TRY(make_environment(&environment, err));
    rc = posix_spawn_file_actions_init(&actions);
    if (rc != 0)
        return err_sys(err, rc, "credential helper %s", program);
    for (int i = 0; i < 3 && rc == 0; i++)
        rc = posix_spawn_file_actions_adddup2(&actions, fds[i], i);
    if (rc == 0)
        rc = posix_spawn_file_actions_addclosefrom_np(&actions, 3);
    if (rc == 0)
        rc = spawn_with(out, program, &actions, environment);
    posix_spawn_file_actions_destroy(&actions);
    return rc != 0 ? err_sys(err, rc, "cannot run credential helper %s", program) : 0;
}

static int child_start(struct child *c, const char *helper, struct err *err)
{
    CLEANUP(fd_cleanup) int in = -1;
    CLEANUP(fd_cleanup) int out = -1;
    CLEANUP(fd_cleanup) int errors = -1;
    CLEANUP(free_ptr) char *program = NULL;
    pid_t pid = 0;

    TRY(str_printf(&program, err, "%s%s", helper[0] == '/' ? "" : "docker-credential-", helper));
    TRY(open_pipe(&in, &c->in, err));
    TRY(open_pipe(&c->out, &out, err));
    TRY(open_pipe(&c->err, &errors, err));
    TRY(spawn(&pid, program, (const int[]){in, out, errors}, err));
    c->pid = pid;
    if (fcntl(c->out, F_SETFL, O_NONBLOCK) < 0 || fcntl(c->err, F_SETFL, O_NONBLOCK) < 0)
        return err_sys(err, errno, "credential helper %s", helper);
    return 0;
}

/* Less than a pipe holds. A helper that does not read it is free not to; SIGPIPE is blocked in this thread. */
static void tell_server(struct child *c, const char *server)
{
    CLEANUP(free_ptr) char *line = NULL;
    struct err ignored = ERR_INIT;

    if (str_printf(&line, &ignored, "%s\n", server) < 0 ||
        fs_write_all(c->in, line, strlen(line), "its stdin", &ignored) < 0)
        log_event(LOG_DEBUG, "credential.helper", "msg=%s", log_quote(ignored.msg).s);
    fd_cleanup(&c->in);
}

/* ---- its words ---------------------------------------------------------------------------------------------------- */

/* Whether a piece of out, cut at the delimiters, is in words. */
static bool repeats(const char *words, const char *out, size_t out_len, const char *delimiters)
{
    for (size_t at = 0, end; at < out_len; at = end + 1) {
        for (end = at; end < out_len && (out[end] == '\0' || strchr(delimiters, out[end]) == NULL); end++)
            continue;
        if (end - at >= VALUE_MIN_BYTES && memmem(words, strlen(words), out + at, end - at) != NULL)
            return true;
    }
    return false;
}

void helper_words(char *words, const char *out, size_t out_len)
{
    for (char *p = words; *p != '\0'; p++)
        if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7f)
            *p = ' ';
    if (repeats(words, out, out_len, "\"") || repeats(words, out, out_len, "\"' \t\r\n"))
        words[0] = '\0';
}

/* ---- its end ------------------------------------------------------------------------------------------------------ */

/* Reads what is there; closes at the end. */
static int read_out(struct child *c, struct buf *out, struct err *err)
{
    while (c->out >= 0) {
        char block[4096];
        ssize_t n = read(c->out, block, sizeof block);
        int rc = n > 0 ? buf_add(out, block, (size_t)n, err) : 0;

        secret_wipe(block, sizeof block);
        if (rc < 0)
            return rc;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return 0;
        if (n <= 0)
            fd_cleanup(&c->out);
    }
    return 0;
}

static void read_words(struct child *c)
{
    while (c->err >= 0) {
        char block[512];
        ssize_t n = read(c->err, block, sizeof block);
        size_t room = sizeof c->words - 1 - c->words_len;

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            fd_cleanup(&c->err);
            return;
        }
        if (room > (size_t)n)
            room = (size_t)n;
        memcpy(c->words + c->words_len, block, room);
        c->words_len += room;
    }
}

/* Whether it has ended; then the status is in *out_status. */
static bool child_ended(struct child *c, int *out_status)
{
    pid_t pid = waitpid(c->pid, out_status, WNOHANG);

    if (pid == 0 || (pid < 0 && errno == EINTR))
        return false;
    if (pid < 0) /* whoever started recask had it ignore its children */
        *out_status = 0;
    c->pid = 0;
    return true;
}

static int child_wait(struct child *c, const struct helper_run *run, struct buf *out, int *out_status, struct err *err)
{
    int64_t end_ms = clock_mono_ms() + run->limit_ms;
    bool ended = false;

    while (!ended) {
        struct pollfd fds[] = {{.fd = c->out, .events = POLLIN}, {.fd = c->err, .events = POLLIN}};

        (void)poll(fds, ARRAY_LEN(fds), c->out < 0 && c->err < 0 ? LAST_SLICE_MS : SLICE_MS);
        ended = child_ended(c, out_status);
        if (read_out(c, out, err) < 0)
            return err_wrap(err, "credential helper %s", run->helper);
        read_words(c);
        if (!ended && atomic_load(run->stopping))
            return err_set(err, ERR_CANCELLED, "credential helper %s: recask is stopping", run->helper);
        if (!ended && clock_mono_ms() >= end_ms)
            return err_set(err, ERR_TIMEOUT, "credential helper %s: no answer for %d ms", run->helper, run->limit_ms);
    }
    return 0;
}

static int judge(const struct helper_run *run, struct child *c, int status, struct buf *out, struct err *err)
{
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        if (out->len == 0)
            return err_set(err, ERR_UPSTREAM, "credential helper %s: nothing on its stdout", run->helper);
        return 0;
    }
    if (oci_helper_has_none(out->len > 0 ? out->data : "", out->len)) {
        secret_wipe(out->data, out->len);
        buf_reset(out);
        return 0;
    }
    helper_words(c->words, out->len > 0 ? out->data : "", out->len);
    log_event(LOG_WARN, "credential.helper", "helper=%s status=%d signal=%d said=%s", log_quote(run->helper).s,
              WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0,
              log_quote(c->words).s);
    if (WIFSIGNALED(status))
        return err_set(err, ERR_UPSTREAM, "credential helper %s: ended by signal %d", run->helper, WTERMSIG(status));
    return err_set(err, ERR_UPSTREAM, "credential helper %s: ended with status %d", run->helper, WEXITSTATUS(status));
}

int helper_run(const struct helper_run *run, struct buf *out, struct err *err)
{
    CLEANUP(child_end) struct child c = {.in = -1, .out = -1, .err = -1};
    int status = 0;

    TRY(child_start(&c, run->helper, err));
    tell_server(&c, run->server);
    TRY(child_wait(&c, run, out, &status, err));
    return judge(run, &c, status, out, err);
}
