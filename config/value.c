/* SPDX-License-Identifier: Apache-2.0
 * config/value.c - numbers, sizes, durations and words. Addresses, URLs and names: address.c. */
#include "config/value.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <strings.h>

#define TEXT_MAX 4095

struct config_shown config_show(const char *text)
{
    struct config_shown out;
    size_t n = 0;

    out.s[n++] = '"';
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        /* Room for one escape, the mark of the cut and the closing quote. */
        if (n + 4 + 3 + 2 > sizeof out.s) {
            while (n > 1 && ((unsigned char)out.s[n - 1] & 0xc0) == 0x80) /* never half a UTF-8 character */
                n--;
            if ((unsigned char)out.s[n - 1] >= 0xc0)
                n--;
            memcpy(out.s + n, "...", 3);
            n += 3;
            break;
        }
        if (*p < 0x20 || *p == 0x7f)
            n += (size_t)snprintf(out.s + n, sizeof out.s - n, "\\x%02x", *p);
        else
            out.s[n++] = (char)*p;
    }
    out.s[n++] = '"';
    out.s[n] = '\0';
    return out;
}

/* Reads digits at *p; false when there are none or they overflow. */
static bool take_digits(const char **p, uint64_t *out)
{
    uint64_t n = 0;

    if (!isdigit((unsigned char)**p))
        return false;
    for (; isdigit((unsigned char)**p); (*p)++) {
        if (__builtin_mul_overflow(n, (uint64_t)10, &n) || __builtin_add_overflow(n, (uint64_t)(**p - '0'), &n))
            return false;
    }
    *out = n;
    return true;
}

static const struct {
    const char *name;
    uint64_t bytes;
} size_units[] = {
    {"", 1},
    {"B", 1},
    {"KB", 1000},
    {"KiB", 1ull << 10},
    {"MB", 1000 * 1000},
    {"MiB", 1ull << 20},
    {"GB", 1000ull * 1000 * 1000},
    {"GiB", 1ull << 30},
    {"TB", 1000ull * 1000 * 1000 * 1000},
    {"TiB", 1ull << 40},
    {"PB", 1000ull * 1000 * 1000 * 1000 * 1000},
    {"PiB", 1ull << 50},
};

static uint64_t size_unit(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(size_units); i++) {
        if (strcasecmp(name, size_units[i].name) == 0)
            return size_units[i].bytes;
    }
    return 0;
}

/* The digits behind the point, as bytes; the point is at *p. */
static bool take_fraction(const char **p, uint64_t *out_value, uint64_t *out_scale)
{
    uint64_t value = 0, scale = 1;

    *out_value = 0;
    *out_scale = 1;
    if (**p != '.')
        return true;
    (*p)++;
    if (!isdigit((unsigned char)**p))
        return false;
    for (; isdigit((unsigned char)**p); (*p)++) {
        if (scale == 1000) /* value * PiB still fits in 64 bits */
            return false;
        value = value * 10 + (uint64_t)(**p - '0');
        scale *= 10;
    }
    *out_value = value;
    *out_scale = scale;
    return true;
}

int config_size_parse(const char *text, uint64_t *out_bytes, struct err *err)
{
    const char *p = text;
    uint64_t whole, part, scale, unit, bytes;

    if (!take_digits(&p, &whole) || !take_fraction(&p, &part, &scale))
        return err_set(err, ERR_USAGE, "wants a size such as 500MB or 10GiB, not %s", config_show(text).s);
    while (*p == ' ')
        p++;
    if (strlen(p) == 1 && strchr("kmgtpKMGTP", *p) != NULL)
        return err_set(err, ERR_USAGE, "%s could be %cB (powers of 1000) or %ciB (powers of 1024): say which",
                       config_show(text).s, toupper((unsigned char)*p), toupper((unsigned char)*p));
    unit = size_unit(p);
    if (unit == 0)
        return err_set(err, ERR_USAGE, "wants a size such as 500MB or 10GiB, not %s", config_show(text).s);
    if (__builtin_mul_overflow(whole, unit, &bytes) || __builtin_add_overflow(bytes, part * unit / scale, &bytes) ||
        bytes > INT64_MAX)
        return err_set(err, ERR_USAGE, "%s is more than recask can count", config_show(text).s);
    *out_bytes = bytes;
    return 0;
}

