/* SPDX-License-Identifier: Apache-2.0
 *
 * Why an accept loop of our own: libmicrohttpd closes a plain connection that starts with a TLS ClientHello without a
 * word in some of the cases, and docker's containerd store falls back to plain HTTP only when it gets an HTTP answer. So
 * the first byte of each connection is peeked at: 0x16 is a TLS handshake record (RFC 8446 section 5.1), and whoever speaks
 * the other protocol than the port gets a static 400. The rest goes on to libmicrohttpd untouched.
 *
 * When the listener has all the connections it may have, accepting pauses: the next client waits in the kernel's queue.
 */
#include "base/clock.h"
#include "base/fsutil.h"
#include "base/log.h"
#include "proxy/http_internal.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define ACCEPTOR_MAGIC 0xacce97edu
#define WAITING_MAGIC 0x3a171069u
#define TLS_HANDSHAKE 0x16
#define FIRST_BYTE_MS 30000 /* a connection that says nothing for this long is closed */
#define LINGER_MS 2000      /* a refused client gets this long to read its answer */
#define FULL_MS 100         /* until a listener that was full looks again */
#define TLS_LOOK_MS 1000    /* between two looks at the certificate's files */
#define ACCEPT_LOG_MS 5000
#define EVENTS 64

static const char spoke_tls[] = "HTTP/1.1 400 Bad Request\r\n"
                                "Content-Type: text/plain\r\n"
                                "Content-Length: 50\r\n"
                                "Connection: close\r\n"
                                "\r\n"
                                "This is a plain HTTP port; the client spoke TLS.\r\n";
static const char spoke_plain[] = "HTTP/1.1 400 Bad Request\r\n"
                                  "Content-Type: text/plain\r\n"
                                  "Content-Length: 54\r\n"
                                  "Connection: close\r\n"
                                  "\r\n"
                                  "This port speaks HTTPS; the client spoke plain HTTP.\r\n";

struct waiting {
    uint32_t magic;
    bool lingers;
    int64_t deadline_ms;
    struct waiting *next, *prev;
    struct http_conn *conn;
    struct sockaddr_storage sa;
    socklen_t sa_len;
};

struct http_acceptor {
    uint32_t magic;
    struct http_listener *l;
    int listen_fd, epoll_fd, stop_fd;
    bool paused; /* the listening socket is out of the epoll set, until resume_ms */
    int64_t resume_ms, logged_ms, guard_ms, tls_ms;
    struct waiting *head;
    pthread_t thread;
    bool started;
};

static int watch(struct http_acceptor *a, int op, int fd, void *what)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = what};
    return epoll_ctl(a->epoll_fd, op, fd, &ev);
}

static void waiting_unlink(struct http_acceptor *a, struct waiting *w)
{
    if (w->prev)
        w->prev->next = w->next;
    else
        a->head = w->next;
    if (w->next)
        w->next->prev = w->prev;
    w->magic = 0;
    free(w);
}

static void waiting_close(struct http_acceptor *a, struct waiting *w)
{
    int fd = w->conn->fd;

    conn_free(a->l, w->conn);
    close(fd);
    waiting_unlink(a, w);
}

static void pause_accepting(struct http_acceptor *a)
{
    if (!a->paused && watch(a, EPOLL_CTL_DEL, a->listen_fd, a) == 0)
        a->paused = true;
    a->resume_ms = clock_mono_ms() + FULL_MS;
}

static void accept_failed(struct http_acceptor *a, int why)
{
    int64_t now = clock_mono_ms();

    if (why != EMFILE && why != ENFILE && why != ENOBUFS && why != ENOMEM)
        return;
    if (now >= a->logged_ms + ACCEPT_LOG_MS) {
        log_event(LOG_WARN, "http.accept", "listener=%s error=%s", a->l->address, log_quote(strerror(why)).s);
        a->logged_ms = now;
    }
    pause_accepting(a);
}

static void accepted(struct http_acceptor *a, struct waiting **pw, int fd)
{
    struct waiting *w = *pw;
    int idle_ms = a->l->server->idle_ms;

    w->conn = conn_open(a->l, fd, (struct sockaddr *)&w->sa);
    if (!w->conn) {
        close(fd);
        return;
    }
    *pw = NULL;
    w->deadline_ms = w->conn->since_ms + (idle_ms < FIRST_BYTE_MS ? idle_ms : FIRST_BYTE_MS);
    w->next = a->head;
    if (a->head)
        a->head->prev = w;
    a->head = w;
    if (watch(a, EPOLL_CTL_ADD, fd, w) != 0)
        waiting_close(a, w);
}

static void accept_some(struct http_acceptor *a)
{
    for (int i = 0; i < EVENTS; i++) {
        if (!conn_room(a->l)) {
            pause_accepting(a);
            return;
        }
        CLEANUP(free_ptr) struct waiting *w = calloc(1, sizeof(*w));
        if (!w) {
            accept_failed(a, ENOMEM);
            return;
        }
        w->magic = WAITING_MAGIC;
        w->sa_len = sizeof(w->sa);
        int fd = accept4(a->listen_fd, (struct sockaddr *)&w->sa, &w->sa_len, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            accept_failed(a, errno);
            return;
        }
        accepted(a, &w, fd);
    }
}

/* Reads away what the client sends, so that closing does not reset the connection under the answer. */
static bool drained(int fd)
{
    char sink[4096];
    for (int i = 0; i < 16; i++) {
        ssize_t n = recv(fd, sink, sizeof(sink), 0);
        if (n == 0)
            return true;
        if (n < 0)
            return errno != EAGAIN && errno != EINTR;
    }
    return false;
}

