/* SPDX-License-Identifier: Apache-2.0
 * proxy/access_users.c - the htpasswd file, and the header that names one of its users.
 */
#include "base/base64.h"
#include "base/buf.h"
#include "base/fsutil.h"
#include "base/secret.h"
#include "proxy/access_internal.h"

#include <crypt.h>
#include <string.h>
#include <strings.h>

#define FILE_MAX_BYTES ((size_t)1 << 20)
#define HASH_MAX_BYTES 256
#define BCRYPT_COST_MIN 4
#define BCRYPT_COST_MAX 16 /* some seconds per check */
#define BCRYPT_BYTES 60
#define YESCRYPT_MAX_BYTES (256ull << 20) /* of memory per check */

/* ---- the users --------------------------------------------------------------------------------------------------- */

struct users *users_ref(struct users *us)
{
    atomic_fetch_add(&us->refs, 1);
    return us;
}

void users_unref(struct users *us)
{
    if (us == NULL || atomic_fetch_sub(&us->refs, 1) != 1)
        return;
    for (size_t i = 0; i < us->count; i++) {
        free(us->list[i].name);
        free(us->list[i].hash);
    }
    free(us->list);
    free(us);
}

static void users_cleanup(struct users **us)
{
    users_unref(*us);
    *us = NULL;
}

const struct user *users_find(const struct users *us, const char *name)
{
    const struct user *found = NULL;

    for (size_t i = 0; i < us->count; i++)
        if (strcmp(us->list[i].name, name) == 0)
            found = &us->list[i];
    return found;
}

const char *users_hash(const struct users *us, const char *name, uint64_t seed)
{
    const struct user *u = users_find(us, name);

    return u != NULL ? u->hash : us->list[seed % us->count].hash;
}

/* ---- one line ---------------------------------------------------------------------------------------------------- */

struct line {
    const char *path;
    unsigned number;
    const char *text;
    size_t len;
};

static int bad_line(const struct line *l, struct err *err, const char *why)
{
    return err_set(err, ERR_USAGE, "%s: line %u: %s", l->path, l->number, why);
}

static const char alphabet[] = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* "$2y$10$" and 53 characters of salt and hash; crypt_checksalt() looks at the first four alone. */
static bool bcrypt_whole(const char *hash)
{
    return strlen(hash) == BCRYPT_BYTES && strspn(hash + 4, "0123456789") == 2 && hash[6] == '$' &&
           strtol(hash + 4, NULL, 10) >= BCRYPT_COST_MIN && strspn(hash + 7, alphabet) == BCRYPT_BYTES - 7;
}

/* "$y$j9T$": the flavour, then log2 of N and r, each less one as a digit of `alphabet`. crypt_gensalt() writes no others. */
static bool yescrypt_fits(const char *hash)
{
    const char *n = hash[3] == 'j' && hash[4] != '\0' ? strchr(alphabet, hash[4]) : NULL;
    const char *r = n != NULL && hash[5] != '\0' && hash[6] == '$' ? strchr(alphabet, hash[5]) : NULL;

    return r != NULL && n - alphabet < 32 &&
           (128ull << (n - alphabet + 1)) * (unsigned long long)(r - alphabet + 1) <= YESCRYPT_MAX_BYTES;
}

static int check_hash(const struct line *l, const char *hash, struct err *err)
{
    bool bcrypt = begins(hash, "$2a$") || begins(hash, "$2b$") || begins(hash, "$2y$");

    if (!bcrypt && !begins(hash, "$y$"))
        return bad_line(l, err,
                        "the password is neither bcrypt ($2y$...) nor yescrypt ($y$...): htpasswd -B makes bcrypt");
    if (bcrypt && strtol(hash + 4, NULL, 10) > BCRYPT_COST_MAX)
        return bad_line(l, err, "bcrypt with a cost over 16 takes seconds per request");
    if (crypt_checksalt(hash) != CRYPT_SALT_OK || (bcrypt && !bcrypt_whole(hash)) || strrchr(hash, '$')[1] == '\0')
        return bad_line(l, err, "the password's hash is damaged");
    if (!bcrypt && !yescrypt_fits(hash))
        return bad_line(l, err, "yescrypt with a cost over 9, or other parameters than mkpasswd makes");
    return 0;
}

static bool printable(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return false;
    return true;
}

