#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A registry that has nothing: learns with which headers a client looks a tag up.

    sniffer.py PORT FILE

The headers of the first request for a manifest go to FILE as a curl config file (curl -K).
"""
import http.server
import os
import socket
import socketserver
import sys

ASKED = ("user-agent", "accept", "accept-encoding")
TLS_HANDSHAKE = b"\x16"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle(self):
        # Clients that try TLS first want an HTTP answer before they fall back.
        if self.request.recv(1, socket.MSG_PEEK) == TLS_HANDSHAKE:
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        else:
            super().handle()

    def answer(self):
        if "/manifests/" in self.path and not os.path.exists(self.server.file):
            self.write_down()
        found = self.path.rstrip("/") in ("/v2", "/ready")
        body = b"{}" if found else b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"none"}]}'
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = answer

    def write_down(self):
        lines = [f"# {self.command} {self.path}"]
        # curl sends these of its own accord; an empty value keeps it from doing so.
        for name in ("User-Agent", "Accept"):
            if name not in self.headers:
                lines.append(f'header = "{name}:"')
        for name, value in self.headers.items():
            value = value.replace("\\", "\\\\").replace('"', '\\"')
            if name.lower() == "user-agent":
                lines.append(f'user-agent = "{value}"')
            elif name.lower() in ASKED:
                lines.append(f'header = "{name}: {value}"')
        with open(self.server.file + ".part", "w", encoding="ascii") as out:
            out.write("\n".join(lines) + "\n")
        os.rename(self.server.file + ".part", self.server.file)

    def log_message(self, format, *args):
        print(format % args, dict(self.headers.items()) if hasattr(self, "headers") else "",
              file=sys.stderr)


class Server(http.server.ThreadingHTTPServer):
    def server_bind(self):
        # Without http.server's look-up of the host's name, for which there is no network.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address


def main():
    port, file = sys.argv[1:]
    server = Server(("127.0.0.1", int(port)), Handler)
    server.file = file
    server.serve_forever()


main()
