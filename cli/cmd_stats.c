/* SPDX-License-Identifier: Apache-2.0
 * cli/cmd_stats.c - recask stats */
#include "admin/json.h"
#include "cli/cli.h"
#include "cli/table.h"

#include <stdarg.h>

#define ANSWER_MAX_BYTES (1u << 20)

static const struct table_column columns[] = {{NULL, false}, {NULL, false}};

static int line(struct table *t, struct err *err, const char *name, const char *fmt, ...) PRINTF_LIKE(4, 5);

static int line(struct table *t, struct err *err, const char *name, const char *fmt, ...)
{
    char value[256];
    const char *cells[] = {name, value};
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(value, sizeof value, fmt, ap);
    va_end(ap);
    return table_add(t, cells, err);
}

static struct human count_of(const struct admin_json *object, const char *key)
{
    return human_count(admin_json_number(object, key));
}

static struct human bytes_of(const struct admin_json *object, const char *key)
{
    return human_bytes(admin_json_number(object, key));
}

static int traffic_lines(struct table *t, const struct admin_json *root, struct err *err)
{
    const struct admin_json *requests = admin_json_get(root, "requests"), *upstream = admin_json_get(root, "upstream");

    TRY(line(t, err, "requests", "%s: %s hit, %s follow, %s miss, %s stale", count_of(requests, "total").s,
             count_of(requests, "hit").s, count_of(requests, "follow").s, count_of(requests, "miss").s,
             count_of(requests, "stale").s));
    TRY(line(t, err, "served", "%s", bytes_of(admin_json_get(root, "served"), "bytes").s));
    TRY(line(t, err, "upstream", "%s in %s requests", bytes_of(upstream, "bytes").s, count_of(upstream, "requests").s));
    return line(t, err, "running", "%s transfers, %s background jobs", count_of(root, "fills").s,
                count_of(admin_json_get(root, "jobs"), "pending").s);
}

static int store_lines(struct table *t, const struct admin_json *store, struct err *err)
{
    TRY(line(t, err, "store", "%s on disk of %s, %s evictions", bytes_of(store, "bytes_on_disk").s,
             bytes_of(store, "quota_bytes").s, count_of(store, "evictions").s));
    TRY(line(t, err, "  images", "%s tags, %s manifests", count_of(store, "tags").s, count_of(store, "manifests").s));
    TRY(line(t, err, "  layers", "%s canonical, %s when unpacked", count_of(store, "canonical_layers").s,
             bytes_of(store, "canonical_bytes").s));
    TRY(line(t, err, "  chunks", "%s of %s, stored in %s", count_of(store, "chunks").s,
             bytes_of(store, "unique_chunk_bytes").s, bytes_of(store, "frame_bytes").s));
    TRY(line(t, err, "  originals", "%s", bytes_of(store, "original_bytes").s));
    return line(t, err, "  pins", "%s, which keep %s", count_of(store, "pins").s, bytes_of(store, "pinned_bytes").s);
}

static int render(const struct buf *answer, struct buf *out, struct err *err)
{
    CLEANUP(admin_json_cleanup) struct admin_json *root = NULL;
    CLEANUP(table_release) struct table t;

    table_init(&t, columns, ARRAY_LEN(columns));
    TRY(admin_json_parse(answer->data, answer->len, &root, err));
    TRY(line(&t, err, "recask", "%s, up %s", admin_json_text(root, "version"),
             human_seconds(admin_json_number(root, "uptime_s")).s));
    TRY(traffic_lines(&t, root, err));
    TRY(store_lines(&t, admin_json_get(root, "store"), err));
    return table_render(&t, false, out, err);
}

static int run(const struct args *args, struct err *err)
{
    CLEANUP(buf_release) struct buf answer = BUF_INIT(ANSWER_MAX_BYTES);
    CLEANUP(buf_release) struct buf out = BUF_INIT(ANSWER_MAX_BYTES);

    TRY(cli_ask(args, "/api/v1/stats", NULL, &answer, err));
    if (args_has(args, "--json"))
        return cli_print(&answer, err);
    TRY(render(&answer, &out, err));
    return cli_print(&out, err);
}

const struct command cmd_stats = {
    .name = "stats",
    .synopsis = "[--json] [--store DIR | --admin ADDR:PORT]",
    .summary = "numbers of a running instance: requests, traffic, store",
    .details = "hit: answered from the store. follow: joined a transfer that was running. miss: began one.\n"
               "stale: the upstream could not be asked, so the stored tag was served.\n",
    .flags = cli_target_flags,
    .run = run,
};
