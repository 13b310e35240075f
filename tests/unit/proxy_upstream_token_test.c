/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_token.c: the token dance. Cases 52, 53, 58, 59, 60, 64.
 *
 * `registry` wants the token that `service` gave out last; both count.
 */
#include "base/clock.h"
#include "proxy/upstream.h"
#include "tests/unit/proxy_server.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define MANY 60
#define BLOB_BYTES 300000

enum { GIVEN, DENY_ALL, EXPIRES_IN, DELAY_MS }; /* the service's and the registry's knobs; GIVEN: the last token */

struct result {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    unsigned ends, good;
    struct err err; /* the last one */
    int status, retry_after_s;
};

static struct server registry, service, elsewhere;
static struct upstreams *ups;
static struct result result;
static bool started;
static const char *reply;     /* the service's; NULL: a token */
static char challenge[512];   /* the registry's */
static char asked[512];       /* the last request line that the service saw */
static atomic_uint with_auth; /* requests with Authorization that `elsewhere` saw */

static void on_done(void *arg, struct upstream_answer *answer, const struct err *err)
{
    struct result *r = arg;

    pthread_mutex_lock(&r->mutex);
    r->ends++;
    r->good += err->code == 0;
    r->err = *err;
    r->status = answer->head.status;
    r->retry_after_s = answer->head.retry_after_s;
    pthread_cond_broadcast(&r->cond);
    pthread_mutex_unlock(&r->mutex);
}

static int wait_for(unsigned ends)
{
    pthread_mutex_lock(&result.mutex);
    while (result.ends < ends)
        pthread_cond_wait(&result.cond, &result.mutex);
    pthread_mutex_unlock(&result.mutex);
    return result.err.code;
}

/* ---- the three servers ---- */

static bool serve_token(struct server *s, int fd, unsigned nth, const char *request)
{
    char body[256], text[512];

    snprintf(asked, sizeof asked, "%.*s", (int)strcspn(request, "\r"), request);
    REQUIRE(strcasestr(request, "\r\nAuthorization:") == NULL);
    if (reply != NULL)
        return server_say(fd, reply);
    usleep((useconds_t)atomic_load(&s->knob[DELAY_MS]) * 1000);
    snprintf(body, sizeof body, "{\"token\":\"tok.%u\",\"expires_in\":%d}", nth + 1, atomic_load(&s->knob[EXPIRES_IN]));
    atomic_store(&registry.knob[GIVEN], (int)nth + 1);
    snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    return server_say(fd, text);
}

static bool say_denied(int fd)
{
    char text[1024];

    snprintf(text, sizeof text, "HTTP/1.1 401 Unauthorized\r\n%sContent-Length: 4\r\n\r\noops", challenge);
    return server_say(fd, text);
}

static bool say_redirect(int fd, const char *host, int port)
{
    char text[256];

    snprintf(text, sizeof text, "HTTP/1.1 307 There\r\nLocation: http://%s:%d/final\r\nContent-Length: 0\r\n\r\n", host,
             port);
    return server_say(fd, text);
}

static bool allowed(struct server *s, const char *request)
{
    const char *given = strcasestr(request, "\r\nAuthorization: Bearer tok.");

    return given != NULL &&
           strtol(given + strlen("\r\nAuthorization: Bearer tok."), NULL, 10) == (long)atomic_load(&s->knob[GIVEN]) &&
           atomic_load(&s->knob[DENY_ALL]) == 0;
}

