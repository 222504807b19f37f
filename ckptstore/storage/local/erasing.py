"""Erasing what stands beside the log: bytes in torn/, and segments that a compaction left unfinished when it was killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ckptstore.codec.records import Entry
from ckptstore.errors import CorruptionError, LockTimeoutError
from ckptstore.storage import View
from ckptstore.storage.local import format as fmt
from ckptstore.storage.local.engine import Engine
from ckptstore.storage.local.frames import located
from ckptstore.storage.local.handle import LocalStorage
from ckptstore.storage.local.locks import FolderLock

_PAUSE = 0.05


def frames(view: View, first: int, last: int) -> list[int]:
    """LSNs of the frames of the log from `first` to `last`, ascending."""
    return sorted(located(view._kv, first, last - first + 1))


def erase_beside_the_log(storage: LocalStorage, may_hold: Callable[[Iterable[Entry]], bool], timeout: float) -> None:
    """Delete unfinished segments, and what is in torn/ unless it is known to hold nothing of what is erased.

    Args:
        may_hold: whether a directory may be one of what is erased.
        timeout: seconds to wait for each lock.

    Raises:
        LockTimeoutError: a compaction or a commit was going on all the time.
    """
    engine = storage._live()
    # Whoever writes `*.seg.tmp` holds one of these locks.
    with _no_compaction(engine, timeout), engine.commit_lock(timeout):
        for name in engine.vfs.listdir(engine.layout.segments):
            if name.endswith(".seg.tmp"):
                engine.vfs.unlink(engine.layout.segments / name)
        for name in engine.vfs.listdir(engine.layout.torn):
            path = engine.layout.torn / name
            if not _is_free_of(engine.vfs.read_file(path), may_hold):
                engine.vfs.unlink(path)
        engine.vfs.sync_folder(engine.layout.segments)
        if engine.vfs.exists(engine.layout.torn):
            engine.vfs.sync_folder(engine.layout.torn)


def _is_free_of(data: bytes, may_hold: Callable[[Iterable[Entry]], bool]) -> bool:
    """Whether these bytes are whole frames, and none of them holds it. What is cut off in the middle may be anybody's."""
    at = 0
    while at < len(data.rstrip(b"\0")):
        header = fmt.decode_frame_header(data[at : at + fmt.FRAME_HEADER])
        if header is None or at + header.size > len(data):
            return False
        middle = at + fmt.FRAME_HEADER
        try:
            if may_hold(fmt.decode_directory(header, data[middle : middle + header.directory])):
                return False
        except CorruptionError:
            return False
        at += header.size
    return True


@contextmanager
def _no_compaction(engine: Engine, timeout: float) -> Iterator[None]:
    """Hold the lock of compactions."""
    lock = FolderLock(engine.layout.compact, create=True)
    deadline = time.monotonic() + timeout
    try:
        while not lock.try_exclusive():
            if time.monotonic() > deadline:
                raise LockTimeoutError(f"{engine.layout.root} is being compacted by another process or thread")
            time.sleep(_PAUSE)
        yield
    finally:
        lock.close()
