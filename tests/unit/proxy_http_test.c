/* SPDX-License-Identifier: Apache-2.0
 * proxy/http*.c: a server with handlers that do what their path says, and clients that speak HTTP by hand. Run it under TSan.
 * long: each behaviour of the server needs its own client
 */
#include "base/clock.h"
#include "proxy/http_internal.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/proxy_util.h"

#define BIG (3u << 20)

struct late {
    pthread_mutex_t m;
    struct http_exchange *parked; /* of "/park", answered by the test */
};

struct fixture {
    struct workpool *pool;
    struct http_server *server;
    struct http_listener *l;
    const char *address;
    char *big;
    struct late late;
    atomic_uint handled, sources_freed, freed_on_event_thread, done, done_complete;
    atomic_uint_fast64_t done_bytes;
    struct source *hanging; /* of "/hang" */
};

/* ---- handlers ---------------------------------------------------------------------------------------------------------- */

static void reply_text(struct http_exchange *x, int status, const char *text)
{
    struct http_answer a = {.status = status, .body = strdup(text), .body_len = strlen(text)};
    http_reply(x, &a);
}

/* "/source?len=N&piece=N&wait=N&fail=N&hang=1&known=0|1&say=N": the first len bytes of f->big */
static void reply_source(struct fixture *f, struct http_exchange *x)
{
    const char *len = http_query(x, "len"), *piece = http_query(x, "piece"), *wait = http_query(x, "wait"),
               *fail = http_query(x, "fail"), *known = http_query(x, "known"), *say = http_query(x, "say");
    struct script sc = {.data = f->big,
                        .len = len ? strtoul(len, NULL, 10) : BIG,
                        .piece = piece ? strtoul(piece, NULL, 10) : 0,
                        .wait_each = wait ? (unsigned)strtoul(wait, NULL, 10) : 0,
                        .fail_at = fail ? strtoul(fail, NULL, 10) : SIZE_MAX,
                        .hang = http_query(x, "hang") != NULL,
                        .freed = &f->sources_freed,
                        .freed_on_event_thread = &f->freed_on_event_thread};
    struct http_answer a = {.status = 200, .has_length = known && *known == '1'};
    struct err err = ERR_INIT;

    a.length_bytes = say ? strtoul(say, NULL, 10) : sc.len;
    REQUIRE(source_script_new(&sc, &a.source, &err) == 0);
    if (sc.hang) {
        pthread_mutex_lock(&f->late.m);
        f->hanging = a.source;
        pthread_mutex_unlock(&f->late.m);
    }
    http_reply(x, &a);
}

static void reply_echo(struct http_exchange *x)
{
    const char *name = http_header(x, "X-Test");
    const char *q = http_query(x, "q");
    size_t len;
    const char *body = http_body(x, &len);
    char text[4096];

    snprintf(text, sizeof(text), "%s|%s|%s|%s|%s|%zu|%.64s", http_method_text(x), http_path(x), http_query_raw(x),
             q ? q : "-", name ? name : "-", len, body);
    reply_text(x, 200, text);
}

static void handle(void *arg, struct http_exchange *x)
{
    struct fixture *f = arg;
    const char *path = http_path(x);

    atomic_fetch_add(&f->handled, 1);
    if (strcmp(path, "/source") == 0) {
        reply_source(f, x);
    } else if (strcmp(path, "/park") == 0) {
        pthread_mutex_lock(&f->late.m);
        REQUIRE(!f->late.parked);
        f->late.parked = x;
        pthread_mutex_unlock(&f->late.m);
    } else if (strcmp(path, "/empty") == 0) {
        struct http_answer a = {.status = 416};
        http_reply(x, &a);
    } else if (strcmp(path, "/open-head") == 0) {
        struct http_answer a = {.status = 200};
        http_reply(x, &a);
    } else if (strcmp(path, "/header") == 0) {
        struct http_answer a = {.status = 200};
        struct err err = ERR_INIT;
        REQUIRE(http_answer_header(&a, &err, "X-Evil", "a\r\nX-Injected: 1") == 0);
        http_reply(x, &a);
    } else {
        reply_echo(x);
    }
}

