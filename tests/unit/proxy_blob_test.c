/* SPDX-License-Identifier: Apache-2.0
 * proxy/blob.c, blob_answer.c, heal.c, canon.c, image.c: a whole proxy between a scripted registry and a client by hand; what
 * happens when stored bytes are damaged behind its back, and when nothing more can be stored. Run it under TSan.
 * long: one set-up, all that can happen to a stored blob
 */
#include "proxy/proxy_internal.h"
#include "transcode/codec.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/unit/proxy_server.h"
#include "tests/unit/proxy_util.h"

#define RAW_BYTES (3u << 20)
#define SMALL_BYTES 100000u
#define MANY 24

/* One blob of the upstream. */
struct thing {
    const char *what;
    char *data;
    size_t len;
    struct digest digest;
};

enum { RAW = 0, GZIP, SMALL, CONFIG, MANIFEST, INDEX, THINGS };
enum { KNOB_HEAD_WITHOUT_LENGTH = 0, KNOB_GZIP_GONE };

struct fixture {
    char dir[64];
    struct server server;
    struct thing things[THINGS];
    struct thing plain; /* what GZIP decodes to */
    struct thing many[MANY];
    atomic_uint fetches, heads;
    struct store *st;
    struct workpool *pool;
    struct http_server *http;
    struct proxy *p;
    const char *address;
};

/* ---- the upstream -------------------------------------------------------------------------------------------------------- */

