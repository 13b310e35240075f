#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command line and the admin API from outside: texts, exit statuses, --json, signals, refusals."""
import http.server
import json
import os
import signal
import socket
import subprocess
import threading
import time

import images
from recask import BINARY, request
from runner import equal, main, until

COMMANDS = ["serve", "ls", "inspect", "pin", "unpin", "rm", "gc", "scrub", "stats", "config", "fsck", "version"]
LATER = ["pull", "export", "import", "sync", "client-config"]


def run(*args, env=None, timeout=60):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RECASK_")}
    return subprocess.run([BINARY, *args], text=True, capture_output=True, check=False, timeout=timeout,
                          stdin=subprocess.DEVNULL, env={**clean, "NO_COLOR": "", **(env or {})})


def fails(code, says, *args, env=None):
    """The command ends so, with nothing on stdout, and its messages begin as they should."""
    done = run(*args, env=env)
    equal(done.returncode, code, " ".join(args) + ": " + done.stderr)
    equal(done.stdout, "")
    for line in done.stderr.splitlines():
        assert line.startswith(("recask: ", "ts=")), line
    assert says in done.stderr, f"{says!r} not in {done.stderr!r}"
    return done


def admin(r, method, target, **headers):
    return request(r.admin, method, target, {k.replace("_", "-"): v for k, v in headers.items()})


def admin_socket(r, method, target):
    return request(os.path.join(r.store, "admin.sock"), method, target)


# ---- without an instance ------------------------------------------------------------------------------------------------

def test_help(t):
    overview = run("--help")
    equal(overview.returncode, 0)
    equal(overview.stderr, "")
    words = [line.split()[0] for line in overview.stdout.splitlines() if line.startswith("  ")]
    for name in COMMANDS:
        assert name in words, name
    for name in LATER:
        assert name not in words, name
    assert "docker pull 127.0.0.1:5000/library/alpine" in overview.stdout
    for same in (["-h"], ["help"]):
        equal(run(*same).stdout, overview.stdout)

    nothing = run()
    equal(nothing.returncode, 2)
    equal(nothing.stdout, "")
    equal(nothing.stderr, overview.stdout)

    for name in COMMANDS:
        one = run(name, "--help")
        equal(one.returncode, 0)
        assert f"Usage: recask {name}" in one.stdout and "Flags:" in one.stdout, one.stdout
        assert max(map(len, one.stdout.splitlines())) <= 100, name
        equal(run("help", name).stdout, one.stdout)
        equal(run(name, "nonsense", "--no-such-flag", "-h").stdout, one.stdout)
    serve = run("serve", "--help").stdout
    for flag in ("--listen ADDR:PORT", "--admin ADDR:PORT", "--store DIR", "--upstream [NAME=]URL", "--view auto|original",
                 "--quota SIZE", "--offline", "--config FILE", "RECASK_STORE", "127.0.0.1:5000"):
        assert flag in serve, flag
    for flag in ("--known-upstreams on|off", "--htpasswd FILE", "--auth-file FILE", "recask config --help"):
        assert flag in serve, flag
    for key in ("store.quota", "upstreams[].url", "listen[].link", "log.level", "auth.rules[].users",
                "upstreams[].credential_helper", "timeouts.blob"):
        assert key in run("config", "--help").stdout, key


def test_maintenance(t):
    """gc and scrub: a short table, one JSON object with --json, and a plain word when nobody runs there."""
    r = t.recask("--scrub-every", "0s")
    for words, lines in ((["gc"], ["evicted    0 things", "compacted  0 packs"]),
                         (["scrub"], ["checked   0 B", "found     0", "repaired  0"]),
                         (["scrub", "--repair"], ["checked   0 B", "found     0", "repaired  0"])):
        done = run(*words, "--store", r.store)
        equal((done.returncode, done.stderr), (0, ""))
        for line in lines:
            assert line in done.stdout, done.stdout
        answer = json.loads(run(*words, "--json", "--store", r.store).stdout)
        equal((answer["running"], answer["last"][words[0]]["state"], answer["scrub_due"]), (None, "done", None))
    r.stop()
    for words in (["gc"], ["scrub"]):
        done = run(*words, "--store", r.store)
        equal((done.returncode, done.stdout), (1, ""))
        assert "no recask is running" in done.stderr, done.stderr


