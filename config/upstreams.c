/* SPDX-License-Identifier: Apache-2.0
 * config/upstreams.c - the list of upstreams once every layer has been read: names and aliases, each once; the known
 * ones behind those of the user; which is the default.
 *
 * A known upstream gives way to whatever the user calls by one of its names, so no message is ever about an item that
 * nobody wrote. */
#include "base/buf.h"
#include "config/config_internal.h"
#include "config/nearest.h"
#include "config/value.h"

#define HUB "docker.io"

/* Other names that images of Docker Hub go by. */
static const char *const hub_aliases[] = {"index.docker.io", "registry-1.docker.io"};

/* They are named as every upstream without a name is. The first one is the default where the user has none. */
static const char *const known_urls[] = {
    "https://registry-1.docker.io", "https://ghcr.io", "https://quay.io",
    "https://registry.k8s.io",      "https://gcr.io",  "https://public.ecr.aws",
    "https://mcr.microsoft.com",
};

static bool is_hub_host(const char *host)
{
    for (size_t i = 0; i < ARRAY_LEN(hub_aliases); i++) {
        if (strcmp(host, hub_aliases[i]) == 0)
            return true;
    }
    return strcmp(host, HUB) == 0;
}

/* up goes by name, by its own or by one of its first `aliases` aliases. */
static bool goes_by(const struct config_upstream *up, const char *name, size_t len, size_t aliases)
{
    if (strlen(up->name) == len && memcmp(up->name, name, len) == 0)
        return true;
    for (size_t i = 0; i < aliases; i++) {
        if (strlen(up->aliases.v[i]) == len && memcmp(up->aliases.v[i], name, len) == 0)
            return true;
    }
    return false;
}

/* Among the first `count` upstreams. */
static const struct config_upstream *find_among(const struct config *cfg, size_t count, const char *name, size_t len)
{
    for (size_t i = 0; i < count; i++) {
        if (goes_by(&cfg->upstreams[i], name, len, cfg->upstreams[i].aliases.count))
            return &cfg->upstreams[i];
    }
    return NULL;
}

const struct config_upstream *config_find_upstream(const struct config *cfg, const char *name, size_t len)
{
    return find_among(cfg, cfg->upstream_count, name, len);
}

int config_no_such_upstream(const struct config *cfg, const char *name, struct err *err)
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

/* ---- one upstream ---------------------------------------------------------------------------------------------- */

/* *out_written: how many of the aliases the user wrote; those that come with a name stand behind them. */
static int name_upstream(struct config_upstream *up, size_t *out_written, struct err *err)
{
    CLEANUP(config_url_release) struct config_url url = {0};

    *out_written = up->aliases.count;
    TRY(config_url_parse(up->url, &url, err));
    if (up->name == NULL && is_hub_host(url.name))
        TRY(str_dup(HUB, &up->name, err));
    else if (up->name == NULL)
        up->name = steal(&url.name);
    up->add_library = is_hub_host(up->name) || (url.name != NULL && is_hub_host(url.name));
    for (size_t i = 0; strcmp(up->name, HUB) == 0 && i < ARRAY_LEN(hub_aliases); i++) {
        if (!goes_by(up, hub_aliases[i], strlen(hub_aliases[i]), *out_written))
            TRY(config_strings_add(&up->aliases, hub_aliases[i], err));
    }
    return 0;
}

static int check_names(const struct loader *l, size_t i, size_t written, struct err *err)
{
    const struct config *cfg = l->cfg;
    const struct config_upstream *up = &cfg->upstreams[i], *other = find_among(cfg, i, up->name, strlen(up->name));
    char field[32] = "name";

    if (other != NULL) {
        err_set(err, ERR_USAGE, "%s names an upstream already (%s)", config_show(up->name).s, other->url);
        return config_blame_item(l, "upstreams", i, field, err);
    }
    for (size_t j = 0; j < up->aliases.count; j++) {
        const char *alias = up->aliases.v[j];

        other = find_among(cfg, i, alias, strlen(alias));
        if (other == NULL && goes_by(up, alias, strlen(alias), j))
            other = up;
        if (other == NULL)
            continue;
        if (j < written)
            snprintf(field, sizeof field, "aliases[%zu]", j);
        if (j < written)
            err_set(err, ERR_USAGE, "%s names an upstream already (%s)", config_show(alias).s, other->url);
        else
            err_set(err, ERR_USAGE, "%s is also called %s, which names an upstream already (%s)",
                    config_show(up->name).s, alias, other->url);
        return config_blame_item(l, "upstreams", i, field, err);
    }
    return 0;
}

