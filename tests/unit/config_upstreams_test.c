/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/config_upstreams_test.c - the list of upstreams: what an item may say, names and aliases, the known ones,
 * the default one. */
#include "config/config.h"
#include "tests/unit/config_util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const struct config_bad bad_items[] = {
    {"{\"upstreams\": [{\"url\": \"https://a\", \"username\": \"u\"}]}",
     "c.json: upstreams[0].password_file: username and password_file go together"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"password_file\": \"/p\"}]}",
     "c.json: upstreams[0].username: username and password_file go together"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"username\": \"\"}]}", "c.json: upstreams[0].username: is empty"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"username\": \"a\\nb\"}]}",
     "c.json: upstreams[0].username: \"a\\x0ab\" holds a control character"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"token_realms\": [\"https://b\", \"b\"]}]}",
     "c.json: upstreams[0].token_realms[1]: \"b\" is no URL"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"tag_ttl\": \"500ms\"}]}",
     "c.json: upstreams[0].tag_ttl: wants whole seconds, not \"500ms\""},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"insecure\": \"yes\"}]}",
     "c.json: upstreams[0].insecure: wants true or false, not a string"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"ca_file\": \"\"}]}", "c.json: upstreams[0].ca_file: is empty"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"username\": \"u:hunter\"}]}",
     "c.json: upstreams[0].username: a user's name may not hold a colon"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"password\": \"hunter2\"}]}",
     "c.json: upstreams[0]: unknown key \"password\": passwords are not written here but in a file of their own, which upstreams[].password_file names"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"Token\": \"hunter2\"}]}",
     "c.json: upstreams[0]: unknown key \"Token\": passwords are not"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"credential_helper\": \"Ecr\"}]}",
     "c.json: upstreams[0].credential_helper: wants a name such as ecr-login"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"credential_helper\": \"bin/helper\"}]}",
     "c.json: upstreams[0].credential_helper: wants a name such as ecr-login"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"credential_helper\": \"docker-credential-gcr\"}]}",
     "c.json: upstreams[0].credential_helper: \"docker-credential-gcr\": leave docker-credential- off"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"credential_helper\": \"gcr\", \"username\": \"u\", \"password_file\": \"/p\"}]}",
     "c.json: upstreams[0].credential_helper: it is either this or username and password_file"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"cert_file\": \"/c\"}]}",
     "c.json: upstreams[0].key_file: cert_file and key_file go together"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"key_file\": \"/k\"}]}",
     "c.json: upstreams[0].cert_file: cert_file and key_file go together"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"tag_ttl\": \"0s\"}]}",
     "c.json: upstreams[0].tag_ttl: \"0s\" is too short: at least 1s"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"tag_ttl\": \"366d\"}]}",
     "c.json: upstreams[0].tag_ttl: \"366d\" is too long: at most 31536000s"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"http_proxy\": \"proxy:3128\"}]}",
     "c.json: upstreams[0].http_proxy: wants http://HOST:PORT, https://HOST:PORT, socks5h://HOST:PORT or off, not \"proxy:3128\""},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"http_proxy\": \"socks5://proxy:3128\"}]}",
     "c.json: upstreams[0].http_proxy: wants http://HOST:PORT"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"http_proxy\": \"http://proxy\"}]}",
     "c.json: upstreams[0].http_proxy: \"http://proxy\" has no port"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"http_proxy\": \"http://u:secret@proxy:3128\"}]}",
     "c.json: upstreams[0].http_proxy: a proxy's URL may not hold credentials"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"http_proxy\": \"u:secret@proxy:3128\"}]}",
     "c.json: upstreams[0].http_proxy: a proxy's URL may not hold credentials"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"http_proxy\": \"http://proxy:3128/secret@x\"}]}",
     "c.json: upstreams[0].http_proxy: a proxy's URL may not hold credentials"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"http_proxy\": \"http://proxy:3128/x\"}]}",
     "c.json: upstreams[0].http_proxy: \"http://proxy:3128/x\": nothing may stand behind a proxy's port"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"http_proxy\": \"\"}]}", "c.json: upstreams[0].http_proxy: is empty"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"http_proxy\": false}]}",
     "c.json: upstreams[0].http_proxy: wants a string, not true or false"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"max_connections\": 0}]}",
     "c.json: upstreams[0].max_connections: wants a number from 1 to 1024, not \"0\""},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"max_connections\": 1025}]}",
     "c.json: upstreams[0].max_connections: wants a number from 1 to 1024"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"max_rate\": 10001}]}",
     "c.json: upstreams[0].max_rate: wants a number from 1 to 10000"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"max_rate\": \"5\"}]}",
     "c.json: upstreams[0].max_rate: wants a whole number, not a string"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"aliases\": \"b\"}]}",
     "c.json: upstreams[0].aliases: wants a list of strings, not a string"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"aliases\": [\"B\"]}]}",
     "c.json: upstreams[0].aliases[0]: wants a name such as"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"aliases\": [\"b\", \"a\"]}]}",
     "c.json: upstreams[0].aliases[1]: \"a\" names an upstream already (https://a)"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"aliases\": [\"b\", \"b\"]}]}",
     "c.json: upstreams[0].aliases[1]: \"b\" names an upstream already (https://a)"},
    {"{\"upstreams\": [{\"url\": \"https://a\"}, {\"url\": \"https://b\", \"aliases\": [\"c\", \"a\"]}]}",
     "c.json: upstreams[1].aliases[1]: \"a\" names an upstream already (https://a)"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"aliases\": [\"b\"]}, {\"url\": \"https://b\"}]}",
     "c.json: upstreams[1].name: \"b\" names an upstream already (https://a)"},
    {"{\"upstreams\": [{\"name\": \"docker.io\", \"url\": \"https://a\"}, {\"name\": \"index.docker.io\", \"url\": \"https://b\"}]}",
     "c.json: upstreams[1].name: \"index.docker.io\" names an upstream already (https://a)"},
    {"{\"upstreams\": [{\"name\": \"index.docker.io\", \"url\": \"https://b\"}, {\"name\": \"docker.io\", \"url\": \"https://a\"}]}",
     "c.json: upstreams[1].name: \"docker.io\" is also called index.docker.io, which names an upstream already (https://b)"},
};

