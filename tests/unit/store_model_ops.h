/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_model_ops.h - operations on bytes: fills, layers, readers, evictions; each done to the store and to the
 * model.
 */
#pragma once

#include "tests/unit/store_model_check.h"

/* ---- fills -------------------------------------------------------------------------------------------------------------- */

/* False: there was no room, and that was right. */
static inline bool spool_some(struct model *m, struct spool *sp, const uint8_t *data, size_t len)
{
    for (size_t pos = 0; pos < len;) {
        size_t n = 1 + pick(m, 256 * KIB);
        struct err err = ERR_INIT;
        int rc;

        if (n > len - pos)
            n = len - pos;
        rc = spool_write(sp, data + pos, n, &err);
        if (rc == ERR_NOSPC) {
            check_no_room(m, MIB);
            return false;
        }
        DO(m, rc);
        pos += n;
    }
    return true;
}

static inline void filled(struct original *o, int repo, int64_t before)
{
    o->t.known = o->t.present = true;
    o->wound = WHOLE;
    touched(&o->t, before);
    if (repo >= 0)
        o->linked[repo] = true;
}

static inline bool fill(struct model *m, struct original *o)
{
    CLEANUP(spool_cleanup) struct spool *sp = NULL;
    struct err err = ERR_INIT;
    int repo = (int)pick(m, REPOS + 1) - 1;
    struct digest other = m->originals[pick(m, ORIGINALS)].t.digest;
    int64_t before;
    int rc;

    note(m, "fill %d, %zu bytes", original_no(m, o), o->t.len);
    DO(m, spool_open(m->f->st, &sp, &err));
    rc = pick(m, 2) == 0 ? spool_expect(sp, o->t.len, &err) : 0;
    if (rc == ERR_NOSPC) {
        check_no_room(m, room_round(o->t.len));
        return false;
    }
    DO(m, rc);
    if (!spool_some(m, sp, o->t.data, o->t.len))
        return false;
    sync_presence(m, true);
    if (pick(m, 16) == 0 && !digest_equal(&other, &o->t.digest))
        expect_code(m, "commit as another", spool_commit(sp, &other, 0, &err), ERR_CORRUPT, &err);
    before = clock_wall_ms();
    DO(m, spool_commit(sp, &o->t.digest, repo >= 0 ? m->repos[repo] : 0, &err));
    filled(o, repo, before);
    m->fills++;
    return true;
}

static inline void op_fill(struct model *m)
{
    (void)fill(m, &m->originals[pick(m, ORIGINALS)]);
}

/* Begins one that lies in spool/ for some time, or gives one up. */
static inline void op_abandoned_fill(struct model *m)
{
    const struct original *o = &m->originals[pick(m, ORIGINALS)];
    struct err err = ERR_INIT;

    if (m->spool != NULL) {
        note(m, "abandon a fill");
        spool_unref(steal(&m->spool));
        return;
    }
    note(m, "begin a fill");
    DO(m, spool_open(m->f->st, &m->spool, &err));
    (void)spool_some(m, m->spool, o->t.data, o->t.len / 2);
    sync_presence(m, true);
}

/* ---- layers --------------------------------------------------------------------------------------------------------------- */

static inline void mark_lost(struct model *m, const struct digest *d);

static inline struct frames *new_frames(struct content *c, const struct layer_result *r)
{
    struct frames *fr = malloc(sizeof(*fr) + r->zstd_bytes);

    assert_non_null(fr);
    *fr = (struct frames){.len = r->zstd_bytes, .older = c->frames, .unread = true};
    c->frames = fr;
    c->zdigest = r->zstd;
    return fr;
}

/* A first reading of the zstd form, against its digest. */
static inline void keep_frames(struct model *m, struct content *c, const struct layer_result *r)
{
    int64_t before = clock_wall_ms();
    struct frames *fr = c->frames;
    struct bytes b;
    struct digest d;

    if (fr == NULL || !digest_equal(&c->zdigest, &r->zstd))
        fr = new_frames(c, r);
    if (!fr->unread)
        return;
    if (layer_damaged(m, c)) { /* while it was written: another time */
        mark_lost(m, &c->t.digest);
        return;
    }
    b = read_layer(m->f->st, &c->t.digest, LAYER_ZSTD, 0, UINT64_MAX, MIB);
    digest_of(b.data, b.len, &d);
    HOLD(m, b.code == 0 && b.len == r->zstd_bytes && digest_equal(&d, &r->zstd),
         "the zstd form of layer %d is not what its writer said", content_no(m, c));
    memcpy(fr->data, b.data, b.len);
    fr->unread = false;
    free(b.data);
    touched(&c->t, before);
}

