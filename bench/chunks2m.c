/* SPDX-License-Identifier: Apache-2.0
 * bench/chunks2m.c - a store of very many chunks, and what it costs to have and to ask (bench/chunks2m.sh runs it):
 *
 *   chunks2m make DIRECTORY CHUNKS    makes a store of that many chunks of 64 bytes, all different, 500 to a layer
 *   chunks2m ask DIRECTORY            opens it, looks things up, evicts, collects; prints times and memory
 *
 * All of it is real, but small: frames in packs, recipes, digests. Only the rows are inserted by SQL, in large
 * transactions, since a layer_writer would sync 4000 times.
 */
#include "base/digest.h"
#include "store/catalog_internal.h"
#include "store/layer.h"
#include "store/pack_internal.h"
#include "transcode/codec.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define RAW_BYTES 64
#define LAYER_CHUNKS 500
#define LAYERS_A_TX 100
#define FRAME_MAX_BYTES 256
#define PACKS 500 /* what so many chunks of real size would fill */

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void must(int rc, const struct err *err)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "%s\n", err->msg);
    exit(1);
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

/* ---- make ---------------------------------------------------------------------------------------------------------------- */

static void chunk_of(uint64_t n, char out[RAW_BYTES + 1])
{
    (void)snprintf(out, RAW_BYTES + 1, "%-63llu\n", (unsigned long long)n);
}

struct frame {
    struct digest digest;
    struct frame_info info;
    struct pack_loc loc;
};

static int insert_chunk(struct sql_db *db, const struct frame *fr, int64_t *out_id, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q,
                  "INSERT INTO chunk (digest, raw, kind, level, encoder, pack_id, off, len, sum, refs)"
                  " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 1)",
                  err));
    sql_bind_digest(&q, 1, &fr->digest);
    sql_bind_int(&q, 2, RAW_BYTES);
    sql_bind_int(&q, 3, fr->info.kind);
    sql_bind_int(&q, 4, fr->info.level);
    sql_bind_int(&q, 5, fr->info.encoder);
    sql_bind_int(&q, 6, fr->loc.pack);
    sql_bind_int(&q, 7, (int64_t)fr->loc.off);
    sql_bind_int(&q, 8, fr->loc.len);
    sql_bind_int(&q, 9, (int64_t)fr->loc.sum);
    TRY(sql_run(&q, err));
    *out_id = sql_last_id(db);
    return 0;
}

static int insert_recipe(struct sql_db *db, int64_t layer, uint64_t off, uint64_t zoff, int64_t chunk, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, "INSERT INTO recipe (canonical_id, off, zoff, chunk_id) VALUES (?1, ?2, ?3, ?4)", err));
    sql_bind_int(&q, 1, layer);
    sql_bind_int(&q, 2, (int64_t)off);
    sql_bind_int(&q, 3, (int64_t)zoff);
    sql_bind_int(&q, 4, chunk);
    return sql_run(&q, err);
}

struct layer {
    struct digest digest, zdigest, original;
    uint64_t zsize, number;
    struct frame frames[LAYER_CHUNKS];
};

static int insert_canonical(struct sql_db *db, const struct layer *l, int64_t *out_id, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q,
                  "INSERT INTO canonical (digest, size, zdigest, zsize, level, present, chunks, created, last_read)"
                  " VALUES (?1, ?2, ?3, ?4, 3, 1, ?5, ?6, ?6)",
                  err));
    sql_bind_digest(&q, 1, &l->digest);
    sql_bind_int(&q, 2, RAW_BYTES * LAYER_CHUNKS);
    sql_bind_digest(&q, 3, &l->zdigest);
    sql_bind_int(&q, 4, (int64_t)l->zsize);
    sql_bind_int(&q, 5, LAYER_CHUNKS);
    sql_bind_int(&q, 6, (int64_t)l->number);
    TRY(sql_run(&q, err));
    *out_id = sql_last_id(db);
    return 0;
}

/* What the upstream has it as: a row without a file, in the one repository. */
static int insert_blob(struct sql_db *db, const struct layer *l, int64_t canonical, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT, link = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, "INSERT INTO blob (digest, size, verified, canon, canonical_id) VALUES (?1, 9999, 1, 1, ?2)",
                  err));
    sql_bind_digest(&q, 1, &l->original);
    sql_bind_int(&q, 2, canonical);
    TRY(sql_run(&q, err));
    TRY(sql_query(db, &link, "INSERT INTO repo_blob (repo_id, blob_id) VALUES (1, ?1)", err));
    sql_bind_int(&link, 1, sql_last_id(db));
    return sql_run(&link, err);
}

static int insert_layer(struct sql_db *db, const struct layer *l, struct err *err)
{
    int64_t id = 0, chunk = 0;
    uint64_t zoff = 0;

    TRY(insert_canonical(db, l, &id, err));
    TRY(insert_blob(db, l, id, err));
    for (int i = 0; i < LAYER_CHUNKS; i++) {
        TRY(insert_chunk(db, &l->frames[i], &chunk, err));
        TRY(insert_recipe(db, id, (uint64_t)i * RAW_BYTES, zoff, chunk, err));
        zoff += l->frames[i].loc.len;
    }
    return 0;
}

