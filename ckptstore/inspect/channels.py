"""How the bytes of each channel's values are stored: whole or as patches, at which ratio, and how many frames a read touches.

Names of channels stand in the bodies of checkpoints and nowhere else. Of such a body only the table is unpacked; skeleton and metadata
are skipped, and values are not read at all: their entries in the directory say everything that is shown.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgpack

from ckptstore.codec.records import PATCH, Kind, checkpoint_refs, pack, value_facts
from ckptstore.errors import CorruptionError
from ckptstore.model import Ref
from ckptstore.storage import Frame


class ChannelBytes(NamedTuple):
    """How the live values of one channel are stored, over all threads. Values of up to 32 bytes stand in the checkpoints and do not count."""

    channel: str | None
    """None for values that no checkpoint holds: large writes, and what checkpoints held before they were stored again."""
    records: int
    bytes: int
    """What their records take: directory entries and bodies."""
    whole: int
    patched: int
    raw_bytes: int
    """What the values are, decoded."""
    ratio: float
    """raw_bytes / bytes."""
    most_frames: int
    """Frames that reading the deepest of them touches."""


class _Value(NamedTuple):
    size: int
    raw: int
    patched: bool
    frames: int


class ChannelTally:
    """Sums over frames. Keeps some hundred bytes for each value until `result`."""

    def __init__(self) -> None:
        self._values: dict[Ref, _Value] = {}
        self._names: dict[Ref, str] = {}

    def add(self, frame: Frame) -> None:
        """Count the values of a frame, and learn from its checkpoints which channels values belong to.

        Raises:
            CorruptionError: the body of a checkpoint does not decode.
        """
        for ordinal, entry in enumerate(frame.entries):
            if entry[0] == Kind.VALUE:
                facts = value_facts(frame.lsn, entry)
                self._values[Ref(frame.lsn, ordinal)] = _Value(
                    len(pack(entry)) + entry[2], facts.length, facts.codec == PATCH, facts.frames
                )
            elif entry[0] == Kind.CHECKPOINT:
                refs = checkpoint_refs(frame.lsn, entry)
                if refs:
                    self._learn(refs, _table(frame.raw(ordinal)))

    def _learn(self, refs: tuple[Ref, ...], table: dict[str, Any]) -> None:
        for channel, (_, slot) in table.items():
            if isinstance(slot, int):
                # A value that several channels hold belongs to the first that held it: the log is read in order.
                self._names.setdefault(refs[slot], channel)

    def result(self) -> list[ChannelBytes]:
        """The channels, the one that takes most bytes first."""
        groups: dict[str | None, list[_Value]] = {}
        for ref, value in self._values.items():
            groups.setdefault(self._names.get(ref), []).append(value)
        found = [_channel(name, values) for name, values in groups.items()]
        return sorted(found, key=lambda item: (-item.bytes, item.channel or ""))


def _channel(name: str | None, values: list[_Value]) -> ChannelBytes:
    size, raw = sum(value.size for value in values), sum(value.raw for value in values)
    patched = sum(value.patched for value in values)
    most = max(value.frames for value in values)
    return ChannelBytes(name, len(values), size, len(values) - patched, patched, raw, round(raw / size, 2), most)


def _table(body: bytes) -> dict[str, Any]:
    """The table in a checkpoint's body, without unpacking what stands before it."""
    reader = msgpack.Unpacker(unicode_errors="surrogatepass", strict_map_key=False, max_buffer_size=len(body))
    reader.feed(body)
    try:
        reader.read_array_header()
        reader.skip()
        reader.skip()
        table: dict[str, Any] = reader.unpack()
    except (ValueError, msgpack.UnpackException) as error:
        raise CorruptionError(f"the body of a checkpoint does not decode: {error}") from None
    return table
