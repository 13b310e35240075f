#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pinned images stay while everything else comes and goes; removed ones go, and come back when they are asked for.

Cases 1, 81, 82, 98, 99.
"""
import json
import os
import sqlite3
import subprocess

import images
from golden_test import open_store
from mock import sha256
from recask import BINARY, request
from runner import equal, main

QUOTA = 8 << 20
DOCKER = "docker/28.5.2"


def run(*args, code=0):
    env = {k: v for k, v in os.environ.items() if not k.startswith("RECASK_")}
    done = subprocess.run([BINARY, *args], text=True, capture_output=True, check=False, timeout=120,
                          stdin=subprocess.DEVNULL, env={**env, "NO_COLOR": ""})
    equal(done.returncode, code, " ".join(args) + ": " + done.stdout + done.stderr)
    return done


def ask(r, *args):
    return json.loads(run(*args, "--json", "--store", r.store).stdout)


def push(t, repo, tag, seed, size=600_000, layers=2):
    return images.small_image(seed, layers=layers, size=size).push(t.up, repo, tag)


def pull(r, repo, reference, agent=DOCKER):
    """Whatever the manifest names, and all of it right."""
    answer = r.manifest(repo, reference, agent)
    equal((answer.status, sha256(answer.body)), (200, answer.h("Docker-Content-Digest")))
    for part in [answer.json()["config"], *answer.json()["layers"]]:
        blob = r.blob(repo, part["digest"])
        equal((blob.status, blob.complete, len(blob.body), sha256(blob.body)),
              (200, True, part["size"], part["digest"]), f"{repo}:{reference}")
    r.wait_jobs()
    return answer


def churn(t, r, seed, count=14):
    """Images that take more than the quota, one after the other."""
    before = r.stats()["store"]["evictions"]
    for n in range(seed, seed + count):
        push(t, f"churn/{n}", "1", n)
        pull(r, f"churn/{n}", "1")
    return r.stats()["store"]["evictions"] - before


def fetched(t, image):
    """How many of an image's blobs the upstream was asked for since the last forget()."""
    parts = [image.config_digest, *[x.digest for x in image.layers]]
    return len({digest for digest in parts for q in t.up.requests if digest in str(q)})


def stays(t, r, repo, reference, image, agent=DOCKER):
    t.up.forget()
    pull(r, repo, reference, agent)
    equal(fetched(t, image), 0, f"{repo}:{reference} was fetched again")


# ---- pins ---------------------------------------------------------------------------------------------------------------

def test_a_pinned_image_stays(t):
    """81: quota full twice over by others: a pinned image is not fetched again, also over a restart and a crash. Unpinned,
    it goes like any other."""
    image = push(t, "a/kept", "1", 1)
    r = t.recask("--quota", str(QUOTA))
    pull(r, "a/kept", "1")
    done = ask(r, "pin", "a/kept:1")
    equal({k: done[k] for k in ("ref", "digest", "pinned", "changed", "blobs", "missing_blobs", "unknown_manifests")},
          {"ref": f"{t.up.host}/a/kept:1", "digest": image.digest, "pinned": True, "changed": True, "blobs": 3,
           "missing_blobs": 0, "unknown_manifests": 0})
    equal(ask(r, "pin", "a/kept:1")["changed"], False)
    equal(churn(t, r, 100) > 5, True)
    stays(t, r, "a/kept", "1", image)
    stats = r.stats()["store"]
    equal(stats["pins"], 1)
    equal(900_000 < stats["pinned_bytes"] < 3_000_000, True, str(stats))
    r.restart()
    r.kill9()
    r.start()
    equal(churn(t, r, 200, 8) > 3, True)
    stays(t, r, "a/kept", "1", image)
    equal(ask(r, "unpin", "a/kept:1")["changed"], True)
    equal(churn(t, r, 400) > 5, True)
    t.up.forget()
    pull(r, "a/kept", "1")
    equal(fetched(t, image), 2)  # small ones, such as the config, stay longer
    equal(r.stats()["store"]["pins"], 0)


def test_a_pinned_digest(t):
    """81: who pulls by digest gets the upstream's own layers, and those of a digest that is pinned stay as well."""
    image = push(t, "a/kept", "1", 1)
    r = t.recask("--quota", str(QUOTA))
    pull(r, "a/kept", "1")
    equal(ask(r, "pin", image.digest)["ref"], image.digest)
    equal([p["ref"] for p in ask(r, "pin")["pins"]], [f"{t.up.host}/a/kept@{image.digest}"])
    equal(churn(t, r, 100) > 5, True)
    stays(t, r, "a/kept", image.digest, image)
    stays(t, r, "a/kept", "1", image)
    equal(ask(r, "unpin", f"a/kept@{image.digest}")["changed"], True)
    equal(ask(r, "pin")["pins"], [])


