"""Power cuts: runs programs on the crash filesystem, takes images on the way, and checks what a recovery makes of each."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import NamedTuple

from ckptstore.testing.crashfs import CrashVfs, Image, write_image
from tests.crash.programs import Call, Level, State, assert_prefix, opened, run, seen


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

    def run(
        self, calls: list[Call], level: Level, sync_at: tuple[int, ...] = (), index: str | None = None, *, compact: bool = False
    ) -> None:
        """Run a program, and compact what is left; at the other levels than `commit`, `sync` after some of the calls."""
        with opened(self.fs.root, level, self.fs, sync_interval=60, index=index) as store:
            for number, call in enumerate(calls, 1):
                self.most = number
                run(store, call)
                if level == "commit":
                    self.least = number
                elif number in sync_at:
                    store.sync()
                    self.least = number
            if compact:
                store.compact()
        self.fs.watch = None
        self.least = len(calls)
        self.cuts.append(Cut(self.fs.image(self._rng, "lost"), "end", len(calls), len(calls)))


_names = count()


def checked(
    cut: Cut,
    tmp_path: Path,
    expected: list[State],
    *,
    deep: bool = False,
    index: str | None = None,
    survived: Callable[[Cut], None] = lambda cut: None,
) -> int:
    """Open an image; check what it holds, that opening again says the same, and that it takes commits.

    Args:
        deep: also cut the power again at every call of the recovery, and check those images.
        index: kind to open it with; None keeps what it has.
        survived: told each image that passed.
    """
    number = next(_names)
    folder = write_image(cut.image, tmp_path / f"cut{number}", garbage_index=number % 4 == 1)
    again: list[Cut] = []
    rng = random.Random(len(cut.image))
    fs = CrashVfs(folder)
    if deep:
        fs.watch = lambda call, name: again.append(cut._replace(image=fs.image(rng), at=f"{call} {name}"))
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
    reopened(recovered, tmp_path, expected, [found])
    survived(cut)
    for later in again:
        checked(later, tmp_path, expected, survived=survived)
    return expected.index(found)


def reopened(image: Image, tmp_path: Path, expected: list[State], allowed: list[State]) -> None:
    folder = write_image(image, tmp_path / f"cut{next(_names)}")
    with opened(folder, vfs=CrashVfs(folder)) as store:
        assert seen(store) in allowed
