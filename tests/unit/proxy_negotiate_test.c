/* SPDX-License-Identifier: Apache-2.0
 * proxy/negotiate.c: headers as real clients send them, and as nobody should.
 */
#include "proxy/negotiate.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define OCI_TAR "application/vnd.oci.image.layer.v1.tar"
#define DOCKER_TAR "application/vnd.docker.image.rootfs.diff.tar"
#define INDEX "application/vnd.oci.image.index.v1+json"

static const struct {
    const char *header;
    enum codec want;
} encoding_rows[] = {
    {NULL, CODEC_NONE},
    {"", CODEC_NONE},
    {"zstd;q=1.0, gzip;q=0.8, deflate;q=0.5", CODEC_ZSTD}, /* containerd 2 */
    {"gzip", CODEC_GZIP},                                  /* Go */
    {"identity", CODEC_NONE},                              /* docker 20.10 */
    {"zstd, gzip, deflate", CODEC_ZSTD},                   /* distribution 3 */
    {"deflate, gzip, br, zstd", CODEC_ZSTD},               /* curl */
    {"*", CODEC_NONE},
    {"*;q=1", CODEC_NONE},
    {"deflate", CODEC_NONE},
    {"x-gzip", CODEC_NONE},
    {"gzipx, zstdx, xzstd", CODEC_NONE},
    {"zstd;q=0, gzip", CODEC_GZIP},
    {"zstd;q=0.000, gzip;q=0.001", CODEC_GZIP},
    {"zstd;q=0, gzip;q=0", CODEC_NONE},
    {"gzip;q=1, zstd;q=0.001", CODEC_ZSTD},
    {"GZIP", CODEC_GZIP},
    {"ZStd;Q=0.5", CODEC_ZSTD},
    {"zstd ; q=0.5 ,\tgzip", CODEC_ZSTD},
    {" , ,gzip, ", CODEC_GZIP},
    {"zstd;q=0 , zstd", CODEC_NONE},
    {"zstd, zstd;q=0, gzip", CODEC_GZIP},
    {"gzip;q=", CODEC_NONE},
    {"gzip;q", CODEC_NONE},
    {"gzip;q=x", CODEC_NONE},
    {"gzip;q=.5", CODEC_NONE},
    {"gzip;q=5.5", CODEC_NONE},
    {"gzip;q=x.5", CODEC_NONE},
    {"gzip;q=0x5", CODEC_NONE},
    {"gzip;q=1.5", CODEC_NONE},
    {"gzip;q=1.001", CODEC_NONE},
    {"gzip;q=2", CODEC_NONE},
    {"gzip;q=-1", CODEC_NONE},
    {"gzip;q=0.1234", CODEC_NONE},
    {"gzip;q=0,5", CODEC_NONE},
    {"gzip;q=01", CODEC_NONE},
    {"gzip;q=1.", CODEC_GZIP},
    {"gzip;q=1.000", CODEC_GZIP},
    {"gzip;q=0.", CODEC_NONE},
    {"gzip;q = 0", CODEC_NONE},
    {"gzip;q=0.5;q=0", CODEC_NONE},
    {"gzip;qq=0", CODEC_GZIP},
    {"gzip;x=\"a,zstd;q=1\"", CODEC_GZIP},
    {"gzip;x=\"a\\\",zstd\"", CODEC_GZIP},
    {"gzip;x=\"a\", zstd", CODEC_ZSTD},
    {"gzip;x=\"ab\", zstd", CODEC_ZSTD},
    {"gzip;x=\"zstd, zstd", CODEC_GZIP}, /* a quote that never ends takes the rest with it */
    {"gzip zstd", CODEC_NONE},
    {"gzip;q=0.5, zstd;q=x", CODEC_GZIP},
    {";q=1", CODEC_NONE},
};

static void test_accept_encoding(void **state UNUSED)
{
    for (size_t i = 0; i < ARRAY_LEN(encoding_rows); i++) {
        if (accept_encoding_choose(encoding_rows[i].header) != encoding_rows[i].want)
            fail_msg("%s: got %d", encoding_rows[i].header, accept_encoding_choose(encoding_rows[i].header));
    }
}

