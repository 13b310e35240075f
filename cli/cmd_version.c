/* SPDX-License-Identifier: Apache-2.0
 * cli/cmd_version.c - recask version */
#include "cli/cli.h"

static int run(const struct args *args, struct err *err)
{
    CLEANUP(buf_release) struct buf text = BUF_INIT(256);

    if (args_has(args, "--json"))
        TRY(buf_str(&text, "{\"version\": \"" RECASK_VERSION "\"}\n", err));
    else
        TRY(buf_str(&text, "recask " RECASK_VERSION "\n", err));
    return cli_print(&text, err);
}

static const struct flag flags[] = {{"--json", NULL, "print JSON"}, {NULL, NULL, NULL}};

const struct command cmd_version = {
    .name = "version",
    .synopsis = "[--json]",
    .summary = "print the version of this program",
    .details = "Prints the version of this program; \"recask stats\" tells that of a running instance.\n",
    .flags = flags,
    .run = run,
};
