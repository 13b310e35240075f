#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Manifests, tags, names and upstreams. Row numbers are those of the case list."""
import time

import images
from mock import MockUpstream, sha256
from recask import ACCEPT_ALL, Stream, connect
from runner import Clients, equal, main, until

REPO = "team/app"
DOCKER_ACCEPT = ["application/vnd.docker.distribution.manifest.v2+json",
                 "application/vnd.docker.distribution.manifest.list.v2+json",
                 "application/vnd.oci.image.index.v1+json", "application/vnd.oci.image.manifest.v1+json"]
MANIFEST_HEADERS = ("Content-Type", "Content-Length", "Docker-Content-Digest")


def check_manifest(answer, body, media_type, head=False):
    equal((answer.status, answer.complete), (200, True))
    equal((answer.h("Content-Type"), answer.h("Content-Length"), answer.h("Docker-Content-Digest")),
          (media_type, str(len(body)), sha256(body)))
    equal(answer.body, b"" if head else body)
    equal((answer.h("Content-Encoding"), answer.h("Transfer-Encoding")), (None, None))


def check_error(answer, status, code):
    equal((answer.status, answer.error_code()), (status, code))
    equal((answer.h("Docker-Content-Digest"), answer.h("ETag")), (None, None))
    equal(answer.h("Content-Type").startswith("application/json"), True)


# ---- HEAD and GET -------------------------------------------------------------------------------------------------------

def test_head_and_get_agree(t):
    """19, 23, 24: by tag and by digest, cold and warm; HEAD first, as docker does, or GET first."""
    r = t.recask()
    for n, method in enumerate(("HEAD", "GET")):
        for by in ("tag", "digest"):
            repo = f"agree/{by}{n}"
            image = images.small_image(f"{by}{n}", kind="docker" if n else "oci").push(t.up, repo, "1")
            reference = "1" if by == "tag" else image.digest
            for m in (method, "HEAD", "GET", "HEAD"):
                answer = r.manifest(repo, reference, method=m)
                check_manifest(answer, image.body, image.media_type, m == "HEAD")
                equal(answer.h("X-Recask-Upstream-Digest"), image.digest)
                equal("User-Agent" in (answer.h("Vary") or ""), by == "tag")
            equal(t.up.count("GET", t.up.manifest_path(repo, reference)), 1)


def test_head_and_get_on_one_connection(t):
    image = images.small_image().push(t.up, REPO, "1")
    r = t.recask()
    target = f"/v2/{REPO}/manifests/1"
    with connect(r.address, 10) as sock:
        for method in ("HEAD", "GET", "HEAD", "GET"):
            sock.sendall(f"{method} {target} HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n".encode())
            got = b""
            while b"\r\n\r\n" not in got:
                got += sock.recv(65536)
            head, _, body = got.partition(b"\r\n\r\n")
            equal(head.startswith(b"HTTP/1.1 200"), True)
            while method == "GET" and len(body) < len(image.body):
                body += sock.recv(65536)
            equal(body, image.body if method == "GET" else b"")


def test_upstream_head_says_nothing(t):
    """25: an upstream whose HEAD lacks every header."""
    image = images.small_image().push(t.up, REPO, "1")
    path = t.up.manifest_path(REPO, "1")
    t.up.knob(path, methods={"HEAD"}, headers={n: None for n in MANIFEST_HEADERS})
    r = t.recask("--tag-ttl", "1s")
    check_manifest(r.manifest(REPO, "1", method="HEAD"), image.body, image.media_type, True)
    time.sleep(1.2)
    check_manifest(r.manifest(REPO, "1", method="HEAD"), image.body, image.media_type, True)
    newer = images.small_image(2).push(t.up, REPO, "1")
    time.sleep(1.2)
    check_manifest(r.manifest(REPO, "1", method="HEAD"), newer.body, newer.media_type, True)


