/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_model_crash.h - what happens to a store from outside: it is closed, its process dies, its disk loses or
 * changes bytes.
 */
#pragma once

#include "tests/unit/store_model_pins.h"

/* ---- damage ------------------------------------------------------------------------------------------------------------- */

static inline void flip_byte(struct model *m, const char *path, int64_t off)
{
    CLEANUP(fd_cleanup) int fd = open(path, O_RDWR | O_CLOEXEC);
    uint8_t byte;

    HOLD(m, fd >= 0, "%s cannot be opened", path);
    HOLD(m, pread(fd, &byte, 1, off) == 1, "%s has no byte at %lld", path, (long long)off);
    byte ^= 4;
    HOLD(m, pwrite(fd, &byte, 1, off) == 1, "%s cannot be written", path);
}

static inline bool pick_frame(struct model *m, struct pack_loc *out)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct err err = ERR_INIT;
    int rc;

    DO(m, sql_query(m->db, &q,
                    "SELECT pack_id, off, len FROM chunk WHERE pack_id NOT NULL AND id >= ?1"
                    " * (SELECT max(id) FROM chunk) / 1000 ORDER BY id LIMIT 1",
                    &err));
    sql_bind_int(&q, 1, (int64_t)pick(m, 1000));
    DO(m, rc = sql_step(&q, &err));
    if (rc == SQL_END)
        return false;
    *out = (struct pack_loc){.pack = sql_int(&q, 0), .off = (uint64_t)sql_int(&q, 1), .len = (uint32_t)sql_int(&q, 2)};
    return !is_bad(m, out->pack, (int64_t)out->off);
}

static inline void now_bad(struct model *m, int64_t pack, int64_t off)
{
    if (m->bad_count == BAD_MAX) /* long healed, or punched */
        m->bad_count = 0;
    m->bad[m->bad_count++] = (struct bad){.pack = pack, .off = off};
    m->damages++;
    warn_readers(m);
    disturb(m);
}

static inline void break_frame(struct model *m)
{
    struct pack_loc loc;
    char path[192];

    if (!pick_frame(m, &loc))
        return;
    note(m, "break a frame in pack %lld at %llu", (long long)loc.pack, (unsigned long long)loc.off);
    (void)snprintf(path, sizeof(path), "%s/packs/%s", m->f->dir, pack_name(loc.pack).s);
    flip_byte(m, path, (int64_t)loc.off + (int64_t)pick(m, loc.len));
    now_bad(m, loc.pack, (int64_t)loc.off);
}

static inline void original_path(const struct model *m, const struct original *o, char *out, size_t cap)
{
    struct digest_text hex = digest_hex(&o->t.digest);

    (void)snprintf(out, cap, "%s/originals/%.2s/%s", m->f->dir, hex.s, hex.s);
}

static inline void break_original(struct model *m)
{
    struct original *o = &m->originals[pick(m, ORIGINALS)];
    char path[256];
    struct stat sb;

    if (!o->t.present || o->wound != WHOLE || o->t.len == 0)
        return;
    note(m, "break original %d", original_no(m, o));
    original_path(m, o, path, sizeof(path));
    if (pick(m, 3) != 0) {
        flip_byte(m, path, (int64_t)pick(m, o->t.len));
        o->wound = BROKEN;
        readers_may_fail(m, &o->t);
    } else {
        HOLD(m, lstat(path, &sb) == 0 && unlink(path) == 0, "%s is not there", path);
        m->inflated_bytes += (uint64_t)sb.st_blocks * 512;
        o->wound = MISSING;
    }
    m->damages++;
}

static inline void op_damage(struct model *m)
{
    if (pick(m, 2) == 0)
        break_frame(m);
    else
        break_original(m);
}

/* ---- closing and opening ------------------------------------------------------------------------------------------------ */

/* Ends all that would outlive the store. */
static inline void let_go(struct model *m)
{
    for (int i = 0; i < READERS; i++)
        if (m->readers[i].s != NULL)
            close_reader(&m->readers[i]);
    for (int i = 0; i < WRITERS; i++)
        layer_writer_abort(steal(&m->writers[i].w));
    spool_unref(steal(&m->spool));
    store_gc_free(steal(&m->gc));
    sql_close(m->db);
    m->db = NULL;
}

static inline void open_again(struct model *m)
{
    static const enum store_originals policies[] = {ORIGINALS_AUTO, ORIGINALS_AUTO, ORIGINALS_KEEP, ORIGINALS_DROP};
    struct err err = ERR_INIT;
    char path[128];

    m->f->opt.originals = policies[pick(m, ARRAY_LEN(policies))];
    m->f->opt.zstd_level = (int)pick(m, 3) + 1;
    m->f->opt.quota_bytes = WIDE_BYTES;
    DO(m, store_open(&m->f->opt, &m->f->st, &err));
    m->f->st->opt.quota_bytes = m->quota_bytes;
    m->f->st->packs->max_bytes = PACK_BYTES;
    m->inflated_bytes = 0;
    (void)snprintf(path, sizeof(path), "%s/catalog.db", m->f->dir);
    DO(m, sql_open(path, SQL_READ_ONLY, &m->db, &err));
}

