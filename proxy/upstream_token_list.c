/* SPDX-License-Identifier: Apache-2.0
 * proxy/upstream_token_list.c - the tokens of all upstreams: a list, the last one used first, so that those in use are found at
 * once and those that nobody uses are at the end.
 */
#include "proxy/upstream_token_internal.h"

static void token_free(struct token *t)
{
    if (t == NULL)
        return;
    REQUIRE(t->fetch == NULL && t->askers == NULL && t->prober == NULL);
    secret_release(&t->value);
    free(t->scope);
    free(t->realm);
    free(t->service);
    free(t);
}

static void token_cleanup(struct token **t)
{
    token_free(*t);
    *t = NULL;
}

bool token_is_busy(const struct token *t)
{
    return t->fetch != NULL || t->reading || t->queued;
}

bool token_is_idle(const struct token *t)
{
    return !token_is_busy(t) && t->prober == NULL && t->askers == NULL;
}

void token_forget(struct upstreams *ups, struct token *t)
{
    struct token **p = &ups->tokens;

    while (*p != t)
        p = &(*p)->next;
    *p = t->next;
    ups->token_count--;
    token_free(t);
}

struct token *token_find(struct upstreams *ups, const struct upstream *up, const char *scope)
{
    for (struct token **p = &ups->tokens; *p != NULL; p = &(*p)->next) {
        struct token *t = *p;

        if (t->up != up || strcmp(t->scope, scope) != 0)
            continue;
        *p = t->next;
        t->next = ups->tokens;
        ups->tokens = t;
        return t;
    }
    return NULL;
}

static void make_room(struct upstreams *ups)
{
    struct token *oldest = NULL;

    if (ups->token_count < UPSTREAM_TOKENS_MAX)
        return;
    for (struct token *t = ups->tokens; t != NULL; t = t->next)
        if (token_is_idle(t))
            oldest = t;
    if (oldest != NULL) /* else as many fetches run as there are exchanges, which someone else limits */
        token_forget(ups, oldest);
}

int token_get(struct exchange *x, const char *scope, struct token **out, struct err *err)
{
    CLEANUP(token_cleanup) struct token *t = NULL;
    struct upstreams *ups = x->ups;

    *out = token_find(ups, x->up, scope);
    if (*out != NULL)
        return 0;
    t = calloc(1, sizeof *t);
    if (t == NULL)
        return err_nomem(err, sizeof *t);
    t->up = x->up;
    TRY(str_dup(scope, &t->scope, err));
    make_room(ups);
    t->next = ups->tokens;
    ups->tokens = t;
    ups->token_count++;
    *out = steal(&t);
    return 0;
}

void tokens_release(struct upstreams *ups)
{
    while (ups->tokens != NULL)
        token_forget(ups, ups->tokens);
}
