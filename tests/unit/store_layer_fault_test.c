/* SPDX-License-Identifier: Apache-2.0
 * Layers when things go wrong: damaged and missing packs, eviction, changed catalogs, writers that race.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/meta.h"
#include "tests/unit/store_layer_util.h"

#include <pthread.h>

#define LAYER_BYTES ((size_t)4 << 20)

static uint8_t *text(size_t len, uint64_t seed)
{
    uint8_t *data = malloc(len + 1);

    assert_non_null(data);
    fill_text(data, len, seed);
    return data;
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

static void test_damage_in_the_first_frame_shows_at_open(void **state)
{
    struct fixture *f = *state;
    struct digest source = put_source(f->st, 1);
    uint8_t *data = text(LAYER_BYTES, 1);
    struct layer_result r = write_layer(f->st, &source, data, LAYER_BYTES);
    struct source *s = NULL;
    struct err err = ERR_INIT;

    flip_frame_bit(f, &r.canonical, 0);
    ASSERT_CODE(layer_open(f->st, &r.canonical, LAYER_IDENTITY, 0, 100, &s, &err), ERR_CORRUPT);
    ASSERT_CODE(layer_open(f->st, &r.canonical, LAYER_ZSTD, 0, 100, &s, &err), ERR_CORRUPT);
    /* The rest of the layer is as good as ever. */
    struct bytes b = read_layer(f->st, &r.canonical, LAYER_IDENTITY, LAYER_BYTES - 1000, 1000, 400);
    assert_int_equal(b.code, 0);
    assert_memory_equal(b.data, data + LAYER_BYTES - 1000, 1000);
    free(b.data);
    free(data);
}

static void test_damaged_bytes_are_never_handed_on(void **state)
{
    static const size_t caps[] = {777, 100000, 3 << 20};
    struct fixture *f = *state;
    struct digest source = put_source(f->st, 1);
    uint8_t *data = text(LAYER_BYTES, 1);
    struct layer_result r = write_layer(f->st, &source, data, LAYER_BYTES);
    struct bytes z = read_layer(f->st, &r.canonical, LAYER_ZSTD, 0, UINT64_MAX, 1 << 20);

    flip_frame_bit(f, &r.canonical, LAYER_BYTES / 2);
    for (size_t i = 0; i < 2 * ARRAY_LEN(caps); i++) {
        enum layer_form form = i % 2 == 0 ? LAYER_IDENTITY : LAYER_ZSTD;
        struct bytes b = read_layer(f->st, &r.canonical, form, 0, UINT64_MAX, caps[i / 2]);

        assert_int_equal(b.code, ERR_CORRUPT);
        assert_true(b.len < (form == LAYER_IDENTITY ? LAYER_BYTES / 2 + 1 : z.len));
        assert_memory_equal(b.data, form == LAYER_IDENTITY ? data : z.data, b.len);
        free(b.data);
    }
    free(z.data);
    free(data);
}

static void test_missing_pack(void **state)
{
    struct fixture *f = *state;
    struct digest source = put_source(f->st, 1);
    struct layer_result r = write_layer(f->st, &source, "layer", 5);
    struct source *s = NULL;
    struct err err = ERR_INIT;
    char path[192];

    store_close(f->st);
    (void)snprintf(path, sizeof(path), "%s/packs/%s", f->dir, pack_name(1).s);
    assert_int_equal(unlink(path), 0);
    open_store(f);
    ASSERT_CODE(layer_open(f->st, &r.canonical, LAYER_IDENTITY, 0, UINT64_MAX, &s, &err), ERR_NOTFOUND);
    ASSERT_CODE(layer_open(f->st, &r.canonical, LAYER_ZSTD, 0, UINT64_MAX, &s, &err), ERR_NOTFOUND);
}

