/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream*.c: registries, calls, redirects, retries, the end. Streams: proxy_upstream_stream_test.c.
 * long: one set-up, all kinds of answers
 * Cases 30, 35 (Retry-After), 39, 49, 53, 54, 55.
 */
#include "base/clock.h"
#include "proxy/upstream.h"
#include "tests/unit/proxy_server.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* ---- one call at a time ---- */

struct result {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    unsigned ends;
    struct err err;
    struct upstream_answer answer; /* stolen */
};

static struct server server;
static struct upstreams *ups;
static struct result result;
static bool started;

static void on_done(void *arg, struct upstream_answer *answer, const struct err *err)
{
    struct result *r = arg;

    pthread_mutex_lock(&r->mutex);
    r->ends++;
    r->err = *err;
    upstream_answer_release(&r->answer);
    r->answer = *answer;
    *answer = (struct upstream_answer){.head = {.retry_after_s = -1}};
    pthread_cond_broadcast(&r->cond);
    pthread_mutex_unlock(&r->mutex);
}

static int wait_for(struct result *r, unsigned ends)
{
    pthread_mutex_lock(&r->mutex);
    while (r->ends < ends)
        pthread_cond_wait(&r->cond, &r->mutex);
    pthread_mutex_unlock(&r->mutex);
    return r->err.code;
}

static void begin_with(server_fn *fn, struct upstreams_options opt)
{
    struct err err = ERR_INIT;

    server_start(&server, fn, NULL);
    result = (struct result){.mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    opt.user_agent = "recask/test";
    assert_int_equal(upstreams_new(&opt, &ups, &err), 0);
    assert_int_equal(upstreams_add(ups, &(struct upstream_def){.name = "one", .url = server.url}, &err), 0);
    assert_int_equal(upstreams_start(ups, &err), 0);
    started = true;
}

static void begin(server_fn *fn)
{
    begin_with(fn, (struct upstreams_options){.stall_ms = 5000});
}

static int end(void **state UNUSED)
{
    if (!started)
        return 0;
    started = false;
    upstreams_stop(ups);
    upstreams_free(ups);
    server_stop(&server);
    upstream_answer_release(&result.answer);
    return 0;
}

static int call(const char *path, bool head, size_t limit)
{
    struct err err = ERR_INIT;
    struct upstream_request req = {.up = upstream_default(ups),
                                   .head = head,
                                   .path = path,
                                   .limit_bytes = limit,
                                   .accept = "application/vnd.test+json"};
    unsigned ends = result.ends;

    assert_int_equal(upstream_call(ups, &req, on_done, &result, &err), 0);
    return wait_for(&result, ends + 1);
}

/* ---- plain answers ---- */

static bool say_ok(struct server *s, int fd, unsigned nth UNUSED, const char *request)
{
    memcpy(s->last, request, strlen(request) + 1);
    return server_say(fd,
                      "HTTP/1.1 200 OK\r\nContent-Type: application/vnd.test+json\r\nContent-Length: 5\r\n"
                      "Docker-Content-Digest: sha256:"
                      "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824\r\n"
                      "Link: </a>; rel=next\r\nLink: </b>; rel=last\r\nOCI-Filters-Applied: artifactType\r\n\r\n") &&
           (strncmp(request, "HEAD", 4) == 0 || server_say(fd, "hello"));
}

static void test_call_ok(void **state UNUSED)
{
    struct digest want;

    begin(say_ok);
    assert_int_equal(call("/v2/x/manifests/1?n=2", false, 100), 0);
    assert_int_equal(result.answer.head.status, 200);
    assert_string_equal(result.answer.head.content_type, "application/vnd.test+json");
    assert_string_equal(result.answer.head.link, "</a>; rel=next, </b>; rel=last");
    assert_string_equal(result.answer.head.filters_applied, "artifactType");
    assert_true(result.answer.head.has_length && result.answer.head.length_bytes == 5);
    digest_of("hello", 5, &want);
    assert_true(result.answer.head.has_digest && digest_equal(&want, &result.answer.head.digest));
    assert_int_equal(result.answer.head.retry_after_s, -1);
    assert_int_equal(result.answer.body.len, 5);
    assert_string_equal(result.answer.body.data, "hello");
    assert_true(strncmp(server.last, "GET /v2/x/manifests/1?n=2 HTTP/1.1\r\n", 36) == 0);
    assert_non_null(strstr(server.last, "\r\nAccept-Encoding: identity\r\n"));
    assert_non_null(strstr(server.last, "\r\nAccept: application/vnd.test+json\r\n"));
    assert_non_null(strstr(server.last, "\r\nUser-Agent: recask/test\r\n"));
    assert_null(strstr(server.last, "Authorization"));
}

static void test_head_and_reuse(void **state UNUSED)
{
    struct upstream_counts counts;

    begin(say_ok);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(call("/v2/x/manifests/1", true, 100), 0);
        assert_true(result.answer.head.has_length && result.answer.head.length_bytes == 5);
        assert_int_equal(result.answer.body.len, 0);
        assert_true(strncmp(server.last, "HEAD ", 5) == 0);
    }
    assert_int_equal(call("/v2/x/manifests/1", false, 100), 0);
    assert_int_equal(atomic_load(&server.connections), 1);
    upstreams_counts(ups, &counts);
    assert_true(counts.requests == 6 && counts.bytes == 5 && counts.errors == 0);
}

