/* SPDX-License-Identifier: Apache-2.0
 * store/record_internal.h - payloads of the metadata records in packs (FORMAT.md "Records"), from which a lost catalog can
 * be made again. Pure. Recipes and blob links have theirs in recipe.h.
 *
 * Decoding: every size is checked; the strings of a decoded record point into the payload and are NOT terminated.
 */
#pragma once

#include "base/buf.h"
#include "base/digest.h"
#include "store/meta.h"

#define RECORD_VERSION 1

struct record_text {
    const char *s;
    size_t len;
};

enum record_link_kind { RECORD_LINK_BLOB = 0, RECORD_LINK_MANIFEST = 1 }; /* on disk */

struct record_manifest {
    bool is_index;
    int view;
    struct digest upstream;
    struct record_text media_type, never;
    const struct store_ref *refs; /* encoding only */
    size_t ref_count;
    const uint8_t *ref_bytes; /* decoding only: record_ref_at() */
    const char *body;
    size_t len;
};

struct record_link {
    enum record_link_kind kind;
    uint64_t size_bytes; /* of the blob, 0 when not known */
    struct record_text upstream, name;
};

struct record_tag {
    bool dropped;
    int64_t at; /* wall seconds */
    struct record_text upstream, name, tag;
};

struct record_view {
    int view;
    struct digest derived; /* the upstream's own digest: nothing to change */
};

struct record_text record_text(const char *s); /* NULL is "" */

MUST_CHECK int record_put_manifest(struct buf *b, const struct record_manifest *m, struct err *err);
MUST_CHECK int record_put_link(struct buf *b, const struct record_link *l, struct err *err);
MUST_CHECK int record_put_tag(struct buf *b, const struct record_tag *t, struct err *err);
MUST_CHECK int record_put_view(struct buf *b, const struct record_view *v, struct err *err);

/* ERR_CORRUPT: malformed. ERR_UNSUPPORTED: another version. */
MUST_CHECK int record_get_manifest(const uint8_t *data, size_t len, struct record_manifest *out, struct err *err);
MUST_CHECK int record_get_link(const uint8_t *data, size_t len, struct record_link *out, struct err *err);
MUST_CHECK int record_get_tag(const uint8_t *data, size_t len, struct record_tag *out, struct err *err);
MUST_CHECK int record_get_view(const uint8_t *data, size_t len, struct record_view *out, struct err *err);
MUST_CHECK int record_ref_at(const struct record_manifest *m, size_t i, struct store_ref *out, struct err *err);
