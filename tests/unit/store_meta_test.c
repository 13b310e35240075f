/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_meta_test.c - manifests, tags, views, lists; and that packs hold enough to tell them again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "store/meta.h"
#include "store/record_internal.h"
#include "tests/unit/store_layer_util.h"

#include <pthread.h>

#define MT "application/vnd.oci.image.manifest.v1+json"

static int64_t repo_of(struct store *st, const char *name)
{
    struct err err = ERR_INIT;
    int64_t repo = 0;

    ASSERT_OK(store_repo(st, "docker.io", name, &repo, &err));
    return repo;
}

static struct digest named(const char *s)
{
    struct digest d;

    digest_of(s, strlen(s), &d);
    return d;
}

/* A manifest whose body is `body`, with no references. */
static struct store_manifest_put simple(int64_t repo, const char *tag, const char *body)
{
    return (struct store_manifest_put){
        .repo = repo, .tag = tag, .digest = named(body), .media_type = MT, .body = body, .len = strlen(body)};
}

static struct digest put(struct store *st, int64_t repo, const char *tag, const char *body)
{
    struct store_manifest_put p = simple(repo, tag, body);
    struct err err = ERR_INIT;

    ASSERT_OK(store_manifest_put(st, &p, &err));
    return p.digest;
}

static bool has(struct store *st, int64_t repo, const struct digest *d)
{
    struct err err = ERR_INIT;
    bool out = false;

    ASSERT_OK(store_repo_has_manifest(st, repo, d, &out, &err));
    return out;
}

static void expect_body(struct store *st, const struct digest *d, const char *body, int view,
                        const struct digest *upstream)
{
    struct err err = ERR_INIT;
    struct store_manifest m;

    ASSERT_OK(store_manifest_get(st, d, &m, &err));
    assert_string_equal(m.body, body);
    assert_int_equal(m.len, strlen(body));
    assert_string_equal(m.media_type, MT);
    assert_int_equal(m.view, view);
    assert_true(digest_equal(&m.upstream, upstream));
    store_manifest_release(&m);
}

static uint64_t pack_bytes(struct store *st)
{
    return pack_end(st->packs, 1);
}

/* ---- manifests ------------------------------------------------------------------------------------------------------------ */

static void test_put_and_get(void **state)
{
    struct fixture *f = *state;
    int64_t a = repo_of(f->st, "library/a");
    int64_t b = repo_of(f->st, "library/b");
    struct store_ref refs[3] = {{.role = REF_CONFIG, .digest = named("c"), .size_bytes = 5},
                                {.role = REF_LAYER, .digest = named("l"), .size_bytes = 100},
                                {.role = REF_LAYER, .digest = named("l"), .size_bytes = 100}};
    struct store_manifest_put p = simple(a, "latest", "{}");
    struct err err = ERR_INIT;
    struct store_ref *got = NULL;
    struct store_tag tag;
    size_t count = 0;
    uint64_t before;
    bool config = false;

    p.refs = refs;
    p.ref_count = 3;
    ASSERT_OK(store_manifest_put(f->st, &p, &err));
    expect_body(f->st, &p.digest, "{}", 0, &p.digest);
    ASSERT_OK(store_tag_get(f->st, a, "latest", &tag, &err));
    assert_true(digest_equal(&tag.digest, &p.digest) && tag.checked_at > 1600000000);
    ASSERT_OK(store_manifest_refs(f->st, &p.digest, &got, &count, &err));
    assert_int_equal(count, 3);
    for (size_t i = 0; i < 3; i++)
        assert_true(got[i].role == refs[i].role && got[i].size_bytes == refs[i].size_bytes &&
                    digest_equal(&got[i].digest, &refs[i].digest));
    free(got);
    ASSERT_OK(store_is_config(f->st, &refs[0].digest, &config, &err));
    assert_true(config);
    ASSERT_OK(store_is_config(f->st, &refs[1].digest, &config, &err));
    assert_false(config);
    assert_true(has(f->st, a, &p.digest));
    assert_false(has(f->st, b, &p.digest));
    before = pack_bytes(f->st);
    ASSERT_OK(store_manifest_put(f->st, &p, &err)); /* once more: only "checked now" */
    assert_int_equal(pack_bytes(f->st), before);
    p.repo = b;
    p.tag = NULL;
    ASSERT_OK(store_manifest_put(f->st, &p, &err));
    assert_true(has(f->st, b, &p.digest));
    ASSERT_CODE(store_tag_get(f->st, b, "latest", &tag, &err), ERR_NOTFOUND);
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM manifest_ref"), 3);
    reopen_store(f);
    expect_body(f->st, &p.digest, "{}", 0, &p.digest);
}