static int check_together(const struct loader *l, size_t i, const char *first, const char *first_name,
                          const char *second, const char *second_name, struct err *err)
{
    if ((first == NULL) == (second == NULL))
        return 0;
    err_set(err, ERR_USAGE, "%s and %s go together", first_name, second_name);
    return config_blame_item(l, "upstreams", i, first == NULL ? first_name : second_name, err);
}

static int check_upstream(const struct loader *l, size_t i, size_t written, struct err *err)
{
    const struct config_upstream *up = &l->cfg->upstreams[i];

    TRY(check_names(l, i, written, err));
    TRY(check_together(l, i, up->username, "username", up->password_file, "password_file", err));
    TRY(check_together(l, i, up->cert_file, "cert_file", up->key_file, "key_file", err));
    if (up->credential_helper != NULL && up->username != NULL) {
        err_set(err, ERR_USAGE, "it is either this or username and password_file");
        return config_blame_item(l, "upstreams", i, "credential_helper", err);
    }
    return 0;
}

/* ---- the list -------------------------------------------------------------------------------------------------- */

static int add_known(struct config *cfg, const char *url, struct err *err)
{
    const struct key *list = config_key_find("upstreams");
    struct config_upstream *up;
    bool taken;
    size_t last = cfg->upstream_count, written;
    void *item = NULL;

    TRY(config_list_add(list, cfg, &item, err));
    up = item;
    up->known = true;
    TRY(str_dup(url, &up->url, err));
    TRY(name_upstream(up, &written, err));
    taken = find_among(cfg, last, up->name, strlen(up->name)) != NULL;
    for (size_t i = 0; i < up->aliases.count; i++)
        taken |= find_among(cfg, last, up->aliases.v[i], strlen(up->aliases.v[i])) != NULL;
    if (taken)
        config_list_drop_last(list, cfg);
    return 0;
}

/* unnamed: the upstream that was given without a name, which asks to be the default. A default_upstream of a lower
 * layer gives way to it, and is forgotten when a higher layer's list lacks it. */
static int choose_default(struct loader *l, const char *unnamed, struct err *err)
{
    struct config *cfg = l->cfg;
    const struct config_upstream *found = NULL;
    const struct key *k = config_key_find("default_upstream");
    bool outranked = config_origin(l, "default_upstream") < config_origin(l, "upstreams");
    char *name = NULL;

    if (cfg->default_upstream != NULL) {
        found = config_find_upstream(cfg, cfg->default_upstream, strlen(cfg->default_upstream));
        if (found == NULL && !outranked) {
            config_no_such_upstream(cfg, cfg->default_upstream, err);
            return config_blame(l, k, config_origin(l, "default_upstream"), k->doc.path, err);
        }
    }
    if (found != NULL && !(outranked && (unnamed != NULL || found->known)))
        unnamed = found->name;
    TRY(str_dup(unnamed != NULL ? unnamed : cfg->upstreams[0].name, &name, err));
    free(cfg->default_upstream);
    cfg->default_upstream = name;
    return 0;
}

int config_finish_upstreams(struct loader *l, struct err *err)
{
    struct config *cfg = l->cfg;
    const char *unnamed = NULL;

    for (size_t i = 0; i < cfg->upstream_count; i++) {
        struct config_upstream *up = &cfg->upstreams[i];
        bool has_name = up->name != NULL;
        size_t written = 0;

        TRY(name_upstream(up, &written, err));
        TRY(check_upstream(l, i, written, err));
        if (!has_name && unnamed == NULL)
            unnamed = up->name;
    }
    for (size_t i = 0; cfg->known_upstreams == CONFIG_ON && i < ARRAY_LEN(known_urls); i++)
        TRY(add_known(cfg, known_urls[i], err));
    return choose_default(l, unnamed, err);
}
