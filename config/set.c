/* SPDX-License-Identifier: Apache-2.0
 * config/set.c - one text value into its field, and the items of lists. Every way in (file, variable, flag, default)
 * ends here, so a value is checked the same wherever it comes from. */
#include "base/buf.h"
#include "config/config_internal.h"
#include "config/value.h"

#include <inttypes.h>

/* Fields of enum types are written as int. */
_Static_assert(sizeof(enum config_view) == sizeof(int) && sizeof(enum log_level) == sizeof(int), "enum is not an int");

static int set_string(const struct key *k, char **field, const char *text, struct err *err)
{
    CLEANUP(config_url_release) struct config_url url = {0};
    CLEANUP(free_ptr) char *value = NULL;

    if (k->type == KEY_ADDRESS || (k->type == KEY_ADDRESS_OFF && strcmp(text, "off") != 0)) {
        TRY(config_address_parse(text, &value, err));
    } else if (k->type == KEY_URL) {
        TRY(config_url_parse(text, &url, err));
        value = steal(&url.url);
    } else if (k->type == KEY_NAME) {
        TRY(config_name_check(text, err));
        TRY(str_dup(text, &value, err));
    } else if (k->type == KEY_TEXT) {
        TRY(config_text_check(text, err));
        TRY(str_dup(text, &value, err));
    }
    free(*field);
    *field = steal(&value);
    return 0;
}

static int set_quota(const struct key *k, struct config_quota *q, const char *text, struct err *err)
{
    struct config_quota got = {0};

    if (strchr(text, '%') != NULL)
        TRY(config_percent_parse(text, &got.percent, err));
    else
        TRY(config_size_parse(text, &got.bytes, err));
    if (got.percent == 0 && got.bytes < (uint64_t)k->min)
        return err_set(err, ERR_USAGE, "%s is too small: at least %" PRId64 "KiB", config_show(text).s, k->min >> 10);
    *q = got;
    return 0;
}

static int set_size(const struct key *k, uint64_t *out, const char *text, struct err *err)
{
    uint64_t bytes;

    TRY(config_size_parse(text, &bytes, err));
    if (bytes < (uint64_t)k->min)
        return err_set(err, ERR_USAGE, "%s is too small: at least %" PRId64 "KiB", config_show(text).s, k->min >> 10);
    *out = bytes;
    return 0;
}

static int set_duration(const struct key *k, int64_t *out, const char *text, struct err *err)
{
    int64_t ms;

    TRY(config_duration_parse(text, &ms, err));
    if (ms % k->min != 0)
        return err_set(err, ERR_USAGE, "wants whole seconds, not %s", config_show(text).s);
    if (k->max != 0 && ms > k->max)
        return err_set(err, ERR_USAGE, "%s is too long: at most %" PRId64 "s", config_show(text).s, k->max / 1000);
    *out = ms;
    return 0;
}

static int add_url(struct config_strings *list, const char *text, struct err *err)
{
    CLEANUP(config_url_release) struct config_url url = {0};

    TRY(config_url_parse(text, &url, err));
    return config_strings_add(list, url.url, err);
}

int config_set_text(const struct key *k, void *base, const char *text, struct err *err)
{
    void *field = (char *)base + k->off;
    int word;

    switch (k->type) {
    case KEY_OBJECT:
    case KEY_LISTENERS:
    case KEY_UPSTREAMS:
        return err_set(err, ERR_BUG, "%s has no text form", k->doc.path);
    case KEY_TEXT:
    case KEY_NAME:
    case KEY_ADDRESS:
    case KEY_ADDRESS_OFF:
    case KEY_URL:
        return set_string(k, field, text, err);
    case KEY_TEXTS:
        return add_url(field, text, err);
    case KEY_SIZE:
        return set_size(k, field, text, err);
    case KEY_QUOTA:
        return set_quota(k, field, text, err);
    case KEY_DURATION:
        return set_duration(k, field, text, err);
    case KEY_INT:
        return config_int_parse(text, k->min, k->max, field, err);
    case KEY_BOOL:
        return config_bool_parse(text, field, err);
    case KEY_CHOICE:
        TRY(config_choice_parse(text, k->doc.arg, &word, err));
        word += (int)k->min;
        memcpy(field, &word, sizeof word);
        return 0;
    }
    return err_set(err, ERR_BUG, "%s has no type", k->doc.path);
}

