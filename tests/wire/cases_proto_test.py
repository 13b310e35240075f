#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rows of the case list about manifests, digests and encodings, where no other file has them. CASES.md lists all."""
import json
import struct
import threading
import time

import images
from mock import sha256
from recask import ACCEPT_ALL, under_sanitizer
from runner import Clients, equal, main, until

REPO = "team/app"
DOCKER28 = "docker/28.5.2 go/go1.24 git-commit/x kernel/6.1 os/linux arch/amd64 UpstreamClient(Docker-Client/28.5.2)"
DOCKER20 = "docker/20.10.24+dfsg1 go/go1.19 git-commit/x kernel/6.1 os/linux arch/amd64 UpstreamClient(x)"
PODMAN5 = "containers/5.36.1 (github.com/containers/image)"
CONTAINERD2 = "containerd/v2.1.4"
ZSTD_ANNOTATION = "io.github.containers.compression.zstd"
MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}


def pulled(t, image, tag="1", flags=()):
    """recask with an image pulled and its views made."""
    image.push(t.up, REPO, tag)
    r = t.processes[-1] if t.processes else t.recask(*flags)
    r.pull(REPO, image, tag)
    r.wait_jobs()
    return r


def whole_manifest(answer):
    """The answer agrees with itself. Returns its body's digest."""
    equal((answer.status, answer.complete), (200, True))
    equal((answer.h("Content-Length"), answer.h("Docker-Content-Digest")), (str(len(answer.body)), sha256(answer.body)))
    return sha256(answer.body)


# ---- manifests under load and under change ---------------------------------------------------------------------------

def test_hits_while_the_tag_moves(t):
    """Case 16: a thousand answers while a tag moves; each is one of its manifests, whole, with that one's headers."""
    made = [images.small_image(n, layers=1, size=20_000, kind="docker" if n % 2 else "oci",
                               annotations={"x": "y" * (n * 3000)}).push(t.up, REPO) for n in range(6)]
    made[0].push(t.up, REPO, "1")
    want = {x.digest: x for x in made}
    r = t.recask("--tag-ttl", "0s")
    r.manifest(REPO, "1")
    stop = threading.Event()
    seen = set()

    def move():
        n = 0
        while not stop.wait(0.05):
            n += 1
            made[n % len(made)].push(t.up, REPO, "1")

    def ask():
        for n in range(25):
            answer = r.manifest(REPO, "1", accept=f"{images.OCI_MANIFEST}, {images.DOCKER_MANIFEST}",
                                **({"Range": "bytes=0-99"} if n % 5 == 0 else {}))
            digest = whole_manifest(answer)
            equal((answer.body, answer.h("Content-Type")), (want[digest].body, want[digest].media_type))
            seen.add(digest)

    mover, clients = Clients(), Clients()
    mover.run(move)
    for _ in range(10 if under_sanitizer() else 40):
        clients.run(ask)
    clients.join()
    stop.set()
    mover.join()
    equal(len(seen) > 1, True, "the tag moved")
    for image in made:
        equal(r.manifest(REPO, image.digest).body, image.body)


def test_manifest_waits_for_nothing_else(t):
    """Case 43: a cold tag is one look-up upstream, even when its children and its blobs hang. (docker 20.10 alone needs
    to know the children: it cannot read the layers of some.)"""
    amd, arm = images.small_image(1).push(t.up, REPO), images.small_image(2, arch="arm64").push(t.up, REPO)
    index = images.Index([amd.descriptor(), arm.descriptor()]).push(t.up, REPO, "1")
    for child in (amd, arm):
        for digest in (child.config_digest, *[x.digest for x in child.layers]):
            t.up.knob(t.up.blob_path(REPO, digest), delay=30)
    for agent in (DOCKER20, "curl/7", DOCKER28):
        r = t.recask()
        t.up.forget()
        began = time.monotonic()
        for method in ("HEAD", "GET"):
            equal(r.manifest(REPO, "1", agent, method).h("Docker-Content-Digest"), index.digest)
        equal(time.monotonic() - began < 10, True)
        equal(t.up.count("GET", t.up.manifest_path(REPO, "1")), 1)
        t.up.knob(t.up.manifest_path(REPO, amd.digest), delay=30)


