/* SPDX-License-Identifier: Apache-2.0
 * oci/rewrite.c - views of a manifest. The upstream's JSON tree is changed in place and written again, so that unknown
 * keys, annotations and their order survive without being understood. A value that is replaced keeps its key's place;
 * jansson keeps insertion order, and escapes only what JSON demands.
 */
#include "oci/rewrite.h"

#include "oci/manifest_internal.h"

static const char zstd_annotation[] = "io.github.containers.compression.zstd";

const char *oci_view_name(enum oci_view v)
{
    switch (v) {
    case VIEW_ORIGINAL:
        return "original";
    case VIEW_CANONICAL:
        return "canonical";
    case VIEW_ZSTD:
        return "zstd";
    }
    return "?";
}

bool oci_view_parse(const char *text, enum oci_view *out)
{
    static const enum oci_view all[] = {VIEW_ORIGINAL, VIEW_CANONICAL, VIEW_ZSTD};

    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        if (strcmp(text, oci_view_name(all[i])) == 0) {
            *out = all[i];
            return true;
        }
    }
    return false;
}

static int put(json_t *object, const char *key, json_t *value, bool *changed, struct err *err)
{
    if (value == NULL || json_object_set_new(object, key, value) != 0)
        return err_nomem(err, strlen(key));
    *changed = true;
    return 0;
}

static int put_string(json_t *object, const char *key, const char *text, bool *changed, struct err *err)
{
    const char *old = json_string_value(json_object_get(object, key));

    if (old != NULL && strcmp(old, text) == 0)
        return 0;
    return put(object, key, json_string(text), changed, err);
}

static int put_descriptor(json_t *object, const char *media_type, const struct digest *digest, uint64_t size_bytes,
                          bool *changed, struct err *err)
{
    json_t *old_size = json_object_get(object, "size");

    if (size_bytes > INT64_MAX)
        return err_set(err, ERR_BUG, "a layer or manifest larger than JSON can say");
    TRY(put_string(object, "mediaType", media_type, changed, err));
    TRY(put_string(object, "digest", digest_text(digest).s, changed, err));
    if (json_integer_value(old_size) == (json_int_t)size_bytes)
        return 0;
    return put(object, "size", json_integer((json_int_t)size_bytes), changed, err);
}

/* An OCI document may go without mediaType and then keeps doing so; a converted one says what it is now. */
static int put_own_type(json_t *root, enum oci_type from, enum oci_type to, bool *changed, struct err *err)
{
    if (from == to)
        return 0;
    return put_string(root, "mediaType", oci_type_name(to), changed, err);
}

static int load_plain(const char *body, size_t len, const char *content_type, enum oci_view view, json_t **out_root,
                      struct oci_manifest *out, struct err *err)
{
    TRY(oci_manifest_load(body, len, content_type, out_root, out, err));
    if (out->not_plain != NULL)
        return err_set(err, ERR_BUG, "rewriting what is not a plain image: %s", out->not_plain);
    if (view == VIEW_ORIGINAL)
        return err_set(err, ERR_BUG, "the original view is not rewritten");
    return 0;
}

int oci_rewrite_image(const char *body, size_t len, const char *content_type, enum oci_view view,
                      const struct oci_layer_form *forms, size_t form_count, struct buf *out, enum oci_type *out_type,
                      struct err *err)
{
    CLEANUP(oci_manifest_release) struct oci_manifest m = {.type = OCI_TYPE_OTHER};
    CLEANUP(oci_json_free) json_t *root = NULL;
    enum oci_type layer_type = OCI_TYPE_LAYER;
    bool changed = false;
    json_t *layers;

    TRY(load_plain(body, len, content_type, view, &root, &m, err));
    if (m.is_index || form_count != m.layer_count)
        return err_set(err, ERR_BUG, "%zu layer forms for %s", form_count, m.is_index ? "an index" : "other layers");
    *out_type = m.type;
    if (view == VIEW_ZSTD) {
        layer_type = OCI_TYPE_LAYER_ZSTD;
        *out_type = OCI_TYPE_MANIFEST;
        TRY(put_own_type(root, m.type, *out_type, &changed, err));
        TRY(put_string(json_object_get(root, "config"), "mediaType", oci_type_name(OCI_TYPE_CONFIG), &changed, err));
    } else if (m.type == OCI_TYPE_SCHEMA2) {
        layer_type = OCI_TYPE_SCHEMA2_LAYER;
    }
    layers = json_object_get(root, "layers");
    for (size_t i = 0; i < form_count; i++) {
        TRY(put_descriptor(json_array_get(layers, i), oci_type_name(layer_type), &forms[i].digest, forms[i].size_bytes,
                           &changed, err));
    }
    if (!changed)
        return 1;
    return oci_json_dump(root, out, err);
}

