/* SPDX-License-Identifier: Apache-2.0
 * base/base64.c - base64 both ways.
 */
#include "base/base64.h"

#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_encode(const void *data, size_t len, char *out)
{
    const uint8_t *p = data;

    for (; len >= 3; len -= 3, p += 3) {
        *out++ = digits[p[0] >> 2];
        *out++ = digits[(p[0] & 3) << 4 | p[1] >> 4];
        *out++ = digits[(p[1] & 15) << 2 | p[2] >> 6];
        *out++ = digits[p[2] & 63];
    }
    if (len > 0) {
        uint8_t second = len == 2 ? p[1] : 0;

        *out++ = digits[p[0] >> 2];
        *out++ = digits[(p[0] & 3) << 4 | second >> 4];
        *out++ = len == 2 ? digits[(second & 15) << 2] : '=';
        *out++ = '=';
    }
    *out = '\0';
}

static int value_of(char c)
{
    const char *at = c != '\0' ? strchr(digits, c) : NULL;

    return at != NULL ? (int)(at - digits) : -1;
}

bool base64_decode(const char *text, size_t len, uint8_t *out, size_t *out_len)
{
    uint32_t bits = 0;
    size_t n = 0;

    *out_len = 0;
    if (len % 4 == 0 && len > 0 && text[len - 1] == '=')
        len -= text[len - 2] == '=' ? 2 : 1;
    if (len % 4 == 1)
        return false;
    for (size_t i = 0; i < len; i++) {
        int v = value_of(text[i]);

        if (v < 0)
            return false;
        bits = bits << 6 | (uint32_t)v;
        if (i % 4 != 0)
            out[n++] = (uint8_t)(bits >> (6 - i % 4 * 2));
    }
    /* Bits beyond the last byte are 0, so that one text stands for one value. */
    if (len % 4 != 0 && (bits & (len % 4 == 2 ? 15u : 3u)) != 0)
        return false;
    *out_len = n;
    return true;
}
