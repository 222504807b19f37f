"""Backups made while a store is used, brought up to date by segments, killed and cut off at every step; and stores restored from them."""

from __future__ import annotations

import os
import random
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import ckptstore
from ckptstore import LaneName, StoreExistsError, StoreOptions
from ckptstore.errors import (
    CkptStoreError,
    CorruptionError,
    ForeignSegmentError,
    FormatVersionError,
    InvalidArgumentError,
    LockTimeoutError,
    NoSpaceError,
    NotAStoreError,
    ThreadDeletedError,
    TimelineError,
)
from ckptstore.storage.local import backup as local
from ckptstore.storage.local import checking
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.storage.local.vfs import Vfs
from ckptstore.testing.crashfs import CrashVfs, Image, write_image
from tests.contract.calls import ids, open_at, put, values, write
from tests.helpers import flip, frames
from tests.upkeep.lives import Life, Move, lived, make, moves, opened_life, told
from tests.upkeep.test_compaction import child

FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
STEPS = ("backup:copied", "backup:grown", "backup:synced", "written:BACKUP.tmp", "renamed:BACKUP", "backup:counts", "backup:swept")
RESTORE_STEPS = ("restore:begun", "restore:copied", "restore:whole", "restore:renamed", "written:STORE.tmp", "renamed:STORE")


def grown(life: Life, seed: int, count: int = 15) -> Life:
    """Some more moves, none of which compaction is known to get wrong."""
    rng = random.Random(seed)
    for number in range(count):
        kind = rng.choice(("put", "delta", "delta", "write", "copy", "runs"))
        make(life, (kind, rng.randrange(1 << 16)), seed * 1000 + number)
    return life


def restored(source: Path, path: Path) -> object:
    """What a store says that is restored from a backup."""
    ckptstore.restore(source, path)
    report = ckptstore.verify(path)
    assert report.problems == []
    with open_at(path) as store:
        return told(store)


