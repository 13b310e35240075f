/* SPDX-License-Identifier: Apache-2.0
 *
 * A listener's certificate and key, read at the start and again when they change on disk. Invariants:
 *   T1  a pair is constant once it is made, and lives until the last connection that was greeted with it is closed: GnuTLS
 *       keeps pointers into it through a handshake, which may take many turns of an event thread
 *   T2  what cannot be used never replaces what can: the old pair stays, and each state of the files is tried once
 *   T3  a change is read when the files have not changed again by the next look, since a certificate and its key are two
 *       files that are written one after the other
 */
#include "base/clock.h"
#include "base/fsutil.h"
#include "base/log.h"
#include "base/secret.h"
#include "proxy/http_internal.h"
#include "proxy/http_tls_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <gnutls/x509.h>
#include <string.h>
#include <time.h>

#define TLS_PAIR_MAGIC 0x715ba117u
#define CHAIN_MAX 16
#define FILE_MAX_BYTES (256u << 10)
#define KEY_ID_BYTES 64

struct tls_pair {
    uint32_t magic;
    atomic_uint refs;
    gnutls_pcert_st chain[CHAIN_MAX];
    unsigned chain_len;
    gnutls_privkey_t key;
    time_t begins, ends;
};

struct stamp {
    struct fs_stamp cert, key;
};

struct http_tls {
    char *cert_file, *key_file;
    struct stamp tried, last; /* what the last attempt read; what the last look saw. One look at a time */
    struct lock lock;         /* RANK_LEAF: pair */
    struct tls_pair *pair;
};

/* ---- pairs ---------------------------------------------------------------------------------------------------------- */

void tls_pair_unref(struct tls_pair *p)
{
    if (!p || atomic_fetch_sub(&p->refs, 1) != 1)
        return;
    REQUIRE(p->magic == TLS_PAIR_MAGIC);
    for (unsigned i = 0; i < p->chain_len; i++)
        gnutls_pcert_deinit(&p->chain[i]);
    if (p->key)
        gnutls_privkey_deinit(p->key);
    p->magic = 0;
    free(p);
}

static void pair_cleanup(struct tls_pair **p)
{
    tls_pair_unref(*p);
}

static void secret_buf_release(struct buf *b)
{
    secret_wipe(b->data, b->cap);
    buf_release(b);
}

static void crt_cleanup(gnutls_x509_crt_t *crt)
{
    if (*crt)
        gnutls_x509_crt_deinit(*crt);
}

static void x509_key_cleanup(gnutls_x509_privkey_t *key)
{
    if (*key)
        gnutls_x509_privkey_deinit(*key);
}

/* Straight into room of its own: no copy of a key is left on a stack or in memory that a buffer has grown out of. */
static int read_pem(const char *path, struct buf *out, struct err *err)
{
    struct err why = ERR_INIT;
    size_t got = 1;
    CLEANUP(fd_cleanup) int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return err_set(err, ERR_USAGE, "TLS: cannot open %s: %s", path, strerror(errno));
    TRY(buf_reserve(out, FILE_MAX_BYTES, err));
    while (got > 0) {
        if (out->len == FILE_MAX_BYTES)
            return err_set(err, ERR_USAGE, "TLS: %s: too large for certificates or a key", path);
        if (fs_pread_some(fd, out->data + out->len, FILE_MAX_BYTES - out->len, out->len, &got, path, &why) < 0)
            return err_set(err, ERR_USAGE, "TLS: %s", why.msg);
        out->len += got;
    }
    return 0;
}

