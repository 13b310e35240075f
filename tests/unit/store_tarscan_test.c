/* SPDX-License-Identifier: Apache-2.0
 * store/tarscan.c: where files begin and end in every kind of tar, in pieces of any size.
 */
#include "store/tarscan.h"
#include "tests/unit/store_tar.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define BIG ((size_t)70001) /* over the limit, and not a multiple of 512 */
#define CUTS_MAX 64

struct cuts {
    size_t at[CUTS_MAX];
    size_t count;
};

static void scan(const struct tar *t, size_t piece_max, uint64_t seed, struct cuts *out)
{
    struct tarscan s;
    uint64_t state = seed * 2 + 1;
    size_t pos = 0;

    tarscan_init(&s);
    out->count = 0;
    while (pos < t->len) {
        size_t piece = piece_max > 0 ? 1 + next_random(&state) % piece_max : t->len;
        bool cut;

        if (piece > t->len - pos)
            piece = t->len - pos;
        /* A copy of its own size, so that ASan sees a look beyond it. */
        uint8_t *copy = malloc(piece);
        assert_non_null(copy);
        memcpy(copy, t->data + pos, piece);
        size_t n = tarscan_scan(&s, copy, piece, &cut);
        free(copy);
        assert_true(n > 0 && n <= piece);
        assert_true(cut || n == piece);
        pos += n;
        if (cut) {
            assert_true(out->count < CUTS_MAX);
            out->at[out->count++] = pos;
        }
    }
}

/* The cuts are exactly `want`, for any pieces. Releases t. */
static void expect(struct tar *t, const size_t *want, size_t count)
{
    static const size_t pieces[] = {0, 1, 3, 511, 513, 70000};

    for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
        struct cuts got;

        scan(t, pieces[i], i, &got);
        assert_int_equal(got.count, count);
        for (size_t k = 0; k < count; k++)
            assert_int_equal(got.at[k], want[k]);
    }
    tar_release(t);
}

static void test_ustar_files(void **state UNUSED)
{
    struct tar t = {0};
    size_t want[4];

    (void)tar_header(&t, "dir/", '5', 0);
    (void)tar_file(&t, "small", 65535, 1);
    want[0] = tar_file(&t, "exact", 65536, 2);
    want[1] = want[0] + 65536;
    (void)tar_file(&t, "empty", 0, 3);
    want[2] = tar_file(&t, "big", BIG, 4);
    want[3] = want[2] + BIG;
    tar_end(&t);
    expect(&t, want, 4);
}

static void test_v7_and_contiguous_types(void **state UNUSED)
{
    struct tar t = {0};
    size_t want[4];

    for (int i = 0; i < 2; i++) {
        size_t at = tar_file(&t, "f", BIG, 1);
        uint8_t *b = t.data + at - 512;

        b[156] = (uint8_t)(i == 0 ? '\0' : '7');
        if (i == 0)
            memset(b + 257, 0, 8); /* no magic */
        tar_sum(b);
        want[2 * i] = at;
        want[2 * i + 1] = at + BIG;
    }
    expect(&t, want, 4);
}

/* Old tars give a hard link the size of its file, without data. */
static void test_links_have_no_data(void **state UNUSED)
{
    struct tar t = {0};
    size_t want[2];

    for (int type = '1'; type <= '6'; type++)
        (void)tar_header(&t, "link", (char)type, BIG);
    want[0] = tar_file(&t, "f", BIG, 1);
    want[1] = want[0] + BIG;
    expect(&t, want, 2);
}

static void test_gnu_long_names(void **state UNUSED)
{
    struct tar t = {0};
    size_t want[2];
    static const char types[] = {'L', 'K'};

    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        /* As long as a file that would be cut, to see that it is not. */
        (void)tar_header(&t, "././@LongLink", types[i], BIG);
        memset(tar_room(&t, BIG), 'n', BIG);
        tar_pad(&t);
    }
    want[0] = tar_file(&t, "f", BIG, 1);
    want[1] = want[0] + BIG;
    expect(&t, want, 2);
}

