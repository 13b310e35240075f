/* SPDX-License-Identifier: Apache-2.0
 * proxy/recent.h - small answers given a moment ago, for who asks the very same again: a node pool that pulls one image asks
 * the same few questions a thousand times, and each would cost a worker and three look-ups in the catalog.
 *
 * Use: recent_find() on an event thread, before the request goes to a worker; recent_keep() when a worker has answered.
 * A question is the whole request (http_question()), so nothing that an answer could depend on is left out. An answer is
 * good while the catalog has not changed (store_generation()) and the clock is within its bounds.
 * Threads: any. Memory: 512 answers of at most 20 KiB.
 */
#pragma once

#include "proxy/http.h"

struct recent;

MUST_CHECK int recent_new(struct recent **out, struct err *err);
void recent_free(struct recent *rc); /* NULL is fine */

/* True: *out is a copy of what this request was answered before. generation: the catalog's now. */
bool recent_find(struct recent *rc, const struct http_exchange *x, uint64_t generation, struct http_answer *out);
/* generation: the catalog's when the request was first looked at. from_s, until_s: wall clock, the second one excluded.
 * Does nothing when the answer is too large, or memory is short. */
void recent_keep(struct recent *rc, const struct http_exchange *x, uint64_t generation, int64_t from_s, int64_t until_s,
                 const struct http_answer *a);