static void bad(void **state UNUSED)
{
    config_refused(bad_items, ARRAY_LEN(bad_items));
}

static void whole_item(void **state UNUSED)
{
    CLEANUP(config_cleanup)
    struct config *cfg = config_load_good(
        "{\"upstreams\": [{\"name\": \"a\", \"url\": \"https://a.example\", \"aliases\": [\"b\", \"c:5000\"],\n"
        "  \"username\": \"u\", \"password_file\": \"/p\", \"token_realms\": [\"https://t/token/\"],\n"
        "  \"tag_ttl\": \"5m\", \"ca_file\": \"ca\", \"cert_file\": \"/c\", \"key_file\": \"/k\", \"insecure\": true,\n"
        "  \"http_proxy\": \"http://proxy:3128/\", \"max_connections\": 1024, \"max_rate\": 5},\n"
        " {\"url\": \"https://ecr\", \"credential_helper\": \"ecr-login\", \"http_proxy\": \"off\", \"aliases\": []},\n"
        " {\"url\": \"https://x\", \"credential_helper\": \"/opt/h\", \"http_proxy\": \"socks5h://[::1]:1080\"}]}");
    const struct config_upstream *up = &cfg->upstreams[0];

    assert_int_equal(up->aliases.count, 2);
    assert_string_equal(up->aliases.v[1], "c:5000");
    assert_null(up->aliases.v[2]);
    assert_string_equal(up->username, "u");
    assert_string_equal(up->password_file, "/p");
    assert_string_equal(up->token_realms.v[0], "https://t/token");
    assert_int_equal(up->tag_ttl_ms, 300000);
    assert_string_equal(up->ca_file, "ca");
    assert_string_equal(up->cert_file, "/c");
    assert_string_equal(up->key_file, "/k");
    assert_true(up->insecure);
    assert_string_equal(up->http_proxy, "http://proxy:3128");
    assert_int_equal(up->max_connections, 1024);
    assert_int_equal(up->max_rate, 5);
    assert_false(up->known);
    up++;
    assert_null(up->aliases.v);
    assert_null(up->username);
    assert_string_equal(up->credential_helper, "ecr-login");
    assert_string_equal(up->http_proxy, "");
    assert_int_equal(up->tag_ttl_ms, 0);
    assert_int_equal(up->max_connections, 0);
    assert_int_equal(up->max_rate, 0);
    up++;
    assert_string_equal(up->credential_helper, "/opt/h");
    assert_string_equal(up->http_proxy, "socks5h://[::1]:1080");
    up++;
    assert_true(up->known);
    assert_null(up->http_proxy);
}

