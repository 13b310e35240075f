/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/config_keys_test.c - TLS, passwords of clients, freshness, timeouts and limits, good and bad; the files
 * that a configuration names. The rest: config_load_test.c, config_upstreams_test.c. */
#include "base/buf.h"
#include "config/config.h"
#include "tests/unit/config_util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const struct config_bad bad_files[] = {
    {"{\"listen\": [{\"address\": \"127.0.0.1:1\", \"tls\": {}}]}", "c.json: listen[0].tls.cert_file: is missing"},
    {"{\"listen\": [{\"address\": \"127.0.0.1:1\", \"tls\": {\"key_file\": \"k\"}}]}",
     "c.json: listen[0].tls.cert_file: is missing"},
    {"{\"listen\": [{\"address\": \"127.0.0.1:1\", \"tls\": {\"cert_file\": \"\", \"key_file\": \"k\"}}]}",
     "c.json: listen[0].tls.cert_file: is empty"},
    {"{\"listen\": [{\"address\": \"127.0.0.1:1\", \"tls\": true}]}",
     "c.json: listen[0].tls: wants an object, not true or false"},
    {"{\"auth\": {}}", "c.json: auth.htpasswd: is missing"},
    {"{\"auth\": null}", "c.json: auth: wants an object, not null"},
    {"{\"auth\": {\"rules\": [{\"users\": [\"u\"], \"repositories\": [\"*\"]}]}}", "c.json: auth.htpasswd: is missing"},
    {"{\"auth\": {\"htpasswd\": \"\"}}", "c.json: auth.htpasswd: is empty"},
    {"{\"htpasswd\": \"/h\"}", "c.json: unknown key \"htpasswd\" here; its place is auth.htpasswd"},
    {"{\"auth\": {\"password\": \"hunter2\"}}",
     "c.json: auth: unknown key \"password\": passwords are not written here"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": {}}}",
     "c.json: auth.rules: wants a list of objects such as {\"users\": [\"ci\"], \"repositories\": [\"ghcr.io/acme/*\"]}, not an object"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": []}}", "c.json: auth.rules: the list is empty"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [\"*\"]}}", "c.json: auth.rules[0]: wants an object, not a string"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [\"*\"]}]}}",
     "c.json: auth.rules[0].repositories: is missing"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"repositories\": [\"*\"]}]}}",
     "c.json: auth.rules[0].users: is missing"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [], \"repositories\": [\"*\"]}]}}",
     "c.json: auth.rules[0].users: the list is empty"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [\"a\"], \"repositories\": []}]}}",
     "c.json: auth.rules[0].repositories: the list is empty"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"user\": [\"a\"], \"repositories\": [\"*\"]}]}}",
     "c.json: auth.rules[0]: unknown key \"user\"; did you mean \"users\"?"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [\"a\", \"\"], \"repositories\": [\"*\"]}]}}",
     "c.json: auth.rules[0].users[1]: is empty"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [\"a:secret\"], \"repositories\": [\"*\"]}]}}",
     "c.json: auth.rules[0].users[0]: a user's name may not hold a colon"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [\"*\"], \"repositories\": [\"*\"]}, {\"users\": [\"a\"], \"repositories\": [\"*\", \"docker.io\"]}]}}",
     "c.json: auth.rules[1].repositories[1]: \"docker.io\" is no repository; for all of a registry say REGISTRY/*"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [\"*\"], \"repositories\": [\"*\"]}, {\"users\": [\"a\"], \"repositories\": [\"*\", \"docker.io/\"]}]}}",
     "c.json: auth.rules[1].repositories[1]: \"docker.io/\" holds an empty part"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [\"*\"], \"repositories\": [\"*\"]}, {\"users\": [\"a\"], \"repositories\": [\"*\", \"docker.io//a\"]}]}}",
     "c.json: auth.rules[1].repositories[1]: \"docker.io//a\" holds an empty part"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [\"*\"], \"repositories\": [\"*\"]}, {\"users\": [\"a\"], \"repositories\": [\"*\", \"docker.io//*\"]}]}}",
     "c.json: auth.rules[1].repositories[1]: \"docker.io//*\" holds an empty part"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [\"*\"], \"repositories\": [\"*\"]}, {\"users\": [\"a\"], \"repositories\": [\"*\", \"/*\"]}]}}",
     "c.json: auth.rules[1].repositories[1]: wants a repository such as"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [\"*\"], \"repositories\": [\"*\"]}, {\"users\": [\"a\"], \"repositories\": [\"*\", \"/a\"]}]}}",
     "c.json: auth.rules[1].repositories[1]: \"/a\" holds an empty part"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [\"*\"], \"repositories\": [\"*\"]}, {\"users\": [\"a\"], \"repositories\": [\"*\", \"docker.io/a*\"]}]}}",
     "c.json: auth.rules[1].repositories[1]: wants a repository such as"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [\"*\"], \"repositories\": [\"*\"]}, {\"users\": [\"a\"], \"repositories\": [\"*\", \"docker.io/*/x\"]}]}}",
     "c.json: auth.rules[1].repositories[1]: wants a repository such as"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [\"*\"], \"repositories\": [\"*\"]}, {\"users\": [\"a\"], \"repositories\": [\"*\", \"*/x\"]}]}}",
     "c.json: auth.rules[1].repositories[1]: wants a repository such as"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [\"*\"], \"repositories\": [\"*\"]}, {\"users\": [\"a\"], \"repositories\": [\"*\", \"**\"]}]}}",
     "c.json: auth.rules[1].repositories[1]: wants a repository such as"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [\"*\"], \"repositories\": [\"*\"]}, {\"users\": [\"a\"], \"repositories\": [\"*\", \"docker.io/Library/x\"]}]}}",
     "c.json: auth.rules[1].repositories[1]: wants a repository such as"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [\"*\"], \"repositories\": [\"*\"]}, {\"users\": [\"a\"], \"repositories\": [\"*\", \"docker.io/library/x:1\"]}]}}",
     "c.json: auth.rules[1].repositories[1]: wants a repository such as"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [\"*\"], \"repositories\": [\"*\"]}, {\"users\": [\"a\"], \"repositories\": [\"*\", \"\"]}]}}",
     "c.json: auth.rules[1].repositories[1]: is empty"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [\"*\"], \"repositories\": [\"*\"]}, {\"users\": [\"a\"], \"repositories\": [\"*\", \"dcoker.io/library/*\"]}]}}",
     "c.json: auth.rules[1].repositories[1]: no upstream is called \"dcoker.io\"; did you mean \"docker.io\"?"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [\"*\"], \"repositories\": [\"*\"]}, {\"users\": [\"a\"], \"repositories\": [\"*\", \"index.docker.io/library/*\"]}]}}",
     "c.json: auth.rules[1].repositories[1]: \"index.docker.io/library/*\": rules want the name of the upstream: say docker.io/library/*"},
    {"{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [\"*\"], \"repositories\": [\"*\"]}, {\"users\": [\"a\"], \"repositories\": [\"*\", \"docker.io/alpine\"]}]}}",
     "c.json: auth.rules[1].repositories[1]: \"docker.io/alpine\": did you mean docker.io/library/alpine?"},
    {"{\"auth_file\": \"\"}", "c.json: auth_file: is empty"},
    {"{\"known_upstreams\": true}", "c.json: known_upstreams: wants one of on|off as a string, not true or false"},
    {"{\"negative_ttl\": \"301s\"}", "c.json: negative_ttl: \"301s\" is too long: at most 300s"},
    {"{\"negative_ttl\": 0}", "c.json: negative_ttl: wants a string such as \"60s\", not a number"},
    {"{\"stale_wait\": \"99ms\"}", "c.json: stale_wait: \"99ms\" is too short: at least 100ms"},
    {"{\"stale_wait\": \"61s\"}", "c.json: stale_wait: \"61s\" is too long: at most 60s"},
    {"{\"on_upstream_404\": \"keep\"}", "c.json: on_upstream_404: wants one of serve|drop, not \"keep\""},
    {"{\"on_upstream_error\": 502}", "c.json: on_upstream_error: wants one of 404|503, not \"502\""},
    {"{\"timeouts\": {\"connect\": \"0s\"}}", "c.json: timeouts.connect: \"0s\" is too short: at least 100ms"},
    {"{\"timeouts\": {\"connect\": \"11m\"}}", "c.json: timeouts.connect: \"11m\" is too long: at most 600s"},
    {"{\"timeouts\": {\"stall\": \"2h\"}}", "c.json: timeouts.stall: \"2h\" is too long: at most 3600s"},
    {"{\"timeouts\": {\"request\": \"2h\"}}", "c.json: timeouts.request: \"2h\" is too long"},
    {"{\"timeouts\": {\"blob\": \"8d\"}}", "c.json: timeouts.blob: \"8d\" is too long: at most 604800s"},
    {"{\"timeouts\": {\"header\": \"99ms\"}}", "c.json: timeouts.header: \"99ms\" is too short"},
    {"{\"timeouts\": {\"idle\": \"25h\"}}", "c.json: timeouts.idle: \"25h\" is too long: at most 86400s"},
    {"{\"limits\": {\"connections\": 0}}", "c.json: limits.connections: wants a number from 1 to 100000, not \"0\""},
    {"{\"limits\": {\"connections_per_client\": -1}}",
     "c.json: limits.connections_per_client: wants a number from 0 to 100000, not \"-1\""},
    {"{\"log\": {\"access\": \"yes\"}}", "c.json: log.access: wants one of on|off, not \"yes\""},
};

static void bad(void **state UNUSED)
{
    config_refused(bad_files, ARRAY_LEN(bad_files));
}

static void good(void **state UNUSED)
{
    CLEANUP(config_cleanup)
    struct config *cfg = config_load_good(
        "{\"listen\": [{\"address\": \"127.0.0.1:1\", \"tls\": {\"cert_file\": \"c.pem\", \"key_file\": \"k.pem\"}}],\n"
        " \"negative_ttl\": \"0s\", \"stale_wait\": \"100ms\", \"on_upstream_404\": \"drop\", \"on_upstream_error\": 503,\n"
        " \"auth_file\": \"/root/.docker/config.json\", \"known_upstreams\": \"off\",\n"
        " \"upstreams\": [{\"url\": \"https://ghcr.io\"}, {\"url\": \"http://[::1]:5001\"}],\n"
        " \"auth\": {\"htpasswd\": \"/h\", \"rules\": [{\"users\": [\"ci\", \"*\"], \"repositories\": [\"*\"]},\n"
        "   {\"users\": [\"anonymous\"], \"repositories\": [\"ghcr.io/*\", \"ghcr.io/acme/*\", \"ghcr.io/acme/a_b\", \"[::1]:5001/x\"]}]},\n"
        " \"timeouts\": {\"connect\": \"1s\", \"stall\": \"2s\", \"request\": \"3s\", \"blob\": \"4s\", \"header\": \"5s\", \"idle\": \"6s\"},\n"
        " \"limits\": {\"connections\": 7, \"connections_per_client\": 8}, \"log\": {\"access\": \"off\"}}\n");
    const struct config_auth *auth = &cfg->auth;

    assert_string_equal(cfg->listen[0].tls_cert_file, "c.pem");
    assert_string_equal(cfg->listen[0].tls_key_file, "k.pem");
    assert_int_equal(cfg->negative_ttl_ms, 0);
    assert_int_equal(cfg->stale_wait_ms, 100);
    assert_int_equal(cfg->on_upstream_404, CONFIG_UPSTREAM_404_DROP);
    assert_int_equal(cfg->on_upstream_error, CONFIG_UPSTREAM_ERROR_503);
    assert_string_equal(cfg->auth_file, "/root/.docker/config.json");
    assert_string_equal(auth->htpasswd, "/h");
    assert_int_equal(auth->rule_count, 2);
    assert_int_equal(auth->rules[0].users.count, 2);
    assert_string_equal(auth->rules[0].users.v[0], "ci");
    assert_null(auth->rules[0].users.v[2]);
    assert_string_equal(auth->rules[0].repositories.v[0], "*");
    assert_int_equal(auth->rules[1].repositories.count, 4);
    assert_string_equal(auth->rules[1].repositories.v[3], "[::1]:5001/x");
    assert_int_equal(cfg->timeouts.connect_ms, 1000);
    assert_int_equal(cfg->timeouts.stall_ms, 2000);
    assert_int_equal(cfg->timeouts.request_ms, 3000);
    assert_int_equal(cfg->timeouts.blob_ms, 4000);
    assert_int_equal(cfg->timeouts.header_ms, 5000);
    assert_int_equal(cfg->timeouts.idle_ms, 6000);
    assert_int_equal(cfg->connections, 7);
    assert_int_equal(cfg->connections_per_client, 8);
    assert_int_equal(cfg->access_log, CONFIG_OFF);
}

static void flags_and_variables(void **state UNUSED)
{
    static const char *const env[] = {"HOME=/h",
                                      "RECASK_NEGATIVE_TTL=1s",
                                      "RECASK_STALE_WAIT=2s",
                                      "RECASK_ON_UPSTREAM_404=drop",
                                      "RECASK_ON_UPSTREAM_ERROR=503",
                                      "RECASK_AUTH_FILE=/env",
                                      "RECASK_HTPASSWD=/env",
                                      "RECASK_CONNECTIONS=5",
                                      "RECASK_CONNECTIONS_PER_CLIENT=6",
                                      "RECASK_ACCESS_LOG=off",
                                      NULL};
    static const struct config_flag flags[] = {
        {"--negative-ttl", "3s"}, {"--stale-wait", "4s"},  {"--on-upstream-404", "serve"},
        {"--auth-file", "/flag"}, {"--htpasswd", "/flag"}, {"--on-upstream-error", "404"},
        {"--connections", "7"},   {"--access-log", "on"},  {"--connections-per-client", "8"},
    };
    CLEANUP(config_cleanup) struct config *low = NULL;
    CLEANUP(config_cleanup) struct config *high = NULL;
    struct err err = ERR_INIT;

    assert_int_equal(config_load_with("{\"auth\": {\"htpasswd\": \"/file\"}}", env, NULL, 0, &low, &err), 0);
    assert_int_equal(low->negative_ttl_ms, 1000);
    assert_int_equal(low->stale_wait_ms, 2000);
    assert_int_equal(low->on_upstream_404, CONFIG_UPSTREAM_404_DROP);
    assert_int_equal(low->on_upstream_error, CONFIG_UPSTREAM_ERROR_503);
    assert_string_equal(low->auth_file, "/env");
    assert_string_equal(low->auth.htpasswd, "/env");
    assert_int_equal(low->connections, 5);
    assert_int_equal(low->connections_per_client, 6);
    assert_int_equal(low->access_log, CONFIG_OFF);
    assert_int_equal(config_load_with(NULL, env, flags, ARRAY_LEN(flags), &high, &err), 0);
    assert_int_equal(high->negative_ttl_ms, 3000);
    assert_int_equal(high->stale_wait_ms, 4000);
    assert_int_equal(high->on_upstream_404, CONFIG_UPSTREAM_404_SERVE);
    assert_int_equal(high->on_upstream_error, CONFIG_UPSTREAM_ERROR_404);
    assert_string_equal(high->auth_file, "/flag");
    assert_string_equal(high->auth.htpasswd, "/flag");
    assert_int_equal(high->connections, 7);
    assert_int_equal(high->connections_per_client, 8);
    assert_int_equal(high->access_log, CONFIG_ON);
}

/* Empty counts as unset, but for what keeps people out. */
static void empty_variables(void **state UNUSED)
{
    static const char *const harmless[] = {"HOME=/h", "RECASK_AUTH_FILE=", "RECASK_HTPASSWDX=", NULL};
    static const char *const guards[] = {"HOME=/h", "RECASK_HTPASSWD=", NULL};
    CLEANUP(config_cleanup) struct config *cfg = NULL;
    struct err err = ERR_INIT;

    assert_int_equal(config_load_with(NULL, harmless, NULL, 0, &cfg, &err), 0);
    config_cleanup(&cfg);
    assert_int_equal(config_load_with(NULL, guards, NULL, 0, &cfg, &err), ERR_USAGE);
    assert_string_equal(err.msg, "RECASK_HTPASSWD: is set, but empty; unset it to do without");
    assert_null(cfg);
}

/* The file says who, a flag or a variable where the passwords are. */
static void auth_in_two_places(void **state UNUSED)
{
    static const char rules[] = "{\"auth\": {\"rules\": [{\"users\": [\"a\"], \"repositories\": [\"acme/*\"]}]},"
                                "\"upstreams\": [{\"name\": \"acme\", \"url\": \"https://a\"}]}";
    static const struct config_flag flags[] = {{"--htpasswd", "/flag"}, {"--upstream", "b=https://b"}};
    CLEANUP(config_cleanup) struct config *one = NULL;
    CLEANUP(config_cleanup) struct config *both = NULL;
    struct err err = ERR_INIT;

    assert_int_equal(config_load_with(rules, config_home_env, flags, 1, &one, &err), 0);
    assert_string_equal(one->auth.htpasswd, "/flag");
    assert_int_equal(one->auth.rule_count, 1);
    /* Rules about upstreams that a flag has replaced stop nothing. */
    assert_int_equal(config_load_with(rules, config_home_env, flags, 2, &both, &err), 0);
    assert_int_equal(both->auth.rule_count, 1);
}

static void many_rules(void **state UNUSED)
{
    CLEANUP(buf_release) struct buf text = BUF_INIT(1 << 20);
    CLEANUP(config_cleanup) struct config *cfg = NULL;
    struct err err = ERR_INIT;

    assert_int_equal(buf_str(&text, "{\"auth\": {\"htpasswd\": \"/h\", \"rules\": [", &err), 0);
    for (int i = 0; i <= CONFIG_RULES_MAX; i++)
        assert_int_equal(buf_printf(&text, &err, "%s{\"users\": [\"a\"], \"repositories\": [\"*\"]}", i ? "," : ""), 0);
    assert_int_equal(buf_str(&text, "]}}", &err), 0);
    assert_int_equal(config_load_with(text.data, config_home_env, NULL, 0, &cfg, &err), ERR_USAGE);
    assert_string_equal(err.msg, "c.json: auth.rules[1024]: more than 1024 rules");
}

/* ---- files that it names ---------------------------------------------------------------------------------------- */

static int list_file(void *arg, const struct config_file *f, struct err *err)
{
    return buf_printf(arg, err, "%s=%s%s\n", f->place, f->path, f->secret ? " (secret)" : "");
}

static void named_files(void **state UNUSED)
{
    CLEANUP(buf_release) struct buf got = BUF_INIT(4096);
    CLEANUP(config_cleanup)
    struct config *cfg = config_load_good(
        "{\"listen\": [{\"address\": \"127.0.0.1:1\"}, {\"address\": \"127.0.0.1:2\", \"tls\": "
        "{\"cert_file\": \"c\", \"key_file\": \"k\"}}], \"auth_file\": \"/a\", \"auth\": {\"htpasswd\": \"/h\"},"
        " \"upstreams\": [{\"url\": \"https://a\"}, {\"url\": \"https://b\", \"username\": \"u\", "
        "\"password_file\": \"p\", \"ca_file\": \"ca\", \"cert_file\": \"uc\", \"key_file\": \"uk\"}]}");
    struct err err = ERR_INIT;

    assert_int_equal(config_files(cfg, list_file, &got, &err), 0);
    assert_string_equal(got.data, "listen[1].tls.cert_file=c\n"
                                  "listen[1].tls.key_file=k (secret)\n"
                                  "upstreams[1].password_file=p (secret)\n"
                                  "upstreams[1].ca_file=ca\n"
                                  "upstreams[1].cert_file=uc\n"
                                  "upstreams[1].key_file=uk (secret)\n"
                                  "auth_file=/a (secret)\n"
                                  "auth.htpasswd=/h\n");
}

static void file_checks(void **state UNUSED)
{
    char dir[] = "/tmp/recask-config-XXXXXX", path[64];
    struct config_file file = {.place = "x", .path = path, .secret = true};
    struct err err = ERR_INIT;
    bool exposed = true;
    FILE *f;

    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/f", dir);
    assert_int_equal(config_file_check(&file, &exposed, &err), ERR_NOTFOUND);
    assert_false(exposed);
    assert_non_null(strstr(err.msg, path));
    err_clear(&err);
    f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(config_file_check(&file, &exposed, &err), 0);
    assert_false(exposed);
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(config_file_check(&file, &exposed, &err), 0);
    assert_true(exposed);
    file.secret = false;
    assert_int_equal(config_file_check(&file, &exposed, &err), 0);
    assert_false(exposed);
    unlink(path);
    file.path = dir;
    assert_int_equal(config_file_check(&file, &exposed, &err), ERR_IO);
    assert_non_null(strstr(err.msg, "directory"));
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad),
        cmocka_unit_test(good),
        cmocka_unit_test(flags_and_variables),
        cmocka_unit_test(many_rules),
        cmocka_unit_test(named_files),
        cmocka_unit_test(empty_variables),
        cmocka_unit_test(auth_in_two_places),
        cmocka_unit_test(file_checks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
