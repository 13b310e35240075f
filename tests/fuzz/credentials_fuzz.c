/* links: oci */
/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/credentials_fuzz.c - auth files and helpers' answers: what comes out fits into a header, errors quote nothing.
 */
#include "oci/credentials.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_plain(const char *text, size_t len)
{
    REQUIRE(len > 0 && strlen(text) == len);
    for (size_t i = 0; i < len; i++)
        REQUIRE((unsigned char)text[i] >= 0x20 && text[i] != 0x7f);
}

static void check(const struct oci_credentials *c)
{
    struct secret basic = SECRET_INIT;
    struct err err = ERR_INIT;

    REQUIRE(!secret_is_set(&c->password) || !secret_is_set(&c->identity));
    if (c->username != NULL)
        REQUIRE(strchr(c->username, ':') == NULL);
    if (secret_is_set(&c->identity))
        check_plain(secret_text(&c->identity), c->identity.len);
    if (!secret_is_set(&c->password))
        return;
    check_plain(c->username, strlen(c->username));
    check_plain(secret_text(&c->password), c->password.len);
    REQUIRE(oci_credentials_basic(c, &basic, &err) == 0);
    check_plain(secret_text(&basic), basic.len);
    secret_release(&basic);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const urls[] = {"https://registry-1.docker.io", "https://r.example/a/b",
                                       "http://127.0.0.1:5000"};
    struct oci_credentials c;
    struct oci_auth_entry e;
    struct err err = ERR_INIT;

    for (size_t i = 0; i < ARRAY_LEN(urls); i++) {
        err_clear(&err);
        if (oci_auth_file_find((const char *)data, size, urls[i], &e, &err) < 0)
            REQUIRE(oci_credentials_anonymous(&e.credentials) && e.credentials.username == NULL && e.helper == NULL);
        REQUIRE(e.helper == NULL || (oci_helper_name_valid(e.helper) && oci_credentials_anonymous(&e.credentials)));
        check(&e.credentials);
        oci_auth_entry_release(&e);
    }
    err_clear(&err);
    if (oci_helper_reply((const char *)data, size, &c, &err) < 0)
        REQUIRE(oci_credentials_anonymous(&c) && c.username == NULL);
    check(&c);
    oci_credentials_release(&c);
    return 0;
}
