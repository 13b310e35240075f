/* SPDX-License-Identifier: Apache-2.0
 * transcode/zstd_encode.c - one zstd frame for a stream of any length.
 */
#include "transcode/codec_internal.h"
#include "transcode/zstd_internal.h"

struct zstd_encoder {
    struct coder coder;
    ZSTD_CCtx *cctx;
    bool done;
};

static int zstd_run(struct coder *c, struct stream_in *in, bool last, struct stream_out *out, struct err *err)
{
    struct zstd_encoder *e = (struct zstd_encoder *)c;
    ZSTD_inBuffer zin = {.src = in->ptr, .size = in->len, .pos = in->pos};
    ZSTD_outBuffer zout = {.dst = out->ptr, .size = out->len, .pos = out->pos};
    size_t rc;

    if (e->done)
        return 0; /* one call more would begin a second frame */
    rc = ZSTD_compressStream2(e->cctx, &zout, &zin, last ? ZSTD_e_end : ZSTD_e_continue);
    if (ZSTD_isError(rc))
        return zstd_err_set(err, rc, "zstd encoder");
    in->pos = zin.pos;
    out->pos = zout.pos;
    e->done = last && rc == 0;
    return 0;
}

static bool zstd_done(const struct coder *c)
{
    return ((const struct zstd_encoder *)c)->done;
}

static void zstd_release(struct coder *c)
{
    ZSTD_freeCCtx(((struct zstd_encoder *)c)->cctx);
}

static const struct coder_ops zstd_coder = {
    .step_bytes = ENCODE_STEP_BYTES,
    .run = zstd_run,
    .done = zstd_done,
    .release = zstd_release,
};

static const struct filter_ops zstd_filter = {.name = "zstd encoder", .step = coder_step, .free = coder_free};

int zstd_encoder_new(int level, struct filter **out, struct err *err)
{
    struct zstd_encoder *e = calloc(1, sizeof *e);
    int rc;

    if (e == NULL)
        return err_nomem(err, sizeof *e);
    coder_init(&e->coder, &zstd_filter, &zstd_coder, NULL);
    e->cctx = ZSTD_createCCtx();
    rc = e->cctx != NULL ? zstd_set_params(e->cctx, level, err)
                         : err_set(err, ERR_NOMEM, "zstd: no memory for an encoder");
    if (rc < 0) {
        coder_free(&e->coder.filter);
        return rc;
    }
    *out = &e->coder.filter;
    return 0;
}
