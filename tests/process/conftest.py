"""Children of the process tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Child:
    """A process that runs a task of child.py and talks in lines."""

    def __init__(self, task: str, *arguments: object, before: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*before, sys.executable, str(Path(__file__).with_name("child.py")), task, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> str:
        """The next line the child says; empty when it is gone."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def finish(self) -> None:
        """Let the child end; it must end well."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(30) == 0


@pytest.fixture
def spawn() -> Iterator[Callable[..., Child]]:
    """Starts children; those still there at the end of the test are killed."""
    children: list[Child] = []

    def start(task: str, *arguments: object, before: tuple[str, ...] = ()) -> Child:
        children.append(Child(task, *arguments, before=before))
        return children[-1]

    yield start
    for child in children:
        child.process.kill()
        child.process.wait()
        for stream in (child.process.stdin, child.process.stdout):
            assert stream is not None
            stream.close()
