/* SPDX-License-Identifier: Apache-2.0
 * admin/admin.h - the admin port: /healthz, /readyz and /api/v1/..., for people, probes and the command line.
 *
 * Use: admin_new -> admin_listen / admin_listen_unix -> admin_free (after http_server_drain()).
 * On a TCP port: reading only, and the Host header must name this machine (DNS rebinding); the Unix socket is trusted by
 * its directory's mode. Threads: any.
 */
#pragma once

#include "proxy/proxy.h"

struct admin;

struct admin_options {
    struct proxy *proxy;
    struct http_server *http;
    const char *version;
    bool test_hooks; /* RECASK_TEST_HOOKS=1: POST /api/v1/test/evict?digest=sha256:... on the Unix socket */
};

MUST_CHECK int admin_new(const struct admin_options *opt, struct admin **out, struct err *err);
MUST_CHECK int admin_listen(struct admin *a, const char *address, const char **out_address, struct err *err);
MUST_CHECK int admin_listen_unix(struct admin *a, const char *path, struct err *err);
void admin_free(struct admin *a);
