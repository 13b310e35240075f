/* SPDX-License-Identifier: Apache-2.0
 * transcode/codec_internal.h - what the codecs share: one step function with all the rules of a filter, and the
 * constructors behind codec.c's tables.
 *
 * Use: embed struct coder first, coder_init(), let filter_ops.step be coder_step and .free be coder_free.
 *
 * C1  run() never sees more than step_bytes of input or of room, so a step is bounded whatever the caller's buffers.
 * C2  Output that breaks a limit is not handed on: positions move only after the limits have been checked.
 * C3  STEP_MORE means that a position moved; STEP_WAIT that input or room is missing. No third outcome can spin.
 * C4  Whether the stream is whole is decided here alone: end given, input used up, done() true.
 */
#pragma once

#include "transcode/codec.h"

#define DECODE_STEP_BYTES (1u << 20)          /* about 5 ms for the slowest decoder, zlib */
#define ENCODE_STEP_BYTES (256u << 10)        /* about 5 ms for the slowest encoder, zlib -1 */
#define RATIO_FREE_BYTES ((uint64_t)64 << 20) /* output below this is never called a bomb */

struct coder;

struct coder_ops {
    size_t step_bytes;
    /* Uses input and makes output until one of them is used up; 0 or an error. last: no input follows `in`. */
    int (*run)(struct coder *c, struct stream_in *in, bool last, struct stream_out *out, struct err *err);
    /* Decoder: between members or frames, after at least one. Encoder: the trailer is out. */
    bool (*done)(const struct coder *c);
    void (*release)(struct coder *c); /* the library's state, not c itself */
};

struct coder {
    struct filter filter;
    const struct coder_ops *ops;
    struct decode_limits limits;
    uint64_t in_bytes;
    uint64_t out_bytes;
};

/* limits NULL: none (encoders). */
void coder_init(struct coder *c, const struct filter_ops *fops, const struct coder_ops *ops,
                const struct decode_limits *limits);
int coder_step(struct filter *f, struct stream_in *in, bool end, struct stream_out *out, struct err *err);
void coder_free(struct filter *f);

/* Both gzip libraries are always there for the tests; codec.c picks one. */
enum gzip_backend { GZIP_ZLIB, GZIP_ISAL };

bool gzip_backend_built(enum gzip_backend b);
MUST_CHECK int gzip_decoder_new(enum gzip_backend b, const struct decode_limits *limits, struct filter **out,
                                struct err *err);
MUST_CHECK int gzip_encoder_new(enum gzip_backend b, int level, struct filter **out, struct err *err);
MUST_CHECK int zstd_decoder_new(const struct decode_limits *limits, struct filter **out, struct err *err);
MUST_CHECK int zstd_encoder_new(int level, struct filter **out, struct err *err);
MUST_CHECK int identity_new(const struct decode_limits *limits, struct filter **out, struct err *err);

/* For tests. The first acts as if the current member had begun with `bytes` more (ISIZE is modulo 2^32); the second
 * lets the fuzzer past the CRC, which it cannot guess. */
void gzip_decoder_add_length(struct filter *f, uint32_t bytes);
void gzip_decoder_ignore_trailer(struct filter *f);
