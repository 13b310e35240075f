/* SPDX-License-Identifier: Apache-2.0
 * config/finish.c - what can be said only once every layer has been read: names of upstreams, duplicates, references
 * from one key to another. */
#include "config/config_internal.h"
#include "config/nearest.h"
#include "config/value.h"

#include "base/buf.h"

#define HUB "docker.io"

/* Other names that images of Docker Hub go by. */
static const char *const hub_aliases[] = {"index.docker.io", "registry-1.docker.io", NULL};

static enum origin origin_of(const struct loader *l, const char *path)
{
    return l->origin[config_key_find(path) - config_keys];
}

/* err is about LIST[i].FIELD, which came from wherever the list came from. */
static int blame_item(const struct loader *l, const char *list, size_t i, const char *field, struct err *err)
{
    const struct key *k = config_key_find(list);
    char shown[64];

    snprintf(shown, sizeof shown, "%s[%zu]%s%s", list, i, *field != '\0' ? "." : "", field);
    return config_blame(l, k, l->origin[k - config_keys], shown, err);
}

/* A list that nobody set gets its default; one that was set may not be empty. */
static int fill_list(struct loader *l, const char *path, size_t count, struct err *err)
{
    const struct key *k = config_key_find(path);

    if (count > 0)
        return 0;
    if (origin_of(l, path) == FROM_DEFAULT) {
        l->from = FROM_DEFAULT;
        return config_read_text(l, k, k->doc.fallback, err);
    }
    err_set(err, ERR_USAGE, "the list is empty");
    return config_blame(l, k, origin_of(l, path), path, err);
}

/* ---- upstreams ------------------------------------------------------------------------------------------------- */

static bool is_hub_host(const char *host)
{
    for (size_t i = 0; hub_aliases[i] != NULL; i++) {
        if (strcmp(host, hub_aliases[i]) == 0)
            return true;
    }
    return strcmp(host, HUB) == 0;
}

static int name_upstream(struct config_upstream *up, struct err *err)
{
    CLEANUP(config_url_release) struct config_url url = {0};

    TRY(config_url_parse(up->url, &url, err));
    if (up->name == NULL && is_hub_host(url.name))
        TRY(str_dup(HUB, &up->name, err));
    else if (up->name == NULL)
        up->name = steal(&url.name);
    up->add_library = is_hub_host(up->name) || (url.name != NULL && is_hub_host(url.name));
    if (strcmp(up->name, HUB) == 0)
        for (size_t i = 0; hub_aliases[i] != NULL; i++)
            TRY(config_strings_add(&up->aliases, hub_aliases[i], err));
    return 0;
}

static bool goes_by(const struct config_upstream *up, const char *name)
{
    if (strcmp(up->name, name) == 0)
        return true;
    for (size_t i = 0; i < up->aliases.count; i++) {
        if (strcmp(up->aliases.v[i], name) == 0)
            return true;
    }
    return false;
}

static const struct config_upstream *find_upstream(const struct config *cfg, const char *name)
{
    for (size_t i = 0; i < cfg->upstream_count; i++) {
        if (goes_by(&cfg->upstreams[i], name))
            return &cfg->upstreams[i];
    }
    return NULL;
}

static int check_upstream(const struct loader *l, size_t i, struct err *err)
{
    const struct config_upstream *up = &l->cfg->upstreams[i];

    for (size_t j = 0; j < i; j++) {
        const struct config_upstream *other = &l->cfg->upstreams[j];

        if (goes_by(other, up->name) || goes_by(up, other->name)) {
            err_set(err, ERR_USAGE, "%s names an upstream already (%s)", config_show(up->name).s, other->url);
            return blame_item(l, "upstreams", i, "name", err);
        }
    }
    if ((up->username == NULL) != (up->password_file == NULL)) {
        err_set(err, ERR_USAGE, "username and password_file go together");
        return blame_item(l, "upstreams", i, up->username != NULL ? "password_file" : "username", err);
    }
    return 0;
}

