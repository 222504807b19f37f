"""A structural view of values that somebody else's serde wrote: trees of plain types, and never an object that the bytes name.

LangGraph's serializer writes msgpack whose extension objects say "import this module, call this class with these arguments". Here they
become `Inert`: the dotted name and the arguments, as data. Nothing is imported, nothing is called, pickle is never loaded.

>>> inert(("msgpack", bytes.fromhex("92a2686901")))
['hi', 1]
>>> inert(("pickle", b"cos\\nsystem\\n"))
Opaque(tag='pickle', size=11, why='pickle is never loaded: that would run what it names')

The bytes may be hostile. Their depth, the number of items and the size are bounded. A container that claims more items than there are bytes
left is refused before anything is allocated for it, and the payload of an extension is read in place, so that nesting copies nothing.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ckptstore.errors import CkptStoreError
from ckptstore.model import Typed

MAX_DEPTH: Final = 100
"""Containers and extension objects inside one another. The reader recurses, so this has to stay far below Python's own limit."""
MAX_ITEMS: Final = 1_000_000
"""Items of one value; each takes at most about 100 bytes of memory, besides its text."""
MAX_BYTES: Final = 64 << 20
"""Bytes of one value."""

DELTA_SNAPSHOT: Final = "langgraph.checkpoint.serde.types._DeltaSnapshot"
NUMPY: Final = "numpy.ndarray"
PAIRS: Final = "dict"
"""Type name of a map with keys that a Python dictionary cannot hold as they are: its arguments are (key, value) lists."""
EXTENSION: Final = "msgpack.Ext"
"""Type name of an extension object of unknown meaning: its arguments are code and payload."""


class UnreadableValueError(CkptStoreError, ValueError):
    """Bytes that do not read as their tag says, or that exceed the bounds of this view. The message says which, never what they hold."""


class _MalformedError(UnreadableValueError):
    """Not what the tag says; the others exceed a bound."""


