"""Where the bytes of a new value go: into a table, to a record that holds them already, or into a new record, whole or patched.

A large value tends to come again in the same lane: under another channel, inside the input, as a write, or re-sent each turn. So each
lane's newest large values are remembered in this process, besides what the checkpoint at hand leads to. What is remembered may be
removed by any process in between: `Spot` says what was true when the places were chosen, and is compared again under the commit lock.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from zlib import crc32

from ckptstore.codec.records import Encoded, Kind, writes_refs
from ckptstore.forks import own_locks
from ckptstore.lineage.history import folded_writes, nearest_value
from ckptstore.lineage.values import Choice, Values, facts_of
from ckptstore.model import LaneName, Ref, Slot, Typed
from ckptstore.storage import View
from ckptstore.storage.catalog import CheckpointEntry

INLINE_VALUE = 32
"""A value this small stands in the checkpoint's table itself: a reference and a directory entry would cost as much."""
INLINE_WRITE = 1024
"""A write is read once or twice and rarely shared: up to this size it stands in its batch."""

# Values from this size on are compared with those of other channels and with large writes nearby.
_COMPARED = 512
_NEARBY_BATCHES = 8
_RECENT = 6
_LANES = 256
# Two calls of one lane that carry values this large take turns, so that the second finds what the first stored: the input and the
# write that repeats it reach the saver at the same time.
_TURN_FROM = 4096
_TURNS = 16


class Spot(NamedTuple):
    """A place in a lane as it was seen: values chosen there are good as long as nothing was removed from the lane, nor compacted.

    Compaction takes away what is only a base of something live, after basing that on something else.
    """

    lane: LaneName
    number: int | None
    removals: int
    compactions: int
    at: CheckpointEntry | None
    """The parent of a put, the target of a batch of writes."""
    table: Mapping[str, Slot]

    def holds(self, view: View) -> bool:
        """Whether that is still so; asked under the commit lock."""
        if self.number is None:
            return True
        return (
            view.lane(self.lane.thread, self.lane.ns) == self.number
            and view.state(self.number).removals == self.removals
            and view.compactions() == self.compactions
        )


class Placer:
    """Chooses places, with a bounded memory of recent large values."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._recent: OrderedDict[tuple[LaneName, int, int], deque[tuple[str | None, Ref]]] = OrderedDict()
        own_locks(self)

    def new_locks(self) -> None:
        self._lock = threading.Lock()
        self._turns = [threading.Lock() for _ in range(_TURNS)]

    @contextmanager
    def turn(self, lane: LaneName, sizes: Iterable[int]) -> Iterator[None]:
        """Let calls with large values of one lane go one after the other, from choosing to committing."""
        if max(sizes, default=0) < _TURN_FROM:
            yield
            return
        with self._turns[hash(lane) % _TURNS]:
            yield

    def spot(self, view: View, lane: LaneName, id: str | None, table: Mapping[str, Slot]) -> Spot:
        number = view.lane(lane.thread, lane.ns)
        if number is None:
            return Spot(lane, None, 0, 0, None, table)
        known = None if id is None else view.number(number, id)
        at = None if known is None else view.live_checkpoint(number, known)
        return Spot(lane, number, view.state(number).removals, view.compactions(), at, table)

    def place(self, view: View, spot: Spot, channel: str | None, typed: Typed, same: Sequence[Ref], fresh: list[Encoded]) -> Ref:
        """A record for a value: one that is there, or a new one appended to `fresh`, whose reference has LSN 0.

        Args:
            channel: None for a write.
            same: records that may hold exactly these bytes.
        """
        raw = typed[1]
        crc = crc32(raw)
        others = self._others(view, spot, channel, raw) if len(raw) >= _COMPARED else []
        stored = self._values.stored_already(view, typed, crc, (*same, *others))
        if stored is not None:
            return stored
        before = None if channel is None else spot.table.get(channel)
        near = before.value if before is not None and isinstance(before.value, Ref) else None
        folds: list[Ref] = []
        if channel is not None and before is not None and before.value is None and spot.at is not None and len(raw) >= _COMPARED:
            # A snapshot of a channel that is usually rebuilt. Forced by a fork, it repeats the writes on its path.
            assert spot.number is not None
            near = nearest_value(view, spot.number, spot.at, channel)
            if view.children(spot.number, spot.at.number):
                folds = folded_writes(view, spot.number, spot.at, channel)
        fresh.append(self._values.encode(view, typed, crc, Choice(near, others, folds)))
        return Ref(0, len(fresh) - 1)

    def _others(self, view: View, spot: Spot, channel: str | None, raw: bytes) -> list[Ref]:
        """Values of this place that may hold a good part of these bytes, the closest in size first."""
        if spot.number is None:
            return []
        refs = {slot.value for name, slot in spot.table.items() if name != channel and isinstance(slot.value, Ref)}
        if spot.at is not None:
            for batch in view.writes(spot.number, spot.at.number)[-_NEARBY_BATCHES:]:
                refs.update(writes_refs(batch.ref.lsn, view.frame(batch.ref.lsn).entry(batch.ref, Kind.WRITES)))
        with self._lock:
            recent = self._recent.get((spot.lane, spot.number, spot.removals), ())
            # A channel's own earlier values are the business of its chain: based on each other they would use up its depth.
            refs.update(ref for name, ref in recent if channel is None or name != channel)
        sized = [(abs(facts_of(view, ref).length - len(raw)), ref) for ref in refs]
        return [ref for difference, ref in sorted(sized) if difference <= len(raw)]

    def remember(self, view: View, spot: Spot, lsn: int, raws: Iterable[tuple[int, str | None, bytes]]) -> None:
        """Keep the raw bytes of values just stored, and the places of large ones.

        Args:
            raws: (ordinal, channel or None for a write, raw bytes) in the frame of `lsn`.
        """
        number = spot.number if spot.number is not None else view.lane(spot.lane.thread, spot.lane.ns)
        for ordinal, channel, raw in raws:
            ref = Ref(lsn, ordinal)
            self._values.remember(ref, raw)
            if len(raw) >= INLINE_WRITE and number is not None:
                key = (spot.lane, number, spot.removals)
                with self._lock:
                    self._recent.setdefault(key, deque(maxlen=_RECENT)).append((channel, ref))
                    self._recent.move_to_end(key)
                    if len(self._recent) > _LANES:
                        self._recent.popitem(last=False)
