"""Ctrl-C in the main thread, at any moment of a put: nothing acknowledged is lost, nothing hangs, and the next put works."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.programs import LEVELS, Level, opened

ROOT = Path(__file__).resolve().parents[2]

HEAD = """
import os, signal, sys
from pathlib import Path
from ckptstore import LaneName
from ckptstore.storage.local.vfs import Vfs
from tests.crash.programs import Call, opened, run

signal.alarm(30)  # ends a child that waits for a lock which nobody holds any more
path, level, name = Path(sys.argv[1]), sys.argv[2], signal.Signals(int(sys.argv[3]))

class Stop(BaseException):
    pass

def stop(number, frame):
    raise Stop

stored = []

def next_id():
    return f"c{len(stored)}-{attempts}"

def put(store):
    id = next_id()
    run(store, Call("put", "t", id, stored[-1] if stored else None, "value of " + id))
    stored.append(id)

def checked(store):
    for id in stored:
        found = store.get(LaneName("t"), id)
        assert found.values["log"] == ("text", f"value of {id}".encode()), id
    assert len(list(store.list("t", ""))) >= len(stored)

attempts = 0
signal.signal(name, stop)
"""

ANY_MOMENT = """
with opened(path, level, Vfs()) as store:
    put(store)
    for line in sys.stdin:
        attempts += 1
        try:
            print("putting", flush=True)
            while True:
                put(store)
        except Stop:
            pass
        put(store)
        checked(store)
        print("checked", flush=True)
    checked(store)
print(" ".join(stored), flush=True)
"""

NAMED_POINTS = """
class Interrupted(Vfs):
    at = None
    def point(self, point):
        if point == self.at:
            self.at = None
            os.kill(os.getpid(), name)

points = ["commit:resolved", "commit:appended", "commit:indexed", "commit:published"]
if level == "commit":
    points += ["fsync:before", "fsync:after"]
vfs = Interrupted()
with opened(path, level, vfs) as store:
    put(store)
    for point in points:
        attempts += 1
        vfs.at = point
        try:
            put(store)
            raise AssertionError(f"no interrupt at {point}")
        except Stop:
            stored.append(next_id())
        put(store)
        checked(store)
print(" ".join(stored), flush=True)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str, Level, signal.Signals], subprocess.Popen[str]]]:
    """Starts children on the store in `tmp_path / "s"`; those still there at the end are killed."""
    children: list[subprocess.Popen[str]] = []

    def start(program: str, level: Level, name: signal.Signals) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", HEAD + program, str(tmp_path / "s"), level, str(int(name))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            assert stream is not None
            stream.close()


def _assert_stored(path: Path, stored: list[str]) -> None:
    """All these, each with its own value: as the index says, and as the log says when there is no index."""
    for forget in (False, True):
        if forget:
            shutil.rmtree(path / "index")
        with opened(path) as store:
            found = {item.id: item.values["log"][1].decode() for item in store.list("t", "")}
            assert {id: f"value of {id}" for id in stored}.items() <= found.items()
            assert all(value == f"value of {id}" for id, value in found.items())


@pytest.mark.parametrize("level", LEVELS)
def test_interrupts_at_any_moment_of_putting(
    tmp_path: Path, start: Callable[[str, Level, signal.Signals], subprocess.Popen[str]], level: Level
) -> None:
    """Real signals from outside. Where they hit is left to the machine; when they are sent comes from a seed."""
    rng = random.Random(level)
    child = start(ANY_MOMENT, level, signal.SIGINT)
    assert child.stdin is not None
    assert child.stdout is not None
    for number in range(60):
        child.stdin.write("go\n")
        child.stdin.flush()
        assert child.stdout.readline() == "putting\n", number
        time.sleep(rng.uniform(0, 3e-3))
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "checked\n", number
    child.stdin.close()
    stored = child.stdout.readline().split()
    assert child.wait(30) == 0
    assert len(stored) > 60
    _assert_stored(tmp_path / "s", stored)


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("level", ["commit", "process"])
def test_interrupts_at_every_step_of_a_commit(
    tmp_path: Path, start: Callable[[str, Level, signal.Signals], subprocess.Popen[str]], level: Level, name: signal.Signals
) -> None:
    """What the handler raises reaches the caller, and behind the commit: the put is stored, and whole."""
    child = start(NAMED_POINTS, level, name)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    _assert_stored(tmp_path / "s", out.split())
