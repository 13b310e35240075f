/* links: store base */
/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/chunk_fuzz.c - the input is a program: each 4 bytes append a run to a stream (zeros, one byte repeated,
 * noise, or a copy of what came before). The stream's cuts hold the limits of chunker.h and do not depend on pieces.
 */
#include "base/compiler.h"
#include "store/chunker.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define STREAM_MAX ((size_t)2 << 20)
#define CUTS_MAX 128

static size_t expand(const uint8_t *data, size_t size, uint8_t *out)
{
    size_t len = 0;

    for (size_t i = 0; i + 4 <= size && len < STREAM_MAX; i += 4) {
        size_t run = ((size_t)data[i + 1] << 8 | data[i + 2]) * 8 + 1;
        uint32_t noise = data[i + 3] | 1u;

        if (run > STREAM_MAX - len)
            run = STREAM_MAX - len;
        for (size_t k = 0; k < run; k++, len++) {
            noise = noise * 1664525 + 1013904223;
            switch (data[i] % 4) {
            case 0:
                out[len] = 0;
                break;
            case 1:
                out[len] = data[i + 3];
                break;
            case 2:
                out[len] = (uint8_t)(noise >> 24);
                break;
            case 3:
                out[len] = len > 100000 ? out[len - 100000] : 7;
                break;
            }
        }
    }
    return len;
}

static size_t cut(const uint8_t *stream, size_t len, size_t piece, size_t *ends)
{
    struct chunker c;
    size_t pos = 0, start = 0, count = 0;

    chunker_init(&c);
    while (pos < len) {
        size_t want = piece < len - pos ? piece : len - pos;
        bool found;
        size_t n = chunker_scan(&c, stream + pos, want, &found);

        REQUIRE(n > 0 && n <= want && (found || n == want));
        pos += n;
        REQUIRE(pos - start <= CHUNK_MAX_BYTES);
        if (found) {
            REQUIRE(pos - start > CHUNK_MIN_BYTES && count < CUTS_MAX);
            ends[count++] = start = pos;
        }
    }
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t stream[STREAM_MAX];
    size_t whole[CUTS_MAX], parts[CUTS_MAX];
    size_t len = expand(data, size, stream);
    size_t count = cut(stream, len, STREAM_MAX, whole);

    REQUIRE(cut(stream, len, size % 70000 + 1, parts) == count);
    REQUIRE(memcmp(whole, parts, count * sizeof(whole[0])) == 0);
    return 0;
}