def test_unchanged_tag_costs_no_blob(t):
    """Case 40: what clients get has another digest than upstream's; a tag that stands still is still known to."""
    image = images.small_image()
    r = pulled(t, image, flags=("--tag-ttl", "1s"))
    time.sleep(1.2)
    t.up.forget()
    for agent in (DOCKER28, DOCKER20, CONTAINERD2, "curl/7"):
        answer = r.manifest(REPO, "1", agent)
        whole_manifest(answer)
        for layer in answer.json()["layers"]:
            equal(sha256(r.blob(REPO, layer["digest"]).body), layer["digest"])
        equal(answer.h("X-Recask-Upstream-Digest"), image.digest)
    r.wait_jobs()
    manifests = [t.up.manifest_path(REPO, x) for x in ("1", image.digest)]
    content = [x for x in t.up.seen("GET") if "/blobs/" in x.path or x.path in manifests]
    equal((content, t.up.count("HEAD", t.up.manifest_path(REPO, "1")) >= 1), ([], True), str(t.up.seen()))


# ---- nobody writes ---------------------------------------------------------------------------------------------------

def counts(r):
    """What is in the store; the disk's blocks may come and go a moment later."""
    return {k: v for k, v in r.stats()["store"].items() if k != "bytes_on_disk"}


def test_no_way_in(t):
    """Case 65: nothing that a client sends gets into the store, whoever it says it is."""
    image = images.small_image().push(t.up, REPO, "1")
    r = t.recask()
    r.pull(REPO, image, "1")
    r.wait_jobs()
    before = counts(r)
    t.up.forget()
    poison = images.small_image(2)
    digest = poison.layers[0].digest
    for who in ({}, {"Authorization": "Basic cm9ib3QkcHJveHk6cHc="}, {"Authorization": "Bearer admin"}):
        for method, path, body in (
                ("PUT", "manifests/1", poison.body), ("PUT", f"manifests/{poison.digest}", poison.body),
                ("POST", "blobs/uploads/", b""), ("POST", f"blobs/uploads/?digest={digest}", b"x"),
                ("POST", f"blobs/uploads/?mount={digest}&from=a/b", b""), ("PATCH", "blobs/uploads/1", b"x"),
                ("PUT", f"blobs/uploads/1?digest={digest}", b"x"), ("PUT", f"blobs/{digest}", b"x"),
                ("DELETE", f"blobs/{image.layers[0].digest}", b""), ("DELETE", f"manifests/{image.digest}", b""),
                ("DELETE", "manifests/1", b"")):
            target = f"/v2/{REPO}/{path}"
            stream = r.open(method, target, {"Content-Length": str(len(body)), **who})
            try:
                stream.sock.sendall(body)
            except OSError:
                pass  # refused before the body
            equal(stream.rest().status in (405, 413), True, f"{method} {target}")
    equal(t.up.requests, [], "sent on to the upstream")
    equal(counts(r), before)
    equal(r.manifest(REPO, "1").body, image.body)
    equal(r.manifest(REPO, poison.digest).status, 404)
    equal(r.blob(REPO, digest).status, 404)
    equal(r.blob(REPO, image.layers[0].digest).body == image.layers[0].blob, True)


# ---- encodings -------------------------------------------------------------------------------------------------------

