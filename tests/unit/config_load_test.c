/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/config_load_test.c - every key, good and bad; the order of the layers; what messages say. */
#include "base/buf.h"
#include "base/fsutil.h"
#include "config/config.h"
#include "tests/unit/config_util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

static void defaults(void **state UNUSED)
{
    CLEANUP(config_cleanup) struct config *cfg = config_load_good("{}");

    assert_int_equal(cfg->listen_count, 1);
    assert_string_equal(cfg->listen[0].address, "127.0.0.1:5000");
    assert_int_equal(cfg->listen[0].view, CONFIG_VIEW_UNSET);
    assert_int_equal(cfg->listen[0].link, CONFIG_LINK_LAN);
    assert_null(cfg->listen[0].upstream);
    assert_string_equal(cfg->admin, "127.0.0.1:5001");
    assert_int_equal(cfg->quota.bytes, 0);
    assert_int_equal(cfg->quota.percent, 80);
    assert_int_equal(cfg->zstd_level, 3);
    assert_int_equal(cfg->originals, CONFIG_ORIGINALS_AUTO);
    assert_int_equal(cfg->upstream_count, 7);
    assert_string_equal(cfg->upstreams[0].name, "docker.io");
    assert_string_equal(cfg->upstreams[0].url, "https://registry-1.docker.io");
    assert_true(cfg->upstreams[0].add_library);
    assert_string_equal(cfg->upstreams[0].aliases.v[0], "index.docker.io");
    assert_string_equal(cfg->upstreams[0].aliases.v[1], "registry-1.docker.io");
    assert_null(cfg->upstreams[0].aliases.v[2]);
    assert_string_equal(cfg->default_upstream, "docker.io");
    assert_int_equal(cfg->view, CONFIG_VIEW_AUTO);
    assert_int_equal(cfg->signed_images, CONFIG_SIGNED_ORIGINAL);
    assert_int_equal(cfg->log_level, LOG_INFO);
    assert_int_equal(cfg->max_layer_bytes, 64ull << 30);
    assert_int_equal(cfg->max_ratio, 1100);
    assert_false(cfg->offline);
    assert_int_equal(cfg->tag_ttl_ms, 60000);
    assert_int_equal(cfg->stop_timeout_ms, 30000);
    assert_int_equal(cfg->negative_ttl_ms, 10000);
    assert_int_equal(cfg->stale_wait_ms, 700);
    assert_int_equal(cfg->on_upstream_404, CONFIG_UPSTREAM_404_SERVE);
    assert_int_equal(cfg->on_upstream_error, CONFIG_UPSTREAM_ERROR_404);
    assert_null(cfg->auth_file);
    assert_null(cfg->auth.htpasswd);
    assert_int_equal(cfg->auth.rule_count, 0);
    assert_int_equal(cfg->timeouts.connect_ms, 10000);
    assert_int_equal(cfg->timeouts.stall_ms, 60000);
    assert_int_equal(cfg->timeouts.request_ms, 60000);
    assert_int_equal(cfg->timeouts.blob_ms, 24 * 3600 * 1000);
    assert_int_equal(cfg->timeouts.header_ms, 30000);
    assert_int_equal(cfg->timeouts.idle_ms, 120000);
    assert_int_equal(cfg->connections, 4096);
    assert_int_equal(cfg->connections_per_client, 0);
    assert_int_equal(cfg->access_log, CONFIG_ON);
    assert_int_equal(cfg->known_upstreams, CONFIG_ON);
}

