#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Views of images and encodings of layers: who gets what, and that every digest names its bytes."""
import json
import time

import images
from mock import sha256
from recask import ACCEPT_ALL
from runner import equal, main

REPO = "team/app"
DOCKER28 = "docker/28.5.2 go/go1.24 git-commit/x kernel/6.1 os/linux arch/amd64 UpstreamClient(Docker-Client/28.5.2)"
DOCKER20 = "docker/20.10.24+dfsg1 go/go1.19 git-commit/x kernel/6.1 os/linux arch/amd64 UpstreamClient(x)"
CONTAINERD2 = "containerd/v2.1.4"
CONTAINERD2_ENCODINGS = "zstd;q=1.0, gzip;q=0.8, deflate;q=0.5"

ZSTD_TYPE = images.OCI_LAYER + "+zstd"


def made(t, image, tag="1", repo=REPO, flags=()):
    """recask with the image pulled and its views made."""
    image.push(t.up, repo, tag)
    r = t.processes[-1] if t.processes else t.recask(*flags)
    equal(r.pull(repo, image, tag).body, image.body)
    r.wait_jobs()
    return r


def view(r, reference="1", agent="test", wish=None, repo=REPO, method="GET", accept=ACCEPT_ALL):
    headers = {"Recask-View": wish} if wish else {}
    answer = r.manifest(repo, reference, agent, method, accept, **headers)
    equal((answer.status, answer.complete), (200, True))
    if method == "GET":
        equal(answer.h("Docker-Content-Digest"), sha256(answer.body))
    return answer


def decode(answer, size):
    """The body without its Content-Encoding."""
    coding = answer.h("Content-Encoding")
    if coding == "gzip":
        return images.gunzip_one(answer.body)
    if coding == "zstd":
        return images.unzstd(answer.body, size)
    equal(coding, None)
    return answer.body


def check_zstd_layers(r, value, image, repo=REPO):
    """Every layer of a zstd view: its digest, its size, its bytes."""
    equal(len(value["layers"]), len(image.layers))
    for found, layer in zip(value["layers"], image.layers):
        equal(found["mediaType"], ZSTD_TYPE)
        answer = r.blob(repo, found["digest"], {"Accept-Encoding": CONTAINERD2_ENCODINGS, "Accept": ZSTD_TYPE + ", */*"})
        equal((answer.status, answer.complete, answer.h("Content-Encoding")), (200, True, None))
        equal((sha256(answer.body), len(answer.body)), (found["digest"], found["size"]))
        equal(answer.body[:4], b"\x28\xb5\x2f\xfd")
        equal(images.unzstd(answer.body, len(layer.tar)) == layer.tar, True)


def check_canonical_layers(r, image, repo=REPO):
    for layer in image.layers:
        answer = r.blob(repo, layer.diff_id)
        equal((answer.status, answer.complete, answer.body == layer.tar), (200, True, True))


# ---- which view ---------------------------------------------------------------------------------------------------------

