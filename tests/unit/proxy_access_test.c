/* SPDX-License-Identifier: Apache-2.0
 * proxy/access.c and access_users.c: files that are good and bad, rules, the header, what is remembered, who waits.
 */
#include "base/base64.h"
#include "proxy/access_internal.h"
#include "proxy/proxy_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

#define ASSERT_OK(expr)                                                                                                \
    do {                                                                                                               \
        if ((expr) < 0)                                                                                                \
            fail_msg("%s: %s", #expr, err.msg);                                                                        \
    } while (0)

/* "opensesame", "second", "a:b" and "third" */
#define ALICE "alice:$2y$04$abcdefghijklmnopqrstuuFuhxWRTXIsURoluSTZ1N4tYaWGn9oOi\n"
#define BOB "bob:$2b$04$abcdefghijklmnopqrstuu0m4FNu/b0Ul0dVXpD5yXn5kdSneXCgS\r\n"
#define CAROL "carol:$2a$04$abcdefghijklmnopqrstuuIQ9AyrP6qHpzJiEKQ5zxtEz3TPNwuMe\n"
#define DAVE "dave:$y$j75$tJm.gIW6BbNuaSi8yN14T1$DdRNsxtv3RPnTy3oK/cd4mFcOY85S25OoZZwGQV2Qm9"

static const char good_file[] = "# people\n\n" ALICE BOB "  \n" CAROL DAVE;

static int parse(const char *text, struct users **out, struct err *err)
{
    return users_parse("f", text, strlen(text), out, err);
}

static void test_files(void **state UNUSED)
{
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"", "f: has no user"},
        {"# nobody\n\n", "f: has no user"},
        {"\nalice\n", "f: line 2: not of the form user:hash"},
        {":$2y$04$abcdefghijklmnopqrstuuFuhxWRTXIsURoluSTZ1N4tYaWGn9oOi\n", "f: line 1: not of the form"},
        {"a:$apr1$x$y\n", "f: line 1: the password is neither bcrypt"},
        {"a:{SHA}2jmj7l5rSw0yVb/vlWAYkK/YBwk=\n", "neither bcrypt"},
        {"a:plain\n", "neither bcrypt"},
        {"a:\n", "neither bcrypt"},
        {"a:$2y$17$abcdefghijklmnopqrstuuFuhxWRTXIsURoluSTZ1N4tYaWGn9oOi\n", "cost over 16"},
        {"a:$2y$03$abcdefghijklmnopqrstuuFuhxWRTXIsURoluSTZ1N4tYaWGn9oOi\n", "damaged"},
        {"a:$2y$04$abcdefghijklmnopqrstuuFuhxWRTXIsURoluSTZ1N4tYaWGn9oO\n", "damaged"},
        {"a:$y$j75$\n", "damaged"},
        {"a:$y$jFT$abcdef$DdRNsxtv3RPnTy3oK/cd4mFcOY85S25OoZZwGQV2Qm9\n", "yescrypt with a cost over 9"},
        {"a:$y$jLT$abcdef$DdRNsxtv3RPnTy3oK/cd4mFcOY85S25OoZZwGQV2Qm9\n", "yescrypt with a cost over 9"},
        {"a:$y$jzz$abcdef$DdRNsxtv3RPnTy3oK/cd4mFcOY85S25OoZZwGQV2Qm9\n", "yescrypt with a cost over 9"},
        {ALICE "\n" ALICE, "f: line 3: the user is in the file twice"},
        {"a\x01:$2y$04$abcdefghijklmnopqrstuuFuhxWRTXIsURoluSTZ1N4tYaWGn9oOi\n", "control characters"},
        {"anonymous:$2y$04$abcdefghijklmnopqrstuuFuhxWRTXIsURoluSTZ1N4tYaWGn9oOi\n", "something else in rules"},
    };
    struct err err = ERR_INIT;
    struct users *us = NULL;

    ASSERT_OK(parse(good_file, &us, &err));
    assert_int_equal(us->count, 4);
    assert_non_null(users_find(us, "bob"));
    assert_string_equal(users_find(us, "bob")->hash, "$2b$04$abcdefghijklmnopqrstuu0m4FNu/b0Ul0dVXpD5yXn5kdSneXCgS");
    assert_null(users_find(us, "Bob"));
    users_unref(us);
    ASSERT_OK(parse("\xef\xbb\xbf" ALICE, &us, &err));
    assert_non_null(users_find(us, "alice"));
    users_unref(us);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        err_clear(&err);
        us = NULL;
        assert_int_equal(parse(bad[i].text, &us, &err), ERR_USAGE);
        assert_null(us);
        if (strstr(err.msg, bad[i].message) == NULL || strstr(err.msg, "abcdef") != NULL)
            fail_msg("%s: \"%s\"", bad[i].message, err.msg);
    }
}

