/* SPDX-License-Identifier: Apache-2.0
 * config/files.c - the files that a configuration names, found by the table of keys. */
#include "base/compiler.h"
#include "config/config_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define MODE_OTHERS 077 /* the group's and everybody's */
#define MODE_OTHERS_WRITE 022

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

static int tell(const struct key *k, const void *base, const char *place, config_file_fn *fn, void *arg,
                struct err *err)
{
    char *path;

    memcpy(&path, (const char *)base + k->off, sizeof path);
    if (path == NULL)
        return 0;
    return fn(arg, &(struct config_file){.place = place, .path = path, .secret = k->type == KEY_SECRET_FILE}, err);
}

/* One key, in all items of its list. */
static int tell_items(const struct key *list, const struct key *k, const struct config *c, config_file_fn *fn,
                      void *arg, struct err *err)
{
    char place[128];

    for (size_t i = 0; i < config_list_count(list, c); i++) {
        snprintf(place, sizeof place, "%s[%zu]%s", list->doc.path, i, k->doc.path + strlen(list->doc.path) + 2);
        TRY(tell(k, config_list_at(list, c, i), place, fn, arg, err));
    }
    return 0;
}

static const struct key *list_of(const struct key *k)
{
    for (size_t i = 0; i < config_key_count; i++) {
        if (config_keys[i].type == KEY_LIST && config_key_in(k, &config_keys[i]))
            return &config_keys[i];
    }
    return NULL;
}

int config_files(const struct config *c, config_file_fn *fn, void *arg, struct err *err)
{
    for (size_t i = 0; i < config_key_count; i++) {
        const struct key *k = &config_keys[i], *list = list_of(k);

        if (k->type != KEY_FILE && k->type != KEY_SECRET_FILE)
            continue;
        if (list != NULL)
            TRY(tell_items(list, k, c, fn, arg, err));
        else
            TRY(tell(k, c, k->doc.path, fn, arg, err));
    }
    return 0;
}

/* Orchestrators mount secrets in memory and readable by all, into a container that has no others. */
static bool in_memory(int fd)
{
    struct statfs fs;

    return fstatfs(fd, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

int config_file_check(const struct config_file *f, bool *out_exposed, struct err *err)
{
    /* Without waiting, should it be a pipe. */
    CLEANUP(close_fd) int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;

    *out_exposed = false;
    if (fd < 0 || fstat(fd, &st) != 0)
        return err_sys(err, errno, "%s", f->path);
    if (S_ISDIR(st.st_mode))
        return err_sys(err, EISDIR, "%s", f->path);
    *out_exposed = f->secret && (st.st_mode & (in_memory(fd) ? MODE_OTHERS_WRITE : MODE_OTHERS)) != 0;
    return 0;
}
