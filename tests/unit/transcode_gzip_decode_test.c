/* SPDX-License-Identifier: Apache-2.0
 * transcode/gzip_decode.c, inflate_zlib.c, inflate_isal.c: every rule, by both libraries, in every feed.
 */
#include "transcode/codec_internal.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <zlib.h>

#include "tests/unit/transcode_util.h"

static const struct decode_limits no_limits = {.max_out_bytes = UINT64_MAX};

static void put_u32(uint8_t *p, uint32_t v)
{
    for (unsigned i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

enum { HCRC = 2, EXTRA = 4, NAME = 8, COMMENT = 16 };

/* One member: header with the flagged fields, raw deflate by zlib, trailer. */
static void add_member(struct bytes *out, unsigned flags, const void *data, size_t len, int level, int strategy)
{
    uint8_t head[10] = {0x1f, 0x8b, 8, (uint8_t)flags, 1, 2, 3, 4, 0, 3};
    size_t start = out->len, cap = compressBound(len) + 1000;
    uint8_t *body = malloc(cap), trailer[8];
    z_stream z = {.next_in = (Bytef *)(uintptr_t)data, .avail_in = (uInt)len, .next_out = body, .avail_out = (uInt)cap};

    bytes_add(out, head, sizeof head);
    if (flags & EXTRA)
        bytes_add(out,
                  "\x06\x00"
                  "AB\x02\x00zz",
                  8);
    if (flags & NAME)
        bytes_add(out, "layer.tar", 10);
    if (flags & COMMENT)
        bytes_add(out, "a comment", 10);
    if (flags & HCRC) {
        put_u32(trailer, (uint32_t)crc32(0, out->p + start, (uInt)(out->len - start)));
        bytes_add(out, trailer, 2);
    }
    assert_non_null(body);
    assert_int_equal(deflateInit2(&z, level, Z_DEFLATED, -15, 8, strategy), Z_OK);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    bytes_add(out, body, z.total_out);
    deflateEnd(&z);
    free(body);
    put_u32(trailer, (uint32_t)crc32(0, data, (uInt)len));
    put_u32(trailer + 4, (uint32_t)len);
    bytes_add(out, trailer, 8);
}

static int decode(enum gzip_backend b, const struct bytes *in, const struct feed *fd, struct bytes *out)
{
    struct err err = ERR_INIT;
    struct filter *f;
    int rc;

    assert_int_equal(gzip_decoder_new(b, &no_limits, &f, &err), 0);
    rc = feed_all(f, in->p, in->len, fd, out, &err);
    assert_int_equal(rc, err.code);
    return rc;
}

/* The stream gives `want` in every feed and library. */
static void expect_data(const struct bytes *in, const void *want, size_t len)
{
    for (unsigned i = 0; i < 2 * ARRAY_LEN(feeds); i++) {
        CLEANUP(bytes_release) struct bytes out = {.p = NULL};

        if (!gzip_backend_built(i % 2) || !feed_suits(&feeds[i / 2], len))
            continue;
        assert_int_equal(decode(i % 2, in, &feeds[i / 2], &out), 0);
        assert_int_equal(out.len, len);
        if (len > 0)
            assert_memory_equal(out.p, want, len);
    }
}

static void expect_error(const struct bytes *in, int want)
{
    for (unsigned i = 0; i < 2 * ARRAY_LEN(feeds); i++) {
        CLEANUP(bytes_release) struct bytes out = {.p = NULL};

        if (gzip_backend_built(i % 2))
            assert_int_equal(decode(i % 2, in, &feeds[i / 2], &out), want);
    }
}

static void test_block_types(void **state UNUSED)
{
    static const struct {
        int level, strategy;
    } kinds[] = {{0, Z_DEFAULT_STRATEGY}, {1, Z_FIXED},        {1, Z_DEFAULT_STRATEGY},
                 {9, Z_DEFAULT_STRATEGY}, {6, Z_HUFFMAN_ONLY}, {6, Z_RLE}};
    enum { MAX = 200000 };
    static const size_t sizes[] = {0, 1, 1000, 33000, MAX};
    static uint8_t text[MAX], noise[MAX], zeros[MAX];

    fill_text(text, MAX, 1);
    fill_noise(noise, MAX, 2);
    for (unsigned i = 0; i < ARRAY_LEN(kinds) * ARRAY_LEN(sizes); i++) {
        size_t len = sizes[i / ARRAY_LEN(kinds)];
        const uint8_t *data[] = {text, noise, zeros};

        for (unsigned n = 0; n < 3; n++) {
            CLEANUP(bytes_release) struct bytes in = {.p = NULL};

            add_member(&in, 0, data[n], len, kinds[i % ARRAY_LEN(kinds)].level, kinds[i % ARRAY_LEN(kinds)].strategy);
            expect_data(&in, data[n], len);
        }
    }
}

/* Past ISA-L's inner buffer of 64 KiB, a byte at a time. */
static void test_byte_by_byte(void **state UNUSED)
{
    enum { LEN = 150000 };
    static uint8_t text[LEN];
    CLEANUP(bytes_release) struct bytes in = {.p = NULL};

    fill_text(text, LEN, 10);
    add_member(&in, 0, text, LEN, 6, Z_DEFAULT_STRATEGY);
    for (unsigned i = 0; i < 2 * ARRAY_LEN(feeds); i++) {
        CLEANUP(bytes_release) struct bytes out = {.p = NULL};

        if (!gzip_backend_built(i % 2) || feed_suits(&feeds[i / 2], LEN))
            continue;
        assert_int_equal(decode(i % 2, &in, &feeds[i / 2], &out), 0);
        assert_int_equal(out.len, LEN);
        assert_memory_equal(out.p, text, LEN);
    }
}

static void test_header_fields(void **state UNUSED)
{
    for (unsigned flags = 0; flags < 32; flags++) { /* bit 0, FTEXT, means nothing */
        CLEANUP(bytes_release) struct bytes in = {.p = NULL};

        add_member(&in, flags, "header", 6, 6, Z_DEFAULT_STRATEGY);
        expect_data(&in, "header", 6);
        if (flags & HCRC) {
            size_t pos = 10 + (flags & EXTRA ? 8 : 0) + (flags & NAME ? 10 : 0) + (flags & COMMENT ? 10 : 0);

            in.p[pos] ^= 1;
            expect_error(&in, ERR_CORRUPT);
            in.p[pos] ^= 1;
            in.p[5] ^= 1; /* the time */
            expect_error(&in, ERR_CORRUPT);
        }
    }
}

static void test_empty_and_long_fields(void **state UNUSED)
{
    CLEANUP(bytes_release) struct bytes in = {.p = NULL}, plain = {.p = NULL};
    static uint8_t extra[65535];

    add_member(&plain, 0, "x", 1, 6, Z_DEFAULT_STRATEGY);
    bytes_add(&in,
              "\x1f\x8b\x08\x0c\0\0\0\0\0\xff"
              "\0\0"
              "\0",
              13); /* FEXTRA of nothing, FNAME of nothing */
    bytes_add(&in, plain.p + 10, plain.len - 10);
    bytes_add(&in,
              "\x1f\x8b\x08\x04\0\0\0\0\0\xff"
              "\xff\xff",
              12);
    bytes_add(&in, extra, sizeof extra);
    bytes_add(&in, plain.p + 10, plain.len - 10);
    expect_data(&in, "xx", 2);
}

static void test_bad_headers(void **state UNUSED)
{
    static const struct {
        unsigned pos, value;
    } cases[] = {{0, 0x1e}, {0, 0}, {1, 0x8a}, {2, 7}, {3, 0x20}, {3, 0x40}, {3, 0x80}};

    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        CLEANUP(bytes_release) struct bytes in = {.p = NULL};

        add_member(&in, 0, "header", 6, 6, Z_DEFAULT_STRATEGY);
        in.p[cases[i].pos] = (uint8_t)cases[i].value;
        expect_error(&in, ERR_FORMAT);
    }
}

static void test_members_and_padding(void **state UNUSED)
{
    CLEANUP(bytes_release) struct bytes in = {.p = NULL};
    static uint8_t zeros[1024];

    add_member(&in, NAME, "one ", 4, 6, Z_DEFAULT_STRATEGY);
    add_member(&in, 0, "", 0, 6, Z_DEFAULT_STRATEGY);
    add_member(&in, EXTRA | HCRC, "two ", 4, 0, Z_DEFAULT_STRATEGY);
    add_member(&in, COMMENT, "three", 5, 9, Z_FIXED);
    expect_data(&in, "one two three", 13);
    bytes_add(&in, zeros, 1);
    expect_data(&in, "one two three", 13);
    bytes_add(&in, zeros, sizeof zeros);
    expect_data(&in, "one two three", 13);
    add_member(&in, 0, "late", 4, 6, Z_DEFAULT_STRATEGY);
    expect_error(&in, ERR_FORMAT);
}

static void test_trailing_bytes(void **state UNUSED)
{
    static const struct {
        const char *bytes;
        size_t len;
    } cases[] = {{"x", 1},
                 {"\0x", 2},
                 {"\0\0\0\0\0\0\0\0\x01", 9},
                 {"\x1f", 1},
                 {"\x1f\x8b\x08", 3},
                 {"\x1f\0", 2},
                 {"\x28\xb5\x2f\xfd", 4}};

    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        CLEANUP(bytes_release) struct bytes in = {.p = NULL};

        add_member(&in, 0, "data", 4, 6, Z_DEFAULT_STRATEGY);
        bytes_add(&in, cases[i].bytes, cases[i].len);
        expect_error(&in, ERR_FORMAT);
    }
}

