/* SPDX-License-Identifier: Apache-2.0
 * base/base64.h - base64 (RFC 4648, section 4). What goes through here is mostly secret: callers wipe what they made.
 * Threads: pure.
 */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define BASE64_TEXT_BYTES(len) (((len) + 2) / 3 * 4 + 1) /* with the NUL */
#define BASE64_DATA_BYTES(len) ((len) / 4 * 3 + 3)

/* out: BASE64_TEXT_BYTES(len); gets a NUL. */
void base64_encode(const void *data, size_t len, char *out);
/* out: BASE64_DATA_BYTES(len). With padding or without; false for anything else. */
bool base64_decode(const char *text, size_t len, uint8_t *out, size_t *out_len);
