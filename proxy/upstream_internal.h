/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_internal.h - what upstream.c (registries, lifecycle), upstream_engine.c (the thread), upstream_exchange.c
 * (one exchange and its tries), upstream_judge.c (what an answer means), upstream_turn.c (caps), upstream_tls.c,
 * upstream_proxy.c, upstream_token.c (tokens), upstream_head.c (answer headers), upstream_call.c and upstream_stream.c share.
 *
 * Invariants:
 *   U1  libcurl is called from the upstream thread alone; the exceptions are curl_multi_wakeup() and building and tearing
 *       down the multi handle while no thread runs
 *   U2  an exchange ends once: ops->end runs once, on the upstream thread (in upstreams_stop() when that was never started)
 *   U3  bytes reach ops->body at most once each and in order, whatever number of tries they took
 *   U4  no exchange starts after `stopping` was set; what is in the inbox then is ended by the thread
 *   U5  Authorization goes to the origin of the upstream's own URL alone, whoever redirects where
 *   U6  for one (upstream, scope) at most one token is being fetched
 *   U7  a client certificate is shown, and `insecure` holds, at the origin of an exchange's own URL alone (the registry, its
 *       token service), never where a redirect led
 *   U8  an exchange holds a turn while it is RUNNING and at no other time; who waits for a token holds none
 *   U9  credentials of which nothing is known yet are tried by one request at a time
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
#define UPSTREAM_REFUSALS_MAX 2 /* 401s that an exchange answers in a row: the first one, and a token that is stale */

struct turns;
struct tls_files;
struct http_proxy;
struct http_proxy_env;

struct upstream {
    char *name;
    char *url; /* without a trailing slash */
    char **aliases;
    size_t alias_count;
    bool add_library;
    int64_t tag_ttl_s;
    struct turns *turns;
    struct tls_files *tls;
    struct http_proxy *http_proxy; /* NULL: as the environment says */
    struct account *account;       /* NULL: without credentials. The upstream thread's, though the rest is constant */
    char **token_realms;           /* NULL-terminated or NULL */
};

struct upstreams {
    uint32_t magic;
    char *user_agent;
    char *auth_file; /* NULL: none */
    int connect_ms, stall_ms, request_ms, blob_ms;
    unsigned tries;
    struct http_proxy_env *proxy_env;
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
    char *location;
    size_t bytes;
    bool chunked;
    bool done; /* the blank line after a final status has been seen */
};

struct exchange_ops {
    int64_t backoff_ms; /* before the second try; doubles */
    /* Adds headers to a request to the origin of x->url (U5). NULL: the upstream's token. */
    int (*headers)(struct exchange *x, struct curl_slist **list, struct err *err);
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
    EXCHANGE_IN_LINE,    /* for its turn at the upstream (upstream_turn.c), then a try */
    EXCHANGE_RUNNING,    /* its easy handle is in the multi handle */
    EXCHANGE_WAITING,    /* for due_ms, then another try */
    EXCHANGE_ASKING,     /* for its token, then a try with it */
    EXCHANGE_ENDED,
};

enum exchange_kind {
    EXCHANGE_CALL = 0,
    EXCHANGE_STREAM,
    EXCHANGE_FETCH, /* of a token, for which others wait */
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
    enum exchange_kind kind;
    const struct upstream *up;
    const char *form; /* a body to POST, borrowed; NULL: none. Secret */
    char *scope;      /* "repository:library/alpine:pull"; NULL: never with a token */

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
    int64_t begun_ms;     /* when it was taken from the inbox */
    int64_t idle_ms;      /* since then, in pauses */
    int64_t paused_ms;    /* paused: since when */
    struct err last;      /* why the try before failed */
    struct {
        struct exchange *next, **link; /* IN_LINE */
        bool held;
    } turn;

    /* upstream thread only, one try */
    CURL *easy;
    struct curl_slist *headers;
    char reason[CURL_ERROR_SIZE];
    int no_socket; /* errno of the last socket() that failed: libcurl does not tell */
    char *target;  /* where a redirect led, NULL: the registry itself */
    unsigned hops;
    struct head_parser parser;
    bool accepted; /* a 2xx answer whose body is wanted */
    bool paused;
    bool progress;
    bool unflushed; /* body() has taken bytes in this round */
    bool start_over;
    uint64_t dropped_bytes;
    int64_t window_ms; /* the body's pace is measured from then on: so many bytes since */
    uint64_t window_bytes;
    struct err fatal; /* from a callback; ASKING: why there is no token */