def bytes_of(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


# -- what a backup is -------------------------------------------------------------------------------------------------------


@FEW
@given(moves, moves)
def test_a_restored_store_says_the_same(first: Sequence[Move], then: Sequence[Move]) -> None:
    """After more of a life and a compaction the backup is brought up to date, and says what the store says then."""
    with tempfile.TemporaryDirectory() as folder:
        path, copy = Path(folder) / "store", Path(folder) / "backup"
        life = lived(opened_life(path), first)
        life.store.backup(copy)
        before = told(life.store)
        assert restored(copy, Path(folder) / "one") == before
        for number, move in enumerate(then, 100):
            make(life, move, number)
        life.store.compact()
        after = told(life.store)
        # The backup is still that of before.
        assert restored(copy, Path(folder) / "again") == before
        life.store.backup(copy)
        assert restored(copy, Path(folder) / "two") == after
        life.store.close()
        assert ckptstore.backup(path, copy).copied_bytes <= 200  # the frame of the close
        with open_at(Path(folder) / "two") as store:
            put(store, "goes on", None, {"m": 1})
        assert ckptstore.verify(Path(folder) / "two").problems == []


def test_only_what_is_new_is_copied(tmp_path: Path) -> None:
    path, copy = tmp_path / "store", tmp_path / "backup"
    life = grown(opened_life(path), 1, 60)
    with life.store as store:
        first = store.backup(copy)
        assert first.copied_segments == first.segments > 2
        assert first.copied_bytes == first.bytes == store.stats().log_bytes
        again = store.backup(copy)
        assert (again.copied_segments, again.copied_bytes, again.bytes) == (0, 0, first.bytes)
        put(store, "small", None, {"m": 1}, lane=LaneName("new"))
        added = store.backup(copy)
        assert (added.copied_segments, added.copied_bytes) == (1, added.bytes - first.bytes)
        assert added.last_lsn == store.stats().last_lsn
        store.prune("a")
        done = store.compact()
        assert done.segments_after
        compacted = store.backup(copy)
        assert compacted.bytes == store.stats().log_bytes
        assert sum(file.stat().st_size for file in (copy / "segments").iterdir()) == compacted.bytes
        assert restored(copy, tmp_path / "restored") == told(store)


def test_the_folder_is_no_store_and_the_source_is_untouched(tmp_path: Path) -> None:
    path, copy = tmp_path / "store", tmp_path / "backup"
    grown(opened_life(path), 2).store.close()
    before = bytes_of(path)
    ckptstore.backup(path, copy)
    after = bytes_of(path)
    assert {name: after[name] for name in after if not name.startswith(("index", "LOCK"))} == {
        name: before[name] for name in before if not name.startswith(("index", "LOCK"))
    }
    for options in ({}, {"read_only": True}):
        with pytest.raises(CkptStoreError):
            ckptstore.open(copy, **options)  # type: ignore[arg-type]


def test_a_thread_that_was_deleted_stays_deleted(tmp_path: Path) -> None:
    with open_at(tmp_path / "store") as store:
        put(store, "1", None, {"m": 1})
        store.delete("t")
        store.backup(tmp_path / "backup")
    ckptstore.restore(tmp_path / "backup", tmp_path / "restored")
    with open_at(tmp_path / "restored") as store, pytest.raises(ThreadDeletedError):
        write(store, "1", "late")


@pytest.mark.parametrize("index", ["lmdb", "sqlite"])
def test_a_new_timeline(tmp_path: Path, index: str) -> None:
    """Restored and written to, then a segment goes astray: the store that was backed up refuses it."""
    with open_at(tmp_path / "store", index=index) as store:
        put(store, "1", None, {"m": 1})
        store.backup(tmp_path / "backup")
    report = ckptstore.restore(tmp_path / "backup", tmp_path / "restored")
    with open_at(tmp_path / "restored") as store:
        put(store, "other", "1", {"m": 2})
        assert ids(store) == ["other", "1"]
    assert (tmp_path / "restored" / "index" / "KIND").read_text().strip() == index
    segments = sorted((tmp_path / "restored" / "segments").glob("*.seg"))
    assert len(segments) == report.segments + 1
    shutil.copy(segments[-1], tmp_path / "store" / "segments")
    with pytest.raises(TimelineError):
        open_at(tmp_path / "store")
    # A restored store can be backed up and restored in its turn.
    with open_at(tmp_path / "restored") as store:
        store.backup(tmp_path / "second")
    assert ckptstore.restore(tmp_path / "second", tmp_path / "third").timeline != report.timeline
    with open_at(tmp_path / "third") as store:
        assert ids(store) == ["other", "1"]


def test_two_copies_that_went_apart_are_not_mixed_up(tmp_path: Path) -> None:
    """A power cut took the end of the store after a backup. Others were written in its place: the backup has to follow."""
    path = tmp_path / "store"
    with open_at(path) as store:
        put(store, "1", None, {"m": 1})
    shutil.copytree(path, tmp_path / "before")
    with open_at(path) as store:
        put(store, "lost", "1", {"m": "lost"})
        store.backup(tmp_path / "backup")
    shutil.rmtree(path)
    os.rename(tmp_path / "before", path)
    with open_at(path) as store:
        put(store, "came instead", "1", {"m": "of the same length, or longer"})
        store.backup(tmp_path / "backup")
        assert restored(tmp_path / "backup", tmp_path / "restored") == told(store)


# -- while others work ------------------------------------------------------------------------------------------------------


def test_while_others_write_prune_and_compact(tmp_path: Path) -> None:
    """Each backup is one moment: the newest checkpoint of each thread is there with all its writes, and verify finds nothing."""
    path = tmp_path / "store"
    program = (
        "import sys\n"
        "from tests.contract.calls import open_at, put, write\n"
        "from ckptstore import LaneName\n"
        "store = open_at(sys.argv[1], segment_bytes=4096, auto_compact=False)\n"
        "print('going', flush=True)\n"
        "for n in range(2000):\n"
        "    write(store, f'{n:06}', f'before {n}')\n"
        "    put(store, f'{n:06}', f'{n - 1:06}' if n else None, {'m': ['words'] * (n % 40), 'n': n})\n"
        "    if n % 40 == 39: store.prune('t')\n"
        "    if n % 90 == 89: store.compact()\n"
    )
    writer = child(program, path)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "going\n"
    newest = []
    for number in range(6):
        ckptstore.backup(path, tmp_path / "backup")
        shutil.rmtree(tmp_path / "restored", ignore_errors=True)
        ckptstore.restore(tmp_path / "backup", tmp_path / "restored")
        assert ckptstore.verify(tmp_path / "restored").problems == []
        with open_at(tmp_path / "restored") as store:
            head = store.get(LaneName("t"))
            if head is not None:
                newest.append(head.id)
                assert [item.value for item in head.writes] == [("json", f'"before {int(head.id)}"'.encode())]
        assert number < 6
    writer.kill()
    writer.wait()
    assert newest == sorted(newest)
    assert len(set(newest)) > 1


def test_a_compaction_between_looking_and_copying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is published after the backup looked at the index, and before it holds the files: both have to be of one moment."""
    with opened_life(tmp_path / "store").store as store:
        for number in range(12):
            put(store, f"{number}", f"{number - 1}" if number else None, {"m": random.Random(number).randbytes(500).hex()})
        store.prune("t")
        hold_files = checking._log

        def late(path: Path) -> Any:
            monkeypatch.setattr(checking, "_log", hold_files)
            assert store.compact().frames_dropped
            return hold_files(path)

        monkeypatch.setattr(checking, "_log", late)
        store.backup(tmp_path / "backup")
        assert restored(tmp_path / "backup", tmp_path / "restored") == told(store)


# -- kills, power cuts, full disks ------------------------------------------------------------------------------------------


KILLED = """
import os, signal, sys
from pathlib import Path
from ckptstore import StoreOptions
from ckptstore.storage.local import backup
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.storage.local.vfs import Vfs

class Deadly(Vfs):
    def point(self, name):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGKILL)

