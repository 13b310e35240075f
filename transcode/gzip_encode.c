/* SPDX-License-Identifier: Apache-2.0
 * transcode/gzip_encode.c - gzip of exactly one member, by ISA-L or zlib. No name and no time in the header, so that
 * the same bytes give the same stream.
 */
#include "transcode/codec_internal.h"

#define ZLIB_CONST
#include <zlib.h>

#ifdef HAVE_ISAL
#include <isa-l/igzip_lib.h>
#endif

static int clamp(int v, int lo, int hi)
{
    return v < lo ? lo : v > hi ? hi : v;
}

/* ---- zlib ---------------------------------------------------------------------------------------------------------- */

struct gzip_encoder_zlib {
    struct coder coder;
    z_stream z;
    bool done;
};

static int zlib_run(struct coder *c, struct stream_in *in, bool last, struct stream_out *out, struct err *err)
{
    struct gzip_encoder_zlib *e = (struct gzip_encoder_zlib *)c;
    int rc;

    if (e->done)
        return 0;
    e->z.next_in = in->ptr + in->pos;
    e->z.avail_in = (uInt)(in->len - in->pos);
    e->z.next_out = out->ptr + out->pos;
    e->z.avail_out = (uInt)(out->len - out->pos);
    rc = deflate(&e->z, last ? Z_FINISH : Z_NO_FLUSH);
    in->pos = in->len - e->z.avail_in;
    out->pos = out->len - e->z.avail_out;

    if (rc == Z_STREAM_END)
        e->done = true;
    else if (rc != Z_OK && rc != Z_BUF_ERROR)
        return err_set(err, ERR_BUG, "gzip encoder: zlib answers %d", rc);
    return 0;
}

static bool zlib_done(const struct coder *c)
{
    return ((const struct gzip_encoder_zlib *)c)->done;
}

static void zlib_release(struct coder *c)
{
    deflateEnd(&((struct gzip_encoder_zlib *)c)->z);
}

static const struct coder_ops zlib_coder = {
    .step_bytes = ENCODE_STEP_BYTES,
    .run = zlib_run,
    .done = zlib_done,
    .release = zlib_release,
};

static const struct filter_ops zlib_filter = {.name = "gzip encoder (zlib)", .step = coder_step, .free = coder_free};

static int encoder_zlib_new(int level, struct filter **out, struct err *err)
{
    CLEANUP(free_ptr) struct gzip_encoder_zlib *e = calloc(1, sizeof *e);

    /* Not down to 0, which stores: ISA-L's level 0 compresses, and a caller cannot know which library it gets. */
    if (e == NULL || deflateInit2(&e->z, clamp(level, 1, 9), Z_DEFLATED, MAX_WBITS + 16, MAX_MEM_LEVEL - 1,
                                  Z_DEFAULT_STRATEGY) != Z_OK)
        return err_nomem(err, sizeof *e);
    coder_init(&e->coder, &zlib_filter, &zlib_coder, NULL);
    *out = &steal(&e)->coder.filter;
    return 0;
}

/* ---- ISA-L --------------------------------------------------------------------------------------------------------- */

#ifdef HAVE_ISAL

struct gzip_encoder_isal {
    struct coder coder;
    struct isal_zstream z;
    uint8_t level_buf[];
};

static int isal_run(struct coder *c, struct stream_in *in, bool last, struct stream_out *out, struct err *err)
{
    struct gzip_encoder_isal *e = (struct gzip_encoder_isal *)c;
    int rc;

    if (out->pos == out->len)
        return 0;
    e->z.next_in = (uint8_t *)(uintptr_t)(in->ptr + in->pos); /* ISA-L has no const, but only reads */
    e->z.avail_in = (uint32_t)(in->len - in->pos);
    e->z.next_out = out->ptr + out->pos;
    e->z.avail_out = (uint32_t)(out->len - out->pos);
    e->z.end_of_stream = last;
    rc = isal_deflate(&e->z);
    in->pos = in->len - e->z.avail_in;
    out->pos = out->len - e->z.avail_out;
    if (rc != COMP_OK)
        return err_set(err, ERR_BUG, "gzip encoder: ISA-L answers %d", rc);
    return 0;
}

static bool isal_done(const struct coder *c)
{
    return ((const struct gzip_encoder_isal *)c)->z.internal_state.state == ZSTATE_END;
}

static void isal_release(struct coder *c)
{
    (void)c;
}

static const struct coder_ops isal_coder = {
    .step_bytes = ENCODE_STEP_BYTES,
    .run = isal_run,
    .done = isal_done,
    .release = isal_release,
};

static const struct filter_ops isal_filter = {.name = "gzip encoder (ISA-L)", .step = coder_step, .free = coder_free};

static int encoder_isal_new(int level, struct filter **out, struct err *err)
{
    static const uint32_t level_buf_bytes[ISAL_DEF_MAX_LEVEL + 1] = {
        ISAL_DEF_LVL0_DEFAULT,
        ISAL_DEF_LVL1_DEFAULT,
        ISAL_DEF_LVL2_DEFAULT,
        ISAL_DEF_LVL3_DEFAULT,
    };
    int l = clamp(level, ISAL_DEF_MIN_LEVEL, ISAL_DEF_MAX_LEVEL);
    size_t size_bytes = sizeof(struct gzip_encoder_isal) + level_buf_bytes[l];
    struct gzip_encoder_isal *e = calloc(1, size_bytes);

    if (e == NULL)
        return err_nomem(err, size_bytes);
    isal_deflate_init(&e->z);
    e->z.level = (uint32_t)l;
    e->z.level_buf = e->level_buf;
    e->z.level_buf_size = level_buf_bytes[l];
    e->z.gzip_flag = IGZIP_GZIP;
    coder_init(&e->coder, &isal_filter, &isal_coder, NULL);
    *out = &e->coder.filter;
    return 0;
}

#else

static int encoder_isal_new(int level, struct filter **out, struct err *err)
{
    (void)level;
    (void)out;
    return err_set(err, ERR_UNSUPPORTED, "gzip encoder: built without ISA-L");
}

#endif

bool gzip_backend_built(enum gzip_backend b)
{
#ifdef HAVE_ISAL
    (void)b;
    return true;
#else
    return b == GZIP_ZLIB;
#endif
}

int gzip_encoder_new(enum gzip_backend b, int level, struct filter **out, struct err *err)
{
    return b == GZIP_ISAL ? encoder_isal_new(level, out, err) : encoder_zlib_new(level, out, err);
}
