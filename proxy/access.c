/* SPDX-License-Identifier: Apache-2.0
 * proxy/access.c - who may read what.
 *
 *   credentials of the request -> known as right or wrong? -> the answer
 *                              -> fewer than `checks_max` are being checked: check, remember, wake those who wait
 *                              -> else wait, and ask again
 *
 * So parallel requests with the same new password cost one check: when the others ask again it is remembered. What is
 * remembered is an HMAC of user and password under a key of this process; it goes when the file changes.
 *
 * A name that is not in the file is checked against some user's hash, always the same one, with a result that is not looked
 * at: time does not tell who is in the file.
 */
#include "base/clock.h"
#include "base/digest.h"
#include "base/fsutil.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/secret.h"
#include "proxy/access_internal.h"
#include "proxy/proxy_internal.h"

#include <crypt.h>
#include <sys/random.h>
#include <unistd.h>

#define MEMORY 256           /* credentials remembered */
#define RIGHT_MS (5 * 60000) /* a password that was right */
#define WRONG_MS 2000        /* one that was wrong: a client's parallel requests cost one check */
#define LOOK_MS 1000         /* the file is looked at no more often */
#define WAITING_MAX 256
#define HMAC_BLOCK_BYTES 64

struct remembered {
    struct digest tag;
    int64_t until_ms; /* 0: empty */
    bool right;
};

struct rule {
    char **users, **repositories;
};

struct access {
    char *path;
    struct rule *rules;
    size_t rule_count;
    bool anonymous; /* some rule names everybody */
    uint8_t key[DIGEST_BYTES];
    unsigned checks_max;

    struct lock lock; /* RANK_UPSTREAM, since waiters are woken under it: all below */
    struct users *users;
    struct fs_stamp state; /* of the file that they are from */
    struct fs_stamp seen;  /* at the last look: what is being written is not read before it has settled */
    bool unreadable;       /* and said so */
    int64_t look_ms;
    struct remembered memory[MEMORY];
    unsigned next; /* of `memory`, to be overwritten */
    unsigned checks, waiting;
    struct waiter_list waiters;
};

/* ---- rules ------------------------------------------------------------------------------------------------------- */

static void strings_free(char **list)
{
    for (size_t i = 0; list != NULL && list[i] != NULL; i++)
        free(list[i]);
    free(list);
}

static int strings_copy(const char *const *from, char ***out, struct err *err)
{
    size_t count = 0;

    while (from != NULL && from[count] != NULL)
        count++;
    *out = calloc(count + 1, sizeof(**out));
    if (*out == NULL)
        return err_nomem(err, (count + 1) * sizeof(**out));
    for (size_t i = 0; i < count; i++)
        TRY(str_dup(from[i], &(*out)[i], err));
    return 0;
}

static bool names_user(const struct rule *rule, const char *user)
{
    for (char **u = rule->users; *u != NULL; u++)
        if (strcmp(*u, "anonymous") == 0 || (user[0] != '\0' && (strcmp(*u, "*") == 0 || strcmp(*u, user) == 0)))
            return true;
    return false;
}

/* "docker.io/library/alpine"; "docker.io/library/" and a star: everything below; a star: everything. */
static bool names_repository(const struct rule *rule, const char *upstream, const char *name)
{
    size_t upstream_len = strlen(upstream);

    for (char **p = rule->repositories; *p != NULL; p++) {
        const char *pattern = *p;
        size_t len = strlen(pattern);
        bool all_below = len >= 2 && strcmp(pattern + len - 2, "/*") == 0;

        if (strcmp(pattern, "*") == 0)
            return true;
        if (strncmp(pattern, upstream, upstream_len) != 0 || pattern[upstream_len] != '/')
            continue;
        pattern += upstream_len + 1;
        len -= upstream_len + 1;
        if (all_below ? strncmp(name, pattern, len - 1) == 0 : strcmp(name, pattern) == 0)
            return true;
    }
    return false;
}

