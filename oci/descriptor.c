/* SPDX-License-Identifier: Apache-2.0
 * oci/descriptor.c - one descriptor (image-spec, descriptor.md): required fields strictly, the rest with a note.
 */
#include "oci/manifest_internal.h"

#include <strings.h>

void oci_note_odd_keys(json_t *object, const char **reason)
{
    static const char *const known[] = {"schemaVersion", "mediaType", "config",  "layers", "manifests",
                                        "subject",       "digest",    "size",    "urls",   "annotations",
                                        "artifactType",  "data",      "platform"};
    const char *key;
    json_t *value;

    json_object_foreach(object, key, value)
    {
        for (size_t i = 0; i < ARRAY_LEN(known); i++) {
            if (strcasecmp(key, known[i]) == 0 && strcmp(key, known[i]) != 0)
                oci_note(reason, "JSON keys in unusual case");
        }
    }
}

int oci_optional_string(json_t *object, const char *key, char **out, const char **reason, struct err *err)
{
    json_t *v = json_object_get(object, key);

    if (v == NULL || json_is_null(v))
        return 0;
    if (!json_is_string(v)) {
        oci_note(reason, "a field of the wrong type");
        return 0;
    }
    if (json_string_length(v) == 0)
        return 0;
    return str_dup(json_string_value(v), out, err);
}

static int read_digest(json_t *object, struct oci_descriptor *out, const char **reason, struct err *err)
{
    json_t *v = json_object_get(object, "digest");
    int rc;

    if (!json_is_string(v))
        return err_set(err, ERR_FORMAT, "descriptor without digest");
    rc = digest_parse(json_string_value(v), json_string_length(v), &out->digest, err);
    if (rc == ERR_UNSUPPORTED) {
        err_clear(err);
        memset(&out->digest, 0, sizeof(out->digest));
        oci_note(reason, "digest algorithm other than sha256");
        return 0;
    }
    return rc;
}

static int read_size(json_t *object, struct oci_descriptor *out, struct err *err)
{
    json_t *v = json_object_get(object, "size");

    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return err_set(err, ERR_FORMAT, "descriptor whose size is not a non-negative integer");
    out->size_bytes = (uint64_t)json_integer_value(v);
    return 0;
}

static int read_media_type(json_t *object, struct oci_descriptor *out, const char **reason, struct err *err)
{
    static const char encrypted[] = "+encrypted";
    size_t len;

    TRY(oci_optional_string(object, "mediaType", &out->media_type, reason, err));
    if (out->media_type == NULL)
        TRY(str_dup("", &out->media_type, err));
    out->type = oci_type_of(out->media_type);
    len = strlen(out->media_type);
    if (len >= sizeof(encrypted) - 1 && strcmp(out->media_type + len - (sizeof(encrypted) - 1), encrypted) == 0)
        out->encrypted = true;
    return 0;
}

static bool starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

/* What annotations say of the blob's bytes. Prefixes, not names: these families grow with each release of their tools,
 * and all of them describe the very bytes that the descriptor names. containerd.io/snapshot/ is eStargz, nydus and
 * overlaybd. */
static void read_byte_bound_annotations(json_t *annotations, struct oci_descriptor *out)
{
    static const char *const toc[] = {"containerd.io/snapshot/", "io.github.containers.zstd-chunked.",
                                      "io.containers.estargz."};
    const char *key;
    json_t *value;

    json_object_foreach(annotations, key, value)
    {
        for (size_t i = 0; i < ARRAY_LEN(toc); i++) {
            if (starts_with(key, toc[i]))
                out->has_toc = true;
        }
        if (starts_with(key, "org.opencontainers.image.enc."))
            out->encrypted = true;
    }
}

static int read_annotations(json_t *object, struct oci_descriptor *out, const char **reason, struct err *err)
{
    json_t *annotations = json_object_get(object, "annotations");
    const char *key;
    const char *kind;
    json_t *value;

    if (annotations == NULL || json_is_null(annotations))
        return 0;
    if (!json_is_object(annotations)) {
        oci_note(reason, "a field of the wrong type");
        return 0;
    }
    json_object_foreach(annotations, key, value)
    {
        if (!json_is_string(value))
            oci_note(reason, "a field of the wrong type");
    }
    read_byte_bound_annotations(annotations, out);
    kind = json_string_value(json_object_get(annotations, "vnd.docker.reference.type"));
    if (kind != NULL && strcmp(kind, "attestation-manifest") == 0)
        TRY(oci_optional_string(annotations, "vnd.docker.reference.digest", &out->attests, reason, err));
    return 0;
}

static int read_platform(json_t *object, struct oci_platform *out, const char **reason, struct err *err)
{
    json_t *platform = json_object_get(object, "platform");

    if (platform == NULL || json_is_null(platform))
        return 0;
    if (!json_is_object(platform)) {
        oci_note(reason, "a field of the wrong type");
        return 0;
    }
    TRY(oci_optional_string(platform, "os", &out->os, reason, err));
    TRY(oci_optional_string(platform, "architecture", &out->arch, reason, err));
    TRY(oci_optional_string(platform, "variant", &out->variant, reason, err));
    return oci_optional_string(platform, "os.version", &out->os_version, reason, err);
}

int oci_descriptor_read(json_t *object, enum oci_role role, struct oci_descriptor *out, const char **reason,
                        struct err *err)
{
    json_t *urls;
    json_t *data;

    if (!json_is_object(object))
        return err_set(err, ERR_FORMAT, "descriptor that is not an object");
    oci_note_odd_keys(object, reason);
    TRY(read_digest(object, out, reason, err));
    TRY(read_size(object, out, err));
    TRY(read_media_type(object, out, reason, err));
    TRY(read_annotations(object, out, reason, err));
    TRY(oci_optional_string(object, "artifactType", &out->artifact_type, reason, err));
    urls = json_object_get(object, "urls");
    if (json_array_size(urls) > 0)
        out->has_urls = true;
    else if (urls != NULL && !json_is_array(urls) && !json_is_null(urls))
        oci_note(reason, "a field of the wrong type");
    /* The config stays as it is, so its bytes may stand here; those of a layer or a child would go stale. */
    data = json_object_get(object, "data");
    if (role != OCI_ROLE_CONFIG && data != NULL && !json_is_null(data))
        oci_note(reason, "a descriptor with embedded data");
    if (role == OCI_ROLE_CHILD)
        TRY(read_platform(object, &out->platform, reason, err));
    return 0;
}

void oci_descriptor_release(struct oci_descriptor *d)
{
    free(d->media_type);
    free(d->platform.os);
    free(d->platform.arch);
    free(d->platform.variant);
    free(d->platform.os_version);
    free(d->artifact_type);
    free(d->attests);
    memset(d, 0, sizeof(*d));
}
