/* SPDX-License-Identifier: Apache-2.0
 * tests/fault/undo.c - what a power cut takes back.
 *
 * Of each file with unsynced changes this keeps the size that is durable and, by pages, what was there before the first
 * change since the last sync. Of directories it keeps the changes since their last sync, in order; what was unlinked or
 * replaced has another link beside the directory meanwhile. At the end each page and each change of a directory is taken
 * back or not, by the seed: a disk may keep any part of what was not synced. Changes of one name are taken back in order.
 *
 * Taking back is the work of a child, which stops the process first, so that no thread sees it happen, and kills it last,
 * without a descriptor left open: whoever waited for the process finds its locks gone and the disk as after the cut.
 * All but the child's part runs between fault_begin() and fault_end(), by one thread at a time.
 */
#include "tests/fault/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE_BYTES 4096
#define SLOTS 1024

struct page {
    struct page *next;
    uint64_t number;
    uint8_t *old; /* NULL: behind the durable end */
};

struct file {
    struct file *next;
    dev_t dev;
    ino_t ino;
    uint64_t durable_bytes;
    struct page *pages[SLOTS];
    char path[FAULT_PATH_BYTES]; /* where it is now; "": nowhere */
};

enum change_kind { CREATED, MADE_DIR, RENAMED, UNLINKED };

struct change {
    struct change *before;
    enum change_kind kind;
    bool kept;
    char name[FAULT_PATH_BYTES]; /* what it is about; RENAMED: the new one */
    char from[FAULT_PATH_BYTES]; /* RENAMED */
    char saved[PATH_MAX];        /* a link to what was there before; "": nothing was */
};

static struct file *files;
static struct change *changes; /* the last one first */
static char saved_dir[PATH_MAX - 64];
static unsigned saved_count;

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);

static void __attribute__((noreturn)) give_up(const char *what, const char *path)
{
    (void)fprintf(stderr, "libfault: power cut: %s %s: errno %d\n", what, path, errno);
    _exit(99);
}

static void *must_have(void *p)
{
    if (p == NULL)
        give_up("out of memory", "");
    return p;
}

void undo_setup(const char *dir)
{
    (void)snprintf(saved_dir, sizeof(saved_dir), "%.*s.unlinked", (int)strlen(dir) - 1, dir);
}

/* ---- files ------------------------------------------------------------------------------------------------------------------ */

static struct file *find_file(dev_t dev, ino_t ino)
{
    for (struct file *f = files; f != NULL; f = f->next)
        if (f->dev == dev && f->ino == ino)
            return f;
    return NULL;
}

static void forget_file(struct file *gone)
{
    for (struct file **at = &files; *at != NULL; at = &(*at)->next) {
        if (*at != gone)
            continue;
        *at = gone->next;
        for (size_t i = 0; i < SLOTS; i++) {
            struct page *p = gone->pages[i];

            while (p != NULL) {
                struct page *next = p->next;

                free(p->old);
                free(p);
                p = next;
            }
        }
        free(gone);
        return;
    }
}

static struct file *file_of(int fd, const char *path)
{
    struct stat sb;
    struct file *f;

    if (fstat(fd, &sb) < 0 || !S_ISREG(sb.st_mode))
        return NULL;
    f = find_file(sb.st_dev, sb.st_ino);
    if (f != NULL || sb.st_nlink == 0)
        return f;
    f = must_have(__libc_calloc(1, sizeof(*f)));
    f->dev = sb.st_dev;
    f->ino = sb.st_ino;
    f->durable_bytes = (uint64_t)sb.st_size;
    (void)snprintf(f->path, sizeof(f->path), "%s", path);
    f->next = files;
    files = f;
    return f;
}

static bool has_page(const struct file *f, uint64_t number)
{
    const struct page *p = f->pages[number % SLOTS];

    while (p != NULL && p->number != number)
        p = p->next;
    return p != NULL;
}

static void keep_page(struct file *f, int fd, uint64_t number)
{
    struct page *p;

    if (has_page(f, number))
        return;
    p = must_have(__libc_calloc(1, sizeof(*p)));
    p->number = number;
    if (number * PAGE_BYTES < f->durable_bytes) {
        p->old = must_have(__libc_calloc(1, PAGE_BYTES));
        if (syscall(SYS_pread64, fd, p->old, (size_t)PAGE_BYTES, number * PAGE_BYTES) < 0)
            give_up("reading", f->path);
    }
    p->next = f->pages[number % SLOTS];
    f->pages[number % SLOTS] = p;
}

static void keep_range(struct file *f, int fd, uint64_t off, uint64_t end)
{
    for (uint64_t n = off / PAGE_BYTES; n * PAGE_BYTES < end; n++)
        keep_page(f, fd, n);
}

void undo_write(int fd, const char *path, uint64_t off, uint64_t len)
{
    int saved = errno;
    struct file *f = file_of(fd, path);

    if (f != NULL)
        keep_range(f, fd, off, off + len);
    errno = saved;
}

