/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream.c - the registries, the life of the upstream thread, and its inbox.
 *
 * Any thread creates an exchange and posts it; from then on the upstream thread alone works on it (U1). Messages are bits
 * in the exchange itself, so that posting allocates nothing and cannot fail.
 */
#include "proxy/upstream_internal.h"

#include "base/clock.h"
#include "oci/oci.h"
#include "proxy/upstream_account.h"
#include "proxy/upstream_realm.h"

#include <signal.h>
#include <strings.h>

#define CONNECT_MS_DEFAULT 10000
#define STALL_MS_DEFAULT 60000
#define TRIES_DEFAULT 3
#define REQUEST_MS_DEFAULT 60000
#define BLOB_MS_DEFAULT (24 * 3600 * 1000)
#define IDLE_CONNECTIONS_MAX 64L

/* ---- registries ------------------------------------------------------------------------------------------------- */

static void upstream_free(struct upstream *up)
{
    if (up == NULL)
        return;
    for (size_t i = 0; i < up->alias_count; i++)
        free(up->aliases[i]);
    free(up->aliases);
    for (char **realm = up->token_realms; realm != NULL && *realm != NULL; realm++)
        free(*realm);
    free(up->token_realms);
    account_free(up->account);
    free(up->name);
    free(up->url);
    turns_free(up->turns);
    tls_files_free(up->tls);
    http_proxy_free(up->http_proxy);
    free(up);
}

static void upstream_cleanup(struct upstream **up)
{
    upstream_free(*up);
    *up = NULL;
}

static void url_cleanup(CURLU **u)
{
    curl_url_cleanup(*u);
    *u = NULL;
}

static bool url_has(CURLU *u, CURLUPart part)
{
    char *text = NULL;
    bool has = curl_url_get(u, part, &text, 0) == CURLUE_OK && text != NULL;

    curl_free(text);
    return has;
}

/* Passwords come from files, never from a URL, which would end in logs; a query would make no sense below a path. */
static int check_url(const char *url, struct err *err)
{
    CLEANUP(url_cleanup) CURLU *u = curl_url();

    if (u == NULL)
        return err_nomem(err, 1);
    if (strncasecmp(url, "http://", strlen("http://")) != 0 && strncasecmp(url, "https://", strlen("https://")) != 0)
        return err_set(err, ERR_USAGE, "an upstream URL starts with http:// or https://");
    if (strlen(url) > UPSTREAM_URL_MAX_BYTES / 2 || curl_url_set(u, CURLUPART_URL, url, 0) != CURLUE_OK)
        return err_set(err, ERR_USAGE, "not a valid upstream URL");
    if (url_has(u, CURLUPART_USER) || url_has(u, CURLUPART_PASSWORD))
        return err_set(err, ERR_USAGE, "an upstream URL may not hold a user or a password");
    if (url_has(u, CURLUPART_QUERY) || url_has(u, CURLUPART_FRAGMENT))
        return err_set(err, ERR_USAGE, "the upstream URL %s may have neither query nor fragment", url);
    return 0;
}

static bool named(const struct upstream *up, const char *name, size_t len)
{
    /* Registry names are host names, and those do not tell cases apart. */
    if (strlen(up->name) == len && strncasecmp(up->name, name, len) == 0)
        return true;
    for (size_t i = 0; i < up->alias_count; i++)
        if (strlen(up->aliases[i]) == len && strncasecmp(up->aliases[i], name, len) == 0)
            return true;
    return false;
}

const struct upstream *upstream_find(const struct upstreams *ups, const char *name, size_t len)
{
    for (size_t i = 0; i < ups->count; i++)
        if (named(ups->list[i], name, len))
            return ups->list[i];
    return NULL;
}

static int copy_aliases(struct upstream *up, const struct upstreams *ups, const char *const *aliases, struct err *err)
{
    size_t count = 0;

    while (aliases != NULL && aliases[count] != NULL)
        count++;
    if (count == 0)
        return 0;
    up->aliases = calloc(count, sizeof *up->aliases);
    if (up->aliases == NULL)
        return err_nomem(err, count * sizeof *up->aliases);
    for (size_t i = 0; i < count; i++) {
        if (upstream_find(ups, aliases[i], strlen(aliases[i])) != NULL)
            return err_set(err, ERR_USAGE, "two upstreams are named %s", aliases[i]);
        TRY(str_dup(aliases[i], &up->aliases[i], err));
        up->alias_count++;
    }
    return 0;
}