def test_version(t):
    done = run("version")
    equal((done.returncode, done.stdout.split()[0]), (0, "recask"))
    equal(run("--version").stdout, done.stdout)
    equal(json.loads(run("version", "--json").stdout)["version"], done.stdout.split()[1])


def test_wrong_use(t):
    fails(2, 'unknown command "sevre"; did you mean "serve"?', "sevre")
    fails(2, 'unknown command "pull"', "pull", "alpine")
    fails(2, 'unknown command "xyzzy"', "help", "xyzzy")
    fails(2, "a command comes first", "--store", "/x")
    fails(2, 'serve: unknown flag "--quotta"; did you mean --quota?', "serve", "--quotta", "1GiB")
    fails(2, "serve: --quota needs a value: --quota SIZE", "serve", "--quota")
    fails(2, 'serve: "now" is one word too many', "serve", "now")
    fails(2, "inspect: something is missing: recask inspect REF", "inspect")
    fails(2, "--quota: wants a size", "serve", "--quota", "lots")
    fails(2, "RECASK_VIEW: wants one of", "serve", env={"RECASK_VIEW": "fast"})
    fails(2, "recask config check FILE", "config")
    fails(2, 'config: unknown word "chekc"', "config", "chekc", "x")
    fails(2, "which file?", "config", "check")


def test_config_check(t):
    path = os.path.join(t.directory, "config.json")

    def check(text):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    good = run("config", "check", check('{"view": "zstd"}'), env={"RECASK_VIEW": "nonsense", "HOME": ""})
    equal((good.returncode, good.stderr), (0, ""))
    assert good.stdout.startswith(f"{path}: good"), good.stdout
    fails(1, f"{path}: line 3, column 1: ", "config", "check", check('{\n  "view": "zstd",\n}\n'))
    fails(1, f'{path}: unknown key "veiw"; did you mean "view"?', "config", "check", check('{"veiw": 1}'))
    fails(1, f"{path}: upstreams[0].url: ", "config", "check", check('{"upstreams": [{"url": "x"}]}'))
    fails(1, "/nowhere/at/all.json", "config", "check", "/nowhere/at/all.json")
    # The same file stops serve, which is a wrong use of it.
    fails(2, f"{path}: view: wants one of", "serve", "--config", check('{"view": 1}'))
    fails(2, f"{path}: auth.htpasswd: is missing", "serve", "--config", check('{"auth": {}}'))


def test_config_check_upstreams(t):
    path = os.path.join(t.directory, "config.json")
    for text, says in (
            ("{}", "1 listener, 0 upstreams and 7 known ones, docker.io is the default"),
            ('{"known_upstreams": "off"}', "1 listener, 1 upstream, docker.io is the default"),
            ('{"upstreams": [{"name": "ghcr.io", "url": "https://mirror.example"}, {"url": "https://b"}]}',
             "1 listener, 2 upstreams and 6 known ones, b is the default")):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        equal(run("config", "check", path).stdout, f"{path}: good ({says})\n")


def write(path, text, mode=0o600):
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)
    return path


