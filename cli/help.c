/* SPDX-License-Identifier: Apache-2.0
 * cli/help.c - help texts, made from the tables of commands, flags and configuration keys, so that they cannot lag
 * behind them. */
#include "cli/cli.h"

#define WIDTH 96
#define INDENT 2
#define FLAG_COLUMN 30

/* text from column `at` on (the line is there already), words wrapped to begin at column `indent`. */
static int wrap(struct buf *out, size_t at, size_t indent, const char *text, struct err *err)
{
    bool first = true;

    while (*text != '\0') {
        size_t len = strcspn(text, " ");

        if (!first && at + 1 + len > WIDTH) {
            TRY(buf_printf(out, err, "\n%*s", (int)indent, ""));
            at = indent;
        } else if (!first) {
            TRY(buf_str(out, " ", err));
            at++;
        }
        TRY(buf_printf(out, err, "%.*s", (int)len, text));
        at += len;
        text += len;
        text += strspn(text, " ");
        first = false;
    }
    return buf_str(out, "\n", err);
}

/* "  left      text that goes on
 *             below itself" */
static int entry(struct buf *out, size_t column, const char *left, const char *text, struct err *err)
{
    size_t len = strlen(left) + INDENT;

    TRY(buf_printf(out, err, "%*s%s", INDENT, "", left));
    if (len + 2 > column)
        TRY(buf_printf(out, err, "\n%*s", (int)column, ""));
    else
        TRY(buf_printf(out, err, "%*s", (int)(column - len), ""));
    return wrap(out, column, column, text, err);
}

int help_overview(struct buf *out, struct err *err)
{
    TRY(buf_str(out,
                "recask " RECASK_VERSION " - a pull-through proxy for container registries\n"
                "\n"
                "It stands in front of one or more registries, keeps every layer once, uncompressed and\n"
                "deduplicated, and serves it in the form that each client takes fastest.\n"
                "\n"
                "Usage: recask COMMAND [FLAGS]\n"
                "\n"
                "Commands:\n",
                err));
    for (size_t i = 0; cli_command_at(i) != NULL; i++)
        TRY(entry(out, 14, cli_command_at(i)->name, cli_command_at(i)->summary, err));
    return buf_str(out,
                   "\n"
                   "Try it:\n"
                   "  recask serve                                  # in one terminal\n"
                   "  docker pull 127.0.0.1:5000/library/alpine     # in another\n"
                   "\n"
                   "\"recask COMMAND --help\" tells about one command, \"recask config --help\" about the\n"
                   "configuration file. Exit status: 0 done, 1 failed, 2 used wrongly.\n",
                   err);
}

static int config_flag_entry(struct buf *out, const struct config_key *k, struct err *err)
{
    CLEANUP(free_ptr) char *left = NULL;
    CLEANUP(free_ptr) char *text = NULL;
    const char *fallback = k->arg != NULL ? k->fallback : NULL; /* a switch is off when it is not given */

    TRY(str_printf(&left, err, "%s%s%s%s", k->flag, k->arg != NULL ? " " : "", k->arg != NULL ? k->arg : "",
                   k->repeats ? "..." : ""));
    TRY(str_printf(&text, err, "%s (%s%s%s%s)", k->help, fallback != NULL ? "default " : "",
                   fallback != NULL ? fallback : "", fallback != NULL ? "; " : "", k->env));
    return entry(out, FLAG_COLUMN, left, text, err);
}

static int flag_entries(const struct command *cmd, struct buf *out, struct err *err)
{
    TRY(buf_str(out, "\nFlags:\n", err));
    for (const struct flag *f = cmd->flags; f->name != NULL; f++) {
        CLEANUP(free_ptr) char *left = NULL;

        TRY(str_printf(&left, err, "%s%s%s", f->name, f->arg != NULL ? " " : "", f->arg != NULL ? f->arg : ""));
        TRY(entry(out, FLAG_COLUMN, left, f->help, err));
    }
    for (size_t i = 0; cmd->config_flags && config_key_at(i) != NULL; i++) {
        if (config_key_at(i)->flag != NULL)
            TRY(config_flag_entry(out, config_key_at(i), err));
    }
    return entry(out, FLAG_COLUMN, "--help", "this text", err);
}

/* What the file has for this key: of what may be given more than once it has a list of objects. */
static const char *file_form(const struct config_key *k)
{
    if (k->repeats)
        return "[{...}...]";
    return k->arg != NULL ? k->arg : "true|false";
}

static int key_entries(struct buf *out, struct err *err)
{
    TRY(buf_str(out, "\nKeys of the file, with the default in brackets:\n", err));
    for (size_t i = 0; config_key_at(i) != NULL; i++) {
        const struct config_key *k = config_key_at(i);
        CLEANUP(free_ptr) char *text = NULL;

        TRY(str_printf(&text, err, "%s  %s%s%s%s", file_form(k), k->help, k->fallback != NULL ? " [" : "",
                       k->fallback != NULL ? k->fallback : "", k->fallback != NULL ? "]" : ""));
        TRY(entry(out, FLAG_COLUMN, k->path, text, err));
    }
    return 0;
}

int help_command(const struct command *cmd, struct buf *out, struct err *err)
{
    TRY(buf_printf(out, err, "recask %s - ", cmd->name));
    TRY(wrap(out, strlen(cmd->name) + 10, 0, cmd->summary, err));
    TRY(buf_printf(out, err, "\nUsage: recask %s%s%s\n\n%s", cmd->name, *cmd->synopsis != '\0' ? " " : "",
                   cmd->synopsis, cmd->details));
    TRY(flag_entries(cmd, out, err));
    return cmd->config_keys ? key_entries(out, err) : 0;
}
