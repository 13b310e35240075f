/* SPDX-License-Identifier: Apache-2.0
 * What changes while a scrub goes on is no finding: layers that come, go and move, and faults that pass.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/unit/store_scrub_util.h"

/* ---- while the store is used ---------------------------------------------------------------------------------------------------- */

struct churn {
    struct fixture *f;
    struct layer *layers;
    unsigned turn;
};

/* Layers come and go under the scrub; a lease may hold one of them. */
static void come_and_go(void *arg)
{
    struct churn *c = arg;
    struct layer *l = &c->layers[c->turn++ % 4];
    struct err err = ERR_INIT;
    int rc = store_evict(c->f->st, &l->r.canonical, &err);

    if (rc == 0 || rc == ERR_NOTFOUND)
        (void)write_layer(c->f->st, &l->source, l->data, LAYER_BYTES);
    else
        assert_int_equal(rc, ERR_BUSY);
    err_clear(&err);
    if (c->turn % 3 == 0) /* whoever reads it */
        ASSERT_OK(store_scrub_drop_layer(c->f->st, &c->layers[(c->turn + 1) % 4].r.canonical, &err));
}

static void test_evictions_are_no_findings(void **state)
{
    struct fixture *f = *state;
    struct layer layers[4];
    struct found found;

    for (int i = 0; i < 4; i++)
        layers[i] = add_layer(f->st, i + 1);
    for (int i = 0; i < 5; i++) {
        scrub_with(f->st, &found, come_and_go, &(struct churn){.f = f, .layers = layers});
        if (found.count > 0)
            fail_msg("%s", found.list[0].text);
        assert_true(found.steps > 1);
    }
    expect_sound_catalog(f->st);
    for (int i = 0; i < 4; i++)
        release_layer(&layers[i]);
}

/* A scrub that has read more than so many bytes. */
static struct store_scrub *scrub_to(struct store *st, uint64_t bytes, struct found *found)
{
    struct store_scrub *s = NULL;
    struct err err = ERR_INIT;
    bool more = true;

    memset(found, 0, sizeof(*found));
    ASSERT_OK(store_scrub_new(st, &s, &err));
    while (found->p.bytes <= bytes) {
        ASSERT_OK(store_scrub_step(s, note, found, &found->p, &more, &err));
        assert_true(more);
    }
    return s;
}

static void expect_nothing_more(struct store_scrub *s, struct found *found)
{
    struct err err = ERR_INIT;
    bool more = true;

    while (more)
        ASSERT_OK(store_scrub_step(s, note, found, &found->p, &more, &err));
    store_scrub_free(s);
    if (found->count > 0)
        fail_msg("%s", found->list[0].text);
}

static size_t list_chunks(struct store *st, int64_t *ids, struct pack_loc *locs, size_t max)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct err err = ERR_INIT;
    size_t n = 0;

    ASSERT_OK(catalog_read_begin(st, &db, &err));
    ASSERT_OK(sql_query(db, &q, "SELECT id, pack_id, off, len, sum FROM chunk", &err));
    while (sql_step(&q, &err) == SQL_ROW) {
        assert_true(n < max);
        ids[n] = sql_int(&q, 0);
        locs[n++] = (struct pack_loc){.pack = sql_int(&q, 1),
                                      .off = (uint64_t)sql_int(&q, 2),
                                      .len = (uint32_t)sql_int(&q, 3),
                                      .sum = (uint64_t)sql_int(&q, 4)};
    }
    return n;
}

