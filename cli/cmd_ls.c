/* SPDX-License-Identifier: Apache-2.0
 * cli/cmd_ls.c - recask ls */
#include "admin/json.h"
#include "cli/cli.h"
#include "cli/table.h"

#define ANSWER_MAX_BYTES (64u << 20)

static const struct table_column columns[] = {
    {"IMAGE", false},   {"DIGEST", false}, {"LAYERS", true}, {"SIZE", true},
    {"UNPACKED", true}, {"PINNED", false}, {"VIEWS", false},
};

/* An index has no layers of its own; its images are known by their digests only (inspect shows them). */
static int add_row(struct table *t, const struct admin_json *image, struct err *err)
{
    bool index = admin_json_true(image, "index");
    const char *digest = admin_json_text(image, "digest"), *hex = strchr(digest, ':');
    const char *reason = admin_json_text(image, "reason");
    char short_digest[13], views[160];

    snprintf(short_digest, sizeof short_digest, "%s", hex != NULL ? hex + 1 : digest);
    snprintf(views, sizeof views, "%s%s%s", admin_json_text(image, "views"), *reason != '\0' ? ": " : "", reason);

    const struct human layers = human_count(admin_json_number(image, "layers"));
    const struct human size = human_bytes(admin_json_number(image, "original_bytes"));
    const struct human unpacked = human_bytes(admin_json_number(image, "canonical_bytes"));
    bool whole = admin_json_number(image, "layers") == admin_json_number(image, "canonical_layers");
    const char *cells[] = {admin_json_text(image, "ref"),
                           short_digest,
                           index ? "index" : layers.s,
                           index ? "-" : size.s,
                           index || !whole ? "-" : unpacked.s,
                           admin_json_true(image, "pinned") ? "yes" : "",
                           views};

    return table_add(t, cells, err);
}

static int render(const struct buf *answer, struct buf *out, struct err *err)
{
    CLEANUP(admin_json_cleanup) struct admin_json *root = NULL;
    CLEANUP(table_release) struct table t;
    const struct admin_json *images;

    table_init(&t, columns, ARRAY_LEN(columns));
    TRY(admin_json_parse(answer->data, answer->len, &root, err));
    images = admin_json_get(root, "images");
    for (size_t i = 0; i < admin_json_count(images); i++)
        TRY(add_row(&t, admin_json_at(images, i), err));
    return table_render(&t, cli_stdout_bold(), out, err);
}

static int run(const struct args *args, struct err *err)
{
    CLEANUP(buf_release) struct buf answer = BUF_INIT(ANSWER_MAX_BYTES);
    CLEANUP(buf_release) struct buf out = BUF_INIT(ANSWER_MAX_BYTES);

    TRY(cli_ask(args, "/api/v1/images", NULL, &answer, err));
    if (args_has(args, "--json"))
        return cli_print(&answer, err);
    TRY(render(&answer, &out, err));
    return cli_print(&out, err);
}

const struct command cmd_ls = {
    .name = "ls",
    .synopsis = "[--json] [--store DIR | --admin ADDR:PORT]",
    .summary = "list the images (tags) that a running instance knows",
    .details = "SIZE: the layers as upstream has them. UNPACKED: uncompressed, once all of them are taken apart.\n"
               "PINNED: some pin keeps it from eviction (\"recask pin\" lists the pins).\n"
               "VIEWS: pending (not made yet), ready, or never and why. \"recask inspect\" shows one image.\n",
    .flags = cli_target_flags,
    .run = run,
};
