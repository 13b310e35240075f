# SPDX-License-Identifier: Apache-2.0
"""Runs the functions test_* of a file, each with a fresh upstream and a fresh store.

    from runner import main
    def test_something(t):
        r = t.recask()          # against t.up
        ...
    if __name__ == "__main__":
        main()

x_test.py               all, in the order of the file
x_test.py test_a -v     some; -v shows recask's log
RECASK_BIN names the binary. Exit status: 0, 1 when one failed, 77 without a binary.
"""
import atexit
import inspect
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback

import recask as recask_module
from mock import MockUpstream
from recask import Recask


class Skip(Exception):
    """This machine cannot do what the test needs."""


class Env:
    """What one test has; gone when it ends."""

    def __init__(self):
        self.directory = tempfile.mkdtemp(prefix="recask-wire-")
        self.up = MockUpstream()
        self.ups = [self.up]
        self.processes = []
        self.allow = None  # lines of the log that would fail the test, but are what it is about

    def more_upstream(self):
        up = MockUpstream()
        self.ups.append(up)
        return up

    def recask(self, *flags, upstreams=None, env=None, disk_bytes=None):
        """Starts recask, by default with t.up as its only upstream."""
        directory = os.path.join(self.directory, str(len(self.processes)))
        os.mkdir(directory)
        r = Recask(directory, [self.up.url] if upstreams is None else upstreams, flags, env, disk_bytes)
        self.processes.append(r)
        return r

    def finish(self):
        for up in self.ups:
            up.clear_knobs()
        for r in self.processes:
            if r in Recask.running:
                r.stop(allow=self.allow)
            else:
                r.check_log(self.allow)

    def clean(self):
        for r in self.processes:
            r.kill9()
        for up in self.ups:
            up.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


class Clients:
    """Functions run at the same time; join() raises what the first of them raised."""

    def __init__(self):
        self.threads = []
        self.errors = []

    def run(self, fn, *args):
        def call():
            try:
                fn(*args)
            except BaseException as error:  # pylint: disable=broad-except
                self.errors.append(error)

        thread = threading.Thread(target=call, daemon=True)
        self.threads.append(thread)
        thread.start()

    def join(self, timeout=60):
        end = time.monotonic() + timeout
        for thread in self.threads:
            thread.join(max(0, end - time.monotonic()))
            if thread.is_alive():
                raise AssertionError("a client is still waiting")
        if self.errors:
            raise self.errors[0]


def until(condition, what, timeout=10):
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {what}")
        time.sleep(0.02)


def equal(got, want, what=""):
    if got != want:
        raise AssertionError(f"{what}: got {short(got)}, want {short(want)}" if what
                             else f"got {short(got)}, want {short(want)}")


def short(value):
    text = repr(value)
    return text if len(text) < 600 else f"{text[:400]}... ({len(text)})"


def run_one(name, fn, verbose):
    began = time.monotonic()
    env = Env()
    problem = None
    try:
        fn(env)
        env.finish()
    except KeyboardInterrupt:
        raise
    except Skip as why:
        env.clean()
        print(f"ok {name} # skipped: {why}", flush=True)
        return True
    except BaseException:  # pylint: disable=broad-except
        problem = traceback.format_exc()
    logs = [r.log() for r in env.processes] if problem or verbose else []
    ended = [r.process.poll() for r in env.processes if r.process]
    env.clean()
    print(f"{'not ok' if problem else 'ok'} {name} ({time.monotonic() - began:.1f} s)", flush=True)
    for log in logs:
        lines = log.splitlines()
        print("\n".join("    | " + line for line in (lines if verbose else lines[-25:])), flush=True)
    if problem:
        print("".join(f"    recask ended by itself: {code}\n" for code in ended if code is not None), end="")
        print("\n".join("    " + line for line in problem.splitlines()), flush=True)
    return problem is None


def main():
    if not recask_module.BINARY:
        print("RECASK_BIN is not set")
        sys.exit(77)
    atexit.register(lambda: [r.kill9() for r in list(Recask.running)])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    functions = {name: fn for name, fn in inspect.getmembers(sys.modules["__main__"], inspect.isfunction)
                 if name.startswith("test_")}
    ordered = sorted(functions, key=lambda name: functions[name].__code__.co_firstlineno)
    chosen = [a for a in sys.argv[1:] if not a.startswith("-")] or ordered
    unknown = [name for name in chosen if name not in functions]
    if unknown:
        print(f"no such test: {', '.join(unknown)}")
        sys.exit(2)
    failed = [name for name in chosen if not run_one(name, functions[name], "-v" in sys.argv)]
    print(f"{len(chosen) - len(failed)} of {len(chosen)} passed" + (f"; failed: {' '.join(failed)}" if failed else ""))
    sys.exit(1 if failed else 0)
