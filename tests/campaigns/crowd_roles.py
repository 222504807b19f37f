"""What the processes of a crowd do, each until it is told to stop or is killed: write, read, compact, back up and restore.

They share a page of counters. A call is noted there before it begins and after it returned, so a kill takes neither note.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from errno import EIO
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import ckptstore
from ckptstore import LaneName, Store
from ckptstore.errors import DurabilityUnknownError, StorePoisonedError
from ckptstore.options import IndexKind
from ckptstore.storage.local import backup as local
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.storage.local.vfs import Vfs
from tests.campaigns.explained import head_is_explained, listing_is_explained
from tests.crash.programs import Call, Level, Seen, State, opened, program, run, states

WRITERS = 4
SHARED = "shared"
"""The thread that all writers write to."""
PATIENCE = 15.0
"""Seconds for which a process waits for a lock."""


class Page:
    """Counters that all processes of a crowd see, and that outlive them."""

    STOP, STAGE, READS, COMPACTIONS, BACKUPS = range(5)

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, 4096)
        self._numbers = memoryview(self._page).cast("Q")

    def __getitem__(self, at: int) -> int:
        return self._numbers[at]

    def __setitem__(self, at: int, number: int) -> None:
        self._numbers[at] = number

    def begin(self, writer: int, call: int) -> None:
        self._numbers[16 + writer] = call

    def acknowledge(self, writer: int, call: int) -> None:
        self._numbers[32 + writer] = call

    def begun(self, writer: int) -> int:
        return self._numbers[16 + writer]

    def acknowledged(self, writer: int) -> int:
        return self._numbers[32 + writer]


class Script(NamedTuple):
    """What a writer will do, and what readers see of its threads after each call."""

    calls: list[Call]
    states: list[State]


class Round(NamedTuple):
    """One crowd on one store."""

    path: Path
    level: Level
    index_kind: IndexKind
    seed: int
    kills: tuple[str, ...]
    """Patterns of points. Whoever passes the first one is killed there; then, whoever passes the next one."""
    nth: int
    """How often a process passes the point before."""
    fail_fsync: int
    """Number of the fsync of a segment of the first writer that fails; 0 for none."""


def script(seed: int, writer: int, length: int) -> Script:
    """Calls on threads of a writer's own, and some on the one that all share, where it adds and removes nothing."""
    rng = random.Random(f"{seed} {writer}")
    calls: list[Call] = []
    mine: list[str] = []
    for number, call in enumerate(program(rng.randrange(1 << 30), length)):
        own = call._replace(thread=f"{writer} {call.thread}", id=f"{writer} {call.id}" if call.kind == "copy" else call.id)
        calls.append(own)
        if rng.random() < 0.4:
            if mine and rng.random() < 0.4:
                calls.append(Call("writes", SHARED, rng.choice(mine), None, f"{number:04}{rng.randbytes(20).hex()}"))
            else:
                id = f"{number:04} {writer}"
                calls.append(Call("put", SHARED, id, mine[-1] if mine else None, rng.randbytes(100).hex()))
                mine.append(id)
    return Script(calls, states(calls))


class Deadly(Vfs):
    """Kills the process at a point, if its turn has come; fails an fsync of a segment."""

    def __init__(self, page: Page, round: Round, fail_fsync: int) -> None:
        self._page = page
        self._round = round
        self._passed = [0] * len(round.kills)
        self._fail = fail_fsync
        self._segments: set[int] = set()

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> int:
        fd = super().open(path, create=create, read_only=read_only)
        (self._segments.add if path.suffix == ".seg" else self._segments.discard)(fd)
        return fd

    def point(self, name: str) -> None:
        stage = self._page[Page.STAGE]
        if stage < len(self._round.kills) and fnmatch(name, self._round.kills[stage]):
            self._passed[stage] += 1
            if self._passed[stage] >= (self._round.nth if stage == 0 else 1):
                self._page[Page.STAGE] = stage + 1
                os.kill(os.getpid(), signal.SIGKILL)

    def fdatasync(self, fd: int) -> None:
        if self._fail and fd in self._segments:
            self._fail -= 1
            if self._fail == 0:
                raise OSError(EIO, os.strerror(EIO))
        if self._round.level == "commit" and self._round.seed % 8 == 0:
            super().fdatasync(fd)  # now and then for real: others run meanwhile


