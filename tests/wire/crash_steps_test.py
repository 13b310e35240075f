#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""recask dies before each of its durable steps, by SIGKILL and by a power cut that loses any part of what was not synced.

Afterwards no row points at bytes that are not there, nothing is left over, what clients were given is still to be had, and
pulls and evictions go on. A run has more than a thousand steps: RECASK_CRASH_STEPS=all takes each of them, a number so
many (default 48), RECASK_CRASH_SEED=N picks others. Needs libfault.so, which sanitizers do not stand. Cases 5, 44, 81.
"""
import os
import random
import shutil

import fault
import images
from recask import Recask
from runner import Clients, Skip, equal, main
from storecheck import DAMAGE, Given, bytes_behind_rows, whole_store

AGENTS = ["docker/28.5.2", "x", "docker/20.10.24"]
QUOTA = "1500KiB"
WORKERS = 2


def all_images(up):
    """gzip, zstd and plain; with a layer in common, and twice more bytes than the quota allows."""
    out = []
    for n in range(4):
        tars = [images.tar_of([("own", images.noise(n, 120_000)), ("text", images.text(n, 60_000))]),
                images.tar_of([("shared", images.noise(90 + n // 2, 80_000))])]
        out.append(images.Image(tars, how=("gzip", "zstd", "none", "gzip")[n],
                                kind="docker" if n == 3 else "oci").push(up, f"r/{n}", "1"))
    return out


class Scenario:
    """The work that is cut short; each run in a directory of its own, against one upstream."""

    def __init__(self, t):
        self.t = t
        self.images = all_images(t.up)
        self.moved = images.small_image("moved", layers=1, size=60_000).push(t.up, "moved/new")
        for n in range(2):
            self.images[n].push(t.up, "moved/app", f"v{n}")
        self.extra = images.small_image("extra", layers=2, size=200_000).push(t.up, "r/extra", "1")
        self.number = 0

    def start(self, env, directory=None):
        if directory is None:
            self.number += 1
            directory = os.path.join(self.t.directory, f"run{self.number}")
            os.mkdir(directory)
        return Recask(directory, [self.t.up.url], ["--tag-ttl", "0s", "--quota", QUOTA], env)

    def work(self, r, given):
        """Fills, canonical forms, views, tags, evictions, pins, collecting; ends early when recask does."""
        try:
            for n in range(len(self.images)):
                given.pull(r, f"r/{n}", "1", AGENTS[n % 3])
                given.pull(r, f"r/{n}", self.images[n].digest, "x")
            r.wait_jobs()
            given.pull(r, "r/0", "1", AGENTS[0])
            given.pull(r, "moved/app", "v0", AGENTS[0])
            given.pull(r, "moved/app", "v1", AGENTS[2])
            for layer in self.images[3].layers:
                r.evict(layer.diff_id)
            r.wait_jobs()
            r.change("/api/v1/pin?ref=r/1:1")
            given.pull(r, "r/3", "1", AGENTS[2])
            r.collect()
            r.wait_idle()
            r.change("/api/v1/unpin?ref=r/1:1")
            r.change("/api/v1/rm?ref=moved/app:v1")
            r.process.terminate()
            if r.process.wait(30) == 0:
                r.stop()
        except (OSError, EOFError):
            pass

    def count(self):
        directory = os.path.join(self.t.directory, "count")
        os.mkdir(directory)
        f = fault.Fault(directory, os.path.join(directory, "store"))
        trace = os.path.join(directory, "trace")
        r = self.start(f.env(trace=trace), directory)
        given = Given()
        self.work(r, given)
        equal(r.process, None, "the scenario ran to its end")
        whole_store(r.store)
        with open(trace, encoding="utf-8") as file:
            return [line.split()[1] for line in file]

    def cut(self, step, lose, seed):
        """One life until before the step, and what comes after it."""
        self.number += 1
        directory = os.path.join(self.t.directory, f"run{step}-{self.number}")
        os.mkdir(directory)
        f = fault.Fault(directory, os.path.join(directory, "store"))
        given = Given()
        r = None
        try:
            r = self.start(f.env(kill=step, lose=lose, seed=seed), directory)
        except AssertionError as why:
            if "ended with -9" not in str(why):
                raise
        if r is not None:
            self.work(r, given)
            if r.process is not None:
                equal(r.process.wait(30), -9, "killed by the step")
                r.kill9()
            Recask.running.discard(r)
        store = os.path.join(directory, "store")
        bytes_behind_rows(store)
        self.after(directory, given)
        shutil.rmtree(directory)

    def after(self, directory, given):
        log = os.path.join(directory, "recask.log")
        before = os.path.getsize(log)
        r = self.start({}, directory)
        equal(r.files("spool"), {})
        r.wait_idle()  # what is broken off leaves a tail in its pack until the next start
        r.stop()
        whole_store(r.store)
        r.start()
        given.check(r)
        for n, image in enumerate(self.images):
            given.pull(r, f"r/{n}", image.digest, "x")
        given.pull(r, "r/extra", "1", AGENTS[0])
        r.wait_jobs()
        r.evict(self.extra.layers[0].diff_id)
        given.pull(r, "r/extra", "1", AGENTS[0])
        r.wait_idle()
        r.stop()
        whole_store(r.store)
        with open(log, encoding="utf-8", errors="replace") as file:
            file.seek(before)
            for line in file:
                equal(DAMAGE.search(line), None, line)


def chosen(kinds, seed):
    """Half of them where a file gets its name, size or sync, which are few; half anywhere."""
    how_many = os.environ.get("RECASK_CRASH_STEPS", "48")
    if how_many == "all":
        return list(range(1, len(kinds) + 1))
    pick = random.Random(seed)
    rare = [n for n, kind in enumerate(kinds, 1) if kind != "write"]
    half = int(how_many) // 2
    return sorted(pick.sample(rare, min(half, len(rare))) + pick.sample(range(1, len(kinds) + 1), half))


def test_each_step(t):
    if not fault.LIBRARY:
        raise Skip("no libfault.so in this build")
    seed = int(os.environ.get("RECASK_CRASH_SEED", "1"))
    scenario = Scenario(t)
    kinds = scenario.count()
    steps = chosen(kinds, seed)
    print(f"# {len(kinds)} steps, {len(steps)} kills, RECASK_CRASH_SEED={seed}", flush=True)
    problems = []

    def worker(which):
        for n in range(which, len(steps), WORKERS):
            # Kill, cut that loses all, cut that loses a part.
            lose, part = n // WORKERS % 3 > 0, steps[n] if n // WORKERS % 3 == 2 else 0
            try:
                scenario.cut(steps[n], lose, part)
            except (AssertionError, OSError, EOFError) as why:
                problems.append(f"step {steps[n]} lose={lose} seed={part}: {type(why).__name__} {why}")

    clients = Clients()
    for which in range(WORKERS):
        clients.run(worker, which)
    clients.join(timeout=36_000)
    print("".join(f"# {problem}\n" for problem in problems), end="", flush=True)
    equal(len(problems), 0, "runs with problems")


if __name__ == "__main__":
    main()
