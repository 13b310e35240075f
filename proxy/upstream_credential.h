/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_credential.h - who recask is to one upstream: read from a password file, a credential helper, or docker's
 * config.json.
 *
 * Use: credential_source_init() -> credential_read() as often as wanted -> credential_source_release().
 * An upstream's own user or helper counts before the auth file. Files are read anew each time; what a helper said is kept
 * for CREDENTIAL_HELPER_KEEP_MS in the caller's cache.
 * Threads: credential_read() blocks on files and on a program, up to half a minute; never on the upstream thread. A source is
 * constant, a cache belongs to one read at a time.
 */
#pragma once

#include "base/digest.h"
#include "oci/credentials.h"
#include "proxy/upstream.h"

#include <stdatomic.h>

#define CREDENTIAL_HELPER_KEEP_MS (10 * 60 * 1000)
#define CREDENTIAL_NONE_KEEP_MS (60 * 1000) /* that it has none: someone may be logging in right now */
#define CREDENTIAL_SHOWN_BYTES 256

struct credential_source {
    char *upstream, *url;
    char *username, *password_file; /* both or none */
    char *helper;
    char *auth_file;
};

/* Names credentials without holding them: plain memory that may be copied. */
struct credential_id {
    struct digest digest;
    char shown[CREDENTIAL_SHOWN_BYTES]; /* "user NAME from FILE", for messages */
    bool cached;                        /* a helper said so some time ago */
};

struct credential {
    struct oci_credentials is;
    struct credential_id id;
};

/* What a helper said last. Zeroed: nothing. */
struct credential_cache {
    char *helper;
    struct secret reply;
    int64_t until_ms;
};

/* Fills src; ERR_USAGE for a helper that is neither a name nor an absolute path. Nothing is read yet. */
MUST_CHECK int credential_source_init(struct credential_source *src, const struct upstream_def *def,
                                      const char *auth_file, struct err *err);
void credential_source_release(struct credential_source *src);
bool credential_source_any(const struct credential_source *src); /* false: always anonymous */

/* Anonymous when the helper or the auth file has nothing for this registry. Whatever else goes wrong is an error that names
 * upstream and file or helper: ERR_UPSTREAM, ERR_TIMEOUT, ERR_CANCELLED (*stopping has become true), ERR_NOMEM. */
MUST_CHECK int credential_read(const struct credential_source *src, struct credential_cache *cache,
                               const atomic_bool *stopping, struct credential *out, struct err *err);
void credential_release(struct credential *c);
void credential_cache_release(struct credential_cache *cache);