def test_clients(t):
    """design 2 and the table in oci/client.c, over the wire; 23, 98: HEAD and GET agree."""
    image = images.small_image(kind="docker")
    r = made(t, image)
    rows = (
        (DOCKER28, "zstd"), ("docker/24.0.7 go/go1.20 os/linux arch/amd64", "zstd"),
        ("docker/29.1.0 go/go1.25 containerd-client/2.1.5 storage-driver/overlayfs UpstreamClient(x)", "zstd"),
        (DOCKER20, "canonical"), ("docker/18.09.1 go/go1.11", "canonical"),
        (CONTAINERD2, "zstd"), ("containerd/1.6.20~ds1", "zstd"), ("containerd/1.7.24+unknown", "zstd"),
        ("containerd/v1.4.13", "canonical"), ("containers/5.36.1 (github.com/containers/image)", "zstd"),
        ("cri-o/1.36.3 go/go1.24 os/linux arch/amd64", "zstd"), ("skopeo/1.22.2", "original"),
        ("Buildah/1.44.0", "original"), ("buildkit/v0.32", "original"), ("crane/v0.20.0 go-containerregistry/v0.20", "original"),
        ("cosign/v3.0.0 (linux; amd64) go-containerregistry/v0.20", "original"), ("oras/1.3.0", "original"),
        ("Helm/3.18.0", "original"), ("Go-http-client/1.1", "original"), ("curl/7.88.1", "original"), ("", "original"),
    )
    for agent, want in rows:
        answer = view(r, agent=agent)
        equal(answer.h("X-Recask-View"), want, agent)
        equal(answer.h("X-Recask-Upstream-Digest"), image.digest)
        head = view(r, agent=agent, method="HEAD")
        for name in ("Content-Type", "Content-Length", "Docker-Content-Digest", "X-Recask-View", "Vary"):
            equal(head.h(name), answer.h(name), name)
        equal({"User-Agent", "Accept", "Recask-View"} <= {v.strip() for v in answer.h("Vary").split(",")}, True)
        again = r.manifest(REPO, answer.h("Docker-Content-Digest"), agent="whoever/1")
        equal((again.body, again.h("Content-Type")), (answer.body, answer.h("Content-Type")))


def test_wishes(t):
    image = images.small_image()
    r = made(t, image)
    for wish in ("original", "canonical", "zstd"):
        for agent in ("curl/7", "skopeo/1.9", DOCKER28, CONTAINERD2):
            equal(view(r, agent=agent, wish=wish).h("X-Recask-View"), wish)
    equal(view(r, agent=DOCKER20, wish="zstd").h("X-Recask-View"), "canonical")
    equal(view(r, agent="curl/7", wish="nonsense").h("X-Recask-View"), "original")
    equal(view(r, agent="curl/7", wish="auto").h("X-Recask-View"), "original")
    # By digest there is nothing to choose.
    equal(view(r, image.digest, DOCKER28, "zstd").body, image.body)
    # Never a type that Accept lacks.
    docker_only = ", ".join([images.DOCKER_MANIFEST, images.DOCKER_LIST])
    docker = images.small_image(3, kind="docker")
    made(t, docker, "2")
    answer = view(r, "2", DOCKER28, accept=docker_only)
    equal((answer.h("X-Recask-View"), answer.h("Content-Type")), ("canonical", images.DOCKER_MANIFEST))


def test_configured_view(t):
    image = images.small_image()
    r = made(t, image, flags=("--view", "original"))
    equal(view(r, agent=DOCKER28).body, image.body)
    equal(view(r, agent=DOCKER28, wish="canonical").h("X-Recask-View"), "canonical")
    r.stop()
    r.flags[-1] = "canonical"
    r.start()
    equal(view(r, agent="curl/7").h("X-Recask-View"), "canonical")
    equal(view(r, agent=DOCKER28).h("X-Recask-View"), "canonical")


def test_original_first(t):
    """Nobody waits for a view that is not there yet."""
    image = images.small_image().push(t.up, REPO, "1")
    r = t.recask()
    for layer in image.layers:
        t.up.knob(t.up.blob_path(REPO, layer.digest), delay=2)
    began = time.monotonic()
    answer = view(r, agent=DOCKER28)
    equal((answer.h("X-Recask-View"), answer.body == image.body, time.monotonic() - began < 1.5), ("original", True, True))
    r.pull(REPO, image, "1", DOCKER28)
    r.wait_jobs()
    equal(view(r, agent=DOCKER28).h("X-Recask-View"), "zstd")


# ---- the views ----------------------------------------------------------------------------------------------------------

