/* SPDX-License-Identifier: Apache-2.0
 * tests/fault/memory.c - memory and descriptors that run out, and a clock that jumps (fault.h).
 *
 * The allocator stays glibc's: what it gives out is freed by its own free().
 */
#include "tests/fault/fault.h"

#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t align, size_t size);

/* ---- memory -------------------------------------------------------------------------------------------------------------- */

static uintptr_t code_begin, code_end; /* of the program itself */

static int first_object(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    (void)arg;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];

        if (p->p_type == PT_LOAD && (p->p_flags & PF_X) != 0) {
            code_begin = info->dlpi_addr + p->p_vaddr;
            code_end = code_begin + p->p_memsz;
        }
    }
    return 1; /* the program comes first; no more */
}

static void __attribute__((constructor)) find_program(void)
{
    (void)dl_iterate_phdr(first_object, NULL);
}

static bool no_memory(const void *caller)
{
    uintptr_t at = (uintptr_t)caller;
    bool own = at >= code_begin && at < code_end;

    if (fault_ctl == NULL || (fault_ctl->fail_kinds & (FAULT_MALLOC | FAULT_OWN)) == 0)
        return false;
    if (fault_check(FAULT_MALLOC) == 0 && (!own || fault_check(FAULT_OWN) == 0))
        return false;
    errno = ENOMEM;
    return true;
}

FAULT_API void *malloc(size_t size)
{
    return no_memory(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}

FAULT_API void *calloc(size_t count, size_t size)
{
    return no_memory(__builtin_return_address(0)) ? NULL : __libc_calloc(count, size);
}

FAULT_API void *realloc(void *old, size_t size)
{
    return no_memory(__builtin_return_address(0)) ? NULL : __libc_realloc(old, size);
}

FAULT_API void *aligned_alloc(size_t align, size_t size)
{
    return no_memory(__builtin_return_address(0)) ? NULL : __libc_memalign(align, size);
}

FAULT_API int posix_memalign(void **out, size_t align, size_t size)
{
    void *p = no_memory(__builtin_return_address(0)) ? NULL : __libc_memalign(align, size);

    if (p == NULL)
        return ENOMEM;
    *out = p;
    return 0;
}

/* libc's own would call malloc() for its caller. */
static char *duplicate(const char *text, size_t len, const void *caller)
{
    char *p = no_memory(caller) ? NULL : __libc_malloc(len + 1);

    if (p != NULL) {
        memcpy(p, text, len);
        p[len] = '\0';
    }
    return p;
}

FAULT_API char *strdup(const char *text)
{
    return duplicate(text, strlen(text), __builtin_return_address(0));
}

FAULT_API char *strndup(const char *text, size_t max)
{
    return duplicate(text, strnlen(text, max), __builtin_return_address(0));
}

/* ---- descriptors ---------------------------------------------------------------------------------------------------------- */

static bool no_descriptor(void)
{
    int why = fault_check(FAULT_FD);

    if (why != 0)
        errno = why;
    return why != 0;
}

FAULT_API int socket(int domain, int type, int protocol)
{
    return no_descriptor() ? -1 : (int)syscall(SYS_socket, domain, type, protocol);
}

FAULT_API int accept(int fd, struct sockaddr *addr, socklen_t *len)
{
    return no_descriptor() ? -1 : (int)syscall(SYS_accept4, fd, addr, len, 0);
}

FAULT_API int accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
    return no_descriptor() ? -1 : (int)syscall(SYS_accept4, fd, addr, len, flags);
}

FAULT_API int pipe2(int fds[2], int flags)
{
    return no_descriptor() ? -1 : (int)syscall(SYS_pipe2, fds, flags);
}

FAULT_API int epoll_create1(int flags)
{
    return no_descriptor() ? -1 : (int)syscall(SYS_epoll_create1, flags);
}

FAULT_API int eventfd(unsigned count, int flags)
{
    return no_descriptor() ? -1 : (int)syscall(SYS_eventfd2, count, flags);
}

/* ---- the wall clock ---------------------------------------------------------------------------------------------------------- */

static time_t offset_s(void)
{
    return fault_ctl != NULL ? (time_t)fault_ctl->clock_s : 0;
}

FAULT_API int clock_gettime(clockid_t which, struct timespec *out)
{
    int rc = (int)syscall(SYS_clock_gettime, which, out);

    if (rc == 0 && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
        out->tv_sec += offset_s();
    return rc;
}

FAULT_API time_t time(time_t *out)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (out != NULL)
        *out = now.tv_sec;
    return now.tv_sec;
}

FAULT_API int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now = {0};

    (void)zone;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = (suseconds_t)(now.tv_nsec / 1000);
    return 0;
}
