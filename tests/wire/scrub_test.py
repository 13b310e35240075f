#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A scrub finds what is damaged, and only that; with --repair it comes back, from the original or from upstream.

Cases 14, 81, 82.
"""
import json
import os
import random
import sqlite3
import subprocess
import threading

import images
import recask as recask_module
from mock import sha256
from recask import request, under_sanitizer
from runner import Clients, equal, main, until

REPO = "team/app"


# ---- help --------------------------------------------------------------------------------------------------------------

def command(r, *args, timeout=120):
    """recask as a person calls it. Returns (status, stdout, stderr)."""
    done = subprocess.run([recask_module.BINARY, *args, "--store", r.store], capture_output=True, text=True,
                          timeout=timeout, check=False)
    return done.returncode, done.stdout, done.stderr


def scrub(r, repair=False):
    """The answer's numbers, with `findings` and the exit status of the command."""
    status, out, err = command(r, "scrub", "--json", *(["--repair"] if repair else []))
    answer = json.loads(out)
    equal(answer["last"]["scrub"]["state"], "done", err)
    return {**answer["last"]["scrub"]["scrub"], "findings": answer["findings"], "status": status}


def clean(r):
    found = scrub(r)
    equal((found["findings"], found["bad"], found["status"]), ([], 0, 0))
    return found


def found_one(found, fault, *words):
    equal([f["fault"] for f in found["findings"]], [fault], str(found["findings"]))
    finding = found["findings"][0]
    for word in words:
        equal(word in finding["what"], True, f"{word} in {finding['what']}")
    return finding


def pulled(t, seed=1, tag="1", layers=2, **flags):
    """An image that was pulled, taken apart and has its views."""
    image = images.small_image(seed, layers=layers, size=300_000).push(t.up, REPO, tag)
    r = t.recask(*[x for flag in flags.items() for x in flag])
    r.pull(REPO, image, tag)
    r.wait_jobs()
    return r, image


def catalog(r, sql, *values):
    """Reads from, or changes, the catalog of a recask that may be running."""
    with sqlite3.connect(os.path.join(r.store, "catalog.db"), timeout=30) as db:
        rows = db.execute(sql, values).fetchall()
    db.close()
    return rows


def raw(digest):
    return bytes.fromhex(digest.removeprefix("sha256:"))


def frame_of(r, diff_id, number=0):
    """(path, offset, length, digest) of the n-th frame of a layer."""
    rows = catalog(r, "SELECT c.pack_id, c.off, c.len, c.digest FROM recipe r JOIN chunk c ON c.id = r.chunk_id"
                      " JOIN canonical a ON a.id = r.canonical_id WHERE a.digest = ? ORDER BY r.off", raw(diff_id))
    pack, off, length, digest = rows[number]
    return os.path.join(r.store, "packs", f"{pack:016x}.pack"), off, length, "sha256:" + digest.hex()


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0] ^ 0x10
        file.seek(at)
        file.write(bytes([byte]))


