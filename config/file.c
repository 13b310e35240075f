/* SPDX-License-Identifier: Apache-2.0
 * config/file.c - the JSON file against the table of keys: every key must be known, every value is checked.
 *
 * Two paths travel together: the table's ("upstreams[].url") finds the key, the one shown to people has the indexes
 * ("upstreams[1].url"). */
#include "config/config_internal.h"
#include "config/nearest.h"
#include "config/value.h"

#include "base/buf.h"

#include <jansson.h>

#define PATH_BYTES 128 /* the table's paths are shorter; unknown keys are never put together */

static void json_free(json_t **v)
{
    json_decref(*v);
    *v = NULL;
}

static int load_object(struct loader *l, const char *prefix, const char *shown, void *base, json_t *object,
                       struct err *err);

/* ---- unknown keys ---------------------------------------------------------------------------------------------- */

static bool is_sibling(const char *path, const char *prefix)
{
    size_t len = strlen(prefix);

    return strncmp(path, prefix, len) == 0 && strpbrk(path + len, ".[") == NULL;
}

static const char *leaf(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot != NULL ? dot + 1 : path;
}

static int unknown_key(const struct loader *l, const char *prefix, const char *shown, const char *name, struct err *err)
{
    struct nearest siblings = NEAREST_INIT(name), leaves = NEAREST_INIT(name);
    const char *elsewhere = NULL;

    for (size_t i = 0; i < config_key_count; i++) {
        const char *path = config_keys[i].doc.path;

        if (is_sibling(path, prefix))
            nearest_try(&siblings, leaf(path));
        else
            nearest_try(&leaves, leaf(path));
        if (elsewhere == NULL && (strcmp(leaf(path), name) == 0 || strcmp(path, name) == 0))
            elsewhere = path;
    }
    if (nearest_best(&siblings) != NULL)
        err_set(err, ERR_USAGE, "unknown key %s; did you mean \"%s\"?", config_show(name).s, nearest_best(&siblings));
    else if (elsewhere != NULL)
        err_set(err, ERR_USAGE, "unknown key %s here; its place is %s", config_show(name).s, elsewhere);
    else
        err_set(err, ERR_USAGE, "unknown key %s (recask config --help lists them)", config_show(name).s);
    if (*shown == '\0')
        return err_wrap(err, "%s", l->file);
    return err_wrap(err, "%s: %.*s", l->file, (int)strlen(shown) - 1, shown); /* without the dot */
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

static const char *kind_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    case JSON_NULL:
        return "null";
    }
    return "something else";
}

/* What a key of this type wants to see in the file. */
static const char *wanted(enum key_type type)
{
    switch (type) {
    case KEY_OBJECT:
        return "an object";
    case KEY_LISTENERS:
        return "a list of objects such as {\"address\": \"127.0.0.1:5000\"}";
    case KEY_UPSTREAMS:
        return "a list of objects such as {\"name\": \"ghcr.io\", \"url\": \"https://ghcr.io\"}";
    case KEY_TEXTS:
        return "a list of strings";
    case KEY_SIZE:
    case KEY_QUOTA:
        return "a string such as \"10GiB\" or a number of bytes";
    case KEY_DURATION:
        return "a string such as \"60s\"";
    case KEY_INT:
        return "a whole number";
    case KEY_BOOL:
        return "true or false";
    case KEY_TEXT:
    case KEY_NAME:
    case KEY_ADDRESS:
    case KEY_ADDRESS_OFF:
    case KEY_URL:
    case KEY_CHOICE:
        break;
    }
    return "a string";
}

static int wrong_kind(const struct key *k, const json_t *v, struct err *err)
{
    return err_set(err, ERR_USAGE, "wants %s, not %s", wanted(k->type), kind_of(v));
}

