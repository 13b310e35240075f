/* SPDX-License-Identifier: Apache-2.0
 * proxy/proxy_internal.h - the objects of the registry side and how they call each other. Private to proxy/.
 *
 *   request (request.c)  one client request on its way: route -> manifest.c | blob.c | passthrough.c -> reply
 *   resolve (resolve.c)  one manifest being asked for upstream, shared by all requests that want it
 *   fill    (fill.c)     one blob on its way into the store, shared by all who want it
 *   jobs    (jobs.c)     background: canon.c makes a blob canonical, image.c makes an image's views
 *
 * None of them blocks a thread on the network: each has a job, a function to run next, and waiters to wake.
 */
#pragma once

#include "base/buf.h"
#include "base/lock.h"
#include "base/workpool.h"
#include "oci/oci.h"
#include "proxy/proxy.h"
#include "store/meta.h"
#include "store/store.h"

#include <stdatomic.h>

/* ---- waiting ---------------------------------------------------------------------------------------------------- */

/* Embedded in whoever waits; on at most one list at a time. Lists belong to the lock of the object that is waited for. */
struct waiter {
    void (*fn)(void *arg); /* only posts work */
    void *arg;
    struct waiter *next, *prev;
    struct waiter_list *list;
};

struct waiter_list {
    struct waiter *head;
};

void waiter_add(struct waiter_list *l, struct waiter *w);
void waiter_remove(struct waiter *w);        /* no-op when it is on no list */
void waiter_wake_all(struct waiter_list *l); /* takes each off, then calls it */

/* ---- timers ----------------------------------------------------------------------------------------------------- */

struct timer {
    void (*fn)(void *arg); /* on the timer thread: only posts work */
    void *arg;
    int64_t at_ms;
    struct timer *next;
    bool armed;
};

struct timers;

MUST_CHECK int timers_new(struct timers **out, struct err *err);
void timers_free(struct timers *ts);
void timer_arm(struct timers *ts, struct timer *t, int after_ms); /* arms anew when it is armed already */
void timer_disarm(struct timers *ts, struct timer *t);            /* afterwards fn does not run any more */

/* ---- the proxy -------------------------------------------------------------------------------------------------- */

enum cache_result {
    CACHE_NONE = 0,
    CACHE_HIT,
    CACHE_FOLLOW,
    CACHE_MISS,
    CACHE_STALE, /* the upstream cannot be asked */
    CACHE_GONE,  /* the upstream has it no more; stale too */
};

struct listener_ctx {
    struct proxy *p;
    struct proxy_listen opt;
    const struct upstream *up;
    struct http_listener *l;
    struct listener_ctx *next;
};

struct counters {
    atomic_uint_fast64_t total, hit, follow, miss, stale, served_bytes;
};

/* An upstream that failed is left alone for a while, as long as there is something else to serve. */
struct quiet {
    const struct upstream *up;
    int64_t until_ms;
    struct quiet *next;
};

struct proxy {
    struct proxy_options opt;
    struct store *store;
    struct workpool *pool;
    struct upstreams *ups;
    struct timers *timers;
    struct listener_ctx *listeners;
    struct counters counters;
    struct lock lock; /* RANK_SERVER: the tables below */
    struct quiet *quiet;
    struct tag_note *notes;
    struct fill *fills;
    struct resolve *resolves;
    struct jobs *jobs;
    unsigned fill_count;
    struct passthrough_cache *cache;
    struct recent *recent;
};

/* ---- routes (route.c): pure -------------------------------------------------------------------------------------- */

enum route_kind { ROUTE_BASE, ROUTE_MANIFEST, ROUTE_BLOB, ROUTE_TAGS, ROUTE_REFERRERS };

struct route {
    enum route_kind kind;
    const struct upstream *up;
    char name[OCI_NAME_MAX_BYTES + 10]; /* as the upstream knows it, "library/" included */
    char ref[OCI_NAME_MAX_BYTES + 1];   /* tag or digest as text; "" for BASE and TAGS */
    const char *error_code;             /* OCI error code when route_parse() failed */
};