static void whole_file(void **state UNUSED)
{
    CLEANUP(config_cleanup)
    struct config *cfg = config_load_good(
        "{\"listen\": [{\"address\": \"127.0.0.1:1\"},\n"
        "             {\"address\": \"[::1]:2\", \"view\": \"zstd\", \"link\": \"wan\", \"upstream\": \"index.docker.io\"}],\n"
        " \"admin\": \"off\",\n"
        " \"store\": {\"path\": \"/srv/r\", \"quota\": \"10GiB\", \"zstd_level\": 6},\n"
        " \"originals\": \"keep\",\n"
        " \"upstreams\": [{\"name\": \"ghcr.io\", \"url\": \"https://ghcr.io\"},\n"
        "                 {\"name\": \"docker.io\", \"url\": \"https://mirror.example\"}],\n"
        " \"default_upstream\": \"registry-1.docker.io\",\n"
        " \"view\": \"canonical\", \"signed\": \"rewrite\", \"log\": {\"level\": \"debug\"},\n"
        " \"limits\": {\"max_layer\": 1048576, \"max_ratio\": 2}, \"offline\": true,\n"
        " \"tag_ttl\": \"5m\", \"stop_timeout\": \"250ms\"}");

    assert_int_equal(cfg->listen_count, 2);
    assert_string_equal(cfg->listen[1].address, "[::1]:2");
    assert_int_equal(cfg->listen[1].view, CONFIG_VIEW_ZSTD);
    assert_int_equal(cfg->listen[1].link, CONFIG_LINK_WAN);
    assert_string_equal(cfg->listen[1].upstream, "index.docker.io");
    assert_null(cfg->admin);
    assert_string_equal(cfg->store_path, "/srv/r");
    assert_int_equal(cfg->quota.bytes, 10ull << 30);
    assert_int_equal(cfg->quota.percent, 0);
    assert_int_equal(cfg->zstd_level, 6);
    assert_int_equal(cfg->originals, CONFIG_ORIGINALS_KEEP);
    assert_int_equal(cfg->upstream_count, 2 + 5);
    assert_false(cfg->upstreams[0].add_library);
    assert_null(cfg->upstreams[0].aliases.v);
    assert_true(cfg->upstreams[1].add_library);
    assert_string_equal(cfg->default_upstream, "docker.io"); /* by its alias */
    assert_int_equal(cfg->view, CONFIG_VIEW_CANONICAL);
    assert_int_equal(cfg->signed_images, CONFIG_SIGNED_REWRITE);
    assert_int_equal(cfg->log_level, LOG_DEBUG);
    assert_int_equal(cfg->max_layer_bytes, 1 << 20);
    assert_int_equal(cfg->max_ratio, 2);
    assert_true(cfg->offline);
    assert_int_equal(cfg->tag_ttl_ms, 300000);
    assert_int_equal(cfg->stop_timeout_ms, 250);
}

