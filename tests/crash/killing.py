"""Kills real processes at named points: what runs them, at which points, and what must be there afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.crash.programs import Level, assert_prefix, opened, program, run, seen, states

ROOT = Path(__file__).resolve().parents[2]
LENGTH = 24


class Died(NamedTuple):
    """What is known of a child that is gone."""

    acknowledged: int
    status: int
    lines: list[str]


class Killer:
    """Starts children that die, and reads what they said."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("kill_child.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )

    def run(
        self,
        store: Path,
        level: Level,
        *,
        seed: int,
        point: str | None = None,
        nth: int = 1,
        first: int = 0,
        length: int = LENGTH,
        fail_fsync: int = 0,
        kill_after: float | None = None,
        index: str | None = None,
    ) -> Died:
        """Run a child until it is gone.

        Args:
            point: shell pattern of the point at which it kills itself, the `nth` time.
            first: calls of the program that are made already.
            fail_fsync: number of the fsync that fails; 0 for none.
            kill_after: kill it from outside, seconds after it opened the store.
            index: kind of the index; None keeps what the store has.
        """
        job = {"store": str(store), "level": level, "seed": seed, "point": point, "nth": nth, "first": first, "index": index}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps({**job, "length": length, "fail_fsync": fail_fsync}) + "\n")
        self._server.stdin.flush()
        acknowledged, pid, lines = first, 0, []
        for line in self._server.stdout:
            word, _, value = line.strip().partition(" ")
            lines.append(word)
            if word == "pid":
                pid = int(value)
            elif word == "open" and kill_after is not None:
                time.sleep(kill_after)
                os.kill(pid, signal.SIGKILL)  # not reaped before `end`, so the pid is still its own
            elif word == "ack":
                acknowledged = int(value)
            elif word == "end":
                return Died(acknowledged, int(value), lines)
        raise AssertionError(f"the child server is gone: {lines}")

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(10)


def counted(found: Any, expected: Any, least: int) -> int:
    """How many calls of the program a store holds: those acknowledged, and at most the one that was going on."""
    assert_prefix(found, expected, least, least + 1)
    return least if found == expected[least] else least + 1


def checked(folder: Path, level: Level, seed: int, died: Died, length: int = LENGTH) -> None:
    """A store after a kill holds what was acknowledged, is the same when opened again, and takes the rest of the program."""
    calls = program(seed, length)
    expected = states(calls)
    least = died.acknowledged
    with opened(folder, level) as store:
        found = seen(store)
    count = least if least == len(calls) else counted(found, expected, least)
    with opened(folder, level) as store:
        assert seen(store) == found == expected[count]
        for call in calls[count:]:
            run(store, call)
    with opened(folder) as store:
        assert seen(store) == expected[-1]


def append_junk(store: Path) -> None:
    newest = max((store / "segments").glob("*.seg"))
    with newest.open("ab") as file:
        file.write(b"\x17" * 7)


def drop_index(store: Path) -> None:
    for path in sorted((store / "index").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (store / "index").rmdir()