/* What the commit said. After it the layer is whole, and its original may have gone. made_room: on the way other things
 * went, and perhaps these two. */
static inline void layer_stored(struct model *m, const struct writer *w, const struct layer_result *r, int64_t before,
                                bool made_room)
{
    struct original *o = w->o;
    struct content *c = o->content;
    bool drop = o->t.present && o->t.leases == 0 &&
                (digest_equal(&o->t.digest, &c->t.digest) || m->f->opt.originals == ORIGINALS_DROP);

    HOLD(m, digest_equal(&r->canonical, &c->t.digest) && r->canonical_bytes == c->t.len, "another layer");
    HOLD(m, made_room || r->existed == c->t.present, "the layer %s", r->existed ? "existed" : "did not exist");
    if (drop) {
        o->t.present = false;
        o->wound = WHOLE;
    }
    o->canon = CANON_DONE;
    c->t.known = c->t.present = true;
    if (!r->existed)
        touched(&c->t, before);
    keep_frames(m, c, r);
    HOLD(m, w->disturbed || !layer_damaged(m, c), "layer %d was just stored, and is damaged", content_no(m, c));
    for (int i = 0; i < READERS; i++) /* chunks that it shares with others may be well again */
        m->readers[i].must_fail &= m->readers[i].s != NULL && content_by(m, &m->readers[i].t->digest) == NULL;
    m->layers++;
}

static inline void end_writer(struct model *m, struct writer *w)
{
    uint64_t evictions = m->f->st->room.evictions;
    struct layer_result r;
    struct err err = ERR_INIT;
    int64_t before = clock_wall_ms();
    int rc = layer_writer_commit(w->w, &r, &err);

    if (rc == ERR_NOSPC) {
        check_no_room(m, 2 * MIB);
    } else if ((rc == ERR_BUSY || rc == ERR_CORRUPT) && w->disturbed) {
        note(m, " [%s]", err_code_name(rc));
    } else {
        DO(m, rc);
        layer_stored(m, w, &r, before, m->f->st->room.evictions != evictions);
    }
    m->fresh = w->o->content;
    sync_presence(m, true);
    m->fresh = NULL;
    for (int i = 0; i < WRITERS; i++)
        m->writers[i].disturbed = true;
    layer_writer_abort(steal(&w->w));
}

static inline bool begin_writer(struct model *m, struct writer *w, struct original *o)
{
    struct err err = ERR_INIT;
    int rc = layer_writer_open(m->f->st, &o->t.digest, &w->w, &err);

    if (!o->t.known) {
        expect_code(m, "layer_writer_open", rc, ERR_NOTFOUND, &err);
        return false;
    }
    if (rc == ERR_NOSPC && o->t.present && 2 * o->t.len > room_limit(m->f->st))
        return false;
    DO(m, rc);
    w->o = o;
    w->pos = 0;
    w->disturbed = false;
    return true;
}

/* False: it is over. */
static inline bool put_some(struct model *m, struct writer *w, size_t max)
{
    const struct thing *t = &w->o->content->t;
    size_t n = pick(m, max) + 1;
    struct err err = ERR_INIT;
    int rc;

    if (n > t->len - w->pos)
        n = t->len - w->pos;
    rc = layer_writer_put(w->w, t->data + w->pos, n, &err);
    w->pos += n;
    if (rc >= 0)
        return true;
    if (rc == ERR_NOSPC)
        check_no_room(m, 2 * MIB);
    else
        HOLD(m, rc == ERR_CORRUPT && w->disturbed, "layer_writer_put: %s", err.msg);
    layer_writer_abort(steal(&w->w));
    return false;
}

