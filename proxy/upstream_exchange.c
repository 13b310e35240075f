/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_exchange.c - one exchange: a request, its redirects, its tries.
 *
 *   QUEUED -> ASKING    if the try needs a token that is being fetched (upstream_token.c)
 *          -> IN_LINE   if it is not its turn at the upstream (upstream_turn.c)
 *          -> RUNNING -> ENDED
 *             RUNNING -> RUNNING   a redirect
 *             RUNNING -> ASKING    a fresh start, without Range or with another token
 *             RUNNING -> WAITING   this try failed; back off, then ASKING, IN_LINE, RUNNING again
 *
 * Time: request_ms counts all of a call, blob_ms all of a stream but its pauses. A try is over when no byte came for
 * stall_ms, or fewer than a stream's least pace. Such a crawl is no progress: else one that drips for ever would be resumed
 * for ever.
 *
 * Redirects are followed here and not by libcurl: each hop is counted, https never leads to http, and request_headers() is
 * the one place that decides what a host gets to see (U5). libcurl's own rule for an Authorization among the headers depends
 * on its version: any host (before 7.58), the first host on any port (before 7.83). Every try starts at the registry's own
 * URL, since what a redirect named (a signed URL) may have expired meanwhile.
 *
 * HTTP/1.1 only: with HTTP/2 libcurl must take up to 32 MiB off the shared connection for each paused transfer
 * (curl_easy_pause(3), "MULTIPLEXED"), and blobs gain nothing from sharing one TCP window.
 */
#include "proxy/upstream_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "proxy/upstream_realm.h"

#include <errno.h>
#include <inttypes.h>
#include <strings.h>
#include <sys/socket.h>

#define BACKOFF_MAX_MS 5000
#define PACE_LEAST_BYTES_S 1024           /* a body that comes slower than that has stalled */
#define RECEIVE_BUFFER_BYTES (128L << 10) /* one recv() per round of the engine; 64 and 512 KiB were slower */

/* ---- callbacks of libcurl --------------------------------------------------------------------------------------- */

/* < 0 and > 0 both abort the transfer; exchange_try_ended() finds the reason in x. */
static int head_arrived(struct exchange *x, struct err *err)
{
    int status = x->parser.head.status;
    int rc;

    token_answered(x);
    if (status < 200 || status > 299)
        return 0;
    rc = x->ops->head(x, err);
    x->accepted = rc == 0;
    x->start_over = rc > 0;
    x->window_ms = x->heard_ms;
    x->window_bytes = 0;
    return rc;
}

static size_t on_header(char *data, size_t size, size_t count, void *arg)
{
    struct exchange *x = CAST_OBJ(struct exchange, EXCHANGE_MAGIC, arg);
    size_t len = size * count;
    bool had_head = x->parser.done;

    x->heard_ms = clock_mono_ms();
    if (head_parser_line(&x->parser, data, len, &x->fatal) < 0)
        return 0;
    if (!had_head && x->parser.done && head_arrived(x, &x->fatal) != 0)
        return 0;
    return len;
}

static size_t on_body(char *data, size_t size, size_t count, void *arg)
{
    struct exchange *x = CAST_OBJ(struct exchange, EXCHANGE_MAGIC, arg);
    size_t len = size * count;
    int rc;

    x->heard_ms = clock_mono_ms();
    if (!x->accepted) {
        /* A short body is read to its end, so that the connection can be used again. */
        x->dropped_bytes += len;
        return x->dropped_bytes <= UPSTREAM_ERROR_BODY_MAX_BYTES ? len : 0;
    }
    rc = x->ops->body(x, data, len, &x->fatal);
    if (rc == STEP_WAIT) {
        x->paused = true;
        x->paused_ms = x->heard_ms;
        return CURL_WRITEFUNC_PAUSE;
    }
    if (rc < 0)
        return 0;
    x->unflushed = true;
    x->window_bytes += len;
    atomic_fetch_add(&x->ups->bytes, len);
    return len;
}

/* ---- a request -------------------------------------------------------------------------------------------------- */

static int add_header(struct curl_slist **list, struct err *err, const char *line)
{
    struct curl_slist *longer = curl_slist_append(*list, line);

    if (longer == NULL)
        return err_nomem(err, strlen(line));
    *list = longer;
    return 0;
}

bool exchange_at_home(const struct exchange *x)
{
    return x->target == NULL || realm_same_origin(x->url, x->target);
}

