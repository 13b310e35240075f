/* SPDX-License-Identifier: Apache-2.0
 *
 * One request and its answer as data: what the client sent, copied out of the server library, and the pipe that the body
 * of the answer goes through. No socket is touched here.
 */
#include "base/clock.h"
#include "base/percent.h"
#include "proxy/http_internal.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <strings.h>

/* The absolute form ("GET http://host/v2/ HTTP/1.1", RFC 9112 section 3.2.2) means the same as its path. */
static const char *skip_authority(const char *uri)
{
    static const char *const schemes[] = {"http://", "https://"};

    for (size_t i = 0; i < ARRAY_LEN(schemes); i++) {
        if (strncasecmp(uri, schemes[i], strlen(schemes[i])) == 0) {
            const char *path = uri + strlen(schemes[i]);
            path += strcspn(path, "/?");
            return *path == '/' ? path : "/";
        }
    }
    return uri;
}

struct http_exchange *http_exchange_new(struct http_listener *l, const char *uri)
{
    struct http_exchange *x = calloc(1, sizeof(*x));
    if (!x)
        return NULL;
    x->magic = HTTP_EXCHANGE_MAGIC;
    atomic_init(&x->refs, 1);
    atomic_init(&x->sent_bytes, 0);
    x->listener = l;
    lock_init(&x->lock, RANK_REQUEST);
    buf_init(&x->body, HTTP_BODY_MAX_BYTES);
    x->start_ms = clock_mono_ms();
    x->uri_overflow = strlen(uri) > HTTP_URI_MAX_BYTES; /* refused; the log shows its beginning */
    uri = skip_authority(uri);
    const char *mark = strchrnul(uri, '?');
    x->path = strndup(uri, (size_t)(mark - uri));
    x->query = strdup(*mark ? mark + 1 : "");
    if (!x->path || !x->query) {
        http_exchange_unref(x);
        return NULL;
    }
    return x;
}

void http_exchange_ref(void *arg)
{
    struct http_exchange *x = CAST_OBJ(struct http_exchange, HTTP_EXCHANGE_MAGIC, arg);
    atomic_fetch_add(&x->refs, 1);
}

void http_exchange_unref(void *arg)
{
    struct http_exchange *x = CAST_OBJ(struct http_exchange, HTTP_EXCHANGE_MAGIC, arg);
    if (atomic_fetch_sub(&x->refs, 1) != 1)
        return;
    for (size_t i = 0; i < x->line_count; i++) {
        free(x->lines[i].name);
        free(x->lines[i].value);
    }
    http_answer_release(&x->answer);
    free(x->pipe.mem);
    free(x->method_text);
    free(x->path);
    free(x->query);
    free(x->query_decoded);
    buf_release(&x->body);
    lock_release(&x->lock);
    x->magic = 0;
    free(x);
}

