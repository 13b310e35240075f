#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stores that an earlier recask wrote: opened, migrated, and every byte of them served without an upstream."""
import os
import sqlite3
import tarfile

import golden_store
from recask import Recask
from runner import equal, main

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")


def open_store(t, name):
    directory = os.path.join(t.directory, name)
    os.mkdir(directory)
    with tarfile.open(os.path.join(GOLDEN, name + ".tar.gz")) as tar:
        tar.extractall(directory)
    r = Recask(directory, [f"{golden_store.NAME}={t.up.url}"], ["--offline", "--quota", "1GiB"])
    t.processes.append(r)
    return r


def check(t, name):
    r = open_store(t, name)
    first, _ = golden_store.contents()
    for _ in range(2):  # as migrated, and as it is opened from then on
        golden_store.pull_all(r)
        view = r.manifest(golden_store.REPO, "1", "docker/28.5.2").json()
        equal(view["layers"][0]["mediaType"].endswith("+zstd"), True)
        equal(view["layers"][0]["digest"] != first.layers[0].digest, True)
        for layer in view["layers"]:
            equal(r.blob(golden_store.REPO, layer["digest"]).status, 200)
        r.restart()
    equal(t.up.requests, [])
    for digest in [x.diff_id for x in first.layers]:  # what writes to it works too
        r.evict(digest)
    equal(r.stats()["store"]["canonical_layers"], 1)
    r.stop()
    with sqlite3.connect(os.path.join(r.store, "catalog.db")) as db:
        version, = db.execute("PRAGMA user_version").fetchone()
        oldest, = db.execute("SELECT min(x) FROM (SELECT last_read AS x FROM blob UNION SELECT last_read FROM canonical)"
                             ).fetchone()
    equal((version > 1, oldest > 1_700_000_000_000), (True, True))  # seconds became milliseconds
    db.close()


def test_version_1(t):
    """Catalog 1: without the indexes by last read."""
    check(t, "store-v1")


def test_version_2(t):
    """Catalog 2, as this recask writes it. When the tables of version 2 change before it is released, this store is made
    again: RECASK_BIN=... golden_store.py tests/golden/store-v2.tar.gz; after that a new version gets a new one."""
    check(t, "store-v2")


if __name__ == "__main__":
    main()
