"""Many frames at once, for whoever looks at all of a store: neighbours in a segment are read with one call.

Each frame is verified as if it was read alone. One that does not check out is read again alone: that finds what was moved meanwhile, and
says what is wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple
from zlib import crc32

from ckptstore.codec.records import Entry, pack
from ckptstore.errors import CkptStoreError, FrameGoneError
from ckptstore.storage import Frame, View
from ckptstore.storage.catalog import Kv
from ckptstore.storage.local import format as fmt
from ckptstore.storage.local.frames import Place, locations
from ckptstore.storage.local.segment import Segments

_LONGEST = 1 << 20
_NEAR = 4096
"""Bytes between two frames that are rather read than skipped."""
_DIRECTORY = 512  # most directories fit


class WholeFrame(NamedTuple):
    """A verified frame."""

    lsn: int
    entries: list[Entry]
    directory: int
    """Length of its directory as it is stored."""
    bodies: memoryview

    def frame(self) -> Frame:
        return Frame(self.lsn, self.entries, bytes(self.bodies))


def read_directories(segments: Segments, kv: Kv, lsns: Collection[int]) -> Iterator[tuple[int, list[Entry] | None]]:
    """(LSN, directory) of these frames; None for one that the quick way does not find good, or not at all."""
    wanted = [(segment, offset, min(length, _DIRECTORY), lsn) for segment, offset, length, lsn in locations(kv, lsns)]
    if len(wanted) < len(lsns):
        yield from ((lsn, None) for lsn in set(lsns) - {place[3] for place in wanted})
    for data, at, _, lsn in _pieces(segments, wanted):
        directory = fmt.directory_at(data, at, lsn)
        yield lsn, None if directory is None else directory[0]


def read_frames(
    segments: Segments, view: View, first: int, end: int, without: Collection[int]
) -> Iterator[WholeFrame | CkptStoreError]:
    """The frames from LSN `first` to before `end`, or why one of them cannot be read, in the order of the log.

    Args:
        without: LSNs of frames to leave out. LSNs that the index does not know are no sign of damage, since compaction drops frames.
    """
    wanted = [place for place in locations(view._kv, range(first, end)) if place[3] not in without]
    for data, at, length, lsn in _pieces(segments, wanted):
        directory = fmt.directory_at(data, at, lsn)
        if directory is not None:
            entries, stored, size, crc = directory
            bodies = data[at + fmt.FRAME_HEADER + stored : at + length]
            if len(bodies) == size and crc32(bodies) == crc:
                yield WholeFrame(lsn, entries, stored, bodies)
                continue
        try:
            frame = view.frame(lsn)
        except FrameGoneError:
            continue
        except CkptStoreError as error:
            yield error
        else:
            bodies = memoryview(b"".join([frame.stored(ordinal) for ordinal in range(len(frame.entries))]))
            yield WholeFrame(lsn, frame.entries, len(pack(frame.entries)), bodies)


def _pieces(segments: Segments, wanted: list[Place]) -> Iterator[tuple[memoryview, int, int, int]]:
    """(bytes, where in them a wanted piece begins, its length, its LSN), in the order of the log."""
    wanted.sort()
    at = 0
    while at < len(wanted):
        segment, begin, length, _ = wanted[at]
        stop, end = at + 1, begin + length
        while stop < len(wanted):
            other, offset, length, _ = wanted[stop]
            if other != segment or offset > end + _NEAR or offset - begin > _LONGEST:
                break
            end = offset + length
            stop += 1
        try:
            data = memoryview(segments.vfs.pread(segments.fd(segment), end - begin, begin))
        except (OSError, CkptStoreError):
            data = memoryview(b"")  # gone, or not to be read: each of them is then read alone
        for _, offset, length, lsn in wanted[at:stop]:
            yield data, offset - begin, length, lsn
        at = stop
