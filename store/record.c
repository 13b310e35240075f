/* SPDX-License-Identifier: Apache-2.0
 * store/record.c - metadata records: a version, fixed numbers, then strings with their length before them.
 */
#include "store/record_internal.h"

#include "store/le_internal.h"

#define REF_BYTES 44 /* role u32, size u64, digest */
#define FLAG_INDEX 1u
#define FLAG_DROPPED 1u

struct record_text record_text(const char *s)
{
    return s != NULL ? (struct record_text){.s = s, .len = strlen(s)} : (struct record_text){.s = "", .len = 0};
}

/* ---- writing -------------------------------------------------------------------------------------------------------- */

static int put_u32(struct buf *b, uint32_t v, struct err *err)
{
    uint8_t p[4];

    le_put32(p, v);
    return buf_add(b, p, sizeof(p), err);
}

static int put_u64(struct buf *b, uint64_t v, struct err *err)
{
    uint8_t p[8];

    le_put64(p, v);
    return buf_add(b, p, sizeof(p), err);
}

static int put_text(struct buf *b, struct record_text t, struct err *err)
{
    TRY(put_u32(b, (uint32_t)t.len, err));
    return buf_add(b, t.s, t.len, err);
}

static int put_head(struct buf *b, uint32_t flags, struct err *err)
{
    TRY(put_u32(b, RECORD_VERSION, err));
    return put_u32(b, flags, err);
}

int record_put_manifest(struct buf *b, const struct record_manifest *m, struct err *err)
{
    TRY(put_head(b, m->is_index ? FLAG_INDEX : 0, err));
    TRY(put_u32(b, (uint32_t)m->view, err));
    TRY(put_u32(b, (uint32_t)m->ref_count, err));
    TRY(buf_add(b, m->upstream.b, DIGEST_BYTES, err));
    TRY(put_text(b, m->media_type, err));
    TRY(put_text(b, m->never, err));
    for (size_t i = 0; i < m->ref_count; i++) {
        TRY(put_u32(b, (uint32_t)m->refs[i].role, err));
        TRY(put_u64(b, m->refs[i].size_bytes, err));
        TRY(buf_add(b, m->refs[i].digest.b, DIGEST_BYTES, err));
    }
    return put_text(b, (struct record_text){.s = m->body, .len = m->len}, err);
}

int record_put_link(struct buf *b, const struct record_link *l, struct err *err)
{
    TRY(put_head(b, (uint32_t)l->kind, err));
    TRY(put_u64(b, l->size_bytes, err));
    TRY(put_text(b, l->upstream, err));
    return put_text(b, l->name, err);
}

int record_put_tag(struct buf *b, const struct record_tag *t, struct err *err)
{
    TRY(put_head(b, t->dropped ? FLAG_DROPPED : 0, err));
    TRY(put_u64(b, (uint64_t)t->at, err));
    TRY(put_text(b, t->upstream, err));
    TRY(put_text(b, t->name, err));
    return put_text(b, t->tag, err);
}

int record_put_view(struct buf *b, const struct record_view *v, struct err *err)
{
    TRY(put_head(b, 0, err));
    TRY(put_u32(b, (uint32_t)v->view, err));
    return buf_add(b, v->derived.b, DIGEST_BYTES, err);
}

/* ---- reading: a cursor that fails once and then gives zeroes ------------------------------------------------------------ */

struct cursor {
    const uint8_t *p;
    size_t left;
    bool failed;
};

static const uint8_t *take(struct cursor *c, size_t n)
{
    static const uint8_t zeroes[DIGEST_BYTES];
    const uint8_t *p = c->p;

    if (c->failed || n > c->left) {
        c->failed = true;
        return n <= sizeof(zeroes) ? zeroes : NULL;
    }
    c->p += n;
    c->left -= n;
    return p;
}

static uint32_t get_u32(struct cursor *c)
{
    return le_get32(take(c, 4));
}

static uint64_t get_u64(struct cursor *c)
{
    return le_get64(take(c, 8));
}

