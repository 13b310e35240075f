/* SPDX-License-Identifier: Apache-2.0
 *
 * The connections of a listener: how many there may be, and how long each may take. libmicrohttpd's own timeout starts anew
 * with each byte, does not know suspended connections and takes a slow reader for a dead one (a full socket buffer wakes the
 * sender only when a third of it is free), so it is off and this is instead. Invariants:
 *   G1  a descriptor is in the list only while it is open: it leaves, under the listener's lock, before it is closed. So
 *       shutdown() under that lock cannot meet another connection's descriptor
 *   G2  the guard never closes: it shuts down, cuts the exchange (H3) and leaves the rest to libmicrohttpd
 *   G3  an answer is overdue when the client has bytes to fetch and has fetched none for idle_ms, however long it takes as a
 *       whole. Waiting for a handler or an upstream is not the client's fault
 */
#include "base/clock.h"
#include "base/log.h"
#include "proxy/http_internal.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>

#define LOOK_MAX_MS 1000
#define LOOK_MIN_MS 20
#define GONE_MS 2000    /* a client that has closed its side may still read what comes soon */
#define CROWDED_MS 1000 /* what an idle connection gets when others wait for its place */
#define REFUSED_LOG_MS 1000

static const char timeout_answer[] = "HTTP/1.1 408 Request Timeout\r\n"
                                     "Content-Type: application/json\r\n"
                                     "Content-Length: 83\r\n"
                                     "Connection: close\r\n"
                                     "\r\n"
                                     "{\"errors\":[{\"code\":\"UNSUPPORTED\",\"message\":\"the request did not arrive "
                                     "in time\"}]}\n";

/* ---- the list ------------------------------------------------------------------------------------------------------- */

/* Whom a connection belongs to: a host's IPv4 address, or the /64 that an IPv6 host picks its addresses from. */
static void client_of(const struct sockaddr *sa, unsigned char out[16])
{
    struct sockaddr_in6 in6;
    struct sockaddr_in in;

    memset(out, 0, 16);
    if (sa->sa_family == AF_INET) {
        memcpy(&in, sa, sizeof(in));
        out[10] = out[11] = 0xff;
        memcpy(out + 12, &in.sin_addr, 4);
    } else if (sa->sa_family == AF_INET6) {
        memcpy(&in6, sa, sizeof(in6));
        memcpy(out, &in6.sin6_addr, IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr) ? 16 : 8);
    }
}

static unsigned count_client(const struct http_listener *l, const unsigned char address[16])
{
    unsigned n = 0;
    for (const struct http_conn *c = l->conns; c; c = c->next)
        n += memcmp(c->address, address, 16) == 0;
    return n;
}

struct http_conn *conn_open(struct http_listener *l, int fd, const struct sockaddr *sa)
{
    unsigned limit = l->is_unix ? 0 : l->server->max_connections_per_client;
    int64_t now = clock_mono_ms();
    struct http_conn *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    c->magic = HTTP_CONN_MAGIC;
    c->fd = fd;
    c->phase = CONN_WAITING;
    c->since_ms = now;
    client_of(sa, c->address);
    http_peer_name(sa, c->peer, sizeof(c->peer));
    lock_take(&l->lock);
    bool refused = limit > 0 && count_client(l, c->address) >= limit;
    bool log = refused && now - l->refused_ms >= REFUSED_LOG_MS;
    if (log)
        l->refused_ms = now;
    if (!refused) {
        c->next = l->conns;
        if (l->conns)
            l->conns->prev = c;
        l->conns = c;
        l->conn_count++;
    }
    lock_give(&l->lock);
    if (log)
        log_event(LOG_WARN, "http.refused", "listener=%s peer=%s reason=client-connections limit=%u", l->address,
                  c->peer, limit);
    if (refused) {
        c->magic = 0;
        free_ptr(&c);
    }
    return c;
}

static void conn_unlink(struct http_listener *l, struct http_conn *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else
        l->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    l->conn_count--;
    if ((size_t)c->fd < l->by_fd_len && l->by_fd[c->fd] == c)
        l->by_fd[c->fd] = NULL;
}

static void conn_destroy(struct http_conn *c)
{
    tls_pair_unref(c->pair);
    c->magic = 0;
    free(c);
}

