/* SPDX-License-Identifier: Apache-2.0
 * config/load.c - the order of the layers: defaults, file, environment, flags, then the checks across keys. */
#include "config/config_internal.h"
#include "config/value.h"

#include "base/buf.h"
#include "base/fsutil.h"

#include <unistd.h>

#define ROOT_STORE "/var/lib/recask"

int config_blame(const struct loader *l, const struct key *k, enum origin from, const char *shown, struct err *err)
{
    if (from == FROM_FILE)
        return err_wrap(err, "%s: %s", l->file, shown);
    if (from == FROM_ENV)
        return err_wrap(err, "%s", k->doc.env);
    if (from == FROM_FLAG)
        return err_wrap(err, "%s", k->doc.flag);
    return err_wrap(err, "%s", shown);
}

const char *config_getenv(const char *const *env, const char *name)
{
    size_t len = strlen(name);

    for (; env != NULL && *env != NULL; env++) {
        /* Empty counts as unset: compose files and unit files pass variables on that nobody has filled. */
        if (strncmp(*env, name, len) == 0 && (*env)[len] == '=' && (*env)[len + 1] != '\0')
            return *env + len + 1;
    }
    return NULL;
}

static bool is_empty(const char *const *env, const char *name)
{
    size_t len = strlen(name);

    for (; env != NULL && *env != NULL; env++) {
        if (strncmp(*env, name, len) == 0 && strcmp(*env + len, "=") == 0)
            return true;
    }
    return false;
}

/* ---- texts: variables and flags -------------------------------------------------------------------------------- */

/* One item of a list: its main value, which may have the item's name in front. */
static int add_item_text(struct config *cfg, const struct key *k, const char *text, struct err *err)
{
    const char *scheme = strstr(text, "://"), *equals = strchr(text, '=');
    CLEANUP(free_ptr) char *name = NULL;
    void *item = NULL;

    TRY(config_list_room(k, cfg, err));
    TRY(config_list_add(k, cfg, &item, err));
    if (k->list->name_to != NULL && equals != NULL && (scheme == NULL || equals < scheme)) {
        TRY(str_printf(&name, err, "%.*s", (int)(equals - text), text));
        TRY(config_set_text(config_key_find(k->list->name_to), item, name, err));
        text = equals + 1;
    }
    return config_set_text(config_key_find(k->list->text_to), item, text, err);
}

static int add_items_text(struct config *cfg, const struct key *k, const char *text, struct err *err)
{
    for (const char *p = text;;) {
        size_t len = strcspn(p, ",");
        CLEANUP(free_ptr) char *item = NULL;

        TRY(str_printf(&item, err, "%.*s", (int)len, p));
        TRY(add_item_text(cfg, k, item, err));
        if (p[len] == '\0')
            return 0;
        p += len + 1;
    }
}

int config_read_text(struct loader *l, const struct key *k, const char *text, struct err *err)
{
    enum origin *origin = &l->origin[k - config_keys];
    int rc;

    if (k->type == KEY_LIST) {
        if (*origin != l->from)
            config_list_clear(k, l->cfg);
        rc = add_items_text(l->cfg, k, text, err);
    } else {
        rc = config_set_text(k, l->cfg, text, err);
    }
    *origin = l->from;
    return rc < 0 ? config_blame(l, k, l->from, k->doc.path, err) : 0;
}

/* Variables that begin with RECASK_ and are no key's are left alone: in a Kubernetes namespace with a service called
 * recask every container gets RECASK_PORT, RECASK_SERVICE_HOST and more. (So no key may be called `port`.) */
static int read_env(struct loader *l, const char *const *env, struct err *err)
{
    for (size_t i = 0; i < config_key_count; i++) {
        const struct key *k = &config_keys[i];
        const char *text = k->doc.env != NULL ? config_getenv(env, k->doc.env) : NULL;

        if (text != NULL)
            TRY(config_read_text(l, k, text, err));
        else if (k->guards && k->doc.env != NULL && is_empty(env, k->doc.env))
            return err_set(err, ERR_USAGE, "%s: is set, but empty; unset it to do without", k->doc.env);
    }
    return 0;
}

static int read_flag(struct loader *l, const struct config_flag *flag, struct err *err)
{
    if (strcmp(flag->name, "--config") == 0)
        return 0;
    for (size_t i = 0; i < config_key_count; i++) {
        const struct key *k = &config_keys[i];

        if (k->doc.flag != NULL && strcmp(k->doc.flag, flag->name) == 0)
            return config_read_text(l, k, flag->value, err);
    }
    return err_set(err, ERR_USAGE, "unknown flag %s", config_show(flag->name).s);
}

static const char *choose_file(const struct config_source *src)
{
    const char *file = src->file;

    for (size_t i = 0; i < src->flag_count; i++) {
        if (strcmp(src->flags[i].name, "--config") == 0)
            file = src->flags[i].value;
    }
    return file != NULL ? file : config_getenv(src->env, "RECASK_CONFIG");
}

/* ---- the whole ------------------------------------------------------------------------------------------------- */

static int read_file(struct loader *l, const struct config_source *src, struct err *err)
{
    CLEANUP(buf_release) struct buf text = BUF_INIT(CONFIG_FILE_MAX_BYTES);

    l->from = FROM_FILE;
    if (src->text != NULL)
        return config_read_file(l, src->text, src->text_len, err);
    if (fs_read_file(l->file, CONFIG_FILE_MAX_BYTES, &text, err) < 0)
        return err_wrap(err, "configuration file");
    return config_read_file(l, text.data != NULL ? text.data : "", text.len, err);
}

int config_load(const struct config_source *src, struct config **out, struct err *err)
{
    CLEANUP(config_cleanup) struct config *cfg = calloc(1, sizeof *cfg);
    struct loader l = {.cfg = cfg, .file = choose_file(src)};

    if (cfg == NULL)
        return err_nomem(err, sizeof *cfg);
    TRY(config_set_defaults(NULL, cfg, err));
    if (l.file != NULL)
        TRY(read_file(&l, src, err));
    l.from = FROM_ENV;
    TRY(read_env(&l, src->env, err));
    l.from = FROM_FLAG;
    for (size_t i = 0; i < src->flag_count; i++)
        TRY(read_flag(&l, &src->flags[i], err));
    TRY(config_finish(&l, src->env, err));
    *out = steal(&cfg);
    return 0;
}

void config_free(struct config *c)
{
    if (c == NULL)
        return;
    config_release_fields(NULL, c);
    free(c);
}

void config_cleanup(struct config **c)
{
    config_free(*c);
    *c = NULL;
}

int config_store_path(const char *flag, const char *const *env, char **out, struct err *err)
{
    const char *dir = flag != NULL ? flag : config_getenv(env, "RECASK_STORE");

    if (dir != NULL) {
        if (config_text_check(dir, err) < 0)
            return err_wrap(err, "%s", flag != NULL ? "--store" : "RECASK_STORE");
        return str_dup(dir, out, err);
    }
    if (geteuid() == 0)
        return str_dup(ROOT_STORE, out, err);
    dir = config_getenv(env, "XDG_DATA_HOME");
    if (dir != NULL && dir[0] == '/') /* the specification says to ignore relative ones */
        return str_printf(out, err, "%s/recask", dir);
    dir = config_getenv(env, "HOME");
    if (dir != NULL && dir[0] == '/')
        return str_printf(out, err, "%s/.local/share/recask", dir);
    return err_set(err, ERR_USAGE, "no place for the store: HOME is not set; say --store DIR");
}