static bool serve_registry(struct server *s, int fd, unsigned nth UNUSED, const char *request)
{
    bool head = strncmp(request, "HEAD", 4) == 0;

    if (!allowed(s, request))
        return say_denied(fd);
    if (strstr(request, "/blobs/port") != NULL)
        return say_redirect(fd, "127.0.0.1", elsewhere.port);
    if (strstr(request, "/blobs/host") != NULL)
        return say_redirect(fd, "localhost", elsewhere.port);
    if (strstr(request, "/blobs/self") != NULL)
        return say_redirect(fd, "127.0.0.1", s->port);
    if (strstr(request, "/blobs/data") != NULL) {
        uint64_t from = server_range(request);
        /* The first connection breaks half-way, and with it the token dies. */
        if (from == 0 && atomic_fetch_add(&s->knob[3], 1) == 0) {
            bool ok = server_blob_head(fd, 0, BLOB_BYTES) && server_blob(fd, 0, BLOB_BYTES / 2);
            atomic_store(&s->knob[GIVEN], -1);
            return ok && false;
        }
        return server_blob_head(fd, from, BLOB_BYTES) && server_blob(fd, from, BLOB_BYTES);
    }
    return server_say(fd, head ? "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
                               : "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
}

static bool serve_elsewhere(struct server *s UNUSED, int fd, unsigned nth UNUSED, const char *request)
{
    if (strcasestr(request, "Authorization") != NULL)
        atomic_fetch_add(&with_auth, 1);
    return server_say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
}

static void begin_with(struct upstreams_options opt)
{
    struct err err = ERR_INIT;

    server_start(&registry, serve_registry, NULL);
    server_start(&service, serve_token, NULL);
    server_start(&elsewhere, serve_elsewhere, NULL);
    atomic_store(&service.knob[EXPIRES_IN], 300);
    atomic_store(&with_auth, 0);
    reply = NULL;
    snprintf(
        challenge, sizeof challenge,
        "WWW-Authenticate: Basic realm=\"x\"\r\n"
        "WWW-Authenticate: Bearer realm=\"http://127.0.0.1:%d/token\",service=\"the registry\",scope=\"all:of:it\"\r\n",
        service.port);
    result = (struct result){.mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    assert_int_equal(upstreams_new(&opt, &ups, &err), 0);
    assert_int_equal(upstreams_add(ups, &(struct upstream_def){.name = "one", .url = registry.url}, &err), 0);
    assert_int_equal(upstreams_start(ups, &err), 0);
    started = true;
}

static void begin(void)
{
    begin_with((struct upstreams_options){.stall_ms = 5000});
}

static int end(void **state UNUSED)
{
    if (!started)
        return 0;
    started = false;
    upstreams_stop(ups);
    upstreams_free(ups);
    server_stop(&registry);
    server_stop(&service);
    server_stop(&elsewhere);
    return 0;
}

static void post(const char *path, bool head)
{
    struct err err = ERR_INIT;
    struct upstream_request req = {.up = upstream_default(ups), .head = head, .path = path, .limit_bytes = 100};

    assert_int_equal(upstream_call(ups, &req, on_done, &result, &err), 0);
}

static int call(const char *path)
{
    unsigned ends = result.ends;

    post(path, false);
    return wait_for(ends + 1);
}

static void check_counts(unsigned at_registry, unsigned at_service)
{
    assert_int_equal(atomic_load(&registry.requests), at_registry);
    assert_int_equal(atomic_load(&service.requests), at_service);
}

/* ---- the dance ---- */

static void test_dance(void **state UNUSED)
{
    begin();
    assert_int_equal(call("/v2/a/b/manifests/1?x=y"), 0);
    assert_string_equal(asked, "GET /token?service=the%20registry&scope=repository%3Aa%2Fb%3Apull HTTP/1.1");
    check_counts(2, 1);
    for (int i = 0; i < 20; i++)
        assert_int_equal(call(i % 2 ? "/v2/a/b/blobs/x" : "/v2/a/b/tags/list?n=1"), 0);
    check_counts(22, 1);

    post("/v2/a/b/manifests/1", true);
    assert_int_equal(wait_for(22), 0);
    check_counts(23, 1);

    /* Another repository is another scope (case 60); HEAD alone is enough for it. */
    post("/v2/manifests/blobs/referrers/x", true);
    assert_int_equal(wait_for(23), 0);
    assert_non_null(strstr(asked, "scope=repository%3Amanifests%2Fblobs%3Apull "));
    check_counts(25, 2);
}

/* What lies in no repository has no scope to ask for. */
static void test_no_scope(void **state UNUSED)
{
    static const char *const paths[] = {"/v2/", "/v2/_catalog", "/v2/manifests/1", "/v2/A/manifests/1", "/x/a/blobs/1"};

    begin();
    for (size_t i = 0; i < ARRAY_LEN(paths); i++)
        assert_int_equal(call(paths[i]), ERR_DENIED);
    check_counts(ARRAY_LEN(paths), 0);
}

/* Case 64, and once more with a token that the registry has come to dislike. */
static void test_single_flight(void **state UNUSED)
{
    begin();
    atomic_store(&service.knob[DELAY_MS], 100);
    for (unsigned round = 1; round <= 2; round++) {
        for (int i = 0; i < MANY; i++)
            post("/v2/a/manifests/1", i % 2);
        wait_for(round * MANY);
        assert_int_equal(result.good, round * MANY);
        assert_int_equal(atomic_load(&service.requests), round);
        atomic_store(&registry.knob[GIVEN], -1);
    }
}

static void test_two_upstreams(void **state UNUSED)
{
    struct err err = ERR_INIT;

    begin();
    upstreams_stop(ups);
    upstreams_free(ups);
    assert_int_equal(upstreams_new(&(struct upstreams_options){.tries = 1}, &ups, &err), 0);
    assert_int_equal(upstreams_add(ups, &(struct upstream_def){.name = "one", .url = registry.url}, &err), 0);
    assert_int_equal(upstreams_add(ups, &(struct upstream_def){.name = "two", .url = elsewhere.url}, &err), 0);
    assert_int_equal(upstreams_start(ups, &err), 0);
    assert_int_equal(call("/v2/a/manifests/1"), 0);
    struct upstream_request req = {.up = upstream_find(ups, "two", 3), .path = "/v2/a/manifests/1", .limit_bytes = 10};
    assert_int_equal(upstream_call(ups, &req, on_done, &result, &err), 0);
    assert_int_equal(wait_for(2), 0);
    assert_int_equal(atomic_load(&elsewhere.requests), 1);
    assert_int_equal(atomic_load(&with_auth), 0);
}

/* ---- time ---- */

static void test_renewal(void **state UNUSED)
{
    begin();
    atomic_store(&service.knob[EXPIRES_IN], 1);
    assert_int_equal(call("/v2/a/manifests/1"), 0);
    assert_int_equal(call("/v2/a/manifests/1"), 0);
    usleep(950 * 1000); /* nine tenths of its life are over: renewed before it is refused */
    assert_int_equal(call("/v2/a/manifests/1"), 0);
    check_counts(4, 2);
}

/* The renewal fails while the old token still lives: it will do. Once it is dead the error shows, and the next request
 * starts anew. */
static void test_failing_renewal(void **state UNUSED)
{
    begin_with((struct upstreams_options){.tries = 1});
    atomic_store(&service.knob[EXPIRES_IN], 2);
    assert_int_equal(call("/v2/a/manifests/1"), 0);
    reply = "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n";
    usleep(1850 * 1000);
    assert_int_equal(call("/v2/a/manifests/1"), 0);
    assert_int_equal(atomic_load(&service.requests), 2);
    usleep(200 * 1000);
    assert_int_equal(call("/v2/a/manifests/1"), ERR_UPSTREAM);
    assert_non_null(strstr(result.err.msg, "upstream one, no token for repository:a:pull: GET http://127.0.0.1:"));
    assert_non_null(strstr(result.err.msg, "/token: status 500"));
    reply = NULL;
    assert_int_equal(call("/v2/a/manifests/1"), 0);
    check_counts(5, 4);
}

/* A blob that breaks off after its token has died goes on with a new one. */
static void test_stream(void **state UNUSED)
{
    struct upstream_request req = {.path = "/v2/a/blobs/data"};
    struct err err = ERR_INIT;
    struct source *s;
    uint64_t at = 0;
    uint8_t block[4096];
    size_t len;
    int rc;

    begin();
    req.up = upstream_default(ups);
    assert_int_equal(upstream_stream_new(ups, &req, &s, &err), 0);
    while ((rc = source_read(s, block, sizeof block, &len, &err)) != STEP_EOF) {
        if (rc == STEP_WAIT) {
            usleep(1000);
            continue;
        }
        assert_true(rc >= 0);
        for (size_t i = 0; i < len; i++)
            assert_int_equal(block[i], server_blob_byte(at + i));
        at += len;
    }
    assert_int_equal(at, BLOB_BYTES);
    source_free(s);
    check_counts(4, 2); /* 401, half, 401 to the Range, the rest */
}

/* ---- refusals ---- */

static void test_denied_for_ever(void **state UNUSED)
{
    begin();
    atomic_store(&registry.knob[DENY_ALL], 1);
    assert_int_equal(call("/v2/a/manifests/1"), ERR_DENIED);
    assert_int_equal(result.status, 401);
    assert_null(strstr(result.err.msg, "tok."));
    check_counts(2, 1);
    /* Now there is a cached one to be refused first. */
    assert_int_equal(call("/v2/a/manifests/1"), ERR_DENIED);
    check_counts(4, 2);
    for (int i = 0; i < MANY; i++)
        post("/v2/a/manifests/1", i % 2);
    wait_for(2 + MANY);
    assert_int_equal(result.good, 0);
    assert_true(atomic_load(&registry.requests) <= 4 + 3 * MANY);
    assert_true(atomic_load(&service.requests) <= 2 + MANY);
    atomic_store(&registry.knob[DENY_ALL], 0);
    assert_int_equal(call("/v2/a/manifests/1"), 0);
}

/* Case 52, and challenges that are none. */
static void test_bad_challenges(void **state UNUSED)
{
    static const char *const rows[] = {
        "",
        "WWW-Authenticate: Basic realm=\"http://127.0.0.1:%d/token\"\r\n",
        "WWW-Authenticate: Bearer service=\"%d\"\r\n",
        "WWW-Authenticate: Bearer realm=\"http://127.0.0.1:%d/token\r\n",
        "WWW-Authenticate: Bearer realm=\"http://localhost:%d/token\"\r\n",
        "WWW-Authenticate: Bearer realm=\"http://127.0.0.1@localhost:%d/token\"\r\n",
        "WWW-Authenticate: Bearer realm=\"//127.0.0.1:%d/token\"\r\n",
        "WWW-Authenticate: Bearer realm=\"ftp://127.0.0.1:%d/token\"\r\n",
    };

    begin();
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const char *percent = strstr(rows[i], "%d");
        size_t before = percent != NULL ? (size_t)(percent - rows[i]) : 0;

        challenge[0] = '\0';
        if (percent != NULL)
            snprintf(challenge, sizeof challenge, "%.*s%d%s", (int)before, rows[i], service.port, percent + 2);
        assert_int_equal(call("/v2/a/manifests/1"), ERR_DENIED);
        assert_int_equal(result.status, 401);
        assert_non_null(strstr(result.err.msg, "GET http://127.0.0.1:"));
        if (i >= 4) {
            assert_non_null(strstr(result.err.msg, "upstream one names a token service that is not its own"));
            assert_non_null(strstr(result.err.msg, "/token\""));
        }
    }
    check_counts(ARRAY_LEN(rows), 0);
    assert_int_equal(atomic_load(&service.connections), 0);
}

/* A realm may have a query of its own; one that changes is followed, and its token is another. */
static void test_other_realm(void **state UNUSED)
{
    begin();
    snprintf(challenge, sizeof challenge, "WWW-Authenticate: Bearer realm=\"http://127.0.0.1:%d/t?a=b#c\"\r\n",
             service.port);
    assert_int_equal(call("/v2/a/manifests/1"), 0);
    assert_string_equal(asked, "GET /t?a=b&scope=repository%3Aa%3Apull HTTP/1.1");
    atomic_store(&registry.knob[GIVEN], -1);
    snprintf(challenge, sizeof challenge, "WWW-Authenticate: Bearer realm=\"http://127.0.0.1:%d/u\",service=s\r\n",
             service.port);
    assert_int_equal(call("/v2/a/manifests/1"), 0);
    assert_string_equal(asked, "GET /u?service=s&scope=repository%3Aa%3Apull HTTP/1.1");
    check_counts(4, 2);
}

/* ---- the token service's answers ---- */

static void test_replies(void **state UNUSED)
{
    static const struct {
        const char *reply;
        int code, retry_after_s;
        unsigned requests;
    } rows[] = {
        {"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", ERR_UPSTREAM, -1, 1},
        {"HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer realm=\"x\"\r\nContent-Length: 0\r\n\r\n", ERR_DENIED, -1, 1},
        {"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n", ERR_DENIED, -1, 1},
        {"HTTP/1.1 429 No\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n", ERR_THROTTLED, 30, 1},
        {"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", ERR_UPSTREAM, -1, 2},
        {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ERR_UPSTREAM, -1, 1},
        {"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{\"token\":\"hush\"}", 0, -1, 1}, /* but a wrong one */
        {"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"token\":\"hush\"", ERR_UPSTREAM, -1, 1},
        {"HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{\"token\":\"hush 1\"}", ERR_UPSTREAM, -1, 1},
        {"HTTP/1.1 200 OK\r\nContent-Length: 65537\r\n\r\n{\"token\":\"hush\"}", ERR_UPSTREAM, -1, 1},
        {"HTTP/1.1 206 OK\r\nContent-Length: 16\r\n\r\n{\"token\":\"hush\"}", ERR_UPSTREAM, -1, 1},
        {"HTTP/1.1 307 There\r\nLocation: http://localhost:1/\r\nContent-Length: 0\r\n\r\n", ERR_DENIED, -1, 1},
        {"nonsense\r\n\r\n", ERR_UPSTREAM, -1, 1},
    };

    begin_with((struct upstreams_options){.tries = 2});
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        unsigned before = atomic_load(&service.requests);

        reply = rows[i].reply;
        assert_int_equal(call("/v2/a/manifests/1"), rows[i].code != 0 ? rows[i].code : ERR_DENIED);
        assert_int_equal(atomic_load(&service.requests) - before, rows[i].requests);
        assert_int_equal(result.retry_after_s, rows[i].retry_after_s);
        assert_null(strstr(result.err.msg, "hush"));
        assert_non_null(strstr(result.err.msg, rows[i].code != 0 ? "upstream one, no token for " : "status 401"));
    }
}

