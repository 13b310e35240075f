/* links: store transcode base */
/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/pack_fuzz.c - headers of packs and records, and a scan over a file that is the input. What a scan calls a record
 * lies in the file, in order, and has the sums that it says.
 *
 * The sum of the file's header is put right when the input begins with a zero byte, so that the scan behind it is reached.
 */
#include "base/fsutil.h"
#include "store/le_internal.h"
#include "store/pack_internal.h"
#include "transcode/codec.h"

#include <fcntl.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int dir_fd = -1;
static char dir[64];

static void remove_dir(void)
{
    (void)unlinkat(dir_fd, pack_name(1).s, 0);
    (void)rmdir(dir);
}

static void open_dir(void)
{
    if (dir_fd >= 0)
        return;
    (void)snprintf(dir, sizeof(dir), "/tmp/recask-packfuzz-XXXXXX");
    REQUIRE(mkdtemp(dir) != NULL);
    dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    REQUIRE(dir_fd >= 0 && atexit(remove_dir) == 0);
}

struct seen {
    uint64_t next, size;
};

static int see(void *arg, const struct pack_header *r, uint64_t off, const uint8_t *payload, struct err *err)
{
    struct seen *s = arg;

    (void)err;
    REQUIRE(off >= s->next + PACK_RECORD_HEADER_BYTES && off % 8 == 0 && off + r->len <= s->size);
    REQUIRE(sum64(payload, r->len) == r->sum);
    s->next = off + r->len;
    return 0;
}

static void scan(const uint8_t *data, size_t size)
{
    struct seen s = {.next = PACK_FILE_HEADER_BYTES, .size = size};
    struct err err = ERR_INIT;
    struct packs *ps = NULL;
    int fd = openat(dir_fd, pack_name(1).s, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    REQUIRE(fd >= 0);
    REQUIRE(fs_pwrite_all(fd, data, size, 0, "pack", &err) == 0);
    (void)close(fd);
    REQUIRE(packs_open(dir_fd, 1 << 20, &ps, &err) == 0);
    if (pack_scan(ps, 1, see, &s, &err) < 0)
        REQUIRE(err.msg[0] != '\0');
    packs_close(ps);
}

/* Records whose header's sum is put right where the input has the magic: payloads and lengths stay its own. */
static void fix_sums(uint8_t *p, size_t size)
{
    uint64_t seed = le_get64(p + 24);
    struct pack_header r;

    le_put64(p + 56, sum64(p, 56));
    for (size_t off = PACK_FILE_HEADER_BYTES; off + PACK_RECORD_HEADER_BYTES <= size; off += 8) {
        uint8_t *h = p + off;

        if (memcmp(h, PACK_RECORD_MAGIC, 4) != 0)
            continue;
        r = (struct pack_header){
            .type = (enum pack_record)le_get16(h + 4), .len = le_get32(h + 8), .sum = le_get64(h + 56)};
        memcpy(r.key.b, h + 24, DIGEST_BYTES);
        if (r.len <= size - off - PACK_RECORD_HEADER_BYTES)
            r.sum = sum64(h + PACK_RECORD_HEADER_BYTES, r.len);
        pack_record_encode(&r, seed, off, h);
        REQUIRE(pack_record_decode(h, seed, off, &r));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size + 1);
    struct err err = ERR_INIT;
    uint64_t seed;

    REQUIRE(copy != NULL);
    memcpy(copy, data, size);
    if (size >= PACK_FILE_HEADER_BYTES) {
        (void)!pack_file_decode(copy, 1, &seed, &err);
        if (copy[0] == 0) {
            memcpy(copy, PACK_MAGIC, 8);
            fix_sums(copy, size);
        }
    }
    open_dir();
    scan(copy, size);
    free(copy);
    return 0;
}
