#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What HTTP offers beyond a plain GET: several ranges, conditions, lists with pages, referrers. Row numbers are those of the
case list."""
import email.parser
import json
import re
import time

import images
from mock import Answer, sha256
from recask import talk
from runner import equal, main, until

REPO = "team/app"


def parts(answer):
    """[(content type, first, last, total, bytes)] of a multipart answer."""
    kind = answer.h("Content-Type")
    boundary = re.fullmatch(r"multipart/byteranges; boundary=([0-9a-f]{32})", kind).group(1).encode()
    equal(int(answer.h("Content-Length")), len(answer.body))
    pieces = (b"\r\n" + answer.body).split(b"\r\n--" + boundary)
    equal((pieces[0], pieces[-1]), (b"", b"--\r\n"))
    found = []
    for piece in pieces[1:-1]:
        head, _, data = piece.partition(b"\r\n\r\n")
        headers = email.parser.Parser().parsestr(head.decode().lstrip())
        first, last, total = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", headers["Content-Range"]).groups()
        found.append((headers["Content-Type"], int(first), int(last), int(total), data))
    return found


def check_several(r, path, data, header, spans):
    answer = r.get(path, {"Range": header, "Accept-Encoding": "gzip, zstd"})
    equal((answer.status, answer.complete, answer.h("Content-Encoding")), (206, True, None), header)
    got = parts(answer)
    equal([(f, l, n) for _, f, l, n, _ in got], [(f, l, len(data)) for f, l in spans], header)
    for kind, first, last, _, piece in got:
        equal((kind, piece == data[first:last + 1]), ("application/octet-stream", True), header)


def flip_in_packs(r, data):
    """These bytes, which lie in a pack as they are, are damaged."""
    for path in r.files("packs"):
        with open(path, "r+b") as file:
            at = file.read().find(data)
            if at >= 0:
                file.seek(at)
                file.write(bytes([data[0] ^ 1]))
                return
    raise AssertionError("not in a pack")


def several(r, path, data):
    end = len(data) - 1
    check_several(r, path, data, "bytes=0-9,20-29", [(0, 9), (20, 29)])
    mid = len(data) // 2
    check_several(r, path, data, f"bytes={mid}-{mid + 10}, 5-6 ,-7,{end}-",
                  [(mid, mid + 10), (5, 6), (end - 6, end), (end, end)])
    check_several(r, path, data, f"bytes=0-0,0-0,{end + 1}-,1-{end + 500}", [(0, 0), (0, 0), (1, end)])
    check_several(r, path, data, f"bytes=7-8,{end + 1}-{end + 2}", [(7, 8)])
    spans = [(at, at + 9) for at in range(0, len(data) - 10, len(data) // 300)]
    check_several(r, path, data, "bytes=" + ",".join(f"{first}-{last}" for first, last in spans), spans)
    spans = [(at, at + 2) for at in range(1, 1025)]  # as many as podman asks for, of a layer of some gigabytes
    check_several(r, path, data, "bytes=" + ",".join(f"{first:010d}-{last:010d}" for first, last in spans), spans)
    answer = r.get(path, {"Range": f"bytes={end + 1}-,{end + 5}-"})
    equal((answer.status, answer.h("Content-Range")), (416, f"bytes */{len(data)}"))
    for header in ("bytes=0-,0-,0-", "bytes=0-1,x", "bytes=0-1,9-2"):
        answer = r.get(path, {"Range": header})
        equal((answer.status, answer.body == data), (200, True), header)
    equal(r.get(path, {"Range": "bytes=" + ",".join(["0-0"] * 1025)}).body == data, True)
    equal(r.get(path, {"Range": "bytes=" + ",".join(["0-0"] * 7000)}).status, 431)
    head = r.head(path, {"Range": "bytes=0-1,4-5"})
    equal((head.status, head.h("Content-Length")), (200, str(len(data))))


def test_several_ranges(t):
    """31: of a raw blob, of a layer by its diffID, of its zstd form, of a gzip original; in the order asked for."""
    image = images.small_image(size=400_000).push(t.up, REPO, "1")
    raw = images.noise(3, 500_000)
    path = t.up.blob_path(REPO, t.up.add_blob(REPO, raw))
    r = t.recask("--zstd-level", "1")
    equal(r.get(path).body == raw, True)
    r.pull(REPO, image, "1")
    r.wait_jobs()
    several(r, path, raw)
    layer = image.layers[0]
    several(r, t.up.blob_path(REPO, layer.diff_id), layer.tar)
    several(r, t.up.blob_path(REPO, layer.digest), layer.blob)
    view = r.manifest(REPO, "1", "containerd/2.1.9").json()["layers"][0]
    form = r.get(t.up.blob_path(REPO, view["digest"])).body
    equal(view["mediaType"].endswith("+zstd"), True)
    several(r, t.up.blob_path(REPO, view["digest"]), form)


def test_several_ranges_cold(t):
    """31: while a blob comes, several ranges get all of it, once."""
    raw = images.noise(3, 500_000)
    path = t.up.blob_path(REPO, t.up.add_blob(REPO, raw))
    r = t.recask()
    answer = r.get(path, {"Range": "bytes=0-9,400000-400009"})
    equal((answer.status, answer.body == raw, answer.complete), (200, True, True))
    equal(t.up.sent(path), len(raw))


def test_several_ranges_of_damaged_bytes(t):
    """4: a part whose bytes are damaged is healed like any other answer."""
    raw = images.noise(4, 800_000)
    path = t.up.blob_path(REPO, t.up.add_blob(REPO, raw))
    r = t.recask()
    equal(r.get(path).body == raw, True)
    r.wait_jobs()
    t.allow = "blob.damaged|chunk.damaged"
    flip_in_packs(r, raw[600_000:600_016])
    check_several(r, path, raw, "bytes=0-9,600000-600015,1-2", [(0, 9), (600000, 600015), (1, 2)])


def test_conditions(t):
    """If-None-Match, If-Match and If-Range are about the form that the request would get."""
    image = images.small_image(size=400_000).push(t.up, REPO, "1")
    r = t.recask()
    r.pull(REPO, image, "1")
    r.wait_jobs()
    path = t.up.blob_path(REPO, image.layers[0].diff_id)
    data = image.layers[0].tar
    forms = {coding: r.get(path, {"Accept-Encoding": coding, "User-Agent": "curl/8"} if coding else {})
             for coding in ("", "zstd", "gzip")}
    tags = {coding: answer.h("ETag") for coding, answer in forms.items()}
    equal(len(set(tags.values())), 3, tags)
    for coding, tag in tags.items():
        for method in ("GET", "HEAD"):
            headers = {"If-None-Match": f'"x", {tag}', "User-Agent": "curl/8"}
            if coding:
                headers["Accept-Encoding"] = coding
            if method == "HEAD" and coding:
                continue  # HEAD is of the identity
            answer = r.open(method, path, headers).rest()
            equal((answer.status, answer.body, answer.h("ETag"), answer.h("Vary"), answer.h("Docker-Content-Digest")),
                  (304, b"", tag, "Accept-Encoding", image.layers[0].diff_id), (method, coding))
            equal((answer.h("Content-Encoding"), answer.h("Content-Type")), (None, None))
    equal(r.get(path, {"If-None-Match": tags["zstd"]}).status, 200)
    equal(r.get(path, {"If-None-Match": "*"}).status, 304)
    equal(r.get(path, {"If-None-Match": "W/" + tags[""]}).status, 304)
    equal(r.get(path, {"If-Match": tags[""]}).status, 200)
    equal(r.get(path, {"If-Match": tags["zstd"]}).status, 412)
    equal(r.get(path, {"If-Match": "W/" + tags[""]}).status, 412)
    equal(r.get(path, {"If-Match": tags["zstd"], "If-None-Match": tags[""]}).status, 412)
    for value, status in ((tags[""], 206), (tags["zstd"], 200), ("W/" + tags[""], 200), (f'"x", {tags[""]}', 200),
                          ("Tue, 01 Dec 2026 00:00:00 GMT", 200)):
        answer = r.get(path, {"If-Range": value, "Range": "bytes=5-9"})
        equal((answer.status, answer.body == (data[5:10] if status == 206 else data)), (status, True), value)
    equal(r.get(path, {"If-None-Match": tags[""], "Range": "bytes=5-9"}).status, 304)
    # Only for those who may have it: another repository does not know this blob
    equal(r.get(path.replace(REPO, "other/app"), {"If-None-Match": tags[""]}).status, 404)


def test_gzip_to_http_1_0(t):
    """A layer named as gzip has no length beforehand: HTTP/1.0, which could not tell a cut answer from a whole one, gets the
    digest's own bytes."""
    image = images.small_image(size=400_000).push(t.up, REPO, "1")
    r = t.recask()
    r.pull(REPO, image, "1")
    r.wait_jobs()
    path = t.up.blob_path(REPO, image.layers[0].diff_id)
    accept = "application/vnd.oci.image.layer.v1.tar+gzip"
    equal(r.get(path, {"Accept": accept}).h("Content-Type"), accept)
    text = talk(r.address, f"GET {path} HTTP/1.0\r\nAccept: {accept}\r\n\r\n".encode())
    head, _, body = text.partition(b"\r\n\r\n")
    equal((head.split(b" ")[1], body == image.layers[0].tar), (b"200", True))
    assert b"octet-stream" in head, head