def test_upstream_compresses_in_transit(t):
    """Case 84: the digest is over the plain bytes, so those are stored and served, without upstream's encoding."""
    for coding in ("gzip", "zstd"):
        image = images.small_image(coding, layers=1).push(t.up, REPO, coding)
        layer = image.layers[0]
        pack = {"gzip": images.gzip, "zstd": images.zstd}[coding]
        parts = ((t.up.manifest_path(REPO, coding), image.body), (t.up.manifest_path(REPO, image.digest), image.body),
                 (t.up.blob_path(REPO, image.config_digest), image.config),
                 (t.up.blob_path(REPO, layer.digest), layer.blob))
        for path, body in parts:
            t.up.knob(path, body=pack(body), headers={"Content-Encoding": coding}, methods={"GET"})
            t.up.knob(path, methods={"HEAD"}, headers={"Content-Encoding": coding, "Content-Length": "17"})
        r = t.processes[0] if t.processes else t.recask()
        for _ in range(2):
            for path, body in parts:
                answer = r.get(path, {"Accept": ACCEPT_ALL})
                equal((answer.status, answer.complete, answer.body == body), (200, True, True), f"{coding} {path}")
                equal((answer.h("Content-Encoding"), answer.h("Docker-Content-Digest")), (None, sha256(body)), path)
            r.wait_jobs()
        for path, body in parts:
            head = r.head(path, {"Accept": ACCEPT_ALL})
            equal((head.h("Content-Length"), head.h("Content-Encoding")), (str(len(body)), None), path)
    # A broken one is an error, and nothing of it stays.
    image = images.small_image("broken").push(t.up, REPO, "broken")
    path = t.up.manifest_path(REPO, "broken")
    t.up.knob(path, body=images.gzip(image.body)[:-10], headers={"Content-Encoding": "gzip"}, times=1, methods={"GET"})
    equal(r.get(path, {"Accept": ACCEPT_ALL}).status >= 400, True)
    equal(r.get(path, {"Accept": ACCEPT_ALL}).body, image.body)


def check_layers(r, value, plain):
    """Media type, bytes and digest of each layer of a manifest agree."""
    for layer, want in zip(value["layers"], plain, strict=True):
        kind = layer["mediaType"].rpartition("tar")[2].strip("+.")
        body = r.blob(REPO, layer["digest"]).body
        equal((sha256(body), len(body)), (layer["digest"], layer["size"]))
        for name, magic in MAGIC.items():
            equal(body.startswith(magic), kind == name, f"{layer['mediaType']} begins with {body[:4].hex()}")
        opened = {"gzip": images.gunzip_one, "zstd": lambda b, n=len(want): images.unzstd(b, n), "": bytes}[kind](body)
        equal(opened == want, True, layer["mediaType"])


def test_media_types_tell_the_truth(t):
    """Case 88: each layer of each view begins as its media type says."""
    for n, (kind, how) in enumerate((("oci", "gzip"), ("oci", "zstd"), ("oci", "none"), ("docker", "gzip"),
                                     ("docker", "none"))):
        image = images.small_image(n, kind=kind, how=how)
        r = pulled(t, image, str(n))
        for agent in (DOCKER28, DOCKER20, CONTAINERD2, PODMAN5, "curl/7"):
            answer = r.manifest(REPO, str(n), agent)
            whole_manifest(answer)
            check_layers(r, answer.json(), [x.tar for x in image.layers])


def test_upstreams_media_type_lies(t):
    """Case 88: an upstream that calls gzip bytes a plain tar: no view of recask's own repeats that."""
    image = images.small_image()
    layers = [{**x, "mediaType": images.OCI_LAYER} for x in image.value["layers"]]
    body = images.to_json({**image.value, "layers": layers})
    image.push(t.up, REPO)
    t.up.add_manifest(REPO, body, images.OCI_MANIFEST, "1")
    r = t.recask()
    equal(r.manifest(REPO, "1", DOCKER28).body, body)
    for layer in image.layers:
        equal(r.blob(REPO, layer.digest).body == layer.blob, True)
    r.wait_jobs()
    for agent in (DOCKER28, DOCKER20, PODMAN5, "curl/7"):
        answer = r.manifest(REPO, "1", agent)
        whole_manifest(answer)
        if answer.body != body:
            check_layers(r, answer.json(), [x.tar for x in image.layers])


