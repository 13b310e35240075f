/* SPDX-License-Identifier: Apache-2.0 */
#include "store/chunker.h"
#include "tests/unit/store_tar.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define DATA_BYTES ((size_t)12 << 20)
#define CUTS_MAX 1024

struct cuts {
    size_t end[CUTS_MAX];
    size_t count;
};

/* Cuts data fed in pieces of 1..piece_max bytes (0: all at once). */
static void cut_all(const uint8_t *data, size_t len, size_t piece_max, uint64_t seed, struct cuts *out)
{
    struct chunker c;
    uint64_t state = seed * 2 + 1;
    size_t pos = 0;

    chunker_init(&c);
    out->count = 0;
    while (pos < len) {
        size_t piece = piece_max > 0 ? 1 + next_random(&state) % piece_max : len;
        bool cut = false;

        if (piece > len - pos)
            piece = len - pos;
        size_t n = chunker_scan(&c, data + pos, piece, &cut);
        assert_true(n > 0 && n <= piece);
        assert_true(cut || n == piece);
        pos += n;
        if (cut) {
            assert_true(out->count < CUTS_MAX);
            out->end[out->count++] = pos;
        }
    }
}

static uint8_t *random_data(size_t len, uint64_t seed)
{
    uint8_t *data = malloc(len);

    assert_non_null(data);
    fill_random(data, len, seed);
    return data;
}

/* The table is what its comment says: it may never change, see chunker.h. */
static void test_gear_is_splitmix64(void **state UNUSED)
{
    uint64_t s = UINT64_C(0x72656361736b3031);

    for (int i = 0; i < 256; i++) {
        uint64_t z = s += UINT64_C(0x9e3779b97f4a7c15);

        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        assert_true(chunker_gear[i] == (z ^ (z >> 31)));
    }
}

/* The definition in chunker.h, written down a second time without any speed. */
static size_t slow_cut(const uint8_t *data, size_t len)
{
    for (size_t n = CHUNK_MIN_BYTES + 1; n <= len; n++) {
        uint64_t h = 0;

        if (n == CHUNK_MAX_BYTES)
            return n;
        for (size_t i = n - 64; i < n; i++)
            h = 2 * h + chunker_gear[data[i]];
        if (h < (n <= CHUNK_NORMAL_BYTES ? UINT64_C(1) << 44 : UINT64_C(1) << 48))
            return n;
    }
    return 0;
}

static void test_cuts_follow_the_definition(void **state UNUSED)
{
    uint8_t *data = random_data(DATA_BYTES / 8, 7);
    static struct cuts cuts;
    size_t start = 0;

    cut_all(data, DATA_BYTES / 8, 0, 0, &cuts);
    assert_true(cuts.count > 3);
    for (size_t i = 0; i < cuts.count; i++) {
        assert_int_equal(slow_cut(data + start, DATA_BYTES / 8 - start), cuts.end[i] - start);
        start = cuts.end[i];
    }
    assert_int_equal(slow_cut(data + start, DATA_BYTES / 8 - start), 0);
    free(data);
}

static void test_pieces_do_not_matter(void **state UNUSED)
{
    static const size_t pieces[] = {1, 7, 4096, 65537, 3 << 20};
    uint8_t *data = random_data(DATA_BYTES, 1);
    static struct cuts whole, cuts;

    cut_all(data, DATA_BYTES, 0, 0, &whole);
    for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
        cut_all(data, DATA_BYTES, pieces[i], i, &cuts);
        assert_int_equal(cuts.count, whole.count);
        assert_memory_equal(cuts.end, whole.end, whole.count * sizeof(whole.end[0]));
    }
    free(data);
}

/* Golden: chunk names of stores in use hang on these. */
static void test_cuts_never_change(void **state UNUSED)
{
    static const size_t want[] = {332534, 477432, 750438, 1055107, 1342295, 1543386, 1764091, 2062836};
    uint8_t *data = random_data((size_t)2 << 20, 42);
    static struct cuts cuts;

    cut_all(data, (size_t)2 << 20, 0, 0, &cuts);
    assert_int_equal(cuts.count, ARRAY_LEN(want));
    assert_memory_equal(cuts.end, want, sizeof(want));
    free(data);
}

static void test_sizes_hold_their_limits(void **state UNUSED)
{
    uint8_t *data = random_data(DATA_BYTES, 3);
    static struct cuts cuts;
    size_t start = 0;

    cut_all(data, DATA_BYTES, 0, 0, &cuts);
    for (size_t i = 0; i < cuts.count; i++) {
        assert_in_range(cuts.end[i] - start, CHUNK_MIN_BYTES + 1, CHUNK_MAX_BYTES);
        start = cuts.end[i];
    }
    assert_in_range(DATA_BYTES / cuts.count, 180 << 10, 340 << 10);
    free(data);
}

static void test_zeros_are_cut_at_the_maximum(void **state UNUSED)
{
    uint8_t *data = calloc(1, (size_t)3 << 20);
    static struct cuts cuts;

    assert_non_null(data);
    cut_all(data, (size_t)3 << 20, 5000, 1, &cuts);
    assert_int_equal(cuts.count, 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(cuts.end[i], (i + 1) << 20);
    free(data);
}

static void test_an_insertion_spoils_few_chunks(void **state UNUSED)
{
    uint8_t *data = random_data(DATA_BYTES, 5);
    uint8_t *edited = malloc(DATA_BYTES + 17);
    static struct cuts a, b;
    size_t at = DATA_BYTES / 3, shared = 0;

    assert_non_null(edited);
    memcpy(edited, data, at);
    memset(edited + at, 'x', 17);
    memcpy(edited + at + 17, data + at, DATA_BYTES - at);
    cut_all(data, DATA_BYTES, 0, 0, &a);
    cut_all(edited, DATA_BYTES + 17, 0, 0, &b);
    for (size_t i = 0; i < a.count; i++)
        for (size_t j = 0; j < b.count; j++)
            shared += a.end[i] < at ? a.end[i] == b.end[j] : a.end[i] + 17 == b.end[j];
    assert_true(shared + 6 >= a.count);
    free(data);
    free(edited);
}

static void test_forced_cut_starts_afresh(void **state UNUSED)
{
    uint8_t *data = random_data(DATA_BYTES / 8, 9);
    struct chunker a, b;
    bool cut_a, cut_b;

    chunker_init(&a);
    chunker_init(&b);
    assert_int_equal(chunker_scan(&a, data, 70000, &cut_a), 70000);
    assert_false(cut_a);
    chunker_cut(&a);
    assert_int_equal(chunker_scan(&a, data + 70000, 1 << 20, &cut_a), chunker_scan(&b, data + 70000, 1 << 20, &cut_b));
    assert_true(cut_a && cut_b);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gear_is_splitmix64),
        cmocka_unit_test(test_cuts_follow_the_definition),
        cmocka_unit_test(test_pieces_do_not_matter),
        cmocka_unit_test(test_cuts_never_change),
        cmocka_unit_test(test_sizes_hold_their_limits),
        cmocka_unit_test(test_zeros_are_cut_at_the_maximum),
        cmocka_unit_test(test_an_insertion_spoils_few_chunks),
        cmocka_unit_test(test_forced_cut_starts_afresh),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
