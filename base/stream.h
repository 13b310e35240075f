/* SPDX-License-Identifier: Apache-2.0
 * base/stream.h - the two shapes all bytes move in: a source that is read, and a filter that is stepped.
 *
 * Sources: sockets, spool files, originals, recipes, and any of them behind a filter. Filters: codecs and taps.
 * A step or a read does bounded work. Flow codes, all > 0 but STEP_DONE:
 *
 *   STEP_MORE  progress was made, call again
 *   STEP_WAIT  nothing can be done now. A source calls its waker once when that changes; a filter needs more
 *              input or more room for output
 *   STEP_EOF   the stream is complete and verified as far as its kind allows; no more bytes will come
 *
 * After an error (< 0) only free is legal.
 */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum step {
    STEP_DONE = 0,
    STEP_MORE = 1,
    STEP_WAIT = 2,
    STEP_EOF = 3,
};

/* ---- sources ----------------------------------------------------------------------------------------------- */

/* Called from any thread, at most once per STEP_WAIT; must only post work, never call back into the source. "Any
 * thread" includes the reader inside its source_read(), which may call it before it returns STEP_WAIT: a source that has
 * done its share of work without a byte to show (a skip, a filter that swallows much) gives way like that. */
typedef void source_wake_fn(void *arg);

struct source;

struct source_ops {
    const char *name;
    /* Fills up to cap bytes. Returns STEP_MORE with *out_len > 0, STEP_WAIT or STEP_EOF with *out_len = 0, or < 0.
     * May block on disk, never on the network; runs on worker threads only. One reader at a time. */
    int (*read)(struct source *s, void *out, size_t cap, size_t *out_len, struct err *err);
    /* Sets who is told when a STEP_WAIT is over. NULL for sources that never wait. Set before the first read. */
    void (*set_waker)(struct source *s, source_wake_fn *fn, void *arg);
    void (*free)(struct source *s);
};

/* Embedded first in each kind of source. */
struct source {
    uint32_t magic;
    const struct source_ops *ops;
};

#define SOURCE_MAGIC 0x50c5e001u

MUST_CHECK int source_read(struct source *s, void *out, size_t cap, size_t *out_len, struct err *err);
void source_set_waker(struct source *s, source_wake_fn *fn, void *arg);
void source_free(struct source *s); /* NULL is fine; after it returns the waker is not called any more */
void source_cleanup(struct source **s);

/* A source over memory: takes *data (malloc'd, NULLed). */
MUST_CHECK int source_memory_new(char **data, size_t len, struct source **out, struct err *err);

/* ---- filters ----------------------------------------------------------------------------------------------- */

struct stream_in {
    const uint8_t *ptr;
    size_t len;
    size_t pos; /* bytes consumed */
};

struct stream_out {
    uint8_t *ptr;
    size_t len;
    size_t pos; /* bytes produced */
};

struct filter;

struct filter_ops {
    const char *name;
    /* end: no input will follow what is in `in`. Consumes and produces what it can in one bounded go.
     * STEP_MORE: progress was made. STEP_WAIT: needs input (in is empty and !end) or room in out.
     * STEP_EOF: all output has been produced; legal only once `end` was given and all input was consumed.
     * Input that continues after the format's end is ERR_FORMAT; input that ends early is ERR_FORMAT. */
    int (*step)(struct filter *f, struct stream_in *in, bool end, struct stream_out *out, struct err *err);
    void (*free)(struct filter *f);
};

struct filter {
    uint32_t magic;
    const struct filter_ops *ops;
};

#define FILTER_MAGIC 0xf117e201u

MUST_CHECK int filter_step(struct filter *f, struct stream_in *in, bool end, struct stream_out *out, struct err *err);
void filter_free(struct filter *f);
void filter_cleanup(struct filter **f);

/* The source that is `inner` seen through `f`. Takes both (also when it fails). buf_bytes: its input buffer. */
MUST_CHECK int source_filtered_new(struct source **inner, struct filter **f, size_t buf_bytes, struct source **out,
                                   struct err *err);

/* A window of inner: skips skip_bytes, then gives limit_bytes (UINT64_MAX: all), then STEP_EOF without asking inner for
 * its end; an inner that ends earlier ends the window. Takes inner. */
MUST_CHECK int source_window_new(struct source **inner, uint64_t skip_bytes, uint64_t limit_bytes, struct source **out,
                                 struct err *err);
