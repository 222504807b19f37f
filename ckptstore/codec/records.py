"""The record kinds, each as a directory entry and a body. docs/format.md specifies every field.

A frame's directory is a msgpack array of entries:

    [kind, codec, body length, raw length, field, field, ...]

Everything a rebuild of the index needs (keys and all references) stands in the fields, uncompressed; a body is only decoded to
read what the user stored. References are written flat, two integers each: LSN, ordinal; LSN 0 means the frame itself, whose LSN is
not known before it is sealed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, cast

import msgpack

from ckptstore.codec.compression import compress, decompress
from ckptstore.codec.names import IdForm, id_form, id_text, name_hash
from ckptstore.errors import CorruptionError
from ckptstore.model import (
    CheckpointRecord,
    Consumed,
    Ref,
    Slot,
    Source,
    Typed,
    WriteEntry,
    WritesRecord,
)


class Kind(IntEnum):
    """Record kinds of format 1. A number is never reused."""

    VOID = 0
    """What compaction leaves in place of a dead record, so that the ordinals of the others stay."""
    THREAD = 1
    LANE = 2
    CHECKPOINT = 3
    VALUE = 4
    WRITES = 5
    HISTORY = 6
    COPY = 7
    HEAD = 8
    TOMBSTONE = 9
    META = 10


Entry = list[Any]
VOID = (0, 0, 0, 0)
"""The directory entry of a dead record that compaction took out."""
HEADER = 4
"""Number of leading items every entry has: kind, codec, body length, raw length."""


class Encoded(NamedTuple):
    """One record ready for a frame."""

    kind: int
    codec: int
    raw_length: int
    fields: tuple[Any, ...]
    body: bytes

    def entry(self) -> tuple[Any, ...]:
        return (self.kind, self.codec, len(self.body), self.raw_length, *self.fields)


def pack(value: Any) -> bytes:
    """msgpack as this format uses it: lone surrogates allowed, nothing but plain types."""
    return cast(bytes, msgpack.packb(value, unicode_errors="surrogatepass"))


def unpack(data: bytes | memoryview) -> Any:
    """Undo `pack`; lengths inside are bounded by the length of `data`."""
    return msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=False)


def _tuple_as_list(value: Any) -> Any:
    if type(value) is tuple:
        return list(value)
    raise TypeError(f"not a plain value: {type(value).__name__}")


def pack_plain(value: Any) -> bytes | None:
    """msgpack of a value made of plain types only (tuples become lists), or None where it holds anything else.

    Subclasses of plain types count as something else: they would come back as another type without a sign of it.
    """
    try:
        return cast(
            bytes,
            msgpack.packb(value, unicode_errors="surrogatepass", strict_types=True, default=_tuple_as_list),
        )
    except (TypeError, ValueError, OverflowError):
        return None


def _encoded(kind: Kind, fields: tuple[Any, ...], raw: bytes = b"") -> Encoded:
    codec, body = compress(raw)
    return Encoded(kind, codec, len(raw), fields, body)


def _flat(refs: Iterable[Ref]) -> list[int]:
    return [number for ref in refs for number in ref]


def _refs(flat: Sequence[int], own: int = 0) -> tuple[Ref, ...]:
    """References from their flat form; `own` is the LSN of the frame they stand in."""
    if len(flat) <= 2:  # nearly always: none or one
        return (Ref(flat[0] or own, flat[1]),) if flat else ()
    return tuple(Ref(flat[i] or own, flat[i + 1]) for i in range(0, len(flat), 2))


_MALFORMED = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
"""What bytes that are something else make of the code that takes a body apart."""


# -- THREAD [number, name hash, name] and LANE [number, name hash, thread number, name]; no body ---------------------------
#    The name stands in the directory, so that listing threads reads no body, however large the values beside it are.


def encode_thread(number: int, hashed: bytes, name: str) -> Encoded:
    return _encoded(Kind.THREAD, (number, hashed, name))


def encode_lane(number: int, hashed: bytes, thread: int, ns: str) -> Encoded:
    return _encoded(Kind.LANE, (number, hashed, thread, ns))


def entry_name(entry: Entry) -> str:
    """The name in a THREAD or LANE entry."""
    name: str = entry[-1]
    return name


# -- VALUE [type tag, crc32 of the raw bytes] or, patched, [..., number, frames, bases, folds] ------------------------------
#    type tag: an index into TAGS, or the tag itself
#    number, frames: version number along the chain; frames that reading it touches (lineage/values.py)
#    bases: flat references to the values the patch copies from
#    folds: references to WRITES records that follow them as material, as varints: LSN less the one before, ordinal

TAGS = ("msgpack", "null", "bytes", "bytearray", "json", "pickle", "empty")
_TAG_NUMBERS = {tag: number for number, tag in enumerate(TAGS)}
PATCH = 16
"""Codec of a VALUE body that is a patch (codec/patch.py)."""


class ValueFacts(NamedTuple):
    """What a VALUE entry says without its body."""

    tag: str
    codec: int
    length: int
    crc: int
    number: int
    frames: int
    bases: tuple[Ref, ...]
    folds: tuple[Ref, ...]


def encode_value(value: Typed, crc: int, codec: int, body: bytes) -> Encoded:
    """A value stored whole, its body compressed by the caller."""
    return Encoded(Kind.VALUE, codec, len(value[1]), (_packed_tag(value[0]), crc), body)


def encode_patched_value(
    value: Typed, crc: int, patch: bytes, number: int, frames: int, bases: Sequence[Ref], folds: Sequence[Ref]
) -> Encoded:
    fields = (_packed_tag(value[0]), crc, number, frames, _flat(bases), _pack_folds(folds))
    return Encoded(Kind.VALUE, PATCH, len(value[1]), fields, patch)


def value_facts(lsn: int, entry: Entry) -> ValueFacts:
    """The facts of a VALUE entry in the frame of `lsn`."""
    _, codec, _, length, tag, crc, *chain = entry
    name = tag if isinstance(tag, str) else TAGS[tag]
    if not chain:
        return ValueFacts(name, codec, length, crc, 0, 1, (), ())
    number, frames, bases, folds = chain
    return ValueFacts(name, codec, length, crc, number, frames, _refs(bases, lsn), _unpack_folds(folds))


def _packed_tag(tag: str) -> int | str:
    return _TAG_NUMBERS.get(tag, tag)


def _pack_folds(folds: Sequence[Ref]) -> bytes:
    packed = bytearray()
    before = 0
    for ref in folds:
        # Replay order is not quite LSN order: a zigzag of the difference.
        step = ref.lsn - before
        for number in (step << 1 if step >= 0 else (-step << 1) - 1, ref.ordinal):
            while number >= 0x80:
                packed.append(number & 0x7F | 0x80)
                number >>= 7
            packed.append(number)
        before = ref.lsn
    return bytes(packed)


def _unpack_folds(packed: bytes) -> tuple[Ref, ...]:
    numbers: list[int] = []
    value = shift = 0
    for byte in packed:
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            numbers.append(value)
            value = shift = 0
        else:
            shift += 7
            if shift > 49:
                raise CorruptionError("a number in the references of a value is too long")
    if shift or len(numbers) & 1:
        raise CorruptionError("the references of a value end early")
    folds, lsn = [], 0
    for step, ordinal in zip(numbers[::2], numbers[1::2], strict=True):
        lsn += step >> 1 if not step & 1 else -((step + 1) >> 1)
        folds.append(Ref(lsn, ordinal))
    return tuple(folds)


# -- CHECKPOINT [lane, id, parent id, token, source, value mask, consumed, run, place, refs] -------------------------------
#    body: [skeleton, metadata, {channel: [version, slot]}]
#    slot: nil (no value), an integer (index into refs) or [type tag, bytes] (a tiny value, inline)
#    skeleton and metadata: a map, or [type tag, bytes] where the map held more than plain types
#    run: 8-byte hash of the run id in the metadata, or nil
#    place: LSN of the first put of this id where this is a later one, else 0
#    consumed: [gated, every, newest, first], each a flat list of references; [] when nothing was


def consumed_field(consumed: Consumed) -> list[Any]:
    if not consumed.refs():
        return []
    return [consumed.gated, _flat(consumed.every), _flat(consumed.newest), _flat(consumed.first)]


def consumed_from(field: Sequence[Any], own: int = 0) -> Consumed:
    """What a checkpoint consumed; `own` is the LSN of its frame, in which the batch of a native step stands."""
    if not field:
        return Consumed()
    return Consumed(_refs(field[1], own), _refs(field[2], own), _refs(field[3], own), bool(field[0]))


class CheckpointBody(NamedTuple):
    """What `prepare_checkpoint` made outside the commit lock."""

    body: bytes
    codec: int
    raw_length: int


def pack_slots(table: Mapping[str, Slot]) -> tuple[dict[str, Any], list[Ref]]:
    """A table as msgpack-ready map, and the references its slots point at."""
    refs: list[Ref] = []
    packed: dict[str, Any] = {}
    for channel, (version, value) in table.items():
        if value is None:
            packed[channel] = (version, None)
        elif isinstance(value, Ref):
            packed[channel] = (version, len(refs))
            refs.append(value)
        else:
            packed[channel] = (version, (_packed_tag(value[0]), value[1]))
    return packed, refs


def prepare_checkpoint(
    skeleton: dict[str, Any] | Typed, metadata: dict[str, Any] | Typed, packed_table: Mapping[str, Any]
) -> CheckpointBody:
    """Encode a checkpoint's body; what the commit decides goes into its entry later.

    Raises:
        TypeError, ValueError, OverflowError: skeleton or metadata is a map that holds more than plain types.
    """
    raw = cast(
        bytes,
        msgpack.packb(
            [
                skeleton if isinstance(skeleton, dict) else list(skeleton),
                metadata if isinstance(metadata, dict) else list(metadata),
                packed_table,
            ],
            unicode_errors="surrogatepass",
            strict_types=True,
            default=_tuple_as_list,
        ),
    )
    codec, body = compress(raw)
    return CheckpointBody(body, codec, len(raw))


def encode_checkpoint(
    prepared: CheckpointBody,
    *,
    lane: int,
    id: str,
    parent: str | None,
    token: bytes,
    source: Source,
    mask: int,
    consumed: Consumed,
    run: bytes | None,
    place: int,
    refs: Iterable[Ref],
) -> Encoded:
    fields = (
        lane,
        id_form(id),
        None if parent is None else id_form(parent),
        token,
        int(source),
        mask,
        consumed_field(consumed),
        run,
        place,
        _flat(refs),
    )
    return Encoded(Kind.CHECKPOINT, prepared.codec, prepared.raw_length, fields, prepared.body)


def decode_checkpoint(ref: Ref, entry: Entry, raw: bytes) -> CheckpointRecord:
    lane, id, parent, token, _source, _mask, consumed, _run, _place, flat = entry[HEADER:]
    refs = _refs(flat, ref.lsn)
    try:
        skeleton, metadata, packed = unpack(raw)
        "".join(packed)  # names of channels are texts
        table = {channel: Slot(version, _slot_value(value, refs)) for channel, (version, value) in packed.items()}
        skeleton, metadata = _map_or_typed(skeleton), _map_or_typed(metadata)
    except _MALFORMED:
        raise CorruptionError(f"the body of record {ref.ordinal} at LSN {ref.lsn} is no checkpoint") from None
    return CheckpointRecord(
        ref,
        lane,
        id_text(id),
        None if parent is None else id_text(parent),
        token,
        consumed_from(consumed, ref.lsn),
        skeleton,
        metadata,
        table,
    )


def checkpoint_refs(lsn: int, entry: Entry) -> tuple[Ref, ...]:
    """The values a CHECKPOINT entry references."""
    return _refs(entry[HEADER + 9], lsn)


def _slot_value(value: Any, refs: Sequence[Ref]) -> Ref | Typed | None:
    if value is None:
        return None
    if isinstance(value, int):
        return refs[value]
    return _typed(value)


def _typed(value: Any) -> Typed:
    tag, raw = value
    if type(raw) is not bytes:
        raise TypeError("not the bytes of a value")
    return (tag if isinstance(tag, str) else TAGS[tag], raw)


def _map_or_typed(value: Any) -> Any:
    return value if isinstance(value, dict) else _typed(value)


# -- WRITES [lane, target id, token, origin, task hash, channel mask, regular, child id, refs] -----------------------------
#    body: [task id, task path, [[idx, channel, slot], ...]]


class WritesBody(NamedTuple):
    """What `prepare_writes` made outside the commit lock."""

    body: bytes
    codec: int
    raw_length: int
    refs: tuple[Ref, ...]


def prepare_writes(task_id: str, task_path: str, writes: Iterable[WriteEntry]) -> WritesBody:
    refs: list[Ref] = []
    packed: list[Any] = []
    for idx, channel, value in writes:
        if isinstance(value, Ref):
            packed.append((idx, channel, len(refs)))
            refs.append(value)
        else:
            packed.append((idx, channel, (_packed_tag(value[0]), value[1])))
    raw = pack((id_form(task_id), task_path, packed))
    codec, body = compress(raw)
    return WritesBody(body, codec, len(raw), tuple(refs))


def encode_writes(
    prepared: WritesBody,
    *,
    lane: int,
    target: str,
    token: bytes,
    origin: int,
    task: bytes,
    mask: int,
    regular: bool,
    child: str | None,
) -> Encoded:
    fields = (
        lane,
        id_form(target),
        token,
        origin,
        task,
        mask,
        regular,
        None if child is None else id_form(child),
        _flat(prepared.refs),
    )
    return Encoded(Kind.WRITES, prepared.codec, prepared.raw_length, fields, prepared.body)


def decode_writes(ref: Ref, entry: Entry, raw: bytes) -> WritesRecord:
    refs = _refs(entry[HEADER + 8], ref.lsn)
    writes = []
    try:
        task_id, task_path, packed = unpack(raw)
        task_id = id_text(task_id)
        for idx, channel, value in packed:
            stored = _slot_value(value, refs)
            if stored is None or type(idx) is not int or type(channel) is not str:
                raise TypeError("not a write")
            writes.append(WriteEntry(idx, channel, stored))
        if type(task_path) is not str:
            raise TypeError("not a path")
    except _MALFORMED:
        raise CorruptionError(f"the body of record {ref.ordinal} at LSN {ref.lsn} holds no writes") from None
    return WritesRecord(ref, entry[HEADER], id_text(entry[HEADER + 1]), task_id, task_path, tuple(writes))


def writes_mask(entry: Entry) -> int:
    """The channel mask of a WRITES entry."""
    return int(entry[HEADER + 5])


def writes_task(entry: Entry) -> bytes:
    """The hash of the task of a WRITES entry."""
    return bytes(entry[HEADER + 4])


def writes_refs(lsn: int, entry: Entry) -> tuple[Ref, ...]:
    """The values a WRITES entry references."""
    return _refs(entry[HEADER + 8], lsn)


# -- HISTORY [lane, survivor id, value refs, write refs] -------------------------------------------------------------------
#    body: {channel: [seed slot, [[every, newest, first], ...]]}: per edge, oldest first, indexes into the write refs;
#    nil instead where it was lost already


class HistoryEdge(NamedTuple):
    """Batches of one removed edge that a survivor still needs for one channel."""

    every: tuple[Ref, ...]
    newest: tuple[Ref, ...]
    first: tuple[Ref, ...]


class ChannelPast(NamedTuple):
    """What a survivor keeps for one channel: the nearest value and the owned writes after it, oldest edge first."""

    seed: Ref | Typed | None
    edges: tuple[HistoryEdge, ...]
    lost: bool = False
    """Whether a part of it was lost already when it was written: whoever asks for it is told."""


def encode_history(lane: int, survivor: str, past: Mapping[str, ChannelPast]) -> Encoded:
    values: list[Ref] = []
    writes: dict[Ref, int] = {}

    def numbered(refs: tuple[Ref, ...]) -> list[int]:
        return [writes.setdefault(ref, len(writes)) for ref in refs]

    packed: dict[str, Any] = {}
    for channel, (seed, edges, lost) in past.items():
        if lost:
            packed[channel] = None
            continue
        slot: Any = None
        if isinstance(seed, Ref):
            slot = len(values)
            values.append(seed)
        elif seed is not None:
            slot = (_packed_tag(seed[0]), seed[1])
        packed[channel] = [slot, [[numbered(group) for group in edge] for edge in edges]]
    return _encoded(Kind.HISTORY, (lane, id_form(survivor), _flat(values), _flat(writes)), pack(packed))


def decode_history(entry: Entry, raw: bytes) -> dict[str, ChannelPast]:
    values, writes = _refs(entry[HEADER + 2]), _refs(entry[HEADER + 3])
    past = {}
    try:
        packed_past = unpack(raw)
        "".join(packed_past)  # names of channels are texts
        for channel, packed in packed_past.items():
            if packed is None:
                past[channel] = ChannelPast(None, (), lost=True)
                continue
            slot, edges = packed
            groups = (HistoryEdge(*(tuple(writes[i] for i in group) for group in edge)) for edge in edges)
            past[channel] = ChannelPast(_slot_value(slot, values), tuple(groups))
    except _MALFORMED:
        raise CorruptionError("the body of a history record is no history") from None
    return past


def history_refs(entry: Entry) -> tuple[tuple[Ref, ...], tuple[Ref, ...]]:
    """(values, writes) a HISTORY entry references."""
    return _refs(entry[HEADER + 2]), _refs(entry[HEADER + 3])


# -- COPY [destination lane, source lane, place] ---------------------------------------------------------------------------


def encode_copy(destination: int, source: int, place: int) -> Encoded:
    return _encoded(Kind.COPY, (destination, source, place))


# -- HEAD [lane, id, fence] ------------------------------------------------------------------------------------------------


def encode_head(lane: int, id: str, fence: int) -> Encoded:
    return _encoded(Kind.HEAD, (lane, id_form(id), fence))


# -- TOMBSTONE [scope, number, unix time in ms, hashes, dead, head, spent] -------------------------------------------------
#    scope 0: number is a thread, hashes are 8-byte late hashes of its ids
#    scope 1: number is a lane, hashes are the 16-byte name hashes of the removed ids
#    head: scope 1: the lane's head after the removal, an id or nil
#    spent: scope 1: [[id, flat references to WRITES], ...]: batches on checkpoints that stay, which made children that go
#    dead: LSNs of frames that hold nothing live from here on, as runs: first, count, first, count, ...

THREAD_SCOPE = 0
LANE_SCOPE = 1


def encode_tombstone(
    scope: int,
    number: int,
    now_ms: int,
    hashes: bytes,
    dead: Iterable[int],
    head: str | None = None,
    spent: Iterable[tuple[str, Iterable[Ref]]] = (),
) -> Encoded:
    batches = [[id_form(parent), _flat(refs)] for parent, refs in spent]
    after = None if head is None else id_form(head)
    return _encoded(Kind.TOMBSTONE, (scope, number, now_ms, hashes, _runs(dead), after, batches))


def _runs(lsns: Iterable[int]) -> list[int]:
    runs: list[int] = []
    for lsn in sorted(lsns):
        if runs and runs[-2] + runs[-1] == lsn:
            runs[-1] += 1
        else:
            runs += [lsn, 1]
    return runs


# -- META [map] ------------------------------------------------------------------------------------------------------------


def encode_meta(facts: Mapping[str, Any]) -> Encoded:
    return _encoded(Kind.META, (dict(facts),))


def decode_body(entry: Entry, body: bytes) -> bytes:
    """A record's raw bytes from its stored body."""
    return decompress(entry[1], body, entry[3])


