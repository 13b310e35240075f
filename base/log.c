/* SPDX-License-Identifier: Apache-2.0
 * base/log.c - one event, one line, one write.
 *
 * Repeats: at err and warn level an event name may show BURST lines per WINDOW_MS; the rest is counted, and the next
 * line of that name says how many were left out. A flapping upstream must not fill a disk with its complaints.
 */
#include "base/log.h"

#include "base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#define WINDOW_MS 10000
#define BURST 20
#define SLOTS 64
#define EV_BYTES 48

struct repeat {
    char ev[EV_BYTES];
    int64_t window_start_ms;
    unsigned shown;
    unsigned suppressed;
};

static atomic_int max_level = LOG_INFO;

/* Not a struct lock: events are logged under locks of every rank. Nothing is called with it held. */
static pthread_mutex_t repeats_lock = PTHREAD_MUTEX_INITIALIZER;
static struct repeat repeats[SLOTS];

static const char *const level_names[] = {
    [LOG_ERR] = "err",
    [LOG_WARN] = "warn",
    [LOG_INFO] = "info",
    [LOG_DEBUG] = "debug",
};

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&max_level, (int)level, memory_order_relaxed);
}

bool log_enabled(enum log_level level)
{
    return (int)level <= atomic_load_explicit(&max_level, memory_order_relaxed);
}

bool log_level_parse(const char *text, enum log_level *out)
{
    for (size_t i = 0; i < ARRAY_LEN(level_names); i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *out = (enum log_level)i;
            return true;
        }
    }
    return false;
}

static struct repeat *repeat_find(const char *ev)
{
    uint32_t hash = 2166136261u; /* FNV-1a */

    for (const char *c = ev; *c != '\0'; c++)
        hash = (hash ^ (uint8_t)*c) * 16777619u;
    return &repeats[hash % SLOTS];
}

/* Whether a line of this event may be shown now, and how many went unseen before it. Two names that share a slot
 * start each other's window anew: that shows too much rather than too little. */
static bool repeat_allows(const char *ev, unsigned *out_suppressed)
{
    int64_t now_ms = clock_mono_ms();
    bool allowed = true;

    *out_suppressed = 0;
    pthread_mutex_lock(&repeats_lock);
    struct repeat *r = repeat_find(ev);
    if (strncmp(r->ev, ev, EV_BYTES - 1) != 0) {
        *r = (struct repeat){.window_start_ms = now_ms};
        snprintf(r->ev, sizeof r->ev, "%s", ev);
    } else if (now_ms - r->window_start_ms >= WINDOW_MS) {
        r->window_start_ms = now_ms;
        r->shown = 0;
    }
    if (r->shown < BURST) {
        r->shown++;
        *out_suppressed = r->suppressed;
        r->suppressed = 0;
    } else {
        r->suppressed++;
        allowed = false;
    }
    pthread_mutex_unlock(&repeats_lock);
    return allowed;
}

static size_t put_timestamp(char *out, size_t cap)
{
    int64_t now_ms = clock_wall_ms();
    time_t seconds = (time_t)(now_ms / 1000);
    struct tm tm;
    size_t n;

    gmtime_r(&seconds, &tm);
    n = strftime(out, cap, "ts=%Y-%m-%dT%H:%M:%S", &tm);
    return n + (size_t)snprintf(out + n, cap - n, ".%03dZ", (int)(now_ms % 1000));
}

void log_event(enum log_level level, const char *ev, const char *fmt, ...)
{
    char line[LOG_LINE_BYTES];
    const size_t room = sizeof line - 1; /* the newline's place */
    unsigned suppressed = 0;
    int saved_errno = errno;
    size_t len;
    va_list ap;
    int n;

    if (!log_enabled(level))
        return;
    if (level <= LOG_WARN && !repeat_allows(ev, &suppressed))
        return;

    len = put_timestamp(line, room);
    len += (size_t)snprintf(line + len, room - len, " lvl=%s ev=%.*s", level_names[level], EV_BYTES - 1, ev);
    if (suppressed > 0)
        len += (size_t)snprintf(line + len, room - len, " suppressed=%u", suppressed);
    line[len++] = ' ';
    va_start(ap, fmt);
    n = vsnprintf(line + len, room - len, fmt, ap);
    va_end(ap);
    if (n <= 0) {
        len--; /* no pairs, no space */
    } else if ((size_t)n >= room - len) {
        memcpy(line + room - 4, "...", 3);
        len = room - 1;
    } else {
        len += (size_t)n;
    }
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = ' ';
    line[len++] = '\n';
    if (write(STDERR_FILENO, line, len) < 0) {
        /* Logging cannot fail: there is nowhere to say so. */
    }
    errno = saved_errno;
}

static bool is_plain(const char *value)
{
    if (*value == '\0')
        return false;
    for (; *value != '\0'; value++) {
        unsigned char c = (unsigned char)*value;

        if (c <= 0x20 || c >= 0x7f || c == '"' || c == '=' || c == '\\')
            return false;
    }
    return true;
}

struct log_quoted log_quote(const char *value)
{
    struct log_quoted q;
    const size_t end = sizeof q.s - 8; /* the longest escape, the dots, the quote and the NUL fit behind */
    size_t len = 0;

    if (value == NULL)
        value = "";
    if (is_plain(value) && strlen(value) < end) {
        snprintf(q.s, sizeof q.s, "%s", value);
        return q;
    }
    q.s[len++] = '"';
    for (; *value != '\0' && len < end - 1; value++) {
        unsigned char c = (unsigned char)*value;

        if (c == '"' || c == '\\') {
            q.s[len++] = '\\';
            q.s[len++] = (char)c;
        } else if (c == '\n') {
            q.s[len++] = '\\';
            q.s[len++] = 'n';
        } else if (c < 0x20 || c >= 0x7f) {
            len += (size_t)snprintf(q.s + len, sizeof q.s - len, "\\x%02x", c);
        } else {
            q.s[len++] = (char)c;
        }
    }
    if (*value != '\0') {
        memcpy(q.s + len, "...", 3);
        len += 3;
    }
    q.s[len++] = '"';
    q.s[len] = '\0';
    return q;
}
