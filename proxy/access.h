/* SPDX-License-Identifier: Apache-2.0
 * proxy/access.h - who may read what: passwords from a htpasswd file, rules per repository. HTTP Basic (RFC 7617).
 *
 * Use: access_new -> access_check per request -> access_free.
 * Passwords: bcrypt ($2a$, $2b$, $2y$) and yescrypt ($y$) hashes, by crypt(3). Any other scheme in the file is an error that
 *      names the line. The file is read again when it changes; one that cannot be used then is logged, and the users of the
 *      last good one stay: never off by accident. At the start it is an error.
 * Rules: access is allowed when one of them names the user and the repository. No rules: whoever has a password may read
 *      everything.
 * Time: hashes are made to be slow. One check costs about a tenth of a second of CPU, so few run at once and the others wait
 *      without a thread; right passwords are remembered for some minutes, wrong ones for a moment, both as keyed hashes.
 * Threads: any worker. Not for the admin port, which has rules of its own (admin/guard.c).
 */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

#define ACCESS_USER_MAX_BYTES 128
#define ACCESS_PASSWORD_MAX_BYTES 511 /* of crypt(3) */

struct access;
struct waiter; /* proxy_internal.h */

struct access_rule {
    const char *const *users; /* NULL-terminated: names, "*" (everybody with a password), "anonymous" (all) */
    /* NULL-terminated: "docker.io/library/alpine", a prefix that ends in "/" and a star, or a star alone. */
    const char *const *repositories;
};

struct access_options {
    const char *htpasswd; /* needed */
    const struct access_rule *rules;
    size_t rule_count;
};

enum access_verdict {
    ACCESS_ALLOWED = 0,
    ACCESS_UNKNOWN,   /* 401: no or wrong credentials, and anonymous clients may not */
    ACCESS_FORBIDDEN, /* 403: a known user, but no rule allows it */
    ACCESS_WAIT,      /* other passwords are being checked: w will be woken, then ask again */
    ACCESS_BUSY,      /* 503: too many wait already */
};

struct access_request {
    const char *authorization; /* the header, or NULL */
    const char *upstream;      /* of the repository; NULL: GET /v2/, for whoever may read anything at all */
    const char *name;
};

/* Copies what it needs of opt. ERR_USAGE: file and line. */
MUST_CHECK int access_new(const struct access_options *opt, struct access **out, struct err *err);
void access_free(struct access *a); /* nobody waits any more */
/* w is put on a list only with ACCESS_WAIT. */
enum access_verdict access_check(struct access *a, const struct access_request *r, struct waiter *w);
