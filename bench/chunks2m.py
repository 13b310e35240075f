# SPDX-License-Identifier: Apache-2.0
"""bench/chunks2m.py - `recask serve` over a store of very many chunks (bench/chunks2m.sh runs it): chunks2m.py STORE"""
import http.client
import os
import random
import socket
import sqlite3
import subprocess
import sys
import time

REQUESTS = 20000


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def resident_mib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


def row(what, value, unit):
    print(f"| {what:48} | {value:12.2f} {unit} |", flush=True)


def until_ready(process, port):
    begin = time.monotonic()
    while process.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return time.monotonic() - begin
        except OSError:
            pass
        time.sleep(0.001)
    raise SystemExit("recask ended")


def ask(port, layers, method, headers):
    """Requests in a second, over one connection, one after the other."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    pick = random.Random(1)
    begin = time.monotonic()
    for _ in range(REQUESTS):
        digest, size = pick.choice(layers)
        if headers:
            at = pick.randrange(size - 64)
            headers = {"Range": f"bytes={at}-{at + 63}"}
        connection.request(method, f"/v2/many/blobs/sha256:{digest}", headers=headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status not in (200, 206):
            raise SystemExit(f"{digest}: {answer.status}")
    return REQUESTS / (time.monotonic() - begin)


def main():
    store = sys.argv[1]
    with sqlite3.connect(f"file:{store}/catalog.db?mode=ro", uri=True) as db:
        layers = [(d.hex(), size) for d, size in db.execute("SELECT digest, size FROM canonical ORDER BY id")]
    port, admin = free_port(), free_port()
    process = subprocess.Popen([os.environ["RECASK_BIN"], "serve", "--listen", f"127.0.0.1:{port}", "--admin",
                                f"127.0.0.1:{admin}", "--store", store, "--upstream", "http://127.0.0.1:1"],
                               stderr=subprocess.DEVNULL)
    try:
        row("recask serve: until /readyz", 1000 * until_ready(process, admin), "ms")
        row("its memory then", resident_mib(process.pid), "MiB")
        row("HEAD, one connection", ask(port, layers, "HEAD", {}), "/s")
        row("GET of 64 bytes, one connection", ask(port, layers, "GET", {"Range": ""}), "/s")
        row("its memory after them", resident_mib(process.pid), "MiB")
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
