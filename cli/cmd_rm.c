/* SPDX-License-Identifier: Apache-2.0
 * cli/cmd_rm.c - recask rm REF */
#include "admin/json.h"
#include "cli/cli.h"
#include "cli/table.h"

#define ANSWER_MAX_BYTES (1u << 20)

static int tell(const struct buf *answer, struct buf *out, struct err *err)
{
    CLEANUP(admin_json_cleanup) struct admin_json *root = NULL;
    uint64_t shared, busy;

    TRY(admin_json_parse(answer->data, answer->len, &root, err));
    shared = admin_json_number(root, "shared_blobs");
    busy = admin_json_number(root, "busy_blobs");
    TRY(buf_printf(out, err, "%s is removed%s: %s freed (%s originals, %s canonical layers)\n",
                   admin_json_text(root, "ref"), admin_json_true(root, "unpinned") ? " and not pinned any more" : "",
                   human_bytes(admin_json_number(root, "freed_bytes")).s,
                   human_count(admin_json_number(root, "originals")).s,
                   human_count(admin_json_number(root, "layers")).s));
    if (shared > 0)
        TRY(buf_printf(out, err, "%s of its blobs %s, since another tag or a pin uses %s\n", human_count(shared).s,
                       shared == 1 ? "stays" : "stay", shared == 1 ? "it" : "them"));
    if (busy > 0)
        TRY(buf_printf(out, err, "%s of its blobs %s read at this moment, and %s evicted when the room is needed\n",
                       human_count(busy).s, busy == 1 ? "is" : "are", busy == 1 ? "is" : "are"));
    return 0;
}

static int run(const struct args *args, struct err *err)
{
    CLEANUP(buf_release) struct buf answer = BUF_INIT(ANSWER_MAX_BYTES);
    CLEANUP(buf_release) struct buf out = BUF_INIT(ANSWER_MAX_BYTES);

    TRY(cli_change(args, "/api/v1/rm?ref=", args->words[0], &answer, err));
    if (args_has(args, "--json"))
        return cli_print(&answer, err);
    TRY(tell(&answer, &out, err));
    return cli_print(&out, err);
}

const struct command cmd_rm = {
    .name = "rm",
    .synopsis = "REF [--json] [--store DIR]",
    .summary = "take an image out of the store and free its room",
    .details = "REF: a tag or a digest, as \"recask inspect\" takes it.\n"
               "\n"
               "A tag: it goes with its pin, and the bytes of its image with it, but for what another tag's image or\n"
               "a pin uses. A digest: its pin and its bytes go by the same rule; while a tag leads to it, it is\n"
               "refused, and the tag is named. Nothing is deleted upstream: whoever pulls the image again gets it,\n"
               "and it is in the store again.\n",
    .flags = cli_change_flags,
    .min_words = 1,
    .max_words = 1,
    .run = run,
};
