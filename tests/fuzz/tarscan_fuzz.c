/* links: store base */
/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/tarscan_fuzz.c - any bytes, in one piece and in pieces that the input chooses: the same cuts.
 */
#include "base/compiler.h"
#include "store/tarscan.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CUTS_MAX 4096

struct cuts {
    size_t at[CUTS_MAX];
    size_t count;
};

/* pieces: byte i says how long piece i is (0: all that is left). Each piece is a copy, for ASan. */
static void scan(const uint8_t *data, size_t size, const uint8_t *pieces, size_t piece_count, struct cuts *out)
{
    struct tarscan t;
    size_t pos = 0;

    tarscan_init(&t);
    out->count = 0;
    for (size_t i = 0; pos < size; i++) {
        size_t len = piece_count > 0 ? (size_t)pieces[i % piece_count] * 3 : 0;
        bool cut;

        if (len == 0 || len > size - pos)
            len = size - pos;
        uint8_t *copy = malloc(len);
        REQUIRE(copy != NULL);
        memcpy(copy, data + pos, len);
        size_t n = tarscan_scan(&t, copy, len, &cut);
        free(copy);
        REQUIRE(n > 0 && n <= len && (cut || n == len));
        pos += n;
        if (cut && out->count < CUTS_MAX)
            out->at[out->count++] = pos;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct cuts whole, parts;
    size_t piece_count = size > 0 ? data[0] % 16 : 0;

    /* The last bytes choose the pieces, so that a corpus file is a tar from its first byte on. */
    if (piece_count > size)
        piece_count = 0;
    scan(data, size, NULL, 0, &whole);
    scan(data, size, data + size - piece_count, piece_count, &parts);
    REQUIRE(whole.count == parts.count);
    REQUIRE(memcmp(whole.at, parts.at, whole.count * sizeof(whole.at[0])) == 0);
    return 0;
}
