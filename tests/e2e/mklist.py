#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists the files of an image, one sorted line each, so that two listings can be compared.

    mklist.py dir DIRECTORY        a mounted root file system
    mklist.py tar FILE|-           what "docker export" and "podman export" write
    mklist.py layers DIRECTORY     a manifest and blobs: an OCI layout, skopeo's dir:, or the
                                   files that lib.sh's fetch_image saves; layers are applied here

A line: kind, mode, uid, gid, size, sha256 or target, path. Times are left out, and so are the
files that an engine puts into every container.
"""
import hashlib
import json
import os
import stat
import subprocess
import sys
import tarfile

ENGINE_FILES = {"", ".dockerenv", "etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf",
                "run/.containerenv"}
ENGINE_DIRS = ("dev", "proc", "sys")


def ignored(path):
    return path in ENGINE_FILES or path.split("/", 1)[0] in ENGINE_DIRS


def sha256_of(stream):
    digest = hashlib.sha256()
    while block := stream.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def entry(kind, mode, uid, gid, size=0, what="-"):
    return f"{kind} {mode & 0o7777:04o} {uid} {gid} {size} {what}"


def from_dir(top):
    files = {}
    for parent, dirs, names in os.walk(top):
        for name in dirs + names:
            full = os.path.join(parent, name)
            path = os.path.relpath(full, top)
            st = os.lstat(full)
            owner = (st.st_mode, st.st_uid, st.st_gid)
            if stat.S_ISLNK(st.st_mode):
                files[path] = entry("l", 0o777, *owner[1:], 0, os.readlink(full))
            elif stat.S_ISDIR(st.st_mode):
                files[path] = entry("d", *owner)
            elif stat.S_ISREG(st.st_mode):
                if not ignored(path):
                    with open(full, "rb") as stream:
                        files[path] = entry("f", *owner, st.st_size, sha256_of(stream))
            else:
                files[path] = entry("s", *owner, 0, st.st_rdev)
    return files


def drop(files, path):
    for known in [p for p in files if p == path or p.startswith(path + "/")]:
        del files[known]


def apply_tar(files, stream, whiteouts):
    """Lays one tar over the files so far."""
    added = set()
    with tarfile.open(fileobj=stream, mode="r|", errorlevel=2) as tar:
        for member in tar:
            path = os.path.normpath(member.name).lstrip("/")
            if path == ".":
                continue
            parent, name = os.path.split(path)
            if whiteouts and name == ".wh..wh..opq":
                for known in [p for p in files if p.startswith(parent + "/")]:
                    if known not in added:
                        del files[known]
                continue
            if whiteouts and name.startswith(".wh."):
                drop(files, os.path.join(parent, name[len(".wh."):]))
                continue
            owner = (member.mode, member.uid, member.gid)
            if member.isdir():
                if not files.get(path, "d").startswith("d"):
                    drop(files, path)
                files[path] = entry("d", *owner)
            elif member.islnk():
                files[path] = files[os.path.normpath(member.linkname).lstrip("/")]
            elif member.issym():
                drop(files, path)
                files[path] = entry("l", 0o777, *owner[1:], 0, member.linkname)
            elif member.isreg():
                drop(files, path)
                files[path] = entry("f", *owner, member.size, sha256_of(tar.extractfile(member)))
            else:
                files[path] = entry("s", *owner, 0, os.makedev(member.devmajor, member.devminor))
            added.add(path)


def open_layer(path):
    """The layer's tar; the compression is seen from its first bytes."""
    with open(path, "rb") as stream:
        magic = stream.read(4)
    if magic[:2] == b"\x1f\x8b":
        return ["gzip", "-dc", path]
    if magic == b"\x28\xb5\x2f\xfd":
        return ["zstd", "-dcq", path]
    return ["cat", path]


def from_layers(top):
    def blob(digest):
        algorithm, hexadecimal = digest.split(":", 1)
        for name in (f"blobs/{algorithm}/{hexadecimal}", digest, hexadecimal):
            if os.path.exists(os.path.join(top, name)):
                return os.path.join(top, name)
        raise SystemExit(f"{top}: no blob {digest}")

    def load(path):
        with open(path, "rb") as stream:
            return json.load(stream)

    for name in ("manifest.json", "manifest", "index.json"):
        if os.path.exists(os.path.join(top, name)):
            manifest = load(os.path.join(top, name))
            break
    while "manifests" in manifest:
        chosen = [m for m in manifest["manifests"]
                  if m.get("platform", {}).get("architecture", "amd64") == "amd64"]
        manifest = load(blob(chosen[0]["digest"]))
    files = {}
    for layer in manifest["layers"]:
        with subprocess.Popen(open_layer(blob(layer["digest"])), stdout=subprocess.PIPE) as tar:
            apply_tar(files, tar.stdout, whiteouts=True)
            tar.stdout.read()
            if tar.wait() != 0:
                raise SystemExit(f"{layer['digest']}: does not decode")
    return files


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("dir", "tar", "layers"):
        raise SystemExit(__doc__)
    kind, where = sys.argv[1:]
    if kind == "dir":
        files = from_dir(where)
    elif kind == "layers":
        files = from_layers(where)
    else:
        files = {}
        with sys.stdin.buffer if where == "-" else open(where, "rb") as stream:
            apply_tar(files, stream, whiteouts=False)
    for path in sorted(files):
        if not ignored(path):
            print(ascii(f"{files[path]} {path}")[1:-1])


main()
