/* SPDX-License-Identifier: Apache-2.0
 * admin/json.c - jansson behind an opaque name. */
#include "admin/json.h"

#include <jansson.h>

/* struct admin_json is never defined: its pointers are jansson's. */
static const json_t *in(const struct admin_json *v)
{
    return (const json_t *)(const void *)v;
}

static const struct admin_json *out_of(const json_t *v)
{
    return (const struct admin_json *)(const void *)v;
}

int admin_json_parse(const char *text, size_t len, struct admin_json **out, struct err *err)
{
    json_error_t at;
    json_t *root = json_loadb(text, len, 0, &at);

    if (root == NULL)
        return err_set(err, ERR_FORMAT, "the answer is not JSON: line %d, column %d: %.200s", at.line, at.column,
                       at.text);
    *out = (struct admin_json *)(void *)root;
    return 0;
}

void admin_json_free(struct admin_json *root)
{
    json_decref((json_t *)(void *)root);
}

void admin_json_cleanup(struct admin_json **root)
{
    admin_json_free(*root);
    *root = NULL;
}

const struct admin_json *admin_json_get(const struct admin_json *object, const char *key)
{
    return out_of(json_object_get(in(object), key));
}

size_t admin_json_count(const struct admin_json *array)
{
    return json_array_size(in(array));
}

const struct admin_json *admin_json_at(const struct admin_json *array, size_t i)
{
    return out_of(json_array_get(in(array), i));
}

const char *admin_json_text(const struct admin_json *object, const char *key)
{
    const char *s = json_string_value(json_object_get(in(object), key));

    return s != NULL ? s : "";
}

uint64_t admin_json_number(const struct admin_json *object, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(in(object), key));

    return n > 0 ? (uint64_t)n : 0;
}

bool admin_json_true(const struct admin_json *object, const char *key)
{
    return json_is_true(json_object_get(in(object), key));
}

bool admin_json_has(const struct admin_json *object, const char *key)
{
    const json_t *v = json_object_get(in(object), key);

    return v != NULL && !json_is_null(v);
}
