/* SPDX-License-Identifier: Apache-2.0
 * base/require.c - the end of a process that has broken a promise of its own.
 *
 * Writes straight to stderr: the log's lock may be held by this very thread.
 */
#include "base/compiler.h"

#include <execinfo.h>
#include <pthread.h>
#include <unistd.h>

void require_failed(const char *cond, const char *file, int line, const char *func)
{
    char thread[16] = "?";
    char text[512];
    void *frames[32];

    pthread_getname_np(pthread_self(), thread, sizeof thread);
    int n = snprintf(text, sizeof text, "lvl=err ev=require at=%s:%d func=%s thread=%s cond=\"%s\"\n", file, line, func,
                     thread, cond);
    size_t len = (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    if (write(STDERR_FILENO, text, len) < 0) {
        /* Nobody is left to tell. */
    }
    backtrace_symbols_fd(frames, backtrace(frames, (int)ARRAY_LEN(frames)), STDERR_FILENO);
    abort();
}
