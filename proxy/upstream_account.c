/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_account.c - reads and refusals.
 *
 * Refusals. A wrong password and a repository that one may not read look alike with many services (401 or 403 for both), and
 * to take the second for the first would shut a whole upstream for a minute because somebody asked for one image. So:
 * credentials that were accepted not long ago, and any that get a 403, are doubted for this scope alone first; a second scope
 * that is refused while the doubt lasts means the credentials, unless they are known good and the answer is a 403.
 */
#include "proxy/upstream_account.h"

#include "base/clock.h"
#include "base/log.h"

#include <curl/curl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

#define ACCOUNT_MAGIC 0xacc09713u
#define PROVEN_MS (10 * 60 * 1000)

struct account {
    uint32_t magic;
    struct credential_source source; /* constant */
    CURLM *multi;
    atomic_bool stopping;

    /* A running read's, else the upstream thread's. */
    struct credential_cache cache;
    struct credential read;
    struct err read_err;
    atomic_bool over;

    bool reading, forget_cache, again;
    pthread_t thread;
    struct credential current;
    struct err current_err;

    struct digest accepted;
    int64_t accepted_ms; /* 0: never */
    struct digest refused;
    int64_t refused_until_ms;
    struct digest doubted;
    char *doubted_scope;
    int64_t doubted_until_ms;
    char refusal[ERR_MSG_BYTES]; /* the message of the last one */
};

/* ---- life --------------------------------------------------------------------------------------------------------- */

int account_new(const struct upstream_def *def, const char *auth_file, void *multi, struct account **out,
                struct err *err)
{
    struct account *a = calloc(1, sizeof *a);

    *out = NULL;
    if (a == NULL)
        return err_nomem(err, sizeof *a);
    a->magic = ACCOUNT_MAGIC;
    a->multi = multi;
    if (credential_source_init(&a->source, def, auth_file, err) < 0 || !credential_source_any(&a->source))
        account_free(a);
    else
        *out = a;
    return err->code;
}

void account_free(struct account *a)
{
    if (a == NULL)
        return;
    REQUIRE(a->magic == ACCOUNT_MAGIC && !a->reading);
    credential_source_release(&a->source);
    credential_cache_release(&a->cache);
    credential_release(&a->read);
    credential_release(&a->current);
    free(a->doubted_scope);
    a->magic = 0;
    free(a);
}

void account_stop(struct account *a)
{
    if (a == NULL)
        return;
    atomic_store(&a->stopping, true);
    if (a->reading)
        REQUIRE(pthread_join(a->thread, NULL) == 0);
    a->reading = false;
}

/* ---- reads -------------------------------------------------------------------------------------------------------- */

static void *read_main(void *arg)
{
    struct account *a = CAST_OBJ(struct account, ACCOUNT_MAGIC, arg);
    int64_t began_ms = clock_mono_ms();

    if (credential_read(&a->source, &a->cache, &a->stopping, &a->read, &a->read_err) < 0)
        log_event(LOG_WARN, "upstream.credentials", "upstream=%s msg=%s", log_quote(a->source.upstream).s,
                  log_quote(a->read_err.msg).s);
    else
        log_event(LOG_DEBUG, "upstream.credentials", "upstream=%s as=%s ms=%lld", log_quote(a->source.upstream).s,
                  log_quote(a->read.id.shown[0] != '\0' ? a->read.id.shown : "anonymous").s,
                  (long long)(clock_mono_ms() - began_ms));
    atomic_store(&a->over, true);
    curl_multi_wakeup(a->multi);
    return NULL;
}

int account_read(struct account *a, struct err *err)
{
    sigset_t all, before;
    int rc;

    if (a->reading)
        return 0;
    if (a->forget_cache)
        credential_cache_release(&a->cache);
    a->forget_cache = false;
    credential_release(&a->read);
    err_clear(&a->read_err);
    atomic_store(&a->over, false);
    /* Signals are for the main thread; a helper that does not read its stdin is no reason for SIGPIPE. */
    sigfillset(&all);
    REQUIRE(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
    rc = pthread_create(&a->thread, NULL, read_main, a);
    REQUIRE(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    if (rc != 0)
        return err_sys(err, rc, "cannot start a thread for the credentials of upstream %s", a->source.upstream);
    a->reading = true;
    return 0;
}

void account_again(struct account *a)
{
    if (a != NULL)
        a->again = true;
}

bool account_collect(struct account *a)
{
    bool again;

    if (a == NULL || (a->reading && !atomic_load(&a->over)))
        return false;
    again = a->again;
    a->again = false;
    if (!a->reading)
        return again;
    REQUIRE(pthread_join(a->thread, NULL) == 0);
    a->reading = false;
    credential_release(&a->current);
    a->current = a->read;
    a->current_err = a->read_err;
    a->read = (struct credential){.is = OCI_CREDENTIALS_INIT};
    return true;
}

const struct credential *account_credential(const struct account *a, struct err *err)
{
    if (a->current_err.code == 0)
        return &a->current;
    err_set(err, (enum err_code)a->current_err.code, "%s", a->current_err.msg);
    return NULL;
}

/* ---- what became of them ------------------------------------------------------------------------------------------ */

static bool doubted(const struct account *a, const struct digest *d)
{
    return a->doubted_scope != NULL && clock_mono_ms() < a->doubted_until_ms && digest_equal(&a->doubted, d);
}

int account_check(const struct account *a, const struct digest *d, const char *scope, struct err *err)
{
    bool all = clock_mono_ms() < a->refused_until_ms && digest_equal(&a->refused, d);

    if (all || (doubted(a, d) && strcmp(a->doubted_scope, scope) == 0))
        return err_set(err, ERR_DENIED, "%s", a->refusal);
    return 0;
}

bool account_proven(const struct account *a, const struct digest *d)
{
    return a->accepted_ms != 0 && clock_mono_ms() - a->accepted_ms < PROVEN_MS && digest_equal(&a->accepted, d);
}

void account_accepted(struct account *a, const struct digest *d)
{
    a->accepted = *d;
    a->accepted_ms = clock_mono_ms();
}

static void doubt(struct account *a, const struct digest *d, const char *scope)
{
    struct err ignored = ERR_INIT;

    free_ptr(&a->doubted_scope);
    a->doubted = *d;
    a->doubted_until_ms = clock_mono_ms() + ACCOUNT_REFUSED_MS;
    if (str_dup(scope, &a->doubted_scope, &ignored) < 0)
        a->doubted_until_ms = 0; /* nothing is remembered this once */
}

void account_refused(struct account *a, const struct credential_id *id, const char *scope, const char *who, int status)
{
    bool good = account_proven(a, &id->digest);
    bool other_scope = doubted(a, &id->digest) && strcmp(a->doubted_scope, scope) != 0;

    snprintf(a->refusal, sizeof a->refusal, "%s refused the credentials of upstream %s (%s) with status %d", who,
             a->source.upstream, id->shown, status);
    log_event(LOG_WARN, "upstream.refused", "upstream=%s scope=%s msg=%s", log_quote(a->source.upstream).s,
              log_quote(scope).s, log_quote(a->refusal).s);
    a->forget_cache = true;
    if ((good && status == 403) || ((good || status == 403) && !other_scope)) {
        doubt(a, &id->digest, scope);
        return;
    }
    a->refused = id->digest;
    a->refused_until_ms = clock_mono_ms() + ACCOUNT_REFUSED_MS;
}
