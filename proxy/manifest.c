/* SPDX-License-Identifier: Apache-2.0
 *
 * GET and HEAD of /v2/<name>/manifests/<reference>.
 *
 *   digest: the bytes of exactly that digest, upstream's or a rewritten manifest's, once the repository is known to hold it
 *   tag:    fresh in the catalog, or asked for upstream -> upstream digest -> view for this client -> bytes
 *
 * Only a client that cannot read what the upstream has (zstd layers before docker 23) is ever held back.
 */
#include "base/clock.h"
#include "base/log.h"
#include "proxy/negotiate.h"
#include "proxy/proxy_internal.h"
#include "proxy/recent.h"

#include <stdio.h>
#include <string.h>

static void choose(struct request *r);
static void digest_known(struct request *r);

/* ---- answers ---------------------------------------------------------------------------------------------------- */

static int manifest_headers(struct request *r, const struct store_manifest *m, struct http_answer *a, struct err *err)
{
    TRY(request_headers(r, a, err));
    if (a->status == 200)
        TRY(http_answer_header(a, err, "Content-Type", "%s", m->media_type));
    TRY(http_answer_header(a, err, "Docker-Content-Digest", "%s", digest_text(&m->digest).s));
    TRY(http_answer_header(a, err, "ETag", "\"%s\"", digest_text(&m->digest).s));
    TRY(http_answer_header(a, err, "X-Recask-View", "%s", oci_view_name((enum oci_view)m->view)));
    TRY(http_answer_header(a, err, "X-Recask-Upstream-Digest", "%s", digest_text(&m->upstream).s));
    if (!r->reference.is_digest)
        TRY(http_answer_header(a, err, "Vary", "User-Agent, Accept, Recask-View"));
    if (r->cache == CACHE_STALE)
        TRY(request_warn_stale(r, a, err));
    if (r->cache == CACHE_GONE)
        TRY(http_answer_header(a, err, "Warning", "299 - \"recask: %s does not have this tag any more\"",
                               upstream_name(r->route.up)));
    return 0;
}

/* The client has these bytes already. */
static bool manifest_not_modified(const struct request *r, const struct store_manifest *m)
{
    char etag[DIGEST_TEXT_BYTES + 2];

    snprintf(etag, sizeof(etag), "\"%s\"", digest_text(&m->digest).s);
    return etag_matches(http_header(r->x, "If-None-Match"), etag);
}

static void serve(struct request *r, struct store_manifest *m)
{
    struct http_answer a = {.status = manifest_not_modified(r, m) ? 304 : 200,
                            .view = oci_view_name((enum oci_view)m->view)};
    struct err err = ERR_INIT;

    if (manifest_headers(r, m, &a, &err) < 0) {
        http_answer_release(&a);
        request_fail(r, &err);
        return;
    }
    a.has_length = true;
    a.length_bytes = m->len;
    if (a.status == 200) {
        a.body = steal(&m->body);
        a.body_len = m->len;
    }
    if (r->fresh_until_s != 0 && !r->p->opt.access) /* whom access.c has to see each time */
        recent_keep(r->p->recent, r->x, r->generation, r->fresh_from_s, r->fresh_until_s, &a);
    request_reply(r, &a);
}

/* From the store, or what came for this request and could not be put there. */
static int get_manifest(struct request *r, const struct digest *d, struct store_manifest *out, struct err *err)
{
    if (!r->unstored.body || !digest_equal(&r->unstored.digest, d))
        return store_manifest_get(r->p->store, d, out, err);
    *out = r->unstored;
    r->unstored.body = NULL;
    return 0;
}

static void serve_digest(struct request *r, const struct digest *d)
{
    CLEANUP(store_manifest_release) struct store_manifest m = {.len = 0};
    struct err err = ERR_INIT;

    if (get_manifest(r, d, &m, &err) < 0)
        request_fail(r, &err);
    else
        serve(r, &m);
}

/* ---- asking upstream ---------------------------------------------------------------------------------------------- */

