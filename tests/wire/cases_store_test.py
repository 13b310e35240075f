#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rows of the case list about what the store holds, loses and gives back, where no other file has them (CASES.md)."""
import os
import random
import threading
import time

import images
from mock import sha256
from recask import can_mount, under_sanitizer
from runner import Clients, Skip, equal, main, until

REPO = "team/app"


def whole(answer, data):
    equal((answer.status, answer.complete, len(answer.body)), (200, True, len(data)))
    equal(sha256(answer.body), sha256(data))


def raw_blob(t, seed, size, repo=REPO):
    """A blob that nothing can be made smaller of."""
    data = images.noise(seed, size)
    digest = t.up.add_blob(repo, data)
    return data, digest, t.up.blob_path(repo, digest)


def evict(r, digest):
    """Once its last reader is gone, which may be a moment after that one's answer."""
    def gone():
        try:
            r.evict(digest)
            return True
        except AssertionError as error:
            if "busy" not in str(error):
                raise
            return False

    until(gone, f"{digest} evicted")


def spool_empties(r):
    until(lambda: not r.files("spool"), "an empty spool")


# ---- shared and evicted ----------------------------------------------------------------------------------------------

def test_eviction_of_one_image_leaves_the_other(t):
    """Case 1: all that only the first image has goes; the second is served whole without an upstream."""
    tars = [images.tar_of([(n, images.text(n, 300_000)), (n + "2", images.noise(n, 50_000))]) for n in "abc"]
    one, two = images.Image(tars[:2]).push(t.up, REPO, "one"), images.Image(tars[1:]).push(t.up, REPO, "two")
    r = t.recask()
    r.pull(REPO, one, "one")
    r.pull(REPO, two, "two")
    r.wait_jobs()
    for digest in (one.layers[0].digest, one.layers[0].diff_id, one.config_digest):
        evict(r, digest)
    t.up.stop()
    equal(r.pull(REPO, two, "two").body, two.body)
    equal(r.pull(REPO, two).body, two.body)
    whole(r.blob(REPO, two.config_digest), two.config)
    for layer in two.layers:
        whole(r.blob(REPO, layer.digest), layer.blob)
        whole(r.blob(REPO, layer.diff_id), layer.tar)
    t.up.start()
    r.wait_jobs()
    t.up.forget()
    until(lambda: r.blob(REPO, one.layers[0].digest).status == 200, "the upstream is asked again")
    equal(r.pull(REPO, one, "one").body, one.body)


def test_evicted_blobs_come_again(t):
    """Case 82: what was evicted is not said to be there; it is fetched, once, whoever asks and however."""
    data, digest, path = raw_blob(t, "raw", 400_000)
    r = t.recask()
    whole(r.get(path), data)
    r.wait_jobs()
    for want in (2, 3):
        evict(r, digest)
        head = r.head(path)
        equal((head.status, head.h("Content-Length"), t.up.count("GET", path)), (200, str(len(data)), want - 1))
        whole(r.get(path), data)
        r.wait_jobs()
        whole(r.get(path), data)
        equal(t.up.count("GET", path), want)
    evict(r, digest)
    part = r.get(path, {"Range": "bytes=1000-1999"})
    equal((part.status, part.body == data[1000:2000]), (206, True))
    r.wait_jobs()
    whole(r.get(path), data)


def test_pulls_while_blobs_are_evicted(t):
    """Case 14: manifest first, then blobs in any order, with everything evicted every 100 ms: no client error."""
    image = images.small_image(layers=3, size=100_000).push(t.up, REPO, "1")
    r = t.recask("--tag-ttl", "0s")
    stop = threading.Event()
    evicted = [0]

    def evict_all():
        while not stop.wait(0.1):
            for layer in image.layers:
                for digest in (layer.digest, layer.diff_id):
                    try:
                        r.evict(digest)
                        evicted[0] += 1
                    except AssertionError:
                        pass  # not there, or being read

    def pull(seed):
        pick = random.Random(seed)
        while not stop.is_set():
            equal(r.manifest(REPO, "1").body, image.body)
            wanted = [(image.config_digest, image.config)] + [(x.digest, x.blob) for x in image.layers]
            pick.shuffle(wanted)
            for digest, data in wanted:
                answer = r.blob(REPO, digest)
                equal((answer.status, answer.complete, answer.body == data), (200, True, True), digest)

    clients = Clients()
    clients.run(evict_all)
    for seed in range(4):
        clients.run(pull, seed)
    time.sleep(6 if under_sanitizer() else 3)
    stop.set()
    clients.join()
    equal(evicted[0] > 5, True, f"{evicted[0]} evictions")