/* How it is reached. */
static int set_way(struct upstream *up, const struct upstream_def *def, struct err *err)
{
    TRY(turns_new(def->max_connections, def->max_rate, &up->turns, err));
    if (tls_files_new(def, &up->tls, err) < 0)
        return err_wrap(err, "upstream %s", def->name);
    if (def->http_proxy != NULL && http_proxy_new(def->http_proxy, &up->http_proxy, err) < 0)
        return err_wrap(err, "upstream %s: http_proxy", def->name);
    return 0;
}

/* Who may see the credentials, and where they are. */
static int copy_credentials(struct upstream *up, const struct upstreams *ups, const struct upstream_def *def,
                            struct err *err)
{
    size_t count = 0;

    while (def->token_realms != NULL && def->token_realms[count] != NULL)
        count++;
    up->token_realms = calloc(count + 1, sizeof(char *));
    if (up->token_realms == NULL)
        return err_nomem(err, (count + 1) * sizeof(char *));
    for (size_t i = 0; i < count; i++) {
        if (realm_listable(def->url, def->token_realms[i], err) < 0)
            return err_wrap(err, "upstream %s", def->name);
        TRY(str_dup(def->token_realms[i], &up->token_realms[i], err));
    }
    return account_new(def, ups->auth_file, ups->multi, &up->account, err);
}

int upstreams_add(struct upstreams *ups, const struct upstream_def *def, struct err *err)
{
    CLEANUP(upstream_cleanup) struct upstream *up = NULL;
    struct upstream **list;

    REQUIRE(!ups->running);
    if (def->name == NULL || def->name[0] == '\0')
        return err_set(err, ERR_USAGE, "an upstream needs a name");
    if (upstream_find(ups, def->name, strlen(def->name)) != NULL)
        return err_set(err, ERR_USAGE, "two upstreams are named %s", def->name);
    if (check_url(def->url, err) < 0)
        return err_wrap(err, "upstream %s", def->name);
    up = calloc(1, sizeof *up);
    if (up == NULL)
        return err_nomem(err, sizeof *up);
    up->add_library = def->add_library;
    up->tag_ttl_s = def->tag_ttl_s;
    TRY(str_dup(def->name, &up->name, err));
    TRY(str_dup(def->url, &up->url, err));
    for (size_t len = strlen(up->url); len > 0 && up->url[len - 1] == '/'; len--)
        up->url[len - 1] = '\0';
    TRY(copy_aliases(up, ups, def->aliases, err));
    TRY(set_way(up, def, err));
    TRY(copy_credentials(up, ups, def, err));

    list = realloc(ups->list, (ups->count + 1) * sizeof(struct upstream *));
    if (list == NULL)
        return err_nomem(err, (ups->count + 1) * sizeof(struct upstream *));
    ups->list = list;
    if (ups->by_default == NULL)
        ups->by_default = up;
    ups->list[ups->count++] = steal(&up);
    return 0;
}

int upstreams_set_default(struct upstreams *ups, const char *name, struct err *err)
{
    const struct upstream *up = upstream_find(ups, name, strlen(name));

    REQUIRE(!ups->running);
    if (up == NULL)
        return err_set(err, ERR_USAGE, "no upstream is named %s", name);
    ups->by_default = up;
    return 0;
}

const struct upstream *upstream_default(const struct upstreams *ups)
{
    return ups->by_default;
}

int64_t upstream_tag_ttl_s(const struct upstream *up)
{
    return up->tag_ttl_s;
}

const char *upstream_name(const struct upstream *up)
{
    return up->name;
}

const char *upstream_url(const struct upstream *up)
{
    return up->url;
}

