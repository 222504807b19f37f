"""A log in memory: the same frames and the same index code, no files. For tests, and for `":memory:"`."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ckptstore.activity import Activity
from ckptstore.codec.records import VOID, Encoded, unpack
from ckptstore.codec.records import pack as pack_directory
from ckptstore.errors import CorruptionError, LockTimeoutError, StoreClosedError
from ckptstore.forks import own_locks
from ckptstore.storage import Compaction, Frame, Resolve, StorageStats, Survey, View
from ckptstore.storage.catalog import after


class MemoryKv:
    """An ordered map with an undo log, so that a failed commit leaves no trace."""

    def __init__(self) -> None:
        self._items: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._undo: list[tuple[bytes, bytes | None]] | None = None

    def get(self, key: bytes) -> bytes | None:
        return self._items.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        old = self._items.get(key)
        if self._undo is not None:
            self._undo.append((key, old))
        if old is None:
            insort(self._keys, key)
        self._items[key] = value

    def delete(self, key: bytes) -> None:
        old = self._items.pop(key, None)
        if old is None:
            return
        if self._undo is not None:
            self._undo.append((key, old))
        del self._keys[bisect_left(self._keys, key)]

    def scan(self, prefix: bytes, *, before: bytes | None = None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        keys = self._keys
        if reverse:
            at = bisect_left(keys, before if before is not None else after(prefix))
            while at > 0 and keys[at - 1].startswith(prefix):
                key = keys[at - 1]
                yield key, self._items[key]
                at = bisect_left(keys, key)
            return
        at = bisect_left(keys, prefix)
        while at < len(keys) and keys[at].startswith(prefix):
            key = keys[at]
            yield key, self._items[key]
            at = bisect_left(keys, key)
            if at < len(keys) and keys[at] == key:
                at += 1

    def between(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        keys = self._keys
        for key in keys[bisect_left(keys, low) : bisect_left(keys, high)]:
            yield key, self._items[key]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        undo: list[tuple[bytes, bytes | None]] = []
        self._undo = undo
        try:
            yield
        except BaseException:
            self._undo = None
            for key, old in reversed(undo):
                if old is None:
                    self.delete(key)
                else:
                    self.put(key, old)
            raise
        finally:
            self._undo = None


class _MemoryView(View):
    __slots__ = ("_frames",)

    def __init__(self, kv: MemoryKv, frames: dict[int, tuple[bytes, bytes]]) -> None:
        super().__init__(kv)
        self._frames = frames

    def frame(self, lsn: int) -> Frame:
        if lsn not in self._frames:
            raise CorruptionError(f"no frame at LSN {lsn}")
        directory, bodies = self._frames[lsn]
        return Frame(lsn, unpack(directory), bodies)


class MemoryStorage:
    """Frames in a dictionary under one lock. Every durability level is the same here: nothing survives the process."""

    def __init__(self, lock_timeout: float = 30.0) -> None:
        own_locks(self)
        self._timeout = lock_timeout
        self.activity = Activity()
        self._kv = MemoryKv()
        self._frames: dict[int, tuple[bytes, bytes]] = {}
        self._last = 0
        self._closed = False

    def new_locks(self) -> None:
        self._lock = threading.RLock()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=self._timeout):
            raise LockTimeoutError(f"the in-memory store was busy for {self._timeout} s")
        try:
            if self._closed:
                raise StoreClosedError("the in-memory store is closed")
            yield
        finally:
            self._lock.release()

    @contextmanager
    def view(self) -> Iterator[View]:
        with self._locked():
            yield _MemoryView(self._kv, self._frames)

    def commit(self, resolve: Resolve) -> int:
        with self._locked(), self._kv.transaction():
            view = _MemoryView(self._kv, self._frames)
            batch: list[Encoded] = list(resolve(view))
            lsn = self._last + 1
            directory = pack_directory([record.entry() for record in batch])
            view.apply(lsn, unpack(directory))
            self._frames[lsn] = (directory, b"".join(record.body for record in batch))
            self._last = lsn
            self.activity.appends += 1
            self.activity.appended_bytes += len(directory) + len(self._frames[lsn][1])
            return lsn

    def wait_durable(self, lsn: int) -> None:
        """Nothing to wait for: memory survives nothing."""

    def sync(self) -> None:
        """Nothing to do: memory survives nothing."""

    def compact(
        self, survey: Callable[[View], Survey], *, least_dead: float = 0.0, stop: Callable[[], bool] = lambda: False
    ) -> Compaction:
        """Rewrite all frames in place, under the lock: nobody reads meanwhile."""
        with self._locked(), self._kv.transaction():
            view = _MemoryView(self._kv, self._frames)
            before = sum(len(directory) + len(bodies) for directory, bodies in self._frames.values())
            rewrite = survey(view).rewriter(1, self._last + 1)
            kept: dict[int, tuple[bytes, bytes]] = {}
            for lsn in sorted(self._frames):
                records = rewrite(view.frame(lsn))
                if records is None:
                    view.drop_dead(lsn)
                    continue
                entries = [VOID if record is None else record.entry() for record in records]
                bodies = b"".join(record.body for record in records if record is not None)
                kept[lsn] = (pack_directory(entries), bodies)
            view.count_compaction()
            dropped = len(self._frames) - len(kept)
            self._frames = kept
            self.activity.last_compaction_ms = time.time_ns() // 1_000_000
            after = sum(len(directory) + len(bodies) for directory, bodies in kept.values())
            return Compaction(0, 0, before, after, dropped)

    def stats(self) -> StorageStats:
        with self._locked():
            sizes = {lsn: len(directory) + len(bodies) for lsn, (directory, bodies) in self._frames.items()}
            dead = sum(sizes.get(lsn, 0) for lsn in View(self._kv).dead())
            return StorageStats(0, sum(sizes.values()), dead, 0, len(sizes), self._last, self._last)

    def close(self) -> None:
        self._closed = True
        self._frames.clear()
