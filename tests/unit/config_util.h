/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/config_util.h - loading a configuration from a text. */
#pragma once

#include "config/config.h"

/* HOME alone. */
extern const char *const config_home_env[];

/* text: the file c.json, NULL: none. */
int config_load_with(const char *text, const char *const *env, const struct config_flag *flags, size_t flag_count,
                     struct config **out, struct err *err);
/* Fails the test when the file is not good. */
struct config *config_load_good(const char *text);

struct config_bad {
    const char *text, *says; /* a file, and how its message begins */
};

/* Each is refused so, in one line and without the word "secret", which stands for one. */
void config_refused(const struct config_bad *files, size_t count);