def test_canonical_view(t):
    for kind in ("oci", "docker"):
        for how in ("gzip", "none") if kind == "docker" else ("gzip", "zstd", "none"):
            image = images.small_image(f"{kind}{how}", kind=kind, how=how)
            r = made(t, image, f"{kind}-{how}")
            answer = view(r, f"{kind}-{how}", wish="canonical")
            equal(json.loads(answer.body), image.canonical_value())
            equal(answer.h("Content-Type"), image.media_type)
            if how == "none":  # nothing to change: upstream's own bytes
                equal(answer.body, image.body)
            check_canonical_layers(r, image)
            equal(r.blob(REPO, image.config_digest).body, image.config)


def test_zstd_view(t):
    """87: always an OCI manifest; never schema 2 with zstd."""
    for kind in ("oci", "docker"):
        image = images.small_image(kind, kind=kind)
        r = made(t, image, kind)
        answer = view(r, kind, wish="zstd")
        value = json.loads(answer.body)
        equal((answer.h("Content-Type"), value["mediaType"]), (images.OCI_MANIFEST, images.OCI_MANIFEST))
        equal(value["config"], {"mediaType": images.OCI_CONFIG, "digest": image.config_digest, "size": len(image.config)})
        equal("vnd.docker" in answer.body.decode(), False)
        check_zstd_layers(r, value, image)
        found = value["layers"][0]
        path = t.up.blob_path(REPO, found["digest"])
        equal(r.head(path).h("Content-Length"), str(found["size"]))
        part = r.get(path, {"Range": "bytes=100-199"})
        equal((part.status, part.body), (206, r.get(path).body[100:200]))


def test_same_on_every_instance(t):
    """The canonical view is a pure function of upstream's manifest."""
    image = images.small_image()
    one = made(t, image)
    other = t.recask("--zstd-level", "9")
    other.pull(REPO, image, "1")
    other.wait_jobs()
    equal(view(one, wish="canonical").body, view(other, wish="canonical").body)
    one.restart()
    equal(view(one, wish="canonical").body, view(other, wish="canonical").body)


def test_encodings(t):
    """design 2, 83, 85: identity, gzip and zstd of one canonical layer."""
    image = images.small_image(layers=1, size=500_000)
    r = made(t, image)
    layer = image.layers[0]
    path = t.up.blob_path(REPO, layer.diff_id)
    etags = {}
    for asked, want in ((None, None), ("identity", None), ("gzip", "gzip"), ("zstd", "zstd"), ("gzip, zstd", "zstd"),
                        (CONTAINERD2_ENCODINGS, "zstd"), ("zstd, gzip, deflate", "zstd"), ("deflate", None), ("*", None),
                        ("x-gzip", None), ("gzip;q=0", None), ("zstd;q=0, gzip;q=0.1", "gzip"), ("GZIP", "gzip"),
                        ("br, gzip;q=0.5", "gzip"), ("", None)):
        answer = r.get(path, {"Accept-Encoding": asked} if asked is not None else {})
        equal((answer.status, answer.complete, answer.h("Content-Encoding")), (200, True, want), str(asked))
        equal(decode(answer, len(layer.tar)) == layer.tar, True, str(asked))
        equal(answer.h("Docker-Content-Digest"), layer.diff_id)
        equal("Accept-Encoding" in (answer.h("Vary") or ""), True, "Vary")
        etags.setdefault(want, set()).add(answer.h("ETag"))
        if want is None:
            equal(answer.h("Content-Length"), str(len(layer.tar)))
        else:
            equal(len(answer.body) < len(layer.tar), True)
            equal(answer.h("Content-Length") is not None or answer.h("Transfer-Encoding") == "chunked", True)
    equal((len(etags), len(set.union(*etags.values()))), (3, 3))
    for asked in (None, "gzip", CONTAINERD2_ENCODINGS):
        more = {"Accept-Encoding": asked} if asked else {}
        part = r.get(path, {"Range": "bytes=1000-1999", **more})
        equal((part.status, part.h("Content-Encoding"), part.body == layer.tar[1000:2000]), (206, None, True))
        equal(r.get(path, {"Range": "bytes=0-", **more}).body == layer.tar, True)
        head = r.head(path, more)
        equal((head.status, head.h("Content-Encoding"), head.h("Content-Length")), (200, None, str(len(layer.tar))))


