/* SPDX-License-Identifier: Apache-2.0
 *
 * One image getting its views. image_run() can be called at any time and any number of times: it looks at what is there,
 * starts the next thing that is missing, and returns; whatever was started posts it again.
 *
 *   config and layers stored? -> no: give the client that asked a head start, then fill one after the other
 *   every layer canonical?    -> no: queue it, wait
 *   signed upstream?          -> ask, once, for the manifest and for each index that lists it
 *   -> make the views of the manifest, then those of its indexes
 */
#include "base/log.h"
#include "oci/oci.h"
#include "proxy/jobs_internal.h"

#include <stdio.h>

#define IMAGE_MAGIC 0x17a9e10bu
#define HEAD_START_MS 1500
#define FAILURES_MAX 3
#define SPARE_ATTEMPTS 3

/* Where a signature of a manifest may be: cosign's tag, the referrers API, and the referrers tag of registries that have
 * no such API (distribution-spec v1.1, "Referrers Tag Schema"). */
static const struct {
    const char *kind, *suffix;
    bool as_tag, head; /* the digest with '-' for ':'; existence alone is the answer */
} signature_calls[] = {
    {"manifests", ".sig", true, true},
    {"referrers", "", false, false},
    {"manifests", "", true, false},
};
#define REFERRERS_CALL 1

static void image_ref(void *arg)
{
    struct image_job *im = CAST_OBJ(struct image_job, IMAGE_MAGIC, arg);
    atomic_fetch_add(&im->refs, 1);
}

void image_unref(void *arg)
{
    struct image_job *im = CAST_OBJ(struct image_job, IMAGE_MAGIC, arg);
    if (atomic_fetch_sub(&im->refs, 1) != 1)
        return;
    fill_unref(im->fill);
    free(im->targets);
    upstream_answer_release(&im->answer);
    im->magic = 0;
    free(im);
}

static void image_wake(void *arg)
{
    struct image_job *im = CAST_OBJ(struct image_job, IMAGE_MAGIC, arg);
    workpool_post(im->js->p->pool, &im->job);
}

static void head_start_ends(void *arg)
{
    struct image_job *im = CAST_OBJ(struct image_job, IMAGE_MAGIC, arg);
    atomic_store(&im->head_start_over, true);
    image_wake(im);
}

static void over(struct image_job *im)
{
    im->over = true;
    timer_disarm(im->js->p->timers, &im->timer);
    if (im->fill)
        fill_forget(im->fill, &im->waiter);
    jobs_image_over(im);
}

/* For good: the image stays as it is. */
static int never(struct image_job *im, const char *why, struct err *err)
{
    log_event(LOG_INFO, "image.never", "upstream=%s repo=%s digest=%s reason=%s", upstream_name(im->up), im->name,
              digest_text(&im->manifest).s, log_quote(why).s);
    TRY(store_manifest_set_views(im->js->p->store, &im->manifest, VIEWS_NEVER, why, err));
    return STEP_EOF;
}

/* ---- fetching what is missing ------------------------------------------------------------------------------------- */

/* Each part is fetched once and made canonical once. An image that needs more does not get anywhere: its blobs come and
 * go, or cannot be stored. */
static int count_attempt(struct image_job *im, struct err *err)
{
    if (im->attempts++ < im->attempts_max)
        return 0;
    return err_set(err, ERR_BUSY, "its layers come, but do not stay");
}

static int fetch(struct image_job *im, const struct digest *d, struct err *err)
{
    bool started;

    if (!atomic_load(&im->head_start_over)) {
        if (!im->head_start_given)
            timer_arm(im->js->p->timers, &im->timer, HEAD_START_MS);
        im->head_start_given = true;
        return STEP_WAIT;
    }
    if (!im->fill) {
        TRY(count_attempt(im, err));
        TRY(fill_join(im->js->p, im->up, im->repo, im->name, d, &im->fill, &started, err));
    }
    enum fill_state state = fill_wait(im->fill, FILL_DONE, &im->waiter);
    if (state < FILL_DONE)
        return STEP_WAIT;
    fill_error(im->fill, err);
    fill_unref(steal(&im->fill));
    if (err->code != 0 && (state != FILL_FAILED || ++im->failures >= FAILURES_MAX))
        return err->code;
    if (state == FILL_DETACHED)
        return err_set(err, ERR_NOSPC, "no room to keep %s", digest_text(d).s);
    err_clear(err);
    image_wake(im); /* it is there, or the next try is due: look again */
    return STEP_WAIT;
}

