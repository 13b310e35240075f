#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libfault.so itself, with Python as the process that suffers."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "wire"))
from fault import LIBRARY, Fault  # noqa: E402  pylint: disable=wrong-import-position

SCRIPT = """
import errno, os, sys, time, threading
d = sys.argv[1]
def new(name): return os.open(os.path.join(d, name), os.O_RDWR | os.O_CREAT, 0o600)
def name_of(call, *args):
    try:
        return call(*args)
    except OSError as e:
        return errno.errorcode[e.errno]
"""


class Here:
    def __init__(self):
        self.top = tempfile.mkdtemp(prefix="recask-fault-")
        self.dir = os.path.join(self.top, "d")
        os.mkdir(self.dir)
        self.fault = Fault(self.top, self.dir)

    def path(self, name):
        return os.path.join(self.dir, name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def start(self, script, **env):
        env = {"PATH": os.environ["PATH"], "LD_PRELOAD": LIBRARY, "RECASK_FAULT_DIR": self.dir, **env}
        return subprocess.Popen([sys.executable, "-S", "-c", SCRIPT + script, self.dir], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)

    def run(self, script, want=0, **env):
        process = self.start(script, **env)
        out, _ = process.communicate(timeout=30)
        equal(process.returncode, want)
        return out.split()


def equal(got, want):
    if got != want:
        raise AssertionError(f"got {got!r}, want {want!r}")


KILLED = -signal.SIGKILL


def test_counts_steps(h):
    """Below the directory only, through descriptors and names of all sorts, and never a -shm."""
    h.run("""
outside = os.open(d + "/../x", os.O_RDWR | os.O_CREAT); os.write(outside, b"x"); os.fsync(outside)
fd = new("a"); os.write(fd, b"1"); os.pwrite(fd, b"2", 5); os.fsync(fd); os.fdatasync(fd); os.ftruncate(fd, 3)
os.write(os.dup(fd), b"3")
os.mkdir(d + "/e"); os.rename(d + "/a", d + "/e/a"); os.link(d + "/e/a", d + "/b"); os.unlink(d + "/b")
dirfd = os.open(d + "/e", os.O_RDONLY); os.unlink("a", dir_fd=dirfd); os.fsync(dirfd); os.pwrite(fd, b"gone", 0)
os.pwrite(new("z-shm"), b"x", 0)
""", RECASK_FAULT_COUNT=h.path("../count"), RECASK_FAULT_TRACE=h.path("../trace"))
    with open(h.path("../count"), encoding="ascii") as file:
        equal(int(file.read()), 14)
    with open(h.path("../trace"), encoding="ascii") as file:
        kinds = [line.split()[1] for line in file]
    equal(kinds, "create write write sync sync truncate write mkdir rename link unlink unlink sync write".split())


def test_kill(h):
    """Before the step, whoever does it."""
    script = 'fd = new("a")\nfor c in "abcdef": os.write(fd, c.encode())\n'
    h.run(script, KILLED, RECASK_FAULT_KILL="4")
    equal(h.read("a"), b"ab")
    h.run(script, 0, RECASK_FAULT_KILL="9")


def test_fail_once(h):
    """The N-th of its kinds, with the error that was named."""
    out = h.run('fd = new("a")\nfor i in range(4): print(name_of(os.write, fd, b"123456"))\nprint(name_of(os.fsync, fd))',
                RECASK_FAULT_FAIL="2:ENOSPC:write")
    equal(out, ["6", "ENOSPC", "6", "6", "None"])
    out = h.run('fd = new("b")\nfor i in range(3): print(name_of(os.write, fd, b"123456"))', RECASK_FAULT_FAIL="2:SHORT:write")
    equal(out, ["6", "3", "6"])
    equal(len(h.read("b")), 15)


def test_fail_always(h):
    out = h.run("""
fd = new("a")
for i in range(3): print(name_of(os.write, fd, b"1"), name_of(os.fsync, fd), name_of(os.pread, fd, 1, 0))
print(name_of(os.unlink, d + "/a"), name_of(os.open, d + "/a", os.O_RDONLY))
""", RECASK_FAULT_FAIL="2:EIO:fsync,read,unlink,open+")
    equal(out, ["1", "None", "EIO"] + ["1", "EIO", "EIO"] * 2 + ["EIO", "EIO"])


def test_fail_by_path(h):
    out = h.run('a, b = new("a"), new("b")\nprint(name_of(os.write, a, b"1"), name_of(os.write, b, b"1"))',
                RECASK_FAULT_FAIL="1:EIO:write+", RECASK_FAULT_PATH="/b")
    equal(out, ["1", "EIO"])


def test_no_descriptors(h):
    process = h.start('import socket\nprint("go", flush=True); sys.stdin.readline()\n'
                      'print(name_of(os.open, "/etc/passwd", 0), name_of(socket.socket), name_of(os.pipe2, 0))',
                      RECASK_FAULT_CONTROL=h.fault.control)
    equal(process.stdout.readline(), "go\n")
    h.fault.fail("EMFILE", "fd")
    out, _ = process.communicate("\n", timeout=30)
    equal(out.split(), ["EMFILE"] * 3)
    equal(h.fault.failed, 3)


def test_no_memory(h):
    """Anybody's calls, or those of the program itself."""
    process = h.start('print("go", flush=True); sys.stdin.readline(); print(len([bytes(1000)] * 9))',
                      RECASK_FAULT_CONTROL=h.fault.control)
    equal(process.stdout.readline(), "go\n")
    h.fault.fail("ENOMEM", "malloc")
    out, _ = process.communicate("\n", timeout=30)
    equal((out, process.returncode != 0, h.fault.failed > 0), ("", True, True))
    for first, works in ((1, False), (1 << 40, True)):
        done = subprocess.run(["/bin/sh", "-c", "exit 0"], stderr=subprocess.DEVNULL, check=False,
                              env={"LD_PRELOAD": LIBRARY, "RECASK_FAULT_FAIL": f"{first}:ENOMEM:own+"})
        equal(done.returncode == 0, works)


def test_control(h):
    """On and off while it runs; a clock that is wrong; steps counted where a test sees them."""
    process = h.start("""
fd = new("a")
for line in sys.stdin: print(name_of(os.write, fd, b"x"), int(time.time()), flush=True)
""", RECASK_FAULT_CONTROL=h.fault.control)

    def ask():
        process.stdin.write("\n")
        process.stdin.flush()
        wrote, clock = process.stdout.readline().split()
        return wrote, int(clock) - int(time.time())

    equal(ask()[0], "1")
    h.fault.fail("ENOSPC", "write", first=2, count=2)
    equal([ask()[0] for _ in range(4)], ["1", "ENOSPC", "ENOSPC", "1"])
    h.fault.fail("EIO", "write")
    equal(ask()[0], "EIO")
    h.fault.stop_failing()
    h.fault.jump(-86400)
    wrote, off = ask()
    equal((wrote, abs(off + 86400) < 60), ("1", True))
    equal(h.fault.steps, 8)
    h.fault.kill_in(1)
    process.stdin.write("\n")
    process.stdin.flush()
    equal(process.wait(30), KILLED)


SYNC_DIR = "\ndirfd = os.open(d, os.O_RDONLY); os.fsync(dirfd); os.close(dirfd)\n"


def cut(h, script, kill, seed=0):
    """The process dies before its `kill`-th step."""
    h.run(script, KILLED, RECASK_FAULT_LOSE="1", RECASK_FAULT_SEED=str(seed), RECASK_FAULT_KILL=str(kill))
    equal(sorted(n for n in os.listdir(h.top) if n.endswith(".unlinked")), [])


def test_unsynced_bytes_are_lost(h):
    script = """
fd = new("a"); os.write(fd, b"A" * 10000); os.fsync(fd)""" + SYNC_DIR + """
os.pwrite(fd, b"B" * 5000, 3000); os.pwrite(fd, b"C" * 9000, 9000); os.pwrite(fd, b"D" * 100, 3000)
os.pwrite(fd, b"never", 0)
"""
    cut(h, script, 8)
    equal(h.read("a") == b"A" * 10000, True)


def test_synced_bytes_stay(h):
    for call in ("fsync", "fdatasync"):
        cut(h, 'fd = new("a"); os.write(fd, b"A" * 9000); os.fsync(fd)' + SYNC_DIR + f"""
os.pwrite(fd, b"B" * 5000, 100); os.ftruncate(fd, 5000); os.{call}(fd)
os.pwrite(fd, b"C" * 5000, 8000); os.write(fd, b"x")
""", 9)
        equal(h.read("a") == b"A" * 100 + b"B" * 4900, True)
        os.remove(h.path("a"))


def test_truncation_is_lost(h):
    cut(h, 'fd = new("a"); os.write(fd, b"A" * 9000); os.fsync(fd)' + SYNC_DIR +
        'os.ftruncate(fd, 100); os.pwrite(fd, b"B" * 50, 5000); os.write(fd, b"x")', 7)
    equal(h.read("a") == b"A" * 9000, True)


def test_holes_are_lost(h):
    cut(h, 'fd = new("a"); os.write(fd, b"A" * 9000); os.fsync(fd)' + SYNC_DIR + """
import ctypes
assert ctypes.CDLL(None).fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(8192)) == 0
assert os.pread(fd, 1, 0) == bytes(1)
os.write(fd, b"x")""", 6)
    equal(h.read("a") == b"A" * 9000, True)


def test_names(h):
    """Creations, renames, removals: lost without a sync of the directory, kept with one."""
    script = """
for n in "abc":
    fd = new(n); os.write(fd, n.encode()); os.fsync(fd)""" + SYNC_DIR + """
fd = new("new"); os.write(fd, b"new"); os.fsync(fd)
os.mkdir(d + "/sub"); os.rename(d + "/new", d + "/sub/x")
os.unlink(d + "/a"); os.rename(d + "/b", d + "/c"); os.rename(d + "/c", d + "/z")
"""
    cut(h, script + "os.mkdir(d + '/never')", 19)
    equal(sorted(os.listdir(h.dir)), ["a", "b", "c"])
    equal([h.read(n) for n in "abc"], [b"a", b"b", b"c"])
    for n in "abc":
        os.remove(h.path(n))
    cut(h, script + SYNC_DIR + "os.mkdir(d + '/never')", 20)
    equal(sorted(os.listdir(h.dir)), ["new", "sub", "z"])  # the rename into sub was not synced there
    equal((h.read("z"), os.listdir(h.path("sub"))), (b"b", []))


def test_unlinked_bytes(h):
    """A file with unsynced bytes that was removed, or replaced, comes back as it was on the disk."""
    cut(h, """
fd = new("a"); os.write(fd, b"A" * 100); os.fsync(fd)""" + SYNC_DIR + """
os.pwrite(fd, b"B" * 100, 0); os.unlink(d + "/a"); os.pwrite(fd, b"C" * 200, 0)
os.close(fd); fd = new("a"); os.write(fd, b"other")""", 9)
    equal(h.read("a") == b"A" * 100, True)


def test_any_part(h):
    """With a seed some pages stay and others go, the same each time."""
    script = 'fd = new("a"); os.write(fd, b"A" * 40960); os.fsync(fd)' + SYNC_DIR + \
        'for i in range(10): os.pwrite(fd, b"B" * 4096, 4096 * i)\nos.write(fd, b"x")'
    seen = set()
    for seed in range(1, 6):
        bodies = []
        for _ in range(2):
            cut(h, script, 15, seed)
            bodies.append(h.read("a"))
            os.remove(h.path("a"))
        equal(bodies[0] == bodies[1], True)
        pages = [bodies[0][i:i + 4096] for i in range(0, 40960, 4096)]
        equal(all(page in (b"A" * 4096, b"B" * 4096) for page in pages), True)
        seen.add(bodies[0])
    equal(len(seen) > 2, True)


def test_threads_stop(h):
    """No thread sees bytes being taken back: it would hand them on."""
    script = """
fd = new("a"); os.write(fd, b"A" * 4096); os.fsync(fd)""" + SYNC_DIR + """
os.pwrite(fd, b"B" * 4096, 0)
def look():
    out = os.open(d + "/../seen", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True: os.write(out, os.pread(fd, 1, 0))
t = threading.Thread(target=look, daemon=True); t.start(); time.sleep(0.05)
os.pwrite(fd, b"C", 0)"""
    for _ in range(3):
        cut(h, script, 6)
        equal(h.read("a") == b"A" * 4096, True)
        os.remove(h.path("a"))
        with open(h.path("../seen"), "rb") as file:
            equal(set(file.read()), set(b"B"))


def main():
    if not LIBRARY:
        print("RECASK_LIBFAULT is not set")
        return 77
    failed = []
    chosen = sys.argv[1:] or [name for name in globals() if name.startswith("test_")]
    for name in chosen:
        here = Here()
        try:
            globals()[name](here)
            print(f"ok {name}")
        except (AssertionError, OSError, subprocess.TimeoutExpired) as why:
            failed.append(name)
            print(f"not ok {name}: {why}")
        shutil.rmtree(here.top, ignore_errors=True)
    print(f"{len(chosen) - len(failed)} of {len(chosen)} passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
