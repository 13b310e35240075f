#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ports: TLS and its certificates, several listeners, limits, odd requests, clients that cancel, the access log."""
import json
import os
import random
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
import warnings

import images
import recask
from recask import Recask, Stream, connect, free_port, talk, under_sanitizer
from runner import Clients, equal, main, until

REPO = "team/app"
LOCAL = "127.0.0.1"


# ---- certificates -------------------------------------------------------------------------------------------------------

def openssl(*args):
    done = subprocess.run(["openssl", *args], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"openssl {' '.join(args)}: {done.stderr}")


class Authority:
    """A root in directory/ca.pem, perhaps with an authority below it that signs."""

    def __init__(self, directory, parent=None):
        self.directory = directory
        os.makedirs(directory, exist_ok=True)
        self.pem, self.key = self.path("ca.pem"), self.path("ca.key")
        self.serial = 0
        self.chain = [] if parent is None else [self.pem, *parent.chain]
        extension = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"]
        if parent is None:
            openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
                    "-keyout", self.key, "-out", self.pem, "-subj", "/CN=root", *extension)
        else:
            openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", self.key,
                    "-out", self.path("ca.csr"), "-subj", "/CN=below")
            parent.sign(self.path("ca.csr"), self.pem, "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\n")

    def path(self, name):
        return os.path.join(self.directory, name)

    def sign(self, request, out, extensions, days="30"):
        with open(self.path("ext"), "w", encoding="ascii") as file:
            file.write(extensions)
        self.serial += 1
        openssl("x509", "-req", "-in", request, "-CA", self.pem, "-CAkey", self.key, "-set_serial", str(self.serial),
                "-days", days, "-extfile", self.path("ext"), "-out", out)

    def issue(self, name, cert, key, how=("ec", "-pkeyopt", "ec_paramgen_curve:P-256"), days="30"):
        """A certificate for 127.0.0.1, whose subject is CN=name, with its chain in the file `cert`."""
        openssl("req", "-newkey", *how, "-nodes", "-keyout", key, "-out", self.path("csr"), "-subj", f"/CN={name}")
        self.sign(self.path("csr"), cert, "subjectAltName=IP:127.0.0.1,IP:::1,DNS:localhost\n", days)
        with open(cert, "ab") as out:
            for path in self.chain:
                with open(path, "rb") as file:
                    out.write(file.read())

    def context(self):
        return ssl.create_default_context(cafile=self.pem)


class TlsStream(Stream):
    """A Stream whose socket speaks TLS."""

    def __init__(self, address, context, method, target, headers=None, timeout=60, receive_buffer=None):
        # pylint: disable=super-init-not-called
        sock = connect(address, timeout, receive_buffer)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or each request waits for a delayed acknowledgement
        self.sock = context.wrap_socket(sock, server_hostname=LOCAL)
        self.buffer, self.method, self.answer, self.taken = b"", method, None, 0
        head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        self.sock.sendall((head + "\r\n").encode("latin-1"))

    def _fill(self):
        try:
            return super()._fill()
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return False


def common_name(address, context):
    with context.wrap_socket(connect(address, 10), server_hostname=LOCAL) as sock:
        return dict(item[0] for item in sock.getpeercert()["subject"])["commonName"]


# ---- recask with a configuration ----------------------------------------------------------------------------------------

class Listening(Recask):
    """The listeners come from the configuration; the first is `address`."""

    def listen_flags(self):
        return ["--config", self.config_path]

    def __init__(self, directory, upstreams, config, flags=()):
        self.config_path = os.path.join(directory, "recask.json")
        with open(self.config_path, "w", encoding="ascii") as file:
            json.dump(config, file)
        super().__init__(directory, upstreams, flags)
        host, _, port = config["listen"][0]["address"].rpartition(":")
        self.address = (host, int(port))


def serve(t, *listen, flags=(), **config):
    directory = os.path.join(t.directory, str(len(t.processes)))
    os.mkdir(directory)
    r = Listening(directory, [t.up.url], {"listen": list(listen), **config}, flags)
    t.processes.append(r)
    return r


def plain_listener(port=None):
    return {"address": f"{LOCAL}:{port or free_port()}"}


