"""The index as a fold over the log: its keys, its lookups, and `apply`, the one function that changes it.

A live commit and a rebuild call the same `apply` on the same directory entries in the same LSN order, so a rebuilt index equals
the one that was lost by construction. It holds no user text: names are hashes (codec/names.py), everything else is numbers.

Keys, big-endian so that byte order is number order (lane and checkpoint numbers u32, LSN and place u48):

    T thread hash16            -> thread u32                   the live thread of that name
    t thread                   -> ref of its THREAD record, name hash16
    L thread ns-hash16         -> lane u32
    l lane                     -> thread u32, thread hash16, ns hash16, ref of its LANE record
    s lane                     -> lane state: numbers given, checkpoints, head number, LSN that made it so, removals
    y lane                     -> msgpack list of the lanes whose records it reads (thread copies)
    I lane id-hash16           -> number u32                   given at the first mention of an id: put, write target or parent
    C lane number              -> checkpoint entry
    O lane place               -> number u32                   place order, which is list order
    K lane parent place        -> number u32                   children
    W lane number lsn          -> writes entry                 batches stored on a checkpoint, there or not yet there
    R lane number              -> ref of the HISTORY record that ends its walk
    V run-hash8 lane number    -> b""                          checkpoints whose metadata names that run
    X late-hash8               -> unix time in ms u64          ids removed by a thread deletion
    f                          -> b""                          there are X entries
    D lsn                      -> b""                          frames that hold nothing live any more
    m name                     -> msgpack                      facts of the store
    n                          -> thread u32, lane u32         numbers given so far, never reused
    c                          -> u64                          compactions; records chosen before the newest one may be gone

Frame locations (`F lsn`) and the log position belong to the storage, not to the catalog.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, Protocol

import msgpack

from ckptstore.codec.names import late_hash, name_hash
from ckptstore.codec.records import (
    HEADER,
    LANE_SCOPE,
    THREAD_SCOPE,
    Entry,
    Kind,
    consumed_field,
    consumed_from,
    id_hash,
)
from ckptstore.model import Consumed, Origin, Ref, Source


class Kv(Protocol):
    """An ordered map of bytes, inside a transaction."""

    def get(self, key: bytes) -> bytes | None: ...
    def put(self, key: bytes, value: bytes) -> None: ...
    def delete(self, key: bytes) -> None: ...
    def scan(self, prefix: bytes, *, before: bytes | None = None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Items under `prefix` in key order, or backwards from just below `before`; the map may change between two steps."""
        ...

    def between(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Items from `low` to before `high` in key order: the quick way for many, in a map that does not change meanwhile."""
        ...


_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_PAIR = struct.Struct(">II")
_REF = struct.Struct(">QH")
_STATE = struct.Struct(">IIIQI")
_PLACED = struct.Struct(">QHQ")
_CHECKPOINT = struct.Struct(">QHQIQB6s")
_WRITES = struct.Struct(">H6sBB8sQ")
_THREAD = struct.Struct(">QH16s")
_ADDRESS = struct.Struct(">I16s16sQH")

_REMOVED = 0x80
_HAS_HISTORY = 0x40
_SOURCE = 0x0F
_SPENT = 2
# Looking a member up by position takes a tenth of the time that calling the enum does.
_SOURCES = tuple(Source)
_ORIGINS = tuple(Origin)


def _lsn_key(lsn: int) -> bytes:
    return lsn.to_bytes(6, "big")


def after(prefix: bytes) -> bytes:
    """The smallest key above every key with this prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix[-1] < 255 else after(prefix[:-1])


class CheckpointEntry(NamedTuple):
    """What the index knows of a checkpoint id."""

    number: int
    ref: Ref
    place: int
    """LSN of the first put; 0 when the id was removed."""
    parent: int
    """Number of the parent's id in this lane; 0 for none."""
    mask: int
    """Bits of the channels that have a value in its table (codec.names.channel_bit)."""
    source: Source
    token: bytes
    removed: bool
    has_history: bool
    consumed: Consumed


class WritesEntry(NamedTuple):
    """What the index knows of one `put_writes` batch."""

    ref: Ref
    token: bytes
    origin: Origin
    regular: bool
    """Whether it holds a write that is not one of the special channels."""
    spent: bool
    """Whether it made a child that was removed since: it makes no other."""
    task: bytes
    mask: int


class LaneAddress(NamedTuple):
    thread: int
    thread_hash: bytes
    ns_hash: bytes
    ref: Ref


class LaneState(NamedTuple):
    numbers: int = 0
    checkpoints: int = 0
    head: int = 0
    head_since: int = 0
    """LSN of what chose the head: a first put, a HEAD or a TOMBSTONE record."""
    removals: int = 0
    """How often checkpoints were removed or put again: as long as it stays, what was live is live."""


class Catalog:
    """Lookups and changes over one transaction of an ordered map."""

    __slots__ = ("_kv",)

    def __init__(self, kv: Kv) -> None:
        self._kv = kv

    # -- threads and lanes ----------------------------------------------------------------------------------------------

    def thread(self, name: str) -> int | None:
        value = self._kv.get(b"T" + name_hash(name))
        return None if value is None else _number(value)

    def lane(self, thread: str, ns: str) -> int | None:
        number = self.thread(thread)
        if number is None:
            return None
        value = self._kv.get(b"L" + _U32.pack(number) + name_hash(ns))
        return None if value is None else _number(value)

    def threads(self) -> list[int]:
        """Numbers of all live threads, oldest first."""
        return [_U32.unpack(key[1:])[0] for key, _ in self._kv.scan(b"t")]

    def threads_between(self, first: int, end: int, most: int) -> dict[int, tuple[int, int]]:
        """Live threads numbered from `first` to before `end`, oldest first, at most so many, each with the ref of its THREAD record."""
        items = islice(self._kv.between(b"t" + _U32.pack(first), b"t" + _U32.pack(end)), most)
        # Plain tuples, as there may be very many.
        return {_U32.unpack_from(key, 1)[0]: _REF.unpack_from(value) for key, value in items}

    def lanes_between(self, first: int, end: int) -> list[tuple[int, int]]:
        """(thread, lane) of the threads numbered from `first` to before `end`, in order."""
        items = self._kv.between(b"L" + _U32.pack(first), b"L" + _U32.pack(end))
        return sorted([(_U32.unpack_from(key, 1)[0], _U32.unpack(value)[0]) for key, value in items])

    def has_thread(self, thread: int) -> bool:
        """Whether this number is a live thread's."""
        return self._kv.get(b"t" + _U32.pack(thread)) is not None

    def thread_record(self, thread: int) -> tuple[Ref, bytes]:
        """(ref of its THREAD record, name hash) of a live thread's number."""
        value = self._kv.get(b"t" + _U32.pack(thread))
        assert value is not None
        lsn, ordinal, hashed = _THREAD.unpack(value)
        return Ref(lsn, ordinal), hashed

    def lanes(self, thread: int) -> list[int]:
        """Lane numbers of a thread, oldest first."""
        return sorted(_number(value) for _, value in self._kv.scan(b"L" + _U32.pack(thread)))

    def address(self, lane: int) -> LaneAddress | None:
        value = self._kv.get(b"l" + _U32.pack(lane))
        if value is None:
            return None
        thread, thread_hash, ns_hash, lsn, ordinal = _ADDRESS.unpack(value)
        return LaneAddress(thread, thread_hash, ns_hash, Ref(lsn, ordinal))

    def state(self, lane: int) -> LaneState:
        value = self._kv.get(b"s" + _U32.pack(lane))
        return LaneState() if value is None else LaneState(*_STATE.unpack(value))

    def origins(self, lane: int) -> list[int]:
        """Lanes whose records this lane reads besides its own: what it was copied from."""
        return [origin for origin, _ in self.origin_threads(lane)]

    def origin_threads(self, lane: int) -> list[tuple[int, int]]:
        """(lane, its thread) of what this lane was copied from; they may be deleted since."""
        value = self._kv.get(b"y" + _U32.pack(lane))
        return [] if value is None else [(origin, thread) for origin, thread in msgpack.unpackb(value)]

    def copied_lanes(self) -> list[tuple[int, list[int]]]:
        """(lane, lanes whose records it reads) of all lanes made by copying."""
        return [(_U32.unpack(key[1:])[0], [origin for origin, _ in msgpack.unpackb(value)]) for key, value in self._kv.scan(b"y")]

    def next_numbers(self) -> tuple[int, int]:
        """The next thread number and lane number."""
        value = self._kv.get(b"n")
        threads, lanes = (0, 0) if value is None else _PAIR.unpack(value)
        return threads + 1, lanes + 1

    def meta(self, name: str) -> Any:
        value = self._kv.get(b"m" + name.encode())
        return None if value is None else msgpack.unpackb(value)

    # -- checkpoints ----------------------------------------------------------------------------------------------------

    def number(self, lane: int, id: str) -> int | None:
        """The number of an id in a lane, if it was ever mentioned there."""
        return self._number_of(lane, name_hash(id))

    def _number_of(self, lane: int, hashed: bytes) -> int | None:
        value = self._kv.get(b"I" + _U32.pack(lane) + hashed)
        return None if value is None else _number(value)

    def checkpoint(self, lane: int, number: int) -> CheckpointEntry | None:
        """The entry of a number, removed ones included; None when nothing was ever put under it."""
        value = self._kv.get(b"C" + _PAIR.pack(lane, number))
        return None if value is None else _checkpoint_entry(number, value)

    def live_ref(self, lane: int, id: str) -> tuple[int | None, Ref | None]:
        """(number of an id, where its record stands): the cheap half of `live_checkpoint`, for comparing."""
        number = self.number(lane, id)
        value = None if number is None else self._kv.get(b"C" + _PAIR.pack(lane, number))
        if value is None:
            return number, None
        lsn, ordinal, place = _PLACED.unpack_from(value)
        return number, Ref(lsn, ordinal) if place else None

    def ref_of(self, lane: int, number: int) -> Ref | None:
        """Where the record of a live checkpoint stands."""
        value = self._kv.get(b"C" + _PAIR.pack(lane, number))
        if value is None:
            return None
        lsn, ordinal, place = _PLACED.unpack_from(value)
        return Ref(lsn, ordinal) if place else None

    def live_checkpoint(self, lane: int, number: int) -> CheckpointEntry | None:
        entry = self.checkpoint(lane, number)
        return None if entry is None or entry.removed else entry

    def head(self, lane: int) -> CheckpointEntry | None:
        number = self.state(lane).head
        return self.live_checkpoint(lane, number) if number else None

    def newest_first(self, lane: int, before: int | None = None) -> Iterator[tuple[int, int]]:
        """(place, number) of a lane's checkpoints, newest first, from just below the place `before`."""
        prefix = b"O" + _U32.pack(lane)
        start = None if before is None else prefix + _lsn_key(before)
        for key, value in self._kv.scan(prefix, before=start, reverse=True):
            yield int.from_bytes(key[5:], "big"), _number(value)

    def children(self, lane: int, number: int) -> list[int]:
        """Numbers of the children, by place."""
        return [_number(value) for _, value in self._kv.scan(b"K" + _PAIR.pack(lane, number))]

    def writes(self, lane: int, number: int) -> list[WritesEntry]:
        """Batches stored on a checkpoint id, in LSN order."""
        found = []
        for key, value in self._kv.scan(b"W" + _PAIR.pack(lane, number)):
            ordinal, token, origin, regular, task, mask = _WRITES.unpack(value)
            ref = Ref(int.from_bytes(key[9:], "big"), ordinal)
            found.append(WritesEntry(ref, token.rstrip(b"\0"), _ORIGINS[origin], bool(regular), regular == _SPENT, task, mask))
        return found

    def history(self, lane: int, number: int) -> Ref | None:
        value = self._kv.get(b"R" + _PAIR.pack(lane, number))
        return None if value is None else Ref(*_REF.unpack(value))

    def of_run(self, run: bytes) -> list[tuple[int, int]]:
        """(lane, number) of checkpoints whose metadata named this run when they were put; some may be gone or re-put since.

        Copies of a lane give its checkpoints the same numbers.
        """
        found = [_PAIR.unpack(key[9:]) for key, _ in self._kv.scan(b"V" + run)]
        copies = self.copied_lanes() if found else []
        return found + [(other, number) for lane, number in found for other, origins in copies if lane in origins]

    def late(self, thread: str, ns: str, id: str) -> int | None:
        """Time (unix ms) of the deletion that removed this id, when nobody stored it since."""
        value = self._kv.get(b"X" + late_hash(name_hash(thread), name_hash(ns), name_hash(id)))
        return None if value is None else _U64.unpack(value)[0]

    def id_hashes(self, lane: int) -> dict[int, bytes]:
        """Name hash of every number of a lane."""
        return {_number(value): key[5:] for key, value in self._kv.scan(b"I" + _U32.pack(lane))}

    def compactions(self) -> int:
        """How often the log was compacted, as far as this index knows."""
        value = self._kv.get(b"c")
        return 0 if value is None else _U64.unpack(value)[0]

    def count_compaction(self) -> None:
        self._kv.put(b"c", _U64.pack(self.compactions() + 1))

    def drop_dead(self, lsn: int) -> None:
        """A frame is gone: forget that it was dead."""
        self._kv.delete(b"D" + _lsn_key(lsn))

    def is_dead(self, lsn: int) -> bool:
        return self._kv.get(b"D" + _lsn_key(lsn)) is not None

    def dead(self) -> Iterator[int]:
        """LSNs of frames that hold nothing live."""
        for key, _ in self._kv.scan(b"D"):
            yield int.from_bytes(key[1:], "big")

    # -- the fold -------------------------------------------------------------------------------------------------------

    def apply(self, lsn: int, entries: Sequence[Entry] | Sequence[tuple[Any, ...]]) -> None:
        """Fold one frame's directory into the index."""
        for ordinal, entry in enumerate(entries):
            kind = entry[0]
            if kind in (Kind.VALUE, Kind.VOID):
                continue
            _APPLY[kind](self, Ref(lsn, ordinal), entry[HEADER:])

    def _apply_thread(self, ref: Ref, fields: Sequence[Any]) -> None:
        number, hashed, _name = fields
        self._kv.put(b"T" + hashed, _U32.pack(number))
        self._kv.put(b"t" + _U32.pack(number), _THREAD.pack(*ref, hashed))
        self._count_numbers(thread=number)

    def _apply_lane(self, ref: Ref, fields: Sequence[Any]) -> None:
        number, hashed, thread, _name = fields
        _, thread_hash = self.thread_record(thread)
        self._kv.put(b"L" + _U32.pack(thread) + hashed, _U32.pack(number))
        self._kv.put(b"l" + _U32.pack(number), _ADDRESS.pack(thread, thread_hash, hashed, *ref))
        self._count_numbers(lane=number)

    def _count_numbers(self, thread: int = 0, lane: int = 0) -> None:
        next_thread, next_lane = self.next_numbers()
        self._kv.put(b"n", _PAIR.pack(max(next_thread - 1, thread), max(next_lane - 1, lane)))

    def _apply_checkpoint(self, ref: Ref, fields: Sequence[Any]) -> None:
        lane, id_field, parent_field, token, source, mask, consumed, run, first_put, _refs = fields
        state = self.state(lane)
        numbers = state.numbers
        number, state = self._numbered(lane, id_field, state)
        parent, state = (0, state) if parent_field is None else self._numbered(lane, parent_field, state)
        packed = _U32.pack(lane)
        old = self.checkpoint(lane, number)
        if old is None or old.removed:
            # A native step consumed a batch of its own frame, whose LSN was not known when it was encoded.
            own = bool(consumed) and 0 in consumed[1][::2]
            place = first_put or ref.lsn
            known = consumed_field(consumed_from(consumed, ref.lsn)) if own else consumed
            self._kv.put(b"O" + packed + _lsn_key(place), _U32.pack(number))
            state = state._replace(checkpoints=state.checkpoints + 1)
            if place > state.head_since:
                # Not so where compaction left only a later put, and the head was chosen between the two.
                state = state._replace(head=number, head_since=place)
            if self._kv.get(b"f") is not None:
                self._forget_late(lane, id_hash(id_field))
        else:
            # A re-put keeps its place and, under the same parent, what made it: the first LSN counts for attribution.
            place = old.place
            known = consumed_field(old.consumed) if old.parent == parent else consumed
            state = state._replace(removals=state.removals + 1)
            if old.parent != parent:
                # Another past: what was kept of the one before ends with it.
                self._kv.delete(b"R" + _PAIR.pack(lane, number))
                old = old._replace(has_history=False)
            if old.parent and old.parent != parent:
                self._kv.delete(b"K" + _PAIR.pack(lane, old.parent) + _lsn_key(place))
        if parent:
            self._kv.put(b"K" + _PAIR.pack(lane, parent) + _lsn_key(place), _U32.pack(number))
        if run is not None:
            self._kv.put(b"V" + run + _PAIR.pack(lane, number), b"")
        mentioned = number <= numbers
        kept = old.has_history if old is not None else mentioned and self.history(lane, number) is not None
        flags = source | (_HAS_HISTORY if kept else 0)
        self._put_checkpoint(lane, number, ref, place, parent, mask, flags, token, known)
        self._kv.put(b"s" + packed, _STATE.pack(*state))

    def _put_checkpoint(
        self, lane: int, number: int, ref: Ref, place: int, parent: int, mask: int, flags: int, token: bytes, known: list[Any]
    ) -> None:
        value = _CHECKPOINT.pack(ref.lsn, ref.ordinal, place, parent, mask, flags, token)
        self._kv.put(b"C" + _PAIR.pack(lane, number), value + (msgpack.packb(known) if known else b""))

    def _apply_writes(self, ref: Ref, fields: Sequence[Any]) -> None:
        lane, target, token, origin, task, mask, regular, child, _refs = fields
        state = self.state(lane)
        number, after = self._numbered(lane, target, state)
        if after != state:
            self._kv.put(b"s" + _U32.pack(lane), _STATE.pack(*after))
        self._kv.put(
            b"W" + _PAIR.pack(lane, number) + _lsn_key(ref.lsn), _WRITES.pack(ref.ordinal, token, origin, regular, task, mask)
        )
        if child is not None:
            self._own_late(lane, child, ref)

    def _own_late(self, lane: int, child: Any, ref: Ref) -> None:
        """Append a batch that came after the child it made to what that child consumed."""
        number = self._number_of(lane, id_hash(child))
        entry = None if number is None else self.live_checkpoint(lane, number)
        if entry is None:
            return
        known = entry.consumed
        if entry.source == Source.UPDATE:
            known = known._replace(every=(*known.every, ref))
        else:
            known = known._replace(newest=(*known.newest, ref))
        flags = int(entry.source) | (_HAS_HISTORY if entry.has_history else 0)
        self._put_checkpoint(
            lane, entry.number, entry.ref, entry.place, entry.parent, entry.mask, flags, entry.token, consumed_field(known)
        )

    def _apply_history(self, ref: Ref, fields: Sequence[Any]) -> None:
        lane, survivor = fields[0], fields[1]
        # Compaction may have left only a later put of the survivor.
        state = self.state(lane)
        number, changed = self._numbered(lane, survivor, state)
        if changed != state:
            self._kv.put(b"s" + _U32.pack(lane), _STATE.pack(*changed))
        self._kv.put(b"R" + _PAIR.pack(lane, number), _REF.pack(*ref))
        key = b"C" + _PAIR.pack(lane, number)
        known = self._kv.get(key)
        if known is not None:
            value = bytearray(known)
            value[_FLAGS_AT] |= _HAS_HISTORY
            self._kv.put(key, bytes(value))

    def _apply_copy(self, ref: Ref, fields: Sequence[Any]) -> None:
        destination, source, _place = fields
        old, new = _U32.pack(source), _U32.pack(destination)
        for prefix in (b"I", b"C", b"O", b"K", b"W", b"R"):
            for key, value in list(self._kv.scan(prefix + old)):
                self._kv.put(prefix + new + key[5:], value)
        self._kv.put(b"s" + new, _STATE.pack(*self.state(source)))
        address = self.address(source)
        assert address is not None
        self._kv.put(b"y" + new, msgpack.packb([(source, address.thread), *self.origin_threads(source)]))

    def _apply_head(self, ref: Ref, fields: Sequence[Any]) -> None:
        lane, id_field, _fence = fields
        # Compaction may have left only a later put of the id.
        number, state = self._numbered(lane, id_field, self.state(lane))
        self._kv.put(b"s" + _U32.pack(lane), _STATE.pack(*state._replace(head=number, head_since=ref.lsn)))

    def _apply_tombstone(self, ref: Ref, fields: Sequence[Any]) -> None:
        scope, number, now_ms, hashes, dead, head, spent = fields
        if scope == THREAD_SCOPE:
            self._remove_thread(number)
            for at in range(0, len(hashes), 8):
                self._kv.put(b"X" + hashes[at : at + 8], _U64.pack(now_ms))
            if hashes:
                self._kv.put(b"f", b"")
        else:
            assert scope == LANE_SCOPE
            for parent, flat in spent:
                self._spend(number, parent, flat)
            self._remove_checkpoints(ref.lsn, number, [hashes[at : at + 16] for at in range(0, len(hashes), 16)], head)
        for first, count in zip(dead[::2], dead[1::2], strict=True):
            for lsn in range(first, first + count):
                self._kv.put(b"D" + _lsn_key(lsn), b"")

    def _spend(self, lane: int, parent: Any, flat: Sequence[int]) -> None:
        """Mark batches on a parent that made a child which is now removed."""
        number = self._number_of(lane, id_hash(parent))
        for lsn in [] if number is None else flat[::2]:
            key = b"W" + _PAIR.pack(lane, number) + _lsn_key(lsn)
            value = self._kv.get(key)
            if value is not None:
                ordinal, token, origin, _, task, mask = _WRITES.unpack(value)
                self._kv.put(key, _WRITES.pack(ordinal, token, origin, _SPENT, task, mask))

    def _remove_thread(self, thread: int) -> None:
        if not self.has_thread(thread):
            return  # compaction took all its records already
        packed = _U32.pack(thread)
        for lane in self.lanes(thread):
            lane_key = _U32.pack(lane)
            for prefix in (b"I", b"C", b"O", b"K", b"W", b"R", b"l", b"s", b"y"):
                self._clear(prefix + lane_key)
        _, hashed = self.thread_record(thread)
        self._clear(b"L" + packed)
        self._kv.delete(b"t" + packed)
        self._kv.delete(b"T" + hashed)

    def _remove_checkpoints(self, lsn: int, lane: int, hashes: list[bytes], head_form: Any) -> None:
        packed = _U32.pack(lane)
        state = self.state(lane)
        count = state.checkpoints
        some_late = self._kv.get(b"f") is not None
        for hashed in hashes:
            if some_late:
                # It was stored since its thread was deleted: put, or copied from another thread.
                self._forget_late(lane, hashed)
            found = self._kv.get(b"I" + packed + hashed)
            if found is None:
                # Compaction took the record; the mark stays, so that a walk that meets the id knows of a loss.
                number = state.numbers + 1
                state = state._replace(numbers=number)
                self._kv.put(b"I" + packed + hashed, _U32.pack(number))
            else:
                number = _number(found)
            entry = self.checkpoint(lane, number)
            if entry is not None and entry.removed:
                continue  # said again, with a child that names it
            if entry is not None:
                count -= 1
                self._kv.delete(b"O" + packed + _lsn_key(entry.place))
                if entry.parent:
                    self._kv.delete(b"K" + _PAIR.pack(lane, entry.parent) + _lsn_key(entry.place))
            # Also where compaction left only what a survivor needs of it.
            self._clear(b"W" + _PAIR.pack(lane, number))
            self._clear(b"R" + _PAIR.pack(lane, number))
            parent = 0 if entry is None else entry.parent
            self._put_checkpoint(lane, number, Ref(0, 0), 0, parent, 0, _REMOVED, b"", [])
        head = 0
        if head_form is not None:
            head, state = self._numbered(lane, head_form, state)
        # A head that stays was chosen before: compaction does not need the tombstone for it.
        since = state.head_since if head == state.head else lsn
        self._kv.put(b"s" + packed, _STATE.pack(state.numbers, count, head, since, state.removals + 1))

    def _apply_meta(self, ref: Ref, fields: Sequence[Any]) -> None:
        for name, value in fields[0].items():
            if name == "numbers":
                # What compaction took away must not make numbers come back.
                self._count_numbers(*value)
                continue
            self._kv.put(b"m" + name.encode(), msgpack.packb(value))

    def _numbered(self, lane: int, form: Any, state: LaneState) -> tuple[int, LaneState]:
        """The number of an id, given now if this is its first mention."""
        key = b"I" + _U32.pack(lane) + id_hash(form)
        value = self._kv.get(key)
        if value is not None:
            return _number(value), state
        number = state.numbers + 1
        self._kv.put(key, _U32.pack(number))
        return number, state._replace(numbers=number)

    def _forget_late(self, lane: int, hashed: bytes) -> None:
        address = self.address(lane)
        if address is None:
            return  # a lane whose thread is gone; compaction left of it what a copy still reads
        self._kv.delete(b"X" + late_hash(address.thread_hash, address.ns_hash, hashed))

    def _clear(self, prefix: bytes) -> None:
        for key, _ in list(self._kv.scan(prefix)):
            self._kv.delete(key)

    # -- the oracle -----------------------------------------------------------------------------------------------------

    def logical_view(self) -> dict[bytes, bytes]:
        """Everything the catalog knows: what a rebuilt index must equal, key by key. Frame locations are not part of it."""
        return {key: value for prefix in _PREFIXES for key, value in self._kv.scan(prefix)}


_PREFIXES = (b"C", b"D", b"I", b"K", b"L", b"O", b"R", b"T", b"V", b"W", b"X", b"f", b"l", b"m", b"n", b"s", b"t", b"y")
_FLAGS_AT = struct.calcsize(">QHQIQ")


# A walk along a lineage decodes the same entries at each call, and they change rarely.
@lru_cache(maxsize=4096)
def _checkpoint_entry(number: int, value: bytes) -> CheckpointEntry:
    lsn, ordinal, place, parent, mask, flags, token = _CHECKPOINT.unpack_from(value)
    tail = value[_CHECKPOINT.size :]
    return CheckpointEntry(
        number,
        Ref(lsn, ordinal),
        place,
        parent,
        mask,
        _SOURCES[flags & _SOURCE],
        token.rstrip(b"\0"),
        bool(flags & _REMOVED),
        bool(flags & _HAS_HISTORY),
        consumed_from(msgpack.unpackb(tail)) if tail else Consumed(),
    )


def _number(value: bytes) -> int:
    return int.from_bytes(value, "big")


_APPLY = {
    Kind.THREAD: Catalog._apply_thread,
    Kind.LANE: Catalog._apply_lane,
    Kind.CHECKPOINT: Catalog._apply_checkpoint,
    Kind.WRITES: Catalog._apply_writes,
    Kind.HISTORY: Catalog._apply_history,
    Kind.COPY: Catalog._apply_copy,
    Kind.HEAD: Catalog._apply_head,
    Kind.TOMBSTONE: Catalog._apply_tombstone,
    Kind.META: Catalog._apply_meta,
}
