/* SPDX-License-Identifier: Apache-2.0
 * cli/cmd_config.c - recask config check FILE */
#include "cli/cli.h"
#include "config/value.h"

/* The file alone counts: a variable of this shell must neither hide its mistakes nor add some. */
static int check(const char *file, struct err *err)
{
    CLEANUP(config_cleanup) struct config *cfg = NULL;
    CLEANUP(buf_release) struct buf text = BUF_INIT(8192);
    /* Where the store would be does not matter here, so that a machine without HOME can check, too. */
    static const struct config_flag store = {"--store", "/var/lib/recask"};
    struct config_source src = {.file = file, .flags = &store, .flag_count = 1};

    TRY(config_load(&src, &cfg, err));
    TRY(config_supported(cfg, err));
    TRY(buf_printf(&text, err, "%s: good (%zu listener%s, %zu upstream%s, %s is the default)\n", file,
                   cfg->listen_count, cfg->listen_count == 1 ? "" : "s", cfg->upstream_count,
                   cfg->upstream_count == 1 ? "" : "s", cfg->default_upstream));
    return cli_print(&text, err);
}

static int run(const struct args *args, struct err *err)
{
    struct err why = ERR_INIT;

    if (strcmp(args->words[0], "check") != 0)
        return err_set(err, ERR_USAGE, "config: unknown word %s; there is \"recask config check FILE\"",
                       config_show(args->words[0]).s);
    if (args->word_count < 2)
        return err_set(err, ERR_USAGE, "config check: which file? recask config check FILE");
    /* A bad file is what the check found, not a wrong use of the command. */
    if (check(args->words[1], &why) < 0)
        return err_set(err, why.code == ERR_USAGE ? ERR_FORMAT : (enum err_code)why.code, "%s", why.msg);
    return 0;
}

static const struct flag flags[] = {{NULL, NULL, NULL}};

const struct command cmd_config = {
    .name = "config",
    .synopsis = "check FILE",
    .summary = "check a configuration file (config --help lists all keys)",
    .details = "Reads FILE as \"recask serve --config FILE\" would, without flags and environment, and says\n"
               "what is wrong with it: the line of a syntax error, the path of a bad key. Exit status 0: good.\n"
               "\n"
               "A file with something of everything:\n"
               "  {\n"
               "    \"listen\": [{\"address\": \"127.0.0.1:5000\"},\n"
               "               {\"address\": \"0.0.0.0:5002\", \"link\": \"wan\", \"upstream\": \"ghcr.io\"}],\n"
               "    \"store\": {\"path\": \"/srv/recask\", \"quota\": \"200GiB\"},\n"
               "    \"upstreams\": [{\"name\": \"docker.io\", \"url\": \"https://registry-1.docker.io\"},\n"
               "                  {\"name\": \"ghcr.io\", \"url\": \"https://ghcr.io\"}],\n"
               "    \"default_upstream\": \"docker.io\",\n"
               "    \"tag_ttl\": \"5m\",\n"
               "    \"log\": {\"level\": \"warn\"}\n"
               "  }\n",
    .flags = flags,
    .config_keys = true,
    .min_words = 1,
    .max_words = 2,
    .run = run,
};
