/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/proxy_util.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PATIENCE_MS 20000

/* ---- a source -------------------------------------------------------------------------------------------------------- */

struct source_script {
    struct source source;
    struct script sc;
    size_t pos;
    unsigned reads;
    pthread_mutex_t m;
    bool woken;
    source_wake_fn *wake;
    void *wake_arg;
};

static int hang(struct source_script *s)
{
    pthread_mutex_lock(&s->m);
    bool over = s->woken;
    pthread_mutex_unlock(&s->m);
    return over ? STEP_EOF : STEP_WAIT;
}

static int script_read(struct source *base, void *out, size_t cap, size_t *out_len, struct err *err)
{
    struct source_script *s = (struct source_script *)base;
    size_t end = s->sc.fail_at < s->sc.len ? s->sc.fail_at : s->sc.len;
    size_t n = end - s->pos;

    s->reads++;
    if (s->sc.wait_each && s->reads % s->sc.wait_each == 0) {
        s->wake(s->wake_arg);
        return STEP_WAIT;
    }
    if (n == 0 && s->sc.hang && hang(s) == STEP_WAIT)
        return STEP_WAIT;
    if (n == 0 && s->sc.fail_at != SIZE_MAX)
        return err_set(err, ERR_CORRUPT, "as told");
    if (n == 0)
        return STEP_EOF;
    n = n < cap ? n : cap;
    if (s->sc.piece && n > s->sc.piece)
        n = s->sc.piece;
    memcpy(out, s->sc.data + s->pos, n);
    s->pos += n;
    *out_len = n;
    return STEP_MORE;
}

static void script_waker(struct source *base, source_wake_fn *fn, void *arg)
{
    struct source_script *s = (struct source_script *)base;
    s->wake = fn;
    s->wake_arg = arg;
}

static void script_free(struct source *base)
{
    struct source_script *s = (struct source_script *)base;
    char thread[16] = "";

    pthread_getname_np(pthread_self(), thread, sizeof(thread));
    if (s->sc.freed_on_event_thread && strncmp(thread, "MHD", 3) == 0)
        atomic_fetch_add(s->sc.freed_on_event_thread, 1);
    if (s->sc.freed)
        atomic_fetch_add(s->sc.freed, 1);
    pthread_mutex_destroy(&s->m);
    free(s);
}

int source_script_new(const struct script *sc, struct source **out, struct err *err)
{
    static const struct source_ops ops = {"script", script_read, script_waker, script_free};
    struct source_script *s = calloc(1, sizeof(*s));

    if (!s)
        return err_nomem(err, sizeof(*s));
    s->source = (struct source){SOURCE_MAGIC, &ops};
    s->sc = *sc;
    pthread_mutex_init(&s->m, NULL);
    *out = &s->source;
    return 0;
}

void script_wake(struct source *base)
{
    struct source_script *s = (struct source_script *)base;
    pthread_mutex_lock(&s->m);
    s->woken = true;
    source_wake_fn *fn = s->wake;
    void *arg = s->wake_arg;
    pthread_mutex_unlock(&s->m);
    if (fn)
        fn(arg);
}

static void count_wake(void *arg)
{
    atomic_fetch_add((atomic_uint *)arg, 1);
}

static void wait_for_wake(atomic_uint *wakes)
{
    int64_t end = clock_mono_ms() + PATIENCE_MS;
    while (atomic_exchange(wakes, 0) == 0) {
        REQUIRE(clock_mono_ms() < end); /* it would have been for ever */
        usleep(200);
    }
}

void source_drain(struct source **s, size_t cap, struct drained *out)
{
    size_t room = 1 << 16;
    atomic_uint wakes = 0;

    *out = (struct drained){.data = malloc(room)};
    REQUIRE(out->data && cap > 0);
    source_set_waker(*s, count_wake, &wakes);
    for (;;) {
        size_t got = 0;
        while (room - out->len < cap) {
            room *= 2;
            out->data = realloc(out->data, room);
            REQUIRE(out->data);
        }
        out->rc = source_read(*s, out->data + out->len, cap, &got, &out->err);
        out->len += got;
        if (out->rc == STEP_WAIT) {
            out->waits++;
            wait_for_wake(&wakes);
        } else if (out->rc != STEP_MORE) {
            break;
        }
    }
    source_free(steal(s));
}

