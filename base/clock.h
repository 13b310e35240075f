/* SPDX-License-Identifier: Apache-2.0
 * base/clock.h - time: monotonic for waiting, wall clock for what is stored and shown. Threads: any. */
#pragma once

#include <stdint.h>

int64_t clock_mono_ms(void);
int64_t clock_wall_s(void); /* seconds since 1970, UTC */
int64_t clock_wall_ms(void);
