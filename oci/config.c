/* SPDX-License-Identifier: Apache-2.0
 * oci/config.c - the one thing that recask reads in an image config: rootfs.diff_ids (image-spec, config.md).
 */
#include "oci/json_internal.h"
#include "oci/oci.h"

int oci_config_diff_ids(const char *body, size_t len, struct digest **out_ids, size_t *out_count, struct err *err)
{
    CLEANUP(oci_json_free) json_t *root = NULL;
    CLEANUP(free_ptr) struct digest *ids = NULL;
    struct oci_json_traits traits;
    json_t *list;
    json_t *v;
    size_t count;
    size_t i;

    *out_ids = NULL;
    *out_count = 0;
    TRY(oci_json_load(body, len, OCI_CONFIG_MAX_BYTES, &root, &traits, err));
    if (traits.duplicate_keys)
        return err_set(err, ERR_FORMAT, "image config with duplicate JSON keys");
    list = json_object_get(json_object_get(root, "rootfs"), "diff_ids");
    if (json_is_null(list)) /* what Go writes for an empty list */
        return 0;
    if (!json_is_array(list))
        return err_set(err, ERR_FORMAT, "image config without rootfs.diff_ids");
    count = json_array_size(list);
    if (count > OCI_LAYERS_MAX)
        return err_set(err, ERR_LIMIT, "image config with %zu diff_ids", count);
    if (count == 0)
        return 0;
    ids = calloc(count, sizeof(*ids));
    if (ids == NULL)
        return err_nomem(err, count * sizeof(*ids));
    json_array_foreach(list, i, v)
    {
        if (!json_is_string(v))
            return err_set(err, ERR_FORMAT, "diff_id %zu is not a string", i);
        if (digest_parse(json_string_value(v), json_string_length(v), &ids[i], err) < 0)
            return err_wrap(err, "diff_id %zu", i);
    }
    *out_ids = steal(&ids);
    *out_count = count;
    return 0;
}
