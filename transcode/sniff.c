/* SPDX-License-Identifier: Apache-2.0
 * transcode/sniff.c - which codec a stream is in, by its first bytes. Declared media types are not trusted: blobs with
 * the wrong one are common (cases.md 88).
 */
#include "transcode/codec.h"

enum codec codec_sniff(const void *data, size_t len)
{
    const uint8_t *b = data;

    /* Three bytes for gzip: 08 is the only method there is, and two bytes alone are too likely by chance. */
    if (len >= 3 && b[0] == 0x1f && b[1] == 0x8b && b[2] == 0x08)
        return CODEC_GZIP;
    if (len >= 4 && b[0] == 0x28 && b[1] == 0xb5 && b[2] == 0x2f && b[3] == 0xfd)
        return CODEC_ZSTD;
    if (len >= 4 && (b[0] & 0xf0) == 0x50 && b[1] == 0x2a && b[2] == 0x4d && b[3] == 0x18)
        return CODEC_ZSTD;
    return CODEC_NONE;
}