static void on_done(void *arg, const struct http_exchange *x UNUSED, const struct http_done *done)
{
    struct fixture *f = arg;
    atomic_fetch_add(&f->done_bytes, done->sent_bytes);
    atomic_fetch_add(&f->done_complete, done->complete);
    atomic_fetch_add(&f->done, 1);
}

static struct http_exchange *take_parked(struct fixture *f)
{
    pthread_mutex_lock(&f->late.m);
    struct http_exchange *x = f->late.parked;
    f->late.parked = NULL;
    pthread_mutex_unlock(&f->late.m);
    return x;
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct err err = ERR_INIT;

    assert_non_null(f);
    pthread_mutex_init(&f->late.m, NULL);
    f->big = malloc(BIG);
    assert_non_null(f->big);
    for (size_t i = 0; i < BIG; i++)
        f->big[i] = (char)(i * 2654435761u >> 13);
    ASSERT_OK(workpool_new("work", 3, &f->pool, &err));
    struct http_options opt = {.pool = f->pool};
    ASSERT_OK(http_server_new(&opt, &f->server, &err));
    ASSERT_OK(http_listen(f->server, &(struct http_listen_options){.address = "127.0.0.1:0"}, handle, f, &f->l, &err));
    http_on_done(f->l, on_done, f);
    f->address = http_listener_address(f->l);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    http_server_drain(f->server, 5000);
    workpool_free(f->pool);
    http_server_free(f->server);
    pthread_mutex_destroy(&f->late.m);
    free(f->big);
    free(f);
    return 0;
}

/* ---- one answer after the other ------------------------------------------------------------------------------------------ */

static bool all_done(void *arg)
{
    struct fixture *f = arg;
    return http_running(f->server) == 0 && atomic_load(&f->done) >= atomic_load(&f->handled);
}

/* Workers free what an exchange has left, a moment after it is done. */
static void expect_freed(struct fixture *f, unsigned n)
{
    int64_t end = clock_mono_ms() + 20000;
    while (atomic_load(&f->sources_freed) != n && clock_mono_ms() < end)
        usleep(1000);
    assert_int_equal(atomic_load(&f->sources_freed), n);
    assert_int_equal(atomic_load(&f->freed_on_event_thread), 0);
}

static void expect_echo(struct fixture *f, const char *method, const char *target, const char *headers,
                        const char *want)
{
    char *a = client_ask(f->address, method, target, headers, NULL);
    assert_int_equal(answer_status(a), 200);
    assert_string_equal(answer_body(a), want);
    free(a);
}

static void test_requests(void **state)
{
    struct fixture *f = *state;

    expect_echo(f, "GET", "/a%2Fb?q=x%20y+z&n=1", "X-Test: 1\r\nX-Test:2\r\n",
                "GET|/a%2Fb|q=x%20y+z&n=1|x y z|1, 2|0|");
    expect_echo(f, "PUT", "/", "Content-Length: 3\r\n\r\nabc", "PUT|/||-|-|3|abc");
    expect_echo(f, "GET", "/?q=%zz", NULL, "GET|/|q=%zz|-|-|0|");
    expect_echo(f, "GET", "/?q=a%00b", NULL, "GET|/|q=a%00b|-|-|0|");
    expect_echo(f, "GET", "/?q=&q=2", NULL, "GET|/|q=&q=2||-|0|");
    /* the absolute form */
    expect_echo(f, "GET", "http://some.host:80/v2/x?q=1", NULL, "GET|/v2/x|q=1|1|-|0|");
    expect_echo(f, "GET", "HTTP://some.host", NULL, "GET|/||-|-|0|");
    expect_echo(f, "GET", "http://some.host?q=/x", NULL, "GET|/||-|-|0|");
    expect_echo(f, "OPTIONS", "*", NULL, "OPTIONS|*||-|-|0|");
    expect_echo(f, "GET", "no-slash", NULL, "GET|no-slash||-|-|0|");
    assert_true(until(all_done, f));
}

