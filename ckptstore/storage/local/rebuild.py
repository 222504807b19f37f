"""Fold the log into an empty index: by hints where they are good, by scanning where they are not."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from ckptstore.errors import CorruptionError
from ckptstore.storage import View
from ckptstore.storage.local import format as fmt
from ckptstore.storage.local.frames import get_location, publish, put_end, put_location
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
    waiting: list[tuple[int, Location, list[Any]]] = []

    def flush(end: End | None = None) -> None:
        while True:
            try:
                with index.write() as kv:
                    catalog = View(kv)
                    for lsn, location, entries in waiting:
                        catalog.apply(lsn, entries)
                        put_location(kv, lsn, location)
                    if end is not None:
                        put_end(kv, end)
                        for header in headers:
                            if header.replaces:
                                publish(kv, header.segment)
                        for lsn in [lsn for lsn in catalog.dead() if get_location(kv, lsn) is None]:
                            catalog.drop_dead(lsn)  # compacted away already
            except IndexFullError:
                continue
            waiting.clear()
            return

    def visit(lsn: int, location: Location, entries: list[Any]) -> None:
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


def relocate(index: IndexEnv, segments: Segments, header: fmt.SegmentHeader, end: End) -> None:
    """Point the index at a segment that was written anew."""
    with index.write() as kv:
        for found in segments.scan(header.segment, header.length, header.salt):
            put_location(kv, found.header.lsn, found.location)
        put_end(kv, end)