/* Every header that is not libcurl's own (Host, User-Agent, Accept without a value). */
static int request_headers(struct exchange *x, struct curl_slist **list, struct err *err)
{
    CLEANUP(free_ptr) char *accept = NULL;
    char range[64];

    /* Sizes, ranges and digests all count the bytes as they are stored; a CDN that compresses would break each of them. */
    TRY(add_header(list, err, "Accept-Encoding: identity"));
    if (x->accept != NULL) {
        TRY(str_printf(&accept, err, "Accept: %s", x->accept));
        TRY(add_header(list, err, accept));
    }
    if (x->at > 0 && !x->no_range) {
        snprintf(range, sizeof range, "Range: bytes=%" PRIu64 "-", x->at);
        TRY(add_header(list, err, range));
    }
    x->token_serial = 0;
    if (!exchange_at_home(x))
        return 0;
    return x->ops->headers != NULL ? x->ops->headers(x, list, err) : x->scope != NULL ? token_header(x, list, err) : 0;
}

static curl_socket_t on_socket(void *arg, curlsocktype purpose UNUSED, struct curl_sockaddr *to)
{
    struct exchange *x = arg;
    int fd = socket(to->family, to->socktype | SOCK_CLOEXEC, to->protocol);

    if (fd < 0)
        x->no_socket = errno;
    return fd < 0 ? CURL_SOCKET_BAD : fd;
}

static int configure(struct exchange *x, struct err *err)
{
    CURL *e = x->easy;
    const char *url = x->target != NULL ? x->target : x->url;
    bool failed = false;

    curl_easy_reset(e);
    x->reason[0] = '\0';
    x->no_socket = 0;
    TRY(request_headers(x, &x->headers, err));
#define SET(option, value) failed |= curl_easy_setopt(e, option, value) != CURLE_OK
    SET(CURLOPT_URL, url);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_DISALLOW_USERNAME_IN_URL, 1L); /* a redirect may carry one */
    SET(CURLOPT_PATH_AS_IS, 1L);
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_NOBODY, x->head_only ? 1L : 0L);
    if (x->form != NULL)
        SET(CURLOPT_POSTFIELDS, x->form);
    SET(CURLOPT_HTTPHEADER, x->headers);
    SET(CURLOPT_USERAGENT, x->ups->user_agent);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_TCP_KEEPALIVE, 1L); /* paused transfers are silent for long */
    SET(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)x->ups->connect_ms);
    SET(CURLOPT_ERRORBUFFER, x->reason);
    SET(CURLOPT_OPENSOCKETFUNCTION, on_socket);
    SET(CURLOPT_OPENSOCKETDATA, (void *)x);
    SET(CURLOPT_HEADERFUNCTION, on_header);
    SET(CURLOPT_HEADERDATA, (void *)x);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_WRITEDATA, (void *)x);
    SET(CURLOPT_PRIVATE, (void *)x);
#undef SET
    failed |= !http_proxy_configure(x->up->http_proxy, x->ups->proxy_env, e, url);
    if (strncasecmp(url, "https:", strlen("https:")) == 0)
        failed |= !tls_configure(x->up->tls, e, exchange_at_home(x)); /* U7 */
    /* Only speed hangs on it, and libcurl refuses it on a handle whose last try could not resolve the host. */
    (void)curl_easy_setopt(e, CURLOPT_BUFFERSIZE, RECEIVE_BUFFER_BYTES);
    if (failed)
        return err_set(err, ERR_NOMEM, "%s: libcurl refused an option", x->label);
    return 0;
}

static int launch(struct exchange *x, struct err *err)
{
    CURLMcode rc;

    if (x->easy == NULL)
        x->easy = curl_easy_init();
    if (x->easy == NULL)
        return err_nomem(err, 1);
    TRY(configure(x, err));
    rc = curl_multi_add_handle(x->ups->multi, x->easy);
    if (rc != CURLM_OK)
        return err_set(err, ERR_UPSTREAM, "%s: %s", x->label, curl_multi_strerror(rc));
    return 0;
}

/* The end of a request, whoever ends it. Harmless when it never got as far as the multi handle. */
static void detach(struct exchange *x)
{
    if (x->easy != NULL)
        curl_multi_remove_handle(x->ups->multi, x->easy);
    curl_slist_free_all(x->headers);
    x->headers = NULL;
}

/* U2 */
static void finish(struct exchange *x, const struct err *err)
{
    bool listed = x->state != EXCHANGE_QUEUED;

    REQUIRE(x->state != EXCHANGE_ENDED);
    x->state = EXCHANGE_ENDED;
    token_leave(x);
    turn_leave(x);
    detach(x);
    if (x->easy != NULL)
        curl_easy_cleanup(x->easy);
    x->easy = NULL;
    if (err->code != 0 && err->code != ERR_NOTFOUND && err->code != ERR_CANCELLED)
        atomic_fetch_add(&x->ups->errors, 1);
    x->ops->end(x, err);
    if (!listed)
        return;
    *x->link = x->next;
    if (x->next != NULL)
        x->next->link = x->link;
    exchange_unref(x);
}

