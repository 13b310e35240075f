/* SPDX-License-Identifier: Apache-2.0
 * cli/main.c - main() alone, so that everything else is in a library and can be tested. */
#include "cli/cli.h"

int main(int argc, char **argv)
{
    return cli_run(argc, argv);
}
