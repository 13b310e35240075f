# SPDX-License-Identifier: Apache-2.0
"""A scripted upstream registry on loopback: it serves what it was given, and breaks where it was told to.

    up = MockUpstream()
    digest = up.add_blob("a/b", data)
    up.add_manifest("a/b", body, media_type, tag="1")
    knob = up.knob(up.blob_path("a/b", digest), drop_at=1000, times=1)
    up.count("GET", path), up.sent(path), up.requests
    up.stop(); up.start()            # on the same port

Knobs (the first that matches a request is used; times=N: for its first N requests only):
    methods      {"GET"}: only these
    drop_at      closes the connection after this byte of the whole representation
    reset        ... by RST
    stall_at     stops after this byte until knob.release()
    delay        seconds before the answer (or until knob.release())
    rate         bytes per second
    status       answers so, with body (b"" by default)
    headers      extra ones; value None removes a default one
    redirect     Location, with status 307
    body         other bytes than the true ones
    flip         offset of one byte to send wrong
    content_type other than the true one
    chunked      Transfer-Encoding: chunked instead of Content-Length
    no_length    neither; the end of the connection ends the body
    range_status None: as it should be; 200: Range is ignored; 400, 416...: Range is refused so

up.tls = ssl.SSLContext: connections from then on speak TLS (None: no more); request.client is who their certificate names.

up.gate = fn: fn(request) returns the Answer to a request, or None for what the knobs and the contents say.
"""
import hashlib
import json
import re
import socket
import struct
import threading
import time
import urllib.parse

BLOCK = 64 * 1024


