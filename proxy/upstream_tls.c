/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_tls.c - whom an upstream trusts, and who recask is to it.
 *
 * The files are read here and given to libcurl as bytes. It could read them itself, but would do so on the upstream thread,
 * keeps what CURLOPT_CAINFO named for a day, and tells connections apart by the names of files: after a renewal the old ones
 * would be used again. It compares bytes as bytes, and also whether the peer was verified, so that no connection (and no TLS
 * session) made under one upstream's rules serves another's. The key alone it does not compare; it goes with its certificate.
 */
#include "proxy/upstream_internal.h"

#include "base/clock.h"
#include "base/fsutil.h"
#include "base/log.h"
#include "base/pem.h"
#include "base/secret.h"


#define FILE_MAX_BYTES ((size_t)4 << 20)
#define LOOK_MS 1000

/* OpenSSL's X509_V_ERR_..., which CURLINFO_SSL_VERIFYRESULT passes on. */
enum {
    VERIFY_NO_ISSUER = 2,
    VERIFY_NOT_YET_VALID = 9,
    VERIFY_EXPIRED = 10,
    VERIFY_SELF_SIGNED_LEAF = 18,
    VERIFY_SELF_SIGNED_IN_CHAIN = 19,
    VERIFY_NO_ISSUER_LOCALLY = 20,
    VERIFY_LEAF_ALONE = 21,
};

/* One file, as it was when it was read last. */
struct tls_file {
    char *path; /* NULL: none */
    struct fs_stamp seen;
    struct buf bytes;
};

enum { FILE_CA, FILE_SYSTEM, FILE_CERT, FILE_KEY, FILES };

struct tls_files {
    bool insecure;
    bool any; /* a file is named */
    /* Read and written by whoever has set `looking`; `bytes` are also read under the lock, and swapped under it. */
    struct tls_file files[FILES];
    bool complained;

    struct lock lock; /* RANK_LEAF */
    bool looking;
    int64_t look_ms;
    struct buf elsewhere; /* the system's authorities and ours */
};

static void wipe(struct buf *b)
{
    secret_wipe(b->data, b->cap);
    buf_release(b);
}

void tls_files_free(struct tls_files *t)
{
    if (t == NULL)
        return;
    for (size_t i = 0; i < FILES; i++) {
        free(t->files[i].path);
        wipe(&t->files[i].bytes);
    }
    buf_release(&t->elsewhere);
    lock_release(&t->lock);
    free(t);
}