/* What a request says about where it goes: path as sent, the decoded value of ns=, the Host header, the latter two NULL
 * where absent; fixed: the listener's upstream or NULL. */
struct route_request {
    const struct upstream *fixed;
    const char *path, *ns, *host;
};

MUST_CHECK int route_parse(const struct upstreams *ups, const struct route_request *req, struct route *out,
                           struct err *err);

/* ---- requests ---------------------------------------------------------------------------------------------------- */

struct request {
    uint32_t magic;
    atomic_uint refs;
    struct proxy *p;
    struct listener_ctx *listener;
    struct http_exchange *x; /* ours until request_reply() */
    struct route route;
    int64_t repo; /* 0: the catalog does not know this repository (yet): request_repo() */
    struct oci_client client;
    struct job job;
    void (*next)(struct request *r); /* runs on a worker */
    struct waiter waiter;
    struct timer timer;
    bool timed;     /* the timer has been armed */
    struct err err; /* of what was waited for */
    enum cache_result cache;
    /* The answer is good for others who ask the same, while the catalog stays as it was and from fresh_from_s up to
     * fresh_until_s (0: it is not), wall clock. */
    uint64_t generation;
    int64_t fresh_from_s, fresh_until_s;
    /* manifest.c */
    struct oci_reference reference;
    struct digest upstream_digest; /* what the reference stands for upstream, once known */
    struct resolve *resolve;
    struct store_manifest unstored; /* has a body: came from upstream, and the store did not take it */
    int64_t stale_at_ms;            /* when a stored answer is given instead of the upstream's; 0: there is none */
    int64_t hold_until_ms;          /* 0: not held yet */
    /* blob.c */
    struct digest digest;
    struct store_blob blob;
    struct store_source sources[9];
    size_t source_count, source_at;
    struct fill *fill;
    bool decode;               /* the fill's bytes must be decoded on the way */
    bool confirmed;            /* the upstream says that this repository holds it; the store could not note that */
    bool wanted;               /* the images that list this layer have been looked up */
    unsigned refills, remakes; /* for an evicted zstd form: the original was fetched again, the layer stored again */
    int looks;
    uint64_t head_bytes; /* length from a HEAD upstream, 0: it did not say */
    /* passthrough.c; the head's status and Retry-After are what every failure tells of its upstream */
    struct upstream_answer answer;
    char *key;
};

void request_handle(void *listener_ctx, struct http_exchange *x);                         /* http_handler_fn */
bool request_quick(void *listener_ctx, struct http_exchange *x, struct http_answer *out); /* http_quick_fn */
void request_ref(void *r);
void request_unref(void *r);
/* Runs next on a worker, soon. Also as a waiter's or timer's fn (request_wake). */
void request_go(struct request *r, void (*next)(struct request *r));
void request_wake(void *r);
/* Wakes r after this time, unless it is armed anew or the request is over by then. */
void request_timer(struct request *r, int after_ms);
/* Looks for the repository's row again while there is none: an answer of the upstream may have made it. */
MUST_CHECK int request_repo(struct request *r, struct err *err);
/* The upstream has confirmed something of it: makes the row. */
MUST_CHECK int request_repo_confirmed(struct request *r, struct err *err);
/* ERR_NOTFOUND, in words, when recask is offline: `what` would have to be asked for. */
MUST_CHECK int request_may_ask(const struct request *r, const char *what, struct err *err);
/* Sends the answer and drops the reference that running held. */
void request_reply(struct request *r, struct http_answer *a);
void request_fail(struct request *r, const struct err *err);
/* The headers that every answer of this kind has. */
MUST_CHECK int request_headers(struct request *r, struct http_answer *a, struct err *err);
MUST_CHECK int request_warn_stale(struct request *r, struct http_answer *a, struct err *err); /* Warning */

void manifest_start(struct request *r);
void blob_start(struct request *r);
void passthrough_start(struct request *r);