/* RFC 9110 section 5.6.2. "Content-Length : 5" is no name, and a proxy in front may take it for one. */
static bool is_token(const char *s)
{
    size_t len = strlen(s);
    return len > 0 && strspn(s, "!#$%&'*+-.^_`|~0123456789"
                                "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == len;
}

/* Repeated lines are joined with ", " (RFC 9110 section 5.3). */
void http_exchange_add_header(struct http_exchange *x, const char *name, const char *value)
{
    value = value ? value : "";
    x->bad_framing |= !is_token(name);
    /* podman asks for up to 1024 ranges of a layer at once, and a 431 would end its pull: they have room of their own. */
    bool is_range = strcasecmp(name, "Range") == 0;
    size_t *bytes = is_range ? &x->range_bytes : &x->header_bytes;
    *bytes += strlen(name) + strlen(value) + 4;
    if (*bytes > (is_range ? HTTP_RANGE_MAX_BYTES : HTTP_HEADER_MAX_BYTES)) {
        x->header_overflow = true;
        return;
    }
    for (size_t i = 0; i < x->line_count; i++) {
        if (strcasecmp(x->lines[i].name, name) != 0)
            continue;
        char *joined;
        struct err err = ERR_INIT;
        if (str_printf(&joined, &err, "%s, %s", x->lines[i].value, value) < 0) {
            x->no_memory = true;
            return;
        }
        free(x->lines[i].value);
        x->lines[i].value = joined;
        return;
    }
    if (x->line_count == HTTP_REQUEST_HEADERS_MAX) {
        x->header_overflow = true;
        return;
    }
    struct http_header_line *line = &x->lines[x->line_count];
    line->name = strdup(name);
    line->value = strdup(value);
    if (!line->name || !line->value) {
        free_ptr(&line->name);
        free_ptr(&line->value);
        x->no_memory = true;
        return;
    }
    x->line_count++;
}

/* One to one, and neighbours have nothing in common: the last step of the splitmix64 generator (Steele, Lea, Flood 2014). */
static uint64_t scramble(uint64_t v)
{
    v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9u;
    v = (v ^ v >> 27) * 0x94d049bb133111ebu;
    return v ^ v >> 31;
}

static void exchange_choose_id(struct http_exchange *x)
{
    const char *theirs = http_header(x, "X-Request-Id");
    size_t len = theirs ? strlen(theirs) : 0;
    bool sane = len > 0 && len < sizeof(x->id);
    for (size_t i = 0; sane && i < len; i++)
        sane = isalnum((unsigned char)theirs[i]) || strchr("-_.", theirs[i]) != NULL;
    if (sane) {
        memcpy(x->id, theirs, len + 1);
        return;
    }
    snprintf(x->id, sizeof(x->id), "%016" PRIx64, scramble(atomic_fetch_add(&x->listener->server->next_id, 1)));
}

/* ---- getters --------------------------------------------------------------------------------------------------- */

enum http_method http_method(const struct http_exchange *x)
{
    return x->method;
}

const char *http_method_text(const struct http_exchange *x)
{
    return x->method_text;
}

const char *http_path(const struct http_exchange *x)
{
    return x->path;
}

const char *http_query_raw(const struct http_exchange *x)
{
    return x->query;
}

/* Decodes "+" and %XX in place; a NUL or a bad escape makes the value unusable. */
static bool query_decode(char *s)
{
    char *out = s;
    for (; *s; s++) {
        if (*s == '+') {
            *out++ = ' ';
        } else if (*s == '%') {
            int decoded = percent_byte(s);
            if (decoded <= 0)
                return false;
            *out++ = (char)decoded;
            s += 2;
        } else {
            *out++ = *s;
        }
    }
    *out = '\0';
    return true;
}

/* The decoded query is kept as "name\0value\0...\0\0", made once before the handler runs. */
static void query_split(struct http_exchange *x)
{
    size_t len = strlen(x->query);
    char *copy = strdup(x->query), *save = NULL, *out;

    x->query_decoded = calloc(1, 2 * len + 4);
    if (!copy || !x->query_decoded) {
        free(copy);
        return;
    }
    out = x->query_decoded;
    for (char *part = strtok_r(copy, "&", &save); part; part = strtok_r(NULL, "&", &save)) {
        char *value = strchr(part, '=');
        if (value)
            *value++ = '\0';
        if (*part == '\0' || !query_decode(part) || (value && !query_decode(value)))
            continue;
        out = stpcpy(out, part) + 1;
        out = stpcpy(out, value ? value : "") + 1;
    }
    free(copy);
}

const char *http_query(const struct http_exchange *x, const char *name)
{
    if (!x->query_decoded)
        return NULL;
    for (const char *p = x->query_decoded; *p;) {
        const char *value = p + strlen(p) + 1;
        if (strcmp(p, name) == 0)
            return value;
        p = value + strlen(value) + 1;
    }
    return NULL;
}

const char *http_header(const struct http_exchange *x, const char *name)
{
    for (size_t i = 0; i < x->line_count; i++) {
        if (strcasecmp(x->lines[i].name, name) == 0)
            return x->lines[i].value;
    }
    return NULL;
}

/* With its NUL, so that no two lists of parts make the same bytes. */
static bool add_part(char *out, size_t cap, size_t *len, const char *part)
{
    size_t n = strlen(part) + 1;

    if (n > cap - *len)
        return false;
    memcpy(out + *len, part, n);
    *len += n;
    return true;
}

size_t http_question(const struct http_exchange *x, char *out, size_t cap)
{
    size_t len = sizeof(x->listener);
    bool fits = cap >= len;

    if (fits)
        memcpy(out, &x->listener, len);
    fits = fits && add_part(out, cap, &len, x->is_http_1_0 ? "1.0" : "1.1") &&
           add_part(out, cap, &len, x->method_text) && add_part(out, cap, &len, x->path) &&
           add_part(out, cap, &len, x->query);
    for (size_t i = 0; i < x->line_count && fits; i++) {
        if (strcasecmp(x->lines[i].name, "X-Request-Id") != 0)
            fits = add_part(out, cap, &len, x->lines[i].name) && add_part(out, cap, &len, x->lines[i].value);
    }
    return fits ? len : 0;
}

const char *http_body(const struct http_exchange *x, size_t *out_len)
{
    *out_len = x->body.len;
    return x->body.data ? x->body.data : "";
}

const char *http_request_id(const struct http_exchange *x)
{
    return x->id;
}

const char *http_peer(const struct http_exchange *x)
{
    return x->peer;
}

bool http_is_unix(const struct http_exchange *x)
{
    return x->listener->is_unix;
}

bool http_is_tls(const struct http_exchange *x)
{
    return x->listener->tls != NULL;
}

bool http_can_chunk(const struct http_exchange *x)
{
    return !x->is_http_1_0;
}

/* A body of a length that is too large anyway need not be waited for. */
static bool announces_too_much(const struct http_exchange *x)
{
    const char *text = http_header(x, "Content-Length");
    return text && strtoull(text, NULL, 10) > HTTP_BODY_MAX_BYTES;
}

/* Where the body ends must be told once and clearly: two answers to that are how requests are smuggled past a proxy in
 * front (RFC 9112 section 6). */
static void check_framing(struct http_exchange *x)
{
    const char *length = http_header(x, "Content-Length"), *coding = http_header(x, "Transfer-Encoding");

    x->unknown_coding = coding && strcasecmp(coding, "chunked") != 0;
    x->bad_framing |= coding && (length || x->is_http_1_0);
    x->bad_framing |= length && (!*length || strspn(length, "0123456789") != strlen(length));
}

bool http_exchange_begin(struct http_exchange *x, const char *method, const char *version)
{
    x->method = strcmp(method, "GET") == 0    ? HTTP_GET
                : strcmp(method, "HEAD") == 0 ? HTTP_HEAD
                : strcmp(method, "POST") == 0 ? HTTP_POST
                                              : HTTP_OTHER;
    x->method_text = strdup(method);
    x->is_http_1_0 = strcmp(version, "HTTP/1.1") < 0;
    x->body_overflow = announces_too_much(x);
    check_framing(x);
    query_split(x);
    exchange_choose_id(x);
    return x->method_text != NULL;
}

/* ---- answers --------------------------------------------------------------------------------------------------- */

int http_answer_header(struct http_answer *a, struct err *err, const char *name, const char *fmt, ...)
{
    char *value = NULL;
    va_list ap;

    if (a->header_count == HTTP_HEADERS_MAX)
        return err_set(err, ERR_BUG, "more than %d answer headers", HTTP_HEADERS_MAX);
    va_start(ap, fmt);
    int n = vasprintf(&value, fmt, ap);
    va_end(ap);
    if (n < 0)
        return err_nomem(err, strlen(fmt));
    /* Values may carry text from upstreams: nothing in them may start a new header line. */
    for (char *p = value; *p; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = ' ';
    }
    a->headers[a->header_count].name = name;
    a->headers[a->header_count].value = value;
    a->header_count++;
    return 0;
}

void http_answer_release(struct http_answer *a)
{
    for (unsigned i = 0; i < a->header_count; i++)
        free(a->headers[i].value);
    free(a->body);
    source_free(a->source);
    *a = (struct http_answer){.status = 0};
}

/* ---- the pipe -------------------------------------------------------------------------------------------------- */

size_t pipe_space(const struct http_pipe *p, char **out)
{
    size_t tail = (p->head + p->used) % p->cap;
    size_t free_bytes = p->cap - p->used, to_end = p->cap - tail;
    *out = p->mem + tail;
    return free_bytes < to_end ? free_bytes : to_end;
}

void pipe_publish(struct http_pipe *p, size_t len)
{
    p->used += len;
    REQUIRE(p->used <= p->cap);
}

size_t pipe_take(struct http_pipe *p, char *out, size_t max)
{
    size_t taken = 0;
    while (taken < max && p->used > 0) {
        size_t n = p->cap - p->head;
        n = n < p->used ? n : p->used;
        n = n < max - taken ? n : max - taken;
        memcpy(out + taken, p->mem + p->head, n);
        p->head = (p->head + n) % p->cap;
        p->used -= n;
        taken += n;
    }
    return taken;
}
