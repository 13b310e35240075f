/* SPDX-License-Identifier: Apache-2.0
 * store/files_internal.h - the files of originals and of the spool: names, removal, bytes on disk.
 */
#pragma once

#include "base/digest.h"

#include <sys/types.h>

struct store;

/* "ab": the directory of an original below originals/; its file there is digest_hex(). */
struct original_dir {
    char s[3];
};

struct original_dir original_dir(const struct digest *d);

/* Opens originals/ab; make: with a durable entry when it is missing, else ERR_NOTFOUND. */
enum original_dir_mode { ORIGINAL_DIR_MUST_EXIST = 0, ORIGINAL_DIR_MAKE };
MUST_CHECK int original_dir_open(struct store *st, const struct digest *d, enum original_dir_mode mode, int *out_fd,
                                 struct err *err);

/* All under digest_lock(); they keep original_disk_bytes right. A missing file is fine when removing. */
MUST_CHECK int original_adopt(struct store *st, const struct digest *d, const char *spool_name, struct err *err);
void original_remove(struct store *st, const struct digest *d);

uint64_t catalog_disk_bytes(const struct store *st);
uint64_t dir_disk_bytes(int dir_fd); /* of a flat directory's files; best effort */
