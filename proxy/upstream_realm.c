/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_realm.c - the rule of upstream_realm.h. URLs are taken apart by libcurl, which is also what dials them: two
 * parsers would disagree about some URL, and that one would be the attack.
 */
#include "proxy/upstream_realm.h"

#include <curl/curl.h>
#include <string.h>
#include <strings.h>

#define REALM_SHOWN_BYTES 200 /* of a realm, in a message */

struct place {
    char *scheme, *host, *port, *path;
    bool has_query; /* or a fragment */
    bool has_dots;  /* its path has segments that begin with one; libcurl takes "." and ".." out of `path` */
};

static void place_release(struct place *p)
{
    curl_free(p->scheme);
    curl_free(p->host);
    curl_free(p->port);
    curl_free(p->path);
}

/* libcurl also takes "https:/host" and "https:///host", where others see a path. */
static bool has_two_slashes(const char *url)
{
    const char *slashes = strstr(url, "://");

    return slashes != NULL && slashes == strpbrk(url, ":/?#\\") && slashes[3] != '/';
}

/* False: not a plain http(s) URL with a host, or no memory; neither is to be trusted. */
static bool place_parse(const char *url, struct place *out)
{
    CURLU *u = curl_url();
    char *user = NULL;
    bool ok;

    out->has_query = strpbrk(url, "?#") != NULL;
    out->has_dots = memmem(url, strcspn(url, "?#"), "/.", 2) != NULL;

    ok = has_two_slashes(url) && u != NULL && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
         curl_url_get(u, CURLUPART_SCHEME, &out->scheme, 0) == CURLUE_OK &&
         curl_url_get(u, CURLUPART_HOST, &out->host, 0) == CURLUE_OK &&
         curl_url_get(u, CURLUPART_PORT, &out->port, CURLU_DEFAULT_PORT) == CURLUE_OK &&
         curl_url_get(u, CURLUPART_PATH, &out->path, 0) == CURLUE_OK &&
         curl_url_get(u, CURLUPART_USER, &user, 0) == CURLUE_NO_USER &&
         (strcasecmp(out->scheme, "http") == 0 || strcasecmp(out->scheme, "https") == 0);
    curl_free(user);
    curl_url_cleanup(u);
    return ok;
}

/* ---- the registrable domain --------------------------------------------------------------------------------------- */

/* "1.2.3.4", "[::1]": libcurl has brought the odd forms (0x7f.1) into these. */
static bool is_address(const char *host)
{
    const char *last = strrchr(host, '.');

    last = last != NULL ? last + 1 : host;
    return host[0] == '[' || strspn(last, "0123456789") == strlen(last);
}

static bool is_plain_name(const char *host)
{
    if (host[0] == '.' || strstr(host, "..") != NULL)
        return false;
    for (const char *p = host; *p != '\0'; p++) /* nothing that libidn would turn into something else */
        if ((unsigned char)*p <= 0x20 || (unsigned char)*p >= 0x7f)
            return false;
    return true;
}

/* Where the last `count` labels begin; NULL when there are fewer. */
static const char *last_labels(const char *host, int count)
{
    const char *p = host + strlen(host);

    while (p > host && count > 0)
        if (*--p == '.' && --count == 0)
            return p + 1;
    return count == 1 ? host : NULL;
}

/* "co.uk": belongs to nobody who could run a registry. */
static bool is_shared_suffix(const char *two)
{
    static const char *const second[] = {"ac", "co", "com", "edu", "go", "gov", "ne", "net", "or", "org"};
    const char *dot = strchr(two, '.');

    if (strlen(dot + 1) != 2)
        return false;
    for (size_t i = 0; i < ARRAY_LEN(second); i++)
        if (strlen(second[i]) == (size_t)(dot - two) && strncasecmp(two, second[i], strlen(second[i])) == 0)
            return true;
    return false;
}

static const char *domain_of(const char *host)
{
    const char *two;

    if (is_address(host) || !is_plain_name(host))
        return NULL;
    two = last_labels(host, 2);
    return two != NULL && is_shared_suffix(two) ? last_labels(host, 3) : two;
}

static bool is_https(const struct place *p)
{
    return strcasecmp(p->scheme, "https") == 0;
}

static bool belongs(const struct place *upstream, const struct place *realm)
{
    const char *theirs, *ours;

    if (strcasecmp(upstream->host, realm->host) == 0)
        return true;
    ours = domain_of(upstream->host);
    theirs = domain_of(realm->host);
    return ours != NULL && theirs != NULL && strcasecmp(ours, theirs) == 0;
}

/* ---- the list ----------------------------------------------------------------------------------------------------- */

static bool same_origin(const struct place *a, const struct place *b)
{
    return strcasecmp(a->scheme, b->scheme) == 0 && strcasecmp(a->host, b->host) == 0 && strcmp(a->port, b->port) == 0;
}

/* The request carries the path as it was written: no server may see another one in it than we do. */
static bool is_plain(const struct place *p)
{
    return !p->has_dots && strcasestr(p->path, "%2e") == NULL && strcasestr(p->path, "%2f") == NULL &&
           strcasestr(p->path, "%5c") == NULL && strchr(p->path, '\\') == NULL;
}

static bool is_below(const char *path, const char *top)
{
    size_t len = strlen(top);

    while (len > 0 && top[len - 1] == '/')
        len--;
    return strncmp(path, top, len) == 0 && (path[len] == '\0' || path[len] == '/');
}

static bool is_listed(const char *const *listed, const struct place *realm)
{
    for (; listed != NULL && *listed != NULL; listed++) {
        CLEANUP(place_release) struct place one = {.host = NULL};

        if (place_parse(*listed, &one) && same_origin(&one, realm) && is_below(realm->path, one.path) &&
            is_plain(realm))
            return true;
    }
    return false;
}

/* ---- the questions ------------------------------------------------------------------------------------------------ */

int realm_check(const char *upstream_name, const char *upstream_url, const char *const *listed, const char *realm,
                struct err *err)
{
    CLEANUP(place_release) struct place up = {.host = NULL};
    CLEANUP(place_release) struct place to = {.host = NULL};
    size_t shown = strcspn(realm, "?#");

    /* A user before an "@" would be a way to show one host and mean another, and place_parse() knows none. */
    if (place_parse(upstream_url, &up) && place_parse(realm, &to) && (is_https(&to) || !is_https(&up)) &&
        (belongs(&up, &to) || is_listed(listed, &to)))
        return 0;
    return err_set(err, ERR_DENIED, "upstream %s names a token service that is not its own: \"%.*s\"", upstream_name,
                   (int)(shown < REALM_SHOWN_BYTES ? shown : REALM_SHOWN_BYTES), realm);
}

int realm_listable(const char *upstream_url, const char *url, struct err *err)
{
    CLEANUP(place_release) struct place up = {.host = NULL};
    CLEANUP(place_release) struct place one = {.host = NULL};

    if (!place_parse(url, &one) || one.has_query || !is_plain(&one))
        return err_set(err, ERR_USAGE, "a token realm is an http(s) URL without user, query and escapes");
    if (!place_parse(upstream_url, &up) || (is_https(&up) && !is_https(&one)))
        return err_set(err, ERR_USAGE, "the token realm %s is not https, as its upstream is", url);
    return 0;
}

bool realm_same_origin(const char *a, const char *b)
{
    CLEANUP(place_release) struct place one = {.host = NULL};
    CLEANUP(place_release) struct place other = {.host = NULL};

    return place_parse(a, &one) && place_parse(b, &other) && same_origin(&one, &other);
}