struct passthrough_cache;
MUST_CHECK int passthrough_cache_new(struct passthrough_cache **out, struct err *err);
void passthrough_cache_free(struct passthrough_cache *c);

/* errors.c: status, OCI code and body for an error. */
struct error_context {
    enum route_kind kind;
    const char *code;     /* OCI; NULL: picked by kind and error */
    const char *upstream; /* NULL: none */
    int status;           /* the upstream's, 0: not known */
    int retry_after_s;    /* the upstream's, <= 0: it named none */
    bool unavailable_503;
};

MUST_CHECK int error_answer(struct http_answer *a, const struct error_context *c, const struct err *e, struct err *err);
/* The store could not take what it was given, through no fault of that: no room, no memory, a failing disk, a catalog that
 * somebody holds. What is on its way to a client passes through all the same. */
bool error_of_store(int code);

/* ---- resolves ---------------------------------------------------------------------------------------------------- */

/* Asks the upstream for a manifest and stores it; all who ask meanwhile share one exchange. w is woken when it is over;
 * then resolve_result() tells how it went (once per waiter). */
struct resolve;

struct resolved {
    struct digest digest;
    enum cache_result
        cache; /* HIT (the upstream confirmed what is stored), MISS (fetched), STALE or GONE (it failed, or
                              * has it no more: an older answer is served) */
    int status, retry_after_s;      /* of a failure: what the upstream said; 0: nothing */
    struct store_manifest unstored; /* has a body: the store did not take it. The caller's, when it is no failure */
};

/* The upstream's last word on the tag is not older than its time: from checked_at up to, and without, this second. */
int64_t tag_fresh_until_s(const struct proxy *p, const struct upstream *up, const struct store_tag *tag);
bool tag_is_fresh(const struct proxy *p, const struct upstream *up, const struct store_tag *tag);

MUST_CHECK int resolve_join(struct proxy *p, const struct upstream *up, const char *name, const char *reference,
                            struct waiter *w, struct resolve **out, struct err *err);
/* STEP_WAIT while it is not over. Else takes *rs: 0, or the error. */
MUST_CHECK int resolve_result(struct resolve **rs, struct resolved *out, struct err *err);
/* Takes *rs: its waiter has an answer of another kind. The exchange goes on; until it is over its upstream is slow, and
 * quiet_now(). False, and nothing done, when it is over. */
bool resolve_leave(struct resolve **rs, struct waiter *w);
/* Called with p->lock held. */
bool resolve_any_left(const struct proxy *p, const struct upstream *up);

/* quiet.c: upstreams that are left alone, and what is remembered of single tags. */
void quiet_begin(struct proxy *p, const struct upstream *up, int ms);
bool quiet_now(struct proxy *p, const struct upstream *up);

enum noted {
    NOTED_NOTHING = 0,
    NOTED_GONE,    /* the upstream answered 404 */
    NOTED_REFUSED, /* it refused this one, or sent what cannot be used */
};

struct tag_note;
MUST_CHECK int tag_notes_new(struct tag_note **out, struct err *err);
void tag_note(struct proxy *p, const struct upstream *up, const char *name, const char *tag, enum noted what, int ms);
enum noted tag_noted(struct proxy *p, const struct upstream *up, const char *name, const char *tag);

/* ---- fills ------------------------------------------------------------------------------------------------------- */

struct fill;

enum fill_state {
    FILL_STARTING = 0, /* no head yet */
    FILL_STREAMING,    /* head is in; bytes come */
    FILL_VERIFIED,     /* all bytes are in the spool and the digest matches */
    FILL_DONE,         /* and the store has it, or has said why not */
    FILL_DETACHED,     /* the spool takes no more: everybody goes on alone */
    FILL_FAILED,
};

/* Joins the running fill of this blob or starts one. *out_started tells which. The caller owns a reference. ERR_BUSY when
 * too many run. repo: 0 when the catalog does not know it; then a verified blob makes its row. A fill that was joined may
 * read from another repository: see fill_reads_from(). */
