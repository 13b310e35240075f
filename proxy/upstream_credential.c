/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_credential.c - the sources of credentials, in their order.
 */
#include "proxy/upstream_credential.h"

#include "base/clock.h"
#include "base/fsutil.h"
#include "base/log.h"
#include "proxy/upstream_helper.h"

#include <string.h>

#define PASSWORD_FILE_MAX_BYTES (OCI_SECRET_MAX_BYTES + 2) /* and a line's end */
#define HELPER_LIMIT_MS 30000

/* ---- sources ------------------------------------------------------------------------------------------------------ */

int credential_source_init(struct credential_source *src, const struct upstream_def *def, const char *auth_file,
                           struct err *err)
{
    bool own = def->username != NULL || def->credential_helper != NULL;
    struct oci_credentials probe = OCI_CREDENTIALS_INIT;

    *src = (struct credential_source){.helper = NULL};
    if ((def->username == NULL) != (def->password_file == NULL))
        return err_set(err, ERR_USAGE, "upstream %s: a user name and a password file go together", def->name);
    if (def->username != NULL && def->credential_helper != NULL)
        return err_set(err, ERR_USAGE, "upstream %s: either a user name or a credential helper", def->name);
    if (def->credential_helper != NULL && def->credential_helper[0] != '/' &&
        !oci_helper_name_valid(def->credential_helper))
        return err_set(err, ERR_USAGE, "upstream %s: a credential helper is a name or an absolute path", def->name);
    if (def->username != NULL && oci_credentials_set(&probe, def->username, "x", 1, err) < 0)
        return err_wrap(err, "upstream %s", def->name);
    oci_credentials_release(&probe);
    TRY(str_dup(def->name, &src->upstream, err));
    TRY(str_dup(def->url, &src->url, err));
    TRY(str_dup(def->username, &src->username, err));
    TRY(str_dup(def->password_file, &src->password_file, err));
    TRY(str_dup(def->credential_helper, &src->helper, err));
    return str_dup(own ? NULL : auth_file, &src->auth_file, err);
}

void credential_source_release(struct credential_source *src)
{
    free(src->upstream);
    free(src->url);
    free(src->username);
    free(src->password_file);
    free(src->helper);
    free(src->auth_file);
    *src = (struct credential_source){.helper = NULL};
}

bool credential_source_any(const struct credential_source *src)
{
    return src->username != NULL || src->helper != NULL || src->auth_file != NULL;
}

void credential_release(struct credential *c)
{
    oci_credentials_release(&c->is);
    *c = (struct credential){.is = OCI_CREDENTIALS_INIT};
}

void credential_cache_release(struct credential_cache *cache)
{
    free(cache->helper);
    secret_release(&cache->reply);
    *cache = (struct credential_cache){.until_ms = 0};
}

static void secret_buf_release(struct buf *b)
{
    secret_wipe(b->data, b->cap);
    buf_release(b);
}

/* Enough room at once, so that no half of a secret stays behind where a buffer has been before it grew. */
static int read_secret_file(const char *path, size_t limit_bytes, struct buf *out, struct err *err)
{
    buf_init(out, limit_bytes);
    TRY(buf_reserve(out, limit_bytes < 4096 ? limit_bytes : 4096, err));
    return fs_read_file(path, limit_bytes, out, err);
}

/* ---- one of each -------------------------------------------------------------------------------------------------- */

static int read_password(const struct credential_source *src, struct credential *out, struct err *err)
{
    CLEANUP(secret_buf_release) struct buf b = BUF_INIT(0);
    size_t len;

    TRY(read_secret_file(src->password_file, PASSWORD_FILE_MAX_BYTES, &b, err));
    len = b.len;
    if (len > 0 && b.data[len - 1] == '\n')
        len--;
    if (len > 0 && b.data[len - 1] == '\r')
        len--;
    if (oci_credentials_set(&out->is, src->username, b.data != NULL ? b.data : "", len, err) < 0)
        return err_wrap(err, "password file %s", src->password_file);
    snprintf(out->id.shown, sizeof out->id.shown, "user %s from %s", src->username, src->password_file);
    return 0;
}

static bool cache_holds(const struct credential_cache *cache, const char *helper)
{
    return cache->helper != NULL && strcmp(cache->helper, helper) == 0 && clock_mono_ms() < cache->until_ms;
}

static int cache_fill(struct credential_cache *cache, const char *helper, const struct buf *reply, struct err *err)
{
    credential_cache_release(cache);
    TRY(str_dup(helper, &cache->helper, err));
    TRY(secret_set(&cache->reply, reply->len > 0 ? reply->data : "", reply->len, err));
    cache->until_ms = clock_mono_ms() + (reply->len > 0 ? CREDENTIAL_HELPER_KEEP_MS : CREDENTIAL_NONE_KEEP_MS);
    return 0;
}

