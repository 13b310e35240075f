/* SPDX-License-Identifier: Apache-2.0
 * store/layer_writer.c, layer_commit.c, layer_reader.c: layers go in and come out the same, shared parts once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/recipe.h"
#include "tests/unit/store_layer_util.h"
#include "transcode/codec.h"

#define LAYER_BYTES ((size_t)5 << 20)

/* A tar with files of all sizes; `salt` makes the small files of two layers differ. */
static void make_tar(struct tar *t, int salt, size_t shared_files)
{
    char name[64];

    for (size_t i = 0; i < shared_files; i++) {
        (void)snprintf(name, sizeof(name), "salt-%d-%zu", salt, i);
        (void)tar_file(t, name, 700 * (size_t)salt + 13 * i, (uint64_t)salt * 1000 + i);
        (void)snprintf(name, sizeof(name), "shared-%zu", i);
        (void)tar_file(t, name, 300000 + 70001 * i, i);
    }
    tar_end(t);
}

static void expect_zstd_form(struct store *st, const struct layer_result *r, const void *data, size_t len)
{
    struct bytes z = read_layer(st, &r->canonical, LAYER_ZSTD, 0, UINT64_MAX, 70000);
    struct decode_limits limits = {.max_out_bytes = UINT64_MAX};
    struct source *s = NULL;
    struct filter *filter = NULL;
    struct err err = ERR_INIT;
    struct digest d;

    assert_int_equal(z.code, 0);
    assert_int_equal(z.len, r->zstd_bytes);
    digest_of(z.data, z.len, &d);
    assert_true(digest_equal(&d, &r->zstd));
    ASSERT_OK(codec_decoder_new(CODEC_ZSTD, &limits, &filter, &err));
    char *owned = (char *)z.data;
    ASSERT_OK(source_memory_new(&owned, z.len, &s, &err));
    ASSERT_OK(source_filtered_new(&s, &filter, 65536, &s, &err));
    struct bytes b = drain(s, 100000);
    assert_int_equal(b.code, 0);
    assert_int_equal(b.len, len);
    assert_memory_equal(b.data, data, len);
    free(b.data);
}

/* Random windows in reads of random sizes, both forms. */
static void expect_windows(struct store *st, const struct layer_result *r, const uint8_t *data, size_t len)
{
    struct bytes z = read_layer(st, &r->canonical, LAYER_ZSTD, 0, UINT64_MAX, 1 << 20);
    uint64_t state = 99;

    for (int i = 0; i < 60; i++) {
        enum layer_form form = i % 2 == 0 ? LAYER_IDENTITY : LAYER_ZSTD;
        const uint8_t *whole = form == LAYER_IDENTITY ? data : z.data;
        size_t size = form == LAYER_IDENTITY ? len : z.len;
        size_t off = (size_t)(next_random(&state) % size);
        size_t want = i % 5 == 0 ? 1 + (size_t)i : (size_t)(next_random(&state) % size);
        size_t cap = 1 + (size_t)(next_random(&state) % (i % 3 == 0 ? 3000000 : 40000));
        struct bytes b = read_layer(st, &r->canonical, form, off, want, cap);

        assert_int_equal(b.code, 0);
        assert_int_equal(b.len, want < size - off ? want : size - off);
        assert_memory_equal(b.data, whole + off, b.len);
        free(b.data);
    }
    free(z.data);
}

static void test_round_trip(void **state)
{
    struct fixture *f = *state;
    struct digest source = put_source(f->st, 1);
    struct tar t = {0};

    make_tar(&t, 1, 8);
    struct layer_result r = write_layer(f->st, &source, t.data, t.len);
    assert_false(r.existed);
    assert_true(r.chunks > 16);
    assert_int_equal(r.chunks, r.new_chunks);
    assert_int_equal(r.new_frame_bytes, r.zstd_bytes);
    assert_true(r.zstd_bytes < t.len * 6 / 10);
    expect_sound_catalog(f->st);
    expect_layer(f->st, &r, t.data, t.len);
    expect_windows(f->st, &r, t.data, t.len);
    expect_zstd_form(f->st, &r, t.data, t.len);
    reopen_store(f);
    expect_layer(f->st, &r, t.data, t.len);
    expect_zstd_form(f->st, &r, t.data, t.len);
    tar_release(&t);
}

static void test_sizes(void **state)
{
    static const size_t sizes[] = {0, 1, 65535, 65536, 65537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20};
    struct fixture *f = *state;

    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        for (int kind = 0; kind < 3; kind++) { /* zeros: one chunk many times; text: zstd; noise: raw frames */
            struct digest source = put_source(f->st, (int)(3 * i) + kind);
            uint8_t *data = calloc(1, sizes[i] + 1);

            assert_non_null(data);
            if (kind == 1)
                fill_text(data, sizes[i], i);
            else if (kind == 2)
                fill_random(data, sizes[i], i);
            struct layer_result r = write_layer(f->st, &source, data, sizes[i]);
            expect_layer(f->st, &r, data, sizes[i]);
            expect_zstd_form(f->st, &r, data, sizes[i]);
            free(data);
        }
    expect_sound_catalog(f->st);
}

