/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/config_util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

const char *const config_home_env[] = {"HOME=/home/u", NULL};

int config_load_with(const char *text, const char *const *env, const struct config_flag *flags, size_t flag_count,
                     struct config **out, struct err *err)
{
    struct config_source src = {.env = env, .flags = flags, .flag_count = flag_count};

    if (text != NULL) {
        src.file = "c.json";
        src.text = text;
        src.text_len = strlen(text);
    }
    *out = NULL;
    return config_load(&src, out, err);
}

struct config *config_load_good(const char *text)
{
    struct config *cfg;
    struct err err = ERR_INIT;

    if (config_load_with(text, config_home_env, NULL, 0, &cfg, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    return cfg;
}

void config_refused(const struct config_bad *files, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct err err = ERR_INIT;
        struct config *cfg;
        int rc = config_load_with(files[i].text, config_home_env, NULL, 0, &cfg, &err);

        config_free(cfg);
        if (rc != ERR_USAGE || strncmp(err.msg, files[i].says, strlen(files[i].says)) != 0)
            fail_msg("%s\n  gives %d: %s\n  want    %s", files[i].text, rc, err.msg, files[i].says);
        assert_null(strstr(err.msg, "secret"));
        assert_null(strchr(err.msg, '\n'));
    }
}
