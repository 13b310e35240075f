/* SPDX-License-Identifier: Apache-2.0
 * proxy/negotiate.h - request headers that decide the form of an answer: Accept, Accept-Encoding, Range, and the tags
 * of If-Match, If-None-Match and If-Range. Pure.
 *
 * Sources: RFC 9110 sections 8.8.3 (entity tags), 12.5 (Accept, Accept-Encoding), 13 (conditions), 14 (Range). Threads: any.
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

#define RANGES_MAX 1024 /* in one header; what podman asks for at most */

enum range_kind {
    RANGE_NONE = 0,      /* no Range header, or one to be ignored (other unit, malformed, too much): 200 */
    RANGE_ONE,           /* 206 */
    RANGE_SEVERAL,       /* 206, multipart/byteranges */
    RANGE_UNSATISFIABLE, /* 416 */
};

struct range_span {
    uint64_t first, last; /* inclusive, clamped to the size */
};

struct range {
    enum range_kind kind;
    uint64_t first, last;     /* RANGE_ONE only */
    struct range_span *spans; /* RANGE_SEVERAL only; malloc'd */
    size_t count;
};

void range_release(struct range *r);

/* "bytes=a-b", "bytes=a-", "bytes=-n", or several of them with commas; last is clamped, what has nothing in the blob is left
 * out. Several stay RANGE_SEVERAL when one of them is left, since that is the shape of the answer that was asked for. More
 * than RANGES_MAX, or together longer than the blob twice over: RANGE_NONE. size_bytes 0: any range is unsatisfiable.
 * ERR_NOMEM. */
MUST_CHECK int range_parse(const char *header, uint64_t size_bytes, struct range *out, struct err *err);

/* Whether a list of entity tags ("*": any) has etag in it; etag is one tag as an ETag header has it. Lines joined with ", ";
 * NULL, a list that is malformed anywhere, or a malformed etag: false. If-None-Match compares weakly (the W/ does not
 * count), If-Match strongly (a weak tag matches nothing, on either side; "*" matches a weak one too). */
bool etag_matches(const char *if_none_match, const char *etag);
bool etag_matches_strong(const char *if_match, const char *etag);
