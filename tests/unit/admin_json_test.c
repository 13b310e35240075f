/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/admin_json_test.c - the API's bodies over a real store in a temporary directory, read back the way the
 * command line reads them. */
#include "admin/admin_internal.h"
#include "admin/json.h"
#include "store/spool.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define REPO_UPSTREAM "docker.io"

struct fixture {
    char dir[64];
    struct store *st;
    struct upstreams *ups;
    int64_t repo;
    struct digest config, layer, gone, image, index;
};

static const char *const hub_aliases[] = {"index.docker.io", NULL};

static void put_manifest(struct fixture *f, const char *tag, const char *type, const char *body,
                         const struct store_ref *refs, size_t ref_count, const char *never, struct digest *out)
{
    struct store_manifest_put put = {
        .repo = f->repo,
        .tag = tag,
        .media_type = type,
        .body = body,
        .len = strlen(body),
        .is_index = strstr(type, "index") != NULL,
        .refs = refs,
        .ref_count = ref_count,
        .never = never,
    };
    struct err err = ERR_INIT;

    digest_of(body, strlen(body), &put.digest);
    *out = put.digest;
    if (store_manifest_put(f->st, &put, &err) < 0)
        fail_msg("store_manifest_put: %s", err.msg);
}

static void put_blob(struct fixture *f, const char *bytes, struct digest *out)
{
    CLEANUP(spool_cleanup) struct spool *sp = NULL;
    struct err err = ERR_INIT;

    digest_of(bytes, strlen(bytes), out);
    assert_int_equal(spool_open(f->st, &sp, &err), 0);
    assert_int_equal(spool_write(sp, bytes, strlen(bytes), &err), 0);
    assert_int_equal(spool_commit(sp, out, f->repo, &err), 0);
}

/* One image of two layers (one stored, one never fetched), an index of it and of a stranger, an artifact. */
static void fill(struct fixture *f)
{
    char body[2048];
    struct digest artifact, stranger;
    struct err err = ERR_INIT;

    assert_int_equal(store_repo(f->st, REPO_UPSTREAM, "library/alpine", &f->repo, &err), 0);
    put_blob(f, "not really a layer", &f->layer);
    digest_of("c", 1, &f->config);
    digest_of("g", 1, &f->gone);
    digest_of("s", 1, &stranger);
    snprintf(
        body, sizeof body,
        "{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"config\":{\"mediaType\":"
        "\"application/vnd.oci.image.config.v1+json\",\"digest\":\"%s\",\"size\":1},\"layers\":[{\"mediaType\":"
        "\"application/vnd.oci.image.layer.v1.tar+gzip\",\"digest\":\"%s\",\"size\":18},{\"mediaType\":"
        "\"application/vnd.oci.image.layer.v1.tar+gzip\",\"digest\":\"%s\",\"size\":7}]}",
        digest_text(&f->config).s, digest_text(&f->layer).s, digest_text(&f->gone).s);

    const struct store_ref refs[] = {{REF_CONFIG, f->config, 1}, {REF_LAYER, f->layer, 18}, {REF_LAYER, f->gone, 7}};
    put_manifest(f, "3.20", "application/vnd.oci.image.manifest.v1+json", body, refs, 3, NULL, &f->image);
    snprintf(
        body, sizeof body,
        "{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.index.v1+json\",\"manifests\":[{\"mediaType\":"
        "\"application/vnd.oci.image.manifest.v1+json\",\"digest\":\"%s\",\"size\":9,\"platform\":{\"os\":\"linux\","
        "\"architecture\":\"arm64\",\"variant\":\"v8\"}},{\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\","
        "\"digest\":\"%s\",\"size\":5}]}",
        digest_text(&f->image).s, digest_text(&stranger).s);

    const struct store_ref children[] = {{REF_CHILD, f->image, 9}, {REF_CHILD, stranger, 5}};
    put_manifest(f, "latest", "application/vnd.oci.image.index.v1+json", body, children, 2, NULL, &f->index);
    snprintf(body, sizeof body,
             "{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"artifactType\":"
             "\"application/x\",\"config\":{\"mediaType\":\"application/vnd.oci.empty.v1+json\",\"digest\":\"%s\","
             "\"size\":1},\"layers\":[]}",
             digest_text(&f->config).s);
    put_manifest(f, "art", "application/vnd.oci.image.manifest.v1+json", body, refs, 1, "an artifact", &artifact);
}

