/* SPDX-License-Identifier: Apache-2.0
 * oci/manifest.c - manifests and indexes: what they are, what they list, and whether they may ever be rewritten.
 *
 * M1 A manifest that parses can be cached and served; not_plain only says that it stays as it is.
 * M2 Whatever two readers could understand differently (duplicate keys, keys in another case, layers beside manifests,
 *    numbers that are not integers) is not plain: a rewritten form would have to choose one meaning.
 */
#include "oci/manifest_internal.h"

static bool present(json_t *v)
{
    return v != NULL && !json_is_null(v);
}

static bool is_manifest_type(enum oci_type t)
{
    return t == OCI_TYPE_MANIFEST || t == OCI_TYPE_INDEX || t == OCI_TYPE_SCHEMA2 || t == OCI_TYPE_SCHEMA2_LIST;
}

static int decide_type(json_t *root, const char *content_type, enum oci_type *out, struct err *err)
{
    json_t *version = json_object_get(root, "schemaVersion");
    json_t *media_type = json_object_get(root, "mediaType");

    if (!json_is_integer(version))
        return err_set(err, ERR_FORMAT, "no schemaVersion: not a manifest");
    if (json_integer_value(version) != 2)
        return err_set(err, ERR_UNSUPPORTED, "manifest of schemaVersion %lld", (long long)json_integer_value(version));
    if (!present(media_type) || (json_is_string(media_type) && json_string_length(media_type) == 0)) {
        *out = oci_type_of(content_type);
        if (!is_manifest_type(*out))
            return err_set(err, ERR_FORMAT, "neither mediaType nor Content-Type names a manifest");
        return 0;
    }
    if (!json_is_string(media_type))
        return err_set(err, ERR_FORMAT, "mediaType is not a string");
    *out = oci_type_of(json_string_value(media_type));
    if (!is_manifest_type(*out))
        return err_set(err, ERR_UNSUPPORTED, "mediaType is not that of a known manifest");
    return 0;
}

/* Go writes null for an empty list, so null is one; a key that is missing altogether belongs to another document. */
static int read_list(json_t *root, const char *key, enum oci_role role, size_t max, struct oci_descriptor **out,
                     size_t *out_count, const char **reason, struct err *err)
{
    json_t *list = json_object_get(root, key);
    size_t count = json_array_size(list);
    struct oci_descriptor *items;

    if (!json_is_array(list) && !json_is_null(list))
        return err_set(err, ERR_FORMAT, "manifest without a list of %s", key);
    if (count > max) {
        oci_note(reason, role == OCI_ROLE_LAYER ? "too many layers" : "too many manifests in the index");
        count = max;
    }
    if (count == 0)
        return 0;
    items = calloc(count, sizeof(*items));
    if (items == NULL)
        return err_nomem(err, count * sizeof(*items));
    *out = items;
    *out_count = count;
    for (size_t i = 0; i < count; i++) {
        if (oci_descriptor_read(json_array_get(list, i), role, &items[i], reason, err) < 0)
            return err_wrap(err, "%s[%zu]", key, i);
    }
    return 0;
}

static bool is_plain_layer_type(enum oci_type t)
{
    switch (t) {
    case OCI_TYPE_LAYER:
    case OCI_TYPE_LAYER_GZIP:
    case OCI_TYPE_LAYER_ZSTD:
    case OCI_TYPE_SCHEMA2_LAYER:
    case OCI_TYPE_SCHEMA2_LAYER_GZIP:
    case OCI_TYPE_SCHEMA2_LAYER_ZSTD:
        return true;
    case OCI_TYPE_OTHER:
    case OCI_TYPE_MANIFEST:
    case OCI_TYPE_INDEX:
    case OCI_TYPE_SCHEMA2:
    case OCI_TYPE_SCHEMA2_LIST:
    case OCI_TYPE_CONFIG:
    case OCI_TYPE_SCHEMA2_CONFIG:
    case OCI_TYPE_FOREIGN_LAYER:
        return false;
    }
    return false;
}

static void note_layer(const struct oci_descriptor *layer, const char **reason)
{
    if (layer->encrypted)
        oci_note(reason, "an encrypted layer");
    if (layer->has_urls || layer->type == OCI_TYPE_FOREIGN_LAYER)
        oci_note(reason, "a foreign layer");
    if (layer->has_toc)
        oci_note(reason, "a layer with a table of contents");
    if (!is_plain_layer_type(layer->type))
        oci_note(reason, "a layer that is not a tar");
}

