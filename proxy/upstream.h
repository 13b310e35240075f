/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream.h - the way to the registries: one thread, one curl multi handle, every transfer.
 *
 * Use: upstreams_new -> upstreams_add... -> upstreams_start -> upstream_call / upstream_stream_new ... -> upstreams_stop
 *      -> upstreams_free.
 * Two kinds of exchange: a call (whole answer in memory, bounded: manifests, HEAD, tags, referrers) and a stream (a blob,
 * read as a struct source through a bounded ring; the transfer pauses while the ring is full).
 * Threads: everything here may be called from any thread; nothing blocks. upstream_done_fn and wakers run on the upstream
 *      thread and must only post work.
 * Requests: Accept-Encoding: identity always, so that sizes and digests mean what they say. Redirects are followed (5
 *      at most, with the URL byte for byte; Authorization never goes to another host or port, https never to http; cookies
 *      are neither kept nor sent). A URL that a redirect named is asked for anew from the registry, once, when it is refused
 *      as expired ones are. A client's credentials are never sent.
 * Credentials: an upstream without an account is asked anonymously. An account (upstream_def, auth_file) is used when the
 *      registry asks for it: with Bearer a token for "repository:NAME:pull" is fetched once for all who need it, kept while
 *      it lives and sent along from then on; with Basic alone the password itself goes to the registry's own origin. The
 *      token service must belong to the upstream or be listed (upstream_realm.h). ERR_DENIED if not, or when credentials
 *      or a new token are refused; what was refused is not tried again for a minute. ERR_UPSTREAM, ERR_TIMEOUT or
 *      ERR_THROTTLED when the service fails, ERR_UPSTREAM when credentials cannot be read. No callback and no log line sees
 *      a secret.
 * Time: connecting and stalls (no byte for stall_ms, or a stream's body below 1 KiB/s over so long; pauses do not count) end
 *      a try; a call or the rest of a stream is tried again with backoff, tries times in a row without progress. A stream
 *      resumes with Range at the byte it has reached and checks Content-Range; a 200 instead of a 206 has its prefix
 *      skipped, 400, 416 and 501 start over without Range. request_ms ends a call and blob_ms a stream as a whole: ERR_TIMEOUT
 *      says what it was waiting for.
 * Caps: at most max_connections exchanges of an upstream run at once, a quarter of them (one at least, where there are two)
 *      is for calls alone, and calls go first; at most max_rate requests a second go out, retries and redirects included. The
 *      others wait in line; that counts towards request_ms and blob_ms. A stream that is paused since its reader is slow keeps
 *      its connection. Requests for tokens count towards the rate but never wait.
 * TLS: verified against the system's authorities, or against those in ca_file instead of them. ca_file, the client
 *      certificate and `insecure` are for the registry and its token service. A server that they redirect to (a CDN) is
 *      always verified, against the system's authorities and those in ca_file, and is not shown the client certificate.
 *      What cannot be trusted is not tried again. The files are looked at again each second that there is a request.
 * HTTP proxy: upstream_def.http_proxy, for all requests of the upstream; else the environment as it was in upstreams_new():
 *      http_proxy, https_proxy, all_proxy, no_proxy, or in capitals; never for a loopback address. A proxy's password may
 *      stand in its URL and is not shown.
 */
#pragma once

#include "base/buf.h"
#include "base/digest.h"
#include "base/stream.h"

#include <stdbool.h>
#include <stdint.h>

struct upstreams;
struct upstream; /* one registry; lives as long as its upstreams */

struct upstreams_options {
    const char *user_agent; /* "recask/0.1.0" */
    int connect_ms;         /* 0: 10,000 */
    int stall_ms;           /* 0: 60,000 */
    int tries;              /* 0: 3 */
    int request_ms;         /* a call with all its tries; 0: 60,000 */
    int blob_ms;            /* a stream with all its tries, pauses not counted; 0: 24 h */
    bool offline;           /* never dial: every exchange ends in ERR_UPSTREAM at once */
    const char *auth_file;  /* credentials by registry, in docker's config.json form; NULL: none */
};

struct upstream_def {
    const char *name;           /* "docker.io", "127.0.0.1:5001" */
    const char *url;            /* "https://registry-1.docker.io", "http://127.0.0.1:5001", may carry a path prefix */
    const char *const *aliases; /* other names, NULL-terminated; may be NULL */
    bool add_library;           /* one-component names get "library/" in front */
    int64_t tag_ttl_s;          /* 0: the proxy's */
    /* Who to be there; at most one of the two ways, none: what auth_file says, else anonymous. Files and helpers are read
     * when they are needed and again when they have changed; nothing of them is ever shown. */
    const char *username, *password_file;
    const char *credential_helper;   /* docker-credential-helper protocol: "ecr-login" (docker-credential-ecr-login from
                                    * PATH) or an absolute path */
    const char *const *token_realms; /* URLs of token services to be asked besides its own; NULL-terminated or NULL */
    /* TLS; PEM files. NULL: the system's authorities, no client certificate. ca_file stands in their place, see above */
    const char *ca_file, *cert_file, *key_file;
    bool insecure;            /* take any certificate; not from where a redirect leads */
    const char *http_proxy;   /* "http://host:3128"; "": never one; NULL: what the environment says */
    unsigned max_connections; /* at once; 0: 64. A part of them is kept for calls, so that blobs hold up no manifest */
    unsigned max_rate;        /* requests per second, calls first; 0: no limit */
};

MUST_CHECK int upstreams_new(const struct upstreams_options *opt, struct upstreams **out, struct err *err);
/* The first one added is the default unless upstreams_set_default() says otherwise. ERR_USAGE: bad URL, name twice, or which
 * file is wrong and how. Reads the files. */
MUST_CHECK int upstreams_add(struct upstreams *ups, const struct upstream_def *def, struct err *err);
MUST_CHECK int upstreams_set_default(struct upstreams *ups, const char *name, struct err *err);
MUST_CHECK int upstreams_start(struct upstreams *ups, struct err *err);
/* Ends every exchange with ERR_CANCELLED and joins the thread. Later exchanges end in ERR_CANCELLED at once. */
void upstreams_stop(struct upstreams *ups);
void upstreams_free(struct upstreams *ups); /* stop first; all streams and calls are gone by then */

/* By name or alias; a lookup key only, nothing is ever dialled from it. NULL when there is none. */
const struct upstream *upstream_find(const struct upstreams *ups, const char *name, size_t len);
const struct upstream *upstream_default(const struct upstreams *ups);
const char *upstream_name(const struct upstream *up);
const char *upstream_url(const struct upstream *up);
bool upstream_adds_library(const struct upstream *up);
int64_t upstream_tag_ttl_s(const struct upstream *up); /* 0: none of its own */

/* The part of an answer that callers look at. Strings are NULL where the header was absent. */
struct upstream_head {
    int status;
    char *content_type;
    char *link;
    char *filters_applied;  /* OCI-Filters-Applied */
    char *content_encoding; /* though identity was asked for; then the length is unknown, and bodies come as sent */
    bool has_length;
    uint64_t length_bytes; /* of the whole representation (Content-Length, or the total of Content-Range) */
    bool has_digest;
    struct digest digest; /* Docker-Content-Digest */
    int retry_after_s;    /* -1: absent */
};

struct upstream_answer {
    struct upstream_head head;
    struct buf body; /* empty for HEAD */
};

void upstream_answer_release(struct upstream_answer *a);

struct upstream_request {
    const struct upstream *up;
    bool head;          /* HEAD instead of GET */
    const char *path;   /* below the upstream's URL: "/v2/library/alpine/manifests/3.20"; already percent-encoded */
    const char *accept; /* one header value or NULL */
    size_t limit_bytes; /* calls: a longer body is ERR_LIMIT */
    uint64_t first;     /* streams: first byte wanted (Range), 0: from the start */
};

/* The end of a call, exactly once, on the upstream thread. err->code is 0 for any 2xx answer. Otherwise ERR_NOTFOUND (404),
 * ERR_DENIED (401, 403), ERR_THROTTLED (429), ERR_UPSTREAM (other statuses, cannot connect, TLS, broken), ERR_TIMEOUT,
 * ERR_LIMIT, ERR_CANCELLED; the message names method, URL (without query) and status. answer is borrowed for the call; its
 * head is filled also for statuses outside 2xx. Steal what you keep. */
typedef void upstream_done_fn(void *arg, struct upstream_answer *answer, const struct err *err);

/* When this fails (ERR_UPSTREAM: offline; ERR_CANCELLED: stopped; ERR_NOMEM; ERR_FORMAT: bad path or accept), done is not
 * called. */
MUST_CHECK int upstream_call(struct upstreams *ups, const struct upstream_request *req, upstream_done_fn *done,
                             void *arg, struct err *err);

/* A GET of a blob as a source. The waker is called on the first header, on data after STEP_WAIT, at the end, on failure.
 * Reads end with STEP_EOF only when the length (where the upstream told it) has been reached; else they fail with the codes
 * listed above; a first at or behind the blob's end gives STEP_EOF at once. source_free() drops the transfer. The waker runs
 * under a lock of rank RANK_UPSTREAM. Fails like upstream_call(). */
MUST_CHECK int upstream_stream_new(struct upstreams *ups, const struct upstream_request *req, struct source **out,
                                   struct err *err);

/* Whether the head has arrived and, if so, the length; from any thread. False while nothing is known. */
bool upstream_stream_length(struct source *stream, bool *out_known, uint64_t *out_bytes);
/* Whether its bytes come with a Content-Encoding, though identity was asked for; false while nothing is known. Then the
 * length is not known, and what is read are the bytes as sent: perhaps the blob compressed, perhaps (moby#17595) the blob. */
bool upstream_stream_encoded(struct source *stream);

struct upstream_counts {
    uint64_t requests; /* every HTTP request sent, retries and redirects included */
    uint64_t bytes;    /* body bytes received */
    uint64_t errors;
};

void upstreams_counts(struct upstreams *ups, struct upstream_counts *out);