def checkpoint_id(entry: Entry) -> str:
    """The id in a CHECKPOINT entry, without decoding its body."""
    form: IdForm = entry[HEADER + 1]
    return id_text(form)


def checkpoint_run(entry: Entry) -> bytes | None:
    """The run hash in a CHECKPOINT entry."""
    run: bytes | None = entry[HEADER + 7]
    return run


_ID_FIELDS = {Kind.CHECKPOINT: (1, 2), Kind.WRITES: (1, 7), Kind.HISTORY: (1,), Kind.HEAD: (1,), Kind.TOMBSTONE: (5,)}
_HASHED = 1


def hashed_entry(entry: Entry) -> Entry:
    """The same entry without user text, ids replaced by their hashes: what a hint file holds."""
    hashed = list(entry)
    if entry[0] in (Kind.THREAD, Kind.LANE):
        hashed[-1] = ""
    if entry[0] == Kind.TOMBSTONE:
        hashed[-1] = [[msgpack.ExtType(_HASHED, name_hash(id_text(parent))), refs] for parent, refs in entry[-1]]
    for field in _ID_FIELDS.get(entry[0], ()):
        form = entry[HEADER + field]
        if form is not None:
            hashed[HEADER + field] = msgpack.ExtType(_HASHED, name_hash(id_text(form)))
    return hashed


def id_hash(form: Any) -> bytes:
    """Name hash of an id field, of a log entry or of a hint."""
    return form.data if isinstance(form, msgpack.ExtType) else name_hash(id_text(form))


def kept(frame_entry: Entry, body: bytes) -> Encoded:
    """A record of a frame as it is, to be written again."""
    kind, codec, _, raw_length, *fields = frame_entry
    return Encoded(kind, codec, raw_length, tuple(fields), body)