static bool say_status(struct server *s UNUSED, int fd, unsigned nth UNUSED, const char *request)
{
    char text[256];
    const char *status = strstr(request, "/status/") + strlen("/status/");

    snprintf(text, sizeof text, "HTTP/1.1 %.3s Whatever\r\n%sContent-Length: 4\r\n\r\noops", status,
             strstr(request, "later") != NULL ? "Retry-After: 30\r\n" : "");
    return server_say(fd, text);
}

/* Cases 49 and 35: what happened is what is said, and no status is asked for again that will not change. */
static void test_statuses(void **state UNUSED)
{
    static const struct {
        const char *path;
        int code, status;
        unsigned requests;
    } rows[] = {
        {"/status/404", ERR_NOTFOUND, 404, 1},       {"/status/401", ERR_DENIED, 401, 1},
        {"/status/403", ERR_DENIED, 403, 1},         {"/status/429/later", ERR_THROTTLED, 429, 1},
        {"/status/503/later", ERR_UPSTREAM, 503, 1}, {"/status/400", ERR_UPSTREAM, 400, 1},
        {"/status/501", ERR_UPSTREAM, 501, 1},       {"/status/304", ERR_UPSTREAM, 304, 1},
        {"/status/302", ERR_UPSTREAM, 302, 1},       {"/status/206", ERR_UPSTREAM, 206, 1},
        {"/status/429", ERR_THROTTLED, 429, 3},      {"/status/500", ERR_UPSTREAM, 500, 3},
    };

    begin(say_status);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        unsigned before = atomic_load(&server.requests);

        assert_int_equal(call(rows[i].path, false, 100), rows[i].code);
        assert_int_equal(atomic_load(&server.requests) - before, rows[i].requests);
        assert_int_equal(result.answer.head.status, rows[i].status);
        assert_int_equal(result.answer.body.len, 0);
        assert_int_equal(result.answer.head.retry_after_s, strstr(rows[i].path, "later") != NULL ? 30 : -1);
        assert_non_null(strstr(result.err.msg, "GET http://127.0.0.1:"));
        assert_non_null(strstr(result.err.msg, rows[i].path));
    }
}

static bool fail_then_say(struct server *s, int fd, unsigned nth, const char *request)
{
    if (nth == 0)
        return server_say(fd, "HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n");
    if (nth == 1)
        return server_say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel") && false;
    return say_ok(s, fd, nth, request);
}

