/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_pin_test.c - pins: what they keep, in which form, as tags move and things come and go.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/store_pin_util.h"

/* ---- tests ------------------------------------------------------------------------------------------------------------------ */

static void test_a_pinned_tag(void **state)
{
    struct fixture *f = *state;
    int64_t repo = repo_of(f->st, "a");
    struct image kept = put_image(f->st, repo, "1", 1), other = put_image(f->st, repo, "2", 2);
    struct store_pin_result r = pin(f->st, repo, "1", NULL);
    struct store_stats s;
    struct err err = ERR_INIT;

    assert_true(r.changed && digest_equal(&r.digest, &kept.digest));
    assert_int_equal(r.blobs, 2);
    assert_int_equal(r.bytes, 110);
    assert_int_equal(r.missing + r.unknown, 0);
    assert_false(pin(f->st, repo, "1", NULL).changed);
    ASSERT_OK(store_stats(f->st, &s, &err));
    assert_int_equal(s.pins, 1);
    assert_true(s.pinned_bytes > LAYER_BYTES);
    assert_int_equal(evict_all(f), ERR_NOSPC);
    assert_true(has_layer(f->st, &kept.canonical) && has_original(f->st, &kept.config));
    assert_false(has_original(f->st, &kept.layer)); /* says nothing that the layer does not say */
    assert_false(has_layer(f->st, &other.canonical) || has_original(f->st, &other.config));
    ASSERT_CODE(store_evict(f->st, &kept.canonical, &err), ERR_BUSY);
    ASSERT_CODE(store_evict(f->st, &kept.config, &err), ERR_BUSY);
    reopen_store(f);
    ASSERT_CODE(store_evict(f->st, &kept.canonical, &err), ERR_BUSY);
    r = unpin(f->st, repo, "1", NULL);
    assert_true(r.changed && !unpin(f->st, repo, "1", NULL).changed);
    (void)evict_all(f);
    assert_false(has_layer(f->st, &kept.canonical) || has_original(f->st, &kept.config));
    assert_int_equal(sql_number(f->st, "SELECT pinned_bytes FROM totals"), 0);
}

/* Until the views are made, and when they never are, clients get the upstream's own layers. */
static void test_in_which_form(void **state)
{
    struct fixture *f = *state;
    int64_t repo = repo_of(f->st, "a");
    struct image im = put_image(f->st, repo, "1", 1);
    struct err err = ERR_INIT;

    set_views(f->st, 1, VIEWS_NEVER);
    (void)pin(f->st, repo, "1", NULL);
    (void)evict_all(f);
    assert_true(has_original(f->st, &im.layer) && has_layer(f->st, &im.canonical));
    set_views(f->st, 1, VIEWS_READY);
    (void)pin(f->st, repo, NULL, &im.digest); /* who asks by digest gets them as well */
    (void)evict_all(f);
    assert_true(has_original(f->st, &im.layer));
    ASSERT_CODE(store_evict(f->st, &im.layer, &err), ERR_BUSY);
    (void)unpin(f->st, repo, NULL, &im.digest);
    ASSERT_OK(store_evict(f->st, &im.layer, &err)); /* the layer will do */
    ASSERT_CODE(store_evict(f->st, &im.canonical, &err), ERR_BUSY);
    ASSERT_OK(store_mark_lost(f->st, &im.canonical, &err)); /* damage, however, is damage */
    assert_true(has_layer(f->st, &im.canonical));
    (void)put_source(f->st, 1);
    sql_change(f->st, "UPDATE canonical SET present = 0; DELETE FROM recipe; UPDATE chunk SET refs = 0");
    expect_exact_pins(f->st);
    ASSERT_CODE(store_evict(f->st, &im.layer, &err), ERR_BUSY); /* all that there is */
    (void)evict_all(f);
    assert_true(has_original(f->st, &im.layer));
}

