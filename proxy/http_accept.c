/* SPDX-License-Identifier: Apache-2.0
 *
 * Why an accept loop of our own: libmicrohttpd closes a plain connection that starts with a TLS ClientHello without a
 * word in some of the cases, and docker's containerd store falls back to plain HTTP only when it gets an HTTP answer. So
 * the first byte of each connection is peeked at: 0x16 (TLS handshake record, RFC 8446 section 5.1) gets a static 400,
 * anything else goes on to libmicrohttpd untouched.
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
#define LINGER_MS 2000      /* a refused TLS client gets this long to read its answer */
#define EVENTS 64

static const char tls_answer[] = "HTTP/1.1 400 Bad Request\r\n"
                                 "Content-Type: text/plain\r\n"
                                 "Content-Length: 50\r\n"
                                 "Connection: close\r\n"
                                 "\r\n"
                                 "This is a plain HTTP port; the client spoke TLS.\r\n";

struct waiting {
    uint32_t magic;
    int fd;
    bool lingers;
    int64_t deadline_ms;
    struct waiting *next, *prev;
    struct sockaddr_storage sa;
    socklen_t sa_len;
};

struct http_acceptor {
    uint32_t magic;
    int listen_fd, epoll_fd, stop_fd;
    unsigned max_waiting, count;
    bool paused; /* too many wait, or no file descriptors: the listening socket is out of the epoll set */
    struct waiting *head;
    http_accepted_fn *fn;
    void *arg;
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
    a->count--;
    w->magic = 0;
    free(w);
}

static void waiting_close(struct http_acceptor *a, struct waiting *w)
{
    close(w->fd);
    waiting_unlink(a, w);
}

static void pause_accepting(struct http_acceptor *a, bool pause)
{
    if (pause == a->paused)
        return;
    if (watch(a, pause ? EPOLL_CTL_DEL : EPOLL_CTL_ADD, a->listen_fd, a) == 0)
        a->paused = pause;
}

static void accept_some(struct http_acceptor *a)
{
    for (int i = 0; i < EVENTS; i++) {
        struct waiting *w = calloc(1, sizeof(*w));
        if (!w) {
            pause_accepting(a, true);
            return;
        }
        w->magic = WAITING_MAGIC;
        w->sa_len = sizeof(w->sa);
        w->fd = accept4(a->listen_fd, (struct sockaddr *)&w->sa, &w->sa_len, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (w->fd < 0) {
            int why = errno;
            free(w);
            if (why == EMFILE || why == ENFILE || why == ENOBUFS || why == ENOMEM) {
                log_event(LOG_WARN, "http.accept", "error=%s", log_quote(strerror(why)).s);
                pause_accepting(a, true); /* the loop's next round tries again */
            }
            return;
        }
        w->deadline_ms = clock_mono_ms() + FIRST_BYTE_MS;
        w->next = a->head;
        if (a->head)
            a->head->prev = w;
        a->head = w;
        a->count++;
        if (watch(a, EPOLL_CTL_ADD, w->fd, w) != 0) {
            waiting_close(a, w);
            return;
        }
        if (a->count >= a->max_waiting) {
            pause_accepting(a, true);
            return;
        }
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

static void first_byte(struct http_acceptor *a, struct waiting *w)
{
    unsigned char first;
    ssize_t n;

    if (w->lingers) {
        if (drained(w->fd))
            waiting_close(a, w);
        return;
    }
    n = recv(w->fd, &first, 1, MSG_PEEK);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        waiting_close(a, w);
        return;
    }
    if (first != TLS_HANDSHAKE) {
        if (epoll_ctl(a->epoll_fd, EPOLL_CTL_DEL, w->fd, NULL) != 0) {
            waiting_close(a, w);
            return;
        }
        a->fn(a->arg, w->fd, (struct sockaddr *)&w->sa, w->sa_len);
        waiting_unlink(a, w);
        return;
    }
    if (send(w->fd, tls_answer, sizeof(tls_answer) - 1, MSG_NOSIGNAL) < 0 || shutdown(w->fd, SHUT_WR) != 0) {
        waiting_close(a, w);
        return;
    }
    w->lingers = true;
    w->deadline_ms = clock_mono_ms() + LINGER_MS;
    if (drained(w->fd))
        waiting_close(a, w);
}

/* Closes what is overdue; returns the milliseconds until the next deadline, -1 for none. */
static int expire(struct http_acceptor *a)
{
    int64_t now = clock_mono_ms(), soonest = -1;
    for (struct waiting *w = a->head, *next; w; w = next) {
        next = w->next;
        if (w->deadline_ms <= now)
            waiting_close(a, w);
        else if (soonest < 0 || w->deadline_ms - now < soonest)
            soonest = w->deadline_ms - now;
    }
    return (int)soonest;
}

static void *acceptor_main(void *arg)
{
    struct http_acceptor *a = CAST_OBJ(struct http_acceptor, ACCEPTOR_MAGIC, arg);
    struct epoll_event events[EVENTS];

    for (;;) {
        int wait_ms = expire(a);
        if (a->paused && a->count < a->max_waiting)
            pause_accepting(a, false);
        if (a->paused && (wait_ms < 0 || wait_ms > 100))
            wait_ms = 100;
        int n = epoll_wait(a->epoll_fd, events, EVENTS, wait_ms);
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

int acceptor_start(int listen_fd, unsigned max_waiting, http_accepted_fn *fn, void *arg, struct http_acceptor **out,
                   struct err *err)
{
    struct http_acceptor *a = calloc(1, sizeof(*a));

    if (!a) {
        close(listen_fd);
        return err_nomem(err, sizeof(*a));
    }
    a->magic = ACCEPTOR_MAGIC;
    a->listen_fd = listen_fd;
    a->max_waiting = max_waiting;
    a->fn = fn;
    a->arg = arg;
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
    *out = a;
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
