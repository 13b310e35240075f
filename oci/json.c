/* SPDX-License-Identifier: Apache-2.0
 * oci/json.c - jansson with limits. The depth and the number of values are counted over the raw bytes before jansson
 * sees them: its own depth limit (2048) is fixed when it is compiled, and it has none for memory.
 */
#include "oci/json_internal.h"

#include "oci/oci.h"

/* Only strings need care to count right; text that is not JSON at all is jansson's to refuse. */
static int check_shape(const char *body, size_t len, struct err *err)
{
    bool in_string = false;
    size_t depth = 0;
    size_t values = 0;

    for (size_t i = 0; i < len; i++) {
        char c = body[i];

        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        if (c == '"')
            in_string = true;
        else if (c == '{' || c == '[') {
            depth++;
            values++;
        } else if ((c == '}' || c == ']') && depth > 0)
            depth--;
        else if (c == ',')
            values++;
        if (depth > OCI_JSON_MAX_DEPTH)
            return err_set(err, ERR_LIMIT, "JSON nests deeper than %d", OCI_JSON_MAX_DEPTH);
        if (values > OCI_JSON_MAX_VALUES)
            return err_set(err, ERR_LIMIT, "JSON of more than %u values", OCI_JSON_MAX_VALUES);
    }
    return 0;
}

/* jansson's own text quotes the input, which may be anything: only the place goes into the message. */
static int load_failed(const json_error_t *why, size_t len, struct err *err)
{
    /* Some of jansson's allocation failures leave no trace but an empty text, and those in its lexer look like bad
     * syntax: to tell these apart would take allocation hooks for the whole process. */
    if (json_error_code(why) == json_error_out_of_memory || why->text[0] == '\0')
        return err_nomem(err, len);
    return err_set(err, ERR_FORMAT, "not valid JSON: line %d, column %d", why->line, why->column);
}

/* Recursion is bounded by check_shape(). */
static bool has_real(json_t *v)
{
    const char *key;
    json_t *child;
    size_t i;

    if (json_is_real(v))
        return true;
    json_array_foreach(v, i, child)
    {
        if (has_real(child))
            return true;
    }
    json_object_foreach(v, key, child)
    {
        if (has_real(child))
            return true;
    }
    return false;
}

int oci_json_load(const char *body, size_t len, size_t max_bytes, json_t **out_root, struct oci_json_traits *out_traits,
                  struct err *err)
{
    json_error_t why = {.line = 0};
    CLEANUP(oci_json_free) json_t *root = NULL;

    *out_root = NULL;
    *out_traits = (struct oci_json_traits){.duplicate_keys = false};
    if (len > max_bytes)
        return err_set(err, ERR_LIMIT, "JSON of %zu bytes, the limit is %zu", len, max_bytes);
    TRY(check_shape(body, len, err));
    root = json_loadb(body, len, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL && json_error_code(&why) == json_error_duplicate_key) {
        out_traits->duplicate_keys = true;
        root = json_loadb(body, len, 0, &why);
    }
    if (root == NULL)
        return load_failed(&why, len, err);
    if (!json_is_object(root))
        return err_set(err, ERR_FORMAT, "JSON that is not an object");
    out_traits->non_integers = has_real(root);
    *out_root = steal(&root);
    return 0;
}

struct dump_state {
    struct buf *out;
    struct err *err;
};

static int dump_piece(const char *data, size_t len, void *arg)
{
    struct dump_state *st = arg;

    return buf_add(st->out, data, len, st->err) < 0 ? -1 : 0;
}

int oci_json_dump(const json_t *root, struct buf *out, struct err *err)
{
    struct dump_state st = {.out = out, .err = err};

    buf_reset(out);
    if (json_dump_callback(root, dump_piece, &st, JSON_COMPACT) == 0)
        return 0;
    return err->code < 0 ? err->code : err_nomem(err, out->len);
}

void oci_json_free(json_t **root)
{
    json_decref(*root);
    *root = NULL;
}
