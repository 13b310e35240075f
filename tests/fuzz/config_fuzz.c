/* links: config */
/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/config_fuzz.c - any bytes as a configuration file, and, up to their first NUL, as each kind of value.
 *
 * Beyond not crashing: a refusal has a message of one line, and what was accepted holds the promises of config.h. */
#include "base/compiler.h"
#include "config/config.h"
#include "config/nearest.h"
#include "config/value.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_message(const struct err *err)
{
    REQUIRE(err->msg[0] != '\0');
    for (const char *p = err->msg; *p; p++)
        REQUIRE((unsigned char)*p >= 0x20 && *p != 0x7f);
}

static void check_strings(const struct config_strings *list)
{
    for (size_t i = 0; i < list->count; i++)
        REQUIRE(list->v[i] != NULL);
    REQUIRE(list->count == 0 || list->v[list->count] == NULL);
}

/* Nothing else goes by the name of the upstream `at`. */
static void check_names(const struct config *cfg, size_t at)
{
    for (size_t i = 0; i < cfg->upstream_count; i++) {
        const struct config_upstream *up = &cfg->upstreams[i];

        REQUIRE(i == at || strcmp(up->name, cfg->upstreams[at].name) != 0);
        for (size_t j = 0; j < up->aliases.count; j++)
            REQUIRE(strcmp(up->aliases.v[j], cfg->upstreams[at].name) != 0);
    }
}

static int count_file(void *arg, const struct config_file *f, struct err *err UNUSED)
{
    REQUIRE(f->path[0] != '\0' && f->place[0] != '\0');
    *(size_t *)arg += 1;
    return 0;
}

static void check_config(const struct config *cfg)
{
    struct err err = ERR_INIT;
    size_t files = 0;
    bool found = false;

    REQUIRE(cfg->listen_count > 0 && cfg->listen_count <= CONFIG_LISTEN_MAX);
    REQUIRE(cfg->upstream_count > 0 && cfg->upstream_count <= CONFIG_UPSTREAMS_MAX + 7);
    for (size_t i = 0; i < cfg->listen_count; i++)
        REQUIRE(cfg->listen[i].address != NULL);
    for (size_t i = 0; i < cfg->upstream_count; i++) {
        REQUIRE(cfg->upstreams[i].name != NULL && cfg->upstreams[i].url != NULL);
        REQUIRE(strchr(cfg->upstreams[i].url, '@') == NULL);
        check_strings(&cfg->upstreams[i].aliases);
        check_strings(&cfg->upstreams[i].token_realms);
        check_names(cfg, i);
        found = found || strcmp(cfg->upstreams[i].name, cfg->default_upstream) == 0;
    }
    REQUIRE(found);
    REQUIRE(cfg->store_path != NULL && cfg->view != CONFIG_VIEW_UNSET);
    REQUIRE(cfg->auth.rule_count == 0 || cfg->auth.htpasswd != NULL);
    for (size_t i = 0; i < cfg->auth.rule_count; i++) {
        REQUIRE(cfg->auth.rules[i].users.count > 0 && cfg->auth.rules[i].repositories.count > 0);
        check_strings(&cfg->auth.rules[i].users);
        check_strings(&cfg->auth.rules[i].repositories);
    }
    REQUIRE(config_files(cfg, count_file, &files, &err) == 0);
    REQUIRE((cfg->quota.bytes == 0) == (cfg->quota.percent != 0));
}

static void as_file(const uint8_t *data, size_t size)
{
    static const char *const env[] = {"HOME=/h", NULL};
    struct config_source src = {.file = "c.json", .text = (const char *)data, .text_len = size, .env = env};
    CLEANUP(config_cleanup) struct config *cfg = NULL;
    struct err err = ERR_INIT;

    if (config_load(&src, &cfg, &err) < 0)
        check_message(&err);
    else
        check_config(cfg);
}

static void as_values(const char *text)
{
    static const struct config_flag flags[] = {{"--store", "/s"}};
    struct config_flag upstream[] = {flags[0], {"--upstream", text}, {"--listen", text}};
    CLEANUP(config_url_release) struct config_url url = {0};
    CLEANUP(config_cleanup) struct config *cfg = NULL;
    CLEANUP(free_ptr) char *address = NULL;
    CLEANUP(free_ptr) char *proxy = NULL;
    struct config_source src = {.flags = upstream, .flag_count = 3};
    struct err err = ERR_INIT;
    struct nearest n = NEAREST_INIT(text);
    uint64_t bytes;
    unsigned percent;
    int64_t number;
    int word, failed = 0;

    failed += config_size_parse(text, &bytes, &err) < 0;
    failed += config_duration_parse(text, &number, &err) < 0;
    failed += config_percent_parse(text, &percent, &err) < 0;
    failed += config_int_parse(text, -5, 5, &number, &err) < 0;
    failed += config_choice_parse(text, "a|bc|def", &word, &err) < 0;
    failed += config_url_parse(text, &url, &err) < 0;
    failed += config_address_parse(text, &address, &err) < 0;
    failed += config_name_check(text, &err) < 0;
    failed += config_proxy_parse(text, &proxy, &err) < 0;
    failed += config_user_check(text, &err) < 0;
    failed += config_helper_check(text, &err) < 0;
    failed += config_repository_check(text, &err) < 0;
    REQUIRE(proxy == NULL || strchr(proxy, '@') == NULL);
    failed += config_load(&src, &cfg, &err) < 0;
    if (failed > 0)
        check_message(&err);
    nearest_try(&n, "upstreams");
    (void)nearest_best(&n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);

    REQUIRE(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    as_file(data, size);
    as_values(text);
    free(text);
    return 0;
}