static void test_accept(void **state UNUSED)
{
    static const struct {
        const char *header;
        bool want; /* of INDEX */
    } rows[] = {
        {NULL, true},
        {"", true},
        {" , ", true},
        {"*/*", true},
        {"application/*", true},
        {"Application/*", true},
        {INDEX, true},
        {"application/vnd.docker.distribution.manifest.v2+json, " INDEX ", */*", true},
        {"application/vnd.docker.distribution.manifest.v2+json, */*", true},
        {"application/vnd.docker.distribution.manifest.v2+json", false},
        {"text/*", false},
        {"applicatio/*", false},
        {"applications/*", false},
        {"application/*x", false},
        {"*", false},
        {"*/json", false},
        {INDEX "x", false},
        {"x" INDEX, false},
        {"APPLICATION/VND.OCI.IMAGE.INDEX.V1+JSON", true},
        {INDEX ";q=0.1", true},
        {INDEX ";q=0", false},
        {INDEX ";q=0, */*", false},
        {"*/*, " INDEX ";q=0", false},
        {"application/*;q=0, */*", false},
        {"application/*;q=0, */*, " INDEX, true},
        {"*/*;q=0", false},
        {"*/*;q=0, " INDEX, true},
        {"*/*;q=0, */*", true},
        {"*/*, */*;q=0", true},
        {"application/*;q=0.1, application/*;q=0", true},
        {"text/html;q=0", false},
        {INDEX ";q=oops", false},
        {INDEX ";charset=utf-8;q=0.5", true},
        {INDEX ";x=\";q=0\"", true},
        {"text/html, " INDEX, true},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (accept_allows(rows[i].header, INDEX) != rows[i].want)
            fail_msg("%s: want %d", rows[i].header, rows[i].want);
    }
}

static void test_layer_form(void **state UNUSED)
{
    static const struct {
        const char *header;
        enum codec want;
        const char *type;
    } rows[] = {
        {NULL, CODEC_NONE, NULL},
        {"", CODEC_NONE, NULL},
        {"*/*", CODEC_NONE, NULL},
        {OCI_TAR "+gzip, */*", CODEC_NONE, NULL}, /* containerd: the descriptor's type must not change bytes */
        {"*/*, " OCI_TAR "+zstd", CODEC_NONE, NULL},
        {OCI_TAR "+gzip", CODEC_GZIP, OCI_TAR "+gzip"},
        {OCI_TAR "+zstd", CODEC_ZSTD, OCI_TAR "+zstd"},
        {"Application/vnd.OCI.image.layer.v1.tar+ZSTD", CODEC_ZSTD, OCI_TAR "+zstd"},
        {DOCKER_TAR ".gzip", CODEC_GZIP, DOCKER_TAR ".gzip"},
        {DOCKER_TAR ".zstd", CODEC_NONE, NULL}, /* never written */
        {DOCKER_TAR ".zstd, " DOCKER_TAR ".gzip", CODEC_GZIP, DOCKER_TAR ".gzip"},
        {"application/vnd.oci.image.layer.nondistributable.v1.tar+zstd", CODEC_ZSTD,
         "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd"},
        {"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", CODEC_GZIP,
         "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"},
        {OCI_TAR, CODEC_NONE, NULL},
        {OCI_TAR "+gzip, " OCI_TAR, CODEC_NONE, NULL},
        {OCI_TAR ", " OCI_TAR "+zstd", CODEC_NONE, NULL},
        {DOCKER_TAR ", " OCI_TAR "+zstd", CODEC_NONE, NULL},
        {"application/octet-stream, " OCI_TAR "+zstd", CODEC_NONE, NULL},
        {"application/*, " OCI_TAR "+zstd", CODEC_NONE, NULL},
        {OCI_TAR "+gzip, */*;q=0", CODEC_GZIP, OCI_TAR "+gzip"},
        {OCI_TAR ";q=0, " OCI_TAR "+gzip", CODEC_GZIP, OCI_TAR "+gzip"},
        {OCI_TAR "+gzip;q=0", CODEC_NONE, NULL},
        {OCI_TAR "+gzip;q=no", CODEC_NONE, NULL},
        {OCI_TAR "+gzip, */*;q=0.001", CODEC_NONE, NULL},
        {OCI_TAR "+gzip, " OCI_TAR "+zstd", CODEC_ZSTD, OCI_TAR "+zstd"},
        {OCI_TAR "+zstd, " OCI_TAR "+gzip", CODEC_ZSTD, OCI_TAR "+zstd"},
        {OCI_TAR "+zstd;q=0.5, " OCI_TAR "+gzip", CODEC_GZIP, OCI_TAR "+gzip"},
        {OCI_TAR "+gzip;q=0.5, " OCI_TAR "+zstd;q=0.6", CODEC_ZSTD, OCI_TAR "+zstd"},
        {OCI_TAR "+gzip, " DOCKER_TAR ".gzip", CODEC_GZIP, OCI_TAR "+gzip"},
        {"application/json, " OCI_TAR "+gzip", CODEC_GZIP, OCI_TAR "+gzip"},
        {OCI_TAR "+gzipp", CODEC_NONE, NULL},
        {"application/vnd.kitops.modelkit.model.v1.tar+gzip", CODEC_NONE, NULL},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const char *type = "unset";

        if (accept_layer_form(rows[i].header, &type) != rows[i].want)
            fail_msg("%s: want %d", rows[i].header, rows[i].want);
        if (rows[i].type == NULL)
            assert_null(type);
        else
            assert_string_equal(type, rows[i].type);
    }
}

