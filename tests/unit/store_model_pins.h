/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_model_pins.h - pins, and images that are taken away on purpose.
 */
#pragma once

#include "store/pin.h"
#include "tests/unit/store_model_meta.h"

static inline void pin_tag(struct model *m, int repo, int tag)
{
    struct manifest *leads_to_it = m->tags[repo][tag];
    struct store_pin_result r;
    struct err err = ERR_INIT;

    note(m, "pin tag %s", tag_name(tag));
    expect_code(m, "store_pin", store_pin(m->f->st, m->repos[repo], tag_name(tag), NULL, &r, &err),
                leads_to_it != NULL ? 0 : ERR_NOTFOUND, &err);
    if (leads_to_it == NULL)
        return;
    HOLD(m, r.changed == (m->pins[repo][tag] == NULL) && digest_equal(&r.digest, &leads_to_it->digest), "another pin");
    m->pins[repo][tag] = leads_to_it;
}

static inline void pin_digest(struct model *m, int repo, struct manifest *mf)
{
    struct store_pin_result r;
    struct err err = ERR_INIT;

    note(m, "pin manifest %d", (int)(mf - m->manifests));
    expect_code(m, "store_pin", store_pin(m->f->st, m->repos[repo], NULL, &mf->digest, &r, &err),
                mf->in_repo[repo] ? 0 : ERR_NOTFOUND, &err);
    if (!mf->in_repo[repo])
        return;
    HOLD(m, r.changed == !mf->pinned_in[repo], "changed, or not");
    mf->pinned_in[repo] = true;
}

static inline void op_pin(struct model *m)
{
    int repo = (int)pick(m, REPOS);

    if (pick(m, 2) == 0)
        pin_tag(m, repo, (int)pick(m, TAGS));
    else
        pin_digest(m, repo, &m->manifests[pick(m, MANIFESTS)]);
}

static inline void op_unpin(struct model *m)
{
    struct manifest *mf = &m->manifests[pick(m, MANIFESTS)];
    int repo = (int)pick(m, REPOS), tag = (int)pick(m, TAGS);
    struct store_pin_result r;
    struct err err = ERR_INIT;

    if (pick(m, 2) == 0) {
        if (m->pins[repo][tag] == NULL)
            return;
        note(m, "unpin tag %s", tag_name(tag));
        DO(m, store_unpin(m->f->st, m->repos[repo], tag_name(tag), NULL, &r, &err));
        m->pins[repo][tag] = NULL;
    } else {
        if (!mf->pinned_in[repo])
            return;
        note(m, "unpin manifest %d", (int)(mf - m->manifests));
        DO(m, store_unpin(m->f->st, m->repos[repo], NULL, &mf->digest, &r, &err));
        mf->pinned_in[repo] = false;
    }
    HOLD(m, r.changed, "it was no pin");
}

/* ---- removal -------------------------------------------------------------------------------------------------------------- */

static inline bool tagged(const struct model *m, const struct manifest *mf)
{
    for (int i = 0; i < REPOS; i++)
        for (int k = 0; k < TAGS; k++)
            if (m->tags[i][k] == mf)
                return true;
    return false;
}

static inline bool tag_above(const struct model *m, const struct digest *d)
{
    for (int i = 0; i < MANIFESTS; i++)
        for (size_t k = 0; tagged(m, &m->manifests[i]) && k < ARRAY_LEN(m->manifests[i].refs); k++)
            if (digest_equal(&m->manifests[i].refs[k].digest, d))
                return true;
    return false;
}

static inline bool tag_above_layer(const struct model *m, const struct content *c)
{
    if (tag_above(m, &c->t.digest) || tag_above(m, &c->zdigest))
        return true;
    for (int i = 0; i < ORIGINALS; i++)
        if (m->originals[i].content == c && m->originals[i].canon == CANON_DONE &&
            tag_above(m, &m->originals[i].t.digest))
            return true;
    return false;
}

/* The layer that is stored of an original, or that has its bytes in one of its forms. */
static inline struct content *layer_of(struct model *m, struct original *o)
{
    struct content *c = o->canon == CANON_DONE ? o->content : content_by(m, &o->t.digest);

    if (c == NULL || !c->t.present)
        c = content_by_zstd(m, &o->t.digest);
    return c != NULL && c->t.present ? c : NULL;
}

static inline void remove_blob(struct model *m, struct original *o, struct store_remove_result *want)
{
    struct content *c = layer_of(m, o);
    bool original = o->t.present && pin_level(m, &o->t.digest) == 0 && !tag_above(m, &o->t.digest);
    bool layer = c != NULL && !layer_pinned(m, c) && !tag_above_layer(m, c);
    bool busy = false;

    if (original && evict_original(o, false) == 0)
        want->originals++;
    else
        busy |= original;
    if (layer && evict_layer(m, c) == 0)
        want->layers++;
    else
        busy |= layer;
    want->busy += busy;
}

