/* SPDX-License-Identifier: Apache-2.0
 * transcode/gzip_decode.c - gzip streams (RFC 1952): members in a row, then perhaps zeros.
 *
 * The header is parsed here, byte by byte, since neither library does it in a way that suits both: zlib stops at the
 * end of a member without saying whether another one follows, and ISA-L keeps the name and comment only in buffers of
 * a fixed size. One parser also means that both libraries accept the same headers.
 */
#include "transcode/codec_internal.h"
#include "transcode/inflate_internal.h"

#define ZLIB_CONST
#include <zlib.h> /* crc32(), for FHCRC */

enum { FLAG_HCRC = 0x02, FLAG_EXTRA = 0x04, FLAG_NAME = 0x08, FLAG_COMMENT = 0x10, FLAGS_RESERVED = 0xe0 };

#define FIXED_BYTES 10

/* In the order in which a member has them; the optional ones are skipped by next_field(). */
enum gzip_state { AT_FIXED, AT_EXTRA_LEN, AT_EXTRA, AT_NAME, AT_COMMENT, AT_HCRC, AT_BODY, AT_PADDING };

struct gzip_decoder {
    struct coder coder;
    struct inflater *inflater;
    enum gzip_state state;
    bool any_member;    /* at least one is complete */
    uint32_t field_pos; /* bytes of the present header field seen */
    uint8_t flags;
    uint32_t field_left; /* FEXTRA: bytes to come; also collects its length and the FHCRC */
    uint32_t header_crc;
};

/* The first optional field at or after `from` that this header has, else the body. */
static void next_field(struct gzip_decoder *d, enum gzip_state from)
{
    d->field_pos = 0;
    if (from <= AT_EXTRA_LEN && (d->flags & FLAG_EXTRA))
        d->state = AT_EXTRA_LEN;
    else if (from <= AT_NAME && (d->flags & FLAG_NAME))
        d->state = AT_NAME;
    else if (from <= AT_COMMENT && (d->flags & FLAG_COMMENT))
        d->state = AT_COMMENT;
    else if (from <= AT_HCRC && (d->flags & FLAG_HCRC))
        d->state = AT_HCRC;
    else
        d->state = AT_BODY;
    if (d->state == AT_BODY)
        d->inflater->ops->reset(d->inflater);
}

static int take_fixed(struct gzip_decoder *d, uint8_t b, struct err *err)
{
    static const uint8_t magic[3] = {0x1f, 0x8b, 0x08};
    uint32_t pos = d->field_pos++;

    if (pos == 0 && d->any_member && b == 0) {
        d->state = AT_PADDING;
        return 0;
    }
    if (pos < sizeof magic && b != magic[pos])
        return err_set(err, ERR_FORMAT, d->any_member ? "gzip: other bytes after the last member" : "gzip: bad magic");
    if (pos == 3) {
        d->flags = b;
        if (b & FLAGS_RESERVED)
            return err_set(err, ERR_FORMAT, "gzip: reserved header flags 0x%02x", (unsigned)b);
    }
    if (pos == FIXED_BYTES - 1)
        next_field(d, AT_EXTRA_LEN);
    return 0;
}

/* FEXTRA's length and FHCRC: two bytes, low one first. True with the second. */
static bool take_u16(struct gzip_decoder *d, uint8_t b)
{
    if (d->field_pos++ == 0) {
        d->field_left = b;
        return false;
    }
    d->field_left |= (uint32_t)b << 8;
    return true;
}

static int take_header_byte(struct gzip_decoder *d, uint8_t b, struct err *err)
{
    uint32_t crc_before = d->header_crc;

    d->header_crc = (uint32_t)crc32(crc_before, &b, 1);
    switch (d->state) {
    case AT_FIXED:
        return take_fixed(d, b, err);
    case AT_EXTRA_LEN:
        if (take_u16(d, b)) {
            if (d->field_left > 0)
                d->state = AT_EXTRA;
            else
                next_field(d, AT_NAME);
        }
        return 0;
    case AT_EXTRA:
        if (--d->field_left == 0)
            next_field(d, AT_NAME);
        return 0;
    case AT_NAME:
        if (b == 0)
            next_field(d, AT_COMMENT);
        return 0;
    case AT_COMMENT:
        if (b == 0)
            next_field(d, AT_HCRC);
        return 0;
    case AT_HCRC:
        d->header_crc = crc_before; /* covers everything up to itself */
        if (!take_u16(d, b))
            return 0;
        if (d->field_left != (d->header_crc & 0xffff))
            return err_set(err, ERR_CORRUPT, "gzip: the CRC of a header does not match");
        next_field(d, AT_BODY);
        return 0;
    case AT_BODY:
    case AT_PADDING:
        break;
    }
    return err_set(err, ERR_BUG, "gzip: no header byte expected");
}

static int take_padding(struct stream_in *in, struct err *err)
{
    for (; in->pos < in->len; in->pos++)
        if (in->ptr[in->pos] != 0)
            return err_set(err, ERR_FORMAT, "gzip: other bytes than zeros behind the last member");
    return 0;
}

static int gzip_run(struct coder *c, struct stream_in *in, bool last, struct stream_out *out, struct err *err)
{
    struct gzip_decoder *d = (struct gzip_decoder *)c;

    (void)last;
    for (;;) {
        bool member_end = false;

        while (d->state < AT_BODY && in->pos < in->len)
            TRY(take_header_byte(d, in->ptr[in->pos++], err));
        if (d->state == AT_PADDING)
            return take_padding(in, err);
        if (d->state != AT_BODY)
            return 0;
        TRY(d->inflater->ops->run(d->inflater, in, out, &member_end, err));
        if (!member_end)
            return 0;
        d->state = AT_FIXED;
        d->field_pos = 0;
        d->header_crc = 0;
        d->any_member = true;
    }
}

static bool gzip_done(const struct coder *c)
{
    const struct gzip_decoder *d = (const struct gzip_decoder *)c;

    return d->any_member && (d->state == AT_PADDING || (d->state == AT_FIXED && d->field_pos == 0));
}

static void gzip_release(struct coder *c)
{
    struct gzip_decoder *d = (struct gzip_decoder *)c;

    d->inflater->ops->free(d->inflater);
}

static const struct coder_ops gzip_coder = {
    .step_bytes = DECODE_STEP_BYTES,
    .run = gzip_run,
    .done = gzip_done,
    .release = gzip_release,
};

static const struct filter_ops gzip_filter = {.name = "gzip decoder", .step = coder_step, .free = coder_free};

int gzip_decoder_new(enum gzip_backend b, const struct decode_limits *limits, struct filter **out, struct err *err)
{
    CLEANUP(free_ptr) struct gzip_decoder *d = calloc(1, sizeof *d);

    if (d == NULL)
        return err_nomem(err, sizeof *d);
    TRY(b == GZIP_ISAL ? inflater_isal_new(&d->inflater, err) : inflater_zlib_new(&d->inflater, err));
    coder_init(&d->coder, &gzip_filter, &gzip_coder, limits);
    *out = &steal(&d)->coder.filter;
    return 0;
}

void gzip_decoder_add_length(struct filter *f, uint32_t bytes)
{
    struct gzip_decoder *d = (struct gzip_decoder *)f;

    REQUIRE(d->state == AT_BODY);
    d->inflater->ops->add_length(d->inflater, bytes);
}

void gzip_decoder_ignore_trailer(struct filter *f)
{
    ((struct gzip_decoder *)f)->inflater->ignore_trailer = true;
}
