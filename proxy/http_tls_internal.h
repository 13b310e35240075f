/* SPDX-License-Identifier: Apache-2.0
 * proxy/http_tls_internal.h - what http.c gives to GnuTLS; apart from http_internal.h, so that only these two files see
 * GnuTLS.
 */
#pragma once

#include <gnutls/abstract.h>

int tls_choose(gnutls_session_t session, const struct gnutls_cert_retr_st *info, gnutls_pcert_st **chain,
               unsigned *chain_len, gnutls_ocsp_data_st **ocsp, unsigned *ocsp_len, gnutls_privkey_t *key,
               unsigned *flags);
