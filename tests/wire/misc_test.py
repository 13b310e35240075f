#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The HTTP side and the process: TLS hellos, limits, methods, idle CPU, stopping, odd requests."""
import os
import random
import signal
import socket
import ssl
import subprocess
import time

import images
import recask
from mock import sha256
from recask import connect, request, talk, under_sanitizer
from runner import Clients, equal, main, until

REPO = "team/app"


def client_hello():
    context = ssl.create_default_context()
    out = ssl.MemoryBIO()
    side = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="registry")
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


# ---- connections --------------------------------------------------------------------------------------------------------

def test_tls_hello_gets_400(t):
    """design 7, 9: docker's containerd store falls back to plain HTTP only when it gets an HTTP answer."""
    r = t.recask()
    hello = client_hello()
    for n in range(1000):
        # Several lengths: the whole hello, a part of it, and the first byte alone
        data = hello if n % 10 else hello[:1 + n % 300]
        answer = talk(r.address, data)
        equal(answer[:12], b"HTTP/1.1 400", f"hello {n}")
    with connect(r.address) as sock:  # in two pieces
        sock.sendall(hello[:3])
        time.sleep(0.05)
        sock.sendall(hello[3:])
        equal(sock.recv(100)[:12], b"HTTP/1.1 400")
    equal(r.get("/v2/").status, 200)


def test_garbage(t):
    """Whatever is sent, the next client is served."""
    r = t.recask()
    noise = random.Random(1)
    for data in (b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 100, b"GET /v2/ HTTP/1.1\r\nHost",
                 b"GET /v2/ HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                 b"GET /v2/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"SSH-2.0-x\r\n",
                 *(noise.randbytes(noise.randint(1, 3000)) for _ in range(50))):
        with connect(r.address, 0.3) as sock:
            try:
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(4096):
                    pass
            except (ConnectionResetError, BrokenPipeError, OSError):
                pass
    equal(r.get("/v2/").status, 200)


def test_silent_and_slow_connections(t):
    """Clients that say nothing, or little by little, hold up nobody."""
    r = t.recask()
    silent = [connect(r.address) for _ in range(100)]
    slow = [connect(r.address) for _ in range(50)]
    for sock in slow:
        sock.sendall(b"GET /v2/ HT")
    began = time.monotonic()
    for _ in range(20):
        equal(r.get("/v2/").status, 200)
    equal(time.monotonic() - began < (10 if under_sanitizer() else 2), True)
    for sock in slow:
        sock.sendall(b"TP/1.1\r\nHost: x\r\n\r\n")
    equal([sock.recv(12) for sock in slow], [b"HTTP/1.1 200"] * 50)
    for sock in silent + slow:
        sock.close()


