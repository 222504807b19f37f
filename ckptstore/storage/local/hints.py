"""Hint files: the directories of a sealed segment, so that a rebuild need not read its payloads.

    0  8  magic 89 43 4B 48 54 0D 0A 1A
    8  4  CRC-32 of the rest
    12    zstd frame of a msgpack array: [LSN, offset, length, entries] a frame

Ids inside the entries are replaced by their hashes (msgpack extension type 1): a hint holds no user text. A hint that is missing,
damaged or of another salt is ignored, and the segment is scanned.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from zlib import crc32

import msgpack
import zstandard

from ckptstore.codec.records import hashed_entry, unpack
from ckptstore.codec.shapes import MOST_LSN, check_entries
from ckptstore.errors import CorruptionError
from ckptstore.storage.local import format as fmt
from ckptstore.storage.local.layout import Layout
from ckptstore.storage.local.segment import Segments
from ckptstore.storage.local.vfs import Vfs

_MAGIC = b"\x89CKHT\r\n\x1a"
# A directory grows at most this much when hashes take the place of ids.
_GROWTH = 8


class HintItem(NamedTuple):
    """One frame, as a rebuild needs it."""

    lsn: int
    offset: int
    length: int
    entries: list[Any]


def write_hint(segments: Segments, segment: int) -> None:
    """Scan a sealed segment and write its hint.

    Raises:
        OSError, CorruptionError: there will be no hint; nothing depends on it.
    """
    header = segments.header(segment)
    items = [
        (found.header.lsn, found.location.offset, found.location.length, [hashed_entry(entry) for entry in found.frame.entries])
        for found in segments.scan(segment, header.length, header.salt)
    ]
    packed = zstandard.ZstdCompressor(level=3).compress(msgpack.packb([header.salt, items], unicode_errors="surrogatepass"))
    segments.vfs.write_file(segments.layout.hint(segment), _MAGIC + crc32(packed).to_bytes(4, "little") + packed)


def read_hint(vfs: Vfs, layout: Layout, header: fmt.SegmentHeader) -> list[HintItem] | None:
    """The hint of a segment, or None where the segment has to be scanned."""
    path = layout.hint(header.segment)
    if not vfs.exists(path):
        return None
    data = vfs.read_file(path)
    packed = data[12:]
    if data[:8] != _MAGIC or crc32(packed) != int.from_bytes(data[8:12], "little"):
        return None
    try:
        # The content size that zstd allocates is the one the file states, whatever the bound that it is given.
        size = vfs.file_size(layout.segment(header.segment))
        if zstandard.frame_content_size(packed) > size * _GROWTH:
            return None
        salt, items = unpack(zstandard.ZstdDecompressor().decompress(packed, max_output_size=0))
        if salt != header.salt or (not items and not header.replaces):
            return None
        found = [HintItem(*item) for item in items]
        for item in found:
            if not all(type(number) is int and number >= 0 for number in item[:3]):
                return None
            if item.lsn > MOST_LSN or item.offset + item.length > size:
                return None
            check_entries(item.entries, hashed=True)
        return found
    except (CorruptionError, ValueError, TypeError, zstandard.ZstdError):
        return None
