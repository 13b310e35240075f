#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Garbage: `recask gc` gives room back while clients pull, and recask does it by itself after evictions.

Cases 81, 82.
"""
import json
import os
import re
import threading

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


def riddled(t, r):
    """A store with a full pack of which every second frame, each smaller than a block, is dead after drop(): holes cannot be
    punched there. Returns the image that is to go and the one that stays."""
    files = [(str(n), images.noise(n, 3_500) + bytes(62_500)) for n in range(1_400)]
    goes = images.Image([images.tar_of(files)]).push(t.up, REPO, "goes")
    stays = images.Image([images.tar_of(files[::2])]).push(t.up, REPO, "stays")
    for tag, image in (("goes", goes), ("stays", stays)):
        r.pull(REPO, image, tag)
        r.wait_jobs(timeout=240)
    return goes, stays


def test_compacts(t):
    """81, 82: half of a pack goes; what is left stays right while clients read it, and the scrub finds nothing."""
    r = t.recask("--quota", "64MiB", "--maintenance-rate", "0")
    goes, stays = riddled(t, r)
    before = disk(r)
    over = threading.Event()

    def client():
        while not over.is_set():
            equal(r.blob(REPO, stays.layers[0].diff_id).body == stays.layers[0].tar, True)

    clients = Clients()
    for _ in range(2):
        clients.run(client)
    try:
        drop(r, goes)
        moved = [gc(r) for _ in range(3)]
    finally:
        over.set()
    clients.join()
    equal(sum(p["packs_done"] for p in moved) > 0, True, str(moved))
    equal(sum(p["moved_bytes"] for p in moved) > 1_000_000, True, str(moved))
    clean(r)
    equal(disk(r) < before * 3 // 4, True, f"{disk(r)} of {before} bytes")
    r.restart()
    clean(r)
    whole(r, stays, "stays")
    whole(r, goes, "goes")  # fetched again


def test_by_itself(t):
    """82: the same without being told, soon after something was stored."""
    r = t.recask("--quota", "64MiB", "--maintenance-rate", "0")
    goes, stays = riddled(t, r)
    drop(r, goes)
    more = iter(range(1000, 2000))

    def collected():
        pulled(t, r, [next(more)], 20_000)
        return re.search(r"ev=gc.end .*packs=[1-9]", r.log()) is not None

    until(collected, "a collection", 90)
    last = request(r.admin, "GET", "/api/v1/maintenance").json()["last"]["gc"]
    equal((last["by_itself"], last["gc"]["freed_bytes"] > 0), (True, True))
    clean(r)
    whole(r, stays, "stays")


if __name__ == "__main__":
    main()
