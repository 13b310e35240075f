#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers that are passed on or are about a form: what odd upstreams and odd clients must not lead to. Row numbers are those
of the case list."""
import json

import images
from mock import Answer, sha256
from recask import talk
from runner import equal, main

REPO = "team/app"


def tags_gate(t, link=None, body=None, **headers):
    def gate(request):
        if not request.path.endswith("/tags/list"):
            return None
        if link is not None:
            headers["Link"] = link
        return Answer(200, body or json.dumps({"name": REPO, "tags": ["a"]}).encode(), **headers)

    t.up.gate = gate


def test_links_of_pages(t):
    """A Link that a client could follow for ever, or astray, is not passed on; of several the next page is taken."""
    r = t.recask()
    path = f"/v2/{REPO}/tags/list"
    want = f'<{path}?n=1&last=a>; rel="next"'
    for number, (link, passed) in enumerate((
            ('</x?n=1&last=a>', True), ('</x?n=1&last=a>; REL=NEXT', True), ('</x?n=1&last=a>; rel="start next"', True),
            ('</x?n=1&last=a>;title="a, b; rel=prev" ; rel="next"', True),
            ('</y?last=z>; rel="prev", </x?n=1&last=a>; rel="next"', True),
            ('</x?ns=other.example&n=1&last=a>; rel="next"', True), ('</x?n=1&last=a#there>; rel="next"', True),
            ('</y?last=z>; rel="prev"', False), ('</x>; rel="next"', False), ('</x?>; rel="next"', False),
            ('</x?n=1&last=a', False), ('/x?n=1&last=a', False), ('</x?n=1&last=a>; rel="next', False),
            ('</x?n=1&last=a"b>; rel="next"', False), ('</x?n=1&last=a b>; rel="next"', False),
            ('</x#?n=1>; rel="next"', False), ('', False))):
        tags_gate(t, link)
        answer = r.get(f"{path}?q={number}")
        equal((answer.status, answer.h("Link")), (200, want if passed else None), link)


def test_lists_that_are_none(t):
    """26, 84: a page of HTML is not a list; a list that was compressed in transit is one."""
    image = images.small_image().push(t.up, REPO, "1")
    path, referrers = f"/v2/{REPO}/tags/list", f"/v2/{REPO}/referrers/{image.digest}"
    r = t.recask()
    tags_gate(t, body=b"<!DOCTYPE html><html>log in</html>", content_type="text/html")
    equal(r.get(path).status, 404)
    plain = json.dumps({"name": REPO, "tags": ["z"]}).encode()
    tags_gate(t, body=images.gzip(plain), Content_Encoding="gzip")
    answer = r.get(path)
    equal((answer.status, answer.body, answer.h("Content-Encoding")), (200, plain, None))
    t.up.gate = None
    t.up.knob(referrers, body=b"<!DOCTYPE html><html>log in</html>", content_type="text/html", status=None)
    answer = r.get(referrers)  # such an upstream has no API
    equal((answer.status, answer.json()["manifests"], answer.h("Content-Type")), (200, [], images.OCI_INDEX))
    index = images.to_json({"schemaVersion": 2, "mediaType": images.OCI_INDEX, "manifests": []})
    t.up.clear_knobs()
    t.up.knob(referrers, body=images.gzip(index), headers={"Content-Encoding": "gzip"})
    t.up.referrers[REPO, image.digest] = index
    answer = r.get(referrers + "?q=1")
    equal((answer.status, answer.body, answer.h("Content-Encoding")), (200, index, None))


def test_filters_are_told(t):
    """91: also an empty list, or one of a manifest made here, was filtered when that was asked for."""
    image = images.small_image().push(t.up, REPO, "1")
    r = t.recask()
    answer = r.get(f"/v2/{REPO}/referrers/{sha256(b'none')}?artifactType=application/x")
    equal((answer.status, answer.h("OCI-Filters-Applied")), (200, "artifactType"))
    r.pull(REPO, image, "1")
    r.wait_jobs()
    made = r.manifest(REPO, "1", "containerd/2.1.9").h("Docker-Content-Digest")
    equal(made != image.digest, True)
    answer = r.get(f"/v2/{REPO}/referrers/{made}?artifactType=application/x")
    equal((answer.status, answer.json()["manifests"], answer.h("OCI-Filters-Applied")), (200, [], "artifactType"))
    equal(r.get(f"/v2/{REPO}/referrers/{made}").h("OCI-Filters-Applied"), None)
    for other in ("sha512:" + "a" * 128, "md5:" + "a" * 32):
        answer = r.get(f"/v2/{REPO}/referrers/{other}")
        equal((answer.status, answer.error_code()), (400, "UNSUPPORTED"), other)


def test_pages_of_no_size(t):
    """n is a number; the client hears that it is not, whatever the upstream would have made of it."""
    images.small_image().push(t.up, REPO, "1")
    r = t.recask()
    path = f"/v2/{REPO}/tags/list"
    for n in ("x", "-1", "", "1.5", "99999999999999999999", "1;2"):
        answer = r.get(f"{path}?n={n}")
        equal((answer.status, answer.error_code()), (400, "PAGINATION_NUMBER_INVALID"), n)
    equal(t.up.requests, [])
    equal(r.get(f"{path}?n=0").status, 200)
    equal(r.get(f"{path}?last={'x' * 6000}").status, 400)


def test_condition_of_a_cold_blob(t):
    """28: a client that has the blob asks whether it still may; nothing is fetched for that."""
    data = images.noise(5, 300_000)
    digest = t.up.add_blob(REPO, data)
    path = t.up.blob_path(REPO, digest)
    r = t.recask()
    for _ in range(2):  # not known at all, then known to be in this repository
        answer = r.get(path, {"If-None-Match": f'W/"{digest}"'})
        equal((answer.status, answer.h("ETag"), answer.h("Docker-Content-Digest")), (304, f'"{digest}"', digest))
        equal(r.get(path, {"If-Match": '"other"'}).status, 412)
    equal((t.up.count("HEAD", path) >= 1, t.up.count("GET", path)), (True, 0))
    none = sha256(b"none")
    equal(r.get(t.up.blob_path(REPO, none), {"If-None-Match": f'"{none}"'}).status, 404)
    equal(r.get(path, {"If-None-Match": '"other"'}).body == data, True)


def test_304_has_no_false_length(t):
    """RFC 9110, 8.6: the Content-Length of a 304 is that of the 200, or none."""
    data = images.noise(6, 5000)
    digest = t.up.add_blob(REPO, data)
    path = t.up.blob_path(REPO, digest)
    r = t.recask()
    equal(r.get(path).body == data, True)
    for method in ("GET", "HEAD"):
        text = f"{method} {path} HTTP/1.1\r\nHost: x\r\nIf-None-Match: \"{digest}\"\r\n"
        # Two on one connection: a body, or the want of one, would shift the second answer.
        got = talk(r.address, (text + "\r\n" + text + "Connection: close\r\n\r\n").encode())
        lines = got.decode().split("\r\n")
        equal(sum(line.startswith("HTTP/1.1 304") for line in lines), 2, got)
        for line in lines:
            if line.lower().startswith("content-length:"):
                equal(line.split(":")[1].strip(), "5000", method)


def test_head_knows_no_range(t):
    """RFC 9110, 14.2: HEAD with Range is HEAD, also of a form that Accept names."""
    image = images.small_image(layers=1).push(t.up, REPO, "1")
    r = t.recask()
    r.pull(REPO, image, "1")
    r.wait_jobs()
    path = t.up.blob_path(REPO, image.layers[0].diff_id)
    for accept in (None, images.OCI_LAYER + "+zstd"):
        plain = {"Accept": accept} if accept else {}
        heads = [r.head(path, headers) for headers in (plain, {**plain, "Range": "bytes=5-9"})]
        for name in ("Content-Length", "Content-Type", "ETag", "Content-Range", "Content-Encoding"):
            equal(heads[0].h(name), heads[1].h(name), name)
        equal([h.status for h in heads], [200, 200])


def test_location_is_the_request(t):
    """clients.md 3.1 rule 11: Location on a 200 is the request's own target, ns= included, and on nothing else."""
    data = images.noise(7, 5000)
    digest = t.up.add_blob("library/app", data)
    r = t.recask(upstreams=[f"docker.io={t.up.url}"])
    path = f"/v2/app/blobs/{digest}"
    for target in (path, path + "?ns=docker.io", path.replace(":", "%3A")):
        answer = r.get(target)
        equal((answer.status, answer.h("Location")), (200, target))
        equal(r.get(target, {"Range": "bytes=0-5"}).h("Location"), None)
        equal(r.head(target).h("Location"), None)


