"""The LMDB index: no sync, no writemap.

NOSYNC makes a commit cost microseconds and makes the file worthless after a power cut: such a file can abort the interpreter or
answer wrong. So recovery.py decides from evidence outside LMDB whether it may be opened, before it is opened. writemap would save
some microseconds more and turn a full disk into SIGBUS, which kills the interpreter: never.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import lmdb
from lmdb import _envid

from ckptstore.storage.catalog import Kv, after
from ckptstore.storage.local.gate import Gate
from ckptstore.storage.local.index import LAYOUT, IndexFullError, IndexIOError, IndexNoSpaceError

_FIRST_MAP = 256 << 20  # sparse: virtual memory, not disk
_READERS = 1024
# Seconds that a close waits for readers of other threads: a read takes far less.
_PATIENCE = 10.0


class _LmdbKv:
    """An LMDB transaction as an ordered map."""

    __slots__ = ("_txn", "delete", "get", "put")

    def __init__(self, txn: Any) -> None:
        self._txn = txn
        # Bound methods of the C object: the map is used some ten times a commit.
        self.get = txn.get
        self.put = txn.put
        self.delete = txn.delete

    def scan(self, prefix: bytes, *, before: bytes | None = None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        with self._txn.cursor() as cursor:
            if not reverse:
                found = cursor.set_range(prefix)
                while found:
                    key = cursor.key()
                    if not key.startswith(prefix):
                        return
                    yield key, cursor.value()
                    # A writer may have changed the map since: find the place again rather than trust the cursor.
                    found = cursor.set_range(key + b"\0")
                return
            stop = before if before is not None else after(prefix)
            found = cursor.prev() if cursor.set_range(stop) else cursor.last()
            while found:
                key = cursor.key()
                if not key.startswith(prefix):
                    return
                yield key, cursor.value()
                found = cursor.prev() if cursor.set_range(key) else cursor.last()

    def between(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._txn.cursor() as cursor:
            if cursor.set_range(low):
                for item in cursor.iternext():
                    if item[0] >= high:
                        return
                    yield item


class _Reading:
    """`with` a snapshot. Classes instead of generators: these are entered several times a call."""

    __slots__ = ("__weakref__", "_index", "_txn")

    def __init__(self, index: LmdbIndex) -> None:
        self._index = index

    def __enter__(self) -> Kv:
        try:
            self._txn = self._index.begin_read(self)
        except lmdb.Error as error:
            raise _failure(error) from error
        return _LmdbKv(self._txn)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._index.end(self, self._txn, commit=False)
        if isinstance(error, lmdb.Error):
            raise _failure(error) from error


class _Writing:
    """`with` the write transaction."""

    __slots__ = ("__weakref__", "_index", "_txn")

    def __init__(self, index: LmdbIndex) -> None:
        self._index = index

    def __enter__(self) -> Kv:
        try:
            self._txn = self._index.begin_write(self)
        except lmdb.Error as error:
            raise _failure(error) from error
        return _LmdbKv(self._txn)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self._index.end(self, self._txn, commit=True)
            return
        self._index.end(self, self._txn, commit=False)
        if isinstance(error, lmdb.MapFullError):
            self._index.grow()
            raise IndexFullError from None
        if isinstance(error, lmdb.Error):
            raise _failure(error) from error


class LmdbIndex:
    """One LMDB environment; at most one a process and folder (engine.py keeps the table)."""

    kind: ClassVar[str] = "lmdb"
    version: ClassVar[int] = LAYOUT
    data_name: ClassVar[str] = "data.mdb"
    # Its reader table names processes by pid.
    across_namespaces: ClassVar[bool] = False

    def __init__(self, folder: Path, *, forked: bool = False) -> None:
        """Open or create the environment.

        Args:
            forked: an environment of the parent process was inherited and left alone; see `_opened_in_child`.
        """
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        size = _FIRST_MAP
        data = folder / self.data_name
        if data.exists():
            while size < data.stat().st_size * 2:
                size *= 2
        try:
            with _opened_in_child() if forked else _as_usual():
                self._env = lmdb.open(
                    str(folder),
                    map_size=size,
                    sync=False,
                    metasync=False,
                    writemap=False,
                    max_dbs=0,
                    max_readers=_READERS,
                    max_spare_txns=0,
                    readahead=False,
                )
            # A killed reader leaves its slot behind; slots pin pages.
            self._env.reader_check()
        except lmdb.Error as error:
            raise _failure(error) from error
        self._gate = Gate()

    def read(self) -> _Reading:
        return _Reading(self)

    def write(self) -> _Writing:
        return _Writing(self)

    def begin_read(self, visitor: object) -> Any:
        """A read transaction; the gate is entered."""
        self._gate.enter(visitor)
        try:
            return self._env.begin()
        except lmdb.MapResizedError:
            pass  # another process grew the map
        except lmdb.ReadersFullError:
            self._env.reader_check()
        except BaseException:
            self._gate.leave(visitor)
            raise
        self._gate.leave(visitor)
        self._adopt_size()
        self._gate.enter(visitor)
        try:
            return self._env.begin()
        except BaseException:
            self._gate.leave(visitor)
            raise

    def begin_write(self, visitor: object) -> Any:
        """The write transaction; the gate is entered."""
        self._gate.enter(visitor)
        try:
            return self._env.begin(write=True)
        except lmdb.MapResizedError:
            self._gate.leave(visitor)
            self._adopt_size()
            raise IndexFullError from None
        except BaseException:
            self._gate.leave(visitor)
            raise

    def end(self, visitor: object, txn: Any, *, commit: bool) -> None:
        """End a transaction and leave the gate."""
        full = False
        try:
            if commit:
                txn.commit()
            else:
                txn.abort()
        except lmdb.MapFullError:
            full = True
        except lmdb.Error as error:
            raise _failure(error) from error
        finally:
            self._gate.leave(visitor)
        if full:
            self.grow()
            raise IndexFullError

    def _adopt_size(self) -> None:
        with self._gate.alone():
            self._env.set_mapsize(0)

    def grow(self) -> None:
        """Double the map. No transaction of this process may be open."""
        with self._gate.alone():
            self._env.set_mapsize(self._env.info()["map_size"] * 2)

    def data_file(self) -> Path:
        return self._folder / self.data_name

    def is_cut(self) -> bool:
        """The map reaches behind the end of a file that was cut, and the system kills a process that reads there."""
        used = (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]
        return used > self.data_file().stat().st_size

    def copy_packed(self, folder: Path) -> LmdbIndex:
        """Appending in key order fills pages, where the live index splits them in halves: it shrinks to about half its size."""
        packed = LmdbIndex(folder)
        try:
            with self._env.begin() as txn, txn.cursor() as cursor, packed._env.begin(write=True) as new, new.cursor() as target:
                target.putmulti(cursor, append=True)
        except lmdb.Error as error:
            raise _failure(error) from error
        return packed

    def sync(self) -> None:
        try:
            self._env.sync(True)
        except lmdb.Error as error:
            raise _failure(error) from error

    def close(self, *, last: bool = False) -> None:
        # A transaction that is open in another thread would be pulled away under its reader.
        with self._gate.alone(_PATIENCE):
            self._env.close()
        if last:
            # Slots of readers and a mutex: of use only to those who have it open at once. Its 64 KB are more than a small store holds.
            (self._folder / "lock.mdb").unlink(missing_ok=True)


def _failure(error: lmdb.Error) -> IndexIOError:
    """What the engine is told of an error of LMDB, whose messages begin with the place."""
    text = str(error)
    if isinstance(error, lmdb.DiskError) or "No space" in text or "too large" in text:
        return IndexNoSpaceError(text)
    return IndexIOError(
        f"the index failed: {text}. It can be made anew from the log: close the store everywhere, delete its folder index, and open "
        "it again"
    )


@contextmanager
def _as_usual() -> Iterator[None]:
    yield


@contextmanager
def _opened_in_child() -> Iterator[None]:
    """Let a forked child open an environment that its parent has open.

    py-lmdb refuses to open one file twice in a process, since LMDB's fcntl locks belong to the process. A forked child inherits
    the parent's environment object but none of its locks, so the refusal is a false alarm there. Closing the inherited object is
    no way out: that would wipe the parent's reader slots, under its running reads (docs/decisions/002-fork.md). So the child
    leaves it alone, and for the time of its own open the files are known to py-lmdb under keys that carry the child's pid.
    """
    usual = _envid.env_keys

    def keys_of_child(path: str, subdir: bool) -> tuple[object, ...]:
        return tuple((key, os.getpid()) for key in usual(path, subdir))  # type: ignore[no-untyped-call]

    _envid.env_keys = keys_of_child
    try:
        yield
    finally:
        _envid.env_keys = usual
