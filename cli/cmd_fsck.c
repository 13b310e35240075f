/* SPDX-License-Identifier: Apache-2.0
 * cli/cmd_fsck.c - recask fsck: looks at a store that no instance has open, or makes its catalog anew. */
#include "base/log.h"
#include "cli/cli.h"
#include "cli/table.h"
#include "store/rebuild.h"

#include <inttypes.h>
#include <unistd.h>

#define LINE_MAX_BYTES (64u << 10)
#define FINDINGS_MAX_BYTES (256u << 20)

/* What a check or a rebuild says, as it comes; with --json gathered for the one answer. */
struct told {
    bool json;
    bool progress; /* on stderr, which is a terminal */
    struct buf findings;
    struct err err; /* no memory for more of them */
};

static int json_text(struct buf *out, const char *s, struct err *err)
{
    TRY(buf_str(out, "\"", err));
    for (; *s != '\0'; s++) {
        if ((unsigned char)*s < 0x20 || *s == '"' || *s == '\\')
            TRY(buf_printf(out, err, "\\u%04x", (unsigned)(unsigned char)*s));
        else
            TRY(buf_add(out, s, 1, err));
    }
    return buf_str(out, "\"", err);
}

static int gather(struct told *t, const char *text, struct err *err)
{
    if (t->findings.len > 0)
        TRY(buf_str(&t->findings, ",\n  ", err));
    return json_text(&t->findings, text, err);
}

static void tell(void *arg, const struct store_report *r)
{
    struct told *t = arg;

    if (r->text == NULL) {
        if (t->progress && r->total_bytes > 0)
            fprintf(stderr, "recask: %s of %s read\n", human_bytes(r->done_bytes).s, human_bytes(r->total_bytes).s);
        return;
    }
    if (t->json && t->err.code == 0)
        (void)!gather(t, r->text, &t->err);
    if (!t->json)
        printf("%s\n", r->text);
}

static int answer_json(struct told *t, const char *head, struct err *err)
{
    CLEANUP(buf_release) struct buf out = BUF_INIT(FINDINGS_MAX_BYTES + LINE_MAX_BYTES);

    if (t->err.code < 0) {
        *err = t->err;
        return err->code;
    }
    TRY(buf_printf(&out, err, "{%s,\n \"findings\": [%s%s%s]}\n", head, t->findings.len > 0 ? "\n  " : "",
                   t->findings.len > 0 ? t->findings.data : "", t->findings.len > 0 ? "\n " : ""));
    return cli_print(&out, err);
}

static int check(const struct args *args, const char *store, struct told *t, struct err *err)
{
    CLEANUP(free_ptr) char *head = NULL;
    struct store_check_result r;

    if (args_has(args, "--read"))
        TRY(store_check_bytes(store, tell, t, &r, err));
    else
        TRY(store_check(store, tell, t, &r, err));
    TRY(str_printf(&head, err,
                   "\"format\": %" PRId64 ", \"packs\": %" PRIu64 ", \"chunks\": %" PRIu64 ", \"layers\": %" PRIu64
                   ", \"originals\": %" PRIu64 ", \"manifests\": %" PRIu64 ", \"tags\": %" PRIu64
                   ", \"lost_chunks\": %" PRIu64 ", \"leftovers\": %" PRIu64,
                   r.format, r.packs, r.chunks, r.layers, r.originals, r.manifests, r.tags, r.lost, r.leftovers));
    if (t->json)
        TRY(answer_json(t, head, err));
    else
        printf("%s: %s packs, %s chunks, %s layers, %s originals, %s manifests, %s tags; %s chunks known to be lost, %s"
               " leftovers\n",
               store, human_count(r.packs).s, human_count(r.chunks).s, human_count(r.layers).s,
               human_count(r.originals).s, human_count(r.manifests).s, human_count(r.tags).s, human_count(r.lost).s,
               human_count(r.leftovers).s);
    return r.findings == 0
               ? 0
               : err_set(err, ERR_CORRUPT,
                         "%s: %" PRIu64 " findings. Damaged layers and originals are fetched again when they"
                         " are asked for; a damaged catalog is made anew by \"recask fsck --rebuild --store"
                         " %s\"",
                         store, r.findings, store);
}

