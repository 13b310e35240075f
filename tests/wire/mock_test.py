#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The mock upstream itself: a test harness that lies would let faults pass. Needs no recask."""
import threading
import time
import urllib.parse

import images
import recask
from mock import MockUpstream, sha256
from runner import equal, until

DATA = images.noise("mock", 300_000)


def ask(up, path, method="GET", headers=None):
    return recask.request(("127.0.0.1", up.port), method, path, headers, timeout=10)


def with_blob():
    up = MockUpstream()
    path = up.blob_path("a/b", up.add_blob("a/b", DATA))
    return up, path


def test_plain():
    up, path = with_blob()
    equal(ask(up, path).body, DATA)
    equal(ask(up, path, "HEAD").h("Content-Length"), str(len(DATA)))
    equal(ask(up, path, headers={"Range": "bytes=10-19"}).body, DATA[10:20])
    answer = ask(up, path, headers={"Range": "bytes=299990-"})
    equal((answer.status, answer.h("Content-Range"), answer.body), (206, "bytes 299990-299999/300000", DATA[299990:]))
    equal(ask(up, path, headers={"Range": "bytes=300000-"}).status, 416)
    equal(ask(up, path.replace("a/b", "c")).status, 404)
    equal((up.count("GET", path), up.count("HEAD", path), up.sent(path)), (4, 1, 300_020))
    up.stop()


def test_breaking():
    up, path = with_blob()
    up.knob(path, drop_at=1000, times=1)
    answer = ask(up, path)
    equal((answer.complete, answer.body, answer.h("Content-Length")), (False, DATA[:1000], "300000"))
    equal(ask(up, path).complete, True)
    up.knob(path, drop_at=70_000, reset=True)
    equal(ask(up, path).complete, False)
    equal(ask(up, path, headers={"Range": "bytes=70000-"}).body, b"")
    up.clear_knobs()
    up.knob(path, flip=5)
    answer = ask(up, path)
    equal((answer.complete, answer.body[5], answer.body[6:]), (True, DATA[5] ^ 0x55, DATA[6:]))
    up.stop()


def test_stalling():
    up, path = with_blob()
    knob = up.knob(path, stall_at=100_000)
    stream = recask.Stream(("127.0.0.1", up.port), "GET", path)
    got = b""
    while len(got) < 100_000:
        got += stream.raw(100_000)
    until(knob.stalled.is_set, "it stalls")
    threading.Timer(0.1, knob.release).start()
    equal(got + stream.rest().body, DATA)
    up.stop()


def test_forms():
    up, path = with_blob()
    up.knob(path, chunked=True, times=1)
    answer = ask(up, path)
    equal((answer.body, answer.complete, answer.h("Content-Length")), (DATA, True, None))
    up.knob(path, no_length=True, times=1)
    equal(ask(up, path).body, DATA)
    up.knob(path, status=503, headers={"Retry-After": "1"}, body=b"no", times=1)
    answer = ask(up, path)
    equal((answer.status, answer.h("Retry-After"), answer.body), (503, "1", b"no"))
    up.knob(path, redirect="/elsewhere", times=1)
    equal(ask(up, path).h("Location"), "/elsewhere")
    up.knob(path, body=b"<html>", content_type="text/html", methods={"GET"})
    equal(ask(up, path).h("Content-Type"), "text/html")
    equal(ask(up, path, "HEAD").h("Content-Type"), "application/octet-stream")
    up.clear_knobs()
    for status in (200, 206, 400, 416):
        up.knob(path, range_status=status, times=1)
        equal(ask(up, path, headers={"Range": "bytes=5-"}).status, status)
    began = time.monotonic()
    up.knob(path, rate=600_000, times=1)
    equal(ask(up, path).body, DATA)
    equal(0.4 < time.monotonic() - began < 20, True)
    up.stop()


def test_restart():
    up, path = with_blob()
    port = up.port
    up.stop()
    try:
        ask(up, path)
        equal("answered", "refused")
    except ConnectionRefusedError:
        pass
    up.start()
    equal((up.port, ask(up, path).body), (port, DATA))
    until(lambda: up.open_now == 0, "connections are closed")
    up.stop()


def test_images():
    up = MockUpstream()
    image = images.small_image(kind="docker").push(up, "lib/x", "1")
    answer = ask(up, up.manifest_path("lib/x", "1"))
    equal(sha256(answer.body), image.digest)
    equal(answer.h("Content-Type"), images.DOCKER_MANIFEST)
    tar = image.layers[0].tar
    equal(images.gunzip_one(image.layers[0].blob), tar)
    equal(images.unzstd(images.zstd(tar) + images.zstd(b"more"), len(tar) + 4), tar + b"more")
    equal(images.small_image(kind="docker").digest, image.digest, "the same every time")
    for tag in "abc":
        up.add_manifest("lib/x", image.body, image.media_type, tag)
    answer = ask(up, "/v2/lib/x/tags/list?n=2&last=1")
    equal((answer.json()["tags"], urllib.parse.unquote(answer.h("Link"))),
          (["a", "b"], '</v2/lib/x/tags/list?n=2&last=b>; rel="next"'))
    up.stop()


if __name__ == "__main__":
    for test in [value for name, value in sorted(globals().items()) if name.startswith("test_")]:
        test()
        print("ok", test.__name__)
