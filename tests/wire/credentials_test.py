#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Registries that want to know who asks: Basic, tokens for a user, identity tokens; passwords from files, helpers and docker's
config.json. Every test ends with a look for its secrets in all that recask has said. Row numbers are those of the case list."""
import base64
import json
import os
import threading
import time
import urllib.parse

import images
from mock import Answer
from recask import request
from runner import Clients, equal, main, until

REPO = "library/app"
TOKEN_PATH = "/auth/token"
USER, PASSWORD = "j\u00fcrgen", "hunter2 \u00a7 correct"
IDENTITY = "IDENTITY/" + "i" * 300 + "+=="
DIGESTS = iter(range(10**9))


def basic(user, password):
    return base64.b64encode(f"{user}:{password}".encode()).decode()


class Gate:
    """A registry that lets known users in. kinds: what its challenge offers; service: the mock that gives tokens out."""

    def __init__(self, up, kinds=("Bearer",), service=None, accounts=((USER, PASSWORD),)):
        self.up = up
        self.kinds = kinds
        self.service = service or up
        self.realm = self.service.url + TOKEN_PATH
        self.accounts = {basic(*account) for account in accounts}
        self.identities = {IDENTITY}
        self.anonymous = False    # does the service have tokens for everybody?
        self.forbidden = set()    # repositories for nobody
        self.refusal = 401        # of the service
        self.delay = 0
        self.lock = threading.Lock()
        self.tokens = {}
        up.gate = self.gate
        if self.service is not up:
            self.service.gate = self.serve

    def gate(self, req):
        if req.path == TOKEN_PATH and self.service is self.up:
            return self.serve(req)
        repo = req.path[len("/v2/"):].rsplit("/", 2)[0]
        kind, _, value = req.headers.get("authorization", "").partition(" ")
        if kind == "Basic":
            time.sleep(self.delay)
        with self.lock:
            good = (kind == "Basic" and "Basic" in self.kinds and value in self.accounts) or \
                (kind == "Bearer" and self.tokens.get(value) == f"repository:{repo}:pull")
        if good and repo not in self.forbidden:
            return None
        challenges = {"Basic": 'Basic realm="mock"', "Bearer": f'Bearer realm="{self.realm}",service="mock"'}
        return Answer(401, b'{"errors":[{"code":"UNAUTHORIZED"}]}',
                      WWW_Authenticate=", ".join(challenges[k] for k in self.kinds))

    def serve(self, req):
        if req.path != TOKEN_PATH:
            return None
        time.sleep(self.delay)
        query = urllib.parse.parse_qs((req.body.decode() if req.method == "POST" else req.query))
        kind, _, value = req.headers.get("authorization", "").partition(" ")
        if req.method == "POST":
            good = query["refresh_token"][0] in self.identities and query["grant_type"] == ["refresh_token"] and \
                query["client_id"] == ["recask"] and kind == ""
        else:
            good = (kind == "Basic" and value in self.accounts) or (kind == "" and self.anonymous)
        if not good or query["scope"][0].split(":")[1] in self.forbidden:
            return Answer(self.refusal, b'{"error":"hush"}')
        equal(query["service"], ["mock"])
        with self.lock:
            token = f"TOKEN-{next(DIGESTS)}-{'x' * 500}"
            self.tokens[token] = query["scope"][0]
        return Answer(200, json.dumps({"access_token" if req.method == "POST" else "token": token,
                                       "expires_in": 300}).encode())

    def calls(self):
        return [r for r in self.service.seen() if r.path == TOKEN_PATH]

    def logins(self):
        """Requests that carried a password."""
        return [r for r in self.up.seen() + (self.service.seen() if self.service is not self.up else [])
                if r.headers.get("authorization", "").startswith("Basic ")]


class Watch:
    """recask with upstreams from a configuration file; remembers all that it says."""

    def __init__(self, t, *upstreams, **config):
        self.t = t
        self.said = []
        path = os.path.join(t.directory, f"config-{len(t.processes)}.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"upstreams": list(upstreams), "stop_timeout": "1s", **config}, file)
        self.r = t.recask("--config", path, "--log-level", "debug", upstreams=[],
                          env={"PATH": t.directory + ":" + os.environ["PATH"]})

    def get(self, path, headers=None):
        return self.keep(self.r.get(path, headers))

    def manifest(self, repo, reference):
        return self.keep(self.r.manifest(repo, reference))

    def keep(self, answer):
        self.said.append(repr(answer.headers).encode())
        if answer.status != 200:
            self.said.append(answer.body)
        return answer

    def message(self, path, code):
        answer = self.get(path)
        equal((answer.status, answer.error_code()), (404, code), answer.body)
        return answer.json()["errors"][0]["message"].encode("latin-1").decode()  # each byte is a character there

    def finish(self, *more_secrets):
        self.said += [request(self.r.admin, "GET", p).body for p in ("/api/v1/stats", "/metrics", "/readyz", "/healthz")]
        self.r.stop(allow=self.t.allow)
        log = self.r.log()
        everything = b"\n".join([*self.said, log.encode()])
        for secret in (PASSWORD, "hunter2", basic(USER, PASSWORD), IDENTITY, urllib.parse.quote(IDENTITY, safe=""), "TOKEN-",
                       json.dumps(PASSWORD)[1:-1], "WRONG", base64.b64encode(b"WRONG").decode()[:6], *more_secrets):
            for form in (secret, secret.replace('"', '\\"')):
                equal(form.encode() in everything, False, f"{form!r} was said")
        return log


def write(t, name, text, mode=0o600):
    path = os.path.join(t.directory, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)
    return path


def helper(t, name, script):
    """A credential helper that counts its runs in the file NAME.runs."""
    runs = os.path.join(t.directory, name + ".runs")
    return write(t, "docker-credential-" + name, f'#!/bin/sh\nread -r server\necho "$1 $server" >>{runs}\n{script}\n', 0o755)


def runs(t, name):
    try:
        with open(os.path.join(t.directory, name + ".runs"), encoding="utf-8") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def reply(user, secret):
    return f"cat <<'END'\n{json.dumps({'ServerURL': 'x', 'Username': user, 'Secret': secret})}\nEND"


def add(up, seed, repo=REPO):
    data = images.noise(seed, 20_000)
    return data, up.blob_path(repo, up.add_blob(repo, data))


def upstream(t, up=None, password=PASSWORD, **more):
    return {"url": (up or t.up).url, "username": USER, "password_file": write(t, "password", password + "\n"), **more}


def good(w, data, path):
    answer = w.get(path)
    equal((answer.status, answer.body == data), (200, True), answer.body[:300])


# ---- a password --------------------------------------------------------------------------------------------------------

def test_basic(t):
    """Case 62: a whole image from a registry with Basic; one challenge for all repositories."""
    image = images.small_image().push(t.up, REPO, "1")
    other = add(t.up, "other", "library/other")
    gate = Gate(t.up, kinds=("Basic",))
    w = Watch(t, upstream(t))
    equal(w.r.pull(REPO, image, "1").body, image.body)
    good(w, *other)
    w.r.wait_jobs()
    equal({r.headers.get("authorization") for r in t.up.seen()}, {None, "Basic " + basic(USER, PASSWORD)})
    equal(t.up.count() - len(gate.logins()), 1)
    w.finish()


def test_token_for_a_user(t):
    """Cases 60, 64: tokens fetched with the password, one call for fifty requests; the registry never sees the password."""
    service = t.more_upstream()
    blobs = [add(t.up, f"many {i}") for i in range(50)]
    gate = Gate(t.up, service=service)
    gate.delay = 0.2
    w = Watch(t, upstream(t))
    clients = Clients()
    for data, path in blobs:
        clients.run(good, w, data, path)
    clients.join()
    equal([(c.method, urllib.parse.parse_qs(c.query), c.headers.get("authorization")) for c in gate.calls()],
          [("GET", {"service": ["mock"], "scope": [f"repository:{REPO}:pull"]}, "Basic " + basic(USER, PASSWORD))])
    equal([r for r in t.up.seen() if r.headers.get("authorization", "").startswith("Basic")], [])
    w.finish()


def test_bearer_before_basic(t):
    """Where both are offered the registry itself does not get the password."""
    blob = add(t.up, "both")
    gate = Gate(t.up, kinds=("Basic", "Bearer"))
    w = Watch(t, upstream(t))
    good(w, *blob)
    equal([r.path for r in gate.logins()], [TOKEN_PATH])
    w.finish()


def wrong_password(t, gate, who):
    """Forty requests at once for ten repositories: one login; later ones none; a new password counts at once."""
    blobs = [add(t.up, f"wrong {i}", f"library/r{i % 10}") for i in range(40)]
    gate.delay = 0.2
    entry = upstream(t, password="WRONG-password")
    w = Watch(t, entry)
    clients = Clients()
    for _, path in blobs:
        clients.run(w.message, path, "DENIED")
    clients.join()
    message = w.message(blobs[0][1], "DENIED")
    want = f"{who} refused the credentials of upstream {t.up.host} (user {USER} from {entry['password_file']})"
    equal(want in message, True, message)
    equal(len(gate.logins()), 1)
    for _, path in blobs[:5]:
        equal(want in w.message(path, "DENIED"), True)
    equal(len(gate.logins()), 1)
    upstream(t)
    for data, path in blobs[:12]:
        good(w, data, path)
    w.finish("WRONG-password", basic(USER, "WRONG-password"))


def many_repositories(t, gate):
    """The first is tried alone, the others are on their way at once after it."""
    blobs = [add(t.up, f"repo {i}", f"library/r{i % 20}") for i in range(40)]
    gate.delay = 0.1
    w = Watch(t, upstream(t))
    clients = Clients()
    for data, path in blobs:
        clients.run(good, w, data, path)
    clients.join()
    w.finish()


def test_many_repositories_basic(t):
    many_repositories(t, Gate(t.up, kinds=("Basic",)))


def test_many_repositories_token(t):
    """Case 60: a token for each."""
    gate = Gate(t.up, service=t.more_upstream())
    many_repositories(t, gate)
    equal(len(gate.calls()), 20)


def test_no_verdict(t):
    """The one that tries a password for all meets a 403, which says nothing of it: the next one tries."""
    blobs = [add(t.up, f"verdict {i}", f"library/r{i}") for i in range(6)]
    gate = Gate(t.up, kinds=("Basic",))
    gate.delay = 0.2
    left = [3]

    def some_403(req):
        answer = gate.gate(req)
        if answer is None and left[0] > 0:
            left[0] -= 1
            return Answer(403)
        return answer

    t.up.gate = some_403
    w = Watch(t, upstream(t))
    clients, statuses = Clients(), []
    for _, path in blobs:
        clients.run(lambda p: statuses.append(w.get(p).status), path)
    clients.join()
    equal(sorted(statuses), [200, 200, 200, 404, 404, 404])
    w.finish()


def test_wrong_password_basic(t):
    """Case 62: accounts are locked by retries."""
    wrong_password(t, Gate(t.up, kinds=("Basic",)), "the registry")


def test_wrong_password_token(t):
    """Case 62: the same at a token service."""
    wrong_password(t, Gate(t.up, service=t.more_upstream()), "the token service")


def forbidden(t, gate):
    """One repository that the user may not read does not shut out the others."""
    mine, alien = add(t.up, "mine"), add(t.up, "alien", "library/alien")
    gate.forbidden.add("library/alien")
    w = Watch(t, upstream(t))
    good(w, *mine)
    before = len(gate.logins())
    for _ in range(4):
        equal(" refused the credentials of upstream " in w.message(alien[1], "DENIED"), True)
    equal(len(gate.logins()) - before, 1)
    good(w, *add(t.up, "mine too"))
    good(w, *add(t.up, "third", "library/third"))
    w.finish()


def test_forbidden_basic(t):
    forbidden(t, Gate(t.up, kinds=("Basic",)))


def test_forbidden_token(t):
    gate = Gate(t.up)
    gate.refusal = 403
    forbidden(t, gate)


def test_password_changes(t):
    """The registry's password and the file's change together: nobody notices."""
    gate = Gate(t.up, kinds=("Basic",))
    w = Watch(t, upstream(t))
    good(w, *add(t.up, "before"))
    gate.accounts = {basic(USER, "NEW-password")}
    upstream(t, password="NEW-password")
    good(w, *add(t.up, "after"))
    w.finish("NEW-password", basic(USER, "NEW-password"))


def test_unreadable_password(t):
    """Case 62: never anonymous because a file is gone; and a stored image is still served."""
    image = images.small_image(layers=1).push(t.up, REPO, "1")
    gate = Gate(t.up)
    gate.anonymous = True
    entry = upstream(t)
    w = Watch(t, entry, tag_ttl="1s")
    w.r.pull(REPO, image, "1")
    w.r.wait_jobs()
    with gate.lock:
        gate.tokens.clear()
    calls = len(gate.calls())
    os.unlink(entry["password_file"])
    path = add(t.up, "no password")[1]
    message = w.message(path, "UNAVAILABLE")
    equal(f"credentials for upstream {t.up.host}: " in message and entry["password_file"] in message, True, message)
    equal(len(gate.calls()), calls)
    time.sleep(1.1)
    answer = w.manifest(REPO, "1")
    equal((answer.status, answer.body == image.body), (200, True))
    equal("ev=resolve.stale" in w.r.log(), True)
    w.finish()


def test_no_password(t):
    """A registry that wants one, and there is none: said so."""
    Gate(t.up, kinds=("Basic",))
    w = Watch(t, {"url": t.up.url})
    message = w.message(add(t.up, "none")[1], "DENIED")
    equal(f"the registry wants a password, and upstream {t.up.host} has none" in message, True, message)
    equal(t.up.count(), 1)
    w.finish()


def test_token_service_fails(t):
    """Down, or broken: the message has neither password nor token."""
    blob = add(t.up, "fails")
    gate = Gate(t.up, service=t.more_upstream())
    w = Watch(t, upstream(t))
    for answer in (Answer(500, PASSWORD.encode()), Answer(200, b'{"token":7}'), Answer(200, b"not json")):
        gate.service.gate = lambda _, a=answer: a
        equal("no token for " in w.message(blob[1], "UNAVAILABLE"), True)
    gate.service.stop()
    clients, before = Clients(), w.r.log().count("ev=upstream.retry")
    for i in range(12):
        clients.run(w.message, add(t.up, f"down {i}", f"library/r{i}")[1], "UNAVAILABLE")
    clients.join()
    equal(w.r.log().count("ev=upstream.retry") - before < 12, True)  # one has tried for many
    gate.service.gate = gate.serve
    gate.service.start()
    good(w, *blob)
    w.finish()


# ---- who gets to see it --------------------------------------------------------------------------------------------------

def test_not_to_others(t):
    """Cases 53, 62: upstream A's password and tokens are for A alone: not for B, not for A's CDN, whatever the path."""
    other, cdn = t.more_upstream(), t.more_upstream()
    for kinds in (("Basic",), ("Bearer",)):
        Gate(t.up, kinds=kinds)
        data, path = add(t.up, f"cdn {kinds}")
        t.up.knob(path, redirect=cdn.url + path + "?signed", times=1)
        cdn.gate = lambda _, body=data: Answer(200, body, "application/octet-stream")
        w = Watch(t, upstream(t, name="a.example"), {"name": "b.example", "url": other.url}, default_upstream="a.example")
        good(w, data, path + "?ns=a.example")
        theirs = add(other, f"theirs {kinds}")
        good(w, theirs[0], theirs[1] + "?ns=b.example")
        Gate(other, kinds=kinds).anonymous = True
        theirs = add(other, f"theirs, closed {kinds}")
        equal(w.get(theirs[1] + "?ns=b.example").status, 404 if kinds == ("Basic",) else 200)
        w.finish()
        other.gate = None
    equal((len(cdn.requests) > 0, len(other.requests) > 0), (True, True))
    for r in cdn.seen():
        equal("authorization" in r.headers or "cookie" in r.headers, False)
    for r in other.seen():
        equal("Basic" in r.headers.get("authorization", ""), False)


def test_foreign_realm(t):
    """Case 52: with a password at stake too, nothing is sent to a realm that is neither the upstream's nor listed."""
    evil = t.more_upstream()
    blob = add(t.up, "foreign")
    gate = Gate(t.up)
    w = Watch(t, upstream(t, token_realms=[f"http://localhost:{evil.port}/auth"]))
    for realm in (f"http://localhost:{evil.port}/authx", f"http://localhost:{evil.port}/auth/../x",
                  f"http://localhost:{t.up.port}/auth", f"http://me@localhost:{evil.port}/auth", "http://evil.example/auth"):
        gate.realm = realm
        equal("not its own" in w.message(blob[1], "DENIED"), True)
    equal(evil.accepted, 0)
    gate.service = evil
    evil.gate = gate.serve
    gate.realm = f"http://localhost:{evil.port}{TOKEN_PATH}"
    good(w, *blob)
    equal(len(gate.logins()), 1)
    w.finish()


