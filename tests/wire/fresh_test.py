#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Freshness, failing upstreams, and what clients are told of them. Row numbers are those of the case list."""
import contextlib
import gzip
import json
import os
import socket
import sqlite3
import time

import images
from auth_test import TOKEN_PATH, Guard
from manifest_test import DOCKER_ACCEPT, check_manifest
from mock import sha256
from recask import ACCEPT_ALL, talk
from runner import Clients, equal, main, until

REPO = "team/app"
MISSING = sha256(b"missing")


def warm(t, *flags, seed=1, repo=REPO, **how):
    """recask that knows tag 1 and asks for it anew each time."""
    image = images.small_image(seed).push(t.up, repo, "1")
    r = t.recask("--tag-ttl", "0s", *flags, **how)
    check_manifest(r.pull(repo, image, "1"), image.body, image.media_type)
    r.wait_jobs()
    return r, image


def check_stale(r, image, repo=REPO, warning="cannot be asked"):
    for method in ("GET", "HEAD"):
        answer = r.manifest(repo, "1", method=method)
        check_manifest(answer, image.body, image.media_type, method == "HEAD")
        equal((answer.h("X-Recask-Cache"), answer.h("Warning")[:4], warning in answer.h("Warning")),
              ("stale", "299 ", True), answer.h("Warning"))


def check_stale_at_once(r, image, repo=REPO):
    """With a stale wait of 4 s: one request may have waited for it, 20 may not."""
    began = time.monotonic()
    for _ in range(10):
        check_stale(r, image, repo)
    equal(time.monotonic() - began < 30, True, "each request waits anew")


def check_unavailable(answer, code, status=404):
    equal((answer.status, answer.error_code()), (status, code))
    equal([answer.h(name) for name in ("Docker-Content-Digest", "ETag", "X-Recask-View")], [None] * 3)


# ---- stale-if-error -----------------------------------------------------------------------------------------------------

def test_upstream_hangs(t):
    """38, 98: the stored answer while the upstream thinks; what it says in the end is taken in, and nobody waits twice."""
    r, image = warm(t, "--stale-wait", "4s")
    path = t.up.manifest_path(REPO, "1")
    knob = t.up.knob(path, methods={"HEAD"}, delay=3600)
    t.up.forget()
    check_stale_at_once(r, image)
    equal(t.up.count(path=path), 1, "one question for all of them")
    equal("ev=resolve.slow" in r.log(), True)
    newer = images.small_image(2).push(t.up, REPO, "1")
    knob.release()
    until(lambda: t.up.count("GET", path) == 1, "the answer is followed up")
    t.up.stop()
    until(lambda: r.manifest(REPO, "1").h("Docker-Content-Digest") == newer.digest, "the new manifest is stored")
    t.up.start()


def test_requests_wait_together(t):
    """38: many at once, for several tags of an upstream that hangs."""
    r, image = warm(t)
    for tag in "23456":
        image.push(t.up, REPO, tag)
        r.manifest(REPO, tag)
    t.up.knob("*", delay=3600)
    clients = Clients()
    for n in range(60):
        clients.run(lambda tag: equal(r.manifest(REPO, tag).h("X-Recask-Cache"), "stale"), str(n % 6 + 1))
    clients.join(30)


def test_a_client_leaves_while_it_waits(t):
    r, image = warm(t, "--stale-wait", "1s")
    t.up.knob(t.up.manifest_path(REPO, "1"), delay=3600)
    for _ in range(5):
        r.open("GET", f"/v2/{REPO}/manifests/1").close()
    check_stale(r, image)
    t.up.clear_knobs()
    until(lambda: r.manifest(REPO, "1").h("X-Recask-Cache") == "hit", "asked again")


def test_stop_while_an_answer_is_out(t):
    r, image = warm(t)
    t.up.knob("*", delay=3600)
    check_stale(r, image)
    r.stop()


def test_black_hole(t):
    """39: packets to the registry vanish: no connect timeout per request."""
    r, image = warm(t, "--stale-wait", "4s")
    t.up.stop()
    with contextlib.ExitStack() as stack:
        hole = stack.enter_context(socket.socket())
        hole.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        hole.bind(("127.0.0.1", t.up.port))
        hole.listen(0)
        for _ in range(4):  # the queue is full: nobody answers a SYN any more
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", t.up.port))
        check_stale_at_once(r, image)
        equal(r.manifest(REPO, image.digest).h("X-Recask-Cache"), "hit")
        equal(r.blob(REPO, image.layers[0].digest).body == image.layers[0].blob, True)
    t.up.start()


