/* links: store base */
/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/recipe_fuzz.c - PACK_RECIPE and PACK_BLOB payloads: what parses comes out the same when it is written
 * again.
 */
#include "store/recipe.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_recipe(const uint8_t *data, size_t size)
{
    struct err err = ERR_INIT;
    struct recipe_head head;

    if (recipe_parse(data, size, &head, &err) < 0) {
        REQUIRE(err.code < 0 && err.msg[0] != '\0');
        return;
    }
    REQUIRE(recipe_bytes(head.chunks) == size);
    uint8_t *again = calloc(1, size);
    REQUIRE(again != NULL);
    recipe_put_head(again, &head);
    for (uint32_t i = 0; i < head.chunks; i++) {
        struct recipe_chunk chunk;

        recipe_chunk_at(data, i, &chunk);
        recipe_put_chunk(again, i, &chunk);
    }
    REQUIRE(memcmp(again, data, size) == 0);
    free(again);
}

static void check_link(const uint8_t *data, size_t size)
{
    struct err err = ERR_INIT;
    struct recipe_link link;
    uint8_t again[RECIPE_LINK_BYTES];

    if (recipe_link_parse(data, size, &link, &err) < 0)
        return;
    recipe_link_put(again, &link);
    REQUIRE(size == sizeof(again) && memcmp(again, data, size) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_recipe(data, size);
    check_link(data, size);
    return 0;
}
