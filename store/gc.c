/* SPDX-License-Identifier: Apache-2.0
 * store/gc.c - see the header.
 */
#include "store/gc.h"

#include "store/catalog_internal.h"

struct store_gc {
    struct store *st;
    bool evict;
    struct store_gc_progress done;
};

int store_gc_new(struct store *st, bool evict, struct store_gc **out, struct err *err)
{
    struct store_gc *gc = calloc(1, sizeof(*gc));

    if (gc == NULL)
        return err_nomem(err, sizeof(*gc));
    gc->st = st;
    gc->evict = evict;
    *out = gc;
    return 0;
}

int store_gc_step(struct store_gc *gc, struct store_gc_progress *out, bool *out_more, struct err *err)
{
    *out_more = false;
    if (gc->evict)
        TRY(store_make_room(gc->st, out_more, err));
    *out = gc->done;
    return 0;
}

void store_gc_free(struct store_gc *gc)
{
    free(gc);
}

int store_gc_wanted(struct store *st, bool *out, struct err *err)
{
    (void)err;
    *out = st == NULL;
    return 0;
}
