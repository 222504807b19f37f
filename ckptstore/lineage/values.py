"""Values as bytes: read through their patches, and encoded against what is stored already.

A patched value names its base. Versions of one channel are numbered along a lineage, and version n is based on the version whose
number is n with its lowest set bit cleared (skip-deltas): a read follows at most log2(n) bases, and n appended items cost O(n log n)
bytes in all. The base of the next version is always found on the chain of the present one. `frames` in each entry counts what a read
touches; nothing is ever based so that it would exceed `MOST_FRAMES`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

from ckptstore.activity import Activity
from ckptstore.codec.compression import compress
from ckptstore.codec.patch import apply, container_header, diff
from ckptstore.codec.records import (
    PATCH,
    Encoded,
    Kind,
    ValueFacts,
    encode_patched_value,
    encode_value,
    value_facts,
    writes_refs,
)
from ckptstore.errors import CorruptionError
from ckptstore.forks import own_locks
from ckptstore.lineage.reach import closure
from ckptstore.model import Ref, Typed
from ckptstore.storage import View

MOST_FRAMES = 16
"""Frames that reading one value may touch, whatever the history."""

# A smaller value gains little from a base that the shipped dictionary does not give it too, and every base makes reading longer.
_SMALLEST = 512
# A chain of nearest bases may not use up the depth that skip-deltas need.
_DEEP = MOST_FRAMES // 2
_MOST_COMPARED = 6
# A patch this long may have a better base than the next of its chain.
_LONG = 1024
# Bytes that the material of one patch may have: a few bytes can name the same large value again and again.
_MOST_MATERIAL = 1 << 30
# A base in another channel begins a new chain, which needs depth of its own.
_SHALLOW = MOST_FRAMES // 4


class Choice(NamedTuple):
    """Where the bytes of a new value may repeat earlier ones."""

    near: Ref | None = None
    """The channel's nearest stored value in the lineage."""
    others: Sequence[Ref] = ()
    """Values of other channels, and large writes, near the place."""
    folds: Sequence[Ref] = ()
    """Batches of writes that the value folds, oldest first: a snapshot forced by a fork holds what they hold."""


