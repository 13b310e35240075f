/* SPDX-License-Identifier: Apache-2.0
 * store/meta.h - manifests, tags and views: the small rows that live for ever (S4). Each change is one transaction and
 * one record in a pack, so that the catalog can be rebuilt from packs.
 *
 * Ownership: store_manifest_release() frees what a lookup filled; arrays that come back are freed by the caller.
 * Threads: any worker.
 */
#pragma once

#include "store/store.h"

#define META_TYPE_BYTES 128
#define META_TAG_BYTES 129

/* ---- manifests ------------------------------------------------------------------------------------------------- */

enum store_ref_role { REF_CONFIG = 1, REF_LAYER = 2, REF_CHILD = 3 }; /* on disk: never renumber */

/* One digest that a manifest names, in the manifest's order. */
struct store_ref {
    enum store_ref_role role;
    struct digest digest;
    uint64_t size_bytes;
};

/* What the background job found out about an upstream manifest. On disk: never renumber. */
enum store_views {
    VIEWS_UNKNOWN = 0, /* not looked at, or layers are missing still */
    VIEWS_READY,       /* the view table has what there is */
    VIEWS_NEVER,       /* will never be rewritten; `reason` says why */
};

struct store_manifest {
    struct digest digest;
    char media_type[META_TYPE_BYTES];
    char *body;
    size_t len;
    int view;               /* enum oci_view; 0 = the upstream's own bytes */
    struct digest upstream; /* the upstream manifest that it is a view of; itself when view is 0 */
    bool is_index;
    enum store_views views;
    int is_signed; /* -1 not looked up, 0 no, 1 yes */
};

/* ERR_NOTFOUND. */
MUST_CHECK int store_manifest_get(struct store *st, const struct digest *d, struct store_manifest *out,
                                  struct err *err);
void store_manifest_release(struct store_manifest *m);

/* True when repo is known to hold manifest d (for a derived one: its upstream manifest). */
MUST_CHECK int store_repo_has_manifest(struct store *st, int64_t repo, const struct digest *d, bool *out,
                                       struct err *err);

struct store_manifest_put {
    int64_t repo;
    const char *tag;      /* NULL: by digest only. Set in the same transaction. */
    struct digest digest; /* of body; checked (S1) */
    const char *media_type;
    const char *body;
    size_t len;
    bool is_index;
    const struct store_ref *refs;
    size_t ref_count;
    const char *never; /* reason why it can never be rewritten, or NULL */
};

/* Stores an upstream manifest, its references, its link to the repository and, with `tag`, the tag, checked now. */
MUST_CHECK int store_manifest_put(struct store *st, const struct store_manifest_put *p, struct err *err);

/* References in order. *out: malloc'd, may be NULL when *out_count = 0. */
MUST_CHECK int store_manifest_refs(struct store *st, const struct digest *d, struct store_ref **out, size_t *out_count,
                                   struct err *err);

/* True when some stored manifest names d as its config: such a blob is never made canonical. */
MUST_CHECK int store_is_config(struct store *st, const struct digest *d, bool *out, struct err *err);

/* Upstream images of repo that list d as a layer and are VIEWS_UNKNOWN, at most max. */
MUST_CHECK int store_images_of_layer(struct store *st, int64_t repo, const struct digest *d, struct digest *out,
                                     size_t max, size_t *out_count, struct err *err);

/* Upstream indexes known to list this child. *out: malloc'd. */
MUST_CHECK int store_manifest_parents(struct store *st, const struct digest *child, struct digest **out,
                                      size_t *out_count, struct err *err);

MUST_CHECK int store_manifest_set_views(struct store *st, const struct digest *d, enum store_views views,
                                        const char *reason, struct err *err);
MUST_CHECK int store_manifest_set_signed(struct store *st, const struct digest *d, bool is_signed, struct err *err);

/* Image manifests (not indexes) that are VIEWS_UNKNOWN and were marked wanted, with one repository each. */
typedef int store_wanted_fn(void *arg, int64_t repo, const char *upstream, const char *name, const struct digest *d,
                            struct err *err);
/* A client asked for this manifest itself: the background job is to make its views. Remembered over restarts. */
MUST_CHECK int store_manifest_want(struct store *st, const struct digest *d, struct err *err);
MUST_CHECK int store_each_wanted(struct store *st, store_wanted_fn *fn, void *arg, struct err *err);

/* ---- tags ------------------------------------------------------------------------------------------------------ */

struct store_tag {
    struct digest digest; /* the upstream's */
    int64_t checked_at;   /* wall seconds of the last word from the upstream */
};

/* ERR_NOTFOUND. */
MUST_CHECK int store_tag_get(struct store *st, int64_t repo, const char *tag, struct store_tag *out, struct err *err);
/* The upstream confirmed that the tag still has this digest (the manifest is stored): checked now. */
MUST_CHECK int store_tag_set(struct store *st, int64_t repo, const char *tag, const struct digest *d, struct err *err);
MUST_CHECK int store_tag_drop(struct store *st, int64_t repo, const char *tag, struct err *err);

/* ---- views ----------------------------------------------------------------------------------------------------- */

/* Publishes a derived manifest as `view` of `upstream` (an upstream manifest's digest). It replaces an earlier one of
 * the same view (an index whose further child was rewritten); the earlier bytes stay servable by digest. */
MUST_CHECK int store_view_put(struct store *st, const struct digest *upstream, int view, const char *media_type,
                              const char *body, size_t len, struct digest *out_digest, struct err *err);
/* The upstream's own bytes are this view (nothing to change). */
MUST_CHECK int store_view_put_same(struct store *st, const struct digest *upstream, int view, struct err *err);
/* ERR_NOTFOUND when there is none. */
MUST_CHECK int store_view_get(struct store *st, const struct digest *upstream, int view, struct digest *out_digest,
                              struct err *err);

/* ---- lists for people ------------------------------------------------------------------------------------------ */

struct store_image {
    const char *upstream, *name, *tag;
    struct digest digest;
    const char *media_type;
    bool is_index;
    int64_t checked_at;
    enum store_views views;
    const char *reason; /* why never, or NULL */
    int is_signed;
    uint64_t layers;          /* of this manifest; 0 for an index */
    uint64_t original_bytes;  /* sum of the layers' sizes upstream */
    uint64_t canonical_bytes; /* sum over the layers that are canonical */
    uint64_t canonical_layers;
    bool is_pinned; /* its bytes are kept by some pin */
};

typedef int store_image_fn(void *arg, const struct store_image *image, struct err *err);
/* Every tag, ordered by upstream, name, tag. The strings are good during the call only. */
MUST_CHECK int store_each_image(struct store *st, store_image_fn *fn, void *arg, struct err *err);