/* More chunks than a page of the recipe has rows, the last page just full or not. */
static void test_many_chunks(void **state)
{
    static const size_t files[] = {63, 64, 100}; /* two chunks each, and one at the end */
    struct fixture *f = *state;

    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        struct digest source = put_source(f->st, (int)i);
        struct tar t = {0};

        for (size_t k = 0; k < files[i]; k++)
            (void)tar_file(&t, "f", 65536, 1000 * i + k);
        if (i == 2)
            tar_end(&t);
        struct layer_result r = write_layer(f->st, &source, t.data, t.len);
        assert_int_equal(r.chunks, 2 * files[i] + (i == 2));
        expect_layer(f->st, &r, t.data, t.len);
        expect_windows(f->st, &r, t.data, t.len);
        expect_zstd_form(f->st, &r, t.data, t.len);
        tar_release(&t);
    }
    expect_sound_catalog(f->st);
}

static void test_windows_at_and_beyond_the_end(void **state)
{
    struct fixture *f = *state;
    struct digest source = put_source(f->st, 1);
    struct layer_result r = write_layer(f->st, &source, "0123456789", 10);
    static const struct {
        uint64_t off, len;
        size_t want;
    } windows[] = {{10, 5, 0},         {11, UINT64_MAX, 0}, {UINT64_MAX, UINT64_MAX, 0},
                   {9, UINT64_MAX, 1}, {3, 0, 0},           {0, 10, 10}};

    for (size_t i = 0; i < ARRAY_LEN(windows); i++) {
        struct bytes b = read_layer(f->st, &r.canonical, LAYER_IDENTITY, windows[i].off, windows[i].len, 4);

        assert_int_equal(b.code, 0);
        assert_int_equal(b.len, windows[i].want);
        free(b.data);
    }
}

static void test_shared_files_are_stored_once(void **state)
{
    struct fixture *f = *state;
    struct digest one = put_source(f->st, 1), two = put_source(f->st, 2);
    struct tar a = {0}, b = {0};

    make_tar(&a, 1, 8);
    make_tar(&b, 2, 8);
    struct layer_result ra = write_layer(f->st, &one, a.data, a.len);
    struct layer_result rb = write_layer(f->st, &two, b.data, b.len);
    assert_true(rb.new_frame_bytes < rb.zstd_bytes / 20);
    expect_layer(f->st, &ra, a.data, a.len);
    expect_layer(f->st, &rb, b.data, b.len);
    expect_windows(f->st, &rb, b.data, b.len);
    expect_zstd_form(f->st, &rb, b.data, b.len);
    expect_sound_catalog(f->st);
    tar_release(&a);
    tar_release(&b);
}

static void test_same_layer_from_another_source(void **state)
{
    struct fixture *f = *state;
    struct digest one = put_source(f->st, 1), two = put_source(f->st, 2);
    struct tar t = {0};

    make_tar(&t, 1, 3);
    struct layer_result r1 = write_layer(f->st, &one, t.data, t.len);
    for (int i = 0; i < 2; i++) { /* the second time the link exists, too */
        struct layer_result r2 = write_layer(f->st, &two, t.data, t.len);

        assert_true(r2.existed);
        assert_int_equal(r2.new_chunks, 0);
        assert_true(digest_equal(&r1.zstd, &r2.zstd));
        assert_int_equal(r1.zstd_bytes, r2.zstd_bytes);
    }
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM canonical"), 1);
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM blob WHERE canon = 1 AND canonical_id = 1"), 2);
    expect_sound_catalog(f->st);
    tar_release(&t);
}

static void test_unknown_source(void **state)
{
    struct fixture *f = *state;
    struct layer_writer *w = NULL;
    struct err err = ERR_INIT;
    struct digest d = {{1}};

    ASSERT_CODE(layer_writer_open(f->st, &d, &w, &err), ERR_NOTFOUND);
}

static void test_abort_leaves_nothing(void **state)
{
    struct fixture *f = *state;
    struct digest source = put_source(f->st, 1);
    uint8_t *data = malloc(LAYER_BYTES);
    struct source *s = NULL;
    struct err err = ERR_INIT;
    struct digest d;

    assert_non_null(data);
    fill_random(data, LAYER_BYTES, 1);
    digest_of(data, LAYER_BYTES, &d);
    uint64_t before = packs_disk_bytes(f->st->packs);
    layer_writer_abort(begin_layer(f->st, &source, data, LAYER_BYTES, 100000));
    assert_in_range(packs_disk_bytes(f->st->packs) - before, 0, LAYER_BYTES / 10); /* record headers */
    ASSERT_CODE(layer_open(f->st, &d, LAYER_IDENTITY, 0, 1, &s, &err), ERR_NOTFOUND);
    assert_int_equal(sql_number(f->st, "SELECT (SELECT count(*) FROM chunk) + (SELECT count(*) FROM canonical)"
                                       " + (SELECT count(*) FROM recipe)"),
                     0);
    struct layer_result r = write_layer(f->st, &source, data, LAYER_BYTES);
    expect_layer(f->st, &r, data, LAYER_BYTES);
    free(data);
}