static inline void op_layer(struct model *m)
{
    struct original *o = &m->originals[pick(m, 2 * CONTENTS)];
    struct writer w = {.w = NULL};
    bool abandon = pick(m, 8) == 0;

    note(m, "%s layer %d of original %d, %zu bytes", abandon ? "abandon" : "write", content_no(m, o->content),
         original_no(m, o), o->content->t.len);
    if (!begin_writer(m, &w, o))
        return;
    while (w.pos < o->content->t.len)
        if (!put_some(m, &w, 300 * KIB))
            return;
    sync_presence(m, true);
    if (abandon)
        layer_writer_abort(w.w);
    else
        end_writer(m, &w);
    for (int i = 0; i < WRITERS; i++) /* chunks were lost or healed on the way */
        m->writers[i].disturbed = true;
}

/* One that goes on while other things happen. */
static inline void op_slow_layer(struct model *m)
{
    struct writer *w = &m->writers[pick(m, WRITERS)];
    struct original *o = &m->originals[pick(m, 2 * CONTENTS)];

    if (w->w == NULL) {
        note(m, "begin layer %d of original %d", content_no(m, o->content), original_no(m, o));
        (void)begin_writer(m, w, o);
    } else if (w->pos < w->o->content->t.len) {
        note(m, "go on with layer %d", content_no(m, w->o->content));
        (void)put_some(m, w, MIB);
    } else if (pick(m, 8) == 0) {
        note(m, "abandon layer %d", content_no(m, w->o->content));
        layer_writer_abort(steal(&w->w));
    } else {
        note(m, "commit layer %d of original %d", content_no(m, w->o->content), original_no(m, w->o));
        end_writer(m, w);
    }
    sync_presence(m, true);
}

static inline void op_refuse(struct model *m)
{
    struct original *o = &m->originals[pick(m, ORIGINALS)];
    struct err err = ERR_INIT;
    bool legal = o->t.known && o->canon != CANON_DONE;

    note(m, "refuse %d", original_no(m, o));
    expect_code(m, "store_canon_refuse", store_canon_refuse(m->f->st, &o->t.digest, "a test", &err),
                legal ? 0 : ERR_NOTFOUND, &err);
    if (legal)
        o->canon = CANON_REFUSED;
}

/* ---- readers ---------------------------------------------------------------------------------------------------------------- */

static inline void close_reader(struct reader *r)
{
    source_free(steal(&r->s));
    r->t->leases--;
}

/* To its end when max is 0. */
static inline void advance(struct model *m, struct reader *r, size_t max)
{
    static uint8_t piece[512 * 1024];
    struct err err = ERR_INIT;
    int rc;

    do {
        size_t cap = 1 + pick(m, max != 0 ? max : sizeof(piece));
        size_t n = 0;

        rc = source_read(r->s, piece, cap, &n, &err);
        HOLD(m, n <= cap && r->pos + n <= r->end && memcmp(piece, r->want + r->pos, n) == 0,
             "wrong bytes of %s at %llu", digest_text(&r->t->digest).s, (unsigned long long)r->pos);
        r->pos += n;
    } while (rc == STEP_MORE && max == 0);
    if (rc == STEP_MORE)
        return;
    if (rc == STEP_EOF) {
        HOLD(m, r->pos == r->end, "%s ends early", digest_text(&r->t->digest).s);
        HOLD(m, !r->must_fail, "the damage of %s was not seen", digest_text(&r->t->digest).s);
        m->reads++;
    } else {
        HOLD(m, r->may_fail && (rc == ERR_CORRUPT || rc == ERR_NOTFOUND), "%s at %llu: %s",
             digest_text(&r->t->digest).s, (unsigned long long)r->pos, err.msg);
    }
    close_reader(r);
}