static bool serve_one_of_many(const struct fixture *f, int fd, const char *request)
{
    for (size_t i = 0; i < MANY; i++) {
        char text[64];
        if (!strstr(request, digest_text(&f->many[i].digest).s))
            continue;
        snprintf(text, sizeof(text), "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", f->many[i].len);
        return server_say(fd, text) && server_write(fd, f->many[i].data, f->many[i].len);
    }
    return server_say(fd, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
}

static bool serve(struct server *s, int fd, unsigned nth UNUSED, const char *request)
{
    struct fixture *f = s->arg;
    bool head = strncmp(request, "HEAD ", 5) == 0;
    char text[256];

    atomic_fetch_add(head ? &f->heads : &f->fetches, 1);
    for (size_t i = 0; i < THINGS; i++) {
        const struct thing *t = &f->things[i];
        if ((i == GZIP && atomic_load(&s->knob[KNOB_GZIP_GONE])) || !strstr(request, digest_text(&t->digest).s))
            continue;
        snprintf(text, sizeof(text), "HTTP/1.1 200 OK\r\nContent-Type: %s\r\n",
                 i == MANIFEST ? "application/vnd.oci.image.manifest.v1+json"
                 : i == INDEX  ? "application/vnd.oci.image.index.v1+json"
                               : "application/octet-stream");
        server_say(fd, text);
        if (head && atomic_load(&s->knob[KNOB_HEAD_WITHOUT_LENGTH]))
            return server_say(fd, "\r\n");
        snprintf(text, sizeof(text), "Content-Length: %zu\r\n\r\n", t->len);
        return server_say(fd, text) && (head || server_write(fd, t->data, t->len));
    }
    return serve_one_of_many(f, fd, request);
}

static void thing_set(struct thing *t, char *data, size_t len)
{
    t->data = data;
    t->len = len;
    digest_of(data, len, &t->digest);
}

static char *noise(size_t len, uint64_t seed)
{
    char *data = malloc(len);
    uint64_t x = seed * 0x9e3779b97f4a7c15u;

    assert_non_null(data);
    for (size_t i = 0; i < len; i++) { /* xorshift64: nothing to compress */
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        data[i] = (char)(x >> 32);
    }
    return data;
}

static void make_things(struct fixture *f)
{
    struct drained d;
    struct source *in, *s;
    struct filter *gzip;
    struct err err = ERR_INIT;
    char *text = NULL;

    thing_set(&f->things[RAW], noise(RAW_BYTES, 1), RAW_BYTES);
    thing_set(&f->plain, noise(RAW_BYTES, 2), RAW_BYTES);
    struct script sc = {.data = f->plain.data, .len = f->plain.len, .fail_at = SIZE_MAX};
    ASSERT_OK(source_script_new(&sc, &in, &err));
    ASSERT_OK(codec_encoder_new(CODEC_GZIP, CODEC_LEVEL_FAST, &gzip, &err));
    ASSERT_OK(source_filtered_new(&in, &gzip, 65536, &s, &err));
    source_drain(&s, 65536, &d);
    thing_set(&f->things[GZIP], d.data, d.len);
    for (size_t i = 0; i < MANY; i++)
        thing_set(&f->many[i], noise(SMALL_BYTES, 100 + i), SMALL_BYTES);
    thing_set(&f->things[SMALL], noise(SMALL_BYTES, 3), SMALL_BYTES);
    ASSERT_OK(str_printf(
        &text, &err,
        "{\"architecture\":\"amd64\",\"os\":\"linux\",\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"%s\"]}}",
        digest_text(&f->things[SMALL].digest).s));
    thing_set(&f->things[CONFIG], text, strlen(text));
    ASSERT_OK(str_printf(
        &text, &err,
        "{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\","
        "\"config\":{\"mediaType\":\"application/vnd.oci.image.config.v1+json\",\"digest\":\"%s\",\"size\":%zu},"
        "\"layers\":[{\"mediaType\":\"application/vnd.oci.image.layer.v1.tar+gzip\",\"digest\":\"%s\","
        "\"size\":%zu}]}",
        digest_text(&f->things[CONFIG].digest).s, f->things[CONFIG].len, digest_text(&f->things[SMALL].digest).s,
        f->things[SMALL].len));
    thing_set(&f->things[MANIFEST], text, strlen(text));
    ASSERT_OK(
        str_printf(&text, &err,
                   "{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.index.v1+json\",\"manifests\":["
                   "{\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"digest\":\"%s\",\"size\":%zu,"
                   "\"platform\":{\"architecture\":\"amd64\",\"os\":\"linux\"}}]}",
                   digest_text(&f->things[MANIFEST].digest).s, f->things[MANIFEST].len));
    thing_set(&f->things[INDEX], text, strlen(text));
}

/* ---- set-up -------------------------------------------------------------------------------------------------------------- */

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct err err = ERR_INIT;

    assert_non_null(f);
    snprintf(f->dir, sizeof(f->dir), "/tmp/recask-blob-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    make_things(f);
    server_start(&f->server, serve, f);
    struct store_options store = {.path = f->dir};
    ASSERT_OK(store_open(&store, &f->st, &err));
    ASSERT_OK(workpool_new("work", 3, &f->pool, &err));
    struct http_options http = {.pool = f->pool};
    ASSERT_OK(http_server_new(&http, &f->http, &err));
    struct proxy_options opt = {
        .store = f->st, .pool = f->pool, .http = f->http, .user_agent = "test", .upstream_stall_ms = 5000};
    ASSERT_OK(proxy_new(&opt, &f->p, &err));
    struct upstream_def def = {.name = "up", .url = f->server.url};
    ASSERT_OK(proxy_add_upstream(f->p, &def, &err));
    ASSERT_OK(proxy_start(f->p, &err));
    struct proxy_listen l = {.address = "127.0.0.1:0"};
    ASSERT_OK(proxy_listen(f->p, &l, &f->address, &err));
    *state = f;
    return 0;
}

static int remove_entry(const char *path, const struct stat *sb UNUSED, int type UNUSED, struct FTW *ftw UNUSED)
{
    return remove(path);
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    http_server_drain(f->http, 1000);
    proxy_stop(f->p);
    workpool_free(f->pool);
    proxy_free(f->p);
    http_server_free(f->http);
    server_stop(&f->server);
    store_close(f->st);
    nftw(f->dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    for (size_t i = 0; i < THINGS; i++)
        free(f->things[i].data);
    for (size_t i = 0; i < MANY; i++)
        free(f->many[i].data);
    free(f->plain.data);
    free(f);
    return 0;
}

/* ---- asking ---------------------------------------------------------------------------------------------------------------- */

static char *ask(struct fixture *f, const char *method, const char *repo, const struct digest *d, const char *headers,
                 size_t *out_len)
{
    char path[200];
    snprintf(path, sizeof(path), "/v2/%s/blobs/%s", repo, digest_text(d).s);
    return client_ask(f->address, method, path, headers, out_len);
}

static void expect_bytes(const char *answer, size_t len, const char *want, size_t want_len)
{
    size_t body = len - (size_t)(answer_body(answer) - answer);
    if (body != want_len || memcmp(answer_body(answer), want, want_len) != 0)
        fail_msg("%zu bytes instead of %zu, or others", body, want_len);
}

static void expect_whole(struct fixture *f, const struct digest *d, const char *want, size_t want_len)
{
    size_t len;
    char *a = ask(f, "GET", "team/app", d, NULL, &len);
    if (answer_status(a) != 200)
        fail_msg("%.400s", a);
    expect_bytes(a, len, want, want_len);
    free(a);
}

static void expect_status(struct fixture *f, const char *method, const char *repo, const struct digest *d, int status)
{
    char *a = ask(f, method, repo, d, NULL, NULL);
    if (answer_status(a) != status)
        fail_msg("%d instead of %d: %.300s", answer_status(a), status, a);
    free(a);
}

static bool idle(void *arg)
{
    struct fixture *f = arg;
    struct proxy_stats stats;
    proxy_stats(f->p, &stats);
    return stats.jobs_pending == 0;
}

static struct store_blob blob_of(struct fixture *f, const struct digest *d)
{
    struct store_blob b;
    struct err err = ERR_INIT;
    ASSERT_OK(store_blob_lookup(f->st, d, &b, &err));
    return b;
}

/* Flips a byte of the pack, behind the store's back. at: a fraction of its size, in hundredths. */
static void damage_pack(struct fixture *f, unsigned at)
{
    char path[400];
    struct dirent *e;
    unsigned count = 0;

    snprintf(path, sizeof(path), "%s/packs", f->dir);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    while ((e = readdir(dir))) {
        struct stat sb;
        char byte;
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "%s/packs/%s", f->dir, e->d_name);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        assert_true(fd >= 0 && fstat(fd, &sb) == 0);
        off_t off = sb.st_size / 100 * at + 3000;
        assert_int_equal(pread(fd, &byte, 1, off), 1);
        byte ^= 0x55;
        assert_int_equal(pwrite(fd, &byte, 1, off), 1);
        close(fd);
        count++;
    }
    closedir(dir);
    assert_int_equal(count, 1);
}

/* ---- damage ------------------------------------------------------------------------------------------------------------------ */

/* Row 4 of the case list, and worse: a raw blob has no other copy here, and the damage shows in the middle of the answer. */
static void test_damaged_in_the_middle(void **state)
{
    struct fixture *f = *state;
    const struct thing *raw = &f->things[RAW];

    expect_whole(f, &raw->digest, raw->data, raw->len);
    assert_true(until(idle, f));
    assert_int_equal(blob_of(f, &raw->digest).role, ROLE_CANONICAL);
    expect_whole(f, &raw->digest, raw->data, raw->len);
    assert_int_equal(atomic_load(&f->fetches), 1);
    damage_pack(f, 50);
    expect_whole(f, &raw->digest, raw->data, raw->len); /* fetched again, and the answer went on */
    assert_int_equal(atomic_load(&f->fetches), 2);
    assert_true(until(idle, f));
    expect_whole(f, &raw->digest, raw->data, raw->len);
    assert_int_equal(atomic_load(&f->fetches), 2); /* it is whole again */
}

/* The same under gzip made on the fly, and under a range. */
static void test_damaged_under_a_range(void **state)
{
    struct fixture *f = *state;
    const struct thing *raw = &f->things[RAW];
    size_t len;

    expect_whole(f, &raw->digest, raw->data, raw->len);
    assert_true(until(idle, f));
    damage_pack(f, 50);
    char *a = ask(f, "GET", "team/app", &raw->digest, "Range: bytes=1000-2999999\r\n", &len);
    assert_int_equal(answer_status(a), 206);
    expect_bytes(a, len, raw->data + 1000, 2999000);
    free(a);
}

/* The canonical form of a gzip layer is damaged; the original is still here: no word to the upstream. */
static void test_original_steps_in(void **state)
{
    struct fixture *f = *state;
    const struct thing *gz = &f->things[GZIP];
    size_t len;

    expect_whole(f, &gz->digest, gz->data, gz->len);
    assert_true(until(idle, f));
    struct store_blob b = blob_of(f, &gz->digest);
    assert_true(digest_equal(&b.canonical, &f->plain.digest));
    expect_whole(f, &f->plain.digest, f->plain.data, f->plain.len);
    damage_pack(f, 50);
    expect_whole(f, &f->plain.digest, f->plain.data, f->plain.len); /* in the middle of an answer */
    assert_true(until(idle, f));
    assert_true(blob_of(f, &gz->digest).canonical_present); /* it was stored again */
    /* and before the first byte: nothing but the state says so */
    struct err err = ERR_INIT;
    ASSERT_OK(store_evict(f->st, &f->plain.digest, &err));
    expect_whole(f, &f->plain.digest, f->plain.data, f->plain.len);
    ASSERT_OK(until(idle, f) ? 0 : -1);
    ASSERT_OK(store_evict(f->st, &f->plain.digest, &err));
    char *a = ask(f, "GET", "team/app", &f->plain.digest, "Range: bytes=2000000-2000099\r\n", &len);
    assert_int_equal(answer_status(a), 206);
    expect_bytes(a, len, f->plain.data + 2000000, 100);
    free(a);
    assert_int_equal(atomic_load(&f->fetches), 1);
    assert_int_equal(atomic_load(&f->heads), 0);
}

/* The zstd form cannot go on in the middle; the next request fetches a new one. */
static void test_zstd_form(void **state)
{
    struct fixture *f = *state;
    const struct thing *gz = &f->things[GZIP];
    size_t len, again;

    expect_whole(f, &gz->digest, gz->data, gz->len);
    assert_true(until(idle, f));
    struct store_blob b = blob_of(f, &gz->digest);
    char *first = ask(f, "GET", "team/app", &b.zstd, NULL, &len);
    assert_int_equal(answer_status(first), 200);
    damage_pack(f, 50);
    char *cut = ask(f, "GET", "team/app", &b.zstd, NULL, &again);
    assert_int_equal(answer_status(cut), 200);
    assert_true(again < len);
    free(cut);
    char *a = ask(f, "GET", "team/app", &b.zstd, NULL, &again);
    assert_int_equal(answer_status(a), 200);
    expect_bytes(a, again, answer_body(first), len - (size_t)(answer_body(first) - first));
    assert_int_equal(atomic_load(&f->fetches), 1);
    free(a);
    free(first);
}

static void *ask_again_and_again(void *arg)
{
    struct fixture *f = arg;

    for (size_t i = 0; i < MANY; i++) {
        for (int k = 0; k < 12; k++) {
            size_t len;
            char *a = ask(f, "GET", "team/app", &f->many[i].digest, NULL, &len);
            REQUIRE(answer_status(a) == 200);
            REQUIRE(memcmp(answer_body(a), f->many[i].data, SMALL_BYTES) == 0);
            free(a);
        }
    }
    return NULL;
}

/* A raw blob's original is dropped once its chunks are stored. Who looked before and opens after finds no file, and that is
 * no damage: nothing is fetched twice. */
static void test_originals_go_under_requests(void **state)
{
    struct fixture *f = *state;
    pthread_t threads[3];

    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask_again_and_again, f), 0);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&f->fetches), MANY);
}

