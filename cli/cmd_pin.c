/* SPDX-License-Identifier: Apache-2.0
 * cli/cmd_pin.c - recask pin, recask unpin */
#include "admin/json.h"
#include "cli/cli.h"
#include "cli/table.h"

#define ANSWER_MAX_BYTES (64u << 20)

static const struct table_column columns[] = {
    {"PIN", false}, {"DIGEST", false}, {"SIZE", true}, {"BLOBS", true}, {"MISSING", true},
};

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static int add_row(struct table *t, const struct admin_json *pin, struct err *err)
{
    const char *digest = admin_json_text(pin, "digest"), *hex = strchr(digest, ':');
    const struct human size = human_bytes(admin_json_number(pin, "bytes"));
    const struct human blobs = human_count(admin_json_number(pin, "blobs"));
    const struct human missing = human_count(admin_json_number(pin, "missing_blobs"));
    char short_digest[13];
    const char *cells[] = {admin_json_text(pin, "ref"), short_digest, size.s, blobs.s, missing.s};

    snprintf(short_digest, sizeof short_digest, "%s", hex != NULL ? hex + 1 : digest);
    return table_add(t, cells, err);
}

static int render(const struct buf *answer, struct buf *out, struct err *err)
{
    CLEANUP(admin_json_cleanup) struct admin_json *root = NULL;
    CLEANUP(table_release) struct table t;
    const struct admin_json *pins;

    table_init(&t, columns, ARRAY_LEN(columns));
    TRY(admin_json_parse(answer->data, answer->len, &root, err));
    pins = admin_json_get(root, "pins");
    for (size_t i = 0; i < admin_json_count(pins); i++)
        TRY(add_row(&t, admin_json_at(pins, i), err));
    return table_render(&t, cli_stdout_bold(), out, err);
}

static int list(const struct args *args, struct err *err)
{
    CLEANUP(buf_release) struct buf answer = BUF_INIT(ANSWER_MAX_BYTES);
    CLEANUP(buf_release) struct buf out = BUF_INIT(ANSWER_MAX_BYTES);

    TRY(cli_ask(args, "/api/v1/pins", NULL, &answer, err));
    if (args_has(args, "--json"))
        return cli_print(&answer, err);
    TRY(render(&answer, &out, err));
    return cli_print(&out, err);
}

/* ---- one pin ----------------------------------------------------------------------------------------------------- */

static int tell_missing(const struct admin_json *root, struct buf *out, struct err *err)
{
    uint64_t missing = admin_json_number(root, "missing_blobs"), unknown = admin_json_number(root, "unknown_manifests");

    if (missing > 0)
        TRY(buf_printf(out, err, "%s of its %s blobs %s not in the store: they come at the next pull\n",
                       human_count(missing).s, human_count(admin_json_number(root, "blobs")).s,
                       missing == 1 ? "is" : "are"));
    if (unknown > 0)
        TRY(buf_printf(out, err, "%s of its images %s not been asked for yet: kept from the first pull on\n",
                       human_count(unknown).s, unknown == 1 ? "has" : "have"));
    return 0;
}

static int tell(const struct buf *answer, const char *done, const char *not_done, struct buf *out, struct err *err)
{
    CLEANUP(admin_json_cleanup) struct admin_json *root = NULL;

    TRY(admin_json_parse(answer->data, answer->len, &root, err));
    TRY(buf_printf(out, err, "%s %s (%s)\n", admin_json_text(root, "ref"),
                   admin_json_true(root, "changed") ? done : not_done, admin_json_text(root, "digest")));
    return admin_json_true(root, "pinned") ? tell_missing(root, out, err) : 0;
}

static int change(const struct args *args, const char *path, const char *done, const char *not_done, struct err *err)
{
    CLEANUP(buf_release) struct buf answer = BUF_INIT(ANSWER_MAX_BYTES);
    CLEANUP(buf_release) struct buf out = BUF_INIT(ANSWER_MAX_BYTES);

    TRY(cli_change(args, path, args->words[0], &answer, err));
    if (args_has(args, "--json"))
        return cli_print(&answer, err);
    TRY(tell(&answer, done, not_done, &out, err));
    return cli_print(&out, err);
}

static int run_pin(const struct args *args, struct err *err)
{
    if (args->word_count == 0)
        return list(args, err);
    return change(args, "/api/v1/pin?ref=", "is pinned", "was pinned already", err);
}

static int run_unpin(const struct args *args, struct err *err)
{
    return change(args, "/api/v1/unpin?ref=", "is not pinned any more", "was not pinned", err);
}

const struct command cmd_pin = {
    .name = "pin",
    .synopsis = "[REF] [--json] [--store DIR]",
    .summary = "keep an image from being evicted; without REF, list what is kept",
    .details = "REF: a tag or a digest, as \"recask inspect\" takes it, that was pulled through this recask.\n"
               "\n"
               "A pinned image is never evicted, however full the store is: its config and its layers, those of\n"
               "every platform that was pulled, and what is still to come of them. A pin of a tag follows the tag:\n"
               "when it moves, the new image is kept and the old one is not any more. A pin of a digest keeps the\n"
               "layers as upstream has them too, since who pulls by digest gets those. When pins fill the quota,\n"
               "everything else passes through without being stored, and the log says so.\n"
               "\n"
               "MISSING: blobs whose bytes are not stored; they come at the next pull.\n",
    .flags = cli_change_flags,
    .max_words = 1,
    .run = run_pin,
};

const struct command cmd_unpin = {
    .name = "unpin",
    .synopsis = "REF [--json] [--store DIR]",
    .summary = "let go of a pinned image",
    .details = "REF: as \"recask pin\" lists it. A digest alone is let go of in all repositories. The image stays in\n"
               "the store until its room is needed; \"recask rm\" takes it away at once.\n",
    .flags = cli_change_flags,
    .min_words = 1,
    .max_words = 1,
    .run = run_unpin,
};
