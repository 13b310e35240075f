/* SPDX-License-Identifier: Apache-2.0
 * oci/rewrite.c against tests/golden/rewrite: every output byte is law, since clients record its digest.
 *
 * A case is a folder: in.json, forms.txt, and <view>.json with exactly the expected bytes. forms.txt has lines
 *   content-type TYPE               the upstream's header; none without this line
 *   VIEW layer DIGEST SIZE          one form of a layer, in order
 *   VIEW child FROM TO SIZE TYPE    one rewritten child of an index
 *   VIEW gives TYPE                 the media type of the result
 *   VIEW same                       nothing changes; there is no VIEW.json
 * tests/golden/rewrite-bad holds manifests that must not parse; the file's name starts with the error code.
 */
#include "base/fsutil.h"
#include "oci/rewrite.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <strings.h>

#include <cmocka.h>

#define FORMS_MAX 8
#define TYPE_BYTES 100

struct golden {
    const char *name;
    struct buf in, forms;
    char content_type[TYPE_BYTES];
};

struct wanted {
    struct oci_layer_form layers[FORMS_MAX];
    struct oci_child_form children[FORMS_MAX];
    size_t layer_count, child_count;
    enum oci_type type;
    bool same;
};

static void golden_path(char *out, size_t cap, const char *folder, const char *name, const char *file)
{
    const char *root = getenv("RECASK_SOURCE_DIR");
    int n = snprintf(out, cap, "%s/tests/golden/%s/%s%s%s", root != NULL ? root : ".", folder, name,
                     file[0] != '\0' ? "/" : "", file);

    assert_true(n > 0 && (size_t)n < cap);
}

static void load(const char *folder, const char *name, const char *file, struct buf *out)
{
    struct err err = ERR_INIT;
    char path[1024];

    golden_path(path, sizeof(path), folder, name, file);
    buf_init(out, 1u << 20);
    if (fs_read_file(path, 1u << 20, out, &err) < 0)
        fail_msg("%s: %s", path, err.msg);
}

static void digest_from(const char *text, struct digest *out)
{
    struct err err = ERR_INIT;

    assert_int_equal(digest_parse(text, strlen(text), out, &err), 0);
}

/* One line of forms.txt that is about `view`; false when it is about another. */
static bool read_line(const char *line, const char *view, struct wanted *w)
{
    char a[TYPE_BYTES], b[TYPE_BYTES], type[TYPE_BYTES];
    unsigned long long size;
    size_t len = strlen(view);

    if (strncmp(line, view, len) != 0 || line[len] != ' ')
        return false;
    line += len + 1;
    if (sscanf(line, "layer %99s %llu", a, &size) == 2) {
        assert_true(w->layer_count < FORMS_MAX);
        digest_from(a, &w->layers[w->layer_count].digest);
        w->layers[w->layer_count++].size_bytes = size;
    } else if (sscanf(line, "child %99s %99s %llu %99s", a, b, &size, type) == 4) {
        struct oci_child_form *form = &w->children[w->child_count++];

        assert_true(w->child_count <= FORMS_MAX);
        digest_from(a, &form->from);
        digest_from(b, &form->to);
        form->size_bytes = size;
        form->type = oci_type_of(type);
    } else if (sscanf(line, "gives %99s", type) == 1) {
        w->type = oci_type_of(type);
    } else if (strcmp(line, "same") == 0) {
        w->same = true;
    } else {
        fail_msg("forms.txt: %s", line);
    }
    return true;
}

