/* SPDX-License-Identifier: Apache-2.0
 * store/pack_walk.c - goes over the records of a pack (FORMAT.md "Packs"), for what the catalog does not tell: which
 * metadata is in it, and all of it once the catalog is lost.
 *
 * Headers are read through a small window, so that a walk that does not want the frames does not read them. Holes are asked
 * for, not read: a punched pack is mostly holes.
 */
#include "store/pack_internal.h"
#include "transcode/codec.h"

#include <errno.h>
#include <unistd.h>

int pack_walk_open(struct packs *ps, int64_t pack, struct pack_walk *out, struct err *err)
{
    uint8_t h[PACK_FILE_HEADER_BYTES];
    size_t got;

    *out = (struct pack_walk){.packs = ps, .pack = pack, .next = PACK_FILE_HEADER_BYTES};
    TRY(packs_pread(ps, pack, 0, h, sizeof(h), &got, err));
    if (got != sizeof(h))
        return err_set(err, ERR_CORRUPT, "packs/%s: no header", pack_name(pack).s);
    return pack_file_decode(h, pack, &out->seed, err);
}

/* Where the data at or behind `off` begins, down to a multiple of 8; UINT64_MAX: there is none. */
static int next_data(const struct pack_walk *w, uint64_t off, uint64_t *out, struct err *err)
{
    struct pack *p = NULL;
    off_t found;
    int why;

    TRY(pack_pin(w->packs, w->pack, &p, err));
    found = lseek(p->fd, (off_t)off, SEEK_DATA);
    why = errno;
    pack_unpin(w->packs, p, false);
    if (found >= 0)
        *out = (uint64_t)found & ~UINT64_C(7);
    else
        *out = why == ENXIO ? UINT64_MAX : off; /* a file system that cannot tell has no holes */
    return 0;
}

/* The header at w->next, in the window; NULL in *out: there is no more. */
static int header_at(struct pack_walk *w, uint64_t end, const uint8_t **out, struct err *err)
{
    *out = NULL;
    if (w->next < w->window_off || w->next + PACK_RECORD_HEADER_BYTES > w->window_off + w->window_len) {
        uint64_t data;

        TRY(next_data(w, w->next, &data, err));
        if (data > w->next)
            w->next = data;
        if (w->next > end || end - w->next < PACK_RECORD_HEADER_BYTES)
            return 0;
        w->window_off = w->next;
        TRY(packs_pread(w->packs, w->pack, w->next, w->window, sizeof(w->window), &w->window_len, err));
        if (w->window_len < PACK_RECORD_HEADER_BYTES)
            return 0;
    }
    *out = w->window + (w->next - w->window_off);
    return 0;
}

int pack_walk_next(struct pack_walk *w, struct pack_header *out, struct err *err)
{
    const uint64_t end = pack_end(w->packs, w->pack);

    *out = (struct pack_header){.len = 0};
    while (w->next <= end && end - w->next >= PACK_RECORD_HEADER_BYTES) {
        const uint8_t *h;

        TRY(header_at(w, end, &h, err));
        if (h == NULL)
            return 0;
        w->at = w->next;
        if (!pack_record_decode(h, w->seed, w->at, out) || out->len > PACK_PAYLOAD_MAX_BYTES) {
            w->next += 8; /* a hole, or a record that was never finished: records begin at multiples of 8 */
            continue;
        }
        if (out->type != PACK_FRAME && out->meta.origin_pack == 0)
            out->meta = (struct pack_meta){.origin_pack = w->pack, .origin_off = w->at};
        w->next = pack_align(w->at + PACK_RECORD_HEADER_BYTES + out->len);
        return 1;
    }
    return 0;
}

void pack_walk_reject(struct pack_walk *w)
{
    w->next = w->at + 8;
}

int pack_walk_payload(struct pack_walk *w, const struct pack_header *r, struct buf *out, bool *out_good,
                      struct err *err)
{
    size_t got;

    buf_reset(out);
    TRY(buf_reserve(out, r->len, err));
    TRY(packs_pread(w->packs, w->pack, w->at + PACK_RECORD_HEADER_BYTES, out->data, r->len, &got, err));
    *out_good = got == r->len && sum64(out->data, r->len) == r->sum;
    out->len = *out_good ? r->len : 0;
    return 0;
}

static int scan(struct pack_walk *w, struct buf *payload, pack_scan_fn *fn, void *arg, struct err *err)
{
    struct pack_header r;
    int rc;

    while ((rc = pack_walk_next(w, &r, err)) == 1) {
        bool good;

        TRY(pack_walk_payload(w, &r, payload, &good, err));
        if (good)
            TRY(fn(arg, &r, w->at + PACK_RECORD_HEADER_BYTES, (const uint8_t *)payload->data, err));
        else
            pack_walk_reject(w);
    }
    return rc;
}

int pack_scan(struct packs *ps, int64_t pack, pack_scan_fn *fn, void *arg, struct err *err)
{
    CLEANUP(buf_release) struct buf payload = BUF_INIT(PACK_PAYLOAD_MAX_BYTES + 1);
    struct pack_walk w;

    TRY(pack_walk_open(ps, pack, &w, err));
    return scan(&w, &payload, fn, arg, err);
}
