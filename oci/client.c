/* SPDX-License-Identifier: Apache-2.0
 * oci/client.c - the table of clients. Rows say what real pulls and the clients' sources have shown (ARCHITECTURE.md);
 * tests/unit/oci_client_test.c has a line for each. The first product of the User-Agent names the client: later tokens
 * are libraries, kernels and whatever the user's own command line put there.
 */
#include "oci/client.h"

struct client_row {
    const char *product; /* of the first token, exactly; NULL: anybody */
    const char *token;   /* another token that must stand before the first "(", or NULL */
    unsigned min_major, min_minor;
    struct oci_client client;
};

/* What a row says after its name: takes_canonical, takes_zstd, reads_zstd_original, best_lan, best_wan. */
#define BEST_ZSTD 0, 0, 0, true, true, true, VIEW_ZSTD, VIEW_ZSTD
#define BEST_CANONICAL 0, 0, 0, true, false, false, VIEW_CANONICAL, VIEW_CANONICAL
#define COPIES 0, 0, 0, true, true, true, VIEW_ORIGINAL, VIEW_ORIGINAL /* takes any, keeps digests unless asked */
#define COPIES_NO_ZSTD 0, 0, 0, true, false, false, VIEW_ORIGINAL, VIEW_ORIGINAL
#define ORIGINAL_ONLY 0, 0, 0, false, false, true, VIEW_ORIGINAL, VIEW_ORIGINAL

/* First match wins, so newer versions stand above older ones. A minimum of 0.0 admits versions that cannot be read. */
static const struct client_row client_rows[] = {
    /* The containerd store decodes zstd on the wire since 28, the classic one reads zstd layers since 23. */
    {"docker", "containerd-client/", 25, 0, {"docker-containerd", BEST_ZSTD}},
    {"docker", NULL, 23, 0, {"docker", BEST_ZSTD}},
    {"docker", NULL, 1, 10, {"docker", BEST_CANONICAL}},
    {"containerd", NULL, 1, 5, {"containerd", BEST_ZSTD}},
    {"containerd", NULL, 1, 0, {"containerd", BEST_CANONICAL}},
    /* containers/image itself, which is how podman introduces itself */
    {"containers", NULL, 5, 0, {"podman", BEST_ZSTD}},
    {"cri-o", NULL, 1, 17, {"cri-o", BEST_ZSTD}},
    /* Tools that copy images, or that write the digests they saw into what they build. */
    {"skopeo", NULL, 0, 0, {"skopeo", COPIES}},
    {"Buildah", NULL, 0, 0, {"buildah", COPIES}},
    {"buildkit", NULL, 0, 10, {"buildkit", COPIES}},
    {"buildkit", NULL, 0, 0, {"buildkit", COPIES_NO_ZSTD}},
    {"crane", NULL, 0, 0, {"crane", COPIES}},
    {"go-containerregistry", NULL, 0, 0, {"go-containerregistry", COPIES}},
    {"regclient", NULL, 0, 0, {"regclient", COPIES}},
    {"oras", NULL, 0, 0, {"oras", COPIES}},
    {"oras-go", NULL, 0, 0, {"oras", COPIES}},
    /* Artifacts, signatures and indexes over the original bytes. */
    {"cosign", NULL, 0, 0, {"cosign", ORIGINAL_ONLY}},
    {"soci-snapshotter", NULL, 0, 0, {"soci-snapshotter", ORIGINAL_ONLY}},
    {"Helm", NULL, 0, 0, {"helm", ORIGINAL_ONLY}},
    {"kitops-cli", NULL, 0, 0, {"kitops", ORIGINAL_ONLY}},
    {"ollama", NULL, 0, 0, {"ollama", ORIGINAL_ONLY}},
    {"model-distribution", NULL, 0, 0, {"model-distribution", ORIGINAL_ONLY}},
    {"Go-http-client", NULL, 0, 0, {"go-http-client", ORIGINAL_ONLY}},
    {NULL, NULL, 0, 0, {"unknown", ORIGINAL_ONLY}},
};

#define VERSION_PART_MAX 1000000u

/* One decimal number at *p; larger ones saturate. False when no digit stands there. */
static bool read_number(const char **p, unsigned *out)
{
    unsigned n = 0;

    if (**p < '0' || **p > '9')
        return false;
    for (; **p >= '0' && **p <= '9'; (*p)++) {
        n = n * 10 + (unsigned)(**p - '0');
        if (n > VERSION_PART_MAX)
            n = VERSION_PART_MAX;
    }
    *out = n;
    return true;
}

/* "v2.1.4", "1.6.20~ds1", "20.10.24+dfsg1", "0.32": what cannot be read stays 0. */
static void read_version(const char *p, struct oci_client *out)
{
    if (*p == 'v')
        p++;
    if (!read_number(&p, &out->major) || *p++ != '.')
        return;
    if (!read_number(&p, &out->minor) || *p++ != '.')
        return;
    (void)read_number(&p, &out->patch);
}

/* Comments, in parentheses, repeat what others sent (moby's UpstreamClient): nothing in them counts. */
static bool has_token(const char *user_agent, const char *token)
{
    size_t plain_len = strcspn(user_agent, "(");
    const char *at = strstr(user_agent, token);

    while (at != NULL && (at == user_agent || at[-1] != ' '))
        at = strstr(at + 1, token);
    return at != NULL && (size_t)(at - user_agent) < plain_len;
}

static bool row_matches(const struct client_row *row, const char *user_agent, size_t product_len,
                        const struct oci_client *version)
{
    if (row->product == NULL)
        return true;
    if (strlen(row->product) != product_len || memcmp(row->product, user_agent, product_len) != 0)
        return false;
    if (row->token != NULL && !has_token(user_agent, row->token))
        return false;
    if (version->major != row->min_major)
        return version->major > row->min_major;
    return version->minor >= row->min_minor;
}

void oci_client_identify(const char *user_agent, struct oci_client *out)
{
    struct oci_client version = {.major = 0};
    size_t product_len;
    size_t i = 0;

    if (user_agent == NULL)
        user_agent = "";
    product_len = strcspn(user_agent, "/ \t(");
    if (user_agent[product_len] == '/')
        read_version(user_agent + product_len + 1, &version);
    while (i + 1 < ARRAY_LEN(client_rows) && !row_matches(&client_rows[i], user_agent, product_len, &version))
        i++;
    *out = client_rows[i].client;
    out->major = version.major;
    out->minor = version.minor;
    out->patch = version.patch;
}

enum oci_view oci_choose_view(const struct oci_client *client, bool wanted_set, enum oci_view wanted,
                              enum oci_link link, bool accepts_oci)
{
    enum oci_view view = wanted;

    if (!wanted_set)
        view = link == LINK_WAN ? client->best_wan : client->best_lan;
    /* Only a client that is known to fail on zstd is kept from it against a wish; takes_zstd alone may mean that
     * nobody has tried. */
    if (view == VIEW_ZSTD && (!client->reads_zstd_original || !accepts_oci))
        return VIEW_CANONICAL;
    return view;
}
