/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/cli_args_test.c - flags and words of a command line. */
#include "cli/args.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const struct flag flags[] = {{"--store", "DIR", "where"}, {"--json", NULL, "JSON"}, {NULL, NULL, NULL}};
static const struct command look = {.name = "look", .synopsis = "REF", .flags = flags, .min_words = 1, .max_words = 2};
static const struct command run = {.name = "run", .synopsis = "[FLAGS]", .flags = flags, .config_flags = true};

#define ARGV_MAX 10

static int parse(const struct command *cmd, const char *line, struct args *out, struct err *err)
{
    static char copy[256];
    char *argv[ARGV_MAX], *save = NULL;
    int argc = 0;

    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok_r(copy, " ", &save); word != NULL && argc < ARGV_MAX; word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    return args_parse(cmd, argc, argv, out, err);
}

static void good(void **state UNUSED)
{
    static const char *const lines[] = {
        "alpine --store /s --json",
        "--store /s alpine --json",
        "--json --store=/s alpine",
        "--store=/s --json -- alpine",
        "--store /other --store /s --json alpine",
    };

    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        CLEANUP(args_release) struct args args = {.help = false};
        struct err err = ERR_INIT;

        if (parse(&look, lines[i], &args, &err) < 0)
            fail_msg("%s: %s", lines[i], err.msg);
        assert_string_equal(args_value(&args, "--store"), "/s");
        assert_true(args_has(&args, "--json"));
        assert_int_equal(args.word_count, 1);
        assert_string_equal(args.words[0], "alpine");
        assert_false(args.help);
    }
}

static void odd_but_good(void **state UNUSED)
{
    CLEANUP(args_release) struct args dash = {.help = false};
    CLEANUP(args_release) struct args end = {.help = false};
    CLEANUP(args_release) struct args empty = {.help = false};
    struct err err = ERR_INIT;

    assert_int_equal(parse(&look, "- --store=--json", &dash, &err), 0);
    assert_string_equal(dash.words[0], "-");
    assert_string_equal(args_value(&dash, "--store"), "--json");
    assert_false(args_has(&dash, "--json"));
    assert_int_equal(parse(&look, "-- --json --help", &end, &err), 0);
    assert_int_equal(end.word_count, 2);
    assert_false(end.help);
    assert_int_equal(parse(&look, "--store= x", &empty, &err), 0);
    assert_string_equal(args_value(&empty, "--store"), "");
}

static void bad(void **state UNUSED)
{
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"", "look: something is missing: recask look REF"},
        {"a b c", "look: \"c\" is one word too many"},
        {"a --sotre /s", "look: unknown flag \"--sotre\"; did you mean --store?"},
        {"a --sotre=/s", "look: unknown flag \"--sotre\"; did you mean --store?"},
        {"a --quota 1", "look: unknown flag \"--quota\""},
        {"a -x", "look: unknown flag \"-x\""},
        {"a --json=1", "look: --json takes no value"},
        {"a --store", "look: --store needs a value: --store DIR"},
        {"a --store --json", "look: --store needs a value: --store DIR"},
        {"a --stor", "look: unknown flag \"--stor\"; did you mean --store?"},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        CLEANUP(args_release) struct args args = {.help = false};
        struct err err = ERR_INIT;

        assert_int_equal(parse(&look, cases[i].line, &args, &err), ERR_USAGE);
        assert_string_equal(err.msg, cases[i].says);
    }
}

static void help_wins(void **state UNUSED)
{
    static const char *const lines[] = {"--help", "-h", "a b c d --help", "--nonsense -h"};

    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        CLEANUP(args_release) struct args args = {.help = false};
        struct err err = ERR_INIT;

        assert_int_equal(parse(&look, lines[i], &args, &err), 0);
        assert_true(args.help);
    }
}

/* A command with config_flags takes every flag of the table of keys. */
static void configuration_flags(void **state UNUSED)
{
    CLEANUP(args_release) struct args args = {.help = false};
    struct err err = ERR_INIT;

    assert_int_equal(
        parse(&run, "--upstream a=http://a --quota=1GiB --offline --json --upstream http://b", &args, &err), 0);
    assert_int_equal(args.flag_count, 5);
    assert_string_equal(args.flags[0].value, "a=http://a");
    assert_string_equal(args_value(&args, "--upstream"), "http://b");
    assert_string_equal(args_value(&args, "--quota"), "1GiB");
    assert_string_equal(args_value(&args, "--offline"), "true");
    args_release(&args);
    assert_int_equal(parse(&run, "--offlin", &args, &err), ERR_USAGE);
    assert_string_equal(err.msg, "run: unknown flag \"--offlin\"; did you mean --offline?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good),      cmocka_unit_test(odd_but_good),        cmocka_unit_test(bad),
        cmocka_unit_test(help_wins), cmocka_unit_test(configuration_flags),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
