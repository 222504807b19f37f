"""The SQLite index: one table, WAL mode, never synced while it is open.

It costs more than LMDB (docs/decisions/005-sqlite-index.md) and has what LMDB lacks: its locks are the kernel's own and name no
pid, so processes of several pid namespaces may share it. `synchronous=OFF` makes it as worthless after a power cut as LMDB without
sync, and the same evidence decides whether it is opened (opening.py). A kill harms nothing: what was written is in the page cache,
and the next one in replays the WAL up to the last commit.

Fork. SQLite's locks are fcntl locks, which a child does not inherit, while its tables in memory, which the child does inherit, say
that the process has them. A child that opened the same file would trust them: another process could then reset the WAL under its
reads, or delete it under its commits. No later call mends that. So no connection is open when a process forks: `_before_fork` waits
for the transactions of other threads to end and closes all connections. The parent opens new ones when it needs them, and the child
starts with tables that know nothing of the file. Where a transaction does not end in time, or the process was forked by code that does
not run Python's hooks, the child is refused instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakSet

import apsw

from ckptstore.errors import IndexUnusableError, StoreClosedError
from ckptstore.storage.catalog import Kv, after
from ckptstore.storage.local.index import LAYOUT, IndexIOError, IndexNoSpaceError

# Writers come one at a time, under the commit lock. What may be waited for is a recovery, or the last one out, in another process.
_BUSY_MS = 30_000
_SYNCHRONOUS = "OFF"
# Pages in the WAL before a commit moves them to the data file. Without fsync that costs as much with a short WAL as with a long one.
_CHECKPOINT_PAGES = 64
_IDLE = 8
# Seconds for which a fork, or the last one out, waits for the transactions of other threads. They take a few milliseconds.
_WAIT = 5.0
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_GET = "SELECT v FROM kv WHERE k = ?"
_PUT = "REPLACE INTO kv VALUES (?, ?)"
_DELETE = "DELETE FROM kv WHERE k = ?"
_UP = "SELECT k, v FROM kv WHERE k >= ? AND k < ? ORDER BY k LIMIT ?"
_BETWEEN = "SELECT k, v FROM kv WHERE k >= ? AND k < ? ORDER BY k"
_DOWN = "SELECT k, v FROM kv WHERE k >= ? AND k < ? ORDER BY k DESC LIMIT ?"
_FIRST_ROWS, _MOST_ROWS = 16, 1024


class _Connection:
    """A connection, and the ordered map of its transaction. Used by one thread at a time."""

    __slots__ = ("_changes", "_execute", "connection")

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        # One cursor for all: a statement that still stands on a row is reset by the next one, COMMIT included.
        self._execute: Callable[..., Any] = connection.cursor().execute
        self._changes = 0

    def get(self, key: bytes) -> bytes | None:
        row = self._execute(_GET, (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def put(self, key: bytes, value: bytes) -> None:
        self._changes += 1
        self._execute(_PUT, (key, value))

    def delete(self, key: bytes) -> None:
        self._changes += 1
        self._execute(_DELETE, (key,))

    def scan(self, prefix: bytes, *, before: bytes | None = None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        low, high = prefix, after(prefix)
        if reverse and before is not None:
            high = min(high, before)
        rows_wanted = _FIRST_ROWS
        while True:
            changes = self._changes
            # Fetched whole: SQLite does not define what a running SELECT shows of a table that its own transaction changes.
            rows = self._execute(_DOWN if reverse else _UP, (low, high, rows_wanted)).fetchall()
            for key, value in rows:
                yield key, value
                if reverse:
                    high = key
                else:
                    low = key + b"\0"
                if self._changes != changes:
                    break
            else:
                if len(rows) < rows_wanted:
                    return
                rows_wanted = min(rows_wanted * 4, _MOST_ROWS)

    def between(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        # A cursor of its own: the caller may look other keys up meanwhile.
        rows: Iterator[tuple[bytes, bytes]] = self.connection.cursor().execute(_BETWEEN, (low, high))
        return rows

    def begin(self, *, write: bool) -> None:
        self._execute("BEGIN IMMEDIATE" if write else "BEGIN")

    def commit(self) -> None:
        self._execute("COMMIT")

    def rollback(self) -> None:
        # After some errors SQLite has rolled back by itself.
        if self.connection.in_transaction:
            self._execute("ROLLBACK")

    def close(self) -> None:
        # Nothing depends on a close that goes wrong: `sync` looks at what it left behind, and the kernel drops the locks.
        with contextlib.suppress(apsw.Error):
            self.connection.close()


class _Pool:
    """The connections of one process: a transaction takes one and gives it back."""

    def __init__(self, folder: Path, connect: Callable[[], _Connection]) -> None:
        self._folder = folder
        self._connect = connect
        self._changed = threading.Condition()
        self._idle: list[_Connection] = []
        self._busy: dict[_Connection, int] = {}
        """Connection -> thread that has it."""
        self._pauses = 0
        self._closed = False

    def take(self) -> _Connection:
        with self._changed:
            # A thread that is in a transaction already is what a pause waits for: it must be able to go on.
            while self._pauses and threading.get_ident() not in self._busy.values():
                self._changed.wait()
            if self._closed:
                raise StoreClosedError(f"{self._folder} is closed")
            taken = self._idle.pop() if self._idle else self._connect()
            self._busy[taken] = threading.get_ident()
            return taken

    def give(self, taken: _Connection, *, keep: bool) -> None:
        """Give a connection back; with `keep` it has no transaction and is in order."""
        with self._changed:
            del self._busy[taken]
            if keep and not self._closed and not self._pauses and len(self._idle) < _IDLE:
                self._idle.append(taken)
            else:
                taken.close()
            if self._pauses:
                self._changed.notify_all()

    def pause(self, timeout: float) -> None:
        """Let no transaction begin until `resume`, wait until those of other threads have ended, close all connections.

        Args:
            timeout: seconds; connections that are in use after that stay open.
        """
        me = threading.get_ident()
        with self._changed:
            self._pauses += 1
            self._changed.wait_for(lambda: all(owner == me for owner in self._busy.values()), timeout)
            self._drop_idle()

    def resume(self) -> None:
        with self._changed:
            self._pauses -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Close the connections; those in use when their transactions end."""
        with self._changed:
            self._closed = True
            self._drop_idle()

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def left_open(self) -> list[_Connection]:
        """What is open, without a lock: in a forked child, where nobody else is."""
        return [*self._idle, *self._busy]


