/* SPDX-License-Identifier: Apache-2.0
 * admin/client.h - asks a running recask, over the Unix socket in its store or over its admin port.
 *
 * Use: admin_client_get, or admin_client_post for what changes something; the answer's text goes to the user or through admin/json.h. One connection per call.
 * Errors: ERR_NOTFOUND when no recask runs there, or when it says 404; ERR_DENIED, ERR_USAGE (400), ERR_BUSY (409) and
 *      ERR_IO as it answers. The messages are for people and say what to do.
 * Threads: any; blocks until answered, ADMIN_CLIENT_TIMEOUT_S at most without a byte.
 */
#pragma once

#include "base/buf.h"

#define ADMIN_CLIENT_TIMEOUT_S 30
#define ADMIN_SOCKET "admin.sock"

struct admin_target {
    const char *store;   /* the store's directory, or: */
    const char *address; /* "127.0.0.1:5001"; wins when set */
};

/* The two differ in the method. path: "/api/v1/stats"; ref: what to append, escaped here, or NULL. out: appended to. */
MUST_CHECK int admin_client_get(const struct admin_target *t, const char *path, const char *ref, struct buf *out,
                                struct err *err);
MUST_CHECK int admin_client_post(const struct admin_target *t, const char *path, const char *ref, struct buf *out,
                                 struct err *err);
