/* SPDX-License-Identifier: Apache-2.0
 * base/digest.c: NIST's vectors (FIPS 180-4 examples, SHA256ShortMsg), text forms, running hashes.
 */
#include "base/digest.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const struct {
    const char *text;
    const char *hex;
} vectors[] = {
    {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
     "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    {"\xd3", "28969cdfa74a12c82f3bad960b0b000aca2ac329deea5c2328ebc6f2ba9802c1"},
    {"\x11\xaf", "5ca7133fa735326081558ac312c620eeca9970d1e70a4b95533d956f072d1f98"},
};

static void test_vectors(void **state UNUSED)
{
    for (size_t i = 0; i < ARRAY_LEN(vectors); i++) {
        struct digest d;

        digest_of(vectors[i].text, strlen(vectors[i].text), &d);
        assert_string_equal(digest_hex(&d).s, vectors[i].hex);
        assert_memory_equal(digest_text(&d).s, "sha256:", 7);
        assert_string_equal(digest_text(&d).s + 7, vectors[i].hex);
    }
    struct digest empty;
    digest_of(NULL, 0, &empty);
    assert_string_equal(digest_hex(&empty).s, vectors[0].hex);
}

static void test_million_a(void **state UNUSED)
{
    CLEANUP(hasher_cleanup) struct hasher *h = NULL;
    struct err err = ERR_INIT;
    struct digest d;
    char block[1000];

    memset(block, 'a', sizeof block);
    assert_int_equal(hasher_new(&h, &err), 0);
    for (int i = 0; i < 1000; i++)
        hasher_update(h, block, sizeof block);
    hasher_peek(h, &d);
    assert_string_equal(digest_hex(&d).s, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void test_peek_and_clone_leave_the_hash_running(void **state UNUSED)
{
    CLEANUP(hasher_cleanup) struct hasher *h = NULL;
    CLEANUP(hasher_cleanup) struct hasher *other = NULL;
    struct err err = ERR_INIT;
    struct digest d, want;

    assert_int_equal(hasher_new(&h, &err), 0);
    hasher_peek(h, &d);
    assert_string_equal(digest_hex(&d).s, vectors[0].hex);
    hasher_update(h, "ab", 2);
    hasher_peek(h, &d);
    assert_int_equal(hasher_clone(h, &other, &err), 0);
    hasher_update(h, "c", 1);
    hasher_update(h, NULL, 0);
    hasher_peek(h, &d);
    assert_string_equal(digest_hex(&d).s, vectors[1].hex);
    hasher_update(other, "d", 1);
    hasher_peek(other, &d);
    digest_of("abd", 3, &want);
    assert_true(digest_equal(&d, &want));
}

static void test_parse(void **state UNUSED)
{
    const char *good = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad and more";
    struct err err = ERR_INIT;
    struct digest d, want;

    digest_of("abc", 3, &want);
    assert_int_equal(digest_parse(good, 71, &d, &err), 0);
    assert_true(digest_equal(&d, &want));
}

static void test_parse_refuses(void **state UNUSED)
{
#define HEX60 "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f200"
    static const struct {
        const char *text;
        int code;
    } cases[] = {
        {"", ERR_FORMAT},
        {":", ERR_FORMAT},
        {"sha256", ERR_FORMAT},
        {"sha256:", ERR_FORMAT},
        {"sha256:" HEX60, ERR_FORMAT},
        {"sha256:" HEX60 "15a", ERR_FORMAT},
        {"sha256:" HEX60 "15add", ERR_FORMAT},
        {"sha256:" HEX60 "15AD", ERR_FORMAT},
        {"sha256:" HEX60 "15a/", ERR_FORMAT},
        {"SHA256:" HEX60 "15ad", ERR_FORMAT},
        {"sha256/x:" HEX60 "15ad", ERR_FORMAT},
        {"+sha:" HEX60 "15ad", ERR_FORMAT},
        {"latest", ERR_FORMAT},
        {"sha512:" HEX60 HEX60, ERR_UNSUPPORTED},
        {"blake3:00", ERR_UNSUPPORTED},
        {"multihash+base58:QmRZxt2b1FVZPNqd8hsiykDL3TdBDeTSPX9Kv46HmX4Gx8", ERR_UNSUPPORTED},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err err = ERR_INIT;
        struct digest d;

        assert_int_equal(digest_parse(cases[i].text, strlen(cases[i].text), &d, &err), cases[i].code);
        assert_int_equal(err.code, cases[i].code);
    }
}

static void test_compare(void **state UNUSED)
{
    struct digest a = {{1}}, b = {{2}}, zero = {{0}};

    assert_true(digest_cmp(&a, &b) < 0);
    assert_true(digest_cmp(&b, &a) > 0);
    assert_int_equal(digest_cmp(&a, &a), 0);
    assert_true(digest_is_zero(&zero));
    assert_false(digest_is_zero(&a));
    assert_false(digest_equal(&a, &b));
    assert_true(digest_hash64(&a) != digest_hash64(&b));
    b.b[0] = 1;
    b.b[31] = 1;
    assert_true(digest_cmp(&a, &b) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_million_a),
        cmocka_unit_test(test_peek_and_clone_leave_the_hash_running),
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_parse_refuses),
        cmocka_unit_test(test_compare),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
