/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_torture.h - system calls and allocations that fail when told to: this program's own functions of these
 * names stand before libc's, for libraries too. One thread at a time may be tortured.
 *
 * Use: torture_arm(TORTURE_CALL, n, EIO, false) -> the n-th call from now on fails -> torture_disarm()
 *      torture_count(...) says how many there were since the last arm; n 0 fails none, to count.
 */
#pragma once

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

/* Which calls can fail: a call may be of several kinds. */
enum torture_kind {
    TORTURE_ALLOC = 1,
    TORTURE_READ = 2,
    TORTURE_WRITE = 4, /* whatever may need room: writes, new files and names */
    TORTURE_SYNC = 8,
    TORTURE_OPEN = 16, /* whatever takes a descriptor */
    TORTURE_NAME = 32, /* names that change or go */
    TORTURE_CALL = 2 | 4 | 8 | 16 | 32,
};

static struct {
    unsigned kinds; /* 0: nothing is counted, nothing fails */
    unsigned long at, seen;
    bool onwards; /* all from the n-th on */
    int error;
    unsigned long failed;
    long blocks; /* allocated and not freed */
    char label[128];
} torture;

static void torture_arm(unsigned kinds, unsigned long n, int error, bool onwards)
{
    torture.seen = 0;
    torture.failed = 0;
    torture.at = n;
    torture.error = error;
    torture.onwards = onwards;
    torture.kinds = kinds;
}

static void torture_disarm(void)
{
    torture.kinds = 0;
}

static bool torture_fails(unsigned kind)
{
    if ((torture.kinds & kind) == 0)
        return false;
    torture.seen++;
    if (torture.at == 0 || torture.seen < torture.at || (torture.seen > torture.at && !torture.onwards))
        return false;
    torture.failed++;
    errno = torture.error;
    return true;
}

/* ---- system calls ---------------------------------------------------------------------------------------------- */

/* Both names that a call has, with and without large offsets; on 64 bits they are the same. */
#define TORTURE_CALL_AS(suffix, symbol, type, name, kind, params, ...)                                                 \
    type torture_##name##suffix params __asm__(symbol);                                                                \
    type torture_##name##suffix params                                                                                 \
    {                                                                                                                  \
        static type(*real) params;                                                                                     \
        if (real == NULL)                                                                                              \
            *(void **)&real = dlsym(RTLD_NEXT, symbol);                                                                \
        return torture_fails(kind) ? (type)-1 : real(__VA_ARGS__);                                                     \
    }

#define TORTURE_ONE(type, name, kind, params, ...) TORTURE_CALL_AS(_, #name, type, name, kind, params, __VA_ARGS__)
#define TORTURE_BOTH(type, name, kind, params, ...)                                                                    \
    TORTURE_CALL_AS(_, #name, type, name, kind, params, __VA_ARGS__)                                                   \
    TORTURE_CALL_AS(_64, #name "64", type, name, kind, params, __VA_ARGS__)

TORTURE_BOTH(ssize_t, pread, TORTURE_READ, (int fd, void *p, size_t n, int64_t off), fd, p, n, off)
TORTURE_BOTH(ssize_t, pwrite, TORTURE_WRITE, (int fd, const void *p, size_t n, int64_t off), fd, p, n, off)
TORTURE_ONE(ssize_t, read, TORTURE_READ, (int fd, void *p, size_t n), fd, p, n)
TORTURE_BOTH(int, ftruncate, TORTURE_WRITE, (int fd, int64_t size), fd, size)
TORTURE_BOTH(int, fallocate, TORTURE_WRITE, (int fd, int mode, int64_t off, int64_t n), fd, mode, off, n)
TORTURE_ONE(int, fsync, TORTURE_SYNC, (int fd), fd)
TORTURE_ONE(int, fdatasync, TORTURE_SYNC, (int fd), fd)
TORTURE_ONE(int, mkdirat, TORTURE_WRITE | TORTURE_NAME, (int at, const char *p, mode_t mode), at, p, mode)
TORTURE_ONE(int, renameat, TORTURE_WRITE | TORTURE_NAME, (int a, const char *p, int b, const char *q), a, p, b, q)
TORTURE_ONE(int, unlinkat, TORTURE_NAME, (int at, const char *p, int flags), at, p, flags)
TORTURE_ONE(int, unlink, TORTURE_NAME, (const char *p), p)
TORTURE_BOTH(int, open, (unsigned)TORTURE_OPEN | ((flags & O_CREAT) != 0 ? TORTURE_WRITE : 0),
             (const char *p, int flags, mode_t mode), p, flags, mode)
TORTURE_BOTH(int, openat, (unsigned)TORTURE_OPEN | ((flags & O_CREAT) != 0 ? TORTURE_WRITE : 0),
             (int at, const char *p, int flags, mode_t mode), at, p, flags, mode)

/* ---- memory ---------------------------------------------------------------------------------------------------------- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TORTURE_MEMORY false
#else
#define TORTURE_MEMORY true

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *p, size_t size);
void __libc_free(void *p);
void *torture_malloc(size_t size) __asm__("malloc");
void *torture_calloc(size_t count, size_t size) __asm__("calloc");
void *torture_realloc(void *p, size_t size) __asm__("realloc");
void torture_free(void *p) __asm__("free");

void *torture_malloc(size_t size)
{
    void *p = torture_fails(TORTURE_ALLOC) ? NULL : __libc_malloc(size);

    torture.blocks += p != NULL;
    return p;
}

void *torture_calloc(size_t count, size_t size)
{
    void *p = torture_fails(TORTURE_ALLOC) ? NULL : __libc_calloc(count, size);

    torture.blocks += p != NULL;
    return p;
}

void *torture_realloc(void *old, size_t size)
{
    void *p;

    if (torture_fails(TORTURE_ALLOC))
        return NULL;
    p = __libc_realloc(old, size);
    torture.blocks += old == NULL && p != NULL;
    return p;
}

void torture_free(void *p)
{
    torture.blocks -= p != NULL;
    __libc_free(p);
}
#endif

/* ---- when it goes wrong ---------------------------------------------------------------------------------------------- */

static void torture_died(int signal_number)
{
    static const char what[] = "\ndied or hung in: ";

    torture_disarm();
    if (write(STDERR_FILENO, what, sizeof(what) - 1) > 0 && write(STDERR_FILENO, torture.label, strlen(torture.label)) > 0)
        (void)!write(STDERR_FILENO, "\n", 1);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void torture_watch(void)
{
    static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGALRM};

    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        signal(signals[i], torture_died);
}
