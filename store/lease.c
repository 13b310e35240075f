/* SPDX-License-Identifier: Apache-2.0
 * store/lease.c - who uses what at this moment (S5), and what was read when.
 *
 * Leases live in memory only: they guard against eviction by this process, and a new process has no readers. Reads are
 * noted in a small table and written in bulk with some later transaction, so that serving never writes.
 */
#include "base/clock.h"
#include "store/catalog_internal.h"

#define BUCKETS_FIRST 256
#define READS_MAX 1024 /* power of two; what does not fit is not noted until the next write */
#define READS_PROBE 8
#define READS_WRITE_EVERY_S 60

struct node {
    struct node *next;
    enum lease_kind kind;
    struct digest digest;
    uint32_t count;
    bool doomed;
};

struct read_note {
    enum lease_kind kind; /* 0: empty */
    struct digest digest;
    int64_t at; /* wall milliseconds */
};

struct leases {
    struct lock lock; /* RANK_LEAF */
    pthread_cond_t undoomed;
    size_t bucket_count, node_count;
    struct node **buckets;
    size_t read_count;
    int64_t written_at;
    int64_t looked_at;         /* wall milliseconds of the last leases_write_reads(), 0: none yet */
    struct read_note *writing; /* the transaction that is under way has them; NULL: none, and only its thread looks */
    struct read_note reads[READS_MAX];
};

int leases_new(struct leases **out, struct err *err)
{
    struct leases *ls = calloc(1, sizeof(*ls));

    if (ls == NULL)
        return err_nomem(err, sizeof(*ls));
    ls->buckets = calloc(BUCKETS_FIRST, sizeof(*ls->buckets));
    if (ls->buckets == NULL) {
        free(ls);
        return err_nomem(err, BUCKETS_FIRST * sizeof(*ls->buckets));
    }
    ls->bucket_count = BUCKETS_FIRST;
    lock_init(&ls->lock, RANK_LEAF);
    cond_init(&ls->undoomed);
    *out = ls;
    return 0;
}

void leases_free(struct leases *ls)
{
    if (ls == NULL)
        return;
    REQUIRE(ls->node_count == 0); /* a source or a writer outlives the store */
    (void)pthread_cond_destroy(&ls->undoomed);
    lock_release(&ls->lock);
    free(ls->buckets);
    free(ls);
}

/* ---- the table; all with the lock held ---------------------------------------------------------------------------- */

static struct node **find(struct leases *ls, enum lease_kind kind, const struct digest *d)
{
    uint64_t h = digest_hash64(d) + (uint64_t)kind;
    struct node **at = &ls->buckets[h & (ls->bucket_count - 1)];

    while (*at != NULL && ((*at)->kind != kind || !digest_equal(&(*at)->digest, d)))
        at = &(*at)->next;
    return at;
}

/* A table that cannot grow is slow, not wrong. */
static void grow(struct leases *ls)
{
    size_t count = ls->bucket_count * 2;
    struct node **buckets = calloc(count, sizeof(struct node *));
    struct node **old = ls->buckets;
    size_t old_count = ls->bucket_count;

    if (buckets == NULL)
        return;
    ls->buckets = buckets;
    ls->bucket_count = count;
    for (size_t i = 0; i < old_count; i++) {
        struct node *n = old[i];

        while (n != NULL) {
            struct node *next = n->next;
            struct node **at = find(ls, n->kind, &n->digest);

            n->next = NULL;
            *at = n;
            n = next;
        }
    }
    free(old);
}

static struct node *add(struct leases *ls, enum lease_kind kind, const struct digest *d)
{
    struct node *n = calloc(1, sizeof(*n));

    if (n == NULL)
        return NULL;
    if (ls->node_count >= ls->bucket_count)
        grow(ls);
    n->kind = kind;
    n->digest = *d;
    *find(ls, kind, d) = n;
    ls->node_count++;
    return n;
}

static void remove_at(struct leases *ls, struct node **at)
{
    struct node *n = *at;

    *at = n->next;
    free(n);
    ls->node_count--;
}