static bool token_elsewhere(struct server *s, int fd, unsigned nth, const char *request)
{
    if (nth == 0)
        return say_redirect(fd, "127.0.0.1", s->port);
    return serve_token(s, fd, nth, request);
}

static void test_service_redirects(void **state UNUSED)
{
    begin();
    service.fn = token_elsewhere;
    assert_int_equal(call("/v2/a/manifests/1"), 0);
    check_counts(2, 2);
    service.fn = serve_token;
}

static void test_service_down(void **state UNUSED)
{
    int64_t start;

    begin();
    shutdown(service.fd, SHUT_RDWR);
    start = clock_mono_ms();
    for (int i = 0; i < MANY; i++)
        post("/v2/a/manifests/1", false);
    assert_int_equal(wait_for(MANY), ERR_UPSTREAM);
    assert_true(clock_mono_ms() - start < 3000);
    assert_int_equal(result.good, 0);
    assert_non_null(strstr(result.err.msg, "no token for repository:a:pull"));
}

static bool hang(struct server *s UNUSED, int fd, unsigned nth UNUSED, const char *request UNUSED)
{
    server_hang(fd);
    return false;
}

static void test_service_hangs(void **state UNUSED)
{
    begin_with((struct upstreams_options){.tries = 2, .stall_ms = 100});
    service.fn = hang;
    for (int i = 0; i < 10; i++)
        post("/v2/a/manifests/1", false);
    assert_int_equal(wait_for(10), ERR_TIMEOUT);
    assert_int_equal(result.good, 0);
    assert_int_equal(atomic_load(&service.requests), 2);
}