static bool allowed(const struct access *a, const char *user, const struct access_request *r)
{
    if (a->rule_count == 0)
        return user[0] != '\0';
    if (r->upstream == NULL)
        return user[0] != '\0' || a->anonymous;
    for (size_t i = 0; i < a->rule_count; i++)
        if (names_user(&a->rules[i], user) && names_repository(&a->rules[i], r->upstream, r->name))
            return true;
    return false;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* With the lock held. What was right under the old file says nothing under the new one. */
static void take_users(struct access *a, struct users *us, const struct fs_stamp *state)
{
    users_unref(a->users);
    a->users = us;
    a->state = *state;
    a->unreadable = false;
    memset(a->memory, 0, sizeof(a->memory));
}

static bool time_to_look(struct access *a)
{
    int64_t now = clock_mono_ms();
    bool look;

    lock_take(&a->lock);
    look = now >= a->look_ms;
    if (look)
        a->look_ms = now + LOOK_MS;
    lock_give(&a->lock);
    return look;
}

static void say_unreadable(struct access *a, const struct err *err)
{
    lock_take(&a->lock);
    bool said = a->unreadable;
    a->unreadable = true;
    lock_give(&a->lock);
    if (!said)
        log_event(LOG_WARN, "access.file", "error=%s then=%s", log_quote(err->msg).s,
                  log_quote("the users of the last good file stay").s);
}

static void look_at_file(struct access *a)
{
    struct users *us = NULL;
    struct err err = ERR_INIT;

    if (!time_to_look(a))
        return;
    struct fs_stamp state = fs_stamp_of(a->path);
    lock_take(&a->lock);
    bool same = !a->unreadable && fs_stamp_same(&state, &a->state);
    bool settled = fs_stamp_same(&state, &a->seen);
    a->seen = state;
    lock_give(&a->lock);
    if (same || !settled)
        return;
    if (users_load(a->path, &us, &err) < 0) {
        say_unreadable(a, &err);
        return;
    }
    size_t count = us->count;
    lock_take(&a->lock);
    take_users(a, us, &state);
    lock_give(&a->lock);
    log_event(LOG_INFO, "access.file", "file=%s users=%zu", log_quote(a->path).s, count);
}

/* ---- what is remembered ------------------------------------------------------------------------------------------ */

static void hash_two(const void *first, size_t first_len, const void *second, size_t second_len, struct hasher *h,
                     struct digest *out)
{
    hasher_update(h, first, first_len);
    hasher_update(h, second, second_len);
    hasher_peek(h, out);
}

/* HMAC-SHA256 (RFC 2104) of the credentials as they were sent: user, colon, password. */
static int tag_of(const struct access *a, const char *user, const char *password, struct digest *out, struct err *err)
{
    CLEANUP(hasher_cleanup) struct hasher *inner = NULL;
    CLEANUP(hasher_cleanup) struct hasher *outer = NULL;
    uint8_t pad[HMAC_BLOCK_BYTES] = {0};
    struct digest d;

    TRY(hasher_new(&inner, err));
    TRY(hasher_new(&outer, err));
    for (size_t i = 0; i < sizeof(pad); i++)
        pad[i] = (uint8_t)((i < sizeof(a->key) ? a->key[i] : 0) ^ 0x36);
    hasher_update(inner, pad, sizeof(pad));
    hasher_update(inner, user, strlen(user));
    hash_two(":", 1, password, strlen(password), inner, &d);
    for (size_t i = 0; i < sizeof(pad); i++)
        pad[i] ^= 0x36 ^ 0x5c;
    hash_two(pad, sizeof(pad), d.b, sizeof(d.b), outer, out);
    secret_wipe(pad, sizeof(pad));
    return 0;
}

static bool same_bytes(const void *a, const void *b, size_t len)
{
    const volatile uint8_t *x = a, *y = b;
    uint8_t diff = 0;

    for (size_t i = 0; i < len; i++)
        diff |= (uint8_t)(x[i] ^ y[i]);
    return diff == 0;
}

/* With the lock held. */
static const struct remembered *recall(const struct access *a, const struct digest *tag)
{
    const struct remembered *found = NULL;
    int64_t now = clock_mono_ms();

    for (size_t i = 0; i < MEMORY; i++)
        if (a->memory[i].until_ms > now && same_bytes(a->memory[i].tag.b, tag->b, sizeof(tag->b)))
            found = &a->memory[i];
    return found;
}

/* With the lock held. Wrong ones have a part of their own: who guesses pushes no right one out. */
static void remember(struct access *a, const struct digest *tag, bool right)
{
    unsigned half = MEMORY / 2, at = a->next++ % half;

    a->memory[right ? at : half + at] =
        (struct remembered){.tag = *tag, .until_ms = clock_mono_ms() + (right ? RIGHT_MS : WRONG_MS), .right = right};
}

/* ---- a check ----------------------------------------------------------------------------------------------------- */

/* seed: of the name under the process's key, so that nobody outside knows whose hash stands in for it. */
static bool password_right(const struct users *us, const char *user, const char *password, uint64_t seed)
{
    const char *hash = users_hash(us, user, seed);
    struct crypt_data *data = calloc(1, sizeof(*data));
    const char *got = data != NULL ? crypt_rn(password, hash, data, (int)sizeof(*data)) : NULL;
    bool right = got != NULL && strlen(got) == strlen(hash) && same_bytes(got, hash, strlen(hash)) &&
                 users_find(us, user) != NULL;

    if (data != NULL)
        secret_wipe(data, sizeof(*data));
    free(data);
    return right;
}

/* Outside the lock but for its ends; `checks` was counted up by the caller. */
static bool run_check(struct access *a, struct users *us, const char *user, const char *password,
                      const struct digest *tag, uint64_t seed)
{
    bool right = password_right(us, user, password, seed);

    lock_take(&a->lock);
    if (a->users == us)
        remember(a, tag, right);
    a->checks--;
    a->waiting = 0;
    waiter_wake_all(&a->waiters);
    lock_give(&a->lock);
    users_unref(us);
    return right;
}

/* ACCESS_ALLOWED: the user is who it says; UNKNOWN; WAIT; BUSY. */
static enum access_verdict authenticate(struct access *a, const char *user, const char *password, struct waiter *w)
{
    struct digest tag = {.b = {0}}, name = {.b = {0}};
    struct users *us = NULL;
    struct err err = ERR_INIT;
    enum access_verdict v;

    if (tag_of(a, user, password, &tag, &err) < 0 || tag_of(a, user, "", &name, &err) < 0)
        return ACCESS_BUSY;
    lock_take(&a->lock);
    const struct remembered *m = recall(a, &tag);
    if (m != NULL) {
        v = m->right ? ACCESS_ALLOWED : ACCESS_UNKNOWN;
    } else if (a->checks < a->checks_max) {
        a->checks++;
        us = users_ref(a->users);
        v = ACCESS_ALLOWED;
    } else if (a->waiting < WAITING_MAX) {
        a->waiting++;
        waiter_add(&a->waiters, w);
        v = ACCESS_WAIT;
    } else {
        v = ACCESS_BUSY;
    }
    lock_give(&a->lock);
    if (us != NULL && !run_check(a, us, user, password, &tag, digest_hash64(&name)))
        v = ACCESS_UNKNOWN;
    return v;
}

enum access_verdict access_check(struct access *a, const struct access_request *r, struct waiter *w)
{
    char user[ACCESS_USER_MAX_BYTES + 1], password[ACCESS_PASSWORD_MAX_BYTES + 1];
    enum access_verdict v = ACCESS_UNKNOWN;

    look_at_file(a);
    if (allowed(a, "", r))
        return ACCESS_ALLOWED;
    if (basic_parse(r->authorization, user, password))
        v = authenticate(a, user, password, w);
    secret_wipe(password, sizeof(password));
    return v != ACCESS_ALLOWED || allowed(a, user, r) ? v : ACCESS_FORBIDDEN;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static int copy_rules(struct access *a, const struct access_options *opt, struct err *err)
{
    a->rules = calloc(opt->rule_count + 1, sizeof(*a->rules));
    if (a->rules == NULL)
        return err_nomem(err, (opt->rule_count + 1) * sizeof(*a->rules));
    for (size_t i = 0; i < opt->rule_count; i++) {
        struct rule *rule = &a->rules[a->rule_count++];

        TRY(strings_copy(opt->rules[i].users, &rule->users, err));
        TRY(strings_copy(opt->rules[i].repositories, &rule->repositories, err));
        a->anonymous |= names_user(rule, "");
    }
    return 0;
}

static int set_up(struct access *a, const struct access_options *opt, struct err *err)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    struct users *us = NULL;

    a->checks_max = cpus >= 4 ? (unsigned)cpus / 2 : 1;
    if (getrandom(a->key, sizeof(a->key), 0) != (ssize_t)sizeof(a->key))
        return err_set(err, ERR_IO, "no random bytes");
    TRY(str_dup(opt->htpasswd, &a->path, err));
    TRY(copy_rules(a, opt, err));
    struct fs_stamp state = fs_stamp_of(a->path);
    if (users_load(a->path, &us, err) < 0)
        return err_wrap(err, "htpasswd");
    take_users(a, us, &state);
    return 0;
}

int access_new(const struct access_options *opt, struct access **out, struct err *err)
{
    struct access *a = calloc(1, sizeof(*a));

    if (a == NULL)
        return err_nomem(err, sizeof(*a));
    lock_init(&a->lock, RANK_UPSTREAM);
    int rc = set_up(a, opt, err);
    if (rc < 0) {
        access_free(a);
        return rc;
    }
    *out = a;
    return 0;
}

void access_free(struct access *a)
{
    if (a == NULL)
        return;
    REQUIRE(a->waiters.head == NULL && a->checks == 0);
    for (size_t i = 0; i < a->rule_count; i++) {
        strings_free(a->rules[i].users);
        strings_free(a->rules[i].repositories);
    }
    free(a->rules);
    users_unref(a->users);
    free(a->path);
    secret_wipe(a->key, sizeof(a->key));
    lock_release(&a->lock);
    free(a);
}
