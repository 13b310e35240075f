/* SPDX-License-Identifier: Apache-2.0
 * admin/guard.c - which Host headers the admin port answers. */
#include "admin/admin_internal.h"

#include <arpa/inet.h>
#include <strings.h>

/* The host of "host", "host:port", "[v6]" or "[v6]:port", without brackets. False when it is malformed or too long. */
static bool split_host(const char *text, char *host, size_t cap)
{
    const char *start = text, *end;

    if (*text == '[') {
        start = text + 1;
        end = strchr(start, ']');
        if (end == NULL || (end[1] != '\0' && end[1] != ':'))
            return false;
    } else {
        end = text + strcspn(text, ":");
        if (*end == ':' && strchr(end + 1, ':') != NULL)
            return false;
    }
    if (end == start || (size_t)(end - start) >= cap)
        return false;
    snprintf(host, cap, "%.*s", (int)(end - start), start);
    return start == text || strchr(host, ':') != NULL; /* brackets are for IPv6 alone */
}

bool admin_host_allowed(const char *host, const char *listen)
{
    char asked[256], own[256];
    struct in_addr v4;
    struct in6_addr v6, own6;
    bool is_v4, is_v6;

    if (host == NULL) /* HTTP/1.0 probes; browsers, which this is about, always send one */
        return true;
    if (!split_host(host, asked, sizeof asked) || !split_host(listen, own, sizeof own))
        return false;
    if (strcasecmp(asked, "localhost") == 0)
        return true;
    is_v4 = inet_pton(AF_INET, asked, &v4) == 1;
    is_v6 = inet_pton(AF_INET6, asked, &v6) == 1;
    if (is_v4 && ntohl(v4.s_addr) >> 24 == 127)
        return true;
    if (is_v6 && IN6_IS_ADDR_LOOPBACK(&v6))
        return true;
    /* On every interface, any of the machine's addresses is its own, and an address cannot be rebound. */
    if (strcmp(own, "0.0.0.0") == 0 || strcmp(own, "::") == 0)
        return is_v4 || is_v6;
    if (is_v6 && inet_pton(AF_INET6, own, &own6) == 1)
        return memcmp(&v6, &own6, sizeof v6) == 0;
    return strcasecmp(asked, own) == 0;
}
