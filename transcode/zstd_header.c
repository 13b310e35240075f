/* SPDX-License-Identifier: Apache-2.0
 * transcode/zstd_header.c - parsing of zstd frame headers, shared parameters, and libzstd's errors in ours.
 */
#include "transcode/zstd_internal.h"

#include <zstd_errors.h>

static uint64_t le(const uint8_t *p, unsigned bytes)
{
    uint64_t v = 0;

    for (unsigned i = 0; i < bytes; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static int parse_skippable(const uint8_t *b, size_t len, struct zstd_header *h)
{
    if (len < ZSTD_SKIPPABLE_HEADER_BYTES)
        return ZSTD_SKIPPABLE_HEADER_BYTES;
    h->skippable = true;
    h->skip_bytes = (uint32_t)le(b + 4, 4);
    h->header_bytes = ZSTD_SKIPPABLE_HEADER_BYTES;
    return 0;
}

/* Section 3.1.1.1.2: eight steps of an eighth between the powers of two. */
static uint64_t window_bytes(uint8_t descriptor)
{
    uint64_t base = (uint64_t)1 << (10 + (descriptor >> 3));

    return base + (base / 8) * (descriptor & 7);
}

int zstd_header_parse(const uint8_t *b, size_t len, struct zstd_header *h, struct err *err)
{
    static const uint8_t dict_id_bytes[4] = {0, 1, 2, 4};
    static const uint8_t content_bytes[4] = {0, 2, 4, 8};

    *h = (struct zstd_header){.skippable = false};
    if (len < 5)
        return 5;
    if ((b[0] & 0xf0) == 0x50 && le(b + 1, 3) == 0x184d2a)
        return parse_skippable(b, len, h);
    if (le(b, 4) != ZSTD_MAGIC)
        return err_set(err, ERR_FORMAT, "zstd: bad magic");

    uint8_t descriptor = b[4];
    bool single_segment = descriptor & 0x20;
    unsigned id_len = dict_id_bytes[descriptor & 3];
    unsigned content_len = content_bytes[descriptor >> 6];
    size_t pos = 5;

    if (descriptor & 0x08)
        return err_set(err, ERR_FORMAT, "zstd: a reserved bit is set in a frame header");
    if (content_len == 0 && single_segment)
        content_len = 1;
    h->header_bytes = pos + (single_segment ? 0 : 1) + id_len + content_len;
    if (len < h->header_bytes)
        return (int)h->header_bytes;

    h->has_checksum = descriptor & 0x04;
    if (!single_segment)
        h->window_bytes = window_bytes(b[pos++]);
    h->dict_id = (uint32_t)le(b + pos, id_len);
    pos += id_len;
    h->has_content_bytes = content_len > 0;
    h->content_bytes = le(b + pos, content_len) + (content_len == 2 ? 256 : 0);
    if (single_segment)
        h->window_bytes = h->content_bytes;
    return 0;
}

int zstd_set_params(ZSTD_CCtx *cctx, int level, struct err *err)
{
    int max = ZSTD_maxCLevel();
    /* Levels above 19 have larger windows by default. Below, a fixed log would only make small levels slow. */
    int window_log = level > 19 ? ZSTD_WINDOW_LOG_OURS : 0;
    const struct {
        ZSTD_cParameter key;
        int value;
    } params[] = {
        {ZSTD_c_compressionLevel, level > max ? max : level},
        {ZSTD_c_windowLog, window_log},
        {ZSTD_c_contentSizeFlag, 1},
        {ZSTD_c_checksumFlag, 0}, /* what we store and send has checksums of its own */
        {ZSTD_c_dictIDFlag, 0},
        {ZSTD_c_nbWorkers, 0},
    };

    ZSTD_CCtx_reset(cctx, ZSTD_reset_session_and_parameters);
    for (size_t i = 0; i < ARRAY_LEN(params); i++) {
        size_t rc = ZSTD_CCtx_setParameter(cctx, params[i].key, params[i].value);
        /* A libzstd without threads refuses even 0 workers. */
        if (ZSTD_isError(rc) && params[i].key != ZSTD_c_nbWorkers)
            return zstd_err_set(err, rc, "zstd encoder");
    }
    return 0;
}

int zstd_err_set(struct err *err, size_t zstd_rc, const char *what)
{
    enum err_code code;

    switch (ZSTD_getErrorCode(zstd_rc)) {
    case ZSTD_error_memory_allocation:
        code = ERR_NOMEM;
        break;
    case ZSTD_error_frameParameter_windowTooLarge:
        code = ERR_LIMIT;
        break;
    case ZSTD_error_dictionary_wrong:
        code = ERR_UNSUPPORTED;
        break;
    case ZSTD_error_prefix_unknown:
    case ZSTD_error_frameParameter_unsupported:
        code = ERR_FORMAT;
        break;
    case ZSTD_error_parameter_outOfBound:
    case ZSTD_error_parameter_unsupported:
    case ZSTD_error_stage_wrong:
        code = ERR_BUG;
        break;
    default: /* libzstd's list is open */
        code = ERR_CORRUPT;
        break;
    }
    return err_set(err, code, "%s: %s", what, ZSTD_getErrorName(zstd_rc));
}