/* SOCI keeps its index of the original gzip bytes in a manifest that this annotation names. */
static bool has_soci(json_t *root)
{
    return present(json_object_get(json_object_get(root, "annotations"), "com.amazon.soci.index-digest"));
}

static int read_image(json_t *root, struct oci_manifest *out, const char **reason, struct err *err)
{
    if (present(json_object_get(root, "manifests")))
        oci_note(reason, "both layers and manifests");
    if (has_soci(root))
        oci_note(reason, "an image with a SOCI index");
    if (oci_descriptor_read(json_object_get(root, "config"), OCI_ROLE_CONFIG, &out->config, reason, err) < 0)
        return err_wrap(err, "config");
    TRY(read_list(root, "layers", OCI_ROLE_LAYER, OCI_LAYERS_MAX, &out->layers, &out->layer_count, reason, err));
    if (out->config.type != OCI_TYPE_CONFIG && out->config.type != OCI_TYPE_SCHEMA2_CONFIG)
        oci_note(reason, "an artifact: its config is not an image config");
    for (size_t i = 0; i < out->layer_count; i++)
        note_layer(&out->layers[i], reason);
    return 0;
}

static int read_index(json_t *root, struct oci_manifest *out, const char **reason, struct err *err)
{
    if (present(json_object_get(root, "layers")) || present(json_object_get(root, "config")))
        oci_note(reason, "both layers and manifests");
    return read_list(root, "manifests", OCI_ROLE_CHILD, OCI_CHILDREN_MAX, &out->children, &out->child_count, reason,
                     err);
}

static int read_manifest(json_t *root, const struct oci_json_traits *traits, const char *content_type,
                         struct oci_manifest *out, struct err *err)
{
    const char *reason = NULL;

    if (traits->duplicate_keys)
        oci_note(&reason, "duplicate JSON keys");
    if (traits->non_integers)
        oci_note(&reason, "non-integer numbers");
    TRY(decide_type(root, content_type, &out->type, err));
    out->is_index = out->type == OCI_TYPE_INDEX || out->type == OCI_TYPE_SCHEMA2_LIST;
    oci_note_odd_keys(root, &reason);
    TRY(oci_optional_string(root, "artifactType", &out->artifact_type, &reason, err));
    out->has_subject = present(json_object_get(root, "subject"));
    if (out->artifact_type != NULL)
        oci_note(&reason, "an artifact: it has an artifactType");
    if (out->has_subject)
        oci_note(&reason, "an artifact: it has a subject");
    if (out->is_index)
        TRY(read_index(root, out, &reason, err));
    else
        TRY(read_image(root, out, &reason, err));
    return str_dup(reason, &out->not_plain, err);
}

int oci_manifest_load(const char *body, size_t len, const char *content_type, json_t **out_root,
                      struct oci_manifest *out, struct err *err)
{
    CLEANUP(oci_manifest_release) struct oci_manifest m = {.type = OCI_TYPE_OTHER};
    CLEANUP(oci_json_free) json_t *root = NULL;
    struct oci_json_traits traits;

    memset(out, 0, sizeof(*out));
    *out_root = NULL;
    TRY(oci_json_load(body, len, OCI_MANIFEST_MAX_BYTES, &root, &traits, err));
    TRY(read_manifest(root, &traits, content_type, &m, err));
    *out = m;
    memset(&m, 0, sizeof(m));
    *out_root = steal(&root);
    return 0;
}

int oci_manifest_parse(const char *body, size_t len, const char *content_type, struct oci_manifest *out,
                       struct err *err)
{
    CLEANUP(oci_json_free) json_t *root = NULL;

    return oci_manifest_load(body, len, content_type, &root, out, err);
}

void oci_manifest_release(struct oci_manifest *m)
{
    oci_descriptor_release(&m->config);
    for (size_t i = 0; i < m->layer_count; i++)
        oci_descriptor_release(&m->layers[i]);
    for (size_t i = 0; i < m->child_count; i++)
        oci_descriptor_release(&m->children[i]);
    free(m->layers);
    free(m->children);
    free(m->artifact_type);
    free(m->not_plain);
    memset(m, 0, sizeof(*m));
}