/* A crash forgets reads of the last minute; a clean end does not. */
static inline void check_last_reads(struct model *m, bool clean)
{
    for (int i = 0; i < CONTENTS + ORIGINALS; i++) {
        bool layer = i < CONTENTS;
        struct thing *t = layer ? &m->contents[i].t : &m->originals[i - CONTENTS].t;
        struct seen s = layer ? see_content(m, &m->contents[i]) : see_original(m, &m->originals[i - CONTENTS]);

        if (!t->present)
            continue;
        HOLD(m, s.last_read <= t->hi && (!clean || s.last_read >= t->lo),
             "%s %d was last read at %lld, not from %lld to %lld", layer ? "layer" : "original",
             layer ? i : i - CONTENTS, (long long)s.last_read, (long long)t->lo, (long long)t->hi);
        t->lo = t->hi = s.last_read;
    }
}

static inline void lose_pack(struct model *m)
{
    int64_t pack = number(m, "SELECT coalesce(min(pack_id), 0) FROM chunk");
    char path[192];

    if (pack == 0)
        return;
    note(m, " without pack %lld", (long long)pack);
    (void)snprintf(path, sizeof(path), "%s/packs/%s", m->f->dir, pack_name(pack).s);
    if (unlink(path) == 0)
        now_bad(m, pack, -1);
}

static inline void op_reopen(struct model *m)
{
    note(m, "close and open");
    if (pick(m, 6) == 0)
        lose_pack(m);
    let_go(m);
    store_close(steal(&m->f->st));
    open_again(m);
    check_last_reads(m, true);
}

/* ---- a crash: the directory as it is at that moment ------------------------------------------------------------------------ */

static inline void copy_file(struct model *m, const char *from, const char *to)
{
    CLEANUP(fd_cleanup) int in = open(from, O_RDONLY | O_CLOEXEC);
    CLEANUP(fd_cleanup) int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    static uint8_t block[4096];
    static const uint8_t zeroes[4096];
    off_t off = 0;
    ssize_t n;

    HOLD(m, in >= 0 && out >= 0, "%s cannot be copied", from);
    while ((n = read(in, block, sizeof(block))) > 0) {
        if (memcmp(block, zeroes, (size_t)n) != 0)
            HOLD(m, pwrite(out, block, (size_t)n, off) == n, "%s cannot be written", to);
        off += n;
    }
    HOLD(m, n == 0 && ftruncate(out, off) == 0, "%s cannot be copied", from);
}

static inline void copy_tree(struct model *m, const char *from, const char *to)
{
    char a[300], b[300];
    struct dirent *e;
    struct stat sb;
    DIR *d = opendir(from);

    HOLD(m, d != NULL && mkdir(to, 0700) == 0, "%s cannot be copied", from);
    while ((e = readdir(d)) != NULL) {
        if (e->d_name[0] == '.' || strcmp(e->d_name, "catalog.db-shm") == 0)
            continue;
        (void)snprintf(a, sizeof(a), "%.150s/%.100s", from, e->d_name);
        (void)snprintf(b, sizeof(b), "%.150s/%.100s", to, e->d_name);
        HOLD(m, lstat(a, &sb) == 0, "%s went", a);
        if (S_ISDIR(sb.st_mode))
            copy_tree(m, a, b);
        else
            copy_file(m, a, b);
    }
    (void)closedir(d);
}

/* What a dying process can have left, and nobody refers to. */
static inline void litter(struct model *m, const char *dir)
{
    static const char *const names[] = {
        "spool/99.part", "packs/00000000ffffffff.pack", "originals/ab",
        "originals/ab/ab00000000000000000000000000000000000000000000000000000000000000"};
    char path[300];
    int fd;

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        if (i == 2) {
            (void)mkdir(path, 0700);
            continue;
        }
        fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        HOLD(m, fd >= 0 && write(fd, names, 10) == 10, "%s cannot be written", path);
        (void)close(fd);
    }
}

static inline void op_crash(struct model *m)
{
    char copy[80];

    note(m, "crash");
    (void)snprintf(copy, sizeof(copy), "%.60s-copy", m->f->dir);
    copy_tree(m, m->f->dir, copy);
    if (pick(m, 2) == 0)
        litter(m, copy);
    let_go(m);
    store_close(steal(&m->f->st));
    HOLD(m, nftw(m->f->dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS) == 0 && rename(copy, m->f->dir) == 0,
         "the copy cannot take the place of %s", m->f->dir);
    open_again(m);
    check_last_reads(m, false);
    m->crashes++;
}
