"""A reader of the folder written from docs/format.md alone: it shares no code with the package, so it tells when the two part.

Reads the log from its beginning, without the index. Knows checkpoints, writes, heads, copies, removals and histories.
"""

from __future__ import annotations

import json
import struct
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgpack
import zstandard

TAGS = ("msgpack", "null", "bytes", "bytearray", "json", "pickle", "empty")
THREAD, LANE, CHECKPOINT, VALUE, WRITES, HISTORY, COPY, HEAD, TOMBSTONE, META = range(1, 11)
UPDATE = 2
PATCH = 16
DICTIONARY = Path(__file__).resolve().parent.parent / "ckptstore" / "codec" / "dictionary-1.zdict"

Ref = tuple[int, int]
Value = tuple[str, bytes]


class NotReadable(Exception):
    """The folder is not what docs/format.md describes."""


class Frame(NamedTuple):
    lsn: int
    durable: int
    entries: list[list[Any]]
    bodies: list[bytes]


class Batch(NamedTuple):
    """One writes record."""

    ref: Ref
    task: str
    path: str
    writes: list[tuple[int, str, Value]]


class Node:
    """What a lane holds of one id."""

    def __init__(self) -> None:
        self.place = 0
        self.ref: Ref | None = None
        self.parent: str | None = None
        self.source = 0
        self.gated = False
        self.consumed: list[list[Ref]] = [[], [], []]
        self.batches: list[Batch] = []
        self.history: Ref | None = None

    def copy(self) -> Node:
        node = Node()
        node.__dict__.update(self.__dict__)
        node.consumed = [list(group) for group in self.consumed]
        node.batches = list(self.batches)
        return node


class Lane:
    def __init__(self, thread: int, ns: str) -> None:
        self.thread = thread
        self.ns = ns
        self.nodes: dict[str, Node] = {}
        self.gone: set[bytes] = set()
        self.head: str | None = None
        self.head_since = 0

    def node(self, id: str) -> Node:
        return self.nodes.setdefault(id, Node())

    def newest_first(self) -> list[str]:
        return sorted((id for id, node in self.nodes.items() if node.place), key=lambda id: -self.nodes[id].place)


class Checkpoint(NamedTuple):
    """A checkpoint as a reader sees it."""

    id: str
    parent: str | None
    skeleton: Any
    metadata: Any
    versions: dict[str, Any]
    values: dict[str, Value]
    pending: list[tuple[str, str, Value]]


def read_frames(folder: Path) -> list[Frame]:
    """All frames of the log, in LSN order."""
    store = json.loads((folder / "STORE").read_text())
    if store["ckptstore"] > 1 or store["features"]["incompatible"]:
        raise NotReadable("a newer format")
    segments = {}
    for path in (folder / "segments").glob("*.seg"):
        data = path.read_bytes()
        magic, major, _minor, length, number, uuid, timeline, base, end, _created, salt, count = struct.unpack_from(
            "<8sHHIQ16s8sQQQII", data
        )
        if magic != bytes.fromhex("89434B50540D0A1A") or major != 1 or length != 84 + 8 * count or number != int(path.stem):
            raise NotReadable(f"{path.name}: header")
        if crc32(data[: length - 4]) != int.from_bytes(data[length - 4 : length], "little"):
            raise NotReadable(f"{path.name}: header checksum")
        replaces = struct.unpack_from(f"<{count}Q", data, 80)
        if uuid.hex() != store["uuid"] or timeline.hex() not in store["timelines"]:
            raise NotReadable(f"{path.name}: another store")
        segments[number] = (base, end, salt, length, replaces, data)
    void = {old for segment in segments.values() for old in segment[4]}
    frames: list[Frame] = []
    due = 1
    for base, end, salt, at, _, data in sorted(segment for number, segment in segments.items() if number not in void):
        chain = salt
        if base != due:
            raise NotReadable(f"LSN {due} is missing")
        while data[at:].rstrip(b"\0"):
            frame, chain, at = _frame(data, at, chain)
            frames.append(frame)
            due = frame.lsn + 1
        due = max(due, end)
    return frames