static int write_frames(struct store *st, struct frame_ctx *ctx, struct layer *l, struct err *err)
{
    CLEANUP(free_ptr) char *raw = malloc(LAYER_CHUNKS * RAW_BYTES + 1);
    CLEANUP(free_ptr) uint8_t *frames = malloc(LAYER_CHUNKS * FRAME_MAX_BYTES);

    REQUIRE(raw != NULL && frames != NULL);
    l->zsize = 0;
    for (int i = 0; i < LAYER_CHUNKS; i++) {
        char *data = raw + (size_t)i * RAW_BYTES;
        struct frame *fr = &l->frames[i];
        struct pack_meta meta = {.raw_bytes = RAW_BYTES};
        size_t len = 0;

        chunk_of(l->number * LAYER_CHUNKS + (uint64_t)i, data);
        digest_of(data, RAW_BYTES, &fr->digest);
        TRY(frame_encode(ctx, 3, data, RAW_BYTES, frames + l->zsize, FRAME_MAX_BYTES, &len, &fr->info, err));
        meta.kind = (uint16_t)fr->info.kind;
        meta.level = (int16_t)fr->info.level;
        meta.encoder = fr->info.encoder;
        TRY(pack_append(st->packs, PACK_FRAME, &fr->digest, &meta, frames + l->zsize, len, &fr->loc, err));
        l->zsize += len;
    }
    digest_of(raw, LAYER_CHUNKS * RAW_BYTES, &l->digest);
    digest_of(frames, l->zsize, &l->zdigest);
    digest_of(&l->number, sizeof(l->number), &l->original);
    return 0;
}

static int make_some(struct store *st, struct frame_ctx *ctx, struct layer *layers, uint64_t first, uint64_t count,
                     struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;

    for (uint64_t i = 0; i < count; i++) {
        layers[i].number = first + i;
        TRY(write_frames(st, ctx, &layers[i], err));
    }
    TRY(pack_sync(st->packs, err));
    TRY(catalog_begin(st, &tx, err));
    for (uint64_t i = 0; i < count; i++)
        TRY(insert_layer(tx.db, &layers[i], err));
    return catalog_commit(&tx, err);
}

/* Rows of digests go everywhere in their index. */
static int big_cache(struct store *st, struct err *err)
{
    CLEANUP(catalog_abort) struct catalog_tx tx = CATALOG_TX_INIT;

    TRY(catalog_begin(st, &tx, err));
    TRY(sql_exec(tx.db, "PRAGMA cache_size = -500000", err));
    return catalog_commit(&tx, err);
}

static int make(const char *dir, uint64_t chunks, struct err *err)
{
    struct store_options opt = {.path = dir, .quota_bytes = UINT64_C(1) << 40};
    CLEANUP(free_ptr) struct layer *layers = calloc(LAYERS_A_TX, sizeof(*layers));
    CLEANUP(frame_ctx_cleanup) struct frame_ctx *ctx = NULL;
    uint64_t count = chunks / LAYER_CHUNKS;
    struct store *st = NULL;
    int64_t repo = 0;

    REQUIRE(layers != NULL);
    TRY(frame_ctx_new(&ctx, err));
    TRY(store_open(&opt, &st, err));
    TRY(store_repo(st, "127.0.0.1:1", "many", &repo, err));
    st->packs->max_bytes = chunks * 150 / PACKS + 4096;
    TRY(big_cache(st, err));
    for (uint64_t i = 0; i < count; i += LAYERS_A_TX)
        TRY(make_some(st, ctx, layers, i, count - i < LAYERS_A_TX ? count - i : LAYERS_A_TX, err));
    store_close(st);
    return 0;
}

/* ---- ask ------------------------------------------------------------------------------------------------------------------- */

static double resident_mib(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    long total = 0, resident = 0;

    if (f != NULL && fscanf(f, "%ld %ld", &total, &resident) != 2)
        resident = 0;
    if (f != NULL)
        (void)fclose(f);
    return (double)resident * 4096 / 1048576;
}

static double file_bytes(const char *dir, const char *name)
{
    char path[512];
    struct stat sb;

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    return stat(path, &sb) == 0 ? (double)sb.st_size : 0;
}

static void row(const char *what, double value, const char *unit)
{
    printf("| %-48s | %12.2f %s |\n", what, value, unit);
    (void)fflush(stdout);
}

static void layer_digest(uint64_t number, struct digest *out)
{
    static char raw[LAYER_CHUNKS * RAW_BYTES + 1];

    for (uint64_t i = 0; i < LAYER_CHUNKS; i++)
        chunk_of(number * LAYER_CHUNKS + i, raw + i * RAW_BYTES);
    digest_of(raw, LAYER_CHUNKS * RAW_BYTES, out);
}

