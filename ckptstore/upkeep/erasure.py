"""Erasure: delete a thread and make sure that none of its bytes are left in the log.

Deleting writes a tombstone and compaction takes the records away; what is added here is the refusal while another thread still reaches
the bytes, and the proof afterwards: no frame of the log holds a record of the thread, of this life or of an earlier one of its name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ckptstore.codec.names import name_hash
from ckptstore.codec.records import HEADER, Entry, Kind
from ckptstore.errors import CkptStoreError, CorruptionError, FrameGoneError, LockTimeoutError
from ckptstore.lineage.listing import thread_name
from ckptstore.lineage.reach import relatives
from ckptstore.lineage.values import Values
from ckptstore.storage import Storage, View
from ckptstore.upkeep import compaction, removal

# A compaction leaves a run of segments alone where a commit made meanwhile needs what would fall away.
_TRIES = 5
_PAUSE = 0.05
# Directories read in one view: a view pins pages of the index, and a writer should be able to reuse them soon.
_STRETCH = 1000

_OF_LANE = frozenset({Kind.CHECKPOINT, Kind.WRITES, Kind.HISTORY, Kind.HEAD})


class CopiesRemainError(CkptStoreError, RuntimeError):
    """A thread cannot be erased while other threads share its records; the message names them."""


class Traces(NamedTuple):
    """By what records are known to belong to erased threads."""

    names: frozenset[bytes]
    """Hashes of thread names."""
    threads: frozenset[int]
    lanes: frozenset[int]

    def mark(self, entries: Iterable[Entry]) -> bool:
        """Whether a directory of the log names one of the threads. The values of a frame belong to the other records in it."""
        return any(self._marks(entry[0], entry[HEADER:]) for entry in entries)

    def may_mark(self, entries: Iterable[Entry]) -> bool:
        """The same of bytes that never became part of the log, where numbers may have been given that others got later."""
        return any(entry[0] == Kind.THREAD and entry[HEADER + 1] in self.names for entry in entries) or self.mark(entries)

    def _marks(self, kind: int, fields: Sequence[object]) -> bool:
        if kind == Kind.THREAD:
            return fields[0] in self.threads
        if kind == Kind.LANE:
            return fields[0] in self.lanes or fields[2] in self.threads
        if kind == Kind.COPY:
            return fields[0] in self.lanes or fields[1] in self.lanes
        return kind in _OF_LANE and fields[0] in self.lanes


Frames = Callable[[View, int, int], list[int]]
"""LSNs of the frames that are there from one to another, ascending."""


def erase(
    storage: Storage, values: Values, thread: str, frames: Frames, *, with_copies: bool, timeout: float
) -> tuple[bool, Traces]:
    """Delete a thread, and compact until the log holds nothing of it.

    Args:
        with_copies: delete all threads too that share records with it: its copies, and what it was copied from.
        timeout: seconds to wait for a compaction that is going on.

    Returns:
        Whether there was such a thread, and what its records are known by.

    Raises:
        CopiesRemainError: other threads share its records. Nothing was deleted; where it was copied at that very moment, the thread is
            deleted and its bytes are still there.
        LockTimeoutError: other compactions or writers were in the way; the thread is deleted, call again for its bytes.
        CorruptionError: a damaged frame does not say whose it is; nothing was deleted.
    """
    names = {thread}
    deleted = False
    traces = _traces(storage, names, frames)
    while True:
        sharing = _sharing(storage, traces) - names
        if sharing and not with_copies:
            raise CopiesRemainError(
                f"thread {thread!r} shares its records with {', '.join(map(repr, sorted(sharing)))}, and its bytes stay as long as those "
                "do: erase it with with_copies=True, or delete those first"
            )
        names |= sharing
        for name in sorted(names):
            deleted = removal.delete(storage, name) or deleted
        # Again, now that nothing can be added: lanes begun meanwhile, and copies made meanwhile.
        traces = _traces(storage, names, frames)
        if not _sharing(storage, traces) - names:
            break
    if traces.threads:
        _compact(storage, values, traces, thread, frames, timeout)
    return deleted, traces


def all_frames(view: View, first: int, last: int) -> list[int]:
    """`Frames` of a storage that cannot be damaged."""
    return [lsn for lsn in range(first, last + 1) if _is_there(view, lsn)]


def _is_there(view: View, lsn: int) -> bool:
    try:
        view.entries(lsn)
    except CorruptionError:
        return False
    return True


def _traces(storage: Storage, names: Iterable[str], frames: Frames) -> Traces:
    """What the log knows of threads of these names, deleted ones included."""
    hashes = frozenset(map(name_hash, names))
    threads: set[int] = set()
    lanes: set[int] = set()
    for entries in _directories(storage, frames):
        for entry in entries:
            if entry[0] == Kind.THREAD and entry[HEADER + 1] in hashes:
                threads.add(entry[HEADER])
            elif entry[0] == Kind.LANE and entry[HEADER + 2] in threads:
                lanes.add(entry[HEADER])
    return Traces(hashes, frozenset(threads), frozenset(lanes))


def _sharing(storage: Storage, traces: Traces) -> set[str]:
    """Names of live threads that share records with these lanes."""
    with storage.view() as view:
        others: set[int] = set()
        for lane in traces.lanes:
            others |= relatives(view, lane)
        addresses = [view.address(lane) for lane in others - traces.lanes]
        return {thread_name(view, address.thread) for address in addresses if address is not None}


def _directories(storage: Storage, frames: Frames) -> Iterator[list[Entry]]:
    """The directories of all frames that are there, oldest first."""
    last = storage.stats().last_lsn
    with storage.view() as view:
        there = frames(view, 1, last)
    for at in range(0, len(there), _STRETCH):
        stretch = there[at : at + _STRETCH]
        with storage.view() as view:
            found = [_entries(view, lsn) for lsn in frames(view, stretch[0], stretch[-1])]
        yield from found


def _entries(view: View, lsn: int) -> list[Entry]:
    try:
        return view.entries(lsn)
    except FrameGoneError:
        return []  # compacted away in this moment: it holds nothing


def _compact(storage: Storage, values: Values, traces: Traces, thread: str, frames: Frames, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    tries = 0
    while True:
        try:
            compaction.compact(storage, values, 0.0)
        except LockTimeoutError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)
            continue
        with storage.view() as view:
            # One that was started again since is another thread.
            anew = {number for number in traces.threads if view.has_thread(number)}
            lanes = {lane for number in anew for lane in view.lanes(number)}
        old = traces._replace(threads=traces.threads - anew, lanes=traces.lanes - lanes)
        if not any(old.mark(entries) for entries in _directories(storage, frames)):
            return
        tries += 1
        if tries >= _TRIES:
            raise LockTimeoutError(
                f"thread {thread!r} is deleted, but parts of it are still in the log: other writers were in the way. Call again"
            )
