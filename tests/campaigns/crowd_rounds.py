"""Rounds of a crowd: which point is killed at, and how the program that plays them is asked."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.campaigns.crowd import Crowded
from tests.campaigns.points import pattern
from tests.crash.killing import ROOT
from tests.crash.programs import LEVELS

_ONCE = ("written:STORE", "renamed:STORE", "written:KIND", "renamed:KIND", "close:", "written:CLEAN", "renamed:CLEAN")


class Player:
    """The program of crowd.py, in a process of its own. What it says besides answers is in a file, for when no answer comes."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("crowd.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )

    def play(self, folder: Path, row: str, seed: int) -> Crowded:
        """Play a round in which somebody is killed at a point. The seed chooses everything else."""
        rng = random.Random(f"{row} {seed}")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(_job(folder, row, seed, rng)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self._said()
        return Crowded(**json.loads(answer))

    def _said(self) -> str:
        self._process.wait(10)
        self._errors.seek(0)
        return f"the program of crowds ended with {self._process.returncode}: {self._errors.read()}"

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._errors.close()


def _job(folder: Path, row: str, seed: int, rng: random.Random) -> dict[str, Any]:
    poisoning = "POISON" in row
    return {
        "path": str(folder / "store"),
        "level": "commit" if poisoning else rng.choice(LEVELS),
        "index_kind": "sqlite" if "KIND" in row else rng.choice(("lmdb", "sqlite")),
        "seed": seed,
        # Only where a writer died in the middle of a commit is there anything to cut.
        "kills": ["commit:appended", pattern(row)] if "torn" in row else [pattern(row)],
        "nth": 1 if poisoning or row.startswith(_ONCE) else rng.randint(1, 4),
        "fail_fsync": rng.randint(3, 12) if poisoning else 0,
    }
