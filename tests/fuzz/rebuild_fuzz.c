/* links: store transcode base */
/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/rebuild_fuzz.c - a store whose one pack is made of the input: a rebuild ends well or with an error, and a check
 * finds nothing wrong with what it made.
 *
 * The input is a row of records: type (1 byte), key (1: which of 16 names), frames' fields (1), length (2, little-endian),
 * payload. Sums are made here, and a payload's version too when the key byte's high bit is set, so that what is
 * behind them is reached. With the next bit the key is the payload's own digest, and a frame is made of it; a manifest that
 * can be parsed has its body's. An original is made of the first bytes.
 */
#include "base/fsutil.h"
#include "store/le_internal.h"
#include "store/pack_internal.h"
#include "store/rebuild.h"
#include "store/record_internal.h"
#include "transcode/codec.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HEAD_BYTES 5
#define UPSTREAM_AT 16 /* in a MANIFEST */
#define RECORDS_MAX 64

static struct frame_ctx *ctx;
static char dir[64];

static int remove_entry(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    (void)sb, (void)type, (void)ftw;
    return remove(path);
}

static void remove_dir(void)
{
    (void)nftw(dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static void make_dirs(void)
{
    static const char *const names[] = {"packs", "originals", "originals/00"};
    char path[128];

    if (dir[0] == '\0') {
        struct err err = ERR_INIT;
        const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";

        (void)snprintf(dir, sizeof(dir), "%s/recask-rebuildfuzz-%ld", base, (long)getpid());
        REQUIRE(atexit(remove_dir) == 0);
        REQUIRE(frame_ctx_new(&ctx, &err) == 0);
    }
    remove_dir();
    REQUIRE(mkdir(dir, 0700) == 0);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        REQUIRE(mkdir(path, 0700) == 0);
    }
}

struct writer {
    struct packs *ps;
    uint8_t *payload;
};

static void append(struct writer *w, const uint8_t *head, const uint8_t *data, size_t len)
{
    struct pack_meta meta = {.raw_bytes = 0};
    enum pack_record type = (enum pack_record)(head[0] % 12);
    struct err err = ERR_INIT;
    struct record_manifest m;
    struct pack_loc loc;
    struct digest key;
    size_t out_len = len;

    memcpy(w->payload, data, len);
    if ((head[1] & 0x80) != 0 && len >= 8 && type != PACK_FRAME) {
        le_put32(w->payload, 1);
        if (type != PACK_RECIPE)
            le_put32(w->payload + 4, le_get32(w->payload + 4) & 1);
    }
    digest_of(head + 1, 1, &key);
    if (type == PACK_MANIFEST && record_get_manifest(w->payload, len, &m, &err) == 0) {
        digest_of(m.body, m.len, &key);
        if (m.view == 0)
            memcpy(w->payload + UPSTREAM_AT, key.b, DIGEST_BYTES);
    }
    if ((head[1] & 0x40) != 0 && type != PACK_MANIFEST)
        digest_of(w->payload, len, &key);
    if (type == PACK_FRAME) {
        struct frame_info info = {.kind = FRAME_ZSTD};

        meta = (struct pack_meta){.raw_bytes = head[2] * 16u, .kind = FRAME_ZSTD, .level = 3, .encoder = 1};
        if ((head[1] & 0x40) != 0) {
            REQUIRE(frame_encode(ctx, 1 + head[2] % 9, data, len, w->payload, frame_bound(65536), &out_len, &info,
                                 &err) == 0);
            digest_of(data, len, &key);
            meta = (struct pack_meta){.raw_bytes = (uint32_t)len, .kind = (uint16_t)info.kind, .level = 3};
        }
    } else if ((head[2] & 1) != 0) {
        meta = (struct pack_meta){.origin_pack = head[2] >> 4, .origin_off = (head[2] & 15) * 64u};
    }
    REQUIRE(pack_append(w->ps, type, &key, &meta, w->payload, out_len, &loc, &err) == 0);
}

static void make_pack(const uint8_t *data, size_t size)
{
    struct writer w = {.payload = malloc(frame_bound(65536))};
    struct err err = ERR_INIT;
    char path[128];
    int fd;

    (void)snprintf(path, sizeof(path), "%s/packs", dir);
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    REQUIRE(w.payload != NULL && fd >= 0 && packs_open(fd, 1 << 20, &w.ps, &err) == 0);
    for (int i = 0; i < RECORDS_MAX && size >= HEAD_BYTES; i++) {
        size_t len = le_get16(data + 3);

        if (len > size - HEAD_BYTES)
            len = size - HEAD_BYTES;
        append(&w, data, data + HEAD_BYTES, len);
        data += HEAD_BYTES + len;
        size -= HEAD_BYTES + len;
    }
    packs_close(w.ps);
    (void)close(fd);
    free(w.payload);
}

static void make_original(const uint8_t *data, size_t size)
{
    char path[256];
    struct digest d;
    FILE *f;

    digest_of(data, size, &d);
    d.b[0] = 0; /* hardly ever the right one */
    (void)snprintf(path, sizeof(path), "%s/originals/00/%s", dir, digest_hex(&d).s);
    f = fopen(path, "wb");
    REQUIRE(f != NULL && fwrite(data, 1, size, f) == size && fclose(f) == 0);
}

static void complain(void *arg, const struct store_report *r)
{
    (void)arg;
    if (r->text != NULL)
        fprintf(stderr, "%s\n", r->text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct store_rebuild_result r;
    struct store_check_result c;
    struct err err = ERR_INIT;

    make_dirs();
    make_pack(data, size);
    make_original(data, size < 16 ? size : 16);
    if (store_rebuild(dir, NULL, NULL, &r, &err) < 0) {
        REQUIRE(err.code == ERR_UNSUPPORTED && err.msg[0] != '\0');
        return 0;
    }
    REQUIRE(store_check_bytes(dir, complain, NULL, &c, &err) == 0);
    REQUIRE(c.findings == 0);
    return 0;
}