static void test_retry(void **state UNUSED)
{
    int64_t start = clock_mono_ms();

    begin(fail_then_say);
    assert_int_equal(call("/v2/", false, 100), 0);
    assert_string_equal(result.answer.body.data, "hello");
    assert_int_equal(atomic_load(&server.requests), 3);
    assert_true(clock_mono_ms() - start >= 1000);
}

static bool say_much(struct server *s UNUSED, int fd, unsigned nth UNUSED, const char *request)
{
    if (strstr(request, "/chunked") != NULL)
        return server_say(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n"
                              "6\r\nabcdef\r\n6\r\nabcdef\r\n0\r\nContent-Type: trailer/no\r\n\r\n");
    if (strstr(request, "/interim") != NULL)
        return server_say(fd, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </no>\r\n\r\n"
                              "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: real/yes\r\n\r\nok");
    if (strstr(request, "/head") != NULL) {
        char line[1024];

        memset(line, 'a', sizeof line);
        memcpy(line, "X-A: ", 5);
        memcpy(line + sizeof line - 3, "\r\n", 3);
        server_say(fd, "HTTP/1.1 200 OK\r\n");
        for (int i = 0; i < 80; i++)
            server_say(fd, line);
        return server_say(fd, "\r\n");
    }
    return server_say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nabcdefabcdef");
}

static void test_limits(void **state UNUSED)
{
    begin(say_much);
    assert_int_equal(call("/v2/plain", false, 12), 0);
    assert_int_equal(result.answer.body.len, 12);
    assert_int_equal(call("/v2/plain", false, 11), ERR_LIMIT);
    assert_int_equal(call("/v2/chunked", false, 12), 0);
    assert_int_equal(result.answer.body.len, 12);
    assert_false(result.answer.head.has_length);
    assert_null(result.answer.head.content_type);
    assert_int_equal(call("/v2/chunked", false, 11), ERR_LIMIT);
    assert_int_equal(call("/v2/interim", false, 12), 0);
    assert_string_equal(result.answer.head.content_type, "real/yes");
    assert_null(result.answer.head.link);
    assert_int_equal(call("/v2/head", false, 12), ERR_LIMIT);
}

static bool say_half(struct server *s UNUSED, int fd, unsigned nth UNUSED, const char *request)
{
    if (strstr(request, "/silent") == NULL)
        server_say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
    server_hang(fd);
    return false;
}

static void test_stall(void **state UNUSED)
{
    begin_with(say_half, (struct upstreams_options){.stall_ms = 100, .tries = 2});
    assert_int_equal(call("/v2/silent", false, 100), ERR_TIMEOUT);
    assert_int_equal(call("/v2/half", false, 100), ERR_TIMEOUT);
    assert_int_equal(atomic_load(&server.requests), 4);
}

/* Case 39: a registry that is not there is known to be so in well under a second. */
static void test_refused(void **state UNUSED)
{
    struct err err = ERR_INIT;
    int64_t start;

    begin(say_ok);
    shutdown(server.fd, SHUT_RDWR);
    start = clock_mono_ms();
    assert_int_equal(call("/v2/", false, 100), ERR_UPSTREAM);
    assert_true(clock_mono_ms() - start < 900);
    assert_int_equal(result.answer.head.status, 0);
    assert_int_equal(err.code, 0);
}

/* ---- redirects ---- */