/* Another layer that shares the damaged chunk brings it back for both. */
static void test_a_writer_heals_shared_chunks(void **state)
{
    struct fixture *f = *state;
    struct digest one = put_source(f->st, 1), two = put_source(f->st, 2);
    struct tar a = {0}, b = {0};

    (void)tar_file(&a, "f", 300000, 1);
    tar_add(&b, a.data, a.len);
    (void)tar_file(&b, "more", 100, 2);
    struct layer_result ra = write_layer(f->st, &one, a.data, a.len);
    flip_frame_bit(f, &ra.canonical, 1000);
    struct layer_result rb = write_layer(f->st, &two, b.data, b.len);
    expect_layer(f->st, &ra, a.data, a.len);
    expect_layer(f->st, &rb, b.data, b.len);
    expect_sound_catalog(f->st);
    /* And so does the very layer, although it counts as present. */
    flip_frame_bit(f, &ra.canonical, 1000);
    assert_true(write_layer(f->st, &one, a.data, a.len).existed);
    expect_layer(f->st, &ra, a.data, a.len);
    expect_layer(f->st, &rb, b.data, b.len);
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM chunk WHERE pack_id IS NULL"), 0);
    tar_release(&a);
    tar_release(&b);
}

/* The frame on record was made in another way: other layers' zstd forms hang on it, so no other takes its place. */
static void test_a_frame_that_cannot_be_made_again(void **state)
{
    struct fixture *f = *state;
    struct digest one = put_source(f->st, 1), two = put_source(f->st, 2);
    uint8_t *data = text(LAYER_BYTES, 1);
    struct layer_writer *w = NULL;
    struct err err = ERR_INIT;
    struct layer_result r = write_layer(f->st, &one, data, LAYER_BYTES);

    sql_change(f->st, "UPDATE chunk SET level = 1");
    flip_frame_bit(f, &r.canonical, 0);
    ASSERT_OK(layer_writer_open(f->st, &two, &w, &err));
    ASSERT_CODE(layer_writer_put(w, data, LAYER_BYTES, &err), ERR_CORRUPT);
    layer_writer_abort(w);
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM chunk WHERE pack_id IS NULL"), 1);
    expect_sound_catalog(f->st);
    free(data);
}

static void test_mark_lost_then_written_again(void **state)
{
    struct fixture *f = *state;
    struct digest source = put_source(f->st, 1);
    uint8_t *data = text(LAYER_BYTES, 1);
    struct layer_result r = write_layer(f->st, &source, data, LAYER_BYTES);
    struct source *s = NULL;
    struct err err = ERR_INIT;

    flip_frame_bit(f, &r.canonical, 0);
    ASSERT_OK(store_mark_lost(f->st, &r.canonical, &err));
    ASSERT_CODE(layer_open(f->st, &r.canonical, LAYER_IDENTITY, 0, 1, &s, &err), ERR_NOTFOUND);
    struct layer_result again = write_layer(f->st, &source, data, LAYER_BYTES);
    assert_true(digest_equal(&r.zstd, &again.zstd));
    expect_layer(f->st, &r, data, LAYER_BYTES);
    expect_sound_catalog(f->st);
    free(data);
}

static void test_damaged_recipe(void **state)
{
    struct fixture *f = *state;
    struct digest source = put_source(f->st, 1);
    uint8_t *data = text(LAYER_BYTES, 1);
    struct layer_result r = write_layer(f->st, &source, data, LAYER_BYTES);
    struct source *s = NULL;
    struct err err = ERR_INIT;

    sql_change(f->st, "DELETE FROM recipe WHERE off = (SELECT off FROM recipe ORDER BY off LIMIT 1 OFFSET 3)");
    struct bytes b = read_layer(f->st, &r.canonical, LAYER_IDENTITY, 0, UINT64_MAX, 100000);
    assert_int_equal(b.code, ERR_CORRUPT);
    assert_memory_equal(b.data, data, b.len);
    free(b.data);
    sql_change(f->st, "UPDATE chunk SET kind = 3");
    ASSERT_CODE(layer_open(f->st, &r.canonical, LAYER_ZSTD, 0, 1, &s, &err), ERR_UNSUPPORTED);
    sql_change(f->st, "UPDATE chunk SET raw = 2000000000");
    ASSERT_CODE(layer_open(f->st, &r.canonical, LAYER_IDENTITY, 0, 1, &s, &err), ERR_CORRUPT);
    sql_change(f->st, "DELETE FROM recipe");
    ASSERT_CODE(layer_open(f->st, &r.canonical, LAYER_ZSTD, 0, 1, &s, &err), ERR_CORRUPT);
    free(data);
}

/* ---- eviction ---------------------------------------------------------------------------------------------------- */

