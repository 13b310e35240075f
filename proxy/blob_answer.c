/* SPDX-License-Identifier: Apache-2.0
 *
 * The form of a blob on the wire. A canonical layer goes out as identity, as its stored zstd frames, or as gzip made on
 * the fly; everything else as its own bytes. The rules: Range and HEAD mean identity, a
 * coding only where it was asked for, never on bytes whose digest is over a compressed form.
 *
 * Several ranges get a multipart answer from what is stored. While a blob comes, or is decoded on the way, they get all of it
 * with a 200: parts would have to wait for the last of them to come, or be decoded from the start once each, and clients
 * that ask for several ranges have to take a 200 (containers/image cuts it up by itself).
 *
 * Conditions (RFC 9110, 13.2.2: If-Match, then If-None-Match, then Range with If-Range) are about the form that this request
 * would get. They are looked at when it is known that the repository may have the blob, never before.
 */
#include "base/log.h"
#include "proxy/blob_internal.h"
#include "proxy/multipart.h"
#include "proxy/negotiate.h"
#include "store/layer.h"

#include <inttypes.h>

/* Of several ranges. A chunk, or a block of an original, is read and checked as a whole in any case, so that a gap of about its
 * size costs no more than to open it anew. */
#define GAP_BYTES ((uint64_t)256 << 10)

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

/* The digest's own bytes. */
static void plain_form(const struct request *r, struct form *out)
{
    *out = (struct form){.content_type = "application/octet-stream", .has_length = true, .length = r->blob.size_bytes};
}

/* Also one that If-Range makes void means identity: who sends it counts in bytes of that. To HEAD it means nothing. */
static bool asks_for_range(const struct request *r)
{
    return http_method(r->x) == HTTP_GET && http_header(r->x, "Range");
}

static void choose_form(const struct request *r, struct form *out)
{
    const char *type = NULL;

    plain_form(r, out);
    if (r->blob.role != ROLE_CANONICAL || !r->blob.present || asks_for_range(r))
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
    if (out->codec == CODEC_GZIP && !http_can_chunk(r->x))
        plain_form(r, out);
    if (out->codec == CODEC_GZIP)
        out->has_length = false;
    else if (out->codec == CODEC_ZSTD)
        out->length = r->blob.zstd_bytes;
}

/* The Range header, unless If-Range makes it void: the only validator that a range can go with is the identity's tag. Another
 * form's, a weak one, a date or a list are something else. */
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

struct etag {
    char s[sizeof(struct digest_text) + 12];
};

/* gzip made on the fly is not the same bytes with every encoder, so its tag is weak; the others are strong. */
static struct etag etag_of(const struct request *r, const struct form *f)
{
    struct digest_text d = digest_text(&r->digest);
    struct etag tag = {""};

    switch (f->codec) {
    case CODEC_NONE:
        snprintf(tag.s, sizeof(tag.s), "\"%s\"", d.s);
        break;
    case CODEC_ZSTD:
        snprintf(tag.s, sizeof(tag.s), "\"%s+zstd\"", d.s);
        break;
    case CODEC_GZIP:
        snprintf(tag.s, sizeof(tag.s), "W/\"%s+gzip\"", d.s);
        break;
    }
    return tag;
}

/* 200: the conditions hold, or there are none. 304, 412. */
static int condition(const struct request *r, const struct form *f)
{
    const char *if_match = http_header(r->x, "If-Match"), *if_none_match = http_header(r->x, "If-None-Match");
    struct etag tag = etag_of(r, f);

    if (if_match && !etag_matches_strong(if_match, tag.s))
        return 412;
    return if_none_match && etag_matches(if_none_match, tag.s) ? 304 : 200;
}

bool blob_needs_no_bytes(const struct request *r)
{
    struct form form;

    choose_form(r, &form);
    return http_method(r->x) == HTTP_HEAD || condition(r, &form) != 200;
}

static int range_headers(struct request *r, const struct form *f, const struct range *range, struct http_answer *a,
                         struct err *err)
{
    if (range->kind == RANGE_ONE)
        return http_answer_header(a, err, "Content-Range", "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, range->first,
                                  range->last, f->length);
    if (http_method(r->x) == HTTP_GET && a->status == 200) { /* Ollama insists on one with a 200 */
        const char *query = http_query_raw(r->x);
        return http_answer_header(a, err, "Location", "%s%s%s", http_path(r->x), *query ? "?" : "", query);
    }
    return 0;
}

/* type: NULL: the form's. */
static int headers(struct request *r, const struct form *f, const struct range *range, const char *type,
                   struct http_answer *a, struct err *err)
{
    bool cold_range = r->fill && range->kind == RANGE_ONE;

