/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_punch_test.c - dead records give their blocks back, and nothing else.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/store_layer_util.h"

#include <pthread.h>

static struct pack_loc append(struct fixture *f, uint64_t seed, size_t len)
{
    static _Thread_local uint8_t data[100000];
    struct pack_meta meta = {.raw_bytes = (uint32_t)len, .kind = 1};
    struct err err = ERR_INIT;
    struct pack_loc loc;
    struct digest key;

    fill_random(data, len, seed);
    digest_of(data, len, &key);
    ASSERT_OK(pack_append(f->st->packs, PACK_FRAME, &key, &meta, data, len, &loc, &err));
    return loc;
}

static void expect_read(struct fixture *f, const struct pack_loc *loc, uint64_t seed)
{
    static _Thread_local uint8_t want[100000], got[100000];
    struct err err = ERR_INIT;

    fill_random(want, loc->len, seed);
    ASSERT_OK(pack_read(f->st->packs, loc, got, &err));
    assert_memory_equal(got, want, loc->len);
}

static int count_record(void *arg, const struct pack_header *r, uint64_t payload_off, const uint8_t *payload,
                        struct err *err)
{
    (void)r, (void)payload_off, (void)payload, (void)err;
    ++*(unsigned *)arg;
    return 0;
}

static unsigned records(struct fixture *f, int64_t pack)
{
    unsigned count = 0;
    struct err err = ERR_INIT;

    ASSERT_OK(pack_scan(f->st->packs, pack, count_record, &count, &err));
    return count;
}

static int64_t blocks_of(struct fixture *f, int64_t pack)
{
    struct stat sb;

    assert_int_equal(fstatat(f->st->packs_fd, pack_name(pack).s, &sb, 0), 0);
    return sb.st_blocks * 512;
}

/* One by one and in any order: in the end no block is left but those with the file's header and the live records. */
static void test_blocks_between_dead_neighbours_go(void **state)
{
    struct fixture *f = *state;
    static const int order[] = {4, 0, 2, 5, 1, 3};
    struct pack_loc live = append(f, 1, 100), locs[6], last;
    struct err err = ERR_INIT;

    for (unsigned i = 0; i < 6; i++)
        locs[i] = append(f, 2 + i, 6000 + i);
    last = append(f, 9, 5000);
    assert_int_equal(last.pack, live.pack);
    ASSERT_OK(pack_sync(f->st->packs, &err));
    for (unsigned i = 0; i < 6; i++) {
        ASSERT_OK(pack_punch(f->st->packs, &locs[order[i]], &err));
        expect_read(f, &live, 1);
        expect_read(f, &last, 9);
        for (unsigned j = i + 1; j < 6; j++)
            expect_read(f, &locs[order[j]], 2 + (unsigned)order[j]);
    }
    assert_in_range(blocks_of(f, live.pack), 1, 4 * 4096); /* the first, and three that `last` lies in */
    assert_int_equal(records(f, live.pack), 2);
}

/* What reads as zeroes behind a dead record may be somebody's who has reserved it and is about to write. */
static void test_reserved_ranges_are_left_alone(void **state)
{
    struct fixture *f = *state;
    struct pack_loc dead = append(f, 1, 10000);
    struct pack *p = pack_find(f->st->packs, dead.pack);
    uint8_t zeroes[16384] = {0};
    struct err err = ERR_INIT;

    p->appending = 1;
    p->appending_from = p->end;
    assert_int_equal(pwrite(p->fd, zeroes, sizeof(zeroes), (off_t)p->end), sizeof(zeroes)); /* as a later append does */
    p->end += sizeof(zeroes);
    ASSERT_OK(pack_punch(f->st->packs, &dead, &err));
    assert_int_equal(lseek(p->fd, 8192, SEEK_DATA), 8192); /* the block that both share */
    p->appending = 0;
    ASSERT_OK(pack_punch(f->st->packs, &dead, &err));
    assert_int_equal(lseek(p->fd, 8192, SEEK_DATA), 12288);
}

/* Writers whose records lie between each other's; all but every seventh die at once. The living stay as they were. */
#define WRITERS 4
#define RECORDS 200

struct writer {
    struct fixture *f;
    uint64_t id;
    struct pack_loc live[RECORDS];
    unsigned count;
};

static uint64_t seed_of(const struct writer *w, unsigned i)
{
    return w->id * 1000 + i;
}

static void *write_and_punch(void *arg)
{
    struct writer *w = arg;
    struct err err = ERR_INIT;

    for (unsigned i = 0; i < RECORDS; i++) {
        struct pack_loc loc = append(w->f, seed_of(w, i), 100 + (size_t)(w->id * 7919 + i * 613) % 9000);

        w->live[i] = loc;
        if (i % 7 != 0)
            ASSERT_OK(pack_punch(w->f->st->packs, &loc, &err));
    }
    return NULL;
}

static void test_writers_who_punch(void **state)
{
    static struct writer writers[WRITERS];
    struct fixture *f = *state;
    pthread_t threads[WRITERS];

    for (uint64_t i = 0; i < WRITERS; i++) {
        writers[i] = (struct writer){.f = f, .id = i};
        assert_int_equal(pthread_create(&threads[i], NULL, write_and_punch, &writers[i]), 0);
    }
    for (unsigned i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (unsigned i = 0; i < WRITERS; i++)
        for (unsigned r = 0; r < RECORDS; r += 7)
            expect_read(f, &writers[i].live[r], seed_of(&writers[i], r));
    assert_int_equal(records(f, 1), WRITERS * ((RECORDS + 6) / 7));
    assert_int_equal(pack_find(f->st->packs, 1)->appending, 0);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_blocks_between_dead_neighbours_go),
        T(test_reserved_ranges_are_left_alone),
        T(test_writers_who_punch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