/* ---- no room ------------------------------------------------------------------------------------------------------------------ */

/* Files of this process may not grow beyond: what is small still works, the pack does not. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* The zstd form is gone and cannot be made: said soon and once, not tried for ever. */
static void test_zstd_form_without_room(void **state)
{
    struct fixture *f = *state;
    const struct thing *gz = &f->things[GZIP];
    struct err err = ERR_INIT;

    expect_whole(f, &gz->digest, gz->data, gz->len);
    assert_true(until(idle, f));
    struct store_blob b = blob_of(f, &gz->digest);
    ASSERT_OK(store_evict(f->st, &b.zstd, &err));
    limit_files(1 << 20);
    int64_t start = clock_mono_ms();
    expect_status(f, "GET", "team/app", &b.zstd, 503);
    bool idle_soon = until(idle, f);
    limit_files(RLIM_INFINITY);
    assert_true(idle_soon && clock_mono_ms() - start < 10000);
    expect_status(f, "GET", "team/app", &b.zstd, 200);
}

static void get_manifest(struct fixture *f, const struct digest *d)
{
    char path[200];
    snprintf(path, sizeof(path), "/v2/team/app/manifests/%s", digest_text(d).s);
    char *a = client_ask(f->address, "GET", path, NULL, NULL);
    if (answer_status(a) != 200)
        fail_msg("%.300s", a);
    free(a);
}