def test_layers_with_a_table_of_contents(t):
    """Case 97: zstd:chunked has its table in frames that decoders skip, eStargz in a gzip member of its own; both come
    back bit by bit, and so does the end of each, which is what their clients read first."""
    tar = images.tar_of([(f"f{i}", images.text(i, 40_000)) for i in range(6)])
    table = images.noise("table", 500)
    skipped = struct.pack("<II", 0x184D2A50, len(table)) + table
    chunked = b"".join(images.zstd(tar[at:at + 50_000]) for at in range(0, len(tar), 50_000)) + skipped
    stargz = b"".join(images.gzip(tar[at:at + 50_000]) for at in range(0, len(tar), 50_000)) + images.gzip(b"")
    base = images.small_image(layers=1).push(t.up, REPO)
    r = t.recask()
    for tag, blob, how, note in (
            ("chunked", chunked, "zstd", {"io.github.containers.zstd-chunked.manifest-checksum": sha256(table)}),
            ("stargz", stargz, "gzip", {"containerd.io/snapshot/stargz/toc.digest": sha256(table)})):
        digest = t.up.add_blob(REPO, blob)
        layer = {"mediaType": f"{images.OCI_LAYER}+{how}", "digest": digest, "size": len(blob), "annotations": note}
        body = images.to_json({**base.value, "layers": [layer]})
        t.up.add_manifest(REPO, body, images.OCI_MANIFEST, tag)
        for _ in range(2):
            for agent in (PODMAN5, CONTAINERD2, DOCKER28):
                equal(r.manifest(REPO, tag, agent).body, body)
            equal(r.blob(REPO, base.config_digest).body, base.config)
            equal(r.blob(REPO, digest, {"Accept-Encoding": "zstd, gzip"}).body == blob, True, tag)
            r.wait_jobs()
            tail = r.blob(REPO, digest, {"Range": f"bytes={len(blob) - 600}-"})
            equal((tail.status, tail.body == blob[-600:]), (206, True), tag)


# ---- indexes ---------------------------------------------------------------------------------------------------------

def attested(t, tag=None):
    """An index of one image and an attestation of in-toto layers that speaks of it."""
    image = images.small_image("attested").push(t.up, REPO)
    layers = [(b'{"_type":"s"}', "application/vnd.in-toto+json")]
    note, digest = images.artifact(t.up, REPO, pretty=False, layers=layers)
    about = {"vnd.docker.reference.digest": image.digest, "vnd.docker.reference.type": "attestation-manifest"}
    index = images.Index([image.descriptor(), {
        "mediaType": images.OCI_MANIFEST, "digest": digest, "size": len(note), "annotations": about,
        "platform": {"architecture": "unknown", "os": "unknown"}}])
    return index.push(t.up, REPO, tag), image, note, digest


def test_attestations(t):
    """Cases 92, 93: pulled by digest alone, attestations and all; views are made without an error, originals stay."""
    index, image, note, note_digest = attested(t)
    r = t.recask()
    for _ in range(2):
        for agent in (DOCKER28, PODMAN5, "curl/7"):
            for digest, body in ((index.digest, index.body), (image.digest, image.body), (note_digest, note)):
                answer = r.manifest(REPO, digest, agent)
                equal((answer.body == body, answer.h("X-Recask-View")), (True, "original"))
            for layer in json.loads(note)["layers"]:
                equal(r.blob(REPO, layer["digest"]).body, b'{"_type":"s"}')
        for layer in image.layers:
            equal(r.blob(REPO, layer.digest).body == layer.blob, True)
        equal(r.blob(REPO, image.config_digest).body, image.config)
        r.wait_jobs()
    equal([x for x in r.log().splitlines() if "lvl=warn" in x or "lvl=err" in x], [])


def test_zstd_children_are_marked(t):
    """Case 104: clients of containers/image pick by an annotation; it is on what recask makes, and on nothing else."""
    index, image, _, _ = attested(t, "1")
    r = t.recask()
    r.manifest(REPO, "1")
    r.pull(REPO, image)
    r.wait_jobs()

    def has_zstd():
        return r.manifest(REPO, "1", PODMAN5).h("X-Recask-View") == "zstd"

    until(has_zstd, "a zstd view of the index")
    value = r.manifest(REPO, "1", PODMAN5).json()
    equal(value["manifests"][0]["annotations"], {ZSTD_ANNOTATION: "true"})
    equal(ZSTD_ANNOTATION in value["manifests"][1]["annotations"], False)
    for reference in ("1", index.digest):
        equal(r.manifest(REPO, reference, "skopeo/1.18").body, index.body)
    equal(ZSTD_ANNOTATION.encode() in r.manifest(REPO, "1", DOCKER20).body, False)


if __name__ == "__main__":
    main()
