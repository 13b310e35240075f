/* SPDX-License-Identifier: Apache-2.0
 * oci/manifest.c, oci/descriptor.c, oci/json.c: what parses, what is plain, what meets a limit.
 */
#include "oci/json_internal.h"
#include "oci/oci.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define A "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define MANIFEST "application/vnd.oci.image.manifest.v1+json"
#define INDEX "application/vnd.oci.image.index.v1+json"
#define SCHEMA2 "application/vnd.docker.distribution.manifest.v2+json"
#define LIST "application/vnd.docker.distribution.manifest.list.v2+json"
#define CONFIG "application/vnd.oci.image.config.v1+json"
#define TAR "application/vnd.oci.image.layer.v1.tar"

/* JSON without a thicket of backslashes: ' stands for " */
static void quote(char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            *text = '"';
    }
}

static int parse(const char *text, const char *content_type, struct oci_manifest *out, struct err *err)
{
    CLEANUP(free_ptr) char *body = NULL;

    assert_int_equal(str_dup(text, &body, err), 0);
    quote(body);
    return oci_manifest_parse(body, strlen(body), content_type, out, err);
}

static int rc_of(const char *text, const char *content_type)
{
    CLEANUP(oci_manifest_release) struct oci_manifest m;
    struct err err = ERR_INIT;
    int rc = parse(text, content_type, &m, &err);

    assert_int_equal(rc, err.code);
    assert_null(strchr(err.msg, '\n'));
    return rc;
}

#define CONFIG_DESC "{'mediaType':'" CONFIG "','digest':'" A "','size':2}"
#define IMAGE_HEAD "{'schemaVersion':2,'mediaType':'" MANIFEST "','config':" CONFIG_DESC
#define LAYER(type, more) "{'mediaType':'" type "','digest':'" B "','size':1" more "}"

static void test_image(void **state UNUSED)
{
    CLEANUP(oci_manifest_release) struct oci_manifest m;
    struct err err = ERR_INIT;

    assert_int_equal(parse(IMAGE_HEAD ",'layers':[" LAYER(TAR "+gzip", ",'annotations':{'a':'b'}") "," LAYER(
                               TAR "+zstd", "") "],'annotations':{'x':'y'}}",
                           "text/plain", &m, &err),
                     0);
    assert_int_equal(m.type, OCI_TYPE_MANIFEST);
    assert_false(m.is_index);
    assert_false(m.has_subject);
    assert_null(m.artifact_type);
    assert_null(m.not_plain);
    assert_int_equal(m.config.type, OCI_TYPE_CONFIG);
    assert_string_equal(m.config.media_type, CONFIG);
    assert_string_equal(digest_text(&m.config.digest).s, A);
    assert_int_equal(m.config.size_bytes, 2);
    assert_int_equal(m.layer_count, 2);
    assert_int_equal(m.layers[0].type, OCI_TYPE_LAYER_GZIP);
    assert_int_equal(m.layers[1].type, OCI_TYPE_LAYER_ZSTD);
    assert_string_equal(digest_text(&m.layers[1].digest).s, B);
    assert_false(m.layers[0].has_toc || m.layers[0].has_urls || m.layers[0].encrypted);
    assert_int_equal(m.child_count, 0);
    assert_null(m.children);
}

