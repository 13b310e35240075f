/* SPDX-License-Identifier: Apache-2.0
 * oci/client.c: a line per row of its table, and what must not match a row.
 */
#include "oci/client.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct expectation {
    const char *user_agent;
    const char *name;
    unsigned major, minor, patch;
    bool canonical, zstd, reads_zstd;
    enum oci_view lan, wan;
};

#define O VIEW_ORIGINAL
#define C VIEW_CANONICAL
#define Z VIEW_ZSTD
#define CLASSIC                                                                                                        \
    " go/go1.22 git-commit/4debf41 kernel/6.1.0 os/linux arch/amd64 UpstreamClient(Docker-Client/x \\(linux\\))"
#define C8D                                                                                                            \
    " go/go1.24 git-commit/1 kernel/6.1 os/linux arch/amd64 containerd-client/2.1.5+unknown "                          \
    "storage-driver/overlayfs UpstreamClient(Docker-Client/28.5.2 \\(linux\\))"

static const struct expectation rows[] = {
    {"docker/28.5.2" C8D, "docker-containerd", 28, 5, 2, true, true, true, Z, Z},
    {"docker/29.0.0-rc.1" C8D, "docker-containerd", 29, 0, 0, true, true, true, Z, Z},
    {"docker/25.0.0" C8D, "docker-containerd", 25, 0, 0, true, true, true, Z, Z},
    {"docker/24.0.9" C8D, "docker", 24, 0, 9, true, true, true, Z, Z},
    {"docker/28.5.2" CLASSIC, "docker", 28, 5, 2, true, true, true, Z, Z},
    {"docker/23.0.0" CLASSIC, "docker", 23, 0, 0, true, true, true, Z, Z},
    {"docker/22.99.1" CLASSIC, "docker", 22, 99, 1, true, false, false, C, C},
    {"docker/20.10.24+dfsg1" CLASSIC, "docker", 20, 10, 24, true, false, false, C, C},
    {"docker/1.13.1" CLASSIC, "docker", 1, 13, 1, true, false, false, C, C},
    {"docker/1.10.0" CLASSIC, "docker", 1, 10, 0, true, false, false, C, C},
    {"docker/28.5.2 go/x containerd-client/2.1.5", "docker-containerd", 28, 5, 2, true, true, true, Z, Z},
    {"docker/28.5.2 x-containerd-client/1 containerd-client/2", "docker-containerd", 28, 5, 2, true, true, true, Z, Z},
    {"docker/28.5.2 x-containerd-client/2.1.5", "docker", 28, 5, 2, true, true, true, Z, Z},
    {"docker/28.5.2 UpstreamClient(x containerd-client/2.1.5)", "docker", 28, 5, 2, true, true, true, Z, Z},
    {"docker/20.10.24 containerd-client/2.1.5", "docker", 20, 10, 24, true, false, false, C, C},
    {"containerd-client/2.1.5 storage-driver/overlayfs", "unknown", 2, 1, 5, false, false, true, O, O},
    {"containerd/v2.1.4", "containerd", 2, 1, 4, true, true, true, Z, Z},
    {"containerd/2.1.4+unknown", "containerd", 2, 1, 4, true, true, true, Z, Z},
    {"containerd/1.6.20~ds1", "containerd", 1, 6, 20, true, true, true, Z, Z},
    {"containerd/v1.5.0-beta.4", "containerd", 1, 5, 0, true, true, true, Z, Z},
    {"containerd/v1.4.13", "containerd", 1, 4, 13, true, false, false, C, C},
    {"containerd/1.0.0+unknown", "containerd", 1, 0, 0, true, false, false, C, C},
    {"containers/5.36.1 (github.com/containers/image)", "podman", 5, 36, 1, true, true, true, Z, Z},
    {"containers/5.0.0 (github.com/containers/image)", "podman", 5, 0, 0, true, true, true, Z, Z},
    {"cri-o/1.36.3 go/go1.24 os/linux arch/amd64", "cri-o", 1, 36, 3, true, true, true, Z, Z},
    {"cri-o/1.17.0 go/go1.13 os/linux arch/amd64", "cri-o", 1, 17, 0, true, true, true, Z, Z},
    {"skopeo/1.9.3", "skopeo", 1, 9, 3, true, true, true, O, O},
    {"Buildah/1.28.2", "buildah", 1, 28, 2, true, true, true, O, O},
    {"buildkit/v0.32", "buildkit", 0, 32, 0, true, true, true, O, O},
    {"buildkit/v0.10", "buildkit", 0, 10, 0, true, true, true, O, O},
    {"buildkit/v0.9", "buildkit", 0, 9, 0, true, false, false, O, O},
    {"crane/v0.20 go-containerregistry/v0.20", "crane", 0, 20, 0, true, true, true, O, O},
    {"go-containerregistry/v0.20.2", "go-containerregistry", 0, 20, 2, true, true, true, O, O},
    {"regclient/regctl (v0.11.5)", "regclient", 0, 0, 0, true, true, true, O, O},
    {"oras/1.3.3", "oras", 1, 3, 3, true, true, true, O, O},
    {"oras-go", "oras", 0, 0, 0, true, true, true, O, O},
    {"cosign/v3.1.2 (linux; amd64) go-containerregistry/v0.20.3", "cosign", 3, 1, 2, false, false, true, O, O},
    {"soci-snapshotter/0.11.0", "soci-snapshotter", 0, 11, 0, false, false, true, O, O},
    {"Helm/3.18.0", "helm", 3, 18, 0, false, false, true, O, O},
    {"kitops-cli/1.7.0", "kitops", 1, 7, 0, false, false, true, O, O},
    {"ollama/0.3.1 (amd64 linux) Go/go1.22", "ollama", 0, 3, 1, false, false, true, O, O},
    {"model-distribution", "model-distribution", 0, 0, 0, false, false, true, O, O},
    {"model-distribution go-containerregistry/v0.20", "model-distribution", 0, 0, 0, false, false, true, O, O},
    {"Go-http-client/1.1", "go-http-client", 1, 1, 0, false, false, true, O, O},

    /* builds from source have no version; for these rows it does not matter */
    {"crane/(devel) go-containerregistry/(devel)", "crane", 0, 0, 0, true, true, true, O, O},
    {"go-containerregistry", "go-containerregistry", 0, 0, 0, true, true, true, O, O},
    {"skopeo/dev", "skopeo", 0, 0, 0, true, true, true, O, O},
    {"Buildah/dev", "buildah", 0, 0, 0, true, true, true, O, O},
    {"buildkit/dev", "buildkit", 0, 0, 0, true, false, false, O, O},
    {"oras/0.0.0", "oras", 0, 0, 0, true, true, true, O, O},
    {"cosign/devel", "cosign", 0, 0, 0, false, false, true, O, O},
    {"soci-snapshotter/x", "soci-snapshotter", 0, 0, 0, false, false, true, O, O},
    {"Helm/canary", "helm", 0, 0, 0, false, false, true, O, O},
    {"kitops-cli/next", "kitops", 0, 0, 0, false, false, true, O, O},
    {"ollama/0.0.0", "ollama", 0, 0, 0, false, false, true, O, O},
    {"Go-http-client", "go-http-client", 0, 0, 0, false, false, true, O, O},

    /* not what they look like */
    {"", "unknown", 0, 0, 0, false, false, true, O, O},
    {"curl/7.88.1", "unknown", 7, 88, 1, false, false, true, O, O},
    {"docker/dev" CLASSIC, "unknown", 0, 0, 0, false, false, true, O, O},
    {"docker/0.0.0-20250101" C8D, "unknown", 0, 0, 0, false, false, true, O, O},
    {"docker/1.9.1" CLASSIC, "unknown", 1, 9, 1, false, false, true, O, O},
    {"docker", "unknown", 0, 0, 0, false, false, true, O, O},
    {"docker/", "unknown", 0, 0, 0, false, false, true, O, O},
    {"docker 28.5.2", "unknown", 0, 0, 0, false, false, true, O, O},
    {"Docker/28.5.2", "unknown", 28, 5, 2, false, false, true, O, O},
    {"docker-compose/28.5.2", "unknown", 28, 5, 2, false, false, true, O, O},
    {"containerd-shim/2.0.0", "unknown", 2, 0, 0, false, false, true, O, O},
    {"containerd/0.2.9", "unknown", 0, 2, 9, false, false, true, O, O},
    {"container/2.0.0", "unknown", 2, 0, 0, false, false, true, O, O},
    {"containers/4.9.0 (github.com/containers/image)", "unknown", 4, 9, 0, false, false, true, O, O},
    {"cri-o/1.16.6", "unknown", 1, 16, 6, false, false, true, O, O},
    {"mytool/1.0 containerd/v2.1.4", "unknown", 1, 0, 0, false, false, true, O, O},
    {"(docker/28.5.2)", "unknown", 0, 0, 0, false, false, true, O, O},
    {" docker/28.5.2", "unknown", 0, 0, 0, false, false, true, O, O},
    {"/28.5.2", "unknown", 28, 5, 2, false, false, true, O, O},
    {"docker/.28", "unknown", 0, 0, 0, false, false, true, O, O},
    {"docker/-1.5", "unknown", 0, 0, 0, false, false, true, O, O},
    {"docker/vv28.5", "unknown", 0, 0, 0, false, false, true, O, O},
    {"containerd/2", "containerd", 2, 0, 0, true, true, true, Z, Z},
    {"containerd/1.", "containerd", 1, 0, 0, true, false, false, C, C},
    {"containerd/99999999999999999999.4294967296.3", "containerd", 1000000, 1000000, 3, true, true, true, Z, Z},
};

