/* SPDX-License-Identifier: Apache-2.0
 * base/log.h - one logfmt line per event on stderr: ts=... lvl=... ev=... k=v ...
 *
 * Use: log_event(LOG_INFO, "fill.done", "digest=%s bytes=%" PRIu64, ...). ev is a dotted name; the format gives k=v
 *      pairs. Values that may hold spaces or come from outside go through log_quote().
 * Threads: any. Never fails, never allocates, never blocks on the network. One write(2) per line.
 * A line is at most LOG_LINE_BYTES; what does not fit is cut and marked "...".
 */
#pragma once

#include "base/compiler.h"

#include <stdbool.h>
#include <stddef.h>

enum log_level { LOG_ERR = 0, LOG_WARN, LOG_INFO, LOG_DEBUG };

#define LOG_LINE_BYTES 2048
#define LOG_QUOTED_BYTES 640

void log_set_level(enum log_level level);
bool log_enabled(enum log_level level);
MUST_CHECK bool log_level_parse(const char *text, enum log_level *out); /* "err" "warn" "info" "debug" */
void log_event(enum log_level level, const char *ev, const char *fmt, ...) PRINTF_LIKE(3, 4);

struct log_quoted {
    char s[LOG_QUOTED_BYTES];
};

/* A value as logfmt wants it: bare when it is plain, else in double quotes with control bytes, quotes and
 * backslashes escaped; by value, for an argument list. NULL gives "". */
struct log_quoted log_quote(const char *value);
