/* SPDX-License-Identifier: Apache-2.0
 * base/base64.c: RFC 4648's own vectors, and what is none.
 */
#include "base/base64.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_vectors(void **state UNUSED)
{
    static const struct {
        const char *data, *text;
    } rows[] = {{"", ""},
                {"f", "Zg=="},
                {"fo", "Zm8="},
                {"foo", "Zm9v"},
                {"foob", "Zm9vYg=="},
                {"fooba", "Zm9vYmE="},
                {"foobar", "Zm9vYmFy"},
                {"\xfb\xff\xbf", "+/+/"}};

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char text[BASE64_TEXT_BYTES(6)];
        uint8_t data[BASE64_DATA_BYTES(8)];
        size_t len;

        base64_encode(rows[i].data, strlen(rows[i].data), text);
        assert_string_equal(text, rows[i].text);
        for (size_t cut = 0; cut < 2; cut++) { /* with its padding and without */
            size_t text_len = cut ? strcspn(text, "=") : strlen(text);

            assert_true(base64_decode(text, text_len, data, &len));
            assert_int_equal(len, strlen(rows[i].data));
            assert_memory_equal(data, rows[i].data, len);
        }
    }
}

static void test_none(void **state UNUSED)
{
    static const char *const rows[] = {
        "Z", "Zg=", "Zg===", "Z===", "====", "=", "Zm9v=", "Zm 9", "Zm9\n", "Zm-_", "Zh==", "Zm9=", "Zg==Zg=="};
    uint8_t data[BASE64_DATA_BYTES(16)];
    size_t len;

    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (base64_decode(rows[i], strlen(rows[i]), data, &len))
            fail_msg("%s", rows[i]);
    assert_false(base64_decode("Zm\0v", 4, data, &len));
}

static void test_all_bytes(void **state UNUSED)
{
    uint8_t all[256], back[BASE64_DATA_BYTES(BASE64_TEXT_BYTES(sizeof all))];
    char text[BASE64_TEXT_BYTES(sizeof all)];
    size_t len;

    for (size_t i = 0; i < sizeof all; i++)
        all[i] = (uint8_t)(i * 7);
    for (size_t n = 0; n <= sizeof all; n++) {
        base64_encode(all, n, text);
        assert_true(base64_decode(text, strlen(text), back, &len));
        assert_int_equal(len, n);
        assert_memory_equal(back, all, n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_vectors), cmocka_unit_test(test_none),
                                       cmocka_unit_test(test_all_bytes)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
