/* SPDX-License-Identifier: Apache-2.0
 * base/pem.c - over OpenSSL's PEM reader, whose own error queue is emptied each time: TLS connections of the same thread
 * would take what is left in it for theirs.
 */
#include "base/pem.h"

#include <limits.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdbool.h>

static void bio_cleanup(BIO **b)
{
    BIO_free(*b);
    ERR_clear_error();
}

static int open_text(const char *pem, size_t len, BIO **out, struct err *err)
{
    *out = len <= INT_MAX ? BIO_new_mem_buf(pem, (int)len) : NULL;
    return *out != NULL ? 0 : err_nomem(err, len);
}

int pem_check_certs(const char *pem, size_t len, struct err *err)
{
    CLEANUP(bio_cleanup) BIO *b = NULL;
    size_t count = 0;
    X509 *cert;

    TRY(open_text(pem, len, &b, err));
    ERR_clear_error();
    while ((cert = PEM_read_bio_X509(b, NULL, NULL, NULL)) != NULL) {
        X509_free(cert);
        count++;
    }
    /* The end shows as a missing start line. */
    if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE)
        return err_set(err, ERR_FORMAT, "certificate %zu in it is damaged", count + 1);
    return count > 0 ? 0 : err_set(err, ERR_FORMAT, "there is no certificate in it (PEM: BEGIN CERTIFICATE)");
}

/* Called for encrypted keys alone. */
static int no_password(char *out UNUSED, int cap UNUSED, int writing UNUSED, void *asked)
{
    *(bool *)asked = true;
    return -1;
}

static int read_key(const char *pem, size_t len, EVP_PKEY **out, struct err *err)
{
    CLEANUP(bio_cleanup) BIO *b = NULL;
    bool asked = false;

    TRY(open_text(pem, len, &b, err));
    *out = PEM_read_bio_PrivateKey(b, NULL, no_password, &asked);
    if (*out != NULL)
        return 0;
    if (asked)
        return err_set(err, ERR_FORMAT, "the key in it has a password, which recask cannot ask for");
    return err_set(err, ERR_FORMAT, "there is no private key in it (PEM: BEGIN PRIVATE KEY)");
}

int pem_check_key(const char *pem, size_t len, struct err *err)
{
    EVP_PKEY *key = NULL;

    TRY(read_key(pem, len, &key, err));
    EVP_PKEY_free(key);
    return 0;
}

int pem_check_pair(const char *cert, size_t cert_len, const char *key, size_t key_len, struct err *err)
{
    CLEANUP(bio_cleanup) BIO *b = NULL;
    EVP_PKEY *pkey = NULL;
    X509 *x509;
    bool match;

    TRY(open_text(cert, cert_len, &b, err));
    TRY(read_key(key, key_len, &pkey, err));
    x509 = PEM_read_bio_X509(b, NULL, NULL, NULL);
    match = x509 != NULL && X509_check_private_key(x509, pkey) == 1;
    X509_free(x509);
    EVP_PKEY_free(pkey);
    return match ? 0 : err_set(err, ERR_FORMAT, "the key is not that of the certificate");
}
