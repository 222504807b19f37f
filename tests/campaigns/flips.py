"""Bit flips over every file outside `index/`: what each one led to, and what nothing may lead to.

A flip is refused at open, or found by the first read of what it hit, or by verify, or it hit bytes that nobody uses. Never is another
value returned, an acknowledged record missing without an error, or an error raised that is none of ours. One case is admitted
(docs/guarantees.md, "A damaged end of a log"): behind the last fsync, without an index, damage looks like a torn tail. It has to
prove that it is that: `_torn_at`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import ckptstore
from ckptstore import CkptStoreError
from ckptstore.storage.local import format as fmt
from tests.campaigns.facts import errors, facts, lies
from tests.campaigns.samples import Sample, copied, opened_sample
from tests.helpers import FrameAt, flip, frames

OUTCOMES = ("refused", "read", "verify", "unused", "torn")


class Flip(NamedTuple):
    """One bit of one file."""

    file: str
    offset: int
    bit: int


class Outcome(NamedTuple):
    """What a flip led to."""

    kind: str
    """What kind of bytes it hit."""
    outcome: str
    """One of `OUTCOMES`."""


class LieError(AssertionError):
    """A damaged store said what is not so."""


def every(sample: Sample, rng: random.Random, step: int) -> Iterator[Flip]:
    """One bit of every `step`-th byte of each file, but less of the room that is made for frames to come."""
    for path in sorted(sample.folder.rglob("*")):
        name = str(path.relative_to(sample.folder))
        if path.is_file() and not name.startswith("index/"):
            size = path.stat().st_size
            end = min(size, _end(path) + 100) if path.suffix == ".seg" else size
            offsets = [
                *range(rng.randrange(min(step, end) or 1), end, step),
                *(rng.randrange(end, size) for _ in range(5) if end < size),
            ]
            yield from (Flip(name, offset, rng.randrange(8)) for offset in offsets)


def flipped(sample: Sample, what: Flip, folder: Path) -> Outcome:
    """Damage a copy and use it.

    Args:
        folder: an empty one.

    Raises:
        LieError: it said what is not so. Any error that is not of ours.
    """
    copy = copied(sample, folder / "copy")
    kind = _kind(sample, what)
    flip(copy / what.file, what.offset, 1 << what.bit)
    if sample.name == "backup":
        return Outcome(kind, _restored(sample, copy))
    return Outcome(kind, _used(sample, copy, what, kind))


def _used(sample: Sample, copy: Path, what: Flip, kind: str) -> str:
    try:
        report = ckptstore.verify(copy)
        verified = not report.ok
    except CkptStoreError:
        verified = True
    try:
        with opened_sample(copy) as store:
            found = facts(store, sample.truth)
    except CkptStoreError:
        return _agreed("refused", verified, kind)
    false = lies(found, sample.truth)
    torn = _torn_at(sample, copy, what)
    if torn is not None and not errors(found, sample.truth) and not lies(found, sample.said[torn - 1]):
        return "torn"
    if false:
        raise LieError("; ".join(false))
    if errors(found, sample.truth):
        return _agreed("read", verified, kind)
    if verified:
        return "verify"
    if kind in UNUSED:
        return "unused"
    raise LieError(f"nobody noticed {what} in {kind}")


def _agreed(outcome: str, verified: bool, kind: str) -> str:
    if not verified:
        raise LieError(f"{outcome}, but verify found nothing in {kind}")
    return outcome


def _restored(sample: Sample, copy: Path) -> str:
    target = copy.with_name("restored")
    try:
        ckptstore.restore(copy, target)
    except CkptStoreError:
        if target.exists():
            raise LieError("a damaged backup restored something") from None
        return "refused"
    with opened_sample(target) as store:
        false = lies(facts(store, sample.truth), sample.truth)
    if false:
        raise LieError("; ".join(false))
    return "unused"


UNUSED = {
    "LOCK": "the pid in it is for messages only",
    "POISON": "its text is for people; that it is there is what counts",
    "torn/": "bytes that were cut off; nobody reads them",
    "hint": "one that does not match its checksum is ignored, and its segment read instead",
    "STORE": "the time of creation, for people; names of features, of which there are none; a format number below 1",
    "room for frames to come": "nothing stands there yet; what is no frame is cut and kept in torn/",
    "backup: LOCK": "it is empty",
}
"""Kinds of bytes that may be flipped without anybody noticing, and why."""


def _kind(sample: Sample, what: Flip) -> str:
    name = what.file.rsplit("/", 1)[-1]
    if sample.name == "backup":
        return f"backup: {'segment' if name.endswith('.seg') else name}"
    if what.file.startswith("torn/"):
        return "torn/"
    if name.endswith(".hint"):
        return "hint"
    if not name.endswith(".seg"):
        return name
    path = sample.folder / what.file
    if what.offset >= _end(path):
        return "room for frames to come"
    newest = max((sample.folder / "segments").glob("*.seg"))
    replaces = fmt.decode_segment_header(path.read_bytes()[: fmt.segment_header_length(path.read_bytes())]).replaces
    return "compacted segment" if replaces else "newest segment" if path == newest else "full segment"


def _end(path: Path) -> int:
    """Where the frames of a whole segment end."""
    at = fmt.segment_header_length(path.read_bytes()[:16])
    for frame in frames(path.parent.parent):
        if frame.path == path:
            at = frame.offset + frame.size
    return at


def _torn_at(sample: Sample, copy: Path, what: Flip) -> int | None:
    """The LSN of the frame that a flip hit, where nothing outside it says that it was durable, and what was cut is kept; else None.

    No index vouches for it, no CLEAN, and no other frame carries a durable LSN that reaches it.
    """
    whole = list(frames(sample.folder))
    hit = [frame for frame in whole if sample.folder / what.file == frame.path and 0 <= what.offset - frame.offset < frame.size]
    if sample.trusted or not hit or not (copy / "torn").exists():
        return None
    data = bytearray(hit[0].path.read_bytes())
    data[what.offset] ^= 1 << what.bit
    kept = bytes(data[hit[0].offset :]).rstrip(b"\0") in [file.read_bytes() for file in (copy / "torn").iterdir()]
    durable = max(_durable(frame) for frame in whole if frame != hit[0])
    return hit[0].lsn if kept and durable < hit[0].lsn else None


def _durable(frame: FrameAt) -> int:
    header = fmt.decode_frame_header(frame.path.read_bytes()[frame.offset : frame.offset + fmt.FRAME_HEADER])
    assert header is not None
    return header.durable
