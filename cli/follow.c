/* SPDX-License-Identifier: Apache-2.0
 * cli/follow.c - see the header. */
#include "cli/follow.h"

#include "cli/table.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#define POLL_MS 200
#define BAR_CELLS 24

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig UNUSED)
{
    interrupted = 1;
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

/* A fresh look at what runs. root is of answer. */
static int look(const struct args *args, struct buf *answer, struct admin_json **root, struct err *err)
{
    admin_json_free(steal(root));
    buf_reset(answer);
    TRY(cli_ask(args, "/api/v1/maintenance", NULL, answer, err));
    return admin_json_parse(answer->data, answer->len, root, err);
}

static int begin(const struct args *args, const struct follow *f, uint64_t *out_id, struct err *err)
{
    CLEANUP(buf_release) struct buf answer = BUF_INIT(FOLLOW_ANSWER_MAX_BYTES);
    CLEANUP(admin_json_cleanup) struct admin_json *root = NULL;

    TRY(cli_change(args, f->path, f->ref, &answer, err));
    TRY(admin_json_parse(answer.data, answer.len, &root, err));
    *out_id = admin_json_number(root, "id");
    return 0;
}

/* ---- the bar ----------------------------------------------------------------------------------------------------- */

static void clear_line(bool bar)
{
    if (bar)
        fputs("\r\033[K", stderr);
}

static void draw_scrub(const struct admin_json *run)
{
    const struct admin_json *p = admin_json_get(run, "scrub");
    uint64_t bytes = admin_json_number(p, "bytes"), total = admin_json_number(p, "total_bytes");
    unsigned percent = total > 0 ? (unsigned)((double)bytes * 100.0 / (double)total) : 0;
    char cells[BAR_CELLS + 1];

    if (percent > 100)
        percent = 100;
    memset(cells, '.', BAR_CELLS);
    memset(cells, '#', percent * BAR_CELLS / 100);
    cells[BAR_CELLS] = '\0';
    fprintf(stderr, "\r\033[K%s [%s] %3u %%  %s of %s  %s/s  %s left  %s bad", admin_json_text(run, "phase"), cells,
            percent, human_bytes(bytes).s, human_bytes(total).s, human_bytes(admin_json_number(run, "rate_bytes_s")).s,
            human_seconds(admin_json_number(run, "eta_s")).s, human_count(admin_json_number(p, "bad")).s);
}

static void draw_gc(const struct admin_json *run)
{
    const struct admin_json *p = admin_json_get(run, "gc");

    fprintf(stderr, "\r\033[Kgc: %s evicted, pack %s of %s, %s moved, %s freed",
            human_bytes(admin_json_number(p, "evicted_bytes")).s, human_count(admin_json_number(p, "packs_done")).s,
            human_count(admin_json_number(p, "packs")).s, human_bytes(admin_json_number(p, "moved_bytes")).s,
            human_bytes(admin_json_number(p, "freed_bytes")).s);
}

static void draw(bool bar, const struct admin_json *run)
{
    if (!bar)
        return;
    if (strcmp(admin_json_text(run, "task"), "gc") == 0)
        draw_gc(run);
    else
        draw_scrub(run);
    fflush(stderr);
}

static int nap(const struct follow *f, bool bar, struct err *err)
{
    struct timespec t = {.tv_nsec = POLL_MS * 1000000L};

    if (interrupted == 0)
        (void)nanosleep(&t, NULL);
    if (interrupted == 0)
        return 0;
    clear_line(bar);
    return err_set(err, ERR_CANCELLED, "not waiting any longer; the %s goes on in the server: \"recask %s\" joins it",
                   f->task, f->task);
}

/* ---- following --------------------------------------------------------------------------------------------------- */

/* What runs already is joined when it is what is wanted, else its end is waited for. */
static bool can_join(const struct follow *f, const struct admin_json *run)
{
    return strcmp(admin_json_text(run, "task"), f->task) == 0 && (!f->repair || admin_json_true(run, "repair"));
}

static int begin_or_join(const struct args *args, const struct follow *f, struct buf *answer, bool bar,
                         uint64_t *out_id, struct err *err)
{
    CLEANUP(admin_json_cleanup) struct admin_json *root = NULL;
    bool told = false;

    for (;;) {
        struct err why = ERR_INIT;
        const struct admin_json *run;
        int rc = begin(args, f, out_id, &why);

        if (rc != ERR_BUSY) {
            *err = why;
            return rc;
        }
        TRY(look(args, answer, &root, err));
        run = admin_json_get(root, "running");
        if (run != NULL && can_join(f, run)) {
            fprintf(stderr, "recask: a %s is running already; joining it\n", f->task);
            *out_id = admin_json_number(run, "id");
            return 0;
        }
        if (run != NULL && !told && admin_json_has(root, "running")) {
            fprintf(stderr, "recask: a %s is running; this begins when it has ended\n", admin_json_text(run, "task"));
            told = true;
        }
        TRY(nap(f, bar, err));
    }
}

static int wait_for_end(const struct args *args, const struct follow *f, uint64_t id, struct buf *answer, bool bar,
                        struct err *err)
{
    CLEANUP(admin_json_cleanup) struct admin_json *root = NULL;

    for (;;) {
        TRY(look(args, answer, &root, err));
        if (admin_json_number(admin_json_get(admin_json_get(root, "last"), f->task), "id") >= id)
            break;
        draw(bar, admin_json_get(root, "running"));
        TRY(nap(f, bar, err));
    }
    clear_line(bar);
    return 0;
}

int follow_task(const struct args *args, const struct follow *f, struct buf *answer, struct err *err)
{
    struct sigaction catch = {.sa_handler = on_interrupt};
    bool bar = isatty(STDERR_FILENO);
    uint64_t id = 0;

    sigaction(SIGINT, &catch, NULL);
    TRY(begin_or_join(args, f, answer, bar, &id, err));
    return wait_for_end(args, f, id, answer, bar, err);
}

int follow_result(const struct follow *f, const struct admin_json *root, const struct admin_json **out, struct err *err)
{
    const struct admin_json *run = admin_json_get(admin_json_get(root, "last"), f->task);
    const char *state = admin_json_text(run, "state"), *why = admin_json_text(run, "error");

    *out = admin_json_get(run, f->task);
    if (strcmp(state, "done") == 0)
        return 0;
    return err_set(err, ERR_IO, "the %s %s%s%s", f->task, strcmp(state, "stopped") == 0 ? "was stopped" : "failed",
                   *why != '\0' ? ": " : "", why);
}