def test_answer_without_type_or_digest(t):
    """An upstream that sends the bytes and nothing else."""
    image = images.small_image().push(t.up, REPO, "1")
    for reference in ("1", image.digest):
        t.up.knob(t.up.manifest_path(REPO, reference), content_type="text/plain; charset=utf-8",
                  headers={"Docker-Content-Digest": None}, chunked=True)
    r = t.recask()
    for reference in ("1", image.digest):
        for method in ("GET", "HEAD"):
            check_manifest(r.manifest(REPO, reference, method=method), image.body, image.media_type, method == "HEAD")


def test_accept_in_several_lines(t):
    """docker sends one line for each type, in any order, and no */*."""
    index = images.Index([images.small_image().push(t.up, REPO).descriptor()]).push(t.up, REPO, "1")
    r = t.recask()
    for accept in (DOCKER_ACCEPT, DOCKER_ACCEPT[::-1], ACCEPT_ALL, "*/*"):
        for method in ("HEAD", "GET"):
            answer = r.open(method, f"/v2/{REPO}/manifests/1", {"Accept": accept, "User-Agent": "x"}).rest()
            check_manifest(answer, index.body, index.media_type, method == "HEAD")
    answer = r.get(f"/v2/{REPO}/manifests/1")
    check_manifest(answer, index.body, index.media_type)


# ---- broken upstreams ---------------------------------------------------------------------------------------------------

def test_html_instead_of_a_manifest(t):
    """26: never relayed as a success, never kept."""
    image = images.small_image().push(t.up, REPO, "1")
    path = t.up.manifest_path(REPO, "1")
    r = t.recask()
    for n, (body, kind) in enumerate(((b"<html><body>Please log in</body></html>", "text/html"), (b"", "text/html"),
                                      (b'{"schemaVersion":2}', images.OCI_MANIFEST), (b"[]", images.OCI_MANIFEST),
                                      (b'{"errors":[{"code":"X"}]}', "application/json"))):
        t.up.knob(path, body=body, content_type=kind, headers={"Docker-Content-Digest": None}, times=2)
        equal(r.manifest(REPO, "1", method="HEAD").status, 404, f"HEAD {n}")
        answer = r.manifest(REPO, "1")
        equal((answer.status, bool(answer.error_code()), b"<html" in answer.body), (404, True, False), f"GET {n}")
    check_manifest(r.manifest(REPO, "1"), image.body, image.media_type)
    equal(r.stats()["store"]["manifests"], 1)


def test_wrong_digests(t):
    image, other = images.small_image(1).push(t.up, REPO), images.small_image(2)
    r = t.recask()
    path = t.up.manifest_path(REPO, image.digest)
    t.up.knob(path, body=other.body, headers={"Docker-Content-Digest": image.digest}, times=1)
    equal(r.manifest(REPO, image.digest).status, 404)
    t.up.knob(path, body=other.body, times=1)
    equal(r.manifest(REPO, image.digest).status, 404)
    t.up.knob(t.up.manifest_path(REPO, "1"), body=other.body, content_type=other.media_type,
              headers={"Docker-Content-Digest": image.digest}, times=1)
    image.push(t.up, REPO, "1")
    equal(r.manifest(REPO, "1").status, 404)
    check_manifest(r.manifest(REPO, image.digest), image.body, image.media_type)
    equal(r.manifest(REPO, other.digest).status, 404)


def test_cut_and_slow_manifests(t):
    image = images.small_image().push(t.up, REPO, "1")
    path = t.up.manifest_path(REPO, "1")
    r = t.recask()
    t.up.knob(path, drop_at=100, times=1)
    check_manifest(r.manifest(REPO, "1"), image.body, image.media_type)
    equal(t.up.count("GET", path), 2)
    big = images.small_image(2, annotations={"x": "y" * (5 << 20)}).push(t.up, REPO, "big")
    equal(r.manifest(REPO, "big").status, 404)
    equal(r.manifest(REPO, big.digest).status, 404)


