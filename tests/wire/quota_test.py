#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A store on a disk that is too small: bytes on disk stay within the quota, and every pull is right all the same.

Cases 15, 81, 82.
"""
import os
import random
import threading
import time

import images
from mock import sha256
from recask import can_mount, under_sanitizer
from runner import Clients, Skip, equal, main

SCALE = 8 if under_sanitizer() else 1
AGENTS = ["test", "docker/28.5.2", "docker/20.10.24"]


def push_images(t, count, size):
    """Images of two layers: one of its own, one that three have in common. Compressed in all ways."""
    out = []
    for n in range(count):
        how = ("gzip", "zstd", "none")[n % 3]
        tars = [images.tar_of([("own", images.noise(n, size)), ("text", images.text(n, size // 4))]),
                images.tar_of([("shared", images.noise(1000 + n // 3, size // 2))])]
        out.append(images.Image(tars, how=how).push(t.up, f"q/{n}", "1"))
    return out


def pull(r, repo, agent):
    """As clients do: whatever the manifest names, and all of it right."""
    answer = r.manifest(repo, "1", agent)
    equal((answer.status, sha256(answer.body)), (200, answer.h("Docker-Content-Digest")))
    value = answer.json()
    taken = 0
    for part in [value["config"], *value["layers"]]:
        blob = r.blob(repo, part["digest"])
        equal((blob.status, blob.complete, len(blob.body), sha256(blob.body)),
              (200, True, part["size"], part["digest"]), f"{repo} for {agent}")
        taken += len(blob.body)
    return taken


class Sampler:
    """Bytes on disk of a directory, all the time; each file once, also when it is renamed meanwhile."""

    def __init__(self, path):
        self.path = path
        self.most = 0
        self.samples = 0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while not self.stop.is_set():
            self.most = max(self.most, self.once())
            self.samples += 1
            time.sleep(0.005)

    def once(self):
        blocks = {}
        for folder, _, names in os.walk(self.path):
            for path in [folder, *[os.path.join(folder, name) for name in names]]:
                try:
                    found = os.lstat(path)
                except OSError:
                    continue
                blocks[found.st_ino] = found.st_blocks * 512
        return sum(blocks.values())

    def end(self):
        self.stop.set()
        self.thread.join()
        return self.most


def zipf(pick, count):
    return min(int(pick.paretovariate(0.7)) - 1, 10 * count) % count


def test_three_times_the_quota(t):
    """81: 8 clients in a loop over images that take three times the room there is. The disk never holds more than the
    quota and one blob; every byte that is handed out is right; what nobody reads goes, what many read stays."""
    quota = (48 << 20) // (2 if SCALE > 1 else 1)
    all_images = push_images(t, 84, quota // 40)
    whole = sum(len(x.blob) for image in all_images for x in image.layers)
    equal(whole > 3 * quota, True, f"{whole} bytes of images")
    largest = max(len(x.blob) for image in all_images for x in image.layers)
    r = t.recask("--quota", str(quota))
    sampler = Sampler(r.store)

    def client(number):
        pick = random.Random(number)
        for _ in range(max(3, 24 // SCALE)):
            pull(r, f"q/{zipf(pick, len(all_images))}", pick.choice(AGENTS))

    clients = Clients()
    for number in range(8):
        clients.run(client, number)
    clients.join()
    r.wait_jobs(timeout=240)
    most = sampler.end()
    stats = r.stats()
    equal(sampler.samples > 20, True)
    equal(most <= quota + largest, True, f"{most} bytes on disk, the quota is {quota}, the largest blob {largest}")
    equal(most > quota // 2, True, f"{most} bytes on disk at most: the quota of {quota} is not used")
    equal((stats["store"]["quota_bytes"], stats["store"]["reserved_bytes"], r.files("spool")), (quota, 0, {}))
    if SCALE == 1:
        equal(stats["store"]["evictions"] > 10, True, str(stats["store"]))
    equal(stats["requests"]["hit"] > stats["requests"]["total"] // 4, True, str(stats["requests"]))
    r.restart()
    for n in range(len(all_images)):
        pull(r, f"q/{n}", "test")
    equal(r.stats()["store"]["evictions"] > 10, True, str(r.stats()["store"]))
    for layer in all_images[0].layers:  # what was published once stays answerable, whatever was evicted
        answer = r.blob("q/0", layer.diff_id)
        equal((answer.status, answer.body == layer.tar), (200, True))


def test_what_is_asked_for_often_stays(t):
    """82: an image that is pulled between any two others is never fetched again; what was evicted is."""
    quota = 24 << 20
    all_images = push_images(t, 15, quota // 12)
    often = images.small_image(77, layers=1, size=1_500_000).push(t.up, "q/often", "1")
    r = t.recask("--quota", str(quota))
    for n in range(len(all_images)):
        pull(r, f"q/{n}", "test")
        pull(r, "q/often", "test")
        r.wait_jobs()
    equal(r.stats()["store"]["evictions"] > 5, True)
    layer = often.layers[0]
    t.up.forget()
    equal(r.blob("q/often", layer.diff_id).body == layer.tar, True)
    equal(r.manifest("q/often", often.digest).body, often.body)
    equal([q for q in t.up.requests if layer.digest in str(q)], [])
    pull(r, "q/0", "test")
    equal(len(t.up.seen("GET", f"/v2/q/0/blobs/{all_images[0].layers[0].digest}")), 1)


def test_larger_than_the_quota(t):
    """A blob that can never fit passes through, and nothing else goes for it."""
    small = images.small_image(5, layers=1, size=300_000).push(t.up, "q/small", "1")
    huge = images.noise(6, 12_000_000)
    digest = t.up.add_blob("q/huge", huge)
    r = t.recask("--quota", "8MiB")
    pull(r, "q/small", "test")
    r.wait_jobs()
    for _ in range(2):
        answer = r.blob("q/huge", digest)
        equal((answer.status, answer.body == huge), (200, True))
    r.wait_jobs()
    equal(r.stats()["store"]["evictions"], 0)
    t.up.forget()
    pull(r, "q/small", "test")
    equal([q for q in t.up.requests if small.layers[0].digest in str(q)], [])
    equal(sum(r.files("originals").values()) < 8 << 20, True)


def test_tmpfs(t):
    """15: a file system of 64 MB is the store; a gigabyte of pulls succeeds, and none of them needs the disk's last byte."""
    if not can_mount():
        raise Skip("a small file system needs root and mount namespaces")
    all_images = push_images(t, 24 // (2 if SCALE > 1 else 1), 8_000_000)
    r = t.recask(disk_bytes=64_000_000)
    taken = [0] * 4
    goal = (1 << 30) // SCALE

    def client(number):
        pick = random.Random(number)
        while sum(taken) < goal:
            taken[number] += pull(r, f"q/{pick.randrange(len(all_images))}", "test")

    clients = Clients()
    for number in range(len(taken)):
        clients.run(client, number)
    clients.join()
    r.wait_jobs(timeout=240)
    equal(r.free_bytes() > 2_000_000, True)
    equal(r.stats()["store"]["evictions"] > 10, True)


if __name__ == "__main__":
    main()
