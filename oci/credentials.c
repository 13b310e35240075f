/* SPDX-License-Identifier: Apache-2.0
 * oci/credentials.c - docker's config.json and docker-credential-helpers' answers.
 *
 * The keys of `auths` have had many forms over the years; docker itself reduces them to a host. Here a key also counts for
 * less than it could when it says more: a scheme or a path that is not the upstream's is somebody else's.
 */
#include "oci/credentials.h"

#include "base/base64.h"
#include "oci/json_internal.h"

#include <string.h>
#include <strings.h>

#define HUB_SERVER "https://index.docker.io/v1/"
#define TOKEN_USER "<token>"

/* ---- credentials -------------------------------------------------------------------------------------------------- */

void oci_credentials_release(struct oci_credentials *c)
{
    free(c->username);
    secret_release(&c->password);
    secret_release(&c->identity);
    c->username = NULL;
}

bool oci_credentials_anonymous(const struct oci_credentials *c)
{
    return !secret_is_set(&c->password) && !secret_is_set(&c->identity);
}

static bool has_control(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return true;
    return false;
}

static int check_username(const char *username, struct err *err)
{
    if (username[0] == '\0')
        return err_set(err, ERR_FORMAT, "an empty user name");
    if (strlen(username) > OCI_USERNAME_MAX_BYTES)
        return err_set(err, ERR_LIMIT, "a user name of more than %d bytes", OCI_USERNAME_MAX_BYTES);
    if (strchr(username, ':') != NULL)
        return err_set(err, ERR_FORMAT, "a user name with a \":\", which cannot be sent");
    if (has_control(username, strlen(username)))
        return err_set(err, ERR_FORMAT, "a control character in a user name");
    return 0;
}

static int check_secret(const char *text, size_t len, const char *what, struct err *err)
{
    if (len == 0)
        return err_set(err, ERR_FORMAT, "an empty %s", what);
    if (len > OCI_SECRET_MAX_BYTES)
        return err_set(err, ERR_LIMIT, "a %s of more than %zu bytes", what, OCI_SECRET_MAX_BYTES);
    if (has_control(text, len))
        return err_set(err, ERR_FORMAT, "a control character in a %s", what);
    return 0;
}

int oci_credentials_set(struct oci_credentials *out, const char *username, const char *password, size_t password_len,
                        struct err *err)
{
    *out = (struct oci_credentials)OCI_CREDENTIALS_INIT;
    TRY(check_username(username, err));
    TRY(check_secret(password, password_len, "password", err));
    TRY(secret_set(&out->password, password, password_len, err));
    if (str_dup(username, &out->username, err) < 0)
        secret_release(&out->password);
    return err->code;
}

/* username: NULL, or shown in messages only. */
static int set_identity(struct oci_credentials *out, const char *username, const char *token, size_t len,
                        struct err *err)
{
    TRY(check_secret(token, len, "identity token", err));
    if (username != NULL && username[0] != '\0') {
        TRY(check_username(username, err));
        TRY(str_dup(username, &out->username, err));
    }
    return secret_set(&out->identity, token, len, err);
}

int oci_credentials_basic(const struct oci_credentials *c, struct secret *out, struct err *err)
{
    size_t user_len = strlen(c->username);
    size_t len = user_len + 1 + c->password.len;
    char *plain = malloc(len + BASE64_TEXT_BYTES(len));
    int rc;

    if (plain == NULL)
        return err_nomem(err, len);
    memcpy(plain, c->username, user_len);
    plain[user_len] = ':';
    memcpy(plain + user_len + 1, secret_text(&c->password), c->password.len);
    base64_encode(plain, len, plain + len);
    rc = secret_set(out, plain + len, strlen(plain + len), err);
    secret_wipe(plain, len + BASE64_TEXT_BYTES(len));
    free(plain);
    return rc;
}

/* ---- places ------------------------------------------------------------------------------------------------------- */

/* Of an upstream's URL or a key. Points into it. */
struct place {
    bool https, http; /* neither: the key does not say */
    const char *host; /* with the port, unless it is the scheme's own */
    size_t host_len;
    const char *path; /* behind the host, without slashes at either end */
    size_t path_len;
};

static bool ends_with(const char *text, size_t len, const char *end)
{
    return len > strlen(end) && memcmp(text + len - strlen(end), end, strlen(end)) == 0;
}

static struct place place_of(const char *text)
{
    struct place p = {.https = strncasecmp(text, "https://", strlen("https://")) == 0,
                      .http = strncasecmp(text, "http://", strlen("http://")) == 0};

    p.host = text + (p.https ? strlen("https://") : p.http ? strlen("http://") : 0);
    p.host_len = strcspn(p.host, "/");
    p.path = p.host + p.host_len + strspn(p.host + p.host_len, "/");
    p.path_len = strlen(p.path);
    while (p.path_len > 0 && p.path[p.path_len - 1] == '/')
        p.path_len--;
    if (p.https && ends_with(p.host, p.host_len, ":443"))
        p.host_len -= strlen(":443");
    if (p.http && ends_with(p.host, p.host_len, ":80"))
        p.host_len -= strlen(":80");
    return p;
}

