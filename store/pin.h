/* SPDX-License-Identifier: Apache-2.0
 * store/pin.h - images that are never evicted, and images that are taken away on purpose.
 *
 * A pin is a repository and a reference in it. One of a tag follows the tag, and stays where it is when the tag is dropped;
 * one of a digest also keeps the layers as the upstream has them, since clients that ask by digest get those. What a pin
 * names is never evicted, all images of an index and their attestations with it: configs, and each layer in the form that is
 * needed to serve it (FORMAT.md, table `pinned`). What is not stored yet is kept as it comes.
 *
 * Threads: any worker.
 */
#pragma once

#include "store/store.h"

struct store_pin_result {
    bool changed;         /* it was not so before */
    struct digest digest; /* what the pin stands for now */
    uint64_t blobs;       /* configs and layers of the manifests that are stored */
    uint64_t bytes;       /* sum of their sizes upstream */
    uint64_t missing;     /* blobs whose bytes are not in the store: they come at the next pull */
    uint64_t unknown;     /* manifests that an index names and nobody has asked for yet */
};

/* Pins `tag`, or, when it is NULL, `digest` (of a manifest; a derived one stands for its upstream one). repo 0, with a digest:
 * any repository that holds it. ERR_NOTFOUND: not in the catalog. */
MUST_CHECK int store_pin(struct store *st, int64_t repo, const char *tag, const struct digest *digest,
                         struct store_pin_result *out, struct err *err);
/* repo 0, with a digest: in all repositories. changed: false when there was no such pin, which is no error. */
MUST_CHECK int store_unpin(struct store *st, int64_t repo, const char *tag, const struct digest *digest,
                           struct store_pin_result *out, struct err *err);

struct store_pin_info {
    const char *upstream, *name, *reference; /* reference: a tag, or a digest as text */
    bool by_digest;
    int64_t created; /* wall seconds */
    struct store_pin_result now;
};

typedef int store_pin_fn(void *arg, const struct store_pin_info *pin, struct err *err);
/* Every pin, ordered by upstream, name, reference. The strings are good during the call only. */
MUST_CHECK int store_each_pin(struct store *st, store_pin_fn *fn, void *arg, struct err *err);

/* True when the bytes of this manifest's image are kept by some pin. */
MUST_CHECK int store_is_pinned(struct store *st, const struct digest *manifest, bool *out, struct err *err);

struct store_remove_result {
    struct digest digest;       /* of the manifest */
    bool unpinned;              /* its pin went too */
    uint64_t originals, layers; /* evicted: blobs as the upstream has them, canonical layers */
    uint64_t freed_bytes;       /* of their files and of the frames that nobody else uses */
    uint64_t shared;            /* blobs that stay, since another tag's image, or a pin, uses them */
    uint64_t busy;              /* blobs that stay, since somebody reads them at this moment */
};

/* Drops a tag and its pin, and evicts what no other tag's image and no pin uses. With a digest (tag NULL): its pin (repo 0:
 * those in all repositories) and its bytes; ERR_BUSY while a tag leads to it, and names that tag. Rows stay (S4): what is asked
 * for again is fetched again. ERR_NOTFOUND. */
MUST_CHECK int store_remove(struct store *st, int64_t repo, const char *tag, const struct digest *digest,
                            struct store_remove_result *out, struct err *err);