/* Opens [off, off + len) in the form; false: it is not there, or damaged, and that was right. */
static inline bool open_reader(struct model *m, struct reader *r, struct thing *t, bool layer, enum layer_form form,
                               uint64_t off, uint64_t len)
{
    struct content *c = layer ? content_by(m, &t->digest) : NULL;
    struct original *o = layer ? NULL : original_by(m, &t->digest);
    bool damaged = layer ? t->present && layer_damaged(m, c) : o->wound != WHOLE;
    uint64_t size = form == LAYER_ZSTD && c != NULL && c->frames != NULL ? c->frames->len : t->len;
    int64_t before = clock_wall_ms();
    struct err err = ERR_INIT;
    int rc;

    *r = (struct reader){.t = t,
                         .want = form == LAYER_ZSTD && c != NULL && c->frames != NULL ? c->frames->data : t->data};
    rc = layer ? layer_open(m->f->st, &t->digest, form, off, len, &r->s, &err)
               : original_open(m->f->st, &t->digest, off, len, &r->s, &err);
    if (!t->present) {
        expect_code(m, "open", rc, ERR_NOTFOUND, &err);
        return false;
    }
    if (rc < 0) {
        HOLD(m, damaged && (rc == ERR_CORRUPT || rc == ERR_NOTFOUND), "open %s: %s", digest_text(&t->digest).s,
             err.msg);
        return false;
    }
    r->pos = off < size ? off : size;
    r->end = len < size - r->pos ? r->pos + len : size;
    r->may_fail = damaged;
    r->must_fail = damaged && r->pos == 0 && r->end == size && size > 0;
    t->leases++;
    touched(t, before);
    return true;
}

static inline void open_some(struct model *m, struct reader *r)
{
    bool layer = pick(m, 2) == 0;
    struct thing *t = layer ? &m->contents[pick(m, CONTENTS)].t : &m->originals[pick(m, ORIGINALS)].t;
    enum layer_form form = layer && pick(m, 2) == 0 ? LAYER_ZSTD : LAYER_IDENTITY;
    bool whole = pick(m, 2) == 0;
    uint64_t off = whole ? 0 : pick(m, t->len + 2);
    uint64_t len = whole ? UINT64_MAX : pick(m, 4) == 0 ? pick(m, 100) : pick(m, t->len + 2);

    note(m, "read %s %s from %llu", layer ? form == LAYER_ZSTD ? "frames of" : "layer" : "original",
         digest_text(&t->digest).s + 7, (unsigned long long)off);
    (void)open_reader(m, r, t, layer, form, off, len);
}

static inline void op_read(struct model *m)
{
    struct reader *r = &m->readers[pick(m, READERS)];

    if (r->s == NULL)
        open_some(m, r);
    else if (pick(m, 12) == 0)
        close_reader(r);
    else
        advance(m, r, pick(m, 4) == 0 ? 0 : 200 * KIB);
}

/* ---- taking away ---------------------------------------------------------------------------------------------------------------- */

static inline int evict_layer(struct model *m, struct content *c)
{
    if (c->t.leases > 0 || layer_pinned(m, c))
        return ERR_BUSY;
    c->t.present = false;
    return 0;
}

static inline int evict_original(struct original *o, bool pinned)
{
    if (o->t.leases > 0 || pinned)
        return ERR_BUSY;
    o->t.present = false;
    o->wound = WHOLE;
    return 0;
}

/* What d stands for that is there. */
static inline void find_present(struct model *m, const struct digest *d, struct original **o, struct content **c)
{
    struct content *z = content_by_zstd(m, d);

    *o = original_by(m, d);
    *c = content_by(m, d);
    if (*c == NULL || !(*c)->t.present)
        *c = z;
    if (*c != NULL && !(*c)->t.present)
        *c = NULL;
    if (*o != NULL && !(*o)->t.present)
        *o = NULL;
}

static inline void op_evict(struct model *m)
{
    struct digest d = pick_digest(m);
    struct original *o;
    struct content *c;
    struct err err = ERR_INIT;
    int want = 0;

    note(m, "evict %s", digest_text(&d).s + 7);
    find_present(m, &d, &o, &c);
    if (o == NULL && c == NULL)
        want = ERR_NOTFOUND;
    if (c != NULL)
        want = evict_layer(m, c);
    if (o != NULL && want == 0)
        want = evict_original(o, pins_hold(m, o));
    expect_code(m, "store_evict", store_evict(m->f->st, &d, &err), want, &err);
    disturb(m);
}

