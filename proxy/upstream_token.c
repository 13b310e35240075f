/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_token.c - the token dance: 401 with a Bearer challenge, a token from the service that it names, the request
 * again with the token, and later requests of the repository with it at once.
 *
 * A token is kept per (upstream, "repository:NAME:pull"), never wider: with another repository's token Docker Hub answers 401
 * (case 60). The scope is ours and not the challenge's, so that no registry can have us ask for more than we need; the
 * challenge gives the realm, which realm_check() allows or not, and the service.
 *
 * A fetch is an exchange of its own, with the time limits and tries of all others (U6: one per token; those who want the
 * token meanwhile wait for it as its askers). Its end only marks the askers: exchange_tick() sends them on, so that no
 * exchange ends inside another's end. A fetch goes on when its askers have gone; the next one will want the token.
 *
 * A failed fetch forgets the token and its realm. The next request goes without and gets the registry's current challenge:
 * a registry may have stopped to ask for tokens or moved its service.
 */
#include "proxy/upstream_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "oci/token.h"
#include "proxy/auth_challenge.h"
#include "proxy/upstream_realm.h"

#include <inttypes.h>

#define BACKOFF_FIRST_MS 100 /* like calls: someone waits */
#define SKEW_MAX_MS 10000    /* a token is renewed so long before its end, or a tenth of its life */

struct token {
    struct token *next;
    const struct upstream *up;
    char *scope;
    char *realm, *service; /* of the last challenge; never NULL in the list */
    struct secret value;   /* not set: to be fetched */
    uint64_t serial;       /* of the value; no two values of any tokens have the same */
    int64_t refresh_ms, expires_ms;
    struct fetch *fetch;     /* NULL: none is running */
    struct exchange *askers; /* not empty only while a fetch runs */
};

struct fetch {
    struct exchange x; /* first */
    struct token *token;
    struct buf body;
    struct oci_token got;
    int64_t started_ms;
};

/* ---- the tokens --------------------------------------------------------------------------------------------------- */

static void token_free(struct token *t)
{
    if (t == NULL)
        return;
    REQUIRE(t->fetch == NULL && t->askers == NULL);
    secret_release(&t->value);
    free(t->scope);
    free(t->realm);
    free(t->service);
    free(t);
}

static void token_cleanup(struct token **t)
{
    token_free(*t);
    *t = NULL;
}

static void forget(struct upstreams *ups, struct token *t)
{
    struct token **p = &ups->tokens;

    while (*p != t)
        p = &(*p)->next;
    *p = t->next;
    ups->token_count--;
    token_free(t);
}

/* The last one used first, so that those in use are found at once and those that nobody uses are at the end. */
static struct token *find(struct upstreams *ups, const struct upstream *up, const char *scope)
{
    for (struct token **p = &ups->tokens; *p != NULL; p = &(*p)->next) {
        struct token *t = *p;

        if (t->up != up || strcmp(t->scope, scope) != 0)
            continue;
        *p = t->next;
        t->next = ups->tokens;
        ups->tokens = t;
        return t;
    }
    return NULL;
}

static void make_room(struct upstreams *ups)
{
    struct token *oldest = NULL;

    if (ups->token_count < UPSTREAM_TOKENS_MAX)
        return;
    for (struct token *t = ups->tokens; t != NULL; t = t->next)
        if (t->fetch == NULL)
            oldest = t;
    if (oldest != NULL) /* else as many fetches run as there are exchanges, which someone else limits */
        forget(ups, oldest);
}

static int get(struct exchange *x, struct token **out, struct err *err)
{
    CLEANUP(token_cleanup) struct token *t = NULL;
    struct upstreams *ups = x->ups;

    *out = find(ups, x->up, x->scope);
    if (*out != NULL)
        return 0;
    t = calloc(1, sizeof *t);
    if (t == NULL)
        return err_nomem(err, sizeof *t);
    t->up = x->up;
    TRY(str_dup(x->scope, &t->scope, err));
    make_room(ups);
    t->next = ups->tokens;
    ups->tokens = t;
    ups->token_count++;
    *out = steal(&t);
    return 0;
}

void tokens_release(struct upstreams *ups)
{
    while (ups->tokens != NULL)
        forget(ups, ups->tokens);
}

static void take_value(struct upstreams *ups, struct token *t, struct fetch *f)
{
    int64_t life_ms = f->got.lifetime_s * 1000;
    int64_t skew_ms = life_ms / 10 < SKEW_MAX_MS ? life_ms / 10 : SKEW_MAX_MS;

    secret_move(&t->value, &f->got.token);
    t->serial = ++ups->token_serial;
    t->expires_ms = f->started_ms + life_ms;
    t->refresh_ms = t->expires_ms - skew_ms;
    log_event(LOG_DEBUG, "upstream.token", "upstream=%s scope=%s lifetime_s=%" PRId64, log_quote(t->up->name).s,
              t->scope, f->got.lifetime_s);
}

