/* SPDX-License-Identifier: Apache-2.0
 * config/address.c - addresses to listen on, URLs of upstreams and their names, users and repositories. The messages say what to write
 * instead, since these are the values that people get wrong. */
#include "base/buf.h"
#include "config/value.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <strings.h>

#define HOST_MAX 253
#define NAME_MAX_BYTES 255

static int parse_port(const char *text, size_t len, unsigned min, unsigned *out)
{
    unsigned n = 0;

    if (len < 1 || len > 5)
        return -1;
    for (size_t i = 0; i < len; i++) {
        if (!isdigit((unsigned char)text[i]))
            return -1;
        n = n * 10 + (unsigned)(text[i] - '0');
    }
    if (n < min || n > 65535)
        return -1;
    *out = n;
    return 0;
}

/* ---- addresses to listen on ------------------------------------------------------------------------------------ */

static int address_v6(const char *text, char **out, struct err *err)
{
    const char *end = strchr(text, ']');
    unsigned char bytes[16];
    char host[64];
    unsigned port;

    if (end == NULL || (size_t)(end - text) > sizeof host - 1 || end[1] != ':' ||
        parse_port(end + 2, strlen(end + 2), 0, &port) < 0)
        return err_set(err, ERR_USAGE, "wants an address and a port such as [::1]:5000, not %s", config_show(text).s);
    memcpy(host, text + 1, (size_t)(end - text - 1));
    host[end - text - 1] = '\0';
    if (inet_pton(AF_INET6, host, bytes) != 1)
        return err_set(err, ERR_USAGE, "%s is not an IPv6 address", config_show(host).s);
    return str_printf(out, err, "[%s]:%u", host, port);
}

int config_address_parse(const char *text, char **out, struct err *err)
{
    const char *colon = strrchr(text, ':');
    unsigned char bytes[4];
    char host[64];
    unsigned port;

    if (text[0] == '[')
        return address_v6(text, out, err);
    if (colon == NULL && parse_port(text, strlen(text), 0, &port) == 0)
        return err_set(err, ERR_USAGE, "%s is a port alone: say 127.0.0.1:%u", config_show(text).s, port);
    if (colon == NULL)
        return err_set(err, ERR_USAGE, "wants an address and a port such as 127.0.0.1:5000, not %s",
                       config_show(text).s);
    if (parse_port(colon + 1, strlen(colon + 1), 0, &port) < 0)
        return err_set(err, ERR_USAGE, "%s has no port from 0 to 65535", config_show(text).s);
    if (colon == text || (colon == text + 1 && text[0] == '*'))
        return err_set(err, ERR_USAGE, "%s: say 0.0.0.0:%u to listen on every interface, 127.0.0.1:%u on this machine",
                       config_show(text).s, port, port);
    if (memchr(text, ':', (size_t)(colon - text)) != NULL)
        return err_set(err, ERR_USAGE, "%s: an IPv6 address stands in brackets, such as [::1]:5000",
                       config_show(text).s);
    snprintf(host, sizeof host, "%.*s", (int)(colon - text), text);
    if (strcasecmp(host, "localhost") == 0)
        return str_printf(out, err, "127.0.0.1:%u", port);
    if (inet_pton(AF_INET, host, bytes) != 1)
        return err_set(err, ERR_USAGE, "%s is not an IP address (only localhost is known by name)",
                       config_show(host).s);
    return str_printf(out, err, "%s:%u", host, port);
}

bool config_address_same(const char *a, const char *b)
{
    const char *port = strrchr(a, ':');

    return strcmp(a, b) == 0 && port != NULL && strcmp(port, ":0") != 0;
}

/* ---- URLs ------------------------------------------------------------------------------------------------------ */

static bool host_valid(const char *host, size_t len)
{
    unsigned char bytes[16];
    char v6[64];

    if (len == 0 || len > HOST_MAX)
        return false;
    if (host[0] == '[') {
        if (len < 4 || len > sizeof v6 || host[len - 1] != ']')
            return false;
        memcpy(v6, host + 1, len - 2);
        v6[len - 2] = '\0';
        return inet_pton(AF_INET6, v6, bytes) == 1;
    }
    for (size_t i = 0; i < len; i++) {
        if (!isalnum((unsigned char)host[i]) && strchr("-._", host[i]) == NULL)
            return false;
    }
    return isalnum((unsigned char)host[0]) && isalnum((unsigned char)host[len - 1]);
}