def test_two_accept_encoding_lines(t):
    image = images.small_image(layers=1)
    r = made(t, image)
    answer = r.get(t.up.blob_path(REPO, image.layers[0].diff_id), {"Accept-Encoding": ["deflate", "gzip;q=0.2"]})
    equal(answer.h("Content-Encoding"), "gzip")


def test_layer_types_in_accept(t):
    """A request that names exactly a compressed layer type gets that form, as its own Content-Type."""
    image = images.small_image(layers=1)
    r = made(t, image)
    layer = image.layers[0]
    path = t.up.blob_path(REPO, layer.diff_id)
    for named, opened in ((images.OCI_LAYER + "+gzip", images.gunzip_one),
                          (images.DOCKER_LAYER + ".gzip", images.gunzip_one),
                          (ZSTD_TYPE, lambda b: images.unzstd(b, len(layer.tar)))):
        for method in ("GET", "HEAD"):
            answer = r.open(method, path, {"Accept": named}).rest()
            equal((answer.status, answer.h("Content-Type"), answer.h("Content-Encoding")), (200, named, None))
            if method == "GET":
                equal(opened(answer.body) == layer.tar, True)
        for accept in (named + ", */*", "*/*", images.OCI_LAYER):
            answer = r.get(path, {"Accept": accept})
            equal((answer.status, answer.body == layer.tar), (200, True), accept)


def test_compressed_digests_are_never_encoded(t):
    """83, 88: a digest over gzip bytes gets those bytes, whatever is asked."""
    image = images.small_image(layers=1)
    r = made(t, image)
    layer = image.layers[0]
    for asked in ("gzip", "zstd, gzip", CONTAINERD2_ENCODINGS, None):
        answer = r.blob(REPO, layer.digest, {"Accept-Encoding": asked} if asked else {})
        equal((answer.h("Content-Encoding"), answer.body == layer.blob), (None, True))


def test_raw_blobs_get_encodings_too(t):
    """A blob whose digest is over plain bytes needs no view."""
    raw = images.text("model", 2_000_000)
    _, digest = images.artifact(t.up, REPO, "1", layers=[(raw, "application/vnd.test.model.weights")])
    r = t.recask()
    blob = sha256(raw)
    equal(r.blob(REPO, blob, {"Accept-Encoding": "gzip"}).h("Content-Encoding"), None)  # cold: as it comes
    r.wait_jobs()
    for asked in (None, "gzip", "zstd"):
        answer = r.blob(REPO, blob, {"Accept-Encoding": asked} if asked else {})
        equal((answer.h("Content-Encoding"), decode(answer, len(raw)) == raw), (asked, True))
    equal(r.manifest(REPO, digest).status, 200)


# ---- never rewritten ----------------------------------------------------------------------------------------------------

def check_original_for_ever(r, tag, body):
    for _ in range(2):
        value = json.loads(body)
        for layer in value["layers"] + [value["config"]]:
            equal(r.blob(REPO, layer["digest"]).status, 200)
        r.wait_jobs()
        for agent in (DOCKER28, CONTAINERD2, "curl/7"):
            for wish in (None, "canonical", "zstd"):
                answer = view(r, tag, agent, wish)
                equal((answer.body == body, answer.h("X-Recask-View")), (True, "original"), f"{tag} {agent} {wish}")


