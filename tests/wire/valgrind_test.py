#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""recask under valgrind: a cold pull, jobs, warm layers in every encoding, the smaller routes, and a stop, with no error
and no leak. For a debug build without sanitizers (CMakeLists.txt)."""
import os
import shutil
import sys

import images
from recask import Recask, request, under_sanitizer
from runner import equal, main

REPO = "team/app"
WRONG = 9  # valgrind's exit status when it saw an error
CODINGS = ("identity", "gzip", "zstd", None)
CLIENTS = ("docker/28.5.2 go/go1.24 os/linux arch/amd64", "docker/20.10.24+dfsg1 go/go1.19 os/linux arch/amd64",
           "containerd/v2.1.4", "test")


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def everything(t, r):
    image = images.small_image(layers=2, size=100_000).push(t.up, REPO, "1")
    plain = images.small_image(seed=2, layers=1, size=50_000, how="none").push(t.up, REPO, "plain")
    zstd = images.small_image(seed=3, layers=1, size=50_000, how="zstd").push(t.up, REPO, "zstd")
    for made, tag in ((image, "1"), (plain, "plain"), (zstd, "zstd")):
        equal(r.pull(REPO, made, tag).status, 200)
    r.wait_jobs(timeout=120)

    for layer in (x for made in (image, plain, zstd) for x in made.layers):
        for digest in {layer.digest, layer.diff_id}:
            for coding in CODINGS:
                answer = r.blob(REPO, digest, {"Accept-Encoding": coding} if coding else {})
                equal((answer.status, answer.complete), (200, True), f"{digest} {coding}")
        equal(r.blob(REPO, layer.diff_id, {"Range": "bytes=5000-9999"}).body, layer.tar[5000:10000])
    for client in CLIENTS:
        for tag in ("1", "plain", "zstd"):
            answer = r.manifest(REPO, tag, client)
            equal(answer.status, 200)
            for layer in answer.json()["layers"]:
                equal(r.blob(REPO, layer["digest"]).complete, True)

    equal(r.get(f"/v2/{REPO}/tags/list").json()["tags"], ["1", "plain", "zstd"])
    equal(r.manifest(REPO, "absent").status, 404)
    equal(r.blob(REPO, "sha256:" + "0" * 64).status, 404)
    equal(r.get(f"/v2/{REPO}/blobs/sha256:short").status, 400)
    equal(request(r.admin, "GET", "/api/v1/images").status, 200)
    equal(r.stats()["store"]["canonical_layers"], 4)


def test_no_errors_no_leaks(t):
    reports = os.path.join(t.directory, "valgrind.%p")
    Recask.launcher = ["valgrind", "--leak-check=full", f"--error-exitcode={WRONG}",
                       "--errors-for-leak-kinds=definite,indirect", "--show-leak-kinds=definite,indirect",
                       "--num-callers=30", "--fair-sched=try", f"--log-file={reports}"]
    r = t.recask()
    try:
        everything(t, r)
        r.stop(timeout=60)
    finally:
        report = "".join(read(os.path.join(t.directory, name)) for name in os.listdir(t.directory)
                         if name.startswith("valgrind."))
        if "ERROR SUMMARY: 0 errors" not in report:
            print("".join(f"    # {line}\n" for line in report.splitlines()), end="", flush=True)
    equal(report.count("ERROR SUMMARY: 0 errors"), 1)


if __name__ == "__main__":
    if not shutil.which("valgrind") or under_sanitizer():
        print("no valgrind" if not under_sanitizer() else "sanitizers and valgrind do not go together")
        sys.exit(77)
    main()
