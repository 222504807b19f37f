"""Power cuts, simulated behind the filesystem seam: at every call of short programs, and at random ones of longer programs.

A power cut takes what was not synced, in any legal part (ckptstore/testing/crashfs.py), and the index with it. A kill takes nothing that
was written: the kill tests are in test_kill.py, and one test here shows the difference.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from ckptstore import Store
from ckptstore.testing.crashfs import CrashVfs, Image, write_image
from tests.crash.programs import LEVELS, Call, Level, State, assert_prefix, opened, program, run, seen, states


class Cut(NamedTuple):
    """A power cut in the middle of a program."""

    image: Image
    at: str
    """The call or point it came before."""
    least: int
    """Calls that must be there: acknowledged at `commit`, before the last sync otherwise."""
    most: int
    """Calls that were begun."""


class Recorder:
    """Runs a program and takes images on the way."""

    def __init__(self, folder: Path, seed: int, take: Callable[[random.Random], int]) -> None:
        self.fs = CrashVfs(folder)
        self.cuts: list[Cut] = []
        self.least = self.most = 0
        self._rng = random.Random(seed)
        self._take = take
        self.fs.watch = self._before

    def _before(self, call: str, name: str) -> None:
        least = self.least
        images = [self.fs.image(self._rng) for _ in range(self._take(self._rng))]
        self.cuts += [Cut(image, f"{call} {name}", least, self.most) for image in images]

    def run(self, calls: list[Call], level: Level, sync_at: tuple[int, ...] = (), index: str | None = None) -> None:
        """Run a program; at the other levels than `commit`, `sync` after some of the calls."""
        with opened(self.fs.root, level, self.fs, sync_interval=60, index=index) as store:
            for number, call in enumerate(calls, 1):
                self.most = number
                run(store, call)
                if level == "commit":
                    self.least = number
                elif number in sync_at:
                    store.sync()
                    self.least = number
        self.fs.watch = None
        self.least = len(calls)
        self.cuts.append(Cut(self.fs.image(self._rng, "lost"), "end", len(calls), len(calls)))


_names = count()


def _checked(cut: Cut, tmp_path: Path, expected: list[State], *, deep: bool = False, index: str | None = None) -> int:
    """Open an image; check what it holds, that opening again says the same, and that it takes commits.

    Args:
        deep: also cut the power again at every call of the recovery, and check those images.
        index: kind to open it with; None keeps what it has.
    """
    number = next(_names)
    folder = write_image(cut.image, tmp_path / f"cut{number}", garbage_index=number % 4 == 1)
    again: list[Image] = []
    rng = random.Random(len(cut.image))
    fs = CrashVfs(folder)
    if deep:
        fs.watch = lambda call, name: again.append(fs.image(rng))
    with opened(folder, vfs=fs, index=index) as store:
        fs.watch = None
        found = seen(store)
        assert_prefix(found, expected, cut.least, cut.most)
        recovered = fs.image(rng, "lost")
    with opened(folder, vfs=fs) as store:
        assert seen(store) == found
        more = Call("put", "more", "more", None, "more")
        run(store, more)
    with opened(folder, vfs=fs) as store:
        assert seen(store).pop("more")
    # What a reader was shown after a recovery stays, whatever comes.
    _reopened(recovered, tmp_path, expected, [found])
    for image in again:
        _checked(cut._replace(image=image), tmp_path, expected)
    return expected.index(found)


def _reopened(image: Image, tmp_path: Path, expected: list[State], allowed: list[State]) -> None:
    folder = write_image(image, tmp_path / f"cut{next(_names)}")
    with opened(folder, vfs=CrashVfs(folder)) as store:
        assert seen(store) in allowed


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
        number = _checked(cut, tmp_path, expected)
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
        _checked(cut, tmp_path, expected, index=index)


def test_a_power_cut_during_recovery(tmp_path: Path) -> None:
    """The recovery itself is cut at each of its calls, and recovered from."""
    calls = program(21, 30)
    recorder = Recorder(tmp_path / "store", 2, lambda rng: rng.random() < 0.04)
    recorder.run(calls, "process", sync_at=(10, 20))
    expected = states(calls)
    for cut in recorder.cuts[-12:]:
        _checked(cut, tmp_path, expected, deep=True)


@pytest.mark.parametrize("level", ["interval", "process"])
def test_other_levels_keep_a_prefix_and_everything_before_the_last_sync(tmp_path: Path, level: Level) -> None:
    calls = program(31, 40)
    recorder = Recorder(tmp_path / "store", 3, lambda rng: rng.random() < 0.2)
    recorder.run(calls, level, sync_at=(13, 27))
    expected = states(calls)
    lost = sum(_checked(cut, tmp_path, expected) < cut.most - 1 for cut in recorder.cuts)
    assert lost  # acknowledged calls, of which this level does not say that they survive


def test_interval_syncs_by_itself(tmp_path: Path) -> None:
    calls = program(41, 10)
    fs = CrashVfs(tmp_path / "store")
    with opened(tmp_path / "store", "interval", fs, sync_interval=0.01) as store:
        for call in calls:
            run(store, call)
        _wait_until_durable(store)
        image = fs.image(random.Random(1), "lost")
    _reopened(image, tmp_path, states(calls), [states(calls)[-1]])


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
    _reopened(image, tmp_path, states(calls), [states(calls)[-1]])


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