/* With its turn. */
static void send_request(struct exchange *x)
{
    struct err err = ERR_INIT;

    head_parser_reset(&x->parser);
    err_clear(&x->fatal);
    x->accepted = x->paused = x->start_over = false;
    x->dropped_bytes = 0;
    x->heard_ms = clock_mono_ms();
    x->state = EXCHANGE_RUNNING;
    atomic_fetch_add(&x->ups->requests, 1);
    if (launch(x, &err) < 0)
        finish(x, &err);
}

static void line_up(struct exchange *x)
{
    x->state = EXCHANGE_IN_LINE;
    if (turn_take(x, clock_mono_ms()))
        send_request(x);
}

void exchange_turn_came(struct exchange *x)
{
    REQUIRE(x->state == EXCHANGE_IN_LINE);
    send_request(x);
}

static void send_to_registry(struct exchange *x)
{
    struct err err = ERR_INIT;
    int rc;

    turn_leave(x); /* U8 */
    free(x->target);
    x->target = NULL;
    x->hops = 0;
    x->progress = false;
    x->paused = false;
    err_clear(&x->fatal);
    x->state = EXCHANGE_ASKING; /* for token_want(), which may be done with asking when it returns */
    rc = token_want(x, &err);
    if (rc < 0)
        finish(x, &err);
    else if (rc == 0)
        line_up(x);
}

/* ---- tries ------------------------------------------------------------------------------------------------------ */

/* Three quarters to five quarters of ms, so that many transfers broken at once do not come back at once. xorshift64 */
static int64_t jitter(struct upstreams *ups, int64_t ms)
{
    uint64_t r = ups->random | 1;

    r ^= r << 13;
    r ^= r >> 7;
    r ^= r << 17;
    ups->random = r;
    return ms - ms / 4 + (int64_t)(r % (uint64_t)(ms / 2 + 1));
}

/* Milliseconds until the exchange as a whole has to be over. */
static int64_t time_left(const struct exchange *x, int64_t now_ms)
{
    int64_t all_ms = x->kind == EXCHANGE_STREAM ? x->ups->blob_ms : x->ups->request_ms;

    return x->paused ? INT64_MAX : x->begun_ms + x->idle_ms + all_ms - now_ms;
}

static void retry_or_fail(struct exchange *x, const struct err *err)
{
    int64_t delay_ms = x->ops->backoff_ms;
    int64_t asked_ms = x->accepted ? 0 : x->parser.head.retry_after_s * (int64_t)1000;

    turn_leave(x); /* U8 */
    x->failures = x->progress ? 1 : x->failures + 1;
    if (x->failures >= x->ups->tries) {
        finish(x, err);
        return;
    }
    for (unsigned i = 1; i < x->failures && delay_ms < BACKOFF_MAX_MS; i++)
        delay_ms *= 2;
    delay_ms = jitter(x->ups, delay_ms < BACKOFF_MAX_MS ? delay_ms : BACKOFF_MAX_MS);
    if (asked_ms > delay_ms)
        delay_ms = asked_ms < BACKOFF_MAX_MS ? asked_ms : BACKOFF_MAX_MS;
    if (delay_ms >= time_left(x, clock_mono_ms())) {
        finish(x, err);
        return;
    }
    x->last = *err;
    log_event(LOG_INFO, "upstream.retry", "failures=%u delay_ms=%" PRId64 " at=%" PRIu64 " msg=%s", x->failures,
              delay_ms, x->at, log_quote(err->msg).s);
    x->due_ms = clock_mono_ms() + delay_ms;
    x->state = EXCHANGE_WAITING;
}

void exchange_try_ended(struct exchange *x, CURLcode rc)
{
    struct err err = ERR_INIT;
    enum verdict verdict;

    detach(x);
    verdict = exchange_judge(x, rc, &err);
    switch (verdict) {
    case VERDICT_DONE:
    case VERDICT_FAIL:
        finish(x, &err);
        break;
    case VERDICT_RETRY:
        retry_or_fail(x, &err);
        break;
    case VERDICT_FRESH:
        send_to_registry(x);
        break;
    case VERDICT_HOP:
        turn_count_hop(x);
        send_request(x);
        break;
    }
}

void exchange_begin(struct exchange *x)
{
    struct upstreams *ups = x->ups;

    REQUIRE(x->state == EXCHANGE_QUEUED);
    exchange_ref(x);
    x->next = ups->active;
    x->link = &ups->active;
    if (x->next != NULL)
        x->next->link = &x->next;
    ups->active = x;
    x->begun_ms = clock_mono_ms();
    send_to_registry(x);
}

