/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_turn.c and the clocks of proxy/upstream_exchange.c: how much at once, how often, how long.
 */
#include "base/clock.h"
#include "proxy/upstream.h"
#include "tests/unit/proxy_server.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/unit/proxy_util.h"


static struct server server;
static struct upstreams *ups;
static bool started;

/* ---- the upstream: answers a blob when its gate opens, anything else at once ---- */

static atomic_uint busy_blobs, busy_most, served_blobs;
static atomic_uint before_call; /* blobs served before the last call */
static atomic_bool gate;

static void wait_at_gate(struct server *s)
{
    while (!atomic_load(&gate) && !atomic_load(&s->stopping))
        usleep(1000);
}

static bool serve(struct server *s, int fd, unsigned nth UNUSED, const char *request)
{
    if (strstr(request, "/blobs/") == NULL && strstr(request, "/slow") == NULL) {
        atomic_store(&before_call, atomic_load(&served_blobs));
        return server_say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    }
    unsigned now = atomic_fetch_add(&busy_blobs, 1) + 1;
    unsigned most = atomic_load(&busy_most);
    while (now > most && !atomic_compare_exchange_weak(&busy_most, &most, now))
        continue;
    wait_at_gate(s);
    atomic_fetch_sub(&busy_blobs, 1);
    atomic_fetch_add(&served_blobs, 1);
    return server_say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nblob");
}

static void begin_with(server_fn *fn, struct upstreams_options opt, unsigned max_connections, unsigned max_rate)
{
    struct err err = ERR_INIT;

    atomic_store(&busy_blobs, 0);
    atomic_store(&busy_most, 0);
    atomic_store(&served_blobs, 0);
    atomic_store(&gate, false);
    server_start(&server, fn, NULL);
    ASSERT_OK(upstreams_new(&opt, &ups, &err));
    struct upstream_def def = {
        .name = "one", .url = server.url, .max_connections = max_connections, .max_rate = max_rate};
    ASSERT_OK(upstreams_add(ups, &def, &err));
    ASSERT_OK(upstreams_start(ups, &err));
    started = true;
}

static int end(void **state UNUSED)
{
    if (!started)
        return 0;
    started = false;
    upstreams_stop(ups);
    upstreams_free(ups);
    server_stop(&server);
    return 0;
}

/* ---- calls and streams ---- */

struct call {
    atomic_bool ended;
    struct err err;
};

static void on_done(void *arg, struct upstream_answer *answer UNUSED, const struct err *err)
{
    struct call *c = arg;
    c->err = *err;
    atomic_store(&c->ended, true);
}

static void call_start(struct call *c, const char *path)
{
    struct upstream_request req = {.up = upstream_default(ups), .path = path, .limit_bytes = 100};
    struct err err = ERR_INIT;

    memset(c, 0, sizeof *c);
    ASSERT_OK(upstream_call(ups, &req, on_done, c, &err));
}

static bool call_ended(void *c)
{
    return atomic_load(&((struct call *)c)->ended);
}

static int call_end(struct call *c)
{
    assert_true(until(call_ended, c));
    return c->err.code;
}

static struct source *stream_start(void)
{
    struct upstream_request req = {.up = upstream_default(ups), .path = "/v2/x/blobs/y"};
    struct source *s;
    struct err err = ERR_INIT;

    ASSERT_OK(upstream_stream_new(ups, &req, &s, &err));
    return s;
}

static void stream_end(struct source *s)
{
    struct drained d;

    source_drain(&s, 1000, &d);
    if (d.rc != STEP_EOF)
        fail_msg("%s", d.err.msg);
    assert_int_equal(d.len, 4);
    drained_release(&d);
}

static bool blobs_are_busy(void *count)
{
    return atomic_load(&busy_blobs) == *(unsigned *)count;
}

/* Slow blobs never hold up manifests, and no more of either run than may. */
static void test_reserve(void **state UNUSED)
{
    static const struct {
        unsigned max, streams;
    } rows[] = {{8, 6}, {2, 1}, {5, 4}, {1, 1}};

    for (size_t row = 0; row < ARRAY_LEN(rows); row++) {
        struct source *s[12];
        struct call c;
        unsigned busy = rows[row].streams;

        begin_with(serve, (struct upstreams_options){.tries = 1}, rows[row].max, 0);
        for (size_t i = 0; i < ARRAY_LEN(s); i++)
            s[i] = stream_start();
        assert_true(until(blobs_are_busy, &busy));
        if (rows[row].max > 1) {
            for (int i = 0; i < 20; i++) {
                call_start(&c, "/v2/x/manifests/1");
                assert_int_equal(call_end(&c), 0);
            }
        }
        assert_int_equal(atomic_load(&busy_blobs), busy);
        atomic_store(&gate, true);
        for (size_t i = 0; i < ARRAY_LEN(s); i++)
            stream_end(s[i]);
        assert_int_equal(atomic_load(&busy_most), busy);
        end(NULL);
    }
}