static bool host_is(const struct place *p, const char *host)
{
    return p->host_len == strlen(host) && strncasecmp(p->host, host, p->host_len) == 0;
}

static bool is_hub(const struct place *p)
{
    return host_is(p, "index.docker.io") || host_is(p, "docker.io") || host_is(p, "registry-1.docker.io");
}

static bool is_api_path(const struct place *p)
{
    return p->path_len == 2 && (memcmp(p->path, "v1", 2) == 0 || memcmp(p->path, "v2", 2) == 0);
}

/* How well a key names an upstream: -1 not at all, else the length of the path that both have. */
static long match(const char *key, const struct place *up)
{
    struct place k = place_of(key);

    if ((k.https && up->http) || (k.http && up->https))
        return -1;
    if (!(is_hub(&k) && is_hub(up)) && (k.host_len != up->host_len || strncasecmp(k.host, up->host, k.host_len) != 0))
        return -1;
    if (k.path_len == 0 || is_api_path(&k))
        return 0;
    if (k.path_len > up->path_len || memcmp(k.path, up->path, k.path_len) != 0 ||
        (up->path_len > k.path_len && up->path[k.path_len] != '/'))
        return -1;
    return (long)k.path_len;
}

int oci_credentials_server(const char *url, char **out, struct err *err)
{
    struct place p = place_of(url);

    if (is_hub(&p))
        return str_dup(HUB_SERVER, out, err);
    return str_printf(out, err, "%.*s", (int)p.host_len, p.host);
}

/* ---- JSON --------------------------------------------------------------------------------------------------------- */

/* Recursion is bounded by oci_json_load(). jansson gives its strings away as constant, but they are its heap. */
static void wipe(json_t *v)
{
    const char *key;
    json_t *child;
    size_t i;

    if (json_is_string(v))
        secret_wipe((char *)(uintptr_t)json_string_value(v), json_string_length(v));
    json_array_foreach(v, i, child)
    {
        wipe(child);
    }
    json_object_foreach(v, key, child)
    {
        wipe(child);
    }
}

static void wiped_json_free(json_t **root)
{
    wipe(*root);
    oci_json_free(root);
}

static int load(const char *body, size_t len, size_t max_bytes, json_t **out, struct err *err)
{
    struct oci_json_traits traits;

    TRY(oci_json_load(body, len, max_bytes, out, &traits, err));
    return traits.duplicate_keys ? err_set(err, ERR_FORMAT, "duplicate JSON keys") : 0;
}

/* "" when it is absent or null. */
static int text_at(const json_t *object, const char *key, const char **out, size_t *out_len, struct err *err)
{
    const json_t *v = json_object_get(object, key);

    *out = "";
    *out_len = 0;
    if (v == NULL || json_is_null(v))
        return 0;
    if (!json_is_string(v))
        return err_set(err, ERR_FORMAT, "\"%s\" is not a string", key);
    *out = json_string_value(v);
    *out_len = json_string_length(v);
    return 0;
}

/* NULL when the file does not have it. */
static int object_at(const json_t *root, const char *key, const json_t **out, struct err *err)
{
    *out = json_object_get(root, key);
    if (*out == NULL || json_is_null(*out)) {
        *out = NULL;
        return 0;
    }
    return json_is_object(*out) ? 0 : err_set(err, ERR_FORMAT, "\"%s\" is not an object", key);
}

/* ---- the auth file ------------------------------------------------------------------------------------------------ */

static int split_auth(char *plain, size_t len, struct oci_credentials *out, struct err *err)
{
    char *colon = memchr(plain, ':', len);

    while (len > 0 && plain[len - 1] == '\0') /* as docker does: an old one wrote them */
        len--;
    if (colon == NULL || colon >= plain + len || memchr(plain, '\0', (size_t)(colon - plain)) != NULL)
        return err_set(err, ERR_FORMAT, "\"auth\" is not user:password");
    *colon = '\0';
    return oci_credentials_set(out, plain, colon + 1, len - (size_t)(colon + 1 - plain), err);
}

static int decode_auth(const char *auth, size_t auth_len, struct oci_credentials *out, struct err *err)
{
    char *plain = malloc(BASE64_DATA_BYTES(auth_len));
    size_t len = 0;
    int rc;

    if (plain == NULL)
        return err_nomem(err, auth_len);
    if (base64_decode(auth, auth_len, (uint8_t *)plain, &len))
        rc = split_auth(plain, len, out, err);
    else
        rc = err_set(err, ERR_FORMAT, "\"auth\" is not base64");
    secret_wipe(plain, BASE64_DATA_BYTES(auth_len));
    free(plain);
    return rc;
}

