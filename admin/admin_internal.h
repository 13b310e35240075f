/* SPDX-License-Identifier: Apache-2.0
 * admin/admin_internal.h - what the admin API's files share: the answers' bodies, references, the guard. */
#pragma once

#include "admin/admin.h"
#include "base/buf.h"
#include "proxy/maintain.h"
#include "store/meta.h"
#include "store/pin.h"

#include <jansson.h>

#define ADMIN_BODY_MAX_BYTES (64u << 20)

/* ---- bodies: JSON text into `out` ------------------------------------------------------------------------------- */

struct admin_numbers {
    const char *version;
    int64_t uptime_s;
    struct proxy_stats proxy;
    struct store_stats store;
    json_t *maintenance; /* taken */
};

MUST_CHECK int admin_stats_json(const struct admin_numbers *n, struct buf *out, struct err *err);
MUST_CHECK int admin_images_json(struct store *st, struct buf *out, struct err *err);

/* An image as a person names it, and where the text alone leads: */
struct admin_ref {
    char text[512];     /* REGISTRY/NAME as written, without tag and digest */
    char upstream[256]; /* the upstream that it names, or the default one */
    char name[256];     /* the repository there, with library/ where that is added */
    char tag[META_TAG_BYTES];
    bool has_digest;
    struct digest digest;
};

/* "alpine", "docker.io/library/alpine:3.20", "ghcr.io/a/b@sha256:...", "sha256:...". ERR_USAGE. */
MUST_CHECK int admin_ref_parse(const char *text, const struct upstreams *ups, struct admin_ref *out, struct err *err);

/* ERR_NOTFOUND when the store does not know it. Never asks an upstream. */
MUST_CHECK int admin_image_json(struct store *st, const struct admin_ref *ref, struct buf *out, struct err *err);

/* Pins or unpins; drops a tag with its bytes; lists pins. ERR_NOTFOUND: nothing of that name is in the store. */
MUST_CHECK int admin_pin_json(struct store *st, const struct admin_ref *ref, bool pinned, struct buf *out,
                              struct err *err);
MUST_CHECK int admin_remove_json(struct store *st, const struct admin_ref *ref, struct buf *out, struct err *err);
MUST_CHECK int admin_pins_json(struct store *st, struct buf *out, struct err *err);

/* What maintenance does and has found; begins some (ERR_BUSY: some runs); the part of it in the stats. */
MUST_CHECK int admin_maintenance_json(struct maintain *m, struct buf *out, struct err *err);
MUST_CHECK int admin_maintain_begin_json(struct maintain *m, enum maintain_task task, bool repair, struct buf *out,
                                         struct err *err);
json_t *admin_maintain_stats(struct maintain *m);

MUST_CHECK int admin_error_json(const char *code, const char *message, struct buf *out, struct err *err);

/* Appends root as text with a newline and frees it; root NULL is ERR_NOMEM (jansson's builders fail that way only). */
MUST_CHECK int admin_json_dump(json_t *root, struct buf *out, struct err *err);
json_t *admin_json_digest(const struct digest *d);
json_t *admin_json_time(int64_t wall_s); /* "2026-11-30T12:00:00Z", null for 0 */

/* %XX decoded once. False when malformed, longer than cap - 1, or when a control byte comes out. */
bool admin_decode(const char *text, char *out, size_t cap);

/* ---- guard ------------------------------------------------------------------------------------------------------ */

/* Whether a request with this Host header (NULL: none) may have been meant for a listener on `listen` ("ADDR:PORT"). A
 * name other than localhost can be made to resolve to this machine by anyone (DNS rebinding), so none is accepted. */
bool admin_host_allowed(const char *host, const char *listen);