static void test_index(void **state UNUSED)
{
    static const char text[] =
        "{'schemaVersion':2,'mediaType':'" INDEX "','manifests':["
        "{'mediaType':'" MANIFEST "','digest':'" A "','size':9,'platform':{'os':'windows','architecture':'arm64',"
        "'variant':'v8','os.version':'10.0','os.features':['x']}},"
        "{'mediaType':'" MANIFEST "','digest':'" B "','size':9,'artifactType':'a/b','annotations':"
        "{'vnd.docker.reference.type':'attestation-manifest','vnd.docker.reference.digest':'" A "'}},"
        "{'mediaType':'" MANIFEST "','digest':'" B "','size':9,'annotations':{'vnd.docker.reference.digest':'" A
        "'}}]}";
    CLEANUP(oci_manifest_release) struct oci_manifest m;
    struct err err = ERR_INIT;

    assert_int_equal(parse(text, NULL, &m, &err), 0);
    assert_int_equal(m.type, OCI_TYPE_INDEX);
    assert_true(m.is_index);
    assert_null(m.not_plain);
    assert_int_equal(m.child_count, 3);
    assert_int_equal(m.layer_count, 0);
    assert_string_equal(m.children[0].platform.os, "windows");
    assert_string_equal(m.children[0].platform.arch, "arm64");
    assert_string_equal(m.children[0].platform.variant, "v8");
    assert_string_equal(m.children[0].platform.os_version, "10.0");
    assert_null(m.children[0].artifact_type);
    assert_null(m.children[0].attests);
    assert_null(m.children[1].platform.os);
    assert_string_equal(m.children[1].artifact_type, "a/b");
    assert_string_equal(m.children[1].attests, A);
    assert_null(m.children[2].attests);
}

static void test_types(void **state UNUSED)
{
    static const char list[] = "{'schemaVersion':2,'manifests':[]}";
    static const char image[] = "{'schemaVersion':2,'config':" CONFIG_DESC ",'layers':[]}";
    CLEANUP(oci_manifest_release) struct oci_manifest m = {.type = OCI_TYPE_OTHER};
    struct err err = ERR_INIT;

    assert_int_equal(parse(list, LIST, &m, &err), 0);
    assert_int_equal(m.type, OCI_TYPE_SCHEMA2_LIST);
    assert_true(m.is_index);
    assert_int_equal(parse(image, SCHEMA2 "; charset=utf-8", &m, &err), 0);
    assert_int_equal(m.type, OCI_TYPE_SCHEMA2);
    oci_manifest_release(&m);
    /* the body wins over the header */
    assert_int_equal(parse(IMAGE_HEAD ",'layers':[]}", LIST, &m, &err), 0);
    assert_int_equal(m.type, OCI_TYPE_MANIFEST);
    oci_manifest_release(&m);
    /* null and "" are what "absent" looks like in other writers */
    assert_int_equal(rc_of("{'schemaVersion':2,'mediaType':null,'manifests':[]}", INDEX), 0);
    assert_int_equal(rc_of("{'schemaVersion':2,'mediaType':'','manifests':null}", INDEX), 0);
    assert_int_equal(rc_of(image, NULL), ERR_FORMAT);
    assert_int_equal(rc_of(image, "application/json"), ERR_FORMAT);
    assert_int_equal(rc_of(image, INDEX), ERR_FORMAT);
    assert_int_equal(rc_of(list, MANIFEST), ERR_FORMAT);
}

