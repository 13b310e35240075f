/* links: proxy */
/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/range_fuzz.c - Range: the answer lies inside the blob, whatever the header says. The first eight bytes
 * are the blob's size.
 */
#include "proxy/negotiate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const char *text, uint64_t size_bytes)
{
    CLEANUP(range_release) struct range r = {.kind = RANGE_NONE};
    struct err err = ERR_INIT;

    REQUIRE(range_parse(text, size_bytes, &r, &err) == 0);
    switch (r.kind) {
    case RANGE_NONE:
    case RANGE_UNSATISFIABLE:
        REQUIRE(r.first == 0 && r.last == 0 && r.count == 0);
        break;
    case RANGE_ONE:
        REQUIRE(r.first <= r.last && r.last < size_bytes && r.spans == NULL);
        break;
    case RANGE_SEVERAL:
        REQUIRE(r.count > 0 && r.count <= RANGES_MAX);
        for (size_t i = 0; i < r.count; i++)
            REQUIRE(r.spans[i].first <= r.spans[i].last && r.spans[i].last < size_bytes);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    CLEANUP(free_ptr) char *text = NULL;
    uint64_t size_bytes;

    if (size < sizeof(size_bytes))
        return 0;
    memcpy(&size_bytes, data, sizeof(size_bytes));
    text = malloc(size - sizeof(size_bytes) + 1);
    REQUIRE(text != NULL);
    memcpy(text, data + sizeof(size_bytes), size - sizeof(size_bytes));
    text[size - sizeof(size_bytes)] = '\0';
    check(text, size_bytes);
    check(text, 0);
    check(text, 1);
    check(text, UINT64_MAX);
    return 0;
}
