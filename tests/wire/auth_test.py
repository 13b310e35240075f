#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Registries that want a token for every anonymous request, as docker.io, ghcr.io and quay.io do. Row numbers are those of
the case list."""
import json
import threading
import time
import urllib.parse

import images
from mock import Answer, sha256
from recask import under_sanitizer
from runner import Clients, equal, main, until

REPO = "library/app"
TOKEN_PATH = "/auth/token"


class Guard:
    """A registry's gate, and its token service: on another port when `service` is another mock."""

    def __init__(self, up, service=None, realm=None, **fields):
        self.up = up
        self.service = service or up
        self.realm = realm or self.service.url + TOKEN_PATH
        self.fields = {"expires_in": 300, **fields}
        self.name = "token"  # of the reply's field
        self.lock = threading.Lock()
        self.tokens = {}     # token -> (scope, end)
        self.challenged = 0
        self.refuse_all = False
        self.delay = 0
        self.status = None   # of the service
        up.gate = self.gate
        self.service.gate = self.gate if self.service is up else self.serve

    def gate(self, request):
        if request.path == TOKEN_PATH:
            return self.serve(request)
        if self.allows(request):
            return None
        self.challenged += 1
        repo = request.path[len("/v2/"):].rsplit("/", 2)[0]
        return Answer(401, b'{"errors":[{"code":"UNAUTHORIZED"}]}', WWW_Authenticate=f'Bearer realm="{self.realm}",'
                      f'service="registry.mock",scope="repository:{repo}:pull"')

    def allows(self, request):
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        with self.lock:
            scope, end = self.tokens.get(token, (None, 0))
        repo = scope[len("repository:"):-len(":pull")] if scope else None
        return (kind == "Bearer" and not self.refuse_all and time.monotonic() < end
                and request.path.startswith(f"/v2/{repo}/"))

    def serve(self, request):
        if request.path != TOKEN_PATH:
            return None
        if self.delay:
            time.sleep(self.delay)
        if self.status:
            return Answer(self.status)
        query = urllib.parse.parse_qs(request.query)
        equal(query.get("service"), ["registry.mock"])
        with self.lock:
            token = f"SECRET-{len(self.tokens)}-{'x' * 1500}"  # about what Docker Hub sends
            end = time.monotonic() + (self.fields["expires_in"] or 60)
            self.tokens[token] = (query["scope"][0], end)
        return Answer(200, json.dumps({self.name: token, **{k: v for k, v in self.fields.items() if v}}).encode())

    def revoke(self):
        with self.lock:
            self.tokens = dict.fromkeys(self.tokens, (None, 0))

    def calls(self):
        return self.service.seen("GET", TOKEN_PATH)


def finish(t, r, *guards):
    """No token has found its way into a log; every call was for one repository, without credentials."""
    for guard in guards:
        for call in guard.calls():
            equal("authorization" in call.headers or "cookie" in call.headers, False)
    r.stop()
    equal("SECRET" in r.log(), False, "a token in the log")


def add(up, seed, size=100_000, repo=REPO):
    data = images.noise(seed, size)
    return data, up.blob_path(repo, up.add_blob(repo, data))


def test_cold_pull(t):
    """60: a whole image with one token, for exactly this repository."""
    image = images.small_image().push(t.up, REPO, "1")
    guard = Guard(t.up, t.more_upstream())
    r = t.recask()
    equal(r.pull(REPO, image, "1").body, image.body)
    r.wait_jobs()
    equal([urllib.parse.parse_qs(c.query) for c in guard.calls()],
          [{"service": ["registry.mock"], "scope": [f"repository:{REPO}:pull"]}])
    equal(guard.challenged, 1)
    other = images.small_image(2).push(t.up, "library/other", "1")
    r.pull("library/other", other, "1")
    equal(len(guard.calls()), 2)
    finish(t, r, guard)


def test_head(t):
    image = images.small_image(layers=1).push(t.up, REPO, "1")
    guard = Guard(t.up)
    r = t.recask()
    answer = r.manifest(REPO, "1", method="HEAD")
    equal((answer.status, answer.h("Docker-Content-Digest")), (200, image.digest))
    answer = r.head(t.up.blob_path(REPO, image.config_digest))
    equal((answer.status, answer.h("Content-Length")), (200, str(len(image.config))))
    equal(r.head(t.up.blob_path(REPO, sha256(b"none"))).status, 404)
    equal((guard.challenged, len(guard.calls())), (1, 1))
    finish(t, r, guard)


