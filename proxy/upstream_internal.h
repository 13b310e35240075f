/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_internal.h - what upstream.c (registries, lifecycle), upstream_engine.c (the thread), upstream_exchange.c
 * (one exchange and its tries), upstream_token.c (tokens), upstream_head.c (answer headers), upstream_call.c and
 * upstream_stream.c share.
 *
 * Invariants:
 *   U1  libcurl is called from the upstream thread alone; the exceptions are curl_multi_wakeup() and building and tearing
 *       down the multi handle while no thread runs
 *   U2  an exchange ends once: ops->end runs once, on the upstream thread (in upstreams_stop() when that was never started)
 *   U3  bytes reach ops->body at most once each and in order, whatever number of tries they took
 *   U4  no exchange starts after `stopping` was set; what is in the inbox then is ended by the thread
 *   U5  Authorization goes to the origin of the upstream's own URL alone, whoever redirects where
 *   U6  for one (upstream, scope) at most one token is being fetched
 */
#pragma once

#include "base/lock.h"
#include "proxy/upstream.h"

#include <curl/curl.h>
#include <stdatomic.h>

#define UPSTREAMS_MAGIC 0x0b57ea35u
#define EXCHANGE_MAGIC 0xe8c4a26eu

#define UPSTREAM_RING_BYTES ((size_t)512 << 10)
#define UPSTREAM_REDIRECTS_MAX 5
#define UPSTREAM_HEAD_MAX_BYTES ((size_t)64 << 10)
#define UPSTREAM_ERROR_BODY_MAX_BYTES ((size_t)64 << 10) /* read and dropped, to keep the connection */
#define UPSTREAM_URL_MAX_BYTES ((size_t)16 << 10)
#define UPSTREAM_RETRY_AFTER_MAX_S 5 /* longer waits are the caller's to decide on */
#define UPSTREAM_TOKENS_MAX 1024     /* repositories in use whose tokens are kept */
#define UPSTREAM_REFUSALS_MAX 2      /* 401s that an exchange answers in a row: the first one, and a token that is stale */

struct upstream {
    char *name;
    char *url; /* without a trailing slash */
    char **aliases;
    size_t alias_count;
    bool add_library;
    int64_t tag_ttl_s;
};

struct upstreams {
    uint32_t magic;
    char *user_agent;
    int connect_ms, stall_ms;
    unsigned tries;
    bool offline;
    struct upstream **list; /* constant once started */
    size_t count;
    const struct upstream *by_default;

    CURLM *multi;
    pthread_t thread;
    bool running;

    struct lock lock;             /* RANK_UPSTREAM: the inbox and `stopping` */
    struct exchange *inbox_first; /* each entry holds a reference */
    struct exchange **inbox_end;
    bool stopping;

    struct exchange *active; /* upstream thread only; each entry holds a reference */
    uint64_t random;         /* upstream thread only: jitter */

    struct token *tokens; /* upstream thread only: the last one used first */
    size_t token_count;
    uint64_t token_serial;

    atomic_uint_fast64_t requests, bytes, errors;
};

/* Content-Range: "bytes 5-9/10", "bytes 5-9/<star>", "bytes <star>/10" */
struct content_range {
    bool has_span, has_total;
    uint64_t first, last, total;
};

/* An answer's header section while it arrives. */
struct head_parser {
    struct upstream_head head;
    struct content_range range;
    char *challenge; /* WWW-Authenticate of a 401 */
    size_t bytes;
    bool chunked;
    bool done; /* the blank line after a final status has been seen */
};

struct exchange_ops {
    int64_t backoff_ms; /* before the second try; doubles */
    /* The head of a 2xx answer is there. 0, < 0 to fail for good, or STEP_MORE: start over without Range. */
    int (*head)(struct exchange *x, struct err *err);
    /* Body bytes of a 2xx answer: 0 when taken, STEP_WAIT when none of them fits (the transfer pauses), < 0. */
    int (*body)(struct exchange *x, const void *data, size_t len, struct err *err);
    /* The round of the engine in which body() took bytes is over. */
    void (*flush)(struct exchange *x);
    /* The body of a 2xx answer ended as its framing says. 0 when all is there, STEP_MORE when a part is missing, < 0. */
    int (*complete)(struct exchange *x, struct err *err);
    /* Status 400, 416 or 501 for a request with Range: 0 when nothing was missing, STEP_MORE: start over without Range. */
    int (*refused)(struct exchange *x);
    /* May it follow a redirect to `to`? NULL: yes. */
    int (*redirected)(struct exchange *x, const char *to, struct err *err);
    /* U2. err->code 0: success. */
    void (*end)(struct exchange *x, const struct err *err);
    void (*free)(struct exchange *x);
};

enum exchange_state {
    EXCHANGE_QUEUED = 0, /* in the inbox, or about to be */
    EXCHANGE_RUNNING,    /* its easy handle is in the multi handle */
    EXCHANGE_WAITING,    /* for due_ms, then another try */
    EXCHANGE_ASKING,     /* for its token, then a try with it */
    EXCHANGE_ENDED,
};

