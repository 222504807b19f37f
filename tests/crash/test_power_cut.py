"""Power cuts, simulated behind the filesystem seam: at every call of short programs, and at random ones of longer programs.

A power cut takes what was not synced, in any legal part (ckptstore/testing/crashfs.py), and the index with it. A kill takes nothing that
was written: the kill tests are in test_kill.py, and one test here shows the difference.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from ckptstore import Store
from ckptstore.storage.local import handle
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.testing.crashfs import CrashVfs, Image, write_image
from tests.crash.cutting import Recorder, checked, reopened
from tests.crash.programs import LEVELS, Call, Level, assert_prefix, opened, program, run, seen, states


def test_commit_keeps_every_acknowledged_call_whenever_the_power_goes(tmp_path: Path) -> None:
    """Every call of the seam is a moment to cut, from the creation of the store to its close; segments rotate on the way."""
    calls = program(11, 14)
    recorder = Recorder(tmp_path / "store", 1, lambda rng: 1)
    recorder.run(calls, "commit")
    expected = states(calls)
    moments = {cut.at.split("/")[0] for cut in recorder.cuts}
    assert {"pwrite segments", "fdatasync segments", "rename segments", "sync_folder segments", "point rotate:sealed"} <= moments
    assert len(list((tmp_path / "store" / "segments").glob("*.seg"))) > 1
    lost = kept = 0
    for cut in recorder.cuts:
        number = checked(cut, tmp_path, expected)
        lost += number < cut.most
        kept += number == cut.most
    # Both happened: calls that were begun and not acknowledged may be there or not.
    assert lost
    assert kept


@pytest.mark.parametrize(("seed", "index"), [(0, "lmdb"), (1, "sqlite"), (2, "lmdb"), (3, "sqlite")])
def test_commit_at_random_moments_of_longer_programs(tmp_path: Path, seed: int, index: str) -> None:
    calls = program(100 + seed, 60)
    recorder = Recorder(tmp_path / "store", seed, lambda rng: rng.random() < 0.1)
    recorder.run(calls, "commit", index=index)
    expected = states(calls)
    for cut in recorder.cuts:
        checked(cut, tmp_path, expected, index=index)


def test_a_power_cut_during_recovery(tmp_path: Path) -> None:
    """The recovery itself is cut at each of its calls, and recovered from."""
    calls = program(21, 30)
    recorder = Recorder(tmp_path / "store", 2, lambda rng: rng.random() < 0.04)
    recorder.run(calls, "process", sync_at=(10, 20))
    expected = states(calls)
    for cut in recorder.cuts[-12:]:
        checked(cut, tmp_path, expected, deep=True)


@pytest.mark.parametrize("level", ["interval", "process"])
def test_other_levels_keep_a_prefix_and_everything_before_the_last_sync(tmp_path: Path, level: Level) -> None:
    calls = program(31, 40)
    recorder = Recorder(tmp_path / "store", 3, lambda rng: rng.random() < 0.2)
    recorder.run(calls, level, sync_at=(13, 27))
    expected = states(calls)
    lost = sum(checked(cut, tmp_path, expected) < cut.most - 1 for cut in recorder.cuts)
    assert lost  # acknowledged calls, of which this level does not say that they survive


def _killed(store: Store) -> None:
    """What a kill leaves of the handles of a process: its files and locks are gone, and nothing was written on the way."""
    storage = store._storage
    assert isinstance(storage, LocalStorage)
    engine = storage._engine
    handle._table.clear()
    engine._index.close()
    engine._page.close()
    engine.segments.close()
    engine._lock.close()
    engine.handles = 2  # so that closing the store does not end what is ended
    storage.close()


def test_what_is_read_after_a_kill_survives_a_power_cut(tmp_path: Path) -> None:
    """At `process` a kill leaves calls that were never flushed. Whoever opens the store next shows them to readers: not before a flush."""
    calls = program(81, 6)
    fs = CrashVfs(tmp_path / "store")
    with opened(tmp_path / "store", "process", fs) as store:
        for call in calls:
            run(store, call)
        _killed(store)
    with opened(tmp_path / "store", "process", fs) as store:
        assert seen(store) == states(calls)[-1]
        image = fs.image(random.Random(1), "lost")
    reopened(image, tmp_path, states(calls), [states(calls)[-1]])


class _SlowToReturn(CrashVfs):
    """Its fdatasync has flushed what there was, and returns when it is told to."""

    slow = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.flushed, self.go_on = threading.Event(), threading.Event()

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        if self.slow:
            self.slow = False
            self.flushed.set()
            assert self.go_on.wait(20)


def test_an_fsync_that_began_before_a_call_does_not_cover_it(tmp_path: Path) -> None:
    """Two threads: the fsync of the first is still going on when the second has published, and cannot have flushed that."""
    fs = _SlowToReturn(tmp_path / "store")
    first, second = (Call("put", thread, thread, None, f"text of {thread}") for thread in "ab")
    with opened(tmp_path / "store", vfs=fs, segment_bytes=1 << 20) as store:
        fs.slow = True
        threads = [threading.Thread(target=run, args=(store, call)) for call in (first, second)]
        threads[0].start()
        assert fs.flushed.wait(20)
        threads[1].start()
        while set(seen(store)) != {"a", "b"}:
            time.sleep(0.001)
        fs.go_on.set()
        for thread in threads:
            thread.join(20)
        image = fs.image(random.Random(1), "lost")
    both = states([first, second])[-1]
    reopened(image, tmp_path, [both], [both])


def test_interval_syncs_by_itself(tmp_path: Path) -> None:
    calls = program(41, 10)
    fs = CrashVfs(tmp_path / "store")
    with opened(tmp_path / "store", "interval", fs, sync_interval=0.01) as store:
        for call in calls:
            run(store, call)
        _wait_until_durable(store)
        image = fs.image(random.Random(1), "lost")
    reopened(image, tmp_path, states(calls), [states(calls)[-1]])


def _wait_until_durable(store: Store) -> None:
    deadline = time.monotonic() + 10
    while (stats := store.stats()).durable_lsn < stats.last_lsn:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_process_syncs_when_a_reader_asks(tmp_path: Path) -> None:
    calls = program(51, 6)
    fs = CrashVfs(tmp_path / "store")
    with opened(tmp_path / "store", "process", fs) as store:
        for call in calls:
            run(store, call)
        store.wait_durable(store.stats().last_lsn)
        image = fs.image(random.Random(1), "lost")
    reopened(image, tmp_path, states(calls), [states(calls)[-1]])


@pytest.mark.parametrize("level", LEVELS)
def test_a_kill_is_not_a_power_cut(tmp_path: Path, level: Level) -> None:
    """After a kill everything acknowledged is there, at every level; after a power cut only `commit` promises that."""
    calls = program(61, 6)
    fs = CrashVfs(tmp_path / "store")
    with opened(tmp_path / "store", level, fs, sync_interval=60) as store:
        for call in calls:
            run(store, call)
        kill, power_cut = fs.image(random.Random(1), "live"), fs.image(random.Random(1), "lost")
    for name, image, least in (("kill", kill, len(calls)), ("cut", power_cut, len(calls) if level == "commit" else 0)):
        folder = write_image(image, tmp_path / name)
        with opened(folder, vfs=CrashVfs(folder)) as store:
            found = seen(store)
        assert_prefix(found, states(calls), least, len(calls))
        if name == "cut" and level != "commit":
            assert found == {}


def test_what_a_recovery_cuts_is_kept_whenever_the_power_goes(tmp_path: Path) -> None:
    """The bytes of a torn tail are in the segment or in torn/, at every moment."""
    calls = program(71, 3)
    with opened(tmp_path / "store", vfs=(before := CrashVfs(tmp_path / "store"))) as store:
        for call in calls:
            run(store, call)
        image = before.image(random.Random(1), "lost")
    junk = b"\x17" * 50
    name = "segments/00000000000000000001.seg"
    image[name] = (image[name] or b"") + junk
    folder = write_image(image, tmp_path / "torn")
    fs = CrashVfs(folder)
    moments: list[tuple[str, Image]] = []
    fs.watch = lambda call, name: moments.append((f"{call} {name}", fs.image(random.Random(1), "lost")))
    with opened(folder, vfs=fs) as store:
        assert seen(store) == states(calls)[-1]
    assert "point torn:cut" in {at for at, _ in moments}
    assert [at for at, image in moments if not any(junk in (data or b"") for data in image.values())] == []
