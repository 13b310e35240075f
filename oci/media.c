/* SPDX-License-Identifier: Apache-2.0
 * oci/media.c - media types: one table, both ways.
 */
#include "oci/oci.h"

#include <strings.h>

#define OCI_IMAGE "application/vnd.oci.image."
#define DOCKER_DISTRIBUTION "application/vnd.docker.distribution."
#define DOCKER_ROOTFS "application/vnd.docker.image.rootfs."

struct media_row {
    const char *name;
    enum oci_type type;
};

/* The first row of a type is the name that is written. */
static const struct media_row media_rows[] = {
    {OCI_IMAGE "manifest.v1+json", OCI_TYPE_MANIFEST},
    {OCI_IMAGE "index.v1+json", OCI_TYPE_INDEX},
    {DOCKER_DISTRIBUTION "manifest.v2+json", OCI_TYPE_SCHEMA2},
    {DOCKER_DISTRIBUTION "manifest.list.v2+json", OCI_TYPE_SCHEMA2_LIST},
    {OCI_IMAGE "config.v1+json", OCI_TYPE_CONFIG},
    {"application/vnd.docker.container.image.v1+json", OCI_TYPE_SCHEMA2_CONFIG},
    {OCI_IMAGE "layer.v1.tar", OCI_TYPE_LAYER},
    {OCI_IMAGE "layer.v1.tar+gzip", OCI_TYPE_LAYER_GZIP},
    {OCI_IMAGE "layer.v1.tar+zstd", OCI_TYPE_LAYER_ZSTD},
    {DOCKER_ROOTFS "diff.tar", OCI_TYPE_SCHEMA2_LAYER},
    {DOCKER_ROOTFS "diff.tar.gzip", OCI_TYPE_SCHEMA2_LAYER_GZIP},
    {DOCKER_ROOTFS "diff.tar.zstd", OCI_TYPE_SCHEMA2_LAYER_ZSTD},
    {DOCKER_ROOTFS "foreign.diff.tar", OCI_TYPE_FOREIGN_LAYER},
    {DOCKER_ROOTFS "foreign.diff.tar.gzip", OCI_TYPE_FOREIGN_LAYER},
    {OCI_IMAGE "layer.nondistributable.v1.tar", OCI_TYPE_FOREIGN_LAYER},
    {OCI_IMAGE "layer.nondistributable.v1.tar+gzip", OCI_TYPE_FOREIGN_LAYER},
    {OCI_IMAGE "layer.nondistributable.v1.tar+zstd", OCI_TYPE_FOREIGN_LAYER},
};

enum oci_type oci_type_of(const char *media_type)
{
    size_t len;

    if (media_type == NULL)
        return OCI_TYPE_OTHER;
    media_type += strspn(media_type, " \t");
    len = strcspn(media_type, "; \t");
    for (size_t i = 0; i < ARRAY_LEN(media_rows); i++) {
        const char *name = media_rows[i].name;

        if (strlen(name) == len && strncasecmp(name, media_type, len) == 0)
            return media_rows[i].type;
    }
    return OCI_TYPE_OTHER;
}

const char *oci_type_name(enum oci_type t)
{
    if (t == OCI_TYPE_FOREIGN_LAYER)
        return "application/octet-stream";
    for (size_t i = 0; i < ARRAY_LEN(media_rows); i++) {
        if (media_rows[i].type == t)
            return media_rows[i].name;
    }
    return "application/octet-stream";
}
