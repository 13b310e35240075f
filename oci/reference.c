/* SPDX-License-Identifier: Apache-2.0
 * oci/reference.c - repository names, tags and references, by the grammar of distribution-spec, "Pulling manifests".
 * Written as one pass each instead of regular expressions: the names come from the network, the cost is linear.
 */
#include "oci/oci.h"

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

static bool is_word_char(char c)
{
    return is_name_char(c) || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_lower_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

/* How much of s is one separator: "/", ".", "_", "__" or any number of "-". 0: none stands here. */
static size_t separator_len(const char *s, size_t len)
{
    size_t n = 0;

    if (s[0] == '/' || s[0] == '.')
        return 1;
    if (s[0] == '_')
        return len > 1 && s[1] == '_' ? 2 : 1;
    while (n < len && s[n] == '-')
        n++;
    return n;
}

bool oci_name_valid(const char *name, size_t len)
{
    size_t i = 0;

    if (len == 0 || len > OCI_NAME_MAX_BYTES)
        return false;
    for (;;) {
        size_t start = i;
        size_t sep;

        while (i < len && is_name_char(name[i]))
            i++;
        if (i == start)
            return false;
        if (i == len)
            return true;
        sep = separator_len(name + i, len - i);
        if (sep == 0)
            return false;
        i += sep;
    }
}

bool oci_tag_valid(const char *tag, size_t len)
{
    if (len == 0 || len > OCI_TAG_MAX_BYTES || !is_word_char(tag[0]))
        return false;
    for (size_t i = 1; i < len; i++) {
        if (!is_word_char(tag[i]) && tag[i] != '.' && tag[i] != '-')
            return false;
    }
    return true;
}

bool oci_tag_is_digest_tag(const char *tag)
{
    static const char prefix[] = "sha256-";
    size_t i = 0;

    if (strncmp(tag, prefix, sizeof(prefix) - 1) != 0)
        return false;
    tag += sizeof(prefix) - 1;
    while (i < 2 * DIGEST_BYTES && is_lower_hex(tag[i]))
        i++;
    /* "sha256-<64 hex>abc" is a name that happens to be long, "...-x" and "....sig" are derived from the digest. */
    return i == 2 * DIGEST_BYTES && (!is_word_char(tag[i]) || tag[i] == '_');
}

int oci_reference_parse(const char *text, struct oci_reference *out, struct err *err)
{
    size_t len = strlen(text);

    memset(out, 0, sizeof(*out));
    /* A tag holds no colon, a digest always does. */
    if (strchr(text, ':') != NULL) {
        TRY(digest_parse(text, len, &out->digest, err));
        out->is_digest = true;
        return 0;
    }
    if (!oci_tag_valid(text, len))
        return err_set(err, ERR_FORMAT, "not a tag or a digest");
    memcpy(out->tag, text, len + 1);
    return 0;
}
