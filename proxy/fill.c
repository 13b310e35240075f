/* SPDX-License-Identifier: Apache-2.0
 *
 * One blob on its way from an upstream into the store, shared by all who want it. A worker drains the upstream's stream
 * into a spool file; followers read the spool at their own pace and never hold the fill up. States go forward only:
 *
 *   STARTING -> STREAMING -> VERIFIED -> DONE   committed, off the table
 *                         -> DETACHED    the spool cannot be written: each follower goes on by its own transfer
 *            -> FAILED
 *
 * Invariants:
 *   F1  one fill per (upstream, digest) is on the table; whoever finds the blob neither stored nor on the table starts one,
 *       and looks at the store once more after it is on the table, so a blob is never fetched twice
 *   F2  a fill leaves the table only after its blob is committed (or it failed), and its background job is queued
 *   F3  nobody waits for a follower; a client that leaves does not stop the fill
 *   F4  of a blob that comes with a Content-Encoding nothing is handed out before it is known whether it is the blob as sent
 *       or decoded: VERIFIED (fill_decode.c), or DETACHED after all of it was read (fill_probe.c)
 */
#include "base/log.h"
#include "proxy/fill_internal.h"
#include "proxy/jobs_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DRAIN_READS 4 /* reads of up to FILL_BUFFER_BYTES before other work gets its turn */
#define FILLS_MAX 512 /* at once; each has a ring, a buffer and a file */

void fill_ref(void *arg)
{
    struct fill *f = CAST_OBJ(struct fill, FILL_MAGIC, arg);
    atomic_fetch_add(&f->refs, 1);
}

static void fill_unref_arg(void *arg)
{
    struct fill *f = CAST_OBJ(struct fill, FILL_MAGIC, arg);
    if (atomic_fetch_sub(&f->refs, 1) != 1)
        return;
    REQUIRE(f->waiters.head == NULL && f->readers.head == NULL);
    fill_probe_free(f->probe);
    source_free(f->stream);
    source_free(f->plain);
    spool_unref(f->plain_spool);
    spool_unref(f->spool);
    hasher_free(f->detached_hasher);
    free(f->buffer);
    lock_release(&f->lock);
    f->magic = 0;
    free(f);
}

void fill_unref(struct fill *f)
{
    if (f)
        fill_unref_arg(f);
}

static void set_state(struct fill *f, enum fill_state state)
{
    lock_take(&f->lock);
    REQUIRE(state >= f->state);
    f->state = state;
    waiter_wake_all(&f->waiters);
    waiter_wake_all(&f->readers);
    lock_give(&f->lock);
}

static void unlist(struct fill *f)
{
    struct proxy *p = f->p;

    lock_take(&p->lock);
    for (struct fill **pp = &p->fills; *pp; pp = &(*pp)->link) {
        if (*pp == f) {
            *pp = f->link;
            p->fill_count--;
            break;
        }
    }
    lock_give(&p->lock);
    jobs_kick(p->jobs);
}

/* The last thing a fill does; drops the run's reference. Off the table first: whoever sees the last state and starts anew
 * must not find this one. */
static void finish(struct fill *f, enum fill_state state)
{
    fill_probe_free(steal(&f->probe));
    source_free(steal(&f->stream));
    source_free(steal(&f->plain));
    free_ptr(&f->buffer);
    f->over = true;
    unlist(f);
    set_state(f, state);
    fill_unref(f);
}

static void fail(struct fill *f)
{
    bool expected = f->err.code == ERR_NOTFOUND || f->err.code == ERR_CANCELLED;
    log_event(expected ? LOG_DEBUG : LOG_WARN, "fill.fail", "upstream=%s repo=%s digest=%s code=%s error=%s",
              upstream_name(f->up), f->name, digest_text(&f->digest).s, err_code_name(f->err.code),
              log_quote(f->err.msg).s);
    finish(f, FILL_FAILED);
}

