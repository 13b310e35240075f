/* SPDX-License-Identifier: Apache-2.0
 * base/err.c - filling struct err. Messages become one line here, so that no caller has to think of it.
 */
#include "base/err.h"

#include "base/log.h"

#include <errno.h>
#include <stdarg.h>

/* Text from outside may reach a message; a newline or an escape sequence in it must not reach a log or a terminal. */
static void make_one_line(char *s)
{
    for (; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;

        if (c < 0x20 || c == 0x7f)
            *s = ' ';
    }
}

int err_set(struct err *err, enum err_code code, const char *fmt, ...)
{
    va_list ap;

    REQUIRE(code < 0);
    if (err->code != 0)
        return err->code;
    err->code = code;
    err->sys = 0;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    make_one_line(err->msg);
    return code;
}

static enum err_code code_of_errno(int sys)
{
    switch (sys) {
    case ENOSPC:
    case EDQUOT:
        return ERR_NOSPC;
    case ENOMEM:
    case EMFILE: /* passes like that */
    case ENFILE:
        return ERR_NOMEM;
    case ENOENT:
        return ERR_NOTFOUND;
    default:
        return ERR_IO;
    }
}

int err_sys(struct err *err, int sys, const char *fmt, ...)
{
    char reason[128];
    va_list ap;

    if (err->code != 0)
        return err->code;
    err->code = code_of_errno(sys);
    err->sys = sys;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);

    const char *text = strerror_r(sys, reason, sizeof reason);
    size_t len = strlen(err->msg);
    size_t need = strlen(text) + 3;

    /* The reason matters more than the end of a long path. */
    if (len + need > sizeof err->msg)
        len = sizeof err->msg - need;
    snprintf(err->msg + len, sizeof err->msg - len, ": %s", text);
    make_one_line(err->msg);
    return err->code;
}

int err_wrap(struct err *err, const char *fmt, ...)
{
    char context[ERR_MSG_BYTES];
    char inner[ERR_MSG_BYTES];
    va_list ap;

    REQUIRE(err->code != 0);
    va_start(ap, fmt);
    vsnprintf(context, sizeof context, fmt, ap);
    va_end(ap);
    memcpy(inner, err->msg, sizeof inner);

    /* When both do not fit the context gives way, as the reason is what cannot be guessed. */
    size_t room = sizeof err->msg - 1;
    size_t inner_len = strlen(inner);
    size_t keep = strlen(context);
    if (inner_len + 2 + keep > room)
        keep = inner_len + 2 < room ? room - inner_len - 2 : 0;
    if (keep > 0) {
        memcpy(err->msg, context, keep);
        memcpy(err->msg + keep, ": ", 2);
        memcpy(err->msg + keep + 2, inner, inner_len + 1);
    }
    make_one_line(err->msg);
    return err->code;
}

int err_nomem(struct err *err, size_t size_bytes)
{
    return err_set(err, ERR_NOMEM, "out of memory (%zu bytes wanted)", size_bytes);
}

void err_clear(struct err *err)
{
    err->code = 0;
    err->sys = 0;
    err->msg[0] = '\0';
}

const char *err_code_name(int code)
{
    if (code >= 0)
        return "OK";
    switch ((enum err_code)code) {
    case ERR_NOTFOUND:
        return "NOTFOUND";
    case ERR_CORRUPT:
        return "CORRUPT";
    case ERR_FORMAT:
        return "FORMAT";
    case ERR_LIMIT:
        return "LIMIT";
    case ERR_TIMEOUT:
        return "TIMEOUT";
    case ERR_CANCELLED:
        return "CANCELLED";
    case ERR_THROTTLED:
        return "THROTTLED";
    case ERR_BUSY:
        return "BUSY";
    case ERR_UPSTREAM:
        return "UPSTREAM";
    case ERR_DENIED:
        return "DENIED";
    case ERR_UNSUPPORTED:
        return "UNSUPPORTED";
    case ERR_NOSPC:
        return "NOSPC";
    case ERR_NOMEM:
        return "NOMEM";
    case ERR_IO:
        return "IO";
    case ERR_USAGE:
        return "USAGE";
    case ERR_BUG:
        return "BUG";
    }
    return "UNKNOWN";
}

void err_trace(const struct err *err, const char *file, int line, const char *func)
{
    if (log_enabled(LOG_DEBUG))
        log_event(LOG_DEBUG, "err.trace", "code=%s at=%s:%d func=%s msg=%s", err_code_name(err->code), file, line, func,
                  log_quote(err->msg).s);
}