void conn_free(struct http_listener *l, struct http_conn *c)
{
    lock_take(&l->lock);
    conn_unlink(l, c);
    lock_give(&l->lock);
    conn_destroy(c);
}

void conn_free_all(struct http_listener *l)
{
    while (l->conns)
        conn_free(l, l->conns);
    free(l->by_fd);
    l->by_fd = NULL;
    l->by_fd_len = 0;
}

bool conn_room(struct http_listener *l)
{
    lock_take(&l->lock);
    bool room = l->conn_count < l->server->max_connections;
    lock_give(&l->lock);
    return room;
}

static bool by_fd_grow(struct http_listener *l, size_t want)
{
    size_t len = l->by_fd_len ? l->by_fd_len : 64;

    while (len <= want)
        len *= 2;
    struct http_conn **grown = realloc(l->by_fd, len * sizeof(struct http_conn *));
    if (!grown)
        return false;
    memset(grown + l->by_fd_len, 0, (len - l->by_fd_len) * sizeof(struct http_conn *));
    l->by_fd = grown;
    l->by_fd_len = len;
    return true;
}

/* libmicrohttpd closes a connection that it has no memory for without a word. What it left here is found when the
 * descriptor's number comes back: until then it is in the phase ADDED, which the guard does not touch (G1). */
bool conn_adding(struct http_listener *l, struct http_conn *c)
{
    struct http_conn *left = NULL;

    lock_take(&l->lock);
    bool ok = (size_t)c->fd < l->by_fd_len || by_fd_grow(l, (size_t)c->fd);
    if (ok) {
        left = l->by_fd[c->fd];
        if (left)
            conn_unlink(l, left);
        l->by_fd[c->fd] = c;
        c->phase = CONN_ADDED;
        c->since_ms = clock_mono_ms();
    }
    lock_give(&l->lock);
    if (left)
        conn_destroy(left);
    return ok;
}

struct http_conn *conn_started(struct http_listener *l, int fd)
{
    lock_take(&l->lock);
    REQUIRE((size_t)fd < l->by_fd_len && l->by_fd[fd] != NULL);
    struct http_conn *c = l->by_fd[fd];
    c->phase = CONN_FIRST; /* since_ms: from the first byte on */
    lock_give(&l->lock);
    return c;
}

/* With the lock held. */
static void enter(struct http_conn *c, enum conn_phase phase)
{
    if (c->phase == CONN_CUT)
        return;
    c->phase = phase;
    c->since_ms = c->moved_ms = clock_mono_ms();
    c->gone_ms = 0;
    c->seen_sent = 0;
    c->seen_queued = 0;
}

void conn_begin(struct http_listener *l, struct http_conn *c, struct http_exchange *x)
{
    lock_take(&l->lock);
    x->link = c;
    c->x = x;
    if (c->phase != CONN_FIRST) /* whose time has begun with the first byte */
        enter(c, CONN_HEAD);
    lock_give(&l->lock);
}

void conn_phase(struct http_listener *l, struct http_exchange *x, enum conn_phase phase)
{
    lock_take(&l->lock);
    enter(x->link, phase);
    lock_give(&l->lock);
}

void conn_end(struct http_listener *l, struct http_exchange *x)
{
    lock_take(&l->lock);
    x->link->x = NULL;
    enter(x->link, CONN_IDLE);
    x->link = NULL;
    lock_give(&l->lock);
}

/* ---- looking at it --------------------------------------------------------------------------------------------------- */

static void cut(struct http_listener *l, struct http_conn *c, enum log_level level, const char *why)
{
    struct http_exchange *x = c->x;

    log_event(level, "http.overdue", "listener=%s peer=%s reason=%s", l->address, c->peer, why);
    c->phase = CONN_CUT;
    if (x) {
        lock_take(&x->lock);
        exchange_cut(x);
        lock_give(&x->lock);
    }
    shutdown(c->fd, SHUT_RDWR);
}

/* The request is not complete and never will be, once its exchange is cut: so libmicrohttpd has nothing to say that the
 * answer could be mixed with. */