source, target = Path(sys.argv[3]), Path(sys.argv[4])
if sys.argv[2] == "backup":
    backup.backup(LocalStorage(source, StoreOptions()), target, Deadly())
else:
    backup.restore(source, target, Deadly())
"""


def test_every_step_is_killed_at() -> None:
    named = set(re.findall(r"\.point\(\"([^\"]+)\"\)", Path(local.__file__).read_text()))
    assert named == {step for step in STEPS + RESTORE_STEPS if step.startswith(("backup:", "restore:"))}


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_backup_is_the_old_one_or_the_new_one(tmp_path: Path, step: str) -> None:
    path, copy = tmp_path / "store", tmp_path / "backup"
    life = grown(opened_life(path), 3, 40)
    old = told(life.store)
    life.store.backup(copy)
    # The active segment grows a little, so that one is appended to; and others come.
    put(life.store, "small", None, {"m": 1}, lane=LaneName("new"))
    grown(life, 4, 20)
    new = told(life.store)
    life.store.close()
    assert child(KILLED, step, "backup", path, copy).wait() == -9
    counts = STEPS.index(step) >= STEPS.index("renamed:BACKUP")
    assert restored(copy, tmp_path / "restored") == (new if counts else old)
    report = ckptstore.backup(path, copy)
    assert restored(copy, tmp_path / "whole") == new
    assert sum(file.stat().st_size for file in (copy / "segments").iterdir()) == report.bytes


@pytest.mark.parametrize("step", RESTORE_STEPS)
def test_a_killed_restore_leaves_nothing_or_all(tmp_path: Path, step: str) -> None:
    path, copy, target = tmp_path / "store", tmp_path / "backup", tmp_path / "restored"
    life = grown(opened_life(path), 5, 30)
    before = told(life.store)
    life.store.backup(copy)
    life.store.close()
    assert child(KILLED, step, "restore", copy, target).wait() == -9
    if step == "restore:renamed":
        with pytest.raises(StoreExistsError):
            ckptstore.restore(copy, target)
    else:
        assert not target.exists()
        ckptstore.restore(copy, target)
    assert ckptstore.verify(target).problems == []
    with open_at(target) as store:
        assert told(store) == before
    assert sorted(item.name for item in tmp_path.iterdir()) == ["backup", "restored", "store"]


def test_power_cuts_in_a_backup(tmp_path: Path) -> None:
    """At each call: what the disk holds then is the old backup, or the new one."""
    path, disk = tmp_path / "store", tmp_path / "disk"
    life = grown(opened_life(path), 6, 25)
    disk.mkdir()
    first = told(life.store)
    life.store.backup(disk / "backup")
    put(life.store, "small", None, {"m": 1}, lane=LaneName("new"))
    grown(life, 7, 12)
    life.store.compact()
    second = told(life.store)
    fs = CrashVfs(disk)
    rng = random.Random(1)
    images: list[Image] = []
    fs.watch = lambda call, name: images.append(fs.image(rng))
    storage = life.store._storage
    assert isinstance(storage, LocalStorage)
    local.backup(storage, disk / "backup", fs)
    fs.watch = None
    images.append(fs.image(rng, "lost"))
    life.store.close()
    seen = []
    for number, image in enumerate(images):
        folder = write_image(image, tmp_path / f"cut {number}")
        found = restored(folder / "backup", folder / "restored")
        assert found in (first, second)
        seen.append(found == second)
    assert seen == sorted(seen)
    assert {False, True} == set(seen)


def test_power_cuts_in_a_restore(tmp_path: Path) -> None:
    path, disk = tmp_path / "store", tmp_path / "disk"
    life = grown(opened_life(path), 8, 20)
    before = told(life.store)
    life.store.backup(tmp_path / "backup")
    life.store.close()
    disk.mkdir()
    fs = CrashVfs(disk)
    rng = random.Random(1)
    images: list[Image] = []
    fs.watch = lambda call, name: images.append(fs.image(rng))
    local.restore(tmp_path / "backup", disk / "restored", fs)
    fs.watch = None
    images.append(fs.image(rng, "lost"))
    there = 0
    for number, image in enumerate(images):
        folder = write_image(image, tmp_path / f"cut {number}")
        if not (folder / "restored").exists():
            ckptstore.restore(tmp_path / "backup", folder / "restored")
        else:
            there += 1
        with open_at(folder / "restored") as store:
            assert told(store) == before
    assert 1 <= there < len(images)


def test_a_full_disk(tmp_path: Path) -> None:
    path, disk = tmp_path / "store", tmp_path / "disk"
    life = grown(opened_life(path), 9, 25)
    disk.mkdir()
    life.store.backup(disk / "backup")
    before = told(life.store)
    grown(life, 10, 10)
    storage = life.store._storage
    assert isinstance(storage, LocalStorage)
    fs = CrashVfs(disk)
    fs.fail("pwrite", ENOSPC, short=5)
    with pytest.raises(NoSpaceError):
        local.backup(storage, disk / "backup", fs)
    assert restored(disk / "backup", tmp_path / "restored") == before
    fs.fail("pwrite", ENOSPC, after=1)
    with pytest.raises(NoSpaceError):
        local.restore(disk / "backup", disk / "more", fs)
    assert not (disk / "more").exists()
    life.store.close()


# -- damage and wrong calls -------------------------------------------------------------------------------------------------


def test_a_damaged_store_does_not_replace_a_good_backup(tmp_path: Path) -> None:
    path, copy = tmp_path / "store", tmp_path / "backup"
    with open_at(path) as store:
        put(store, "1", None, {"m": 1})
        store.backup(copy)
        before = told(store)
        put(store, "2", "1", {"m": "text " * 100})
        put(store, "3", "2", {"m": 3})
    frame = list(frames(path))[1]
    flip(frame.path, frame.offset + frame.size - 3)
    with pytest.raises(CorruptionError, match="an earlier backup stays"):
        ckptstore.backup(path, copy)
    shutil.rmtree(path / "index")
    with pytest.raises(CorruptionError):
        ckptstore.backup(path, copy)
    assert restored(copy, tmp_path / "restored") == before


@pytest.mark.parametrize("what", ["flipped", "cut", "missing", "manifest", "newer"])
def test_a_damaged_backup_restores_nothing(tmp_path: Path, what: str) -> None:
    copy = tmp_path / "backup"
    life = grown(opened_life(tmp_path / "store"), 11, 20)
    life.store.backup(copy)
    life.store.close()
    file = min((copy / "segments").iterdir())
    manifest = copy / "BACKUP"
    damage: dict[str, Callable[[], object]] = {
        "flipped": lambda: flip(file, 200),
        "cut": lambda: os.truncate(file, 200),
        "missing": file.unlink,
        "manifest": lambda: manifest.write_text(manifest.read_text().replace("taken_ms", "token_ms")),
        "newer": lambda: manifest.write_text(manifest.read_text().replace('"ckptstore_backup": 1', '"ckptstore_backup": 2')),
    }
    damage[what]()
    with pytest.raises(FormatVersionError if what == "newer" else CorruptionError):
        ckptstore.restore(copy, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_what_is_in_the_way(tmp_path: Path) -> None:
    with open_at(tmp_path / "store") as store:
        put(store, "1", None, {"m": 1})
        store.backup(tmp_path / "backup")
        with pytest.raises(StoreExistsError):
            ckptstore.restore(tmp_path / "backup", tmp_path / "store")
        (tmp_path / "file").write_text("")
        with pytest.raises(StoreExistsError):
            ckptstore.restore(tmp_path / "backup", tmp_path / "file")
        with pytest.raises(NotAStoreError, match="other files"):
            store.backup(tmp_path)
        with pytest.raises(NotAStoreError, match="no backup"):
            ckptstore.restore(tmp_path / "store", tmp_path / "new")
        with pytest.raises(InvalidArgumentError, match="outside the store"):
            store.backup(tmp_path / "store" / "backup")
        with pytest.raises(InvalidArgumentError, match="destination="):
            store.backup("")
        (tmp_path / "empty").mkdir()
        ckptstore.restore(tmp_path / "backup", tmp_path / "empty")
        assert values(store) == {"m": 1}
    with open_at(tmp_path / "other") as store, pytest.raises(ForeignSegmentError):
        store.backup(tmp_path / "backup")
    with ckptstore.open(":memory:") as store, pytest.raises(InvalidArgumentError, match="in a folder"):
        store.backup(tmp_path / "memory")


def test_two_backups_at_once(tmp_path: Path) -> None:
    """The second to the same folder is refused; the first goes on."""
    at, on = threading.Event(), threading.Event()

    class Waiting(Vfs):
        def point(self, name: str) -> None:
            if name == "backup:copied":
                at.set()
                on.wait(10)

    with open_at(tmp_path / "store") as store:
        put(store, "1", None, {"m": 1})
        storage = LocalStorage(tmp_path / "store", StoreOptions())
        thread = threading.Thread(target=local.backup, args=(storage, tmp_path / "backup", Waiting()))
        thread.start()
        assert at.wait(10)
        with pytest.raises(LockTimeoutError):
            store.backup(tmp_path / "backup")
        # Commits do not wait for a backup; what comes after its moment is not in it.
        put(store, "2", "1", {"m": 2})
        on.set()
        thread.join()
        storage.close()
    ckptstore.restore(tmp_path / "backup", tmp_path / "restored")
    with open_at(tmp_path / "restored") as store:
        assert ids(store) == ["1"]
