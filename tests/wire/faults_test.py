#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A machine that fails under recask: a full disk, files and memory that run out, a catalog that others hold or spoil.

Clients get right bytes or a clear error; nothing half done is kept; and when the fault is over all works again by itself.
"""
import errno
import mmap
import os
import random
import re
import resource
import sqlite3
import struct
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


class OwnDisk:
    """A small file system that outlives recask."""

    def __init__(self, r, size):
        self.holder = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c",
                                        'mount -t tmpfs -o size="$1" none "$0" && echo up && read end', r.store, str(size)],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        equal(self.holder.stdout.readline(), b"up\n")
        r.launcher = ["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", f"--wd={os.getcwd()}"]
        self.path = r.store
        r.store_path = lambda: f"/proc/{self.holder.pid}/root{self.path}"

    def end(self):
        self.holder.stdin.close()
        self.holder.wait()
        self.holder.stdout.close()


def test_start_on_a_full_disk(t):
    """Cases 5, 15: killed while the disk was full, with a blob half-way in: the next start gives that its room back and serves what is
    stored."""
    if not can_mount():
        raise Skip("cannot mount a small file system")
    old = images.small_image("old").push(t.up, "a/old", "1")
    big = images.noise("big", 4 << 20)
    path = t.up.blob_path(REPO, t.up.add_blob(REPO, big))
    r = t.recask()
    r.stop()
    disk = OwnDisk(r, 16 << 20)
    try:
        r.start()
        stays(t, r, old, "a/old")
        t.up.knob(path, stall_at=3 << 20)
        stream = r.open("GET", path)
        until(lambda: sum(r.files("spool").values()) >= 3 << 20, "bytes in the spool")
        r.kill9()
        stream.close()
        t.up.clear_knobs()
        Filler(r).fill()
        t.up.forget()
        r.start()
        pull(r, old, "a/old")
        equal((blob_gets(t, old), r.files("spool")), ([], {}))
        whole(r.get(path), big)
        r.wait_jobs()
        r.stop()
        # Without any room at all it says so.
        Filler(r).fill()
        said = refused(t, r.store, r.launcher)
        equal((r.store in said, "full" in said or "No space" in said), (True, True), said)
    finally:
        r.kill9()
        disk.end()


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
    equal(r.stats()["store"]["reserved_bytes"], 0)
    t.allow = "path=/api/v1/test/evict code=NOSPC"  # the catalog has to be written for it


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


# ---- starting ----------------------------------------------------------------------------------------------------------

def refused(t, store, prefix=()):
    """What `recask serve` says on a store that it does not take; it must not stay."""
    done = subprocess.run([*prefix, BINARY, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--store", store,
                           "--upstream", t.up.url], capture_output=True, text=True, timeout=60, check=False)
    equal(done.returncode, 1, done.stderr)
    return done.stderr


def test_two_on_one_store(t):
    """The second one says whose the store is, and which process has it; the first goes on."""
    image = images.small_image().push(t.up, REPO, "1")
    r = t.recask()
    pull(r, image)
    said = refused(t, r.store)
    equal((r.store in said, f"process {r.process.pid}" in said), (True, True), said)
    pull(r, image)


def test_start_on_a_read_only_file_system(t):
    """Clear words in place of a process that cannot keep anything."""
    if not can_mount():
        raise Skip("cannot mount a file system")
    r = t.recask()
    r.stop()
    said = refused(t, r.store, ["unshare", "--mount", "--propagation", "private", "sh", "-c",
                                'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"', r.store])
    equal((r.store in said, "Read-only file system" in said), (True, True), said)


# ---- no file descriptors ---------------------------------------------------------------------------------------------

def limit(r, what, value):
    resource.prlimit(r.process.pid, what, (value, resource.prlimit(r.process.pid, what)[1]))


def right_or_5xx(ask, data):
    """One request in hard times. True: it was answered, and right."""
    try:
        answer = ask()
    except (OSError, EOFError):
        return False
    if answer.status == 200:
        equal(answer.complete and answer.body != data, False, "wrong bytes")
        return answer.complete
    if answer.status == 206:
        return answer.complete
    equal(answer.status // 100, 5, str(answer) + str(answer.body[:300]))
    return False


def test_no_file_descriptors(t):
    """With no descriptor left clients wait or get a 5xx; recask neither falls nor spins, and goes on when there are
    some again."""
    old = images.small_image("old").push(t.up, "a/old", "1")
    fresh = images.small_image("fresh").push(t.up, "a/fresh", "1")
    r = t.recask("--tag-ttl", "0s")
    stays(t, r, old, "a/old")
    busy = r.fds()
    for spare in (0, 1, 2, 3, 5, 8, 12):
        limit(r, resource.RLIMIT_NOFILE, busy + spare)
        clients, done = Clients(), []

        def ask(repo, image):
            def count(got):
                done.append(got)
            timeout = {"timeout": 5}
            count(right_or_5xx(lambda: r.open("GET", f"/v2/{repo}/manifests/1", **timeout).rest(), image.body))
            for layer in image.layers:
                path = t.up.blob_path(repo, layer.digest)
                count(right_or_5xx(lambda path=path: r.open("GET", path, **timeout).rest(), layer.blob))

        for n in range(6):
            clients.run(ask, *(("a/old", old) if n % 2 else ("a/fresh", fresh)))
        clients.join(120)
        equal(r.process.poll(), None)
    limit(r, resource.RLIMIT_NOFILE, busy + 2)
    idle = []
    for _ in range(12):
        try:
            idle.append(r.open("GET", "/v2/a/old/manifests/1", timeout=3))
        except OSError:
            pass
    before = r.cpu_ticks()
    time.sleep(2)
    equal(r.cpu_ticks() - before < 100 * SCALE, True, f"{r.cpu_ticks() - before} ticks of 200")
    equal("Too many open files" in r.log(), True)
    limit(r, resource.RLIMIT_NOFILE, busy + 200)
    for stream in idle:
        right_or_5xx(stream.rest, old.body)
    until(lambda: r.manifest("a/old", "1").status == 200, "a request is answered")
    stays(t, r, old, "a/old")
    stays(t, r, fresh, "a/fresh")


# ---- no memory -------------------------------------------------------------------------------------------------------

def data_bytes(r):
    """Memory that it could write to, as RLIMIT_DATA counts it."""
    with open(f"/proc/{r.process.pid}/status", encoding="ascii") as file:
        return 1024 * int([x for x in file if x.startswith("VmData:")][0].split()[1])


def test_no_memory(t):
    """Without memory requests end in a 5xx or a cut answer; the process lives, and works when there is some again."""
    if under_sanitizer():
        raise Skip("sanitizers take all address space there is")
    old = images.small_image("old").push(t.up, "a/old", "1")
    r = t.recask("--tag-ttl", "0s")
    stays(t, r, old, "a/old")
    wrong = []
    for n, spare in enumerate((0, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20)):
        fresh = images.small_image(f"fresh{n}", size=800_000).push(t.up, f"a/{n}", "1")
        limit(r, resource.RLIMIT_DATA, data_bytes(r) + spare)
        clients = Clients()

        def ask(repo, image):
            for _ in range(2):
                wrong.append(not right_or_5xx(lambda: r.manifest(repo, "1"), image.body))
                for layer in image.layers:
                    path = t.up.blob_path(repo, layer.digest)
                    for how in ({}, {"Range": "bytes=0-9999,200000-"}):
                        wrong.append(not right_or_5xx(lambda path=path: r.get(path), layer.blob))
                        right_or_5xx(lambda path=path, how=how: r.get(path, how), layer.blob)

        for _ in range(6):
            clients.run(ask, "a/old", old)
            clients.run(ask, f"a/{n}", fresh)
        clients.join(120)
        equal(r.process.poll(), None, f"with {spare} bytes to spare")
        limit(r, resource.RLIMIT_DATA, resource.RLIM_INFINITY)
        until(lambda repo=f"a/{n}": r.manifest(repo, "1").status == 200, "the upstream is asked again", 20)
        stays(t, r, fresh, f"a/{n}")
        stays(t, r, old, "a/old")
    equal(any(wrong), True, "no allocation failed")


# ---- the catalog ------------------------------------------------------------------------------------------------------

def catalog(r):
    return os.path.join(r.store, "catalog.db")


def test_somebody_holds_the_catalog(t):
    """Another program has SQLite's write lock for a while. What is stored is served meanwhile, what has to be
    written waits, and no client and no job fails."""
    old = images.small_image("old").push(t.up, "a/old", "1")
    r = t.recask()
    stays(t, r, old, "a/old")
    for how in ("IMMEDIATE", "EXCLUSIVE"):
        fresh = images.small_image(how).push(t.up, f"a/{how.lower()}", "1")
        other = sqlite3.connect(catalog(r), isolation_level=None)
        other.execute(f"BEGIN {how}")
        clients = Clients()
        for _ in range(3):
            clients.run(pull, r, fresh, f"a/{how.lower()}")
        for _ in range(5):
            pull(r, old, "a/old")
            time.sleep(0.3)
        other.execute("ROLLBACK")
        other.close()
        clients.join()
        r.wait_jobs()
        stays(t, r, fresh, f"a/{how.lower()}")


def test_spoiled_catalog(t):
    """Pages of the catalog turn to garbage under the running process: no wrong byte, failures are 5xx and say what
    to do, /readyz says no; with the file back and a new start all is as it was."""
    all_images = [images.small_image(n).push(t.up, f"a/{n}", "1") for n in range(4)]
    r = t.recask("--tag-ttl", "0s")
    for n, image in enumerate(all_images[:3]):
        stays(t, r, image, f"a/{n}")
    r.restart()  # nothing is cached
    with open(catalog(r), "rb") as file:
        good = file.read()
    with open(catalog(r), "r+b") as file:
        file.seek(4096)
        file.write(images.noise("garbage", len(good) - 4096))
    clients = Clients()

    def ask(n, image):
        for _ in range(3):
            right_or_5xx(lambda: r.manifest(f"a/{n}", "1"), image.body)
            for layer in image.layers:
                right_or_5xx(lambda digest=layer.digest: r.blob(f"a/{n}", digest), layer.blob)

    for n, image in enumerate(all_images):
        clients.run(ask, n, image)
    clients.join()
    ready = request(r.admin, "GET", "/readyz")
    equal((ready.status, b"not ready" in ready.body), (503, True), str(ready.body))
    equal("catalog.db" in r.log() and "recask fsck" in r.log(), True, "the log says what to do")
    equal(len(r.log().splitlines()) < 500, True)
    r.kill9()
    said = refused(t, r.store)
    equal(("catalog.db" in said, "recask fsck" in said), (True, True), said)
    with open(catalog(r), "wb") as file:
        file.write(good)
    for suffix in ("-wal", "-shm"):
        if os.path.exists(catalog(r) + suffix):
            os.unlink(catalog(r) + suffix)
    t.allow = "ev=admin.notready|ev=store.damaged"
    r.start()
    for n, image in enumerate(all_images):
        stays(t, r, image, f"a/{n}")


# ---- the clock -------------------------------------------------------------------------------------------------------

YEAR = 365 * 24 * 3600


def library(name):
    """One that is preloaded; built with the tests."""
    folder = os.environ.get("RECASK_FAULT_LIBS") or os.path.join(os.path.dirname(BINARY), "fault")
    path = os.path.abspath(os.path.join(folder, name))
    if under_sanitizer() or not os.path.exists(path):
        raise Skip(f"{name} cannot be preloaded")
    return path


class Clock:
    """The wall clock of a process to come, which is set while it runs."""

    def __init__(self, t):
        self.path = os.path.join(t.directory, "clock")
        self.set(0)
        self.env = {"LD_PRELOAD": library("libclock.so"), "RECASK_CLOCK": self.path}

    def set(self, ahead_s):
        with open(self.path, "r+b" if os.path.exists(self.path) else "wb") as file:
            file.write(struct.pack("<q", ahead_s))


def test_clock_jumps(t):
    """The wall clock goes a year ahead and comes back: a tag is asked for once more each time and then is fresh again, what is
    stored stays, no duration is negative."""
    clock = Clock(t)
    images_by_repo = {f"a/{n}": images.small_image(n).push(t.up, f"a/{n}", "1") for n in range(2)}
    r = t.recask("--tag-ttl", "1h", env=clock.env)
    for repo, image in images_by_repo.items():
        stays(t, r, image, repo)
    for ahead in (YEAR, 0, -YEAR, 0):
        clock.set(ahead)
        for repo, image in images_by_repo.items():
            t.up.forget()
            began = time.monotonic()
            for _ in range(3):
                pull(r, image, repo)
            equal(len([q for q in t.up.requests if q.path == t.up.manifest_path(repo, "1")]) <= 1, True, str(t.up.requests))
            equal(blob_gets(t, image), [])
            equal(time.monotonic() - began < 10, True)
        new = images.small_image(f"new{ahead}{len(images_by_repo)}").push(t.up, f"new/{len(images_by_repo)}", "1")
        pull(r, new, f"new/{len(images_by_repo)}")
        r.wait_jobs()
        images_by_repo[f"new/{len(images_by_repo)}"] = new
    equal(re.findall(r" (?:ms|first_ms|uptime_s)=-\d+", r.log()), [])
    equal(f"ts={time.gmtime().tm_year + 1}-" in r.log(), True, "the log had next year's date")


def test_eviction_after_the_clock_was_wrong(t):
    """What was read while the clock was a year ahead is not kept for a year longer than what is read now."""
    clock = Clock(t)
    quota = 24 << 20
    all_images = [images.Image([images.tar_of([("f", images.noise(n, quota // 8))])], how="none").push(t.up, f"a/{n}", "1")
                  for n in range(9)]
    r = t.recask("--quota", str(quota), env=clock.env)
    clock.set(YEAR)
    stays(t, r, all_images[0], "a/0")
    r.restart()
    clock.set(0)
    for n, image in enumerate(all_images[1:], 1):
        pull(r, image, f"a/{n}")
        pull(r, all_images[1], "a/1")
        r.wait_jobs()
    equal(r.stats()["store"]["evictions"] > 2, True)
    t.up.forget()
    pull(r, all_images[1], "a/1")
    equal(blob_gets(t, all_images[1]), [], "what is read all the time")
    pull(r, all_images[0], "a/0")
    equal(len(blob_gets(t, all_images[0])) >= 1, True, "what nobody has read since")


# ---- a failing disk ----------------------------------------------------------------------------------------------------

ALLOC, READ, WRITE, SYNC, OPEN, NAME = 1, 2, 4, 8, 16, 32  # tests/fault/torture.h


class Faults:
    """System calls and allocations of a process to come that fail while it runs."""

    def __init__(self, t, below=""):
        """below: a folder of the store; of system calls, those on files there count."""
        self.path = os.path.join(t.directory, "faults")
        with open(self.path, "wb") as file:
            file.write(bytes(56))
        with open(self.path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 56)
        self.env = {"LD_PRELOAD": library("libtorture.so"), "RECASK_TORTURE_STATE": self.path,
                    "RECASK_TORTURE_DIR": os.path.realpath(os.path.join(t.directory, str(len(t.processes)), "store", below))}

    def arm(self, kinds, error, at=1, onwards=True):
        self.map[:48] = struct.pack("<6Q", 0, at, int(onwards), error, 0, 0)
        self.map[:8] = struct.pack("<Q", kinds)

    def end(self):
        """Returns how many calls there were, and how many failed."""
        self.map[:8] = bytes(8)
        return struct.unpack("<2Q", self.map[32:48])


def test_disk_that_takes_nothing(t):
    """Writes fail with EIO, with ENOSPC, or as on a file system that has become read-only; or fsync does. What is stored is
    served, what is new passes through, and when that is over it is stored: by the same process."""
    old = images.small_image("old").push(t.up, "a/old", "1")
    faults = Faults(t)
    r = t.recask("--tag-ttl", "0s", env=faults.env)
    stays(t, r, old, "a/old")
    for n, (kinds, error) in enumerate(((WRITE, errno.EIO), (WRITE | NAME, errno.EROFS), (WRITE, errno.ENOSPC),
                                        (SYNC, errno.EIO), (OPEN, errno.EMFILE))):
        what = f"{kinds} {errno.errorcode[error]}"
        image = images.small_image(what).push(t.up, f"a/{n}", "1")
        faults.arm(kinds, error)
        before = len(r.log().splitlines())
        clients = Clients()
        if kinds == OPEN:  # files cannot be read, either
            for _ in range(3):
                right_or_5xx(lambda repo=f"a/{n}": r.manifest(repo, "1"), image.body)
                for repo, layer in [(f"a/{n}", x) for x in image.layers] + [("a/old", x) for x in old.layers]:
                    right_or_5xx(lambda repo=repo, digest=layer.digest: r.blob(repo, digest), layer.blob)
        else:
            for _ in range(3):
                t.up.forget()
                pull(r, old, "a/old")
                equal(blob_gets(t, old), [], what)
                clients.run(pull, r, image, f"a/{n}")
                clients.run(pull, r, image, f"a/{n}")
        clients.join()
        seen, failed = faults.end()
        equal(failed > 3, True, f"{what}: {failed} of {seen}")
        r.wait_jobs()
        spool_empties(r)
        lines = [x for x in r.log().splitlines()[before:] if "ev=http " not in x]
        equal(len(lines) < 150, True, f"{what}: {len(lines)} lines")
        stays(t, r, image, f"a/{n}")
        stays(t, r, old, "a/old")
    r.restart()
    for n in range(5):
        equal(r.manifest(f"a/{n}", "1").status, 200)
    stays(t, r, old, "a/old")


def test_disk_that_cannot_be_read(t):
    """EIO where the stored bytes lie: they come from the upstream, or else from what is left of them; where the catalog lies:
    a 5xx. Never a wrong byte; and it passes."""
    image = images.small_image("one").push(t.up, REPO, "1")
    for below in ("packs", "originals", ""):
        faults = Faults(t, below)
        r = t.recask("--tag-ttl", "0s", env=faults.env)
        stays(t, r, image)
        if not below:
            r.restart()  # else much of the catalog is in memory
        faults.arm(READ, errno.EIO)
        for _ in range(2):
            for layer in image.layers:
                for digest, data in ((layer.digest, layer.blob), (layer.diff_id, layer.tar)):
                    if below:
                        whole(r.blob(REPO, digest), data, below)
                    else:
                        right_or_5xx(lambda digest=digest: r.blob(REPO, digest), data)
        right_or_5xx(lambda: r.manifest(REPO, "1"), image.body)
        seen, failed = faults.end()
        equal(failed > 0, True, f"{below}: {failed} of {seen}")
        stays(t, r, image)
        equal(request(r.admin, "GET", "/readyz").status, 200)
        r.stop(allow=".")
    t.allow = "."


def test_spool_that_cannot_be_read(t):
    """EIO of what was just written, while clients follow it: they get it all the same, whole or in parts."""
    faults = Faults(t, "spool")
    r = t.recask(env=faults.env)
    plain = b"".join(b"line %d of what compresses well\n" % n for n in range(50_000))
    for at in (1, 3):
        for n, data in enumerate((images.noise(f"{at}", 1_000_000), plain + b"%d" % at)):
            digest = t.up.add_blob(REPO, data)
            if n == 1:
                t.up.knob(t.up.blob_path(REPO, digest), body=images.gzip(data), headers={"Content-Encoding": "gzip"})
            faults.arm(READ, errno.EIO, at, onwards=n == 0)
            clients = Clients()
            for _ in range(3):
                clients.run(lambda digest=digest, data=data: whole(r.blob(REPO, digest), data))
            clients.join()
            _, failed = faults.end()
            equal(failed > 0, True)
            t.up.clear_knobs()
    r.wait_jobs()
    spool_empties(r)


def test_allocations_fail(t):
    """Any one allocation of recask's whole life may fail: it refuses to start, in words, or answers right or with a 5xx; and it
    works from then on."""
    pick = random.Random(os.environ.get("RECASK_TORTURE") or time.time())
    image = images.small_image("one", size=60_000).push(t.up, REPO, "1")
    faults = Faults(t)
    r = t.recask("--tag-ttl", "0s", env=faults.env)

    def ask():
        right_or_5xx(lambda: r.manifest(REPO, "1"), image.body)
        for layer in image.layers:
            right_or_5xx(lambda digest=layer.digest: r.blob(REPO, digest), layer.blob)
            right_or_5xx(lambda digest=layer.diff_id: r.blob(REPO, digest), layer.tar)

    def life(at):
        """False: it did not start."""
        faults.arm(ALLOC, errno.ENOMEM, at, onwards=False)
        try:
            r.start()
        except AssertionError as error:
            said = r.log().splitlines()[-1]  # libcurl's parser, for one, says that what it cannot hold is no URL
            equal((r.process.returncode in (1, 2), said.startswith("recask: ")), (True, True), f"allocation {at}: {error}")
            return False
        ask()
        return True

    for layer in image.layers:
        r.blob(REPO, layer.digest)
    r.stop()
    equal(life(0), True)
    count, _ = faults.end()
    equal(count > 1000, True, str(count))
    r.stop()
    started = 0
    for n in range(400 if os.environ.get("RECASK_TORTURE") == "all" else 24):
        at = pick.randrange(1, count) if n % 2 else pick.randrange(1, max(2, count // 8))
        if life(at):
            started += 1
            faults.end()
            pull(r, image)
            r.stop(allow=".")
        else:
            faults.end()
    equal(started > 0, True)
    r.start()
    for _ in range(5):
        faults.arm(ALLOC, errno.ENOMEM, pick.randrange(1, 300), onwards=False)
        ask()
        faults.end()
        until(lambda: r.manifest(REPO, "1").status == 200, "a request is answered")
        pull(r, image)
    t.allow = "."


if __name__ == "__main__":
    main()
