"""A writer that dies, or fails, while it begins a new segment; others go on in the old one, and nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from errno import EIO, ENOSPC
from pathlib import Path

import pytest

from ckptstore import Store
from ckptstore.errors import NoSpaceError
from ckptstore.storage.local.vfs import Vfs
from ckptstore.testing.crashfs import CrashVfs, write_image
from tests.crash.programs import SEGMENT, Call, opened, run, seen

ROOT = Path(__file__).resolve().parents[2]

VICTIM = """
import os, sys
from pathlib import Path
from ckptstore.storage.local.vfs import Vfs
from tests.crash.programs import Call, opened, run

class Killed(Vfs):
    begun = False
    def point(self, name):
        self.begun = self.begun or name == "segment:created"
        if self.begun and name == sys.argv[2]:
            os.kill(os.getpid(), 9)

with opened(Path(sys.argv[1]), vfs=Killed()) as store:
    run(store, Call("put", "victim", "killed", None, os.urandom(int(sys.argv[3])).hex()))
"""


def _kill_while_rotating(path: Path, point: str) -> None:
    """A process opens the store, puts a value for which a segment has to be begun, and dies there."""
    ended = subprocess.run(
        [sys.executable, "-c", VICTIM, str(path), point, str(SEGMENT)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        timeout=60,
    )
    assert ended.returncode == -signal.SIGKILL


def _extend(store: Store, count: int, size: int = 300) -> list[str]:
    """Put some checkpoints on the head; return all ids of the thread, oldest first."""
    known = _ids(store)
    for number in range(len(known), len(known) + count):
        run(store, Call("put", "t", f"c{number}", known[-1] if known else None, os.urandom(size).hex()))
        known.append(f"c{number}")
    return known


def _ids(store: Store) -> list[str]:
    return [item.id for item in store.list("t", "")][::-1]


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.seg"))


@pytest.mark.parametrize("index", ["lmdb", "sqlite"])
@pytest.mark.parametrize("point", ["segment:created", "commit:appended", "commit:indexed"])
@pytest.mark.parametrize("size", [300, SEGMENT], ids=["in-the-old-segment", "in-a-segment-of-the-same-lsn"])
def test_others_go_on_after_a_writer_was_killed_while_it_rotated(tmp_path: Path, index: str, point: str, size: int) -> None:
    """The segment that the dead writer began is moved away: it claims LSNs that the others have used since."""
    path = tmp_path / "s"
    with opened(path, vfs=Vfs(), index=index) as store:
        _extend(store, 5)
        before = _names(path / "segments")
        _kill_while_rotating(path, point)
        (begun,) = set(_names(path / "segments")) - set(before)
        _extend(store, 1, size)
        known = _extend(store, 4)
        state = seen(store)
        assert list(state) == ["t"]
        assert [item.id for item in state["t"]] == known
        assert _names(path / "torn") == [begun]
        # What a kill of this process leaves, too; with what the page cache holds of the index, and without it.
        # A hint may be written by another thread right now; it is no part of the log.
        shutil.copytree(path, tmp_path / "killed", ignore=shutil.ignore_patterns("*.hint.tmp"))
    shutil.copytree(path, tmp_path / "without an index")
    shutil.rmtree(tmp_path / "without an index" / "index")
    for left in (path, tmp_path / "killed", tmp_path / "without an index"):
        with opened(left, index=index) as store:
            assert seen(store) == state
            _extend(store, 1)
        with opened(left, index=index) as store:
            assert _ids(store) == [*known, "c10"]


def test_a_segment_that_a_failed_commit_could_not_remove_is_moved_away_by_a_rebuild(tmp_path: Path) -> None:
    """Two segments claim the same LSNs, and no index tells which of them was published: the one that others went on in counts."""
    path = tmp_path / "s"
    fs = CrashVfs(path)
    with opened(path, vfs=fs) as store:
        _extend(store, 5)
        before = _names(path / "segments")
        fs.fail("point", ENOSPC, path="commit:appended")
        fs.fail("unlink", EIO)
        with pytest.raises(NoSpaceError):
            run(store, Call("put", "t", "fails", "c4", os.urandom(SEGMENT).hex()))
        fs.heal()
        (begun,) = set(_names(path / "segments")) - set(before)
        known = _extend(store, 2)
    shutil.rmtree(path / "index")
    for _ in range(2):
        with opened(path) as store:
            assert _ids(store) == known
        assert _names(path / "segments") == before
        assert _names(path / "torn") == [begun]


def test_a_power_cut_after_a_commit_failed_while_it_rotated(tmp_path: Path) -> None:
    """The segment that the failed commit began is gone, and stays gone when the power goes: later commits have its LSNs."""
    path = tmp_path / "s"
    fs = CrashVfs(path)
    with opened(path, "commit", fs) as store:
        _extend(store, 5)
        before = _names(path / "segments")
        passed: list[str] = []
        fs.watch = lambda call, name: passed.append(name)
        fs.fail("point", ENOSPC, path="commit:appended")
        with pytest.raises(NoSpaceError):
            run(store, Call("put", "t", "fails", "c4", os.urandom(SEGMENT).hex()))
        fs.heal()
        assert "segment:created" in passed
        assert _names(path / "segments") == before
        known = _extend(store, 3)
        images = [fs.image(random.Random(seed)) for seed in range(40)]
    for number, image in enumerate(images):
        with opened(write_image(image, tmp_path / str(number))) as store:
            assert _ids(store) == known
    with opened(path) as store:
        assert _ids(store) == known