@dataclass(frozen=True, slots=True)
class Inert:
    """What an extension object would have been: the name that would be called, and with what.

    >>> Inert("datetime.date", (2026, 1, 2))
    Inert('datetime.date', (2026, 1, 2))
    >>> Inert("app.User", fields={"id": "u1"})["id"]
    'u1'
    """

    type_name: str
    """Dotted: module and class, or module, class and method."""
    args: tuple[Any, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def __repr__(self) -> str:
        parts = [repr(self.type_name)]
        if self.args:
            parts.append(repr(self.args))
        if self.fields:
            parts.append(f"fields={dict(self.fields)!r}")
        return f"Inert({', '.join(parts)})"

    @property
    def short_name(self) -> str:
        """The last part of the type name."""
        return self.type_name.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Opaque:
    """Bytes that cannot be shown as a structure."""

    tag: str
    size: int
    """In bytes."""
    why: str


def inert(typed: Typed, *, max_depth: int = MAX_DEPTH, max_items: int = MAX_ITEMS, max_bytes: int = MAX_BYTES) -> Any:
    """A value as plain types, `Inert` and `Opaque`.

    Args:
        typed: type tag and bytes, as a serde wrote them. Known are `msgpack`, `json`, `null`, `bytes` and `bytearray`; whatever else
            (pickle, encrypted bytes, tags of a serde of yours) comes back as `Opaque`.
        max_depth: containers inside one another, 1 to 200.
        max_items: items in all, from 1.
        max_bytes: size of what is parsed, from 0.

    Raises:
        UnreadableValueError: the bytes are not what the tag says, or exceed a bound.
    """
    tag, data = typed
    if tag == "null":
        return None
    if tag in ("bytes", "bytearray"):
        return bytes(data)
    if tag == "pickle":
        return Opaque(tag, len(data), "pickle is never loaded: that would run what it names")
    if tag not in ("msgpack", "json"):
        return Opaque(tag, len(data), "encrypted" if "+" in tag else "written by another serializer")
    if len(data) > max_bytes:
        raise UnreadableValueError(f"{len(data):,} bytes: more than the {max_bytes:,} that are shown")
    if tag == "json":
        return _json(bytes(data), max_depth, max_items)
    return _msgpack(bytes(data), max_depth, max_items)


# -- msgpack -------------------------------------------------------------------------------------------------------------


def _struct(code: str) -> Callable[[bytes, int], Any]:
    unpack = struct.Struct(">" + code).unpack_from
    return lambda data, at: unpack(data, at)[0]


# First bytes with a payload of fixed size: (bytes, how to read them).
_SCALARS: Final[dict[int, tuple[int, Callable[[bytes, int], Any]]]] = {
    0xCA: (4, _struct("f")),
    0xCB: (8, _struct("d")),
    0xCC: (1, _struct("B")),
    0xCD: (2, _struct("H")),
    0xCE: (4, _struct("I")),
    0xCF: (8, _struct("Q")),
    0xD0: (1, _struct("b")),
    0xD1: (2, _struct("h")),
    0xD2: (4, _struct("i")),
    0xD3: (8, _struct("q")),
}
_CONSTANTS: Final[dict[int, Any]] = {0xC0: None, 0xC2: False, 0xC3: True}
# First bytes followed by a length: (bytes of the length, kind).
_SIZED: Final[dict[int, tuple[int, str]]] = {
    0xC4: (1, "bin"),
    0xC5: (2, "bin"),
    0xC6: (4, "bin"),
    0xC7: (1, "ext"),
    0xC8: (2, "ext"),
    0xC9: (4, "ext"),
    0xD9: (1, "str"),
    0xDA: (2, "str"),
    0xDB: (4, "str"),
    0xDC: (2, "array"),
    0xDD: (4, "array"),
    0xDE: (2, "map"),
    0xDF: (4, "map"),
}
_FIXEXT: Final[dict[int, int]] = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_PLAIN_KEYS: Final = (str, int, float, bool, bytes, type(None))


def _msgpack(data: bytes, max_depth: int, max_items: int) -> Any:
    reader = _Reader(data, max_depth, max_items)
    value = reader.item(len(data), 0)
    if reader.at != len(data):
        raise _MalformedError(f"not msgpack: {len(data) - reader.at:,} bytes follow the value")
    return value


class _Reader:
    """A position in msgpack bytes."""

    __slots__ = ("_data", "_left", "_max_depth", "_max_items", "at")

    def __init__(self, data: bytes, max_depth: int, max_items: int) -> None:
        self._data = data
        self._max_depth = max_depth
        self._max_items = max_items
        self._left = max_items
        self.at = 0

    def item(self, end: int, depth: int) -> Any:
        """The item at the position, which has to end at `end` or before."""
        at = self.at
        if at >= end:
            raise _MalformedError(f"not msgpack: it ends early, at byte {at:,}")
        self._left -= 1
        if self._left < 0:
            raise UnreadableValueError(f"more than the {self._max_items:,} items that are shown")
        first = self._data[at]
        self.at = at + 1
        # By frequency: short texts, small numbers, small maps and lists.
        if 0xA0 <= first < 0xC0:
            return self._text(first & 31, end)
        if first < 0x80:
            return first
        if first < 0x90:
            return self._map(first & 15, end, depth)
        if first < 0xA0:
            return self._array(first & 15, end, depth)
        if first >= 0xE0:
            return first - 256
        return self._long(first, end, depth)

    def _long(self, first: int, end: int, depth: int) -> Any:
        if first in _CONSTANTS:
            return _CONSTANTS[first]
        scalar = _SCALARS.get(first)
        if scalar is not None:
            size, read = scalar
            return read(self._data, self._take(size, end))
        if first in _FIXEXT:
            return self._ext(_FIXEXT[first], end, depth)
        sized = _SIZED.get(first)
        if sized is None:
            raise _MalformedError(f"not msgpack: the byte {first:#04x} at {self.at - 1:,} begins nothing")
        width, kind = sized
        start = self._take(width, end)
        length = int.from_bytes(self._data[start : start + width], "big")
        if kind == "str":
            return self._text(length, end)
        if kind == "bin":
            start = self._take(length, end)
            return self._data[start : start + length]
        if kind == "array":
            return self._array(length, end, depth)
        return self._map(length, end, depth) if kind == "map" else self._ext(length, end, depth)

    def _take(self, size: int, end: int) -> int:
        """Step over `size` bytes; return where they start."""
        start = self.at
        if size > end - start:
            raise _MalformedError(f"not msgpack: {size:,} bytes are announced at byte {start:,} and {end - start:,} follow")
        self.at = start + size
        return start

    def _text(self, size: int, end: int) -> str:
        start = self._take(size, end)
        try:
            return self._data[start : start + size].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise _MalformedError(f"not msgpack: the text at byte {start:,} is not UTF-8") from None

    def _inside(self, count: int, end: int, depth: int) -> int:
        """Check a container before anything is allocated for it; return the depth inside."""
        if depth >= self._max_depth:
            raise UnreadableValueError(f"deeper than the {self._max_depth} levels that are shown")
        if count > end - self.at:
            raise _MalformedError(
                f"not msgpack: {count:,} items are announced at byte {self.at:,} and {end - self.at:,} bytes follow"
            )
        return depth + 1

    def _array(self, count: int, end: int, depth: int) -> list[Any]:
        inside = self._inside(count, end, depth)
        return [self.item(end, inside) for _ in range(count)]

    def _map(self, count: int, end: int, depth: int) -> Any:
        inside = self._inside(2 * count, end, depth)
        pairs = [(self.item(end, inside), self.item(end, inside)) for _ in range(count)]
        return _mapping(pairs)

    def _ext(self, size: int, end: int, depth: int) -> Any:
        code = self._data[self._take(1, end)]
        start = self._take(size, end)
        stop = start + size
        if code in _SHAPES:
            inside = self._inside(0, end, depth)
            self.at = start
            # Codes are anybody's: a payload that is not LangGraph's is kept as it is. Bounds hold all the same.
            with contextlib.suppress(_MalformedError):
                payload = self.item(stop, inside)
                found = _SHAPES[code](payload) if self.at == stop else None
                if found is not None:
                    return found
        self.at = stop
        return Inert(EXTENSION, (code if code < 128 else code - 256, self._data[start:stop]))


def _mapping(pairs: list[tuple[Any, Any]]) -> Any:
    found = {}
    for key, value in pairs:
        if not isinstance(key, _PLAIN_KEYS):
            return Inert(PAIRS, tuple([key, value] for key, value in pairs))
        found[key] = value
    # 1 and True, or 0 and 0.0, are one key in Python and two in the file.
    return found if len(found) == len(pairs) else Inert(PAIRS, tuple([key, value] for key, value in pairs))


def _named(payload: Any, length: int) -> str | None:
    """The dotted name at the front of [module, name, ...], or None for anything else."""
    if not isinstance(payload, list) or len(payload) != length:
        return None
    module, name = payload[:2]
    return f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else None


def _one_argument(payload: Any) -> Inert | None:
    name = _named(payload, 3)
    return None if name is None else Inert(name, (payload[2],))


def _arguments(payload: Any) -> Inert | None:
    name = _named(payload, 3)
    return Inert(name, tuple(payload[2])) if name is not None and isinstance(payload[2], list) else None


def _keywords(payload: Any) -> Inert | None:
    name = _named(payload, 3)
    return None if name is None else _with_fields(name, payload[2])


def _method(payload: Any) -> Inert | None:
    name = _named(payload, 4)
    return Inert(f"{name}.{payload[3]}", (payload[2],)) if name is not None and isinstance(payload[3], str) else None


def _pydantic(payload: Any) -> Inert | None:
    name = _named(payload, 4)
    return None if name is None else _with_fields(name, payload[2])


def _with_fields(name: str, fields: Any) -> Inert:
    if isinstance(fields, dict) and all(isinstance(key, str) for key in fields):
        return Inert(name, (), fields)
    return Inert(name, (fields,))


def _array_of_numbers(payload: Any) -> Inert | None:
    if not isinstance(payload, list) or len(payload) != 4 or not isinstance(payload[3], bytes):
        return None
    return Inert(NUMPY, (), dict(zip(("dtype", "shape", "order", "data"), payload, strict=True)))


def _snapshot(payload: Any) -> Inert:
    return Inert(DELTA_SNAPSHOT, (payload,))


# Extension codes of LangGraph's JsonPlusSerializer.
_SHAPES: Final[dict[int, Callable[[Any], Inert | None]]] = {
    0: _one_argument,
    1: _arguments,
    2: _keywords,
    3: _method,
    4: _keywords,
    5: _pydantic,
    6: _array_of_numbers,
    7: _snapshot,
}


# -- json ----------------------------------------------------------------------------------------------------------------


def _json(data: bytes, max_depth: int, max_items: int) -> Any:
    # Brackets and commas bound both, and counting them costs no memory; those inside texts only make the bound stricter
    # than it has to be, so they are looked at again before anything is refused.
    try:
        _check_json(data, max_depth, max_items)
        # Decoded here: left alone, the parser also takes UTF-16, whose bytes the check cannot count.
        value = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        if isinstance(error, UnreadableValueError):
            raise
        raise UnreadableValueError(f"not JSON: {type(error).__name__}") from None
    return _constructors(value)


def _check_json(data: bytes, max_depth: int, max_items: int) -> None:
    """Refuse JSON beyond the bounds before it is parsed: the parser itself has none."""
    items = data.count(b",") + data.count(b"[") + data.count(b"{") + data.count(b":")
    opened = data.count(b"[") + data.count(b"{")
    if items <= max_items and opened <= max_depth:
        return
    depth = items = 0
    inside = escaped = False
    for byte in data:
        if inside:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                inside = False
        elif byte == 0x22:
            inside = True
        elif byte in b"[{":
            depth += 1
            items += 1
            if depth > max_depth:
                raise UnreadableValueError(f"deeper than the {max_depth} levels that are shown")
        elif byte in b"]}":
            depth -= 1
        elif byte in b",:":
            items += 1
        if items > max_items:
            raise UnreadableValueError(f"more than the {max_items:,} items that are shown")


def _constructors(value: Any) -> Any:
    """LangChain's JSON objects as `Inert`. The depth is bounded already."""
    if isinstance(value, list):
        return [_constructors(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _constructors(item) for key, item in value.items()}
    name = found.get("id")
    if found.get("lc") not in (1, 2) or found.get("type") != "constructor" or not isinstance(name, list):
        return found
    dotted = ".".join(part for part in name if isinstance(part, str))
    args, kwargs = found.get("args") or [], found.get("kwargs") or {}
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        return found
    return Inert(dotted, tuple(args), kwargs)
