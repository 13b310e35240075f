/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_token_fetch.c - one request to a token service: GET, anonymous or with Basic; or, with an identity token,
 * POST (OAuth 2's refresh_token grant, as the distribution project describes it).
 *
 * The exchange's own URL is the realm, so that "the same origin" (U5) is the service's here: what a redirect elsewhere leads to
 * never sees Basic, and a form with an identity token is not redirected at all.
 */
#include "proxy/upstream_token_internal.h"

#include "base/clock.h"
#include "proxy/upstream_realm.h"

#include <inttypes.h>

#define BACKOFF_FIRST_MS 100 /* like calls: someone waits */

struct fetch {
    struct exchange x; /* first */
    struct token *token;
    struct buf body;
    struct oci_token got;
    int64_t started_ms;
    bool with_credentials;
    struct credential_id id;
    struct secret basic, form; /* at most one is set */
    bool presented;            /* the running try has shown them */
};

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
    struct fetch *f = (struct fetch *)x;

    f->presented = false;
    if (secret_is_set(&f->form))
        return err_set(err, ERR_DENIED, "%s: redirected, which an identity token is not", x->label);
    return realm_check(x->up->name, x->up->url, (const char *const *)x->up->token_realms, to, err);
}

/* Called for requests to the realm's own origin only. */
static int fetch_headers(struct exchange *x, struct curl_slist **list, struct err *err)
{
    struct fetch *f = (struct fetch *)x;

    f->presented = f->with_credentials;
    return secret_is_set(&f->basic) ? token_authorization(list, "Basic", &f->basic, err) : 0;
}

/* Whether the service means the credentials. OAuth 2 answers 400 to a refresh token that it does not take (RFC 6749, 5.2). */
static int refused_status(const struct fetch *f)
{
    int status = f->x.parser.done ? f->x.parser.head.status : 0;

    if (!f->presented)
        return 0;
    return status == 401 || status == 403 || (status == 400 && secret_is_set(&f->form)) ? status : 0;
}

static void fetch_end(struct exchange *x, const struct err *err)
{
    struct fetch *f = (struct fetch *)x;
    struct token *t = f->token;
    struct fetch_result r = {.err = err,
                             .got = &f->got,
                             .started_ms = f->started_ms,
                             .retry_after_s = x->parser.head.retry_after_s,
                             .id = f->with_credentials ? &f->id : NULL,
                             .refused_status = err->code == ERR_CANCELLED ? 0 : refused_status(f)};

    t->fetch = NULL;
    token_fetched(x->ups, t, &r);
}

static void fetch_free(struct exchange *x)
{
    struct fetch *f = (struct fetch *)x;

    secret_wipe(f->body.data, f->body.cap);
    buf_release(&f->body);
    oci_token_release(&f->got);
    secret_release(&f->basic);
    secret_release(&f->form);
    free(f);
}

static const struct exchange_ops fetch_ops = {
    .backoff_ms = BACKOFF_FIRST_MS,
    .headers = fetch_headers,
    .head = fetch_head,
    .body = fetch_body,
    .complete = fetch_complete,
    .refused = fetch_refused,
    .redirected = fetch_redirected,
    .end = fetch_end,
    .free = fetch_free,
};

/* ---- what is asked ------------------------------------------------------------------------------------------------ */

/* "service=...&scope=...", both escaped. */
static int question(const struct token *t, char **out, struct err *err)
{
    char *service = curl_easy_escape(NULL, t->service, 0);
    char *scope = curl_easy_escape(NULL, t->scope, 0);
    int rc;

    if (service == NULL || scope == NULL)
        rc = err_nomem(err, strlen(t->service) + strlen(t->scope));
    else
        rc = str_printf(out, err, "%s%s%sscope=%s", service[0] != '\0' ? "service=" : "", service,
                        service[0] != '\0' ? "&" : "", scope);
    curl_free(service);
    curl_free(scope);
    return rc;
}

/* The realm may have a query of its own. */
static int fetch_url(const struct token *t, const char *query, char **out, struct err *err)
{
    int len = (int)strcspn(t->realm, "#");

    if (query == NULL)
        return str_printf(out, err, "%.*s", len, t->realm);
    return str_printf(out, err, "%.*s%c%s", len, t->realm, memchr(t->realm, '?', (size_t)len) ? '&' : '?', query);
}

static int make_form(struct fetch *f, const char *query, const struct secret *identity, struct err *err)
{
    char *escaped = curl_easy_escape(NULL, secret_text(identity), (int)identity->len);
    char *form = NULL;
    int rc;

    if (escaped == NULL)
        return err_nomem(err, identity->len);
    rc = str_printf(&form, err, "grant_type=refresh_token&client_id=recask&%s&refresh_token=%s", query, escaped);
    secret_wipe(escaped, strlen(escaped));
    curl_free(escaped);
    if (rc < 0)
        return rc;
    rc = secret_set(&f->form, form, strlen(form), err);
    secret_wipe(form, strlen(form));
    free(form);
    return rc;
}

static int prepare(struct fetch *f, const struct credential *c, char **out_url, struct err *err)
{
    CLEANUP(free_ptr) char *query = NULL;

    TRY(question(f->token, &query, err));
    if (c != NULL) {
        f->with_credentials = true;
        f->id = c->id;
        if (secret_is_set(&c->is.identity))
            TRY(make_form(f, query, &c->is.identity, err));
        else
            TRY(oci_credentials_basic(&c->is, &f->basic, err));
    }
    if (secret_is_set(&f->form))
        f->x.form = secret_text(&f->form);
    return fetch_url(f->token, f->x.form != NULL ? NULL : query, out_url, err);
}

int fetch_start(struct upstreams *ups, struct token *t, const struct credential *c, struct err *err)
{
    CLEANUP(free_ptr) char *url = NULL;
    struct fetch *f = calloc(1, sizeof *f);
    int rc;

    if (f == NULL)
        return err_nomem(err, sizeof *f);
    buf_init(&f->body, OCI_TOKEN_REPLY_MAX_BYTES);
    f->token = t;
    f->started_ms = clock_mono_ms();
    if (prepare(f, c, &url, err) < 0) {
        fetch_free(&f->x);
        return err->code;
    }
    rc = exchange_init_url(&f->x, &fetch_ops, ups, t->up, &url, err);
    if (rc == 0) {
        t->fetch = f;
        exchange_begin(&f->x);
    }
    exchange_unref(&f->x);
    return rc;
}
