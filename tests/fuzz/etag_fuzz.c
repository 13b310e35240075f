/* links: proxy */
/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/etag_fuzz.c - If-None-Match and If-Match: nothing matches that is not named, what matches strongly matches
 * weakly too, and what stands first in a list that parses is found.
 */
#include "proxy/negotiate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char ours[] = "\"sha256:00ff\"", weak[] = "W/\"sha256:00ff+gzip\"";
    CLEANUP(free_ptr) char *text = malloc(size + 1);
    CLEANUP(free_ptr) char *listed = NULL;
    struct err err = ERR_INIT;

    REQUIRE(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    bool any = strchr(text, '*') != NULL;
    REQUIRE(!etag_matches_strong(text, ours) || etag_matches(text, ours));
    REQUIRE(!etag_matches(text, ours) || any || strstr(text, ours) != NULL);
    REQUIRE(!etag_matches_strong(text, weak) || any);
    (void)etag_matches(ours, text);
    /* Another member in front changes nothing but for "*", which stands alone. */
    REQUIRE(str_printf(&listed, &err, "\"other,one\", %s", text) == 0);
    REQUIRE(any || etag_matches(listed, ours) == etag_matches(text, ours));
    return 0;
}
