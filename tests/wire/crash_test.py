#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 at all kinds of moments: right bytes afterwards, nothing half-stored, no temporary files. Cases 5, 44, 101."""
import json
import os
import random
import time

import images
from mock import sha256
from recask import under_sanitizer
from runner import Clients, equal, main, until

REPO = "team/app"


def check_whole(r, digest, data, repo=REPO):
    answer = r.blob(repo, digest)
    equal((answer.status, answer.complete, answer.body == data), (200, True, True), digest)


def check_image(r, image, repo=REPO):
    """Everything that can be asked of an image, by digest."""
    equal(r.manifest(repo, image.digest).body, image.body)
    check_whole(r, image.config_digest, image.config, repo)
    for layer in image.layers:
        check_whole(r, layer.digest, layer.blob, repo)


def test_kill_in_fill(t):
    """5, 44: no half object, no spool file, and everything else is served at once."""
    data = images.noise(1, 8_000_000)
    path = t.up.blob_path(REPO, t.up.add_blob(REPO, data))
    other = images.small_image().push(t.up, "other/app", "1")
    r = t.recask()
    r.pull("other/app", other, "1")
    r.wait_jobs()
    t.up.knob(path, stall_at=3_000_000, times=1)
    stream = r.open("GET", path)
    got = stream.raw(1_000_000)
    until(lambda: sum(r.files("spool").values()) >= 3_000_000, "bytes in the spool")
    r.kill9()
    rest = stream.rest()
    equal((rest.complete, data.startswith(got + rest.body)), (False, True))
    equal(len(r.files("spool")), 1)
    t.up.forget()
    r.start()
    equal(r.files("spool"), {})
    began = time.monotonic()
    check_image(r, other, "other/app")
    equal(time.monotonic() - began < 2, True)
    equal(t.up.requests, [])
    check_whole(r, sha256(data), data)
    equal([s.headers.get("range") for s in t.up.seen("GET", path)], [None])


def test_work_is_taken_up(t):
    """A layer that was stored but not yet canonical becomes so without another request; views are durable."""
    image = images.small_image(size=3_000_000).push(t.up, REPO, "1")
    r = t.recask()
    r.pull(REPO, image, "1")
    r.kill9()
    r.start()
    check_image(r, image)
    r.wait_jobs()
    body = r.manifest(REPO, "1", "docker/28.5.2").body
    value = json.loads(body)
    equal(value["layers"][0]["mediaType"], images.OCI_LAYER + "+zstd")
    r.kill9()
    t.up.stop()
    r.start()
    equal(r.manifest(REPO, "1", "docker/28.5.2").body, body)
    equal(r.manifest(REPO, sha256(body)).body, body)
    for found, layer in zip(value["layers"], image.layers):
        blob = r.blob(REPO, found["digest"]).body
        equal((sha256(blob), images.unzstd(blob, len(layer.tar)) == layer.tar), (found["digest"], True))
        check_whole(r, layer.diff_id, layer.tar)


def test_kill_while_canonicalising(t):
    size = 2_000_000 if under_sanitizer() else 12_000_000
    image = images.small_image(layers=2, size=size).push(t.up, REPO, "1")
    r = t.recask()
    pick = random.Random(1)
    for n in range(8):
        r.pull(REPO, image, "1")
        time.sleep(pick.uniform(0, 0.4))
        r.kill9()
        r.start()
        equal(r.files("spool"), {}, f"round {n}")
        check_image(r, image)
        for layer in image.layers:
            answer = r.blob(REPO, layer.diff_id)
            if answer.status == 200:
                equal((answer.complete, answer.body == layer.tar), (True, True), f"round {n}")
        if n % 3 == 2:  # and again from nothing
            r.wait_jobs()
            for layer in image.layers:
                r.evict(layer.diff_id)
                if n == 2:
                    r.evict(layer.digest)
    r.wait_jobs()
    for layer in image.layers:
        check_whole(r, layer.diff_id, layer.tar)
    stats = r.stats()["store"]
    equal(stats["canonical_layers"], 2)
    r.kill9()
    r.start()
    equal(r.stats()["store"]["canonical_layers"], 2)


def test_kill_at_random(t):
    """Many images at once; each round ends in a kill, and all that is answered is right."""
    rounds, count = (3, 4) if under_sanitizer() else (6, 8)
    all_images = [images.small_image(n, layers=2, size=400_000, kind="docker" if n % 2 else "oci").push(t.up, f"r/{n}", "1")
                  for n in range(count)]
    r = t.recask("--tag-ttl", "0s")
    pick = random.Random(2)

    def pull(n):
        for _ in range(20):
            try:
                answer = r.manifest(f"r/{n}", "1", pick.choice(["docker/28.5.2", "docker/20.10.24", "x"]))
                equal(answer.status, 200)
                if answer.complete:
                    equal(answer.h("Docker-Content-Digest"), sha256(answer.body))
                    for layer in answer.json()["layers"]:
                        blob = r.blob(f"r/{n}", layer["digest"])
                        if blob.complete:
                            equal((blob.status, sha256(blob.body)), (200, layer["digest"]))
            except (OSError, EOFError):
                return

    for _ in range(rounds):
        clients = Clients()
        for n in range(count):
            clients.run(pull, n)
        time.sleep(pick.uniform(0.1, 1.2))
        r.kill9()
        clients.join()
        r.start()
        equal(r.files("spool"), {})
    for n, image in enumerate(all_images):
        check_image(r, image, f"r/{n}")
    r.wait_jobs()
    for n, image in enumerate(all_images):
        check_image(r, image, f"r/{n}")
        for layer in image.layers:
            check_whole(r, layer.diff_id, layer.tar, f"r/{n}")


def test_strangers_in_the_store(t):
    """Files that no row names are swept at the start, whatever left them."""
    image = images.small_image().push(t.up, REPO, "1")
    r = t.recask()
    r.pull(REPO, image, "1")
    r.wait_jobs()
    kept = set(r.files("originals"))
    r.kill9()
    for name in ("spool/leftover", "originals/00/" + "0" * 64, os.path.relpath(min(kept), r.store)[:-1] + "x"):
        path = os.path.join(r.store, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"x" * 5000)
    r.start()
    equal((r.files("spool"), set(r.files("originals"))), ({}, kept))
    check_image(r, image)


def test_lost_page_cache(t):
    """5: what a power cut may leave of the files last written: nothing, or nothing but zeros."""
    image = images.small_image().push(t.up, REPO, "1")
    for damage in ("empty", "zeros", "gone"):
        r = t.recask()
        r.pull(REPO, image, "1")
        r.wait_jobs()
        r.kill9()
        for path, size in r.files("originals").items():
            if damage == "gone":
                os.remove(path)
            else:
                with open(path, "wb") as file:
                    file.write(bytes(size) if damage == "zeros" else b"")
        r.start()
        t.allow = "."
        for _ in range(3):
            for layer in image.layers:
                answer = r.blob(REPO, layer.digest)
                if answer.status == 200 and answer.complete:
                    equal(answer.body == layer.blob, True, damage)
            r.wait_jobs()
        check_image(r, image)
        r.stop(allow=".")


if __name__ == "__main__":
    main()
