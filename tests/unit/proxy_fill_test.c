/* SPDX-License-Identifier: Apache-2.0
 * proxy/fill.c, proxy/fill_decode.c, proxy/follow.c: blobs on their way from a scripted upstream into a real store. Run it under TSan.
 * long: one set-up, all ways in which a transfer can end
 */
#include "proxy/fill_internal.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/unit/proxy_server.h"
#include "tests/unit/proxy_util.h"
#include "transcode/codec.h"

#include <ftw.h>

#define BLOB_BYTES (3u << 20)
#define NAME "team/app"

enum mode { MODE_GOOD = 0, MODE_WRONG, MODE_MISSING, MODE_HANG, MODE_SLOW, MODE_NO_LENGTH, MODE_LATE, MODE_ENCODED };

/* For MODE_ENCODED: what goes out, with which Content-Encoding. What was served once stays until the server has stopped. */
struct served {
    const char *data;
    size_t len;
    const char *encoding;
    size_t break_at; /* in its first answer; 0: never */
};

static pthread_mutex_t served_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct served served; /* under the mutex */
static struct drained encoded[8];
static size_t encoded_count;

struct fixture {
    char dir[64];
    struct server server;
    struct store *st;
    struct workpool *pool;
    struct proxy *p;
    const struct upstream *up;
    int64_t repo, other_repo;
    uint8_t *blob;
    struct digest digest;
};

/* ---- the upstream ------------------------------------------------------------------------------------------------------ */

static bool slowly(int fd, uint64_t total)
{
    for (uint64_t at = 0; at < total; at += 65536) {
        usleep(1000);
        if (!server_blob(fd, at, at + 65536 < total ? at + 65536 : total))
            return false;
    }
    return true;
}

static void wait_for_knob(struct server *s)
{
    while (atomic_load(&s->knob[1]) == 0 && !atomic_load(&s->stopping))
        usleep(1000);
}

static bool serve_encoded(int fd, unsigned nth, const char *request)
{
    char head[256];

    pthread_mutex_lock(&served_mutex);
    struct served now = served;
    pthread_mutex_unlock(&served_mutex);
    size_t len = nth == 0 && now.break_at > 0 ? now.break_at : now.len;
    if (strcasestr(request, "\r\nRange:") != NULL) /* it would be a part of bytes made anew */
        return server_say(fd, "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n");
    snprintf(head, sizeof(head), "HTTP/1.1 200 OK\r\nContent-Encoding: %s\r\nContent-Length: %zu\r\n\r\n", now.encoding,
             now.len);
    return server_say(fd, head) && server_write(fd, now.data, len) && len == now.len;
}