/* STEP_MORE: this one is there. STEP_WAIT: it will be. STEP_EOF: it never will (the image is finished with). */
static int need_config(struct image_job *im, const struct store_ref *ref, struct err *err)
{
    struct store_blob blob;

    TRY(store_blob_lookup(im->js->p->store, &ref->digest, &blob, err));
    if (blob.present)
        return STEP_MORE;
    if (ref->size_bytes > OCI_CONFIG_MAX_BYTES)
        return never(im, "its config is too large", err);
    return fetch(im, &ref->digest, err);
}

static int need_layer(struct image_job *im, const struct store_ref *ref, bool *fetching, struct err *err)
{
    struct store_blob blob;

    TRY(store_blob_lookup(im->js->p->store, &ref->digest, &blob, err));
    if (blob.has_canonical || blob.role == ROLE_CANONICAL)
        return STEP_MORE;
    if (blob.role == ROLE_ORIGINAL && blob.canon == CANON_REFUSED)
        return never(im, "a layer cannot be decoded", err);
    if (blob.present) {
        if (jobs_canon(im->js, &ref->digest))
            TRY(count_attempt(im, err));
        return STEP_WAIT;
    }
    if (*fetching)
        return STEP_WAIT;
    *fetching = true;
    return fetch(im, &ref->digest, err);
}

static int need_parts(struct image_job *im, struct err *err)
{
    CLEANUP(free_ptr) struct store_ref *refs = NULL;
    size_t count = 0;
    bool fetching = false;
    int result = STEP_MORE;

    TRY(store_manifest_refs(im->js->p->store, &im->manifest, &refs, &count, err));
    im->attempts_max = 2 * count + SPARE_ATTEMPTS;
    for (size_t i = 0; i < count; i++) {
        int rc = refs[i].role == REF_CONFIG ? need_config(im, &refs[i], err) : need_layer(im, &refs[i], &fetching, err);
        if (rc < 0 || rc == STEP_EOF)
            return rc;
        if (rc == STEP_WAIT && refs[i].role == REF_CONFIG)
            fetching = true;
        if (rc == STEP_WAIT)
            result = STEP_WAIT;
    }
    return result;
}

/* ---- signatures --------------------------------------------------------------------------------------------------- */

static void sign_done(void *arg, struct upstream_answer *answer, const struct err *err)
{
    struct image_job *im = CAST_OBJ(struct image_job, IMAGE_MAGIC, arg);

    upstream_answer_release(&im->answer);
    im->answer = *answer;
    *answer = (struct upstream_answer){.head.status = 0};
    im->answer_err = *err;
    atomic_store(&im->answered, true);
    image_wake(im);
    image_unref(im);
}

static int sign_ask(struct image_job *im, struct err *err)
{
    CLEANUP(free_ptr) char *path = NULL;
    struct digest_text d = digest_text(&im->targets[im->target_at]);

    if (signature_calls[im->call_at].as_tag)
        *strchr(d.s, ':') = '-';
    TRY(str_printf(&path, err, "/v2/%s/%s/%s%s", im->name, signature_calls[im->call_at].kind, d.s,
                   signature_calls[im->call_at].suffix));
    struct upstream_request req = {.up = im->up,
                                   .head = signature_calls[im->call_at].head,
                                   .path = path,
                                   .accept = oci_type_name(OCI_TYPE_INDEX),
                                   .limit_bytes = OCI_MANIFEST_MAX_BYTES};
    im->calling = true;
    atomic_store(&im->answered, false);
    image_ref(im); /* the exchange's, dropped in sign_done() */
    int rc = upstream_call(im->js->p->ups, &req, sign_done, im, err);
    if (rc < 0)
        image_unref(im);
    return rc;
}