static const struct oci_child_form *find_form(const struct oci_child_form *forms, size_t form_count,
                                              const struct digest *from)
{
    for (size_t i = 0; i < form_count; i++) {
        if (digest_equal(&forms[i].from, from))
            return &forms[i];
    }
    return NULL;
}

/* skopeo, podman and cri-o prefer children that say so; without it they would still work. */
static int annotate_zstd(json_t *child, struct err *err)
{
    json_t *annotations = json_object_get(child, "annotations");
    bool changed;

    if (!json_is_object(annotations)) {
        TRY(put(child, "annotations", json_object(), &changed, err));
        annotations = json_object_get(child, "annotations");
    }
    return put_string(annotations, zstd_annotation, "true", &changed, err);
}

static int rewrite_child(json_t *child, const struct oci_child_form *form, enum oci_view view, bool *changed,
                         struct err *err)
{
    bool moved = false;

    if (view == VIEW_ZSTD && form->type != OCI_TYPE_MANIFEST)
        return err_set(err, ERR_BUG, "a child of a zstd index that is not an OCI manifest");
    if (form->type != OCI_TYPE_MANIFEST && form->type != OCI_TYPE_SCHEMA2)
        return err_set(err, ERR_BUG, "a rewritten child that is not an image manifest");
    TRY(put_descriptor(child, oci_type_name(form->type), &form->to, form->size_bytes, &moved, err));
    if (moved && view == VIEW_ZSTD)
        TRY(annotate_zstd(child, err));
    if (moved)
        *changed = true;
    return 0;
}

/* An attestation names the image that it is about by digest; clients look it up by the digest that they see. */
static int follow_reference(json_t *child, const struct oci_child_form *forms, size_t form_count, bool *changed,
                            struct err *err)
{
    static const char key[] = "vnd.docker.reference.digest";
    json_t *annotations = json_object_get(child, "annotations");
    const char *old = json_string_value(json_object_get(annotations, key));
    const struct oci_child_form *form;
    struct err ignored = ERR_INIT;
    struct digest about;

    if (old == NULL || digest_parse(old, strlen(old), &about, &ignored) < 0)
        return 0;
    form = find_form(forms, form_count, &about);
    if (form == NULL)
        return 0;
    return put_string(annotations, key, digest_text(&form->to).s, changed, err);
}

int oci_rewrite_index(const char *body, size_t len, const char *content_type, enum oci_view view,
                      const struct oci_child_form *forms, size_t form_count, struct buf *out, enum oci_type *out_type,
                      struct err *err)
{
    CLEANUP(oci_manifest_release) struct oci_manifest m = {.type = OCI_TYPE_OTHER};
    CLEANUP(oci_json_free) json_t *root = NULL;
    bool changed = false;
    json_t *children;

    TRY(load_plain(body, len, content_type, view, &root, &m, err));
    if (!m.is_index)
        return err_set(err, ERR_BUG, "an image manifest where an index belongs");
    *out_type = m.type;
    children = json_object_get(root, "manifests");
    for (size_t i = 0; i < m.child_count; i++) {
        const struct oci_child_form *form = find_form(forms, form_count, &m.children[i].digest);
        json_t *child = json_array_get(children, i);

        if (form != NULL)
            TRY(rewrite_child(child, form, view, &changed, err));
        TRY(follow_reference(child, forms, form_count, &changed, err));
    }
    if (!changed)
        return 1;
    if (view == VIEW_ZSTD && m.type == OCI_TYPE_SCHEMA2_LIST) {
        *out_type = OCI_TYPE_INDEX;
        TRY(put_own_type(root, m.type, *out_type, &changed, err));
    }
    return oci_json_dump(root, out, err);
}
