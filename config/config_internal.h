/* SPDX-License-Identifier: Apache-2.0
 * config/config_internal.h - the table of keys and the loader that walks it. */
#pragma once

#include "config/config.h"

/* How a key's value is read, and the type of the field that it fills. */
enum key_type {
    KEY_OBJECT,      /* holds the keys below it; no field */
    KEY_LISTENERS,   /* the list listen */
    KEY_UPSTREAMS,   /* the list upstreams */
    KEY_TEXT,        /* char * */
    KEY_NAME,        /* char *, an upstream's name */
    KEY_ADDRESS,     /* char * */
    KEY_ADDRESS_OFF, /* char *, NULL for "off" */
    KEY_URL,         /* char * */
    KEY_TEXTS,       /* struct config_strings */
    KEY_SIZE,        /* uint64_t, bytes; at least min */
    KEY_QUOTA,       /* struct config_quota; at least min bytes */
    KEY_DURATION,    /* int64_t, ms; a multiple of min */
    KEY_INT,         /* int64_t, min to max */
    KEY_BOOL,        /* bool */
    KEY_CHOICE,      /* an enum whose first word in `arg` has the value min */
};

struct key {
    struct config_key doc;
    enum key_type type;
    size_t off; /* in struct config, struct config_listen or struct config_upstream, as the path begins */
    int64_t min, max;
};

#define KEYS_MAX 48

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

/* Reads one text value into its field of base (which k->off counts from). */
MUST_CHECK int config_set_text(const struct key *k, void *base, const char *text, struct err *err);
/* A list's next item, with defaults. ERR_LIMIT. */
MUST_CHECK int config_add_listen(struct config *cfg, struct config_listen **out, struct err *err);
MUST_CHECK int config_add_upstream(struct config *cfg, struct config_upstream **out, struct err *err);
MUST_CHECK int config_strings_add(struct config_strings *list, const char *text, struct err *err);
void config_clear_listen(struct config *cfg);
void config_clear_upstreams(struct config *cfg);
MUST_CHECK int config_set_defaults(const char *prefix, void *base, struct err *err);

MUST_CHECK int config_read_file(struct loader *l, const char *text, size_t len, struct err *err);
/* One flag or variable: a value, or for a list an item more (commas between several). */
MUST_CHECK int config_read_text(struct loader *l, const struct key *k, const char *text, struct err *err);
MUST_CHECK int config_finish(struct loader *l, const char *const *env, struct err *err);

const char *config_getenv(const char *const *env, const char *name); /* NULL when absent or empty */
