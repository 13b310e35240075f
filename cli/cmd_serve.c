/* SPDX-License-Identifier: Apache-2.0
 * cli/cmd_serve.c - recask serve: the one place that knows both struct config and every module's options.
 *
 * Order: store, workers, HTTP server, proxy, its listeners, the admin port, then wait for a signal. Down in the order
 * that serve_release() says; everything in it may be missing, so a start that fails goes the same way. */
#include "admin/admin.h"
#include "admin/client.h"
#include "cli/cli.h"
#include "proxy/access.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define AGENT "recask/" RECASK_VERSION
#define MIN_WORKERS 4
#define KNOWN_NAMES_BYTES 256

struct serve {
    const struct config *cfg;
    struct store *store;
    struct workpool *pool;
    struct http_server *http;
    struct proxy *proxy;
    struct access *access;
    struct admin *admin;
    const char *address;       /* of the first listener */
    const char *admin_address; /* NULL: off */
};

static void serve_release(struct serve *s)
{
    if (s->http != NULL)
        http_server_drain(s->http, (int)s->cfg->stop_timeout_ms);
    if (s->proxy != NULL)
        proxy_stop(s->proxy);
    /* What proxy_stop() woke still runs on the workers, and looks at the proxy. */
    workpool_free(s->pool);
    if (s->proxy != NULL)
        proxy_free(s->proxy);
    access_free(s->access);
    admin_free(s->admin);
    if (s->http != NULL)
        http_server_free(s->http);
    if (s->store != NULL)
        store_close(s->store);
    *s = (struct serve){0};
}

/* ---- config to options ------------------------------------------------------------------------------------------- */

/* UNSET and AUTO: false. */
static bool fixed_view(enum config_view v, enum oci_view *out)
{
    switch (v) {
    case CONFIG_VIEW_UNSET:
    case CONFIG_VIEW_AUTO:
        return false;
    case CONFIG_VIEW_ORIGINAL:
        *out = VIEW_ORIGINAL;
        return true;
    case CONFIG_VIEW_CANONICAL:
        *out = VIEW_CANONICAL;
        return true;
    case CONFIG_VIEW_ZSTD:
        *out = VIEW_ZSTD;
        return true;
    }
    return false;
}

static enum store_originals originals_of(enum config_originals o)
{
    switch (o) {
    case CONFIG_ORIGINALS_AUTO:
        return ORIGINALS_AUTO;
    case CONFIG_ORIGINALS_KEEP:
        return ORIGINALS_KEEP;
    case CONFIG_ORIGINALS_DROP:
        return ORIGINALS_DROP;
    }
    return ORIGINALS_AUTO;
}

/* A percentage of the file system that the store is on, or will be on: of the nearest directory that is there. */
static int quota_of(const struct config *cfg, uint64_t *out_bytes, struct err *err)
{
    CLEANUP(free_ptr) char *path = NULL;
    struct statvfs fs;
    char *slash;

    *out_bytes = cfg->quota.bytes;
    if (cfg->quota.percent == 0)
        return 0;
    TRY(str_dup(cfg->store_path, &path, err));
    while (statvfs(path, &fs) != 0) {
        if (errno != ENOENT)
            return err_sys(err, errno, "size of the file system of %s", cfg->store_path);
        slash = strrchr(path, '/');
        if (slash == NULL)
            snprintf(path, strlen(path) + 1, ".");
        else if (slash == path)
            path[1] = '\0';
        else
            *slash = '\0';
    }
    *out_bytes = (uint64_t)fs.f_blocks * fs.f_frsize / 100 * cfg->quota.percent;
    return 0;
}

static int open_store(struct serve *s, struct err *err)
{
    struct store_options opt = {
        .path = s->cfg->store_path,
        .zstd_level = (int)s->cfg->zstd_level,
        .originals = originals_of(s->cfg->originals),
    };

    TRY(quota_of(s->cfg, &opt.quota_bytes, err));
    return store_open(&opt, &s->store, err);
}

static int open_http(struct serve *s, struct err *err)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned threads = cpus > 0 && cpus + 2 > MIN_WORKERS ? (unsigned)cpus + 2 : MIN_WORKERS;
    struct http_options opt = {
        .max_connections = (unsigned)s->cfg->connections,
        .max_connections_per_client = (unsigned)s->cfg->connections_per_client,
        .header_ms = (int)s->cfg->timeouts.header_ms,
        .idle_ms = (int)s->cfg->timeouts.idle_ms,
    };

    TRY(workpool_new("work", threads, &s->pool, err));
    opt.pool = s->pool;
    return http_server_new(&opt, &s->http, err);
}