/* The repository's row, if this is the first that is known of it, is made now that the upstream's word is verified. */
static int commit(struct fill *f, struct err *err)
{
    int64_t repo = f->repo;

    if (repo == 0)
        TRY(store_repo(f->p->store, upstream_name(f->up), f->name, &repo, err));
    return spool_commit(f->spool, &f->digest, repo, err);
}

static void note_detach(struct fill *f, const struct err *why)
{
    log_event(LOG_WARN, "fill.detach", "upstream=%s repo=%s digest=%s at=%" PRIu64 " error=%s", upstream_name(f->up),
              f->name, digest_text(&f->digest).s, f->spool ? spool_bytes(f->spool) : 0, log_quote(why->msg).s);
}

/* The spool took its last byte at spool_bytes(): those who follow go on from there by themselves. */
static void detach(struct fill *f, const struct err *why)
{
    note_detach(f, why);
    if (f->spool && spool_hasher_clone(f->spool, &f->detached_hasher, &f->err) < 0)
        fail(f);
    else
        finish(f, FILL_DETACHED);
}

static int open_stream(struct fill *f, struct err *err)
{
    CLEANUP(free_ptr) char *path = NULL;

    TRY(str_printf(&path, err, "/v2/%s/blobs/%s", f->name, digest_text(&f->digest).s));
    struct upstream_request req = {.up = f->up, .path = path};
    TRY(upstream_stream_new(f->p->ups, &req, &f->stream, err));
    source_set_waker(f->stream, fill_wake, f);
    return 0;
}

/* What lies in the spools is of no use to anybody: nobody has read of it (F4), and the disk has a use for its room. */
static void drop_spools(struct fill *f)
{
    struct spool *sent = f->spool;

    source_free(steal(&f->plain));
    spool_unref(steal(&f->plain_spool));
    lock_take(&f->lock);
    f->spool = NULL;
    lock_give(&f->lock);
    spool_unref(sent);
}

/* An encoded blob that the disk does not take. */
static void begin_probe(struct fill *f, const struct err *why)
{
    note_detach(f, why);
    drop_spools(f);
    source_free(steal(&f->stream));
    if (open_stream(f, &f->err) < 0 || fill_probe_begin(f, &f->err) < 0)
        fail(f);
    else
        workpool_post(f->p->pool, &f->job);
}

/* Returns true when another step may follow at once. */
static bool probe_once(struct fill *f)
{
    int rc = fill_probe_step(f, &f->err);

    if (rc == STEP_EOF)
        rc = fill_probe_end(f, &f->err);
    if (rc < 0)
        fail(f);
    else if (rc == STEP_DONE)
        finish(f, FILL_DETACHED);
    return rc == STEP_MORE;
}

static void begin_decoding(struct fill *f)
{
    struct err err = ERR_INIT;

    f->decoded = true;
    if (fill_decode_begin(f, &err) < 0)
        begin_probe(f, &err);
    else
        workpool_post(f->p->pool, &f->job);
}

static void complete(struct fill *f)
{
    struct digest got;

    spool_digest(f->spool, &got);
    if (f->encoded && !f->decoded && !digest_equal(&got, &f->digest)) {
        begin_decoding(f);
        return;
    }
    if (!digest_equal(&got, &f->digest)) {
        err_set(&f->err, ERR_CORRUPT, "%s sent %" PRIu64 " bytes for %s that hash to %s", upstream_name(f->up),
                spool_bytes(f->spool), digest_text(&f->digest).s, digest_text(&got).s);
        fail(f);
        return;
    }
    lock_take(&f->lock);
    f->has_length = true;
    f->length = spool_bytes(f->spool);
    lock_give(&f->lock);
    /* Clients get their last bytes now; that the blob is stored too is our own business. */
    set_state(f, FILL_VERIFIED);
    if (commit(f, &f->err) < 0) {
        log_event(LOG_WARN, "fill.commit", "digest=%s code=%s error=%s", digest_text(&f->digest).s,
                  err_code_name(f->err.code), log_quote(f->err.msg).s);
    } else {
        log_event(LOG_INFO, "fill.done", "upstream=%s repo=%s digest=%s bytes=%" PRIu64, upstream_name(f->up), f->name,
                  digest_text(&f->digest).s, f->length);
        jobs_canon(f->p->jobs, &f->digest);
    }
    finish(f, FILL_DONE);
}

