/* SPDX-License-Identifier: Apache-2.0
 * cli/cmd_inspect.c - recask inspect REF */
#include "admin/json.h"
#include "cli/cli.h"
#include "cli/table.h"

#define ANSWER_MAX_BYTES (64u << 20)

static const struct table_column fact_columns[] = {{NULL, false}, {NULL, false}};
static const struct table_column layer_columns[] = {
    {"LAYER", true}, {"FORM", false}, {"DIGEST", false}, {"SIZE", true}, {"STATE", false}};

static int fact(struct table *t, const char *name, const char *value, struct err *err)
{
    const char *cells[] = {name, value};

    return *value != '\0' ? table_add(t, cells, err) : 0;
}

static const char *signed_word(const struct admin_json *m)
{
    if (!admin_json_has(m, "signed"))
        return "not looked up yet";
    return admin_json_true(m, "signed") ? "yes" : "no";
}

/* What is true of an image, an index, or a manifest in one. */
static int render_facts(const struct admin_json *m, struct buf *out, struct err *err)
{
    CLEANUP(table_release) struct table t;
    const struct admin_json *views = admin_json_get(m, "views");
    const char *reason = admin_json_text(views, "reason");
    const char *upstream = admin_json_text(m, "upstream_digest");
    char state[256];

    table_init(&t, fact_columns, ARRAY_LEN(fact_columns));
    snprintf(state, sizeof state, "%s%s%s", admin_json_text(views, "state"), *reason != '\0' ? ": " : "", reason);
    TRY(fact(&t, "image", admin_json_text(m, "ref"), err));
    TRY(fact(&t, "platform", admin_json_text(m, "platform"), err));
    TRY(fact(&t, "digest", admin_json_text(m, "digest"), err));
    if (strcmp(upstream, admin_json_text(m, "digest")) != 0)
        TRY(fact(&t, "view of", upstream, err));
    TRY(fact(&t, "type", admin_json_text(m, "media_type"), err));
    TRY(fact(&t, "checked", admin_json_text(m, "checked_at"), err));
    if (views == NULL) {
        TRY(fact(&t, "state", "not asked for by any client yet", err));
        return table_render(&t, false, out, err);
    }
    TRY(fact(&t, "pinned", admin_json_true(m, "pinned") ? "yes" : "no", err));
    TRY(fact(&t, "signed", signed_word(m), err));
    TRY(fact(&t, "views", state, err));
    TRY(fact(&t, "  canonical", admin_json_text(views, "canonical"), err));
    TRY(fact(&t, "  zstd", admin_json_text(views, "zstd"), err));
    return table_render(&t, false, out, err);
}

static int layer_row(struct table *t, const char *number, const char *form, const struct admin_json *v,
                     const char *state, struct err *err)
{
    const struct human size = human_bytes(admin_json_number(v, "size"));
    const char *cells[] = {number, form, admin_json_text(v, "digest"), size.s, state};

    return table_add(t, cells, err);
}

/* Of the layer as upstream has it; that its bytes are gone does not matter while a canonical form is there. */
static const char *original_word(const struct admin_json *layer)
{
    const char *state = admin_json_text(layer, "state");

    if (admin_json_true(layer, "present"))
        return strcmp(state, "original only") == 0 ? "stored, cannot be unpacked" : "stored";
    return strcmp(state, "not fetched") == 0 ? state : "evicted";
}

static int layer_rows(struct table *t, size_t number, const struct admin_json *layer, struct err *err)
{
    const struct human n = human_count(number);
    const struct admin_json *canonical = admin_json_get(layer, "canonical");
    bool is_canonical = strcmp(admin_json_text(canonical, "digest"), admin_json_text(layer, "digest")) == 0;

    TRY(layer_row(t, n.s, is_canonical ? "canonical" : "upstream's", layer, original_word(layer), err));
    if (!admin_json_has(layer, "canonical"))
        return 0;
    if (!is_canonical)
        TRY(layer_row(t, "", "canonical", canonical, admin_json_true(layer, "canonical_present") ? "stored" : "evicted",
                      err));
    return layer_row(t, "", "zstd", admin_json_get(layer, "zstd"), "", err);
}

static int render_layers(const struct admin_json *layers, struct buf *out, struct err *err)
{
    CLEANUP(table_release) struct table t;

    table_init(&t, layer_columns, ARRAY_LEN(layer_columns));
    for (size_t i = 0; i < admin_json_count(layers); i++)
        TRY(layer_rows(&t, i + 1, admin_json_at(layers, i), err));
    TRY(buf_str(out, "\n", err));
    return table_render(&t, cli_stdout_bold(), out, err);
}

static int render_manifest(const struct admin_json *m, struct buf *out, struct err *err)
{
    TRY(render_facts(m, out, err));
    return admin_json_count(admin_json_get(m, "layers")) > 0 ? render_layers(admin_json_get(m, "layers"), out, err) : 0;
}

static int render(const struct buf *answer, struct buf *out, struct err *err)
{
    CLEANUP(admin_json_cleanup) struct admin_json *root = NULL;
    const struct admin_json *children;

    TRY(admin_json_parse(answer->data, answer->len, &root, err));
    TRY(render_manifest(root, out, err));
    children = admin_json_get(root, "manifests");
    for (size_t i = 0; i < admin_json_count(children); i++) {
        TRY(buf_str(out, "\n", err));
        TRY(render_manifest(admin_json_at(children, i), out, err));
    }
    return 0;
}

static int run(const struct args *args, struct err *err)
{
    CLEANUP(buf_release) struct buf answer = BUF_INIT(ANSWER_MAX_BYTES);
    CLEANUP(buf_release) struct buf out = BUF_INIT(ANSWER_MAX_BYTES);

    if (*args->words[0] == '\0')
        return err_set(err, ERR_USAGE, "inspect: the image's name is empty");
    TRY(cli_ask(args, "/api/v1/images/", args->words[0], &answer, err));
    if (args_has(args, "--json"))
        return cli_print(&answer, err);
    TRY(render(&answer, &out, err));
    return cli_print(&out, err);
}

const struct command cmd_inspect = {
    .name = "inspect",
    .synopsis = "REF [--json] [--store DIR | --admin ADDR:PORT]",
    .summary = "show one image: digests, views, layers in each form, what is stored",
    .details = "REF: alpine, docker.io/library/alpine:3.20, ghcr.io/a/b@sha256:..., or a digest alone. Without a\n"
               "registry the default upstream is meant. Only the store is looked at, no upstream is asked.\n",
    .flags = cli_target_flags,
    .min_words = 1,
    .max_words = 1,
    .run = run,
};
