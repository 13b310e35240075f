/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_scrub_util.h - scrubs and what they find, layers and damage, for the tests of the scrub. Include after
 * cmocka's headers.
 */
#pragma once

#include "store/files_internal.h"
#include "store/scrub.h"
#include "tests/unit/store_layer_util.h"
#include "transcode/codec.h"

#include <errno.h>
#include <inttypes.h>

#define LAYER_BYTES 900000u

/* ---- help ------------------------------------------------------------------------------------------------------------ */

struct found {
    size_t count;
    struct scrub_finding list[64];
    struct store_scrub_progress p;
    unsigned steps;
};

static inline void note(void *arg, const struct scrub_finding *f)
{
    struct found *found = arg;

    assert_true(found->count < 64);
    found->list[found->count++] = *f;
}

/* between: called before each step, may be NULL. */
static inline void scrub_with(struct store *st, struct found *out, void (*between)(void *arg), void *arg)
{
    struct store_scrub *s = NULL;
    struct err err = ERR_INIT;
    bool more = true;

    memset(out, 0, sizeof(*out));
    ASSERT_OK(store_scrub_new(st, &s, &err));
    while (more) {
        if (between != NULL)
            between(arg);
        ASSERT_OK(store_scrub_step(s, note, out, &out->p, &more, &err));
        out->steps++;
    }
    store_scrub_free(s);
    assert_int_equal(out->p.bad, out->count);
    assert_int_equal(out->p.bytes, out->p.total_bytes);
}

static inline void expect_clean(struct store *st)
{
    struct found f;

    scrub_with(st, &f, NULL, NULL);
    if (f.count > 0)
        fail_msg("found: %s", f.list[0].text);
}

/* Exactly one, of this kind. */
static inline struct scrub_finding expect_one(struct store *st, enum scrub_fault fault)
{
    struct found f;

    scrub_with(st, &f, NULL, NULL);
    for (size_t i = 1; i < f.count; i++)
        print_message("also: %s\n", f.list[i].text);
    if (f.count != 1 || f.list[0].fault != fault)
        fail_msg("want one %s, found %zu, %s: %s", scrub_fault_name(fault), f.count,
                 f.count > 0 ? scrub_fault_name(f.list[0].fault) : "-", f.count > 0 ? f.list[0].text : "");
    return f.list[0];
}

struct layer {
    struct digest source;
    uint8_t *data;
    struct layer_result r;
};

static inline struct layer add_layer(struct store *st, int id)
{
    struct layer l = {.data = malloc(LAYER_BYTES)};
    uint64_t state = (uint64_t)id;

    assert_non_null(l.data);
    for (size_t i = 0; i < LAYER_BYTES; i++)
        l.data[i] = (uint8_t)next_random(&state);
    l.source = put_source(st, id);
    l.r = write_layer(st, &l.source, l.data, LAYER_BYTES);
    return l;
}

static inline void release_layer(struct layer *l)
{
    free(l->data);
}

/* Two layers that have their first half in common. */
static inline void add_twins(struct store *st, struct layer *one, struct layer *two)
{
    uint64_t state = 77;

    *one = add_layer(st, 1);
    two->data = malloc(LAYER_BYTES);
    assert_non_null(two->data);
    memcpy(two->data, one->data, LAYER_BYTES);
    for (size_t i = LAYER_BYTES / 2; i < LAYER_BYTES; i++)
        two->data[i] = (uint8_t)next_random(&state);
    two->source = put_source(st, 2);
    two->r = write_layer(st, &two->source, two->data, LAYER_BYTES);
}

static inline void original_path(const struct fixture *f, const struct digest *d, char *out, size_t cap)
{
    (void)snprintf(out, cap, "%s/originals/%s/%s", f->dir, original_dir(d).s, digest_hex(d).s);
}

static inline void flip_byte(const char *path, off_t at)
{
    CLEANUP(fd_cleanup) int fd = open(path, O_RDWR | O_CLOEXEC);
    uint8_t byte;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
}
