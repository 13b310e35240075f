#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A blob of 5 GiB: from an upstream that breaks off behind the fourth, to a client, into the store, and ranges of it out of
there again. For a release build (CMakeLists.txt): it is about what does not fit into 32 bits, not about what sanitizers see."""
import hashlib
import random
import re
import shutil
import socket
import sys
import threading

from recask import under_sanitizer
from runner import Skip, equal, main

REPO = "team/big"
GIB = 1 << 30
SIZE = 5 * GIB + 12345
PIECE = random.Random(5).randbytes(16 << 20)  # again and again, so that the store keeps it once
NEED = 16 * GIB


def pieces(first, end):
    """Bytes [first, end) of the blob."""
    while first < end:
        at = first % len(PIECE)
        piece = memoryview(PIECE)[at:at + min(len(PIECE) - at, end - first)]
        yield piece
        first += len(piece)


class Upstream:
    """A registry with this one blob, which nobody has in memory. Drops its first transfer at drop_at."""

    def __init__(self, drop_at):
        whole = hashlib.sha256()
        for piece in pieces(0, SIZE):
            whole.update(piece)
        self.digest = f"sha256:{whole.hexdigest()}"
        self.drop_at = drop_at
        self.ranges = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(sock,), daemon=True).start()

    def serve(self, sock):
        head = b""
        while b"\r\n\r\n" not in head:
            data = sock.recv(4096)
            if not data:
                return
            head += data
        method = head.split(b" ", 1)[0]
        match = re.search(rb"\r\nRange: bytes=(\d+)-", head, re.IGNORECASE)
        first = int(match.group(1)) if match else 0
        end = SIZE
        if method == b"GET":
            self.ranges.append(first)
            end, self.drop_at = self.drop_at or SIZE, None
        status = f"206 Part\r\nContent-Range: bytes {first}-{SIZE - 1}/{SIZE}" if match else "200 OK"
        with sock:
            try:
                sock.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {SIZE - first}\r\nConnection: close\r\n\r\n".encode())
                for piece in pieces(first, end if method == b"GET" else first):
                    sock.sendall(piece)
            except OSError:
                pass


def read(r, digest, headers):
    """(head, bytes, sha256) of a GET."""
    stream = r.open("GET", f"/v2/{REPO}/blobs/{digest}", {"Accept-Encoding": "identity", **headers})
    answer = stream.head()
    got, total = hashlib.sha256(), 0
    while data := stream.raw(1 << 20):
        got.update(data)
        total += len(data)
    stream.close()
    return answer, total, f"sha256:{got.hexdigest()}"


def test_five_gib(t):
    """Larger than 4 GiB in each number: lengths, offsets, ranges, the place where a transfer is resumed."""
    if shutil.disk_usage(t.directory).free < NEED:
        raise Skip(f"less than {NEED // GIB} GiB of disk are free")
    up = Upstream(drop_at=4 * GIB + 777)
    r = t.recask("--originals", "drop", upstreams=[up.url])
    answer, total, digest = read(r, up.digest, {})
    equal((answer.status, answer.h("Content-Length"), total, digest), (200, str(SIZE), SIZE, up.digest))
    equal(len(up.ranges), 2)
    equal(4 * GIB < up.ranges[1] <= 4 * GIB + 777, True, up.ranges)
    equal(r.wait_jobs(timeout=100)["store"]["canonical_layers"], 1)
    equal(sum(r.files("packs").values()) < GIB, True, "kept once")
    head = r.head(f"/v2/{REPO}/blobs/{up.digest}", {"Accept-Encoding": "identity"})
    equal((head.status, head.h("Content-Length")), (200, str(SIZE)))
    for first, last in ((4 * GIB - 5, 4 * GIB + 5), (SIZE - 1_000_000, SIZE - 1), (4 * GIB + 123, 4 * GIB + 2_000_000)):
        answer, total, digest = read(r, up.digest, {"Range": f"bytes={first}-{last}"})
        equal((answer.status, answer.h("Content-Range")), (206, f"bytes {first}-{last}/{SIZE}"))
        want = hashlib.sha256()
        for piece in pieces(first, last + 1):
            want.update(piece)
        equal((total, digest), (last + 1 - first, f"sha256:{want.hexdigest()}"))
    equal(len(up.ranges), 2)


if __name__ == "__main__":
    if under_sanitizer():
        print("sanitizers make it too slow")
        sys.exit(77)
    main()