def test_liars(t):
    """A config whose diffIDs are not those of the layers: the image stays as it is."""
    tars = [images.tar_of([("a", images.text(1, 100_000))]), images.tar_of([("b", images.text(2, 100_000))])]
    one, two = (sha256(x) for x in tars)
    r = t.recask()
    for tag, ids in (("wrong", [one, sha256(b"other")]), ("swapped", [two, one]), ("short", [one]),
                     ("long", [one, two, two])):
        image = images.Image(tars, diff_ids=ids).push(t.up, REPO, tag)
        check_original_for_ever(r, tag, image.body)
        for layer in image.layers:
            equal(r.blob(REPO, layer.digest).body == layer.blob, True)
    honest = images.Image(tars)
    made(t, honest, "honest")
    equal(view(r, "honest", DOCKER28).h("X-Recask-View"), "zstd")


def test_special_layers(t):
    """97, design 5: TOC layers, foreign layers, artifacts."""
    r = t.recask()
    base = images.small_image(layers=2)
    for tag, change in (("estargz", {"annotations": {"containerd.io/snapshot/stargz/toc.digest": sha256(b"toc")}}),
                        ("chunked", {"annotations": {"io.github.containers.zstd-chunked.manifest-checksum": "x"}}),
                        ("foreign", {"urls": ["http://127.0.0.1:1/x"]}),
                        ("encrypted", {"mediaType": images.OCI_LAYER + "+gzip+encrypted"}),
                        ("other", {"mediaType": "application/vnd.test.layer"})):
        base.push(t.up, REPO)
        layers = [{**base.value["layers"][0], **change}, base.value["layers"][1]]
        body = images.to_json({**base.value, "layers": layers})
        t.up.add_manifest(REPO, body, images.OCI_MANIFEST, tag)
        check_original_for_ever(r, tag, body)


def test_signed(t):
    """A cosign tag or a referrer upstream: the digest that was signed is the one that clients get."""
    r = t.recask()
    signed, referred = images.small_image(1), images.small_image(2)
    signed.push(t.up, REPO, "signed")
    images.artifact(t.up, REPO, signed.digest.replace(":", "-") + ".sig")
    check_original_for_ever(r, "signed", signed.body)
    referred.push(t.up, REPO, "referred")
    t.up.referrers[REPO, referred.digest] = images.to_json({
        "schemaVersion": 2, "mediaType": images.OCI_INDEX, "manifests": [{
            "mediaType": images.OCI_MANIFEST, "digest": sha256(b"s"), "size": 1,
            "artifactType": "application/vnd.dev.sigstore.bundle.v0.3+json"}]})
    check_original_for_ever(r, "referred", referred.body)


def test_broken_layers(t):
    """Layers that do not decode, or not whole, are cached as they are."""
    tar = images.tar_of([("a", images.text(1, 50_000))])
    good = images.gzip(tar)
    bomb = images.gzip(bytes(30 << 20))
    r = t.recask("--max-layer", "20MiB")
    for tag, blob in (("cut", good[:-20]), ("tail", good + b"garbage"), ("crc", good[:-8] + b"12345678"), ("bomb", bomb)):
        digest = t.up.add_blob(REPO, blob)
        image = images.Image([tar])
        value = {**image.value, "layers": [{"mediaType": images.OCI_LAYER + "+gzip", "digest": digest, "size": len(blob)}]}
        image.push(t.up, REPO)
        body = images.to_json(value)
        t.up.add_manifest(REPO, body, images.OCI_MANIFEST, tag)
        check_original_for_ever(r, tag, body)
        equal(r.blob(REPO, digest).body == blob, True)
        t.up.knob(t.up.blob_path(REPO, digest), status=500)
        equal(r.blob(REPO, digest).body == blob, True, "from the store")


# ---- indexes ------------------------------------------------------------------------------------------------------------