/* Cut at every byte, in the first member and in the second. */
static void test_truncation(void **state UNUSED)
{
    CLEANUP(bytes_release) struct bytes in = {.p = NULL};
    static uint8_t text[400];
    size_t first;

    fill_text(text, sizeof text, 3);
    add_member(&in, HCRC | EXTRA | NAME | COMMENT, text, sizeof text, 6, Z_DEFAULT_STRATEGY);
    first = in.len;
    add_member(&in, HCRC | EXTRA | NAME | COMMENT, text, 60, 0, Z_DEFAULT_STRATEGY);
    for (size_t len = 0; len < in.len; len++) {
        struct bytes cut = {.p = in.p, .len = len};

        if (len != first)
            expect_error(&cut, ERR_FORMAT);
    }
}

static void test_trailer(void **state UNUSED)
{
    static uint8_t text[5000];

    fill_text(text, sizeof text, 4);
    for (unsigned i = 0; i < 64; i++) {
        CLEANUP(bytes_release) struct bytes in = {.p = NULL};

        add_member(&in, 0, text, i % 2 ? sizeof text : 20, 6, Z_DEFAULT_STRATEGY);
        in.p[in.len - 1 - i / 8] ^= (uint8_t)(1u << i % 8);
        expect_error(&in, ERR_CORRUPT);
    }
}

