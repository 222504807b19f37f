"""What a directory entry of each kind looks like: the bytes of a frame may be somebody else's, and checksums do not tell.

An entry is checked once, where it is decoded. What reads entries behind that may take types, lengths and ranges for granted; whether a
reference leads to a record of the right kind, it still has to look.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import msgpack

from ckptstore.codec.records import HEADER, TAGS, Kind
from ckptstore.errors import CorruptionError
from ckptstore.model import Origin, Source

MOST_LSN = (1 << 48) - 1
LARGEST_VALUE = 1 << 30
"""In bytes; `max_value_bytes` may not be more."""

_MOST_NUMBER = (1 << 32) - 1
_SOURCES, _ORIGINS = len(Source), len(Origin)

_HEAD: list[Any] = [int, int, int, int]
_ID = (bytes, str)
_HASHED_ID = (*_ID, msgpack.ExtType)
_NONE = type(None)
_INTEGERS = {int}


def _types(id: tuple[type, ...]) -> dict[int, set[tuple[type, ...]]]:
    """The types that the items of an entry may have, by kind."""
    fields: dict[Kind, list[list[Any]]] = {
        Kind.VOID: [[]],
        Kind.THREAD: [[int, bytes, str]],
        Kind.LANE: [[int, bytes, int, str]],
        Kind.CHECKPOINT: [[int, id, (*id, _NONE), bytes, int, int, list, (bytes, _NONE), int, list]],
        Kind.VALUE: [[(int, str), int], [(int, str), int, int, int, list, bytes]],
        Kind.WRITES: [[int, id, bytes, int, bytes, int, bool, (*id, _NONE), list]],
        Kind.HISTORY: [[int, id, list, list]],
        Kind.COPY: [[int, int, int]],
        Kind.HEAD: [[int, id, int]],
        Kind.TOMBSTONE: [[int, int, int, bytes, list, (*id, _NONE), list]],
        Kind.META: [[dict]],
    }
    return {
        kind: {
            choice
            for form in forms
            for choice in product(*(item if isinstance(item, tuple) else (item,) for item in (*_HEAD, *form)))
        }
        for kind, forms in fields.items()
    }


_TYPES = _types(_ID)
_HASHED_TYPES = _types(_HASHED_ID)


def check_entries(entries: Any, *, hashed: bool = False) -> None:
    """Refuse a directory that no writer of this format makes.

    Args:
        hashed: ids may stand as their hashes, as in a hint.

    Raises:
        CorruptionError
    """
    known = _HASHED_TYPES if hashed else _TYPES
    try:
        for entry in entries:
            kind = entry[0]
            if tuple(map(type, entry)) not in known[kind] or entry[2] < 0 or entry[3] < 0 or not _CHECKS[kind](entry):
                raise CorruptionError(f"a record of kind {kind} has fields that it cannot have")
    except (TypeError, KeyError, IndexError):
        raise CorruptionError("it is no list of records of this format") from None


def _is_flat(refs: list[Any]) -> bool:
    """Whether this is a flat list of references."""
    if len(refs) == 2:  # nearly always
        lsn, ordinal = refs
        return type(lsn) is int and type(ordinal) is int and 0 <= lsn <= MOST_LSN and ordinal >= 0
    if not refs:
        return True
    return set(map(type, refs)) == _INTEGERS and not len(refs) & 1 and min(refs) >= 0 and max(refs) <= MOST_LSN


def _is_enough(entry: list[Any]) -> bool:
    """For kinds of which types say enough."""
    return True


def _is_numbered(entry: list[Any]) -> bool:
    """Whether the first field may be the number of a thread or a lane."""
    number: int = entry[HEADER]
    return 0 <= number <= _MOST_NUMBER


def _checkpoint(entry: list[Any]) -> bool:
    lane, _, _, _, source, _, consumed, run, _, refs = entry[HEADER:]
    if consumed:
        if len(consumed) != 4 or type(consumed[0]) is not bool:
            return False
        for batches in consumed[1:]:
            if type(batches) is not list or (batches and not _is_flat(batches)):
                return False
    return 0 <= lane <= _MOST_NUMBER and 0 <= source < _SOURCES and (run is None or len(run) == 8) and (not refs or _is_flat(refs))


def _value(entry: list[Any]) -> bool:
    tag = entry[HEADER]
    if entry[3] > LARGEST_VALUE or (type(tag) is int and not 0 <= tag < len(TAGS)):
        return False
    # Of several bases each could have several again, and reading one value would not end.
    return len(entry) == HEADER + 2 or (len(entry[HEADER + 4]) <= 2 and _is_flat(entry[HEADER + 4]))


def _writes(entry: list[Any]) -> bool:
    refs = entry[HEADER + 8]
    return 0 <= entry[HEADER] <= _MOST_NUMBER and 0 <= entry[HEADER + 3] < _ORIGINS and (not refs or _is_flat(refs))


def _history(entry: list[Any]) -> bool:
    return _is_numbered(entry) and _is_flat(entry[HEADER + 2]) and _is_flat(entry[HEADER + 3])


def _tombstone(entry: list[Any]) -> bool:
    if not _is_flat(entry[HEADER + 4]):
        return False
    for batches in entry[HEADER + 6]:
        if type(batches) is not list or len(batches) != 2 or type(batches[0]) not in _HASHED_ID or type(batches[1]) is not list:
            return False
        if not _is_flat(batches[1]):
            return False
    return True


_CHECKS: dict[int, Callable[[list[Any]], bool]] = {
    Kind.VOID: _is_enough,
    Kind.META: _is_enough,
    Kind.THREAD: _is_numbered,
    Kind.LANE: _is_numbered,
    Kind.COPY: _is_numbered,
    Kind.HEAD: _is_numbered,
    Kind.CHECKPOINT: _checkpoint,
    Kind.VALUE: _value,
    Kind.WRITES: _writes,
    Kind.HISTORY: _history,
    Kind.TOMBSTONE: _tombstone,
}
