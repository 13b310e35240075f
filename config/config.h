/* SPDX-License-Identifier: Apache-2.0
 * config/config.h - what the user wants: file, environment and flags become one immutable, validated struct config.
 *
 * Use: config_load -> read the fields -> config_free. Only cli/ includes this: every module has its own options
 *      (cli/cmd_serve.c translates).
 * Precedence: flags, environment (RECASK_...), file, defaults; a list (listen, upstreams) is replaced as a whole.
 * Errors: ERR_USAGE names where and what: `config.json: upstreams[1].url: ...`, `RECASK_QUOTA: ...`, `--quota: ...`; a
 *      syntax error names line and column. ERR_NOTFOUND, ERR_IO: the file itself.
 * Threads: loading is for one thread; the result may be read by any.
 */
#pragma once

#include "base/err.h"
#include "base/log.h"

#include <stdbool.h>
#include <stdint.h>

#define CONFIG_LISTEN_MAX 16
#define CONFIG_UPSTREAMS_MAX 256 /* of a user's; the known ones come on top */
#define CONFIG_RULES_MAX 1024
#define CONFIG_FILE_MAX_BYTES (1u << 20)

/* The order of the words in the keys' table. UNSET: only in a listener, which then follows the global view. */
enum config_view {
    CONFIG_VIEW_UNSET = 0,
    CONFIG_VIEW_AUTO,
    CONFIG_VIEW_ORIGINAL,
    CONFIG_VIEW_CANONICAL,
    CONFIG_VIEW_ZSTD,
};
enum config_link { CONFIG_LINK_LAN = 0, CONFIG_LINK_WAN };
enum config_originals { CONFIG_ORIGINALS_AUTO = 0, CONFIG_ORIGINALS_KEEP, CONFIG_ORIGINALS_DROP };
enum config_signed { CONFIG_SIGNED_ORIGINAL = 0, CONFIG_SIGNED_REWRITE };

struct config_strings {
    char **v; /* NULL when empty; else a NULL stands behind the last one */
    size_t count;
};

struct config_listen {
    char *address;
    enum config_view view;
    enum config_link link;
    char *upstream;                     /* NULL: by ns=, path or default */
    char *tls_cert_file, *tls_key_file; /* both or none */
};

struct config_upstream {
    char *name;
    char *url;
    struct config_strings aliases;
    bool add_library;   /* docker.io */
    bool known;         /* one of the built-in list */
    int64_t tag_ttl_ms; /* 0: the global one */
    char *username, *password_file;
    char *credential_helper;
    struct config_strings token_realms;
    char *ca_file, *cert_file, *key_file;
    bool insecure;
    char *http_proxy;                  /* NULL: the environment's; "": none ("off") */
    int64_t max_connections, max_rate; /* 0: default, no limit */
};

/* One rule of `auth.rules`: these users may read these repositories. */
struct config_rule {
    struct config_strings users;        /* names; "*": everybody with a password, "anonymous": those without too */
    struct config_strings repositories; /* "docker.io/library/alpine", "ghcr.io/acme/<star>", "<star>" */
};

struct config_auth {
    char *htpasswd; /* NULL: nobody needs a password */
    struct config_rule *rules;
    size_t rule_count; /* 0: whoever has a password may read all */
};

enum config_upstream_404 { CONFIG_UPSTREAM_404_SERVE = 0, CONFIG_UPSTREAM_404_DROP };
enum config_upstream_error { CONFIG_UPSTREAM_ERROR_404 = 0, CONFIG_UPSTREAM_ERROR_503 };
enum config_switch { CONFIG_ON = 0, CONFIG_OFF };

struct config_quota {
    uint64_t bytes;   /* 0: */
    unsigned percent; /* of the file system */
};

struct config {
    struct config_listen *listen; /* at least one */
    size_t listen_count;
    char *admin; /* NULL: no TCP port */
    char *store_path;
    struct config_quota quota;
    int64_t zstd_level;
    enum config_originals originals;
    struct config_upstream *upstreams; /* at least one; names and aliases are unique */
    size_t upstream_count;
    char *default_upstream; /* the name of one of them */
    enum config_view view;  /* never UNSET */
    enum config_signed signed_images;
    enum log_level log_level;
    uint64_t max_layer_bytes;
    int64_t max_ratio;
    bool offline;
    int64_t tag_ttl_ms, negative_ttl_ms, stale_wait_ms, stop_timeout_ms;
    enum config_switch known_upstreams; /* ON: the built-in list is behind `upstreams` */
    enum config_upstream_404 on_upstream_404;
    enum config_upstream_error on_upstream_error;
    char *auth_file; /* docker's config.json; NULL: none */
    struct config_auth auth;
    struct {
        int64_t connect_ms, stall_ms, request_ms, blob_ms; /* of transfers from upstreams */
        int64_t header_ms, idle_ms;                        /* of clients */
    } timeouts;
    uint64_t maintenance_rate; /* bytes per second; 0: no limit */
    int64_t scrub_every_ms;     /* 0: never by itself */
    int64_t connections, connections_per_client; /* per listener; per_client 0: no limit */
    enum config_switch access_log;
};

/* ---- loading --------------------------------------------------------------------------------------------------- */

/* One flag as given: {"--quota", "10GiB"}; a switch has the value "true". */
struct config_flag {
    const char *name, *value;
};

struct config_source {
    const char *file; /* NULL: RECASK_CONFIG, or none */
    const char *text; /* when set, the contents of `file`, which is not read then */
    size_t text_len;
    const char *const *env; /* "NAME=value"..., NULL-terminated; NULL: none */
    const struct config_flag *flags;
    size_t flag_count;
};

MUST_CHECK int config_load(const struct config_source *src, struct config **out, struct err *err);
void config_free(struct config *c);
void config_cleanup(struct config **c);

/* The store of a client command: flag (may be NULL), RECASK_STORE, then the default of `serve`. The caller frees. */
MUST_CHECK int config_store_path(const char *flag, const char *const *env, char **out, struct err *err);

/* ---- files that it names --------------------------------------------------------------------------------------- */

struct config_file {
    const char *place; /* "upstreams[1].password_file" */
    const char *path;  /* as it was given */
    bool secret;       /* holds a password or a private key, which is nothing for others to read */
};

/* Calls fn for each, in the order of the keys, until it returns less than 0. */
typedef int config_file_fn(void *arg, const struct config_file *f, struct err *err);
MUST_CHECK int config_files(const struct config *c, config_file_fn *fn, void *arg, struct err *err);

/* ERR_NOTFOUND, ERR_IO: recask cannot read it. *out_exposed: it is secret, and its mode lets others at it. Nothing is read. */
MUST_CHECK int config_file_check(const struct config_file *f, bool *out_exposed, struct err *err);

/* ---- the keys, for --help and documentation --------------------------------------------------------------------- */

struct config_key {
    const char *path;     /* "store.quota", "upstreams[].url" */
    const char *arg;      /* what its value is: "SIZE", "auto|original", "{...}"; NULL: true or false */
    const char *fallback; /* the default as text; NULL: none */
    const char *flag;     /* "--quota" or NULL */
    const char *env;      /* "RECASK_QUOTA" or NULL */
    const char *help;     /* one line */
    bool repeats;         /* the flag may be given several times; the variable takes a list with commas */
};

/* NULL behind the last one. */
const struct config_key *config_key_at(size_t i);