/* Data that no encoder writes; bodies in hex, behind a plain header. */
static void test_invalid_deflate(void **state UNUSED)
{
    static const struct {
        const char *bytes;
        size_t len;
    } cases[] = {
        {"\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00", 10},             /* block type 3 */
        {"\x01\x05\x00\x00\x00hello\x00\x00\x00", 13},                /* stored, NLEN wrong */
        {"\x4b\x84\x41\x00\x00\x00\x00\x00\x00\x00\x00", 11},         /* distance before the start */
        {"\x05\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", 13}, /* dynamic, no code lengths */
        {"\xfd\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 13}, /* dynamic, too many symbols */
        {"\x1b\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 13}, /* fixed, symbols 286 and 287 */
    };

    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        CLEANUP(bytes_release) struct bytes in = {.p = NULL};

        bytes_add(&in, "\x1f\x8b\x08\x00\0\0\0\0\0\xff", 10);
        bytes_add(&in, cases[i].bytes, cases[i].len);
        bytes_add(&in, "................................", 32);
        expect_error(&in, ERR_CORRUPT);
    }
}

/* Deflate by hand: bits from the lowest up, Huffman codes from their highest bit down (RFC 1951, 3.1.1). */
struct bit_writer {
    uint8_t b[400];
    size_t bits;
};

static void put_bits(struct bit_writer *w, unsigned value, unsigned n)
{
    for (unsigned i = 0; i < n; i++, w->bits++)
        w->b[w->bits / 8] |= (uint8_t)((value >> i & 1) << (w->bits % 8));
}

static void put_code(struct bit_writer *w, unsigned code, unsigned n)
{
    while (n-- > 0)
        put_bits(w, code >> n & 1, 1);
}

/* One dynamic block: lengths of 'a', 'b', end of block, match of 3; of distances 1, 2, 3; then coded symbols. */
struct code_set {
    const char *name;
    uint8_t a, b, end, match, dist[3];
    const char *symbols; /* as bits */
    const char *text;
    int zlib, isal;
};

static void add_code_set(struct bytes *in, const struct code_set *set)
{
    static const uint8_t order[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    struct bit_writer w = {.bits = 0};
    uint8_t trailer[8];

    put_bits(&w, 1 | 2 << 1, 3);
    put_bits(&w, 1, 5);  /* 258 literals and lengths */
    put_bits(&w, 2, 5);  /* 3 distances */
    put_bits(&w, 15, 4); /* 19 code lengths: 4 bits for each of 0 to 15 */
    for (unsigned i = 0; i < 19; i++)
        put_bits(&w, order[i] < 16 ? 4 : 0, 3);
    for (unsigned i = 0; i < 258; i++)
        put_code(&w, i == 'a' ? set->a : i == 'b' ? set->b : i == 256 ? set->end : i == 257 ? set->match : 0, 4);
    for (unsigned i = 0; i < 3; i++)
        put_code(&w, set->dist[i], 4);
    for (const char *s = set->symbols; *s != '\0'; s++)
        put_bits(&w, *s == '1', 1);
    put_u32(trailer, (uint32_t)crc32(0, (const Bytef *)set->text, (uInt)strlen(set->text)));
    put_u32(trailer + 4, (uint32_t)strlen(set->text));
    bytes_add(in, "\x1f\x8b\x08\x00\0\0\0\0\0\xff", 10);
    bytes_add(in, w.b, (w.bits + 7) / 8);
    bytes_add(in, trailer, 8);
}

/* Huffman codes with too many, too few, or no lengths. Where the libraries differ is written down in inflate_isal.c. */
static const struct code_set code_sets[] = {
    {"complete",
     2,
     2,
     2,
     2,
     {1, 1, 0},
     "00110"
     "10",
     "aaaa",
     0,
     0},
    {"end alone", 0, 0, 1, 0, {0, 0, 0}, "0", "", 0, 0},
    {"no distance", 1, 0, 1, 0, {0, 0, 0}, "01", "a", 0, 0},
    {"one distance",
     2,
     2,
     2,
     2,
     {1, 0, 0},
     "00110"
     "10",
     "aaaa",
     0,
     0},
    {"its missing code",
     2,
     2,
     2,
     2,
     {1, 0, 0},
     "00111"
     "10",
     "aaaa",
     ERR_CORRUPT,
     ERR_CORRUPT},
    {"no distance, used",
     2,
     2,
     2,
     2,
     {0, 0, 0},
     "00110"
     "10",
     "aaaa",
     ERR_CORRUPT,
     ERR_CORRUPT},
    {"no end", 1, 1, 0, 0, {0, 0, 0}, "0", "a", ERR_CORRUPT, ERR_CORRUPT},
    {"too many literals", 1, 1, 1, 0, {0, 0, 0}, "00", "a", ERR_CORRUPT, ERR_CORRUPT},
    {"too many distances", 1, 0, 1, 0, {1, 1, 1}, "01", "a", ERR_CORRUPT, ERR_CORRUPT},
    {"few literals", 2, 0, 2, 0, {0, 0, 0}, "0001", "a", ERR_CORRUPT, 0},
    {"few, missing used", 2, 0, 2, 0, {0, 0, 0}, "0011", "a", ERR_CORRUPT, ERR_CORRUPT},
    {"few distances",
     2,
     2,
     2,
     2,
     {2, 2, 0},
     "001100"
     "10",
     "aaaa",
     ERR_CORRUPT,
     0},
};

static void test_code_sets(void **state UNUSED)
{
    for (unsigned i = 0; i < ARRAY_LEN(code_sets) * ARRAY_LEN(feeds) * 2; i++) {
        const struct code_set *set = &code_sets[i / 2 / ARRAY_LEN(feeds)];
        CLEANUP(bytes_release) struct bytes in = {.p = NULL}, out = {.p = NULL};
        int rc;

        if (!gzip_backend_built(i % 2))
            continue;
        add_code_set(&in, set);
        rc = decode(i % 2, &in, &feeds[i / 2 % ARRAY_LEN(feeds)], &out);
        if (rc != (i % 2 == GZIP_ISAL ? set->isal : set->zlib))
            fail_msg("%s, %s: %d", set->name, i % 2 ? "ISA-L" : "zlib", rc);
        if (rc == 0)
            assert_memory_equal(out.p, set->text, strlen(set->text));
    }
}

/* ISIZE is modulo 2^32: as if 4 GiB less 16 bytes had come before. */
static void test_isize_wraps(void **state UNUSED)
{
    for (unsigned b = 0; b < 2; b++) {
        CLEANUP(bytes_release) struct bytes in = {.p = NULL};
        struct stream_in head;
        uint8_t room[64];
        struct stream_out out = {.ptr = room, .len = sizeof room};
        struct err err = ERR_INIT;
        struct filter *f;

        if (!gzip_backend_built(b))
            continue;
        add_member(&in, 0, "seventeen bytes..", 17, 6, Z_DEFAULT_STRATEGY);
        put_u32(in.p + in.len - 4, 1);
        head = (struct stream_in){.ptr = in.p, .len = 10};
        assert_int_equal(gzip_decoder_new(b, &no_limits, &f, &err), 0);
        assert_int_equal(filter_step(f, &head, false, &out, &err), STEP_MORE);
        gzip_decoder_add_length(f, 0xfffffff0u);
        head = (struct stream_in){.ptr = in.p + 10, .len = in.len - 10};
        assert_int_equal(filter_step(f, &head, true, &out, &err), STEP_EOF);
        assert_int_equal(out.pos, 17);
        filter_free(f);
    }
}

/* One damaged byte: both libraries give the same answer. Cuts in feeds must not matter either. */
static void test_libraries_agree(void **state UNUSED)
{
    CLEANUP(bytes_release) struct bytes in = {.p = NULL};
    static uint8_t text[3000];
    uint64_t seed = 5;

    fill_text(text, sizeof text, 5);
    add_member(&in, HCRC | NAME, text, sizeof text, 6, Z_DEFAULT_STRATEGY);
    for (unsigned i = 0; i < 2000; i++) {
        size_t pos = test_random(&seed) % in.len;
        uint8_t old = in.p[pos];
        int answer[2] = {0, 0};

        in.p[pos] ^= (uint8_t)(1 + test_random(&seed) % 255);
        for (unsigned b = 0; b < 2; b++) {
            CLEANUP(bytes_release) struct bytes out = {.p = NULL};

            if (gzip_backend_built(b))
                answer[b] = decode(b, &in, &feeds[i % ARRAY_LEN(feeds)], &out);
            else
                answer[b] = answer[0];
        }
        assert_int_equal(answer[0] == 0, answer[1] == 0);
        in.p[pos] = old;
    }
}

/* 4.5 GiB, so that every counter passes 32 bits. About half a minute: RECASK_LONG=1. */
static void test_long(void **state UNUSED)
{
    enum { MIB = 1 << 20, COUNT = 4608 };
    static uint8_t zeros[MIB], coded[MIB], plain[MIB];

    if (getenv("RECASK_LONG") == NULL)
        skip();
    for (unsigned b = 0; b < 2; b++) {
        CLEANUP(filter_cleanup) struct filter *enc = NULL, *dec = NULL;
        struct stream_in from = {.ptr = coded};
        uint64_t in_bytes = 0, out_bytes = 0;
        struct err err = ERR_INIT;
        bool encoded = false;
        int rc = STEP_MORE;

        if (!gzip_backend_built(b))
            continue;
        assert_int_equal(gzip_encoder_new(b, 1, &enc, &err), 0);
        assert_int_equal(gzip_decoder_new(b, &no_limits, &dec, &err), 0);
        while (rc != STEP_EOF) {
            struct stream_out to = {.ptr = plain, .len = sizeof plain};

            if (from.pos == from.len && !encoded) {
                bool last = in_bytes + MIB >= (uint64_t)COUNT * MIB;
                struct stream_in in = {.ptr = zeros, .len = in_bytes < (uint64_t)COUNT * MIB ? MIB : 0};
                struct stream_out out = {.ptr = coded, .len = sizeof coded};

                encoded = filter_step(enc, &in, last, &out, &err) == STEP_EOF;
                in_bytes += in.pos;
                from = (struct stream_in){.ptr = coded, .len = out.pos};
            }
            rc = filter_step(dec, &from, encoded, &to, &err);
            assert_true(rc >= 0);
            assert_memory_equal(plain, zeros, to.pos);
            out_bytes += to.pos;
        }
        assert_true(out_bytes == (uint64_t)COUNT * MIB);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_block_types),     cmocka_unit_test(test_byte_by_byte),
        cmocka_unit_test(test_header_fields),   cmocka_unit_test(test_empty_and_long_fields),
        cmocka_unit_test(test_bad_headers),     cmocka_unit_test(test_members_and_padding),
        cmocka_unit_test(test_trailing_bytes),  cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_trailer),         cmocka_unit_test(test_invalid_deflate),
        cmocka_unit_test(test_code_sets),       cmocka_unit_test(test_isize_wraps),
        cmocka_unit_test(test_libraries_agree), cmocka_unit_test(test_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