/* Of two times for one thing the later one stays. */
static void note_read(struct leases *ls, enum lease_kind kind, const struct digest *d, int64_t at)
{
    size_t i = (size_t)digest_hash64(d);

    for (int probe = 0; probe < READS_PROBE; probe++, i++) {
        struct read_note *note = &ls->reads[i & (READS_MAX - 1)];

        if (note->kind == 0) {
            ls->read_count++;
            *note = (struct read_note){.kind = kind, .digest = *d, .at = at};
        } else if (note->kind != kind || !digest_equal(&note->digest, d)) {
            continue;
        } else if (note->at < at) {
            note->at = at;
        }
        return;
    }
}

/* ---- leases ------------------------------------------------------------------------------------------------------- */

/* wait: what is being evicted at this moment is waited for, and then it is gone. */
static int take(struct leases *ls, enum lease_kind kind, const struct digest *d, bool wait, struct err *err)
{
    struct node *n;
    bool doomed = false;

    lock_take(&ls->lock);
    while ((n = *find(ls, kind, d)) != NULL && n->doomed && wait)
        (void)lock_wait(&ls->lock, &ls->undoomed, -1);
    if (n == NULL)
        n = add(ls, kind, d);
    else
        doomed = n->doomed;
    if (n != NULL && !doomed)
        n->count++;
    lock_give(&ls->lock);
    if (n == NULL)
        return err_nomem(err, sizeof(*n));
    if (doomed)
        return err_set(err, ERR_NOTFOUND, "%s is being evicted", digest_text(d).s);
    return 0;
}

int lease_take(struct store *st, enum lease_kind kind, const struct digest *d, struct err *err)
{
    return take(st->leases, kind, d, false, err);
}

void lease_drop(struct store *st, enum lease_kind kind, const struct digest *d)
{
    struct leases *ls = st->leases;
    struct node **at;

    lock_take(&ls->lock);
    at = find(ls, kind, d);
    REQUIRE(*at != NULL && (*at)->count > 0);
    if (--(*at)->count == 0)
        remove_at(ls, at);
    lock_give(&ls->lock);
}

void lease_note_read(struct store *st, enum lease_kind kind, const struct digest *d)
{
    lock_take(&st->leases->lock);
    note_read(st->leases, kind, d, clock_wall_ms());
    lock_give(&st->leases->lock);
}

int lease_doom(struct store *st, enum lease_kind kind, const struct digest *d, struct err *err)
{
    struct leases *ls = st->leases;
    struct node *n;
    bool taken;

    lock_take(&ls->lock);
    taken = *find(ls, kind, d) != NULL;
    n = taken ? NULL : add(ls, kind, d);
    if (n != NULL)
        n->doomed = true;
    lock_give(&ls->lock);
    if (taken)
        return err_set(err, ERR_BUSY, "%s is being read", digest_text(d).s);
    return n != NULL ? 0 : err_nomem(err, sizeof(*n));
}

void lease_undoom(struct store *st, enum lease_kind kind, const struct digest *d)
{
    struct leases *ls = st->leases;
    struct node **at;

    lock_take(&ls->lock);
    at = find(ls, kind, d);
    REQUIRE(*at != NULL && (*at)->doomed);
    remove_at(ls, at);
    (void)pthread_cond_broadcast(&ls->undoomed);
    lock_give(&ls->lock);
}

int digest_lock(struct store *st, const struct digest *d, struct lease *out, struct err *err)
{
    struct leases *ls = st->leases;
    struct node *n;

    lock_take(&ls->lock);
    while (*find(ls, LEASE_FILE, d) != NULL)
        (void)lock_wait(&ls->lock, &ls->undoomed, -1);
    n = add(ls, LEASE_FILE, d);
    if (n != NULL)
        n->doomed = true;
    lock_give(&ls->lock);
    if (n == NULL)
        return err_nomem(err, sizeof(*n));
    *out = (struct lease){.st = st, .kind = LEASE_FILE, .digest = *d};
    return 0;
}

void digest_unlock(struct lease *l)
{
    if (l->st == NULL)
        return;
    lease_undoom(l->st, LEASE_FILE, &l->digest);
    l->st = NULL;
}

int lease_hold(struct store *st, enum lease_kind kind, const struct digest *d, struct lease *out, struct err *err)
{
    TRY(take(st->leases, kind, d, true, err));
    *out = (struct lease){.st = st, .kind = kind, .digest = *d};
    return 0;
}