static void test_evicted_and_written_again_has_the_same_zstd_form(void **state)
{
    struct fixture *f = *state;
    struct digest source = put_source(f->st, 1);
    uint8_t *data = text(LAYER_BYTES, 1);
    struct source *s = NULL;
    struct err err = ERR_INIT;

    store_close(f->st);
    f->opt.zstd_level = 6;
    open_store(f);
    struct layer_result r = write_layer(f->st, &source, data, LAYER_BYTES);
    ASSERT_OK(store_evict(f->st, &r.canonical, &err));
    ASSERT_CODE(layer_open(f->st, &r.canonical, LAYER_ZSTD, 0, 1, &s, &err), ERR_NOTFOUND);
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM chunk"), 0);
    /* The configured level changes; a layer that was published keeps its own. */
    store_close(f->st);
    f->opt.zstd_level = 1;
    open_store(f);
    struct layer_result again = write_layer(f->st, &source, data, LAYER_BYTES);
    assert_false(again.existed);
    assert_true(digest_equal(&r.zstd, &again.zstd));
    assert_int_equal(r.zstd_bytes, again.zstd_bytes);
    expect_layer(f->st, &r, data, LAYER_BYTES);
    expect_sound_catalog(f->st);
    free(data);
}

static void test_another_zstd_form_replaces_the_old_one(void **state)
{
    struct fixture *f = *state;
    struct digest one = put_source(f->st, 1), two = put_source(f->st, 2);
    uint8_t *data = text(LAYER_BYTES, 1);
    struct err err = ERR_INIT;
    struct store_blob blob;

    struct layer_result r = write_layer(f->st, &one, data, LAYER_BYTES);
    ASSERT_OK(store_evict(f->st, &r.canonical, &err));
    store_close(f->st);
    f->opt.zstd_level = 9;
    open_store(f);
    struct layer_result again = write_layer(f->st, &two, data, LAYER_BYTES); /* nobody knew that it is the same layer */
    assert_false(digest_equal(&r.zstd, &again.zstd));
    ASSERT_OK(store_blob_lookup(f->st, &again.zstd, &blob, &err));
    assert_int_equal(blob.role, ROLE_ZSTD);
    ASSERT_OK(store_blob_lookup(f->st, &r.zstd, &blob, &err));
    assert_int_equal(blob.role, ROLE_UNKNOWN);
    expect_sound_catalog(f->st);
    free(data);
}

static void put_manifest(struct store *st, int64_t repo, const char *body, enum store_ref_role role, bool is_index,
                         const struct digest *ref, struct digest *out)
{
    struct store_ref one = {.role = role, .digest = *ref, .size_bytes = 10};
    struct store_manifest_put put = {.repo = repo,
                                     .media_type = "type",
                                     .body = body,
                                     .len = strlen(body),
                                     .is_index = is_index,
                                     .refs = &one,
                                     .ref_count = 1};
    struct err err = ERR_INIT;

    digest_of(body, put.len, out);
    put.digest = *out;
    ASSERT_OK(store_manifest_put(st, &put, &err));
}

/* An image of the layer, an index above it, and an image of another layer; each with a zstd and a canonical view. */
static void test_retired_zstd_views(void **state)
{
    static const bool kept[] = {false, false, true};
    struct fixture *f = *state;
    struct digest one = put_source(f->st, 1), two = put_source(f->st, 2), other = put_source(f->st, 3);
    uint8_t *data = text(LAYER_BYTES, 1);
    struct digest manifests[3], d;
    struct err err = ERR_INIT;
    int64_t repo;
    char body[32];

    ASSERT_OK(store_repo(f->st, "up", "name", &repo, &err));
    put_manifest(f->st, repo, "image", REF_LAYER, false, &one, &manifests[0]);
    put_manifest(f->st, repo, "index", REF_CHILD, true, &manifests[0], &manifests[1]);
    put_manifest(f->st, repo, "other image", REF_LAYER, false, &other, &manifests[2]);
    (void)write_layer(f->st, &other, "other", 5);
    struct layer_result r = write_layer(f->st, &one, data, LAYER_BYTES);
    for (size_t i = 0; i < ARRAY_LEN(manifests); i++) {
        for (int view = 1; view <= 2; view++) {
            int len = snprintf(body, sizeof(body), "view %d of %zu", view, i);

            ASSERT_OK(store_view_put(f->st, &manifests[i], view, "type", body, (size_t)len, &d, &err));
        }
        if (i != 1)
            ASSERT_OK(store_manifest_set_views(f->st, &manifests[i], VIEWS_READY, NULL, &err));
    }
    ASSERT_OK(store_evict(f->st, &r.canonical, &err));
    store_close(f->st);
    f->opt.zstd_level = 9;
    open_store(f);
    (void)write_layer(f->st, &two, data, LAYER_BYTES);
    for (size_t i = 0; i < ARRAY_LEN(manifests); i++) {
        ASSERT_OK(store_view_get(f->st, &manifests[i], 1, &d, &err));
        ASSERT_CODE(store_view_get(f->st, &manifests[i], 2, &d, &err), kept[i] ? 0 : ERR_NOTFOUND);
    }
    assert_int_equal(sql_number(f->st, "SELECT count(*) FROM manifest WHERE views = 1"), 1);
    free(data);
}