def test_every_way_to_fail(t):
    """26, 35, 39: down, 5xx, 429, denied, HTML, nothing, wrong digest: the stored image, quickly, and nothing is kept."""
    other = images.small_image(9)
    ways = [({"status": status}, code) for status, code in
            ((500, "UNAVAILABLE"), (502, "UNAVAILABLE"), (503, "UNAVAILABLE"), (429, "TOOMANYREQUESTS"), (403, "DENIED"),
             (401, "DENIED"))]
    ways += [({"body": body, "content_type": kind, "headers": {"Docker-Content-Digest": digest}}, code)
             for body, kind, digest, code in
             ((b"<html>Log in</html>", "text/html", None, "UNAVAILABLE"), (b"", images.OCI_MANIFEST, None, "UNAVAILABLE"),
              (other.body[:-20], images.OCI_MANIFEST, None, "UNAVAILABLE"),
              (other.body, images.OCI_MANIFEST, MISSING, "UNKNOWN"))]
    for n, (how, code) in enumerate(ways):
        repo = f"way/{n}"
        r, image = warm(t, seed=n, repo=repo)
        images.small_image(n + 100).push(t.up, repo, "2")
        before = r.stats()["store"]["manifests"]
        t.up.knob(t.up.manifest_path(repo, "1"), **how)
        t.up.knob(t.up.manifest_path(repo, "2"), **how)
        check_stale(r, image, repo)
        for method in ("GET", "HEAD"):
            answer = r.manifest(repo, "2", method=method)
            equal((answer.status, answer.h("Docker-Content-Digest"), answer.h("ETag")), (404, None, None), f"{how}")
        equal(r.manifest(repo, "2").error_code(), code, f"{how}")
        equal(r.stats()["store"]["manifests"], before)
        r.stop()


def test_down(t):
    """39, 69"""
    r, image = warm(t)
    t.up.stop()
    check_stale_at_once(r, image)
    equal(r.manifest(REPO, image.digest).h("Warning"), None)
    check_unavailable(r.manifest(REPO, "other"), "UNAVAILABLE")
    equal(r.manifest(REPO, "other", method="HEAD").status, 404)
    check_unavailable(r.get(f"/v2/{REPO}/blobs/{MISSING}"), "UNAVAILABLE")
    t.up.start()
    until(lambda: r.manifest(REPO, "1").h("X-Recask-Cache") == "hit", "asked again")


def test_token_service_fails(t):
    """39: it is down, or it hangs."""
    for how in ("down", "hangs"):
        service = t.more_upstream()
        guard = Guard(t.up, service)
        r, image = warm(t, "--stale-wait", "4s")
        guard.revoke()
        if how == "down":
            service.stop()
        else:
            hang = service.knob(TOKEN_PATH, delay=3600)
            service.gate = None
        check_stale_at_once(r, image)
        if how == "down":
            service.start()
        else:
            service.gate = guard.serve
            hang.release()
        until(lambda running=r: running.manifest(REPO, "1").h("X-Recask-Cache") == "hit", "asked again", 20)
        r.stop()


def test_trouble_with_one_tag_is_its_own(t):
    """98: another repository of the same upstream goes on being asked for."""
    r, image = warm(t)
    other = images.small_image(2).push(t.up, "team/other", "1")
    r.manifest("team/other", "1")
    path = t.up.manifest_path(REPO, "1")
    for how in ({"status": 403}, {"status": 404}, {"body": b"<html>", "headers": {"Docker-Content-Digest": None}}):
        knob = t.up.knob(path, **how)
        check_stale(r, image, warning="any more" if how.get("status") == 404 else "cannot be asked")
        t.up.forget()
        check_stale(r, image, warning="any more" if how.get("status") == 404 else "cannot be asked")
        equal(t.up.count(path=path), 0, f"asked again at once: {how}")
        other.push(t.up, "team/other", "1")
        equal(r.manifest("team/other", "1").h("X-Recask-Cache"), "hit", f"{how}")
        knob.times = 0
        r.stop()
        r.start()  # forgets what was noted


