/* SPDX-License-Identifier: Apache-2.0
 * admin/images.c - /api/v1/images and /api/v1/images/REF: what the store knows of an image, never asking an upstream.
 *
 * Tags are found by walking the list of images, not by store_repo(): that call makes the repository's row, and a
 * question must not change the catalog. */
#include "admin/admin_internal.h"

/* The manifests of an index are shown, those of an index inside it are not: nobody makes them, but a hostile upstream
 * could make 4096 times 4096. */
#define DEPTH_MAX 1

static const char *views_word(enum store_views v)
{
    switch (v) {
    case VIEWS_UNKNOWN:
        return "pending";
    case VIEWS_READY:
        return "ready";
    case VIEWS_NEVER:
        return "never";
    }
    return "pending";
}

static json_t *signed_value(int is_signed)
{
    return is_signed < 0 ? json_null() : json_boolean(is_signed);
}

static json_t *text_or_null(const char *s)
{
    json_t *text = s != NULL && *s != '\0' ? json_string(s) : NULL;

    return text != NULL ? text : json_null();
}

static void json_free(json_t **v)
{
    json_decref(*v);
    *v = NULL;
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static int add_image(void *arg, const struct store_image *image, struct err *err)
{
    json_t *list = arg, *item;
    CLEANUP(free_ptr) char *ref = NULL;

    TRY(str_printf(&ref, err, "%s/%s:%s", image->upstream, image->name, image->tag));
    item = json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:b, s:o, s:s, s:o, s:o, s:I, s:I, s:I, s:I, s:b}", "ref", ref,
                     "upstream", image->upstream, "repository", image->name, "tag", image->tag, "digest",
                     admin_json_digest(&image->digest), "media_type", text_or_null(image->media_type), "index",
                     image->is_index, "checked_at", admin_json_time(image->checked_at), "views",
                     views_word(image->views), "reason", text_or_null(image->reason), "signed",
                     signed_value(image->is_signed), "layers", (json_int_t)image->layers, "canonical_layers",
                     (json_int_t)image->canonical_layers, "original_bytes", (json_int_t)image->original_bytes,
                     "canonical_bytes", (json_int_t)image->canonical_bytes, "pinned", image->is_pinned);
    if (json_array_append_new(list, item) != 0)
        return err_set(err, ERR_NOMEM, "no memory for the list of images");
    return 0;
}

int admin_images_json(struct store *st, struct buf *out, struct err *err)
{
    CLEANUP(json_free) json_t *list = json_array();

    if (list == NULL)
        return err_set(err, ERR_NOMEM, "no memory for the list of images");
    TRY(store_each_image(st, add_image, list, err));
    return admin_json_dump(json_pack("{s:o}", "images", steal(&list)), out, err);
}

/* ---- one image: layers ------------------------------------------------------------------------------------------- */

/* What is in the store of this layer, in one word: its canonical form counts before the bytes as upstream has them. */
static const char *layer_state(const struct store_blob *b)
{
    if (b->canonical_present || (b->present && b->role != ROLE_ORIGINAL))
        return "canonical";
    if (b->present)
        return b->canon == CANON_REFUSED ? "original only" : "original";
    return b->role == ROLE_UNKNOWN && !b->has_canonical ? "not fetched" : "evicted";
}

static json_t *form_object(const struct digest *d, uint64_t bytes)
{
    return json_pack("{s:o, s:I}", "digest", admin_json_digest(d), "size", (json_int_t)bytes);
}

static int layer_object(struct store *st, const struct oci_descriptor *layer, json_t **out, struct err *err)
{
    struct store_blob b;

    TRY(store_blob_lookup(st, &layer->digest, &b, err));
    *out = json_pack("{s:o, s:o, s:I, s:s, s:b, s:b, s:o, s:o}", "digest", admin_json_digest(&layer->digest),
                     "media_type", text_or_null(layer->media_type), "size", (json_int_t)layer->size_bytes, "state",
                     layer_state(&b), "present", b.present, "canonical_present", b.canonical_present, "canonical",
                     b.has_canonical ? form_object(&b.canonical, b.canonical_bytes) : json_null(), "zstd",
                     b.has_canonical ? form_object(&b.zstd, b.zstd_bytes) : json_null());
    return *out != NULL ? 0 : err_set(err, ERR_NOMEM, "no memory for a layer");
}

