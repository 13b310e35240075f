/* SPDX-License-Identifier: Apache-2.0
 *
 * Link = #( "<" URI-Reference ">" *( OWS ";" OWS name [ BWS "=" BWS ( token / quoted-string ) ] ) ). What is between < and
 * > may hold commas and semicolons; what an upstream sends is checked before it becomes part of a header of ours.
 */
#include "proxy/link.h"

#include <string.h>
#include <strings.h>

static const char *skip_blanks(const char *p)
{
    return p + strspn(p, " \t");
}

/* Whether the list of relations [s, s + len) has "next". */
static bool has_next(const char *s, size_t len)
{
    for (size_t i = 0; i < len;) {
        size_t n = 0;
        while (i + n < len && s[i + n] != ' ' && s[i + n] != '\t')
            n++;
        if (n == 4 && strncasecmp(s + i, "next", 4) == 0)
            return true;
        i += n + 1;
    }
    return false;
}

/* Steps *p over one ";name=value". False when malformed. */
static bool read_param(const char **p, bool *has_rel, bool *is_next)
{
    const char *name = skip_blanks(*p + 1);
    size_t name_len = strcspn(name, " \t=;,\"");
    const char *s = skip_blanks(name + name_len);
    const char *value = s;
    size_t len = 0;

    if (*s == '=') {
        s = skip_blanks(s + 1);
        if (*s == '"') {
            value = ++s;
            for (; *s != '"'; s++) {
                if (*s == '\\' && s[1] != '\0')
                    s++;
                if (*s == '\0')
                    return false;
            }
            len = (size_t)(s - value);
            s++;
        } else {
            value = s;
            len = strcspn(s, " \t;,\"");
            s += len;
        }
    }
    if (name_len == 3 && strncasecmp(name, "rel", 3) == 0 && !*has_rel) { /* the first rel counts (RFC 8288, 3.3) */
        *has_rel = true;
        *is_next = has_next(value, len);
    }
    *p = skip_blanks(s);
    return **p == ';' || **p == ',' || **p == '\0';
}

/* Bytes that may stand in a query (RFC 3986), and %. Anything else would be read differently by somebody. */
static bool is_query(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c <= ' ' || c >= 0x7f || strchr("\"<>\\^`{|}", c))
            return false;
    }
    return true;
}

int query_without_ns(const char *query, size_t len, struct buf *out, struct err *err)
{
    for (size_t i = 0; i < len;) {
        size_t n = 0;
        while (i + n < len && query[i + n] != '&')
            n++;
        bool is_ns = n >= 3 && strncmp(query + i, "ns=", 3) == 0;
        if (n > 0 && !is_ns) {
            TRY(buf_str(out, out->len ? "&" : "", err));
            TRY(buf_add(out, query + i, n, err));
        }
        i += n + 1;
    }
    return 0;
}

static bool take_query(const char *target, size_t len, struct buf *out)
{
    struct err err = ERR_INIT;
    const char *fragment = memchr(target, '#', len);

    len = fragment ? (size_t)(fragment - target) : len;
    const char *query = memchr(target, '?', len);
    if (!query || !is_query(target, len))
        return false;
    query++;
    return query_without_ns(query, len - (size_t)(query - target), out, &err) == 0 && out->len > 0;
}

bool link_next_query(const char *header, struct buf *out)
{
    const char *p = header;

    while (p && *(p = p + strspn(p, ", \t")) == '<') {
        const char *target = p + 1;
        size_t len = strcspn(target, ">");
        bool has_rel = false, is_next = false;

        if (target[len] == '\0')
            return false;
        p = skip_blanks(target + len + 1);
        while (*p == ';') {
            if (!read_param(&p, &has_rel, &is_next))
                return false;
        }
        if (*p != ',' && *p != '\0')
            return false;
        if (!has_rel || is_next)
            return take_query(target, len, out);
    }
    return false;
}