def test_throttled_until_retry_after(t):
    """35: 429 with Retry-After: left alone for as long as it asked, whatever the tag."""
    r, image = warm(t)
    image.push(t.up, REPO, "2")
    r.manifest(REPO, "2")
    t.up.knob("*", status=429, headers={"Retry-After": "60"})
    t.up.forget()
    check_stale(r, image)
    check_stale(r, image)
    equal(r.manifest(REPO, "2").h("X-Recask-Cache"), "stale")
    equal(t.up.count(), 1)


# ---- what a tag is ------------------------------------------------------------------------------------------------------

def test_ttl_of_an_upstream(t):
    """38: one upstream's tags are asked for each second, another's not for an hour."""
    quick, slow = t.up, t.more_upstream()
    path = os.path.join(t.directory, "config.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"tag_ttl": "1h", "upstreams": [{"name": "quick", "url": quick.url, "tag_ttl": "1s"},
                                                  {"name": "slow", "url": slow.url}]}, file)
    r = t.recask("--config", path, upstreams=[])
    old, new = images.small_image(1), images.small_image(2)
    for up, name in ((quick, "quick"), (slow, "slow")):
        old.push(up, REPO, "1")
        check_manifest(r.manifest(f"{name}/{REPO}", "1"), old.body, old.media_type)
        new.push(up, REPO, "1")
    until(lambda: r.manifest(f"quick/{REPO}", "1").h("Docker-Content-Digest") == new.digest, "the new one")
    check_manifest(r.manifest(f"slow/{REPO}", "1"), old.body, old.media_type)
    equal(slow.count("HEAD"), 0)


def test_hundred_heads(t):
    """30: inside the TTL one question, whoever asks and however."""
    image = images.small_image().push(t.up, REPO, "1")
    r = t.recask("--tag-ttl", "1h")
    r.manifest(REPO, "1")
    t.up.forget()
    for n in range(100):
        answer = r.manifest(REPO, "1", method="HEAD", accept=("*/*", ACCEPT_ALL, DOCKER_ACCEPT)[n % 3])
        check_manifest(answer, image.body, image.media_type, True)
    equal(t.up.count(path=t.up.manifest_path(REPO, "1")), 0)


def test_index_and_child_are_kept(t):
    """36: two pulls of an image for several platforms: one GET each; later pulls cost HEADs of the tag."""
    amd, arm = images.small_image(1).push(t.up, REPO), images.small_image(2, arch="arm64").push(t.up, REPO)
    index = images.Index([amd.descriptor(), arm.descriptor()], "oci").push(t.up, REPO, "1")
    r = t.recask("--tag-ttl", "0s")
    for _ in range(3):
        check_manifest(r.manifest(REPO, "1"), index.body, index.media_type)
        check_manifest(r.manifest(REPO, amd.digest), amd.body, amd.media_type)
    for image in (amd, arm, index):
        equal(t.up.count("HEAD", t.up.manifest_path(REPO, image.digest)), 0, "38: digests do not change")
    equal([t.up.count("GET", t.up.manifest_path(REPO, reference)) for reference in ("1", amd.digest, arm.digest)],
          [1, 1, 0])


def test_one_digest_for_all_clients(t):
    """98: docker, podman and curl see the same new digest, by HEAD and by GET."""
    r, _ = warm(t)
    newer = images.small_image(2).push(t.up, REPO, "1")
    for agent, accept in (("docker/28.5.2 go/go1.24", DOCKER_ACCEPT), ("containers/5.36.1", ACCEPT_ALL), ("curl", "*/*")):
        for method in ("HEAD", "GET"):
            answer = r.manifest(REPO, "1", agent, method, accept)
            check_manifest(answer, newer.body, newer.media_type, method == "HEAD")


def test_head_is_not_implemented(t):
    """25: then a GET tells."""
    r, image = warm(t)
    for status in (400, 404, 405, 501):
        knob = t.up.knob(t.up.manifest_path(REPO, "1"), methods={"HEAD"}, status=status)
        answer = r.manifest(REPO, "1")
        check_manifest(answer, image.body, image.media_type)
        equal(answer.h("Warning"), None, str(status))
        knob.times = 0


# ---- 404 ----------------------------------------------------------------------------------------------------------------

