#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes images that no client would push, and pushes them by hand.

    mkimage.py HOST:PORT DIRECTORY

DIRECTORY has files to fill layers with. The same files give the same bytes.

    img/multi      an OCI index: linux/amd64 and a tiny linux/arm64
    img/attested   an OCI index: linux/amd64 and an attestation that names it
    img/liar       a config with one wrong diffID
    img/share-a,b  one layer each; nearly the same files, other bytes
    img/artifact   an artifact with artifactType and the empty config
"""
import gzip
import hashlib
import http.client
import io
import json
import os
import random
import sys
import tarfile
import urllib.parse

OCI = "application/vnd.oci.image."
MANIFEST = OCI + "manifest.v1+json"
INDEX = OCI + "index.v1+json"
CONFIG = OCI + "config.v1+json"
LAYER_GZIP = OCI + "layer.v1.tar+gzip"
EMPTY = "application/vnd.oci.empty.v1+json"


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def to_json(value):
    return json.dumps(value, separators=(",", ":")).encode()


class Repository:
    def __init__(self, registry, name):
        self.registry = registry
        self.name = name

    def request(self, method, path, body=b"", headers=None, want=()):
        connection = http.client.HTTPConnection(self.registry, timeout=60)
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status not in want:
            raise SystemExit(f"{method} {path}: {answer.status} {text[:300]!r}")
        return answer

    def blob(self, data, media_type):
        """Pushes a blob; its descriptor."""
        answer = self.request("POST", f"/v2/{self.name}/blobs/uploads/", want=(202,))
        where = urllib.parse.urlsplit(answer.headers["Location"])
        query = f"{where.query}&" if where.query else ""
        query += urllib.parse.urlencode({"digest": digest(data)})
        self.request("PUT", f"{where.path}?{query}", data,
                     {"Content-Type": "application/octet-stream"}, want=(201,))
        return {"mediaType": media_type, "digest": digest(data), "size": len(data)}

    def manifest(self, value, reference=None):
        """Pushes a manifest or index, by its digest or as a tag; its descriptor."""
        data = to_json(value)
        self.request("PUT", f"/v2/{self.name}/manifests/{reference or digest(data)}", data,
                     {"Content-Type": value["mediaType"]}, want=(201,))
        return {"mediaType": value["mediaType"], "digest": digest(data), "size": len(data)}

    def image(self, tars, architecture="amd64", diff_ids=None, reference=None, level=6):
        """Pushes an image of these layers; its descriptor."""
        layers = [self.blob(gzip.compress(t, level, mtime=0), LAYER_GZIP) for t in tars]
        config = {
            "architecture": architecture, "os": "linux", "config": {"Cmd": ["/none"]},
            "rootfs": {"type": "layers", "diff_ids": diff_ids or [digest(t) for t in tars]},
            "history": [{"created_by": f"layer {i}"} for i in range(len(tars))],
        }
        return self.manifest({"schemaVersion": 2, "mediaType": MANIFEST,
                              "config": self.blob(to_json(config), CONFIG), "layers": layers},
                             reference)


def tar_of(files):
    """A tar of (name, bytes) pairs, in the order given."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mode = 0o644
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def files_below(top):
    found = []
    for parent, dirs, names in os.walk(top):
        dirs.sort()
        for name in sorted(names):
            path = os.path.join(parent, name)
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as stream:
                    found.append((os.path.relpath(path, top), stream.read()))
    return found


def index(manifests):
    return {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}


def on(descriptor, architecture, **more):
    return {**descriptor, "platform": {"architecture": architecture, "os": "linux"}, **more}


def main():
    registry, top = sys.argv[1:]
    files = files_below(top)
    third = len(files) // 3
    one, two = tar_of(files[:third]), tar_of(files[third:2 * third])
    tiny = tar_of([("arm64", b"only a few bytes\n" * 100)])

    multi = Repository(registry, "img/multi")
    multi.manifest(index([on(multi.image([one, two]), "amd64"),
                          on(multi.image([tiny], "arm64"), "arm64")]), "latest")

    attested = Repository(registry, "img/attested")
    child = attested.image([two, tiny])
    statement = to_json({"_type": "https://in-toto.io/Statement/v0.1", "predicate": {},
                         "subject": [{"name": "img/attested",
                                      "digest": {"sha256": child["digest"][7:]}}]})
    note = {"schemaVersion": 2, "mediaType": MANIFEST,
            "config": attested.blob(to_json({
                "architecture": "unknown", "os": "unknown", "config": {},
                "rootfs": {"type": "layers", "diff_ids": [digest(statement)]}}), CONFIG),
            "layers": [{**attested.blob(statement, "application/vnd.in-toto+json"),
                        "annotations": {"in-toto.io/predicate-type": "https://example.com/none"}}]}
    attested.manifest(index([on(child, "amd64"), {
        **attested.manifest(note), "platform": {"architecture": "unknown", "os": "unknown"},
        "annotations": {"vnd.docker.reference.digest": child["digest"],
                        "vnd.docker.reference.type": "attestation-manifest"}}]), "latest")

    liar = Repository(registry, "img/liar")
    liar.image([one, tiny], diff_ids=[digest(one), digest(two)], reference="latest")

    # Most of the content is shared, but no layer: files come first, in between and changed.
    noise = random.Random(1).randbytes
    other = [("added-first", noise(40000))] + files
    other.insert(len(other) // 2, ("added-between", noise(100000)))
    other[-1] = (other[-1][0], other[-1][1] + b"changed")
    Repository(registry, "img/share-a").image([tar_of(files)], reference="latest")
    Repository(registry, "img/share-b").image([tar_of(other)], reference="latest", level=9)

    artifact = Repository(registry, "img/artifact")
    artifact.manifest({
        "schemaVersion": 2, "mediaType": MANIFEST, "artifactType": "application/vnd.example.thing",
        "config": artifact.blob(b"{}", EMPTY),
        "layers": [artifact.blob(gzip.compress(two, 6, mtime=0), LAYER_GZIP),
                   artifact.blob(one, "application/vnd.example.thing.tar")]}, "latest")


main()
