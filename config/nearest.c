/* SPDX-License-Identifier: Apache-2.0
 * config/nearest.c - edit distance that counts two swapped neighbours as one slip ("sotre"), as typing does.
 *
 * The optimal string alignment distance, three rows at a time (after R. Lowrance and R. A. Wagner, 1975).
 */
#include "config/nearest.h"

#include <string.h>

/* Longer than every word that recask knows; longer input is no slip of the finger. */
#define WORD_MAX 48

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t m = a < b ? a : b;

    return m < c ? m : c;
}

static size_t distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
    size_t rows[3][WORD_MAX + 1];

    for (size_t j = 0; j <= b_len; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= a_len; i++) {
        size_t *now = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];

        now[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            now[j] = min3(above[j] + 1, now[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && above2[j - 2] + 1 < now[j])
                now[j] = above2[j - 2] + 1;
        }
    }
    return rows[a_len % 3][b_len];
}

void nearest_try(struct nearest *n, const char *candidate)
{
    size_t word_len = strlen(n->word), len = strlen(candidate);
    size_t d;

    if (word_len > WORD_MAX || len > WORD_MAX)
        return;
    d = distance(n->word, word_len, candidate, len);
    if (d < n->distance) {
        n->best = candidate;
        n->distance = d;
    }
}

const char *nearest_best(const struct nearest *n)
{
    size_t len;

    if (n->best == NULL)
        return NULL;
    /* A third of the word may be wrong; of a short word one letter, and never all of it. */
    len = strlen(n->word);
    if (n->distance > (len + 2) / 3 || n->distance >= len || n->distance >= strlen(n->best))
        return NULL;
    return n->best;
}
