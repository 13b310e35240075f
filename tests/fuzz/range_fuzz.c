/* links: proxy */
/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/range_fuzz.c - Range: the answer lies inside the blob, whatever the header says. The first eight bytes
 * are the blob's size.
 */
#include "proxy/negotiate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const char *text, uint64_t size_bytes)
{
    struct range r;
    uint64_t first = 0;
    bool known;

    range_parse(text, size_bytes, &r);
    known = range_first(text, &first);
    switch (r.kind) {
    case RANGE_NONE:
        REQUIRE(!known && r.first == 0 && r.last == 0);
        break;
    case RANGE_ONE:
        REQUIRE(r.first <= r.last && r.last < size_bytes);
        REQUIRE(!known || first == r.first);
        break;
    case RANGE_UNSATISFIABLE:
        REQUIRE(!known || first >= size_bytes);
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
