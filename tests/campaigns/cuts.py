"""Power cuts in everything that a store does: each image recovers to what was acknowledged, twice to the same, once it was cut again too.

The counters say at which named point an image was taken; images at the calls between points count together.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import ckptstore
from ckptstore.errors import DurabilityUnknownError, StorageIOError
from ckptstore.storage.local import backup as local
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.testing.crashfs import CrashVfs, Image, write_image
from tests.campaigns.points import row
from tests.crash.cutting import Cut, Recorder, checked
from tests.crash.programs import LEVELS, Call, opened, program, run, seen, states

BETWEEN = "calls between points"
_OFTEN = ("commit:", "fsync:")

Survived = Counter[str]


def of(at: str) -> str:
    """The row of the moment of an image: `call name`."""
    call, _, name = at.partition(" ")
    return row(name) if call == "point" else BETWEEN


class _Sparing(Recorder):
    """Takes images at all points that are seldom passed, and at some of the others."""

    def _before(self, call: str, name: str) -> None:
        seldom = call == "point" and not name.startswith(_OFTEN)
        if seldom or self._rng.random() < 0.06:
            self.cuts.append(Cut(self.fs.image(self._rng), f"{call} {name}", self.least, self.most))


def in_a_program(folder: Path, seed: int) -> Survived:
    """Commits, rotations, prunes, copies, deletions, a compaction, and the close; with the recovery of some images cut again."""
    rng = random.Random(f"program {seed}")
    level, index = rng.choice(LEVELS), rng.choice(("lmdb", "sqlite"))
    calls = program(seed, 30)
    recorder = _Sparing(folder / "store", seed, lambda rng: 0)
    recorder.run(calls, level, sync_at=(10, 20), index=index, compact=True)
    return _all_checked(folder, recorder.cuts, calls, rng)


def after_a_failed_fsync(folder: Path, seed: int) -> Survived:
    """The fsync of some call fails, and the power goes; or it goes while that is recovered from."""
    rng = random.Random(f"fsync {seed}")
    calls = program(seed, 12)
    recorder = _Sparing(folder / "store", seed, lambda rng: 0)
    recorder.fs.fail("fdatasync", path="segments/*.seg", after=rng.randint(1, 8))
    kept = len(calls)
    try:
        recorder.run(calls, "commit")
    except DurabilityUnknownError:
        kept = recorder.most
    except StorageIOError:  # in a rotation: the call was refused
        kept = recorder.most - 1
    recorder.fs.heal()
    # At the next open everything that readers saw is written anew; until then the call may be lost.
    with opened(folder / "store", vfs=recorder.fs) as store:
        assert seen(store) == states(calls)[kept]
    return _all_checked(folder, recorder.cuts, calls, rng)


def with_a_torn_tail(folder: Path, seed: int) -> Survived:
    """The power goes while a torn tail is cut, by whoever opens a store that was killed in a commit."""
    rng = random.Random(f"torn {seed}")
    calls = program(seed, 8)
    expected = states(calls)
    fs = CrashVfs(folder / "store")
    with opened(folder / "store", vfs=fs) as store:
        for call in calls:
            run(store, call)
        image = fs.image(rng, "live")
        assert isinstance(store._storage, LocalStorage)
        tail = store._storage._live()._published.tail
    newest = max(name for name in image if name.endswith(".seg"))
    image[newest] = (image[newest] or b"")[:tail] + rng.randbytes(rng.randint(1, 2000)) + b"\x01"
    survived: Survived = Counter()
    cut = Cut(image, "torn", len(calls), len(calls))
    checked(cut, folder, expected, deep=True, survived=lambda cut: survived.update([of(cut.at)]))
    return survived


def _all_checked(folder: Path, cuts: list[Cut], calls: list[Call], rng: random.Random) -> Survived:
    survived: Survived = Counter()
    expected = states(calls)
    for cut in cuts:
        checked(cut, folder, expected, deep=rng.random() < 0.03, survived=lambda cut: survived.update([of(cut.at)]))
    return survived


def in_a_backup(folder: Path, seed: int) -> Survived:
    """A backup is brought up to date: what the disk holds at any moment is the old one or the new one."""
    rng = random.Random(f"backup {seed}")
    calls = program(seed, 40)
    expected = states(calls)
    disk = folder / "disk"
    disk.mkdir()
    # A store that stays open is read through its own files; only the backup is cut off.
    with opened(folder / "store", segment_bytes=rng.choice((4096, 1 << 20)), index=rng.choice(("lmdb", "sqlite"))) as store:
        first = rng.randrange(30)
        for call in calls[:first]:
            run(store, call)
        assert isinstance(store._storage, LocalStorage)
        if rng.random() < 0.8:
            local.backup(store._storage, disk / "backup")
            possible = [expected[first], expected[-1]]
        else:
            possible = [expected[-1]]
        for call in calls[first:]:
            run(store, call)
        if rng.random() < 0.3:
            store.compact()
        storage = store._storage
        images = _images(disk, rng, lambda fs: local.backup(storage, disk / "backup", fs))
    survived: Survived = Counter()
    for number, (at, image) in enumerate(images):
        cut = write_image(image, folder / f"cut {number}")
        if (cut / "backup" / "BACKUP").exists():
            ckptstore.restore(cut / "backup", cut / "restored")
            with opened(cut / "restored") as store:
                assert seen(store) in possible, at
        else:
            assert len(possible) == 1, at
        survived[of(at)] += 1
    return survived


def in_a_restore(folder: Path, seed: int) -> Survived:
    """Where a store is being restored there is nothing, or all of it."""
    rng = random.Random(f"restore {seed}")
    calls = program(seed, 20)
    disk = folder / "disk"
    disk.mkdir()
    with opened(folder / "store", index=rng.choice(("lmdb", "sqlite"))) as store:
        for call in calls:
            run(store, call)
        store.backup(folder / "backup")
    images = _images(disk, rng, lambda fs: local.restore(folder / "backup", disk / "restored", fs))
    survived: Survived = Counter()
    for number, (at, image) in enumerate(images):
        cut = write_image(image, folder / f"cut {number}")
        if not (cut / "restored").exists():
            ckptstore.restore(folder / "backup", cut / "restored")
        for _ in range(2):
            with opened(cut / "restored") as store:
                assert seen(store) == states(calls)[-1], at
        survived[of(at)] += 1
    return survived


def _images(disk: Path, rng: random.Random, work: Callable[[CrashVfs], object]) -> list[tuple[str, Image]]:
    """An image at each call, and one of what is durable at the end."""
    fs = CrashVfs(disk)
    images: list[tuple[str, Image]] = []
    fs.watch = lambda call, name: images.append((f"{call} {name}", fs.image(rng)))
    work(fs)
    fs.watch = None
    return [*images, ("end", fs.image(rng, "lost"))]


SCENES = (in_a_program, after_a_failed_fsync, with_a_torn_tail, in_a_backup, in_a_restore)
