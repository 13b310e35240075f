/* SPDX-License-Identifier: Apache-2.0
 * base/err.h - the one error idiom: a negative code returned, the detail in the caller's struct err.
 *
 * Use: a fallible function returns 0 when done, > 0 for flow (base/stream.h), < 0 for an enum err_code,
 *      and then *err is filled. `struct err *err` is the last parameter and is never NULL.
 *      TRY(f(..., err)) returns from the caller when f failed; it is the only macro that may return.
 * Ownership: struct err is plain memory on the caller's stack; nothing is allocated, nothing is freed.
 * Threads: a struct err belongs to one thread at a time and may be copied between threads.
 * Rule: the first error wins. Add context with err_wrap(); never overwrite a reason.
 */
#pragma once

#include "base/compiler.h"

#include <stddef.h>

/* Each code names what a caller can do about it; proxy/errors.c maps them to HTTP. */
enum err_code {
    ERR_NOTFOUND = -1,     /* no such thing; asking again will not help */
    ERR_CORRUPT = -2,      /* bytes fail their digest or checksum */
    ERR_FORMAT = -3,       /* bytes do not parse as what they should be */
    ERR_LIMIT = -4,        /* a size, count or depth limit was met */
    ERR_TIMEOUT = -5,      /* nothing happened for too long */
    ERR_CANCELLED = -6,    /* stopped on purpose */
    ERR_BUSY = -7,         /* try again later */
    ERR_UPSTREAM = -8,     /* an upstream could not be reached or answered with an error */
    ERR_DENIED = -9,       /* not allowed (401 and 403 of an upstream included) */
    ERR_UNSUPPORTED = -10, /* understood, but not something recask does */
    ERR_NOSPC = -11,       /* the disk or the quota is full */
    ERR_NOMEM = -12,       /* an allocation failed, or there is no file descriptor left */
    ERR_IO = -13,          /* the operating system failed a read, write or open */
    ERR_USAGE = -14,       /* the command line or the configuration is wrong */
    ERR_BUG = -15,         /* a promise inside recask was broken */
    ERR_THROTTLED = -16,   /* an upstream said "too many requests" (429) */
};

#define ERR_MSG_BYTES 512

struct err {
    int code;                /* enum err_code, or 0 */
    int sys;                 /* errno of the failing call, or 0 */
    char msg[ERR_MSG_BYTES]; /* one line, no newline, never a secret */
};

/* clang-format off */
#define ERR_INIT {.code = 0}
/* clang-format on */

/* Fills err and returns code. A second call on a filled err keeps the first reason (err_clear() starts anew). */
int err_set(struct err *err, enum err_code code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Like err_set() for a failed system call: appends ": strerror(sys)" and picks the code from errno
 * (ENOSPC, EDQUOT -> NOSPC; ENOMEM, EMFILE, ENFILE -> NOMEM; ENOENT -> NOTFOUND; else IO). */
int err_sys(struct err *err, int sys, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Puts "context: " in front of the message and returns the code that err holds already. */
int err_wrap(struct err *err, const char *fmt, ...) PRINTF_LIKE(2, 3);

int err_nomem(struct err *err, size_t size_bytes);
void err_clear(struct err *err);
const char *err_code_name(int code); /* "NOTFOUND" ... for logs */

/* In debug builds every return through TRY logs its place, so a failure prints its path upward. */
void err_trace(const struct err *err, const char *file, int line, const char *func);

#ifdef NDEBUG
#define ERR_TRACE_(err) ((void)0)
#else
#define ERR_TRACE_(err) err_trace((err), __FILE__, __LINE__, __func__)
#endif

/* Returns from the caller when the expression is negative. The variable `err` must be in scope. */
#define TRY(expr)                                                                                                      \
    do {                                                                                                               \
        int try_rc_ = (expr);                                                                                          \
        if (try_rc_ < 0) {                                                                                             \
            ERR_TRACE_(err);                                                                                           \
            return try_rc_;                                                                                            \
        }                                                                                                              \
    } while (0)