/* All names in the order of the list, the known ones in brackets. */
static void assert_names(const struct config *cfg, const char *want)
{
    char got[512] = "";
    size_t n = 0;

    for (size_t i = 0; i < cfg->upstream_count; i++) {
        const struct config_upstream *up = &cfg->upstreams[i];

        n += (size_t)snprintf(got + n, sizeof got - n, up->known ? " (%s)" : " %s", up->name);
    }
    assert_string_equal(got, want);
}

#define OTHERS " (ghcr.io) (quay.io) (registry.k8s.io) (gcr.io) (public.ecr.aws) (mcr.microsoft.com)"

static void known(void **state UNUSED)
{
    static const struct {
        const char *file, *names, *fallback;
    } cases[] = {
        {"{}", " (docker.io)" OTHERS, "docker.io"},
        {"{\"default_upstream\": \"quay.io\"}", " (docker.io)" OTHERS, "quay.io"},
        {"{\"upstreams\": [{\"url\": \"https://a\"}]}", " a (docker.io)" OTHERS, "a"},
        {"{\"upstreams\": [{\"url\": \"https://a\"}], \"default_upstream\": \"index.docker.io\"}",
         " a (docker.io)" OTHERS, "docker.io"},
        {"{\"upstreams\": [{\"url\": \"https://registry-1.docker.io\"}]}", " docker.io" OTHERS, "docker.io"},
        {"{\"upstreams\": [{\"name\": \"index.docker.io\", \"url\": \"https://a\"}]}", " index.docker.io" OTHERS,
         "index.docker.io"},
        {"{\"upstreams\": [{\"url\": \"https://a\", \"aliases\": [\"registry-1.docker.io\"]}]}", " a" OTHERS, "a"},
        {"{\"upstreams\": [{\"name\": \"ghcr.io\", \"url\": \"https://mirror\"}, "
         "{\"url\": \"https://b\", \"aliases\": [\"quay.io\", \"gcr.io\"]}]}",
         " ghcr.io b (docker.io) (registry.k8s.io) (public.ecr.aws) (mcr.microsoft.com)", "b"},
        {"{\"known_upstreams\": \"off\"}", " docker.io", "docker.io"},
        {"{\"known_upstreams\": \"off\", \"upstreams\": [{\"url\": \"https://a\"}]}", " a", "a"},
        {"{\"listen\": [{\"address\": \"127.0.0.1:1\", \"upstream\": \"ghcr.io\"}]}", " (docker.io)" OTHERS,
         "docker.io"},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        CLEANUP(config_cleanup) struct config *cfg = config_load_good(cases[i].file);

        assert_names(cfg, cases[i].names);
        assert_string_equal(cfg->default_upstream, cases[i].fallback);
    }
}

static void known_urls(void **state UNUSED)
{
    static const char *const urls[] = {
        "https://registry-1.docker.io", "https://ghcr.io", "https://quay.io",
        "https://registry.k8s.io",      "https://gcr.io",  "https://public.ecr.aws",
        "https://mcr.microsoft.com",
    };
    CLEANUP(config_cleanup) struct config *cfg = config_load_good("{}");

    assert_int_equal(cfg->upstream_count, ARRAY_LEN(urls));
    for (size_t i = 0; i < ARRAY_LEN(urls); i++) {
        assert_string_equal(cfg->upstreams[i].url, urls[i]);
        assert_int_equal(cfg->upstreams[i].add_library, i == 0);
        assert_int_equal(cfg->upstreams[i].aliases.count, i == 0 ? 2 : 0);
    }
}