void drained_release(struct drained *d)
{
    free(d->data);
}

/* ---- HTTP by hand ---------------------------------------------------------------------------------------------------- */

int client_connect(const char *address)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const char *colon = strrchr(address, ':');
    int fd, rc;

    if (address[0] == '/') {
        snprintf(un.sun_path, sizeof(un.sun_path), "%s", address);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        rc = connect(fd, (struct sockaddr *)&un, sizeof(un));
    } else {
        REQUIRE(colon);
        in.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        rc = connect(fd, (struct sockaddr *)&in, sizeof(in));
    }
    REQUIRE(fd >= 0 && rc == 0);
    return fd;
}

void client_send(int fd, const char *text)
{
    size_t len = strlen(text);
    while (len > 0) {
        ssize_t n = send(fd, text, len, MSG_NOSIGNAL);
        if (n <= 0)
            return; /* the server has had enough; what it said is still there */
        text += n;
        len -= (size_t)n;
    }
}

char *client_read(int fd, size_t enough, size_t *out_len)
{
    size_t len = 0, room = 1 << 16;
    char *data = malloc(room);
    int64_t end = clock_mono_ms() + PATIENCE_MS;

    REQUIRE(data);
    while (len < enough) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int64_t left = end - clock_mono_ms();
        if (left <= 0 || poll(&p, 1, (int)left) <= 0)
            break;
        if (room - len < 2) {
            room *= 2;
            data = realloc(data, room);
            REQUIRE(data);
        }
        size_t want = room - len - 1 < enough - len ? room - len - 1 : enough - len;
        ssize_t n = recv(fd, data + len, want, 0);
        if (n <= 0)
            break;
        len += (size_t)n;
    }
    data[len] = '\0';
    if (out_len)
        *out_len = len;
    return data;
}

char *client_ask(const char *address, const char *method, const char *path, const char *more_headers, size_t *out_len)
{
    char request[4096];
    int fd = client_connect(address);

    snprintf(request, sizeof(request), "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s\r\n", method, path,
             more_headers ? more_headers : "");
    client_send(fd, request);
    char *answer = client_read(fd, SIZE_MAX, out_len);
    close(fd);
    return answer;
}

int answer_status(const char *answer)
{
    return strncmp(answer, "HTTP/1.1 ", 9) == 0 ? (int)strtol(answer + 9, NULL, 10) : -1;
}

static const char *header_find(const char *answer, const char *name)
{
    const char *end = strstr(answer, "\r\n\r\n");
    size_t len = strlen(name);

    for (const char *p = strstr(answer, "\r\n"); p && end && p < end; p = strstr(p + 2, "\r\n")) {
        if (strncasecmp(p + 2, name, len) == 0 && p[2 + len] == ':')
            return p + 2 + len + 2;
    }
    return NULL;
}

bool header_is(const char *answer, const char *name, const char *value)
{
    const char *p = header_find(answer, name);
    return p && strncmp(p, value, strlen(value)) == 0 && strncmp(p + strlen(value), "\r\n", 2) == 0;
}

bool header_there(const char *answer, const char *name)
{
    return header_find(answer, name) != NULL;
}

const char *answer_body(const char *answer)
{
    const char *end = strstr(answer, "\r\n\r\n");
    return end ? end + 4 : "";
}

bool until(bool (*fn)(void *arg), void *arg)
{
    int64_t end = clock_mono_ms() + PATIENCE_MS;
    while (!fn(arg)) {
        if (clock_mono_ms() > end)
            return false;
        usleep(1000);
    }
    return true;
}
