/* SPDX-License-Identifier: Apache-2.0
 * admin/stats.c - /api/v1/stats, and the JSON that every answer is made with. */
#include "admin/admin_internal.h"

#include <time.h>

int admin_json_dump(json_t *root, struct buf *out, struct err *err)
{
    CLEANUP(free_ptr) char *text = NULL;

    if (root != NULL)
        text = json_dumps(root, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_ENCODE_ANY);
    json_decref(root);
    if (text == NULL)
        return err_set(err, ERR_NOMEM, "no memory for an answer");
    TRY(buf_str(out, text, err));
    return buf_str(out, "\n", err);
}

json_t *admin_json_digest(const struct digest *d)
{
    return json_string(digest_text(d).s);
}

json_t *admin_json_time(int64_t wall_s)
{
    time_t t = (time_t)wall_s;
    struct tm tm;
    char text[40];

    if (wall_s <= 0 || gmtime_r(&t, &tm) == NULL || strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        return json_null();
    return json_string(text);
}

static json_t *count(uint64_t n)
{
    return json_integer((json_int_t)n);
}

static json_t *requests_object(const struct proxy_stats *p)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "total", count(p->requests_total), "hit", count(p->requests_hit),
                     "follow", count(p->requests_follow), "miss", count(p->requests_miss), "stale",
                     count(p->requests_stale));
}

static json_t *store_object(const struct store_stats *s)
{
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
        "bytes_on_disk", count(s->bytes_on_disk), "quota_bytes", count(s->quota_bytes), "reserved_bytes",
        count(s->reserved_bytes), "evictions", count(s->evictions), "packs", count(s->packs), "pack_bytes",
        count(s->pack_bytes), "compactions", count(s->compactions), "compacted_bytes", count(s->compacted_bytes),
        "canonical_bytes", count(s->canonical_bytes), "unique_chunk_bytes", count(s->unique_chunk_bytes), "frame_bytes",
        count(s->frame_bytes), "original_bytes", count(s->original_bytes), "chunks", count(s->chunks),
        "canonical_layers", count(s->canonical_layers), "replayable_layers", count(s->replayable_layers), "manifests",
        count(s->manifests), "tags", count(s->tags), "blobs", count(s->blobs), "pins", count(s->pins), "pinned_bytes",
        count(s->pinned_bytes));
}

int admin_stats_json(const struct admin_numbers *n, struct buf *out, struct err *err)
{
    const struct proxy_stats *p = &n->proxy;

    return admin_json_dump(json_pack("{s:s, s:o, s:o, s:{s:o}, s:o, s:{s:o, s:o}, s:{s:o}, s:o, s:o?}", "version",
                                     n->version, "uptime_s", json_integer(n->uptime_s), "fills", count(p->fills),
                                     "jobs", "pending", count(p->jobs_pending), "requests", requests_object(p),
                                     "upstream", "requests", count(p->upstream_requests), "bytes",
                                     count(p->upstream_bytes), "served", "bytes", count(p->served_bytes), "store",
                                     store_object(&n->store), "maintenance", n->maintenance),
                           out, err);
}

int admin_error_json(const char *code, const char *message, struct buf *out, struct err *err)
{
    /* Messages may quote what came from outside; bytes that are not UTF-8 must not cost the whole answer. */
    json_t *text = json_string(message);

    if (text == NULL)
        text = json_string("(the message is not text)");
    return admin_json_dump(json_pack("{s:{s:s, s:o}}", "error", "code", code, "message", text), out, err);
}
