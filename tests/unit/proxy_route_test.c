/* SPDX-License-Identifier: Apache-2.0
 * proxy/route.c: what paths mean, and whose they are.
 */
#include "proxy/proxy_internal.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define HEX "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

struct fixture {
    struct upstreams *ups;
    const struct upstream *hub, *ghcr;
};

static int set_up(void **state)
{
    static const char *const aliases[] = {"registry-1.docker.io", "index.docker.io", NULL};
    const struct upstream_def hub = {
        .name = "docker.io", .url = "https://registry-1.docker.io", .aliases = aliases, .add_library = true};
    const struct upstream_def ghcr = {.name = "ghcr.io", .url = "https://ghcr.io"};
    const struct upstreams_options opt = {.user_agent = "test"};
    struct fixture *f = calloc(1, sizeof(*f));
    struct err err = ERR_INIT;

    if (!f || upstreams_new(&opt, &f->ups, &err) < 0 || upstreams_add(f->ups, &hub, &err) < 0 ||
        upstreams_add(f->ups, &ghcr, &err) < 0)
        return -1;
    f->hub = upstream_find(f->ups, "docker.io", 9);
    f->ghcr = upstream_find(f->ups, "ghcr.io", 7);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    upstreams_stop(f->ups);
    upstreams_free(f->ups);
    free(f);
    return 0;
}

static const struct {
    const char *path, *ns;
    enum route_kind kind;
    const char *upstream, *name, *ref;
} good[] = {
    {"/v2", NULL, ROUTE_BASE, NULL, "", ""},
    {"/v2/", NULL, ROUTE_BASE, NULL, "", ""},
    {"/v2/alpine/manifests/3.20", NULL, ROUTE_MANIFEST, "docker.io", "library/alpine", "3.20"},
    {"/v2/library/alpine/manifests/3.20", NULL, ROUTE_MANIFEST, "docker.io", "library/alpine", "3.20"},
    {"/v2/docker.io/alpine/manifests/3.20", NULL, ROUTE_MANIFEST, "docker.io", "library/alpine", "3.20"},
    {"/v2/ghcr.io/a/b/blobs/sha256:" HEX, NULL, ROUTE_BLOB, "ghcr.io", "a/b", "sha256:" HEX},
    {"/v2/ghcr.io/a/blobs/sha256:" HEX, NULL, ROUTE_BLOB, "ghcr.io", "a", "sha256:" HEX},
    {"/v2/a/b/blobs/sha256%3A" HEX, "ghcr.io", ROUTE_BLOB, "ghcr.io", "a/b", "sha256:" HEX},
    {"/v2/alpine/blobs/x", "index.docker.io", ROUTE_BLOB, "docker.io", "library/alpine", "x"},
    {"/v2/alpine/tags/list", NULL, ROUTE_TAGS, "docker.io", "library/alpine", ""},
    {"/v2/ghcr.io/a/b/referrers/sha256:" HEX, NULL, ROUTE_REFERRERS, "ghcr.io", "a/b", "sha256:" HEX},
    /* an upstream's name alone is a repository's: nothing is left to be one */
    {"/v2/ghcr.io/manifests/1", NULL, ROUTE_MANIFEST, "docker.io", "library/ghcr.io", "1"},
    /* words of the API inside names: the last one counts */
    {"/v2/blobs/manifests/manifests/tags", NULL, ROUTE_MANIFEST, "docker.io", "blobs/manifests", "tags"},
    {"/v2/a/manifests/b/blobs/c", NULL, ROUTE_BLOB, "docker.io", "a/manifests/b", "c"},
    {"/v2/a/blobs/tags/list", NULL, ROUTE_TAGS, "docker.io", "a/blobs", ""},
    /* ns= wins over the path: there the name is what it says */
    {"/v2/ghcr.io/a/manifests/1", "docker.io", ROUTE_MANIFEST, "docker.io", "ghcr.io/a", "1"},
    {"/v2/a/b/manifests/1", "", ROUTE_MANIFEST, "docker.io", "a/b", "1"},
};

static void test_good(void **state)
{
    struct fixture *f = *state;

    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        struct route r;
        struct err err = ERR_INIT;
        if (route_parse(f->ups, NULL, good[i].path, good[i].ns, &r, &err) < 0)
            fail_msg("%s: %s", good[i].path, err.msg);
        if (r.kind != good[i].kind || strcmp(r.name, good[i].name) != 0 || strcmp(r.ref, good[i].ref) != 0)
            fail_msg("%s: kind %d name %s ref %s", good[i].path, (int)r.kind, r.name, r.ref);
        assert_string_equal(r.up ? upstream_name(r.up) : "-", good[i].upstream ? good[i].upstream : "-");
        assert_null(r.error_code);
    }
}

