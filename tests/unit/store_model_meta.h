/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_model_meta.h - operations on what lives for ever: repositories, manifests, tags, views.
 */
#pragma once

#include "tests/unit/store_model_ops.h"

static inline void find_repos(struct model *m)
{
    for (int i = 0; i < REPOS; i++) {
        struct err err = ERR_INIT;
        char name[32];

        (void)snprintf(name, sizeof(name), "library/image%d", i);
        DO(m, store_repo(m->f->st, "https://registry.test", name, &m->repos[i], &err));
    }
}

static inline void op_link(struct model *m)
{
    struct original *o = &m->originals[pick(m, ORIGINALS)];
    int repo = (int)pick(m, REPOS);
    struct err err = ERR_INIT;

    note(m, "link %d", original_no(m, o));
    DO(m, store_repo_add_blob(m->f->st, m->repos[repo], &o->t.digest, o->t.len, &err));
    o->t.known = true;
    o->linked[repo] = true;
}

/* A pin of the tag goes with it. */
static inline void move_tag(struct model *m, int repo, int tag, struct manifest *mf)
{
    m->tags[repo][tag] = mf;
    if (m->pins[repo][tag] != NULL)
        m->pins[repo][tag] = mf;
}

static inline void op_manifest(struct model *m)
{
    struct manifest *mf = &m->manifests[pick(m, MANIFESTS)];
    int repo = (int)pick(m, REPOS);
    int tag = (int)pick(m, TAGS);
    bool tagged = pick(m, 3) != 0;
    struct store_manifest_put p = {.repo = m->repos[repo],
                                   .tag = tagged ? tag_name(tag) : NULL,
                                   .digest = mf->digest,
                                   .media_type = "application/vnd.oci.image.manifest.v1+json",
                                   .body = mf->body,
                                   .len = mf->len,
                                   .refs = mf->refs,
                                   .ref_count = ARRAY_LEN(mf->refs)};
    struct err err = ERR_INIT;

    switch (pick(m, 4)) {
    case 0:
        note(m, "drop tag %s", tag_name(tag));
        DO(m, store_tag_drop(m->f->st, m->repos[repo], tag_name(tag), &err));
        m->tags[repo][tag] = NULL;
        return;
    case 1:
        if (!mf->in_repo[repo])
            break;
        note(m, "move tag %s", tag_name(tag));
        DO(m, store_tag_set(m->f->st, m->repos[repo], tag_name(tag), &mf->digest, &err));
        move_tag(m, repo, tag, mf);
        return;
    default:
        break;
    }
    note(m, "manifest %d, tag %s", (int)(mf - m->manifests), tagged ? tag_name(tag) : "-");
    DO(m, store_manifest_put(m->f->st, &p, &err));
    mf->known = mf->in_repo[repo] = true;
    if (tagged)
        move_tag(m, repo, tag, mf);
}

static inline void op_view(struct model *m)
{
    struct manifest *mf = &m->manifests[pick(m, MANIFESTS)];
    struct err err = ERR_INIT;
    char body[600];
    int len;

    if (!mf->known)
        return;
    note(m, "view of manifest %d", (int)(mf - m->manifests));
    len = snprintf(body, sizeof(body), "{\"of\":%s,\"n\":%d}", mf->body, (int)pick(m, 3));
    DO(m, store_view_put(m->f->st, &mf->digest, 1, "application/vnd.oci.image.manifest.v1+json", body, (size_t)len,
                         &mf->view, &err));
    mf->has_view = true;
}

static inline void op_views_ready(struct model *m)
{
    struct manifest *mf = &m->manifests[pick(m, MANIFESTS)];
    struct err err = ERR_INIT;

    if (!mf->known)
        return;
    mf->ready = pick(m, 2) == 0;
    note(m, "views of manifest %d are %sready", (int)(mf - m->manifests), mf->ready ? "" : "not ");
    DO(m, store_manifest_set_views(m->f->st, &mf->digest, mf->ready ? VIEWS_READY : VIEWS_UNKNOWN, NULL, &err));
}

/* ---- checks ------------------------------------------------------------------------------------------------------------- */

static inline void check_manifest(struct model *m, struct manifest *mf)
{
    struct store_manifest got = {.len = 0};
    struct err err = ERR_INIT;
    struct digest view;
    bool has;

    expect_code(m, "store_manifest_get", store_manifest_get(m->f->st, &mf->digest, &got, &err),
                mf->known ? 0 : ERR_NOTFOUND, &err);
    HOLD(m, !mf->known || (got.len == mf->len && memcmp(got.body, mf->body, mf->len) == 0), "another manifest");
    store_manifest_release(&got);
    for (int i = 0; i < REPOS; i++) {
        DO(m, store_repo_has_manifest(m->f->st, m->repos[i], &mf->digest, &has, &err));
        HOLD(m, has == mf->in_repo[i], "repository %d %s manifest %d", i, has ? "has" : "lacks",
             (int)(mf - m->manifests));
    }
    expect_code(m, "store_view_get", store_view_get(m->f->st, &mf->digest, 1, &view, &err),
                mf->has_view ? 0 : ERR_NOTFOUND, &err);
    HOLD(m, !mf->has_view || digest_equal(&view, &mf->view), "another view");
}