static void test_gnu_sparse(void **state UNUSED)
{
    struct tar t = {0};
    size_t want[6];

    for (size_t blocks = 0; blocks < 3; blocks++) {
        size_t at = tar_header(&t, "sparse", 'S', BIG); /* size: what is stored */

        memcpy(t.data + at + 257, "ustar  ", 8);
        memcpy(t.data + at + 483, "00010000000", 12); /* realsize, not to be used */
        t.data[at + 482] = blocks > 0;
        tar_sum(t.data + at);
        for (size_t i = 0; i < blocks; i++)
            tar_room(&t, 512)[504] = i + 1 < blocks;
        want[2 * blocks] = t.len;
        want[2 * blocks + 1] = t.len + BIG;
        fill_text(tar_room(&t, BIG), BIG, blocks);
        tar_pad(&t);
    }
    expect(&t, want, 6);
}

/* pax 1.0: the map stands in front of the data and counts; GNU.sparse.realsize does not. */
static void test_pax_sparse(void **state UNUSED)
{
    struct tar t = {0};
    size_t want[4];

    tar_pax(&t, 'x', "GNU.sparse.realsize", "1000000000");
    want[0] = tar_file(&t, "GNUSparseFile.1/f", BIG, 1);
    want[1] = want[0] + BIG;
    want[2] = tar_file(&t, "next", BIG, 2);
    want[3] = want[2] + BIG;
    expect(&t, want, 4);
}

static void test_pax_size(void **state UNUSED)
{
    struct tar t = {0};
    size_t want[4];

    for (int i = 0; i < 2; i++) {
        size_t at;

        tar_pax(&t, 'x', "size", "70001");
        if (i == 1) { /* a long name between the two changes nothing */
            (void)tar_header(&t, "././@LongLink", 'L', 5);
            tar_add(&t, "name", 5);
            tar_pad(&t);
        }
        at = tar_file(&t, "f", BIG, 1);
        memcpy(t.data + at - 512 + 124, "00000000000", 12);
        tar_sum(t.data + at - 512);
        want[2 * i] = at;
        want[2 * i + 1] = at + BIG;
    }
    (void)tar_file(&t, "the override is over", 100, 1);
    expect(&t, want, 4);
}

static void test_pax_records_that_look_like_size(void **state UNUSED)
{
    static const char *const keys[] = {"SCHILY.realsize", "siz", "sizes", "xsize", "comment"};
    struct tar t = {0};
    size_t want[2];

    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        tar_pax(&t, 'x', keys[i], "9=size=9\n3 size=8");
    want[0] = tar_file(&t, "f", BIG, 1);
    want[1] = want[0] + BIG;
    expect(&t, want, 2);
}

static void test_pax_global_size(void **state UNUSED)
{
    struct tar t = {0};
    size_t want[4], at;

    tar_pax(&t, 'g', "size", "70001");
    for (int i = 0; i < 2; i++) {
        at = tar_file(&t, "f", BIG, (uint64_t)i);
        memcpy(t.data + at - 512 + 124, "00000000007", 12);
        tar_sum(t.data + at - 512);
        want[2 * i] = at;
        want[2 * i + 1] = at + BIG;
    }
    tar_pax(&t, 'x', "size", "1000"); /* a local one wins */
    (void)tar_file(&t, "f", 1000, 3);
    tar_pax(&t, 'g', "size", ""); /* and an empty one takes it back */
    (void)tar_file(&t, "f", 3000, 3);
    expect(&t, want, 4);
}

static void test_base256_size(void **state UNUSED)
{
    struct tar t = {0};
    size_t want[3];

    (void)tar_header_as(&t, "f", '0', BIG, TAR_BASE256);
    want[0] = t.len;
    want[1] = t.len + BIG;
    fill_text(tar_room(&t, BIG), BIG, 1);
    tar_pad(&t);
    /* Larger than octal can say; the stream ends before it does. */
    (void)tar_header_as(&t, "huge", '0', UINT64_C(1) << 40, TAR_BASE256);
    want[2] = t.len;
    (void)tar_room(&t, 100000);
    expect(&t, want, 3);
}

static void test_impossible_sizes_lose_the_way(void **state UNUSED)
{
    for (int i = 0; i < 4; i++) {
        struct tar t = {0};
        size_t at;

        if (i == 3)
            tar_pax(&t, 'x', "size", "99999999999999999999999");
        at = tar_file(&t, "f", BIG, 1) - 512;
        if (i == 0)
            memset(t.data + at + 124, 0xff, 12); /* negative */
        else if (i == 1)
            t.data[at + 124] = 0x80, t.data[at + 128] = 0xff; /* over 63 bits */
        else if (i == 2)
            t.data[at + 130] = '8';
        tar_sum(t.data + at);
        expect(&t, NULL, 0);
    }
}

