/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_model_check.h - holds the store against the model: what is there, what was evicted and whether it was
 * its turn, numbers and files.
 */
#pragma once

#include "tests/unit/store_model.h"

#include <dirent.h>

/* ---- damage ------------------------------------------------------------------------------------------------------------- */

static inline bool is_bad(const struct model *m, int64_t pack, int64_t off)
{
    for (size_t i = 0; i < m->bad_count; i++)
        if (m->bad[i].pack == pack && (m->bad[i].off == off || m->bad[i].off < 0))
            return true;
    return pack == 0; /* NULL: lost */
}

/* Whether some chunk of the layer's recipe lies where damage was done, or is known to be lost. */
static inline bool layer_damaged(struct model *m, const struct content *c)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct err err = ERR_INIT;
    bool bad = false;
    int rc;

    DO(m, sql_query(m->db, &q,
                    "SELECT k.pack_id, k.off FROM canonical c JOIN recipe r ON r.canonical_id = c.id"
                    " JOIN chunk k ON k.id = r.chunk_id WHERE c.digest = ?1",
                    &err));
    sql_bind_digest(&q, 1, &c->t.digest);
    while ((rc = sql_step(&q, &err)) == SQL_ROW && !bad)
        bad = is_bad(m, sql_int(&q, 0), sql_int(&q, 1));
    DO(m, rc);
    return bad;
}

/* Open readers of what is damaged now may fail from now on. */
static inline void warn_readers(struct model *m)
{
    for (int i = 0; i < READERS; i++) {
        struct reader *r = &m->readers[i];
        struct content *c = r->s != NULL ? content_by(m, &r->t->digest) : NULL;

        if (c != NULL && &c->t == r->t && layer_damaged(m, c))
            r->may_fail = true;
    }
}

static inline void disturb(struct model *m)
{
    for (int i = 0; i < WRITERS; i++)
        m->writers[i].disturbed = true;
}

/* ---- presence ------------------------------------------------------------------------------------------------------------- */

struct seen {
    bool known, present;
    int64_t last_read, created;
    struct digest zdigest;
};

static inline struct seen see(struct model *m, const char *sql, const struct digest *d)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct err err = ERR_INIT;
    struct seen s = {.known = false};
    int rc;

    DO(m, sql_query(m->db, &q, sql, &err));
    sql_bind_digest(&q, 1, d);
    DO(m, rc = sql_step(&q, &err));
    if (rc == SQL_END)
        return s;
    s = (struct seen){
        .known = true, .present = sql_int(&q, 0) != 0, .last_read = sql_int(&q, 1), .created = sql_int(&q, 2)};
    if (!sql_is_null(&q, 3))
        DO(m, sql_digest(&q, 3, &s.zdigest, &err));
    return s;
}

static inline struct seen see_original(struct model *m, const struct original *o)
{
    return see(m, "SELECT original_present, last_read, created, NULL FROM blob WHERE digest = ?1", &o->t.digest);
}

static inline struct seen see_content(struct model *m, const struct content *c)
{
    return see(m, "SELECT present, last_read, created, zdigest FROM canonical WHERE digest = ?1", &c->t.digest);
}

/* ---- pins --------------------------------------------------------------------------------------------------------------- */

static inline bool pinned_by_digest(const struct manifest *mf)
{
    bool pinned = false;

    for (int i = 0; i < REPOS; i++)
        pinned |= mf->pinned_in[i];
    return pinned;
}

static inline bool manifest_pinned(const struct model *m, const struct manifest *mf)
{
    for (int i = 0; i < REPOS; i++)
        for (int k = 0; k < TAGS; k++)
            if (m->pins[i][k] == mf)
                return true;
    return pinned_by_digest(mf);
}

/* 0 not pinned, 1 its layer will do, 2 these bytes are needed. */
static inline int pin_level(const struct model *m, const struct digest *d)
{
    int level = 0;

    for (int i = 0; i < MANIFESTS; i++) {
        const struct manifest *mf = &m->manifests[i];

        for (int k = 0; mf->known && manifest_pinned(m, mf) && k < (int)ARRAY_LEN(mf->refs); k++) {
            int here = pinned_by_digest(mf) || !mf->ready ? 2 : 1;

            if (digest_equal(&mf->refs[k].digest, d) && here > level)
                level = here;
        }
    }
    return level;
}

