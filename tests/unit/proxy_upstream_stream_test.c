/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_stream.c: every way a transfer breaks and goes on, pausing, dropping, stopping.
 * long: one set-up, all ways in which an answer can be wrong
 * Cases 10, 11, 72 to 74 (the upstream half of them) and 102.
 */
#include "base/clock.h"
#include "proxy/upstream.h"
#include "tests/unit/proxy_server.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>

#include <cmocka.h>

#define BLOB_BYTES ((uint64_t)1000003)

static struct server server;
static struct upstreams *ups;
static bool started;

static void begin_with(server_fn *fn, uint64_t blob_bytes, int stall_ms)
{
    struct err err = ERR_INIT;

    server_start(&server, fn, NULL);
    server.blob_bytes = blob_bytes;
    assert_int_equal(upstreams_new(&(struct upstreams_options){.stall_ms = stall_ms}, &ups, &err), 0);
    assert_int_equal(upstreams_add(ups, &(struct upstream_def){.name = "one", .url = server.url}, &err), 0);
    assert_int_equal(upstreams_start(ups, &err), 0);
    started = true;
}

static void begin(server_fn *fn)
{
    begin_with(fn, BLOB_BYTES, 5000);
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

/* ---- a reader that sleeps until it is woken ---- */

struct reader {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    unsigned wakes;
    struct source *source;
    uint64_t at; /* position in the blob */
    struct err err;
};

static void on_wake(void *arg)
{
    struct reader *r = arg;

    pthread_mutex_lock(&r->mutex);
    r->wakes++;
    pthread_cond_signal(&r->cond);
    pthread_mutex_unlock(&r->mutex);
}

static int reader_open(struct reader *r, uint64_t first)
{
    struct upstream_request req = {.up = upstream_default(ups), .path = "/v2/x/blobs/y", .first = first};

    *r = (struct reader){.mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER, .at = first};
    int rc = upstream_stream_new(ups, &req, &r->source, &r->err);
    if (rc == 0)
        source_set_waker(r->source, on_wake, r);
    return rc;
}

static void reader_sleep(struct reader *r)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 30;
    pthread_mutex_lock(&r->mutex);
    while (r->wakes == 0)
        if (pthread_cond_timedwait(&r->cond, &r->mutex, &until) != 0)
            fail_msg("nobody called the waker");
    r->wakes = 0;
    pthread_mutex_unlock(&r->mutex);
}

/* Reads up to `limit` bytes, checking each. Returns STEP_MORE when it got them, STEP_EOF, or < 0. */
static int reader_read(struct reader *r, uint64_t limit)
{
    static _Thread_local uint8_t buf[100000];

    while (limit > 0) {
        size_t len;
        int rc = source_read(r->source, buf, limit < sizeof buf ? (size_t)limit : sizeof buf, &len, &r->err);

        if (rc == STEP_WAIT) {
            reader_sleep(r);
            continue;
        }
        if (rc != STEP_MORE)
            return rc;
        for (size_t i = 0; i < len; i++)
            if (buf[i] != server_blob_byte(r->at + i))
                fail_msg("wrong byte at %llu", (unsigned long long)(r->at + i));
        r->at += len;
        limit -= len;
    }
    return STEP_MORE;
}

static void reader_close(struct reader *r)
{
    source_free(r->source);
    r->source = NULL;
}

/* The whole rest from `first`; checks that it ended where the blob ends. */
static void read_all(uint64_t first)
{
    struct reader r;
    bool known;
    uint64_t bytes;

    assert_int_equal(reader_open(&r, first), 0);
    int rc = reader_read(&r, UINT64_MAX);
    if (rc != STEP_EOF)
        fail_msg("%d at %llu: %s", rc, (unsigned long long)r.at, r.err.msg);
    assert_int_equal(r.at, first > server.blob_bytes ? first : server.blob_bytes);
    assert_true(upstream_stream_length(r.source, &known, &bytes));
    if (known)
        assert_int_equal(bytes, server.blob_bytes);
    reader_close(&r);
}

static void read_fails(uint64_t first, int code, uint64_t at)
{
    struct reader r;

    assert_int_equal(reader_open(&r, first), 0);
    assert_int_equal(reader_read(&r, UINT64_MAX), code);
    assert_int_equal(r.at, at);
    reader_close(&r);
}

/* ---- whole answers ---- */