def test_never_rewritten(t):
    """81: an image that every client gets as the upstream has it is kept in that form."""
    image = images.small_image(7, layers=2, size=600_000, diff_ids=["sha256:" + "0" * 64] * 2)
    image.push(t.up, "a/kept", "1")
    r = t.recask("--quota", str(QUOTA))
    pull(r, "a/kept", "1")
    equal(ask(r, "inspect", "a/kept:1")["views"]["state"], "never")
    ask(r, "pin", "a/kept:1")
    equal(churn(t, r, 100) > 5, True)
    stays(t, r, "a/kept", "1", image)


def test_originals_for_all(t):
    """81: the same of clients that get no other view, with the originals kept."""
    image = push(t, "a/kept", "1", 1)
    r = t.recask("--quota", str(QUOTA), "--view", "original", "--originals", "keep")
    pull(r, "a/kept", "1")
    ask(r, "pin", "a/kept:1")
    equal(churn(t, r, 100) > 5, True)
    stays(t, r, "a/kept", "1", image)


def test_a_tag_moves(t):
    """98: a pin of a tag follows it; what the tag was goes, what it is stays."""
    old = push(t, "a/kept", "1", 1)
    r = t.recask("--quota", str(QUOTA), "--tag-ttl", "0s")
    pull(r, "a/kept", "1")
    ask(r, "pin", "a/kept:1")
    new = push(t, "a/kept", "1", 2)
    equal(ask(r, "pin")["pins"][0]["digest"], old.digest)
    pull(r, "a/kept", "1")
    pins = ask(r, "pin")["pins"]
    equal((len(pins), pins[0]["digest"], pins[0]["missing_blobs"]), (1, new.digest, 0))
    equal(churn(t, r, 100) > 5, True)
    stays(t, r, "a/kept", "1", new)
    t.up.forget()
    pull(r, "a/kept", old.digest)
    equal(fetched(t, old), 2)


def test_late_children(t):
    """81: an index is pinned when one of its platforms was pulled; the other one is kept from its first pull on."""
    one = push(t, "a/kept", None, 1)
    two = images.small_image(2, layers=2, size=600_000, arch="arm64").push(t.up, "a/kept")
    images.Index([one.descriptor(), two.descriptor()]).push(t.up, "a/kept", "multi")
    r = t.recask("--quota", str(QUOTA))
    equal(r.manifest("a/kept", "multi").status, 200)
    text = run("pin", "a/kept:multi", "--store", r.store).stdout
    assert "2 of its images have not been asked for yet" in text, text
    pull(r, "a/kept", one.digest)
    pull(r, "a/kept", two.digest)
    equal(ask(r, "pin")["pins"][0]["blobs"], 6)
    equal(churn(t, r, 100) > 5, True)
    t.up.forget()
    listed = r.manifest("a/kept", "multi", DOCKER).json()["manifests"]
    for child in listed:
        pull(r, "a/kept", child["digest"])
    equal((len(listed), fetched(t, one), fetched(t, two)), (2, 0, 0))


def test_pins_fill_the_quota(t):
    """81: nothing may go any more: what is asked for passes through, right, and the log says why, once."""
    kept = [push(t, f"a/{n}", "1", n, size=1_000_000) for n in range(3)]
    r = t.recask("--quota", str(QUOTA))
    for n in range(3):
        pull(r, f"a/{n}", "1")
        ask(r, "pin", f"a/{n}:1")
    churn(t, r, 100, 6)
    more = push(t, "b/big", "1", 50, size=3_000_000)
    for _ in range(2):
        t.up.forget()
        pull(r, "b/big", "1")
        equal(fetched(t, more) > 0, True)
    for n in range(3):
        stays(t, r, f"a/{n}", "1", kept[n])
    equal(r.log().count("ev=store.pins_fill_quota"), 1)
    for n in range(3):
        ask(r, "unpin", f"a/{n}:1")
    small = push(t, "b/small", "1", 60)
    pull(r, "b/small", "1")
    stays(t, r, "b/small", "1", small)


# ---- rm -----------------------------------------------------------------------------------------------------------------