def _frame(data: bytes, at: int, chain: int) -> tuple[Frame, int, int]:
    if len(data) < at + 44:
        raise NotReadable(f"offset {at}: a torn tail")
    mark, flags, crc, before, directory, directory_crc, length, bodies_crc, lsn, durable = struct.unpack_from("<3sB6IQQ", data, at)
    if mark != b"\xc4KF" or flags or crc != crc32(data[at : at + 4] + data[at + 8 : at + 44]) or before != chain:
        raise NotReadable(f"offset {at}: no frame")
    start = at + 44 + directory
    listing, rest = data[at + 44 : start], data[start : start + length]
    if crc32(listing) != directory_crc or crc32(rest) != bodies_crc:
        raise NotReadable(f"LSN {lsn}: directory or bodies")
    entries = _unpack(listing)
    bodies = []
    for entry in entries:
        bodies.append(rest[: entry[2]])
        rest = rest[entry[2] :]
    if rest:
        raise NotReadable(f"LSN {lsn}: the directory does not add up")
    return Frame(lsn, durable, entries, bodies), crc, start + length


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=False)


def _id(form: bytes | str) -> str:
    if isinstance(form, str):
        return form
    digits = form.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _hash(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class MiniReader:
    """A whole store in memory."""

    def __init__(self, folder: Path) -> None:
        self.frames = {frame.lsn: frame for frame in read_frames(folder)}
        self.threads: dict[int, str] = {}
        self.lanes: dict[int, Lane] = {}
        self.facts: dict[str, Any] = {}
        self.batches: dict[Ref, Batch] = {}
        """Every writes record, also of what was removed since: histories and patches name them."""
        for lsn, frame in self.frames.items():
            for ordinal, entry in enumerate(frame.entries):
                self._apply((lsn, ordinal), entry[0], entry[4:])

    # -- records --------------------------------------------------------------------------------------------------------

    def body(self, ref: Ref) -> bytes:
        """A record's body, decoded."""
        frame = self.frames[ref[0]]
        _kind, codec, _length, raw_length, *_ = frame.entries[ref[1]]
        return _decoded(codec, frame.bodies[ref[1]], raw_length)

    def value(self, ref: Ref) -> Value:
        """A value record's tag and bytes."""
        frame = self.frames[ref[0]]
        _kind, codec, _length, raw_length, tag, crc, *chain = frame.entries[ref[1]]
        raw = self.body(ref) if codec != PATCH else _patched(frame.bodies[ref[1]], self._material(ref[0], *chain[2:]))
        if crc32(raw) != crc or len(raw) != raw_length:
            raise NotReadable(f"{ref}: value checksum")
        return _tag(tag), raw

    def _material(self, own: int, bases: list[int], folds: bytes) -> bytes:
        pieces = [self.value(base)[1] for base in _refs_of(bases, own)]
        numbers, lsn = _varints(folds), 0
        for step, ordinal in zip(numbers[::2], numbers[1::2], strict=True):
            lsn += step // 2 if step % 2 == 0 else -(step + 1) // 2
            for idx, _, (_, raw) in self.batches[lsn, ordinal].writes:
                if idx >= 0:
                    pieces.append(raw[_container_header(raw) :])
        return b"".join(pieces)

    def _slot(self, slot: Any, refs: list[Ref]) -> Value | None:
        if slot is None:
            return None
        return self.value(refs[slot]) if isinstance(slot, int) else (_tag(slot[0]), slot[1])

    def _apply(self, ref: Ref, kind: int, fields: list[Any]) -> None:
        if kind == THREAD:
            self.threads[fields[0]] = fields[2]
            assert _hash(self.threads[fields[0]]) == fields[1]
        elif kind == LANE:
            self.lanes[fields[0]] = Lane(fields[2], fields[3])
            assert _hash(self.lanes[fields[0]].ns) == fields[1]
        elif kind == CHECKPOINT:
            self._checkpoint(ref, fields)
        elif kind == WRITES:
            self._writes(ref, fields)
        elif kind == HISTORY:
            self.lanes[fields[0]].node(_id(fields[1])).history = ref
        elif kind == COPY:
            source, destination = self.lanes[fields[1]], self.lanes[fields[0]]
            destination.nodes = {id: node.copy() for id, node in source.nodes.items()}
            destination.gone = set(source.gone)
            destination.head, destination.head_since = source.head, source.head_since
        elif kind == HEAD:
            self.lanes[fields[0]].head, self.lanes[fields[0]].head_since = _id(fields[1]), ref[0]
        elif kind == TOMBSTONE and fields[0] == 0:
            self.threads.pop(fields[1], None)
            self.lanes = {number: lane for number, lane in self.lanes.items() if lane.thread != fields[1]}
        elif kind == TOMBSTONE:
            self._remove(ref, self.lanes[fields[1]], fields[3], fields[5])
        elif kind == META:
            self.facts.update(fields[0])

    def _checkpoint(self, ref: Ref, fields: list[Any]) -> None:
        lane_number, form, parent_form, _token, source, _mask, consumed, _run, place, _refs = fields
        lane = self.lanes[lane_number]
        node = lane.node(_id(form))
        parent = None if parent_form is None else _id(parent_form)
        groups = [_refs_of(group, ref[0]) for group in consumed[1:]] if consumed else [[], [], []]
        if not node.place:
            node.place = place or ref[0]
            lane.gone.discard(_hash(_id(form)))
            if node.place > lane.head_since:
                lane.head, lane.head_since = _id(form), node.place
            node.gated, node.consumed = bool(consumed and consumed[0]), groups
        elif node.parent != parent:
            node.gated, node.consumed = bool(consumed and consumed[0]), groups
        node.ref, node.parent, node.source = ref, parent, source

    def _writes(self, ref: Ref, fields: list[Any]) -> None:
        lane_number, target, _token, _origin, _task, _mask, _regular, child, flat = fields
        refs = _refs_of(flat, ref[0])
        task, path, writes = _unpack(self.body(ref))
        values = [(idx, channel, self._slot(slot, refs)) for idx, channel, slot in writes]
        batch = Batch(ref, _id(task), path, [(idx, channel, value) for idx, channel, value in values if value is not None])
        self.batches[ref] = batch
        lane = self.lanes[lane_number]
        lane.node(_id(target)).batches.append(batch)
        if child is not None:
            made = lane.node(_id(child))
            if made.place:
                made.consumed[0 if made.source == UPDATE else 1].append(ref)

    @staticmethod
    def _remove(ref: Ref, lane: Lane, hashes: bytes, head: bytes | str | None) -> None:
        gone = {hashes[at : at + 16] for at in range(0, len(hashes), 16)}
        for id, node in lane.nodes.items():
            if _hash(id) in gone - lane.gone:
                node.place, node.batches, node.history = 0, [], None
        lane.gone |= gone
        lane.head, lane.head_since = None if head is None else _id(head), ref[0]

    # -- what a user sees -----------------------------------------------------------------------------------------------

    def lane(self, thread: str, ns: str = "") -> Lane | None:
        """The lane of that name, of a thread that is not deleted."""
        for lane in self.lanes.values():
            if self.threads[lane.thread] == thread and lane.ns == ns:
                return lane
        return None

    def names(self) -> set[tuple[str, str]]:
        """(thread, namespace) of every lane that holds a checkpoint."""
        return {(self.threads[lane.thread], lane.ns) for lane in self.lanes.values() if lane.newest_first()}

    def checkpoint(self, lane: Lane, id: str) -> Checkpoint:
        """A stored checkpoint."""
        node = lane.nodes[id]
        skeleton, metadata, table = self._record(node)
        values = {channel: value for channel, (_, value) in table.items() if value is not None}
        versions = {channel: version for channel, (version, _) in table.items() if version is not None}
        return Checkpoint(id, node.parent, skeleton, metadata, versions, values, self._pending(node))

    def _record(self, node: Node) -> tuple[Any, Any, dict[str, tuple[Any, Value | None]]]:
        assert node.ref is not None
        refs = _refs_of(self.frames[node.ref[0]].entries[node.ref[1]][4 + 9], node.ref[0])
        skeleton, metadata, table = _unpack(self.body(node.ref))
        return skeleton, metadata, {channel: (version, self._slot(slot, refs)) for channel, (version, slot) in table.items()}

    @staticmethod
    def _pending(node: Node) -> list[tuple[str, str, Value]]:
        chosen: dict[tuple[str, int], tuple[str, str, Value]] = {}
        for batch in node.batches:
            for idx, channel, value in batch.writes:
                if idx < 0 or (batch.task, idx) not in chosen:
                    chosen[batch.task, idx] = (batch.path, channel, value)
        ordered = sorted((path, task, idx, channel, value) for (task, idx), (path, channel, value) in chosen.items())
        return [(task, channel, value) for _, task, _, channel, value in ordered]

    def history(self, lane: Lane, id: str, channel: str) -> tuple[Value | None, list[tuple[str, Value]]]:
        """(seed, [(task, value)]) of what a channel's ancestors contribute to a checkpoint."""
        edges: list[list[list[Ref]]] = []
        seed: Value | None = None
        visited = {id}
        node = lane.nodes[id]
        while True:
            if node.history is not None:
                _, _, values, writes = self.frames[node.history[0]].entries[node.history[1]][4:]
                kept = _unpack(self.body(node.history)).get(channel)
                if kept is not None:
                    seed = self._slot(kept[0], _refs_of(values, node.history[0]))
                    numbered = _refs_of(writes, node.history[0])
                    edges += [[[numbered[i] for i in group] for group in edge] for edge in reversed(kept[1])]
                break
            parent = None if node.parent is None or node.parent in visited else lane.nodes.get(node.parent)
            lost = node.parent is not None and node.parent not in visited and _hash(node.parent) in lane.gone
            if not lost and (parent is None or not parent.place):
                break
            if lost or parent is None:
                raise NotReadable(f"the parent of {id} is lost")
            visited.add(str(node.parent))
            table, mine = self._record(parent)[2], self._record(node)[2]
            before, after = table.get(channel, (None, None))[0], mine.get(channel, (None, None))[0]
            left_out = node.gated and before is not None and before == after
            edges.append([*node.consumed[:2], [] if left_out else node.consumed[2]])
            if channel in table and table[channel][1] is not None:
                seed = table[channel][1]
                break
            node = parent
        return seed, [write for edge in reversed(edges) for write in _edge(channel, edge, self.batches)]


def _edge(channel: str, edge: list[list[Ref]], batches: dict[Ref, Batch]) -> list[tuple[str, Value]]:
    every, newest, first = ([batches[ref] for ref in sorted(group)] for group in edge)
    items = []
    last = {batch.task: batch for batch in newest}
    for batch in (*every, *last.values()):
        items += [
            (batch.path, batch.task, batch.ref[0], idx, value) for idx, name, value in batch.writes if name == channel and idx >= 0
        ]
    taken = {batch.task for batch in (*every, *newest)}
    seen = set()
    for batch in first:
        for idx, name, value in batch.writes:
            if batch.task not in taken and idx >= 0 and (batch.task, idx) not in seen:
                seen.add((batch.task, idx))
                if name == channel:
                    items.append((batch.path, batch.task, 0, idx, value))
    return [(task, value) for _, task, _, _, value in sorted(items)]


def _refs_of(flat: list[int], own: int) -> list[Ref]:
    return [(lsn or own, ordinal) for lsn, ordinal in zip(flat[::2], flat[1::2], strict=True)]


def _tag(tag: int | str) -> str:
    return tag if isinstance(tag, str) else TAGS[tag]


def _decoded(codec: int, body: bytes, raw_length: int, material: bytes = b"") -> bytes:
    if codec == 0:
        raw = body
    elif codec in (1, 2, 255):
        dictionary = None
        if codec == 2:
            dictionary = zstandard.ZstdCompressionDict(DICTIONARY.read_bytes())
        elif codec == 255:
            dictionary = zstandard.ZstdCompressionDict(material, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        decoder = zstandard.ZstdDecompressor(dict_data=dictionary, format=zstandard.FORMAT_ZSTD1_MAGICLESS)
        raw = decoder.decompress(body, max_output_size=raw_length)
    else:
        raise NotReadable(f"codec {codec}")
    if len(raw) != raw_length:
        raise NotReadable(f"{len(raw)} bytes instead of {raw_length}")
    return raw


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def _varints(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        found.append(value)
    return found


def _patched(body: bytes, material: bytes) -> bytes:
    count, at = _varint(body, 0)
    numbers = []
    for _ in range(3 * count):
        number, at = _varint(body, at)
        numbers.append(number)
    codec = body[at]
    length, at = _varint(body, at + 1)
    fresh = _decoded(codec, body[at:], length, material)
    out = b""
    for new, offset, copied in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
        out += fresh[:new] + material[offset : offset + copied]
        fresh = fresh[new:]
    return out + fresh


def _container_header(raw: bytes) -> int:
    first = raw[0] if raw else 0
    at = {0xC7: 3, 0xC8: 4, 0xC9: 6}.get(first, 2 if 0xD4 <= first <= 0xD8 else 0)
    if at >= len(raw):
        return 0
    return at + (1 if 0x80 <= raw[at] <= 0x9F else {0xDC: 3, 0xDE: 3, 0xDD: 5, 0xDF: 5}.get(raw[at], 0))
