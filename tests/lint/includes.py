#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a file includes what its folder may not know. The tables below are the law (ARCHITECTURE.md).

includes.py              checks the repository
includes.py --tree DIR   checks another tree
includes.py --self-test  shows that a bad tree fails and a good one passes
"""
import os
import re
import sys
import tempfile

# folder -> folders (or single headers) of recask that it may include.
MAY_INCLUDE = {
    "base": [],
    "transcode": ["base"],
    "store": ["transcode/codec.h", "base"],
    "oci": ["base"],
    "config": ["base"],
    "proxy": ["store", "transcode", "oci", "base"],
    "admin": ["proxy", "store", "oci", "base"],
    "cli": ["admin", "config", "proxy", "base"],
}

FOLDERS = list(MAY_INCLUDE)

# One file translates struct config into the options of each module, so it alone sees the modules' options; and one works
# on a store that nobody else has open.
EXCEPTIONS = {
    "cli/cmd_serve.c": ["store", "transcode", "oci"],
    "cli/cmd_fsck.c": ["store"],
}

# Header -> the folders that link its library, and the files in them that may include it (regular expressions). No
# public header is among the files: other projects' types stay inside.
ANY = r"(\w+\.c|\w*_internal\.h)"
OWNERS = [
    (r"microhttpd\.h|gnutls/", ["proxy"], r"proxy/http(_\w+)?\.c|proxy/http(_tls)?_internal\.h"),
    (r"curl/", ["proxy", "admin"], r"proxy/upstream(_\w+)?\.c|proxy/upstream_internal\.h|admin/client(_\w+)?\.c"),
    (r"sqlite3(ext)?\.h", ["store"], f"store/{ANY}"),
    (r"(zlib|zstd|zstd_errors|zdict|xxhash)\.h", ["transcode", "store"], f"(transcode|store)/{ANY}"),
    (r"isa-l\.h|isa-l/|igzip_lib\.h|crc\.h", ["transcode", "store"], f"(transcode|store)/{ANY}"),
    (r"openssl/", ["base"], r"base/(digest|pem)\.c"),
    (r"crypt\.h", ["proxy"], r"proxy/access_users\.c|proxy/access\.c"),
    (r"jansson\.h", ["oci", "config", "admin"], f"(oci|config|admin)/{ANY}"),
    (r"cmocka\.h", FOLDERS, r"tests/.*"),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
LINKS = re.compile(r"^/\* links: ([a-z ]+) \*/")
CODE_FOLDERS = FOLDERS + ["bench", "tests"]


def sources(root):
    for folder in CODE_FOLDERS:
        for at, dirs, names in os.walk(os.path.join(root, folder)):
            dirs.sort()
            for name in sorted(names):
                if name.endswith((".c", ".h")):
                    yield os.path.relpath(os.path.join(at, name), root)


def below(folders):
    """Folders that a test of these may include: they themselves and all that they may include, and so on."""
    seen, todo = [], list(folders)
    while todo:
        folder = todo.pop().split("/")[0]
        if folder not in seen:
            seen.append(folder)
            todo += MAY_INCLUDE.get(folder, [])
    return seen


def test_folders(path, lines):
    """The folders that a file under tests/ stands for."""
    name = os.path.basename(path)
    if path.startswith("tests/unit/") and name.split("_")[0] in FOLDERS:
        return [name.split("_")[0]]
    links = LINKS.match(lines[0]) if lines else None
    if links:
        return links.group(1).split()
    return None


def check_own(path, lines, target):
    """Why may `path` not include recask's header `target`? None when it may."""
    folder = path.split("/")[0]
    owner = target.split("/")[0]
    internal = target.endswith("_internal.h")
    if folder == "bench": # measures what is inside, too
        return None
    if folder == "tests":
        folders = test_folders(path, lines)
        if owner == "tests":
            return None
        if folders is None:
            return None if owner == "base" else "shared test code may include base only"
        if internal:
            return None if owner in folders else f"{target} may be included in {owner}/ and its unit tests only"
        return None if owner in below(folders) else f"tests of {' '.join(folders)} may not include {owner}/"
    if owner == folder:
        return None
    if internal:
        return f"{target} may be included in {owner}/ only"
    for allowed in MAY_INCLUDE[folder] + EXCEPTIONS.get(path, []):
        if target == allowed or owner == allowed:
            return None
    return f"{folder}/ may not include {target} (allowed: {', '.join(MAY_INCLUDE[folder]) or 'nothing of recask'})"