static void test_a_reader_holds_eviction_back(void **state)
{
    struct fixture *f = *state;
    struct digest source = put_source(f->st, 1);
    struct layer_result r = write_layer(f->st, &source, "layer", 5);
    struct source *s = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(layer_open(f->st, &r.canonical, LAYER_IDENTITY, 0, UINT64_MAX, &s, &err));
    ASSERT_CODE(store_evict(f->st, &r.canonical, &err), ERR_BUSY);
    struct bytes b = drain(s, 2);
    assert_int_equal(b.code, 0);
    assert_memory_equal(b.data, "layer", 5);
    free(b.data);
    ASSERT_OK(store_evict(f->st, &r.canonical, &err));
}

/* A chunk that a writer shares outlives the layer it came from. */
static void test_eviction_while_a_writer_shares(void **state)
{
    struct fixture *f = *state;
    struct digest one = put_source(f->st, 1), two = put_source(f->st, 2);
    uint8_t *data = text(LAYER_BYTES, 1);
    struct layer_result ra = write_layer(f->st, &one, data, LAYER_BYTES), rb;
    struct err err = ERR_INIT;

    data[LAYER_BYTES - 1] ^= 1;
    struct layer_writer *w = begin_layer(f->st, &two, data, LAYER_BYTES, 100000);
    ASSERT_OK(store_evict(f->st, &ra.canonical, &err));
    ASSERT_OK(layer_writer_commit(w, &rb, &err));
    layer_writer_abort(w);
    assert_true(rb.new_frame_bytes < rb.zstd_bytes / 2);
    expect_layer(f->st, &rb, data, LAYER_BYTES);
    expect_sound_catalog(f->st);
    free(data);
}

/* ---- a catalog that moves ---------------------------------------------------------------------------------------- */

static void test_a_shared_chunk_that_changes_is_busy(void **state)
{
    static const char *const changes[] = {"UPDATE chunk SET sum = sum + 1", "UPDATE chunk SET pack_id = NULL",
                                          "DELETE FROM chunk"};

    for (size_t i = 0; i < ARRAY_LEN(changes); i++) {
        struct fixture *f = *state;
        struct digest one = put_source(f->st, 1), two = put_source(f->st, 2);
        struct layer_result r;
        struct err err = ERR_INIT;
        uint8_t *data = text(LAYER_BYTES, 1);

        (void)write_layer(f->st, &one, data, LAYER_BYTES);
        struct layer_writer *w = begin_layer(f->st, &two, data, LAYER_BYTES - 1, 100000);
        sql_change(f->st, changes[i]);
        ASSERT_CODE(layer_writer_commit(w, &r, &err), ERR_BUSY);
        layer_writer_abort(w);
        assert_int_equal(sql_number(f->st, "SELECT count(*) FROM canonical"), 1);
        free(data);
        assert_int_equal(teardown(state) + setup(state), 0);
    }
}

static void test_a_source_with_another_layer_is_refused(void **state)
{
    struct fixture *f = *state;
    struct digest source = put_source(f->st, 1);
    struct layer_result r = write_layer(f->st, &source, "layer", 5);
    struct layer_writer *w = begin_layer(f->st, &source, "Layer", 5, 5);
    struct err err = ERR_INIT;

    ASSERT_CODE(layer_writer_commit(w, &r, &err), ERR_CORRUPT);
    layer_writer_abort(w);
    expect_sound_catalog(f->st);
}

