# SPDX-License-Identifier: Apache-2.0
"""recask as a process, and HTTP clients that see exactly what is on the wire.

    r = Recask(directory, upstreams=[up.url])
    answer = r.get("/v2/a/b/blobs/sha256:...", {"Range": "bytes=5-"})
    answer.status, answer.h("Content-Length"), answer.body, answer.complete
    r.wait_jobs(); r.stats()["upstream"]["requests"]
    r.kill9(); r.start(); r.stop()
"""
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import time

BINARY = os.environ.get("RECASK_BIN", "")

ACCEPT_ALL = ", ".join([
    "application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json", "*/*"])

TROUBLE = re.compile(r"ERROR: (Address|Leak|Undefined|Memory)Sanitizer|WARNING: ThreadSanitizer|runtime error:|"
                     r"ThreadSanitizer: |ev=require|REQUIRE|lvl=err ")


def under_sanitizer():
    """Sanitizers make everything slower; limits that measure time give way."""
    return bool(os.environ.get("RECASK_SANITIZE")) or any(word in BINARY for word in ("/asan", "/tsan"))


# ---- a client -----------------------------------------------------------------------------------------------------------

class Answer:
    def __init__(self, status, headers):
        self.status = status
        self.headers = headers  # [(name, value)]
        self.body = b""
        self.complete = False   # the body ended as its framing said

    def h(self, name):
        values = [v for n, v in self.headers if n.lower() == name.lower()]
        return ", ".join(values) if values else None

    def json(self):
        return json.loads(self.body)

    def error_code(self):
        return self.json()["errors"][0]["code"]

    def __repr__(self):
        return f"<{self.status} {self.headers} {len(self.body)} bytes {'complete' if self.complete else 'cut'}>"


class Stream:
    """One request whose answer's body is read as the test likes."""

    def __init__(self, address, method, target, headers=None, timeout=60, receive_buffer=None):
        self.sock = connect(address, timeout, receive_buffer)
        self.buffer = b""
        self.method = method
        head = f"{method} {target} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nConnection: close\r\n" \
            if isinstance(address, tuple) else f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        for name, value in (headers or {}).items():
            for one in value if isinstance(value, list) else [value]:
                head += f"{name}: {one}\r\n"
        self.sock.sendall((head + "\r\n").encode("latin-1"))
        self.answer = None
        self.taken = 0  # body bytes that raw() gave out

    def _fill(self):
        try:
            data = self.sock.recv(256 * 1024)
        except ConnectionResetError:
            data = b""
        self.buffer += data
        return len(data) > 0

    def _line(self):
        while b"\r\n" not in self.buffer:
            if not self._fill():
                raise EOFError("the connection ended in a header")
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line.decode("latin-1")

    def head(self):
        """Waits for status and headers."""
        if self.answer is None:
            status = int(self._line().split(" ", 2)[1])
            headers = []
            while line := self._line():
                name, _, value = line.partition(":")
                headers.append((name, value.strip()))
            self.answer = Answer(status, headers)
        return self.answer

    def raw(self, size):
        """Up to size body bytes as they come, framing included; b"" at the end."""
        self.head()
        if not self.buffer:
            self._fill()
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        self.taken += len(data)
        return data

    def rest(self):
        """The answer with all of the body that raw() has not given out."""
        answer = self.head()
        if self.method == "HEAD" or answer.status in (204, 304):
            answer.complete = True
        elif (answer.h("Transfer-Encoding") or "").lower() == "chunked":
            self._rest_chunked(answer)
        else:
            length = answer.h("Content-Length")
            parts, have = [self.buffer], len(self.buffer)
            want = int(length) - self.taken if length is not None else None
            while want is None or have < want:
                self.buffer = b""
                if not self._fill():
                    break
                parts.append(self.buffer)
                have += len(self.buffer)
            answer.body += b"".join(parts)
            answer.complete = want is None or len(answer.body) == want
        self.close()
        return answer

    def _rest_chunked(self, answer):
        parts = []
        try:
            while True:
                size = int(self._line().split(";")[0], 16)
                while len(self.buffer) < size + 2:
                    if not self._fill():
                        parts.append(self.buffer[:size])
                        return
                parts.append(self.buffer[:size])
                self.buffer = self.buffer[size + 2:]
                if size == 0:
                    answer.complete = True
                    return
        except EOFError:
            return
        finally:
            answer.body += b"".join(parts)

    def close(self):
        self.sock.close()