def test_negative_ttl(t):
    """49: a tag's 404 is believed for a while, HEAD and GET alike."""
    r = t.recask("--negative-ttl", "2s")
    path = t.up.manifest_path(REPO, "1")
    for n in range(10):
        answer = r.manifest(REPO, "1", method="HEAD" if n % 2 else "GET")
        equal(answer.status, 404)
    equal(t.up.count(path=path), 1)
    equal(r.manifest(REPO, "1").error_code(), "MANIFEST_UNKNOWN")
    equal(r.manifest(REPO, "2").status, 404)  # has its own
    equal(t.up.count(path=t.up.manifest_path(REPO, "2")), 1)
    image = images.small_image().push(t.up, REPO, "1")
    until(lambda: r.manifest(REPO, "1").status == 200, "once the time is over")
    check_manifest(r.manifest(REPO, "1"), image.body, image.media_type)


def test_what_is_not_remembered(t):
    """49: digests, and every other refusal."""
    r = t.recask("--negative-ttl", "5m")
    image = images.small_image()
    path = t.up.manifest_path(REPO, image.digest)
    for n in range(3):
        equal(r.manifest(REPO, image.digest).status, 404)
        equal(t.up.count(path=path), n + 1)
    image.push(t.up, REPO)
    check_manifest(r.manifest(REPO, image.digest), image.body, image.media_type)
    for status in (401, 403, 429, 500, 503):
        tag = f"s{status}"
        image.push(t.up, REPO, tag)
        knob = t.up.knob(t.up.manifest_path(REPO, tag), status=status)
        equal(r.manifest(REPO, tag).status, 404, tag)
        knob.times = 0
        check_manifest(r.manifest(REPO, tag), image.body, image.media_type)
    never = t.recask("--negative-ttl", "0s")
    for n in range(3):
        equal(never.manifest(REPO, "none").status, 404)
        equal(t.up.count(path=t.up.manifest_path(REPO, "none")), n + 1)


def test_image_deleted_upstream_is_served(t):
    """48, 99: the default: served and flagged, and found again when it is back."""
    r, image = warm(t, "--negative-ttl", "1s")
    stale = r.stats()["requests"]["stale"]
    t.up.manifests.clear()
    check_stale(r, image, warning="does not have this tag any more")
    equal(r.stats()["requests"]["stale"], stale + 2)
    equal(r.manifest(REPO, image.digest).h("X-Recask-Cache"), "hit")
    newer = images.small_image(2).push(t.up, REPO, "1")
    until(lambda: r.manifest(REPO, "1").h("Docker-Content-Digest") == newer.digest, "it is back")
    equal(r.manifest(REPO, "1").h("Warning"), None)


def test_image_deleted_upstream_is_dropped(t):
    """48, 99: on_upstream_404 = drop: the tag is gone at once, for good, and what has its digest still gets it."""
    r, image = warm(t, "--on-upstream-404", "drop", "--negative-ttl", "0s")
    t.up.knob(t.up.manifest_path(REPO, "1"), methods={"HEAD"}, status=404, times=1)
    check_manifest(r.manifest(REPO, "1"), image.body, image.media_type)  # a HEAD alone is not believed
    t.up.manifests.clear()
    check_unavailable(r.manifest(REPO, "1"), "MANIFEST_UNKNOWN")
    t.up.stop()
    check_unavailable(r.manifest(REPO, "1"), "UNAVAILABLE")
    check_manifest(r.manifest(REPO, image.digest), image.body, image.media_type)
    equal(r.blob(REPO, image.layers[0].digest).body == image.layers[0].blob, True)
    t.up.start()
    image.push(t.up, REPO, "1")
    check_manifest(r.manifest(REPO, "1"), image.body, image.media_type)
    t.up.stop()
    check_stale(r, image)  # other failures drop nothing
    t.up.start()


def rows(r, table):
    with contextlib.closing(sqlite3.connect(f"file:{find_catalog(r)}?mode=ro", uri=True)) as db:
        return db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def find_catalog(r):
    for name in os.listdir(r.store):
        path = os.path.join(r.store, name)
        if os.path.isfile(path):
            with open(path, "rb") as file:
                if file.read(15) == b"SQLite format 3":
                    return path
    raise AssertionError(f"no catalog in {os.listdir(r.store)}")


