/* SPDX-License-Identifier: Apache-2.0
 * transcode/identity.c - codec none, both directions: a copy that keeps the limits, so that callers have no special
 * case for bytes that are in no codec.
 */
#include "transcode/codec_internal.h"

static int identity_run(struct coder *c, struct stream_in *in, bool last, struct stream_out *out, struct err *err)
{
    size_t n = in->len - in->pos;

    (void)c;
    (void)last;
    (void)err;
    if (n > out->len - out->pos)
        n = out->len - out->pos;
    memcpy(out->ptr + out->pos, in->ptr + in->pos, n);
    in->pos += n;
    out->pos += n;
    return 0;
}

static bool identity_done(const struct coder *c)
{
    (void)c;
    return true;
}

static void identity_release(struct coder *c)
{
    (void)c;
}

static const struct coder_ops identity_coder = {
    .step_bytes = DECODE_STEP_BYTES,
    .run = identity_run,
    .done = identity_done,
    .release = identity_release,
};

static const struct filter_ops identity_filter = {.name = "identity", .step = coder_step, .free = coder_free};

int identity_new(const struct decode_limits *limits, struct filter **out, struct err *err)
{
    struct coder *c = calloc(1, sizeof *c);

    if (c == NULL)
        return err_nomem(err, sizeof *c);
    coder_init(c, &identity_filter, &identity_coder, limits);
    *out = &c->filter;
    return 0;
}
