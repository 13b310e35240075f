/* SPDX-License-Identifier: Apache-2.0
 * base/lock.c and base/clock.c: ranks, waits, timeouts.
 */
#include "base/lock.h"

#include "base/clock.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct lock low, high;
static pthread_cond_t cond;

static int set_up(void **state UNUSED)
{
    lock_init(&low, RANK_FILL);
    lock_init(&high, RANK_LEAF);
    cond_init(&cond);
    return 0;
}

static int tear_down(void **state UNUSED)
{
    pthread_cond_destroy(&cond);
    lock_release(&high);
    lock_release(&low);
    return 0;
}

static void test_order(void **state UNUSED)
{
    lock_take(&low);
    lock_take(&high);
    lock_give(&low); /* any order */
    lock_give(&high);
    lock_take(&low);
    lock_give(&low);
}

static void test_timeout(void **state UNUSED)
{
    int64_t before_ms = clock_mono_ms();

    lock_take(&low);
    assert_int_equal(lock_wait(&low, &cond, 30), 1);
    assert_int_equal(lock_wait(&low, &cond, 0), 1);
    lock_give(&low);
    assert_true(clock_mono_ms() - before_ms >= 29);
    assert_true(clock_mono_ms() - before_ms < 20000);
}

static int ready;

static void *signaller(void *arg UNUSED)
{
    lock_take(&low);
    ready = 1;
    pthread_cond_signal(&cond);
    lock_give(&low);
    return NULL;
}

static void test_signal(void **state UNUSED)
{
    pthread_t id;

    ready = 0;
    lock_take(&low);
    assert_int_equal(pthread_create(&id, NULL, signaller, NULL), 0);
    while (!ready)
        assert_int_equal(lock_wait(&low, &cond, -1), 0);
    lock_give(&low);
    pthread_join(id, NULL);
}

static void wrong_order(void)
{
    lock_take(&high);
    lock_take(&low);
}

static void twice(void)
{
    lock_take(&low);
    lock_take(&low);
}

static void not_held(void)
{
    lock_give(&low);
}

static void wait_with_two(void)
{
    lock_take(&low);
    lock_take(&high);
    (void)lock_wait(&high, &cond, 1);
}

static void broken_requirement(void)
{
    REQUIRE(ready == 4711);
}

static void assert_dies(void (*fn)(void))
{
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        struct rlimit none = {0, 0};

        setrlimit(RLIMIT_CORE, &none);
        signal(SIGABRT, SIG_DFL);
        if (freopen("/dev/null", "w", stderr) == NULL)
            _exit(1);
        fn();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void test_violations_abort(void **state UNUSED)
{
    assert_dies(broken_requirement);
#ifndef NDEBUG
    assert_dies(wrong_order);
    assert_dies(twice);
    assert_dies(not_held);
    assert_dies(wait_with_two);
#else
    (void)wrong_order;
    (void)twice;
    (void)not_held;
    (void)wait_with_two;
#endif
}

static void test_clock(void **state UNUSED)
{
    int64_t a = clock_mono_ms();

    assert_true(clock_mono_ms() >= a);
    assert_true(clock_wall_s() > 1577836800); /* 2020 */
    assert_true(clock_wall_ms() / 1000 - clock_wall_s() <= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_timeout, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_signal, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_violations_abort, set_up, tear_down),
        cmocka_unit_test(test_clock),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
