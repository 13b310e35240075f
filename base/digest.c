/* SPDX-License-Identifier: Apache-2.0
 * base/digest.c - sha256 by OpenSSL's block functions.
 *
 * RULE ZERO: SHA256_Init and its two friends are marked deprecated in favour of EVP. They are used because their
 * context is plain memory: a running hash is copied by assignment, so that hasher_peek() and digest_of() can neither
 * fail nor allocate, which EVP_MD_CTX_copy_ex() and EVP_Q_digest() do. Both end in the same assembly (SHA-NI).
 */
#define OPENSSL_SUPPRESS_DEPRECATED

#include "base/digest.h"

#include <openssl/sha.h>

struct hasher {
    SHA256_CTX ctx;
};

static const char prefix[] = "sha256:";
#define PREFIX_LEN (sizeof prefix - 1)

static void to_hex(const struct digest *d, char *out)
{
    static const char hex[] = "0123456789abcdef";

    for (size_t i = 0; i < DIGEST_BYTES; i++) {
        out[2 * i] = hex[d->b[i] >> 4];
        out[2 * i + 1] = hex[d->b[i] & 15];
    }
    out[2 * DIGEST_BYTES] = '\0';
}

struct digest_text digest_text(const struct digest *d)
{
    struct digest_text text;

    memcpy(text.s, prefix, PREFIX_LEN);
    to_hex(d, text.s + PREFIX_LEN);
    return text;
}

struct digest_text digest_hex(const struct digest *d)
{
    struct digest_text text;

    to_hex(d, text.s);
    return text;
}

/* Lower case only: "sha256:AB..." names nothing (OCI image-spec, descriptor.md, "Registered algorithms"). */
static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

/* descriptor.md: algorithm ::= component (separator component)*; component ::= [a-z0-9]+; separator ::= [+._-] */
static bool is_algorithm(const char *text, size_t len)
{
    bool after_component = false;

    for (size_t i = 0; i < len; i++) {
        char c = text[i];

        if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))
            after_component = true;
        else if (after_component && (c == '+' || c == '.' || c == '_' || c == '-'))
            after_component = false;
        else
            return false;
    }
    return after_component;
}

int digest_parse(const char *text, size_t len, struct digest *out, struct err *err)
{
    const char *colon = len > 0 ? memchr(text, ':', len) : NULL;
    struct digest parsed;

    if (colon == NULL || !is_algorithm(text, (size_t)(colon - text)) || colon + 1 == text + len)
        return err_set(err, ERR_FORMAT, "not a digest");
    if ((size_t)(colon - text) != PREFIX_LEN - 1 || memcmp(text, prefix, PREFIX_LEN) != 0)
        return err_set(err, ERR_UNSUPPORTED, "digest algorithm %.*s (only sha256 is supported)",
                       (int)(colon - text < 32 ? colon - text : 32), text);
    if (len != PREFIX_LEN + (size_t)2 * DIGEST_BYTES)
        return err_set(err, ERR_FORMAT, "a sha256 digest has 64 hex digits");
    for (size_t i = 0; i < DIGEST_BYTES; i++) {
        int high = hex_value(text[PREFIX_LEN + 2 * i]);
        int low = hex_value(text[PREFIX_LEN + 2 * i + 1]);

        if (high < 0 || low < 0)
            return err_set(err, ERR_FORMAT, "a sha256 digest has lower-case hex digits only");
        parsed.b[i] = (uint8_t)(high << 4 | low);
    }
    *out = parsed;
    return 0;
}

bool digest_equal(const struct digest *a, const struct digest *b)
{
    return memcmp(a->b, b->b, DIGEST_BYTES) == 0;
}

int digest_cmp(const struct digest *a, const struct digest *b)
{
    return memcmp(a->b, b->b, DIGEST_BYTES);
}

bool digest_is_zero(const struct digest *d)
{
    static const struct digest zero;

    return digest_equal(d, &zero);
}

uint64_t digest_hash64(const struct digest *d)
{
    uint64_t h;

    /* The bytes are uniform already; whoever can choose them has found sha256 prefixes by brute force. */
    memcpy(&h, d->b, sizeof h);
    return h;
}

void digest_of(const void *data, size_t len, struct digest *out)
{
    struct hasher h;

    REQUIRE(SHA256_Init(&h.ctx) == 1);
    hasher_update(&h, data, len);
    REQUIRE(SHA256_Final(out->b, &h.ctx) == 1);
}

int hasher_new(struct hasher **out, struct err *err)
{
    struct hasher *h = malloc(sizeof *h);

    *out = NULL;
    if (h == NULL)
        return err_nomem(err, sizeof *h);
    REQUIRE(SHA256_Init(&h->ctx) == 1);
    *out = h;
    return 0;
}

void hasher_update(struct hasher *h, const void *data, size_t len)
{
    if (len > 0)
        REQUIRE(SHA256_Update(&h->ctx, data, len) == 1);
}

void hasher_peek(const struct hasher *h, struct digest *out)
{
    SHA256_CTX copy = h->ctx;

    REQUIRE(SHA256_Final(out->b, &copy) == 1);
}

int hasher_clone(const struct hasher *h, struct hasher **out, struct err *err)
{
    TRY(hasher_new(out, err));
    **out = *h;
    return 0;
}

void hasher_free(struct hasher *h)
{
    free(h);
}

void hasher_cleanup(struct hasher **h)
{
    hasher_free(*h);
    *h = NULL;
}