static void test_put_refuses(void **state)
{
    struct fixture *f = *state;
    int64_t repo = repo_of(f->st, "a");
    struct store_manifest_put p = simple(repo, "t", "{}");
    struct store_ref ref = {.role = REF_LAYER, .size_bytes = UINT64_MAX};
    struct err err = ERR_INIT;
    struct store_manifest m;
    char text[300];

    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    p.digest = named("other");
    ASSERT_CODE(store_manifest_put(f->st, &p, &err), ERR_CORRUPT); /* S1 */
    p = simple(repo, "t", "");
    ASSERT_CODE(store_manifest_put(f->st, &p, &err), ERR_LIMIT); /* case 5 */
    p = simple(repo, text, "{}");
    ASSERT_CODE(store_manifest_put(f->st, &p, &err), ERR_LIMIT);
    p = simple(repo, "", "{}");
    ASSERT_CODE(store_manifest_put(f->st, &p, &err), ERR_LIMIT);
    p = simple(repo, "t", "{}");
    p.media_type = text;
    ASSERT_CODE(store_manifest_put(f->st, &p, &err), ERR_LIMIT);
    p = simple(repo, "t", "{}");
    p.refs = &ref;
    p.ref_count = 1;
    ASSERT_CODE(store_manifest_put(f->st, &p, &err), ERR_LIMIT);
    p = simple(repo + 1, "t", "{}");
    ASSERT_CODE(store_manifest_put(f->st, &p, &err), ERR_NOTFOUND);
    ASSERT_CODE(store_manifest_get(f->st, &p.digest, &m, &err), ERR_NOTFOUND);
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM manifest"), 0);
}

static void test_a_damaged_row_is_not_served(void **state)
{
    struct fixture *f = *state;
    struct digest d = put(f->st, repo_of(f->st, "a"), "t", "{\"a\":1}");
    struct err err = ERR_INIT;
    struct store_manifest m;

    sql_change(f->st, "UPDATE manifest SET body = CAST('{\"a\":2}' AS BLOB)");
    ASSERT_CODE(store_manifest_get(f->st, &d, &m, &err), ERR_CORRUPT);
    assert_null(m.body);
}

static void test_parents(void **state)
{
    struct fixture *f = *state;
    int64_t repo = repo_of(f->st, "a");
    struct digest child = put(f->st, repo, NULL, "child");
    struct store_ref refs[2] = {{.role = REF_CHILD, .digest = child, .size_bytes = 5},
                                {.role = REF_CHILD, .digest = child, .size_bytes = 5}};
    struct store_manifest_put p = simple(repo, NULL, "index 1");
    struct digest *parents = NULL;
    struct err err = ERR_INIT;
    size_t count = 9;

    ASSERT_OK(store_manifest_parents(f->st, &child, &parents, &count, &err));
    assert_true(count == 0 && parents == NULL);
    p.is_index = true;
    p.refs = refs;
    p.ref_count = 2;
    ASSERT_OK(store_manifest_put(f->st, &p, &err));
    p = simple(repo, NULL, "index 2");
    p.refs = refs;
    p.ref_count = 1;
    ASSERT_OK(store_manifest_put(f->st, &p, &err));
    ASSERT_OK(store_manifest_parents(f->st, &child, &parents, &count, &err));
    assert_int_equal(count, 2);
    free(parents);
}

