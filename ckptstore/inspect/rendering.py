"""Values that are only looked at, as JSON and as lines of text."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from typing import Any, Final

from ckptstore.codec.inert import EXTENSION, PAIRS, Inert, Opaque

WIDTH: Final = 110
"""Characters a value may take beside its name before it is broken into lines."""
TEXT: Final = 400
"""Characters of one text that are shown, unless all is asked for."""
ITEMS: Final = 20
"""Items of one list that are shown, the last ones, unless all is asked for."""

_FAMILIAR: Final = ("langchain_core.messages.", "langgraph.types.", "langgraph.graph.", "builtins.", "ckptstore.")


def as_json(value: Any) -> Any:
    """A value as what JSON can hold; objects with a key that begins with `$` stand for what it cannot.

    >>> as_json({"a": [1, b"x", Inert("uuid.UUID", ("07",))], 1: None})
    {'$pairs': [['a', [1, {'$bytes': 'eA=='}, {'$type': 'uuid.UUID', 'args': ['07']}]], [1, None]]}
    """
    if isinstance(value, Inert):
        if value.type_name == PAIRS:
            return {"$pairs": [as_json(pair) for pair in value.args]}
        found: dict[str, Any] = {"$type": value.type_name}
        if value.args:
            found["args"] = [as_json(item) for item in value.args]
        if value.fields:
            found["fields"] = as_json(dict(value.fields))
        return found
    if isinstance(value, Opaque):
        return {"$opaque": value.tag, "size": value.size, "why": value.why}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: as_json(item) for key, item in value.items()}
        return {"$pairs": [[as_json(key), as_json(item)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    return value


def as_lines(name: str, value: Any, *, indent: int = 0, everything: bool = False) -> Iterator[str]:
    """A value as indented lines; short ones stay on one.

    Args:
        name: what to write in front of it.
        everything: do not shorten texts and lists. Empty fields of objects are left out all the same.
    """
    pad = " " * indent
    short = _inline(value, WIDTH)
    if short is not None:
        yield f"{pad}{name}{short}"
    elif isinstance(value, list | tuple):
        yield f"{pad}{name}list of {len(value):,}"
        first = 0 if everything else max(0, len(value) - ITEMS)
        if first:
            yield f"{pad}  ... {first:,} before these"
        for at in range(first, len(value)):
            yield from as_lines(f"[{at}] ", value[at], indent=indent + 2, everything=everything)
    elif isinstance(value, dict):
        yield f"{pad}{name}map of {len(value):,}"
        for key, item in value.items():
            yield from as_lines(f"{_key(key)}: ", item, indent=indent + 2, everything=everything)
    elif isinstance(value, Inert) and value.type_name == PAIRS:
        yield f"{pad}{name}map of {len(value.args):,}"
        for key, item in value.args:
            yield from as_lines(f"{_inline(key, WIDTH) or 'a long key'}: ", item, indent=indent + 2, everything=everything)
    elif isinstance(value, Inert):
        yield f"{pad}{name}{_type(value)}"
        for item in value.args:
            yield from as_lines("- ", item, indent=indent + 2, everything=everything)
        for key, item in _told(value):
            yield from as_lines(f"{key}: ", item, indent=indent + 2, everything=everything)
    else:
        yield f"{pad}{name}{_cut(value, everything)}"


def one_line(value: Any, width: int = WIDTH) -> str:
    """A value on one line, cut off where it is longer."""
    line = _Line(width)
    text = line.text(value)
    return text if line.fits else f"{text}..."


def _cut(value: Any, everything: bool) -> str:
    if isinstance(value, str):
        if everything or len(value) <= TEXT:
            return repr(value)
        return f"{value[:TEXT]!r}... ({len(value):,} characters)"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes: " + (value.hex() if everything else f"{value[:16].hex()}...")
    if isinstance(value, Opaque):
        return f"{value.size:,} bytes as {value.tag!r}: {value.why}"
    return repr(value)


class _TooLong(Exception):
    pass


def _inline(value: Any, width: int) -> str | None:
    """A value on one line; None where that takes more characters."""
    line = _Line(width)
    text = line.text(value)
    return text if line.fits else None


class _Line:
    """One line of bounded length; writing stops where it is full, however large the value is."""

    def __init__(self, width: int) -> None:
        self._left = width
        self._parts: list[str] = []
        self.fits = True

    def text(self, value: Any) -> str:
        """The value, as far as it fits."""
        try:
            self._value(value)
        except _TooLong:
            self.fits = False
        return "".join(self._parts)

    def _put(self, text: str) -> None:
        self._parts.append(text[: self._left])
        self._left -= len(text)
        if self._left < 0:
            raise _TooLong

    def _value(self, value: Any) -> None:
        if isinstance(value, list | tuple):
            self._row("[", [("", item) for item in value], "]")
        elif isinstance(value, dict):
            self._row("{", [(f"{_key(key)}: ", item) for key, item in value.items()], "}")
        elif isinstance(value, Inert):
            named = [(f"{key}=", item) for key, item in _told(value)]
            self._row(_type(value) + "(", [*(("", item) for item in value.args), *named], ")")
        elif isinstance(value, str) and len(value) > self._left:
            self._put(repr(value[: self._left + 1]))
            raise _TooLong
        else:
            self._put(_cut(value, False))

    def _row(self, begin: str, items: list[tuple[str, Any]], end: str) -> None:
        self._put(begin)
        for at, (name, item) in enumerate(items):
            self._put((", " if at else "") + name)
            self._value(item)
        self._put(end)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else repr(key)


def _told(value: Inert) -> list[tuple[str, Any]]:
    """The fields that say something; a message has a dozen that are mostly empty."""
    return [(key, item) for key, item in value.fields.items() if item not in (None, "", [], {})]


def _type(value: Inert) -> str:
    if value.type_name == EXTENSION:
        return "extension"
    return value.short_name if value.type_name.startswith(_FAMILIAR) else value.type_name
