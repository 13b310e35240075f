/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_proxy.c - the HTTP (or SOCKS) proxy between recask and an upstream.
 *
 * libcurl would read the environment by itself, but not HTTP_PROXY in capitals, and it would send loopback addresses through
 * a proxy too. So it is read here, once, and each request is told its way. A proxy's user and password go to libcurl apart
 * from its URL, which may stand in messages therefore.
 */
#include "proxy/upstream_internal.h"

#include "base/secret.h"

#include <strings.h>

struct http_proxy {
    char *url; /* without user and password; "": no proxy */
    struct secret user, password;
};

struct http_proxy_env {
    struct http_proxy *http, *https; /* by the scheme of what is asked for; NULL: none */
    char *no_proxy;
};

void http_proxy_free(struct http_proxy *p)
{
    if (p == NULL)
        return;
    free(p->url);
    secret_release(&p->user);
    secret_release(&p->password);
    free(p);
}

static void proxy_cleanup(struct http_proxy **p)
{
    http_proxy_free(*p);
    *p = NULL;
}

void http_proxy_env_free(struct http_proxy_env *env)
{
    if (env == NULL)
        return;
    http_proxy_free(env->http);
    http_proxy_free(env->https);
    free(env->no_proxy);
    free(env);
}

static void env_cleanup(struct http_proxy_env **env)
{
    http_proxy_env_free(*env);
    *env = NULL;
}

static void url_cleanup(CURLU **u)
{
    curl_url_cleanup(*u);
    *u = NULL;
}

static int take_part(CURLU *u, CURLUPart part, struct secret *out, struct err *err)
{
    char *text = NULL;
    int rc = 0;

    if (curl_url_get(u, part, &text, CURLU_URLDECODE) == CURLUE_OK)
        rc = secret_set(out, text, strlen(text), err);
    if (text != NULL)
        secret_wipe(text, strlen(text));
    curl_free(text);
    return rc;
}

static bool known_scheme(CURLU *u)
{
    static const char *const known[] = {"http", "https", "socks4", "socks4a", "socks5", "socks5h"};
    char *scheme = NULL;
    bool ok = false;

    if (curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK)
        for (size_t i = 0; i < ARRAY_LEN(known); i++)
            ok |= strcasecmp(scheme, known[i]) == 0;
    curl_free(scheme);
    return ok;
}

/* The messages do not show the URL, in which there may be a password. */
static int take_url(struct http_proxy *p, const char *url, struct err *err)
{
    CLEANUP(url_cleanup) CURLU *u = curl_url();
    CLEANUP(free_ptr) char *full = NULL;
    char *port = NULL;
    char *bare = NULL;
    int rc;

    if (u == NULL)
        return err_nomem(err, 1);
    TRY(str_printf(&full, err, "%s%s", strstr(url, "://") != NULL ? "" : "http://", url));
    rc = curl_url_set(u, CURLUPART_URL, full, CURLU_NON_SUPPORT_SCHEME) == CURLUE_OK && known_scheme(u) ? 0 : ERR_USAGE;
    secret_wipe(full, strlen(full));
    if (rc < 0)
        return err_set(err, ERR_USAGE, "not the URL of a proxy (http://HOST:PORT)");
    TRY(take_part(u, CURLUPART_USER, &p->user, err));
    TRY(take_part(u, CURLUPART_PASSWORD, &p->password, err));
    /* libcurl's own default would be 1080 */
    if (curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK)
        (void)curl_url_set(u, CURLUPART_PORT, port, 0);
    curl_free(port);
    if (curl_url_set(u, CURLUPART_USER, NULL, 0) != CURLUE_OK ||
        curl_url_set(u, CURLUPART_PASSWORD, NULL, 0) != CURLUE_OK ||
        curl_url_get(u, CURLUPART_URL, &bare, 0) != CURLUE_OK)
        return err_nomem(err, strlen(url));
    rc = str_dup(bare, &p->url, err);
    curl_free(bare);
    return rc;
}

int http_proxy_new(const char *url, struct http_proxy **out, struct err *err)
{
    CLEANUP(proxy_cleanup) struct http_proxy *p = calloc(1, sizeof *p);

    *out = NULL;
    if (p == NULL)
        return err_nomem(err, sizeof *p);
    if (url[0] == '\0')
        TRY(str_dup("", &p->url, err));
    else
        TRY(take_url(p, url, err));
    *out = steal(&p);
    return 0;
}

/* The first of the variables that is set and not empty. */
static const char *first_set(const char *const *names, size_t count, const char **out_name)
{
    for (size_t i = 0; i < count; i++) {
        const char *value = getenv(names[i]);
        if (value != NULL && value[0] != '\0') {
            *out_name = names[i];
            return value;
        }
    }
    return NULL;
}

static int from_env(const char *const *names, size_t count, struct http_proxy **out, struct err *err)
{
    const char *name = "";
    const char *url = first_set(names, count, &name);

    if (url != NULL && http_proxy_new(url, out, err) < 0)
        return err_wrap(err, "%s in the environment", name);
    return 0;
}

int http_proxy_env_new(struct http_proxy_env **out, struct err *err)
{
    static const char *const http[] = {"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"};
    static const char *const https[] = {"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"};
    static const char *const none[] = {"no_proxy", "NO_PROXY"};
    CLEANUP(env_cleanup) struct http_proxy_env *env = calloc(1, sizeof *env);
    const char *name;
    const char *no_proxy;

    *out = NULL;
    if (env == NULL)
        return err_nomem(err, sizeof *env);
    TRY(from_env(http, ARRAY_LEN(http), &env->http, err));
    TRY(from_env(https, ARRAY_LEN(https), &env->https, err));
    no_proxy = first_set(none, ARRAY_LEN(none), &name);
    TRY(str_dup(no_proxy != NULL ? no_proxy : "", &env->no_proxy, err));
    *out = steal(&env);
    return 0;
}

/* "localhost", 127.0.0.0/8, ::1: as Go's clients have it. A URL that cannot be taken apart will not be dialled either. */
static bool is_loopback(const char *url)
{
    CURLU *u = curl_url();
    char *host = NULL;
    bool yes = false;

    if (u != NULL && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
        curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK)
        yes = strcasecmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0 ||
              (strncmp(host, "127.", strlen("127.")) == 0 && host[strspn(host, "0123456789.")] == '\0');
    curl_free(host);
    curl_url_cleanup(u);
    return yes;
}

bool http_proxy_configure(const struct http_proxy *own, const struct http_proxy_env *env, CURL *easy, const char *url)
{
    const struct http_proxy *p = own;
    const char *no_proxy = "";
    bool ok;

    if (p == NULL && !is_loopback(url)) {
        p = strncasecmp(url, "https:", strlen("https:")) == 0 ? env->https : env->http;
        no_proxy = env->no_proxy;
    }
    /* Set in any case: what is not set libcurl reads from the environment. */
    ok = curl_easy_setopt(easy, CURLOPT_PROXY, p != NULL ? p->url : "") == CURLE_OK &&
         curl_easy_setopt(easy, CURLOPT_NOPROXY, no_proxy) == CURLE_OK;
    if (p != NULL && secret_is_set(&p->user))
        ok = ok && curl_easy_setopt(easy, CURLOPT_PROXYUSERNAME, secret_text(&p->user)) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_PROXYPASSWORD, secret_text(&p->password)) == CURLE_OK;
    return ok;
}
