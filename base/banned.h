/* SPDX-License-Identifier: Apache-2.0
 * base/banned.h - C library calls that recask does not use, since each has a bounded or checkable relative.
 * Force-included by the build in all of recask's own sources. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* With _FORTIFY_SOURCE and clang, glibc has these two as macros, which cannot be poisoned. */
#undef sprintf
#undef vsprintf

#pragma GCC poison strcpy strcat sprintf vsprintf gets strtok atoi atol atof system popen
