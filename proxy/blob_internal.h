/* SPDX-License-Identifier: Apache-2.0
 * proxy/blob_internal.h - blob.c finds the bytes, blob_answer.c puts them into the form that the client asked for.
 */
#pragma once

#include "proxy/proxy_internal.h"

/* From the store. False when the bytes turned out to be missing or damaged: nothing was sent, the store's state is right
 * again. */
bool blob_answer_store(struct request *r);
/* From the stored original, decoded: the canonical form itself is gone. False like blob_answer_store(). */
bool blob_answer_original(struct request *r, const struct store_source *s);
/* From r->fill, which streams or is verified or detached. */
void blob_answer_fill(struct request *r);
/* HEAD of a blob that the store knows of, but does not hold: r->blob.size_bytes is all there is to say. */
void blob_answer_head(struct request *r);
/* True for HEAD, and for a GET that its conditions make a 304 or 412: nothing need be fetched for it, and
 * blob_answer_head() answers it. */
bool blob_needs_no_bytes(const struct request *r);

/* ---- heal.c ------------------------------------------------------------------------------------------------------ */

/* A blob as one repository has it. */
struct blob_place {
    struct proxy *p;
    const struct upstream *up;
    int64_t repo;
    char name[OCI_NAME_MAX_BYTES + 10];
    struct digest digest;
    uint64_t size_bytes;
    bool can_reopen; /* identity bytes: blob_reopen() can go on in the middle */
};

/* [off, off + len) of the blob's bytes once more, from the original on disk or by a fill. */
MUST_CHECK int blob_reopen(const struct blob_place *b, uint64_t off, uint64_t len, struct source **out,
                           struct err *err);
/* inner gives [off, off + len) from the store; when it turns out to be damaged the store is told, and the rest comes from
 * blob_reopen() where that is possible. Takes inner. */
MUST_CHECK int source_healing_new(struct source **inner, const struct blob_place *place, uint64_t off, uint64_t len,
                                  struct source **out, struct err *err);

/* ---- decode.c ------------------------------------------------------------------------------------------------------ */

/* inner, decoded by whatever codec its first bytes show. Takes inner. */
MUST_CHECK int source_decoded_new(struct source **inner, uint64_t max_out_bytes, uint32_t max_ratio,
                                  struct source **out, struct err *err);