static int load_chain(struct tls_pair *p, const char *path, struct err *err)
{
    CLEANUP(buf_release) struct buf pem = BUF_INIT(2 * FILE_MAX_BYTES);
    CLEANUP(crt_cleanup) gnutls_x509_crt_t leaf = NULL;

    TRY(read_pem(path, &pem, err));
    gnutls_datum_t text = {.data = (unsigned char *)pem.data, .size = (unsigned)pem.len};
    unsigned count = CHAIN_MAX;
    int rc = gnutls_pcert_list_import_x509_raw(p->chain, &count, &text, GNUTLS_X509_FMT_PEM,
                                               GNUTLS_X509_CRT_LIST_IMPORT_FAIL_IF_EXCEED);
    if (rc == GNUTLS_E_SHORT_MEMORY_BUFFER)
        return err_set(err, ERR_USAGE, "TLS: %s: more than %d certificates", path, CHAIN_MAX);
    if (rc == GNUTLS_E_NO_CERTIFICATE_FOUND || (rc == 0 && count == 0))
        return err_set(err, ERR_USAGE, "TLS: %s: there is no PEM certificate in it", path);
    if (rc < 0)
        return err_set(err, ERR_USAGE, "TLS: %s: not a PEM certificate: %s", path, gnutls_strerror(rc));
    p->chain_len = count;
    rc = gnutls_pcert_export_x509(&p->chain[0], &leaf);
    if (rc < 0)
        return err_set(err, ERR_USAGE, "TLS: %s: %s", path, gnutls_strerror(rc));
    p->begins = gnutls_x509_crt_get_activation_time(leaf);
    p->ends = gnutls_x509_crt_get_expiration_time(leaf);
    return 0;
}

static int import_key(gnutls_x509_privkey_t key, struct buf *pem, const char *path, struct err *err)
{
    gnutls_datum_t text = {.data = (unsigned char *)pem->data, .size = (unsigned)pem->len};

    if (memmem(pem->data, pem->len, "ENCRYPTED", strlen("ENCRYPTED")))
        return err_set(err, ERR_USAGE, "TLS: %s: the key is encrypted; recask needs it without a password", path);
    if (!memmem(pem->data, pem->len, "PRIVATE KEY-----", strlen("PRIVATE KEY-----")))
        return err_set(err, ERR_USAGE, "TLS: %s: there is no PEM private key in it", path);
    int rc = gnutls_x509_privkey_import2(key, &text, GNUTLS_X509_FMT_PEM, NULL, 0);
    if (rc < 0)
        return err_set(err, ERR_USAGE, "TLS: %s: not a private key that can be used: %s", path, gnutls_strerror(rc));
    return 0;
}

static bool same_key(const struct tls_pair *p, gnutls_x509_privkey_t key)
{
    unsigned char a[KEY_ID_BYTES], b[KEY_ID_BYTES];
    size_t a_len = sizeof(a), b_len = sizeof(b);

    return gnutls_pubkey_get_key_id(p->chain[0].pubkey, GNUTLS_KEYID_USE_SHA256, a, &a_len) == 0 &&
           gnutls_x509_privkey_get_key_id(key, GNUTLS_KEYID_USE_SHA256, b, &b_len) == 0 && a_len == b_len &&
           memcmp(a, b, a_len) == 0;
}

static int load_key(struct tls_pair *p, const struct http_tls *t, struct err *err)
{
    CLEANUP(secret_buf_release) struct buf pem = BUF_INIT(2 * FILE_MAX_BYTES);
    CLEANUP(x509_key_cleanup) gnutls_x509_privkey_t key = NULL;

    TRY(read_pem(t->key_file, &pem, err));
    if (gnutls_x509_privkey_init(&key) < 0 || gnutls_privkey_init(&p->key) < 0)
        return err_nomem(err, sizeof(*p));
    TRY(import_key(key, &pem, t->key_file, err));
    if (!same_key(p, key))
        return err_set(err, ERR_USAGE, "TLS: %s: the key is not that of the first certificate in %s", t->key_file,
                       t->cert_file);
    int rc = gnutls_privkey_import_x509(p->key, key, GNUTLS_PRIVKEY_IMPORT_AUTO_RELEASE);
    if (rc < 0)
        return err_set(err, ERR_USAGE, "TLS: %s: %s", t->key_file, gnutls_strerror(rc));
    key = NULL; /* p->key's */
    return 0;
}

static int load_pair(const struct http_tls *t, struct tls_pair **out, struct err *err)
{
    CLEANUP(pair_cleanup) struct tls_pair *p = calloc(1, sizeof(*p));

    if (!p)
        return err_nomem(err, sizeof(*p));
    p->magic = TLS_PAIR_MAGIC;
    atomic_init(&p->refs, 1);
    TRY(load_chain(p, t->cert_file, err));
    TRY(load_key(p, t, err));
    *out = steal(&p);
    return 0;
}

/* ---- the files ------------------------------------------------------------------------------------------------------ */