static void files_cleanup(struct tls_files **t)
{
    tls_files_free(*t);
    *t = NULL;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static int check(const struct buf *files, const struct tls_files *t, struct err *err)
{
    if (t->files[FILE_CA].path != NULL && pem_check_certs(files[FILE_CA].data, files[FILE_CA].len, err) < 0)
        return err_wrap(err, "%s", t->files[FILE_CA].path);
    if (t->files[FILE_CERT].path == NULL)
        return 0;
    if (pem_check_certs(files[FILE_CERT].data, files[FILE_CERT].len, err) < 0)
        return err_wrap(err, "%s", t->files[FILE_CERT].path);
    if (pem_check_key(files[FILE_KEY].data, files[FILE_KEY].len, err) < 0)
        return err_wrap(err, "%s", t->files[FILE_KEY].path);
    if (pem_check_pair(files[FILE_CERT].data, files[FILE_CERT].len, files[FILE_KEY].data, files[FILE_KEY].len, err) < 0)
        return err_wrap(err, "%s and %s", t->files[FILE_CERT].path, t->files[FILE_KEY].path);
    return 0;
}

static int read_one(struct tls_file *f, struct buf *out, struct err *err)
{
    /* Before the read: what changes between the two is found the next time. */
    f->seen = fs_stamp_of(f->path);
    TRY(fs_read_file(f->path, FILE_MAX_BYTES, out, err));
    return out->data != NULL ? 0 : buf_str(out, "", err);
}

static int join(const struct buf *files, struct buf *out, struct err *err)
{
    TRY(buf_add(out, files[FILE_SYSTEM].data, files[FILE_SYSTEM].len, err));
    TRY(buf_str(out, "\n", err));
    return buf_add(out, files[FILE_CA].data, files[FILE_CA].len, err);
}

static int read_into(struct tls_files *t, struct buf *files, struct buf *elsewhere, struct err *err)
{
    struct err ignored = ERR_INIT;

    for (size_t i = 0; i < FILES; i++) {
        struct tls_file *f = &t->files[i];
        if (f->path == NULL)
            continue;
        if (i == FILE_SYSTEM) /* a machine may have none */
            (void)!read_one(f, &files[i], &ignored);
        else
            TRY(read_one(f, &files[i], err));
    }
    TRY(check(files, t, err));
    return t->files[FILE_CA].path != NULL ? join(files, elsewhere, err) : 0;
}

static void swap(struct buf *a, struct buf *b)
{
    struct buf c = *a;
    *a = *b;
    *b = c;
}

/* All of them or none: a certificate without its key is of no use. */
static int read_all(struct tls_files *t, struct err *err)
{
    struct buf files[FILES];
    struct buf elsewhere = BUF_INIT(2 * FILE_MAX_BYTES + 1);
    int rc;

    for (size_t i = 0; i < FILES; i++)
        buf_init(&files[i], FILE_MAX_BYTES);
    rc = read_into(t, files, &elsewhere, err);
    if (rc == 0) {
        lock_take(&t->lock);
        for (size_t i = 0; i < FILES; i++)
            swap(&t->files[i].bytes, &files[i]);
        swap(&t->elsewhere, &elsewhere);
        lock_give(&t->lock);
    }
    for (size_t i = 0; i < FILES; i++)
        wipe(&files[i]);
    buf_release(&elsewhere);
    return rc;
}

/* Where libcurl looks by itself. */
static int system_path(char **out, struct err *err)
{
    CURL *easy = curl_easy_init();
    char *path = NULL;
    int rc;

    if (easy == NULL)
        return err_nomem(err, 1);
    rc = curl_easy_getinfo(easy, CURLINFO_CAINFO, &path) == CURLE_OK ? str_dup(path, out, err) : 0;
    curl_easy_cleanup(easy);
    return rc;
}

int tls_files_new(const struct upstream_def *def, struct tls_files **out, struct err *err)
{
    CLEANUP(files_cleanup) struct tls_files *t = calloc(1, sizeof *t);

    *out = NULL;
    if (t == NULL)
        return err_nomem(err, sizeof *t);
    lock_init(&t->lock, RANK_LEAF);
    t->insecure = def->insecure;
    if ((def->cert_file == NULL) != (def->key_file == NULL))
        return err_set(err, ERR_USAGE, "cert_file and key_file go together");
    TRY(str_dup(def->ca_file, &t->files[FILE_CA].path, err));
    TRY(str_dup(def->cert_file, &t->files[FILE_CERT].path, err));
    TRY(str_dup(def->key_file, &t->files[FILE_KEY].path, err));
    if (def->ca_file != NULL)
        TRY(system_path(&t->files[FILE_SYSTEM].path, err));
    t->any = def->ca_file != NULL || def->cert_file != NULL;
    if (t->any && read_all(t, err) < 0) {
        if (err->code != ERR_NOMEM)
            err->code = ERR_USAGE; /* whatever is wrong with a file that somebody named */
        return err->code;
    }
    t->look_ms = clock_mono_ms() + LOOK_MS;
    *out = steal(&t);
    return 0;
}

static bool has_changed(const struct tls_files *t)
{
    for (size_t i = 0; i < FILES; i++) {
        const struct tls_file *f = &t->files[i];

        if (f->path == NULL)
            continue;
        struct fs_stamp now = fs_stamp_of(f->path);
        if (!fs_stamp_same(&now, &f->seen) && (now.why == 0 || i != FILE_SYSTEM))
            return true;
    }
    return false;
}

void tls_files_refresh(struct tls_files *t, const char *upstream)
{
    int64_t now_ms = clock_mono_ms();
    struct err err = ERR_INIT;
    bool mine;

    if (!t->any)
        return;
    lock_take(&t->lock);
    mine = !t->looking && now_ms >= t->look_ms;
    t->looking |= mine;
    lock_give(&t->lock);
    if (!mine)
        return;
    if (!has_changed(t)) {
        t->complained = false;
    } else if (read_all(t, &err) == 0) {
        t->complained = false;
        log_event(LOG_INFO, "upstream.tls", "upstream=%s msg=\"certificates read anew\"", log_quote(upstream).s);
    } else if (!t->complained) {
        /* Half-way through a renewal, perhaps. What was good stays in use. */
        t->complained = true;
        log_event(LOG_WARN, "upstream.tls", "upstream=%s error=%s", log_quote(upstream).s, log_quote(err.msg).s);
    }
    if (err.code != 0)
        for (size_t i = 0; i < FILES; i++)
            t->files[i].seen = (struct fs_stamp){.why = -1}; /* the next look reads again */
    lock_take(&t->lock);
    t->looking = false;
    t->look_ms = now_ms + LOOK_MS;
    lock_give(&t->lock);
}

/* ---- a connection ----------------------------------------------------------------------------------------------- */

static bool set_blob(CURL *easy, CURLoption option, const struct buf *b)
{
    /* Copied: it may be swapped while the transfer runs. */
    struct curl_blob blob = {.data = b->data, .len = b->len, .flags = CURL_BLOB_COPY};

    return curl_easy_setopt(easy, option, &blob) == CURLE_OK;
}

bool tls_configure(struct tls_files *t, CURL *easy, bool at_home)
{
    bool ok = true;

    if (at_home && t->insecure)
        ok = curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L) == CURLE_OK &&
             curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 0L) == CURLE_OK;
    if (!t->any)
        return ok;
    lock_take(&t->lock);
    if (t->files[FILE_CA].path != NULL)
        ok = ok && set_blob(easy, CURLOPT_CAINFO_BLOB, at_home ? &t->files[FILE_CA].bytes : &t->elsewhere);
    if (t->files[FILE_CA].path != NULL && at_home) /* it would be looked at, too */
        ok = ok && curl_easy_setopt(easy, CURLOPT_CAPATH, NULL) == CURLE_OK;
    if (t->files[FILE_CERT].path != NULL && at_home)
        ok = ok && set_blob(easy, CURLOPT_SSLCERT_BLOB, &t->files[FILE_CERT].bytes) &&
             set_blob(easy, CURLOPT_SSLKEY_BLOB, &t->files[FILE_KEY].bytes);
    lock_give(&t->lock);
    return ok;
}