static bool redirect(struct server *s, int fd, unsigned nth, const char *request)
{
    static const struct {
        const char *path, *to;
    } rows[] = {{"/relative", "/final"},
                {"/scheme", "//127.0.0.1:%d/final"},
                {"/absolute", "http://127.0.0.1:%d/final"},
                {"/loop", "/loop"},
                {"/ftp", "ftp://127.0.0.1:%d/x"},
                {"/user", "http://me:pw@127.0.0.1:%d/final"},
                {"/signed", "/gone?X-Sig=%d"},
                {"/three", "/two"},
                {"/two", "absolute"},
                {"/file", "file:///etc/passwd"}};
    char where[128];
    char text[512];

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (strncmp(request + 4, rows[i].path, strlen(rows[i].path)) != 0)
            continue;
        const char *percent = strstr(rows[i].to, "%d");
        if (percent != NULL)
            snprintf(where, sizeof where, "%.*s%d%s", (int)(percent - rows[i].to), rows[i].to, s->port, percent + 2);
        else
            snprintf(where, sizeof where, "%s", rows[i].to);
        snprintf(text, sizeof text, "HTTP/1.1 307 Over there\r\nLocation: %s\r\nContent-Length: 3\r\n\r\n...", where);
        return server_say(fd, text);
    }
    if (strncmp(request + 4, "/gone", 5) == 0 && atomic_fetch_add(&s->knob[0], 1) == 0)
        return server_say(fd, "HTTP/1.1 403 Expired\r\nContent-Length: 0\r\n\r\n");
    return say_ok(s, fd, nth, request);
}

/* Cases 53 to 55. */
static void test_redirects(void **state UNUSED)
{
    begin(redirect);
    assert_int_equal(call("/relative", false, 100), 0);
    assert_non_null(strstr(server.last, "GET /final "));
    assert_non_null(strstr(server.last, "Accept: application/vnd.test+json"));
    assert_int_equal(call("/scheme", false, 100), 0);
    assert_int_equal(call("/absolute", false, 100), 0);
    assert_int_equal(call("/three", false, 100), 0);

    unsigned before = atomic_load(&server.requests);
    assert_int_equal(call("/loop", false, 100), ERR_UPSTREAM);
    assert_int_equal(atomic_load(&server.requests) - before, 6);
    assert_int_equal(call("/ftp", false, 100), ERR_UPSTREAM);
    assert_int_equal(call("/file", false, 100), ERR_UPSTREAM);
    before = atomic_load(&server.requests);
    assert_int_equal(call("/user", false, 100), ERR_UPSTREAM);
    assert_int_equal(atomic_load(&server.requests) - before, 1);

    /* The signed URL has expired: asked for a new one, once. */
    before = atomic_load(&server.requests);
    assert_int_equal(call("/signed?token=secret", false, 100), 0);
    assert_int_equal(atomic_load(&server.requests) - before, 4);
    atomic_store(&server.knob[0], 0);
}