void exchange_unpause(struct exchange *x)
{
    CURLcode rc;

    if (x->state != EXCHANGE_RUNNING || !x->paused)
        return;
    x->paused = false; /* before the call: it may run on_body(), which may pause again */
    x->heard_ms = x->window_ms = clock_mono_ms();
    x->window_bytes = 0;
    x->idle_ms += x->heard_ms - x->paused_ms;
    rc = curl_easy_pause(x->easy, CURLPAUSE_CONT);
    /* libcurl reports the failure of such a callback here and nowhere else. */
    if (rc != CURLE_OK)
        exchange_try_ended(x, rc);
}

/* Once the token is there it is used, be its life ever so short: to look at the clock again could go on for ever. */
static int64_t tick_asking(struct exchange *x, int64_t now_ms)
{
    struct err err = x->fatal;

    if (x->awaited != NULL)
        return INT64_MAX;
    if (err.code != 0)
        finish(x, &err);
    else
        line_up(x);
    return now_ms;
}

/* 0, or when the body came slower than it may: ERR_TIMEOUT. Begins a new window where one has passed well. */
static int check_pace(struct exchange *x, int64_t now_ms, struct err *err)
{
    if (!x->accepted || x->kind != EXCHANGE_STREAM || now_ms - x->window_ms < x->ups->stall_ms)
        return 0;
    if (x->window_bytes < (uint64_t)(now_ms - x->window_ms) * PACE_LEAST_BYTES_S / 1000) {
        x->progress = false;
        return err_set(err, ERR_TIMEOUT, "%s: %" PRIu64 " bytes in %" PRId64 " ms", x->label, x->window_bytes,
                       now_ms - x->window_ms);
    }
    x->window_ms = now_ms;
    x->window_bytes = 0;
    return 0;
}

static int64_t tick_running(struct exchange *x, int64_t now_ms)
{
    struct err err = ERR_INIT;
    int64_t due_ms = x->heard_ms + x->ups->stall_ms;

    if (x->paused)
        return INT64_MAX;
    if (now_ms >= due_ms)
        err_set(&err, ERR_TIMEOUT, "%s: not a byte for %d ms", x->label, x->ups->stall_ms);
    if (err.code == 0 && check_pace(x, now_ms, &err) == 0)
        return x->kind == EXCHANGE_STREAM && x->accepted && x->window_ms + x->ups->stall_ms < due_ms
                   ? x->window_ms + x->ups->stall_ms
                   : due_ms;
    detach(x);
    retry_or_fail(x, &err);
    return now_ms; /* x may be gone; the next round knows more */
}

/* What an exchange whose time is up was waiting for. */
static int64_t time_is_up(struct exchange *x, int64_t now_ms)
{
    static const char *const waits[] = {
        [EXCHANGE_QUEUED] = "the start",     [EXCHANGE_IN_LINE] = "one of the upstream's connections",
        [EXCHANGE_RUNNING] = "the upstream", [EXCHANGE_WAITING] = "another try",
        [EXCHANGE_ASKING] = "a token",       [EXCHANGE_ENDED] = "nothing",
    };
    struct err err = ERR_INIT;

    err_set(&err, ERR_TIMEOUT, "%s: not done within %" PRId64 " ms, waiting for %s%s%s", x->label,
            now_ms - x->begun_ms - x->idle_ms, waits[x->state], x->last.code != 0 ? "; before: " : "", x->last.msg);
    finish(x, &err);
    return now_ms;
}

static int64_t tick(struct exchange *x, int64_t now_ms)
{
    switch (x->state) {
    case EXCHANGE_ASKING:
        return tick_asking(x, now_ms);
    case EXCHANGE_WAITING:
        if (now_ms < x->due_ms)
            return x->due_ms;
        send_to_registry(x);
        return now_ms;
    case EXCHANGE_RUNNING:
        return tick_running(x, now_ms);
    case EXCHANGE_QUEUED:
    case EXCHANGE_IN_LINE:
    case EXCHANGE_ENDED:
        break;
    }
    return INT64_MAX;
}

int64_t exchange_tick(struct exchange *x, int64_t now_ms)
{
    int64_t left_ms, due_ms;

    if (x->unflushed && x->ops->flush != NULL)
        x->ops->flush(x);
    x->unflushed = false;
    left_ms = time_left(x, now_ms);
    if (left_ms <= 0)
        return time_is_up(x, now_ms);
    due_ms = tick(x, now_ms); /* x may be gone */
    return left_ms < INT64_MAX - now_ms && now_ms + left_ms < due_ms ? now_ms + left_ms : due_ms;
}

void exchange_cancel(struct exchange *x)
{
    struct err err = ERR_INIT;

    if (x->state == EXCHANGE_ENDED)
        return;
    err_set(&err, ERR_CANCELLED, "%s: given up", x->label);
    finish(x, &err);
}
