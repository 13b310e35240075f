#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The way to the registries: TLS with a private authority, client certificates, HTTP proxies, caps, transfers that break.
Row numbers are those of the case list."""
import gzip
import json
import os
import random
import shutil
import socket
import subprocess
import threading

import certs
import images
from mock import sha256
from recask import BINARY
from runner import Clients, equal, main, until

REPO = "team/app"
MANIFEST = images.to_json({"schemaVersion": 2, "mediaType": images.OCI_MANIFEST, "layers": [],
                           "config": {"mediaType": images.OCI_CONFIG, "digest": sha256(b"{}"), "size": 2}})
LOW = {"stall": "2s", "request": "20s"}


def config(t, *upstreams, **more):
    """The path of a configuration file with these upstreams."""
    path = os.path.join(t.directory, "config.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"upstreams": list(upstreams), "known_upstreams": "off", "timeouts": LOW, **more}, file)
    return path


def serve(t, *upstreams, env=None, **more):
    return t.recask("--config", config(t, *upstreams, **more), upstreams=[], env=env)


def stock(up, data=b"layer " * 5000, repo=REPO):
    """A blob and a manifest; the blob's digest."""
    up.add_manifest(repo, MANIFEST, images.OCI_MANIFEST, "1")
    return up.add_blob(repo, data)


def private(t, names="IP:127.0.0.1,DNS:localhost", clients=None, days=30):
    """t.up speaks TLS with a certificate of a private authority, which is returned with the blob's digest."""
    ca = certs.Authority(os.path.join(t.directory, "ca"))
    t.up.tls = certs.server_context(*ca.issue("registry", names, days), clients=clients and ca)
    return ca, stock(t.up)


def expect(r, digest, ns=""):
    """A fresh blob comes through."""
    answer = r.get(f"/v2/{REPO}/blobs/{digest}{ns}")
    equal((answer.status, sha256(answer.body)), (200, digest))


def expect_fails(r, digest, *says, ns=""):
    """Neither manifest nor blob comes, and the answer and the log say why."""
    for path in (f"/v2/{REPO}/manifests/1{ns}", f"/v2/{REPO}/blobs/{digest}{ns}"):
        answer = r.get(path, {"Accept": "*/*"})
        equal(answer.status >= 400, True, path)
    for words in says:
        equal(words in r.log(), True, f"{words!r} in the log:\n{r.log()}")


# ---- TLS ----------------------------------------------------------------------------------------------------------------

def test_private_authority(t):
    """With ca_file it is trusted; without, the message says what is wrong and what would help, after one try."""
    ca, digest = private(t)
    r = serve(t, {"name": "one", "url": t.up.url})
    t.up.accepted = 0
    expect_fails(r, digest, f"the certificate of {t.up.host} comes from an authority that is not trusted here (ca_file")
    equal(t.up.accepted <= 2, True, f"{t.up.accepted} connections")
    r.stop()
    expect(serve(t, {"name": "one", "url": t.up.url, "ca_file": ca.pem}), digest)


def test_expired_certificate(t):
    """An expired upstream certificate gives an error that says so; so does one for another name."""
    ca, digest = private(t, days=-1)
    r = serve(t, {"name": "one", "url": t.up.url, "ca_file": ca.pem})
    t.up.accepted = 0
    expect_fails(r, digest, f"the certificate of {t.up.host} has expired")
    equal(t.up.accepted <= 2, True, f"{t.up.accepted} connections")
    t.up.tls = certs.server_context(*ca.issue("other", "DNS:elsewhere.example"))
    expect_fails(r, digest, f"the certificate of {t.up.host} is for another name")


