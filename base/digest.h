/* SPDX-License-Identifier: Apache-2.0
 * base/digest.h - sha256 digests, the names of everything in a registry, and the running hash.
 *
 * A digest is 32 bytes in memory and "sha256:<64 lower-case hex>" as text (OCI image-spec, descriptor.md). Other
 * algorithms are ERR_UNSUPPORTED. OpenSSL does the hashing (SHA-NI where the CPU has it) and lives only here.
 * Threads: struct digest is a value; a struct hasher belongs to one thread at a time.
 */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define DIGEST_BYTES 32
#define DIGEST_TEXT_BYTES 72 /* "sha256:" + 64 + NUL */

struct digest {
    uint8_t b[DIGEST_BYTES];
};

struct digest_text {
    char s[DIGEST_TEXT_BYTES];
};

/* By value, so that it can stand in a printf argument list: digest_text(&d).s */
struct digest_text digest_text(const struct digest *d); /* with "sha256:" */
struct digest_text digest_hex(const struct digest *d);  /* the 64 hex digits alone */

/* text needs no NUL. ERR_FORMAT for a malformed one, ERR_UNSUPPORTED for an algorithm other than sha256. */
MUST_CHECK int digest_parse(const char *text, size_t len, struct digest *out, struct err *err);
bool digest_equal(const struct digest *a, const struct digest *b);
int digest_cmp(const struct digest *a, const struct digest *b);
bool digest_is_zero(const struct digest *d);
uint64_t digest_hash64(const struct digest *d); /* for hash tables */
void digest_of(const void *data, size_t len, struct digest *out);

struct hasher; /* running sha256 */
MUST_CHECK int hasher_new(struct hasher **out, struct err *err);
void hasher_update(struct hasher *h, const void *data, size_t len);
void hasher_peek(const struct hasher *h, struct digest *out); /* digest so far; h goes on */
MUST_CHECK int hasher_clone(const struct hasher *h, struct hasher **out, struct err *err);
void hasher_free(struct hasher *h);
void hasher_cleanup(struct hasher **h);