def _opened(round: Round, vfs: Vfs) -> AbstractContextManager[Store]:
    return opened(
        round.path, round.level, vfs, index=round.index_kind, auto_compact=False, lock_timeout=PATIENCE, sync_interval=0.01
    )


def write(page: Page, round: Round, writer: int, script: Script) -> None:
    vfs = Deadly(page, round, round.fail_fsync if writer == 0 else 0)
    try:
        with _opened(round, vfs) as store:
            for number, call in enumerate(script.calls, 1):
                if page[Page.STOP]:
                    return
                page.begin(writer, number)
                run(store, call)
                page.acknowledge(writer, number)
            while not page[Page.STOP]:
                time.sleep(0.001)
    except (StorePoisonedError, DurabilityUnknownError):
        if not round.fail_fsync:
            raise


def read(page: Page, round: Round, number: int, scripts: Sequence[Script]) -> None:
    """Read threads of the writers: each is in a state between what its writer had done before and what it had begun after."""
    rng = random.Random(round.seed + number)
    with _opened(round, Deadly(page, round, 0)) as store:
        while not page[Page.STOP]:
            writer = rng.randrange(WRITERS)
            threads = sorted(
                {call.thread for call in scripts[writer].calls} | {call.id for call in scripts[writer].calls if call.kind == "copy"}
            )
            thread = rng.choice([SHARED, *threads])
            _check(page, store, writer, thread, scripts[writer].states, rng.random() < 0.5)
            page[Page.READS] += 1


def _check(page: Page, store: Store, writer: int, thread: str, states: Sequence[State], listing: bool) -> None:
    first = page.acknowledged(writer)
    if listing or thread == SHARED:
        mark = f" {writer}" if thread == SHARED else ""
        items = [_seen(stored) for stored in store.list(thread, "") if stored.id.endswith(mark)]
        possible = [state.get(thread, []) for state in states[first : page.begun(writer) + 1]]
        assert listing_is_explained(items, possible), f"listing of {thread!r}: {items} is none of {possible}"
    else:
        stored = store.get(LaneName(thread))
        possible = [state.get(thread, []) for state in states[first : page.begun(writer) + 1]]
        head = None if stored is None else _seen(stored)
        assert head_is_explained(head, possible), f"head of {thread!r}: {head} is none of {[lane[-1:] for lane in possible]}"


def _seen(stored: ckptstore.StoredCheckpoint) -> Seen:
    return Seen(
        stored.id,
        stored.parent,
        stored.values["log"][1].decode(),
        tuple(sorted((write.task_id, write.value[1].decode()) for write in stored.writes)),
    )


def compact(page: Page, round: Round) -> None:
    """Compact over and over; leave last."""
    with _opened(round, Deadly(page, round, 0)) as store:
        while page[Page.STOP] < 2:
            try:
                store.compact()
            except (StorePoisonedError, DurabilityUnknownError):
                if not round.fail_fsync:
                    raise
            page[Page.COMPACTIONS] += 1
            time.sleep(0.002)


def back_up(page: Page, round: Round) -> None:
    """Back up over and over, and restore each backup to a folder of its own."""
    vfs = Deadly(page, round, 0)
    backup, restored = round.path.with_name("backup"), round.path.with_name("restored")
    storage = LocalStorage(round.path, ckptstore.StoreOptions(lock_timeout=PATIENCE, index=round.index_kind), vfs)
    try:
        while not page[Page.STOP]:
            local.backup(storage, backup, vfs)
            shutil.rmtree(restored, ignore_errors=True)
            local.restore(backup, restored, vfs)
            page[Page.BACKUPS] += 1
    finally:
        storage.close()
