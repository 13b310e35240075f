/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/config_value_test.c - sizes, durations, addresses, URLs, names; and "did you mean". */
#include "config/nearest.h"
#include "config/value.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define KB 1000ull
#define KIB 1024ull

static void sizes(void **state UNUSED)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"4096", 4096},
        {"17B", 17},
        {"500MB", 500 * KB * KB},
        {"10GiB", 10 * KIB * KIB * KIB},
        {"10 GiB", 10 * KIB * KIB * KIB},
        {"10gib", 10 * KIB * KIB * KIB},
        {"1.5TiB", 3 * KIB * KIB * KIB * KIB / 2},
        {"0.125KiB", 128},
        {"1PB", KB * KB * KB * KB * KB},
        {"8191PiB", 8191ull << 50},
    };
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "wants a size"},
        {"GiB", "wants a size"},
        {"-1", "wants a size"},
        {"10G", "GB (powers of 1000) or GiB (powers of 1024)"},
        {"10m", "MB (powers of 1000)"},
        {"10GiBx", "wants a size"},
        {"1.GiB", "wants a size"},
        {"1.2345GiB", "wants a size"},
        {"80%", "wants a size"},
        {"8192PiB", "more than recask can count"},
        {"99999999999999999999", "wants a size"},
        {"0x10", "wants a size"},
    };

    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        struct err err = ERR_INIT;
        uint64_t bytes = 1;

        assert_int_equal(config_size_parse(good[i].text, &bytes, &err), 0);
        assert_int_equal(bytes, good[i].bytes);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct err err = ERR_INIT;
        uint64_t bytes;

        assert_int_equal(config_size_parse(bad[i].text, &bytes, &err), ERR_USAGE);
        assert_non_null(strstr(err.msg, bad[i].says));
    }
}

static void durations(void **state UNUSED)
{
    static const struct {
        const char *text;
        int64_t ms; /* -1: refused */
    } cases[] = {
        {"250ms", 250},    {"60s", 60000}, {"5m", 300000}, {"12h", 43200000},
        {"7d", 604800000}, {"0s", 0},      {"60", -1},     {"", -1},
        {"s", -1},         {"5 m", -1},    {"1.5h", -1},   {"-5s", -1},
        {"5M", -1},        {"5min", -1},   {"1h30m", -1},  {"999999999999999d", -1},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err err = ERR_INIT;
        int64_t ms = -1;

        assert_int_equal(config_duration_parse(cases[i].text, &ms, &err), cases[i].ms < 0 ? ERR_USAGE : 0);
        assert_int_equal(ms, cases[i].ms);
    }

    struct err err = ERR_INIT;
    int64_t ms;
    assert_int_equal(config_duration_parse("60", &ms, &err), ERR_USAGE);
    assert_string_equal(err.msg, "\"60\" has no unit: say 60s for seconds, or use ms, m, h, d");
}

static void small_values(void **state UNUSED)
{
    struct err err = ERR_INIT;
    unsigned percent;
    int64_t n;
    bool yes = false;
    int word;

    assert_int_equal(config_percent_parse("80%", &percent, &err), 0);
    assert_int_equal(percent, 80);
    assert_int_equal(config_percent_parse("100%", &percent, &err), 0);
    assert_int_equal(config_percent_parse("0%", &percent, &err), ERR_USAGE);
    assert_int_equal(config_percent_parse("101%", &percent, &err), ERR_USAGE);
    assert_int_equal(config_percent_parse("80", &percent, &err), ERR_USAGE);
    assert_int_equal(config_int_parse("-3", -5, 5, &n, &err), 0);
    assert_int_equal(n, -3);
    assert_int_equal(config_int_parse("6", -5, 5, &n, &err), ERR_USAGE);
    assert_int_equal(config_int_parse(" 3", -5, 5, &n, &err), ERR_USAGE);
    assert_int_equal(config_int_parse("+3", -5, 5, &n, &err), ERR_USAGE);
    assert_int_equal(config_int_parse("3x", -5, 5, &n, &err), ERR_USAGE);
    assert_int_equal(config_int_parse("", -5, 5, &n, &err), ERR_USAGE);
    assert_int_equal(config_int_parse("99999999999999999999", 0, 5, &n, &err), ERR_USAGE);
    assert_int_equal(config_bool_parse("YES", &yes, &err), 0);
    assert_true(yes);
    assert_int_equal(config_bool_parse("off", &yes, &err), 0);
    assert_false(yes);
    assert_int_equal(config_bool_parse("maybe", &yes, &err), ERR_USAGE);
    assert_int_equal(config_choice_parse("zstd", "auto|original|zstd", &word, &err), 0);
    assert_int_equal(word, 2);
    assert_int_equal(config_choice_parse("zst", "auto|original|zstd", &word, &err), ERR_USAGE);
    assert_int_equal(config_choice_parse("", "auto|original|zstd", &word, &err), ERR_USAGE);
    assert_int_equal(config_choice_parse("auto|original", "auto|original|zstd", &word, &err), ERR_USAGE);
}

