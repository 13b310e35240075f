#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""recask's memory does not depend on the size of a layer: its peak with 64 MB and with 640 MB, cold to warm in every
encoding, may differ by 16 MB. For a release build (CMakeLists.txt): others are slow, and sanitizers have memory of their own."""
import hashlib
import json
import mmap
import os
import random
import sys
import tarfile
import zlib

import images
from mock import sha256
from recask import under_sanitizer
from runner import equal, main

REPO = "team/big"
MB = 1_000_000
SMALL, LARGE = 64 * MB, 640 * MB
FILE_BYTES = 8 * MB
DIFFERENCE_KB = 16 * 1024


def tar_pieces(size):
    """A tar of about size bytes, never the same data twice, that compresses by a quarter. The same each time."""
    source = random.Random(size)
    for i in range(size // FILE_BYTES):
        info = tarfile.TarInfo(f"file-{i}")
        info.size = FILE_BYTES
        yield info.tobuf(tarfile.GNU_FORMAT)
        for _ in range(FILE_BYTES // MB):
            yield source.randbytes(MB // 2)
            yield source.randbytes(MB // 4).hex().encode()
    yield bytes(1024)


def gzip_pieces(pieces):
    """... as gzip, the way that costs least."""
    gz = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
    for piece in pieces:
        yield gz.compress(piece)
    yield gz.flush()


class BigLayer:
    """What images.Layer is, but in a file."""

    def __init__(self, directory, how, size):
        self.path = os.path.join(directory, f"{how}-{size}")
        whole = hashlib.sha256()
        plain = hashlib.sha256()
        self.size = 0

        def tar():
            for piece in tar_pieces(size):
                plain.update(piece)
                self.size += len(piece)
                yield piece

        with open(self.path, "w+b") as file:
            for piece in gzip_pieces(tar()) if how == "gzip" else tar():
                whole.update(piece)
                file.write(piece)
            file.flush()
            self.blob = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self.diff_id = f"sha256:{plain.hexdigest()}"
        self.digest = f"sha256:{whole.hexdigest()}"
        self.media_type = images.LAYER_TYPES["oci", how]

    def close(self):
        os.unlink(self.path)


def push(up, layer):
    """An image of this one layer; the digest of its manifest."""
    config = images.to_json({"architecture": "amd64", "os": "linux",
                             "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]}})
    value = {"schemaVersion": 2, "mediaType": images.OCI_MANIFEST,
             "config": {"mediaType": images.OCI_CONFIG, "digest": sha256(config), "size": len(config)},
             "layers": [{"mediaType": layer.media_type, "digest": layer.digest, "size": len(layer.blob)}]}
    up.add_blob(REPO, config)
    up.add_blob(REPO, layer.blob, layer.digest)
    return up.add_manifest(REPO, images.to_json(value), images.OCI_MANIFEST, "1"), sha256(config)


def read(r, digest, asked, coding=None, size=None, check=False):
    """GETs a blob without keeping it."""
    stream = r.open("GET", f"/v2/{REPO}/blobs/{digest}", {"Accept-Encoding": asked})
    answer = stream.head()
    equal((answer.status, answer.h("Content-Encoding")), (200, coding), asked)
    got, total = hashlib.sha256(), 0
    while data := stream.raw(1 << 20):
        total += len(data)
        if check:
            got.update(data)
    stream.close()
    if size is not None:
        equal(total, size, asked)
    elif answer.h("Content-Length") is not None:
        equal(total, int(answer.h("Content-Length")), asked)
    if check:
        equal(f"sha256:{got.hexdigest()}", digest)
    return total


def peak_kb(r):
    with open(f"/proc/{r.process.pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))


def peak(t, how, size, codings):
    """The peak of a fresh recask, step by step."""
    layer = BigLayer(t.directory, how, size)
    r = t.recask()
    try:
        manifest, config = push(t.up, layer)
        equal(r.manifest(REPO, manifest).status, 200)
        equal(r.blob(REPO, config).status, 200)
        peaks = {"start": peak_kb(r)}
        read(r, layer.digest, "identity", size=len(layer.blob), check=True)
        peaks["cold"] = peak_kb(r)
        equal(r.wait_jobs()["store"]["canonical_layers"], 1)
        peaks["canonical"] = peak_kb(r)
        read(r, layer.diff_id, "identity", size=layer.size, check=True)
        peaks["identity"] = peak_kb(r)
        for coding in codings:
            equal(read(r, layer.diff_id, coding, coding) < layer.size, True, coding)
            peaks[coding] = peak_kb(r)
        print(f"# {how} {size // MB} MB: " + json.dumps(peaks), flush=True)
        r.stop()
    finally:
        layer.close()
    return peaks


def compare(t, how, codings):
    small, large = peak(t, how, SMALL, codings), peak(t, how, LARGE, codings)
    for step, kb in large.items():
        equal(abs(kb - small[step]) <= DIFFERENCE_KB, True, f"{step}: {small[step]} kB and {kb} kB")


def test_plain_layer(t):
    compare(t, "none", ("gzip", "zstd"))


def test_gzip_layer(t):
    compare(t, "gzip", ())  # what is canonical is the same from here on


if __name__ == "__main__":
    if under_sanitizer():
        print("sanitizers have memory of their own")
        sys.exit(77)
    main()
