/* SPDX-License-Identifier: Apache-2.0
 * oci/token.h - what a token service answers (distribution-spec's companion "Token Authentication Specification"; OAuth 2
 * names the token access_token).
 *
 * Use: oci_token_parse() -> token, lifetime_s -> oci_token_release().
 * Threads: pure. Messages never quote the input: it holds a secret.
 */
#pragma once

#include "base/secret.h"

#include <stdint.h>

#define OCI_TOKEN_REPLY_MAX_BYTES (64u << 10)
#define OCI_TOKEN_MAX_BYTES (16u << 10) /* more than servers take as a header line */
#define OCI_TOKEN_LIFETIME_S 60         /* when the reply does not say; the specification's number */
#define OCI_TOKEN_LIFETIME_MAX_S (24 * 3600)

struct oci_token {
    struct secret token; /* visible ASCII, so that it can be no more than one value of one header */
    int64_t lifetime_s;  /* from now_s on; 1..OCI_TOKEN_LIFETIME_MAX_S */
};

/* now_s: wall clock. `token` counts before `access_token` (ACR has the second alone). issued_at counts when our clocks
 * agree well enough: in the past, and by no more than half of expires_in. ERR_FORMAT, ERR_LIMIT, ERR_NOMEM; *out holds
 * nothing then. */
MUST_CHECK int oci_token_parse(const char *body, size_t len, int64_t now_s, struct oci_token *out, struct err *err);
void oci_token_release(struct oci_token *t); /* zeroed or filled */
