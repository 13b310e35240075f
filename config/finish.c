/* SPDX-License-Identifier: Apache-2.0
 * config/finish.c - what can be said only once every layer has been read: lists that nobody set, references from one
 * key to another. Upstreams: upstreams.c. */
#include "config/config_internal.h"
#include "config/value.h"

#include "base/buf.h"

enum origin config_origin(const struct loader *l, const char *path)
{
    return l->origin[config_key_find(path) - config_keys];
}

int config_blame_item(const struct loader *l, const char *list, size_t i, const char *field, struct err *err)
{
    const struct key *k = config_key_find(list);
    char shown[96];

    snprintf(shown, sizeof shown, "%s[%zu].%s", list, i, field);
    return config_blame(l, k, l->origin[k - config_keys], shown, err);
}

static int fill_list(struct loader *l, const char *path, struct err *err)
{
    const struct key *k = config_key_find(path);

    if (config_list_count(k, l->cfg) > 0)
        return 0;
    l->from = FROM_DEFAULT;
    return config_read_text(l, k, k->doc.fallback, err);
}

static int check_listen(const struct loader *l, size_t i, struct err *err)
{
    const struct config *cfg = l->cfg;
    const struct config_listen *at = &cfg->listen[i];

    for (size_t j = 0; j < i; j++) {
        if (config_address_same(at->address, cfg->listen[j].address)) {
            err_set(err, ERR_USAGE, "%s is in the list twice", at->address);
            return config_blame_item(l, "listen", i, "address", err);
        }
    }
    if (at->upstream != NULL && config_find_upstream(cfg, at->upstream, strlen(at->upstream)) == NULL) {
        config_no_such_upstream(cfg, at->upstream, err);
        return config_blame_item(l, "listen", i, "upstream", err);
    }
    if (cfg->admin != NULL && config_address_same(cfg->admin, at->address)) {
        const struct key *k = config_key_find("admin");

        err_set(err, ERR_USAGE, "%s is also an address of listen", cfg->admin);
        return config_blame(l, k, config_origin(l, "admin"), k->doc.path, err);
    }
    return 0;
}

/* A rule that can never match is a mistake: whom it was to let in stays out, and nobody knows why. Where a variable or a
 * flag has replaced the file's upstreams, its rules may be about some that are not there. */
static int check_repository(const struct config *cfg, const char *pattern, struct err *err)
{
    size_t len = strcspn(pattern, "/");
    const struct config_upstream *up = config_find_upstream(cfg, pattern, len);
    CLEANUP(free_ptr) char *name = NULL;

    if (strcmp(pattern, "*") == 0)
        return 0;
    TRY(str_printf(&name, err, "%.*s", (int)len, pattern));
    if (up == NULL)
        return config_no_such_upstream(cfg, name, err);
    if (strcmp(up->name, name) != 0)
        return err_set(err, ERR_USAGE, "%s: rules want the name of the upstream: say %s%s", config_show(pattern).s,
                       up->name, pattern + len);
    if (up->add_library && strcmp(pattern + len, "/*") != 0 && strchr(pattern + len + 1, '/') == NULL)
        return err_set(err, ERR_USAGE, "%s: did you mean %s/library%s?", config_show(pattern).s, up->name,
                       pattern + len);
    return 0;
}

static int check_rules(const struct loader *l, struct err *err)
{
    const struct config_auth *auth = &l->cfg->auth;
    char field[32];

    for (size_t i = 0; i < auth->rule_count; i++) {
        for (size_t j = 0; j < auth->rules[i].repositories.count; j++) {
            if (check_repository(l->cfg, auth->rules[i].repositories.v[j], err) == 0)
                continue;
            snprintf(field, sizeof field, "repositories[%zu]", j);
            return config_blame_item(l, "auth.rules", i, field, err);
        }
    }
    return 0;
}

/* `auth` that is there and asks for no password is a mistake which would open the door to all. */
static int check_auth(const struct loader *l, struct err *err)
{
    const struct key *k = config_key_find("auth.htpasswd");

    if (config_origin(l, "auth") != FROM_DEFAULT && l->cfg->auth.htpasswd == NULL) {
        err_set(err, ERR_USAGE, "is missing");
        return config_blame(l, k, FROM_FILE, k->doc.path, err);
    }
    return config_origin(l, "upstreams") <= config_origin(l, "auth.rules") ? check_rules(l, err) : 0;
}

int config_finish(struct loader *l, const char *const *env, struct err *err)
{
    struct config *cfg = l->cfg;

    TRY(fill_list(l, "listen", err));
    if (cfg->known_upstreams == CONFIG_OFF)
        TRY(fill_list(l, "upstreams", err));
    TRY(config_finish_upstreams(l, err));
    for (size_t i = 0; i < cfg->listen_count; i++)
        TRY(check_listen(l, i, err));
    TRY(check_auth(l, err));
    if (cfg->store_path == NULL)
        TRY(config_store_path(NULL, env, &cfg->store_path, err));
    return 0;
}
