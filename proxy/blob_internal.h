/* SPDX-License-Identifier: Apache-2.0
 * proxy/blob_internal.h - blob.c finds the bytes, blob_answer.c puts them into the form that the client asked for.
 */
#pragma once

#include "proxy/proxy_internal.h"

/* From the store. False when the bytes turned out to be missing or damaged: nothing was sent, the store's state is right
 * again. */
bool blob_answer_store(struct request *r);
/* From r->fill, which streams or is verified or detached. */
void blob_answer_fill(struct request *r);
/* HEAD of a blob that the store knows of, but does not hold: r->blob.size_bytes is all there is to say. */
void blob_answer_head(struct request *r);

/* inner, decoded by whatever codec its first bytes show. Takes inner. */
MUST_CHECK int source_decoded_new(struct source **inner, uint64_t max_out_bytes, uint32_t max_ratio, struct source **out,
                                  struct err *err);
