/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_head.c - the header section of an upstream's answer.
 *
 * libcurl hands over every line of every answer: interim ones (100, 103) and trailers too. A status line starts afresh, the
 * first blank line after a final status closes the head, and what comes later (trailers) is ignored.
 */
#include "proxy/upstream_internal.h"

#include <strings.h>

#define RETRY_AFTER_MAX_S (24 * 3600)

void head_parser_reset(struct head_parser *p)
{
    free(p->head.content_type);
    free(p->head.link);
    free(p->head.filters_applied);
    free(p->head.content_encoding);
    free(p->challenge);
    free(p->location);
    *p = (struct head_parser){.head = {.retry_after_s = -1}};
}

/* Digits alone; strtoull() would take signs, blanks and rests. */
static bool parse_digits(const char *text, size_t len, uint64_t *out)
{
    uint64_t n = 0;

    if (len == 0)
        return false;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9' || __builtin_mul_overflow(n, 10, &n) ||
            __builtin_add_overflow(n, (uint64_t)(text[i] - '0'), &n))
            return false;
    }
    *out = n;
    return true;
}

/* RFC 9110, 14.4. A span that ends before it starts, or beyond the total, is no span. */
static void parse_content_range(const char *text, struct content_range *out)
{
    const char *span = text + strlen("bytes ");

    *out = (struct content_range){.has_span = false};
    if (strncasecmp(text, "bytes ", strlen("bytes ")) != 0)
        return;
    const char *slash = strchr(span, '/');
    if (slash == NULL)
        return;
    out->has_total = parse_digits(slash + 1, strlen(slash + 1), &out->total);
    const char *dash = memchr(span, '-', (size_t)(slash - span));
    if (dash == NULL)
        return;
    out->has_span = parse_digits(span, (size_t)(dash - span), &out->first) &&
                    parse_digits(dash + 1, (size_t)(slash - dash - 1), &out->last) && out->first <= out->last &&
                    (!out->has_total || out->last < out->total);
}

/* Seconds or a date. Zero and the past are "at once". */
static int parse_retry_after(const char *text)
{
    uint64_t s;

    if (parse_digits(text, strlen(text), &s))
        return s > RETRY_AFTER_MAX_S ? RETRY_AFTER_MAX_S : (int)s;

    time_t date = curl_getdate(text, NULL);
    time_t now = time(NULL);
    if (date == -1)
        return -1;
    if (date <= now)
        return 0;
    return date - now > RETRY_AFTER_MAX_S ? RETRY_AFTER_MAX_S : (int)(date - now);
}

static int keep_first(char **field, const char *value, struct err *err)
{
    if (*field != NULL)
        return 0;
    return str_dup(value, field, err);
}

/* Repeated lines are one list (RFC 9110, 5.3). */
static int keep_joined(char **field, const char *value, struct err *err)
{
    char *both;

    if (*field == NULL)
        return str_dup(value, field, err);
    TRY(str_printf(&both, err, "%s, %s", *field, value));
    free(*field);
    *field = both;
    return 0;
}

static int take_field(struct head_parser *p, const char *name, const char *value, struct err *err)
{
    struct upstream_head *h = &p->head;
    struct err ignored = ERR_INIT;

    if (strcasecmp(name, "Content-Type") == 0)
        return keep_first(&h->content_type, value, err);
    if (strcasecmp(name, "Link") == 0)
        return keep_joined(&h->link, value, err);
    if (strcasecmp(name, "OCI-Filters-Applied") == 0)
        return keep_joined(&h->filters_applied, value, err);
    if (strcasecmp(name, "Content-Encoding") == 0)
        return strcasecmp(value, "identity") == 0 || value[0] == '\0' ? 0
                                                                      : keep_joined(&h->content_encoding, value, err);
    if (strcasecmp(name, "Location") == 0)
        return keep_first(&p->location, value, err);
    if (h->status == 401 && strcasecmp(name, "WWW-Authenticate") == 0)
        return keep_joined(&p->challenge, value, err);
    if (strcasecmp(name, "Content-Length") == 0)
        h->has_length = parse_digits(value, strlen(value), &h->length_bytes);
    else if (strcasecmp(name, "Transfer-Encoding") == 0)
        p->chunked = true;
    else if (strcasecmp(name, "Content-Range") == 0)
        parse_content_range(value, &p->range);
    else if (strcasecmp(name, "Docker-Content-Digest") == 0)
        h->has_digest = digest_parse(value, strlen(value), &h->digest, &ignored) == 0;
    else if (strcasecmp(name, "Retry-After") == 0)
        h->retry_after_s = parse_retry_after(value);
    return 0;
}

/* "HTTP/1.1 200 OK", "HTTP/2 200" */
static void take_status(struct head_parser *p, const char *line)
{
    const char *space = strchr(line, ' ');
    uint64_t status;
    size_t bytes = p->bytes;

    head_parser_reset(p);
    p->bytes = bytes;
    if (space != NULL && parse_digits(space + 1, strspn(space + 1, "0123456789"), &status) && status < 1000)
        p->head.status = (int)status;
}

/* The length of the whole representation, whatever part of it this answer holds. */
static void settle_length(struct head_parser *p)
{
    if (p->chunked) /* RFC 9112, 6.3: then Content-Length does not count */
        p->head.has_length = false;
    if (p->head.status == 206) {
        p->head.has_length = p->range.has_total;
        p->head.length_bytes = p->range.total;
    }
    if (p->head.content_encoding != NULL) /* then it counts bytes that are not the representation's */
        p->head.has_length = false;
}

int head_parser_line(struct head_parser *p, const char *line, size_t len, struct err *err)
{
    CLEANUP(free_ptr) char *copy = NULL;

    p->bytes += len;
    if (p->bytes > UPSTREAM_HEAD_MAX_BYTES)
        return err_set(err, ERR_LIMIT, "more than %zu bytes of headers", UPSTREAM_HEAD_MAX_BYTES);
    while (len > 0 && (line[len - 1] == '\n' || line[len - 1] == '\r' || line[len - 1] == ' ' || line[len - 1] == '\t'))
        len--;
    copy = strndup(line, len);
    if (copy == NULL)
        return err_nomem(err, len);
    if (p->done)
        return 0;
    if (strncmp(copy, "HTTP/", strlen("HTTP/")) == 0) {
        take_status(p, copy);
        return 0;
    }
    if (len == 0) {
        p->done = p->head.status >= 200;
        settle_length(p);
        return 0;
    }

    char *colon = strchr(copy, ':');
    if (colon == NULL)
        return 0;
    *colon = '\0';
    return take_field(p, copy, colon + 1 + strspn(colon + 1, " \t"), err);
}
