/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/transcode_util.h - drives a filter through every way of cutting its input and output, and checks the
 * contract of base/stream.h on each step. Include after cmocka.h.
 */
#pragma once

#include "base/stream.h"

struct bytes {
    uint8_t *p;
    size_t len;
    size_t cap;
};

static inline void bytes_release(struct bytes *b)
{
    free(b->p);
    *b = (struct bytes){.p = NULL};
}

static inline void bytes_add(struct bytes *b, const void *data, size_t len)
{
    if (b->len + len > b->cap || b->p == NULL) {
        b->cap = 2 * (b->len + len) + 64;
        b->p = realloc(b->p, b->cap);
        assert_non_null(b->p);
    }
    if (len > 0)
        memcpy(b->p + b->len, data, len);
    b->len += len;
}

/* How a stream is cut. 0: all at once. */
struct feed {
    const char *name;
    size_t in_max;
    size_t out_max;
    bool random;   /* 1..in_max, 1..out_max, sometimes nothing */
    bool late_end; /* `end` comes alone, after the last byte */
};

static const struct feed feeds[] = {
    {.name = "whole", .in_max = 1 << 30, .out_max = 1 << 22},
    {.name = "late end", .in_max = 1 << 30, .out_max = 1 << 22, .late_end = true},
    {.name = "1 byte in", .in_max = 1, .out_max = 1 << 16},
    {.name = "1 byte out", .in_max = 1 << 30, .out_max = 1},
    {.name = "1 byte in and out", .in_max = 1, .out_max = 1, .late_end = true},
    {.name = "random, small", .in_max = 40, .out_max = 300, .random = true},
    {.name = "random, large", .in_max = 70000, .out_max = 150000, .random = true, .late_end = true},
};

/* One byte at a time takes minutes under the sanitizers: for long data only where a test asks for it. */
static inline bool feed_suits(const struct feed *fd, size_t len)
{
    return len <= 5000 || (fd->in_max > 1 && fd->out_max > 1);
}

static inline uint32_t test_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static inline size_t feed_size(const struct feed *fd, size_t max, uint64_t *seed)
{
    return fd->random ? test_random(seed) % (max + 1) : max;
}

static inline void check_step(int rc, const struct stream_in *in, size_t in_before, bool end,
                              const struct stream_out *out, size_t out_before)
{
    bool moved = in->pos > in_before || out->pos > out_before;

    assert_true(rc < 0 || rc == STEP_MORE || rc == STEP_WAIT || rc == STEP_EOF);
    if (rc == STEP_MORE)
        assert_true(moved);
    if (rc == STEP_WAIT)
        assert_true((in->pos == in->len && !end) || out->pos == out->len);
    if (rc == STEP_EOF)
        assert_true(end && in->pos == in->len);
}

/* Runs data through f to its end; takes f. 0, or the error. Pieces are exact copies, so that ASan sees overruns. */
static inline int feed_all(struct filter *f, const void *data, size_t len, const struct feed *fd, struct bytes *out,
                           struct err *err)
{
    uint64_t seed = len;
    size_t off = 0, piece_len = 0;
    uint8_t *piece = NULL, *room = malloc(fd->out_max);
    struct stream_in in = {.ptr = NULL};
    bool end = false;
    int rc;

    assert_non_null(room);
    for (;;) {
        struct stream_out o = {.ptr = room, .len = feed_size(fd, fd->out_max, &seed)};
        size_t in_before = in.pos;

        rc = filter_step(f, &in, end, &o, err);
        check_step(rc, &in, in_before, end, &o, 0);
        bytes_add(out, room, o.pos);
        if (rc < 0 || rc == STEP_EOF)
            break;
        if (rc == STEP_WAIT && in.pos == in.len && !end) {
            end = off == len;
            piece_len = feed_size(fd, fd->in_max, &seed);
            piece_len = piece_len < len - off ? piece_len : len - off;
            free(piece);
            piece = malloc(piece_len + 1);
            assert_non_null(piece);
            memcpy(piece + 1, (const uint8_t *)data + off, piece_len);
            off += piece_len;
            in = (struct stream_in){.ptr = piece + 1, .len = piece_len};
            end = end || (off == len && !fd->late_end);
        }
    }
    free(piece);
    free(room);
    filter_free(f);
    return rc < 0 ? rc : 0;
}

/* Text-like bytes with matches at many distances, or noise. */
static inline void fill_text(uint8_t *p, size_t len, uint64_t seed)
{
    size_t i = 0;

    while (i < len) {
        size_t n = 1 + test_random(&seed) % 40;
        size_t back = 1 + test_random(&seed) % 40000;
        bool copy = i >= back && test_random(&seed) % 4 != 0;

        for (; n > 0 && i < len; n--, i++)
            p[i] = copy ? p[i - back] : (uint8_t)('a' + test_random(&seed) % 26);
    }
}

static inline void fill_noise(uint8_t *p, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i++)
        p[i] = (uint8_t)test_random(&seed);
}
