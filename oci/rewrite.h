/* SPDX-License-Identifier: Apache-2.0
 * oci/rewrite.h - other views of a manifest, as pure functions: same input, same bytes, on every machine, for ever.
 *
 * tests/golden/rewrite/ holds inputs and outputs; a change of any output byte there breaks digests that clients have
 * recorded, so it is a bug by definition. Output is compact JSON with keys in the input's order, as upstream had it.
 * Use: parse and check with oci.h first; not_plain manifests must not come here (ERR_BUG).
 * Threads: any.
 */
#pragma once

#include "oci/oci.h"

enum oci_view { VIEW_ORIGINAL = 0, VIEW_CANONICAL, VIEW_ZSTD }; /* stored in the catalog: never renumber */

const char *oci_view_name(enum oci_view v);                           /* "original" "canonical" "zstd" */
MUST_CHECK bool oci_view_parse(const char *text, enum oci_view *out); /* "auto" is not a view */

/* What one layer is in the wanted view: digest and size of the canonical or of the zstd form. */
struct oci_layer_form {
    struct digest digest;
    uint64_t size_bytes;
};

/* Rewrites an image manifest (OCI or schema 2) to `view` (not ORIGINAL). forms: one per layer, in order.
 * canonical: each layer's digest, size and type (…layer.v1.tar, or …rootfs.diff.tar in a schema 2 manifest).
 * zstd: an OCI manifest whatever came in (mediaType, config type converted), layers …layer.v1.tar+zstd.
 * Annotations of layers stay. Returns 0 with *out filled (what it held is lost) and *out_type set, or 1 when nothing
 * would change (upstream's own bytes are the view; *out is as it was, *out_type is upstream's). ERR_BUG for an index, a
 * wrong number of forms, a manifest that is not plain. ERR_LIMIT when out's own limit is met. */
MUST_CHECK int oci_rewrite_image(const char *body, size_t len, const char *content_type, enum oci_view view,
                                 const struct oci_layer_form *forms, size_t form_count, struct buf *out,
                                 enum oci_type *out_type, struct err *err);

/* One child of an index that has been rewritten. */
struct oci_child_form {
    struct digest from;
    struct digest to;
    uint64_t size_bytes;
    enum oci_type type;
};

/* Rewrites an index or a manifest list: children named by `from` get digest, size and media type of their new form;
 * vnd.docker.reference.digest annotations follow their child; everything else stays. view ZSTD turns a manifest list
 * into an OCI index (and only then: when a child changed). An index whose rewritten children are to be picked by
 * containers/image carries io.github.containers.compression.zstd = "true" on them in the zstd view.
 * Forms that no child matches are ignored. Returns 0, or 1 when nothing would change, as above. */
MUST_CHECK int oci_rewrite_index(const char *body, size_t len, const char *content_type, enum oci_view view,
                                 const struct oci_child_form *forms, size_t form_count, struct buf *out,
                                 enum oci_type *out_type, struct err *err);