static int rebuild(const char *store, struct told *t, struct err *err)
{
    CLEANUP(free_ptr) char *head = NULL;
    struct store_rebuild_result r;

    TRY(store_rebuild(store, tell, t, &r, err));
    TRY(str_printf(&head, err,
                   "\"packs\": %" PRIu64 ", \"chunks\": %" PRIu64 ", \"layers\": %" PRIu64 ", \"originals\": %" PRIu64
                   ", \"manifests\": %" PRIu64 ", \"tags\": %" PRIu64 ", \"views\": %" PRIu64 ", \"pins\": %" PRIu64
                   ", \"absent_layers\": %" PRIu64 ", \"damaged\": %" PRIu64 ", \"unknown_records\": %" PRIu64
                   ", \"old_catalog\": \"%s\"",
                   r.packs, r.chunks, r.layers, r.originals, r.manifests, r.tags, r.views, r.pins, r.absent_layers,
                   r.damaged, r.unknown, r.old));
    if (t->json)
        return answer_json(t, head, err);
    printf(
        "%s: a new catalog of %s packs, %s chunks, %s layers, %s originals, %s manifests, %s tags, %s views, %s pins\n",
        store, human_count(r.packs).s, human_count(r.chunks).s, human_count(r.layers).s, human_count(r.originals).s,
        human_count(r.manifests).s, human_count(r.tags).s, human_count(r.views).s, human_count(r.pins).s);
    printf(
        "%s layers are known and not stored, %s records or files are damaged, %s records are of kinds that this recask"
        " does not know\n",
        human_count(r.absent_layers).s, human_count(r.damaged).s, human_count(r.unknown).s);
    if (r.old[0] != '\0')
        printf("the old catalog is %s/%s (with its -wal, if it had one); it can be removed\n", store, r.old);
    printf("not known any more, and found out again: when things were read and tags were checked last, which manifests"
           " are signed, which layers cannot be unpacked\n");
    return 0;
}

static int run(const struct args *args, struct err *err)
{
    CLEANUP(free_ptr) char *store = NULL;
    struct told t = {.json = args_has(args, "--json"),
                     .progress = isatty(STDERR_FILENO) || args_has(args, "--rebuild"),
                     .findings = BUF_INIT(FINDINGS_MAX_BYTES)};
    int rc;

    if (args_has(args, "--rebuild") && args_has(args, "--read"))
        return err_set(err, ERR_USAGE, "fsck: --rebuild reads everything; --read goes without it");
    log_set_level(LOG_ERR); /* what it finds it says itself */
    TRY(config_store_path(args_value(args, "--store"), cli_env(), &store, err));
    rc = args_has(args, "--rebuild") ? rebuild(store, &t, err) : check(args, store, &t, err);
    buf_release(&t.findings);
    if (rc == ERR_BUSY)
        return err_wrap(err, "stop it first");
    return rc < 0 ? rc : fflush(stdout) == 0 ? 0 : err_set(err, ERR_IO, "standard output");
}

static const struct flag flags[] = {
    {"--rebuild", NULL, "make a new catalog from packs and originals; the old one is kept beside it"},
    {"--read", NULL, "read each frame and original too, and compare the checksums"},
    {"--store", "DIR", "the store (RECASK_STORE; default: where \"recask serve\" has it)"},
    {"--json", NULL, "one JSON object instead of lines"},
    {NULL, NULL, NULL},
};

const struct command cmd_fsck = {
    .name = "fsck",
    .synopsis = "[--rebuild | --read] [--store DIR] [--json]",
    .summary = "check a store that no instance is using, or make its catalog anew",
    .details = "Prints one line for all that is wrong, and a closing line. Exit status 0: nothing is. A check\n"
               "changes nothing. --rebuild is for a catalog.db that is lost or damaged: it reads all of the\n"
               "store, and what is damaged beyond that is left out, so that it is fetched again when a client\n"
               "asks for it. \"recask scrub\" looks at the bytes while an instance runs, and mends what it can.\n",
    .flags = flags,
    .run = run,
};
