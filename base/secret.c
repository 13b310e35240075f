/* SPDX-License-Identifier: Apache-2.0
 * base/secret.c - secrets, wiped before their memory goes back to the allocator and, with it, into the next core dump.
 */
#include "base/secret.h"

#include <string.h>

int secret_set(struct secret *s, const char *text, size_t len, struct err *err)
{
    char *copy = malloc(len + 1);

    if (copy == NULL)
        return err_nomem(err, len + 1);
    if (len > 0)
        memcpy(copy, text, len);
    copy[len] = '\0';
    secret_release(s);
    *s = (struct secret){.hidden = copy, .len = len};
    return 0;
}

bool secret_is_set(const struct secret *s)
{
    return s->hidden != NULL;
}

const char *secret_text(const struct secret *s)
{
    return s->hidden != NULL ? s->hidden : "";
}

void secret_move(struct secret *s, struct secret *from)
{
    struct secret taken = *from;

    *from = (struct secret)SECRET_INIT;
    secret_release(s);
    *s = taken;
}

void secret_release(struct secret *s)
{
    secret_wipe(s->hidden, s->len);
    free(s->hidden);
    *s = (struct secret)SECRET_INIT;
}

void secret_wipe(void *memory, size_t len)
{
    if (len > 0)
        explicit_bzero(memory, len);
}