def test_unknown_names_leave_nothing(t):
    """A client that asks for 1,000 names that no registry has: no rows. One that has something: one."""
    r = t.recask("--negative-ttl", "5m")
    clients = Clients()

    def ask(first):
        for n in range(first, 1000, 4):
            for target in (f"n/{n}/manifests/1", f"n/{n}/manifests/{MISSING}", f"n/{n}/blobs/{MISSING}", f"n/{n}/tags/list"):
                equal(r.open("HEAD" if n % 2 else "GET", f"/v2/{target}").rest().status, 404)

    for first in range(4):
        clients.run(ask, first)
    clients.join(240)
    equal((rows(r, "repo"), rows(r, "blob"), rows(r, "manifest")), (0, 0, 0))
    image = images.small_image().push(t.up, "a/tag", "1")
    image.push(t.up, "a/digest")
    image.push(t.up, "a/blob")
    image.push(t.up, "a/head")
    equal(r.manifest("a/tag", "1").status, 200)
    equal(r.manifest("a/digest", image.digest).status, 200)
    equal(r.blob("a/blob", image.layers[0].digest).status, 200)
    equal(r.head(f"/v2/a/head/blobs/{image.layers[1].digest}").status, 200)
    r.wait_jobs()
    equal(rows(r, "repo"), 4)
    equal(r.head(f"/v2/a/head/blobs/{image.layers[0].digest}").status, 200)  # confirmed for it as well
    equal(r.blob("a/none", image.layers[0].digest).status, 404)
    equal(rows(r, "repo"), 4)


# ---- offline ------------------------------------------------------------------------------------------------------------

def test_offline_never_dials(t):
    """39: tags of any age are hits, misses say why, and no background work tries either."""
    r, image = warm(t)
    wanted = images.small_image(2).push(t.up, "team/wanted", "1")
    knob = t.up.knob(t.up.blob_path("team/wanted", wanted.layers[1].digest), status=500)
    r.manifest("team/wanted", "1")
    r.blob("team/wanted", wanted.layers[0].digest)  # wants views, and cannot have them
    r.wait_jobs()
    knob.times = 0
    r.stop()
    before = len(r.log())
    r.flags.append("--offline")
    accepted = t.up.accepted
    r.start()
    for _ in range(3):
        for method in ("GET", "HEAD"):
            answer = r.manifest(REPO, "1", method=method)
            check_manifest(answer, image.body, image.media_type, method == "HEAD")
            equal((answer.h("X-Recask-Cache"), answer.h("Warning")), ("hit", None))
    equal(r.blob(REPO, image.layers[0].digest).body == image.layers[0].blob, True)
    for target, code in ((f"{REPO}/manifests/2", "MANIFEST_UNKNOWN"), (f"{REPO}/manifests/{MISSING}", "MANIFEST_UNKNOWN"),
                         (f"{REPO}/blobs/{MISSING}", "BLOB_UNKNOWN"), ("none/none/manifests/1", "MANIFEST_UNKNOWN"),
                         (f"none/none/blobs/{image.layers[0].digest}", "BLOB_UNKNOWN")):
        answer = r.get(f"/v2/{target}")
        check_unavailable(answer, code)
        message = answer.json()["errors"][0]["message"]
        equal(("recask is offline" in message, target.rsplit("/", 1)[1] in message), (True, True), message)
        equal(r.head(f"/v2/{target}").status, 404)
    answer = r.get(f"/v2/{REPO}/tags/list")
    equal((answer.status, "offline" in answer.json()["errors"][0]["message"]), (404, True))
    stats = r.wait_jobs()
    equal((t.up.accepted, stats["upstream"]["requests"], "ev=image.fail" in r.log()[before:]),
          (accepted, 0, False))


# ---- what clients are told ------------------------------------------------------------------------------------------------