static inline bool layer_pinned(const struct model *m, const struct content *c)
{
    if (pin_level(m, &c->t.digest) > 0 || (c->frames != NULL && pin_level(m, &c->zdigest) > 0))
        return true;
    for (int i = 0; i < ORIGINALS; i++)
        if (m->originals[i].content == c && m->originals[i].canon == CANON_DONE &&
            pin_level(m, &m->originals[i].t.digest) > 0)
            return true;
    return false;
}

/* Whether pins let the original go: one whose layer is there and will do, or is the same bytes, may. */
static inline bool pins_hold(const struct model *m, const struct original *o)
{
    int level = pin_level(m, &o->t.digest);
    const struct content *c = o->canon == CANON_DONE && o->content->t.present ? o->content : NULL;

    return level > 0 && !(c != NULL && (level < 2 || digest_equal(&c->t.digest, &o->t.digest)));
}

/* What may go by its turn. */
static inline bool layer_evictable(const struct model *m, const struct content *c)
{
    return c->t.present && c->t.leases == 0 && !layer_pinned(m, c);
}

static inline bool original_evictable(const struct model *m, const struct original *o)
{
    return o->t.present && o->t.leases == 0 && pin_level(m, &o->t.digest) == 0;
}

/* ---- turns -------------------------------------------------------------------------------------------------------------- */

struct gone {
    size_t count;
    struct {
        struct thing *t;
        bool layer, maybe_spare;
    } rows[ORIGINALS + CONTENTS];
};

/* Layers and large originals go by their last read, small ones after them, and none that is leased. */
static inline void check_turn(struct model *m, const struct gone *g, size_t i, const struct thing *stays, bool layer)
{
    const struct thing *t = g->rows[i].t;
    bool small = !g->rows[i].layer && t->len < SMALL_BYTES;

    if (g->rows[i].maybe_spare || (!layer && stays->len < SMALL_BYTES && !small))
        return;
    if (!layer && stays->len < SMALL_BYTES) {
        HOLD(m, stays->hi >= t->lo, "a small original went that was read after one that stays");
        return;
    }
    HOLD(m, !small, "a small original went before all others");
    HOLD(m, stays->hi >= t->lo, "%s was evicted, read at %lld or later, and %s stays, read at %lld at the latest",
         digest_text(&t->digest).s, (long long)t->lo, digest_text(&stays->digest).s, (long long)stays->hi);
}

static inline bool is_spare(struct model *m, const struct original *o)
{
    struct seen blob, layer;

    if (!o->t.present || o->canon != CANON_DONE || o->content == m->fresh || pin_level(m, &o->t.digest) == 2 ||
        m->f->st->opt.originals == ORIGINALS_KEEP)
        return false;
    blob = see_original(m, o);
    layer = see_content(m, o->content);
    return layer.present && blob.last_read < (layer.created + 1) * 1000;
}

static inline void check_turns(struct model *m, const struct gone *g)
{
    for (size_t i = 0; i < g->count; i++) {
        for (int k = 0; k < CONTENTS; k++)
            if (layer_evictable(m, &m->contents[k]))
                check_turn(m, g, i, &m->contents[k].t, true);
        for (int k = 0; k < ORIGINALS; k++) {
            struct original *o = &m->originals[k];

            if (original_evictable(m, o))
                check_turn(m, g, i, &o->t, false);
            HOLD(m, g->rows[i].maybe_spare || o->t.leases > 0 || !is_spare(m, o),
                 "%s was evicted before the spare original %d", digest_text(&g->rows[i].t->digest).s, k);
        }
    }
}

static inline void notice(struct model *m, struct gone *g, struct thing *t, const struct seen *s, bool layer,
                          bool maybe_spare)
{
    HOLD(m, s->known == t->known, "%s: the catalog %s it", digest_text(&t->digest).s, s->known ? "knows" : "lacks");
    if (s->present == t->present)
        return;
    HOLD(m, !s->present, "%s is there", digest_text(&t->digest).s);
    HOLD(m, g != NULL, "%s is gone", digest_text(&t->digest).s);
    HOLD(m, t->leases == 0, "%s went while it was read", digest_text(&t->digest).s);
    t->present = false;
    g->rows[g->count].t = t;
    g->rows[g->count].layer = layer;
    g->rows[g->count++].maybe_spare = maybe_spare;
}