/* Appends the frame of each chunk again, lets the row point there, and wipes the old one: what compaction does. */
static void move_frames(struct store *st)
{
    int64_t ids[64];
    struct pack_loc locs[64];
    struct err err = ERR_INIT;
    size_t n = list_chunks(st, ids, locs, 64);

    for (size_t i = 0; i < n; i++) {
        CLEANUP(free_ptr) uint8_t *frame = calloc(1, locs[i].len);
        CLEANUP(fd_cleanup) int fd = openat(st->packs_fd, pack_name(locs[i].pack).s, O_WRONLY | O_CLOEXEC);
        struct digest key = {.b = {0}};
        struct pack_loc moved;
        char sql[128];

        assert_non_null(frame);
        ASSERT_OK(pack_read(st->packs, &locs[i], frame, &err));
        ASSERT_OK(pack_append(st->packs, PACK_FRAME, &key, NULL, frame, locs[i].len, &moved, &err));
        ASSERT_OK(pack_sync(st->packs, &err));
        (void)snprintf(sql, sizeof(sql),
                       "UPDATE chunk SET pack_id = %" PRId64 ", off = %" PRIu64 " WHERE id = %" PRId64, moved.pack,
                       moved.off, ids[i]);
        sql_change(st, sql);
        memset(frame, 0, locs[i].len);
        assert_int_equal(pwrite(fd, frame, locs[i].len, (off_t)locs[i].off), locs[i].len);
    }
}

static void test_moved_frames(void **state)
{
    struct fixture *f = *state;
    struct layer layers[3];
    struct found found;

    for (int i = 0; i < 3; i++)
        layers[i] = add_layer(f->st, i + 1);
    struct store_scrub *s = scrub_to(f->st, LAYER_BYTES / 2, &found);
    move_frames(f->st);
    expect_nothing_more(s, &found);
    assert_int_equal(found.p.layers, 3);
    for (int i = 0; i < 3; i++)
        release_layer(&layers[i]);
}

/* The layer in hand goes, its frames with it. */
static void test_layer_goes(void **state)
{
    struct fixture *f = *state;
    struct layer layers[3];
    struct found found;
    struct err err = ERR_INIT;

    for (int i = 0; i < 3; i++)
        layers[i] = add_layer(f->st, i + 1);
    struct store_scrub *s = scrub_to(f->st, LAYER_BYTES / 2, &found);
    for (int i = 0; i < 3; i++)
        ASSERT_OK(store_scrub_drop_layer(f->st, &layers[i].r.canonical, &err));
    expect_nothing_more(s, &found);
    for (int i = 0; i < 3; i++)
        release_layer(&layers[i]);
}

/* The layer in hand goes, and its frames stay, since another has them too: the rest of its recipe is missing then. */
static void test_recipe_goes(void **state)
{
    struct fixture *f = *state;
    size_t len = 24u << 20;
    uint8_t *data = malloc(len + 1);
    struct digest one = put_source(f->st, 1), two = put_source(f->st, 2);
    struct found found;
    struct err err = ERR_INIT;
    uint64_t random = 5;

    assert_non_null(data);
    for (size_t i = 0; i <= len; i++)
        data[i] = (uint8_t)next_random(&random);
    struct layer_result r = write_layer(f->st, &one, data, len);
    (void)write_layer(f->st, &two, data, len + 1);
    assert_true(r.chunks > 65); /* more than a page */
    struct store_scrub *s = scrub_to(f->st, 2u << 20, &found);
    ASSERT_OK(store_scrub_drop_layer(f->st, &r.canonical, &err));
    expect_nothing_more(s, &found);
    free(data);
}

/* A byte that reads well the second time: a bad cable, not a bad disk. */
static void test_passing_fault(void **state)
{
    struct fixture *f = *state;
    CLEANUP(free_ptr) uint8_t *data = calloc(5, 1u << 20);
    struct store_scrub *s;
    struct found found;
    struct err err = ERR_INIT;
    char path[192];
    bool more = true;

    assert_non_null(data);
    struct digest d = put_original(f->st, data, 5u << 20);
    original_path(f, &d, path, sizeof(path));
    s = scrub_to(f->st, 0, &found);
    flip_byte(path, (4 << 20) + 7);
    while (found.p.bytes < 4u << 20)
        ASSERT_OK(store_scrub_step(s, note, &found, &found.p, &more, &err));
    ASSERT_OK(store_scrub_step(s, note, &found, &found.p, &more, &err)); /* meets it, and begins anew */
    flip_byte(path, (4 << 20) + 7);
    expect_nothing_more(s, &found);
    assert_int_equal(found.p.originals, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_evictions_are_no_findings, setup, teardown),
        cmocka_unit_test_setup_teardown(test_moved_frames, setup, teardown),
        cmocka_unit_test_setup_teardown(test_layer_goes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_recipe_goes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_passing_fault, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