def test_token_redirects(t):
    """Case 52: each hop has to belong to the upstream; and the password stays with the realm's own origin."""
    service, second, evil = t.more_upstream(), t.more_upstream(), t.more_upstream()
    gate = Gate(t.up, service=service)
    gate.anonymous = True
    second.gate = gate.serve
    w = Watch(t, upstream(t))
    service.gate = lambda r: Answer(307, Location=f"{second.url}{r.target}")
    good(w, *add(t.up, "hop"))
    equal(["authorization" in r.headers for r in service.seen() + second.seen()], [True, False])
    service.gate = lambda r: Answer(307, Location=f"http://localhost:{evil.port}{r.target}")
    message = w.message(add(t.up, "evil", "library/evil")[1], "DENIED")
    equal("not its own" in message, True, message)
    service.gate = lambda r: Answer(307, Location="/moved?" + r.query) if r.path == TOKEN_PATH else \
        gate.serve(type(r)(r.method, f"{TOKEN_PATH}?{r.query}", r.headers))
    gate.anonymous = False
    good(w, *add(t.up, "home", "library/home"))
    equal(evil.accepted, 0)
    w.finish()


# ---- helpers -------------------------------------------------------------------------------------------------------------

def test_helper(t):
    """Case 62: docker-credential-NAME, asked once for many repositories."""
    gate = Gate(t.up)
    helper(t, "vault", reply(USER, PASSWORD))
    w = Watch(t, {"url": t.up.url, "credential_helper": "vault"})
    for i in range(5):
        good(w, *add(t.up, f"helper {i}", f"library/h{i}"))
    equal(runs(t, "vault"), [f"get {t.up.host}"])
    equal(len(gate.calls()), 5)
    w.finish()