def test_config_check_files(t):
    """What a configuration names is looked at, and never shown."""
    path, secret = os.path.join(t.directory, "config.json"), os.path.join(t.directory, "hub-token")
    write(path, json.dumps({"upstreams": [
        {"url": "https://a"}, {"url": "https://b", "username": "u", "password_file": secret}]}))
    fails(1, f"{path}: upstreams[1].password_file: {secret}: No such file", "config", "check", path)
    write(secret, "hunter2")
    equal(run("config", "check", path).stderr, "")
    os.chmod(secret, 0o644)
    done = run("config", "check", path)
    equal(done.returncode, 0)
    equal(done.stderr, f"recask: warning: {path}: upstreams[1].password_file: {secret}: others may read or write it "
                       "(chmod 600 would keep them out)\n")
    write(path, json.dumps({"listen": [{"address": "127.0.0.1:5000",
                                        "tls": {"cert_file": t.directory, "key_file": secret}}]}))
    fails(1, f"{path}: listen[0].tls.cert_file: {t.directory}: Is a directory", "config", "check", path)
    # The example in the help is a good one.
    text = run("config", "--help").stdout
    example = text[text.index("  {"):text.index("\n  }") + 4].replace("/etc/recask", t.directory)
    for name in ("acme.pem", "htpasswd"):
        write(os.path.join(t.directory, name), "x")
    os.chmod(secret, 0o600)
    done = run("config", "check", write(path, example))
    equal((done.returncode, done.stderr), (0, ""))
    assert "2 listeners, 2 upstreams and 6 known ones, docker.io is the default" in done.stdout, done.stdout
    write(path, json.dumps({"upstreams": [{"url": "https://a", "password": "hunter2"}]}))
    done = fails(1, f"{path}: upstreams[0]: unknown key \"password\": passwords are not written here", "config", "check",
                 path)
    assert "hunter2" not in done.stderr, done.stderr


def test_no_instance(t):
    store = os.path.join(t.directory, "nothing")
    for command in (["stats"], ["ls"], ["inspect", "alpine"]):
        fails(1, f"no recask is running on store {store} (no admin.sock there)", *command, "--store", store)
        fails(1, f"no recask is running on store {store}", *command, env={"RECASK_STORE": store})
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % sock.getsockname()[1]
        fails(1, f"no recask answers on {address}", "stats", "--admin", address)
    os.mkdir(store)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(os.path.join(store, "admin.sock"))
    fails(1, "left over from one that has ended", "stats", "--store", store)
    fails(2, "too long for a Unix socket", "stats", "--store", "/" + "x" * 120)