bool upstream_adds_library(const struct upstream *up)
{
    return up->add_library;
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

static void upstreams_cleanup(struct upstreams **ups)
{
    upstreams_free(*ups);
    *ups = NULL;
}

int upstreams_new(const struct upstreams_options *opt, struct upstreams **out, struct err *err)
{
    CLEANUP(upstreams_cleanup) struct upstreams *ups = calloc(1, sizeof *ups);

    *out = NULL;
    if (ups == NULL)
        return err_nomem(err, sizeof *ups);
    ups->magic = UPSTREAMS_MAGIC;
    ups->connect_ms = opt->connect_ms > 0 ? opt->connect_ms : CONNECT_MS_DEFAULT;
    ups->stall_ms = opt->stall_ms > 0 ? opt->stall_ms : STALL_MS_DEFAULT;
    ups->request_ms = opt->request_ms > 0 ? opt->request_ms : REQUEST_MS_DEFAULT;
    ups->blob_ms = opt->blob_ms > 0 ? opt->blob_ms : BLOB_MS_DEFAULT;
    ups->tries = opt->tries > 0 ? (unsigned)opt->tries : TRIES_DEFAULT;
    ups->offline = opt->offline;
    ups->inbox_end = &ups->inbox_first;
    ups->random = (uint64_t)clock_wall_ms() ^ (uint64_t)(uintptr_t)ups;
    lock_init(&ups->lock, RANK_UPSTREAM);
    /* Counted by libcurl: one cleanup for each, so tests and admin's client may do the same. */
    REQUIRE(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK);
    TRY(str_dup(opt->user_agent != NULL ? opt->user_agent : "recask", &ups->user_agent, err));
    TRY(http_proxy_env_new(&ups->proxy_env, err));
    TRY(str_dup(opt->auth_file, &ups->auth_file, err));
    ups->multi = curl_multi_init();
    if (ups->multi == NULL)
        return err_nomem(err, 1);
    if (curl_multi_setopt(ups->multi, CURLMOPT_MAXCONNECTS, IDLE_CONNECTIONS_MAX) != CURLM_OK)
        return err_nomem(err, 1);
    *out = steal(&ups);
    return 0;
}

int upstreams_start(struct upstreams *ups, struct err *err)
{
    sigset_t all, before;
    int rc;

    REQUIRE(!ups->running);
    /* Signals are for the main thread. A blocked SIGPIPE is also what makes CURLOPT_NOSIGNAL safe with OpenSSL. */
    sigfillset(&all);
    REQUIRE(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
    rc = pthread_create(&ups->thread, NULL, upstream_engine_main, ups);
    REQUIRE(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    if (rc != 0)
        return err_sys(err, rc, "cannot start the upstream thread");
    ups->running = true;
    pthread_setname_np(ups->thread, "upstream");
    return 0;
}

void upstreams_stop(struct upstreams *ups)
{
    lock_take(&ups->lock);
    ups->stopping = true;
    lock_give(&ups->lock);
    if (ups->running) {
        curl_multi_wakeup(ups->multi);
        REQUIRE(pthread_join(ups->thread, NULL) == 0);
        ups->running = false;
    } else {
        /* Never started: the engine finds `stopping` set, ends what waits and returns. */
        upstream_engine_main(ups);
    }
    for (size_t i = 0; i < ups->count; i++)
        account_stop(ups->list[i]->account);
}

void upstreams_free(struct upstreams *ups)
{
    if (ups == NULL)
        return;
    REQUIRE(ups->magic == UPSTREAMS_MAGIC && !ups->running && ups->inbox_first == NULL && ups->active == NULL);
    if (ups->multi != NULL)
        curl_multi_cleanup(ups->multi);
    tokens_release(ups);
    curl_global_cleanup();
    for (size_t i = 0; i < ups->count; i++)
        upstream_free(ups->list[i]);
    free(ups->list);
    http_proxy_env_free(ups->proxy_env);
    free(ups->auth_file);
    free(ups->user_agent);
    lock_release(&ups->lock);
    ups->magic = 0;
    free(ups);
}

void upstreams_counts(struct upstreams *ups, struct upstream_counts *out)
{
    out->requests = atomic_load(&ups->requests);
    out->bytes = atomic_load(&ups->bytes);
    out->errors = atomic_load(&ups->errors);
}

/* ---- exchanges and the inbox -------------------------------------------------------------------------------------- */

/* What ends in a request line or a header must not be able to start another one. */
static bool printable(const char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text <= 0x20 || (unsigned char)*text == 0x7f)
            return false;
    return true;
}

static bool one_line(const char *text)
{
    for (; *text != '\0'; text++)
        if (((unsigned char)*text < 0x20 && *text != '\t') || (unsigned char)*text == 0x7f)
            return false;
    return true;
}

/* "/v2/library/alpine/manifests/3.20" -> "repository:library/alpine:pull". NULL for paths outside repositories. */
static int scope_of(const char *path, char **out, struct err *err)
{
    static const char *const kinds[] = {"manifests", "blobs", "tags", "referrers"};
    const char *name = path + strlen("/v2/");
    const char *end = path + strcspn(path, "?");
    const char *last = memrchr(path, '/', (size_t)(end - path));
    const char *kind = last > path ? memrchr(path, '/', (size_t)(last - path)) : NULL;

    *out = NULL;
    if (strncmp(path, "/v2/", strlen("/v2/")) != 0 || kind == NULL || kind <= name)
        return 0;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (strlen(kinds[i]) == (size_t)(last - kind - 1) && memcmp(kind + 1, kinds[i], strlen(kinds[i])) == 0 &&
            oci_name_valid(name, (size_t)(kind - name)))
            return str_printf(out, err, "repository:%.*s:pull", (int)(kind - name), name);
    return 0;
}

/* What can be released at once, whatever fails later. */
static void exchange_prepare(struct exchange *x, const struct exchange_ops *ops, struct upstreams *ups,
                             const struct upstream *up)
{
    x->magic = EXCHANGE_MAGIC;
    x->ops = ops;
    x->ups = ups;
    x->up = up;
    atomic_init(&x->refs, 1);
    head_parser_reset(&x->parser);
}

static int make_label(struct exchange *x, struct err *err)
{
    return str_printf(&x->label, err, "%s %.*s",
                      x->head_only      ? "HEAD"
                      : x->form != NULL ? "POST"
                                        : "GET",
                      (int)strcspn(x->url, "?"), x->url);
}

int exchange_init(struct exchange *x, const struct exchange_ops *ops, struct upstreams *ups,
                  const struct upstream_request *req, struct err *err)
{
    exchange_prepare(x, ops, ups, req->up);
    x->head_only = req->head;
    x->at = req->first;
    if (req->path[0] != '/' || !printable(req->path) || strlen(req->path) > UPSTREAM_URL_MAX_BYTES / 2)
        return err_set(err, ERR_FORMAT, "not a path for an upstream");
    if (req->accept != NULL && !one_line(req->accept))
        return err_set(err, ERR_FORMAT, "not a value for Accept");
    TRY(str_printf(&x->url, err, "%s%s", req->up->url, req->path));
    TRY(make_label(x, err));
    TRY(scope_of(req->path, &x->scope, err));
    return str_dup(req->accept, &x->accept, err);
}

int exchange_init_url(struct exchange *x, const struct exchange_ops *ops, struct upstreams *ups,
                      const struct upstream *up, char **url, struct err *err)
{
    exchange_prepare(x, ops, ups, up);
    x->kind = EXCHANGE_FETCH;
    x->url = steal(url);
    return make_label(x, err);
}

void exchange_ref(struct exchange *x)
{
    REQUIRE(atomic_fetch_add(&x->refs, 1) > 0);
}

void exchange_unref(struct exchange *x)
{
    unsigned before = atomic_fetch_sub(&x->refs, 1);

    REQUIRE(before > 0);
    if (before > 1)
        return;
    REQUIRE(x->easy == NULL && x->headers == NULL && x->awaited == NULL);
    head_parser_reset(&x->parser);
    free(x->target);
    free(x->url);
    free(x->accept);
    free(x->label);
    free(x->scope);
    x->magic = 0;
    x->ops->free(x);
}

/* Under the lock; takes the inbox's reference. True when the thread may be asleep. */
static bool enqueue(struct upstreams *ups, struct exchange *x, unsigned want)
{
    bool was_empty = ups->inbox_first == NULL;

    x->wants |= want;
    if (x->in_inbox)
        return false;
    exchange_ref(x);
    x->in_inbox = true;
    x->inbox_next = NULL;
    *ups->inbox_end = x;
    ups->inbox_end = &x->inbox_next;
    return was_empty;
}

int upstreams_submit(struct upstreams *ups, struct exchange *x, struct err *err)
{
    bool wake = false;
    bool stopping;

    if (ups->offline)
        return err_set(err, ERR_UPSTREAM, "%s: recask is offline", x->label);
    tls_files_refresh(x->up->tls, x->up->name);
    lock_take(&ups->lock);
    stopping = ups->stopping;
    if (!stopping)
        wake = enqueue(ups, x, WANT_START);
    lock_give(&ups->lock);
    if (stopping)
        return err_set(err, ERR_CANCELLED, "%s: recask is stopping", x->label);
    if (wake)
        curl_multi_wakeup(ups->multi);
    return 0;
}

void upstreams_tell(struct upstreams *ups, struct exchange *x, enum exchange_want want)
{
    bool wake = false;

    lock_take(&ups->lock);
    if (!ups->stopping) /* else the thread ends all exchanges, or has done so and is gone */
        wake = enqueue(ups, x, want);
    lock_give(&ups->lock);
    if (wake)
        curl_multi_wakeup(ups->multi);
}

struct exchange *upstreams_next(struct upstreams *ups, unsigned *out_wants, bool *out_stopping)
{
    struct exchange *x;

    lock_take(&ups->lock);
    *out_stopping = ups->stopping;
    x = ups->inbox_first;
    if (x != NULL) {
        ups->inbox_first = x->inbox_next;
        if (ups->inbox_first == NULL)
            ups->inbox_end = &ups->inbox_first;
        x->in_inbox = false;
        *out_wants = x->wants;
        x->wants = 0;
    }
    lock_give(&ups->lock);
    return x;
}
