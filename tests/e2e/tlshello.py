#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sends real TLS ClientHellos to a plain HTTP port; each must be answered with an HTTP 400.

    tlshello.py HOST:PORT COUNT THREADS
"""
import concurrent.futures
import socket
import ssl
import sys


def client_hello(context):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def ask(address, hello):
    """The answer; empty when the connection is closed without one."""
    answer = b""
    try:
        with socket.create_connection(address, timeout=10) as connection:
            connection.sendall(hello)
            while part := connection.recv(4096):
                answer += part
    except OSError as error:
        if not answer:
            return repr(error).encode()
    return answer


def main():
    where, count, threads = sys.argv[1:]
    host, port = where.rsplit(":", 1)
    context = ssl.create_default_context()
    hellos = [client_hello(context) for _ in range(int(count))]
    with concurrent.futures.ThreadPoolExecutor(int(threads)) as pool:
        answers = list(pool.map(lambda hello: ask((host, int(port)), hello), hellos))
    bad = [a for a in answers if not (a.startswith(b"HTTP/1.") and a.split(b" ")[1:2] == [b"400"])]
    if bad:
        raise SystemExit(f"{len(bad)} of {count} got no 400, for example {bad[0][:80]!r}")


main()
