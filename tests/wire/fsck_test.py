#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""recask fsck: a store that lost its catalog, or has a damaged one, refuses to start and says what to do; a new catalog
made from packs and originals answers all that the old one did, without asking upstream. Case 101."""
import json
import os
import subprocess
import tarfile

import golden_store
import images
from mock import sha256
from recask import BINARY, Recask, request
from runner import equal, main, until

REPO = "team/app"
GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")


def fsck(store, *flags):
    done = subprocess.run([BINARY, "fsck", "--store", store, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=100, check=False, text=True)
    return done.returncode, done.stdout, done.stderr


def clean(store, *flags):
    code, out, err = fsck(store, "--json", *flags)
    equal((code, err), (0, ""))
    value = json.loads(out)
    equal(value["findings"], [])
    return value


def fill(t):
    """Two images in three tags, of which one was moved; both views of one; a layer that was evicted."""
    first = images.small_image(1, layers=2, size=400_000).push(t.up, REPO, "1")
    second = images.small_image(2, layers=2, size=400_000).push(t.up, REPO, "2")
    r = t.recask("--tag-ttl", "0s")
    r.pull(REPO, first, "1", agent="docker/28.5.2")
    r.pull(REPO, second, "2", agent="docker/28.5.2")
    second.push(t.up, REPO, "moved")
    r.manifest(REPO, "moved")
    first.push(t.up, REPO, "moved")
    r.manifest(REPO, "moved")
    r.wait_jobs()
    views = [r.manifest(REPO, tag, "docker/28.5.2").body for tag in ("1", "2", "moved")]
    equal(views[0] == views[2] != first.body, True)
    r.evict(second.layers[1].diff_id)
    return r, first, second, views


def check_all(r, first, second, views):
    equal([r.manifest(REPO, tag, "docker/28.5.2").body for tag in ("1", "2", "moved")], views)
    for body in views:
        equal(r.manifest(REPO, sha256(body)).body, body)
    for image in (first, second):
        equal(r.manifest(REPO, image.digest).body, image.body)
        equal(r.blob(REPO, image.config_digest).body, image.config)
        for layer in image.layers:
            equal(r.blob(REPO, layer.digest).body == layer.blob, True)
    for layer, found in zip(first.layers, json.loads(views[0])["layers"]):
        blob = r.blob(REPO, found["digest"]).body
        equal((sha256(blob), images.unzstd(blob, len(layer.tar)) == layer.tar), (found["digest"], True))
        equal(r.blob(REPO, layer.diff_id).body == layer.tar, True)


def refused(r):
    """It does not start, and the last line names the file and the command."""
    try:
        r.start()
    except AssertionError as e:
        text = str(e)
    else:
        raise AssertionError("it started")
    equal((r.store + "/catalog.db" in text, f'"recask fsck --rebuild --store {r.store}"' in text), (True, True), text)


def damage_removed(path):
    os.remove(path)


def damage_garbage(path):
    with open(path, "wb") as file:
        file.write(os.urandom(200_000))


def damage_cut(path):
    os.truncate(path, os.path.getsize(path) // 2)


def damage_empty(path):
    os.truncate(path, 0)


def test_rebuild(t):
    """Case 101: tags, views and blobs are what they were, whatever became of the catalog."""
    r, first, second, views = fill(t)
    r.flags.append("--offline")
    for damage in (damage_removed, damage_garbage, damage_cut, damage_empty):
        r.kill9()
        for name in os.listdir(r.store):
            if name.startswith("catalog.db-"):
                os.remove(os.path.join(r.store, name))
        damage(r.store + "/catalog.db")
        refused(r)
        code, out, err = fsck(r.store)
        equal((code, "fsck --rebuild" in err), (1, True), out + err)
        code, out, err = fsck(r.store, "--rebuild")
        equal((code, "3 tags" in out, "0 records or files are damaged" in out), (0, True, True), out + err)
        clean(r.store, "--read")
        t.up.forget()
        r.start()
        check_all(r, first, second, views)
        equal(t.up.requests, [])
    r.stop()
    value = clean(r.store)
    equal((value["tags"], value["layers"]), (3, 3))
    equal(len([n for n in os.listdir(r.store) if n.startswith("catalog.db.damaged-")]) >= 1, True)


def test_running_instance(t):
    """fsck is alone with the store, or does nothing."""
    r, *_ = fill(t)
    for flags in ((), ("--rebuild",)):
        code, out, err = fsck(r.store, *flags)
        equal((code, out), (1, ""))
        equal(("is in use by process" in err, "stop it first" in err), (True, True), err)
    r.stop()
    clean(r.store)
    code, _, err = fsck(t.directory + "/nothing")
    equal((code, "nothing" in err), (1, True))
    code, _, err = fsck(r.store, "--rebuild", "--read")
    equal(code, 2)


def test_findings(t):
    """Each by its name; exit status 1."""
    r, first, *_ = fill(t)
    r.stop()
    name = first.layers[0].digest.split(":")[1]
    path = os.path.join(r.store, "originals", name[:2], name)
    if not os.path.exists(path):  # its canonical layer is what is kept
        name = first.config_digest.split(":")[1]
        path = os.path.join(r.store, "originals", name[:2], name)
    with open(path, "r+b") as file:
        file.write(b"?")
    clean(r.store)
    code, out, err = fsck(r.store, "--read")
    equal((code, name in out, "1 findings" in err), (1, True, True), out + err)
    code, out, _ = fsck(r.store, "--rebuild")
    equal((code, name in out), (0, True), out)
    os.remove(path)
    clean(r.store, "--read")


def test_damage_at_run_time(t):
    """A catalog that goes bad under a running instance: requests fail, /readyz says no, the log names the command."""
    t.allow = "admin.notready|lvl=err"
    r, first, *_ = fill(t)
    r.restart()
    path = r.store + "/catalog.db"
    size = os.path.getsize(path)
    with open(path, "r+b") as file:  # all but the first page
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    until(lambda: r.manifest(REPO, first.digest).status >= 400 and request(r.admin, "GET", "/readyz").status == 503, "it is noticed")
    equal(f"recask fsck --rebuild --store {r.store}" in r.log(), True)
    r.kill9()
    refused(r)
    equal(fsck(r.store, "--rebuild")[0], 0)
    r.start()
    equal(r.manifest(REPO, first.digest).body, first.body)


def golden(t, name):
    directory = os.path.join(t.directory, name)
    os.mkdir(directory)
    with tarfile.open(os.path.join(GOLDEN, name + ".tar.gz")) as tar:
        tar.extractall(directory)
    return directory


def test_golden(t):
    """Stores of each format: what is migrated passes, and a rebuild of its packs serves the same bytes."""
    for name in ("store-v1", "store-v2"):
        directory = golden(t, name)
        store = directory + "/store"
        if name == "store-v1":
            code, _, err = fsck(store)
            equal((code, "has format 1" in err), (1, True), err)
        r = Recask(directory, [f"{golden_store.NAME}={t.up.url}"], ["--offline", "--quota", "1GiB"])
        t.processes.append(r)
        r.stop()
        clean(store, "--read")
        code, out, err = fsck(store, "--rebuild")
        equal((code, "0 records or files are damaged" in out), (0, True), out + err)
        clean(store, "--read")
        r.start()
        golden_store.pull_all(r)
        view = r.manifest(golden_store.REPO, "1", "docker/28.5.2").json()
        for layer in view["layers"]:
            equal((layer["mediaType"].endswith("+zstd"), r.blob(golden_store.REPO, layer["digest"]).status), (True, 200))
        equal(t.up.requests, [])
        r.stop()


if __name__ == "__main__":
    main()
