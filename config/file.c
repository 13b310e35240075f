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
#include <strings.h>

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

/* What people might call a secret that they put into the file itself. */
static bool is_secret(const char *name)
{
    static const char *const names[] = {"password", "passwd", "pass", "secret", "token", "identitytoken"};

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcasecmp(name, names[i]) == 0)
            return true;
    }
    return false;
}

static int unknown_key(const struct loader *l, const char *prefix, const char *shown, const char *name, struct err *err)
{
    struct nearest siblings = NEAREST_INIT(name);
    const char *elsewhere = NULL;

    for (size_t i = 0; i < config_key_count; i++) {
        const char *path = config_keys[i].doc.path;

        if (is_sibling(path, prefix))
            nearest_try(&siblings, leaf(path));
        if (elsewhere == NULL && (strcmp(leaf(path), name) == 0 || strcmp(path, name) == 0))
            elsewhere = path;
    }
    if (is_secret(name))
        err_set(err, ERR_USAGE,
                "unknown key %s: passwords are not written here but in a file of their own, which "
                "upstreams[].password_file names",
                config_show(name).s);
    else if (nearest_best(&siblings) != NULL)
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

/* What a key wants to see in the file. */
static const char *wanted(const struct key *k)
{
    if (k->many)
        return "a list of strings";
    switch (k->type) {
    case KEY_OBJECT:
        return "an object";
    case KEY_SIZE:
    case KEY_QUOTA:
        return "a string such as \"10GiB\" or a number of bytes";
    case KEY_DURATION:
    case KEY_SECONDS:
        return "a string such as \"60s\"";
    case KEY_INT:
        return "a whole number";
    case KEY_BOOL:
        return "true or false";
    case KEY_LIST:
    case KEY_CHOICE: /* they have more to say */
    case KEY_TEXT:
    case KEY_FILE:
    case KEY_SECRET_FILE:
    case KEY_NAME:
    case KEY_USER:
    case KEY_HELPER:
    case KEY_REPOSITORY:
    case KEY_ADDRESS:
    case KEY_ADDRESS_OFF:
    case KEY_URL:
    case KEY_PROXY:
        break;
    }
    return "a string";
}

static int wrong_kind(const struct key *k, const json_t *v, struct err *err)
{
    if (k->type == KEY_LIST)
        return err_set(err, ERR_USAGE, "wants a list of objects such as %s, not %s", k->list->example, kind_of(v));
    if (k->type == KEY_CHOICE)
        return err_set(err, ERR_USAGE, "wants one of %s as a string, not %s", k->doc.arg, kind_of(v));
    return err_set(err, ERR_USAGE, "wants %s, not %s", wanted(k), kind_of(v));
}

static int set_scalar(const struct key *k, void *base, const json_t *v, struct err *err)
{
    char digits[32];

    if (k->type == KEY_BOOL) {
        if (!json_is_boolean(v))
            return wrong_kind(k, v, err);
        return config_set_text(k, base, json_is_true(v) ? "true" : "false", err);
    }
    /* Of numbers only those that have no unit; 503 is as good as "503". */
    if (json_is_integer(v) &&
        (k->type == KEY_INT || k->type == KEY_SIZE || k->type == KEY_QUOTA || k->type == KEY_CHOICE)) {
        snprintf(digits, sizeof digits, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        return config_set_text(k, base, digits, err);
    }
    if (k->type == KEY_INT || !json_is_string(v))
        return wrong_kind(k, v, err);
    return config_set_text(k, base, json_string_value(v), err);
}

static int load_list(struct loader *l, const struct key *k, const char *shown, void *base, const json_t *list,
                     struct err *err)
{
    char prefix[PATH_BYTES], place[PATH_BYTES];
    size_t i;
    json_t *v;

    snprintf(prefix, sizeof prefix, "%s[].", k->doc.path);
    json_array_foreach(list, i, v)
    {
        void *item = NULL;

        snprintf(place, sizeof place, "%s[%zu]", shown, i);
        if (!json_is_object(v)) {
            err_set(err, ERR_USAGE, "wants an object, not %s", kind_of(v));
            return config_blame(l, k, FROM_FILE, place, err);
        }
        if (config_list_room(k, base, err) < 0 || config_list_add(k, base, &item, err) < 0)
            return config_blame(l, k, FROM_FILE, place, err);
        snprintf(place, sizeof place, "%s[%zu].", shown, i);
        TRY(load_object(l, prefix, place, item, v, err));
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

static int load_value(struct loader *l, const struct key *k, const char *shown, void *base, json_t *v, struct err *err)
{
    char prefix[PATH_BYTES], below[PATH_BYTES];
    bool is_list = k->type == KEY_LIST || k->many;

    l->origin[k - config_keys] = FROM_FILE;
    if ((is_list && !json_is_array(v)) || (k->type == KEY_OBJECT && !json_is_object(v))) {
        wrong_kind(k, v, err);
        return config_blame(l, k, FROM_FILE, shown, err);
    }
    /* Of a list of objects an empty one could mean none or the default: nobody should have to know. */
    if (is_list && json_array_size(v) == 0 && (k->type == KEY_LIST || k->needed)) {
        err_set(err, ERR_USAGE, "the list is empty");
        return config_blame(l, k, FROM_FILE, shown, err);
    }
    if (k->type == KEY_OBJECT) {
        snprintf(prefix, sizeof prefix, "%s.", k->doc.path);
        snprintf(below, sizeof below, "%s.", shown);
        return load_object(l, prefix, below, base, v, err);
    }
    if (k->type == KEY_LIST)
        return load_list(l, k, shown, base, v, err);
    if (is_list)
        return load_strings(l, k, shown, base, v, err);
    if (set_scalar(k, base, v, err) < 0)
        return config_blame(l, k, FROM_FILE, shown, err);
    return 0;
}

static int check_needed(const struct loader *l, const char *prefix, const char *shown, const json_t *object,
                        struct err *err)
{
    char place[PATH_BYTES];

    for (size_t i = 0; i < config_key_count; i++) {
        const struct key *k = &config_keys[i];

        if (!k->needed || !is_sibling(k->doc.path, prefix) || json_object_get(object, leaf(k->doc.path)) != NULL)
            continue;
        snprintf(place, sizeof place, "%s%s", shown, leaf(k->doc.path));
        err_set(err, ERR_USAGE, "is missing");
        return config_blame(l, k, FROM_FILE, place, err);
    }
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
    return check_needed(l, prefix, shown, object, err);
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