/* The most that is taken, and the costs that mkpasswd has by default. */
static void test_yescrypt_costs(void **state UNUSED)
{
    static const char *const good[] = {"jDT", "j9T", "j75"};
    char text[200];

    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        struct err err = ERR_INIT;
        struct users *us = NULL;

        snprintf(text, sizeof(text), "a:$y$%s$abcdef$DdRNsxtv3RPnTy3oK/cd4mFcOY85S25OoZZwGQV2Qm9\n", good[i]);
        ASSERT_OK(parse(text, &us, &err));
        users_unref(us);
    }
}

/* Names that are not in the file: each has one user's hash, and not all the same one's. */
static void test_stand_ins(void **state UNUSED)
{
    struct err err = ERR_INIT;
    struct users *us = NULL;
    bool used[4] = {false};

    ASSERT_OK(parse(good_file, &us, &err));
    for (uint64_t seed = UINT64_MAX; seed > UINT64_MAX - 4; seed--) {
        assert_string_equal(users_hash(us, "bob", seed), users_find(us, "bob")->hash);
        assert_ptr_equal(users_hash(us, "nobody", seed), users_hash(us, "nobody", seed));
        for (size_t i = 0; i < us->count; i++)
            used[i] |= users_hash(us, "nobody", seed) == us->list[i].hash;
    }
    for (size_t i = 0; i < us->count; i++)
        assert_true(used[i]);
    users_unref(us);
}

/* "Basic ..." of a text; static. */
static const char *basic(const char *text)
{
    static char line[1024];

    snprintf(line, sizeof(line), "Basic ");
    base64_encode(text, strlen(text), line + strlen(line));
    return line;
}

static void test_header(void **state UNUSED)
{
    static const char *const bad[] = {
        "", "Basic", "Basic ", "Basic !!!!", "Bearer YTpi", "Basicx YTpi", "Basic YTpi YTpi"};
    char user[ACCESS_USER_MAX_BYTES + 1], password[ACCESS_PASSWORD_MAX_BYTES + 1], text[800];

    assert_true(basic_parse("Basic YTpi", user, password));
    assert_string_equal(user, "a");
    assert_string_equal(password, "b");
    assert_true(basic_parse("bAsIc   YTpi ", user, password));
    assert_true(basic_parse(basic("carol:a:b"), user, password));
    assert_string_equal(password, "a:b");
    assert_true(basic_parse(basic("u:"), user, password));
    assert_string_equal(password, "");
    assert_false(basic_parse(NULL, user, password));
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_false(basic_parse(bad[i], user, password));
    assert_false(basic_parse(basic("nocolon"), user, password));
    assert_false(basic_parse(basic(":nouser"), user, password));
    assert_false(basic_parse(basic("u:p\n"), user, password));
    memset(text, 'x', sizeof(text));
    text[1] = ':';
    text[2 + ACCESS_PASSWORD_MAX_BYTES] = '\0';
    assert_true(basic_parse(basic(text), user, password));
    text[2 + ACCESS_PASSWORD_MAX_BYTES] = 'x';
    text[3 + ACCESS_PASSWORD_MAX_BYTES] = '\0';
    assert_false(basic_parse(basic(text), user, password));
}

/* ---- with a file ------------------------------------------------------------------------------------------------- */

struct fixture {
    char path[64];
    struct access *access;
};

