/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/proxy_util.h - what proxy/'s tests share: a source that does as it is told, and a client that speaks HTTP by
 * hand. Nothing here uses cmocka's asserts in other threads (they longjmp); REQUIRE() does there.
 */
#pragma once

#include "base/stream.h"

#include <stdatomic.h>

#define ASSERT_OK(expr)                                                                                                \
    do {                                                                                                               \
        if ((expr) < 0)                                                                                                \
            fail_msg("%s: %s", #expr, err.msg);                                                                        \
    } while (0)

/* ---- a source -------------------------------------------------------------------------------------------------------- */

struct script {
    const char *data;
    size_t len;
    size_t piece;       /* at most so much per read; 0: no limit */
    unsigned wait_each; /* STEP_WAIT before each so many-th read, with its waker called at once; 0: never */
    size_t fail_at;     /* ERR_CORRUPT once so many bytes were given; SIZE_MAX: never */
    bool hang;          /* at the end (or at fail_at): STEP_WAIT until script_wake() */
    atomic_uint *freed; /* counted, may be NULL */
    atomic_uint *freed_on_event_thread; /* by libmicrohttpd, where disk must not be touched; may be NULL */
};

MUST_CHECK int source_script_new(const struct script *sc, struct source **out, struct err *err);
/* Ends the hang of a source that is still there. From any thread. */
void script_wake(struct source *s);

struct drained {
    char *data; /* malloc'd */
    size_t len;
    unsigned waits;
    int rc; /* STEP_EOF or the error */
    struct err err;
};

/* Reads s to its end in reads of at most cap bytes; each STEP_WAIT waits for its wake, at most 20 s. Frees s. */
void source_drain(struct source **s, size_t cap, struct drained *out);
void drained_release(struct drained *d);

/* ---- HTTP by hand ---------------------------------------------------------------------------------------------------- */

/* Connects to "127.0.0.1:port" or to a Unix socket's path. */
int client_connect(const char *address);
void client_send(int fd, const char *text);
/* Until the server closes, or `enough` bytes are there; at most 20 s. The result is NUL-terminated. */
char *client_read(int fd, size_t enough, size_t *out_len);
/* One request on a connection of its own, which the server is asked to close; returns all of the answer. */
char *client_ask(const char *address, const char *method, const char *path, const char *more_headers, size_t *out_len);
int answer_status(const char *answer);
/* Value of a header as "value\r\n..." start, NULL when absent; compare with header_is(). */
bool header_is(const char *answer, const char *name, const char *value);
bool header_there(const char *answer, const char *name);
const char *answer_body(const char *answer);

/* Calls fn until it is true, at most 20 s. */
bool until(bool (*fn)(void *arg), void *arg);