/* ---- tags ------------------------------------------------------------------------------------------------------------------- */

static void test_tags_move(void **state)
{
    struct fixture *f = *state;
    int64_t repo = repo_of(f->st, "a");
    struct digest one = put(f->st, repo, "latest", "one");
    struct digest two = put(f->st, repo, "latest", "two");
    struct digest none = named("none");
    struct err err = ERR_INIT;
    struct store_tag tag;

    ASSERT_OK(store_tag_get(f->st, repo, "latest", &tag, &err));
    assert_true(digest_equal(&tag.digest, &two));
    assert_true(has(f->st, repo, &one)); /* case 50: the old digest stays pullable */
    sql_change(f->st, "UPDATE tag SET checked_at = 7");
    ASSERT_OK(store_tag_set(f->st, repo, "latest", &two, &err));
    ASSERT_OK(store_tag_get(f->st, repo, "latest", &tag, &err));
    assert_true(tag.checked_at > 1600000000);
    ASSERT_OK(store_tag_set(f->st, repo, "latest", &one, &err));
    ASSERT_OK(store_tag_get(f->st, repo, "latest", &tag, &err));
    assert_true(digest_equal(&tag.digest, &one));
    ASSERT_CODE(store_tag_set(f->st, repo, "latest", &none, &err), ERR_NOTFOUND);
    ASSERT_CODE(store_tag_set(f->st, repo, "", &one, &err), ERR_LIMIT);
    ASSERT_CODE(store_tag_get(f->st, repo, "Latest", &tag, &err), ERR_NOTFOUND); /* case matters */
    ASSERT_OK(store_tag_drop(f->st, repo, "latest", &err));
    ASSERT_OK(store_tag_drop(f->st, repo, "latest", &err));
    ASSERT_CODE(store_tag_get(f->st, repo, "latest", &tag, &err), ERR_NOTFOUND);
    expect_body(f->st, &one, "one", 0, &one);
    assert_int_equal(sql_number(f->st, "SELECT tags FROM totals"), 0);
}

struct tagger {
    struct store *st;
    int64_t repo;
    int base;
    int failed;
};

static void *tag_many(void *arg)
{
    struct tagger *t = arg;

    for (int i = 0; i < 30; i++) {
        struct err err = ERR_INIT;
        struct store_manifest_put p;
        struct store_tag tag;
        struct store_manifest m;
        char body[32];
        int rc;

        (void)snprintf(body, sizeof(body), "manifest %d", (t->base + i) % 8);
        p = simple(t->repo, "moving", body);
        rc = store_manifest_put(t->st, &p, &err);
        /* Case 101: a tag that can be seen has its manifest, at every moment. */
        if (rc == 0)
            rc = store_tag_get(t->st, t->repo, "moving", &tag, &err);
        if (rc == 0)
            rc = store_manifest_get(t->st, &tag.digest, &m, &err);
        if (rc == 0)
            store_manifest_release(&m);
        else
            t->failed = rc;
    }
    return NULL;
}

