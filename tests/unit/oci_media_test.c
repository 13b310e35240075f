/* SPDX-License-Identifier: Apache-2.0
 * oci/media.c: every type, both ways.
 */
#include "oci/oci.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void test_both_ways(void **state UNUSED)
{
    static const struct {
        enum oci_type type;
        const char *name;
    } rows[] = {
        {OCI_TYPE_MANIFEST, "application/vnd.oci.image.manifest.v1+json"},
        {OCI_TYPE_INDEX, "application/vnd.oci.image.index.v1+json"},
        {OCI_TYPE_SCHEMA2, "application/vnd.docker.distribution.manifest.v2+json"},
        {OCI_TYPE_SCHEMA2_LIST, "application/vnd.docker.distribution.manifest.list.v2+json"},
        {OCI_TYPE_CONFIG, "application/vnd.oci.image.config.v1+json"},
        {OCI_TYPE_SCHEMA2_CONFIG, "application/vnd.docker.container.image.v1+json"},
        {OCI_TYPE_LAYER, "application/vnd.oci.image.layer.v1.tar"},
        {OCI_TYPE_LAYER_GZIP, "application/vnd.oci.image.layer.v1.tar+gzip"},
        {OCI_TYPE_LAYER_ZSTD, "application/vnd.oci.image.layer.v1.tar+zstd"},
        {OCI_TYPE_SCHEMA2_LAYER, "application/vnd.docker.image.rootfs.diff.tar"},
        {OCI_TYPE_SCHEMA2_LAYER_GZIP, "application/vnd.docker.image.rootfs.diff.tar.gzip"},
        {OCI_TYPE_SCHEMA2_LAYER_ZSTD, "application/vnd.docker.image.rootfs.diff.tar.zstd"},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        assert_int_equal(oci_type_of(rows[i].name), rows[i].type);
        assert_string_equal(oci_type_name(rows[i].type), rows[i].name);
    }
}

static void test_one_way(void **state UNUSED)
{
    static const char *const foreign[] = {
        "application/vnd.docker.image.rootfs.foreign.diff.tar",
        "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
        "application/vnd.oci.image.layer.nondistributable.v1.tar",
        "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
        "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd",
    };
    static const char *const other[] = {
        "",
        ";",
        "text/html",
        "application/octet-stream",
        "application/json",
        "application/vnd.oci.image.layer.v1.tar+bzip2",
        "application/vnd.oci.image.layer.v1.tar+gzip+encrypted",
        "application/vnd.oci.image.layer.v1.ta",
        "application/vnd.oci.image.layer.v1.tarx",
        "application/vnd.docker.distribution.manifest.v1+prettyjws",
        "application/vnd.oci.empty.v1+json",
        "application/vnd.docker.image.rootfs.diff.tar+gzip",
    };

    for (size_t i = 0; i < ARRAY_LEN(foreign); i++)
        assert_int_equal(oci_type_of(foreign[i]), OCI_TYPE_FOREIGN_LAYER);
    for (size_t i = 0; i < ARRAY_LEN(other); i++)
        assert_int_equal(oci_type_of(other[i]), OCI_TYPE_OTHER);
    assert_int_equal(oci_type_of(NULL), OCI_TYPE_OTHER);
    assert_string_equal(oci_type_name(OCI_TYPE_OTHER), "application/octet-stream");
    assert_string_equal(oci_type_name(OCI_TYPE_FOREIGN_LAYER), "application/octet-stream");
}

static void test_header_forms(void **state UNUSED)
{
    assert_int_equal(oci_type_of("application/vnd.oci.image.index.v1+json; charset=utf-8"), OCI_TYPE_INDEX);
    assert_int_equal(oci_type_of("application/vnd.oci.image.index.v1+json;charset=utf-8"), OCI_TYPE_INDEX);
    assert_int_equal(oci_type_of(" application/vnd.oci.image.index.v1+json "), OCI_TYPE_INDEX);
    assert_int_equal(oci_type_of("Application/Vnd.OCI.image.index.v1+JSON"), OCI_TYPE_INDEX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_ways),
        cmocka_unit_test(test_one_way),
        cmocka_unit_test(test_header_forms),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
