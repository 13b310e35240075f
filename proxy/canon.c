/* SPDX-License-Identifier: Apache-2.0
 *
 * One blob becoming canonical: its verified original is read, decoded by what its bytes are, and put through the layer
 * writer. The job runs in slices of at most SLICE_BYTES or SLICE_MS, so that clients get the workers in between.
 */
#include "base/clock.h"
#include "base/log.h"
#include "proxy/blob_internal.h"
#include "proxy/jobs_internal.h"

#include <inttypes.h>

#define CANON_MAGIC 0xca4041c0u
#define BUFFER_BYTES (256u << 10)
#define SLICE_BYTES (1u << 20)
#define SLICE_MS 10
#define TRIES_MAX 5
#define SETTLE_MS 500 /* between looks whether an original is still being read */

static void canon_ref(void *arg)
{
    struct canon_job *c = CAST_OBJ(struct canon_job, CANON_MAGIC, arg);
    atomic_fetch_add(&c->refs, 1);
}

void canon_unref(void *arg)
{
    struct canon_job *c = CAST_OBJ(struct canon_job, CANON_MAGIC, arg);
    if (atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    source_free(c->source);
    layer_writer_abort(c->writer);
    free(c->buffer);
    c->magic = 0;
    free(c);
}

static void close_all(struct canon_job *c)
{
    source_free(steal(&c->source));
    layer_writer_abort(steal(&c->writer));
}

static void over(struct canon_job *c)
{
    close_all(c);
    timer_disarm(c->js->p->timers, &c->timer);
    jobs_canon_over(c);
}

/* STEP_EOF when the original on disk is what it was: then it is the blob itself that does not decode. */
static int check_original(struct canon_job *c, struct err *err)
{
    CLEANUP(source_cleanup) struct source *s = NULL;
    size_t got;

    int rc = original_open_quietly(c->js->p->store, &c->digest, &s, err);
    while (rc >= 0 && rc != STEP_EOF)
        rc = source_read(s, c->buffer, BUFFER_BYTES, &got, err);
    return rc;
}

static void refuse(struct canon_job *c, const char *why)
{
    struct err err = ERR_INIT;

    log_event(LOG_INFO, "canon.refused", "digest=%s reason=%s", digest_text(&c->digest).s, log_quote(why).s);
    if (store_canon_refuse(c->js->p->store, &c->digest, why, &err) < 0)
        log_event(LOG_WARN, "canon.refused", "digest=%s error=%s", digest_text(&c->digest).s, log_quote(err.msg).s);
    over(c);
}

/* The reading failed: is it the file that is damaged, or what is in it? False when there is no telling now. */
static bool settle_damage(struct canon_job *c, const struct err *e)
{
    struct err err = ERR_INIT;

    int rc = check_original(c, &err);
    if (rc == STEP_EOF) {
        refuse(c, e->msg);
        return true;
    }
    if (rc != ERR_CORRUPT && rc != ERR_NOTFOUND)
        return false;
    /* Not found is what an eviction in the middle of the job looks like too: nothing to worry anybody with. */
    log_event(rc == ERR_CORRUPT ? LOG_ERR : LOG_INFO, "canon.lost", "digest=%s error=%s", digest_text(&c->digest).s,
              log_quote(e->msg).s);
    err_clear(&err);
    if (store_mark_lost(c->js->p->store, &c->digest, &err) < 0)
        log_event(LOG_ERR, "canon.lost", "digest=%s error=%s", digest_text(&c->digest).s, log_quote(err.msg).s);
    over(c);
    return true;
}

static void failed(struct canon_job *c, const struct err *e)
{
    close_all(c);
    switch (e->code) {
    case ERR_FORMAT:
    case ERR_LIMIT:
    case ERR_UNSUPPORTED:
        if (!c->reading)
            break;
        refuse(c, e->msg);
        return;
    case ERR_CORRUPT:
    case ERR_NOTFOUND:
        if (c->reading && settle_damage(c, e))
            return;
        break;
    case ERR_BUSY:
        if (++c->tries < TRIES_MAX) {
            workpool_post(c->js->p->pool, &c->job);
            return;
        }
        break;
    default:
        break;
    }
    /* The original stays; it is taken up again at the next start or the next time somebody wants it. */
    log_event(LOG_WARN, "canon.fail", "digest=%s code=%s error=%s", digest_text(&c->digest).s, err_code_name(e->code),
              log_quote(e->msg).s);
    over(c);
}

/* STEP_DONE: opened; STEP_EOF: there is nothing to do. */
static int open_job(struct canon_job *c, struct err *err)
{
    CLEANUP(source_cleanup) struct source *raw = NULL;
    struct proxy *p = c->js->p;
    struct store_blob blob;
    bool config;

    c->reading = false;
    TRY(store_blob_lookup(p->store, &c->digest, &blob, err));
    if (blob.role != ROLE_ORIGINAL || !blob.present || blob.canonical_present || blob.canon == CANON_REFUSED)
        return STEP_EOF;
    TRY(store_is_config(p->store, &c->digest, &config, err));
    c->reading = true;
    if (config)
        return err_set(err, ERR_UNSUPPORTED, "an image config");
    if (!c->buffer)
        c->buffer = malloc(BUFFER_BYTES);
    if (!c->buffer)
        return err_nomem(err, BUFFER_BYTES);
    TRY(original_open_quietly(p->store, &c->digest, &raw, err));
    TRY(source_decoded_new(&raw, p->opt.max_layer_bytes, p->opt.max_ratio, &c->source, err));
    c->reading = false;
    c->start_ms = clock_mono_ms();
    return layer_writer_open(p->store, &c->digest, &c->writer, err);
}

static int commit(struct canon_job *c, struct err *err)
{
    struct layer_result res;

    source_free(steal(&c->source)); /* or the original could not be dropped: it would be being read */
    TRY(layer_writer_commit(c->writer, &res, err));
    c->committed = true;
    log_event(LOG_INFO, "canon.done",
              "digest=%s canonical=%s bytes=%" PRIu64 " chunks=%" PRIu64 " new_chunks=%" PRIu64
              " new_frame_bytes=%" PRIu64 " existed=%d ms=%" PRId64,
              digest_text(&c->digest).s, digest_text(&res.canonical).s, res.canonical_bytes, res.chunks, res.new_chunks,
              res.new_frame_bytes, res.existed, clock_mono_ms() - c->start_ms);
    return STEP_EOF;
}

static int slice(struct canon_job *c, struct err *err)
{
    int64_t until_ms = clock_mono_ms() + SLICE_MS;
    size_t moved = 0;

    if (!c->writer) {
        int rc = open_job(c, err);
        if (rc != STEP_DONE)
            return rc;
    }
    while (moved < SLICE_BYTES && clock_mono_ms() < until_ms) {
        size_t got = 0;
        c->reading = true;
        int rc = source_read(c->source, c->buffer, BUFFER_BYTES, &got, err);
        if (rc < 0)
            return rc;
        c->reading = false;
        TRY(layer_writer_put(c->writer, c->buffer, got, err));
        if (rc == STEP_EOF)
            return commit(c, err);
        moved += got;
    }
    return STEP_MORE;
}

/* The last step: the original goes, if it is to go, as soon as no client reads it. */
static void settle(struct canon_job *c)
{
    struct err err = ERR_INIT;

    close_all(c);
    int rc = store_settle_original(c->js->p->store, &c->digest, &err);
    if (rc == ERR_BUSY) {
        c->committed = true;
        jobs_canon_settling(c);
        timer_arm(c->js->p->timers, &c->timer, SETTLE_MS);
        return;
    }
    if (rc < 0)
        log_event(LOG_WARN, "canon.settle", "digest=%s error=%s", digest_text(&c->digest).s, log_quote(err.msg).s);
    over(c);
}

static void canon_wake(void *arg)
{
    struct canon_job *c = CAST_OBJ(struct canon_job, CANON_MAGIC, arg);
    workpool_post(c->js->p->pool, &c->job);
}

static void canon_run(void *arg)
{
    struct canon_job *c = CAST_OBJ(struct canon_job, CANON_MAGIC, arg);
    struct err err = ERR_INIT;

    if (jobs_stopping(c->js)) {
        over(c);
        return;
    }
    int rc = c->committed ? STEP_EOF : slice(c, &err);
    if (rc < 0)
        failed(c, &err);
    else if (rc == STEP_MORE)
        workpool_post(c->js->p->pool, &c->job);
    else
        settle(c);
}

int canon_new(struct jobs *js, const struct digest *d, struct canon_job **out, struct err *err)
{
    struct canon_job *c = calloc(1, sizeof(*c));
    if (!c)
        return err_nomem(err, sizeof(*c));
    c->magic = CANON_MAGIC;
    atomic_init(&c->refs, 1);
    c->js = js;
    c->digest = *d;
    c->timer = (struct timer){.fn = canon_wake, .arg = c};
    job_init(&c->job, JOB_BACKGROUND, canon_run, c, canon_ref, canon_unref);
    *out = c;
    return 0;
}