def sha256(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Knob:
    def __init__(self, **how):
        self.methods = how.pop("methods", None)
        self.times = how.pop("times", None)
        self.drop_at = how.pop("drop_at", None)
        self.reset = how.pop("reset", False)
        self.stall_at = how.pop("stall_at", None)
        self.delay = how.pop("delay", 0)
        self.rate = how.pop("rate", None)
        self.status = how.pop("status", None)
        self.headers = how.pop("headers", {})
        self.redirect = how.pop("redirect", None)
        self.body = how.pop("body", None)
        self.flip = how.pop("flip", None)
        self.content_type = how.pop("content_type", None)
        self.chunked = how.pop("chunked", False)
        self.no_length = how.pop("no_length", False)
        self.range_status = how.pop("range_status", None)
        self.used = 0
        self.released = threading.Event()
        self.stalled = threading.Event()
        assert not how, how

    def release(self):
        self.released.set()


PLAIN = Knob()


class Request:
    def __init__(self, method, target, headers):
        self.method = method
        self.target = target
        self.path, _, self.query = target.partition("?")
        self.headers = headers
        self.body = b""
        self.at = time.monotonic()
        self.client = None  # the CN of the certificate that the client showed

    def __repr__(self):
        return f"{self.method} {self.target} {self.headers.get('range', '')}".rstrip()


class Answer:
    def __init__(self, status, body=b"", content_type="application/json", **headers):
        self.status = status
        self.body = body
        self.headers = {"Content-Type": content_type}
        self.headers.update({k.replace("_", "-"): v for k, v in headers.items()})


class Gone(Exception):
    """This connection is over."""


class Reset(Gone):
    """... and its end is a RST."""


class MockUpstream:
    def __init__(self):
        self.lock = threading.Lock()
        self.blobs = {}      # (repo, digest) -> bytes
        self.manifests = {}  # (repo, tag or digest) -> (bytes, media type)
        self.referrers = {}  # (repo, digest) -> bytes of an index
        self.knobs = []      # (path, Knob)
        self.gate = None
        self.tls = None
        self.requests = []
        self.sent_bytes = {}
        self.open_now = 0
        self.accepted = 0
        self.port = 0
        self.listener = None
        self.connections = set()
        self.start()

    # ---- what it has --------------------------------------------------------------------------------------------

    def add_blob(self, repo, data, digest=None):
        digest = digest or sha256(data)
        self.blobs[repo, digest] = data
        return digest

    def add_manifest(self, repo, body, media_type, tag=None):
        digest = sha256(body)
        self.manifests[repo, digest] = (body, media_type)
        if tag:
            self.manifests[repo, tag] = (body, media_type)
        return digest

    def knob(self, path, **how):
        """The newest knob of a path is asked first."""
        knob = Knob(**how)
        with self.lock:
            self.knobs.insert(0, (path, knob))
        return knob

    def clear_knobs(self):
        with self.lock:
            for _, knob in self.knobs:
                knob.release()
            self.knobs = []

    @staticmethod
    def blob_path(repo, digest):
        return f"/v2/{repo}/blobs/{digest}"

    @staticmethod
    def manifest_path(repo, reference):
        return f"/v2/{repo}/manifests/{reference}"

    # ---- what it saw --------------------------------------------------------------------------------------------

    def seen(self, method=None, path=None):
        with self.lock:
            return [r for r in self.requests
                    if (method is None or r.method == method) and (path is None or r.path == path)]

    def count(self, method=None, path=None):
        return len(self.seen(method, path))

    def sent(self, path=None):
        with self.lock:
            if path is None:
                return sum(self.sent_bytes.values())
            return self.sent_bytes.get(path, 0)

    def forget(self):
        with self.lock:
            self.requests = []
            self.sent_bytes = {}

    # ---- sockets ------------------------------------------------------------------------------------------------

    @property
    def url(self):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def host(self):
        return f"127.0.0.1:{self.port}"

    def start(self):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(512)
        self.port = listener.getsockname()[1]
        self.listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def stop(self):
        listener, self.listener = self.listener, None
        if listener:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        with self.lock:
            gone = list(self.connections)
            for _, knob in self.knobs:
                knob.release()
        for sock in gone:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _accept(self, listener):
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            if self.listener is not listener:
                sock.close()
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.connections.add(sock)
                self.accepted += 1
                self.open_now += 1
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    @staticmethod
    def _hear_out(sock):
        """Closed at once, the request that is on its way would be answered with a reset, and our alert be lost."""
        with socket.socket(fileno=sock.detach()) as plain:
            try:
                plain.settimeout(5)
                plain.shutdown(socket.SHUT_WR)
                while plain.recv(65536):
                    pass
            except OSError:
                pass

    def _shake_hands(self, sock):
        """The connection in TLS, and the name that the client's certificate has; None when they do not agree."""
        with self.lock:
            self.connections.discard(sock)
        secure = self.tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        try:
            secure.do_handshake()
        except (OSError, ValueError):
            self._hear_out(secure)
            with self.lock:
                self.open_now -= 1
            return None, None
        with self.lock:
            self.connections.add(secure)
        names = dict(pair[0] for pair in (secure.getpeercert() or {}).get("subject", ()))
        return secure, names.get("commonName")

    def _serve(self, sock):
        client = None
        if self.tls:
            sock, client = self._shake_hands(sock)
            if not sock:
                return
        stream = sock.makefile("rb")
        try:
            while True:
                request = self._read_request(stream)
                if request is None:
                    break
                request.client = client
                with self.lock:
                    self.requests.append(request)
                self._answer(sock, request)
                if request.headers.get("connection", "").lower() == "close":
                    break
        except Reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except (OSError, Gone, ValueError):
            pass
        finally:
            with self.lock:
                self.connections.discard(sock)
                self.open_now -= 1
            stream.close()
            sock.close()

    @staticmethod
    def _read_request(stream):
        line = stream.readline(65536)
        if not line:
            return None
        method, target, _ = line.decode("latin-1").split(" ", 2)
        headers = {}
        while True:
            line = stream.readline(65536).decode("latin-1").rstrip("\r\n")
            if not line:
                request = Request(method, target, headers)
                request.body = stream.read(int(headers.get("content-length", "0")))
                return request
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()

    # ---- answers ------------------------------------------------------------------------------------------------

    def _pick_knob(self, request):
        with self.lock:
            for path, knob in self.knobs:
                if path not in (request.path, "*"):
                    continue
                if knob.methods and request.method not in knob.methods:
                    continue
                if knob.times is not None and knob.used >= knob.times:
                    continue
                knob.used += 1
                return knob
        return PLAIN

    def _answer(self, sock, request):
        answer = self.gate and self.gate(request)
        if answer:
            self._send(sock, request, PLAIN, answer)
            return
        knob = self._pick_knob(request)
        if knob.delay:
            knob.released.wait(knob.delay)
        if knob.redirect:
            answer = Answer(307, b"moved", "text/plain", Location=knob.redirect)
        elif knob.status:
            answer = Answer(knob.status, knob.body or b"", knob.content_type or "text/plain")
        else:
            answer = self._route(request)
            if knob.body is not None:
                answer.body = knob.body
            if knob.content_type:
                answer.headers["Content-Type"] = knob.content_type
        if knob.flip is not None and answer.status == 200:
            answer.body = bytearray(answer.body)
            answer.body[knob.flip] ^= 0x55
        self._send(sock, request, knob, answer)

    def _route(self, request):
        path = urllib.parse.unquote(request.path)
        if path in ("/v2", "/v2/"):
            return Answer(200, b"{}")
        match = re.fullmatch(r"/v2/(.+)/(manifests|blobs|referrers)/([^/]+)", path)
        if match:
            repo, kind, reference = match.groups()
            if kind == "blobs" and (repo, reference) in self.blobs:
                return Answer(200, self.blobs[repo, reference], "application/octet-stream",
                              Docker_Content_Digest=reference)
            if kind == "manifests" and (repo, reference) in self.manifests:
                body, media_type = self.manifests[repo, reference]
                return Answer(200, body, media_type, Docker_Content_Digest=sha256(body))
            if kind == "referrers" and (repo, reference) in self.referrers:
                return Answer(200, self.referrers[repo, reference], "application/vnd.oci.image.index.v1+json")
            code = {"blobs": "BLOB_UNKNOWN", "manifests": "MANIFEST_UNKNOWN", "referrers": "NOT_FOUND"}[kind]
            return Answer(404, json.dumps({"errors": [{"code": code}]}).encode())
        match = re.fullmatch(r"/v2/(.+)/tags/list", path)
        if match:
            return self._tags(match.group(1), urllib.parse.parse_qs(request.query))
        return Answer(404, b'{"errors":[{"code":"NAME_UNKNOWN"}]}')

    def _tags(self, repo, query):
        tags = sorted(t for r, t in self.manifests if r == repo and not t.startswith("sha256:"))
        if not tags:
            return Answer(404, b'{"errors":[{"code":"NAME_UNKNOWN"}]}')
        last = query.get("last", [""])[0]
        rest = [t for t in tags if t > last]
        n = int(query.get("n", ["1000"])[0])
        answer = Answer(200, json.dumps({"name": repo, "tags": rest[:n]}).encode())
        if len(rest) > n:
            answer.headers["Link"] = f'</v2/{repo}/tags/list?n={n}&last={rest[n - 1]}>; rel="next"'
        return answer

    @staticmethod
    def _cut(request, knob, answer):
        """Range: (status, first byte, bytes) of what goes out."""
        total = len(answer.body)
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
        if answer.status != 200 or request.method != "GET" or not match or knob.range_status == 200:
            return answer.status, 0, answer.body
        if knob.range_status == 206:  # a part that nobody asked for
            answer.headers["Content-Range"] = f"bytes 0-9/{total}"
            return 206, 0, answer.body[:10]
        if knob.range_status:
            answer.headers = {"Content-Type": "text/plain"}
            return knob.range_status, 0, b"no range for you"
        first, last = int(match.group(1)), int(match.group(2) or total - 1)
        last = min(last, total - 1)
        if first > last:
            answer.headers = {"Content-Range": f"bytes */{total}"}
            return 416, 0, b""
        answer.headers["Content-Range"] = f"bytes {first}-{last}/{total}"
        return 206, first, memoryview(answer.body)[first:last + 1]

    def _send(self, sock, request, knob, answer):
        status, first, body = self._cut(request, knob, answer)
        headers = dict(answer.headers)
        if knob.chunked:
            headers["Transfer-Encoding"] = "chunked"
        elif knob.no_length:
            headers["Connection"] = "close"
        else:
            headers["Content-Length"] = str(len(body))
        headers.update(knob.headers)
        head = f"HTTP/1.1 {status} Mock\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items() if v is not None)
        sock.sendall((head + "\r\n").encode())
        if request.method == "HEAD":
            return
        with self.lock:
            self.sent_bytes.setdefault(request.path, 0)
        self._send_body(sock, request, knob, first, memoryview(body))
        if knob.chunked:
            sock.sendall(b"0\r\n\r\n")
        if knob.no_length:
            raise Gone

    def _send_body(self, sock, request, knob, at, body):
        while True:
            if knob.stall_at is not None and at >= knob.stall_at:
                knob.stalled.set()
                knob.released.wait()
                if not self.listener:
                    raise Gone
            if knob.drop_at is not None and at >= knob.drop_at:
                raise Reset if knob.reset else Gone
            if not body:
                return
            step = min(len(body), BLOCK)
            for mark in (knob.stall_at, knob.drop_at):
                if mark is not None and at < mark:
                    step = min(step, mark - at)
            if knob.rate:
                step = max(1, min(step, knob.rate // 20))
            block = body[:step]
            if knob.chunked:
                sock.sendall(b"%x\r\n" % step + block + b"\r\n")
            else:
                sock.sendall(block)
            with self.lock:
                self.sent_bytes[request.path] += step
            if knob.rate:
                time.sleep(step / knob.rate)
            at += step
            body = body[step:]
