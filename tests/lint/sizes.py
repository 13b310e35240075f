#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the size budget: 600 lines a file, 60 a function; with a /* long: why */ comment up to 1000 and 120.

The comment stands in the first 40 lines of the file, or directly before the function. Blank and comment lines count.
Tables are exempt: only functions are measured, and a file that is mostly a table says so in its comment and may then
pass 1000 lines with /* long: table ... */. sizes.py --self-test shows that it fails where it should.
"""
import os
import re
import sys

FOLDERS = ["admin", "base", "bench", "cli", "config", "oci", "proxy", "store", "transcode", "tests"]
FILE_BUDGET, FILE_LIMIT = 600, 1000
FUNCTION_BUDGET, FUNCTION_LIMIT = 60, 120
LONG = re.compile(r"long: *(\S.*)")


def functions(lines):
    """(name, first line, line count) of each function; relies on braces in column 0, as clang-format puts them."""
    start = None
    for number, line in enumerate(lines, 1):
        if line.startswith("{") and start is None:
            start = number
        elif line.startswith("}") and start is not None:
            if line.rstrip() == "}":
                head = start - 1
                while head > 1 and lines[head - 2].strip() and not lines[head - 2].rstrip().endswith(("}", ";", "*/")) \
                        and not lines[head - 2].startswith("#"):
                    head -= 1
                text = " ".join(lines[head - 1:start - 1])
                name = re.search(r"(\w+)\s*\(", text)
                yield (name.group(1) if name else "?", head, number - start + 1)
            start = None


def check_text(path, text):
    lines = text.splitlines()
    problems = []
    why = next((m.group(1) for m in map(LONG.search, lines[:40]) if m), None)
    table = why is not None and why.startswith("table")
    if len(lines) > FILE_LIMIT and not table:
        problems.append(f"{path}:1: {len(lines)} lines, the hard limit is {FILE_LIMIT}: split it")
    elif len(lines) > FILE_BUDGET and not why:
        problems.append(f"{path}:1: {len(lines)} lines, the budget is {FILE_BUDGET}: split it or say /* long: why */")
    for name, line, count in functions(lines):
        before = " ".join(lines[max(0, line - 6):line - 1])
        if count > FUNCTION_LIMIT:
            problems.append(f"{path}:{line}: {name}() has {count} lines, the hard limit is {FUNCTION_LIMIT}")
        elif count > FUNCTION_BUDGET and not LONG.search(before):
            problems.append(f"{path}:{line}: {name}() has {count} lines, the budget is {FUNCTION_BUDGET}: "
                            "split it or say /* long: why */ right before it")
    return problems


def check_tree(root):
    problems = []
    for folder in FOLDERS:
        for at, dirs, names in os.walk(os.path.join(root, folder)):
            dirs.sort()
            for name in sorted(names):
                if name.endswith((".c", ".h")):
                    path = os.path.join(at, name)
                    with open(path, encoding="utf-8") as file:
                        problems += check_text(os.path.relpath(path, root), file.read())
    return problems


def self_test():
    def function(lines, before=""):
        return before + "int f(int a,\n      int b)\n{\n" + "    a++;\n" * (lines - 2) + "}\n"

    cases = [
        ("ok", function(60), 0),
        ("long function", function(61), 1),
        ("excused", function(61, "/* long: one switch */\n"), 0),
        ("too long", function(121, "/* long: one switch */\n"), 1),
        ("file", "\n" * 601, 1),
        ("file excused", "/* long: state machine */\n" + "\n" * 700, 0),
        ("file too long", "/* long: state machine */\n" + "\n" * 1000, 1),
        ("table", "/* long: table of types */\n" + "static int t[] = {\n" + "    1,\n" * 2000 + "};\n", 0),
    ]
    failed = 0
    for name, text, want in cases:
        found = check_text("x.c", text)
        if len(found) != want:
            print(f"{name}: {found}, want {want}")
            failed = 1
    print("sizes.py self-test:", "FAILED" if failed else "passed")
    return failed


if __name__ == "__main__":
    if "--self-test" in sys.argv:
        sys.exit(self_test())
    found_all = check_tree(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    print("\n".join(found_all) if found_all else "sizes.py: within budget")
    sys.exit(1 if found_all else 0)