static void test_request_id(void **state)
{
    struct fixture *f = *state;
    char *a = client_ask(f->address, "GET", "/", "X-Request-Id: my-id_1.x\r\n", NULL);
    assert_true(header_is(a, "X-Request-Id", "my-id_1.x"));
    free(a);
    a = client_ask(f->address, "GET", "/", "X-Request-Id: bad id\r\n", NULL);
    assert_false(header_is(a, "X-Request-Id", "bad id"));
    free(a);
}

static void test_keep_alive_and_pipeline(void **state)
{
    struct fixture *f = *state;
    static const char first[] = "GET /one HTTP/1.1\r\nHost: x\r\n\r\n";
    int fd = client_connect(f->address);
    size_t len;

    client_send(fd, first);
    char *a = client_read(fd, 1, NULL);
    free(a);
    usleep(20000); /* what is left of it comes with the next */
    /* after an error the connection goes on, too */
    client_send(fd, "GET /empty HTTP/1.1\r\nHost: x\r\n\r\nGET /source?len=5&known=1 HTTP/1.1\r\nHost: x\r\n\r\n"
                    "GET /source?len=5&wait=2&known=0 HTTP/1.1\r\nHost: x\r\n\r\n"
                    "HEAD /two HTTP/1.1\r\nHost: x\r\n\r\nGET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    a = client_read(fd, SIZE_MAX, &len);
    assert_non_null(memmem(a, len, "GET|/one||", 10));
    assert_non_null(memmem(a, len, "HTTP/1.1 416", 12));
    assert_non_null(memmem(a, len, "GET|/last||", 11));
    assert_null(memmem(a, len, "HEAD|/two", 9));
    assert_int_equal(atomic_load(&f->handled), 6);
    free(a);
    close(fd);
    assert_true(until(all_done, f));
    assert_int_equal(atomic_load(&f->done_complete), 6);
    expect_freed(f, 2);
}

static void test_head(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *path, *length; /* NULL: none */
    } rows[] = {
        {"/source?len=70000&known=1", "70000"},
        {"/source?len=5000000000&known=1", "5000000000"},
        {"/source?len=70000&known=0", NULL},
        {"/open-head", NULL},
        {"/abc", "17"},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char *a = client_ask(f->address, "HEAD", rows[i].path, NULL, NULL);
        assert_int_equal(answer_status(a), 200);
        assert_string_equal(answer_body(a), "");
        if (rows[i].length)
            assert_true(header_is(a, "Content-Length", rows[i].length));
        else
            assert_false(header_there(a, "Content-Length"));
        free(a);
    }
    assert_true(until(all_done, f));
    /* the sources of HEAD answers were freed unread */
    expect_freed(f, 3);
    char *a = client_ask(f->address, "GET", "/empty", NULL, NULL);
    assert_int_equal(answer_status(a), 416);
    assert_true(header_is(a, "Content-Length", "0"));
    free(a);
}

static void test_header_values(void **state)
{
    struct fixture *f = *state;
    char *a = client_ask(f->address, "GET", "/header", NULL, NULL);
    assert_true(header_is(a, "X-Evil", "a  X-Injected: 1"));
    assert_false(header_there(a, "X-Injected"));
    free(a);
}

/* ---- bodies from sources --------------------------------------------------------------------------------------------------- */

/* Takes the chunks apart; false when the last one is missing. */
static bool unchunk(char *body, size_t len, size_t *out_len)
{
    char *out = body, *p = body, *end = body + len;

    for (;;) {
        char *after;
        unsigned long n = p < end ? strtoul(p, &after, 16) : ULONG_MAX;
        if (n == ULONG_MAX || after == p || after + 2 > end || n > (size_t)(end - after - 2)) {
            *out_len = (size_t)(out - body);
            return false;
        }
        memmove(out, after + 2, n);
        out += n;
        p = after + 2 + n + 2;
        if (n == 0) {
            *out_len = (size_t)(out - body);
            return true;
        }
    }
}

