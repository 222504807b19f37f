"""What a store is, and where the bytes of its log go: by record kind, by thread and by channel.

Read from the index and from the frames' directories. A frame is verified as a whole on the way, so damage shows up here; the bodies
of writes and values are never decoded, and of checkpoints only the tables, where channels are asked for.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import NamedTuple

from ckptstore.codec.records import HEADER, LANE_SCOPE, Entry, Kind, entry_name, pack
from ckptstore.errors import CorruptionError, InvalidArgumentError, StaleIndexError
from ckptstore.inspect.channels import ChannelBytes, ChannelTally
from ckptstore.inspect.opened import Opened, opened
from ckptstore.storage import Frame, StorageStats, View
from ckptstore.storage.local.format import MAJOR
from ckptstore.storage.local.frames import get_location

# Frames read in one view: a view pins pages of the index, and a writer should be able to reuse them soon.
_STRETCH = 256
CHANNELS_UP_TO = 50_000
"""Frames up to which channels are shown unless asked otherwise: each checkpoint's table has to be unpacked."""


class KindBytes(NamedTuple):
    """What the live records of one kind take: directory entries and bodies."""

    kind: str
    records: int
    bytes: int


class ThreadBytes(NamedTuple):
    """What the live records of one thread take."""

    thread: str
    bytes: int


class Breakdown(NamedTuple):
    """Where the bytes of the log go. The kinds, `headers` and the dead bytes add up to the bytes of the log."""

    kinds: list[KindBytes]
    """Largest first."""
    headers: int
    """Bytes of frame and segment headers, of zeros ahead of the frames of an open store, and of what could not be read."""
    threads: list[ThreadBytes]
    """The largest threads, largest first."""
    other_threads: int
    """Bytes of the threads that the list leaves off."""
    no_thread: int
    """Bytes of live records that no live thread owns: tombstones, facts of the store, what copies share with a deleted thread,
    and what compaction left in the places of records."""
    channels: list[ChannelBytes] | None
    """Largest first; together the bytes of the kind `values`. None when it was not asked for."""


class StoreReport(NamedTuple):
    """A store at a glance. Sizes are in bytes."""

    path: str
    format: int
    uuid: str
    timeline: str
    segments: int
    log_bytes: int
    live_bytes: int
    dead_bytes: int
    """Frames that hold nothing live any more."""
    index_bytes: int
    frames: int
    last_lsn: int
    durable_lsn: int
    threads: int
    namespaces: int
    checkpoints: int
    breakdown: Breakdown | None
    """None when it was not asked for."""
    problems: list[str]
    """Damage that was met, one line each."""


def store_report(
    path: str | os.PathLike[str], *, top: int = 10, channels: bool | None = None, lock_timeout: float = 30.0
) -> StoreReport:
    """Describe a store.

    Args:
        top: number of threads to name in the breakdown, at least 0. With 0 there is no breakdown and the log is not read.
        channels: whether the breakdown says how the values of each channel are stored; None: for stores of up to `CHANNELS_UP_TO`
            frames.
        lock_timeout: seconds, see `opened`.

    Raises:
        InvalidArgumentError: `top` is negative.
        what `opened` raises.
    """
    if top < 0:
        raise InvalidArgumentError(f"top={top}: 0 or more is needed")
    with opened(path, lock_timeout) as here:
        stats = here.storage.stats()
        problems: list[str] = []
        threads = namespaces = checkpoints = 0
        try:
            for info in here.store.threads():
                threads, namespaces, checkpoints = threads + 1, namespaces + info.namespaces, checkpoints + info.checkpoints
        except (CorruptionError, StaleIndexError) as error:
            problems.append(f"the list of threads ends early: {error}")
        breakdown = None
        if top:
            wanted = stats.frames <= CHANNELS_UP_TO if channels is None else channels
            breakdown = _breakdown(here, stats, top, problems, ChannelTally() if wanted else None)
        return StoreReport(
            str(here.path),
            MAJOR,
            here.identity.uuid.hex(),
            here.identity.timeline.hex(),
            stats.segments,
            stats.log_bytes,
            stats.log_bytes - stats.dead_bytes,
            stats.dead_bytes,
            stats.index_bytes,
            stats.frames,
            stats.last_lsn,
            stats.durable_lsn,
            threads,
            namespaces,
            checkpoints,
            breakdown,
            problems,
        )


