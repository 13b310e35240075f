/* SPDX-License-Identifier: Apache-2.0
 * proxy/negotiate.h - request headers that decide the form of an answer: Accept, Accept-Encoding, Range. Pure.
 *
 * Sources: RFC 9110 sections 12.5 (Accept, Accept-Encoding) and 14 (Range). Threads: any.
 */
#pragma once

#include "base/err.h"
#include "oci/oci.h"
#include "transcode/codec.h"

#include <stdbool.h>
#include <stdint.h>

/* The coding for one canonical blob without Range: zstd if listed with q > 0, else gzip if listed with q > 0, else
 * none. "*" alone and a missing header give none; "deflate" and "x-gzip" are never chosen. Values may be several header
 * lines joined with ", ". NULL is a missing header. */
enum codec accept_encoding_choose(const char *accept_encoding);

/* True when the Accept header (lines joined with ", "; NULL or empty: accepts all) admits this media type: named, or by
 * type/<star> or <star>/<star>, with q > 0. */
bool accept_allows(const char *accept, const char *media_type);

/* When Accept names layer types with +gzip or +zstd (OCI or nondistributable, or docker's .tar.gzip) and neither
 * <star>/<star> nor any plain form: that codec with *out_type the media type to answer with. CODEC_NONE otherwise. */
enum codec accept_layer_form(const char *accept, const char **out_type);

enum range_kind {
    RANGE_NONE = 0,      /* no Range header, or one to be ignored (other unit, malformed, several ranges): 200 */
    RANGE_ONE,           /* 206 */
    RANGE_UNSATISFIABLE, /* 416 */
};

struct range {
    enum range_kind kind;
    uint64_t first, last; /* inclusive, clamped to the size; RANGE_ONE only */
};

/* "bytes=a-b", "bytes=a-", "bytes=-n"; last is clamped. size_bytes 0: any range is unsatisfiable. */
void range_parse(const char *header, uint64_t size_bytes, struct range *out);

/* For a blob whose size is not known yet: the first byte wanted, false when that needs the size (suffix) or there is no
 * single range. */
bool range_first(const char *header, uint64_t *out_first);

/* Whether If-None-Match (lines joined with ", "; NULL is a missing header) names etag, as RFC 9110 section 13.1.2 says: "*",
 * or one of a list, compared weakly. etag: as sent, with its quotes. What is malformed, and all behind it, names nothing. */
bool etag_matches(const char *if_none_match, const char *etag);
