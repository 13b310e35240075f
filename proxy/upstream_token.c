/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_token.c - the token dance: 401 with a Bearer challenge, a token from the service that it names, the request
 * again with the token, and later requests of the repository with it at once. And Basic, which is a token that needs no
 * service.
 *
 * A token is kept per (upstream, "repository:NAME:pull"), never wider: with another repository's token Docker Hub answers 401
 * (case 60). The scope is ours and not the challenge's, so that no registry can have us ask for more than we need; the
 * challenge gives the realm, which realm_check() allows or not, and the service.
 *
 * An upstream with an account has its credentials read first, elsewhere (upstream_account.c); then a fetch, an exchange of its
 * own with the time limits and tries of all others, brings the token (U6: one per token; those who want the token meanwhile
 * wait for it as its askers). The end of either only marks the askers: exchange_tick() sends them on, so that no exchange ends
 * inside another's end. Both go on when their askers have gone; the next one will want the token.
 *
 * With Basic the registry itself is the judge of the credentials, and fifty requests at once would be fifty wrong passwords:
 * until an answer has shown that they are good, one exchange, the prober, is sent with them, and the others wait as askers
 * (U9). A prober without a verdict passes the task on.
 *
 * A failed fetch forgets the token and its realm. The next request goes without and gets the registry's current challenge:
 * a registry may have stopped to ask for tokens or moved its service. After a refusal the token stays, without a value, for as
 * long as account_check() knows of it: what would be asked is known, and so is the answer.
 */
#include "proxy/upstream_token_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "proxy/auth_challenge.h"
#include "proxy/upstream_realm.h"

#include <inttypes.h>

#define SKEW_MAX_MS 10000      /* a token is renewed so long before its end, or a tenth of its life */
#define BASIC_REFRESH_MS 60000 /* a password file may have changed */
#define BASIC_LIFE_MS 120000   /* ... or be in the middle of that */
#define BASIC_SCOPE ""

/* ---- the tokens --------------------------------------------------------------------------------------------------- */

/* What x is sent with: its repository's token, else the registry's Basic. NULL: neither is known. */
static struct token *wanted(const struct exchange *x)
{
    struct token *t = x->scope != NULL ? token_find(x->ups, x->up, x->scope) : NULL;

    return t != NULL || x->scope == NULL || x->up->account == NULL ? t : token_find(x->ups, x->up, BASIC_SCOPE);
}

static bool has_value(const struct token *t)
{
    return secret_is_set(&t->value) && clock_mono_ms() < t->expires_ms;
}

/* ---- askers and probers ------------------------------------------------------------------------------------------- */

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

static void ask(struct exchange *x, struct token *t)
{
    x->awaited = t;
    x->asker_next = t->askers;
    x->asker_link = &t->askers;
    if (x->asker_next != NULL)
        x->asker_next->asker_link = &x->asker_next;
    t->askers = x;
}

/* x waits no more; exchange_tick() does the rest. */
static void leave(struct exchange *x)
{
    if (x->awaited == NULL)
        return;
    *x->asker_link = x->asker_next;
    if (x->asker_next != NULL)
        x->asker_next->asker_link = x->asker_link;
    x->awaited = NULL;
}

static void turn_away(struct exchange *x, const struct token *t, const struct err *why, int retry_after_s)
{
    leave(x);
    err_clear(&x->fatal);
    if (t->basic)
        err_set(&x->fatal, code_for_askers(why->code), "%s", why->msg);
    else
        err_set(&x->fatal, code_for_askers(why->code), "upstream %s, no token for %s: %s", t->up->name, t->scope,
                why->msg);
    x->parser.head.retry_after_s = retry_after_s;
}

static void turn_all_away(struct token *t, const struct err *why, int retry_after_s)
{
    while (t->askers != NULL)
        turn_away(t->askers, t, why, retry_after_s);
}

static void probe(struct exchange *x, struct token *t)
{
    t->prober = x;
    x->probes = t;
}