/* ---- what went wrong -------------------------------------------------------------------------------------------- */

static int certificate_says(long verify, const char *reason, const char *place, struct err *err)
{
    if (strstr(reason, "subject name") != NULL) /* libcurl's own check, after OpenSSL's */
        return err_set(err, ERR_UPSTREAM, "the certificate of %s is for another name", place);
    switch (verify) {
    case VERIFY_EXPIRED:
        return err_set(err, ERR_UPSTREAM, "the certificate of %s has expired", place);
    case VERIFY_NOT_YET_VALID:
        return err_set(err, ERR_UPSTREAM, "the certificate of %s is not valid yet; is this machine's clock right?",
                       place);
    case VERIFY_NO_ISSUER:
    case VERIFY_SELF_SIGNED_LEAF:
    case VERIFY_SELF_SIGNED_IN_CHAIN:
    case VERIFY_NO_ISSUER_LOCALLY:
    case VERIFY_LEAF_ALONE:
        return err_set(err, ERR_UPSTREAM,
                       "the certificate of %s comes from an authority that is not trusted here (ca_file names others)",
                       place);
    default:
        break;
    }
    return err_set(err, ERR_UPSTREAM, "the certificate of %s is not to be trusted: %s", place, reason);
}

bool tls_explain(CURL *easy, CURLcode rc, const char *reason, const char *place, struct err *err)
{
    long verify = 0;

    if (rc == CURLE_PEER_FAILED_VERIFICATION) {
        (void)curl_easy_getinfo(easy, CURLINFO_SSL_VERIFYRESULT, &verify);
        (void)certificate_says(verify, reason, place, err);
        return true;
    }
    /* Its alerts come while connecting (TLS 1.2) or in place of the answer (TLS 1.3). */
    if (strstr(reason, "alert certificate required") != NULL || strstr(reason, "alert handshake failure") != NULL ||
        strstr(reason, "alert bad certificate") != NULL || strstr(reason, "alert unknown ca") != NULL) {
        err_set(err, ERR_UPSTREAM, "%s does not take the client certificate, or wants one (cert_file): %s", place,
                reason);
        return true;
    }
    if (rc == CURLE_SSL_CONNECT_ERROR && strstr(reason, "wrong version number") != NULL) {
        err_set(err, ERR_UPSTREAM, "%s does not speak TLS; is it an http:// URL?", place);
        return true;
    }
    if (rc == CURLE_SSL_CERTPROBLEM || rc == CURLE_SSL_CACERT_BADFILE || rc == CURLE_SSL_CIPHER) {
        err_set(err, ERR_UPSTREAM, "TLS with %s: %s", place, reason);
        return true;
    }
    return false;
}
