/* links: proxy */
/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/accept_fuzz.c - Accept and Accept-Encoding.
 */
#include "proxy/negotiate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char index_type[] = "application/vnd.oci.image.index.v1+json";

/* What stands first in a header counts, whatever follows it. */
static void check_prefixed(const char *text)
{
    CLEANUP(free_ptr) char *allowed = NULL;
    CLEANUP(free_ptr) char *refused = NULL;
    struct err err = ERR_INIT;

    REQUIRE(str_printf(&allowed, &err, "%s, %s", index_type, text) == 0);
    REQUIRE(accept_allows(allowed, index_type));
    REQUIRE(str_printf(&refused, &err, "zstd;q=0, gzip;q=0, %s", text) == 0);
    REQUIRE(accept_encoding_choose(refused) == CODEC_NONE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    CLEANUP(free_ptr) char *text = malloc(size + 1);
    const char *type = "unset";
    enum codec c;

    REQUIRE(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    check_prefixed(text);
    c = accept_encoding_choose(text);
    /* A coding that is not named, in any case, cannot be chosen. */
    REQUIRE(c != CODEC_ZSTD || strcasestr(text, "zstd") != NULL);
    REQUIRE(c != CODEC_GZIP || strcasestr(text, "gzip") != NULL);
    (void)accept_allows(text, index_type);
    c = accept_layer_form(text, &type);
    REQUIRE((c == CODEC_NONE) == (type == NULL));
    if (type != NULL)
        REQUIRE(strcasestr(text, type) != NULL);
    return 0;
}