static void write_file(const char *path, const char *text)
{
    char next[80];
    FILE *f;

    snprintf(next, sizeof(next), "%s.new", path);
    f = fopen(next, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
    assert_int_equal(rename(next, path), 0);
}

static void set_up(struct fixture *f, const struct access_rule *rules, size_t count)
{
    struct err err = ERR_INIT;

    snprintf(f->path, sizeof(f->path), "/tmp/recask-access-%ld", (long)getpid());
    write_file(f->path, good_file);
    struct access_options opt = {.htpasswd = f->path, .rules = rules, .rule_count = count};
    ASSERT_OK(access_new(&opt, &f->access, &err));
}

static void tear_down(struct fixture *f)
{
    access_free(f->access);
    unlink(f->path);
}

static enum access_verdict ask(struct fixture *f, const char *credentials, const char *upstream, const char *name)
{
    struct access_request r = {
        .authorization = credentials ? basic(credentials) : NULL, .upstream = upstream, .name = name};

    return access_check(f->access, &r, NULL);
}

static void test_passwords(void **state UNUSED)
{
    struct fixture f;

    set_up(&f, NULL, 0);
    for (int round = 0; round < 2; round++) { /* the second from memory */
        assert_int_equal(ask(&f, "alice:opensesame", "docker.io", "a/b"), ACCESS_ALLOWED);
        assert_int_equal(ask(&f, "bob:second", "docker.io", "a/b"), ACCESS_ALLOWED);
        assert_int_equal(ask(&f, "carol:a:b", "docker.io", "a/b"), ACCESS_ALLOWED);
        assert_int_equal(ask(&f, "dave:third", "docker.io", "a/b"), ACCESS_ALLOWED);
        assert_int_equal(ask(&f, "alice:second", "docker.io", "a/b"), ACCESS_UNKNOWN);
        assert_int_equal(ask(&f, "bob:opensesame", "docker.io", "a/b"), ACCESS_UNKNOWN);
        assert_int_equal(ask(&f, "nobody:opensesame", "docker.io", "a/b"), ACCESS_UNKNOWN); /* list[0]'s password */
        assert_int_equal(ask(&f, NULL, "docker.io", "a/b"), ACCESS_UNKNOWN);
        assert_int_equal(ask(&f, NULL, NULL, NULL), ACCESS_UNKNOWN);
        assert_int_equal(ask(&f, "alice:opensesame", NULL, NULL), ACCESS_ALLOWED);
    }
    tear_down(&f);
}

static void test_rules(void **state UNUSED)
{
    static const char *const anonymous[] = {"anonymous", NULL}, *const alice[] = {"alice", NULL},
                             *const all[] = {"*", NULL};
    static const char *const library[] = {"docker.io/library/*", NULL},
                             *const secret[] = {"ghcr.io/acme/secret", "ghcr.io/acme/tools/*", NULL},
                             *const quay[] = {"quay.io/*", NULL};
    const struct access_rule rules[] = {{anonymous, library}, {alice, secret}, {all, quay}};
    static const struct {
        const char *who, *upstream, *name;
        enum access_verdict verdict;
    } asks[] = {
        {NULL, NULL, NULL, ACCESS_ALLOWED}, /* someone may read without a password */
        {NULL, "docker.io", "library/alpine", ACCESS_ALLOWED},
        {NULL, "docker.io", "library", ACCESS_UNKNOWN},
        {NULL, "docker.io", "libraryx/a", ACCESS_UNKNOWN},
        {NULL, "docker.iox", "library/alpine", ACCESS_UNKNOWN},
        {NULL, "ghcr.io", "docker.io/library/alpine", ACCESS_UNKNOWN},
        {NULL, "quay.io", "a/b", ACCESS_UNKNOWN},
        {"alice:wrong", "docker.io", "library/alpine", ACCESS_ALLOWED}, /* nobody asked who it is */
        {"alice:opensesame", "ghcr.io", "acme/secret", ACCESS_ALLOWED},
        {"alice:opensesame", "ghcr.io", "acme/secret/more", ACCESS_FORBIDDEN},
        {"alice:opensesame", "ghcr.io", "acme/secrets", ACCESS_FORBIDDEN},
        {"alice:opensesame", "ghcr.io", "acme/tools/x/y", ACCESS_ALLOWED},
        {"alice:opensesame", "ghcr.io", "acme/tools", ACCESS_FORBIDDEN},
        {"alice:opensesame", "ghcr.io", "Acme/secret", ACCESS_FORBIDDEN},
        {"bob:second", "ghcr.io", "acme/secret", ACCESS_FORBIDDEN},
        {"bob:second", "quay.io", "any/thing", ACCESS_ALLOWED},
        {"bob:wrong", "quay.io", "any/thing", ACCESS_UNKNOWN},
    };
    struct fixture f;

    set_up(&f, rules, ARRAY_LEN(rules));
    for (size_t i = 0; i < ARRAY_LEN(asks); i++)
        if (ask(&f, asks[i].who, asks[i].upstream, asks[i].name) != asks[i].verdict)
            fail_msg("%zu: %s", i, asks[i].name);
    tear_down(&f);
    set_up(&f, rules + 1, 2);
    assert_int_equal(ask(&f, NULL, NULL, NULL), ACCESS_UNKNOWN); /* no rule names anonymous clients any more */
    tear_down(&f);
}

/* The first look sees a change, the second that it has settled. */
static void settle(struct fixture *f)
{
    for (int i = 0; i < 2; i++) {
        usleep(1100000);
        (void)ask(f, NULL, "u", "n");
    }
}

/* Never off by accident: the users of the last good file stay. */
static void test_reload(void **state UNUSED)
{
    struct fixture f;

    set_up(&f, NULL, 0);
    assert_int_equal(ask(&f, "alice:opensesame", "u", "n"), ACCESS_ALLOWED);
    write_file(f.path, "alice:nonsense\n");
    settle(&f);
    assert_int_equal(ask(&f, "alice:opensesame", "u", "n"), ACCESS_ALLOWED);
    unlink(f.path);
    settle(&f);
    assert_int_equal(ask(&f, "alice:opensesame", "u", "n"), ACCESS_ALLOWED);
    assert_int_equal(ask(&f, NULL, "u", "n"), ACCESS_UNKNOWN);
    write_file(f.path, BOB);
    settle(&f);
    assert_int_equal(ask(&f, "alice:opensesame", "u", "n"), ACCESS_UNKNOWN); /* though remembered a moment ago */
    assert_int_equal(ask(&f, "bob:second", "u", "n"), ACCESS_ALLOWED);
    tear_down(&f);
}

static void test_start(void **state UNUSED)
{
    struct access *a = NULL;
    struct err err = ERR_INIT;
    struct access_options opt = {.htpasswd = "/nonexistent/htpasswd"};

    assert_int_equal(access_new(&opt, &a, &err), ERR_USAGE);
    assert_non_null(strstr(err.msg, "/nonexistent/htpasswd"));
    assert_null(a);
}

/* ---- several at once --------------------------------------------------------------------------------------------- */

struct client {
    struct fixture *f;
    struct waiter waiter;
    pthread_mutex_t m;
    pthread_cond_t c;
    bool woken;
    unsigned waits;
    enum access_verdict verdict;
};

static void wake(void *arg)
{
    struct client *c = arg;

    pthread_mutex_lock(&c->m);
    c->woken = true;
    pthread_cond_signal(&c->c);
    pthread_mutex_unlock(&c->m);
}

static void *client_main(void *arg)
{
    struct client *c = arg;
    struct access_request r = {.authorization = "Basic YWxpY2U6b3BlbnNlc2FtZQ==", .upstream = "u", .name = "n"};

    while ((c->verdict = access_check(c->f->access, &r, &c->waiter)) == ACCESS_WAIT) {
        c->waits++;
        pthread_mutex_lock(&c->m);
        while (!c->woken)
            pthread_cond_wait(&c->c, &c->m);
        c->woken = false;
        pthread_mutex_unlock(&c->m);
    }
    return NULL;
}

static void test_many(void **state UNUSED)
{
    enum { CLIENTS = 16 };
    static struct client clients[CLIENTS];
    pthread_t threads[CLIENTS];
    struct fixture f;

    set_up(&f, NULL, 0);
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = (struct client){.f = &f, .m = PTHREAD_MUTEX_INITIALIZER, .c = PTHREAD_COND_INITIALIZER};
        clients[i].waiter = (struct waiter){.fn = wake, .arg = &clients[i]};
        assert_int_equal(pthread_create(&threads[i], NULL, client_main, &clients[i]), 0);
    }
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(clients[i].verdict, ACCESS_ALLOWED);
    }
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files), cmocka_unit_test(test_header),         cmocka_unit_test(test_passwords),
        cmocka_unit_test(test_rules), cmocka_unit_test(test_reload),         cmocka_unit_test(test_start),
        cmocka_unit_test(test_many),  cmocka_unit_test(test_yescrypt_costs), cmocka_unit_test(test_stand_ins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