def test_never_encoded(t):
    """clients.md 3.1 rules 1 and 4: manifests, configs, lists and errors go out as they are, whatever is asked for."""
    image = images.small_image(layers=1).push(t.up, REPO, "1")
    t.up.referrers[REPO, image.digest] = images.to_json(
        {"schemaVersion": 2, "mediaType": images.OCI_INDEX, "manifests": []})
    r = t.recask()
    r.pull(REPO, image, "1")
    r.wait_jobs()
    for encoding in ("gzip", "zstd, gzip", "*", "identity;q=0, gzip"):
        for target in (f"/v2/{REPO}/manifests/1", f"/v2/{REPO}/manifests/{image.digest}",
                       f"/v2/{REPO}/manifests/none", f"/v2/{REPO}/tags/list",
                       f"/v2/{REPO}/referrers/{image.digest}", "/v2/", f"/v2/{REPO}/blobs/{sha256(b'none')}",
                       f"/v2/{REPO}/blobs/{image.layers[0].digest}"):
            answer = r.get(target, {"Accept-Encoding": encoding})
            equal((answer.h("Content-Encoding"), answer.h("Content-Length")), (None, str(len(answer.body))), target)


def test_weights(t):
    """clients.md 3.1 rule 4: a coding is chosen only by its own name and with a weight above 0."""
    image = images.small_image(layers=1).push(t.up, REPO, "1")
    r = t.recask()
    r.pull(REPO, image, "1")
    r.wait_jobs()
    path = t.up.blob_path(REPO, image.layers[0].diff_id)
    for asked, want in (("gzip;q=0.5,zstd;q=0", "gzip"), ("*;q=1", None), ("*, gzip;q=0", None), ("identity;q=0", None),
                        ("X-GZIP", None), ("deflate, compress, br", None), ("ZSTD;Q=0.1", "zstd"), (" ", None),
                        ("zstd;q=0.000, *", None)):
        answer = r.get(path, {"Accept-Encoding": asked})
        equal((answer.status, answer.h("Content-Encoding")), (200, want), asked)


if __name__ == "__main__":
    main()
