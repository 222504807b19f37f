"""What the command line changes: a store opened for writing, never created, and each change as a plan that can be looked at first."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ckptstore.errors import InvalidArgumentError
from ckptstore.folders import backup, restore, salvage
from ckptstore.inspect.looking import opened_whole
from ckptstore.inspect.opened import opened
from ckptstore.inspect.progress import Progress
from ckptstore.inspect.refs import UnknownReferenceError
from ckptstore.lineage.listing import thread_name
from ckptstore.lineage.reach import relatives
from ckptstore.options import checked_options
from ckptstore.storage import Compaction, View
from ckptstore.storage.local.backup import BackupReport, RestoreReport
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.storage.local.layout import Layout
from ckptstore.store import Store
from ckptstore.upkeep.erasure import CopiesRemainError
from ckptstore.upkeep.policy import PruneReport as PruneReport
from ckptstore.upkeep.policy import RetentionPolicy
from ckptstore.upkeep.salvage import SalvageReport


@contextmanager
def opened_to_change(path: str | os.PathLike[str], lock_timeout: float) -> Iterator[Store]:
    """Open a store folder for writing and close it again; it is not created.

    Args:
        lock_timeout: seconds to wait for a lock of the store, above 0 and up to 3600.

    Raises:
        what `opened` raises; NotWritableError.
    """
    if not Layout(Path(os.path.realpath(path))).store.exists():
        # Opened to look at, it says what stands there instead.
        with opened(path, lock_timeout):
            pass
    # A command does what it says; compaction in the background would do more, and keep it from ending.
    options = checked_options(lock_timeout=lock_timeout, auto_compact=False)
    with Store(LocalStorage(path, options), options) as store:
        yield store


def compact_store(
    path: str | os.PathLike[str], *, least_dead: float = 0.0, lock_timeout: float = 30.0, progress: Progress | None = None
) -> Compaction:
    """Give the space of what was removed back; see `Store.compact`."""
    with opened_to_change(path, lock_timeout) as store:
        return store.compact(least_dead=least_dead, progress=progress)


def backup_store(
    path: str | os.PathLike[str], destination: str | os.PathLike[str], *, progress: Progress | None = None
) -> BackupReport:
    """Bring a backup up to date, or make one; see `ckptstore.backup`."""
    return backup(path, destination, progress=progress)


def salvage_store(
    path: str | os.PathLike[str], destination: str | os.PathLike[str], *, progress: Progress | None = None
) -> SalvageReport:
    """Make a store out of what is whole of a damaged one; see `ckptstore.salvage`."""
    return salvage(path, destination, progress=progress)


def restore_store(
    source: str | os.PathLike[str], path: str | os.PathLike[str], *, progress: Progress | None = None
) -> RestoreReport:
    """Make a store out of a backup; see `ckptstore.restore`."""
    return restore(source, path, progress=progress)


class ThreadChange(NamedTuple):
    """What becomes of one thread."""

    thread: str
    checkpoints: int
    removed: int


class ChangeReport(NamedTuple):
    """What a removal did, or would do."""

    done: bool
    threads: list[ThreadChange]
    """Those of which something goes."""

    @property
    def removed(self) -> int:
        return sum(change.removed for change in self.threads)


def prune_store(
    path: str | os.PathLike[str],
    limits: Mapping[str, Any],
    threads: Sequence[str] = (),
    *,
    do: bool = False,
    lock_timeout: float = 30.0,
    progress: Progress | None = None,
) -> PruneReport:
    """Remove the checkpoints that a retention policy lets go; every one that stays reads as before.

    Args:
        limits: fields of `ckptstore.RetentionPolicy`; at least one besides `pinned`.
        threads: only these; all of the store when empty.
        do: remove; else only say what would go.
        lock_timeout: seconds, see `opened`.
        progress: told how many threads were looked at.

    Raises:
        InvalidArgumentError: names the limit, its value and the range.
        UnknownReferenceError: a thread is not in the store. what `opened` raises.
    """
    policy = RetentionPolicy(**limits)
    if not policy.model_fields_set - {"pinned"}:
        raise InvalidArgumentError("no limit is given: --keep-last, --older-than, --idle, --max-bytes or --max-bytes-per-thread")
    with opened_whole(path, lock_timeout) as here:
        with here.storage.view() as view:
            for name in threads:
                _checkpoints(view, name)
        if not do:
            return here.store.prune(policy, threads=threads or None, dry_run=True, progress=progress)
    with opened_to_change(path, lock_timeout) as store:
        return store.prune(policy, threads=threads or None, progress=progress)


def remove_threads(
    path: str | os.PathLike[str],
    threads: Sequence[str],
    *,
    do: bool = False,
    erase: bool = False,
    with_copies: bool = False,
    lock_timeout: float = 30.0,
    progress: Progress | None = None,
) -> ChangeReport:
    """Delete threads; all of them are there, or none is deleted.

    Args:
        do: delete; else only say what would go.
        erase: compact too, until no file of the store holds their bytes. A thread that is not there (any more) is then no error: traces
            of it go.
        with_copies: with `erase`: delete all threads too that share records with them.
        lock_timeout: seconds, see `opened`.
        progress: told how many threads are done.

    Raises:
        InvalidArgumentError: no thread is named, or `with_copies` without `erase`.
        UnknownReferenceError: a thread is not in the store. CopiesRemainError: see `Store.delete`. what `opened` raises.
    """
    if not threads:
        raise InvalidArgumentError("threads=[]: name at least one")
    if with_copies and not erase:
        raise InvalidArgumentError("--with-copies: only with --erase, since deleting leaves copies whole")
    named = list(dict.fromkeys(threads))
    with opened_whole(path, lock_timeout) as here, here.storage.view() as view:
        for name in named:
            if not erase:
                _checkpoints(view, name)
        sharing = sorted(_sharing(view, named)) if erase else []
        if sharing and not with_copies:
            raise CopiesRemainError(
                f"{', '.join(map(repr, sharing))} share records with what is to be erased: --with-copies deletes them too"
            )
        everything = [name for name in (*named, *sharing) if view.thread(name) is not None]
        plan = [ThreadChange(name, count := _checkpoints(view, name), count) for name in everything]
    if do:
        with opened_to_change(path, lock_timeout) as store:
            for at, name in enumerate(named, start=1):
                store.delete(name, erase=erase, with_copies=with_copies)
                if progress is not None:
                    progress(at, len(named))
    return ChangeReport(do, plan)


def _sharing(view: View, threads: Sequence[str]) -> set[str]:
    """Names of the other threads that share records with these."""
    found = set(threads)
    waiting = list(threads)
    while waiting:
        number = view.thread(waiting.pop())
        for lane in () if number is None else view.lanes(number):
            for other in relatives(view, lane):
                address = view.address(other)
                if address is not None and view.has_thread(address.thread):
                    name = thread_name(view, address.thread)
                    if name not in found:
                        found.add(name)
                        waiting.append(name)
    return found - set(threads)


def copy_of_thread(path: str | os.PathLike[str], source: str, destination: str, *, lock_timeout: float = 30.0) -> int:
    """Copy a thread by reference; return the number of checkpoints the copy holds.

    Raises:
        UnknownReferenceError: there is no such source. ThreadExistsError: the destination holds records. what `opened` raises.
    """
    with opened_whole(path, lock_timeout) as here, here.storage.view() as view:
        _checkpoints(view, source)
    with opened_to_change(path, lock_timeout) as store:
        return store.copy(source, destination)


def _checkpoints(view: View, thread: str) -> int:
    """How many checkpoints a thread has."""
    number = view.thread(thread)
    if number is None:
        raise UnknownReferenceError(f"no thread {thread!r} in this store")
    return sum(view.state(lane).checkpoints for lane in view.lanes(number))