static bool has_view(struct fixture *f, const struct digest *manifest)
{
    struct err err = ERR_INIT;
    struct digest derived;
    return store_view_get(f->st, manifest, VIEW_CANONICAL, &derived, &err) == 0;
}

/* Layers that come and cannot be committed: the image is given up at once, not fetched again and again. */
static void test_image_without_room(void **state)
{
    struct fixture *f = *state;
    const struct thing *small = &f->things[SMALL];

    expect_whole(f, &f->things[RAW].digest, f->things[RAW].data, RAW_BYTES); /* makes the pack large */
    get_manifest(f, &f->things[MANIFEST].digest);
    assert_true(until(idle, f));
    limit_files(1 << 20);
    expect_whole(f, &small->digest, small->data, small->len);
    bool idle_soon = until(idle, f);
    limit_files(RLIM_INFINITY);
    assert_true(idle_soon);
    assert_true(atomic_load(&f->fetches) <= 4); /* raw, manifest, layer, config */
    assert_false(blob_of(f, &small->digest).present);
    /* With room, the next client is reason enough. */
    expect_whole(f, &small->digest, small->data, small->len);
    assert_true(until(idle, f));
    assert_true(has_view(f, &f->things[MANIFEST].digest));
}

/* A layer that can be committed, but not made canonical: the image does not queue that for ever either. */
static void test_image_without_room_for_chunks(void **state)
{
    struct fixture *f = *state;
    const struct thing *small = &f->things[SMALL];

    expect_whole(f, &f->things[RAW].digest, f->things[RAW].data, RAW_BYTES);
    get_manifest(f, &f->things[MANIFEST].digest);
    expect_status(f, "HEAD", "team/app", &small->digest, 200); /* the link is in the pack: the commit needs none */
    expect_status(f, "HEAD", "team/app", &f->things[CONFIG].digest, 200);
    assert_true(until(idle, f));
    limit_files(1 << 20);
    expect_whole(f, &small->digest, small->data, small->len);
    bool idle_soon = until(idle, f);
    limit_files(RLIM_INFINITY);
    assert_true(idle_soon);
    assert_true(blob_of(f, &small->digest).present);
    assert_false(has_view(f, &f->things[MANIFEST].digest));
    expect_whole(f, &small->digest, small->data, small->len);
    assert_true(until(idle, f));
    assert_true(has_view(f, &f->things[MANIFEST].digest));
}

