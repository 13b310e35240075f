/* SPDX-License-Identifier: Apache-2.0
 *
 * The one place where an error code becomes an HTTP answer. Bodies are OCI error bodies (distribution-spec, "Error
 * Codes"); mirrors' clients fall through to the next host on 404 and 5xx alike, old ones only on 404.
 */
#include "proxy/proxy_internal.h"

#include <string.h>

struct mapping {
    int code;
    int status;
    const char *oci; /* NULL: by the kind of route */
    const char *retry_after;
};

static const struct mapping mappings[] = {
    {ERR_NOTFOUND, 404, NULL, NULL},         {ERR_CORRUPT, 502, "UNKNOWN", NULL},
    {ERR_FORMAT, 400, NULL, NULL},           {ERR_LIMIT, 502, "UNKNOWN", NULL},
    {ERR_TIMEOUT, 504, "UNKNOWN", NULL},     {ERR_CANCELLED, 503, "UNAVAILABLE", "5"},
    {ERR_BUSY, 503, "TOOMANYREQUESTS", "5"}, {ERR_UPSTREAM, 502, "UNKNOWN", NULL},
    {ERR_DENIED, 403, "DENIED", NULL},       {ERR_UNSUPPORTED, 400, "UNSUPPORTED", NULL},
    {ERR_NOSPC, 503, "UNAVAILABLE", "30"},   {ERR_NOMEM, 503, "UNAVAILABLE", "5"},
    {ERR_IO, 500, "UNKNOWN", NULL},          {ERR_USAGE, 400, "UNSUPPORTED", NULL},
    {ERR_THROTTLED, 503, "TOOMANYREQUESTS", "5"},
    {ERR_BUG, 500, "UNKNOWN", NULL},
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

int error_answer(struct http_answer *a, enum route_kind kind, const char *code, const struct err *e, struct err *err)
{
    CLEANUP(buf_release) struct buf body = BUF_INIT(16384);
    const struct mapping *m = &mappings[ARRAY_LEN(mappings) - 1];

    for (size_t i = 0; i < ARRAY_LEN(mappings); i++) {
        if (mappings[i].code == e->code)
            m = &mappings[i];
    }
    if (!code)
        code = m->oci ? m->oci : code_of_kind(kind, e->code);
    TRY(buf_printf(&body, err, "{\"errors\":[{\"code\":\"%s\",\"message\":\"", code));
    TRY(add_json_text(&body, e->msg, err));
    TRY(buf_str(&body, "\"}]}\n", err));
    a->status = m->status;
    TRY(http_answer_header(a, err, "Content-Type", "application/json"));
    if (m->retry_after)
        TRY(http_answer_header(a, err, "Retry-After", "%s", m->retry_after));
    a->body_len = body.len;
    a->body = buf_steal(&body);
    return 0;
}
