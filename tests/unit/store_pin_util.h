/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_pin_util.h - images whose blobs are stored, pinned and removed, and what pins should lead to. Include
 * after cmocka's headers.
 */
#pragma once

#include "store/pin_internal.h"
#include "tests/unit/store_layer_util.h"

#define MT "application/vnd.oci.image.manifest.v1+json"
#define LAYER_BYTES 100000

static inline int64_t repo_of(struct store *st, const char *name)
{
    struct err err = ERR_INIT;
    int64_t repo = 0;

    ASSERT_OK(store_repo(st, "docker.io", name, &repo, &err));
    return repo;
}

static inline struct digest named(const char *s)
{
    struct digest d;

    digest_of(s, strlen(s), &d);
    return d;
}

/* ---- the oracle ---------------------------------------------------------------------------------------------------------- */

/* What pins lead to, from nothing but the rows that somebody wrote. */
#define REACH                                                                                                          \
    "WITH RECURSIVE reach (digest, exact) AS ("                                                                        \
    "  SELECT digest, by_digest FROM pin"                                                                              \
    "  UNION SELECT r.digest, reach.exact OR (r.role <> 3 AND m.views <> 1) FROM reach"                                \
    "   JOIN manifest m ON m.digest = reach.digest JOIN manifest_ref r ON r.manifest_id = m.id),"                      \
    " want (digest, exact) AS (SELECT digest, max(exact) FROM reach GROUP BY digest) "

static inline void expect_exact_pins(struct store *st)
{
    assert_int_equal(sql_number(st,
                                REACH "SELECT (SELECT count(*) FROM (SELECT * FROM want EXCEPT SELECT * FROM pinned))"
                                      " + (SELECT count(*) FROM (SELECT * FROM pinned EXCEPT SELECT * FROM want))"),
                     0);
    assert_int_equal(sql_number(st, REACH "SELECT count(*) FROM blob b WHERE pinned <>"
                                          " coalesce((SELECT 1 + exact FROM want WHERE digest = b.digest), 0)"),
                     0);
    assert_int_equal(sql_number(st, REACH "SELECT count(*) FROM canonical c WHERE pinned <> EXISTS (SELECT 1 FROM want"
                                          " WHERE digest IN (c.digest, c.zdigest) OR digest IN"
                                          "  (SELECT digest FROM blob WHERE canonical_id = c.id))"),
                     0);
    assert_int_equal(sql_number(st, "SELECT pins - (SELECT count(*) FROM pin) FROM totals"), 0);
    assert_int_equal(
        sql_number(st,
                   "SELECT pinned_bytes"
                   " - (SELECT coalesce(sum(size), 0) FROM blob WHERE pinned > 0 AND original_present = 1)"
                   " - (SELECT coalesce(sum(zsize), 0) FROM canonical WHERE pinned = 1 AND present = 1) FROM totals"),
        0);
    /* The digest of a pinned tag is the tag's. */
    assert_int_equal(sql_number(st, "SELECT count(*) FROM pin p JOIN tag t ON t.repo_id = p.repo_id"
                                    " AND t.name = p.reference JOIN manifest m ON m.id = t.manifest_id"
                                    " WHERE p.by_digest = 0 AND p.digest <> m.digest"),
                     0);
}

/* ---- images ---------------------------------------------------------------------------------------------------------------- */

struct image {
    struct digest digest, config, layer, canonical; /* layer: as the upstream has it */
};

static inline struct digest put_refs(struct store *st, int64_t repo, const char *tag, const char *body,
                                     const struct store_ref *refs, size_t count)
{
    struct store_manifest_put p = {.repo = repo,
                                   .tag = tag,
                                   .digest = named(body),
                                   .media_type = MT,
                                   .body = body,
                                   .len = strlen(body),
                                   .refs = refs,
                                   .ref_count = count};
    struct err err = ERR_INIT;

    for (size_t i = 0; i < count; i++)
        p.is_index |= refs[i].role == REF_CHILD;
    ASSERT_OK(store_manifest_put(st, &p, &err));
    return p.digest;
}

