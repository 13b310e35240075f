#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds tests/CASES.md to the tests: every row names tests that exist, or says why it has none.

The line "Rows: 1 2 4 ..." is the list of all rows, sorted; the tables have each of them once. A row's last column has
parts separated by "; ", each of them

    wire/blob_test.py: test_a, test_b    functions of a file under tests/
    e2e/docker28.sh                      a script that e2e/run.sh runs
    reason: why                          what is not tested, and why

cases.py --self-test shows that it fails where it should; --tree DIR checks another tree.
"""
import os
import re
import sys
import tempfile

TABLE = "tests/CASES.md"
ROW = re.compile(r"\| *(\d+) *\|(.*)\|(.*)\|$")
REASON = re.compile(r"reason: \S+ \S+")
TESTS = re.compile(r"([\w./-]+\.(?:py|c)): (test_\w+(?:, test_\w+)*)")
SCRIPT = re.compile(r"e2e/([\w-]+)\.sh")


def read(root, path):
    try:
        with open(os.path.join(root, path), encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def is_test(text, path, name):
    """Defined, and in C in the table of the file's tests too."""
    if path.endswith(".py"):
        return re.search(rf"^def {name}\(", text, re.M) is not None
    return re.search(rf"^static void {name}\(", text, re.M) is not None and len(re.findall(rf"\b{name}\b", text)) > 1


def check_part(root, part):
    """What is wrong with one part of the last column, or None."""
    if REASON.match(part):
        return None
    if match := SCRIPT.fullmatch(part):
        names = re.search(r"^all=\(([^)]*)\)", read(root, "tests/e2e/run.sh") or "", re.M)
        known = names is not None and match.group(1) in names.group(1).split()
        return None if known and read(root, f"tests/{part}") is not None else f"{part} is not run by e2e/run.sh"
    match = TESTS.fullmatch(part)
    if not match:
        return f"cannot read {part!r}"
    path, names = match.groups()
    text = read(root, f"tests/{path}")
    if text is None:
        return f"there is no tests/{path}"
    gone = [name for name in names.split(", ") if not is_test(text, path, name)]
    return f"tests/{path} has no {', '.join(gone)}" if gone else None


def check_tree(root):
    text = read(root, TABLE)
    if text is None:
        return [f"{TABLE}: missing"]
    problems, listed, seen = [], None, []
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{TABLE}:{number}"
        if line.startswith("Rows: "):
            listed = [int(x) for x in line[len("Rows: "):].split()]
            if listed != sorted(set(listed)):
                problems.append(f"{where}: the list of rows is not sorted, or has one twice")
        match = ROW.match(line)
        if not match:
            continue
        row, what, tests = int(match.group(1)), match.group(2).strip(), match.group(3).strip()
        if row in seen:
            problems.append(f"{where}: row {row} is there twice")
        seen.append(row)
        if not what:
            problems.append(f"{where}: row {row} does not say what must hold")
        if not tests:
            problems.append(f"{where}: row {row} has neither a test nor a reason")
            continue
        found = [check_part(root, part) for part in tests.split("; ")]
        problems += [f"{where}: row {row}: {problem}" for problem in found if problem]
    if listed is None:
        return problems + [f"{TABLE}:1: no line \"Rows: ...\""]
    problems += [f"{TABLE}:1: row {row} has no line in a table" for row in listed if row not in seen]
    problems += [f"{TABLE}:1: row {row} is not in the list of rows" for row in seen if row not in listed]
    return problems


def self_test():
    good = {
        TABLE: "Rows: 1 2 10\n\n| row | what | test |\n|---|---|---|\n"
               "| 1 | a | wire/a_test.py: test_a, test_b; unit/a_test.c: test_c |\n| 10 | b | e2e/run_it.sh |\n\n"
               "| 2 | c | reason: nothing to see |\n",
        "tests/wire/a_test.py": "def test_a(t):\n    pass\n\n\ndef test_b(t):\n    pass\n",
        "tests/unit/a_test.c": "static void test_c(void **state)\n{\n}\n\nstatic void test_d(void **state)\n{\n}\n"
                               "int main(void)\n{\n    cmocka_unit_test(test_c),\n}\n",
        "tests/e2e/run.sh": "all=(other run_it\n    more)\n",
        "tests/e2e/run_it.sh": "", "tests/e2e/forgotten.sh": "",
    }
    bad = [  # (what is replaced in the good table, by what)
        ("Rows: 1 2 10", "Rows: 1 10 2"), ("Rows: 1 2 10", "Rows: 1 2 2 10"), ("Rows: 1 2 10", "Rows: 1 2 9 10"),
        ("Rows: 1 2 10", "Rows: 1 10"), ("Rows: 1 2 10", ""), ("| 10 |", "| 1 |"), ("| c |", "| |"),
        ("reason: nothing to see", ""), ("reason: nothing to see", "reason:"), ("reason: nothing to see", "later"),
        ("test_a, test_b", "test_a, test_x"), ("wire/a_test.py", "wire/b_test.py"), ("test_c", "test_d"),
        ("test_c", "test_e"), ("e2e/run_it.sh", "e2e/forgotten.sh"), ("e2e/run_it.sh", "e2e/none.sh"),
        ("test_b; unit", "test_b, unit"),
    ]

    def run(table):
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**good, TABLE: table}.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            return check_tree(root)

    failed = 0
    if found := run(good[TABLE]):
        print("the good tree fails:", *found, sep="\n  ")
        failed = 1
    for old, new in bad:
        assert old in good[TABLE]
        if not run(good[TABLE].replace(old, new)):
            print(f"{old!r} -> {new!r} gave no problem")
            failed = 1
    print(f"cases.py self-test: {len(bad)} bad tables" + (", FAILED" if failed else " seen"))
    return failed


def main():
    if "--self-test" in sys.argv:
        return self_test()
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    if "--tree" in sys.argv:
        root = sys.argv[sys.argv.index("--tree") + 1]
    problems = check_tree(root)
    print("\n".join(problems) if problems else "cases.py: every row has its tests")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
