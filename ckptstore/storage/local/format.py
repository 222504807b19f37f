"""The on-disk format: every byte of a segment, in one place. docs/format.md says the same in words.

All integers are little-endian. A segment is a header followed by frames, end to end, without padding.

Segment header, 84 bytes and 8 for each replaced segment:

    0   8  magic 89 43 4B 50 54 0D 0A 1A: a high bit, CR LF and ^Z, so that a text-mode copy fails at once
    8   2  format major          a reader refuses a major it does not know
    10  2  format minor
    12  4  header length, in bytes
    16  8  segment id            from 1, never reused
    24 16  store uuid
    40  8  timeline              see docs/format.md, 'Timelines'
    48  8  base LSN              LSN of the first frame
    56  8  end LSN               of a segment that replaces others: the LSN after the last that it covers; else 0
    64  8  created, unix ms
    72  4  salt                  seeds the chain of header checksums
    76  4  number of replaced segments
    80 8*n ids of the segments that this one replaces
    .   4  CRC-32 of all bytes before

Frame, 44 bytes, a directory and bodies:

    0   3  sync mark C4 4B 46    lets salvage find frames again; never trusted alone
    3   1  flags                 0 in format 1
    4   4  header CRC-32         of bytes 0 to 3, then 8 to 43
    8   4  chain                 header CRC of the frame before in this segment; the salt in the first
    12  4  directory length
    16  4  directory CRC-32
    20  4  length of the bodies
    24  4  CRC-32 of the bodies
    28  8  LSN                   one more than the frame before
    36  8  durable LSN           highest LSN known to be fsynced when this frame was written
    44     directory (msgpack, codec/records.py), then the bodies of its records in the same order

The chain makes a reordered, repeated or left-over frame invalid even when its own checksum holds. The header checksum proves the
lengths before they are used. Since a frame carries the chain value it was sealed with, a single frame can be checked on its own, and
since directory and bodies have checksums of their own, keys and references can be read without the values.
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from zlib import crc32

from ckptstore.codec.records import Entry, unpack
from ckptstore.codec.shapes import MOST_LSN, check_entries
from ckptstore.errors import CorruptionError, FormatVersionError
from ckptstore.storage import Frame

MAJOR = 1
MINOR = 0
MOST_SEGMENT = (1 << 31) - 1
MAGIC = b"\x89CKPT\r\n\x1a"

_SEGMENT = struct.Struct("<8sHHIQ16s8sQQQII")
_CRC = struct.Struct("<I")

MARK = b"\xc4KF"
_FRAME = struct.Struct("<3sB6IQQ")
_FRAME_TAIL = struct.Struct("<5IQQ")
FRAME_HEADER = 44
_PREFIX_CRC = crc32(MARK + b"\0")


class SegmentHeader(NamedTuple):
    """The decoded header of a segment."""

    segment: int
    uuid: bytes
    timeline: bytes
    base_lsn: int
    end_lsn: int
    created_ms: int
    salt: int
    replaces: tuple[int, ...]

    @property
    def length(self) -> int:
        return _SEGMENT.size + 8 * len(self.replaces) + _CRC.size


def encode_segment_header(header: SegmentHeader) -> bytes:
    fixed = _SEGMENT.pack(
        MAGIC,
        MAJOR,
        MINOR,
        header.length,
        header.segment,
        header.uuid,
        header.timeline,
        header.base_lsn,
        header.end_lsn,
        header.created_ms,
        header.salt,
        len(header.replaces),
    )
    data = fixed + struct.pack(f"<{len(header.replaces)}Q", *header.replaces)
    return data + _CRC.pack(crc32(data))


def segment_header_length(start: bytes) -> int:
    """Length of the header that begins with these bytes (at least 16 of them).

    Raises:
        CorruptionError: not a segment at all.
        FormatVersionError: a segment of a newer major format.
    """
    if len(start) < 16 or start[:8] != MAGIC:
        raise CorruptionError("no segment header")
    major, _minor, length = struct.unpack_from("<HHI", start, 8)
    if major != MAJOR:
        raise FormatVersionError(f"format {major}, this version reads format {MAJOR}: upgrade ckptstore")
    if not _SEGMENT.size + _CRC.size <= length <= 1 << 20:
        raise CorruptionError(f"a segment header of {length} bytes")
    return int(length)


def decode_segment_header(data: bytes) -> SegmentHeader:
    """Decode exactly the bytes of a segment header.

    Raises:
        CorruptionError, FormatVersionError
    """
    length = segment_header_length(data)
    if len(data) < length or crc32(data[: length - 4]) != _CRC.unpack_from(data, length - 4)[0]:
        raise CorruptionError("the segment header does not match its checksum")
    _, _, _, _, segment, uuid, timeline, base, end, created, salt, replaced = _SEGMENT.unpack_from(data)
    if length != _SEGMENT.size + 8 * replaced + _CRC.size:
        raise CorruptionError("the segment header has the wrong length")
    replaces = struct.unpack_from(f"<{replaced}Q", data, _SEGMENT.size)
    if not 0 < segment <= MOST_SEGMENT or base > MOST_LSN or end > MOST_LSN or max(replaces, default=0) >= segment:
        raise CorruptionError("the segment header names segments or LSNs that cannot be")
    return SegmentHeader(segment, uuid, timeline, base, end, created, salt, replaces)


class FrameHeader(NamedTuple):
    """The decoded, self-consistent header of a frame."""

    crc: int
    chain: int
    directory: int
    directory_crc: int
    bodies: int
    bodies_crc: int
    lsn: int
    durable: int

    @property
    def size(self) -> int:
        """Bytes of the whole frame."""
        return FRAME_HEADER + self.directory + self.bodies


def encode_frame(chain: int, lsn: int, durable: int, directory: bytes, bodies: bytes) -> tuple[bytes, int]:
    """Seal a frame.

    Args:
        chain: header CRC of the frame before in this segment, or the segment's salt.

    Returns:
        The frame's bytes and its header CRC, which is the chain value of the next one.
    """
    tail = _FRAME_TAIL.pack(chain, len(directory), crc32(directory), len(bodies), crc32(bodies), lsn, durable)
    crc = crc32(tail, _PREFIX_CRC)
    return b"".join((MARK, b"\0", _CRC.pack(crc), tail, directory, bodies)), crc


def decode_frame_header(data: bytes) -> FrameHeader | None:
    """The frame header at the start of `data`, or None where these bytes are not one."""
    if len(data) < FRAME_HEADER or data[:4] != MARK + b"\0":
        return None
    _, _, crc, *fields = _FRAME.unpack_from(data)
    if crc32(data[8:FRAME_HEADER], _PREFIX_CRC) != crc:
        return None
    return FrameHeader(crc, *fields)


def frame_is_whole(header: FrameHeader, data: bytes) -> bool:
    """Whether directory and bodies stand behind the header in `data`, and match their checksums."""
    middle = FRAME_HEADER + header.directory
    return (
        len(data) == header.size
        and crc32(data[FRAME_HEADER:middle]) == header.directory_crc
        and crc32(data[middle:]) == header.bodies_crc
    )


def decode_directory(header: FrameHeader, directory: bytes) -> list[Entry]:
    """The directory of a frame, verified.

    Raises:
        CorruptionError: it does not match its checksum, or is no directory: another program wrote it.
    """
    if len(directory) != header.directory or crc32(directory) != header.directory_crc:
        raise CorruptionError(f"the directory of LSN {header.lsn} does not match its checksum")
    try:
        entries = unpack(directory) if directory else []
        check_entries(entries)
        bodies = sum(entry[2] for entry in entries)
    except (CorruptionError, ValueError) as error:
        raise CorruptionError(f"the directory of LSN {header.lsn} does not decode: {error}") from None
    if bodies != header.bodies:
        raise CorruptionError(f"the directory of LSN {header.lsn} does not add up to its bodies")
    return list(entries)


def directory_at(data: memoryview, at: int, lsn: int) -> tuple[list[Entry], int, int, int] | None:
    """The quick way for many frames: the directory of the frame of `lsn` that begins at `at`, or None unless it is there and good.

    Returns:
        The entries, the length of the directory as it is stored, and length and checksum of the bodies, which stand behind it.
    """
    if len(data) - at < FRAME_HEADER:
        return None
    mark, flags, crc, _, length, directory_crc, bodies, bodies_crc, found, _ = _FRAME.unpack_from(data, at)
    middle = at + FRAME_HEADER
    directory = data[middle : middle + length]
    if (
        found != lsn
        or mark != MARK
        or flags
        or crc32(data[at + 8 : middle], _PREFIX_CRC) != crc
        or len(directory) != length
        or crc32(directory) != directory_crc
    ):
        return None
    try:
        entries = unpack(directory) if length else []
        check_entries(entries)
        if sum([entry[2] for entry in entries]) != bodies:
            return None
    except Exception:
        return None
    return entries, length, bodies, bodies_crc


def decode_frame(data: bytes) -> tuple[FrameHeader, Frame]:
    """Verify and decode one whole frame.

    Raises:
        CorruptionError: header, directory or bodies do not match their checksums.
    """
    header = decode_frame_header(data)
    if header is None:
        raise CorruptionError("the frame header does not match its checksum")
    middle = FRAME_HEADER + header.directory
    entries = decode_directory(header, data[FRAME_HEADER:middle])
    bodies = data[middle:]
    if len(bodies) != header.bodies or crc32(bodies) != header.bodies_crc:
        raise CorruptionError(f"the bodies of LSN {header.lsn} do not match their checksum")
    return header, Frame(header.lsn, entries, bodies)