void undo_truncate(int fd, const char *path, uint64_t size)
{
    int saved = errno;
    struct file *f = file_of(fd, path);

    if (f != NULL && size < f->durable_bytes)
        keep_range(f, fd, size, f->durable_bytes);
    errno = saved;
}

/* ---- directories -------------------------------------------------------------------------------------------------------------- */

static struct change *add_change(enum change_kind kind, const char *name)
{
    struct change *c = must_have(__libc_calloc(1, sizeof(*c)));

    c->kind = kind;
    (void)snprintf(c->name, sizeof(c->name), "%s", name);
    c->before = changes;
    changes = c;
    return c;
}

/* What is at `path` gets another link, so that it can come back. Its unsynced bytes are followed there. */
static void save_link(struct change *c, const char *path)
{
    struct stat sb;
    struct file *f;

    if (fstatat(AT_FDCWD, path, &sb, AT_SYMLINK_NOFOLLOW) < 0)
        return;
    (void)syscall(SYS_mkdirat, AT_FDCWD, saved_dir, 0700);
    (void)snprintf(c->saved, sizeof(c->saved), "%s/%d.%u", saved_dir, (int)getpid(), ++saved_count);
    if (syscall(SYS_linkat, AT_FDCWD, path, AT_FDCWD, c->saved, 0) < 0)
        give_up("linking", path);
    f = find_file(sb.st_dev, sb.st_ino);
    if (f != NULL)
        (void)snprintf(f->path, sizeof(f->path), "%s", c->saved);
}

void undo_created(const char *path)
{
    int saved = errno;
    struct stat sb;

    /* Inodes are used again. */
    if (fstatat(AT_FDCWD, path, &sb, AT_SYMLINK_NOFOLLOW) == 0 && sb.st_nlink == 1) {
        struct file *old = find_file(sb.st_dev, sb.st_ino);

        if (old != NULL)
            forget_file(old);
    }
    (void)add_change(CREATED, path);
    errno = saved;
}

void undo_made_dir(const char *path)
{
    (void)add_change(MADE_DIR, path);
}

void undo_rename(const char *from, const char *to)
{
    int saved = errno;
    struct change *c = add_change(RENAMED, to);
    struct stat sb;
    struct file *f;

    (void)snprintf(c->from, sizeof(c->from), "%s", from);
    save_link(c, to);
    f = fstatat(AT_FDCWD, from, &sb, AT_SYMLINK_NOFOLLOW) == 0 ? find_file(sb.st_dev, sb.st_ino) : NULL;
    if (f != NULL)
        (void)snprintf(f->path, sizeof(f->path), "%s", to);
    errno = saved;
}

void undo_unlink(const char *path)
{
    int saved = errno;

    save_link(add_change(UNLINKED, path), path);
    errno = saved;
}

static void drop_change(struct change **at)
{
    struct change *c = *at;
    struct stat sb;

    *at = c->before;
    if (c->saved[0] != '\0') {
        struct file *f = stat(c->saved, &sb) == 0 ? find_file(sb.st_dev, sb.st_ino) : NULL;

        if (f != NULL && sb.st_nlink == 1)
            forget_file(f);
        (void)syscall(SYS_unlinkat, AT_FDCWD, c->saved, 0);
    }
    free(c);
}

/* A file that was followed to its saved link, or to its new name, is written to where it is: nothing to set right. */
void undo_failed(void)
{
    int saved = errno;

    drop_change(&changes);
    errno = saved;
}

static bool is_in(const char *path, const char *dir)
{
    const char *slash = strrchr(path, '/');
    size_t len = strlen(dir);

    return slash != NULL && (size_t)(slash - path) == len && memcmp(path, dir, len) == 0;
}

void undo_synced(int fd, const char *path)
{
    int saved = errno;
    struct stat sb;
    struct file *f;

    if (fstat(fd, &sb) < 0)
        give_up("looking at", path);
    if (S_ISDIR(sb.st_mode)) {
        for (struct change **at = &changes; *at != NULL;) {
            if (is_in((*at)->name, path))
                drop_change(at);
            else
                at = &(*at)->before;
        }
    } else {
        f = find_file(sb.st_dev, sb.st_ino);
        if (f != NULL)
            forget_file(f);
    }
    errno = saved;
}

/* ---- the child ---------------------------------------------------------------------------------------------------------------- */

static uint64_t rng;
static unsigned lost_of_8; /* so many of eight are lost */