/* `docker login` leaves an empty entry behind for what is in a helper. */
static bool has_content(const json_t *entry)
{
    static const char *const keys[] = {"auth", "identitytoken", "password"};

    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const json_t *v = json_object_get(entry, keys[i]);

        if (v != NULL && !json_is_null(v) && !(json_is_string(v) && json_string_length(v) == 0))
            return true;
    }
    return false;
}

static int read_entry(const json_t *entry, struct oci_credentials *out, struct err *err)
{
    const char *auth, *identity, *username, *password;
    size_t auth_len, identity_len, username_len, password_len;

    TRY(text_at(entry, "identitytoken", &identity, &identity_len, err));
    TRY(text_at(entry, "username", &username, &username_len, err));
    TRY(text_at(entry, "auth", &auth, &auth_len, err));
    TRY(text_at(entry, "password", &password, &password_len, err));
    if (identity_len > 0)
        return set_identity(out, username, identity, identity_len, err);
    if (auth_len > 0)
        return decode_auth(auth, auth_len, out, err);
    return oci_credentials_set(out, username, password, password_len, err);
}

/* The best key of an object; among equals the first. With content_only, entries without credentials are passed over. */
static const json_t *best(const json_t *object, const struct place *up, bool content_only)
{
    const json_t *found = NULL;
    long rank = -1;
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)object, key, v)
    {
        long r = match(key, up);

        if (r > rank && (!content_only || has_content(v))) {
            rank = r;
            found = v;
        }
    }
    return found;
}

static int take_helper(const json_t *name, const char *key, char **out, struct err *err)
{
    const char *text = json_string_value(name);

    if (text == NULL)
        return err_set(err, ERR_FORMAT, "\"%s\" names a helper by something that is not a string", key);
    if (text[0] == '\0') /* docker: the file itself */
        return 0;
    if (!oci_helper_name_valid(text))
        return err_set(err, ERR_FORMAT, "\"%s\" names a helper with an odd name", key);
    return str_dup(text, out, err);
}

static int find_entry(const json_t *root, const char *url, struct oci_auth_entry *out, struct err *err)
{
    struct place up = place_of(url);
    const json_t *helpers, *auths;
    const json_t *helper, *entry;
    const json_t *store = json_object_get(root, "credsStore");

    TRY(object_at(root, "credHelpers", &helpers, err));
    TRY(object_at(root, "auths", &auths, err));
    helper = helpers != NULL ? best(helpers, &up, false) : NULL;
    if (helper != NULL)
        TRY(take_helper(helper, "credHelpers", &out->helper, err));
    if (out->helper != NULL)
        return 0;
    entry = auths != NULL ? best(auths, &up, true) : NULL;
    if (entry != NULL)
        return read_entry(entry, &out->credentials, err);
    if (helper == NULL && store != NULL && !json_is_null(store))
        return take_helper(store, "credsStore", &out->helper, err);
    return 0;
}

int oci_auth_file_find(const char *body, size_t len, const char *url, struct oci_auth_entry *out, struct err *err)
{
    CLEANUP(wiped_json_free) json_t *root = NULL;

    *out = (struct oci_auth_entry)OCI_AUTH_ENTRY_INIT;
    TRY(load(body, len, OCI_AUTH_FILE_MAX_BYTES, &root, err));
    if (find_entry(root, url, out, err) < 0)
        oci_auth_entry_release(out);
    return err->code;
}

void oci_auth_entry_release(struct oci_auth_entry *e)
{
    oci_credentials_release(&e->credentials);
    free(e->helper);
    e->helper = NULL;
}

/* ---- helpers ------------------------------------------------------------------------------------------------------ */

static int read_reply(const json_t *root, struct oci_credentials *out, struct err *err)
{
    const char *username, *secret;
    size_t username_len, secret_len;

    TRY(text_at(root, "Username", &username, &username_len, err));
    TRY(text_at(root, "Secret", &secret, &secret_len, err));
    if (strcmp(username, TOKEN_USER) == 0)
        return set_identity(out, NULL, secret, secret_len, err);
    return oci_credentials_set(out, username, secret, secret_len, err);
}

int oci_helper_reply(const char *body, size_t len, struct oci_credentials *out, struct err *err)
{
    CLEANUP(wiped_json_free) json_t *root = NULL;

    *out = (struct oci_credentials)OCI_CREDENTIALS_INIT;
    TRY(load(body, len, OCI_HELPER_REPLY_MAX_BYTES, &root, err));
    if (read_reply(root, out, err) < 0)
        oci_credentials_release(out);
    return err->code;
}

bool oci_helper_has_none(const char *body, size_t len)
{
    static const char text[] = "credentials not found in native keychain";

    return memmem(body, len, text, strlen(text)) != NULL;
}

bool oci_helper_name_valid(const char *name)
{
    return name[0] != '\0' && name[0] != '.' &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.") == strlen(name);
}