/* An index that becomes known when its image's views are made already: a tag that moved, but not for this platform. */
static void test_index_that_comes_later(void **state)
{
    struct fixture *f = *state;
    const struct thing *small = &f->things[SMALL];

    get_manifest(f, &f->things[MANIFEST].digest);
    expect_whole(f, &small->digest, small->data, small->len);
    assert_true(until(idle, f));
    assert_true(has_view(f, &f->things[MANIFEST].digest));
    get_manifest(f, &f->things[INDEX].digest);
    assert_true(until(idle, f));
    assert_true(has_view(f, &f->things[INDEX].digest));
}

/* ---- headers -------------------------------------------------------------------------------------------------------------------- */

static void test_if_range(void **state)
{
    struct fixture *f = *state;
    const struct thing *raw = &f->things[RAW];
    char headers[300];
    struct digest_text d = digest_text(&raw->digest);
    static const struct {
        const char *before, *after;
        int status;
    } rows[] = {{"\"", "\"", 206}, {"W/\"", "\"", 200}, {"\"", "+zstd\"", 200}, {"", "", 200}, {"\"x", "\"", 200}};

    for (int warm = 0; warm < 2; warm++) {
        for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
            size_t len;
            snprintf(headers, sizeof(headers), "Range: bytes=10-19\r\nIf-Range: %s%s%s\r\n", rows[i].before, d.s,
                     rows[i].after);
            char *a = ask(f, "GET", "team/app", &raw->digest, headers, &len);
            assert_int_equal(answer_status(a), rows[i].status);
            if (rows[i].status == 206)
                expect_bytes(a, len, raw->data + 10, 10);
            else
                expect_bytes(a, len, raw->data, raw->len);
            free(a);
        }
        assert_true(until(idle, f));
    }
}

