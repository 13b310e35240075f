/* SPDX-License-Identifier: Apache-2.0
 *
 * The form of a blob on the wire. A canonical layer goes out as identity, as its stored zstd frames, or as gzip made on
 * the fly; everything else as its own bytes. The rules: Range and HEAD mean identity, a
 * coding only where it was asked for, never on bytes whose digest is over a compressed form.
 */
#include "proxy/blob_internal.h"
#include "proxy/negotiate.h"
#include "store/layer.h"

#include <inttypes.h>

struct form {
    enum codec codec; /* CODEC_NONE: the digest's own bytes */
    const char *content_type;
    bool is_encoding; /* codec goes into Content-Encoding; else the type says it */
    bool has_length;
    uint64_t length;
};

/* Over a LAN, gzip made here and undone there costs both sides more than its bytes save; the clients that are given the
 * canonical view for want of zstd take it plain (docker 20.10, measured: bench/RESULTS.md). */
static bool gzip_pays(const struct request *r)
{
    return r->listener->opt.link != LINK_LAN || r->client.best_lan != VIEW_CANONICAL;
}

static void choose_form(const struct request *r, struct form *out)
{
    const char *type = NULL;

    *out = (struct form){.content_type = "application/octet-stream", .has_length = true, .length = r->blob.size_bytes};
    if (r->blob.role != ROLE_CANONICAL || !r->blob.present || http_header(r->x, "Range"))
        return;
    enum codec named = accept_layer_form(http_header(r->x, "Accept"), &type);
    if (named != CODEC_NONE) {
        out->codec = named;
        out->content_type = type;
    } else if (http_method(r->x) == HTTP_GET) {
        out->codec = accept_encoding_choose(http_header(r->x, "Accept-Encoding"));
        if (out->codec == CODEC_GZIP && !gzip_pays(r))
            out->codec = CODEC_NONE;
        out->is_encoding = out->codec != CODEC_NONE;
    }
    if (out->codec == CODEC_GZIP && out->is_encoding && !http_can_chunk(r->x)) {
        out->codec = CODEC_NONE;
        out->is_encoding = false;
    }
    if (out->codec == CODEC_GZIP)
        out->has_length = false;
    else if (out->codec == CODEC_ZSTD)
        out->length = r->blob.zstd_bytes;
}

/* The Range header, unless If-Range makes it void: the only validator that a range can go with is the identity's tag. */
static const char *wanted_range(const struct request *r)
{
    const char *tag = http_header(r->x, "If-Range");
    char ours[sizeof(struct digest_text) + 2];

    if (http_method(r->x) != HTTP_GET) /* RFC 9110 section 14.2: Range means nothing to other methods */
        return NULL;
    snprintf(ours, sizeof(ours), "\"%s\"", digest_text(&r->digest).s);
    if (tag && strcmp(tag, ours) != 0)
        return NULL;
    return http_header(r->x, "Range");
}

/* gzip made on the fly is not the same bytes with every encoder, so its tag is weak; the others are strong. */
static int etag(const struct request *r, const struct form *f, struct http_answer *a, struct err *err)
{
    struct digest_text d = digest_text(&r->digest);
    switch (f->codec) {
    case CODEC_NONE:
        return http_answer_header(a, err, "ETag", "\"%s\"", d.s);
    case CODEC_ZSTD:
        return http_answer_header(a, err, "ETag", "\"%s+zstd\"", d.s);
    case CODEC_GZIP:
        return http_answer_header(a, err, "ETag", "W/\"%s+gzip\"", d.s);
    }
    return 0;
}

static int headers(struct request *r, const struct form *f, const struct range *range, struct http_answer *a,
                   struct err *err)
{
    bool cold_range = r->fill && range->kind == RANGE_ONE;

    TRY(request_headers(r, a, err));
    TRY(http_answer_header(a, err, "Content-Type", "%s", f->content_type));
    TRY(http_answer_header(a, err, "Docker-Content-Digest", "%s", digest_text(&r->digest).s));
    TRY(http_answer_header(a, err, "Accept-Ranges", "bytes"));
    if (!cold_range) /* its bytes cannot have been verified when they go out */
        TRY(etag(r, f, a, err));
    if (r->blob.role == ROLE_CANONICAL)
        TRY(http_answer_header(a, err, "Vary", "Accept-Encoding"));
    if (f->is_encoding)
        TRY(http_answer_header(a, err, "Content-Encoding", "%s", codec_name(f->codec)));
    if (range->kind == RANGE_ONE)
        TRY(http_answer_header(a, err, "Content-Range", "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, range->first,
                               range->last, f->length));
    else if (http_method(r->x) == HTTP_GET)
        TRY(http_answer_header(a, err, "Location", "%s", http_path(r->x))); /* Ollama insists on one with a 200 */
    return 0;
}