static void addresses(void **state UNUSED)
{
    static const struct {
        const char *text, *want, *says; /* one of the two */
    } cases[] = {
        {"127.0.0.1:5000", "127.0.0.1:5000", NULL},
        {"0.0.0.0:0", "0.0.0.0:0", NULL},
        {"localhost:5000", "127.0.0.1:5000", NULL},
        {"[::1]:5000", "[::1]:5000", NULL},
        {"[::]:65535", "[::]:65535", NULL},
        {"5000", NULL, "\"5000\" is a port alone: say 127.0.0.1:5000"},
        {":5000", NULL, "say 0.0.0.0:5000 to listen on every interface"},
        {"*:5000", NULL, "say 0.0.0.0:5000 to listen on every interface"},
        {"127.0.0.1", NULL, "wants an address and a port"},
        {"127.0.0.1:", NULL, "no port"},
        {"127.0.0.1:65536", NULL, "no port"},
        {"127.0.0.1:5a", NULL, "no port"},
        {"::1:5000", NULL, "in brackets"},
        {"[::1]", NULL, "wants an address and a port"},
        {"[::1", NULL, "wants an address and a port"},
        {"[fe80::xyz]:1", NULL, "not an IPv6 address"},
        {"example.com:5000", NULL, "not an IP address"},
        {"300.1.1.1:5000", NULL, "not an IP address"},
        {"", NULL, "wants an address and a port"},
        {"http://127.0.0.1:5000", NULL, "in brackets"},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err err = ERR_INIT;
        char *got = NULL;

        if (cases[i].want != NULL) {
            assert_int_equal(config_address_parse(cases[i].text, &got, &err), 0);
            assert_string_equal(got, cases[i].want);
        } else {
            assert_int_equal(config_address_parse(cases[i].text, &got, &err), ERR_USAGE);
            assert_null(got);
            if (strstr(err.msg, cases[i].says) == NULL)
                fail_msg("%s: %s", cases[i].text, err.msg);
        }
        free(got);
    }
    assert_true(config_address_same("127.0.0.1:1", "127.0.0.1:1"));
    assert_false(config_address_same("127.0.0.1:0", "127.0.0.1:0"));
    assert_false(config_address_same("127.0.0.1:1", "127.0.0.2:1"));
}