class Values:
    """Reads and encodes values, with a bounded cache of raw bytes. Bytes are immutable: nothing in it can be touched by a caller."""

    def __init__(self, cache_bytes: int, activity: Callable[[], Activity]) -> None:
        self._activity = activity
        self._limit = cache_bytes
        self._bytes = 0
        self._raw: OrderedDict[Ref, bytes] = OrderedDict()
        own_locks(self)

    def new_locks(self) -> None:
        self._lock = threading.Lock()

    # -- reading --------------------------------------------------------------------------------------------------------

    def typed(self, view: View, value: Ref | Typed) -> Typed:
        """Typed bytes of a slot.

        Raises:
            CorruptionError: the decoded bytes do not match their checksum, or a base is damaged.
        """
        if not isinstance(value, Ref):
            return value
        return facts_of(view, value).tag, self.raw(view, value)

    def raw(self, view: View, ref: Ref) -> bytes:
        """Raw bytes of a value. What is returned was checked against the checksum of the decoded bytes, not only the stored ones."""
        activity = self._activity()
        with self._lock:
            raw = self._raw.get(ref)
            if raw is not None:
                self._raw.move_to_end(ref)
                activity.cache_hits += 1
                return raw
            activity.cache_misses += 1
        facts, raw = self._read(view, ref, MOST_FRAMES, {})
        with self._lock:
            activity.value_reads += 1
            activity.value_frames += facts.frames
            activity.most_frames = max(activity.most_frames, facts.frames)
        return raw

    def _read(self, view: View, ref: Ref, depth: int, written: dict[Ref, bytes]) -> tuple[ValueFacts, bytes]:
        """A value and its facts.

        Args:
            depth: how many values may still be read one through another; what is deeper was not written by us, and might not end.
            written: values of folded writes that this read has met. Each is read once: folds in folds would multiply.
        """
        if not depth:
            raise CorruptionError(f"the value at LSN {ref.lsn}, record {ref.ordinal}, rests on more than {MOST_FRAMES} others")
        frame = view.frame(ref.lsn)
        facts = value_facts(ref.lsn, frame.entry(ref, Kind.VALUE))
        if facts.codec == PATCH:
            raw = apply(self._material(view, facts, depth - 1, written), frame.stored(ref.ordinal), facts.length)
        else:
            raw = frame.raw(ref.ordinal)
        if crc32(raw) != facts.crc or len(raw) != facts.length:
            raise CorruptionError(
                f"the value at LSN {ref.lsn}, record {ref.ordinal}, does not match the checksum of its decoded bytes: it or one "
                "of its bases is damaged"
            )
        self.remember(ref, raw)
        return facts, raw

    def _base(self, view: View, ref: Ref, depth: int, written: dict[Ref, bytes]) -> bytes:
        """Raw bytes of a base: part of the read that asked for it, so not counted as one."""
        with self._lock:
            raw = self._raw.get(ref)
        return raw if raw is not None else self._read(view, ref, depth, written)[1]

    def remember(self, ref: Ref, raw: bytes) -> None:
        """Keep raw bytes that were just written or read."""
        if len(raw) > self._limit:
            return
        with self._lock:
            if ref not in self._raw:
                self._raw[ref] = raw
                self._bytes += len(raw) + 100
            while self._bytes > self._limit:
                _, old = self._raw.popitem(last=False)
                self._bytes -= len(old) + 100

    def _material(self, view: View, facts: ValueFacts, depth: int, written: dict[Ref, bytes]) -> bytes:
        """The bytes a patch copies from: the base value, then the folded writes without their container headers."""
        if not facts.folds and len(facts.bases) == 1:
            return self._base(view, facts.bases[0], depth, written)
        pieces = [self._base(view, base, depth, written) for base in facts.bases]
        size = sum(map(len, pieces))
        for ref in facts.folds:
            for piece in self._folded(view, ref, depth, written):
                size += len(piece)
                if size > _MOST_MATERIAL:
                    raise CorruptionError(f"a value rests on writes of more than {_MOST_MATERIAL} bytes")
                pieces.append(piece)
        return b"".join(pieces)

    def _folded(self, view: View, ref: Ref, depth: int, written: dict[Ref, bytes]) -> Iterable[bytes]:
        for idx, _, value in view.frame(ref.lsn).batch(ref).writes:
            if idx >= 0:
                if not isinstance(value, Ref):
                    raw = value[1]
                elif value in written:
                    raw = written[value]
                else:
                    raw = written[value] = self._base(view, value, depth, written)
                yield raw[container_header(raw) :]

    # -- encoding -------------------------------------------------------------------------------------------------------

    def stored_already(self, view: View, typed: Typed, crc: int, places: Iterable[Ref]) -> Ref | None:
        """A record that holds exactly these bytes. Only those of equal tag, length and checksum are read."""
        for ref in places:
            facts = facts_of(view, ref)
            if (facts.tag, facts.length, facts.crc) == (typed[0], len(typed[1]), crc) and self.raw(view, ref) == typed[1]:
                return ref
        return None

    def encode(self, view: View, typed: Typed, crc: int, choice: Choice) -> Encoded:
        """A VALUE record for bytes that are not stored yet: a patch where one pays, else whole."""
        raw = typed[1]
        patch: _Patched | None = None
        if len(raw) >= _SMALLEST:
            if choice.near is not None:
                patch = self._against_near(view, raw, choice.near)
            if _poor(patch, raw):
                for ref in choice.others[:_MOST_COMPARED]:
                    if facts_of(view, ref).frames <= _SHALLOW:
                        patch = _better(patch, self._against(view, raw, ref, number=0, thorough=False))
            if choice.folds and _poor(patch, raw):
                fold = self._against_folds(view, raw, choice)
                # A fold takes the frames of all that it folds. Where it leaves no room for a chain, the next version pays for a new one.
                if fold is not None and (fold.frames <= _DEEP or patch is None or patch.cost() * 2 > len(raw)):
                    patch = _better(patch, fold)
        if patch is None:
            return encode_value(typed, crc, *compress(raw))
        if len(patch.body) * 8 > len(raw):
            codec, body = compress(raw)
            if len(body) <= len(patch.body) + 16:
                return encode_value(typed, crc, codec, body)
        return encode_patched_value(typed, crc, patch.body, patch.number, patch.frames, patch.bases, patch.folds)

    def _against_near(self, view: View, raw: bytes, near: Ref) -> _Patched | None:
        number, base = next_in_chain(view, near)
        patch = self._against(view, raw, base, number=number, thorough=True)
        if base != near and (patch is None or len(patch.body) * 4 > len(raw)) and facts_of(view, near).frames <= _DEEP:
            # The skip base is far behind; where values change more than they grow, the nearest one is the better base.
            patch = _better(patch, self._against(view, raw, near, number=number, thorough=True))
        if patch is None or facts_of(view, near).frames < MOST_FRAMES:
            return patch
        # At the bound of frames every later patch goes against one base and carries all since. Unless that base leaves room for a
        # chain, go back to one that does: it costs once what 2 ** (MOST_FRAMES - _DEEP) versions need not carry.
        if len(patch.body) > max(_LONG, len(raw) // 64) and facts_of(view, base).frames > _DEEP:
            patch = self._against(view, raw, shallow_base(view, near), number=0, thorough=True)
        return None if patch is not None and len(patch.body) * 8 > len(raw) else patch

    def _against(self, view: View, raw: bytes, base: Ref, *, number: int, thorough: bool) -> _Patched | None:
        frames = facts_of(view, base).frames + 1
        if frames > MOST_FRAMES:
            return None
        body = diff(self.raw(view, base), raw, thorough=thorough)
        return None if body is None else _Patched(body, number, frames, (base,), ())

    def _against_folds(self, view: View, raw: bytes, choice: Choice) -> _Patched | None:
        bases: tuple[Ref, ...] = ()
        folds = tuple(choice.folds)
        if choice.near is not None:
            base = choice.near
            near = facts_of(view, base)
            while near.frames >= MOST_FRAMES and near.bases and not near.folds:
                base, near = _below(view, base, near)
            if near.folds:
                # Never a fold on a fold: where every turn forks, it would grow with the history. Stored whole once, then patched.
                return None
            bases = (base,)
        written = [ref for fold in folds for ref in writes_refs(fold.lsn, view.entry(fold, Kind.WRITES))]
        needed = [facts_of(view, ref) for ref in (*bases, *written)]
        if any(facts.frames >= MOST_FRAMES for facts in needed) or sum(facts.length for facts in needed) > _MOST_MATERIAL // 2:
            return None
        frames = len(closure(view, bases, folds)) + 1
        material = self._material(view, ValueFacts("", 0, 0, 0, 0, 0, bases, folds), MOST_FRAMES - 1, {})
        body = diff(material, raw, thorough=True)
        return None if body is None else _Patched(body, 0, frames, bases, folds)


class _Patched(NamedTuple):
    body: bytes
    number: int
    frames: int
    bases: tuple[Ref, ...]
    folds: tuple[Ref, ...]

    def cost(self) -> int:
        return len(self.body) + 2 * len(self.folds)


def _better(left: _Patched | None, right: _Patched | None) -> _Patched | None:
    if left is None or right is None:
        return left or right
    return left if left.cost() <= right.cost() else right


def _poor(patch: _Patched | None, raw: bytes) -> bool:
    """Whether it is worth to look further: nothing found, or more than a few items and an eighth of the value are new."""
    return patch is None or (len(patch.body) > 256 and len(patch.body) * 8 > len(raw)) or len(patch.body) > _LONG


def facts_of(view: View, ref: Ref) -> ValueFacts:
    """What the directory says of a value."""
    return value_facts(ref.lsn, view.entry(ref, Kind.VALUE))


def _below(view: View, ref: Ref, facts: ValueFacts) -> tuple[Ref, ValueFacts]:
    """The value that one is based on. It was stored before: a chain that leads on is not ours, and might not end."""
    base = facts.bases[0]
    if base >= ref:
        raise CorruptionError(f"the value at LSN {ref.lsn}, record {ref.ordinal}, is based on one that came after it")
    return base, facts_of(view, base)


def shallow_base(view: View, near: Ref) -> Ref:
    """The nearest value on the chain of `near` that leaves half of the frames of a read to those based on it."""
    base = near
    facts = facts_of(view, base)
    while facts.frames > _DEEP and facts.bases:
        base, facts = _below(view, base, facts)
    return base


def next_in_chain(view: View, near: Ref) -> tuple[int, Ref]:
    """(number of the version after `near`, the version it is based on): found by following the bases of `near`."""
    facts = facts_of(view, near)
    number = facts.number + 1
    wanted = number & (number - 1)
    base = near
    while (facts.number > wanted or facts.frames >= MOST_FRAMES) and facts.bases:
        base, facts = _below(view, base, facts)
    return number, base
