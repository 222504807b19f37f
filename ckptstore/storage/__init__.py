"""Where records live: the protocol, and what every home of the log has in common.

A storage keeps frames (one public call each) in an order and an index over them. Above this room nobody knows segments, offsets
or fsync. Two homes exist: `memory.MemoryStorage` and `local.engine.LocalStorage`, a folder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeVar

from ckptstore.activity import Activity
from ckptstore.codec.records import Encoded, Entry, Kind, decode_body, decode_writes
from ckptstore.errors import FrameGoneError, StaleIndexError
from ckptstore.model import Ref, WritesRecord
from ckptstore.storage.catalog import Catalog


class Frame:
    """A verified frame: its directory, and its bodies on demand. Safe to share between threads.

    Immutable for whoever reads it. A batch of writes is kept decoded once it was read: the history of a channel reads each batch on its
    path again at every call.
    """

    __slots__ = ("_batches", "_bodies", "_starts", "entries", "lsn", "size")

    def __init__(self, lsn: int, entries: list[Entry], bodies: bytes) -> None:
        self.lsn = lsn
        self.entries = entries
        self._bodies = bodies
        starts, at = [], 0
        for entry in entries:
            starts.append(at)
            at += entry[2]
        self._starts = starts
        self._batches: dict[int, WritesRecord] = {}
        decoded = sum(entry[3] + 500 for entry in entries if entry[0] == Kind.WRITES)
        self.size = len(bodies) + 64 * len(entries) + 200 + decoded

    def stored(self, ordinal: int) -> bytes:
        """The body of one record as it is stored."""
        entry = self.entries[ordinal]
        start = self._starts[ordinal]
        return self._bodies[start : start + entry[2]]

    def raw(self, ordinal: int) -> bytes:
        """The body of one record, decompressed."""
        return decode_body(self.entries[ordinal], self.stored(ordinal))

    def batch(self, ref: Ref) -> WritesRecord:
        """The batch of writes that a reference names."""
        record = self._batches.get(ref.ordinal)
        if record is None:
            record = decode_writes(ref, self.entry(ref, Kind.WRITES), self.raw(ref.ordinal))
            self._batches[ref.ordinal] = record
        return record

    def entry(self, ref: Ref, kind: int) -> Entry:
        """The directory entry a reference names, checked to be of the kind the caller expects."""
        return named_entry(self.entries, ref, kind)


def named_entry(entries: list[Entry], ref: Ref, kind: int) -> Entry:
    """The directory entry a reference names, checked to be of the kind the caller expects."""
    if ref.ordinal >= len(entries) or entries[ref.ordinal][0] != kind:
        raise StaleIndexError(f"record {ref.ordinal} at LSN {ref.lsn} is not of kind {kind}: run `ckpt verify`")
    return entries[ref.ordinal]


class View(Catalog):
    """A consistent reading of index and log. Short-lived: never held while the caller's code runs between two items."""

    __slots__ = ()

    def frame(self, lsn: int) -> Frame:
        """The frame of an LSN, verified.

        Raises:
            CorruptionError: its bytes do not match their checksums.
            StaleIndexError: the index names a frame that is not there.
        """
        raise NotImplementedError

    def entries(self, lsn: int) -> list[Entry]:
        """The directory of a frame, verified; its bodies need not be read, so this costs the same whatever they hold.

        Raises:
            CorruptionError, StaleIndexError: as `frame`, as far as header and directory go.
        """
        return self.frame(lsn).entries

    def directories(self, lsns: Collection[int]) -> Iterator[tuple[int, list[Entry]]]:
        """(LSN, `entries`) of many frames, in any order: the quick way, which keeps nothing for later."""
        return ((lsn, self.entries(lsn)) for lsn in lsns)

    def entry(self, ref: Ref, kind: int) -> Entry:
        """The directory entry a reference names, checked to be of the kind the caller expects."""
        return named_entry(self.entries(ref.lsn), ref, kind)


Batch = Sequence[Encoded]
Resolve = Callable[[View], Batch]
_Answer = TypeVar("_Answer")


Rewrite = Callable[[Frame], Sequence[Encoded | None] | None]
"""What compaction keeps of a frame: None for nothing, else a record for each ordinal, None for one that is dead."""


class Survey(Protocol):
    """What is live, as seen in one view. What was live then and is not any more is kept; nothing becomes live again."""

    def rewriter(self, first: int, end: int) -> Rewrite:
        """How to rewrite the frames from LSN `first` to before `end`, all of them together."""
        ...


class Compaction(NamedTuple):
    """What a compaction did."""

    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_after: int
    frames_dropped: int


class StorageStats(NamedTuple):
    """Sizes of a storage, in bytes, and its log position."""

    segments: int
    log_bytes: int
    dead_bytes: int
    index_bytes: int
    frames: int
    last_lsn: int
    durable_lsn: int

    @property
    def live_bytes(self) -> int:
        return self.log_bytes - self.dead_bytes


class Storage(Protocol):
    """A home of the log.

    Order: frames of one thread are ordered by LSN; nothing may be concluded from LSNs of two threads.
    """

    def view(self) -> AbstractContextManager[View]:
        """Read index and log as of now. Commits of other threads and processes made before are seen."""
        ...

    def commit(self, resolve: Resolve) -> int:
        """Append one batch as one frame and return its LSN, durable at the level of this storage.

        Args:
            resolve: called under the commit lock with a view that includes all commits before; returns the records. It may be
                called again (the index had to grow), so it must not keep effects. What it raises aborts the commit.

        Raises:
            LockTimeoutError, NoSpaceError, DurabilityUnknownError, StorePoisonedError, ReadOnlyError, StoreClosedError
        """
        ...

    def wait_durable(self, lsn: int) -> None:
        """Return when everything up to `lsn` survives a power loss, whatever the durability level."""
        ...

    def sync(self) -> None:
        """Make everything committed so far durable."""
        ...

    def compact(
        self, survey: Callable[[View], Survey], *, least_dead: float = 0.0, stop: Callable[[], bool] = lambda: False
    ) -> Compaction:
        """Rewrite what holds dead records, while readers and writers go on, and give the space back.

        Args:
            survey: looks once at a consistent view and says what is live.
            least_dead: leave segments alone of which a smaller share is known to be dead.
            stop: asked between two pieces of work; what was done until then stays done.

        Raises:
            LockTimeoutError: another compaction is going on. ReadOnlyError, NoSpaceError, StorageIOError
        """
        ...

    def stats(self) -> StorageStats: ...

    @property
    def activity(self) -> Activity:
        """What this storage did since it was opened in this process."""
        ...

    def close(self) -> None:
        """Release everything; idempotent."""
        ...


def read_again(storage: Storage, read: Callable[[View], _Answer]) -> _Answer:
    """What `read` makes of a view; of a newer one where a compaction took away what it was reading.

    Each time round another compaction has ended, so this ends.
    """
    while True:
        try:
            with storage.view() as view:
                return read(view)
        except FrameGoneError:
            continue
