/* SPDX-License-Identifier: Apache-2.0
 * config/nearest.h - "did you mean ...?" for misspelt keys, flags and commands.
 *
 * Use: struct nearest n = NEAREST_INIT(word); nearest_try(&n, candidate) for each; nearest_best(&n).
 * Threads: a value. Strings are borrowed. Nothing is allocated.
 */
#pragma once

#include <stddef.h>

struct nearest {
    const char *word;
    const char *best;
    size_t distance;
};

#define NEAREST_INIT(w)                                                                                                \
    {                                                                                                                  \
        .word = (w), .distance = (size_t)-1                                                                            \
    }

void nearest_try(struct nearest *n, const char *candidate);

/* The candidate that is closest, the first of equals; NULL when none is close enough to be what was meant. */
const char *nearest_best(const struct nearest *n);
