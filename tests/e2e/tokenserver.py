#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A token service as docker-registry 2 wants it (distribution, "Token Authentication Specification"): JWTs signed with RS256
by the openssl program, the certificate of the key in the header (x5c).

    tokenserver.py PORT CERT KEY ISSUER LOG ACCOUNTS

ACCOUNTS: JSON {"users": {NAME: PASSWORD}, "private": [REPOSITORY...]}, read anew for each request. Whoever is in `users` may
pull everything, everybody else what is not in `private`; a wrong password is 401. LOG gets a JSON line per request: method,
user, right (null without a password), scope, and the token that was given.
"""
import base64
import http.server
import json
import subprocess
import sys
import threading
import time
import urllib.parse

PORT, CERT, KEY, ISSUER, LOG, ACCOUNTS = sys.argv[1:7]
lock = threading.Lock()


def url64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def certificate():
    with open(CERT, encoding="ascii") as file:
        lines = file.read().split("-----BEGIN CERTIFICATE-----")[1].split("-----END")[0]
    return "".join(lines.split())


def sign(service, user, access):
    now = int(time.time())
    header = {"typ": "JWT", "alg": "RS256", "x5c": [certificate()]}
    claims = {"iss": ISSUER, "sub": user, "aud": service, "nbf": now - 60, "iat": now, "exp": now + 300,
              "jti": url64(time.time_ns().to_bytes(8, "big")), "access": access}
    text = ".".join(url64(json.dumps(part).encode()) for part in (header, claims))
    signature = subprocess.run(["openssl", "dgst", "-sha256", "-sign", KEY], input=text.encode(), capture_output=True,
                               check=True).stdout
    return text + "." + url64(signature)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):  # pylint: disable=arguments-differ
        pass

    def note(self, **what):
        with lock, open(LOG, "a", encoding="utf-8") as file:
            file.write(json.dumps({"method": self.command, **what}) + "\n")

    def answer(self, status, what):
        body = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        scope = query.get("scope", [""])[0]
        with open(ACCOUNTS, encoding="utf-8") as file:
            accounts = json.load(file)
        kind, _, value = self.headers.get("Authorization", "").partition(" ")
        user, right = "", None
        if kind == "Basic":
            user, _, password = base64.b64decode(value).decode().partition(":")
            right = accounts["users"].get(user) == password
        if right is False:
            self.note(user=user, right=False, scope=scope)
            self.answer(401, {"errors": [{"code": "UNAUTHORIZED", "message": "wrong user or password"}]})
            return
        access, only_pull = [], True
        if scope:
            _, repository, actions = scope.split(":")
            if right or repository not in accounts["private"]:
                access = [{"type": "repository", "name": repository, "actions": ["pull"]}]
            only_pull = actions == "pull"
        token = sign(query.get("service", [""])[0], user, access)
        self.note(user=user, right=right, scope=scope, only_pull=only_pull, token=token)
        self.answer(200, {"token": token, "expires_in": 300})


http.server.ThreadingHTTPServer(("127.0.0.1", int(PORT)), Handler).serve_forever()
