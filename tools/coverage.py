#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""coverage.py [build/cov] - lines reached by the tests, per file, after `cmake --workflow --preset cov`.

-v lists the lines that were not reached.
"""
import glob
import json
import os
import subprocess
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))


def main():
    verbose = "-v" in sys.argv
    build = os.path.realpath(next((a for a in sys.argv[1:] if not a.startswith("-")), os.path.join(ROOT, "build/cov")))
    notes = glob.glob(os.path.join(build, "CMakeFiles", "recask_*", "**", "*.gcda"), recursive=True)
    if not notes:
        print("no .gcda files: run cmake --workflow --preset cov first")
        return 1
    hits = {}
    for note in notes:
        out = subprocess.run(["gcov", "--json-format", "--stdout", note], cwd=build, capture_output=True, check=True)
        for document in out.stdout.splitlines():
            for file in json.loads(document)["files"]:
                path = os.path.relpath(os.path.join(build, file["file"]), ROOT)
                if path.startswith("..") or path.startswith("tests"):
                    continue
                lines = hits.setdefault(path, {})
                for line in file["lines"]:
                    lines[line["line_number"]] = lines.get(line["line_number"], 0) + line["count"]
    total = reached = 0
    for path, lines in sorted(hits.items()):
        seen = sum(1 for count in lines.values() if count)
        total += len(lines)
        reached += seen
        print(f"{100 * seen / max(1, len(lines)):6.1f} % of {len(lines):5d}  {path}")
        if verbose:
            print("        not reached:", *[number for number, count in sorted(lines.items()) if not count])
    print(f"{100 * reached / max(1, total):6.1f} % of {total:5d}  all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