def test_helper_identity(t):
    """Case 62: "<token>" is an identity token, which goes to the token service in a form, and nowhere else."""
    service = t.more_upstream()
    gate = Gate(t.up, service=service)
    path = helper(t, "acr", reply("<token>", IDENTITY))
    w = Watch(t, {"url": t.up.url, "credential_helper": path})
    blobs = [add(t.up, f"acr {i}") for i in range(3)]
    for blob in blobs:
        good(w, *blob)
    equal([(r.method, r.query, r.headers.get("authorization"), r.headers.get("content-type")) for r in gate.calls()],
          [("POST", "", None, "application/x-www-form-urlencoded")])
    equal(urllib.parse.parse_qs(gate.calls()[0].body.decode()),
          {"grant_type": ["refresh_token"], "client_id": ["recask"], "service": ["mock"],
           "scope": [f"repository:{REPO}:pull"], "refresh_token": [IDENTITY]})
    w.finish()


def test_identity_refused(t):
    """Not redirected anywhere, not tried again; a service without POST is told as that."""
    service, evil = t.more_upstream(), t.more_upstream()
    gate = Gate(t.up, service=service)
    path = helper(t, "acr", reply("<token>", IDENTITY))
    w = Watch(t, {"url": t.up.url, "credential_helper": path})
    blob = add(t.up, "identity")
    service.gate = lambda r: Answer(307, Location=evil.url + r.path)
    equal("which an identity token is not" in w.message(blob[1], "DENIED"), True)
    service.gate = lambda r: Answer(405)
    equal("status 405" in w.message(blob[1], "UNAVAILABLE"), True)
    service.gate = gate.serve
    gate.identities = set()
    gate.refusal = 400
    before = len(gate.calls())
    for _ in range(3):
        message = w.message(blob[1], "DENIED")
        equal(f"refused the credentials of upstream {t.up.host} (identity token from credential helper {path})" in message,
              True, message)
    equal((len(gate.calls()) - before <= 2, evil.accepted), (True, 0))
    w.finish()