static void test_a_tag_never_lacks_its_manifest(void **state)
{
    struct fixture *f = *state;
    int64_t repo = repo_of(f->st, "a");
    struct tagger t[4];
    pthread_t threads[4];

    for (int i = 0; i < 4; i++) {
        t[i] = (struct tagger){.st = f->st, .repo = repo, .base = i * 3};
        assert_int_equal(pthread_create(&threads[i], NULL, tag_many, &t[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(t[i].failed, 0);
    }
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM manifest"), 8);
    assert_int_equal(sql_number(f->st, "SELECT manifests FROM totals"), 8);
}

/* ---- views ------------------------------------------------------------------------------------------------------------------ */

static void test_views(void **state)
{
    struct fixture *f = *state;
    int64_t repo = repo_of(f->st, "a"), other = repo_of(f->st, "b");
    struct digest up = put(f->st, repo, "t", "upstream"), none = named("none"), first, second, got;
    struct err err = ERR_INIT;

    ASSERT_CODE(store_view_get(f->st, &up, 1, &got, &err), ERR_NOTFOUND);
    ASSERT_CODE(store_view_put(f->st, &none, 1, MT, "x", 1, &got, &err), ERR_NOTFOUND);
    ASSERT_CODE(store_view_put(f->st, &up, 0, MT, "x", 1, &got, &err), ERR_LIMIT);
    ASSERT_OK(store_view_put(f->st, &up, 1, MT, "derived 1", 9, &first, &err));
    ASSERT_OK(store_view_put(f->st, &up, 1, MT, "derived 1", 9, &first, &err));
    ASSERT_OK(store_view_get(f->st, &up, 1, &got, &err));
    assert_true(digest_equal(&got, &first));
    ASSERT_OK(store_view_put(f->st, &up, 1, MT, "derived 2", 9, &second, &err));
    ASSERT_OK(store_view_get(f->st, &up, 1, &got, &err));
    assert_true(digest_equal(&got, &second));
    expect_body(f->st, &first, "derived 1", 1, &up); /* S4 */
    expect_body(f->st, &second, "derived 2", 1, &up);
    assert_true(has(f->st, repo, &first) && has(f->st, repo, &second));
    assert_false(has(f->st, other, &first));
    ASSERT_OK(store_view_put_same(f->st, &up, 2, &err));
    ASSERT_OK(store_view_put_same(f->st, &up, 2, &err));
    ASSERT_OK(store_view_get(f->st, &up, 2, &got, &err));
    assert_true(digest_equal(&got, &up));
    ASSERT_OK(store_view_put(f->st, &up, 2, MT, "upstream", 8, &got, &err)); /* the same bytes are "same" */
    assert_true(digest_equal(&got, &up));
    expect_body(f->st, &up, "upstream", 0, &up);
}

/* The same layers, compressed twice: two upstream manifests, one canonical one, held where either is held. */
static void test_one_view_of_two_manifests(void **state)
{
    struct fixture *f = *state;
    int64_t a = repo_of(f->st, "a"), b = repo_of(f->st, "b"), c = repo_of(f->st, "c");
    struct digest one = put(f->st, a, NULL, "gzip -6"), two = put(f->st, b, NULL, "gzip -9"), got;
    struct err err = ERR_INIT;

    ASSERT_OK(store_view_put(f->st, &one, 1, MT, "canonical", 9, &got, &err));
    assert_false(has(f->st, b, &got));
    ASSERT_OK(store_view_put(f->st, &two, 1, MT, "canonical", 9, &got, &err));
    assert_true(has(f->st, a, &got) && has(f->st, b, &got));
    assert_false(has(f->st, c, &got));
    /* Recask behind recask: the derived manifest is somebody's upstream manifest too. */
    assert_true(digest_equal(&got, &(struct digest){0}) == false);
    got = put(f->st, c, "t", "canonical");
    expect_body(f->st, &got, "canonical", 0, &got);
    assert_true(has(f->st, a, &got) && has(f->st, b, &got) && has(f->st, c, &got));
}

/* ---- the background job's notes ------------------------------------------------------------------------------------------------ */

struct wanted {
    struct store *st;
    unsigned count;
    struct digest last;
};

static int see_wanted(void *arg, int64_t repo, const char *upstream, const char *name, const struct digest *d,
                      struct err *err)
{
    struct wanted *w = arg;

    w->count++;
    w->last = *d;
    assert_true(repo > 0);
    assert_string_equal(upstream, "docker.io");
    assert_string_equal(name, "a");
    return store_manifest_set_views(w->st, d, VIEWS_READY, NULL, err); /* the callee may write */
}

static void test_wanted_and_notes(void **state)
{
    struct fixture *f = *state;
    int64_t repo = repo_of(f->st, "a");
    struct wanted w = {.st = f->st};
    struct digest d, plain = put(f->st, repo, NULL, "plain"), none = named("none");
    struct store_manifest_put p = simple(repo, "never", "artifact");
    struct err err = ERR_INIT;
    struct store_manifest m;
    char body[32];

    ASSERT_CODE(store_manifest_want(f->st, &none, &err), ERR_NOTFOUND);
    ASSERT_CODE(store_manifest_set_views(f->st, &none, VIEWS_READY, NULL, &err), ERR_NOTFOUND);
    ASSERT_CODE(store_manifest_set_signed(f->st, &none, true, &err), ERR_NOTFOUND);
    p.never = "an artifact";
    ASSERT_OK(store_manifest_put(f->st, &p, &err));
    ASSERT_OK(store_manifest_want(f->st, &p.digest, &err));
    for (int i = 0; i < 70; i++) {
        (void)snprintf(body, sizeof(body), "image %d", i);
        d = put(f->st, repo, NULL, body);
        ASSERT_OK(store_manifest_want(f->st, &d, &err));
        ASSERT_OK(store_manifest_want(f->st, &d, &err));
    }
    ASSERT_OK(store_each_wanted(f->st, see_wanted, &w, &err));
    assert_int_equal(w.count, 70);
    w.count = 0;
    ASSERT_OK(store_each_wanted(f->st, see_wanted, &w, &err));
    assert_int_equal(w.count, 0);
    ASSERT_OK(store_manifest_get(f->st, &p.digest, &m, &err));
    assert_true(m.views == VIEWS_NEVER && m.is_signed == -1);
    store_manifest_release(&m);
    ASSERT_OK(store_manifest_set_signed(f->st, &plain, true, &err));
    ASSERT_OK(store_manifest_set_views(f->st, &plain, VIEWS_NEVER, "signed", &err));
    ASSERT_OK(store_manifest_get(f->st, &plain, &m, &err));
    assert_true(m.views == VIEWS_NEVER && m.is_signed == 1);
    store_manifest_release(&m);
    ASSERT_OK(store_manifest_set_signed(f->st, &plain, false, &err));
    reopen_store(f);
    ASSERT_OK(store_manifest_get(f->st, &plain, &m, &err));
    assert_int_equal(m.is_signed, 0);
    store_manifest_release(&m);
}

/* ---- images ---------------------------------------------------------------------------------------------------------------------- */

struct images {
    unsigned count;
    char last[600];
    struct store_image image; /* the one whose tag is "layers" */
    char reason[64];
};

static int see_image(void *arg, const struct store_image *image, struct err *err)
{
    struct images *s = arg;
    char name[600];

    (void)err;
    (void)snprintf(name, sizeof(name), "%s %s %s", image->upstream, image->name, image->tag);
    assert_true(strcmp(s->last, name) < 0); /* ordered */
    memcpy(s->last, name, sizeof(name));
    s->count++;
    if (strcmp(image->tag, "layers") == 0)
        s->image = *image;
    if (image->reason != NULL)
        (void)snprintf(s->reason, sizeof(s->reason), "%s", image->reason);
    return 0;
}

static void test_images(void **state)
{
    CLEANUP(free_ptr) uint8_t *data = calloc(1, 200000);
    struct fixture *f = *state;
    struct images s = {.count = 0};
    struct digest o = put_source(f->st, 1);
    struct store_ref refs[3] = {{.role = REF_CONFIG, .digest = named("c"), .size_bytes = 5},
                                {.role = REF_LAYER, .digest = o, .size_bytes = 10},
                                {.role = REF_LAYER, .digest = named("l"), .size_bytes = 100}};
    struct store_manifest_put p;
    struct err err = ERR_INIT;
    char text[32];

    ASSERT_OK(store_each_image(f->st, see_image, &s, &err));
    assert_int_equal(s.count, 0);
    (void)write_layer(f->st, &o, data, 200000);
    for (int i = 0; i < 90; i++) {
        (void)snprintf(text, sizeof(text), "repo%d", i % 4);
        int64_t repo = repo_of(f->st, text);

        (void)snprintf(text, sizeof(text), "tag%d", i);
        (void)put(f->st, repo, text, "the same manifest");
    }
    p = simple(repo_of(f->st, "repo2"), "layers", "with layers");
    p.refs = refs;
    p.ref_count = 3;
    p.never = "because";
    ASSERT_OK(store_manifest_put(f->st, &p, &err));
    ASSERT_OK(store_each_image(f->st, see_image, &s, &err));
    assert_int_equal(s.count, 91);
    assert_int_equal(s.image.layers, 2);
    assert_int_equal(s.image.original_bytes, 110);
    assert_int_equal(s.image.canonical_layers, 1);
    assert_int_equal(s.image.canonical_bytes, 200000);
    assert_int_equal(s.image.views, VIEWS_NEVER);
    assert_string_equal(s.reason, "because");
}

/* ---- packs carry everything --------------------------------------------------------------------------------------------------------- */

struct told {
    unsigned manifests, tags, links, views;
};

static bool text_is(struct record_text t, const char *want)
{
    return t.len == strlen(want) && memcmp(t.s, want, t.len) == 0;
}

static void tell_manifest(struct told *told, const struct pack_header *r, const uint8_t *payload, struct err *err)
{
    struct record_manifest m;
    struct digest body;

    assert_int_equal(record_get_manifest(payload, r->len, &m, err), 0);
    digest_of(m.body, m.len, &body);
    assert_true(digest_equal(&body, &r->key));
    assert_true(text_is(m.media_type, MT));
    told->manifests++;
}

static int tell(void *arg, const struct pack_header *r, uint64_t off, const uint8_t *payload, struct err *err)
{
    struct told *told = arg;
    struct record_link l;
    struct record_tag t;
    struct record_view v;

    (void)off;
    if (r->type == PACK_MANIFEST) {
        tell_manifest(told, r, payload, err);
    } else if (r->type == PACK_TAG) {
        assert_int_equal(record_get_tag(payload, r->len, &t, err), 0);
        assert_true(text_is(t.upstream, "docker.io") && text_is(t.name, "a") && text_is(t.tag, "v1"));
        assert_int_equal(t.dropped, told->tags++ > 0);
    } else if (r->type == PACK_REPO_BLOB) {
        assert_int_equal(record_get_link(payload, r->len, &l, err), 0);
        assert_true(text_is(l.upstream, "docker.io") && text_is(l.name, "a"));
        assert_int_equal(l.size_bytes, l.kind == RECORD_LINK_BLOB ? 77 : 0);
        told->links++;
    } else if (r->type == PACK_VIEW) {
        assert_int_equal(record_get_view(payload, r->len, &v, err), 0);
        told->views++;
    }
    return 0;
}

static void test_packs_tell_it_again(void **state)
{
    struct fixture *f = *state;
    int64_t repo = repo_of(f->st, "a");
    struct digest up = put(f->st, repo, "v1", "upstream"), blob = named("blob"), got;
    struct told told = {.tags = 0};
    struct err err = ERR_INIT;

    ASSERT_OK(store_view_put(f->st, &up, 1, MT, "derived", 7, &got, &err));
    ASSERT_OK(store_view_put_same(f->st, &up, 2, &err));
    ASSERT_OK(store_repo_add_blob(f->st, repo, &blob, 77, &err));
    ASSERT_OK(store_tag_drop(f->st, repo, "v1", &err));
    reopen_store(f);
    ASSERT_OK(pack_scan(f->st->packs, 1, tell, &told, &err));
    assert_int_equal(told.manifests, 2);
    assert_int_equal(told.tags, 2);
    assert_int_equal(told.links, 2);
    assert_int_equal(told.views, 2);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_put_and_get),
        T(test_put_refuses),
        T(test_a_damaged_row_is_not_served),
        T(test_parents),
        T(test_tags_move),
        T(test_a_tag_never_lacks_its_manifest),
        T(test_views),
        T(test_one_view_of_two_manifests),
        T(test_wanted_and_notes),
        T(test_images),
        T(test_packs_tell_it_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