static int set_scalar(const struct key *k, void *base, const json_t *v, struct err *err)
{
    char digits[32];

    switch (k->type) {
    case KEY_BOOL:
        if (!json_is_boolean(v))
            return wrong_kind(k, v, err);
        return config_set_text(k, base, json_is_true(v) ? "true" : "false", err);
    case KEY_INT:
    case KEY_SIZE:
    case KEY_QUOTA:
        if (json_is_integer(v)) {
            snprintf(digits, sizeof digits, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
            return config_set_text(k, base, digits, err);
        }
        if (k->type == KEY_INT || !json_is_string(v))
            return wrong_kind(k, v, err);
        return config_set_text(k, base, json_string_value(v), err);
    case KEY_OBJECT:
    case KEY_LISTENERS:
    case KEY_UPSTREAMS:
    case KEY_TEXTS:
        return err_set(err, ERR_BUG, "%s is not one value", k->doc.path);
    case KEY_TEXT:
    case KEY_NAME:
    case KEY_ADDRESS:
    case KEY_ADDRESS_OFF:
    case KEY_URL:
    case KEY_DURATION:
    case KEY_CHOICE:
        break;
    }
    if (!json_is_string(v))
        return wrong_kind(k, v, err);
    return config_set_text(k, base, json_string_value(v), err);
}

static int add_item(struct loader *l, const struct key *k, void **out_item, struct err *err)
{
    struct config_listen *listen;
    struct config_upstream *up;

    if (k->type == KEY_LISTENERS) {
        TRY(config_add_listen(l->cfg, &listen, err));
        *out_item = listen;
    } else {
        TRY(config_add_upstream(l->cfg, &up, err));
        *out_item = up;
    }
    return 0;
}

static int load_list(struct loader *l, const struct key *k, const json_t *list, struct err *err)
{
    char prefix[PATH_BYTES], shown[PATH_BYTES];
    size_t i;
    json_t *v;

    snprintf(prefix, sizeof prefix, "%s[].", k->doc.path);
    json_array_foreach(list, i, v)
    {
        void *item = NULL;

        snprintf(shown, sizeof shown, "%s[%zu]", k->doc.path, i);
        if (!json_is_object(v)) {
            err_set(err, ERR_USAGE, "wants an object, not %s", kind_of(v));
            return config_blame(l, k, FROM_FILE, shown, err);
        }
        if (add_item(l, k, &item, err) < 0)
            return config_blame(l, k, FROM_FILE, shown, err);
        snprintf(shown, sizeof shown, "%s[%zu].", k->doc.path, i);
        TRY(load_object(l, prefix, shown, item, v, err));
    }
    return 0;
}

static int load_strings(struct loader *l, const struct key *k, const char *shown, void *base, const json_t *list,
                        struct err *err)
{
    char place[PATH_BYTES];
    size_t i;
    json_t *v;

    json_array_foreach(list, i, v)
    {
        snprintf(place, sizeof place, "%s[%zu]", shown, i);
        if (!json_is_string(v)) {
            err_set(err, ERR_USAGE, "wants a string, not %s", kind_of(v));
            return config_blame(l, k, FROM_FILE, place, err);
        }
        if (config_set_text(k, base, json_string_value(v), err) < 0)
            return config_blame(l, k, FROM_FILE, place, err);
    }
    return 0;
}

/* Remembers the first key whose feature comes later. `false` and [] ask for nothing. */
static int note_later(struct loader *l, const struct key *k, const char *shown, const json_t *v, struct err *err)
{
    if (!k->doc.later || l->cfg->unsupported != NULL || json_is_false(v) ||
        (json_is_array(v) && json_array_size(v) == 0))
        return 0;
    return str_printf(&l->cfg->unsupported, err, "%s: %s", l->file, shown);
}

static int load_value(struct loader *l, const struct key *k, const char *shown, void *base, json_t *v, struct err *err)
{
    char prefix[PATH_BYTES], below[PATH_BYTES];
    bool is_list = k->type == KEY_LISTENERS || k->type == KEY_UPSTREAMS || k->type == KEY_TEXTS;

    l->origin[k - config_keys] = FROM_FILE;
    TRY(note_later(l, k, shown, v, err));
    if ((is_list && !json_is_array(v)) || (k->type == KEY_OBJECT && !json_is_object(v))) {
        wrong_kind(k, v, err);
        return config_blame(l, k, FROM_FILE, shown, err);
    }
    if (k->type == KEY_OBJECT) {
        snprintf(prefix, sizeof prefix, "%s.", k->doc.path);
        snprintf(below, sizeof below, "%s.", shown);
        return load_object(l, prefix, below, base, v, err);
    }
    if (k->type == KEY_TEXTS)
        return load_strings(l, k, shown, base, v, err);
    if (is_list)
        return load_list(l, k, v, err);
    if (set_scalar(k, base, v, err) < 0)
        return config_blame(l, k, FROM_FILE, shown, err);
    return 0;
}

static int load_object(struct loader *l, const char *prefix, const char *shown, void *base, json_t *object,
                       struct err *err)
{
    const char *name;
    json_t *v;

    json_object_foreach(object, name, v)
    {
        char path[PATH_BYTES], place[PATH_BYTES];
        const struct key *k = NULL;

        /* A dot in a name must not reach the table: "store.path" is not the path of store. */
        if (strpbrk(name, ".[]") == NULL && (size_t)snprintf(path, sizeof path, "%s%s", prefix, name) < sizeof path)
            k = config_key_find(path);
        if (k == NULL)
            return unknown_key(l, prefix, shown, name, err);
        snprintf(place, sizeof place, "%s%s", shown, name);
        TRY(load_value(l, k, place, base, v, err));
    }
    return 0;
}

int config_read_file(struct loader *l, const char *text, size_t len, struct err *err)
{
    json_error_t at;
    CLEANUP(json_free) json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &at);

    if (root == NULL)
        return err_set(err, ERR_USAGE, "%s: line %d, column %d: %.200s", l->file, at.line < 1 ? 1 : at.line,
                       at.column < 1 ? 1 : at.column, at.text);
    if (!json_is_object(root))
        return err_set(err, ERR_USAGE, "%s: wants a JSON object {...}, not %s", l->file, kind_of(root));
    return load_object(l, "", "", l->cfg, root, err);
}
