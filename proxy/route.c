/* SPDX-License-Identifier: Apache-2.0
 *
 * What a path under /v2/ means, and which upstream it belongs to: ns= first, then the listener's own upstream, then a
 * first path component that names one, then a Host header that does, then the default. Names are lookup keys: nothing from
 * a request is ever dialled.
 * Endpoints: OCI distribution-spec v1.1, "Endpoints".
 */
#include "base/percent.h"
#include "proxy/proxy_internal.h"

#include <string.h>
#include <strings.h>

#define PATH_MAX_BYTES 1024

/* Decodes %XX once. An escaped slash or NUL could make two paths look alike, so both are refused. */
static bool decode_path(const char *path, char *out, size_t cap)
{
    size_t n = 0;
    for (; *path; path++) {
        char c = *path;
        if (c == '%') {
            int decoded = percent_byte(path);
            if (decoded <= 0 || decoded == '/')
                return false;
            c = (char)decoded;
            path += 2;
        }
        if (n + 1 >= cap)
            return false;
        out[n++] = c;
    }
    out[n] = '\0';
    return true;
}

static int bad(struct route *r, const char *code, struct err *err, enum err_code what, const char *why,
               const char *text)
{
    r->error_code = code;
    return err_set(err, what, "%s: %.200s", why, text);
}

/* Cuts "<name>/manifests/<ref>" into its parts; the kind that stands last in the path wins, since names may hold words
 * like "blobs" too. */
static bool split(char *rest, struct route *r, char **out_name, char **out_ref)
{
    static const struct {
        const char *mark;
        enum route_kind kind;
    } kinds[] = {{"/manifests/", ROUTE_MANIFEST}, {"/blobs/", ROUTE_BLOB}, {"/referrers/", ROUTE_REFERRERS}};
    size_t len = strlen(rest), list = strlen("/tags/list");
    char *ref = strrchr(rest, '/');

    if (len > list && strcmp(rest + len - list, "/tags/list") == 0) {
        rest[len - list] = '\0';
        r->kind = ROUTE_TAGS;
        *out_name = rest;
        *out_ref = rest + len;
        return true;
    }
    for (size_t i = 0; ref && i < ARRAY_LEN(kinds); i++) {
        size_t mark = strlen(kinds[i].mark);
        char *at = ref + 1 - mark;
        if (ref + 1 - rest <= (ptrdiff_t)mark || strncmp(at, kinds[i].mark, mark) != 0)
            continue;
        *at = '\0';
        r->kind = kinds[i].kind;
        *out_name = rest;
        *out_ref = ref + 1;
        return true;
    }
    return false;
}

/* The upstream that the client thinks it talks to, for those whose traffic is led here under a registry's own name. A Host
 * that is an address says how recask was reached, and never which upstream is meant. */
static const struct upstream *upstream_of_host(const struct upstreams *ups, const char *host)
{
    size_t len = host ? strlen(host) : 0;
    size_t bare = host ? strcspn(host, ":") : 0;
    bool is_address = len == 0 || host[0] == '[' || strspn(host, "0123456789.") == bare ||
                      (bare == strlen("localhost") && strncasecmp(host, "localhost", bare) == 0);

    if (is_address)
        return NULL;
    const struct upstream *up = upstream_find(ups, host, len);
    return up ? up : upstream_find(ups, host, bare);
}

static int choose_upstream(const struct upstreams *ups, const struct route_request *req, const char **name,
                           struct route *r, struct err *err)
{
    const char *slash = strchr(*name, '/'), *ns = req->ns;

    if (ns && *ns) {
        r->up = upstream_find(ups, ns, strlen(ns));
        if (!r->up)
            return bad(r, "NAME_UNKNOWN", err, ERR_NOTFOUND, "no upstream has this name (ns)", ns);
        return 0;
    }
    if (req->fixed) {
        r->up = req->fixed;
        return 0;
    }
    r->up = slash ? upstream_find(ups, *name, (size_t)(slash - *name)) : NULL;
    if (r->up)
        *name = slash + 1;
    else
        r->up = upstream_of_host(ups, req->host);
    if (!r->up)
        r->up = upstream_default(ups);
    if (!r->up)
        return bad(r, "NAME_UNKNOWN", err, ERR_NOTFOUND, "there is no default upstream for", *name);
    return 0;
}

int route_parse(const struct upstreams *ups, const struct route_request *req, struct route *out, struct err *err)
{
    const char *path = req->path;
    char text[PATH_MAX_BYTES];
    char *name_at, *ref;

    *out = (struct route){.kind = ROUTE_BASE};
    if (!decode_path(path, text, sizeof(text)))
        return bad(out, "NAME_INVALID", err, ERR_FORMAT, "the path has a bad escape or is too long", path);
    if (strcmp(text, "/v2") == 0 || strcmp(text, "/v2/") == 0)
        return 0;
    if (strncmp(text, "/v2/", 4) != 0)
        return bad(out, "UNSUPPORTED", err, ERR_NOTFOUND, "not a registry path (they begin with /v2/)", text);
    if (!split(text + 4, out, &name_at, &ref))
        return bad(out, "UNSUPPORTED", err, ERR_NOTFOUND, "no such endpoint", text);
    const char *name = name_at;
    TRY(choose_upstream(ups, req, &name, out, err));
    if (!oci_name_valid(name, strlen(name)))
        return bad(out, "NAME_INVALID", err, ERR_FORMAT, "not a repository name", name);
    bool library = upstream_adds_library(out->up) && !strchr(name, '/');
    snprintf(out->name, sizeof(out->name), "%s%s", library ? "library/" : "", name);
    if (strlen(out->name) > OCI_NAME_MAX_BYTES)
        return bad(out, "NAME_INVALID", err, ERR_FORMAT, "too long with \"library/\" in front", name);
    if (strlen(ref) >= sizeof(out->ref))
        return bad(out, out->kind == ROUTE_MANIFEST ? "MANIFEST_INVALID" : "DIGEST_INVALID", err, ERR_FORMAT,
                   "the reference is too long", ref);
    snprintf(out->ref, sizeof(out->ref), "%s", ref);
    return 0;
}
