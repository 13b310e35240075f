/* SPDX-License-Identifier: Apache-2.0
 * oci/referrers.c - the index that lists what refers to a manifest, by artifact type (distribution-spec v1.1, "Listing
 * Referrers").
 */
#include "oci/json_internal.h"
#include "oci/oci.h"

#include <string.h>

static int filter(json_t *index, const char *artifact_type, struct err *err)
{
    const json_t *all = json_object_get(index, "manifests");
    CLEANUP(oci_json_free) json_t *kept = json_array();

    if (kept == NULL)
        return err_nomem(err, 1);
    for (size_t i = 0; i < json_array_size(all); i++) {
        json_t *one = json_array_get(all, i);
        const char *type = json_string_value(json_object_get(one, "artifactType"));

        if (type != NULL && strcmp(type, artifact_type) == 0 && json_array_append(kept, one) != 0)
            return err_nomem(err, 1);
    }
    return json_object_set(index, "manifests", kept) == 0 ? 0 : err_nomem(err, 1);
}

int oci_referrers_filter(const char *body, size_t len, const char *artifact_type, struct buf *out, struct err *err)
{
    CLEANUP(oci_json_free) json_t *index = NULL;
    struct oci_json_traits ignored;

    TRY(oci_json_load(body, len, OCI_MANIFEST_MAX_BYTES, &index, &ignored, err));
    if (!json_is_array(json_object_get(index, "manifests")))
        return err_set(err, ERR_FORMAT, "an index without \"manifests\"");
    if (artifact_type == NULL)
        return buf_add(out, body, len, err);
    TRY(filter(index, artifact_type, err));
    return oci_json_dump(index, out, err);
}
