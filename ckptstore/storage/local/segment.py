"""Segments as files: create, read a frame, scan from end to end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ckptstore.codec.records import Entry
from ckptstore.errors import CorruptionError, ForeignSegmentError, FormatVersionError, StorageIOError, TimelineError
from ckptstore.storage import Frame
from ckptstore.storage.local import format as fmt
from ckptstore.storage.local.layout import Identity, Layout, now_ms
from ckptstore.storage.local.vfs import Vfs

_BLOCK = 1 << 20
# Seconds after which no read of a frame can still be under way.
_READ_OVER = 30.0
_DIRECTORY = 512  # most directories fit: one read


class SegmentGoneError(CorruptionError):
    """Internal: a segment file is not there: compacted away since the index was read, or lost."""


class Location(NamedTuple):
    """Where a frame stands."""

    segment: int
    offset: int
    length: int


class Found(NamedTuple):
    """A good frame met by a scan."""

    location: Location
    header: fmt.FrameHeader
    frame: Frame


class Segments:
    """The segment files of one store, with a cache of open descriptors (one a segment, closed with the store)."""

    def __init__(self, vfs: Vfs, layout: Layout, identity: Identity) -> None:
        self.vfs = vfs
        self.layout = layout
        self._identity = identity
        self._fds: dict[int, int] = {}
        self._retired: list[tuple[float, int]] = []
        self._lock = threading.Lock()

    def numbers(self) -> list[int]:
        """Ids of all segment files, ascending."""
        return self.layout.numbers(self.vfs.listdir(self.layout.segments))

    def fd(self, segment: int) -> int:
        """A descriptor for reading and, where permissions allow, writing."""
        fd = self._fds.get(segment)
        if fd is not None:
            return fd
        with self._lock:
            if segment not in self._fds:
                path = self.layout.segment(segment)
                try:
                    self._fds[segment] = self.vfs.open(path)
                except PermissionError:
                    self._fds[segment] = self.vfs.open(path, read_only=True)
                except OSError as error:
                    if error.errno != 30:  # EROFS
                        raise
                    self._fds[segment] = self.vfs.open(path, read_only=True)
                self._retire_replaced(segment)
            return self._fds[segment]

    def _retire_replaced(self, segment: int) -> None:
        """A segment seen for the first time may replace others: give their space back, as far as this process holds it."""
        start = self.vfs.pread(self._fds[segment], 16, 0)
        try:
            length = fmt.segment_header_length(start)
            header = fmt.decode_segment_header(self.vfs.pread(self._fds[segment], length, 0))
        except (CorruptionError, FormatVersionError):
            return  # said when the segment is opened or read
        if header.segment == segment:  # one that was renamed may list its own number; said when it is opened
            self._bury(header.replaces)

    def retire(self, numbers: Iterable[int]) -> None:
        """Stop using segments that were replaced."""
        with self._lock:
            self._bury(numbers)

    def _bury(self, numbers: Iterable[int]) -> None:
        # A read may be under way on the descriptor: it is closed when that must be over.
        now = time.monotonic()
        self._retired += [(now, fd) for number in numbers if (fd := self._fds.pop(number, None)) is not None]
        over = [fd for since, fd in self._retired if now - since > _READ_OVER]
        self._retired = [item for item in self._retired if item[1] not in over]
        for fd in over:
            self.vfs.close(fd)

    def next_number(self) -> int:
        """An id that no segment has, those being made included. Asked under the commit lock."""
        names = self.vfs.listdir(self.layout.segments)
        return max(self.layout.numbers(name.split(".")[0] + ".seg" for name in names), default=0) + 1

    def create(
        self,
        number: int,
        base_lsn: int,
        replaces: tuple[int, ...] = (),
        end_lsn: int = 0,
        seal: Callable[[int], tuple[bytes, int]] | None = None,
    ) -> tuple[fmt.SegmentHeader, int, int]:
        """Make a segment appear at once and durably.

        Header and first frames are fsynced under a temporary name before the rename, and the folder after it: a crash leaves a
        file without the `.seg` suffix or a whole segment. A segment without a whole header is therefore damage.

        Args:
            replaces: ids of the segments it replaces, transitively: the rename is the moment they stop to count.
            end_lsn: of a segment that replaces others: the LSN after the last that it covers.
            seal: given the salt, returns the frames to begin with and their last header CRC.

        Returns:
            The header, the chain value for the next frame, and the size in bytes.
        """
        # A file of this number may stand there, begun in vain; the rename replaces it, and a descriptor would still lead to it.
        self.forget(number)
        header = self.new_header(number, base_lsn, end_lsn, replaces)
        frames, chain = (b"", header.salt) if seal is None else seal(header.salt)
        data = fmt.encode_segment_header(header) + frames
        self.vfs.point("segment:before-create")
        self.vfs.write_file(self.layout.segment(number), data)
        self.vfs.point("segment:created")
        return header, chain, len(data)

    def new_header(self, number: int, base_lsn: int, end_lsn: int, replaces: tuple[int, ...]) -> fmt.SegmentHeader:
        """A header of this store and its present timeline, with a salt of its own."""
        salt = int.from_bytes(os.urandom(4), "little")
        uuid, timeline = self._identity.uuid, self._identity.timeline
        return fmt.SegmentHeader(number, uuid, timeline, base_lsn, end_lsn, now_ms(), salt, replaces)

    def header(self, segment: int) -> fmt.SegmentHeader:
        """The checked header of a segment.

        Raises:
            CorruptionError, FormatVersionError, ForeignSegmentError, TimelineError
        """
        path = self.layout.segment(segment)
        fd = self.fd(segment)
        try:
            length = fmt.segment_header_length(self.vfs.pread(fd, 16, 0))
            header = fmt.decode_segment_header(self.vfs.pread(fd, length, 0))
        except CorruptionError as error:
            raise CorruptionError(
                f"{path}: {error}. A segment is created with its header on disk, so this is damage, not an empty store: "
                "restore a backup, or run `ckpt salvage`"
            ) from None
        except FormatVersionError as error:
            raise FormatVersionError(f"{path}: {error}") from None
        if header.uuid != self._identity.uuid:
            raise ForeignSegmentError(
                f"{path} belongs to store {header.uuid.hex()}, this is {self._identity.uuid.hex()}: move the file away"
            )
        if header.timeline not in self._identity.timelines:
            raise TimelineError(
                f"{path} was written on timeline {header.timeline.hex()}, which this store never had: it comes from another "
                "copy of this store, and two copies cannot be merged by moving segments. Move the file away"
            )
        if header.segment != segment:
            raise ForeignSegmentError(f"{path} says it is segment {header.segment}: it was renamed")
        return header

    def read(self, location: Location) -> tuple[fmt.FrameHeader, Frame]:
        """One frame, verified.

        Raises:
            CorruptionError: names segment, offset and what does not match.
        """
        data = self._pread(location, location.length)
        try:
            return fmt.decode_frame(data)
        except CorruptionError as error:
            raise self._damaged(location, error) from None

    def read_directory(self, location: Location) -> tuple[fmt.FrameHeader, list[Entry]]:
        """Header and directory of one frame, verified; its bodies are neither read nor checked.

        Raises:
            CorruptionError: names segment, offset and what does not match.
        """
        data = self._pread(location, min(location.length, _DIRECTORY))
        try:
            header = fmt.decode_frame_header(data)
            if header is None:
                raise CorruptionError("the frame header does not match its checksum")
            end = fmt.FRAME_HEADER + header.directory
            if end > len(data):
                data = self._pread(location, min(location.length, end))
            return header, fmt.decode_directory(header, data[fmt.FRAME_HEADER : end])
        except CorruptionError as error:
            raise self._damaged(location, error) from None

    def _pread(self, location: Location, length: int) -> bytes:
        try:
            return self.vfs.pread(self.fd(location.segment), length, location.offset)
        except FileNotFoundError:
            raise SegmentGoneError(f"{self.layout.segment(location.segment)} is missing: restore it or a backup") from None
        except OSError as error:
            raise StorageIOError(
                f"segment {location.segment}, offset {location.offset}: {error}: the disk or its driver failed; nothing was changed"
            ) from error

    @staticmethod
    def _damaged(location: Location, error: CorruptionError) -> CorruptionError:
        return CorruptionError(
            f"segment {location.segment}, offset {location.offset}: {error}. The bytes on disk are damaged: other records stay "
            "readable; run `ckpt verify`"
        )

    def scan(self, segment: int, offset: int, chain: int) -> Iterator[Found]:
        """Good frames in order, from a frame boundary; ends silently at the first bytes that are not the next frame."""
        fd = self.fd(segment)
        window, start = b"", offset
        while True:
            if offset + fmt.FRAME_HEADER > start + len(window):
                window, start = self.vfs.pread(fd, _BLOCK, offset), offset
            at = offset - start
            header = fmt.decode_frame_header(window[at : at + fmt.FRAME_HEADER])
            if header is None or header.chain != chain:
                return
            if offset + header.size > start + len(window):
                if offset + header.size > self.vfs.size(fd):
                    return
                window, start, at = self.vfs.pread(fd, max(header.size, _BLOCK), offset), offset, 0
            data = window[at : at + header.size]
            if not fmt.frame_is_whole(header, data):
                return
            yield Found(Location(segment, offset, header.size), header, fmt.decode_frame(data)[1])
            offset += header.size
            chain = header.crc

    def forget(self, segment: int) -> None:
        """Close the descriptor of a segment that nobody reads: one about to be deleted by whoever is alone, or begun in vain."""
        fd = self._fds.pop(segment, None)
        if fd is not None:
            self.vfs.close(fd)

    def close(self) -> None:
        for fd in (*self._fds.values(), *(fd for _, fd in self._retired)):
            self.vfs.close(fd)
        self._fds.clear()
        self._retired.clear()
