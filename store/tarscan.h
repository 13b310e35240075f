/* SPDX-License-Identifier: Apache-2.0
 * store/tarscan.h - finds the files in a tar stream as it goes by, so that chunks end where files do. Private to
 * store/.
 *
 * Use: tarscan_init -> tarscan_scan over the bytes in any pieces. Where *out_cut is set, a chunk is to end after the
 *      bytes that the call took: at the first and after the last data byte (before the padding) of every regular file
 *      of TARSCAN_FILE_BYTES or more.
 * A stream that does not begin with a tar header, or that stops making sense later, gives no (more) cuts. That is never
 * an error, since cuts do not change bytes.
 * Threads: a plain value, one at a time. Nothing is allocated. The cuts are a pure function of the bytes, whatever the
 * pieces; no byte is looked at before it is passed in.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TARSCAN_FILE_BYTES (64u << 10)
#define TARSCAN_BLOCK_BYTES 512u

enum tarscan_state {
    TARSCAN_FIRST = 0, /* the first header: decides whether this is a tar */
    TARSCAN_HEADER,    /* a header, or a block of zeros */
    TARSCAN_SPARSE,    /* an extension block of an old GNU sparse header */
    TARSCAN_PAX,       /* records of an extended header */
    TARSCAN_FILE,      /* data of a file whose end is a cut */
    TARSCAN_SKIP,      /* other data, and padding */
    TARSCAN_LOST,      /* not a tar, or no longer: for ever */
};

/* A `size` that an extended header gives in place of the header's own. */
struct tarscan_size {
    bool set;
    uint64_t bytes;
};

/* One pax record, "LENGTH KEY=VALUE\n", byte by byte; only the key `size` is of interest. */
struct tarscan_pax {
    bool global;        /* of a 'g' header: for all that follow */
    uint64_t len_bytes; /* of the record, with its own digits */
    uint64_t pos;       /* bytes of the record seen */
    uint8_t part;       /* 0 length, 1 key, 2 value */
    uint8_t key_len;    /* up to sizeof(key) + 1: longer */
    char key[4];
    bool has_value;
    uint64_t value;
};

struct tarscan {
    enum tarscan_state state;
    uint64_t left_bytes; /* of TARSCAN_PAX, _FILE, _SKIP */
    uint64_t pad_bytes;  /* after those */
    struct tarscan_size local, global;
    struct tarscan_pax pax;
    uint32_t block_len; /* of block */
    uint8_t block[TARSCAN_BLOCK_BYTES];
};

void tarscan_init(struct tarscan *t);
/* Takes bytes of data up to the next cut; returns how many, > 0 when len > 0. */
size_t tarscan_scan(struct tarscan *t, const uint8_t *data, size_t len, bool *out_cut);
