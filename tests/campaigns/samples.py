"""Folders for bit flips: stores with every kind of file, closed and killed, with an index and without, poisoned; and a backup."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ckptstore import LaneName, Store, StoreOptions
from ckptstore.errors import DurabilityUnknownError
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.storage.local.index.kinds import KINDS
from ckptstore.storage.local.layout import Layout
from ckptstore.storage.local.vfs import Vfs
from ckptstore.testing.crashfs import CrashVfs
from tests.campaigns.facts import Facts, facts
from tests.contract.calls import put
from tests.crash.programs import SEGMENT, UNSYNCED
from tests.upkeep.lives import Life, make

LANE = LaneName("last")


class Sample(NamedTuple):
    """A folder to damage, and what it says."""

    name: str
    folder: Path
    trusted: bool
    """Whether it has an index that the next open trusts; else the log is all there is."""
    said: Mapping[int, Facts]
    """LSN -> what it said when that was the last; of the last ones."""

    @property
    def truth(self) -> Facts:
        """What it says."""
        return self.said[max(self.said)]


def samples(folder: Path, seed: int, index: str) -> list[Sample]:
    """Make one of each.

    Args:
        index: kind of the index of those that have one.
    """
    live, closed, killed, poisoned, behind = (folder / name for name in ("live", "closed", "killed", "poisoned", "behind"))
    _torn(live, index)
    fs = CrashVfs(live)
    store = opened_sample(live, fs)
    life = Life(store, {})
    _live(life, seed, 22)
    store.compact()
    _live(life, seed + 1000, 14)
    said = {_lsn(store): facts(store)}
    _more(store, said, "the last", "the first")
    _wait_for_hints(live)
    _copy(live, killed)
    fs.fail("fdatasync", path="segments/*")
    doubtful = dict(said)
    with pytest.raises(DurabilityUnknownError):
        put(store, "doubtful", "the last", {"m": ["more"]}, lane=LANE)
    doubtful[_lsn(store)] = facts(store)
    _copy(live, poisoned)
    store.close()
    shutil.rmtree(live)
    # One that was closed, and one that was killed behind its last fsync.
    _copy(killed, closed)
    with opened_sample(closed) as store:
        store.backup(folder / "backup")
        end = {_lsn(store): facts(store)}
        _more(store, end, "the end", "the last")
    _copy(closed, folder / "open")
    with opened_sample(folder / "open", durability="process") as store:
        fast = {_lsn(store): facts(store)}
        for number in range(4):
            _more(store, fast, f"unsynced {number}", "the end")
        _copy(folder / "open", behind)
    shutil.rmtree(folder / "open")
    return [
        Sample("closed", closed, True, _sealed(end)),
        Sample("closed, index lost", _without_index(closed), False, _sealed(end)),
        Sample("killed", killed, True, said),
        Sample("killed, index lost", _without_index(killed), False, said),
        Sample("killed at process", behind, True, fast),
        Sample("killed at process, index lost", _without_index(behind), False, fast),
        Sample("poisoned", poisoned, False, doubtful),
        Sample("backup", folder / "backup", False, said),
    ]


def opened_sample(path: Path, vfs: Vfs = UNSYNCED, **options: Any) -> Store:
    chosen = StoreOptions(**{"segment_bytes": SEGMENT, "auto_compact": False, **options})
    return Store(LocalStorage(path, chosen, vfs), chosen)


def copied(sample: Sample, folder: Path) -> Path:
    """A copy that may be damaged and opened."""
    return _copy(sample.folder, folder)


def _lsn(store: Store) -> int:
    return store.stats().last_lsn


def _more(store: Store, said: dict[int, Facts], id: str, parent: str) -> None:
    put(store, id, parent, {"m": [f"{id} words"]}, lane=LANE)
    said[_lsn(store)] = facts(store)


def _sealed(said: dict[int, Facts]) -> dict[int, Facts]:
    """After a close the last frame is one without records."""
    last = max(said)
    return {**said, last + 1: said[last]}


def _live(life: Life, seed: int, count: int) -> None:
    rng = random.Random(seed)
    for number in range(count):
        kind = rng.choice(("put", "put", "delta", "delta", "delta", "write", "copy", "prune", "runs"))
        make(life, (kind, rng.randrange(1 << 16)), seed * 100 + number)


def _torn(path: Path, index: str) -> None:
    """A store that once had a torn tail."""
    with opened_sample(path, index=index) as store:
        put(store, "the first", None, {"m": ["first words"]}, lane=LANE)
    with max((path / "segments").glob("*.seg")).open("ab") as file:
        file.write(b"torn bytes")
    shutil.rmtree(path / "index")
    opened_sample(path, index=index).close()
    assert list((path / "torn").iterdir())


def _wait_for_hints(path: Path) -> None:
    *full, _ = sorted((path / "segments").glob("*.seg"))
    deadline = time.monotonic() + 10
    # A compacted segment has no hint.
    while not any(segment.with_suffix(".hint").exists() for segment in full):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _copy(source: Path, target: Path) -> Path:
    """A copy that looks like the folder itself: OWNER names its own file of the index."""
    shutil.copytree(source, target)
    layout = Layout(target)
    if layout.owner.exists():
        owner = json.loads(layout.owner.read_text())
        status = (layout.epoch(owner["epoch"]) / KINDS[owner["kind"]].data_name).stat()
        owner["file"] = [status.st_dev, status.st_ino]
        layout.owner.write_text(json.dumps(owner))
    return target


def _without_index(store: Path) -> Path:
    return Path(shutil.copytree(store, store.with_name(f"{store.name} without index"), ignore=shutil.ignore_patterns("index")))
