/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_judge.c - what an answer means, or what came in place of one: go on where, try again, or give up and say
 * why in words that name the host and the cause.
 */
#include "proxy/upstream_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <strings.h>

static bool is_https(const char *url)
{
    return strncasecmp(url, "https://", strlen("https://")) == 0;
}

static bool is_http(const char *url)
{
    return strncasecmp(url, "http://", strlen("http://")) == 0;
}

/* Where a redirect leads: what the server wrote, byte for byte, for a signature may cover it. libcurl takes dots out of
 * paths; what it has to resolve or to repair is its business. */
static int redirect_target(struct exchange *x, char **out, struct err *err)
{
    const char *said = x->parser.location;
    char *to = NULL;

    *out = NULL;
    if (said == NULL)
        return 0;
    for (const char *p = said; *p != '\0'; p++)
        if ((unsigned char)*p <= 0x20 || (unsigned char)*p >= 0x7f)
            said = "";
    if (is_http(said) || is_https(said))
        return str_printf(out, err, "%.*s", (int)strcspn(said, "#"), said);
    return curl_easy_getinfo(x->easy, CURLINFO_REDIRECT_URL, &to) == CURLE_OK ? str_dup(to, out, err) : 0;
}

static enum verdict judge_redirect(struct exchange *x, struct err *err)
{
    const char *from = x->target != NULL ? x->target : x->url;
    CLEANUP(free_ptr) char *to = NULL;

    if (redirect_target(x, &to, err) < 0)
        return VERDICT_FAIL;
    if (to == NULL)
        err_set(err, ERR_UPSTREAM, "%s: status %d without a Location", x->label, x->parser.head.status);
    else if (++x->hops > UPSTREAM_REDIRECTS_MAX)
        err_set(err, ERR_UPSTREAM, "%s: more than %d redirects", x->label, UPSTREAM_REDIRECTS_MAX);
    else if (strlen(to) > UPSTREAM_URL_MAX_BYTES || (!is_http(to) && !is_https(to)))
        err_set(err, ERR_UPSTREAM, "%s: redirected to something that is not http", x->label);
    else if (is_https(from) && !is_https(to))
        err_set(err, ERR_UPSTREAM, "%s: redirected from https to http", x->label);
    if (err->code != 0 || (x->ops->redirected != NULL && x->ops->redirected(x, to, err) < 0))
        return VERDICT_FAIL;
    free(x->target);
    x->target = steal(&to);
    return VERDICT_HOP;
}

/* The upstream cannot resume, or not this time: from the start, skipping what is known. Bounded, since an upstream that
 * breaks each time would have us read the same bytes for ever. */
static enum verdict give_up_range(struct exchange *x, struct err *err)
{
    x->no_range = true;
    if (++x->start_overs > x->ups->tries) {
        err_set(err, ERR_UPSTREAM, "%s: breaks off and cannot resume", x->label);
        return VERDICT_FAIL;
    }
    return VERDICT_FRESH;
}

static enum err_code code_of_status(int status)
{
    switch (status) {
    case 404:
        return ERR_NOTFOUND;
    case 401:
    case 403:
        return ERR_DENIED;
    case 429:
        return ERR_THROTTLED;
    default:
        return ERR_UPSTREAM;
    }
}

static bool worth_retrying(const struct upstream_head *head)
{
    if (head->retry_after_s > UPSTREAM_RETRY_AFTER_MAX_S)
        return false;
    return head->status == 408 || head->status == 429 || (head->status >= 500 && head->status != 501);
}

/* The signed URL that a redirect named may have expired on the way: 403 says Amazon, 400 Google. What a blob's led to may
 * have been moved since. (A manifest is not looked for twice: where a registry redirects all requests, 404 is just that.)
 * Once, from the registry; then the answer counts. */
static bool has_expired(const struct exchange *x, int status)
{
    if (x->hops == 0 || x->resolved_anew)
        return false;
    return status == 403 || status == 400 || (x->kind == EXCHANGE_STREAM && (status == 404 || status == 410));
}

/* A status outside 2xx that is no redirect. */
static enum verdict judge_status(struct exchange *x, struct err *err)
{
    int status = x->parser.head.status;
    bool ranged = x->at > 0 && !x->no_range;

