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
    const struct upstream_def others[] = {{.name = "127.0.0.1:5001", .url = "http://127.0.0.1:5001"},
                                          {.name = "127.0.0.1", .url = "http://127.0.0.1"},
                                          {.name = "localhost", .url = "http://localhost"},
                                          {.name = "hub.lan:5000", .url = "http://10.0.0.1:5000"}};
    const struct upstreams_options opt = {.user_agent = "test"};
    struct fixture *f = calloc(1, sizeof(*f));
    struct err err = ERR_INIT;

    if (!f || upstreams_new(&opt, &f->ups, &err) < 0 || upstreams_add(f->ups, &hub, &err) < 0 ||
        upstreams_add(f->ups, &ghcr, &err) < 0)
        return -1;
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        assert_int_equal(upstreams_add(f->ups, &others[i], &err), 0);
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

static int parse(struct fixture *f, const struct upstream *fixed, const char *path, const char *ns, const char *host,
                 struct route *out, struct err *err)
{
    struct route_request req = {.fixed = fixed, .path = path, .ns = ns, .host = host};
    return route_parse(f->ups, &req, out, err);
}

static const struct {
    const char *path, *ns;
    enum route_kind kind;
    const char *upstream, *name, *ref;
    const char *host;
} good[] = {
    {"/v2", NULL, ROUTE_BASE, NULL, "", "", NULL},
    {"/v2/", NULL, ROUTE_BASE, NULL, "", "", NULL},
    {"/v2/alpine/manifests/3.20", NULL, ROUTE_MANIFEST, "docker.io", "library/alpine", "3.20", NULL},
    {"/v2/library/alpine/manifests/3.20", NULL, ROUTE_MANIFEST, "docker.io", "library/alpine", "3.20", NULL},
    {"/v2/docker.io/alpine/manifests/3.20", NULL, ROUTE_MANIFEST, "docker.io", "library/alpine", "3.20", NULL},
    {"/v2/ghcr.io/a/b/blobs/sha256:" HEX, NULL, ROUTE_BLOB, "ghcr.io", "a/b", "sha256:" HEX, NULL},
    {"/v2/ghcr.io/a/blobs/sha256:" HEX, NULL, ROUTE_BLOB, "ghcr.io", "a", "sha256:" HEX, NULL},
    {"/v2/a/b/blobs/sha256%3A" HEX, "ghcr.io", ROUTE_BLOB, "ghcr.io", "a/b", "sha256:" HEX, NULL},
    {"/v2/alpine/blobs/x", "index.docker.io", ROUTE_BLOB, "docker.io", "library/alpine", "x", NULL},
    {"/v2/alpine/tags/list", NULL, ROUTE_TAGS, "docker.io", "library/alpine", "", NULL},
    {"/v2/ghcr.io/a/b/referrers/sha256:" HEX, NULL, ROUTE_REFERRERS, "ghcr.io", "a/b", "sha256:" HEX, NULL},
    /* an upstream's name alone is a repository's: nothing is left to be one */
    {"/v2/ghcr.io/manifests/1", NULL, ROUTE_MANIFEST, "docker.io", "library/ghcr.io", "1", NULL},
    /* words of the API inside names: the last one counts */
    {"/v2/blobs/manifests/manifests/tags", NULL, ROUTE_MANIFEST, "docker.io", "blobs/manifests", "tags", NULL},
    {"/v2/a/manifests/b/blobs/c", NULL, ROUTE_BLOB, "docker.io", "a/manifests/b", "c", NULL},
    {"/v2/a/blobs/tags/list", NULL, ROUTE_TAGS, "docker.io", "a/blobs", "", NULL},
    /* ns= wins over the path: there the name is what it says */
    {"/v2/ghcr.io/a/manifests/1", "docker.io", ROUTE_MANIFEST, "docker.io", "ghcr.io/a", "1", NULL},
    {"/v2/a/b/manifests/1", "", ROUTE_MANIFEST, "docker.io", "a/b", "1", NULL},
    /* host names have no case */
    {"/v2/a/b/manifests/1", "GHCR.io", ROUTE_MANIFEST, "ghcr.io", "a/b", "1", NULL},
    {"/v2/Ghcr.IO/a/b/manifests/1", NULL, ROUTE_MANIFEST, "ghcr.io", "a/b", "1", NULL},
    {"/v2/index.docker.io/alpine/blobs/x", NULL, ROUTE_BLOB, "docker.io", "library/alpine", "x", NULL},
    {"/v2/alpine/referrers/x", NULL, ROUTE_REFERRERS, "docker.io", "library/alpine", "x", NULL},
    /* Host: a name with or without its port, after all else */
    {"/v2/a/manifests/1", NULL, ROUTE_MANIFEST, "ghcr.io", "a", "1", "ghcr.io"},
    {"/v2/a/manifests/1", NULL, ROUTE_MANIFEST, "ghcr.io", "a", "1", "GHCR.IO:5000"},
    {"/v2/a/manifests/1", NULL, ROUTE_MANIFEST, "hub.lan:5000", "a", "1", "hub.lan:5000"},
    {"/v2/a/manifests/1", NULL, ROUTE_MANIFEST, "docker.io", "library/a", "1", "hub.lan:5001"},
    {"/v2/a/manifests/1", NULL, ROUTE_MANIFEST, "docker.io", "library/a", "1", "hub.lan"},
    {"/v2/a/manifests/1", NULL, ROUTE_MANIFEST, "docker.io", "library/a", "1", "registry-1.docker.io:443"},
    {"/v2/a/manifests/1", NULL, ROUTE_MANIFEST, "docker.io", "library/a", "1", "proxy.lan"},
    {"/v2/a/manifests/1", NULL, ROUTE_MANIFEST, "docker.io", "library/a", "1", ""},
    {"/v2/a/manifests/1", NULL, ROUTE_MANIFEST, "docker.io", "library/a", "1", ":5000"},
    {"/v2/a/manifests/1", "docker.io", ROUTE_MANIFEST, "docker.io", "library/a", "1", "ghcr.io"},
    {"/v2/hub.lan:5000/a/manifests/1", NULL, ROUTE_MANIFEST, "hub.lan:5000", "a", "1", "ghcr.io"},
    /* an address is where recask listens */
    {"/v2/a/manifests/1", NULL, ROUTE_MANIFEST, "docker.io", "library/a", "1", "127.0.0.1:5001"},
    {"/v2/a/manifests/1", NULL, ROUTE_MANIFEST, "docker.io", "library/a", "1", "127.0.0.1"},
    {"/v2/a/manifests/1", NULL, ROUTE_MANIFEST, "docker.io", "library/a", "1", "[::1]:5001"},
    {"/v2/a/manifests/1", NULL, ROUTE_MANIFEST, "docker.io", "library/a", "1", "LocalHost:5000"},
};