def test_one_token_for_many(t):
    """64: fifty at once, for as many blobs and tags of one repository: one token call."""
    blobs = [add(t.up, f"many {i}", 20_000) for i in range(40)]
    image = images.small_image(layers=1)
    for i in range(10):
        image.push(t.up, REPO, f"tag{i}")
    guard = Guard(t.up)
    guard.delay = 0.3
    r = t.recask()
    clients, good = Clients(), []

    def get(path, data):
        answer = r.get(path, {"Accept": images.OCI_MANIFEST})
        if (answer.status, answer.complete, answer.body) == (200, True, data):
            good.append(path)

    for data, path in blobs:
        clients.run(get, path, data)
    for i in range(10):
        clients.run(get, t.up.manifest_path(REPO, f"tag{i}"), image.body)
    clients.join()
    equal(len(good), 50)
    equal(len(guard.calls()), 1)
    finish(t, r, guard)


def test_one_renewal_for_many(t):
    """64: the same when the registry has forgotten the token that all of them use."""
    blobs = [add(t.up, f"renew {i}", 20_000) for i in range(31)]
    guard = Guard(t.up)
    r = t.recask()
    equal(r.get(blobs[30][1]).body == blobs[30][0], True)
    guard.revoke()
    guard.delay = 0.3
    clients, good = Clients(), []

    def get(data, path):
        if r.get(path).body == data:
            good.append(path)

    for data, path in blobs[:30]:
        clients.run(get, data, path)
    clients.join()
    equal((len(good), len(guard.calls())), (30, 2))
    finish(t, r, guard)


def test_access_token(t):
    """58, 59: access_token alone, and no expires_in."""
    blobs = [add(t.up, f"acr {i}") for i in range(5)]
    guard = Guard(t.up, expires_in=None)
    guard.name = "access_token"
    r = t.recask()
    for data, path in blobs:
        equal(r.get(path).body == data, True)
    equal((guard.challenged, len(guard.calls())), (1, 1))
    finish(t, r, guard)


def test_expiry(t):
    """59: renewed in time, so that the registry never sees a dead token."""
    blobs = [add(t.up, f"expiry {i}") for i in range(4)]
    guard = Guard(t.up, expires_in=1)
    r = t.recask()
    for data, path in blobs:
        equal(r.get(path).body == data, True)
        time.sleep(1.05)
    equal((guard.challenged, len(guard.calls())), (1, 4))
    finish(t, r, guard)


def test_foreign_realm(t):
    """52: nothing at all is sent to a realm that is not the upstream's."""
    data, path = add(t.up, "realm")
    evil = t.more_upstream()
    guard = Guard(t.up, evil)
    r = t.recask()
    for realm in (f"http://localhost:{evil.port}{TOKEN_PATH}", f"http://127.0.0.1@localhost:{evil.port}{TOKEN_PATH}",
                  f"//127.0.0.1:{evil.port}{TOKEN_PATH}", "file:///etc/passwd", ""):
        guard.realm = realm
        answer = r.get(path)
        equal((answer.status, answer.error_code()), (404, "DENIED"), realm)
        message = answer.json()["errors"][0]["message"]
        equal((t.up.host in message, realm in message), (True, True), message)
    equal((evil.accepted, evil.requests), (0, []))
    guard.realm = evil.url + TOKEN_PATH  # another port of the same host is its own
    equal(r.get(path).body == data, True)
    finish(t, r, guard)


def test_token_service_redirects_away(t):
    """52: not by a detour either."""
    _, path = add(t.up, "detour")
    evil = t.more_upstream()
    guard = Guard(t.up, t.more_upstream())
    guard.service.gate = lambda request: Answer(307, Location=f"http://localhost:{evil.port}{TOKEN_PATH}")
    r = t.recask()
    answer = r.get(path)
    equal((answer.status, answer.error_code()), (404, "DENIED"))
    equal((evil.accepted, len(guard.calls())), (0, 1))
    finish(t, r, guard)


