/* SPDX-License-Identifier: Apache-2.0
 * proxy/negotiate.c - Accept, Accept-Encoding, Range and entity tags. A header that does not parse counts as less, never
 * as more: a member with a broken weight is as if it were not listed, a broken Range as if it were absent, a broken list of
 * tags as if nothing were in it.
 */
#include "proxy/negotiate.h"

#include <string.h>
#include <strings.h>

/* ---- lists of weighted members (RFC 9110, 5.6.1 and 12.4.2) ---------------------------------------------------- */

struct member {
    const char *name; /* not NUL-terminated */
    size_t len;
    unsigned q; /* thousandths; 0 also for a weight that does not parse */
};

static bool is_space(char c)
{
    return c == ' ' || c == '\t';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static void trim(const char **s, size_t *len)
{
    while (*len > 0 && is_space((*s)[0])) {
        (*s)++;
        (*len)--;
    }
    while (*len > 0 && is_space((*s)[*len - 1]))
        (*len)--;
}

static bool equals(const char *s, size_t len, const char *want)
{
    return strlen(want) == len && strncasecmp(s, want, len) == 0;
}

/* The length of s up to the first `stop` outside a quoted string. */
static size_t span_until(const char *s, size_t len, char stop)
{
    bool quoted = false;

    for (size_t i = 0; i < len; i++) {
        if (quoted && s[i] == '\\')
            i++;
        else if (s[i] == '"')
            quoted = !quoted;
        else if (s[i] == stop && !quoted)
            return i;
    }
    return len;
}

/* qvalue = ( "0" [ "." 0*3DIGIT ] ) / ( "1" [ "." 0*3("0") ] ), in thousandths; anything else is 0. */
static unsigned read_weight(const char *s, size_t len)
{
    unsigned q;
    unsigned unit = 100;

    if (len == 0 || len > 5 || (s[0] != '0' && s[0] != '1') || (len > 1 && s[1] != '.'))
        return 0;
    q = s[0] == '1' ? 1000 : 0;
    for (size_t i = 2; i < len; i++) {
        if (!is_digit(s[i]))
            return 0;
        q += (unsigned)(s[i] - '0') * unit;
        unit /= 10;
    }
    return q <= 1000 ? q : 0;
}

/* Blanks around "=" are not in the grammar, but "q = 0" means what it says. Of two weights the lower one counts. */
static void read_param(const char *s, size_t key_len, size_t len, struct member *out)
{
    bool has_value = key_len < len;
    const char *value = s + key_len + (has_value ? 1 : 0);
    size_t value_len = len - key_len - (has_value ? 1 : 0);
    unsigned q;

    trim(&s, &key_len);
    if (!equals(s, key_len, "q"))
        return;
    trim(&value, &value_len);
    q = read_weight(value, value_len);
    if (q < out->q)
        out->q = q;
}

static void read_member(const char *s, size_t len, struct member *out)
{
    size_t at = span_until(s, len, ';');

    out->name = s;
    out->len = at;
    out->q = 1000;
    trim(&out->name, &out->len);
    while (at < len) {
        const char *param = s + at + 1;
        size_t param_len = span_until(param, len - at - 1, ';');
        const char *value = param;
        size_t key_len;

        at += 1 + param_len;
        trim(&value, &param_len);
        key_len = span_until(value, param_len, '=');
        read_param(value, key_len, param_len, out);
    }
}

/* Steps *header over one member. False at the end; empty members are skipped. */
static bool next_member(const char **header, struct member *out)
{
    while (**header != '\0') {
        const char *s = *header;
        size_t len = span_until(s, strlen(s), ',');

        *header = s[len] == ',' ? s + len + 1 : s + len;
        read_member(s, len, out);
        if (out->len > 0)
            return true;
    }
    return false;
}

/* ---- Accept-Encoding ---------------------------------------------------------------------------------------------- */

enum codec accept_encoding_choose(const char *accept_encoding)
{
    const char *rest = accept_encoding != NULL ? accept_encoding : "";
    bool listed[CODEC_ZSTD + 1] = {false};
    bool refused[CODEC_ZSTD + 1] = {false};
    struct member m;

    while (next_member(&rest, &m)) {
        enum codec c = CODEC_NONE;

        if (equals(m.name, m.len, codec_name(CODEC_ZSTD)))
            c = CODEC_ZSTD;
        else if (equals(m.name, m.len, codec_name(CODEC_GZIP)))
            c = CODEC_GZIP;
        listed[c] = true;
        /* Identity is always right, so a coding listed twice counts by its worst weight. */
        if (m.q == 0)
            refused[c] = true;
    }
    if (listed[CODEC_ZSTD] && !refused[CODEC_ZSTD])
        return CODEC_ZSTD;
    return listed[CODEC_GZIP] && !refused[CODEC_GZIP] ? CODEC_GZIP : CODEC_NONE;
}

/* ---- Accept ------------------------------------------------------------------------------------------------------- */

/* 3: the type itself, 2: type/<star>, 1: <star>/<star>, 0: something else. */
static unsigned how_specific(const struct member *m, const char *media_type)
{
    size_t major_len = strcspn(media_type, "/");

    if (equals(m->name, m->len, media_type))
        return 3;
    if (m->len == major_len + 2 && strncasecmp(m->name, media_type, major_len) == 0 &&
        memcmp(m->name + major_len, "/*", 2) == 0)
        return 2;
    return equals(m->name, m->len, "*/*") ? 1 : 0;
}

bool accept_allows(const char *accept, const char *media_type)
{
    const char *rest = accept != NULL ? accept : "";
    bool any_member = false;
    unsigned best = 0;
    unsigned q = 0;
    struct member m;

    while (next_member(&rest, &m)) {
        unsigned specific = how_specific(&m, media_type);

        any_member = true;
        if (specific > best || (specific == best && specific > 0 && m.q > q)) {
            best = specific;
            q = m.q;
        }
    }
    return !any_member || q > 0;
}

#define OCI_LAYER "application/vnd.oci.image.layer.v1.tar"
#define OCI_NONDISTRIBUTABLE "application/vnd.oci.image.layer.nondistributable.v1.tar"
#define DOCKER_LAYER "application/vnd.docker.image.rootfs.diff.tar"
#define DOCKER_FOREIGN "application/vnd.docker.image.rootfs.foreign.diff.tar"

static const struct {
    const char *name;
    enum codec codec;
} layer_forms[] = {
    {OCI_LAYER "+gzip", CODEC_GZIP},
    {OCI_LAYER "+zstd", CODEC_ZSTD},
    {OCI_NONDISTRIBUTABLE "+gzip", CODEC_GZIP},
    {OCI_NONDISTRIBUTABLE "+zstd", CODEC_ZSTD},
    {DOCKER_LAYER ".gzip", CODEC_GZIP},
    {DOCKER_FOREIGN ".gzip", CODEC_GZIP},
    /* With any of these the bytes of the digest itself are welcome, so nothing else is called for. */
    {OCI_LAYER, CODEC_NONE},
    {OCI_NONDISTRIBUTABLE, CODEC_NONE},
    {DOCKER_LAYER, CODEC_NONE},
    {DOCKER_FOREIGN, CODEC_NONE},
    {"application/octet-stream", CODEC_NONE},
    {"application/*", CODEC_NONE},
    {"*/*", CODEC_NONE},
};

enum codec accept_layer_form(const char *accept, const char **out_type)
{
    const char *rest = accept != NULL ? accept : "";
    enum codec codec = CODEC_NONE;
    const char *type = NULL;
    unsigned q = 0;
    struct member m;

    *out_type = NULL;
    while (next_member(&rest, &m)) {
        size_t i = 0;

        while (i < ARRAY_LEN(layer_forms) && !equals(m.name, m.len, layer_forms[i].name))
            i++;
        if (i == ARRAY_LEN(layer_forms) || m.q == 0)
            continue;
        if (layer_forms[i].codec == CODEC_NONE)
            return CODEC_NONE;
        /* Of equal wishes zstd is the cheaper one to fulfil: its frames lie on disk. */
        if (m.q > q || (m.q == q && layer_forms[i].codec == CODEC_ZSTD && codec == CODEC_GZIP)) {
            codec = layer_forms[i].codec;
            type = layer_forms[i].name;
            q = m.q;
        }
    }
    *out_type = type;
    return codec;
}

/* ---- Range (RFC 9110, 14.1.2) ------------------------------------------------------------------------------------- */

/* One range as it was written. Numbers beyond 64 bits saturate: no blob is that long. */
struct raw_range {
    bool has_first, has_last;
    uint64_t first, last; /* without first, last is the length of a suffix */
};

static bool read_u64(const char **p, uint64_t *out)
{
    uint64_t n = 0;

    if (!is_digit(**p))
        return false;
    for (; is_digit(**p); (*p)++) {
        unsigned digit = (unsigned)(**p - '0');

        n = n > (UINT64_MAX - digit) / 10 ? UINT64_MAX : n * 10 + digit;
    }
    *out = n;
    return true;
}

static void skip_space(const char **p)
{
    while (is_space(**p))
        (*p)++;
}

/* One range-spec, up to the comma behind it or the end. */
static bool read_spec(const char **p, struct raw_range *out)
{
    memset(out, 0, sizeof(*out));
    out->has_first = read_u64(p, &out->first);
    skip_space(p);
    if (*(*p)++ != '-')
        return false;
    skip_space(p);
    out->has_last = read_u64(p, &out->last);
    skip_space(p);
    if ((**p != '\0' && **p != ',') || (!out->has_first && !out->has_last))
        return false;
    return !out->has_first || !out->has_last || out->first <= out->last;
}

/* Steps over "bytes=". */
static bool read_unit(const char **p)
{
    static const char unit[] = "bytes";

    skip_space(p);
    if (strncasecmp(*p, unit, sizeof(unit) - 1) != 0)
        return false;
    *p += sizeof(unit) - 1;
    skip_space(p);
    return *(*p)++ == '=';
}

/* Commas and blanks; members of a list may be empty. */
static void skip_commas(const char **p)
{
    while (is_space(**p) || **p == ',')
        (*p)++;
}

/* Number of range-specs; 0 for everything that a server may ignore: another unit, nothing, anything that is malformed. */
static size_t count_specs(const char *header)
{
    const char *p = header;
    struct raw_range raw;
    size_t count = 0;

    if (!p || !read_unit(&p))
        return 0;
    for (skip_commas(&p); *p != '\0'; skip_commas(&p)) {
        if (!read_spec(&p, &raw))
            return 0;
        count++;
    }
    return count;
}

/* False when there is nothing of it in the blob. */
static bool clamp(const struct raw_range *raw, uint64_t size_bytes, struct range_span *out)
{
    if (size_bytes == 0 || (raw->has_first && raw->first >= size_bytes) || (!raw->has_first && raw->last == 0))
        return false;
    out->last = size_bytes - 1;
    if (!raw->has_first) {
        out->first = raw->last < size_bytes ? size_bytes - raw->last : 0;
        return true;
    }
    out->first = raw->first;
    if (raw->has_last && raw->last < out->last)
        out->last = raw->last;
    return true;
}

void range_release(struct range *r)
{
    free(r->spans);
    *r = (struct range){.kind = RANGE_NONE};
}

/* header has been counted: it is well-formed. */
static void read_spans(const char *header, uint64_t size_bytes, struct range *out)
{
    uint64_t sum = 0;

    (void)read_unit(&header);
    for (skip_commas(&header); *header != '\0'; skip_commas(&header)) {
        struct raw_range raw;
        struct range_span *span = &out->spans[out->count];

        (void)read_spec(&header, &raw);
        if (!clamp(&raw, size_bytes, span))
            continue;
        out->count++;
        uint64_t len = span->last - span->first + 1;
        sum = sum > UINT64_MAX - len ? UINT64_MAX : sum + len;
    }
    out->kind = out->count == 0 ? RANGE_UNSATISFIABLE : RANGE_SEVERAL;
    if (sum == UINT64_MAX || sum / 2 > size_bytes)
        range_release(out);
}

int range_parse(const char *header, uint64_t size_bytes, struct range *out, struct err *err)
{
    size_t count = count_specs(header);

    *out = (struct range){.kind = RANGE_NONE};
    if (count == 0 || count > RANGES_MAX)
        return 0;
    out->spans = calloc(count, sizeof(*out->spans));
    if (!out->spans)
        return err_nomem(err, count * sizeof(*out->spans));
    read_spans(header, size_bytes, out);
    if (count > 1 || out->kind != RANGE_SEVERAL)
        return 0;
    struct range_span only = out->spans[0];
    range_release(out);
    out->kind = RANGE_ONE;
    out->first = only.first;
    out->last = only.last;
    return 0;
}

/* ---- entity tags (RFC 9110, 8.8.3) --------------------------------------------------------------------------------- */

struct etag {
    bool weak;
    const char *opaque; /* between the quotes; not NUL-terminated */
    size_t len;
};

/* entity-tag = [ "W/" ] DQUOTE *etagc DQUOTE. There are no escapes in it, so a comma or a backslash is a plain byte. */
static bool read_etag(const char **p, struct etag *out)
{
    const char *s = *p;

    out->weak = strncmp(s, "W/", 2) == 0;
    s += out->weak ? 2 : 0;
    if (*s++ != '"')
        return false;
    out->opaque = s;
    while ((unsigned char)*s > ' ' && *s != '"' && *s != 0x7f)
        s++;
    out->len = (size_t)(s - out->opaque);
    if (*s != '"')
        return false;
    *p = s + 1;
    return true;
}

/* Whether list is a well-formed list of tags (or "*") that has etag in it. */
static bool list_matches(const char *list, const char *etag, bool strong)
{
    const char *p = list;
    struct etag ours, one;
    bool found = false;

    if (!list || !etag || !read_etag(&etag, &ours) || *etag != '\0')
        return false;
    skip_space(&p);
    if (*p == '*') {
        p++;
        skip_space(&p);
        return *p == '\0';
    }
    while (*p != '\0') {
        if (*p == ',' || is_space(*p)) { /* empty members are legal */
            p++;
            continue;
        }
        if (!read_etag(&p, &one))
            return false;
        skip_space(&p);
        if (*p != ',' && *p != '\0')
            return false;
        found = found || (one.len == ours.len && memcmp(one.opaque, ours.opaque, one.len) == 0 &&
                          !(strong && (one.weak || ours.weak)));
    }
    return found;
}

bool etag_matches(const char *if_none_match, const char *etag)
{
    return list_matches(if_none_match, etag, false);
}

bool etag_matches_strong(const char *if_match, const char *etag)
{
    return list_matches(if_match, etag, true);
}