def test_error_bodies(t):
    """27, 49, 69: what cannot be had is 404, and the body says why."""
    r = t.recask()
    check_error(r.manifest(REPO, "none"), 404, "MANIFEST_UNKNOWN")
    check_error(r.manifest(REPO, sha256(b"none")), 404, "MANIFEST_UNKNOWN")
    for status, code in ((401, "DENIED"), (403, "DENIED"), (500, "UNAVAILABLE"), (502, "UNAVAILABLE")):
        t.up.knob(t.up.manifest_path(REPO, f"s{status}"), status=status, body=b"oops", content_type="text/html")
        answer = r.manifest(REPO, f"s{status}")
        equal((answer.status, b"oops" in answer.body, answer.error_code()), (404, False, code), str(status))
        equal(answer.json()["errors"][0]["detail"], {"upstream": t.up.host, "status": status})
    t.up.knob(t.up.manifest_path(REPO, "s429"), status=429, headers={"Retry-After": "60"})
    answer = r.manifest(REPO, "s429")
    equal((answer.status, answer.error_code(), answer.h("Retry-After")), (404, "TOOMANYREQUESTS", None))
    head = r.manifest(REPO, "none", method="HEAD")
    equal((head.status, head.body, head.h("Docker-Content-Digest")), (404, b"", None))
    for target, status, code in ((f"/v2/{REPO}/manifests/!", 400, "MANIFEST_INVALID"),
                                 ("/v2/UPPER/manifests/1", 400, "NAME_INVALID"),
                                 ("/v2/a..b/manifests/1", 400, "NAME_INVALID"),
                                 (f"/v2/{REPO}/manifests/sha256:12", 400, "MANIFEST_INVALID")):
        answer = r.get(target)
        equal((answer.status, answer.error_code()), (status, code), target)


def test_missing_then_there(t):
    """49: a 404 is not remembered for long."""
    r = t.recask()
    equal(r.manifest(REPO, "new").status, 404)
    image = images.small_image().push(t.up, REPO, "new")
    end = time.monotonic() + 10
    while (answer := r.manifest(REPO, "new")).status != 200:
        equal(time.monotonic() < end, True, "still 404 after 10 s")
        time.sleep(0.2)
    check_manifest(answer, image.body, image.media_type)
    check_manifest(r.manifest(REPO, image.digest), image.body, image.media_type)


# ---- tags: freshness ----------------------------------------------------------------------------------------------------

def test_few_requests_upstream(t):
    """30, 36, 37, 40: inside the TTL nobody is asked; after it one HEAD is."""
    image = images.small_image().push(t.up, REPO, "1")
    path = t.up.manifest_path(REPO, "1")
    r = t.recask("--tag-ttl", "2s")
    clients = Clients()
    for _ in range(20):
        clients.run(lambda: check_manifest(r.manifest(REPO, "1", method="HEAD"), image.body, image.media_type, True))
    clients.join()
    for _ in range(80):
        r.manifest(REPO, "1", method="HEAD")
    equal(t.up.count(path=path) <= 2, True, str(t.up.seen(path=path)))
    r.wait_jobs()
    before = t.up.count("GET")
    time.sleep(2.2)
    t.up.forget()
    clients = Clients()
    for _ in range(10):
        clients.run(lambda: check_manifest(r.manifest(REPO, "1"), image.body, image.media_type))
    clients.join()
    equal((t.up.count("HEAD", path), t.up.count("GET", path), before > 0), (1, 0, True))
    for _ in range(5):
        r.manifest(REPO, image.digest)
        r.blob(REPO, image.config_digest)
    r.wait_jobs()
    equal(t.up.count("GET", t.up.manifest_path(REPO, image.digest)), 0)
    equal(t.up.count("HEAD", t.up.manifest_path(REPO, image.digest)), 0)
    equal(t.up.count("GET", t.up.blob_path(REPO, image.config_digest)) <= 1, True)


