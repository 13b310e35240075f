/* links: proxy */
/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/htpasswd_fuzz.c - a file of users, and what a client says it is.
 */
#include "proxy/access_internal.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char user[ACCESS_USER_MAX_BYTES + 1], password[ACCESS_PASSWORD_MAX_BYTES + 1];
    struct users *us = NULL;
    struct err err = ERR_INIT;
    CLEANUP(free_ptr) char *text = malloc(size + 1);

    REQUIRE(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    if (users_parse("f", (const char *)data, size, &us, &err) == 0) {
        REQUIRE(us->count > 0);
        for (size_t i = 0; i < us->count; i++)
            REQUIRE(users_find(us, us->list[i].name) == &us->list[i]);
        users_unref(us);
    } else {
        REQUIRE(err.code == ERR_USAGE);
    }
    if (basic_parse(text, user, password))
        REQUIRE(user[0] != '\0' && strlen(user) <= ACCESS_USER_MAX_BYTES &&
                strlen(password) <= ACCESS_PASSWORD_MAX_BYTES);
    return 0;
}