static void unsatisfiable(struct request *r, uint64_t size)
{
    struct http_answer a = {.status = 416};
    struct err err = ERR_INIT;

    if (request_headers(r, &a, &err) < 0 ||
        http_answer_header(&a, &err, "Content-Range", "bytes */%" PRIu64, size) < 0) {
        http_answer_release(&a);
        request_fail(r, &err);
        return;
    }
    request_reply(r, &a);
}

/* What of the form is wanted. False: nothing that it has, and the request was answered so. */
static bool choose_range(struct request *r, const struct form *f, struct range *out)
{
    range_parse(wanted_range(r), f->length, out);
    if (out->kind != RANGE_UNSATISFIABLE)
        return true;
    unsatisfiable(r, f->length);
    return false;
}

/* Bytes in the answer's body: of the range, else of the whole form. */
static uint64_t part_bytes(const struct form *f, const struct range *range)
{
    return range->kind == RANGE_ONE ? range->last - range->first + 1 : f->length;
}

/* Sends source (taken; NULL for HEAD). */
static void reply(struct request *r, const struct form *f, const struct range *range, struct source **source)
{
    struct http_answer a = {.status = range->kind == RANGE_ONE ? 206 : 200, .source = steal(source)};
    struct err err = ERR_INIT;

    if (a.source && !f->has_length && !http_can_chunk(r->x))
        err_set(&err, ERR_UNSUPPORTED, "this answer has no length beforehand, which takes HTTP/1.1");
    if (err.code != 0 || headers(r, f, range, &a, &err) < 0) {
        http_answer_release(&a);
        request_fail(r, &err);
        return;
    }
    a.has_length = f->has_length;
    a.length_bytes = part_bytes(f, range);
    request_reply(r, &a);
}

/* ---- from the store ------------------------------------------------------------------------------------------------- */

static void place_of(const struct request *r, struct blob_place *out)
{
    *out = (struct blob_place){
        .p = r->p, .up = r->route.up, .repo = r->repo, .digest = r->digest, .size_bytes = r->blob.size_bytes};
    snprintf(out->name, sizeof(out->name), "%s", r->route.name);
}

/* The bytes that the answer is made of; [off, off + len) of the identity or the zstd form. */
static int open_bytes(struct request *r, const struct form *f, uint64_t off, uint64_t len, struct source **out,
                      struct err *err)
{
    struct store *st = r->p->store;

    switch (r->blob.role) {
    case ROLE_CANONICAL:
        return layer_open(st, &r->blob.canonical, f->codec == CODEC_ZSTD ? LAYER_ZSTD : LAYER_IDENTITY, off, len, out,
                          err);
    case ROLE_ZSTD:
        return layer_open(st, &r->blob.canonical, LAYER_ZSTD, off, len, out, err);
    case ROLE_ORIGINAL:
        return original_open(st, &r->digest, off, len, out, err);
    case ROLE_UNKNOWN:
        break;
    }
    return err_set(err, ERR_BUG, "a blob of no role is present");
}

static int open_stored(struct request *r, const struct form *f, uint64_t off, uint64_t len, struct source **out,
                       struct err *err)
{
    CLEANUP(source_cleanup) struct source *stored = NULL;
    CLEANUP(source_cleanup) struct source *healing = NULL;
    CLEANUP(filter_cleanup) struct filter *gzip = NULL;
    struct blob_place place;

    TRY(open_bytes(r, f, off, len, &stored, err));
    place_of(r, &place);
    place.can_reopen = f->codec != CODEC_ZSTD && r->blob.role != ROLE_ZSTD;
    TRY(source_healing_new(&stored, &place, off, len, &healing, err));
    if (f->codec != CODEC_GZIP) {
        *out = steal(&healing);
        return 0;
    }
    TRY(codec_encoder_new(CODEC_GZIP, CODEC_LEVEL_FAST, &gzip, err));
    return source_filtered_new(&healing, &gzip, HTTP_PIPE_BYTES, out, err);
}

/* Bytes that cannot be opened, which were there as `role` when they were looked for. True: look again, nothing was sent;
 * they are damaged, and the store knows now, or they have gone the right way: evicted, or an original dropped for its
 * canonical form. Otherwise the request has failed. */