def test_tag_moves(t):
    """50, 98: the new digest for everybody once the TTL is over, the old one by its digest for ever."""
    old, new = images.small_image(1).push(t.up, REPO, "1"), images.small_image(2)
    r = t.recask("--tag-ttl", "3s")
    check_manifest(r.manifest(REPO, "1"), old.body, old.media_type)
    new.push(t.up, REPO, "1")
    check_manifest(r.manifest(REPO, "1"), old.body, old.media_type)
    time.sleep(3.2)
    for agent, accept in (("test", DOCKER_ACCEPT), ("skopeo/1.9", ACCEPT_ALL), ("curl", "*/*")):
        for method in ("HEAD", "GET"):
            check_manifest(r.manifest(REPO, "1", agent, method, accept), new.body, new.media_type, method == "HEAD")
    t.up.manifests.pop((REPO, old.digest))
    check_manifest(r.manifest(REPO, old.digest), old.body, old.media_type)


def test_stale_when_upstream_fails(t):
    """35, 39, 48, 99: a tag that is known is served, says so, and says it fast."""
    image = images.small_image().push(t.up, REPO, "1")
    path = t.up.manifest_path(REPO, "1")
    r = t.recask("--tag-ttl", "0s")
    check_manifest(r.pull(REPO, image, "1"), image.body, image.media_type)
    r.wait_jobs()

    def check_stale():
        began = time.monotonic()
        for method in ("GET", "HEAD"):
            answer = r.manifest(REPO, "1", method=method)
            check_manifest(answer, image.body, image.media_type, method == "HEAD")
            equal((answer.h("X-Recask-Cache"), answer.h("Warning")[:5]), ("stale", '299 -'))
        equal(time.monotonic() - began < 2, True, "two stale answers take two seconds or more")

    for status in (404, 403, 429, 500):
        knob = t.up.knob(path, status=status)
        check_stale()
        knob.times = 0
    # An upstream that failed may be left alone for some seconds.
    until(lambda: r.manifest(REPO, "1").h("Warning") is None, "asked again", timeout=30)
    t.up.stop()
    check_stale()
    answer = r.manifest(REPO, image.digest)
    check_manifest(answer, image.body, image.media_type)
    equal((answer.h("X-Recask-Cache"), answer.h("Warning")), ("hit", None))
    equal(r.blob(REPO, image.layers[0].digest).body == image.layers[0].blob, True)
    equal(r.stats()["requests"]["stale"] >= 10, True)
    equal(r.manifest(REPO, "other").status, 404)
    t.up.start()
    until(lambda: r.manifest(REPO, "1").h("X-Recask-Cache") == "hit", "asked again")


def test_retry_after_is_honoured(t):
    """35: an upstream that limits is left alone for as long as it asked."""
    image = images.small_image().push(t.up, REPO, "1")
    r = t.recask("--tag-ttl", "0s")
    check_manifest(r.manifest(REPO, "1"), image.body, image.media_type)
    r.wait_jobs()
    t.up.knob(t.up.manifest_path(REPO, "1"), status=429, headers={"Retry-After": "60"})
    t.up.forget()
    for _ in range(10):
        equal(r.manifest(REPO, "1").h("X-Recask-Cache"), "stale")
    equal(t.up.count(path=t.up.manifest_path(REPO, "1")), 1)


def test_offline(t):
    image = images.small_image().push(t.up, REPO, "1")
    r = t.recask("--tag-ttl", "0s")
    r.pull(REPO, image, "1")
    r.wait_jobs()
    r.stop()
    r.flags.append("--offline")
    t.up.forget()
    r.start()
    check_manifest(r.manifest(REPO, "1"), image.body, image.media_type)
    equal(r.blob(REPO, image.layers[0].digest).body == image.layers[0].blob, True)
    equal(r.manifest(REPO, "2").status, 404)
    equal(t.up.requests, [])


# ---- indexes and artifacts ----------------------------------------------------------------------------------------------

def test_index(t):
    """36: one GET for the index and one for the child, however often."""
    amd, arm = images.small_image(1).push(t.up, REPO), images.small_image(2, arch="arm64").push(t.up, REPO)
    for kind in ("oci", "docker"):
        index = images.Index([amd.descriptor(), arm.descriptor()], kind).push(t.up, REPO, kind)
        r = t.recask()
        t.up.forget()
        for _ in range(2):
            check_manifest(r.manifest(REPO, kind), index.body, index.media_type)
            check_manifest(r.manifest(REPO, amd.digest), amd.body, amd.media_type)
            check_manifest(r.manifest(REPO, index.digest), index.body, index.media_type)
        equal((t.up.count("GET", t.up.manifest_path(REPO, kind)), t.up.count("GET", t.up.manifest_path(REPO, amd.digest)),
               t.up.count("GET", t.up.manifest_path(REPO, arm.digest))), (1, 1, 0))