static void ask_upstream(struct request *r, const char *reference, void (*then)(struct request *))
{
    struct err err = ERR_INIT;

    r->next = then;
    if (request_may_ask(r, reference, &err) < 0 ||
        resolve_join(r->p, r->route.up, r->route.name, reference, &r->waiter, &r->resolve, &err) < 0)
        request_fail(r, &err);
}

/* What came of ask_upstream(); `self` is the step that it was told to run. False when that has to end: the request failed,
 * or something else (a hold's timer) woke it and the answer is still to come. */
static bool asked(struct request *r, void (*self)(struct request *), struct resolved *out)
{
    struct err err = ERR_INIT;

    int rc = resolve_result(&r->resolve, out, &err);
    if (rc == STEP_WAIT) {
        r->next = self;
        return false;
    }
    if (rc < 0) {
        r->answer.head.status = out->status;
        r->answer.head.retry_after_s = out->retry_after_s;
    } else {
        store_manifest_release(&r->unstored);
        r->unstored = out->unstored;
        rc = request_repo(r, &err);
    }
    if (rc < 0)
        request_fail(r, &err);
    return rc == 0;
}

/* ---- by digest ------------------------------------------------------------------------------------------------------ */

static void digest_asked(struct request *r)
{
    struct resolved got;

    if (!asked(r, digest_asked, &got))
        return;
    r->cache = got.cache;
    serve_digest(r, &r->reference.digest);
}

static void digest_known(struct request *r)
{
    CLEANUP(store_manifest_release) struct store_manifest m = {.len = 0};
    struct err err = ERR_INIT;
    bool has = false;

    int rc = store_manifest_get(r->p->store, &r->reference.digest, &m, &err);
    if (rc == 0)
        rc = store_repo_has_manifest(r->p->store, r->repo, &r->reference.digest, &has, &err);
    if (rc == 0 && has) {
        r->cache = CACHE_HIT;
        r->fresh_from_s = INT64_MIN;
        r->fresh_until_s = INT64_MAX;
        serve(r, &m);
    } else if (rc == 0 || rc == ERR_NOTFOUND) {
        /* Known from elsewhere or not at all: the upstream says whether this repository has it. Of a rewritten manifest it
         * knows the original only. */
        ask_upstream(r, digest_text(rc == 0 ? &m.upstream : &r->reference.digest).s, digest_asked);
    } else {
        request_fail(r, &err);
    }
}

/* ---- by tag: the view ----------------------------------------------------------------------------------------------- */

static bool accepts_oci(struct request *r, const struct store_manifest *m)
{
    const char *accept = http_header(r->x, "Accept");
    return accept_allows(accept, oci_type_name(OCI_TYPE_MANIFEST)) &&
           (!m->is_index || accept_allows(accept, oci_type_name(OCI_TYPE_INDEX)));
}

static enum oci_view wanted_view(struct request *r, const struct store_manifest *m)
{
    const char *header = http_header(r->x, "Recask-View");
    enum oci_view wanted = VIEW_ORIGINAL;
    bool set = header && oci_view_parse(header, &wanted);

    if (!set && r->listener->opt.has_view) {
        set = true;
        wanted = r->listener->opt.view;
    }
    if (!set && r->p->opt.has_view) {
        set = true;
        wanted = r->p->opt.view;
    }
    return oci_choose_view(&r->client, set, wanted, r->listener->opt.link, accepts_oci(r, m));
}

/* The child that a Docker client will pull, from the "os/linux arch/amd64" of its User-Agent. */
static const struct oci_descriptor *child_for(struct request *r, const struct oci_manifest *index)
{
    const char *ua = http_header(r->x, "User-Agent");
    const char *at = ua ? strstr(ua, " arch/") : NULL;
    char arch[32] = "amd64";

    if (at)
        snprintf(arch, sizeof(arch), "%.*s", (int)strcspn(at + 6, " "), at + 6);
    for (size_t i = 0; i < index->child_count; i++) {
        const struct oci_descriptor *c = &index->children[i];
        if (c->platform.arch && strcmp(c->platform.arch, arch) == 0 && c->platform.os &&
            strcmp(c->platform.os, "linux") == 0)
            return c;
    }
    return NULL;
}

