/* SPDX-License-Identifier: Apache-2.0
 * store/tarscan.c - follows a tar stream from header to header.
 *
 * Formats: POSIX.1-2017 pax (which covers ustar), GNU tar's manual, "Basic Tar Format" and "Storing Sparse Files", and
 * what Go's archive/tar writes, since most layers come from it. Only what moves the next header matters here: the size
 * (octal, base-256, or a pax `size` record), which types have data, and the extension blocks of old GNU sparse headers.
 *
 * Sparse files: the header's size (or pax `size`) counts what is stored, the map of a pax 1.0 sparse file among it, in
 * all four variants; GNU.sparse.realsize and the header's realsize are sizes after expansion and must not be used. For
 * the cut the stored bytes are the file's data.
 */
#include "store/tarscan.h"

#include <string.h>

#define OFF_SIZE 124
#define LEN_SIZE 12
#define OFF_SUM 148
#define LEN_SUM 8
#define OFF_TYPE 156
#define OFF_SPARSE_MORE 482     /* old GNU sparse header: extension blocks follow */
#define OFF_SPARSE_EXT_MORE 504 /* extension block: another one follows */

void tarscan_init(struct tarscan *t)
{
    memset(t, 0, sizeof(*t));
    t->state = TARSCAN_FIRST;
}

/* ---- numbers --------------------------------------------------------------------------------------------------- */

/* Octal digits between optional spaces, ended by a space, a NUL or the field's end; an empty field is 0. */
static bool parse_octal(const uint8_t *p, size_t len, uint64_t *out)
{
    uint64_t v = 0;
    size_t i = 0;

    while (i < len && p[i] == ' ')
        i++;
    for (; i < len && p[i] != ' ' && p[i] != '\0'; i++) {
        if (p[i] < '0' || p[i] > '7')
            return false;
        v = v * 8 + (uint64_t)(p[i] - '0'); /* 12 digits are 36 bits */
    }
    *out = v;
    return true;
}

/* GNU's base-256: a set top bit, then a big-endian number. Negative sizes (0xff...) make no sense. */
static bool parse_base256(const uint8_t *p, size_t len, uint64_t *out)
{
    uint64_t v = p[0] & 0x7f;

    for (size_t i = 1; i < len; i++) {
        if (v > (uint64_t)INT64_MAX >> 8)
            return false;
        v = v << 8 | p[i];
    }
    *out = v;
    return true;
}

static bool parse_size(const uint8_t *block, uint64_t *out)
{
    const uint8_t *p = block + OFF_SIZE;

    return p[0] & 0x80 ? parse_base256(p, LEN_SIZE, out) : parse_octal(p, LEN_SIZE, out);
}

static bool block_is_zero(const uint8_t *block)
{
    uint8_t any = 0;

    for (size_t i = 0; i < TARSCAN_BLOCK_BYTES; i++)
        any |= block[i];
    return any == 0;
}

/* The sum of all bytes with the sum's own field as spaces; some old tars summed signed chars. */
static bool checksum_ok(const uint8_t *block)
{
    uint64_t want;
    int64_t sum = 0, signed_sum = 0;

    for (size_t i = 0; i < TARSCAN_BLOCK_BYTES; i++) {
        uint8_t b = i >= OFF_SUM && i < OFF_SUM + LEN_SUM ? (uint8_t)' ' : block[i];

        sum += b;
        signed_sum += (int8_t)b;
    }
    if (!parse_octal(block + OFF_SUM, LEN_SUM, &want))
        return false;
    return (int64_t)want == sum || (int64_t)want == signed_sum;
}

/* ---- pax records ----------------------------------------------------------------------------------------------- */

static bool pax_value_end(struct tarscan *t)
{
    struct tarscan_pax *p = &t->pax;
    struct tarscan_size *size = p->global ? &t->global : &t->local;

    if (p->key_len != sizeof(p->key) || memcmp(p->key, "size", sizeof(p->key)) != 0)
        return true;
    /* An empty value takes an earlier one back (POSIX.1-2017 pax, "pax Extended Header"). */
    size->set = p->has_value;
    size->bytes = p->value;
    return true;
}

static bool pax_length_byte(struct tarscan_pax *p, uint8_t b)
{
    if (b == ' ') {
        p->part = 1;
        return p->len_bytes > p->pos; /* else there is no room for a key, and an empty length is 0 */
    }
    if (b < '0' || b > '9' || p->len_bytes > UINT32_MAX)
        return false;
    p->len_bytes = p->len_bytes * 10 + (uint64_t)(b - '0');
    return true;
}

static void pax_key_byte(struct tarscan_pax *p, uint8_t b)
{
    if (b == '=') {
        p->part = 2;
    } else {
        if (p->key_len < sizeof(p->key))
            p->key[p->key_len] = (char)b;
        if (p->key_len <= sizeof(p->key))
            p->key_len++;
    }
}

static bool pax_value_byte(struct tarscan_pax *p, uint8_t b)
{
    if (p->key_len != sizeof(p->key) || memcmp(p->key, "size", sizeof(p->key)) != 0)
        return true;
    if (b < '0' || b > '9' || p->value > (uint64_t)INT64_MAX / 10 - 1)
        return false;
    p->value = p->value * 10 + (uint64_t)(b - '0');
    p->has_value = true;
    return true;
}