def test_keep_alive_and_http10(t):
    image = images.small_image(layers=1).push(t.up, REPO, "1")
    r = t.recask()
    r.pull(REPO, image, "1")
    r.wait_jobs()
    with connect(r.address) as sock:
        for target in ("/v2/", f"/v2/{REPO}/manifests/none", f"/v2/{REPO}/manifests/1", "/v2/"):
            sock.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            got = b""
            while b"\r\n\r\n" not in got:
                got += sock.recv(65536)
            head, _, body = got.partition(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            while len(body) < length:
                body += sock.recv(65536)
            equal(len(body), length)
    # An HTTP/1.0 client knows no chunks.
    layer = image.layers[0]
    answer = talk(r.address, f"GET /v2/{REPO}/blobs/{layer.diff_id} HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    equal(b"chunked" in head.lower(), False)
    body = images.gunzip_one(body) if b"content-encoding: gzip" in head.lower() else body
    equal(body == layer.tar, True)


# ---- limits and methods -------------------------------------------------------------------------------------------------

def test_huge_headers(t):
    r = t.recask()
    for headers in ({"X-Big": "a" * 17_000}, {f"X-{i}": "b" * 1000 for i in range(20)}):
        equal(r.get("/v2/", headers).status, 431)
    equal(r.get("/v2/", {f"X-{i}": "b" * 100 for i in range(30)}).status, 200)
    many = r.get("/v2/", {f"X-{i}": "c" for i in range(500)})
    equal(many.status in (200, 431), True)
    long = r.get("/v2/" + "a" * 3000 + "/manifests/1")
    equal(long.status in (400, 404, 414, 431), True)
    equal(r.get("/v2/" + "a" * 40_000).status in (400, 414, 431), True)
    equal(t.up.requests, [])


def test_methods(t):
    r = t.recask()
    image = images.small_image().push(t.up, REPO, "1")
    for method in ("PUT", "DELETE", "PATCH", "POST", "BREW"):
        for target in ("/v2/", f"/v2/{REPO}/manifests/1", f"/v2/{REPO}/blobs/{image.config_digest}",
                       f"/v2/{REPO}/tags/list"):
            answer = r.open(method, target, {"Content-Length": "0"}).rest()
            equal((answer.status, answer.error_code()), (405, "UNSUPPORTED"), f"{method} {target}")
    answer = r.open("POST", f"/v2/{REPO}/blobs/uploads/", {"Content-Length": "0"}).rest()
    equal(answer.status, 405)
    equal(t.up.requests, [])


def test_request_bodies(t):
    """A body that nobody wants is refused, not collected."""
    r = t.recask()
    for length in (10, 2 << 20):
        with connect(r.address, 10) as sock:
            sock.sendall(f"PUT /v2/{REPO}/manifests/1 HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
            try:
                for _ in range(0, length, 65536):
                    sock.sendall(b"x" * min(length, 65536))
            except (BrokenPipeError, ConnectionResetError):
                pass
            try:
                equal(sock.recv(12) in (b"HTTP/1.1 405", b"HTTP/1.1 413"), True)
            except ConnectionResetError:
                pass
    equal(r.get("/v2/").status, 200)


def test_bad_paths(t):
    """Every refusal is an OCI error body, and nothing odd reaches the upstream."""
    digest = sha256(b"x")
    r = t.recask()
    for path in ("/", "/v1/", "/v2/x", "/v2/_catalog", "/v2//manifests/1", "/v2/a//b/manifests/1", "/v2/a/manifests/",
                 "/v2/a/manifests", "/v2/a/blobs/", "/v2/../etc/manifests/1", "/v2/a/../b/manifests/1",
                 "/v2/a%2Fb/manifests/1", "/v2/a%00b/manifests/1", "/v2/a%zz/manifests/1", "/v2/a/manifests/..",
                 "/v2/a/manifests/.hidden", "/v2/a/manifests/" + "t" * 129, "/v2/" + "a" * 256 + "/manifests/1",
                 "/v2/-a/manifests/1", "/v2/a./manifests/1", "/v2/A/manifests/1", "/v2/a b/manifests/1".replace(" ", "%20"),
                 f"/v2/a/blobs/{digest}/x", f"/v2/a/blobs/{digest.upper()}", f"/v2/a/blobs/{digest}0",
                 "/v2/a/manifests/1%0d%0aX:y", "/v2/a/tags/lists", "/v2/tags/list", "/v2/a/referrers/x", "//v2/",
                 "/v2/a/blobs/md5:" + "a" * 32, "/%76%32/"):
        answer = r.get(path)
        if path == "/%76%32/":
            continue
        equal(answer.status in (400, 404), True, f"{path}: {answer}")
        equal(bool(answer.error_code()), True, path)
        equal(answer.h("X-y"), None)
    equal(t.up.requests, [])


def test_request_ids(t):
    r = t.recask()
    equal(r.get("/v2/", {"X-Request-Id": "abc-123"}).h("X-Request-Id"), "abc-123")
    for odd in ("a b", 'x"y', "a" * 500, "a=b\tc"):
        got = r.get("/v2/", {"X-Request-Id": odd}).h("X-Request-Id")
        equal(bool(got) and got != odd, True, odd)
    first, second = (r.get("/v2/").h("X-Request-Id") for _ in range(2))
    equal(first != second, True)


def test_log_lines(t):
    """What clients send cannot make lines of its own in the log, nor secrets appear there."""
    r = t.recask()
    r.get("/v2/a/manifests/1%0als=fake", {"User-Agent": 'x" lvl=err ev=fake y="', "Authorization": "Basic c2VjcmV0"})
    for line in r.log().splitlines():
        equal(line.startswith("ts="), True, line)
    equal("c2VjcmV0" in r.log(), False)
    t.allow = "ev=fake"


# ---- passthrough --------------------------------------------------------------------------------------------------------

def test_tags_and_referrers(t):
    for tag in ("a", "b"):
        image = images.small_image().push(t.up, REPO, tag)
    t.up.referrers[REPO, image.digest] = body = images.to_json({
        "schemaVersion": 2, "mediaType": images.OCI_INDEX, "manifests": [{
            "mediaType": images.OCI_MANIFEST, "digest": sha256(b"s"), "size": 1, "artifactType": "application/x"}]})
    r = t.recask()
    tags, referrers = f"/v2/{REPO}/tags/list", f"/v2/{REPO}/referrers/{image.digest}"
    clients, results = Clients(), []
    for _ in range(10):
        clients.run(lambda: results.append(r.get(tags).json()["tags"]))
        clients.run(lambda: equal(r.get(referrers).body, body))
    clients.join()
    equal(results, [["a", "b"]] * 10)
    equal(t.up.count("GET", tags) <= 10, True)
    t.up.forget()
    for _ in range(10):
        r.get(tags)
        r.get(referrers)
    equal((t.up.count("GET", tags), t.up.count("GET", referrers)), (0, 0), "a burst is one request")
    t.up.knob(tags, status=403)
    equal(r.get(tags + "?n=5").error_code(), "DENIED")
    equal(r.manifest(REPO, "a").status, 200)  # 42: pulls need no list
    t.up.stop()
    equal(r.get(tags + "?n=6").error_code(), "UNAVAILABLE")
    t.up.start()


# ---- the process --------------------------------------------------------------------------------------------------------

def test_idle_cpu(t):
    """A stalled upstream, ten clients that wait and a slow one: nothing runs."""
    data = images.noise(1, 8_000_000)
    path = t.up.blob_path(REPO, t.up.add_blob(REPO, data))
    silent = t.up.blob_path(REPO, t.up.add_blob(REPO, b"silent"))
    r = t.recask()
    t.up.knob(path, stall_at=6_000_000)
    t.up.knob(silent, delay=30)
    streams = [r.open("GET", path) for _ in range(10)] + [r.open("GET", silent) for _ in range(3)]
    for stream in streams[:9]:
        got = 0
        while got < 5_900_000:
            got += len(stream.raw(1 << 20))
    time.sleep(0.5)
    before = r.cpu_ticks()
    time.sleep(5)
    used = r.cpu_ticks() - before
    equal(used <= (25 if under_sanitizer() else 5), True, f"{used} ticks in 5 s")
    for stream in streams:
        stream.close()
    t.up.clear_knobs()


def test_stop_lets_transfers_finish(t):
    cold, warm = images.noise(1, 3_000_000), images.noise(2, 20_000_000)
    cold_path, warm_path = (t.up.blob_path(REPO, t.up.add_blob(REPO, d)) for d in (cold, warm))
    r = t.recask()
    equal(r.get(warm_path).body == warm, True)
    r.wait_jobs()
    t.up.knob(cold_path, rate=2_000_000)
    cold_stream = r.open("GET", cold_path)
    warm_stream = r.open("GET", warm_path, receive_buffer=4096)
    cold_first, warm_first = cold_stream.raw(1000), warm_stream.raw(1000)
    r.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    try:
        r.get("/v2/", timeout=2)
        equal("answered", "refused")
    except (OSError, EOFError):
        pass
    for stream, first, data in ((cold_stream, cold_first, cold), (warm_stream, warm_first, warm)):
        rest = stream.rest()
        equal((rest.complete, first + rest.body == data), (True, True))
    equal(r.process.wait(20), 0)
    r.stop()


def test_stop_does_not_wait_for_ever(t):
    data = images.noise(1, 3_000_000)
    path = t.up.blob_path(REPO, t.up.add_blob(REPO, data))
    r = t.recask("--stop-timeout", "1s")
    t.up.knob(path, stall_at=1_000_000)
    stream = r.open("GET", path)
    stream.raw(1000)
    idle = connect(r.address)
    began = time.monotonic()
    r.stop(timeout=20)
    equal(time.monotonic() - began < (15 if under_sanitizer() else 5), True)
    equal(stream.rest().complete, False)
    idle.close()
    until(lambda: not r.files("spool"), "an empty spool")


def test_second_process(t):
    """One store, one process; one port, one process: the second says why and exits with 1."""
    r = t.recask()

    def run_second(*flags):
        env = {k: v for k, v in os.environ.items() if not k.startswith("RECASK_")}
        done = subprocess.run([recask.BINARY, "serve", "--upstream", t.up.url, *flags], env=env, timeout=30,
                              capture_output=True, text=True, check=False)
        equal(done.returncode, 1)
        return done.stderr

    free = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    equal(r.store in run_second("--store", r.store, *free), True)
    taken = "%s:%d" % r.address
    equal(taken in run_second("--store", os.path.join(t.directory, "x"), "--listen", taken, "--admin", "127.0.0.1:0"), True)
    equal(r.get("/v2/").status, 200)


def test_admin_port_reads_only(t):
    image = images.small_image().push(t.up, REPO, "1")
    r = t.recask()
    r.pull(REPO, image, "1")
    r.wait_jobs()
    for target in (f"/api/v1/test/evict?digest={image.layers[0].digest}", "/api/v1/gc", "/api/v1/pull"):
        answer = request(r.admin, "POST", target, {"Content-Length": "0"})
        equal(answer.status in (401, 403, 404, 405), True, target)
    equal(request(r.admin, "GET", "/api/v1/stats").status, 200)
    with connect(r.admin) as sock:
        sock.sendall(b"GET /api/v1/stats HTTP/1.1\r\nHost: evil.example.com\r\nConnection: close\r\n\r\n")
        equal(sock.recv(12) in (b"HTTP/1.1 403", b"HTTP/1.1 421", b"HTTP/1.1 400"), True, "DNS rebinding")
    equal(r.get("/api/v1/stats").status, 404)  # not on the registry's port
    t.up.stop()
    equal(request(r.admin, "GET", "/readyz").status, 200)  # does not depend on upstreams
    t.up.start()


def test_soak(t):
    """73: everything at once, with clients that leave at random; for the sanitizers above all."""
    made = [images.small_image(n, layers=2, size=150_000).push(t.up, f"s/{n}", "1") for n in range(4)]
    r = t.recask("--tag-ttl", "0s")
    stop = time.monotonic() + (8 if under_sanitizer() else 5)

    def work(seed):
        pick = random.Random(seed)
        while time.monotonic() < stop:
            n = pick.randrange(len(made))
            image, repo = made[n], f"s/{n}"
            layer = pick.choice(image.layers)
            kind = pick.randrange(8)
            if kind == 0:
                agent = pick.choice(["docker/28.5.2", "docker/20.10.24", "x"])
                answer = r.manifest(repo, "1", agent, pick.choice(["GET", "HEAD"]))
                equal(answer.status, 200)
            elif kind == 1:
                r.pull(repo, image, "1")
            elif kind == 2:
                stream = r.open("GET", t.up.blob_path(repo, layer.digest))
                stream.raw(pick.randrange(1, 100_000))
                stream.close()
            elif kind == 3:
                first = pick.randrange(len(layer.blob))
                answer = r.blob(repo, layer.digest, {"Range": f"bytes={first}-{first + 999}"})
                equal((answer.status, answer.body == layer.blob[first:first + 1000]), (206, True))
            elif kind == 4:
                answer = r.blob(repo, layer.diff_id, {"Accept-Encoding": pick.choice(["gzip", "zstd", "identity"])})
                equal(answer.status in (200, 404), True, str(answer))
            elif kind == 5:
                r.open("GET", t.up.blob_path(repo, layer.digest)).close()
            elif kind == 6 and pick.random() < 0.3:
                try:
                    r.evict(pick.choice([layer.digest, layer.diff_id]))
                except AssertionError:
                    pass  # not there, or being read
            else:
                equal(r.head(t.up.blob_path(repo, layer.digest)).status, 200)

    clients = Clients()
    for seed in range(8):
        clients.run(work, seed)
    clients.join(120)
    r.wait_jobs()
    until(lambda: r.fds() - t.up.open_now < 60, f"{r.fds()} descriptors")
    for n, image in enumerate(made):
        for layer in image.layers:
            equal(r.blob(f"s/{n}", layer.digest).body == layer.blob, True)


if __name__ == "__main__":
    main()
