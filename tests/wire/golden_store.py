#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the stores in tests/golden/ hold; golden_test.py opens them with the recask of today.

    RECASK_BIN=... golden_store.py OUT.tar.gz    makes one of the format that this recask writes; once per format,
                                                 with the last recask that wrote it
"""
import gzip
import os
import shutil
import sys
import tarfile
import tempfile

import images
from mock import MockUpstream
from recask import Recask

NAME = "golden"
REPO = "team/app"
OTHER = "team/other"


def contents():
    """Two images, the second of which shares a layer with the first, and an artifact that stays as it is."""
    first = images.small_image(11, layers=2, size=60_000)
    second = images.Image([first.layers[0].tar, images.tar_of([("plain", images.text("golden", 90_000))])], how="none")
    return first, second


def pull_all(r):
    """All of it, by digest; fails on any wrong byte."""
    for image, repo in zip(contents(), (REPO, OTHER)):
        assert r.manifest(repo, image.digest).body == image.body
        for digest, data in [(image.config_digest, image.config), *[(x.digest, x.blob) for x in image.layers],
                             *[(x.diff_id, x.tar) for x in image.layers]]:
            answer = r.blob(repo, digest)
            assert (answer.status, answer.body == data) == (200, True), (digest, answer)


def make(out):
    directory = tempfile.mkdtemp(prefix="recask-golden-")
    up = MockUpstream()
    try:
        for image, repo in zip(contents(), (REPO, OTHER)):
            image.push(up, repo, "1")
        r = Recask(directory, [f"{NAME}={up.url}"], ["--quota", "1GiB"])
        for image, repo in zip(contents(), (REPO, OTHER)):
            r.pull(repo, image, "1", agent="docker/28.5.2")
        r.wait_jobs()
        r.manifest(REPO, "1", "docker/28.5.2")
        pull_all(r)
        r.stop()
        with open(out, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, 0) as packed, \
                tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for folder, _, names in sorted(os.walk(r.store)):
                for name in sorted(names):
                    path = os.path.join(folder, name)
                    info = tarfile.TarInfo("store/" + os.path.relpath(path, r.store))
                    if not os.path.isfile(path):
                        continue
                    info.size = os.path.getsize(path)
                    info.mode = 0o600
                    with open(path, "rb") as file:
                        tar.addfile(info, file)
    finally:
        up.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    make(sys.argv[1])