static void test_rows(void **state UNUSED)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct expectation *want = &rows[i];
        struct oci_client got;

        oci_client_identify(want->user_agent, &got);
        if (strcmp(got.name, want->name) != 0 || got.major != want->major || got.minor != want->minor ||
            got.patch != want->patch || got.takes_canonical != want->canonical || got.takes_zstd != want->zstd ||
            got.reads_zstd_original != want->reads_zstd || got.best_lan != want->lan || got.best_wan != want->wan)
            fail_msg("%s: got %s %u.%u.%u %d%d%d %s %s", want->user_agent, got.name, got.major, got.minor, got.patch,
                     got.takes_canonical, got.takes_zstd, got.reads_zstd_original, oci_view_name(got.best_lan),
                     oci_view_name(got.best_wan));
    }
}

static void test_null(void **state UNUSED)
{
    struct oci_client got;

    oci_client_identify(NULL, &got);
    assert_string_equal(got.name, "unknown");
    assert_false(got.takes_canonical);
    assert_true(got.reads_zstd_original);
}

/* Whatever the table says, it may not contradict itself. */
static void test_rows_are_consistent(void **state UNUSED)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        static const enum oci_link links[] = {LINK_LAN, LINK_WAN};
        struct oci_client c;

        oci_client_identify(rows[i].user_agent, &c);
        for (size_t k = 0; k < ARRAY_LEN(links); k++) {
            enum oci_view v = oci_choose_view(&c, false, VIEW_ZSTD, links[k], true);

            assert_true(v == VIEW_ORIGINAL || c.takes_canonical);
            assert_true(v != VIEW_ZSTD || (c.takes_zstd && c.reads_zstd_original));
            assert_true(!c.takes_zstd || c.takes_canonical);
        }
    }
}