static int add_user(const struct line *l, struct users *us, struct err *err)
{
    const char *colon = memchr(l->text, ':', l->len);
    CLEANUP(free_ptr) char *name = NULL;
    CLEANUP(free_ptr) char *hash = NULL;
    size_t name_len = colon != NULL ? (size_t)(colon - l->text) : 0;
    struct user *list;

    if (name_len == 0)
        return bad_line(l, err, "not of the form user:hash");
    if (name_len > ACCESS_USER_MAX_BYTES || l->len - name_len - 1 > HASH_MAX_BYTES)
        return bad_line(l, err, "too long");
    if (!printable(l->text, l->len))
        return bad_line(l, err, "control characters");
    TRY(str_printf(&name, err, "%.*s", (int)name_len, l->text));
    TRY(str_printf(&hash, err, "%.*s", (int)(l->len - name_len - 1), colon + 1));
    if (strcmp(name, "*") == 0 || strcmp(name, "anonymous") == 0)
        return bad_line(l, err, "this name means something else in rules");
    if (users_find(us, name) != NULL)
        return bad_line(l, err, "the user is in the file twice");
    TRY(check_hash(l, hash, err));
    list = realloc(us->list, (us->count + 1) * sizeof(*list));
    if (list == NULL)
        return err_nomem(err, (us->count + 1) * sizeof(*list));
    us->list = list;
    us->list[us->count++] = (struct user){.name = steal(&name), .hash = steal(&hash)};
    return 0;
}

int users_parse(const char *path, const char *text, size_t len, struct users **out, struct err *err)
{
    CLEANUP(users_cleanup) struct users *us = calloc(1, sizeof(*us));
    struct line l = {.path = path};
    const char *end = text + len;
    static const char mark[] = "\xef\xbb\xbf"; /* some editors begin UTF-8 with it */

    if (us == NULL)
        return err_nomem(err, sizeof(*us));
    atomic_init(&us->refs, 1);
    if (len >= strlen(mark) && memcmp(text, mark, strlen(mark)) == 0)
        text += strlen(mark);
    for (const char *p = text; p < end; p += l.len + 1) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        struct line trimmed;

        l.number++;
        l.text = p;
        l.len = newline != NULL ? (size_t)(newline - p) : (size_t)(end - p);
        trimmed = l;
        while (trimmed.len > 0 && strchr(" \t\r", trimmed.text[trimmed.len - 1]) != NULL)
            trimmed.len--;
        if (trimmed.len > 0 && *p != '#')
            TRY(add_user(&trimmed, us, err));
    }
    if (us->count == 0)
        return err_set(err, ERR_USAGE, "%s: has no user, so nobody could read anything", path);
    *out = steal(&us);
    return 0;
}

int users_load(const char *path, struct users **out, struct err *err)
{
    CLEANUP(buf_release) struct buf text = BUF_INIT(FILE_MAX_BYTES);
    int rc = fs_read_file(path, FILE_MAX_BYTES, &text, err);

    if (rc < 0) {
        err->code = ERR_USAGE; /* a file that the configuration names */
        return ERR_USAGE;
    }
    return users_parse(path, text.data != NULL ? text.data : "", text.len, out, err);
}

/* ---- the header -------------------------------------------------------------------------------------------------- */

static bool split(const char *plain, size_t len, char *out_user, char *out_password)
{
    const char *colon = memchr(plain, ':', len);
    size_t user_len = colon != NULL ? (size_t)(colon - plain) : 0;
    size_t password_len = colon != NULL ? len - user_len - 1 : 0;

    if (user_len == 0 || user_len > ACCESS_USER_MAX_BYTES || password_len > ACCESS_PASSWORD_MAX_BYTES ||
        !printable(plain, len))
        return false;
    memcpy(out_user, plain, user_len);
    out_user[user_len] = '\0';
    memcpy(out_password, colon + 1, password_len);
    out_password[password_len] = '\0';
    return true;
}

bool basic_parse(const char *authorization, char out_user[ACCESS_USER_MAX_BYTES + 1],
                 char out_password[ACCESS_PASSWORD_MAX_BYTES + 1])
{
    uint8_t plain[BASE64_DATA_BYTES(BASE64_TEXT_BYTES(ACCESS_USER_MAX_BYTES + 1 + ACCESS_PASSWORD_MAX_BYTES))];
    size_t len = 0, text_len;
    bool ok;

    out_user[0] = out_password[0] = '\0';
    if (authorization == NULL || strncasecmp(authorization, "Basic ", strlen("Basic ")) != 0)
        return false;
    authorization += strlen("Basic ");
    authorization += strspn(authorization, " ");
    text_len = strlen(authorization);
    while (text_len > 0 && authorization[text_len - 1] == ' ')
        text_len--;
    if (BASE64_DATA_BYTES(text_len) > sizeof(plain))
        return false;
    ok = base64_decode(authorization, text_len, plain, &len) && split((const char *)plain, len, out_user, out_password);
    secret_wipe(plain, sizeof(plain));
    return ok;
}