static bool has_zstd_layer(const struct oci_manifest *m)
{
    for (size_t i = 0; i < m->layer_count; i++) {
        if (m->layers[i].type == OCI_TYPE_LAYER_ZSTD || m->layers[i].type == OCI_TYPE_SCHEMA2_LAYER_ZSTD)
            return true;
    }
    return false;
}

static void held(struct request *r)
{
    jobs_forget(r->p->jobs, &r->waiter);
    timer_disarm(r->p->timers, &r->timer);
    choose(r);
}

/* The image whose original is of no use to this client: wait for its views, for a bounded time. */
static void hold(struct request *r, const struct digest *image)
{
    int64_t now = clock_mono_ms();

    if (r->hold_until_ms == 0) {
        r->hold_until_ms = now + r->p->opt.hold_ms;
    } else if (now >= r->hold_until_ms || !jobs_has_image(r->p->jobs, image)) {
        struct err err = ERR_INIT;
        err_set(
            &err, ERR_BUSY, "%s/%s:%s has zstd layers, which %s %u.%u cannot read; its canonical form is not ready yet",
            upstream_name(r->route.up), r->route.name, r->route.ref, r->client.name, r->client.major, r->client.minor);
        request_fail(r, &err);
        return;
    }
    r->next = held;
    jobs_wait(r->p->jobs, &r->waiter);
    jobs_image(r->p->jobs, r->route.up, r->repo, r->route.name, image);
    request_timer(r, (int)(r->hold_until_ms - now));
    if (!jobs_has_image(r->p->jobs, image))
        request_wake(r); /* over before the waiter was on the list */
}

static void child_asked(struct request *r)
{
    struct resolved got;

    if (asked(r, child_asked, &got))
        choose(r);
}

/* For a client that cannot read zstd layers: decides between the original (no zstd in it, or it can never be rewritten)
 * and holding. */
static void original_or_hold(struct request *r, struct store_manifest *top)
{
    CLEANUP(oci_manifest_release) struct oci_manifest index = {.type = OCI_TYPE_OTHER};
    CLEANUP(oci_manifest_release) struct oci_manifest image = {.type = OCI_TYPE_OTHER};
    CLEANUP(store_manifest_release) struct store_manifest child = {.len = 0};
    const struct store_manifest *m = top;
    struct err err = ERR_INIT;

    if (top->is_index) {
        if (oci_manifest_parse(top->body, top->len, top->media_type, &index, &err) < 0) {
            request_fail(r, &err);
            return;
        }
        const struct oci_descriptor *c = child_for(r, &index);
        if (!c) {
            serve(r, top);
            return;
        }
        int rc = get_manifest(r, &c->digest, &child, &err);
        if (rc == ERR_NOTFOUND) {
            ask_upstream(r, digest_text(&c->digest).s, child_asked);
            return;
        }
        if (rc < 0) {
            request_fail(r, &err);
            return;
        }
        m = &child;
    }
    if (m->views == VIEWS_NEVER || (m->is_signed == 1 && !r->p->opt.rewrite_signed) ||
        oci_manifest_parse(m->body, m->len, m->media_type, &image, &err) < 0 || !has_zstd_layer(&image))
        serve(r, top);
    else
        hold(r, &m->digest);
}

/* What the store did not take has no views, and gets none. */
static void serve_unstored(struct request *r, struct store_manifest *m)
{
    CLEANUP(oci_manifest_release) struct oci_manifest image = {.type = OCI_TYPE_OTHER};
    struct err err = ERR_INIT;

    if (!r->client.reads_zstd_original && !m->is_index &&
        oci_manifest_parse(m->body, m->len, m->media_type, &image, &err) == 0 && has_zstd_layer(&image)) {
        err_set(&err, ERR_BUSY, "%s/%s:%s has zstd layers, which %s %u.%u cannot read, and the store takes nothing now",
                upstream_name(r->route.up), r->route.name, r->route.ref, r->client.name, r->client.major,
                r->client.minor);
        request_fail(r, &err);
    } else {
        serve(r, m);
    }
}

