/* SPDX-License-Identifier: Apache-2.0
 * transcode/inflate_isal.c - member bodies by ISA-L.
 *
 * Mode ISAL_GZIP_NO_HDR_VER: no header, the trailer is checked by ISA-L. In the plain modes the bytes that it has read
 * ahead stay in its bit buffer (2.30) or are given back by moving next_in, perhaps to before our input (later ones).
 *
 * ISA-L takes Huffman codes that are incomplete, which zlib and Go refuse, as long as no missing code is used. RFC 1951
 * does not forbid them and no encoder is known to write them; the result is still bound by CRC, length and diffID.
 */
#include "transcode/inflate_internal.h"

#ifdef HAVE_ISAL

#include <isa-l/igzip_lib.h>

struct inflater_isal {
    struct inflater base;
    struct inflate_state s;
};

static const char *reason(int rc)
{
    switch (rc) {
    case ISAL_INVALID_BLOCK:
        return "invalid block";
    case ISAL_INVALID_SYMBOL:
        return "invalid code";
    case ISAL_INVALID_LOOKBACK:
        return "invalid distance";
    case ISAL_INCORRECT_CHECKSUM:
        return "the CRC or the length of a member does not match";
    default:
        return "invalid deflate data";
    }
}

static int isal_run(struct inflater *inf, struct stream_in *in, struct stream_out *out, bool *out_end, struct err *err)
{
    struct inflater_isal *z = (struct inflater_isal *)inf;
    int rc;

    z->s.next_in = (uint8_t *)(uintptr_t)(in->ptr + in->pos); /* ISA-L has no const, but only reads */
    z->s.avail_in = (uint32_t)(in->len - in->pos);
    z->s.next_out = out->ptr + out->pos;
    z->s.avail_out = (uint32_t)(out->len - out->pos);
    rc = isal_inflate(&z->s);
    in->pos = in->len - z->s.avail_in;
    out->pos = out->len - z->s.avail_out;

    if (rc == ISAL_INCORRECT_CHECKSUM && z->base.ignore_trailer)
        rc = ISAL_DECOMP_OK;
    if (rc != ISAL_DECOMP_OK)
        return err_set(err, ERR_CORRUPT, "gzip: %s", reason(rc));
    /* Set only when the output is flushed and the trailer checked. */
    *out_end = z->s.block_state == ISAL_BLOCK_FINISH;
    return 0;
}

static void isal_reset(struct inflater *inf)
{
    struct inflater_isal *z = (struct inflater_isal *)inf;

    isal_inflate_reset(&z->s);
    z->s.crc_flag = ISAL_GZIP_NO_HDR_VER;
}

static void isal_add_length(struct inflater *inf, uint32_t bytes)
{
    ((struct inflater_isal *)inf)->s.total_out += bytes;
}

static void isal_free(struct inflater *inf)
{
    free(inf);
}

static const struct inflater_ops isal_ops = {
    .run = isal_run,
    .reset = isal_reset,
    .add_length = isal_add_length,
    .free = isal_free,
};

int inflater_isal_new(struct inflater **out, struct err *err)
{
    struct inflater_isal *z = calloc(1, sizeof *z);

    if (z == NULL)
        return err_nomem(err, sizeof *z);
    isal_inflate_init(&z->s);
    z->base.ops = &isal_ops;
    *out = &z->base;
    return 0;
}

#else

int inflater_isal_new(struct inflater **out, struct err *err)
{
    (void)out;
    return err_set(err, ERR_UNSUPPORTED, "gzip: built without ISA-L");
}

#endif
