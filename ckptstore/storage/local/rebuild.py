"""Fold the log into an empty index: by hints where they are good, by scanning where they are not."""

from __future__ import annotations

import struct
from itertools import pairwise

from ckptstore.codec.records import HEADER, Entry, Kind
from ckptstore.errors import CorruptionError
from ckptstore.storage import View
from ckptstore.storage.catalog import Catalog, Kv
from ckptstore.storage.local import format as fmt
from ckptstore.storage.local.frames import located, publish, put_end, put_location
from ckptstore.storage.local.hints import read_hint
from ckptstore.storage.local.index import IndexEnv, IndexFullError
from ckptstore.storage.local.recovery import End, replay
from ckptstore.storage.local.segment import Found, Location, Segments

# Frames a transaction: large enough to amortize it, small enough that its dirty pages stay in memory.
_CHUNK = 5000


def fill(
    index: IndexEnv,
    segments: Segments,
    headers: list[fmt.SegmentHeader],
    known_durable: int,
    *,
    damage: list[CorruptionError] | None = None,
) -> End:
    """Apply every frame of the log in LSN order and record where the log ends: not in the last segment, if that was begun by a commit
    that was never published.

    Args:
        known_durable: LSN known to have been made durable (recovery.drop_begun_in_vain).
        damage: stop at damage and put it here instead of refusing it (recovery.replay).

    Raises:
        CorruptionError: damage; the index is then of no use.
    """
    waiting: list[tuple[int, Location, list[Entry]]] = []

    def flush(end: End | None = None) -> None:
        while True:
            try:
                with index.write() as kv:
                    catalog = View(kv)
                    for lsn, location, entries in waiting:
                        fold(kv, catalog, lsn, location, entries)
                    if end is not None:
                        put_end(kv, end)
                        for header in headers:
                            if header.replaces:
                                publish(kv, header.segment)
            except IndexFullError:
                continue
            waiting.clear()
            return

    def visit(lsn: int, location: Location, entries: list[Entry]) -> None:
        waiting.append((lsn, location, entries))
        if len(waiting) >= _CHUNK:
            flush()

    def visit_found(found: Found) -> None:
        visit(found.header.lsn, found.location, found.frame.entries)

    hinted, expected = 0, 1
    for header, following in pairwise(headers):
        hint = read_hint(segments.vfs, segments.layout, header)
        covered = max(header.end_lsn, hint[-1].lsn + 1 if hint else 0)
        if hint is None or header.base_lsn != expected or covered != following.base_lsn:
            break
        for item in hint:
            visit(item.lsn, Location(header.segment, item.offset, item.length), item.entries)
        expected = following.base_lsn
        hinted += 1
    end = replay(segments, headers[hinted:], visit_found, expected, known_durable, damage=damage)
    flush(end)
    return end


def fold(kv: Kv, catalog: Catalog, lsn: int, location: Location, entries: list[Entry]) -> None:
    """Apply one frame of a log that somebody else may have written.

    Raises:
        CorruptionError: its records rest on records that are not there, or hold what does not fit.
    """
    try:
        put_location(kv, lsn, location)
        catalog.apply(lsn, [_of_frames_here(kv, entry) if entry[0] == Kind.TOMBSTONE else entry for entry in entries])
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, struct.error):
        raise CorruptionError(
            f"segment {location.segment}, offset {location.offset}: the records of LSN {lsn} do not fit to those before them. "
            "Restore a backup, or run `ckpt salvage`"
        ) from None


def _of_frames_here(kv: Kv, entry: Entry) -> Entry:
    """A tombstone that names no other dead frames than those that are there.

    The others were compacted away, or never written: a few bytes can name more frames than any log has.
    """
    dead = entry[HEADER + 4]
    runs = [
        item for first, count in zip(dead[::2], dead[1::2], strict=True) for lsn in located(kv, first, count) for item in (lsn, 1)
    ]
    return [*entry[: HEADER + 4], runs, *entry[HEADER + 5 :]]


def relocate(index: IndexEnv, segments: Segments, header: fmt.SegmentHeader, end: End) -> None:
    """Point the index at a segment that was written anew."""
    with index.write() as kv:
        for found in segments.scan(header.segment, header.length, header.salt):
            put_location(kv, found.header.lsn, found.location)
        put_end(kv, end)
