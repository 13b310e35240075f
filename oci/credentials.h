/* SPDX-License-Identifier: Apache-2.0
 * oci/credentials.h - where credentials for registries are written down: docker's config.json, and what
 * docker-credential-helpers answer.
 *
 * Use: oci_auth_file_find() -> credentials, the name of a helper to ask, or neither; oci_helper_reply() for its answer;
 *      oci_credentials_release().
 * Threads: pure. Messages never quote a value of the input: it holds secrets. Parsed text is wiped before it is freed.
 */
#pragma once

#include "base/secret.h"

#define OCI_AUTH_FILE_MAX_BYTES ((size_t)1 << 20)
#define OCI_HELPER_REPLY_MAX_BYTES ((size_t)64 << 10)
#define OCI_USERNAME_MAX_BYTES 1024
#define OCI_SECRET_MAX_BYTES ((size_t)32 << 10) /* identity tokens of cloud registries have a few KiB */

/* A user with a password, an identity token, or nothing: anonymous. */
struct oci_credentials {
    char *username;         /* NULL beside an identity token that came without */
    struct secret password; /* set: for Basic */
    struct secret identity; /* set: a refresh token, which the token service alone may see */
};

/* clang-format off */
#define OCI_CREDENTIALS_INIT {.username = NULL}
/* clang-format on */

void oci_credentials_release(struct oci_credentials *c);
bool oci_credentials_anonymous(const struct oci_credentials *c);

/* Both are checked: ERR_FORMAT for a ":" in the user name (RFC 7617 has no way to send it) and for control characters in
 * either; any UTF-8 passes. ERR_LIMIT, ERR_NOMEM; *out holds nothing then. */
MUST_CHECK int oci_credentials_set(struct oci_credentials *out, const char *username, const char *password,
                                   size_t password_len, struct err *err);
/* base64(user:password), as Authorization: Basic wants it. */
MUST_CHECK int oci_credentials_basic(const struct oci_credentials *c, struct secret *out, struct err *err);

/* How a registry is called where credentials are kept: "ghcr.io", "127.0.0.1:5000", and "https://index.docker.io/v1/" for
 * each name of docker.io. url: an upstream's, valid. */
MUST_CHECK int oci_credentials_server(const char *url, char **out, struct err *err);

struct oci_auth_entry {
    struct oci_credentials credentials; /* anonymous: the file has none for this registry */
    char *helper;                       /* not NULL: ask docker-credential-HELPER instead */
};

/* clang-format off */
#define OCI_AUTH_ENTRY_INIT {.helper = NULL}
/* clang-format on */

/* The entry for an upstream's URL. A key of `auths` is a host, with a port where that is not the scheme's own, or that
 * with a scheme, "/v1/" or "/v2/", or a prefix of the URL's path; the longest counts. A key with "https://" is not for an
 * upstream of "http://". `credHelpers` before `auths` before `credsStore`. ERR_FORMAT, ERR_LIMIT, ERR_NOMEM. */
MUST_CHECK int oci_auth_file_find(const char *body, size_t len, const char *url, struct oci_auth_entry *out,
                                  struct err *err);
void oci_auth_entry_release(struct oci_auth_entry *e);

/* What a helper has written to its stdout when it ended with 0. The user "<token>" means an identity token. */
MUST_CHECK int oci_helper_reply(const char *body, size_t len, struct oci_credentials *out, struct err *err);
/* What it has written when it ended with another status: whether that says that it has no credentials. */
bool oci_helper_has_none(const char *body, size_t len);
/* A name, no path: letters, digits, "-", "_", ".". */
bool oci_helper_name_valid(const char *name);