static int url_path_check(const char *text, const char *path, struct err *err)
{
    size_t len = strlen(path);

    if (strpbrk(path, "?#") != NULL)
        return err_set(err, ERR_USAGE, "%s: a query or a fragment has no place in a registry's URL",
                       config_show(text).s);
    for (size_t i = 0; i < len; i++) {
        if (!isalnum((unsigned char)path[i]) && strchr("/-._~", path[i]) == NULL)
            return err_set(err, ERR_USAGE, "%s holds a character that a registry's URL may not have",
                           config_show(text).s);
    }
    if (strstr(path, "/../") != NULL || strstr(path, "/./") != NULL || strstr(path, "//") != NULL ||
        (len >= 3 && strcmp(path + len - 3, "/..") == 0) || (len >= 2 && strcmp(path + len - 2, "/.") == 0))
        return err_set(err, ERR_USAGE, "%s: the path may not hold //, /./ or /../", config_show(text).s);
    if ((len == 3 && strcmp(path, "/v2") == 0) || (len == 4 && strcmp(path, "/v2/") == 0))
        return err_set(err, ERR_USAGE, "%s: leave /v2 off, recask adds it", config_show(text).s);
    return 0;
}

/* The part between scheme and path. *out_host_len: without the port. */
static int authority_check(const char *text, const char *auth, size_t len, size_t *out_host_len, struct err *err)
{
    const char *colon = memrchr(auth, ':', len);
    unsigned port;

    /* Not shown: what stands before the @ may be a password. */
    if (memchr(auth, '@', len) != NULL)
        return err_set(err, ERR_USAGE, "a URL may not hold credentials (use username and password_file)");
    if (colon != NULL && memchr(colon, ']', len - (size_t)(colon - auth)) == NULL) {
        *out_host_len = (size_t)(colon - auth);
        if (parse_port(colon + 1, len - *out_host_len - 1, 1, &port) < 0)
            return err_set(err, ERR_USAGE, "%s has no port from 1 to 65535 behind the host", config_show(text).s);
    } else {
        *out_host_len = len;
    }
    if (!host_valid(auth, *out_host_len))
        return err_set(err, ERR_USAGE, "%s has no valid host", config_show(text).s);
    return 0;
}

static int scheme_skip(const char *text, const char **out_rest, struct err *err)
{
    if (strncasecmp(text, "https://", 8) == 0)
        *out_rest = text + 8;
    else if (strncasecmp(text, "http://", 7) == 0)
        *out_rest = text + 7;
    else if (strchr(text, '@') != NULL)
        return err_set(err, ERR_USAGE, "wants a URL that begins with https:// or http:// and holds no credentials");
    else if (strstr(text, "://") == NULL && text[0] != '\0' && text[0] != '/')
        return err_set(err, ERR_USAGE, "%s is no URL: did you mean https://%.*s?", config_show(text).s, 200, text);
    else
        return err_set(err, ERR_USAGE, "wants a URL that begins with https:// or http://, not %s", config_show(text).s);
    return 0;
}