/* There is a value: on they go, but for U9 and for those whose scope is known to be refused. */
static void serve_askers(struct token *t)
{
    while (t->askers != NULL) {
        struct exchange *x = t->askers;
        struct err why = ERR_INIT;

        if (t->basic && account_check(t->up->account, &t->id.digest, x->scope, &why) < 0) {
            turn_away(x, t, &why, -1);
            continue;
        }
        if (t->basic && !account_proven(t->up->account, &t->id.digest)) {
            if (t->prober != NULL)
                return;
            probe(x, t);
        }
        leave(x);
    }
}

/* The task is someone else's, if there is a value to try; else x is about to see to another one. */
static void stop_probing(struct exchange *x)
{
    struct token *t = x->probes;

    if (t == NULL)
        return;
    t->prober = NULL;
    x->probes = NULL;
    if (secret_is_set(&t->value) && !token_is_busy(t))
        serve_askers(t);
}

void token_leave(struct exchange *x)
{
    leave(x);
    stop_probing(x);
}

/* ---- getting a value ---------------------------------------------------------------------------------------------- */

static void take_value(struct upstreams *ups, struct token *t, const struct fetch_result *r)
{
    int64_t life_ms = r->got->lifetime_s * 1000;
    int64_t skew_ms = life_ms / 10 < SKEW_MAX_MS ? life_ms / 10 : SKEW_MAX_MS;

    secret_move(&t->value, &r->got->token);
    t->serial = ++ups->token_serial;
    t->refused_ms = 0;
    t->expires_ms = r->started_ms + life_ms;
    t->refresh_ms = t->expires_ms - skew_ms;
    log_event(LOG_DEBUG, "upstream.token", "upstream=%s scope=%s lifetime_s=%" PRId64, log_quote(t->up->name).s,
              t->scope, r->got->lifetime_s);
}

/* No value could be had. A renewal comes early: the old one will do until its end. */
static void fail(struct upstreams *ups, struct token *t, const struct err *err, int retry_after_s)
{
    if (has_value(t)) {
        t->refresh_ms = t->expires_ms;
        serve_askers(t);
        return;
    }
    turn_all_away(t, err, retry_after_s);
    secret_release(&t->value);
    if (token_is_idle(t))
        token_forget(ups, t);
}

/* Those who ask are told at once, for a while. */
static void fail_refused(struct upstreams *ups, struct token *t, const struct err *err)
{
    if (has_value(t)) {
        fail(ups, t, err, -1);
        return;
    }
    secret_release(&t->value);
    if (t->refused_ms == 0)
        t->refused_ms = clock_mono_ms();
    turn_all_away(t, err, -1);
}

static int obtain(struct upstreams *ups, struct token *t, struct err *err)
{
    if (t->up->account == NULL)
        return fetch_start(ups, t, NULL, err);
    TRY(account_read(t->up->account, err));
    t->reading = true;
    return 0;
}

static int use_basic(struct upstreams *ups, struct token *t, const struct credential *c, struct err *err)
{
    if (!secret_is_set(&c->is.password))
        return err_set(err, ERR_DENIED, "upstream %s wants a password, and there is %s for it", t->up->name,
                       secret_is_set(&c->is.identity) ? "an identity token only" : "none");
    TRY(oci_credentials_basic(&c->is, &t->value, err));
    t->id = c->id;
    t->serial = ++ups->token_serial;
    t->refused_ms = 0;
    t->refresh_ms = clock_mono_ms() + BASIC_REFRESH_MS;
    t->expires_ms = clock_mono_ms() + BASIC_LIFE_MS;
    serve_askers(t);
    return 0;
}

/* U9 for token services: a fetch of this upstream is running. */
static bool is_probed(const struct upstreams *ups, const struct upstream *up)
{
    for (const struct token *t = ups->tokens; t != NULL; t = t->next)
        if (t->up == up && t->fetch != NULL)
            return true;
    return false;
}

static int queue(struct token *t)
{
    t->queued = true;
    return 0;
}

/* The credentials have been read. */
static void go_on(struct upstreams *ups, struct token *t)
{
    struct account *a = t->up->account;
    struct err err = ERR_INIT;
    const struct credential *c = account_credential(a, &err);
    bool anonymous = c != NULL && oci_credentials_anonymous(&c->is);
    int rc;

    if (c == NULL) {
        fail(ups, t, &err, -1);
        return;
    }
    if (!anonymous && account_check(a, &c->id.digest, t->scope, &err) < 0) {
        fail_refused(ups, t, &err);
        return;
    }
    if (t->basic)
        rc = use_basic(ups, t, c, &err);
    else if (!anonymous && !account_proven(a, &c->id.digest) && is_probed(ups, t->up))
        rc = queue(t);
    else
        rc = fetch_start(ups, t, anonymous ? NULL : c, &err);
    if (rc < 0)
        fail(ups, t, &err, -1);
}

