/* SPDX-License-Identifier: Apache-2.0
 * base/pem.h - says what is wrong with certificates and keys in PEM form before a TLS library gets them, in plain words.
 *
 * Threads: any. No function here keeps or shows anything of a key. Messages do not name the file: the caller wraps them.
 */
#pragma once

#include "base/err.h"

/* At least one certificate, and each of them readable. ERR_FORMAT. */
MUST_CHECK int pem_check_certs(const char *pem, size_t len, struct err *err);
/* One private key without a password. ERR_FORMAT. */
MUST_CHECK int pem_check_key(const char *pem, size_t len, struct err *err);
/* Whether the key is that of the first certificate; both are good by themselves. ERR_FORMAT when not. */
MUST_CHECK int pem_check_pair(const char *cert, size_t cert_len, const char *key, size_t key_len, struct err *err);
