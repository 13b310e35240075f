/* SPDX-License-Identifier: Apache-2.0
 * transcode/inflate_zlib.c - member bodies by zlib, in raw mode with our own trailer check.
 */
#define ZLIB_CONST
#include "transcode/inflate_internal.h"

#include <zlib.h>

#define TRAILER_BYTES 8

struct inflater_zlib {
    struct inflater base;
    z_stream z;
    bool in_trailer;
    uint32_t crc;
    uint32_t length; /* modulo 2^32, as in ISIZE */
    uint8_t trailer[TRAILER_BYTES];
    size_t trailer_len;
};

static uint32_t le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static int run_deflate(struct inflater_zlib *z, struct stream_in *in, struct stream_out *out, struct err *err)
{
    const uint8_t *made = out->ptr + out->pos;
    int rc;

    z->z.next_in = in->ptr + in->pos;
    z->z.avail_in = (uInt)(in->len - in->pos);
    z->z.next_out = out->ptr + out->pos;
    z->z.avail_out = (uInt)(out->len - out->pos);
    rc = inflate(&z->z, Z_NO_FLUSH);
    in->pos = in->len - z->z.avail_in;
    out->pos = out->len - z->z.avail_out;

    uInt made_len = (uInt)(out->ptr + out->pos - made);
    z->crc = (uint32_t)crc32(z->crc, made, made_len);
    z->length += made_len;
    switch (rc) {
    case Z_STREAM_END:
        z->in_trailer = true;
        return 0;
    case Z_OK:
    case Z_BUF_ERROR: /* input or room is missing */
        return 0;
    case Z_MEM_ERROR: /* zlib allocates its window on first use */
        return err_nomem(err, (size_t)1 << MAX_WBITS);
    default:
        return err_set(err, ERR_CORRUPT, "gzip: %s", z->z.msg != NULL ? z->z.msg : "invalid deflate data");
    }
}

static int run_trailer(struct inflater_zlib *z, struct stream_in *in, bool *out_end, struct err *err)
{
    while (z->trailer_len < TRAILER_BYTES && in->pos < in->len)
        z->trailer[z->trailer_len++] = in->ptr[in->pos++];
    if (z->trailer_len < TRAILER_BYTES)
        return 0;
    *out_end = true;
    if (z->base.ignore_trailer || (le32(z->trailer) == z->crc && le32(z->trailer + 4) == z->length))
        return 0;
    return err_set(err, ERR_CORRUPT, "gzip: the CRC or the length of a member does not match");
}

static int zlib_run(struct inflater *inf, struct stream_in *in, struct stream_out *out, bool *out_end, struct err *err)
{
    struct inflater_zlib *z = (struct inflater_zlib *)inf;

    if (!z->in_trailer)
        TRY(run_deflate(z, in, out, err));
    if (z->in_trailer)
        TRY(run_trailer(z, in, out_end, err));
    return 0;
}

static void zlib_reset(struct inflater *inf)
{
    struct inflater_zlib *z = (struct inflater_zlib *)inf;

    REQUIRE(inflateReset(&z->z) == Z_OK);
    z->in_trailer = false;
    z->crc = 0;
    z->length = 0;
    z->trailer_len = 0;
}

static void zlib_add_length(struct inflater *inf, uint32_t bytes)
{
    ((struct inflater_zlib *)inf)->length += bytes;
}

static void zlib_free(struct inflater *inf)
{
    struct inflater_zlib *z = (struct inflater_zlib *)inf;

    inflateEnd(&z->z);
    free(z);
}

static const struct inflater_ops zlib_ops = {
    .run = zlib_run,
    .reset = zlib_reset,
    .add_length = zlib_add_length,
    .free = zlib_free,
};

int inflater_zlib_new(struct inflater **out, struct err *err)
{
    CLEANUP(free_ptr) struct inflater_zlib *z = calloc(1, sizeof *z);

    if (z == NULL || inflateInit2(&z->z, -MAX_WBITS) != Z_OK)
        return err_nomem(err, sizeof *z);
    z->base.ops = &zlib_ops;
    *out = &steal(&z)->base;
    return 0;
}