static const struct {
    const char *name;
    uint64_t ms;
} time_units[] = {{"ms", 1}, {"s", 1000}, {"m", 60 * 1000}, {"h", 3600 * 1000}, {"d", 24 * 3600 * 1000}};

int config_duration_parse(const char *text, int64_t *out_ms, struct err *err)
{
    const char *p = text;
    uint64_t count, ms;

    if (!take_digits(&p, &count))
        return err_set(err, ERR_USAGE, "wants a duration such as 60s or 5m, not %s", config_show(text).s);
    if (*p == '\0')
        return err_set(err, ERR_USAGE, "%s has no unit: say %ss for seconds, or use ms, m, h, d", config_show(text).s,
                       text);
    for (size_t i = 0; i < ARRAY_LEN(time_units); i++) {
        if (strcmp(p, time_units[i].name) != 0)
            continue;
        if (__builtin_mul_overflow(count, time_units[i].ms, &ms) || ms > INT64_MAX / 1000000)
            return err_set(err, ERR_USAGE, "%s is too long", config_show(text).s);
        *out_ms = (int64_t)ms;
        return 0;
    }
    return err_set(err, ERR_USAGE, "wants a duration such as 60s or 5m, not %s", config_show(text).s);
}

int config_percent_parse(const char *text, unsigned *out, struct err *err)
{
    const char *p = text;
    uint64_t n;

    if (!take_digits(&p, &n) || strcmp(p, "%") != 0 || n < 1 || n > 100)
        return err_set(err, ERR_USAGE, "wants 1%% to 100%%, not %s", config_show(text).s);
    *out = (unsigned)n;
    return 0;
}

int config_int_parse(const char *text, int64_t min, int64_t max, int64_t *out, struct err *err)
{
    const char *digits = text + (*text == '-');
    char *end;
    long long n;

    errno = 0;
    n = strtoll(text, &end, 10);
    if (!isdigit((unsigned char)*digits) || *end != '\0' || errno != 0 || n < min || n > max)
        return err_set(err, ERR_USAGE, "wants a number from %" PRId64 " to %" PRId64 ", not %s", min, max,
                       config_show(text).s);
    *out = n;
    return 0;
}

int config_bool_parse(const char *text, bool *out, struct err *err)
{
    static const char *const yes[] = {"true", "yes", "on", "1"};
    static const char *const no[] = {"false", "no", "off", "0"};

    for (size_t i = 0; i < ARRAY_LEN(yes); i++) {
        if (strcasecmp(text, yes[i]) == 0 || strcasecmp(text, no[i]) == 0) {
            *out = strcasecmp(text, yes[i]) == 0;
            return 0;
        }
    }
    return err_set(err, ERR_USAGE, "wants true or false, not %s", config_show(text).s);
}

int config_choice_parse(const char *text, const char *words, int *out, struct err *err)
{
    size_t len = strlen(text);
    int place = 0;

    for (const char *p = words;; place++) {
        size_t n = strcspn(p, "|");

        if (n == len && memcmp(p, text, n) == 0) {
            *out = place;
            return 0;
        }
        if (p[n] == '\0')
            break;
        p += n + 1;
    }
    return err_set(err, ERR_USAGE, "wants one of %s, not %s", words, config_show(text).s);
}

int config_text_check(const char *text, struct err *err)
{
    size_t len = strlen(text);

    if (len == 0)
        return err_set(err, ERR_USAGE, "is empty");
    if (len > TEXT_MAX)
        return err_set(err, ERR_USAGE, "is longer than %d bytes", TEXT_MAX);
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return err_set(err, ERR_USAGE, "%s holds a control character", config_show(text).s);
    }
    return 0;
}