static uint64_t random_number(void)
{
    uint64_t z = (rng += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static bool is_lost(void)
{
    return random_number() % 8 < lost_of_8;
}

static void lose_page(int fd, const struct page *p, uint64_t size_bytes)
{
    uint64_t off = p->number * PAGE_BYTES;
    uint64_t len = off >= size_bytes ? 0 : size_bytes - off;

    if (p->old == NULL)
        (void)syscall(SYS_fallocate, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, (off_t)PAGE_BYTES);
    else
        (void)!syscall(SYS_pwrite64, fd, p->old, (size_t)(len < PAGE_BYTES ? len : PAGE_BYTES), off);
}

static void lose_bytes(const struct file *f)
{
    int fd = (int)syscall(SYS_openat, AT_FDCWD, f->path, O_RDWR | O_CLOEXEC);
    struct stat sb;

    if (fd < 0 || fstat(fd, &sb) < 0)
        return;
    /* A larger size than the durable one comes with its bytes, or without them; a smaller one may be lost. */
    if ((uint64_t)sb.st_size != f->durable_bytes && is_lost() && syscall(SYS_ftruncate, fd, f->durable_bytes) == 0)
        sb.st_size = (off_t)f->durable_bytes;
    for (size_t i = 0; i < SLOTS; i++)
        for (const struct page *p = f->pages[i]; p != NULL; p = p->next)
            if (is_lost())
                lose_page(fd, p, (uint64_t)sb.st_size);
    (void)syscall(SYS_close, fd);
}

static bool same_name(const char *a, const char *b)
{
    return a[0] != '\0' && strcmp(a, b) == 0;
}

static bool share_a_name(const struct change *a, const struct change *b)
{
    return same_name(a->name, b->name) || same_name(a->name, b->from) || same_name(a->from, b->name) ||
           same_name(a->from, b->from);
}

/* A later change of the same name that stays needs this one. */
static bool must_stay(const struct change *c)
{
    for (const struct change *later = changes; later != c; later = later->before)
        if (later->kept && share_a_name(later, c))
            return true;
    return false;
}

static void take_back(const struct change *c)
{
    switch (c->kind) {
    case CREATED:
        (void)syscall(SYS_unlinkat, AT_FDCWD, c->name, 0);
        break;
    case MADE_DIR: /* stays when something in it does */
        (void)syscall(SYS_unlinkat, AT_FDCWD, c->name, AT_REMOVEDIR);
        break;
    case RENAMED:
        (void)syscall(SYS_renameat2, AT_FDCWD, c->name, AT_FDCWD, c->from, 0);
        break;
    case UNLINKED:
        break;
    }
    if (c->saved[0] != '\0')
        (void)syscall(SYS_renameat2, AT_FDCWD, c->saved, AT_FDCWD, c->name, 0);
}

static void lose_names(void)
{
    for (struct change *c = changes; c != NULL; c = c->before) {
        c->kept = must_stay(c) || !is_lost();
        if (!c->kept)
            take_back(c);
        else if (c->saved[0] != '\0')
            (void)syscall(SYS_unlinkat, AT_FDCWD, c->saved, 0);
    }
    (void)syscall(SYS_unlinkat, AT_FDCWD, saved_dir, AT_REMOVEDIR);
}

/* No malloc() in here: other threads may have held its locks. */
static bool is_stopped(const char *dir, const char *task)
{
    char text[512];
    const char *p;
    long len;
    int fd;

    (void)snprintf(text, sizeof(text), "%s/%s/stat", dir, task);
    fd = (int)syscall(SYS_openat, AT_FDCWD, text, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return true;
    len = syscall(SYS_read, fd, text, sizeof(text) - 1);
    (void)syscall(SYS_close, fd);
    text[len > 0 ? len : 0] = '\0';
    p = strrchr(text, ')');
    return p == NULL || strchr("TtZX", p[2]) != NULL;
}

struct dir_entry { /* getdents64(2) */
    uint64_t ino;
    int64_t off;
    unsigned short len;
    unsigned char type;
    char name[];
};

static bool all_stopped(const char *dir)
{
    _Alignas(8) static char buffer[65536];
    int fd = (int)syscall(SYS_openat, AT_FDCWD, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool stopped = true;
    long len;

    if (fd < 0)
        return true;
    while ((len = syscall(SYS_getdents64, fd, buffer, sizeof(buffer))) > 0) {
        for (long at = 0; at < len;) {
            const struct dir_entry *e = (const struct dir_entry *)(const void *)(buffer + at);

            stopped = stopped && (e->name[0] == '.' || is_stopped(dir, e->name));
            at += e->len;
        }
    }
    (void)syscall(SYS_close, fd);
    return stopped;
}

static void __attribute__((noreturn)) cut(pid_t parent, uint64_t seed)
{
    char tasks[64];

    (void)kill(parent, SIGSTOP);
    (void)snprintf(tasks, sizeof(tasks), "/proc/%d/task", (int)parent);
    while (!all_stopped(tasks))
        (void)usleep(1000);
    rng = seed;
    lost_of_8 = seed == 0 ? 8 : (unsigned)(random_number() % 8) + 1;
    for (const struct file *f = files; f != NULL; f = f->next)
        if (f->path[0] != '\0')
            lose_bytes(f);
    lose_names();
    (void)close_range(0, ~0U, 0);
    (void)kill(parent, SIGKILL);
    _exit(0);
}

void undo_and_die(uint64_t seed)
{
    pid_t parent = getpid();
    pid_t child = _Fork();

    if (child == 0)
        cut(parent, seed);
    if (child < 0)
        give_up("fork", "");
    for (;;)
        (void)pause();
}
