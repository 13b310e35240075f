#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""conform.py DIRECT THROUGH: two JUnit reports of the OCI conformance suite, of a registry and of it through recask.

For each kind of request that reads, a line: "ok" or "not ok", a tab, and how many cases passed. A case fails here only
when it passes at the registry itself; cases that the registry fails too are told after each kind, by name and message.
"""
import collections
import sys
import xml.etree.ElementTree

READS = {  # the last part of a case's name, or of one before it
    "pull": ("blob-get", "blob-head", "manifest-head-by-tag", "manifest-head-by-digest", "manifest-get", "get-missing",
             "by-digest", "by-tag", "ping"),
    "discovery": ("tag-list", "tag list", "referrers"),
}


def kind_of(name):
    parts = name.split("/")
    if "push" in parts:
        return None
    if len(parts) > 1 and parts[-2] == "pull":
        return f"pull: {parts[-1]}"
    if parts[-1].startswith("range "):
        return "pull: ranges"
    return next((f"{kind}: {parts[-1].replace(' ', '-')}" for kind, names in READS.items() if parts[-1] in names), None)


def load(path):
    """Name of each case -> (status, message); cases of the same name are counted."""
    cases, seen = {}, collections.Counter()
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        name = case.get("name").partition("/")[2]
        seen[name] += 1
        out = case.find("system-out")
        key = name if seen[name] == 1 else f"{name}#{seen[name]}"
        cases[key] = (kind_of(name), case.get("status"), (out.text or "").strip() if out is not None else "")
    return cases


def main():
    direct, through = map(load, sys.argv[1:3])
    kinds = {}
    for name, (kind, status, message) in through.items():
        if kind is None:
            continue
        at = kinds.setdefault(kind, {"passed": 0, "worse": [], "both": [], "skipped": 0})
        before = direct.get(name, (kind, "missing", ""))[1]
        if status == "passed":
            at["passed"] += 1
        elif status != "failure":
            at["skipped"] += 1
        elif before == "passed":
            at["worse"].append((name, message))
        else:
            at["both"].append((name, message))
    for kind, at in sorted(kinds.items()):
        verdict = "not ok" if at["worse"] or at["passed"] + len(at["both"]) == 0 else "ok"
        print(f"{verdict}\t{kind}: {at['passed']} passed, {len(at['worse'])} failed, {at['skipped']} skipped, "
              f"{len(at['both'])} fail at the registry too")
        for where in ("worse", "both"):
            for name, message in at[where]:
                print(f"#   {where}: {name}: " + " ".join(message.split())[:200])
    missing = [k for k, v in direct.items() if v[0] and v[1] == "passed" and k not in through]
    if missing or not kinds:
        print(f"not ok\tcases that did not run: {missing[:5]}")


main()
