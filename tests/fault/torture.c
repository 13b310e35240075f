/* SPDX-License-Identifier: Apache-2.0
 *
 * torture.h as a library that is preloaded: the file $RECASK_TORTURE_STATE is its struct torture_state, mapped, so that a test
 * switches faults on and off while the process runs. Of system calls those on files below $RECASK_TORTURE_DIR count.
 */
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>

static struct torture_state *torture_shared;
static _Bool torture_below(int fd);
#define TORTURE_STATE (*torture_shared)
#define TORTURE_FD(fd) torture_below(fd)
#include "tests/fault/torture.h"

static struct torture_state nothing;
static struct torture_state *torture_shared = &nothing;
static const char *dir;

__attribute__((constructor)) static void set_up(void)
{
    const char *path = getenv("RECASK_TORTURE_STATE");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *map = fd >= 0 ? mmap(NULL, sizeof(nothing), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;

    if (fd >= 0)
        close(fd);
    dir = getenv("RECASK_TORTURE_DIR");
    if (map != MAP_FAILED)
        torture_shared = map;
}

/* -1: a path. Those are the catalog's, and what is read at the start. */
static bool torture_below(int fd)
{
    char link[64], target[512];

    if (dir == NULL || fd < 0)
        return true;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, target, sizeof(target) - 1);
    return len > 0 && (size_t)len >= strlen(dir) && memcmp(target, dir, strlen(dir)) == 0;
}