static bool say_blob(struct server *s, int fd, unsigned nth UNUSED, const char *request)
{
    uint64_t from = server_range(request);

    if (from >= s->blob_bytes && from > 0) {
        char text[256];

        snprintf(text, sizeof text, "HTTP/1.1 416 No\r\nContent-Range: bytes */%llu\r\nContent-Length: 0\r\n\r\n",
                 (unsigned long long)s->blob_bytes);
        return server_say(fd, text);
    }
    return server_blob_head(fd, from, s->blob_bytes) && server_blob(fd, from, s->blob_bytes);
}

static void test_whole(void **state UNUSED)
{
    struct upstream_counts counts;

    begin(say_blob);
    read_all(0);
    read_all(1);
    read_all(BLOB_BYTES - 1);
    upstreams_counts(ups, &counts);
    assert_int_equal(counts.bytes, BLOB_BYTES + BLOB_BYTES - 1 + 1);
    assert_int_equal(counts.requests, 3);
    assert_int_equal(atomic_load(&server.connections), 1);
    read_all(BLOB_BYTES);
    read_all(BLOB_BYTES + 5);
    assert_int_equal(atomic_load(&server.requests), 5);
}

static bool say_empty(struct server *s UNUSED, int fd, unsigned nth UNUSED, const char *request UNUSED)
{
    return server_say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
}

static void test_empty(void **state UNUSED)
{
    begin_with(say_empty, 0, 1000);
    read_all(0);
    read_all(7);
}

static bool ignore_range(struct server *s, int fd, unsigned nth UNUSED, const char *request UNUSED)
{
    return server_blob_head(fd, 0, s->blob_bytes) && server_blob(fd, 0, s->blob_bytes);
}

static void test_range_ignored(void **state UNUSED)
{
    begin(ignore_range);
    read_all(1);
    read_all(700000);
    read_all(BLOB_BYTES);
    read_all(BLOB_BYTES + 9);
    assert_int_equal(atomic_load(&server.requests), 4);
}

static bool say_chunked(struct server *s, int fd, unsigned nth, const char *request)
{
    uint64_t from = server_range(request);
    char line[128];

    if (from > 0) /* the resume: "*" for a total */
        snprintf(line, sizeof line,
                 "HTTP/1.1 206 Partial\r\nContent-Range: bytes %llu-%llu/*\r\nContent-Length: %llu\r\n\r\n",
                 (unsigned long long)from, (unsigned long long)(s->blob_bytes - 1),
                 (unsigned long long)(s->blob_bytes - from));
    else
        snprintf(line, sizeof line, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    server_say(fd, line);
    if (from > 0)
        return server_blob(fd, from, s->blob_bytes);
    for (uint64_t at = 0, len; at < s->blob_bytes; at += len) {
        len = s->blob_bytes - at < 70001 ? s->blob_bytes - at : 70001;
        if (atomic_load(&s->knob[0]) != 0 && nth == 0 && at > 300000)
            return false;
        snprintf(line, sizeof line, "%llx\r\n", (unsigned long long)len);
        if (!server_say(fd, line) || !server_blob(fd, at, at + len) || !server_say(fd, "\r\n"))
            return false;
    }
    return server_say(fd, "0\r\n\r\n");
}

static void test_chunked(void **state UNUSED)
{
    begin(say_chunked);
    read_all(0);
    end(NULL);
    begin(say_chunked);
    atomic_store(&server.knob[0], 1);
    read_all(0);
    assert_int_equal(atomic_load(&server.requests), 2);
}

/* ---- broken off ---- */

enum resume {
    RESUME_GOOD = 0,
    RESUME_IGNORED,   /* 200 */
    RESUME_400,       /* then, without Range, 200 */
    RESUME_416,       /* the same, without a total */
    RESUME_WRONG,     /* 206 for other bytes */
    RESUME_SHORT,     /* 206 that ends early, as it says */
    RESUME_NO_RANGE,  /* 206 without Content-Range */
    RESUME_OTHER,     /* 206 of a blob of another size */
    RESUME_OTHER_200, /* 200 of another size */
    RESUME_DENIED,
};

/* Breaks each of the first knob[1] transfers after 40 %, and answers a Range as knob[0] says. */
static bool break_off(struct server *s, int fd, unsigned nth, const char *request)
{
    bool has_range = strcasestr(request, "\r\nRange:") != NULL;
    uint64_t from = server_range(request), total = s->blob_bytes;
    uint64_t stop = (int)nth < atomic_load(&s->knob[1]) ? from + (total - from) * 2 / 5 : total;
    char head[256] = "";

    if (has_range) {
        switch ((enum resume)atomic_load(&s->knob[0])) {
        case RESUME_GOOD:
            break;
        case RESUME_IGNORED:
            from = 0;
            break;
        case RESUME_400:
            return server_say(fd, "HTTP/1.1 400 Bad\r\nContent-Length: 3\r\n\r\nbad");
        case RESUME_416:
            return server_say(fd, "HTTP/1.1 416 No\r\nContent-Length: 0\r\n\r\n");
        case RESUME_WRONG:
            from++;
            break;
        case RESUME_SHORT:
            stop = from + (total - from) / 2;
            if (stop < total - 10)
                snprintf(head, sizeof head,
                         "HTTP/1.1 206 Part\r\nContent-Range: bytes %llu-%llu/%llu\r\nContent-Length: %llu\r\n\r\n",
                         (unsigned long long)from, (unsigned long long)stop - 1, (unsigned long long)total,
                         (unsigned long long)(stop - from));
            else
                stop = total;
            break;
        case RESUME_NO_RANGE:
            snprintf(head, sizeof head, "HTTP/1.1 206 Part\r\nContent-Length: %llu\r\n\r\n",
                     (unsigned long long)(total - from));
            break;
        case RESUME_OTHER:
            total++;
            break;
        case RESUME_OTHER_200:
            from = 0;
            total++;
            break;
        case RESUME_DENIED:
            return server_say(fd, "HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n");
        }
    }
    if (!(head[0] != '\0' ? server_say(fd, head) : server_blob_head(fd, from, total)))
        return false;
    return server_blob(fd, from, stop) && stop == total;
}

static void begin_broken(enum resume how, int times)
{
    begin(break_off);
    atomic_store(&server.knob[0], how);
    atomic_store(&server.knob[1], times);
}

/* Cases 11 and 102. */
static void test_resume(void **state UNUSED)
{
    static const struct {
        enum resume how;
        int times;
        unsigned requests;
    } rows[] = {{RESUME_GOOD, 1, 2}, {RESUME_GOOD, 4, 5},  {RESUME_IGNORED, 1, 2}, {RESUME_400, 1, 3},
                {RESUME_416, 1, 3},  {RESUME_WRONG, 1, 3}, {RESUME_NO_RANGE, 1, 3}};

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        begin_broken(rows[i].how, rows[i].times);
        read_all(0);
        assert_int_equal(atomic_load(&server.requests), rows[i].requests);
        end(NULL);
    }
}

