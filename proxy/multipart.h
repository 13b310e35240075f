/* SPDX-License-Identifier: Apache-2.0
 * proxy/multipart.h - several ranges of one representation as one body: multipart/byteranges (RFC 9110, 14.6).
 *
 * Use: multipart_new -> multipart_content_type, multipart_bytes for the headers -> multipart_source for the body.
 * Parts come in the order asked for, each opened when its turn comes, unless it follows the one before it closely: then that
 * one's source goes on. The one before is closed after the next is opened, so that what is being read stays leased in between.
 * Memory: two sources. Threads: one at a time.
 */
#pragma once

#include "base/stream.h"
#include "proxy/negotiate.h"

#define MULTIPART_TYPE_BYTES 80 /* "multipart/byteranges; boundary=..." */

/* Opens [off, off + len) of the representation. Blocks on disk, never on the network. */
typedef int multipart_open_fn(void *arg, uint64_t off, uint64_t len, struct source **out, struct err *err);

struct multipart {
    struct range_span *spans; /* taken */
    size_t count;
    uint64_t size_bytes;      /* of the whole representation */
    const char *content_type; /* of each part; static */
    uint64_t gap_bytes;       /* between two parts that are read and thrown away rather than opened anew */
    multipart_open_fn *open;
    void (*free_arg)(void *arg);
    void *arg; /* taken */
    char boundary[40];
};

/* Picks the boundary. */
MUST_CHECK int multipart_init(struct multipart *m, struct err *err);
void multipart_content_type(const struct multipart *m, char out[MULTIPART_TYPE_BYTES]);
uint64_t multipart_bytes(const struct multipart *m); /* of the whole body */
/* Takes what m holds, also on failure. The first part is open when this returns. */
MUST_CHECK int multipart_source(struct multipart *m, struct source **out, struct err *err);
void multipart_release(struct multipart *m);
