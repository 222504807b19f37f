"""What happens to the log when whoever opens it is alone: replaced segments go, the end is found, damage is refused.

Torn or corrupt? A crash may leave anything after the last fsync, and nothing else. So the first bad frame X is

- damage, when it stands in a segment that has a successor: the old segment is fsynced before the new one appears;
- damage, when a good frame before or after X carries a durable LSN that reaches X: X had been made durable;
- a torn tail otherwise: nobody was told that X is safe. The bytes are kept in torn/ and cut.

Recovery changes nothing until it has decided, and running it again after a crash in the middle decides the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ckptstore.errors import CorruptionError
from ckptstore.storage.local import format as fmt
from ckptstore.storage.local.segment import Found, Segments

logger = logging.getLogger("ckptstore")


class End(NamedTuple):
    """Where the log ends: what the next commit needs to know."""

    segment: int
    tail: int
    next_lsn: int
    chain: int


def sweep(segments: Segments, *, read_only: bool = False) -> tuple[list[fmt.SegmentHeader], bool]:
    """Check all segment headers; delete temporary files and replaced segments, or with `read_only` only leave the latter out.

    Deleting is safe at any time: a segment that lists others is complete and durable before it gets its name.

    Returns:
        The headers in LSN order, and whether replaced segments were there: an index may still point into them.
    """
    vfs, layout = segments.vfs, segments.layout
    for name in vfs.listdir(layout.segments):
        if name.endswith(".tmp") and not read_only:
            vfs.unlink(layout.segments / name)
    headers = {number: segments.header(number) for number in segments.numbers()}
    replaced = {old for header in headers.values() for old in header.replaces} & headers.keys()
    for number in sorted(replaced):
        if not read_only:
            _delete(segments, number)
        del headers[number]
    if replaced and not read_only:
        vfs.sync_folder(layout.segments)
    return sorted(headers.values(), key=lambda header: header.base_lsn), bool(replaced)


def is_begun_in_vain(segments: Segments, headers: list[fmt.SegmentHeader]) -> bool:
    """Whether the last segment holds no frames.

    A writer that fails or dies between creating a segment and publishing its first frame leaves an empty one, and the next writer may
    have gone on in the one before.
    """
    last = headers[-1]
    return len(headers) > 1 and not last.replaces and not left_over(segments, last.segment, last.length)


def drop_begun_in_vain(segments: Segments, headers: list[fmt.SegmentHeader]) -> int:
    """Delete a last segment without frames; return an LSN up to which everything is then known to have been durable.

    The one before was fsynced before the empty one got its name.
    """
    if not is_begun_in_vain(segments, headers):
        return 0
    last = headers.pop()
    _delete(segments, last.segment)
    segments.vfs.sync_folder(segments.layout.segments)
    return last.base_lsn - 1


def set_aside(segments: Segments, header: fmt.SegmentHeader) -> None:
    """Move a segment to torn/ that a commit began and never published, while others went on in the one before."""
    vfs, layout = segments.vfs, segments.layout
    segments.forget(header.segment)
    vfs.mkdir(layout.torn)
    vfs.sync_folder(layout.root)
    vfs.rename(layout.segment(header.segment), layout.torn / f"{header.segment:020d}.seg")
    vfs.sync_folder(layout.torn)
    vfs.sync_folder(layout.segments)
    logger.warning("%s: a segment that was begun and not published was moved to %s", layout.segment(header.segment), layout.torn)


def _delete(segments: Segments, number: int) -> None:
    segments.forget(number)
    segments.vfs.unlink(segments.layout.segment(number))
    if segments.vfs.exists(segments.layout.hint(number)):
        segments.vfs.unlink(segments.layout.hint(number))


def replay(
    segments: Segments,
    headers: list[fmt.SegmentHeader],
    visit: Callable[[Found], None],
    expected: int = 1,
    known_durable: int = 0,
    *,
    damage: list[CorruptionError] | None = None,
) -> End:
    """Visit every good frame in LSN order and find the end of the log.

    Args:
        expected: LSN at which these segments begin; those before were replayed from hints.
        known_durable: LSN known from elsewhere to have been made durable.
        damage: stop at damage and put it here instead of refusing it; only for reading, since nothing may ever be appended there.

    Returns:
        The end of the log; what stands behind it in the last segment is a torn tail, not yet cut.

    Raises:
        CorruptionError: damage; names segment, offset and LSN.
    """
    end = End(0, 0, expected, 0)
    for index, header in enumerate(headers):
        if header.base_lsn < expected and 0 < index == len(headers) - 1 and not header.replaces:
            break  # begun by a commit that was never published; others went on in the segment before
        if header.base_lsn != expected:
            raise CorruptionError(
                f"{segments.layout.segment(header.segment)} starts at LSN {header.base_lsn}, the log before it ends at "
                f"{expected - 1}: a segment is missing. Restore it or a backup, or run `ckpt salvage`"
            )
        offset, chain, durable = header.length, header.salt, known_durable
        for found in segments.scan(header.segment, offset, chain):
            if found.header.lsn != expected and not (header.replaces and expected < found.header.lsn < header.end_lsn):
                break
            visit(found)
            expected = found.header.lsn + 1
            offset, chain = found.location.offset + found.location.length, found.header.crc
            durable = max(durable, found.header.durable)
        # A segment that replaces others covers their LSNs, those that fell away included.
        expected = max(expected, header.end_lsn)
        end = End(header.segment, offset, expected, chain)
        following = headers[index + 1] if index + 1 < len(headers) else None
        last = following is None or (index + 2 == len(headers) and following.base_lsn < expected)
        if left_over(segments, header.segment, offset) or (last and durable >= expected):
            try:
                _judge(segments, header.segment, offset, expected, durable, last)
            except CorruptionError as error:
                if damage is None:
                    raise
                logger.error("%s Reading the log up to there", error)
                damage.append(error)
                return end
    return end


def _judge(segments: Segments, segment: int, offset: int, expected: int, durable: int, last: bool) -> None:
    """Raise if the bytes at `offset`, where LSN `expected` should stand, are damage rather than a torn tail."""
    later = max((header.durable for header in _plausible_after(segments, segment, offset)), default=0)
    if last and max(durable, later) < expected:
        return
    why = (
        "the segment has a successor, so it was whole once"
        if not last
        else f"LSN {max(durable, later)} is known to have been made durable"
    )
    raise CorruptionError(
        f"{segments.layout.segment(segment)}, offset {offset}: no valid frame for LSN {expected}, but {why}. This is damage, "
        "not a torn tail, so nothing was cut: restore a backup, open read_only, or run `ckpt salvage`"
    )


def _plausible_after(segments: Segments, segment: int, offset: int) -> Iterator[fmt.FrameHeader]:
    """Self-consistent frames somewhere after a bad one, found by their sync mark."""
    fd = segments.fd(segment)
    rest = segments.vfs.pread(fd, max(0, segments.vfs.size(fd) - offset), offset)
    at = rest.find(fmt.MARK, 1)
    while at >= 0:
        header = fmt.decode_frame_header(rest[at : at + fmt.FRAME_HEADER])
        if header is not None and fmt.frame_is_whole(header, rest[at : at + header.size]):
            yield header
        at = rest.find(fmt.MARK, at + 1)


def left_over(segments: Segments, segment: int, tail: int) -> bytes:
    """What stands after `tail`, without the zeros at its end.

    Zeros are prefill: the active segment is extended ahead of its frames, because an fsync that need not make a new file size durable
    takes two thirds of the time.
    """
    fd = segments.fd(segment)
    return segments.vfs.pread(fd, max(0, segments.vfs.size(fd) - tail), tail).rstrip(b"\0")


def cut(segments: Segments, segment: int, tail: int) -> int:
    """Cut what stands after `tail`, keeping it in torn/; return how many bytes that were.

    Order: the copy is durable before the cut, and the cut before anything is appended in its place.
    """
    vfs = segments.vfs
    fd = segments.fd(segment)
    extra = _keep(segments, segment, tail)
    if extra:
        vfs.truncate(fd, tail)
        vfs.fdatasync(fd)
        vfs.point("torn:cut")
    elif vfs.size(fd) > tail:
        vfs.truncate(fd, tail)
    return extra


def _keep(segments: Segments, segment: int, tail: int) -> int:
    """Copy what stands after `tail` to torn/, durably; return how many bytes that are."""
    vfs, layout = segments.vfs, segments.layout
    extra = left_over(segments, segment, tail)
    if extra:
        vfs.mkdir(layout.torn)
        vfs.sync_folder(layout.root)
        kept = layout.torn / f"{segment:020d}-{tail}"
        vfs.write_file(kept, extra)
        vfs.point("torn:kept")
        logger.warning("%s: cut %d bytes after offset %d; kept in %s", layout.segment(segment), len(extra), tail, kept)
    return len(extra)


def rewrite_last(segments: Segments, headers: list[fmt.SegmentHeader], end: End) -> End:
    """After a failed fsync: copy the last segment as it reads now into a new one, durably, and let that replace it.

    The kernel may have dropped dirty pages and cleared the error, so a second fsync of the same file proves nothing. Frames keep
    their LSNs; only the chain is sealed anew.
    """
    old = headers[-1]
    _keep(segments, old.segment, end.tail)
    number = max(header.segment for header in headers) + 1
    pieces: list[tuple[fmt.FrameHeader, bytes]] = []
    fd = segments.fd(old.segment)
    for found in segments.scan(old.segment, old.length, old.salt):
        data = segments.vfs.pread(fd, found.location.length, found.location.offset)
        pieces.append((found.header, data[fmt.FRAME_HEADER :]))

    def seal(salt: int) -> tuple[bytes, int]:
        chain, frames = salt, []
        for header, payload in pieces:
            directory, bodies = payload[: header.directory], payload[header.directory :]
            data, chain = fmt.encode_frame(chain, header.lsn, header.durable, directory, bodies)
            frames.append(data)
        return b"".join(frames), chain

    header, chain, size = segments.create(number, old.base_lsn, (old.segment, *old.replaces), end.next_lsn, seal)
    segments.vfs.unlink(segments.layout.segment(old.segment))
    segments.vfs.sync_folder(segments.layout.segments)
    headers[-1] = header
    return End(number, size, end.next_lsn, chain)