MUST_CHECK int fill_join(struct proxy *p, const struct upstream *up, int64_t repo, const char *name,
                         const struct digest *d, struct fill **out, bool *out_started, struct err *err);
/* The running fill of d from up, or NULL; and whether it reads from this repository. */
struct fill *fill_find(struct proxy *p, const struct upstream *up, const struct digest *d);
bool fill_reads_from(const struct fill *f, const char *name);
void fill_unref(struct fill *f);
/* The state now; when it is below `want`, w (may be NULL) is put on the list and woken at the next change of state. */
enum fill_state fill_wait(struct fill *f, enum fill_state want, struct waiter *w);
void fill_forget(struct fill *f, struct waiter *w);
/* Why it failed, or why a DONE one is not in the store. */
void fill_error(struct fill *f, struct err *out);
/* True when the length is known. */
bool fill_length(struct fill *f, uint64_t *out_bytes);
/* A source that follows the fill from off on. hold_back: the last bytes only after verification (whole answers);
 * otherwise what is there is given at once (ranges). Takes no reference of the caller's. */
MUST_CHECK int fill_follow(struct fill *f, uint64_t off, bool hold_back, struct source **out, struct err *err);
/* Set when the blob had already come into the store while the fill was being started: nothing to follow, look again. */
bool fill_was_present(struct fill *f);

/* ---- verify.c ---------------------------------------------------------------------------------------------------- */

/* inner's bytes, hashed on the way; the last ones are held back until inner ends, the size is size_bytes and the digest is
 * want (else ERR_CORRUPT; SIZE_UNKNOWN: any size). hasher: NULL, or the state after the skipped_bytes before inner's first (taken). Takes inner. */
MUST_CHECK int source_verified_new(struct source **inner, const struct digest *want, uint64_t size_bytes,
                                   struct hasher **hasher, uint64_t skipped_bytes, struct source **out,
                                   struct err *err);

#define HOLD_BACK_BYTES 4096
#define SIZE_UNKNOWN UINT64_MAX

/* ---- decode.c ---------------------------------------------------------------------------------------------------- */

/* What gzip or zstd made of in, by its magic, at most limit_bytes of it. out is initialised here, empty on failure; the
 * caller releases it. ERR_FORMAT: neither of the two, or cut; ERR_CORRUPT; ERR_LIMIT; ERR_UNSUPPORTED; ERR_NOMEM. */
MUST_CHECK int decode_whole(const struct buf *in, size_t limit_bytes, struct buf *out, struct err *err);

/* ---- background jobs --------------------------------------------------------------------------------------------- */

MUST_CHECK int jobs_new(struct proxy *p, struct jobs **out, struct err *err);
MUST_CHECK int jobs_resume(struct jobs *js, struct err *err); /* what the last process left */
void jobs_stop(struct jobs *js);                              /* waits for what runs */
void jobs_free(struct jobs *js);
uint64_t jobs_pending(struct jobs *js);

/* Makes the blob canonical in the background (once, however often it is asked for). True when this call queued it. */
bool jobs_canon(struct jobs *js, const struct digest *original);
/* Makes the views of an image, fetching what is missing, and of the indexes that list it. Does nothing when they are there
 * or can never be. */
void jobs_image(struct jobs *js, const struct upstream *up, int64_t repo, const char *name,
                const struct digest *manifest);
/* Looks again whether a manifest has been signed since its views were made. */
void jobs_recheck(struct jobs *js, const struct upstream *up, int64_t repo, const char *name,
                  const struct digest *manifest);
/* Something arrived or became canonical: images that wait look again. */
void jobs_kick(struct jobs *js);
/* Puts w on the list that is woken whenever a job ends. */
void jobs_wait(struct jobs *js, struct waiter *w);
void jobs_forget(struct jobs *js, struct waiter *w);
bool jobs_has_canon(struct jobs *js, const struct digest *original);
bool jobs_has_image(struct jobs *js, const struct digest *manifest);
