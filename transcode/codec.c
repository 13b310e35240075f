/* SPDX-License-Identifier: Apache-2.0
 * transcode/codec.c - the tables: codec -> name, decoder, encoder; and which library does gzip.
 */
#include "transcode/codec_internal.h"

const char *codec_name(enum codec c)
{
    switch (c) {
    case CODEC_NONE:
        return "none";
    case CODEC_GZIP:
        return "gzip";
    case CODEC_ZSTD:
        return "zstd";
    }
    return "unknown";
}

/* ISA-L runs everywhere, but without these instructions it falls back to plain C that is no faster than zlib. */
static bool cpu_suits_isal(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
#else
    return true;
#endif
}

bool codec_gzip_is_isal(void)
{
    const char *choice = getenv("RECASK_GZIP");

    if (choice != NULL && strcmp(choice, "zlib") == 0)
        return false;
    return gzip_backend_built(GZIP_ISAL) && cpu_suits_isal();
}

int codec_decoder_new(enum codec c, const struct decode_limits *limits, struct filter **out, struct err *err)
{
    REQUIRE(limits != NULL);
    switch (c) {
    case CODEC_NONE:
        return identity_new(limits, out, err);
    case CODEC_GZIP:
        return gzip_decoder_new(codec_gzip_is_isal() ? GZIP_ISAL : GZIP_ZLIB, limits, out, err);
    case CODEC_ZSTD:
        return zstd_decoder_new(limits, out, err);
    }
    return err_set(err, ERR_BUG, "no decoder for codec %d", (int)c);
}

int codec_encoder_new(enum codec c, int level, struct filter **out, struct err *err)
{
    switch (c) {
    case CODEC_NONE:
        return identity_new(NULL, out, err);
    case CODEC_GZIP:
        return gzip_encoder_new(codec_gzip_is_isal() ? GZIP_ISAL : GZIP_ZLIB, level, out, err);
    case CODEC_ZSTD:
        return zstd_encoder_new(level, out, err);
    }
    return err_set(err, ERR_BUG, "no encoder for codec %d", (int)c);
}
