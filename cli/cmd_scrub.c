/* SPDX-License-Identifier: Apache-2.0
 * cli/cmd_scrub.c - recask scrub */
#include "cli/follow.h"
#include "cli/table.h"

static int finding_lines(const struct admin_json *f, struct buf *out, struct err *err)
{
    const struct admin_json *layers = admin_json_get(f, "layers");
    const char *outcome = admin_json_text(f, "outcome"), *why = admin_json_text(f, "why");
    size_t n = admin_json_count(layers);

    TRY(buf_printf(out, err, "  %s: %s\n", admin_json_text(f, "fault"), admin_json_text(f, "what")));
    if (n > 0)
        TRY(buf_printf(out, err, "    needed by %zu%s layer%s\n", n,
                       admin_json_true(f, "more_layers") ? " or more" : "", n == 1 ? "" : "s"));
    if (strcmp(outcome, "repaired") == 0)
        return buf_str(out, "    repaired\n", err);
    return *why != '\0' ? buf_printf(out, err, "    not repaired: %s\n", why) : 0;
}

static int render(const struct admin_json *root, const struct admin_json *p, struct buf *out, struct err *err)
{
    const struct admin_json *findings = admin_json_get(root, "findings");
    uint64_t total = admin_json_number(root, "findings_total"), retired = admin_json_number(p, "retired");
    size_t shown = admin_json_count(findings);

    TRY(buf_printf(out, err, "checked   %s: %s chunks of %s layers, %s originals, %s manifests\n",
                   human_bytes(admin_json_number(p, "bytes")).s, human_count(admin_json_number(p, "chunks")).s,
                   human_count(admin_json_number(p, "layers")).s, human_count(admin_json_number(p, "originals")).s,
                   human_count(admin_json_number(p, "manifests")).s));
    TRY(buf_printf(out, err, "found     %s\n", human_count(admin_json_number(p, "bad")).s));
    TRY(buf_printf(out, err, "repaired  %s\n", human_count(admin_json_number(p, "repaired")).s));
    if (retired > 0)
        TRY(buf_printf(out, err, "retired   %s zstd forms, which could not be made again as they were\n",
                       human_count(retired).s));
    for (size_t i = 0; i < shown; i++)
        TRY(finding_lines(admin_json_at(findings, i), out, err));
    if (total > shown)
        TRY(buf_printf(out, err, "  and %s more; recask's log has all of them\n", human_count(total - shown).s));
    return 0;
}

/* Damage that is left is a failure, for scripts. */
static int verdict(const struct admin_json *p, bool repair, struct err *err)
{
    uint64_t bad = admin_json_number(p, "bad"), repaired = admin_json_number(p, "repaired");

    if (bad <= repaired)
        return 0;
    return err_set(err, ERR_CORRUPT, "%s of what is stored is damaged%s", human_count(bad - repaired).s,
                   repair ? " and could not be repaired" : "; \"recask scrub --repair\" fetches it again");
}

static int run(const struct args *args, struct err *err)
{
    CLEANUP(buf_release) struct buf answer = BUF_INIT(FOLLOW_ANSWER_MAX_BYTES);
    CLEANUP(buf_release) struct buf out = BUF_INIT(FOLLOW_ANSWER_MAX_BYTES);
    CLEANUP(admin_json_cleanup) struct admin_json *root = NULL;
    bool repair = args_has(args, "--repair");
    struct follow f = {.task = "scrub", .path = "/api/v1/scrub?repair=", .ref = repair ? "1" : "0", .repair = repair};
    const struct admin_json *p;

    TRY(follow_task(args, &f, &answer, err));
    TRY(admin_json_parse(answer.data, answer.len, &root, err));
    if (args_has(args, "--json"))
        TRY(cli_print(&answer, err));
    TRY(follow_result(&f, root, &p, err));
    if (!args_has(args, "--json")) {
        TRY(render(root, p, &out, err));
        TRY(cli_print(&out, err));
    }
    return verdict(p, repair, err);
}

static const struct flag flags[] = {
    {"--repair", NULL, "put right what is found: from the original on disk, else from upstream"},
    {"--store", "DIR", "store of the instance to tell (RECASK_STORE; default: where \"recask serve\" has it)"},
    {"--json", NULL, "print the admin API's answer as it is"},
    {NULL, NULL, NULL},
};

const struct command cmd_scrub = {
    .name = "scrub",
    .synopsis = "[--repair] [--json] [--store DIR]",
    .summary = "read all that is stored and find what is damaged",
    .details = "Every frame, layer, original and manifest is hashed and compared with its digest, and the\n"
               "catalog with itself and with the files. It goes on while clients pull, no faster than\n"
               "maintenance.rate, and is no client's read. Recask does this by itself, with repairs, every\n"
               "scrub.every.\n"
               "\n"
               "--repair: what is damaged is taken out of use and written again, byte by byte as it was. Where\n"
               "that cannot be (another zstd since), the zstd digests built on it are retired, and the log says\n"
               "so. What cannot be had again is named, and is served to nobody.\n"
               "\n"
               "When one is running already, this joins it. Ctrl-C stops the waiting, not the work. --json\n"
               "prints one object at the end: what the admin API has under /api/v1/maintenance. Exit status: 0\n"
               "when nothing is damaged any more, 1 when something is.\n",
    .flags = flags,
    .run = run,
};
