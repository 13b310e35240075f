/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_token_internal.h - what upstream_token.c (the dance), upstream_token_list.c (the tokens) and
 * upstream_token_fetch.c (one request to a token service) share. Upstream thread only.
 */
#pragma once

#include "oci/token.h"
#include "proxy/upstream_account.h"
#include "proxy/upstream_internal.h"

struct token {
    struct token *next;
    const struct upstream *up;
    char *scope;           /* "" with Basic: for the whole registry */
    char *realm, *service; /* Bearer: of the last challenge; never NULL in the list */
    bool basic;            /* the value is base64(user:password) */
    struct secret value;   /* not set: to be fetched */
    uint64_t serial;       /* of the value; no two values of any tokens have the same */
    int64_t refresh_ms, expires_ms;
    int64_t refused_ms; /* 0, or when credentials were refused for it: kept without a value, so that no more is asked */
    bool reading;       /* the upstream's credentials are being read for it */
    bool queued;        /* ... have been read; another fetch has to show first whether they are good */
    struct fetch *fetch;     /* NULL: none is running */
    struct exchange *askers; /* not empty only while a read, a fetch or a probe runs */
    struct credential_id id; /* Basic: whose */
    struct exchange *prober; /* Basic: the one exchange that may try credentials of which nothing is known yet */
};

/* upstream_token_list.c */
bool token_is_busy(const struct token *t); /* something goes on that will end with an answer to its askers */
bool token_is_idle(const struct token *t); /* nobody works on it and nobody waits */
struct token *token_find(struct upstreams *ups, const struct upstream *up, const char *scope);
/* Found, or new at the place of an old one that nobody used for long. */
MUST_CHECK int token_get(struct exchange *x, const char *scope, struct token **out, struct err *err);
void token_forget(struct upstreams *ups, struct token *t); /* idle */

/* upstream_token_fetch.c */
/* Asks t's service, as c, or anonymously when that is NULL. May have ended, well or badly, when it returns. */
MUST_CHECK int fetch_start(struct upstreams *ups, struct token *t, const struct credential *c, struct err *err);

/* How it ended; t->fetch is NULL again. got: taken when err->code is 0. id: NULL when it went without credentials. */
struct fetch_result {
    const struct err *err;
    struct oci_token *got;
    int64_t started_ms;
    int retry_after_s;
    const struct credential_id *id;
    int refused_status; /* not 0: the service answered so, and it means the credentials */
};
/* upstream_token.c */
/* Adds "Authorization: SCHEME VALUE". */
MUST_CHECK int token_authorization(struct curl_slist **list, const char *scheme, const struct secret *value,
                                   struct err *err);
void token_fetched(struct upstreams *ups, struct token *t, const struct fetch_result *r);