def test_index(t):
    """Only the pulled child is rewritten; what speaks of it follows it."""
    for kind in ("oci", "docker"):
        amd, arm = images.small_image(kind + "1", kind=kind), images.small_image(kind + "2", kind=kind, arch="arm64")
        note, note_digest = images.artifact(t.up, REPO, pretty=False)
        attestation = {"mediaType": images.OCI_MANIFEST, "digest": note_digest, "size": len(note),
                       "platform": {"architecture": "unknown", "os": "unknown"},
                       "annotations": {"vnd.docker.reference.digest": amd.digest,
                                       "vnd.docker.reference.type": "attestation-manifest"}}
        index = images.Index([x.push(t.up, REPO).descriptor() for x in (amd, arm)] + [attestation], kind)
        index.push(t.up, REPO, kind)
        r = t.processes[0] if t.processes else t.recask()
        equal(view(r, kind, DOCKER28).body, index.body)
        equal(r.pull(REPO, amd, agent=DOCKER28).body, amd.body)
        r.wait_jobs()
        for agent, want in ((DOCKER28, "zstd"), (DOCKER20, "canonical")):
            answer = view(r, kind, agent)
            equal(answer.h("X-Recask-View"), want)
            value = json.loads(answer.body)
            child = value["manifests"][0]
            equal(value["manifests"][1], index.value["manifests"][1])
            equal(value["manifests"][2]["digest"], note_digest)
            equal(value["manifests"][2]["annotations"]["vnd.docker.reference.digest"], child["digest"])
            equal(child["digest"] != amd.digest, True)
            got = r.manifest(REPO, child["digest"], agent)
            equal((sha256(got.body), len(got.body), got.h("Content-Type")),
                  (child["digest"], child["size"], child["mediaType"]))
            if want == "zstd":
                equal(answer.h("Content-Type"), images.OCI_INDEX)
                check_zstd_layers(r, json.loads(got.body), amd)
            else:
                equal(answer.h("Content-Type"), index.media_type)
                equal(json.loads(got.body), amd.canonical_value())
        equal(view(r, kind, "curl/7").body, index.body)
        equal(t.up.count(path=t.up.manifest_path(REPO, arm.digest)), 0)


# ---- eviction -----------------------------------------------------------------------------------------------------------

def test_sticky_after_eviction(t):
    """Published digests are served for ever: refetched, decoded, and the same bytes."""
    image = images.small_image()
    r = made(t, image)
    before = {agent: view(r, agent=agent).body for agent in (DOCKER28, DOCKER20)}
    zstd = json.loads(before[DOCKER28])
    for layer in image.layers:
        for digest in (layer.diff_id, layer.digest):
            r.evict(digest)
    t.up.forget()
    for agent, body in before.items():
        equal(view(r, agent=agent).body, body)
        equal(view(r, agent=agent, method="HEAD").h("Docker-Content-Digest"), sha256(body))
        equal(r.manifest(REPO, sha256(body)).body, body)
    equal(t.up.count("GET"), 0)
    layer = image.layers[0]
    head = r.head(t.up.blob_path(REPO, layer.diff_id))
    equal((head.status, head.h("Content-Length")), (200, str(len(layer.tar))))
    equal(t.up.count("GET"), 0)
    check_canonical_layers(r, image)
    equal([t.up.count("GET", t.up.blob_path(REPO, x.digest)) for x in image.layers], [1] * len(image.layers))
    r.wait_jobs()
    for layer in image.layers:
        for digest in (layer.diff_id, layer.digest):
            r.evict(digest)
    check_zstd_layers(r, zstd, image)
    equal(t.up.count(path=t.up.blob_path(REPO, layer.diff_id)), 0, "diffIDs mean nothing upstream")


def test_range_of_evicted_layer(t):
    image = images.small_image(layers=1)
    r = made(t, image)
    layer = image.layers[0]
    r.evict(layer.diff_id)
    r.evict(layer.digest)
    part = r.blob(REPO, layer.diff_id, {"Range": "bytes=100000-100099"})
    equal((part.status, part.body == layer.tar[100_000:100_100]), (206, True))
    r.wait_jobs()
    equal(r.blob(REPO, layer.diff_id).body == layer.tar, True)