static void test_a_tag_moves(void **state)
{
    struct fixture *f = *state;
    int64_t repo = repo_of(f->st, "a");
    struct image a = put_image(f->st, repo, "1", 1), b;
    struct store_pin_result r;
    struct err err = ERR_INIT;

    (void)pin(f->st, repo, "1", NULL);
    b = put_image(f->st, repo, "1", 2);
    expect_exact_pins(f->st);
    (void)evict_all(f);
    assert_true(has_layer(f->st, &b.canonical) && !has_layer(f->st, &a.canonical));
    ASSERT_OK(store_tag_set(f->st, repo, "1", &a.digest, &err)); /* and back: its bytes are to come */
    expect_exact_pins(f->st);
    r = pin(f->st, repo, "1", NULL);
    assert_int_equal(r.missing, 2);
    put_blobs(f->st, 1);
    expect_exact_pins(f->st);
    assert_int_equal(pin(f->st, repo, "1", NULL).missing, 0);
    (void)evict_all(f);
    assert_true(has_original(f->st, &a.layer) && !has_layer(f->st, &b.canonical));
    ASSERT_OK(store_tag_drop(f->st, repo, "1", &err)); /* the upstream has deleted it */
    expect_exact_pins(f->st);
    (void)evict_all(f);
    assert_true(has_original(f->st, &a.layer));
    ASSERT_CODE(store_pin(f->st, repo, "1", NULL, &r, &err), ERR_NOTFOUND);
    assert_true(unpin(f->st, repo, "1", NULL).changed);
    ASSERT_CODE(store_unpin(f->st, repo, "1", NULL, &r, &err), ERR_NOTFOUND);
}

/* An index in an index, pinned before anything below it was seen. */
static void test_late_children(void **state)
{
    struct fixture *f = *state;
    int64_t repo = repo_of(f->st, "a");
    struct image im = image_of(1);
    struct store_ref inner = {.role = REF_CHILD, .digest = im.digest, .size_bytes = 7};
    struct store_ref outer = {.role = REF_CHILD, .digest = named("inner"), .size_bytes = 7};
    struct store_pin_result r;

    (void)put_refs(f->st, repo, "1", "outer", &outer, 1);
    r = pin(f->st, repo, "1", NULL);
    assert_true(r.blobs == 0 && r.missing == 0 && r.unknown == 1);
    sql_change(f->st, "INSERT INTO canonical (digest, size) SELECT digest, 5 FROM pinned");
    expect_exact_pins(f->st);
    sql_change(f->st, "DELETE FROM canonical");
    put_manifest(f->st, repo, NULL, 1);
    put_blobs(f->st, 1);
    expect_exact_pins(f->st);
    assert_int_equal(sql_number(f->st, "SELECT max(pinned) FROM blob"), 0);
    (void)put_refs(f->st, repo, NULL, "inner", &inner, 1);
    expect_exact_pins(f->st);
    assert_int_equal(sql_number(f->st, "SELECT min(pinned) FROM blob"), 2);
    r = pin(f->st, repo, "1", NULL);
    assert_true(r.blobs == 2 && r.missing == 0 && r.unknown == 0);
    put_layer(f->st, 1);
    expect_exact_pins(f->st);
    assert_int_equal(sql_number(f->st, "SELECT pinned FROM canonical"), 1);
    set_views(f->st, 1, VIEWS_READY);
    expect_exact_pins(f->st);
    assert_int_equal(sql_number(f->st, "SELECT max(pinned) FROM blob"), 1);
    assert_int_equal(sql_number(f->st, "SELECT pinned FROM canonical"), 1);
    (void)unpin(f->st, repo, "1", NULL);
    assert_int_equal(sql_number(f->st, "SELECT (SELECT max(pinned) FROM blob) + (SELECT pinned FROM canonical)"), 0);
}

/* A plain tar, and a zstd form that somebody pushed, are canonical layers under their own names. */
static void test_other_names_of_a_layer(void **state)
{
    struct fixture *f = *state;
    int64_t repo = repo_of(f->st, "a");
    struct store_ref ref = {.role = REF_LAYER, .size_bytes = LAYER_BYTES};
    struct err err = ERR_INIT;
    struct store_blob blob;
    struct image im = image_of(1);

    put_layer(f->st, 1);
    ASSERT_OK(store_blob_lookup(f->st, &im.canonical, &blob, &err));
    ref.digest = blob.zstd;
    (void)put_refs(f->st, repo, "zstd", "zstd", &ref, 1);
    ref.digest = im.canonical;
    (void)put_refs(f->st, repo, "plain", "plain", &ref, 1);
    assert_int_equal(pin(f->st, repo, "zstd", NULL).missing, 0);
    ASSERT_CODE(store_evict(f->st, &im.canonical, &err), ERR_BUSY);
    assert_int_equal(pin(f->st, repo, "plain", NULL).missing, 0);
    (void)unpin(f->st, repo, "zstd", NULL);
    ASSERT_CODE(store_evict(f->st, &im.canonical, &err), ERR_BUSY);
    (void)unpin(f->st, repo, "plain", NULL);
    ASSERT_OK(store_evict(f->st, &im.canonical, &err));
    (void)pin(f->st, repo, "plain", NULL);
    put_layer(f->st, 1);                                                              /* what comes later */
    sql_change(f->st, "INSERT INTO canonical (digest, size, zdigest, zsize, present)" /* and by itself, in two steps */
                      " SELECT randomblob(32), 1, NULL, 7, 0 FROM totals");
    sql_change(f->st, "UPDATE canonical SET zdigest = (SELECT digest FROM pin), present = 1 WHERE zdigest IS NULL");
    expect_exact_pins(f->st);
    assert_int_equal(sql_number(f->st, "SELECT sum(pinned) FROM canonical"), 2);
    expect_exact_pins(f->st);
    ASSERT_CODE(store_evict(f->st, &im.canonical, &err), ERR_BUSY);
}