static const struct {
    const char *header;
    uint64_t size;
    enum range_kind kind;
    uint64_t first, last;
} range_rows[] = {
    {"bytes=0-", 10, RANGE_ONE, 0, 9},
    {"bytes=0-0", 10, RANGE_ONE, 0, 0},
    {"bytes=9-9", 10, RANGE_ONE, 9, 9},
    {"bytes=9-", 10, RANGE_ONE, 9, 9},
    {"bytes=5-10", 10, RANGE_ONE, 5, 9}, /* regclient: one past the end */
    {"bytes=5-18446744073709551615", 10, RANGE_ONE, 5, 9},
    {"bytes=5-18446744073709551616", 10, RANGE_ONE, 5, 9},
    {"bytes=5-99999999999999999999999", 10, RANGE_ONE, 5, 9},
    {"bytes=-1", 10, RANGE_ONE, 9, 9},
    {"bytes=-10", 10, RANGE_ONE, 0, 9},
    {"bytes=-11", 10, RANGE_ONE, 0, 9},
    {"bytes=-99999999999999999999999", 10, RANGE_ONE, 0, 9},
    {"bytes=00000000000000000000000005-6", 10, RANGE_ONE, 5, 6},
    {"BYTES=1-2", 10, RANGE_ONE, 1, 2},
    {" bytes = 1 - 2 ", 10, RANGE_ONE, 1, 2},
    {"bytes=0-9", UINT64_MAX, RANGE_ONE, 0, 9},
    {"bytes=18446744073709551614-", UINT64_MAX, RANGE_ONE, UINT64_MAX - 1, UINT64_MAX - 1},
    {"bytes=-5", UINT64_MAX, RANGE_ONE, UINT64_MAX - 5, UINT64_MAX - 1},

    {"bytes=10-", 10, RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=10-20", 10, RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=-0", 10, RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=18446744073709551616-", 10, RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=18446744073709551615-", UINT64_MAX, RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=99999999999999999999999-99999999999999999999999", UINT64_MAX, RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=0-", 0, RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=0-0", 0, RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=-5", 0, RANGE_UNSATISFIABLE, 0, 0},

    {NULL, 10, RANGE_NONE, 0, 0},
    {"", 10, RANGE_NONE, 0, 0},
    {"bytes", 10, RANGE_NONE, 0, 0},
    {"bytes=", 10, RANGE_NONE, 0, 0},
    {"bytes=-", 10, RANGE_NONE, 0, 0},
    {"bytes=--1", 10, RANGE_NONE, 0, 0},
    {"bytes=5-3", 10, RANGE_NONE, 0, 0},
    {"bytes=20-3", 10, RANGE_NONE, 0, 0},
    {"bytes=5-3", 0, RANGE_NONE, 0, 0},
    {"bytes=5", 10, RANGE_NONE, 0, 0},
    {"bytes=a-b", 10, RANGE_NONE, 0, 0},
    {"bytes=0x1-2", 10, RANGE_NONE, 0, 0},
    {"bytes=+1-2", 10, RANGE_NONE, 0, 0},
    {"bytes=1-2x", 10, RANGE_NONE, 0, 0},
    {"bytes=1 2-3", 10, RANGE_NONE, 0, 0},
    {"bytes=0-1,3-4", 10, RANGE_NONE, 0, 0},
    {"bytes=0-1,", 10, RANGE_NONE, 0, 0},
    {"byte=0-1", 10, RANGE_NONE, 0, 0},
    {"bytesx=0-1", 10, RANGE_NONE, 0, 0},
    {"bytes:0-1", 10, RANGE_NONE, 0, 0},
    {"items=0-1", 10, RANGE_NONE, 0, 0},
};

