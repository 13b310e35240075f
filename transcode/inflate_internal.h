/* SPDX-License-Identifier: Apache-2.0
 * transcode/inflate_internal.h - the body of one gzip member: deflate data and the trailer behind it.
 *
 * Both libraries get the same header parser (gzip_decode.c), so that they accept the same streams. The trailer is
 * theirs: ISA-L reads ahead by up to eight bytes, and only its own check knows where they are.
 */
#pragma once

#include "base/stream.h"

struct inflater;

struct inflater_ops {
    /* *out_end: the trailer has been read and is right. ERR_CORRUPT: it is wrong, or the deflate data is invalid. */
    int (*run)(struct inflater *inf, struct stream_in *in, struct stream_out *out, bool *out_end, struct err *err);
    void (*reset)(struct inflater *inf); /* before each member */
    void (*add_length)(struct inflater *inf, uint32_t bytes);
    void (*free)(struct inflater *inf);
};

struct inflater {
    const struct inflater_ops *ops;
    bool ignore_trailer; /* tests only */
};

MUST_CHECK int inflater_zlib_new(struct inflater **out, struct err *err);
MUST_CHECK int inflater_isal_new(struct inflater **out, struct err *err);
