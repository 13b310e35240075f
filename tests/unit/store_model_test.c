/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_model_test.c - random operations on a store, and on a model of it that knows what must come of them
 * (store_model*.h). RECASK_MODEL_SEED (printed) makes the same run again, RECASK_MODEL_OPS a longer one,
 * RECASK_MODEL_VERBOSE=1 names every operation before it is done.
 *
 * Where the store is free to choose - what goes when room is needed - the model holds it to its rules instead: nothing
 * that is read, the order of the last reads, small originals last.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/store_model_crash.h"

#include <time.h>

#define CHECK_EVERY 100

#if defined(__SANITIZE_THREAD__)
#define OPS_DEFAULT 1000
#elif defined(__SANITIZE_ADDRESS__)
#define OPS_DEFAULT 2500
#else
#define OPS_DEFAULT 10000
#endif

/* Reads all of it now, in this form. */
static void check_bytes(struct model *m, struct thing *t, bool layer, enum layer_form form)
{
    struct reader r;

    if (open_reader(m, &r, t, layer, form, 0, UINT64_MAX))
        advance(m, &r, 0);
}

static void check_all(struct model *m, bool opened_just_now)
{
    sync_presence(m, false);
    for (int i = 0; i < CONTENTS; i++) {
        struct content *c = &m->contents[i];

        check_bytes(m, &c->t, true, pick(m, 2) == 0 ? LAYER_IDENTITY : LAYER_ZSTD);
        check_look_up(m, &c->t.digest);
        check_links(m, &c->t.digest);
        if (c->frames == NULL)
            continue;
        check_look_up(m, &c->zdigest);
        check_links(m, &c->zdigest);
    }
    for (int i = 0; i < ORIGINALS; i++) {
        check_bytes(m, &m->originals[i].t, false, LAYER_IDENTITY);
        check_look_up(m, &m->originals[i].t.digest);
        check_links(m, &m->originals[i].t.digest);
    }
    for (int i = 0; i < MANIFESTS; i++)
        check_manifest(m, &m->manifests[i]);
    check_tags(m);
    check_pins(m);
    check_pending(m);
    check_rows(m, opened_just_now);
    check_files(m, opened_just_now);
}

struct choice {
    unsigned weight;
    void (*run)(struct model *m);
};

static const struct choice choices[] = {
    {120, op_read},  {30, op_fill},     {8, op_abandoned_fill}, {40, op_layer}, {40, op_slow_layer}, {20, op_evict},
    {10, op_settle}, {6, op_mark_lost}, {12, op_manifest},      {4, op_view},   {4, op_views_ready}, {6, op_gc},
    {3, op_pin},     {4, op_unpin},     {3, op_remove},         {8, op_link},   {2, op_refuse},      {4, op_make_room},
    {3, op_quota},   {6, op_damage},    {3, op_heal},           {1, op_reopen}, {1, op_crash},
};

static void run_one(struct model *m)
{
    unsigned total = 0;
    uint64_t at;

    for (size_t i = 0; i < ARRAY_LEN(choices); i++)
        total += choices[i].weight;
    at = pick(m, total);
    for (size_t i = 0; i < ARRAY_LEN(choices); i++) {
        if (at < choices[i].weight) {
            choices[i].run(m);
            return;
        }
        at -= choices[i].weight;
    }
}

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static void test_model(void **state)
{
    struct model *m = calloc(1, sizeof(*m));

    assert_non_null(m);
    m->f = *state;
    m->seed = from_environment("RECASK_MODEL_SEED", (uint64_t)clock_wall_ms() % 1000000);
    m->ops = (unsigned long)from_environment("RECASK_MODEL_OPS", OPS_DEFAULT);
    m->verbose = getenv("RECASK_MODEL_VERBOSE") != NULL;
    fprintf(stderr, "RECASK_MODEL_SEED=%llu RECASK_MODEL_OPS=%lu\n", (unsigned long long)m->seed, m->ops);
    m->rng = m->seed * 2 + 1;
    m->quota_bytes = WIDE_BYTES;
    make_universe(m);
    store_close(steal(&m->f->st));
    open_again(m);
    find_repos(m);
    for (m->op = 0; m->op < m->ops; m->op++) {
        int64_t before = (int64_t)m->crashes;

        m->past[m->op % PAST][0] = '\0';
        run_one(m);
        sync_presence(m, false);
        if (m->op % CHECK_EVERY == CHECK_EVERY - 1 || (int64_t)m->crashes != before)
            check_all(m, (int64_t)m->crashes != before);
    }
    let_go(m);
    fprintf(stderr,
            "fills %llu, layers %llu, reads %llu, evicted %llu layers and %llu originals, no room %llu, damages %llu,"
            " crashes %llu, packs compacted %llu\n",
            (unsigned long long)m->fills, (unsigned long long)m->layers, (unsigned long long)m->reads,
            (unsigned long long)m->evicted_layers, (unsigned long long)m->evicted_originals,
            (unsigned long long)m->no_room, (unsigned long long)m->damages, (unsigned long long)m->crashes,
            (unsigned long long)m->packs_compacted);
    free_universe(m);
    free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_model, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