static inline void op_settle(struct model *m)
{
    struct original *o = &m->originals[pick(m, ORIGINALS)];
    struct content *c = o->content;
    bool same = c != NULL && digest_equal(&o->t.digest, &c->t.digest); /* no link is needed to know */
    bool goes = o->t.present && c != NULL && c->t.present &&
                (same || (o->canon == CANON_DONE && m->f->opt.originals == ORIGINALS_DROP));
    struct err err = ERR_INIT;
    int want = goes ? evict_original(o, false) : 0;

    note(m, "settle %d", original_no(m, o));
    expect_code(m, "store_settle_original", store_settle_original(m->f->st, &o->t.digest, &err), want, &err);
}

static inline void readers_may_fail(struct model *m, const struct thing *t)
{
    for (int i = 0; i < READERS; i++)
        if (m->readers[i].s != NULL && m->readers[i].t == t)
            m->readers[i].may_fail = true;
}

static inline void mark_lost(struct model *m, const struct digest *d)
{
    struct original *o, *known = original_by(m, d);
    struct content *c, *layer = content_by(m, d), *z = content_by_zstd(m, d);
    struct err err = ERR_INIT;
    bool is_known = (known != NULL && known->t.known) || (layer != NULL && layer->t.known) || z != NULL;
    bool both;

    find_present(m, d, &o, &c);
    both = o != NULL && c != NULL;
    if (c != NULL && layer_damaged(m, c)) {
        readers_may_fail(m, &c->t);
        c->t.present = false;
    }
    if (o != NULL && !(both && o->wound == WHOLE)) {
        o->t.present = false;
        o->wound = WHOLE;
    }
    expect_code(m, "store_mark_lost", store_mark_lost(m->f->st, d, &err), is_known ? 0 : ERR_NOTFOUND, &err);
    disturb(m);
}

static inline void op_mark_lost(struct model *m)
{
    struct digest d = pick_digest(m);

    note(m, "mark lost %s", digest_text(&d).s + 7);
    mark_lost(m, &d);
}

/* As a client's failed read would: says what is damaged is lost. Fills and layers to come heal it. */
static inline void op_heal(struct model *m)
{
    note(m, "mark lost what is damaged");
    for (int i = 0; i < CONTENTS; i++)
        if (m->contents[i].t.present && layer_damaged(m, &m->contents[i]))
            mark_lost(m, &m->contents[i].t.digest);
    for (int i = 0; i < ORIGINALS; i++)
        if (m->originals[i].wound != WHOLE)
            mark_lost(m, &m->originals[i].t.digest);
}

/* ---- room ------------------------------------------------------------------------------------------------------------------------- */

static inline void op_quota(struct model *m)
{
    uint64_t used = room_used(m->f->st);

    /* A few layers fit beside the catalog, or most of them. */
    m->quota_bytes = pick(m, 3) == 0 ? WIDE_BYTES : catalog_disk_bytes(m->f->st) + 2 * MIB + pick(m, 10 * MIB);
    note(m, "quota %llu of %llu used", (unsigned long long)m->quota_bytes, (unsigned long long)used);
    m->f->st->opt.quota_bytes = m->quota_bytes;
}

static inline void op_make_room(struct model *m)
{
    struct err err = ERR_INIT;
    bool more = true;

    note(m, "make room");
    for (int steps = 0; more; steps++) {
        HOLD(m, steps < 1000, "store_make_room() does not end");
        DO(m, store_make_room(m->f->st, &more, &err));
    }
    sync_presence(m, true);
}

/* A few steps, or all that are left. What is moved stays readable, also for those who read it just then. */
static inline void op_gc(struct model *m)
{
    struct store_gc_progress progress = {.packs = 0};
    struct err err = ERR_INIT;
    uint64_t steps = pick(m, 2) == 0 ? 1 + pick(m, 4) : 10000;
    bool more = true;

    note(m, "collect");
    if (m->gc == NULL)
        DO(m, store_gc_new(m->f->st, pick(m, 4) == 0, &m->gc, &err));
    for (uint64_t i = 0; more && i < steps; i++)
        DO(m, store_gc_step(m->gc, &progress, &more, &err));
    HOLD(m, steps < 10000 || !more, "collecting does not end");
    sync_presence(m, true);
    disturb(m); /* chunks that could not be moved are lost */
    if (more)
        return;
    m->packs_compacted += progress.packs_done;
    store_gc_free(steal(&m->gc));
}