    /* upstream_token.c's, upstream thread only */
    struct token *awaited; /* ASKING: this one is being fetched; NULL: it is there, or `fatal` says why not */
    struct exchange *asker_next, **asker_link;
    uint64_t token_serial; /* of the token that this try was sent with, 0: without */
    unsigned refusals;     /* 401s since the last success */
    bool token_asked;      /* a 401 has led to a fetch since then */
    struct token *probes;  /* it is this one's prober */
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

enum verdict {
    VERDICT_DONE = 0,
    VERDICT_FAIL,
    VERDICT_RETRY, /* back off, then from the registry */
    VERDICT_FRESH, /* at once from the registry */
    VERDICT_HOP,   /* at once from x->target */
};

/* Whether this try's request goes to the origin of the exchange's own URL. */
bool exchange_at_home(const struct exchange *x);
void exchange_turn_came(struct exchange *x); /* IN_LINE -> RUNNING; may end x */

/* upstream_judge.c; upstream thread only */
/* The one place that reacts to an answer, or to what came instead. err is filled with all but DONE, FRESH and HOP. */
enum verdict exchange_judge(struct exchange *x, CURLcode rc, struct err *err);

/* upstream_turn.c; upstream thread only but for the first two */
MUST_CHECK int turns_new(unsigned max_connections, unsigned max_rate, struct turns **out, struct err *err);
void turns_free(struct turns *t);
bool turn_take(struct exchange *x, int64_t now_ms); /* U8. False: x is in line, exchange_turn_came() will be called */
void turn_count_hop(struct exchange *x);            /* one more request, which need not wait */
void turn_leave(struct exchange *x);                /* gives the turn back, or steps out of the line */
/* Calls those whose turn it is. Returns when to look again, INT64_MAX: when somebody leaves. */
int64_t turns_run(struct upstreams *ups, int64_t now_ms);

/* upstream_tls.c */
/* ERR_USAGE says which file and what is wrong with it. */
MUST_CHECK int tls_files_new(const struct upstream_def *def, struct tls_files **out, struct err *err);
void tls_files_free(struct tls_files *t);
/* Reads what has changed on disk, at most once a second; what does not hold together is not taken over. Blocks on disk; any
 * thread but the upstream's. */
void tls_files_refresh(struct tls_files *t, const char *upstream);
/* U7. at_home: exchange_at_home(). False: libcurl refused an option. */
bool tls_configure(struct tls_files *t, CURL *easy, bool at_home);
/* In plain words what is wrong with the TLS of the server at `place`, when it is that. Returns false when it is not. */
bool tls_explain(CURL *easy, CURLcode rc, const char *reason, const char *place, struct err *err);

/* upstream_proxy.c */
MUST_CHECK int http_proxy_new(const char *url, struct http_proxy **out, struct err *err); /* "": never a proxy */
void http_proxy_free(struct http_proxy *p);
MUST_CHECK int http_proxy_env_new(struct http_proxy_env **out, struct err *err);
void http_proxy_env_free(struct http_proxy_env *env);
/* Sets the way to url. own NULL: what the environment says of it. False: libcurl refused an option. */
bool http_proxy_configure(const struct http_proxy *own, const struct http_proxy_env *env, CURL *easy, const char *url);

/* upstream_token.c; upstream thread only */
/* Before a try: 0, send it; STEP_WAIT, x waits for its token until exchange_tick() finds `awaited` NULL; < 0. */
MUST_CHECK int token_want(struct exchange *x, struct err *err);
/* Adds Authorization to the headers of a try, when there is a token for it. The caller has seen to U5. */
MUST_CHECK int token_header(struct exchange *x, struct curl_slist **list, struct err *err);
/* The registry itself has answered 401. 0: worth another try. ERR_DENIED, ERR_NOMEM. */
MUST_CHECK int token_refused(struct exchange *x, struct err *err);
void token_answered(struct exchange *x);  /* the head of an answer is there, whoever sent it */
void token_leave(struct exchange *x);     /* x ends: it waits for no token any more */
void tokens_go_on(struct upstreams *ups); /* with the credentials that have been read since */
void tokens_release(struct upstreams *ups);

/* upstream_head.c */
void head_parser_reset(struct head_parser *p);
/* One line as libcurl hands it over, status lines and the blank line included. ERR_LIMIT, ERR_NOMEM. */
MUST_CHECK int head_parser_line(struct head_parser *p, const char *line, size_t len, struct err *err);
