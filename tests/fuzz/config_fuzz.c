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

static void check_config(const struct config *cfg)
{
    bool found = false;

    REQUIRE(cfg->listen_count > 0 && cfg->listen_count <= CONFIG_LISTEN_MAX);
    REQUIRE(cfg->upstream_count > 0 && cfg->upstream_count <= CONFIG_UPSTREAMS_MAX);
    for (size_t i = 0; i < cfg->listen_count; i++)
        REQUIRE(cfg->listen[i].address != NULL);
    for (size_t i = 0; i < cfg->upstream_count; i++) {
        REQUIRE(cfg->upstreams[i].name != NULL && cfg->upstreams[i].url != NULL);
        REQUIRE(strchr(cfg->upstreams[i].url, '@') == NULL);
        found = found || strcmp(cfg->upstreams[i].name, cfg->default_upstream) == 0;
    }
    REQUIRE(found);
    REQUIRE(cfg->store_path != NULL && cfg->view != CONFIG_VIEW_UNSET);
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