/* ---- writers that race ------------------------------------------------------------------------------------------- */

#define RACERS 4

struct racer {
    struct fixture *f;
    const uint8_t *data;
    struct digest source;
    struct layer_result r;
    int rc;
};

static int write_once(struct racer *me, struct err *err)
{
    CLEANUP(layer_writer_cleanup) struct layer_writer *w = NULL;

    TRY(layer_writer_open(me->f->st, &me->source, &w, err));
    TRY(layer_writer_put(w, me->data, LAYER_BYTES, err));
    return layer_writer_commit(w, &me->r, err);
}

static void *race(void *arg)
{
    struct racer *me = arg;
    struct err err = ERR_INIT;

    do {
        err_clear(&err);
        me->rc = write_once(me, &err);
    } while (me->rc == ERR_BUSY);
    return NULL;
}

static void run_race(struct racer *racers)
{
    pthread_t threads[RACERS];

    for (int i = 0; i < RACERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    for (int i = 0; i < RACERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(racers[i].rc, 0);
        assert_true(digest_equal(&racers[i].r.zstd, &racers[0].r.zstd));
    }
}

static void test_writers_of_the_same_bytes(void **state)
{
    struct fixture *f = *state;
    struct racer racers[RACERS];
    uint8_t *data = text(LAYER_BYTES, 1);
    unsigned news = 0;

    for (int i = 0; i < RACERS; i++)
        racers[i] = (struct racer){.f = f, .data = data, .source = put_source(f->st, i)};
    run_race(racers);
    for (int i = 0; i < RACERS; i++)
        news += !racers[i].r.existed;
    assert_int_equal(news, 1);
    expect_layer(f->st, &racers[0].r, data, LAYER_BYTES);
    expect_sound_catalog(f->st);
    /* Of the frames that lost the race nothing is left but their headers. */
    assert_in_range(packs_disk_bytes(f->st->packs), 1, racers[0].r.zstd_bytes * 5 / 4);
    free(data);
}

/* Writers, and one who keeps evicting what they write. */
static void test_writers_and_an_evictor(void **state)
{
    struct fixture *f = *state;
    struct racer racers[RACERS];
    uint8_t *data = text(LAYER_BYTES, 1);
    struct digest d;

    digest_of(data, LAYER_BYTES, &d);
    for (int round = 0; round < 5; round++) {
        pthread_t threads[RACERS];
        struct err err = ERR_INIT;

        for (int i = 0; i < RACERS; i++) {
            racers[i] = (struct racer){.f = f, .data = data, .source = put_source(f->st, i)};
            assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
        }
        for (int i = 0; i < 20; i++) {
            int rc = store_evict(f->st, &d, &err);

            if (rc < 0 && rc != ERR_NOTFOUND && rc != ERR_BUSY)
                fail_msg("evict: %s", err.msg);
            err_clear(&err);
            (void)usleep(2000);
        }
        for (int i = 0; i < RACERS; i++) {
            assert_int_equal(pthread_join(threads[i], NULL), 0);
            assert_int_equal(racers[i].rc, 0);
        }
        expect_sound_catalog(f->st);
    }
    struct digest source = put_source(f->st, 0);
    struct layer_result r = write_layer(f->st, &source, data, LAYER_BYTES);
    expect_layer(f->st, &r, data, LAYER_BYTES);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_damage_in_the_first_frame_shows_at_open, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_bytes_are_never_handed_on, setup, teardown),
        cmocka_unit_test_setup_teardown(test_missing_pack, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_writer_heals_shared_chunks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_frame_that_cannot_be_made_again, setup, teardown),
        cmocka_unit_test_setup_teardown(test_mark_lost_then_written_again, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_recipe, setup, teardown),
        cmocka_unit_test_setup_teardown(test_evicted_and_written_again_has_the_same_zstd_form, setup, teardown),
        cmocka_unit_test_setup_teardown(test_another_zstd_form_replaces_the_old_one, setup, teardown),
        cmocka_unit_test_setup_teardown(test_retired_zstd_views, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_reader_holds_eviction_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_eviction_while_a_writer_shares, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_shared_chunk_that_changes_is_busy, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_source_with_another_layer_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_writers_of_the_same_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_writers_and_an_evictor, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
