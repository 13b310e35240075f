/* SPDX-License-Identifier: Apache-2.0
 * proxy/proxy.h - the registry side of recask: routes, fills, views, background jobs, on top of a store and upstreams.
 *
 * Use: proxy_new -> proxy_add_upstream... -> proxy_start -> proxy_stop -> proxy_free.
 * Ownership: store and pool are borrowed and outlive the proxy. Threads: any, but new/start/stop/free one at a time.
 */
#pragma once

#include "oci/client.h"
#include "proxy/http.h"
#include "proxy/upstream.h"
#include "store/store.h"

struct proxy;

struct proxy_listen {
    const char *address;
    bool has_view; /* false: auto, or the proxy's own wish */
    enum oci_view view;
    enum oci_link link;
    const char *upstream;                     /* NULL: by ns=, path, Host or default */
    const char *tls_cert_file, *tls_key_file; /* both or none */
};

/* What an upstream's word that a known image is gone means for it. */
enum proxy_gone { PROXY_GONE_SERVE = 0, PROXY_GONE_DROP };

struct proxy_options {
    struct store *store;
    struct workpool *pool;
    struct http_server *http;
    const char *user_agent;
    bool has_view; /* false: auto */
    enum oci_view view;
    bool rewrite_signed; /* signed = "rewrite": views of signed images too; default false: original */
    int64_t tag_ttl_s;   /* < 0: 60 */
    int negative_ttl_ms; /* how long an upstream's 404 for a tag is believed; < 0: 10,000; 0: not at all */
    int stale_wait_ms;   /* with a stored answer at hand the upstream gets this long to give a newer one; 0: 700 */
    enum proxy_gone on_upstream_404;
    bool
        unavailable_503; /* when an upstream cannot be asked and nothing is stored: 503 with Retry-After. Default false: 404,
                           * on which every mirror's client goes on to the next host */
    struct access *access;    /* who may read what (proxy/access.h), borrowed; NULL: everybody everything */
    uint64_t max_layer_bytes; /* decoded; 0: 64 GiB */
    uint32_t max_ratio;       /* decoded / encoded; 0: 1100 (deflate cannot exceed 1032) */
    int hold_ms;              /* a client that cannot read the original waits this long for its view; 0: 60,000 */
    bool offline;
    uint64_t maintain_rate_bytes_s; /* what maintenance reads and moves, at most (proxy/maintain.h); 0: no limit */
    int64_t scrub_every_s;          /* 0: only when it is asked for */
    bool access_log;       /* a line at level info per request; false: at level debug */
    const char *auth_file; /* upstream.h; so are the next four */
    int upstream_connect_ms, upstream_stall_ms, upstream_request_ms, upstream_blob_ms;
};

MUST_CHECK int proxy_new(const struct proxy_options *opt, struct proxy **out, struct err *err);
MUST_CHECK int proxy_add_upstream(struct proxy *p, const struct upstream_def *def, struct err *err);
MUST_CHECK int proxy_set_default_upstream(struct proxy *p, const char *name, struct err *err);
MUST_CHECK int proxy_listen(struct proxy *p, const struct proxy_listen *l, const char **out_address, struct err *err);
/* Starts the upstream thread and takes up the background work that the last process left. Before proxy_listen(). */
MUST_CHECK int proxy_start(struct proxy *p, struct err *err);
/* Fails what waits for upstreams, stops background jobs at their next step. After http_server_drain(). */
void proxy_stop(struct proxy *p);
void proxy_free(struct proxy *p);

struct proxy_stats {
    uint64_t jobs_pending;
    uint64_t requests_total, requests_hit, requests_follow, requests_miss, requests_stale;
    uint64_t upstream_requests, upstream_bytes;
    uint64_t served_bytes;
    unsigned fills; /* running now */
};

void proxy_stats(struct proxy *p, struct proxy_stats *out);
struct store *proxy_store(struct proxy *p);
const struct upstreams *proxy_upstreams(struct proxy *p);