def test_cannot_obtain_is_404(t):
    """27, 69: any mirror's client goes on to the next host; the body says why; HEAD says nothing of a manifest."""
    r = t.recask()
    for status, code in ((500, "UNAVAILABLE"), (429, "TOOMANYREQUESTS"), (403, "DENIED"), (401, "DENIED")):
        for kind, reference in (("manifests", f"s{status}"), ("manifests", sha256(b"%d" % status)),
                                ("blobs", sha256(b"%d" % status))):
            path = f"/v2/{REPO}/{kind}/{reference}"
            t.up.knob(path, status=status, headers={"Retry-After": "17", "Docker-Content-Digest": MISSING})
            answer = r.get(path)
            check_unavailable(answer, code)
            equal((answer.h("Retry-After"), answer.h("Content-Type")), (None, "application/json"))
            equal((str(status) in answer.json()["errors"][0]["message"], t.up.host in answer.body.decode()), (True, True))
            head = r.head(path)
            equal((head.status, head.body, head.h("Docker-Content-Digest"), head.h("ETag")), (404, b"", None, None))


def test_unavailable_503(t):
    """69: when that is configured: 503 and a time for what may pass; a denial stays 404."""
    r = t.recask("--on-upstream-error", "503")
    for tag, status, after, want in (("a", 429, "17", (503, "TOOMANYREQUESTS", "17")), ("b", 429, None, (503, "TOOMANYREQUESTS", "5")),
                                     ("c", 503, "21", (503, "UNAVAILABLE", "21")), ("d", 500, None, (503, "UNAVAILABLE", "5")),
                                     ("e", 403, None, (404, "DENIED", None)), ("f", 404, None, (404, "MANIFEST_UNKNOWN", None))):
        t.up.knob(t.up.manifest_path(REPO, tag), status=status, headers={"Retry-After": after})
        answer = r.manifest(REPO, tag)
        equal((answer.status, answer.error_code(), answer.h("Retry-After")), want, tag)
    t.up.stop()
    for path in (f"/v2/{REPO}/manifests/z", f"/v2/{REPO}/blobs/{MISSING}", f"/v2/{REPO}/tags/list"):
        answer = r.get(path)
        equal((answer.status, answer.h("Retry-After")), (503, "5"), path)
        equal(r.head(path).status, 503)
    t.up.start()