void lease_release(struct lease *l)
{
    if (l->st == NULL)
        return;
    lease_drop(l->st, l->kind, &l->digest);
    l->st = NULL;
}

/* ---- last_read ------------------------------------------------------------------------------------------------------ */

/* The row may be newer than the note: whoever stored the bytes again wrote it at once. */
static int write_read(struct sql_db *db, const struct read_note *note, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    if (note->kind == LEASE_CANONICAL)
        TRY(sql_query(db, &q, "UPDATE canonical SET last_read = max(last_read, ?2) WHERE digest = ?1", err));
    else
        TRY(sql_query(db, &q, "UPDATE blob SET last_read = max(last_read, ?2) WHERE digest = ?1", err));
    sql_bind_digest(&q, 1, &note->digest);
    sql_bind_int(&q, 2, note->at);
    return sql_run(&q, err);
}

static int clamp(struct sql_query *q, int64_t now_ms, struct err *err)
{
    sql_bind_int(q, 1, now_ms);
    return sql_run(q, err);
}

/* Whatever was read while the clock was ahead counts as read now: else it would stay until the clock is there again. What is
 * pinned waits for the first start after that. */
static int forget_future(struct sql_db *db, int64_t now_ms, struct err *err)
{
    CLEANUP(sql_done) struct sql_query layers = SQL_QUERY_INIT;
    CLEANUP(sql_done) struct sql_query large = SQL_QUERY_INIT;
    CLEANUP(sql_done) struct sql_query small = SQL_QUERY_INIT;

    TRY(sql_query(db, &layers,
                  "UPDATE canonical SET last_read = ?1 WHERE present = 1 AND pinned = 0 AND last_read > ?1", err));
    TRY(clamp(&layers, now_ms, err));
    TRY(sql_query(db, &large,
                  "UPDATE blob SET last_read = ?1 WHERE original_present = 1 AND pinned = 0 AND size >= 65536"
                  " AND last_read > ?1",
                  err));
    TRY(clamp(&large, now_ms, err));
    TRY(sql_query(db, &small,
                  "UPDATE blob SET last_read = ?1 WHERE original_present = 1 AND pinned = 0 AND size < 65536"
                  " AND last_read > ?1",
                  err));
    return clamp(&small, now_ms, err);
}

int leases_write_reads(struct leases *ls, struct sql_db *db, bool force, struct err *err)
{
    struct read_note *notes = NULL;
    int64_t now_ms = clock_wall_ms();
    int64_t now = now_ms / 1000;
    bool due, went_back;

    lock_take(&ls->lock);
    went_back = ls->looked_at == 0 || now_ms < ls->looked_at;
    ls->looked_at = now_ms;
    due = ls->writing == NULL && ls->read_count > 0 &&
          (force || now < ls->written_at || now - ls->written_at >= READS_WRITE_EVERY_S ||
           ls->read_count > READS_MAX / 2);
    if (due)
        notes = malloc(sizeof(ls->reads));
    if (notes != NULL) {
        memcpy(notes, ls->reads, sizeof(ls->reads));
        memset(ls->reads, 0, sizeof(ls->reads));
        ls->read_count = 0;
        ls->written_at = now;
    }
    lock_give(&ls->lock);
    if (notes != NULL)
        ls->writing = notes;
    for (size_t i = 0; notes != NULL && i < READS_MAX; i++) {
        if (notes[i].kind == 0)
            continue;
        if (notes[i].at > now_ms)
            notes[i].at = now_ms;
        TRY(write_read(db, &notes[i], err));
    }
    return went_back ? forget_future(db, now_ms, err) : 0;
}

void leases_reads_written(struct leases *ls, bool committed)
{
    struct read_note *notes = steal(&ls->writing);

    if (committed) {
        free(notes);
        return;
    }
    lock_take(&ls->lock);
    ls->looked_at = 0; /* what was clamped is not, either */
    for (size_t i = 0; notes != NULL && i < READS_MAX; i++)
        if (notes[i].kind != 0)
            note_read(ls, notes[i].kind, &notes[i].digest, notes[i].at);
    lock_give(&ls->lock);
    free(notes);
}