/* Calls that come last go first. */
static void test_calls_first(void **state UNUSED)
{
    struct source *s[8];
    struct call first, c[4];
    unsigned one = 1;

    begin_with(serve, (struct upstreams_options){.tries = 1}, 1, 0);
    call_start(&first, "/v2/x/slow");
    assert_true(until(blobs_are_busy, &one));
    for (size_t i = 0; i < ARRAY_LEN(s); i++)
        s[i] = stream_start();
    for (size_t i = 0; i < ARRAY_LEN(c); i++)
        call_start(&c[i], "/v2/x/manifests/1");
    usleep(20000);
    assert_int_equal(atomic_load(&server.requests), 1);
    atomic_store(&gate, true);
    assert_int_equal(call_end(&first), 0);
    for (size_t i = 0; i < ARRAY_LEN(c); i++)
        assert_int_equal(call_end(&c[i]), 0);
    for (size_t i = 0; i < ARRAY_LEN(s); i++)
        stream_end(s[i]);
    assert_int_equal(atomic_load(&before_call), 1); /* the first one */
    assert_int_equal(atomic_load(&busy_most), 1);
}

/* Who leaves the line is gone from it, wherever in it. */
static void test_cancel_in_line(void **state UNUSED)
{
    struct source *s[6];
    unsigned one = 1;

    begin_with(serve, (struct upstreams_options){.tries = 1}, 1, 0);
    s[0] = stream_start();
    assert_true(until(blobs_are_busy, &one));
    for (size_t i = 1; i < ARRAY_LEN(s); i++)
        s[i] = stream_start();
    usleep(20000);
    source_free(s[5]);
    source_free(s[1]);
    source_free(s[3]);
    usleep(20000);
    atomic_store(&gate, true);
    stream_end(s[0]);
    stream_end(s[2]);
    stream_end(s[4]);
    assert_int_equal(atomic_load(&server.requests), 3);
    /* ... and the line can be joined again. */
    stream_end(stream_start());
}

static void test_stop_in_line(void **state UNUSED)
{
    struct call c[20];
    unsigned two = 2;

    begin_with(serve, (struct upstreams_options){.tries = 1}, 2, 0);
    for (size_t i = 0; i < ARRAY_LEN(c); i++)
        call_start(&c[i], "/v2/x/slow");
    assert_true(until(blobs_are_busy, &two));
    upstreams_stop(ups);
    for (size_t i = 0; i < ARRAY_LEN(c); i++)
        assert_int_equal(call_end(&c[i]), ERR_CANCELLED);
}

/* ---- requests per second ---- */

static bool redirect(struct server *s, int fd, unsigned nth, const char *request)
{
    if (strncmp(request, "GET /v2/hop", 11) == 0)
        return server_say(fd, "HTTP/1.1 307 There\r\nLocation: /v2/x/manifests/1\r\nContent-Length: 0\r\n\r\n");
    return serve(s, fd, nth, request);
}

/* A second's worth at once, then as they come; hops do not wait, but count. */
static void test_rate(void **state UNUSED)
{
    struct call c[40];
    int64_t start = clock_mono_ms();

    begin_with(redirect, (struct upstreams_options){.tries = 1}, 0, 20);
    for (size_t i = 0; i < ARRAY_LEN(c); i++)
        call_start(&c[i], "/v2/x/manifests/1");
    for (size_t i = 0; i < ARRAY_LEN(c); i++)
        assert_int_equal(call_end(&c[i]), 0);
    assert_true(clock_mono_ms() - start >= 900); /* 20 of them had to be waited for */
    start = clock_mono_ms();
    for (size_t i = 0; i < 10; i++)
        call_start(&c[i], "/v2/hop");
    for (size_t i = 0; i < 10; i++)
        assert_int_equal(call_end(&c[i]), 0);
    assert_true(clock_mono_ms() - start >= 850); /* 19 before the last one's first */
    assert_int_equal(atomic_load(&server.requests), 60);
}

/* ---- how long ---- */

/* Whatever it waits for, a call is over in time and says what it was. */
static bool never(struct server *s, int fd, unsigned nth UNUSED, const char *request)
{
    char text[512];

    if (strstr(request, "/token") != NULL || strstr(request, "/hang") != NULL || strstr(request, "/blobs/") != NULL) {
        server_hang(fd);
        return false;
    }
    if (strstr(request, "/later") != NULL)
        return server_say(fd, "HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n");
    snprintf(
        text, sizeof text,
        "HTTP/1.1 401 Who\r\nWWW-Authenticate: Bearer realm=\"%s/token\",service=\"x\"\r\nContent-Length: 0\r\n\r\n",
        s->url);
    return server_say(fd, text);
}

static void times_out(struct call *c, const char *for_what)
{
    assert_int_equal(call_end(c), ERR_TIMEOUT);
    if (strstr(c->err.msg, for_what) == NULL)
        fail_msg("not for \"%s\": %s", for_what, c->err.msg);
}