def test_not_a_recask(t):
    """Something else answers: no guessing, no crash."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path.endswith("stats") else 500)
            self.end_headers()
            self.wfile.write(b"<html>" if self.path.endswith("stats") else b'{"error": 5}')

        def log_message(self, *args):  # pylint: disable=arguments-differ
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = "127.0.0.1:%d" % server.server_address[1]
    fails(1, "not JSON", "stats", "--admin", address)
    fails(1, "HTTP status 500", "ls", "--admin", address)
    server.shutdown()
    server.server_close()


# ---- with an instance ---------------------------------------------------------------------------------------------------

def pull(r, repo, image, reference):
    equal(r.manifest(repo, reference).status, 200)
    for layer in image.layers:
        equal(r.blob(repo, layer.digest).body, layer.blob)


def test_commands(t):
    image = images.small_image().push(t.up, "library/one", "1.0")
    images.artifact(t.up, "library/art", "latest")
    r = t.recask(upstreams=["docker.io=" + t.up.url])
    empty = run("ls", "--store", r.store)
    equal((empty.returncode, len(empty.stdout.splitlines())), (0, 1))
    pull(r, "library/one", image, "1.0")
    equal(r.manifest("library/art", "latest").status, 200)
    r.wait_jobs()
    admin_flag = "%s:%d" % r.admin

    for where in (["--store", r.store], ["--admin", admin_flag]):
        stats = json.loads(run("stats", "--json", *where).stdout)
        equal(stats["store"]["canonical_layers"] >= 2, True)
        equal(stats["requests"]["total"] > 0 and stats["version"] in run("version").stdout, True)
        listed = json.loads(run("ls", *where, "--json").stdout)["images"]
        equal([i["ref"] for i in listed], ["docker.io/library/art:latest", "docker.io/library/one:1.0"])
        equal([i["views"] for i in listed][0], "never")
        shown = json.loads(run("inspect", "one:1.0", "--json", *where).stdout)
        equal(shown["digest"], image.digest)
        equal([x["canonical"]["digest"] for x in shown["layers"]], [x.diff_id for x in image.layers])
        equal([x["size"] for x in shown["layers"]], [len(x.blob) for x in image.layers])
        equal([x["canonical_present"] for x in shown["layers"]], [True, True])

    table = run("ls", "--store", r.store)
    equal(table.returncode, 0)
    assert "docker.io/library/one:1.0" in table.stdout and image.digest[7:19] in table.stdout, table.stdout
    assert "\033" not in table.stdout
    text = run("inspect", "docker.io/library/one:1.0", env={"RECASK_STORE": r.store}).stdout
    for word in (image.digest, image.layers[0].digest, image.layers[0].diff_id, "canonical", "stored"):
        assert word in text, text
    assert "never: an artifact" in run("inspect", "art", "--store", r.store).stdout
    assert "requests" in run("stats", "--store", r.store).stdout
    fails(1, "docker.io/library/one:2 has not been pulled", "inspect", "one:2", "--store", r.store)
    fails(2, "is not a repository's name", "inspect", "ONE", "--store", r.store)
    fails(2, "is empty", "inspect", "", "--store", r.store)
    # Asking leaves no trace, and http_proxy is not for this.
    equal(len(json.loads(run("ls", "--json", "--store", r.store, env={"http_proxy": "http://127.0.0.1:9"}).stdout)["images"]),
          2)


def test_output_that_cannot_be_written(t):
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([BINARY, "version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    equal(done.returncode, 1)
    assert "No space left" in done.stderr, done.stderr


def test_index_inspect(t):
    one = images.small_image(1).push(t.up, "a/b")
    two = images.small_image(2, arch="arm64").push(t.up, "a/b")
    index = images.Index([one.descriptor(), two.descriptor()]).push(t.up, "a/b", "multi")
    r = t.recask()
    equal(r.manifest("a/b", "multi").status, 200)
    pull(r, "a/b", two, two.digest)
    r.wait_jobs()
    shown = json.loads(run("inspect", "a/b:multi", "--json", "--store", r.store).stdout)
    equal(shown["digest"], index.digest)
    equal([(m["digest"], m["platform"]) for m in shown["manifests"]],
          [(one.digest, "linux/amd64"), (two.digest, "linux/arm64")])
    equal(shown["manifests"][1]["known"], True)
    text = run("inspect", f"a/b@{index.digest}", "--store", r.store).stdout
    assert "linux/arm64" in text and two.layers[0].diff_id in text, text


# ---- the admin API ------------------------------------------------------------------------------------------------------

def test_admin_routes(t):
    r = t.recask()
    t.up.stop()  # nothing here depends on it
    equal(admin(r, "GET", "/healthz").body, b"ok\n")
    equal(admin(r, "GET", "/readyz").body, b"ready\n")
    front = admin(r, "GET", "/")
    equal(front.h("Content-Type"), "text/plain; charset=utf-8")
    assert b"/api/v1/stats" in front.body
    stats = admin(r, "GET", "/api/v1/stats")
    equal(stats.h("Content-Type"), "application/json")
    equal(set(stats.json()["store"]) >= {"bytes_on_disk", "canonical_bytes", "unique_chunk_bytes", "frame_bytes",
                                         "original_bytes", "chunks", "canonical_layers", "replayable_layers"}, True)
    head = admin(r, "HEAD", "/healthz")
    equal((head.status, head.body, head.h("Content-Length")), (200, b"", "3"))
    for path in ("/nothing", "/api/v1", "/api/v1/stats/", "/healthz/x", "/api/v1/images/", "/metricsx"):
        answer = admin(r, "GET", path)
        equal((answer.status, answer.json()["error"]["code"]), (404, "not_found"), path)
    for method in ("POST", "PUT", "DELETE"):
        answer = admin(r, method, "/api/v1/stats")
        equal((answer.status, answer.h("Allow")), (405, "GET, HEAD"), method)
    equal(admin(r, "GET", "/api/v1/images/x%00y").json()["error"]["code"], "bad_request")
    equal(admin(r, "GET", "/api/v1/images/a%2Fb%3A1").json()["error"]["message"],
          f"{t.up.host}/a/b:1 has not been pulled through this recask")
    equal(admin(r, "GET", "/api/v1/images/a/b:1").status, 404)


def test_admin_guard(t):
    r = t.recask()

    def status(method="GET", **headers):
        raw = f"{method} /api/v1/stats HTTP/1.1\r\nConnection: close\r\n"
        raw += "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + "\r\n"
        with socket.create_connection(r.admin) as sock:
            sock.sendall(raw.encode())
            return int(sock.makefile("rb").readline().split()[1])

    for host in ("localhost", "localhost:1", "127.0.0.1", "127.1.2.3:5001", "[::1]:5001"):
        equal(status(Host=host), 200, host)
    for host in ("evil.example", "127.0.0.1.evil.example:5001", "10.0.0.1"):
        equal(status(Host=host), 403, host)
    answer = request(r.admin, "GET", "/healthz", {"Origin": "http://evil.example"})
    equal(answer.status, 200)  # reading is the same-origin policy's business
    equal(status("POST", Host="localhost", Origin="http://evil.example"), 403)
    # Over the socket there is no Host to forge.
    equal(admin_socket(r, "GET", "/healthz").status, 200)
    equal(os.stat(os.path.join(r.store, "admin.sock")).st_mode & 0o777, 0o600)


def test_evict_hook(t):
    image = images.small_image(layers=1).push(t.up, "a/b", "1")
    r = t.recask()
    pull(r, "a/b", image, "1")
    r.wait_jobs()
    path = f"/api/v1/test/evict?digest={image.layers[0].diff_id}"
    equal(admin(r, "POST", path).status, 404)
    equal(admin_socket(r, "GET", path).h("Allow"), "POST")
    equal(admin_socket(r, "POST", "/api/v1/test/evict").status, 400)
    equal(admin_socket(r, "POST", "/api/v1/test/evict?digest=x").status, 400)
    equal(admin_socket(r, "POST", "/api/v1/test/evict?digest=sha256:" + "0" * 64).status, 404)
    equal(admin_socket(r, "POST", path).json()["evicted"], image.layers[0].diff_id)
    shown = json.loads(run("inspect", "a/b:1", "--json", "--store", r.store).stdout)["layers"][0]
    equal(shown["canonical_present"], False)
    plain = t.recask(env={"RECASK_TEST_HOOKS": "0"})
    equal(admin_socket(plain, "POST", path).status, 404)


# ---- starting and stopping ----------------------------------------------------------------------------------------------

def test_start_log(t):
    r = t.recask(upstreams=["docker.io=" + t.up.url])
    until(lambda: "ev=serve.ready" in r.log(), "the line that says where it listens")
    ready = next(line for line in r.log().splitlines() if "ev=serve.ready" in line)
    assert "address=%s:%d" % r.address in ready and "upstream=docker.io" in ready, ready
    assert 'try="docker pull %s:%d/library/alpine"' % r.address in ready, ready
    r.stop()
    assert "ev=serve.stop signal=TERM" in r.log()
    equal(os.path.exists(os.path.join(r.store, "admin.sock")), False)


def test_start_log_upstreams(t):
    """A user's upstreams are a line each; the known ones one together."""
    secret = write(os.path.join(t.directory, "token"), "hunter2", 0o644)
    path = write(os.path.join(t.directory, "config.json"), json.dumps({"upstreams": [
        {"name": "docker.io", "url": t.up.url},
        {"url": "http://127.0.0.1:9", "aliases": ["quay.io"], "username": "u", "password_file": secret},
        {"name": "b", "url": "http://127.0.0.1:9/b", "username": "u", "password_file": secret + "-later"}]}))
    r = t.recask("--config", path, upstreams=[])
    until(lambda: "ev=serve.ready" in r.log(), "the line that says where it listens")
    lines = [line.split("ev=")[1] for line in r.log().splitlines() if "ev=serve." in line]
    equal([line for line in lines if line.startswith("serve.upstream")],
          [f"serve.upstream name=docker.io url={t.up.url}", "serve.upstream name=127.0.0.1:9 url=http://127.0.0.1:9",
           "serve.upstream name=b url=http://127.0.0.1:9/b"])
    equal([line for line in lines if line.startswith("serve.known")],
          ["serve.known names=ghcr.io,registry.k8s.io,gcr.io,public.ecr.aws,mcr.microsoft.com"])
    equal([line for line in lines if line.startswith("serve.exposed")],
          [f'serve.exposed key=upstreams[1].password_file file={secret} '
           'why="others may read or write it; chmod 600 would keep them out"'])
    equal([line for line in lines if line.startswith("serve.file")],
          [f'serve.file key=upstreams[2].password_file error="{secret}-later: No such file or directory"'])
    assert "hunter2" not in r.log()
    off = t.recask("--known-upstreams", "off")
    until(lambda: "ev=serve.ready" in off.log(), "the line that says where it listens")
    assert "ev=serve.known" not in off.log()