def tls_listener(cert, key, port=None):
    return {**plain_listener(port), "tls": {"cert_file": cert, "key_file": key}}


def tls_recask(t, name="first", **config):
    """Returns recask, its authority, and the paths of certificate and key."""
    ca = Authority(os.path.join(t.directory, "ca"))
    cert, key = ca.path("tls.crt"), ca.path("tls.key")
    ca.issue(name, cert, key)
    return serve(t, tls_listener(cert, key), **config), ca, cert, key


def refused_start(t, *listen):
    """What recask says when it does not start, which is status 1 or 2."""
    directory = os.path.join(t.directory, "refused")
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, "recask.json")
    with open(path, "w", encoding="ascii") as file:
        json.dump({"listen": list(listen)}, file)
    env = {k: v for k, v in os.environ.items() if not k.startswith("RECASK_")}
    done = subprocess.run([recask.BINARY, "serve", "--config", path, "--admin", "off", "--upstream", t.up.url, "--store",
                           os.path.join(directory, "store")], env=env, timeout=60, capture_output=True, text=True,
                          check=False)
    equal(done.returncode in (1, 2), True, f"{done.returncode}: {done.stderr}")
    equal("PRIVATE KEY" in done.stderr, False)
    return done.stderr


# ---- TLS ----------------------------------------------------------------------------------------------------------------

def test_tls_pull(t):
    """A whole pull, cold and warm; a large blob, a slow reader, many at once; keep-alive."""
    image = images.small_image(layers=2).push(t.up, REPO, "1")
    big = images.noise(7, 20_000_000)
    path = t.up.blob_path(REPO, t.up.add_blob(REPO, big))
    r, ca, _, _ = tls_recask(t)
    context = ca.context()

    def get(target, headers=None, **how):
        return TlsStream(r.address, context, "GET", target, headers, **how).rest()

    for _ in range(2):
        answer = get(f"/v2/{REPO}/manifests/1", {"Accept": recask.ACCEPT_ALL})
        equal((answer.status, answer.complete), (200, True))
        for layer in image.layers:
            answer = get(t.up.blob_path(REPO, layer.digest))
            equal((answer.complete, answer.body == layer.blob), (True, True))
        r.wait_jobs()
    answer = TlsStream(r.address, context, "HEAD", t.up.blob_path(REPO, image.layers[0].digest)).rest()
    equal((answer.status, answer.h("Content-Length")), (200, str(len(image.layers[0].blob))))
    clients = Clients()
    for _ in range(6):
        clients.run(lambda: equal(get(path).body == big, True))
    clients.run(lambda: equal(get(path, receive_buffer=4096, headers={"Range": "bytes=0-999999"}).body == big[:1_000_000],
                              True))
    clients.join(180)
    with context.wrap_socket(connect(r.address), server_hostname=LOCAL) as sock:
        for _ in range(3):
            sock.sendall(b"GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n")
            got = b""
            while not got.endswith(b"{}"):
                got += sock.recv(65536)
            equal(got[:12], b"HTTP/1.1 200")


def test_tls_versions(t):
    """TLS 1.2 and 1.3, HTTP/1.1 by ALPN, also when the client would like h2 more; nothing older."""
    r, ca, _, _ = tls_recask(t)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ca.context()
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(["h2", "http/1.1"])
        with context.wrap_socket(connect(r.address, 10), server_hostname=LOCAL) as sock:
            equal(sock.selected_alpn_protocol(), "http/1.1")
            equal(sock.version(), "TLSv1.2" if version == ssl.TLSVersion.TLSv1_2 else "TLSv1.3")
    old = ca.context()
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    try:
        with old.wrap_socket(connect(r.address, 10), server_hostname=LOCAL):
            raise AssertionError("TLS 1.1 works")
    except (ssl.SSLError, ConnectionResetError):
        pass
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    with unverified.wrap_socket(connect(r.address, 10), server_hostname="other.example") as sock:
        sock.sendall(b"GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n")
        equal(sock.recv(65536)[:12], b"HTTP/1.1 200")