static void test_resume_in_parts(void **state UNUSED)
{
    begin_with(break_off, 100, 5000);
    atomic_store(&server.knob[0], RESUME_SHORT);
    atomic_store(&server.knob[1], 1);
    read_all(0);
    assert_int_equal(atomic_load(&server.requests), 4);
}

static void test_resume_of_something_else(void **state UNUSED)
{
    begin_broken(RESUME_OTHER, 1);
    read_fails(0, ERR_UPSTREAM, BLOB_BYTES * 2 / 5);
    end(NULL);
    begin_broken(RESUME_OTHER_200, 1);
    read_fails(0, ERR_UPSTREAM, BLOB_BYTES * 2 / 5);
    end(NULL);
    begin_broken(RESUME_DENIED, 1);
    read_fails(0, ERR_DENIED, BLOB_BYTES * 2 / 5);
}

/* An upstream that breaks at the same byte each time, or each time and cannot resume, ends in an error after a few tries. */
static bool break_at_100000(struct server *s, int fd, unsigned nth UNUSED, const char *request)
{
    uint64_t from = atomic_load(&s->knob[0]) != 0 ? 0 : server_range(request);

    return server_blob_head(fd, from, s->blob_bytes) && server_blob(fd, from, 100000) && false;
}

static bool break_later_each_time(struct server *s, int fd, unsigned nth, const char *request UNUSED)
{
    return server_blob_head(fd, 0, s->blob_bytes) && server_blob(fd, 0, (nth + 1) * 10000) && false;
}

static void test_never_whole(void **state UNUSED)
{
    begin(break_at_100000);
    read_fails(0, ERR_UPSTREAM, 100000);
    assert_int_equal(atomic_load(&server.requests), 3);
    end(NULL);
    begin(break_at_100000);
    atomic_store(&server.knob[0], 1);
    read_fails(0, ERR_UPSTREAM, 100000);
    assert_int_equal(atomic_load(&server.requests), 3);
    end(NULL);
    begin(break_later_each_time);
    read_fails(0, ERR_UPSTREAM, 40000);
    assert_int_equal(atomic_load(&server.requests), 5);
}