/* ---- who gets to see it ---- */

static void test_redirects(void **state UNUSED)
{
    begin();
    assert_int_equal(call("/v2/a/blobs/port"), 0);
    assert_int_equal(call("/v2/a/blobs/host"), 0);
    assert_int_equal(atomic_load(&elsewhere.requests), 2);
    assert_int_equal(atomic_load(&with_auth), 0);
    check_counts(3, 1);
    assert_int_equal(call("/v2/a/blobs/self"), 0); /* "/final" is refused without */
    check_counts(5, 1);
}

static bool elsewhere_denies(struct server *s UNUSED, int fd, unsigned nth UNUSED, const char *request UNUSED)
{
    return say_denied(fd);
}

/* A 401 from where a redirect led is not the registry's. */
static void test_denied_elsewhere(void **state UNUSED)
{
    begin();
    elsewhere.fn = elsewhere_denies;
    assert_int_equal(call("/v2/a/blobs/port"), ERR_DENIED);
    check_counts(2, 1);
    assert_int_equal(atomic_load(&elsewhere.requests), 1);
}

/* ---- the end ---- */

static void test_leaving(void **state UNUSED)
{
    struct upstream_request req = {.path = "/v2/a/blobs/x"};
    struct err err = ERR_INIT;
    struct source *s[5];

    begin();
    service.fn = hang;
    req.up = upstream_default(ups);
    for (size_t i = 0; i < ARRAY_LEN(s); i++)
        assert_int_equal(upstream_stream_new(ups, &req, &s[i], &err), 0);
    post("/v2/a/manifests/1", false);
    while (atomic_load(&service.requests) == 0 || atomic_load(&registry.requests) < 6)
        usleep(1000);
    source_free(s[2]);
    source_free(s[0]);
    source_free(s[4]);
    usleep(20000);
    assert_int_equal(result.ends, 0);
    upstreams_stop(ups);
    assert_int_equal(result.ends, 1);
    assert_int_equal(result.err.code, ERR_CANCELLED);
    assert_int_equal(atomic_load(&service.requests), 1);
    source_free(s[1]);
    source_free(s[3]);
}

