/* SPDX-License-Identifier: Apache-2.0
 * store/stats.c - numbers, each from a counter that is kept as things change: no scan, whatever the size of the store.
 */
#include "store/catalog_internal.h"
#include "store/compact_internal.h"
#include "store/files_internal.h"

#include <fcntl.h>
#include <sys/stat.h>

static int read_totals(struct sql_db *db, struct store_stats *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(
        db, &q,
        "SELECT chunks, chunk_bytes, frame_bytes, canonical_layers, canonical_bytes, original_bytes, replayable,"
        " blobs, manifests, tags, pins, pinned_bytes FROM totals WHERE id = 1",
        err));
    TRY(sql_step(&q, err));
    out->chunks = (uint64_t)sql_int(&q, 0);
    out->unique_chunk_bytes = (uint64_t)sql_int(&q, 1);
    out->frame_bytes = (uint64_t)sql_int(&q, 2);
    out->canonical_layers = (uint64_t)sql_int(&q, 3);
    out->canonical_bytes = (uint64_t)sql_int(&q, 4);
    out->original_bytes = (uint64_t)sql_int(&q, 5);
    out->replayable_layers = (uint64_t)sql_int(&q, 6);
    out->blobs = (uint64_t)sql_int(&q, 7);
    out->manifests = (uint64_t)sql_int(&q, 8);
    out->tags = (uint64_t)sql_int(&q, 9);
    out->pins = (uint64_t)sql_int(&q, 10);
    out->pinned_bytes = (uint64_t)sql_int(&q, 11);
    return 0;
}

uint64_t catalog_disk_bytes(const struct store *st)
{
    static const char *const names[] = {"catalog.db", "catalog.db-wal", "catalog.db-shm"};
    uint64_t sum = 0;

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct stat sb;

        if (fstatat(st->dir_fd, names[i], &sb, AT_SYMLINK_NOFOLLOW) == 0)
            sum += (uint64_t)sb.st_blocks * 512;
    }
    return sum;
}

int store_stats(struct store *st, struct store_stats *out, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;

    *out = (struct store_stats){.quota_bytes = st->opt.quota_bytes};
    out->bytes_on_disk = room_used(st) + dir_disk_bytes(st->spool_fd);
    room_stats(st, out);
    out->packs = packs_count(st->packs);
    out->pack_bytes = packs_disk_bytes(st->packs);
    compact_stats(st, out);
    TRY(catalog_read_begin(st, &db, err));
    return read_totals(db, out, err);
}
