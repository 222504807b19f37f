"""What a store is, and where the bytes of its log go: by record kind, by thread and by channel.

Read from the index and from the frames' directories. A frame is verified as a whole on the way, so damage shows up here; the bodies
of writes and values are never decoded, and of checkpoints only the tables, where channels are asked for.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import NamedTuple

from ckptstore.codec.records import HEADER, LANE_SCOPE, Entry, Kind, entry_name, pack
from ckptstore.errors import CkptStoreError, CorruptionError, InvalidArgumentError, StaleIndexError
from ckptstore.inspect.channels import ChannelBytes, ChannelTally
from ckptstore.inspect.looking import looking
from ckptstore.inspect.opened import Opened
from ckptstore.inspect.progress import Progress
from ckptstore.storage import StorageStats, View
from ckptstore.storage.local.bulk import WholeFrame
from ckptstore.storage.local.format import MAJOR
from ckptstore.storage.local.frames import next_located

# Frames read in one view: a view pins pages of the index, and a writer should be able to reuse them soon.
_STRETCH = 2048
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
    path: str | os.PathLike[str],
    *,
    top: int = 10,
    channels: bool | None = None,
    lock_timeout: float = 30.0,
    progress: Progress | None = None,
) -> StoreReport:
    """Describe a store.

    Args:
        top: number of threads to name in the breakdown, at least 0. With 0 there is no breakdown and the log is not read.
        channels: whether the breakdown says how the values of each channel are stored; None: for stores of up to `CHANNELS_UP_TO`
            frames.
        lock_timeout: seconds, see `opened`.
        progress: told up to which LSN of how many the log was read.

    Raises:
        InvalidArgumentError: `top` is negative.
        what `opened` raises.
    """
    if top < 0:
        raise InvalidArgumentError(f"top={top}: 0 or more is needed")
    with looking(path, lock_timeout) as (here, problems):
        stats = here.storage.stats()
        threads = namespaces = checkpoints = 0
        try:
            for info in here.store.threads():
                threads, namespaces, checkpoints = threads + 1, namespaces + info.namespaces, checkpoints + info.checkpoints
        except (CorruptionError, StaleIndexError) as error:
            problems.append(f"the list of threads ends early: {error}")
        breakdown = None
        if top:
            wanted = stats.frames <= CHANNELS_UP_TO if channels is None else channels
            breakdown = _breakdown(here, stats, top, problems, ChannelTally() if wanted else None, progress)
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


def _breakdown(
    here: Opened,
    stats: StorageStats,
    top: int,
    problems: list[str],
    channels: ChannelTally | None,
    progress: Progress | None,
) -> Breakdown:
    with here.storage.view() as view:
        dead = set(view.dead())
        tally = _Tally(live_threads=set(view.threads()))
    end = 1
    while True:
        with here.storage.view() as view:
            first = next_located(view._kv, end)
            if first is None or first > stats.last_lsn:
                break
            if progress is not None:
                progress(first - 1, stats.last_lsn)
            end = min(first + _STRETCH, stats.last_lsn + 1)
            for found in here.storage.frames_between(view, first, end, dead):
                if isinstance(found, CkptStoreError):
                    problems.append(str(found))
                    continue
                tally.add(view, found)
                if channels is not None:
                    try:
                        channels.add(found.frame())
                    except CorruptionError as error:
                        problems.append(str(error))
    no_thread = tally.owners.pop(None, 0)
    largest = sorted(((number, size) for number, size in tally.owners.items() if number is not None), key=lambda item: -item[1])[
        :top
    ]
    # A thread whose own record is damaged has no name to show; its bytes count among the others.
    named = [ThreadBytes(tally.names[number], size) for number, size in largest if number in tally.names]
    sizes = sorted(tally.sizes.items(), key=lambda item: -item[1])
    kinds = [KindBytes(_KINDS.get(kind, f"kind {kind}"), tally.records[kind], size) for kind, size in sizes]
    return Breakdown(
        kinds,
        stats.log_bytes - stats.dead_bytes - sum(tally.sizes.values()),
        named,
        sum(tally.owners.values()) - sum(item.bytes for item in named),
        no_thread,
        None if channels is None else channels.result(),
    )


class _Tally:
    """Sums over frames."""

    def __init__(self, live_threads: set[int]) -> None:
        self.records: dict[int, int] = defaultdict(int)
        self.sizes: dict[int, int] = defaultdict(int)
        """Records and bytes by kind."""
        self.owners: dict[int | None, int] = defaultdict(int)
        """Bytes by thread number; None for records that no live thread owns."""
        self.names: dict[int, str] = {}
        self._live_threads = live_threads
        self._owner_of_lane: dict[int, int | None] = {}

    def add(self, view: View, frame: WholeFrame) -> None:
        entries = frame.entries
        owner: int | None = None
        values = 0
        left = frame.directory - (1 if len(entries) < 16 else 3)
        last = len(entries) - 1
        for at, entry in enumerate(entries):
            kind = entry[0]
            # Packing is much of the work, and what is left of the directory is the last entry's.
            packed = left if at == last else len(pack(entry))
            left -= packed
            size = packed + entry[2]
            self.records[kind] += 1
            self.sizes[kind] += size
            if kind == _VALUE:
                values += size
            elif kind == _VOID:
                self.owners[None] += size
            else:
                owner = self._owner(view, entry)
                self.owners[owner] += size
        # Values stand in the frame of the one checkpoint or batch of writes that brought them.
        if values:
            self.owners[owner] += values

    def _owner(self, view: View, entry: Entry) -> int | None:
        """Number of the live thread that a record belongs to."""
        kind, number = entry[0], entry[HEADER]
        if kind in _LANE_FIRST:
            return self._of_lane(view, number)
        if kind == Kind.TOMBSTONE:
            return self._of_lane(view, entry[HEADER + 1]) if number == LANE_SCOPE else None
        if kind == Kind.LANE:
            return self._live(entry[HEADER + 2])
        if kind == Kind.THREAD:
            self.names[number] = entry_name(entry)
            return self._live(number)
        return None

    def _of_lane(self, view: View, lane: int) -> int | None:
        if lane not in self._owner_of_lane:
            address = view.address(lane)
            self._owner_of_lane[lane] = None if address is None else self._live(address.thread)
        return self._owner_of_lane[lane]

    def _live(self, thread: int) -> int | None:
        return thread if thread in self._live_threads else None


_KINDS: dict[int, str] = {
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
# As plain numbers: comparing with a member of an enum takes several times as long, and this is done for every record.
_VALUE, _VOID = int(Kind.VALUE), int(Kind.VOID)
_LANE_FIRST = frozenset(map(int, (Kind.CHECKPOINT, Kind.WRITES, Kind.HISTORY, Kind.COPY, Kind.HEAD)))