def check_library(path, lines, target):
    """Why may `path` not include another project's header? None when it may."""
    for pattern, folders, files in OWNERS:
        if not re.match(pattern, target) or path.startswith("bench/") or re.fullmatch(files, path):
            continue
        if not path.startswith("tests/"):
            return f"<{target}> belongs to {files}"
        # A test makes its vectors with the libraries that its folders link.
        if not set(folders) & set(below(test_folders(path, lines) or [])):
            return f"<{target}> belongs to no folder that this test links"
    return None


def check_tree(root):
    problems = []
    for path in sources(root):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            lines = file.read().splitlines()
        for number, line in enumerate(lines, 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            kind, target = match.groups()
            if kind == '"':
                if "/" not in target:
                    why = f'name the folder: "{path.rsplit("/", 1)[0]}/{target}"'
                elif target.split("/")[0] not in CODE_FOLDERS:
                    why = f'"{target}" is not a folder of recask; <> is for others'
                elif not os.path.exists(os.path.join(root, target)):
                    why = f'"{target}" does not exist'
                else:
                    why = check_own(path, lines, target)
            else:
                why = check_library(path, lines, target)
            if why:
                problems.append(f"{path}:{number}: {why}")
    return problems


def self_test():
    good = {
        "base/err.h": "",
        "base/digest.c": '#include "base/err.h"\n#include <openssl/evp.h>\n',
        "transcode/codec.h": '#include "base/err.h"\n',
        "transcode/gzip.c": '#include "transcode/codec.h"\n#include <zlib.h>\n',
        "store/store.h": "",
        "store/store_internal.h": "#include <sqlite3.h>\n",
        "store/pack.c": '#include "store/store_internal.h"\n#include "transcode/codec.h"\n',
        "config/config.h": "",
        "cli/cmd_serve.c": '#include "config/config.h"\n#include "store/store.h"\n',
        "proxy/http.c": "#include <microhttpd.h>\n",
        "tests/unit/store_pack_test.c": '#include "store/store_internal.h"\n#include <cmocka.h>\n#include <zstd.h>\n',
        "tests/fuzz/gzip.c": '/* links: transcode */\n#include "transcode/codec.h"\n',
    }
    bad = [
        ("base/a.c", '#include "store/store.h"\n'),
        ("base/a.c", "#include <openssl/evp.h>\n"),
        ("store/a.c", '#include "transcode/pipeline.h"\n'),
        ("store/a.c", '#include "config/config.h"\n'),
        ("store/a.h", "#include <sqlite3.h>\n"),
        ("proxy/a.c", '#include "store/store_internal.h"\n'),
        ("proxy/a.c", "#include <microhttpd.h>\n"),
        ("proxy/a.c", '#include "config/config.h"\n'),
        ("proxy/a.c", '# include "http.h"\n'),
        ("proxy/a.c", '#include "proxy/gone.h"\n'),
        ("cli/a.c", '#include "store/store.h"\n'),
        ("oci/a.c", "#include <curl/curl.h>\n"),
        ("transcode/a.c", "#include <cmocka.h>\n"),
        ("tests/unit/base_a_test.c", '#include "store/store.h"\n'),
        ("tests/unit/proxy_a_test.c", '#include "store/store_internal.h"\n'),
        ("tests/unit/base_a_test.c", "#include <zstd.h>\n"),
        ("tests/fuzz/a.c", '/* links: oci */\n#include "store/store.h"\n'),
    ]

    def run(files):
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            return check_tree(root)

    common = {**good, "transcode/pipeline.h": "", "proxy/http.h": ""}
    failed = 0
    found = run(common)
    if found:
        print("the good tree fails:", *found, sep="\n  ")
        failed = 1
    for path, text in bad:
        found = run({**common, path: text})
        if len(found) != 1 or not re.match(re.escape(path) + r":\d+: ", found[0]):
            print(f"{path}: {text!r} gave {found}, want one problem")
            failed = 1
    print(f"includes.py self-test: {len(bad)} bad trees" + (", FAILED" if failed else " seen"))
    return failed


def main():
    if "--self-test" in sys.argv:
        return self_test()
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    if "--tree" in sys.argv:
        root = sys.argv[sys.argv.index("--tree") + 1]
    problems = check_tree(root)
    print("\n".join(problems) if problems else "includes.py: every include is allowed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