def test_tls_keys(t):
    """RSA and ECDSA, as PKCS#8 and in their own forms; an intermediate authority that clients do not know."""
    ca = Authority(os.path.join(t.directory, "ca"))
    below = Authority(os.path.join(t.directory, "below"), ca)
    listen = []
    for n, how in enumerate([("rsa:2048",), ("ec", "-pkeyopt", "ec_paramgen_curve:P-384")]):
        cert, key = below.path(f"{n}.crt"), below.path(f"{n}.key")
        below.issue(f"host-{n}", cert, key, how)
        listen.append(tls_listener(cert, key))
        openssl("pkey", "-in", key, "-traditional", "-out", key + ".own")
        if n == 1:  # as "openssl ecparam -genkey" writes it
            openssl("ecparam", "-name", "secp384r1", "-out", key + ".params")
            with open(key + ".params", encoding="ascii") as params, open(key + ".own", encoding="ascii") as own:
                text = params.read() + own.read()
            with open(key + ".own", "w", encoding="ascii") as file:
                file.write(text)
        listen.append(tls_listener(cert, key + ".own"))
    r = serve(t, *listen)
    for n, one in enumerate(listen):
        address = (LOCAL, int(one["address"].rpartition(":")[2]))
        equal(common_name(address, ca.context()), f"host-{n // 2}")
    equal(r.log().count("chain=2"), 4)