/* Row 24, 25: an upstream that does not say how long a blob is. */
static void test_head_without_length(void **state)
{
    struct fixture *f = *state;
    const struct thing *raw = &f->things[RAW];

    atomic_store(&f->server.knob[KNOB_HEAD_WITHOUT_LENGTH], 1);
    char *a = ask(f, "HEAD", "team/app", &raw->digest, NULL, NULL);
    assert_int_equal(answer_status(a), 200);
    assert_true(header_is(a, "Content-Length", "3145728"));
    assert_true(header_there(a, "ETag"));
    assert_string_equal(answer_body(a), "");
    free(a);
    assert_true(until(idle, f));
    expect_whole(f, &raw->digest, raw->data, raw->len);
    assert_int_equal(atomic_load(&f->fetches), 1);
}

/* An HTTP/1.0 client fetches nothing whose end it could not see. */
static void test_http_1_0(void **state)
{
    struct fixture *f = *state;
    const struct thing *raw = &f->things[RAW];
    char request[300];
    size_t len;

    expect_whole(f, &raw->digest, raw->data, raw->len);
    assert_true(until(idle, f));
    char *a = ask(f, "GET", "team/app", &raw->digest, "Accept-Encoding: gzip\r\n", &len);
    assert_true(header_is(a, "Content-Encoding", "gzip"));
    assert_true(header_is(a, "Transfer-Encoding", "chunked"));
    free(a);
    snprintf(request, sizeof(request), "GET /v2/team/app/blobs/%s HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n",
             digest_text(&raw->digest).s);
    int fd = client_connect(f->address);
    client_send(fd, request);
    a = client_read(fd, SIZE_MAX, &len);
    assert_false(header_there(a, "Content-Encoding"));
    assert_true(header_is(a, "Content-Length", "3145728"));
    expect_bytes(a, len, raw->data, raw->len);
    free(a);
    close(fd);
}

/* HEAD of the gzip form, whose length nobody knows before it is made. */
static void test_head_of_gzip_form(void **state)
{
    struct fixture *f = *state;
    const struct thing *raw = &f->things[RAW];

    expect_whole(f, &raw->digest, raw->data, raw->len);
    assert_true(until(idle, f));
    char *a = ask(f, "HEAD", "team/app", &raw->digest, "Accept: application/vnd.oci.image.layer.v1.tar+gzip\r\n", NULL);
    assert_int_equal(answer_status(a), 200);
    assert_true(header_is(a, "Content-Type", "application/vnd.oci.image.layer.v1.tar+gzip"));
    assert_false(header_there(a, "Content-Length"));
    assert_string_equal(answer_body(a), "");
    free(a);
}

/* What one repository holds is nobody else's, in any form, until the upstream has said so. */
static void test_repositories(void **state)
{
    struct fixture *f = *state;
    const struct thing *gz = &f->things[GZIP];

    expect_whole(f, &gz->digest, gz->data, gz->len);
    assert_true(until(idle, f));
    struct store_blob b = blob_of(f, &gz->digest);
    atomic_store(&f->server.knob[KNOB_GZIP_GONE], 1);
    static const char *const methods[] = {"GET", "HEAD"};
    for (size_t i = 0; i < ARRAY_LEN(methods); i++) {
        expect_status(f, methods[i], "team/other", &gz->digest, 404);
        expect_status(f, methods[i], "team/other", &b.canonical, 404);
        expect_status(f, methods[i], "team/other", &b.zstd, 404);
        expect_status(f, methods[i], "team/app", &b.canonical, 200);
    }
    atomic_store(&f->server.knob[KNOB_GZIP_GONE], 0);
    unsigned fetches = atomic_load(&f->fetches);
    expect_status(f, "GET", "team/other", &b.zstd, 200);
    expect_status(f, "GET", "team/other", &b.canonical, 200);
    assert_int_equal(atomic_load(&f->fetches), fetches); /* HEADs were enough */
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(test_damaged_in_the_middle),       T(test_damaged_under_a_range),
        T(test_original_steps_in),           T(test_zstd_form),
        T(test_originals_go_under_requests), T(test_zstd_form_without_room),
        T(test_image_without_room),          T(test_image_without_room_for_chunks),
        T(test_index_that_comes_later),      T(test_if_range),
        T(test_head_without_length),         T(test_http_1_0),
        T(test_head_of_gzip_form),           T(test_repositories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
