/* SPDX-License-Identifier: Apache-2.0
 * config/config_internal.h - the table of keys and the loader that walks it. */
#pragma once

#include "config/config.h"

/* How a key's value is read, and the type of the field that it fills. */
enum key_type {
    KEY_OBJECT,      /* holds the keys below it; no field */
    KEY_LIST,        /* a list of objects: a pointer to the items; key.list says more */
    KEY_TEXT,        /* char *; so are all down to KEY_PROXY, or struct config_strings where the key has `many` */
    KEY_FILE,        /* a file that must be readable */
    KEY_SECRET_FILE, /* a file that others should not be able to read, too */
    KEY_NAME,        /* an upstream's name */
    KEY_USER,
    KEY_HELPER,     /* a credential helper: its name or path */
    KEY_REPOSITORY, /* a pattern of repositories */
    KEY_ADDRESS,
    KEY_ADDRESS_OFF, /* NULL for "off" */
    KEY_URL,
    KEY_PROXY,    /* "" for "off" */
    KEY_SIZE,     /* uint64_t, bytes; at least min */
    KEY_QUOTA,    /* struct config_quota; at least min bytes */
    KEY_DURATION, /* int64_t, ms, min to max */
    KEY_SECONDS,  /* the same, but whole seconds */
    KEY_INT,      /* int64_t, min to max */
    KEY_BOOL,     /* bool */
    KEY_CHOICE,   /* an enum whose first word in `arg` has the value min */
};

/* What a list of objects is made of. The keys "PATH[]..." are the fields of its items. */
struct key_list {
    size_t item_bytes;
    size_t count_off; /* of the size_t that counts them, where the pointer to them is counted from */
    size_t max;
    const char *noun;    /* "listeners" */
    const char *example; /* of an item in the file */
    const char *text_to; /* flags and variables: the key of an item that their text is for; NULL: there are none */
    const char *name_to; /* and the key for NAME when NAME= stands in front of that text, or NULL */
};

struct key {
    struct config_key doc;
    enum key_type type;
    size_t off; /* in struct config, or in an item of the list that the path is in */
    int64_t min, max;
    const struct key_list *list;
    bool many;   /* a list of strings */
    bool guards; /* an empty variable, which counts as unset elsewhere, is an error: nobody is let in by accident */
    bool needed; /* where its object is, it is too; a list of strings then has one at least */
};

#define KEYS_MAX 96

extern const struct key config_keys[];
extern const size_t config_key_count;

const struct key *config_key_find(const char *path);

enum origin { FROM_DEFAULT = 0, FROM_FILE, FROM_ENV, FROM_FLAG };

struct loader {
    struct config *cfg;
    const char *file;             /* for messages; NULL when there is none */
    enum origin from;             /* what is being read now */
    enum origin origin[KEYS_MAX]; /* who set each key; of list items, who made the list */
};

/* Puts the place in front of err: the file and `shown` (a path with indexes), the variable or the flag. */
int config_blame(const struct loader *l, const struct key *k, enum origin from, const char *shown, struct err *err);

/* err is about LIST[i].FIELD, which came from wherever the list came from. */
int config_blame_item(const struct loader *l, const char *list, size_t i, const char *field, struct err *err);
enum origin config_origin(const struct loader *l, const char *path);

/* Reads one text value into its field of base (which k->off counts from). */
MUST_CHECK int config_set_text(const struct key *k, void *base, const char *text, struct err *err);
/* The keys right in struct config (list: NULL) or in an item of list: their defaults, their memory. */
MUST_CHECK int config_set_defaults(const struct key *list, void *base, struct err *err);
void config_release_fields(const struct key *list, void *base);

MUST_CHECK int config_strings_add(struct config_strings *list, const char *text, struct err *err);
/* ERR_USAGE: the list is as long as a user may make it. */
MUST_CHECK int config_list_room(const struct key *k, const void *base, struct err *err);
/* A list's next item, with defaults. */
MUST_CHECK int config_list_add(const struct key *k, void *base, void **out_item, struct err *err);
void config_list_drop_last(const struct key *k, void *base);
void config_list_clear(const struct key *k, void *base);
size_t config_list_count(const struct key *k, const void *base);
void *config_list_at(const struct key *k, const void *base, size_t i);

/* True when k is a field of struct config (list: NULL) or of an item of list, and in no list further down. */
bool config_key_in(const struct key *k, const struct key *list);
bool config_key_is_text(const struct key *k); /* char *, or struct config_strings */

MUST_CHECK int config_read_file(struct loader *l, const char *text, size_t len, struct err *err);
/* One flag or variable: a value, or for a list an item more (commas between several). */
MUST_CHECK int config_read_text(struct loader *l, const struct key *k, const char *text, struct err *err);
/* Names, aliases, known upstreams, the default one. */
MUST_CHECK int config_finish_upstreams(struct loader *l, struct err *err);
const struct config_upstream *config_find_upstream(const struct config *cfg, const char *name, size_t len);
int config_no_such_upstream(const struct config *cfg, const char *name, struct err *err);
MUST_CHECK int config_finish(struct loader *l, const char *const *env, struct err *err);

const char *config_getenv(const char *const *env, const char *name); /* NULL when absent or empty */
