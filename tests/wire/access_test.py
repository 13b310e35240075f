#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients that need a password. Row numbers are those of the case list."""
import base64
import json
import os
import subprocess
import threading
import time

import images
from mock import Answer
from recask import BINARY, request
from runner import equal, main, until

REPO = "library/app"
# "opensesame" and "second", bcrypt with the least cost
ALICE = "alice:$2y$04$abcdefghijklmnopqrstuuFuhxWRTXIsURoluSTZ1N4tYaWGn9oOi\n"
BOB = "bob:$2b$04$abcdefghijklmnopqrstuu0m4FNu/b0Ul0dVXpD5yXn5kdSneXCgS\n"


def basic(user, password):
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


ALICE_IN = basic("alice", "opensesame")
BOB_IN = basic("bob", "second")


def write(path, text):
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path + ".new", 0o600)
    os.rename(path + ".new", path)


def guarded(t, rules=None, users=ALICE + BOB):
    t.htpasswd = os.path.join(t.directory, "htpasswd")
    write(t.htpasswd, users)
    auth = {"htpasswd": t.htpasswd}
    if rules:
        auth["rules"] = rules
    config = {"upstreams": [{"name": "one", "url": t.up.url}, {"name": "two", "url": t.more_upstream().url}], "auth": auth}
    path = os.path.join(t.directory, "config.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    return t.recask("--config", path, upstreams=[])


def test_passwords(t):
    """Without a password 401, also for /v2/, HEAD, what is cached, what is not there and what is no path; with one all of it."""
    image = images.small_image().push(t.up, REPO, "1")
    r = guarded(t)
    paths = ["/v2/", f"/v2/{REPO}/manifests/1", f"/v2/{REPO}/blobs/{image.layers[0].digest}", f"/v2/{REPO}/tags/list",
             f"/v2/{REPO}/manifests/none", f"/v2/{REPO}/manifests/1?ns=nobody", "/v2/what/is/this", "/other"]
    for path in paths * 2:
        for headers in ({}, basic("alice", "second"), basic("nobody", "opensesame"), {"Authorization": "Bearer x"},
                        {"Authorization": "Basic !"}, {"Authorization": "Basic"}):
            answer = r.get(path, headers)
            equal(answer.status, 401)
            equal(answer.h("WWW-Authenticate"), 'Basic realm="recask", charset="UTF-8"')
            equal(answer.error_code(), "UNAUTHORIZED")
            equal(r.head(path, headers).status, 401)
    equal(t.up.requests, [])
    for path, status in zip(paths, [200, 200, 200, 200, 404, 404, 404, 404]):
        equal(r.get(path, ALICE_IN).status, status)
    equal(r.get(paths[1], BOB_IN).status, 200)
    equal(r.get(paths[1]).status, 401)  # though it is cached now
    # The admin port has rules of its own
    equal(request(r.admin, "GET", "/readyz").status, 200)
    # Nobody's password went on: to an upstream, or into the log
    for seen in t.up.requests:
        assert "authorization" not in seen.headers, seen.headers
    log = r.log()
    for word in ("opensesame", "second", ALICE_IN["Authorization"][6:], BOB_IN["Authorization"][6:]):
        assert word not in log, word


def test_rules(t):
    """A rule names the repository as the upstream knows it, whatever way the request took to it."""
    image = images.small_image().push(t.up, REPO, "1")
    r = guarded(t, [{"users": ["anonymous"], "repositories": ["two/*"]},
                    {"users": ["alice"], "repositories": [f"one/{REPO}"]}])
    ways = [f"/v2/{REPO}/manifests/1", f"/v2/one/{REPO}/manifests/1", f"/v2/{REPO}/manifests/1?ns=one",
            f"/v2/one%2F{REPO}/manifests/1".replace("%2F", "/"), "/v2/library/a%70p/manifests/1",
            f"/v2/{REPO}/blobs/{image.config_digest}", f"/v2/{REPO}/tags/list"]
    for way in ways:
        equal(r.get(way).status, 401)
        equal(r.get(way, BOB_IN).status, 403)
        equal(r.get(way, BOB_IN).error_code(), "DENIED")
        equal(r.get(way, ALICE_IN).status, 200)
    equal(r.get("/v2/").status, 200)  # somebody may read without a password
    equal(r.get(f"/v2/two/{REPO}/manifests/1").status, 404)
    equal(r.get(f"/v2/{REPO}/manifests/1?ns=two").status, 404)
    equal(r.get("/v2/other/manifests/1", ALICE_IN).status, 403)


def test_challenge_is_ours(t):
    """66: an upstream that wants a password or a token never has its challenge shown to a client."""
    t.up.gate = lambda request: Answer(
        401, b"{}", WWW_Authenticate='Bearer realm="https://elsewhere.example/token",service="x"')
    r = guarded(t)
    answer = r.get(f"/v2/{REPO}/manifests/1", ALICE_IN)
    equal(answer.status, 404)
    equal(answer.h("WWW-Authenticate"), None)
    equal(answer.error_code(), "DENIED")
    assert "elsewhere" not in str(r.get(f"/v2/{REPO}/manifests/1").headers)


def test_change_of_the_file(t):
    """New users come in and old ones go without a restart; a file that is bad or gone changes nothing."""
    images.small_image().push(t.up, REPO, "1")
    r = guarded(t, users=ALICE)
    path = f"/v2/{REPO}/manifests/1"
    equal(r.get(path, ALICE_IN).status, 200)
    equal(r.get(path, BOB_IN).status, 401)
    write(t.htpasswd, "alice:plain\n")
    until(lambda: r.get(path, ALICE_IN).status == 200 and "access.file" in r.log(), "a word on the bad file")
    assert "line 1" in r.log() and "plain" not in r.log()
    os.unlink(t.htpasswd)
    for _ in range(3):
        time.sleep(1.1)
        equal(r.get(path, ALICE_IN).status, 200)
    equal(r.get(path).status, 401)
    write(t.htpasswd, BOB)
    until(lambda: r.get(path, BOB_IN).status == 200, "the new user")
    equal(r.get(path, ALICE_IN).status, 401)


def test_many_at_once(t):
    """A client's parallel requests with a password that is new cost one check, and none of them fails."""
    image = images.small_image().push(t.up, REPO, "1")
    r = guarded(t)
    path = f"/v2/{REPO}/blobs/{image.config_digest}"
    statuses = []

    def client(number):
        headers = ALICE_IN if number % 3 else basic("alice", f"guess {number}")
        statuses.append((number % 3 == 0, r.get(path, headers).status))

    threads = [threading.Thread(target=client, args=(i,)) for i in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal({s for bad, s in statuses if bad}, {401})
    equal({s for bad, s in statuses if not bad}, {200})
    equal(len(statuses), 60)


def refuses_to_start(t, users, message):
    """Never off by accident: a file that cannot be used stops the start."""
    try:
        guarded(t, users=users)
    except AssertionError as error:
        assert "ended with" in str(error) and message in str(error), error
    else:
        raise AssertionError("it started")


def test_no_users(t):
    refuses_to_start(t, "# nobody\n", "has no user")


def test_bad_line(t):
    refuses_to_start(t, ALICE + "carol:x\n", "line 2")


def test_no_file(t):
    """... and neither does one that is not there, nor an `auth` that names none."""
    path = os.path.join(t.directory, "config.json")
    for auth, message in (({"htpasswd": "/nonexistent/htpasswd"}, "/nonexistent/htpasswd"), ({}, "auth.htpasswd")):
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"auth": auth}, file)
        done = subprocess.run([BINARY, "serve", "--config", path, "--listen", "127.0.0.1:0", "--admin", "off", "--store",
                               os.path.join(t.directory, "store")], capture_output=True, text=True, timeout=60)
        assert done.returncode in (1, 2) and message in done.stderr, done


if __name__ == "__main__":
    main()
