/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/store_tar.h - makes tar streams in memory, in the formats that layers come in, and bytes to fill them
 * with.
 */
#pragma once

#include "base/compiler.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct tar {
    uint8_t *data;
    size_t len, cap;
};

static inline void tar_release(struct tar *t)
{
    free(t->data);
    memset(t, 0, sizeof(*t));
}

static inline uint8_t *tar_room(struct tar *t, size_t len)
{
    if (t->data == NULL || t->len + len > t->cap) {
        t->cap = 2 * (t->len + len) + 4096;
        t->data = realloc(t->data, t->cap);
        REQUIRE(t->data != NULL);
    }
    memset(t->data + t->len, 0, len);
    t->len += len;
    return t->data + t->len - len;
}

static inline void tar_add(struct tar *t, const void *data, size_t len)
{
    if (len > 0)
        memcpy(tar_room(t, len), data, len);
}

static inline void tar_pad(struct tar *t)
{
    (void)tar_room(t, -t->len % 512);
}

/* xorshift64*: the same bytes on every run. */
static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

/* Bytes of about half their size to zstd: numbers as text, so that frames of both kinds of work occur. */
static inline void fill_text(uint8_t *out, size_t len, uint64_t seed)
{
    uint64_t state = seed * 2 + 1;

    for (size_t pos = 0; pos < len;) {
        char line[40];
        int n = snprintf(line, sizeof(line), "%016llx\n", (unsigned long long)next_random(&state));

        for (int i = 0; i < n && pos < len; i++)
            out[pos++] = (uint8_t)line[i];
    }
}

static inline void fill_random(uint8_t *out, size_t len, uint64_t seed)
{
    uint64_t state = seed * 2 + 1;

    for (size_t pos = 0; pos < len; pos++)
        out[pos] = (uint8_t)(next_random(&state) >> 56);
}

static inline void tar_sum(uint8_t *block)
{
    unsigned sum = 0;

    memset(block + 148, ' ', 8);
    for (size_t i = 0; i < 512; i++)
        sum += block[i];
    (void)snprintf((char *)block + 148, 8, "%06o", sum);
}

enum tar_number { TAR_OCTAL, TAR_BASE256 };

/* One header; returns its offset in t. */
static inline size_t tar_header_as(struct tar *t, const char *name, char type, uint64_t size, enum tar_number number)
{
    size_t at = t->len;
    uint8_t *b = tar_room(t, 512);

    (void)snprintf((char *)b, 100, "%s", name);
    (void)snprintf((char *)b + 100, 8, "%07o", 0644);
    (void)snprintf((char *)b + 108, 8, "%07o", 0);
    (void)snprintf((char *)b + 116, 8, "%07o", 0);
    if (number == TAR_OCTAL) {
        (void)snprintf((char *)b + 124, 12, "%011llo", (unsigned long long)size);
    } else {
        b[124] = 0x80;
        for (int i = 0; i < 8; i++)
            b[128 + i] = (uint8_t)(size >> 8 * (7 - i));
    }
    (void)snprintf((char *)b + 136, 12, "%011o", 1234567);
    b[156] = (uint8_t)type;
    memcpy(b + 257, "ustar\00000", 8);
    tar_sum(b);
    return at;
}

static inline size_t tar_header(struct tar *t, const char *name, char type, uint64_t size)
{
    return tar_header_as(t, name, type, size, TAR_OCTAL);
}

/* A file of text bytes; returns the offset of its first data byte. */
static inline size_t tar_file(struct tar *t, const char *name, size_t size, uint64_t seed)
{
    (void)tar_header(t, name, '0', size);
    size_t at = t->len;

    fill_text(tar_room(t, size), size, seed);
    tar_pad(t);
    return at;
}

/* An 'x' or 'g' header with one record KEY=VALUE. */
static inline void tar_pax(struct tar *t, char type, const char *key, const char *value)
{
    char record[512];
    size_t len = strlen(key) + strlen(value) + 3; /* ' ' '=' '\n' */
    size_t digits = 1;

    while (snprintf(record, sizeof(record), "%zu", len + digits) != (int)digits)
        digits++;
    int n = snprintf(record, sizeof(record), "%zu %s=%s\n", len + digits, key, value);

    (void)tar_header(t, "PaxHeaders/x", type, (uint64_t)n);
    tar_add(t, record, (size_t)n);
    tar_pad(t);
}

static inline void tar_end(struct tar *t)
{
    (void)tar_room(t, 1024);
}
