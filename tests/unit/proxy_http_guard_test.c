/* SPDX-License-Identifier: Apache-2.0
 * proxy/http_guard.c and what http.c refuses: clients that are slow, silent, too many or unclear. Times are short here, and
 * nothing is asserted about how long something took but that it ends.
 */
#include "base/clock.h"
#include "proxy/http_internal.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/proxy_util.h"

#define BIG (16u << 20) /* more than the socket buffers of both sides take */
#define SHORT_MS 300
#define LONG_MS 60000

struct fixture {
    struct workpool *pool;
    struct http_server *server;
    struct http_listener *l;
    const char *address;
    char *big;
    pthread_mutex_t m;
    struct http_exchange *parked; /* of "/park", answered by the test */
    struct http_done last;
    char last_method[16];
    atomic_uint handled, done;
};

static void reply_text(struct http_exchange *x, const char *text)
{
    struct http_answer a = {.status = 200, .body = strdup(text), .body_len = strlen(text)};
    http_reply(x, &a);
}

static void handle(void *arg, struct http_exchange *x)
{
    struct fixture *f = arg;
    struct err err = ERR_INIT;

    atomic_fetch_add(&f->handled, 1);
    if (strcmp(http_path(x), "/park") == 0) {
        pthread_mutex_lock(&f->m);
        REQUIRE(!f->parked);
        f->parked = x;
        pthread_mutex_unlock(&f->m);
    } else if (strcmp(http_path(x), "/big") == 0) {
        struct script sc = {.data = f->big, .len = BIG, .fail_at = SIZE_MAX};
        struct http_answer a = {.status = 200, .has_length = true, .length_bytes = BIG};
        REQUIRE(source_script_new(&sc, &a.source, &err) == 0);
        http_reply(x, &a);
    } else {
        reply_text(x, http_path(x));
    }
}

static void on_done(void *arg, const struct http_exchange *x, const struct http_done *done)
{
    struct fixture *f = arg;

    pthread_mutex_lock(&f->m);
    f->last = *done;
    snprintf(f->last_method, sizeof(f->last_method), "%s", http_method_text(x));
    pthread_mutex_unlock(&f->m);
    atomic_fetch_add(&f->done, 1);
}

static struct http_exchange *take_parked(struct fixture *f)
{
    pthread_mutex_lock(&f->m);
    struct http_exchange *x = f->parked;
    f->parked = NULL;
    pthread_mutex_unlock(&f->m);
    return x;
}

static bool is_parked(void *arg)
{
    struct fixture *f = arg;
    pthread_mutex_lock(&f->m);
    bool parked = f->parked != NULL;
    pthread_mutex_unlock(&f->m);
    return parked;
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct err err = ERR_INIT;

    assert_non_null(f);
    pthread_mutex_init(&f->m, NULL);
    f->big = calloc(1, BIG);
    assert_non_null(f->big);
    ASSERT_OK(workpool_new("work", 2, &f->pool, &err));
    *state = f;
    return 0;
}

/* Each test says its limits first. */
static void serve(struct fixture *f, struct http_options opt)
{
    struct err err = ERR_INIT;

    opt.pool = f->pool;
    ASSERT_OK(http_server_new(&opt, &f->server, &err));
    ASSERT_OK(http_listen(f->server, &(struct http_listen_options){.address = "127.0.0.1:0"}, handle, f, &f->l, &err));
    http_on_done(f->l, on_done, f);
    f->address = http_listener_address(f->l);
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    http_server_drain(f->server, 5000);
    workpool_free(f->pool);
    http_server_free(f->server);
    pthread_mutex_destroy(&f->m);
    free(f->big);
    free(f);
    return 0;
}

static bool readable(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, ms) > 0;
}

/* Sends a byte now and then until there is an answer or the end; returns what came. */
static char *dribble(int fd, size_t *out_len)
{
    int64_t end = clock_mono_ms() + 20000;
    while (!readable(fd, SHORT_MS / 10) && clock_mono_ms() < end)
        client_send(fd, "a");
    return client_read(fd, SIZE_MAX, out_len);
}

static void expect_ok(struct fixture *f)
{
    char *a = client_ask(f->address, "GET", "/ok", NULL, NULL);
    assert_int_equal(answer_status(a), 200);
    free(a);
}

static int receive_little(const char *address)
{
    int fd = client_connect(address), bytes = 4096; /* of a socket that has not received anything yet */
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)), 0);
    return fd;
}

