#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Garbage: `recask gc` gives room back while clients pull, and recask does it by itself after evictions.

Cases 81, 82.
"""
import json
import os
import random
import re
import threading
import time

import images
from mock import sha256
from recask import request
from runner import Clients, equal, main, until
from scrub_test import clean, command

REPO = "team/app"


def disk(r):
    return sum(os.lstat(path).st_blocks * 512 for path in r.files("packs"))


def pulled(t, r, numbers, size=600_000):
    """Images of one layer each, which share nothing."""
    out = []
    for n in numbers:
        image = images.Image([images.tar_of([(str(i), images.noise(100 * n + i, size // 20)) for i in range(20)])])
        image.push(t.up, REPO, str(n))
        r.pull(REPO, image, str(n))
        out.append(image)
    r.wait_jobs()
    return out


def drop(r, image):
    for layer in image.layers:
        for digest in (layer.digest, layer.diff_id):
            try:
                r.evict(digest)
            except AssertionError as error:
                if "404" not in str(error):
                    raise


def whole(r, image, tag):
    equal(r.manifest(REPO, tag).body, image.body)
    for layer in image.layers:
        equal(sha256(r.blob(REPO, layer.digest).body), layer.digest)
        equal(r.blob(REPO, layer.diff_id).body == layer.tar, True)


def gc(r):
    status, out, err = command(r, "gc", "--json")
    answer = json.loads(out)
    equal((status, answer["last"]["gc"]["state"], answer["running"]), (0, "done", None), err)
    return answer["last"]["gc"]["gc"]


def test_nothing_to_do(t):
    """An empty store, and one in which all is of use: nothing is moved, and the table says so."""
    r = t.recask()
    equal(gc(r)["moved_bytes"], 0)
    image, = pulled(t, r, [1])
    gc(r)
    status, out, _ = command(r, "gc")
    equal((status, "evicted    0 things" in out, "compacted  " in out), (0, True, True), out)
    whole(r, image, "1")
    last = r.stats()["maintenance"]
    equal((last["running"], last["gc"]["last_end"] is not None), ("", True))


def test_gives_back(t):
    """81, 82: most of a pack goes; what is left stays right while clients read it, and the scrub finds nothing."""
    r = t.recask("--quota", "200MiB", "--maintenance-rate", "0")
    all_images = pulled(t, r, range(24))
    kept = all_images[::8]
    before = disk(r)
    over = threading.Event()

    def client(seed):
        pick = random.Random(seed)
        while not over.is_set():
            image = pick.choice(kept)
            equal(sha256(r.blob(REPO, image.layers[0].diff_id).body), image.layers[0].diff_id)

    clients = Clients()
    for seed in range(3):
        clients.run(client, seed)
    try:
        for n, image in enumerate(all_images):
            if n % 8:
                drop(r, image)
        for _ in range(3):
            gc(r)
    finally:
        over.set()
    clients.join()
    clean(r)
    equal(disk(r) < before * 2 // 3, True, f"{disk(r)} of {before} bytes")
    for image in kept:
        whole(r, image, str(all_images.index(image)))
    r.restart()
    clean(r)
    for n, image in enumerate(all_images):  # what went is fetched again
        whole(r, image, str(n))


def test_by_itself(t):
    """82: when most of what packs hold has gone, recask collects it without being told."""
    r = t.recask("--quota", "80MiB", "--maintenance-rate", "0")  # packs of 5 MiB
    all_images = pulled(t, r, range(16), 1_200_000)
    before = disk(r)
    for n, image in enumerate(all_images):
        if n % 4:
            drop(r, image)
    more = iter(range(1000, 2000))

    def collected():
        pulled(t, r, [next(more)], 20_000)  # it looks when something was stored
        time.sleep(0.2)
        return re.search(r"ev=gc.end .*packs=[1-9]", r.log()) is not None

    until(collected, "a collection", 60)
    equal(request(r.admin, "GET", "/api/v1/maintenance").json()["last"]["gc"]["by_itself"], True)
    equal(disk(r) < before, True)
    clean(r)
    for n in range(0, 16, 4):
        whole(r, all_images[n], str(n))


if __name__ == "__main__":
    main()