/* ---- Content-Encoding ---- */

enum again { AGAIN_SAME = 0, AGAIN_PLAIN, AGAIN_FIRST_PLAIN };

/* Breaks its first knob[1] answers; knob[0]: whether the others have the same Content-Encoding. */
static bool say_encoded(struct server *s, int fd, unsigned nth, const char *request)
{
    bool breaks = (int)nth < atomic_load(&s->knob[1]);
    int how = atomic_load(&s->knob[0]);
    bool encoded = how == AGAIN_SAME || (how == AGAIN_PLAIN) == (nth == 0);
    char head[200];

    if (server_range(request) > 0)
        snprintf(head, sizeof head,
                 "HTTP/1.1 206 Part\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\nContent-Range: bytes "
                 "%llu-%llu/%llu\r\n\r\nx",
                 (unsigned long long)server_range(request), (unsigned long long)server_range(request),
                 (unsigned long long)s->blob_bytes);
    else
        snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\n%sContent-Length: %llu\r\n\r\n",
                 encoded ? "Content-Encoding: gzip\r\n" : "", (unsigned long long)s->blob_bytes);
    if (!server_say(fd, head) || server_range(request) > 0)
        return true;
    return server_blob(fd, 0, breaks ? (nth + 1) * 10000 : s->blob_bytes) && !breaks;
}

/* No length is known, no part is asked for, and what was plain does not become encoded half-way, or the other way round. */
static void test_encoded(void **state UNUSED)
{
    struct reader r;
    bool known;
    uint64_t bytes;

    for (int breaks = 0; breaks < 3; breaks++) {
        begin(say_encoded);
        atomic_store(&server.knob[1], breaks);
        assert_int_equal(reader_open(&r, 0), 0);
        assert_int_equal(reader_read(&r, UINT64_MAX), STEP_EOF);
        assert_int_equal(r.at, BLOB_BYTES);
        assert_true(upstream_stream_length(r.source, &known, &bytes) && !known);
        assert_true(upstream_stream_encoded(r.source));
        assert_int_equal(atomic_load(&server.requests), breaks + 1);
        reader_close(&r);
        read_all(5); /* its 206 is not to be used */
        end(NULL);
    }
    begin(say_encoded); /* bytes again and again: not for ever */
    atomic_store(&server.knob[1], 1000);
    read_fails(0, ERR_UPSTREAM, 40000);
    end(NULL);
    for (int how = AGAIN_PLAIN; how <= AGAIN_FIRST_PLAIN; how++) {
        begin(say_encoded);
        atomic_store(&server.knob[0], how);
        atomic_store(&server.knob[1], 1);
        read_fails(0, ERR_UPSTREAM, 10000);
        end(NULL);
    }
}

static bool say_not_found(struct server *s UNUSED, int fd, unsigned nth UNUSED, const char *request UNUSED)
{
    return server_say(fd, "HTTP/1.1 404 No\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>");
}

static bool say_too_much(struct server *s, int fd, unsigned nth UNUSED, const char *request UNUSED)
{
    return server_say(fd, "HTTP/1.1 206 Part\r\nContent-Range: bytes 5-9/10\r\nContent-Length: 1000\r\n\r\n") &&
           server_blob(fd, 5, s->blob_bytes) && false;
}

static void test_refusals(void **state UNUSED)
{
    begin(say_not_found);
    read_fails(0, ERR_NOTFOUND, 0);
    read_fails(10, ERR_NOTFOUND, 10);
    assert_int_equal(atomic_load(&server.requests), 2);
    end(NULL);
    begin_with(say_too_much, 1005, 5000);
    read_fails(5, ERR_UPSTREAM, 5);
    read_fails(0, ERR_UPSTREAM, 0); /* 206 to a request without Range */
}

/* ---- wrong sizes ---- */

enum lie { LIE_LARGER = 0, LIE_SMALLER, LIE_NONE_CUT };

static bool lie(struct server *s, int fd, unsigned nth UNUSED, const char *request)
{
    uint64_t from = server_range(request);
    int how = atomic_load(&s->knob[0]);
    uint64_t said = how == LIE_LARGER ? s->blob_bytes + 1000 : s->blob_bytes - 1000;

    if (from >= s->blob_bytes) {
        char text[128];

        snprintf(text, sizeof text, "HTTP/1.1 416 No\r\nContent-Range: bytes */%llu\r\nContent-Length: 0\r\n\r\n",
                 (unsigned long long)s->blob_bytes);
        return server_say(fd, text);
    }
    if (how == LIE_NONE_CUT) /* the end of the connection is the end of the body */
        return server_say(fd, "HTTP/1.1 200 OK\r\n\r\n") && server_blob(fd, 0, 500000) && false;
    return server_blob_head(fd, from, said) && server_blob(fd, from, s->blob_bytes) && false;
}

