/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_helper.h - runs a credential helper: "get" as its argument, the registry on its stdin, JSON on its stdout.
 *
 * The program runs without a shell, with recask's environment (cloud helpers need theirs) but for RECASK_*, in a process
 * group of its own, with the default signals and no descriptor of recask's. It is killed with its group at limit_ms, when it
 * writes too much, and when recask stops; it is always waited for.
 * Threads: any that may block.
 */
#pragma once

#include "base/buf.h"

#include <stdatomic.h>

#define HELPER_WORDS_BYTES 257 /* of its stderr, for the log, with the NUL */

struct helper_run {
    const char *helper; /* "NAME": docker-credential-NAME from PATH; or an absolute path */
    const char *server;
    const atomic_bool *stopping;
    int limit_ms;
};

/* 0: its stdout is in *out; empty when it has no credentials for the server. Else ERR_UPSTREAM, ERR_TIMEOUT, ERR_LIMIT,
 * ERR_CANCELLED, ERR_NOMEM, naming the helper. What it had to say to that goes to the log alone, and only if it repeats
 * nothing of its stdout. out: with a limit and with all its memory reserved; holds secrets. */
MUST_CHECK int helper_run(const struct helper_run *run, struct buf *out, struct err *err);

/* Prepares a helper's words for a log: printable, and "" when a quoted string or a word of its stdout, of four bytes or more,
 * is in them. For helper_run() and its test. */
void helper_words(char *words, const char *out, size_t out_len);
