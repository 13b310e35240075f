/* SPDX-License-Identifier: Apache-2.0
 * tests/fault/fault.h - libfault.so: system calls that fail, and processes that die, when a test says so (LD_PRELOAD).
 *
 * Environment:
 *   RECASK_FAULT_DIR=DIR             calls on files count when the file is below DIR (but for SQLite's -shm, which is
 *                                    memory); without it, none do
 *   RECASK_FAULT_KILL=N              SIGKILL before the N-th durable step: a write, fsync, fdatasync, rename, unlink,
 *                                    ftruncate, fallocate, mkdir, link, or the making of a file
 *   RECASK_FAULT_LOSE=1              that kill is a power cut: what was not synced is lost (undo.c)
 *   RECASK_FAULT_SEED=N              which of it: a disk may keep any part. 0: all of it is lost
 *   RECASK_FAULT_FAIL=N:ERRNO[:KINDS][+]  the N-th call of these kinds fails, with `+` all later ones too. ERRNO: a name
 *                                    or a number, or SHORT: half of what was to be read or written is. KINDS: names of
 *                                    the table in fault.c with commas between; none: all that are durable steps
 *   RECASK_FAULT_PATH=PART           of the files, only those with PART in their path fail
 *   RECASK_FAULT_CONTROL=FILE        struct fault_control in a file: to look and to change things while it runs
 *   RECASK_FAULT_COUNT=FILE          the number of steps is written here at exit
 *   RECASK_FAULT_TRACE=FILE          one line per step: number, kind, path
 *
 * Threads: any. Calls that libc makes inside itself (fopen) are not seen, those on its malloc() are.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define FAULT_API __attribute__((visibility("default")))
#define FAULT_PATH_BYTES 1024

enum fault_kind {
    FAULT_OPEN = 1 << 0, /* of a file that is there, or not to be made */
    FAULT_READ = 1 << 1,
    FAULT_WRITE = 1 << 2,
    FAULT_SYNC = 1 << 3,
    FAULT_RENAME = 1 << 4,
    FAULT_UNLINK = 1 << 5,
    FAULT_TRUNCATE = 1 << 6,
    FAULT_ALLOCATE = 1 << 7, /* fallocate(), holes too */
    FAULT_CREATE = 1 << 8,
    FAULT_MKDIR = 1 << 9,
    FAULT_LINK = 1 << 10,
    FAULT_MALLOC = 1 << 11, /* anybody's */
    FAULT_OWN = 1 << 12,    /* malloc() and its like, called by the program itself and not by a library */
    FAULT_FD = 1 << 13,     /* whatever gives a descriptor, of any file or socket */
};

#define FAULT_STEPS                                                                                                    \
    (FAULT_WRITE | FAULT_SYNC | FAULT_RENAME | FAULT_UNLINK | FAULT_TRUNCATE | FAULT_ALLOCATE | FAULT_CREATE |         \
     FAULT_MKDIR | FAULT_LINK)
#define FAULT_SHORT (-1) /* in place of an errno */

/* tests/wire/fault.py knows the places. */
struct fault_control {
    atomic_int_fast64_t kill_in;    /* dies at this step from now, 1: the next; 0: never */
    atomic_int_fast64_t steps;      /* so far */
    atomic_int_fast64_t fail_in;    /* the first call to fail from now, 1: the next; 0: none */
    atomic_int_fast64_t fail_count; /* so many fail then; INT64_MAX: all */
    atomic_int_fast64_t fail_errno;
    atomic_int_fast64_t fail_kinds;
    atomic_int_fast64_t calls;   /* that could have failed: right kind and path */
    atomic_int_fast64_t failed;  /* that did */
    atomic_int_fast64_t clock_s; /* added to the wall clock */
    char path[64];               /* RECASK_FAULT_PATH */
};

extern struct fault_control *fault_ctl; /* NULL: the library is not set up (yet), everything passes */

/* False when the file does not count. out: FAULT_PATH_BYTES. */
bool fault_path_of_fd(int fd, char *out);
bool fault_path_at(int dir_fd, const char *name, char *out);

/* Before a call that counts. 0: go on; else what it fails with, an errno or FAULT_SHORT. For steps, fault_end() must follow
 * in any case: between the two nobody else does one, when there may be a power cut. */
int fault_begin(enum fault_kind kind, const char *path);
void fault_end(void);
/* For what is no step and has no path: memory and descriptors. */
int fault_check(enum fault_kind kind);

bool fault_loses(void); /* a power cut may come: undo.c is to be told */

/* ---- undo.c: what a power cut takes back. Between fault_begin() and fault_end(), before the call unless it says else ---- */

void undo_write(int fd, const char *path, uint64_t off, uint64_t len);
void undo_truncate(int fd, const char *path, uint64_t size);
void undo_synced(int fd, const char *path); /* after; a file or a directory */
void undo_created(const char *path);        /* after */
void undo_made_dir(const char *path);       /* after */
void undo_rename(const char *from, const char *to);
void undo_unlink(const char *path);
void undo_failed(void); /* the rename or unlink of just now did not come about */
/* Ends the process with all of its threads, and then takes back. */
void undo_and_die(uint64_t seed) __attribute__((noreturn));
void undo_setup(const char *dir);