/* Each bad file with its whole message. */
static const struct config_bad bad_files[] = {
    /* syntax */
    {"", "c.json: line 1, column 1: "},
    {"[]", "c.json: wants a JSON object {...}, not a list"},
    {"\"x\"", "c.json: wants a JSON object {...}, not a string"},
    {"{\n  \"view\": \"auto\"\n  \"admin\": \"off\"\n}", "c.json: line 3, column 9: "},
    {"{\"view\": \"auto\", \"view\": \"zstd\"}", "c.json: line 1, column "},
    {"{} x", "c.json: line 1, column "},
    {"{\"view\": \"\xff\"}", "c.json: line 1, column "},
    {"{\"view\": \"a\\u0000b\"}", "c.json: line 1, column "},
    /* unknown keys */
    {"{\"lisen\": []}", "c.json: unknown key \"lisen\"; did you mean \"listen\"?"},
    {"{\"store\": {\"pth\": \"/x\"}}", "c.json: store: unknown key \"pth\"; did you mean \"path\"?"},
    {"{\"upstreams\": [{\"url\": \"https://a\"}, {\"ulr\": \"https://b\"}]}",
     "c.json: upstreams[1]: unknown key \"ulr\"; did you mean \"url\"?"},
    {"{\"quota\": \"1GiB\"}", "c.json: unknown key \"quota\" here; its place is store.quota"},
    {"{\"store.path\": \"/x\"}", "c.json: unknown key \"store.path\" here; its place is store.path"},
    {"{\"xyzzy\": 1}", "c.json: unknown key \"xyzzy\" (recask config --help lists them)"},
    {"{\"\\u001b[1m\": 1}", "c.json: unknown key \"\\x1b[1m\" (recask config --help lists them)"},
    {"{\"\": 1}", "c.json: unknown key \"\" (recask config --help lists them)"},
    {"{\"listen[]\": 1}", "c.json: unknown key \"listen[]\"; did you mean \"listen\"?"},
    {"{\"listen\": [{\"address\": \"127.0.0.1:1\", \"tls\": {\"cert\": \"x\"}}]}",
     "c.json: listen[0].tls: unknown key \"cert\" (recask config --help lists them)"},
    /* kinds */
    {"{\"view\": null}", "c.json: view: wants one of auto|original|canonical|zstd as a string, not null"},
    {"{\"view\": 3}", "c.json: view: wants one of auto|original|canonical|zstd, not \"3\""},
    {"{\"store\": \"/x\"}", "c.json: store: wants an object, not a string"},
    {"{\"listen\": \"127.0.0.1:1\"}",
     "c.json: listen: wants a list of objects such as {\"address\": \"127.0.0.1:5000\"}, not a string"},
    {"{\"listen\": [\"127.0.0.1:1\"]}", "c.json: listen[0]: wants an object, not a string"},
    {"{\"upstreams\": {}}", "c.json: upstreams: wants a list of objects such as {\"name\": \"ghcr.io\", \"url\": "
                            "\"https://ghcr.io\"}, not an object"},
    {"{\"offline\": \"true\"}", "c.json: offline: wants true or false, not a string"},
    {"{\"offline\": 1}", "c.json: offline: wants true or false, not a number"},
    {"{\"tag_ttl\": 60}", "c.json: tag_ttl: wants a string such as \"60s\", not a number"},
    {"{\"limits\": {\"max_ratio\": \"9\"}}", "c.json: limits.max_ratio: wants a whole number, not a string"},
    {"{\"limits\": {\"max_ratio\": 1.5}}", "c.json: limits.max_ratio: wants a whole number, not a number"},
    {"{\"store\": {\"quota\": true}}",
     "c.json: store.quota: wants a string such as \"10GiB\" or a number of bytes, not true or false"},
    {"{\"store\": {\"quota\": 1.5}}",
     "c.json: store.quota: wants a string such as \"10GiB\" or a number of bytes, not a number"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"token_realms\": \"https://b\"}]}",
     "c.json: upstreams[0].token_realms: wants a list of strings, not a string"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"token_realms\": [1]}]}",
     "c.json: upstreams[0].token_realms[0]: wants a string, not a number"},
    /* values */
    {"{\"listen\": []}", "c.json: listen: the list is empty"},
    {"{\"listen\": [{}]}", "c.json: listen[0].address: is missing"},
    {"{\"listen\": [{\"address\": \"5000\"}]}",
     "c.json: listen[0].address: \"5000\" is a port alone: say 127.0.0.1:5000"},
    {"{\"listen\": [{\"address\": \"127.0.0.1:1\"}, {\"address\": \"127.0.0.1:1\"}]}",
     "c.json: listen[1].address: 127.0.0.1:1 is in the list twice"},
    {"{\"listen\": [{\"address\": \"127.0.0.1:1\", \"view\": \"fast\"}]}",
     "c.json: listen[0].view: wants one of auto|original|canonical|zstd, not \"fast\""},
    {"{\"listen\": [{\"address\": \"127.0.0.1:1\", \"link\": \"moon\"}]}",
     "c.json: listen[0].link: wants one of lan|wan, not \"moon\""},
    {"{\"listen\": [{\"address\": \"127.0.0.1:1\", \"upstream\": \"dockr.io\"}]}",
     "c.json: listen[0].upstream: no upstream is called \"dockr.io\"; did you mean \"docker.io\"?"},
    {"{\"listen\": [{\"address\": \"127.0.0.1:1\", \"upstream\": \"A\"}]}", "c.json: listen[0].upstream: wants a name"},
    {"{\"listen\": [{\"address\": \"127.0.0.1:1\", \"tls\": {\"cert_file\": \"x\"}}]}",
     "c.json: listen[0].tls.key_file: is missing"},
    {"{\"admin\": \"127.0.0.1:5000\"}", "c.json: admin: 127.0.0.1:5000 is also an address of listen"},
    {"{\"admin\": \"nowhere\"}", "c.json: admin: wants an address and a port"},
    {"{\"store\": {\"path\": \"\"}}", "c.json: store.path: is empty"},
    {"{\"store\": {\"quota\": \"10G\"}}", "c.json: store.quota: \"10G\" could be GB (powers of 1000) or GiB"},
    {"{\"store\": {\"quota\": \"0%\"}}", "c.json: store.quota: wants 1% to 100%, not \"0%\""},
    {"{\"store\": {\"quota\": \"5KiB\"}}", "c.json: store.quota: \"5KiB\" is too small: at least 1024KiB"},
    {"{\"store\": {\"quota\": -5}}", "c.json: store.quota: wants a size such as 500MB or 10GiB, not \"-5\""},
    {"{\"store\": {\"zstd_level\": 20}}", "c.json: store.zstd_level: wants a number from 1 to 19, not \"20\""},
    {"{\"originals\": \"burn\"}", "c.json: originals: wants one of auto|keep|drop, not \"burn\""},
    {"{\"upstreams\": []}", "c.json: upstreams: the list is empty"},
    {"{\"upstreams\": [{\"url\": \"https://a\"}, {\"name\": \"b\"}]}", "c.json: upstreams[1].url: is missing"},
    {"{\"upstreams\": [{\"url\": \"https://a\"}, {\"url\": \"ghcr.io\"}]}",
     "c.json: upstreams[1].url: \"ghcr.io\" is no URL: did you mean https://ghcr.io?"},
    {"{\"upstreams\": [{\"url\": \"https://u:secret@a\"}]}",
     "c.json: upstreams[0].url: a URL may not hold credentials"},
    {"{\"upstreams\": [{\"url\": \"https://a\", \"name\": \"a/b\"}]}",
     "c.json: upstreams[0].name: wants a name such as"},
    {"{\"upstreams\": [{\"url\": \"https://a\"}, {\"name\": \"a\", \"url\": \"https://b\"}]}",
     "c.json: upstreams[1].name: \"a\" names an upstream already (https://a)"},
    {"{\"default_upstream\": \"gchr.io\"}",
     "c.json: default_upstream: no upstream is called \"gchr.io\"; did you mean \"ghcr.io\"?"},
    {"{\"view\": \"zst\"}", "c.json: view: wants one of auto|original|canonical|zstd, not \"zst\""},
    {"{\"signed\": \"maybe\"}", "c.json: signed: wants one of original|rewrite, not \"maybe\""},
    {"{\"log\": {\"level\": \"loud\"}}", "c.json: log.level: wants one of err|warn|info|debug, not \"loud\""},
    {"{\"limits\": {\"max_layer\": \"1KiB\"}}", "c.json: limits.max_layer: \"1KiB\" is too small: at least 1024KiB"},
    {"{\"limits\": {\"max_ratio\": 1}}", "c.json: limits.max_ratio: wants a number from 2 to 1000000, not \"1\""},
    {"{\"tag_ttl\": \"60\"}", "c.json: tag_ttl: \"60\" has no unit: say 60s for seconds"},
    {"{\"tag_ttl\": \"1500ms\"}", "c.json: tag_ttl: wants whole seconds, not \"1500ms\""},
    {"{\"stop_timeout\": \"25h\"}", "c.json: stop_timeout: \"25h\" is too long: at most 86400s"},
};