static void test_request_ms(void **state UNUSED)
{
    struct upstreams_options opt = {.request_ms = 300, .stall_ms = 60000, .tries = 100};
    struct call c[2];
    int64_t start = clock_mono_ms();
    struct source *s;

    begin_with(never, opt, 1, 0);
    s = stream_start(); /* has the only connection, and more time than those behind it */
    call_start(&c[1], "/v2/x/behind");
    times_out(&c[1], "waiting for one of the upstream's connections");
    source_free(s);
    call_start(&c[0], "/v2/x/hang");
    times_out(&c[0], "waiting for the upstream");
    call_start(&c[0], "/v2/a/manifests/1");
    times_out(&c[0], "token");
    /* A wait that would be too long is not begun. */
    call_start(&c[0], "/v2/x/later");
    assert_int_equal(call_end(&c[0]), ERR_UPSTREAM);
    assert_non_null(strstr(c[0].err.msg, "status 503"));
    assert_true(clock_mono_ms() - start < 20000);
}

static bool drip(struct server *s, int fd, unsigned nth, const char *request)
{
    uint64_t from = server_range(request);

    server_blob_head(fd, from, s->blob_bytes);
    if (nth > 0 && atomic_load(&s->knob[0]) == 0) { /* its end comes a little later */
        server_blob(fd, from, s->blob_bytes - 1000);
        usleep(50000);
        return server_blob(fd, s->blob_bytes - 1000, s->blob_bytes);
    }
    for (; from < s->blob_bytes && !atomic_load(&s->stopping); from++) {
        usleep(20000);
        if (!server_blob(fd, from, from + 1))
            break;
    }
    return false;
}

/* A body that crawls (50 bytes a second) has stalled: its rest comes by another connection. */
static void test_crawl(void **state UNUSED)
{
    struct source *s;
    struct drained d;

    begin_with(drip, (struct upstreams_options){.stall_ms = 200}, 0, 0);
    server.blob_bytes = 100000;
    s = stream_start();
    source_drain(&s, 1000, &d);
    if (d.rc != STEP_EOF)
        fail_msg("%s", d.err.msg);
    assert_int_equal(d.len, 100000);
    for (size_t i = 0; i < d.len; i++)
        assert_int_equal((uint8_t)d.data[i], server_blob_byte(i));
    assert_int_equal(atomic_load(&server.requests), 2);
    assert_int_equal(atomic_load(&server.connections), 2);
    drained_release(&d);
    end(NULL);

    /* One that always does is given up: what dripped is no progress. */
    begin_with(drip, (struct upstreams_options){.stall_ms = 200, .tries = 2}, 0, 0);
    server.blob_bytes = 100000;
    atomic_store(&server.knob[0], 1);
    s = stream_start();
    source_drain(&s, 1000, &d);
    assert_int_equal(d.rc, ERR_TIMEOUT);
    assert_int_equal(atomic_load(&server.requests), 2);
    drained_release(&d);
}

static bool forever(struct server *s, int fd, unsigned nth UNUSED, const char *request)
{
    uint64_t from = server_range(request);

    server_blob_head(fd, from, s->blob_bytes);
    while (from < s->blob_bytes && server_blob(fd, from, from + 2000)) {
        from += 2000;
        usleep(1000);
    }
    return false;
}

static void nothing(void *arg UNUSED)
{
}

/* A blob has a time as a whole; a reader's pauses are not the upstream's. */
static void test_blob_ms(void **state UNUSED)
{
    static char data[100000];
    struct source *s;
    struct drained d;
    struct err err = ERR_INIT;
    size_t got, len = 0;

    begin_with(forever, (struct upstreams_options){.blob_ms = 1000}, 0, 0);
    server.blob_bytes = 1ull << 40;
    s = stream_start();
    source_drain(&s, 1000, &d);
    assert_int_equal(d.rc, ERR_TIMEOUT);
    assert_non_null(strstr(d.err.msg, "not done within"));
    drained_release(&d);
    end(NULL);

    begin_with(drip, (struct upstreams_options){.blob_ms = 1000}, 0, 0);
    server.blob_bytes = 8 << 20; /* many rings */
    atomic_store(&server.knob[0], 0);
    atomic_store(&server.requests, 1);
    s = stream_start();
    source_set_waker(s, nothing, NULL);
    usleep(1500 * 1000);
    for (int rc = STEP_MORE; rc != STEP_EOF; len += got) {
        rc = source_read(s, data, sizeof data, &got, &err);
        ASSERT_OK(rc);
        if (rc == STEP_WAIT)
            usleep(1000);
    }
    assert_int_equal(len, 8 << 20);
    source_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_reserve, end),        cmocka_unit_test_teardown(test_calls_first, end),
        cmocka_unit_test_teardown(test_cancel_in_line, end), cmocka_unit_test_teardown(test_stop_in_line, end),
        cmocka_unit_test_teardown(test_rate, end),           cmocka_unit_test_teardown(test_request_ms, end),
        cmocka_unit_test_teardown(test_crawl, end),          cmocka_unit_test_teardown(test_blob_ms, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