def test_helper_rotates(t):
    """What a helper said goes out of date: asked again when it is refused, and no client sees that."""
    for kinds in (("Basic",), ("Bearer",)):
        gate = Gate(t.up, kinds=kinds, accounts=[("AWS", "SECRET-1")])
        name = "ecr" + kinds[0].lower()
        helper(t, name, reply("AWS", "SECRET-1"))
        w = Watch(t, {"url": t.up.url, "credential_helper": name})
        good(w, *add(t.up, f"first {kinds}"))
        gate.accounts = {basic("AWS", "SECRET-2")}
        with gate.lock:
            gate.tokens.clear()
        helper(t, name, reply("AWS", "SECRET-2"))
        good(w, *add(t.up, f"second {kinds}"))
        good(w, *add(t.up, f"third {kinds}", "library/third"))
        equal(len(runs(t, name)), 2)
        w.finish("SECRET-1", "SECRET-2", basic("AWS", "SECRET-1"))


def test_helper_has_none(t):
    """No credentials there: anonymous, as with docker."""
    gate = Gate(t.up)
    gate.anonymous = True
    helper(t, "empty", "echo 'credentials not found in native keychain'; exit 1")
    w = Watch(t, {"url": t.up.url, "credential_helper": "empty"})
    good(w, *add(t.up, "anonymous"))
    equal(["authorization" in r.headers for r in gate.calls()], [False])
    w.finish()