static bool always_403(struct server *s UNUSED, int fd, unsigned nth UNUSED, const char *request)
{
    if (strstr(request, "/start") != NULL)
        return server_say(fd, "HTTP/1.1 302 Found\r\nLocation: /cdn?sig=SECRET\r\nContent-Length: 0\r\n\r\n");
    return server_say(fd, "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
}

static void test_redirect_denied(void **state UNUSED)
{
    begin(always_403);
    assert_int_equal(call("/start?sig=SECRET", false, 100), ERR_DENIED);
    assert_int_equal(atomic_load(&server.requests), 4);
    assert_null(strstr(result.err.msg, "SECRET"));
}

/* What goes out on the request line of the second request. */
#define ODD "/b%2fc%2Fd%2b/../e/./~;=+@:,!$'()*&x?X-Sig=a%2Bb%2f+~%7e%7E&u=%e2%82%AC&&empty=&?again=/?"

static bool signed_url(struct server *s, int fd, unsigned nth, const char *request)
{
    char text[1024];

    if (strncmp(request, "GET /absolute", 13) != 0 && strncmp(request, "GET /relative", 13) != 0)
        return say_ok(s, fd, nth, request);
    if (strstr(request, "GET /absolute") != NULL)
        snprintf(text, sizeof text, "HTTP://127.0.0.1:%d%s#fragment", s->port, ODD);
    else
        snprintf(text, sizeof text, "/only%%2bpath%%2B?X-Sig=a%%2Bb%%2f+~%%7e");
    return server_say(fd, "HTTP/1.1 302 Found\r\nSet-Cookie: id=1; Path=/\r\nContent-Length: 0\r\nLocation: ") &&
           server_say(fd, text) && server_say(fd, "\r\n\r\n");
}

/* Case 53: a signature covers the bytes of the URL, so not one of them may change; and cookies are nobody's business. */
static void test_signed_url(void **state UNUSED)
{
    begin(signed_url);
    assert_int_equal(call("/absolute", false, 100), 0);
    assert_true(strncmp(server.last, "GET " ODD " HTTP/1.1\r\n", strlen("GET " ODD " HTTP/1.1\r\n")) == 0);
    assert_null(strcasestr(server.last, "\r\nCookie:"));
    assert_int_equal(call("/relative", false, 100), 0);
    assert_non_null(strstr(server.last, "GET /only%2bpath%2B?X-Sig=a%2Bb%2f+~%7e HTTP/1.1\r\n"));
    assert_null(strcasestr(server.last, "\r\nCookie:"));
    assert_int_equal(call("/v2/", false, 100), 0);
    assert_null(strcasestr(server.last, "\r\nCookie:"));
}

static bool expires(struct server *s, int fd, unsigned nth, const char *request)
{
    char text[128];

    if (strncmp(request, "GET /v2/", 8) == 0)
        return server_say(fd, "HTTP/1.1 302 Found\r\nLocation: /cdn?sig=SECRET\r\nContent-Length: 0\r\n\r\n");
    if (atomic_fetch_add(&s->knob[1], 1) >= atomic_load(&s->knob[2]))
        return say_ok(s, fd, nth, request);
    snprintf(text, sizeof text, "HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n", atomic_load(&s->knob[0]));
    return server_say(fd, text);
}

/* Case 54: an expired signed URL is asked for anew, once, whatever status it is refused with. */
static void test_expired(void **state UNUSED)
{
    static const struct {
        int status, times;
        int code;
        unsigned requests;
    } rows[] = {{403, 1, 0, 4},
                {400, 1, 0, 4},
                {403, 9, ERR_DENIED, 4},
                {400, 9, ERR_UPSTREAM, 4},
                {404, 9, ERR_NOTFOUND, 2},
                {410, 9, ERR_UPSTREAM, 2}};

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        begin(expires);
        atomic_store(&server.knob[0], rows[i].status);
        atomic_store(&server.knob[2], rows[i].times);
        assert_int_equal(call("/v2/x/manifests/1", false, 100), rows[i].code);
        assert_int_equal(atomic_load(&server.requests), rows[i].requests);
        assert_null(strstr(result.err.msg, "SECRET"));
        end(NULL);
    }
}

/* ---- what cannot be reached says why ---- */

static void test_reasons(void **state UNUSED)
{
    struct upstreams *other;
    struct err err = ERR_INIT;
    static const struct {
        const char *url;
        const char *says[3];
    } rows[] = {
        {"http://no-such-registry.invalid", {"no-such-registry.invalid", "cannot be found"}},
        {"http://127.0.0.1:1", {"cannot connect to 127.0.0.1:1", "Connection refused"}},
    };

    begin(say_ok);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        unsigned ends = result.ends;

        assert_int_equal(upstreams_new(&(struct upstreams_options){.tries = 1}, &other, &err), 0);
        assert_int_equal(upstreams_add(other, &(struct upstream_def){.name = "x", .url = rows[i].url}, &err), 0);
        assert_int_equal(upstreams_start(other, &err), 0);
        struct upstream_request req = {.up = upstream_default(other), .path = "/v2/", .limit_bytes = 10};
        assert_int_equal(upstream_call(other, &req, on_done, &result, &err), 0);
        assert_int_equal(wait_for(&result, ends + 1), ERR_UPSTREAM);
        for (size_t k = 0; rows[i].says[k] != NULL; k++)
            if (strstr(result.err.msg, rows[i].says[k]) == NULL)
                fail_msg("no \"%s\" in: %s", rows[i].says[k], result.err.msg);
        upstreams_stop(other);
        upstreams_free(other);
    }
}