def connect(address, timeout=60, receive_buffer=None):
    sock = socket.socket(socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX, socket.SOCK_STREAM)
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(timeout)
    sock.connect(address)
    return sock


def talk(address, data, timeout=10):
    """Sends raw bytes, returns all that comes back until the connection ends."""
    out = b""
    with connect(address, timeout) as sock:
        try:
            sock.sendall(data)
            while block := sock.recv(65536):
                out += block
        except (ConnectionResetError, BrokenPipeError):
            pass
    return out


# ---- the process --------------------------------------------------------------------------------------------------------

ports_given = set()


def free_port():
    """Never the same one twice: the kernel is free to, as soon as the socket is closed."""
    while True:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        if port not in ports_given:
            ports_given.add(port)
            return port


SMALL_DISK = ["unshare", "--mount", "--propagation", "private", "sh", "-c",
              'mkdir -p "$1" && mount -t tmpfs -o size="$2" none "$1" && shift 2 && exec "$@"']


def can_mount():
    """Small file systems need root, and a kernel that lets it."""
    try:
        done = subprocess.run(["unshare", "--mount", "--propagation", "private", "mount", "-t", "tmpfs", "none", "/mnt"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    except OSError:
        return False
    return done.returncode == 0


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Recask:
    running = set()
    launcher = []  # a program to run it under

    def __init__(self, directory, upstreams=(), flags=(), env=None, disk_bytes=None):
        """disk_bytes: the store is a file system of this size that nobody else sees and that goes with the process."""
        self.directory = directory
        self.disk_bytes = disk_bytes
        self.store = os.path.join(directory, "store")
        self.log_path = os.path.join(directory, "recask.log")
        self.flags = [f for u in upstreams for f in ("--upstream", u)] + list(flags)
        self.env = env or {}
        self.address = ("127.0.0.1", free_port())
        self.admin = ("127.0.0.1", free_port())
        self.process = None
        self.start()

    def listen_flags(self):
        return ["--listen", "%s:%d" % self.address]

    def start(self):
        env = {k: v for k, v in os.environ.items()
               if not k.lower().endswith("_proxy") and not k.startswith("RECASK_")}
        env.update({"RECASK_TEST_HOOKS": "1", **self.env})
        command = [*self.launcher, BINARY, "serve", *self.listen_flags(), "--admin", "%s:%d" % self.admin,
                   "--store", self.store, *self.flags]
        if self.disk_bytes:
            command = [*SMALL_DISK, "sh", self.store, str(self.disk_bytes), *command]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                                            preexec_fn=die_with_parent)
        Recask.running.add(self)
        end = time.monotonic() + 30
        while True:
            if self.process.poll() is not None:
                Recask.running.discard(self)
                raise AssertionError(f"recask ended with {self.process.returncode}:\n{self.log()[-3000:]}")
            try:
                if request(self.admin, "GET", "/readyz").status == 200:
                    return self
            except OSError:
                pass
            if time.monotonic() > end:
                raise AssertionError("recask does not become ready")
            time.sleep(0.02)

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def check_log(self, allow=None):
        for line in self.log().splitlines():
            if TROUBLE.search(line) and not (allow and re.search(allow, line)):
                raise AssertionError(f"in recask's log: {line}")

    def stop(self, timeout=30, allow=None):
        if self.process is None:
            return
        self.process.terminate()
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise AssertionError("recask does not stop on SIGTERM") from None
        Recask.running.discard(self)
        self.process = None
        self.check_log(allow)
        if code != 0:
            raise AssertionError(f"recask stopped with {code}:\n{self.log()[-3000:]}")

    def kill9(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        Recask.running.discard(self)

    def restart(self):
        self.stop()
        return self.start()

    # ---- asking it ----------------------------------------------------------------------------------------------

    def open(self, method, target, headers=None, **how):
        return Stream(self.address, method, target, headers, **how)

    def get(self, target, headers=None, **how):
        return self.open("GET", target, headers, **how).rest()

    def head(self, target, headers=None, **how):
        return self.open("HEAD", target, headers, **how).rest()

    def manifest(self, repo, reference, agent="test", method="GET", accept=ACCEPT_ALL, **more):
        return self.open(method, f"/v2/{repo}/manifests/{reference}",
                         {"User-Agent": agent, "Accept": accept, **more}).rest()

    def blob(self, repo, digest, headers=None):
        return self.get(f"/v2/{repo}/blobs/{digest}", headers)

    def pull(self, repo, image, reference=None, agent="test"):
        """What a client does that takes an image as the upstream has it. Returns the answer with the manifest."""
        answer = self.manifest(repo, reference or image.digest, agent)
        for digest in [image.config_digest, *[x.digest for x in image.layers]]:
            blob = self.blob(repo, digest)
            if blob.status != 200 or not blob.complete:
                raise AssertionError(f"{digest}: {blob}")
        return answer

    def stats(self):
        return request(self.admin, "GET", "/api/v1/stats").json()

    def evict(self, digest):
        answer = request(os.path.join(self.store, "admin.sock"), "POST", f"/api/v1/test/evict?digest={digest}")
        if answer.status // 100 != 2:
            raise AssertionError(f"evict {digest}: {answer} {answer.body!r}")

    def wait_jobs(self, timeout=60):
        """Until no fill and no background job is left."""
        end = time.monotonic() + timeout
        while True:
            stats = self.stats()
            if stats["jobs"]["pending"] == 0 and stats.get("fills", 0) == 0:
                return stats
            if time.monotonic() > end:
                raise AssertionError(f"jobs do not end: {stats}")
            time.sleep(0.03)

    def change(self, path):
        """POST where things may be changed: the Unix socket."""
        return request(os.path.join(self.store, "admin.sock"), "POST", path)

    def collect(self):
        """recask gc; 409: one is running."""
        answer = self.change("/api/v1/gc")
        if answer.status not in (200, 202, 409):
            raise AssertionError(f"gc: {answer} {answer.body!r}")

    def wait_idle(self, timeout=60):
        """Until no job, no scrub and no collecting is left."""
        end = time.monotonic() + timeout
        while self.wait_jobs(timeout) and request(self.admin, "GET", "/api/v1/maintenance").json()["running"] is not None:
            if time.monotonic() > end:
                raise AssertionError("maintenance does not end")
            time.sleep(0.03)

    # ---- what the system says of it -----------------------------------------------------------------------------

    def fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def cpu_ticks(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    def store_path(self):
        """The store, seen from here: a small disk is mounted in the process's own namespace."""
        return f"/proc/{self.process.pid}/root{self.store}" if self.disk_bytes else self.store

    def free_bytes(self):
        disk = os.statvfs(self.store_path())
        return disk.f_bavail * disk.f_frsize

    def files(self, folder):
        """Paths and sizes of the files in a folder of the store."""
        found = {}
        top = self.store_path()
        for at, _, names in os.walk(os.path.join(top, folder)):
            for path in (os.path.join(at, name) for name in names):
                try:
                    found[path] = os.stat(path).st_size
                except FileNotFoundError:
                    pass
        return found


def request(address, method, target, headers=None, timeout=30):
    return Stream(address, method, target, headers, timeout).rest()
