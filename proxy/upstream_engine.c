/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_engine.c - the upstream thread: messages, timers, libcurl, sleep.
 *
 * libcurl's own timers (connecting, name lookup) shorten the sleep inside curl_multi_poll(). Paused transfers are in neither
 * its poll set nor our timers, so a proxy whose upstreams and readers all stand still does not wake at all.
 */
#include "proxy/upstream_internal.h"

#include "base/clock.h"
#include "base/log.h"

#include <limits.h>
#include <unistd.h>

#define SLEEP_MAX_MS 60000
#define TROUBLE_SLEEP_US 100000

static void handle(struct exchange *x, unsigned wants)
{
    if ((wants & WANT_START) != 0)
        exchange_begin(x);
    if ((wants & WANT_UNPAUSE) != 0)
        exchange_unpause(x);
    if ((wants & WANT_DROP) != 0)
        exchange_cancel(x);
}

/* False when the thread has to end. */
static bool read_inbox(struct upstreams *ups)
{
    for (;;) {
        unsigned wants = 0;
        bool stopping;
        struct exchange *x = upstreams_next(ups, &wants, &stopping);

        if (x != NULL) {
            /* A dropped exchange need not be started, and one that recask has no time left for neither. */
            if (stopping || (wants & WANT_DROP) != 0)
                exchange_cancel(x);
            else
                handle(x, wants);
            exchange_unref(x);
        } else {
            return !stopping;
        }
    }
}

static void read_results(struct upstreams *ups)
{
    CURLMsg *msg;
    int left;

    while ((msg = curl_multi_info_read(ups->multi, &left)) != NULL) {
        char *arg = NULL;
        CURLcode rc = msg->data.result;

        if (msg->msg != CURLMSG_DONE)
            continue;
        REQUIRE(curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &arg) == CURLE_OK);
        exchange_try_ended(CAST_OBJ(struct exchange, EXCHANGE_MAGIC, (void *)arg), rc);
    }
}

/* Milliseconds until a timer is due. */
static int run_timers(struct upstreams *ups)
{
    int64_t now = clock_mono_ms();
    int64_t due = now + SLEEP_MAX_MS;

    for (struct exchange *x = ups->active, *next; x != NULL; x = next) {
        next = x->next;
        int64_t t = exchange_tick(x, now);
        if (t < due)
            due = t;
    }
    int64_t turn = turns_run(ups, now); /* after the exchanges, some of which may have left */
    if (turn < due)
        due = turn;
    return due > now ? (int)(due - now) : 0;
}

/* Only a lack of memory or descriptors makes libcurl's multi functions fail; trying again at full speed would not help. */
static void check_multi(CURLMcode rc, const char *what)
{
    if (rc == CURLM_OK)
        return;
    log_event(LOG_ERR, "upstream.multi", "call=%s msg=%s", what, log_quote(curl_multi_strerror(rc)).s);
    usleep(TROUBLE_SLEEP_US);
}

void *upstream_engine_main(void *upstreams)
{
    struct upstreams *ups = CAST_OBJ(struct upstreams, UPSTREAMS_MAGIC, upstreams);

    while (read_inbox(ups)) {
        int running;

        check_multi(curl_multi_perform(ups->multi, &running), "perform");
        read_results(ups);
        tokens_go_on(ups);
        check_multi(curl_multi_poll(ups->multi, NULL, 0, run_timers(ups), NULL), "poll");
    }
    while (ups->active != NULL)
        exchange_cancel(ups->active);
    return NULL;
}
