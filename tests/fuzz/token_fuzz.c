/* links: oci */
/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/token_fuzz.c - replies of token services: what comes out fits into one header line and lives for a while.
 */
#include "oci/token.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct oci_token t;
    struct err err = ERR_INIT;

    if (oci_token_parse((const char *)data, size, 1767323045, &t, &err) == 0) {
        REQUIRE(t.lifetime_s >= 1 && t.lifetime_s <= OCI_TOKEN_LIFETIME_MAX_S);
        REQUIRE(t.token.len >= 1 && t.token.len <= OCI_TOKEN_MAX_BYTES && strlen(secret_text(&t.token)) == t.token.len);
        for (const char *p = secret_text(&t.token); *p != '\0'; p++)
            REQUIRE(*p > 0x20 && *p < 0x7f);
    } else {
        REQUIRE(!secret_is_set(&t.token) && err.code < 0);
    }
    oci_token_release(&t);
    return 0;
}