/* A reply of no bytes stands for "has none". */
static int run_helper(const struct credential_source *src, const char *helper, struct credential_cache *cache,
                      const atomic_bool *stopping, struct err *err)
{
    struct helper_run run = {.helper = helper, .stopping = stopping, .limit_ms = HELPER_LIMIT_MS};
    CLEANUP(secret_buf_release) struct buf reply = BUF_INIT(OCI_HELPER_REPLY_MAX_BYTES);
    CLEANUP(free_ptr) char *server = NULL;

    TRY(oci_credentials_server(src->url, &server, err));
    run.server = server;
    TRY(buf_reserve(&reply, OCI_HELPER_REPLY_MAX_BYTES - 1, err));
    TRY(helper_run(&run, &reply, err));
    return cache_fill(cache, helper, &reply, err);
}

static int ask_helper(const struct credential_source *src, const char *helper, struct credential_cache *cache,
                      const atomic_bool *stopping, struct credential *out, struct err *err)
{
    out->id.cached = cache_holds(cache, helper);
    if (!out->id.cached)
        TRY(run_helper(src, helper, cache, stopping, err));
    if (cache->reply.len == 0)
        return 0;
    if (oci_helper_reply(secret_text(&cache->reply), cache->reply.len, &out->is, err) < 0) {
        credential_cache_release(cache);
        return err_wrap(err, "credential helper %s", helper);
    }
    if (out->is.username != NULL)
        snprintf(out->id.shown, sizeof out->id.shown, "user %s from credential helper %s", out->is.username, helper);
    else
        snprintf(out->id.shown, sizeof out->id.shown, "identity token from credential helper %s", helper);
    return 0;
}

static void entry_release(struct oci_auth_entry *e)
{
    oci_auth_entry_release(e);
}

static int look_up(const struct credential_source *src, struct credential_cache *cache, const atomic_bool *stopping,
                   struct credential *out, struct err *err)
{
    CLEANUP(secret_buf_release) struct buf b = BUF_INIT(0);
    CLEANUP(entry_release) struct oci_auth_entry entry = OCI_AUTH_ENTRY_INIT;

    TRY(read_secret_file(src->auth_file, OCI_AUTH_FILE_MAX_BYTES, &b, err));
    if (oci_auth_file_find(b.data != NULL ? b.data : "", b.len, src->url, &entry, err) < 0)
        return err_wrap(err, "auth file %s", src->auth_file);
    if (entry.helper != NULL)
        return ask_helper(src, entry.helper, cache, stopping, out, err);
    out->is = entry.credentials;
    entry.credentials = (struct oci_credentials)OCI_CREDENTIALS_INIT;
    if (secret_is_set(&out->is.identity))
        snprintf(out->id.shown, sizeof out->id.shown, "identity token from %s", src->auth_file);
    else if (out->is.username != NULL)
        snprintf(out->id.shown, sizeof out->id.shown, "user %s from %s", out->is.username, src->auth_file);
    return 0;
}

/* ---- all ---------------------------------------------------------------------------------------------------------- */

static int read_any(const struct credential_source *src, struct credential_cache *cache, const atomic_bool *stopping,
                    struct credential *out, struct err *err)
{
    if (src->username != NULL)
        return read_password(src, out, err);
    if (src->helper != NULL)
        return ask_helper(src, src->helper, cache, stopping, out, err);
    return src->auth_file != NULL ? look_up(src, cache, stopping, out, err) : 0;
}

/* A NUL is in no part. */
static int digest_secrets(struct credential *c, struct err *err)
{
    const struct secret *parts[] = {&c->is.password, &c->is.identity};
    CLEANUP(hasher_cleanup) struct hasher *h = NULL;

    TRY(hasher_new(&h, err));
    if (c->is.username != NULL)
        hasher_update(h, c->is.username, strlen(c->is.username));
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        hasher_update(h, "", 1);
        hasher_update(h, secret_text(parts[i]), parts[i]->len);
    }
    hasher_peek(h, &c->id.digest);
    return 0;
}

/* That a file is missing here is not that the image is; nothing the client could do about it either. */
static enum err_code outward_code(int code)
{
    return code == ERR_TIMEOUT || code == ERR_CANCELLED || code == ERR_NOMEM ? (enum err_code)code : ERR_UPSTREAM;
}

int credential_read(const struct credential_source *src, struct credential_cache *cache, const atomic_bool *stopping,
                    struct credential *out, struct err *err)
{
    struct err why = ERR_INIT;

    *out = (struct credential){.is = OCI_CREDENTIALS_INIT};
    if (read_any(src, cache, stopping, out, &why) == 0 && digest_secrets(out, &why) == 0)
        return 0;
    credential_release(out);
    return err_set(err, outward_code(why.code), "credentials for upstream %s: %s", src->upstream, why.msg);
}
