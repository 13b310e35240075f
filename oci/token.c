/* SPDX-License-Identifier: Apache-2.0
 * oci/token.c - replies of token services.
 *
 * Token services are sloppy about everything but the token, so the rest falls back instead of failing: a lifetime that is
 * missing or makes no sense is the specification's 60 s, a date that makes no sense is now. Both are safe guesses; a token
 * that dies early costs one more round trip.
 */
#include "oci/token.h"

#include "oci/json_internal.h"

#include <string.h>
#include <time.h>

/* Digits alone, `count` of them. -1: something else. */
static int number(const char *text, size_t count)
{
    int n = 0;

    for (size_t i = 0; i < count; i++) {
        if (text[i] < '0' || text[i] > '9')
            return -1;
        n = n * 10 + (text[i] - '0');
    }
    return n;
}

/* "Z", "+05:30". False: something else, or something behind it. */
static bool parse_zone(const char *text, int64_t *out_s)
{
    *out_s = 0;
    if (strcmp(text, "Z") == 0 || strcmp(text, "z") == 0)
        return true;
    if ((text[0] != '+' && text[0] != '-') || strlen(text) != strlen("+00:00") || text[3] != ':')
        return false;

    int hours = number(text + 1, 2), minutes = number(text + 4, 2);
    if (hours < 0 || hours > 23 || minutes < 0 || minutes > 59)
        return false;
    *out_s = (hours * 3600 + minutes * 60) * (text[0] == '-' ? -1 : 1);
    return true;
}

/* RFC 3339, "2026-01-02T03:04:05.678Z"; fractions are dropped. */
static bool parse_date(const char *text, int64_t *out_s)
{
    static const char shape[] = "dddd-dd-ddTdd:dd:dd";
    int64_t zone_s;

    for (size_t i = 0; shape[i] != '\0'; i++) { /* a NUL in text matches nothing in shape */
        bool digit = text[i] >= '0' && text[i] <= '9';
        if (shape[i] == 'd' ? !digit : text[i] != shape[i])
            return false;
    }
    struct tm tm = {.tm_year = number(text, 4) - 1900,
                    .tm_mon = number(text + 5, 2) - 1,
                    .tm_mday = number(text + 8, 2),
                    .tm_hour = number(text + 11, 2),
                    .tm_min = number(text + 14, 2),
                    .tm_sec = number(text + 17, 2)};
    const char *rest = text + strlen(shape);
    if (*rest == '.')
        rest += 1 + strspn(rest + 1, "0123456789");
    if (tm.tm_mon < 0 || tm.tm_mon > 11 || tm.tm_mday < 1 || tm.tm_mday > 31 || tm.tm_hour > 23 || tm.tm_min > 59 ||
        tm.tm_sec > 60 || !parse_zone(rest, &zone_s))
        return false;
    *out_s = (int64_t)timegm(&tm) - zone_s;
    return true;
}

static int64_t lifetime(const json_t *root, int64_t now_s)
{
    const json_t *expires_in = json_object_get(root, "expires_in");
    const json_t *issued_at = json_object_get(root, "issued_at");
    int64_t all_s = OCI_TOKEN_LIFETIME_S;
    int64_t issued_s;

    if (json_is_number(expires_in) && json_number_value(expires_in) >= 1)
        all_s = json_number_value(expires_in) < OCI_TOKEN_LIFETIME_MAX_S ? (int64_t)json_number_value(expires_in)
                                                                         : OCI_TOKEN_LIFETIME_MAX_S;
    /* Older than half its life is more often a clock that is wrong than a token that a service kept so long. */
    if (json_is_string(issued_at) && parse_date(json_string_value(issued_at), &issued_s) && issued_s <= now_s &&
        now_s - issued_s <= all_s / 2)
        all_s -= now_s - issued_s;
    return all_s;
}

/* NULL when there is none. Go's servers write "" for a field they do not set. */
static const json_t *text_at(const json_t *root, const char *key)
{
    const json_t *v = json_object_get(root, key);

    return v == NULL || json_is_null(v) || (json_is_string(v) && json_string_length(v) == 0) ? NULL : v;
}

static int take_token(const json_t *v, struct secret *out, struct err *err)
{
    const char *text = json_string_value(v);
    size_t len = json_string_length(v);

    if (v == NULL)
        return err_set(err, ERR_FORMAT, "a reply without a token");
    if (text == NULL)
        return err_set(err, ERR_FORMAT, "a token that is not a string");
    if (len > OCI_TOKEN_MAX_BYTES)
        return err_set(err, ERR_LIMIT, "a token of %zu bytes", len);
    for (size_t i = 0; i < len; i++)
        if (text[i] <= 0x20 || text[i] >= 0x7f)
            return err_set(err, ERR_FORMAT, "a token that is no header value");
    return secret_set(out, text, len, err);
}

int oci_token_parse(const char *body, size_t len, int64_t now_s, struct oci_token *out, struct err *err)
{
    CLEANUP(oci_json_free) json_t *root = NULL;
    struct oci_json_traits traits;
    const json_t *v;

    *out = (struct oci_token){.token = SECRET_INIT};
    TRY(oci_json_load(body, len, OCI_TOKEN_REPLY_MAX_BYTES, &root, &traits, err));
    if (traits.duplicate_keys)
        return err_set(err, ERR_FORMAT, "a reply with duplicate JSON keys");
    v = text_at(root, "token");
    TRY(take_token(v != NULL ? v : text_at(root, "access_token"), &out->token, err));
    out->lifetime_s = lifetime(root, now_s);
    return 0;
}

void oci_token_release(struct oci_token *t)
{
    secret_release(&t->token);
}