static void test_digests(void **state)
{
    struct fixture *f = *state;
    int64_t a = repo_of(f->st, "a"), b = repo_of(f->st, "b");
    struct image im = put_image(f->st, a, NULL, 1);
    struct digest derived;
    struct store_pin_result r;
    struct err err = ERR_INIT;
    struct digest nobody = named("nobody");
    bool yes = false;

    ASSERT_CODE(store_pin(f->st, b, NULL, &im.digest, &r, &err), ERR_NOTFOUND);
    ASSERT_CODE(store_pin(f->st, 0, NULL, &nobody, &r, &err), ERR_NOTFOUND);
    ASSERT_CODE(store_unpin(f->st, 0, NULL, &nobody, &r, &err), ERR_NOTFOUND);
    ASSERT_CODE(store_pin(f->st, a, "no", NULL, &r, &err), ERR_NOTFOUND);
    ASSERT_OK(store_view_put(f->st, &im.digest, 1, MT, "derived", 7, &derived, &err));
    r = pin(f->st, 0, NULL, &derived); /* stands for the upstream's */
    assert_true(r.changed && digest_equal(&r.digest, &im.digest));
    assert_false(pin(f->st, a, NULL, &im.digest).changed);
    ASSERT_OK(store_is_pinned(f->st, &derived, &yes, &err));
    assert_true(yes);
    put_manifest(f->st, b, NULL, 1);
    assert_true(pin(f->st, b, NULL, &im.digest).changed);
    assert_int_equal(sql_number(f->st, "SELECT pins FROM totals"), 2);
    assert_true(unpin(f->st, a, NULL, &derived).changed);
    assert_int_equal(sql_number(f->st, "SELECT pins FROM totals"), 1);
    (void)pin(f->st, a, NULL, &im.digest);
    assert_true(unpin(f->st, 0, NULL, &im.digest).changed); /* wherever */
    assert_int_equal(sql_number(f->st, "SELECT pins FROM totals"), 0);
    ASSERT_OK(store_is_pinned(f->st, &derived, &yes, &err));
    assert_false(yes);
}

/* ---- lists and records -------------------------------------------------------------------------------------------------------- */

static int list_pin(void *arg, const struct store_pin_info *p, struct err *err)
{
    char *text = arg;
    size_t len = strlen(text);

    (void)err;
    assert_true(p->created > 1600000000);
    (void)snprintf(text + len, 4000 - len, "%s/%s %.12s %d %d/%d; ", p->upstream, p->name, p->reference, p->by_digest,
                   (int)p->now.missing, (int)p->now.blobs);
    return 0;
}

static void test_lists(void **state)
{
    struct fixture *f = *state;
    int64_t b = repo_of(f->st, "b"), a = repo_of(f->st, "a");
    char text[4000] = "";
    struct err err = ERR_INIT;
    struct image im = image_of(1);
    int count;

    put_manifest(f->st, b, "9", 1);
    (void)put_image(f->st, a, "2", 2);
    put_manifest(f->st, a, "1", 1);
    (void)pin(f->st, b, "9", NULL);
    (void)pin(f->st, a, "2", NULL);
    (void)pin(f->st, a, "1", NULL);
    (void)pin(f->st, a, NULL, &im.digest);
    ASSERT_OK(store_each_pin(f->st, list_pin, text, &err));
    (void)snprintf(text + 2000, 2000,
                   "docker.io/a 1 0 2/2; docker.io/a 2 0 0/2; docker.io/a %.12s 1 2/2; docker.io/b 9 0 2/2; ",
                   digest_text(&im.digest).s);
    assert_string_equal(text, text + 2000);
    for (int i = 0; i < 70; i++) { /* more than a page */
        char tag[16];

        (void)snprintf(tag, sizeof(tag), "t%d", i);
        put_manifest(f->st, b, tag, 1);
        (void)pin(f->st, b, tag, NULL);
    }
    text[0] = '\0';
    ASSERT_OK(store_each_pin(f->st, list_pin, text, &err));
    count = 0;
    for (const char *at = text; (at = strchr(at, ';')) != NULL; at++)
        count++;
    assert_int_equal(count, 74);
}