def _breakdown(here: Opened, stats: StorageStats, top: int, problems: list[str], channels: ChannelTally | None) -> Breakdown:
    with here.storage.view() as view:
        tally = _Tally(dead=set(view.dead()), live_threads=set(view.threads()))
    for first in range(1, stats.last_lsn + 1, _STRETCH):
        with here.storage.view() as view:
            for lsn in range(first, min(first + _STRETCH, stats.last_lsn + 1)):
                # Compaction drops frames, so an LSN that the index does not know is no sign of damage.
                if lsn in tally.dead or get_location(view._kv, lsn) is None:
                    continue
                try:
                    frame = view.frame(lsn)
                    tally.add(view, frame)
                    if channels is not None:
                        channels.add(frame)
                except (CorruptionError, StaleIndexError) as error:
                    problems.append(str(error))
    no_thread = tally.owners.pop(None, 0)
    largest = [(number, size) for number, size in tally.owners.most_common(top) if number is not None]
    # A thread whose own record is damaged has no name to show; its bytes count among the others.
    named = [ThreadBytes(tally.names[number], size) for number, size in largest if number in tally.names]
    kinds = [KindBytes(kind, tally.records[kind], size) for kind, size in tally.sizes.most_common()]
    return Breakdown(
        kinds,
        stats.log_bytes - stats.dead_bytes - tally.sizes.total(),
        named,
        sum(tally.owners.values()) - sum(item.bytes for item in named),
        no_thread,
        None if channels is None else channels.result(),
    )


class _Tally:
    """Sums over frames."""

    def __init__(self, dead: set[int], live_threads: set[int]) -> None:
        self.dead = dead
        self.records: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()
        self.owners: Counter[int | None] = Counter()
        """Bytes by thread number; None for records that no live thread owns."""
        self.names: dict[int, str] = {}
        self._live_threads = live_threads

    def add(self, view: View, frame: Frame) -> None:
        owner: int | None = None
        values = 0
        for entry in frame.entries:
            size = len(pack(entry)) + entry[2]
            kind = _KINDS.get(entry[0], f"kind {entry[0]}")
            self.records[kind] += 1
            self.sizes[kind] += size
            if entry[0] == Kind.VALUE:
                values += size
            elif entry[0] == Kind.VOID:
                self.owners[None] += size
            else:
                owner = self._owner(view, entry)
                self.owners[owner] += size
            if entry[0] == Kind.THREAD:
                self.names[entry[HEADER]] = entry_name(entry)
        # Values stand in the frame of the one checkpoint or batch of writes that brought them.
        self.owners[owner] += values

    def _owner(self, view: View, entry: Entry) -> int | None:
        """Number of the live thread that a record belongs to."""
        kind, number = entry[0], entry[HEADER]
        if kind == Kind.LANE:
            thread: int | None = entry[HEADER + 2]
        elif kind == Kind.THREAD:
            thread = number
        elif kind in _LANE_FIRST or (kind == Kind.TOMBSTONE and number == LANE_SCOPE):
            address = view.address(entry[HEADER + 1] if kind == Kind.TOMBSTONE else number)
            thread = None if address is None else address.thread
        else:
            thread = None
        return thread if thread in self._live_threads else None


_KINDS = {
    Kind.VOID: "voids",
    Kind.THREAD: "threads",
    Kind.LANE: "namespaces",
    Kind.CHECKPOINT: "checkpoints",
    Kind.VALUE: "values",
    Kind.WRITES: "writes",
    Kind.HISTORY: "history",
    Kind.COPY: "copies",
    Kind.HEAD: "heads",
    Kind.TOMBSTONE: "tombstones",
    Kind.META: "facts",
}
_LANE_FIRST = frozenset({Kind.CHECKPOINT, Kind.WRITES, Kind.HISTORY, Kind.COPY, Kind.HEAD})
