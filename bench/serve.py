#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What serving costs, beside nginx and docker-registry in the same run: manifests, warm blobs in every form, cold blobs.

    bench/serve.py [ROW...]     rows: manifest, blob, cold; all by default, each under a minute

Needs nginx, wrk and docker-registry (Debian's), and $RECASK_BIN (default: build/release/recask). Prints Markdown. Every figure
is the median of ROUNDS runs that take turns with their peers', since a shared machine is never the same twice.
"""
import hashlib
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/wire"))
import images  # noqa: E402

ROUNDS = int(os.environ.get("RECASK_BENCH_ROUNDS", "5"))
SECONDS = "2s"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
CONFIG = "application/vnd.oci.image.config.v1+json"
MB = 1_000_000


def sha(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Bench:
    def __init__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="recask-bench-", dir="/dev/shm"))
        self.running = []
        self.bin = os.environ.get("RECASK_BIN", "build/release/recask")
        self.registry, self.recask, self.nginx = (free_port() for _ in range(3))
        (self.dir / "html").mkdir()

    def start(self, port, *command):
        log = open(self.dir / "log", "a", encoding="utf-8")
        p = subprocess.Popen(command, stdout=log, stderr=log)
        self.running.append(p)
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return p
            except OSError:
                time.sleep(0.05)
        sys.exit(f"{command[0]} did not start: {(self.dir / 'log').read_text()[-2000:]}")

    def start_registry(self):
        conf = self.dir / "registry.yml"
        conf.write_text(f"""version: 0.1
storage: {{filesystem: {{rootdirectory: {self.dir}/registry}}}}
http: {{addr: 127.0.0.1:{self.registry}}}
log: {{level: error, accesslog: {{disabled: true}}}}
""")
        self.start(self.registry, "docker-registry", "serve", str(conf))

    def start_nginx(self):
        """Static files, and at /v2/ a caching proxy in front of the registry. Its own best settings for either."""
        conf = self.dir / "nginx.conf"
        user = "user root;" if os.getuid() == 0 else ""
        conf.write_text(f"""{user} worker_processes {os.cpu_count()}; daemon off; pid {self.dir}/nginx.pid; error_log {self.dir}/nginx.log;
events {{ worker_connections 4096; }}
http {{
    access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000000; client_body_temp_path {self.dir}/nb;
    proxy_temp_path {self.dir}/np; fastcgi_temp_path {self.dir}/nf; uwsgi_temp_path {self.dir}/nu; scgi_temp_path {self.dir}/ns;
    proxy_cache_path {self.dir}/cache keys_zone=z:10m max_size=20g use_temp_path=off;
    server {{
        listen 127.0.0.1:{self.nginx};
        location / {{ root {self.dir}/html; }}
        location /v2/ {{ proxy_pass http://127.0.0.1:{self.registry}; proxy_cache z; proxy_cache_valid 200 1h; }}
    }}
}}
""")
        self.start(self.nginx, "nginx", "-c", str(conf))

    def start_recask(self):
        shutil.rmtree(self.dir / "store", ignore_errors=True)
        return self.start(self.recask, self.bin, "serve", "--listen", f"127.0.0.1:{self.recask}", "--admin", "off", "--log-level", "warn",
                          "--store", str(self.dir / "store"), "--upstream", f"http://127.0.0.1:{self.registry}")

    def stop(self, p):
        p.send_signal(signal.SIGTERM)
        p.wait()
        self.running.remove(p)

    def end(self):
        for p in list(self.running):
            self.stop(p)
        shutil.rmtree(self.dir, ignore_errors=True)

    # ---- the registry's content

    def upload(self, repo, data):
        c = http.client.HTTPConnection("127.0.0.1", self.registry)
        c.request("POST", f"/v2/{repo}/blobs/uploads/")
        r = c.getresponse()
        r.read()
        at = urllib.parse.urlsplit(r.getheader("Location"))
        c.request("PUT", f"{at.path}?{at.query}&digest={urllib.parse.quote(sha(data))}", body=data)
        r = c.getresponse()
        if r.status != 201:
            sys.exit(f"docker-registry refused a blob: {r.status} {r.read()}")
        r.read()
        return sha(data)

    def push(self, repo, tars, gzip=True):
        layers = []
        for tar in tars:
            z = zlib.compressobj(1, wbits=31)
            blob = z.compress(tar) + z.flush() if gzip else tar
            layers.append({"mediaType": LAYER + ("+gzip" if gzip else ""), "digest": self.upload(repo, blob), "size": len(blob)})
        config = json.dumps({"architecture": "amd64", "os": "linux", "config": {},
                             "rootfs": {"type": "layers", "diff_ids": [sha(t) for t in tars]}}).encode()
        body = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "layers": layers,
                           "config": {"mediaType": CONFIG, "digest": self.upload(repo, config), "size": len(config)}}).encode()
        c = http.client.HTTPConnection("127.0.0.1", self.registry)
        c.request("PUT", f"/v2/{repo}/manifests/1", body=body, headers={"Content-Type": MANIFEST})
        r = c.getresponse()
        if r.status != 201:
            sys.exit(f"docker-registry refused a manifest: {r.status} {r.read()}")
        r.read()
        return body

    # ---- clients

    def get(self, port, path, headers=None):
        c = http.client.HTTPConnection("127.0.0.1", port)
        c.request("GET", path, headers=headers or {})
        r = c.getresponse()
        body = r.read()
        if r.status != 200:
            sys.exit(f"GET {path}: {r.status} {body[:300]}")
        return body

    def fetched(self, repo, view):
        """The image's manifest in this view, once its layers are canonical."""
        headers = {"Accept": MANIFEST, "Recask-View": view}
        for layer in json.loads(self.get(self.recask, f"/v2/{repo}/manifests/1", headers))["layers"]:
            self.get(self.recask, f"/v2/{repo}/blobs/{layer['digest']}")
        while True:
            done = subprocess.run([self.bin, "stats", "--json", "--store", str(self.dir / "store")], capture_output=True,
                                  text=True, check=True)
            if json.loads(done.stdout)["jobs"]["pending"] == 0:
                break
            time.sleep(0.1)
        return json.loads(self.get(self.recask, f"/v2/{repo}/manifests/1", headers))


def wrk(port, path, connections, *headers):
    """Requests a second, bytes a second."""
    command = ["wrk", "-t", "2" if connections > 1 else "1", "-c", str(connections), "-d", SECONDS]
    for h in headers:
        command += ["-H", h]
    out = subprocess.run(command + [f"http://127.0.0.1:{port}{path}"], capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in out:
        sys.exit(f"{path}: {out}")
    rate = float(re.search(r"Requests/sec:\s*([\d.]+)", out)[1])
    size = re.search(r"Transfer/sec:\s*([\d.]+)([KMG]?)B", out)
    return rate, float(size[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[size[2]]


def in_turn(*runs):
    """Lists of ROUNDS results, one per run."""
    results = [[] for _ in runs]
    for _ in range(ROUNDS):
        for run, out in zip(runs, results):
            out.append(run())
    return results


def spread(values, unit=1):
    return f"{statistics.median(values) / unit:,.0f} ({min(values) / unit:,.0f}-{max(values) / unit:,.0f})"


def ratio(ours, theirs):
    return f"{statistics.median(ours) / statistics.median(theirs):.2f}"


def manifest(b):
    body = b.push("bench/small", [images.tar_of([(f"f{n}", images.noise(n, 4000))]) for n in range(8)])
    (b.dir / "html/manifest").write_bytes(body)
    b.start_nginx()
    b.start_recask()
    path, accept = "/v2/bench/small/manifests/1", f"Accept: {MANIFEST}"
    b.get(b.recask, path, {"Accept": MANIFEST})
    print(f"\n## A warm manifest\n\n{len(body)} bytes by tag, 64 connections; nginx: the same bytes as a file.\n")
    print("| | requests/s | of nginx | of docker-registry |\n|---|---|---|---|")
    nginx, registry, ours = in_turn(lambda: wrk(b.nginx, "/manifest", 64)[0], lambda: wrk(b.registry, path, 64, accept)[0],
                                    lambda: wrk(b.recask, path, 64, accept)[0])
    print(f"| nginx | {spread(nginx)} | 1.00 | |\n| docker-registry | {spread(registry)} | {ratio(registry, nginx)} | 1.00 |")
    print(f"| recask | {spread(ours)} | {ratio(ours, nginx)} | {ratio(ours, registry)} |")


def blob(b):
    text = images.text(3, 60 * MB)
    b.push("bench/big", [images.tar_of([("noise", images.noise(1, 200 * MB))]), images.tar_of([("text", text)])])
    b.start_nginx()
    b.start_recask()
    print("\n## Warm blobs\n\nMB/s on the wire, and of nginx's sendfile of the same bytes. noise: 200 MB that do not compress (raw frames);"
          " text: 60 MB that do.\n")
    print("| layer | form | connections | nginx | recask | ratio |\n|---|---|---|---|---|---|")
    for view, form in (("zstd", "zstd form"), ("canonical", "identity")):
        for layer, name in zip(b.fetched("bench/big", view)["layers"], ("noise", "text")):
            blob_rows(b, layer["digest"], name, form)
    gzip_row(b, layer["digest"])


def blob_rows(b, digest, name, form, *headers):
    path = f"/v2/bench/big/blobs/{digest}"
    (b.dir / "html/blob").write_bytes(b.get(b.recask, path))
    for connections in (1, 8):
        nginx, ours = in_turn(lambda: wrk(b.nginx, "/blob", connections)[1],
                              lambda: wrk(b.recask, path, connections, *headers)[1])
        print(f"| {name} | {form} | {connections} | {spread(nginx, MB)} | {spread(ours, MB)} | {ratio(ours, nginx)} |")


def gzip_row(b, digest):
    path = f"/v2/bench/big/blobs/{digest}"
    size = len(b.get(b.recask, path))

    def once(connections):
        return wrk(b.recask, path, connections, "Accept-Encoding: gzip")[0] * size

    one, eight = in_turn(lambda: once(1), lambda: once(8))
    print(f"\ngzip made on the fly of the text, MB/s of what goes in: {spread(one, MB)} at 1 connection, {spread(eight, MB)} at 8.")


def cold(b):
    """From an upstream on the same machine: the worst case for whoever stands between."""
    digests = [b.upload("bench/cold", images.noise(100 + n, 200 * MB)) for n in range(ROUNDS)]
    b.start_nginx()
    b.start_recask()
    paths = iter([f"/v2/bench/cold/blobs/{d}" for d in digests])
    ports = {"docker-registry, direct": b.registry, "nginx proxy_cache": b.nginx, "recask": b.recask}
    times = {name: [] for name in ports}
    for path in paths:
        for name, port in ports.items():
            began = time.monotonic()
            subprocess.run(["curl", "-sfS", "--noproxy", "*", "-o", "/dev/null", f"http://127.0.0.1:{port}{path}"], check=True)
            times[name].append(time.monotonic() - began)
    print(f"\n## A cold blob\n\n200 MB through an empty cache, over loopback.\n\n| | ms | of direct | of nginx |\n|---|---|---|---|")
    direct, nginx = times["docker-registry, direct"], times["nginx proxy_cache"]
    for name, values in times.items():
        print(f"| {name} | {spread(values, 0.001)} | {ratio(values, direct)} | {ratio(values, nginx)} |")


ROWS = {"manifest": manifest, "blob": blob, "cold": cold}


def main():
    for name in sys.argv[1:] or list(ROWS):
        if name not in ROWS:
            sys.exit(f"no row {name!r}; there are: {', '.join(ROWS)}")
        b = Bench()
        try:
            b.start_registry()
            ROWS[name](b)
        finally:
            b.end()
        sys.stdout.flush()


if __name__ == "__main__":
    main()