struct found {
    char text[1000];
};

static int find_record(void *arg, const struct pack_header *r, uint64_t off, const uint8_t *payload, struct err *err)
{
    struct found *found = arg;
    struct record_tag t;
    size_t len = strlen(found->text);

    (void)off;
    if (r->type != PACK_PIN)
        return 0;
    TRY(record_get_tag(payload, r->len, &t, err));
    (void)snprintf(found->text + len, sizeof(found->text) - len, "%s%.*s/%.*s %.*s %.8s; ", t.dropped ? "-" : "+",
                   (int)t.upstream.len, t.upstream.s, (int)t.name.len, t.name.s, (int)t.tag.len, t.tag.s,
                   digest_hex(&r->key).s);
    return 0;
}

/* What a lost catalog is made again from. */
static void test_records(void **state)
{
    struct fixture *f = *state;
    int64_t repo = repo_of(f->st, "a");
    struct found found = {.text = ""};
    struct image im = image_of(1);
    struct err err = ERR_INIT;
    char want[400];

    put_manifest(f->st, repo, "1", 1);
    (void)pin(f->st, repo, "1", NULL);
    (void)pin(f->st, repo, "1", NULL);
    (void)pin(f->st, repo, NULL, &im.digest);
    (void)unpin(f->st, repo, NULL, &im.digest);
    (void)take_away(f->st, repo, "1", NULL);
    ASSERT_OK(pack_scan(f->st->packs, 1, find_record, &found, &err));
    const struct digest_text hex = digest_hex(&im.digest);
    (void)snprintf(
        want, sizeof(want),
        "+docker.io/a 1 %.8s; +docker.io/a sha256:%s %.8s; -docker.io/a sha256:%s %.8s; -docker.io/a 1 %.8s; ", hex.s,
        hex.s, hex.s, hex.s, hex.s, hex.s);
    assert_string_equal(found.text, want);
}

/* ---- everything in any order ------------------------------------------------------------------------------------------------- */

#define IMAGES 9

static void put_index(struct store *st, int64_t repo, const char *tag, int n)
{
    struct store_ref refs[3];
    char text[32], inner[32];
    size_t count = 0;

    (void)snprintf(text, sizeof(text), "index %d", n);
    (void)snprintf(inner, sizeof(inner), "index %d", n - 1);
    for (int i = n; i < n + 2; i++)
        refs[count++] = (struct store_ref){.role = REF_CHILD, .digest = image_of(i % IMAGES).digest, .size_bytes = 5};
    if (n > 0)
        refs[count++] = (struct store_ref){.role = REF_CHILD, .digest = named(inner), .size_bytes = 5};
    (void)put_refs(st, repo, tag, text, refs, count);
}

static void do_something(struct store *st, const int64_t repos[2], uint64_t *rnd)
{
    static const char *const tags[] = {"1", "2", NULL};
    int64_t repo = repos[next_random(rnd) % 2];
    const char *tag = tags[next_random(rnd) % 3];
    int n = (int)(next_random(rnd) % IMAGES);
    struct image im = image_of(n);
    struct store_remove_result removed;
    struct store_pin_result r;
    struct err err = ERR_INIT;

    switch (next_random(rnd) % 13) {
    case 0:
        put_manifest(st, repo, tag, n);
        break;
    case 1:
        put_index(st, repo, tag, n);
        break;
    case 2:
        put_blobs(st, n);
        break;
    case 3:
        (void)put_source(st, n);
        put_layer(st, n);
        break;
    case 4:
    case 5:
        (void)!store_pin(st, repo, tag, &im.digest, &r, &err);
        break;
    case 6:
        (void)!store_unpin(st, repo, tag, &im.digest, &r, &err);
        break;
    case 7:
        (void)!store_evict(st, next_random(rnd) % 2 ? &im.layer : &im.canonical, &err);
        break;
    case 8:
        (void)!store_manifest_set_views(st, &im.digest, (enum store_views)(next_random(rnd) % 3), "why", &err);
        break;
    case 9:
        (void)!store_remove(st, repo, tag, &im.digest, &removed, &err);
        break;
    case 10:
        ASSERT_OK(store_tag_drop(st, repo, "1", &err));
        break;
    case 11:
        ASSERT_OK(store_repo_add_blob(st, repo, &im.config, 9, &err));
        break;
    default:
        (void)!store_tag_set(st, repo, "2", &im.digest, &err);
    }
    if (err.code == ERR_BUG || err.code == ERR_CORRUPT || err.code == ERR_IO)
        fail_msg("%s", err.msg);
}