/* ---- a fetch ------------------------------------------------------------------------------------------------------ */

static int fetch_head(struct exchange *x, struct err *err)
{
    struct fetch *f = (struct fetch *)x;
    const struct upstream_head *h = &x->parser.head;

    if (h->status == 206)
        return err_set(err, ERR_UPSTREAM, "a partial answer");
    if (h->has_length && h->length_bytes > f->body.limit_bytes)
        return err_set(err, ERR_LIMIT, "an answer of %" PRIu64 " bytes", h->length_bytes);
    buf_reset(&f->body);
    return 0;
}

static int fetch_body(struct exchange *x, const void *data, size_t len, struct err *err)
{
    struct fetch *f = (struct fetch *)x;

    return buf_add(&f->body, data, len, err);
}

static int fetch_complete(struct exchange *x, struct err *err)
{
    struct fetch *f = (struct fetch *)x;

    if (oci_token_parse(f->body.data != NULL ? f->body.data : "", f->body.len, clock_wall_s(), &f->got, err) < 0)
        return err_wrap(err, "%s", x->label);
    return 0;
}

static int fetch_refused(struct exchange *x UNUSED)
{
    return STEP_MORE;
}

/* Each hop has to belong to the upstream, or the first one could be the way to anywhere. */
static int fetch_redirected(struct exchange *x, const char *to, struct err *err)
{
    return realm_check(x->up->name, x->up->url, to, err);
}

/* What to tell those who asked for an image: that its token service knows no such page is not that there is no image, and
 * that its reply is no JSON not that they sent something wrong. */
static enum err_code code_for_askers(int code)
{
    switch ((enum err_code)code) {
    case ERR_NOTFOUND:
    case ERR_FORMAT:
    case ERR_LIMIT:
    case ERR_CORRUPT:
    case ERR_UNSUPPORTED:
    case ERR_USAGE:
        return ERR_UPSTREAM;
    case ERR_TIMEOUT:
    case ERR_CANCELLED:
    case ERR_BUSY:
    case ERR_THROTTLED:
    case ERR_UPSTREAM:
    case ERR_DENIED:
    case ERR_NOSPC:
    case ERR_NOMEM:
    case ERR_IO:
    case ERR_BUG:
        break;
    }
    return (enum err_code)code;
}

/* Marks the askers; exchange_tick() does the rest. */
static void answer_askers(struct token *t, const struct err *err, int retry_after_s)
{
    while (t->askers != NULL) {
        struct exchange *x = t->askers;

        token_leave(x);
        if (err->code == 0)
            continue;
        err_clear(&x->fatal);
        err_set(&x->fatal, code_for_askers(err->code), "upstream %s, no token for %s: %s", t->up->name, t->scope,
                err->msg);
        x->parser.head.retry_after_s = retry_after_s;
    }
}

static void fetch_end(struct exchange *x, const struct err *err)
{
    struct fetch *f = (struct fetch *)x;
    struct token *t = f->token;
    bool usable = secret_is_set(&t->value) && clock_mono_ms() < t->expires_ms;
    struct err none = ERR_INIT;

    t->fetch = NULL;
    if (err->code == 0) {
        take_value(x->ups, t, f);
        answer_askers(t, &none, -1);
    } else if (usable) {
        t->refresh_ms = t->expires_ms; /* the renewal came early; the old one will do until its end */
        answer_askers(t, &none, -1);
    } else {
        answer_askers(t, err, x->parser.head.retry_after_s);
        forget(x->ups, t);
    }
}

static void fetch_free(struct exchange *x)
{
    struct fetch *f = (struct fetch *)x;

    secret_wipe(f->body.data, f->body.cap);
    buf_release(&f->body);
    oci_token_release(&f->got);
    free(f);
}

static const struct exchange_ops fetch_ops = {
    .backoff_ms = BACKOFF_FIRST_MS,
    .head = fetch_head,
    .body = fetch_body,
    .complete = fetch_complete,
    .refused = fetch_refused,
    .redirected = fetch_redirected,
    .end = fetch_end,
    .free = fetch_free,
};

/* The realm may have a query of its own. */
static int fetch_url(const struct token *t, char **out, struct err *err)
{
    int len = (int)strcspn(t->realm, "#");
    char *service = curl_easy_escape(NULL, t->service, 0);
    char *scope = curl_easy_escape(NULL, t->scope, 0);
    int rc;

    if (service == NULL || scope == NULL)
        rc = err_nomem(err, strlen(t->service) + strlen(t->scope));
    else
        rc = str_printf(out, err, "%.*s%c%s%s%sscope=%s", len, t->realm, memchr(t->realm, '?', (size_t)len) ? '&' : '?',
                        service[0] != '\0' ? "service=" : "", service, service[0] != '\0' ? "&" : "", scope);
    curl_free(service);
    curl_free(scope);
    return rc;
}

