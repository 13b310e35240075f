/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_original_test.c - reading originals: ranges, damage, leases.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "store/files_internal.h"
#include "tests/unit/store_layer_util.h"

#define MIB (UINT64_C(1) << 20)
#define BYTES (2 * MIB + 12345)

static uint8_t *random_bytes(size_t len, uint64_t seed)
{
    uint8_t *data = malloc(len);

    assert_non_null(data);
    fill_random(data, len, seed);
    return data;
}

static void original_path(const struct fixture *f, const struct digest *d, char *out, size_t cap)
{
    (void)snprintf(out, cap, "%s/originals/%s/%s", f->dir, original_dir(d).s, digest_hex(d).s);
}

static void flip(const struct fixture *f, const struct digest *d, uint64_t off)
{
    CLEANUP(fd_cleanup) int fd = -1;
    char path[192];
    uint8_t byte;

    original_path(f, d, path, sizeof(path));
    fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)off), 1);
    byte ^= 16;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)off), 1);
}

static void expect_range(struct store *st, const struct digest *d, const uint8_t *data, uint64_t off, uint64_t len,
                         size_t cap)
{
    uint64_t start = off < BYTES ? off : BYTES;
    uint64_t want = len < BYTES - start ? len : BYTES - start;
    struct source *s = NULL;
    struct err err = ERR_INIT;
    struct bytes got;

    ASSERT_OK(original_open(st, d, off, len, &s, &err));
    got = drain(s, cap);
    assert_int_equal(got.code, 0);
    assert_int_equal(got.len, want);
    assert_memory_equal(got.data, data + start, want);
    free(got.data);
}

static void test_ranges(void **state)
{
    CLEANUP(free_ptr) uint8_t *data = random_bytes(BYTES, 3);
    static const uint64_t offs[] = {0, 1, MIB - 1, MIB, MIB + 1, 2 * MIB, BYTES - 1, BYTES, BYTES + 1, UINT64_MAX};
    static const uint64_t lens[] = {0, 1, 2, MIB - 1, MIB, MIB + 1, UINT64_MAX};
    struct fixture *f = *state;
    struct digest d = put_original(f->st, data, BYTES);

    for (size_t i = 0; i < ARRAY_LEN(offs); i++)
        for (size_t k = 0; k < ARRAY_LEN(lens); k++)
            expect_range(f->st, &d, data, offs[i], lens[k], 300000);
    expect_range(f->st, &d, data, MIB - 50, 100, 1);
}

/* S6: each MiB that is touched is checked, and no other. */
static void test_a_flipped_byte(void **state)
{
    CLEANUP(free_ptr) uint8_t *data = random_bytes(BYTES, 4);
    struct fixture *f = *state;
    struct digest d = put_original(f->st, data, BYTES);
    struct source *s = NULL;
    struct err err = ERR_INIT;
    struct store_blob b;
    struct bytes got;

    flip(f, &d, MIB + 5);
    expect_range(f->st, &d, data, 0, MIB, 100000);
    expect_range(f->st, &d, data, 2 * MIB, 1000, 100000);
    ASSERT_CODE(original_open(f->st, &d, 2 * MIB - 1, 1, &s, &err), ERR_CORRUPT);
    ASSERT_OK(original_open(f->st, &d, 0, UINT64_MAX, &s, &err));
    got = drain(s, 100000);
    assert_int_equal(got.code, ERR_CORRUPT);
    assert_int_equal(got.len, MIB); /* not one byte of the bad MiB */
    free(got.data);
    ASSERT_OK(store_mark_lost(f->st, &d, &err));
    ASSERT_OK(store_blob_lookup(f->st, &d, &b, &err));
    assert_true(b.role == ROLE_ORIGINAL && !b.present && b.size_bytes == BYTES);
    ASSERT_CODE(original_open(f->st, &d, 0, UINT64_MAX, &s, &err), ERR_NOTFOUND);
    (void)put_original(f->st, data, BYTES);
    expect_range(f->st, &d, data, 0, UINT64_MAX, 100000);
}