/* ---- requests that do not arrive ----------------------------------------------------------------------------------------- */

static void expect_timeout(char *a)
{
    assert_int_equal(answer_status(a), 408);
    assert_int_equal(strlen(answer_body(a)), 83);
    free(a);
}

/* The limit is for the whole head: each byte that comes does not begin it anew. */
static void test_slow_heads(void **state)
{
    struct fixture *f = *state;
    static const char *const heads[] = {"G", "GET /x", "GET /x HTTP/1.1\r\n", "GET /x HTTP/1.1\r\nHost: x\r\nX-Y: "};

    serve(f, (struct http_options){.header_ms = SHORT_MS, .idle_ms = LONG_MS});
    for (size_t i = 0; i < ARRAY_LEN(heads); i++) {
        int fd = client_connect(f->address);
        client_send(fd, heads[i]);
        expect_timeout(dribble(fd, NULL));
        close(fd);
    }
    assert_int_equal(atomic_load(&f->handled), 0);
    expect_ok(f);
}

static void test_slow_second_head(void **state)
{
    struct fixture *f = *state;

    serve(f, (struct http_options){.header_ms = SHORT_MS, .idle_ms = LONG_MS});
    int fd = client_connect(f->address);
    client_send(fd, "GET /1 HTTP/1.1\r\nHost: x\r\n\r\n");
    char *a = client_read(fd, 1, NULL);
    free(a);
    usleep(2 * SHORT_MS * 1000); /* idle is another matter */
    client_send(fd, "GET /2 HTTP/1.1\r\nHost: x\r\n\r\nGET /3 HTTP/1.1\r\nX-Y: ");
    size_t len;
    a = dribble(fd, &len);
    assert_non_null(memmem(a, len, "/2", 2));
    assert_non_null(memmem(a, len, "HTTP/1.1 408", 12));
    free(a);
    close(fd);
    assert_int_equal(atomic_load(&f->handled), 2);
}

static bool told_408(void *arg)
{
    struct fixture *f = arg;
    pthread_mutex_lock(&f->m);
    bool told = f->last.status == 408 && f->last.ms >= 0 && !f->last.complete && !f->last.tls &&
                strcmp(f->last.listener, f->address) == 0;
    pthread_mutex_unlock(&f->m);
    return told;
}

static void test_slow_body(void **state)
{
    struct fixture *f = *state;

    serve(f, (struct http_options){.header_ms = LONG_MS, .idle_ms = SHORT_MS});
    int fd = client_connect(f->address);
    client_send(fd, "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n");
    expect_timeout(dribble(fd, NULL));
    close(fd);
    assert_int_equal(atomic_load(&f->handled), 0);
    assert_true(until(told_408, f));
}

static void test_idle_connections_end(void **state)
{
    struct fixture *f = *state;
    size_t len;

    serve(f, (struct http_options){.header_ms = LONG_MS, .idle_ms = SHORT_MS});
    int silent = client_connect(f->address), fd = client_connect(f->address);
    client_send(fd, "GET /1 HTTP/1.1\r\nHost: x\r\n\r\n");
    char *a = client_read(fd, SIZE_MAX, &len); /* until the server closes */
    assert_int_equal(answer_status(a), 200);
    assert_string_equal(answer_body(a), "/1");
    free(a);
    a = client_read(silent, SIZE_MAX, &len);
    assert_int_equal(len, 0);
    free(a);
    close(fd);
    close(silent);
}

/* ---- answers that are not fetched ----------------------------------------------------------------------------------------- */

static bool nothing_runs(void *arg)
{
    struct fixture *f = arg;
    return http_running(f->server) == 0 && atomic_load(&f->done) > 0;
}