static bool pax_byte(struct tarscan *t, uint8_t b)
{
    struct tarscan_pax *p = &t->pax;

    p->pos++;
    if (p->part == 0)
        return pax_length_byte(p, b);
    if (p->pos == p->len_bytes) {
        bool ok = p->part == 2 && b == '\n' && pax_value_end(t);
        bool global = p->global;

        memset(p, 0, sizeof(*p));
        p->global = global;
        return ok;
    }
    if (p->part == 1)
        pax_key_byte(p, b);
    else
        return pax_value_byte(p, b);
    return true;
}

static bool pax_bytes(struct tarscan *t, const uint8_t *data, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!pax_byte(t, data[i]))
            return false;
    return true;
}

/* ---- blocks ---------------------------------------------------------------------------------------------------- */

/* Starts on size bytes of payload and its padding. */
static void begin_payload(struct tarscan *t, enum tarscan_state state, uint64_t size)
{
    t->left_bytes = size;
    t->pad_bytes = -size % TARSCAN_BLOCK_BYTES;
    t->state = size > 0 ? state : TARSCAN_HEADER;
}

/* The payload of a file (or of any other member) whose headers are complete. True: a cut here. */
static bool begin_member(struct tarscan *t, bool is_file)
{
    bool cut = is_file && t->left_bytes >= TARSCAN_FILE_BYTES;

    t->local.set = false;
    begin_payload(t, cut ? TARSCAN_FILE : TARSCAN_SKIP, t->left_bytes);
    return cut;
}

static bool on_header(struct tarscan *t)
{
    const uint8_t *block = t->block;
    uint8_t type = block[OFF_TYPE];
    uint64_t size;

    if (!parse_size(block, &size)) {
        t->state = TARSCAN_LOST;
        return false;
    }
    switch (type) {
    case 'x':
    case 'X': /* Solaris' name for it */
    case 'g':
        memset(&t->pax, 0, sizeof(t->pax));
        t->pax.global = type == 'g';
        begin_payload(t, TARSCAN_PAX, size);
        return false;
    case 'L': /* GNU's long name and long link: the member they belong to follows, and so does a pax size */
    case 'K':
        begin_payload(t, TARSCAN_SKIP, size);
        return false;
    }
    if (t->local.set)
        size = t->local.bytes;
    else if (t->global.set)
        size = t->global.bytes;
    /* Links, devices, directories and pipes have no data, whatever their size says (old tars give a hard link the size
     * of its file). */
    if (type >= '1' && type <= '6')
        size = 0;
    t->left_bytes = size;
    if (type == 'S' && block[OFF_SPARSE_MORE] != 0) {
        t->state = TARSCAN_SPARSE;
        return false;
    }
    return begin_member(t, type == '0' || type == '\0' || type == '7' || type == 'S');
}

/* A full block in a state that wants one. True: a cut after it. */
static bool on_block(struct tarscan *t)
{
    t->block_len = 0;
    if (t->state == TARSCAN_SPARSE)
        return t->block[OFF_SPARSE_EXT_MORE] == 0 && begin_member(t, true);
    /* Zeros end a tar, but `tar -A` and cat make tars that go on, and they cost nothing to follow. */
    if (t->state == TARSCAN_HEADER && block_is_zero(t->block))
        return false;
    if (checksum_ok(t->block))
        return on_header(t);
    t->state = TARSCAN_LOST;
    return false;
}

static size_t take_block(struct tarscan *t, const uint8_t *data, size_t len, bool *out_cut)
{
    size_t n = TARSCAN_BLOCK_BYTES - t->block_len;

    if (n > len)
        n = len;
    memcpy(t->block + t->block_len, data, n);
    t->block_len += (uint32_t)n;
    if (t->block_len == TARSCAN_BLOCK_BYTES)
        *out_cut = on_block(t);
    return n;
}

static size_t take_payload(struct tarscan *t, const uint8_t *data, size_t len, bool *out_cut)
{
    size_t n = t->left_bytes < len ? (size_t)t->left_bytes : len;

    if (t->state == TARSCAN_PAX && !pax_bytes(t, data, n)) {
        t->state = TARSCAN_LOST;
        return n;
    }
    t->left_bytes -= n;
    if (t->left_bytes > 0)
        return n;
    *out_cut = t->state == TARSCAN_FILE;
    t->state = t->pad_bytes > 0 ? TARSCAN_SKIP : TARSCAN_HEADER;
    t->left_bytes = t->pad_bytes;
    t->pad_bytes = 0;
    return n;
}

size_t tarscan_scan(struct tarscan *t, const uint8_t *data, size_t len, bool *out_cut)
{
    size_t pos = 0;

    *out_cut = false;
    while (pos < len && !*out_cut) {
        switch (t->state) {
        case TARSCAN_FIRST:
        case TARSCAN_HEADER:
        case TARSCAN_SPARSE:
            pos += take_block(t, data + pos, len - pos, out_cut);
            break;
        case TARSCAN_PAX:
        case TARSCAN_FILE:
        case TARSCAN_SKIP:
            pos += take_payload(t, data + pos, len - pos, out_cut);
            break;
        case TARSCAN_LOST:
            return len;
        }
    }
    return pos;
}