# ---- files that go or never were -------------------------------------------------------------------------------------

def layer_in_files(t, seed):
    """recask with a layer whose compressed and plain form are both in its store, and the files that hold them."""
    image = images.small_image(seed, layers=1, size=400_000).push(t.up, REPO, "1")
    r = t.recask()
    r.pull(REPO, image, "1")
    r.wait_jobs()
    return r, image.layers[0], [*r.files("originals"), *r.files("packs")]


def test_files_vanish_under_a_running_process(t):
    """Cases 2, 4: a file that goes or shrinks while recask runs: what is served is right or cut, and it heals."""
    for damage in ("gone", "empty", "half"):
        r, layer, files = layer_in_files(t, damage)
        equal(len(files) > 0, True)
        for file in files:
            if damage == "gone":
                os.remove(file)
            else:
                os.truncate(file, 0 if damage == "empty" else os.stat(file).st_size // 2)
        for _ in range(3):
            for digest, data in ((layer.digest, layer.blob), (layer.diff_id, layer.tar)):
                head = r.head(t.up.blob_path(REPO, digest))
                equal((head.status, head.h("Content-Length")), (200, str(len(data))), damage)
                answer = r.blob(REPO, digest)
                equal((answer.status, answer.h("Content-Length")), (200, str(len(data))), damage)
                equal(answer.complete and answer.body != data, False, damage)
            r.wait_jobs()
        for digest, data in ((layer.digest, layer.blob), (layer.diff_id, layer.tar)):
            whole(r.blob(REPO, digest), data)
        r.stop(allow=".")
    t.allow = "."


def test_lost_files_and_no_upstream(t):
    """Case 2: what cannot be fetched again is an error or a cut answer, never a complete one with other bytes."""
    r, layer, files = layer_in_files(t, 1)
    for file in files:
        os.truncate(file, 0)
    t.up.stop()
    for _ in range(2):
        for digest, data in ((layer.digest, layer.blob), (layer.diff_id, layer.tar)):
            answer = r.blob(REPO, digest)
            equal(answer.complete and answer.status == 200 and answer.body != data, False, str(answer))
            if answer.status != 200:
                equal((answer.status >= 400, bool(answer.error_code())), (True, True))
    t.up.start()
    until(lambda: r.blob(REPO, layer.digest).body == layer.blob, "the original, healed")
    until(lambda: r.blob(REPO, layer.diff_id).body == layer.tar, "the canonical form, healed")
    t.allow = "."


def test_upstream_says_a_blob_is_empty(t):
    """Case 12: a length of 0 that the digest contradicts is neither believed nor remembered."""
    data, digest, path = raw_blob(t, 1, 100_000)
    r = t.recask()
    t.up.knob(path, methods={"HEAD"}, headers={"Content-Length": "0"})
    head = r.head(path)
    equal(head.status == 200 and head.h("Content-Length") == "0", False, str(head))
    whole(r.get(path), data)
    r.wait_jobs()
    head = r.head(path)
    equal((head.status, head.h("Content-Length")), (200, str(len(data))))
    whole(r.get(path), data)
    evict(r, digest)
    head = r.head(path)
    equal((head.status, head.h("Content-Length")), (200, str(len(data))))
    # The same from a GET: nothing of it is kept.
    data, digest, path = raw_blob(t, 2, 100_000)
    t.up.knob(path, body=b"", times=1)
    answer = r.get(path)
    equal(answer.status == 200 and answer.complete, False, str(answer))
    whole(r.get(path), data)


# ---- aborted ---------------------------------------------------------------------------------------------------------

def test_aborted_pulls_give_their_bytes_back(t):
    """Case 13: twenty cold pulls that neither client nor upstream finishes; then nothing of them is left."""
    size = 1_000_000 if under_sanitizer() else 4_000_000
    r = t.recask()
    for n in range(2):
        blobs = [raw_blob(t, f"{n}.{i}", size) for i in range(10)]
        knobs = [t.up.knob(path, stall_at=size // 2) for _, _, path in blobs]
        streams = [r.open("GET", path) for _, _, path in blobs]
        for stream, knob in zip(streams, knobs):
            stream.raw(1000)
            until(knob.stalled.is_set, "the upstream stalls")
            stream.close()
        files = r.files("spool")
        equal((len(files), sum(files.values()) <= 10 * size), (10, True), str(files))
        t.up.stop()  # the transfers break, and so does every try to go on
        t.up.clear_knobs()
        until(lambda: not r.files("spool") and r.stats()["fills"] == 0, "an empty spool", 60)
        store = r.stats()["store"]
        equal((r.files("originals"), store["original_bytes"], store["canonical_bytes"]), ({}, 0, 0))
        t.up.start()
    data, _, path = blobs[0]
    until(lambda: r.get(path).body == data, "the upstream is asked again")
    r.wait_jobs()
    spool_empties(r)


def test_full_disk_passes_through_and_says_so(t):
    """Case 15: the log tells that the blob was not kept; the next client gets it all the same."""
    if not can_mount():
        raise Skip("cannot mount a small file system")
    r = t.recask(disk_bytes=10 << 20)
    data, _, path = raw_blob(t, 1, 16 << 20)
    for _ in range(2):
        whole(r.get(path), data)
        r.wait_jobs()
        spool_empties(r)
    equal(r.files("originals"), {})
    equal([x for x in r.log().splitlines() if "lvl=warn" in x and sha256(data) in x] != [], True, "a warning")


def test_stuck_fill_holds_nobody(t):
    """Case 44: beside a transfer that stands still all else is served; the number of fills shows it."""
    data, _, path = raw_blob(t, 1, 2_000_000)
    image = images.small_image().push(t.up, "other/app", "1")
    r = t.recask()
    knob = t.up.knob(path, stall_at=1_000_000)
    stream = r.open("GET", path)
    got = stream.raw(1000)
    until(knob.stalled.is_set, "the upstream stalls")
    began = time.monotonic()
    equal(r.pull("other/app", image, "1").body, image.body)
    equal(r.manifest(REPO, "none").status, 404)
    equal(time.monotonic() - began < 10, True)
    until(lambda: r.stats()["fills"] == 1, "only the stuck one is left")
    knob.release()
    equal(got + stream.rest().body == data, True)
    r.wait_jobs()
    equal(r.stats()["fills"], 0)


# ---- cost ------------------------------------------------------------------------------------------------------------

def reads(r):
    """System calls that read files, so far; sockets are read by others."""
    with open(f"/proc/{r.process.pid}/io", encoding="ascii") as file:
        return int([x for x in file if x.startswith("syscr:")][0].split()[1])


def test_warm_get_costs_little(t):
    """Case 76: a warm blob is read in large steps, after a few reads of the catalog; the upstream is not asked."""
    image = images.small_image(layers=1, size=6_000_000).push(t.up, REPO, "1")
    r = t.recask()
    r.pull(REPO, image, "1")
    r.wait_jobs()
    layer = image.layers[0]
    for digest, data in ((layer.digest, layer.blob), (layer.diff_id, layer.tar), (image.config_digest, image.config)):
        whole(r.blob(REPO, digest), data)
        t.up.forget()
        before = reads(r)
        for _ in range(10):
            whole(r.blob(REPO, digest), data)
        each = (reads(r) - before) / 10
        equal(each <= 10 + len(data) / 65536, True, f"{each} reads for {len(data)} bytes")
        equal(t.up.requests, [])


if __name__ == "__main__":
    main()
