/* SPDX-License-Identifier: Apache-2.0
 * admin/client.c - the client side of the admin API, on libcurl. */
#include "admin/client.h"

#include "admin/json.h"

#include <curl/curl.h>
#include <errno.h>
#include <sys/stat.h>
#include <sys/un.h>

struct sink {
    struct buf *out;
    struct err *err;
};

static size_t on_body(char *data, size_t size, size_t n, void *arg)
{
    struct sink *sink = arg;

    return buf_add(sink->out, data, size * n, sink->err) < 0 ? 0 : size * n;
}

static void easy_cleanup(CURL **curl)
{
    curl_easy_cleanup(*curl);
    *curl = NULL;
}

static void curl_text_cleanup(char **text)
{
    curl_free(*text);
    *text = NULL;
}

/* Before dialling, so that the usual mistake gets the plainest message. */
static int find_socket(const char *store, char **out_path, struct err *err)
{
    CLEANUP(free_ptr) char *path = NULL;
    struct sockaddr_un un;
    struct stat st;

    TRY(str_printf(&path, err, "%s/" ADMIN_SOCKET, store));
    if (strlen(path) >= sizeof un.sun_path)
        return err_set(err, ERR_USAGE, "%s: too long for a Unix socket (%zu bytes at most); say --admin ADDR:PORT",
                       path, sizeof un.sun_path - 1);
    if (stat(path, &st) != 0 && errno == ENOENT)
        return err_set(err, ERR_NOTFOUND,
                       "no recask is running on store %s (no " ADMIN_SOCKET
                       " there). Start one with \"recask serve\", or "
                       "say which with --store DIR or --admin ADDR:PORT",
                       store);
    *out_path = steal(&path);
    return 0;
}

static int not_reached(const struct admin_target *t, CURL *curl, CURLcode rc, struct err *err)
{
    long sys = 0;

    curl_easy_getinfo(curl, CURLINFO_OS_ERRNO, &sys);
    if (rc == CURLE_OPERATION_TIMEDOUT)
        return err_set(err, ERR_TIMEOUT, "recask does not answer: nothing came for %d s", ADMIN_CLIENT_TIMEOUT_S);
    if (t->address != NULL && rc == CURLE_COULDNT_CONNECT)
        return err_set(err, ERR_NOTFOUND, "no recask answers on %s; is that its --admin address?", t->address);
    if (t->address != NULL)
        return err_set(err, ERR_IO, "%s: %s", t->address, curl_easy_strerror(rc));
    if (rc == CURLE_COULDNT_CONNECT && (sys == EACCES || sys == EPERM))
        return err_set(err, ERR_DENIED, "%s/" ADMIN_SOCKET ": not allowed; run this as the user that runs recask",
                       t->store);
    if (rc == CURLE_COULDNT_CONNECT)
        return err_set(err, ERR_NOTFOUND,
                       "no recask is running on store %s (its " ADMIN_SOCKET " is left over from one that has ended)",
                       t->store);
    return err_set(err, ERR_IO, "%s/" ADMIN_SOCKET ": %s", t->store, curl_easy_strerror(rc));
}

/* The error that an answer tells of, in its own words where it has some. */
static int answered_error(long status, const struct buf *body, struct err *err)
{
    CLEANUP(admin_json_cleanup) struct admin_json *root = NULL;
    struct err ignored = ERR_INIT;
    enum err_code code = status == 404   ? ERR_NOTFOUND
                         : status == 400 ? ERR_USAGE
                         : status == 403 ? ERR_DENIED
                         : status == 409 ? ERR_BUSY
                                         : ERR_IO;

    if (body->len > 0 && admin_json_parse(body->data, body->len, &root, &ignored) == 0) {
        const char *message = admin_json_text(admin_json_get(root, "error"), "message");

        if (*message != '\0')
            return err_set(err, code, "%s", message);
    }
    return err_set(err, code, "it answered with HTTP status %ld; is a recask there?", status);
}

/* ref is escaped, slashes too: what a person types may hold anything, and curl would fold "/../". */
static int build_url(const struct admin_target *t, CURL *curl, const char *path, const char *ref, char **out,
                     struct err *err)
{
    CLEANUP(curl_text_cleanup) char *escaped = NULL;

    if (ref != NULL) {
        escaped = curl_easy_escape(curl, ref, (int)strlen(ref));
        if (escaped == NULL)
            return err_nomem(err, strlen(ref));
    }
    return str_printf(out, err, "http://%s%s%s", t->address != NULL ? t->address : "localhost", path,
                      escaped != NULL ? escaped : "");
}

static int ask(const struct admin_target *t, bool post, const char *path, const char *ref, struct buf *out,
               struct err *err)
{
    CLEANUP(easy_cleanup) CURL *curl = curl_easy_init();
    CLEANUP(free_ptr) char *url = NULL;
    CLEANUP(free_ptr) char *socket = NULL;
    struct sink sink = {.out = out, .err = err};
    long status = 0;
    CURLcode rc;

    if (curl == NULL)
        return err_nomem(err, 0);
    if (t->address == NULL)
        TRY(find_socket(t->store, &socket, err));
    TRY(build_url(t, curl, path, ref, &url, err));
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH, socket);
    if (post)
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, "");
    curl_easy_setopt(curl, CURLOPT_PROXY, ""); /* http_proxy is for the way out, never for this */
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, 5L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)ADMIN_CLIENT_TIMEOUT_S);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &sink);
    rc = curl_easy_perform(curl);
    if (rc == CURLE_WRITE_ERROR && err->code != 0)
        return err->code;
    if (rc != CURLE_OK)
        return not_reached(t, curl, rc, err);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    return status == 200 ? 0 : answered_error(status, out, err);
}

int admin_client_get(const struct admin_target *t, const char *path, const char *ref, struct buf *out, struct err *err)
{
    return ask(t, false, path, ref, out, err);
}

int admin_client_post(const struct admin_target *t, const char *path, const char *ref, struct buf *out, struct err *err)
{
    return ask(t, true, path, ref, out, err);
}