def test_rm(t):
    """1, 82: what another image shares stays, all else is freed at once, and a pull brings it back."""
    shared = images.tar_of([("shared", images.noise(9, 400_000))])
    tars = [images.tar_of([("own", images.noise(n, 500_000))]) for n in (1, 2)]
    one, two = [images.Image([shared, tar]).push(t.up, f"a/{n}", "1") for n, tar in enumerate(tars)]
    r = t.recask()
    pull(r, "a/0", "1")
    pull(r, "a/1", "1")
    ask(r, "pin", "a/0:1")
    before = r.stats()["store"]
    gone = ask(r, "rm", "a/0:1")
    equal({k: gone[k] for k in ("ref", "digest", "unpinned", "shared_blobs", "busy_blobs", "layers")},
          {"ref": f"{t.up.host}/a/0:1", "digest": one.digest, "unpinned": True, "shared_blobs": 1, "busy_blobs": 0,
           "layers": 1})
    after = r.stats()["store"]
    equal(500_000 < gone["freed_bytes"] < 1_300_000, True, str(gone))
    equal(before["bytes_on_disk"] - after["bytes_on_disk"] > gone["freed_bytes"] - 300_000, True, f"{before} {after}")
    equal((after["tags"], after["pins"], after["canonical_layers"]), (1, 0, 2))
    stays(t, r, "a/1", "1", two)
    equal([i["tag"] + i["repository"] for i in ask(r, "ls")["images"]], ["1a/1"])
    assert "has not been pulled" in run("inspect", "a/0:1", "--store", r.store, code=1).stderr
    r.restart()
    equal(r.stats()["store"]["canonical_layers"], 2)
    t.up.forget()
    pull(r, "a/0", "1")
    equal(fetched(t, one), 2)  # the config and the layer of its own
    equal([i["repository"] for i in ask(r, "ls")["images"]], ["a/0", "a/1"])
    text = run("rm", f"{t.up.host}/a/0:1", "--store", r.store).stdout
    assert "is removed: " in text and "1 of its blobs stays" in text, text
    for agent in ("test", DOCKER):  # what was published once stays answerable
        pull(r, "a/0", one.digest, agent)


def test_rm_of_a_digest(t):
    """82: refused while a tag leads to it, with that tag's name."""
    one = push(t, "a/b", None, 1)
    images.Index([one.descriptor()]).push(t.up, "a/b", "multi")
    r = t.recask()
    equal(r.manifest("a/b", "multi").status, 200)
    pull(r, "a/b", one.digest)
    said = run("rm", one.digest, "--store", r.store, code=1).stderr
    assert f"belongs to {t.up.host}/a/b:multi; remove that tag instead" in said, said
    equal(ask(r, "rm", "a/b:multi")["layers"], 2)
    pull(r, "a/b", one.digest)
    gone = ask(r, "rm", one.digest)
    equal((gone["layers"], gone["shared_blobs"]), (2, 0))
    equal(r.files("originals"), {})


def test_gone_upstream(t):
    """99: the upstream has deleted the tag and recask is told to follow; what was pinned stays, and is pulled by digest."""
    image = push(t, "a/kept", "1", 1)
    r = t.recask("--quota", str(QUOTA), "--tag-ttl", "0s", "--on-upstream-404", "drop")
    pull(r, "a/kept", "1")
    ask(r, "pin", "a/kept:1")
    t.up.knob(t.up.manifest_path("a/kept", "1"), status=404)
    equal(r.manifest("a/kept", "1").status, 404)
    equal(ask(r, "ls")["images"], [])
    equal(churn(t, r, 100) > 5, True)
    equal(ask(r, "pin")["pins"][0]["missing_blobs"], 0)
    equal(ask(r, "unpin", "a/kept:1")["changed"], True)
    equal(image.digest in str(ask(r, "pin")), False)


# ---- a store of an earlier version --------------------------------------------------------------------------------------

def schema_of(r):
    with sqlite3.connect(os.path.join(r.store, "catalog.db")) as db:
        rows = db.execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall()
    db.close()
    return dict(rows)


