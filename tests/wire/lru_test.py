#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Eviction against an ideal LRU: pulls of images some of which are much more popular than others, in a store that holds a
third of them. How many layers come without the upstream is to be about what a simulation says that forgets whole images by
their last pull, with the sizes that the store really needs, and with the room that layers had in it. That is less than the
quota: the rest is the catalog, what lies between the two water marks, and, for as long as a pull takes, originals beside
their layers. With 8 clients the latter is a third of so small a store; on the other hand, who asks for what is being fetched
is no miss, so recask may do better than the simulation, but never better than one that has all of the quota.

Case 82. RECASK_LRU_SCALE=8 makes all sizes so many times larger, by hand: then the two come together.
"""
import bisect
import collections
import itertools
import json
import os
import random
import threading

import images
from recask import under_sanitizer
from runner import Clients, Skip, equal, main

IMAGES = 60
PULLS = 100 if under_sanitizer() else 400
ALPHA = 0.9
AGENT = "docker/28.5.2"
WITHIN = 5  # points
SCALE = float(os.environ.get("RECASK_LRU_SCALE", "1"))


def push_all(t):
    pick = random.Random(1)
    for n in range(IMAGES):
        sizes = [int(SCALE * 100_000 * 10 ** pick.uniform(0, 1.2)) for _ in range(2)]
        tars = [images.tar_of([(f"{n}.{i}", images.noise(f"{n}.{i}", size))]) for i, size in enumerate(sizes)]
        images.Image(tars).push(t.up, f"z/{n}", "1")


def trace(seed):
    """Image numbers: the k-th is asked for in proportion to 1 / k ** ALPHA, and which one that is is drawn too."""
    pick = random.Random(seed)
    order = pick.sample(range(IMAGES), IMAGES)
    sums = list(itertools.accumulate(1 / (k + 1) ** ALPHA for k in range(IMAGES)))
    return [order[bisect.bisect(sums, pick.random() * sums[-1])] for _ in range(PULLS)]


class Puller:
    """Clients that share one trace."""

    def __init__(self, t, r, pulls):
        self.t = t
        self.r = r
        self.left = iter(pulls)
        self.lock = threading.Lock()
        self.done = []  # image numbers, in the order in which their pulls began

    def pull(self, n):
        answer = self.r.manifest(f"z/{n}", "1", AGENT)
        equal(answer.status, 200)
        value = answer.json()
        for part in [value["config"], *value["layers"]]:
            blob = self.r.blob(f"z/{n}", part["digest"])
            equal((blob.status, blob.complete, len(blob.body)), (200, True, part["size"]))

    def run(self, settle):
        while True:
            with self.lock:
                n = next(self.left, None)
                if n is None:
                    return
                self.done.append(n)
            self.pull(n)
            if settle:
                self.r.wait_jobs()

    def fetched(self):
        """(repository, digest) -> how often the upstream was asked for the blob."""
        out = collections.Counter()
        for q in self.t.up.requests:
            if q.method == "GET" and "/blobs/" in q.path:
                out[q.path.split("/v2/")[1].split("/blobs/")[0], q.path.rsplit("/", 1)[1]] += 1
        return out


def sizes_of(t, n):
    value = json.loads(t.up.manifests[f"z/{n}", "1"][0])
    return {layer["digest"]: layer["size"] for layer in value["layers"]}


def measure(t, done, fetched):
    """Hit ratios in per cent: of requests for layers, of their bytes."""
    wanted = wanted_bytes = missed = missed_bytes = 0
    for n in done:
        sizes = sizes_of(t, n)
        wanted += len(sizes)
        wanted_bytes += sum(sizes.values())
    for n in range(IMAGES):
        for digest, size in sizes_of(t, n).items():
            missed += fetched[f"z/{n}", digest]
            missed_bytes += fetched[f"z/{n}", digest] * size
    return 100 * (1 - missed / wanted), 100 * (1 - missed_bytes / wanted_bytes)


def simulate(t, done, capacity):
    sizes = {n: sum(sizes_of(t, n).values()) for n in range(IMAGES)}
    cache = collections.OrderedDict()
    used = hits = hit_bytes = 0
    for n in done:
        if n in cache:
            cache.move_to_end(n)
            hits += 1
            hit_bytes += sizes[n]
            continue
        cache[n] = True
        used += sizes[n]
        while used > capacity:
            gone, _ = cache.popitem(last=False)
            used -= sizes[gone]
    return 100 * hits / len(done), 100 * hit_bytes / sum(sizes[n] for n in done)


class Room:
    """What the layers have of the store, looked at again and again: the mean since it was full for the first time."""

    def __init__(self, r, quota):
        self.r = r
        self.quota = quota
        self.samples = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while not self.stop.wait(0.02):
            stats = self.r.stats()["store"]
            if self.samples or stats["evictions"]:
                self.samples.append(stats["frame_bytes"])

    def end(self):
        self.stop.set()
        self.thread.join()
        return sum(self.samples) / len(self.samples)


def compare(t, clients_count):
    push_all(t)
    whole = sum(sum(sizes_of(t, n).values()) for n in range(IMAGES))
    quota = whole // 3
    r = t.recask("--quota", str(quota))
    room = Room(r, quota)
    puller = Puller(t, r, trace(7))
    clients = Clients()
    for _ in range(clients_count):
        clients.run(puller.run, clients_count == 1)
    clients.join()
    had = room.end()
    r.wait_jobs(timeout=240)
    got = measure(t, puller.done, puller.fetched())
    ideal = simulate(t, puller.done, had)
    full = simulate(t, puller.done, quota)
    print(f"{clients_count} clients, {PULLS} pulls, {whole >> 20} MiB of images, quota {quota >> 20} MiB, layers have"
          f" {100 * had / quota:.0f} % of it:"
          f" hits {got[0]:.1f} % of requests, {got[1]:.1f} % of bytes; an ideal LRU of that size {ideal[0]:.1f} %,"
          f" {ideal[1]:.1f} %, of the quota's {full[0]:.1f} %, {full[1]:.1f} %")
    for i in range(2):
        equal(ideal[i] - WITHIN <= got[i] <= full[i] + WITHIN, True, f"{got} is not between {ideal} and {full}")
    if clients_count == 1:
        equal(abs(got[0] - ideal[0]) <= WITHIN and abs(got[1] - ideal[1]) <= WITHIN, True, f"{got} beside {ideal}")


def test_one_client(t):
    """82: one pull after the other."""
    compare(t, 1)


def test_eight_clients(t):
    """82: the same pulls, eight at a time."""
    if under_sanitizer():
        raise Skip("what eight clients find depends on how far the background has got, and here it is far behind")
    compare(t, 8)


if __name__ == "__main__":
    main()