def test_pages(t):
    """n= and last= go upstream, Link comes back behind the path that the client used, whatever the upstream calls it."""
    r = t.recask(upstreams=[f"docker.io={t.up.url}"])
    seen = []

    def gate(request):
        if not request.path.endswith("/tags/list"):
            return None
        seen.append(request.target)
        return Answer(200, json.dumps({"name": "library/x", "tags": ["a"]}).encode(), Content_Type="application/json",
                      Link=t.link)

    t.up.gate = gate
    links = ['</v2/library/x/tags/list?last=a&n=1>; rel="next"', '<https://else.example/v2/y/tags/list?last=a&n=1>; rel="next"',
             '<?last=a&n=1>;rel=next', '<tags/list?last=a&n=1>; rel="next"']
    for number, t.link in enumerate(links):
        for path in ("/v2/x/tags/list", "/v2/library/x/tags/list", "/v2/docker.io/x/tags/list"):
            answer = r.get(f"{path}?n={number + 1}&q={len(seen)}")
            target = re.fullmatch(r'<([^>]*)>; ?rel="?next"?', answer.h("Link")).group(1)
            equal(target, f"{path}?last=a&n=1")
    answer = r.get("/v2/x/tags/list?n=9&ns=docker.io")
    equal(answer.h("Link").split(">")[0], "</v2/x/tags/list?last=a&n=1&ns=docker.io")
    equal(seen[-1], "/v2/library/x/tags/list?n=9")