static void bad(void **state UNUSED)
{
    config_refused(bad_files, ARRAY_LEN(bad_files));
}

static void precedence(void **state UNUSED)
{
    static const char file[] =
        "{\"view\": \"original\", \"tag_ttl\": \"1s\", \"listen\": [{\"address\": \"127.0.0.1:1\", "
        "\"view\": \"zstd\"}], \"store\": {\"path\": \"/file\"}}";
    static const char *const env[] = {"HOME=/h",
                                      "RECASK_VIEW=canonical",
                                      "RECASK_LISTEN=127.0.0.1:2,127.0.0.1:3",
                                      "RECASK_QUOTA=",
                                      "RECASK_PORT=tcp://10.0.0.1:5000",
                                      "RECASK_OFFLINE=1",
                                      NULL};
    static const struct config_flag flags[] = {{"--view", "zstd"}, {"--listen", "127.0.0.1:4"}, {"--view", "auto"}};
    CLEANUP(config_cleanup) struct config *from_env = NULL;
    CLEANUP(config_cleanup) struct config *from_flags = NULL;
    struct err err = ERR_INIT;

    assert_int_equal(config_load_with(file, env, NULL, 0, &from_env, &err), 0);
    assert_int_equal(from_env->view, CONFIG_VIEW_CANONICAL);
    assert_int_equal(from_env->tag_ttl_ms, 1000);
    assert_int_equal(from_env->listen_count, 2);
    assert_string_equal(from_env->listen[1].address, "127.0.0.1:3");
    assert_int_equal(from_env->listen[0].view, CONFIG_VIEW_UNSET); /* the file's list is gone as a whole */
    assert_int_equal(from_env->quota.percent, 80);
    assert_true(from_env->offline);
    assert_string_equal(from_env->store_path, "/file");
    assert_int_equal(config_load_with(file, env, flags, ARRAY_LEN(flags), &from_flags, &err), 0);
    assert_int_equal(from_flags->view, CONFIG_VIEW_AUTO);
    assert_int_equal(from_flags->listen_count, 1);
    assert_string_equal(from_flags->listen[0].address, "127.0.0.1:4");
}

