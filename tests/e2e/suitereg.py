#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""suitereg.py REGISTRY-PORT PORT READ-PORT FRONT-PORT: what the conformance suite needs around an old registry.

PORT is the registry, with the two things that Debian's lacks: pages of tags (n, last), and the referrers API, both made
from what was pushed through here. FRONT-PORT is one registry made of two: what reads goes to READ-PORT (recask, in front
of PORT), what writes goes to PORT. recask remembers lists for some seconds, and the suite lists what it has just pushed:
each list is asked for with another n, which none of them reaches, so that none is remembered.
"""
import hashlib
import http.client
import http.server
import itertools
import json
import re
import socketserver
import sys
import threading
import urllib.parse

HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}
INDEX = "application/vnd.oci.image.index.v1+json"
fresh = itertools.count(10_000)
referrers = {}  # (repository, subject) -> descriptors


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, format, *args):  # pylint: disable=redefined-builtin
        pass

    def body(self):
        if "chunked" not in self.headers.get("Transfer-Encoding", "").lower():
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        out = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            out += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return out

    def ask(self, port, target, body):
        """The answer of another server to this request: (status, headers, body)."""
        there = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        there.putrequest(self.command, target, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in HOP:
                there.putheader(name, value)
        if body or self.command not in ("GET", "HEAD", "DELETE"):
            there.putheader("Content-Length", str(len(body)))
        there.endheaders(body)
        answer = there.getresponse()
        data = answer.read()
        there.close()
        return answer.status, answer.getheaders(), data

    def reply(self, status, headers, data):
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in HOP or (self.command == "HEAD" and name.lower() == "content-length"):
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_any(self):
        body = self.body()
        path, _, query = self.path.partition("?")
        match = re.fullmatch(r"/v2/(.+)/(tags/list|referrers/[^/]+|manifests/[^/]+)", urllib.parse.unquote(path))
        answer = None
        if match and self.command == "GET":
            ask = {k: v[0] for k, v in urllib.parse.parse_qs(query).items()}
            if match.group(2) == "tags/list":
                answer = self.tags(path, ask)
            elif match.group(2).startswith("referrers/"):
                answer = self.referrers((match.group(1), match.group(2)[len("referrers/"):]), ask)
        answer = answer or self.ask(REGISTRY, self.path, body)
        if match and self.command == "PUT" and answer[0] == 201:
            self.pushed(match.group(1), body, answer[1])
        self.reply(*answer)

    def tags(self, path, ask):
        status, headers, data = self.ask(REGISTRY, path, b"")
        if status != 200:
            return None
        value = json.loads(data)
        tags = [x for x in sorted(value["tags"] or []) if x > ask.get("last", "")]
        n = int(ask.get("n", len(tags)))
        if 0 < n < len(tags):
            headers.append(("Link", f'<{path}?n={n}&last={tags[n - 1]}>; rel="next"'))
        return status, headers, json.dumps({**value, "tags": tags[:n]}).encode()

    def referrers(self, key, ask):
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", key[1]):
            return None
        found, headers = referrers.get(key, []), [("Content-Type", INDEX)]
        if "artifactType" in ask:
            found = [x for x in found if x["artifactType"] == ask["artifactType"]]
            headers.append(("OCI-Filters-Applied", "artifactType"))
        return 200, headers, json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": found}).encode()

    def pushed(self, repository, body, headers):
        value = json.loads(body)
        subject = value.get("subject")
        if not subject:
            return
        digest = "sha256:" + hashlib.sha256(body).hexdigest()
        entry = {"mediaType": value["mediaType"], "digest": digest, "size": len(body),
                 "artifactType": value.get("artifactType") or value.get("config", {}).get("mediaType", ""),
                 "annotations": value.get("annotations", {})}
        known = referrers.setdefault((repository, subject["digest"]), [])
        if entry not in known:
            known.append(entry)
        headers.append(("OCI-Subject", subject["digest"]))

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = do_any


class Front(Handler):
    def do_any(self):
        reads = self.command in ("GET", "HEAD") and "/blobs/uploads/" not in self.path
        target = self.path
        if reads and "/tags/list" in target:
            target += f"{'&' if '?' in target else '?'}n={next(fresh)}"
        answer = self.ask(READ if reads else PORT, target, self.body())
        print(f"{'read' if reads else 'write'} {self.command} {self.path} {answer[0]}", flush=True)
        self.reply(*answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = do_any


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128


REGISTRY, PORT, READ, FRONT = map(int, sys.argv[1:5])
threading.Thread(target=Server(("127.0.0.1", FRONT), Front).serve_forever, daemon=True).start()
Server(("127.0.0.1", PORT), Handler).serve_forever()