static void test_bad_pax_loses_the_way(void **state UNUSED)
{
    static const char *const records[] = {"x size=1\n", " size=1\n", "9 size=1x", "2 =", "99999999999999 size=1\n",
                                          "3 \n",       "1 size=1\n"};

    for (size_t i = 0; i < ARRAY_LEN(records); i++) {
        struct tar t = {0};

        (void)tar_header(&t, "x", 'x', strlen(records[i]));
        tar_add(&t, records[i], strlen(records[i]));
        tar_pad(&t);
        (void)tar_file(&t, "f", BIG, 1);
        expect(&t, NULL, 0);
    }
}

static void test_not_a_tar(void **state UNUSED)
{
    struct tar t = {0};

    fill_random(tar_room(&t, 200000), 200000, 1);
    expect(&t, NULL, 0);
    (void)tar_room(&t, 512); /* begins with zeros: no header */
    (void)tar_file(&t, "f", BIG, 1);
    expect(&t, NULL, 0);
    tar_add(&t, "short", 5);
    expect(&t, NULL, 0);
}

static void test_a_bad_checksum_ends_the_cuts(void **state UNUSED)
{
    struct tar t = {0};
    size_t want[2];

    want[0] = tar_file(&t, "f", BIG, 1);
    want[1] = want[0] + BIG;
    size_t at = tar_header(&t, "broken", '0', BIG);
    t.data[at] ^= 1;
    fill_text(tar_room(&t, BIG), BIG, 2);
    tar_pad(&t);
    (void)tar_file(&t, "f", BIG, 1);
    expect(&t, want, 2);
}

static void test_signed_checksum(void **state UNUSED)
{
    struct tar t = {0};
    size_t at = tar_file(&t, "\xc3\xa4", BIG, 1);
    size_t want[2] = {at, at + BIG};
    unsigned sum = 0;

    for (size_t i = 0; i < 512; i++)
        sum += (unsigned)(int8_t)(i >= 148 && i < 156 ? ' ' : t.data[i]);
    (void)snprintf((char *)t.data + 148, 8, "%06o", sum);
    expect(&t, want, 2);
}

/* cat a.tar b.tar: read on after the zeros (tar -i does). */
static void test_after_the_zero_blocks(void **state UNUSED)
{
    struct tar t = {0};
    size_t want[2];

    (void)tar_file(&t, "f", 100, 1);
    tar_end(&t);
    (void)tar_room(&t, 8192);
    want[0] = tar_file(&t, "f", BIG, 1);
    want[1] = want[0] + BIG;
    tar_end(&t);
    expect(&t, want, 2);
}

static void test_every_truncation(void **state UNUSED)
{
    struct tar t = {0};
    struct cuts got;

    tar_pax(&t, 'x', "size", "70001");
    size_t at = tar_file(&t, "f", BIG, 1);
    for (size_t len = 0; len < t.len; len += len < 2100 ? 1 : 997) {
        struct tar part = {.data = t.data, .len = len};

        scan(&part, 0, 0, &got);
        assert_int_equal(got.count, (len >= at) + (len >= at + BIG));
    }
    tar_release(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ustar_files),
        cmocka_unit_test(test_v7_and_contiguous_types),
        cmocka_unit_test(test_links_have_no_data),
        cmocka_unit_test(test_gnu_long_names),
        cmocka_unit_test(test_gnu_sparse),
        cmocka_unit_test(test_pax_sparse),
        cmocka_unit_test(test_pax_size),
        cmocka_unit_test(test_pax_records_that_look_like_size),
        cmocka_unit_test(test_pax_global_size),
        cmocka_unit_test(test_base256_size),
        cmocka_unit_test(test_impossible_sizes_lose_the_way),
        cmocka_unit_test(test_bad_pax_loses_the_way),
        cmocka_unit_test(test_not_a_tar),
        cmocka_unit_test(test_a_bad_checksum_ends_the_cuts),
        cmocka_unit_test(test_signed_checksum),
        cmocka_unit_test(test_after_the_zero_blocks),
        cmocka_unit_test(test_every_truncation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