    if (has_expired(x, status)) {
        x->resolved_anew = true;
        return VERDICT_FRESH;
    }
    /* What a redirect led to may not have us ask for tokens. */
    if (status == 401 && x->scope != NULL && exchange_at_home(x))
        return token_refused(x, err) == 0 ? VERDICT_FRESH : VERDICT_FAIL;
    if (ranged && (status == 400 || status == 416 || status == 501))
        return x->ops->refused(x) == 0 ? VERDICT_DONE : give_up_range(x, err);
    if (status == 407) {
        err_set(err, ERR_UPSTREAM, "%s: the HTTP proxy wants a user and a password", x->label);
        return VERDICT_FAIL;
    }
    err_set(err, code_of_status(status), "%s: status %d%s", x->label, status, x->hops > 0 ? " after a redirect" : "");
    return worth_retrying(&x->parser.head) ? VERDICT_RETRY : VERDICT_FAIL;
}

/* "host:port" of a URL. */
static int place_of(const char *url, char **out, struct err *err)
{
    const char *host = strstr(url, "://") + strlen("://"); /* both kinds of URL have been looked at */

    return str_printf(out, err, "%.*s", (int)strcspn(host, "/?#"), host);
}

static enum verdict cannot_connect(struct exchange *x, const char *place, const char *why, struct err *err)
{
    char error[128];
    long sys = 0;

    (void)curl_easy_getinfo(x->easy, CURLINFO_OS_ERRNO, &sys);
    if (x->no_socket != 0)
        sys = x->no_socket;
    if (sys == EMFILE || sys == ENFILE || sys == ENOMEM || sys == ENOBUFS) /* not the upstream's fault */
        err_set(err, ERR_NOMEM, "%s: cannot connect to %s: %s", x->label, place,
                strerror_r((int)sys, error, sizeof error));
    else if (sys == 0)
        err_set(err, ERR_UPSTREAM, "%s: cannot connect to %s: %s", x->label, place, why);
    else
        err_set(err, ERR_UPSTREAM, "%s: cannot connect to %s: %s (%s)", x->label, place,
                strerror_r((int)sys, error, sizeof error), why);
    return VERDICT_RETRY;
}

/* libcurl could not bring the answer home. */
static enum verdict judge_failure(struct exchange *x, CURLcode rc, struct err *err)
{
    const char *why = x->reason[0] != '\0' ? x->reason : curl_easy_strerror(rc);
    CLEANUP(free_ptr) char *place = NULL;

    if (place_of(x->target != NULL ? x->target : x->url, &place, err) < 0)
        return VERDICT_FAIL;
    if (tls_explain(x->easy, rc, why, place, err)) { /* another try would find the same certificate */
        err_wrap(err, "%s", x->label);
        return VERDICT_FAIL;
    }
    switch (rc) {
    case CURLE_OPERATION_TIMEDOUT:
        err_set(err, ERR_TIMEOUT, "%s: %s", x->label, why);
        return VERDICT_RETRY;
    case CURLE_OUT_OF_MEMORY:
        err_set(err, ERR_NOMEM, "%s: %s", x->label, why);
        return VERDICT_FAIL;
    case CURLE_COULDNT_RESOLVE_HOST:
        err_set(err, ERR_UPSTREAM, "%s: the name %s cannot be found (%s)", x->label, place, why);
        return VERDICT_RETRY;
    case CURLE_COULDNT_RESOLVE_PROXY:
        err_set(err, ERR_UPSTREAM, "%s: the HTTP proxy's name cannot be found (%s)", x->label, why);
        return VERDICT_RETRY;
    case CURLE_COULDNT_CONNECT:
        return cannot_connect(x, place, why, err);
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_LOGIN_DENIED:
        err_set(err, ERR_UPSTREAM, "%s: %s", x->label, why);
        return VERDICT_FAIL;
    default:
        err_set(err, ERR_UPSTREAM, "%s: %s", x->label, why);
        return VERDICT_RETRY;
    }
}

static enum verdict judge_success(struct exchange *x, struct err *err)
{
    int rc = x->ops->complete(x, err);

    if (rc < 0)
        return VERDICT_FAIL;
    if (rc == 0)
        return VERDICT_DONE;
    err_set(err, ERR_UPSTREAM, "%s: ended before byte %" PRIu64, x->label, x->parser.head.length_bytes);
    return VERDICT_RETRY;
}

enum verdict exchange_judge(struct exchange *x, CURLcode rc, struct err *err)
{
    int status = x->parser.done ? x->parser.head.status : 0;

    if (x->fatal.code != 0) {
        *err = x->fatal;
        err_wrap(err, "%s", x->label);
        return VERDICT_FAIL;
    }
    if (x->start_over)
        return give_up_range(x, err);
    if (x->accepted && rc == CURLE_OK)
        return judge_success(x, err);
    if (status == 0 || x->accepted)
        return judge_failure(x, rc, err);
    if (status == 301 || status == 302 || status == 303 || status == 307 || status == 308)
        return judge_redirect(x, err);
    return judge_status(x, err);
}
