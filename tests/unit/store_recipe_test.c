/* SPDX-License-Identifier: Apache-2.0
 * store/recipe.c: payloads that do not hold what they say are refused.
 */
#include "store/recipe.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <string.h>

#define CHUNKS 2u
#define BYTES (RECIPE_HEAD_BYTES + CHUNKS * RECIPE_CHUNK_BYTES)

static void make(uint8_t *out)
{
    struct recipe_head head = {.chunks = CHUNKS, .size_bytes = 70001, .zstd_bytes = 500, .level = -5, .encoder = 10504};
    struct recipe_chunk a = {.digest = {{1}}, .raw_bytes = 70000}, b = {.digest = {{2}}, .raw_bytes = 1};

    head.zstd.b[31] = 7;
    recipe_put_head(out, &head);
    recipe_put_chunk(out, 0, &a);
    recipe_put_chunk(out, 1, &b);
}

static void test_round_trip(void **state UNUSED)
{
    uint8_t data[BYTES];
    struct recipe_head head;
    struct recipe_chunk chunk;
    struct err err = ERR_INIT;

    make(data);
    assert_int_equal(recipe_bytes(CHUNKS), BYTES);
    assert_int_equal(recipe_parse(data, BYTES, &head, &err), 0);
    assert_int_equal(head.chunks, CHUNKS);
    assert_int_equal(head.size_bytes, 70001);
    assert_int_equal(head.zstd_bytes, 500);
    assert_int_equal(head.level, -5);
    assert_int_equal(head.encoder, 10504);
    assert_int_equal(head.zstd.b[31], 7);
    recipe_chunk_at(data, 1, &chunk);
    assert_int_equal(chunk.digest.b[0], 2);
    assert_int_equal(chunk.raw_bytes, 1);
}

/* On disk for ever: byte by byte. */
static void test_layout(void **state UNUSED)
{
    static const uint8_t want[] = {1,    0, 0, 0, 2, 0, 0, 0, 0x71, 0x11, 1,    0,    0,    0,    0, 0,
                                   0xf4, 1, 0, 0, 0, 0, 0, 0, 0xfb, 0xff, 0xff, 0xff, 0x08, 0x29, 0, 0};
    uint8_t data[BYTES];

    make(data);
    assert_memory_equal(data, want, sizeof(want));
    assert_int_equal(data[63], 7);
    assert_int_equal(data[64], 1);
    assert_int_equal(data[64 + 32], 0x70);
    assert_int_equal(data[100], 2);
    assert_int_equal(data[132], 1);
}

static void test_refused(void **state UNUSED)
{
    static const struct {
        size_t off;
        uint8_t value;
        int code;
    } changes[] = {
        {0, 2, ERR_UNSUPPORTED},    /* version */
        {4, 3, ERR_CORRUPT},        /* more chunks than there are bytes for */
        {4, 0, ERR_CORRUPT},        /* none */
        {8, 0, ERR_CORRUPT},        /* another size */
        {132, 0, ERR_CORRUPT},      /* an empty chunk beside another */
        {64 + 34, 17, ERR_CORRUPT}, /* a chunk over 1 MiB */
    };
    struct recipe_head head;

    for (size_t i = 0; i < ARRAY_LEN(changes); i++) {
        uint8_t data[BYTES];
        struct err err = ERR_INIT;

        make(data);
        data[changes[i].off] = changes[i].value;
        assert_int_equal(recipe_parse(data, BYTES, &head, &err), changes[i].code);
    }
    for (size_t len = 0; len < BYTES; len++) {
        uint8_t data[BYTES];
        struct err err = ERR_INIT;

        make(data);
        assert_int_equal(recipe_parse(data, len, &head, &err), ERR_CORRUPT);
    }
}

static void test_link(void **state UNUSED)
{
    struct recipe_link link = {.canonical = {{9}}, .canonical_bytes = 1234}, got;
    uint8_t data[RECIPE_LINK_BYTES + 1] = {0};
    struct err err = ERR_INIT;

    recipe_link_put(data, &link);
    assert_int_equal(recipe_link_parse(data, RECIPE_LINK_BYTES, &got, &err), 0);
    assert_true(digest_equal(&got.canonical, &link.canonical));
    assert_int_equal(got.canonical_bytes, 1234);
    assert_int_equal(recipe_link_parse(data, RECIPE_LINK_BYTES + 1, &got, &err), ERR_CORRUPT);
    err_clear(&err);
    assert_int_equal(recipe_link_parse(data, RECIPE_LINK_BYTES - 1, &got, &err), ERR_CORRUPT);
    err_clear(&err);
    data[4] = 1;
    assert_int_equal(recipe_link_parse(data, RECIPE_LINK_BYTES, &got, &err), ERR_CORRUPT);
    err_clear(&err);
    data[0] = 9;
    assert_int_equal(recipe_link_parse(data, RECIPE_LINK_BYTES, &got, &err), ERR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_link),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