def test_helper_fails(t):
    """Never anonymous because a helper is broken; its words are for the log, unless they repeat its output."""
    gate = Gate(t.up)
    gate.anonymous = True
    scripts = {"exit": "echo 'session expired' >&2; exit 3", "leak": f"set -x; echo '{PASSWORD}' | tee /dev/stderr; exit 1",
               "odd": f"echo '{PASSWORD}'", "none": "exit 0", "kill": "kill -9 $$"}
    for i, (name, script) in enumerate(scripts.items()):
        helper(t, name, script)
        w = Watch(t, {"url": t.up.url, "credential_helper": name})
        message = w.message(add(t.up, f"fails {i}")[1], "UNAVAILABLE")
        equal(f"credential helper {name}: " in message and "session" not in message, True, message)
        equal("session expired" in w.finish(), name == "exit")
    equal(gate.calls(), [])


def test_helper_hangs(t):
    """One upstream's helper holds up neither another upstream nor the end of recask; no process stays behind."""
    other = t.more_upstream()
    Gate(t.up)
    Gate(other, accounts=[(USER, PASSWORD)])
    pid_file = os.path.join(t.directory, "pid")
    helper(t, "slow", f"echo $$ >{pid_file}; exec sleep 1000")
    w = Watch(t, {"name": "a.example", "url": t.up.url, "credential_helper": "slow"}, upstream(t, other, name="b.example"))
    waiting = add(t.up, "waits")
    clients = Clients()

    def wait():
        try:
            w.r.get(waiting[1] + "?ns=a.example")
        except EOFError:  # recask has stopped
            pass

    clients.run(wait)
    until(lambda: os.path.exists(pid_file) and os.path.getsize(pid_file) > 1, "the helper")
    data, path = add(other, "goes")
    good(w, data, path + "?ns=b.example")
    with open(pid_file, encoding="ascii") as file:
        pid = int(file.read())
    w.r.stop()
    clients.join()
    until(lambda: not os.path.exists(f"/proc/{pid}"), "the helper's end")


