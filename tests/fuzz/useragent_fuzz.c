/* links: oci */
/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/useragent_fuzz.c - User-Agent headers: whatever they say, the answer is one that the client can read.
 */
#include "oci/client.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    CLEANUP(free_ptr) char *text = malloc(size + 1);
    struct oci_client c;

    REQUIRE(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    oci_client_identify(text, &c);
    REQUIRE(c.name != NULL);
    for (int bits = 0; bits < 24; bits++) {
        bool accepts_oci = bits & 1;
        bool wanted_set = bits & 2;
        enum oci_view wanted = (enum oci_view)(bits / 8);
        enum oci_view v = oci_choose_view(&c, wanted_set, wanted, bits & 4 ? LINK_WAN : LINK_LAN, accepts_oci);

        REQUIRE(v != VIEW_ZSTD || (accepts_oci && c.reads_zstd_original));
        if (!wanted_set)
            REQUIRE(v == VIEW_ORIGINAL || c.takes_canonical);
    }
    return 0;
}