static void get_digest(struct cursor *c, struct digest *out)
{
    memcpy(out->b, take(c, DIGEST_BYTES), DIGEST_BYTES);
}

static struct record_text get_text(struct cursor *c)
{
    size_t len = get_u32(c);
    const uint8_t *p = take(c, len);

    return c->failed ? (struct record_text){.s = "", .len = 0} : (struct record_text){.s = (const char *)p, .len = len};
}

static int get_head(struct cursor *c, uint32_t flags_known, uint32_t *out_flags, struct err *err)
{
    uint32_t version = get_u32(c);

    *out_flags = get_u32(c);
    if (c->failed)
        return err_set(err, ERR_CORRUPT, "pack record: too short");
    if (version != RECORD_VERSION || (*out_flags & ~flags_known) != 0)
        return err_set(err, ERR_UNSUPPORTED, "pack record: version %u flags %#x, this recask knows version %d", version,
                       *out_flags, RECORD_VERSION);
    return 0;
}

static int finish(const struct cursor *c, struct err *err)
{
    return !c->failed && c->left == 0 ? 0 : err_set(err, ERR_CORRUPT, "pack record: malformed");
}

int record_get_manifest(const uint8_t *data, size_t len, struct record_manifest *out, struct err *err)
{
    struct cursor c = {.p = data, .left = len};
    struct record_text body;
    uint32_t flags;

    *out = (struct record_manifest){.view = 0};
    TRY(get_head(&c, FLAG_INDEX, &flags, err));
    out->is_index = (flags & FLAG_INDEX) != 0;
    out->view = (int)get_u32(&c);
    out->ref_count = get_u32(&c);
    get_digest(&c, &out->upstream);
    out->media_type = get_text(&c);
    out->never = get_text(&c);
    if (out->ref_count > c.left / REF_BYTES)
        return err_set(err, ERR_CORRUPT, "pack record: malformed");
    out->ref_bytes = take(&c, out->ref_count * REF_BYTES);
    body = get_text(&c);
    out->body = body.s;
    out->len = body.len;
    return finish(&c, err);
}

int record_ref_at(const struct record_manifest *m, size_t i, struct store_ref *out, struct err *err)
{
    const uint8_t *p = m->ref_bytes + i * REF_BYTES;
    uint32_t role = le_get32(p);

    if (role < REF_CONFIG || role > REF_CHILD)
        return err_set(err, ERR_CORRUPT, "pack record: a reference of kind %u", role);
    out->role = (enum store_ref_role)role;
    out->size_bytes = le_get64(p + 4);
    memcpy(out->digest.b, p + 12, DIGEST_BYTES);
    return 0;
}

int record_get_link(const uint8_t *data, size_t len, struct record_link *out, struct err *err)
{
    struct cursor c = {.p = data, .left = len};
    uint32_t flags;

    TRY(get_head(&c, RECORD_LINK_MANIFEST, &flags, err));
    out->kind = (enum record_link_kind)flags;
    out->size_bytes = get_u64(&c);
    out->upstream = get_text(&c);
    out->name = get_text(&c);
    return finish(&c, err);
}

int record_get_tag(const uint8_t *data, size_t len, struct record_tag *out, struct err *err)
{
    struct cursor c = {.p = data, .left = len};
    uint32_t flags;

    TRY(get_head(&c, FLAG_DROPPED, &flags, err));
    out->dropped = (flags & FLAG_DROPPED) != 0;
    out->at = (int64_t)get_u64(&c);
    out->upstream = get_text(&c);
    out->name = get_text(&c);
    out->tag = get_text(&c);
    return finish(&c, err);
}

int record_get_view(const uint8_t *data, size_t len, struct record_view *out, struct err *err)
{
    struct cursor c = {.p = data, .left = len};
    uint32_t flags;

    TRY(get_head(&c, 0, &flags, err));
    out->view = (int)get_u32(&c);
    get_digest(&c, &out->derived);
    return finish(&c, err);
}
