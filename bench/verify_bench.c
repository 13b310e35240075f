/* SPDX-License-Identifier: Apache-2.0
 * bench/verify_bench.c - what checking costs: verify_bench [MIB [DIRECTORY]]
 *
 * Stores one layer of MIB (256) MiB of half-compressible files, then reads it warm, in the zstd form and decoded, through
 * layer_open() as a client's request does, and the original's file; each of these checks the XXH3 of every byte. Beside
 * that, the same frames and blocks are read with pread() alone (and decoded), and summed with XXH3 alone: the difference is
 * what the check costs. At ingest it is sha256 over what comes, twice (blob and layer), and XXH3 over what is stored.
 */
#include "base/digest.h"
#include "store/layer.h"
#include "store/spool.h"
#include "transcode/codec.h"

#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define ROUNDS 5
#define PIECE (2 * MIB)

/* CPU time, so that a busy machine does not count. */
static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
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

/* Hexadecimal numbers: zstd makes a little more than half of them. */
static void fill(uint8_t *out, size_t len)
{
    static const char digits[] = "0123456789abcdef";
    uint64_t state = 1;

    for (size_t i = 0; i < len; i += 16) {
        uint64_t v = next_random(&state);

        for (size_t k = 0; k < 16 && i + k < len; k++, v >>= 4)
            out[i + k] = (uint8_t)digits[v & 15];
    }
}

/* ---- each thing that is measured: one pass ---------------------------------------------------------------------------- */

struct run {
    struct store *st;
    struct layer_result layer;
    struct digest original;
    uint8_t *data; /* the layer's bytes, in memory */
    size_t len;
    uint8_t *piece; /* PIECE bytes */
    int plain_fd;   /* a file of the same bytes */
    uint64_t sink;
};

static void drain(struct run *r, struct source *s)
{
    struct err err = ERR_INIT;
    size_t n;
    int rc;

    while ((rc = source_read(s, r->piece, PIECE, &n, &err)) == STEP_MORE)
        r->sink += r->piece[n - 1];
    must(rc, &err);
    source_free(s);
}

static void read_zstd(struct run *r)
{
    struct source *s = NULL;
    struct err err = ERR_INIT;

    must(layer_open(r->st, &r->layer.canonical, LAYER_ZSTD, 0, UINT64_MAX, &s, &err), &err);
    drain(r, s);
}

static void read_identity(struct run *r)
{
    struct source *s = NULL;
    struct err err = ERR_INIT;

    must(layer_open(r->st, &r->layer.canonical, LAYER_IDENTITY, 0, UINT64_MAX, &s, &err), &err);
    drain(r, s);
}

static void read_original(struct run *r)
{
    struct source *s = NULL;
    struct err err = ERR_INIT;

    must(original_open_quietly(r->st, &r->original, &s, &err), &err);
    drain(r, s);
}

static void read_plain(struct run *r)
{
    off_t off = 0;
    ssize_t n;

    while ((n = pread(r->plain_fd, r->piece, PIECE, off)) > 0) {
        r->sink += r->piece[n - 1];
        off += n;
    }
}

/* In pieces that are no longer in the nearest cache than what a reader has just read is. */
static void sum_xxh3(struct run *r)
{
    size_t step = 64 * 1024;

    for (size_t pos = 0; pos < r->len; pos += step)
        r->sink += sum64(r->data + pos, r->len - pos < step ? r->len - pos : step);
}

static void sum_sha256(struct run *r)
{
    struct digest d;

    digest_of(r->data, r->len, &d);
    r->sink += d.b[0];
}

static void ingest_spool(struct run *r)
{
    CLEANUP(spool_cleanup) struct spool *sp = NULL;
    struct err err = ERR_INIT;

    must(spool_open(r->st, &sp, &err), &err);
    for (size_t pos = 0; pos < r->len; pos += 256 * 1024)
        must(spool_write(sp, r->data + pos, r->len - pos < 256 * 1024 ? r->len - pos : 256 * 1024, &err), &err);
    must(spool_commit(sp, &r->original, 0, &err), &err);
}

