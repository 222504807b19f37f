"""Locks between processes.

The folder lock (LOCK) is held shared while a store is open; whoever gets it exclusively is alone and may create, recover, or write
CLEAN on leaving. The commit lock is an flock on index/SHARED, taken before LMDB's own mutex, because that one has no timeout and
does not say who holds it. The same file is a page of memory that all processes see:

    0   8  pid of the holder of the commit lock, 0 when free
    8   8  when it got the lock, unix ns
    16  8  durable LSN: everything up to it was fsynced
    24  1  an fsync failed: writes are refused
    32  8  highest segment id that was given out since somebody was alone here
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import struct
import threading
import time
from pathlib import Path

from ckptstore.activity import Activity
from ckptstore.errors import LockTimeoutError
from ckptstore.forks import own_locks

try:
    import fcntl
except ImportError as error:
    raise ImportError("ckptstore does not run on Windows yet: its locks between processes are those of POSIX (fcntl)") from error

_PAGE = 64
_HOLDER = struct.Struct("<QQ")
_LSN = struct.Struct("<Q")


class FolderLock:
    """flock on LOCK, and on other files that say who is at work. Conversions are not atomic: a failed upgrade loses the shared lock, so
    only a leaver may try it."""

    def __init__(self, path: Path, *, create: bool, reading: bool = False) -> None:
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
        except OSError as error:
            if not reading or not path.exists() or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a read-only medium: flock works all the same
        self._path = path
        self._pid = os.getpid()
        own_locks(self)

    def new_locks(self) -> None:
        """In a forked child: a lock of a parent that is killed would live on in its share of the descriptor."""
        if os.getpid() != self._pid:
            self.close()

    def is_at(self, path: Path) -> bool:
        """Whether the file at `path` is the one that is locked here."""
        try:
            there, here = os.stat(path), os.fstat(self._fd)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def try_exclusive(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def try_shared(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def name_owner(self) -> None:
        """Write who is alone inside, for the message of those who wait."""
        with contextlib.suppress(OSError):  # opened read-only
            os.pwrite(self._fd, f"{os.getpid():<20d}".encode(), 0)

    def owner(self) -> str:
        return os.pread(self._fd, 20, 0).decode("ascii", "replace").strip() or "unknown"

    def close(self) -> None:
        """Give the lock up; idempotent. In a forked child the descriptor is shared with the parent, so it is closed, never unlocked."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class SharedPage:
    """index/SHARED: the commit lock and the page."""

    def __init__(self, path: Path, activity: Activity) -> None:
        self._activity = activity
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if os.fstat(self._fd).st_size < _PAGE:
            os.pwrite(self._fd, b"\0" * _PAGE, 0)  # written, not truncated to size: a hole would fault on a full disk
        self._page = mmap.mmap(self._fd, _PAGE)
        self._mutex = threading.Lock()
        self._pid = os.getpid()

    def acquire(self, timeout: float) -> bool:
        """Take the commit lock of the store.

        Args:
            timeout: seconds.

        Returns:
            Whether the last holder died with the lock in its hands.

        Raises:
            LockTimeoutError: names the holder and how long it has held it.
        """
        waited = 0.0
        if not self._mutex.acquire(blocking=False):
            waited = self._wait_for_thread(timeout)
        try:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waited += self._wait_for_process(timeout - waited, timeout)
            if waited:
                self._activity.lock_waits += 1
                self._activity.lock_wait_seconds += waited
            died = bool(_HOLDER.unpack_from(self._page, 0)[0])
            _HOLDER.pack_into(self._page, 0, self._pid, time.time_ns())
        except BaseException:
            self._mutex.release()
            raise
        return died

    def release(self, *, died: bool = False) -> None:
        """Give the commit lock up.

        Args:
            died: the holder before died, and what that left behind is still there: the next holder is to be told, too.
        """
        try:
            if not died:
                _HOLDER.pack_into(self._page, 0, 0, 0)
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        finally:
            self._mutex.release()

    def _wait_for_thread(self, timeout: float) -> float:
        """Wait for another thread of this process; return the seconds that took."""
        started = time.monotonic()
        self._activity.waiting += 1
        try:
            if not self._mutex.acquire(timeout=timeout):
                raise self._timed_out(timeout)
        finally:
            self._activity.waiting -= 1
        return time.monotonic() - started

    def _wait_for_process(self, left: float, timeout: float) -> float:
        """Wait for another process; return the seconds that took."""
        started = time.monotonic()
        self._activity.waiting += 1
        try:
            self._poll(started + left, timeout)
        finally:
            self._activity.waiting -= 1
        return time.monotonic() - started

    def _poll(self, deadline: float, timeout: float) -> None:
        # A holder keeps the lock for tens of microseconds. flock has no timeout, so poll, politely more and more.
        pause = 20e-6
        while True:
            time.sleep(pause)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise self._timed_out(timeout) from None
                pause = min(pause * 1.5, 2e-3)

    def _timed_out(self, timeout: float) -> LockTimeoutError:
        pid, since = _HOLDER.unpack_from(self._page, 0)
        if not pid:
            return LockTimeoutError(f"the commit lock was not free within {timeout:g} s: many short holders; try again")
        held = max(0.0, (time.time_ns() - since) / 1e9)
        who = f"process {pid}" + (" (this process)" if pid == self._pid else "")
        return LockTimeoutError(f"the commit lock was not free within {timeout:g} s: {who} has held it for {held:.1f} s")

    @property
    def durable(self) -> int:
        return int(_LSN.unpack_from(self._page, 16)[0])

    def raise_durable(self, lsn: int) -> None:
        # Two processes may race here; the loser's smaller number only means one fsync more.
        if lsn > self.durable:
            _LSN.pack_into(self._page, 16, lsn)

    def start(self, durable: int) -> None:
        """Set the page up; only whoever is alone in the folder."""
        self._page[:_PAGE] = b"\0" * _PAGE
        _LSN.pack_into(self._page, 16, durable)

    def new_segment(self, least: int) -> int:
        """An id for a new segment, under the commit lock: one that no segment of this session had, not even one that is gone.

        A process may have a segment open that a killed writer began and others set aside. Under the same id another one would look like it.
        """
        number = max(least, int(_LSN.unpack_from(self._page, 32)[0]) + 1)
        _LSN.pack_into(self._page, 32, number)
        return number

    @property
    def poisoned(self) -> bool:
        return bool(self._page[24])

    def poison(self) -> None:
        self._page[24] = 1

    def close(self) -> None:
        self._page.close()
        os.close(self._fd)

    def release_in_child(self) -> None:
        """In a forked child: close our share of the descriptor, or a lock held by a parent that is killed would live on in us.

        The map has a duplicate of it, which keeps the lock just as well.
        """
        self._page.close()
        os.close(self._fd)