/* The port's protocol: on to libmicrohttpd. */
static void pass_on(struct http_acceptor *a, struct waiting *w)
{
    if (epoll_ctl(a->epoll_fd, EPOLL_CTL_DEL, w->conn->fd, NULL) != 0 || !conn_adding(a->l, w->conn)) {
        waiting_close(a, w);
        return;
    }
    http_daemon_add(a->l, steal(&w->conn), (struct sockaddr *)&w->sa, w->sa_len);
    waiting_unlink(a, w);
}

static void refuse(struct http_acceptor *a, struct waiting *w, const char *answer)
{
    int fd = w->conn->fd;

    if (send(fd, answer, strlen(answer), MSG_NOSIGNAL) < 0 || shutdown(fd, SHUT_WR) != 0) {
        waiting_close(a, w);
        return;
    }
    w->lingers = true;
    w->deadline_ms = clock_mono_ms() + LINGER_MS;
    if (drained(fd))
        waiting_close(a, w);
}

static void first_byte(struct http_acceptor *a, struct waiting *w)
{
    unsigned char first;

    if (w->lingers) {
        if (drained(w->conn->fd))
            waiting_close(a, w);
        return;
    }
    ssize_t n = recv(w->conn->fd, &first, 1, MSG_PEEK);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0)
        waiting_close(a, w);
    else if ((first == TLS_HANDSHAKE) == (a->l->tls != NULL))
        pass_on(a, w);
    else
        refuse(a, w, a->l->tls ? spoke_plain : spoke_tls);
}

/* Closes what is overdue; returns the milliseconds until the next deadline, -1 for none. */
static int expire(struct http_acceptor *a, int64_t now)
{
    int64_t soonest = -1;
    for (struct waiting *w = a->head, *next; w; w = next) {
        next = w->next;
        if (w->deadline_ms <= now)
            waiting_close(a, w);
        else if (soonest < 0 || w->deadline_ms - now < soonest)
            soonest = w->deadline_ms - now;
    }
    return (int)soonest;
}

static int sooner(int a_ms, int64_t b_ms)
{
    int b = b_ms < 0 ? 0 : (int)b_ms;
    return a_ms < 0 || b < a_ms ? b : a_ms;
}

/* What is to be done from time to time. Returns the milliseconds until then, -1: nothing. */
static int chores(struct http_acceptor *a)
{
    struct http_listener *l = a->l;
    int64_t now = clock_mono_ms();
    int wait_ms = expire(a, now);

    if (a->paused && now >= a->resume_ms && conn_room(l) && watch(a, EPOLL_CTL_ADD, a->listen_fd, a) == 0)
        a->paused = false;
    if (a->paused)
        wait_ms = sooner(wait_ms, FULL_MS);
    if (now >= a->guard_ms) {
        int guard_wait = guard_look(l);
        a->guard_ms = guard_wait < 0 ? 0 : now + guard_wait;
    }
    if (a->guard_ms > 0)
        wait_ms = sooner(wait_ms, a->guard_ms - now);
    if (l->tls && now >= a->tls_ms) {
        workpool_post(l->server->pool, &l->tls_look); /* may block on disk */
        a->tls_ms = now + TLS_LOOK_MS;
    }
    return l->tls ? sooner(wait_ms, a->tls_ms - now) : wait_ms;
}

static void *acceptor_main(void *arg)
{
    struct http_acceptor *a = CAST_OBJ(struct http_acceptor, ACCEPTOR_MAGIC, arg);
    struct epoll_event events[EVENTS];

    for (;;) {
        int n = epoll_wait(a->epoll_fd, events, EVENTS, chores(a));
        for (int i = 0; i < n; i++) {
            void *what = events[i].data.ptr;
            if (what == NULL)
                return NULL;
            if (what == a)
                accept_some(a);
            else
                first_byte(a, CAST_OBJ(struct waiting, WAITING_MAGIC, what));
        }
    }
}

int acceptor_start(struct http_listener *l, int listen_fd, struct err *err)
{
    struct http_acceptor *a = calloc(1, sizeof(*a));

    if (!a) {
        close(listen_fd);
        return err_nomem(err, sizeof(*a));
    }
    a->magic = ACCEPTOR_MAGIC;
    a->l = l;
    a->listen_fd = listen_fd;
    a->tls_ms = clock_mono_ms() + TLS_LOOK_MS;
    a->stop_fd = eventfd(0, EFD_CLOEXEC);
    a->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (a->stop_fd < 0 || a->epoll_fd < 0 || watch(a, EPOLL_CTL_ADD, a->stop_fd, NULL) != 0 ||
        watch(a, EPOLL_CTL_ADD, a->listen_fd, a) != 0) {
        int rc = err_sys(err, errno, "accept loop");
        acceptor_stop(a);
        return rc;
    }
    int rc = pthread_create(&a->thread, NULL, acceptor_main, a);
    if (rc != 0) {
        rc = err_sys(err, rc, "accept thread");
        acceptor_stop(a);
        return rc;
    }
    a->started = true;
    pthread_setname_np(a->thread, "accept");
    l->acceptor = a;
    return 0;
}

void acceptor_stop(struct http_acceptor *a)
{
    if (!a)
        return;
    if (a->started) {
        uint64_t one = 1;
        ssize_t n = write(a->stop_fd, &one, sizeof(one));
        REQUIRE(n == (ssize_t)sizeof(one));
        pthread_join(a->thread, NULL);
    }
    while (a->head)
        waiting_close(a, a->head);
    fd_cleanup(&a->listen_fd);
    fd_cleanup(&a->epoll_fd);
    fd_cleanup(&a->stop_fd);
    a->magic = 0;
    free(a);
}