static inline void check_tags(struct model *m)
{
    struct store_tag got;

    for (int i = 0; i < REPOS; i++) {
        for (int k = 0; k < TAGS; k++) {
            const struct manifest *want = m->tags[i][k];
            struct err err = ERR_INIT;

            expect_code(m, "store_tag_get", store_tag_get(m->f->st, m->repos[i], tag_name(k), &got, &err),
                        want != NULL ? 0 : ERR_NOTFOUND, &err);
            HOLD(m, want == NULL || digest_equal(&got.digest, &want->digest), "tag %s of %d leads elsewhere",
                 tag_name(k), i);
        }
    }
}

/* As blob.c has it: what is present wins, then canonical, original, zstd. */
static inline void check_look_up(struct model *m, const struct digest *d)
{
    const struct content *c = content_by(m, d), *z = content_by_zstd(m, d), *of;
    const struct original *o = original_by(m, d);
    struct store_blob got;
    struct err err = ERR_INIT;
    enum store_role role = ROLE_UNKNOWN;
    bool present = true;
    uint64_t size = 0;

    if (c != NULL && !c->t.known)
        c = NULL;
    if (o != NULL && !o->t.known)
        o = NULL;
    if (c != NULL && c->t.present)
        role = ROLE_CANONICAL;
    else if (o != NULL && o->t.present)
        role = ROLE_ORIGINAL;
    else if (z != NULL && (z->t.present || (c == NULL && o == NULL)))
        role = ROLE_ZSTD, present = z->t.present;
    else
        role = c != NULL ? ROLE_CANONICAL : o != NULL ? ROLE_ORIGINAL : ROLE_UNKNOWN, present = false;
    of = role == ROLE_CANONICAL ? c : role == ROLE_ZSTD ? z : o != NULL && o->canon == CANON_DONE ? o->content : NULL;
    size = role == ROLE_CANONICAL  ? c->t.len
           : role == ROLE_ZSTD     ? z->frames->len
           : role == ROLE_ORIGINAL ? o->t.len
                                   : 0;
    DO(m, store_blob_lookup(m->f->st, d, &got, &err));
    HOLD(m, got.role == role && got.present == present && got.size_bytes == size,
         "%s is role %d, present %d, %llu bytes, and not role %d, present %d, %llu bytes", digest_text(d).s, got.role,
         got.present, (unsigned long long)got.size_bytes, role, present, (unsigned long long)size);
    HOLD(m, got.has_canonical == (of != NULL), "%s has a canonical form, or has not", digest_text(d).s);
    HOLD(m,
         of == NULL || (digest_equal(&got.canonical, &of->t.digest) && digest_equal(&got.zstd, &of->zdigest) &&
                        got.canonical_present == of->t.present),
         "the canonical form of %s", digest_text(d).s);
    HOLD(m, role != ROLE_ORIGINAL || got.canon == o->canon, "%s is canon %d", digest_text(d).s, got.canon);
}

/* Whether the digest can be made of what `from` is fetched as: it itself, its layer, the zstd form of that. */
static inline bool leads_to(struct model *m, const struct original *from, const struct digest *d)
{
    const struct content *z = content_by_zstd(m, d);

    if (digest_equal(&from->t.digest, d) || (z != NULL && digest_equal(&from->t.digest, &z->t.digest)))
        return true;
    return from->canon == CANON_DONE && (digest_equal(&from->content->t.digest, d) || from->content == z);
}

static inline void check_links(struct model *m, const struct digest *d)
{
    struct store_source sources[REPOS * ORIGINALS];
    struct err err = ERR_INIT;
    size_t count, want = 0;

    DO(m, store_sources(m->f->st, d, 0, sources, ARRAY_LEN(sources), &count, &err));
    for (int i = 0; i < REPOS; i++) {
        size_t holds = 0;
        bool has;

        for (int k = 0; k < ORIGINALS; k++)
            holds += m->originals[k].linked[i] && leads_to(m, &m->originals[k], d);
        DO(m, store_repo_has_blob(m->f->st, m->repos[i], d, &has, &err));
        HOLD(m, has == (holds > 0), "repository %d %s %s", i, has ? "has" : "lacks", digest_text(d).s);
        want += holds;
    }
    HOLD(m, count == want, "%s has %zu sources, not %zu", digest_text(d).s, count, want);
}

struct pending {
    struct model *m;
    size_t count;
};

static inline int saw_pending(void *arg, const struct digest *d, struct err *err)
{
    struct pending *p = arg;
    const struct original *o = original_by(p->m, d);

    (void)err;
    HOLD(p->m, o != NULL && o->t.present && o->canon == CANON_PENDING, "%s is pending", digest_text(d).s);
    p->count++;
    return 0;
}

static inline void check_pending(struct model *m)
{
    struct pending p = {.m = m};
    struct err err = ERR_INIT;
    size_t want = 0;

    DO(m, store_each_pending(m->f->st, saw_pending, &p, &err));
    for (int i = 0; i < ORIGINALS; i++)
        want += m->originals[i].t.present && m->originals[i].canon == CANON_PENDING;
    HOLD(m, p.count == want, "%zu pending, not %zu", p.count, want);
}