/* Cases 2, 4, 5: gone, empty, short and too long files show before a byte is handed on, and heal. */
static void test_missing_and_short_files(void **state)
{
    CLEANUP(free_ptr) uint8_t *data = random_bytes(BYTES, 5);
    static const int64_t sizes[] = {-1, 0, 1, (int64_t)BYTES - 1, (int64_t)BYTES + 1};
    struct fixture *f = *state;
    struct err err = ERR_INIT;
    char path[192];

    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct digest d = put_original(f->st, data, BYTES);
        struct source *s = NULL;
        struct store_blob b;

        original_path(f, &d, path, sizeof(path));
        assert_int_equal(sizes[i] < 0 ? unlink(path) : truncate(path, sizes[i]), 0);
        ASSERT_CODE(original_open(f->st, &d, 0, UINT64_MAX, &s, &err), sizes[i] < 0 ? ERR_NOTFOUND : ERR_CORRUPT);
        ASSERT_OK(store_mark_lost(f->st, &d, &err));
        ASSERT_OK(store_mark_lost(f->st, &d, &err)); /* once more is fine */
        ASSERT_OK(store_blob_lookup(f->st, &d, &b, &err));
        assert_false(b.present);
        (void)put_original(f->st, data, BYTES);
        expect_range(f->st, &d, data, 0, UINT64_MAX, 100000);
    }
}

static void test_a_file_lost_while_closed(void **state)
{
    CLEANUP(free_ptr) uint8_t *data = random_bytes(BYTES, 6);
    struct fixture *f = *state;
    struct digest d = put_original(f->st, data, BYTES);
    struct source *s = NULL;
    struct err err = ERR_INIT;
    char path[192];

    store_close(f->st);
    original_path(f, &d, path, sizeof(path));
    assert_int_equal(unlink(path), 0);
    open_store(f);
    ASSERT_CODE(original_open(f->st, &d, 0, UINT64_MAX, &s, &err), ERR_NOTFOUND);
    ASSERT_OK(store_mark_lost(f->st, &d, &err));
}

/* S5 */
static void test_a_reader_holds_eviction_back(void **state)
{
    CLEANUP(free_ptr) uint8_t *data = random_bytes(BYTES, 7);
    struct fixture *f = *state;
    struct digest d = put_original(f->st, data, BYTES);
    struct source *s = NULL;
    struct err err = ERR_INIT;
    struct bytes got;
    struct store_stats before, after;

    ASSERT_OK(original_open(f->st, &d, 0, UINT64_MAX, &s, &err));
    ASSERT_CODE(store_evict(f->st, &d, &err), ERR_BUSY);
    got = drain(s, 100000);
    assert_true(got.code == 0 && got.len == BYTES);
    free(got.data);
    ASSERT_OK(store_stats(f->st, &before, &err));
    ASSERT_OK(store_evict(f->st, &d, &err));
    ASSERT_OK(store_stats(f->st, &after, &err));
    assert_true(after.bytes_on_disk + 2 * MIB < before.bytes_on_disk + 100000);
    assert_int_equal(after.original_bytes, 0);
    ASSERT_CODE(store_evict(f->st, &d, &err), ERR_NOTFOUND);
    ASSERT_CODE(original_open(f->st, &d, 0, UINT64_MAX, &s, &err), ERR_NOTFOUND);
}

static void test_reads_are_remembered(void **state)
{
    struct fixture *f = *state;
    struct digest d = put_source(f->st, 1);
    struct source *s = NULL;
    struct err err = ERR_INIT;

    sql_change(f->st, "UPDATE blob SET last_read = 5");
    ASSERT_OK(original_open(f->st, &d, 0, UINT64_MAX, &s, &err));
    source_free(s);
    reopen_store(f);
    assert_true(sql_number(f->st, "SELECT last_read FROM blob") > 1600000000);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_ranges),
        T(test_a_flipped_byte),
        T(test_missing_and_short_files),
        T(test_a_file_lost_while_closed),
        T(test_a_reader_holds_eviction_back),
        T(test_reads_are_remembered),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
