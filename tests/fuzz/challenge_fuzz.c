/* links: proxy */
/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/challenge_fuzz.c - WWW-Authenticate of a registry that lies, up to the question whom to ask for a token.
 */
#include "proxy/auth_challenge.h"
#include "proxy/upstream_realm.h"

#include <string.h>
#include <strings.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(const char *text, size_t cap)
{
    REQUIRE(strnlen(text, cap) < cap);
    for (; *text != '\0'; text++)
        REQUIRE(((unsigned char)*text >= 0x20 && *text != 0x7f) || *text == '\t');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct auth_challenge c;
    struct err err = ERR_INIT;

    if (auth_challenge_find((const char *)data, size, "Basic", &c, &err) == 0)
        check_text(c.realm, sizeof c.realm);
    err_clear(&err);
    if (auth_challenge_find((const char *)data, size, "Bearer", &c, &err) < 0) {
        REQUIRE(err.code == ERR_NOTFOUND || err.code == ERR_FORMAT || err.code == ERR_LIMIT);
        return 0;
    }
    check_text(c.realm, sizeof c.realm);
    check_text(c.service, sizeof c.service);
    check_text(c.scope, sizeof c.scope);

    if (realm_check("docker.io", "https://registry-1.docker.io", NULL, c.realm, &err) == 0) {
        size_t host = strlen("https://") + strcspn(c.realm + strlen("https://"), "/?#:\\");
        const char domain[] = "docker.io";

        REQUIRE(strncasecmp(c.realm, "https://", strlen("https://")) == 0);
        /* libcurl dials the decoded name, and that is what was checked. */
        if (memchr(c.realm, '%', host) != NULL)
            return 0;
        REQUIRE(host > strlen(domain));
        REQUIRE(strncasecmp(c.realm + host - strlen(domain), domain, strlen(domain)) == 0);
    }
    return 0;
}
