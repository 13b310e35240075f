#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every public header compiles alone, with gcc and clang, without any of another project's include paths."""
import glob
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
FOLDERS = ["base", "transcode", "store", "oci", "config", "proxy", "admin", "cli"]
FLAGS = ["-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-Wstrict-prototypes", "-Wundef", "-fsyntax-only",
         "-I", ROOT, "-x", "c", "-"]


def compile_alone(job):
    compiler, header = job
    # Twice: a header must also stand being included again.
    text = f'#include "{header}"\n#include "{header}"\n'
    done = subprocess.run([compiler, *FLAGS], input=text, text=True, capture_output=True, check=False)
    return f"{header} ({compiler}):\n{done.stderr}" if done.returncode else None


def main():
    headers = sorted(os.path.relpath(path, ROOT) for folder in FOLDERS
                     for path in glob.glob(os.path.join(ROOT, folder, "*.h")) if not path.endswith("_internal.h"))
    compilers = [c for c in ("gcc", "clang") if shutil.which(c)]
    if not compilers:
        print("neither gcc nor clang found")
        return 77
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        problems = [p for p in pool.map(compile_alone, [(c, h) for c in compilers for h in headers]) if p]
    print("\n".join(problems) if problems else f"{len(headers)} headers compile alone with {' and '.join(compilers)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
