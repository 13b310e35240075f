/* SPDX-License-Identifier: Apache-2.0
 * base/percent.h - percent-encoding in URLs (RFC 3986 section 2.1). Pure. */
#pragma once

static inline int percent_hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte that "%XX" at p stands for, 0..255; -1 when it is malformed. p: NUL-terminated, p[0] is the '%'. */
static inline int percent_byte(const char *p)
{
    int hi = percent_hex(p[1]);
    int lo = hi < 0 ? -1 : percent_hex(p[2]);
    return lo < 0 ? -1 : hi * 16 + lo;
}