/* How many bytes of f->big came; *out_complete: and whether the answer says that these are all. */
static size_t get_source(struct fixture *f, const char *path, bool *out_complete)
{
    size_t len, got;
    char *a = client_ask(f->address, "GET", path, NULL, &len);
    char *body = strstr(a, "\r\n\r\n");

    assert_int_equal(answer_status(a), 200);
    assert_non_null(body);
    body += 4;
    len -= (size_t)(body - a);
    if (header_is(a, "Transfer-Encoding", "chunked")) {
        *out_complete = unchunk(body, len, &got);
    } else {
        const char *said = strcasestr(a, "\r\nContent-Length: ");
        assert_non_null(said);
        got = len;
        *out_complete = strtoul(said + 18, NULL, 10) == len;
    }
    assert_memory_equal(body, f->big, got);
    free(a);
    return got;
}

static const struct {
    const char *path;
    size_t want; /* bytes when complete, at most so many when not */
    bool complete;
} bodies[] = {
    {"/source?known=1", BIG, true},
    {"/source?known=0", BIG, true},
    {"/source?known=1&len=0", 0, true},
    {"/source?known=0&len=0", 0, true},
    {"/source?known=1&len=1", 1, true},
    {"/source?known=1&len=262144", 262144, true},
    {"/source?known=1&len=262143&piece=1000&wait=3", 262143, true},
    {"/source?known=0&len=262145&piece=100&wait=2", 262145, true},
    {"/source?known=1&piece=70001&wait=2", BIG, true},
    {"/source?known=0&piece=70001&wait=2", BIG, true},
    {"/source?known=1&fail=2000000", 2000000, false},
    {"/source?known=0&fail=2000000", 2000000, false},
    {"/source?known=1&fail=0", 0, false},
    {"/source?known=0&fail=0", 0, false},
    {"/source?known=1&fail=3145728", BIG, true}, /* all was there: what comes behind is nobody's business */
    {"/source?known=0&fail=3145728", BIG, false},
    {"/source?known=1&len=1000&say=1001", 1000, false}, /* ended too early */
    {"/source?known=1&len=1000&say=400000", 1000, false},
    {"/source?known=1&len=1000&say=999", 999, true},
};

static void test_bodies(void **state)
{
    struct fixture *f = *state;
    unsigned complete = 0;

    for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
        bool is_complete;
        size_t got = get_source(f, bodies[i].path, &is_complete);
        if (is_complete != bodies[i].complete || got > bodies[i].want || (is_complete && got != bodies[i].want))
            fail_msg("%s: %zu bytes, complete %d", bodies[i].path, got, is_complete);
        complete += is_complete;
    }
    assert_true(until(all_done, f));
    expect_freed(f, ARRAY_LEN(bodies));
    assert_int_equal(atomic_load(&f->done_complete), complete); /* the log agrees with the wire */
}

/* An HTTP/1.0 client gets no chunks. */
static void test_http_1_0(void **state)
{
    struct fixture *f = *state;
    int fd = client_connect(f->address);
    size_t len;

    client_send(fd, "GET /source?known=0&len=100000 HTTP/1.0\r\n\r\n");
    char *a = client_read(fd, SIZE_MAX, &len);
    assert_false(header_there(a, "Transfer-Encoding"));
    assert_int_equal(len - (size_t)(answer_body(a) - a), 100000);
    assert_memory_equal(answer_body(a), f->big, 100000);
    free(a);
    close(fd);
}

static bool all_freed(void *arg)
{
    struct fixture *f = arg;
    return all_done(f) && atomic_load(&f->sources_freed) == atomic_load(&f->handled);
}