static void go_on_all(struct upstreams *ups, const struct upstream *up)
{
    struct token *t = ups->tokens;

    for (struct token *q = t; q != NULL; q = q->next) {
        q->reading |= q->queued && q->up == up;
        q->queued &= q->up != up;
    }
    while (t != NULL) {
        if (!t->reading || t->up != up) {
            t = t->next;
            continue;
        }
        t->reading = false;
        go_on(ups, t);
        t = ups->tokens; /* the list may be another one now */
    }
}

void tokens_go_on(struct upstreams *ups)
{
    for (size_t i = 0; i < ups->count; i++)
        if (account_collect(ups->list[i]->account))
            go_on_all(ups, ups->list[i]);
}

/* The service could not be asked: those in the queue need not find that out one after the other. */
static void fail_queue(struct upstreams *ups, const struct token *like, const struct fetch_result *r)
{
    struct token *t = ups->tokens;

    while (t != NULL) {
        if (!t->queued || t->up != like->up || strcmp(t->realm, like->realm) != 0) {
            t = t->next;
            continue;
        }
        t->queued = false;
        fail(ups, t, r->err, r->retry_after_s);
        t = ups->tokens;
    }
}

void token_fetched(struct upstreams *ups, struct token *t, const struct fetch_result *r)
{
    struct account *a = t->up->account;
    struct err why = ERR_INIT;

    account_again(a); /* for those in the queue */
    if (r->refused_status != 0) {
        account_refused(a, r->id, t->scope, "the token service", r->refused_status);
        /* What a helper said some minutes ago may simply be out of date: it is asked again. */
        if (r->id->cached && obtain(ups, t, &why) == 0)
            return;
        err_clear(&why);
        if (account_check(a, &r->id->digest, t->scope, &why) < 0) {
            fail_refused(ups, t, &why);
            return;
        }
    }
    if (r->err->code != 0) {
        fail_queue(ups, t, r);
        fail(ups, t, r->err, r->retry_after_s);
        return;
    }
    if (r->id != NULL)
        account_accepted(a, &r->id->digest);
    take_value(ups, t, r);
    serve_askers(t);
}

/* ---- for the exchanges -------------------------------------------------------------------------------------------- */

static bool is_over(const struct token *t)
{
    return t->refused_ms != 0 && clock_mono_ms() - t->refused_ms >= ACCOUNT_REFUSED_MS && token_is_idle(t);
}

int token_want(struct exchange *x, struct err *err)
{
    struct token *t;
    bool fresh;

    stop_probing(x); /* the try before this one has shown nothing */
    t = wanted(x);
    if (t != NULL && is_over(t)) {
        token_forget(x->ups, t);
        t = NULL;
    }
    if (t == NULL)
        return 0;
    fresh = !token_is_busy(t) && secret_is_set(&t->value) && clock_mono_ms() < t->refresh_ms;
    if (fresh && !t->basic)
        return 0;
    ask(x, t);
    if (fresh) {
        serve_askers(t);
    } else if (!token_is_busy(t) && obtain(x->ups, t, err) < 0) {
        leave(x);
        turn_all_away(t, err, -1);
        return err->code;
    }
    return STEP_WAIT;
}

int token_authorization(struct curl_slist **list, const char *scheme, const struct secret *value, struct err *err)
{
    CLEANUP(free_ptr) char *line = NULL;
    struct curl_slist *longer;

    TRY(str_printf(&line, err, "Authorization: %s %s", scheme, secret_text(value)));
    longer = curl_slist_append(*list, line);
    secret_wipe(line, strlen(line));
    if (longer == NULL)
        return err_nomem(err, value->len);
    *list = longer;
    return 0;
}

