/* SPDX-License-Identifier: Apache-2.0
 * config/set.c - one text value into its field, and the items of lists. Every way in (file, variable, flag, default)
 * ends here, so a value is checked the same wherever it comes from. */
#include "base/buf.h"
#include "config/config_internal.h"
#include "config/value.h"

#include <inttypes.h>

/* Fields of enum types are written as int. */
_Static_assert(sizeof(enum config_view) == sizeof(int) && sizeof(enum log_level) == sizeof(int), "enum is not an int");

/* The text of a value in the form that the field keeps. NULL: "off" of an address. */
static int parse_text(enum key_type type, const char *text, char **out, struct err *err)
{
    CLEANUP(config_url_release) struct config_url url = {0};

    if (type == KEY_ADDRESS_OFF && strcmp(text, "off") == 0)
        return 0;
    if (type == KEY_ADDRESS || type == KEY_ADDRESS_OFF)
        return config_address_parse(text, out, err);
    if (type == KEY_PROXY)
        return config_proxy_parse(text, out, err);
    if (type == KEY_URL) {
        TRY(config_url_parse(text, &url, err));
        *out = steal(&url.url);
        return 0;
    }
    if (type == KEY_NAME)
        TRY(config_name_check(text, err));
    else if (type == KEY_USER)
        TRY(config_user_check(text, err));
    else if (type == KEY_HELPER)
        TRY(config_helper_check(text, err));
    else if (type == KEY_REPOSITORY)
        TRY(config_repository_check(text, err));
    else
        TRY(config_text_check(text, err));
    return str_dup(text, out, err);
}

static int set_text(const struct key *k, void *field, const char *text, struct err *err)
{
    CLEANUP(free_ptr) char *value = NULL;
    char **at = field;

    TRY(parse_text(k->type, text, &value, err));
    if (k->many)
        return config_strings_add(field, value, err);
    free(*at);
    *at = steal(&value);
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

/* A limit of a duration, for a message. */
static struct config_shown show_ms(int64_t ms)
{
    struct config_shown out;

    if (ms % 1000 != 0)
        snprintf(out.s, sizeof out.s, "%" PRId64 "ms", ms);
    else
        snprintf(out.s, sizeof out.s, "%" PRId64 "s", ms / 1000);
    return out;
}

static int set_duration(const struct key *k, int64_t *out, const char *text, struct err *err)
{
    int64_t ms;

    TRY(config_duration_parse(text, &ms, err));
    if (k->type == KEY_SECONDS && ms % 1000 != 0)
        return err_set(err, ERR_USAGE, "wants whole seconds, not %s", config_show(text).s);
    if (ms < k->min)
        return err_set(err, ERR_USAGE, "%s is too short: at least %s", config_show(text).s, show_ms(k->min).s);
    if (ms > k->max)
        return err_set(err, ERR_USAGE, "%s is too long: at most %s", config_show(text).s, show_ms(k->max).s);
    *out = ms;
    return 0;
}

static void strings_release(struct config_strings *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->v[i]);
    free(list->v);
}

int config_set_text(const struct key *k, void *base, const char *text, struct err *err)
{
    void *field = (char *)base + k->off;
    int word;

    if (config_key_is_text(k))
        return set_text(k, field, text, err);
    switch (k->type) {
    case KEY_SIZE:
        return set_size(k, field, text, err);
    case KEY_QUOTA:
        return set_quota(k, field, text, err);
    case KEY_DURATION:
    case KEY_SECONDS:
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
    case KEY_OBJECT:
    case KEY_LIST:
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
    return err_set(err, ERR_BUG, "%s has no text form", k->doc.path);
}

int config_set_defaults(const struct key *list, void *base, struct err *err)
{
    for (size_t i = 0; i < config_key_count; i++) {
        const struct key *k = &config_keys[i];

        if (config_key_in(k, list) && k->doc.fallback != NULL && k->type != KEY_LIST)
            TRY(config_set_text(k, base, k->doc.fallback, err));
    }
    return 0;
}

void config_release_fields(const struct key *list, void *base)
{
    for (size_t i = 0; i < config_key_count; i++) {
        const struct key *k = &config_keys[i];
        void *field = (char *)base + k->off;

        if (!config_key_in(k, list))
            continue;
        if (k->type == KEY_LIST)
            config_list_clear(k, base);
        else if (k->many)
            strings_release(field);
        else if (config_key_is_text(k))
            free_ptr(field);
    }
}

/* ---- lists of strings ------------------------------------------------------------------------------------------ */

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

/* ---- lists of objects ------------------------------------------------------------------------------------------ */

static size_t *count_of(const struct key *k, void *base)
{
    return (size_t *)(void *)((char *)base + k->list->count_off);
}

/* The field is a pointer to some struct, which is no void *: so it is copied, not dereferenced. */
static void *items_of(const struct key *k, const void *base)
{
    void *items;

    memcpy(&items, (const char *)base + k->off, sizeof items);
    return items;
}

static void set_items(const struct key *k, void *base, void *items)
{
    memcpy((char *)base + k->off, &items, sizeof items);
}

size_t config_list_count(const struct key *k, const void *base)
{
    return *(const size_t *)(const void *)((const char *)base + k->list->count_off);
}

void *config_list_at(const struct key *k, const void *base, size_t i)
{
    return (char *)items_of(k, base) + i * k->list->item_bytes;
}

int config_list_room(const struct key *k, const void *base, struct err *err)
{
    if (config_list_count(k, base) >= k->list->max)
        return err_set(err, ERR_USAGE, "more than %zu %s", k->list->max, k->list->noun);
    return 0;
}

int config_list_add(const struct key *k, void *base, void **out_item, struct err *err)
{
    size_t *count = count_of(k, base), bytes = (*count + 1) * k->list->item_bytes;
    void *grown = realloc(items_of(k, base), bytes);

    if (grown == NULL)
        return err_nomem(err, bytes);
    set_items(k, base, grown);
    *out_item = config_list_at(k, base, (*count)++);
    memset(*out_item, 0, k->list->item_bytes);
    return config_set_defaults(k, *out_item, err);
}

void config_list_drop_last(const struct key *k, void *base)
{
    size_t *count = count_of(k, base);

    config_release_fields(k, config_list_at(k, base, --*count));
}

void config_list_clear(const struct key *k, void *base)
{
    while (*count_of(k, base) > 0)
        config_list_drop_last(k, base);
    free(items_of(k, base));
    set_items(k, base, NULL);
}
