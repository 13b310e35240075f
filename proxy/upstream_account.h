/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_account.h - the upstream thread's side of credentials: reading them elsewhere, and remembering what became
 * of them.
 *
 * Use: account_new() -> account_read() -> account_collect() is true some time later -> account_credential(); the outcome goes
 * to account_accepted() or account_refused(), and account_check() says whether they may be tried. account_stop() before
 * account_free().
 * A read is a thread that lives for it alone: reads are rare, may hang for half a minute (a helper that asks the network), and
 * one upstream's may not hold up another's.
 * Invariants:
 *   A1  what was refused is not sent again for ACCOUNT_REFUSED_MS: accounts get locked by retries
 *   A2  a configured account that cannot be read is an error, never an anonymous request
 *   A3  a struct account sees the credentials of one upstream; nothing here hands them to another
 * Threads: the upstream thread, or any while that does not run.
 */
#pragma once

#include "proxy/upstream_credential.h"

#define ACCOUNT_REFUSED_MS (60 * 1000)

struct account;

/* *out NULL: nothing is configured, the upstream is asked without credentials. multi: CURLM, woken when a read is over. */
MUST_CHECK int account_new(const struct upstream_def *def, const char *auth_file, void *multi, struct account **out,
                           struct err *err);
void account_free(struct account *a); /* NULL is fine */
void account_stop(struct account *a); /* waits for a read, which ends at once; NULL is fine */

MUST_CHECK int account_read(struct account *a, struct err *err); /* starts one unless one is running */
bool account_collect(struct account *a);                         /* a read has ended since; NULL: false */
void account_again(struct account *a); /* account_collect() is to be true once more; NULL is fine */
/* Of the last read. NULL: err says why not. Borrowed until the next account_collect(). */
const struct credential *account_credential(const struct account *a, struct err *err);

/* A1: ERR_DENIED when these are known to be refused, for this scope or for all. */
MUST_CHECK int account_check(const struct account *a, const struct digest *d, const char *scope, struct err *err);
bool account_proven(const struct account *a, const struct digest *d); /* accepted not long ago */
void account_accepted(struct account *a, const struct digest *d);
/* who: "the registry", "the token service"; status: its answer. A helper's cached answer is dropped. */
void account_refused(struct account *a, const struct credential_id *id, const char *scope, const char *who, int status);