/* What an image of this number consists of. Nothing is stored. */
static inline struct image image_of(int n)
{
    struct image im;
    char text[64];
    static uint8_t data[LAYER_BYTES];

    (void)snprintf(text, sizeof(text), "image %d", n);
    im.digest = named(text);
    (void)snprintf(text, sizeof(text), "config %d", n);
    im.config = named(text);
    (void)snprintf(text, sizeof(text), "original %d", n);
    im.layer = named(text);
    fill_random(data, sizeof(data), (unsigned)n);
    digest_of(data, sizeof(data), &im.canonical);
    return im;
}

static inline void put_manifest(struct store *st, int64_t repo, const char *tag, int n)
{
    struct image im = image_of(n);
    struct store_ref refs[2] = {{.role = REF_CONFIG, .digest = im.config, .size_bytes = 10},
                                {.role = REF_LAYER, .digest = im.layer, .size_bytes = 100}};
    char text[64];

    (void)snprintf(text, sizeof(text), "image %d", n);
    (void)put_refs(st, repo, tag, text, refs, 2);
}

static inline void put_layer(struct store *st, int n)
{
    static uint8_t data[LAYER_BYTES];
    struct digest source = put_source(st, n);

    fill_random(data, sizeof(data), (unsigned)n);
    (void)write_layer(st, &source, data, sizeof(data));
}

static inline void put_blobs(struct store *st, int n)
{
    char text[64];
    int len = snprintf(text, sizeof(text), "config %d", n);

    (void)put_original(st, text, (size_t)len);
    (void)put_source(st, n);
}

static inline void set_views(struct store *st, int n, enum store_views views)
{
    struct image im = image_of(n);
    struct err err = ERR_INIT;

    ASSERT_OK(store_manifest_set_views(st, &im.digest, views, NULL, &err));
}

/* As after a pull and the background job. */
static inline struct image put_image(struct store *st, int64_t repo, const char *tag, int n)
{
    put_manifest(st, repo, tag, n);
    put_blobs(st, n);
    put_layer(st, n);
    set_views(st, n, VIEWS_READY);
    return image_of(n);
}

static inline bool has_original(struct store *st, const struct digest *d)
{
    CLEANUP(source_cleanup) struct source *s = NULL;
    struct err err = ERR_INIT;

    return original_open_quietly(st, d, &s, &err) == 0;
}

static inline bool has_layer(struct store *st, const struct digest *canonical)
{
    struct store_blob blob;
    struct err err = ERR_INIT;

    ASSERT_OK(store_blob_lookup(st, canonical, &blob, &err));
    return blob.canonical_present;
}

static inline struct store_pin_result pin(struct store *st, int64_t repo, const char *tag, const struct digest *d)
{
    struct store_pin_result r;
    struct err err = ERR_INIT;

    ASSERT_OK(store_pin(st, repo, tag, d, &r, &err));
    expect_exact_pins(st);
    return r;
}

static inline struct store_pin_result unpin(struct store *st, int64_t repo, const char *tag, const struct digest *d)
{
    struct store_pin_result r;
    struct err err = ERR_INIT;

    ASSERT_OK(store_unpin(st, repo, tag, d, &r, &err));
    expect_exact_pins(st);
    return r;
}

static inline struct store_remove_result take_away(struct store *st, int64_t repo, const char *tag,
                                                   const struct digest *d)
{
    struct store_remove_result r;
    struct err err = ERR_INIT;

    ASSERT_OK(store_remove(st, repo, tag, d, &r, &err));
    expect_exact_pins(st);
    return r;
}

/* Makes all go that may. Returns how the last try ended. */
static inline int evict_all(struct fixture *f)
{
    uint64_t quota = f->st->opt.quota_bytes;
    struct err err = ERR_INIT;
    int rc = 0;

    while (rc == 0) {
        uint64_t want = room_used(f->st);

        f->st->opt.quota_bytes = want + want / 31 + 31;
        rc = room_take(f->st, 8192, &err);
        if (rc == 0)
            room_give(f->st, 8192);
        err_clear(&err);
    }
    f->st->opt.quota_bytes = quota;
    expect_exact_pins(f->st);
    return rc;
}
