/* SPDX-License-Identifier: Apache-2.0
 * oci/manifest_internal.h - reading manifests from a JSON tree, for parsing (manifest.c) and rewriting (rewrite.c).
 */
#pragma once

#include "oci/json_internal.h"
#include "oci/oci.h"

/* The first reason why a manifest is not a plain image; a static string, later ones are dropped. */
static inline void oci_note(const char **reason, const char *why)
{
    if (*reason == NULL)
        *reason = why;
}

enum oci_role { OCI_ROLE_CONFIG = 0, OCI_ROLE_LAYER, OCI_ROLE_CHILD };

/* Notes a key that a reader of Go's kind, which ignores case, would take for one of the spec's. */
void oci_note_odd_keys(json_t *object, const char **reason);

/* A string or absent (NULL, JSON null, ""); anything else is noted. *out is malloc'd. */
MUST_CHECK int oci_optional_string(json_t *object, const char *key, char **out, const char **reason, struct err *err);

/* Fills *out, which must be zeroed; on error it may be filled in part and is released all the same. ERR_FORMAT where a
 * required field is missing or wrong; what is wrong with optional ones is noted, since nothing here needs them and
 * the manifest can still be cached as it is. */
MUST_CHECK int oci_descriptor_read(json_t *object, enum oci_role role, struct oci_descriptor *out, const char **reason,
                                   struct err *err);
void oci_descriptor_release(struct oci_descriptor *d);

/* oci_manifest_parse() that leaves the tree to the caller as well. */
MUST_CHECK int oci_manifest_load(const char *body, size_t len, const char *content_type, json_t **out_root,
                                 struct oci_manifest *out, struct err *err);