static void places_of_errors(void **state UNUSED)
{
    static const char *const bad_env[] = {"HOME=/h", "RECASK_QUOTA=lots", NULL};
    static const char *const bad_list[] = {"HOME=/h", "RECASK_LISTEN=127.0.0.1:1,,", NULL};
    static const struct config_flag quota[] = {{"--quota", "lots"}};
    static const struct config_flag twice[] = {{"--upstream", "a=https://a"}, {"--upstream", "a=https://b"}};
    static const struct config_flag named[] = {{"--upstream", "A=https://a"}};
    static const struct config_flag fallback[] = {{"--default-upstream", "b"}};
    static const struct config_flag unknown[] = {{"--colour", "red"}};
    CLEANUP(config_cleanup) struct config *cfg = NULL;
    struct err err = ERR_INIT;

    assert_int_equal(config_load_with("{}", bad_env, NULL, 0, &cfg, &err), ERR_USAGE);
    assert_string_equal(err.msg, "RECASK_QUOTA: wants a size such as 500MB or 10GiB, not \"lots\"");
    err_clear(&err);
    assert_int_equal(config_load_with("{}", bad_list, NULL, 0, &cfg, &err), ERR_USAGE);
    assert_non_null(strstr(err.msg, "RECASK_LISTEN: wants an address"));
    err_clear(&err);
    assert_int_equal(config_load_with("{}", config_home_env, quota, 1, &cfg, &err), ERR_USAGE);
    assert_string_equal(err.msg, "--quota: wants a size such as 500MB or 10GiB, not \"lots\"");
    err_clear(&err);
    assert_int_equal(config_load_with(NULL, config_home_env, twice, 2, &cfg, &err), ERR_USAGE);
    assert_string_equal(err.msg, "--upstream: \"a\" names an upstream already (https://a)");
    err_clear(&err);
    assert_int_equal(config_load_with(NULL, config_home_env, named, 1, &cfg, &err), ERR_USAGE);
    assert_non_null(strstr(err.msg, "--upstream: wants a name"));
    err_clear(&err);
    assert_int_equal(config_load_with(NULL, config_home_env, fallback, 1, &cfg, &err), ERR_USAGE);
    assert_string_equal(err.msg, "--default-upstream: no upstream is called \"b\" (there is docker.io and others)");
    err_clear(&err);
    assert_int_equal(config_load_with(NULL, config_home_env, unknown, 1, &cfg, &err), ERR_USAGE);
    assert_string_equal(err.msg, "unknown flag \"--colour\"");
}

static void store_paths(void **state UNUSED)
{
    static const char *const xdg[] = {"HOME=/h", "XDG_DATA_HOME=/x", NULL};
    static const char *const relative[] = {"HOME=/h", "XDG_DATA_HOME=x", NULL};
    static const char *const variable[] = {"HOME=/h", "RECASK_STORE=/s", NULL};
    static const char *const nothing[] = {NULL};
    bool root = geteuid() == 0;
    static const struct {
        const char *flag;
        const char *const *env;
        const char *user, *root;
    } cases[] = {
        {NULL, xdg, "/x/recask", "/var/lib/recask"},
        {NULL, relative, "/h/.local/share/recask", "/var/lib/recask"},
        {NULL, variable, "/s", "/s"},
        {"/f", variable, "/f", "/f"},
    };
    struct err err = ERR_INIT;
    char *path = NULL;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(config_store_path(cases[i].flag, cases[i].env, &path, &err), 0);
        assert_string_equal(path, root ? cases[i].root : cases[i].user);
        free_ptr(&path);
    }
    assert_int_equal(config_store_path("", xdg, &path, &err), ERR_USAGE);
    assert_string_equal(err.msg, "--store: is empty");
    if (!root) {
        err_clear(&err);
        assert_int_equal(config_store_path(NULL, nothing, &path, &err), ERR_USAGE);
        assert_non_null(strstr(err.msg, "say --store DIR"));
    }
}