def test_lists_go_on_when_the_upstream_does_not(t):
    """What was said of tags and referrers last is said again, marked, while the upstream fails; not when it says no."""
    image = images.small_image().push(t.up, REPO, "1")
    body = images.to_json({"schemaVersion": 2, "mediaType": images.OCI_INDEX, "manifests": []})
    t.up.referrers[REPO, image.digest] = body
    r = t.recask()
    paths = [f"/v2/{REPO}/tags/list", f"/v2/{REPO}/referrers/{image.digest}"]
    first = [r.get(path).body for path in paths]
    time.sleep(10.5)  # their time in memory
    t.up.knob("*", status=503)
    for path, want in zip(paths, first):
        answer = r.get(path)
        equal((answer.status, answer.body == want, answer.h("X-Recask-Cache")), (200, True, "stale"))
        assert "cannot be asked" in answer.h("Warning"), answer
    t.up.forget()
    for path in paths * 3:  # nobody else waits for it
        equal(r.get(path).h("X-Recask-Cache"), "stale")
    equal(t.up.requests, [])
    t.up.clear_knobs()
    t.up.knob("*", status=403)
    until(lambda: r.get(paths[0]).status == 404, "the upstream is asked again")
    equal(r.get(paths[0]).error_code(), "DENIED")


def test_tags_that_may_not_be_listed(t):
    """42: a registry that forbids the list of tags serves images as before."""
    image = images.small_image().push(t.up, REPO, "1")
    t.up.knob(f"/v2/{REPO}/tags/list", status=403)
    r = t.recask()
    equal((r.get(f"/v2/{REPO}/tags/list").status, r.get(f"/v2/{REPO}/tags/list").error_code()), (404, "DENIED"))
    r.pull(REPO, image, "1")


