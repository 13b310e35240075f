/* SPDX-License-Identifier: Apache-2.0
 * cli/cli.h - the commands, and what they share. main() is one call of cli_run().
 * Threads: one, but for what `serve` starts. */
#pragma once

#include "base/buf.h"
#include "cli/args.h"

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* Returns the exit status. */
int cli_run(int argc, char **argv);

/* NULL behind the last one. */
const struct command *cli_command_at(size_t i);

extern const struct command cmd_serve, cmd_ls, cmd_inspect, cmd_stats, cmd_config, cmd_fsck, cmd_version;
extern const struct command cmd_pin, cmd_unpin, cmd_rm;

/* Help texts, wrapped to 96 columns. */
MUST_CHECK int help_overview(struct buf *out, struct err *err);
MUST_CHECK int help_command(const struct command *cmd, struct buf *out, struct err *err);

/* The environment as config_load() wants it. */
const char *const *cli_env(void);

/* Everything to stdout, or ERR_IO. */
MUST_CHECK int cli_print(const struct buf *text, struct err *err);
bool cli_stdout_bold(void); /* a terminal, and NO_COLOR is not set */

/* --store, --admin, --json: the flags of each command that asks a running instance. */
extern const struct flag cli_target_flags[];

/* --store, --json: of those that change something, for which there is no admin port. */
extern const struct flag cli_change_flags[];

/* Asks the instance that args name. ref: appended to path, or NULL. */
MUST_CHECK int cli_ask(const struct args *args, const char *path, const char *ref, struct buf *answer, struct err *err);
/* The same for what changes something (POST). */
MUST_CHECK int cli_change(const struct args *args, const char *path, const char *ref, struct buf *answer,
                          struct err *err);
