/* SPDX-License-Identifier: Apache-2.0
 *
 * A wall clock that jumps: preloaded, it adds the seconds in the file $RECASK_CLOCK (8 bytes, little-endian, signed) to what
 * the system says. The file is mapped, so that a test can change them while the process runs. CLOCK_MONOTONIC stays.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int (*real_gettime)(clockid_t, struct timespec *);
static const volatile int64_t *ahead_s;

__attribute__((constructor)) static void set_up(void)
{
    const char *path = getenv("RECASK_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *map = fd >= 0 ? mmap(NULL, sizeof(*ahead_s), PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;

    if (fd >= 0)
        close(fd);
    if (map != MAP_FAILED)
        ahead_s = map;
}

int clock_gettime(clockid_t id, struct timespec *out)
{
    if (!real_gettime)
        real_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int rc = real_gettime(id, out);
    if (rc == 0 && ahead_s && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        out->tv_sec += *ahead_s;
    return rc;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now;

    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *out = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}
