/* SPDX-License-Identifier: Apache-2.0
 * transcode/coder.c - the step function of every codec (rules C1 to C4 in codec_internal.h).
 *
 * The libraries disagree on what they call progress, truncation or the end; they are only asked to move bytes, and the
 * answer to the caller is derived from how far the positions moved.
 */
#include "transcode/codec_internal.h"

#include <inttypes.h>

void coder_init(struct coder *c, const struct filter_ops *fops, const struct coder_ops *ops,
                const struct decode_limits *limits)
{
    c->filter.magic = FILTER_MAGIC;
    c->filter.ops = fops;
    c->ops = ops;
    c->limits = limits != NULL ? *limits : (struct decode_limits){.max_out_bytes = UINT64_MAX};
    c->in_bytes = 0;
    c->out_bytes = 0;
}

static int check_limits(const struct coder *c, size_t used, size_t made, struct err *err)
{
    uint64_t in_bytes = c->in_bytes + used;
    uint64_t out_bytes = c->out_bytes + made;
    uint32_t ratio = c->limits.max_ratio;

    if (out_bytes > c->limits.max_out_bytes)
        return err_set(err, ERR_LIMIT, "%s: more than %" PRIu64 " bytes of output", c->filter.ops->name,
                       c->limits.max_out_bytes);
    if (ratio != 0 && out_bytes > RATIO_FREE_BYTES && out_bytes / ratio > in_bytes)
        return err_set(err, ERR_LIMIT, "%s: %" PRIu64 " bytes of output from %" PRIu64 ", a ratio above %" PRIu32,
                       c->filter.ops->name, out_bytes, in_bytes, ratio);
    return 0;
}

int coder_step(struct filter *f, struct stream_in *in, bool end, struct stream_out *out, struct err *err)
{
    struct coder *c = (struct coder *)CAST_OBJ(struct filter, FILTER_MAGIC, f);
    size_t in_left = in->len - in->pos;
    size_t room = out->len - out->pos;
    size_t in_step = in_left < c->ops->step_bytes ? in_left : c->ops->step_bytes;
    size_t out_step = room < c->ops->step_bytes ? room : c->ops->step_bytes;
    /* Some libraries refuse NULL even for no bytes at all. */
    static const uint8_t no_in = 0;
    uint8_t no_out;
    struct stream_in i = {.ptr = in_step ? in->ptr + in->pos : &no_in, .len = in_step};
    struct stream_out o = {.ptr = out_step ? out->ptr + out->pos : &no_out, .len = out_step};

    TRY(c->ops->run(c, &i, end && in_step == in_left, &o, err));
    TRY(check_limits(c, i.pos, o.pos, err));
    c->in_bytes += i.pos;
    c->out_bytes += o.pos;
    in->pos += i.pos;
    out->pos += o.pos;

    if (end && in->pos == in->len && c->ops->done(c))
        return STEP_EOF;
    if (i.pos > 0 || o.pos > 0)
        return STEP_MORE;
    if (room == 0 || (in_left == 0 && !end))
        return STEP_WAIT;
    if (in_left == 0)
        return err_set(err, ERR_FORMAT, "%s: the stream ends early, after %" PRIu64 " bytes", f->ops->name,
                       c->in_bytes);
    return err_set(err, ERR_FORMAT, "%s: no way to go on after %" PRIu64 " bytes", f->ops->name, c->in_bytes);
}

void coder_free(struct filter *f)
{
    struct coder *c = (struct coder *)f; /* filter_free() has checked and wiped the magic */

    c->ops->release(c);
    free(c);
}