/* Does an index of referrers hold a signature? SBOMs and attestations are none. */
static bool lists_signature(const struct buf *body)
{
    static const char *const kinds[] = {"application/vnd.dev.cosign", "application/vnd.dev.sigstore",
                                        "application/vnd.cncf.notary.signature"};
    CLEANUP(oci_manifest_release) struct oci_manifest m = {.type = OCI_TYPE_OTHER};
    struct err err = ERR_INIT;

    if (!body->data || oci_manifest_parse(body->data, body->len, oci_type_name(OCI_TYPE_INDEX), &m, &err) < 0)
        return false;
    for (size_t i = 0; i < m.child_count; i++) {
        for (size_t k = 0; m.children[i].artifact_type && k < ARRAY_LEN(kinds); k++) {
            if (strncmp(m.children[i].artifact_type, kinds[k], strlen(kinds[k])) == 0)
                return true;
        }
    }
    return false;
}

/* "No such thing", or a registry that has no referrers API and says so in its own way. */
static bool says_no(const struct image_job *im)
{
    int status = im->answer.head.status;
    return im->answer_err.code == ERR_NOTFOUND ||
           (im->call_at == REFERRERS_CALL && (status == 400 || status == 405 || status == 501));
}

/* Takes in one answer: STEP_MORE when the next call may follow. "No such thing" is an answer; anything else that failed
 * leaves the question open, and without its answer no view is published. */
static int sign_answer(struct image_job *im, struct err *err)
{
    im->calling = false;
    if (im->answer_err.code == 0) {
        if (signature_calls[im->call_at].head || lists_signature(&im->answer.body))
            im->found_signature = true;
        if (im->call_at == REFERRERS_CALL)
            im->call_at++; /* the API answered: the tag that stands in for it says nothing more */
    } else if (!says_no(im)) {
        *err = im->answer_err;
        return err_wrap(err, "looking for signatures");
    }
    im->call_at++;
    if (im->found_signature || im->call_at >= (int)ARRAY_LEN(signature_calls)) {
        TRY(store_manifest_set_signed(im->js->p->store, &im->targets[im->target_at], im->found_signature, err));
        im->target_at++;
        im->call_at = 0;
        im->found_signature = false;
    }
    return STEP_MORE;
}

/* An index may have become known after its image's views were made: then only its own are missing. */
static int is_target(struct image_job *im, const struct digest *index, bool image_ready, bool *out, struct err *err)
{
    CLEANUP(store_manifest_release) struct store_manifest m = {.len = 0};

    *out = true;
    if (!image_ready)
        return 0;
    TRY(store_manifest_get(im->js->p->store, index, &m, err));
    *out = m.views == VIEWS_UNKNOWN;
    return 0;
}

static int list_targets(struct image_job *im, bool image_ready, struct err *err)
{
    CLEANUP(free_ptr) struct digest *parents = NULL;
    size_t count = 0;

    if (!im->recheck)
        TRY(store_manifest_parents(im->js->p->store, &im->manifest, &parents, &count, err));
    im->targets = calloc(count + 1, sizeof(*im->targets));
    if (!im->targets)
        return err_nomem(err, (count + 1) * sizeof(*im->targets));
    im->targets[im->target_count++] = im->manifest;
    for (size_t i = 0; i < count; i++) {
        bool yes;
        TRY(is_target(im, &parents[i], image_ready, &yes, err));
        if (yes)
            im->targets[im->target_count++] = parents[i];
    }
    im->target_at = image_ready && !im->recheck; /* its own signatures were looked up */
    return 0;
}

static int need_signatures(struct image_job *im, struct err *err)
{
    if (im->calling && !atomic_load(&im->answered))
        return STEP_WAIT;
    if (im->calling)
        TRY(sign_answer(im, err));
    if (im->target_at >= im->target_count)
        return STEP_MORE;
    TRY(sign_ask(im, err));
    return STEP_WAIT;
}

