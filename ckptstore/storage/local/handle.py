"""`LocalStorage`: the handle on a store folder, and the table of the engines that this process has open."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from ckptstore.activity import Activity
from ckptstore.errors import CkptStoreError, CorruptionError, IndexUnusableError, LockTimeoutError, ReadOnlyError, StoreClosedError
from ckptstore.forks import process_id
from ckptstore.interrupts import HoldBack
from ckptstore.options import StoreOptions
from ckptstore.storage import Compaction, Resolve, StorageStats, Survey, View
from ckptstore.storage.local.bulk import WholeFrame, read_frames
from ckptstore.storage.local.engine import Engine
from ckptstore.storage.local.layout import refuse_network_filesystem
from ckptstore.storage.local.opening import FolderBusyError
from ckptstore.storage.local.vfs import OS, Vfs

# Seconds that an exit waits for a lock that another process holds.
_AT_EXIT = 1.0
# Seconds between two tries to get into a folder that others are on their way into or out of.
_RETRY = 0.001
_table_lock = threading.RLock()
_table: dict[Path, Engine] = {}
"""Engines to share. One with a private index is never in it: it shows the moment it was opened, to the handle that opened it."""
_inherited: list[Engine] = []
"""Engines of the parent process, kept for ever and never touched: closing their LMDB environment would harm the parent."""


def _after_fork_in_child() -> None:
    global _table_lock
    _table_lock = threading.RLock()
    for engine in _table.values():
        _inherited.append(engine)
        # The descriptor is shared with the parent: closing drops our share, unlocking would unlock the parent.
        with contextlib.suppress(OSError):
            engine.release_locks()
    _table.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _acquire(root: Path, options: StoreOptions, vfs: Vfs) -> Engine:
    deadline = time.monotonic() + options.lock_timeout
    while True:
        try:
            return _acquired(root, options, vfs)
        except FolderBusyError as error:
            if time.monotonic() > deadline:
                raise LockTimeoutError(str(error)) from None
        # Waited for without the table: who is waited for may be a handle of this process, which closes.
        time.sleep(_RETRY)


def _acquired(root: Path, options: StoreOptions, vfs: Vfs) -> Engine:
    with _table_lock:
        engine = _table.get(root)
        if engine is not None and not engine.is_at(root):
            # The folder was removed, and perhaps made again: its handles keep what they have, nobody new joins them.
            del _table[root]
            engine = None
        if engine is None:
            engine = Engine(root, options, vfs, forked=bool(_inherited))
            if not engine.private:
                _table[root] = engine
        if options.index is not None and not engine.private and engine.index_kind != options.index:
            raise IndexUnusableError(
                f"{root} is open in this process with index={engine.index_kind!r}: open it the same way, or close it first"
            )
        engine.handles += 1
        return engine


def _release(engine: Engine) -> None:
    if engine.pid != process_id():
        return
    with _table_lock:
        engine.handles -= 1
        if engine.handles == 0:
            for key, known in list(_table.items()):
                if known is engine:
                    del _table[key]
            engine.close()


@atexit.register
def _close_all() -> None:
    """A store nobody closed: make it durable and leave in order, without waiting long for anybody."""
    for engine in list(_table.values()):
        if engine.pid == process_id():
            with contextlib.suppress(Exception):
                engine.close(_AT_EXIT)


class _Call:
    """A call in flight, known to the engine's gate."""

    __slots__ = ("__weakref__",)


class LocalStorage:
    """A handle on a store folder. Cheap; all handles of a process on one folder share one engine."""

    def __init__(self, path: str | os.PathLike[str], options: StoreOptions, vfs: Vfs = OS) -> None:
        """Open, create or recover the store.

        Args:
            path: the folder; created unless `options.read_only`.
            options: see `ckptstore.options.StoreOptions`.
            vfs: the seam for fault tests.
        """
        self.path = Path(os.path.realpath(os.fspath(path)))
        self._options = options
        self._vfs = vfs
        if not options.allow_network_filesystem:
            refuse_network_filesystem(self.path)
        self._closed = False
        self._attach()

    def _attach(self) -> None:
        self._engine = _acquire(self.path, self._options, self._vfs)
        self._finalizer = weakref.finalize(self, _release, self._engine)
        # atexit order is not ours to rely on: _close_all does this work for stores that nobody closed.
        self._finalizer.atexit = False

    def _live(self) -> Engine:
        if self._closed:
            raise StoreClosedError(f"{self.path} is closed: open it again")
        if self._engine.pid != process_id():
            with _table_lock:
                if self._engine.pid != process_id():
                    self._finalizer.detach()
                    self._attach()
        return self._engine

    def view(self) -> contextlib.AbstractContextManager[View]:
        return self._live().view()

    def commit(self, resolve: Resolve) -> int:
        engine = self._live()
        if self._options.read_only:
            raise ReadOnlyError(f"{self.path} was opened with read_only=True")
        call = _Call()
        with HoldBack():
            engine.calls.enter(call)
            try:
                lsn, segment = engine.commit(resolve, self._options.lock_timeout)
                if engine._sealed is not None:
                    engine.after_commit()
                if self._options.durability == "commit":
                    engine.make_durable(lsn, segment)
                elif self._options.durability == "interval":
                    engine.start_ticker(self._options.sync_interval)
            finally:
                engine.calls.leave(call)
        return lsn

    def wait_durable(self, lsn: int) -> None:
        self._live().wait_durable(lsn)

    def sync(self) -> None:
        self._live().sync()

    def compact(
        self, survey: Callable[[View], Survey], *, least_dead: float = 0.0, stop: Callable[[], bool] = lambda: False
    ) -> Compaction:
        engine = self._live()
        if self._options.read_only:
            raise ReadOnlyError(f"{self.path} was opened with read_only=True")
        return engine.compact(survey, self._options.lock_timeout, least_dead, stop)

    def frames_between(
        self, view: View, first: int, end: int, without: Collection[int] = ()
    ) -> Iterator[WholeFrame | CkptStoreError]:
        """See `bulk.read_frames`; `view` is one of this storage."""
        return read_frames(self._live().segments, view, first, end, without)

    @property
    def damage(self) -> CorruptionError | None:
        """Why only what stands before this damage is shown; None where all of the log is. Only a look goes on in spite of damage."""
        return self._live().damage

    @property
    def activity(self) -> Activity:
        return self._live().activity

    def stats(self) -> StorageStats:
        return self._live().stats()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._finalizer()
