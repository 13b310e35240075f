/* SPDX-License-Identifier: Apache-2.0
 * base/secret.h - text that goes to one place and is shown in none: tokens, passwords.
 *
 * Use: struct secret s = SECRET_INIT; -> secret_set() -> secret_text() where it is sent -> secret_release(), which wipes it.
 * There is no printf path: a struct secret never goes into a log line or a struct err, and nothing that secret_text()
 * gave does. Copies that are needed on the way (a header line) are wiped with secret_wipe() by whoever made them.
 * Threads: one at a time.
 */
#pragma once

#include "base/err.h"

#include <stdbool.h>

struct secret {
    char *hidden; /* NUL-terminated; NULL: not set. For base/secret.c alone */
    size_t len;
};

/* clang-format off */
#define SECRET_INIT {.hidden = NULL}
/* clang-format on */

/* Replaces what *s held; text is copied and needs no NUL. ERR_NOMEM leaves *s as it was. */
MUST_CHECK int secret_set(struct secret *s, const char *text, size_t len, struct err *err);
bool secret_is_set(const struct secret *s);
const char *secret_text(const struct secret *s); /* borrowed; "" when not set */
/* *s takes over what *from holds; *from is not set afterwards. */
void secret_move(struct secret *s, struct secret *from);
void secret_release(struct secret *s);
void secret_wipe(void *memory, size_t len); /* not optimised away; memory may be NULL when len is 0 */