def test_artifacts_are_byte_exact(t):
    """90: white space, unknown keys and types included; never rewritten, whatever the client wishes."""
    layer = (images.gzip(b"chart" * 1000), "application/vnd.cncf.helm.chart.content.v1.tar+gzip")
    body, digest = images.artifact(t.up, REPO, "1", layers=[layer], unknown={"a": [1, 2.50, "\u00e9"]})
    r = t.recask()
    for _ in range(2):
        for agent in ("oras-go", "docker/28.5.2 go/go1.24", "Helm/3.18"):
            for reference in ("1", digest):
                for view in ("zstd", "canonical", "original"):
                    answer = r.manifest(REPO, reference, agent, **{"Recask-View": view})
                    check_manifest(answer, body, images.OCI_MANIFEST)
                    equal(answer.h("X-Recask-View"), "original")
        equal(r.blob(REPO, sha256(layer[0])).body, layer[0])
        equal(r.blob(REPO, sha256(b"{}")).body, b"{}")
        r.wait_jobs()


def test_digest_tags_and_referrers(t):
    """91"""
    image = images.small_image().push(t.up, REPO, "1")
    sig, _ = images.artifact(t.up, REPO, image.digest.replace(":", "-") + ".sig", pretty=False)
    r = t.recask()
    answer = r.manifest(REPO, image.digest.replace(":", "-") + ".sig", "docker/28.5.2")
    check_manifest(answer, sig, images.OCI_MANIFEST)
    equal(r.manifest(REPO, image.digest.replace(":", "-")).status, 404)
    index = images.to_json({"schemaVersion": 2, "mediaType": images.OCI_INDEX, "manifests": []})
    t.up.referrers[REPO, image.digest] = index
    path = f"/v2/{REPO}/referrers/{image.digest}"
    t.up.knob(path, headers={"OCI-Filters-Applied": "artifactType"})
    answer = r.get(path + "?artifactType=application/x")
    equal((answer.status, answer.body, answer.h("OCI-Filters-Applied"), answer.h("Content-Type")),
          (200, index, "artifactType", images.OCI_INDEX))
    equal(t.up.seen("GET", path)[0].query, "artifactType=application/x")
    equal(r.get(f"/v2/{REPO}/referrers/latest").status, 400)


# ---- which upstream -----------------------------------------------------------------------------------------------------

def test_upstreams_by_path_and_ns(t):
    """68, 71"""
    other = t.more_upstream()
    here, there = images.small_image(1).push(t.up, REPO, "1"), images.small_image(2).push(other, REPO, "1")
    r = t.recask(upstreams=[t.up.url, f"ghcr.io={other.url}"])
    for target, image, name in ((f"/v2/{REPO}/manifests/1", here, t.up.host),
                                (f"/v2/ghcr.io/{REPO}/manifests/1", there, "ghcr.io"),
                                (f"/v2/{REPO}/manifests/1?ns=ghcr.io", there, "ghcr.io"),
                                (f"/v2/{t.up.host}/{REPO}/manifests/1", here, t.up.host),
                                (f"/v2/{REPO}/manifests/1?ns={t.up.host}", here, t.up.host)):
        answer = r.get(target)
        check_manifest(answer, image.body, image.media_type)
        equal(answer.h("OCI-Namespace"), name, target)
    equal(r.get(f"/v2/{REPO}/blobs/{there.config_digest}?ns=ghcr.io").body, there.config)
    equal(r.get(f"/v2/{REPO}/blobs/{there.config_digest}").status, 404)
    answer = r.get(f"/v2/ghcr.io/{REPO}/tags/list")
    equal(answer.json()["tags"], ["1"])