static void time_out(struct http_listener *l, struct http_conn *c, const char *why)
{
    struct http_exchange *x = c->x;

    if (x) {
        lock_take(&x->lock);
        x->timed_out = true;
        exchange_cut(x);
        lock_give(&x->lock);
    }
    if (!l->tls)
        send(c->fd, timeout_answer, sizeof(timeout_answer) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    cut(l, c, LOG_INFO, why);
}

/* 0: there; 1: has closed its side, or all of it; 2: reset. */
static int client_state(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};

    if (poll(&p, 1, 0) <= 0)
        return 0;
    return p.revents & (POLLERR | POLLHUP) ? 2 : p.revents & POLLRDHUP ? 1 : 0;
}

/* libmicrohttpd looks away from a suspended connection, and misses an end that came right behind the last bytes (it is told
 * of both once, and reads once): without this, a client that is gone would be waited for as long as the upstream or a limit
 * takes. One whose answer is on its way may have closed its side and still read. */
static bool is_gone(struct http_conn *c, int64_t now)
{
    struct http_exchange *x = c->x;
    bool look = true;

    if (c->phase == CONN_ANSWER) {
        lock_take(&x->lock);
        look = x->parked;
        lock_give(&x->lock);
    }
    int state = look ? client_state(c->fd) : 0;
    if (state == 0)
        c->gone_ms = 0;
    else if (c->gone_ms == 0)
        c->gone_ms = now;
    return state == 2 || (state == 1 && now - c->gone_ms >= GONE_MS);
}

/* G3. What is in the socket's queue has not been acknowledged; it stays the same only when nothing moves, or when exactly
 * as much was added as went out, which shows in what was sent. */
static bool is_stalled(const struct http_listener *l, struct http_conn *c, int64_t now)
{
    uint64_t sent = c->x ? atomic_load(&c->x->sent_bytes) : 0;
    int queued = 0;

    if (ioctl(c->fd, SIOCOUTQ, &queued) != 0)
        queued = 0;
    if (queued == 0 || queued != c->seen_queued || sent != c->seen_sent) {
        c->seen_queued = queued;
        c->seen_sent = sent;
        c->moved_ms = now;
    }
    return now - c->moved_ms >= l->server->idle_ms;
}

static void look_at(struct http_listener *l, struct http_conn *c, int64_t now, bool crowded)
{
    int64_t spent = now - c->since_ms;

    switch (c->phase) {
    case CONN_WAITING:
    case CONN_ADDED:
    case CONN_CUT:
        break;
    case CONN_FIRST:
    case CONN_HEAD:
        if (spent >= l->server->header_ms)
            time_out(l, c, "header");
        else if (is_gone(c, now))
            cut(l, c, LOG_DEBUG, "gone");
        break;
    case CONN_IDLE:
        if (is_stalled(l, c, now))
            cut(l, c, LOG_INFO, "stalled");
        else if (c->seen_queued > 0)
            c->since_ms = now; /* not idle yet: it still fetches the last answer */
        else if (spent >= l->server->idle_ms || (crowded && spent >= CROWDED_MS))
            cut(l, c, LOG_DEBUG, "idle");
        else if (is_gone(c, now))
            cut(l, c, LOG_DEBUG, "gone");
        break;
    case CONN_BODY:
        if (spent >= l->server->idle_ms)
            time_out(l, c, "body");
        else if (is_gone(c, now))
            cut(l, c, LOG_DEBUG, "gone");
        break;
    case CONN_ANSWER:
        if (is_stalled(l, c, now))
            cut(l, c, LOG_INFO, "stalled");
        else if (is_gone(c, now))
            cut(l, c, LOG_DEBUG, "gone");
        break;
    }
}

int guard_look(struct http_listener *l)
{
    int shortest = l->server->header_ms < l->server->idle_ms ? l->server->header_ms : l->server->idle_ms;
    int64_t now = clock_mono_ms();

    lock_take(&l->lock);
    bool crowded = l->conn_count >= l->server->max_connections;
    for (struct http_conn *c = l->conns; c; c = c->next)
        look_at(l, c, now, crowded);
    bool any = l->conns != NULL;
    lock_give(&l->lock);
    shortest /= 8;
    return !any ? -1 : shortest < LOOK_MIN_MS ? LOOK_MIN_MS : shortest > LOOK_MAX_MS ? LOOK_MAX_MS : shortest;
}