/* Without `auth` there is none, and everybody may read everything. */
static int open_access(struct serve *s, struct err *err)
{
    const struct config_auth *auth = &s->cfg->auth;
    CLEANUP(free_ptr) struct access_rule *rules = NULL;

    if (auth->htpasswd == NULL)
        return 0;
    rules = calloc(auth->rule_count + 1, sizeof *rules);
    if (rules == NULL)
        return err_nomem(err, (auth->rule_count + 1) * sizeof *rules);
    for (size_t i = 0; i < auth->rule_count; i++)
        rules[i] = (struct access_rule){.users = (const char *const *)auth->rules[i].users.v,
                                        .repositories = (const char *const *)auth->rules[i].repositories.v};
    struct access_options opt = {.htpasswd = auth->htpasswd, .rules = rules, .rule_count = auth->rule_count};

    return access_new(&opt, &s->access, err);
}

/* The names of the known upstreams, with sep between them; false when there are none. */
static bool known_names(const struct config *cfg, const char *sep, char *out, size_t cap)
{
    size_t n = 0;

    out[0] = '\0';
    for (size_t i = 0; i < cfg->upstream_count; i++) {
        if (cfg->upstreams[i].known && n < cap)
            n += (size_t)snprintf(out + n, cap - n, "%s%s", n > 0 ? sep : "", cfg->upstreams[i].name);
    }
    return n > 0;
}

static void say_known(const struct config *cfg)
{
    char names[KNOWN_NAMES_BYTES];

    if (known_names(cfg, ",", names, sizeof names))
        log_event(LOG_INFO, "serve.known", "names=%s", log_quote(names).s);
}

static int add_upstreams(struct serve *s, struct err *err)
{
    for (size_t i = 0; i < s->cfg->upstream_count; i++) {
        const struct config_upstream *up = &s->cfg->upstreams[i];
        struct upstream_def def = {
            .name = up->name,
            .url = up->url,
            .aliases = (const char *const *)up->aliases.v,
            .add_library = up->add_library,
            .tag_ttl_s = up->tag_ttl_ms / 1000,
            .username = up->username,
            .password_file = up->password_file,
            .credential_helper = up->credential_helper,
            .token_realms = (const char *const *)up->token_realms.v,
            .ca_file = up->ca_file,
            .cert_file = up->cert_file,
            .key_file = up->key_file,
            .insecure = up->insecure,
            .http_proxy = up->http_proxy,
            .max_connections = (unsigned)up->max_connections,
            .max_rate = (unsigned)up->max_rate,
        };

        TRY(proxy_add_upstream(s->proxy, &def, err));
        log_event(up->known ? LOG_DEBUG : LOG_INFO, "serve.upstream", "name=%s url=%s", log_quote(up->name).s,
                  log_quote(up->url).s);
    }
    say_known(s->cfg);
    return 0;
}

static int open_proxy(struct serve *s, struct err *err)
{
    const struct config *cfg = s->cfg;
    struct proxy_options opt = {
        .store = s->store,
        .pool = s->pool,
        .http = s->http,
        .user_agent = AGENT,
        .rewrite_signed = cfg->signed_images == CONFIG_SIGNED_REWRITE,
        .tag_ttl_s = cfg->tag_ttl_ms / 1000,
        .max_layer_bytes = cfg->max_layer_bytes,
        .max_ratio = (uint32_t)cfg->max_ratio,
        .offline = cfg->offline,
        .maintain_rate_bytes_s = cfg->maintenance_rate,
        .scrub_every_s = cfg->scrub_every_ms / 1000,
        .negative_ttl_ms = (int)cfg->negative_ttl_ms,
        .stale_wait_ms = (int)cfg->stale_wait_ms,
        .on_upstream_404 = cfg->on_upstream_404 == CONFIG_UPSTREAM_404_DROP ? PROXY_GONE_DROP : PROXY_GONE_SERVE,
        .unavailable_503 = cfg->on_upstream_error == CONFIG_UPSTREAM_ERROR_503,
        .access = s->access,
        .access_log = cfg->access_log == CONFIG_ON,
        .auth_file = cfg->auth_file,
        .upstream_connect_ms = (int)cfg->timeouts.connect_ms,
        .upstream_stall_ms = (int)cfg->timeouts.stall_ms,
        .upstream_request_ms = (int)cfg->timeouts.request_ms,
        .upstream_blob_ms = (int)cfg->timeouts.blob_ms,
    };

    opt.has_view = fixed_view(cfg->view, &opt.view);
    TRY(proxy_new(&opt, &s->proxy, err));
    TRY(add_upstreams(s, err));
    TRY(proxy_set_default_upstream(s->proxy, cfg->default_upstream, err));
    return proxy_start(s->proxy, err);
}

