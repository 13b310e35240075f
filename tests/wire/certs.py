# SPDX-License-Identifier: Apache-2.0
"""Certificates of a private authority, made with openssl.

    ca = Authority(directory)
    cert, key = ca.issue("registry")                 # for 127.0.0.1 and localhost, or names="DNS:other"
    up.tls = server_context(cert, key, clients=ca)   # clients: must show a certificate of that authority
"""
import os
import shutil
import ssl
import subprocess

from runner import Skip

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def openssl(*args):
    if not shutil.which("openssl"):
        raise Skip("no openssl")
    done = subprocess.run(["openssl", *args], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"openssl {' '.join(args)}: {done.stderr}")


class Authority:
    def __init__(self, directory):
        os.makedirs(directory)
        self.directory = directory
        self.pem = os.path.join(directory, "ca.pem")
        self.key = os.path.join(directory, "ca.key")
        self.serial = 0
        openssl("req", "-x509", *CURVE, "-days", "30", "-keyout", self.key, "-out", self.pem, "-subj", "/CN=private",
                "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")

    def issue(self, name, names="IP:127.0.0.1,DNS:localhost", days=30):
        """Paths of a certificate and its key. The same name again: renewed, under the same paths."""
        cert, key, request, extensions = (os.path.join(self.directory, f"{name}.{end}")
                                          for end in ("pem", "key", "csr", "ext"))
        with open(extensions, "w", encoding="ascii") as file:
            file.write(f"subjectAltName={names}\n")
        self.serial += 1
        openssl("req", *CURVE, "-keyout", key, "-out", request, "-subj", f"/CN={name}-{self.serial}")
        openssl("x509", "-req", "-in", request, "-CA", self.pem, "-CAkey", self.key, "-set_serial", str(self.serial),
                "-days", str(days), "-extfile", extensions, "-out", cert)
        return cert, key


def server_context(cert, key, clients=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients.pem)
    return context