static void test_at_random(void **state)
{
    struct fixture *f = *state;
    int64_t repos[2] = {repo_of(f->st, "a"), repo_of(f->st, "b")};
    uint64_t rnd = 20;
    int64_t most = 0;

    for (int i = 0; i < 1500; i++) {
        do_something(f->st, repos, &rnd);
        expect_exact_pins(f->st);
        if (i % 50 == 0) {
            int64_t now = sql_number(f->st, "SELECT count(*) FROM pinned");

            most = now > most ? now : most;
        }
    }
    expect_sound_catalog(f->st);
    assert_true(most > 10);
}

/* ---- plans --------------------------------------------------------------------------------------------------------------------- */

struct plans {
    unsigned statements;
    char scan[1000];
};

/* Opening reads all of two small tables; what walks from a digest reads its own queue, and pin_edge is what a search in its
 * two halves has found. */
static bool may_scan(const char *sql, const char *detail)
{
    static const char *const fine[] = {"CONSTANT ROW", "reach", "above", "sub", "totals", "pin_edge"};

    for (size_t i = 0; i < ARRAY_LEN(fine); i++)
        if (strcmp(detail + strlen("SCAN "), fine[i]) == 0)
            return true;
    return strstr(sql, "FROM pack ORDER BY") != NULL || strstr(sql, "sqlite_schema") != NULL;
}

/* A statement with all that its triggers do. */
static void check_plan(void *arg, struct sql_db *db, const char *sql)
{
    struct plans *p = arg;
    sqlite3_stmt *stmt = NULL;
    char *explain = sqlite3_mprintf("EXPLAIN QUERY PLAN %s", sql);

    p->statements++;
    (void)sqlite3_db_config(sql_handle(db), SQLITE_DBCONFIG_TRIGGER_EQP, 1, NULL);
    assert_int_equal(sqlite3_prepare_v2(sql_handle(db), explain, -1, &stmt, NULL), SQLITE_OK);
    while (sqlite3_step(stmt) == SQLITE_ROW) {
        const char *detail = (const char *)sqlite3_column_text(stmt, 3);

        if (strncmp(detail, "SCAN ", 5) == 0 && !may_scan(sql, detail))
            (void)snprintf(p->scan, sizeof(p->scan), "%s\n  in %.400s", detail, sql);
    }
    (void)sqlite3_finalize(stmt);
    sqlite3_free(explain);
}

static void test_no_trigger_scans_a_table(void **state)
{
    struct fixture *f = *state;
    int64_t repo = repo_of(f->st, "a");
    struct image im = put_image(f->st, repo, "1", 1);
    struct plans p = {.statements = 0};
    char text[4000] = "";
    struct err err = ERR_INIT;
    struct store_pin_result r;
    bool yes;

    reopen_store(f); /* the statements of the set-up are others' */
    ASSERT_OK(store_pin(f->st, repo, "1", NULL, &r, &err));
    ASSERT_OK(store_pin(f->st, repo, NULL, &im.digest, &r, &err));
    ASSERT_OK(store_each_pin(f->st, list_pin, text, &err));
    ASSERT_OK(store_is_pinned(f->st, &im.digest, &yes, &err));
    ASSERT_CODE(store_evict(f->st, &im.canonical, &err), ERR_BUSY);
    ASSERT_CODE(store_evict(f->st, &im.layer, &err), ERR_BUSY);
    f->st->opt.quota_bytes = 100;
    for (bool more = true; more;)
        ASSERT_OK(store_make_room(f->st, &more, &err));
    f->st->opt.quota_bytes = UINT64_C(1) << 30;
    ASSERT_OK(store_unpin(f->st, 0, NULL, &im.digest, &r, &err));
    put_manifest(f->st, repo, "2", 2);
    put_blobs(f->st, 2);
    put_layer(f->st, 2);
    set_views(f->st, 2, VIEWS_READY);
    (void)!store_remove(f->st, repo, "1", NULL, &(struct store_remove_result){.busy = 0}, &err);
    (void)!store_remove(f->st, repo, NULL, &im.digest, &(struct store_remove_result){.busy = 0}, &err);
    catalog_each_statement(f->st, check_plan, &p);
    if (p.scan[0] != '\0')
        fail_msg("%s", p.scan);
    assert_true(p.statements > 50);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_a_pinned_tag),
        T(test_in_which_form),
        T(test_a_tag_moves),
        T(test_late_children),
        T(test_other_names_of_a_layer),
        T(test_digests),
        T(test_lists),
        T(test_records),
        T(test_at_random),
        T(test_no_trigger_scans_a_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
