/* SPDX-License-Identifier: Apache-2.0
 * cli/cmd_config.c - recask config check FILE */
#include "cli/cli.h"
#include "config/value.h"

static int check_file(void *arg, const struct config_file *f, struct err *err)
{
    const char *const *config = arg;
    bool exposed;

    if (config_file_check(f, &exposed, err) < 0)
        return err_wrap(err, "%s: %s", *config, f->place);
    if (exposed)
        fprintf(stderr, "recask: warning: %s: %s: %s: others may read or write it (chmod 600 would keep them out)\n",
                *config, f->place, f->path);
    return 0;
}

static size_t count_known(const struct config *cfg)
{
    size_t n = 0;

    for (size_t i = 0; i < cfg->upstream_count; i++)
        n += cfg->upstreams[i].known;
    return n;
}

/* The file alone counts: a variable of this shell must neither hide its mistakes nor add some. */
static int check(const char *file, struct err *err)
{
    CLEANUP(config_cleanup) struct config *cfg = NULL;
    CLEANUP(buf_release) struct buf text = BUF_INIT(8192);
    /* Where the store would be does not matter here, so that a machine without HOME can check, too. */
    static const struct config_flag store = {"--store", "/var/lib/recask"};
    struct config_source src = {.file = file, .flags = &store, .flag_count = 1};
    size_t known, own;

    TRY(config_load(&src, &cfg, err));
    TRY(config_files(cfg, check_file, &file, err));
    known = count_known(cfg);
    own = cfg->upstream_count - known;
    TRY(buf_printf(&text, err, "%s: good (%zu listener%s, %zu upstream%s", file, cfg->listen_count,
                   cfg->listen_count == 1 ? "" : "s", own, own == 1 ? "" : "s"));
    if (known > 0)
        TRY(buf_printf(&text, err, " and %zu known one%s", known, known == 1 ? "" : "s"));
    TRY(buf_printf(&text, err, ", %s is the default)\n", cfg->default_upstream));
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
               "what is wrong with it: the line of a syntax error, the path of a bad key, a file that it names\n"
               "and that cannot be read. Warns of secrets that others may read. Exit status 0: good.\n"
               "\n"
               "A file with something of everything:\n"
               "  {\n"
               "    \"listen\": [{\"address\": \"127.0.0.1:5000\"},\n"
               "               {\"address\": \"0.0.0.0:5002\", \"link\": \"wan\", \"upstream\": \"ghcr.io\"}],\n"
               "    \"store\": {\"path\": \"/srv/recask\", \"quota\": \"200GiB\"},\n"
               "    \"upstreams\": [{\"name\": \"docker.io\", \"url\": \"https://registry-1.docker.io\",\n"
               "                   \"username\": \"me\", \"password_file\": \"/etc/recask/hub-token\"},\n"
               "                  {\"name\": \"acme\", \"url\": \"https://registry.acme.example\",\n"
               "                   \"ca_file\": \"/etc/recask/acme.pem\", \"tag_ttl\": \"5m\"}],\n"
               "    \"default_upstream\": \"docker.io\",\n"
               "    \"auth\": {\"htpasswd\": \"/etc/recask/htpasswd\",\n"
               "             \"rules\": [{\"users\": [\"ci\"], \"repositories\": [\"*\"]},\n"
               "                       {\"users\": [\"*\"], \"repositories\": [\"docker.io/*\"]}]},\n"
               "    \"log\": {\"level\": \"warn\"}\n"
               "  }\n",
    .flags = flags,
    .config_keys = true,
    .min_words = 1,
    .max_words = 2,
    .run = run,
};
