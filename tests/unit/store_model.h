/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_model.h - the model that store_model_test.c holds a store against: what may be put into it, what is in
 * it, and what was done to it. Include after cmocka's headers.
 */
#pragma once

#include "base/clock.h"
#include "store/files_internal.h"
#include "store/gc.h"
#include "store/meta.h"
#include "tests/unit/store_layer_util.h"
#include "transcode/codec.h"

#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1) << 20)
#define WIDE_BYTES (1024 * MIB) /* a quota that nothing is evicted for */
#define PACK_BYTES (512 * KIB)  /* small, so that there is always one to compact */
#define SMALL_BYTES 65536       /* originals below stay longer */

#define CONTENTS 24
#define OPAQUES 8 /* originals that are no layer */
#define ORIGINALS (2 * CONTENTS + OPAQUES)
#define MANIFESTS 16
#define REPOS 3
#define TAGS 5
#define READERS 6
#define WRITERS 2
#define BAD_MAX 4096
#define PAST 64 /* operations that a failure shows */

/* Bytes that the store can hold under one digest. */
struct thing {
    struct digest digest;
    uint8_t *data;
    size_t len;
    bool known;   /* has a row */
    bool present; /* and its bytes */
    unsigned leases;
    int64_t lo, hi; /* wall ms between which it was read last */
};

/* The frames of a layer at one time: another level, other frames. They live to the end, since readers hold on. */
struct frames {
    struct frames *older;
    bool unread; /* its data is not known yet */
    size_t len;
    uint8_t data[];
};

struct content {
    struct thing t;
    struct digest zdigest;
    struct frames *frames; /* NULL: never stored */
};

enum wound { WHOLE = 0, BROKEN, MISSING };

struct original {
    struct thing t;
    struct content *content; /* NULL: no layer */
    enum store_canon canon;
    enum wound wound;
    bool linked[REPOS];
};

struct manifest {
    char body[512];
    size_t len;
    struct digest digest;
    struct store_ref refs[3];
    bool known, in_repo[REPOS];
    bool has_view;
    bool ready;            /* VIEWS_READY: its layers will do in their canonical form */
    bool pinned_in[REPOS]; /* by its digest */
    struct digest view;
};

struct reader {
    struct source *s; /* NULL: free */
    struct thing *t;
    const uint8_t *want;
    uint64_t pos, end;
    bool may_fail; /* what it reads was damaged or taken away meanwhile */
    bool must_fail;
};

struct writer {
    struct layer_writer *w; /* NULL: free */
    struct original *o;
    size_t pos;
    bool disturbed; /* something was taken away or damaged since it began */
};

struct bad {
    int64_t pack;
    int64_t off; /* -1: the whole file is gone */
};

struct model {
    struct fixture *f;
    struct sql_db *db; /* looks at the catalog beside the store */
    uint64_t rng, seed;
    unsigned long op, ops;
    bool verbose;
    char past[PAST][120];
    struct content contents[CONTENTS];
    struct original originals[ORIGINALS];
    struct manifest manifests[MANIFESTS];
    int64_t repos[REPOS];
    struct manifest *tags[REPOS][TAGS];
    struct manifest *pins[REPOS][TAGS]; /* of tags, and where they lead */
    struct reader readers[READERS];
    struct writer writers[WRITERS];
    const struct content *fresh; /* was stored only after room had been made */
    struct spool *spool;         /* one that is being written across operations, or NULL */
    struct store_gc *gc;         /* collecting goes on across operations; NULL: none */
    uint64_t quota_bytes;
    struct bad bad[BAD_MAX];
    size_t bad_count;
    uint64_t inflated_bytes; /* of files that were taken away behind the store's back */
    uint64_t evicted_layers, evicted_originals, crashes, packs_compacted, reads, fills, layers, damages, no_room;
};

/* ---- randomness and words ---------------------------------------------------------------------------------------------- */

static inline uint64_t pick(struct model *m, uint64_t n)
{
    return next_random(&m->rng) % n;
}

/* From 1 to max, each order of magnitude as likely as another. */
static inline size_t pick_size(struct model *m, size_t max)
{
    size_t n = 2;

    while (n < max && pick(m, 8) != 0)
        n *= 2;
    return 1 + pick(m, n < max ? n : max);
}

