/* SPDX-License-Identifier: Apache-2.0
 * base/buf.c - a growable buffer. Invariant: data == NULL, or cap > len and data[len] == NUL.
 */
#include "base/buf.h"

#include <stdarg.h>

#define BUF_FIRST_BYTES 64

void buf_init(struct buf *b, size_t limit_bytes)
{
    *b = (struct buf)BUF_INIT(limit_bytes);
}

void buf_release(struct buf *b)
{
    free(b->data);
    buf_init(b, b->limit_bytes);
}

void buf_reset(struct buf *b)
{
    b->len = 0;
    if (b->data != NULL)
        b->data[0] = '\0';
}

int buf_reserve(struct buf *b, size_t more_bytes, struct err *err)
{
    size_t need, cap;
    char *data;

    if (b->len > b->limit_bytes || more_bytes > b->limit_bytes - b->len)
        return err_set(err, ERR_LIMIT, "more than %zu bytes", b->limit_bytes);
    if (__builtin_add_overflow(b->len, more_bytes, &need) || __builtin_add_overflow(need, 1, &need))
        return err_nomem(err, more_bytes);
    if (need <= b->cap)
        return 0;
    cap = b->cap < BUF_FIRST_BYTES ? BUF_FIRST_BYTES : b->cap;
    while (cap < need)
        if (__builtin_mul_overflow(cap, 2, &cap))
            cap = need;
    /* Doubling must not take much more than the limit allows to be used. */
    if (b->limit_bytes < SIZE_MAX && cap > b->limit_bytes + 1)
        cap = b->limit_bytes + 1;
    data = realloc(b->data, cap);
    if (data == NULL)
        return err_nomem(err, cap);
    if (b->data == NULL)
        data[0] = '\0';
    b->data = data;
    b->cap = cap;
    return 0;
}

int buf_add(struct buf *b, const void *data, size_t len, struct err *err)
{
    TRY(buf_reserve(b, len, err));
    if (len > 0)
        memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = '\0';
    return 0;
}

int buf_str(struct buf *b, const char *s, struct err *err)
{
    return buf_add(b, s, strlen(s), err);
}

int buf_printf(struct buf *b, struct err *err, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        return err_set(err, ERR_BUG, "bad format \"%s\"", fmt);
    TRY(buf_reserve(b, (size_t)n, err));
    va_start(ap, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return 0;
}

char *buf_steal(struct buf *b)
{
    char *data = steal(&b->data);

    buf_init(b, b->limit_bytes);
    return data;
}

int str_dup(const char *s, char **out, struct err *err)
{
    *out = NULL;
    if (s == NULL)
        return 0;
    *out = strdup(s);
    if (*out == NULL)
        return err_nomem(err, strlen(s) + 1);
    return 0;
}

int str_printf(char **out, struct err *err, const char *fmt, ...)
{
    va_list ap;
    int n;

    *out = NULL;
    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        return err_set(err, ERR_BUG, "bad format \"%s\"", fmt);
    *out = malloc((size_t)n + 1);
    if (*out == NULL)
        return err_nomem(err, (size_t)n + 1);
    va_start(ap, fmt);
    vsnprintf(*out, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return 0;
}
