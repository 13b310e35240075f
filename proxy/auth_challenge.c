/* SPDX-License-Identifier: Apache-2.0
 * proxy/auth_challenge.c - a cursor over WWW-Authenticate.
 *
 * The grammar's one trap is the comma, which separates both the parameters of a challenge and the challenges: a name
 * with a "=" behind it is a parameter, one without is the next scheme. Directly behind a scheme there may also be a token68
 * ("Negotiate abc=="), which is told from a parameter by what comes after its "=".
 */
#include "proxy/auth_challenge.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

struct cursor {
    const char *at, *end;
};

/* A value while it is read; what does not fit is noticed and not kept. */
struct value {
    char *out; /* NULL: skipped */
    size_t cap, len;
};

static bool is_token_char(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static bool is_token68_char(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c != '\0' && strchr("-._~+/", c) != NULL);
}

static void skip(struct cursor *c, const char *set)
{
    while (c->at < c->end && *c->at != '\0' && strchr(set, *c->at) != NULL)
        c->at++;
}

static bool read_token(struct cursor *c, const char **out, size_t *out_len)
{
    *out = c->at;
    while (c->at < c->end && is_token_char(*c->at))
        c->at++;
    *out_len = (size_t)(c->at - *out);
    return *out_len > 0;
}

/* Whether a "=" follows, with blanks around it; eaten if so. */
static bool read_equals(struct cursor *c)
{
    struct cursor ahead = *c;

    skip(&ahead, " \t");
    if (ahead.at >= ahead.end || *ahead.at != '=')
        return false;
    ahead.at++;
    skip(&ahead, " \t");
    *c = ahead;
    return true;
}

static void skip_token68(struct cursor *c)
{
    struct cursor ahead = *c;

    while (ahead.at < ahead.end && is_token68_char(*ahead.at))
        ahead.at++;
    skip(&ahead, "=");
    skip(&ahead, " \t");
    if (ahead.at == ahead.end || *ahead.at == ',')
        *c = ahead;
}

static int keep(struct value *v, char c, struct err *err)
{
    if (((unsigned char)c < 0x20 && c != '\t') || c == 0x7f)
        return err_set(err, ERR_FORMAT, "a control character in WWW-Authenticate");
    if (v->out == NULL)
        return 0;
    if (v->len + 1 >= v->cap)
        return err_set(err, ERR_LIMIT, "a parameter of WWW-Authenticate of %zu bytes or more", v->cap);
    v->out[v->len++] = c;
    v->out[v->len] = '\0';
    return 0;
}

static int read_quoted(struct cursor *c, struct value *v, struct err *err)
{
    for (c->at++; c->at < c->end; c->at++) {
        if (*c->at == '"') {
            c->at++;
            return 0;
        }
        if (*c->at == '\\' && ++c->at == c->end)
            break;
        TRY(keep(v, *c->at, err));
    }
    return err_set(err, ERR_FORMAT, "an open quote in WWW-Authenticate");
}

static int read_value(struct cursor *c, struct value *v, struct err *err)
{
    const char *text;
    size_t len;

    if (c->at < c->end && *c->at == '"')
        return read_quoted(c, v, err);
    if (!read_token(c, &text, &len))
        return err_set(err, ERR_FORMAT, "a parameter of WWW-Authenticate without a value");
    for (size_t i = 0; i < len; i++)
        TRY(keep(v, text[i], err));
    return 0;
}

/* Where a parameter goes; nowhere for those that nobody asks for. */
static struct value place(struct auth_challenge *out, const char *name, size_t len)
{
    if (len == strlen("realm") && strncasecmp(name, "realm", len) == 0)
        return (struct value){.out = out->realm, .cap = sizeof out->realm};
    if (len == strlen("service") && strncasecmp(name, "service", len) == 0)
        return (struct value){.out = out->service, .cap = sizeof out->service};
    if (len == strlen("scope") && strncasecmp(name, "scope", len) == 0)
        return (struct value){.out = out->scope, .cap = sizeof out->scope};
    return (struct value){.out = NULL};
}

static int read_param(struct cursor *c, const char *name, size_t len, struct auth_challenge *out, struct err *err)
{
    struct value v = {.out = NULL};

    if (out != NULL)
        v = place(out, name, len);
    if (v.out != NULL && v.out[0] != '\0')
        return err_set(err, ERR_FORMAT, "a parameter twice in one challenge of WWW-Authenticate");
    return read_value(c, &v, err);
}

int auth_challenge_find(const char *value, size_t len, const char *scheme, struct auth_challenge *out, struct err *err)
{
    struct cursor c = {.at = value, .end = value + len};
    bool in_challenge = false;
    bool found = false;
    const char *name;
    size_t name_len;

    memset(out, 0, sizeof *out);
    if (len > AUTH_CHALLENGE_MAX_BYTES)
        return err_set(err, ERR_LIMIT, "a WWW-Authenticate of %zu bytes", len);
    for (skip(&c, ", \t"); c.at < c.end; skip(&c, ", \t")) {
        if (!read_token(&c, &name, &name_len))
            return err_set(err, ERR_FORMAT, "a WWW-Authenticate that is none");
        if (in_challenge && read_equals(&c)) {
            TRY(read_param(&c, name, name_len, found ? out : NULL, err));
            continue;
        }
        if (found) /* the next challenge has begun */
            return 0;
        in_challenge = true;
        found = name_len == strlen(scheme) && strncasecmp(name, scheme, name_len) == 0;
        if (c.at < c.end && strchr(", \t", *c.at) == NULL)
            return err_set(err, ERR_FORMAT, "a WWW-Authenticate that is none");
        skip(&c, " \t");
        skip_token68(&c);
    }
    return found ? 0 : err_set(err, ERR_NOTFOUND, "no %s challenge", scheme);
}
