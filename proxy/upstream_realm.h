/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_realm.h - which servers may see what belongs to an upstream: its token service, and who gets Authorization.
 *
 * A registry names its token service itself (realm), and a registry, or whoever sits in front of it, may lie: without a
 * rule it could have the upstream's credentials sent anywhere (case 52). The rule: the same host, or one that shares the
 * upstream's registrable domain, and https when the upstream is https. Ports do not matter.
 *   registry-1.docker.io -> auth.docker.io        yes: docker.io
 *   ghcr.io              -> ghcr.io, x.ghcr.io    yes
 *   127.0.0.1, localhost -> themselves alone; addresses and names of one label have no domain
 *   registry.gov.uk      -> auth.gov.uk           no: three labels under a country's co, com, gov...
 * Besides these, the upstream's configuration may list URLs of token services: then scheme, host and port must be the same
 * and the path must be the listed one or below it. A listed http:// is not for an upstream of https.
 * The registrable domain is "the last two labels" and no look-up in the public suffix list: whoever can get a name below
 * a suffix that the list knows and this rule does not (x.azurecr.io) shares a domain with its neighbours here.
 * Threads: pure.
 */
#pragma once

#include "base/err.h"

#include <stdbool.h>

/* 0 when the realm belongs to the upstream, or is among `listed` (NULL-terminated or NULL). Else ERR_DENIED, naming both; also
 * for what is no URL. */
MUST_CHECK int realm_check(const char *upstream_name, const char *upstream_url, const char *const *listed,
                           const char *realm, struct err *err);

/* Whether a URL may be in such a list: ERR_USAGE for what is no http(s) URL, has a user or a query, or is http for https. */
MUST_CHECK int realm_listable(const char *upstream_url, const char *url, struct err *err);

/* Scheme, host and port are the same: what Authorization was made for. False also when one is not a URL. */
bool realm_same_origin(const char *a, const char *b);
