#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SIGKILL, and power cuts where RECASK_CRASH_POWER=1 asks for them, at random moments, while six clients pull, the quota evicts and packs are compacted; one store lives through all of it.

After each: no row points at bytes that are not there, nothing is left over, and what clients had got whole was right and is
still to be had. RECASK_CRASH_MOMENTS=N kills so often (default 40, fewer under sanitizers), RECASK_CRASH_SEED=N otherwise.
Power cuts need libfault.so, which sanitizers do not stand. They are not in `make test`: twice in some forty runs they left rows
missing from an index of the catalog, and whether recask or the taking back did it is not known yet. Cases 5, 44, 81.
"""
import os
import random
import time

import fault
import images
from mock import sha256
from recask import under_sanitizer
from runner import Clients, equal, main
from storecheck import DAMAGE, Given, bytes_behind_rows, patient_blob, whole_store

AGENTS = ["docker/28.5.2", "x", "docker/20.10.24", "containerd/2.1.4"]
QUOTA = "8MiB"
CLIENTS = 6


def push_images(t, count):
    out = []
    for n in range(count):
        tars = [images.tar_of([("own", images.noise(n, 150_000 + 30_000 * (n % 5))), ("text", images.text(n, 80_000))]),
                images.tar_of([("shared", images.noise(1000 + n // 3, 200_000))])]
        out.append(images.Image(tars, how=("gzip", "zstd", "none")[n % 3]).push(t.up, f"r/{n}", "1"))
        out[-1].push(t.up, "moving/app", f"v{n % 2}")
    return out


def client(t, r, given, pick, count):
    """Until recask is gone. Moves tags too."""
    while True:
        n = pick.randrange(count)
        try:
            how = pick.random()
            if how < 0.15:
                given.pull(r, "moving/app", f"v{n % 2}", pick.choice(AGENTS))
            elif how < 0.25:
                image = t.pushed[n]
                layer = pick.choice(image.layers)
                answer = r.blob(f"r/{n}", layer.diff_id)
                if answer.status == 200 and answer.complete:
                    equal(answer.body == layer.tar, True, "a canonical layer")
            elif how < 0.3:
                t.pushed[n].push(t.up, "moving/app", f"v{n % 2}")
            elif how < 0.32:
                r.collect()
            elif how < 0.33:  # no more than two at a time: an eighth of the quota
                r.change(f"/api/v1/{pick.choice(['pin', 'unpin'])}?ref=r/{n % 2}:1")
            elif how < 0.35:
                r.evict(pick.choice(t.pushed[n].layers).diff_id)
            else:
                given.pull(r, f"r/{n}", pick.choice(["1", t.pushed[n].digest]), pick.choice(AGENTS))
        except (OSError, EOFError):
            return
        except AssertionError as why:
            if not str(why).startswith("evict "):  # busy, or gone already
                raise


def die(r, f, pick, power):
    if power:
        f.kill_in(pick.randint(1, 60))
        try:
            equal(r.process.wait(60), -9)
        finally:
            r.kill9()
    else:
        r.kill9()


def a_life(t, r, f, pick, given):
    """A start, a load, an end. With half of the lives the end is a power cut."""
    power = f is not None and pick.random() < 0.5
    r.env = f.env(lose=power, seed=pick.randrange(1000)) if f is not None else {}
    r.start()
    clients = Clients()
    for _ in range(CLIENTS):
        clients.run(client, t, r, given, random.Random(pick.random()), len(t.pushed))
    time.sleep(pick.uniform(0.02, 0.6) * (4 if under_sanitizer() else 1))
    die(r, f, pick, power)
    clients.join()
    bytes_behind_rows(r.store)


def settle(r, given, pick):
    r.env = {}
    r.start()
    equal(r.files("spool"), {})
    given.check(r, pick, 12)
    r.wait_idle()  # what is broken off leaves a tail in its pack until the next start
    r.stop()
    whole_store(r.store)


def test_random_moments(t):
    moments = int(os.environ.get("RECASK_CRASH_MOMENTS", "8" if under_sanitizer() else "40"))
    seed = int(os.environ.get("RECASK_CRASH_SEED", "1"))
    print(f"# {moments} moments, RECASK_CRASH_SEED={seed}", flush=True)
    pick = random.Random(seed)
    t.pushed = push_images(t, 18)
    r = t.recask("--tag-ttl", "0s", "--quota", QUOTA)
    r.stop()
    f = fault.Fault(r.directory, r.store) if fault.LIBRARY and os.environ.get("RECASK_CRASH_POWER") == "1" else None
    given = Given()
    for n in range(moments):
        try:
            a_life(t, r, f, pick, given)
            settle(r, given, pick)
        except AssertionError as why:
            raise AssertionError(f"moment {n}: {why}") from why
    r.start()
    for n, image in enumerate(t.pushed):
        given.pull(r, f"r/{n}", image.digest, "x")
        given.pull(r, f"r/{n}", "1", AGENTS[0])
        for layer in image.layers:
            equal(sha256(patient_blob(r, f"r/{n}", layer.digest).body), layer.digest)
    r.wait_idle()
    evictions = r.stats()["store"]["evictions"]
    equal(evictions > 0, True, "evictions")
    r.stop()
    whole_store(r.store)
    for line in r.log().splitlines():
        equal(DAMAGE.search(line), None, line)


if __name__ == "__main__":
    main()