static bool same_stamp(const struct stamp *a, const struct stamp *b)
{
    return fs_stamp_same(&a->cert, &b->cert) && fs_stamp_same(&a->key, &b->key);
}

static void stamp_files(const struct http_tls *t, struct stamp *out)
{
    out->cert = fs_stamp_of(t->cert_file);
    out->key = fs_stamp_of(t->key_file);
}

static void log_pair(const struct http_tls *t, const struct tls_pair *p)
{
    time_t now = (time_t)clock_wall_s();
    char ends[32] = "?";
    struct tm tm;

    if (gmtime_r(&p->ends, &tm))
        strftime(ends, sizeof(ends), "%Y-%m-%dT%H:%M:%SZ", &tm);
    log_event(LOG_INFO, "tls.loaded", "cert=%s chain=%u expires=%s", log_quote(t->cert_file).s, p->chain_len, ends);
    if (p->ends < now)
        log_event(LOG_WARN, "tls.expired", "cert=%s expires=%s", log_quote(t->cert_file).s, ends);
    else if (p->begins > now)
        log_event(LOG_WARN, "tls.early", "cert=%s error=\"not valid yet\"", log_quote(t->cert_file).s);
}

static int reload(struct http_tls *t, const struct stamp *now, struct err *err)
{
    struct tls_pair *fresh = NULL;

    t->tried = *now; /* taken before the files are read: a later change shows */
    TRY(load_pair(t, &fresh, err));
    log_pair(t, fresh);
    lock_take(&t->lock);
    struct tls_pair *old = t->pair;
    t->pair = fresh;
    lock_give(&t->lock);
    tls_pair_unref(old);
    return 0;
}

void http_tls_look(struct http_tls *t)
{
    struct stamp now;
    struct err err = ERR_INIT;

    stamp_files(t, &now);
    bool settled = same_stamp(&now, &t->last);
    t->last = now;
    if (!settled || same_stamp(&now, &t->tried))
        return;
    if (reload(t, &now, &err) < 0)
        log_event(LOG_WARN, "tls.reload", "error=%s note=\"the certificate in use stays\"", log_quote(err.msg).s);
}

struct tls_pair *tls_pair_current(struct http_tls *t)
{
    lock_take(&t->lock);
    struct tls_pair *p = t->pair;
    atomic_fetch_add(&p->refs, 1);
    lock_give(&t->lock);
    return p;
}

int http_tls_new(const struct http_listen_options *opt, struct http_tls **out, struct err *err)
{
    struct stamp now;

    if (!opt->tls_cert_file || !opt->tls_key_file)
        return err_set(err, ERR_USAGE, "TLS on %s: a certificate and a key, or none of both", opt->address);
    struct http_tls *t = calloc(1, sizeof(*t));
    if (!t)
        return err_nomem(err, sizeof(*t));
    lock_init(&t->lock, RANK_LEAF);
    int rc = str_dup(opt->tls_cert_file, &t->cert_file, err);
    if (rc == 0)
        rc = str_dup(opt->tls_key_file, &t->key_file, err);
    if (rc == 0) {
        stamp_files(t, &now);
        t->last = now;
        rc = reload(t, &now, err);
    }
    if (rc < 0) {
        http_tls_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

void http_tls_free(struct http_tls *t)
{
    if (!t)
        return;
    tls_pair_unref(t->pair);
    lock_release(&t->lock);
    free(t->cert_file);
    free(t->key_file);
    free(t);
}

/* ---- GnuTLS's question for a certificate ----------------------------------------------------------------------------- */

/* The session's pointer is the connection (http.c). Names that the client asks for do not matter: one listener, one
 * certificate. */
int tls_choose(gnutls_session_t session, const struct gnutls_cert_retr_st *info UNUSED, gnutls_pcert_st **chain,
               unsigned *chain_len, gnutls_ocsp_data_st **ocsp, unsigned *ocsp_len, gnutls_privkey_t *key,
               unsigned *flags)
{
    const struct http_conn *c = CAST_OBJ(struct http_conn, HTTP_CONN_MAGIC, gnutls_session_get_ptr(session));

    *chain = c->pair->chain;
    *chain_len = c->pair->chain_len;
    *ocsp = NULL;
    *ocsp_len = 0;
    *key = c->pair->key;
    *flags = 0;
    return 0;
}