def test_evicted_and_upstream_lies(t):
    """What is decoded on the way is verified like any other fill."""
    image = images.small_image(layers=1)
    r = made(t, image)
    layer = image.layers[0]
    zstd = json.loads(view(r, agent=DOCKER28).body)["layers"][0]
    r.evict(layer.diff_id)
    r.evict(layer.digest)
    path = t.up.blob_path(REPO, layer.digest)
    other = images.gzip(images.tar_of([("other", images.noise(9, 300_000))]))
    for how in ({"flip": 40}, {"body": other}, {"body": b"<html>"}, {"body": layer.blob[:-9]}, {"status": 500}):
        for digest in (layer.diff_id, zstd["digest"]):
            knob = t.up.knob(path, **how)
            answer = r.blob(REPO, digest)
            if answer.status == 200:
                equal(answer.complete, False, f"a complete answer from {how}")
            r.wait_jobs()
            knob.times = 0
    t.up.stop()
    answer = r.blob(REPO, layer.diff_id)
    equal(answer.status in (404, 503), True)
    t.up.start()
    check_canonical_layers(r, image)
    r.wait_jobs()
    equal(sha256(r.blob(REPO, zstd["digest"]).body), zstd["digest"])


def test_one_of_two_images_is_evicted(t):
    """1, 2: a shared layer outlives neither image."""
    tars = [images.tar_of([(n, images.text(n, 200_000))]) for n in "abc"]
    one, two = images.Image(tars[:2]), images.Image(tars[1:])
    r = made(t, one, "one")
    made(t, two, "two")
    r.evict(one.layers[0].diff_id)
    t.up.stop()
    check_canonical_layers(r, two)
    equal(r.blob(REPO, one.layers[1].diff_id).body == tars[1], True)


def test_repositories_are_apart(t):
    """A canonical digest is served only where the upstream confirmed its original."""
    image = images.small_image(layers=1)
    r = made(t, image)
    layer = image.layers[0]
    zstd = json.loads(view(r, agent=DOCKER28).body)["layers"][0]["digest"]
    for digest in (layer.diff_id, zstd):
        for method in ("HEAD", "GET"):
            equal(r.open(method, f"/v2/other/app/blobs/{digest}").rest().status, 404)
    t.up.add_blob("other/app", layer.blob)
    equal(r.blob("other/app", layer.diff_id).body == layer.tar, True)