/* Clients that leave in the middle: nothing stays behind. */
static void test_clients_leave(void **state)
{
    struct fixture *f = *state;
    static const char *const paths[] = {"/source?known=1", "/source?known=0&wait=2&piece=1000",
                                        "/source?known=1&fail=100000"};

    for (int i = 0; i < 60; i++) {
        char request[128];
        int fd = client_connect(f->address);
        snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", paths[i % 3]);
        client_send(fd, request);
        if (i % 4) {
            char *a = client_read(fd, (size_t)(i % 4) * 20000, NULL);
            free(a);
        }
        if (i % 5 == 0) /* with a reset */
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
        close(fd);
    }
    /* Those that left before their request was read were never handled. */
    assert_true(until(all_freed, f));
}

/* ---- answers that take their time -------------------------------------------------------------------------------------------- */

static bool is_parked(void *arg)
{
    struct fixture *f = arg;
    pthread_mutex_lock(&f->late.m);
    bool parked = f->late.parked != NULL;
    pthread_mutex_unlock(&f->late.m);
    return parked;
}

static void test_late_reply(void **state)
{
    struct fixture *f = *state;
    int fd = client_connect(f->address);

    client_send(fd, "GET /park HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_true(until(is_parked, f));
    usleep(20000);
    reply_text(take_parked(f), 201, "at last");
    char *a = client_read(fd, SIZE_MAX, NULL);
    assert_int_equal(answer_status(a), 201);
    assert_string_equal(answer_body(a), "at last");
    free(a);
    close(fd);
}

/* The client is gone: a parked connection does not notice, the answer is made and thrown away. */
static void test_reply_after_the_client_left(void **state)
{
    struct fixture *f = *state;

    for (int i = 0; i < 20; i++) {
        int fd = client_connect(f->address);
        client_send(fd, "GET /park HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_true(until(is_parked, f));
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = i % 2}, sizeof(struct linger));
        close(fd);
        usleep((unsigned)i * 500);
        if (i % 3)
            reply_text(take_parked(f), 200, "nobody listens");
        else
            reply_source(f, take_parked(f));
        assert_true(until(all_done, f));
    }
    expect_freed(f, 7);
}

static bool is_hanging(void *arg)
{
    struct fixture *f = arg;
    pthread_mutex_lock(&f->late.m);
    bool hanging = f->hanging != NULL;
    pthread_mutex_unlock(&f->late.m);
    return hanging;
}

