# SPDX-License-Identifier: Apache-2.0
"""Images in memory: tar layers, their compressed forms, configs with the right diffIDs, manifests and indexes.

The same arguments give the same bytes. zstd comes from the library that recask itself links.
"""
import ctypes
import gzip as gzip_module
import io
import json
import random
import tarfile
import zlib

from mock import sha256

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
OCI_EMPTY = "application/vnd.oci.empty.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"

LAYER_TYPES = {
    ("oci", "none"): OCI_LAYER, ("oci", "gzip"): OCI_LAYER + "+gzip", ("oci", "zstd"): OCI_LAYER + "+zstd",
    ("docker", "none"): DOCKER_LAYER, ("docker", "gzip"): DOCKER_LAYER + ".gzip",
}


def noise(seed, size):
    return random.Random(seed).randbytes(size)


def text(seed, size):
    """Bytes that compress about as well as programs do."""
    words = [random.Random(f"{seed}-{i}").randbytes(random.Random(i).randint(3, 12)) for i in range(512)]
    pick = random.Random(seed)
    out = bytearray()
    while len(out) < size:
        out += pick.choice(words)
    return bytes(out[:size])


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


# ---- compression --------------------------------------------------------------------------------------------------------

_zstd = ctypes.CDLL("libzstd.so.1")
for _name in ("ZSTD_compress", "ZSTD_decompress", "ZSTD_compressBound"):
    getattr(_zstd, _name).restype = ctypes.c_size_t


def zstd(data, level=3):
    bound = _zstd.ZSTD_compressBound(ctypes.c_size_t(len(data)))
    out = ctypes.create_string_buffer(bound)
    size = _zstd.ZSTD_compress(out, ctypes.c_size_t(bound), data, ctypes.c_size_t(len(data)), level)
    assert not _zstd.ZSTD_isError(ctypes.c_size_t(size))
    return out.raw[:size]


def unzstd(data, size):
    """All frames of data, which decode to `size` bytes."""
    out = ctypes.create_string_buffer(size + 1)
    got = _zstd.ZSTD_decompress(out, ctypes.c_size_t(size + 1), data, ctypes.c_size_t(len(data)))
    assert not _zstd.ZSTD_isError(ctypes.c_size_t(got)), "not zstd"
    return out.raw[:got]


def gzip(data, level=6):
    return gzip_module.compress(data, level, mtime=0)


def gunzip_one(data):
    """Exactly one gzip member, as curl and others read it."""
    reader = zlib.decompressobj(16 + zlib.MAX_WBITS)
    out = reader.decompress(data)
    assert reader.eof and not reader.unused_data, "not one gzip member"
    return out


def compress(data, how):
    return {"none": lambda d: d, "gzip": gzip, "zstd": zstd}[how](data)


# ---- images -------------------------------------------------------------------------------------------------------------

def to_json(value):
    return json.dumps(value, separators=(",", ":")).encode()


class Layer:
    def __init__(self, tar, how, kind):
        self.tar = tar
        self.diff_id = sha256(tar)
        self.blob = compress(tar, how)
        self.digest = sha256(self.blob)
        self.media_type = LAYER_TYPES[kind, how]

    def descriptor(self):
        return {"mediaType": self.media_type, "digest": self.digest, "size": len(self.blob)}


class Image:
    """An image manifest. kind: "oci" or "docker"; how: the layers' compression."""

    def __init__(self, tars, how="gzip", kind="oci", arch="amd64", diff_ids=None, **more):
        self.kind = kind
        self.layers = [Layer(t, how, kind) for t in tars]
        self.config = to_json({
            "architecture": arch, "os": "linux", "config": {"Cmd": ["/none"]},
            "rootfs": {"type": "layers", "diff_ids": diff_ids or [x.diff_id for x in self.layers]},
            "history": [{"created_by": f"layer {i}"} for i in range(len(tars))],
        })
        self.config_digest = sha256(self.config)
        self.media_type = OCI_MANIFEST if kind == "oci" else DOCKER_MANIFEST
        self.value = {
            "schemaVersion": 2, "mediaType": self.media_type,
            "config": {"mediaType": OCI_CONFIG if kind == "oci" else DOCKER_CONFIG, "digest": self.config_digest,
                       "size": len(self.config)},
            "layers": [x.descriptor() for x in self.layers], **more,
        }
        self.body = to_json(self.value)
        self.digest = sha256(self.body)
        self.arch = arch

    def push(self, up, repo, tag=None):
        for layer in self.layers:
            up.add_blob(repo, layer.blob)
        up.add_blob(repo, self.config)
        up.add_manifest(repo, self.body, self.media_type, tag)
        return self

    def descriptor(self):
        return {"mediaType": self.media_type, "digest": self.digest, "size": len(self.body),
                "platform": {"architecture": self.arch, "os": "linux"}}

    def canonical_value(self):
        """What the canonical view must say."""
        plain = LAYER_TYPES[self.kind, "none"]
        layers = [{**d, "mediaType": plain, "digest": x.diff_id, "size": len(x.tar)}
                  for d, x in zip(self.value["layers"], self.layers)]
        return {**self.value, "layers": layers}


class Index:
    def __init__(self, descriptors, kind="oci", **more):
        self.media_type = OCI_INDEX if kind == "oci" else DOCKER_LIST
        self.value = {"schemaVersion": 2, "mediaType": self.media_type, "manifests": descriptors, **more}
        self.body = to_json(self.value)
        self.digest = sha256(self.body)

    def push(self, up, repo, tag=None):
        up.add_manifest(repo, self.body, self.media_type, tag)
        return self


def artifact(up, repo, tag=None, pretty=True, layers=((b"data", "application/vnd.test.thing"),), **more):
    """An OCI artifact, by default with white space that a re-serialiser would lose. Returns (body, digest)."""
    value = {
        "schemaVersion": 2, "mediaType": OCI_MANIFEST, "artifactType": "application/vnd.test.artifact",
        "config": {"mediaType": OCI_EMPTY, "digest": up.add_blob(repo, b"{}"), "size": 2},
        "layers": [{"mediaType": t, "digest": up.add_blob(repo, d), "size": len(d)} for d, t in layers], **more,
    }
    body = (json.dumps(value, indent=3) + "\n").encode() if pretty else to_json(value)
    return body, up.add_manifest(repo, body, OCI_MANIFEST, tag)


def small_image(seed=1, layers=2, size=200_000, **how):
    """A few files of text and noise in each layer."""
    return Image([tar_of([(f"l{i}/text", text(f"{seed}.{i}", size)), (f"l{i}/noise", noise(f"{seed}.{i}", size // 2)),
                          (f"l{i}/small", b"small\n")]) for i in range(layers)], **how)
