/* SPDX-License-Identifier: Apache-2.0
 * admin/ref.c - image names as people write them. */
#include "admin/admin_internal.h"
#include "base/percent.h"

bool admin_decode(const char *text, char *out, size_t cap)
{
    size_t n = 0;

    for (const char *p = text; *p; p++) {
        unsigned char c = (unsigned char)*p;

        if (c == '%') {
            int decoded = percent_byte(p);

            if (decoded < 0)
                return false;
            c = (unsigned char)decoded;
            p += 2;
        }
        if (c < 0x20 || c == 0x7f || n + 1 >= cap)
            return false;
        out[n++] = (char)c;
    }
    out[n] = '\0';
    return true;
}

/* The name without tag and digest into out->text, the two others into their fields. */
static int split_ref(const char *text, struct admin_ref *out, struct err *err)
{
    const char *at = strchr(text, '@'), *slash, *colon;
    size_t len = at != NULL ? (size_t)(at - text) : strlen(text);

    if (at != NULL || strncmp(text, "sha256:", 7) == 0) {
        const char *d = at != NULL ? at + 1 : text;

        if (digest_parse(d, strlen(d), &out->digest, err) < 0)
            return err_wrap(err, "image name");
        out->has_digest = true;
        len = at != NULL ? len : 0;
    }
    if (len >= sizeof out->text)
        return err_set(err, ERR_USAGE, "image name: longer than %zu bytes", sizeof out->text - 1);
    memcpy(out->text, text, len);
    out->text[len] = '\0';
    slash = strrchr(out->text, '/');
    colon = strrchr(out->text, ':');
    if (colon != NULL && (slash == NULL || colon > slash)) {
        if (!oci_tag_valid(colon + 1, strlen(colon + 1)))
            return err_set(err, ERR_USAGE, "image name: \"%.128s\" is not a tag", colon + 1);
        snprintf(out->tag, sizeof out->tag, "%s", colon + 1);
        out->text[colon - out->text] = '\0';
    } else {
        snprintf(out->tag, sizeof out->tag, "latest");
    }
    return 0;
}

int admin_ref_parse(const char *text, const struct upstreams *ups, struct admin_ref *out, struct err *err)
{
    const struct upstream *up;
    const char *name, *slash;

    memset(out, 0, sizeof *out);
    TRY(split_ref(text, out, err));
    if (out->text[0] == '\0' && out->has_digest)
        return 0;
    name = out->text;
    slash = strchr(name, '/');
    up = slash != NULL ? upstream_find(ups, name, (size_t)(slash - name)) : NULL;
    if (up != NULL)
        name = slash + 1;
    else
        up = upstream_default(ups);
    if (up == NULL)
        return err_set(err, ERR_USAGE, "image name: there is no upstream to look in");
    if (!oci_name_valid(name, strlen(name)))
        return err_set(err, ERR_USAGE, "image name: \"%.200s\" is not a repository's name", name);
    snprintf(out->upstream, sizeof out->upstream, "%s", upstream_name(up));
    snprintf(out->name, sizeof out->name, "%s%s",
             upstream_adds_library(up) && strchr(name, '/') == NULL ? "library/" : "", name);
    return 0;
}