def test_not_tls(t):
    """A registry that speaks plain HTTP, and answers a TLS hello as such servers do."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = "127.0.0.1:%d" % server.getsockname()[1]

        def answer():
            while True:
                try:
                    sock, _ = server.accept()
                except OSError:
                    return
                sock.recv(4096)
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                sock.close()

        threading.Thread(target=answer, daemon=True).start()
        r = serve(t, {"name": "one", "url": f"https://{host}"})
        expect_fails(r, sha256(b"any"), f"{host} does not speak TLS")
        server.shutdown(socket.SHUT_RDWR)


def test_insecure(t):
    """It is what it says, for this upstream alone, also where two share a host: no connection and no session is shared."""
    ca, digest = private(t, names="DNS:elsewhere.example")
    second = t.up.add_blob(REPO, b"second")
    r = serve(t, {"name": "a", "url": t.up.url, "insecure": True}, {"name": "b", "url": t.up.url},
              {"name": "c", "url": t.up.url, "ca_file": ca.pem})
    expect(r, digest)
    expect_fails(r, second, "not trusted here", ns="?ns=b")
    expect_fails(r, second, "for another name", ns="?ns=c")
    expect(r, second)


def test_client_certificate(t):
    """Shown to the registry that wants it, by the upstream that has it, and by no other that has the same host."""
    ca, digest = private(t, clients=True)
    cert, key = ca.issue("recask")
    second = t.up.add_blob(REPO, b"second")
    r = serve(t, {"name": "a", "url": t.up.url, "ca_file": ca.pem, "cert_file": cert, "key_file": key},
              {"name": "b", "url": t.up.url, "ca_file": ca.pem})
    expect(r, digest)
    equal({request.client for request in t.up.requests}, {f"recask-{ca.serial}"})
    expect_fails(r, second, "wants one (cert_file)", ns="?ns=b")
    expect(r, second)


def test_redirect_elsewhere(t):
    """A CDN is verified whatever the registry is allowed, against ca_file too, and sees no client certificate (case 53)."""
    ca, digest = private(t)
    cdn = t.more_upstream()
    cdn.tls = certs.server_context(*ca.issue("cdn"))
    cdn.tls.verify_mode = certs.ssl.CERT_OPTIONAL
    cdn.tls.load_verify_locations(ca.pem)
    t.up.tls = certs.server_context(*ca.issue("again"), clients=ca)
    stock(cdn)
    path = t.up.blob_path(REPO, digest)
    t.up.knob(path, redirect=cdn.url + path, methods={"GET"})
    cert, key = ca.issue("recask")
    r = serve(t, {"name": "a", "url": t.up.url, "insecure": True, "cert_file": cert, "key_file": key})
    answer = r.get(f"/v2/{REPO}/blobs/{digest}")
    equal(answer.status >= 400, True)
    equal(f"the certificate of {cdn.host} comes from an authority that is not trusted" in r.log(), True, r.log())
    equal(cdn.count(), 0)
    r.stop()
    expect(serve(t, {"name": "a", "url": t.up.url, "ca_file": ca.pem, "cert_file": cert, "key_file": key}), digest)
    equal({request.client is None for request in t.up.requests}, {False})
    equal([request.client for request in cdn.requests], [None])


def test_renewal(t):
    """What changes on disk is used without a restart: the registry's authority and recask's own certificate."""
    ca, digest = private(t, clients=True)
    cert, key = ca.issue("recask")
    r = serve(t, {"name": "a", "url": t.up.url, "ca_file": ca.pem, "cert_file": cert, "key_file": key})
    expect(r, digest)
    first = t.up.requests[-1].client
    ca.issue("recask")
    until(lambda: r.log().count("certificates read anew") == 1 or not r.blob(REPO, t.up.add_blob(REPO, os.urandom(9))),
          "the new certificate")
    expect(r, t.up.add_blob(REPO, b"after"))
    equal((t.up.requests[-1].client != first, t.up.requests[-1].client), (True, f"recask-{ca.serial}"))

    # Half of a renewal is not taken over, and what was good stays in use.
    with open(cert, "r+b") as file:
        file.truncate(100)
    until(lambda: "recask.pem" in r.log() or not r.blob(REPO, t.up.add_blob(REPO, os.urandom(9))), "a complaint")
    expect(r, t.up.add_blob(REPO, b"still"))

    # Another authority for all.
    other = certs.Authority(os.path.join(t.directory, "other"))
    for path in other.issue("recask"):
        shutil.copy(path, os.path.dirname(cert))
    shutil.copy(other.pem, ca.pem)
    until(lambda: r.log().count("certificates read anew") == 2 or not r.blob(REPO, t.up.add_blob(REPO, os.urandom(9))),
          "the new authority")
    t.up.tls = certs.server_context(*other.issue("registry"), clients=other)
    t.up.stop()
    t.up.start()
    expect(r, t.up.add_blob(REPO, b"new authority"))


def refused_start(t, **upstream):
    path = config(t, {"name": "one", "url": "https://127.0.0.1:1", **upstream})
    done = subprocess.run([BINARY, "serve", "--listen", "127.0.0.1:0", "--config", path, "--store",
                           os.path.join(t.directory, "no-store")], capture_output=True, text=True, check=False, timeout=60)
    equal(done.returncode, 2, done.stderr)
    return done.stderr


def test_bad_files(t):
    """A file that is no good stops the start, with its name and the reason."""
    ca = certs.Authority(os.path.join(t.directory, "ca"))
    cert, key = ca.issue("one")
    _, other = ca.issue("two")
    empty = os.path.join(t.directory, "empty")
    locked = os.path.join(t.directory, "locked.key")
    with open(empty, "wb"):
        pass
    certs.openssl("pkey", "-in", key, "-aes128", "-passout", "pass:hush", "-out", locked)
    damaged = os.path.join(t.directory, "damaged.pem")
    with open(ca.pem, encoding="ascii") as good, open(damaged, "w", encoding="ascii") as file:
        text = good.read()
        file.write(text + text.replace("MII", "MIJ"))
    for files, name, why in (
            ({"ca_file": empty + "-not"}, "empty-not", "No such file"), ({"ca_file": t.directory}, t.directory, "directory"),
            ({"ca_file": empty}, "empty", "no certificate"), ({"ca_file": damaged}, "damaged.pem", "certificate 2"),
            ({"cert_file": key, "key_file": key}, "one.key", "no certificate"),
            ({"cert_file": cert, "key_file": cert}, "one.pem", "no private key"),
            ({"cert_file": cert, "key_file": locked}, "locked.key", "password"),
            ({"cert_file": cert, "key_file": other}, "two.key", "not that of the certificate")):
        said = refused_start(t, **files)
        equal("one" in said and name in said and why in said, True, f"{files}: {said}")


# ---- HTTP proxy ---------------------------------------------------------------------------------------------------------

class Tunnel:
    """An HTTP proxy that does CONNECT, to one place whatever is asked for."""

    def __init__(self, to):
        self.to = to
        self.asked = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://%%s127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.tunnel, args=(sock,), daemon=True).start()

    def tunnel(self, sock):
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(4096)
        self.asked.append(head.decode("latin-1"))
        far = socket.create_connection(self.to)
        sock.sendall(b"HTTP/1.1 200 Go on\r\n\r\n")
        threading.Thread(target=self.copy, args=(far, sock), daemon=True).start()
        self.copy(sock, far)

    @staticmethod
    def copy(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def test_tunnel(t):
    """TLS through an HTTP proxy, from the configuration and from the environment, which loopback addresses ignore. The
    registry's name is the proxy's to find; its password is shown to it alone."""
    ca, digest = private(t, names="DNS:registry.test")
    port = t.up.port
    tunnel = Tunnel(("127.0.0.1", port))
    plain, proxy = (tunnel.url % user for user in ("", "me:hush-hush@"))
    url = f"https://registry.test:{port}"
    for n, (more, env) in enumerate([({"http_proxy": plain}, {}), ({}, {"HTTPS_PROXY": proxy})]):
        r = serve(t, {"name": "one", "url": url, "ca_file": ca.pem, **more}, env=env)
        expect(r, digest)
        equal([line.split("\r\n")[0] for line in tunnel.asked], [f"CONNECT registry.test:{port} HTTP/1.1"] * (n + 1))
        equal("Proxy-Authorization: Basic bWU6aHVzaC1odXNo" in tunnel.asked[-1], bool(env), tunnel.asked[-1])
        r.stop()
        equal("hush-hush" in r.log(), False)
    t.up.tls = certs.server_context(*ca.issue("local"))
    r = serve(t, {"name": "one", "url": t.up.url, "ca_file": ca.pem}, env={"HTTPS_PROXY": proxy, "ALL_PROXY": proxy})
    expect(r, digest)
    equal(len(tunnel.asked), 2)
    tunnel.listener.close()


# ---- transfers ----------------------------------------------------------------------------------------------------------

def test_three_drops(t):
    """Cases 11 and 102: dropped at 25, 50 and 75 %: one download, hardly a byte twice, and the client sees nothing."""
    data = random.Random(1).randbytes(8_000_000)
    digest = t.up.add_blob(REPO, data)
    path = t.up.blob_path(REPO, digest)
    for at in (6_000_000, 4_000_000, 2_000_000):  # the newest is asked first
        t.up.knob(path, drop_at=at, times=1, methods={"GET"})
    r = t.recask()
    answer = r.blob(REPO, digest)
    equal((answer.status, answer.complete, sha256(answer.body)), (200, True, digest))
    equal(len(t.up.seen("GET", path)), 4)
    equal([request.headers.get("range") for request in t.up.seen("GET", path)][0], None)
    equal(t.up.sent(path) <= 1.05 * len(data), True, f"{t.up.sent(path)} bytes")


def test_resume_answers(t):
    """Case 102: whatever a resume is answered with, the blob is right."""
    for n, how in enumerate((200, 206, 400, 416, 501)):
        data = random.Random(n).randbytes(1_000_000)
        digest = t.up.add_blob(REPO, data)
        path = t.up.blob_path(REPO, digest)
        t.up.knob(path, range_status=how)
        t.up.knob(path, drop_at=400_000, times=1)
        r = t.recask() if n == 0 else r
        answer = r.blob(REPO, digest)
        equal((answer.status, answer.complete, sha256(answer.body)), (200, True, digest), how)


def test_ends_early(t):
    """Cases 2 and 25: without Content-Length an early end is never taken for the end, chunked or not."""
    r = t.recask()
    for n, how in enumerate(({"no_length": True}, {"chunked": True})):
        data = random.Random(n).randbytes(500_000)
        digest = t.up.add_blob(REPO, data)
        path = t.up.blob_path(REPO, digest)
        knob = t.up.knob(path, drop_at=300_000, range_status=200, **how)
        answer = r.blob(REPO, digest)
        equal(answer.status >= 400 or not answer.complete, True, how)
        knob.drop_at = None
        answer = r.blob(REPO, digest)
        equal((answer.status, sha256(answer.body)), (200, digest), how)
    r.wait_jobs()


def test_wrong_size(t):
    """A Content-Length that is too large, or too small, never makes a blob of what came."""
    r = t.recask()
    for n, said in enumerate((500_100, 499_900)):
        data = random.Random(n).randbytes(500_000)
        digest = t.up.add_blob(REPO, data)
        knob = t.up.knob(t.up.blob_path(REPO, digest), headers={"Content-Length": str(said), "Connection": "close"},
                         drop_at=500_000, range_status=200)
        answer = r.blob(REPO, digest)
        equal(answer.status >= 400 or not answer.complete, True, said)
        equal(sha256(answer.body) == digest, False)
        knob.headers, knob.drop_at = {}, None
        answer = r.blob(REPO, digest)
        equal((answer.status, sha256(answer.body)), (200, digest), said)


def test_content_encoding(t):
    """Cases 83 and 84: a blob that was compressed on the way is what it was before; one that is only said to be (moby#17595)
    stays as it is. Clients see no Content-Encoding that they did not ask for."""
    r = t.recask()
    plain = b"text that compresses " * 50_000
    layer = gzip.compress(random.Random(1).randbytes(300_000))
    other = gzip.compress(b"other " + plain)
    twice = gzip.compress(layer)
    for what, body, said in ((plain, gzip.compress(plain), "gzip"), (layer, layer, "x-gzip"), (other, other, "gzip"),
                             (twice, gzip.compress(twice), "gzip")):
        digest = t.up.add_blob(REPO, what)
        path = t.up.blob_path(REPO, digest)
        t.up.knob(path, body=body, headers={"Content-Encoding": said})
        for _ in range(2):
            answer = r.blob(REPO, digest, {"Accept-Encoding": "identity"})
            equal((answer.status, answer.complete, sha256(answer.body)), (200, True, digest), said)
            equal((answer.h("Content-Encoding"), answer.h("Content-Length")), (None, str(len(what))), said)
        t.up.clear_knobs()
    bad = t.up.add_blob(REPO, b"never seen")
    t.up.knob(t.up.blob_path(REPO, bad), body=gzip.compress(b"something else"), headers={"Content-Encoding": "gzip"})
    equal(r.blob(REPO, bad).status >= 400, True)


def test_signed_urls(t):
    """Cases 53 to 55: the query of a signed URL arrives byte for byte, cookies do not, and https never leads to http."""
    digest = stock(t.up)
    cdn = t.more_upstream()
    query = "X-Amz-Signature=a%2Bb%2f+~%7e%7E&u=%e2%82%AC&&e=&x=/?:@"
    data = t.up.blobs[REPO, digest]
    cdn.knob("/b%2fucket/./o", body=data, status=200)
    t.up.knob(t.up.blob_path(REPO, digest), redirect=f"{cdn.url}/b%2fucket/./o?{query}",
              headers={"Set-Cookie": "session=1; Path=/; Domain=127.0.0.1"})
    r = t.recask()
    expect(r, digest)
    equal([request.target for request in cdn.requests], [f"/b%2fucket/./o?{query}"])
    equal([request.headers.get("cookie") for request in cdn.requests + t.up.requests if "cookie" in request.headers], [])
    r.stop()
    ca = certs.Authority(os.path.join(t.directory, "ca"))
    t.up.tls = certs.server_context(*ca.issue("registry"))
    t.up.stop()
    t.up.start()
    cdn.forget()
    r = serve(t, {"name": "one", "url": t.up.url, "ca_file": ca.pem})
    equal(r.blob(REPO, digest).status >= 400, True)
    equal(("redirected from https to http" in r.log(), cdn.count()), (True, 0))


# ---- caps ---------------------------------------------------------------------------------------------------------------

def test_manifests_before_blobs(t):
    """Blobs that stand still use what connections they may, and no manifest waits for them."""
    stock(t.up)
    digests = [t.up.add_blob(REPO, b"%d" % n * 10_000) for n in range(8)]
    knobs = [t.up.knob(t.up.blob_path(REPO, digest), stall_at=100) for digest in digests]
    r = serve(t, {"name": "one", "url": t.up.url, "max_connections": 4}, timeouts={"stall": "60s"}, tag_ttl="0s")
    clients = Clients()
    for digest in digests:
        clients.run(expect, r, digest)
    until(lambda: t.up.count("GET") >= 3, "three blobs under way")
    for _ in range(5):
        equal(r.manifest(REPO, "1").status, 200)
    equal(sum(knob.stalled.is_set() for knob in knobs), 3)
    for knob in knobs:
        knob.release()
    clients.join()


if __name__ == "__main__":
    main()