# ---- docker's config.json ------------------------------------------------------------------------------------------------

def test_auth_file(t):
    """Case 62: by host; what an upstream says itself counts before; a change is seen."""
    other, third = t.more_upstream(), t.more_upstream()
    gate, second = Gate(t.up), Gate(other, kinds=("Basic",), accounts=[("own", "OWN-password")])
    Gate(third).anonymous = True
    helper(t, "store", reply("own", "never"))
    auth = write(t, "docker.json", json.dumps({
        "auths": {t.up.host: {"auth": basic(USER, "WRONG-old")}, other.host: {"auth": basic("own", "WRONG-too")}},
        "credsStore": "store"}))
    own = {"name": "b.example", "url": other.url, "username": "own", "password_file": write(t, "own", "OWN-password")}
    w = Watch(t, {"name": "a.example", "url": t.up.url}, own, auth_file=auth)
    data, path = add(t.up, "auths")
    message = w.message(path + "?ns=a.example", "DENIED")
    equal(f"(user {USER} from {auth})" in message, True, message)
    equal(w.message(path + "?ns=a.example", "DENIED"), message)
    equal(len(gate.calls()), 1)
    write(t, "docker.json", json.dumps({"auths": {f"http://{t.up.host}/v2/": {"identitytoken": IDENTITY}}}))
    good(w, data, path + "?ns=a.example")
    equal([r.method for r in gate.calls()], ["GET", "POST"])
    data, path = add(other, "own")
    good(w, data, path + "?ns=b.example")
    equal({r.headers.get("authorization") for r in second.logins()}, {"Basic " + basic("own", "OWN-password")})
    equal(runs(t, "store"), [])
    w.finish("OWN-password", basic("own", "OWN-password"), basic("own", "WRONG-too"))


def test_auth_file_helpers(t):
    """Case 62: credHelpers for a host, credsStore for the rest."""
    other = t.more_upstream()
    Gate(t.up)
    Gate(other, accounts=[("other", "OTHER-password")])
    helper(t, "one", reply(USER, PASSWORD))
    helper(t, "all", reply("other", "OTHER-password"))
    auth = write(t, "docker.json", json.dumps({"credHelpers": {t.up.host: "one"}, "credsStore": "all",
                                               "auths": {t.up.host: {}, other.host: {}}}))
    w = Watch(t, {"name": "a.example", "url": t.up.url}, {"name": "b.example", "url": other.url}, auth_file=auth)
    for up, name in ((t.up, "a.example"), (other, "b.example")):
        data, path = add(up, name)
        good(w, data, f"{path}?ns={name}")
    equal((runs(t, "one"), runs(t, "all")), ([f"get {t.up.host}"], [f"get {other.host}"]))
    w.finish("OTHER-password", basic("other", "OTHER-password"))


if __name__ == "__main__":
    main()