/* Each blob once, in no order that matters: none of them is a reason for another one to stay. */
static inline void remove_blobs(struct model *m, const struct manifest *mf, struct store_remove_result *want)
{
    for (size_t k = 0; k < ARRAY_LEN(mf->refs); k++) {
        bool again = false;

        for (size_t i = 0; i < k; i++)
            again |= digest_equal(&mf->refs[i].digest, &mf->refs[k].digest);
        if (!again)
            remove_blob(m, original_by(m, &mf->refs[k].digest), want);
    }
}

static inline void expect_removed(struct model *m, const struct store_remove_result *got,
                                  const struct store_remove_result *want)
{
    HOLD(m, got->unpinned == want->unpinned, "the pin went, or did not");
    HOLD(m, got->originals == want->originals && got->layers == want->layers && got->busy == want->busy,
         "%llu originals and %llu layers went, %llu busy; not %llu, %llu, %llu", (unsigned long long)got->originals,
         (unsigned long long)got->layers, (unsigned long long)got->busy, (unsigned long long)want->originals,
         (unsigned long long)want->layers, (unsigned long long)want->busy);
    disturb(m);
}

static inline void remove_tag(struct model *m, int repo, int tag)
{
    struct manifest *mf = m->tags[repo][tag];
    struct store_remove_result got, want = {.unpinned = m->pins[repo][tag] != NULL};
    struct err err = ERR_INIT;

    note(m, "remove tag %s", tag_name(tag));
    if (mf != NULL) {
        m->tags[repo][tag] = m->pins[repo][tag] = NULL;
        remove_blobs(m, mf, &want);
    }
    expect_code(m, "store_remove", store_remove(m->f->st, m->repos[repo], tag_name(tag), NULL, &got, &err),
                mf != NULL ? 0 : ERR_NOTFOUND, &err);
    if (mf != NULL)
        expect_removed(m, &got, &want);
}

static inline void remove_digest(struct model *m, int repo, struct manifest *mf)
{
    int code = !mf->in_repo[repo] ? ERR_NOTFOUND : tagged(m, mf) ? ERR_BUSY : 0;
    struct store_remove_result got, want = {.unpinned = mf->pinned_in[repo]};
    struct err err = ERR_INIT;

    note(m, "remove manifest %d", (int)(mf - m->manifests));
    if (code == 0) {
        mf->pinned_in[repo] = false;
        remove_blobs(m, mf, &want);
    }
    expect_code(m, "store_remove", store_remove(m->f->st, m->repos[repo], NULL, &mf->digest, &got, &err), code, &err);
    if (code == 0)
        expect_removed(m, &got, &want);
}

static inline void op_remove(struct model *m)
{
    int repo = (int)pick(m, REPOS);

    if (pick(m, 2) == 0)
        remove_tag(m, repo, (int)pick(m, TAGS));
    else
        remove_digest(m, repo, &m->manifests[pick(m, MANIFESTS)]);
}

/* ---- checks ------------------------------------------------------------------------------------------------------------- */

static inline int64_t pinned_column(struct model *m, const char *sql, const struct digest *d)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;
    struct err err = ERR_INIT;
    int rc;

    DO(m, sql_query(m->db, &q, sql, &err));
    sql_bind_digest(&q, 1, d);
    DO(m, rc = sql_step(&q, &err));
    return rc == SQL_ROW ? sql_int(&q, 0) : -1;
}

static inline void check_pins(struct model *m)
{
    struct err err = ERR_INIT;
    int64_t pins = 0;
    bool pinned;

    for (int i = 0; i < MANIFESTS; i++) {
        struct manifest *mf = &m->manifests[i];

        DO(m, store_is_pinned(m->f->st, &mf->digest, &pinned, &err));
        HOLD(m, pinned == manifest_pinned(m, mf), "manifest %d is %spinned", i, pinned ? "" : "not ");
        for (int k = 0; k < REPOS; k++)
            pins += mf->pinned_in[k];
    }
    for (int i = 0; i < REPOS * TAGS; i++)
        pins += m->pins[i / TAGS][i % TAGS] != NULL;
    EXPECT_NUMBER(m, "SELECT count(*) FROM pin", pins);
    for (int i = 0; i < ORIGINALS; i++) {
        int64_t got = pinned_column(m, "SELECT pinned FROM blob WHERE digest = ?1", &m->originals[i].t.digest);

        HOLD(m, got < 0 || got == pin_level(m, &m->originals[i].t.digest), "original %d is pinned %d", i, (int)got);
    }
    for (int i = 0; i < CONTENTS; i++) {
        int64_t got = pinned_column(m, "SELECT pinned FROM canonical WHERE digest = ?1", &m->contents[i].t.digest);

        HOLD(m, got < 0 || got == layer_pinned(m, &m->contents[i]), "layer %d is pinned %d", i, (int)got);
    }
}