int config_set_defaults(const char *prefix, void *base, struct err *err)
{
    size_t len = strlen(prefix);

    for (size_t i = 0; i < config_key_count; i++) {
        const struct key *k = &config_keys[i];

        if (k->doc.fallback == NULL || k->type == KEY_LISTENERS || k->type == KEY_UPSTREAMS)
            continue;
        if (len > 0 ? strncmp(k->doc.path, prefix, len) == 0 : strstr(k->doc.path, "[]") == NULL)
            TRY(config_set_text(k, base, k->doc.fallback, err));
    }
    return 0;
}

/* ---- lists ----------------------------------------------------------------------------------------------------- */

int config_strings_add(struct config_strings *list, const char *text, struct err *err)
{
    char **grown = realloc(list->v, (list->count + 2) * sizeof *grown);

    if (grown == NULL)
        return err_nomem(err, (list->count + 2) * sizeof *grown);
    list->v = grown;
    list->v[list->count] = NULL;
    TRY(str_dup(text, &list->v[list->count], err));
    list->v[++list->count] = NULL;
    return 0;
}

int config_add_listen(struct config *cfg, struct config_listen **out, struct err *err)
{
    struct config_listen *grown;

    if (cfg->listen_count == CONFIG_LISTEN_MAX)
        return err_set(err, ERR_USAGE, "more than %d listeners", CONFIG_LISTEN_MAX);
    grown = realloc(cfg->listen, (cfg->listen_count + 1) * sizeof *grown);
    if (grown == NULL)
        return err_nomem(err, (cfg->listen_count + 1) * sizeof *grown);
    cfg->listen = grown;
    *out = &cfg->listen[cfg->listen_count++];
    **out = (struct config_listen){0};
    return config_set_defaults("listen[].", *out, err);
}

int config_add_upstream(struct config *cfg, struct config_upstream **out, struct err *err)
{
    struct config_upstream *grown;

    if (cfg->upstream_count == CONFIG_UPSTREAMS_MAX)
        return err_set(err, ERR_USAGE, "more than %d upstreams", CONFIG_UPSTREAMS_MAX);
    grown = realloc(cfg->upstreams, (cfg->upstream_count + 1) * sizeof *grown);
    if (grown == NULL)
        return err_nomem(err, (cfg->upstream_count + 1) * sizeof *grown);
    cfg->upstreams = grown;
    *out = &cfg->upstreams[cfg->upstream_count++];
    **out = (struct config_upstream){.tag_ttl_ms = -1};
    return config_set_defaults("upstreams[].", *out, err);
}

void config_clear_listen(struct config *cfg)
{
    for (size_t i = 0; i < cfg->listen_count; i++) {
        struct config_listen *l = &cfg->listen[i];

        free(l->address);
        free(l->upstream);
        free(l->tls_cert_file);
        free(l->tls_key_file);
    }
    free(cfg->listen);
    cfg->listen = NULL;
    cfg->listen_count = 0;
}

void config_clear_upstreams(struct config *cfg)
{
    for (size_t i = 0; i < cfg->upstream_count; i++) {
        struct config_upstream *u = &cfg->upstreams[i];

        free(u->name);
        free(u->url);
        free(u->username);
        free(u->password_file);
        free(u->ca_file);
        for (size_t j = 0; j < u->token_realms.count; j++)
            free(u->token_realms.v[j]);
        free(u->token_realms.v);
    }
    free(cfg->upstreams);
    cfg->upstreams = NULL;
    cfg->upstream_count = 0;
}