def flip_frame(r, diff_id, number=0):
    path, off, length, digest = frame_of(r, diff_id, number)
    flip(path, off + length // 2)
    return path, off, digest


def original(r, digest):
    name = digest.removeprefix("sha256:")
    return os.path.join(r.store, "originals", name[:2], name)


def right(r, image, tag="1"):
    """Every form of the image that a client can ask for is what its digest says."""
    r.wait_jobs()
    equal(r.manifest(REPO, tag).body, image.body)
    for layer in image.layers:
        equal(sha256(r.blob(REPO, layer.digest).body), layer.digest)
        equal(r.blob(REPO, layer.diff_id).body == layer.tar, True)
    view = r.manifest(REPO, tag, "docker/28.5.2").json()
    for part in view["layers"]:
        equal(sha256(r.blob(REPO, part["digest"]).body), part["digest"])
    return [part["digest"] for part in view["layers"]]


# ---- findings and repairs ------------------------------------------------------------------------------------------------

def test_sound_store(t):
    """Nothing is found; what was read is told, and no upstream was asked."""
    r, _ = pulled(t)
    t.up.forget()
    found = clean(r)
    equal((found["layers"], found["originals"], found["manifests"] >= 3), (2, 3, True), str(found))
    equal(found["bytes"] == found["total_bytes"] > 500_000, True)
    equal(t.up.requests, [])
    equal(r.stats()["maintenance"]["scrub"]["last_end"] is not None, True)
    status, out, _ = command(r, "scrub")
    equal((status, "found     0\n" in out, "2 layers, 3 originals" in out), (0, True, True), out)


def test_frame(t):
    """14: one flipped byte in a pack: named with its pack and offset; repaired from the original on disk, and all digests
    are what they were."""
    r, image = pulled(t)
    before = right(r, image)
    path, off, digest = flip_frame(r, image.layers[0].diff_id)
    found = scrub(r)
    finding = found_one(found, "frame", digest, os.path.basename(path), f"at {off}")
    equal((found["status"], finding["layers"], finding["outcome"]), (1, [image.layers[0].diff_id], "open"))
    status, out, err = command(r, "scrub")
    equal((status, "needed by 1 layer\n" in out, "--repair" in err), (1, True, True), out + err)
    t.up.forget()
    found = scrub(r, repair=True)
    equal((found["status"], found["bad"], found["repaired"], found["retired"]), (0, 1, 1, 0), str(found))
    equal(t.up.requests, [])
    clean(r)
    equal(right(r, image), before)


def test_frame_from_upstream(t):
    """14: the same without the original: it is fetched again."""
    r, image = pulled(t)
    before = right(r, image)
    r.evict(image.layers[0].digest)
    if catalog(r, "SELECT present FROM canonical WHERE digest = ?", raw(image.layers[0].diff_id)) != [(1,)]:
        raise AssertionError("only the original was to go")
    flip_frame(r, image.layers[0].diff_id)
    t.up.forget()
    found = scrub(r, repair=True)
    equal((found["status"], found["repaired"], found["retired"]), (0, 1, 0), str(found))
    equal(len(t.up.seen("GET", f"/v2/{REPO}/blobs/{image.layers[0].digest}")), 1)
    clean(r)
    equal(right(r, image), before)


def test_not_to_be_had(t):
    """14: no original and no upstream: said so, exit 1, and nobody is served damaged bytes; later it comes back."""
    r, image = pulled(t)
    r.evict(image.layers[0].digest)
    flip_frame(r, image.layers[0].diff_id)
    t.up.stop()
    found = scrub(r, repair=True)
    finding = found["findings"][0]
    equal((found["status"], found["repaired"], finding["outcome"]), (1, 0, "failed"))
    equal(finding["why"] != "", True)
    answer = r.blob(REPO, image.layers[0].diff_id)
    equal(answer.status == 200 and answer.complete, False)


def test_shared_frame(t):
    """A chunk of two layers is named once; one of them written again heals both."""
    shared = images.noise(5, 400_000)
    tars = [images.tar_of([("shared", shared), (n, images.noise(n, 100_000))]) for n in "ab"]
    image = images.Image(tars).push(t.up, REPO, "1")
    r = t.recask()
    r.pull(REPO, image, "1")
    r.wait_jobs()
    number = len(catalog(r, "SELECT c.id FROM recipe r JOIN chunk c ON c.id = r.chunk_id JOIN canonical a"
                            " ON a.id = r.canonical_id WHERE a.digest = ? AND r.off <= 512",
                         raw(image.layers[0].diff_id))) - 1
    flip_frame(r, image.layers[0].diff_id, number)
    finding = found_one(scrub(r), "frame")
    equal(sorted(finding["layers"]), sorted(x.diff_id for x in image.layers))
    equal(scrub(r, repair=True)["status"], 0)
    clean(r)
    right(r, image)


def test_not_reproducible(t):
    """A frame that does not come out as it was (another level is on record): the zstd digest is retired, with a log line,
    and its image gets a new view; the old digest is not served as something else."""
    r, image = pulled(t, layers=1)
    old = right(r, image)[0]
    r.stop()
    catalog(r, "UPDATE canonical SET level = 19")
    r.start()
    flip_frame(r, image.layers[0].diff_id)
    found = scrub(r, repair=True)
    equal((found["status"], found["repaired"], found["retired"]), (0, 1, 1), str(found))
    equal("layer.zstd_retired" in r.log(), True)
    clean(r)
    r.wait_jobs()
    new = right(r, image)[0]
    equal(new != old, True)
    answer = r.blob(REPO, old)
    equal(answer.status == 200, False)


def test_shared_and_not_reproducible(t):
    """A chunk of two layers whose frame cannot be made again: both are written anew."""
    t.allow = "chunk.heal_failed"
    shared = images.text(5, 600_000)
    tars = [images.tar_of([("shared", shared), (n, images.noise(n, 100_000))]) for n in "ab"]
    image = images.Image(tars).push(t.up, REPO, "1")
    r = t.recask()
    r.pull(REPO, image, "1")
    r.wait_jobs()
    r.stop()
    catalog(r, "UPDATE chunk SET level = 19")
    r.start()
    number = len(catalog(r, "SELECT c.id FROM recipe r JOIN chunk c ON c.id = r.chunk_id JOIN canonical a"
                            " ON a.id = r.canonical_id WHERE a.digest = ? AND r.off <= 512",
                         raw(image.layers[0].diff_id))) - 1
    flip_frame(r, image.layers[0].diff_id, number)
    equal(len(found_one(scrub(r), "frame")["layers"]), 2)
    found = scrub(r, repair=True)
    equal((found["status"], found["repaired"]), (0, 1), str(found))
    clean(r)
    right(r, image)


def test_new_layer_with_a_chunk_that_is_damaged(t):
    """Case 14: another layer has the damaged chunk in common: nothing is wrong with it, and it is not refused for good."""
    t.allow = "chunk.heal_failed|canon.fail"
    shared = images.text(6, 600_000)
    one, two = [images.Image([images.tar_of([("shared", shared), (n, images.noise(n, 100_000))])]) for n in "ab"]
    one.push(t.up, REPO, "1")
    r = t.recask()
    r.pull(REPO, one, "1")
    r.wait_jobs()
    r.stop()
    catalog(r, "UPDATE chunk SET level = 19")
    r.start()
    number = len(catalog(r, "SELECT c.id FROM recipe r JOIN chunk c ON c.id = r.chunk_id WHERE r.off <= 512")) - 1
    flip_frame(r, one.layers[0].diff_id, number)
    two.push(t.up, REPO, "2")
    r.pull(REPO, two, "2")
    r.wait_jobs()
    equal(catalog(r, "SELECT canon FROM blob WHERE digest = ?", raw(two.layers[0].digest)), [(0,)])
    equal(scrub(r, repair=True)["status"], 0)
    r.pull(REPO, two, "2")
    right(r, two, "2")
    equal(catalog(r, "SELECT canon FROM blob WHERE digest = ?", raw(two.layers[0].digest)), [(1,)])
    right(r, one, "1")


def test_originals(t):
    """An original with a flipped byte, one whose file is gone, one that was cut: each is named, and fetched again."""
    r, image = pulled(t)
    flip(original(r, image.layers[0].digest), 1000)
    os.unlink(original(r, image.layers[1].digest))
    os.truncate(original(r, image.config_digest), 10)
    found = scrub(r)
    equal(sorted(f["digest"] for f in found["findings"]),
          sorted([image.layers[0].digest, image.layers[1].digest, image.config_digest]))
    t.up.forget()
    found = scrub(r, repair=True)
    equal((found["status"], found["repaired"]), (0, 3), str(found))
    equal(len([q for q in t.up.requests if "/blobs/" in str(q)]), 3)
    clean(r)
    right(r, image)


def test_recipe_and_counts(t):
    """A row of a recipe, a count and a sum that were changed in the catalog."""
    r, image = pulled(t)
    r.stop()
    layer = raw(image.layers[1].diff_id)
    catalog(r, "UPDATE recipe SET zoff = zoff + 1 WHERE off > 0 AND canonical_id ="
               " (SELECT id FROM canonical WHERE digest = ?)", layer)
    catalog(r, "UPDATE chunk SET refs = refs + 1 WHERE id = 1")
    catalog(r, "UPDATE totals SET original_bytes = original_bytes + 1")
    r.start()
    found = scrub(r)
    equal(sorted(f["fault"] for f in found["findings"]), ["count", "count", "layer"], str(found["findings"]))
    found = scrub(r, repair=True)
    equal((found["status"], found["repaired"]), (0, 3), str(found))
    clean(r)
    right(r, image)


def test_manifest(t):
    """A manifest whose body was changed: fetched again."""
    r, image = pulled(t)
    r.stop()
    catalog(r, "UPDATE manifest SET body = CAST(replace(body, 'layers', 'lagers') AS BLOB) WHERE digest = ?", raw(image.digest))
    r.start()
    found_one(scrub(r), "manifest", image.digest)
    found = scrub(r, repair=True)
    equal((found["status"], found["repaired"]), (0, 1), str(found))
    clean(r)
    right(r, image)


def test_files(t):
    """Files that nobody refers to; a pack that was cut; a pack that is gone."""
    r, image = pulled(t)
    os.makedirs(os.path.dirname(original(r, "sha256:" + "ab" * 32)), exist_ok=True)
    for path in (original(r, "sha256:" + "ab" * 32), os.path.join(r.store, "packs", "00000000000000ff.pack")):
        with open(path, "wb") as file:
            file.write(b"nobody's")
    found = scrub(r)
    equal(sorted(f["fault"] for f in found["findings"]), ["stray", "stray"])
    equal(scrub(r, repair=True)["status"], 0)
    clean(r)
    r.stop()
    path = frame_of(r, image.layers[0].diff_id)[0]
    os.truncate(path, os.path.getsize(path) // 3)
    r.start()
    found = scrub(r)
    equal({f["fault"] for f in found["findings"]}, {"frame", "pack"})
    found = scrub(r, repair=True)
    equal((found["status"], found["repaired"] == found["bad"]), (0, True), str(found))
    clean(r)
    r.stop()
    os.unlink(path)
    r.start()
    found = scrub(r, repair=True)
    equal((found["status"], found["repaired"] == found["bad"] > 0), (0, True), str(found))
    clean(r)
    right(r, image)


# ---- running -----------------------------------------------------------------------------------------------------------------

def admin(r, method, path):
    return request(os.path.join(r.store, "admin.sock"), method, path)


def test_one_at_a_time(t):
    """A slow scrub: a second start is 409, a second command joins it, gc waits, TCP cannot start one, a stop ends it."""
    image = images.small_image(3, layers=3, size=2_000_000).push(t.up, REPO, "1")  # more than one step's worth
    r = t.recask("--maintenance-rate", "100KiB")
    r.pull(REPO, image, "1")
    r.wait_jobs()
    answer = admin(r, "POST", "/api/v1/scrub")
    equal(answer.status, 200)
    equal(admin(r, "POST", "/api/v1/scrub").status, 409)
    equal(admin(r, "POST", "/api/v1/gc").status, 409)
    equal(request(r.admin, "POST", "/api/v1/gc").status in (403, 404, 405), True)
    equal(admin(r, "GET", "/api/v1/gc").status, 405)
    equal(admin(r, "POST", "/api/v1/scrub?repair=yes").status, 400)
    now = request(r.admin, "GET", "/api/v1/maintenance").json()
    equal((now["running"]["task"], now["running"]["id"], now["rate_bytes_s"]), ("scrub", answer.json()["id"], 102400))
    equal(r.stats()["jobs"]["pending"], 0)  # periodic work is none that anybody waits for
    waiting = subprocess.Popen([recask_module.BINARY, "scrub", "--store", r.store], stderr=subprocess.PIPE, text=True)
    told = waiting.stderr.readline()
    equal("joining it" in told, True, told)
    waiting.send_signal(2)
    equal((waiting.wait(20), "goes on in the server" in waiting.stderr.read()), (1, True))
    waiting.stderr.close()
    equal(admin(r, "GET", "/api/v1/maintenance").json()["running"]["task"], "scrub")
    r.restart()
    equal(admin(r, "GET", "/api/v1/maintenance").json()["running"], None)


def test_schedule(t):
    """A short period: it begins by itself and repairs; what it found is remembered over a restart."""
    r, image = pulled(t, **{"--scrub-every": "1s"})
    flip_frame(r, image.layers[0].diff_id)
    until(lambda: r.stats()["maintenance"]["scrub"]["repaired"] == 1 or "store.scrub.repaired" in r.log(), "a repair",
          60)
    right(r, image)
    r.flags = ["--upstream", t.up.url, "--scrub-every", "300d"]
    r.restart()
    last = admin(r, "GET", "/api/v1/maintenance").json()
    equal((last["last"]["scrub"]["state"], last["last"]["scrub"]["id"], last["running"]), ("done", 0, None))
    equal(last["last"]["scrub"]["ended"] is not None and last["scrub_due"] is not None, True)


def test_while_in_use(t):
    """81: scrubs while four clients pull, evictions make room and garbage is collected: nothing is found."""
    size = 400_000
    all_images = [images.Image([images.tar_of([("own", images.noise(n, size)), ("s", images.noise(1000 + n // 3, size))])])
                  .push(t.up, f"q/{n}", "1") for n in range(24)]
    r = t.recask("--quota", "12MiB", "--maintenance-rate", "0")
    over = threading.Event()

    def client(seed):
        pick = random.Random(seed)
        while not over.is_set():
            n = pick.randrange(len(all_images))
            image = all_images[n]
            r.manifest(f"q/{n}", "1", pick.choice(["test", "docker/28.5.2"]))
            for layer in image.layers:
                equal(sha256(r.blob(f"q/{n}", layer.digest).body), layer.digest)

    clients = Clients()
    for seed in range(4):
        clients.run(client, seed)
    try:
        for _ in range(3 if under_sanitizer() else 8):
            clean(r)
            command(r, "gc")
    finally:
        over.set()
    clients.join()
    r.wait_jobs(timeout=120)
    equal(r.stats()["store"]["evictions"] > 0, True)
    clean(r)


if __name__ == "__main__":
    main()
