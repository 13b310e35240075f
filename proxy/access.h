/* SPDX-License-Identifier: Apache-2.0
 * proxy/access.h - who may read what: passwords from a htpasswd file, rules per repository. HTTP Basic (RFC 7617).
 *
 * Use: access_new -> access_check per request -> access_free.
 * Passwords: bcrypt ($2a$, $2b$, $2y$) and yescrypt ($y$) hashes, by crypt(3). Any other scheme in the file is an error that
 *      names the line. The file is read again when it changes; one that cannot be used then is logged, and the users of the
 *      last good one stay (never off by accident). At the start it is an error.
 * Rules: access is allowed when one of them names the user and the repository. No rules: whoever has a password may read
 *      everything.
 * Threads: any worker. A check may cost a tenth of a second of CPU (the hash is made to); right passwords are remembered
 *      for a while, as keyed hashes.
 */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

#define ACCESS_USER_MAX_BYTES 128

struct access;

struct access_rule {
    const char *const *users;        /* NULL-terminated: names, "*" (everybody with a password), "anonymous" (all) */
    const char *const *repositories; /* NULL-terminated: "docker.io/library/alpine", a prefix that ends in "/" and a star, or
                                      * a star alone */
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
    ACCESS_BUSY,      /* 503: too many passwords are being checked at once */
};

/* Copies what it needs of opt. ERR_USAGE: file and line. */
MUST_CHECK int access_new(const struct access_options *opt, struct access **out, struct err *err);
void access_free(struct access *a);
/* authorization: the request's header or NULL. upstream and name: of the repository; upstream NULL: GET /v2/, allowed for
 * anybody known, and for anonymous clients where some rule names them. out_user: "" when anonymous or unknown. */
enum access_verdict access_check(struct access *a, const char *authorization, const char *upstream, const char *name,
                                 char out_user[ACCESS_USER_MAX_BYTES + 1]);