/* More repositories than tokens are kept for: the oldest is asked for again, the newest not. */
static void test_many_repositories(void **state UNUSED)
{
    char path[64];

    begin();
    atomic_store(&registry.knob[DENY_ALL], 0);
    for (int i = 0; i <= 1024; i++) {
        snprintf(path, sizeof path, "/v2/r%d/manifests/1", i);
        assert_int_equal(call(path), 0);
    }
    assert_int_equal(atomic_load(&service.requests), 1025);
    assert_int_equal(call("/v2/r1024/manifests/1"), 0);
    assert_int_equal(atomic_load(&service.requests), 1025);
    unsigned before = atomic_load(&registry.requests);
    assert_int_equal(call("/v2/r0/manifests/1"), 0);
    assert_int_equal(atomic_load(&service.requests), 1026);
    assert_int_equal(atomic_load(&registry.requests) - before, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_dance, end),          cmocka_unit_test_teardown(test_no_scope, end),
        cmocka_unit_test_teardown(test_single_flight, end),  cmocka_unit_test_teardown(test_two_upstreams, end),
        cmocka_unit_test_teardown(test_renewal, end),        cmocka_unit_test_teardown(test_failing_renewal, end),
        cmocka_unit_test_teardown(test_stream, end),         cmocka_unit_test_teardown(test_denied_for_ever, end),
        cmocka_unit_test_teardown(test_bad_challenges, end), cmocka_unit_test_teardown(test_other_realm, end),
        cmocka_unit_test_teardown(test_replies, end),        cmocka_unit_test_teardown(test_service_redirects, end),
        cmocka_unit_test_teardown(test_service_down, end),   cmocka_unit_test_teardown(test_service_hangs, end),
        cmocka_unit_test_teardown(test_redirects, end),      cmocka_unit_test_teardown(test_denied_elsewhere, end),
        cmocka_unit_test_teardown(test_leaving, end),        cmocka_unit_test_teardown(test_many_repositories, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