def test_tls_renewal(t):
    """A certificate renewed on disk is served without restart: written over, file by file, or by turning a link around."""
    r, ca, cert, key = tls_recask(t)
    context = ca.context()
    held = context.wrap_socket(connect(r.address), server_hostname=LOCAL)
    equal(common_name(r.address, context), "first")
    ca.issue("second", ca.path("new.crt"), ca.path("new.key"))
    for _ in range(30):  # a certificate without its key yet is waited with, as long as the files change
        shutil.copyfile(ca.path("new.crt"), cert)
        time.sleep(0.1)
    equal(common_name(r.address, context), "first")
    shutil.copyfile(ca.path("new.key"), key)
    until(lambda: common_name(r.address, context) == "second", "the second certificate", 30)
    equal(r.log().count("ev=tls.reload"), 0)
    held.sendall(b"GET /v2/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    equal(held.recv(65536)[:12], b"HTTP/1.1 200")  # greeted with the first
    held.close()
    # What cannot be used: told once, and the old one stays.
    with open(cert, "w", encoding="ascii") as file:
        file.write("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    until(lambda: r.log().count("ev=tls.reload") == 1, "a line about the broken file", 30)
    equal(cert in [line for line in r.log().splitlines() if "ev=tls.reload" in line][0], True)
    time.sleep(3)
    equal(r.log().count("ev=tls.reload"), 1)
    equal(common_name(r.address, context), "second")
    ca.issue("third", cert, ca.path("other.key"))  # that of another key
    until(lambda: r.log().count("ev=tls.reload") == 2, "a line about the key", 30)
    equal(common_name(r.address, context), "second")
    os.unlink(key)
    until(lambda: r.log().count("ev=tls.reload") == 3, "a line about the missing file", 30)
    os.rename(ca.path("other.key"), key)
    until(lambda: common_name(r.address, context) == "third", "the third certificate", 30)
    equal("PRIVATE KEY" in r.log(), False)


def test_tls_renewal_by_link(t):
    """Kubernetes' way: tls.crt -> ..data/tls.crt, ..data -> a directory that is replaced."""
    ca = Authority(os.path.join(t.directory, "ca"))
    mount = os.path.join(t.directory, "mount")
    os.mkdir(mount)

    def turn(name):
        os.mkdir(os.path.join(mount, f"..{name}"))
        ca.issue(name, os.path.join(mount, f"..{name}", "tls.crt"), os.path.join(mount, f"..{name}", "tls.key"))
        os.symlink(f"..{name}", os.path.join(mount, "..tmp"))
        os.rename(os.path.join(mount, "..tmp"), os.path.join(mount, "..data"))

    turn("one")
    for file in ("tls.crt", "tls.key"):
        os.symlink(f"..data/{file}", os.path.join(mount, file))
    r = serve(t, tls_listener(os.path.join(mount, "tls.crt"), os.path.join(mount, "tls.key")))
    equal(common_name(r.address, ca.context()), "one")
    turn("two")
    until(lambda: common_name(r.address, ca.context()) == "two", "the second certificate", 30)
    equal(r.log().count("ev=tls.reload"), 0)


def test_tls_renewal_under_load(t):
    """Certificates change while clients come and go, and what is no longer used is freed."""
    r, ca, cert, key = tls_recask(t)
    path = t.up.blob_path(REPO, t.up.add_blob(REPO, images.noise(3, 500_000)))
    context = ca.context()
    done = []

    def work():
        while not done:
            equal(TlsStream(r.address, context, "GET", path).rest().complete, True)

    clients = Clients()
    for _ in range(4):
        clients.run(work)
    for n in range(3):
        ca.issue(f"n{n}", ca.path("new.crt"), ca.path("new.key"))
        os.rename(ca.path("new.key"), key)
        os.rename(ca.path("new.crt"), cert)
        until(lambda n=n: common_name(r.address, context) == f"n{n}", f"certificate {n}", 60)
    done.append(True)
    clients.join(60)


def test_tls_bad_at_start(t):
    """Whatever is wrong with the files, recask does not start, and says which file and why."""
    ca = Authority(os.path.join(t.directory, "ca"))
    cert, key, other = ca.path("a.crt"), ca.path("a.key"), ca.path("b.key")
    ca.issue("a", cert, key)
    ca.issue("b", ca.path("b.crt"), other)
    openssl("pkey", "-in", key, "-aes128", "-passout", "pass:x", "-out", ca.path("locked.key"))
    openssl("ec", "-in", key, "-aes128", "-passout", "pass:x", "-out", ca.path("locked-own.key"))
    openssl("x509", "-in", cert, "-outform", "DER", "-out", ca.path("der.crt"))
    with open(ca.path("empty"), "wb"):
        pass
    for bad_cert, bad_key, file, why in (
            (ca.path("none"), key, "none", "No such file"), (cert, ca.path("none"), "none", "No such file"),
            (t.directory, key, t.directory, "directory"), (ca.path("empty"), key, "empty", "no PEM certificate"),
            (ca.path("der.crt"), key, "der.crt", "PEM certificate"), (key, key, "a.key", "no PEM certificate"),
            (cert, cert, "a.crt", "no PEM private key"), (cert, ca.path("empty"), "empty", "no PEM private key"),
            (cert, other, "b.key", "not that of the first certificate"),
            (cert, ca.path("locked.key"), "locked.key", "encrypted"),
            (cert, ca.path("locked-own.key"), "locked-own.key", "encrypted")):
        said = refused_start(t, tls_listener(bad_cert, bad_key))
        equal(file in said and why in said, True, f"{bad_cert} {bad_key}: {said}")


def test_tls_expired(t):
    """An expired certificate is served, since that is more than nothing, and told."""
    ca = Authority(os.path.join(t.directory, "ca"))
    ca.issue("old", ca.path("a.crt"), ca.path("a.key"), days="-1")
    r = serve(t, tls_listener(ca.path("a.crt"), ca.path("a.key")))
    equal("ev=tls.expired" in r.log(), True)
    try:
        common_name(r.address, ca.context())
        raise AssertionError("the client takes it")
    except ssl.SSLCertVerificationError:
        pass


def test_wrong_protocol(t):
    """Plain HTTP on a TLS port gets an answer that says so; TLS on a plain port, too (in misc_test.py); garbage ends."""
    r, ca, _, _ = tls_recask(t)
    answer = talk(r.address, b"GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n")
    equal((answer[:12], b"HTTPS" in answer), (b"HTTP/1.1 400", True))
    for data in (b"\x16", b"\x16\x03\x01\x00\x05hello", b"\x16" + b"\xff" * 5000, b"\x16\x03\x01\x02\x00" + b"\x01" * 512):
        with connect(r.address, 20) as sock:
            try:
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the server has had enough
            equal(ended(sock), True, repr(data[:8]))
    equal(common_name(r.address, ca.context()), "first")


# ---- several listeners --------------------------------------------------------------------------------------------------

def test_listeners(t):
    """Plain and TLS side by side, one port on several addresses, IPv6, a port that the system picks; the log tells them
    apart."""
    ca = Authority(os.path.join(t.directory, "ca"))
    cert, key = ca.path("tls.crt"), ca.path("tls.key")
    ca.issue("x", cert, key)
    port = free_port()
    listen = [plain_listener(port), {"address": f"127.0.0.2:{port}"}, tls_listener(cert, key), {"address": f"{LOCAL}:0"}]
    with socket.socket(socket.AF_INET6) as sock:
        try:
            sock.bind(("::1", 0))
            listen.append({"address": f"[::1]:{port}"})
        except OSError:
            pass
    r = serve(t, *listen)
    equal(r.get("/v2/").status, 200)
    equal(recask.request(("127.0.0.2", port), "GET", "/v2/").status, 200)
    tls_port = int(listen[2]["address"].rpartition(":")[2])
    equal(TlsStream((LOCAL, tls_port), ca.context(), "GET", "/v2/").rest().status, 200)
    picked = int(re.findall(r"ev=serve\.listen address=127\.0\.0\.1:(\d+)", r.log())[2])
    equal(recask.request((LOCAL, picked), "GET", "/v2/").status, 200)
    if len(listen) == 5:
        with socket.create_connection(("::1", port), 10) as sock:
            sock.sendall(b"GET /v2/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            equal(sock.recv(65536)[:12], b"HTTP/1.1 200")
        until(lambda: "peer=[::1]:" in r.log(), "the IPv6 client's line")
    until(lambda: f"listener={LOCAL}:{tls_port} tls=1" in r.log() and f"listener=127.0.0.2:{port} tls=0" in r.log(),
          "lines of both listeners")


def test_listener_in_use(t):
    """The second listener's port is taken: recask does not start, and names the address."""
    with socket.socket() as sock:
        sock.bind((LOCAL, 0))
        sock.listen()
        taken = "%s:%d" % sock.getsockname()
        equal(taken in refused_start(t, plain_listener(), {"address": taken}), True)


# ---- limits -------------------------------------------------------------------------------------------------------------

def ended(sock):
    """Whether the server closes within some seconds, whatever it says before."""
    sock.settimeout(30)
    try:
        while sock.recv(65536):
            pass
    except (ConnectionResetError, BrokenPipeError):
        pass
    except TimeoutError:
        return False
    return True


def dribble(sock, data):
    """Sends data a byte at a time until the server has enough; all that it says."""
    got = b""
    sock.settimeout(0.05)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            sock.sendall(data)
            block = sock.recv(65536)
            got += block
            if not block:
                return got
        except TimeoutError:
            pass
        except (ConnectionResetError, BrokenPipeError):
            return got
    raise AssertionError("the server never has enough")


def test_slow_clients(t):
    """Heads that dribble in get 408, TLS handshakes that do are cut; readers that are slow are served, others not."""
    ca = Authority(os.path.join(t.directory, "ca"))
    cert, key = ca.path("tls.crt"), ca.path("tls.key")
    ca.issue("x", cert, key)
    data = images.noise(1, 16_000_000)
    path = t.up.blob_path(REPO, t.up.add_blob(REPO, data))
    tls = tls_listener(cert, key)
    tls_address = (LOCAL, int(tls["address"].rpartition(":")[2]))
    r = serve(t, plain_listener(), tls, timeouts={"header": "1s", "idle": "2s"})
    equal(r.get(path).body == data, True)
    for start in (b"GET /v2/", b"GET /v2/ HTTP/1.1\r\nHost: x\r\n"):
        with connect(r.address) as sock:
            sock.sendall(start)
            equal(dribble(sock, b"a")[:12], b"HTTP/1.1 408", repr(start))
    with connect(tls_address) as sock:
        sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        equal(dribble(sock, b"\x00"), b"")
    context = ca.context()
    with context.wrap_socket(connect(tls_address), server_hostname=LOCAL) as sock:
        sock.sendall(b"GET /v2/ HTTP/1.1\r\nX-Y: ")
        equal(ended(sock), True)
    silent, idle = connect(r.address), connect(r.address)
    idle.sendall(b"GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n")
    equal((ended(silent), ended(idle)), (True, True))
    # One that reads nothing is cut; one that reads little by little gets it all, and a pause is no end.
    deaf = [r.open("GET", path, receive_buffer=4096), TlsStream(tls_address, context, "GET", path, receive_buffer=4096)]
    slow = r.open("GET", path, {"Range": "bytes=0-299999"}, receive_buffer=4096)
    got = b""
    end = time.monotonic() + 6
    while time.monotonic() < end:
        got += slow.raw(500)
        time.sleep(0.05)
    equal(got + slow.rest().body == data[:300_000], True)
    until(lambda: r.log().count("reason=stalled") == 2, "two that are cut", 30)
    for stream in deaf:
        stream.close()
    until(lambda: re.search(r"ev=http .*status=200 .*done=0", r.log()), "their lines")
    equal(r.get("/v2/").status, 200)


def test_connections_per_client(t):
    r = serve(t, plain_listener(), limits={"connections_per_client": 5})
    held = [connect(r.address) for _ in range(5)]
    for sock in held[:3]:
        sock.sendall(b"GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n")
        equal(sock.recv(65536)[:12], b"HTTP/1.1 200")
    for _ in range(20):
        with connect(r.address) as sock:
            equal(ended(sock), True)
    with socket.socket() as other:
        other.bind(("127.0.0.9", 0))
        other.connect(r.address)
        other.sendall(b"GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n")
        equal(other.recv(65536)[:12], b"HTTP/1.1 200")
    equal("reason=client-connections" in r.log(), True)
    held.pop().close()

    def answered():
        try:
            return r.get("/v2/").status == 200
        except (OSError, EOFError):
            return False

    until(answered, "a place again")
    for sock in held:
        sock.close()


def test_full_listener(t):
    """The client that is one too many waits for a place; those that idle give theirs up."""
    r = serve(t, plain_listener(), limits={"connections": 3})
    held = [connect(r.address) for _ in range(3)]
    for sock in held:
        sock.sendall(b"GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n")
        equal(sock.recv(65536)[:12], b"HTTP/1.1 200")
    clients = Clients()
    for _ in range(10):
        clients.run(lambda: equal(r.get("/v2/").status, 200))
    clients.join()
    for sock in held:
        sock.close()


# ---- odd requests -------------------------------------------------------------------------------------------------------

def statuses(raw):
    return [int(code) for code in re.findall(rb"HTTP/1\.[01] (\d\d\d) ", raw)]


def test_odd_requests(t):
    """A clean answer, or a clean end, and nothing that was hidden in a body is ever taken for a request."""
    r = serve(t, plain_listener())
    hidden = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
    host, close = b"Host: x\r\n", b"Connection: close\r\n"
    for request, want in (
            (b"POST /v2/ HTTP/1.1\r\n" + host + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
             [400]),
            (b"POST /v2/ HTTP/1.1\r\n" + host + b"Content-Length: 0\r\nContent-Length: 33\r\n\r\n" + hidden, [400]),
            (b"POST /v2/ HTTP/1.1\r\n" + host + b"Content-Length : 33\r\n\r\n" + hidden, [400]),
            (b"POST /v2/ HTTP/1.1\r\n" + host + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + hidden, [501]),
            (b"POST /v2/ HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + hidden, [400]),
            (b"POST /v2/ HTTP/1.1\r\n" + host + b"Content-Length: -1\r\n\r\n", [400, 400]),  # libmicrohttpd says it twice
            (b"GET /v2/ HTTP/1.1\r\nno colon\r\n\r\n", [400]),
            (b"GET /v2/ HTTP/9.9\r\n\r\n", [505]),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [505]),
            (b"GET /v2/\r\n", [400]),
            (b"GET\r\n\r\n", []),
            (b"\r\n\r\nGET /v2/ HTTP/1.1\r\n" + host + close + b"\r\n", [200]),
            (b"GET /v2/ HTTP/1.1\nHost: x\nConnection: close\n\n", [200]),
            (b"GET /v2/ HTTP/1.1\r\n" + host + b"X-Fold: a\r\n\tb\r\n" + close + b"\r\n", [200]),
            (b"GET /v2/ HTTP/1.1\r\n" + host + b"X-Nul: a\x00b\r\n" + close + b"\r\n", [200]),
            (b"GET http://x/v2/ HTTP/1.1\r\n" + host + close + b"\r\n", [200]),
            (b"OPTIONS * HTTP/1.1\r\n" + host + close + b"\r\n", [405]),
            (b"CONNECT x:443 HTTP/1.1\r\n" + host + close + b"\r\n", [405]),
            (b"GET /v2/ HTTP/1.0\r\n\r\n", [200]),
            (b"GET /v2/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /v2/ HTTP/1.0\r\n\r\n", [200, 200]),
            (b"GET /v2/ HTTP/1.1\r\n" + host + b"\r\nGET /v2/x HTTP/1.1\r\n" + host + b"\r\nGET /v2/ HTTP/1.1\r\n" + host +
             close + b"\r\n", [200, 404, 200]),
            (b"POST /v2/ HTTP/1.1\r\n" + host + b"Content-Length: 2000000\r\nExpect: 100-continue\r\n\r\n", [413]),
            (b"GET /v2/" + b"a" * 9000 + b" HTTP/1.1\r\n" + host + close + b"\r\n", [414]),
            (b"GET /v2/ HTTP/1.1\r\n" + host + b"X: " + b"a" * 17000 + b"\r\n\r\n", [431]),
            (b"GET /v2/ HTTP/1.1\r\n" + b"".join(b"X-%d: a\r\n" % n for n in range(65)) + b"\r\n", [431]),
            (b"GET /v2/" + b"a" * 70000 + b" HTTP/1.1\r\n", [414]),
            (b"GET /v2/ HTTP/1.1\r\n" + host + b"X: " + b"a" * 70000 + b"\r\n\r\n", [431])):
        got = statuses(talk(r.address, request, 30))
        equal(got, want, repr(request[:120]))
    equal("/hidden" in r.log(), False)
    for half in (b"", b"G", b"GET /v2/ HTT", b"GET /v2/ HTTP/1.1\r\nHost: x", b"GET /v2/ HTTP/1.1\r\nHost: x\r\n",
                 b"POST /v2/ HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc"):
        with connect(r.address) as sock:
            sock.sendall(half)
            sock.shutdown(socket.SHUT_WR)
            equal(ended(sock), True, repr(half))
    until(lambda: r.stats()["jobs"]["pending"] == 0, "nothing pending")
    equal(r.get("/v2/").status, 200)


# ---- clients that cancel ------------------------------------------------------------------------------------------------

def rss_kb(r):
    with open(f"/proc/{r.process.pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))


def test_cancelled_downloads(t):
    """Case 74: 1,000 cancelled GETs, cold and warm, plain and TLS: descriptors and memory are back to where they were."""
    ca = Authority(os.path.join(t.directory, "ca"))
    cert, key = ca.path("tls.crt"), ca.path("tls.key")
    ca.issue("x", cert, key)
    tls = tls_listener(cert, key)
    tls_address = (LOCAL, int(tls["address"].rpartition(":")[2]))
    context = ca.context()
    paths = [t.up.blob_path(REPO, t.up.add_blob(REPO, images.noise(n, 400_000))) for n in range(100)]
    r = serve(t, plain_listener(), tls)
    pick = random.Random(74)

    def cancel(path, encrypted):
        stream = TlsStream(tls_address, context, "GET", path) if encrypted else r.open("GET", path)
        if pick.random() < 0.9:  # some leave before there is an answer
            equal(stream.head().status, 200)
            stream.raw(pick.randrange(1, 50_000))
        if pick.random() < 0.3:
            stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        stream.close()

    def settle():
        r.wait_jobs()
        until(lambda: http_open(r) == 0, "no connection left", 30)

    count = 1000 if not under_sanitizer() else 200
    for path in paths[:20]:  # caches, pools and arenas have their size
        for encrypted in (False, True):
            cancel(path, encrypted)
    settle()
    fds, memory = r.fds(), rss_kb(r)
    for n in range(count):
        cancel(paths[20 + n % 80], n % 2 == 1)
    settle()
    until(lambda: r.fds() <= fds + 4, f"{fds} descriptors again", 30)  # readers of the catalog are opened when needed
    print(f"# {count} cancelled: {fds} and {r.fds()} descriptors, {memory} and {rss_kb(r)} kB", flush=True)
    if not under_sanitizer():
        equal(rss_kb(r) - memory < 24_000, True, f"{memory} kB before, {rss_kb(r)} kB after")
    equal(r.get(paths[0]).complete, True)


def http_open(r):
    """Sockets that recask has with clients of its listeners."""
    ports = {int(p) for p in re.findall(r"ev=serve\.listen address=\S+:(\d+)", r.log())}
    with open("/proc/net/tcp", encoding="ascii") as file:
        lines = [line.split() for line in file.readlines()[1:]]
    return sum(int(f[1].split(":")[1], 16) in ports and f[3] == "01" for f in lines)


def test_client_leaves_while_waiting(t):
    """A client that leaves while the upstream is silent is noticed before the upstream answers."""
    path = t.up.blob_path(REPO, t.up.add_blob(REPO, b"silent"))
    t.up.knob(path, delay=60)
    r = serve(t, plain_listener())
    for _ in range(3):
        r.open("GET", path).close()
    until(lambda: len(re.findall(r"ev=http .*status=0 .*done=0", r.log())) == 3, "three lines of clients that left", 30)
    t.up.clear_knobs()


# ---- the access log -----------------------------------------------------------------------------------------------------

def test_access_log(t):
    """One line for each request: also for those that are refused or cancelled. Nothing that clients send makes more."""
    data = images.noise(5, 16_000_000)
    path = t.up.blob_path(REPO, t.up.add_blob(REPO, data))
    r = serve(t, plain_listener())
    r.get(path)

    def lines():
        return [line for line in r.log().splitlines() if " ev=http " in line]

    count = [len(lines())]

    def line_of(request, **want):
        talk(r.address, request)
        until(lambda: len(lines()) > count[0], f"a line for {request[:60]!r}")
        count[0] = len(lines())
        for name, value in {"tls": "0", "listener": "%s:%d" % r.address, **want}.items():
            equal(f" {name}={value} " in lines()[-1] + " ", True, f"{name} in {lines()[-1]}")
        equal(bool(re.search(r" ms=\d+ first_ms=\d+ ", lines()[-1])), True)
        return lines()[-1]

    end = b"Host: x\r\nConnection: close\r\n\r\n"
    line_of(b"GET /v2/ HTTP/1.1\r\n" + end, status=200, method="GET", path="/v2/", done=1)
    line_of(b"GET /v2/none HTTP/1.1\r\n" + end, status=404, done=1)
    line_of(b"GET /v2/ HTTP/1.1\r\nX: " + b"a" * 20000 + b"\r\n\r\n", status=431, done=1)
    line_of(b"GET /v2/" + b"a" * 9000 + b" HTTP/1.1\r\n" + end, status=414)
    line_of(b"POST /v2/ HTTP/1.1\r\nContent-Length: 9999999\r\n" + end, status=413, method="POST")
    line_of(b"POST /v2/ HTTP/1.1\r\nContent-Length: x\r\n" + end, status=400)
    line_of(b"GET /v2/ HTTP/1.1\r\nno colon\r\n\r\n", status=400, done=0)
    # Quotes, escapes and control bytes stay inside their values.
    line = line_of(b'G\x1b[31m"T /v2/a"b\x1b[0m\\%0als=x HTTP/1.1\r\nUser-Agent: x" ev=fake \x1b]0;t\x07 y="\r\n' + end)
    equal(re.search(r"[\x00-\x1f\x7f]", line), None)
    equal(len(re.findall(r'(?:^| )(\w+)=(?:"(?:[^"\\]|\\.)*"|[^ "]*)(?= |$)', line)) >= 15, True, line)
    names = re.findall(r'(?:^| )(\w+)=(?:"(?:[^"\\]|\\.)*"|[^ "]*)(?= |$)', line)
    equal(names.count("ev"), 1, line)
    stream = r.open("GET", path, {"User-Agent": "leaver"}, receive_buffer=4096)
    stream.raw(1000)
    stream.close()
    until(lambda: any("ua=leaver" in l and " done=0 " in l and " status=200 " in l for l in lines()), "the cancelled one")
    for line in r.log().splitlines():
        equal(line.startswith("ts="), True, line)


if __name__ == "__main__":
    if not shutil.which("openssl"):
        print("there is no openssl to make certificates with")
        sys.exit(77)
    main()