/* ---- ports ------------------------------------------------------------------------------------------------------- */

/* Adds a way out behind a message that says what is wrong already. */
static int hint(struct err *err, const char *text)
{
    struct err first = *err;

    err_clear(err);
    err_set(err, (enum err_code)first.code, "%s; %s", first.msg, text);
    err->sys = first.sys;
    return first.code;
}

static int listen_all(struct serve *s, struct err *err)
{
    for (size_t i = 0; i < s->cfg->listen_count; i++) {
        const struct config_listen *want = &s->cfg->listen[i];
        struct proxy_listen l = {
            .address = want->address,
            .link = want->link == CONFIG_LINK_WAN ? LINK_WAN : LINK_LAN,
            .upstream = want->upstream,
            .tls_cert_file = want->tls_cert_file,
            .tls_key_file = want->tls_key_file,
        };
        const char *address;
        int rc;

        l.has_view = fixed_view(want->view, &l.view);
        rc = proxy_listen(s->proxy, &l, &address, err);
        if (rc == ERR_BUSY)
            return hint(err, "say --listen ADDR:PORT for another (port 0 picks a free one)");
        if (rc < 0)
            return rc;
        if (i == 0)
            s->address = address;
        log_event(LOG_INFO, "serve.listen", "address=%s view=%s link=%s", address,
                  l.has_view ? oci_view_name(l.view) : "auto", l.link == LINK_WAN ? "wan" : "lan");
    }
    return 0;
}

static int open_admin(struct serve *s, struct err *err)
{
    const char *hooks = getenv("RECASK_TEST_HOOKS");
    struct admin_options opt = {
        .proxy = s->proxy,
        .http = s->http,
        .version = RECASK_VERSION,
        .test_hooks = hooks != NULL && strcmp(hooks, "1") == 0,
    };
    CLEANUP(free_ptr) char *path = NULL;
    int rc;

    TRY(admin_new(&opt, &s->admin, err));
    TRY(str_printf(&path, err, "%s/" ADMIN_SOCKET, s->cfg->store_path));
    TRY(admin_listen_unix(s->admin, path, err));
    if (s->cfg->admin == NULL)
        return 0;
    rc = admin_listen(s->admin, s->cfg->admin, &s->admin_address, err);
    if (rc == ERR_BUSY)
        return hint(err, "say --admin ADDR:PORT for another, or --admin off");
    if (rc < 0)
        return rc;
    log_event(LOG_INFO, "serve.admin", "address=%s socket=%s", s->admin_address, log_quote(path).s);
    return 0;
}

/* ---- the process ------------------------------------------------------------------------------------------------- */