int config_url_parse(const char *text, struct config_url *out, struct err *err)
{
    const char *rest = NULL, *path;
    size_t auth_len, host_len = 0, path_len;

    *out = (struct config_url){0};
    TRY(config_text_check(text, err));
    TRY(scheme_skip(text, &rest, err));
    auth_len = strcspn(rest, "/?#");
    path = rest + auth_len;
    TRY(authority_check(text, rest, auth_len, &host_len, err));
    TRY(url_path_check(text, path, err));
    if (host_len == strlen("docker.io") && strncasecmp(rest, "docker.io", host_len) == 0)
        return err_set(err, ERR_USAGE, "docker.io itself is no registry: say https://registry-1.docker.io");
    path_len = strlen(path);
    while (path_len > 0 && path[path_len - 1] == '/')
        path_len--;
    TRY(str_printf(&out->url, err, "%.*s", (int)(path - text + (ptrdiff_t)path_len), text));
    TRY(str_printf(&out->name, err, "%.*s", (int)auth_len, rest));
    for (char *p = out->name; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    return 0;
}

void config_url_release(struct config_url *u)
{
    free(u->url);
    free(u->name);
    *u = (struct config_url){0};
}

static int proxy_scheme_skip(const char *text, const char **out_rest, struct err *err)
{
    static const char *const schemes[] = {"http://", "https://", "socks5h://"};

    for (size_t i = 0; i < ARRAY_LEN(schemes); i++) {
        size_t len = strlen(schemes[i]);

        if (strncasecmp(text, schemes[i], len) == 0) {
            *out_rest = text + len;
            return 0;
        }
    }
    if (strchr(text, '@') != NULL)
        return err_set(err, ERR_USAGE, "a proxy's URL may not hold credentials");
    return err_set(err, ERR_USAGE, "wants http://HOST:PORT, https://HOST:PORT, socks5h://HOST:PORT or off, not %s",
                   config_show(text).s);
}

int config_proxy_parse(const char *text, char **out, struct err *err)
{
    const char *rest = NULL;
    size_t len, host_len = 0;

    if (strcmp(text, "off") == 0)
        return str_dup("", out, err);
    TRY(config_text_check(text, err));
    TRY(proxy_scheme_skip(text, &rest, err));
    len = strcspn(rest, "/?#");
    if (strchr(rest, '@') != NULL) /* not shown: it may be a password's end */
        return err_set(err, ERR_USAGE, "a proxy's URL may not hold credentials");
    TRY(authority_check(text, rest, len, &host_len, err));
    if (host_len == len)
        return err_set(err, ERR_USAGE, "%s has no port", config_show(text).s);
    if (rest[len] != '\0' && strcmp(rest + len, "/") != 0)
        return err_set(err, ERR_USAGE, "%s: nothing may stand behind a proxy's port", config_show(text).s);
    return str_printf(out, err, "%.*s", (int)(rest - text + (ptrdiff_t)len), text);
}

int config_name_check(const char *text, struct err *err)
{
    size_t len = strlen(text);

    if (len == 0)
        return err_set(err, ERR_USAGE, "is empty");
    if (len > NAME_MAX_BYTES)
        return err_set(err, ERR_USAGE, "%s is longer than %d bytes", config_show(text).s, NAME_MAX_BYTES);
    for (size_t i = 0; i < len; i++) {
        if (!islower((unsigned char)text[i]) && !isdigit((unsigned char)text[i]) &&
            (i == 0 || strchr("-._:", text[i]) == NULL))
            return err_set(err, ERR_USAGE, "wants a name such as ghcr.io or my-registry:5000 (a-z 0-9 . - _ :), not %s",
                           config_show(text).s);
    }
    return 0;
}

/* ---- users, helpers, repositories ------------------------------------------------------------------------------ */

int config_user_check(const char *text, struct err *err)
{
    TRY(config_text_check(text, err));
    if (strchr(text, ':') != NULL) /* not shown: what stands behind it may be a password */
        return err_set(err, ERR_USAGE, "a user's name may not hold a colon");
    return 0;
}

int config_helper_check(const char *text, struct err *err)
{
    static const char prefix[] = "docker-credential-";
    size_t len = strlen(text);

    TRY(config_text_check(text, err));
    if (text[0] == '/')
        return 0;
    if (strncmp(text, prefix, strlen(prefix)) == 0)
        return err_set(err, ERR_USAGE, "%s: leave %s off, recask adds it", config_show(text).s, prefix);
    for (size_t i = 0; i < len; i++) {
        if (!islower((unsigned char)text[i]) && !isdigit((unsigned char)text[i]) && strchr("-.", text[i]) == NULL)
            return err_set(err, ERR_USAGE, "wants a name such as ecr-login (a-z 0-9 . -) or a whole path, not %s",
                           config_show(text).s);
    }
    return 0;
}

int config_repository_check(const char *text, struct err *err)
{
    size_t len = strlen(text), names;
    const char *slash = strchr(text, '/');

    TRY(config_text_check(text, err));
    if (strcmp(text, "*") == 0)
        return 0;
    names = len > 2 && strcmp(text + len - 2, "/*") == 0 ? len - 2 : len;
    for (size_t i = 0; i < names; i++) {
        /* A registry may be called [::1]:5000; a path has no such signs. */
        bool registry = slash == NULL || text + i < slash;

        if (!islower((unsigned char)text[i]) && !isdigit((unsigned char)text[i]) &&
            strchr(registry ? "-._:[]" : "-._/", text[i]) == NULL)
            return err_set(err, ERR_USAGE,
                           "wants a repository such as docker.io/library/alpine, all below a path: ghcr.io/acme/*, or "
                           "all: *, not %s",
                           config_show(text).s);
    }
    if (slash == NULL)
        return err_set(err, ERR_USAGE, "%s is no repository; for all of a registry say REGISTRY/*",
                       config_show(text).s);
    if (slash == text || strstr(text, "//") != NULL || text[names - 1] == '/')
        return err_set(err, ERR_USAGE, "%s holds an empty part", config_show(text).s);
    return 0;
}
