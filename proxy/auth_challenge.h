/* SPDX-License-Identifier: Apache-2.0
 * proxy/auth_challenge.h - WWW-Authenticate: how a registry wants to be asked (RFC 9110, 11.3 and 11.6.1).
 *
 * Use: auth_challenge_find(value, len, "Bearer", &c, err) -> c.realm, c.service, c.scope.
 * Threads: pure. Limits: AUTH_CHALLENGE_MAX_BYTES for the whole header, the arrays below for what is kept of it.
 */
#pragma once

#include "base/err.h"

#define AUTH_CHALLENGE_MAX_BYTES ((size_t)8 << 10)
#define AUTH_REALM_MAX_BYTES 2048
#define AUTH_SERVICE_MAX_BYTES 256
#define AUTH_SCOPE_MAX_BYTES 1024

/* "" where the parameter was absent. No control characters; quotes and escapes are undone. */
struct auth_challenge {
    char realm[AUTH_REALM_MAX_BYTES + 1];
    char service[AUTH_SERVICE_MAX_BYTES + 1];
    char scope[AUTH_SCOPE_MAX_BYTES + 1];
};

/* The first challenge of the scheme (any case), among those of other schemes, in one value or several joined by ", ".
 * value: borrowed, needs no NUL. ERR_NOTFOUND: no such challenge. ERR_FORMAT: broken before or within it, or a known
 * parameter twice, which two readers could understand differently. ERR_LIMIT. What follows it is not looked at. */
MUST_CHECK int auth_challenge_find(const char *value, size_t len, const char *scheme, struct auth_challenge *out,
                                   struct err *err);