class _Transaction:
    """`with` a transaction. A class instead of a generator: these are entered several times a call."""

    __slots__ = ("_connection", "_index", "_write")

    def __init__(self, index: SqliteIndex, *, write: bool) -> None:
        self._index = index
        self._write = write

    def __enter__(self) -> Kv:
        self._connection = self._index.begin(write=self._write)
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._index.end(self._connection, error)


class SqliteIndex:
    """One SQLite file; at most one `SqliteIndex` a process and file (engine.py keeps the table)."""

    kind: ClassVar[str] = "sqlite"
    version: ClassVar[int] = LAYOUT
    data_name: ClassVar[str] = "data.db"
    across_namespaces: ClassVar[bool] = True

    def __init__(self, folder: Path, *, forked: bool = False) -> None:
        """Open or create the index.

        Args:
            forked: makes no difference here; the head of this module says why.

        Raises:
            IndexIOError: the file is damaged, or cannot be had.
            IndexUnusableError: this process was forked in the middle of a transaction on that file.
        """
        self._folder = folder
        self._pool = _Pool(folder, self._connect)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            first = self._pool.take()
            in_order = False
            try:
                _create(first.connection)
                in_order = True
            finally:
                self._pool.give(first, keep=in_order)
        except apsw.Error as error:
            raise _failure(folder, error) from error
        with _open_lock:
            _open.add(self)

    def _connect(self) -> _Connection:
        path = self.data_file()
        _refuse_unsafe(path)
        connection = apsw.Connection(str(path))
        connection.set_busy_timeout(_BUSY_MS)
        connection.execute(f"PRAGMA synchronous={_SYNCHRONOUS}; PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}").fetchall()
        return _Connection(connection)

    def read(self) -> _Transaction:
        return _Transaction(self, write=False)

    def write(self) -> _Transaction:
        return _Transaction(self, write=True)

    def begin(self, *, write: bool) -> _Connection:
        """Take a connection and begin a transaction on it."""
        try:
            taken = self._pool.take()
        except apsw.Error as error:
            raise _failure(self._folder, error) from error
        try:
            taken.begin(write=write)
        except BaseException as error:
            failure = _failure(self._folder, error, taken) if isinstance(error, apsw.Error) else error
            self._pool.give(taken, keep=False)
            raise failure from None
        return taken

    def end(self, taken: _Connection, error: BaseException | None) -> None:
        """End a transaction: commit it, or roll it back after an error; what SQLite raised inside it is raised as `IndexIOError`."""
        in_order = False
        try:
            if isinstance(error, apsw.Error):
                raise error
            if error is None:
                taken.commit()
            else:
                taken.rollback()
            in_order = True
        except apsw.Error as failed:
            raise _failure(self._folder, failed, taken) from failed
        finally:
            # Closing a connection rolls back what is left of its transaction.
            self._pool.give(taken, keep=in_order)

    def data_file(self) -> Path:
        return self._folder / self.data_name

    def is_cut(self) -> bool:
        """Never: SQLite finds out by itself."""
        return False

    def copy_packed(self, folder: Path) -> SqliteIndex:
        """VACUUM INTO writes the rows in key order into full pages."""
        folder.mkdir(parents=True, exist_ok=True)
        try:
            taken = self._pool.take()
            try:
                taken.connection.execute("VACUUM INTO ?", (str(folder / self.data_name),)).fetchall()
            finally:
                self._pool.give(taken, keep=False)
        except apsw.Error as error:
            raise _failure(self._folder, error) from error
        return SqliteIndex(folder)

    def sync(self) -> None:
        """Move everything into the data file, delete the WAL, and sync the file.

        The WAL has to be gone before CLEAN is written: after a power cut the disk might hold an older state of it, and SQLite would
        replay that over the data file. The last connection to close moves its pages and unlinks it; the caller's sync of the folder
        makes that durable.
        """
        self._pool.pause(_WAIT)
        try:
            wal = self._folder / f"{self.data_name}-wal"
            if self._pool.left_open() or wal.exists():
                raise IndexIOError(f"{wal} could not be moved into the data file")
            # Only with all connections closed: closing any descriptor of a file drops the fcntl locks of the process on it.
            fd = os.open(self.data_file(), os.O_RDWR | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        finally:
            self._pool.resume()

    def close(self, *, last: bool = False) -> None:
        self._pool.close()

    def pause(self) -> None:
        """Before a fork: see `_Pool.pause`."""
        self._pool.pause(_WAIT)

    def resume(self) -> None:
        """In the parent, after a fork."""
        self._pool.resume()

    def left_open(self) -> list[_Connection]:
        """In a forked child: the connections that it inherited."""
        return self._pool.left_open()


def _create(connection: apsw.Connection) -> None:
    """Make the table where there is none, and turn WAL mode on, which a packed copy comes without.

    Reads only where both are there: CLEAN must stay true for a session that only reads.
    """
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != ("wal",):
        raise IndexIOError(f"{connection.filename}: SQLite cannot use WAL mode here (its journal mode is {mode})")
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'kv'").fetchone() is None:
        connection.execute("CREATE TABLE kv (k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID").fetchall()


def _failure(folder: Path, error: apsw.Error, taken: _Connection | None = None) -> IndexIOError:
    """What the engine is told of an error of SQLite."""
    number = 0 if taken is None else taken.connection.system_errno
    if isinstance(error, apsw.FullError) or number in _NO_SPACE:
        return IndexNoSpaceError(f"{folder}: {error}")
    return IndexIOError(
        f"{folder}: the index failed: {error}. It can be made anew from the log: close the store everywhere, delete its folder "
        "index, and open it again"
    )


# -- forks -----------------------------------------------------------------------------------------------------------------

_open: WeakSet[SqliteIndex] = WeakSet()
_open_lock = threading.Lock()
_unsafe: set[tuple[int, int]] = set()
"""Device and inode of the files of which this process inherited open connections."""
_forking = threading.local()


def _refuse_unsafe(path: Path) -> None:
    if not _unsafe:
        return
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    if (status.st_dev, status.st_ino) in _unsafe:
        raise IndexUnusableError(
            f"{path}: this process was forked while a call on the store was going on, and the locks of an sqlite index do not survive "
            "that. Start the process anew (multiprocessing: method 'spawn'), fork when no call is going on, or use index='lmdb'"
        )


def _before_fork() -> None:
    with _open_lock:
        _forking.paused = list(_open)
    for index in _forking.paused:
        index.pause()


def _after_fork_in_parent() -> None:
    for index in _forking.paused:
        index.resume()
    _forking.paused = []


def _after_fork_in_child() -> None:
    global _open_lock
    _open_lock = threading.Lock()
    _forking.paused = []
    for index in list(_open):
        for connection in index.left_open():
            # Never closed, at exit neither: a thread of the parent may hold its mutex, and nobody would give that back here.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
            with contextlib.suppress(FileNotFoundError):
                status = index.data_file().stat()
                _unsafe.add((status.st_dev, status.st_ino))
    _open.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
