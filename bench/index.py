"""What the two kinds of index cost: puts, gets, rebuilds, forks and bytes of one store, in one run.

    python bench/index.py            prints a markdown table

The engine alone, at durability "process", so that no fsync of the log hides the index. The rows with another setting of SQLite show why
it is set as it is. Kinds take turns, round by round. A figure counts only if all of them read the same checkpoints at the end.
"""

from __future__ import annotations

import os
import platform
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import apsw

import ckptstore
from ckptstore import LaneName, Store
from ckptstore.storage.local.index import sqlite

ROUNDS = 5
PUTS = 600
GETS = 600
FORKS = 20
LANE = LaneName("bench")


class Setting(NamedTuple):
    """A kind of index, and what is set otherwise than the package does."""

    name: str
    kind: str
    changes: dict[str, Any]


SETTINGS = (
    Setting("lmdb", "lmdb", {}),
    Setting("sqlite", "sqlite", {}),
    Setting("sqlite, WAL of 1000 pages", "sqlite", {"_CHECKPOINT_PAGES": 1000}),
    Setting("sqlite, synchronous=NORMAL", "sqlite", {"_SYNCHRONOUS": "NORMAL"}),
    Setting("sqlite, NORMAL, WAL of 1000 pages", "sqlite", {"_SYNCHRONOUS": "NORMAL", "_CHECKPOINT_PAGES": 1000}),
)


@contextmanager
def _set(changes: dict[str, Any]) -> Iterator[None]:
    usual = {name: getattr(sqlite, name) for name in changes}
    for name, value in changes.items():
        setattr(sqlite, name, value)
    try:
        yield
    finally:
        for name, value in usual.items():
            setattr(sqlite, name, value)


def _encode(channel: str, value: Any) -> tuple[str, bytes]:
    return "bytes", value


class Run:
    """One store under one setting, and the seconds its calls took."""

    def __init__(self, setting: Setting, path: Path) -> None:
        self.setting, self.path = setting, path
        self.times: dict[str, list[float]] = {"put": [], "get": [], "fork": []}
        self.count = 0
        self.bytes_open = 0

    def round(self, seed: int) -> None:
        """Put, get and fork in a session of its own."""
        rng = random.Random(seed)
        with _set(self.setting.changes), ckptstore.open(self.path, index=self.setting.kind, durability="process") as store:
            for _ in range(PUTS):
                self._timed("put", self._put, store, rng.randbytes(60))
            for _ in range(GETS):
                self._timed("get", store.get, LANE, f"{rng.randrange(self.count):06}")
            self.bytes_open = sum(path.stat().st_blocks * 512 for path in (self.path / "index").rglob("data*"))
            for _ in range(FORKS):
                self._timed("fork", _fork_and_wait)
                store.get(LANE)

    def _timed(self, name: str, call: Any, *arguments: Any) -> None:
        started = time.perf_counter()
        call(*arguments)
        self.times[name].append(time.perf_counter() - started)

    def _put(self, store: Store, value: bytes) -> None:
        id, parent = f"{self.count:06}", f"{self.count - 1:06}" if self.count else None
        versions = {"log": self.count}
        store.put_checkpoint(
            LANE, id, parent, skeleton={}, metadata={}, versions=versions, values={"log": value}, changed={"log"}, encode=_encode
        )
        self.count += 1

    def closed_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.path / "index").rglob("data*"))

    def rebuild(self) -> float:
        """Seconds to open the store once its index is gone."""
        shutil.rmtree(self.path / "index")
        started = time.perf_counter()
        with _set(self.setting.changes), ckptstore.open(self.path, index=self.setting.kind):
            return time.perf_counter() - started

    def everything(self) -> list[Any]:
        with ckptstore.open(self.path) as store:
            return [(item.id, item.parent, item.values) for item in store.list(LANE.thread)]


def _fork_and_wait() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = [Run(setting, Path(folder) / str(number)) for number, setting in enumerate(SETTINGS)]
        for seed in range(ROUNDS):
            for run in runs:
                run.round(seed)
        closed = [run.closed_bytes() for run in runs]
        rebuilt = [run.rebuild() for run in runs]
        found = [run.everything() for run in runs]
        assert len(found[0]) == ROUNDS * PUTS
        assert all(other == found[0] for other in found)
    print(f"{platform.system()}, Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}; {ROUNDS * PUTS} puts\n")
    print(
        "| index | put, median us | p99 us | slowest ms | get, median us | rebuild, us a frame | KiB while open | KiB closed | fork, ms |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for run, size, seconds in zip(runs, closed, rebuilt, strict=True):
        puts = sorted(run.times["put"])
        cells = [
            run.setting.name,
            f"{statistics.median(puts) * 1e6:.0f}",
            f"{puts[len(puts) * 99 // 100] * 1e6:.0f}",
            f"{puts[-1] * 1e3:.1f}",
            f"{statistics.median(run.times['get']) * 1e6:.0f}",
            f"{seconds / run.count * 1e6:.0f}",
            f"{run.bytes_open / 1024:.0f}",
            f"{size / 1024:.0f}",
            f"{statistics.median(run.times['fork']) * 1e3:.1f}",
        ]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