static void urls(void **state UNUSED)
{
    static const struct {
        const char *text, *url, *name, *says;
    } cases[] = {
        {"https://ghcr.io", "https://ghcr.io", "ghcr.io", NULL},
        {"http://127.0.0.1:5001/", "http://127.0.0.1:5001", "127.0.0.1:5001", NULL},
        {"https://Registry.Example.COM:8443/a/b//", NULL, NULL, "//"},
        {"https://Registry.Example.COM:8443/a/b/", "https://Registry.Example.COM:8443/a/b", "registry.example.com:8443",
         NULL},
        {"http://[::1]:5001", "http://[::1]:5001", "[::1]:5001", NULL},
        {"https://[::1]", "https://[::1]", "[::1]", NULL},
        {"https://my_reg", "https://my_reg", "my_reg", NULL},
        {"ghcr.io", NULL, NULL, "did you mean https://ghcr.io?"},
        {"", NULL, NULL, "is empty"},
        {"/path", NULL, NULL, "https:// or http://"},
        {"ftp://ghcr.io", NULL, NULL, "https:// or http://"},
        {"https://", NULL, NULL, "no valid host"},
        {"https:///x", NULL, NULL, "no valid host"},
        {"https://-x", NULL, NULL, "no valid host"},
        {"https://a b", NULL, NULL, "no valid host"},
        {"https://[::1", NULL, NULL, "no"},
        {"https://[zz]", NULL, NULL, "no valid host"},
        {"https://a:0", NULL, NULL, "no port"},
        {"https://a:99999", NULL, NULL, "no port"},
        {"https://a:", NULL, NULL, "no port"},
        {"https://u:secret@a", NULL, NULL, "credentials"},
        {"u:secret@a", NULL, NULL, "credentials"},
        {"https://a?x=1", NULL, NULL, "query"},
        {"https://a/b#c", NULL, NULL, "query"},
        {"https://a/../b", NULL, NULL, "/../"},
        {"https://a/b/..", NULL, NULL, "/../"},
        {"https://a/b/.", NULL, NULL, "/../"},
        {"https://a/b%20", NULL, NULL, "character"},
        {"https://a/v2/", NULL, NULL, "leave /v2 off"},
        {"https://a/v2", NULL, NULL, "leave /v2 off"},
        {"https://docker.io", NULL, NULL, "https://registry-1.docker.io"},
        {"https://a\nb", NULL, NULL, "control character"},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        CLEANUP(config_url_release) struct config_url got = {0};
        struct err err = ERR_INIT;
        int rc = config_url_parse(cases[i].text, &got, &err);

        assert_null(strstr(err.msg, "secret"));
        if (cases[i].url != NULL) {
            assert_int_equal(rc, 0);
            assert_string_equal(got.url, cases[i].url);
            assert_string_equal(got.name, cases[i].name);
            continue;
        }
        assert_int_equal(rc, ERR_USAGE);
        if (strstr(err.msg, cases[i].says) == NULL)
            fail_msg("%s: %s", cases[i].text, err.msg);
    }
}

static void names(void **state UNUSED)
{
    static const char *const good[] = {"docker.io", "my-registry:5000", "127.0.0.1:5001", "a", "a_b"};
    static const char *const bad[] = {"", "Docker.io", "a/b", "-a", ".a", "a b", "a=b", "[::1]:1"};
    char long_name[300];
    struct err err = ERR_INIT;

    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        assert_int_equal(config_name_check(good[i], &err), 0);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(config_name_check(bad[i], &err), ERR_USAGE);
    memset(long_name, 'a', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    assert_int_equal(config_name_check(long_name, &err), ERR_USAGE);
}

static void shown(void **state UNUSED)
{
    char text[300], utf8[300];

    assert_string_equal(config_show("a\x1b[1mb\n").s, "\"a\\x1b[1mb\\x0a\"");
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = '\0';
    assert_non_null(strstr(config_show(text).s, "aaa...\""));
    for (size_t shift = 0; shift < 4; shift++) {
        size_t at = shift;

        memset(utf8, 'a', shift);
        for (; at + 4 < sizeof utf8; at += 3)
            memcpy(utf8 + at, "\xe2\x82\xac", 3);
        utf8[at] = '\0';
        /* The cut falls between characters. */
        const char *cut = strstr(config_show(utf8).s, "...");
        assert_non_null(cut);
    }
}

static const char *guess(const char *word)
{
    static const char *const words[] = {"serve", "ls", "inspect", "stats", "config", "version"};
    struct nearest n = NEAREST_INIT(word);

    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        nearest_try(&n, words[i]);
    return nearest_best(&n);
}

static void guesses(void **state UNUSED)
{
    assert_string_equal(guess("sevre"), "serve");
    assert_string_equal(guess("servee"), "serve");
    assert_string_equal(guess("stat"), "stats");
    assert_string_equal(guess("verison"), "version");
    assert_null(guess("l"));
    assert_null(guess("pull"));
    assert_null(guess("xyzzy"));
    assert_null(guess(""));
    assert_null(guess("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),     cmocka_unit_test(durations), cmocka_unit_test(small_values),
        cmocka_unit_test(addresses), cmocka_unit_test(urls),      cmocka_unit_test(names),
        cmocka_unit_test(shown),     cmocka_unit_test(guesses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