/* ---- the steps in their order ---------------------------------------------------------------------------------------- */

static int make_views(struct image_job *im, const struct store_manifest *m, struct err *err)
{
    struct store *st = im->js->p->store;

    if (m->views != VIEWS_READY && views_make_image(st, m, err) < 0) {
        struct err why = *err;
        if (why.code != ERR_FORMAT)
            return why.code;
        err_clear(err);
        return never(im, why.msg, err);
    }
    for (size_t i = 1; i < im->target_count; i++)
        TRY(views_make_index(st, &im->targets[i], err));
    if (m->views == VIEWS_READY)
        return STEP_EOF;
    TRY(store_manifest_set_views(st, &im->manifest, VIEWS_READY, NULL, err));
    log_event(LOG_INFO, "image.ready", "upstream=%s repo=%s digest=%s indexes=%zu", upstream_name(im->up), im->name,
              digest_text(&im->manifest).s, im->target_count - 1);
    /* Once more, for an index that came meanwhile. */
    free_ptr(&im->targets);
    im->target_count = 0;
    image_wake(im);
    return STEP_WAIT;
}

static int image_step(struct image_job *im, struct err *err)
{
    CLEANUP(store_manifest_release) struct store_manifest m = {.len = 0};
    struct proxy *p = im->js->p;
    int rc;

    TRY(store_manifest_get(p->store, &im->manifest, &m, err));
    bool ready = m.views == VIEWS_READY;
    bool wanted = im->recheck ? (m.is_signed == 0 && !p->opt.rewrite_signed)
                              : (m.view == 0 && !m.is_index && m.views != VIEWS_NEVER);
    if (!wanted && !im->calling)
        return STEP_EOF;
    if (!im->targets) {
        if (!im->recheck && !ready) {
            TRY(store_manifest_want(p->store, &im->manifest, err));
            rc = need_parts(im, err);
            if (rc != STEP_MORE)
                return rc;
        }
        TRY(list_targets(im, ready, err));
    }
    if (ready && !im->recheck && im->target_count == 1)
        return STEP_EOF;
    if (!p->opt.rewrite_signed) {
        rc = need_signatures(im, err);
        if (rc != STEP_MORE)
            return rc;
    }
    return im->recheck ? STEP_EOF : make_views(im, &m, err);
}

static void image_run(void *arg)
{
    struct image_job *im = CAST_OBJ(struct image_job, IMAGE_MAGIC, arg);
    struct err err = ERR_INIT;

    if (im->over)
        return;
    if (jobs_stopping(im->js)) {
        over(im);
        return;
    }
    if (im->fill)
        fill_forget(im->fill, &im->waiter);
    int rc = image_step(im, &err);
    if (rc < 0)
        log_event(LOG_WARN, "image.fail", "upstream=%s repo=%s digest=%s code=%s error=%s", upstream_name(im->up),
                  im->name, digest_text(&im->manifest).s, err_code_name(err.code), log_quote(err.msg).s);
    if (rc < 0 || rc == STEP_EOF)
        over(im);
}

int image_new(struct jobs *js, const struct upstream *up, int64_t repo, const char *name, const struct digest *manifest,
              bool recheck, struct image_job **out, struct err *err)
{
    struct image_job *im = calloc(1, sizeof(*im));
    if (!im)
        return err_nomem(err, sizeof(*im));
    im->magic = IMAGE_MAGIC;
    atomic_init(&im->refs, 1);
    atomic_init(&im->answered, false);
    atomic_init(&im->head_start_over, false);
    im->js = js;
    im->up = up;
    im->repo = repo;
    snprintf(im->name, sizeof(im->name), "%s", name);
    im->manifest = *manifest;
    im->recheck = recheck;
    im->timer = (struct timer){.fn = head_start_ends, .arg = im};
    im->waiter = (struct waiter){.fn = image_wake, .arg = im};
    job_init(&im->job, JOB_BACKGROUND, image_run, im, image_ref, image_unref);
    *out = im;
    return 0;
}