static void test_client_that_reads_nothing(void **state)
{
    struct fixture *f = *state;

    serve(f, (struct http_options){.header_ms = LONG_MS, .idle_ms = SHORT_MS});
    int fd = receive_little(f->address);
    client_send(fd, "GET /big HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_true(until(nothing_runs, f));
    assert_false(f->last.complete);
    close(fd);
    expect_ok(f);
}

static void test_slow_reader_lives(void **state)
{
    struct fixture *f = *state;
    size_t len;

    serve(f, (struct http_options){.header_ms = LONG_MS, .idle_ms = 3 * SHORT_MS});
    int fd = receive_little(f->address);
    client_send(fd, "GET /big HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    for (int64_t end = clock_mono_ms() + 12 * SHORT_MS; clock_mono_ms() < end;) {
        char *a = client_read(fd, 4000, &len);
        assert_int_equal(len, 4000);
        free(a);
        usleep(SHORT_MS * 1000 / 4);
    }
    assert_int_equal(http_running(f->server), 1);
    close(fd);
}

/* Whoever waits for a handler is not slow, and a handler that takes its time is no reason to cut. */
static void test_waiting_clients_live(void **state)
{
    struct fixture *f = *state;

    serve(f, (struct http_options){.header_ms = SHORT_MS, .idle_ms = SHORT_MS});
    int fd = client_connect(f->address);
    client_send(fd, "GET /park HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_true(until(is_parked, f));
    usleep(3 * SHORT_MS * 1000);
    reply_text(take_parked(f), "at last");
    char *a = client_read(fd, SIZE_MAX, NULL);
    assert_string_equal(answer_body(a), "at last");
    free(a);
    close(fd);
}

/* ... but one that has left is noticed while its handler waits, closed or reset. */
static void test_waiting_clients_leave(void **state)
{
    struct fixture *f = *state;

    serve(f, (struct http_options){.header_ms = LONG_MS, .idle_ms = LONG_MS});
    for (int reset = 0; reset < 2; reset++) {
        int fd = client_connect(f->address);
        unsigned done = atomic_load(&f->done);
        client_send(fd, "GET /park HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_true(until(is_parked, f));
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = reset}, sizeof(struct linger));
        close(fd);
        for (int64_t end = clock_mono_ms() + 20000; atomic_load(&f->done) == done && clock_mono_ms() < end;)
            usleep(1000);
        assert_int_equal(atomic_load(&f->done), done + 1);
        assert_int_equal(http_running(f->server), 0);
        reply_text(take_parked(f), "nobody listens");
    }
    expect_ok(f);
}

/* ---- how many --------------------------------------------------------------------------------------------------------------- */

static bool ends(int fd)
{
    char byte;
    return readable(fd, 20000) && recv(fd, &byte, 1, 0) <= 0;
}

static void test_connections_per_client(void **state)
{
    struct fixture *f = *state;
    struct err err = ERR_INIT;
    struct http_listener *l;
    char dir[] = "/tmp/recask-guard-XXXXXX", path[64];

    serve(f, (struct http_options){.max_connections_per_client = 2});
    int first = client_connect(f->address), second = client_connect(f->address), third = client_connect(f->address);
    assert_true(ends(third)); /* silent ones count, too */
    client_send(second, "GET /2 HTTP/1.1\r\nHost: x\r\n\r\n");
    char *a = client_read(second, 1, NULL);
    assert_int_equal(*a, 'H');
    free(a);
    close(first);
    for (int64_t end = clock_mono_ms() + 20000;;) { /* the server notices a moment later */
        a = client_ask(f->address, "GET", "/x", NULL, NULL);
        bool ok = answer_status(a) == 200;
        free(a);
        if (ok)
            break;
        assert_true(clock_mono_ms() < end);
        usleep(1000);
    }
    /* a Unix socket has no address, and belongs to the machine's owner */
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/sock", dir);
    ASSERT_OK(http_listen_unix(f->server, path, handle, f, &l, &err));
    int unix_fds[5];
    for (size_t i = 0; i < ARRAY_LEN(unix_fds); i++)
        unix_fds[i] = client_connect(path);
    a = client_ask(path, "GET", "/unix", NULL, NULL);
    assert_int_equal(answer_status(a), 200);
    free(a);
    for (size_t i = 0; i < ARRAY_LEN(unix_fds); i++)
        close(unix_fds[i]);
    close(second);
    close(third);
    unlink(path);
    rmdir(dir);
}

/* The one too many waits; connections that idle make room for it. */
static void test_full(void **state)
{
    struct fixture *f = *state;
    int fds[2];

    serve(f, (struct http_options){.max_connections = ARRAY_LEN(fds), .header_ms = LONG_MS, .idle_ms = LONG_MS});
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        fds[i] = client_connect(f->address);
        client_send(fds[i], "GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
        char *a = client_read(fds[i], 1, NULL);
        assert_int_equal(*a, 'H');
        free(a);
    }
    expect_ok(f);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        close(fds[i]);
}

/* ---- requests that are unclear ------------------------------------------------------------------------------------------------ */

#define SMUGGLED "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"

#define CLOSED (-1) /* without an answer */

static const struct {
    const char *request;
    int status;
    unsigned handled;
} odd[] = {
    {"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SMUGGLED, 400,
     0},
    {"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" SMUGGLED, 400,
     0},
    {"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: 36\r\n\r\n" SMUGGLED, 400, 0},
    {"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400, 0},
    {"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length : 36\r\n\r\n" SMUGGLED, 400, 0},
    {"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" SMUGGLED, 501, 0},
    {"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n" SMUGGLED, 501,
     0},
    {"POST /x HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SMUGGLED, 400, 0},
    {"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc", 400, 0},
    {"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\nabc", 413, 0},
    {"GET /x HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400, 0},
    {"GET /x HTTP/3.0\r\n\r\n", 505, 0},
    {"GET /x\r\n\r\n", 400, 0}, /* HTTP/0.9 */
    {"GET\r\n\r\n", CLOSED, 0},
    /* what is allowed */
    {"\r\n\r\nGET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200, 1},
    {"GET /x HTTP/1.1\nHost: x\nConnection: close\n\n", 200, 1},
    {"GET /x HTTP/1.1\r\nHost: x\r\nX-Fold: a\r\n b\r\nConnection: close\r\n\r\n", 200, 1},
    {"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /x HTTP/1.0\r\n\r\n", 200, 2},
};

static void test_odd_requests(void **state)
{
    struct fixture *f = *state;

    serve(f, (struct http_options){.header_ms = LONG_MS, .idle_ms = LONG_MS});
    for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
        unsigned before = atomic_load(&f->handled);
        int fd = client_connect(f->address);
        client_send(fd, odd[i].request);
        char *a = client_read(fd, SIZE_MAX, NULL);
        int status = strncmp(a, "HTTP/1.0 ", 9) == 0 ? (int)strtol(a + 9, NULL, 10) : answer_status(a);
        if (status != odd[i].status || atomic_load(&f->handled) != before + odd[i].handled)
            fail_msg("%s: %d, %u handled: %.200s", odd[i].request, status, atomic_load(&f->handled) - before, a);
        free(a);
        close(fd);
    }
    expect_ok(f);
}

static void test_long_path(void **state)
{
    struct fixture *f = *state;
    static const struct {
        size_t len;
        int status;
    } rows[] = {{4000, 200}, {9000, 414}, {50000, 414}, {70000, 414}};

    serve(f, (struct http_options){.header_ms = LONG_MS});
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char *path = calloc(1, rows[i].len + 1);
        assert_non_null(path);
        memset(path, 'p', rows[i].len);
        path[0] = '/';
        int fd = client_connect(f->address);
        client_send(fd, "GET ");
        client_send(fd, path);
        client_send(fd, " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        char *a = client_read(fd, SIZE_MAX, NULL);
        assert_int_equal(answer_status(a), rows[i].status);
        if (rows[i].len == 9000)
            assert_non_null(strstr(a, "NAME_INVALID"));
        free(a);
        free(path);
        close(fd);
    }
}

/* What libmicrohttpd refuses by itself, in the middle of a head, is told too. */
static bool told_400(void *arg)
{
    struct fixture *f = arg;
    pthread_mutex_lock(&f->m);
    bool told = f->last.status == 400 && strcmp(f->last_method, "-") == 0;
    pthread_mutex_unlock(&f->m);
    return told;
}

static void test_refused_heads_are_told(void **state)
{
    struct fixture *f = *state;

    serve(f, (struct http_options){.header_ms = LONG_MS});
    int fd = client_connect(f->address);
    client_send(fd, "GET /x HTTP/1.1\r\nno colon\r\n\r\n");
    char *a = client_read(fd, SIZE_MAX, NULL);
    assert_int_equal(answer_status(a), 400);
    free(a);
    close(fd);
    assert_true(until(told_400, f));
    assert_int_equal(atomic_load(&f->done), 1);
    assert_int_equal(atomic_load(&f->handled), 0);
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(test_slow_heads),
        T(test_slow_second_head),
        T(test_slow_body),
        T(test_idle_connections_end),
        T(test_client_that_reads_nothing),
        T(test_slow_reader_lives),
        T(test_waiting_clients_live),
        T(test_waiting_clients_leave),
        T(test_connections_per_client),
        T(test_full),
        T(test_odd_requests),
        T(test_long_path),
        T(test_refused_heads_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