def test_redirect_without_authorization(t):
    """53: the CDN sees no token; another port and another name are another host, the same one is not."""
    cdn = t.more_upstream()
    guard = Guard(t.up)
    r = t.recask()
    for i, host in enumerate((cdn.url, f"http://localhost:{cdn.port}", f"http://127.0.0.1:{cdn.port}", "")):
        data, path = add(t.up, f"cdn {i}")
        target = f"{path}-moved" if host else f"/v2/{REPO}/blobs/{sha256(data)}?again"
        cdn.gate = lambda request, body=data: Answer(200, body, "application/octet-stream")
        t.up.knob(path, redirect=host + target, times=1)
        answer = r.get(path)
        equal((answer.status, answer.body == data), (200, True), host)
    equal(len(cdn.requests), 3)
    equal([x for x in cdn.requests if "authorization" in x.headers or "cookie" in x.headers], [])
    equal(len(guard.calls()), 1)
    finish(t, r, guard)


def test_denied_for_ever(t):
    """A registry that takes no token: denied after two requests and one token call, each time."""
    _, path = add(t.up, "denied")
    guard = Guard(t.up)
    guard.refuse_all = True
    r = t.recask()
    for n in range(1, 4):
        answer = r.get(path)
        equal((answer.status, answer.error_code()), (404, "DENIED"))
        equal((t.up.count("GET", path), len(guard.calls())), (2 * n, n))
    answer = r.manifest(REPO, "1")
    equal((answer.status, answer.error_code()), (404, "DENIED"))
    equal(r.manifest(REPO, "1", method="HEAD").status, 404)
    guard.refuse_all = False
    equal(r.get(path).status, 200)
    finish(t, r, guard)


def test_basic_only(t):
    """A registry with passwords, of which there are none: said so, not asked again."""
    _, path = add(t.up, "basic")
    t.up.gate = lambda request: Answer(401, WWW_Authenticate='Basic realm="mine"')
    r = t.recask()
    answer = r.get(path)
    equal((answer.status, answer.error_code()), (404, "DENIED"))
    equal(t.up.count(), 1)
    finish(t, r)


def test_token_service_down(t):
    """Quick and clear, and all is well when it is back."""
    data, path = add(t.up, "down")
    guard = Guard(t.up, t.more_upstream())
    guard.service.stop()
    r = t.recask()
    began = time.monotonic()
    answer = r.get(path)
    equal((answer.status, "no token" in answer.json()["errors"][0]["message"]), (404, True))
    equal(time.monotonic() - began < (10 if under_sanitizer() else 3), True)
    guard.service.start()
    guard.status = 404
    equal(r.get(path).status, 404)
    guard.status = 403
    answer = r.get(path)
    equal((answer.status, answer.error_code()), (404, "DENIED"))
    guard.status = None
    equal(r.get(path).body == data, True)
    finish(t, r, guard)


def resume(t, guard, kill):
    """A blob whose connection breaks at its middle, when kill() has ended the token's life."""
    data, path = add(t.up, "resume", 4 << 20)
    knob = t.up.knob(path, stall_at=2 << 20, drop_at=2 << 20, times=1)
    r = t.recask()
    clients, got = Clients(), []
    clients.run(lambda: got.append(r.get(path)))
    until(knob.stalled.is_set, "the stall")
    kill()
    knob.release()
    clients.join()
    equal((got[0].status, got[0].complete, got[0].body == data), (200, True, True))
    equal(len(guard.calls()), 2)
    ranges = [x.headers.get("range") for x in t.up.seen("GET", path)]
    equal(set(ranges[:2]), {None})
    equal(set(ranges[2:]), {f"bytes={2 << 20}-"})
    return r, len(ranges)


def test_resume_after_revocation(t):
    """11: the Range request is refused once, and comes again with a new token."""
    guard = Guard(t.up)
    r, requests = resume(t, guard, guard.revoke)
    equal((guard.challenged, requests), (2, 4))
    finish(t, r, guard)


def test_resume_after_expiry(t):
    """11, 59: renewed before the Range request."""
    guard = Guard(t.up, expires_in=1)
    r, requests = resume(t, guard, lambda: time.sleep(1.05))
    equal((guard.challenged, requests), (1, 3))
    finish(t, r, guard)


if __name__ == "__main__":
    main()