static void assert_reason(const char *text, const char *want)
{
    CLEANUP(oci_manifest_release) struct oci_manifest m;
    struct err err = ERR_INIT;

    if (parse(text, NULL, &m, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    if (want == NULL && m.not_plain != NULL)
        fail_msg("%s: not plain: %s", text, m.not_plain);
    if (want != NULL && (m.not_plain == NULL || strcmp(m.not_plain, want) != 0))
        fail_msg("%s:\n  got %s\n want %s", text, m.not_plain != NULL ? m.not_plain : "plain", want);
}

#define ONE_LAYER(type, more) IMAGE_HEAD ",'layers':[" LAYER(type, more) "]}"
#define CHILD(more) "{'mediaType':'" MANIFEST "','digest':'" A "','size':9" more "}"
#define INDEX_OF(children, more) "{'schemaVersion':2,'mediaType':'" INDEX "','manifests':[" children "]" more "}"

static void test_plain(void **state UNUSED)
{
    assert_reason(ONE_LAYER(TAR, ""), NULL);
    assert_reason(ONE_LAYER(TAR "+gzip", ""), NULL);
    assert_reason(ONE_LAYER(TAR "+zstd", ""), NULL);
    assert_reason(ONE_LAYER("application/vnd.docker.image.rootfs.diff.tar", ""), NULL);
    assert_reason(ONE_LAYER("application/vnd.docker.image.rootfs.diff.tar.gzip", ""), NULL);
    assert_reason(ONE_LAYER("application/vnd.docker.image.rootfs.diff.tar.zstd", ""), NULL);
    assert_reason(ONE_LAYER(TAR, ",'urls':[]"), NULL);
    assert_reason(ONE_LAYER(TAR, ",'urls':null,'annotations':null,'data':null"), NULL);
    assert_reason(ONE_LAYER(TAR, ",'unknown':[{'Layers':{}}]"), NULL);
    assert_reason(IMAGE_HEAD ",'layers':[]}", NULL);
    assert_reason(IMAGE_HEAD ",'layers':null}", NULL);
    assert_reason(IMAGE_HEAD ",'layers':[" LAYER(TAR, "") "," LAYER(TAR, "") "]}", NULL);
    assert_reason(IMAGE_HEAD ",'layers':[],'artifactType':'','subject':null,'manifests':null}", NULL);
    assert_reason("{'schemaVersion':2,'mediaType':'" MANIFEST "','layers':[],'config':{'mediaType':"
                  "'application/vnd.docker.container.image.v1+json','digest':'" A "','size':0,'data':'e30='}}",
                  NULL);
    assert_reason(INDEX_OF(CHILD(""), ""), NULL);
    assert_reason(INDEX_OF(CHILD(",'artifactType':'a/b'"), ""), NULL);
    assert_reason(INDEX_OF("", ""), NULL);
    assert_reason(INDEX_OF(CHILD(""), ",'layers':null"), NULL);
}

static void test_not_plain_images(void **state UNUSED)
{
    assert_reason(IMAGE_HEAD ",'layers':[],'artifactType':'a/b'}", "an artifact: it has an artifactType");
    assert_reason(IMAGE_HEAD ",'layers':[],'subject':{}}", "an artifact: it has a subject");
    assert_reason(IMAGE_HEAD ",'layers':[],'subject':5}", "an artifact: it has a subject");
    assert_reason("{'schemaVersion':2,'mediaType':'" MANIFEST "','layers':[],'config':{'mediaType':"
                  "'application/vnd.oci.empty.v1+json','digest':'" A "','size':2}}",
                  "an artifact: its config is not an image config");
    assert_reason("{'schemaVersion':2,'mediaType':'" MANIFEST "','layers':[],'config':{'digest':'" A "','size':2}}",
                  "an artifact: its config is not an image config");
    assert_reason(ONE_LAYER("application/vnd.in-toto+json", ""), "a layer that is not a tar");
    assert_reason(ONE_LAYER("application/vnd.ollama.image.model", ""), "a layer that is not a tar");
    assert_reason(ONE_LAYER(CONFIG, ""), "a layer that is not a tar");
    assert_reason(ONE_LAYER("", ""), "a layer that is not a tar");
    assert_reason(IMAGE_HEAD ",'layers':[{'digest':'" B "','size':1}]}", "a layer that is not a tar");
    assert_reason(ONE_LAYER(TAR "+gzip+encrypted", ""), "an encrypted layer");
    assert_reason(ONE_LAYER(TAR, ",'annotations':{'org.opencontainers.image.enc.keys.jwe':'x'}"), "an encrypted layer");
    assert_reason(ONE_LAYER(TAR, ",'urls':['https://example.com/x']"), "a foreign layer");
    assert_reason(ONE_LAYER("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", ""), "a foreign layer");
    assert_reason(ONE_LAYER("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", ""), "a foreign layer");
    assert_reason(ONE_LAYER(TAR, ",'annotations':{'containerd.io/snapshot/stargz/toc.digest':'x'}"),
                  "a layer with a table of contents");
    assert_reason(ONE_LAYER(TAR, ",'annotations':{'io.github.containers.zstd-chunked.manifest-checksum':'x'}"),
                  "a layer with a table of contents");
    assert_reason(ONE_LAYER(TAR, ",'annotations':{'io.github.containers.zstd-chunked.manifest-position':'x'}"),
                  "a layer with a table of contents");
    assert_reason(ONE_LAYER(TAR, ",'annotations':{'containerd.io/snapshot/nydus-bootstrap':'true'}"),
                  "a layer with a table of contents");
    assert_reason(ONE_LAYER(TAR, ",'annotations':{'io.containers.estargz.uncompressed-size':'1'}"),
                  "a layer with a table of contents");
    assert_reason(IMAGE_HEAD ",'layers':[],'annotations':{'com.amazon.soci.index-digest':'" A "'}}",
                  "an image with a SOCI index");
    assert_reason(ONE_LAYER(TAR, ",'data':'AA=='"), "a descriptor with embedded data");
    /* one bad layer among good ones is enough */
    assert_reason(IMAGE_HEAD ",'layers':[" LAYER(TAR, "") "," LAYER("text/x", "") "," LAYER(TAR, "") "]}",
                  "a layer that is not a tar");
}

static void test_not_plain_documents(void **state UNUSED)
{
    assert_reason(IMAGE_HEAD ",'layers':[],'layers':[]}", "duplicate JSON keys");
    assert_reason(IMAGE_HEAD ",'layers':[],'x':{'a':1,'a':2}}", "duplicate JSON keys");
    assert_reason(IMAGE_HEAD ",'layers':[],'x':1.0}", "non-integer numbers");
    assert_reason(IMAGE_HEAD ",'layers':[],'x':[{'y':1e3}]}", "non-integer numbers");
    assert_reason(IMAGE_HEAD ",'layers':[],'Layers':[]}", "JSON keys in unusual case");
    assert_reason(ONE_LAYER(TAR, ",'Digest':'" A "'"), "JSON keys in unusual case");
    assert_reason(IMAGE_HEAD ",'layers':[],'schemaversion':2}", "JSON keys in unusual case");
    assert_reason(ONE_LAYER(TAR, ",'platForm':{}"), "JSON keys in unusual case");
    assert_reason(INDEX_OF(CHILD(",'SIZE':1"), ""), "JSON keys in unusual case");
    assert_reason(IMAGE_HEAD ",'layers':[],'manifests':[]}", "both layers and manifests");
    assert_reason(INDEX_OF(CHILD(""), ",'layers':[]"), "both layers and manifests");
    assert_reason(INDEX_OF(CHILD(""), ",'config':{}"), "both layers and manifests");
    assert_reason(INDEX_OF(CHILD(""), ",'artifactType':'a/b'"), "an artifact: it has an artifactType");
    assert_reason(INDEX_OF(CHILD(""), ",'subject':{}"), "an artifact: it has a subject");
    assert_reason(INDEX_OF(CHILD(",'data':'AA=='"), ""), "a descriptor with embedded data");
    assert_reason(IMAGE_HEAD ",'layers':[],'artifactType':5}", "a field of the wrong type");
    assert_reason(ONE_LAYER(TAR, ",'urls':'x'"), "a field of the wrong type");
    assert_reason(ONE_LAYER(TAR, ",'annotations':[]"), "a field of the wrong type");
    assert_reason(ONE_LAYER(TAR, ",'annotations':{'a':5}"), "a field of the wrong type");
    assert_reason(INDEX_OF(CHILD(",'platform':'linux'"), ""), "a field of the wrong type");
    assert_reason(INDEX_OF(CHILD(",'platform':{'os':[]}"), ""), "a field of the wrong type");
    /* the first reason is kept */
    assert_reason(IMAGE_HEAD ",'layers':[],'layers':[],'subject':{},'x':1.5}", "duplicate JSON keys");
}

static void test_other_algorithms(void **state UNUSED)
{
    static const char text[] = IMAGE_HEAD ",'layers':[{'mediaType':'" TAR "','digest':'sha512:00ff','size':1}]}";
    CLEANUP(oci_manifest_release) struct oci_manifest m;
    struct err err = ERR_INIT;

    assert_int_equal(parse(text, NULL, &m, &err), 0);
    assert_int_equal(err.code, 0);
    assert_string_equal(m.not_plain, "digest algorithm other than sha256");
    assert_int_equal(m.layer_count, 1);
    assert_true(digest_is_zero(&m.layers[0].digest));
    assert_reason(INDEX_OF("{'mediaType':'" MANIFEST "','digest':'sha512:00ff','size':1}", ""),
                  "digest algorithm other than sha256");
    assert_reason("{'schemaVersion':2,'mediaType':'" MANIFEST "','layers':[],'config':{'mediaType':'" CONFIG
                  "','digest':'blake3:00','size':2}}",
                  "digest algorithm other than sha256");
}

/* count descriptors in a list called key. */
static void make_list(struct buf *b, const char *head, const char *item, size_t count)
{
    struct err err = ERR_INIT;

    buf_reset(b);
    assert_int_equal(buf_str(b, head, &err), 0);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(buf_printf(b, &err, "%s%s", i > 0 ? "," : "", item), 0);
    assert_int_equal(buf_str(b, "]}", &err), 0);
    quote(b->data);
}

static void test_list_limits(void **state UNUSED)
{
    CLEANUP(buf_release) struct buf b = BUF_INIT(16u << 20);
    CLEANUP(oci_manifest_release) struct oci_manifest m;
    struct err err = ERR_INIT;

    make_list(&b, IMAGE_HEAD ",'layers':[", LAYER(TAR, ""), OCI_LAYERS_MAX);
    assert_int_equal(oci_manifest_parse(b.data, b.len, NULL, &m, &err), 0);
    assert_null(m.not_plain);
    assert_int_equal(m.layer_count, OCI_LAYERS_MAX);
    oci_manifest_release(&m);
    make_list(&b, IMAGE_HEAD ",'layers':[", LAYER(TAR, ""), OCI_LAYERS_MAX + 1);
    assert_int_equal(oci_manifest_parse(b.data, b.len, NULL, &m, &err), 0);
    assert_string_equal(m.not_plain, "too many layers");
    assert_int_equal(m.layer_count, OCI_LAYERS_MAX);
    oci_manifest_release(&m);
    make_list(&b, "{'schemaVersion':2,'mediaType':'" INDEX "','manifests':[", CHILD(""), OCI_CHILDREN_MAX + 1);
    assert_int_equal(oci_manifest_parse(b.data, b.len, NULL, &m, &err), 0);
    assert_string_equal(m.not_plain, "too many manifests in the index");
    assert_int_equal(m.child_count, OCI_CHILDREN_MAX);
}

/* Small text that would become a large tree is refused before it does. */
static void test_value_limit(void **state UNUSED)
{
    CLEANUP(buf_release) struct buf b = BUF_INIT(16u << 20);
    CLEANUP(oci_manifest_release) struct oci_manifest m = {.type = OCI_TYPE_OTHER};
    struct err err = ERR_INIT;

    /* the head takes ten: four brackets, six commas; n values take n - 1 */
    make_list(&b, IMAGE_HEAD ",'layers':[],'x':[", "1", OCI_JSON_MAX_VALUES - 9);
    assert_int_equal(oci_manifest_parse(b.data, b.len, NULL, &m, &err), 0);
    oci_manifest_release(&m);
    make_list(&b, IMAGE_HEAD ",'layers':[],'x':[", "1", OCI_JSON_MAX_VALUES - 8);
    assert_int_equal(oci_manifest_parse(b.data, b.len, NULL, &m, &err), ERR_LIMIT);
    err_clear(&err);
    make_list(&b, IMAGE_HEAD ",'layers':[],'x':[", "{}", OCI_JSON_MAX_VALUES / 2 + 1);
    assert_int_equal(oci_manifest_parse(b.data, b.len, NULL, &m, &err), ERR_LIMIT);
    err_clear(&err);
    /* commas in strings are text */
    make_list(&b, IMAGE_HEAD ",'layers':[],'x':[", "',,,,,,,,,,,,,,,,[[[{{{\\\\'", 20000);
    assert_int_equal(oci_manifest_parse(b.data, b.len, NULL, &m, &err), 0);
}

static void test_size_limit(void **state UNUSED)
{
    CLEANUP(buf_release) struct buf b = BUF_INIT(16u << 20);
    CLEANUP(oci_manifest_release) struct oci_manifest m;
    struct err err = ERR_INIT;

    make_list(&b, IMAGE_HEAD ",'layers':[", "", 0);
    assert_int_equal(buf_reserve(&b, OCI_MANIFEST_MAX_BYTES, &err), 0);
    memset(b.data + b.len, ' ', OCI_MANIFEST_MAX_BYTES);
    assert_int_equal(oci_manifest_parse(b.data, OCI_MANIFEST_MAX_BYTES, NULL, &m, &err), 0);
    oci_manifest_release(&m);
    assert_int_equal(oci_manifest_parse(b.data, OCI_MANIFEST_MAX_BYTES + 1, NULL, &m, &err), ERR_LIMIT);
}

static void test_depth_limit(void **state UNUSED)
{
    CLEANUP(buf_release) struct buf b = BUF_INIT(1u << 20);
    CLEANUP(oci_manifest_release) struct oci_manifest m;
    struct err err = ERR_INIT;

    for (int deep = OCI_JSON_MAX_DEPTH - 1; deep <= OCI_JSON_MAX_DEPTH; deep++) {
        buf_reset(&b);
        assert_int_equal(buf_str(&b, IMAGE_HEAD ",'layers':[],'x':", &err), 0);
        for (int i = 0; i < deep; i++)
            assert_int_equal(buf_str(&b, "[", &err), 0);
        for (int i = 0; i < deep; i++)
            assert_int_equal(buf_str(&b, "]", &err), 0);
        assert_int_equal(buf_str(&b, "}", &err), 0);
        quote(b.data);
        assert_int_equal(oci_manifest_parse(b.data, b.len, NULL, &m, &err), deep < OCI_JSON_MAX_DEPTH ? 0 : ERR_LIMIT);
        oci_manifest_release(&m);
    }
}

/* Every prefix of a good manifest is a bad one: nothing is read past the end, nothing leaks. */
static void test_prefixes(void **state UNUSED)
{
    char text[] = IMAGE_HEAD ",'layers':[" LAYER(TAR "+gzip", ",'annotations':{'a':'\\u00e9'}") "]}";
    size_t len = sizeof(text) - 1;

    quote(text);
    for (size_t n = 0; n < len; n++) {
        CLEANUP(free_ptr) char *exact = malloc(n > 0 ? n : 1);
        CLEANUP(oci_manifest_release) struct oci_manifest m;
        struct err err = ERR_INIT;

        assert_non_null(exact);
        memcpy(exact, text, n);
        assert_int_equal(oci_manifest_parse(exact, n, NULL, &m, &err), ERR_FORMAT);
    }
}

/* jansson's allocations fail one after the other; str_dup's and ours are the build's torture mode's to fail. */
static long allocations_left;

static void *failing_malloc(size_t n)
{
    return allocations_left-- > 0 ? malloc(n) : NULL;
}

static void test_out_of_memory(void **state UNUSED)
{
    char text[] = INDEX_OF(CHILD(",'platform':{'os':'linux'},'annotations':{'a':'b'}"), ",'x':[1,2,{}],'y':null");
    int rc = -1;
    long n;

    quote(text);
    json_set_alloc_funcs(failing_malloc, free);
    for (n = 0; n < 1000 && rc != 0; n++) {
        CLEANUP(oci_manifest_release) struct oci_manifest m;
        struct err err = ERR_INIT;

        allocations_left = n;
        rc = oci_manifest_parse(text, sizeof(text) - 1, NULL, &m, &err);
        assert_int_equal(rc, err.code);
    }
    json_set_alloc_funcs(malloc, free);
    assert_int_equal(rc, 0);
    assert_true(n > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_image),
        cmocka_unit_test(test_index),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_not_plain_images),
        cmocka_unit_test(test_not_plain_documents),
        cmocka_unit_test(test_other_algorithms),
        cmocka_unit_test(test_list_limits),
        cmocka_unit_test(test_value_limit),
        cmocka_unit_test(test_size_limit),
        cmocka_unit_test(test_depth_limit),
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