/* May have ended, well or badly, when it returns. */
static int fetch_start(struct upstreams *ups, struct token *t, struct err *err)
{
    CLEANUP(free_ptr) char *url = NULL;
    struct fetch *f;
    int rc;

    TRY(fetch_url(t, &url, err));
    f = calloc(1, sizeof *f);
    if (f == NULL)
        return err_nomem(err, sizeof *f);
    buf_init(&f->body, OCI_TOKEN_REPLY_MAX_BYTES);
    f->token = t;
    f->started_ms = clock_mono_ms();
    rc = exchange_init_url(&f->x, &fetch_ops, ups, t->up, &url, err);
    if (rc == 0) {
        t->fetch = f;
        exchange_begin(&f->x);
    }
    exchange_unref(&f->x);
    return rc;
}

/* ---- for the exchanges -------------------------------------------------------------------------------------------- */

static void ask(struct exchange *x, struct token *t)
{
    x->awaited = t;
    x->asker_next = t->askers;
    x->asker_link = &t->askers;
    if (x->asker_next != NULL)
        x->asker_next->asker_link = &x->asker_next;
    t->askers = x;
}

void token_leave(struct exchange *x)
{
    if (x->awaited == NULL)
        return;
    *x->asker_link = x->asker_next;
    if (x->asker_next != NULL)
        x->asker_next->asker_link = x->asker_link;
    x->awaited = NULL;
}

int token_want(struct exchange *x, struct err *err)
{
    struct token *t = x->scope != NULL ? find(x->ups, x->up, x->scope) : NULL;

    if (t == NULL || (t->fetch == NULL && secret_is_set(&t->value) && clock_mono_ms() < t->refresh_ms))
        return 0;
    ask(x, t);
    if (t->fetch == NULL && fetch_start(x->ups, t, err) < 0) {
        token_leave(x);
        return err->code;
    }
    return STEP_WAIT;
}

int token_header(struct exchange *x, struct curl_slist **list, struct err *err)
{
    struct token *t = find(x->ups, x->up, x->scope);
    CLEANUP(free_ptr) char *line = NULL;
    struct curl_slist *longer;

    if (t == NULL || !secret_is_set(&t->value))
        return 0;
    TRY(str_printf(&line, err, "Authorization: Bearer %s", secret_text(&t->value)));
    longer = curl_slist_append(*list, line);
    secret_wipe(line, strlen(line));
    if (longer == NULL)
        return err_nomem(err, t->value.len);
    *list = longer;
    x->token_serial = t->serial;
    return 0;
}

static int denied(const struct exchange *x, const struct err *why, struct err *err)
{
    return err_set(err, ERR_DENIED, "%s: status 401%s%s", x->label, why->code != 0 ? ", " : "", why->msg);
}

static void replace_text(char **field, char **with, struct secret *value)
{
    if (*field != NULL && strcmp(*field, *with) == 0)
        return;
    secret_release(value); /* another service's token is another token */
    free(*field);
    *field = steal(with);
}

/* Takes note of what the challenge says. A realm that does not belong to the upstream is never even looked up. */
static int note_challenge(struct exchange *x, struct token **out, struct err *err)
{
    CLEANUP(free_ptr) char *realm = NULL;
    CLEANUP(free_ptr) char *service = NULL;
    const char *text = x->parser.challenge;
    struct auth_challenge c;
    struct err why = ERR_INIT;

    if (text == NULL || auth_challenge_find(text, strlen(text), "Bearer", &c, &why) < 0)
        return denied(x, &why, err);
    if (realm_check(x->up->name, x->up->url, c.realm, err) < 0)
        return err_wrap(err, "%s", x->label);
    TRY(str_dup(c.realm, &realm, err));
    TRY(str_dup(c.service, &service, err));
    TRY(get(x, out, err)); /* last: a token that is listed has both */
    replace_text(&(*out)->realm, &realm, &(*out)->value);
    replace_text(&(*out)->service, &service, &(*out)->value);
    return 0;
}

int token_refused(struct exchange *x, struct err *err)
{
    struct err why = ERR_INIT;
    struct token *t = NULL;

    if (++x->refusals > UPSTREAM_REFUSALS_MAX)
        return denied(x, &why, err);
    TRY(note_challenge(x, &t, err));
    /* Someone else has met the same 401 and brought a new token meanwhile. */
    if (secret_is_set(&t->value) && t->serial != x->token_serial)
        return 0;
    if (x->token_asked)
        return denied(x, &why, err);
    x->token_asked = true;
    secret_release(&t->value); /* so that token_want() fetches another */
    return 0;
}

void token_accepted(struct exchange *x)
{
    x->refusals = 0;
    x->token_asked = false;
}
