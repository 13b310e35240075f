# SPDX-License-Identifier: Apache-2.0
"""libfault.so (tests/fault/fault.h) from Python: what is to fail in a process, before it starts and while it runs.

    fault = Fault(directory, below=store)          # its files; only calls on files below `below` count
    r = t.recask(env=fault.env(kill=17, lose=True, seed=3))
    fault.fail("ENOSPC", "write,create", path="packs/"); ...; fault.stop_failing()
    fault.kill_in(1 + pick.randrange(50)); fault.jump(3600); fault.steps
"""
import errno
import mmap
import os
import struct

LIBRARY = os.environ.get("RECASK_LIBFAULT", "")  # of CMake; none under sanitizers
ALL = (1 << 63) - 1
KINDS = {name: 1 << n for n, name in enumerate(
    "open read write sync rename unlink truncate fallocate create mkdir link malloc own fd".split())}
FIELDS = {name: n * 8 for n, name in enumerate(
    "kill_in steps fail_in fail_count fail_errno fail_kinds calls failed clock_s".split())}
PATH_AT, PATH_BYTES = len(FIELDS) * 8, 64


class Fault:
    def __init__(self, directory, below):
        self.below = below
        self.control = os.path.join(directory, "fault.control")
        with open(self.control, "w+b") as file:
            file.truncate(PATH_AT + PATH_BYTES)
            self.map = mmap.mmap(file.fileno(), 0)

    def env(self, kill=0, lose=False, seed=0, trace=None):
        """For the environment of the process. A kill that did not come yet is forgotten."""
        self._put("kill_in", kill)
        self._put("steps", 0)
        env = {"LD_PRELOAD": LIBRARY, "RECASK_FAULT_DIR": self.below, "RECASK_FAULT_CONTROL": self.control}
        if lose:
            env.update(RECASK_FAULT_LOSE="1", RECASK_FAULT_SEED=str(seed))
        if trace:
            env["RECASK_FAULT_TRACE"] = trace
        return env

    def fail(self, why, kinds, path="", first=1, count=ALL):
        """From the first-th call of these kinds on, `count` of them fail."""
        self.stop_failing()
        number = -1 if why == "SHORT" else getattr(errno, why)
        self._put("fail_errno", number)
        self._put("fail_kinds", sum(KINDS[kind] for kind in kinds.split(",")))
        self._put("fail_count", count)
        self.map[PATH_AT:PATH_AT + PATH_BYTES] = path.encode().ljust(PATH_BYTES, b"\0")
        self._put("calls", 0)
        self._put("failed", 0)
        self._put("fail_in", first)

    def stop_failing(self):
        self._put("fail_in", 0)
        self._put("fail_kinds", 0)

    def kill_in(self, steps):
        """Dies at the steps-th durable step from now."""
        self._put("kill_in", steps)

    def jump(self, seconds):
        """The wall clock is off by so much."""
        self._put("clock_s", seconds)

    @property
    def steps(self):
        return self._get("steps")

    @property
    def failed(self):
        return self._get("failed")

    @property
    def calls(self):
        return self._get("calls")

    def _put(self, field, value):
        struct.pack_into("<q", self.map, FIELDS[field], value)

    def _get(self, field):
        return struct.unpack_from("<q", self.map, FIELDS[field])[0]
