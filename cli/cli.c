/* SPDX-License-Identifier: Apache-2.0
 * cli/cli.c - from argv to a command, and from its error to a message and an exit status. */
#include "cli/cli.h"

#include "admin/client.h"
#include "config/nearest.h"
#include "config/value.h"

#include <errno.h>
#include <unistd.h>

#define HELP_MAX_BYTES (64u << 10)

extern char **environ;

/* In the order of `recask --help`. */
static const struct command *const commands[] = {&cmd_serve, &cmd_ls,    &cmd_inspect, &cmd_pin,  &cmd_unpin,
                                                 &cmd_rm,    &cmd_stats, &cmd_config,  &cmd_fsck, &cmd_version};

const struct flag cli_target_flags[] = {
    {"--store", "DIR", "store of the instance to ask (RECASK_STORE; default: where \"recask serve\" has it)"},
    {"--admin", "ADDR:PORT", "ask this admin port instead of the socket in the store"},
    {"--json", NULL, "print the admin API's answer as it is"},
    {NULL, NULL, NULL},
};

const struct flag cli_change_flags[] = {
    {"--store", "DIR", "store of the instance to tell (RECASK_STORE; default: where \"recask serve\" has it)"},
    {"--json", NULL, "print the admin API's answer as it is"},
    {NULL, NULL, NULL},
};

const struct command *cli_command_at(size_t i)
{
    return i < ARRAY_LEN(commands) ? commands[i] : NULL;
}

const char *const *cli_env(void)
{
    return (const char *const *)environ;
}

int cli_print(const struct buf *text, struct err *err)
{
    if (fwrite(text->data, 1, text->len, stdout) != text->len || fflush(stdout) != 0)
        return err_sys(err, errno, "standard output");
    return 0;
}

bool cli_stdout_bold(void)
{
    const char *no_color = getenv("NO_COLOR");

    return isatty(STDOUT_FILENO) && (no_color == NULL || *no_color == '\0');
}

int cli_ask(const struct args *args, const char *path, const char *ref, struct buf *answer, struct err *err)
{
    CLEANUP(free_ptr) char *store = NULL;
    struct admin_target target = {.address = args_value(args, "--admin")};

    if (target.address == NULL)
        TRY(config_store_path(args_value(args, "--store"), cli_env(), &store, err));
    target.store = store;
    return admin_client_get(&target, path, ref, answer, err);
}

int cli_change(const struct args *args, const char *path, const char *ref, struct buf *answer, struct err *err)
{
    CLEANUP(free_ptr) char *store = NULL;
    struct admin_target target = {.address = NULL};

    if (*ref == '\0')
        return err_set(err, ERR_USAGE, "the image's name is empty");
    TRY(config_store_path(args_value(args, "--store"), cli_env(), &store, err));
    target.store = store;
    return admin_client_post(&target, path, ref, answer, err);
}

/* ---- dispatch ---------------------------------------------------------------------------------------------------- */

/* Tells err and returns the exit status for it. usage_of: whose help may help; "": the overview, NULL: none. */
static int fail(const struct err *err, const char *usage_of)
{
    fprintf(stderr, "recask: %s\n", err->msg);
    if (err->code == ERR_USAGE && usage_of != NULL)
        fprintf(stderr, "recask: \"recask %s%s--help\" tells what there is\n", usage_of, *usage_of != '\0' ? " " : "");
    return err->code == ERR_USAGE ? EXIT_USAGE : EXIT_FAILED;
}

static int print_help(const struct command *cmd)
{
    CLEANUP(buf_release) struct buf text = BUF_INIT(HELP_MAX_BYTES);
    struct err err = ERR_INIT;
    int rc = cmd != NULL ? help_command(cmd, &text, &err) : help_overview(&text, &err);

    if (rc == 0)
        rc = cli_print(&text, &err);
    return rc < 0 ? fail(&err, NULL) : EXIT_DONE;
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    }
    return NULL;
}

static int unknown_command(const char *name)
{
    struct nearest n = NEAREST_INIT(name);
    struct err err = ERR_INIT;

    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        nearest_try(&n, commands[i]->name);
    if (name[0] == '-')
        err_set(&err, ERR_USAGE, "unknown flag %s; a command comes first", config_show(name).s);
    else if (nearest_best(&n) != NULL)
        err_set(&err, ERR_USAGE, "unknown command %s; did you mean \"%s\"?", config_show(name).s, nearest_best(&n));
    else
        err_set(&err, ERR_USAGE, "unknown command %s", config_show(name).s);
    return fail(&err, "");
}

static int run_command(const struct command *cmd, int argc, char **argv)
{
    CLEANUP(args_release) struct args args = {.help = false};
    struct err err = ERR_INIT;

    if (args_parse(cmd, argc, argv, &args, &err) < 0)
        return fail(&err, cmd->name);
    if (args.help)
        return print_help(cmd);
    return cmd->run(&args, &err) < 0 ? fail(&err, NULL) : EXIT_DONE;
}

/* `recask` alone: the help, but on stderr and as a usage error, so that a script does not take it for an answer. */
static int no_command(void)
{
    CLEANUP(buf_release) struct buf text = BUF_INIT(HELP_MAX_BYTES);
    struct err err = ERR_INIT;

    if (help_overview(&text, &err) < 0)
        return fail(&err, NULL);
    fputs(text.data, stderr);
    return EXIT_USAGE;
}

int cli_run(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : NULL;
    const struct command *cmd;

    if (name == NULL)
        return no_command();
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || (strcmp(name, "help") == 0 && argc == 2))
        return print_help(NULL);
    if (strcmp(name, "help") == 0) {
        cmd = find_command(argv[2]);
        return cmd != NULL ? print_help(cmd) : unknown_command(argv[2]);
    }
    if (strcmp(name, "--version") == 0)
        name = "version";
    cmd = find_command(name);
    return cmd != NULL ? run_command(cmd, argc - 2, argv + 2) : unknown_command(name);
}
