/* SPDX-License-Identifier: Apache-2.0
 * admin/pins.c - /api/v1/pins, and what /api/v1/pin, unpin and rm do. No upstream is asked. */
#include "admin/admin_internal.h"
#include "base/log.h"

static void json_free(json_t **v)
{
    json_decref(*v);
    *v = NULL;
}

/* ---- what a reference names -------------------------------------------------------------------------------------- */

struct target {
    int64_t repo; /* 0: a digest alone */
    char upstream[256], name[256];
    char text[900]; /* as it is to be read, tag or digest and all */
    const char *tag;
    const struct digest *digest;
};

/* The name as it resolves, or, for what came from an upstream that is not configured any more, as it is written. */
static int find_repo(struct store *st, const struct admin_ref *ref, struct target *t, struct err *err)
{
    const char *slash = strchr(ref->text, '/');

    snprintf(t->upstream, sizeof t->upstream, "%s", ref->upstream);
    snprintf(t->name, sizeof t->name, "%s", ref->name);
    TRY(store_repo_find(st, t->upstream, t->name, &t->repo, err));
    if (t->repo != 0 || slash == NULL || (size_t)(slash - ref->text) >= sizeof t->upstream)
        return 0;
    snprintf(t->upstream, sizeof t->upstream, "%.*s", (int)(slash - ref->text), ref->text);
    snprintf(t->name, sizeof t->name, "%.255s", slash + 1);
    TRY(store_repo_find(st, t->upstream, t->name, &t->repo, err));
    if (t->repo == 0) {
        snprintf(t->upstream, sizeof t->upstream, "%s", ref->upstream);
        snprintf(t->name, sizeof t->name, "%s", ref->name);
    }
    return 0;
}

static int not_here(const struct target *t, struct err *err)
{
    return err_set(err, ERR_NOTFOUND,
                   "%s is not in this store: pull it through recask first (\"recask ls\" lists what is)", t->text);
}

static int find_target(struct store *st, const struct admin_ref *ref, struct target *t, struct err *err)
{
    *t = (struct target){.tag = ref->has_digest ? NULL : ref->tag, .digest = ref->has_digest ? &ref->digest : NULL};
    if (ref->text[0] == '\0') {
        snprintf(t->text, sizeof t->text, "%s", digest_text(&ref->digest).s);
        return 0;
    }
    TRY(find_repo(st, ref, t, err));
    snprintf(t->text, sizeof t->text, "%s/%s%s%s", t->upstream, t->name, ref->has_digest ? "@" : ":",
             ref->has_digest ? digest_text(&ref->digest).s : ref->tag);
    return t->repo != 0 ? 0 : not_here(t, err);
}

/* What the store says of a reference that it does not know, in words of the one who asked. */
static int named(int rc, const struct target *t, struct err *why, struct err *err)
{
    if (rc == ERR_NOTFOUND)
        return not_here(t, err);
    *err = *why;
    return rc;
}

/* ---- pin, unpin -------------------------------------------------------------------------------------------------- */

/* What is true of a pin now. */
static json_t *numbers(const struct store_pin_result *r)
{
    return json_pack("{s:o, s:I, s:I, s:I, s:I}", "digest", admin_json_digest(&r->digest), "blobs",
                     (json_int_t)r->blobs, "bytes", (json_int_t)r->bytes, "missing_blobs", (json_int_t)r->missing,
                     "unknown_manifests", (json_int_t)r->unknown);
}

/* head's members, then those of more; both are taken. */
static int dump_both(json_t *head, json_t *more, struct buf *out, struct err *err)
{
    CLEANUP(json_free) json_t *first = head;
    CLEANUP(json_free) json_t *rest = more;

    if (first == NULL || rest == NULL || json_object_update(first, rest) != 0)
        return err_set(err, ERR_NOMEM, "no memory for an answer");
    return admin_json_dump(steal(&first), out, err);
}

int admin_pin_json(struct store *st, const struct admin_ref *ref, bool pinned, struct buf *out, struct err *err)
{
    struct store_pin_result r;
    struct err why = ERR_INIT;
    struct target t;
    int rc;

    TRY(find_target(st, ref, &t, err));
    rc = pinned ? store_pin(st, t.repo, t.tag, t.digest, &r, &why) : store_unpin(st, t.repo, t.tag, t.digest, &r, &why);
    if (rc < 0)
        return named(rc, &t, &why, err);
    if (r.changed)
        log_event(LOG_INFO, pinned ? "admin.pin" : "admin.unpin", "ref=%s digest=%s", log_quote(t.text).s,
                  digest_text(&r.digest).s);
    return dump_both(json_pack("{s:s, s:b, s:b}", "ref", t.text, "pinned", pinned, "changed", r.changed), numbers(&r),
                     out, err);
}

/* ---- rm ---------------------------------------------------------------------------------------------------------- */

int admin_remove_json(struct store *st, const struct admin_ref *ref, struct buf *out, struct err *err)
{
    struct store_remove_result r;
    struct err why = ERR_INIT;
    struct target t;
    int rc;

    TRY(find_target(st, ref, &t, err));
    rc = store_remove(st, t.repo, t.tag, t.digest, &r, &why);
    if (rc < 0)
        return named(rc, &t, &why, err);
    log_event(LOG_INFO, "admin.rm", "ref=%s digest=%s freed_bytes=%llu", log_quote(t.text).s, digest_text(&r.digest).s,
              (unsigned long long)r.freed_bytes);
    return admin_json_dump(json_pack("{s:s, s:o, s:b, s:I, s:I, s:I, s:I, s:I}", "ref", t.text, "digest",
                                     admin_json_digest(&r.digest), "unpinned", r.unpinned, "originals",
                                     (json_int_t)r.originals, "layers", (json_int_t)r.layers, "freed_bytes",
                                     (json_int_t)r.freed_bytes, "shared_blobs", (json_int_t)r.shared, "busy_blobs",
                                     (json_int_t)r.busy),
                           out, err);
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static int add_pin(void *arg, const struct store_pin_info *pin, struct err *err)
{
    CLEANUP(json_free) json_t *item = NULL;
    CLEANUP(json_free) json_t *more = numbers(&pin->now);
    CLEANUP(free_ptr) char *ref = NULL;

    TRY(str_printf(&ref, err, "%s/%s%s%s", pin->upstream, pin->name, pin->by_digest ? "@" : ":", pin->reference));
    item = json_pack("{s:s, s:s, s:s, s:s, s:o}", "ref", ref, "upstream", pin->upstream, "repository", pin->name,
                     "reference", pin->reference, "created", admin_json_time(pin->created));
    if (item == NULL || more == NULL || json_object_update(item, more) != 0 ||
        json_array_append_new(arg, steal(&item)) != 0)
        return err_set(err, ERR_NOMEM, "no memory for the list of pins");
    return 0;
}

int admin_pins_json(struct store *st, struct buf *out, struct err *err)
{
    CLEANUP(json_free) json_t *list = json_array();

    if (list == NULL)
        return err_set(err, ERR_NOMEM, "no memory for the list of pins");
    TRY(store_each_pin(st, add_pin, list, err));
    return admin_json_dump(json_pack("{s:o}", "pins", steal(&list)), out, err);
}
