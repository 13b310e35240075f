/* SPDX-License-Identifier: Apache-2.0
 * tests/fault/torture.h - system calls and allocations that fail when told to: functions of these names in the program, or in
 * a library that is preloaded (torture.c), stand before libc's, for libraries too.
 *
 * Use: torture_arm(TORTURE_CALL, n, EIO, false) -> the n-th call from now on fails -> torture_disarm()
 *      TORTURE_STATE.seen says how many there were since then; n 0 fails none, to count.
 * Before it is included TORTURE_STATE may be defined, the struct torture_state to go by, and TORTURE_FD(fd), whether calls on
 * that descriptor count.
 */
#pragma once

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
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

/* faults_test.py writes one, too. */
struct torture_state {
    _Atomic uint64_t kinds; /* 0: nothing is counted, nothing fails */
    _Atomic uint64_t at;
    _Atomic uint64_t onwards; /* not 0: all from the n-th on */
    _Atomic uint64_t error;
    _Atomic uint64_t seen, failed;
    _Atomic int64_t blocks; /* allocated and not freed */
};

#ifndef TORTURE_STATE
static struct torture_state torture_own;
#define TORTURE_STATE torture_own
#define TORTURE_FD(fd) true
#endif

static inline void torture_arm(unsigned kinds, uint64_t n, int error, bool onwards)
{
    TORTURE_STATE.seen = 0;
    TORTURE_STATE.failed = 0;
    TORTURE_STATE.at = n;
    TORTURE_STATE.error = (uint64_t)error;
    TORTURE_STATE.onwards = onwards;
    TORTURE_STATE.kinds = kinds;
}

static inline void torture_disarm(void)
{
    TORTURE_STATE.kinds = 0;
}

static inline bool torture_wants(unsigned kind)
{
    return (TORTURE_STATE.kinds & kind) != 0;
}

static inline bool torture_fails(void)
{
    uint64_t n = atomic_fetch_add(&TORTURE_STATE.seen, 1) + 1;
    uint64_t at = TORTURE_STATE.at;

    if (at == 0 || n < at || (n > at && TORTURE_STATE.onwards == 0))
        return false;
    atomic_fetch_add(&TORTURE_STATE.failed, 1);
    errno = (int)TORTURE_STATE.error;
    return true;
}

/* ---- system calls ---------------------------------------------------------------------------------------------- */

/* Both names that a call has, with and without large offsets; on 64 bits they are the same. */
#define TORTURE_CALL_AS(suffix, symbol, type, name, kind, fd, params, ...)                                             \
    type torture_##name##suffix params __asm__(symbol);                                                                \
    type torture_##name##suffix params                                                                                 \
    {                                                                                                                  \
        static type(*real) params;                                                                                     \
        if (real == NULL)                                                                                              \
            *(void **)&real = dlsym(RTLD_NEXT, symbol);                                                                \
        return torture_wants(kind) && TORTURE_FD(fd) && torture_fails() ? (type)-1 : real(__VA_ARGS__);                \
    }

#define TORTURE_ONE(type, name, kind, fd, params, ...)                                                                 \
    TORTURE_CALL_AS(_, #name, type, name, kind, fd, params, __VA_ARGS__)
#define TORTURE_BOTH(type, name, kind, fd, params, ...)                                                                \
    TORTURE_CALL_AS(_, #name, type, name, kind, fd, params, __VA_ARGS__)                                               \
    TORTURE_CALL_AS(_64, #name "64", type, name, kind, fd, params, __VA_ARGS__)

TORTURE_BOTH(ssize_t, pread, TORTURE_READ, fd, (int fd, void *p, size_t n, int64_t off), fd, p, n, off)
TORTURE_BOTH(ssize_t, pwrite, TORTURE_WRITE, fd, (int fd, const void *p, size_t n, int64_t off), fd, p, n, off)
TORTURE_ONE(ssize_t, read, TORTURE_READ, fd, (int fd, void *p, size_t n), fd, p, n)
TORTURE_BOTH(int, ftruncate, TORTURE_WRITE, fd, (int fd, int64_t size), fd, size)
TORTURE_BOTH(int, fallocate, TORTURE_WRITE, fd, (int fd, int mode, int64_t off, int64_t n), fd, mode, off, n)
TORTURE_ONE(int, fsync, TORTURE_SYNC, fd, (int fd), fd)
TORTURE_ONE(int, fdatasync, TORTURE_SYNC, fd, (int fd), fd)
TORTURE_ONE(int, mkdirat, TORTURE_WRITE | TORTURE_NAME, at, (int at, const char *p, mode_t mode), at, p, mode)
TORTURE_ONE(int, renameat, TORTURE_WRITE | TORTURE_NAME, a, (int a, const char *p, int b, const char *q), a, p, b, q)
TORTURE_ONE(int, unlinkat, TORTURE_NAME, at, (int at, const char *p, int flags), at, p, flags)
/* These two only SQLite uses, and the start. */
TORTURE_ONE(int, unlink, TORTURE_NAME, -1, (const char *p), p)
TORTURE_BOTH(int, open, TORTURE_OPEN | ((flags & O_CREAT) != 0 ? TORTURE_WRITE : 0), -1,
             (const char *p, int flags, mode_t mode), p, flags, mode)
TORTURE_BOTH(int, openat, TORTURE_OPEN | ((flags & O_CREAT) != 0 ? TORTURE_WRITE : 0), at,
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
    void *p = torture_wants(TORTURE_ALLOC) && torture_fails() ? NULL : __libc_malloc(size);

    TORTURE_STATE.blocks += p != NULL;
    return p;
}

void *torture_calloc(size_t count, size_t size)
{
    void *p = torture_wants(TORTURE_ALLOC) && torture_fails() ? NULL : __libc_calloc(count, size);

    TORTURE_STATE.blocks += p != NULL;
    return p;
}

void *torture_realloc(void *old, size_t size)
{
    void *p;

    if (torture_wants(TORTURE_ALLOC) && torture_fails())
        return NULL;
    p = __libc_realloc(old, size);
    TORTURE_STATE.blocks += old == NULL && p != NULL;
    return p;
}

void torture_free(void *p)
{
    TORTURE_STATE.blocks -= p != NULL;
    __libc_free(p);
}
#endif