static bool read_forms(struct golden *g, const char *view, struct wanted *w)
{
    char *save = NULL;
    bool any = false;
    struct buf copy = BUF_INIT(1u << 20);
    struct err err = ERR_INIT;

    memset(w, 0, sizeof(*w));
    assert_int_equal(buf_add(&copy, g->forms.data, g->forms.len, &err), 0);
    for (char *line = strtok_r(copy.data, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        if (strncmp(line, "content-type ", 13) == 0)
            snprintf(g->content_type, sizeof(g->content_type), "%s", line + 13);
        else if (read_line(line, view, w))
            any = true;
    }
    buf_release(&copy);
    return any;
}

static int rewrite(const struct golden *g, enum oci_view view, const struct wanted *w, const struct buf *in,
                   struct buf *out, enum oci_type *type, struct err *err)
{
    CLEANUP(oci_manifest_release) struct oci_manifest m;
    const char *content_type = g->content_type[0] != '\0' ? g->content_type : NULL;

    TRY(oci_manifest_parse(in->data, in->len, content_type, &m, err));
    if (m.is_index)
        return oci_rewrite_index(in->data, in->len, content_type, view, w->children, w->child_count, out, type, err);
    return oci_rewrite_image(in->data, in->len, content_type, view, w->layers, w->layer_count, out, type, err);
}

static void assert_same_bytes(const char *name, const char *view, const struct buf *got, const struct buf *want)
{
    size_t at = 0;

    while (at < got->len && at < want->len && got->data[at] == want->data[at])
        at++;
    if (at < got->len || at < want->len) {
        size_t from = at > 40 ? at - 40 : 0;

        fail_msg("%s, %s: differs at byte %zu\n got (%zu bytes) ...%.100s\nwant (%zu bytes) ...%.100s", name, view, at,
                 got->len, got->data + from, want->len, want->data + from);
    }
}

static void check_view(struct golden *g, enum oci_view view)
{
    CLEANUP(buf_release) struct buf got = BUF_INIT(1u << 20);
    CLEANUP(buf_release) struct buf again = BUF_INIT(1u << 20);
    enum oci_type type = OCI_TYPE_OTHER;
    struct err err = ERR_INIT;
    struct wanted w;
    int rc;

    if (!read_forms(g, oci_view_name(view), &w))
        return;
    rc = rewrite(g, view, &w, &g->in, &got, &type, &err);
    if (rc < 0)
        fail_msg("%s, %s: %s", g->name, oci_view_name(view), err.msg);
    assert_int_equal(rc, w.same ? 1 : 0);
    assert_int_equal(type, w.type);
    if (w.same) {
        assert_null(got.data);
        return;
    }
    CLEANUP(buf_release) struct buf want;
    char file[32];

    snprintf(file, sizeof(file), "%s.json", oci_view_name(view));
    load("rewrite", g->name, file, &want);
    assert_same_bytes(g->name, oci_view_name(view), &got, &want);
    /* A view of a view is the view itself: for images by their forms, for indexes since nobody is called `from`. */
    assert_int_equal(rewrite(g, view, &w, &got, &again, &type, &err), 1);
    assert_int_equal(type, w.type);
}

static int for_each_golden(const char *folder, void (*fn)(const char *name))
{
    char path[1024];
    struct dirent *e;
    int count = 0;
    DIR *dir;

    golden_path(path, sizeof(path), folder, "", "");
    dir = opendir(path);
    if (dir == NULL) {
        fail_msg("no folder %s: run from the source folder or set RECASK_SOURCE_DIR", path);
        return 0;
    }
    while ((e = readdir(dir)) != NULL) {
        if (e->d_name[0] != '.') {
            fn(e->d_name);
            count++;
        }
    }
    closedir(dir);
    return count;
}

static void check_case(const char *name)
{
    struct golden g = {.name = name};

    load("rewrite", name, "in.json", &g.in);
    load("rewrite", name, "forms.txt", &g.forms);
    check_view(&g, VIEW_CANONICAL);
    check_view(&g, VIEW_ZSTD);
    buf_release(&g.in);
    buf_release(&g.forms);
}

static void test_golden(void **state UNUSED)
{
    assert_true(for_each_golden("rewrite", check_case) >= 24);
}

static void check_bad(const char *name)
{
    CLEANUP(oci_manifest_release) struct oci_manifest m;
    CLEANUP(buf_release) struct buf in;
    struct err err = ERR_INIT;
    size_t len = strcspn(name, "-");
    const char *code;
    int rc;

    load("rewrite-bad", name, "", &in);
    rc = oci_manifest_parse(in.data != NULL ? in.data : "", in.len, NULL, &m, &err);
    code = err_code_name(rc);
    if (rc >= 0 || rc != err.code || strlen(code) != len || strncasecmp(code, name, len) != 0)
        fail_msg("%s: got %d %s: %s", name, rc, code, err.msg);
}

static void test_bad(void **state UNUSED)
{
    assert_true(for_each_golden("rewrite-bad", check_bad) >= 40);
}

#define A "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define OCI_IMAGE "application/vnd.oci.image."
#define DESC(type) "{\"mediaType\":\"" OCI_IMAGE type "\",\"digest\":\"" A "\",\"size\":1}"
#define IMAGE(more)                                                                                                    \
    "{\"schemaVersion\":2,\"mediaType\":\"" OCI_IMAGE                                                                  \
    "manifest.v1+json\",\"config\":" DESC("config.v1+json") ",\"layers\":[" DESC("layer.v1.tar+gzip") "]" more "}"
#define INDEX                                                                                                          \
    "{\"schemaVersion\":2,\"mediaType\":\"" OCI_IMAGE "index.v1+json\",\"manifests\":[" DESC("manifest.v1+json") "]}"

static int image(const char *body, enum oci_view view, size_t forms, uint64_t size, struct buf *out)
{
    struct oci_layer_form form[2] = {{.size_bytes = size}, {.size_bytes = size}};
    enum oci_type type;
    struct err err = ERR_INIT;
    int rc = oci_rewrite_image(body, strlen(body), NULL, view, form, forms, out, &type, &err);

    assert_int_equal(rc < 0 ? rc : 0, err.code);
    return rc;
}

static void test_misuse(void **state UNUSED)
{
    CLEANUP(buf_release) struct buf out = BUF_INIT(1000);

    assert_int_equal(image(IMAGE(""), VIEW_CANONICAL, 1, 5, &out), 0);
    assert_int_equal(image(IMAGE(""), VIEW_ORIGINAL, 1, 5, &out), ERR_BUG);
    assert_int_equal(image(IMAGE(""), VIEW_CANONICAL, 0, 5, &out), ERR_BUG);
    assert_int_equal(image(IMAGE(""), VIEW_CANONICAL, 2, 5, &out), ERR_BUG);
    assert_int_equal(image(IMAGE(""), VIEW_CANONICAL, 1, (uint64_t)INT64_MAX + 1, &out), ERR_BUG);
    assert_int_equal(image(IMAGE(",\"subject\":{}"), VIEW_CANONICAL, 1, 5, &out), ERR_BUG);
    assert_int_equal(image(IMAGE(",\"x\":1,\"x\":1"), VIEW_ZSTD, 1, 5, &out), ERR_BUG);
    assert_int_equal(image(INDEX, VIEW_CANONICAL, 0, 5, &out), ERR_BUG);
    assert_int_equal(image("{}", VIEW_CANONICAL, 0, 5, &out), ERR_FORMAT);
}

static int index_of(const char *body, enum oci_view view, enum oci_type child)
{
    CLEANUP(buf_release) struct buf out = BUF_INIT(1000);
    struct oci_child_form form = {.size_bytes = 7, .type = child};
    enum oci_type type;
    struct err err = ERR_INIT;

    digest_from(A, &form.from);
    return oci_rewrite_index(body, strlen(body), NULL, view, &form, 1, &out, &type, &err);
}

static void test_index_misuse(void **state UNUSED)
{
    assert_int_equal(index_of(INDEX, VIEW_CANONICAL, OCI_TYPE_MANIFEST), 0);
    assert_int_equal(index_of(INDEX, VIEW_CANONICAL, OCI_TYPE_SCHEMA2), 0);
    assert_int_equal(index_of(INDEX, VIEW_CANONICAL, OCI_TYPE_INDEX), ERR_BUG);
    assert_int_equal(index_of(INDEX, VIEW_CANONICAL, OCI_TYPE_OTHER), ERR_BUG);
    assert_int_equal(index_of(INDEX, VIEW_ZSTD, OCI_TYPE_MANIFEST), 0);
    assert_int_equal(index_of(INDEX, VIEW_ZSTD, OCI_TYPE_SCHEMA2), ERR_BUG);
    assert_int_equal(index_of(INDEX, VIEW_ORIGINAL, OCI_TYPE_MANIFEST), ERR_BUG);
    assert_int_equal(index_of(IMAGE(""), VIEW_CANONICAL, OCI_TYPE_MANIFEST), ERR_BUG);
    assert_int_equal(index_of("[]", VIEW_CANONICAL, OCI_TYPE_MANIFEST), ERR_FORMAT);
}

static void test_output(void **state UNUSED)
{
    CLEANUP(buf_release) struct buf out = BUF_INIT(1000);
    CLEANUP(buf_release) struct buf tight = BUF_INIT(100);
    struct err err = ERR_INIT;
    size_t len;

    /* the caller's limit holds, what was in the buffer is replaced */
    assert_int_equal(image(IMAGE(""), VIEW_CANONICAL, 1, 5, &tight), ERR_LIMIT);
    assert_int_equal(image(IMAGE(""), VIEW_CANONICAL, 1, 5, &out), 0);
    len = out.len;
    assert_int_equal(buf_str(&out, "rest", &err), 0);
    assert_int_equal(image(IMAGE(""), VIEW_CANONICAL, 1, 5, &out), 0);
    assert_int_equal(out.len, len);
    assert_int_equal(out.data[0], '{');
}

static void test_view_names(void **state UNUSED)
{
    enum oci_view v = VIEW_ORIGINAL;

    assert_true(oci_view_parse("zstd", &v));
    assert_int_equal(v, VIEW_ZSTD);
    assert_true(oci_view_parse("canonical", &v));
    assert_int_equal(v, VIEW_CANONICAL);
    assert_true(oci_view_parse("original", &v));
    assert_int_equal(v, VIEW_ORIGINAL);
    assert_false(oci_view_parse("auto", &v));
    assert_false(oci_view_parse("", &v));
    assert_false(oci_view_parse("ZSTD", &v));
    assert_false(oci_view_parse("zstd ", &v));
    assert_int_equal(v, VIEW_ORIGINAL);
    /* stored in the catalog */
    assert_int_equal(VIEW_ORIGINAL, 0);
    assert_int_equal(VIEW_CANONICAL, 1);
    assert_int_equal(VIEW_ZSTD, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),       cmocka_unit_test(test_bad),    cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_index_misuse), cmocka_unit_test(test_output), cmocka_unit_test(test_view_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
