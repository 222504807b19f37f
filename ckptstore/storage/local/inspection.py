"""The files of a store looked at without opening it: what verify, salvage and backup need of segments.

Nothing here trusts what a normal open trusts, nothing stops at damage, and nothing is written. Segment files are held open, so a
compaction that deletes one meanwhile takes nothing away. A *piece* is what stands at one place of a segment: a good frame, or bytes
that are not one and why. After damage the next frame is found by its mark: the header's own checksum proves it, and its LSN has to be
one that may stand there, because a user may have stored a segment inside a value.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from ckptstore.codec.records import Entry
from ckptstore.errors import (
    CorruptionError,
    FormatVersionError,
    NotAStoreError,
    StaleIndexError,
    StorageIOError,
    StoreMissingError,
)
from ckptstore.storage import Frame, View
from ckptstore.storage.catalog import Kv
from ckptstore.storage.local import format as fmt
from ckptstore.storage.local.frames import FrameCache, get_location
from ckptstore.storage.local.layout import Identity, Layout, read_identity
from ckptstore.storage.local.segment import Location
from ckptstore.storage.local.vfs import OS

_WINDOW = 1 << 20
_CACHE = 32 << 20
_SMALLEST_FRAME = fmt.FRAME_HEADER + 1


class Fault(NamedTuple):
    """Something that is wrong with the files, and where."""

    text: str
    segment: int | None = None
    offset: int | None = None
    lsn: int | None = None


class Piece(NamedTuple):
    """What stands at one place of a segment."""

    location: Location
    header: fmt.FrameHeader | None
    """None where no frame header is to be recognized."""
    entries: list[Entry] | None
    """The directory, where it is good; the bodies may be bad nevertheless."""
    frame: Frame | None
    """The frame, when all of it is good."""
    why: str
    """What is wrong; empty for a good frame."""


class Held(NamedTuple):
    """A segment file, held open."""

    number: int
    path: Path
    fd: int
    header: fmt.SegmentHeader | None
    """None when it is damaged, or belongs to another store or timeline."""

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size


class Log:
    """The segment files of one store, held open until `close`."""

    def __init__(self, root: Path) -> None:
        """Open what is there.

        Raises:
            StoreMissingError, NotAStoreError: there is nothing of a store at that path.
            FormatVersionError: it was written by a newer version.
        """
        self.layout = Layout(root)
        self.faults: list[Fault] = []
        try:
            there = root.exists()
        except OSError as error:  # a name that is too long, a folder that may not be entered
            raise StoreMissingError(f"{root}: {error.strerror}") from None
        if not there:
            raise StoreMissingError(f"there is no store at {root}")
        if not root.is_dir():
            raise NotAStoreError(f"{root} is a file; a store is a folder")
        if not self.layout.store.exists() and not any(self.layout.segments.glob("*.seg")):
            raise NotAStoreError(f"{root} holds no store")
        self.identity = self._identity()
        self.held: list[Held] = []
        self.headless: set[int] = set()
        """Segments whose header is damaged; those that belong elsewhere are not among them."""
        try:
            self._hold()
        except BaseException:
            self.close()
            raise
        self._fds = {held.number: held for held in self.held}
        replaced = {old for held in self.held if held.header is not None for old in held.header.replaces}
        self.void = replaced & self._fds.keys()
        """Segments that others replace and whose files are still there."""

    def _identity(self) -> Identity | None:
        try:
            return read_identity(OS, self.layout)
        except CorruptionError as error:
            self.faults.append(Fault(str(error)))
        except OSError as error:
            self.faults.append(Fault(f"{self.layout.store}: {error.strerror}"))
        return None

    def _hold(self) -> None:
        """Open all segment files: again when one went away meanwhile, so that a segment and its replacement are not both missed."""
        while True:
            numbers = self.layout.numbers(OS.listdir(self.layout.segments))
            try:
                for number in numbers:
                    path = self.layout.segment(number)
                    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    self.held.append(Held(number, path, fd, None))
            except FileNotFoundError:
                self._drop()
                continue
            if self.layout.numbers(OS.listdir(self.layout.segments)) == numbers:
                break
            self._drop()
        self.held = [held._replace(header=self._header(held)) for held in self.held]

    def _header(self, held: Held) -> fmt.SegmentHeader | None:
        try:
            length = fmt.segment_header_length(os.pread(held.fd, 16, 0))
            header = fmt.decode_segment_header(os.pread(held.fd, length, 0))
        except FormatVersionError as error:
            raise FormatVersionError(f"{held.path}: {error}") from None
        except CorruptionError as error:
            self.faults.append(Fault(f"{held.path}: {error}", held.number, 0))
            self.headless.add(held.number)
            return None
        why = ""
        if header.segment != held.number:
            why = f"it says that it is segment {header.segment}: it was renamed"
        elif self.identity is not None and header.uuid != self.identity.uuid:
            why = f"it belongs to store {header.uuid.hex()}"
        elif self.identity is not None and header.timeline not in self.identity.timelines:
            why = f"it was written on timeline {header.timeline.hex()}, which this store never had"
        if why:
            self.faults.append(Fault(f"{held.path}: {why}", held.number, 0))
            return None
        return header

    def close(self) -> None:
        """Give the files up."""
        self._drop()

    def _drop(self) -> None:
        for held in self.held:
            os.close(held.fd)
        self.held = []

    # -- reading --------------------------------------------------------------------------------------------------------

    def in_order(self, void: frozenset[int] | set[int]) -> list[Held]:
        """Segments with a good header by base LSN, without those in `void`."""
        found = [(held.header.base_lsn, held) for held in self.held if held.header is not None and held.number not in void]
        return [held for _, held in sorted(found)]

    def found_frames(self, void: frozenset[int] | set[int]) -> list[tuple[int, Held]]:
        """Segments without a good header in which frames are found all the same, with the LSN of the first."""
        found = []
        for held in self.held:
            if held.number in self.headless - void:
                first = next((piece.frame.lsn for piece in self.pieces(held) if piece.frame is not None), None)
                if first is not None:
                    found.append((first, held))
        return found

    def pieces(self, held: Held, stop: int | None = None) -> Iterator[Piece]:
        """Everything in a segment, in file order. Zeros at the end are nothing.

        Args:
            stop: offset at which the segment ends as far as readers are concerned; its size when None.
        """
        header = held.header
        window = _Window(held, held.size if stop is None else min(stop, held.size))
        offset = 0 if header is None else header.length
        chain = None if header is None else header.salt
        lsn = None if header is None else header.base_lsn
        if header is None:
            # What is left of the segment's own header is no frame.
            offset = self._next(window, 0, None, None)
        while offset < window.end:
            found = fmt.decode_frame_header(window.at(offset, fmt.FRAME_HEADER))
            if found is None or offset + found.size > window.end:
                following = self._next(window, offset + 1, lsn, header)
                rest = window.at(offset, following - offset).rstrip(b"\0") if following == window.end else b"x"
                if rest:
                    yield Piece(Location(held.number, offset, following - offset), None, None, None, "no valid frame header")
                offset, chain = following, None
                continue
            yield self._piece(held, window, offset, found, chain)
            offset, chain, lsn = offset + found.size, found.crc, found.lsn + 1

    def _piece(self, held: Held, window: _Window, offset: int, header: fmt.FrameHeader, chain: int | None) -> Piece:
        location = Location(held.number, offset, header.size)
        data = window.at(offset, header.size)
        middle = fmt.FRAME_HEADER + header.directory
        try:
            entries = fmt.decode_directory(header, data[fmt.FRAME_HEADER : middle])
        except CorruptionError as error:
            return Piece(location, header, None, None, str(error))
        if crc32(data[middle:]) != header.bodies_crc:
            return Piece(location, header, entries, None, "the bodies do not match their checksum")
        if chain is not None and header.chain != chain:
            return Piece(location, header, entries, None, "the frame is good, but does not follow the one before it")
        return Piece(location, header, entries, Frame(header.lsn, entries, data[middle:]), "")

    def _next(self, window: _Window, offset: int, lsn: int | None, segment: fmt.SegmentHeader | None) -> int:
        """Offset of the next frame whose header is good and whose LSN may stand there; the end where there is none."""
        start = offset
        while (at := window.find(fmt.MARK, offset)) >= 0:
            header = fmt.decode_frame_header(window.at(at, fmt.FRAME_HEADER))
            if header is not None and at + header.size <= window.end and header.durable < header.lsn:
                # No more LSNs than frames that fit were skipped, and a replacing segment keeps to its range.
                most = (at - start) // _SMALLEST_FRAME + 1
                plain = lsn is None or lsn <= header.lsn <= lsn + most
                if segment is not None and segment.replaces:
                    plain = (lsn or 0) <= header.lsn < max(segment.end_lsn, segment.base_lsn) or plain
                if plain:
                    return at
            offset = at + 1
        return window.end

    def read(self, location: Location) -> tuple[fmt.FrameHeader, Frame]:
        """One frame, verified.

        Raises:
            CorruptionError: names segment and offset.
        """
        held = self._fds.get(location.segment)
        if held is None:
            raise CorruptionError(f"{self.layout.segment(location.segment)} is missing")
        try:
            return fmt.decode_frame(_pread(held, location.length, location.offset))
        except CorruptionError as error:
            raise CorruptionError(f"segment {location.segment}, offset {location.offset}: {error}") from None

    def view(self, kv: Kv) -> HeldView:
        """Read the frames that an index names."""
        return HeldView(kv, self)


class HeldView(View):
    """An index over held segments."""

    __slots__ = ("_cache", "_log")

    def __init__(self, kv: Kv, log: Log) -> None:
        super().__init__(kv)
        self._log = log
        self._cache = FrameCache(_CACHE)

    @property
    def kv(self) -> Kv:
        """The map itself, for comparing indexes."""
        return self._kv

    def frame(self, lsn: int) -> Frame:
        frame = self._cache.get(lsn, 0)
        if frame is None:
            location = get_location(self._kv, lsn)
            if location is None:
                raise CorruptionError(f"there is no frame with LSN {lsn}")
            header, frame = self._log.read(location)
            if header.lsn != lsn:
                raise StaleIndexError(
                    f"the index says that LSN {lsn} is at segment {location.segment}, offset {location.offset}, but LSN {header.lsn} "
                    "is there"
                )
            self._cache.put(frame, 0)
        return frame


class _Window:
    """Bytes of a file by offset, up to an end, read in large steps."""

    def __init__(self, held: Held, end: int) -> None:
        self._held = held
        self.end = end
        self._start = 0
        self._data = b""

    def at(self, offset: int, length: int) -> bytes:
        length = max(0, min(length, self.end - offset))
        if offset < self._start or offset + length > self._start + len(self._data):
            self._start, self._data = offset, _pread(self._held, min(max(length, _WINDOW), self.end - offset), offset)
        return self._data[offset - self._start : offset - self._start + length]

    def find(self, mark: bytes, offset: int) -> int:
        """Where `mark` stands next, or -1."""
        while offset < self.end:
            data = self.at(offset, _WINDOW)
            found = data.find(mark)
            if found >= 0:
                return offset + found
            if len(data) < len(mark):
                return -1
            offset += len(data) - len(mark) + 1
        return -1


def _pread(held: Held, length: int, offset: int) -> bytes:
    try:
        return OS.pread(held.fd, length, offset)
    except OSError as error:
        raise StorageIOError(f"segment {held.number}, offset {offset}: {error}: the disk or its driver failed") from error