/* A Content-Length that is too large ends in an error, never in an end; what was announced is all that is taken (and the
 * digest's to judge), as is a body that only the connection's end delimits. */
static void test_wrong_lengths(void **state UNUSED)
{
    struct reader r;

    begin(lie);
    read_fails(0, ERR_UPSTREAM, BLOB_BYTES);
    end(NULL);
    begin(lie);
    atomic_store(&server.knob[0], LIE_SMALLER);
    assert_int_equal(reader_open(&r, 0), 0);
    assert_int_equal(reader_read(&r, UINT64_MAX), STEP_EOF);
    assert_int_equal(r.at, BLOB_BYTES - 1000);
    reader_close(&r);
    end(NULL);
    begin(lie);
    atomic_store(&server.knob[0], LIE_NONE_CUT);
    assert_int_equal(reader_open(&r, 0), 0);
    assert_int_equal(reader_read(&r, UINT64_MAX), STEP_EOF);
    assert_int_equal(r.at, 500000);
    reader_close(&r);
}

/* ---- redirected ---- */

static bool moved(struct server *s, int fd, unsigned nth, const char *request)
{
    char text[128];
    int refusals = atomic_load(&s->knob[1]);

    if (strncmp(request, "GET /v2/", 8) == 0)
        return server_say(fd, "HTTP/1.1 307 There\r\nLocation: /cdn\r\nContent-Length: 0\r\n\r\n");
    if (server_range(request) == 0 && atomic_fetch_add(&s->knob[2], 1) == 0) /* breaks off once */
        return server_blob_head(fd, 0, s->blob_bytes) && server_blob(fd, 0, 1000) && false;
    if (refusals > 0) {
        atomic_store(&s->knob[1], refusals - 1);
        snprintf(text, sizeof text, "HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n", atomic_load(&s->knob[0]));
        return server_say(fd, text);
    }
    return say_blob(s, fd, nth, request);
}

/* Case 54 for blobs: what is refused where a redirect led is looked for once more from the registry, with Range still. */
static void test_moved_target(void **state UNUSED)
{
    static const int statuses[] = {400, 403, 404, 410};
    struct upstream_counts counts;

    for (size_t i = 0; i < ARRAY_LEN(statuses); i++) {
        begin(moved);
        atomic_store(&server.knob[0], statuses[i]);
        atomic_store(&server.knob[1], 1);
        read_all(0);
        upstreams_counts(ups, &counts);
        assert_int_equal(counts.bytes, BLOB_BYTES);
        assert_int_equal(atomic_load(&server.requests), 6);
        end(NULL);
    }
    begin(moved);
    atomic_store(&server.knob[0], 404);
    atomic_store(&server.knob[1], 9);
    read_fails(0, ERR_NOTFOUND, 1000);
    assert_int_equal(atomic_load(&server.requests), 6);
}

/* ---- pausing ---- */

static void test_pause(void **state UNUSED)
{
    struct upstream_counts counts;
    struct reader r;
    const uint64_t total = 8u << 20;

    begin_with(say_blob, total, 150);
    assert_int_equal(reader_open(&r, 0), 0);
    assert_int_equal(reader_read(&r, 1), STEP_MORE);
    usleep(600 * 1000); /* four stalls long: a pause is not the upstream's fault */
    upstreams_counts(ups, &counts);
    assert_true(counts.bytes <= 512u << 10);
    assert_true(counts.bytes > 400u << 10);
    /* Little by little: what is taken off the upstream stays within one ring of what was read. */
    while (r.at < total) {
        assert_int_equal(reader_read(&r, total - r.at < 70000 ? total - r.at : 70000), STEP_MORE);
        upstreams_counts(ups, &counts);
        assert_true(counts.bytes <= r.at + (512u << 10));
    }
    assert_int_equal(reader_read(&r, 1), STEP_EOF);
    reader_close(&r);
    assert_int_equal(atomic_load(&server.requests), 1);
}

static bool stall_half_way(struct server *s, int fd, unsigned nth UNUSED, const char *request)
{
    uint64_t from = server_range(request);

    if (server_blob_head(fd, from, s->blob_bytes) && server_blob(fd, from, from + 1000))
        server_hang(fd);
    return false;
}

