/* SPDX-License-Identifier: Apache-2.0
 *
 * The rewritten manifests: what the catalog knows of the layers, put through the pure functions of oci/rewrite.h, and
 * published. Nothing here waits for anything; image.c sees to it that everything is known.
 */
#include "proxy/jobs_internal.h"

static const enum oci_view made_views[] = {VIEW_CANONICAL, VIEW_ZSTD};

/* ---- images --------------------------------------------------------------------------------------------------------- */

static int read_config(struct store *st, const struct digest *d, struct buf *out, struct err *err)
{
    CLEANUP(source_cleanup) struct source *s = NULL;
    struct store_blob blob;
    char block[16384];

    /* One that was fetched before any manifest named it may have been made canonical like a layer. */
    TRY(store_blob_lookup(st, d, &blob, err));
    if (blob.present && blob.role == ROLE_CANONICAL)
        TRY(layer_open(st, d, LAYER_IDENTITY, 0, UINT64_MAX, &s, err));
    else
        TRY(original_open(st, d, 0, UINT64_MAX, &s, err));
    for (;;) {
        size_t got = 0;
        int rc = source_read(s, block, sizeof(block), &got, err);
        if (rc < 0)
            return rc;
        TRY(buf_add(out, block, got, err));
        if (rc == STEP_EOF)
            return 0;
    }
}

/* The config may lie: an image is rewritten only when each layer's bytes hash to what its config says. */
static int check_diff_ids(struct store *st, const struct oci_manifest *m, const struct store_blob *layers,
                          struct err *err)
{
    CLEANUP(buf_release) struct buf config = BUF_INIT(OCI_CONFIG_MAX_BYTES);
    CLEANUP(free_ptr) struct digest *ids = NULL;
    struct err inner = ERR_INIT;
    size_t count = 0;

    TRY(read_config(st, &m->config.digest, &config, err));
    if (oci_config_diff_ids(config.data ? config.data : "", config.len, &ids, &count, &inner) < 0)
        return err_set(err, ERR_FORMAT, "its config cannot be read: %s", inner.msg);
    if (count != m->layer_count)
        return err_set(err, ERR_FORMAT, "its config names %zu layers, its manifest %zu", count, m->layer_count);
    for (size_t i = 0; i < count; i++) {
        if (!digest_equal(&ids[i], &layers[i].canonical))
            return err_set(err, ERR_FORMAT, "layer %zu is %s uncompressed, its config says %s", i + 1,
                           digest_text(&layers[i].canonical).s, digest_text(&ids[i]).s);
    }
    return 0;
}

static int publish_image(struct store *st, const struct store_manifest *m, enum oci_view view,
                         const struct store_blob *layers, size_t count, struct err *err)
{
    CLEANUP(buf_release) struct buf body = BUF_INIT(OCI_MANIFEST_MAX_BYTES);
    CLEANUP(free_ptr) struct oci_layer_form *forms = calloc(count ? count : 1, sizeof(*forms));
    struct digest ignored;
    enum oci_type type;

    if (!forms)
        return err_nomem(err, count * sizeof(*forms));
    for (size_t i = 0; i < count; i++) {
        forms[i].digest = view == VIEW_CANONICAL ? layers[i].canonical : layers[i].zstd;
        forms[i].size_bytes = view == VIEW_CANONICAL ? layers[i].canonical_bytes : layers[i].zstd_bytes;
    }
    int rc = oci_rewrite_image(m->body, m->len, m->media_type, view, forms, count, &body, &type, err);
    if (rc < 0)
        return rc;
    if (rc > 0)
        return store_view_put_same(st, &m->digest, view, err);
    return store_view_put(st, &m->digest, view, oci_type_name(type), body.data, body.len, &ignored, err);
}