enum exchange_want { WANT_START = 1u, WANT_UNPAUSE = 2u, WANT_DROP = 4u };

struct exchange {
    uint32_t magic;
    const struct exchange_ops *ops;
    struct upstreams *ups;
    atomic_uint refs; /* the caller of a stream, the inbox, the list of active ones */

    /* constant */
    char *url, *accept;
    char *label; /* "GET http://host/path", for messages */
    bool head_only;
    const struct upstream *up;
    char *scope; /* "repository:library/alpine:pull"; NULL: never with a token */

    /* under ups->lock */
    struct exchange *inbox_next;
    bool in_inbox;
    unsigned wants;

    /* upstream thread only */
    struct exchange *next, **link;
    enum exchange_state state;
    unsigned failures;    /* tries in a row without progress */
    unsigned start_overs; /* times that Range was given up or ignored */
    bool resolved_anew;   /* a 403 after a redirect was met with a fresh start */
    bool no_range;        /* the upstream does not do Range */
    uint64_t at;          /* next byte wanted */
    int64_t due_ms;       /* WAITING: when to go on */
    int64_t heard_ms;     /* RUNNING: when the last bytes came */

    /* upstream thread only, one try */
    CURL *easy;
    struct curl_slist *headers;
    char reason[CURL_ERROR_SIZE];
    char *target; /* where a redirect led, NULL: the registry itself */
    unsigned hops;
    struct head_parser parser;
    bool accepted; /* a 2xx answer whose body is wanted */
    bool paused;
    bool progress;
    bool unflushed; /* body() has taken bytes in this round */
    bool start_over;
    uint64_t dropped_bytes;
    struct err fatal; /* from a callback; ASKING: why there is no token */

    /* upstream_token.c's, upstream thread only */
    struct token *awaited; /* ASKING: this one is being fetched; NULL: it is there, or `fatal` says why not */
    struct exchange *asker_next, **asker_link;
    uint64_t token_serial; /* of the token that this try was sent with, 0: without */
    unsigned refusals;     /* 401s since the last success */
    bool token_asked;      /* a 401 has led to a fetch since then */
};

/* upstream.c */
/* Fills x; on failure exchange_unref() cleans up. owner's ops->free frees the memory x lives in. */
MUST_CHECK int exchange_init(struct exchange *x, const struct exchange_ops *ops, struct upstreams *ups,
                             const struct upstream_request *req, struct err *err);
/* The same for a GET of a whole URL, which is taken (also on failure). */
MUST_CHECK int exchange_init_url(struct exchange *x, const struct exchange_ops *ops, struct upstreams *ups,
                                 const struct upstream *up, char **url, struct err *err);
void exchange_ref(struct exchange *x);
void exchange_unref(struct exchange *x);
MUST_CHECK int upstreams_submit(struct upstreams *ups, struct exchange *x, struct err *err);
void upstreams_tell(struct upstreams *ups, struct exchange *x, enum exchange_want want);
/* The next message, with the inbox's reference; NULL when empty. *out_stopping is as of the same moment. */
struct exchange *upstreams_next(struct upstreams *ups, unsigned *out_wants, bool *out_stopping);

/* upstream_engine.c */
void *upstream_engine_main(void *upstreams);

/* upstream_exchange.c; upstream thread only */
void exchange_begin(struct exchange *x);
void exchange_unpause(struct exchange *x);
void exchange_try_ended(struct exchange *x, CURLcode rc); /* libcurl is done with this try */
/* Looks at the exchange's timer. Returns when to look again, INT64_MAX: never. May end x. */
int64_t exchange_tick(struct exchange *x, int64_t now_ms);
void exchange_cancel(struct exchange *x);

/* upstream_token.c; upstream thread only */
/* Before a try: 0, send it; STEP_WAIT, x waits for its token until exchange_tick() finds `awaited` NULL; < 0. */
MUST_CHECK int token_want(struct exchange *x, struct err *err);
/* Adds Authorization to the headers of a try, when there is a token for it. The caller has seen to U5. */
MUST_CHECK int token_header(struct exchange *x, struct curl_slist **list, struct err *err);
/* The registry itself has answered 401. 0: worth another try. ERR_DENIED, ERR_NOMEM. */
MUST_CHECK int token_refused(struct exchange *x, struct err *err);
void token_accepted(struct exchange *x); /* ... has answered 2xx */
void token_leave(struct exchange *x);    /* x ends: it waits for no token any more */
void tokens_release(struct upstreams *ups);

/* upstream_head.c */
void head_parser_reset(struct head_parser *p);
/* One line as libcurl hands it over, status lines and the blank line included. ERR_LIMIT, ERR_NOMEM. */
MUST_CHECK int head_parser_line(struct head_parser *p, const char *line, size_t len, struct err *err);