/* No thread may run while the upstream and ten readers stand still. */
static void test_idle(void **state UNUSED)
{
    struct reader r[10];
    struct timespec before, after;

    begin(stall_half_way);
    for (size_t i = 0; i < ARRAY_LEN(r); i++) {
        assert_int_equal(reader_open(&r[i], 0), 0);
        assert_int_equal(reader_read(&r[i], 1000), STEP_MORE);
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    usleep(1000 * 1000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    assert_true((after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 < 20);
    for (size_t i = 0; i < ARRAY_LEN(r); i++)
        reader_close(&r[i]);
}

static void test_stall(void **state UNUSED)
{
    begin_with(stall_half_way, 1500, 100);
    read_all(0); /* 1000 bytes, silence, a resume for the rest */
    assert_int_equal(atomic_load(&server.requests), 2);
}

/* ---- dropping ---- */

/* Case 74: a dropped transfer is closed at once, however it stands. */
static void test_drop(void **state UNUSED)
{
    struct reader r;

    begin_with(say_blob, 64u << 20, 5000);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(reader_open(&r, 0), 0);
        if (i % 3 == 1)
            assert_int_equal(reader_read(&r, 1), STEP_MORE);
        if (i % 3 == 2)
            assert_int_equal(reader_read(&r, 1u << 20), STEP_MORE);
        reader_close(&r);
    }
    for (int i = 0; i < 500; i++) { /* the server's threads end when their connections do */
        unsigned closed = 0;

        for (unsigned c = 0; c < atomic_load(&server.connections); c++) {
            char byte;
            ssize_t n = recv(server.conns[c].fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

            closed += n == 0 || (n < 0 && errno != EAGAIN);
        }
        if (closed == atomic_load(&server.connections))
            return;
        usleep(10000);
    }
    fail_msg("connections of dropped transfers stay open");
}

static void *drop_many(void *arg)
{
    unsigned seed = *(unsigned *)arg;

    for (int i = 0; i < 25; i++) {
        struct reader r;
        uint64_t some = (uint64_t)rand_r(&seed) % (2u << 20);

        REQUIRE(reader_open(&r, 0) == 0);
        (void)reader_read(&r, some);
        reader_close(&r);
        REQUIRE(pthread_mutex_destroy(&r.mutex) == 0); /* would fail if a waker still ran */
        memset(&r, 0xdd, sizeof r);
    }
    return NULL;
}

static void test_drop_from_threads(void **state UNUSED)
{
    pthread_t threads[4];
    unsigned seeds[4] = {1, 2, 3, 4};

    begin(break_off);
    atomic_store(&server.knob[1], 40);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, drop_many, &seeds[i]), 0);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
}

static void test_stop(void **state UNUSED)
{
    struct reader r[8], late;

    begin_with(say_blob, 16u << 20, 5000);
    for (size_t i = 0; i < ARRAY_LEN(r); i++) {
        assert_int_equal(reader_open(&r[i], 0), 0);
        assert_int_equal(reader_read(&r[i], i * 100000), STEP_MORE);
    }
    upstreams_stop(ups);
    assert_int_equal(reader_open(&late, 0), ERR_CANCELLED);
    for (size_t i = 0; i < ARRAY_LEN(r); i++) {
        assert_int_equal(reader_read(&r[i], UINT64_MAX), ERR_CANCELLED);
        reader_close(&r[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_whole, end),
        cmocka_unit_test_teardown(test_empty, end),
        cmocka_unit_test_teardown(test_range_ignored, end),
        cmocka_unit_test_teardown(test_chunked, end),
        cmocka_unit_test_teardown(test_resume, end),
        cmocka_unit_test_teardown(test_resume_in_parts, end),
        cmocka_unit_test_teardown(test_resume_of_something_else, end),
        cmocka_unit_test_teardown(test_never_whole, end),
        cmocka_unit_test_teardown(test_refusals, end),
        cmocka_unit_test_teardown(test_encoded, end),
        cmocka_unit_test_teardown(test_wrong_lengths, end),
        cmocka_unit_test_teardown(test_moved_target, end),
        cmocka_unit_test_teardown(test_pause, end),
        cmocka_unit_test_teardown(test_idle, end),
        cmocka_unit_test_teardown(test_stall, end),
        cmocka_unit_test_teardown(test_drop, end),
        cmocka_unit_test_teardown(test_drop_from_threads, end),
        cmocka_unit_test_teardown(test_stop, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