/* The catalog says what the model does; where room was made (may_evict) what is gone was allowed to go. */
static inline void sync_presence(struct model *m, bool may_evict)
{
    struct gone g = {.count = 0};
    bool had[CONTENTS];

    for (int i = 0; i < CONTENTS; i++) {
        struct seen s = see_content(m, &m->contents[i]);

        had[i] = m->contents[i].t.present;
        notice(m, may_evict ? &g : NULL, &m->contents[i].t, &s, true, false);
        HOLD(m, !had[i] || m->contents[i].t.present || !layer_pinned(m, &m->contents[i]), "pinned layer %d went", i);
    }
    m->evicted_layers += g.count;
    for (int i = 0; i < ORIGINALS; i++) {
        struct original *o = &m->originals[i];
        struct seen s = see_original(m, o);
        size_t before = g.count;

        notice(m, may_evict ? &g : NULL, &o->t, &s, false, o->content != NULL && had[content_no(m, o->content)]);
        if (g.count == before)
            continue;
        o->wound = WHOLE;
        HOLD(m, pin_level(m, &o->t.digest) < (o->content != NULL && had[content_no(m, o->content)] ? 2 : 1),
             "pinned original %d went", i);
        m->evicted_originals += g.count - before;
    }
    if (g.count == 0)
        return;
    note(m, " [%zu evicted]", g.count);
    check_turns(m, &g);
    disturb(m);
}

/* ERR_NOSPC is right only when nothing could go, or nothing would have helped. */
static inline void check_no_room(struct model *m, uint64_t bytes)
{
    uint64_t fixed = catalog_disk_bytes(m->f->st) + m->f->st->room.reserved + m->inflated_bytes;

    m->no_room++;
    note(m, " [no room]");
    sync_presence(m, true);
    if (bytes > room_limit(m->f->st) || fixed > room_limit(m->f->st) - bytes)
        return;
    for (int i = 0; i < CONTENTS; i++)
        HOLD(m, !layer_evictable(m, &m->contents[i]), "no room, though layer %d could go", i);
    for (int i = 0; i < ORIGINALS; i++)
        HOLD(m, !original_evictable(m, &m->originals[i]), "no room, though original %d could go", i);
}

/* ---- numbers and files ------------------------------------------------------------------------------------------------------ */

static inline int64_t number(struct model *m, const char *sql)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct err err = ERR_INIT;

    DO(m, sql_query(m->db, &q, sql, &err));
    HOLD(m, sql_step(&q, &err) == SQL_ROW, "%s: %s", sql, err.msg);
    return sql_int(&q, 0);
}

#define EXPECT_NUMBER(m, sql, want)                                                                                    \
    do {                                                                                                               \
        int64_t got_ = number(m, sql);                                                                                 \
        HOLD(m, got_ == (int64_t)(want), "%s gives %lld, not %lld", sql, (long long)got_, (long long)(want));          \
    } while (0)

static inline void check_rows(struct model *m, bool opened_just_now)
{
    EXPECT_NUMBER(
        m, "SELECT count(*) FROM chunk c WHERE refs != (SELECT count(*) FROM recipe r WHERE r.chunk_id = c.id)", 0);
    EXPECT_NUMBER(m, "SELECT count(*) FROM recipe WHERE chunk_id NOT IN (SELECT id FROM chunk)", 0);
    EXPECT_NUMBER(m,
                  "SELECT count(*) FROM canonical a WHERE present = 1 AND (size, zsize, chunks) != (SELECT sum(c.raw),"
                  " sum(c.len), count(*) FROM recipe r JOIN chunk c ON c.id = r.chunk_id WHERE r.canonical_id = a.id)",
                  0);
    EXPECT_NUMBER(m, "SELECT count(*) FROM recipe WHERE canonical_id IN (SELECT id FROM canonical WHERE present = 0)",
                  0);
    EXPECT_NUMBER(m, "SELECT count(*) FROM chunk WHERE pack_id NOT IN (SELECT id FROM pack)", 0);
    EXPECT_NUMBER(m, "SELECT count(*) FROM chunk k JOIN pack p ON p.id = k.pack_id WHERE k.off + k.len > p.end", 0);
    EXPECT_NUMBER(m,
                  "SELECT count(*) FROM blob b WHERE original_present !="
                  " (SELECT count(*) FROM original o WHERE o.blob_id = b.id)",
                  0);
    EXPECT_NUMBER(m,
                  "SELECT count(*) FROM totals WHERE (chunks, chunk_bytes, frame_bytes) !="
                  " (SELECT count(*), coalesce(sum(raw), 0), coalesce(sum(len), 0) FROM chunk WHERE pack_id NOT NULL)",
                  0);
    EXPECT_NUMBER(m,
                  "SELECT count(*) FROM totals WHERE (canonical_layers, canonical_bytes) !="
                  " (SELECT count(*), coalesce(sum(size), 0) FROM canonical WHERE present = 1)",
                  0);
    EXPECT_NUMBER(m,
                  "SELECT count(*) FROM totals WHERE original_bytes !="
                  " (SELECT coalesce(sum(size), 0) FROM blob WHERE original_present = 1)",
                  0);
    EXPECT_NUMBER(m,
                  "SELECT count(*) FROM totals WHERE (pins, pinned_bytes) != ((SELECT count(*) FROM pin),"
                  " (SELECT coalesce(sum(size), 0) FROM blob WHERE pinned > 0 AND original_present = 1) +"
                  " (SELECT coalesce(sum(zsize), 0) FROM canonical WHERE pinned = 1 AND present = 1))",
                  0);
    EXPECT_NUMBER(m,
                  "SELECT count(*) FROM totals WHERE (blobs, manifests, tags) != ((SELECT count(*) FROM blob),"
                  " (SELECT count(*) FROM manifest), (SELECT count(*) FROM tag))",
                  0);
    if (opened_just_now) {
        EXPECT_NUMBER(m, "SELECT count(*) FROM chunk WHERE refs = 0", 0);
        EXPECT_NUMBER(m, "SELECT count(*) FROM hole", 0);
    }
}

