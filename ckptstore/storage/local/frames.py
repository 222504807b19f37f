"""The index keys that belong to the log: where each frame stands, where the log ends; and the cache of verified frames."""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator

from ckptstore.codec.shapes import MOST_LSN
from ckptstore.storage import Frame
from ckptstore.storage.catalog import Kv
from ckptstore.storage.local.recovery import End
from ckptstore.storage.local.segment import Location

_END = struct.Struct(">QQQI")
_LOCATION = struct.Struct(">IQI")


def _frame_key(lsn: int) -> bytes:
    return b"F" + lsn.to_bytes(6, "big")


def put_location(kv: Kv, lsn: int, location: Location) -> None:
    kv.put(_frame_key(lsn), _LOCATION.pack(*location))


def get_location(kv: Kv, lsn: int) -> Location | None:
    value = kv.get(_frame_key(lsn))
    return None if value is None else Location(*_LOCATION.unpack(value))


Place = tuple[int, int, int, int]
"""Segment, offset, length and LSN of a frame: plain, because there are many."""


def locations(kv: Kv, lsns: Collection[int]) -> list[Place]:
    """Where those of these frames stand that the index knows."""
    if not lsns:
        return []
    first, last = min(lsns), max(lsns)
    if last - first < 4 * len(lsns):
        return [
            (*_LOCATION.unpack(value), lsn)
            for key, value in kv.between(_frame_key(first), _frame_key(last + 1))
            if (lsn := int.from_bytes(key[1:], "big")) in lsns
        ]
    return [(*_LOCATION.unpack(value), lsn) for lsn in lsns if (value := kv.get(_frame_key(lsn))) is not None]


def located(kv: Kv, first: int, count: int) -> Iterator[int]:
    """LSNs from `first` on, `count` numbers wide, of frames that are there; the highest first."""
    for key, _ in kv.scan(b"F", before=_frame_key(min(first + count, MOST_LSN)), reverse=True):
        lsn = int.from_bytes(key[1:], "big")
        if lsn < first:
            return
        yield lsn


def next_located(kv: Kv, first: int) -> int | None:
    """The lowest LSN from `first` on of a frame that is there."""
    for key, _ in kv.between(_frame_key(first), b"G"):
        return int.from_bytes(key[1:], "big")
    return None


def put_end(kv: Kv, end: End) -> None:
    kv.put(b"H", _END.pack(*end))


def get_end(kv: Kv) -> End | None:
    value = kv.get(b"H")
    return None if value is None else End(*_END.unpack(value))


def publish(kv: Kv, segment: int) -> None:
    """Mark a segment that replaces others as one that the index points into."""
    kv.put(b"z" + segment.to_bytes(8, "big"), b"")


def is_published(kv: Kv, segment: int) -> bool:
    return kv.get(b"z" + segment.to_bytes(8, "big")) is not None


def drop_location(kv: Kv, lsn: int) -> None:
    kv.delete(_frame_key(lsn))


class FrameCache:
    """Verified frames by LSN, least recently used out first, bounded in bytes. Frames are immutable."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._frames: OrderedDict[int, Frame] = OrderedDict()
        self._bytes = 0
        self._generation = 0
        self._lock = threading.Lock()

    def of_generation(self, compactions: int) -> None:
        """Forget everything if the log was compacted since: what frames say of their bases may have changed."""
        if compactions != self._generation:
            with self._lock:
                self._generation = compactions
                self._frames.clear()
                self._bytes = 0

    def get(self, lsn: int, generation: int) -> Frame | None:
        """A frame that is kept.

        Args:
            generation: of the view that asks; one from before a compaction may need records that are void since.
        """
        with self._lock:
            frame = self._frames.get(lsn) if generation == self._generation else None
            if frame is not None:
                self._frames.move_to_end(lsn)
            return frame

    def put(self, frame: Frame, generation: int) -> None:
        """Keep a frame.

        Args:
            generation: of the view that read it; one from before a compaction is not kept.
        """
        if frame.size > self._limit:
            return
        with self._lock:
            if generation == self._generation and frame.lsn not in self._frames:
                self._frames[frame.lsn] = frame
                self._bytes += frame.size
            while self._bytes > self._limit:
                _, old = self._frames.popitem(last=False)
                self._bytes -= old.size
