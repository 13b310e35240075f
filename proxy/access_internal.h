/* SPDX-License-Identifier: Apache-2.0
 * proxy/access_internal.h - what access.c (who may) and access_users.c (the htpasswd file) share.
 */
#pragma once

#include "proxy/access.h"

#include <stdatomic.h>

struct user {
    char *name, *hash;
};

/* The users of one state of the file. Immutable. */
struct users {
    atomic_uint refs;
    struct user *list;
    size_t count;
};

/* ERR_USAGE names file and line, and never what stands there. */
MUST_CHECK int users_load(const char *path, struct users **out, struct err *err);
/* text needs no NUL; path: for messages. */
MUST_CHECK int users_parse(const char *path, const char *text, size_t len, struct users **out, struct err *err);
struct users *users_ref(struct users *us);
void users_unref(struct users *us);
/* NULL when there is none. Takes as long for every name. */
const struct user *users_find(const struct users *us, const char *name);
/* What a password for this name is checked against: the user's hash, or that of some user, the same one for the same seed. So
 * names that are not in the file take as long as those that are, whatever mix of costs is in it. */
const char *users_hash(const struct users *us, const char *name, uint64_t seed);

/* "Basic <base64 of user:password>". False for anything else. The caller wipes out_password. */
bool basic_parse(const char *authorization, char out_user[ACCESS_USER_MAX_BYTES + 1],
                 char out_password[ACCESS_PASSWORD_MAX_BYTES + 1]);
