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
    {"bytes=,", 10, RANGE_NONE, 0, 0},
    {"bytes=0-1,x", 10, RANGE_NONE, 0, 0},
    {"bytes=0-1,5-3", 10, RANGE_NONE, 0, 0},
    {"bytes=0-1 3-4", 10, RANGE_NONE, 0, 0},
    {"bytes=0-1,,", 10, RANGE_ONE, 0, 1}, /* members of a list may be empty */
    {"bytes= , 2-3", 10, RANGE_ONE, 2, 3},
    {"byte=0-1", 10, RANGE_NONE, 0, 0},
    {"bytesx=0-1", 10, RANGE_NONE, 0, 0},
    {"bytes:0-1", 10, RANGE_NONE, 0, 0},
    {"items=0-1", 10, RANGE_NONE, 0, 0},
};

static void test_range(void **state UNUSED)
{
    struct err err = ERR_INIT;

    for (size_t i = 0; i < ARRAY_LEN(range_rows); i++) {
        struct range got = {.kind = RANGE_ONE, .first = 77, .last = 78};

        assert_int_equal(range_parse(range_rows[i].header, range_rows[i].size, &got, &err), 0);
        if (got.kind != range_rows[i].kind || got.first != range_rows[i].first || got.last != range_rows[i].last)
            fail_msg("%s of %llu: got %d %llu-%llu", range_rows[i].header, (unsigned long long)range_rows[i].size,
                     got.kind, (unsigned long long)got.first, (unsigned long long)got.last);
        range_release(&got);
    }
}

static const struct {
    const char *header;
    uint64_t size;
    enum range_kind kind;
    const char *spans;
} several_rows[] = {
    {"bytes=0-1,3-4", 10, RANGE_SEVERAL, "0-1 3-4 "},
    {"bytes=8-,0-1 , -3", 10, RANGE_SEVERAL, "8-9 0-1 7-9 "}, /* in the order asked for */
    {"bytes=0-0,0-0,0-0", 10, RANGE_SEVERAL, "0-0 0-0 0-0 "},
    {"bytes=10-,2-3,-0", 10, RANGE_SEVERAL, "2-3 "}, /* still several: that is what was asked for */
    {"bytes=4294967296-4294967297,8589934591-", UINT64_C(8589934592), RANGE_SEVERAL,
     "4294967296-4294967297 8589934591-8589934591 "},
    {"bytes=0-9,0-9", 10, RANGE_SEVERAL, "0-9 0-9 "},
    {"bytes=0-9,0-9,0-9", 10, RANGE_NONE, ""}, /* more than the blob twice over */
    {"bytes=0-,0-,0-", UINT64_MAX, RANGE_NONE, ""},
    {"bytes=10-,20-30", 10, RANGE_UNSATISFIABLE, ""},
    {"bytes=0-1,2-3", 0, RANGE_UNSATISFIABLE, ""},
};

static void test_several(void **state UNUSED)
{
    struct err err = ERR_INIT;

    for (size_t i = 0; i < ARRAY_LEN(several_rows); i++) {
        struct range got;
        char text[200] = "";

        assert_int_equal(range_parse(several_rows[i].header, several_rows[i].size, &got, &err), 0);
        for (size_t n = 0; n < got.count; n++)
            snprintf(text + strlen(text), sizeof(text) - strlen(text), "%llu-%llu ",
                     (unsigned long long)got.spans[n].first, (unsigned long long)got.spans[n].last);
        if (got.kind != several_rows[i].kind || strcmp(text, several_rows[i].spans) != 0)
            fail_msg("%s: got %d %s", several_rows[i].header, got.kind, text);
        range_release(&got);
    }
}

static void test_many(void **state UNUSED)
{
    struct err err = ERR_INIT;
    static char header[4 * (RANGES_MAX + 1) + 10] = "bytes=";
    struct range got;
    char *end = header + strlen(header);

    for (int i = 0; i < RANGES_MAX; i++)
        end = stpcpy(end, "1-1,");
    assert_int_equal(range_parse(header, 1000000, &got, &err), 0);
    assert_int_equal(got.kind, RANGE_SEVERAL);
    assert_int_equal(got.count, RANGES_MAX);
    range_release(&got);
    stpcpy(end, "1-1");
    assert_int_equal(range_parse(header, 1000000, &got, &err), 0);
    assert_int_equal(got.kind, RANGE_NONE);
    assert_null(got.spans);
}