/* ---- Content-Encoding ---- */

static bool say_encoded(struct server *s UNUSED, int fd, unsigned nth UNUSED, const char *request)
{
    if (strstr(request, "/identity") != NULL)
        return server_say(fd, "HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello");
    return server_say(fd, "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\n") &&
           (strncmp(request, "HEAD", 4) == 0 || server_say(fd, "bytes"));
}

/* Case 84: told, not undone: the length counts other bytes then, also that of a HEAD. */
static void test_encoded(void **state UNUSED)
{
    begin(say_encoded);
    assert_int_equal(call("/v2/x/manifests/1", false, 100), 0);
    assert_string_equal(result.answer.head.content_encoding, "gzip");
    assert_false(result.answer.head.has_length);
    assert_string_equal(result.answer.body.data, "bytes");
    assert_int_equal(call("/v2/x/manifests/1", true, 100), 0);
    assert_string_equal(result.answer.head.content_encoding, "gzip");
    assert_false(result.answer.head.has_length);
    assert_int_equal(call("/identity", false, 100), 0);
    assert_null(result.answer.head.content_encoding);
    assert_true(result.answer.head.has_length);
}

/* ---- registries ---- */

static void test_registries(void **state UNUSED)
{
    static const char *const aliases[] = {"index.docker.io", "registry-1.docker.io", NULL};
    static const char *const bad_urls[] = {
        "ftp://x",        "registry",    "http://",        "http://u:p@x", "https://x?q=1",
        "https://x#frag", "http://u@x/", "http://x:99999", "file:///etc",  ""};
    struct upstreams *many;
    struct err err = ERR_INIT;
    const struct upstream *up;

    assert_int_equal(upstreams_new(&(struct upstreams_options){.tries = 1}, &many, &err), 0);
    assert_null(upstream_default(many));
    for (size_t i = 0; i < ARRAY_LEN(bad_urls); i++) {
        err_clear(&err);
        assert_int_equal(upstreams_add(many, &(struct upstream_def){.name = "a", .url = bad_urls[i]}, &err), ERR_USAGE);
    }
    err_clear(&err);
    struct upstream_def hub = {
        .name = "docker.io", .url = "https://registry-1.docker.io/", .aliases = aliases, .add_library = true};
    assert_int_equal(upstreams_add(many, &hub, &err), 0);
    assert_int_equal(
        upstreams_add(many, &(struct upstream_def){.name = "[::1]:5", .url = "http://[::1]:5/sub/path//"}, &err), 0);
    assert_int_equal(upstreams_add(many, &hub, &err), ERR_USAGE);
    err_clear(&err);
    hub.name = "other";
    assert_int_equal(upstreams_add(many, &hub, &err), ERR_USAGE); /* its aliases */
    up = upstream_find(many, "INDEX.docker.io/more", 15);
    assert_ptr_equal(up, upstream_default(many));
    assert_string_equal(upstream_name(up), "docker.io");
    assert_string_equal(upstream_url(up), "https://registry-1.docker.io");
    assert_true(upstream_adds_library(up));
    assert_null(upstream_find(many, "docker.i", 8));
    assert_null(upstream_find(many, "", 0));
    err_clear(&err);
    assert_int_equal(upstreams_set_default(many, "nobody", &err), ERR_USAGE);
    err_clear(&err);
    assert_int_equal(upstreams_set_default(many, "[::1]:5", &err), 0);
    assert_string_equal(upstream_url(upstream_default(many)), "http://[::1]:5/sub/path");
    upstreams_stop(many);
    upstreams_free(many);
}