    TRY(request_headers(r, a, err));
    if (a->status != 304)
        TRY(http_answer_header(a, err, "Content-Type", "%s", type ? type : f->content_type));
    TRY(http_answer_header(a, err, "Docker-Content-Digest", "%s", digest_text(&r->digest).s));
    TRY(http_answer_header(a, err, "Accept-Ranges", "bytes"));
    if (!cold_range) /* its bytes cannot have been verified when they go out */
        TRY(http_answer_header(a, err, "ETag", "%s", etag_of(r, f).s));
    if (r->blob.role == ROLE_CANONICAL)
        TRY(http_answer_header(a, err, "Vary", "Accept-Encoding"));
    if (f->is_encoding && a->status != 304)
        TRY(http_answer_header(a, err, "Content-Encoding", "%s", codec_name(f->codec)));
    return range_headers(r, f, range, a, err);
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

/* 304, or 412, which is no error of the kind that has a body: there is nothing wrong. */
static void not_met(struct request *r, const struct form *f, int status)
{
    static const struct range none = {.kind = RANGE_NONE};
    struct http_answer a = {.status = status, .has_length = true, .length_bytes = status == 304 ? f->length : 0};
    struct err err = ERR_INIT;

    if (status == 304)
        a.has_length = f->has_length;
    if (headers(r, f, &none, NULL, &a, &err) < 0) {
        http_answer_release(&a);
        request_fail(r, &err);
        return;
    }
    request_reply(r, &a);
}

/* Looks at the conditions, then at what of the form is wanted. False: the request was answered, by one of these. */
static bool choose_range(struct request *r, const struct form *f, struct range *out)
{
    struct err err = ERR_INIT;
    int status = condition(r, f);

    *out = (struct range){.kind = RANGE_NONE};
    if (status != 200) {
        not_met(r, f, status);
        return false;
    }
    if (range_parse(wanted_range(r), f->length, out, &err) < 0) {
        request_fail(r, &err);
        return false;
    }
    if (out->kind != RANGE_UNSATISFIABLE)
        return true;
    range_release(out);
    unsatisfiable(r, f->length);
    return false;
}

/* Where several ranges cannot be given one by one. */
static void all_of_it(struct range *range)
{
    if (range->kind == RANGE_SEVERAL)
        range_release(range);
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

    /* Of what has no length now there was no room to wait for it; choose_form() has seen to the rest. */
    if (a.source && !f->has_length && !http_can_chunk(r->x))
        err_set(&err, ERR_NOSPC, "%s has no length beforehand, which takes HTTP/1.1", digest_text(&r->digest).s);
    if (err.code != 0 || headers(r, f, range, NULL, &a, &err) < 0) {
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

/* Stored bytes in one form, as they have to be known when the request is answered and gone: its parts are opened then. */
struct stored {
    struct blob_place place;
    enum store_role role;
    struct digest canonical;
    enum codec codec;
};

static void stored_of(const struct request *r, const struct form *f, struct stored *out)
{
    *out = (struct stored){.role = r->blob.role, .canonical = r->blob.canonical, .codec = f->codec};
    place_of(r, &out->place);
    out->place.can_reopen = f->codec != CODEC_ZSTD && r->blob.role != ROLE_ZSTD;
}

/* The bytes that the answer is made of; [off, off + len) of the identity or the zstd form. */
static int open_bytes(const struct stored *b, uint64_t off, uint64_t len, struct source **out, struct err *err)
{
    struct store *st = b->place.p->store;

    switch (b->role) {
    case ROLE_CANONICAL:
        return layer_open(st, &b->canonical, b->codec == CODEC_ZSTD ? LAYER_ZSTD : LAYER_IDENTITY, off, len, out, err);
    case ROLE_ZSTD:
        return layer_open(st, &b->canonical, LAYER_ZSTD, off, len, out, err);
    case ROLE_ORIGINAL:
        return original_open(st, &b->place.digest, off, len, out, err);
    case ROLE_UNKNOWN:
        break;
    }
    return err_set(err, ERR_BUG, "a blob of no role is present");
}

static int open_stored(const struct stored *b, uint64_t off, uint64_t len, struct source **out, struct err *err)
{
    CLEANUP(source_cleanup) struct source *bytes = NULL;
    CLEANUP(source_cleanup) struct source *healing = NULL;
    CLEANUP(filter_cleanup) struct filter *gzip = NULL;

    TRY(open_bytes(b, off, len, &bytes, err));
    TRY(source_healing_new(&bytes, &b->place, off, len, &healing, err));
    if (b->codec != CODEC_GZIP) {
        *out = steal(&healing);
        return 0;
    }
    TRY(codec_encoder_new(CODEC_GZIP, CODEC_LEVEL_FAST, &gzip, err));
    return source_filtered_new(&healing, &gzip, HTTP_PIPE_BYTES, out, err);
}

/* What an answer of one piece does in its middle (heal.c), or before its headers (lost()), is done here when a part's turn
 * comes: its bytes may be damaged, or have been found so in an earlier part. */
static int open_part(void *arg, uint64_t off, uint64_t len, struct source **out, struct err *err)
{
    const struct stored *b = arg;
    struct err why = ERR_INIT;
    int rc = open_stored(b, off, len, out, &why);

    if ((rc == ERR_CORRUPT || rc == ERR_NOTFOUND) && b->place.can_reopen) {
        log_event(LOG_WARN, "blob.damaged", "digest=%s at=%" PRIu64 " error=%s", digest_text(&b->place.digest).s, off,
                  log_quote(why.msg).s);
        TRY(store_mark_lost(b->place.p->store, &b->place.digest, err));
        return blob_reopen(&b->place, off, len, out, err);
    }
    if (rc < 0)
        *err = why;
    return rc;
}

/* Answers with several ranges. False: their bytes cannot be had, *why says why. Takes range's spans. */
static bool reply_parts(struct request *r, const struct form *f, struct range *range, struct err *why)
{
    struct multipart m = {.spans = steal(&range->spans),
                          .count = range->count,
                          .size_bytes = f->length,
                          .content_type = f->content_type,
                          .gap_bytes = GAP_BYTES,
                          .open = open_part,
                          .free_arg = free};
    struct http_answer a = {.status = 206, .has_length = true};
    struct stored *b = calloc(1, sizeof(*b));
    char type[MULTIPART_TYPE_BYTES];
    struct err err = ERR_INIT;

    m.arg = b;
    if (!b)
        err_nomem(why, sizeof(*b));
    if (!b || multipart_init(&m, why) < 0) {
        multipart_release(&m);
        return false;
    }
    stored_of(r, f, b);
    multipart_content_type(&m, type);
    a.length_bytes = multipart_bytes(&m);
    if (multipart_source(&m, &a.source, why) < 0)
        return false;
    if (headers(r, f, range, type, &a, &err) < 0) {
        http_answer_release(&a);
        request_fail(r, &err);
    } else {
        request_reply(r, &a);
    }
    return true;
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
    CLEANUP(range_release) struct range range = {.kind = RANGE_NONE};
    struct source *source = NULL;
    struct form form;
    struct stored stored;
    struct err err = ERR_INIT;
    uint64_t off = 0, len = UINT64_MAX;

    fill_unref(steal(&r->fill));
    choose_form(r, &form);
    if (!choose_range(r, &form, &range))
        return true;
    if (range.kind == RANGE_SEVERAL)
        return reply_parts(r, &form, &range, &err) || !lost(r, &r->digest, r->blob.role, &err);
    if (range.kind == RANGE_ONE) {
        off = range.first;
        len = part_bytes(&form, &range);
    }
    stored_of(r, &form, &stored);
    if (http_method(r->x) == HTTP_GET && open_stored(&stored, off, len, &source, &err) < 0)
        return !lost(r, &r->digest, r->blob.role, &err);
    reply(r, &form, &range, &source);
    return true;
}

bool blob_answer_original(struct request *r, const struct store_source *s)
{
    CLEANUP(source_cleanup) struct source *source = NULL;
    CLEANUP(range_release) struct range range = {.kind = RANGE_NONE};
    struct form form;
    struct blob_place place;
    struct err err = ERR_INIT;

    choose_form(r, &form);
    if (!choose_range(r, &form, &range))
        return true;
    all_of_it(&range);
    uint64_t off = range.kind == RANGE_ONE ? range.first : 0;
    place_of(r, &place);
    if (http_method(r->x) == HTTP_GET && blob_reopen(&place, off, part_bytes(&form, &range), &source, &err) < 0)
        return !lost(r, &s->original, ROLE_ORIGINAL, &err);
    reply(r, &form, &range, &source);
    return true;
}

void blob_answer_head(struct request *r)
{
    CLEANUP(range_release) struct range range = {.kind = RANGE_NONE};
    struct form form;
    struct source *none = NULL;

    choose_form(r, &form);
    form.has_length = r->blob.size_bytes > 0;
    if (choose_range(r, &form, &range)) /* HEAD knows no range: the conditions alone */
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
    CLEANUP(range_release) struct range range = {.kind = RANGE_NONE};
    struct source *source = NULL;
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
    all_of_it(&range);
    if (range.kind == RANGE_ONE)
        r->cache = CACHE_FOLLOW;
    if (http_method(r->x) == HTTP_GET && open_followed(r, &range, &source, &err) < 0)
        request_fail(r, &err);
    else
        reply(r, &form, &range, &source);
}
