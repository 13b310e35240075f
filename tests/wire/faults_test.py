#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A machine that fails under recask: a full disk, files and memory that run out, a catalog that others hold or spoil.

Clients get right bytes or a clear error; nothing half done is kept; and when the fault is over all works again by itself.
"""
import os
import re
import resource
import sqlite3
import subprocess
import threading
import time

import images
from mock import sha256
from recask import BINARY, can_mount, request, under_sanitizer
from runner import Clients, Skip, equal, main, until

REPO = "team/app"
SCALE = 4 if under_sanitizer() else 1


def whole(answer, data, what=""):
    equal((answer.status, answer.complete, len(answer.body)), (200, True, len(data)), what or str(answer))
    equal(sha256(answer.body), sha256(data), what)


def pull(r, image, repo=REPO, tag="1"):
    """By tag, as a client that takes what the upstream has; every byte of it."""
    answer = r.manifest(repo, tag)
    equal((answer.status, sha256(answer.body), answer.h("Docker-Content-Digest")), (200, image.digest, image.digest), repo)
    equal(r.manifest(repo, image.digest).body, image.body)
    whole(r.blob(repo, image.config_digest), image.config, repo)
    for layer in image.layers:
        whole(r.blob(repo, layer.digest), layer.blob, repo)


def blob_gets(t, image):
    digests = {image.config_digest, *[x.digest for x in image.layers]}
    return [q for q in t.up.requests if q.method == "GET" and q.path.rsplit("/", 1)[1] in digests]


def stays(t, r, image, repo=REPO):
    """Pulled once more it is stored: after that the upstream is asked for none of its blobs."""
    pull(r, image, repo)
    r.wait_jobs()
    t.up.forget()
    pull(r, image, repo)
    equal(blob_gets(t, image), [])
    for layer in image.layers:
        until(lambda digest=layer.diff_id, data=layer.tar: r.blob(repo, digest).body == data, "the canonical form")


def evict(r, digest):
    """The store, and the socket in it, may be in a file system that only recask sees."""
    answer = request(os.path.join(r.store_path(), "admin.sock"), "POST", f"/api/v1/test/evict?digest={digest}")
    if answer.status // 100 != 2:
        raise AssertionError(f"evict {digest}: {answer} {answer.body!r}")


def spool_empties(r):
    until(lambda: not r.files("spool"), "an empty spool")


def lines(r, event):
    return [x for x in r.log().splitlines() if f"ev={event} " in x]


# ---- a full disk -----------------------------------------------------------------------------------------------------

class Filler:
    """Another file on the store's disk that takes it to the last byte."""

    def __init__(self, r):
        self.path = os.path.join(r.store_path(), "..filler")

    def fill(self):
        with open(self.path, "ab", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    pass

    def free(self, size=None):
        os.truncate(self.path, 0 if size is None else os.stat(self.path).st_size - size)


def small_disk(t, *flags, size=48 << 20):
    if not can_mount():
        raise Skip("cannot mount a small file system")
    return t.recask("--quota", "30MiB", *flags, disk_bytes=size)


def test_disk_filled_by_others(t):
    """Case 15: another program takes the disk's last byte. What is stored is served, what is new passes through, tags are
    asked for as always; nothing is kept half. With the space back the same process stores again."""
    old = images.small_image("old").push(t.up, "a/old", "1")
    fresh = [images.small_image(f"new{n}", size=600_000).push(t.up, f"a/new{n}", "1") for n in range(3)]
    r = small_disk(t, "--tag-ttl", "0s")
    stays(t, r, old, "a/old")
    before = (set(r.files("originals")), set(r.files("packs")))
    filler = Filler(r)
    filler.fill()
    equal(r.free_bytes(), 0)
    for _ in range(2):
        t.up.forget()
        pull(r, old, "a/old")
        equal(blob_gets(t, old), [])
        clients = Clients()
        for n, image in enumerate(fresh):
            clients.run(pull, r, image, f"a/new{n}")
            clients.run(pull, r, image, f"a/new{n}")
        clients.join()
        r.wait_jobs()
    equal((set(r.files("originals")), set(r.files("packs"))), before)
    spool_empties(r)
    # A tag that moves meanwhile is the new one, though that cannot be written down.
    moved = images.small_image("moved", layers=1).push(t.up, "a/old", "1")
    pull(r, moved, "a/old")
    equal(r.manifest("a/old", "1", method="HEAD").h("Docker-Content-Digest"), moved.digest)
    equal("No space left on device" in r.log() or "full" in r.log(), True, "the log says why")
    filler.free()
    for n, image in enumerate(fresh):
        stays(t, r, image, f"a/new{n}")
    stays(t, r, moved, "a/old")
    r.kill9()


def test_disk_full_again_and_again(t):
    """Case 15: the disk fills and empties all the time while clients pull: never a wrong byte, never an error; in the end
    all is stored, and nothing else."""
    count = 6
    all_images = [images.small_image(n, size=900_000).push(t.up, f"a/{n}", "1") for n in range(count)]
    r = small_disk(t, "--tag-ttl", "0s")
    filler = Filler(r)
    stop = threading.Event()

    def fill():
        while not stop.is_set():
            filler.fill()
            time.sleep(0.1)
            filler.free()
            time.sleep(0.1)

    def client(number):
        for n in range(count * 2):
            pull(r, all_images[(n + number) % count], f"a/{(n + number) % count}")
            if n % 4 == 3:
                for layer in all_images[n % count].layers:
                    try:
                        evict(r, layer.digest)
                    except AssertionError:
                        pass  # not there, or being read

    filling = Clients()
    filling.run(fill)
    clients = Clients()
    for number in range(3):
        clients.run(client, number)
    clients.join(240)
    stop.set()
    filling.join()
    filler.free()
    for n, image in enumerate(all_images):
        stays(t, r, image, f"a/{n}")
    spool_empties(r)
    stats = r.stats()["store"]
    equal(stats["reserved_bytes"], 0)
    r.kill9()


def test_encoded_blob_on_a_full_disk(t):
    """Cases 15, 83, 84: a blob that comes with a Content-Encoding, of which only its end tells what it is, meets a full
    disk: as it came or decoded, whichever its digest names, it passes through."""
    r = small_disk(t)
    plain = b"".join(b"line %d of what compresses well\n" % n for n in range(100_000))
    layer = images.gzip(images.noise(1, 3_000_000))
    filler = Filler(r)
    for what, body, said in ((plain, images.gzip(plain), "gzip"), (layer, layer, "x-gzip"),
                             (layer, images.gzip(layer), "gzip")):
        digest = t.up.add_blob(REPO, what)
        t.up.knob(t.up.blob_path(REPO, digest), body=body, headers={"Content-Encoding": said})
        before = r.files("originals")
        filler.fill()
        for left in (0, 1 << 20):  # the second: full in the middle, as it comes or as it is decoded
            filler.free(left)
            answer = r.blob(REPO, digest)
            whole(answer, what, said)
            equal(answer.h("Content-Encoding"), None)
            r.wait_jobs()
            part = r.blob(REPO, digest, {"Range": "bytes=1000000-1000999"})
            equal(part.body in (what, what[1000000:1001000]), True, str(part))
        r.wait_jobs()
        spool_empties(r)
        equal(r.files("originals"), before)
        # With a wrong byte in the middle it is cut or refused, never whole.
        t.up.knob(t.up.blob_path(REPO, digest), body=body[:-5000] + bytes(100) + body[-4900:],
                  headers={"Content-Encoding": said})
        answer = r.blob(REPO, digest)
        equal(answer.status == 200 and answer.complete, False, "a damaged blob")
        t.up.clear_knobs()
        filler.free()
        whole(r.blob(REPO, digest), what, said)
        r.wait_jobs()
        t.up.forget()
        whole(r.blob(REPO, digest), what, said)
        equal(t.up.count("GET"), 0, "it is stored")
        for path in r.files("originals"):
            evict(r, "sha256:" + os.path.basename(path))
    r.kill9()


if __name__ == "__main__":
    main()
