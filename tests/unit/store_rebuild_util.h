/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_rebuild_util.h - a store with something of everything in it, and what a check says of it. Include after
 * cmocka's headers.
 */
#pragma once

#include "store/check.h"
#include "store/meta.h"
#include "store/pin.h"
#include "tests/unit/store_layer_util.h"

#define MT "application/vnd.oci.image.manifest.v1+json"
#define TEXT_BYTES 300000

static inline struct digest named(const char *s)
{
    struct digest d;

    digest_of(s, strlen(s), &d);
    return d;
}

static inline int64_t repo_of(struct store *st, const char *name)
{
    struct err err = ERR_INIT;
    int64_t repo = 0;

    ASSERT_OK(store_repo(st, "docker.io", name, &repo, &err));
    return repo;
}

static inline struct digest put_blob(struct store *st, int64_t repo, const char *text)
{
    CLEANUP(spool_cleanup) struct spool *sp = NULL;
    struct err err = ERR_INIT;
    struct digest d = named(text);

    ASSERT_OK(spool_open(st, &sp, &err));
    ASSERT_OK(spool_write(sp, text, strlen(text), &err));
    ASSERT_OK(spool_commit(sp, &d, repo, &err));
    return d;
}

static inline uint8_t *make_text(uint64_t seed)
{
    uint8_t *data = malloc(TEXT_BYTES);

    assert_non_null(data);
    for (size_t i = 0; i < TEXT_BYTES; i++)
        data[i] = (uint8_t)("abcdefghijklmnop"[next_random(&seed) % 16]);
    return data;
}

static inline struct digest put_manifest(struct store *st, int64_t repo, const char *tag, const char *body,
                                         const struct digest *layer, enum store_ref_role role, const char *never)
{
    struct store_ref refs[2] = {{.role = REF_CONFIG, .digest = named("config"), .size_bytes = 6},
                                {.role = role, .digest = *layer, .size_bytes = 12}};
    struct store_manifest_put p = {.repo = repo,
                                   .tag = tag,
                                   .digest = named(body),
                                   .media_type = MT,
                                   .body = body,
                                   .len = strlen(body),
                                   .is_index = role == REF_CHILD,
                                   .refs = refs,
                                   .ref_count = 2,
                                   .never = never};
    struct err err = ERR_INIT;

    ASSERT_OK(store_manifest_put(st, &p, &err));
    return p.digest;
}

static inline struct digest put_view(struct store *st, const struct digest *upstream, int view, const char *body)
{
    struct err err = ERR_INIT;
    struct digest d;

    ASSERT_OK(store_view_put(st, upstream, view, MT, body, strlen(body), &d, &err));
    return d;
}

struct filled {
    struct digest blobs[3]; /* their layers, the second and third evicted: one as an original, one as a layer */
    struct layer_result layers[3];
    uint8_t *data[3];
    struct digest image, index;
};

static inline void fill(struct store *st, struct filled *out)
{
    int64_t a = repo_of(st, "library/a"), b = repo_of(st, "library/b");
    struct store_pin_result pin;
    struct err err = ERR_INIT;
    struct digest gone;
    char body[200];

    for (int i = 0; i < 3; i++) {
        char text[32];

        (void)snprintf(text, sizeof(text), "original %d", i);
        out->data[i] = make_text(i == 2 ? 9 : (uint64_t)i + 1);
        if (i == 1)
            memcpy(out->data[1], out->data[0], TEXT_BYTES / 2); /* shares chunks */
        out->blobs[i] = put_blob(st, i == 0 ? a : b, text);
        out->layers[i] = write_layer(st, &out->blobs[i], out->data[i], TEXT_BYTES);
    }
    ASSERT_OK(store_repo_add_blob(st, a, &(struct digest){.b = {7}}, 4711, &err));
    (void)put_blob(st, a, "config");
    gone = put_manifest(st, a, "moved", "{\"was\"}", &out->blobs[0], REF_LAYER, NULL);
    out->image = put_manifest(st, a, "moved", "{\"image\"}", &out->blobs[0], REF_LAYER, NULL);
    (void)put_manifest(st, a, "dropped", "{\"image\"}", &out->blobs[0], REF_LAYER, NULL);
    ASSERT_OK(store_tag_drop(st, a, "dropped", &err));
    (void)put_manifest(st, b, "never", "{\"never\"}", &out->blobs[1], REF_LAYER, "it is odd");
    out->index = put_manifest(st, b, NULL, "{\"index\"}", &out->image, REF_CHILD, NULL);
    ASSERT_OK(store_tag_set(st, b, "again", &out->index, &err));
    (void)put_view(st, &out->image, 1, "{\"canonical, before\"}");
    (void)put_view(st, &out->image, 1, "{\"canonical\"}");
    (void)snprintf(body, sizeof(body), "{\"zstd %s\"}", digest_hex(&out->layers[0].zstd).s);
    (void)put_view(st, &out->image, 2, body);
    ASSERT_OK(store_view_put_same(st, &gone, 1, &err));
    ASSERT_OK(store_pin(st, a, "moved", NULL, &pin, &err));
    ASSERT_OK(store_pin(st, b, NULL, &out->index, &pin, &err));
    ASSERT_OK(store_pin(st, b, "again", NULL, &pin, &err));
    ASSERT_OK(store_unpin(st, b, "again", NULL, &pin, &err));
    ASSERT_OK(store_evict(st, &out->blobs[1], &err));
    ASSERT_OK(store_evict(st, &out->layers[2].canonical, &err));
}

static inline void filled_release(struct filled *x)
{
    for (int i = 0; i < 3; i++)
        free(x->data[i]);
}

/* ---- what is said -------------------------------------------------------------------------------- */

struct heard {
    unsigned lines;
    char all[16384];
};

static inline void hear(void *arg, const struct store_report *r)
{
    struct heard *h = arg;
    size_t at = strlen(h->all);

    if (r->text == NULL)
        return;
    h->lines++;
    (void)snprintf(h->all + at, sizeof(h->all) - at, "%s\n", r->text);
}

static inline void close_store(struct fixture *f)
{
    store_close(f->st);
    f->st = NULL;
}

static inline void expect_clean(struct fixture *f)
{
    struct heard h = {.lines = 0};
    struct store_check_result r;
    struct err err = ERR_INIT;

    ASSERT_OK(store_check_bytes(f->dir, hear, &h, &r, &err));
    if (h.lines != 0 || r.findings != 0)
        fail_msg("%s", h.all);
}