static int setup(void **state)
{
    static struct fixture f;
    struct store_options opt = {.path = f.dir, .quota_bytes = 1u << 30};
    struct upstreams_options ups = {.user_agent = "test"};
    struct upstream_def hub = {
        .name = REPO_UPSTREAM, .url = "http://127.0.0.1:1", .aliases = hub_aliases, .add_library = true};
    struct upstream_def ghcr = {.name = "ghcr.io", .url = "http://127.0.0.1:2"};
    struct err err = ERR_INIT;

    memset(&f, 0, sizeof f);
    snprintf(f.dir, sizeof f.dir, "/tmp/recask-admin-XXXXXX");
    assert_non_null(mkdtemp(f.dir));
    if (store_open(&opt, &f.st, &err) < 0)
        fail_msg("store_open: %s", err.msg);
    assert_int_equal(upstreams_new(&ups, &f.ups, &err), 0);
    assert_int_equal(upstreams_add(f.ups, &hub, &err), 0);
    assert_int_equal(upstreams_add(f.ups, &ghcr, &err), 0);
    fill(&f);
    *state = &f;
    return 0;
}

static int remove_entry(const char *path, const struct stat *st UNUSED, int kind UNUSED, struct FTW *at UNUSED)
{
    return remove(path);
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    upstreams_free(f->ups);
    store_close(f->st);
    return nftw(f->dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static struct admin_json *parse(const struct buf *text)
{
    struct admin_json *root;
    struct err err = ERR_INIT;

    if (admin_json_parse(text->data, text->len, &root, &err) < 0)
        fail_msg("%s: %s", err.msg, text->data);
    return root;
}

/* ---- references -------------------------------------------------------------------------------------------------- */

static void references(void **state)
{
    struct fixture *f = *state;
    static const char hex[] = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    static const struct {
        const char *text, *upstream, *name, *tag; /* upstream NULL: refused */
        bool digest;
    } cases[] = {
        {"alpine", "docker.io", "library/alpine", "latest", false},
        {"alpine:3.20", "docker.io", "library/alpine", "3.20", false},
        {"grafana/grafana", "docker.io", "grafana/grafana", "latest", false},
        {"docker.io/alpine:1", "docker.io", "library/alpine", "1", false},
        {"index.docker.io/library/alpine", "docker.io", "library/alpine", "latest", false},
        {"ghcr.io/a", "ghcr.io", "a", "latest", false},
        {"ghcr.io/a/b/c:x_y-z.1", "ghcr.io", "a/b/c", "x_y-z.1", false},
        {"quay.io/a/b", "docker.io", "quay.io/a/b", "latest", false}, /* no such upstream: a name in the default one */
        {"alpine@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "docker.io",
         "library/alpine", "latest", true},
        {"alpine:3@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "docker.io",
         "library/alpine", "3", true},
        {hex, "", "", "", true},
        {"", NULL, NULL, NULL, false},
        {"Alpine", NULL, NULL, NULL, false},
        {"alpine:", NULL, NULL, NULL, false},
        {"alpine:a b", NULL, NULL, NULL, false},
        {"alpine@", NULL, NULL, NULL, false},
        {"alpine@sha256:12", NULL, NULL, NULL, false},
        {"sha256:12", NULL, NULL, NULL, false},
        {"ghcr.io/", NULL, NULL, NULL, false},
        {"../x", NULL, NULL, NULL, false},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err err = ERR_INIT;
        struct admin_ref ref;
        int rc = admin_ref_parse(cases[i].text, f->ups, &ref, &err);

        if (cases[i].upstream == NULL) {
            if (rc >= 0)
                fail_msg("\"%s\" was taken", cases[i].text);
            continue;
        }
        if (rc < 0)
            fail_msg("%s: %s", cases[i].text, err.msg);
        assert_string_equal(ref.upstream, cases[i].upstream);
        assert_string_equal(ref.name, cases[i].name);
        if (!cases[i].digest)
            assert_string_equal(ref.tag, cases[i].tag);
        assert_int_equal(ref.has_digest, cases[i].digest);
    }
}

/* ---- bodies ------------------------------------------------------------------------------------------------------ */

static const struct admin_numbers numbers = {
    .version = "1.2.3",
    .uptime_s = 7,
    .proxy = {.jobs_pending = 1,
              .requests_total = 10,
              .requests_hit = 2,
              .requests_follow = 3,
              .requests_miss = 4,
              .requests_stale = 5,
              .upstream_requests = 6,
              .upstream_bytes = 1ull << 40,
              .served_bytes = 8,
              .fills = 9},
    .store = {.bytes_on_disk = 11,
              .canonical_bytes = 12,
              .unique_chunk_bytes = 13,
              .frame_bytes = 14,
              .original_bytes = 15,
              .chunks = 16,
              .canonical_layers = 17,
              .replayable_layers = 18,
              .manifests = 19,
              .tags = 20,
              .blobs = 21,
              .quota_bytes = 22,
              .reserved_bytes = 23,
              .evictions = 24,
              .packs = 25,
              .pack_bytes = 26,
              .compactions = 27,
              .compacted_bytes = 28},
};
static const struct {
    const char *object, *key;
    uint64_t value;
} stats_keys[] = {
    {NULL, "uptime_s", 7},
    {NULL, "fills", 9},
    {"jobs", "pending", 1},
    {"requests", "total", 10},
    {"requests", "hit", 2},
    {"requests", "follow", 3},
    {"requests", "miss", 4},
    {"requests", "stale", 5},
    {"upstream", "requests", 6},
    {"upstream", "bytes", 1ull << 40},
    {"served", "bytes", 8},
    {"store", "bytes_on_disk", 11},
    {"store", "canonical_bytes", 12},
    {"store", "unique_chunk_bytes", 13},
    {"store", "frame_bytes", 14},
    {"store", "original_bytes", 15},
    {"store", "chunks", 16},
    {"store", "canonical_layers", 17},
    {"store", "replayable_layers", 18},
    {"store", "manifests", 19},
    {"store", "tags", 20},
    {"store", "blobs", 21},
    {"store", "quota_bytes", 22},
    {"store", "reserved_bytes", 23},
    {"store", "evictions", 24},
    {"store", "packs", 25},
    {"store", "pack_bytes", 26},
    {"store", "compactions", 27},
    {"store", "compacted_bytes", 28},
};

static void stats(void **state UNUSED)
{
    CLEANUP(buf_release) struct buf text = BUF_INIT(1 << 20);
    struct err err = ERR_INIT;

    assert_int_equal(admin_stats_json(&numbers, &text, &err), 0);

    CLEANUP(admin_json_cleanup) struct admin_json *root = parse(&text);
    assert_string_equal(admin_json_text(root, "version"), "1.2.3");
    for (size_t i = 0; i < ARRAY_LEN(stats_keys); i++) {
        const struct admin_json *in = stats_keys[i].object != NULL ? admin_json_get(root, stats_keys[i].object) : root;

        assert_true(admin_json_has(in, stats_keys[i].key));
        assert_int_equal(admin_json_number(in, stats_keys[i].key), stats_keys[i].value);
    }
}

static void images(void **state)
{
    struct fixture *f = *state;
    CLEANUP(buf_release) struct buf text = BUF_INIT(1 << 20);
    struct err err = ERR_INIT;

    assert_int_equal(admin_images_json(f->st, &text, &err), 0);

    CLEANUP(admin_json_cleanup) struct admin_json *root = parse(&text);
    const struct admin_json *list = admin_json_get(root, "images"), *tagged = admin_json_at(list, 0);

    assert_int_equal(admin_json_count(list), 3);
    assert_string_equal(admin_json_text(tagged, "ref"), "docker.io/library/alpine:3.20");
    assert_string_equal(admin_json_text(tagged, "digest"), digest_text(&f->image).s);
    assert_string_equal(admin_json_text(tagged, "views"), "pending");
    assert_false(admin_json_true(tagged, "index"));
    assert_false(admin_json_has(tagged, "signed"));
    assert_int_equal(admin_json_number(tagged, "layers"), 2);
    assert_int_equal(admin_json_number(tagged, "original_bytes"), 25);
    assert_true(strlen(admin_json_text(tagged, "checked_at")) == strlen("2026-11-30T12:00:00Z"));
    assert_string_equal(admin_json_text(admin_json_at(list, 1), "views"), "never");
    assert_string_equal(admin_json_text(admin_json_at(list, 1), "reason"), "an artifact");
    assert_true(admin_json_true(admin_json_at(list, 2), "index"));
}

static struct admin_json *inspect(struct fixture *f, const char *name)
{
    CLEANUP(buf_release) struct buf text = BUF_INIT(1 << 20);
    struct err err = ERR_INIT;
    struct admin_ref ref;

    if (admin_ref_parse(name, f->ups, &ref, &err) < 0 || admin_image_json(f->st, &ref, &text, &err) < 0)
        fail_msg("%s: %s", name, err.msg);
    return parse(&text);
}

static void one_image(void **state)
{
    struct fixture *f = *state;
    CLEANUP(admin_json_cleanup) struct admin_json *root = inspect(f, "alpine:3.20");
    const struct admin_json *layers = admin_json_get(root, "layers"), *views = admin_json_get(root, "views");

    assert_string_equal(admin_json_text(root, "ref"), "docker.io/library/alpine:3.20");
    assert_string_equal(admin_json_text(root, "digest"), digest_text(&f->image).s);
    assert_string_equal(admin_json_text(root, "upstream_digest"), digest_text(&f->image).s);
    assert_string_equal(admin_json_text(root, "view"), "original");
    assert_string_equal(admin_json_text(views, "state"), "pending");
    assert_false(admin_json_has(views, "canonical"));
    assert_int_equal(admin_json_count(layers), 2);
    assert_string_equal(admin_json_text(admin_json_at(layers, 0), "digest"), digest_text(&f->layer).s);
    assert_string_equal(admin_json_text(admin_json_at(layers, 0), "state"), "original");
    assert_true(admin_json_true(admin_json_at(layers, 0), "present"));
    assert_int_equal(admin_json_number(admin_json_at(layers, 0), "size"), 18);
    assert_string_equal(admin_json_text(admin_json_at(layers, 1), "state"), "not fetched");
    assert_false(admin_json_true(admin_json_at(layers, 1), "present"));
}

/* A published view shows at the upstream's manifest, and names it when it is asked for itself. */
static void a_view(void **state)
{
    struct fixture *f = *state;
    CLEANUP(store_manifest_release) struct store_manifest m = {.len = 0};
    struct digest view;
    struct err err = ERR_INIT;
    char name[128], body[2100];

    assert_int_equal(store_manifest_get(f->st, &f->image, &m, &err), 0);
    snprintf(body, sizeof body, "%.*s ", (int)m.len, m.body);
    assert_int_equal(store_view_put(f->st, &f->image, VIEW_CANONICAL, m.media_type, body, strlen(body), &view, &err),
                     0);
    assert_int_equal(store_manifest_set_views(f->st, &f->image, VIEWS_READY, NULL, &err), 0);
    assert_int_equal(store_manifest_set_signed(f->st, &f->image, true, &err), 0);

    CLEANUP(admin_json_cleanup) struct admin_json *original = inspect(f, "alpine:3.20");
    assert_string_equal(admin_json_text(admin_json_get(original, "views"), "state"), "ready");
    assert_string_equal(admin_json_text(admin_json_get(original, "views"), "canonical"), digest_text(&view).s);
    assert_false(admin_json_has(admin_json_get(original, "views"), "zstd"));
    assert_true(admin_json_true(original, "signed"));

    snprintf(name, sizeof name, "alpine@%s", digest_text(&view).s);
    CLEANUP(admin_json_cleanup) struct admin_json *derived = inspect(f, name);
    assert_string_equal(admin_json_text(derived, "view"), "canonical");
    assert_string_equal(admin_json_text(derived, "digest"), digest_text(&view).s);
    assert_string_equal(admin_json_text(derived, "upstream_digest"), digest_text(&f->image).s);
}

static void one_index(void **state)
{
    struct fixture *f = *state;
    CLEANUP(admin_json_cleanup) struct admin_json *root = inspect(f, "alpine");
    CLEANUP(admin_json_cleanup) struct admin_json *by_digest = inspect(f, digest_text(&f->index).s);
    const struct admin_json *list = admin_json_get(root, "manifests"), *child = admin_json_at(list, 0);

    assert_true(admin_json_true(root, "index"));
    assert_int_equal(admin_json_count(list), 2);
    assert_string_equal(admin_json_text(child, "platform"), "linux/arm64/v8");
    assert_true(admin_json_true(child, "known"));
    assert_int_equal(admin_json_count(admin_json_get(child, "layers")), 2);
    assert_false(admin_json_true(admin_json_at(list, 1), "known"));
    assert_false(admin_json_has(admin_json_at(list, 1), "views"));
    assert_string_equal(admin_json_text(by_digest, "ref"), digest_text(&f->index).s);
}

static void an_artifact(void **state)
{
    struct fixture *f = *state;
    CLEANUP(admin_json_cleanup) struct admin_json *root = inspect(f, "docker.io/library/alpine:art");

    assert_string_equal(admin_json_text(admin_json_get(root, "views"), "state"), "never");
    assert_string_equal(admin_json_text(admin_json_get(root, "views"), "reason"), "an artifact");
}

static void unknown_images(void **state)
{
    struct fixture *f = *state;
    CLEANUP(buf_release) struct buf text = BUF_INIT(1 << 20);
    struct store_stats before, after;
    struct err err = ERR_INIT;
    struct admin_ref ref;

    assert_int_equal(store_stats(f->st, &before, &err), 0);
    assert_int_equal(admin_ref_parse("ghcr.io/x/y:1", f->ups, &ref, &err), 0);
    assert_int_equal(admin_image_json(f->st, &ref, &text, &err), ERR_NOTFOUND);
    assert_string_equal(err.msg, "ghcr.io/x/y:1 has not been pulled through this recask");
    err_clear(&err);
    ref.has_digest = true;
    digest_of("?", 1, &ref.digest);
    assert_int_equal(admin_image_json(f->st, &ref, &text, &err), ERR_NOTFOUND);
    assert_int_equal(store_stats(f->st, &after, &err), 0);
    assert_int_equal(before.tags, after.tags);
    assert_int_equal(before.manifests, after.manifests);
}

/* Images of an upstream that is not configured any more are found by their written name. */
static void orphaned_upstream(void **state)
{
    struct fixture *f = *state;
    struct digest d;
    struct err err = ERR_INIT;
    int64_t own = f->repo;

    assert_int_equal(store_repo(f->st, "old.example", "a/b", &f->repo, &err), 0);
    put_manifest(f, "1", "application/vnd.oci.image.index.v1+json",
                 "{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.index.v1+json\",\"manifests\":[]}",
                 NULL, 0, NULL, &d);
    f->repo = own;

    CLEANUP(admin_json_cleanup) struct admin_json *root = inspect(f, "old.example/a/b:1");
    assert_string_equal(admin_json_text(root, "ref"), "old.example/a/b:1");
}

static void errors(void **state UNUSED)
{
    CLEANUP(buf_release) struct buf text = BUF_INIT(4096);
    CLEANUP(buf_release) struct buf odd = BUF_INIT(4096);
    struct err err = ERR_INIT;

    assert_int_equal(admin_error_json("not_found", "no \"x\"", &text, &err), 0);

    CLEANUP(admin_json_cleanup) struct admin_json *root = parse(&text);
    assert_string_equal(admin_json_text(admin_json_get(root, "error"), "code"), "not_found");
    assert_string_equal(admin_json_text(admin_json_get(root, "error"), "message"), "no \"x\"");
    assert_int_equal(admin_error_json("bad_request", "\xff", &odd, &err), 0);
}

/* A client must stand answers of other versions. */
static void missing_values(void **state UNUSED)
{
    static const char text[] = "{\"a\": null, \"n\": -5, \"s\": 3}";
    struct admin_json *root;
    struct err err = ERR_INIT;

    assert_int_equal(admin_json_parse(text, strlen(text), &root, &err), 0);
    assert_false(admin_json_has(root, "a"));
    assert_int_equal(admin_json_number(root, "n"), 0);
    assert_string_equal(admin_json_text(root, "s"), "");
    assert_null(admin_json_get(admin_json_get(root, "x"), "y"));
    assert_int_equal(admin_json_count(admin_json_get(root, "x")), 0);
    assert_null(admin_json_at(NULL, 0));
    assert_false(admin_json_true(NULL, "x"));
    admin_json_free(root);
    admin_json_free(NULL);
    assert_int_equal(admin_json_parse("{", 1, &root, &err), ERR_FORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(references),  cmocka_unit_test(stats),          cmocka_unit_test(images),
        cmocka_unit_test(one_image),   cmocka_unit_test(one_index),      cmocka_unit_test(a_view),
        cmocka_unit_test(an_artifact), cmocka_unit_test(unknown_images), cmocka_unit_test(orphaned_upstream),
        cmocka_unit_test(errors),      cmocka_unit_test(missing_values),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