def test_version_1(t):
    """A catalog of version 1 becomes what a new one is, and images in it can be pinned."""
    r = open_store(t, "store-v1")
    ref = next(i["ref"] for i in ask(r, "ls")["images"] if not i["index"])
    done = ask(r, "pin", ref)
    equal((done["changed"], done["missing_blobs"]), (True, 0))
    layer = ask(r, "inspect", ref)["layers"][0]["canonical"]["digest"]
    path = f"/api/v1/test/evict?digest={layer}"
    answer = request(os.path.join(r.store, "admin.sock"), "POST", path)
    equal((answer.status, answer.json()["error"]["message"]), (409, f'{layer} is pinned ("recask pin" lists the pins)'))
    equal(ask(r, "unpin", ref)["changed"], True)
    r.evict(layer)
    r.stop()
    new = t.recask()
    new.stop()
    migrated, made = schema_of(r), schema_of(new)
    equal(set(migrated), set(made))
    for name, sql in made.items():
        equal(migrated[name], sql, name)


# ---- what people see ----------------------------------------------------------------------------------------------------

def test_texts(t):
    image = push(t, "library/one", "1", 1, size=200_000)
    r = t.recask(upstreams=["docker.io=" + t.up.url])
    equal(len(run("pin", "--store", r.store).stdout.splitlines()), 1)
    equal(r.manifest("library/one", "1").status, 200)
    text = run("pin", "one:1", "--store", r.store).stdout
    assert text.startswith(f"docker.io/library/one:1 is pinned ({image.digest})\n"), text
    assert "3 of its 3 blobs are not in the store: they come at the next pull" in text, text
    pull(r, "library/one", "1")
    equal(run("pin", "docker.io/library/one:1", "--store", r.store).stdout,
          f"docker.io/library/one:1 was pinned already ({image.digest})\n")
    table = run("pin", "--store", r.store).stdout.splitlines()
    equal(table[1].split()[:2] + table[1].split()[-2:], ["docker.io/library/one:1", image.digest[7:19], "3", "0"])
    line = next(x for x in run("ls", "--store", r.store).stdout.splitlines() if "one:1" in x)
    assert " yes " in line, line
    equal(ask(r, "ls")["images"][0]["pinned"], True)
    equal(ask(r, "inspect", "one:1")["pinned"], True)
    text = run("inspect", "one:1", "--store", r.store).stdout
    assert "pinned     yes" in text or "pinned" in text and "yes" in text, text
    assert "1, which keep" in run("stats", "--store", r.store).stdout
    equal(run("unpin", "one:1", "--store", r.store).stdout,
          f"docker.io/library/one:1 is not pinned any more ({image.digest})\n")
    equal(run("unpin", "one:1", "--store", r.store).stdout, f"docker.io/library/one:1 was not pinned ({image.digest})\n")
    equal(ask(r, "ls")["images"][0]["pinned"], False)
    r.stop()
    r.flags = ["--upstream", t.up.url, "--known-upstreams", "off"]  # what came from elsewhere goes by its full name
    r.start()
    equal(ask(r, "pin", "docker.io/library/one:1")["ref"], "docker.io/library/one:1")
    equal(ask(r, "rm", "docker.io/library/one:1")["unpinned"], True)


def test_errors(t):
    r = t.recask(upstreams=["docker.io=" + t.up.url])
    for command in ("pin", "unpin", "rm"):
        for ref in ("one:2", "docker.io/library/one:2"):
            said = run(command, ref, "--store", r.store, code=1).stderr
            assert "docker.io/library/one:2 is not in this store: pull it through recask first" in said, said
        nobody = "sha256:" + "0" * 64
        assert f"{nobody} is not in this store" in run(command, nobody, "--store", r.store, code=1).stderr
        assert "is not a repository's name" in run(command, "ONE", "--store", r.store, code=2).stderr
        assert "name is empty" in run(command, "", "--store", r.store, code=2).stderr
        assert "no recask is running" in run(command, "one", "--store", t.directory, code=1).stderr
    for command in ("unpin", "rm"):
        assert f"recask {command} REF" in run(command, code=2).stderr
    sock = os.path.join(r.store, "admin.sock")
    for path in ("pin", "unpin", "rm"):
        answer = request(r.admin, "POST", f"/api/v1/{path}?ref=one:1")  # A1
        equal((answer.status, answer.json()["error"]["code"]), (403, "forbidden"))
        equal(request(sock, "GET", f"/api/v1/{path}?ref=one:1").h("Allow"), "POST")
        equal(request(sock, "POST", f"/api/v1/{path}").status, 400)
        equal(request(sock, "POST", f"/api/v1/{path}?ref=").status, 400)
        equal(request(sock, "POST", f"/api/v1/{path}?ref=one%3A1").status, 404)
    equal(request(r.admin, "GET", "/api/v1/pins").json(), {"pins": []})


if __name__ == "__main__":
    main()