/* After the first word from the upstream. Fails when there is no room for so much. */
static int note_head(struct fill *f, struct err *err)
{
    bool known = false;
    uint64_t bytes = 0;

    if (f->state != FILL_STARTING || !upstream_stream_length(f->stream, &known, &bytes))
        return 0;
    lock_take(&f->lock);
    f->has_length = known;
    f->length = bytes;
    f->encoded = upstream_stream_encoded(f->stream);
    lock_give(&f->lock);
    set_state(f, FILL_STREAMING);
    return known && f->spool ? spool_expect(f->spool, bytes, err) : 0;
}

/* Into the spool. Fails when that takes no more, or was never there and the head has told what there is to know. */
static int keep(struct fill *f, size_t len, struct err *err)
{
    if (f->spool)
        return len > 0 ? spool_write(f->spool, f->buffer, len, err) : 0;
    return f->state >= FILL_STREAMING ? err_set(err, ERR_NOSPC, "there is no spool file") : 0;
}

static void cannot_keep(struct fill *f, const struct err *why)
{
    if (f->encoded)
        begin_probe(f, why);
    else
        detach(f, why);
}

/* One read and one write. Returns true when another may follow at once. */
static bool drain_once(struct fill *f)
{
    struct err err = ERR_INIT;
    size_t got = 0;

    int rc = source_read(f->stream, f->buffer, FILL_BUFFER_BYTES, &got, &f->err);
    if (rc < 0) {
        fail(f);
        return false;
    }
    if (note_head(f, &err) < 0 || keep(f, got, &err) < 0) {
        cannot_keep(f, &err);
        return false;
    }
    if (rc == STEP_EOF) {
        complete(f);
        return false;
    }
    if (got > 0) {
        lock_take(&f->lock);
        waiter_wake_all(&f->readers);
        lock_give(&f->lock);
    }
    return rc == STEP_MORE;
}

static void decode_some(struct fill *f)
{
    int rc = jobs_stopping(f->p->jobs) ? err_set(&f->err, ERR_CANCELLED, "recask is stopping") : 0;

    if (rc == 0)
        rc = fill_decode_slice(f, &f->err);
    if (error_of_store(rc)) {
        struct err why = f->err;
        err_clear(&f->err);
        begin_probe(f, &why);
    } else if (rc < 0) {
        if (rc == ERR_FORMAT || rc == ERR_UNSUPPORTED)
            f->err.code = ERR_CORRUPT; /* the upstream's fault, not the client's */
        err_wrap(&f->err, "%s sent %s with a Content-Encoding, and its bytes are not the blob", upstream_name(f->up),
                 digest_text(&f->digest).s);
        fail(f);
    } else if (rc == STEP_EOF) {
        fill_decode_end(f);
        complete(f);
    } else if (rc == STEP_MORE) {
        workpool_post(f->p->pool, &f->job);
    }
}

static void fill_run(void *arg)
{
    struct fill *f = CAST_OBJ(struct fill, FILL_MAGIC, arg);

    if (f->plain) {
        decode_some(f);
        return;
    }
    for (int i = 0; i < DRAIN_READS; i++) {
        if (f->over || !(f->probe ? probe_once(f) : drain_once(f)))
            return;
    }
    workpool_post(f->p->pool, &f->job);
}

void fill_wake(void *arg)
{
    struct fill *f = CAST_OBJ(struct fill, FILL_MAGIC, arg);
    workpool_post(f->p->pool, &f->job);
}

/* ---- starting --------------------------------------------------------------------------------------------------- */

