/* SPDX-License-Identifier: Apache-2.0
 * proxy/link.h - the Link header of a list that has a next page (RFC 8288; distribution-spec, "Listing Tags"). Pure.
 */
#pragma once

#include "base/buf.h"

#include <stdbool.h>

/* The query of the next page as the upstream wrote it, without "?" and without ns=: appended to *out. True when there is one:
 * the first link of the header whose rel has "next", or that has no rel. Its path and host are not looked at: the next page
 * is behind the path that the client used. A link that is malformed, or has no query (it would be the first page again), is
 * none. */
MUST_CHECK bool link_next_query(const char *header, struct buf *out);

/* Appends the parameters of a raw query but ns=, which is between a client and us, with "&" between them. */
MUST_CHECK int query_without_ns(const char *query, size_t len, struct buf *out, struct err *err);
