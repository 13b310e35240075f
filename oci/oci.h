/* SPDX-License-Identifier: Apache-2.0
 * oci/oci.h - names, media types, manifests, image configs: parsed from bytes, no I/O, no state.
 *
 * Sources: OCI image-spec v1.1 (manifest.md, image-index.md, descriptor.md, config.md), distribution-spec v1.1,
 * Docker image manifest v2 schema 2. Every size and count that comes from outside meets a limit here first.
 * Ownership: oci_manifest_parse() allocates, oci_manifest_release() frees; strings inside belong to the manifest.
 * Threads: everything is pure or a value.
 */
#pragma once

#include "base/buf.h"
#include "base/digest.h"

#include <stdbool.h>
#include <stdint.h>

#define OCI_MANIFEST_MAX_BYTES (4u << 20)
#define OCI_CONFIG_MAX_BYTES (8u << 20)
#define OCI_JSON_MAX_DEPTH 64
#define OCI_LAYERS_MAX 4096
#define OCI_CHILDREN_MAX 4096
#define OCI_NAME_MAX_BYTES 255
#define OCI_TAG_MAX_BYTES 128

/* ---- names (distribution-spec, "Pulling manifests") --------------------------------------------------------- */

bool oci_name_valid(const char *name, size_t len); /* "library/alpine" */
bool oci_tag_valid(const char *tag, size_t len);

/* A tag of the form sha256-<64 hex> with or without a suffix that starts with ".", "-" or "_" (.sig, .att, .sbom ...):
 * cosign's, and the referrers fallback. Such a tag is never rewritten. */
bool oci_tag_is_digest_tag(const char *tag);

struct oci_reference {
    bool is_digest;
    struct digest digest;            /* when is_digest */
    char tag[OCI_TAG_MAX_BYTES + 1]; /* else */
};

/* The last part of /v2/<name>/manifests/<reference>. ERR_FORMAT, ERR_UNSUPPORTED (other digest algorithms). */
MUST_CHECK int oci_reference_parse(const char *text, struct oci_reference *out, struct err *err);

/* ---- media types ---------------------------------------------------------------------------------------------- */

enum oci_type {
    OCI_TYPE_OTHER = 0,
    OCI_TYPE_MANIFEST,       /* application/vnd.oci.image.manifest.v1+json */
    OCI_TYPE_INDEX,          /* application/vnd.oci.image.index.v1+json */
    OCI_TYPE_SCHEMA2,        /* application/vnd.docker.distribution.manifest.v2+json */
    OCI_TYPE_SCHEMA2_LIST,   /* application/vnd.docker.distribution.manifest.list.v2+json */
    OCI_TYPE_CONFIG,         /* application/vnd.oci.image.config.v1+json */
    OCI_TYPE_SCHEMA2_CONFIG, /* application/vnd.docker.container.image.v1+json */
    OCI_TYPE_LAYER,          /* application/vnd.oci.image.layer.v1.tar */
    OCI_TYPE_LAYER_GZIP,
    OCI_TYPE_LAYER_ZSTD,
    OCI_TYPE_SCHEMA2_LAYER,      /* application/vnd.docker.image.rootfs.diff.tar */
    OCI_TYPE_SCHEMA2_LAYER_GZIP, /* ...diff.tar.gzip */
    OCI_TYPE_SCHEMA2_LAYER_ZSTD, /* ...diff.tar.zstd: seen, never written */
    OCI_TYPE_FOREIGN_LAYER,      /* ...foreign.diff.tar(.gzip), ...layer.nondistributable.v1.tar(+gzip|+zstd) */
};

enum oci_type oci_type_of(const char *media_type); /* parameters after ';' are ignored; NULL is OTHER */
const char *oci_type_name(enum oci_type t); /* the media type; "application/octet-stream" for OTHER and FOREIGN */

/* ---- manifests ------------------------------------------------------------------------------------------------ */

struct oci_platform {
    char *os, *arch, *variant, *os_version; /* NULL where absent */
};

struct oci_descriptor {
    enum oci_type type;
    char *media_type;     /* as written, "" where absent */
    struct digest digest; /* zeroed for an algorithm other than sha256, and the manifest is not plain */
    uint64_t size_bytes;
    bool has_urls;
    bool has_toc;                 /* annotations bound to these very bytes: eStargz, zstd:chunked, nydus, overlaybd */
    bool encrypted;               /* +encrypted suffix or org.opencontainers.image.enc annotations */
    struct oci_platform platform; /* index children only */
    char *artifact_type;          /* NULL where absent */
    char *attests;                /* vnd.docker.reference.digest where vnd.docker.reference.type is
                                     attestation-manifest, else NULL */
};

struct oci_manifest {
    enum oci_type type; /* MANIFEST, INDEX, SCHEMA2 or SCHEMA2_LIST */
    bool is_index;
    bool has_subject;
    char *artifact_type;           /* NULL where absent */
    struct oci_descriptor config;  /* images only */
    struct oci_descriptor *layers; /* images only */
    size_t layer_count;
    struct oci_descriptor *children; /* indexes only */
    size_t child_count;
    char *not_plain; /* why it can never be rewritten (artifact, TOC, foreign, encrypted or non-tar layer, SOCI index,
                        embedded data, duplicate or oddly cased JSON keys, non-integer numbers, an optional field of
                        the wrong type, a digest that is not sha256, more than OCI_LAYERS_MAX layers or
                        OCI_CHILDREN_MAX children, of which then only so many are listed). NULL for a plain image or
                        index. One short phrase, for people. */
};

/* content_type: the response header; used when the body has no mediaType, ignored where the body has one of the four
 * types (so a body without one stands or falls with its header). Schema 1 and mediaTypes that are no manifest's:
 * ERR_UNSUPPORTED. Anything else that is not a manifest: ERR_FORMAT. Too big, deep or full: ERR_LIMIT. */
MUST_CHECK int oci_manifest_parse(const char *body, size_t len, const char *content_type, struct oci_manifest *out,
                                  struct err *err);
void oci_manifest_release(struct oci_manifest *m); /* zeroed or filled */

/* The entries of an index whose artifactType is this one (NULL: all, byte for byte), as a referrers answer. Appends to *out.
 * ERR_FORMAT: not an index; ERR_LIMIT. */
MUST_CHECK int oci_referrers_filter(const char *body, size_t len, const char *artifact_type, struct buf *out,
                                    struct err *err);

/* rootfs.diff_ids of an image config. *out_ids: malloc'd, the caller frees; NULL when *out_count = 0.
 * ERR_FORMAT, ERR_LIMIT, ERR_UNSUPPORTED (another digest algorithm): that image can have no other view. */
MUST_CHECK int oci_config_diff_ids(const char *body, size_t len, struct digest **out_ids, size_t *out_count,
                                   struct err *err);