def with_host(r, host, path):
    answer = talk(r.address, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    head = answer.partition(b"\r\n\r\n")[0].decode()
    names = [line[len("OCI-Namespace: "):] for line in head.split("\r\n") if line.lower().startswith("oci-namespace: ")]
    return int(head.split(" ")[1]), names[0] if names else None


def test_host_selects_the_upstream(t):
    """71: a Host that names an upstream, port or not, behind ns= and the path; an address never does."""
    other, third = t.more_upstream(), t.more_upstream()
    for up in (t.up, other, third):
        images.small_image(up.port).push(up, REPO, "1")
    r = t.recask(upstreams=[t.up.url, f"ghcr.io={other.url}", f"127.0.0.1={third.url}"])
    path = f"/v2/{REPO}/manifests/1"
    for host, target, want in (("ghcr.io", path, "ghcr.io"), ("GHCR.IO:5000", path, "ghcr.io"),
                               ("other.example", path, t.up.host), ("%s:%d" % r.address, path, t.up.host),
                               ("127.0.0.1", path, t.up.host), ("localhost", path, t.up.host),
                               (other.host, path, t.up.host), ("ghcr.io", f"{path}?ns={t.up.host}", t.up.host),
                               ("ghcr.io", f"/v2/{t.up.host}/{REPO}/manifests/1", t.up.host)):
        equal(with_host(r, host, target), (200, want), f"{host} {target}")
    equal(with_host(r, "ghcr.io@127.0.0.1", path)[1] in (None, t.up.host), True)


def test_ns_is_a_key(t):
    """68: case does not matter; a port, a scheme, a path, an encoded or doubled name are looked up as they are."""
    stranger = t.more_upstream()
    for up in (t.up, stranger):
        images.small_image().push(up, REPO, "1")
    r = t.recask(upstreams=[f"ghcr.io={t.up.url}"])
    for ns, status in (("GHCR.IO", 200), ("ghcr%2eio", 200), ("", 200), ("ghcr.io:443", 404), ("https://ghcr.io", 404),
                       ("https:%2f%2fghcr.io", 404), ("ghcr.io/x", 404), (stranger.url, 404),
                       (f"ghcr.io&ns={stranger.host}", 200), (f"{stranger.host}&ns=ghcr.io", 404)):
        equal(r.get(f"/v2/{REPO}/manifests/1?ns={ns}").status in (status, 400), True, ns)
    equal(stranger.accepted, 0)


def test_library_everywhere(t):
    """67: tags, blobs and referrers of a one-component name; answered, not redirected."""
    image = images.small_image().push(t.up, "library/alpine", "3")
    t.up.referrers["library/alpine", image.digest] = images.to_json(
        {"schemaVersion": 2, "mediaType": images.OCI_INDEX, "manifests": []})
    r = t.recask(upstreams=[f"docker.io={t.up.url}"])
    for prefix, query in (("", ""), ("docker.io/", ""), ("index.docker.io/", ""), ("", "?ns=docker.io"),
                          ("", "?ns=index.docker.io"), ("", "?ns=registry-1.docker.io")):
        for rest in ("manifests/3", f"manifests/{image.digest}", f"blobs/{image.config_digest}", "tags/list",
                     f"referrers/{image.digest}"):
            answer = r.get(f"/v2/{prefix}alpine/{rest}{query}")
            equal((answer.status, answer.h("OCI-Namespace")), (200, "docker.io"), f"{prefix} {rest} {query}")


# ---- manifests on the wire ------------------------------------------------------------------------------------------------

def test_compressed_manifest(t):
    """A registry that compresses although it was asked not to: the manifest is what it was before that."""
    r = t.recask("--tag-ttl", "0s", "--negative-ttl", "0s")
    image = images.small_image().push(t.up, REPO, "1")
    packed = gzip.compress(image.body)
    for headers in ({}, {"Docker-Content-Digest": None}):
        for reference in (image.digest, "1"):
            t.up.knob(t.up.manifest_path(REPO, reference), body=packed, headers={"Content-Encoding": "gzip", **headers},
                      methods={"GET"}, times=1)
            check_manifest(r.manifest(REPO, reference), image.body, image.media_type)
    wrong = images.small_image(3)
    for tag, body in (("cut", packed[:-9]), ("not", b"\x1f\x8b nothing"), ("other", gzip.compress(wrong.body))):
        image.push(t.up, REPO, tag)
        t.up.knob(t.up.manifest_path(REPO, tag), body=body, headers={"Content-Encoding": "gzip"})
        equal(r.manifest(REPO, tag).status, 404, tag)
    # says so and does not do it
    plain = images.small_image(4).push(t.up, REPO, "plain")
    t.up.knob(t.up.manifest_path(REPO, "plain"), headers={"Content-Encoding": "gzip"})
    check_manifest(r.manifest(REPO, "plain"), plain.body, plain.media_type)


def test_not_modified(t):
    """If-None-Match (RFC 9110, 13.1.2): 304 with the headers that name the manifest and without a body."""
    r, image = warm(t)
    index = images.Index([image.descriptor()], "oci").push(t.up, REPO, "index")
    r.manifest(REPO, "index")
    for reference, it in (("1", image), (image.digest, image), ("index", index)):
        tag = f'"{it.digest}"'
        for value, status in ((tag, 304), (f"W/{tag}", 304), ("*", 304), (f'"x", {tag}', 304), ('"x"', 200), ("x", 200),
                              (f'"{MISSING}"', 200)):
            for method in ("GET", "HEAD"):
                answer = r.manifest(REPO, reference, method=method, **{"If-None-Match": value})
                equal((answer.status, answer.h("ETag"), answer.h("Docker-Content-Digest")), (status, tag, it.digest), value)
                if status == 304:
                    equal((answer.body, answer.h("Content-Type"), answer.h("Content-Length")),
                          (b"", None, str(len(it.body))))
    equal(r.manifest(REPO, "none", **{"If-None-Match": "*"}).status, 404)
    ask = f"GET /v2/{REPO}/manifests/{image.digest} HTTP/1.1\r\nHost: x\r\n"
    both = talk(r.address, f'{ask}If-None-Match: *\r\n\r\n{ask}Connection: close\r\n\r\n'.encode())
    equal((both.startswith(b"HTTP/1.1 304 "), both.count(b"\r\n\r\nHTTP/1.1 200 "), both.endswith(image.body)), (True, 1, True),
          "the connection goes on behind a 304")
    t.up.stop()
    answer = r.manifest(REPO, "1", **{"If-None-Match": f'"{image.digest}"'})
    equal((answer.status, answer.h("Warning")[:4]), (304, "299 "))
    t.up.start()


if __name__ == "__main__":
    main()