static void test_bad_requests(void **state UNUSED)
{
    static const char *const paths[] = {"v2/", "/v2/ HTTP/1.1\r\nX: y", "/a b", "/a\x7f", ""};
    struct err err = ERR_INIT;

    begin(say_ok);
    struct upstream_request req = {.up = upstream_default(ups), .limit_bytes = 10};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        err_clear(&err);
        req.path = paths[i];
        assert_int_equal(upstream_call(ups, &req, on_done, &result, &err), ERR_FORMAT);
    }
    err_clear(&err);
    req.path = "/v2/";
    req.accept = "a/b\r\nAuthorization: stolen";
    assert_int_equal(upstream_call(ups, &req, on_done, &result, &err), ERR_FORMAT);
    assert_int_equal(atomic_load(&server.requests), 0);
    assert_int_equal(result.ends, 0);
}

/* ---- offline and the end ---- */

static void test_offline(void **state UNUSED)
{
    struct upstream_counts counts;
    struct err err = ERR_INIT;

    begin_with(say_ok, (struct upstreams_options){.offline = true});
    struct upstream_request req = {.up = upstream_default(ups), .path = "/v2/", .limit_bytes = 10};
    assert_int_equal(upstream_call(ups, &req, on_done, &result, &err), ERR_UPSTREAM);
    assert_non_null(strstr(err.msg, "offline"));
    upstreams_counts(ups, &counts);
    assert_true(counts.requests == 0);
}

static void test_stop_with_calls(void **state UNUSED)
{
    struct err err = ERR_INIT;

    begin(say_half);
    struct upstream_request req = {.up = upstream_default(ups), .path = "/v2/", .limit_bytes = 1000};
    for (int i = 0; i < 20; i++)
        assert_int_equal(upstream_call(ups, &req, on_done, &result, &err), 0);
    while (atomic_load(&server.requests) < 5)
        usleep(1000);
    upstreams_stop(ups);
    assert_int_equal(result.ends, 20);
    assert_int_equal(result.err.code, ERR_CANCELLED);
    assert_int_equal(upstream_call(ups, &req, on_done, &result, &err), ERR_CANCELLED);
    assert_int_equal(result.ends, 20);
}

static void test_stop_unstarted(void **state UNUSED)
{
    struct upstreams *idle;
    struct err err = ERR_INIT;

    result = (struct result){.mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    assert_int_equal(upstreams_new(&(struct upstreams_options){.tries = 1}, &idle, &err), 0);
    assert_int_equal(upstreams_add(idle, &(struct upstream_def){.name = "x", .url = "http://127.0.0.1:1"}, &err), 0);
    struct upstream_request req = {.up = upstream_default(idle), .path = "/v2/"};
    assert_int_equal(upstream_call(idle, &req, on_done, &result, &err), 0);
    upstreams_stop(idle);
    assert_int_equal(result.ends, 1);
    assert_int_equal(result.err.code, ERR_CANCELLED);
    upstream_answer_release(&result.answer);
    upstreams_free(idle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_call_ok, end),         cmocka_unit_test_teardown(test_head_and_reuse, end),
        cmocka_unit_test_teardown(test_statuses, end),        cmocka_unit_test_teardown(test_retry, end),
        cmocka_unit_test_teardown(test_limits, end),          cmocka_unit_test_teardown(test_stall, end),
        cmocka_unit_test_teardown(test_refused, end),         cmocka_unit_test_teardown(test_redirects, end),
        cmocka_unit_test_teardown(test_redirect_denied, end), cmocka_unit_test_teardown(test_signed_url, end),
        cmocka_unit_test_teardown(test_expired, end),         cmocka_unit_test_teardown(test_reasons, end),
        cmocka_unit_test_teardown(test_encoded, end),         cmocka_unit_test_teardown(test_registries, end),
        cmocka_unit_test_teardown(test_bad_requests, end),    cmocka_unit_test_teardown(test_offline, end),
        cmocka_unit_test_teardown(test_stop_with_calls, end), cmocka_unit_test_teardown(test_stop_unstarted, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
