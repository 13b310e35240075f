#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tidy.py BUILD_DIR - clang-tidy over the sources that BUILD_DIR compiles, held at zero findings.

A source is skipped when neither it, nor any header, nor .clang-tidy changed since it was last clean in BUILD_DIR.
"""
import hashlib
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
FOLDERS = ["base", "transcode", "store", "oci", "config", "proxy", "admin", "cli"]
MODEL = os.path.join(ROOT, "tests", "lint", "tidy_model.h")


def hash_files(paths):
    total = hashlib.sha256()
    for path in sorted(paths):
        with open(path, "rb") as file:
            total.update(path.encode() + b"\0" + file.read())
    return total.hexdigest()


def main():
    build = sys.argv[1]
    tidy = shutil.which("clang-tidy")
    if not tidy:
        print("clang-tidy is not installed")
        return 77
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        entries = json.load(file)
    sources = sorted({os.path.realpath(e["file"]) for e in entries
                      if os.path.relpath(os.path.realpath(e["file"]), ROOT).split(os.sep)[0] in FOLDERS})
    headers = [os.path.join(at, name) for folder in FOLDERS for at, _, names in os.walk(os.path.join(ROOT, folder))
               for name in names if name.endswith(".h")]
    common = hash_files(headers + [MODEL, os.path.join(ROOT, ".clang-tidy"), os.path.join(build, "compile_commands.json")])
    stamps = os.path.join(build, "tidy")
    os.makedirs(stamps, exist_ok=True)

    def check(source):
        name = os.path.relpath(source, ROOT)
        stamp = os.path.join(stamps, name.replace(os.sep, "_"))
        key = common + hash_files([source])
        if os.path.exists(stamp):
            with open(stamp, encoding="utf-8") as file:
                if file.read() == key:
                    return None
        # gcc's own flags mean nothing to clang; its warnings are the clang preset's business.
        model = [] if name == "base/err.c" else ["--extra-arg=-include", f"--extra-arg={MODEL}"]
        done = subprocess.run([tidy, "--quiet", "-p", build, "--warnings-as-errors=*", "--extra-arg=-w", *model, source],
                              text=True, capture_output=True, check=False)
        if done.returncode:
            return done.stdout + done.stderr
        with open(stamp, "w", encoding="utf-8") as file:
            file.write(key)
        return None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        problems = [p for p in pool.map(check, sources) if p]
    print("\n".join(problems) if problems else f"{len(sources)} sources are tidy")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