int views_make_image(struct store *st, const struct store_manifest *m, struct err *err)
{
    CLEANUP(oci_manifest_release) struct oci_manifest parsed = {.type = OCI_TYPE_OTHER};
    CLEANUP(free_ptr) struct store_blob *layers = NULL;

    TRY(oci_manifest_parse(m->body, m->len, m->media_type, &parsed, err));
    if (parsed.not_plain)
        return err_set(err, ERR_FORMAT, "%s", parsed.not_plain);
    layers = calloc(parsed.layer_count ? parsed.layer_count : 1, sizeof(*layers));
    if (!layers)
        return err_nomem(err, parsed.layer_count * sizeof(*layers));
    for (size_t i = 0; i < parsed.layer_count; i++) {
        TRY(store_blob_lookup(st, &parsed.layers[i].digest, &layers[i], err));
        if (!layers[i].has_canonical)
            return err_set(err, ERR_BUSY, "layer %zu is not canonical", i + 1);
    }
    TRY(check_diff_ids(st, &parsed, layers, err));
    for (size_t v = 0; v < ARRAY_LEN(made_views); v++)
        TRY(publish_image(st, m, made_views[v], layers, parsed.layer_count, err));
    return 0;
}

/* ---- indexes -------------------------------------------------------------------------------------------------------- */

/* The rewritten form of one child, when it has one that differs. Returns STEP_MORE when *out was filled. */
static int child_form(struct store *st, const struct digest *child, enum oci_view view, struct oci_child_form *out,
                      struct err *err)
{
    CLEANUP(store_manifest_release) struct store_manifest derived = {.len = 0};
    struct digest d;
    struct err miss = ERR_INIT;

    int rc = store_view_get(st, child, view, &d, &miss);
    if (rc == ERR_NOTFOUND || (rc == 0 && digest_equal(&d, child)))
        return STEP_DONE;
    if (rc < 0) {
        *err = miss;
        return rc;
    }
    TRY(store_manifest_get(st, &d, &derived, err));
    *out = (struct oci_child_form){
        .from = *child, .to = d, .size_bytes = derived.len, .type = oci_type_of(derived.media_type)};
    return STEP_MORE;
}

static int publish_index(struct store *st, const struct store_manifest *m, const struct oci_manifest *parsed,
                         enum oci_view view, struct err *err)
{
    CLEANUP(buf_release) struct buf body = BUF_INIT(OCI_MANIFEST_MAX_BYTES);
    CLEANUP(free_ptr) struct oci_child_form *forms = calloc(parsed->child_count + 1, sizeof(*forms));
    struct digest ignored;
    enum oci_type type;
    size_t count = 0;

    if (!forms)
        return err_nomem(err, (parsed->child_count + 1) * sizeof(*forms));
    for (size_t i = 0; i < parsed->child_count; i++) {
        int rc = child_form(st, &parsed->children[i].digest, view, &forms[count], err);
        if (rc < 0)
            return rc;
        count += rc == STEP_MORE;
    }
    int rc = oci_rewrite_index(m->body, m->len, m->media_type, view, forms, count, &body, &type, err);
    if (rc < 0)
        return rc;
    if (rc > 0)
        return store_view_put_same(st, &m->digest, view, err);
    return store_view_put(st, &m->digest, view, oci_type_name(type), body.data, body.len, &ignored, err);
}

int views_make_index(struct store *st, const struct digest *index, struct err *err)
{
    CLEANUP(store_manifest_release) struct store_manifest m = {.len = 0};
    CLEANUP(oci_manifest_release) struct oci_manifest parsed = {.type = OCI_TYPE_OTHER};

    TRY(store_manifest_get(st, index, &m, err));
    TRY(oci_manifest_parse(m.body, m.len, m.media_type, &parsed, err));
    if (parsed.not_plain)
        return 0;
    for (size_t v = 0; v < ARRAY_LEN(made_views); v++)
        TRY(publish_index(st, &m, &parsed, made_views[v], err));
    return store_manifest_set_views(st, index, VIEWS_READY, NULL, err);
}
