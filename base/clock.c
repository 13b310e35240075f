/* SPDX-License-Identifier: Apache-2.0
 * base/clock.c - the two clocks.
 */
#include "base/clock.h"

#include "base/compiler.h"

#include <time.h>

static int64_t clock_ms(clockid_t id)
{
    struct timespec ts;

    REQUIRE(clock_gettime(id, &ts) == 0);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

int64_t clock_mono_ms(void)
{
    return clock_ms(CLOCK_MONOTONIC);
}

int64_t clock_wall_ms(void)
{
    return clock_ms(CLOCK_REALTIME);
}

int64_t clock_wall_s(void)
{
    return clock_wall_ms() / 1000;
}