def referrer(kind, seed):
    return {"mediaType": images.OCI_MANIFEST, "digest": sha256(bytes([seed])), "size": 10 + seed, "artifactType": kind}


def test_referrers_tag(t):
    """91: without the API the fallback tag answers, filtered here; without that the list is empty, never a 404."""
    image = images.small_image().push(t.up, REPO, "1")
    index = {"schemaVersion": 2, "mediaType": images.OCI_INDEX,
             "manifests": [referrer("application/a", 1), referrer("application/b", 2), referrer("application/a", 3)]}
    body = json.dumps(index, indent=3).encode()
    t.up.add_manifest(REPO, body, images.OCI_INDEX, tag=image.digest.replace(":", "-"))
    path = f"/v2/{REPO}/referrers/{image.digest}"
    for status in (404, 400, 405, 501):
        knob = t.up.knob(path, status=status)
        r = t.recask()
        answer = r.get(path)
        equal((answer.status, answer.body, answer.h("Content-Type"), answer.h("OCI-Filters-Applied")),
              (200, body, images.OCI_INDEX, None), status)
        answer = r.get(path + "?artifactType=application%2Fa")
        equal((answer.status, answer.h("OCI-Filters-Applied")), (200, "artifactType"))
        equal(answer.json(), {**index, "manifests": [index["manifests"][0], index["manifests"][2]]})
        equal(r.get(path + "?artifactType=application/none").json()["manifests"], [])
        empty = r.get(f"/v2/{REPO}/referrers/{sha256(b'none')}")
        equal((empty.status, empty.json()["manifests"], empty.h("Content-Type")), (200, [], images.OCI_INDEX))
        r.stop()
        del knob
        t.up.clear_knobs()


def test_referrers_tag_that_is_none(t):
    """91: what lies at the fallback tag may be anything; it is told as the upstream's fault."""
    image = images.small_image().push(t.up, REPO, "1")
    other = images.small_image(2).push(t.up, REPO, image.digest.replace(":", "-"))
    r = t.recask()
    answer = r.get(f"/v2/{REPO}/referrers/{image.digest}")
    equal((answer.status, answer.error_code()), (404, "UNAVAILABLE"), other.digest)
    t.up.knob("*", status=500)
    answer = r.get(f"/v2/{REPO}/referrers/{sha256(b'x')}")
    equal((answer.status, answer.error_code()), (404, "UNAVAILABLE"))


def test_escaped_digests(t):
    """A digest may come with its colon escaped; what is sent back names the path as it was asked for."""
    image = images.small_image().push(t.up, REPO, "1")
    r = t.recask()
    escaped = image.digest.replace(":", "%3A")
    equal(r.get(f"/v2/{REPO}/manifests/{escaped}").body, image.body)
    answer = r.get(f"/v2/{REPO}/blobs/{image.config_digest.replace(':', '%3a')}")
    equal((answer.status, answer.body), (200, image.config))
    equal(answer.h("Location"), f"/v2/{REPO}/blobs/{image.config_digest.replace(':', '%3a')}")
    equal(r.get(f"/v2/{REPO}/referrers/{escaped}").status, 200)
    for bad in ("sha256%253A" + "a" * 64, "sha256%3A" + "a" * 63 + "%2F", "sha256:" + "a" * 63 + "%"):
        equal(r.get(f"/v2/{REPO}/blobs/{bad}").status, 400, bad)


if __name__ == "__main__":
    main()