static enum oci_view choose(const char *user_agent, bool set, enum oci_view wanted, bool accepts_oci)
{
    struct oci_client c;

    oci_client_identify(user_agent, &c);
    assert_int_equal(oci_choose_view(&c, set, wanted, LINK_LAN, accepts_oci),
                     oci_choose_view(&c, set, wanted, LINK_WAN, accepts_oci));
    return oci_choose_view(&c, set, wanted, LINK_LAN, accepts_oci);
}

static void test_auto(void **state UNUSED)
{
    /* `wanted` means nothing then */
    for (int wanted = VIEW_ORIGINAL; wanted <= VIEW_ZSTD; wanted++) {
        assert_int_equal(choose("containerd/v2.1.4", false, (enum oci_view)wanted, true), VIEW_ZSTD);
        assert_int_equal(choose("containerd/v2.1.4", false, (enum oci_view)wanted, false), VIEW_CANONICAL);
        assert_int_equal(choose("docker/20.10.24", false, (enum oci_view)wanted, true), VIEW_CANONICAL);
        assert_int_equal(choose("docker/20.10.24", false, (enum oci_view)wanted, false), VIEW_CANONICAL);
        assert_int_equal(choose("skopeo/1.9.3", false, (enum oci_view)wanted, true), VIEW_ORIGINAL);
        assert_int_equal(choose("curl/8", false, (enum oci_view)wanted, false), VIEW_ORIGINAL);
        assert_int_equal(choose("cosign/v3.1", false, (enum oci_view)wanted, true), VIEW_ORIGINAL);
    }
}

static void test_wishes(void **state UNUSED)
{
    static const char *const any[] = {"containerd/v2.1.4", "skopeo/1.9.3", "curl/8", "cosign/v3.1", ""};

    for (size_t i = 0; i < ARRAY_LEN(any); i++) {
        assert_int_equal(choose(any[i], true, VIEW_ORIGINAL, true), VIEW_ORIGINAL);
        assert_int_equal(choose(any[i], true, VIEW_CANONICAL, true), VIEW_CANONICAL);
        assert_int_equal(choose(any[i], true, VIEW_CANONICAL, false), VIEW_CANONICAL);
        assert_int_equal(choose(any[i], true, VIEW_ZSTD, true), VIEW_ZSTD);
        assert_int_equal(choose(any[i], true, VIEW_ZSTD, false), VIEW_CANONICAL);
    }
    assert_int_equal(choose("docker/20.10.24", true, VIEW_ZSTD, true), VIEW_CANONICAL);
    assert_int_equal(choose("containerd/v1.4.13", true, VIEW_ZSTD, true), VIEW_CANONICAL);
    assert_int_equal(choose("buildkit/v0.9", true, VIEW_ZSTD, true), VIEW_CANONICAL);
    assert_int_equal(choose("docker/20.10.24", true, VIEW_ORIGINAL, true), VIEW_ORIGINAL);
}

/* lan and wan read their own column. */
static void test_links(void **state UNUSED)
{
    static const struct oci_client c = {.name = "x",
                                        .takes_canonical = true,
                                        .takes_zstd = true,
                                        .reads_zstd_original = true,
                                        .best_lan = VIEW_CANONICAL,
                                        .best_wan = VIEW_ZSTD};

    assert_int_equal(oci_choose_view(&c, false, VIEW_ORIGINAL, LINK_LAN, true), VIEW_CANONICAL);
    assert_int_equal(oci_choose_view(&c, false, VIEW_ORIGINAL, LINK_WAN, true), VIEW_ZSTD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows), cmocka_unit_test(test_null),   cmocka_unit_test(test_rows_are_consistent),
        cmocka_unit_test(test_auto), cmocka_unit_test(test_wishes), cmocka_unit_test(test_links),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
