/* SPDX-License-Identifier: Apache-2.0
 * cli/args.h - a command's flags and words, from a table.
 *
 * Use: args_parse -> args_value, args_has, a.words -> args_release.
 * Forms: --flag VALUE, --flag=VALUE, --switch; before, between or behind the words. `--` ends the flags.
 * Ownership: strings are argv's. Threads: one.
 */
#pragma once

#include "config/config.h"

struct flag {
    const char *name; /* "--store" */
    const char *arg;  /* "DIR"; NULL: a switch */
    const char *help;
};

struct args {
    struct config_flag *flags; /* as given, in order; a switch has the value "true" */
    size_t flag_count;
    const char **words;
    size_t word_count;
    bool help; /* --help or -h was among them: nothing else counts */
};

struct command {
    const char *name;
    const char *synopsis;     /* behind "recask NAME" */
    const char *summary;      /* one line for `recask --help` */
    const char *details;      /* paragraphs for `recask NAME --help` */
    const struct flag *flags; /* ends with an empty name */
    bool config_flags;        /* takes the flags of the configuration's keys as well */
    bool config_keys;         /* its help lists the configuration's keys */
    size_t min_words, max_words;
    int (*run)(const struct args *args, struct err *err);
};

/* argv[0] is the first argument behind the command's name. ERR_USAGE. */
MUST_CHECK int args_parse(const struct command *cmd, int argc, char **argv, struct args *out, struct err *err);
void args_release(struct args *a);

const char *args_value(const struct args *a, const char *name); /* the last one given, or NULL */
bool args_has(const struct args *a, const char *name);
