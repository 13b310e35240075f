/* SPDX-License-Identifier: Apache-2.0
 * cli/args.c - see args.h. */
#include "cli/args.h"

#include "config/nearest.h"
#include "config/value.h"

struct spec {
    const char *name, *arg;
};

/* The i-th flag that cmd takes, its own first; false behind the last. */
static bool flag_at(const struct command *cmd, size_t i, struct spec *out)
{
    const struct config_key *k;
    size_t own = 0;

    for (; cmd->flags[own].name != NULL; own++) {
        if (own == i) {
            *out = (struct spec){cmd->flags[i].name, cmd->flags[i].arg};
            return true;
        }
    }
    k = cmd->config_flags ? config_key_at(i - own) : NULL;
    if (k == NULL)
        return false;
    /* Keys without a flag keep their place, with a name that nothing matches. */
    *out = (struct spec){k->flag != NULL ? k->flag : "", k->arg};
    return true;
}

static bool find_flag(const struct command *cmd, const char *name, size_t len, struct spec *out)
{
    for (size_t i = 0; flag_at(cmd, i, out); i++) {
        if (strlen(out->name) == len && memcmp(out->name, name, len) == 0)
            return true;
    }
    return false;
}

static int unknown_flag(const struct command *cmd, const char *name, size_t len, struct err *err)
{
    char given[64];
    struct nearest n = NEAREST_INIT(given);
    struct spec spec;

    snprintf(given, sizeof given, "%.*s", (int)(len < sizeof given ? len : sizeof given - 1), name);
    for (size_t i = 0; flag_at(cmd, i, &spec); i++)
        nearest_try(&n, spec.name);
    if (nearest_best(&n) != NULL)
        return err_set(err, ERR_USAGE, "%s: unknown flag %s; did you mean %s?", cmd->name, config_show(given).s,
                       nearest_best(&n));
    return err_set(err, ERR_USAGE, "%s: unknown flag %s", cmd->name, config_show(given).s);
}

/* One flag at argv[*i]; *i moves on to its value when that stands apart. */
static int take_flag(const struct command *cmd, int argc, char **argv, int *i, struct args *out, struct err *err)
{
    const char *text = argv[*i], *value = "true";
    size_t len = strcspn(text, "=");
    struct spec spec;

    if (!find_flag(cmd, text, len, &spec))
        return unknown_flag(cmd, text, len, err);
    if (spec.arg == NULL && text[len] == '=')
        return err_set(err, ERR_USAGE, "%s: %s takes no value", cmd->name, spec.name);
    if (spec.arg != NULL && text[len] == '=') {
        value = text + len + 1;
    } else if (spec.arg != NULL) {
        /* A flag in the place of a value is a value forgotten; --flag=--value says that it is meant. */
        if (*i + 1 >= argc || strncmp(argv[*i + 1], "--", 2) == 0)
            return err_set(err, ERR_USAGE, "%s: %s needs a value: %s %s", cmd->name, spec.name, spec.name, spec.arg);
        value = argv[++*i];
    }
    out->flags[out->flag_count++] = (struct config_flag){spec.name, value};
    return 0;
}

static int check_words(const struct command *cmd, const struct args *a, struct err *err)
{
    if (a->word_count < cmd->min_words)
        return err_set(err, ERR_USAGE, "%s: something is missing: recask %s %s", cmd->name, cmd->name, cmd->synopsis);
    if (a->word_count > cmd->max_words)
        return err_set(err, ERR_USAGE, "%s: %s is one word too many", cmd->name,
                       config_show(a->words[cmd->max_words]).s);
    return 0;
}

static int parse_into(const struct command *cmd, int argc, char **argv, struct args *out, struct err *err)
{
    bool flags_over = false;

    for (int i = 0; i < argc; i++) {
        if (!flags_over && strcmp(argv[i], "--") == 0)
            flags_over = true;
        else if (!flags_over && argv[i][0] == '-' && argv[i][1] != '\0')
            TRY(take_flag(cmd, argc, argv, &i, out, err));
        else
            out->words[out->word_count++] = argv[i];
    }
    return check_words(cmd, out, err);
}

int args_parse(const struct command *cmd, int argc, char **argv, struct args *out, struct err *err)
{
    size_t most = (size_t)argc + 1;
    int rc;

    *out = (struct args){.flags = calloc(most, sizeof *out->flags), .words = calloc(most, sizeof *out->words)};
    /* Help is given however wrong the rest is: who asks for it is about to learn. */
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        out->help |= strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0;
    if (out->flags == NULL || out->words == NULL)
        rc = err_nomem(err, most * sizeof *out->flags);
    else
        rc = out->help ? 0 : parse_into(cmd, argc, argv, out, err);
    if (rc < 0)
        args_release(out);
    return rc;
}

void args_release(struct args *a)
{
    free(a->flags);
    free(a->words);
    *a = (struct args){0};
}

const char *args_value(const struct args *a, const char *name)
{
    const char *value = NULL;

    for (size_t i = 0; i < a->flag_count; i++) {
        if (strcmp(a->flags[i].name, name) == 0)
            value = a->flags[i].value;
    }
    return value;
}

bool args_has(const struct args *a, const char *name)
{
    return args_value(a, name) != NULL;
}