/* ---- originals --------------------------------------------------------------------------------------------------- */

static bool original_there(struct fixture *f, const struct digest *d)
{
    struct source *s = NULL;
    struct err err = ERR_INIT;
    int rc = original_open(f->st, d, 0, UINT64_MAX, &s, &err);

    source_free(s);
    assert_true(rc == 0 || rc == ERR_NOTFOUND);
    return rc == 0;
}

static void test_own_canonical_form_needs_no_original(void **state)
{
    struct fixture *f = *state;
    struct tar t = {0};

    make_tar(&t, 1, 3);
    struct digest source = put_original(f->st, t.data, t.len);
    assert_true(original_there(f, &source));
    struct layer_result r = write_layer(f->st, &source, t.data, t.len);
    assert_false(original_there(f, &source));
    assert_int_equal(atomic_load(&f->st->original_disk_bytes), 0);
    expect_layer(f->st, &r, t.data, t.len);
    tar_release(&t);
}

static void test_drop_policy_waits_for_readers(void **state)
{
    struct fixture *f = *state;
    struct source *reader = NULL;
    struct err err = ERR_INIT;

    store_close(f->st);
    f->opt.originals = ORIGINALS_DROP;
    open_store(f);
    struct digest source = put_source(f->st, 1);
    ASSERT_OK(original_open(f->st, &source, 0, UINT64_MAX, &reader, &err));
    (void)write_layer(f->st, &source, "layer", 5);
    struct bytes b = drain(reader, 100);
    assert_int_equal(b.code, 0);
    free(b.data);
    assert_true(original_there(f, &source));
    (void)write_layer(f->st, &source, "layer", 5);
    assert_false(original_there(f, &source));
}

static void test_auto_keeps_the_original(void **state)
{
    struct fixture *f = *state;
    struct digest source = put_source(f->st, 1);

    (void)write_layer(f->st, &source, "layer", 5);
    assert_true(original_there(f, &source));
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

struct seen {
    struct layer_result *r;
    struct digest source;
    unsigned recipes, links;
};

static int see_record(void *arg, const struct pack_header *h, uint64_t off UNUSED, const uint8_t *payload,
                      struct err *err)
{
    struct seen *seen = arg;
    struct recipe_head head;
    struct recipe_link link;

    if (h->type == PACK_RECIPE) {
        TRY(recipe_parse(payload, h->len, &head, err));
        assert_true(digest_equal(&h->key, &seen->r->canonical));
        assert_int_equal(head.chunks, seen->r->chunks);
        assert_int_equal(head.size_bytes, seen->r->canonical_bytes);
        assert_int_equal(head.zstd_bytes, seen->r->zstd_bytes);
        assert_true(digest_equal(&head.zstd, &seen->r->zstd));
        assert_int_equal(head.level, 3);
        seen->recipes++;
    } else if (h->type == PACK_BLOB) {
        TRY(recipe_link_parse(payload, h->len, &link, err));
        assert_true(digest_equal(&h->key, &seen->source));
        assert_true(digest_equal(&link.canonical, &seen->r->canonical));
        seen->links++;
    }
    return 0;
}

static void test_packs_tell_the_layer_again(void **state)
{
    struct fixture *f = *state;
    struct digest source = put_source(f->st, 1);
    struct err err = ERR_INIT;
    struct tar t = {0};

    make_tar(&t, 1, 3);
    struct layer_result r = write_layer(f->st, &source, t.data, t.len);
    (void)write_layer(f->st, &source, t.data, t.len); /* nothing new to record */
    struct seen seen = {.r = &r, .source = source};
    ASSERT_OK(pack_scan(f->st->packs, 1, see_record, &seen, &err));
    assert_int_equal(seen.recipes, 1);
    assert_int_equal(seen.links, 1);
    tar_release(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sizes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many_chunks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_windows_at_and_beyond_the_end, setup, teardown),
        cmocka_unit_test_setup_teardown(test_shared_files_are_stored_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_same_layer_from_another_source, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unknown_source, setup, teardown),
        cmocka_unit_test_setup_teardown(test_abort_leaves_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_own_canonical_form_needs_no_original, setup, teardown),
        cmocka_unit_test_setup_teardown(test_drop_policy_waits_for_readers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_auto_keeps_the_original, setup, teardown),
        cmocka_unit_test_setup_teardown(test_packs_tell_the_layer_again, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