static void choose(struct request *r)
{
    CLEANUP(store_manifest_release) struct store_manifest m = {.len = 0};
    struct digest derived;
    struct err err = ERR_INIT;

    bool unstored = r->unstored.body != NULL;
    if (get_manifest(r, &r->upstream_digest, &m, &err) < 0) {
        request_fail(r, &err);
        return;
    }
    if (unstored && !r->unstored.body) {
        serve_unstored(r, &m);
        return;
    }
    enum oci_view view = wanted_view(r, &m);
    if (view == VIEW_ORIGINAL || oci_tag_is_digest_tag(r->reference.tag) ||
        (m.is_signed == 1 && !r->p->opt.rewrite_signed)) {
        serve(r, &m);
        return;
    }
    int rc = store_view_get(r->p->store, &m.digest, view, &derived, &err);
    if (rc == 0)
        serve_digest(r, &derived);
    else if (rc != ERR_NOTFOUND)
        request_fail(r, &err);
    else if (!r->client.reads_zstd_original)
        original_or_hold(r, &m);
    else
        serve(r, &m);
}

static void serve_stored(struct request *r, enum cache_result cache)
{
    r->cache = cache;
    choose(r);
}

/* The upstream takes too long, and there is something to serve. */
static bool given_up(struct request *r)
{
    return r->stale_at_ms != 0 && clock_mono_ms() >= r->stale_at_ms && resolve_leave(&r->resolve, &r->waiter);
}

static void tag_asked(struct request *r)
{
    struct resolved got;

    if (given_up(r)) {
        serve_stored(r, CACHE_STALE);
    } else if (asked(r, tag_asked, &got)) {
        if (r->stale_at_ms)
            timer_disarm(r->p->timers, &r->timer);
        r->upstream_digest = got.digest;
        serve_stored(r, got.cache);
    }
}

/* is_known: r->upstream_digest is what the tag was. */
static void tag_ask(struct request *r, bool is_known)
{
    enum noted noted = tag_noted(r->p, r->route.up, r->route.name, r->reference.tag);
    struct err err = ERR_INIT;

    if (is_known && (noted != NOTED_NOTHING || quiet_now(r->p, r->route.up))) {
        serve_stored(r, noted == NOTED_GONE ? CACHE_GONE : CACHE_STALE);
    } else if (noted == NOTED_GONE) {
        err_set(&err, ERR_NOTFOUND, "%s has no %s:%s, it said a moment ago", upstream_name(r->route.up), r->route.name,
                r->reference.tag);
        request_fail(r, &err);
    } else {
        if (is_known) {
            r->stale_at_ms = clock_mono_ms() + r->p->opt.stale_wait_ms;
            request_timer(r, r->p->opt.stale_wait_ms);
        }
        ask_upstream(r, r->reference.tag, tag_asked);
    }
}

static void tag_start(struct request *r)
{
    struct store_tag tag;
    struct err err = ERR_INIT;

    int rc = store_tag_get(r->p->store, r->repo, r->reference.tag, &tag, &err);
    if (rc < 0 && rc != ERR_NOTFOUND) {
        request_fail(r, &err);
        return;
    }
    if (rc == 0)
        r->upstream_digest = tag.digest;
    if (rc == 0 && (r->p->opt.offline || tag_is_fresh(r->p, r->route.up, &tag))) {
        r->fresh_from_s = r->p->opt.offline ? INT64_MIN : tag.checked_at;
        r->fresh_until_s = r->p->opt.offline ? INT64_MAX : tag_fresh_until_s(r->p, r->route.up, &tag);
        serve_stored(r, CACHE_HIT);
    } else {
        tag_ask(r, rc == 0);
    }
}

void manifest_start(struct request *r)
{
    struct err err = ERR_INIT;

    int rc = oci_reference_parse(r->route.ref, &r->reference, &err);
    if (rc < 0)
        request_fail(r, &err);
    else if (r->reference.is_digest)
        digest_known(r);
    else
        tag_start(r);
}