static void test_good(void **state)
{
    struct fixture *f = *state;

    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        struct route r;
        struct err err = ERR_INIT;
        if (parse(f, NULL, good[i].path, good[i].ns, good[i].host, &r, &err) < 0)
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
    {"/v2/a/b/manifests/1", "ghcr.io:443", ERR_NOTFOUND, "NAME_UNKNOWN"},
    {"/v2/a/b/manifests/1", "https://ghcr.io", ERR_NOTFOUND, "NAME_UNKNOWN"},
    {"/v2/a/b/manifests/1", "ghcr.io/", ERR_NOTFOUND, "NAME_UNKNOWN"},
    {"/v2/a/b/manifests/1", "ghcr.io.", ERR_NOTFOUND, "NAME_UNKNOWN"},
    {"/v2/a/b/manifests/1", " ghcr.io", ERR_NOTFOUND, "NAME_UNKNOWN"},
    {"/v2/a/b/manifests/1", "ghcr.io@evil.example", ERR_NOTFOUND, "NAME_UNKNOWN"},
    {"/v2/ghcr.io/a/manifests/1", "evil.example", ERR_NOTFOUND, "NAME_UNKNOWN"},
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
        int rc = parse(f, NULL, bad[i].path, bad[i].ns, NULL, &r, &err);
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
    assert_int_equal(parse(f, NULL, path, NULL, NULL, &r, &err), 0);
    snprintf(path, sizeof(path), "/v2/%0*d/manifests/1", 248, 0);
    assert_int_equal(parse(f, NULL, path, NULL, NULL, &r, &err), ERR_FORMAT);
    err_clear(&err);
    assert_int_equal(parse(f, f->ghcr, path, NULL, NULL, &r, &err), 0);
    snprintf(path, sizeof(path), "/v2/%0*d/manifests/1", 256, 0);
    assert_int_equal(parse(f, f->ghcr, path, NULL, NULL, &r, &err), ERR_FORMAT);
    err_clear(&err);
    snprintf(path, sizeof(path), "/v2/a/manifests/%0*d", 300, 0);
    assert_int_equal(parse(f, NULL, path, NULL, NULL, &r, &err), ERR_FORMAT);
    assert_string_equal(r.error_code, "MANIFEST_INVALID");
    err_clear(&err);
    snprintf(path, sizeof(path), "/v2/a/blobs/%0*d", 1500, 0);
    assert_int_equal(parse(f, NULL, path, NULL, NULL, &r, &err), ERR_FORMAT);
}

/* A listener of one upstream takes names as they are; ns= still names another one. */
static void test_listener(void **state)
{
    struct fixture *f = *state;
    struct route r;
    struct err err = ERR_INIT;

    assert_int_equal(parse(f, f->ghcr, "/v2/docker.io/a/manifests/1", NULL, NULL, &r, &err), 0);
    assert_ptr_equal(r.up, f->ghcr);
    assert_string_equal(r.name, "docker.io/a");
    assert_int_equal(parse(f, f->ghcr, "/v2/a/manifests/1", "docker.io", NULL, &r, &err), 0);
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