struct files {
    uint64_t bytes; /* blocks */
    size_t packs, originals, spools, others;
};

static inline void check_file(struct model *m, const char *dir, const char *name, struct files *sum)
{
    char text[DIGEST_TEXT_BYTES];
    struct err err = ERR_INIT;
    struct original *o;
    struct digest d;

    if (strcmp(dir, "packs") == 0) {
        sum->packs++;
    } else if (strcmp(dir, "spool") == 0) {
        sum->spools++;
    } else {
        (void)snprintf(text, sizeof(text), "sha256:%s", name);
        DO(m, digest_parse(text, strlen(text), &d, &err));
        o = original_by(m, &d);
        HOLD(m, o != NULL && o->t.present && o->wound != MISSING, "%s/%s lies there, and nobody refers to it", dir,
             name);
        sum->originals++;
    }
}

static inline void walk(struct model *m, const char *dir, struct files *sum)
{
    char path[400];
    struct dirent *e;
    struct stat sb;
    DIR *d;

    (void)snprintf(path, sizeof(path), "%s/%s", m->f->dir, dir);
    d = opendir(path);
    assert_non_null(d);
    while ((e = readdir(d)) != NULL) {
        if (e->d_name[0] == '.')
            continue;
        (void)snprintf(path, sizeof(path), "%.100s/%.40s/%.80s", m->f->dir, dir, e->d_name);
        assert_int_equal(lstat(path, &sb), 0);
        if (S_ISDIR(sb.st_mode)) {
            (void)snprintf(path, sizeof(path), "%.40s/%.80s", dir, e->d_name);
            walk(m, path, sum);
        } else {
            sum->bytes += (uint64_t)sb.st_blocks * 512;
            check_file(m, dir, e->d_name, sum);
        }
    }
    (void)closedir(d);
}

static inline void check_files(struct model *m, bool opened_just_now)
{
    struct files sum = {.bytes = 0};
    struct store_stats stats;
    struct err err = ERR_INIT;
    uint64_t slack, counted;
    size_t originals = 0;

    DO(m, store_stats(m->f->st, &stats, &err));
    walk(m, "packs", &sum);
    walk(m, "originals", &sum);
    walk(m, "spool", &sum);
    sum.bytes += catalog_disk_bytes(m->f->st);
    counted = stats.bytes_on_disk - m->inflated_bytes;
    slack = 4096 * (sum.packs + sum.originals + sum.spools);
    HOLD(m, counted <= sum.bytes + slack && sum.bytes <= counted + slack, "%llu bytes counted, %llu on disk",
         (unsigned long long)counted, (unsigned long long)sum.bytes);
    for (int i = 0; i < ORIGINALS; i++)
        originals += m->originals[i].t.present && m->originals[i].wound != MISSING;
    HOLD(m, sum.originals == originals, "%zu files in originals, not %zu", sum.originals, originals);
    HOLD(m, sum.spools == (m->spool != NULL), "%zu files in spool", sum.spools);
    if (opened_just_now)
        HOLD(m, (int64_t)sum.packs <= number(m, "SELECT count(*) FROM pack"), "%zu packs on disk", sum.packs);
}