/* Each pull holds a few descriptors, and the soft limit is 1024 for the sake of select(), which nothing here uses. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max)
        return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        log_event(LOG_WARN, "serve.nofile", "error=%s", log_quote(strerror(errno)).s);
}

/* Held back from before the first thread starts: all threads inherit that, so only wait_for_signal() sees them. */
static void hold_signals(sigset_t *out)
{
    sigemptyset(out);
    sigaddset(out, SIGINT);
    sigaddset(out, SIGTERM);
    pthread_sigmask(SIG_BLOCK, out, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* The second signal: the store stands a kill at any time, so nothing needs to be cleaned up. */
static void exit_at_once(int sig UNUSED)
{
    static const char text[] = "recask: stopped at once\n";
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);

    (void)ignored;
    _exit(EXIT_FAILED);
}

static void wait_for_signal(const sigset_t *held)
{
    struct sigaction at_once = {.sa_handler = exit_at_once};
    int sig = 0;

    while (sigwait(held, &sig) != 0)
        continue;
    sigaction(SIGINT, &at_once, NULL);
    sigaction(SIGTERM, &at_once, NULL);
    pthread_sigmask(SIG_UNBLOCK, held, NULL);
    log_event(LOG_INFO, "serve.stop", "signal=%s", sig == SIGINT ? "INT" : "TERM");
}

/* An image that can be pulled right now, for people: a wildcard address is none to pull from. */
static void pull_example(const struct serve *s, char *out, size_t cap)
{
    const char *port = strrchr(s->address, ':');
    bool any = strncmp(s->address, "0.0.0.0:", 8) == 0 || strncmp(s->address, "[::]:", 5) == 0;
    bool hub = strcmp(s->cfg->default_upstream, "docker.io") == 0 && s->cfg->listen[0].upstream == NULL;

    snprintf(out, cap, "docker pull %s%s/%s", any ? "127.0.0.1" : s->address, any && port != NULL ? port : "",
             hub ? "library/alpine" : "IMAGE");
}

/* For who started it by hand. */
static void tell_ready(const struct serve *s, const char *upstream, const char *example)
{
    const struct config *cfg = s->cfg;
    char known[KNOWN_NAMES_BYTES];

    fprintf(stderr, "recask " RECASK_VERSION " listening on %s, upstream %s%s\n", s->address, upstream,
            cfg->offline ? " (offline)" : "");
    if (known_names(cfg, ", ", known, sizeof known))
        fprintf(stderr, "known by name: %s\n", known);
    if (cfg->auth.htpasswd != NULL)
        fprintf(stderr, "clients need a password of %s (docker login)\n", cfg->auth.htpasswd);
    fprintf(stderr, "try: %s\nCtrl-C stops it; \"recask stats\" in another terminal shows what it does\n", example);
}

static void say_ready(const struct serve *s)
{
    const char *upstream = s->cfg->listen[0].upstream != NULL ? s->cfg->listen[0].upstream : s->cfg->default_upstream;
    char example[400];

    pull_example(s, example, sizeof example);
    log_event(LOG_INFO, "serve.ready", "version=" RECASK_VERSION " address=%s admin=%s upstream=%s store=%s try=%s",
              s->address, s->admin_address != NULL ? s->admin_address : "off", log_quote(upstream).s,
              log_quote(s->cfg->store_path).s, log_quote(example).s);
    if (isatty(STDERR_FILENO))
        tell_ready(s, upstream, example);
}

/* What needs a file says so when it cannot have it; this is for those that are needed later, such as passwords. */
static int look_at_file(void *arg UNUSED, const struct config_file *f, struct err *err UNUSED)
{
    struct err why = ERR_INIT;
    bool exposed;

    if (config_file_check(f, &exposed, &why) < 0)
        log_event(LOG_WARN, "serve.file", "key=%s error=%s", f->place, log_quote(why.msg).s);
    else if (exposed)
        log_event(LOG_WARN, "serve.exposed", "key=%s file=%s why=%s", f->place, log_quote(f->path).s,
                  log_quote("others may read or write it; chmod 600 would keep them out").s);
    return 0;
}

static int run(const struct args *args, struct err *err)
{
    CLEANUP(config_cleanup) struct config *cfg = NULL;
    CLEANUP(serve_release) struct serve s = {0};
    struct config_source src = {.env = cli_env(), .flags = args->flags, .flag_count = args->flag_count};
    sigset_t held;

    TRY(config_load(&src, &cfg, err));
    s.cfg = cfg;
    log_set_level(cfg->log_level);
    TRY(config_files(cfg, look_at_file, NULL, err));
    hold_signals(&held);
    raise_descriptor_limit();
    TRY(open_store(&s, err));
    TRY(open_http(&s, err));
    TRY(open_access(&s, err));
    TRY(open_proxy(&s, err));
    TRY(listen_all(&s, err));
    TRY(open_admin(&s, err));
    say_ready(&s);
    wait_for_signal(&held);
    serve_release(&s);
    log_event(LOG_INFO, "serve.stopped", "code=0");
    return 0;
}

static const struct flag flags[] = {
    {"--config", "FILE",
     "JSON file with any of these and more (RECASK_CONFIG); \"recask config --help\" lists its keys"},
    {NULL, NULL, NULL},
};

const struct command cmd_serve = {
    .name = "serve",
    .synopsis = "[FLAGS]",
    .summary = "run the proxy",
    .details = "Without flags: listens on 127.0.0.1:5000 and fetches from Docker Hub. Then\n"
               "  docker pull 127.0.0.1:5000/library/alpine\n"
               "goes through it, and so do images of the other big registries, by their names:\n"
               "  docker pull 127.0.0.1:5000/ghcr.io/OWNER/IMAGE\n"
               "With another registry, or several:\n"
               "  recask serve --upstream https://registry.example.com\n"
               "  recask serve --upstream https://registry.example.com --upstream acme=https://r.acme.example\n"
               "\n"
               "Passwords for upstreams, TLS, rules for users and timeouts are for the file (--config):\n"
               "\"recask config --help\" lists its keys.\n"
               "\n"
               "Flags win over the environment, the environment over the file. SIGTERM or Ctrl-C lets running\n"
               "answers end, a second one stops at once.\n",
    .flags = flags,
    .config_flags = true,
    .max_words = 0,
    .run = run,
};