def test_lost_files(t):
    """2, 4, 5: files that vanish or shrink behind recask's back are fetched again."""
    image = images.small_image()
    r = made(t, image)
    r.stop()
    for path in r.files("originals"):
        with open(path, "r+b") as file:
            file.truncate(10)
    for path, size in r.files("packs").items():
        with open(path, "r+b") as file:
            file.seek(size // 2)
            file.write(b"\xff" * 1000)
    r.start()
    t.allow = "."
    for _ in range(3):  # a damage may be found in the middle of an answer, which is cut then
        for layer in image.layers:
            for digest, data in ((layer.digest, layer.blob), (layer.diff_id, layer.tar)):
                answer = r.blob(REPO, digest)
                if answer.status == 200 and answer.complete:
                    equal(answer.body == data, True, "wrong bytes")
        r.wait_jobs()
    for layer in image.layers:
        for digest, data in ((layer.digest, layer.blob), (layer.diff_id, layer.tar)):
            answer = r.blob(REPO, digest)
            equal((answer.status, answer.complete, answer.body == data), (200, True, True), "healed")


# ---- docker 20.10 and zstd layers ---------------------------------------------------------------------------------------

def test_docker20_gets_canonical_for_zstd_layers(t):
    """86: it cannot read the original, so its first pull waits for the canonical view."""
    image = images.small_image(how="zstd").push(t.up, REPO, "1")
    r = t.recask()
    head = view(r, agent=DOCKER20, method="HEAD")
    equal(head.h("X-Recask-View"), "canonical")
    answer = view(r, agent=DOCKER20)
    equal(json.loads(answer.body), image.canonical_value())
    equal(head.h("Docker-Content-Digest"), sha256(answer.body))
    for layer in image.layers:
        equal(r.blob(REPO, layer.diff_id, {"Accept-Encoding": "identity"}).body == layer.tar, True)
    amd, arm = images.small_image(5, how="zstd"), images.small_image(6, how="zstd", arch="arm64")
    index = images.Index([x.push(t.up, REPO).descriptor() for x in (arm, amd)]).push(t.up, REPO, "multi")
    value = json.loads(view(r, "multi", DOCKER20).body)
    equal(value["manifests"][0], index.value["manifests"][0])
    child = json.loads(view(r, value["manifests"][1]["digest"], DOCKER20).body)
    equal(child, amd.canonical_value())
    # Others take the original at once.
    other = images.small_image(7, how="zstd").push(t.up, REPO, "2")
    equal(view(r, "2", DOCKER28).body, other.body)


def test_docker20_and_gzip_layers(t):
    image = images.small_image().push(t.up, REPO, "1")
    r = t.recask()
    began = time.monotonic()
    equal(view(r, agent=DOCKER20).body, image.body)
    equal(time.monotonic() - began < 1.5, True)


def test_plain_layer_known_from_elsewhere(t):
    """An uncompressed layer whose canonical form was made from another repository's gzip: the zstd form that its image
    names can be had in its own repository, also when it has to be made again."""
    tar = images.tar_of([("shared", images.noise(5, 300_000))])
    packed = images.Image([tar], how="gzip").push(t.up, "q/packed", "1")
    plain = images.Image([tar, images.tar_of([("own", images.noise(6, 100_000))])], how="none").push(t.up, "q/plain", "1")
    r = t.recask()
    r.pull("q/packed", packed, "1", agent="docker/28.5.2")
    r.wait_jobs()
    r.pull("q/plain", plain, "1", agent="docker/28.5.2")
    r.wait_jobs()
    for evicted in (False, True):
        if evicted:
            for layer in plain.layers:
                r.evict(layer.diff_id)
        value = r.manifest("q/plain", "1", "docker/28.5.2").json()
        for found, layer in zip(value["layers"], plain.layers):
            equal(found["mediaType"], images.OCI_LAYER + "+zstd")
            answer = r.blob("q/plain", found["digest"])
            equal((answer.status, sha256(answer.body)), (200, found["digest"]))
            equal(images.unzstd(answer.body, len(layer.tar)) == layer.tar, True)


def test_plain_layer_never_taken(t):
    """The same when nobody took that layer from its own repository before: its views are made without it, since its
    canonical form is there."""
    tar = images.tar_of([("shared", images.noise(5, 300_000))])
    packed = images.Image([tar], how="gzip").push(t.up, "q/packed", "1")
    plain = images.Image([images.tar_of([("own", images.noise(6, 100_000))]), tar], how="none").push(t.up, "q/plain", "1")
    for evicted in (False, True):
        r = t.recask()
        r.pull("q/packed", packed, "1", agent="docker/28.5.2")
        r.wait_jobs()
        equal(r.manifest("q/plain", "1", "docker/28.5.2").body, plain.body)
        equal(r.blob("q/plain", plain.layers[0].digest).status, 200)
        r.wait_jobs()
        value = r.manifest("q/plain", "1", "docker/28.5.2").json()
        if evicted:
            r.evict(plain.layers[1].diff_id)
            r.evict(packed.layers[0].digest)
        for found, layer in zip(value["layers"], plain.layers):
            equal(found["mediaType"], images.OCI_LAYER + "+zstd")
            answer = r.blob("q/plain", found["digest"])
            equal((answer.status, sha256(answer.body)), (200, found["digest"]), f"evicted {evicted}")
            equal(images.unzstd(answer.body, len(layer.tar)) == layer.tar, True)


if __name__ == "__main__":
    main()