/* What a variable and a flag can do; and whom a message blames. */
static void known_switched(void **state UNUSED)
{
    static const char *const off[] = {"HOME=/h", "RECASK_KNOWN_UPSTREAMS=off", NULL};
    static const struct config_flag on[] = {{"--known-upstreams", "on"}};
    static const struct config_flag wrong[] = {{"--known-upstreams", "maybe"}};
    static const char none[] = "{\"known_upstreams\": \"off\", \"default_upstream\": \"ghcr.io\"}";
    static const char pinned[] = "{\"listen\": [{\"address\": \"127.0.0.1:1\", \"upstream\": \"ghcr.io\"}]}";
    struct config *cfg;
    struct err err = ERR_INIT;

    assert_int_equal(config_load_with("{}", off, NULL, 0, &cfg, &err), 0);
    assert_names(cfg, " docker.io");
    config_cleanup(&cfg);
    assert_int_equal(config_load_with("{}", off, on, 1, &cfg, &err), 0);
    assert_names(cfg, " (docker.io)" OTHERS);
    config_cleanup(&cfg);
    assert_int_equal(config_load_with("{}", off, wrong, 1, &cfg, &err), ERR_USAGE);
    assert_string_equal(err.msg, "--known-upstreams: wants one of on|off, not \"maybe\"");
    err_clear(&err);
    assert_int_equal(config_load_with(pinned, off, NULL, 0, &cfg, &err), ERR_USAGE);
    assert_string_equal(err.msg, "c.json: listen[0].upstream: no upstream is called \"ghcr.io\" (there is docker.io)");
    err_clear(&err);
    assert_int_equal(config_load_with(none, config_home_env, NULL, 0, &cfg, &err), ERR_USAGE);
    assert_string_equal(err.msg, "c.json: default_upstream: no upstream is called \"ghcr.io\" (there is docker.io)");
}

/* What the default upstream is, for lists of --upstream. */
static void default_upstreams(void **state UNUSED)
{
    static const char file[] = "{\"upstreams\": [{\"name\": \"f\", \"url\": \"https://f\"}, "
                               "{\"name\": \"g\", \"url\": \"https://g\"}], \"default_upstream\": \"g\"}";
    static const char mirror[] = "{\"upstreams\": [{\"name\": \"f\", \"url\": \"https://f\"}, "
                                 "{\"name\": \"ghcr.io\", \"url\": \"https://g\"}], \"default_upstream\": \"ghcr.io\"}";
    static const struct {
        const char *file, *first, *second, *want;
    } cases[] = {
        {NULL, "http://127.0.0.1:5001", NULL, "127.0.0.1:5001"},
        {NULL, "ghcr.io=https://ghcr.io", "http://127.0.0.1:5001/prefix", "127.0.0.1:5001"},
        {NULL, "http://127.0.0.1:1", "http://127.0.0.1:2", "127.0.0.1:1"},
        {NULL, "ghcr.io=https://ghcr.io", "b=https://b", "ghcr.io"},
        {NULL, "https://registry-1.docker.io", NULL, "docker.io"},
        {NULL, "https://index.docker.io", NULL, "docker.io"},
        {file, NULL, NULL, "g"},
        {file, "http://h", NULL, "h"},               /* the file's wish is outranked */
        {file, "h=http://h", NULL, "h"},             /* and forgotten where it names nothing */
        {file, "h=http://h", "g=http://other", "g"}, /* but not where it does */
        {mirror, "h=http://h", NULL, "h"},           /* nor does it mean the known one of that name */
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct config_flag flags[2] = {{"--upstream", cases[i].first}, {"--upstream", cases[i].second}};
        size_t count = (cases[i].first != NULL) + (cases[i].second != NULL);
        CLEANUP(config_cleanup) struct config *cfg = NULL;
        struct err err = ERR_INIT;

        if (config_load_with(cases[i].file, config_home_env, flags, count, &cfg, &err) < 0)
            fail_msg("%zu: %s", i, err.msg);
        assert_string_equal(cfg->default_upstream, cases[i].want);
    }
}

static void hub_under_another_name(void **state UNUSED)
{
    static const struct config_flag flags[] = {{"--upstream", "hub=https://registry-1.docker.io"}};
    CLEANUP(config_cleanup) struct config *cfg = NULL;
    struct err err = ERR_INIT;

    assert_int_equal(config_load_with(NULL, config_home_env, flags, 1, &cfg, &err), 0);
    assert_true(cfg->upstreams[0].add_library);
    assert_null(cfg->upstreams[0].aliases.v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad),
        cmocka_unit_test(whole_item),
        cmocka_unit_test(known),
        cmocka_unit_test(known_urls),
        cmocka_unit_test(known_switched),
        cmocka_unit_test(default_upstreams),
        cmocka_unit_test(hub_under_another_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