int token_header(struct exchange *x, struct curl_slist **list, struct err *err)
{
    struct token *t = wanted(x);

    if (t == NULL || !secret_is_set(&t->value))
        return 0;
    TRY(token_authorization(list, t->basic ? "Basic" : "Bearer", &t->value, err));
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

static bool offers_basic(const struct exchange *x)
{
    const char *text = x->parser.challenge;
    struct auth_challenge c;
    struct err ignored = ERR_INIT;

    return text != NULL && auth_challenge_find(text, strlen(text), "Basic", &c, &ignored) == 0;
}

/* Basic takes the place of a token that the registry does not ask for any more. */
static int note_basic(struct exchange *x, struct token **out, struct err *err)
{
    struct token *bearer;

    TRY(token_get(x, BASIC_SCOPE, out, err));
    (*out)->basic = true;
    bearer = token_find(x->ups, x->up, x->scope);
    if (bearer != NULL && token_is_idle(bearer))
        token_forget(x->ups, bearer);
    return 0;
}

/* Takes note of what the challenge says; Bearer where there is a choice, since its tokens are worth less to a thief. A realm
 * that does not belong to the upstream is never even looked up. */
static int note_challenge(struct exchange *x, struct token **out, struct err *err)
{
    CLEANUP(free_ptr) char *realm = NULL;
    CLEANUP(free_ptr) char *service = NULL;
    const char *text = x->parser.challenge;
    struct auth_challenge c;
    struct err why = ERR_INIT;

    if (text == NULL || auth_challenge_find(text, strlen(text), "Bearer", &c, &why) < 0) {
        if (why.code != ERR_NOTFOUND || !offers_basic(x))
            return denied(x, &why, err);
        if (x->up->account != NULL)
            return note_basic(x, out, err);
        err_clear(&why);
        err_set(&why, ERR_DENIED, "the registry wants a password, and upstream %s has none", x->up->name);
        return denied(x, &why, err);
    }
    if (realm_check(x->up->name, x->up->url, (const char *const *)x->up->token_realms, c.realm, err) < 0)
        return err_wrap(err, "%s", x->label);
    TRY(str_dup(c.realm, &realm, err));
    TRY(str_dup(c.service, &service, err));
    TRY(token_get(x, x->scope, out, err)); /* last: a token that is listed has both */
    replace_text(&(*out)->realm, &realm, &(*out)->value);
    replace_text(&(*out)->service, &service, &(*out)->value);
    return 0;
}

/* The registry does not take them. They are read again once, since a file or a helper may know better by now. */
static int basic_refused(struct exchange *x, struct token *t, struct err *err)
{
    struct account *a = t->up->account;
    bool again = !x->token_asked || t->id.cached;
    struct err why = ERR_INIT;

    account_refused(a, &t->id, x->scope, "the registry", 401);
    if (x->probes == t) { /* passed on to nobody */
        x->probes = NULL;
        t->prober = NULL;
    }
    if (again) {
        x->token_asked = true;
        secret_release(&t->value);
        return 0;
    }
    if (account_check(a, &t->id.digest, BASIC_SCOPE, &why) < 0) {
        secret_release(&t->value);
        fail_refused(x->ups, t, &why);
    } else {
        serve_askers(t);
    }
    if (account_check(a, &t->id.digest, x->scope, err) < 0)
        return err_wrap(err, "%s", x->label);
    return denied(x, &why, err);
}

int token_refused(struct exchange *x, struct err *err)
{
    struct err why = ERR_INIT;
    struct token *t = wanted(x);

    if (t != NULL && t->basic && secret_is_set(&t->value) && t->serial == x->token_serial && offers_basic(x))
        return basic_refused(x, t, err);
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

/* Whether an answer shows that the registry knows us; 403 and 429 may come before it has looked. */
static bool shows_trust(int status)
{
    return status < 500 && status != 401 && status != 403 && status != 407 && status != 429;
}

void token_answered(struct exchange *x)
{
    int status = x->parser.head.status;
    struct token *t;

    if (x->token_serial != 0 && x->up->account != NULL && shows_trust(status)) {
        t = wanted(x);
        if (t != NULL && t->basic && t->serial == x->token_serial)
            account_accepted(t->up->account, &t->id.digest);
        stop_probing(x);
    }
    if (status >= 200 && status <= 299) {
        x->refusals = 0;
        x->token_asked = false;
    }
}
