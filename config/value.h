/* SPDX-License-Identifier: Apache-2.0
 * config/value.h - the forms that a value of the configuration may take, text to number and checked text.
 *
 * Every parser takes a whole NUL-terminated text and fails with ERR_USAGE and a message that says what is wanted and
 * shows what was given; the caller puts the place in front (err_wrap). Threads: pure.
 */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Outside text for a message: in double quotes, control bytes escaped, cut when long; by value. */
struct config_shown {
    char s[96];
};
struct config_shown config_show(const char *text);

/* "500MB", "10GiB", "1.5TiB", "4096": bytes. KB is 1000 bytes, KiB 1024; "10G" is refused, since it could be either. */
MUST_CHECK int config_size_parse(const char *text, uint64_t *out_bytes, struct err *err);

/* "250ms", "60s", "5m", "12h", "7d"; a number alone is refused. */
MUST_CHECK int config_duration_parse(const char *text, int64_t *out_ms, struct err *err);

MUST_CHECK int config_percent_parse(const char *text, unsigned *out, struct err *err); /* "80%", 1..100 */
MUST_CHECK int config_int_parse(const char *text, int64_t min, int64_t max, int64_t *out, struct err *err);
MUST_CHECK int config_bool_parse(const char *text, bool *out, struct err *err); /* true false yes no on off 1 0 */

/* words: "auto|original|zstd"; *out is the place of the word in it, from 0. */
MUST_CHECK int config_choice_parse(const char *text, const char *words, int *out, struct err *err);

/* "127.0.0.1:5000", "[::1]:5000", "localhost:5000" (becomes 127.0.0.1). Port 0 picks one. *out: the caller frees. */
MUST_CHECK int config_address_parse(const char *text, char **out, struct err *err);

/* True when both name one socket: the same text, and the port not 0. */
bool config_address_same(const char *a, const char *b);

struct config_url {
    char *url;  /* without the slashes at its end */
    char *name; /* host, and port when the URL has one: "ghcr.io", "127.0.0.1:5001"; lower case */
};

/* http:// or https://, host, optional port and path; no credentials, query or fragment. Nothing is resolved. */
MUST_CHECK int config_url_parse(const char *text, struct config_url *out, struct err *err);
void config_url_release(struct config_url *u);

/* "http://host:3128", https:// or socks5h://, which resolves names there; *out "": "off". The caller frees. A proxy's port
 * is not guessed: browsers and libraries differ there. No credentials. */
MUST_CHECK int config_proxy_parse(const char *text, char **out, struct err *err);

/* The name of an upstream: what stands first in REGISTRY/library/alpine. */
MUST_CHECK int config_name_check(const char *text, struct err *err);

MUST_CHECK int config_text_check(const char *text, struct err *err); /* not empty, no control bytes, at most 4095 */

/* A user of a registry or of a htpasswd file: text without a colon, which ends the name in HTTP Basic (RFC 7617). */
MUST_CHECK int config_user_check(const char *text, struct err *err);

/* docker-credential-NAME without that prefix (a-z 0-9 . -), or an absolute path. */
MUST_CHECK int config_helper_check(const char *text, struct err *err);

/* "docker.io/library/alpine", "ghcr.io/acme/" and a star for all below, a star alone for all. */
MUST_CHECK int config_repository_check(const char *text, struct err *err);