static int look_up_chunk(struct store *st, const struct digest *d, struct err *err)
{
    CLEANUP(catalog_read_end) struct sql_db *db = NULL;
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(catalog_read_begin(st, &db, err));
    TRY(sql_query(db, &q, "SELECT id, pack_id, off, len, sum FROM chunk WHERE digest = ?1", err));
    sql_bind_digest(&q, 1, d);
    return sql_step(&q, err) == SQL_ROW ? 0 : err_set(err, ERR_NOTFOUND, "a chunk is missing");
}

static int ask_chunks(struct store *st, uint64_t chunks, uint64_t count, struct err *err)
{
    uint64_t state = 7;
    char raw[RAW_BYTES + 1];
    double begin = now_s();
    struct digest d;

    for (uint64_t i = 0; i < count; i++) {
        chunk_of(next_random(&state) % chunks, raw);
        digest_of(raw, RAW_BYTES, &d);
        TRY(look_up_chunk(st, &d, err));
    }
    row("look-ups of chunks", (double)count / (now_s() - begin), "/s");
    return 0;
}

static int ask_blobs(struct store *st, const struct digest *layers, uint64_t layer_count, uint64_t count,
                     struct err *err)
{
    uint64_t state = 7;
    struct store_blob blob;
    double begin = now_s();

    for (uint64_t i = 0; i < count; i++)
        TRY(store_blob_lookup(st, &layers[next_random(&state) % layer_count], &blob, err));
    row("store_blob_lookup()", (double)count / (now_s() - begin), "/s");
    return 0;
}

static int ask_ranges(struct store *st, const struct digest *layers, uint64_t layer_count, uint64_t count,
                      struct err *err)
{
    uint64_t state = 9;
    double begin = now_s();
    char piece[RAW_BYTES];

    for (uint64_t i = 0; i < count; i++) {
        CLEANUP(source_cleanup) struct source *s = NULL;
        size_t n;

        TRY(layer_open(st, &layers[next_random(&state) % layer_count], LAYER_IDENTITY,
                       next_random(&state) % (RAW_BYTES * (LAYER_CHUNKS - 1)), RAW_BYTES, &s, err));
        TRY(source_read(s, piece, sizeof(piece), &n, err));
    }
    row("ranges of 64 bytes opened and read", (double)count / (now_s() - begin), "/s");
    return 0;
}

/* Makes room step by step, from over the high mark on. */
static int ask_eviction(struct store *st, struct err *err)
{
    uint64_t steps = 0;
    double longest = 0, total = 0;
    bool more = true;
    struct store_stats stats;

    st->opt.quota_bytes = room_used(st) / 97 * 100;
    for (; more && steps < 300; steps++) {
        double begin = now_s(), took;

        TRY(store_make_room(st, &more, err));
        took = now_s() - begin;
        total += took;
        if (took > longest)
            longest = took;
    }
    TRY(store_stats(st, &stats, err));
    row("eviction: layers of 500 chunks", (double)stats.evictions, "");
    row("eviction: a step, mean", 1e3 * total / (double)steps, "ms");
    row("eviction: a step, at most", 1e3 * longest, "ms");
    return 0;
}

static int ask(const char *dir, struct err *err)
{
    struct store_options opt = {.path = dir, .quota_bytes = UINT64_C(1) << 40};
    CLEANUP(free_ptr) struct digest *layers = NULL;
    struct store_stats stats;
    struct store *st = NULL;
    uint64_t layer_count;
    double begin, memory = resident_mib();

    begin = now_s();
    TRY(store_open(&opt, &st, err));
    row("store_open()", 1e3 * (now_s() - begin), "ms");
    row("memory of it", resident_mib() - memory, "MiB");
    TRY(store_stats(st, &stats, err));
    row("chunks", (double)stats.chunks, "");
    row("layers", (double)stats.canonical_layers, "");
    row("packs", (double)packs_count(st->packs), "");
    row("catalog", file_bytes(dir, "catalog.db") / (double)stats.chunks, "bytes per chunk");
    layer_count = stats.canonical_layers;
    layers = calloc(layer_count, sizeof(*layers));
    REQUIRE(layers != NULL);
    for (uint64_t i = 0; i < layer_count; i++)
        layer_digest(i, &layers[i]);
    TRY(ask_blobs(st, layers, layer_count, 100000, err));
    TRY(ask_chunks(st, stats.chunks, 100000, err));
    TRY(ask_ranges(st, layers, layer_count, 50000, err));
    row("memory after them", resident_mib() - memory, "MiB");
    TRY(ask_eviction(st, err));
    row("memory after that", resident_mib() - memory, "MiB");
    store_close(st);
    return 0;
}

int main(int argc, char **argv)
{
    struct err err = ERR_INIT;

    if (argc == 4 && strcmp(argv[1], "make") == 0) {
        must(make(argv[2], strtoull(argv[3], NULL, 10), &err), &err);
    } else if (argc == 3 && strcmp(argv[1], "ask") == 0) {
        must(ask(argv[2], &err), &err);
    } else {
        fprintf(stderr, "usage: %s make DIRECTORY CHUNKS | ask DIRECTORY\n", argv[0]);
        return 2;
    }
    return 0;
}