static int fill_new(struct proxy *p, const struct upstream *up, int64_t repo, const char *name, const struct digest *d,
                    struct fill **out, struct err *err)
{
    struct fill *f = calloc(1, sizeof(*f));
    if (!f)
        return err_nomem(err, sizeof(*f));
    f->magic = FILL_MAGIC;
    atomic_init(&f->refs, 1);
    f->p = p;
    f->up = up;
    f->repo = repo;
    f->digest = *d;
    snprintf(f->name, sizeof(f->name), "%s", name);
    lock_init(&f->lock, RANK_FILL);
    job_init(&f->job, JOB_CLIENT, fill_run, f, fill_ref, fill_unref_arg);
    *out = f;
    return 0;
}

static struct fill *table_find(struct proxy *p, const struct upstream *up, const struct digest *d)
{
    for (struct fill *f = p->fills; f; f = f->link) {
        if (f->up == up && digest_equal(&f->digest, d))
            return f;
    }
    return NULL;
}

struct fill *fill_find(struct proxy *p, const struct upstream *up, const struct digest *d)
{
    lock_take(&p->lock);
    struct fill *f = table_find(p, up, d);
    if (f)
        fill_ref(f);
    lock_give(&p->lock);
    return f;
}

/* f is on the table (F1). A spool that cannot even be opened is a fill that detaches once it has seen the head: the length
 * is worth the request. */
static void begin(struct fill *f)
{
    struct store_blob blob;
    struct err err = ERR_INIT;

    if (store_blob_lookup(f->p->store, &f->digest, &blob, &f->err) < 0) {
        fail(f);
        return;
    }
    if (blob.present) {
        f->was_present = true;
        finish(f, FILL_FAILED);
        return;
    }
    f->buffer = malloc(FILL_BUFFER_BYTES);
    if (!f->buffer) {
        err_nomem(&f->err, FILL_BUFFER_BYTES);
        fail(f);
        return;
    }
    if (spool_open(f->p->store, &f->spool, &err) < 0)
        log_event(LOG_WARN, "fill.spool", "digest=%s error=%s", digest_text(&f->digest).s, log_quote(err.msg).s);
    if (open_stream(f, &f->err) < 0)
        fail(f);
    else
        workpool_post(f->p->pool, &f->job);
}

int fill_join(struct proxy *p, const struct upstream *up, int64_t repo, const char *name, const struct digest *d,
              struct fill **out, bool *out_started, struct err *err)
{
    struct fill *fresh = NULL;

    TRY(fill_new(p, up, repo, name, d, &fresh, err));
    lock_take(&p->lock);
    struct fill *f = table_find(p, up, d);
    *out_started = !f;
    if (!f && p->fill_count >= FILLS_MAX) {
        lock_give(&p->lock);
        fill_unref(fresh);
        return err_set(err, ERR_BUSY, "%d transfers are running, no more at once", FILLS_MAX);
    }
    if (!f) {
        f = fresh;
        f->link = p->fills;
        p->fills = f;
        p->fill_count++;
    }
    fill_ref(f); /* the caller's; fill_new()'s own is the run's */
    lock_give(&p->lock);
    *out = f;
    if (*out_started)
        begin(f);
    else
        fill_unref(fresh);
    return 0;
}

/* ---- looking on --------------------------------------------------------------------------------------------------- */

bool fill_reads_from(const struct fill *f, const char *name)
{
    return strcmp(f->name, name) == 0;
}

enum fill_state fill_wait(struct fill *f, enum fill_state want, struct waiter *w)
{
    lock_take(&f->lock);
    enum fill_state state = f->state;
    if (state < want && w)
        waiter_add(&f->waiters, w);
    lock_give(&f->lock);
    return state;
}

void fill_forget(struct fill *f, struct waiter *w)
{
    lock_take(&f->lock);
    waiter_remove(w);
    lock_give(&f->lock);
}

void fill_error(struct fill *f, struct err *out)
{
    *out = f->err;
}

bool fill_length(struct fill *f, uint64_t *out_bytes)
{
    lock_take(&f->lock);
    bool known = f->has_length;
    *out_bytes = f->length;
    lock_give(&f->lock);
    return known;
}

bool fill_was_present(struct fill *f)
{
    return f->was_present;
}