static inline void tell_past(const struct model *m)
{
    fprintf(stderr, "RECASK_MODEL_SEED=%llu RECASK_MODEL_OPS=%lu fails at operation %lu; the last ones:\n",
            (unsigned long long)m->seed, m->ops, m->op);
    for (unsigned long i = m->op >= PAST ? m->op - PAST + 1 : 0; i <= m->op; i++)
        fprintf(stderr, "  %lu %s\n", i, m->past[i % PAST]);
}

#define FAIL(m, ...)                                                                                                   \
    do {                                                                                                               \
        tell_past(m);                                                                                                  \
        fail_msg(__VA_ARGS__);                                                                                         \
    } while (0)

#define HOLD(m, cond, ...)                                                                                             \
    do {                                                                                                               \
        if (!(cond))                                                                                                   \
            FAIL(m, __VA_ARGS__);                                                                                      \
    } while (0)

#define DO(m, expr)                                                                                                    \
    do {                                                                                                               \
        if ((expr) < 0)                                                                                                \
            FAIL(m, "%s: %s", #expr, err.msg);                                                                         \
    } while (0)

static inline void expect_code(struct model *m, const char *what, int got, int want, struct err *err)
{
    HOLD(m, got == want, "%s = %s (%s), not %s", what, got == 0 ? "0" : err_code_name(got), err->msg,
         want == 0 ? "0" : err_code_name(want));
    err_clear(err);
}

/* What the operation is, for a failure to show. */
static inline void PRINTF_LIKE(2, 3) note(struct model *m, const char *fmt, ...)
{
    char *to = m->past[m->op % PAST];
    size_t at = strlen(to);
    va_list ap;

    if (at + 2 >= sizeof(m->past[0]))
        return;
    va_start(ap, fmt);
    (void)vsnprintf(to + at, sizeof(m->past[0]) - at, fmt, ap);
    va_end(ap);
    if (m->verbose)
        fprintf(stderr, "%lu %s\n", m->op, to);
}

static inline int original_no(const struct model *m, const struct original *o)
{
    return (int)(o - m->originals);
}

static inline int content_no(const struct model *m, const struct content *c)
{
    return (int)(c - m->contents);
}

/* ---- what may be put in ------------------------------------------------------------------------------------------------- */

static inline void set_thing(struct thing *t, uint8_t *data, size_t len)
{
    t->data = data;
    t->len = len;
    digest_of(data, len, &t->digest);
}

/* A tar of files some of which other contents have too. */
static inline void make_content(struct model *m, struct content *c, size_t max)
{
    struct tar t = {.data = NULL};
    char name[64];

    if (max > 0) { /* no two are the same */
        (void)snprintf(name, sizeof(name), "content%d", (int)(c - m->contents));
        (void)tar_header(&t, name, '5', 0);
    }
    while (t.len < max) {
        bool shared = pick(m, 3) != 0;
        uint64_t id = shared ? pick(m, 24) : 1000 + pick(m, 1 << 30);
        uint64_t shape = id * 2654435761u;
        size_t size = (size_t)1 << (6 + shape % 14); /* 64 bytes to 512 KiB, always the same of one id */

        (void)snprintf(name, sizeof(name), "file%llu", (unsigned long long)id);
        (void)tar_file(&t, name, size + (size_t)(shape >> 8) % size, id);
    }
    if (t.len > 0)
        tar_end(&t);
    if (t.data == NULL)
        t.data = malloc(1);
    set_thing(&c->t, t.data, t.len);
}

static inline void encode_as(struct thing *t, enum codec codec, const struct thing *from)
{
    struct filter *f = NULL;
    struct err err = ERR_INIT;
    size_t cap = from->len + from->len / 8 + 4096;
    uint8_t *data = malloc(cap);
    struct stream_in in = {.ptr = from->data, .len = from->len};
    struct stream_out out = {.ptr = data, .len = cap};
    int rc;

    assert_non_null(data);
    ASSERT_OK(codec_encoder_new(codec, 1, &f, &err));
    do {
        ASSERT_OK(rc = filter_step(f, &in, true, &out, &err));
        assert_int_not_equal(rc, STEP_WAIT);
    } while (rc != STEP_EOF);
    filter_free(f);
    set_thing(t, data, out.pos);
}

static inline void make_opaque(struct model *m, struct original *o, int i)
{
    size_t len = i == 0 ? 100 : i < OPAQUES / 2 ? pick_size(m, SMALL_BYTES) : SMALL_BYTES + pick(m, MIB);
    uint8_t *data = malloc(len);

    assert_non_null(data);
    fill_random(data, len, pick(m, UINT64_MAX));
    set_thing(&o->t, data, len);
}

static inline void make_manifest(struct model *m, struct manifest *mf, int i)
{
    int len = snprintf(mf->body, sizeof(mf->body), "{\"number\":%d,\"seed\":%llu}", i, (unsigned long long)m->seed);

    mf->len = (size_t)len;
    digest_of(mf->body, mf->len, &mf->digest);
    for (int k = 0; k < 3; k++) {
        struct original *o = &m->originals[k == 0 ? 2 * CONTENTS + (int)pick(m, OPAQUES) : (int)pick(m, 2 * CONTENTS)];

        mf->refs[k] =
            (struct store_ref){.role = k == 0 ? REF_CONFIG : REF_LAYER, .digest = o->t.digest, .size_bytes = o->t.len};
    }
}

/* Each content as a gzip or zstd original, and once more in another form: a third of them as they are. */
static inline void make_universe(struct model *m)
{
    static const size_t edges[] = {0, 1, 2048, 70000, 3 * MIB};

    for (int i = 0; i < CONTENTS; i++) {
        struct content *c = &m->contents[i];
        bool plain = i % 3 == 0;
        uint8_t *copy;

        make_content(m, c, i < (int)ARRAY_LEN(edges) ? edges[i] : pick_size(m, MIB));
        m->originals[i].content = m->originals[CONTENTS + i].content = c;
        encode_as(&m->originals[i].t, i % 2 == 0 ? CODEC_GZIP : CODEC_ZSTD, &c->t);
        if (!plain) {
            encode_as(&m->originals[CONTENTS + i].t, i % 2 == 0 ? CODEC_ZSTD : CODEC_GZIP, &c->t);
            continue;
        }
        copy = malloc(c->t.len + 1);
        assert_non_null(copy);
        memcpy(copy, c->t.data, c->t.len);
        set_thing(&m->originals[CONTENTS + i].t, copy, c->t.len);
    }
    for (int i = 0; i < OPAQUES; i++)
        make_opaque(m, &m->originals[2 * CONTENTS + i], i);
    for (int i = 0; i < MANIFESTS; i++)
        make_manifest(m, &m->manifests[i], i);
}

static inline void free_universe(struct model *m)
{
    for (int i = 0; i < ORIGINALS; i++)
        free(m->originals[i].t.data);
    for (int i = 0; i < CONTENTS; i++) {
        free(m->contents[i].t.data);
        while (m->contents[i].frames != NULL) {
            struct frames *fr = m->contents[i].frames;

            m->contents[i].frames = fr->older;
            free(fr);
        }
    }
}

/* ---- who is what ---------------------------------------------------------------------------------------------------------- */

static inline struct original *original_by(struct model *m, const struct digest *d)
{
    for (int i = 0; i < ORIGINALS; i++)
        if (digest_equal(&m->originals[i].t.digest, d))
            return &m->originals[i];
    return NULL;
}

static inline struct content *content_by(struct model *m, const struct digest *d)
{
    for (int i = 0; i < CONTENTS; i++)
        if (digest_equal(&m->contents[i].t.digest, d))
            return &m->contents[i];
    return NULL;
}

static inline struct content *content_by_zstd(struct model *m, const struct digest *d)
{
    for (int i = 0; i < CONTENTS; i++)
        if (m->contents[i].frames != NULL && digest_equal(&m->contents[i].zdigest, d))
            return &m->contents[i];
    return NULL;
}

/* Some digest that the store may know: of an original, of a layer, of its zstd form. */
static inline struct digest pick_digest(struct model *m)
{
    struct content *c = &m->contents[pick(m, CONTENTS)];

    if (pick(m, 2) == 0)
        return m->originals[pick(m, ORIGINALS)].t.digest;
    return c->frames != NULL && pick(m, 2) == 0 ? c->zdigest : c->t.digest;
}

static inline const char *tag_name(int tag)
{
    static const char *const names[TAGS] = {"a", "b", "c", "d", "latest"};

    return names[tag];
}

static inline void touched(struct thing *t, int64_t before)
{
    t->lo = before;
    t->hi = clock_wall_ms();
}