static bool lost(struct request *r, const struct digest *d, enum store_role role, const struct err *why)
{
    struct store_blob now;
    struct err err = ERR_INIT;

    if (why->code == ERR_NOTFOUND && store_blob_lookup(r->p->store, d, &now, &err) == 0 &&
        (!now.present || now.role != role))
        return true;
    if ((why->code == ERR_NOTFOUND || why->code == ERR_CORRUPT) && store_mark_lost(r->p->store, d, &err) == 0)
        return true;
    request_fail(r, why);
    return false;
}

bool blob_answer_store(struct request *r)
{
    struct source *source = NULL;
    struct form form;
    struct range range = {.kind = RANGE_NONE};
    struct err err = ERR_INIT;
    uint64_t off = 0, len = UINT64_MAX;

    fill_unref(steal(&r->fill));
    choose_form(r, &form);
    if (!choose_range(r, &form, &range))
        return true;
    if (range.kind == RANGE_ONE) {
        off = range.first;
        len = part_bytes(&form, &range);
    }
    if (http_method(r->x) == HTTP_GET && open_stored(r, &form, off, len, &source, &err) < 0)
        return !lost(r, &r->digest, r->blob.role, &err);
    reply(r, &form, &range, &source);
    return true;
}

bool blob_answer_original(struct request *r, const struct store_source *s)
{
    CLEANUP(source_cleanup) struct source *source = NULL;
    struct form form;
    struct range range = {.kind = RANGE_NONE};
    struct blob_place place;
    struct err err = ERR_INIT;

    choose_form(r, &form);
    if (!choose_range(r, &form, &range))
        return true;
    uint64_t off = range.kind == RANGE_ONE ? range.first : 0;
    place_of(r, &place);
    if (http_method(r->x) == HTTP_GET && blob_reopen(&place, off, part_bytes(&form, &range), &source, &err) < 0)
        return !lost(r, &s->original, ROLE_ORIGINAL, &err);
    reply(r, &form, &range, &source);
    return true;
}

void blob_answer_head(struct request *r)
{
    struct form form;
    struct range range = {.kind = RANGE_NONE};
    struct source *none = NULL;

    choose_form(r, &form);
    form.has_length = r->blob.size_bytes > 0;
    reply(r, &form, &range, &none);
}

/* ---- from a fill ---------------------------------------------------------------------------------------------------- */

/* The decoded bytes of the fill's blob: the digest asked for is a canonical layer's. */
static int open_decoded(struct request *r, const struct range *range, struct source **out, struct err *err)
{
    CLEANUP(source_cleanup) struct source *raw = NULL;
    CLEANUP(source_cleanup) struct source *plain = NULL;

    TRY(fill_follow(r->fill, 0, true, &raw, err));
    TRY(source_decoded_new(&raw, r->p->opt.max_layer_bytes, r->p->opt.max_ratio, &plain, err));
    if (range->kind == RANGE_ONE)
        return source_window_new(&plain, range->first, range->last - range->first + 1, out, err);
    return source_verified_new(&plain, &r->digest, r->blob.size_bytes, NULL, 0, out, err);
}

static int open_followed(struct request *r, const struct range *range, struct source **out, struct err *err)
{
    CLEANUP(source_cleanup) struct source *raw = NULL;

    if (r->decode)
        return open_decoded(r, range, out, err);
    if (range->kind != RANGE_ONE)
        return fill_follow(r->fill, 0, true, out, err);
    TRY(fill_follow(r->fill, range->first, false, &raw, err));
    return source_window_new(&raw, 0, range->last - range->first + 1, out, err);
}

void blob_answer_fill(struct request *r)
{
    struct source *source = NULL;
    struct range range = {.kind = RANGE_NONE};
    struct form form;
    struct err err = ERR_INIT;
    uint64_t length = 0;
    bool known = !r->decode && fill_length(r->fill, &length);

    if (!known && r->blob.size_bytes > 0) {
        known = true;
        length = r->blob.size_bytes;
    }
    choose_form(r, &form);
    form.has_length = known;
    form.length = length;
    if (known && !choose_range(r, &form, &range))
        return;
    if (range.kind == RANGE_ONE)
        r->cache = CACHE_FOLLOW;
    if (http_method(r->x) == HTTP_GET && open_followed(r, &range, &source, &err) < 0)
        request_fail(r, &err);
    else
        reply(r, &form, &range, &source);
}