static void ingest_layer(struct run *r)
{
    CLEANUP(layer_writer_cleanup) struct layer_writer *w = NULL;
    struct err err = ERR_INIT;

    (void)!store_evict(r->st, &r->layer.canonical, &err);
    err_clear(&err);
    must(layer_writer_open(r->st, &r->original, &w, &err), &err);
    for (size_t pos = 0; pos < r->len; pos += 256 * 1024)
        must(layer_writer_put(w, r->data + pos, r->len - pos < 256 * 1024 ? r->len - pos : 256 * 1024, &err), &err);
    must(layer_writer_commit(w, &r->layer, &err), &err);
}

/* Seconds of CPU time, the best of the rounds. */
static double best(void (*fn)(struct run *r), struct run *r, int rounds)
{
    double least = 1e9;

    for (int i = 0; i < rounds; i++) {
        double begin = now_s(), took;

        fn(r);
        took = now_s() - begin;
        if (took < least)
            least = took;
    }
    return least;
}

/* ---- the table ---------------------------------------------------------------------------------------------------------- */

static void line(const char *what, double bytes, double seconds, double check_s)
{
    printf("| %-34s | %6.2f |", what, bytes / seconds / 1e9);
    if (check_s > 0)
        printf(" %6.2f | %4.1f %% |\n", bytes / (seconds - check_s) / 1e9, 100 * check_s / seconds);
    else
        printf("        |        |\n");
}

static void measure(struct run *r)
{
    double len = (double)r->len;
    double xxh3 = best(sum_xxh3, r, ROUNDS) / len; /* seconds for a byte */
    double sha = best(sum_sha256, r, ROUNDS) / len;
    double frames;
    double spool = best(ingest_spool, r, 2);
    double original = best(read_original, r, ROUNDS);
    double layer = best(ingest_layer, r, 2); /* drops the original: it is its own canonical form */

    frames = (double)r->layer.zstd_bytes;
    printf("| %-34s | GB/s   | GB/s without the check | of the time |\n|---|---|---|---|\n", "CPU time");
    line("XXH3 alone", len, xxh3 * len, 0);
    line("sha256 alone", len, sha * len, 0);
    line("pread() alone", len, best(read_plain, r, ROUNDS), 0);
    line("read: original", len, original, xxh3 * len);
    line("read: zstd form (of its bytes)", frames, best(read_zstd, r, ROUNDS), xxh3 * frames);
    line("read: identity (of its bytes)", len, best(read_identity, r, ROUNDS), xxh3 * frames);
    line("ingest: spool, sha256", len, spool, sha * len);
    line("ingest: spool, XXH3", len, spool, xxh3 * len);
    line("ingest: layer, sha256 (three)", len, layer, sha * (2 * len + frames));
    line("ingest: layer, XXH3", len, layer, xxh3 * frames);
    printf("\nlayer %.0f MiB in %" PRIu64 " chunks, zstd form %.0f MiB\n", len / 1048576, r->layer.chunks,
           frames / 1048576);
}

static int remove_entry(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    (void)sb, (void)type, (void)ftw;
    return remove(path);
}

static void run_in(const char *dir, size_t len)
{
    struct store_options opt = {.path = dir, .originals = ORIGINALS_KEEP};
    struct run r = {.len = len, .data = malloc(len), .piece = malloc(PIECE)};
    char path[512];
    struct err err = ERR_INIT;

    REQUIRE(r.data != NULL && r.piece != NULL);
    fill(r.data, len);
    r.data[0] = 0; /* no text: one stream that is no tar */
    digest_of(r.data, len, &r.original);
    must(store_open(&opt, &r.st, &err), &err);
    (void)snprintf(path, sizeof(path), "%s/plain", dir);
    r.plain_fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    REQUIRE(r.plain_fd >= 0);
    for (size_t pos = 0; pos < len; pos += MIB)
        REQUIRE(write(r.plain_fd, r.data + pos, MIB) == (ssize_t)MIB);
    measure(&r);
    (void)close(r.plain_fd);
    store_close(r.st);
    free(r.data);
    free(r.piece);
}

int main(int argc, char **argv)
{
    size_t mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 256;
    char dir[256];

    if (mib == 0 || mib > 65536 || argc > 3) {
        fprintf(stderr, "usage: %s [MIB [DIRECTORY]]\n", argv[0]);
        return 2;
    }
    (void)snprintf(dir, sizeof(dir), "%s/recask-verify-XXXXXX", argc > 2 ? argv[2] : "/tmp");
    REQUIRE(mkdtemp(dir) != NULL);
    run_in(dir, mib * MIB);
    (void)nftw(dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return 0;
}