static const struct {
    const char *path, *ns;
    int code;
    const char *oci;
} bad[] = {
    {"/", NULL, ERR_NOTFOUND, "UNSUPPORTED"},
    {"", NULL, ERR_NOTFOUND, "UNSUPPORTED"},
    {"*", NULL, ERR_NOTFOUND, "UNSUPPORTED"},
    {"v2/a/manifests/1", NULL, ERR_NOTFOUND, "UNSUPPORTED"},
    {"/v1/a/manifests/1", NULL, ERR_NOTFOUND, "UNSUPPORTED"},
    {"/v2/_catalog", NULL, ERR_NOTFOUND, "UNSUPPORTED"},
    {"/v2/a/manifests", NULL, ERR_NOTFOUND, "UNSUPPORTED"},
    {"/v2/manifests/1", NULL, ERR_NOTFOUND, "UNSUPPORTED"},
    {"/v2//manifests/1", NULL, ERR_NOTFOUND, "UNSUPPORTED"},
    {"/v2/tags/list", NULL, ERR_NOTFOUND, "UNSUPPORTED"},
    {"/v2/a/b/manifests/1", "evil.example", ERR_NOTFOUND, "NAME_UNKNOWN"},
    {"/v2/a/b/manifests/1", "127.0.0.1:22", ERR_NOTFOUND, "NAME_UNKNOWN"},
    {"/v2/A/manifests/1", NULL, ERR_FORMAT, "NAME_INVALID"},
    {"/v2/a//b/manifests/1", NULL, ERR_FORMAT, "NAME_INVALID"},
    {"/v2/../manifests/1", NULL, ERR_FORMAT, "NAME_INVALID"},
    {"/v2/a/../b/manifests/1", NULL, ERR_FORMAT, "NAME_INVALID"},
    {"/v2/a%2fb/manifests/1", NULL, ERR_FORMAT, "NAME_INVALID"}, /* an escaped slash is none of ours */
    {"/v2/a/manifests/1%00", NULL, ERR_FORMAT, "NAME_INVALID"},
    {"/v2/a/manifests/%", NULL, ERR_FORMAT, "NAME_INVALID"},
    {"/v2/a/manifests/%4", NULL, ERR_FORMAT, "NAME_INVALID"},
    {"/v2/a/manifests/%zz", NULL, ERR_FORMAT, "NAME_INVALID"},
};

static void test_bad(void **state)
{
    struct fixture *f = *state;

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct route r;
        struct err err = ERR_INIT;
        int rc = route_parse(f->ups, NULL, bad[i].path, bad[i].ns, &r, &err);
        if (rc != bad[i].code || !r.error_code || strcmp(r.error_code, bad[i].oci) != 0)
            fail_msg("%s: %d %s (%s)", bad[i].path, rc, r.error_code ? r.error_code : "-", err.msg);
    }
}

static void test_long(void **state)
{
    struct fixture *f = *state;
    char path[2000];
    struct route r;
    struct err err = ERR_INIT;

    /* 255 bytes are a name, but not with library/ in front */
    snprintf(path, sizeof(path), "/v2/%0*d/manifests/1", 247, 0);
    assert_int_equal(route_parse(f->ups, NULL, path, NULL, &r, &err), 0);
    snprintf(path, sizeof(path), "/v2/%0*d/manifests/1", 248, 0);
    assert_int_equal(route_parse(f->ups, NULL, path, NULL, &r, &err), ERR_FORMAT);
    err_clear(&err);
    assert_int_equal(route_parse(f->ups, f->ghcr, path, NULL, &r, &err), 0);
    snprintf(path, sizeof(path), "/v2/%0*d/manifests/1", 256, 0);
    assert_int_equal(route_parse(f->ups, f->ghcr, path, NULL, &r, &err), ERR_FORMAT);
    err_clear(&err);
    snprintf(path, sizeof(path), "/v2/a/manifests/%0*d", 300, 0);
    assert_int_equal(route_parse(f->ups, NULL, path, NULL, &r, &err), ERR_FORMAT);
    assert_string_equal(r.error_code, "MANIFEST_INVALID");
    err_clear(&err);
    snprintf(path, sizeof(path), "/v2/a/blobs/%0*d", 1500, 0);
    assert_int_equal(route_parse(f->ups, NULL, path, NULL, &r, &err), ERR_FORMAT);
}

/* A listener of one upstream takes names as they are; ns= still names another one. */
static void test_listener(void **state)
{
    struct fixture *f = *state;
    struct route r;
    struct err err = ERR_INIT;

    assert_int_equal(route_parse(f->ups, f->ghcr, "/v2/docker.io/a/manifests/1", NULL, &r, &err), 0);
    assert_ptr_equal(r.up, f->ghcr);
    assert_string_equal(r.name, "docker.io/a");
    assert_int_equal(route_parse(f->ups, f->ghcr, "/v2/a/manifests/1", "docker.io", &r, &err), 0);
    assert_ptr_equal(r.up, f->hub);
    assert_string_equal(r.name, "library/a");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_listener),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