static bool serve(struct server *s, int fd, unsigned nth, const char *request)
{
    uint64_t from = server_range(request);

    switch ((enum mode)atomic_load(&s->knob[0])) {
    case MODE_MISSING:
        return server_say(fd, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    case MODE_WRONG: /* one byte, in the middle */
        return server_blob_head(fd, from, BLOB_BYTES) && server_blob(fd, from, BLOB_BYTES / 2) &&
               server_write(fd, "?", from < BLOB_BYTES / 2 ? 1 : 0) &&
               server_blob(fd, from > BLOB_BYTES / 2 ? from : BLOB_BYTES / 2 + 1, BLOB_BYTES);
    case MODE_HANG:
        server_blob_head(fd, from, BLOB_BYTES);
        wait_for_knob(s);
        server_blob(fd, from, 100000);
        server_hang(fd);
        return false;
    case MODE_LATE:
        wait_for_knob(s);
        return server_blob_head(fd, from, BLOB_BYTES) && server_blob(fd, from, BLOB_BYTES);
    case MODE_SLOW:
        return server_blob_head(fd, 0, BLOB_BYTES) && slowly(fd, BLOB_BYTES);
    case MODE_NO_LENGTH:
        server_say(fd, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        server_blob(fd, 0, BLOB_BYTES);
        return false;
    case MODE_ENCODED:
        return serve_encoded(fd, nth, request);
    case MODE_GOOD:
        break;
    }
    return server_blob_head(fd, from, BLOB_BYTES) && server_blob(fd, from, BLOB_BYTES);
}

/* ---- set-up ---------------------------------------------------------------------------------------------------------------- */

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct err err = ERR_INIT;

    assert_non_null(f);
    snprintf(f->dir, sizeof(f->dir), "/tmp/recask-fill-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    server_start(&f->server, serve, NULL);
    f->blob = malloc(BLOB_BYTES);
    assert_non_null(f->blob);
    for (size_t i = 0; i < BLOB_BYTES; i++)
        f->blob[i] = server_blob_byte(i);
    digest_of(f->blob, BLOB_BYTES, &f->digest);
    struct store_options store = {.path = f->dir};
    ASSERT_OK(store_open(&store, &f->st, &err));
    ASSERT_OK(workpool_new("work", 3, &f->pool, &err));
    struct proxy_options opt = {.store = f->st, .pool = f->pool, .user_agent = "test", .upstream_stall_ms = 2000};
    ASSERT_OK(proxy_new(&opt, &f->p, &err));
    struct upstream_def def = {.name = "up", .url = f->server.url};
    ASSERT_OK(proxy_add_upstream(f->p, &def, &err));
    ASSERT_OK(proxy_start(f->p, &err));
    f->up = upstream_find(f->p->ups, "up", 2);
    ASSERT_OK(store_repo(f->st, "up", NAME, &f->repo, &err));
    ASSERT_OK(store_repo(f->st, "up", "team/other", &f->other_repo, &err));
    *state = f;
    return 0;
}

static void stop(struct fixture *f)
{
    if (!f->p)
        return;
    proxy_stop(f->p);
    workpool_free(f->pool);
    proxy_free(steal(&f->p));
}

static int remove_entry(const char *path, const struct stat *sb UNUSED, int type UNUSED, struct FTW *ftw UNUSED)
{
    return remove(path);
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    stop(f);
    server_stop(&f->server);
    while (encoded_count > 0)
        drained_release(&encoded[--encoded_count]);
    store_close(f->st);
    nftw(f->dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    free(f->blob);
    free(f);
    return 0;
}

static struct fill *join(struct fixture *f, bool *out_started)
{
    struct fill *fill;
    struct err err = ERR_INIT;
    ASSERT_OK(fill_join(f->p, f->up, f->repo, NAME, &f->digest, &fill, out_started, &err));
    return fill;
}

/* ---- waiting for a state, as requests do ------------------------------------------------------------------------------------ */

struct waiting {
    struct waiter w;
    atomic_uint wakes;
};

static void woken(void *arg)
{
    atomic_fetch_add(&((struct waiting *)arg)->wakes, 1);
}

/* Returns the state; *out_wakes counts how often it was woken for it. */
static enum fill_state wait_for(struct fill *fill, enum fill_state want, unsigned *out_wakes)
{
    struct waiting wg = {.w = {.fn = woken, .arg = &wg}};
    int64_t end = clock_mono_ms() + 20000;
    unsigned seen = 0;
    enum fill_state state;

    while ((state = fill_wait(fill, want, &wg.w)) < want) {
        while (atomic_load(&wg.wakes) == seen) {
            REQUIRE(clock_mono_ms() < end);
            usleep(200);
        }
        seen++;
    }
    fill_forget(fill, &wg.w);
    if (out_wakes)
        *out_wakes = seen;
    return state;
}

/* An answer's source is opened once the head is known, never before. */
static void follow(struct fixture *f, struct fill *fill, uint64_t off, bool hold_back, struct drained *out)
{
    struct source *s;
    struct err err = ERR_INIT;

    (void)f;
    wait_for(fill, FILL_STREAMING, NULL);
    ASSERT_OK(fill_follow(fill, off, hold_back, &s, &err));
    source_drain(&s, 100000, out);
}

static void expect_whole(struct fixture *f, struct drained *d, uint64_t off)
{
    if (d->rc != STEP_EOF)
        fail_msg("%d after %zu bytes: %s", d->rc, d->len, d->err.msg);
    assert_int_equal(d->len, BLOB_BYTES - off);
    assert_memory_equal(d->data, f->blob + off, d->len);
    drained_release(d);
}

static bool is_present(struct fixture *f)
{
    struct store_blob b;
    struct err err = ERR_INIT;
    ASSERT_OK(store_blob_lookup(f->st, &f->digest, &b, &err));
    return b.present;
}

static bool table_empty(void *arg)
{
    struct fixture *f = arg;
    struct proxy_stats stats;
    proxy_stats(f->p, &stats);
    return stats.fills == 0 && stats.jobs_pending == 0;
}

/* ---- good ways ------------------------------------------------------------------------------------------------------------------ */

static void test_whole(void **state)
{
    struct fixture *f = *state;
    struct drained d;
    bool started, linked;
    uint64_t length;
    struct err err = ERR_INIT;

    struct fill *fill = join(f, &started);
    assert_true(started);
    follow(f, fill, 0, true, &d);
    assert_true(fill_length(fill, &length));
    assert_int_equal(length, BLOB_BYTES);
    expect_whole(f, &d, 0);
    assert_int_equal(wait_for(fill, FILL_DONE, NULL), FILL_DONE);
    assert_true(is_present(f));
    ASSERT_OK(store_repo_has_blob(f->st, f->repo, &f->digest, &linked, &err));
    assert_true(linked);
    ASSERT_OK(store_repo_has_blob(f->st, f->other_repo, &f->digest, &linked, &err));
    assert_false(linked);
    follow(f, fill, BLOB_BYTES - 10, false, &d); /* the spool is there for whoever still has the fill */
    expect_whole(f, &d, BLOB_BYTES - 10);
    fill_unref(fill);
    /* What is in the store is not fetched again. */
    fill = join(f, &started);
    assert_true(started);
    assert_int_equal(wait_for(fill, FILL_DONE, NULL), FILL_FAILED);
    assert_true(fill_was_present(fill));
    fill_unref(fill);
    assert_int_equal(atomic_load(&f->server.requests), 1);
    assert_true(until(table_empty, f));
}

static void *follow_in_thread(void *arg)
{
    struct source *s = arg;
    struct drained *d = malloc(sizeof(*d));
    REQUIRE(d);
    source_drain(&s, 50000, d);
    return d;
}

static void test_shared(void **state)
{
    struct fixture *f = *state;
    pthread_t threads[8];
    struct err err = ERR_INIT;

    atomic_store(&f->server.knob[0], MODE_SLOW);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
        struct source *s;
        bool started;
        struct fill *fill = join(f, &started);
        assert_int_equal(started, i == 0);
        wait_for(fill, FILL_STREAMING, NULL);
        ASSERT_OK(fill_follow(fill, i * 1000, i % 2 == 0, &s, &err));
        fill_unref(fill);
        assert_int_equal(pthread_create(&threads[i], NULL, follow_in_thread, s), 0);
    }
    for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
        void *result;
        assert_int_equal(pthread_join(threads[i], &result), 0);
        expect_whole(f, result, i * 1000);
        free(result);
    }
    assert_true(until(table_empty, f));
    assert_int_equal(atomic_load(&f->server.requests), 1);
}

static void test_no_length(void **state)
{
    struct fixture *f = *state;
    struct drained d;
    bool started;
    uint64_t length;

    atomic_store(&f->server.knob[0], MODE_NO_LENGTH);
    struct fill *fill = join(f, &started);
    wait_for(fill, FILL_VERIFIED, NULL);
    assert_true(fill_length(fill, &length)); /* now it is */
    assert_int_equal(length, BLOB_BYTES);
    follow(f, fill, 0, true, &d);
    expect_whole(f, &d, 0);
    fill_unref(fill);
}

/* What is there is handed on, also when nothing follows for now. */
static void test_bytes_do_not_wait(void **state)
{
    struct fixture *f = *state;
    struct waiting wg = {.wakes = 0};
    struct source *s;
    char *data = malloc(100000);
    size_t len = 0;
    bool started;
    struct err err = ERR_INIT;

    assert_non_null(data);
    atomic_store(&f->server.knob[0], MODE_HANG);
    struct fill *fill = join(f, &started);
    wait_for(fill, FILL_STREAMING, NULL);
    ASSERT_OK(fill_follow(fill, 0, true, &s, &err));
    source_set_waker(s, woken, &wg);
    assert_int_equal(source_read(s, data, 100000, &len, &err), STEP_WAIT);
    atomic_store(&f->server.knob[1], 1);
    for (int64_t end = clock_mono_ms() + 20000; len < 100000 - HOLD_BACK_BYTES && clock_mono_ms() < end;) {
        size_t got;
        int rc = source_read(s, data + len, 100000 - len, &got, &err);
        ASSERT_OK(rc);
        len += got;
        while (rc == STEP_WAIT && atomic_exchange(&wg.wakes, 0) == 0 && clock_mono_ms() < end)
            usleep(200);
    }
    assert_int_equal(len, 100000 - HOLD_BACK_BYTES);
    assert_memory_equal(data, f->blob, len);
    assert_int_equal(fill_wait(fill, FILL_DONE, NULL), FILL_STREAMING); /* it was no end that woke us */
    source_free(s);
    fill_unref(fill);
    free(data);
}

/* Nobody waits for it any more: it goes on all the same. */
static void test_everybody_leaves(void **state)
{
    struct fixture *f = *state;
    struct source *s;
    char some[1000];
    size_t got;
    bool started;
    struct err err = ERR_INIT;

    atomic_store(&f->server.knob[0], MODE_SLOW);
    struct fill *fill = join(f, &started);
    wait_for(fill, FILL_STREAMING, NULL);
    ASSERT_OK(fill_follow(fill, 0, true, &s, &err));
    fill_unref(fill);
    int rc = source_read(s, some, sizeof(some), &got, &err); /* leaves a waiter behind, mostly */
    assert_true(rc == STEP_WAIT || rc == STEP_MORE);
    source_free(s);
    assert_true(until(table_empty, f));
    assert_true(is_present(f));
}

/* A state is what waiters wait for, not bytes: an image that waits for a layer must not be run for each piece of it. */
static void test_waiters_sleep(void **state)
{
    struct fixture *f = *state;
    bool started;
    unsigned wakes;

    atomic_store(&f->server.knob[0], MODE_SLOW);
    struct fill *fill = join(f, &started);
    assert_int_equal(wait_for(fill, FILL_DONE, &wakes), FILL_DONE);
    assert_true(wakes <= 3); /* STREAMING, VERIFIED, DONE */
    fill_unref(fill);
}

/* ---- wrong bytes ------------------------------------------------------------------------------------------------------------------ */

static void test_wrong_digest(void **state)
{
    struct fixture *f = *state;
    struct drained whole, part;
    bool started;

    atomic_store(&f->server.knob[0], MODE_WRONG);
    struct fill *fill = join(f, &started);
    follow(f, fill, 0, true, &whole);
    assert_int_equal(whole.rc, ERR_CORRUPT);
    assert_true(whole.len <= BLOB_BYTES - HOLD_BACK_BYTES);
    assert_int_equal(wait_for(fill, FILL_DONE, NULL), FILL_FAILED);
    follow(f, fill, BLOB_BYTES - 100, false, &part); /* a range is not held back; it is not called complete either */
    assert_int_equal(part.rc, ERR_CORRUPT);
    assert_int_equal(part.len, 100);
    drained_release(&whole);
    drained_release(&part);
    fill_unref(fill);
    assert_false(is_present(f));
    assert_true(until(table_empty, f));
    /* The next one starts anew. */
    atomic_store(&f->server.knob[0], MODE_GOOD);
    fill = join(f, &started);
    assert_true(started);
    follow(f, fill, 0, true, &whole);
    expect_whole(f, &whole, 0);
    fill_unref(fill);
}

static void test_missing(void **state)
{
    struct fixture *f = *state;
    struct err err = ERR_INIT;
    bool started;

    atomic_store(&f->server.knob[0], MODE_MISSING);
    struct fill *fill = join(f, &started);
    assert_int_equal(wait_for(fill, FILL_DONE, NULL), FILL_FAILED);
    fill_error(fill, &err);
    assert_int_equal(err.code, ERR_NOTFOUND);
    assert_false(fill_was_present(fill));
    fill_unref(fill);
    assert_true(until(table_empty, f));
}

/* Files of this process may not grow beyond: the spool's write fails, which is what a full disk does. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* ---- Content-Encoding, though nobody asked for one ------------------------------------------------------------------------------- */

/* The first len bytes of the blob, encoded. */
static const struct drained *encode(struct fixture *f, enum codec c, size_t len)
{
    struct script sc = {.data = (const char *)f->blob, .len = len, .fail_at = SIZE_MAX};
    struct source *in, *s;
    struct filter *filter;
    struct err err = ERR_INIT;

    assert_true(encoded_count < ARRAY_LEN(encoded));
    struct drained *d = &encoded[encoded_count++];
    ASSERT_OK(source_script_new(&sc, &in, &err));
    ASSERT_OK(codec_encoder_new(c, CODEC_LEVEL_FAST, &filter, &err));
    ASSERT_OK(source_filtered_new(&in, &filter, 65536, &s, &err));
    source_drain(&s, 65536, d);
    assert_int_equal(d->rc, STEP_EOF);
    return d;
}

static void offer(struct fixture *f, const struct drained *d, size_t len, const char *encoding, size_t break_at)
{
    pthread_mutex_lock(&served_mutex);
    served = (struct served){d->data, len, encoding, break_at};
    pthread_mutex_unlock(&served_mutex);
    atomic_store(&f->server.knob[0], MODE_ENCODED);
}

static void is_decoded(struct fixture *f, enum codec c, bool breaks)
{
    const struct drained *e = encode(f, c, BLOB_BYTES);
    struct drained d;
    struct source *s;
    bool started;
    uint64_t length;
    struct err err = ERR_INIT;

    offer(f, e, e->len, codec_name(c), breaks ? e->len / 2 : 0);
    struct fill *fill = join(f, &started);
    wait_for(fill, FILL_STREAMING, NULL);
    ASSERT_OK(fill_follow(fill, 7, false, &s, &err));
    source_drain(&s, 100000, &d);
    expect_whole(f, &d, 7);
    assert_int_equal(wait_for(fill, FILL_DONE, NULL), FILL_DONE);
    assert_true(fill_length(fill, &length));
    assert_int_equal(length, BLOB_BYTES);
    fill_unref(fill);
    assert_true(is_present(f));
    assert_true(until(table_empty, f));
}

/* Case 84 for blobs: compressed on the way. Nobody sees a byte before it is decoded and right; nor is it resumed by Range. */
static void test_encoded(void **state)
{
    struct fixture *f = *state;

    is_decoded(f, CODEC_GZIP, false);
    assert_int_equal(atomic_load(&f->server.requests), 1);
}

static void test_encoded_breaks(void **state)
{
    struct fixture *f = *state;

    is_decoded(f, CODEC_ZSTD, true);
    assert_int_equal(atomic_load(&f->server.requests), 2);
}

/* moby#17595 (case 83): a layer that is gzip anyway, and whose bytes are right as they are. */
static void test_mislabelled(void **state)
{
    struct fixture *f = *state;
    const struct drained *e = encode(f, CODEC_GZIP, 100000);
    struct drained d;
    bool started;

    digest_of(e->data, e->len, &f->digest);
    offer(f, e, e->len, "x-gzip", 0);
    struct fill *fill = join(f, &started);
    wait_for(fill, FILL_VERIFIED, NULL);
    follow(f, fill, 0, true, &d);
    assert_int_equal(d.rc, STEP_EOF);
    assert_int_equal(d.len, e->len);
    assert_memory_equal(d.data, e->data, d.len);
    drained_release(&d);
    assert_int_equal(wait_for(fill, FILL_DONE, NULL), FILL_DONE);
    fill_unref(fill);
    assert_true(is_present(f));
    assert_true(until(table_empty, f));
}

static void fails_with(struct fixture *f, int code)
{
    struct err err = ERR_INIT;
    struct drained d;
    bool started;

    struct fill *fill = join(f, &started);
    follow(f, fill, 0, false, &d);
    assert_int_equal(d.rc, code);
    assert_int_equal(d.len, 0); /* not even of a range */
    drained_release(&d);
    assert_int_equal(wait_for(fill, FILL_DONE, NULL), FILL_FAILED);
    fill_error(fill, &err);
    assert_int_equal(err.code, code);
    fill_unref(fill);
    assert_false(is_present(f));
    assert_true(until(table_empty, f));
}

static void test_encoded_wrong(void **state)
{
    struct fixture *f = *state;
    const struct drained *other = encode(f, CODEC_GZIP, BLOB_BYTES - 1);
    const struct drained *zstd = encode(f, CODEC_ZSTD, BLOB_BYTES);
    const struct drained *gzip = encode(f, CODEC_GZIP, BLOB_BYTES);
    const struct drained *none = encode(f, CODEC_NONE, 1000);

    offer(f, other, other->len, "gzip", 0);
    fails_with(f, ERR_CORRUPT);
    offer(f, zstd, zstd->len - 10, "zstd", 0); /* and so it says */
    fails_with(f, ERR_CORRUPT);
    offer(f, none, none->len, "br", 0);
    fails_with(f, ERR_CORRUPT);
    f->p->opt.max_layer_bytes = BLOB_BYTES - 1;
    offer(f, gzip, gzip->len, "gzip", 0);
    fails_with(f, ERR_LIMIT);
}

/* Nothing of the blob is kept, and all who follow get it: the whole, an end whose digest counts, a part. */
static void passes_through(struct fixture *f, const void *want, size_t len)
{
    static const uint64_t offs[] = {0, 70000, 70000};
    struct drained d;
    bool started;

    struct fill *fill = join(f, &started);
    assert_true(started);
    assert_int_equal(wait_for(fill, FILL_DONE, NULL), FILL_DETACHED);
    uint64_t length;
    assert_true(fill_length(fill, &length));
    assert_int_equal(length, len);
    for (size_t i = 0; i < ARRAY_LEN(offs); i++) {
        follow(f, fill, offs[i], i < 2, &d);
        assert_int_equal(d.rc, STEP_EOF);
        assert_int_equal(d.len, len - offs[i]);
        assert_memory_equal(d.data, (const char *)want + offs[i], d.len);
        drained_release(&d);
    }
    fill_unref(fill);
}

/* The spool has no room: neither for what comes, nor for what that decodes to. */
static void test_encoded_no_room(void **state)
{
    struct fixture *f = *state;
    const struct drained *e = encode(f, CODEC_GZIP, BLOB_BYTES);

    signal(SIGXFSZ, SIG_IGN);
    offer(f, e, e->len, "gzip", 0);
    limit_files(e->len / 2);
    passes_through(f, f->blob, BLOB_BYTES);
    assert_true(e->len < BLOB_BYTES - 1);
    limit_files(BLOB_BYTES - 1);
    passes_through(f, f->blob, BLOB_BYTES);
    limit_files(e->len / 2);
    digest_of(e->data, e->len, &f->digest);
    passes_through(f, e->data, e->len);
    f->digest.b[0] ^= 1;
    fails_with(f, ERR_CORRUPT);
    limit_files(RLIM_INFINITY);
}

/* ---- no room ------------------------------------------------------------------------------------------------------------------------ */

static void test_detach(void **state)
{
    struct fixture *f = *state;
    struct drained whole, part, beyond, rest;
    bool started;

    signal(SIGXFSZ, SIG_IGN);
    limit_files(1 << 20);
    struct fill *fill = join(f, &started);
    follow(f, fill, 0, true, &whole);
    assert_int_equal(wait_for(fill, FILL_DONE, NULL), FILL_DETACHED);
    follow(f, fill, 1000, false, &part);
    follow(f, fill, 2 << 20, false, &beyond); /* from a place that the spool never reached */
    follow(f, fill, 2 << 20, true, &rest);    /* and so that the digest counts */
    limit_files(RLIM_INFINITY);
    expect_whole(f, &rest, 2 << 20);
    expect_whole(f, &whole, 0);
    expect_whole(f, &part, 1000);
    expect_whole(f, &beyond, 2 << 20);
    fill_unref(fill);
    assert_false(is_present(f));
    assert_true(until(table_empty, f));
    assert_int_equal(atomic_load(&f->server.requests), 5);
}

static void test_detach_wrong_digest(void **state)
{
    struct fixture *f = *state;
    struct drained whole;
    bool started;

    signal(SIGXFSZ, SIG_IGN);
    atomic_store(&f->server.knob[0], MODE_WRONG);
    limit_files(1 << 20);
    struct fill *fill = join(f, &started);
    follow(f, fill, 0, true, &whole);
    limit_files(RLIM_INFINITY);
    assert_int_equal(whole.rc, ERR_CORRUPT);
    assert_true(whole.len <= BLOB_BYTES - HOLD_BACK_BYTES);
    drained_release(&whole);
    fill_unref(fill);
}

/* Not even a spool file: the length is found out all the same. */
static void test_no_spool(void **state)
{
    struct fixture *f = *state;
    struct drained d;
    char spool[80];
    bool started;
    uint64_t length;

    snprintf(spool, sizeof(spool), "%s/spool", f->dir);
    assert_int_equal(rmdir(spool), 0);
    struct fill *fill = join(f, &started);
    assert_int_equal(wait_for(fill, FILL_DONE, NULL), FILL_DETACHED);
    assert_true(fill_length(fill, &length));
    assert_int_equal(length, BLOB_BYTES);
    follow(f, fill, 0, true, &d);
    expect_whole(f, &d, 0);
    follow(f, fill, 5, false, &d);
    expect_whole(f, &d, 5);
    fill_unref(fill);
    assert_int_equal(mkdir(spool, 0700), 0);
}

static void test_too_many(void **state)
{
    struct fixture *f = *state;
    struct fill *fill;
    bool started;
    struct err err = ERR_INIT;

    lock_take(&f->p->lock);
    f->p->fill_count += 512;
    lock_give(&f->p->lock);
    assert_int_equal(fill_join(f->p, f->up, f->repo, NAME, &f->digest, &fill, &started, &err), ERR_BUSY);
    lock_take(&f->p->lock);
    f->p->fill_count -= 512;
    lock_give(&f->p->lock);
    assert_int_equal(atomic_load(&f->server.requests), 0);
}

/* ---- stopping ---------------------------------------------------------------------------------------------------------------------------- */

static void test_stop(void **state)
{
    struct fixture *f = *state;
    struct err err = ERR_INIT;
    pthread_t t;
    void *result;
    struct source *s;
    bool started;

    atomic_store(&f->server.knob[0], MODE_HANG);
    atomic_store(&f->server.knob[1], 1);
    struct fill *fill = join(f, &started);
    wait_for(fill, FILL_STREAMING, NULL);
    ASSERT_OK(fill_follow(fill, 0, true, &s, &err));
    assert_int_equal(pthread_create(&t, NULL, follow_in_thread, s), 0);
    usleep(20000);
    proxy_stop(f->p);
    assert_int_equal(wait_for(fill, FILL_DONE, NULL), FILL_FAILED);
    fill_error(fill, &err);
    assert_int_equal(err.code, ERR_CANCELLED);
    assert_int_equal(pthread_join(t, &result), 0);
    struct drained *d = result;
    assert_int_equal(d->rc, ERR_CANCELLED);
    drained_release(d);
    free(d);
    fill_unref(fill);
    /* One that begins afterwards ends at once. */
    fill = join(f, &started);
    assert_int_equal(wait_for(fill, FILL_DONE, NULL), FILL_FAILED);
    fill_unref(fill);
    workpool_free(f->pool);
    proxy_free(steal(&f->p));
}

/* A client in another repository finds the fill, and sees that it is not its own. */
static void test_repository(void **state)
{
    struct fixture *f = *state;
    struct err err = ERR_INIT;
    struct fill *mine, *theirs, *found;
    bool started;

    atomic_store(&f->server.knob[0], MODE_LATE);
    mine = join(f, &started);
    ASSERT_OK(fill_join(f->p, f->up, f->other_repo, "team/other", &f->digest, &theirs, &started, &err));
    assert_false(started);
    assert_ptr_equal(theirs, mine);
    assert_true(fill_reads_from(theirs, NAME) && !fill_reads_from(theirs, "team/other"));
    found = fill_find(f->p, f->up, &f->digest);
    assert_ptr_equal(found, mine);
    assert_int_equal(wait_for(mine, FILL_STARTING, NULL), FILL_STARTING);
    atomic_store(&f->server.knob[1], 1);
    assert_int_equal(wait_for(mine, FILL_DONE, NULL), FILL_DONE);
    fill_unref(found);
    fill_unref(theirs);
    fill_unref(mine);
    assert_null(fill_find(f->p, f->up, &f->digest));
}

/* A repository that the catalog does not know has a row once its blob is verified, and not before. */
static void test_unknown_repository(void **state)
{
    struct fixture *f = *state;
    struct digest none = {.b = {1}};
    struct err err = ERR_INIT;
    struct fill *fill;
    int64_t repo = 0;
    bool started, linked = false;

    ASSERT_OK(fill_join(f->p, f->up, 0, "team/none", &none, &fill, &started, &err));
    assert_int_equal(wait_for(fill, FILL_DONE, NULL), FILL_FAILED);
    fill_unref(fill);
    ASSERT_OK(store_repo_find(f->st, "up", "team/none", &repo, &err));
    assert_int_equal(repo, 0);
    ASSERT_OK(fill_join(f->p, f->up, 0, "team/new", &f->digest, &fill, &started, &err));
    assert_int_equal(wait_for(fill, FILL_DONE, NULL), FILL_DONE);
    fill_unref(fill);
    ASSERT_OK(store_repo_find(f->st, "up", "team/new", &repo, &err));
    assert_true(repo > 0);
    ASSERT_OK(store_repo_has_blob(f->st, repo, &f->digest, &linked, &err));
    assert_true(linked);
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(test_whole),
        T(test_shared),
        T(test_no_length),
        T(test_bytes_do_not_wait),
        T(test_everybody_leaves),
        T(test_waiters_sleep),
        T(test_wrong_digest),
        T(test_missing),
        T(test_encoded),
        T(test_encoded_breaks),
        T(test_mislabelled),
        T(test_encoded_wrong),
        T(test_encoded_no_room),
        T(test_detach),
        T(test_detach_wrong_digest),
        T(test_no_spool),
        T(test_too_many),
        T(test_stop),
        T(test_repository),
        T(test_unknown_repository),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