/* A source that has nothing more for now: what came before is sent, the rest when it wakes. */
static void test_slow_source(void **state)
{
    struct fixture *f = *state;
    int fd = client_connect(f->address);
    size_t len;

    client_send(fd, "GET /source?known=0&len=1000&hang=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_true(until(is_hanging, f));
    char *a = client_read(fd, 1100, &len);
    assert_true(len >= 1100); /* head and the bytes so far */
    free(a);
    usleep(20000);
    script_wake(f->hanging);
    a = client_read(fd, SIZE_MAX, &len);
    assert_non_null(memmem(a, len, "0\r\n\r\n", 5));
    free(a);
    close(fd);
    assert_true(until(all_done, f));
}

/* ---- stopping ------------------------------------------------------------------------------------------------------------------ */

static void *late_answer(void *arg)
{
    struct fixture *f = arg;
    usleep(50000);
    reply_text(take_parked(f), 200, "in time");
    return NULL;
}

static void test_drain_waits(void **state)
{
    struct fixture *f = *state;
    int fd = client_connect(f->address);
    pthread_t t;

    client_send(fd, "GET /park HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_true(until(is_parked, f));
    assert_int_equal(pthread_create(&t, NULL, late_answer, f), 0);
    http_server_drain(f->server, 15000);
    pthread_join(t, NULL);
    char *a = client_read(fd, SIZE_MAX, NULL);
    assert_string_equal(answer_body(a), "in time");
    free(a);
    close(fd);
}

/* One parked in its handler, one in its body, one that reads nothing: all are cut, and late replies do no harm. */
static void test_drain_cuts(void **state)
{
    struct fixture *f = *state;
    int park = client_connect(f->address), body = client_connect(f->address), deaf = client_connect(f->address);
    size_t len;

    client_send(park, "GET /park HTTP/1.1\r\nHost: x\r\n\r\n");
    client_send(body, "GET /source?known=1&len=1000&say=2000&hang=1 HTTP/1.1\r\nHost: x\r\n\r\n");
    client_send(deaf, "GET /source?known=0 HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_true(until(is_parked, f));
    assert_true(until(is_hanging, f));
    char *a = client_read(body, 1100, &len);
    assert_true(len >= 1000);
    free(a);
    int64_t start = clock_mono_ms();
    http_server_drain(f->server, 100);
    assert_true(clock_mono_ms() - start < 8000);
    assert_int_equal(http_running(f->server), 0);
    reply_text(take_parked(f), 200, "too late");
    a = client_read(park, SIZE_MAX, &len);
    assert_int_equal(len, 0);
    free(a);
    a = client_read(body, SIZE_MAX, &len);
    assert_true(len < 1000);
    free(a);
    close(park);
    close(body);
    close(deaf);
}

/* ---- what is no request for handlers ---------------------------------------------------------------------------------------------- */

static void test_tls_hello(void **state)
{
    struct fixture *f = *state;

    for (int i = 0; i < 30; i++) { /* libmicrohttpd alone stays silent one time in ten */
        int fd = client_connect(f->address);
        static const char hello[] = "\x16\x03\x01\x02\x01\x01\x01\xfc\x03\x03 and so on";
        client_send(fd, hello);
        char *a = client_read(fd, SIZE_MAX, NULL);
        assert_int_equal(answer_status(a), 400);
        assert_int_equal(strlen(answer_body(a)), 50);
        free(a);
        close(fd);
    }
    assert_int_equal(atomic_load(&f->handled), 0);
}

/* Nothing but one byte, then nothing: others are served meanwhile. */
static void test_silent_connections(void **state)
{
    struct fixture *f = *state;
    int fds[20];

    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        fds[i] = client_connect(f->address);
        if (i % 2)
            client_send(fds[i], "G");
    }
    expect_echo(f, "GET", "/", NULL, "GET|/||-|-|0|");
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        close(fds[i]);
}

static char *many_headers(unsigned count, unsigned len)
{
    char *text = malloc((size_t)count * (len + 20) + 1), *p = text;
    assert_non_null(text);
    for (unsigned i = 0; i < count; i++)
        p += snprintf(p, len + 20, "X-H%u: %0*u\r\n", i, (int)len, i);
    return text;
}

static void expect_status(struct fixture *f, const char *head, const char *rest, int status)
{
    int fd = client_connect(f->address);
    client_send(fd, head);
    client_send(fd, rest);
    client_send(fd, "\r\n");
    char *a = client_read(fd, SIZE_MAX, NULL);
    if (answer_status(a) != status)
        fail_msg("%d instead of %d: %.200s", answer_status(a), status, a);
    if (status == 431 || status == 413) {
        assert_non_null(strstr(a, "\r\nContent-Type: application/json\r\n"));
        assert_memory_equal(answer_body(a), "{\"errors\":[{\"code\":\"", 20);
    }
    free(a);
    close(fd);
}

static void test_header_overflow(void **state)
{
    struct fixture *f = *state;
    static const char get[] = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
    char *fits = many_headers(60, 200), *many = many_headers(70, 10), *large = many_headers(40, 500);

    expect_status(f, get, fits, 200);
    expect_status(f, get, many, 431);
    expect_status(f, get, large, 431);
    assert_int_equal(atomic_load(&f->handled), 1);
    free(fits);
    free(many);
    free(large);
}

static void test_body_overflow(void **state)
{
    struct fixture *f = *state;
    size_t len = HTTP_BODY_MAX_BYTES;
    char *body = malloc(len + 1), head[200];

    assert_non_null(body);
    memset(body, 'b', len);
    body[len] = '\0';
    /* as much as there may be */
    snprintf(head, sizeof(head), "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n", len);
    expect_status(f, head, body, 200);
    /* one more: answered before it is sent */
    snprintf(head, sizeof(head), "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\nExpect: 100-continue\r\n",
             len + 1);
    expect_status(f, head, "", 413);
    assert_int_equal(atomic_load(&f->handled), 1);
    /* without having said so: cut off */
    int fd = client_connect(f->address);
    size_t got;
    snprintf(head, sizeof(head), "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%zx\r\n", len + 1000);
    client_send(fd, head);
    client_send(fd, body);
    client_send(fd, body);
    char *a = client_read(fd, SIZE_MAX, &got);
    assert_int_equal(got, 0);
    assert_int_equal(atomic_load(&f->handled), 1);
    free(a);
    close(fd);
    free(body);
}

static void test_expect_continue(void **state)
{
    struct fixture *f = *state;
    int fd = client_connect(f->address);

    client_send(
        fd, "POST /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    char *a = client_read(fd, 25, NULL);
    assert_string_equal(a, "HTTP/1.1 100 Continue\r\n\r\n");
    free(a);
    client_send(fd, "abc");
    a = client_read(fd, SIZE_MAX, NULL);
    assert_int_equal(answer_status(a), 200);
    assert_string_equal(answer_body(a), "POST|/x||-|-|3|abc");
    free(a);
    close(fd);
}

/* ---- listeners ---------------------------------------------------------------------------------------------------------------------- */

static void test_unix_socket(void **state)
{
    struct fixture *f = *state;
    struct http_listener *l;
    struct err err = ERR_INIT;
    char dir[] = "/tmp/recask-http-XXXXXX", path[64];
    struct stat sb;

    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/sock", dir);
    ASSERT_OK(http_listen_unix(f->server, path, handle, f, &l, &err));
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0600);
    char *a = client_ask(path, "GET", "/unix", NULL, NULL);
    assert_string_equal(answer_body(a), "GET|/unix||-|-|0|");
    free(a);
    /* a socket that a dead process left is no obstacle */
    ASSERT_OK(http_listen_unix(f->server, path, handle, f, &l, &err));
    unlink(path);
    char longest[109];
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    assert_int_equal(http_listen_unix(f->server, longest, handle, f, &l, &err), ERR_USAGE);
    rmdir(dir);
}

static void test_listen_errors(void **state)
{
    struct fixture *f = *state;
    static const char *const bad[] = {"", "x", "127.0.0.1", "127.0.0.1:", "127.0.0.1:http", "no.such.host.invalid:1"};
    struct http_listener *l;

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct err err = ERR_INIT;
        assert_int_equal(http_listen(f->server, &(struct http_listen_options){.address = bad[i]}, handle, f, &l, &err),
                         ERR_USAGE);
    }
    struct err err = ERR_INIT;
    assert_int_equal(http_listen(f->server, &(struct http_listen_options){.address = f->address}, handle, f, &l, &err),
                     ERR_BUSY);
    err_clear(&err);
    if (http_listen(f->server, &(struct http_listen_options){.address = "[::1]:0"}, handle, f, &l, &err) == 0)
        assert_memory_equal(http_listener_address(l), "[::1]:", 6);
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(test_requests),
        T(test_request_id),
        T(test_keep_alive_and_pipeline),
        T(test_head),
        T(test_header_values),
        T(test_bodies),
        T(test_http_1_0),
        T(test_clients_leave),
        T(test_late_reply),
        T(test_reply_after_the_client_left),
        T(test_slow_source),
        T(test_drain_waits),
        T(test_drain_cuts),
        T(test_tls_hello),
        T(test_silent_connections),
        T(test_header_overflow),
        T(test_body_overflow),
        T(test_expect_continue),
        T(test_unix_socket),
        T(test_listen_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