static int layers_array(struct store *st, const struct oci_manifest *m, json_t *list, struct err *err)
{
    for (size_t i = 0; i < m->layer_count; i++) {
        json_t *layer;

        TRY(layer_object(st, &m->layers[i], &layer, err));
        if (json_array_append_new(list, layer) != 0)
            return err_set(err, ERR_NOMEM, "no memory for layers");
    }
    return 0;
}

/* ---- one image: manifests ---------------------------------------------------------------------------------------- */

static int view_digest(struct store *st, const struct digest *upstream, enum oci_view view, json_t **out,
                       struct err *err)
{
    struct err why = ERR_INIT;
    struct digest d;
    int rc = store_view_get(st, upstream, view, &d, &why);

    if (rc < 0 && rc != ERR_NOTFOUND) {
        *err = why;
        return rc;
    }
    *out = rc < 0 ? json_null() : admin_json_digest(&d);
    return 0;
}

static int views_object(struct store *st, const struct store_manifest *m, const char *reason, json_t **out,
                        struct err *err)
{
    CLEANUP(json_free) json_t *canonical = NULL;
    CLEANUP(json_free) json_t *zstd = NULL;

    TRY(view_digest(st, &m->upstream, VIEW_CANONICAL, &canonical, err));
    TRY(view_digest(st, &m->upstream, VIEW_ZSTD, &zstd, err));
    *out = json_pack("{s:s, s:o, s:o, s:o}", "state", views_word(m->views), "reason",
                     m->views == VIEWS_NEVER ? text_or_null(reason) : json_null(), "canonical", steal(&canonical),
                     "zstd", steal(&zstd));
    return *out != NULL ? 0 : err_set(err, ERR_NOMEM, "no memory for views");
}

static int manifest_object(struct store *st, const struct digest *d, const char *reason, int depth, json_t **out,
                           struct err *err);

static json_t *platform_value(const struct oci_platform *p)
{
    if (p->os == NULL || p->arch == NULL)
        return json_null();
    return json_sprintf("%s/%s%s%s", p->os, p->arch, p->variant != NULL ? "/" : "",
                        p->variant != NULL ? p->variant : "");
}

/* A child of an index; one that no client has asked for yet is named, with "known": false. */
static int child_object(struct store *st, const struct oci_descriptor *child, int depth, json_t **out, struct err *err)
{
    CLEANUP(json_free) json_t *head = NULL;
    CLEANUP(json_free) json_t *body = NULL;
    struct err why = ERR_INIT;
    int rc = manifest_object(st, &child->digest, NULL, depth, &body, &why);

    if (rc < 0 && rc != ERR_NOTFOUND) {
        *err = why;
        return rc;
    }
    head = json_pack("{s:o, s:o, s:b, s:b}", "digest", admin_json_digest(&child->digest), "platform",
                     platform_value(&child->platform), "attestation", child->attests != NULL, "known", rc == 0);
    if (head == NULL || (body != NULL && json_object_update_missing(head, body) != 0) ||
        (body == NULL && json_object_set_new(head, "size", json_integer((json_int_t)child->size_bytes)) != 0))
        return err_set(err, ERR_NOMEM, "no memory for a manifest");
    *out = steal(&head);
    return 0;
}

static int children_array(struct store *st, const struct oci_manifest *m, int depth, json_t *list, struct err *err)
{
    for (size_t i = 0; i < m->child_count; i++) {
        json_t *child = NULL;

        TRY(child_object(st, &m->children[i], depth, &child, err));
        if (json_array_append_new(list, child) != 0)
            return err_set(err, ERR_NOMEM, "no memory for manifests");
    }
    return 0;
}

/* reason: why it is never rewritten, where the caller knows; else what the manifest itself shows. */
static int manifest_object(struct store *st, const struct digest *d, const char *reason, int depth, json_t **out,
                           struct err *err)
{
    CLEANUP(store_manifest_release) struct store_manifest m = {.len = 0};
    CLEANUP(oci_manifest_release) struct oci_manifest parsed = {.is_index = false};
    CLEANUP(json_free) json_t *views = NULL;
    CLEANUP(json_free) json_t *list = json_array();
    bool pinned = false;