static void files(void **state UNUSED)
{
    char dir[] = "/tmp/recask-config-XXXXXX", path[64], variable[96];
    const char *env[] = {"HOME=/h", NULL, NULL};
    struct config_source src = {.file = "/nowhere/c.json", .env = env};
    CLEANUP(config_cleanup) struct config *cfg = NULL;
    struct err err = ERR_INIT;
    FILE *f;

    assert_int_equal(config_load(&src, &cfg, &err), ERR_NOTFOUND);
    assert_non_null(strstr(err.msg, "/nowhere/c.json"));
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/c.json", dir);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs("{\"view\": \"zstd\"}", f);
    fclose(f);
    /* by the variable, by the flag */
    snprintf(variable, sizeof variable, "RECASK_CONFIG=%s", path);
    env[1] = variable;
    src.file = NULL;
    err_clear(&err);
    assert_int_equal(config_load(&src, &cfg, &err), 0);
    assert_int_equal(cfg->view, CONFIG_VIEW_ZSTD);
    config_cleanup(&cfg);

    struct config_flag flag = {"--config", "/nowhere/d.json"};
    src.flags = &flag;
    src.flag_count = 1;
    assert_int_equal(config_load(&src, &cfg, &err), ERR_NOTFOUND);
    assert_non_null(strstr(err.msg, "/nowhere/d.json"));
    unlink(path);
    rmdir(dir);
}

static void many_items(void **state UNUSED)
{
    CLEANUP(buf_release) struct buf text = BUF_INIT(1 << 20);
    CLEANUP(config_cleanup) struct config *cfg = NULL;
    struct err err = ERR_INIT;

    assert_int_equal(buf_str(&text, "{\"upstreams\": [", &err), 0);
    for (int i = 0; i <= CONFIG_UPSTREAMS_MAX; i++)
        assert_int_equal(buf_printf(&text, &err, "%s{\"url\": \"https://h%d\"}", i ? "," : "", i), 0);
    assert_int_equal(buf_str(&text, "]}", &err), 0);
    assert_int_equal(config_load_with(text.data, config_home_env, NULL, 0, &cfg, &err), ERR_USAGE);
    assert_string_equal(err.msg, "c.json: upstreams[256]: more than 256 upstreams");
}

static void add_code(struct buf *row, const char *text, struct err *err)
{
    if (text == NULL)
        return;
    assert_int_equal(buf_str(row, "`", err), 0);
    for (; *text != '\0'; text++) /* a bar would end the cell */
        assert_int_equal(buf_printf(row, err, "%s%c", *text == '|' ? "\\" : "", *text), 0);
    assert_int_equal(buf_str(row, "`", err), 0);
}

/* | `key` | `value` | `default` | `--flag`, `VARIABLE` | help | */
static void table_row(const struct config_key *k, struct buf *row)
{
    struct err err = ERR_INIT;

    assert_int_equal(buf_printf(row, &err, "| `%s` | ", k->path), 0);
    add_code(row, k->repeats ? "[{...}...]" : k->arg != NULL ? k->arg : "true|false", &err);
    assert_int_equal(buf_str(row, " | ", &err), 0);
    add_code(row, k->fallback, &err);
    assert_int_equal(buf_str(row, " | ", &err), 0);
    if (k->flag != NULL)
        assert_int_equal(buf_printf(row, &err, "`%s`, `%s`", k->flag, k->env), 0);
    assert_int_equal(buf_printf(row, &err, " | %s |\n", k->help), 0);
}

/* The table is what help and documentation are made of. */
static void table_of_keys(void **state UNUSED)
{
    CLEANUP(buf_release) struct buf readme = BUF_INIT(1 << 20);
    const char *root = getenv("RECASK_SOURCE_DIR");
    struct err err = ERR_INIT;
    char path[4200];

    for (size_t i = 0; config_key_at(i) != NULL; i++) {
        const struct config_key *k = config_key_at(i);

        assert_non_null(k->help);
        assert_true((k->flag == NULL) == (k->env == NULL));
        assert_true(strlen(k->path) < 48);
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(k->path, config_key_at(j)->path);
            if (k->flag != NULL && config_key_at(j)->flag != NULL)
                assert_string_not_equal(k->flag, config_key_at(j)->flag);
        }
    }
    if (root == NULL)
        return;
    snprintf(path, sizeof path, "%s/config/KEYS.md", root);
    assert_int_equal(fs_read_file(path, 1 << 20, &readme, &err), 0);
    for (size_t i = 0; config_key_at(i) != NULL; i++) {
        CLEANUP(buf_release) struct buf row = BUF_INIT(4096);

        table_row(config_key_at(i), &row);
        if (strstr(readme.data, row.data) == NULL)
            fail_msg("config/KEYS.md lacks\n%s", row.data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),   cmocka_unit_test(whole_file),       cmocka_unit_test(bad),
        cmocka_unit_test(precedence), cmocka_unit_test(places_of_errors), cmocka_unit_test(store_paths),
        cmocka_unit_test(files),      cmocka_unit_test(many_items),       cmocka_unit_test(table_of_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
