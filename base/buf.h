/* SPDX-License-Identifier: Apache-2.0
 * base/buf.h - a growable byte buffer with a limit, also used to build text.
 *
 * Use: struct buf b; buf_init(&b, limit) -> buf_add..., buf_printf... -> b.data, b.len -> buf_release(&b).
 * data is NUL-terminated after every call (the NUL is not counted in len). Growing past limit_bytes is ERR_LIMIT.
 * Threads: one at a time.
 */
#pragma once

#include "base/err.h"

struct buf {
    char *data; /* never NULL after the first successful add; NULL before */
    size_t len;
    size_t cap;
    size_t limit_bytes;
};

/* clang-format off */
#define BUF_INIT(limit) {.limit_bytes = (limit)}
/* clang-format on */

void buf_init(struct buf *b, size_t limit_bytes);
void buf_release(struct buf *b);
void buf_reset(struct buf *b); /* len = 0, memory kept */
MUST_CHECK int buf_add(struct buf *b, const void *data, size_t len, struct err *err);
MUST_CHECK int buf_str(struct buf *b, const char *s, struct err *err);
MUST_CHECK int buf_printf(struct buf *b, struct err *err, const char *fmt, ...) PRINTF_LIKE(3, 4);
MUST_CHECK int buf_reserve(struct buf *b, size_t more_bytes, struct err *err); /* len stays, cap >= len + more + 1 */
char *buf_steal(struct buf *b); /* the caller frees; b is as after buf_init() */

/* strdup that reports ERR_NOMEM; s NULL gives NULL. *out is freed by the caller. */
MUST_CHECK int str_dup(const char *s, char **out, struct err *err);
MUST_CHECK int str_printf(char **out, struct err *err, const char *fmt, ...) PRINTF_LIKE(3, 4);
