/* SPDX-License-Identifier: Apache-2.0
 * cli/follow.h - maintenance that runs in the server: begins or joins it, shows how far it is, waits for its end.
 * Threads: one; SIGINT is caught meanwhile, and ends the waiting, not the work. */
#pragma once

#include "admin/json.h"
#include "cli/cli.h"

#define FOLLOW_ANSWER_MAX_BYTES (4u << 20)

struct follow {
    const char *task;       /* "gc", "scrub" */
    const char *path, *ref; /* what begins it, as cli_change() takes it */
    bool repair;
};

/* answer: /api/v1/maintenance after its end; what was joined, and what is waited for, is told on stderr. ERR_CANCELLED: the
 * user does not want to wait. */
MUST_CHECK int follow_task(const struct args *args, const struct follow *f, struct buf *answer, struct err *err);
/* The run in that answer, and an error when it did not come to its end. */
MUST_CHECK int follow_result(const struct follow *f, const struct admin_json *root, const struct admin_json **out,
                             struct err *err);
