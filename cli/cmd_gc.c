/* SPDX-License-Identifier: Apache-2.0
 * cli/cmd_gc.c - recask gc */
#include "cli/follow.h"
#include "cli/table.h"

static const struct follow gc = {.task = "gc", .path = "/api/v1/gc"};

static int render(const struct admin_json *p, struct buf *out, struct err *err)
{
    TRY(buf_printf(out, err, "evicted    %s things, %s\n", human_count(admin_json_number(p, "evicted")).s,
                   human_bytes(admin_json_number(p, "evicted_bytes")).s));
    return buf_printf(
        out, err, "compacted  %s packs: %s moved, %s freed\n", human_count(admin_json_number(p, "packs_done")).s,
        human_bytes(admin_json_number(p, "moved_bytes")).s, human_bytes(admin_json_number(p, "freed_bytes")).s);
}

static int run(const struct args *args, struct err *err)
{
    CLEANUP(buf_release) struct buf answer = BUF_INIT(FOLLOW_ANSWER_MAX_BYTES);
    CLEANUP(buf_release) struct buf out = BUF_INIT(FOLLOW_ANSWER_MAX_BYTES);
    CLEANUP(admin_json_cleanup) struct admin_json *root = NULL;
    const struct admin_json *p;

    TRY(follow_task(args, &gc, &answer, err));
    TRY(admin_json_parse(answer.data, answer.len, &root, err));
    if (args_has(args, "--json")) {
        TRY(cli_print(&answer, err));
        return follow_result(&gc, root, &p, err);
    }
    TRY(follow_result(&gc, root, &p, err));
    TRY(render(p, &out, err));
    return cli_print(&out, err);
}

const struct command cmd_gc = {
    .name = "gc",
    .synopsis = "[--json] [--store DIR]",
    .summary = "give room back now: evict down to the low mark, compact what is mostly dead",
    .details = "Recask does this by itself when room is needed; nothing has to be scheduled. What is pinned or\n"
               "being read stays, and everything that was published stays answerable. It goes on while clients\n"
               "pull, no faster than maintenance.rate.\n"
               "\n"
               "When one is running already, this joins it. Ctrl-C stops the waiting, not the work. --json\n"
               "prints one object at the end: what the admin API has under /api/v1/maintenance.\n",
    .flags = cli_change_flags,
    .run = run,
};
