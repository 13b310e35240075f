/* SPDX-License-Identifier: Apache-2.0
 *
 * The one place where an error code becomes an HTTP answer. Bodies are OCI error bodies (distribution-spec, "Error
 * Codes").
 *
 * "Cannot be obtained" is 404: every client of a mirror goes on to its next host on that, some old ones on nothing else. The
 * body tells the truth: its code is not *_UNKNOWN, which alone means that there is no such thing. With unavailable_503 what
 * may pass is 503 and names a time. A denial stays 404 then too: waiting does not cure it, but the next host, asked with
 * the client's own credentials, may well say yes; and a 401 or 403 of a mirror makes clients offer those to recask. What
 * is recask's own trouble is 5xx always.
 */
#include "proxy/proxy_internal.h"

#include <string.h>

#define RETRY_AFTER_S 5

struct mapping {
    int code;
    int status;
    const char *oci;   /* NULL: by the kind of route */
    int retry_after_s; /* of a 503 */
    bool of_upstream, passes;
};

static const struct mapping mappings[] = {
    {ERR_NOTFOUND, 404, NULL, 0, false, false},
    {ERR_FORMAT, 400, NULL, 0, false, false},
    {ERR_UNSUPPORTED, 400, "UNSUPPORTED", 0, false, false},
    {ERR_USAGE, 400, "UNSUPPORTED", 0, false, false},
    {ERR_UPSTREAM, 404, "UNAVAILABLE", RETRY_AFTER_S, true, true},
    {ERR_TIMEOUT, 404, "UNAVAILABLE", RETRY_AFTER_S, true, true},
    {ERR_THROTTLED, 404, "TOOMANYREQUESTS", RETRY_AFTER_S, true, true},
    {ERR_DENIED, 404, "DENIED", 0, true, false},
    {ERR_CORRUPT, 404, "UNKNOWN", 0, true, false},
    {ERR_LIMIT, 404, "UNKNOWN", 0, true, false},
    {ERR_CANCELLED, 503, "UNAVAILABLE", RETRY_AFTER_S, false, false},
    {ERR_BUSY, 503, "TOOMANYREQUESTS", RETRY_AFTER_S, false, false},
    {ERR_NOMEM, 503, "UNAVAILABLE", RETRY_AFTER_S, false, false},
    {ERR_NOSPC, 503, "UNAVAILABLE", 30, false, false},
    {ERR_IO, 500, "UNKNOWN", 0, false, false},
    {ERR_BUG, 500, "UNKNOWN", 0, false, false}, /* last: also what is not in the table */
};

static const char *code_of_kind(enum route_kind kind, int code)
{
    bool missing = code == ERR_NOTFOUND;
    switch (kind) {
    case ROUTE_MANIFEST:
        return missing ? "MANIFEST_UNKNOWN" : "MANIFEST_INVALID";
    case ROUTE_BLOB:
        return missing ? "BLOB_UNKNOWN" : "DIGEST_INVALID";
    case ROUTE_REFERRERS:
        return missing ? "MANIFEST_UNKNOWN" : "DIGEST_INVALID";
    case ROUTE_TAGS:
    case ROUTE_BASE:
        return missing ? "NAME_UNKNOWN" : "NAME_INVALID";
    }
    return "UNKNOWN";
}

/* JSON string contents. Bytes outside printable ASCII become \u00XX each: messages quote what others sent, and an answer
 * must be valid JSON whatever that was. */
static int add_json_text(struct buf *b, const char *s, struct err *err)
{
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            TRY(buf_printf(b, err, "\\%c", c));
        else if (c < 0x20 || c >= 0x7f)
            TRY(buf_printf(b, err, "\\u%04x", c));
        else
            TRY(buf_add(b, s, 1, err));
    }
    return 0;
}

static const struct mapping *mapping_of(int code)
{
    for (size_t i = 0; i < ARRAY_LEN(mappings); i++) {
        if (mappings[i].code == code)
            return &mappings[i];
    }
    return &mappings[ARRAY_LEN(mappings) - 1];
}

/* {"upstream":"docker.io","status":429} */
static int add_detail(struct buf *b, const struct error_context *c, struct err *err)
{
    TRY(buf_str(b, ",\"detail\":{\"upstream\":\"", err));
    TRY(add_json_text(b, c->upstream, err));
    TRY(buf_str(b, "\"", err));
    if (c->status > 0)
        TRY(buf_printf(b, err, ",\"status\":%d", c->status));
    return buf_str(b, "}", err);
}

bool error_of_store(int code)
{
    return code == ERR_NOSPC || code == ERR_NOMEM || code == ERR_IO || code == ERR_BUSY;
}

int error_answer(struct http_answer *a, const struct error_context *c, const struct err *e, struct err *err)
{
    CLEANUP(buf_release) struct buf body = BUF_INIT(16384);
    const struct mapping *m = mapping_of(e->code);
    const char *code = c->code ? c->code : m->oci ? m->oci : code_of_kind(c->kind, e->code);

    a->status = m->passes && c->unavailable_503 ? 503 : m->status;
    TRY(buf_printf(&body, err, "{\"errors\":[{\"code\":\"%s\",\"message\":\"", code));
    TRY(add_json_text(&body, e->msg, err));
    TRY(buf_str(&body, "\"", err));
    if (m->of_upstream && c->upstream)
        TRY(add_detail(&body, c, err));
    TRY(buf_str(&body, "}]}\n", err));
    TRY(http_answer_header(a, err, "Content-Type", "application/json"));
    if (a->status == 503)
        TRY(http_answer_header(a, err, "Retry-After", "%d",
                               m->of_upstream && c->retry_after_s > 0 ? c->retry_after_s : m->retry_after_s));
    a->body_len = body.len;
    a->body = buf_steal(&body);
    return 0;
}
