/* SPDX-License-Identifier: Apache-2.0
 * bench/chunk_bench.c - how fast the chunker is, and what it saves: chunk_bench FILE...
 *
 * Each file is read into memory and cut twice, without and with cuts at the files of a tar. Prints the speed of the
 * gear hash alone, of gear hash and tar scanner, and of sha256; chunks and their mean; and what is left when equal
 * chunks of all files so far are kept once.
 */
#include "base/digest.h"
#include "store/chunker.h"
#include "store/tarscan.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* Chunks of all files: open addressing, an all-zero digest is a free place. */
struct set {
    struct digest *items;
    size_t cap, count;
};

struct run {
    const uint8_t *data;
    size_t start;
    struct set *set; /* NULL: only cut */
    uint64_t chunks, unique_bytes;
};

/* CPU time, so that a busy machine does not count. */
static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct digest *slot_of(struct set *s, const struct digest *d)
{
    size_t i = (size_t)digest_hash64(d) & (s->cap - 1);

    while (!digest_is_zero(&s->items[i]) && !digest_equal(&s->items[i], d))
        i = (i + 1) & (s->cap - 1);
    return &s->items[i];
}

static void set_grow(struct set *s)
{
    struct set bigger = {.cap = s->cap > 0 ? 2 * s->cap : 1024, .count = s->count};

    bigger.items = calloc(bigger.cap, sizeof(*bigger.items));
    REQUIRE(bigger.items != NULL);
    for (size_t i = 0; i < s->cap; i++)
        if (!digest_is_zero(&s->items[i]))
            *slot_of(&bigger, &s->items[i]) = s->items[i];
    free(s->items);
    *s = bigger;
}

static void end_chunk(struct run *r, size_t end)
{
    struct digest d;
    struct digest *slot;

    r->chunks++;
    if (r->set != NULL) {
        if (2 * r->set->count >= r->set->cap)
            set_grow(r->set);
        digest_of(r->data + r->start, end - r->start, &d);
        slot = slot_of(r->set, &d);
        if (digest_is_zero(slot)) {
            *slot = d;
            r->set->count++;
            r->unique_bytes += end - r->start;
        }
    }
    r->start = end;
}

static void cut_file(struct run *r, size_t len, bool at_files)
{
    struct chunker c;
    struct tarscan t;
    size_t pos = 0;

    chunker_init(&c);
    tarscan_init(&t);
    while (pos < len) {
        bool file_cut = false;
        size_t end = pos + (at_files ? tarscan_scan(&t, r->data + pos, len - pos, &file_cut) : len - pos);

        while (pos < end) {
            bool cut;

            pos += chunker_scan(&c, r->data + pos, end - pos, &cut);
            if (cut)
                end_chunk(r, pos);
        }
        if (file_cut && pos > r->start) {
            chunker_cut(&c);
            end_chunk(r, pos);
        }
    }
    if (pos > r->start)
        end_chunk(r, pos);
}

/* Cuts once for the time and once for the chunks. */
static void measure(const uint8_t *data, size_t len, bool at_files, struct set *set, uint64_t *kept)
{
    struct run timed = {.data = data};
    struct run counted = {.data = data, .set = set};
    double begin = now_s(), cut_s;

    cut_file(&timed, len, at_files);
    cut_s = now_s() - begin;
    cut_file(&counted, len, at_files);
    *kept += counted.unique_bytes;
    printf("  %-10s %6.0f MB/s  %7llu chunks, mean %4.0f KiB  new %7.1f MB  kept so far %7.1f MB\n",
           at_files ? "at files" : "plain", (double)len / cut_s / 1e6, (unsigned long long)counted.chunks,
           (double)len / (double)counted.chunks / 1024, (double)counted.unique_bytes / 1e6, (double)*kept / 1e6);
}

static uint8_t *read_file(const char *path, size_t *out_len)
{
    FILE *f = fopen(path, "rb");
    struct stat sb;
    uint8_t *data = NULL;

    if (f != NULL && fstat(fileno(f), &sb) == 0 && sb.st_size > 0)
        data = malloc((size_t)sb.st_size);
    if (data != NULL && fread(data, 1, (size_t)sb.st_size, f) != (size_t)sb.st_size) {
        free(data);
        data = NULL;
    }
    if (data == NULL)
        fprintf(stderr, "%s: %s\n", path, errno != 0 ? strerror(errno) : "empty");
    else
        *out_len = (size_t)sb.st_size;
    if (f != NULL)
        (void)fclose(f);
    return data;
}

int main(int argc, char **argv)
{
    struct set plain = {0}, at_files = {0};
    uint64_t plain_kept = 0, at_files_kept = 0, total = 0;

    if (argc < 2) {
        fprintf(stderr, "usage: %s FILE...\n", argv[0]);
        return 2;
    }
    for (int i = 1; i < argc; i++) {
        size_t len = 0;
        uint8_t *data = read_file(argv[i], &len);
        struct digest d;

        if (data == NULL)
            return 1;
        double begin = now_s();
        digest_of(data, len, &d);
        total += len;
        printf("%s: %.1f MB, sha256 %.0f MB/s\n", argv[i], (double)len / 1e6, (double)len / (now_s() - begin) / 1e6);
        measure(data, len, false, &plain, &plain_kept);
        measure(data, len, true, &at_files, &at_files_kept);
        free(data);
    }
    printf("all: %.1f MB, kept %.1f %% plain, %.1f %% at files\n", (double)total / 1e6,
           100.0 * (double)plain_kept / (double)total, 100.0 * (double)at_files_kept / (double)total);
    free(plain.items);
    free(at_files.items);
    return 0;
}
