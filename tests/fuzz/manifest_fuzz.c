/* links: oci */
/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/manifest_fuzz.c - manifests, indexes, image configs, and rewriting what is plain.
 *
 * Properties: a rewritten manifest parses, is plain, lists as many layers or children, and is its own view.
 * The first byte chooses the Content-Type, so that bodies without mediaType are reached.
 */
#include "oci/rewrite.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const content_types[] = {
    NULL,
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json; charset=utf-8",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "text/html",
};

static void check_output(const struct oci_manifest *m, const struct buf *out, enum oci_type type)
{
    CLEANUP(oci_manifest_release) struct oci_manifest again;
    struct err err = ERR_INIT;

    REQUIRE(oci_manifest_parse(out->data, out->len, oci_type_name(type), &again, &err) == 0);
    REQUIRE(again.not_plain == NULL && again.type == type);
    REQUIRE(again.layer_count == m->layer_count && again.child_count == m->child_count);
    if (!m->is_index)
        REQUIRE(digest_equal(&again.config.digest, &m->config.digest));
}

static void fuzz_image(const struct oci_manifest *m, const char *body, size_t len, const char *content_type,
                       enum oci_view view)
{
    CLEANUP(buf_release) struct buf out = BUF_INIT(64u << 20);
    CLEANUP(buf_release) struct buf again = BUF_INIT(64u << 20);
    CLEANUP(free_ptr) struct oci_layer_form *forms = calloc(m->layer_count + 1, sizeof(*forms));
    struct err err = ERR_INIT;
    enum oci_type type;
    int rc;

    REQUIRE(forms != NULL);
    for (size_t i = 0; i < m->layer_count; i++) {
        forms[i].size_bytes = i;
        digest_of(&i, sizeof(i), &forms[i].digest);
    }
    rc = oci_rewrite_image(body, len, content_type, view, forms, m->layer_count, &out, &type, &err);
    REQUIRE(rc >= 0);
    if (rc == 1)
        return;
    check_output(m, &out, type);
    REQUIRE(oci_rewrite_image(out.data, out.len, oci_type_name(type), view, forms, m->layer_count, &again, &type,
                              &err) == 1);
}

static void fuzz_index(const struct oci_manifest *m, const char *body, size_t len, const char *content_type,
                       enum oci_view view)
{
    CLEANUP(buf_release) struct buf out = BUF_INIT(64u << 20);
    CLEANUP(buf_release) struct buf again = BUF_INIT(64u << 20);
    struct oci_child_form forms[2] = {{.size_bytes = 5}, {.size_bytes = 6}};
    size_t count = m->child_count < 2 ? m->child_count : 2;
    struct err err = ERR_INIT;
    enum oci_type type;
    int rc;

    for (size_t i = 0; i < count; i++) {
        forms[i].type = OCI_TYPE_MANIFEST;
        forms[i].from = m->children[i].digest;
        digest_of(&forms[i].from, sizeof(forms[i].from), &forms[i].to);
    }
    rc = oci_rewrite_index(body, len, content_type, view, forms, count, &out, &type, &err);
    REQUIRE(rc >= 0 && (rc == 1) == (count == 0));
    if (rc == 1)
        return;
    check_output(m, &out, type);
    REQUIRE(oci_rewrite_index(out.data, out.len, oci_type_name(type), view, forms, count, &again, &type, &err) == 1);
}

static void fuzz_config(const char *body, size_t len)
{
    CLEANUP(free_ptr) struct digest *ids = NULL;
    struct err err = ERR_INIT;
    size_t count = 0;
    int rc = oci_config_diff_ids(body, len, &ids, &count, &err);

    REQUIRE(rc == err.code);
    REQUIRE((ids != NULL) == (rc == 0 && count > 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum oci_view views[] = {VIEW_CANONICAL, VIEW_ZSTD};
    CLEANUP(oci_manifest_release) struct oci_manifest m = {.type = OCI_TYPE_OTHER};
    const char *body = (const char *)data + 1;
    const char *content_type;
    struct err err = ERR_INIT;
    int rc;

    if (size == 0)
        return 0;
    content_type = content_types[data[0] % ARRAY_LEN(content_types)];
    fuzz_config(body, size - 1);
    rc = oci_manifest_parse(body, size - 1, content_type, &m, &err);
    REQUIRE(rc == err.code);
    if (rc < 0 || m.not_plain != NULL)
        return 0;
    for (size_t i = 0; i < ARRAY_LEN(views); i++) {
        if (m.is_index)
            fuzz_index(&m, body, size - 1, content_type, views[i]);
        else
            fuzz_image(&m, body, size - 1, content_type, views[i]);
    }
    return 0;
}