def test_places_in_use(t):
    r = t.recask()
    listen, store = "%s:%d" % r.address, os.path.join(t.directory, "other")
    fails(1, f"{listen}: the address is in use by another process; say --listen", "serve", "--listen", listen, "--store",
          store, "--admin", "127.0.0.1:0")
    fails(1, f"{listen}: the address is in use by another process; say --admin", "serve", "--listen", "127.0.0.1:0",
          "--store", store, "--admin", listen)
    fails(1, r.store, "serve", "--listen", "127.0.0.1:0", "--admin", "off", "--store", r.store)
    fails(1, "", "serve", "--listen", "127.0.0.1:0", "--store", "/proc/nothing")
    equal(r.stats()["jobs"]["pending"], 0)


def test_admin_off(t):
    store = os.path.join(t.directory, "s")
    command = [BINARY, "serve", "--listen", "127.0.0.1:0", "--admin", "off", "--store", store, "--upstream", t.up.url]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = next(line for line in process.stderr if "ev=serve.ready" in line)
            assert "admin=off" in line, line
            done = run("stats", "--store", store)
            equal(done.returncode, 0, done.stderr)
            process.send_signal(signal.SIGINT)
            equal(process.wait(30), 0)
        finally:
            process.kill()


def stalled(t, *flags):
    """An instance with one answer running that does not end by itself."""
    data = images.noise(1, 1 << 20)
    digest = t.up.add_blob("a/b", data)
    t.up.knob(t.up.blob_path("a/b", digest), stall_at=300_000)
    r = t.recask(*flags)
    stream = r.open("GET", f"/v2/a/b/blobs/{digest}")
    stream.head()
    return r, stream, data


def test_stop_waits_for_answers(t):
    r, stream, data = stalled(t)
    r.process.terminate()
    time.sleep(0.3)
    equal(r.process.poll(), None)
    t.up.clear_knobs()
    equal(stream.rest().body, data)
    equal(r.process.wait(30), 0)
    r.stop()


def test_stop_timeout(t):
    r, stream, _ = stalled(t, "--stop-timeout", "500ms")
    began = time.monotonic()
    r.process.terminate()
    equal(r.process.wait(30), 0)
    equal(0.4 < time.monotonic() - began < 20, True)
    equal(stream.rest().complete, False)
    t.allow = "."
    r.stop()


def test_second_signal(t):
    r, stream, _ = stalled(t)
    r.process.send_signal(signal.SIGINT)
    until(lambda: "ev=serve.stop" in r.log(), "the first signal")
    time.sleep(0.1)
    r.process.send_signal(signal.SIGINT)
    equal(r.process.wait(5), 1)
    assert "stopped at once" in r.log()
    stream.close()
    r.kill9()
    r.start()
    r.stop()


if __name__ == "__main__":
    main()