static int finish_upstreams(struct loader *l, const char **out_default, struct err *err)
{
    struct config *cfg = l->cfg;
    const struct config_upstream *unnamed = NULL;

    for (size_t i = 0; i < cfg->upstream_count; i++) {
        struct config_upstream *up = &cfg->upstreams[i];

        if (up->url == NULL) {
            err_set(err, ERR_USAGE, "is missing");
            return blame_item(l, "upstreams", i, "url", err);
        }
        if (up->name == NULL && unnamed == NULL)
            unnamed = up;
        TRY(name_upstream(up, err));
        TRY(check_upstream(l, i, err));
    }
    *out_default = unnamed != NULL ? unnamed->name : NULL;
    return 0;
}

static int no_such_upstream(const struct config *cfg, const char *name, struct err *err)
{
    struct nearest n = NEAREST_INIT(name);

    for (size_t i = 0; i < cfg->upstream_count; i++)
        nearest_try(&n, cfg->upstreams[i].name);
    if (nearest_best(&n) != NULL)
        return err_set(err, ERR_USAGE, "no upstream is called %s; did you mean \"%s\"?", config_show(name).s,
                       nearest_best(&n));
    return err_set(err, ERR_USAGE, "no upstream is called %s (there is %s%s)", config_show(name).s,
                   cfg->upstreams[0].name, cfg->upstream_count > 1 ? " and others" : "");
}

/* unnamed: the upstream that was given without a name, which asks to be the default. A default_upstream of a lower
 * layer gives way to it, and is forgotten when a higher layer's list lacks it. */
static int choose_default(struct loader *l, const char *unnamed, struct err *err)
{
    struct config *cfg = l->cfg;
    const struct config_upstream *found = NULL;
    const struct key *k = config_key_find("default_upstream");
    bool outranked = origin_of(l, "default_upstream") < origin_of(l, "upstreams");
    char *name = NULL;

    if (cfg->default_upstream != NULL) {
        found = find_upstream(cfg, cfg->default_upstream);
        if (found == NULL && !outranked) {
            no_such_upstream(cfg, cfg->default_upstream, err);
            return config_blame(l, k, origin_of(l, "default_upstream"), k->doc.path, err);
        }
    }
    if (found != NULL && !(outranked && unnamed != NULL))
        unnamed = found->name;
    TRY(str_dup(unnamed != NULL ? unnamed : cfg->upstreams[0].name, &name, err));
    free(cfg->default_upstream);
    cfg->default_upstream = name;
    return 0;
}

/* ---- listeners ------------------------------------------------------------------------------------------------- */

static int check_listen(const struct loader *l, size_t i, struct err *err)
{
    const struct config *cfg = l->cfg;
    const struct config_listen *at = &cfg->listen[i];

    if (at->address == NULL) {
        err_set(err, ERR_USAGE, "is missing");
        return blame_item(l, "listen", i, "address", err);
    }
    for (size_t j = 0; j < i; j++) {
        if (config_address_same(at->address, cfg->listen[j].address)) {
            err_set(err, ERR_USAGE, "%s is in the list twice", at->address);
            return blame_item(l, "listen", i, "address", err);
        }
    }
    if (at->upstream != NULL && find_upstream(cfg, at->upstream) == NULL) {
        no_such_upstream(cfg, at->upstream, err);
        return blame_item(l, "listen", i, "upstream", err);
    }
    if ((at->tls_cert_file == NULL) != (at->tls_key_file == NULL)) {
        err_set(err, ERR_USAGE, "cert_file and key_file go together");
        return blame_item(l, "listen", i, "tls", err);
    }
    if (cfg->admin != NULL && config_address_same(cfg->admin, at->address)) {
        const struct key *k = config_key_find("admin");

        err_set(err, ERR_USAGE, "%s is also an address of listen", cfg->admin);
        return config_blame(l, k, origin_of(l, "admin"), k->doc.path, err);
    }
    return 0;
}

int config_finish(struct loader *l, const char *const *env, struct err *err)
{
    struct config *cfg = l->cfg;
    const char *unnamed = NULL;

    TRY(fill_list(l, "listen", cfg->listen_count, err));
    TRY(fill_list(l, "upstreams", cfg->upstream_count, err));
    TRY(finish_upstreams(l, &unnamed, err));
    TRY(choose_default(l, unnamed, err));
    for (size_t i = 0; i < cfg->listen_count; i++)
        TRY(check_listen(l, i, err));
    if (cfg->store_path == NULL)
        TRY(config_store_path(NULL, env, &cfg->store_path, err));
    return 0;
}