def test_unknown_ns_is_never_dialled(t):
    """68: ns is a key, not an address."""
    stranger = MockUpstream()
    t.ups.append(stranger)
    images.small_image().push(t.up, REPO, "1")
    images.small_image().push(stranger, REPO, "1")
    r = t.recask()
    for ns in (stranger.host, stranger.url, "localhost:%d" % stranger.port, "registry.example.com", "..", "%2e%2e%2f"):
        for path in (f"manifests/1?ns={ns}", f"blobs/{sha256(b'x')}?ns={ns}", f"tags/list?ns={ns}",
                     f"referrers/{sha256(b'x')}?ns={ns}"):
            answer = r.get(f"/v2/{REPO}/{path}")
            equal((answer.status, bool(answer.error_code())), (404, True), path)
    equal((stranger.accepted, t.up.requests), (0, []))


def test_library(t):
    """24, 67: one component on Docker Hub means library/."""
    image = images.small_image().push(t.up, "library/alpine", "3")
    r = t.recask(upstreams=[f"docker.io={t.up.url}"])
    for name in ("alpine", "library/alpine", "docker.io/alpine", "docker.io/library/alpine"):
        for method in ("HEAD", "GET"):
            check_manifest(r.manifest(name, "3", method=method), image.body, image.media_type, method == "HEAD")
        equal(r.blob(name, image.config_digest).body, image.config)
        equal(r.get(f"/v2/{name}/tags/list").status, 200)
    for ns in ("docker.io", "index.docker.io", "registry-1.docker.io"):
        equal(r.get(f"/v2/alpine/manifests/3?ns={ns}").status, 200, ns)
    equal(t.up.count("GET", t.up.manifest_path("library/alpine", "3")), 1)
    equal(t.up.count(path=t.up.manifest_path("alpine", "3")), 0)


def test_repositories_are_apart(t):
    """A manifest known from one repository is not another's."""
    image = images.small_image().push(t.up, "secret/app", "1")
    r = t.recask()
    check_manifest(r.manifest("secret/app", image.digest), image.body, image.media_type)
    check_error(r.manifest("public/app", image.digest), 404, "MANIFEST_UNKNOWN")
    image.push(t.up, "public/app", "1")
    check_manifest(r.manifest("public/app", image.digest), image.body, image.media_type)


def test_path_prefix_of_an_upstream(t):
    image = images.small_image().push(t.up, "x", "1")
    t.up.knob("/sub/v2/x/manifests/1", status=200, body=image.body, content_type=image.media_type)
    r = t.recask(upstreams=[f"pre={t.up.url}/sub/"])
    check_manifest(r.manifest("x", "1"), image.body, image.media_type)


def test_client_credentials_stay_here(t):
    images.small_image().push(t.up, REPO, "1")
    r = t.recask()
    r.manifest(REPO, "1", Authorization="Bearer abc", Cookie="c=d")
    r.get(f"/v2/{REPO}/tags/list", {"Authorization": "Bearer abc"})
    for seen in t.up.seen():
        equal((seen.headers.get("authorization"), seen.headers.get("cookie")), (None, None))
        equal(seen.headers["user-agent"].startswith("recask/"), True)


def test_base_and_tags(t):
    r = t.recask()
    for target in ("/v2/", "/v2"):
        answer = r.get(target)
        equal((answer.status, answer.h("Docker-Distribution-Api-Version")), (200, "registry/2.0"))
    equal(t.up.requests, [])
    for tag in "abcde":
        images.small_image().push(t.up, REPO, tag)
    answer = r.get(f"/v2/{REPO}/tags/list?n=2&last=a")
    equal((answer.status, answer.json()), (200, {"name": REPO, "tags": ["b", "c"]}))
    link = answer.h("Link")
    equal((link.startswith(f"</v2/{REPO}/tags/list?"), link.endswith('>; rel="next"')), (True, True), link)
    following = Stream(r.address, "GET", link[1:link.index(">")]).rest()
    equal(following.json()["tags"], ["d", "e"])
    equal(r.get("/v2/none/tags/list").status, 404)


if __name__ == "__main__":
    main()