static void test_range(void **state UNUSED)
{
    for (size_t i = 0; i < ARRAY_LEN(range_rows); i++) {
        struct range got = {.kind = RANGE_ONE, .first = 77, .last = 78};

        range_parse(range_rows[i].header, range_rows[i].size, &got);
        if (got.kind != range_rows[i].kind || got.first != range_rows[i].first || got.last != range_rows[i].last)
            fail_msg("%s of %llu: got %d %llu-%llu", range_rows[i].header, (unsigned long long)range_rows[i].size,
                     got.kind, (unsigned long long)got.first, (unsigned long long)got.last);
    }
}

static void test_range_first(void **state UNUSED)
{
    uint64_t first = 77;

    assert_true(range_first("bytes=0-", &first));
    assert_true(first == 0);
    assert_true(range_first("bytes=12345678901-12345678902", &first));
    assert_true(first == 12345678901);
    first = 77;
    assert_false(range_first("bytes=-5", &first));
    assert_false(range_first("bytes=0-1,2-3", &first));
    assert_false(range_first("bytes=5-3", &first));
    assert_false(range_first("lines=5-", &first));
    assert_false(range_first("", &first));
    assert_false(range_first(NULL, &first));
    assert_true(first == 77);
}

static void test_etags(void **state UNUSED)
{
    static const struct {
        const char *header, *etag;
        bool want;
    } rows[] = {
        {NULL, "\"a\"", false},
        {"", "\"a\"", false},
        {" \t", "\"a\"", false},
        {",", "\"a\"", false},
        {"\"a\"", "\"a\"", true},
        {"\"a\"", "\"b\"", false},
        {"\"a\"", "\"ab\"", false},
        {"\"ab\"", "\"a\"", false},
        {"\"A\"", "\"a\"", false},
        {"W/\"a\"", "\"a\"", true}, /* weak comparison */
        {"\"a\"", "W/\"a\"", true},
        {"W/\"a\"", "W/\"a\"", true},
        {"w/\"a\"", "\"a\"", false}, /* the W has a case */
        {"*", "\"a\"", true},
        {" * ", "\"a\"", true},
        {"*, \"b\"", "\"a\"", false},
        {"\"*\"", "\"a\"", false},
        {"\"b\", \"a\"", "\"a\"", true},
        {"\"b\",W/\"a\" , \"c\"", "\"a\"", true},
        {",, \"b\" ,\t,\"a\",", "\"a\"", true},
        {"\"b\", \"c\"", "\"a\"", false},
        {"\"x,a\"", "\"a\"", false}, /* a comma inside is part of it */
        {"\"x, \"", "\"x, \"", true},
        {"\"\"", "\"\"", true},
        {"a", "\"a\"", false},
        {"a, \"a\"", "\"a\"", false},
        {"\"a", "\"a\"", false},
        {"\"b\"\"a\"", "\"a\"", false},
        {"\"", "\"a\"", false},
        {"W/", "\"a\"", false},
        {"W", "\"a\"", false},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (etag_matches(rows[i].header, rows[i].etag) != rows[i].want)
            fail_msg("%s against %s", rows[i].header ? rows[i].header : "-", rows[i].etag);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_etags),
        cmocka_unit_test(test_accept_encoding), cmocka_unit_test(test_accept),      cmocka_unit_test(test_layer_form),
        cmocka_unit_test(test_range),           cmocka_unit_test(test_range_first),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