#define A_TAG "\"sha256:aa\""

static const struct {
    const char *list, *etag;
    bool weakly, strongly;
} etag_rows[] = {
    {NULL, A_TAG, false, false},
    {"", A_TAG, false, false},
    {"  ", A_TAG, false, false},
    {",", A_TAG, false, false},
    {A_TAG, A_TAG, true, true},
    {" \t" A_TAG " ", A_TAG, true, true},
    {"\"b\", " A_TAG, A_TAG, true, true},
    {"\"b\"," A_TAG ",\"c\"", A_TAG, true, true},
    {", ," A_TAG " ,, ", A_TAG, true, true},
    {"\"b\", \"c\"", A_TAG, false, false},
    {"\"sha256:a\"", A_TAG, false, false},
    {"\"sha256:aab\"", A_TAG, false, false},
    {"\"SHA256:AA\"", A_TAG, false, false},
    {"\"a,b\"", "\"a,b\"", true, true}, /* a comma inside the quotes is part of the tag */
    {"\"a, \"sha256:aa\"", A_TAG, false, false},
    {"\"x,\", " A_TAG, A_TAG, true, true},
    {"\"a\\\", " A_TAG, A_TAG, true, true}, /* and a backslash escapes nothing */
    {"\"\"", "\"\"", true, true},
    {"W/" A_TAG, A_TAG, true, false},
    {A_TAG, "W/" A_TAG, true, false},
    {"W/" A_TAG, "W/" A_TAG, true, false},
    {"W/" A_TAG ", " A_TAG, A_TAG, true, true},
    {"w/" A_TAG, A_TAG, false, false},
    {"W/ " A_TAG, A_TAG, false, false},
    {"W/", A_TAG, false, false},
    {"*", A_TAG, true, true},
    {" * ", A_TAG, true, true},
    {"*", "W/" A_TAG, true, true},
    {"*, " A_TAG, A_TAG, false, false},
    {A_TAG ", *", A_TAG, false, false},
    {"**", A_TAG, false, false},
    {"sha256:aa", A_TAG, false, false},
    {"'sha256:aa'", A_TAG, false, false},
    {"\"sha256:aa", A_TAG, false, false},
    {"sha256:aa\"", A_TAG, false, false},
    {A_TAG "x", A_TAG, false, false},
    {A_TAG " \"b\"", A_TAG, false, false},
    {A_TAG ", b", A_TAG, false, false}, /* broken anywhere: nothing in it counts */
    {A_TAG "; q=1", A_TAG, false, false},
    {"\"a b\"", "\"a b\"", false, false},
    {"\"a\tb\", " A_TAG, A_TAG, false, false},
    {"\"\x7f\", " A_TAG, A_TAG, false, false},
    {"\"\xc3\xa9\", " A_TAG, A_TAG, true, true},
    {"sha256:aa", "sha256:aa", false, false},
    {A_TAG, A_TAG " ", false, false},
    {A_TAG, NULL, false, false},
};

static void test_etags(void **state UNUSED)
{
    for (size_t i = 0; i < ARRAY_LEN(etag_rows); i++) {
        if (etag_matches(etag_rows[i].list, etag_rows[i].etag) != etag_rows[i].weakly)
            fail_msg("row %zu, weakly: %s", i, etag_rows[i].list);
        if (etag_matches_strong(etag_rows[i].list, etag_rows[i].etag) != etag_rows[i].strongly)
            fail_msg("row %zu, strongly: %s", i, etag_rows[i].list);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accept_encoding), cmocka_unit_test(test_accept),  cmocka_unit_test(test_layer_form),
        cmocka_unit_test(test_range),           cmocka_unit_test(test_several), cmocka_unit_test(test_many),
        cmocka_unit_test(test_etags),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