    TRY(store_manifest_get(st, d, &m, err));
    TRY(oci_manifest_parse(m.body, m.len, m.media_type, &parsed, err));
    TRY(store_is_pinned(st, d, &pinned, err));
    TRY(views_object(st, &m, reason != NULL ? reason : parsed.not_plain, &views, err));
    if (!parsed.is_index)
        TRY(layers_array(st, &parsed, list, err));
    else if (depth < DEPTH_MAX)
        TRY(children_array(st, &parsed, depth + 1, list, err));
    *out = json_pack("{s:o, s:o, s:I, s:b, s:s, s:o, s:o, s:b, s:o, s:o}", "digest", admin_json_digest(d), "media_type",
                     text_or_null(m.media_type), "size", (json_int_t)m.len, "index", parsed.is_index, "view",
                     oci_view_name((enum oci_view)m.view), "upstream_digest", admin_json_digest(&m.upstream), "signed",
                     signed_value(m.is_signed), "pinned", pinned, "views", steal(&views),
                     parsed.is_index ? "manifests" : "layers", steal(&list));
    return *out != NULL ? 0 : err_set(err, ERR_NOMEM, "no memory for a manifest");
}

/* ---- one image: finding it --------------------------------------------------------------------------------------- */

struct search {
    const struct admin_ref *ref;
    bool found;
    char upstream[256], name[256], reason[256];
    struct digest digest;
    int64_t checked_at;
};

/* The name as it resolves, or, for what came from an upstream that is not configured any more, as it is written. */
static bool same_name(const struct admin_ref *ref, const struct store_image *image)
{
    size_t len = strlen(image->upstream);

    if (strcmp(image->upstream, ref->upstream) == 0 && strcmp(image->name, ref->name) == 0)
        return true;
    return strncmp(ref->text, image->upstream, len) == 0 && ref->text[len] == '/' &&
           strcmp(ref->text + len + 1, image->name) == 0;
}

static int match_image(void *arg, const struct store_image *image, struct err *err UNUSED)
{
    struct search *s = arg;

    if (s->found || strcmp(image->tag, s->ref->tag) != 0 || !same_name(s->ref, image))
        return 0;
    s->found = true;
    s->digest = image->digest;
    s->checked_at = image->checked_at;
    snprintf(s->upstream, sizeof s->upstream, "%s", image->upstream);
    snprintf(s->name, sizeof s->name, "%s", image->name);
    snprintf(s->reason, sizeof s->reason, "%s", image->reason != NULL ? image->reason : "");
    return 0;
}

static int image_by_tag(struct store *st, const struct admin_ref *ref, json_t **out, struct err *err)
{
    struct search s = {.ref = ref};
    CLEANUP(json_free) json_t *head = NULL;
    CLEANUP(json_free) json_t *body = NULL;

    TRY(store_each_image(st, match_image, &s, err));
    if (!s.found)
        return err_set(err, ERR_NOTFOUND, "%s/%s:%s has not been pulled through this recask", ref->upstream, ref->name,
                       ref->tag);
    TRY(manifest_object(st, &s.digest, s.reason[0] != '\0' ? s.reason : NULL, 0, &body, err));
    head = json_pack("{s:o, s:s, s:s, s:s, s:o}", "ref", json_sprintf("%s/%s:%s", s.upstream, s.name, ref->tag),
                     "upstream", s.upstream, "repository", s.name, "tag", ref->tag, "checked_at",
                     admin_json_time(s.checked_at));
    if (head == NULL || json_object_update(head, body) != 0)
        return err_set(err, ERR_NOMEM, "no memory for an image");
    *out = steal(&head);
    return 0;
}

static int image_by_digest(struct store *st, const struct admin_ref *ref, json_t **out, struct err *err)
{
    CLEANUP(json_free) json_t *head = NULL;
    CLEANUP(json_free) json_t *body = NULL;
    struct err why = ERR_INIT;
    int rc = manifest_object(st, &ref->digest, NULL, 0, &body, &why);

    if (rc == ERR_NOTFOUND)
        return err_set(err, ERR_NOTFOUND, "no manifest %s in this store", digest_text(&ref->digest).s);
    if (rc < 0) {
        *err = why;
        return rc;
    }
    head = json_pack("{s:o}", "ref",
                     json_sprintf("%s%s%s", ref->text, ref->text[0] != '\0' ? "@" : "", digest_text(&ref->digest).s));
    if (head == NULL || json_object_update(head, body) != 0)
        return err_set(err, ERR_NOMEM, "no memory for an image");
    *out = steal(&head);
    return 0;
}

int admin_image_json(struct store *st, const struct admin_ref *ref, struct buf *out, struct err *err)
{
    json_t *image;

    if (ref->has_digest)
        TRY(image_by_digest(st, ref, &image, err));
    else
        TRY(image_by_tag(st, ref, &image, err));
    return admin_json_dump(image, out, err);
}
